"""Torch-native environments: tensors of shape `[S, N, ...]`, S seeds by N environments."""

from __future__ import annotations

from collections.abc import Callable

from benchmarks.harness.errors import UsageError, did_you_mean
from envs.cartpole import CartPole
from envs.core import Env, EnvSpec, EpisodeTracker, State, Step
from envs.discretize import BINS, Discretize
from envs.frozen_lake import FrozenLake
from envs.tabular import TabularEnv

NATIVE: dict[str, Callable[[], Env]] = {
    "CartPole-v1": CartPole,
    "FrozenLake-v1": lambda: FrozenLake(4),
    "FrozenLake8x8-v1": lambda: FrozenLake(8),
    "FrozenLakeNotSlippery-v1": lambda: FrozenLake(4, slippery=False),
    "FrozenLake8x8NotSlippery-v1": lambda: FrozenLake(8, slippery=False),
}


def make(env_id: str, observations: str | None = None) -> Env:
    """The environment with a Gymnasium id.

    observations: what the caller can learn from: "vector", "index" (a state index; environments
    with a known binning are discretised), or None for whatever the environment has.
    Raises UsageError for an unknown id or one without such observations.
    """
    if env_id not in NATIVE:
        raise UsageError(f"--env {env_id!r}: unknown environment{did_you_mean(env_id, NATIVE)}")
    env = NATIVE[env_id]()
    if observations == "index" and env.spec.num_states is None:
        if env_id not in BINS:
            raise UsageError(f"--env {env_id}: a tabular algorithm needs one of {tabular_ids()}")
        return Discretize(env, BINS[env_id])
    if observations == "vector" and env.spec.obs_size is None:
        vector = [name for name, build in NATIVE.items() if build().spec.obs_size is not None]
        raise UsageError(f"--env {env_id}: this algorithm needs one of {', '.join(vector)}")
    return env


def tabular_ids() -> str:
    """The ids that tabular algorithms can use, as text."""
    return ", ".join(name for name in NATIVE if name in BINS or NATIVE[name]().spec.num_states)


__all__ = [
    "BINS",
    "NATIVE",
    "CartPole",
    "Discretize",
    "Env",
    "EnvSpec",
    "EpisodeTracker",
    "FrozenLake",
    "State",
    "Step",
    "TabularEnv",
    "make",
]
