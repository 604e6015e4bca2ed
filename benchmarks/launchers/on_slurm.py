"""Jobs on Slurm, by submitit: arrays of commands that share the folder of the results.

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

from manyseeds.benchmarks.launchers.jobs import (
    Event,
    Job,
    last_line,
    last_line_of,
    log_of,
    on_gpu,
    python_of,
    slots,
)
from manyseeds.digest import installing
from manyseeds.errors import UsageError
from manyseeds.process import end_with_parent
from manyseeds.untrusted import open_to_write, read_shaped
from manyseeds.writing import write_json

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
        with open_to_write(Path(self.log), append=True) as output:
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
        raise UsageError(f"--launcher slurm: needs submitit; {installing('cluster')}") from None
    return submitit


@dataclass
class SlurmLauncher:
    """Job arrays. options: what the jobs ask for, as KEY=VALUE in the words of sbatch."""

    results: str
    workers: int
    options: Sequence[str] = ()
    cluster: str = "slurm"  # or local: processes that submitit starts here

    def run(self, jobs: Sequence[Job]) -> Generator[Event, None, None]:
        """Submit the jobs that are not in the queue already, and wait for all."""
        self.folder = Path(self.results).absolute() / "logs" / "slurm"
        self.known: dict[str, str] = self.read_ids()
        queued = self.queue()
        ids = {job.name: self.known.get(job.name, "") for job in jobs}
        for job in jobs:
            if ids[job.name] in queued:
                yield Event("waiting", job, f"job {ids[job.name]} is in the queue already")
        for group in self.groups([job for job in jobs if ids[job.name] not in queued]):
            for job, slurm_id in zip(group, self.submit(group), strict=True):
                ids[job.name] = slurm_id
                yield Event("started", job, f"job {slurm_id}")
        left = list(jobs)
        while left:
            time.sleep(POLL_S)
            queued = self.queue()
            for job in [job for job in left if ids[job.name] not in queued]:
                left.remove(job)
                yield self.end(job, ids[job.name])

    def groups(self, jobs: Sequence[Job]) -> Iterator[list[Job]]:
        """Jobs that one array can hold: they ask for the same."""
        by_needs: dict[tuple[int, int], list[Job]] = {}
        for job in jobs:
            by_needs.setdefault(self.needs(job), []).append(job)
        for group in by_needs.values():
            for k in range(0, len(group), ARRAY):
                yield group[k : k + ARRAY]

    def needs(self, job: Job) -> tuple[int, int]:
        """CPUs and GPUs of a job."""
        return slots(job, self.workers), int(on_gpu(job))

    def submit(self, group: Sequence[Job]) -> list[str]:
        """Submit an array; Slurm's ids."""
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
                submitted = [
                    executor.submit(
                        Command(
                            [
                                str(python_of(job.cell)),
                                *job.command(str(Path(self.results).absolute()), self.workers),
                            ],
                            os.getcwd(),
                            str(log_of(job, self.results).absolute()),
                        )
                    )
                    for job in group
                ]
        except (NameError, TypeError, ValueError, RuntimeError, AssertionError) as error:
            said = " ".join(str(error).split())[:300]
            raise UsageError(f"--launcher slurm: {said}") from None
        except submitit.core.utils.FailedJobError as error:
            raise UsageError(f"--launcher slurm: {' '.join(str(error).split())[:300]}") from None
        if self.cluster == "local":
            self.running = {**getattr(self, "running", {}), **{x.job_id: x for x in submitted}}
        self.known |= {job.name: x.job_id for job, x in zip(group, submitted, strict=True)}
        write_json(self.folder / "jobs.json", self.known)
        return [x.job_id for x in submitted]

    def read_ids(self) -> dict[str, str]:
        """Slurm's ids of what earlier sweeps have submitted, by the name of the job."""
        try:
            return dict(read_shaped(self.folder / "jobs.json", {str: str}))
        except (OSError, UsageError):
            return {}

    def queue(self) -> set[str]:
        """Slurm's ids of what waits or runs."""
        if self.cluster == "local":
            running = getattr(self, "running", {})
            return {slurm_id for slurm_id, x in running.items() if not x.done()}
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

    def end(self, job: Job, slurm_id: str) -> Event:
        """What became of a job that has left the queue, as the store says."""
        if job.finished(self.results):
            return Event("finished", job, f"job {slurm_id}")
        log = log_of(job, self.results)
        said = last_line_of(log)
        return Event("failed", job, f"job {slurm_id}: {said}; see {log} and {self.folder}")
