"""A fault at one of the file events of a process: a signal, or an error of the system.

    python -m tests.faulty '{"event": "rename", "at": 3, "how": "SIGKILL"}' SCRIPT WORDS

The events are those below a folder: files opened for writing, files synced, renames, removals, new
folders. A full disk (ENOSPC) stays full; EIO happens once.
"""

from __future__ import annotations

import errno
import json
import os
import runpy
import signal
import sys
from typing import Any

EVENTS = {"os.rename": "rename", "os.remove": "remove", "os.rmdir": "remove", "os.mkdir": "mkdir"}
FULL = ("open", "fsync", "mkdir")  # what a full disk refuses


def install(text: str) -> None:
    """Let a fault happen in this process. text: JSON with `event`, `at` (from 1) and `how`; or with
    `log`, a file to which all events are written instead."""
    plan, folder = json.loads(text), os.getcwd()
    log = os.open(plan["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND) if "log" in plan else 0
    count, full = 0, False

    def happens(event: str, path: Any) -> None:
        nonlocal count, full
        if isinstance(path, int) or not os.path.abspath(os.fsdecode(path)).startswith(folder):
            return
        if log:
            os.write(log, f"{event}\n".encode())
            return
        count += event == plan["event"]
        if full and event in FULL:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        if count == plan["at"] and event == plan["event"]:
            count += 1
            how = plan["how"]
            if how.startswith("SIG"):
                os.kill(os.getpid(), signal.Signals[how])
            else:
                full = how == "ENOSPC"
                number = getattr(errno, how)
                raise OSError(number, os.strerror(number))

    def audit(name: str, args: tuple[Any, ...]) -> None:
        if name == "open" and isinstance(args[2], int) and args[2] & (os.O_WRONLY | os.O_RDWR):
            happens("open", args[0])
        elif event := EVENTS.get(name):
            happens(event, args[0])

    fsync = os.fsync

    def sync(descriptor: int) -> None:
        happens("fsync", folder)
        fsync(descriptor)

    os.fsync = sync
    sys.addaudithook(audit)


if __name__ == "__main__":
    install(sys.argv[1])
    del sys.argv[:2]
    sys.path.insert(0, os.path.dirname(sys.argv[0]))
    runpy.run_path(sys.argv[0], run_name="__main__")
