"""CartPole-v1: balance a pole on a cart (Barto, Sutton and Anderson, 1983)."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from manyseeds.envs.core import EnvSpec, NativeEnv, chosen, tensors

GRAVITY = 9.8
MASS_POLE = 0.1
MASS_TOTAL = 1.1
LENGTH = 0.5  # half the length of the pole
POLE_MOMENT = MASS_POLE * LENGTH
FORCE = 10.0
TAU = 0.02  # seconds between two states
X_LIMIT = 2.4
INERTIA_OF_POLE = -LENGTH * MASS_POLE / MASS_TOTAL / GRAVITY  # both sides are divided by gravity
THETA_LIMIT = 12 * 2 * math.pi / 360


def constants(dtype: torch.dtype, device: torch.device) -> tuple[Tensor, ...]:
    """Accelerations by each action's push `[A]`; inertia at rest."""
    push = FORCE / MASS_TOTAL
    return tensors(((-push, push), 4 * LENGTH / 3 / GRAVITY), dtype, device)


class CartPole(NativeEnv):
    """A pole is attached by an un-actuated joint to a cart on a frictionless track.

    ## Actions
    0 pushes the cart to the left, 1 to the right, with 10 N.

    ## Observations
    | Index | Observation           | Min        | Max       | Unit  |
    |-------|-----------------------|------------|-----------|-------|
    | 0     | Cart position         | -4.8       | 4.8       | m     |
    | 1     | Cart velocity         | -inf       | inf       | m/s   |
    | 2     | Pole angle            | -0.418     | 0.418     | rad   |
    | 3     | Pole angular velocity | -inf       | inf       | rad/s |

    ## Rewards
    1 for every step, the last included. The threshold is 475.

    ## Starting state
    Every component uniform in (-0.05, 0.05).

    ## Episode end
    1. Termination: the cart leaves (-2.4, 2.4) m or the pole leaves +-12 degrees (0.2095 rad).
    2. Truncation: after 500 steps.

    Follows `gymnasium/envs/classic_control/cartpole.py` (Euler integration), in any float type.
    """

    spec = EnvSpec(
        id="CartPole-v1",
        num_actions=2,
        time_limit=500,
        obs_size=4,
        reward_threshold=475.0,
        random_score=22.1,  # measured with Gymnasium 1.4.0
        reference_score=500.0,  # the cap
    )
    # The cart may drift a little within an episode: few bins for it, many for the pole.
    bins = ((-2.4, 2.4, 3), (-2.0, 2.0, 3), (-0.2095, 0.2095, 8), (-2.5, 2.5, 8))
    c_name = "cartpole"
    initial_noise = 4
    transition_noise = 0

    def initial(self, noise: Tensor) -> Tensor:
        return noise * 0.1 - 0.05

    def transition(self, physics: Tensor, action: Tensor, noise: Tensor) -> Tensor:
        _, x_dot, theta, theta_dot = physics.unbind(-1)
        costheta, sintheta = theta.cos(), theta.sin()
        # Above each step Gymnasium's own line (https://coneural.org/florian/papers/05_cart_pole.pdf).
        # Here its operations are fused: addcmul(a, b, c, value=v) is a + v b c.
        pushes, inertia_at_rest = constants(physics.dtype, physics.device)
        push = chosen(pushes, action)
        # temp = (force + polemass_length * theta_dot**2 * sintheta) / total_mass
        temp = torch.addcmul(push, theta_dot.square(), sintheta, value=POLE_MOMENT / MASS_TOTAL)
        # thetaacc = (gravity * sintheta - costheta * temp) / (
        #     length * (4.0 / 3.0 - masspole * costheta**2 / total_mass))
        inertia = torch.addcmul(inertia_at_rest, costheta, costheta, value=INERTIA_OF_POLE)
        thetaacc = torch.addcmul(sintheta, costheta, temp, value=-1 / GRAVITY) / inertia
        # xacc = temp - polemass_length * thetaacc * costheta / total_mass
        xacc = torch.addcmul(temp, thetaacc, costheta, value=-POLE_MOMENT / MASS_TOTAL)
        # x = x + tau * x_dot, x_dot = x_dot + tau * xacc, and theta and theta_dot likewise
        derivative = torch.stack((x_dot, xacc, theta_dot, thetaacc), dim=-1)
        return torch.add(physics, derivative, alpha=TAU)

    def observation(self, physics: Tensor) -> Tensor:
        return physics

    def reward(self, physics: Tensor, action: Tensor, next_physics: Tensor) -> Tensor:
        return torch.ones_like(physics[..., 0])

    def terminal(self, physics: Tensor) -> Tensor:
        x, _, theta, _ = physics.unbind(-1)
        return (x.abs() > X_LIMIT) | (theta.abs() > THETA_LIMIT)


ENVS = {"CartPole-v1": CartPole}
