"""The report's page on the LLM track: final scores, parity with TRL, length, speed, cost."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from manyseeds import stats
from manyseeds.benchmarks.chapters.blocks import (
    Block,
    Claim,
    Code,
    Fold,
    Inline,
    Items,
    Link,
    Table,
    Text,
    folded_if_long,
    sections,
)
from manyseeds.benchmarks.chapters.differences import corrected
from manyseeds.benchmarks.chapters.language_measures import (
    SIDE_RULE,
    between,
    curves,
    gain_text,
    length_section,
    many_samples_section,
    measure,
    steps_section,
)
from manyseeds.benchmarks.chapters.origins import command_text, folded_origins, origins
from manyseeds.benchmarks.experiments.suite import OWN
from manyseeds.benchmarks.experiments.verdicts import MARGIN
from manyseeds.benchmarks.measurements import llm_critic_cost, trl_speed
from manyseeds.benchmarks.measurements.measure import cost_cells
from manyseeds.benchmarks.store.methods import (
    ORDER,
    PAIRED,
    Method,
    by_seed,
    common,
    verdict_against,
)
from manyseeds.benchmarks.store.names import display
from manyseeds.benchmarks.store.results import differences, settings_text
from manyseeds.benchmarks.store.stored import file_name, find_file, left_out, section_of
from manyseeds.errors import printable
from manyseeds.record import plural
from manyseeds.runs.stale import measurement_is_stale
from manyseeds.stats import Parity

TARGETS = {"addition": 0.8}  # pass@1 to which samples are counted


def page(found: Sequence[Method], results: Path) -> Iterator[Block]:
    """The chapter on language models; nothing without runs."""
    if not found:
        return
    blocks = corrected(
        sections(
            {
                "Scores before and after training": score_section(found),
                "Many samples per prompt": many_samples_section(found),
                "Lengths of right and wrong completions": length_section(found),
                "Dynamic sampling, over steps and over samples": steps_section(found),
                "The reward model": reward_section(found),
                "Ablations": ablation_section(found),
                "Against TRL": trl_section(found, results),
                "Cost of the critic of a language model": critic_section(found, results),
                "Transcripts": transcript_section(found),
                "Provenance": provenance_section(found),
            }
        )
    )
    if any(isinstance(block, Claim) for block in blocks):
        yield Text(f"Claims are about the side of 0 on which differences lie. {SIDE_RULE}")
    yield from blocks


COLUMNS = (
    *("task", "method", "n", "pass@1 before training", "pass@1 after training, mean [95%]"),
    *("gain, paired [95%]", "greedy", "cons@16", "format", "length"),
    *("samples", "samples to 0.8, median of the seeds that got there (how many)"),
)


def score_section(found: Sequence[Method]) -> Iterator[Block]:
    """All runs with the scripts' own settings, and their curves."""
    shown = [m for m in found if m.plain and m.headline == "pass@1"]
    if not shown:
        return
    yield Text(
        "Scores are of held-out prompts with 16 samples each at temperature 1. SFT starts from a "
        "base model, and every other method from a model after SFT. Samples are completions "
        "generated for training, including discarded ones. Those of SFT are demonstrations. The "
        "evaluations before and after training use the same prompts and random numbers, and the "
        "gain is their difference."
    )
    length, first = "length, tokens", [*map(display, ORDER)]
    for task in dict.fromkeys(m.task for m in shown):
        here = [m for m in shown if m.task == task and m.algo in ORDER and m.algo != "sft"]
        panels = {
            title: {display(m.algo): m.line(name) for m in here}
            for name, title in (("pass@1", f"pass@1, {printable(task)}"), ("length", length))
        }
        if here:
            name, label = f"language-{file_name(task)}", f"pass@1 and length on {task}"
            yield curves(name, label, panels, floors={length: 0.0}, first=first)
    rows = [
        (
            *(*m.named, *m.both("pass@1"), m.gain()),
            *(m.mean_text(name) for name in ("greedy", "cons@16", "format")),
            m.mean_text("length", digits=1),
            f"{m.settings['total_samples']:,}",
            # SFT samples nothing.
            m.reached(target)
            if (target := TARGETS.get(m.task)) and m.algo.removeprefix("trl-") != "sft"
            else "",
        )
        for m in shown
    ]
    yield folded_if_long("Scores", Table("language-scores", COLUMNS, rows))
    alone = []
    for algo in ORDER:  # llm_track/README.md shows these
        panels = {
            f"{name}, {printable(m.task)}": {display(algo): m.line(name)}
            for m in shown
            if m.algo == algo
            for name in ("pass@1", "length")
        }
        if panels:
            label = f"pass@1 and length of {display(algo)}"
            look: dict[str, Any] = {"floors": floors_of(panels), "columns": 2, "first": first}
            alone.append(curves(f"language-{algo}", label, panels, **look))
    if alone:
        yield Fold("Each method on all of its tasks", alone)


