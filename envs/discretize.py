"""Bins a continuous observation, so that tabular algorithms run on CartPole."""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor

from manyseeds.digest import boundary
from manyseeds.envs.core import NativeEnv

# (low, high, bins) per observation component; the outermost bins reach to infinity. The cart may
# drift a little within an episode, so its two components get few bins and the pole's get many.
BINS = boundary(
    {
        "CartPole-v1": ((-2.4, 2.4, 3), (-2.0, 2.0, 3), (-0.2095, 0.2095, 8), (-2.5, 2.5, 8)),
    }
)


class Discretize(NativeEnv):
    """The same environment, observed as one state index (mixed radix over the bins)."""

    def __init__(self, env: NativeEnv, bins: tuple[tuple[float, float, int], ...]) -> None:
        self.env = env
        self.initial_noise, self.transition_noise = env.initial_noise, env.transition_noise
        # n bins have n - 1 inner edges.
        self.edges = [torch.linspace(low, high, n + 1)[1:-1] for low, high, n in bins]
        self.radix = [n for _, _, n in bins]
        self.spec = replace(env.spec, obs_size=None, num_states=math.prod(self.radix))

    def origins(self) -> list[type | str]:
        return [type(self), f"manyseeds.envs.discretize:BINS[{self.spec.id}]", *self.env.origins()]

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

    def reward(self, physics: Tensor, action: Tensor, next_physics: Tensor) -> Tensor:
        return self.env.reward(physics, action, next_physics)

    def terminal(self, physics: Tensor) -> Tensor:
        return self.env.terminal(physics)
