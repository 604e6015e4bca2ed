"""What benchmarks/throughput.py times, algorithms and settings, and the tables of the results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from manyseeds.benchmarks.experiments import catalog
from manyseeds.benchmarks.store.names import display, place_of
from manyseeds.benchmarks.store.results import (
    Rows,
    command_text,
    escape,
    markdown_table,
    versions_text,
)
from manyseeds.errors import printable
from manyseeds.plots import Line
from manyseeds.untrusted import NAME, ORIGIN

OURS = "manyseeds"
PEERS = ("sb3", "rejax")
LABELS = {"sb3": "SB3"}  # of systems in figures, where they differ from their names
SYSTEMS = (OURS, "SB3", "rejax")  # in the order of the colours
ROW = {
    "system": str,
    "seeds": int,
    "repeats": int,
    **dict.fromkeys(("timesteps_per_s", "ratio", "ratio_low", "ratio_high"), float),
    **dict.fromkeys(("warm_up_s", "fresh_s", "memory_mib"), float),
}
STORED = {str: {**ORIGIN, "machine": {"cpu": str, "gpu?": str}, "rows": [ROW]}}  # throughput.json
STORED_ROWS = {  # rows_speed.json
    **ORIGIN,
    "total_timesteps": int,
    "measurements": [
        {"repeat": int, "system": NAME, "rows": int, "timesteps": float, "learn_s": float}
    ],
}
PLAIN, VARIED = "640 seeds", "64 learning rates x 10 seeds"


@dataclass(frozen=True)
class Subject:
    """An algorithm with the settings and batch sizes that are timed."""

    settings: dict[str, Any]
    env: str = "CartPole-v1"
    seeds: tuple[int, ...] = (1, 10, 32)
    seeds_on_cuda: tuple[int, ...] = (10, 1024, 8192)
    peers: tuple[str, ...] = ("sb3",)  # "rejax" too where its settings can be made the same


def subject_of(algo: str) -> Subject | None:
    """What is timed of an algorithm, as its facts say."""
    timed = catalog.facts(algo).timed
    return Subject(**timed) if timed else None


SUBJECTS = {
    algo: subject
    for algo in sorted(catalog.names("algos"), key=place_of)
    if (subject := subject_of(algo))
}


def summarize(measurements: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Of one algorithm: medians over repeats, and the median of the ratios within each repeat.

    The ratios are to the repeat's first measurement: SB3, or where it has no such algorithm the
    smallest batch of ours.
    """
    reference: dict[int, float] = {}
    groups: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for m in measurements:
        reference.setdefault(m["repeat"], m["timesteps_per_s"])
        groups.setdefault((m["system"], m["seeds"]), []).append(m)
    rows = []
    for (system, seeds), group in groups.items():
        ratios = [m["timesteps_per_s"] / reference[m["repeat"]] for m in group]
        rows.append(
            {
                "system": system,
                "seeds": seeds,
                "repeats": len(group),
                "timesteps_per_s": median(m["timesteps_per_s"] for m in group),
                "ratio": median(ratios),
                "ratio_low": min(ratios),
                "ratio_high": max(ratios),
                "warm_up_s": median(m["warm_up_s"] for m in group),
                "fresh_s": median(m["fresh_s"] for m in group),
                "memory_mib": median(m["memory"] for m in group) / 2**20,
            }
        )
    return rows


Table = Callable[[str, Sequence[str], Rows], str]  # of a name, a header and rows: Markdown


def plain_table(_: str, header: Sequence[str], rows: Rows) -> str:
    """A table without files of its own."""
    return markdown_table(header, rows)


def markdown(stored: dict[str, dict[str, Any]], device: str, table: Table = plain_table) -> str:
    """The tables, one for each algorithm of throughput.json."""
    place = "one thread on one core" if device == "cpu" else "on one GPU, SB3 on one core"
    text = (
        "Timesteps per second of all seeds together, training and logging, evaluation off, "
        f"{place}. Medians of n interleaved repeats. The ratio is computed within each repeat, "
        "with its range over repeats in brackets. SB3 trains one seed at a time: S seeds run at "
        "the same timesteps/s and take S times the wall time of one. Warm-up: seconds of "
        "compilation or capture before that speed is reached. Fresh process: seconds from the "
        "start of the process to the end of one training, imports and warm-up included. Memory: "
        "peak memory of the process, on a GPU that of the device.\n"
    )
    for algo in (algo for algo in SUBJECTS if algo in stored):
        block, subject = stored[algo], SUBJECTS[algo]
        machine = block["machine"]
        reference = "times SB3" if "sb3" in subject.peers else "times one seed"
        columns = ("system", "seeds", "timesteps/s", reference, "warm-up, s", "fresh process, s")
        rows: Rows = []
        for r in block["rows"]:
            warm_up = f"{r['warm_up_s']:.0f}"
            if r["system"] in ("sb3", OURS) and device == "cpu":
                warm_up = "none"
            rows.append(
                (
                    escape(r["system"]),
                    f"{r['seeds']:,}",
                    f"{r['timesteps_per_s']:,.0f}",
                    f"{r['ratio']:.1f} [{r['ratio_low']:.1f}, {r['ratio_high']:.1f}]",
                    warm_up,
                    f"{r['fresh_s']:.1f}",
                    f"{r['memory_mib']:,.0f}",
                    str(r["repeats"]),
                )
            )
        name = f"speed-{algo}" + "-cuda" * (device == "cuda")
        text += f"\n### {display(algo)} on {subject.env}\n\n"
        text += table(name, (*columns, "memory, MiB", "n"), rows)
        on = escape(machine.get("gpu", machine["cpu"]))
        note = f"{subject.settings['total_timesteps']:,} timesteps per seed on {on}."
        if algo == "dqn" and any(r["system"] == "rejax" for r in block["rows"]):
            note += " rejax's DQN has ten environments, so it also updates every 10 timesteps."
        text += f"\n{note} {command_text(block, versions_text(block))}\n"
    return text


