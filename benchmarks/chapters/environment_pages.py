"""A page for each environment: its curves, a table of all algorithms, and where rows are from."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from itertools import compress
from pathlib import Path
from typing import Any

import numpy as np

from manyseeds import envs, plots, stats
from manyseeds.benchmarks.chapters.blocks import (
    Block,
    Cell,
    Code,
    Figure,
    Fold,
    Heading,
    Inline,
    Item,
    Items,
    Lines,
    Link,
    Mark,
    Page,
    Rows,
    Sides,
    Strong,
    Table,
    Text,
    folded_if_long,
)
from manyseeds.benchmarks.chapters.differences import RULE
from manyseeds.benchmarks.chapters.origins import folded_origins, origins
from manyseeds.benchmarks.experiments.verdicts import SHOWN_LEVEL
from manyseeds.benchmarks.store.comparison import MEASURES, SB3, Pair, is_stale, targets
from manyseeds.benchmarks.store.names import NAMES, display
from manyseeds.benchmarks.store.policies import median_and_worst, of_other_episodes, policies_name
from manyseeds.benchmarks.store.results import (
    Result,
    decision_text,
    floor_of,
    settings_text,
)
from manyseeds.benchmarks.store.stored import file_name, find_file
from manyseeds.errors import printable
from manyseeds.evaluate import FINAL_EPISODES
from manyseeds.plots import Line
from manyseeds.record import layers
from manyseeds.runs.control import reachable_threshold
from manyseeds.stats import Estimate, Floats
from manyseeds.worth import FLOOR

FOLDER = "environments"
SIDES = ("manyseeds", "SB3")  # of every figure, in the same colours everywhere
RANKS = ("median", "worst")  # of seeds, by their final score
UNEQUAL = 3  # budgets that differ by more are drawn on a logarithmic axis

# Columns of environments that have a threshold.
TO_THRESHOLD = ("timesteps to threshold (seeds)", "core-seconds to threshold")
# Of others: to the normalised score below which a seed fails.
TO_FLOOR = (f"timesteps to {FLOOR} (seeds)", f"core-seconds to {FLOOR}")
SCORES = (
    *("algorithm", "n", "AUC, mean [95%]", "AUC against SB3", "final score, mean [95%]"),
    *("late score against SB3", "failures", *TO_THRESHOLD, "timesteps"),
)
TARGETS = ("algorithm", "n", "final score", "target", "result")
DETAILS = (
    *("algorithm", "n", "final score, IQM [95%]", "AUC, IQM [95%]", "worst seed"),
    *("std over seeds", "std over episodes", "sampled actions, IQM [95%]"),
)
# The documentation of CleanRL: means over 3 seeds of 500,000 timesteps.
CLEANRL = {
    ("CartPole-v1", "ppo"): "490.0 +- 6.1",
    ("CartPole-v1", "dqn"): "488.7 +- 16.1",
    ("Acrobot-v1", "ppo"): "-86.4 +- 1.3",
    ("Acrobot-v1", "dqn"): "-91.5 +- 7.2",
    ("MountainCar-v0", "ppo"): "-200.0 +- 0.0",
    ("MountainCar-v0", "dqn"): "-194.9 +- 8.5",
}
# What the reference scores are; the numbers are in the environments' specs. Those of `BENCHMARK`
# are one agent's, the best of many and so a lucky one: a stated scale, and no bound.
ZOO = "rl-baselines3-zoo's benchmark.md at 22e3ff2"
OPTIMUM = "the highest possible mean return"
BENCHMARK = {
    "Acrobot-v1": f"that of one agent of QR-DQN in {ZOO}, the best one there",
    "MountainCar-v0": f"that of one agent of DQN in {ZOO}, the best one there",
    "MountainCarContinuous-v0": f"that of one agent of ARS in {ZOO}, the best one there",
    "Pendulum-v1": f"a round number above that of one agent of TD3 in {ZOO}, the best one there",
}
REFERENCES = {
    **dict.fromkeys(("CartPole-v1", "CliffWalking-v1", "Taxi-v4", "Gridworld-v0"), OPTIMUM),
    **dict.fromkeys(
        ("FrozenLake-v1", "FrozenLake8x8-v1"),
        "the mean return of the best policy that does not depend on the step",
    ),
    **BENCHMARK,
}
POLICIES = ("algorithm", "rank", "seed", "final score", "of 100 other episodes, about 95%")
POLICIES_NOTE = Text(
    "The weights of the median and the worst seed of a run are published. ",
    Code("python benchmarks/watch.py RUN"),
    " shows them. All seeds are evaluated in the same episodes, so intervals over seeds do not "
    "include the noise between episodes. In about 95% of cases the mean return of a policy in 100 "
    "other episodes lies in the interval of the last column, but less often where failures are "
    "rare, and for the worst of many seeds. ",
    Code("python benchmarks/watch.py --check RUN"),
    " plays other episodes.",
)
OTHERS = ("algorithm", "run", "n", "IQM [95%]", "mean [95%]", "failures", "settings")


def page_name(env: str) -> str:
    """The page of an environment, as seen from the folder of the results."""
    return f"{FOLDER}/{file_name(env)}.md"


def anchor(algo: str) -> str:
    """What a link to the row of an algorithm names after `#`."""
    return file_name(algo)


def page(pairs: Sequence[Pair], results: Path) -> Page:
    """The page of an environment, from its pairs."""
    env = pairs[0].env
    drawn = [*own_settings(pairs, results), *figures(pairs)]
    return Page(page_name(env), env, [*opening(pairs), *drawn, *sections(pairs, results)])


def opening(pairs: Sequence[Pair]) -> list[Block]:
    """The scale of the environment, and the rule of the verdicts on it."""
    judged = any(pair.verdict(measure) for pair in pairs for measure in MEASURES)
    source = reference_text(pairs)
    return [scale_text(pairs[0].headline[0], source), *([RULE] if judged else [])]


def sections(pairs: Sequence[Pair], results: Path) -> Iterator[Block]:
    """All of the page below its figures: scores, budgets, targets, other runs, provenance."""
    stem = score_table(pairs).name
    yield Heading("Scores")
    yield score_note(pairs)
    yield from core_seconds_note([r for pair in pairs for r in pair.headline])
    yield score_table(pairs)
    yield from failures_list(pairs)
    yield from equal_budgets(pairs)
    for title, name, columns, rows in (
        ("Targets", "targets", TARGETS, target_rows(pairs)),
        ("Details", "details", DETAILS, detail_rows(pairs)),
        ("Policies", "policies", POLICIES, policy_rows(pairs, results)),
        ("Other runs", "runs", OTHERS, other_rows(pairs)),
    ):
        if rows:
            yield Heading(title)
            yield from [POLICIES_NOTE] * (name == "policies")
            yield folded_if_long(title, Table(f"{stem}-{name}", columns, rows))
    yield Heading("Provenance")
    yield provenance(pairs, results)


def reference_text(pairs: Sequence[Pair]) -> str:
    """Where the reference score is from, and how close to it our runs are where it is that of one
    agent; empty where it is not known."""
    env, ours = pairs[0].env, [pair.ours for pair in pairs if pair.ours]
    if env not in REFERENCES or env not in envs.NATIVE:
        return ""
    text = f" The reference is {REFERENCES[env]}"
    if env not in BENCHMARK or not ours:
        return f"{text}."
    best = max(ours, key=lambda r: float(r.final.mean()))
    return (
        f"{text}: a stated scale, and no bound. The best mean of our runs is that of "
        f"{display(best.algo)}, {best.number(float(best.final.mean()))} after "
        f"{best.timesteps_requested:,} timesteps (n = {len(best.seeds)})."
    )


def scale_text(result: Result, source: str = "") -> Text:
    """Threshold, random and reference score of the environment. source: of the latter."""
    spec = result.spec
    bar = spec.reward_threshold
    threshold = "No reward threshold" if bar is None else f"Reward threshold {bar:g}"
    unreachable = bar != reachable_threshold(spec)
    threshold += ", above the best policy's score" * unreachable
    if (bar is None or unreachable) and floor_of(spec) is not None:
        threshold += f" (a normalised score below {FLOOR} is a failure)"
    scale = "random or reference score unknown, so no verdicts"
    if spec.reference_score is not None and spec.random_score is not None:
        scale = f"random policy {spec.random_score:g}, reference {spec.reference_score:g}"
        return Text(f"{threshold}; {scale}.{source}")
    return Text(f"{threshold}; {scale}.")


# ---- Figures --------------------------------------------------------------------------------


def figures(pairs: Sequence[Pair]) -> Iterator[Block]:
    """All algorithms on one axis, then each beside SB3's."""
    if whole := all_algorithms(pairs):
        yield whole
    panels: dict[str, dict[str, Line]] = {}
    for pair in pairs:
        if pair.sb3 or not whole:
            sides = zip(SIDES, (pair.ours, pair.sb3), strict=True)
            found = {name: curve(result) for name, result in sides if result}
            panels[printable(display(pair.algo))] = found
    if panels:
        env = pairs[0].env
        data = {"panels": panels, "first": SIDES, "share_x": True, "share_y": True}
        label = f"Learning curves on {env}, ours and SB3's"
        yield Figure(f"{file_name(env)}-sb3", label, "lines", data | axes(pairs))
        yield Text("All panels have the same axes.")


