"""Stochastic policies for C (policy.h)."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from manyseeds.kernels import mlp
from manyseeds.kernels.binding import CannotTake, Struct

POLICY = Struct(Path(__file__).parent / "policy.h", "policy")


def struct(agent: Any, module: Any, root: Any = None) -> ctypes.Structure:
    """The `policy` of a SeedPolicy, whose outputs are those of the first network of module.

    root: as of mlp.struct.
    """
    return acting(module, agent.obs_stats, agent.log_std, root)


def acting(module: Any, stats: Any, log_std: Tensor | None, root: Any = None) -> ctypes.Structure:
    """The same for a SeedMLP, RunningStats of observations, and log_std `[S, K, 1, D]`.

    Raises CannotTake.
    """
    if not is_readable(log_std, module.outputs[0]):
        raise CannotTake("log_std is not a float32 [S, K, 1, D]")
    networks = mlp.struct(module, root)
    alone = stats is None and log_std is None
    if alone and hasattr(networks, "policy"):
        return networks.policy
    mean, scale = (None, None) if stats is None else stats.shift_and_scale(torch.float32)
    weights = module.weights[0]
    policy = POLICY(
        S=len(weights),
        O=weights.shape[2],
        networks=networks,
        continuous=log_std is not None,
        log_std=None if log_std is None else log_std.data_ptr(),  # where it changes
        stride=0 if log_std is None else log_std.stride(0),
        place=0
        if log_std is None or root is None
        else mlp.place_of(log_std, mlp.places_in(root)[0]),
        mean=mean,
        scale=scale,
    )
    if alone:
        networks.policy = policy  # lies where the networks do
    return policy


def is_readable(log_std: Tensor | None, components: int) -> bool:
    """Whether C can read log_std where it lies."""
    if log_std is None:
        return True
    is_whole = log_std.shape[2:] == (1, components) and log_std[0, 0].is_contiguous()
    return is_whole and log_std.dtype is torch.float32
