"""Why SBX and rejax learn faster or slower: ours with their details, one by one and together.

    python benchmarks/library_details.py --algo ppo
    python benchmarks/library_details.py --algo dqn

Trains ours with the settings of the suite `interchange` and with these details of rejax
(benchmarks/rejax_baseline.py) and of SBX (benchmarks/sbx_baseline.py): PPO in all environments of
the suite, DQN on CartPole-v1, where a training is shortest, and with what both libraries share on
MountainCar-v0, where the differences are largest.

    clipped values               rejax: the change of a value within the policy's clip range, and of
                                 the two squared errors the larger one (SB3: the clipped one)
    gradients per element        rejax: clipped to +- max_grad_norm, in the place of their norm
    gradients per network        SBX's PPO: the norms of actor and critic are clipped apart
    gradients as they are        SBX's DQN: not clipped, which is the same as per element where none
                                 exceeds the limit
    half the squared error       rejax's DQN: the loss, in the place of Huber's
    updates between the steps    rejax's DQN: spread evenly, in the place of many after many steps,
                                 whose target network is the same for all of them; on CartPole it
                                 then changes every five updates, and with Huber's loss action
                                 values diverge
    time limits as terminations  rejax: nothing is bootstrapped behind them
    LeCun-normal layers          both, and zero biases. Ours: PPO orthogonal, the policy's last
                                 layer near 0; DQN uniform, 1 / sqrt(3) as wide
    Adam's epsilon 1e-8          rejax's PPO: in the place of 1e-5

Not imitated: the population's standard deviation of advantages and observations that are normalised
when they are seen (both); observations and rewards without a limit, returns that begin anew one
step early when rewards are scaled, two environments in the place of two steps between updates of
DQN, and the environments of gymnax (rejax).

Writes library_details_ppo.json or library_details_dqn.json, which report.py shows on the page of
the suite; what is stored there by the same code is not measured again. With `--results results` it
is published. Half an hour or an hour of one core.
"""

from __future__ import annotations

from manyseeds.command import failing_in_one_line

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from manyseeds import envs
from manyseeds.algos import dqn, ppo
from manyseeds.benchmarks.experiments import catalog
from manyseeds.benchmarks.experiments.suite import COMMON
from manyseeds.benchmarks.measurements.measure import (
    greedy_areas,
    measured_by,
    origin,
    write_measured,
)
from manyseeds.cli import PositiveInt, ScriptConfig, from_preset, parse
from manyseeds.optim import SeedAdam
from manyseeds.process import set_up_process
from manyseeds.runs.control import Run
from manyseeds.seeds import SeedStreams
from manyseeds.untrusted import NAME, ORIGIN


@dataclass(frozen=True, kw_only=True)
class Config(ScriptConfig):
    """Other libraries' details in ours."""

    algo: Literal["ppo", "dqn"] = "ppo"
    """Algorithm."""
    seeds: PositiveInt = 30
    """S, seeds of every training."""


class ElementwiseAdam(SeedAdam):
    """Adam whose gradients are clipped per element."""

    @torch.no_grad()
    def step(
        self,
        lr: Tensor | float,
        max_grad_norm: Tensor | float = 0.0,
        mask: Tensor | None = None,
    ) -> Tensor:
        limit = float(max_grad_norm)
        if limit:
            for p in self.parameters:
                if p.grad is not None:
                    p.grad.clamp_(-limit, limit)
        return super().step(lr, 0.0, mask)


class ClippedApartAdam(SeedAdam):
    """Adam that clips the gradient of each network of a seed by its own norm."""

    @torch.no_grad()
    def step(
        self,
        lr: Tensor | float,
        max_grad_norm: Tensor | float = 0.0,
        mask: Tensor | None = None,
    ) -> Tensor:
        limit = float(max_grad_norm)
        if limit:
            grads = [p.grad for p in self.parameters if p.grad is not None]  # [S, K, ...] each
            # One after the other: a sum over a stack would round by the number of seeds.
            squares = sum(g.square().flatten(2).sum(2) for g in grads)
            assert isinstance(squares, Tensor)
            scale = (limit / (squares.sqrt() + 1e-6)).clamp(max=1.0)  # [S, K]
            for g in grads:
                g.mul_(scale.view(*scale.shape, *[1] * (g.dim() - 2)))
        return super().step(lr, 0.0, mask)


