"""Differences of runs of language models, and sections on many samples per prompt, lengths, and
steps beside samples."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from manyseeds import plots, stats
from manyseeds.benchmarks.chapters import blocks
from manyseeds.benchmarks.chapters.blocks import (
    Block,
    Figure,
    Inline,
    Link,
    Table,
    Text,
    folded_if_long,
)
from manyseeds.benchmarks.chapters.differences import POWER, Applied, compared, judged
from manyseeds.benchmarks.experiments.suite import MANY_SAMPLES
from manyseeds.benchmarks.store.methods import ORDER, Method, by_seed, common
from manyseeds.benchmarks.store.names import display
from manyseeds.benchmarks.store.stored import file_name, left_out, read_table
from manyseeds.errors import printable
from manyseeds.record import plural
from manyseeds.stats import Estimate, Floats

NEAR_1 = 0.9  # a pass@k above which it can rise little

DAPO = "Yu et al., 2025, arXiv 2503.14476"
MANY = (
    *("task", "method", "n", "pass@16 before", "after, mean [95%]", "gain, paired [95%]"),
    *("cons@16 before", "after"),
)
LENGTHS = (
    *("task", "method", "n", "right ones before", "after", "wrong ones before"),
    *("after, mean [95%]", "cut off before", "after"),
)
RL = (
    *("rlhf_ppo", "grpo", "dr_grpo", "dapo", "rloo", "reinforce_pp", "gspo", "cispo"),
    "process_grpo",
)
CURVES = ("pass@4", "cons@4", "entropy")


# Means over seeds during the training.
curves = partial(blocks.curves, xlabel="samples")


def curves_of(
    name: str, label: str, measures: Mapping[str, str], runs: Mapping[str, Method], **more: Any
) -> Figure:
    """A panel for each measure, by its title, and a line for each run."""
    panels = {
        title: {line: m.line(measure) for line, m in runs.items()}
        for title, measure in measures.items()
    }
    return curves(name, label, panels, **{"columns": 2, **more})


# On which side of 0 a difference lies: what the pages with such claims say.
SIDE_RULE = (
    "Intervals are expanded percentile bootstraps over seeds. Differences are paired by seed. One "
    "lies on a side where its 95% interval does and p is below 0.05, by Student's paired test. The "
    "p-values of all differences on a page that decide a claim are corrected together (Holm, "
    "1979); the intervals are of one difference each. For an undecided one the tables give the "
    f"true difference that would be shown in {POWER:.0%} of cases at the corrected level: 0.05 "
    "over the number of undecided ones."
)


# ---- Reading runs --------------------------------------------------------------------------


def run_of(
    found: Sequence[Method], algo: str, task: str, settings: Mapping[str, Any]
) -> Method | None:
    """The run that differs from its plain command by these settings alone."""
    return next((m for m in found if m.is_run_of(algo, task, settings)), None)


def metric(m: Method, name: str, share: float = 1.0) -> Floats:
    """The mean of a metric over the first share of each seed's training, [S]."""
    tables = m.metrics(name)
    firsts = (rows["samples"] <= share * rows["samples"].max() for rows in tables)
    return np.array([x.loc[first, name].mean() for x, first in zip(tables, firsts, strict=True)])


def has_metric(m: Method, name: str) -> bool:
    """Whether every seed has logged it: runs of older code may lack it."""
    return all(name in read_table(part / "metrics.parquet", ()) for part in m.parts)


# ---- Differences of runs ------------------------------------------------------------------


def change(m: Method, name: str) -> stats.Estimate | None:
    """A measure after the training minus before, paired by seed.

    None where a seed lacks it, and of a single seed.
    """
    before, after = (by_seed(m, m.values(name, when)) for when in ("initial", "final"))
    return paired(after, before)


def paired(a: Mapping[Any, float], b: Mapping[Any, float]) -> stats.Estimate | None:
    """a - b, values by seed, over the seeds that both have: they learn from the same prompts.

    None where these are fewer than two, or where one lacks its value.
    """
    x, y = common(a, b)
    if len(x) < 2 or np.isnan(x - y).any():
        return None
    return stats.mean_difference(x - y)


def between(m: Method, other: Method, values: Callable[[Method], Floats]) -> stats.Estimate | None:
    """A value of each seed of a run, minus that of another run, paired by seed."""
    return paired(*(by_seed(x, values(x)) for x in (m, other)))


def first(m: Method, name: str) -> Floats:
    """A measure at the first evaluation, [S]."""
    return m.curve(name)[1][:, 0]


def last(m: Method, name: str) -> Floats:
    """A measure at the last evaluation during training, [S]."""
    return m.curve(name)[1][:, -1]


