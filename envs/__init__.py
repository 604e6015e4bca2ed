"""Torch-native environments: tensors of shape `[S, N, ...]`, S seeds by N environments.

`make` finds every environment that a file of this folder declares in its `ENVS`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import torch

from manyseeds import room
from manyseeds.cli import ControlConfig
from manyseeds.digest import boundary
from manyseeds.envs.acrobot import Acrobot
from manyseeds.envs.cartpole import CartPole
from manyseeds.envs.cliff_walking import CliffWalking
from manyseeds.envs.core import Env, EnvSpec, EpisodeTracker, NativeEnv, State, Step
from manyseeds.envs.discretize import Discretize
from manyseeds.envs.frozen_lake import FrozenLake
from manyseeds.envs.gridworld import GOAL, TRAP, Gridworld
from manyseeds.envs.mountain_car import MountainCar, MountainCarContinuous
from manyseeds.envs.pendulum import Pendulum
from manyseeds.envs.random_walk import RandomWalk
from manyseeds.envs.registry import NATIVE
from manyseeds.envs.rollout import Episodes, Rollout, means_of, play, rollout
from manyseeds.envs.tabular import Layout, Outcomes, TabularEnv
from manyseeds.envs.taxi import Taxi
from manyseeds.envs.wrappers import OneHot, RescaledActions
from manyseeds.errors import UsageError

NAME = room(__name__)
MAX_ONE_HOT = 100_000  # states; the first layer has as many weights for each unit


def make_for(
    config: ControlConfig,
    observations: Literal["vector", "index"] | None = None,
    actions: Literal["discrete", "continuous"] | None = None,
) -> Env:
    """The environment of a run, with the observations and actions that its algorithm can use."""
    env = make(config.env, observations, actions, config.backend, config.env_kwargs)
    return rescaled(env) if config.rescale_actions else env


def make(
    env_id: str,
    observations: Literal["vector", "index"] | None = None,
    actions: Literal["discrete", "continuous"] | None = None,
    backend: Literal["auto", "gymnasium"] = "auto",
    env_kwargs: Sequence[str] = (),
) -> Env:
    """The environment with a Gymnasium id: a native one if there is one, else Gymnasium's own.

    observations: those that the algorithm can use: "vector" (a state index becomes a one-hot
    vector), "index" (a state index; environments with `bins` are discretised), or None for any.
    actions: those that it can use: "discrete", "continuous" (within bounds), or None for any.
    backend: "gymnasium" takes Gymnasium's own even if a native one exists.
    env_kwargs: arguments "key=value" of Gymnasium's own, which is then taken.
    Raises UsageError for an unknown id, or one without such observations or actions.
    """
    env: Env
    if backend == "auto" and env_id in NATIVE and not env_kwargs:
        env = NATIVE[env_id]()
    else:
        env = bridged(env_id, env_kwargs)
    if observations == "index" and env.spec.num_states is None:
        if env_id not in NATIVE or NATIVE[env_id]().bins is None:
            raise UsageError(f"--env {env_id}: a tabular algorithm needs one of {tabular_ids()}")
        if not isinstance(env, NativeEnv):
            given = "--env-kwargs" if env_kwargs else f"--backend {backend}"
            raise UsageError(f"{given}: only our own {env_id} can be binned")
        return Discretize(env)
    if actions == "discrete" and env.spec.continuous:
        usable = [name for name, build in NATIVE.items() if not build().spec.continuous]
        needs = f"this algorithm needs discrete actions, as {', '.join(usable)}"
        raise UsageError(f"--env {env_id}: {needs}")
    if actions == "continuous" and not env.spec.continuous:
        usable = [name for name, build in NATIVE.items() if build().spec.continuous]
        needs = f"this algorithm needs continuous actions, as {', '.join(usable)}"
        raise UsageError(f"--env {env_id}: {needs}")
    if actions == "continuous" and not (bounded(env) and spans(env)):
        needs = "this algorithm needs actions between two bounds, as numbers of 32 bits"
        raise UsageError(f"--env {env_id}: {needs}")
    return one_hot(env) if observations == "vector" and env.spec.obs_size is None else env


@boundary
def bridged(env_id: str, env_kwargs: Sequence[str] = ()) -> Env:
    """Gymnasium's own environment; where there is a native one, with its spec."""
    from manyseeds.envs.gymnasium_bridge import GymnasiumBridge  # imports Gymnasium

    if env_id not in NATIVE:
        return GymnasiumBridge(env_id, env_kwargs=env_kwargs)
    spec = NATIVE[env_id]().spec
    env = GymnasiumBridge(env_id, spec.time_limit, env_kwargs)  # our cap where none is registered
    if not env_kwargs:
        env.spec = spec  # the same, with the scores that we know
    return env


