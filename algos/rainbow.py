"""Rainbow (Hessel et al., 2018, arXiv 1710.02298): DQN with six parts that can be off.

    python algos/rainbow.py --env CartPole-v1

With all parts off this is algos/dqn.py. The parts, for transitions (s, a, r, s') of a memory:

n_steps (Sutton, 1988), k = n, or fewer where the episode or the memory ends:
    R = sum_{j<k} gamma^j r_j, and s' is the state after k steps                            (1)
    a terminal s' is worth 0, the final state of a truncated episode is not
double (van Hasselt et al., 2016):
    a* = argmax_a Q(s', a)            without: a* = argmax_a Q_target(s', a)                (2)
dueling (Wang et al., 2016, eq. 9):
    Q(s, a) = V(s) + A(s, a) - mean_a' A(s, a'), of each atom or quantile                   (3)
distribution none:
    L = huber(y - Q(s, a)) or its square, y = R + gamma^k Q_target(s', a*)                  (4)
distribution categorical (Bellemare et al., 2017), atoms z_i from v_min to v_max:
    p = softmax of the outputs, Q = sum_i p_i z_i, L = -sum_i m_i log p_i(s, a)             (5)
    m: the probabilities p_target(s', a*), projected from R + gamma^k z onto z
distribution quantile (Dabney et al., 2018, eq. 10), outputs theta_i at tau_i = (i + 1/2) / Z:
    Q = mean_i theta_i, L = sum_i mean_j |tau_i - 1{d_ij < 0}| huber(d_ij)                  (6)
    d_ij = R + gamma^k theta_target_j(s', a*) - theta_i(s, a)
prioritized (Schaul et al., 2016), p = 1e-6 + |y - Q|, or KL(m || p), or the L of quantiles:
    P(i) = p_i^alpha / sum_j p_j^alpha                                                      (7)
    L is weighted by (P(i) / min_j P(j))^-beta, j in the minibatch, beta annealed to 1      (8)
noisy (Fortunato et al., 2018, eqs. 10 and 11), in the place of epsilon:
    w = mu + sigma f(e_in) f(e_out)^T, b = mu + sigma f(e_out), f(x) = sgn(x) sqrt |x|      (9)

Differences from the paper: updates are as frequent as in DQN's presets, with their Adam; V and A
are networks of their own that share no layer; all layers are noisy. The noise is drawn anew for
each round of F steps, and for each gradient step: one sample for the network, at s and s', another
one for the target network. Evaluations use the means of the weights. Without the other parts,
n_steps are SB3's DQN (see algos/dqn.py for the differences), and quantiles are sb3-contrib's
QR-DQN.

Shapes: S seeds, N environments per seed, F steps per environment between two updates (train_freq),
G gradient steps per update, M transitions in a minibatch, C capacity of the memory, O observation
size, A actions, Z atoms or quantiles (1: values), K networks of a seed (2: dueling). Every loss is
[S], and no term mixes two seeds, so `loss.sum().backward()` gives each seed its own gradient. A
hyperparameter is a number, or [S] where the seeds differ in it: `broadcast` reshapes it to be
multiplied with a tensor. `@in_c` names a C kernel that runs in the place of a function until that
is edited.

Logged per round of F steps: td_loss (weighted) and q_values (mean Q of the chosen actions) of the
last minibatch; train_return and train_length of the episodes that ended.
"""

from __future__ import annotations

from manyseeds.command import parse

import copy
import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call

from manyseeds import envs
from manyseeds.algos.kernels import rainbow as kernel
from manyseeds.capture import captured, from_host
from manyseeds.checkpoint import loader
from manyseeds.cli import (
    ControlConfig,
    Fraction,
    NonNegative,
    NonNegativeInt,
    PerRow,
    Positive,
    PositiveFraction,
    PositiveInt,
    UsageError,
    read_presets,
)
from manyseeds.kernels import in_c
from manyseeds.kernels.rollout import PolicyKernel, Returns
from manyseeds.layers import SeedMLP
from manyseeds.optim import SeedAdam
from manyseeds.rows import broadcast
from manyseeds.runs.control import Run, main
from manyseeds.seeds import SeedStreams

SMALLEST = 1e-6  # what is added to a priority, so that no transition is forgotten