def gained(m: Method, name: str = "pass@1") -> Floats:
    """A measure after the training minus before, [S]."""
    return m.values(name) - m.values(name, "initial")


def at_ends(m: Method, name: str, since: int = 0) -> stats.Estimate | None:
    """The last evaluation minus the first, or a later one, paired by seed."""
    return paired(by_seed(m, last(m, name)), by_seed(m, m.curve(name)[1][:, since]))


def averaged(m: Method, name: str = "pass@1") -> Floats:
    """A measure averaged over the evaluations of each seed, [S]; NaN where one lacks it."""
    return m.curve(name)[1].mean(1)


def gain_text(gain: stats.Estimate | None) -> str:
    return gain.text(3, "+") if gain else ""


def measure(name: str) -> Callable[[Method], Floats]:
    """A measure after the training."""
    return lambda m: m.values(name)


# ---- Treatments -----------------------------------------------------------------------------

DRAWN = ("length", "accuracy")  # of the samples of a step: equal where these are the same
FIRST_STEP = "in the first step, from the same samples, the gradient has another norm in"


def first_value(m: Method, name: str) -> Floats:
    """A metric of each seed's first step, [S]; NaN where it is not known."""
    if not has_metric(m, name):
        return np.full(len(m.parts), np.nan)
    return np.array([rows[name].head(1).mean() for rows in m.metrics(name)])


def first_steps(m: Method, other: Method) -> Applied:
    """In how many seeds two runs learn something else from the same samples: after FIRST_STEP.

    Both draw their first samples from the same model. If the flag that tells the runs apart did
    nothing, the gradients would be the same, too.
    """

    def both(name: str) -> tuple[Floats, Floats]:
        return common(*(by_seed(x, first_value(x, name)) for x in (m, other)))

    same = np.logical_and(*(a == b for a, b in map(both, DRAWN)))
    a, b = both("grad_norm")
    changed = same & np.isfinite(a - b) & (a != b)
    return Applied(f"{changed.sum()} of {plural(int(same.sum()), 'seed')}", bool(changed.any()))


# ---- Plateaus -------------------------------------------------------------------------------

Curve = tuple[Floats, Floats]  # samples [K], scores [S, K]


def late_rise(samples: Floats, scores: Floats) -> Estimate:
    """The gain of a curve in the last fifth of a training, or since the evaluation before the last
    one, paired by seed."""
    late = min(int(np.searchsorted(samples, 0.8 * samples[-1])), max(len(samples) - 2, 0))
    return stats.mean_difference(scores[:, -1] - scores[:, late])


def budget_text(ends: Sequence[Curve]) -> str:
    """`at this budget: pass@1 still rose in 2 of 3 trainings`; empty where none did."""
    rising = sum(late_rise(*curve).low > 0 for curve in ends)
    if not rising:
        return ""
    return f"at this budget: pass@1 still rose in {rising} of {plural(len(ends), 'training')}"


# ---- Sections -------------------------------------------------------------------------------


def many_samples_section(found: Sequence[Method]) -> Iterator[Block]:
    """What 16 samples of a prompt solve, before and after training."""
    shown = [m for m in found if m.plain and not np.isnan(m.values("pass@16")).any()]
    if not shown:
        return
    yield Text(
        "pass@16 is the chance that at least one of 16 samples is right, cons@16 the share of "
        "prompts whose most frequent answer is.",
        *narrowed(shown, found),
    )
    rows = [
        (*m.named, *m.both("pass@16"), gain_text(change(m, "pass@16")), *m.means("cons@16"))
        for m in shown
    ]
    yield folded_if_long("Many samples", Table("language-many-samples", MANY, rows))
    for task in dict.fromkeys(m.task for m in shown):
        here = [
            m for m in shown if m.task == task and not m.algo.startswith("trl-") and m.algo != "sft"
        ]
        panels = {
            f"{name}, {printable(task)}": {display(m.algo): m.line(name) for m in having}
            for name in CURVES
            if (having := [m for m in here if m.has(name)])
        }
        if panels:
            name = f"language-{file_name(task)}-samples"
            first = [*map(display, ORDER)]
            yield curves(name, f"pass@4, cons@4 and entropy on {task}", panels, first=first)


