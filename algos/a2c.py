"""Advantage actor-critic, A2C: the synchronous A3C (Mnih et al., 2016, arXiv 1602.01783).

    python algos/a2c.py --env CartPole-v1
    python algos/a2c.py --env Pendulum-v1          continuous actions

The equations, for the data of one rollout collected by the policy pi:

    A_t     = r_t + gamma r_{t+1} + ... + gamma^n V(s_{t+n}) - V(s_t)               (section 4)
    delta_t = r_t + gamma V(s_{t+1}) - V(s_t)
    A_t     = delta_t + gamma lambda A_{t+1}      generalised advantage (1506.02438, eq. 16)
    L       = E[ log pi(a|s) A ] - c1 (V - R)^2 + c2 entropy,   R = A + V           (section 4)
    g       = alpha g + (1 - alpha) d^2,   theta <- theta - lr d / sqrt(g + eps)    RMSprop (eq. 1)

Shapes: S seeds, T steps, N environments per seed, B = T N samples, O observation size, A discrete
actions or D components of an action in a box. A rollout is [S, T, N, ...]. Every loss is [S], and
no term mixes two seeds, so `loss.sum().backward()` gives each seed its own gradient.

Implementation details, as in SB3's A2C unless said otherwise:
 1. Orthogonal initialisation: gain sqrt(2), 0.01 for the policy head, 1 for the value head.
 2. RMSprop with alpha 0.99, eps 1e-5, without momentum: PyTorch's, whose average of squares starts
    at 0 and whose eps is added to the root (--optimizer rmsprop); TensorFlow's, whose average
    starts at 1 and whose eps is under the root as in the paper (rmsprop_tf, SB3's RMSpropTFLike);
    or Adam, eps 1e-5 (adam, SB3's use_rms_prop=False).
 3. The learning rate may fall linearly to zero (SB3's `lin_` schedules).
 4. The advantage is GAE with lambda 1 (--advantage gae), which is the return to the end of the
    episode or of the rollout, where V bootstraps, minus V; monte_carlo computes that directly.
    n_step sums --n-steps rewards before V, fewer where the episode or the rollout ends.
 5. One gradient step per rollout, on all its samples at once: no ratio, no clipping, no epochs.
 6. Advantages may be normalised per rollout, with the sample's standard deviation (ddof 1).
 7. The gradient is clipped to a norm of 0.5. Overall loss with an entropy bonus.
 8. Separate networks for policy and value, tanh.
 9. Truncation bootstraps from V of the final observation, termination does not. (SB3 adds
    gamma V(final) to the last reward, which is the same advantage.)
10. Actions in a box are Gaussian with a mean per state and a standard deviation that does not
    depend on the state, kept as its logarithm. Components are independent.
11. The environment clips such actions to its box; log-probabilities are of what was sampled.
12. Observations may be normalised by running statistics and clipped to +-10, and rewards divided by
    the standard deviation of the discounted return up to their step, clipped to +-10. Statistics
    are each seed's own, part of the checkpoint, and frozen during evaluation.

Logged per update: policy_loss, value_loss (mean squared error), entropy (nats),
explained_variance of the returns by V; train_return and train_length of the episodes that ended in
the rollout.

Differences from SB3's A2C: schedules are evaluated at the start of a rollout (SB3: at its end,
where the last update of a training can get a learning rate of zero); the statistics of observations
take in a rollout after its update, the first one before it (SB3: every step, from the first reset
on).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal, NamedTuple

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
    Renamed,
    UsageError,
    parse,
)
from manyseeds.distributions import Categorical, Gaussian
from manyseeds.kernels import in_c, scan
from manyseeds.kernels.objective import Terms, policy_gradient_objective
from manyseeds.kernels.rollout import Policy
from manyseeds.layers import RewardScale, RunningStats, SeedMLP
from manyseeds.optim import SeedAdam, SeedRMSprop
from manyseeds.rows import broadcast, used
from manyseeds.runs.control import Run, main
from manyseeds.samples import discounted_sums
from manyseeds.seeds import SeedStreams


@dataclass(frozen=True, kw_only=True)
class Config(ControlConfig):
    """A2C. The defaults are SB3's, with rl-baselines3-zoo's number of environments."""

    num_envs: PositiveInt = 8
    """N, environments per seed."""
    num_steps: PositiveInt = 5
    """T, steps per environment in a rollout."""
    learning_rate: PerRow[Positive] = 7e-4
    """Step size. Learning rate of the optimizer."""
    anneal_lr: PerRow[bool] = False
    """Anneal the learning rate linearly to 0."""
    optimizer: Literal["rmsprop", "rmsprop_tf", "adam"] = "rmsprop"
    """Optimizer. PyTorch's RMSprop, TensorFlow's RMSprop, or Adam."""
    gamma: PerRow[Fraction] = 0.99
    """Discount factor per step."""
    advantage: Literal["gae", "n_step", "monte_carlo"] = "gae"
    """Advantage estimator. monte_carlo: rewards to the end of the episode or rollout; n_step:
    n_steps rewards; both add V of the last state unless it is terminal, and subtract V. gae:
    GAE."""
    gae_lambda: PerRow[Fraction] = 1.0
    """Lambda of GAE. 0 gives the one-step TD error, 1 the Monte Carlo advantage."""
    n_steps: Annotated[PositiveInt, Renamed("td_steps")] = 3
    """n of n-step returns. At most num_steps; 1 gives the one-step TD error."""
    normalize_advantage: bool = False
    """Normalise advantages to mean 0 and standard deviation 1. Per rollout."""
    entropy_coef: PerRow[NonNegative] = 0.0
    """Weight of the entropy bonus."""
    value_coef: PerRow[NonNegative] = 0.5
    """Weight of the value loss."""
    max_grad_norm: PerRow[NonNegative] = 0.5
    """Clip each seed's gradient to this norm (0: no clipping)."""
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

    def make_env(self) -> envs.Env:
        return envs.make(self.env, observations="vector", backend=self.backend)

    def check(self) -> None:
        if self.batch_size < 2:
            raise UsageError("--num-steps 1: one environment needs at least 2 steps")
        if self.advantage == "n_step" and self.n_steps > self.num_steps:
            raise UsageError(
                f"--n-steps {self.n_steps}: must be at most num_steps = {self.num_steps}"
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


def n_step(
    rewards: Tensor,
    values: Tensor,
    next_values: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    gamma: float,
    n_steps: int,
) -> Tensor:
    """r_t + ... + gamma^{n-1} r_{t+n-1} + gamma^n V(s_{t+n}) - V(s_t), n = n_steps; [S, T, N].

    n is smaller where the episode or the rollout ends before: V of the last successor bootstraps
    there, but after a termination.
    """
    gamma = broadcast(gamma, rewards)
    one_step = rewards + gamma * next_values * ~terminated
    goes_on = ~(terminated | truncated)[:, :-1]
    targets = one_step
    for _ in range(n_steps - 1):  # n + 1 steps from here are one step, then n from the next
        longer = rewards[:, :-1] + gamma * targets[:, 1:]
        longer = torch.where(goes_on, longer, one_step[:, :-1])
        targets = torch.cat((longer, one_step[:, -1:]), dim=1)
    return targets - values


def monte_carlo(
    rewards: Tensor,
    values: Tensor,
    next_values: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    gamma: float,
) -> Tensor:
    """The return to the end of the episode or of the rollout, minus V(s_t); all [S, T, N].

    V of the last successor stands for what would follow, but after a termination.
    """
    following, returns = next_values[:, -1], []
    gamma = broadcast(gamma, following)
    for t in reversed(range(rewards.shape[1])):
        following = torch.where(truncated[:, t], next_values[:, t], following) * ~terminated[:, t]
        following = rewards[:, t] + gamma * following
        returns.append(following)
    return torch.stack(returns[::-1], dim=1) - values


def normalize(advantages: Tensor) -> Tensor:
    """Advantages [S, M] with mean 0 and standard deviation 1 per seed; a single one stays."""
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
    """The samples of a rollout, as the loss needs them; [S, B, ...]."""

    obs: Tensor
    actions: Tensor
    values: Tensor
    advantages: Tensor
    returns: Tensor


@torch.no_grad()
def prepare(agent: ActorCritic, rollout: envs.Rollout, config: Config) -> Batch:
    """Advantages, returns and what V says of a rollout."""
    S, T, N = rollout.rewards.shape
    rewards = rollout.rewards
    if agent.reward_scale is not None:
        rewards = agent.reward_scale(rewards, rollout.done)
    obs, actions = rollout.obs.flatten(1, 2), rollout.actions.flatten(1, 2)
    both = torch.cat((obs, rollout.next_obs.flatten(1, 2)), dim=1)
    values, next_values = agent.value(both).chunk(2, dim=1)
    ends = rollout.terminated, rollout.truncated
    steps = rewards, values.view(S, T, N), next_values.view(S, T, N), *ends, config.gamma
    if config.advantage == "gae":
        advantages = gae(*steps, config.gae_lambda)
    elif config.advantage == "n_step":
        advantages = n_step(*steps, config.n_steps)
    else:
        advantages = monte_carlo(*steps)
    advantages = advantages.flatten(1, 2)
    return Batch(obs, actions, values, advantages, advantages + values)


def loss(agent: ActorCritic, batch: Batch, config: Config) -> tuple[Tensor, Terms]:
    """The objective (negated) on a rollout, [S], and its terms."""
    logprobs, entropy, values = agent.evaluate(batch.obs, batch.actions)
    advantages = normalize(batch.advantages) if config.normalize_advantage else batch.advantages
    pg_loss = policy_loss(logprobs, advantages)
    v_loss = value_loss(values, batch.returns)
    total = pg_loss + broadcast(config.value_coef, v_loss) * v_loss
    if used(config.entropy_coef):
        total = total - broadcast(config.entropy_coef, v_loss) * entropy.mean(-1)
    return total, Terms(*(x.detach() for x in (pg_loss, v_loss, entropy, logprobs)))


@in_c(policy_gradient_objective)
def backpropagate(agent: ActorCritic, batch: Batch, config: Config) -> Terms:
    """Set the gradients of the objective on a rollout; returns its terms."""
    total, terms = loss(agent, batch, config)
    total.sum().backward()
    return terms


def update(
    agent: ActorCritic,
    optimizer: SeedAdam | SeedRMSprop,
    batch: Batch,
    config: Config,
    lr: Tensor,
) -> dict[str, Tensor]:
    """One gradient step on a rollout; returns its metrics, each [S]."""
    terms = backpropagate(agent, batch, config)
    optimizer.step(lr, config.max_grad_norm)
    return {
        "policy_loss": terms.policy_loss,
        "value_loss": terms.value_loss,
        "entropy": terms.entropy.mean(-1),
        "explained_variance": explained_variance(batch.values, batch.returns),
    }


def make_optimizer(agent: ActorCritic, config: Config) -> SeedAdam | SeedRMSprop:
    """The optimizer that the Config names, with SB3's settings."""
    if config.optimizer == "adam":
        return SeedAdam(agent, eps=1e-5)
    return SeedRMSprop(agent, alpha=0.99, eps=1e-5, tf=config.optimizer == "rmsprop_tf")


def train(config: Config, run: Run) -> ActorCritic:
    """Train all seeds of a run; returns their policies."""
    S, T, N = len(run.seeds), config.num_steps, config.num_envs
    env = config.make_env()
    agent = run.begin_with(ActorCritic(env.spec, config, run.streams("init"))).to(run.device)
    optimizer = make_optimizer(agent, config)
    episodes = envs.EpisodeTracker(S, N, run.device)

    @captured(run.device, env.native)
    def iteration(
        state: envs.State,
        obs: Tensor,
        noise: tuple[Tensor, Tensor],
        lr: Tensor,
        first: bool,
    ) -> tuple[envs.State, Tensor, dict[str, Tensor]]:
        state, obs, rollout = envs.rollout(env, agent, state, obs, *noise)
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
        progress = timestep / config.total_timesteps
        lr = config.learning_rate * (1 - config.anneal_lr * progress)
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


def load(part: str, trusted_env: str = "") -> ActorCritic:
    """The policies of a finished part `.../seeds-000-009`, of an export `hub:FOLDER`, or of a
    repository `hub:OWNER/NAME`; trusted_env: see `read_policy`."""
    return load_policy(part, Config, ActorCritic, trusted_env)


ZOO = "rl-baselines3-zoo hyperparams/a2c.yml at 22e3ff2"
ZOO_SCORE = "SB3 {}, one agent (rl-baselines3-zoo benchmark.md at 22e3ff2)"
NORMALIZED = {"normalize_obs": True, "normalize_reward": True}
PRESETS = {
    "CartPole-v1": Preset(
        {"num_envs": 8, "total_timesteps": 500_000},
        source=ZOO,
        published=ZOO_SCORE.format("500.0 +- 0.0"),
    ),
    "Acrobot-v1": Preset(
        {"num_envs": 16, "total_timesteps": 500_000, **NORMALIZED},
        source=ZOO,
        published=ZOO_SCORE.format("-83.4 +- 17.2"),
    ),
    "MountainCar-v0": Preset(
        {"num_envs": 16, "total_timesteps": 1_000_000, **NORMALIZED},
        source=ZOO,
        published=ZOO_SCORE.format("-111.3 +- 24.1"),
    ),
    "MountainCarContinuous-v0": Preset(
        {"num_envs": 4, "num_steps": 100, "total_timesteps": 100_000, **NORMALIZED},
        source=f"{ZOO}, without gSDE",
        published=ZOO_SCORE.format("91.2 +- 0.3 with gSDE"),
    ),
    "Pendulum-v1": Preset(
        {"num_envs": 8, "num_steps": 8, "gamma": 0.9, "gae_lambda": 0.9, "value_coef": 0.4}
        | {"learning_rate": 7e-4, "anneal_lr": True, "total_timesteps": 1_000_000}
        | {"normalize_reward": True},
        source="our own search: the best of 5 settings, 10 seeds each (100-109)",
        published=ZOO_SCORE.format("-163.0 +- 103.2 with gSDE"),
    ),
}


if __name__ == "__main__":
    main(parse(Config, PRESETS, __doc__), train, PRESETS)
