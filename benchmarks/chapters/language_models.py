"""The report's page on the LLM track: final scores, parity with TRL, length, speed, cost.

folder: of the results; figures go into its plots/, tables into its tables/.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from manyseeds import plots, stats
from manyseeds.benchmarks.chapters.language_measures import (
    CAPTION,
    by_seed,
    length_section,
    many_samples_section,
    paired,
    steps_section,
)
from manyseeds.benchmarks.chapters.tables import table
from manyseeds.benchmarks.experiments.verdicts import MARGIN
from manyseeds.benchmarks.store.names import display
from manyseeds.benchmarks.store.results import (
    Rows,
    code,
    command_text,
    cost_cells,
    differences,
    escape,
    fold,
    link,
    origins_text,
    picture,
    place,
    settings_text,
)
from manyseeds.benchmarks.store.stored import (
    file_name,
    find_file,
    left_out,
    read,
    section_of,
)
from manyseeds.errors import printable
from manyseeds.stats import Parity
from manyseeds.untrusted import COST, NAME, ORIGIN, TEXT

if TYPE_CHECKING:
    import pandas as pd

TARGETS = {"addition": 0.8}  # pass@1 to which samples are counted


def sections(found: Sequence[Method], folder: Path) -> str:
    """The chapter on language models, empty without runs."""
    if not found:
        return ""
    text = ""
    for title, section in (
        ("Scores before and after training", score_section),
        ("Many samples per prompt", many_samples_section),
        ("Lengths of right and wrong completions", length_section),
        ("Dynamic sampling, over steps and over samples", steps_section),
        ("The reward model", reward_section),
        ("Ablations", ablation_section),
        ("Against TRL", trl_section),
        ("Cost of the critic of a language model", critic_section),
        ("Transcripts", transcript_section),
        ("Provenance", provenance_section),
    ):
        if content := section(found, folder):
            text += f"## {title}\n\n{content}"
    return text


SHOWN_OF_VARIANTS = (("format", 3), ("length", 1), ("entropy", 3))  # measures and digits
COLUMNS = (
    "task",
    "method",
    "n",
    "pass@1 before training",
    "pass@1 after training, mean [95%]",
    "gain, paired [95%]",
    "greedy",
    "cons@16",
    "format",
    "length",
    "samples to 0.8, median (seeds)",
)


def score_section(found: Sequence[Method], folder: Path) -> str:
    """A table of all runs with the scripts' own settings, and their curves."""
    shown = [m for m in found if m.plain and m.headline == "pass@1"]
    if not shown:
        return ""
    rows: Rows = []
    for m in shown:
        target = TARGETS.get(m.task)
        rows.append(
            (
                escape(m.task),
                m.label,
                str(len(m.summaries)),
                m.mean_text("pass@1", "initial"),
                m.text("pass@1"),
                m.gain(),
                m.mean_text("greedy"),
                m.mean_text("cons@16"),
                m.mean_text("format"),
                m.mean_text("length", digits=1),
                m.reached(target) if target and m.algo != "sft" else "",
            )
        )
    text = (
        "Scores are of held-out prompts with 16 samples each at temperature 1. Every method but "
        "SFT starts from the same SFT model, made on a processor of the same kind. Samples are "
        "completions generated for training, including discarded ones. Those of SFT are "
        "demonstrations. The evaluations before and after training use the same prompts and random "
        "numbers, and the gain is their difference.\n\n"
        + table(folder, "language-scores", COLUMNS, rows)
        + "\n"
    )
    for task in dict.fromkeys(m.task for m in shown):
        here = [m for m in shown if m.task == task and m.algo in ORDER and m.algo != "sft"]
        if not here:
            continue
        panels = {}
        length = "length, tokens"
        for name, title in (("pass@1", f"pass@1, {printable(task)}"), ("length", length)):
            panels[title] = {display(m.algo): m.line(name) for m in here}
        path = folder / "plots" / f"language-{file_name(task)}.svg"
        axes: dict[str, Any] = {"xlabel": "samples", "ylabel": "", "legend": CAPTION}
        plots.lines(panels, path, floors={length: 0.0}, first=list(map(display, ORDER)), **axes)
        text += picture(f"pass@1 and length on {task}", path)
    for algo in ORDER:  # for llm_track/README.md
        alone = {
            f"{name}, {printable(m.task)}": {display(algo): m.line(name)}
            for m in shown
            if m.algo == algo
            for name in ("pass@1", "length")
        }
        if alone:
            path = folder / "plots" / f"language-{algo}.svg"
            floors = dict.fromkeys((title for title in alone if title.startswith("length")), 0.0)
            axes = {"xlabel": "samples", "ylabel": "", "legend": CAPTION, "columns": 2}
            plots.lines(alone, path, floors=floors, **axes)
    return text