@dataclass(frozen=True, kw_only=True)
class Config(ControlConfig):
    """Rainbow. The parts are the paper's, the other defaults those of algos/dqn.py."""

    double: bool = True
    """Choose the next action with the network, not with the target network."""
    dueling: bool = True
    """Add a network of values to one of advantages."""
    n_steps: PositiveInt = 3
    """Rewards before bootstrapping (1: DQN's)."""
    prioritized: bool = True
    """Sample transitions by their last error."""
    priority_alpha: PerRow[Fraction] = 0.5
    """Exponent of the priorities (0: uniform)."""
    priority_beta: PerRow[Fraction] = 0.4
    """Initial exponent of the importance weights. It is annealed to 1 over the training."""
    noisy: bool = True
    """Explore by noise in the weights, in the place of epsilon."""
    noise_std: PerRow[NonNegative] = 0.5
    """sigma_0, initial standard deviation of a weight's noise times the root of its inputs."""
    distribution: Literal["none", "categorical", "quantile"] = "categorical"
    """What is learned of the return: its mean, probabilities of atoms, or quantiles."""
    atoms: PositiveInt = 51
    """Z, number of atoms or of quantiles."""
    v_min: PerRow[float] = -100.0
    """Smallest atom. The defaults hold all returns of rewards from -1 to 1 at a gamma of 0.99."""
    v_max: PerRow[float] = 100.0
    """Largest atom."""
    num_envs: PositiveInt = 1
    """N, environments per seed."""
    train_freq: PositiveInt = 10
    """F, steps per environment between two updates."""
    gradient_steps: int = 1
    """G, gradient steps per update (-1: one per collected transition)."""
    batch_size: PositiveInt = 128
    """M, transitions per gradient step."""
    buffer_size: PositiveInt = 10_000
    """C, transitions in each seed's replay memory."""
    learning_starts: NonNegativeInt = 10_000
    """Timesteps of random actions before the first update."""
    learning_rate: PerRow[Positive] = 2.5e-4
    """Learning rate of Adam."""
    adam_eps: Positive = 1e-8
    """Adam's epsilon. Rainbow's paper has 1.5e-4, that of QR-DQN 0.01 / 32."""
    gamma: PerRow[Fraction] = 0.99
    """Discount factor per step."""
    target_update_interval: PositiveInt = 500
    """Timesteps between updates of the target network."""
    tau: PerRow[PositiveFraction] = 1.0
    """Polyak coefficient of the target network's update (1: copy)."""
    exploration_fraction: PerRow[Fraction] = 0.5
    """Fraction of training over which epsilon is annealed, without noisy networks."""
    exploration_initial_eps: PerRow[Fraction] = 1.0
    """Initial epsilon."""
    exploration_final_eps: PerRow[Fraction] = 0.05
    """Final epsilon."""
    loss: Literal["huber", "mse"] = "mse"
    """Loss of the TD error, without a distribution."""
    max_grad_norm: PerRow[NonNegative] = 0.0
    """Clip each seed's gradient to this norm (0: no clipping)."""
    hidden: tuple[PositiveInt, ...] = (120, 84)
    """Widths of the hidden layers of each network."""

    @property
    def block(self) -> int:
        """Timesteps between two updates, F * N."""
        return self.train_freq * self.num_envs

    @property
    def updates(self) -> int:
        """Gradient steps per update."""
        return self.block if self.gradient_steps < 0 else self.gradient_steps

    @property
    def outputs(self) -> int:
        """Z, outputs per action."""
        return 1 if self.distribution == "none" else self.atoms

    def make_env(self) -> envs.Env:
        return envs.make_for(self, observations="vector", actions="discrete")

    def check(self) -> None:
        if self.gradient_steps == 0 or self.gradient_steps < -1:
            raise UsageError(f"--gradient-steps {self.gradient_steps}: must be positive or -1")
        if self.block > self.buffer_size:
            raise UsageError(
                f"--buffer-size {self.buffer_size}: must hold train_freq * num_envs = {self.block}"
            )
        if self.total_timesteps < self.block:
            raise UsageError(
                f"--total-timesteps {self.total_timesteps}: must be at least one round, "
                f"train_freq * num_envs = {self.block}"
            )
        if self.total_timesteps <= self.learning_starts:
            raise UsageError(
                f"--total-timesteps {self.total_timesteps}: must be more than learning_starts = "
                f"{self.learning_starts}"
            )
        if self.distribution == "categorical":
            if self.atoms < 2:
                raise UsageError(f"--atoms {self.atoms}: a categorical distribution needs 2")
            if self.v_min >= self.v_max:
                raise UsageError(f"--v-min {self.v_min}: must be below v_max = {self.v_max}")
            if not 1e-30 < (self.v_max - self.v_min) / (self.atoms - 1) < 1e30:
                raise UsageError(f"--v-max {self.v_max}: atoms must be 1e-30 to 1e30 apart")


