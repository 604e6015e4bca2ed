"""Recurrences over the steps of rollouts, and permutations, in C (scan.c).

S seeds, T steps, N environments per seed.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from manyseeds import kernels
from manyseeds.kernels.binding import per_seed


def discounted_sums(x: Tensor, decay: Tensor) -> Tensor:
    """What `discounted_sums` of samples.py says; x and decay of one shape."""
    if x.shape != decay.shape:
        return NotImplemented
    x, decay = x.contiguous(), decay.contiguous()
    y = torch.empty_like(x)
    pointers = x.data_ptr(), decay.data_ptr(), y.data_ptr()
    kernels.functions().discounted_sums(*x.shape, *pointers)
    return y


def permutations(keys: Tensor) -> Tensor:
    """What `permutations` of samples.py says."""
    keys = keys.contiguous()
    order = torch.empty(keys.shape, dtype=torch.int64)
    rows, pointers = keys.numel() // keys.shape[-1], (keys.data_ptr(), order.data_ptr())
    if kernels.functions().order_of(rows, keys.shape[-1], *pointers):
        raise MemoryError("allocating memory for a shuffle failed")
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
    steps = [x.contiguous() for x in (rewards, values, next_values, terminated, truncated)]
    if [x.dtype for x in steps] != 3 * [torch.float32] + 2 * [torch.bool] or any(
        x.shape != rewards.shape for x in steps
    ):
        return NotImplemented
    advantages = rewards.new_empty(S, T, N)
    settings = [per_seed(x, S, torch.float32) for x in (gamma, gae_lambda)]
    pointers = [x.data_ptr() for x in (*steps, *settings, advantages)]
    kernels.functions().gae(S, T, N, *pointers)
    return advantages


def takes_episodes(tracker: Any, rewards: Tensor, done: Tensor) -> bool:
    """Whether `episode_means` can take arguments."""
    return kernels.usable(rewards, tracker.open_return)


def episode_means(tracker: Any, /, rewards: Tensor, done: Tensor) -> dict[str, Tensor]:
    """What `EpisodeTracker.update` of envs/core.py says."""
    S, T, N = rewards.shape
    means = rewards.new_empty(2, S)
    steps = rewards.contiguous(), done.contiguous()
    tensors = (*steps, tracker.open_return, tracker.open_length, means)
    kernels.functions().episode_means(S, T, N, *[x.data_ptr() for x in tensors])
    return dict(zip(("train_return", "train_length"), means.unbind(), strict=True))


def take(x: Tensor, indices: Tensor) -> Tensor:
    """What `take` of samples.py says, for tensors in a CPU's memory. Raises IndexError."""
    if indices.dtype != torch.int64 or indices.dim() != 2 or len(x) != len(indices):
        return NotImplemented
    S, B, M = *x.shape[:2], indices.shape[1]
    x, indices = x.contiguous(), indices.contiguous()
    rows = x.new_empty(S, M, *x.shape[2:])
    size = x.element_size() * math.prod(x.shape[2:])
    pointers = x.data_ptr(), indices.data_ptr(), rows.data_ptr()
    if kernels.functions().take(S, B, M, size, *pointers):
        raise IndexError(f"indices must be from 0 to {B - 1}")
    return rows