@boundary
def one_hot(env: Env) -> Env:
    """The environment with one-hot vectors instead of state indices; UsageError for too many."""
    if (states := env.spec.num_states or 0) > MAX_ONE_HOT:
        raise UsageError(
            f"--env {env.spec.id}: has {states:,} states; as one-hot vectors at most "
            f"{MAX_ONE_HOT:,} can be learned from"
        )
    return OneHot(env)


def bounded(env: Env) -> bool:
    """Whether all components of its actions have bounds."""
    return all(map(math.isfinite, env.spec.action_low + env.spec.action_high))


def spans(env: Env) -> bool:
    """Whether float32 tells the bounds of each component apart, and holds twice their distance."""
    low, high = (torch.tensor(x) for x in (env.spec.action_low, env.spec.action_high))
    width = 2 * (high - low)
    return bool(((width > 0) & width.isfinite()).all())


@boundary
def rescaled(env: Env) -> Env:
    """The environment for actions from -1 to 1; UsageError where they have no bounds to span."""
    if not env.spec.continuous:
        raise UsageError(f"--rescale-actions: {env.spec.id} has discrete actions")
    if not bounded(env):
        raise UsageError(f"--rescale-actions: the actions of {env.spec.id} have no bounds")
    return RescaledActions(env)


def make_tabular(
    env_id: str,
    goal: tuple[int, int] = GOAL,
    trap: tuple[int, int] = TRAP,
    walls: tuple[int, ...] = (),
) -> TabularEnv:
    """The environment with an id and with tables P and R.

    goal, trap, walls (rows and columns in turn): where they are in Gridworld-v0; for other ids they
    must be the defaults. Raises UsageError for an id without tables and for misplaced cells.
    """
    if env_id == "Gridworld-v0":
        return make_gridworld(goal, trap, walls)
    env = make(env_id)
    if not isinstance(env, TabularEnv):
        usable = [name for name in NATIVE if isinstance(NATIVE[name](), TabularEnv)]
        raise UsageError(f"--env {env_id}: needs a model, tables P and R, as {', '.join(usable)}")
    usual = {"goal": GOAL, "trap": TRAP, "walls": ()}
    for name, cells in {"goal": goal, "trap": trap, "walls": walls}.items():
        if cells != usual[name]:
            raise UsageError(f"--{name} {' '.join(map(str, cells))}: only for Gridworld-v0")
    return env


@boundary
def make_gridworld(
    goal: tuple[int, int], trap: tuple[int, int], walls: tuple[int, ...]
) -> TabularEnv:
    """Gridworld-v0 with its cells; raises UsageError for misplaced ones."""
    if len(walls) % 2:
        raise UsageError(f"--walls {' '.join(map(str, walls))}: needs pairs of row and column")
    return Gridworld(goal, trap, tuple(zip(walls[::2], walls[1::2], strict=True)))


def tabular_ids() -> str:
    """The ids that tabular algorithms can use, as text."""
    made = {env_id: build() for env_id, build in NATIVE.items()}
    return ", ".join(name for name, env in made.items() if env.bins or env.spec.num_states)


__all__ = [
    "NATIVE",
    "Acrobot",
    "CartPole",
    "CliffWalking",
    "Discretize",
    "Env",
    "EnvSpec",
    "EpisodeTracker",
    "Episodes",
    "FrozenLake",
    "Gridworld",
    "Layout",
    "MountainCar",
    "MountainCarContinuous",
    "NativeEnv",
    "Outcomes",
    "Pendulum",
    "RandomWalk",
    "RescaledActions",
    "Rollout",
    "State",
    "Step",
    "TabularEnv",
    "Taxi",
    "make",
    "make_for",
    "make_tabular",
    "means_of",
    "play",
    "rollout",
]
