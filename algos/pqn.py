"""Parallelised Q-Network (Gallici et al., 2025, "Simplifying Deep TD Learning", arXiv 2407.04811).

    python algos/pqn.py --env CartPole-v1

Q-learning from rollouts of many environments, without a replay memory and a target network; layer
normalisation is in their place. The equations, for one rollout of an epsilon-greedy policy:

    v_t = max_a Q(s_{t+1}, a), or 0 where s_{t+1} is terminal                               (1)
    G_t = r_t + gamma (lambda G_{t+1} + (1 - lambda) v_t)     while the episode goes on     (2)
    G_t = r_t + gamma v_t      at its termination or truncation, and in the last step       (3)
    L   = E[ (G - Q(s, a))^2 ],   G a constant                                              (4)
    h   = relu(gain (z - mean z) / std z + shift),   z = W x + b,   of a hidden layer       (5)

SB3 has no PQN. Differences from CleanRL's pqn.py and from purejaxql, the authors' code: a truncated
episode bootstraps from its true final observation (both: not at all), and v is computed in one pass
after the rollout (both: while acting, by the same network). CleanRL's returns also flow across the
ends of episodes, and its epsilon is annealed at every step; here, as in purejaxql, it is that of
the rollout's start. purejaxql halves the loss, draws LeCun normal weights and has an epsilon of
1e-6 in (5); here the loss, orthogonal weights and an epsilon of 1e-5 are CleanRL's. rejax's PQN
uses Adam, clips gradients by element, and has v_{t+1} where (2) has v_t.

Shapes: S seeds, T steps, N environments per seed, B = T N samples, M per gradient step, O
observation size, A actions. A rollout is [S, T, N, ...]. Every loss is [S], and no term mixes two
seeds, so `total.sum().backward()` gives each seed its own gradient. A hyperparameter is a number,
or [S] for seeds that differ: `broadcast` shapes it for a tensor. `@in_c` functions run in C until
edited.

Logged per update: td_loss and q_values (mean Q of the chosen actions) of the last minibatch;
train_return and train_length of the episodes that ended in the rollout.
"""

from __future__ import annotations

from manyseeds.command import parse

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from manyseeds import envs
from manyseeds.algos.kernels import pqn as kernel
from manyseeds.algos.kernels import takes
from manyseeds.capture import captured, from_host
from manyseeds.checkpoint import loader
from manyseeds.cli import Fraction, NonNegative, PerRow, Positive, PositiveInt, read_presets
from manyseeds.kernels import in_c, regression
from manyseeds.kernels.rollout import PolicyKernel
from manyseeds.layers import SeedMLP
from manyseeds.optim import SeedRAdam
from manyseeds.rows import broadcast
from manyseeds.runs.control import RolloutConfig, Run, main
from manyseeds.samples import discounted_sums, permutations, take
from manyseeds.seeds import SeedStreams


@dataclass(frozen=True, kw_only=True)
class Config(RolloutConfig):
    """PQN. The defaults are those of CleanRL's pqn.py."""

    num_envs: PositiveInt = 4
    """N, environments per seed."""
    num_steps: PositiveInt = 128
    """T, steps per environment in a rollout."""
    minibatch_size: PositiveInt = 128
    """M, samples per gradient step. M must divide B = N * T."""
    epochs: PositiveInt = 4
    """Passes over the samples of each rollout."""
    learning_rate: PerRow[Positive] = 2.5e-4
    """Learning rate of RAdam."""
    anneal_lr: PerRow[bool] = True
    """Anneal the learning rate linearly to 0."""
    gamma: PerRow[Fraction] = 0.99
    """Discount factor per step."""
    q_lambda: PerRow[Fraction] = 0.65
    """Lambda of the returns. 0 gives one-step targets, 1 the return to the end of the rollout."""
    reward_scale: PerRow[Positive] = 1.0
    """Factor of the rewards that are learned from."""
    exploration_fraction: PerRow[Fraction] = 0.5
    """Fraction of training over which epsilon is annealed."""
    exploration_initial_eps: PerRow[Fraction] = 1.0
    """Initial epsilon."""
    exploration_final_eps: PerRow[Fraction] = 0.05
    """Final epsilon."""
    max_grad_norm: PerRow[NonNegative] = 10.0
    """Clip each seed's gradient to this norm (0: no clipping)."""
    layer_norm: bool = True
    """Normalise hidden layers: what stands for a target network."""
    hidden: tuple[PositiveInt, ...] = (120, 84)
    """Widths of the hidden layers of each network."""

    def make_env(self) -> envs.Env:
        return envs.make_for(self, observations="vector", actions="discrete")