def own_settings(pairs: Sequence[Pair], results: Path) -> Iterator[Block]:
    """In a report of a person's own runs: those with other settings than the plain command's,
    beside it."""
    if len(layers(results)) == 1:
        return
    panels: dict[str, dict[str, Line]] = {}
    for pair in pairs:
        own = [r for r in pair.others if r.run.path.is_relative_to(results)]
        if own:
            lines = {pair.label(r): r for r in pair.headline}
            lines |= {f"{display(r.algo)}, {pair.changes(r)}": r for r in own}
            found = {printable(name): curve(r) for name, r in lines.items()}
            panels[printable(display(pair.algo))] = found
    if panels:
        label = f"Your runs on {pairs[0].env} with other settings"
        data = {"panels": panels} | axes(pairs)
        yield Figure(f"{file_name(pairs[0].env)}-own", label, "lines", data)


def all_algorithms(pairs: Sequence[Pair]) -> Figure | None:
    """The curves of our runs on an environment in one panel; None without any.

    Where all learn early on a linear axis (`plots.early_end`), a second panel has the same points
    of the beginning alone.
    """
    ours = {printable(display(pair.algo)): curve(pair.ours) for pair in pairs if pair.ours}
    if not ours:
        return None
    env = pairs[0].env
    panels, size = {printable(env): ours}, (7.0, 3.6)
    label = f"Learning curves of all algorithms on {env}"
    if (end := early_end(pairs)) is not None:
        early = {name: plots.beginning(line, end) for name, line in ours.items()}
        panels[f"{printable(env)}, early learning"] = early
        size = (4.8, 3.2)
        label += ", and their beginning alone"
    data = {"panels": panels, "first": list(NAMES.values()), "size": size, "share_y": True}
    return Figure(file_name(env), label, "lines", data | axes(pairs))


