"""Sections on language models: many samples per prompt, lengths, and steps beside samples; and the
claims of papers as cards, with verdicts from differences."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from manyseeds import plots, stats
from manyseeds.benchmarks.chapters.blocks import (
    Block,
    Claim,
    Figure,
    Inline,
    Table,
    Text,
    Word,
    folded_if_long,
)
from manyseeds.benchmarks.chapters.differences import claim_word
from manyseeds.benchmarks.store.methods import Method, begun_with
from manyseeds.benchmarks.store.names import display
from manyseeds.benchmarks.store.stored import file_name, left_out, read_table
from manyseeds.errors import printable
from manyseeds.stats import Floats

CAPTION = "mean over seeds, 95% interval"
DAPO = "Yu et al., 2025, arXiv 2503.14476"
MANY = (
    *("task", "method", "n", "pass@16 before", "after, mean [95%]", "gain, paired [95%]"),
    *("cons@16 before", "after"),
)
LENGTHS = (
    *("task", "method", "n", "right ones before", "after", "wrong ones before"),
    *("after, mean [95%]", "cut off before", "after"),
)
RL = ("rlhf_ppo", "grpo", "dr_grpo", "dapo")
CURVES = ("pass@4", "cons@4", "entropy")


def curves(
    name: str, label: str, panels: Mapping[str, Mapping[str, plots.Line]], **more: Any
) -> Figure:
    """A figure of lines over samples. more: other arguments of `plots.lines`."""
    data = {"panels": panels, "xlabel": "samples", "ylabel": "", "legend": CAPTION, **more}
    return Figure(name, label, "lines", data)


# ---- Differences and what they say ----------------------------------------------------------


class Compared(NamedTuple):
    """A difference, and what it is of: a measure, and a run or the side of a pair."""

    measure: str
    what: str
    difference: stats.Estimate
    digits: int = 3
    unit: str = ""

    @property
    def text(self) -> str:
        """`+0.172 [+0.123, +0.219]`"""
        return self.difference.text(self.digits, "+") + self.unit

    @property
    def sign(self) -> int:
        """1 where the interval lies above 0, -1 where it lies below, else 0."""
        return int(self.difference.low > 0) - int(self.difference.high < 0)


WORDS = {1: "higher", -1: "lower", 0: "undecided"}


def change(m: Method, name: str) -> stats.Estimate | None:
    """A measure after the training minus before, paired by seed.

    None where a seed lacks it, and of a single seed.
    """
    before, after = (by_seed(m, m.values(name, when)) for when in ("initial", "final"))
    return paired(after, before)


def by_seed(m: Method, values: Floats) -> dict[Any, float]:
    """Values [S] of a run by seed and by what the seed began with: others are no pairs."""
    seeds = [config["seeds"][0] for config in m.configs]
    return dict(zip(zip(seeds, begun_with(m), strict=True), values.tolist(), strict=True))


def paired(a: Mapping[Any, float], b: Mapping[Any, float]) -> stats.Estimate | None:
    """a - b, values by seed, over the seeds that both have: they learn from the same prompts.

    None where these are fewer than two, or where one lacks its value.
    """
    both = sorted(a.keys() & b.keys())
    if len(both) < 2 or any(np.isnan(x[seed]) for x in (a, b) for seed in both):
        return None
    return stats.estimate(np.array([a[seed] - b[seed] for seed in both]), "mean")


def between(m: Method, other: Method, values: Callable[[Method], Floats]) -> stats.Estimate | None:
    """A value of each seed of a run, minus that of another run, paired by seed."""
    return paired(*(by_seed(x, values(x)) for x in (m, other)))


def measure(name: str) -> Callable[[Method], Floats]:
    """A measure after the training."""
    return lambda m: m.values(name)


def compared(
    measure: str, what: str, difference: stats.Estimate | None, digits: int = 3, unit: str = ""
) -> list[Compared]:
    """The comparison, if there is a difference."""
    return [Compared(measure, what, difference, digits, unit)] if difference else []


def verdict_on(found: Sequence[Compared], sign: int) -> Word:
    """Whether all differences have the sign (1 or -1) that a claim gives them."""
    return claim_word({1: "true", -1: "false", 0: "undecided"}[sign * x.sign] for x in found)


def weakest(found: Sequence[Compared], sign: int) -> str:
    """The difference that speaks most against a sign; empty without any."""
    if not found:
        return ""
    least = min(found, key=lambda x: x.difference.low if sign > 0 else -x.difference.high)
    text = f"{least.text}, {least.measure}: {least.what}, n = {least.difference.n}"
    if len(found) > 1:
        agreeing = sum(x.sign == sign for x in found)
        text += f" (the weakest of {len(found)} comparisons; {agreeing} agree with the claim)"
    return text


def judged(
    name: str,
    claim: Inline,
    source: str,
    found: Sequence[Compared],
    sign: int,
    details: Sequence[Block] = (),
    *,
    beside: Sequence[Compared] = (),
    figure: Figure | None = None,
) -> Claim:
    """The card of a claim that gives differences a sign.

    name: of its figure, of the differences where there is no other. beside: what is compared, too,
    but does not decide.
    """
    table = [comparison_table([*found, *beside])] if found or beside else []
    word, number = verdict_on(found, sign), weakest(found, sign)
    return Claim(claim, word, number, figure or forest(name, found), [*table, *details], source)


def comparison_table(found: Sequence[Compared]) -> Table:
    rows = [(x.measure, x.what, str(x.difference.n), x.text, WORDS[x.sign]) for x in found]
    return Table("", ("measure", "what was compared", "n", "difference [95%]", "it is"), rows)


def forest(name: str, found: Sequence[Compared]) -> Figure | None:
    """The differences with their intervals, a panel for each measure."""
    panels: dict[str, list[plots.Difference]] = {}
    for x in found:
        d, label = x.difference, printable(x.what)
        row = plots.Difference(label, d.value, d.low, d.high, WORDS[x.sign], n=d.n)
        panels.setdefault(printable(x.measure), []).append(row)
    data = {"panels": panels, "xlabel": "difference, 95% interval"}
    return Figure(name, "What was compared", "forest", data) if found else None


# ---- Sections -------------------------------------------------------------------------------


def many_samples_section(found: Sequence[Method]) -> Iterator[Block]:
    """What 16 samples of a prompt solve, before and after training."""
    shown = [m for m in found if m.plain and not np.isnan(m.values("pass@16")).any()]
    if not shown:
        return
    yield from narrowing_claim(shown)
    yield Text(
        "pass@16 is the chance that at least one of 16 samples is right, cons@16 the share of "
        "prompts whose most frequent answer is."
    )
    rows = [
        (
            m.task,
            m.label,
            str(len(m.summaries)),
            m.mean_text("pass@16", "initial"),
            m.text("pass@16"),
            gain.text(3, "+") if (gain := change(m, "pass@16")) else "",
            m.mean_text("cons@16", "initial"),
            m.mean_text("cons@16"),
        )
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
            yield curves(name, f"pass@4, cons@4 and entropy on {task}", panels)


def narrowing_claim(shown: Sequence[Method]) -> Iterator[Block]:
    """pass@16 of the methods of RL whose pass@1 rises."""
    found = [
        Compared("pass@16 after minus before", f"{display(m.algo)} on {m.task}", many)
        for m in shown
        if m.algo.removeprefix("trl-") in RL
        and (one := change(m, "pass@1"))
        and (many := change(m, "pass@16"))
        and one.low > 0
    ]
    if found:
        yield judged(
            "language-narrowing",
            "Reinforcement learning raises pass@1 and lowers pass@k for large k.",
            "Yue et al., 2025, arXiv 2504.13837",
            found,
            -1,
        )


def length_section(found: Sequence[Method]) -> Iterator[Block]:
    """How long right and wrong completions are."""
    rows = [
        (
            m.task,
            m.label,
            str(len(m.summaries)),
            m.mean_text("length_right", "initial", 1),
            m.mean_text("length_right", digits=1),
            m.mean_text("length_wrong", "initial", 1),
            m.text("length_wrong", digits=1),
            m.mean_text("truncated", "initial"),
            m.mean_text("truncated"),
        )
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
    sides = {"dynamic sampling": steps_and_curve(dynamic), "without it": steps_and_curve(plain)}
    (few, short), (many, long) = sides.values()
    last = int(min(few[:, -1].min(), many[:, -1].min()))  # gradient steps that all seeds have
    at_last = [
        np.array([np.interp(last, x, y) for x, y in zip(*side, strict=True)])
        for side in ((few, short), (many, long))
    ]
    total = dynamic.settings["total_samples"]
    by_steps = paired(by_seed(dynamic, at_last[0]), by_seed(plain, at_last[1]))
    by_samples = between(dynamic, plain, measure(name))
    if by_steps is None or by_samples is None:
        return
    where = f"{display(dynamic.algo)} on {dynamic.task}"
    panels = {
        "over gradient steps": {s: plots.mean_line(x.mean(0), y) for s, (x, y) in sides.items()},
        "over generated samples": {
            "dynamic sampling": dynamic.line(name),
            "without it": plain.line(name),
        },
    }
    label = f"{name} over gradient steps and over generated samples, {where}"
    axes: dict[str, Any] = {"xlabel": "", "ylabel": name, "columns": 2, "share_y": True}
    file = f"language-steps{f'-{k}' * bool(k)}"
    yield judged(
        file,
        f"With dynamic sampling {where} learns faster.",
        f"{DAPO}, sec. 3.2",
        [
            Compared(f"{name} with minus without", f"after {last:,} steps", by_steps),
            Compared(
                f"{name} with minus without", f"after {total:,} generated samples", by_samples
            ),
        ],
        1,
        [
            Text(
                "A step samples and learns. Dynamic sampling discards groups without a signal, and "
                "the samples that replace them count."
            )
        ],
        figure=curves(file, label, panels, **axes),
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
