"""Torch-native environments: tensors of shape `[S, N, ...]`, S seeds by N environments.

`make` finds every environment that a file of this folder declares in its `ENVS`.
"""

from __future__ import annotations

from typing import Literal

from manyseeds import room
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
from manyseeds.envs.rollout import Rollout, rollout
from manyseeds.envs.tabular import Layout, TabularEnv
from manyseeds.envs.taxi import Taxi
from manyseeds.errors import UsageError

NAME = room(__name__)


def make(
    env_id: str,
    observations: Literal["vector", "index"] | None = None,
    actions: Literal["discrete"] | None = None,
    backend: Literal["auto", "gymnasium"] = "auto",
) -> Env:
    """The environment with a Gymnasium id: a native one if there is one, else Gymnasium's own.

    observations: those that the algorithm can use: "vector", "index" (a state index; environments
    with `bins` are discretised), or None for any.
    actions: "discrete", or None for any.
    backend: "gymnasium" takes Gymnasium's own even if a native one exists.
    Raises UsageError for an unknown id, or one without such observations or actions.
    """
    env: Env
    if backend == "auto" and env_id in NATIVE:
        env = NATIVE[env_id]()
    else:
        env = bridged(env_id)
    if observations == "index" and env.spec.num_states is None:
        if env_id not in NATIVE or NATIVE[env_id]().bins is None:
            raise UsageError(f"--env {env_id}: a tabular algorithm needs one of {tabular_ids()}")
        if not isinstance(env, NativeEnv):
            raise UsageError(f"--backend {backend}: only our own {env_id} can be binned")
        return Discretize(env)

    def suits(spec: EnvSpec) -> bool:
        shows = observations != "vector" or spec.obs_size is not None
        return shows and not (actions == "discrete" and spec.continuous)

    if not suits(env.spec):
        specs = [build().spec for build in NATIVE.values()]
        usable = [spec.id for spec in specs if suits(spec)]
        needs = "discrete actions" if observations is None else f"{observations} observations"
        if observations and actions:
            needs += f" and {actions} actions"
        raise UsageError(f"--env {env_id}: this algorithm needs {needs}, as {', '.join(usable)}")
    return env


@boundary
def bridged(env_id: str) -> Env:
    """Gymnasium's own environment; where there is a native one, with its spec."""
    from manyseeds.envs.gymnasium_bridge import GymnasiumBridge  # imports Gymnasium

    if env_id not in NATIVE:
        return GymnasiumBridge(env_id)
    spec = NATIVE[env_id]().spec
    env = GymnasiumBridge(env_id, spec.time_limit)  # our cap where none is registered
    env.spec = spec  # the same, with the scores that we know
    return env


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
    "FrozenLake",
    "Gridworld",
    "Layout",
    "MountainCar",
    "MountainCarContinuous",
    "NativeEnv",
    "Pendulum",
    "RandomWalk",
    "Rollout",
    "State",
    "Step",
    "TabularEnv",
    "Taxi",
    "make",
    "make_tabular",
    "rollout",
]
