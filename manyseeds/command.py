"""How every command begins, `parse`, and ends: in one line and an exit status where a user can do
something about it.

A script of ours imports this first: `manyseeds` then heeds Ctrl-C while the rest is imported.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
import select
import shutil
import signal
import sys
import threading
import time
from collections.abc import Iterator
from types import FrameType
from typing import Any

from manyseeds import leave_early
from manyseeds.cli import parse as parse
from manyseeds.errors import UsageError, printable

# What is done about a signal unless somebody has decided otherwise; then it is left at that.
USUAL: dict[int, Any] = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}
PARENT = "MANYSEEDS_PARENT"  # the process of a command that has started this one
STDOUT = "stdout"
BROKEN_PIPE = 128 + 13  # as of a program that SIGPIPE ends


class Interrupted(KeyboardInterrupt):
    """A command was interrupted: what to say, '' for the usual line, and the exit status."""

    def __init__(self, text: str = "", status: int = 130) -> None:
        super().__init__(text)
        self.text, self.status = text, status


@contextlib.contextmanager
def failing_in_one_line(memory_hint: str = "", interrupted: str = "interrupted") -> Iterator[None]:
    """End a command in one line on stderr: 2 for a UsageError, 130 for Ctrl-C, 143 for SIGTERM, 1
    for an OSError and where memory runs out. Where nobody reads stdout, it ends without a word.

    Every `main` of a script is decorated with it. memory_hint: what to add where memory runs out.
    interrupted: the line of an interrupt that says nothing itself.
    """
    with heeding_signals():
        try:
            yield
            flush()
        except (UsageError, OSError, MemoryError, RuntimeError, KeyboardInterrupt) as error:
            if not (words := last_words(error, memory_hint, interrupted)):
                raise
            leave(*words)


def last_words(
    error: BaseException, memory_hint: str = "", interrupted: str = "interrupted"
) -> tuple[str, int] | None:
    """The line and the exit status that a command ends with; None for a fault of this project."""
    if any(isinstance(x, BrokenPipeError) and is_unread(x) for x in (error, error.__context__)):
        return "", BROKEN_PIPE
    if isinstance(error, UsageError):
        return f"error: {error}", 2
    if isinstance(error, KeyboardInterrupt):
        said = getattr(error, "text", "") or interrupted
        return said, getattr(error, "status", 130)
    if isinstance(error, OSError):  # a full disk, a folder that vanished
        return f"error: {described_with_path(error)}", 1
    if isinstance(error, MemoryError | RuntimeError) and (reason := out_of_memory(error)):
        return f"error: out of memory: {reason}{memory_hint}", 1
    return None


def leave(text: str, status: int) -> None:
    """Print the last line of a command and raise SystemExit."""
    if progress := sys.modules.get("manyseeds.progress"):
        progress.console.show_cursor()  # a bar that had just begun has hidden it
    with contextlib.suppress(OSError):
        flush()
    if text:
        with contextlib.suppress(OSError):
            print(text, file=sys.stderr, flush=True)
    raise SystemExit(status) from None


def flush() -> None:
    """Write what was printed. Raises OSError once: at its end Python would try it again."""
    if sys.stdout is None:  # it was closed when Python began
        return
    try:
        sys.stdout.flush()
    except OSError as error:
        error.filename = error.filename or STDOUT
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise


def is_unread(error: BrokenPipeError) -> bool:
    """Whether the pipe is stdout, which nobody reads any more, not one to another program."""
    if error.filename == STDOUT:
        return True
    try:
        stdout = select.poll()
        stdout.register(sys.stdout.fileno(), 0)
        return any(event & (select.POLLERR | select.POLLHUP) for _, event in stdout.poll(0))
    except (AttributeError, OSError, ValueError):  # of Windows, or no file at all
        return sys.platform == "win32"


def described_with_path(error: OSError) -> str:
    """What went wrong with which file, on one line."""
    if isinstance(error, shutil.Error):  # a list of what copytree could not copy
        return printable(str(error.args[0][0][-1]))
    if error.filename is not None and error.strerror:
        return printable(f"{os.fsdecode(error.filename)}: {error.strerror}")
    return printable(error.strerror or str(error))


def out_of_memory(error: BaseException | None) -> str:
    """What memory an error could not have, and on a GPU how much is free; '' for other errors.

    An error while a CUDA graph is recorded may be followed by another one, about the graph.
    """
    torch: Any = sys.modules.get("torch")
    while error is not None:
        text = str(error).partition("\n")[0]
        on_gpu = torch is not None and isinstance(error, torch.OutOfMemoryError)
        if on_gpu or isinstance(error, MemoryError) or "alloc" in text:
            if asked := re.search(r"allocate ([\d.]+ \w+)", text):
                text = f"tried to allocate {asked[1]}"
            if on_gpu and torch.cuda.is_available():
                free, total = torch.cuda.mem_get_info()
                text += f"; {free / 2**30:.2f} of {total / 2**30:.2f} GiB are free on the GPU"
            return text
        error = error.__context__
    return ""


def end_script(kind: type[BaseException], error: BaseException, trace: Any) -> None:
    """`sys.excepthook` of our own scripts: for what happens outside of `main`."""
    if words := last_words(error):
        leave(*words)
    sys.__excepthook__(kind, error, trace)


# ---- Signals ----------------------------------------------------------------------------------

CLEANING_S = 5  # how long what ends is not disturbed
_owner = 0  # the process that heeds signals
_asked = -math.inf  # when one asked for an end


@contextlib.contextmanager
def heeding_signals() -> Iterator[None]:
    """Let SIGTERM end the block as Ctrl-C does: what it has begun is removed, its children end.

    A SIGTERM that soon follows another signal is ignored: a launcher that was interrupted, too, may
    well send one, and what ends must not be disturbed. A later one counts: Python drops what a
    signal raises within `__del__`.
    """
    global _asked, _owner
    handlers: dict[int, Any] = {}
    if threading.current_thread() is threading.main_thread():
        for number, usual in USUAL.items():
            if signal.getsignal(number) in (usual, leave_early):
                handlers[number] = signal.signal(number, interrupt)
    if handlers:
        _asked, _owner = -math.inf, os.getpid()
        if sys.platform != "linux":
            watch_parent()
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


def interrupt(number: int, frame: FrameType | None) -> None:
    """What `heeding_signals` does about a signal."""
    global _asked
    if os.getpid() != _owner:  # a fork has the handlers, too, but not what cleans up
        signal.signal(number, USUAL[number])
        signal.raise_signal(number)
    elif number == signal.SIGINT or time.monotonic() > _asked + CLEANING_S:
        _asked = time.monotonic()
        raise Interrupted(status=128 + number)


def watch_parent() -> None:
    """End this process with the command that has started it, where a system does not do that by
    itself as Linux does (`manyseeds.process.ENDING`)."""
    parent = os.getppid()
    if os.environ.get(PARENT) == str(parent):
        threading.Thread(target=_end_after, args=(parent,), daemon=True).start()
    os.environ[PARENT] = str(os.getpid())


def _end_after(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(128 + signal.SIGTERM)
