"""The report's page on what the language papers claim: an experiment, a figure, a sentence each.

The runs are those of the suite `language-models`; an experiment without its runs has no section.
folder: of the results; figures go into its plots/, tables into its tables/.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from manyseeds import plots, stats
from manyseeds.benchmarks.chapters.language_measures import CAPTION, by_seed, change, paired, word
from manyseeds.benchmarks.chapters.language_models import Method
from manyseeds.benchmarks.chapters.tables import table
from manyseeds.benchmarks.experiments.suite import (
    CLIP_HIGHER,
    EQUAL,
    LONG,
    R1_ZERO,
    RLHF,
    WITHOUT_KL,
)
from manyseeds.benchmarks.store.names import display
from manyseeds.benchmarks.store.results import Rows, command_text, escape, picture
from manyseeds.benchmarks.store.stored import find_file, read_table, section_of
from manyseeds.stats import Floats
from manyseeds.untrusted import NAME, ORIGIN

SOLVED = 0.7  # accuracy of the training samples that R1-Zero is to reach
WITHIN = 12_800  # samples
EARLY = 0.1  # of the training

Section = Callable[[Sequence[Method], Path], str]


def page(found: Sequence[Method], folder: Path) -> str:
    """The whole page; '' without any of its runs."""
    text = ""
    for title, section in SECTIONS.items():
        if content := section(found, folder):
            text += f"## {title}\n\n{content}"
    return text


def excerpt(page: str) -> str:
    """The outcome of each experiment from the page, as a list for llm_track/README.md."""
    parts = []
    for section in f"\n{page}".split("\n## ")[1:]:
        title, _, content = section.partition("\n")
        if said := " ".join(re.findall(r"^\*\*(.+?)\*\*", content, re.MULTILINE)):
            parts.append(f"- **{title}.** {said}")
    return "\n".join(parts)


# ---- Reading runs --------------------------------------------------------------------------


def run_of(
    found: Sequence[Method], algo: str, task: str, settings: Mapping[str, Any]
) -> Method | None:
    """The run that differs from its plain command by these settings alone."""
    for m in found:
        if (m.algo, m.task) == (algo, task) and m.settings == {**plain_of(m), **settings}:
            return m
    return None


def plain_of(m: Method) -> dict[str, Any]:
    """The settings of the plain command."""
    return m.plain_settings or {}


def metric(m: Method, name: str, share: float = 1.0) -> Floats:
    """The mean of a metric over the first share of each seed's training, [S]."""
    found = []
    for part in m.parts:
        rows = read_table(part / "metrics.parquet", ("samples", name))
        first = rows["samples"] <= share * rows["samples"].max()
        found.append(rows.loc[first, name].mean())
    return np.array(found)


def metric_at_points(m: Method, name: str) -> Floats:
    """A metric of the training samples at each evaluation, [S, K]: its mean since the one before.

    At the first evaluation, that of the first step, whose samples are the initial model's.
    """
    points, _ = m.curve(m.headline)
    found = []
    for part in m.parts:
        rows = read_table(part / "metrics.parquet", ("samples", name))
        x, y = rows["samples"].to_numpy(), rows[name].to_numpy()
        means = [y[0]]
        for before, after in itertools.pairwise(points):
            inside = (x > before) & (x <= after)
            means.append(y[inside].mean() if inside.any() else np.nan)
        found.append(means)
    return np.array(found)


def both(m: Method, name: str, digits: int = 3) -> tuple[str, str]:
    """A measure before the training, and after it with its interval."""
    return m.mean_text(name, "initial", digits), m.text(name, digits=digits)


def bold(sentences: Sequence[str]) -> str:
    """The outcome of an experiment in bold; '' without any. sentences: without their full stops."""
    return f"**{' '.join(f'{x[:1].upper()}{x[1:]}.' for x in sentences)}** " if sentences else ""


# ---- R1-Zero -------------------------------------------------------------------------------

ZERO_COLUMNS = (
    *("base", "method", "n", "pass@1 before", "after, mean [95%]", "pass@16 before"),
    *("after", "cons@16 before", "after", "format before", "after", "length before", "after"),
    f"seeds with accuracy above {SOLVED} within {WITHIN:,} samples",
)


