"""The page on language models from folders and hubs: before and after training, cost, limits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from manyseeds import plots, stats
from manyseeds.benchmarks.chapters.blocks import (
    Block,
    Code,
    Inline,
    Item,
    Items,
    Outcome,
    Table,
    Text,
    folded_if_long,
    sections,
)
from manyseeds.benchmarks.chapters.language_measures import curves
from manyseeds.benchmarks.chapters.language_models import floors_of, provenance, written
from manyseeds.benchmarks.store.methods import Method
from manyseeds.benchmarks.store.names import display
from manyseeds.benchmarks.store.results import processor
from manyseeds.benchmarks.store.stored import left_out
from manyseeds.errors import printable
from manyseeds.evaluate import share
from manyseeds.llm_track.evaluation import FINAL_PROMPTS, FINAL_SAMPLES, TRANSCRIPTS
from manyseeds.llm_track.tasks import GENERATED
from manyseeds.record import plural

# What is known of a model, by the digest of its contents: a folder of its name may hold another.
MODELS = {
    "aac3780af6dd": (
        "SmolLM2-135M-Instruct",
        "from a package in which its weights were rounded to 4 bits",
    )
}
MANY = 0.1  # truncated before training: then the limit may decide the score
DRAWN = (*GENERATED, "examples/sums.py:Sums")  # tasks whose number of held-out prompts is known


def page(found: Sequence[Method]) -> Iterator[Block]:
    """The chapter; nothing without runs of such models."""
    others = [m for m in found if not m.made_here]
    shown = [m for m in others if m.headline == "pass@1" and not m.algo.startswith("trl-")]
    for m in shown:
        before, after = m.both("pass@1")
        yield Outcome(
            f"pass@1 of {name_of(m)} on {m.task} is {before} before {display(m.algo)} and {after} "
            f"after it, n = {m.n}."
        )
    for m in shown:
        with left_out(m.run.path):
            yield from truncation(m)
    yield from sections(
        {
            "Method": method_section(shown),
            "Scores": score_section(shown),
            "Transcripts": written("real-models-transcripts", shown, TRANSCRIPTS),
            "Cost": cost_section(shown),
            "Limits": limit_section(shown),
            "Provenance": provenance(others),
        }
    )


def truncation(m: Method) -> Iterator[Block]:
    """What the limit of the completions means for the gain, where it truncates many of them."""
    cut_off = CutOff(m)
    if cut_off.known and cut_off.of("truncated")[0].mean() > MANY:
        yield Text(
            f"{display(m.algo)} on {m.task}: {cut_off.text()} A truncated completion is scored by "
            "what there is of it, and may be wrong for that alone. So a gain can have two parts: "
            "more completions that end, and more right ones among these. Only the second shows "
            "that the task is solved better."
        )


def name_of(m: Method) -> str:
    """The name of the model if its contents are known, otherwise what --model named."""
    return MODELS.get(str(m.settings.get("model_content")), (m.model,))[0]


def named(m: Method) -> str:
    """`RLOO on gsm8k`, with what differs from the plain command."""
    return ", ".join(filter(None, (f"{display(m.algo)} on {m.task}", m.changed)))


def method_section(shown: Sequence[Method]) -> Iterator[Block]:
    """Which models, what an update learns from, and the command."""
    if not shown:
        return
    yield Text(
        "These runs begin with a model from a folder or a hub. The command is that of the first "
        "seed, and those of the others are under Provenance. ",
        Code("docs/your-own-model.md"),
        " says how to make the folder of the model, and how to check the first updates of a seed.",
    )
    items: list[Inline] = []
    known = (", ".join(MODELS.get(str(m.settings.get("model_content")), ())) for m in shown)
    for name, about in dict.fromkeys(zip((m.model for m in shown), known, strict=True)):
        items.append((Code(name), f": {about}" if about else ""))
    for m in shown:
        with left_out(m.run.path):
            said = f"{named(m)}: {learned_from(m.settings)}. "
            items.append((said, Code(m.configs[0]["command"])))
    yield Items(items)


def learned_from(settings: dict[str, Any]) -> str:
    """`all weights, 8 prompts with 8 completions each per update, of at most 32 tokens`"""
    rank = settings.get("lora_rank")
    parts = [f"adapters of rank {rank}" if rank else "all weights"]
    if {"prompts", "group_size"} <= settings.keys():
        prompts = plural(settings["prompts"], "prompt")
        parts.append(f"{prompts} with {settings['group_size']} completions each per update")
    if limit := settings.get("max_new_tokens"):
        parts.append(f"completions of at most {limit} tokens")
    return ", ".join(parts)


COLUMNS = (
    *("model", "task", "method", "n", "samples", "learning rate", "pass@1 before training"),
    *("pass@1 after training, mean [95%]", "gain, paired [95%]", "pass@16 before", "after"),
)


def score_section(shown: Sequence[Method]) -> Iterator[Block]:
    """Scores before and after training, and the curves."""
    if not shown:
        return
    yield Text(
        f"Scores are of held-out prompts, with {FINAL_SAMPLES} samples each at temperature 1. The "
        "evaluations before and after training use the same prompts and random numbers, and the "
        "gain is their difference. Evaluations during training use fewer samples."
    )
    rows = [
        (
            *(name_of(m), *m.named, f"{m.settings['total_samples']:,}"),
            *(str(m.settings.get("learning_rate", "")), *m.both("pass@1"), m.gain()),
            *m.means("pass@16"),
        )
        for m in shown
    ]
    yield folded_if_long("Scores", Table("real-models", COLUMNS, rows))
    panels: dict[str, dict[str, plots.Line]] = {}
    for m in shown:
        for name in ("pass@1", "length"):
            lines = panels.setdefault(printable(f"{name}, {name_of(m)} on {m.task}"), {})
            line = printable(", ".join(filter(None, (display(m.algo), m.changed))))
            lines[line] = m.line(name)
    label = "pass@1 and length of models from folders and hubs"
    yield curves("real-models", label, panels, floors=floors_of(panels), columns=2)


COST = ("model", "task", "method", "n", "minutes a seed", "of which learning", "on")


def cost_section(shown: Sequence[Method]) -> Iterator[Block]:
    """Minutes a seed, and the machines."""
    rows = [
        (name_of(m), *m.named, m.minutes("total"), m.minutes("learn"), machines(m))
        for m in shown
        if m.minutes("total")
    ]
    if rows:
        yield Text("Minutes are medians over seeds. What is not learning is evaluation.")
        yield folded_if_long("Cost", Table("real-models-cost", COST, rows))


def machines(m: Method) -> str:
    """`AMD EPYC, 2 cores, 1 thread`, of each machine that trained seeds."""
    each = (
        f"{x['machine'].get('gpu') or processor(x['machine'])}, "
        f"{plural(x['execution']['threads'], 'thread')}"
        for x in m.configs
    )
    return "; ".join(dict.fromkeys(each))


# ---- Limits --------------------------------------------------------------------------------

CUT_OFF = (
    *("model", "task", "method", "seed", "length before", "after", "cut off before", "after"),
    *("right before", "after", "right of those that end, before", "after"),
)


def limit_section(shown: Sequence[Method]) -> Iterator[Block]:
    """What the scores do not say: other prompts, other seeds, and answers that end in time."""
    items, rows = list[Item](), list[tuple[str, ...]]()
    for m in shown:
        with left_out(m.run.path):
            cut_off = CutOff(m)
            said = filter(None, (few_seeds(m), same_prompts(m), cut_off.text()))
            items.append(Item(named(m), Items([*said])))
            rows += cut_off.rows()
    if items:
        yield Items(items)
    if rows:
        yield Text(
            "The store does not say which right completions were cut off. The last two columns "
            "are bounds: the lower assumes that as many of the truncated completions as possible "
            "are right, the upper that none are."
        )
        yield folded_if_long("Cut off", Table("real-models-cut-off", CUT_OFF, rows))


def few_seeds(m: Method) -> str:
    """How many seeds there are, and what their intervals are worth."""
    return " ".join(filter(None, (f"{plural(int(m.n), 'seed')}.", stats.coverage_note([int(m.n)]))))


def same_prompts(m: Method) -> str:
    """How many prompts score all seeds. Of a data set, which any other task may be, the store does
    not say it."""
    sizes = "held-out prompts"
    if m.task in DRAWN:
        prompts = share(FINAL_PROMPTS, m.settings.get("eval_budget", 1.0))
        sizes = f"{plural(prompts, 'held-out prompt')} with {FINAL_SAMPLES} samples each"
    return f"All are scored on the same {sizes}, so the intervals say nothing about other prompts."


class CutOff:
    """Completions that the limit cuts off before and after training: shares of each seed, [S]."""

    def __init__(self, m: Method) -> None:
        self.m = m
        self.known = not any(np.isnan(x).any() for x in self.of("truncated"))

    def of(self, name: str) -> list[stats.Floats]:
        """A measure before and after training, [S] each."""
        return [self.m.values(name, when) for when in ("initial", "final")]

    def bounds(self) -> list[tuple[stats.Floats, stats.Floats]]:
        """Before and after training: the share of right ones among the completions that end, at
        least and at most, [S] each; NaN where none ends."""
        return [
            among_ended(right, cut)
            for right, cut in zip(self.of("pass@1"), self.of("truncated"), strict=True)
        ]

    def text(self) -> str:
        """What the training changed, and whether that is more than that answers end in time."""
        if not self.known:
            return ""
        limit = self.m.settings.get("max_new_tokens")
        where = f" at {limit} tokens" if limit else ""
        before, after = self.of("truncated")
        first, last = self.of("pass@1")
        gain = ""
        if after.max() < before.min() and last.mean() > first.mean():
            gain = ", so part of the gain may be that answers end in time"
        said = f"Before training {span(before)} of the completions are cut off{where}, afterwards "
        said += f"{span(after)}{gain}."
        (_, most), (least, _) = self.bounds()
        if np.isnan(most + least).any():
            return said
        more = f"{int((least > most).sum())} of {plural(len(least), 'seed')}"
        return (
            f"{said} Of the completions that end, at most {span(most)} are right before training, "
            f"and more than that afterwards in {more}, whatever was cut off."
        )

    def rows(self) -> list[tuple[str, ...]]:
        """A row for each seed."""
        if not self.known:
            return []
        columns = [
            *(texts(self.of("length"), 1) + texts(self.of("truncated"), 3)),
            *texts(self.of("pass@1"), 3),
            *([between(*x) for x in zip(*both, strict=True)] for both in self.bounds()),
        ]
        seeds = [str(config["seeds"][0]) for config in self.m.configs]
        where = (name_of(self.m), self.m.task, self.m.label)
        return [(*where, *row) for row in zip(seeds, *columns, strict=True)]


def among_ended(right: stats.Floats, cut: stats.Floats) -> tuple[stats.Floats, stats.Floats]:
    """The share of right ones among completions that are not cut off, at least and at most, [S].

    right, cut: shares of all completions. NaN where all are cut off.
    """
    ended = np.where(cut < 1, 1 - cut, np.nan)
    return np.clip(right - cut, 0, None) / ended, np.minimum(right, ended) / ended


def span(shares: stats.Floats) -> str:
    """`67.8%`, or `1.2% to 15.9%` of seeds that differ."""
    ends = dict.fromkeys(f"{x:.1%}" for x in (shares.min(), shares.max()))
    return " to ".join(ends)


def between(least: float, most: float) -> str:
    """`0.233 to 0.273`; empty without numbers."""
    return "" if np.isnan(least) else f"{least:.3f} to {most:.3f}"


def texts(measure: Sequence[stats.Floats], digits: int) -> list[list[str]]:
    """A measure before and after training, as cells of each seed."""
    return [[f"{x:.{digits}f}" for x in values] for values in measure]
