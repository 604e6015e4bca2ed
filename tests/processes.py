"""Scripts as processes of their own, forked from one that has imported what is slow to import.

A test may kill, stop and interrupt them as any process. Their start takes a tenth of a second
instead of several.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import resource
import runpy
import signal
import sys
import tempfile
import time
from pathlib import Path
from unittest import mock

from manyseeds import leave_early
from manyseeds.digest import ROOT
from tests.faulty import install

SERVER = multiprocessing.get_context("forkserver")
SERVER.set_forkserver_preload(["tests.preloaded"])


class Script:
    """A script that runs in this process's folder and environment: `Script("algos/ppo.py", ...)`.

    file_limit: bytes beyond which its files cannot grow. fault: what happens to it at one of its
    file events, `tests.faulty`.
    """

    def __init__(
        self, script: str, *words: str, file_limit: int | None = None, fault: str = ""
    ) -> None:
        self.kept = tempfile.TemporaryDirectory(prefix="script-", ignore_cleanup_errors=True)
        self.output = Path(self.kept.name)
        args = (script, words, os.getcwd(), dict(os.environ), str(self.output), file_limit, fault)
        self.process = SERVER.Process(target=_run, args=args, daemon=True)
        with mock.patch.dict(os.environ, PYTHONPATH=str(ROOT)):  # for what is preloaded
            self.process.start()
        while self.poll() is None and not (self.output / "stderr").exists():
            time.sleep(0.001)  # the first waits for the imports

    def poll(self) -> int | None:
        """Its exit status, negative for a signal; None while it runs."""
        return self.process.exitcode

    def send_signal(self, number: signal.Signals) -> None:
        """As with Popen, nothing happens where it has ended."""
        assert self.process.pid
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.process.pid, number)

    def wait(self, timeout: float = 300) -> int:
        """Its exit status. Raises TimeoutError, after it has killed the process."""
        self.process.join(timeout)
        status = self.process.exitcode
        if status is None:
            self.process.kill()
            raise TimeoutError(f"still running after {timeout} s")
        return status

    @property
    def stdout(self) -> str:
        """What it has printed so far."""
        return (self.output / "stdout").read_text()

    @property
    def stderr(self) -> str:
        return (self.output / "stderr").read_text()

    def run(self) -> Script:
        """Wait for its end."""
        self.wait()
        return self


def _run(
    script: str,
    words: tuple[str, ...],
    folder: str,
    environment: dict[str, str],
    output: str,
    file_limit: int | None,
    fault: str,
) -> None:
    """`python SCRIPT WORDS` in a fork."""
    for number, name in ((1, "stdout"), (2, "stderr")):
        file = os.open(os.path.join(output, name), os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(file, number)
        os.close(file)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = [str(ROOT / script), *words]
    sys.path.insert(0, os.path.dirname(sys.argv[0]))
    signal.signal(signal.SIGINT, leave_early)  # as where it has imported nothing yet
    if fault:
        install(fault)
    if file_limit is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (file_limit, file_limit))
    runpy.run_path(sys.argv[0], run_name="__main__")
