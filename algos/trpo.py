"""Trust Region Policy Optimization (Schulman et al., 2015, arXiv 1502.05477).

    python algos/trpo.py --env CartPole-v1
    python algos/trpo.py --env Pendulum-v1         continuous actions

The equations, for the data of one rollout collected by the policy pi_old:

    ratio_t = pi(a_t | s_t) / pi_old(a_t | s_t)
    maximise L = E[ ratio A ]                                                       (eq. 14)
    subject to KL = E[ KL(pi_old(. | s) || pi(. | s)) ] <= delta                    (eq. 14)
    g = grad L,  H = Hessian of KL, both at pi_old: the Fisher matrix               (appendix C)
    H v = E[ J^T M J v ]: J the Jacobian of the distribution's parameters (logits, or mean and
          log_std), M the Hessian of KL in those; no matrix H is needed             (C.1)
    x = H^-1 g, the natural gradient, by conjugate gradients                        (C)
    theta = theta_old + shrink^j sqrt(2 delta / x.H x) x for the first j = 0, 1, ... with
          KL <= delta and L above that of theta_old, the line search; else theta_old  (C)

The advantages A are those of PPO (eq. 11-12 there), and a network of its own learns V.

Shapes: S seeds, T steps, N environments per seed, B = T N samples, M a minibatch, O observation
size, A discrete actions or D components of an action in a box, P parameters of one policy. A
rollout is [S, T, N, ...]. L and KL are [S], and no term mixes two seeds: the gradients of their
sums, and the products with H, are each seed's own. Vectors are [S, P], every dot product is per
seed, and seeds that have converged, or accepted a step, are masked out.

Implementation details:
 1. Policy and value have separate networks, tanh, initialised as PPO's. The step moves the policy
    only, and Adam the value only.
 2. H has the damping added to its diagonal, also in x.H x (Spinning Up, sb3-contrib).
 3. Conjugate gradients begin at 0, and end for a seed whose squared residual is below 1e-10.
 4. Where no step of the line search is accepted, the policy stays exactly as it was.
 5. The advantages of the rollout are normalised together.
 6. Then Adam (epsilon 1e-5, gradients not clipped) fits V for critic_epochs passes of shuffled
    minibatches.
 7. What PPO does, and is done here: GAE, truncation bootstraps from V of the final observation and
    termination does not, actions in a box, normalisation of observations and rewards (ppo.py 4, 11
    to 14).
 8. The statistics of observations take in the first rollout before its update, every later one
    after it. Else the first of a few large updates would fit the networks to raw observations, and
    be undone as soon as they are normalised. The untrained policy acts nearly at random on both.

Logged per update: policy_loss (-L at the policy that the update ends with), kl (likewise: at most
target_kl; 0 where nothing was accepted), line_search_success (0 or 1), step_fraction (shrink^j of
the accepted step, or 0), entropy (nats, of pi_old), value_loss (mean squared error, of the last
minibatch); explained_variance of the returns by V_old; train_return and train_length of the
episodes that ended in the rollout.

Differences from sb3-contrib's TRPO: the constraint is KL(pi_old || pi), as in the paper
(sb3-contrib: KL(pi || pi_old); H is the same); conjugate gradients begin at 0 (sb3-contrib: at
noise of 1e-4, and a gradient below the tolerance leaves that noise as the direction) and compute
all their steps, because looking at a residual would wait for the device; a KL of exactly delta
is accepted (sb3-contrib: only one below); values and log-probabilities of a rollout are computed in
one pass after it; statistics of observations are updated after the gradient update (detail 8;
sb3-contrib: every step, from the first reset on); a minibatch that would leave a remainder is
refused.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, NamedTuple

import torch
from torch import Tensor, nn

from manyseeds import envs, kernels
from manyseeds.capture import captured
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
from manyseeds.kernels import in_c, regression, scan
from manyseeds.kernels.rollout import Policy
from manyseeds.layers import RewardScale, RunningStats, SeedMLP
from manyseeds.optim import SeedAdam, flatten_parameters, views_like
from manyseeds.rows import broadcast
from manyseeds.runs.control import Run, main
from manyseeds.samples import discounted_sums, shuffles, take
from manyseeds.seeds import SeedStreams


@dataclass(frozen=True, kw_only=True)
class Config(ControlConfig):
    """TRPO. The defaults are sb3-contrib's, its rollout of 2048 samples from two environments."""

    num_envs: PositiveInt = 2
    """N, environments per seed."""
    num_steps: PositiveInt = 1024
    """T, steps per environment in a rollout."""
    target_kl: PerRow[Positive] = 0.01
    """Largest mean KL of an update, in nats. Delta, averaged over the rollout's states."""
    cg_steps: PositiveInt = 15
    """Iterations of conjugate gradient."""
    cg_damping: PerRow[NonNegative] = 0.1
    """Damping, added to the diagonal of the Fisher matrix."""
    line_search_steps: PositiveInt = 10
    """Maximum number of step sizes in the line search."""
    line_search_shrink: Annotated[float, Range(0, 1, open_low=True)] = 0.8
    """Ratio of each step size to the one before it."""
    critic_epochs: Annotated[PositiveInt, Renamed("critic_updates")] = 10
    """Passes over each rollout to fit the value network."""
    minibatch_size: PositiveInt = 128
    """M, samples per gradient step. For V; M must divide N * T."""
    learning_rate: PerRow[Positive] = 1e-3
    """Step size. Learning rate of Adam for the value network."""
    gamma: PerRow[Fraction] = 0.99
    """Discount factor per step."""
    gae_lambda: PerRow[Fraction] = 0.95
    """Lambda of GAE. 0 gives the one-step TD error, 1 the Monte Carlo advantage."""
    normalize_advantage: bool = True
    """Normalise advantages to mean 0 and standard deviation 1. Per rollout."""
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


