"""The report's sections on the LLM track: final scores, parity with TRL, length, speed, cost."""

from __future__ import annotations

import importlib
import json
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.chapters.results import (
    Rows,
    differences,
    markdown_table,
    origins_text,
    verdict_text,
)
from manyseeds import plots, stats
from manyseeds.cli import from_preset, identity
from manyseeds.record import RunFolder, read_json
from manyseeds.runs.stale import part_is_stale
from manyseeds.stats import Floats

if TYPE_CHECKING:
    import pandas as pd

ORDER = ("sft", "reward_model", "dpo", "rlhf_ppo", "grpo", "dr_grpo", "dapo")
TARGETS = {"addition": 0.8}  # pass@1 to which samples and seconds are counted


class Method:
    """All finished seeds of one run of the LLM track."""

    def __init__(self, run: RunFolder) -> None:
        self.run, self.algo, self.task = run, run.algo, run.env
        self.parts = run.parts()
        self.configs = [read_json(part / "config.json") for part in self.parts]
        self.summaries = [read_json(part / "summary.json") for part in self.parts]
        self.settings: dict[str, Any] = self.configs[0]["config"]
        self.stale = any(part_is_stale(config) for config in self.configs)

    @property
    def label(self) -> str:
        """The method, and its run's name where that is not a digest of its settings."""
        return self.algo + (" (stale)" if self.stale else "")

    def values(self, name: str, when: str = "final") -> Floats:
        """A measure of each seed, [S]; a seed without it is NaN."""
        found = [summary[when].get(name) for summary in self.summaries]
        return np.array([np.nan if x is None else x for x in found])

    def text(self, name: str, when: str = "final", digits: int = 3) -> str:
        """Mean with interval over seeds, empty where a seed has no such measure."""
        values = self.values(name, when)
        if np.isnan(values).any():
            return ""
        return stats.estimate(values, "mean").text(digits)

    def gain(self) -> str:
        """Final headline minus the initial one, paired by seed: same prompts, same uniforms."""
        name = self.summaries[0]["headline"]
        gains = self.values(name) - self.values(name, "initial")
        return stats.estimate(gains, "mean").text(3, "+")

    def against(self, other: Method) -> str:
        """Final headline minus another run's, paired by seed; empty where the seeds differ."""
        name = self.summaries[0]["headline"]
        seeds = [[config["seeds"] for config in m.configs] for m in (self, other)]
        if seeds[0] != seeds[1]:
            return ""
        return stats.estimate(self.values(name) - other.values(name), "mean").text(3, "+")

    @cached_property
    def frames(self) -> list[pd.DataFrame]:
        """The curve of each seed, and at which of its points each row was due."""
        import pandas as pd

        found = [pd.read_parquet(part / "curve.parquet") for part in self.parts]
        last = max(map(len, found)) - 1
        for rows in found:
            due = rows["samples"] * last // self.settings["total_samples"]
            rows["point"] = due.clip(upper=last)
        return found

    def curve(self, name: str, axis: str = "samples") -> tuple[Floats, Floats]:
        """An axis [K], the mean over seeds, and a measure [S, K], at points that all seeds have.

        axis: samples, or learn_s, the seconds of learning.
        """
        by_point = [rows.set_index("point") for rows in self.frames]
        common = sorted(set.intersection(*(set(rows.index) for rows in by_point)))
        x, y = (np.array([rows.loc[common, n] for rows in by_point]) for n in (axis, name))
        return x.mean(0), y.astype(float)

    def reached(self, target: float) -> str:
        """Median samples after which a curve first had the target, and how many seeds did."""
        name = self.summaries[0]["headline"]
        first = [rows.loc[rows[name] >= target, "samples"].min() for rows in self.frames]
        there = [x for x in first if not np.isnan(x)]
        count = f"{len(there)} of {len(first)}"
        return f"{np.median(there):,.0f} ({count})" if there else f"never ({count})"

    @property
    def speed(self) -> str:
        """Samples per second of learning, the median over seeds."""
        return f"{median(summary['samples_per_second'] for summary in self.summaries):,.0f}"

    @property
    def seconds(self) -> str:
        """Seconds of a seed with its evaluations, the median, and those of the first seed."""
        all_of_them = [summary["total_seconds"] for summary in self.summaries]
        return f"{median(all_of_them):,.0f} ({all_of_them[0]:,.0f})"


