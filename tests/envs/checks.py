"""What the general tests know about each environment, as `tests/envs/test_NAME.py` declares it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor

from manyseeds.envs import NativeEnv

Bounds = tuple[list[float], list[float]]  # lowest and highest value of each component of a state


@dataclass(frozen=True)
class Checks:
    """Of one environment; a table needs only those fields whose defaults are wrong for it."""

    # Reward threshold (as Gymnasium registers it), random score, reference score: a change of one
    # changes every published number, so it has to be made here, too.
    anchors: tuple[float | None, float, float] = (None, math.nan, math.nan)
    random_mean: float | None = None  # of the uniformly random policy, if not the random score
    expert: Callable[[Tensor], Tensor] | None = None  # a policy that reaches what chance does not
    starts: Bounds = ([], [])  # between which first states are uniform
    widest: Bounds = ([], [])  # states from which single steps are compared
    # Where a step met each bound of the state, `[S, N]` bool, by the state before and after it.
    edges: Callable[[Tensor, Tensor], list[Tensor]] = lambda before, after: []
    terminates: bool = True
    angles: int = 0  # this many first components are angles in [-pi, pi]
    compared: int = 10**9  # steps of an episode; beyond them rounding errors decide
    bound: Callable[[Tensor], Tensor] = lambda age: torch.full(age.shape, 1e-9).double()
    one_step: float = 1e-12  # error of a step in float64
    float32: tuple[int, float] = (100, 1e-4)  # steps of an episode, and their error in float32
    # In C: errors of a step from `widest`, of one from its inner quarter, and of 30 steps from
    # `near` times `widest`.
    c_step: float = 2e-7
    c_slow_step: float = 2e-7
    c_rollout: float = 1e-5
    near: tuple[float, ...] = (1.0, 1.0)
    along_arrows: bool = True  # of a table: actions lead where the arrows of its layout point


def declared() -> dict[str, Checks]:
    """The `CHECKS` of all test files here, by id."""
    names = sorted(path.stem for path in Path(__file__).parent.glob("test_*.py"))
    modules = [import_module(f"{__package__}.{name}") for name in names if name not in GENERAL]
    return {
        env_id: checks
        for module in modules
        for env_id, checks in getattr(module, "CHECKS", {}).items()
    }


GENERAL = {
    *("test_bridge", "test_envs", "test_kernels", "test_rollout"),
    *("test_tabular_envs", "test_vector_envs"),
}


def uniforms(rng: np.random.Generator, *shape: int) -> Tensor:
    return torch.from_numpy(rng.random(shape))


def random_actions(env: NativeEnv, noise: Tensor) -> Tensor:
    """Uniform over the actions. noise `[S, N]`."""
    if not env.spec.continuous:
        return (noise * env.spec.num_actions).long()
    low, high = env.spec.action_low[0], env.spec.action_high[0]
    return (low + (high - low) * noise).unsqueeze(-1)


class GymCopies:
    """S x N of Gymnasium's own environments, free-running; only the starts are given to them."""

    def __init__(self, env_id: str, physics: Tensor, obs: Tensor) -> None:
        self.shape = tuple(physics.shape[:2])
        self.obs = obs.double().clone()
        self.envs: dict[tuple[int, ...], Any] = {
            cell: gym.make(env_id, disable_env_checker=True) for cell in np.ndindex(*self.shape)
        }
        for cell in self.envs:
            self.start(cell, physics[cell], obs[cell])

    def start(self, cell: tuple[int, ...], physics: Tensor, obs: Tensor) -> None:
        self.envs[cell].reset(seed=0)
        self.envs[cell].unwrapped.state = physics.double().numpy().copy()
        self.obs[cell] = obs

    def step(self, actions: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """States [S, N, D], obs, rewards [S, N], terminated and truncated; in float64."""
        physics = []
        rewards = torch.empty(self.shape, dtype=torch.float64)
        terminated = torch.empty(self.shape, dtype=torch.bool)
        truncated = torch.empty(self.shape, dtype=torch.bool)
        for cell, env in self.envs.items():
            action = actions[cell].numpy() if actions.ndim == 3 else int(actions[cell])
            obs, rewards[cell], terminated[cell], truncated[cell], _ = env.step(action)
            self.obs[cell] = torch.from_numpy(obs)
            physics.append(np.array(env.unwrapped.state, dtype=np.float64))
        states = torch.from_numpy(np.stack(physics)).view(*self.shape, -1)
        return states, self.obs.clone(), rewards, terminated, truncated


def difference(angles: int, ours: Tensor, theirs: Tensor) -> Tensor:
    """Largest difference of two states' components; angles -pi and pi are the same."""
    d = (ours.double() - theirs).abs()
    d[..., :angles] = torch.minimum(d[..., :angles], (2 * math.pi - d[..., :angles]).abs())
    return d.amax(-1)
