"""Language models, trained again in memory: whole, or the first updates of one from a folder."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args, get_origin, get_type_hints

from manyseeds import user_code
from manyseeds.benchmarks.experiments import catalog
from manyseeds.cli import Added, Execution, field_marks, flag, from_identity, identity
from manyseeds.digest import ROOT
from manyseeds.errors import UsageError
from manyseeds.kernels.guard import looking_by_iteration
from manyseeds.llm_track.tasks import GENERATED, MADE, MODELS
from manyseeds.process import set_up_process
from manyseeds.record import read_parquet
from manyseeds.runs.language import LanguageConfig, LanguageRun
from manyseeds.runs.language_seeds import SeedsRun
from manyseeds.untrusted import Shape, check, reading

if TYPE_CHECKING:
    import pandas as pd

EXAMPLES = ROOT / "examples"
SHOWN = 80  # characters of a name in a reason


def why_not(stored: Mapping[str, Any], whole: bool) -> str:
    """Why a language model cannot be trained again here, by its config.json; '' if it can.

    whole: from a model that is made here, in C, to the same bits; otherwise its first updates, from
    a model in a folder. What is stored must not make this command ask a hub, nor run code that is
    not of the examples.
    """
    device = stored["execution"]["device"]
    if stored["kind"] != LanguageRun.kind:
        return "of no language model"
    if stored.get("source") != "manyseeds":
        return f"trained by {stored.get('source')}"
    if device != "cpu":
        return f"trained on {device}"
    if stored["algo"] not in catalog.names("llm_track"):
        return "of an algorithm that is not in this checkout"
    try:
        settings = settings_of(stored)
        return not_of_here(settings, whole) or (whole and not_in_c(stored, settings)) or ""
    except (UsageError, ValueError) as error:
        return f"with invalid settings ({error})"


def not_in_c(stored: Mapping[str, Any], settings: Mapping[str, Any]) -> str:
    """Why PyTorch has trained a language model, or would; '' if C has and would."""
    if not isinstance(stored["execution"].get("kernels"), dict):
        return "computed by PyTorch, not in C"
    together = from_identity(catalog.module("llm_track", stored["algo"]).Config, settings)
    return "" if together.trains_together() else "of a language model that PyTorch trains"


def not_of_here(settings: Mapping[str, Any], made: bool) -> str:
    """Which model, code or data that settings name is not of this checkout; '' if all are.

    made: models are those that are made here; otherwise each has a folder. Raises UsageError for
    what can name no file.
    """
    for name in filter(None, (settings.get(x) for x in MODELS)):
        if made and name not in MADE:
            return "of a language model that is not made here"
        if not made and (name in MADE or not os.path.isdir(name)):
            return f"of a language model without a folder here ({name[:SHOWN]})"
    for field, value in settings.items():
        for x in value if isinstance(value, list) else [value]:
            if isinstance(x, str) and user_code.is_named(x):
                file, _ = user_code.file_and_name(x, flag(field))
                if EXAMPLES not in file.parents:
                    return "with code that is not of the examples"
    if any(settings.get(name) for name in ("demonstrations", "preferences")):
        return "of data in a file"
    task = settings["task"]
    known = task in GENERATED or (user_code.is_named(task) and not made)
    return "" if known else f"on a data set ({task[:SHOWN]})"


def settings_of(stored: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a stored run's identity, each of its type: a Config takes anything.

    Whatever else is stored there, such as a device, is left out. Raises ValueError.
    """
    shape = shape_of(catalog.module("llm_track", stored["algo"]).Config)
    settings = stored["config"]
    check(settings, shape, "config")
    names = {name.removesuffix("?") for name in shape}
    return {name: settings[name] for name in settings if name in names}


@cache
def shape_of(config_class: type[LanguageConfig]) -> dict[str, Shape]:
    """The shape of an identity as JSON; what was added later may be missing."""
    hints = get_type_hints(config_class)
    return {
        name + "?" * any(isinstance(mark, Added) for mark in marks): shape_of_type(hints[name])
        for name, marks in field_marks(config_class).items()
        if Execution() not in marks
    }


def shape_of_type(hint: Any) -> Shape:
    """The shape of a field: of words, of any number of values, of a value or None, or of one."""
    if get_origin(hint) is Literal:
        return str
    if get_origin(hint) is tuple:
        return [get_args(hint)[0]]
    return tuple(None if x is NoneType else x for x in get_args(hint)) or hint


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


def config_of(part: Path, stored: Mapping[str, Any]) -> Any:
    """The Config that config.json of a part says. Raises UsageError, also where a model that it
    names has other contents here."""
    module = catalog.module("llm_track", stored["algo"])
    threads = stored["execution"]["threads"]  # PyTorch sums up in another order with another number
    with reading(part, "cannot be trained here"):
        config = from_identity(module.Config, settings_of(stored))
        config = dataclasses.replace(config, threads=threads, quiet=True)
        own = identity(config)
    if other := [name for name in own if own[name] != stored["config"].get(name)]:
        raise UsageError(f"{other[0]} is {own[other[0]]} here, not the published one")
    set_up_process(threads)
    return config


def train_updates(part: Path, stored: Mapping[str, Any], seed: int, updates: int) -> pd.DataFrame:
    """The metrics of the first updates of a seed, as its config.json says. Raises as config_of."""
    config, module = config_of(part, stored), catalog.module("llm_track", stored["algo"])
    with reading(part, "cannot be trained here"):
        run = FirstUpdates(config, seed, stored["algo"], updates)
        try:
            with contextlib.suppress(Enough):
                module.train(config, run)
        finally:
            run.close()
        return run.runs[0].metrics()


class Whole(NamedTuple):
    """A training in memory."""

    run: SeedsRun
    summaries: list[dict[str, Any]]  # of each seed, as summary.json of its part


def train_whole(part: Path, stored: Mapping[str, Any], seeds: Sequence[int]) -> Whole:
    """Some seeds of a run, as config.json of one says. Raises as config_of.

    Models that they begin with are made first, and kept where trainings of one's own keep theirs.
    """
    with reading(part):
        evaluations = max(len(read_parquet(part / "curve.parquet")) - 1, 1)
    config, module = config_of(part, stored), catalog.module("llm_track", stored["algo"])
    config = dataclasses.replace(config, evaluations=evaluations)
    run = SeedsRun(config, seeds, algo=stored["algo"])
    try:
        with looking_by_iteration():
            return Whole(run, run.finish(module.train(config, run)))
    finally:
        run.close()