def methods(runs: Sequence[RunFolder]) -> list[Method]:
    """The runs of language models by task, in the order of the reading path, TRL after ours."""
    found = [Method(run) for run in runs if run.kind == "language"]

    def place(method: Method) -> tuple[str, int, str, str]:
        algo = method.algo.removeprefix("trl-")
        place = ORDER.index(algo) if algo in ORDER else len(ORDER)
        return method.task, place, method.algo, str(method.run.path)

    return sorted(found, key=place)


def plain_settings(method: Method) -> dict[str, Any] | None:
    """The settings of the plain command for a run's task; None for a file, which may be gone."""
    module: Any = importlib.import_module(f"llm_track.{method.algo.removeprefix('trl-')}")
    if method.settings["task"] not in module.PRESETS:
        return None
    return identity(from_preset(module.Config, module.PRESETS, method.task))


def plain(method: Method) -> bool:
    """Whether a run has the script's own settings for its task."""
    return method.settings == plain_settings(method)


def sections(runs: Sequence[RunFolder], folder: Path) -> str:
    """The chapter on language models, empty without runs; figures go into folder/plots."""
    found = methods(runs)
    if not found:
        return ""
    text = "## Language models\n\n"
    for title, section in (
        ("What each method reaches", score_section),
        ("The reward model", reward_section),
        ("With other settings", variant_section),
        ("Against TRL", trl_section),
        ("What the critic costs a language model", critic_section),
        ("Transcripts", transcript_section),
        ("Behind each number of the language models", behind_section),
    ):
        if content := section(found, folder):
            text += f"### {title}\n\n{content}"
    return text


SHOWN_OF_VARIANTS = (("format", 3), ("length", 1), ("entropy", 3))  # measures and digits
COLUMNS = (
    "task",
    "method",
    "n",
    "pass@1 at first",
    "pass@1 at the end, mean [95%]",
    "gain, paired [95%]",
    "greedy",
    "cons@16",
    "format",
    "length",
    "samples to 0.8, median (seeds)",
    "samples/s",
    "seconds a seed, median (the first)",
)


def score_section(found: Sequence[Method], folder: Path) -> str:
    """A table of all runs with the scripts' own settings, and their curves."""
    shown = [m for m in found if plain(m) and m.summaries[0]["headline"] == "pass@1"]
    if not shown:
        return ""
    rows: Rows = []
    for m in shown:
        target = TARGETS.get(m.task)
        rows.append(
            (
                m.task,
                m.label,
                str(len(m.summaries)),
                f"{m.values('pass@1', 'initial').mean():.3f}",
                m.text("pass@1"),
                m.gain(),
                f"{m.values('greedy').mean():.3f}",
                f"{m.values('cons@16').mean():.3f}",
                f"{m.values('format').mean():.3f}",
                f"{m.values('length').mean():.1f}",
                m.reached(target) if target and m.algo != "sft" else "",
                m.speed,
                m.seconds,
            )
        )
    text = (
        "Held-out prompts, 16 samples each at temperature 1; every method but SFT begins with the "
        "same SFT model. Samples are completions generated for the training, those that are thrown "
        "away counted; SFT's are demonstrations. First and last evaluation have the same prompts "
        "and random numbers: the gain is their difference. Seconds are those of the whole training "
        "of a seed, evaluations included, on one core, which other work slowed in some runs; the "
        "first seed's include the making of base and SFT model where they were not there yet.\n\n"
        + markdown_table(COLUMNS, rows)
        + "\n"
    )
    for task in dict.fromkeys(m.task for m in shown):
        here = [m for m in shown if m.task == task and m.algo in ORDER and m.algo != "sft"]
        if not here:
            continue
        panels = {}
        for name, title in (("pass@1", f"pass@1, {task}"), ("length", "length, tokens")):
            panels[title] = {m.algo: plots.mean_line(*m.curve(name)) for m in here}
        path = folder / "plots" / f"language-{task}.svg"
        plots.lines(panels, path, xlabel="samples", ylabel="")
        text += f"![pass@1 and length on {task}](plots/{path.name})\n\n"
        panels = {
            f"{name}, {task}": {m.algo: plots.mean_line(*m.curve(name, "learn_s")) for m in here}
            for name in ("pass@1", "entropy")
        }
        path = folder / "plots" / f"language-{task}-seconds.svg"
        plots.lines(panels, path, xlabel="seconds of learning", ylabel="")
        text += f"![pass@1 and entropy over seconds on {task}](plots/{path.name})\n\n"
    for algo in ORDER:  # for llm_track/README.md
        alone = {
            f"{name}, {m.task}": {algo: plots.mean_line(*m.curve(name))}
            for m in shown
            if m.algo == algo
            for name in ("pass@1", "length")
        }
        if alone:
            path = folder / "plots" / f"language-{algo}.svg"
            plots.lines(alone, path, xlabel="samples", ylabel="", columns=2)
    return text


