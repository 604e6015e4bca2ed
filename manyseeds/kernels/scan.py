"""Recurrences over the steps of rollouts, and permutations, in C (scan.c).

S seeds, T steps, N environments per seed.
"""

from __future__ import annotations

import ctypes
import math
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from manyseeds import kernels

SOURCE = Path(__file__).parent / "scan.c"
DISCOUNTED_SUMS, GAE, EPISODE_MEANS, TAKE, ORDER_OF = (
    kernels.kernel(SOURCE, name)
    for name in ("discounted_sums", "gae", "episode_means", "take", "order_of")
)


def discounted_sums(x: Tensor, decay: Tensor) -> Tensor:
    """What `discounted_sums` of samples.py says; x and decay of one shape."""
    if x.shape != decay.shape:
        return NotImplemented
    y = torch.empty_like(x, memory_format=torch.contiguous_format)
    S, T, N = x.shape
    DISCOUNTED_SUMS(S=S, T=T, N=N, x=x, decay=decay, y=y)
    return y


def permutations(keys: Tensor) -> Tensor:
    """What `permutations` of samples.py says."""
    order = torch.empty(keys.shape, dtype=torch.int64)
    ORDER_OF(R=keys.numel() // keys.shape[-1], B=keys.shape[-1], keys=keys, order=order)
    return order


def gae(
    rewards: Tensor,
    values: Tensor,
    next_values: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    gamma: Tensor | float,
    gae_lambda: Tensor | float,
) -> Tensor:
    """What `gae` of algos/ppo.py says, for tensors that kernels can take; all `[S, T, N]`.

    gamma, gae_lambda: a number for all seeds, or `[S]`.
    """
    S, T, N = rewards.shape
    steps = {
        "rewards": rewards,
        "values": values,
        "next_values": next_values,
        "terminated": terminated,
        "truncated": truncated,
    }
    if [x.dtype for x in steps.values()] != 3 * [torch.float32] + 2 * [torch.bool] or any(
        x.shape != rewards.shape for x in steps.values()
    ):
        return NotImplemented
    advantages = rewards.new_empty(S, T, N)
    GAE(S=S, T=T, N=N, gamma=gamma, gae_lambda=gae_lambda, advantages=advantages, **steps)
    return advantages


def takes_episodes(tracker: Any, rewards: Tensor, done: Tensor) -> bool:
    """Whether `episode_means` can take arguments."""
    return kernels.usable(rewards, tracker.open_return)


def episode_means(tracker: Any, /, rewards: Tensor, done: Tensor) -> dict[str, Tensor]:
    """What `EpisodeTracker.update` of envs/core.py says."""
    means = rewards.new_empty(2, len(rewards))
    EPISODE_MEANS.run(episodes_struct(tracker, rewards, done, means))
    return {"train_return": means[0], "train_length": means[1]}


def episodes_struct(tracker: Any, rewards: Tensor, done: Tensor, means: Tensor) -> ctypes.Structure:
    """The `episode_means` of scan.c, whose results go into means `[2, S]`."""
    S, T, N = rewards.shape
    return EPISODE_MEANS.struct(
        S=S,
        T=T,
        N=N,
        rewards=rewards,
        done=done,
        open_returns=tracker.open_return,
        open_lengths=tracker.open_length,
        means=means,
    )


def take(x: Tensor, indices: Tensor) -> Tensor:
    """What `take` of samples.py says, for tensors in a CPU's memory. Raises IndexError."""
    if indices.dtype != torch.int64 or indices.dim() != 2 or len(x) != len(indices):
        return NotImplemented
    S, B, M = *x.shape[:2], indices.shape[1]
    rows = x.new_empty(S, M, *x.shape[2:])
    size = x.element_size() * math.prod(x.shape[2:])
    TAKE(S=S, B=B, M=M, size=size, x=x, indices=indices, rows=rows)
    return rows
