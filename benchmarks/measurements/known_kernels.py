"""Records which functions the C kernels were written for: manyseeds/kernels/known.json.

    python benchmarks/known_kernels.py
    python benchmarks/known_kernels.py --measure      also what each kernel saves, in a minute

A kernel is used only while the functions that it replaces, and all that these call, are unchanged,
and its C code too (manyseeds/kernels/guard.py). Run this after a change of such a function that
keeps its meaning, such as another name, after the same change in C, and after any other change in
C. A few updates of every algorithm, in every environment, and with every choice that its flags
have, and of small language models are compared first: as all kernels compute them, then without
those, so that the ones within them are asked for, and so on. Where C and PyTorch differ, nothing is
written.

What a kernel stands for is what the guards came across then. A smaller version (a policy without
statistics of observations, say) is part of a larger one.
"""

from __future__ import annotations

from manyseeds.command import failing_in_one_line

import json
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints
from unittest import mock

import numpy as np
import torch

from manyseeds import kernels
from manyseeds.benchmarks.experiments import catalog
from manyseeds.cli import parse
from manyseeds.envs.kernels import GUARDS
from manyseeds.errors import UsageError
from manyseeds.evaluate import evaluate
from manyseeds.kernels.guard import C_CODE, HERE, Guard, looking_by_iteration
from manyseeds.llama import Completions, SeedLlama, logprobs, sample, scalars
from manyseeds.optim import SeedAdam
from manyseeds.process import set_up_process
from manyseeds.runs.configurations import RowRun
from manyseeds.runs.planning import PlanningConfig, PlanningRun
from manyseeds.runs.prediction import PredictionConfig, PredictionRun
from manyseeds.writing import write_json

FILE = HERE / "known.json"
USUAL = "CartPole-v1"
# Language models, in the place of an algorithm; what they put out is their environment.
LLAMA = "llama"
# What brings everything into a training that one can have, where an algorithm has the flag.
RICH: dict[str, Any] = {
    **{"normalize_obs": True, "normalize_reward": True, "noise_std": 0.1},
    **{"entropy_coef": 0.01, "kl_coef": 0.1},
}


@dataclass(frozen=True, kw_only=True)
class Config:
    """What kernels stand for."""

    measure: bool = False
    """Measure what each kernel saves. On an idle machine."""


def cases() -> Iterator[tuple[str, dict[str, Any]]]:
    """Algorithms, and the settings of short trainings that use all that they have."""
    yield from ((LLAMA, {"env": env}) for env in ("tied", "untied", "scalar"))
    for algo in catalog.names("algos"):
        config = catalog.module("algos", algo).Config
        small = {x.name: RICH[x.name] for x in fields(config) if x.name in RICH}
        small |= catalog.facts(algo).small
        yield algo, small
        if "noise_std" in small:  # who acts is another policy then
            yield algo, small | {"noise_std": 0.0}
        hints = get_type_hints(config)
        for name in config.__annotations__:  # its own: the others are those of every run
            values = get_args(hints[name]) if get_origin(hints[name]) is Literal else ()
            others = set(values) - {small.get(name, getattr(config, name))}
            yield from ((algo, small | {name: value}) for value in sorted(others))
        if algo == "ppo":
            yield from ((algo, small | {"env": x.spec.id}) for x in GUARDS if x.spec.id != USUAL)
        if algo == "dqn":  # a round is one kernel, the environment included; Acrobot is chaotic
            few = small | {"learning_starts": 40, "total_timesteps": 100}
            discrete = (x.spec.id for x in GUARDS if not x.spec.continuous)
            yield from ((algo, few | {"env": env}) for env in discrete if env != USUAL)


def outcome(algo: str, settings: dict[str, Any]) -> list[np.ndarray]:
    """What a training of two seeds ends with: weights, and metrics of its updates."""
    if algo == LLAMA:
        return outcome_of_llama(settings["env"])
    module = catalog.module("algos", algo)
    config = module.Config(quiet=True, **settings)
    if isinstance(config, PlanningConfig):
        return [np.asarray(module.solve(config, PlanningRun(config)))]
    if isinstance(config, PredictionConfig):
        return [np.asarray(module.train(config, PredictionRun(config)))]
    run = RowRun([config] * 2, [0, 1], curves=False)
    policy = module.train(run.config, run)
    weights = [x.detach().numpy().copy() for x in policy.state_dict().values()]
    metrics = [x for window in run.windows for x in window.metrics.values()]
    for greedy in (True, False):  # what it reaches may hang on the last bit of a number
        evaluate(config.make_env(), policy, [0, 1], 2, greedy)
    return [*weights, *metrics]


def outcome_of_llama(
    kind: str, S: int = 2, V: int = 11, H: int = 12, heads: int = 3, B: int = 6, T: int = 5
) -> list[np.ndarray]:
    """What small language models put out, and their weights after two steps.

    S seeds, B completions per seed, prompts and completions of up to T tokens.
    """
    generator = torch.Generator().manual_seed(0)
    model = SeedLlama(S, V, H, 4 * H, 2, heads, tied=kind == "tied", scalar=kind == "scalar")
    model.flat.data.normal_(generator=generator).mul_(0.5)
    tokens = torch.randint(V, (2, S, B, T), generator=generator)
    lengths = torch.randint(1, T + 1, (2, S, B), generator=generator)
    completions = Completions(tokens[0], lengths[0], tokens[1], lengths[1])
    optimizer, found = SeedAdam(model), list[torch.Tensor]()
    for _ in range(2):
        if kind == "scalar":
            outputs = scalars(model, completions)
        else:
            outputs, entropies = logprobs(model, completions, 1.5)
            found.append(entropies)
        outputs.square().sum().backward()
        optimizer.step(0.01, 1.0)
        found.append(outputs)
    if kind != "scalar":
        uniforms = torch.rand(S, B, T, generator=generator)
        for greedy in (False, True):
            found += sample(model, tokens[0], lengths[0], uniforms, 3, 1.5, greedy)
    return [x.detach().numpy().copy() for x in (*found, model.flat)]