def early_end(pairs: Sequence[Pair]) -> float | None:
    """Where the panel of early learning ends; None where none is needed."""
    ours = [curve(pair.ours) for pair in pairs if pair.ours]
    return None if is_log_x(pairs) or not ours else plots.early_end(ours)


def axes(pairs: Sequence[Pair]) -> dict[str, Any]:
    """What all figures of an environment share."""
    log_x = is_log_x(pairs)
    return {
        "threshold": reachable_threshold(pairs[0].headline[0].spec),
        "log_x": log_x,
        "xlabel": "timesteps per seed" + " (logarithmic)" * log_x,
        "ylabel": "greedy return",
        "legend": plots.IQM_LEGEND,
    }


def is_log_x(pairs: Sequence[Pair]) -> bool:
    """Whether the budgets differ so much that timesteps are on a logarithmic axis."""
    budgets = [r.timesteps_requested for pair in pairs for r in pair.headline]
    return max(budgets) > UNEQUAL * min(budgets) > 0


@cache  # both figures and the site ask for it
def curve(result: Result) -> Line:
    """The IQM of the greedy return over training."""
    return plots.iqm_line(result.algo, result.curve)


# ---- Tables ---------------------------------------------------------------------------------


def sides(pair: Pair, write: Callable[[Result], Inline]) -> Cell:
    """A cell with a line for each headline run."""
    texts = [write(result) for result in pair.headline]
    return Sides(*texts) if len(texts) == 2 else texts[0]


