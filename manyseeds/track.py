"""Trackers of training that people look at while it runs: TensorBoard and Weights & Biases.

Every seed is a run of its own. W&B's runs are in the project manyseeds, in a group
ENV/ALGORITHM/NAME. They are offline files in the part's folder, which `wandb sync` uploads, unless
WANDB_MODE says otherwise.
"""

from __future__ import annotations

import importlib.util
import os
import secrets
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike

from manyseeds.digest import installing
from manyseeds.errors import UsageError, described

PROJECT = "manyseeds"
MODE = "WANDB_MODE"  # in the environment
MODES = ("offline", "online", "shared", "disabled")


class Writer(Protocol):
    """What the scalars of one seed are written to."""

    def write(self, step: int, scalars: Mapping[str, float]) -> None: ...

    def close(self) -> None: ...


class TensorBoard:
    """Event files in tensorboard/seed-007."""

    def __init__(self, part: Path, seed: int, settings: Mapping[str, Any]) -> None:
        from torch.utils.tensorboard import SummaryWriter

        folder = part / "tensorboard" / f"seed-{seed:03d}"
        self.writer = SummaryWriter(folder)  # type: ignore[no-untyped-call]

    def write(self, step: int, scalars: Mapping[str, float]) -> None:
        for name, x in scalars.items():
            self.writer.add_scalar(name, x, step)

    def close(self) -> None:
        self.writer.close()


class WandB:
    """A run of Weights & Biases, its files in wandb/."""

    def __init__(self, part: Path, seed: int, settings: Mapping[str, Any]) -> None:
        import wandb

        group = "/".join(part.parts[-4:-1])
        mode: Any = os.environ.get(MODE) or "offline"
        if os.environ.get(MODE) == "":
            del os.environ[MODE]  # W&B takes it for a mistake
        try:
            self.run = wandb.init(
                project=PROJECT,
                id=secrets.token_hex(4),  # not that of WANDB_RUN_ID, which all seeds would have
                group=group,
                name=f"{group}/{seed}",
                config={**settings, "seed": seed},
                dir=part.absolute(),  # the process that writes may have another folder
                mode=mode,
                reinit="create_new",  # beside those of other seeds
                settings=wandb.Settings(
                    silent=True, console="off", x_disable_stats=True, x_disable_meta=True
                ),
            )
        except Exception as error:  # of the key, the network, the server, a WANDB_ variable
            reason = " ".join(described(error).split())
            raise UsageError(f"--track wandb: {reason}") from None
        self.run.define_metric("*", step_metric="step")

    def write(self, step: int, scalars: Mapping[str, float]) -> None:
        self.run.log({"step": step, **scalars})  # W&B's own steps must never decrease

    def close(self) -> None:
        self.run.finish()


WRITERS: dict[str, type[TensorBoard] | type[WandB]] = {"tensorboard": TensorBoard, "wandb": WandB}


class Tracker:
    """Writes the scalars of every seed of a part."""

    def __init__(
        self, kind: str, part: Path, seeds: Sequence[int], settings: Mapping[str, Any]
    ) -> None:
        self.kind = kind
        self.writers: list[Writer] = []
        try:
            for seed in seeds:
                self.writers.append(WRITERS[kind](part, seed, settings))
        except BaseException:
            self.close()
            raise

    def log(self, step: ArrayLike, scalars: Mapping[str, ArrayLike]) -> None:
        """Write scalars: a step and values for each seed, `[S]`, or one for all.

        What is not finite is left out.
        """
        S = len(self.writers)
        steps = np.broadcast_to(np.asarray(step, dtype=np.int64), S)
        values = {k: np.broadcast_to(np.asarray(x, np.float64), S) for k, x in scalars.items()}
        for i, writer in enumerate(self.writers):
            if found := {k: float(x[i]) for k, x in values.items() if np.isfinite(x[i])}:
                writer.write(int(steps[i]), found)

    def close(self) -> None:
        """Write what is left, and end the runs. What goes wrong then is no reason to lose a
        training: it is a line on stderr."""
        for writer in self.writers:
            try:
                writer.close()
            except Exception as error:  # of the disk, the network, the server
                print(f"warning: --track {self.kind}: {described(error)}", file=sys.stderr)


def check_tracker(kind: str) -> None:
    """Raise UsageError where a tracker's package, an optional extra, or its mode is not there."""
    found = importlib.util.find_spec(kind)
    if found is None or found.origin is None:  # a folder wandb/ is a package without an origin
        raise UsageError(f"--track {kind}: needs {kind}; {installing(kind)}")
    if kind == "wandb" and (mode := os.environ.get(MODE) or "offline") not in MODES:
        raise UsageError(f"{MODE} {mode}: must be one of {', '.join(MODES)}")
