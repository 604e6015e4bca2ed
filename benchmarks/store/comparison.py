"""Our runs beside stable-baselines3's: what is compared, what is missing, unrounded tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from manyseeds import envs
from manyseeds.benchmarks.experiments import catalog
from manyseeds.benchmarks.experiments.suite import SUITES, Cell, Target
from manyseeds.benchmarks.experiments.verdicts import FIRST_FRESH, Verdict
from manyseeds.benchmarks.store.names import display, place_of
from manyseeds.benchmarks.store.results import Result, decision, differences, seeds_due
from manyseeds.benchmarks.store.stored import StoredRun
from manyseeds.cli import Preset, identity
from manyseeds.errors import printable
from manyseeds.record import ranges
from manyseeds.runs.stale import part_is_stale
from manyseeds.stats import Floats

SB3 = "sb3-"  # how the store names a baseline: sb3-ppo stands beside ppo
ELSEWHERE = ("sbx-", "rejax-")  # of benchmarks/chapters/interchange.py alone
MEASURES = {"auc": "learning speed (AUC)", "late": "late score"}
# Timesteps after which algorithms are compared with each other; elsewhere the fewest that one of
# them trains for.
COMMON = {
    **dict.fromkeys(("CartPole-v1", "Acrobot-v1", "MountainCar-v0", "Pendulum-v1"), 100_000),
    "MountainCarContinuous-v0": 50_000,
}
# Algorithms with tables instead of networks.
TABULAR = [algo for algo in catalog.names("algos") if catalog.facts(algo).family == "tables"]


@dataclass
class Pair:
    """All runs of one algorithm on one environment, ours and SB3's."""

    env: str
    algo: str
    preset: Preset | None
    settings: dict[str, Any]  # what the algorithm's command with --env alone would train with
    ours: Result | None = None  # the headline: the runs at these settings, where they exist
    sb3: Result | None = None
    others: list[Result] = field(default_factory=list)
    suite_seeds: dict[str, int] = field(default_factory=dict)  # of the headline, by name

    @property
    def headline(self) -> list[Result]:
        return [result for result in (self.ours, self.sb3) if result]

    def verdict(self, measure: str) -> Verdict | None:
        """By a measure of `MEASURES`; None without both sides or with too few seeds."""
        if self.ours is None or self.sb3 is None:
            return None
        return decision(self.ours, self.sb3, measure)

    def changes(self, result: Result) -> str:
        """How a run differs from the settings of the plain command: `gamma 0.9 (not 0.98)`."""
        return differences(result.config, self.settings or result.config)

    def label(self, result: Result) -> str:
        """`PPO`, `SB3's PPO (stale)`"""
        marks = ["stale"] * is_stale(result) + ["not the preset"] * bool(self.changes(result))
        return display(result.algo) + (f" ({', '.join(marks)})" if marks else "")

    def requested_seeds(self, result: Result) -> int:
        """How many seeds a headline run should have, at least those that it has.

        The suites say how many; where verdicts are due, the rule may ask for more of SB3's.
        """
        asked = self.suite_seeds.get(result.algo, 0)
        if asked and self.ours and result is self.sb3:
            asked = max(asked, seeds_due(self.ours, self.sb3))
        return max(asked, len(result.seeds))

    def seeds_text(self, result: Result) -> str:
        """`30`, or `10 of 30` where it should have more."""
        n, requested = len(result.seeds), self.requested_seeds(result)
        return str(n) if n == requested else f"{n} of {requested}"


def is_stale(result: Result) -> bool:
    return any(part_is_stale(config) for config in result.configs)


