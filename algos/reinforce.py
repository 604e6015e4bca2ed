"""REINFORCE (Williams, 1992): the policy gradient from complete episodes.

    python algos/reinforce.py --env CartPole-v1
    python algos/reinforce.py --env Pendulum-v1        continuous actions

The equations, for episodes of the policy pi, with the return-to-go g_t = r_t + gamma r_{t+1} + ...:

    gradient of J = E[ sum_t Phi_t grad log pi(a_t | s_t) ]        (Sutton & Barto, section 13.3)

    Phi_t = g_0                 --weight total_return
            g_t                 --weight return_to_go, the default: rewards before a_t do not count
            g_t - V(s_t)        --weight baseline                  (section 13.4)
            Q(s_t, a_t)         --weight q

For gamma 1 and without `--normalize-advantage`, all four give the same expected gradient (Q only if
it is accurate), but with different variances. The variance is logged for every update, and
results/README.md compares them. For gamma < 1 total_return weights step t by gamma^t, the others do
not.

Shapes: S seeds, L steps (the environment's time limit), N episodes per seed, B = L N samples, M of
them in a minibatch, O observation size, A discrete actions or D components of a continuous action.
Episodes are [S, L, N, ...], and `alive` marks the steps that were taken; all others are 0. Every
loss is [S], and no term mixes two seeds, so the gradient of its sum is each seed's own. A
hyperparameter is a number, or [S] where the seeds differ in it: `broadcast` reshapes it to be
multiplied with a tensor.

Logged per update: policy_loss (of the update's episodes), entropy (nats), grad_norm and
grad_variance, both before clipping; value_loss (mean squared error of V or Q, of the last
minibatch); train_return and train_length of the episodes.
"""

from __future__ import annotations

from manyseeds.command import parse

import math
from dataclasses import dataclass
from typing import Annotated, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call

from manyseeds import envs
from manyseeds.algos.kernels import reinforce as kernel
from manyseeds.algos.kernels import takes
from manyseeds.checkpoint import loader
from manyseeds.cli import (
    ControlConfig,
    Fraction,
    NonNegative,
    PerRow,
    Positive,
    PositiveInt,
    Range,
    UsageError,
    read_presets,
)
from manyseeds.distributions import Categorical, Gaussian
from manyseeds.kernels import in_c
from manyseeds.kernels.rollout import PolicyKernel
from manyseeds.layers import SeedMLP, SeedPolicy
from manyseeds.optim import SeedAdam
from manyseeds.rows import broadcast
from manyseeds.runs.control import Run, main
from manyseeds.samples import discounted_sums, take
from manyseeds.seeds import SeedStreams


@dataclass(frozen=True, kw_only=True)
class Config(ControlConfig):
    """REINFORCE."""

    episodes: Annotated[int, Range(2, math.inf)] = 8
    """N, episodes per update."""
    learning_rate: PerRow[Positive] = 1e-3
    """Learning rate of Adam, for the policy."""
    anneal_lr: PerRow[bool] = True
    """Anneal the learning rate linearly to 0."""
    gamma: PerRow[Fraction] = 0.99
    """Discount factor per step."""
    weight: Literal["total_return", "return_to_go", "baseline", "q"] = "return_to_go"
    """Phi, the weight of each action's log-probability."""
    normalize_advantage: bool = True
    """Normalise Phi over the steps of an update to mean 0 and standard deviation 1."""
    entropy_coef: PerRow[NonNegative] = 0.0
    """c2, weight of the entropy bonus."""
    max_grad_norm: PerRow[NonNegative] = 0.5
    """Clip each seed's gradient to this norm (0: no clipping)."""
    critic_updates: PositiveInt = 20
    """Gradient steps of V or Q per update."""
    critic_learning_rate: PerRow[Positive] = 3e-3
    """Learning rate of Adam, for V or Q."""
    minibatch_size: PositiveInt = 256
    """M, samples per gradient step of V or Q."""
    hidden: tuple[PositiveInt, ...] = (64, 64)
    """Widths of the hidden layers of each network."""
    log_std_init: PerRow[Annotated[float, Range(-20, 20)]] = 0.0
    """Initial log standard deviation of continuous actions."""
    normalize_obs: bool = False
    """Normalise observations by running statistics."""

    def make_env(self) -> envs.Env:
        return envs.make_for(self, observations="vector")

    def check(self) -> None:
        if self.total_timesteps < self.episodes:
            raise UsageError(
                f"--total-timesteps {self.total_timesteps}: must be at least one step of each "
                f"episode of an update, episodes = {self.episodes}"
            )


