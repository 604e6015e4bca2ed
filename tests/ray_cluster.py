"""A Ray cluster on this machine for tests: every node is a process with an address of its own."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

from manyseeds.digest import ROOT

ENVIRONMENT = ROOT / ".venv-ray" / "bin" / "python"
PYTHON = str(ENVIRONMENT) if ENVIRONMENT.exists() else sys.executable


def installed(module: str) -> bool:
    """Whether the interpreter of the cluster has a package."""
    return ENVIRONMENT.exists() or importlib.util.find_spec(module) is not None


def descendants(pid: int) -> Iterator[int]:
    """The processes below one, the deepest first."""
    with contextlib.suppress(FileNotFoundError):
        for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
            yield from descendants(int(child))
            yield int(child)


def kill(pid: int) -> None:
    """Kill a process that may be gone."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def environment(checkout: Path = ROOT, **more: str) -> dict[str, str]:
    """What a node or a sweep with a checkout runs in."""
    path = os.pathsep.join([str(checkout), os.environ.get("PYTHONPATH", "")])
    own = {"PYTHONPATH": path, "RAY_USAGE_STATS_ENABLED": "0", "PYTHONDONTWRITEBYTECODE": ""}
    own["RAY_raylet_start_wait_time_s"] = "300"  # of a machine that does much else
    return {**os.environ, **own, **more}


class Cluster:
    """A head with one CPU, and nodes that come and go. `folder` has the logs and nodes' stores."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.nodes: dict[int, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Cluster:
        try:
            self.start_head()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for k in list(self.nodes):
            self.remove(k)

    def start_head(self) -> None:
        """Start node 1, the head, at a new port."""
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        words = ["--head", "--port", str(self.port), "--include-dashboard=false"]
        # Sockets have short names: not below pytest's folders.
        self.add(1, *words, "--temp-dir", f"/tmp/ray-{os.getpid()}-{self.port}")

    @property
    def address(self) -> str:
        """What RAY_ADDRESS has to be."""
        return f"127.0.0.1:{self.port}"

    def add(self, k: int, *words: str, checkout: Path = ROOT, cache: Path | None = None) -> None:
        """Start node k with one CPU and wait until it has joined."""
        to = words or ("--address", self.address)
        log = self.folder / f"node-{k}-{time.monotonic_ns()}.log"
        with log.open("wb") as output:
            self.nodes[k] = subprocess.Popen(
                [
                    *(PYTHON, "-m", "ray.scripts.scripts", "start", "--block", *to),
                    *("--node-ip-address", f"127.0.0.{k}", "--num-cpus", "1"),
                    *("--object-store-memory", "80000000", "--disable-usage-stats"),
                ],
                stdout=output,
                stderr=subprocess.STDOUT,
                env=environment(checkout, XDG_CACHE_HOME=str(cache or self.folder / f"cache-{k}")),
                cwd=self.folder,
            )
        deadline = time.monotonic() + 300
        while "Ray runtime started" not in log.read_text():
            assert self.nodes[k].poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.2)

    def workers(self, k: int, text: str) -> list[int]:
        """The processes of a node whose command line contains a text."""
        found = []
        for pid in descendants(self.nodes[k].pid):
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                words = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
                if text in words:
                    found.append(pid)
        return found

    def remove(self, k: int) -> None:
        """Kill a node with all its processes, as a machine that is switched off."""
        process = self.nodes.pop(k)
        pids = [*descendants(process.pid), process.pid]
        process.send_signal(signal.SIGSTOP)
        for pid in pids:
            kill(pid)
        process.wait()
