"""The page across environments: algorithms compared on the environments that they share.

After Agarwal et al., 2021, "Deep Reinforcement Learning at the Edge of the Statistical Precipice":
the IQM over all runs, performance profiles, and the probability of improvement.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from manyseeds import stats
from manyseeds.benchmarks.chapters.blocks import Block, Figure, Heading, Table, Text
from manyseeds.benchmarks.store.comparison import (
    TABULAR,
    Pair,
    applies,
    at_budget,
    common_budget,
    is_stale,
)
from manyseeds.benchmarks.store.names import NAMES, display, place_of, place_of_env
from manyseeds.errors import printable
from manyseeds.plots import Line
from manyseeds.stats import Floats

# Scores at which a profile is computed: more of them where most runs end.
THRESHOLDS = np.round(np.concatenate([np.arange(0, 0.8, 0.05), np.arange(0.8, 1.101, 0.02)]), 2)
Scores = dict[str, dict[str, Floats]]  # algorithm -> environment -> normalised scores [S]


@dataclass(frozen=True)
class Shared:
    """Environments, and all algorithms that have runs on each of them."""

    envs: tuple[str, ...]
    algos: tuple[str, ...]

    @property
    def title(self) -> str:
        return ", ".join(self.envs)


def page(found: Sequence[Pair]) -> Iterator[Block]:
    """The page; nothing where no two algorithms share an environment."""
    pairs = [pair for pair in found if pair.algo not in TABULAR]
    budgets = {env: common_budget([p for p in pairs if p.env == env]) for env in envs_of(pairs)}
    scores = normalised(pairs, budgets)
    sets = shared_sets(scores)
    if not sets:
        return
    panels: dict[str, dict[str, Line]] = {}
    rows = []
    for shared in sets:
        for algo in shared.algos:
            tasks = tasks_of(scores[algo], shared.envs)
            n = f"{len(tasks)} x {len(tasks[0])}"
            cells = (stats.estimate(tasks, name).text(3) for name in ("iqm", "mean"))
            rows.append((shared.title, display(algo), n, *cells))
            lines = panels.setdefault(printable(shared.title), {})
            lines[printable(display(algo))] = profile(tasks)
    yield Text(
        "Normalised scores (0: random policy, 1: reference) of our runs after the same number of "
        f"timesteps, {', '.join(f'{n:,} on {env}' for env, n in budgets.items())}, or at an "
        "algorithm's own budget where that is less; on the environments that algorithms share. "
        "An algorithm has the same number of seeds on each environment, that of the environment "
        "with the fewest, so that all environments have the same weight. Intervals are 95% "
        "bootstraps over seeds within each environment. Environments and start states are treated "
        'as fixed, so the results do not generalise to others. A cell without runs is "missing", '
        "and an algorithm is compared only on environments on which it has runs."
    )
    yield Heading("Scores")
    yield Text("Mean normalised scores.")
    yield cell_table(scores, pairs)
    yield Heading("IQM over shared environments")
    yield Text("The IQM is the mean of the middle half of all runs; n: environments x seeds.")
    columns = ("environments", "algorithm", "n", "IQM [95%]", "mean [95%]")
    yield Table("aggregate", columns, rows)
    yield Heading("Performance profiles")
    yield Text(
        "The share of an algorithm's runs with a score above each value. An algorithm whose line "
        "is above another everywhere is better at every threshold."
    )
    axes = {"xlabel": "normalised score", "ylabel": "share of runs above it", "columns": 2}
    about = {"first": list(NAMES.values()), "legend": "share of runs, 95% interval"}
    data = {"panels": panels, **axes, **about}
    yield Figure("profiles", "Performance profiles", "lines", data)
    yield Heading("Probability of improvement")
    yield Text(
        "The probability that a run of the row's algorithm scores above one of the column's (equal "
        "scores count half), averaged over environments. Above 0.5 the row is better more often "
        "than not, but this does not tell by how much."
    )
    most, all_algos = sets[0], max(sets, key=lambda s: len(s.algos))
    for i, shared in enumerate(dict.fromkeys((most, all_algos))):
        yield Heading(f"On {shared.title}", level=3)
        yield improvement_table(f"improvement{f'-{i}' * bool(i)}", scores, shared)


def envs_of(pairs: Sequence[Pair]) -> list[str]:
    return sorted({pair.env for pair in pairs if pair.ours}, key=place_of_env)


def normalised(pairs: Sequence[Pair], budgets: Mapping[str, int]) -> Scores:
    """The scores of our headline runs on environments whose scale is known, in order of seeds.
    budgets: the timesteps, by environment."""
    found: Scores = {}
    for pair in sorted(pairs, key=lambda pair: place_of(pair.algo)):
        if pair.ours is None:
            continue
        random, reference = pair.ours.spec.random_score, pair.ours.spec.reference_score
        if random is not None and reference is not None:
            scores = stats.normalise(at_budget(pair.ours, budgets[pair.env]), random, reference)
            found.setdefault(pair.algo, {})[pair.env] = scores
    return found


def shared_sets(scores: Scores) -> list[Shared]:
    """The sets of environments that two or more algorithms share, each with all algorithms that
    have runs on it; most environments first."""
    have = {algo: frozenset(envs) for algo, envs in scores.items()}
    common = set()
    for size in range(2, len(have) + 1):
        common |= {frozenset.intersection(*some) for some in combinations(have.values(), size)}
    found = [
        Shared(
            tuple(sorted(envs, key=place_of_env)),
            tuple(algo for algo, own in have.items() if envs <= own),
        )
        for envs in common
        if envs
    ]
    return sorted(found, key=lambda s: (-len(s.envs), -len(s.algos), s.envs))


def tasks_of(own: dict[str, Floats], envs: Sequence[str]) -> list[Floats]:
    """The scores of an algorithm on some environments, equally many seeds of each."""
    n = min(len(own[env]) for env in envs)
    return [own[env][:n] for env in envs]


def profile(tasks: Sequence[Floats]) -> Line:
    """The share of runs above each of THRESHOLDS, with its interval."""
    points = [
        stats.estimate([(task > x).astype(float) for task in tasks], "mean", resamples=2000)
        for x in THRESHOLDS
    ]
    value, low, high = zip(*[(p.value, p.low, p.high) for p in points], strict=True)
    return Line(THRESHOLDS, value, low, high, sum(map(len, tasks)))


def cell_table(scores: Scores, pairs: Sequence[Pair]) -> Table:
    """Mean scores of all algorithms on all environments."""
    envs = sorted({pair.env for pair in pairs}, key=place_of_env)
    known = {(pair.algo, pair.env): pair.ours for pair in pairs if pair.ours}
    rows = []
    for algo, own in scores.items():
        cells = []
        for env in envs:
            if env in own:
                stale = ", stale" * is_stale(known[algo, env])
                cells.append(f"{own[env].mean():.3f} (n = {len(own[env])}{stale})")
            elif (algo, env) in known:
                cells.append("no scale")
            else:
                cells.append("missing" if applies(algo, env) else "-")
        rows.append((display(algo), *cells))
    return Table("aggregate-cells", ("algorithm", *envs), rows)


def improvement_table(name: str, scores: Scores, shared: Shared) -> Table:
    """The probability that the algorithm of a row beats that of a column."""
    rows = []
    for a in shared.algos:
        cells = []
        for b in shared.algos:
            ours, theirs = (tasks_of(scores[algo], shared.envs) for algo in (a, b))
            chance = stats.probability_of_improvement(ours, theirs)
            cells.append("" if a == b else chance.text(2))
        rows.append((display(a), *cells))
    return Table(name, ("row over column", *map(display, shared.algos)), rows)