def reward_section(found: Sequence[Method], folder: Path) -> str:
    """How well reward models rank held-out pairs, and their curves."""
    shown = [m for m in found if plain(m) and m.algo == "reward_model"]
    if not shown:
        return ""
    names = ("accuracy", "margin", "loss")
    rows: Rows = [
        (m.task, m.label, str(len(m.summaries)), *map(m.text, names), m.speed, m.seconds)
        for m in shown
    ]
    columns = (
        "task", "method", "n", "pairs ranked right, mean [95%]", "margin", "loss", "samples/s",
        "seconds a seed, median (the first)",
    )  # fmt: skip
    path = folder / "plots" / "language-reward_model.svg"
    panels = {
        f"{name}, {m.task}": {m.algo: plots.mean_line(*m.curve(name))}
        for m in shown
        for name in ("accuracy", "loss")
    }
    plots.lines(panels, path, xlabel="samples", ylabel="")
    return (
        "Pairs of a right and a wrong completion of the SFT model, of held-out prompts; at first "
        "the head is 0, every pair a tie, and the loss log 2.\n\n"
        f"{markdown_table(columns, rows)}\n"
        f"![Held-out accuracy and loss of the reward model](plots/{path.name})\n\n"
    )


def variant_section(found: Sequence[Method], folder: Path) -> str:
    """Our runs that leave a method's plain command, each below the plain run and against it."""
    rows: Rows = []
    for m in found:
        plain_one = next((p for p in found if (p.algo, p.task) == (m.algo, m.task) and plain(p)), m)
        if m is plain_one or m.algo.startswith("trl-") or m.summaries[0]["headline"] != "pass@1":
            continue
        if not any(row[:2] == (m.task, plain_one.label) for row in rows):
            rows.append(variant_row(plain_one, "", ""))
        changed = differences(m.settings, plain_settings(m) or m.settings)
        rows.append(variant_row(m, changed, m.against(plain_one)))
    if not rows:
        return ""
    columns = (
        "task", "method", "changed", "n", "pass@1 at first", "pass@1 at the end, mean [95%]",
        "against the plain run, paired [95%]", "format", "length", "entropy",
    )  # fmt: skip
    return (
        "Everything else is that of the plain command, whose row stands above.\n\n"
        f"{markdown_table(columns, rows)}\n"
    )


def variant_row(m: Method, changed: str, difference: str) -> tuple[str, ...]:
    """A row of the table of other settings."""
    return (
        m.task,
        m.label,
        changed,
        str(len(m.summaries)),
        f"{m.values('pass@1', 'initial').mean():.3f}",
        m.text("pass@1"),
        difference,
        *(f"{m.values(name).mean():.{d}f}" for name, d in SHOWN_OF_VARIANTS),
    )


def trl_section(found: Sequence[Method], folder: Path) -> str:
    """Verdicts on pass@1 at equal samples, and the measured speed of both."""
    rows: Rows = []
    panels = {}
    for theirs in (m for m in found if m.algo.startswith("trl-")):
        algo = theirs.algo.removeprefix("trl-")
        for ours in (m for m in found if (m.algo, m.task) == (algo, theirs.task)):
            if ours.settings != theirs.settings:
                continue
            name = ours.summaries[0]["headline"]
            a, b = ours.values(name), theirs.values(name)
            seeds = f"{len(a)} and {len(b)}"
            verdict = verdict_text(stats.parity(a, b, 0.0, 1.0)) if min(len(a), len(b)) > 1 else ""
            changed = differences(ours.settings, plain_settings(ours) or ours.settings)
            scores = ours.text(name), theirs.text(name)
            rows.append((ours.task, algo, changed, name, seeds, *scores, verdict))
            sides = {"manyseeds": ours, "TRL": theirs}
            panels[f"{name}, {algo} on {ours.task}"] = {
                side: plots.mean_line(*m.curve(name)) for side, m in sides.items()
            }
    text = ""
    if rows:
        columns = ("task", "method", "changed", "measure", "n", "ours", "TRL", "verdict")
        text = (
            "The same task, model, hyperparameters, samples and evaluation. Verdicts as above, of "
            f"the difference of the measure itself.\n\n{markdown_table(columns, rows)}\n"
            "![Curves of both](plots/language-trl.svg)\n\n"
        )
        file = folder / "plots" / "language-trl.svg"
        plots.lines(panels, file, xlabel="samples", ylabel="", columns=2)
    path = folder / "trl_speed.json"
    if path.exists():
        text += speed_text(json.loads(path.read_text()))
    return text