def score_note(pairs: Sequence[Pair]) -> Text:
    """What the table needs to be read, one paragraph."""
    text = (
        "Means over n seeds with their 95% intervals. Those of our scores are over seeds and start "
        "states where the returns of single episodes are stored, so that they are wider than those "
        "of the same scores at an equal budget, which are over seeds alone. "
    )
    if any(pair.sb3 for pair in pairs):
        text += (
            "The second line of a row is SB3 at the same settings. Below a verdict are the "
            "difference of the normalised means, ours minus SB3's, with its "
            f"{SHOWN_LEVEL} interval, and the seeds of both sides that it is based on. The late "
            "score is the mean of the evaluations in the last fifth of training. "
        )
    how = Link("how to read this", page="verdicts.md", anchor="how-to-read-this")
    return Text(f"{text}The terms are explained in ", how, ".")


def core_seconds_note(results: Sequence[Result]) -> Iterator[Text]:
    """What core-seconds are, and where they were measured; nothing where there are none."""
    by_machine: dict[str, list[str]] = {}
    for result in results:
        if result.fastest and np.isfinite(core_seconds(result)).any():
            by_machine.setdefault(result.fastest[1], []).append(display(result.algo))
    if not by_machine:
        return
    first, *others = sorted(by_machine, key=lambda name: -len(by_machine[name]))
    named = {x: ", ".join(dict.fromkeys(by_machine[x])) for x in others}
    where = [f"on {first}", *(f"those of {names} on {x}" for x, names in named.items())]
    theirs = any(result.algo.startswith(SB3) for result in results)
    yield Text(
        "Core-seconds are those of a seed's learning, evaluation left out, on one core. Ours "
        f"trains all seeds of a part as one batch{', SB3 one at a time' * theirs}. They are upper "
        "bounds: the wall time of one thread, in the fastest part of a run, while other processes "
        f'ran, {"; ".join(where)}. "-": no seed got there, or none was timed so.'
    )


def verdict_cell(pair: Pair, measure: str) -> Cell:
    """`equivalent` and `+0.001 [-0.012, +0.014], n = 30` in two lines, or why there is none."""
    if pair.sb3 is None or pair.ours is None:
        return "no SB3 run" if pair.sb3 is None else "no run of ours"
    verdict = pair.verdict(measure)
    if verdict is None:
        return decision_text(None, pair.headline[0].spec)
    n = f"n = {verdict.ours} and {verdict.look}"
    return Lines(Strong(verdict.parity.word), f"{verdict.parity.difference.text(3, '+')}, {n}")


def name_cell(pair: Pair) -> Cell:
    """The names of both sides, with the anchor of the row."""
    first, *others = map(pair.label, pair.headline)
    marked = Mark(anchor(pair.algo), first)
    return Sides(marked, *others) if others else marked


def score_table(pairs: Sequence[Pair]) -> Table:
    """A row for each algorithm, ours and SB3's. Where there is no threshold that can be reached,
    the normalised score below which a seed fails is; nothing is said where that is unknown."""
    spec = pairs[0].headline[0].spec
    floor = floor_of(spec) if reachable_threshold(spec) is None else None

    def to_threshold(r: Result) -> str:
        there = (steps := reached(r))[np.isfinite(steps)]
        when = f"{np.median(there):,.0f}" if len(there) else "never"
        return f"{when} ({len(there)} of {len(r.seeds)})"

    def core_seconds_text(r: Result) -> str:
        there = (seconds := core_seconds(r))[np.isfinite(seconds)]
        return stats.number_text(float(np.median(there)), None) if len(there) else "-"

    rows = [
        (
            name_cell(pair),
            sides(pair, pair.seeds_text),
            sides(pair, lambda r: r.text("auc", "mean")),
            verdict_cell(pair, "auc"),
            sides(pair, lambda r: r.text("final", "mean")),
            verdict_cell(pair, "late"),
            sides(pair, Result.failures_text),
            sides(pair, to_threshold),
            sides(pair, core_seconds_text),
            sides(pair, lambda r: f"{r.timesteps:,}"),
        )
        for pair in pairs
    ]
    unknown = reachable_threshold(spec) is None and floor is None
    shown = [not (unknown and name in TO_THRESHOLD) for name in SCORES]
    named = dict(zip(TO_THRESHOLD, TO_FLOOR, strict=True)) if floor is not None else {}
    header = [named.get(name, name) for name in SCORES]
    columns, *cells = (list(compress(row, shown)) for row in (header, *rows))
    return Table(f"environment-{file_name(pairs[0].env)}", columns, cells)


