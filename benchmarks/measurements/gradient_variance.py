"""Variance of the policy gradient with each weight of the log-probabilities.

    python benchmarks/gradient_variance.py

REINFORCE trains S seeds on CartPole-v1 with its preset. The policies of each seed before the
training, after a tenth of it, halfway and at its end are frozen, and for every one of them the
gradient of the expected return is estimated B times, each time from N new episodes, with all
weights:

    R(tau), return-to-go, with V as a baseline, Q        algos.reinforce.phi, with its --weight
    the same return-to-go normalised to mean 0 and std 1 algos.reinforce.phi
    GAE, several lambdas                                 algos.ppo.gae
    GRPO's advantages within a group                     algos.grpo.group_advantages

An estimate is the mean over episodes of sum_t Phi_t grad log pi(a_t | s_t), without clipping. All
weights but GRPO's see the same episodes; the N episodes of an estimate of GRPO are one group, and
begin in the same state. gamma is 1, so that R(tau), return-to-go, and return-to-go minus any V
have the same mean, the gradient itself; so has GAE with lambda 1, which is the latter.

V and Q are fitted to each frozen policy on episodes of their own by `algos.reinforce.fit`, for
longer than in a training: what a weight can do, rather than what a critic that lags behind makes of
it. As in REINFORCE, an episode that the time limit cuts has ended, also for GAE.

Stored per stage, seed and weight, for the estimates g_1 ... g_B with mean m:

    variance    sum_i |g_i - m|^2 / (B - 1), the trace of the covariance
    signal      sum_{i != j} g_i . g_j / (B (B - 1)), without bias the squared length of the true
                mean; below 0 by chance where that is too short to be seen
    dot         likewise the product of the means of this weight and of the baseline's

Writes gradient_variance.json, which report.py shows. With `--results results` it is published.
"""

from __future__ import annotations

from manyseeds.command import failing_in_one_line

import copy
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
from torch import Tensor

from manyseeds import envs
from manyseeds.algos import grpo, ppo, reinforce
from manyseeds.benchmarks.measurements.measure import origin, write_measured
from manyseeds.cli import PositiveInt, Range, ScriptConfig, from_preset, parse
from manyseeds.optim import SeedAdam
from manyseeds.process import set_up_process
from manyseeds.record import finite_numbers
from manyseeds.runs.control import Run
from manyseeds.seeds import SeedStreams
from manyseeds.untrusted import NAME, ORIGIN

ENV = "CartPole-v1"
STAGES = {"untrained": 0.0, "a tenth": 0.1, "half": 0.5, "trained": 1.0}  # of the training
LAMBDAS = (0.0, 0.5, 0.9, 0.95, 0.99)
REFERENCE = "baseline"  # whose mean is the gradient, with little noise
FIT_EPISODES = 128  # that V and Q are fitted on
FIT_ROUNDS = 100  # of Config.critic_updates gradient steps each
FROM_RETURNS: dict[str, dict[str, Any]] = {  # settings of REINFORCE
    "total_return": {"weight": "total_return"},
    "return_to_go": {"weight": "return_to_go"},
    "return_to_go, normalised": {"weight": "return_to_go", "normalize_advantage": True},
    "baseline": {"weight": "baseline"},
    "q": {"weight": "q"},
}
FROM_GROUPS: dict[str, dict[str, Any]] = {  # settings of GRPO
    "grpo": {"advantage": "return_to_go"},
    "grpo, outcome": {"advantage": "outcome"},
    "grpo, outcome, no std": {"advantage": "outcome", "std": "none"},
}

UNBIASED = ("total_return", "return_to_go", REFERENCE)  # the mean of each is the gradient itself
STORED: dict[str, Any] = {  # gradient_variance.json
    **ORIGIN,
    "versions": {"torch": str},
    "env": NAME,
    "seeds": int,
    "episodes": int,
    "estimates": int,
    "total_timesteps": int,
    "policies": [
        {
            "stage": NAME,
            "seed": int,
            "return": float,
            "explained": {"baseline": (float, None), "q": (float, None)},
        }
    ],
    "measurements": [
        {
            "stage": NAME,
            "seed": int,
            "weight": NAME,
            "variance": float,
            "signal": float,
            "dot": float,
        }
    ],
}


