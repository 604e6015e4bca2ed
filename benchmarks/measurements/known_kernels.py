"""Records which functions the C kernels were written for: manyseeds/kernels/known.json.

    python benchmarks/known_kernels.py
    python benchmarks/known_kernels.py --measure      also what each kernel saves, in a minute

A kernel is used only while the functions that it replaces, and all that these call, are unchanged
(manyseeds/kernels/guard.py). Run this after a change of such a function that keeps its meaning,
such as another name, or after the same change in C. A few updates of every algorithm in every
environment are compared first. Where C and PyTorch differ, nothing is written.
"""

from __future__ import annotations

from manyseeds.command import failing_in_one_line

import importlib
import json
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

import manyseeds.distributions
import manyseeds.layers
import manyseeds.optim
import manyseeds.samples
from manyseeds import envs, evaluate, kernels
from manyseeds.benchmarks.experiments import catalog
from manyseeds.cli import parse
from manyseeds.digest import ROOT
from manyseeds.envs.kernels import GUARDS
from manyseeds.envs.rollout import PLAYING
from manyseeds.errors import UsageError
from manyseeds.kernels.guard import HERE, Guard, looking_by_iteration
from manyseeds.layers import SeedMLP
from manyseeds.process import set_up_process
from manyseeds.runs.configurations import RowRun
from manyseeds.seeds import SeedStreams
from manyseeds.writing import write_json

FILE = HERE / "known.json"
FOUNDATION = (envs.core, manyseeds.distributions, manyseeds.layers, manyseeds.optim)
Version = list[str]
ALL = "all"
NATIVE_IN_C = [env.spec.id for env in GUARDS]
# The training that shows what a kernel saves.
USUAL = "ppo", "CartPole-v1"
TIMED = {
    "acrobot": ("ppo", "Acrobot-v1"),
    "mountain_car": ("ppo", "MountainCar-v0"),
    "mountain_car_continuous": ("ppo", "MountainCarContinuous-v0"),
    "pendulum": ("ppo", "Pendulum-v1"),

    "regression.td_gradients": ("dqn", "CartPole-v1"),
    "regression.value_gradients": ("trpo", "CartPole-v1"),
}


@dataclass(frozen=True, kw_only=True)
class Config:
    """What kernels stand for."""

    measure: bool = False
    """Measure what each kernel saves. On an idle machine."""


def algorithms() -> Iterator[Any]:
    """The modules of algos that act with a kernel."""
    for path in sorted((ROOT / "algos").glob("[a-z]*.py")):
        module = importlib.import_module(f"manyseeds.algos.{path.stem}")
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
    for guard, thing in guarded():
        version = sorted(guard.walk(thing).found)
        if version not in found.setdefault(guard.kernel, []):
            found[guard.kernel].append(version)
    return found


def guarded() -> Iterator[tuple[Guard, Any]]:
    """Every guard with an object that its functions work on, or None."""
    own = things()
    for module in (*FOUNDATION, manyseeds.samples):
        for guard, cls in guards_in(module):
            yield guard, own[cls] if cls else None
    for module in algorithms():
        policy = policy_of(module)
        yield PLAYING, policy
        yield evaluate.PLAYING, policy
        for guard, _ in guards_in(module):
            yield guard, policy
    for env, guard in GUARDS.items():
        yield guard, env()


def slower(kernel: str) -> float:
    """How many times as long a training takes without a kernel: the median of five pairs.

    Processor time of ten seeds at the algorithm's defaults, evaluation off, one thread.
    """
    algo, env = TIMED.get(kernel, USUAL)
    module: Any = importlib.import_module(f"manyseeds.algos.{algo}")
    chosen = [guard for guard, _ in guarded() if kernel in (guard.kernel, ALL)]
    guards = {id(guard): guard for guard in chosen}.values()

    def seconds(total_timesteps: int = 10_240) -> float:
        """Processor time of a training."""
        early = {"learning_starts": 0} if algo == "dqn" else {}
        config = module.Config(env=env, total_timesteps=total_timesteps, quiet=True, **early)
        run = RowRun([config] * 10, list(range(10)), curves=False)
        began = time.process_time()
        with looking_by_iteration():
            module.train(run.config, run)
        return time.process_time() - began

    ratios = []
    seconds(2048)  # warm
    for _ in range(5):
        with_kernel = seconds()
        for guard in guards:
            guard.allows = lambda thing=None: False  # type: ignore[method-assign]
        ratios.append(seconds() / with_kernel)
        for guard in guards:
            del guard.allows
    return round(statistics.median(ratios), 1)


def disagreements() -> list[str]:
    """Where a few updates in C do not end as in PyTorch: `ppo on CartPole-v1`."""
    found = []
    in_envs = [("ppo", env) for env in NATIVE_IN_C if env != USUAL[1]]
    for algo, env in (*((x.__name__.rpartition(".")[2], USUAL[1]) for x in algorithms()), *in_envs):
        module: Any = importlib.import_module(f"manyseeds.algos.{algo}")
        settings = catalog.facts(algo).small | ({"normalize_obs": True} if algo == "ppo" else {})
        config = module.Config(env=env, quiet=True, **settings)

        def outcome(module: Any = module, config: Any = config) -> list[Any]:
            run = RowRun([config] * 2, [0, 1], curves=False)
            weights = module.train(run.config, run).state_dict().values()
            metrics = [x for window in run.windows for x in window.metrics.values()]
            return [*(x.detach().numpy().copy() for x in weights), *metrics]

        with mock.patch.object(Guard, "allows", return_value=True):
            in_c = outcome()
        with kernels.off():
            in_torch = outcome()
        pairs = zip(in_c, in_torch, strict=True)
        if not all(np.allclose(x, y, 5e-3, 1e-3, equal_nan=True) for x, y in pairs):
            found.append(f"{algo} on {env}")
    return found


@failing_in_one_line()
def main(args: Sequence[str] | None = None, file: Path = FILE) -> None:
    """Write the file anew; what a kernel saves stays unless it is measured."""
    config = parse(Config, {}, __doc__, args)
    if differing := disagreements():
        reason = "C computes something else than the Python there; change both alike, or neither"
        raise UsageError(f"{', '.join(differing)}: {reason}")
    before = json.loads(file.read_text()) if file.exists() else {}
    content = {
        kernel: {"slower": before.get(kernel, {}).get("slower", 0), "versions": found}
        for kernel, found in sorted(versions().items())
    }
    if config.measure:
        set_up_process(threads=1)
        for kernel, entry in content.items():
            entry["slower"] = slower(kernel)
            algo, env = TIMED.get(kernel, USUAL)
            print(f"{kernel:36} {algo:5} {env:25} {entry['slower']}")
        print(f"{'all of them':36} {'ppo':5} {'CartPole-v1':25} {slower(ALL)}")
    write_json(file, content)
    print(file)


if __name__ == "__main__":
    main()
