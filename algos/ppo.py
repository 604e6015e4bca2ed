"""Proximal Policy Optimization (Schulman et al., 2017, arXiv 1707.06347).

    python algos/ppo.py --env CartPole-v1
    python algos/ppo.py --env Pendulum-v1          continuous actions

The equations, for the data of one rollout collected by the policy pi_old, with L maximised:

    delta_t = r_t + gamma V(s_{t+1}) - V(s_t)
    A_t     = delta_t + gamma lambda A_{t+1}      generalised advantage (1506.02438, eq. 16)
    ratio_t = pi(a_t | s_t) / pi_old(a_t | s_t)                                     (section 3)
    L_clip  = E[ min( ratio A, clip(ratio, 1 - eps, 1 + eps) A ) ]                  (eq. 7)
    L       = L_clip - E[ c1 (V - R)^2 - c2 entropy ],   R = A + V_old              (eq. 9)

Differences from SB3: values and log-probabilities of a rollout are computed in one pass after it.
Schedules are evaluated at its start (SB3: at its end, where the last update can get a learning rate
of zero). The first rollout updates the observation statistics before its gradient update, all
others after it (SB3: at every step). A minibatch size that leaves a remainder is refused.

Shapes: S seeds, T steps, N environments per seed, B = T N samples, M per gradient step, O
observation size, A discrete actions or D components of a continuous action. A rollout is
[S, T, N, ...]. Every loss is [S], and no term mixes two seeds, so `total.sum().backward()` gives
each seed its own gradient. A hyperparameter is a number, or [S] for seeds that differ: `broadcast`
shapes it for a tensor, `used` tells whether it is not 0. `@in_c` functions run in C until edited.

Comments name details of "The 37 Implementation Details of PPO" (Huang et al., 2022): `Core 1` to
`Core 13` and, for continuous actions, `Continuous 1` to `Continuous 9`.

Logged per update: policy_loss, value_loss (mean squared error), entropy (nats), approx_kl and
clipfrac (share of clipped ratios) of the last minibatch; explained_variance of the returns by V;
train_return and train_length of the episodes that ended in the rollout.
"""

from __future__ import annotations

from manyseeds.command import parse

from dataclasses import dataclass
from typing import Annotated, NamedTuple

import torch
from torch import Tensor

from manyseeds import envs
from manyseeds.algos.kernels import Terms, gae_estimate, takes
from manyseeds.algos.kernels import ppo as kernel
from manyseeds.capture import captured, from_host
from manyseeds.checkpoint import loader
from manyseeds.cli import (
    Fraction,
    NonNegative,
    PerRow,
    Positive,
    PositiveInt,
    Range,
    read_presets,
)
from manyseeds.distributions import Categorical, Gaussian
from manyseeds.kernels import in_c, scan
from manyseeds.kernels.rollout import PolicyKernel
from manyseeds.layers import RewardScale, SeedMLP, SeedPolicy
from manyseeds.optim import SeedAdam
from manyseeds.rows import broadcast, used
from manyseeds.runs.control import RolloutConfig, Run, main
from manyseeds.samples import discounted_sums, permutations, take
from manyseeds.seeds import SeedStreams


@dataclass(frozen=True, kw_only=True)
class Config(RolloutConfig):
    """PPO. CleanRL's defaults without entropy bonus, value clipping and factor 0.5 on V's loss."""

    # Core 1: a rollout is T steps of N environments in parallel.
    num_envs: PositiveInt = 4
    """N, environments per seed."""
    num_steps: PositiveInt = 128
    """T, steps per environment in a rollout."""
    minibatch_size: PositiveInt = 128
    """M, samples per gradient step. M must divide B = N * T."""
    epochs: PositiveInt = 4
    """Passes over the samples of each rollout."""
    learning_rate: PerRow[Positive] = 2.5e-4
    """Learning rate of Adam."""
    anneal_lr: PerRow[bool] = True
    """Anneal the learning rate linearly to 0."""
    gamma: PerRow[Fraction] = 0.99
    """Discount factor per step."""
    gae_lambda: PerRow[Fraction] = 0.95
    """Lambda of GAE. 0 gives the one-step TD error, 1 the Monte Carlo advantage."""
    clip_range: PerRow[NonNegative] = 0.2
    """Epsilon of the clipped objective (0: no clipping)."""
    anneal_clip: PerRow[bool] = False
    """Anneal the clip range linearly to 0."""
    clip_value_range: PerRow[NonNegative] = 0.0
    """Largest change of the value prediction (0: no clipping)."""
    normalize_advantage: bool = True
    """Normalise advantages to mean 0 and standard deviation 1 for each gradient step."""
    entropy_coef: PerRow[NonNegative] = 0.0
    """c2, weight of the entropy bonus."""
    value_coef: PerRow[NonNegative] = 0.5
    """c1, weight of the value loss."""
    max_grad_norm: PerRow[NonNegative] = 0.5
    """Clip each seed's gradient to this norm (0: no clipping)."""
    target_kl: PerRow[NonNegative] = 0.0
    """Limit on the mean KL of an update, in nats (0: no limit). A seed's epochs stop early once its
    approximate KL exceeds 1.5 times this."""
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


