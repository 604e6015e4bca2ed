"""The C code of environments: a `const environment` (manyseeds/kernels/environment.h) for each.

It computes what the environment's own Python does, in float32 and for one environment at a time.
"""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path

from manyseeds import kernels
from manyseeds.digest import boundary
from manyseeds.envs.acrobot import Acrobot
from manyseeds.envs.cartpole import CartPole
from manyseeds.envs.core import NativeEnv
from manyseeds.envs.mountain_car import MountainCar, MountainCarContinuous
from manyseeds.envs.pendulum import Pendulum
from manyseeds.kernels.guard import Guard

HERE = Path(__file__).parent
SOURCES = ("acrobot.c", "cartpole.c", "mountain_car.c", "pendulum.c")
NAMES: dict[type[NativeEnv], str] = boundary(
    {  # in the sources
        CartPole: "cartpole",
        Acrobot: "acrobot",
        MountainCar: "mountain_car",
        MountainCarContinuous: "mountain_car_continuous",
        Pendulum: "pendulum",
    }
)
# What the C code of an environment stands for.
DYNAMICS = ("reset", "step", "initial", "transition", "observation", "reward", "terminal")
GUARDS: dict[type[NativeEnv], Guard] = boundary(
    {env: Guard(name, *DYNAMICS, c_of=env.__module__) for env, name in NAMES.items()}
)


def address(env: NativeEnv) -> int | None:
    """Where an environment's `environment` is; None without one, or where kernels are off.

    None also for a subclass, whose dynamics may be others, and where the Python or the C code was
    changed: training and evaluation always play the same dynamics.
    """
    name = NAMES.get(type(env))
    if name is None or not kernels.available() or not GUARDS[type(env)].allows(env):
        return None
    found = library()
    return None if found is None else ctypes.addressof(ctypes.c_char.in_dll(found.functions, name))


@cache
def library() -> kernels.SharedLibrary | None:
    return kernels.built([HERE / name for name in SOURCES])
