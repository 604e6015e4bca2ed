"""Jobs: the commands that a sweep consists of, each a cell or a block of its seeds."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

from manyseeds.benchmarks.experiments import jax_peer
from manyseeds.benchmarks.experiments.suite import Cell
from manyseeds.cli import PUBLISHED
from manyseeds.errors import UsageError
from manyseeds.record import consecutive, ranges
from manyseeds.untrusted import MAX_WEIGHTS, check_within, open_checked


@dataclass(frozen=True)
class Job:
    """One command: a cell, or some consecutive seeds of it."""

    cell: Cell
    seeds: tuple[int, ...] = ()  # those that it trains (empty: whatever the command finds missing)

    def command(self, results: str, workers: int) -> list[str]:
        """What stands after `python`."""
        return self.cell.command(results, workers, self.seeds)

    def finished(self, results: str, by_any_code: bool = False) -> bool:
        """Whether the store has what it trains; by_any_code: also by other code than today's."""
        return not self.without(self.cell.missing(results, by_any_code), whole=True)

    def without(self, missing: Sequence[Sequence[int]], whole: bool) -> list[Job]:
        """The jobs that are left of this one, by the `missing` seeds of its cell.

        whole: a command for all that is missing, which skips by itself what is finished;
        otherwise one for every group of consecutive seeds.
        """
        if not self.seeds and (whole or not self.cell.seeds):
            return [self] if missing else []
        left = {seed for group in missing for seed in group}
        if self.seeds:
            left &= set(self.seeds)
        return [Job(self.cell, tuple(group)) for group in consecutive(left)]

    @property
    def count(self) -> int:
        """Its seeds, and 1 for a plan, which has none."""
        return len(self.seeds) or self.cell.seeds or 1

    @property
    def name(self) -> str:
        """What its log is called: ppo-CartPole-v1-1a2b3c4d-10."""
        env, _, run = self.cell.folder().path.parts[-3:]
        return "-".join([self.cell.label, env, run, *map(str, self.seeds[:1])])

    def __str__(self) -> str:
        return str(self.cell) + (f" ({ranges(self.seeds)})" if self.seeds else "")


class Event(NamedTuple):
    """What happened to a job."""

    what: Literal["started", "finished", "failed", "waiting", "refused"]
    job: Job
    detail: str = ""


def all_jobs(cells: Sequence[Cell], block: int = 0) -> list[Job]:
    """The jobs of cells, finished or not, in an order that depends on nothing else.

    block: seeds of a job, which begins at a multiple of it (0: a job is a cell).
    """
    return [Job(cell, seeds) for cell in cells for seeds in blocks(cell, block)]


def blocks(cell: Cell, block: int) -> Iterator[tuple[int, ...]]:
    """The seeds of a cell's jobs."""
    if not (block and cell.seeds):
        yield ()
        return
    seeds = cell.all_seeds
    for first in range(seeds.start // block * block, seeds.stop, block):
        yield tuple(seed for seed in range(first, first + block) if seed in seeds)


def slots(job: Job, workers: int) -> int:
    """Processes that a job keeps busy: SB3 trains W seeds at a time, everything else is one."""
    return min(workers, job.count) if job.cell.source in ("sb3", "sbx") else 1


def on_gpu(job: Job) -> bool:
    """Whether a job trains on CUDA."""
    return job.cell.config().device == "cuda"


def log_of(job: Job, results: str) -> Path:
    """The file for the output of a job, in a folder that is made where it is missing."""
    log = Path(results) / "logs" / f"{job.name}.log"
    check_within(log, Path(results))
    log.parent.mkdir(parents=True, exist_ok=True)
    return log


def last_line(text: str) -> str:
    """The last line of an output that says anything."""
    lines = (line.strip() for line in reversed(text.splitlines()))
    return next((line for line in lines if line), "no output")


def last_line_of(log: Path) -> str:
    """The last line of a log that says anything. Raises UsageError for what is no file of text."""
    try:
        with open_checked(log, MAX_WEIGHTS) as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(size - 2**16, 0))
            return last_line(file.read().decode(errors="replace"))
    except FileNotFoundError:
        return "not begun"


def is_published(results: str) -> bool:
    """Whether a folder is the published layer."""
    return Path(results).resolve() == PUBLISHED


def python_of(cell: Cell) -> Path:
    """The interpreter that has what a cell needs; UsageError where it is not set up."""
    if cell.source not in ("sbx", "rejax"):
        return Path(sys.executable)
    if not jax_peer.PYTHON.exists():
        raise UsageError(f"{cell}: needs {jax_peer.PYTHON}: make jax-env")
    return jax_peer.PYTHON
