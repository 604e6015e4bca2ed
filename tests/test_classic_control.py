"""Acrobot, both MountainCars and Pendulum, against Gymnasium's own."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.envs.classic_control import acrobot, continuous_mountain_car, mountain_car, pendulum
from scipy import stats
from torch import Tensor

from benchmarks.harness.seeds import SeedStreams
from envs import Acrobot, MountainCar, MountainCarContinuous, NativeEnv, Pendulum, State

ENVS: list[type[NativeEnv]] = [Acrobot, MountainCar, MountainCarContinuous, Pendulum]
BOXES: list[type[NativeEnv]] = [MountainCarContinuous, Pendulum]
BATCHES = [(1, 1, 3_000), (3, 3, 600), (2, 8, 1_100)]  # S, N and steps: 26,000 in all per env
PI = math.pi

each_env = pytest.mark.parametrize("kind", ENVS)


# ---- Policies that get somewhere, and actions at random -----------------------------------


def swing_up_links(obs: Tensor) -> Tensor:
    """Pushes the way the joint turns: the free end is up after about 90 steps."""
    return torch.where(obs[..., 5] > 0, 2, 0)


def follow_the_car(obs: Tensor) -> Tensor:
    """Pushes the way the car rolls: up after about 120 steps, with the wall hit on the way."""
    return torch.where(obs[..., 1] >= 0, 2, 0)


def follow_the_strong_car(obs: Tensor) -> Tensor:
    return torch.where(obs[..., 1:] >= 0, 1.0, -1.0)


def swing_up_rod(obs: Tensor) -> Tensor:
    """Brings the energy to that of the upright position, and balances there."""
    cos, sin, theta_dot = obs.split(1, dim=-1)
    lacking = 15 - (theta_dot.square() / 2 + 15 * cos)
    return torch.where(cos > 0.9, -10 * sin - 2 * theta_dot, lacking * theta_dot)


EXPERTS: dict[type[NativeEnv], Callable[[Tensor], Tensor]] = {
    Acrobot: swing_up_links,
    MountainCar: follow_the_car,
    MountainCarContinuous: follow_the_strong_car,
    Pendulum: swing_up_rod,
}


def uniforms(rng: np.random.Generator, *shape: int) -> Tensor:
    return torch.from_numpy(rng.random(shape))


def random_actions(env: NativeEnv, noise: Tensor, scale: float = 1.0) -> Tensor:
    """Uniform over the actions, or over `scale` times the box. noise `[S, N]`."""
    if not env.spec.continuous:
        return (noise * env.spec.num_actions).long()
    low, high = env.spec.action_low[0], env.spec.action_high[0]
    return (scale * (low + (high - low) * noise)).unsqueeze(-1)


# ---- Gymnasium's own ----------------------------------------------------------------------


class DoubleNumpy:
    """numpy, with float64 wherever Gymnasium writes float32."""

    float32 = np.float64

    def __getattr__(self, name: str) -> Any:
        return getattr(np, name)


@pytest.fixture
def in_float64(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gymnasium's code without its roundings to float32.

    They concern observations, and the state of MountainCarContinuous. What is left of Gymnasium
    when they stay is `test_gymnasium_as_it_is_agrees_in_float32`.
    """
    for module in (acrobot, mountain_car, continuous_mountain_car, pendulum):
        monkeypatch.setattr(module, "np", DoubleNumpy())


class GymCopies:
    """S x N of Gymnasium's own environments, free-running; only the starts are given to them."""

    def __init__(self, env_id: str, starts: Tensor) -> None:
        self.shape = tuple(starts.shape[:2])
        self.envs = {
            cell: gym.make(env_id, disable_env_checker=True) for cell in np.ndindex(*self.shape)
        }
        self.obs = torch.empty(*self.shape, self.first.observation_space.shape[0]).double()
        for cell in self.envs:
            self.start(cell, starts[cell])

    @property
    def first(self) -> Any:
        return self.envs[0, 0].unwrapped

    def start(self, cell: tuple[int, ...], physics: Tensor) -> None:
        self.envs[cell].reset(seed=0)
        env: Any = self.envs[cell].unwrapped
        env.state = physics.double().numpy().copy()
        obs = {Acrobot: "_get_ob", Pendulum: "_get_obs"}
        names = {kind.spec.id: name for kind, name in obs.items()}
        name = names.get(env.spec.id)
        self.obs[cell] = torch.tensor(getattr(env, name)() if name else env.state)

    def step(self, actions: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """States [S, N, D], obs, rewards [S, N], terminated and truncated, all in float64."""
        physics = []
        rewards = torch.empty(self.shape, dtype=torch.float64)
        terminated = torch.empty(self.shape, dtype=torch.bool)
        truncated = torch.empty(self.shape, dtype=torch.bool)
        for cell, env in self.envs.items():
            action = actions[cell].numpy() if actions.ndim == 3 else int(actions[cell])
            obs, rewards[cell], terminated[cell], truncated[cell], _ = env.step(action)
            self.obs[cell] = torch.from_numpy(obs)
            physics.append(np.array(env.unwrapped.state, dtype=np.float64))  # type: ignore[attr-defined]
        states = torch.from_numpy(np.stack(physics)).view(*self.shape, -1)
        return states, self.obs.clone(), rewards, terminated, truncated


def difference(env: NativeEnv, ours: Tensor, theirs: Tensor) -> Tensor:
    """Largest difference between two states, `[S, N]`; Acrobot's -pi and pi are one angle."""
    d = (ours - theirs).abs()
    if isinstance(env, Acrobot):
        d[..., :2] = torch.minimum(d[..., :2], 2 * PI - d[..., :2])
    return d.amax(-1)