# ---- Networks ----------------------------------------------------------------------------------

Weights = dict[str, Tensor]  # of networks, by the names of their parameters


class QNetwork(nn.Module):
    """S action-value functions, or distributions of returns, each of K ReLU networks."""

    def __init__(self, spec: envs.EnvSpec, config: Config, init: SeedStreams) -> None:
        super().__init__()
        assert spec.obs_size is not None
        self.shape = spec.num_actions, config.outputs  # A, Z
        outputs = (math.prod(self.shape), *([config.outputs] if config.dueling else []))
        sizes = len(init.seeds), spec.obs_size, config.hidden, outputs, "relu"
        self.q = SeedMLP(*sizes)
        # As torch.nn.Linear, in SB3 and CleanRL alike, and mu of factorised noise.
        self.q.uniform_init(init)
        self.sigma = SeedMLP(*sizes) if config.noisy else None
        if self.sigma is not None:
            for weight, bias in zip(self.sigma.weights, self.sigma.biases, strict=True):
                std = config.noise_std / math.sqrt(weight.shape[2])
                for p in (weight.data, bias.data):
                    p.copy_(torch.ones_like(p) * broadcast(std, p))
        self.categorical = config.distribution == "categorical"
        self.bounds = config.v_min, config.v_max
        self.num_actions = spec.num_actions
        self.final_eps = 0.0 if config.noisy else config.exploration_final_eps

    def forward(self, obs: Tensor) -> Tensor:
        """Action values [S, B, A] for obs [S, B, O], by the means of noisy weights."""
        return self.values(self.outputs(obs))

    def outputs(self, obs: Tensor, weights: Weights | None = None) -> Tensor:
        """Values, logits of atoms or quantiles, [S, B, A, Z]; weights: as `sampled`."""
        heads = self.q(obs) if weights is None else functional_call(self.q, weights, (obs,))
        outputs: Tensor = heads[0].unflatten(-1, self.shape)
        if len(heads) == 1:
            return outputs
        # The mean is subtracted, because V and A would not be known from their sum.
        return heads[1].unsqueeze(-2) + outputs - outputs.mean(-2, keepdim=True)

    def values(self, outputs: Tensor) -> Tensor:
        """Means of the returns, [...], that outputs [..., Z] stand for."""
        if self.categorical:
            return (outputs.softmax(-1) * self.support(outputs)).sum(-1)
        return outputs.mean(-1)

    def support(self, like: Tensor) -> Tensor:
        """The atoms, [Z] or [S, ..., Z] as outputs [S, ..., Z]."""
        Z, (v_min, v_max) = self.shape[1], self.bounds
        numbers = torch.arange(Z, dtype=like.dtype, device=like.device)
        return broadcast(v_min, like) + broadcast((v_max - v_min) / (Z - 1), like) * numbers

    @property
    def noise_size(self) -> int:
        """Numbers of noise of each of the K networks: for the inputs and outputs of every layer."""
        return 0 if self.sigma is None else sum(sum(w.shape[2:]) for w in self.sigma.weights)

    def sampled(self, noise: Tensor) -> Weights | None:
        """The weights with factorised noise, from standard normals [S, K, noise_size]; None
        without noisy networks."""
        if self.sigma is None:
            return None
        noise = noise.sign() * noise.abs().sqrt()
        weights, at = {}, 0
        for k, (mean, std) in enumerate(zip(self.q.weights, self.sigma.weights, strict=True)):
            n_in, n_out = mean.shape[2:]
            of_in, of_out = noise[..., at : at + n_in + n_out].split((n_in, n_out), dim=-1)
            of_in, of_out, at = of_in.unsqueeze(-1), of_out.unsqueeze(-2), at + n_in + n_out
            weights[f"weights.{k}"] = mean + std * (of_in * of_out)
            weights[f"biases.{k}"] = self.q.biases[k] + self.sigma.biases[k] * of_out
        return weights

    def draw(self, streams: SeedStreams, *shape: int, epsilon: Tensor | None = None) -> Tensor:
        """Random actions [S, *shape, 1] with probability epsilon, else -1: act greedily.

        epsilon: [S or 1, ...], for the first dimensions of [S, *shape]; by default the final one.
        """
        explores, which = streams.uniform(*shape, 2).unbind(-1)
        explores = explores < broadcast(self.final_eps if epsilon is None else epsilon, explores)
        return torch.where(explores, (which * self.num_actions).floor(), -1.0).unsqueeze(-1)

    def act(
        self, obs: Tensor, noise: Tensor | None = None, weights: Weights | None = None
    ) -> Tensor:
        """Actions [S, N] for obs [S, N, O]; greedy without noise, and where noise [S, N, 1] is
        negative; elsewhere it is the action. weights: as `sampled`."""
        greedy = self.values(self.outputs(obs, weights)).argmax(-1)
        if noise is None:
            return greedy
        given = noise.squeeze(-1).long()
        return torch.where(given < 0, greedy, given)

    def as_kernel(self) -> PolicyKernel:
        """What `act` does, for rollouts in C."""
        return PolicyKernel(self.q, noise_is_action=True, returns=self.returns())

    def returns(self) -> Returns:
        """What `values` says of outputs, for C."""
        return Returns(*self.shape, self.bounds if self.categorical else None)