def reward_section(found: Sequence[Method], folder: Path) -> str:
    """How well reward models rank held-out pairs, and their curves."""
    shown = [m for m in found if m.plain and m.algo == "reward_model"]
    if not shown:
        return ""
    names = ("accuracy", "margin", "loss")
    rows: Rows = [
        (escape(m.task), m.label, str(len(m.summaries)), *map(m.text, names)) for m in shown
    ]
    columns = ("task", "method", "n", "accuracy on pairs, mean [95%]", "margin", "loss")
    path = folder / "plots" / "language-reward_model.svg"
    panels = {
        f"{name}, {printable(m.task)}": {display(m.algo): m.line(name)}
        for m in shown
        for name in ("accuracy", "loss")
    }
    plots.lines(panels, path, xlabel="samples", ylabel="", legend=CAPTION)
    return (
        "A pair is a right and a wrong completion of a held-out prompt by the SFT model. Before "
        "training the head is 0, so that every pair is a tie and the loss is log 2.\n\n"
        f"{table(folder, 'language-reward-model', columns, rows)}\n"
        + picture("Held-out accuracy and loss of the reward model", path)
    )


def ablation_section(found: Sequence[Method], folder: Path) -> str:
    """Our runs with other settings than a method's plain command, compared with the plain run."""
    rows: Rows = []
    for m in found:
        plain_one = next((p for p in found if (p.algo, p.task) == (m.algo, m.task) and p.plain), m)
        if m is plain_one or m.algo.startswith("trl-") or m.of_experiment:
            continue
        if {m.headline, plain_one.headline} != {"pass@1"}:
            continue
        if not any(row[:2] == (escape(m.task), plain_one.label) for row in rows):
            rows.append(ablation_row(plain_one, "", ""))
        changed = differences(m.settings, m.plain_settings or m.settings)
        gain = paired(*(by_seed(run, run.values("pass@1")) for run in (m, plain_one)))
        rows.append(ablation_row(m, changed, gain.text(3, "+") if gain else ""))
    if not rows:
        return ""
    columns = (
        "task", "method", "changed", "n", "pass@1 before training",
        "pass@1 after training, mean [95%]", "against the plain run, paired [95%]", "format",
        "length", "entropy",
    )  # fmt: skip
    return (
        "All other settings are those of the plain command, whose row is above. Differences are "
        "paired over the seeds that both runs have with the same initial model.\n\n"
        f"{table(folder, 'language-ablations', columns, rows)}\n"
    )


def ablation_row(m: Method, changed: str, difference: str) -> tuple[str, ...]:
    """A row of the table of ablations."""
    return (
        escape(m.task),
        m.label,
        changed,
        str(len(m.summaries)),
        m.mean_text("pass@1", "initial"),
        m.text("pass@1"),
        difference,
        *(m.mean_text(name, digits=digits) for name, digits in SHOWN_OF_VARIANTS),
    )


def trl_sentence(found: Sequence[tuple[str, Parity | None]]) -> str:
    """For which methods TRL is shown to be better, and for which by a large margin is excluded."""
    judged = [(name, x) for name, x in found if x]
    if not judged:
        return ""
    worse = [name for name, x in judged if x.word == "worse"]
    close: list[str] = []
    other: list[str] = []
    for name, x in judged:  # saturated sides have no interval that could exclude anything
        excludes = x.word != "saturated" and x.difference.low >= -MARGIN
        (close if excludes else other).append(name)
    text = (
        f"The verdict is worse than TRL for {', '.join(worse) or 'no method'}. "
        f"The interval excludes a score lower by more than {MARGIN} for "
        f"{', '.join(close) or 'no method'}."
    )
    if other and close:
        text += f" It does not exclude this for {', '.join(other)}."
    if missing := [name for name, x in found if not x]:
        text += f" There is no verdict for {', '.join(missing)}."
    return f"**{text}** Equivalence requires {stats.EQUIVALENCE_SEEDS} seeds per side.\n\n"


