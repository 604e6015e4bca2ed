"""Acrobot-v1: swing two links up with a motor in the joint between them (Sutton, 1996)."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from manyseeds.envs.core import EnvSpec, NativeEnv, chosen, tensors

GRAVITY = 9.8
MASS = 1.0  # of either link
LENGTH = 1.0
CENTRE = 0.5  # from a link's joint to its centre of mass
MOMENT = 1.0  # of inertia of either link, about its centre of mass
TORQUE = 1.0
TAU = 0.2  # seconds between two states
MAX_SPEED_1 = 4 * math.pi
MAX_SPEED_2 = 9 * math.pi

# In the angles of the links against the vertical, theta (upper) and phi (lower), with s and c the
# sine and cosine of phi - theta and u the torque, the equations of the book are
#     INERTIA_1 theta'' + COUPLING c phi''  =  COUPLING s phi'^2   - WEIGHT_1 sin(theta) - u
#     COUPLING c theta'' + INERTIA_2 phi''  = -COUPLING s theta'^2 - WEIGHT_2 sin(phi)   + u
# Runge-Kutta steps are the same in either angles, and these take half as many operations.
INERTIA_1 = MOMENT + MASS * CENTRE**2 + MASS * LENGTH**2
INERTIA_2 = MOMENT + MASS * CENTRE**2
COUPLING = MASS * LENGTH * CENTRE
WEIGHT_1 = (MASS * CENTRE + MASS * LENGTH) * GRAVITY
WEIGHT_2 = MASS * CENTRE * GRAVITY


def constants(dtype: torch.dtype, device: torch.device) -> tuple[Tensor, ...]:
    """Accelerations of both links by each action's torque `[2, A]`; the number 1."""
    upper, lower = TORQUE / INERTIA_1, TORQUE / INERTIA_2
    return tensors((((upper, 0.0, -upper), (-lower, 0.0, lower)), 1.0), dtype, device)


def wrap(angle: Tensor) -> Tensor:
    """The same angle in [-pi, pi]."""
    turns = (angle * (1 / (2 * math.pi))).round()
    return torch.add(angle, turns, alpha=-2 * math.pi)


def derivative(links: Tensor, push_1: Tensor, push_2: Tensor) -> Tensor:
    """Of (theta, phi, theta', phi') `[4, ...]`, with the accelerations by the torque `[...]`."""
    theta, phi, theta_dot, phi_dot = links.unbind()
    _, one = constants(links.dtype, links.device)
    delta = phi - theta
    sin, cos = delta.sin(), delta.cos()
    # The right sides, each divided by its own inertia; addcmul(a, b, c, value=v) is a + v b c.
    right_1 = torch.add(push_1, theta.sin(), alpha=-WEIGHT_1 / INERTIA_1)
    right_2 = torch.add(push_2, phi.sin(), alpha=-WEIGHT_2 / INERTIA_2)
    right_1 = torch.addcmul(right_1, sin, phi_dot.square(), value=COUPLING / INERTIA_1)
    right_2 = torch.addcmul(right_2, sin, theta_dot.square(), value=-COUPLING / INERTIA_2)
    # Cramer's rule.
    determinant = torch.addcmul(one, cos, cos, value=-(COUPLING**2) / INERTIA_1 / INERTIA_2)
    theta_acc = torch.addcmul(right_1, cos, right_2, value=-COUPLING / INERTIA_1) / determinant
    phi_acc = torch.addcmul(right_2, cos, right_1, value=-COUPLING / INERTIA_2) / determinant
    return torch.stack((theta_dot, phi_dot, theta_acc, phi_acc))


class Acrobot(NativeEnv):
    """Two links hang in a chain from a fixed joint; the joint between them has a motor.

    ## Actions
    0 turns the lower link with -1 N m, 1 does nothing, 2 turns it with 1 N m.

    ## Observations
    | Index | Observation        | Min   | Max  | Unit  |
    |-------|--------------------|-------|------|-------|
    | 0     | Cosine of theta1   | -1    | 1    |       |
    | 1     | Sine of theta1     | -1    | 1    |       |
    | 2     | Cosine of theta2   | -1    | 1    |       |
    | 3     | Sine of theta2     | -1    | 1    |       |
    | 4     | Velocity of theta1 | -4 pi | 4 pi | rad/s |
    | 5     | Velocity of theta2 | -9 pi | 9 pi | rad/s |

    theta1 is the angle of the upper link against hanging down, theta2 that of the lower link
    against the upper one. The state holds both in [-pi, pi].

    ## Rewards
    -1 for every step, 0 for the one that ends the task. The threshold is -100.

    ## Starting state
    Every component uniform in (-0.1, 0.1).

    ## Episode end
    1. Termination: the free end is more than one link above the fixed joint,
       -cos(theta1) - cos(theta1 + theta2) > 1.
    2. Truncation: after 500 steps.

    Follows `gymnasium/envs/classic_control/acrobot.py` (the dynamics of Sutton and Barto's book,
    Runge-Kutta of fourth order), in any float type.
    """

    spec = EnvSpec(
        id="Acrobot-v1",
        num_actions=3,
        time_limit=500,
        obs_size=6,
        reward_threshold=-100.0,
        random_score=-498.9,  # measured with Gymnasium 1.4.0, 1,200 episodes: +-0.3
        reference_score=-69.1,  # one agent of rl-baselines3-zoo's QR-DQN
    )
    c_name = "acrobot"
    initial_noise = 4
    transition_noise = 0

    def initial(self, noise: Tensor) -> Tensor:
        return noise * 0.2 - 0.1

    def transition(self, physics: Tensor, action: Tensor, noise: Tensor) -> Tensor:
        theta1, theta2, theta1_dot, theta2_dot = physics.unbind(-1)
        links = torch.stack((theta1, theta1 + theta2, theta1_dot, theta1_dot + theta2_dot))
        pushes, _ = constants(physics.dtype, physics.device)
        push = [chosen(values, action) for values in pushes]
        # Gymnasium: ns = rk4(self._dsdt, s_augmented, [0, self.dt])
        k1 = derivative(links, *push)
        k2 = derivative(torch.add(links, k1, alpha=TAU / 2), *push)
        k3 = derivative(torch.add(links, k2, alpha=TAU / 2), *push)
        k4 = derivative(torch.add(links, k3, alpha=TAU), *push)
        links = torch.add(links, torch.add(k1 + k4, k2 + k3, alpha=2), alpha=TAU / 6)
        theta, phi, theta_dot, phi_dot = links.unbind()
        theta1, theta2 = wrap(theta), wrap(phi - theta)
        theta1_dot = theta_dot.clamp(-MAX_SPEED_1, MAX_SPEED_1)
        theta2_dot = (phi_dot - theta_dot).clamp(-MAX_SPEED_2, MAX_SPEED_2)
        return torch.stack((theta1, theta2, theta1_dot, theta2_dot), dim=-1)

    def observation(self, physics: Tensor) -> Tensor:
        theta1, theta2, *velocities = physics.unbind(-1)
        circles = (theta1.cos(), theta1.sin(), theta2.cos(), theta2.sin())
        return torch.stack((*circles, *velocities), dim=-1)

    def reward(self, physics: Tensor, action: Tensor, next_physics: Tensor) -> Tensor:
        return self.terminal(next_physics).to(physics.dtype) - 1

    def terminal(self, physics: Tensor) -> Tensor:
        theta1, theta2, _, _ = physics.unbind(-1)
        return -theta1.cos() - (theta1 + theta2).cos() > 1


ENVS = {"Acrobot-v1": Acrobot}
