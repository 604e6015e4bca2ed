"""The own checks of both MountainCars."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from manyseeds.envs import MountainCarContinuous
from tests.envs.checks import Checks, GymCopies


def follow_the_car(obs: Tensor) -> Tensor:
    """Pushes the way the car rolls: up after about 120 steps, with the wall hit on the way."""
    return torch.where(obs[..., 1] >= 0, 2, 0)


def follow_the_strong_car(obs: Tensor) -> Tensor:
    return torch.where(obs[..., 1:] >= 0, 1.0, -1.0)


def edges(before: Tensor, after: Tensor) -> list[Tensor]:
    position, velocity = after.unbind(-1)
    wall = (position == -1.2) & (before[..., 1] < -0.01) & (velocity == 0)
    return [wall, position == 0.6, velocity == 0.07, velocity == -0.07]


BOTH: dict[str, Any] = {
    "starts": ([-0.6, 0.0], [-0.4, 0.0]),
    "widest": ([-1.2, -0.07], [0.6, 0.07]),
    "edges": edges,
}
CHECKS = {
    "MountainCar-v0": Checks(
        anchors=(-110.0, -200.0, -100.8),  # rl-baselines3-zoo's DQN
        expert=follow_the_car,
        float32=(200, 1e-5),  # measured 1e-6
        c_rollout=1e-6,  # measured 6e-8
        **BOTH,
    ),
    "MountainCarContinuous-v0": Checks(
        anchors=(90.0, 0.0, 96.7),  # doing nothing; best published
        random_mean=-33.3,
        expert=follow_the_strong_car,
        float32=(300, 1e-5),  # measured 1e-6
        c_rollout=1e-5,  # measured 9.5e-7
        **BOTH,
    ),
}


def test_a_push_beyond_the_bounds_costs_more_in_gymnasium() -> None:
    """As the docstring says: Gymnasium moves the car with the clipped push, and charges for all."""
    env = MountainCarContinuous()
    state, obs = env.reset(torch.full((1, 1, 1), 0.5))
    theirs = GymCopies(env.spec.id, state.physics, obs)
    step = env.step(state, torch.full((1, 1, 1), 3.0), torch.zeros(1, 1, 1))
    physics, _, rewards, _, _ = theirs.step(torch.full((1, 1, 1), 3.0))
    torch.testing.assert_close(step.state.physics.double(), physics, rtol=0, atol=1e-7)
    assert step.reward.item() == pytest.approx(-0.1)
    assert rewards.item() == pytest.approx(-0.9)