class Explorer:
    """The policy of rollouts: a network whose weights have one sample of their noise."""

    def __init__(self, net: QNetwork) -> None:
        self.net, self.q = net, copy.deepcopy(net.q)

    @torch.no_grad()
    def renew(self, noise: Tensor) -> None:
        """Take another sample, from standard normals [S, K, noise_size]."""
        weights = dict(self.net.q.named_parameters()) | (self.net.sampled(noise) or {})
        for name, p in self.q.named_parameters():
            p.copy_(weights[name])

    def act(self, obs: Tensor, noise: Tensor) -> Tensor:
        """Actions [S, N], as of QNetwork."""
        return self.net.act(obs, noise, dict(self.q.named_parameters()))

    def as_kernel(self) -> PolicyKernel:
        """What `act` does, for rollouts in C."""
        return self.net.as_kernel()._replace(networks=self.q)


# ---- The memory --------------------------------------------------------------------------------


class Transitions(NamedTuple):
    """Transitions, [S, ...] each."""

    obs: Tensor  # [S, ..., O]
    actions: Tensor  # [S, ...] int64
    rewards: Tensor
    terminated: Tensor  # bool, like the next
    truncated: Tensor
    next_obs: Tensor  # [S, ..., O], the true successor: at a truncation the final observation


class Batch(NamedTuple):
    """Starts of n steps, [S, M, ...] each."""

    obs: Tensor  # [S, M, O]
    actions: Tensor  # int64
    rewards: Tensor  # discounted sums, R
    discounts: Tensor  # of what follows: gamma^k, 0 after a terminal state
    next_obs: Tensor  # [S, M, O], after k steps