def narrowed(shown: Sequence[Method], found: Sequence[Method]) -> Iterator[Inline]:
    """In how many runs of RL whose pass@1 rises pass@16 falls, and where that is tested, if it is
    in the runs that were found."""
    raised = [
        (m, many)
        for m in shown
        if m.algo.removeprefix("trl-") in RL
        and (one := change(m, "pass@1"))
        and (many := change(m, "pass@16"))
        and one.low > 0
    ]
    if raised:
        fall, rise = sum(x.high < 0 for _, x in raised), sum(x.low > 0 for _, x in raised)
        near = sum(bool(m.values("pass@16", "initial").mean() > NEAR_1) for m, _ in raised)
        yield (
            f" Of {plural(len(raised), 'run')} of RL whose pass@1 rises, pass@16 rises in {rise} "
            f"and falls in {fall}, by the intervals of the table; {near} begin above {NEAR_1}, "
            "where it can rise little."
        )
        if run_of(found, "grpo", "addition", MANY_SAMPLES):
            yield (
                " Whether a base model solves more than the model after RL is decided with 256 "
                "samples on "
            )
            yield Link("the page on the papers' claims", page="language-claims.md")
            yield "."


def length_section(found: Sequence[Method]) -> Iterator[Block]:
    """How long right and wrong completions are."""
    rows = [
        (*m.named, *m.means("length_right", 1), *m.both("length_wrong", 1), *m.means("truncated"))
        for m in found
        if m.plain and not np.isnan(m.values("length_wrong")).any()
    ]
    if rows:
        yield Text(
            "The table shows the mean number of tokens of right and of wrong completions of the "
            "held-out prompts, and the share of all completions that the limit truncated."
        )
        yield folded_if_long("Lengths", Table("language-lengths", LENGTHS, rows))


def steps_section(found: Sequence[Method]) -> Iterator[Block]:
    """Dynamic sampling over gradient steps and over generated samples."""
    pairs = [
        (m, other)
        for m in found
        for other in found
        if m.settings.get("dynamic_sampling") is True
        and other.settings == {**m.settings, "dynamic_sampling": False}
        and (m.algo, m.task) == (other.algo, other.task)
    ]
    for k, (dynamic, plain) in enumerate(pairs):
        with left_out(dynamic.run.path):
            yield from compared_over_steps(dynamic, plain, k)


def compared_over_steps(dynamic: Method, plain: Method, k: int) -> Iterator[Block]:
    """The claim on one pair of runs that differ by dynamic sampling alone."""
    name = dynamic.headline
    sides = {
        "with dynamic sampling": steps_and_curve(dynamic),
        "without it": steps_and_curve(plain),
    }
    last = int(min(x[:, -1].min() for x, _ in sides.values()))  # steps that all seeds have
    at_last = (
        np.array([np.interp(last, x, y) for x, y in zip(*side, strict=True)])
        for side in sides.values()
    )
    total = dynamic.settings["total_samples"]
    by_steps = paired(*map(by_seed, (dynamic, plain), at_last))
    by_samples = between(dynamic, plain, measure(name))
    if by_steps is None or by_samples is None:
        return
    where = f"{display(dynamic.algo)} on {dynamic.task}"
    runs = zip(sides, (dynamic, plain), strict=True)
    panels = {
        "over gradient steps": {s: plots.mean_line(x.mean(0), y) for s, (x, y) in sides.items()},
        "over generated samples": {s: m.line(name) for s, m in runs},
    }
    label = f"{name} over gradient steps and over generated samples, {where}"
    file, what = f"language-steps{f'-{k}' * bool(k)}", f"{name} with minus without"
    about = Text(
        "A step samples and learns. Dynamic sampling discards groups without a signal, and the "
        "samples that replace them count."
    )
    drawn = {
        side: metric(m, "drawn").mean() for side, m in zip(sides, (dynamic, plain), strict=True)
    }
    said = ", ".join(f"{x:,.0f} samples {side}" for side, x in drawn.items())
    applied = Applied(
        f"a step draws on average {said}",
        drawn["with dynamic sampling"] > drawn["without it"],
    )
    yield judged(
        file,
        f"With dynamic sampling {where} learns faster.",
        f"{DAPO}, sec. 3.2",
        [
            *compared(what, f"after {last:,} steps", by_steps),
            *compared(what, f"after {total:,} generated samples", by_samples),
        ],
        [about],
        applied=applied,
        note=budget_text([m.curve(name) for m in (dynamic, plain)]),
        figure=curves(file, label, panels, xlabel="", ylabel=name, columns=2, share_y=True),
    )


def steps_and_curve(m: Method) -> tuple[Floats, Floats]:
    """Steps of sampling and learning [S, K] at each evaluation, and the headline [S, K]."""
    samples, values = m.curve(m.headline)
    steps = []
    for part in m.parts:
        done = read_table(part / "metrics.parquet", ("samples",))["samples"].to_numpy()
        # An evaluation comes after the step that made it due.
        steps.append(np.interp(samples, [0, *done], range(len(done) + 1)))
    return np.array(steps), values