def solved_early(m: Method) -> int:
    """Seeds whose accuracy on training samples exceeds SOLVED within WITHIN samples."""
    count = 0
    for part in m.parts:
        rows = read_table(part / "metrics.parquet", ("samples", "accuracy"))
        count += bool((rows.loc[rows["samples"] <= WITHIN, "accuracy"] > SOLVED).any())
    return count


def zero_section(found: Sequence[Method], folder: Path) -> str:
    """RL from a base model, without SFT."""
    pairs = [(x, run_of(found, algo, "addition", x)) for algo, x in R1_ZERO]
    shown = [(settings["model"], m) for settings, m in pairs if m]
    if not shown:
        return ""
    rows: Rows = []
    for base, m in shown:
        before_after: list[str] = []
        for name, digits in (("pass@16", 3), ("cons@16", 3), ("format", 3), ("length", 1)):
            before_after += [m.mean_text(name, w, digits) for w in ("initial", "final")]
        n = len(m.summaries)
        early = f"{solved_early(m)} of {n}"
        rows.append((escape(base), m.label, str(n), *both(m, "pass@1"), *before_after, early))
    panels = {
        title: {f"{display(m.algo)} from {base}": m.line(name) for base, m in shown}
        for name, title in (("pass@1", "pass@1"), ("length", "length, tokens"))
    }
    path = folder / "plots" / "language-zero.svg"
    floors = {"length, tokens": 0.0}
    plots.lines(panels, path, xlabel="samples", ylabel="", legend=CAPTION, columns=2, floors=floors)
    return (
        f"{bold(zero_sentences(shown))}DeepSeek-R1-Zero (arXiv 2501.12948, sec. 2.2) learns from "
        "rules alone, without SFT.\n\n"
        + table(folder, "language-zero", ZERO_COLUMNS, rows)
        + "\n"
        + picture("pass@1 and length of R1-Zero", path)
    )


def zero_sentences(runs: Iterable[tuple[str, Method]]) -> list[str]:
    """pass@16 of each base, and what each method makes of its pass@1."""
    sentences: dict[str, None] = {}  # once each
    for base, m in runs:
        many, (before, after) = m.mean_text("pass@16", "initial"), both(m, "pass@1")
        sentences[f"the base {escape(base)} has a pass@16 of {many}"] = None
        name = f"{escape(display(m.algo))} from {escape(base)}"
        sentences[f"{name} takes pass@1 from {before} to {after}"] = None
        count = f"{solved_early(m)} of {len(m.summaries)} seeds of {name}"
        sentences[f"{count} exceed {SOLVED} within {WITHIN:,} samples"] = None
    return list(sentences)


# ---- Over-optimisation ---------------------------------------------------------------------

RLHF_COLUMNS = (
    *("method", "reward", "n", "learned reward before", "after, mean [95%]"),
    *("pass@1 before", "after, mean [95%]", "over the training", "KL, nats per token"),
)


def reward_name(settings: Mapping[str, Any]) -> str:
    """What a run of the RLHF chain is rewarded by."""
    name = "learned" if settings.get("rules") is False else "learned and rules"
    if "kl_coef" in settings:
        name += f", beta {settings['kl_coef']:g}"
    if settings.get("iterations", 1) > 1:
        name += f", refreshed in {settings['iterations']} iterations"
    return name


def turn_text(runs: Sequence[Method]) -> list[str]:
    """Between which KLs the gain in accuracy becomes a loss, among runs that differ in their KL.

    [] unless the KL of every run with a gain is smaller than that of every run with a loss.
    """
    moved = [m for m in runs if np.isfinite(m.values("kl")).all()]
    gains = [(m.values("kl").mean(), change(m, "pass@1")) for m in moved]
    higher = [kl for kl, gain in gains if gain and gain.low > 0]
    lower = [kl for kl, gain in gains if gain and gain.high < 0]
    if not higher or not lower or max(higher) >= min(lower):
        return []
    between = f"{max(higher):.3f} and {min(lower):.3f}"
    return [
        "as the weight of the KL falls, pass@1 turns from a gain to a loss between a KL of "
        f"{between} nats per token"
    ]


def distance(m: Method) -> Floats:
    """The square root of the mean KL to the initial model at each evaluation, [K]."""
    # The KL is sampled: where the models are the same it can be below 0.
    return np.sqrt(np.maximum(m.curve("kl")[1].mean(0), 0))


