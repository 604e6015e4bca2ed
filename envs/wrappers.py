"""Environments whose observations or actions are written in another form."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from torch import Tensor
from torch.nn.functional import one_hot

from manyseeds.envs.core import Env, State, Step, tensors


class Wrapper(Env):
    """The same environment; a subclass says what becomes of its observations and actions."""

    def __init__(self, env: Env) -> None:
        self.env, self.spec, self.native = env, env.spec, env.native
        self.initial_noise, self.transition_noise = env.initial_noise, env.transition_noise

    def origins(self) -> list[type | str]:
        return [type(self), *self.env.origins()]

    def notes(self) -> list[str]:
        return self.env.notes()

    def faults(self) -> dict[int, str]:
        return self.env.faults()

    def packages(self) -> list[str]:
        return self.env.packages()

    def observe(self, obs: Tensor) -> Tensor:
        """What the policy sees of the environment's observations."""
        return obs

    def translate(self, action: Tensor) -> Tensor:
        """What the environment is given for the policy's actions."""
        return action

    def from_gymnasium(self, obs: Any) -> tuple[Tensor, bool]:
        seen, one = self.env.from_gymnasium(obs)
        return self.observe(seen), one

    def to_gymnasium(self, action: Tensor) -> np.ndarray:
        return self.env.to_gymnasium(self.translate(action))

    def reset(self, noise: Tensor) -> tuple[State, Tensor]:
        state, obs = self.env.reset(noise)
        return state, self.observe(obs)

    def step(self, state: State, action: Tensor, noise: Tensor) -> Step:
        step = self.env.step(state, self.translate(action), noise)
        return step._replace(obs=self.observe(step.obs), final_obs=self.observe(step.final_obs))


class OneHot(Wrapper):
    """A state index as the vector `[X]` that is 1 there and 0 elsewhere."""

    def __init__(self, env: Env) -> None:
        super().__init__(env)
        assert env.spec.num_states is not None
        self.states = env.spec.num_states
        self.spec = replace(env.spec, obs_size=self.states, num_states=None)

    def observe(self, obs: Tensor) -> Tensor:
        return one_hot(obs, self.states).float()


class RescaledActions(Wrapper):
    """Continuous actions from -1 to 1, which span the environment's bounds."""

    def __init__(self, env: Env) -> None:
        super().__init__(env)
        D = len(env.spec.action_low)
        self.spec = replace(env.spec, action_low=(-1.0,) * D, action_high=(1.0,) * D)

    def translate(self, action: Tensor) -> Tensor:
        bounds = self.env.spec.action_low, self.env.spec.action_high
        low, high = tensors(bounds, action.dtype, action.device)
        share = (action.clamp(-1, 1) + 1) / 2
        return low * (1 - share) + high * share  # high - low may overflow
