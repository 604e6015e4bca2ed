"""Advantage actor-critic, A2C: the synchronous A3C (Mnih et al., 2016, arXiv 1602.01783).

    python algos/a2c.py --env CartPole-v1
    python algos/a2c.py --env Pendulum-v1          continuous actions

The equations, for the data of one rollout collected by the policy pi; d is the gradient of L:

    A_t     = r_t + gamma r_{t+1} + ... + gamma^n V(s_{t+n}) - V(s_t)     n_step (section 4), or
    delta_t = r_t + gamma V(s_{t+1}) - V(s_t)
    A_t     = delta_t + gamma lambda A_{t+1}      generalised advantage (1506.02438, eq. 16)
    L       = E[ log pi(a|s) A - c1 (V - R)^2 + c2 entropy ],   R = A + V           (section 4)
    g       = alpha g + (1 - alpha) d^2,   theta <- theta + lr d / sqrt(g + eps)    RMSprop (eq. 1)

Differences from SB3: values and log-probabilities of a rollout are computed in one pass after it.
Schedules are evaluated at its start (SB3: at its end, where the last update can get a learning rate
of zero). The first rollout updates the observation statistics before its gradient update, all
others after it (SB3: at every step).

Shapes: S seeds, T steps, N environments per seed, B = T N samples, M per gradient step, O
observation size, A discrete actions or D components of a continuous action. A rollout is
[S, T, N, ...]. Every loss is [S], and no term mixes two seeds, so `total.sum().backward()` gives
each seed its own gradient. A hyperparameter is a number, or [S] for seeds that differ: `broadcast`
shapes it for a tensor, `used` tells whether it is not 0. `@in_c` functions run in C until edited.

Comments name details of "The 37 Implementation Details of PPO" (Huang et al., 2022): `Core 1` to
`Core 13` and, for continuous actions, `Continuous 1` to `Continuous 9`.

Logged per update: policy_loss, value_loss (mean squared error) and entropy (nats);
explained_variance of the returns by V; train_return and train_length of the episodes that ended in
the rollout.
"""

from __future__ import annotations

from manyseeds.command import parse

from dataclasses import dataclass
from typing import Annotated, Literal, NamedTuple

import torch
from torch import Tensor

