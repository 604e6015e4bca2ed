"""Proximal Policy Optimization (Schulman et al., 2017, arXiv 1707.06347).

    python algos/ppo.py --env CartPole-v1
    python algos/ppo.py --env Pendulum-v1          continuous actions

The equations, for the data of one rollout collected by the policy pi_old:

    delta_t = r_t + gamma V(s_{t+1}) - V(s_t)                                       (paper, eq. 12)
    A_t     = delta_t + gamma lambda A_{t+1}                     generalised advantage (eq. 11)
    ratio_t = pi(a_t | s_t) / pi_old(a_t | s_t)                                     (section 3)
    L_clip  = E[ min( ratio A, clip(ratio, 1 - eps, 1 + eps) A ) ]                  (eq. 7)
    L       = L_clip - c1 (V - R)^2 + c2 entropy,   R = A + V_old                   (eq. 9)

Shapes: S seeds, T steps, N environments per seed, B = T N samples, M a minibatch, O observation
size, A discrete actions or D components of an action in a box. A rollout is [S, T, N, ...]. Every
loss is [S], and no term mixes two seeds, so `loss.sum().backward()` gives each seed its own
gradient.

Implementation details, with the numbers of "The 37 Implementation Details of PPO" (Huang et al.,
2022) where they are in it:
 1. Orthogonal initialisation: gain sqrt(2), 0.01 for the policy head, 1 for the value head (#2).
 2. Adam's epsilon is 1e-5 (#3).
 3. Learning rate and clip range may fall linearly to zero (#4; SB3's `lin_` schedules).
 4. GAE, with returns as advantage + value (#5).
 5. Every epoch visits all samples once in shuffled minibatches (#6).
 6. Advantages are normalised per minibatch (#7), with the sample's standard deviation (ddof 1).
 7. The value loss may be clipped too (#9); off by default, as in SB3.
 8. Overall loss and entropy bonus (#10); the gradient is clipped to a norm of 0.5 (#11).
 9. Separate networks for policy and value, tanh (#13).
10. A seed stops its epochs early once its approximate KL exceeds 1.5 target_kl (SB3); it is
    masked out of the remaining minibatches, its optimizer moments included.
11. Truncation bootstraps from V of the final observation, termination does not (as SB3).
12. Actions in a box are Gaussian with a mean per state and a standard deviation that does not
    depend on the state, kept as its logarithm (continuous #1-3). Components are independent (#4).
13. The environment clips such actions to its box (#5); log-probabilities are of what was sampled.
14. Observations may be normalised by running statistics and clipped to +-10 (continuous #6-7), and
    rewards divided by the standard deviation of the discounted return up to their step, clipped to
    +-10 (#8-9). Statistics are each seed's own, part of the checkpoint, frozen during evaluation.

Logged per update, of the last minibatch: policy_loss, value_loss (mean squared error), entropy
(nats), approx_kl (the estimator mean(ratio - 1 - log ratio), http://joschu.net/blog/kl-approx.html)
and clipfrac (share of clipped ratios); explained_variance of the returns by V_old; train_return and
train_length of the episodes that ended in the rollout.

Differences from SB3's PPO: values and log-probabilities of a rollout are computed in one pass
after it; schedules are evaluated at the start of a rollout (SB3: at its end, where the last
update of a training can get a learning rate of zero); statistics of observations are updated after
the gradient update, by the first rollout before it (SB3: every step, from the first reset on); a
minibatch that would leave a remainder is refused.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, NamedTuple

import torch
from torch import Tensor, nn

from manyseeds import envs
from manyseeds.capture import captured, from_host
from manyseeds.checkpoint import load_policy
from manyseeds.cli import (
    ControlConfig,
    Fraction,
    NonNegative,
    PerRow,
    Positive,
    PositiveInt,
    Preset,
    Range,
    UsageError,
    parse,
)
from manyseeds.distributions import Categorical, Gaussian
from manyseeds.kernels import in_c, scan
from manyseeds.kernels.objective import Terms, clipped_objective
from manyseeds.kernels.rollout import Policy
from manyseeds.layers import RewardScale, RunningStats, SeedMLP
from manyseeds.optim import SeedAdam
from manyseeds.rows import broadcast, used
from manyseeds.runs.control import Run, main
from manyseeds.samples import discounted_sums, shuffles, take
from manyseeds.seeds import SeedStreams


@dataclass(frozen=True, kw_only=True)
class Config(ControlConfig):
    """PPO. The defaults are CleanRL's, without entropy bonus and value clipping, and with SB3's
    value loss, which lacks CleanRL's further factor of 0.5."""

    num_envs: PositiveInt = 4
    """N, environments per seed."""
    num_steps: PositiveInt = 128
    """T, steps per environment in a rollout."""
    minibatch_size: PositiveInt = 128
    """M, samples per gradient step. M must divide N * T."""
    epochs: PositiveInt = 4
    """Passes over the samples. Per rollout."""
    learning_rate: PerRow[Positive] = 2.5e-4
    """Step size. Learning rate of Adam."""
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
    """Normalise advantages to mean 0 and standard deviation 1. Per minibatch."""
    entropy_coef: PerRow[NonNegative] = 0.0
    """Weight of the entropy bonus."""
    value_coef: PerRow[NonNegative] = 0.5
    """Weight of the value loss."""
    max_grad_norm: PerRow[NonNegative] = 0.5
    """Clip each seed's gradient to this norm (0: no clipping)."""
    target_kl: PerRow[NonNegative] = 0.0
    """Largest mean KL of an update, in nats. A seed's epochs stop once its approximate KL exceeds
    1.5 times this (0: never)."""
    hidden: tuple[PositiveInt, ...] = (64, 64)
    """Widths of the hidden layers of each network."""
    log_std_init: PerRow[Annotated[float, Range(-20, 20)]] = 0.0
    """Initial log standard deviation of continuous actions."""
    normalize_obs: bool = False
    """Normalise observations by running statistics."""
    normalize_reward: bool = False
    """Divide rewards by a running standard deviation. Of the discounted return."""

    @property
    def batch_size(self) -> int:
        """B, samples of one seed's rollout."""
        return self.num_envs * self.num_steps

    @property
    def minibatch(self) -> int:
        """Samples per gradient step; SB3 too takes the rollout where it is smaller."""
        return min(self.minibatch_size, self.batch_size)

    def make_env(self) -> envs.Env:
        return envs.make(self.env, observations="vector", backend=self.backend)

    def check(self) -> None:
        if self.batch_size < 2:
            raise UsageError("--num-steps 1: one environment needs at least 2 steps")
        if self.batch_size % self.minibatch:
            raise UsageError(
                f"--minibatch-size {self.minibatch_size}: must divide num_envs * num_steps = "
                f"{self.batch_size}"
            )
        if self.total_timesteps < self.batch_size:
            raise UsageError(
                f"--total-timesteps {self.total_timesteps}: must be at least one rollout, "
                f"num_envs * num_steps = {self.batch_size}"
            )