def pairs(results: Sequence[Result]) -> list[Pair]:
    """The runs grouped by environment and algorithm, each with its headline chosen.

    That is the run with the settings of the plain command. Without one it is the run with the
    most seeds, ours before SB3's. SB3's counterpart is the run with the very same settings.
    Other libraries have a page of their own.
    """
    groups: dict[tuple[str, str], list[Result]] = {}
    cells = suite_cells()
    for result in map(without_fresh, results):
        if result.algo.startswith(ELSEWHERE):
            continue
        key = (result.spec.id, result.algo.removeprefix(SB3))
        groups.setdefault(key, []).append(result)
    found = []
    for (env, algo), members in sorted(groups.items(), key=lambda x: (x[0][0], place_of(x[0][1]))):
        preset, settings = plain_command(algo, members[0].config)
        best = max(
            members,
            key=lambda r: (r.config == settings, not r.algo.startswith(SB3), len(r.seeds)),
        )
        pair = Pair(env, algo, preset, settings)
        for result in sorted(members, key=lambda r: -len(r.seeds)):
            is_sb3 = result.algo.startswith(SB3)
            if result.config == best.config and not is_sb3 and pair.ours is None:
                pair.ours = result
            elif result.config == best.config and is_sb3 and pair.sb3 is None:
                pair.sb3 = result
            else:
                pair.others.append(result)
        for result in pair.headline:
            if asked := cells.get((env, result.algo, result.run.path.name)):
                pair.suite_seeds[result.algo] = asked
        found.append(pair)
    return found


def run_of(cell: Cell, results: Sequence[Result]) -> Result | None:
    """The run of a cell among others, where it is there."""
    wanted = identity(cell.config())
    return next((r for r in results if r.algo == cell.label and r.config == wanted), None)


def common_budget(pairs: Sequence[Pair]) -> int:
    """The timesteps after which the algorithms of an environment are compared with each other."""
    budgets = [pair.ours.timesteps_requested for pair in pairs if pair.ours]
    return COMMON.get(pairs[0].env, min(budgets, default=0))


def equal_budget(results: Sequence[Result], budget: int) -> int:
    """The timesteps after which runs are compared: the fewest of theirs, and `budget` at most."""
    return min([budget, *(result.timesteps_requested for result in results)])


def at_budget(result: Result, budget: int) -> Floats:
    """The scores of a run after a number of timesteps, or at its own budget where that is less."""
    return result.score_at(min(budget, result.timesteps_requested))


def without_fresh(result: Result) -> Result:
    """A run without the seeds that only a revised verdict asks for, where it has others."""
    seeds = [seed for seed in result.seeds if seed < FIRST_FRESH]
    return result.only(seeds) if 0 < len(seeds) < len(result.seeds) else result


def plain_command(algo: str, config: Mapping[str, Any]) -> tuple[Preset | None, dict[str, Any]]:
    """The preset of the environment of a config, if any, and the settings that `--env ENV` trains
    with, and the same `--env-kwargs`."""
    if algo not in catalog.names("algos"):
        return None, {}
    preset = catalog.module("algos", algo).PRESETS.get(config["env"])
    settings = catalog.plain_settings("algos", algo, config["env"])
    return preset, settings | {name: x for name, x in config.items() if name == "env_kwargs"}


# ---- What the suites ask for ----------------------------------------------------------------


def all_cells() -> list[Cell]:
    """The cells of all suites."""
    return [cell for cells in SUITES.values() for cell in cells]


def suite_cells() -> dict[tuple[str, str, str], int]:
    """The seeds that the suites say, the most, by environment, algorithm and name of the run."""
    found: dict[tuple[str, str, str], int] = {}
    for cell in all_cells():
        if cell.package != "algos" or cell.first_seed:
            continue
        name = (cell.env, cell.label, cell.folder().path.name)
        found[name] = max(cell.seeds, found.get(name, 0))
    return found


def targets() -> dict[tuple[str, str], Target]:
    """The suites' targets for the final score, by environment and algorithm."""
    return {(c.env, c.algo): c.target for c in all_cells() if c.target is not None}


@dataclass(frozen=True)
class Missing:
    """The seeds of a cell that are not finished; of a plan, which has none, that it is not."""

    cell: Cell
    seeds: list[int]

    def __str__(self) -> str:
        """`ppo on CartPole-v1, 30 seeds: 10-29`"""
        return str(self.cell) + (f": {ranges(self.seeds)}" if self.seeds else "")