@dataclass(frozen=True, kw_only=True)
class Config(ScriptConfig):
    """The variance of the gradient."""

    seeds: PositiveInt = 10
    """S, seeds that are trained."""
    episodes: Annotated[int, Range(2, math.inf)] = 8
    """N, episodes per estimate."""
    estimates: Annotated[int, Range(2, math.inf)] = 200
    """B, estimates of each gradient."""
    total_timesteps: PositiveInt = reinforce.PRESETS[ENV].settings["total_timesteps"]
    """Budget of each seed's training."""


class Stages(Run):
    """A training that is never evaluated, and keeps each seed's policy at every stage."""

    def __init__(self, config: reinforce.Config, seeds: Sequence[int]) -> None:
        super().__init__(config, seeds)
        self.policies: dict[str, reinforce.Actor] = {}
        self.passed = {stage: np.zeros(len(seeds), dtype=bool) for stage in STAGES}

    def evaluate_if_due(self, timestep: int | Tensor, env: Any, policy: Any) -> None:
        timesteps = self._per_seed(timestep)
        for stage, share in STAGES.items():
            now = (timesteps >= share * self.config.total_timesteps) & ~self.passed[stage]
            if not now.any():
                continue
            kept = self.policies.setdefault(stage, copy.deepcopy(policy))
            rows = now.nonzero()[0]
            tensors = zip(kept.state_dict().values(), policy.state_dict().values(), strict=True)
            for copied, current in tensors:
                copied[rows] = current[rows]
            self.passed[stage] |= now


def train_stages(config: reinforce.Config, seeds: Sequence[int]) -> dict[str, reinforce.Actor]:
    """Train all seeds; their policies at every stage."""
    run = Stages(config, seeds)
    reinforce.train(config, run)
    return run.policies


def play(
    env: envs.Env, actor: reinforce.Actor, streams: SeedStreams, episodes: int, same_start: bool
) -> envs.Episodes:
    """N sampled episodes per seed to their ends, [S, L, N, ...]; here L is the longest one."""
    L = env.spec.time_limit
    starts = streams.uniform(1 if same_start else episodes, env.initial_noise)
    transition_noise = streams.uniform(L, episodes, env.transition_noise)
    played = envs.play(
        env,
        actor,
        starts.expand(-1, episodes, -1).contiguous(),
        actor.draw(streams, L, episodes),
        transition_noise,
    )
    longest = int(played.alive.any(2).any(0).sum())
    return envs.Episodes(*(x[:, :longest].contiguous() for x in played))


class ScaledCritic(reinforce.Critic):
    """V or Q in units of the returns that it is fitted to: values in the hundreds, which tanh
    networks with small steps take long to reach."""

    def __init__(
        self, config: reinforce.Config, batch: reinforce.Batch, streams: SeedStreams
    ) -> None:
        super().__init__(config.make_env().spec, config, streams)
        alive = batch.alive
        taken = [g[on] for g, on in zip(batch.returns, alive, strict=True)]
        self.mean = torch.stack([g.mean() for g in taken]).unsqueeze(1)
        self.std = torch.stack([g.std() for g in taken]).unsqueeze(1) + 1e-8

    def forward(self, features: Tensor, actions: Tensor) -> Tensor:
        return self.mean + self.std * super().forward(features, actions)


def fitted_critic(
    batch: reinforce.Batch, config: reinforce.Config, streams: SeedStreams
) -> reinforce.Critic:
    """V or Q, as config.weight says, of the policies that have taken the steps of a batch."""
    S = len(batch.alive)
    critic = ScaledCritic(config, batch, streams)
    optimizer = SeedAdam(critic, eps=1e-5)
    active = torch.ones(S, dtype=torch.bool)
    for k in range(FIT_ROUNDS):
        draws = streams.uniform(config.critic_updates, config.minibatch_size)
        lr = torch.full((S, 1), config.critic_learning_rate * (1 - k / FIT_ROUNDS))
        reinforce.fit(critic, optimizer, batch, draws, active, lr)
    return critic