@dataclass
class Found:
    """What trainings have come across."""

    versions: dict[str, set[frozenset[str]]] = field(default_factory=dict)
    """What each kernel stands for, by kernel."""
    used: dict[str, tuple[str, str]] = field(default_factory=dict)
    """An algorithm and an environment that use it."""

    def asked(self, algo: str, settings: dict[str, Any]) -> Iterator[list[np.ndarray]]:
        """Train with all kernels, then without those that were used, and so on; the outcomes."""
        refused: set[str] = set()
        seen: set[tuple[Any, ...]] = set()

        def allows(guard: Guard, *given: Any) -> bool:
            if (key := (guard, *map(type, given))) not in seen:
                seen.add(key)
                self.versions.setdefault(guard.kernel, set()).add(
                    frozenset(guard.walk(*given).found)
                )
                self.used.setdefault(guard.kernel, (algo, settings.get("env", USUAL)))
            return guard.kernel not in refused

        while True:
            with mock.patch.object(Guard, "allows", allows):
                yield outcome(algo, settings)
            now = {guard.kernel for guard, *_ in seen}
            if now == refused:
                return
            refused = now

    def largest(self, kernel: str) -> list[list[str]]:
        """The versions of a kernel that are no part of another."""
        versions = self.versions[kernel]
        return sorted(sorted(x) for x in versions if not any(x < y for y in versions))

    def outer(self, kernel: str) -> set[str]:
        """A kernel and those that stand for all that it stands for."""
        parts = [{x for x in v if not x.startswith(C_CODE)} for v in self.versions[kernel]]
        return {
            name
            for name, versions in self.versions.items()
            if any(part <= whole for part in parts for whole in versions)
        }


def found_now(compare: bool = False) -> tuple[Found, list[str]]:
    """What kernels stand for; where a few updates in C do not end as in PyTorch, if they are
    compared: `ppo on CartPole-v1`."""
    found, differing = Found(), []
    for algo, settings in cases():
        outcomes = found.asked(algo, settings)
        if not compare:
            list(outcomes)
            continue
        with kernels.off():
            in_torch = outcome(algo, settings)
        for in_c in outcomes:
            pairs = zip(in_c, in_torch, strict=True)
            if not all(np.allclose(x, y, 5e-3, 1e-3, equal_nan=True) for x, y in pairs):
                differing.append(f"{algo} on {settings.get('env', USUAL)}")
    return found, list(dict.fromkeys(differing))


def slower(algo: str, env: str, without: set[str]) -> float:
    """How many times as long a training takes without some kernels: the median of five pairs.

    Processor time of ten seeds at the algorithm's defaults, evaluation off, one thread; of language
    models at the sizes of the embedded one.
    """
    module: Any = None if algo == LLAMA else catalog.module("algos", algo)

    def seconds(total_timesteps: int = 10_240) -> float:
        """Processor time of a training."""
        if algo == LLAMA:
            began = time.process_time()
            outcome_of_llama(env, S=10, V=103, H=64, heads=4, B=64, T=22)
            return time.process_time() - began
        early = {"learning_starts": 0} if algo == "dqn" else {}
        config = module.Config(env=env, total_timesteps=total_timesteps, quiet=True, **early)
        run = RowRun([config] * 10, list(range(10)), curves=False)
        began = time.process_time()
        with looking_by_iteration():
            module.train(run.config, run)
        return time.process_time() - began

    allows = Guard.allows

    def fewer(guard: Guard, *given: Any) -> bool:
        return guard.kernel not in without and allows(guard, *given)

    ratios = []
    seconds(2048)  # warm
    for _ in range(5):
        with_kernels = seconds()
        with mock.patch.object(Guard, "allows", fewer):
            ratios.append(seconds() / with_kernels)
    return round(statistics.median(ratios), 1)


@failing_in_one_line()
def main(args: Sequence[str] | None = None, file: Path = FILE) -> None:
    """Write the file anew; what a kernel saves stays unless it is measured."""
    config = parse(Config, {}, __doc__, args)
    set_up_process(threads=1)
    found, differing = found_now(compare=True)
    if differing:
        reason = "C computes something else than the Python there; change both alike, or neither"
        raise UsageError(f"{', '.join(differing)}: {reason}")
    before = json.loads(file.read_text()) if file.exists() else {}
    content = {
        kernel: {
            "slower": before.get(kernel, {}).get("slower", 0),
            "versions": found.largest(kernel),
        }
        for kernel in sorted(found.versions)
    }
    if config.measure:
        for kernel, entry in content.items():
            algo, env = found.used[kernel]
            entry["slower"] = slower(algo, env, found.outer(kernel))
            print(f"{kernel:36} {algo:11} {env:25} {entry['slower']}")
        print(f"{'all of them':36} {'ppo':11} {USUAL:25} {slower('ppo', USUAL, set(content))}")
    write_json(file, content)
    print(file)


if __name__ == "__main__":
    main()