def trl_section(found: Sequence[Method], folder: Path) -> str:
    """Verdicts on pass@1 at equal samples, and the measured speed of both."""
    rows: Rows = []
    panels = {}
    judged = []
    for theirs in (m for m in found if m.algo.startswith("trl-")):
        algo = theirs.algo.removeprefix("trl-")
        for ours in (m for m in found if (m.algo, m.task) == (algo, theirs.task)):
            verdict, numbers = verdict_against(ours, theirs)
            if not verdict:
                continue
            name = ours.headline
            seeds = f"{len(ours.summaries)} and {len(theirs.summaries)}"
            changed = differences(ours.settings, ours.plain_settings or ours.settings)
            scores = ours.text(name), theirs.text(name)
            names = escape(ours.task), escape(display(algo)), changed, escape(name)
            rows.append((*names, seeds, *scores, verdict))
            judged.append((" with ".join(filter(None, (names[1], changed))), numbers))
            sides = {"manyseeds": ours, "TRL": theirs}
            panels[printable(f"{name}, {display(algo)} on {ours.task}")] = {
                side: m.line(name) for side, m in sides.items()
            }
    text = ""
    if rows:
        columns = ("task", "method", "changed", "measure", "n", "ours", "TRL", "verdict")
        text = (
            f"{trl_sentence(judged)}Both use the same task, model, hyperparameters, number of "
            "samples and evaluation. Verdicts are defined as for the other algorithms, but each "
            "is a single test, and the 95% intervals are of the difference of the measure "
            "itself.\n\n"
            f"{table(folder, 'language-trl', columns, rows)}\n"
        )
        figure = folder / "plots" / "language-trl.svg"
        plots.lines(panels, figure, xlabel="samples", ylabel="", legend=CAPTION, columns=2)
        text += picture("Learning curves, ours and TRL", figure)
    return text + section_of(
        find_file(folder, "trl_speed.json"), SPEED, partial(speed_text, folder)
    )


SPEED = {  # trl_speed.json
    str: {
        "algo": NAME,
        "settings": {"total_samples": int},
        "command": str,
        "machine": {"cpu": str},
        "samples_per_s": {"manyseeds": float, "trl": float},
        **dict.fromkeys(("ratio", "ratio_low", "ratio_high"), float),
        "repeats": int,
        "versions": {"trl": str},
    }
}


def speed_text(folder: Path, stored: dict[str, Any]) -> str:
    """What benchmarks/trl_speed.py measured."""
    rows: Rows = []
    for name, row in stored.items():
        changed = name.removeprefix(row["algo"]).removeprefix(", ")
        speeds = (f"{row['samples_per_s'][system]:,.0f}" for system in ("manyseeds", "trl"))
        ratio = f"{row['ratio']:.2f} [{row['ratio_low']:.2f}, {row['ratio_high']:.2f}]"
        where = f"{row['machine']['cpu']}, trl {row['versions']['trl']}"
        n = str(row["repeats"])
        method = escape(display(row["algo"])), escape(changed)
        rows.append((*method, *speeds, ratio, n, code(row["command"]), escape(where)))
    columns = (
        "method", "changed", "ours, samples/s", "TRL, samples/s", "ratio [range]", "repeats",
        "command", "machine",
    )  # fmt: skip
    return (
        "Training speed is the median of interleaved repeats on one core, without evaluations.\n\n"
        f"{table(folder, 'language-speed', columns, rows)}\n"
    )


STORED = {  # llm_critic_cost.json
    **ORIGIN,
    "versions": {"torch": str},
    "equal": {str: float},  # settings of the PPO that equals GRPO
    "measurements": [{"algo": str, "passes": str, "samples": float, **COST}],
}


