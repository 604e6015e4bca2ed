"""Tasks as processes of this machine, a number of them at a time."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from pathlib import Path

from manyseeds.benchmarks.launchers.tasks import (
    Event,
    Task,
    end_with_parent,
    is_published,
    last_line,
    log_of,
    python_of,
    slots,
)
from manyseeds.cli import PUBLISHING
from manyseeds.process import exit_reason


@dataclass
class Job:
    """A task while it runs."""

    task: Task
    process: subprocess.Popen[bytes]
    slots: int
    log: Path
    began: float


def start(task: Task, results: str, workers: int) -> Job:
    """Start the command of a task, its output in a log file."""
    log = log_of(task, results)
    published = {PUBLISHING: "1"} if is_published(results) else {}
    with open(log, "wb") as output:
        process = subprocess.Popen(
            [str(python_of(task.cell)), *task.command(results, workers)],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, **published},
            preexec_fn=end_with_parent,
        )
    return Job(task, process, slots(task, workers), log, time.monotonic())


@dataclass(frozen=True)
class LocalLauncher:
    """At most `workers` processes at a time."""

    results: str
    workers: int

    def run(self, tasks: Sequence[Task]) -> Generator[Event, None, None]:
        """Run tasks, the longest first: baselines, which take all workers."""
        waiting = sorted(tasks, key=lambda task: -slots(task, self.workers))
        running: list[Job] = []
        try:
            while waiting or running:
                free = self.workers - sum(job.slots for job in running)
                if waiting and slots(waiting[0], self.workers) <= free:
                    task = waiting.pop(0)
                    try:
                        running.append(start(task, self.results, self.workers))
                        yield Event("started", task)
                    except OSError as error:  # a full disk, no memory for a process
                        yield Event("failed", task, str(error))
                    continue
                ended = [job for job in running if job.process.poll() is not None]
                for job in ended:
                    running.remove(job)
                    yield self.end(job)
                if not ended:
                    time.sleep(0.1)
        finally:
            for job in running:
                job.process.terminate()
            for job in running:
                job.process.wait()

    def end(self, job: Job) -> Event:
        """What became of a task whose process has ended; whether it finished says the store."""
        seconds = f"{time.monotonic() - job.began:.0f} s"
        status = job.process.returncode
        try:
            # The code may have been edited since it began.
            if status == 0 and job.task.finished(self.results, by_any_code=True):
                return Event("finished", job.task, seconds)
            said = last_line(job.log.read_text(errors="replace"))
        except OSError as error:  # a store that has gone
            said = str(error)
        detail = f"{seconds}, {exit_reason(status)}: {said}; see {job.log}"
        return Event("failed", job.task, detail)