def floors_of(panels: Iterable[str]) -> dict[str, float]:
    """Lengths are drawn from 0 on: the floor of each panel of them, by its title."""
    return dict.fromkeys((title for title in panels if title.startswith("length")), 0.0)


def reward_section(found: Sequence[Method]) -> Iterator[Block]:
    """How well reward models rank held-out pairs, and their curves."""
    shown = [m for m in found if m.plain and m.algo == "reward_model"]
    if not shown:
        return
    yield Text(
        "A pair is a right and a wrong completion of a held-out prompt by the SFT model. Before "
        "training the head is 0, so that every pair is a tie and the loss is log 2."
    )
    names = ("accuracy", "margin", "loss")
    rows = [(*m.named, *map(m.text, names)) for m in shown]
    columns = ("task", "method", "n", "accuracy on pairs, mean [95%]", "margin", "loss")
    yield Table("language-reward-model", columns, rows)
    panels = {
        f"{name}, {printable(m.task)}": {display(m.algo): m.line(name)}
        for m in shown
        for name in ("accuracy", "loss")
    }
    label = "Held-out accuracy and loss of the reward model"
    first = [*map(display, ORDER)]
    yield curves("language-reward_model", label, panels, first=first)


ABLATION_COLUMNS = (
    *("task", "method", "changed", "n", "pass@1 before training"),
    *("pass@1 after training, mean [95%]", "against the plain run, paired [95%]"),
    *("format", "length", "entropy"),
)


def ablation_section(found: Sequence[Method]) -> Iterator[Block]:
    """Our runs with other settings than a method's plain command, compared with the plain run."""
    rows: dict[Method, tuple[str, ...]] = {}
    for m in found:
        own = {x: m.settings[x] for x in OWN if m.settings.get(x)}
        plain = next((p for p in found if p.is_run_of(m.algo, m.task, own)), m)
        if m is plain or m.algo.startswith("trl-") or m.of_experiment:
            continue
        if {m.headline, plain.headline} != {"pass@1"}:
            continue
        rows.setdefault(plain, ablation_row(plain, plain.changed, ""))
        gain = gain_text(between(m, plain, measure("pass@1")))
        rows[m] = ablation_row(m, differences(m.settings, plain.settings), gain)
    if rows:
        yield Text(
            "All other settings are those of the plain command, whose row is above, with or "
            "without an initial model per seed. Differences are paired over the seeds that both "
            "runs have with the same initial model."
        )
        table = Table("language-ablations", ABLATION_COLUMNS, [*rows.values()])
        yield folded_if_long("Ablations", table)


def ablation_row(m: Method, changed: str, difference: str) -> tuple[str, ...]:
    """A row of the table of ablations."""
    others = m.mean_text("format"), m.mean_text("length", digits=1), m.mean_text("entropy")
    return (m.task, m.label, changed, m.n, *m.both("pass@1"), difference, *others)


def trl_outcome(found: Sequence[tuple[str, Parity | None]]) -> Iterator[Block]:
    """For which methods TRL is shown to be better, and for which by a large margin is excluded."""
    judged = [(name, x) for name, x in found if x]
    if not judged:
        return
    # Saturated sides have no interval that could exclude anything.
    clear = [(n, x.word != "saturated" and x.difference.low >= -MARGIN) for n, x in judged]
    excluded = [name for name, excludes in clear if excludes] or ["no method"]
    said = {
        "Shown to be worse than TRL": [name for name, x in judged if x.word == "worse"]
        or ["no method"],
        f"A score lower than TRL's by more than {MARGIN} is excluded": excluded,
        "It is not excluded": [name for name, excludes in clear if not excludes],
        "No verdict": [name for name, x in found if not x],
    }
    yield Items([f"{title}: {', '.join(names)}" for title, names in said.items() if names])
    yield Text(f"Equivalence requires {stats.EQUIVALENCE_SEEDS} seeds per side.")