class Actor(SeedPolicy):
    """S policies: a tanh network a seed.

    Inherited: `features`, which normalises obs; `distribution`; `draw`, noise; and `act`.
    """

    def __init__(self, spec: envs.EnvSpec, config: Config, init: SeedStreams) -> None:
        S = len(init.seeds)
        # Running statistics of observations, which are clipped to +-10. They are each seed's own,
        # part of the checkpoint, and frozen during evaluation.
        super().__init__(S, spec, config.normalize_obs)
        self.network = SeedMLP(S, self.obs_size, config.hidden, (self.action_size,), "tanh")
        # Orthogonal weights of gain sqrt(2), 0.01 for the head, as in PPO.
        self.network.orthogonal_init(init, gains=(0.01,))
        if self.continuous:
            # Gaussian, log_std the same in all states, independent components.
            self.log_std = self.network.constant(self.action_size, config.log_std_init)

    def policy(self, obs: Tensor) -> Categorical | Gaussian:
        """The distributions of actions for obs [S, B, O]."""
        return self.distribution(self.network.only(0, self.features(obs)))

    def as_kernel(self) -> PolicyKernel:
        """What `act` does, for rollouts in C."""
        return self.network.policy_in_c(self.obs_stats, self.log_std)

    def forward(self, features: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        """Log-probabilities of actions and entropies, each [S, B], for features [S, B, O]."""
        return self.distribution(self.network.only(0, features)).logprob_and_entropy(actions)


class Critic(nn.Module):
    """S value functions V(s), or with the action as an input too Q(s, a): a tanh network each."""

    def __init__(self, spec: envs.EnvSpec, config: Config, init: SeedStreams) -> None:
        super().__init__()
        assert spec.obs_size is not None
        self.actions = None if spec.continuous else spec.num_actions
        self.of_actions = config.weight == "q"
        size = len(spec.action_low) if spec.continuous else spec.num_actions
        inputs = spec.obs_size + (size if self.of_actions else 0)
        self.network = SeedMLP(len(init.seeds), inputs, config.hidden, (1,), "tanh")
        self.network.orthogonal_init(init, gains=(1.0,))

    def forward(self, features: Tensor, actions: Tensor) -> Tensor:
        """Values [S, B] for features [S, B, O] and actions [S, B] or [S, B, D]."""
        if self.of_actions:
            if self.actions is not None:
                actions = nn.functional.one_hot(actions, self.actions)
            features = torch.cat((features, actions.to(features.dtype)), dim=-1)
        return self.network.only(0, features).squeeze(-1)


def returns_to_go(rewards: Tensor, gamma: float | Tensor) -> Tensor:
    """r_t + gamma r_{t+1} + ... to the end of the episode; rewards [S, L, ...], 0 after it."""
    rows = rewards.flatten(2)
    decay = torch.ones_like(rows) * broadcast(gamma, rows)
    return discounted_sums(rows, decay).view_as(rewards)


def masked_mean(x: Tensor, mask: Tensor) -> Tensor:
    """Mean of x over the samples in mask, both [S, B]; 0 where there are none; [S]."""
    return x.masked_fill(~mask, 0.0).sum(-1) / mask.sum(-1).clamp(min=1)


def normalize(weights: Tensor, mask: Tensor) -> Tensor:
    """Weights [S, B] with mean 0 and standard deviation 1 over the samples in mask, per seed."""
    # The mean is a baseline by itself, and the division makes the scale of rewards irrelevant.
    centered = (weights - masked_mean(weights, mask).unsqueeze(-1)).masked_fill(~mask, 0.0)
    variance = centered.square().sum(-1, keepdim=True) / (mask.sum(-1, keepdim=True) - 1).clamp(1)
    return centered / (variance.sqrt() + 1e-8)


class Batch(NamedTuple):
    """The samples of an update, [S, B, ...]; B = L N, in the order of the steps."""

    features: Tensor
    actions: Tensor
    alive: Tensor
    returns: Tensor  # g_t


@torch.no_grad()
def prepare(actor: Actor, episodes: envs.Episodes, config: Config) -> Batch:
    """What the networks see of the episodes, and the returns-to-go."""
    # No bootstrapping: an episode that the time limit truncates has ended, also for V and Q.
    returns = returns_to_go(episodes.rewards, config.gamma)
    features = actor.features(episodes.obs.flatten(1, 2))
    fields = episodes.actions, episodes.alive, returns
    return Batch(features, *(field.flatten(1, 2) for field in fields))


@torch.no_grad()
def phi(critic: Critic | None, batch: Batch, config: Config) -> Tensor:
    """The weights of the log-probabilities [S, B], 0 after the ends of episodes."""
    # Not multiplied by gamma^t, as in every implementation we know: for gamma < 1 this is the
    # gradient of the discounted return with later states weighted as much as early ones. With
    # total_return, or gamma 1, it is exact.
    weights = batch.returns
    if config.weight == "total_return":
        weights = weights[:, : config.episodes].repeat(1, weights.shape[1] // config.episodes)
    if critic is not None:
        predicted = critic(batch.features, batch.actions)
        weights = predicted if config.weight == "q" else weights - predicted
    if config.normalize_advantage:
        weights = normalize(weights, batch.alive)
    return weights.masked_fill(~batch.alive, 0.0)


@in_c(kernel.gradient, takes)
def policy_gradient(
    actor: Actor, batch: Batch, weights: Tensor, config: Config
) -> dict[str, Tensor]:
    """Set the gradients of the policy to the mean over episodes of
    -sum_t (Phi_t log pi(a_t | s_t) + c2 entropy_t); returns metrics, each [S].

    Every episode gets a copy of its seed's parameters, and so a gradient of its own.
    """
    S, N = len(weights), config.episodes

    def by_episode(x: Tensor) -> Tensor:  # [S, L N, ...] as [S N, L, ...]
        return x.unflatten(1, (-1, N)).transpose(1, 2).flatten(0, 1).contiguous()

    # The gradient is kept per episode: the sum over parameters of its sample variance / N estimates
    # the variance of the mean (approximate where normalised episodes share a mean and a scale).
    parameters = dict(actor.named_parameters())
    copies = {
        name: p.detach().repeat_interleave(N, dim=0).requires_grad_()
        for name, p in parameters.items()
    }
    inputs = by_episode(batch.features), by_episode(batch.actions)
    logprobs, entropy = functional_call(actor, copies, inputs)
    alive = by_episode(batch.alive)
    pg_loss = -(by_episode(weights) * logprobs).sum(-1)
    entropy = entropy.masked_fill(~alive, 0.0)
    bonus = entropy.sum(-1).view(S, N)
    total = pg_loss.view(S, N) - broadcast(config.entropy_coef, bonus) * bonus
    gradients = torch.autograd.grad(total.sum(), list(copies.values()))

    square = variance = torch.zeros(S, device=weights.device)
    for p, gradient in zip(parameters.values(), gradients, strict=True):
        per_episode = gradient.view(S, N, *gradient.shape[1:])
        p.grad = per_episode.mean(1)
        deviations = (per_episode - p.grad.unsqueeze(1)).flatten(1)
        variance = variance + deviations.square().sum(-1) / (N - 1) / N
        square = square + p.grad.flatten(1).square().sum(-1)
    steps = batch.alive.sum(-1)
    return {
        "policy_loss": pg_loss.detach().view(S, N).mean(-1),
        "entropy": entropy.detach().view(S, -1).sum(-1) / steps,
        "grad_norm": square.sqrt(),
        "grad_variance": variance,
    }


@in_c(kernel.fit, takes)
def fit(
    critic: Critic,
    optimizer: SeedAdam,
    batch: Batch,
    draws: Tensor,
    active: Tensor,
    lr: Tensor,
) -> Tensor:
    """Fit V or Q to the returns; the uniforms draws [S, critic_updates, M] choose the samples.

    active: which seeds still learn, [S] bool; lr [S, 1]. Returns the last minibatch's mean squared
    error, [S].
    """
    taken_first = (~batch.alive).to(torch.uint8).argsort(dim=-1, stable=True)
    steps = batch.alive.sum(-1, keepdim=True)
    for uniforms in draws.unbind(1):
        chosen = (uniforms * steps).long().clamp(max=steps - 1)
        indices = taken_first.gather(1, chosen)
        minibatch = Batch(*(take(field, indices) for field in batch))  # [S, M, ...]
        values = critic(minibatch.features, minibatch.actions)
        loss = (values - minibatch.returns).square().mean(-1)
        loss.sum().backward()
        optimizer.step(lr, 0.0, active)
    return loss.detach()


@in_c(kernel.update, takes)
def update(
    actor: Actor,
    optimizer: SeedAdam,
    critic: Critic | None,
    critic_optimizer: SeedAdam | None,
    batch: Batch,
    draws: Tensor,
    active: Tensor,
    config: Config,
    lr: Tensor,
    critic_lr: Tensor,
) -> dict[str, Tensor]:
    """A step of the policy, then `fit`; learning rates [S, 1]. Returns metrics, each [S]."""
    metrics = policy_gradient(actor, batch, phi(critic, batch, config), config)
    optimizer.step(lr, config.max_grad_norm, active)
    if critic is not None and critic_optimizer is not None:
        # After the policy's step: V and Q must not have seen the episodes that they weight.
        metrics["value_loss"] = fit(critic, critic_optimizer, batch, draws, active, critic_lr)
    return metrics


def train(config: Config, run: Run) -> Actor:
    """Train all seeds of a run; returns their policies."""
    S, N = len(run.seeds), config.episodes
    env = config.make_env()
    L = env.spec.time_limit
    init = run.streams("init")
    actor = run.begin_with(Actor(env.spec, config, init)).to(run.device)
    optimizer = SeedAdam(actor, eps=1e-5)
    critic, critic_optimizer = None, None
    if config.weight in ("baseline", "q"):
        critic = Critic(env.spec, config, init).to(run.device)
        critic_optimizer = SeedAdam(critic, eps=1e-5)
    streams = run.streams("train")
    timesteps = torch.zeros(S, dtype=torch.int64, device=run.device)
    (timesteps,) = run.restore((actor, optimizer, critic, critic_optimizer, streams), timesteps)
    run.evaluate_if_due(timesteps, env, actor)
    while (active := timesteps < config.total_timesteps).any():
        # An update plays every episode to its end, and every step taken counts against the budget,
        # so seeds are at different timesteps. One that has spent its budget stops learning.
        progress = (timesteps / config.total_timesteps).clamp(max=1).unsqueeze(1)
        annealed = 1 - broadcast(config.anneal_lr, progress) * progress
        lr = broadcast(config.learning_rate, annealed) * annealed
        start_noise = streams.uniform(N, env.initial_noise)
        action_noise = actor.draw(streams, L, N)  # [S, L, N, A or D]
        transition_noise = streams.uniform(L, N, env.transition_noise)
        draws = streams.uniform(config.critic_updates, config.minibatch_size)

        episodes = envs.play(env, actor, start_noise, action_noise, transition_noise)
        batch = prepare(actor, episodes, config)
        critic_lr = broadcast(config.critic_learning_rate, annealed) * annealed
        learners = actor, optimizer, critic, critic_optimizer
        metrics = update(*learners, batch, draws, active, config, lr, critic_lr)
        alive = batch.alive & active.unsqueeze(1)
        if actor.obs_stats is not None:
            actor.obs_stats.update(episodes.obs.flatten(1, 2), alive)

        timesteps = timesteps + alive.sum(-1)
        run.log(timesteps, metrics | envs.means_of(episodes))
        run.evaluate_if_due(timesteps, env, actor)
        run.save_if_due(timesteps)
    return actor


load = loader(Config, Actor)
PRESETS = read_presets("algos/presets/reinforce.toml")

if __name__ == "__main__":
    main(parse(Config, PRESETS, __doc__), train, PRESETS)
