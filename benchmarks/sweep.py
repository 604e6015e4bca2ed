"""Runs the cells of a suite that are not finished yet, each as the command a person would type.

    python benchmarks/sweep.py --suite quick --seeds 30 --workers 2

What is finished is skipped without starting a process, so that after a kill, a crash or a full
disk the same command again does what is left. A cell that fails is reported, the others go on, and
the exit status is 1. What the cells print goes to RESULTS/logs/.
"""

from __future__ import annotations

import ctypes
import dataclasses
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.suite import SUITES, Cell
from manyseeds.cli import NonNegativeInt, PositiveInt, ScriptConfig, check_ranges, exit_with, parse
from manyseeds.errors import UsageError, did_you_mean
from manyseeds.process import exit_reason
from manyseeds.record import ranges

PR_SET_PDEATHSIG = 1  # linux/prctl.h


@dataclass(frozen=True, kw_only=True)
class Flags(ScriptConfig):
    """Flags of a sweep."""

    suite: str = "quick"
    """Name of the suite."""
    seeds: NonNegativeInt = 0
    """Seeds of every cell (0: as many as the suite says)."""
    workers: PositiveInt = 2
    """Processes at a time."""
    cut: bool = False
    """Cut budgets and seeds, for a look; the results go to RESULTS/cut."""
    dry_run: bool = False
    """Only show the commands and what is missing."""

    def __post_init__(self) -> None:
        check_ranges(self)
        if self.suite not in SUITES:
            raise UsageError(
                f"--suite {self.suite}: unknown suite{did_you_mean(self.suite, SUITES)}"
            )

    @property
    def folder(self) -> str:
        """The folder of the results. A cut never mixes with what may be published."""
        return str(Path(self.results) / "cut") if self.cut else self.results

    def cells(self) -> list[Cell]:
        """The cells as they are to be run."""
        cells = [cell.shortened() if self.cut else cell for cell in SUITES[self.suite]]
        asked = self.seeds
        return [dataclasses.replace(c, seeds=asked) if asked and c.seeds else c for c in cells]


@dataclass
class Job:
    """A cell while it runs."""

    cell: Cell
    process: subprocess.Popen[bytes]
    slots: int
    log: Path
    began: float


def slots(cell: Cell, workers: int) -> int:
    """Processes that a cell keeps busy: SB3 trains W seeds at a time, everything else is one."""
    return workers if cell.source == "sb3" else 1


def start(cell: Cell, results: str, workers: int) -> Job:
    """Start the command of a cell, its output in a log file."""
    log = Path(results) / "logs" / f"{cell.label}-{cell.env}-{cell.folder(results).path.name}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, *cell.command(results, workers)]
    with open(log, "wb") as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            preexec_fn=_end_with_parent if sys.platform == "linux" else None,
        )
    return Job(cell, process, slots(cell, workers), log, time.monotonic())


def _end_with_parent() -> None:
    """Kill this process when the sweep dies, even by kill -9: a rerun must not meet an orphan."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def sweep(cells: Sequence[Cell], results: str, workers: int) -> list[Cell]:
    """Run what is missing, at most `workers` processes at a time; returns the failed cells."""
    waiting, failed = [], []
    for cell in cells:
        if cell.missing(results):
            waiting.append(cell)
        else:
            report("skipped", cell, "finished already")
    # Baselines are the longest and take all workers: they come first, one after another.
    waiting.sort(key=lambda cell: -slots(cell, workers))
    running: list[Job] = []
    try:
        while waiting or running:
            free = workers - sum(job.slots for job in running)
            if waiting and slots(waiting[0], workers) <= free:
                cell = waiting.pop(0)
                try:
                    running.append(start(cell, results, workers))
                    report("started", cell)
                except OSError as error:  # a full disk, no memory for a process
                    report("failed", cell, str(error))
                    failed.append(cell)
                continue
            ended = [job for job in running if job.process.poll() is not None]
            for job in ended:
                running.remove(job)
                if not finish(job, results):
                    failed.append(job.cell)
            if not ended:
                time.sleep(0.1)
    finally:
        for job in running:
            job.process.terminate()
        for job in running:
            job.process.wait()
    return failed


def finish(job: Job, results: str) -> bool:
    """Report a cell whose process has ended; whether it is finished, as the store says."""
    seconds = f"{time.monotonic() - job.began:.0f} s"
    if job.process.returncode == 0 and not job.cell.missing(results):
        report("finished", job.cell, seconds)
        return True
    lines = job.log.read_text(errors="replace").split("\n")
    said = next((line.strip() for line in reversed(lines) if line.strip()), "no output")
    reason = exit_reason(job.process.returncode)
    report("failed", job.cell, f"{seconds}, {reason}: {said}; see {job.log}")
    return False


def report(what: str, cell: Cell, detail: str = "") -> None:
    """One line of progress."""
    print(f"{what:<9} {cell}" + (f": {detail}" if detail else ""), flush=True)


def show(cells: Sequence[Cell], results: str, workers: int) -> None:
    """The command of every cell and what it would train."""
    for cell in cells:
        groups = cell.missing(results)
        seeds = ranges(seed for group in groups for seed in group)
        todo = f"train seeds {seeds}" if seeds else "plan"
        report("missing" if groups else "finished", cell, todo if groups else "")
        print(f"          python {shlex.join(cell.command(results, workers))}")


def main(args: Sequence[str] | None = None) -> None:
    """Run a suite; exit status 1 if a cell failed."""
    flags = parse(Flags, {}, __doc__, args)
    cells = flags.cells()
    if flags.dry_run:
        show(cells, flags.folder, flags.workers)
        return
    try:
        failed = sweep(cells, flags.folder, flags.workers)
    except UsageError as error:
        exit_with(error)
    except KeyboardInterrupt:
        print("interrupted; the same command again runs what is missing", file=sys.stderr)
        raise SystemExit(130) from None
    if failed:
        names = "; ".join(map(str, failed))
        print(f"error: {len(failed)} of {len(cells)} cells failed: {names}", file=sys.stderr)
        raise SystemExit(1)


if __name__ == "__main__":
    main()