class SumTree:
    """Priorities of S seeds: leaves of binary trees, in which every node is the sum of two.

    The root is node 1, below node i are 2 i and 2 i + 1. Leaves are float32 numbers, so that their
    sums in float64 are nearly always exact.
    """

    def __init__(self, seeds: int, capacity: int, device: torch.device) -> None:
        self.depth = (capacity - 1).bit_length()
        size = 2 * 2**self.depth
        self.nodes = torch.zeros(seeds, size, dtype=torch.float64, device=device)
        self.largest = torch.ones(seeds, 1, dtype=torch.float64, device=device)  # so far

    def set(self, places: Tensor, leaves: Tensor) -> None:
        """Leaves [S, B] at places [S, B]."""
        node = places + 2**self.depth
        self.nodes.scatter_(1, node, leaves)
        for _ in range(self.depth):
            node = node // 2
            both = self.nodes.gather(1, 2 * node) + self.nodes.gather(1, 2 * node + 1)
            self.nodes.scatter_(1, node, both)

    def find(self, uniforms: Tensor) -> Tensor:
        """Places [S, M] of M samples, one from each M-th of the sum of all leaves (stratified, as
        Schaul et al., appendix B.2.1), from uniforms [S, M]."""
        M = uniforms.shape[1]
        strata = torch.arange(M, dtype=torch.float64, device=uniforms.device) + uniforms
        rest = strata / M * self.nodes[:, 1:2]
        node = torch.ones_like(rest, dtype=torch.int64)
        for _ in range(self.depth):
            left = self.nodes.gather(1, 2 * node)
            is_right = rest >= left
            rest = torch.where(is_right, rest - left, rest)
            node = 2 * node + is_right
        return node - 2**self.depth


class Replay:
    """The memory of S seeds: a ring of C transitions each, all at the same position.

    A transition is one row of floats (obs, next_obs, action, reward, terminated, truncated). The
    next one of the same environment is N places later.
    """

    def __init__(self, seeds: int, obs_size: int, config: Config, device: torch.device) -> None:
        capacity = config.buffer_size
        self.rows = torch.zeros(seeds, capacity, 2 * obs_size + 4, device=device)
        self.obs_size, self.num_envs = obs_size, config.num_envs
        self.added = torch.zeros((), dtype=torch.int64, device=device)  # per seed, so far
        self.priorities = SumTree(seeds, capacity, device) if config.prioritized else None

    @property
    def size(self) -> Tensor:
        """Transitions per seed in the memory, 0-d."""
        return self.added.clamp(max=self.rows.shape[1])

    def add(self, new: Transitions) -> None:
        """Store K <= C transitions per seed, [S, K, ...], over the oldest ones."""
        scalars = torch.stack((new.actions, new.rewards, new.terminated, new.truncated), dim=-1)
        rows = torch.cat((new.obs, new.next_obs, scalars), dim=-1)
        S, count, capacity = *rows.shape[:2], self.rows.shape[1]
        places = (self.added + torch.arange(count, device=rows.device)) % capacity
        self.rows.index_copy_(1, places, rows)
        if self.priorities is not None:  # the largest so far: each is to be learned from once
            largest = self.priorities.largest.expand(S, count)
            self.priorities.set(places.expand(S, count), largest)
        self.added.add_(count)

    def places(self, uniforms: Tensor) -> Tensor:
        """Places [S, M] of a minibatch, with replacement, from uniforms [S, M]."""
        if self.priorities is None:
            places = (uniforms * self.size).long()
        else:
            places = self.priorities.find(uniforms)
        return places.minimum(self.size - 1)  # u * size may round up

    def sample(self, places: Tensor, n_steps: int, gamma: float | Tensor) -> Batch:
        """Up to n_steps steps from each of the places [S, M] on."""
        N, (S, capacity, width) = self.num_envs, self.rows.shape
        age = (self.added - 1 - places) % capacity  # 0: the newest
        steps = torch.arange(n_steps, device=places.device)
        index = (places.unsqueeze(-1) + N * steps).flatten(1) % capacity
        rows = self.rows.gather(1, index.unsqueeze(-1).expand(-1, -1, width))
        rows = rows.view(S, -1, n_steps, width)  # [S, M, n, ...]
        _, rewards, terminated, truncated = rows[..., -4:].unbind(-1)
        # Of an environment's newest transition nothing is known that follows, as if truncated.
        is_last = (terminated + truncated > 0) | (age.unsqueeze(-1) < N * (steps + 1))
        going, last = torch.ones_like(age, dtype=torch.bool), torch.zeros_like(age)
        total = torch.zeros_like(rewards[..., 0])
        discount, factor = torch.ones_like(total), broadcast(gamma, total)
        for k in range(n_steps):
            total = total + torch.where(going, discount * rewards[..., k], 0.0)
            discount = torch.where(going, discount * factor, discount)
            last = torch.where(going, k, last)
            going = going & ~is_last[..., k]
        final = rows.gather(2, last[..., None, None].expand(-1, -1, 1, width)).squeeze(2)
        # Only a termination ends the sum of rewards, a truncation does not.
        discount = discount * (final[..., -2] == 0)
        obs, actions = rows[:, :, 0, : self.obs_size], rows[:, :, 0, -4].long()
        return Batch(obs, actions, total, discount, final[..., self.obs_size : -4])

    def set_priorities(self, places: Tensor, errors: Tensor, alpha: float | Tensor) -> None:
        """Priorities (errors + SMALLEST)^alpha at places, both [S, M]."""
        assert self.priorities is not None
        priorities = errors.double() + SMALLEST
        exponents = torch.zeros_like(priorities) + broadcast(alpha, priorities)
        leaves = priorities.pow(exponents).float().double()
        self.priorities.set(places, leaves)
        largest = self.priorities.largest
        largest.copy_(largest.maximum(leaves.amax(-1, keepdim=True)))

    def importance_weights(self, places: Tensor, beta: Tensor) -> Tensor:
        """(P(i) / min_j P(j))^-beta [S, M], j in the minibatch at places [S, M]."""
        assert self.priorities is not None
        leaves = self.priorities.nodes.gather(1, places + 2**self.priorities.depth)
        ratios = leaves / leaves.amin(-1, keepdim=True)
        return ratios.pow(-broadcast(beta, ratios)).to(self.rows.dtype)


