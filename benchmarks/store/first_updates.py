"""The first updates of a language model that was not made here, trained again in memory."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from manyseeds import user_code
from manyseeds.benchmarks.experiments import catalog
from manyseeds.cli import from_identity, identity
from manyseeds.digest import ROOT
from manyseeds.errors import UsageError
from manyseeds.llm_track.tasks import GENERATED, MADE, MODELS
from manyseeds.process import set_up_process
from manyseeds.runs.language import LanguageConfig, LanguageRun
from manyseeds.runs.language_seeds import SeedsRun
from manyseeds.untrusted import reading

if TYPE_CHECKING:
    import pandas as pd

EXAMPLES = ROOT / "examples"


def why_not(stored: Mapping[str, Any]) -> str:
    """Why the first updates of a language model cannot be trained again here, by its config.json;
    '' if they can.

    What is stored must not make this command ask a hub, nor run code that is not of the examples.
    """
    settings, device = stored["config"], stored["execution"]["device"]
    if stored["kind"] != LanguageRun.kind:
        return "of no language model"
    if stored.get("source") != "manyseeds":
        return f"trained by {stored.get('source')}"
    if device != "cpu":
        return f"trained on {device}"
    for name in filter(None, (settings.get(x) for x in MODELS)):
        if name in MADE or not Path(name).is_dir():
            return f"of a language model without a folder here ({name})"
    values = [x for value in settings.values() for x in (value if is_list(value) else [value])]
    named = [x for x in values if isinstance(x, str) and user_code.is_named(x)]
    if not all(EXAMPLES in user_code.file_and_name(x, "")[0].parents for x in named):
        return "with code that is not of the examples"
    task = settings["task"]
    return "" if task in GENERATED or task in named else f"on a data set ({task})"


def is_list(value: Any) -> bool:
    return isinstance(value, list)


class Enough(Exception):
    """As many updates are done as were asked for."""


class FirstUpdates(SeedsRun):
    """Ends a training after its first updates. There are no evaluations: nothing is learned from
    them, and their random numbers are their own."""

    def __init__(self, config: LanguageConfig, seed: int, algo: str, updates: int) -> None:
        super().__init__(config, [seed], algo=algo)
        self.updates = updates

    def evaluate_if_due(self, evaluator: Any) -> None:
        """None is due."""

    def log(self, *args: Any, **kwargs: Any) -> None:
        """As SeedsRun's. Raises Enough after the last update."""
        super().log(*args, **kwargs)
        self.updates -= 1
        if not self.updates:
            raise Enough


def train(part: Path, stored: Mapping[str, Any], seed: int, updates: int) -> pd.DataFrame:
    """The metrics of the first updates of a seed, trained as config.json of a part says.

    Raises UsageError, also where a model that it names has other contents here.
    """
    module = catalog.module("llm_track", stored["algo"])
    with reading(part):
        config = from_identity(module.Config, stored["config"])
    threads = stored["execution"]["threads"]  # another number sums up in another order
    config = dataclasses.replace(config, threads=threads, quiet=True)
    own = identity(config)
    if other := [name for name in own if own[name] != stored["config"].get(name)]:
        raise UsageError(f"{other[0]} is {own[other[0]]} here, not the published one")
    set_up_process(threads)
    run = FirstUpdates(config, seed, stored["algo"], updates)
    try:
        with contextlib.suppress(Enough):
            module.train(config, run)
    finally:
        run.close()
    return run.runs[0].metrics()
