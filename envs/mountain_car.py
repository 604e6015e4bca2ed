"""MountainCar-v0 and MountainCarContinuous-v0: rock a weak car out of a valley (Moore, 1990)."""

from __future__ import annotations

import torch
from torch import Tensor

from manyseeds.envs.core import EnvSpec, NativeEnv, chosen, tensors

GRAVITY = 0.0025  # per step, where the hill is steepest; the track is sin(3 x) high
MAX_SPEED = 0.07
WALL = -1.2
END = 0.6  # of the track, behind the flag


def constants(dtype: torch.dtype, device: torch.device) -> tuple[Tensor, ...]:
    """State at the start for noise 0 `[2]`, what noise 1 adds `[2]`; pushes by action `[A]`."""
    return tensors(((-0.6, 0.0), (0.2, 0.0), (-1.0, 0.0, 1.0)), dtype, device)


class Valley(NativeEnv):
    """What both variants share: start, hills, walls and the flag."""

    force: float  # what a full push adds to the velocity
    goal: float  # position of the flag
    initial_noise = 1
    transition_noise = 0

    def initial(self, noise: Tensor) -> Tensor:
        low, span, _ = constants(noise.dtype, noise.device)
        return torch.addcmul(low, noise, span)

    def drive(self, physics: Tensor, push: Tensor) -> Tensor:
        """The successor state under a push in [-1, 1], `[S, N]`."""
        position, velocity = physics.unbind(-1)
        # Gymnasium: velocity += (action - 1) * force + math.cos(3 * position) * (-gravity)
        # Fused here: add(a, b, alpha=c) is a + c b.
        velocity = torch.add(velocity, push, alpha=self.force)
        velocity = torch.add(velocity, (3 * position).cos(), alpha=-GRAVITY)
        velocity = velocity.clamp(-MAX_SPEED, MAX_SPEED)
        position = (position + velocity).clamp(WALL, END)
        # Only the wall on the left stops the car. Gymnasium does not stop it at the other end.
        velocity = velocity.masked_fill(position <= WALL, 0)
        return torch.stack((position, velocity), dim=-1)

    def observation(self, physics: Tensor) -> Tensor:
        return physics

    def terminal(self, physics: Tensor) -> Tensor:
        position, velocity = physics.unbind(-1)
        return (position >= self.goal) & (velocity >= 0)


class MountainCar(Valley):
    """A car at the bottom of a valley is too weak to drive straight up to the flag on the right.

    ## Actions
    0 pushes to the left, 1 does not push, 2 pushes to the right.

    ## Observations
    | Index | Observation  | Min   | Max  | Unit   |
    |-------|--------------|-------|------|--------|
    | 0     | Car position | -1.2  | 0.6  | m      |
    | 1     | Car velocity | -0.07 | 0.07 | m/step |

    ## Rewards
    -1 for every step, the last included. The threshold is -110.

    ## Starting state
    Position uniform in (-0.6, -0.4), at rest. The bottom is at -0.52.

    ## Episode end
    1. Termination: the car is at 0.5 or beyond, and not rolling back.
    2. Truncation: after 200 steps.

    Follows `gymnasium/envs/classic_control/mountain_car.py` (semi-implicit Euler: the new velocity
    moves the car), in any float type.
    """

    spec = EnvSpec(
        id="MountainCar-v0",
        num_actions=3,
        time_limit=200,
        obs_size=2,
        reward_threshold=-110.0,
        random_score=-200.0,  # measured with Gymnasium 1.4.0: it never arrives
        reference_score=-100.8,  # one agent of rl-baselines3-zoo's DQN: no bound
    )
    c_name = "mountain_car"
    force = 0.001
    goal = 0.5

    def transition(self, physics: Tensor, action: Tensor, noise: Tensor) -> Tensor:
        _, _, pushes = constants(physics.dtype, physics.device)
        return self.drive(physics, chosen(pushes, action))

    def reward(self, physics: Tensor, action: Tensor, next_physics: Tensor) -> Tensor:
        return torch.full_like(physics[..., 0], -1)


class MountainCarContinuous(Valley):
    """The same valley with continuous pushes, up to one and a half times as strong.

    ## Actions
    One component: the push, from -1 (left) to 1 (right).

    ## Observations
    | Index | Observation  | Min   | Max  | Unit   |
    |-------|--------------|-------|------|--------|
    | 0     | Car position | -1.2  | 0.6  | m      |
    | 1     | Car velocity | -0.07 | 0.07 | m/step |

    ## Rewards
    -0.1 push^2 for every step, and 100 more for the step that ends the task. The threshold is 90.

    ## Starting state
    Position uniform in (-0.6, -0.4), at rest. The bottom is at -0.52.

    ## Episode end
    1. Termination: the car is at 0.45 or beyond, and not rolling back.
    2. Truncation: after 999 steps.

    Follows `gymnasium/envs/classic_control/continuous_mountain_car.py` (semi-implicit Euler), in
    any float type; Gymnasium rounds its state to float32 after every step. Gymnasium charges the
    full push, also beyond the bounds; here, as with SB3, actions are clipped first.
    """

    spec = EnvSpec(
        id="MountainCarContinuous-v0",
        action_low=(-1.0,),
        action_high=(1.0,),
        time_limit=999,
        obs_size=2,
        reward_threshold=90.0,
        # Doing nothing. The uniformly random policy scores less, -33.3 (measured with Gymnasium
        # 1.4.0): a policy that only learned to do nothing would have a high normalised score.
        random_score=0.0,
        reference_score=96.7,  # one agent of rl-baselines3-zoo's ARS
    )
    c_name = "mountain_car_continuous"
    force = 0.0015
    goal = 0.45

    def transition(self, physics: Tensor, action: Tensor, noise: Tensor) -> Tensor:
        return self.drive(physics, action.squeeze(-1))

    def reward(self, physics: Tensor, action: Tensor, next_physics: Tensor) -> Tensor:
        push = action.squeeze(-1)
        arrival = torch.zeros_like(push).masked_fill(self.terminal(next_physics), 100)
        # Gymnasium: reward -= math.pow(action[0], 2) * 0.1
        return torch.addcmul(arrival, push, push, value=-0.1)


ENVS = {"MountainCar-v0": MountainCar, "MountainCarContinuous-v0": MountainCarContinuous}
