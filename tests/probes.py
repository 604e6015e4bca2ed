"""Tiny environments in which one fault each becomes visible."""

from __future__ import annotations

import torch
from torch import Tensor

import envs


class Counter(envs.NativeEnv):
    """Counts the steps of an episode: the true successor of obs is always obs + 1.

    Reward 1 per step; ends are scripted by the count. Actions do nothing.
    """

    initial_noise = 0
    transition_noise = 0

    def __init__(self, terminal_at: int = 10**6, time_limit: int = 10**6) -> None:
        self.terminal_at = terminal_at
        self.spec = envs.EnvSpec("Counter", num_actions=2, time_limit=time_limit, obs_size=1)

    def initial(self, noise: Tensor) -> Tensor:
        return torch.zeros(*noise.shape[:-1], 1, device=noise.device)

    def transition(self, physics: Tensor, action: Tensor, noise: Tensor) -> Tensor:
        return physics + 1

    def observation(self, physics: Tensor) -> Tensor:
        return physics

    def reward(self, physics: Tensor, action: Tensor, next_physics: Tensor) -> Tensor:
        return torch.ones_like(physics[..., 0])

    def terminal(self, physics: Tensor) -> Tensor:
        return physics[..., 0] >= self.terminal_at


class Endless(Counter):
    """Nothing changes and every step pays 1, for ever: V = 1 / (1 - gamma).

    A time limit cuts episodes. Whoever takes the cut for an end learns a smaller value.
    """

    def __init__(self, time_limit: int = 5, ends: bool = False) -> None:
        super().__init__(time_limit=10**6 if ends else time_limit)
        self.ends_at = time_limit if ends else 10**6

    def observation(self, physics: Tensor) -> Tensor:
        return torch.ones_like(physics)

    def terminal(self, physics: Tensor) -> Tensor:
        return physics[..., 0] >= self.ends_at
