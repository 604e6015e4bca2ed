"""Running statistics in C (statistics.c). S seeds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from manyseeds import kernels

SOURCE = Path(__file__).parent / "statistics.c"
RUNNING_STATS, REWARD_SCALE = (
    kernels.kernel(SOURCE, name) for name in ("running_stats", "reward_scale")
)


def takes(module: Any, *tensors: Tensor) -> bool:
    """Whether C can compute with float32 samples, which stand first."""
    return kernels.usable(tensors[0])


def update(stats: Any, /, x: Tensor, mask: Tensor | None = None) -> None:
    """What `RunningStats.update` of layers.py says."""
    S, B, size = x.shape
    state = {"mean": stats.mean, "var": stats.var, "count": stats.count}
    RUNNING_STATS(S=S, B=B, size=size, x=x, mask=mask, **state)


def scale_rewards(scale: Any, /, rewards: Tensor, done: Tensor) -> Tensor:
    """What `RewardScale.forward` of layers.py says."""
    S, T, N = rewards.shape
    scaled = torch.empty(S, T, N)
    stats = scale.stats
    REWARD_SCALE(
        S=S,
        T=T,
        N=N,
        rewards=rewards,
        done=done,
        gamma=scale.gamma,
        open_return=scale.open_return,
        mean=stats.mean,
        var=stats.var,
        count=stats.count,
        scaled=scaled,
    )
    return scaled
