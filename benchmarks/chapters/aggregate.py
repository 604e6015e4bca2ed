"""The page across environments: algorithms compared on the environments that they share.

After Agarwal et al., 2021, "Deep Reinforcement Learning at the Edge of the Statistical Precipice":
the IQM over all runs, performance profiles, and the probability of improvement.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
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
    equal_budget,
    is_stale,
)
from manyseeds.benchmarks.store.names import NAMES, display, place_of, place_of_env, short
from manyseeds.benchmarks.store.results import Result
from manyseeds.errors import printable
from manyseeds.plots import Line
from manyseeds.stats import Floats

# Scores at which a profile is computed: more of them where most runs end.
THRESHOLDS = np.round(np.concatenate([np.arange(0, 0.8, 0.05), np.arange(0.8, 1.101, 0.02)]), 2)
Runs = dict[str, dict[str, Result]]  # algorithm -> environment -> its headline run
Budgets = Mapping[str, int]  # environment -> timesteps


@dataclass(frozen=True)
class Shared:
    """Environments, and all algorithms that have runs on each of them."""

    envs: tuple[str, ...]
    algos: tuple[str, ...]


def page(found: Sequence[Pair]) -> Iterator[Block]:
    """The page; nothing where no two algorithms share an environment."""
    pairs = [pair for pair in found if pair.algo not in TABULAR]
    common = {env: common_budget([p for p in pairs if p.env == env]) for env in envs_of(pairs)}
    runs = scaled_runs(pairs)
    sets = shared_sets(runs)
    if not sets:
        return
    panels: dict[str, dict[str, Line]] = {}
    rows = []
    for shared in sets:
        budgets = budgets_of(runs, shared.algos, {env: common[env] for env in shared.envs})
        title = title_of(budgets)
        for algo in shared.algos:
            tasks = tasks_of(runs[algo], budgets)
            n = f"{len(tasks)} x {len(tasks[0])}"
            cells = (stats.estimate(tasks, name).text(3) for name in ("iqm", "mean"))
            rows.append((title, display(algo), n, *cells))
            panels.setdefault(printable(title), {})[printable(display(algo))] = profile(tasks)
    yield Text(
        "Normalised scores (0: random policy, 1: reference) of our runs after the same number of "
        f"timesteps: {', '.join(f'{n:,} on {env}' for env, n in common.items())}, or fewer where "
        "one of the algorithms that are compared trains for fewer. Only the environments that "
        "algorithms share are compared. "
        "An algorithm has the same number of seeds on each environment, that of the environment "
        "with the fewest, so that all environments have the same weight. Intervals are 95% "
        "bootstraps over seeds within each environment. Environments and start states are treated "
        'as fixed, so the results do not generalise to others. A cell without runs is "missing", '
        "and an algorithm is compared only on environments on which it has runs."
    )
    yield Heading("Scores")
    yield Text("Mean normalised scores, each column after as many timesteps as it says.")
    yield cell_table(runs, pairs, common)
    yield Heading("IQM over shared environments")
    yield Text(
        "The IQM is the mean of the middle half of all runs; n: environments x seeds. All "
        "algorithms of a set of environments are scored after the timesteps in brackets."
    )
    columns = ("environments (timesteps)", "algorithm", "n", "IQM [95%]", "mean [95%]")
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
        "than not, but this does not tell by how much. Each pair is compared after the same number "
        "of timesteps, the smaller of both budgets and of the common one."
    )
    most, all_algos = sets[0], max(sets, key=lambda s: len(s.algos))
    for i, shared in enumerate(dict.fromkeys((most, all_algos))):
        yield Heading(f"On {', '.join(shared.envs)}", level=3)
        yield Text(f"{'; '.join(pair_budgets(runs, shared, env, common) for env in shared.envs)}.")
        name = f"improvement{f'-{i}' * bool(i)}"
        yield improvement_table(name, runs, shared.algos, {env: common[env] for env in shared.envs})


def envs_of(pairs: Sequence[Pair]) -> list[str]:
    return sorted({pair.env for pair in pairs if pair.ours}, key=place_of_env)


def title_of(budgets: Budgets) -> str:
    """`CartPole-v1 (50k), Acrobot-v1 (100k)`"""
    return ", ".join(f"{env} ({short(n)})" for env, n in budgets.items())


def scaled_runs(pairs: Sequence[Pair]) -> Runs:
    """Our headline runs on environments whose scale is known."""
    found: Runs = {}
    for pair in sorted(pairs, key=lambda pair: place_of(pair.algo)):
        if pair.ours and None not in (pair.ours.spec.random_score, pair.ours.spec.reference_score):
            found.setdefault(pair.algo, {})[pair.env] = pair.ours
    return found


def budgets_of(runs: Runs, algos: Collection[str], common: Budgets) -> dict[str, int]:
    """The timesteps after which some algorithms are compared, by environment: as many as all of
    them train for, and the common budget at most."""
    return {env: equal_budget([runs[a][env] for a in algos], n) for env, n in common.items()}


def pair_budgets(runs: Runs, shared: Shared, env: str, common: Budgets) -> str:
    """`CartPole-v1 at 100k, pairs with DQN at 50k`"""
    own = {algo: equal_budget([runs[algo][env]], common[env]) for algo in shared.algos}
    most, *fewer = sorted(set(own.values()), reverse=True)
    texts = [f"{env} at {short(most)}"]
    for n in fewer:
        names = ", ".join(display(algo) for algo, budget in own.items() if budget == n)
        texts.append(f"pairs with {names} at {short(n)}")
    return ", ".join(texts)


def scores_of(run: Result, budget: int) -> Floats:
    """Normalised scores after a number of timesteps, [S], of a run whose scale is known."""
    random, reference = run.spec.random_score, run.spec.reference_score
    assert random is not None
    assert reference is not None
    found: Floats = stats.normalise(at_budget(run, budget), random, reference)
    return found


def shared_sets(runs: Mapping[str, Collection[str]]) -> list[Shared]:
    """The sets of environments that two or more algorithms share, each with all algorithms that
    have runs on it; most environments first. runs: the environments of each algorithm."""
    have = {algo: frozenset(envs) for algo, envs in runs.items()}
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


def tasks_of(own: Mapping[str, Result], budgets: Budgets) -> list[Floats]:
    """The scores of an algorithm on some environments, equally many seeds of each."""
    n = min(len(own[env].seeds) for env in budgets)
    return [scores_of(own[env], budget)[:n] for env, budget in budgets.items()]


def profile(tasks: Sequence[Floats]) -> Line:
    """The share of runs above each of THRESHOLDS, with its interval."""
    points = [
        stats.estimate([(task > x).astype(float) for task in tasks], "mean", resamples=2000)
        for x in THRESHOLDS
    ]
    value, low, high = zip(*[(p.value, p.low, p.high) for p in points], strict=True)
    return Line(THRESHOLDS, value, low, high, sum(map(len, tasks)))


def cell_table(runs: Runs, pairs: Sequence[Pair], common: Budgets) -> Table:
    """Mean scores of all algorithms on all environments: after the common budget and, where some
    train for less, after as many timesteps as all of them do."""
    known = {(pair.algo, pair.env): pair.ours for pair in pairs if pair.ours}
    columns = []
    for env in sorted({pair.env for pair in pairs}, key=place_of_env):
        here = [algo for algo in runs if env in runs[algo]]
        most = common.get(env, 0)
        columns += [(env, n) for n in sorted({*budgets_of(runs, here, {env: most}).values(), most})]

    def cell(algo: str, env: str, budget: int) -> str:
        run = runs[algo].get(env)
        if run is None:
            absent = "missing" if applies(algo, env) else "-"
            return "no scale" if (algo, env) in known else absent
        if run.timesteps_requested < budget:
            return f"ends at {short(run.timesteps_requested)}"
        stale = ", stale" * is_stale(run)
        return f"{scores_of(run, budget).mean():.3f} (n = {len(run.seeds)}{stale})"

    rows = [(display(algo), *(cell(algo, *column) for column in columns)) for algo in runs]
    titles = (f"{env}, {short(n)}" if n else env for env, n in columns)
    return Table("aggregate-cells", ("algorithm", *titles), rows)


def improvement_table(name: str, runs: Runs, algos: Sequence[str], common: Budgets) -> Table:
    """The probability that the algorithm of a row beats that of a column, each pair after the
    timesteps that both train for."""

    def cell(a: str, b: str) -> str:
        budgets = budgets_of(runs, (a, b), common)
        ours, theirs = (tasks_of(runs[algo], budgets) for algo in (a, b))
        return "" if a == b else stats.probability_of_improvement(ours, theirs).text(2)

    rows = [(display(a), *(cell(a, b) for b in algos)) for a in algos]
    return Table(name, ("row over column", *map(display, algos)), rows)
