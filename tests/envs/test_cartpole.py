"""CartPole's own checks."""

from __future__ import annotations

import gymnasium as gym
import torch
from gymnasium.envs.classic_control.cartpole import CartPoleEnv
from torch import Tensor

from manyseeds.envs import CartPole
from tests.envs.checks import Checks


def balance(obs: Tensor) -> Tensor:
    """Keeps the pole up, and the cart on its track, for more than 500 steps."""
    x, x_dot, theta, theta_dot = obs.unbind(-1)
    return (0.05 * x + 0.2 * x_dot + 2 * theta + theta_dot > 0).long()


CHECKS = {
    "CartPole-v1": Checks(
        anchors=(475.0, 22.1, 500.0),  # the cap
        expert=balance,
        starts=([-0.05] * 4, [0.05] * 4),
        widest=([-2.4, -4.0, -0.2095, -4.0], [2.4, 4.0, 0.2095, 4.0]),
        # With equal actions the pole falls as exp(t sqrt(g / moment)): an error of 1e-16 grows by e
        # every 12.6 steps, until it changes an action of the expert.
        compared=200,
        float32=(60, 1e-4),  # measured 4e-6
        c_step=1e-6,  # measured 2.6e-7
        c_slow_step=1e-6,
        c_rollout=2e-6,  # measured 2.4e-7
        near=(1.0, 0.1, 1.0, 0.1),
    )
}


def test_limits_are_gymnasiums() -> None:
    """Just inside a limit goes on, just outside ends; velocities have none."""
    env, theirs = CartPole(), gym.make("CartPole-v1").unwrapped
    assert isinstance(theirs, CartPoleEnv)
    x, theta = theirs.x_threshold, theirs.theta_threshold_radians
    inside = torch.tensor(
        [[x, 0, 0, 0], [-x, 0, 0, 0], [0, 0, theta, 0], [0, 0, -theta, 0], [0, 1e9, 0, -1e9]],
        dtype=torch.float64,
    )
    assert env.terminal(inside).tolist() == [False] * 5
    assert env.terminal(inside[:4] * (1 + 1e-12)).tolist() == [True] * 4