from manyseeds import envs
from manyseeds.algos.kernels import Terms, takes
from manyseeds.algos.kernels import a2c as kernel
from manyseeds.capture import captured, from_host
from manyseeds.checkpoint import loader
from manyseeds.cli import (
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
from manyseeds.kernels import in_c, scan
from manyseeds.kernels.rollout import PolicyKernel
from manyseeds.layers import RewardScale, SeedMLP, SeedPolicy
from manyseeds.optim import SeedAdam, SeedRMSprop
from manyseeds.rows import broadcast, used
from manyseeds.runs.control import RolloutConfig, Run, main
from manyseeds.samples import discounted_sums, monte_carlo, n_step
from manyseeds.seeds import SeedStreams


@dataclass(frozen=True, kw_only=True)
class Config(RolloutConfig):
    """A2C. The defaults are SB3's, with rl-baselines3-zoo's number of environments."""

    # Core 1: a rollout is T steps of N environments in parallel.
    num_envs: PositiveInt = 8
    """N, environments per seed."""
    num_steps: PositiveInt = 5
    """T, steps per environment in a rollout."""
    learning_rate: PerRow[Positive] = 7e-4
    """Learning rate of the optimizer."""
    anneal_lr: PerRow[bool] = False
    """Anneal the learning rate linearly to 0."""
    gamma: PerRow[Fraction] = 0.99
    """Discount factor per step."""
    advantage: Literal["gae", "n_step", "monte_carlo"] = "gae"
    """GAE, n-step returns, or returns to the end of the episode or rollout, each minus V."""
    gae_lambda: PerRow[Fraction] = 1.0
    """Lambda of GAE. 0 gives the one-step TD error, 1 the Monte Carlo advantage."""
    n_steps: PositiveInt = 3
    """n of n-step returns. At most num_steps; 1 gives the one-step TD error."""
    normalize_advantage: bool = False
    """Normalise advantages to mean 0 and standard deviation 1 for each gradient step."""
    entropy_coef: PerRow[NonNegative] = 0.0
    """c2, weight of the entropy bonus."""
    value_coef: PerRow[NonNegative] = 0.5
    """c1, weight of the value loss."""
    max_grad_norm: PerRow[NonNegative] = 0.5
    """Clip each seed's gradient to this norm (0: no clipping)."""
    optimizer: Literal["rmsprop", "rmsprop_tf", "adam"] = "rmsprop"
    """PyTorch's RMSprop, TensorFlow's RMSprop, or Adam."""
    hidden: tuple[PositiveInt, ...] = (64, 64)
    """Widths of the hidden layers of each network."""
    log_std_init: PerRow[Annotated[float, Range(-20, 20)]] = 0.0
    """Initial log standard deviation of continuous actions."""
    normalize_obs: bool = False
    """Normalise observations by running statistics."""
    normalize_reward: bool = False
    """Divide rewards by a running standard deviation of the discounted return."""

    def make_env(self) -> envs.Env:
        return envs.make_for(self, observations="vector")

    def check(self) -> None:
        super().check()
        if self.advantage == "n_step" and self.n_steps > self.num_steps:
            raise UsageError(
                f"--n-steps {self.n_steps}: must be at most num_steps = {self.num_steps}"
            )


class ActorCritic(SeedPolicy):
    """S policies and S value functions: two tanh networks a seed.

    Inherited: `features`, which normalises obs; `distribution`; `draw`, noise; and `act`.
    """

    def __init__(self, spec: envs.EnvSpec, config: Config, init: SeedStreams) -> None:
        S = len(init.seeds)
        # Continuous 6 and 7: running statistics of observations, which are clipped to +-10. They
        # are each seed's own, part of the checkpoint, and frozen during evaluation.
        super().__init__(S, spec, config.normalize_obs)
        # Core 13, Continuous 4: separate networks, 0 the policy's (logits or means), 1 the value's.
        heads = (self.action_size, 1)
        self.networks = SeedMLP(S, self.obs_size, config.hidden, heads, "tanh")
        # Core 2: orthogonal weights of gain sqrt(2), last layers 0.01 and 1; biases 0.
        self.networks.orthogonal_init(init, gains=(0.01, 1.0))
        if self.continuous:
            # Continuous 1 to 3: Gaussian, log_std the same in all states, independent components.
            self.log_std = self.networks.constant(self.action_size, config.log_std_init)
        self.reward_scale = None
        if config.normalize_reward:
            # Continuous 8 and 9: rewards divided by the return's deviation so far, clipped to +-10.
            self.reward_scale = RewardScale(S, config.num_envs, config.gamma)

    def policy(self, obs: Tensor) -> Categorical | Gaussian:
        """The distributions of actions for obs [S, B, O]."""
        return self.distribution(self.networks.only(0, self.features(obs)))

    def as_kernel(self) -> PolicyKernel:
        """What `act` does, for rollouts in C."""
        return self.networks.policy_in_c(self.obs_stats, self.log_std)

    def evaluate(self, obs: Tensor, actions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Log-probabilities of actions, entropies and values, each [S, B], for obs [S, B, O]."""
        logits_or_means, values = self.networks(self.features(obs))
        logprobs, entropies = self.distribution(logits_or_means).logprob_and_entropy(actions)
        return logprobs, entropies, values.squeeze(-1)

    def value(self, obs: Tensor) -> Tensor:
        """V [S, B] for obs [S, B, O]."""
        return self.networks.only(1, self.features(obs)).squeeze(-1)


@in_c(scan.gae)
def gae(
    rewards: Tensor,
    values: Tensor,
    next_values: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    gamma: float | Tensor,
    gae_lambda: float | Tensor,
) -> Tensor:
    """Generalised advantage estimates (Schulman et al., 2016, eq. 16), all [S, T, N].

    next_values: V of the true successors, of the final observation where an episode ends.
    """
    # A truncation is bootstrapped, a termination is not (as in SB3; CleanRL bootstraps neither).
    deltas = rewards + broadcast(gamma, rewards) * next_values * ~terminated - values
    # No advantage reaches back across the end of its episode.
    goes_on = (~(terminated | truncated)).to(deltas.dtype)
    decay = broadcast(gamma * gae_lambda, goes_on) * goes_on
    return discounted_sums(deltas, decay)


def normalize(advantages: Tensor) -> Tensor:
    """Advantages [S, M] with mean 0 and standard deviation 1 per seed; as they are if M is 1."""
    if advantages.shape[-1] == 1:
        return advantages
    centered = advantages - advantages.mean(-1, keepdim=True)
    return centered / (advantages.std(-1, keepdim=True) + 1e-8)


def explained_variance(values: Tensor, returns: Tensor) -> Tensor:
    """1 - Var(returns - values) / Var(returns) per seed, [S]; values and returns [S, B]."""
    return 1 - (returns - values).var(-1) / returns.var(-1)


def policy_loss(logprobs: Tensor, advantages: Tensor) -> Tensor:
    """-E[log pi A] per seed, [S]; logprobs and advantages [S, B]."""
    return -(logprobs * advantages).mean(-1)


def value_loss(values: Tensor, returns: Tensor) -> Tensor:
    """Mean squared error per seed, [S]."""
    return (values - returns).square().mean(-1)


class Batch(NamedTuple):
    """Samples: all of a rollout, [S, B, ...], or those of a gradient step, [S, M, ...]."""

    obs: Tensor
    actions: Tensor
    values: Tensor
    advantages: Tensor
    returns: Tensor


@in_c(kernel.estimate, takes)
def estimate(
    agent: ActorCritic, rollout: envs.Rollout, rewards: Tensor, config: Config
) -> tuple[Tensor, Tensor]:
    """Values and advantages, [S, B] each, of a rollout's samples."""
    values = agent.value(rollout.obs.flatten(1, 2))
    next_values = agent.value(rollout.next_obs.flatten(1, 2))
    ends = (rollout.terminated, rollout.truncated)
    steps = rewards, values.view_as(rewards), next_values.view_as(rewards), *ends  # [S, T, N] each
    if config.advantage == "gae":
        advantages = gae(*steps, config.gamma, config.gae_lambda)
    elif config.advantage == "n_step":
        advantages = n_step(*steps, config.gamma, config.n_steps)
    else:
        advantages = monte_carlo(*steps, config.gamma)
    return values, advantages.flatten(1, 2)


@torch.no_grad()
def prepare(agent: ActorCritic, rollout: envs.Rollout, config: Config) -> Batch:
    """The samples of a rollout with their advantages, returns and what else the loss needs."""
    rewards = rollout.rewards
    if agent.reward_scale is not None:
        rewards = agent.reward_scale(rewards, rollout.done)
    values, advantages = estimate(agent, rollout, rewards, config)
    # Core 5: GAE. The returns are advantages plus values, the TD(lambda) estimate.
    returns = advantages + values
    obs, actions = rollout.obs.flatten(1, 2), rollout.actions.flatten(1, 2)
    return Batch(obs, actions, values, advantages, returns)


def loss(agent: ActorCritic, batch: Batch, config: Config) -> tuple[Tensor, Terms]:
    """-L of a batch, [S], and its terms."""
    # Continuous 5: of the actions as sampled; the environment clips them to its bounds.
    logprobs, entropy, values = agent.evaluate(batch.obs, batch.actions)
    # Core 7: over the samples of each gradient step; the sample standard deviation (ddof 1).
    advantages = normalize(batch.advantages) if config.normalize_advantage else batch.advantages
    pg_loss = policy_loss(logprobs, advantages)
    v_loss = value_loss(values, batch.returns)
    # Core 10: one loss, with the entropy as a bonus.
    total = pg_loss + broadcast(config.value_coef, v_loss) * v_loss
    if used(config.entropy_coef):
        total = total - broadcast(config.entropy_coef, v_loss) * entropy.mean(-1)
    return total, Terms(*(x.detach() for x in (pg_loss, v_loss, entropy, logprobs)))


@in_c(kernel.gradient, takes)
def backpropagate(agent: ActorCritic, batch: Batch, config: Config) -> Terms:
    """Set the gradients of -L of a batch; returns its terms."""
    total, terms = loss(agent, batch, config)
    total.sum().backward()
    return terms


def metrics_of(terms: Terms) -> dict[str, Tensor]:
    """The logged metrics of a batch, each [S]."""
    # Core 12: the debug variables.
    return {
        "policy_loss": terms.policy_loss,
        "value_loss": terms.value_loss,
        "entropy": terms.entropy.mean(-1),
    }


@in_c(kernel.update, takes)
def update(
    agent: ActorCritic,
    optimizer: SeedAdam | SeedRMSprop,
    batch: Batch,
    config: Config,
    lr: Tensor,
) -> dict[str, Tensor]:
    """One gradient step on all samples of a rollout at once; returns the metrics, each [S]."""
    terms = backpropagate(agent, batch, config)
    # Core 11: clip the norm of each seed's whole gradient, policy and value together.
    optimizer.step(lr, config.max_grad_norm)
    metrics = metrics_of(terms)
    return metrics | {"explained_variance": explained_variance(batch.values, batch.returns)}


def make_optimizer(agent: ActorCritic, config: Config) -> SeedAdam | SeedRMSprop:
    """The optimizer that the Config names, with SB3's settings."""
    if config.optimizer == "adam":
        # Core 3: Adam's epsilon (PyTorch's default: 1e-8).
        return SeedAdam(agent, eps=1e-5)
    # PyTorch adds eps to the root of g, and g starts at 0. TensorFlow (SB3's RMSpropTFLike) adds it
    # to g, as the paper does, and g starts at 1.
    return SeedRMSprop(agent, alpha=0.99, eps=1e-5, tf=config.optimizer == "rmsprop_tf")


def train(config: Config, run: Run) -> ActorCritic:
    """Train all seeds of a run; returns their policies."""
    S, T, N = len(run.seeds), config.num_steps, config.num_envs
    env = config.make_env()
    agent = run.begin_with(ActorCritic(env.spec, config, run.streams("init"))).to(run.device)
    optimizer = make_optimizer(agent, config)
    episodes = envs.EpisodeTracker(S, N, run.device)

    # On CUDA the iteration is recorded once as a graph, so all that changes is an argument.
    @captured(run.device, env.native)
    def iteration(
        state: envs.State,
        obs: Tensor,
        noise: tuple[Tensor, Tensor],
        lr: Tensor,
        first: bool,
    ) -> tuple[envs.State, Tensor, dict[str, Tensor]]:
        state, obs, rollout = envs.rollout(env, agent, state, obs, *noise)
        # Statistics are updated after the gradient update, which thus begins at the policy that
        # acted; but before the first one, so that none is computed from raw observations.
        if agent.obs_stats is not None and first:
            agent.obs_stats.update(rollout.obs.flatten(1, 2))
        batch = prepare(agent, rollout, config)
        metrics = update(agent, optimizer, batch, config, lr)
        if agent.obs_stats is not None and not first:
            agent.obs_stats.update(batch.obs)
        return state, obs, metrics | episodes.update(rollout.rewards, rollout.done)

    streams = run.streams("train")
    state, obs = env.reset(streams.uniform(N, env.initial_noise))
    timestep, state, obs = run.restore((agent, optimizer, episodes, streams), 0, state, obs)
    run.evaluate_if_due(timestep, env, agent)
    while timestep < config.total_timesteps:
        # Core 4: anneal linearly to 0, by the timesteps at the start of the rollout.
        progress = timestep / config.total_timesteps
        lr = config.learning_rate * (1 - config.anneal_lr * progress)
        # Noise is drawn beforehand, from each seed's own stream: no seed depends on another.
        state, obs, metrics = iteration(
            state,
            obs,
            (agent.draw(streams, T, N), streams.uniform(T, N, env.noise_size)),  # [S, T, N, ...]
            from_host(lr, run.device),
            timestep == 0,
        )
        timestep += config.batch_size
        run.log(timestep, metrics)
        run.evaluate_if_due(timestep, env, agent)
        run.save_if_due(timestep, state, obs)
    return agent


load = loader(Config, ActorCritic)
PRESETS = read_presets("algos/presets/a2c.toml")

if __name__ == "__main__":
    main(parse(Config, PRESETS, __doc__), train, PRESETS)
