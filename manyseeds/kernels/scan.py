"""Recurrences over the steps of rollouts, and shuffles, in C (scan.c).

S seeds, T steps, N environments per seed.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from manyseeds import kernels
from manyseeds.kernels.optim import per_seed


@torch.no_grad()
def discounted_sums(x: Tensor, decay: Tensor) -> Tensor:
    """y_t = x_t + decay_t y_{t+1} from the last step backwards; all `[S, T, N]`."""
    if kernels.usable(x, decay) and x.shape == decay.shape:
        x, decay = x.contiguous(), decay.contiguous()
        y = torch.empty_like(x)
        pointers = x.data_ptr(), decay.data_ptr(), y.data_ptr()
        kernels.functions().discounted_sums(*x.shape, *pointers)
        return y
    total, totals = torch.zeros_like(x[:, 0]), []
    for t in reversed(range(x.shape[1])):
        total = x[:, t] + decay[:, t] * total
        totals.append(total)
    return torch.stack(totals[::-1], dim=1)


def shuffles(keys: Tensor) -> Tensor:
    """The orders `[..., B]` int64 that sort uniforms `[..., B]`: random permutations of B."""
    if kernels.usable(keys):
        keys = keys.contiguous()
        order = torch.empty(keys.shape, dtype=torch.int64)
        rows, pointers = keys.numel() // keys.shape[-1], (keys.data_ptr(), order.data_ptr())
        if kernels.functions().order_of(rows, keys.shape[-1], *pointers):
            raise MemoryError("allocating memory for a shuffle failed")
        return order
    return keys.argsort(stable=True, dim=-1)


def gae(
    rewards: Tensor,
    values: Tensor,
    next_values: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    gamma: float,
    gae_lambda: float,
) -> Tensor:
    """What `gae` of algos/ppo.py says, for tensors that kernels can take; all `[S, T, N]`."""
    S, T, N = rewards.shape
    steps = [x.contiguous() for x in (rewards, values, next_values, terminated, truncated)]
    if [x.dtype for x in steps] != 3 * [torch.float32] + 2 * [torch.bool] or any(
        x.shape != rewards.shape for x in steps
    ):
        return NotImplemented
    advantages = rewards.new_empty(S, T, N)
    settings = [per_seed(x, S) for x in (gamma, gae_lambda)]
    pointers = [x.data_ptr() for x in (*steps, *settings, advantages)]
    kernels.functions().gae(S, T, N, *pointers)
    return advantages


def episode_means(
    rewards: Tensor, done: Tensor, open_returns: Tensor, open_lengths: Tensor
) -> tuple[Tensor, Tensor]:
    """What `EpisodeTracker.update` of envs/core.py says, for tensors that kernels can take."""
    S, T, N = rewards.shape
    means = rewards.new_empty(2, S)
    steps = rewards.contiguous(), done.contiguous()
    pointers = [x.data_ptr() for x in (*steps, open_returns, open_lengths, means)]
    kernels.functions().episode_means(S, T, N, *pointers)
    returns, lengths = means.unbind()
    return returns, lengths


def take(x: Tensor, indices: Tensor) -> Tensor:
    """What `take` of layers.py says, for tensors in a CPU's memory. Raises IndexError."""
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