def policy_loss(ratio: Tensor, advantages: Tensor, clip_range: Tensor | None) -> Tensor:
    """-L_clip (eq. 7) per seed, [S], of ratio and advantages [S, M]. No range: -E[ratio A]."""
    if clip_range is None:
        return -(ratio * advantages).mean(-1)
    clip_range = broadcast(clip_range, ratio)
    # Core 8: the smaller of the two. Outside the range a sample has a gradient only if its ratio
    # has moved against its advantage.
    clipped = ratio.clamp(1 - clip_range, 1 + clip_range)
    return -torch.minimum(ratio * advantages, clipped * advantages).mean(-1)


def value_loss(
    values: Tensor, old_values: Tensor, returns: Tensor, clip_value_range: float | Tensor
) -> Tensor:
    """Mean squared error of V per seed, [S]. clip_value_range: bound of V's change (0: none)."""
    if used(clip_value_range):
        # Core 9: off by default. The clipped value's error, as in SB3 (CleanRL: the larger one).
        clip = broadcast(clip_value_range, values)
        values = old_values + (values - old_values).clamp(-clip, clip)
    return (values - returns).square().mean(-1)


class Batch(NamedTuple):
    """Samples: all of a rollout, [S, B, ...], or those of a gradient step, [S, M, ...]."""

    obs: Tensor
    actions: Tensor
    logprobs: Tensor  # of pi_old
    values: Tensor  # V_old
    advantages: Tensor
    returns: Tensor


@in_c(gae_estimate, takes)
def estimate(
    agent: ActorCritic, rollout: envs.Rollout, rewards: Tensor, config: Config
) -> tuple[Tensor, Tensor, Tensor]:
    """Log-probabilities, values and advantages, [S, B] each, of a rollout's samples."""
    logprobs, _, values = agent.evaluate(rollout.obs.flatten(1, 2), rollout.actions.flatten(1, 2))
    next_values = agent.value(rollout.next_obs.flatten(1, 2))
    ends = (rollout.terminated, rollout.truncated)
    steps = rewards, values.view_as(rewards), next_values.view_as(rewards), *ends  # [S, T, N] each
    return logprobs, values, gae(*steps, config.gamma, config.gae_lambda).flatten(1, 2)


@torch.no_grad()
def prepare(agent: ActorCritic, rollout: envs.Rollout, config: Config) -> Batch:
    """The samples of a rollout with their advantages, returns and what else the loss needs."""
    rewards = rollout.rewards
    if agent.reward_scale is not None:
        rewards = agent.reward_scale(rewards, rollout.done)
    logprobs, values, advantages = estimate(agent, rollout, rewards, config)
    # Core 5: GAE. The returns are advantages plus values, the TD(lambda) estimate.
    returns = advantages + values
    obs, actions = rollout.obs.flatten(1, 2), rollout.actions.flatten(1, 2)
    return Batch(obs, actions, logprobs, values, advantages, returns)


def loss(
    agent: ActorCritic, batch: Batch, config: Config, clip_range: Tensor | None
) -> tuple[Tensor, Terms]:
    """-L of a batch, [S], and its terms."""
    # Continuous 5: of the actions as sampled; the environment clips them to its bounds.
    logprobs, entropy, values = agent.evaluate(batch.obs, batch.actions)
    ratio = (logprobs - batch.logprobs).exp()
    # Core 7: over the samples of each gradient step; the sample standard deviation (ddof 1).
    advantages = normalize(batch.advantages) if config.normalize_advantage else batch.advantages
    pg_loss = policy_loss(ratio, advantages, clip_range)
    v_loss = value_loss(values, batch.values, batch.returns, config.clip_value_range)
    # Core 10: one loss, with the entropy as a bonus.
    total = pg_loss + broadcast(config.value_coef, v_loss) * v_loss
    if used(config.entropy_coef):
        total = total - broadcast(config.entropy_coef, v_loss) * entropy.mean(-1)
    return total, Terms(*(x.detach() for x in (pg_loss, v_loss, entropy, logprobs)))


@in_c(kernel.gradient, takes)
def backpropagate(
    agent: ActorCritic, batch: Batch, config: Config, clip_range: Tensor | None
) -> Terms:
    """Set the gradients of -L of a batch; returns its terms."""
    total, terms = loss(agent, batch, config, clip_range)
    total.sum().backward()
    return terms