TRL_COLUMNS = ("task", "method", "changed", "measure", "n", "ours", "TRL", "verdict")


def trl_section(found: Sequence[Method], results: Path) -> Iterator[Block]:
    """Verdicts on pass@1 at equal samples, and the measured speed of both."""
    rows = []
    panels = {}
    judged = []
    for theirs in (m for m in found if m.algo.startswith("trl-")):
        algo = theirs.algo.removeprefix("trl-")
        for ours in (m for m in found if (m.algo, m.task) == (algo, theirs.task)):
            verdict, numbers = verdict_against(ours, theirs)
            if not verdict:
                continue
            name, method, changed = ours.headline, display(algo), ours.changed
            n = f"{ours.n} and {theirs.n}"
            if numbers and numbers.r is not None:
                n = plural(numbers.difference.n, "pair")
            scores = n, *pair_texts(ours, theirs)
            rows.append((ours.task, method, changed, name, *scores, verdict))
            judged.append((" with ".join(filter(None, (method, changed))), numbers))
            lines = {"manyseeds": ours.line(name), "TRL": theirs.line(name)}
            panels[printable(f"{name}, {method} on {ours.task}")] = lines
    if rows:
        yield from trl_outcome(judged)
        paired = ", ".join(map(display, PAIRED))
        yield Text(
            "Both use the same task, model, hyperparameters, number of samples and evaluation. In "
            f"{paired} a seed of ours and the same seed of TRL's begin with the same model and "
            "learn from the same data in the same order, so they are a pair: the difference is the "
            "mean of those of the pairs, and r is the correlation of the scores of both. (TRL "
            "divides the pairs of the reward model into other steps.) In the other methods both "
            "sides have the same prompts but sample their own completions, and their seeds are "
            "compared as independent ones."
        )
        yield Text(
            "Verdicts are defined as for the other algorithms, but each is a single test, of pairs "
            "one that flips the signs of their differences, and the 95% intervals are of the "
            "difference of the measure itself. They are not corrected for their number, which "
            "would make it harder to find ours worse."
        )
        yield Table("language-trl", TRL_COLUMNS, rows)
        yield curves("language-trl", "Learning curves, ours and TRL", panels, columns=2)
    yield from section_of(find_file(results, trl_speed.FILE), trl_speed.STORED, speed_blocks)


def pair_texts(ours: Method, theirs: Method) -> tuple[str, str]:
    """The scores of both, of a method whose seeds are pairs those of the seeds that both have."""
    sides = [by_seed(m, m.values(m.headline)) for m in (ours, theirs)]
    values = common(*sides)
    if ours.algo not in PAIRED or not len(values[0]):
        return ours.text(ours.headline), theirs.text(theirs.headline)
    texts = [stats.estimate(x, "mean").text(3) for x in values]
    return texts[0], texts[1]


SPEED_COLUMNS = (
    *("method", "changed", "ours, samples/s", "TRL, samples/s", "ratio [range]", "repeats"),
    *("command", "machine"),
)


def speed_blocks(stored: dict[str, Any]) -> list[Block]:
    """What benchmarks/trl_speed.py measured."""
    rows: list[tuple[Inline, ...]] = []
    for name, row in stored.items():
        changed = name.removeprefix(row["algo"]).removeprefix(", ")
        systems = (trl_speed.OURS, trl_speed.THEIRS)
        speeds = (f"{row['samples_per_s'][system]:,.0f}" for system in systems)
        ratio = f"{row['ratio']:.2f} [{row['ratio_low']:.2f}, {row['ratio_high']:.2f}]"
        where = f"{row['machine']['cpu']}, trl {row['versions']['trl']}"
        n, command = str(row["repeats"]), Code(row["command"])
        label = display(row["algo"]) + " (stale)" * measurement_is_stale(row)
        rows.append((label, changed, *speeds, ratio, n, command, where))
    about = "Training speed is the median of interleaved repeats on one core, without evaluations."
    return [Text(about), folded_if_long("Speed", Table("language-speed", SPEED_COLUMNS, rows))]