@torch.no_grad()
def explained(critic: reinforce.Critic, batch: reinforce.Batch) -> list[float]:
    """The share of the variance of returns-to-go that a critic explains, [S]."""
    values = critic(batch.features, batch.actions)
    rows = zip(values, batch.returns, batch.alive, strict=True)
    return [ppo.explained_variance(v[on][None], g[on][None]).item() for v, g, on in rows]


@torch.no_grad()
def gae_weights(
    critic: reinforce.Critic, episodes: envs.Episodes, batch: reinforce.Batch, lam: float
) -> Tensor:
    """GAE's advantages [S, B] of complete episodes, 0 after their ends; gamma is 1.

    V is 0 after an episode's last step, which counts as a termination.
    """
    alive = episodes.alive
    values = critic(batch.features, batch.actions).view_as(alive) * alive
    after = torch.zeros_like(values[:, :1])
    next_values = torch.cat((values[:, 1:], after), dim=1)
    ended = torch.cat((~alive[:, 1:], torch.ones_like(alive[:, :1])), dim=1)
    steps = episodes.rewards, values, next_values, ended, torch.zeros_like(ended)
    return (ppo.gae(*steps, 1.0, lam) * alive).flatten(1)


@torch.no_grad()
def grpo_weights(episodes: envs.Episodes, config: grpo.Config) -> Tensor:
    """GRPO's advantages [S, B] where all episodes of a seed are one group."""
    rewards, alive = (x.unsqueeze(2) for x in (episodes.rewards, episodes.alive))  # [S, L, 1, G]
    return grpo.group_advantages(rewards, alive, config).flatten(1)


def all_weights(
    config: reinforce.Config,
    streams: SeedStreams,
    env: envs.Env,
    actor: reinforce.Actor,
    critics: dict[str, reinforce.Critic],
) -> Iterator[tuple[str, reinforce.Batch, Tensor]]:
    """The weights of one estimate by name, [S, B] each, with the samples that they belong to."""
    episodes = play(env, actor, streams, config.episodes, same_start=False)
    batch = reinforce.prepare(actor, episodes, config)
    for name, settings in FROM_RETURNS.items():
        chosen = replace(config, **settings)
        yield name, batch, reinforce.phi(critics.get(chosen.weight), batch, chosen)
    for lam in LAMBDAS:
        yield gae_name(lam), batch, gae_weights(critics["baseline"], episodes, batch, lam)
    episodes = play(env, actor, streams, config.episodes, same_start=True)
    batch = reinforce.prepare(actor, episodes, config)
    for name, settings in FROM_GROUPS.items():
        group = grpo.Config(env=config.env, group_size=config.episodes, gamma=1.0, **settings)
        yield name, batch, grpo_weights(episodes, group)


def gae_name(lam: float) -> str:
    """`gae 0.95`"""
    return f"gae {lam:g}"


def gradient(
    actor: reinforce.Actor, batch: reinforce.Batch, weights: Tensor, config: reinforce.Config
) -> Tensor:
    """The policy gradient of one estimate, [S, P], in double precision."""
    reinforce.policy_gradient(actor, batch, weights, config)
    return torch.cat(
        [p.grad.flatten(1) for p in actor.parameters() if p.grad is not None], 1
    ).double()