def refreshed_text(runs: Iterable[Method]) -> list[str]:
    """Whether iterations of GRPO, which renew the reward model and the reference, delay the loss of
    accuracy; [] without both runs."""
    run = {m.settings["iterations"] > 1: m for m in runs}
    if len(run) < 2:
        return []
    means = (by_seed(run[x], run[x].curve("pass@1")[1].mean(1)) for x in (True, False))
    if (difference := paired(*means)) is None:
        return []
    if difference.low > 0:
        delays = "delays"
    else:
        delays = "does not delay" if difference.high < 0 else "is not shown to delay"
    return [
        f"renewing the reward model and the reference {delays} the loss",
        "averaged over the training, pass@1 with renewal is "
        f"{word(difference)} than without it ({difference.text(3, '+')})",
    ]


def rlhf_section(found: Sequence[Method], folder: Path) -> str:
    """The learned reward and the true accuracy over the KL."""
    pairs = [(reward_name(x), run_of(found, algo, "addition", x)) for algo, x in RLHF]
    shown = [(name, m) for name, m in pairs if m]
    if not shown:
        return ""
    rows: Rows = []
    rewards: dict[str, plots.Line] = {}
    scores: dict[str, plots.Line] = {}
    said = []
    for name, m in shown:
        reward = metric_at_points(m, "reward")
        x, score = distance(m), m.curve("pass@1")[1]
        line = f"{display(m.algo)}: {name}"
        rewards[line], scores[line] = plots.mean_line(x, reward), plots.mean_line(x, score)
        after = stats.estimate(reward[:, -1], "mean").text(2)
        rows.append(
            (
                m.label, name, str(len(m.summaries)), f"{reward[:, 0].mean():.2f}", after,
                *both(m, "pass@1"), f"{score.mean():.3f}", m.mean_text("kl"),
            )
        )  # fmt: skip
        gain = change(m, "pass@1")
        if gain is not None and "rules" not in name:
            run = f"{escape(display(m.algo))} ({name})"
            ends = f"{reward[:, 0].mean():.2f} to {reward[:, -1].mean():.2f}"
            said += [
                f"{run} takes the learned reward from {ends}",
                f"pass@1 is {word(gain)} after {run} than before it ({gain.text(3, '+')})",
            ]
    alone = [m for name, m in shown if m.algo == "rlhf_ppo" and "rules" not in name]
    said = [*turn_text(alone), *said, *refreshed_text(m for _, m in shown if m.algo == "grpo")]
    panels = {"learned reward": rewards, "pass@1": scores}
    path = folder / "plots" / "language-overoptimisation.svg"
    xlabel = "√KL to the initial model, KL in nats per token"
    plots.lines(panels, path, xlabel=xlabel, ylabel="", legend=CAPTION, columns=2)
    return (
        f"{bold(said)}Every seed has its own reward model, trained by `reward_model.py` with its "
        "defaults. The reward shown is the mean reward of the training samples since the previous "
        "evaluation. It includes the rewards for format and by rules where there are any, and PPO "
        "subtracts 1 for a truncated completion. The curves are over the square root of the KL, as "
        "those of Gao et al. (arXiv 2210.10760), whose KL is of whole answers. Iterations renew "
        "the reward model, whose reward is shown, together with the reference of the KL penalty, "
        "first after a quarter of the training.\n\n"
        + table(folder, "language-overoptimisation", RLHF_COLUMNS, rows)
        + "\n"
        + picture("Learned reward and pass@1 over the square root of the KL", path)
    )


# ---- The R1 pipeline -----------------------------------------------------------------------

PIPELINE: dict[str, Any] = {  # llm_pipeline.json
    **ORIGIN,
    "settings": {"task": NAME, "rl_samples": int, "prompts": int, "sft_samples": int},
    "rows": [
        {"seed": int, "stage": NAME, "samples": int}
        | dict.fromkeys(("pass@1", "pass@16", "cons@16", "format", "length"), float)
    ],
}
PIPELINE_COLUMNS = (
    *("stage", "n", "samples learned from", "pass@1, mean [95%]", "pass@16, mean [95%]"),
    *("cons@16", "format", "length"),
)


def pipeline_section(found: Sequence[Method], folder: Path) -> str:
    """The stages of DeepSeek-R1, and distillation against RL."""
    path = find_file(folder, "llm_pipeline.json")
    return section_of(path, PIPELINE, partial(pipeline_text, folder=folder))


