"""Binned observations: tabular algorithms on environments with vector observations."""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor

from manyseeds.envs.core import NativeEnv, State, Step
from manyseeds.envs.rollout import one_step
from manyseeds.envs.wrappers import Wrapper


class Discretize(Wrapper):
    """The same environment, observed as one state index (mixed radix over its `bins`).

    The outermost bins reach to infinity. Steps are taken by the environment's C code if it has any.
    """

    env: NativeEnv

    def __init__(self, env: NativeEnv) -> None:
        super().__init__(env)
        assert env.bins is not None
        # n bins have n - 1 inner edges.
        self.edges = [
            torch.tensor([low + (high - low) * i / n for i in range(1, n)])
            for low, high, n in env.bins
        ]
        self.radix = [n for _, _, n in env.bins]
        self.spec = replace(env.spec, obs_size=None, num_states=math.prod(self.radix))

    def observe(self, obs: Tensor) -> Tensor:
        index = torch.zeros(obs.shape[:-1], dtype=torch.int64, device=obs.device)
        for i, edges in enumerate(self.edges):
            component = obs[..., i].contiguous()
            index = index * self.radix[i] + torch.bucketize(component, edges.to(obs.device))
        return index

    def step(self, state: State, action: Tensor, noise: Tensor) -> Step:
        step = one_step(self.env, state, action, noise)
        return step._replace(obs=self.observe(step.obs), final_obs=self.observe(step.final_obs))
