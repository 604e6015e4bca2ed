"""The replay memory of off-policy algorithms for C (memory.h, memory.c)."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from manyseeds import kernels
from manyseeds.kernels.binding import Struct

HERE = Path(__file__).parent
MEMORY = Struct(HERE / "memory.h", "memory")
FIELDS = ("obs", "actions", "rewards", "terminated", "next_obs")  # of transitions
ADD = kernels.kernel(HERE / "memory.c", "memory_add")


def struct(replay: Any, obs_size: int, action_size: int) -> ctypes.Structure:
    """The `memory` of memory.h for a Replay of dqn.py, sac.py and the like."""
    S, C, _ = replay.rows.shape
    return MEMORY(S=S, C=C, O=obs_size, D=action_size, added=replay.added, rows=replay.rows)


def takes(replay: Any, new: Any) -> bool:
    """Whether transitions can be stored in C."""
    return kernels.usable(replay.rows, new.obs) and new.terminated.dtype is torch.bool


def add(replay: Any, /, new: Any) -> None:
    """What `Replay.add` of dqn.py, sac.py and the like says."""
    fields = {name: getattr(new, name) for name in FIELDS}
    ADD.run(add_struct(replay, new.rewards.shape[1], fields))
    replay.added.add_(new.rewards.shape[1])


def add_struct(replay: Any, count: int, new: dict[str, Tensor]) -> ctypes.Structure:
    """What is stored, `[S, count, ...]`, and where."""
    obs_size, actions = new["obs"].shape[-1], new["actions"]
    numbers = not actions.is_floating_point()
    action_size = 1 if numbers else actions.shape[-1]
    kinds = {"actions": None, "numbers": actions} if numbers else {"numbers": None}
    return ADD.struct(
        S=len(replay.rows),
        n=count,
        O=obs_size,
        D=action_size,
        memory=struct(replay, obs_size, action_size),
        **{**new, **kinds},
    )