def approximate_kl(logprobs: Tensor, old_logprobs: Tensor) -> Tensor:
    """KL(pi_old || pi) per seed, [S], from samples [S, M]: the mean of ratio - 1 - log ratio."""
    # k3 of http://joschu.net/blog/kl-approx.html: unbiased, and never negative.
    log_ratio = logprobs - old_logprobs
    return (log_ratio.exp() - 1 - log_ratio).mean(-1)


def metrics_of(terms: Terms, batch: Batch, clip_range: Tensor | None) -> dict[str, Tensor]:
    """The logged metrics of a batch, each [S]."""
    # Core 12: the debug variables.
    metrics = {
        "policy_loss": terms.policy_loss,
        "value_loss": terms.value_loss,
        "entropy": terms.entropy.mean(-1),
        "approx_kl": approximate_kl(terms.logprobs, batch.logprobs),
    }
    if clip_range is not None:
        ratio = (terms.logprobs - batch.logprobs).exp()
        clipped = (ratio - 1).abs() > broadcast(clip_range, ratio)
        metrics["clipfrac"] = clipped.float().mean(-1)
    return metrics


@in_c(kernel.update, takes)
def update(
    agent: ActorCritic,
    optimizer: SeedAdam,
    batch: Batch,
    shuffle: Tensor,
    config: Config,
    lr: Tensor,
    clip_range: Tensor | None,
) -> dict[str, Tensor]:
    """All epochs over one rollout, in orders of the uniforms shuffle [S, epochs, B]; returns the
    metrics, each [S]."""
    if not used(config.clip_range):
        clip_range = None
    active = torch.ones(len(shuffle), dtype=torch.bool, device=shuffle.device)
    # Core 6: every epoch visits all samples once, in an order of its own, minibatch by minibatch.
    M = config.minibatch
    for order in permutations(shuffle).unbind(1):
        shuffled = Batch(*(take(x, order) for x in batch))
        for start in range(0, order.shape[1], M):
            minibatch = Batch(*(x[:, start : start + M] for x in shuffled))
            terms = backpropagate(agent, minibatch, config, clip_range)
            if used(config.target_kl):
                # A seed whose KL is too large (SB3's factor of 1.5) takes neither this step nor any
                # other until the next rollout, and its optimizer's moments do not change.
                kl = approximate_kl(terms.logprobs, minibatch.logprobs)
                active = active & (kl <= broadcast(1.5 * config.target_kl, kl))
            # Core 11: clip the norm of each seed's whole gradient, policy and value together.
            optimizer.step(lr, config.max_grad_norm, active)
    metrics = metrics_of(terms, minibatch, clip_range)  # of the last minibatch
    return metrics | {"explained_variance": explained_variance(batch.values, batch.returns)}


def train(config: Config, run: Run) -> ActorCritic:
    """Train all seeds of a run; returns their policies."""
    S, T, N = len(run.seeds), config.num_steps, config.num_envs
    env = config.make_env()
    agent = run.begin_with(ActorCritic(env.spec, config, run.streams("init"))).to(run.device)
    # Core 3: Adam's epsilon (PyTorch's default: 1e-8).
    optimizer = SeedAdam(agent, eps=1e-5)
    episodes = envs.EpisodeTracker(S, N, run.device)

    # On CUDA the iteration is recorded once as a graph, so all that changes is an argument.
    @captured(run.device, env.native)
    def iteration(
        state: envs.State,
        obs: Tensor,
        noise: tuple[Tensor, Tensor],
        shuffle: Tensor,
        lr: Tensor,
        clip_range: Tensor,
        first: bool,
    ) -> tuple[envs.State, Tensor, dict[str, Tensor]]:
        state, obs, rollout = envs.rollout(env, agent, state, obs, *noise)
        # Statistics are updated after the gradient update, which thus begins at the policy that
        # acted; but before the first one, so that none is computed from raw observations.
        if agent.obs_stats is not None and first:
            agent.obs_stats.update(rollout.obs.flatten(1, 2))
        batch = prepare(agent, rollout, config)
        metrics = update(agent, optimizer, batch, shuffle, config, lr, clip_range)
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
        clip_range = config.clip_range * (1 - config.anneal_clip * progress)
        # Noise is drawn beforehand, from each seed's own stream: no seed depends on another.
        state, obs, metrics = iteration(
            state,
            obs,
            (agent.draw(streams, T, N), streams.uniform(T, N, env.noise_size)),  # [S, T, N, ...]
            streams.uniform(config.epochs, config.batch_size),
            from_host(lr, run.device),
            from_host(clip_range, run.device),
            timestep == 0,
        )
        timestep += config.batch_size
        run.log(timestep, metrics)
        run.evaluate_if_due(timestep, env, agent)
        run.save_if_due(timestep, state, obs)
    return agent


load = loader(Config, ActorCritic)
PRESETS = read_presets("algos/presets/ppo.toml")

if __name__ == "__main__":
    main(parse(Config, PRESETS, __doc__), train, PRESETS)
