"""Runs whose training goes on where it was interrupted, with the same bits."""

from __future__ import annotations

from manyseeds.command import USUAL, Interrupted, interrupt

import signal
import sys
import threading
from collections.abc import Sequence
from functools import cached_property
from types import FrameType
from typing import Any, NoReturn, TypeVarTuple

from torch import Tensor

from manyseeds import kernels, snapshot
from manyseeds.cli import SeedsConfig, identity
from manyseeds.digest import boundary, code_digest, origin_of
from manyseeds.progress import console
from manyseeds.runs.base import BaseRun
from manyseeds.runs.checkpoints import CHECKPOINT, Checkpoint
from manyseeds.runs.set_aside import installed

Ts = TypeVarTuple("Ts")

# A checkpoint has at most this many bytes, plus the second number times those of what is trained:
# it also has what was recorded, and policies that wait for an evaluation.
ROOM, COPIES = 2**26, 32


class ResumableRun(BaseRun):
    """A run that an algorithm lets go on after an interruption.

    `train` calls `restore` before its loop, and `save_if_due` after every iteration. From then on
    Ctrl-C and SIGTERM let the iteration end, write a checkpoint and leave.
    """

    config: SeedsConfig
    unit: str  # what a position counts, such as timestep
    gathered: tuple[str, ...]  # attributes with what was recorded so far

    _objects: tuple[Any, ...] | None = None  # where there are checkpoints
    _asked: int = 0  # the signal that asks for an end
    _handlers: dict[int, Any] | None = None  # those of before, once signals are heeded here

    @property
    def total(self) -> int:
        """How many positions there are."""
        raise NotImplementedError

    def storable(self) -> bool:
        """Whether what the training changes can be stored, but for `restore`'s objects."""
        return True

    def records(self) -> dict[str, Any]:
        """What was recorded so far: numbers, texts, arrays and tensors, no objects."""
        return {name: getattr(self, name) for name in self.gathered}

    def take_up(self, records: dict[str, Any]) -> None:
        """Go on from what `records` has given."""
        for name in self.gathered:
            setattr(self, name, records[name])

    def track_again(self) -> None:
        """Write for `--track` what was recorded: the files of before are gone."""

    @boundary
    def restore(self, objects: Sequence[Any], *variables: *Ts) -> tuple[*Ts]:
        """Go on from the part's checkpoint; returns the loop's variables as they were then.

        objects: all that changes in place, the policy first. variables: the position first, a
        number or `[S]`; they come back as they are given where there is no checkpoint.
        """
        if self.directory is None or not self.config.checkpoint_interval or not self.storable():
            return variables
        try:
            _, tensors = snapshot.take(tuple(objects))
        except snapshot.UnstorableError as error:
            print(f"note: no checkpoints: a {error} cannot be stored", file=sys.stderr)
            return variables
        self._objects = tuple(objects)
        self.checkpoint = Checkpoint(self.directory / CHECKPOINT, self.config.checkpoint_interval)
        limit = ROOM + COPIES * sum(x.nbytes for x in tensors.values())

        def use(state: Any, tensors: dict[str, Tensor]) -> tuple[Any, Any]:
            like = variables, None
            return snapshot.restore(state, tensors, self._objects, like, self.device)  # type: ignore[no-any-return]

        if (found := self.checkpoint.read(self._belongs, limit, use)) is None:
            return variables
        variables, (learned, seconds, records) = found
        self.take_up(records)
        self._learned, self._began = learned, self._began - seconds
        if not self.config.quiet:
            console.print(f"going on from {self.checkpoint.at}")
        self.track_again()
        self.resume()
        return variables

    @boundary
    def save_if_due(self, *variables: Any) -> None:
        """Write a checkpoint if it is time, or end the training if that was asked for.

        variables: of the loop, as for `restore`; nothing else changes between two calls. Raises
        Interrupted.
        """
        if self._objects is None:
            return
        if self._handlers is None:
            self._listen()
        if self._asked or self.checkpoint.due():
            self.pause()
            position = variables[0]
            count = int(position.double().mean()) if isinstance(position, Tensor) else position
            at = f"{self.unit} {count:,}"
            recorded = self._learned, self.total_s, self.records()
            self.checkpoint.write(
                at, self._belongs, *snapshot.take((self._objects, (variables, recorded)))
            )
            self.resume()
            if self._asked:
                where = f"{at} of {self.total:,}"
                goes_on = "the same command resumes from there"
                self._end(f" at {where}; {goes_on}" if self.checkpoint.at == at else "")

    @boundary
    def heed(self) -> None:
        self._unlisten()
        if self._asked:
            self._end()

    def _end(self, text: str = "") -> NoReturn:
        status = 128 + self._asked
        raise Interrupted(f"interrupted{text or '; ' + self.outlook()}", status)

    @boundary
    def close(self) -> None:
        super().close()
        self._unlisten()

    def usable_checkpoint(self, definitions: Sequence[Any]) -> bool:
        self._definitions = definitions
        assert self.directory is not None
        return Checkpoint(self.directory / CHECKPOINT).belongs(self._belongs)

    @cached_property
    def _belongs(self) -> dict[str, Any]:
        """What a checkpoint belongs to: with other code its bits would differ, and with PyTorch
        in the place of C; all builds of the kernels have the same."""
        own = [f"{origin_of(ResumableRun)}.{name}" for name in ("restore", "save_if_due")]
        kind = [f"{origin_of(type(self))}.{name}" for name in ("records", "take_up")]
        origins = [*self.origins(self._definitions), *self.kind_origins(), *own, *kind]
        return {
            "config": identity(self.config),
            "seeds": self.seeds,
            "code": code_digest(origins),
            "device": str(self.device),
            "threads": self.config.threads,
            "kernels": kernels.computing(),
            "torch": installed("torch"),
        }

    # ---- Signals -----------------------------------------------------------------------

    def _listen(self) -> None:
        """Put off interrupts until `save_if_due`; only the main thread may, and can."""
        self._handlers = {}
        if threading.current_thread() is threading.main_thread():
            for number, usual in USUAL.items():
                if signal.getsignal(number) in (usual, interrupt):
                    self._handlers[number] = signal.signal(number, self._ask)

    def _unlisten(self) -> None:
        handlers, self._handlers = self._handlers or {}, {}
        for number, handler in handlers.items():
            signal.signal(number, handler)

    def _ask(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGINT:
            if self._asked == signal.SIGINT:
                raise KeyboardInterrupt
            self._asked = signal.SIGINT
        # A launcher that was interrupted, too, may well send a SIGTERM after the Ctrl-C.
        self._asked = self._asked or number
