"""Writes which functions the kernels in C were written for: manyseeds/kernels/known.json.

    python benchmarks/known_kernels.py

A kernel is used only while the functions that it stands for, and all that these reach, are those
(manyseeds/kernels/guard.py). Run this after a change of such a function that leaves its meaning as
it is, such as another name, or after the same change in C; tests hold both together.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import envs
import manyseeds.distributions
import manyseeds.layers
import manyseeds.optim
import manyseeds.samples
from envs.kernels import GUARDS
from envs.rollout import PLAYING
from manyseeds.digest import ROOT
from manyseeds.kernels.guard import HERE, Guard
from manyseeds.layers import SeedMLP
from manyseeds.seeds import SeedStreams

FILE = HERE / "known.json"
FOUNDATION = (envs.core, manyseeds.distributions, manyseeds.layers, manyseeds.optim)
Version = list[str]


def algorithms() -> Iterator[Any]:
    """The modules of algos that act with a kernel."""
    for path in sorted((ROOT / "algos").glob("[a-z]*.py")):
        module = importlib.import_module(f"algos.{path.stem}")
        if any(hasattr(x, "as_kernel") for x in vars(module).values()):
            yield module


def policy_of(module: Any) -> Any:
    """An untrained policy of an algorithm, with all the parts that one can have."""
    cls = next(x for x in vars(module).values() if hasattr(x, "as_kernel"))
    parts = {"normalize_obs": True} if hasattr(module.Config, "normalize_obs") else {}
    config = module.Config(**parts)
    return cls(config.make_env().spec, config, SeedStreams([0], "init"))


def guards_in(module: Any) -> Iterator[tuple[Guard, Any]]:
    """The guards of a module's functions and methods, and the classes of the latter."""
    for value in vars(module).values():
        if getattr(value, "__module__", "") != module.__name__:
            continue
        if hasattr(value, "guard"):
            yield value.guard, None
        for member in vars(value).values() if isinstance(value, type) else ():
            if hasattr(member, "guard"):
                yield member.guard, value


def things() -> dict[type, Any]:
    """Objects of the classes whose methods are kernels."""
    net = SeedMLP(1, 2, (4,), (1,), "tanh")
    return {
        SeedMLP: net,
        manyseeds.optim.SeedAdam: manyseeds.optim.SeedAdam(net),
        manyseeds.optim.SeedRMSprop: manyseeds.optim.SeedRMSprop(net),
        envs.EpisodeTracker: envs.EpisodeTracker(1, 1),
        manyseeds.distributions.Categorical: manyseeds.distributions.Categorical,
    }


def versions() -> dict[str, list[Version]]:
    """What each kernel stands for now, by kernel."""
    found: dict[str, list[Version]] = {}

    def add(guard: Guard, thing: Any) -> None:
        version = sorted(guard.walk(thing).found)
        if version not in found.setdefault(guard.kernel, []):
            found[guard.kernel].append(version)

    own = things()
    for module in (*FOUNDATION, manyseeds.samples):
        for guard, cls in guards_in(module):
            add(guard, own[cls] if cls else None)
    for module in algorithms():
        policy = policy_of(module)
        add(PLAYING, policy)
        for guard, _ in guards_in(module):
            add(guard, policy)
    for env, guard in GUARDS.items():
        add(guard, env())
    return found


def main(file: Path = FILE) -> None:
    """Write the file anew; what a kernel saves was measured and stays."""
    before = json.loads(file.read_text()) if file.exists() else {}
    content = {
        kernel: {"slower": before.get(kernel, {}).get("slower", 0), "versions": found}
        for kernel, found in sorted(versions().items())
    }
    file.write_text(json.dumps(content, indent=1) + "\n")
    print(file)


if __name__ == "__main__":
    main()
