"""What a tenth of a training tells of its learning rate.

    python benchmarks/learning_rates.py

After Fernandez-Hernandez et al., 2026, arXiv 2603.09950: PPO with many learning rates, all seeds of
all rates as one batch. At a tenth of the training four signals are taken of each row,

    actor, critic   the balance of a network's activations on a fixed batch of states: with p the
                    share of the states in which a hidden unit is positive, the mean of 4 p (1 - p)
                    over units; 1: each unit tells the states apart, 0: none does
    return          the greedy return
    kl              minus the mean approximate KL of the updates so far

and at the end the greedy return. The states are those that an untrained policy visits. Writes
learning_rates.json, which report.py shows; what is there by the same code is not measured again.
With `--results results` it is published. Ten minutes of one core per environment at most.
"""

from __future__ import annotations

from manyseeds.command import failing_in_one_line

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from manyseeds import envs
from manyseeds.algos import ppo
from manyseeds.benchmarks.measurements.measure import measured_by, origin, write_measured
from manyseeds.benchmarks.store.comparison import COMMON
from manyseeds.cli import PositiveInt, ScriptConfig, from_preset, parse
from manyseeds.evaluate import evaluate
from manyseeds.process import set_up_process
from manyseeds.runs.configurations import RowRun
from manyseeds.seeds import SeedStreams
from manyseeds.untrusted import NAME, ORIGIN

RATES = tuple(float(f"{x:.2g}") for x in np.geomspace(1e-5, 1e-1, 32))
ENVS = ("CartPole-v1", "Acrobot-v1", "MountainCar-v0")
SHARE = 0.1  # of the training
DIVERGED = 1e6  # a KL that is not a number, or larger
SIGNALS = ("actor", "critic", "return", "kl")
MEASURED: dict[str, Any] = {
    "seeds": int,
    "measurements": [
        {
            "env": NAME,
            "timestep": int,  # of the signals
            "rates": [float],  # of each row, all seeds of a rate together
            "signals": {str: [float]},
            "final": [float],
        }
    ],
}
STORED = {**ORIGIN, **MEASURED}  # learning_rates.json


@dataclass(frozen=True, kw_only=True)
class Config(ScriptConfig):
    """Learning rates."""

    seeds: PositiveInt = 10
    """S, seeds of every learning rate."""


def probe_states(config: ppo.Config) -> Tensor:
    """States that an untrained policy visits in a rollout, [B, O]: the same for all rows."""
    env, T, N = config.make_env(), config.num_steps, config.num_envs
    agent = ppo.ActorCritic(env.spec, config, SeedStreams([0], "init"))
    streams = SeedStreams([0], "train")
    state, obs = env.reset(streams.uniform(N, env.initial_noise))
    noise = agent.draw(streams, T, N), streams.uniform(T, N, env.noise_size)
    _, _, rollout = envs.rollout(env, agent, state, obs, *noise)
    return rollout.obs[0].flatten(0, 1)


@torch.no_grad()
def balance(agent: ppo.ActorCritic, k: int, states: Tensor) -> Tensor:
    """The balance of network k's activations on states [B, O], [S]."""
    S = len(agent.networks.weights[0])
    x = agent.features(states.expand(S, -1, -1))
    weights, biases, *_ = agent.networks.parameter_lists()
    found = []
    for weight, bias in zip(weights[:-1], biases[:-1], strict=True):
        x = torch.tanh(x @ weight[:, k] + bias[:, k])
        p = (x > 0).to(x.dtype).mean(1)  # [S, units]
        found.append(4 * p * (1 - p))
    return torch.cat(found, dim=1).mean(1)


class Observed(RowRun):
    """A training of rows of which the signals are taken once, and no curves."""

    def __init__(self, configs: Sequence[ppo.Config], seeds: Sequence[int], states: Tensor) -> None:
        super().__init__(configs, seeds, curves=False)
        self.states = states
        self.signals: dict[str, list[float]] = {}
        self.taken = 0  # the timestep of the signals

    def evaluate_if_due(self, timestep: int | Tensor, env: Any, policy: Any) -> None:
        self._env = env
        if self.signals or not timestep >= SHARE * self.total:
            return
        assert isinstance(timestep, int)
        self.taken = timestep
        networks = (balance(policy, k, self.states).tolist() for k in (0, 1))
        returns = evaluate(env, policy, self.seeds, 32).return_mean.tolist()
        kls = np.mean([window.metrics["approx_kl"] for window in self.windows], axis=0)
        kls = np.nan_to_num(kls, nan=DIVERGED).clip(max=DIVERGED)
        self.signals = dict(zip(SIGNALS, (*networks, returns, (-kls).tolist()), strict=True))


def measure(env: str, S: int) -> dict[str, Any]:
    """The signals and final returns of all rates, S seeds each."""
    rows = [*product(RATES, range(S))]
    settings = {"total_timesteps": COMMON[env], "quiet": True}
    configs = [
        from_preset(ppo.Config, ppo.PRESETS, env, **settings, learning_rate=x) for x, _ in rows
    ]
    run = Observed(configs, [seed for _, seed in rows], probe_states(configs[0]))
    config: Any = run.config
    agent = ppo.train(config, run)
    final = run.scores(agent)["final"].tolist()
    about = {"env": env, "timestep": run.taken, "rates": [x for x, _ in rows]}
    return {**about, "signals": run.signals, "final": final}


@failing_in_one_line()
def main(args: Sequence[str] | None = None) -> None:
    """Measure what is not stored yet, and write it after each training."""
    config = parse(Config, {}, __doc__, args)
    set_up_process(threads=1)
    begun = origin(
        ["manyseeds.benchmarks.measurements.learning_rates:measure", "manyseeds.algos.ppo:train"]
    )
    path = Path(config.results) / "learning_rates.json"
    about = {"seeds": config.seeds}
    measurements = measured_by(path, begun["code"], MEASURED, about)
    found = {m["env"] for m in measurements}
    for env in ENVS:
        if env not in found:
            measurements.append(measure(env, config.seeds))
            print(f"{env}: {len(RATES)} learning rates x {config.seeds} seeds", flush=True)
            write_measured(path, {**begun, **about, "measurements": measurements})


if __name__ == "__main__":
    main()
