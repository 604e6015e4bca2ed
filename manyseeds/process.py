"""What a training process sets up once, before its first large tensor."""

from __future__ import annotations

import ctypes
import platform
import signal
import sys
from typing import Any

import torch

# Loaded before a fork: its child may do little.
LIBC: Any = ctypes.CDLL(None) if sys.platform == "linux" else None
PR_SET_PDEATHSIG = 1  # linux/prctl.h
M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_THRESHOLD = -1, -2, -3  # malloc.h


def set_up_process(threads: int) -> None:
    """Set the CPU threads, flush denormal numbers to zero, keep freed memory in the process.

    A unit whose gradient stays zero (a dead ReLU) leaves Adam's moments to decay into denormal
    numbers, in which a CPU computes many times more slowly.

    A training loop allocates and frees the same megabytes thousands of times. By default glibc
    hands blocks of that size back to the kernel, which clears every page again; that costs a third
    of the time at 32 seeds.
    """
    torch.set_num_threads(threads)
    torch.set_flush_denormal(True)  # before worker threads start: they inherit it
    if platform.libc_ver()[0] == "glibc":
        LIBC.mallopt(M_MMAP_THRESHOLD, 32 * 2**20)
        LIBC.mallopt(M_TRIM_THRESHOLD, 2**30)
        LIBC.mallopt(M_TOP_PAD, 64 * 2**20)


def resolve_device(device: str) -> torch.device:
    """The device of `--device`; auto is the CPU until the captured CUDA path is measured."""
    return torch.device("cpu" if device == "auto" else device)


def end_with_parent() -> None:
    """Kill this process when its parent dies, even by kill -9: a rerun must not meet an orphan."""
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


# What `subprocess` is given for a child that ends with this process. Elsewhere than on Linux our
# commands look after it: `manyseeds.command.watch_parent`.
ENDING: dict[str, Any] = {"preexec_fn": end_with_parent} if sys.platform == "linux" else {}


def exit_reason(status: int) -> str:
    """How a child process ended, for people; negative is the number of the signal that ended it."""
    if status >= 0:
        return f"exit status {status}"
    name = signal.Signals(-status).name
    return f"ended by {name}" + (" (out of memory?)" if name == "SIGKILL" else "")
