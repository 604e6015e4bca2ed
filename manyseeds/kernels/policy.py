"""Stochastic policies for C (policy.h)."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import torch
from torch import nn

from manyseeds.kernels import mlp
from manyseeds.kernels.binding import Struct

POLICY = Struct(Path(__file__).parent / "policy.h", "policy")


def struct(agent: Any, module: Any, root: nn.Module | None = None) -> ctypes.Structure:
    """The `policy` of a SeedPolicy, whose outputs are those of the first network of module.

    root: the module whose gradients are computed with it, agent unless given.
    """
    root = agent if root is None else root
    log_std, stats = agent.log_std, agent.obs_stats
    mean, scale = (None, None) if stats is None else stats.shift_and_scale(torch.float32)
    place = mlp.places_in(root)[0][id(log_std)] if agent.continuous else 0
    return POLICY(
        S=len(module.weights[0]),
        O=module.weights[0].shape[2],
        networks=mlp.struct(module, root),
        continuous=agent.continuous,
        log_std=log_std.data_ptr() if agent.continuous else None,  # where it changes
        stride=log_std.stride(0) if agent.continuous else 0,
        place=place,
        mean=mean,
        scale=scale,
    )