class LeCunActorCritic(ppo.ActorCritic):
    """Networks that start as Flax's: normals with a variance of 1 / inputs, cut at two standard
    deviations, and zero biases."""

    def __init__(self, spec: envs.EnvSpec, config: ppo.Config, init: SeedStreams) -> None:
        super().__init__(spec, config, init)
        lecun_normal(self.networks.parameter_lists()[0], init)


class LeCunQNetwork(dqn.QNetwork):
    """Action values likewise."""

    def __init__(self, spec: envs.EnvSpec, config: dqn.Config, init: SeedStreams) -> None:
        super().__init__(spec, config, init)
        weights, biases, *_ = self.q.parameter_lists()
        lecun_normal(weights, init)
        with torch.no_grad():
            for bias in biases:
                bias.zero_()


@torch.no_grad()
def lecun_normal(weights: Sequence[Tensor], streams: SeedStreams) -> None:
    """Fill weights [S, K, in, out]; the columns that pad a head, which are 0, stay 0."""
    low, high = (torch.special.ndtr(torch.tensor(x)) for x in (-2.0, 2.0))
    deviation = 0.87962566103423978  # of a standard normal that is cut at +-2
    for weight in weights:
        uniforms = streams.uniform(*weight.shape[1:])
        normals = torch.special.ndtri(low + uniforms * (high - low)) / deviation
        in_use = weight.abs().amax(-2, keepdim=True) > 0
        weight.copy_(normals / weight.shape[-2] ** 0.5 * in_use)


class EnvsWithoutLimits:
    """The package envs, where a time limit is a termination."""

    def __getattr__(self, name: str) -> Any:
        return getattr(envs, name)

    @staticmethod
    def rollout(*args: Any) -> tuple[envs.State, Tensor, envs.Rollout]:
        state, obs, steps = envs.rollout(*args)
        nothing = torch.zeros_like(steps.truncated)
        return state, obs, steps._replace(terminated=steps.done, truncated=nothing)


def larger_value_loss(
    values: Tensor, old_values: Tensor, returns: Tensor, clip_value_range: float
) -> Tensor:
    """ppo.value_loss with the larger of both squared errors, as CleanRL's and rejax's, [S]."""
    clip = clip_value_range
    clipped = old_values + (values - old_values).clamp(-clip, clip)
    return torch.maximum((values - returns).square(), (clipped - returns).square()).mean(-1)


def half_squared_error(q_values: Tensor, targets: Tensor, kind: str) -> Tensor:
    """dqn.td_loss as rejax's, whatever --loss says, [S]."""
    return 0.5 * (q_values - targets).square().mean(-1)


def with_own_epsilon(optimizer: type[SeedAdam]) -> Callable[..., SeedAdam]:
    """An optimizer with Adam's own epsilon, whatever it is asked for."""

    def made(module: nn.Module, eps: float) -> SeedAdam:
        return optimizer(module, eps=1e-8)

    return made


VALUES, LIMITS = "clipped values", "time limits as terminations"
SQUARED, SPREAD = "half the squared error", "updates between the steps"
ELEMENTS, NETWORKS = "gradients per element", "gradients per network"
LAYERS, EPSILON = "LeCun-normal layers", "Adam's epsilon 1e-8"
UNCLIPPED = "gradients as they are"
OF: dict[str, dict[str, tuple[str, ...]]] = {  # by algorithm and library
    "ppo": {"rejax": (VALUES, ELEMENTS, LIMITS, LAYERS, EPSILON), "sbx": (NETWORKS, LAYERS)},
    "dqn": {"rejax": (SQUARED, ELEMENTS, LIMITS, LAYERS, SPREAD), "sbx": (UNCLIPPED, LAYERS)},
}
ENVS = {
    "ppo": ("CartPole-v1", "Acrobot-v1", "MountainCar-v0"),
    "dqn": ("CartPole-v1", "MountainCar-v0"),
}
ONLY = {("dqn", "MountainCar-v0"): ("none", LAYERS)}  # a training is long


def variants(algo: str) -> dict[str, tuple[str, ...]]:
    """What is done to ours, by name."""
    return {
        "none": (),
        **{detail: (detail,) for of_library in OF[algo].values() for detail in of_library},
        **{f"all of {library}": of_library for library, of_library in OF[algo].items()},
    }


