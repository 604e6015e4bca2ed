"""Group Relative Policy Optimization (Shao et al., 2024, arXiv 2402.03300) for control.

    python algos/grpo.py --env CartPole-v1
    python algos/grpo.py --env Pendulum-v1         continuous actions

PPO without a critic. The G episodes of a group begin in the same state (with Gymnasium: with the
same seed, and thus with identical transition noise), and the return-to-go of an action is compared
with those of its peers, the other episodes of the group. The equations, for episodes collected by
the policy pi_old, with the return-to-go g_i,t = r_i,t + gamma r_i,t+1 + ... of episode i:

    A_i,t   = (g_i,t - mean_j g_j,t) / std_j g_j,t             over the peers j still alive at t
    ratio_t = pi(a_t | s_t) / pi_old(a_t | s_t)
    L_clip  = E[ min( ratio A, clip(ratio, 1 - eps_low, 1 + eps_high) A ) ]         (paper, eq. 3)
    k3      = pi_ref / pi - log(pi_ref / pi) - 1                                    (eq. 4)
    L       = L_clip - beta k3 + c2 entropy

The paper rewards an answer at its end (outcome supervision, section 4.1.2) or at its steps (process
supervision, 4.1.3). In control every step has a reward, and the default compares returns-to-go at
equal times: no worse than the others on CartPole and Acrobot, and far better on Pendulum (ablation
in results/README.md). `--advantage` selects:

    return_to_go   the above
    outcome        (g_i,0 - mean_j g_j,0) / std_j g_j,0 for all steps of episode i
    process        rewards normalised over all steps of the group, then their return-to-go. Where
                   episodes end early this is another objective: with rewards centred, each further
                   step is worth nothing on average

Shapes: S seeds, L steps (the environment's time limit), K groups of G episodes, N = K G, B = L N
samples, at most M per gradient step, O observation size, A discrete actions or D components of a
continuous action. Episodes are [S, L, N, ...], and `alive` marks the steps that were taken; all
others are 0. Every loss is [S], and no term mixes two seeds, so `total.sum().backward()` gives each
seed its own gradient. A hyperparameter is a number, or [S] where the seeds differ in it:
`broadcast` reshapes it to be multiplied with a tensor, and `used` says whether it is not 0.

Logged per update: policy_loss, approx_kl (mean(ratio - 1 - log ratio)), clipfrac (share of samples
with a clipped ratio) and kl (k3 to the reference, with a penalty), all of a seed's last minibatch;
entropy (nats) of pi_old; zero_variance (the share of groups that were left out); train_return and
train_length of the episodes.
"""

from __future__ import annotations

from manyseeds.command import parse

import copy
import math
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple

import torch
from torch import Tensor

from manyseeds import envs
from manyseeds.algos.kernels import grpo as kernel
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
from manyseeds.rows import broadcast, used
from manyseeds.runs.control import Run, main
from manyseeds.samples import discounted_sums, take
from manyseeds.seeds import SeedStreams

EQUAL = 1e-5  # relative: sums of the same rewards in another order usually differ by less


