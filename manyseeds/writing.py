"""Files and folders that are written whole or not at all."""

from __future__ import annotations

import contextlib
import ctypes
import io
import json
import os
import platform
import re
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    import pandas as pd

Result = TypeVar("Result")


def host() -> str:
    """Names what process numbers are unique in: a machine, and in containers their namespace."""
    with contextlib.suppress(OSError):
        return f"{platform.node()}-{os.stat('/proc/self/ns/pid').st_ino}"
    return platform.node()


HOST = host()
DAY_S = 24 * 3600
FORMULA = set("=+-@＝＋－＠")  # what a cell begins with that a spreadsheet may run
NUMBER = r"[+-]?\d[\d,]*(\.\d+)?(e[+-]?\d+)?%?"
# Behind a sign: nothing, a number, and what tables have behind one.
SIGNED = re.compile(
    rf"-|{NUMBER}( (to {NUMBER}|\+- {NUMBER}|\(raw\)|\[{NUMBER}, {NUMBER}\]"
    r"|\((all \d+|both) seeds equal: at most \d+% do otherwise\)))?"
    r"([,;] (n = |[np][=<])?[\w .]+)*"
)
# A hidden name beside a target: a host and a process, since on a shared disk a process alone is no
# name. `former`: what was at the target until now.
BESIDE = re.compile(r"\.(.+)\.(\d+)\.(partial|former)")


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file whole or not at all: beside its target, fsynced, then renamed."""
    fresh = beside(path)
    try:
        with open(fresh, "xb") as file:  # what somebody puts there now, as a link, is an error
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        if not _together:
            os.replace(fresh, path)
    except BaseException as error:
        fresh.unlink(missing_ok=True)
        if isinstance(error, OSError):
            error.filename = error.filename or str(path)  # a full disk does not say of what
        raise
    if _together:
        _together[-1][path.absolute()] = fresh.absolute()


_together: list[dict[Path, Path]] = []  # by a file's path what will be renamed to it


@contextlib.contextmanager
def written_together() -> Iterator[set[Path]]:
    """Let the files that `write_bytes` writes within the block appear at its end, all in a moment;
    where the block raises, none. Their paths, resolved, are those in the set after the block.
    """
    files: dict[Path, Path] = {}
    collected: set[Path] = set()
    _together.append(files)
    try:
        yield collected
        for path, fresh in files.items():
            os.replace(fresh, path)
            collected.add(path.resolve())
    finally:
        _together.remove(files)
        for fresh in files.values():
            fresh.unlink(missing_ok=True)


def replace_folder(target: Path, fill: Callable[[Path], Result]) -> Result:
    """Fill a new folder and put it at a path: whole or not at all. What was there is removed.

    fill: writes into the empty folder that it is given, which lies beside the target, and raises
    where the target must stay. A link at the target is replaced, not followed. Raises OSError.
    """
    target = target.absolute()
    target.parent.mkdir(parents=True, exist_ok=True)
    fresh = beside(target)
    try:
        fresh.mkdir()
        result = fill(fresh)
        for path in (*fresh.rglob("*"), fresh):
            sync(path)
        try:
            os.rename(fresh, target)  # to a new name or onto an empty folder
        except OSError:
            if not os.path.lexists(target):
                raise
            if not exchange(fresh, target):
                replace_in_two_steps(fresh, target)
        sync(target.parent)
    finally:
        remove(fresh)
    return result


def exchange(one: Path, other: Path) -> bool:
    """Let two paths change names, both at once; False where the system or file system cannot."""
    if os.name != "posix":
        return False
    libc, names = ctypes.CDLL(None), (os.fsencode(one), os.fsencode(other))
    at_cwd, flag = -100, 2  # AT_FDCWD of fcntl.h; RENAME_EXCHANGE of Linux, RENAME_SWAP of macOS
    if hasattr(libc, "renameat2"):
        return not libc.renameat2(at_cwd, names[0], at_cwd, names[1], flag)
    return hasattr(libc, "renamex_np") and not libc.renamex_np(*names, flag)


def replace_in_two_steps(fresh: Path, target: Path) -> None:
    """Rename what is at a target, then the new folder to it; `beside` mends what is killed here."""
    former = fresh.with_suffix(".former")
    os.rename(target, former)
    try:
        os.rename(fresh, target)
    except BaseException:
        os.rename(former, target)
        raise
    remove(former)


def beside(path: Path) -> Path:
    """A hidden name beside a path, of this process alone, for what is then renamed to it.

    What killed processes have left under such names is removed; if one was killed between two
    renames, what was at the path is put back.
    """
    sweep(path.parent, path.name)
    return path.with_name(f".{path.name}.{HOST}.{os.getpid()}.partial")


def sweep(folder: Path, name: str = "") -> None:
    """Remove what killed processes have left in a folder beside its files and folders.

    name: of the one whose leftovers are removed, '' for all. Of other machines, where nobody here
    knows what is alive, what is older than a day.
    """
    with os.scandir(folder) as entries:
        there = [Path(x.path) for x in entries if x.name.endswith((".partial", ".former"))]
    for path in there:
        if not (match := BESIDE.fullmatch(path.name)):
            continue
        target = match[1].removesuffix(f".{HOST}")
        ours = target != match[1]
        if name and not (target == name if ours else target.startswith(f"{name}.")):
            continue
        only_copy = match[3] == "former" and not (ours and os.path.lexists(folder / target))
        if is_left(path, int(match[2]) if ours else 0):
            if not only_copy:
                remove(path)
            elif ours:
                os.rename(path, folder / target)


def is_left(path: Path, process: int) -> bool:
    """Whether what a process wrote to is left of it, as far as is known here; 0: of another machine
    than this one."""
    if process and os.name == "posix":  # Windows' `kill` would end it
        return process == os.getpid() or not is_alive(process)
    with contextlib.suppress(OSError):
        return time.time() - path.lstat().st_mtime > DAY_S
    return False


def remove(path: Path) -> None:
    """Remove a file, a link or a folder as far as possible, without following links."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with contextlib.suppress(OSError):
            path.unlink()


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


def csv_bytes(frame: pd.DataFrame) -> bytes:
    """A table as CSV, the one place where it is made. Numbers stay numbers, text is `safe_cell`."""
    safe = frame.set_axis([safe_cell(str(name)) for name in frame], axis=1)
    for i, dtype in enumerate(frame.dtypes):
        if dtype.kind not in "biuf":  # numbers
            cells = frame.iloc[:, i]
            safe.isetitem(i, [safe_cell(x) if isinstance(x, str) else x for x in cells])
    return safe.to_csv(index=False, lineterminator="\n").encode(errors="replace")


def safe_cell(text: str) -> str:
    """Text on one line, with an apostrophe before what a spreadsheet might run as a formula."""
    text = re.sub(r"[\t\r\n]", " ", text)
    first = text.lstrip()
    return f"'{text}" if first[:1] in FORMULA and not SIGNED.fullmatch(first) else text


def parquet_bytes(frame: pd.DataFrame) -> bytes:
    """A data frame as one parquet file."""
    buffer = io.BytesIO()
    frame.to_parquet(buffer, index=False)
    return buffer.getvalue()


def sync(path: Path) -> None:
    """Wait until a file or folder is on the disk."""
    if os.name != "posix" or path.is_symlink():  # Windows opens no folder
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
