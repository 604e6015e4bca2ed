"""Pendulum-v1: swing a pendulum up, and hold it there, with a motor too weak to lift it."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from manyseeds.envs.core import EnvSpec, NativeEnv, tensors

GRAVITY = 10.0
MASS = 1.0
LENGTH = 1.0  # of a rod, so that its moment of inertia is m l^2 / 3
TAU = 0.05  # seconds between two states
MAX_SPEED = 8.0
MAX_TORQUE = 2.0


def constants(dtype: torch.dtype, device: torch.device) -> tuple[Tensor, ...]:
    """State at the start for noise 0 `[2]`, what noise 1 adds `[2]`."""
    return tensors(((-math.pi, -1.0), (2 * math.pi, 2.0)), dtype, device)


class Pendulum(NativeEnv):
    """A rod swings about one of its ends, where a motor turns it.

    ## Actions
    One component: the torque, from -2 to 2 N m, counter-clockwise if positive.

    ## Observations
    | Index | Observation       | Min | Max | Unit  |
    |-------|-------------------|-----|-----|-------|
    | 0     | Cosine of theta   | -1  | 1   |       |
    | 1     | Sine of theta     | -1  | 1   |       |
    | 2     | Velocity of theta | -8  | 8   | rad/s |

    theta is the angle against the upright position. The state counts whole turns.

    ## Rewards
    -(theta^2 + 0.1 theta'^2 + 0.001 torque^2), of the state before the step and theta in
    [-pi, pi]: between -16.27 and 0. There is no threshold.

    ## Starting state
    theta uniform in (-pi, pi), its velocity in (-1, 1).

    ## Episode end
    Truncation, after 200 steps. Nothing terminates.

    Follows `gymnasium/envs/classic_control/pendulum.py` (semi-implicit Euler: the new velocity
    moves the rod), in any float type.
    """

    spec = EnvSpec(
        id="Pendulum-v1",
        action_low=(-MAX_TORQUE,),
        action_high=(MAX_TORQUE,),
        time_limit=200,
        obs_size=3,
        random_score=-1232.0,  # measured: 20,000 episodes +-2; Gymnasium 1.4.0 gives -1236 +-6.5
        reference_score=-150.0,  # about one agent of rl-baselines3-zoo's TD3, -151.9
    )
    c_name = "pendulum"
    initial_noise = 2
    transition_noise = 0

    def initial(self, noise: Tensor) -> Tensor:
        low, span = constants(noise.dtype, noise.device)
        return torch.addcmul(low, noise, span)

    def transition(self, physics: Tensor, action: Tensor, noise: Tensor) -> Tensor:
        theta, theta_dot = physics.unbind(-1)
        # Gymnasium: newthdot = thdot + (3 * g / (2 * l) * np.sin(th) + 3.0 / (m * l**2) * u) * dt
        # Fused here: add(a, b, alpha=c) is a + c b.
        gravity, torque = 3 * GRAVITY / (2 * LENGTH), 3 / (MASS * LENGTH**2)  # over the inertia
        theta_dot = torch.add(theta_dot, theta.sin(), alpha=gravity * TAU)
        theta_dot = torch.add(theta_dot, action.squeeze(-1), alpha=torque * TAU)
        theta_dot = theta_dot.clamp(-MAX_SPEED, MAX_SPEED)
        # newth = th + newthdot * dt
        theta = torch.add(theta, theta_dot, alpha=TAU)
        return torch.stack((theta, theta_dot), dim=-1)

    def observation(self, physics: Tensor) -> Tensor:
        theta, theta_dot = physics.unbind(-1)
        return torch.stack((theta.cos(), theta.sin(), theta_dot), dim=-1)

    def reward(self, physics: Tensor, action: Tensor, next_physics: Tensor) -> Tensor:
        theta, theta_dot = physics.unbind(-1)
        torque = action.squeeze(-1)
        # Gymnasium: costs = angle_normalize(th) ** 2 + 0.1 * thdot**2 + 0.001 * (u**2)
        turns = (theta * (1 / (2 * math.pi))).round()
        angle = torch.add(theta, turns, alpha=-2 * math.pi)  # in [-pi, pi]
        cost = torch.addcmul(angle.square(), theta_dot, theta_dot, value=0.1)
        return -torch.addcmul(cost, torque, torque, value=0.001)

    def terminal(self, physics: Tensor) -> Tensor:
        return torch.zeros_like(physics[..., 0], dtype=torch.bool)


ENVS = {"Pendulum-v1": Pendulum}
