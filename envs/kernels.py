"""The C code of environments: a `const environment` (manyseeds/kernels/environment.h) for each.

It computes what the environment's own Python does, in float32 and for one environment at a time.
"""

from __future__ import annotations

import ctypes

from manyseeds import kernels
from manyseeds.digest import boundary
from manyseeds.envs.core import NativeEnv
from manyseeds.envs.registry import NATIVE
from manyseeds.kernels.guard import Guard

# What the C code of an environment stands for.
DYNAMICS = ("reset", "step", "initial", "transition", "observation", "reward", "terminal")
GUARDS: dict[type[NativeEnv], Guard] = boundary(
    {
        env: Guard(env.c_name, *DYNAMICS, c_of=env)
        for env in NATIVE.values()
        if isinstance(env, type) and issubclass(env, NativeEnv) and env.c_name
    }
)


def address(env: NativeEnv) -> int | None:
    """Address of an environment's C code; None without any, or while kernels are off.

    None also for a subclass, whose dynamics may be others, and where the Python or the C code was
    changed: training and evaluation always play the same dynamics.
    """
    guard = GUARDS.get(type(env))
    if guard is None or not kernels.available() or not guard.allows(env):
        return None
    return ctypes.addressof(ctypes.c_char.in_dll(kernels.functions(), guard.kernel))