def critic_section(found: Sequence[Method], folder: Path) -> str:
    """rlhf_ppo against grpo, as benchmarks/llm_critic_cost.py measured them."""
    path = find_file(folder, "llm_critic_cost.json")
    return section_of(path, STORED, lambda stored: critic_text(stored, found, folder))


def critic_text(stored: dict[str, Any], found: Sequence[Method], folder: Path) -> str:
    """The table of llm_critic_cost.json."""
    rows: Rows = []
    measured = stored["measurements"]
    for algo, passes in dict.fromkeys((m["algo"], m["passes"]) for m in measured):
        here = [m for m in measured if (m["algo"], m["passes"]) == (algo, passes)]
        runs = [
            m
            for m in found
            if (m.algo, m.task) == (algo, "addition")
            and str(m.settings["epochs"]) == passes
            and (m.plain or m.settings == {**(m.plain_settings or {}), **stored["equal"]})
        ]
        rows.append(
            (
                escape(display(algo)),
                escape(passes),
                *cost_cells(here),
                f"{1e3 * median(m['learn_s'] / m['samples'] for m in here):.2f}",
                runs[0].reached(TARGETS["addition"]) if runs else "",
            )
        )
    columns = (
        "method",
        "passes over the samples",
        "trained parameters",
        "gradients and moments, KiB",
        "peak memory, MiB",
        "ms per sample",
        "samples to 0.8, median (seeds)",
    )
    return (
        "Both use their presets on `addition`. RLHF-PPO also has a row with GRPO's settings, "
        f"{settings_text(stored['equal'])}. Figures are medians of interleaved repeats on one "
        "core, without evaluations. Memory is the increase during training over the process after "
        "its imports.\n\n"
        f"{table(folder, 'language-critic-cost', columns, rows)}\n"
        + command_text(stored, stored["machine"]["cpu"], f"torch {stored['versions']['torch']}")
        + "\n\n"
    )


TRANSCRIPTS = [{"prompt": TEXT, "completion": TEXT, "samples": int, "right": bool}]


def transcript_section(found: Sequence[Method], folder: Path) -> str:
    """The same prompt before, during and after training, of the first seed of one method a task."""
    rows: Rows = []
    for task in dict.fromkeys(m.task for m in found):
        for m in [m for m in found if (m.task, m.algo) == (task, "grpo") and m.plain][:1]:
            with left_out(m.run.path):
                stored = read(m.parts[0] / "transcripts.json", TRANSCRIPTS)
                prompt = stored[0]["prompt"]
                same = [x for x in stored if x["prompt"] == prompt]
                for x in (same[0], same[len(same) // 2], same[-1]):
                    verdict = "right" if x["right"] else "wrong"
                    written = [code(y.replace("\n", "⏎")) for y in (prompt, x["completion"])]
                    rows.append((escape(task), f"{x['samples']:,}", *written, verdict))
    if not rows:
        return ""
    columns = ("task", "samples", "prompt", "completion (GRPO, first seed)", "")
    return table(folder, "language-transcripts", columns, rows) + "\n"


def seed_table(found: Sequence[Method]) -> pd.DataFrame:
    """The measures of every seed before and after, unrounded, a row per seed and moment."""
    import pandas as pd

    rows = [
        {
            "task": printable(m.task),
            "algo": printable(m.algo),
            "run": printable(m.run.path.name),
            "plain": m.plain,
            "seed": summary["seeds"][0],
            "when": when,
            "samples": summary["samples"] * (when == "final"),
            **{printable(name): m.values(name, when)[k] for name in summary[when]},
        }
        for m in found
        for k, summary in enumerate(m.summaries)
        for when in ("initial", "final")
    ]
    return pd.DataFrame(rows)


def provenance_section(found: Sequence[Method], folder: Path) -> str:
    """Command, code, machine and hyperparameters of every run."""
    text = ""
    for m in found:
        path = place(m.run.path, folder)
        name = f"{display(m.algo)}{' (stale)' * m.stale} on {m.task}, n = {len(m.summaries)}"
        content = f"{link(path, place(m.run.folder, folder))}\n\n{origins_text(m.configs)}"
        text += fold(name, f"{content}- hyperparameters: {settings_text(m.settings)}\n")
    return text
