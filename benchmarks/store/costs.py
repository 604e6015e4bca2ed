"""What training costs: core-seconds of finished seeds, and from them those of missing ones.

A summary has the wall time alone. That of one thread is at least its core's time, and what ran
beside it can only add to it, so the cheapest part of a run is nearest to what a core does.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from manyseeds.benchmarks.experiments.suite import Cell
from manyseeds.benchmarks.store.stored import StoredRun
from manyseeds.cli import identity
from manyseeds.untrusted import BROKEN

BUDGETS = ("total_timesteps", "total_samples", "total_episodes")  # fields of a config


def one_thread(config: Mapping[str, Any]) -> bool:
    """Whether one thread of a CPU trained a part, so that its seconds are those of a core."""
    execution = config["execution"]
    return (execution["device"], execution["threads"]) == ("cpu", 1)


def budget(config: Mapping[str, Any]) -> tuple[str, int] | None:
    """The field that says how long each seed is trained, and its value; None without a positive
    whole number, as of a plan."""
    found = ((name, config[name]) for name in BUDGETS if name in config)
    return next((x for x in found if isinstance(x[1], int) and x[1] > 0), None)


def seed_seconds(run: StoredRun, config: Mapping[str, Any]) -> float | None:
    """Core-seconds of a seed with the settings of a config, as in a run's cheapest part.

    The time of learning is proportional to the budget, and the rest the same. None where no part
    says its times, or the budgets are of different kinds.
    """
    own, wanted = budget(run.config), budget(config)
    if own is None or wanted is None or own[0] != wanted[0]:
        return None
    known = []
    for summary, part in zip(run.summaries, run.configs, strict=True):
        with contextlib.suppress(*BROKEN):  # of a kind of run whose times are not checked
            learning, total = summary["learn_seconds"], summary["total_seconds"]
            seconds = learning * (wanted[1] / own[1]) + total - learning
            if one_thread(part) and 0 < learning <= total and 0 < seconds < math.inf:
                known.append(float(seconds) / len(part["seeds"]))
    return min(known, default=None)


class SeedCost(NamedTuple):
    """What a seed of a cell takes, and the finished run that this is estimated from."""

    seconds: float
    run: StoredRun


def cost_of(cell: Cell, runs: Sequence[StoredRun]) -> SeedCost | None:
    """The cost of a seed of a cell, from finished runs of the same algorithm and source; None
    without one that it can be estimated from."""
    same = [run for run in runs if run.algo == cell.label]
    return estimate(cell.env, identity(cell.config()), same)


def estimate(env: str, config: Mapping[str, Any], runs: Sequence[StoredRun]) -> SeedCost | None:
    """The cost of a seed with the settings of a config, from the nearest of some runs.

    That is one on the same environment or task, else any, each time the one with the fewest other
    settings, and of several the one of median cost.
    """

    def distance(run: StoredRun) -> tuple[bool, int]:
        own = run.config
        return run.env != env, sum(own.get(x) != config.get(x) for x in own.keys() | config.keys())

    known = [
        (distance(run), SeedCost(x, run))
        for run in runs
        if (x := seed_seconds(run, config)) is not None
    ]
    least = min((far for far, _ in known), default=None)
    nearest = sorted((x for far, x in known if far == least), key=lambda x: x.seconds)
    return nearest[(len(nearest) - 1) // 2] if nearest else None


def misses(runs: Sequence[StoredRun]) -> list[float]:
    """The cost of a seed of each run as estimated from the others, over its own."""
    by_algo: dict[str, list[StoredRun]] = {}
    for run in runs:
        by_algo.setdefault(run.algo, []).append(run)
    found = []
    for same in by_algo.values():
        for run in same:
            cost = estimate(run.env, run.config, [x for x in same if x is not run])
            if cost and (real := seed_seconds(run, run.config)):
                found.append(cost.seconds / real)
    return found
