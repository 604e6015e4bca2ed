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

The advantages A are GAE, as in ppo.py (`Core 5` is detail 5 of "The 37 Implementation Details of
PPO", Huang et al., 2022), and a separate network learns V.

Differences from sb3-contrib's TRPO: the constraint is KL(pi_old || pi), as in the paper
(sb3-contrib: KL(pi || pi_old); H is the same). Conjugate gradients start at 0 (sb3-contrib: at
noise of 1e-4) and always run all steps, because checking the residual would wait for the device. A
KL of exactly delta is accepted. Values and log-probabilities of a rollout are computed in one pass
after it. The first rollout updates the observation statistics before its gradient update, all
others after it (sb3-contrib: at every step). A minibatch size that leaves a remainder is refused.

Shapes: S seeds, T steps, N environments per seed, B = T N samples, M per gradient step, O
observation size, A discrete actions or D components of a continuous action, P parameters of one
policy. A rollout is [S, T, N, ...]. L and KL are [S], and no term mixes two seeds: the gradients of
their sums, and the products with H, are each seed's own. Vectors are [S, P], every dot product is
per seed, and seeds that have converged, or accepted a step, are masked out. A hyperparameter is a
number, or [S] where the seeds differ in it: `broadcast` reshapes it to be multiplied with a tensor.
`@in_c` names a C kernel that runs in the place of a function until that is edited.

Logged per update: policy_loss (-L at the policy that the update ends with), kl (likewise: at most
target_kl; 0 where nothing was accepted), line_search_success (0 or 1), step_fraction (shrink^j of
the accepted step, or 0), entropy (nats, of pi_old), value_loss (mean squared error, of the last
minibatch); explained_variance of the returns by V; train_return and train_length of the episodes
that ended in the rollout.
"""

from __future__ import annotations

from manyseeds.command import parse

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, NamedTuple

import torch
from torch import Tensor, nn

from manyseeds import envs, kernels
from manyseeds.algos.kernels import gae_estimate, takes
from manyseeds.algos.kernels import trpo as kernel
from manyseeds.capture import captured
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
from manyseeds.kernels import in_c, regression, scan
from manyseeds.kernels.rollout import PolicyKernel
from manyseeds.layers import RewardScale, SeedMLP, SeedPolicy
from manyseeds.optim import SeedAdam, flatten_parameters, views_like
from manyseeds.rows import broadcast
from manyseeds.runs.control import RolloutConfig, Run, main
from manyseeds.samples import discounted_sums, permutations, take
from manyseeds.seeds import SeedStreams


@dataclass(frozen=True, kw_only=True)
class Config(RolloutConfig):
    """TRPO. The defaults are sb3-contrib's, its rollout of 2048 samples from two environments."""

    num_envs: PositiveInt = 2
    """N, environments per seed."""
    num_steps: PositiveInt = 1024
    """T, steps per environment in a rollout."""
    target_kl: PerRow[Positive] = 0.01
    """Delta, the largest mean KL of an update over the rollout's states, in nats."""
    cg_steps: PositiveInt = 15
    """Iterations of conjugate gradient."""
    cg_damping: PerRow[NonNegative] = 0.1
    """Added to the diagonal of the Fisher matrix."""
    line_search_steps: PositiveInt = 10
    """Maximum number of step sizes in the line search."""
    line_search_shrink: Annotated[float, Range(0, 1, open_low=True)] = 0.8
    """Ratio of each step size to the one before it."""
    critic_epochs: PositiveInt = 10
    """Passes over each rollout to fit the value network."""
    minibatch_size: PositiveInt = 128
    """M, samples per gradient step of V. M must divide B = N * T."""
    learning_rate: PerRow[Positive] = 1e-3
    """Learning rate of Adam, for the value network."""
    gamma: PerRow[Fraction] = 0.99
    """Discount factor per step."""
    gae_lambda: PerRow[Fraction] = 0.95
    """Lambda of GAE. 0 gives the one-step TD error, 1 the Monte Carlo advantage."""
    normalize_advantage: bool = True
    """Normalise advantages to mean 0 and standard deviation 1 for each gradient step."""
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
        super().__init__(S, spec, config.normalize_obs)
        # One module each: the policy's step moves the actor, the optimizer the critic.
        self.actor = SeedMLP(S, self.obs_size, config.hidden, (self.action_size,), "tanh")
        self.critic = SeedMLP(S, self.obs_size, config.hidden, (1,), "tanh")
        # Orthogonal weights of gain sqrt(2), 0.01 for the policy's head, 1 for the value's, as PPO.
        self.actor.orthogonal_init(init, gains=(0.01,))
        self.critic.orthogonal_init(init, gains=(1.0,))
        if self.continuous:
            # Gaussian, log_std the same in all states, independent components.
            self.log_std = self.actor.constant(self.action_size, config.log_std_init)
        self.reward_scale = None
        if config.normalize_reward:
            # Rewards divided by the return's deviation so far, clipped to +-10.
            self.reward_scale = RewardScale(S, config.num_envs, config.gamma)

    def policy_parameters(self) -> nn.ParameterList:
        """What the policies' distributions depend on, [S, 1, ...] each."""
        log_std = [] if self.log_std is None else [self.log_std]
        return nn.ParameterList([*self.actor.parameters(), *log_std])

    def policy(self, obs: Tensor) -> Categorical | Gaussian:
        """The distributions of actions for obs [S, B, O]."""
        return self.distribution(self.actor.only(0, self.features(obs)))

    def as_kernel(self) -> PolicyKernel:
        """What `act` does, for rollouts in C."""
        return self.actor.policy_in_c(self.obs_stats, self.log_std)

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


def kl_divergence(old: Categorical | Gaussian, new: Categorical | Gaussian) -> Tensor:
    """KL(old || new) of two distributions of one kind, [S, B] in nats."""
    if isinstance(old, Categorical) and isinstance(new, Categorical):
        old_logprobs, logprobs = old.logits.log_softmax(-1), new.logits.log_softmax(-1)
        return (old_logprobs.exp() * (old_logprobs - logprobs)).sum(-1)
    assert isinstance(old, Gaussian)
    assert isinstance(new, Gaussian)
    ratio = (2 * (old.log_std - new.log_std)).exp()  # of the variances
    z = (old.mean - new.mean) * (-new.log_std).exp()
    return (0.5 * (ratio - 1 + z.square()) + new.log_std - old.log_std).sum(-1)


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
    policy: Categorical | Gaussian, parameters: Sequence[Tensor], damping: float | Tensor
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
        # Damped, also in x.H x (as in Spinning Up and sb3-contrib).
        return flat(h_v, vector) + broadcast(damping, vector) * vector

    return product


def conjugate_gradient(
    product: Callable[[Tensor], Tensor], b: Tensor, steps: int, tolerance: float = 1e-10
) -> Tensor:
    """Solutions x [S, P] of A x = b; product(v) is A v for v [S, P], A symmetric and positive.

    A seed whose squared residual is below the tolerance keeps its x, whatever the others do.
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
    target_kl: float | Tensor,
    shrink: float,
    tries: int,
) -> Accepted:
    """The first of theta + shrink^j step, j = 0, 1, ..., that keeps the constraint and improves.

    evaluate: objective and KL, [S] each, at parameters [S, P]. objective: at theta.
    """
    zero = torch.zeros_like(objective)
    # Where no step is accepted, the policy stays exactly as it was.
    best = Accepted(theta, zero, objective, zero)
    for j in range(tries):
        if kernels.usable(theta) and (best.fraction > 0).all():
            break  # on CUDA nothing may be read back
        candidate = theta + shrink**j * step
        new_objective, kl = evaluate(candidate)
        # False for NaN, too, which a gradient of 0 leads to.
        within = kl <= broadcast(target_kl, kl)
        accept = (best.fraction == 0) & within & (new_objective > objective)
        best = Accepted(
            torch.where(accept.unsqueeze(1), candidate, best.theta),
            best.fraction.masked_fill(accept, shrink**j),
            torch.where(accept, new_objective, best.objective),
            torch.where(accept, kl, best.kl),
        )
    return best


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


@in_c(kernel.policy_step, takes)
def policy_step(
    agent: ActorCritic, theta: Tensor, batch: Batch, config: Config
) -> dict[str, Tensor]:
    """Move the policies by one step within the trust region; returns its metrics, each [S].

    theta: the policies' parameters [S, P], which the agent's own are views of.
    """
    # Over the rollout, by the sample standard deviation (ddof 1).
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

    accepted = line_search(
        evaluate,
        theta.clone(),
        step,
        objective.detach(),
        config.target_kl,
        config.line_search_shrink,
        config.line_search_steps,
    )
    theta.copy_(accepted.theta)
    return {
        "policy_loss": -accepted.objective,
        "kl": accepted.kl,
        "line_search_success": (accepted.fraction > 0).to(theta.dtype),
        "step_fraction": accepted.fraction,
        "entropy": entropy.detach().mean(-1),
    }


@in_c(regression.value_gradients)
def backpropagate(agent: ActorCritic, obs: Tensor, returns: Tensor) -> Tensor:
    """Set the gradients of V's mean squared error, and return it, [S]; returns [S, M]."""
    loss = (agent.value(obs) - returns).square().mean(-1)
    loss.sum().backward()
    return loss.detach()


@in_c(kernel.fit_critic, takes)
def fit_critic(
    agent: ActorCritic, optimizer: SeedAdam, batch: Batch, shuffle: Tensor, config: Config
) -> Tensor:
    """Fit V to the returns; the uniforms shuffle [S, critic_epochs, B] order each pass's samples.

    Returns the last minibatch's mean squared error, [S].
    """
    for order in permutations(shuffle).unbind(1):
        for indices in order.split(config.minibatch, dim=1):
            loss = backpropagate(agent, take(batch.obs, indices), take(batch.returns, indices))
            # Gradients are not clipped, as in sb3-contrib.
            optimizer.step(config.learning_rate)
    return loss


@in_c(kernel.update, takes)
def update(
    agent: ActorCritic,
    theta: Tensor,
    optimizer: SeedAdam,
    batch: Batch,
    shuffle: Tensor,
    config: Config,
) -> dict[str, Tensor]:
    """One step of the policies on a rollout, then all passes of V over it; metrics, each [S]."""
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
    # The line search moves the policy only, and Adam the value only.
    optimizer = SeedAdam(agent.critic, eps=1e-5)
    episodes = envs.EpisodeTracker(S, N, run.device)

    # On CUDA the iteration is recorded once as a graph, so all that changes is an argument.
    @captured(run.device, env.native)
    def iteration(
        state: envs.State,
        obs: Tensor,
        noise: tuple[Tensor, Tensor],
        shuffle: Tensor,
        first: bool,
    ) -> tuple[envs.State, Tensor, dict[str, Tensor]]:
        state, obs, rollout = envs.rollout(env, agent, state, obs, *noise)
        # Statistics are updated after the gradient update, which thus begins at the policy that
        # acted; but before the first one, so that none is computed from raw observations: a large
        # step fitted to those would be undone as soon as they are normalised.
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
        # Noise is drawn beforehand, from each seed's own stream: no seed depends on another.
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


load = loader(Config, ActorCritic)
PRESETS = read_presets("algos/presets/trpo.toml")

if __name__ == "__main__":
    main(parse(Config, PRESETS, __doc__), train, PRESETS)
