"""Files and folders that are written whole or not at all."""

from __future__ import annotations

import contextlib
import glob
import io
import json
import os
import platform
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file whole or not at all: beside its target, fsynced, then renamed."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    beside.unlink(missing_ok=True)
    try:
        with open(beside, "xb") as file:  # what somebody puts there now, as a link, is an error
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, path)
    finally:
        beside.unlink(missing_ok=True)
    for collected in _collecting:
        collected.add(path.resolve())


_collecting: list[set[Path]] = []


@contextlib.contextmanager
def written_files() -> Iterator[set[Path]]:
    """Collect the paths of the files that `write_bytes` writes within the block, resolved."""
    collected: set[Path] = set()
    _collecting.append(collected)
    try:
        yield collected
    finally:
        _collecting.remove(collected)


def own_place(path: Path) -> Path:
    """A hidden name beside a path, of this process alone, for a folder that is then renamed to it.

    What killed processes of this machine have left under such names is removed.
    """
    ours = f".{path.name}.{platform.node()}."
    for leftover in path.parent.glob(glob.escape(ours) + "*"):
        number = leftover.name.removeprefix(ours)
        if number == str(os.getpid()) or (number.isdecimal() and not is_alive(int(number))):
            shutil.rmtree(leftover, ignore_errors=True)
    return path.with_name(f"{ours}{os.getpid()}")


def is_alive(process: int) -> bool:
    """Whether there is a process of a number on this machine."""
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        pass  # somebody else's
    return True


def write_json(path: Path, content: Any) -> None:
    """Write JSON for people and programs: indented, keys in the given order."""
    write_bytes(path, (json.dumps(content, indent=1) + "\n").encode())


def parquet_bytes(frame: pd.DataFrame) -> bytes:
    """A data frame as one parquet file."""
    buffer = io.BytesIO()
    frame.to_parquet(buffer, index=False)
    return buffer.getvalue()


def sync(path: Path) -> None:
    """Wait until a file or folder is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
