"""The checkpoint of a training: when it is due, and whether a training can go on from it."""

from __future__ import annotations

import contextlib
import math
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from torch import Tensor

from manyseeds import snapshot
from manyseeds.record import clear, hash_of
from manyseeds.snapshot import UnusableError

T = TypeVar("T")

CHECKPOINT = ".checkpoint.safetensors"  # hidden: no part of what is sealed
KEPT = ".checkpoint-{}.safetensors"  # one of another training of the part: what it belongs to
ALL = ".checkpoint*.safetensors"
WRITING = 0.02  # of the time goes into writing, at most
# What a checkpoint belongs to, and how one of another is called.
BELONGS = {
    "config": "is of other settings",
    "seeds": "is of other seeds",
    "code": "is of other code",
    "device": "is of another device",
    "threads": "is of another number of threads",
    "kernels": "was not computed as here, in C or by PyTorch",
    "torch": "was computed by another version of PyTorch",
}


class OtherError(UnusableError):
    """Says what a checkpoint of another training belongs to; `name` is for its file."""

    def __init__(self, why: str, of: Any) -> None:
        super().__init__(why)
        self.name = KEPT.format(hash_of(of))


class Checkpoint:
    """The checkpoint of a part, in memory none."""

    def __init__(self, path: Path | None, interval: float = 0.0) -> None:
        """interval: seconds between two, at least (0: none is ever due)."""
        self.path, self.interval = path, interval
        self.at = ""  # where the training was, '' without a checkpoint
        self._next = time.perf_counter() + interval if path and interval else math.inf

    def due(self) -> bool:
        """Whether it is time to write one."""
        return time.perf_counter() >= self._next

    def write(self, at: str, of: Any, state: Any, tensors: Mapping[str, Tensor]) -> None:
        """Write one: where the training is, as `timestep 32,000`; what it belongs to; its state.

        The next one is due so late that writing takes 2% of the time at most. Where none can be
        written, a line says so, and no other one is due.
        """
        assert self.path is not None
        began = time.perf_counter()
        try:
            snapshot.write(self.path, {"at": at, "of": of, "state": state}, tensors)
        except OSError as error:
            print(f"note: {self.path}: no checkpoint at {at}: {error}", file=sys.stderr)
            self._next = math.inf
            return
        self.at, ended = at, time.perf_counter()
        self._next = ended + max(self.interval, (ended - began) / WRITING)

    def read(
        self, of: Mapping[str, Any], limit: int, use: Callable[[Any, dict[str, Tensor]], T]
    ) -> T | None:
        """What `use` makes of the state and the tensors; None without any that can be used.

        of: what the checkpoint must belong to. limit: bytes that it may have. use: may raise
        `snapshot.MALFORMED`. One of another training is kept beside, until the part is finished;
        one that is damaged is removed. A line says so.
        """
        if self.path is None or not self.belongs(of):
            return None
        with self._refusing():
            content, tensors = snapshot.read(self.path, limit)
            check(content, of)
            used = use(content["state"], tensors)
            self.at = str(content["at"])
            return used
        return None

    def belongs(self, of: Mapping[str, Any]) -> bool:
        """Whether there is one, perhaps kept beside, that says that it belongs to this.

        Then it is in its place. Otherwise as `read`.
        """
        if self.path is None:
            return False
        kept = self.path.with_name(KEPT.format(hash_of(of)))
        for _ in range(2):
            if os.path.lexists(self.path):
                with self._refusing():
                    check(snapshot.read_state(self.path), of)
                    return True
            if os.path.lexists(kept):
                os.replace(kept, self.path)
        return False

    @contextlib.contextmanager
    def _refusing(self) -> Iterator[None]:
        try:
            yield
        except OtherError as error:
            self._keep(error)
        except UnusableError as error:
            self.refuse(str(error))
        except snapshot.MALFORMED:
            self.refuse("it is damaged")

    def _keep(self, error: OtherError) -> None:
        """Rename one of another training, whose command finds it again, and say so."""
        assert self.path is not None
        try:
            os.replace(self.path, self.path.with_name(error.name))
        except OSError:
            self.refuse(str(error))
            return
        print(
            f"note: {self.path}: not used: {error}; kept as {error.name}, "
            "the command that it belongs to resumes from there",
            file=sys.stderr,
        )

    def refuse(self, why: str) -> None:
        """Remove one that cannot be used, and say so."""
        print(f"note: {self.path}: not used: {why}; the training starts over", file=sys.stderr)
        self.remove()

    def remove(self) -> None:
        """Remove whatever lies in its place, if that is possible."""
        self.at = ""
        if self.path is not None:
            clear(self.path, strict=False)
            with contextlib.suppress(OSError):
                self.path.rmdir()


def remove_all(part: Path) -> None:
    """Remove the checkpoints of a part, also those that are kept, as far as that is possible."""
    for path in part.glob(ALL):
        Checkpoint(path).remove()


def check(content: Mapping[str, Any], of: Mapping[str, Any]) -> None:
    """Raise OtherError for the content of a checkpoint that belongs to something else."""
    for name, other in BELONGS.items():
        if content["of"].get(name) != of.get(name):
            raise OtherError(f"it {other}", content["of"])
