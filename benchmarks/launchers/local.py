"""Jobs as processes of this machine, a number of them at a time."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from pathlib import Path

from manyseeds.benchmarks.launchers.jobs import (
    Event,
    Job,
    is_published,
    last_line_of,
    log_of,
    python_of,
    slots,
)
from manyseeds.cli import PUBLISHING
from manyseeds.errors import UsageError
from manyseeds.process import ENDING, exit_reason
from manyseeds.untrusted import open_to_write


@dataclass
class Running:
    """A job and its process."""

    job: Job
    process: subprocess.Popen[bytes]
    slots: int
    log: Path
    began: float


def start(job: Job, results: str, workers: int) -> Running:
    """Start the command of a job, its output in a log file."""
    log = log_of(job, results)
    published = {PUBLISHING: "1"} if is_published(results) else {}
    with open_to_write(log, append=False) as output:
        process = subprocess.Popen(
            [str(python_of(job.cell)), *job.command(results, workers)],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, **published},
            **ENDING,
        )
    return Running(job, process, slots(job, workers), log, time.monotonic())


@dataclass(frozen=True)
class LocalLauncher:
    """At most `workers` processes at a time."""

    results: str
    workers: int

    def run(self, jobs: Sequence[Job]) -> Generator[Event, None, None]:
        """Run jobs, the longest first: baselines, which take all workers."""
        waiting = sorted(jobs, key=lambda job: -slots(job, self.workers))
        running: list[Running] = []
        try:
            while waiting or running:
                free = self.workers - sum(run.slots for run in running)
                if waiting and slots(waiting[0], self.workers) <= free:
                    job = waiting.pop(0)
                    try:
                        running.append(start(job, self.results, self.workers))
                        yield Event("started", job)
                    except OSError as error:  # a full disk, no memory for a process
                        yield Event("failed", job, str(error))
                    continue
                ended = [run for run in running if run.process.poll() is not None]
                for run in ended:
                    running.remove(run)
                    yield self.end(run)
                if not ended:
                    time.sleep(0.1)
        finally:
            for run in running:
                run.process.terminate()
            for run in running:
                run.process.wait()

    def end(self, run: Running) -> Event:
        """What became of a job whose process has ended; whether it finished says the store."""
        seconds = f"{time.monotonic() - run.began:.0f} s"
        status = run.process.returncode
        try:
            # The code may have been edited since it began.
            if status == 0 and run.job.finished(self.results, by_any_code=True):
                return Event("finished", run.job, seconds)
            said = last_line_of(run.log)
        except (OSError, UsageError) as error:  # a store that has gone
            said = str(error)
        detail = f"{seconds}, {exit_reason(status)}: {said}; see {run.log}"
        return Event("failed", run.job, detail)