def libraries_with(algo: str, name: str) -> list[str]:
    """The libraries that a variant is compared with."""
    return [x for x, own in OF[algo].items() if name in ("none", f"all of {x}", *own)]


@contextlib.contextmanager
def details(module: Any, names: Sequence[str]) -> Iterator[None]:
    """Inside, algos/ppo.py or algos/dqn.py has these details, but for those that are settings."""
    replaced: dict[str, Any] = {}
    if VALUES in names:
        replaced["value_loss"] = larger_value_loss
        replaced["backpropagate"] = module.backpropagate.__wrapped__  # C has its own value loss
    if ELEMENTS in names:
        replaced["SeedAdam"] = ElementwiseAdam
    if NETWORKS in names:
        replaced["SeedAdam"] = ClippedApartAdam
    if EPSILON in names:
        replaced["SeedAdam"] = with_own_epsilon(replaced.get("SeedAdam", SeedAdam))
    if LAYERS in names:
        agents = {ppo: ("ActorCritic", LeCunActorCritic), dqn: ("QNetwork", LeCunQNetwork)}
        name, agent = agents[module]
        replaced[name] = agent
    if LIMITS in names:
        replaced["envs"] = EnvsWithoutLimits()
    if SQUARED in names:
        replaced["td_loss"] = half_squared_error
        replaced["backpropagate"] = module.backpropagate.__wrapped__  # C has its own loss
    before = {name: getattr(module, name) for name in replaced}
    try:
        for name, x in replaced.items():
            setattr(module, name, x)
        yield
    finally:
        for name, x in before.items():
            setattr(module, name, x)


def train(
    algo: str, env: str, names: Sequence[str], seeds: Sequence[int], settings: Mapping[str, Any]
) -> tuple[Run, nn.Module]:
    """Train ours with these details; returns the run and its agent."""
    module: Any = catalog.module("algos", algo)
    settings = {**settings, "seeds": len(seeds), "quiet": True}
    config = from_preset(module.Config, module.PRESETS, env, **settings)
    if VALUES in names:
        config = replace(config, clip_value_range=config.clip_range)
    if UNCLIPPED in names:
        config = replace(config, max_grad_norm=0.0)
    if SPREAD in names:  # G updates after F steps become one after every F / G
        config = replace(config, train_freq=config.block // config.updates, gradient_steps=1)
    run = Run(config, seeds)
    with details(module, names):
        return run, module.train(config, run)


def measure(algo: str, env: str, names: Sequence[str], S: int) -> list[float]:
    """Areas under the greedy curves of S seeds of ours with these details."""
    run, _ = train(algo, env, names, range(S), COMMON[algo, env])
    return greedy_areas(run)


MEASURED: dict[str, Any] = {
    "seeds": int,
    "measurements": [{"env": NAME, "detail": NAME, "of": [NAME], "auc": [float]}],
}
STORED = {**ORIGIN, **MEASURED}  # library_details_ppo.json and library_details_dqn.json


@failing_in_one_line()
def main(args: Sequence[str] | None = None) -> None:
    """Measure what is not stored yet, and write it after each training."""
    config = parse(Config, {}, __doc__, args)
    set_up_process(threads=1)
    begun = origin(
        [
            "manyseeds.benchmarks.measurements.library_details:measure",
            f"manyseeds.algos.{config.algo}:train",
        ]
    )
    path = Path(config.results) / f"library_details_{config.algo}.json"
    measurements = measured_by(path, begun["code"], MEASURED, {"seeds": config.seeds})
    found = {(m["env"], m["detail"]) for m in measurements}
    for env in ENVS[config.algo]:
        for name, names in variants(config.algo).items():
            if (env, name) in found or name not in ONLY.get((config.algo, env), (name,)):
                continue
            auc = measure(config.algo, env, names, config.seeds)
            of = libraries_with(config.algo, name)
            measurements.append({"env": env, "detail": name, "of": of, "auc": auc})
            mean = sum(auc) / config.seeds
            print(f"{env:15} {name:28} mean return over the training {mean:.1f}", flush=True)
            stored = {**begun, "seeds": config.seeds, "measurements": measurements}
            write_measured(path, stored)


if __name__ == "__main__":
    main()
