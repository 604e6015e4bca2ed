"""Runs the cells of a suite that are not finished yet, each as the command a person would type.

    python benchmarks/sweep.py --suite quick --seeds 30 --workers 2
    python benchmarks/sweep.py --suite policy-gradient --only sb3          # some of its cells
    python benchmarks/sweep.py --suite classic-control --until-decided --publish

What is finished is skipped without starting a process, so that after a kill, a crash or a full
disk the same command again does what is left. A cell that fails is reported, the others go on, and
the exit status is 1. What the cells print goes to RESULTS/logs/.

Runs go to the user's layer, results/local, and what is published is not looked at. `--publish`
trains the seeds that the published layer lacks and writes them there; the sources must be those of
a commit, which the runs name. Runs are published without weights, but for those of two seeds of
each of our cells, the median and the worst: they are trained once more, must score what is
published, and go to results/policies (`benchmarks/policies.py`).
"""

from __future__ import annotations

import ctypes
import dataclasses
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks import jax_peer
from benchmarks.chapters.results import load_result, seeds_due
from benchmarks.chapters.stored import open_run
from benchmarks.policies import keep, lacking
from benchmarks.suite import SUITES, Cell
from manyseeds.cli import (
    PUBLISHED,
    PUBLISHING,
    LayerConfig,
    NonNegativeInt,
    PositiveInt,
    exit_with,
    parse,
)
from manyseeds.errors import UsageError, did_you_mean
from manyseeds.process import exit_reason
from manyseeds.record import check_committed, plural, ranges

PR_SET_PDEATHSIG = 1  # linux/prctl.h
WITHOUT_POLICIES = ("ablations",)  # suites whose policies would be as large as all the others


@dataclass(frozen=True, kw_only=True)
class Flags(LayerConfig):
    """Flags of a sweep."""

    suite: str = "quick"
    """Name of the suite."""
    seeds: NonNegativeInt = 0
    """Seeds of every cell (0: as many as the suite says)."""
    workers: PositiveInt = 2
    """Processes at a time."""
    only: tuple[str, ...] = ()
    """Cells whose `sb3`, `ppo/CartPole-v1` or the like is among these words (default: all)."""
    cut: bool = False
    """Cut budgets and seeds, for a look; the results go to RESULTS/cut."""
    until_decided: bool = False
    """Add seeds until verdicts are decided. By the rule of benchmarks/verdicts.py: SB3's seeds, and
    ours where they are too few for the same look."""
    dry_run: bool = False
    """Only show the commands and what is missing."""

    def __post_init__(self) -> None:
        if self.suite not in SUITES:
            raise UsageError(
                f"--suite {self.suite}: unknown suite{did_you_mean(self.suite, SUITES)}"
            )
        for word in self.only:
            if not any(cell.matches(word) for cell in SUITES[self.suite]):
                names = sorted({f"{cell.label}/{cell.env}" for cell in SUITES[self.suite]})
                raise UsageError(f"--only {word}: no such cell{did_you_mean(word, names)}")
        self.check_publish()
        if self.publish and self.cut:
            raise UsageError("--publish: a cut is never published")
        if self.until_decided and (self.seeds or self.cut):
            which = "--seeds" if self.seeds else "--cut"
            raise UsageError(f"--until-decided: says how many seeds there are; without {which}")

    @property
    def keeps_policies(self) -> bool:
        """Whether policies are published with the runs."""
        return self.publish and self.suite not in WITHOUT_POLICIES

    @property
    def folder(self) -> str:
        """The folder of the results. A cut never mixes with other runs."""
        if self.publish:
            return os.path.relpath(PUBLISHED)
        return str(Path(self.results) / "cut") if self.cut else self.results

    def cells(self) -> list[Cell]:
        """The cells as they are to be run."""
        chosen = [
            cell
            for cell in SUITES[self.suite]
            if not self.only or any(map(cell.matches, self.only))
        ]
        cells = [cell.shortened() if self.cut else cell for cell in chosen]
        S = self.seeds
        return [dataclasses.replace(c, seeds=S) if S and c.seeds else c for c in cells]