class QNetwork(nn.Module):
    """S action-value functions, each a ReLU network with normalised hidden layers."""

    def __init__(self, spec: envs.EnvSpec, config: Config, init: SeedStreams) -> None:
        super().__init__()
        assert spec.obs_size is not None
        outputs = (spec.num_actions,)
        sizes = len(init.seeds), spec.obs_size, config.hidden, outputs
        # (5): between the matrix and the activation (purejaxql, CleanRL).
        self.q = SeedMLP(*sizes, "relu", config.layer_norm)
        # Orthogonal weights of gain sqrt(2), biases 0 (CleanRL).
        self.q.orthogonal_init(init, gains=(math.sqrt(2),))
        self.num_actions = spec.num_actions
        self.final_eps = config.exploration_final_eps

    def forward(self, obs: Tensor) -> Tensor:
        """Action values [S, B, A] for obs [S, B, O]."""
        return self.q.only(0, obs)

    def draw(self, streams: SeedStreams, *shape: int, epsilon: Tensor | None = None) -> Tensor:
        """Random actions [S, *shape, 1] with probability epsilon, else -1: act greedily.

        epsilon: [S or 1, ...], for the first dimensions of [S, *shape]; by default the final one.
        """
        explores, which = streams.uniform(*shape, 2).unbind(-1)
        explores = explores < broadcast(self.final_eps if epsilon is None else epsilon, explores)
        return torch.where(explores, (which * self.num_actions).floor(), -1.0).unsqueeze(-1)

    def act(self, obs: Tensor, noise: Tensor | None = None) -> Tensor:
        """Actions [S, N] for obs [S, N, O]; greedy without noise, and where noise [S, N, 1] is
        negative; elsewhere it is the action."""
        greedy = self(obs).argmax(-1)
        if noise is None:
            return greedy
        given = noise.squeeze(-1).long()
        return torch.where(given < 0, greedy, given)

    def as_kernel(self) -> PolicyKernel:
        """What `act` does, for rollouts in C."""
        return self.q.policy_in_c(noise_is_action=True)


def exploration_rate(progress: float, config: Config) -> Tensor:
    """Epsilon [S or 1] after a fraction of the training."""
    fraction, initial, final = (
        torch.as_tensor(x, dtype=torch.float64).flatten()
        for x in (
            config.exploration_fraction,
            config.exploration_initial_eps,
            config.exploration_final_eps,
        )
    )
    annealed = (progress / fraction).nan_to_num(1.0).clamp(max=1)  # NaN: 0 of 0
    return (initial + annealed * (final - initial)).float()


def lambda_returns(
    rewards: Tensor,
    next_values: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    gamma: float | Tensor,
    q_lambda: float | Tensor,
) -> Tensor:
    """G, (2) and (3), all [S, T, N].

    next_values: max Q of the true successors, of the final observation where an episode ends.
    """
    gamma = broadcast(gamma, rewards)
    # No return reaches back across the end of its episode, nor from beyond the rollout.
    goes_on = (~(terminated | truncated)).to(rewards.dtype)
    goes_on[:, -1].zero_()
    decay = broadcast(q_lambda, goes_on) * goes_on
    # A truncation is bootstrapped, a termination is not.
    bootstrap = (1 - decay) * next_values * ~terminated
    return discounted_sums(rewards + gamma * bootstrap, gamma * decay)


class Batch(NamedTuple):
    """Samples: all of a rollout, [S, B, ...], or those of a gradient step, [S, M, ...]."""

    obs: Tensor
    actions: Tensor
    returns: Tensor  # the targets, G


@torch.no_grad()
@in_c(kernel.estimate, takes)
def estimate(net: QNetwork, rollout: envs.Rollout, config: Config) -> Tensor:
    """The returns, [S, B], of a rollout's samples."""
    rewards = broadcast(config.reward_scale, rollout.rewards) * rollout.rewards
    next_values = net(rollout.next_obs.flatten(1, 2)).amax(-1).view_as(rewards)  # (1)
    ends = (rollout.terminated, rollout.truncated)
    returns = lambda_returns(rewards, next_values, *ends, config.gamma, config.q_lambda)
    return returns.flatten(1, 2)


