"""Tasks on a Ray cluster, whose nodes share no folder with the sweep, nor with each other.

Every node has a checkout, whose environment `ray start` was called from, or gets one by `ray job
submit --working-dir`. A task asks for as many CPUs as it has processes, and for a GPU where it
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

from manyseeds.benchmarks.launchers.node import describe, read_answer, receive
from manyseeds.benchmarks.launchers.tasks import Event, Task, on_gpu, slots
from manyseeds.errors import UsageError, described
from manyseeds.record import Locks

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
    """As many tasks at a time as the cluster has CPUs and GPUs for."""

    results: str
    workers: int
    refused: set[str] = field(default_factory=set)  # nodes that take no task, by id
    flying: dict[Any, tuple[Task, float]] = field(default_factory=dict)
    locks: dict[Any, Locks] = field(default_factory=dict)  # by run

    def run(self, tasks: Sequence[Task]) -> Generator[Event, None, None]:
        """Run tasks on the cluster of RAY_ADDRESS, or on that of this machine."""
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
        self.check_needs(tasks)
        waiting = sorted(tasks, key=lambda task: -slots(task, self.workers))
        with contextlib.ExitStack() as self.stack:
            try:
                yield from self.go(waiting)
            finally:
                self.close()

    def check_needs(self, tasks: Sequence[Task]) -> None:
        """Raise UsageError for what no node has: Ray would wait for one that has it."""
        nodes = [x["Resources"] for x in self.ray.nodes() if x["Alive"]]
        if max(slots(task, self.workers) for task in tasks) > max(x.get("CPU", 0) for x in nodes):
            raise UsageError(f"--workers {self.workers}: no node of the cluster has so many CPUs")
        if any(map(on_gpu, tasks)) and not any(x.get("GPU") for x in nodes):
            raise UsageError("--device cuda: no node of the cluster has a GPU")

    def go(self, waiting: list[Task]) -> Generator[Event, None, None]:
        """Start what there is room for, take what has ended, until nothing is left."""
        said: set[int] = set()  # what another process trains
        while waiting or self.flying:
            self.check_head()
            for task in self.room_for(waiting):
                try:
                    if not self.take(task):
                        if id(task) not in said:
                            yield Event("waiting", task, "another process trains it")
                        said.add(id(task))
                        continue
                    waiting.remove(task)
                    if task.finished(self.results):  # by another process, meanwhile
                        self.give_back(task)
                        yield Event("finished", task, "by another process")
                        continue
                except (UsageError, OSError) as error:
                    waiting.remove(task)
                    yield Event("failed", task, str(error))
                    continue
                self.submit(task)
                yield Event("started", task)
            if not self.flying:
                time.sleep(1)
                continue
            ended, _ = self.ray.wait(list(self.flying), timeout=1)
            for reference in ended:
                yield from self.land(reference)

    def room_for(self, waiting: Sequence[Task]) -> list[Task]:
        """The waiting tasks that the cluster has room for now, beside those that fly."""
        nodes = [
            x["Resources"]
            for x in self.ray.nodes()
            if x["Alive"] and x["NodeID"] not in self.refused
        ]
        used = sum(slots(task, self.workers) for task, _ in self.flying.values())
        free = sum(node.get("CPU", 0) for node in nodes) - used
        found = []
        for task in waiting:
            if (needs := slots(task, self.workers)) <= free:
                found.append(task)
                free -= needs
        return found

    def take(self, task: Task) -> bool:
        """Lock the seeds of a task in the store, if no other process trains one of them."""
        config = task.cell.config(self.results)
        folder = task.cell.folder(self.results)
        if folder.path not in self.locks:
            self.locks[folder.path] = self.stack.enter_context(folder.locks(config))
        taken: list[int] = []
        for seed in task.seeds or (0,):
            if not self.locks[folder.path].acquire(seed):
                for other in taken:
                    self.locks[folder.path].release(other)
                return False
            taken.append(seed)
        return True

    def give_back(self, task: Task) -> None:
        """Unlock the seeds of a task."""
        for seed in task.seeds or (0,):
            self.locks[task.cell.folder(self.results).path].release(seed)

    def submit(self, task: Task) -> None:
        """Hand a task to Ray, which takes none of the nodes that have refused one."""
        request = {"version": self.version, "task": pickle.dumps(task), "workers": self.workers}
        others = {NODE: f"!in({','.join(self.refused)})"} if self.refused else None
        remote = self.remote.options(
            name=str(task),
            num_cpus=slots(task, self.workers),
            num_gpus=int(on_gpu(task)),
            label_selector=others,
        )
        self.flying[remote.remote(pickle.dumps(request))] = task, time.monotonic()

    def land(self, reference: Any) -> Generator[Event, None, None]:
        """Store what a task has answered. One that was refused goes to another node."""
        task, began = self.flying.pop(reference)
        seconds = f"{time.monotonic() - began:.0f} s"
        config, folder = task.cell.config(self.results), task.cell.folder(self.results)
        try:
            node, address, content = self.ray.get(reference)
            answer = read_answer(content)
            said = f"node {address}: {answer.said}"
            if answer.status is None:
                if node not in self.refused:
                    yield Event("refused", task, said)
                self.refused.add(node)
                if {x["NodeID"] for x in self.ray.nodes() if x["Alive"]} - self.refused:
                    self.submit(task)
                    return
                raise UsageError(f"no node is left; {said}")
            receive(answer.archive, folder, config)
            done = answer.status == 0 and task.finished(self.results, by_any_code=True)
        except (UsageError, OSError) as error:
            done, said = False, str(error)
        except self.ray.exceptions.RayError as error:
            done, said = False, described(error)[:300]
        self.give_back(task)
        if done:
            yield Event("finished", task, seconds)
        else:
            yield Event("failed", task, f"{seconds}, {said}")

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