def kl_divergence(old: Categorical | Gaussian, new: Categorical | Gaussian) -> Tensor:
    """KL(old || new) of two of a kind, state by state, [S, B] in nats."""
    if isinstance(old, Categorical) and isinstance(new, Categorical):
        old_logprobs, logprobs = old.logits.log_softmax(-1), new.logits.log_softmax(-1)
        return (old_logprobs.exp() * (old_logprobs - logprobs)).sum(-1)
    assert isinstance(old, Gaussian)
    assert isinstance(new, Gaussian)
    ratio = (2 * (old.log_std - new.log_std)).exp()  # of the variances
    z = (old.mean - new.mean) * (-new.log_std).exp()
    return (0.5 * (ratio - 1 + z.square()) + new.log_std - old.log_std).sum(-1)


class ActorCritic(nn.Module):
    """S policies and S value functions: two tanh networks a seed."""

    def __init__(self, spec: envs.EnvSpec, config: Config, init: SeedStreams) -> None:
        super().__init__()
        assert spec.obs_size is not None
        S = len(init.seeds)
        self.continuous = spec.continuous
        self.action_size = len(spec.action_low) if spec.continuous else spec.num_actions
        # One module each: the policy's step and the optimizer of the values own what they move.
        self.actor = SeedMLP(S, spec.obs_size, config.hidden, (self.action_size,), "tanh")
        self.critic = SeedMLP(S, spec.obs_size, config.hidden, (1,), "tanh")
        self.actor.orthogonal_init(init, gains=(0.01,))
        self.critic.orthogonal_init(init, gains=(1.0,))
        if spec.continuous:
            self.log_std = self.actor.constant(self.action_size, config.log_std_init)
        self.obs_stats = RunningStats(S, spec.obs_size) if config.normalize_obs else None
        self.reward_scale = None
        if config.normalize_reward:
            self.reward_scale = RewardScale(S, config.num_envs, config.gamma)

    def policy_parameters(self) -> nn.ParameterList:
        """What the policies' distributions depend on, [S, 1, ...] each."""
        parameters = [*self.actor.parameters(), *([self.log_std] if self.continuous else [])]
        return nn.ParameterList(parameters)

    def policy(self, obs: Tensor) -> Categorical | Gaussian:
        """The distributions of actions for obs [S, B, O]."""
        logits_or_means = self.actor.only(0, self.features(obs))
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
        policy = self.policy(obs)
        return policy.mode() if noise is None else policy.sample(noise)

    def as_kernel(self) -> Policy:
        """What `act` does, for rollouts in C."""
        log_std = self.log_std[:, 0] if self.continuous else None
        return self.actor.policy_in_c(self.obs_stats, log_std)

    def evaluate(self, obs: Tensor, actions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Log-probabilities of actions, entropies and values, each [S, B], for obs [S, B, O]."""
        return *self.policy(obs).logprob_and_entropy(actions), self.value(obs)

    def value(self, obs: Tensor) -> Tensor:
        """V [S, B] for obs [S, B, O]."""
        return self.critic.only(0, self.features(obs)).squeeze(-1)


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


def surrogate(logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor) -> Tensor:
    """L = E[ratio A] (eq. 14) per seed, [S]; all arguments [S, B]."""
    return ((logprobs - old_logprobs).exp() * advantages).mean(-1)


def dot(x: Tensor, y: Tensor) -> Tensor:
    """Dot products per seed, [S, 1], of x and y [S, P]."""
    # In two stages: PyTorch divides a long sum among threads, and then its bits depend on them.
    products = nn.functional.pad(x * y, (0, -x.shape[-1] % 16)).unflatten(-1, (-1, 16))
    return products.sum(-1).sum(-1, keepdim=True)


def flat(gradients: Sequence[Tensor], like: Tensor) -> Tensor:
    """The gradients of all parameters, [S, 1, ...] each, as vectors [S, P] like `like`."""
    vector = torch.zeros_like(like)
    torch._foreach_copy_(views_like(vector, gradients), list(gradients))
    return vector


def kl_hessian(policy: Categorical | Gaussian) -> Callable[..., list[Tensor]]:
    """The function v -> M v, M the Hessian of the mean KL by logits, or by mean and log_std."""
    if isinstance(policy, Categorical):
        p = policy.logits.detach().softmax(-1)  # [S, B, A]
        return lambda v: [p * (v - (p * v).sum(-1, keepdim=True)) / p.shape[1]]
    precision = (-2 * policy.log_std.detach()).exp()  # [S, 1, D]
    return lambda v, v_log_std: [precision * v / v.shape[1], 2 * v_log_std]


def fisher_vector_product(
    policy: Categorical | Gaussian, parameters: Sequence[Tensor], damping: float
) -> Callable[[Tensor], Tensor]:
    """The function v -> (H + damping I) v per seed, [S, P], H the Fisher matrix of the policies.

    H = E[J^T M J] (C.1): J takes parameters to logits, or to mean and log_std, and M is the Hessian
    of KL in those. J v is the derivative of u -> J^T u, which is linear, weighted with v.
    """
    outputs = list(policy)
    u = [torch.zeros_like(output, requires_grad=True) for output in outputs]
    weighted = torch.autograd.grad(outputs, parameters, u, create_graph=True)  # J^T u
    hessian = kl_hessian(policy)

    def product(vector: Tensor) -> Tensor:
        v = views_like(vector, parameters)
        j_v = torch.autograd.grad(weighted, u, v, retain_graph=True)
        h_v = torch.autograd.grad(outputs, parameters, hessian(*j_v), retain_graph=True)
        return flat(h_v, vector) + broadcast(damping, vector) * vector

    return product


def conjugate_gradient(
    product: Callable[[Tensor], Tensor], b: Tensor, steps: int, tolerance: float = 1e-10
) -> Tensor:
    """Solutions x [S, P] of A x = b; product(v) is A v for v [S, P], A symmetric and positive.

    A seed whose squared residual is below the tolerance stands still, whatever the others do.
    """
    x = torch.zeros_like(b)
    residual = direction = b
    square = dot(residual, residual)
    for _ in range(steps):
        active = square >= tolerance
        along = product(direction)
        length = square / dot(direction, along)
        x = torch.where(active, x + length * direction, x)
        residual = torch.where(active, residual - length * along, residual)
        new_square = dot(residual, residual)
        conjugate = residual + new_square / square * direction
        direction = torch.where(active, conjugate, direction)
        square = new_square
    return x


class Accepted(NamedTuple):
    """What a line search ends with, per seed."""

    theta: Tensor  # [S, P]
    fraction: Tensor  # of the full step, [S]; 0 where none was accepted
    objective: Tensor  # [S]
    kl: Tensor  # [S]


def line_search(
    evaluate: Callable[[Tensor], tuple[Tensor, Tensor]],
    theta: Tensor,
    step: Tensor,
    objective: Tensor,
    target_kl: float,
    shrink: float,
    tries: int,
) -> Accepted:
    """The first of theta + shrink^j step, j = 0, 1, ..., that keeps the constraint and improves.

    evaluate: objective and KL, [S] each, at parameters [S, P]. objective: at theta.
    """
    zero = torch.zeros_like(objective)
    found = Accepted(theta, zero, objective, zero)
    for j in range(tries):
        if kernels.usable(theta) and (found.fraction > 0).all():
            break  # on CUDA nothing may be read back
        candidate = theta + shrink**j * step
        new_objective, kl = evaluate(candidate)
        # False for what is not a number, too: from a gradient of 0, say.
        within = kl <= broadcast(target_kl, kl)
        accept = (found.fraction == 0) & within & (new_objective > objective)
        found = Accepted(
            torch.where(accept.unsqueeze(1), candidate, found.theta),
            found.fraction.masked_fill(accept, shrink**j),
            torch.where(accept, new_objective, found.objective),
            torch.where(accept, kl, found.kl),
        )
    return found


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


def policy_step(
    agent: ActorCritic, theta: Tensor, batch: Batch, config: Config
) -> dict[str, Tensor]:
    """Move the policies by one step within the trust region; returns its metrics, each [S].

    theta: the policies' parameters [S, P], which the agent's own are views of.
    """
    advantages = normalize(batch.advantages) if config.normalize_advantage else batch.advantages
    parameters = list(agent.policy_parameters())
    policy = agent.policy(batch.obs)
    # Cloned: log_std is a view of theta, which the line search overwrites.
    old_policy = type(policy)(*(field.detach().clone() for field in policy))
    logprobs, entropy = policy.logprob_and_entropy(batch.actions)
    objective = surrogate(logprobs, batch.logprobs, advantages)
    gradients = torch.autograd.grad(objective.sum(), parameters, retain_graph=True)
    fisher = fisher_vector_product(policy, parameters, config.cg_damping)
    direction = conjugate_gradient(fisher, flat(gradients, theta), config.cg_steps)
    curvature = dot(direction, fisher(direction))
    step = (broadcast(2 * config.target_kl, curvature) * curvature.reciprocal()).sqrt() * direction

    @torch.no_grad()
    def evaluate(candidate: Tensor) -> tuple[Tensor, Tensor]:
        theta.copy_(candidate)
        policy = agent.policy(batch.obs)
        logprobs, _ = policy.logprob_and_entropy(batch.actions)
        kl = kl_divergence(old_policy, policy).mean(-1)
        return surrogate(logprobs, batch.logprobs, advantages), kl

    found = line_search(
        evaluate,
        theta.clone(),
        step,
        objective.detach(),
        config.target_kl,
        config.line_search_shrink,
        config.line_search_steps,
    )
    theta.copy_(found.theta)
    return {
        "policy_loss": -found.objective,
        "kl": found.kl,
        "line_search_success": (found.fraction > 0).to(theta.dtype),
        "step_fraction": found.fraction,
        "entropy": entropy.detach().mean(-1),
    }


@in_c(regression.value_gradients)
def backpropagate(agent: ActorCritic, obs: Tensor, returns: Tensor) -> Tensor:
    """Set the gradients of V's mean squared error, and return it, [S]; returns [S, M]."""
    loss = (agent.value(obs) - returns).square().mean(-1)
    loss.sum().backward()
    return loss.detach()


def fit_critic(
    agent: ActorCritic, optimizer: SeedAdam, batch: Batch, shuffle: Tensor, config: Config
) -> Tensor:
    """Fit V to the returns; the uniforms shuffle [S, critic_epochs, B] order each pass's samples.

    Returns the last minibatch's mean squared error, [S].
    """
    for order in shuffles(shuffle).unbind(1):
        for indices in order.split(config.minibatch, dim=1):
            loss = backpropagate(agent, take(batch.obs, indices), take(batch.returns, indices))
            optimizer.step(config.learning_rate)
    return loss


def update(
    agent: ActorCritic,
    theta: Tensor,
    optimizer: SeedAdam,
    batch: Batch,
    shuffle: Tensor,
    config: Config,
) -> dict[str, Tensor]:
    """The policies' step on one rollout, then all passes of the values over it; metrics, [S]."""
    metrics = policy_step(agent, theta, batch, config)
    metrics["value_loss"] = fit_critic(agent, optimizer, batch, shuffle, config)
    metrics["explained_variance"] = explained_variance(batch.values, batch.returns)
    return metrics


def train(config: Config, run: Run) -> ActorCritic:
    """Train all seeds of a run; returns their policies."""
    S, T, N = len(run.seeds), config.num_steps, config.num_envs
    env = config.make_env()
    agent = run.begin_with(ActorCritic(env.spec, config, run.streams("init"))).to(run.device)
    theta = flatten_parameters(agent.policy_parameters())
    optimizer = SeedAdam(agent.critic, eps=1e-5)
    episodes = envs.EpisodeTracker(S, N, run.device)

    @captured(run.device, env.native)
    def iteration(
        state: envs.State,
        obs: Tensor,
        noise: tuple[Tensor, Tensor],
        shuffle: Tensor,
        first: bool,
    ) -> tuple[envs.State, Tensor, dict[str, Tensor]]:
        state, obs, rollout = envs.rollout(env, agent, state, obs, *noise)
        if agent.obs_stats is not None and first:
            agent.obs_stats.update(rollout.obs.flatten(1, 2))
        batch = prepare(agent, rollout, config)
        metrics = update(agent, theta, optimizer, batch, shuffle, config)
        if agent.obs_stats is not None and not first:
            agent.obs_stats.update(batch.obs)
        return state, obs, metrics | episodes.update(rollout.rewards, rollout.done)

    streams = run.streams("train")
    state, obs = env.reset(streams.uniform(N, env.initial_noise))
    timestep, state, obs = run.restore((agent, optimizer, episodes, streams), 0, state, obs)
    run.evaluate_if_due(timestep, env, agent)
    while timestep < config.total_timesteps:
        state, obs, metrics = iteration(
            state,
            obs,
            (agent.draw(streams, T, N), streams.uniform(T, N, env.noise_size)),  # [S, T, N, ...]
            streams.uniform(config.critic_epochs, config.batch_size),
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


ZOO = "rl-baselines3-zoo hyperparams/trpo.yml at 22e3ff2"
ZOO_SCORE = "sb3-contrib {}, one agent (rl-baselines3-zoo benchmark.md at 22e3ff2)"
NORMALIZED = {"normalize_obs": True, "normalize_reward": True}
PRESETS = {
    "CartPole-v1": Preset(
        {"num_envs": 2, "num_steps": 512, "minibatch_size": 512, "cg_damping": 1e-3}
        | {"gae_lambda": 0.98, "gamma": 0.99, "learning_rate": 1e-3, "critic_epochs": 20}
        | {"total_timesteps": 100_000},
        source=ZOO,
        published=ZOO_SCORE.format("500.0 +- 0.0"),
    ),
    "Acrobot-v1": Preset(
        {"num_envs": 2, "num_steps": 1024, "total_timesteps": 100_000, **NORMALIZED},
        source=ZOO,
        published=ZOO_SCORE.format("-83.1 +- 18.6"),
    ),
    "MountainCar-v0": Preset(
        {"num_envs": 2, "num_steps": 1024, "critic_epochs": 20}
        | {"total_timesteps": 100_000, **NORMALIZED},
        source=ZOO,
        published=ZOO_SCORE.format("-107.3 +- 13.2"),
    ),
    "MountainCarContinuous-v0": Preset(
        {"num_envs": 2, "num_steps": 2048, "log_std_init": 1.0}
        | {"total_timesteps": 50_000, **NORMALIZED},
        source=f"{ZOO}, log_std 1 in place of gSDE (our own search, 10 seeds, 100-109)",
        published=ZOO_SCORE.format("92.5 +- 0.4 with gSDE"),
    ),
    "Pendulum-v1": Preset(
        {"num_envs": 2, "num_steps": 1024, "gamma": 0.9, "critic_epochs": 15}
        | {"total_timesteps": 100_000},
        source=f"{ZOO}, without gSDE",
        published=ZOO_SCORE.format("-174.6 +- 127.6 with gSDE"),
    ),
}


if __name__ == "__main__":
    main(parse(Config, PRESETS, __doc__), train, PRESETS)