def missing_cells(results: Path, runs: Sequence[StoredRun]) -> list[Missing]:
    """Cells of the suites that are not finished. Of those that differ only in the number of seeds,
    the largest."""
    largest: dict[tuple[tuple[str, ...], int], Cell] = {}
    for cell in all_cells():
        name = (cell.folder(str(results)).path.parts[-3:], cell.first_seed)
        largest[name] = max(cell, largest.get(name, cell), key=lambda c: c.seeds)
    finished = {run.path.parts[-3:]: set(run.seeds) for run in runs}
    found = []
    for (run, _), cell in largest.items():
        seeds = set(cell.all_seeds) - finished.get(run, set())
        if seeds or run not in finished:
            found.append(Missing(cell, sorted(seeds)))
    return found


def untrained_presets() -> list[str]:
    """`td3 on MountainCarContinuous-v0, 300,000 timesteps`: those that no suite trains."""
    found = []
    for algo in catalog.names("algos"):
        for env in catalog.module("algos", algo).PRESETS:
            timesteps = catalog.plain_settings("algos", algo, env).get("total_timesteps")
            if timesteps and not is_due(algo, env):
                found.append(f"{algo} on {env}, {timesteps:,} timesteps")
    return found


def is_due(algo: str, env: str) -> bool:
    """Whether a suite has the plain command of an algorithm on an environment."""
    ours = (cell for cell in all_cells() if cell.source == "manyseeds")
    return any((cell.algo, cell.env) == (algo, env) and not cell.settings for cell in ours)


def applies(algo: str, env: str) -> bool:
    """Whether an algorithm can train on an environment: its actions and observations fit."""
    return env not in envs.NATIVE or bool(catalog.plain_settings("algos", algo, env))


# ---- Unrounded ------------------------------------------------------------------------------


def csv_tables(found: Sequence[Pair]) -> dict[str, pd.DataFrame]:
    """The numbers behind the report, unrounded: per seed, per run, per verdict."""
    per_seed: list[dict[str, Any]] = []
    per_run: list[dict[str, Any]] = []
    verdicts: list[dict[str, Any]] = []
    for pair in found:
        for r in (*pair.headline, *pair.others):
            key = {"env": pair.env, "algo": r.algo, "run": r.run.path.name}
            key = {name: printable(text) for name, text in key.items()}
            for i, seed in enumerate(r.seeds):
                scores = {
                    "final": r.final[i],
                    "late": r.late[i],
                    "sampled": r.sampled[i],
                    "auc": r.auc[i],
                    "timesteps_to_threshold": r.reached[i],
                    "core_seconds_to_threshold": r.core_seconds[i],
                    "diverged_at": r.diverged.get(seed),
                    "failed": seed in r.failures,
                }
                per_seed.append({**key, "seed": seed, **scores})
            row = {**key, "headline": r in pair.headline, "stale": is_stale(r), "n": len(r.seeds)}
            row |= {"timesteps": r.timesteps, "failures": len(r.failures)}
            row |= {"diverged": len(r.diverged), "reached_threshold": np.isfinite(r.reached).sum()}
            for measure in ("final", "sampled", "auc"):
                for statistic in ("iqm", "mean"):
                    e = r.estimate(measure, statistic)  # type: ignore[arg-type]
                    name = f"{measure}_{statistic}"
                    row |= {name: e.value, f"{name}_low": e.low, f"{name}_high": e.high}
            per_run.append(row)
        for measure in MEASURES:
            verdict = pair.verdict(measure)
            if verdict is None or pair.ours is None or pair.sb3 is None:
                continue
            d = verdict.parity.difference
            verdicts.append(
                {
                    "env": printable(pair.env),
                    "algo": printable(pair.algo),
                    "measure": measure,
                    "n": len(pair.ours.seeds),
                    "n_sb3": len(pair.sb3.seeds),
                    "look": verdict.look,
                    "difference": d.value,
                    "low": d.low,
                    "high": d.high,
                    "p": verdict.parity.p,
                    "verdict": verdict.parity.word,
                    "decided": verdict.decided,
                }
            )
    tables = {"seeds": per_seed, "scores": per_run, "verdicts": verdicts}
    return {name: pd.DataFrame(rows) for name, rows in tables.items() if rows}
