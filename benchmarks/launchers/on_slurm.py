"""Tasks as jobs of Slurm, by submitit: arrays of commands that share the folder of the results.

The sweep submits what is missing and waits. When it is stopped the jobs go on, and the next one
waits for them instead of submitting them again: RESULTS/logs/slurm/jobs.json names them. A job that
is preempted, or reaches its time limit, interrupts its command, which leaves nothing unfinished
but a checkpoint, and is queued again.
"""

from __future__ import annotations

import contextlib
import io
import os
import signal
import subprocess
import time
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from manyseeds.benchmarks.launchers.tasks import (
    Event,
    Task,
    end_with_parent,
    last_line,
    log_of,
    on_gpu,
    python_of,
    slots,
)
from manyseeds.errors import UsageError
from manyseeds.record import read_json, write_json

ARRAY = 1000  # jobs of one array; Slurm's default limit
ATTEMPTS = 10  # time limits that a job may reach
TIME_MIN = 24 * 60  # the time limit unless an option names one; submitit's is five minutes
POLL_S = 5.0
GRACE_S = 20  # within which an interrupted command has to end; Slurm kills after 30


class Command:
    """What a job runs. submitit calls `checkpoint` before a job is preempted or out of time."""

    def __init__(self, words: Sequence[str], folder: str, log: str) -> None:
        self.words, self.folder, self.log = list(words), folder, log

    def __call__(self) -> int:
        """The exit status of the command."""
        with open(self.log, "ab") as output:
            self.process: Any = subprocess.Popen(
                self.words,
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                preexec_fn=_begin,
            )
            return int(self.process.wait())

    def checkpoint(self) -> Any:
        """Interrupt the command; what is to be queued again."""
        import submitit

        self.process.send_signal(signal.SIGINT)
        try:
            self.process.wait(GRACE_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
        return submitit.helpers.DelayedSubmission(Command(self.words, self.folder, self.log))


def _begin() -> None:
    """Heed an interrupt, and end with the job."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    # Slurm sends submitit's signal to every process of the job, not to submitit alone.
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)
    end_with_parent()


def import_submitit() -> Any:
    """The package; UsageError where it is not installed."""
    try:
        import submitit
    except ImportError:
        raise UsageError("--launcher slurm: needs submitit; pip install -e '.[cluster]'") from None
    return submitit


@dataclass
class SlurmLauncher:
    """Job arrays. options: what the jobs ask for, as KEY=VALUE in the words of sbatch."""

    results: str
    workers: int
    options: Sequence[str] = ()
    cluster: str = "slurm"  # or local: processes that submitit starts here

    def run(self, tasks: Sequence[Task]) -> Generator[Event, None, None]:
        """Submit the tasks that are not in the queue already, and wait for all."""
        self.folder = Path(self.results).absolute() / "logs" / "slurm"
        self.known: dict[str, str] = self.read_jobs()
        queued = self.queue()
        jobs = {task.name: self.known.get(task.name, "") for task in tasks}
        for task in tasks:
            if jobs[task.name] in queued:
                yield Event("waiting", task, f"job {jobs[task.name]} is in the queue already")
        for group in self.groups([task for task in tasks if jobs[task.name] not in queued]):
            for task, job in zip(group, self.submit(group), strict=True):
                jobs[task.name] = job
                yield Event("started", task, f"job {job}")
        left = list(tasks)
        while left:
            time.sleep(POLL_S)
            queued = self.queue()
            for task in [task for task in left if jobs[task.name] not in queued]:
                left.remove(task)
                yield self.end(task, jobs[task.name])

    def groups(self, tasks: Sequence[Task]) -> Iterator[list[Task]]:
        """Tasks that one array can hold: they ask for the same."""
        by_needs: dict[tuple[int, int], list[Task]] = {}
        for task in tasks:
            by_needs.setdefault(self.needs(task), []).append(task)
        for group in by_needs.values():
            for k in range(0, len(group), ARRAY):
                yield group[k : k + ARRAY]

    def needs(self, task: Task) -> tuple[int, int]:
        """CPUs and GPUs of a task."""
        return slots(task, self.workers), int(on_gpu(task))

    def submit(self, group: Sequence[Task]) -> list[str]:
        """Submit an array; the ids of its jobs."""
        submitit = import_submitit()
        cpus, gpus = self.needs(group[0])
        chosen = dict(pair.partition("=")[::2] for pair in self.options)
        values = {f"slurm_{key}": int(x) if x.isdecimal() else x for key, x in chosen.items()}
        try:
            executor = submitit.AutoExecutor(
                self.folder, cluster=self.cluster, slurm_max_num_timeout=ATTEMPTS
            )
            defaults = {"name": "manyseeds", "cpus_per_task": cpus, "slurm_time": TIME_MIN}
            executor.update_parameters(**{**defaults, **({"gpus_per_node": 1} if gpus else {})})
            executor.update_parameters(**values)
            # submitit prints what Slurm says, which is in the error as well.
            with contextlib.redirect_stderr(io.StringIO()), executor.batch():
                jobs = [
                    executor.submit(
                        Command(
                            [
                                str(python_of(task.cell)),
                                *task.command(str(Path(self.results).absolute()), self.workers),
                            ],
                            os.getcwd(),
                            str(log_of(task, self.results).absolute()),
                        )
                    )
                    for task in group
                ]
        except (NameError, TypeError, ValueError, RuntimeError, AssertionError) as error:
            said = " ".join(str(error).split())[:300]
            raise UsageError(f"--launcher slurm: {said}") from None
        except submitit.core.utils.FailedJobError as error:
            raise UsageError(f"--launcher slurm: {' '.join(str(error).split())[:300]}") from None
        if self.cluster == "local":
            self.jobs = {**getattr(self, "jobs", {}), **{job.job_id: job for job in jobs}}
        self.known |= {task.name: job.job_id for task, job in zip(group, jobs, strict=True)}
        write_json(self.folder / "jobs.json", self.known)
        return [job.job_id for job in jobs]

    def read_jobs(self) -> dict[str, str]:
        """The jobs that earlier sweeps have submitted, by the name of their task."""
        try:
            return dict(read_json(self.folder / "jobs.json"))
        except (OSError, ValueError):
            return {}

    def queue(self) -> set[str]:
        """The jobs that wait or run."""
        if self.cluster == "local":
            return {job_id for job_id, job in getattr(self, "jobs", {}).items() if not job.done()}
        words = ["squeue", "--me", "--noheader", "--array", "--format", "%i"]
        for _ in range(10):  # a controller that is busy does not answer
            try:
                done = subprocess.run(words, capture_output=True, text=True)
            except OSError:
                raise UsageError("--launcher slurm: there is no squeue here") from None
            if done.returncode == 0:
                return set(done.stdout.split())
            time.sleep(POLL_S)
        raise UsageError(f"--launcher slurm: {last_line(done.stderr)}")

    def end(self, task: Task, job: str) -> Event:
        """What became of a task whose job has left the queue, as the store says."""
        if task.finished(self.results):
            return Event("finished", task, f"job {job}")
        log = log_of(task, self.results)
        said = last_line(log.read_text(errors="replace")) if log.exists() else "not begun"
        return Event("failed", task, f"job {job}: {said}; see {log} and {self.folder}")