def reached(result: Result) -> Floats:
    """The timestep of the first evaluation from which on all are at the threshold or above, `[S]`,
    or at the normalised score below which a seed fails where no threshold can be reached; NaN of a
    seed that does not end there."""
    floor = floor_of(result.spec)
    if reachable_threshold(result.spec) is not None or floor is None:
        return result.reached
    steps = [stats.timesteps_to_threshold(*curve, floor)[0] for curve in result.curves]
    return np.array(steps)


def core_seconds(result: Result) -> Floats:
    """What each seed cost at most until then, `[S]`; NaN where no part says how fast it was."""
    return reached(result) / (result.fastest[0] if result.fastest else math.nan)


def detail_rows(pairs: Sequence[Pair]) -> Rows:
    def spread(r: Result) -> str:
        return r.number(r.final.std(ddof=1)) if len(r.seeds) > 1 else "-"

    def over_episodes(r: Result) -> str:
        return "exact" if r.exact else r.number(r.episode_std.mean())

    return [
        (
            sides(pair, pair.label),
            sides(pair, pair.seeds_text),
            sides(pair, lambda r: r.text("final")),
            sides(pair, lambda r: r.text("auc")),
            sides(pair, lambda r: r.number(r.final.min())),
            sides(pair, spread),
            sides(pair, over_episodes),
            sides(pair, lambda r: r.text("sampled")),
        )
        for pair in pairs
    ]


def target_rows(pairs: Sequence[Pair]) -> Rows:
    """The suites' targets for the final score, met or missed."""
    rows = []
    asked = targets()
    for pair in pairs:
        ours, target = pair.ours, asked.get((pair.env, pair.algo))
        if ours and target is not None:
            n, reached = len(ours.seeds), int((ours.final >= target.score).sum())
            wanted = f"{target.score:g} in {target.share:.0%} of seeds"
            met, score = reached >= target.share * n, f"{reached} of {n} seeds"
            if not target.share:
                statistic = target.statistic
                name = {"mean": "mean", "iqm": "IQM"}[statistic]
                wanted = f"{name} {target.score:g}"
                score = f"{name} {ours.text('final', statistic)}"
                met = ours.estimate("final", statistic).value >= target.score
            rows.append((pair.label(ours), str(n), score, wanted, "met" if met else "missed"))
    return rows


def equal_budgets(pairs: Sequence[Pair]) -> Iterator[Block]:
    """A table of scores after equal numbers of timesteps, and of published ones; nothing where
    there is nothing to compare."""
    budgets = sorted({r.timesteps_requested for pair in pairs for r in pair.headline})
    published = [published_lines(pair) for pair in pairs]
    if len(budgets) == 1 and not any(published):
        return

    def at(budget: int, r: Result) -> Inline:
        if budget > r.timesteps_requested:
            return ""
        text = r.text_at(budget)
        return Strong(text) if budget == r.timesteps_requested else text

    rows = [
        (
            sides(pair, pair.label),
            sides(pair, lambda r: str(len(r.seeds))),
            *(sides(pair, partial(at, budget)) for budget in budgets),
            lines,
        )
        for pair, lines in zip(pairs, published, strict=True)
    ]
    yield Heading("At an equal budget")
    yield Text(
        "Mean scores after the same number of timesteps, with their 95% intervals over seeds, from "
        "the same start states: those of the same final scores under Scores are over start states, "
        "too, and wider. Scores in bold "
        "are from the final evaluation of a run. The others are from evaluations during a longer "
        "run, with fewer episodes and a learning rate that may still be high. In published scores, "
        "+- is over the episodes of one agent (the zoo) or over seeds (CleanRL)."
    )
    columns = ("algorithm", "n", *(f"{budget:,}" for budget in budgets), "published")
    yield Table(f"environment-{file_name(pairs[0].env)}-budgets", columns, rows)


