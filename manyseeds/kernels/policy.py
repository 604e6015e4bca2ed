"""Stochastic policies for C (policy.h)."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from manyseeds.kernels import mlp
from manyseeds.kernels.binding import Struct

POLICY = Struct(Path(__file__).parent / "policy.h", "policy")


def struct(agent: Any, module: Any, root: Any = None) -> ctypes.Structure:
    """The `policy` of a SeedPolicy, whose outputs are those of the first network of module.

    root: as of mlp.struct, agent unless given.
    """
    return acting(module, agent.obs_stats, agent.log_std, agent if root is None else root)


def acting(module: Any, stats: Any, log_std: Tensor | None, root: Any = None) -> ctypes.Structure:
    """The same for a SeedMLP, RunningStats of observations, and log_std `[S, K, 1, D]`."""
    mean, scale = (None, None) if stats is None else stats.shift_and_scale(torch.float32)
    weights = module.weights[0]
    return POLICY(
        S=len(weights),
        O=weights.shape[2],
        networks=mlp.struct(module, root),
        continuous=log_std is not None,
        log_std=None if log_std is None else log_std.data_ptr(),  # where it changes
        stride=0 if log_std is None else log_std.stride(0),
        place=0 if log_std is None or root is None else mlp.places_in(root)[0][id(log_std)],
        mean=mean,
        scale=scale,
    )
