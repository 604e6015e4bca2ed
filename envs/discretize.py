"""Binned observations: tabular algorithms on environments with vector observations."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from manyseeds.envs.core import NativeEnv


class Discretize(NativeEnv):
    """The same environment, observed as one state index (mixed radix over its `bins`).

    The outermost bins reach to infinity.
    """

    def __init__(self, env: NativeEnv) -> None:
        assert env.bins is not None
        self.env = env
        self.initial_noise, self.transition_noise = env.initial_noise, env.transition_noise
        # n bins have n - 1 inner edges.
        self.edges = [torch.linspace(low, high, n + 1)[1:-1] for low, high, n in env.bins]
        self.radix = [n for _, _, n in env.bins]
        self.spec = replace(env.spec, obs_size=None, num_states=math.prod(self.radix))

    def origins(self) -> list[type | str]:
        return [type(self), *self.env.origins()]

    def initial(self, noise: Tensor) -> Tensor:
        return self.env.initial(noise)

    def transition(self, physics: Tensor, action: Tensor, noise: Tensor) -> Tensor:
        return self.env.transition(physics, action, noise)

    def observation(self, physics: Tensor) -> Tensor:
        obs = self.env.observation(physics)
        index = torch.zeros(obs.shape[:-1], dtype=torch.int64, device=obs.device)
        for i, edges in enumerate(self.edges):
            component = obs[..., i].contiguous()
            index = index * self.radix[i] + torch.bucketize(component, edges.to(obs.device))
        return index

    def from_gymnasium(self, obs: Any) -> tuple[Tensor, bool]:
        physics, one = self.env.from_gymnasium(obs)  # what is binned is the state, as it is shown
        return self.observation(physics), one

    def reward(self, physics: Tensor, action: Tensor, next_physics: Tensor) -> Tensor:
        return self.env.reward(physics, action, next_physics)

    def terminal(self, physics: Tensor) -> Tensor:
        return self.env.terminal(physics)