COST_COLUMNS = (
    *("method", "passes over the samples", "trained parameters", "gradients and moments, KiB"),
    *("peak memory, MiB", "ms per sample", "samples to 0.8, median (seeds)"),
)


def critic_section(found: Sequence[Method], results: Path) -> Sequence[Block]:
    """rlhf_ppo against grpo, as benchmarks/llm_critic_cost.py measured them."""
    path = find_file(results, llm_critic_cost.FILE)
    return section_of(path, llm_critic_cost.STORED, partial(critic_blocks, found=found))


def critic_blocks(stored: dict[str, Any], found: Sequence[Method]) -> Iterator[Block]:
    """The table of llm_critic_cost.json."""
    rows = []
    measured = stored["measurements"]
    task = llm_critic_cost.TASK
    for algo, passes in dict.fromkeys((m["algo"], m["passes"]) for m in measured):
        here = [m for m in measured if (m["algo"], m["passes"]) == (algo, passes)]
        runs = [
            m
            for m in found
            if (m.is_run_of(algo, task, {}) or m.is_run_of(algo, task, stored["equal"]))
            and str(m.settings["epochs"]) == passes
        ]
        ms = f"{1e3 * median(m['learn_s'] / m['samples'] for m in here):.2f}"
        reached = runs[0].reached(TARGETS[task]) if runs else ""
        rows.append((display(algo), passes, *cost_cells(here), ms, reached))
    yield Text(
        f"Both use their presets on {task}. RLHF-PPO also has a row with GRPO's settings, "
        f"{settings_text(stored['equal'])}. Figures are medians of interleaved repeats on one "
        "core, without evaluations. Memory is the increase during training over the process after "
        "its imports."
    )
    yield Table("language-critic-cost", COST_COLUMNS, rows)
    yield command_text(stored, stored["machine"]["cpu"], f"torch {stored['versions']['torch']}")


def transcript_section(found: Sequence[Method]) -> Iterator[Block]:
    """The transcripts of GRPO on every task."""
    yield from written("language-transcripts", [m for m in found if m.algo == "grpo" and m.plain])


def written(name: str, shown: Sequence[Method], prompts: int = 1) -> Iterator[Block]:
    """Some prompts before, during and after training, of the first seed of each run."""
    rows: list[tuple[Inline, ...]] = []
    for m in shown:
        with left_out(m.run.path):
            stored = m.transcripts(0)
            for prompt in [*dict.fromkeys(x["prompt"] for x in stored)][:prompts]:
                same = [x for x in stored if x["prompt"] == prompt]
                for x in (same[0], same[len(same) // 2], same[-1]):
                    verdict = "right" if x["right"] else "wrong"
                    texts = (Code(y.replace("\n", "⏎")) for y in (prompt, x["completion"]))
                    rows.append((m.task, m.label, f"{x['samples']:,}", *texts, verdict))
    if rows:
        columns = ("task", "method", "samples", "prompt", "completion of the first seed", "")
        yield folded_if_long("Transcripts", Table(name, columns, rows))


def provenance_section(found: Sequence[Method]) -> Iterator[Block]:
    """That of the runs whose model was made here; the others have a page of their own."""
    yield from provenance([m for m in found if m.made_here])
    if not all(m.made_here for m in found):
        yield Text("Of other models: ", Link("models beyond the tiny one", "real-models.md"), ".")


def provenance(found: Sequence[Method]) -> Iterator[Block]:
    """Command, code, machine and hyperparameters of every run; nothing without runs."""
    runs = [
        Fold(
            f"{m.label} on {m.task}, n = {m.n}",
            [
                Text(Link("/".join(m.run.path.parts[-4:]), file=m.run.folder)),
                origins(m.configs),
                Text(f"Hyperparameters: {settings_text(m.settings)}"),
            ],
        )
        for m in found
    ]
    if runs:
        yield folded_origins("run", [m.stale for m in found], runs)