class ActorCritic(nn.Module):
    """S policies and S value functions: two tanh networks a seed, or one with two heads."""

    def __init__(self, spec: envs.EnvSpec, config: Config, init: SeedStreams) -> None:
        super().__init__()
        assert spec.obs_size is not None
        S = len(init.seeds)
        self.continuous = spec.continuous
        self.action_size = len(spec.action_low) if spec.continuous else spec.num_actions
        heads = (self.action_size, 1)  # the logits or means of the policy, the value
        self.networks = SeedMLP(S, spec.obs_size, config.hidden, heads, "tanh")
        self.networks.orthogonal_init(init, gains=(0.01, 1.0))
        if spec.continuous:
            self.log_std = self.networks.constant(self.action_size, config.log_std_init)
        self.obs_stats = RunningStats(S, spec.obs_size) if config.normalize_obs else None
        self.reward_scale = None
        if config.normalize_reward:
            self.reward_scale = RewardScale(S, config.num_envs, config.gamma)

    def policy(self, logits_or_means: Tensor) -> Categorical | Gaussian:
        """The distributions that the policy's head [S, B, A or D] stands for."""
        if self.continuous:
            return Gaussian(logits_or_means, self.log_std[:, 0])
        return Categorical(logits_or_means)

    def features(self, obs: Tensor) -> Tensor:
        """What the networks see of obs [S, B, O]."""
        return obs if self.obs_stats is None else self.obs_stats.normalize(obs)

    def draw(self, streams: SeedStreams, *shape: int) -> Tensor:
        """Noise [S, *shape, A or D] for sampled actions."""
        draw = streams.normal if self.continuous else streams.gumbel
        return draw(*shape, self.action_size)

    def act(self, obs: Tensor, noise: Tensor | None = None) -> Tensor:
        """Actions [S, N] or [S, N, D] for obs [S, N, O]; greedy without noise."""
        policy = self.policy(self.networks.only(0, self.features(obs)))
        return policy.mode() if noise is None else policy.sample(noise)

    def as_kernel(self) -> Policy:
        """What `act` does, for rollouts in C."""
        log_std = self.log_std[:, 0] if self.continuous else None
        return self.networks.policy_in_c(self.obs_stats, log_std)

    def evaluate(self, obs: Tensor, actions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Log-probabilities of actions, entropies and values, each [S, B], for obs [S, B, O]."""
        head, values = self.networks(self.features(obs))
        return *self.policy(head).logprob_and_entropy(actions), values.squeeze(-1)

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
    gamma: float,
    gae_lambda: float,
) -> Tensor:
    """Generalised advantage estimates (Schulman et al., 2016, eq. 16), all [S, T, N].

    next_values: V of the true successors. A termination is not bootstrapped, a truncation is;
    neither lets an advantage reach back across the end of its episode.
    """
    deltas = rewards + broadcast(gamma, rewards) * next_values * ~terminated - values
    goes_on = (~(terminated | truncated)).to(deltas.dtype)
    decay = broadcast(gamma * gae_lambda, goes_on) * goes_on
    return discounted_sums(deltas, decay)


def normalize(advantages: Tensor) -> Tensor:
    """Advantages [S, M] with mean 0 and standard deviation 1 per seed; a single one stays."""
    if advantages.shape[-1] == 1:
        return advantages
    centered = advantages - advantages.mean(-1, keepdim=True)
    return centered / (advantages.std(-1, keepdim=True) + 1e-8)


def explained_variance(values: Tensor, returns: Tensor) -> Tensor:
    """1 - Var(returns - values) / Var(returns) per seed, [S]; values and returns [S, B]."""
    return 1 - (returns - values).var(-1) / returns.var(-1)


def policy_loss(ratio: Tensor, advantages: Tensor, clip_range: Tensor | None) -> Tensor:
    """-L_clip (eq. 7) per seed, [S]; ratio and advantages [S, M]; without range -E[ratio A]."""
    if clip_range is None:
        return -(ratio * advantages).mean(-1)
    clip_range = broadcast(clip_range, ratio)
    clipped = ratio.clamp(1 - clip_range, 1 + clip_range)
    return -torch.minimum(ratio * advantages, clipped * advantages).mean(-1)


def value_loss(values: Tensor, old_values: Tensor, returns: Tensor, clip_range: float) -> Tensor:
    """Mean squared error per seed, [S]; the change since the rollout clipped if clip_range > 0."""
    if used(clip_range):
        clip_range = broadcast(clip_range, values)
        values = old_values + (values - old_values).clamp(-clip_range, clip_range)
    return (values - returns).square().mean(-1)


class Batch(NamedTuple):
    """The samples of a rollout, as the loss needs them; [S, B, ...]."""

    obs: Tensor
    actions: Tensor
    logprobs: Tensor  # of pi_old
    values: Tensor  # V_old
    advantages: Tensor
    returns: Tensor


@torch.no_grad()
def prepare(agent: ActorCritic, rollout: envs.Rollout, config: Config) -> Batch:
    """Advantages, returns and what pi_old and V_old say of a rollout."""
    S, T, N = rollout.rewards.shape
    rewards = rollout.rewards
    if agent.reward_scale is not None:
        rewards = agent.reward_scale(rewards, rollout.done)
    obs, actions = rollout.obs.flatten(1, 2), rollout.actions.flatten(1, 2)
    logprobs, _, values = agent.evaluate(obs, actions)
    next_values = agent.value(rollout.next_obs.flatten(1, 2)).view(S, T, N)
    steps = rewards, values.view(S, T, N), next_values, rollout.terminated, rollout.truncated
    advantages = gae(*steps, config.gamma, config.gae_lambda).flatten(1, 2)
    return Batch(obs, actions, logprobs, values, advantages, advantages + values)


def loss(
    agent: ActorCritic, batch: Batch, config: Config, clip_range: Tensor | None
) -> tuple[Tensor, Terms]:
    """The objective (eq. 9, negated) on a minibatch, [S], and its terms."""
    logprobs, entropy, values = agent.evaluate(batch.obs, batch.actions)
    ratio = (logprobs - batch.logprobs).exp()
    advantages = normalize(batch.advantages) if config.normalize_advantage else batch.advantages
    pg_loss = policy_loss(ratio, advantages, clip_range)
    v_loss = value_loss(values, batch.values, batch.returns, config.clip_value_range)
    total = pg_loss + broadcast(config.value_coef, v_loss) * v_loss
    if used(config.entropy_coef):
        total = total - broadcast(config.entropy_coef, v_loss) * entropy.mean(-1)
    return total, Terms(*(x.detach() for x in (pg_loss, v_loss, entropy, logprobs)))


@in_c(clipped_objective)
def backpropagate(
    agent: ActorCritic, batch: Batch, config: Config, clip_range: Tensor | None
) -> Terms:
    """Set the gradients of the objective on a minibatch; returns its terms."""
    total, terms = loss(agent, batch, config, clip_range)
    total.sum().backward()
    return terms


def approximate_kl(logprobs: Tensor, old_logprobs: Tensor) -> Tensor:
    """KL(pi_old, pi) per seed, [S], from samples [S, M]: the mean of ratio - 1 - log ratio."""
    log_ratio = logprobs - old_logprobs
    return (log_ratio.exp() - 1 - log_ratio).mean(-1)


def metrics_of(terms: Terms, batch: Batch, clip_range: Tensor | None) -> dict[str, Tensor]:
    """What is logged of a minibatch, each [S]."""
    metrics = {
        "policy_loss": terms.policy_loss,
        "value_loss": terms.value_loss,
        "entropy": terms.entropy.mean(-1),
        "approx_kl": approximate_kl(terms.logprobs, batch.logprobs),
    }
    if clip_range is not None:
        deviations = ((terms.logprobs - batch.logprobs).exp() - 1).abs()
        clipped = deviations > broadcast(clip_range, deviations)
        metrics["clipfrac"] = clipped.float().mean(-1)
    return metrics


def update(
    agent: ActorCritic,
    optimizer: SeedAdam,
    batch: Batch,
    shuffle: Tensor,
    config: Config,
    lr: Tensor,
    clip_range: Tensor,
) -> dict[str, Tensor]:
    """All epochs over one rollout; the uniforms shuffle [S, epochs, B] order each epoch's samples.

    Returns the metrics of the last minibatch and the explained variance, each [S].
    """
    clip = clip_range if used(config.clip_range) else None
    active = torch.ones(len(shuffle), dtype=torch.bool, device=shuffle.device)
    for order in shuffles(shuffle).unbind(1):
        shuffled = [take(x, order).split(config.minibatch, dim=1) for x in batch]
        for fields in zip(*shuffled, strict=True):
            minibatch = Batch(*fields)  # [S, M, ...]
            terms = backpropagate(agent, minibatch, config, clip)
            if used(config.target_kl):
                kl = approximate_kl(terms.logprobs, minibatch.logprobs)
                active = active & (kl <= broadcast(1.5 * config.target_kl, kl))
            optimizer.step(lr, config.max_grad_norm, active)
    metrics = metrics_of(terms, minibatch, clip)
    return metrics | {"explained_variance": explained_variance(batch.values, batch.returns)}


def train(config: Config, run: Run) -> ActorCritic:
    """Train all seeds of a run; returns their policies."""
    S, T, N = len(run.seeds), config.num_steps, config.num_envs
    env = config.make_env()
    agent = run.begin_with(ActorCritic(env.spec, config, run.streams("init"))).to(run.device)
    optimizer = SeedAdam(agent, eps=1e-5)
    episodes = envs.EpisodeTracker(S, N, run.device)

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
        progress = timestep / config.total_timesteps
        lr = config.learning_rate * (1 - config.anneal_lr * progress)
        clip_range = config.clip_range * (1 - config.anneal_clip * progress)
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


def load(part: str, trusted_env: str = "") -> ActorCritic:
    """The policies of a finished part `.../seeds-000-009`, of an export `hub:FOLDER`, or of a
    repository `hub:OWNER/NAME`; trusted_env: see `read_policy`."""
    return load_policy(part, Config, ActorCritic, trusted_env)


ZOO = "rl-baselines3-zoo hyperparams/ppo.yml at 22e3ff2"
ZOO_SCORE = "SB3 {}, one agent (rl-baselines3-zoo benchmark.md at 22e3ff2)"
NORMALIZED = {"normalize_obs": True, "normalize_reward": True}
PRESETS = {
    "CartPole-v1": Preset(
        {"num_envs": 8, "num_steps": 32, "minibatch_size": 256, "epochs": 20, "gamma": 0.98}
        | {"gae_lambda": 0.8, "learning_rate": 1e-3, "anneal_lr": True, "clip_range": 0.2}
        | {"anneal_clip": True, "total_timesteps": 100_000},
        source=ZOO,
        published=ZOO_SCORE.format("500.0 +- 0.0"),
    ),
    "Acrobot-v1": Preset(
        {"num_envs": 16, "num_steps": 256, "minibatch_size": 64, "epochs": 4, "gamma": 0.99}
        | {"gae_lambda": 0.94, "learning_rate": 3e-4, "anneal_lr": False}
        | {"total_timesteps": 1_000_000, **NORMALIZED},
        source=ZOO,
        published=ZOO_SCORE.format("-73.5 +- 18.2"),
    ),
    "MountainCar-v0": Preset(
        {"num_envs": 16, "num_steps": 32, "minibatch_size": 256, "epochs": 10, "gamma": 0.99}
        | {"gae_lambda": 0.8233, "learning_rate": 0.001562, "anneal_lr": False}
        | {"clip_range": 0.1482, "total_timesteps": 1_000_000, **NORMALIZED},
        source="our own search: the best of 13 settings, 5 seeds each (100-104)",
        published=ZOO_SCORE.format("-110.4 +- 19.5"),
    ),
    "MountainCarContinuous-v0": Preset(
        {"num_envs": 8, "num_steps": 256, "minibatch_size": 256, "epochs": 10, "gamma": 0.999}
        | {"gae_lambda": 0.98, "learning_rate": 1e-3, "anneal_lr": False, "log_std_init": 1.0}
        | {"total_timesteps": 100_000, **NORMALIZED},
        source="our own search: the best of 6 settings, 10 seeds each (100-109)",
        published=ZOO_SCORE.format("88.3 +- 2.6 with gSDE at 20k timesteps"),
    ),
    "Pendulum-v1": Preset(
        {"num_envs": 8, "num_steps": 512, "minibatch_size": 256, "epochs": 20, "gamma": 0.99}
        | {"gae_lambda": 0.9089, "learning_rate": 0.0008902, "anneal_lr": False}
        | {"clip_range": 0.3341, "entropy_coef": 0.01, "log_std_init": 0.3448}
        | {"total_timesteps": 100_000, "normalize_reward": True},
        source="our own search: the best of 29 settings, 10 seeds each (100-109)",
        published=ZOO_SCORE.format("-172.2 +- 104.2 with gSDE"),
    ),
}


if __name__ == "__main__":
    main(parse(Config, PRESETS, __doc__), train, PRESETS)
