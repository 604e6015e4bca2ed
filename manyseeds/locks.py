"""Locks between processes: held until they are released or their process ends, however it ends.

`filelock` takes them, on Linux, macOS and Windows alike. The code for Windows and macOS is there by
design; it has been run on Linux only.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import platform
import stat
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from filelock import FileLock, Timeout

from manyseeds.errors import UsageError
from manyseeds.untrusted import read_bytes
from manyseeds.writing import sweep, write_bytes

ENTRANCE, SETTINGS = "entrance.lock", "settings.json"
LOOK_S = 0.05  # more than it takes to look whether a lock is held
CLEARING_S = 5  # how long the end of a process waits to remove its files
_number = itertools.count()  # of the `Locks` of this process


class Locks:
    """Locks on the seeds of one run: a file for each, in a hidden folder beside the run.

    The last process that closes them removes the folder. While processes are within `enter` it also
    has the settings that they train, and a locked file for each of them. Raises UsageError where
    something else has the name of the folder or of a file: no link is followed, and nothing is
    written into a file that was there before.
    """

    def __init__(self, path: Path) -> None:
        self.folder = lock_folder(path)
        self._held: dict[str, FileLock] = {}
        self._inside = f"process-{platform.node()}-{os.getpid()}-{next(_number)}.lock"
        self._make()

    def _make(self) -> None:
        with contextlib.suppress(FileExistsError):
            self.folder.mkdir(parents=True)
        check_kind(self.folder, stat.S_ISDIR, "folder")

    def enter(self, settings: bytes) -> bytes:
        """Join the processes that train this run, if they have the same settings as this one.

        Returns the settings that are trained: if they are others, this process has not joined.
        """
        self._take(ENTRANCE, wait=True)
        try:
            file = self.folder / SETTINGS
            check_kind(file, stat.S_ISREG, "file")
            theirs = read_bytes(file) if file.exists() else b""
            if theirs != settings:
                if any(map(is_held, self.folder.glob("process-*.lock"))):
                    return theirs
                write_bytes(file, settings)
            self._take(self._inside)
            return settings
        finally:
            self._release(ENTRANCE)

    def acquire_free(self, seeds: Iterable[int]) -> Iterator[int]:
        """Take the locks of seeds that no other process has, one after another.

        Who looks whether one is `held` has it for a moment, so what is not free is tried twice.
        """
        seeds, later = list(seeds), list[int]()
        for seed in seeds:
            if self.acquire(seed):
                yield seed
            else:
                later.append(seed)
        if later:
            time.sleep(LOOK_S)
        yield from filter(self.acquire, later)

    def acquire(self, seed: int, wait: bool = False) -> bool:
        """Take the lock of a seed (a plan: 0), if no other process has it; wait: until then."""
        return self._take(file_of(seed), wait)

    def release(self, seed: int) -> None:
        """Give the lock of a seed back."""
        self._release(file_of(seed))

    def _take(self, name: str, wait: bool = False, timeout: float = 0) -> bool:
        file = self.folder / name
        let_open(2 * len(self._held))
        while name not in self._held:
            self._make()
            check_kind(file, stat.S_ISREG, "file")
            lock = FileLock(file, thread_local=False)
            try:
                lock.acquire(timeout=-1 if wait else timeout)
            except Timeout:
                return False
            except FileNotFoundError:
                continue  # the folder was removed by the process that closed it last
            self._held[name] = lock
            check_kind(file, stat.S_ISREG, "file")
        return True

    def _release(self, name: str) -> None:
        if lock := self._held.pop(name, None):
            lock.release(force=True)

    def close(self) -> None:
        """Give all locks back, and remove the files that no process holds."""
        for name in [*self._held]:
            self._release(name)
        with contextlib.suppress(OSError, UsageError):
            if not self.folder.is_dir() or not self._take(ENTRANCE, timeout=CLEARING_S):
                return
            used = False
            for file in {*self.folder.glob("*.lock")} - {self.folder / ENTRANCE}:
                with contextlib.suppress(UsageError):  # somebody's who is no process of ours
                    used |= is_held(file)
            if not used:
                sweep(self.folder)
                with contextlib.suppress(UsageError):
                    check_kind(self.folder / SETTINGS, stat.S_ISREG, "file")
                    (self.folder / SETTINGS).unlink(missing_ok=True)
            remove(self.folder / ENTRANCE, self._held.pop(ENTRANCE))
            self.folder.rmdir()


def let_open(files: int) -> None:
    """Let this process open some more files than the usual 1,024 (macOS: 256), if it may: each
    seed's lock is one."""
    if os.name != "posix":
        return
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and files > soft - 128:
        more = 2 * files + 128
        more = more if hard == resource.RLIM_INFINITY else min(more, hard)
        with contextlib.suppress(OSError, ValueError):  # macOS has a limit below the hard one
            resource.setrlimit(resource.RLIMIT_NOFILE, (more, hard))


def lock_folder(path: Path) -> Path:
    """Where the lock files of a run, or of another file or folder, are."""
    return path.with_name(f".{path.name}.locks")


def file_of(seed: int) -> str:
    return f"{seed}.lock"


def check_kind(path: Path, is_kind: Callable[[int], bool], kind: str) -> None:
    """Raise UsageError for what is there and is of another kind, or a file with another name."""
    try:
        status = path.lstat()
    except FileNotFoundError:
        return
    if not is_kind(status.st_mode):
        raise UsageError(f"{path}: is not a {kind}, or is a link; remove it")
    if kind == "file" and status.st_nlink > 1:
        raise UsageError(f"{path}: has a second name (a hard link); remove it")


def is_held(file: Path) -> bool:
    """Whether a process holds a lock file; one that no process holds is removed."""
    check_kind(file, stat.S_ISREG, "file")
    if not file.exists():
        return False
    lock = FileLock(file, thread_local=False)
    try:
        lock.acquire(timeout=0)
    except FileNotFoundError:
        return False
    except (Timeout, OSError) as error:  # another user's, who may still train, or a store to read
        if isinstance(error, Timeout) or error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            return True
        raise
    remove(file, lock)
    return False


def remove(file: Path, lock: FileLock) -> None:
    """Give a lock back and remove its file: before that, so that whoever waits makes a new one."""
    with contextlib.suppress(OSError):
        file.unlink()
    lock.release(force=True)
    if os.name == "nt":  # which removes no open file, and this one only if nobody has opened it
        with contextlib.suppress(OSError):
            file.unlink()


def held(path: Path, seeds: Iterable[int]) -> set[int]:
    """Those of some seeds of a run (a plan: 0) that a process has locked. Raises UsageError."""
    folder = lock_folder(path)
    check_kind(folder, stat.S_ISDIR, "folder")
    found = {seed for seed in seeds if is_held(folder / file_of(seed))}
    with contextlib.suppress(OSError):
        folder.rmdir()  # if it is empty
    return found


def tidy(path: Path) -> None:
    """Remove the lock files that killed processes have left of a run."""
    with contextlib.suppress(OSError, UsageError):
        if os.path.lexists(lock_folder(path)):
            Locks(path).close()


@contextlib.contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Hold an exclusive lock on a folder, which is made if there is none."""
    folder.mkdir(parents=True, exist_ok=True)
    with contextlib.closing(Locks(folder)) as locks:
        locks.acquire(0, wait=True)
        yield
