"""Whether replicas of PPO's update, averaged, learn more from the same samples.

    python benchmarks/replicas.py

After Mustafaoglu et al., 2026, arXiv 2603.12596: from every rollout K replicas of a policy are
trained, each in an order of its own, and their parameters averaged. Three ways to use a rollout are
compared, all with the same presets, seeds and budgets of timesteps:

    plain      PPO: its preset's epochs
    deeper     K times as many epochs, one after the other
    averaged   as many as deeper, but from the same start in K replicas, then averaged: parameters
               and, which is our choice, Adam's moments

As a check that the replicas differ, `spread` is the mean over updates of the root mean square
distance of a replica from the average, over the average's distance from the start. Writes
replicas.json, which report.py shows; what is there by the same code is not measured again. With
`--results results` it is published. Ten minutes of one core.
"""

from __future__ import annotations

from manyseeds.command import failing_in_one_line

import types
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from manyseeds.algos import ppo
from manyseeds.benchmarks.measurements.measure import (
    greedy_areas,
    measured_by,
    origin,
    write_measured,
)
from manyseeds.benchmarks.store.comparison import COMMON
from manyseeds.cli import PositiveInt, ScriptConfig, from_preset, parse
from manyseeds.optim import SeedAdam
from manyseeds.process import set_up_process
from manyseeds.runs.control import Run
from manyseeds.untrusted import NAME, ORIGIN

REPLICAS = 4
ENVS = ("MountainCarContinuous-v0", "Pendulum-v1")  # the paper speaks of continuous control
WAYS = ("plain", "deeper", "averaged")
MEASURED: dict[str, Any] = {
    "seeds": int,
    "replicas": int,
    "measurements": [{"env": NAME, "way": NAME, "auc": [float], "spread": (float, None)}],
}
STORED = {**ORIGIN, **MEASURED}  # replicas.json


@dataclass(frozen=True, kw_only=True)
class Config(ScriptConfig):
    """Replicas of an update."""

    seeds: PositiveInt = 30
    """S, seeds of every training."""


@dataclass
class Averaged:
    """PPO's `update` by replicas. spreads: of each update, [S]."""

    plain: Callable[..., dict[str, Tensor]]
    spreads: list[Tensor] = field(default_factory=list)

    def __call__(
        self,
        agent: ppo.ActorCritic,
        optimizer: SeedAdam,
        batch: ppo.Batch,
        shuffle: Tensor,
        config: ppo.Config,
        *rates: Tensor,
    ) -> dict[str, Tensor]:
        """shuffle: as PPO's, [S, K epochs, B]; replica k takes the epochs k of K."""
        config = replace(config, epochs=config.epochs // REPLICAS)
        changing = (optimizer.params, optimizer.mean, optimizer.square, optimizer.beta_powers)
        start = [x.detach().clone() for x in changing]
        ends = []
        for part in shuffle.chunk(REPLICAS, dim=1):
            put(changing, start)
            metrics = self.plain(agent, optimizer, batch, part.contiguous(), config, *rates)
            ends.append([x.detach().clone() for x in changing])
        replicas = [torch.stack(of_all) for of_all in zip(*ends, strict=True)]
        average = [x.mean(0) for x in replicas]
        put(changing, average)
        distances = (replicas[0] - average[0]).square().sum(-1).mean(0).sqrt()
        self.spreads.append(distances / (average[0] - start[0]).square().sum(-1).sqrt())
        return metrics


@torch.no_grad()
def put(tensors: Sequence[Tensor], values: Sequence[Tensor]) -> None:
    """Overwrite tensors in place."""
    for tensor, value in zip(tensors, values, strict=True):
        tensor.copy_(value)


def train_by(update: Callable[..., dict[str, Tensor]]) -> Callable[[ppo.Config, Run], Any]:
    """The `train` of algos/ppo.py with another update."""
    # In the module itself it would be an edit of PPO's update, which C then does not stand in for.
    return types.FunctionType(ppo.train.__code__, {**vars(ppo), "update": update})


def measure(env: str, way: str, S: int) -> dict[str, Any]:
    """Areas under the greedy curves of S seeds, and the spread of replicas."""
    settings: dict[str, Any] = {"total_timesteps": COMMON[env], "seeds": S, "quiet": True}
    config = from_preset(ppo.Config, ppo.PRESETS, env, **settings)
    if way != "plain":
        config = replace(config, epochs=REPLICAS * config.epochs)
    averaged = Averaged(ppo.update)
    run = Run(config, range(S))
    train = train_by(averaged) if way == "averaged" else ppo.train
    train(config, run)
    spread = torch.stack(averaged.spreads).mean().item() if averaged.spreads else None
    return {"env": env, "way": way, "auc": greedy_areas(run), "spread": spread}


@failing_in_one_line()
def main(args: Sequence[str] | None = None) -> None:
    """Measure what is not stored yet, and write it after each training."""
    config = parse(Config, {}, __doc__, args)
    set_up_process(threads=1)
    begun = origin(
        ["manyseeds.benchmarks.measurements.replicas:measure", "manyseeds.algos.ppo:train"]
    )
    path = Path(config.results) / "replicas.json"
    about = {"seeds": config.seeds, "replicas": REPLICAS}
    measurements = measured_by(path, begun["code"], MEASURED, about)
    found = {(m["env"], m["way"]) for m in measurements}
    for env in ENVS:
        for way in WAYS:
            if (env, way) in found:
                continue
            measurements.append(measure(env, way, config.seeds))
            mean = sum(measurements[-1]["auc"]) / config.seeds
            print(f"{env:25} {way:10} mean return over the training {mean:.1f}", flush=True)
            write_measured(path, {**begun, **about, "measurements": measurements})


if __name__ == "__main__":
    main()