def lines_of(stored: dict[str, dict[str, Any]]) -> dict[str, dict[str, Line]]:
    """Timesteps/s over the number of seeds: a panel per algorithm, a line per system.

    SB3, which was timed with one seed, has the same timesteps/s for any number of them.
    """
    panels = {}
    for algo in (algo for algo in SUBJECTS if algo in stored):
        rows = stored[algo]["rows"]
        sizes = sorted({r["seeds"] for r in rows})
        lines = {}
        for system in dict.fromkeys(r["system"] for r in rows):
            own = sorted((r["seeds"], r["timesteps_per_s"]) for r in rows if r["system"] == system)
            if system == "sb3":
                own = [(seeds, own[0][1]) for seeds in sizes]
            x, y = zip(*own, strict=True)
            lines[LABELS.get(system, printable(system))] = Line(x, y)
        panels[f"{display(algo)} on {SUBJECTS[algo].env}"] = lines
    return panels


def rows_text(stored: dict[str, Any], table: Table = plain_table) -> str:
    """What hyperparameters of their own cost the rows of a batch: the table of rows_speed.json."""
    by_repeat: dict[int, dict[str, float]] = {}  # seconds per timestep of one row
    rows_of: dict[str, int] = {}
    for m in stored["measurements"]:
        rows_of[m["system"]] = m["rows"]
        by_repeat.setdefault(m["repeat"], {})[m["system"]] = m["learn_s"] / m["timesteps"]
    repeats = list(by_repeat.values())
    ratios = {s: [r[s] / r[PLAIN] for r in repeats] for s in rows_of}
    lines: Rows = [
        (
            escape(system),
            f"{rows:,}",
            f"{1 / median(r[system] for r in repeats):,.0f}",
            f"{median(found):.2f} [{min(found):.2f}, {max(found):.2f}]",
            str(len(repeats)),
        )
        for (system, rows), found in zip(rows_of.items(), ratios.values(), strict=True)
    ]
    peers = ", ".join(f"{escape(s)} {median(ratios[s]):.1f} times" for s in ratios if s in PEERS)
    header = ("system", "rows at once", "timesteps/s", f"time, {PLAIN} = 1", "n")
    return (
        f"**{VARIED} of PPO take {median(ratios[VARIED]):.2f} times as long as {PLAIN}."
        + f" Others take: {peers}." * bool(peers)
        + "** CartPole-v1, CleanRL's sizes, evaluation off, one thread on one core, "
        f"{stored['total_timesteps']:,} timesteps per row, a part of a training. Medians of n "
        "interleaved repeats, with their range in brackets. rejax also has a learning rate for "
        "each row. SB3 trains one row after another, so one row was measured.\n\n"
        f"{table('speed-rows', header, lines)}\n"
        f"{command_text(stored, versions_text(stored))}\n"
    )


SHOWN_SEEDS = 10  # of the line on the front page


def summary(stored: dict[str, dict[str, Any]]) -> str:
    """How many times SB3's speed ten seeds have, of each algorithm that SB3 has, as one line."""
    found = []
    env = ""
    for algo, subject in SUBJECTS.items():
        if algo not in stored or "sb3" not in subject.peers:
            continue
        env = subject.env
        ratios = {
            r["system"]: r["ratio"] for r in stored[algo]["rows"] if r["seeds"] == SHOWN_SEEDS
        }
        if OURS in ratios:
            peer = f" (rejax {ratios['rejax']:.0f})" if "rejax" in ratios else ""
            found.append(f"{display(algo)} **{ratios[OURS]:.0f}**{peer}")
    if not found:
        return ""
    return (
        f"Timesteps per second of {SHOWN_SEEDS} seeds trained at once on {env}, on one CPU core, "
        f"as multiples of SB3's, which trains one seed at a time: {', '.join(found)}.\n"
    )