def pipeline_text(stored: dict[str, Any], folder: Path) -> str:
    """The table of llm_pipeline.json, and its sentence."""
    rows: Rows = []
    values: dict[str, dict[str, dict[int, float]]] = {}
    for stage in dict.fromkeys(row["stage"] for row in stored["rows"]):
        here = [row for row in stored["rows"] if row["stage"] == stage]
        names = ("pass@1", "pass@16", "cons@16", "format", "length")
        of = {name: np.array([row[name] for row in here]) for name in names}
        seeds = [row["seed"] for row in here]
        values[stage] = {name: dict(zip(seeds, x.tolist(), strict=True)) for name, x in of.items()}
        cells = [stats.estimate(of[name], "mean").text(3) for name in names[:2]]
        cells += [f"{of[name].mean():.{d}f}" for name, d in zip(names[2:], (3, 3, 1), strict=True)]
        samples = f"{np.mean([row['samples'] for row in here]):,.0f}"
        rows.append((escape(stage), str(len(here)), samples, *cells))
    settings = stored["settings"]
    return (
        f"{pipeline_sentence(values)}The stages of DeepSeek-R1 (arXiv 2501.12948v1, sec. 2.3), on "
        f"{escape(settings['task'])}, are compared with RL twice as long, which has the samples of "
        "both stages of RL, and with RL on the small base model (sec. 4.1). Rejection SFT and "
        "distillation learn, in several passes, from one right sample of each of "
        f"{settings['prompts']:,} prompts that the model after RL solves in four attempts. The "
        "samples column counts neither these attempts nor the training of that model.\n\n"
        f"{table(folder, 'language-pipeline', PIPELINE_COLUMNS, rows)}\n"
        + command_text(stored, stored["machine"]["cpu"])
        + "\n\n"
    )


def pipeline_sentence(values: Mapping[str, Mapping[str, Mapping[int, float]]]) -> str:
    """RL again against RL twice as long, and distillation against RL on the small base."""
    said = []
    for a, b, name in (
        ("RL again", "RL twice as long", "pass@1"),
        ("RL again", "RL twice as long", "pass@16"),
        ("distillation", "RL on small base", "pass@1"),
        ("distillation", "RL on small base", "pass@16"),
    ):
        if a in values and b in values and (gain := paired(values[a][name], values[b][name])):
            said.append(f"{name} is {word(gain)} after {a} than after {b} ({gain.text(3, '+')})")
    return bold(said)


# ---- Clip-higher ---------------------------------------------------------------------------

CLIP_COLUMNS = (
    *("upper clip", "n", "clipped above", "clipped below", "entropy before", "after, mean [95%]"),
    *("pass@1, mean [95%]", "pass@16 before", "after, mean [95%]"),
)


def clip_section(found: Sequence[Method], folder: Path) -> str:
    """What a larger upper clip range does where the clip acts."""
    pairs = [(x["clip_range_high"], run_of(found, "dapo", "countdown", x)) for x in CLIP_HIGHER]
    shown = [(high, m) for high, m in pairs if m]
    if len(shown) < 2:
        return ""
    rows: Rows = []
    for high, m in shown:
        acts = (f"{metric(m, name).mean():.2%}" for name in ("clip_high", "clip_low"))
        n = str(len(m.summaries))
        rows.append(
            (f"{high:g}", n, *acts, *both(m, "entropy"), m.text("pass@1"), *both(m, "pass@16"))
        )
    (low, plain), *others = shown
    said = []
    for high, m in others:
        for name in ("entropy", "pass@16"):
            gain = paired(*(by_seed(run, run.values(name)) for run in (m, plain)))
            if gain is None:
                continue
            said.append(
                f"{name} with an upper clip of {high:g} is {word(gain)} than with {low:g} "
                f"({gain.text(3, '+')})"
            )
    panels = {
        name: {f"upper clip {high:g}": m.line(name) for high, m in shown}
        for name in ("entropy", "pass@16")
    }
    path = folder / "plots" / "language-clip-higher.svg"
    plots.lines(panels, path, xlabel="samples", ylabel="", legend=CAPTION, columns=2)
    return (
        f"{bold(said)}DAPO (arXiv 2503.14476, sec. 3.1) raises the upper clip range "
        "to keep the entropy up. Clipped shares are of the trained tokens whose gradient the clip "
        "removes. Dynamic sampling is off.\n\n"
        + table(folder, "language-clip-higher", CLIP_COLUMNS, rows)
        + "\n"
        + picture("Entropy and pass@16 by the upper clip range", path)
    )


