"""How far a sweep is: a table in a terminal, for the sweep itself and for who looks on.

The same picture is drawn from what happens (`Display.add`) and from the store (`Display.look`), so
that a terminal that was lost is replaced by `sweep.py --watch`. Finished seeds stand in the store,
running ones hold a lock there; when a sweep began and what failed is in RESULTS/logs/sweep.jsonl.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from rich.console import Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from manyseeds.benchmarks.launchers.tasks import Event, Task
from manyseeds.progress import console
from manyseeds.record import plural
from manyseeds.runs.stale import read_again

ROWS = 15  # cells that are shown; the others are counted


@dataclass
class Row:
    """A cell, in seeds; a plan counts as one."""

    name: str
    total: int
    done: int = 0
    running: int = 0
    failed: int = 0


class Display:
    """Rows of cells, and what they amount to.

    tasks: those of the sweep. left: what of them was missing when it began. Used as a context it
    draws in a terminal, and elsewhere nothing.
    """

    def __init__(self, tasks: Sequence[Task], left: Sequence[Task]) -> None:
        self.rows: dict[int, Row] = {}
        for task in tasks:
            row = self.rows.setdefault(id(task.cell), Row(str(task.cell), 0))
            row.total += task.count
            row.done += task.count
        for task in left:
            self.rows[id(task.cell)].done -= task.count
        self.began, self.done_before = time.time(), self.done
        self._live = Live(get_renderable=self.table, console=console, transient=True)

    def __enter__(self) -> Display:
        if console.is_terminal:
            self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if console.is_terminal:
            self._live.stop()

    @property
    def done(self) -> int:
        """Seeds that are finished."""
        return sum(row.done for row in self.rows.values())

    def add(self, event: Event) -> None:
        """Count what happened."""
        row, count = self.rows[id(event.task.cell)], event.task.count
        if event.what == "started":
            row.running += count
        elif event.what in ("finished", "failed"):
            row.running = max(row.running - count, 0)  # it may have failed to start
            if event.what == "finished":
                row.done += count
            else:
                row.failed += count

    def look(self, tasks: Sequence[Task], results: str) -> None:
        """Count what the store holds of the tasks."""
        failed = self.read_log(results)
        read_again()  # the code may be edited while somebody looks on
        for row in self.rows.values():
            row.done = row.running = row.failed = 0
        missing: dict[int, set[int]] = {}
        for task in tasks:
            row, cell = self.rows[id(task.cell)], task.cell
            if id(cell) not in missing:
                groups = cell.missing(results)
                missing[id(cell)] = {seed for group in groups for seed in group or [0]}
            asked = set(task.seeds or cell.all_seeds or [0])
            left = asked & missing[id(cell)]
            running = cell.folder(results).in_training(left)
            row.done += len(asked - left)
            row.running += len(running)
            if str(task) in failed:
                row.failed += len(left - running)

    def read_log(self, results: str) -> set[str]:
        """The tasks that failed last, by name; also when the last sweep began."""
        last: dict[str, str] = {}
        for event in read_events(results):
            if event["what"] == "began":
                self.began, self.done_before = event["at"], event["done"]
            else:
                last[event["task"]] = event["what"]
        return {task for task, what in last.items() if what == "failed"}

    def table(self) -> Group:
        """The picture."""
        table = Table(box=None, pad_edge=False)
        for name in ("cell", "seeds", "running", "failed"):
            left = name == "cell"
            table.add_column(name, justify="left" if left else "right", no_wrap=True)
        rows = list(self.rows.values())
        rows.sort(key=lambda row: (-row.running, -row.failed, row.done == row.total))
        for row in rows[:ROWS]:
            numbers = (f"{row.done}/{row.total}", str(row.running or ""), str(row.failed or ""))
            table.add_row(Text(row.name, overflow="ellipsis"), *numbers)
        if more := rows[ROWS:]:
            done, total = sum(row.done for row in more), sum(row.total for row in more)
            table.add_row(f"{plural(len(more), 'more cell')}", f"{done}/{total}")
        return Group(table, Text(self.summary()))

    def summary(self) -> str:
        """All cells in one line: `34 of 90 seeds, 4 running, 3.1 seeds/min, 18 min left`."""
        rows = self.rows.values()
        total, running = sum(row.total for row in rows), sum(row.running for row in rows)
        failed, new = sum(row.failed for row in rows), self.done - self.done_before
        text = f"{self.done} of {plural(total, 'seed')}"
        text += f", {running} running" * (running > 0) + f", {failed} failed" * (failed > 0)
        if new > 0:
            minutes = max(time.time() - self.began, 1) / 60  # clocks may differ
            left = (total - self.done - failed) * minutes / new
            text += f", {new / minutes:.1f} seeds/min"
            text += f", {left:.0f} min left" if left > 0 else ""
        return text


def log_path(results: str) -> Path:
    """Where events are written, a line of JSON each."""
    return Path(results) / "logs" / "sweep.jsonl"


def write_event(results: str, what: str, **fields: Any) -> None:
    """Add an event to the log; a store that cannot be written to says so elsewhere."""
    with contextlib.suppress(OSError):
        log_path(results).parent.mkdir(parents=True, exist_ok=True)
        with log_path(results).open("a") as file:
            file.write(json.dumps({"at": time.time(), "what": what, **fields}) + "\n")


def read_events(results: str) -> Iterator[dict[str, Any]]:
    """The events of a log, without lines that were cut off."""
    with contextlib.suppress(OSError), log_path(results).open(errors="replace") as file:
        for line in file:
            with contextlib.suppress(ValueError):
                yield json.loads(line)


def watch(tasks: Sequence[Task], results: str, seconds: float = 5) -> None:
    """Show the picture until all is finished: a live table in a terminal, one look elsewhere."""
    with Display(tasks, []) as display:
        while True:
            display.look(tasks, results)
            if not console.is_terminal:
                console.print(display.table())
                return
            if all(row.done == row.total for row in display.rows.values()):
                break
            time.sleep(seconds)
    console.print(display.summary())