@dataclass(frozen=True)
class Task:
    """One command: a cell, or in the published layer some consecutive seeds of it."""

    cell: Cell
    seeds: tuple[int, ...] = ()  # those that it trains (empty: whatever the command finds missing)

    def command(self, results: str, workers: int) -> list[str]:
        """What stands after `python`."""
        return self.cell.command(results, workers, self.seeds)

    def finished(self, results: str) -> bool:
        """Whether the store has what it trains."""
        missing = self.cell.missing(results)
        if not self.seeds:
            return not missing
        return not any(seed in group for group in missing for seed in self.seeds)

    def __str__(self) -> str:
        return str(self.cell) + (f" ({ranges(self.seeds)})" if self.seeds else "")


def tasks(cell: Cell, results: str, missing: Sequence[list[int]] | None = None) -> list[Task]:
    """The commands that train what is missing of a cell; one, but for the published layer.

    There a script cannot see what is finished: runs that came with a checkout have no weights.

    missing: what `Cell.missing` has just returned; looked up otherwise.
    """
    missing = cell.missing(results) if missing is None else missing
    if cell.seeds and is_published(results):
        return [Task(cell, tuple(group)) for group in missing]
    return [Task(cell)] if missing else []


def is_published(results: str) -> bool:
    """Whether a folder is the published layer."""
    return Path(results).resolve() == PUBLISHED


@dataclass
class Job:
    """A task while it runs."""

    task: Task
    process: subprocess.Popen[bytes]
    slots: int
    log: Path
    began: float


def slots(task: Task, workers: int) -> int:
    """Processes that a task keeps busy: SB3 trains W seeds at a time, everything else is one."""
    return workers if task.cell.source in ("sb3", "sbx") else 1


def start(task: Task, results: str, workers: int) -> Job:
    """Start the command of a task, its output in a log file."""
    cell = task.cell
    name = f"{cell.label}-{cell.env}-{cell.folder(results).path.name}"
    name += f"-{task.seeds[0]}" if task.seeds else ""
    log = Path(results) / "logs" / f"{name}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    published = {PUBLISHING: "1"} if is_published(results) else {}
    with open(log, "wb") as output:
        process = subprocess.Popen(
            [str(python_of(cell)), *task.command(results, workers)],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, **published},
            preexec_fn=_end_with_parent if sys.platform == "linux" else None,
        )
    return Job(task, process, slots(task, workers), log, time.monotonic())


def python_of(cell: Cell) -> Path:
    """The interpreter that has what a cell needs; UsageError where it is not set up."""
    if cell.source not in ("sbx", "rejax"):
        return Path(sys.executable)
    if not jax_peer.PYTHON.exists():
        raise UsageError(f"{cell}: needs {jax_peer.PYTHON}: make jax-env")
    return jax_peer.PYTHON


