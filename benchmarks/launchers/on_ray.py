"""Jobs on a Ray cluster, whose nodes share no folder with the sweep, nor with each other.

Every node has a checkout, whose environment `ray start` was called from, or gets one by `ray job
submit --working-dir`. A job asks for as many CPUs as it has processes, and for a GPU where it
trains on CUDA. A worker or node that is lost is Ray's to replace; a sweep that is started again
asks the store.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import socket
import sys
import time
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from typing import Any

from manyseeds.benchmarks.launchers.jobs import Event, Job, on_gpu, slots
from manyseeds.benchmarks.launchers.node import describe, read_answer, receive
from manyseeds.errors import UsageError, described
from manyseeds.locks import Locks

NODE = "ray.io/node-id"  # a label that Ray gives every node


def on_node(request: bytes) -> tuple[str, str, bytes]:
    """Runs on a node, which knows nothing of this module: its id, its address, its answer."""
    import ctypes
    import subprocess
    import sys

    import ray

    done = subprocess.run(
        [sys.executable, "-P", "-m", "manyseeds.benchmarks.launchers.node"],
        input=request,
        capture_output=True,
        preexec_fn=lambda: ctypes.CDLL(None).prctl(1, 9),  # SIGKILL with this worker
    )
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip().split("\n")[-1]
        raise RuntimeError(f"exit status {done.returncode}: {said}")
    return ray.get_runtime_context().get_node_id(), ray.util.get_node_ip_address(), done.stdout


def import_ray() -> Any:
    """The package; UsageError where it is not installed."""
    try:
        import ray
    except ImportError:
        raise UsageError("--launcher ray: needs Ray; make ray-env") from None
    return ray


def listens(address: str) -> bool:
    """Whether something answers at HOST:PORT, perhaps with `ray://` before it."""
    host, _, port = address.rpartition("//")[2].rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=5).close()
    except (OSError, OverflowError, ValueError):
        return False
    return True


@dataclass
class RayLauncher:
    """As many jobs at a time as the cluster has CPUs and GPUs for."""

    results: str
    workers: int
    refused: set[str] = field(default_factory=set)  # nodes that take no job, by id
    flying: dict[Any, tuple[Job, float]] = field(default_factory=dict)
    locks: dict[Any, Locks] = field(default_factory=dict)  # by run

    def run(self, jobs: Sequence[Job]) -> Generator[Event, None, None]:
        """Run jobs on the cluster of RAY_ADDRESS, or on that of this machine."""
        ray = self.ray = import_ray()
        address = os.environ.get("RAY_ADDRESS", "")
        try:
            if ":" in address and not listens(address):  # Ray would try for minutes
                raise ConnectionError
            context = ray.init("auto", log_to_driver=False, logging_level="ERROR")
        except ConnectionError:
            where = f"at {address}" if address else "here"
            raise UsageError(
                f"--launcher ray: no cluster {where}; ray start --head, or set RAY_ADDRESS"
            ) from None
        ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
        self.remote = ray.remote(on_node)
        self.head = context.address_info["gcs_address"]
        self.version = describe()
        self.check_needs(jobs)
        waiting = sorted(jobs, key=lambda job: -slots(job, self.workers))
        with contextlib.ExitStack() as self.stack:
            try:
                yield from self.go(waiting)
            finally:
                self.close()

    def check_needs(self, jobs: Sequence[Job]) -> None:
        """Raise UsageError for what no node has: Ray would wait for one that has it."""
        nodes = [x["Resources"] for x in self.ray.nodes() if x["Alive"]]
        if max(slots(job, self.workers) for job in jobs) > max(x.get("CPU", 0) for x in nodes):
            raise UsageError(f"--workers {self.workers}: no node of the cluster has so many CPUs")
        if any(map(on_gpu, jobs)) and not any(x.get("GPU") for x in nodes):
            raise UsageError("--device cuda: no node of the cluster has a GPU")

    def go(self, waiting: list[Job]) -> Generator[Event, None, None]:
        """Start what there is room for, take what has ended, until nothing is left."""
        said: set[int] = set()  # what another process trains
        while waiting or self.flying:
            self.check_head()
            for job in self.room_for(waiting):
                try:
                    if not self.take(job):
                        if id(job) not in said:
                            yield Event("waiting", job, "another process trains it")
                        said.add(id(job))
                        continue
                    waiting.remove(job)
                    if job.finished(self.results):  # by another process, meanwhile
                        self.give_back(job)
                        yield Event("finished", job, "by another process")
                        continue
                except (UsageError, OSError) as error:
                    waiting.remove(job)
                    yield Event("failed", job, str(error))
                    continue
                self.submit(job)
                yield Event("started", job)
            if not self.flying:
                time.sleep(1)
                continue
            ended, _ = self.ray.wait(list(self.flying), timeout=1)
            for reference in ended:
                yield from self.land(reference)

    def room_for(self, waiting: Sequence[Job]) -> list[Job]:
        """The waiting jobs that the cluster has room for now, beside those that fly."""
        nodes = [
            x["Resources"]
            for x in self.ray.nodes()
            if x["Alive"] and x["NodeID"] not in self.refused
        ]
        used = sum(slots(job, self.workers) for job, _ in self.flying.values())
        free = sum(node.get("CPU", 0) for node in nodes) - used
        found = []
        for job in waiting:
            if (needs := slots(job, self.workers)) <= free:
                found.append(job)
                free -= needs
        return found

    def take(self, job: Job) -> bool:
        """Lock the seeds of a job in the store, if no other process trains one of them."""
        config = job.cell.config(self.results)
        folder = job.cell.folder(self.results)
        if folder.path not in self.locks:
            self.locks[folder.path] = self.stack.enter_context(folder.locks(config))
        taken: list[int] = []
        for seed in job.seeds or (0,):
            if not self.locks[folder.path].acquire(seed):
                for other in taken:
                    self.locks[folder.path].release(other)
                return False
            taken.append(seed)
        return True

    def give_back(self, job: Job) -> None:
        """Unlock the seeds of a job."""
        for seed in job.seeds or (0,):
            self.locks[job.cell.folder(self.results).path].release(seed)

    def submit(self, job: Job) -> None:
        """Hand a job to Ray, which takes none of the nodes that have refused one."""
        request = {"version": self.version, "job": pickle.dumps(job), "workers": self.workers}
        others = {NODE: f"!in({','.join(self.refused)})"} if self.refused else None
        remote = self.remote.options(
            name=str(job),
            num_cpus=slots(job, self.workers),
            num_gpus=int(on_gpu(job)),
            label_selector=others,
        )
        self.flying[remote.remote(pickle.dumps(request))] = job, time.monotonic()

    def land(self, reference: Any) -> Generator[Event, None, None]:
        """Store what a job has answered. One that was refused goes to another node."""
        job, began = self.flying.pop(reference)
        seconds = f"{time.monotonic() - began:.0f} s"
        config, folder = job.cell.config(self.results), job.cell.folder(self.results)
        try:
            node, address, content = self.ray.get(reference)
            answer = read_answer(content)
            said = f"node {address}: {answer.said}"
            if answer.status is None:
                if node not in self.refused:
                    yield Event("refused", job, said)
                self.refused.add(node)
                if {x["NodeID"] for x in self.ray.nodes() if x["Alive"]} - self.refused:
                    self.submit(job)
                    return
                raise UsageError(f"no node is left; {said}")
            receive(answer.archive, folder, config)
            done = answer.status == 0 and job.finished(self.results, by_any_code=True)
        except (UsageError, OSError) as error:
            done, said = False, str(error)
        except self.ray.exceptions.RayError as error:
            done, said = False, described(error)[:300]
        self.give_back(job)
        if done:
            yield Event("finished", job, seconds)
        else:
            yield Event("failed", job, f"{seconds}, {said}")

    def check_head(self) -> None:
        """Raise UsageError when the head is gone: Ray would end this process without a word."""
        if not listens(self.head):
            self.flying.clear()
            told = os.environ.get("RAY_ADDRESS") or self.head  # not as Ray resolves it
            raise UsageError(
                f"--launcher ray: the head at {told} is gone; once it is back, the same "
                "command does what is left"
            )

    def close(self) -> None:
        """Cancel what still runs and leave the cluster."""
        for reference in self.flying:
            self.ray.cancel(reference, force=True)
        self.ray.shutdown()
