"""What training costs: core-seconds of finished seeds, and from them those of missing ones.

A summary has the wall time alone. That of one thread is at least its core's time, and what ran
beside it can only add to it, so the fastest part of a run is nearest to what a core does.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from manyseeds.benchmarks.experiments.suite import Cell
from manyseeds.benchmarks.store.stored import StoredRun
from manyseeds.cli import identity
from manyseeds.runs.language import LanguageConfig
from manyseeds.untrusted import BROKEN

BUDGETS = ("total_timesteps", "total_samples", "total_episodes")  # fields of a config
SPEEDS = ("timesteps_per_second", "samples_per_second")  # of a summary


def fastest_part(run: StoredRun) -> int | None:
    """Which part had the most steps per second, all its seeds together and evaluation left out, of
    those that one thread of a CPU trained; None without one that says it."""
    speeds = [
        (max(summary.get(name, 0.0) for name in SPEEDS), k)
        for k, (summary, config) in enumerate(zip(run.summaries, run.configs, strict=True))
        if (config["execution"]["device"], config["execution"]["threads"]) == ("cpu", 1)
    ]
    speed, k = max(speeds, default=(0.0, 0))
    return k if speed > 0 else None


def budget(config: Mapping[str, Any]) -> tuple[str, int] | None:
    """The field that says how long each seed is trained, and its value; None of a plan."""
    return next(((name, config[name]) for name in BUDGETS if name in config), None)


def evaluated(config: Mapping[str, Any]) -> int:
    """How many completions the evaluations of a language model sample of a seed, the likeliest
    ones among them; 1 of other runs, whose settings do not change what is evaluated."""
    if "total_samples" not in config:
        return 1
    from manyseeds.llm_track.evaluation import FINAL_PROMPTS, FINAL_SAMPLES

    prompts = config.get("eval_prompts", LanguageConfig.eval_prompts)
    samples = config.get("eval_samples", LanguageConfig.eval_samples)
    points = (LanguageConfig.evaluations + 1) * prompts * (samples + 1)
    return int(points + 2 * FINAL_PROMPTS * (FINAL_SAMPLES + 1))


def seed_seconds(run: StoredRun, config: Mapping[str, Any]) -> float | None:
    """Core-seconds of a seed with the settings of a config, at the speed of a run's fastest part.

    The time of learning is proportional to the budget, and the rest to what evaluations sample.
    None where no part says its times, or the budgets are of different kinds.
    """
    own, wanted = budget(run.config), budget(config)
    if own is None or wanted is None or own[0] != wanted[0]:
        return None
    with contextlib.suppress(*BROKEN):  # of a kind of run whose times are not checked
        if (k := fastest_part(run)) is None:
            return None
        summary, S = run.summaries[k], len(run.configs[k]["seeds"])
        learning, total = summary["learn_seconds"], summary["total_seconds"]
        if 0 < learning <= total < math.inf:
            more = evaluated(config) / evaluated(run.config)
            return float(learning * wanted[1] / own[1] + (total - learning) * more) / S
    return None


class SeedCost(NamedTuple):
    """What a seed of a cell takes, and the finished run that this is estimated from."""

    seconds: float
    run: StoredRun


def cost_of(cell: Cell, runs: Sequence[StoredRun]) -> SeedCost | None:
    """The cost of a seed of a cell, from the nearest finished run of the same algorithm and source;
    None without any.

    That is the cell's own run, else one on its environment or task, else any, each time the one
    with the fewest other settings, and of several the fastest.
    """
    config = identity(cell.config())

    def distance(found: SeedCost) -> tuple[bool, int, float]:
        own = found.run.config
        differing = sum(own.get(name) != config.get(name) for name in own | config)
        return found.run.env != cell.env, differing, found.seconds

    same = [run for run in runs if run.algo == cell.label]
    known = [SeedCost(x, run) for run in same if (x := seed_seconds(run, config)) is not None]
    return min(known, key=distance, default=None)
