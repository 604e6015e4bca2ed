"""The native environments by their ids: what the files beside this one declare in their `ENVS`."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules

from manyseeds.digest import boundary
from manyseeds.envs.core import NativeEnv

# Modules that define no environment. Each of the others has a dictionary `ENVS`: id -> class, or
# a function without arguments that makes the environment.
MACHINERY = {
    *("core", "discretize", "global_generators", "gymnasium_bridge", "kernels", "registry"),
    *("rollout", "tabular", "wrappers"),
}


def declared() -> dict[str, Callable[[], NativeEnv]]:
    """The `ENVS` of all environment files, in alphabetical order of the files."""
    names = (module.name for module in iter_modules([str(Path(__file__).parent)]))
    modules = (import_module(f"{__package__}.{name}") for name in names if name not in MACHINERY)
    return {env_id: make for module in modules for env_id, make in module.ENVS.items()}


NATIVE: dict[str, Callable[[], NativeEnv]] = boundary(declared())