# ---- Schedules ---------------------------------------------------------------------------------


def epsilon_at(timesteps: Tensor, config: Config) -> Tensor:
    """Exploration rates [S or 1, F] of the actions after timesteps [1, F] float64."""
    # Annealed over the first exploration_fraction of the training, then constant.
    horizon = broadcast(config.exploration_fraction * config.total_timesteps, timesteps)
    progress = (timesteps / horizon).nan_to_num(1.0).clamp(max=1)  # NaN: 0 of 0
    initial = broadcast(config.exploration_initial_eps, timesteps)
    final = broadcast(config.exploration_final_eps, timesteps)
    epsilon = initial + progress * (final - initial)
    if config.noisy:  # the weights' noise explores
        epsilon = torch.zeros_like(epsilon)
    # Until learning_starts all actions are random (SB3, CleanRL).
    return epsilon.masked_fill(timesteps < config.learning_starts, 1.0)


def epsilons(timestep: int, config: Config) -> Iterator[Tensor]:
    """Exploration rates [S or 1, F] of each round after a timestep, float32."""
    # Of 100 rounds at once: a call of PyTorch takes longer than the numbers.
    for first in itertools.count(timestep, 100 * config.block):
        steps = torch.arange(first, first + 100 * config.block, config.num_envs)
        of_all = epsilon_at(steps.double().unsqueeze(0), config)
        yield from of_all.float().split(config.train_freq, dim=1)


def beta_at(timestep: int, config: Config) -> float | Tensor:
    """Exponent of the importance weights after a timestep, a number or [S]."""
    progress = min(timestep / config.total_timesteps, 1)
    return config.priority_beta + progress * (1 - config.priority_beta)


# ---- Losses ------------------------------------------------------------------------------------


def project(
    targets: Tensor, probabilities: Tensor, v_min: float | Tensor, v_max: float | Tensor
) -> Tensor:
    """Probabilities [S, M, Z] of the atoms from v_min to v_max, for those at targets, both
    [S, M, Z].

    Each is divided among the two atoms around its target, the closer one gets more. Beyond the ends
    it goes to the first or last atom.
    """
    Z = targets.shape[-1]
    per_atom = broadcast((Z - 1) / (v_max - v_min), targets)
    place = ((targets - broadcast(v_min, targets)) * per_atom).clamp(0, Z - 1)
    # On an atom all of it goes there: share is 0, or 1 at the last atom.
    lower = place.nan_to_num().floor().clamp(max=Z - 2)
    share = place - lower  # NaN stays
    projected, index = torch.zeros_like(probabilities), lower.long()
    projected.scatter_add_(-1, index, probabilities * (1 - share))
    return projected.scatter_add_(-1, index + 1, probabilities * share)