def published_lines(pair: Pair) -> Lines:
    """Scores that others have published, beside a run with every setting of the preset."""
    found = []
    if pair.headline[0].config == pair.settings:
        if pair.preset and pair.preset.published:
            text = pair.preset.published
            budget = "" if "timesteps" in text else f" at {pair.settings['total_timesteps']:,}"
            found.append(f"{text}{budget}")
        if score := CLEANRL.get((pair.env, pair.algo)):
            over = "over the last 100 training episodes, 3 seeds, at 500,000"
            found.append(f"CleanRL {score} {over}")
    return Lines(*found)


def other_rows(pairs: Sequence[Pair]) -> Rows:
    return [
        (
            display(r.algo) + " (stale)" * is_stale(r),
            Link(r.run.path.name, file=r.run.folder),
            str(len(r.seeds)),
            r.text("final"),
            r.text("final", "mean"),
            r.failures_text(),
            pair.changes(r) or "the preset",
        )
        for pair in pairs
        for r in pair.others
    ]


def ranked_seeds(result: Result) -> dict[str, int]:
    """The median and the worst seed of a run; one seed can be both."""
    seeds = median_and_worst({seed: worth.score for seed, worth in result.worths.items()})
    return dict(zip(RANKS, (seeds[0], seeds[-1]), strict=True))


def in_other_episodes(result: Result, seed: int, episodes: int) -> Estimate:
    """The final score of a seed, and where the mean return of so many other episodes falls."""
    i = result.seeds.index(seed)
    std = result.episode_std[i]
    return of_other_episodes(result.final[i], std, result.final_episodes, episodes)


def policy_rows(pairs: Sequence[Pair], results: Path) -> Rows:
    """The policies that are published, and what they score in other episodes."""
    rows = []
    for pair in pairs:
        ours = pair.ours
        if ours is None or not find_file(results, policies_name(ours.run.path)).is_file():
            continue
        for rank, seed in ranked_seeds(ours).items():
            expected = in_other_episodes(ours, seed, FINAL_EPISODES)
            interval = " to ".join(map(ours.number, (expected.low, expected.high)))
            name = pair.label(ours), rank, str(seed), ours.number(expected.value)
            alike = "exact" if ours.exact else "all returns are equal"
            rows.append((*name, alike if math.isnan(expected.low) else interval))
    return rows


def failures_list(pairs: Sequence[Pair]) -> Iterator[Block]:
    """Every failed seed by number, folded away."""
    lines = []
    for r in (r for pair in pairs for r in pair.headline if r.failures):
        scores = dict(zip(r.seeds, r.final, strict=True))
        seeds = []
        for seed in r.failures:
            when = f", diverged at timestep {r.diverged[seed]:,}" if seed in r.diverged else ""
            seeds.append(f"seed {seed} ({r.number(scores[seed])}{when})")
        lines.append(f"{display(r.algo)}: {', '.join(seeds)}")
    if lines:
        yield Fold("Failed seeds", [Items(lines)])


# ---- Provenance -----------------------------------------------------------------------------


def provenance(pairs: Sequence[Pair], results: Path) -> Fold:
    """Commands, code, machine and hyperparameters of every run, behind one line."""
    runs = [(pair, r) for pair in pairs for r in (*pair.headline, *pair.others)]
    items = [provenance_of(pair, result, results) for pair, result in runs]
    return folded_origins("run", [is_stale(result) for _, result in runs], [Items(items)])


def provenance_of(pair: Pair, result: Result, results: Path) -> Item:
    """Where a run is from; parts with the same origin are grouped."""
    name = f"{display(result.algo)}{' (stale)' * is_stale(result)}, n = {len(result.seeds)}"
    where = Link(os.path.relpath(result.run.path, results), file=result.run.folder)
    below = [*origins(result.configs).items]
    if result is pair.sb3 and pair.ours:
        same = ("hyperparameters: the same as those of ", Code(pair.algo), " above")
        return Item((f"{name}: ", where), Items([*below, same]))
    values = settings_text({k: v for k, v in result.config.items() if k != "env"})
    source = f" ({pair.preset.source})" if pair.preset else ""
    if changes := pair.changes(result):
        below.append(f"not the preset: {changes}")
        source = ""
    return Item((f"{name}: ", where), Items([*below, f"hyperparameters{source}: {values}"]))
