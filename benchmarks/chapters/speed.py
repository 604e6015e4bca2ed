"""The page of timesteps per second: what throughput.py and rows_speed.py have measured."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from manyseeds.benchmarks.chapters.blocks import (
    Block,
    Cell,
    Figure,
    Fold,
    Heading,
    Outcome,
    Strong,
    Table,
    Text,
)
from manyseeds.benchmarks.chapters.origins import command_text
from manyseeds.benchmarks.measurements import rows_speed, throughput
from manyseeds.benchmarks.measurements.rows_speed import PLAIN, VARIED
from manyseeds.benchmarks.measurements.throughput import ONE_AT_A_TIME, OURS, STORED, SUBJECTS
from manyseeds.benchmarks.store.names import display
from manyseeds.benchmarks.store.results import versions_text
from manyseeds.benchmarks.store.stored import find_file, section_of
from manyseeds.errors import printable
from manyseeds.plots import Line
from manyseeds.record import plural

# What systems are called, in the order of their colours.
LABELS = {OURS: OURS, "sb3": "SB3", "rejax": "rejax", "rltools": "RLtools"}
ENV = throughput.Subject.env  # which most are timed on
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


# ---- Against the peers ----------------------------------------------------------------------


def against_peers(stored: Stored, seeds: int = SHOWN_SEEDS) -> dict[str, dict[str, dict[str, Any]]]:
    """The rows of a number of seeds, by what is timed and system, of what a peer has.

    A library that trains one seed at a time is as fast with any number of them.
    """
    found = {}
    for name, subject in SUBJECTS.items():
        if name in stored and subject.peers:
            by_system = {
                row["system"]: row
                for row in stored[name]["rows"]
                if row["seeds"] == seeds or row["system"] in ONE_AT_A_TIME
            }
            if OURS in by_system:
                found[name] = by_system
    return found


def against_sb3(stored: Stored, seeds: int = SHOWN_SEEDS) -> dict[str, dict[str, dict[str, Any]]]:
    """The same of what SB3 has."""
    return {x: rows for x, rows in against_peers(stored, seeds).items() if "sb3" in rows}


def label(name: str) -> str:
    """An algorithm, and its environment unless that is CartPole."""
    subject = SUBJECTS[name]
    return display(subject.algo) if subject.env == ENV else throughput.title(name)


def times(ratio: float) -> str:
    """A ratio, with two digits at least."""
    return f"{ratio:.0f}" if ratio >= 9.95 else f"{ratio:.1f}"


def peers_text(rows: dict[str, dict[str, Any]]) -> str:
    """What the peers besides SB3 have of its speed: `rejax 33, RLtools 21`."""
    peers = {LABELS[x]: rows[x]["ratio"] for x in ("rejax", "rltools") if x in rows}
    return ", ".join(f"{name} {times(ratio)}" for name, ratio in peers.items())


def summary(stored: Stored, seeds: int = SHOWN_SEEDS) -> str:
    """How many times as fast as SB3 ours are, in words; empty where it is not known."""
    by_env: dict[str, list[str]] = {ENV: []}
    for name, rows in against_sb3(stored, seeds).items():
        peers = f" ({text})" if (text := peers_text(rows)) else ""
        subject = SUBJECTS[name]
        sizes = f" with networks {subject.sizes}" if subject.sizes else ""
        text = f"{display(subject.algo)}{sizes} {times(rows[OURS]['ratio'])}{peers}"
        by_env.setdefault(subject.env, []).append(text)
    if not by_env[ENV]:
        return ""
    which = "one seed" if seeds == 1 else f"{seeds} seeds trained at once"
    first = (
        f"Timesteps per second of {which} on {ENV}, on one CPU core, networks of "
        "64-64 (DQN's 120-84), as multiples of SB3's, which trains one seed at a time: "
        f"{', '.join(by_env.pop(ENV))}."
    )
    return " ".join([first, *(f"On {env}: {', '.join(found)}." for env, found in by_env.items())])


def for_readme(stored: Stored) -> list[Block]:
    """What README.md of the project says of one seed and of `SHOWN_SEEDS` on `ENV`, as multiples of
    SB3's speed, and of RLtools: the faster of ours and rejax in bold."""
    sizes = 1, SHOWN_SEEDS
    found = {seeds: against_sb3(stored, seeds) for seeds in sizes}
    systems = OURS, "rejax"
    rows: list[tuple[Cell, ...]] = []
    for name in found[1]:
        if SUBJECTS[name].env != ENV or any(name not in timed for timed in found.values()):
            continue
        cells: dict[tuple[str, int], Cell] = {}
        for seeds, timed in found.items():
            ratios = {x: timed[name][x]["ratio"] for x in systems if x in timed[name]}
            best = max(ratios, key=lambda x: ratios[x]) if len(ratios) > 1 else ""
            for system, ratio in ratios.items():
                text = times(ratio)
                cells[system, seeds] = Strong(text) if system == best else text
        rows.append((label(name), *(cells.get((x, n), "") for x in systems for n in sizes)))
    if not rows:
        return []
    columns = ("seeds", *map(str, sizes), *(f"rejax, {n}" for n in sizes))
    return [Table("", columns, rows), *against_rltools(stored)]