def quantile_loss(quantiles: Tensor, targets: Tensor) -> Tensor:
    """sum_i E_j of the quantile Huber loss, [S, M], of quantiles and targets [S, M, Z]."""
    Z = quantiles.shape[-1]
    tau = (torch.arange(Z, dtype=quantiles.dtype, device=quantiles.device) + 0.5) / Z
    errors = targets.unsqueeze(-2) - quantiles.unsqueeze(-1)  # [S, M, i, j]
    magnitude = errors.abs()
    huber = torch.where(magnitude < 1, 0.5 * errors.square(), magnitude - 0.5)
    # A quantile above a target costs 1 - tau, below it tau.
    return ((tau.unsqueeze(-1) - (errors < 0).to(tau)).abs() * huber).mean(-1).sum(-1)


def td_loss(q_values: Tensor, targets: Tensor, kind: str) -> Tensor:
    """Mean loss of the TD errors per seed, [S]; q_values and targets [S, M]."""
    errors = q_values - targets
    if kind == "huber":  # the gradient of the clipped error
        magnitude = errors.abs()
        return torch.where(magnitude < 1, 0.5 * errors.square(), magnitude - 0.5).mean(-1)
    return errors.square().mean(-1)


def losses_of(
    outputs: Tensor, targets: Tensor, next_outputs: Tensor, config: Config
) -> tuple[Tensor, Tensor]:
    """Losses [S, M] of outputs [S, M, Z] of the chosen actions, and what priorities are made of.

    targets: R + gamma^k z, [S, M, Z], of each next atom, quantile or value z; next_outputs: those
    that belong to z, [S, M, Z].
    """
    if config.distribution == "categorical":
        bounds = config.v_min, config.v_max
        goal = project(targets, next_outputs.softmax(-1), *bounds)
        cross_entropy = -(goal * outputs.log_softmax(-1)).sum(-1)
        divergence = cross_entropy.detach() + goal.xlogy(goal).sum(-1)
        return cross_entropy, divergence.clamp(min=0)  # rounding may make it negative
    if config.distribution == "quantile":
        losses = quantile_loss(outputs, targets)
        return losses, losses.detach()
    # The mean over the one output of a sample.
    return td_loss(outputs, targets, config.loss), (outputs.detach() - targets).abs().squeeze(-1)


# ---- Training ----------------------------------------------------------------------------------


def of_actions(outputs: Tensor, actions: Tensor) -> Tensor:
    """Outputs [S, M, Z] of actions [S, M], from outputs [S, M, A, Z]."""
    index = actions[..., None, None].expand(*actions.shape, 1, outputs.shape[-1])
    return outputs.gather(2, index).squeeze(2)


@in_c(kernel.update, kernel.takes_update)
def update(
    net: QNetwork,
    target: QNetwork,
    optimizer: SeedAdam,
    replay: Replay,
    draws: Tensor,
    noise: Tensor,
    beta: Tensor,
    config: Config,
) -> dict[str, Tensor]:
    """A gradient step on each of the G minibatches that the uniforms draws [S, G, M] choose.

    noise: of the weights of both networks, standard normal, [S, G, 2, K, noise_size]. beta: 0-d or
    [S]. Returns the last minibatch's metrics, each [S].
    """
    for uniforms, normals in zip(draws.unbind(1), noise.unbind(1), strict=True):
        places = replay.places(uniforms)
        batch = replay.sample(places, config.n_steps, config.gamma)
        weights = net.sampled(normals[:, 0])
        with torch.no_grad():
            next_outputs = target.outputs(batch.next_obs, target.sampled(normals[:, 1]))
            # Double: the network chooses the action, the target network says what it is worth.
            choosing = net.outputs(batch.next_obs, weights) if config.double else next_outputs
            next_outputs = of_actions(next_outputs, net.values(choosing).argmax(-1))
            following = net.support(next_outputs) if net.categorical else next_outputs
            targets = batch.rewards.unsqueeze(-1) + batch.discounts.unsqueeze(-1) * following
        outputs = of_actions(net.outputs(batch.obs, weights), batch.actions)
        losses, errors = losses_of(outputs, targets, next_outputs, config)
        if config.prioritized:
            losses = losses * replay.importance_weights(places, beta)
            replay.set_priorities(places, errors, config.priority_alpha)
        loss = losses.mean(-1)
        loss.sum().backward()
        optimizer.step(config.learning_rate, config.max_grad_norm)
    return {"td_loss": loss.detach(), "q_values": net.values(outputs.detach()).mean(-1)}


