"""Tiny environments in which one fault each becomes visible."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from manyseeds import envs
from manyseeds.optim import SeedAdam
from manyseeds.runs.control import Run


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


class Slider(Counter):
    """Counter with an action of one component between -1 and 3."""

    def __init__(self, terminal_at: int = 10**6, time_limit: int = 10**6) -> None:
        super().__init__(terminal_at, time_limit)
        self.spec = envs.EnvSpec("Slider", time_limit, (), (-1.0,), (3.0,), obs_size=1)


class Endless(Counter):
    """Nothing changes and every step pays 1, for ever: V = 1 / (1 - gamma).

    A time limit cuts episodes. Whoever takes the cut for an end learns a smaller value.
    """

    def __init__(self, time_limit: int) -> None:
        super().__init__(time_limit=time_limit)

    def observation(self, physics: Tensor) -> Tensor:
        return torch.ones_like(physics)


class Probe(envs.NativeEnv):
    """Base of five environments, each of which asks for one thing more than the one before.

    An episode has `steps` steps; it begins with a sign, -1 or 1, which some of them show.
    """

    initial_noise = 1
    transition_noise = 0
    steps, num_actions = 1, 1

    def __init__(self) -> None:
        limit = self.steps + 1  # never reached: what ends, terminates
        self.spec = envs.EnvSpec("Probe", limit, num_actions=self.num_actions, obs_size=1)

    def initial(self, noise: Tensor) -> Tensor:
        return torch.cat((2 * (noise < 0.5).float() - 1, torch.zeros_like(noise)), dim=-1)

    def transition(self, physics: Tensor, action: Tensor, noise: Tensor) -> Tensor:
        return torch.stack((physics[..., 0], physics[..., 1] + 1), dim=-1)

    def observation(self, physics: Tensor) -> Tensor:
        return torch.zeros_like(physics[..., :1])

    def terminal(self, physics: Tensor) -> Tensor:
        return physics[..., 1] >= self.steps


class OneReward(Probe):
    """One action, one step, reward 1, nothing to see: V = 1."""

    def reward(self, physics: Tensor, action: Tensor, next_physics: Tensor) -> Tensor:
        return torch.ones_like(physics[..., 0])


class SignReward(Probe):
    """The reward is the observed sign: V(o) = o. Values must depend on the observation."""

    def observation(self, physics: Tensor) -> Tensor:
        return physics[..., :1]

    def reward(self, physics: Tensor, action: Tensor, next_physics: Tensor) -> Tensor:
        return physics[..., 0]


class LateReward(Probe):
    """Two steps, the observation is the time, reward 1 at the end: V(0) = gamma, V(1) = 1."""

    steps = 2

    def observation(self, physics: Tensor) -> Tensor:
        return physics[..., 1:]

    def reward(self, physics: Tensor, action: Tensor, next_physics: Tensor) -> Tensor:
        return physics[..., 1]


class OneChoice(Probe):
    """Two actions, nothing to see: action 1 pays 1, action 0 costs 1."""

    num_actions = 2

    def reward(self, physics: Tensor, action: Tensor, next_physics: Tensor) -> Tensor:
        return 2 * action.to(physics.dtype) - 1


class SignChoice(OneChoice):
    """Two actions, one for each sign: the right one pays 1, the wrong one costs 1."""

    def observation(self, physics: Tensor) -> Tensor:
        return physics[..., :1]

    def reward(self, physics: Tensor, action: Tensor, next_physics: Tensor) -> Tensor:
        return physics[..., 0] * super().reward(physics, action, next_physics)


def train_on(
    module: Any,
    env: envs.Env | str,
    monkeypatch: pytest.MonkeyPatch,
    seeds: int = 3,
    **settings: Any,
) -> tuple[Any, Run]:
    """Train an algorithm in memory, without evaluations; the policy and its run."""
    if isinstance(env, envs.Env):
        probe, env = env, "Probe"
        monkeypatch.setitem(envs.NATIVE, env, lambda: probe)
    config = module.Config(env=env, seeds=seeds, quiet=True, **settings)
    run = Run(config)
    monkeypatch.setattr(run, "evaluate_if_due", lambda *args: None)
    return module.train(config, run), run


def spy_on_optimizers(monkeypatch: pytest.MonkeyPatch) -> list[SeedAdam]:
    """All that are made from now on."""
    made: list[SeedAdam] = []
    build = SeedAdam.__init__

    def spy(self: SeedAdam, *args: Any, **kwargs: Any) -> None:
        build(self, *args, **kwargs)
        made.append(self)

    monkeypatch.setattr(SeedAdam, "__init__", spy)
    return made