def speed_text(stored: dict[str, Any]) -> str:
    """What benchmarks/trl_speed.py measured."""
    rows: Rows = []
    for algo, row in stored.items():
        speeds = (f"{row['samples_per_s'][system]:,.0f}" for system in ("manyseeds", "trl"))
        ratio = f"{row['ratio']:.2f} [{row['ratio_low']:.2f}, {row['ratio_high']:.2f}]"
        where = f"{row['machine']['cpu']}, trl {row['versions']['trl']}"
        rows.append((algo, *speeds, ratio, str(row["repeats"]), f"`{row['command']}`", where))
    columns = ("method", "ours, samples/s", "TRL", "ratio [range]", "repeats", "command", "on")
    return (
        "Speed of learning on one core, the two in turn, evaluation off; medians.\n\n"
        f"{markdown_table(columns, rows)}\n"
    )


def critic_section(found: Sequence[Method], folder: Path) -> str:
    """rlhf_ppo against grpo, as benchmarks/llm_critic_cost.py measured them."""
    path = folder / "llm_critic_cost.json"
    if not path.exists():
        return ""
    stored = json.loads(path.read_text())
    rows: Rows = []
    measured = stored["measurements"]
    for algo, passes in dict.fromkeys((m["algo"], m["passes"]) for m in measured):
        here = [m for m in measured if (m["algo"], m["passes"]) == (algo, passes)]
        runs = [
            m
            for m in found
            if (m.algo, m.task) == (algo, "addition")
            and plain(m)
            and m.settings["epochs"] == int(passes)
        ]
        rows.append(
            (
                algo,
                passes,
                f"{median(m['parameters'] for m in here):,.0f}",
                f"{median(m['optimizer_bytes'] for m in here) / 2**10:,.0f}",
                f"{median(m['memory'] for m in here) / 2**20:,.0f}",
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
        "Both with their presets on `addition` (rlhf_ppo once more with grpo's single pass), one "
        "core, evaluation off, medians of interleaved repeats; memory is what the training adds to "
        "the imports.\n\n"
        f"{markdown_table(columns, rows)}\nCommand: `{stored['command']}`, "
        f"{stored['machine']['cpu']}, torch {stored['versions']['torch']}.\n\n"
    )


def as_code(text: str) -> str:
    """What a model has written, such that it does not end a cell of a table."""
    shown = text.replace("\n", "⏎").replace("`", "'").replace("|", "\\|")
    return f"`{shown}`" if shown else ""


def transcript_section(found: Sequence[Method], folder: Path) -> str:
    """The same prompt before, during and after training, of the first seed of one method a task."""
    rows: Rows = []
    for task in dict.fromkeys(m.task for m in found):
        for m in [m for m in found if (m.task, m.algo) == (task, "grpo") and plain(m)][:1]:
            stored = read_json(m.parts[0] / "transcripts.json")
            prompt = stored[0]["prompt"]
            same = [x for x in stored if x["prompt"] == prompt]
            for x in (same[0], same[len(same) // 2], same[-1]):
                verdict = "right" if x["right"] else "wrong"
                written = [as_code(text) for text in (prompt, x["completion"])]
                rows.append((task, f"{x['samples']:,}", *written, verdict))
    if not rows:
        return ""
    columns = ("task", "samples", "prompt", "completion (grpo, first seed)", "")
    return markdown_table(columns, rows) + "\n"


def seed_table(runs: Sequence[RunFolder]) -> pd.DataFrame:
    """The measures of every seed before and after, unrounded, a row per seed and moment."""
    import pandas as pd

    rows = [
        {
            "task": m.task,
            "algo": m.algo,
            "run": m.run.path.name,
            "plain": plain(m),
            "seed": summary["seeds"][0],
            "when": when,
            "samples": summary["samples"] * (when == "final"),
            "seconds": summary["total_seconds"] * (when == "final"),
            **summary[when],
        }
        for m in methods(runs)
        for summary in m.summaries
        for when in ("initial", "final")
    ]
    return pd.DataFrame(rows)


def behind_section(found: Sequence[Method], folder: Path) -> str:
    """Command, code, machine and hyperparameters of every run."""
    text = ""
    for m in found:
        path = m.run.path.relative_to(folder)
        values = ", ".join(f"{name} {value}" for name, value in m.settings.items())
        text += f"**{m.label} on {m.task}**, n={len(m.summaries)}: [{path}]({path})\n\n"
        text += origins_text(m.configs)
        text += f"- hyperparameters: {values}\n\n"
    return text