@torch.no_grad()
def update_target(target: QNetwork, net: QNetwork, syncs: int, tau: float | Tensor) -> None:
    """Apply Q_target <- tau Q + (1 - tau) Q_target `syncs` times at once, in place."""
    keep = math.prod([1 - tau] * syncs)  # a power's last bit is another on another machine
    for old, new in zip(target.parameters(), net.parameters(), strict=True):
        old.copy_(broadcast(1 - keep, old) * new + broadcast(keep, old) * old)


def train(config: Config, run: Run) -> QNetwork:
    """Train all seeds of a run; returns their action-value functions."""
    S, N, F = len(run.seeds), config.num_envs, config.train_freq
    env = config.make_env()
    assert env.spec.obs_size is not None
    net = run.begin_with(QNetwork(env.spec, config, run.streams("init"))).to(run.device)
    target = run.begin_with(QNetwork(env.spec, config, run.streams("init"))).to(run.device)
    optimizer = SeedAdam(net, config.adam_eps)
    replay = Replay(S, env.spec.obs_size, config, run.device)
    explorer = Explorer(net) if config.noisy else None
    episodes = envs.EpisodeTracker(S, N, run.device)
    # The interval counts environment steps, not gradient steps (SB3).
    interval = max(config.target_update_interval // N, 1) * N

    # On CUDA a round is recorded once as a graph, so all that changes is an argument.
    @captured(run.device, env.native)
    def iteration(
        state: envs.State,
        obs: Tensor,
        noise: tuple[Tensor, Tensor],
        draws: tuple[Tensor, Tensor, Tensor],
        beta: Tensor,
        syncs: int,
    ) -> tuple[envs.State, Tensor, dict[str, Tensor]]:
        uniforms, normals, of_explorer = draws
        if explorer is not None:
            explorer.renew(of_explorer)
        state, obs, steps = envs.rollout(env, explorer or net, state, obs, *noise)
        ends = steps.terminated, steps.truncated
        new = steps.obs, steps.actions, steps.rewards, *ends, steps.next_obs
        replay.add(Transitions(*(field.flatten(1, 2) for field in new)))
        if syncs:
            update_target(target, net, syncs, config.tau)
        metrics = episodes.update(steps.rewards, steps.done)
        if uniforms.shape[1]:
            metrics |= update(net, target, optimizer, replay, uniforms, normals, beta, config)
        return state, obs, metrics

    streams = run.streams("train")
    state, obs = env.reset(streams.uniform(N, env.initial_noise))
    parts = net, target, optimizer, replay, episodes, streams
    timestep, state, obs = run.restore(parts, 0, state, obs)
    schedule = epsilons(timestep, config)
    size = len(net.q.outputs), net.noise_size  # K, numbers of a network's noise
    run.evaluate_if_due(timestep, env, net)
    while timestep < config.total_timesteps:
        before, timestep = timestep, timestep + config.block
        # As in SB3: F steps, then G gradient steps once more than learning_starts have passed.
        G = config.updates if timestep > config.learning_starts else 0
        epsilon = from_host(next(schedule), run.device)
        # Noise is drawn beforehand, from each seed's own stream: no seed depends on another.
        state, obs, metrics = iteration(
            state,
            obs,
            (net.draw(streams, F, N, epsilon=epsilon), streams.uniform(F, N, env.noise_size)),
            (
                streams.uniform(G, config.batch_size),  # [S, G, M]
                streams.normal(G, 2, *size),
                streams.normal(*size),
            ),
            from_host(beta_at(timestep, config), run.device),
            timestep // interval - before // interval,
        )
        run.log(timestep, metrics)
        run.evaluate_if_due(timestep, env, net)
        run.save_if_due(timestep, state, obs)
    return net


load = loader(Config, QNetwork)
PRESETS = read_presets("algos/presets/rainbow.toml")

if __name__ == "__main__":
    main(parse(Config, PRESETS, __doc__), train, PRESETS)