class Moments:
    """Sums over the estimates of one weight; gradients are [S, P]."""

    def __init__(self) -> None:
        self.n = 0
        self.sum: Any = 0.0  # [S, P]
        self.squares: Any = 0.0  # [S]
        self.products: Any = 0.0  # [S], with the reference's

    def add(self, gradient: Tensor, reference: Tensor) -> None:
        self.n += 1
        self.sum = self.sum + gradient
        self.squares = self.squares + gradient.square().sum(1)
        self.products = self.products + (gradient * reference).sum(1)

    def figures(self, reference: Moments) -> dict[str, Tensor]:
        """Variance, signal and dot, [S] each."""
        n = self.n
        length = self.sum.square().sum(1)  # of the sum, squared
        return {
            "variance": (self.squares - length / n) / (n - 1),
            "signal": (length - self.squares) / (n * (n - 1)),
            "dot": ((self.sum * reference.sum).sum(1) - self.products) / (n * (n - 1)),
        }


def measure_stage(
    stage: str, actor: reinforce.Actor, config: reinforce.Config, streams: SeedStreams, B: int
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The figures of every seed and weight at one stage, and the policies and critics behind."""
    env, seeds = config.make_env(), streams.seeds
    sample = play(env, actor, streams, FIT_EPISODES, same_start=False)
    steps = reinforce.prepare(actor, sample, config)
    kinds = ("baseline", "q")
    critics = {k: fitted_critic(steps, replace(config, **FROM_RETURNS[k]), streams) for k in kinds}
    held_out = reinforce.prepare(actor, play(env, actor, streams, FIT_EPISODES, False), config)
    shares = {k: explained(critic, held_out) for k, critic in critics.items()}
    returns = sample.rewards.sum(1).mean(-1).tolist()
    policies = [
        {
            "stage": stage,
            "seed": seed,
            "return": returns[i],
            "explained": finite_numbers({k: share[i] for k, share in shares.items()}),
        }
        for i, seed in enumerate(seeds)
    ]

    moments: dict[str, Moments] = {}
    for _ in range(B):
        gradients = {
            name: gradient(actor, batch, weights, config)
            for name, batch, weights in all_weights(config, streams, env, actor, critics)
        }
        for name, found in gradients.items():
            moments.setdefault(name, Moments()).add(found, gradients[REFERENCE])
    figures = {name: m.figures(moments[REFERENCE]) for name, m in moments.items()}
    measurements = [
        {"stage": stage, "seed": seed, "weight": name}
        | {key: values[i].item() for key, values in found.items()}
        for name, found in figures.items()
        for i, seed in enumerate(seeds)
    ]
    return measurements, policies


def measure(
    config: Config, say: Callable[[str], None] = print
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Train, and measure at every stage."""
    seeds = range(config.seeds)
    budget = {"total_timesteps": config.total_timesteps, "seeds": config.seeds, "quiet": True}
    trained_as = from_preset(reinforce.Config, reinforce.PRESETS, ENV, **budget)
    policies = train_stages(trained_as, seeds)
    measured_as = replace(
        trained_as, gamma=1.0, normalize_advantage=False, episodes=config.episodes
    )
    streams = SeedStreams(seeds, "evaluate")  # the training has drawn none of it
    measurements: list[dict[str, Any]] = []
    about: list[dict[str, Any]] = []
    for stage, actor in policies.items():
        found, policies_of_stage = measure_stage(
            stage, actor, measured_as, streams, config.estimates
        )
        mean = sum(p["return"] for p in policies_of_stage) / len(seeds)
        say(f"{stage:9} mean return of the sampled policies {mean:.1f}")
        measurements += found
        about += policies_of_stage
    return measurements, about


@failing_in_one_line()
def main(args: Sequence[str] | None = None) -> None:
    """Measure, and write the file."""
    config = parse(Config, {}, __doc__, args)
    set_up_process(threads=1)
    begun = origin(
        ["manyseeds.benchmarks.measurements.gradient_variance:measure"]
    )  # of the sources as they are now
    measurements, policies = measure(config)
    stored = {
        **begun,
        "env": ENV,
        "seeds": config.seeds,
        "episodes": config.episodes,
        "estimates": config.estimates,
        "total_timesteps": config.total_timesteps,
        "policies": policies,
        "measurements": measurements,
    }
    write_measured(Path(config.results) / "gradient_variance.json", stored)


if __name__ == "__main__":
    main()