# ---- Length --------------------------------------------------------------------------------

LENGTH_COLUMNS = (
    *("method", "changed", "n", "pass@1, mean [95%]", "right ones before", "after"),
    *("wrong ones before", "after", "wrong minus right, mean [95%]", "cut off before", "after"),
    f"length of samples, first {EARLY:.0%} of the training",
)
NO_KL = "without a KL"
CHANGED = ("none of the three", "token-level loss", "overlong filtering", "soft punishment")


def length_section(found: Sequence[Method], folder: Path) -> str:
    """Lengths where the task leaves them free, under GRPO, Dr. GRPO and parts of DAPO."""
    free: tuple[tuple[str, dict[str, Any], str], ...] = (
        ("grpo", {}, ""),
        ("grpo", WITHOUT_KL, NO_KL),
        ("dr_grpo", {}, ""),
    )
    shown = [
        (f"{display(algo)} {changed}".strip(), changed, m)
        for algo, settings, changed in free
        if (m := run_of(found, algo, "rambling", settings))
    ]
    parts = [
        (display("dapo"), name, m)
        for name, settings in zip(CHANGED, LONG, strict=True)
        if (m := run_of(found, "dapo", "rambling", settings))
    ]
    rows: Rows = [length_row(m, changed) for _, changed, m in (*shown, *parts)]
    if not rows:
        return ""
    said = bias_sentences({name: m for name, _, m in shown})
    said += part_sentences([(name, m) for _, name, m in parts])
    text = (
        f"{bold(said)}Excess length is how many tokens wrong completions are longer than right "
        "ones. In `rambling` the thinking of the demonstrations has random filler, so that length "
        "is free. GRPO has a KL to the initial model, which favours its lengths. Dr. GRPO has "
        "none. The runs of DAPO have completions of at most 36 tokens, a symmetric clip and no "
        "dynamic sampling, with each of its other parts alone.\n\n"
        f"{table(folder, 'language-free-length', LENGTH_COLUMNS, rows)}\n"
    )
    if shown:
        panels = {
            title: {name: m.line(measure) for name, _, m in shown}
            for measure, title in (
                ("length_right", "right ones, tokens"),
                ("length_wrong", "wrong ones, tokens"),
            )
        }
        path = folder / "plots" / "language-free-length.svg"
        axes: dict[str, Any] = {"xlabel": "samples", "ylabel": "", "legend": CAPTION}
        plots.lines(panels, path, columns=2, floors=dict.fromkeys(panels, 0.0), **axes)
        text += picture("Lengths of right and of wrong completions of rambling", path)
    return text


def bias_sentences(runs: Mapping[str, Method]) -> list[str]:
    """By how much wrong completions are longer than right ones, for each pair of runs."""
    said = []
    for (name, m), (other, n) in itertools.combinations(runs.items(), 2):
        extra = (by_seed(x, x.values("length_wrong") - x.values("length_right")) for x in (m, n))
        if difference := paired(*extra):
            said.append(
                f"the excess length of wrong completions is {word(difference)} after {name} than "
                f"after {other} ({difference.text(1, '+')} tokens)"
            )
    return said


def part_sentences(parts: Sequence[tuple[str, Method]]) -> list[str]:
    """What each part of DAPO changes against the run without any of them."""
    plain = next((m for name, m in parts if name == CHANGED[0]), None)
    said = []
    for name, m in parts:
        if plain is None or m is plain:
            continue
        one = paired(*(by_seed(run, run.values("pass@1")) for run in (m, plain)))
        early = paired(*(by_seed(run, metric(run, "length", EARLY)) for run in (m, plain)))
        if one and early:
            said += [
                f"in the first {EARLY:.0%} of the training, the length of completions with {name} "
                f"alone is {word(early)} than with {CHANGED[0]} ({early.text(2, '+')} tokens)",
                f"pass@1 after training with {name} alone is {word(one)} than with {CHANGED[0]} "
                f"({one.text(3, '+')})",
            ]
    return said


