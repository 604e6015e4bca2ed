"""Whether SAC for discrete actions is better than DQN, at the same number of timesteps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from manyseeds.benchmarks.chapters.blocks import Block, Table, Text
from manyseeds.benchmarks.chapters.differences import corrected_verdicts
from manyseeds.benchmarks.experiments.suite import NO_PARTS, Cell
from manyseeds.benchmarks.store.comparison import MEASURES, Pair, is_stale, run_of
from manyseeds.benchmarks.store.names import display
from manyseeds.benchmarks.store.results import Result, parity_of, verdict_text
from manyseeds.record import plural
from manyseeds.stats import Parity

SAC = "sac_discrete"
COLUMNS = (
    *("environment", "timesteps", "", "n", "final, IQM [95%]", "failures", "AUC, mean [95%]"),
    *("SAC's AUC against it", "SAC's late score against it"),
)
WORDS = ("better", "worse", "equivalent", "saturated", "undecided", "not judged")


def section(found: Sequence[Pair]) -> Iterator[Block]:
    """The answer, and what it rests on; nothing without runs of both."""
    by_cell = {(pair.env, pair.algo): pair for pair in found}
    sides: dict[str, tuple[Result, dict[str, Result]]] = {}
    for env in dict.fromkeys(pair.env for pair in found):
        if (sac := ours_of(by_cell.get((env, SAC)))) and (rivals := rivals_of(by_cell, env, sac)):
            sides[env] = sac, rivals
    verdicts = corrected_verdicts(
        {
            (env, name, measure): parity_of(sac, rival, measure)
            for env, (sac, rivals) in sides.items()
            for name, rival in rivals.items()
            for measure in MEASURES
        }
    )
    rows: list[tuple[str, ...]] = []
    for env, (sac, rivals) in sides.items():
        rows.append((*row(env, display(SAC), sac), "", ""))
        for name, rival in rivals.items():
            texts = (verdict_text(verdicts[env, name, m], sac.spec) for m in MEASURES)
            rows.append((*row(env, name, rival), *texts))
    if rows:
        by = {m: [v for (_, _, of), v in verdicts.items() if of == m] for m in MEASURES}
        counted = "; by ".join(counts(MEASURES[m], v) for m, v in by.items())
        yield Text(
            f"Is {display(SAC)} better than DQN? In {plural(len(by['late']), 'comparison')} on "
            f"{', '.join(sides)} at the same number of timesteps, by {counted}. DQN has the preset "
            f"of rl-baselines3-zoo, also with {display(SAC)}'s networks. Only {display(SAC)}'s "
            "presets were searched here, which favours it. The p-values of these verdicts are "
            "corrected together (Holm, 1979)."
        )
        yield Table("discrete-sac", COLUMNS, rows)


def rivals_of(by_cell: dict[tuple[str, str], Pair], env: str, sac: Result) -> dict[str, Result]:
    """The runs of DQN on an environment that have SAC's budget: the preset's, and those with
    smaller networks."""
    found = {"DQN": ours_of(by_cell.get((env, "dqn")))}
    if rainbow := by_cell.get((env, "rainbow")):
        cell = Cell("rainbow", env, 30, settings=NO_PARTS)
        found["DQN, 64-64"] = run_of(cell, [*rainbow.headline, *rainbow.others])
    budget = sac.timesteps_requested
    return {name: r for name, r in found.items() if r and r.timesteps_requested == budget}


def ours_of(pair: Pair | None) -> Result | None:
    return pair.ours if pair else None


def row(env: str, name: str, result: Result) -> tuple[str, ...]:
    return (
        *(env, f"{result.timesteps_requested:,}", name + " (stale)" * is_stale(result)),
        str(len(result.seeds)),
        *(result.text("final"), result.failures_text(), result.text("auc", "mean")),
    )


def counts(measure: str, verdicts: Sequence[Parity | None]) -> str:
    """`late score it is better in 1 and worse in 2`: only what there is."""
    words = [verdict.word if verdict else "not judged" for verdict in verdicts]
    there = [f"{word} in {words.count(word)}" for word in WORDS if word in words]
    return f"{measure} it is {', '.join(there)}"