def against_rltools(stored: Stored) -> Iterator[Text]:
    """One seed of ours beside one of RLtools'; nothing where it was not timed."""
    for name, rows in against_peers(stored, 1).items():
        if "rltools" in rows:
            ratio = rows[OURS]["timesteps_per_s"] / rows["rltools"]["timesteps_per_s"]
            subject = SUBJECTS[name]
            yield Text(
                f"On {subject.env} one seed of {display(subject.algo)} is {times(ratio)} times as "
                "fast as in RLtools, a C++ library."
            )


def fastest_table(stored: Stored, device: str) -> Table:
    """Timesteps/s of every system, one seed first, the fastest of a line in bold."""
    sizes = {r["seeds"] for block in stored.values() for r in block["rows"] if r["system"] == OURS}
    lines = [
        (seeds, name, {LABELS[x]: rows[x]["timesteps_per_s"] for x in LABELS if x in rows})
        for seeds in sorted(sizes)
        for name, rows in against_peers(stored, seeds).items()
    ]
    systems = [x for x in LABELS.values() if any(x in speeds for _, _, speeds in lines)]
    rows: list[tuple[Cell, ...]] = []
    for seeds, name, speeds in lines:
        texts = {x: f"{speed:,.0f}" for x, speed in speeds.items()}
        best = max(speeds, key=lambda x: speeds[x])
        cells = (Strong(texts[x]) if x == best else texts.get(x, "") for x in systems)
        rows.append((f"{seeds:,}", throughput.title(name), *cells))
    return Table(f"speed-seeds{'-cuda' * (device == 'cuda')}", ("seeds", "", *systems), rows)


# ---- Every algorithm, by the number of seeds ------------------------------------------------


def device_section(stored: Stored, heading: str, device: str) -> Iterator[Block]:
    """Figure and tables of the measurements on a device."""
    if not (panels := lines_of(stored)):
        return
    yield Heading(heading)
    if device == "cpu":
        yield from (Outcome(text) for seeds in (1, SHOWN_SEEDS) if (text := summary(stored, seeds)))
    if (table := fastest_table(stored, device)).rows:
        yield Text(
            "Timesteps per second of all seeds together, the fastest of a line in bold. SB3 and "
            "RLtools train one seed at a time, at the same speed whatever their number."
        )
        yield table
    label = "Timesteps per second over the number of seeds"
    axes = {"xlabel": "seeds at once", "ylabel": "timesteps/s", "log_x": True, "log_y": True}
    data = {
        "panels": panels,
        "first": list(LABELS.values()),
        "legend": "medians over repeats",
        **axes,
    }
    yield Figure(f"speed-{device}", label, "lines", data)
    place = "one thread on one core" if device == "cpu" else "on one GPU, SB3 on one core"
    yield Text(
        "Timesteps per second of all seeds together, training and logging, evaluation off, "
        f"{place}. SB3 and RLtools train one seed at a time: S seeds run at the same timesteps/s "
        "and take S times the wall time of one."
    )
    yield Text(
        "Medians of n interleaved repeats. The ratio is computed within each repeat, with its "
        "range over repeats in brackets. Warm-up: the first training's extra seconds, as for "
        "compilation or capture. Fresh process: seconds from the start of the process to the end "
        "of one training, imports and warm-up included. Memory: peak memory of the process, on a "
        "GPU that of the device."
    )
    yield from (algo_table(algo, stored[algo], device) for algo in SUBJECTS if algo in stored)


def algo_table(algo: str, block: dict[str, Any], device: str) -> Fold:
    """The measurements of an algorithm, with their origin."""
    machine = block["machine"]
    name = f"speed-{algo}" + "-cuda" * (device == "cuda")
    rows = throughput.cells(block["rows"])
    steps = SUBJECTS[algo].settings["total_timesteps"]
    note = f"{steps:,} timesteps per seed on {machine.get('gpu', machine['cpu'])}."
    if algo == "dqn" and any(r["system"] == "rejax" for r in block["rows"]):
        note += " rejax's DQN has ten environments, so it also updates every 10 timesteps."
    if any(r["system"] == "rltools" for r in block["rows"]):
        note += " RLtools compiles a program for every choice of hyperparameters, its warm-up."
    return Fold(
        f"{throughput.title(algo)}: {plural(len(rows), 'measurement')}",
        [
            Table(name, throughput.columns(algo), rows),
            Text(note, " ", *command_text(block, versions_text(block))),
        ],
    )


def lines_of(stored: Stored) -> dict[str, dict[str, Line]]:
    """Timesteps/s over the number of seeds: a panel per algorithm, a line per system.

    SB3 and RLtools, timed with one seed, have the same timesteps/s for any number of them.
    """
    panels = {}
    for algo in (algo for algo in SUBJECTS if algo in stored):
        rows = stored[algo]["rows"]
        sizes = sorted({r["seeds"] for r in rows})
        lines = {}
        for system in dict.fromkeys(r["system"] for r in rows):
            own = sorted((r["seeds"], r["timesteps_per_s"]) for r in rows if r["system"] == system)
            if system in ONE_AT_A_TIME:
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
