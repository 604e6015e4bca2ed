"""Sections on language models: many samples per prompt, lengths, and steps beside samples.

folder: of the results; figures go into its plots/, tables into its tables/.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from manyseeds import plots, stats
from manyseeds.benchmarks.chapters.tables import table
from manyseeds.benchmarks.store.names import display
from manyseeds.benchmarks.store.results import Rows, escape, picture
from manyseeds.benchmarks.store.stored import file_name, left_out, read_table
from manyseeds.errors import printable
from manyseeds.stats import Floats

if TYPE_CHECKING:
    from manyseeds.benchmarks.chapters.language_models import Method

CAPTION = "mean over seeds, 95% interval"
MANY = (
    *("task", "method", "n", "pass@16 before", "after, mean [95%]", "gain, paired [95%]"),
    *("cons@16 before", "after"),
)
LENGTHS = (
    *("task", "method", "n", "right ones before", "after", "wrong ones before"),
    *("after, mean [95%]", "cut off before", "after"),
)
CURVES = ("pass@4", "cons@4", "entropy")


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


def many_samples_section(found: Sequence[Method], folder: Path) -> str:
    """What 16 samples of a prompt solve, before and after training."""
    shown = [m for m in found if m.plain and not np.isnan(m.values("pass@16")).any()]
    if not shown:
        return ""
    rows: Rows = []
    for m in shown:
        gain = change(m, "pass@16")
        rows.append(
            (
                escape(m.task),
                m.label,
                str(len(m.summaries)),
                m.mean_text("pass@16", "initial"),
                m.text("pass@16"),
                gain.text(3, "+") if gain else "",
                m.mean_text("cons@16", "initial"),
                m.mean_text("cons@16"),
            )
        )
    text = (
        f"{opposite_sentence(shown)}"
        "pass@16 is the chance that at least one of 16 samples is right, cons@16 the share of "
        "prompts whose most frequent answer is.\n\n"
        f"{table(folder, 'language-many-samples', MANY, rows)}\n"
    )
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
            path = folder / "plots" / f"language-{file_name(task)}-samples.svg"
            plots.lines(panels, path, xlabel="samples", ylabel="", legend=CAPTION)
            text += picture(f"pass@4, cons@4 and entropy on {task}", path)
    return text


def opposite_sentence(shown: Sequence[Method]) -> str:
    """Where pass@16 falls while pass@1 rises; '' where it nowhere does."""
    sentences = []
    for m in shown:
        many, one = change(m, "pass@16"), change(m, "pass@1")
        if many and one and many.high < 0 < one.low:
            before, after = (m.values("pass@16", when).mean() for when in ("initial", "final"))
            where = f"{escape(display(m.algo))} on {escape(m.task)}"
            ends = f"from {before:.3f} to {after:.3f}"
            sentences.append(f"With {where} pass@16 falls {ends} while pass@1 rises.")
    return f"**{' '.join(sentences)}** " if sentences else ""


def length_section(found: Sequence[Method], folder: Path) -> str:
    """How long right and wrong completions are."""
    shown = [m for m in found if m.plain and not np.isnan(m.values("length_wrong")).any()]
    if not shown:
        return ""
    rows: Rows = [
        (
            escape(m.task),
            m.label,
            str(len(m.summaries)),
            m.mean_text("length_right", "initial", 1),
            m.mean_text("length_right", digits=1),
            m.mean_text("length_wrong", "initial", 1),
            m.text("length_wrong", digits=1),
            m.mean_text("truncated", "initial"),
            m.mean_text("truncated"),
        )
        for m in shown
    ]
    return (
        "The table shows the mean number of tokens of right and of wrong completions of the "
        "held-out prompts, and the share of all completions that the limit truncated.\n\n"
        f"{table(folder, 'language-lengths', LENGTHS, rows)}\n"
    )


def steps_section(found: Sequence[Method], folder: Path) -> str:
    """Dynamic sampling over gradient steps and over generated samples."""
    pairs = [
        (m, other)
        for m in found
        for other in found
        if m.settings.get("dynamic_sampling") is True
        and other.settings == {**m.settings, "dynamic_sampling": False}
        and (m.algo, m.task) == (other.algo, other.task)
    ]
    text = ""
    for k, (dynamic, plain) in enumerate(pairs):
        with left_out(dynamic.run.path):
            text += compared_over_steps(dynamic, plain, folder, k)
    return text


def compared_over_steps(dynamic: Method, plain: Method, folder: Path, k: int) -> str:
    """Sentence and figure of one pair of runs that differ by dynamic sampling alone."""
    name = dynamic.headline
    sides = {"dynamic sampling": steps_and_curve(dynamic), "without it": steps_and_curve(plain)}
    (few, short), (many, long) = sides.values()
    last = int(min(few[:, -1].min(), many[:, -1].min()))  # gradient steps that all seeds have
    at_last = [
        np.array([np.interp(last, x, y) for x, y in zip(*side, strict=True)])
        for side in ((few, short), (many, long))
    ]
    by_steps = paired(by_seed(dynamic, at_last[0]), by_seed(plain, at_last[1]))
    by_samples = paired(*(by_seed(m, m.values(name)) for m in (dynamic, plain)))
    if by_steps is None or by_samples is None:
        return ""
    total = dynamic.settings["total_samples"]
    where = f"{escape(display(dynamic.algo))} on {escape(dynamic.task)}"
    path = folder / "plots" / f"language-steps{f'-{k}' * bool(k)}.svg"
    panels = {
        "over gradient steps": {s: plots.mean_line(x.mean(0), y) for s, (x, y) in sides.items()},
        "over generated samples": {
            "dynamic sampling": dynamic.line(name),
            "without it": plain.line(name),
        },
    }
    plots.lines(panels, path, xlabel="", ylabel=name, legend=CAPTION, columns=2, share_y=True)
    return (
        f"**After {last:,} steps of {where}, {escape(name)} with dynamic sampling is "
        f"{word(by_steps)} than without it ({by_steps.text(3, '+')}). After {total:,} generated "
        f"samples it is {word(by_samples)} ({by_samples.text(3, '+')}).** A step samples and "
        "learns. Dynamic sampling discards groups without a signal, and the samples that replace "
        "them count.\n\n"
        + picture(f"{name} over gradient steps and over generated samples, {where}", path)
    )


def word(difference: stats.Estimate) -> str:
    """`higher`, `lower`, or that the interval shows neither."""
    if difference.low > 0:
        return "higher"
    return "lower" if difference.high < 0 else "not shown to be higher or lower"


def steps_and_curve(m: Method) -> tuple[Floats, Floats]:
    """Steps of sampling and learning [S, K] at each evaluation, and the headline [S, K]."""
    samples, values = m.curve(m.headline)
    steps = []
    for part in m.parts:
        done = read_table(part / "metrics.parquet", ("samples",))["samples"].to_numpy()
        # An evaluation comes after the step that made it due.
        steps.append(np.interp(samples, [0, *done], range(len(done) + 1)))
    return np.array(steps), values
