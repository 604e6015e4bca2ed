"""A run of the store as arrays over its seeds, its verdict against another, and tables of them.

S is the number of seeds.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NoReturn

import numpy as np
import pandas as pd
from rich.console import Console
from rich.table import Table

import envs
from manyseeds import stats
from manyseeds.errors import UsageError
from manyseeds.evaluate import CURVE_EPISODES, FINAL_EPISODES
from manyseeds.record import RunFolder, ranges
from manyseeds.runs.control import reachable_threshold
from manyseeds.runs.stale import part_is_stale
from manyseeds.stats import Floats, Parity

MIN_SEEDS = 5  # a bootstrap of fewer is far too sure of itself


MARGIN = 0.05  # of the normalised score: differences inside it do not matter


Rows = list[tuple[str, ...]]  # of a table for people


@dataclass(frozen=True, eq=False)
class Result:
    """The finished seeds of one run; arrays are `[S]`, in the order of `seeds`."""

    run: RunFolder
    configs: list[dict[str, Any]]  # config.json of every part
    spec: envs.EnvSpec
    seeds: list[int]
    final: Floats  # greedy return at the end
    sampled: Floats  # the same, actions sampled
    episode_std: Floats  # of the greedy return at the end, over episodes; NaN when exact
    diverged: dict[int, int]  # seed -> timestep
    curve: pd.DataFrame  # the greedy evaluations during training, tidy
    timesteps: int  # per seed

    @property
    def algo(self) -> str:
        return str(self.configs[0]["algo"])

    @property
    def config(self) -> dict[str, Any]:
        """The hyperparameters: every field that changes a learning curve."""
        return dict(self.configs[0]["config"])

    @property
    def exact(self) -> bool:
        """Whether greedy returns were computed from P and R, not from episodes."""
        return bool((self.curve["episodes"] == 0).all())

    @property
    def digits(self) -> int:
        """Decimals with which its scores are worth printing."""
        return 3 if self.exact else self.spec.digits

    @property
    def timesteps_asked(self) -> int:
        """The budget per seed; `timesteps` are at least as many, to the end of an update."""
        return int(self.config["total_timesteps"])

    @cached_property
    def auc(self) -> Floats:
        """Mean return over training, `[S]`."""
        return np.array([stats.area_under_curve(*curve) for curve in self._seed_curves()])

    @cached_property
    def reached(self) -> Floats:
        """Timestep of the first evaluation at the reward threshold, `[S]`; NaN for never."""
        threshold = reachable_threshold(self.spec)
        if threshold is None:
            return np.full(len(self.seeds), np.nan)
        curves = self._seed_curves()
        return np.array([stats.timesteps_to_threshold(t, x, threshold)[0] for t, x in curves])

    def _seed_curves(self) -> list[tuple[Floats, Floats]]:
        by_seed = self.curve.sort_values("timestep").groupby("seed")
        rows = [by_seed.get_group(seed) for seed in self.seeds]
        return [(r["timestep"].to_numpy(), r["return_mean"].to_numpy()) for r in rows]

    @property
    def failures(self) -> list[int]:
        """The seeds that ended below the reward threshold or diverged."""
        bar = reachable_threshold(self.spec)
        bar = -math.inf if bar is None else bar
        pairs = zip(self.seeds, self.final, strict=True)
        return [seed for seed, score in pairs if score < bar or seed in self.diverged]

    def threshold_texts(self) -> tuple[str, str]:
        """When half of the seeds that reach the threshold have, and how many do: `12,800` and
        `9 of 10`."""
        if reachable_threshold(self.spec) is None:
            return "no threshold", ""
        there = self.reached[np.isfinite(self.reached)]
        median = f"{np.median(there):,.0f}" if len(there) else "never"
        return median, f"{len(there)} of {len(self.seeds)}"

    def text(self, values: Floats, statistic: stats.Statistic = "iqm") -> str:
        """`498.2 [493.1, 500.0]`"""
        return stats.estimate(values, statistic).text(self.digits)


def load_result(run: RunFolder) -> Result:
    """Read the finished parts of a run. A return that is not finite counts as a random policy's.

    Raises UsageError for a folder without a finished part and for an unknown environment.
    """
    configs, summaries = run.configs(), run.summaries()
    if not summaries:
        raise UsageError(
            f"{run.path}: no finished seeds; a run is a folder RESULTS/runs/ENV/ALGORITHM/NAME"
        )
    spec = envs.make(configs[0]["env"]).spec
    curves = run.curves()
    failed = ~np.isfinite(curves["return_mean"])
    curves.loc[failed, "return_mean"] = spec.random_score
    greedy = curves[curves["mode"] == "greedy"]
    curve = greedy[greedy["episodes"].isin((CURVE_EPISODES, 0))]
    last = greedy[greedy["episodes"].isin((FINAL_EPISODES, 0))].groupby("seed").last()
    seeds = sorted(set(curve["seed"]) & {s for part in summaries for s in part["seeds"]})

    def finals(mode: str) -> Floats:
        scores: dict[str, float] = {}
        for part in reversed(summaries):  # a seed that two parts hold counts once, the first time
            scores.update(part["final"][mode]["per_seed"])
        values = np.array([scores[str(seed)] for seed in seeds], dtype=np.float64)
        return np.where(np.isfinite(values), values, spec.random_score)

    return Result(
        run=run,
        configs=configs,
        spec=spec,
        seeds=seeds,
        final=finals("greedy"),
        sampled=finals("sampled"),
        episode_std=last.loc[seeds, "return_std"].to_numpy(dtype=np.float64),
        diverged={int(s): t for part in summaries for s, t in part["diverged"].items()},
        curve=curve[curve["seed"].isin(seeds)],
        timesteps=summaries[0]["timesteps_per_seed"],
    )


def parity(ours: Floats, theirs: Floats, spec: envs.EnvSpec) -> Parity | None:
    """Verdict on two arrays of scores, `[S1]` and `[S2]`.

    None with too few seeds on a side, or where no reference score normalises them.
    """
    if min(len(ours), len(theirs)) < MIN_SEEDS or spec.reference_score is None:
        return None
    return stats.parity(ours, theirs, spec.random_score, spec.reference_score, MARGIN)


def verdict_text(verdict: Parity | None) -> str:
    """`worse -0.120 [-0.180, -0.061]`; an inconclusive one names the seeds that would tell."""
    if verdict is None:
        return f"none (needs {MIN_SEEDS} seeds a side and a reference score)"
    text = f"{verdict.word} {verdict.difference.text(3, '+')}"
    return text + (f", needs n={verdict.seeds_needed}" if verdict.seeds_needed else "")


def differences(ours: dict[str, Any], plain: dict[str, Any]) -> str:
    """Where settings leave the plain ones: `gamma 0.9 (not 0.98)`."""
    names = [name for name in plain | ours if plain.get(name) != ours.get(name)]
    return ", ".join(f"{name} {ours.get(name)} (not {plain.get(name)})" for name in names)


def origins_text(configs: Sequence[dict[str, Any]]) -> str:
    """A list of what the parts of a run were made by; those that were made alike stand together."""
    alike: dict[str, list[int]] = {}
    for config in configs:
        alike.setdefault(_origin(config), []).extend(config["seeds"])
    return "".join(f"- seeds {ranges(seeds)}: {origin}" for origin, seeds in alike.items())


def _origin(config: dict[str, Any]) -> str:
    """Command, code, machine and versions of a part."""
    code, machine, execution = config["code"], config["machine"], config["execution"]
    stale = " (stale)" if part_is_stale(config) else ""
    threads = execution["threads"]
    versions = ", ".join(f"{name} {version}" for name, version in config["versions"].items())
    return (
        f"`{config['command']}`\n"
        f"  - code {code['digest']}{stale}, commit {code['commit'] or 'not recorded'}\n"
        f"  - {machine['cpu']}, {machine['cores']} cores, {machine['system']}; "
        f"on {execution['device']}, {threads} thread{'s' * (threads > 1)}"
        f"{', compiled' if execution.get('compiled') else ''}\n"
        f"  - {versions}\n"
    )


def markdown_table(header: Sequence[str], rows: Rows) -> str:
    align = ["---:" if name == "n" else "---" for name in header]
    lines = [header, align, *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def commands(runs: Sequence[RunFolder]) -> str:
    """The command of every run, folded away, below the code and machine that they share."""
    alike: dict[str, list[str]] = {}
    for config in (config for run in runs for config in run.configs()):
        code, machine = config["code"], config["machine"]
        stale = " (stale)" if part_is_stale(config) else ""
        versions = ", ".join(f"{name} {version}" for name, version in config["versions"].items())
        origin = f"code {code['digest']}{stale}, commit {code['commit'] or 'not recorded'}, "
        origin += f"{machine['cpu']}, {machine['cores']} cores, {versions}"
        alike.setdefault(origin, []).append(f"`{config['command']}`")
    text = ""
    for origin, lines in alike.items():
        listed = "".join(f"- {line}\n" for line in lines)
        summary = f"<summary>{len(lines)} commands: {origin}</summary>"
        text += f"<details>{summary}\n\n{listed}\n</details>\n\n"
    return text


def print_table(title: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A table on the terminal, as wide as its content where there is none."""
    width = None if sys.stdout.isatty() else 200
    console = Console(highlight=False, markup=False, width=width)
    table = Table(title=title, title_justify="left")
    for name in header:
        table.add_column(name, justify="right" if name == "n" else "left")
    for row in rows:
        table.add_row(*row)
    console.print(table)


class Parser(argparse.ArgumentParser):
    """Flags are never abbreviated; a mistake prints one line and exits with status 2."""

    def __init__(self, description: str | None) -> None:
        layout = argparse.RawDescriptionHelpFormatter
        super().__init__(description=description, formatter_class=layout, allow_abbrev=False)

    def error(self, message: str) -> NoReturn:
        raise UsageError(message)