def length_row(m: Method, changed: str) -> tuple[str, ...]:
    """A row of the table of lengths."""
    extra = m.values("length_wrong") - m.values("length_right")
    apart = "" if np.isnan(extra).any() else stats.estimate(extra, "mean").text(1, "+")
    cells = [
        m.mean_text(name, when, 1)
        for name in ("length_right", "length_wrong")
        for when in ("initial", "final")
    ]
    cut = (m.mean_text("truncated", when) for when in ("initial", "final"))
    early = f"{metric(m, 'length', EARLY).mean():.2f}"
    return (m.label, changed, str(len(m.summaries)), m.text("pass@1"), *cells, apart, *cut, early)


# ---- Self-correction -----------------------------------------------------------------------

WAITS = {
    "wait": "P(wait)",
    "wait_if_wrong": "P(wait | wrong column)",
    "wait_if_right": "P(wait | right column)",
    "right_after_wait": "P(right column | wait after a wrong one)",
}


def correction_section(found: Sequence[Method], folder: Path) -> str:
    """How often a model corrects a column, before, during and after RL."""
    m = run_of(found, "grpo", "checking", {})
    if m is None:
        return ""
    rows: Rows = []
    said = []
    for name, title in WAITS.items():
        gain = change(m, name)
        cells = both(m, name)
        rows.append((title.replace("|", "\\|"), *cells, gain.text(3, "+") if gain else ""))
        if gain is not None:
            said.append(
                f"{title.replace('|', 'given')} is {word(gain)} after RL than before it, when it "
                f"was {cells[0]} ({gain.text(3, '+')})"
            )
    panels = {
        title: {display("grpo"): m.line(name)} for name, title in WAITS.items() if m.has(name)
    }
    path = folder / "plots" / "language-correction.svg"
    axes: dict[str, Any] = {"xlabel": "samples", "ylabel": "", "legend": CAPTION}
    figure = ""
    if panels:
        plots.lines(panels, path, columns=2, floors=dict.fromkeys(panels, 0.0), **axes)
        figure = picture("Self-correction over the training", path)
    columns = ("", "before", "after, mean [95%]", "gain, paired [95%]")
    if (m.values("wait", "initial") > 0).all():
        said = ["The model writes `wait` before any RL, as its demonstrations do", *said]
    return (
        f"{bold(said)}In `checking` a quarter of the demonstrations' columns are first written "
        "wrong, followed by `wait;` and the right column. P(wait) refers to a whole "
        "completion.\n\n" + table(folder, "language-correction", columns, rows) + "\n" + figure
    )


# ---- PPO and GRPO at equal settings --------------------------------------------------------

EQUAL_COLUMNS = ("method", "passes", "prompts per step", "n", "pass@1, mean [95%]", "KL")


def equal_section(found: Sequence[Method], folder: Path) -> str:
    """PPO with its own settings and with GRPO's, beside GRPO."""
    wanted: tuple[tuple[str, dict[str, Any]], ...]
    wanted = (("rlhf_ppo", EQUAL), ("rlhf_ppo", {}), ("grpo", {}))
    shown = [m for algo, x in wanted if (m := run_of(found, algo, "addition", x))]
    if len(shown) < 3:
        return ""
    rows: Rows = [
        (
            m.label, str(m.settings["epochs"]), str(m.settings["prompts"]), str(len(m.summaries)),
            m.text("pass@1"), m.mean_text("kl"),
        )
        for m in shown
    ]  # fmt: skip
    equal, _, grpo = shown
    gain = paired(*(by_seed(m, m.values("pass@1")) for m in (equal, grpo)))
    said = []
    if gain:
        said = [
            f"With GRPO's prompts, passes and weight of the KL, pass@1 of PPO is {word(gain)} than "
            f"that of GRPO ({gain.text(3, '+')}, {gain.n} seeds)"
        ]
    return (
        f"{bold(said)}PPO's own preset makes two passes over 256 prompts with a sample each. GRPO "
        "makes one pass over 32 prompts with eight samples each. PPO subtracts the KL from the "
        "reward, and 1 for a truncated completion. GRPO adds the KL to the loss.\n\n"
        + table(folder, "language-equal", EQUAL_COLUMNS, rows)
        + "\n"
    )


SECTIONS: dict[str, Section] = {
    "R1-Zero: reinforcement learning without SFT": zero_section,
    "A learned reward is over-optimised": rlhf_section,
    "The stages of DeepSeek-R1": pipeline_section,
    "Clip-higher and entropy": clip_section,
    "Length": length_section,
    "Self-correction": correction_section,
    "PPO and GRPO with equal settings": equal_section,
}
