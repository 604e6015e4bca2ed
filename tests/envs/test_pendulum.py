"""Pendulum's own checks."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from tests.envs.checks import Checks


def swing_up(obs: Tensor) -> Tensor:
    """Brings the energy to that of the upright position, and balances there."""
    cos, sin, theta_dot = obs.split(1, dim=-1)
    lacking = 15 - (theta_dot.square() / 2 + 15 * cos)
    return torch.where(cos > 0.9, -10 * sin - 2 * theta_dot, lacking * theta_dot).clamp(-2, 2)


CHECKS = {
    "Pendulum-v1": Checks(
        anchors=(None, -1232.0, -150.0),  # about the best published
        expert=swing_up,
        starts=([-math.pi, -1.0], [math.pi, 1.0]),
        widest=([-50.0, -8.0], [50.0, 8.0]),
        edges=lambda before, after: [after[..., 1] == 8, after[..., 1] == -8],
        terminates=False,
        # Chaotic under random torques near its upright position (the worst of 1,300: 7e-9).
        bound=lambda age: torch.where(age > 100, 1e-7, 1e-9).double(),
        float32=(100, 1e-2),  # measured 2e-3
        c_step=5e-6,  # measured 1.9e-6: angles up to 50 rad
        c_slow_step=2e-6,  # measured 5e-7
        c_rollout=1e-4,  # measured 1.2e-5
        near=(0.1, 1.0),
    )
}