@dataclass(frozen=True, kw_only=True)
class Config(ControlConfig):
    """GRPO."""

    groups: PositiveInt = 1
    """K, groups per update, each with its own start state."""
    group_size: Annotated[int, Range(2, math.inf)] = 16
    """G, episodes per group."""
    minibatch_size: PositiveInt = 512
    """M, the largest number of samples per gradient step; sizes differ by at most 1."""
    epochs: PositiveInt = 4
    """Passes over the samples of each update."""
    learning_rate: PerRow[Positive] = 1e-3
    """Learning rate of Adam."""
    anneal_lr: PerRow[bool] = True
    """Anneal the learning rate linearly to 0."""
    gamma: PerRow[Fraction] = 0.99
    """Discount factor per step."""
    advantage: Literal["return_to_go", "outcome", "process"] = "return_to_go"
    """The quantity that is compared within a group."""
    peers: Literal["alive", "all"] = "alive"
    """Compare with the episodes still running, or also with ended ones, whose remaining rewards are
    0. No effect on outcome."""
    std: Literal["group", "batch", "none"] = "group"
    """Divide advantages by their deviation over the peers, over the update, or not at all."""
    clip_range: PerRow[NonNegative] = 0.2
    """Epsilon of the clipped objective (0: no clipping)."""
    clip_range_high: PerRow[NonNegative] = 0.0
    """Upper epsilon of the clipped objective (0: clip_range)."""
    kl_coef: PerRow[NonNegative] = 0.0
    """Beta, weight of the KL to the reference policy."""
    reference_updates: Annotated[int, Range(0, math.inf)] = 0
    """Updates after which the current policy becomes the reference (0: keep the initial policy).
    Only with kl_coef."""
    entropy_coef: PerRow[NonNegative] = 0.0
    """c2, weight of the entropy bonus."""
    max_grad_norm: PerRow[NonNegative] = 0.5
    """Clip each seed's gradient to this norm (0: no clipping)."""
    hidden: tuple[PositiveInt, ...] = (64, 64)
    """Widths of the hidden layers of each network."""
    log_std_init: PerRow[Annotated[float, Range(-20, 20)]] = 0.0
    """Initial log standard deviation of continuous actions."""
    normalize_obs: bool = False
    """Normalise observations by running statistics."""

    @property
    def num_envs(self) -> int:
        """N, episodes per update."""
        return self.groups * self.group_size

    def make_env(self) -> envs.Env:
        return envs.make_for(self, observations="vector")

    def check(self) -> None:
        if self.total_timesteps < self.num_envs:
            raise UsageError(
                f"--total-timesteps {self.total_timesteps}: must be at least one step of each "
                f"episode of an update, groups * group_size = {self.num_envs}"
            )
        if 0 < self.clip_range_high < self.clip_range:
            raise UsageError(
                f"--clip-range-high {self.clip_range_high}: must be 0 or at least clip_range = "
                f"{self.clip_range}"
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

    def evaluate(self, obs: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        """Log-probabilities of actions and entropies, each [S, B], for obs [S, B, O]."""
        return self.policy(obs).logprob_and_entropy(actions)


def returns_to_go(rewards: Tensor, gamma: float | Tensor) -> Tensor:
    """r_t + gamma r_{t+1} + ... to the end of the episode; rewards [S, L, ...], 0 after it."""
    rows = rewards.flatten(2)
    decay = torch.ones_like(rows) * broadcast(gamma, rows)
    return discounted_sums(rows, decay).view_as(rewards)


def compare(x: Tensor, peers: Tensor, dims: tuple[int, ...], divide: bool) -> Tensor:
    """x minus the mean over its peers, divided by their standard deviation (ddof 1); 0 elsewhere.

    peers: which entries of x are compared with one another along dims, bool.
    """
    # The mean includes x itself: with n peers the gradient is (n - 1) / n of what it would be
    # without.
    count = peers.sum(dims, keepdim=True)
    mean = x.masked_fill(~peers, 0.0).sum(dims, keepdim=True) / count.clamp(min=1)
    high = x.masked_fill(~peers, -math.inf).amax(dims, keepdim=True)
    low = x.masked_fill(~peers, math.inf).amin(dims, keepdim=True)
    # Equal but for rounding: exactly 0, not rounding noise over rounding noise.
    equal = high - low <= EQUAL * torch.maximum(high.abs(), low.abs())
    centered = (x - mean).masked_fill(~peers | equal, 0.0)
    if not divide:
        return centered
    variance = centered.square().sum(dims, keepdim=True) / (count - 1).clamp(min=1)
    return centered / (variance.sqrt() + 1e-8)


def group_advantages(rewards: Tensor, alive: Tensor, config: Config) -> Tensor:
    """Advantages of the kind that the Config asks for; all [S, L, K, G], 0 after the end."""
    # Without a division: Dr. GRPO (arXiv 2503.20783).
    divide = config.std == "group"
    peers = alive if config.peers == "alive" else torch.ones_like(alive)
    if config.advantage == "outcome":
        scores = returns_to_go(rewards, config.gamma)[:, :1]
        advantages = compare(scores, torch.ones_like(alive[:, :1]), (3,), divide)
    elif config.advantage == "process":
        steps = compare(rewards, peers, (1, 3), divide).masked_fill(~alive, 0.0)
        advantages = returns_to_go(steps, config.gamma)
    else:
        advantages = compare(returns_to_go(rewards, config.gamma), peers, (3,), divide)
    advantages = advantages * alive
    if config.std == "batch":
        # Around 0: the mean over an update's steps, for return_to_go with alive peers.
        count = (alive.sum((1, 2, 3), keepdim=True) - 1).clamp(min=1)
        variance = advantages.square().sum((1, 2, 3), keepdim=True) / count
        advantages = advantages / (variance.sqrt() + 1e-8)
    return advantages


def masked_mean(x: Tensor, mask: Tensor) -> Tensor:
    """Mean of x over the samples in mask, both [S, B]; 0 where there are none; [S]."""
    return x.masked_fill(~mask, 0.0).sum(-1) / mask.sum(-1).clamp(min=1)


def clip_bounds(config: Config, ratio: Tensor) -> tuple[Any, Any]:
    """The lower and the upper bound of the ratio; infinite without clipping."""
    if not used(config.clip_range):
        return -math.inf, math.inf
    # An upper bound of its own lets rare actions grow faster (DAPO's clip-higher, 2503.14476).
    above = config.clip_range_high if used(config.clip_range_high) else config.clip_range
    return broadcast(1 - config.clip_range, ratio), broadcast(1 + above, ratio)


def policy_loss(ratio: Tensor, advantages: Tensor, config: Config) -> Tensor:
    """-min(ratio A, clip(ratio) A) (eq. 3), elementwise."""
    low, high = clip_bounds(config, ratio)
    clipped = ratio.clamp(min=low).clamp(max=high)  # each a number, or one per row
    return -torch.minimum(ratio * advantages, clipped * advantages)


def k3(logprobs: Tensor, reference: Tensor) -> Tensor:
    """KL(pi || pi_ref), estimated from samples of pi (eq. 4): unbiased, and never negative."""
    log_ratio = reference - logprobs
    return log_ratio.exp() - log_ratio - 1


class Batch(NamedTuple):
    """The samples of an update, as the loss needs them; [S, B, ...]."""

    obs: Tensor
    actions: Tensor
    logprobs: Tensor  # of pi_old
    reference: Tensor  # log-probabilities of pi_ref
    advantages: Tensor


@in_c(kernel.estimate, takes)
def evaluate_samples(
    actor: Actor, reference: Actor | None, episodes: envs.Episodes, config: Config
) -> tuple[Tensor, Tensor, Tensor, Tensor, dict[str, Tensor]]:
    """Log-probabilities by the actor and by the reference, and advantages of the samples, all
    [S, B]; which of them to learn from, [S, B] bool; and metrics, [S]."""
    by_group = (*episodes.rewards.shape[:2], config.groups, config.group_size)
    alive = episodes.alive.view(by_group)
    # No bootstrapping: an episode that the time limit truncates has ended.
    advantages = group_advantages(episodes.rewards.view(by_group), alive, config)
    # Groups without any advantage are left out, with their penalty and entropy (as in DAPO).
    informative = (advantages != 0).any(3, keepdim=True).any(1, keepdim=True)  # [S, 1, K, 1]
    samples = episodes.obs.flatten(1, 2), episodes.actions.flatten(1, 2)
    logprobs, entropy = actor.evaluate(*samples)
    wanted = logprobs if reference is None else reference.evaluate(*samples)[0]
    metrics = {
        "entropy": masked_mean(entropy, alive.flatten(1)),
        "zero_variance": 1 - informative.float().mean((1, 2, 3)),
    }
    return logprobs, wanted, advantages.flatten(1), (alive & informative).flatten(1), metrics


@torch.no_grad()
def prepare(
    actor: Actor, reference: Actor | None, episodes: envs.Episodes, config: Config
) -> tuple[Batch, Tensor, dict[str, Tensor]]:
    """The samples, which of them to learn from [S, B], and what the update logs of them, [S]."""
    *fields, mask, metrics = evaluate_samples(actor, reference, episodes, config)
    batch = Batch(episodes.obs.flatten(1, 2), episodes.actions.flatten(1, 2), *fields)
    return batch, mask, metrics | envs.means_of(episodes)


def minibatches(mask: Tensor, shuffle: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """Divide the samples in mask [S, B] into shuffled minibatches of at most `size` samples.

    Each seed gets as few as possible, of sizes that differ by at most 1, then empty ones up to J,
    the largest number that any seed gets. shuffle: uniforms [S, B]. Returns indices [S, J, size]
    and which of them are valid, bool.
    """
    order = shuffle.masked_fill(~mask, 2.0).argsort(dim=-1, stable=True)
    count = mask.sum(-1).view(-1, 1, 1)
    parts = (count + size - 1) // size
    j = torch.arange(int(parts.max()), device=mask.device).view(1, -1, 1)
    start, end = (k * count // parts.clamp(min=1) for k in (j, j + 1))
    position = start + torch.arange(size, device=mask.device)
    valid = (position < end) & (j < parts)
    # An invalid entry repeats a valid sample: 0 times the infinite ratio of a step after an end
    # would be NaN.
    indices = order.gather(1, position.where(valid, 0).flatten(1)).view(valid.shape)
    return indices, valid


def loss(
    actor: Actor, batch: Batch, valid: Tensor, config: Config
) -> tuple[Tensor, dict[str, Tensor]]:
    """The objective (negated) on the valid samples of a minibatch and its metrics, each [S]."""
    logprobs, entropy = actor.evaluate(batch.obs, batch.actions)
    log_ratio = logprobs - batch.logprobs
    ratio = log_ratio.exp()
    # The mean over the steps of a minibatch, as in DAPO: long episodes weigh more. (Eq. 3 takes the
    # mean over each answer first.)
    pg_loss = masked_mean(policy_loss(ratio, batch.advantages, config), valid)
    total = pg_loss - broadcast(config.entropy_coef, pg_loss) * masked_mean(entropy, valid)
    metrics = {"policy_loss": pg_loss.detach()}
    if used(config.kl_coef):
        kl = masked_mean(k3(logprobs, batch.reference), valid)
        total = total + broadcast(config.kl_coef, kl) * kl
        metrics["kl"] = kl.detach()
    with torch.no_grad():
        low, high = clip_bounds(config, ratio)
        clipped = (ratio < low) | (ratio > high)
        metrics["approx_kl"] = masked_mean(ratio - 1 - log_ratio, valid)
        metrics["clipfrac"] = masked_mean(clipped.float(), valid)
    return total, metrics


@in_c(kernel.gradient, takes)
def backpropagate(actor: Actor, batch: Batch, valid: Tensor, config: Config) -> dict[str, Tensor]:
    """Set the gradients of the objective (negated) on a minibatch; returns its metrics."""
    total, metrics = loss(actor, batch, valid, config)
    total.sum().backward()
    return metrics


@in_c(kernel.update, takes)
def update(
    actor: Actor,
    optimizer: SeedAdam,
    batch: Batch,
    mask: Tensor,
    shuffle: Tensor,
    active: Tensor,
    config: Config,
    lr: Tensor,
) -> dict[str, Tensor]:
    """All epochs over the samples in mask [S, B]; the uniforms shuffle [S, epochs, B] order each.

    active: which seeds still learn, [S] bool; lr [S, 1]. Returns the metrics of each seed's last
    minibatch, [S]; 0 for a seed that took no step.
    """
    names = ["policy_loss", "approx_kl", "clipfrac"] + ["kl"] * used(config.kl_coef)
    last = {name: torch.zeros(len(mask), device=mask.device) for name in names}
    for uniforms in shuffle.unbind(1):
        parts = minibatches(mask, uniforms, config.minibatch_size)
        for indices, valid in zip(*(x.unbind(1) for x in parts), strict=True):
            minibatch = Batch(*(take(field, indices) for field in batch))  # [S, M, ...]
            metrics = backpropagate(actor, minibatch, valid, config)
            # A seed with nothing to learn from takes no step: Adam's momentum would move it.
            takes_step = active & (valid & (minibatch.advantages != 0)).any(-1)
            optimizer.step(lr, config.max_grad_norm, takes_step)
            last = {name: torch.where(takes_step, metrics[name], x) for name, x in last.items()}
    return last


def train(config: Config, run: Run) -> Actor:
    """Train all seeds of a run; returns their policies."""
    S, K, G = len(run.seeds), config.groups, config.group_size
    env = config.make_env()
    L, N = env.spec.time_limit, config.num_envs
    actor = run.begin_with(Actor(env.spec, config, run.streams("init"))).to(run.device)
    reference = copy.deepcopy(actor) if used(config.kl_coef) else None
    optimizer = SeedAdam(actor, eps=1e-5)
    streams = run.streams("train")
    timesteps = torch.zeros(S, dtype=torch.int64, device=run.device)
    timesteps, updates = run.restore((actor, reference, optimizer, streams), timesteps, 0)
    run.evaluate_if_due(timesteps, env, actor)
    while (active := timesteps < config.total_timesteps).any():
        # An update plays every episode to its end, and every step taken counts against the budget,
        # so seeds are at different timesteps. One that has spent its budget stops learning.
        if reference and config.reference_updates and updates % config.reference_updates == 0:
            # With the observation statistics of this moment.
            reference.load_state_dict(actor.state_dict())
        progress = (timesteps / config.total_timesteps).clamp(max=1).unsqueeze(1)
        annealed = 1 - broadcast(config.anneal_lr, progress) * progress
        lr = broadcast(config.learning_rate, annealed) * annealed
        start_noise = streams.uniform(K, env.initial_noise).repeat_interleave(G, dim=1)
        action_noise = actor.draw(streams, L, N)  # [S, L, N, A or D]
        transition_noise = streams.uniform(L, N, env.transition_noise)
        shuffle = streams.uniform(config.epochs, L * N)

        episodes = envs.play(env, actor, start_noise, action_noise, transition_noise)
        batch, mask, metrics = prepare(actor, reference, episodes, config)
        metrics |= update(actor, optimizer, batch, mask, shuffle, active, config, lr)
        # NaN weights play equal episodes and take no step: propagate NaN to the loss, so that the
        # seed counts as diverged.
        metrics["policy_loss"] = metrics["policy_loss"] + 0 * metrics["entropy"]
        alive = episodes.alive.flatten(1) & active.unsqueeze(1)
        if actor.obs_stats is not None:
            actor.obs_stats.update(batch.obs, alive)

        timesteps = timesteps + alive.sum(-1)
        updates += 1
        run.log(timesteps, metrics)
        run.evaluate_if_due(timesteps, env, actor)
        run.save_if_due(timesteps, updates)
    return actor


load = loader(Config, Actor)
PRESETS = read_presets("algos/presets/grpo.toml")

if __name__ == "__main__":
    main(parse(Config, PRESETS, __doc__), train, PRESETS)
