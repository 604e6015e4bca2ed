"""Which runs have the same bits on every machine; seeds of them trained again, in memory."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from manyseeds import envs
from manyseeds.benchmarks.experiments import catalog
from manyseeds.benchmarks.store import language_again
from manyseeds.cli import from_identity
from manyseeds.kernels.guard import looking_by_iteration
from manyseeds.process import set_up_process
from manyseeds.runs.base import BaseRun
from manyseeds.runs.planning import PlanningRun
from manyseeds.runs.stale import KINDS
from manyseeds.untrusted import reading


def machine_bound(config: Mapping[str, Any]) -> str:
    """Why the results of a part depend on the machine, by its config.json, '' if they do not."""
    settings, execution = config["config"], config["execution"]
    if config.get("source") != "manyseeds":
        return f"trained by {config.get('source')}"
    if config["kind"] == "language":
        return language_again.why_not(config, whole=True)
    own = settings.get("backend", "auto") == "auto" and not settings.get("env_kwargs")
    if config["env"] not in envs.NATIVE or not own:
        return "on Gymnasium's own environment"
    if execution["device"] != "cpu":
        return f"trained on {execution['device']}"
    return "" if isinstance(execution.get("kernels"), dict) else "computed by PyTorch, not in C"


class Again(NamedTuple):
    """A training in memory."""

    run: BaseRun
    result: Any  # a policy, or values
    summary: dict[str, Any]  # as summary.json of a part


def train_again(
    part: Path,
    stored: Mapping[str, Any],
    seeds: Sequence[int],
    recorder: Callable[..., BaseRun] | None = None,
) -> Again:
    """Train seeds as config.json of a part of an algorithm of algos/ says; a plan has none.

    They may be any of its run: each gets the same bits in any batch. recorder: what is trained
    with, in place of the run of its kind. Raises UsageError.
    """
    algo = stored["algo"]
    module = catalog.module("algos", algo)
    with reading(part):
        config = from_identity(module.Config, stored["config"])
    config = dataclasses.replace(config, quiet=True)
    set_up_process(config.threads)
    run: Any
    if stored["kind"] == PlanningRun.kind:
        run, learn = PlanningRun(config, algo=algo), module.solve
    else:
        recorder = recorder or KINDS[stored["kind"]]
        run, learn = recorder(config, seeds, algo=algo), module.train
    try:
        with looking_by_iteration():
            result = learn(config, run)
        return Again(run, result, run.finish(result))
    finally:
        run.close()
