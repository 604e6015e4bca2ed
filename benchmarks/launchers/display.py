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

from manyseeds.benchmarks.launchers.jobs import Event, Job
from manyseeds.errors import UsageError
from manyseeds.progress import console
from manyseeds.record import plural
from manyseeds.runs.stale import read_again
from manyseeds.untrusted import check, check_within, open_to_write, read_bytes

MOST = 15  # cells that are shown; the others are counted


@dataclass
class Progress:
    """How far a cell is, in seeds. A plan counts as one."""

    name: str
    total: int
    done: int = 0
    running: int = 0
    failed: int = 0


class Display:
    """The progress of cells, and what it amounts to.

    jobs: those of the sweep. left: what of them was missing when it began. Used as a context it
    draws in a terminal, and elsewhere nothing.
    """

    def __init__(self, jobs: Sequence[Job], left: Sequence[Job]) -> None:
        self.cells: dict[int, Progress] = {}
        for job in jobs:
            progress = self.cells.setdefault(id(job.cell), Progress(str(job.cell), 0))
            progress.total += job.count
            progress.done += job.count
        for job in left:
            self.cells[id(job.cell)].done -= job.count
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
        return sum(progress.done for progress in self.cells.values())

    def add(self, event: Event) -> None:
        """Count what happened."""
        progress, count = self.cells[id(event.job.cell)], event.job.count
        if event.what == "started":
            progress.running += count
        elif event.what in ("finished", "failed"):
            progress.running = max(progress.running - count, 0)  # it may have failed to start
            if event.what == "finished":
                progress.done += count
            else:
                progress.failed += count

    def look(self, jobs: Sequence[Job], results: str) -> None:
        """Count what the store holds of the jobs."""
        failed = self.read_log(results)
        read_again()  # the code may be edited while somebody looks on
        for progress in self.cells.values():
            progress.done = progress.running = progress.failed = 0
        missing: dict[int, set[int]] = {}
        for job in jobs:
            progress, cell = self.cells[id(job.cell)], job.cell
            if id(cell) not in missing:
                groups = cell.missing(results)
                missing[id(cell)] = {seed for group in groups for seed in group or [0]}
            asked = set(job.seeds or cell.all_seeds or [0])
            left = asked & missing[id(cell)]
            running = cell.folder(results).in_training(left)
            progress.done += len(asked - left)
            progress.running += len(running)
            if str(job) in failed:
                progress.failed += len(left - running)

    def read_log(self, results: str) -> set[str]:
        """The jobs that failed last, by name; also when the last sweep began."""
        last: dict[str, str] = {}
        for event in read_events(results):
            if event["what"] == "began":
                self.began, self.done_before = event["at"], event.get("done", 0)
            else:
                last[event.get("job", "")] = event["what"]
        return {job for job, what in last.items() if what == "failed"}

    def table(self) -> Group:
        """The picture."""
        table = Table(box=None, pad_edge=False)
        for name in ("cell", "seeds", "running", "failed"):
            left = name == "cell"
            table.add_column(name, justify="left" if left else "right", no_wrap=True)
        cells = list(self.cells.values())
        cells.sort(key=lambda cell: (-cell.running, -cell.failed, cell.done == cell.total))
        for cell in cells[:MOST]:
            numbers = (f"{cell.done}/{cell.total}", str(cell.running or ""), str(cell.failed or ""))
            table.add_row(Text(cell.name, overflow="ellipsis"), *numbers)
        if more := cells[MOST:]:
            done, total = sum(cell.done for cell in more), sum(cell.total for cell in more)
            table.add_row(f"{plural(len(more), 'more cell')}", f"{done}/{total}")
        return Group(table, Text(self.summary()))

    def summary(self) -> str:
        """All cells in one line: `34 of 90 seeds, 4 running, 3.1 seeds/min, 18 min left`."""
        cells = self.cells.values()
        total, running = sum(x.total for x in cells), sum(x.running for x in cells)
        failed, new = sum(x.failed for x in cells), self.done - self.done_before
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
    with contextlib.suppress(OSError, UsageError):
        log_path(results).parent.mkdir(parents=True, exist_ok=True)
        check_within(log_path(results), Path(results))
        with open_to_write(log_path(results), append=True) as file:
            file.write(f"{json.dumps({'at': time.time(), 'what': what, **fields})}\n".encode())


EVENT = {"at": float, "what": str, "job?": str, "done?": int}


def read_events(results: str) -> Iterator[dict[str, Any]]:
    """The events of a log, without lines that were cut off."""
    with contextlib.suppress(OSError, UsageError):
        for line in read_bytes(log_path(results)).splitlines():
            with contextlib.suppress(ValueError, RecursionError):
                event = json.loads(line)
                check(event, EVENT, "")
                yield event


def watch(jobs: Sequence[Job], results: str, seconds: float = 5) -> None:
    """Show the picture until all is finished: a live table in a terminal, one look elsewhere."""
    with Display(jobs, []) as display:
        while True:
            display.look(jobs, results)
            if not console.is_terminal:
                console.print(display.table())
                return
            if all(progress.done == progress.total for progress in display.cells.values()):
                break
            time.sleep(seconds)
    console.print(display.summary())