def loss(net: QNetwork, batch: Batch) -> tuple[Tensor, Tensor]:
    """L of a minibatch, [S], and Q(s, a), [S, M]."""
    q_values = net(batch.obs).gather(-1, batch.actions.unsqueeze(-1)).squeeze(-1)
    return (q_values - batch.returns).square().mean(-1), q_values


@in_c(regression.squared_error_gradients)
def backpropagate(net: QNetwork, batch: Batch) -> tuple[Tensor, Tensor]:
    """Set the gradients of L of a minibatch; returns L, [S], and Q(s, a), [S, M]."""
    total, q_values = loss(net, batch)
    total.sum().backward()
    return total.detach(), q_values.detach()


@in_c(kernel.update, takes)
def update(
    net: QNetwork,
    optimizer: SeedRAdam,
    batch: Batch,
    shuffle: Tensor,
    config: Config,
    lr: Tensor,
) -> dict[str, Tensor]:
    """All epochs over one rollout, in orders of the uniforms shuffle [S, epochs, B]; returns the
    metrics of the last minibatch, each [S]."""
    # The returns stay what they were when the rollout ended (purejaxql, CleanRL).
    M = config.minibatch
    for order in permutations(shuffle).unbind(1):
        shuffled = Batch(*(take(x, order) for x in batch))
        for start in range(0, order.shape[1], M):
            minibatch = Batch(*(x[:, start : start + M] for x in shuffled))
            td_loss, q_values = backpropagate(net, minibatch)
            optimizer.step(lr, config.max_grad_norm)
    return {"td_loss": td_loss, "q_values": q_values.mean(-1)}


def train(config: Config, run: Run) -> QNetwork:
    """Train all seeds of a run; returns their action-value functions."""
    S, T, N = len(run.seeds), config.num_steps, config.num_envs
    env = config.make_env()
    net = run.begin_with(QNetwork(env.spec, config, run.streams("init"))).to(run.device)
    optimizer = SeedRAdam(net)
    episodes = envs.EpisodeTracker(S, N, run.device)

    # On CUDA the iteration is recorded once as a graph, so all that changes is an argument.
    @captured(run.device, env.native)
    def iteration(
        state: envs.State,
        obs: Tensor,
        noise: tuple[Tensor, Tensor],
        shuffle: Tensor,
        lr: Tensor,
    ) -> tuple[envs.State, Tensor, dict[str, Tensor]]:
        state, obs, rollout = envs.rollout(env, net, state, obs, *noise)
        samples = rollout.obs.flatten(1, 2), rollout.actions.flatten(1, 2)
        batch = Batch(*samples, estimate(net, rollout, config))
        metrics = update(net, optimizer, batch, shuffle, config, lr)
        return state, obs, metrics | episodes.update(rollout.rewards, rollout.done)

    streams = run.streams("train")
    state, obs = env.reset(streams.uniform(N, env.initial_noise))
    timestep, state, obs = run.restore((net, optimizer, episodes, streams), 0, state, obs)
    run.evaluate_if_due(timestep, env, net)
    while timestep < config.total_timesteps:
        # Annealed by the timesteps at the start of the rollout.
        progress = timestep / config.total_timesteps
        lr = config.learning_rate * (1 - config.anneal_lr * progress)
        epsilon = from_host(exploration_rate(progress, config), run.device)
        # Noise is drawn beforehand, from each seed's own stream: no seed depends on another.
        state, obs, metrics = iteration(
            state,
            obs,
            (net.draw(streams, T, N, epsilon=epsilon), streams.uniform(T, N, env.noise_size)),
            streams.uniform(config.epochs, config.batch_size),
            from_host(lr, run.device),
        )
        timestep += config.batch_size
        run.log(timestep, metrics)
        run.evaluate_if_due(timestep, env, net)
        run.save_if_due(timestep, state, obs)
    return net


load = loader(Config, QNetwork)
PRESETS = read_presets("algos/presets/pqn.toml")

if __name__ == "__main__":
    main(parse(Config, PRESETS, __doc__), train, PRESETS)