def _end_with_parent() -> None:
    """Kill this process when the sweep dies, even by kill -9: a rerun must not meet an orphan."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def sweep(cells: Sequence[Cell], results: str, workers: int) -> list[Task]:
    """Run what is missing, at most `workers` processes at a time; returns the failed tasks."""
    waiting: list[Task] = []
    failed: list[Task] = []
    for cell in cells:
        if todo := tasks(cell, results):
            waiting += todo
        else:
            report("skipped", cell, "finished already")
    # Baselines are the longest and take all workers: they come first, one after another.
    waiting.sort(key=lambda task: -slots(task, workers))
    running: list[Job] = []
    try:
        while waiting or running:
            free = workers - sum(job.slots for job in running)
            if waiting and slots(waiting[0], workers) <= free:
                task = waiting.pop(0)
                try:
                    running.append(start(task, results, workers))
                    report("started", task)
                except OSError as error:  # a full disk, no memory for a process
                    report("failed", task, str(error))
                    failed.append(task)
                continue
            ended = [job for job in running if job.process.poll() is not None]
            for job in ended:
                running.remove(job)
                if not finish(job, results):
                    failed.append(job.task)
            if not ended:
                time.sleep(0.1)
    finally:
        for job in running:
            job.process.terminate()
        for job in running:
            job.process.wait()
    return failed


def sweep_until_decided(cells: Sequence[Cell], results: str, workers: int) -> list[Task]:
    """Sweep, look at the verdicts and sweep again, until none is due; returns the failed tasks.

    What fails is not tried again, nor looked at; the other comparisons go on.
    """
    failed: list[Task] = []
    while True:
        broken = {(task.cell.algo, task.cell.env) for task in failed}
        now = [c for c in asked_for(cells, results) if (c.algo, c.env) not in broken]
        failed += (failing := sweep(now, results, workers))
        if not failing and asked_for(now, results) == now:
            return failed


def asked_for(cells: Sequence[Cell], results: str) -> list[Cell]:
    """The cells with the seeds that the rule asks for."""
    return [dataclasses.replace(cell, seeds=seeds_asked_for(cell, results)) for cell in cells]


def seeds_asked_for(cell: Cell, results: str) -> int:
    """The seeds of a cell by the rule: those that the next look needs, and never fewer than the
    suite says."""
    looked_at = cell.package == "algos" and cell.source in ("manyseeds", "sb3")
    if not looked_at or not cell.seeds or cell.first_seed:
        return cell.seeds
    sides = [dataclasses.replace(cell, source=source) for source in ("manyseeds", "sb3")]
    folders = [side.folder(results) for side in sides]
    if not all(folder.parts() for folder in folders):
        return cell.seeds
    ours, theirs = (load_result(open_run(folder)) for folder in folders)
    return max(cell.seeds, seeds_due(ours, theirs)[cell.source == "sb3"])


def finish(job: Job, results: str) -> bool:
    """Report a task whose process has ended; whether it is finished, as the store says."""
    seconds = f"{time.monotonic() - job.began:.0f} s"
    if job.process.returncode == 0 and job.task.finished(results):
        report("finished", job.task, seconds)
        return True
    lines = job.log.read_text(errors="replace").split("\n")
    said = next((line.strip() for line in reversed(lines) if line.strip()), "no output")
    reason = exit_reason(job.process.returncode)
    report("failed", job.task, f"{seconds}, {reason}: {said}; see {job.log}")
    return False


def report(what: str, task: Task | Cell, detail: str = "") -> None:
    """One line of progress."""
    print(f"{what:<9} {task}" + (f": {detail}" if detail else ""), flush=True)


def show(cells: Sequence[Cell], results: str, workers: int) -> None:
    """What every cell would train, and by which commands; of a finished one its command."""
    for cell in cells:
        groups = cell.missing(results)
        seeds = ranges(seed for group in groups for seed in group)
        todo = f"train seeds {seeds}" if seeds else "plan"
        report("missing" if groups else "finished", cell, todo if groups else "")
        for task in tasks(cell, results, groups) or [Task(cell)]:
            print(f"          python {shlex.join(task.command(results, workers))}")


def main(args: Sequence[str] | None = None) -> None:
    """Run a suite; exit status 1 if a cell failed."""
    flags = parse(Flags, {}, __doc__, args)
    cells = flags.cells()
    try:
        if flags.dry_run:
            due = asked_for(cells, flags.folder) if flags.until_decided else cells
            show(due, flags.folder, flags.workers)
            for cell in lacking(cells, flags.folder) if flags.keeps_policies else ():
                print(f"missing   policies of {cell}")
            return
        for cell in cells:
            python_of(cell)  # before any is trained
        if flags.publish:
            check_committed()
        run = sweep_until_decided if flags.until_decided else sweep
        failed = [str(task) for task in run(cells, flags.folder, flags.workers)]
        if flags.keeps_policies:
            failed += keep(cells, flags.folder)
    except UsageError as error:
        exit_with(error)
    except KeyboardInterrupt:
        print("interrupted; the same command again runs what is missing", file=sys.stderr)
        raise SystemExit(130) from None
    if failed:
        names = "; ".join(failed)
        print(
            f"error: {len(failed)} of {plural(len(cells), 'cell')} failed: {names}", file=sys.stderr
        )
        raise SystemExit(1)


if __name__ == "__main__":
    main()
