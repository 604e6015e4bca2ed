"""Acrobot's own checks."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from tests.envs.checks import Checks


def swing_up(obs: Tensor) -> Tensor:
    """Pushes the way the joint turns: the free end is up after about 90 steps."""
    return torch.where(obs[..., 5] > 0, 2, 0)


def edges(before: Tensor, after: Tensor) -> list[Tensor]:
    wrapped = ((after - before)[..., :2].abs() > math.pi).unbind(-1)
    return [*wrapped, after[..., 2].abs() == 4 * math.pi, after[..., 3].abs() == 9 * math.pi]


def bound(age: Tensor) -> Tensor:
    """Chaotic: after 100 steps an error may grow by e^0.3 a step.

    The worst of 1,800 swing-ups was at 1e-10 after 100 steps and at 1e-4 after 150.
    """
    return 1e-9 * (0.3 * (age - 100).clamp(min=0).double()).exp()


CHECKS = {
    "Acrobot-v1": Checks(
        anchors=(-100.0, -498.9, -69.1),  # best published
        expert=swing_up,
        starts=([-0.1] * 4, [0.1] * 4),
        widest=([-math.pi * k for k in (1, 1, 4, 9)], [math.pi * k for k in (1, 1, 4, 9)]),
        edges=edges,
        angles=2,
        compared=140,  # in which 91% of the expert's episodes end
        bound=bound,
        one_step=1e-11,  # at its highest speeds
        float32=(60, 1e-4),  # measured 1e-5
        c_step=2e-3,  # measured 7e-4, like that of PyTorch: at 9 pi rad/s a step is chaotic
        c_slow_step=1e-5,  # measured 1.1e-6
        c_rollout=1e-4,  # measured 9.5e-6
        near=(1.0, 1.0, 0.1, 0.1),
    )
}
