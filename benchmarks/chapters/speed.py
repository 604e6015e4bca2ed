"""The page of timesteps per second: what throughput.py and rows_speed.py have measured."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from manyseeds.benchmarks.chapters.blocks import Block, Figure, Fold, Heading, Outcome, Table, Text
from manyseeds.benchmarks.chapters.origins import command_text
from manyseeds.benchmarks.measurements import rows_speed, throughput
from manyseeds.benchmarks.measurements.rows_speed import PLAIN, VARIED
from manyseeds.benchmarks.measurements.throughput import OURS, STORED, SUBJECTS
from manyseeds.benchmarks.store.names import display
from manyseeds.benchmarks.store.results import versions_text
from manyseeds.benchmarks.store.stored import find_file, section_of
from manyseeds.errors import printable
from manyseeds.plots import Line
from manyseeds.record import plural

LABELS = {"sb3": "SB3"}  # of systems in figures, where they differ from their names
SYSTEMS = (OURS, "SB3", "rejax")  # in the order of the colours
SHOWN_SEEDS = 10  # of the comparison on the front page
Stored = dict[str, dict[str, Any]]  # throughput.json: algorithm -> its measurements


def page(results: Path) -> Iterator[Block]:
    """The page; nothing where nothing was measured."""
    for heading, name, device in (
        ("On a CPU", "throughput.json", "cpu"),
        ("On a GPU", "throughput-cuda.json", "cuda"),
    ):
        write = partial(device_section, heading=heading, device=device)
        yield from section_of(find_file(results, name), STORED, write)
    yield from section_of(find_file(results, "rows_speed.json"), rows_speed.STORED, rows_section)


# ---- Ten seeds against SB3 ------------------------------------------------------------------


def against_sb3(stored: Stored) -> dict[str, dict[str, dict[str, Any]]]:
    """The rows of SHOWN_SEEDS seeds by algorithm, of those that SB3 has, and system."""
    found = {}
    for algo, subject in SUBJECTS.items():
        if algo in stored and "sb3" in subject.peers:
            rows = [r for r in stored[algo]["rows"] if r["seeds"] == SHOWN_SEEDS]
            by_system = {r["system"]: r for r in rows}
            if OURS in by_system:
                found[algo] = by_system
    return found


def summary(stored: Stored) -> str:
    """How many times SB3's speed ten seeds have, as one sentence; empty where it is not known."""
    found = against_sb3(stored)
    if not found:
        return ""
    ratios = []
    for algo, rows in found.items():
        peer = f" (rejax {rows['rejax']['ratio']:.0f})" if "rejax" in rows else ""
        ratios.append(f"{display(algo)} {rows[OURS]['ratio']:.0f}{peer}")
    return (
        f"Timesteps per second of {SHOWN_SEEDS} seeds trained at once on "
        f"{SUBJECTS[[*found][-1]].env}, on one CPU core, as multiples of SB3's, which trains one "
        f"seed at a time: {', '.join(ratios)}."
    )


# ---- Every algorithm, by the number of seeds ------------------------------------------------


def device_section(stored: Stored, heading: str, device: str) -> Iterator[Block]:
    """Figure and tables of the measurements on a device."""
    if not (panels := lines_of(stored)):
        return
    yield Heading(heading)
    if device == "cpu" and (sentence := summary(stored)):
        yield Outcome(sentence)
    label = "Timesteps per second over the number of seeds"
    axes = {"xlabel": "seeds at once", "ylabel": "timesteps/s", "log_x": True, "log_y": True}
    data = {"panels": panels, "first": SYSTEMS, "legend": "medians over repeats", **axes}
    yield Figure(f"speed-{device}", label, "lines", data)
    place = "one thread on one core" if device == "cpu" else "on one GPU, SB3 on one core"
    yield Text(
        "Timesteps per second of all seeds together, training and logging, evaluation off, "
        f"{place}. SB3 trains one seed at a time: S seeds run at the same timesteps/s and take S "
        "times the wall time of one."
    )
    yield Text(
        "Medians of n interleaved repeats. The ratio is computed within each repeat, with its "
        "range over repeats in brackets. Warm-up: seconds of compilation or capture before that "
        "speed is reached. Fresh process: seconds from the start of the process to the end of one "
        "training, imports and warm-up included. Memory: peak memory of the process, on a GPU "
        "that of the device."
    )
    yield from (algo_table(algo, stored[algo], device) for algo in SUBJECTS if algo in stored)


def algo_table(algo: str, block: dict[str, Any], device: str) -> Fold:
    """The measurements of an algorithm, with their origin."""
    machine = block["machine"]
    name = f"speed-{algo}" + "-cuda" * (device == "cuda")
    rows = throughput.cells(block["rows"], device)
    steps = SUBJECTS[algo].settings["total_timesteps"]
    note = f"{steps:,} timesteps per seed on {machine.get('gpu', machine['cpu'])}."
    if algo == "dqn" and any(r["system"] == "rejax" for r in block["rows"]):
        note += " rejax's DQN has ten environments, so it also updates every 10 timesteps."
    return Fold(
        f"{throughput.title(algo)}: {plural(len(rows), 'measurement')}",
        [
            Table(name, throughput.columns(algo), rows),
            Text(note, " ", *command_text(block, versions_text(block))),
        ],
    )


def lines_of(stored: Stored) -> dict[str, dict[str, Line]]:
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
        panels[throughput.title(algo)] = lines
    return panels


def rows_section(stored: dict[str, Any]) -> Iterator[Block]:
    """What hyperparameters of their own cost the rows of a batch."""
    measurements = stored["measurements"]
    times = median(rows_speed.ratios(measurements)[VARIED])
    yield Heading("Many configurations at once")
    yield Outcome(f"{VARIED} of PPO take {times:.2f} times as long as {PLAIN} with one.")
    yield Text(
        "CartPole-v1, CleanRL's sizes, evaluation off, one thread on one core, "
        f"{stored['total_timesteps']:,} timesteps per row, a part of a training. Medians of n "
        "interleaved repeats, with their range in brackets. rejax also has a learning rate for "
        "each row. SB3 trains one row after another, so one row was measured."
    )
    yield Table("speed-rows", rows_speed.COLUMNS, rows_speed.cells(measurements))
    yield command_text(stored, versions_text(stored))
