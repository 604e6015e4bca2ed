"""Deep Q-Network (Mnih et al., 2015, "Human-level control through deep reinforcement learning").

    python algos/dqn.py --env CartPole-v1

The equations, for transitions (s, a, r, s') drawn from a replay memory:

    y = r                                   if s' is terminal                  (Algorithm 1)
    y = r + gamma max_a' Q_target(s', a')   otherwise, also when the episode was truncated at s'
    L = E[ huber(y - Q(s, a)) ]             (the paper clips the error: huber's gradient), or
    L = E[ (y - Q(s, a))^2 ]                the default, as in CleanRL

Differences from SB3's DQN: epsilon decides per environment (SB3: one draw for all environments of a
step); the very first action is random at epsilon 1 (SB3: greedy if learning_starts is 0). CleanRL's
DQN uses the squared error without gradient clipping, SB3's the Huber loss with the gradient norm
clipped to 10, and their curves differ a lot. The defaults are CleanRL's, the presets SB3's.

Shapes: S seeds, N environments per seed, F steps per environment between two updates (train_freq),
G gradient steps per update, M transitions in a minibatch, C capacity of the memory, O observation
size, A actions. Every loss is [S], and no term mixes two seeds, so `loss.sum().backward()` gives
each seed its own gradient. A hyperparameter is a number, or [S] where the seeds differ in it:
`broadcast` reshapes it to be multiplied with a tensor. `@in_c` names a C kernel that runs in the
place of a function until that is edited.

Logged per round of F steps: td_loss and q_values (mean Q of the chosen actions) of the last
minibatch; train_return and train_length of the episodes that ended.
"""

from __future__ import annotations

from manyseeds.command import parse

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from manyseeds import envs
from manyseeds.algos.kernels import dqn as kernel
from manyseeds.algos.kernels import takes
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
from manyseeds.kernels import in_c, memory, regression
from manyseeds.kernels.rollout import PolicyKernel
from manyseeds.layers import SeedMLP
from manyseeds.optim import SeedAdam
from manyseeds.rows import broadcast
from manyseeds.runs.control import Run, main
from manyseeds.seeds import SeedStreams


@dataclass(frozen=True, kw_only=True)
class Config(ControlConfig):
    """DQN. The defaults are those of CleanRL's dqn.py."""

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
    gamma: PerRow[Fraction] = 0.99
    """Discount factor per step."""
    target_update_interval: PositiveInt = 500
    """Timesteps between updates of the target network."""
    tau: PerRow[PositiveFraction] = 1.0
    """Polyak coefficient of the target network's update (1: copy)."""
    exploration_fraction: PerRow[Fraction] = 0.5
    """Fraction of training over which epsilon is annealed."""
    exploration_initial_eps: PerRow[Fraction] = 1.0
    """Initial epsilon."""
    exploration_final_eps: PerRow[Fraction] = 0.05
    """Final epsilon."""
    loss: Literal["huber", "mse"] = "mse"
    """Loss of the TD error."""
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


class QNetwork(nn.Module):
    """S action-value functions, each a ReLU network."""

    def __init__(self, spec: envs.EnvSpec, config: Config, init: SeedStreams) -> None:
        super().__init__()
        assert spec.obs_size is not None
        outputs = (spec.num_actions,)
        self.q = SeedMLP(len(init.seeds), spec.obs_size, config.hidden, outputs, "relu")
        # As torch.nn.Linear, in SB3 and CleanRL alike.
        self.q.uniform_init(init)
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


class Transitions(NamedTuple):
    """Transitions, [S, ...] each."""

    obs: Tensor  # [S, ..., O]
    actions: Tensor  # [S, ...] int64
    rewards: Tensor
    terminated: Tensor  # bool
    next_obs: Tensor  # [S, ..., O], the true successor: at a truncation the final observation


class Replay:
    """The memory of S seeds: a ring of C transitions each, all at the same position.

    A transition is one row of floats (obs, next_obs, action, reward, terminated), so that a
    minibatch is one gather.
    """

    def __init__(self, seeds: int, capacity: int, obs_size: int, device: torch.device) -> None:
        self.rows = torch.zeros(seeds, capacity, 2 * obs_size + 3, device=device)
        self.obs_size = obs_size
        self.added = torch.zeros((), dtype=torch.int64, device=device)  # per seed, so far

    @property
    def size(self) -> Tensor:
        """Transitions per seed in the memory, 0-d."""
        return self.added.clamp(max=self.rows.shape[1])

    @in_c(memory.add, memory.takes)
    def add(self, new: Transitions) -> None:
        """Store K <= C transitions per seed, [S, K, ...], over the oldest ones."""
        scalars = torch.stack((new.actions, new.rewards, new.terminated), dim=-1)
        rows = torch.cat((new.obs, new.next_obs, scalars), dim=-1)
        count, capacity = rows.shape[1], self.rows.shape[1]
        places = (self.added + torch.arange(count, device=rows.device)) % capacity
        self.rows.index_copy_(1, places, rows)
        self.added.add_(count)

    def sample(self, noise: Tensor) -> Transitions:
        """One transition for every uniform in noise [S, ...], with replacement."""
        S, capacity, width = self.rows.shape
        index = (noise * self.size).long().minimum(self.size - 1)  # u * size may round up
        first = torch.arange(S, device=noise.device) * capacity
        index = index + first.view(S, *(1 for _ in noise.shape[1:]))
        rows = self.rows.view(-1, width).index_select(0, index.flatten())
        rows = rows.view(*noise.shape, width)
        obs, next_obs, scalars = rows.split((self.obs_size, self.obs_size, 3), dim=-1)
        actions, rewards, terminated = scalars.unbind(-1)
        return Transitions(obs, actions.long(), rewards, terminated.bool(), next_obs)


def epsilon_at(timesteps: Tensor, config: Config) -> Tensor:
    """Exploration rates [S or 1, F] of the actions after timesteps [1, F] float64."""
    # Annealed over the first exploration_fraction of the training, then constant.
    horizon = broadcast(config.exploration_fraction * config.total_timesteps, timesteps)
    progress = (timesteps / horizon).nan_to_num(1.0).clamp(max=1)  # NaN: 0 of 0
    initial = broadcast(config.exploration_initial_eps, timesteps)
    final = broadcast(config.exploration_final_eps, timesteps)
    epsilon = initial + progress * (final - initial)
    # Until learning_starts all actions are random (SB3, CleanRL).
    return epsilon.masked_fill(timesteps < config.learning_starts, 1.0)


def epsilons(timestep: int, config: Config) -> Iterator[Tensor]:
    """Exploration rates [S or 1, F] of each round after a timestep, float32."""
    # Of 100 rounds at once: a call of PyTorch takes longer than the numbers.
    for first in itertools.count(timestep, 100 * config.block):
        steps = torch.arange(first, first + 100 * config.block, config.num_envs)
        of_all = epsilon_at(steps.double().unsqueeze(0), config)
        yield from of_all.float().split(config.train_freq, dim=1)


def td_target(
    rewards: Tensor, terminated: Tensor, next_q_values: Tensor, gamma: float | Tensor
) -> Tensor:
    """y [S, B] for rewards and terminated [S, B] and target action values [S, B, A]."""
    # Only a termination ends the sum of rewards, a truncation does not.
    return rewards + broadcast(gamma, rewards) * next_q_values.amax(-1) * ~terminated


def td_loss(q_values: Tensor, targets: Tensor, kind: str) -> Tensor:
    """Mean loss of the TD errors per seed, [S]; q_values and targets [S, M]."""
    errors = q_values - targets
    if kind == "huber":  # the gradient of the clipped error
        magnitude = errors.abs()
        return torch.where(magnitude < 1, 0.5 * errors.square(), magnitude - 0.5).mean(-1)
    return errors.square().mean(-1)


@in_c(regression.td_gradients)
def backpropagate(
    net: QNetwork, obs: Tensor, actions: Tensor, targets: Tensor, kind: str
) -> tuple[Tensor, Tensor]:
    """Set the gradients of the TD loss; returns it, [S], and Q(s, a), [S, M] like the arguments."""
    q_values = net(obs).gather(-1, actions.unsqueeze(-1)).squeeze(-1)
    loss = td_loss(q_values, targets, kind)
    loss.sum().backward()
    return loss.detach(), q_values.detach()


@in_c(kernel.update, takes)
def update(
    net: QNetwork,
    target: QNetwork,
    optimizer: SeedAdam,
    replay: Replay,
    draws: Tensor,
    config: Config,
) -> dict[str, Tensor]:
    """A gradient step on each of the G minibatches that the uniforms draws [S, G, M] choose.

    Returns the last one's metrics, each [S].
    """
    # Uniform over the memory, with replacement.
    for uniforms in draws.unbind(1):
        batch = replay.sample(uniforms)
        with torch.no_grad():
            next_q_values = target(batch.next_obs)
            targets = td_target(batch.rewards, batch.terminated, next_q_values, config.gamma)
        loss, q_values = backpropagate(net, batch.obs, batch.actions, targets, config.loss)
        optimizer.step(config.learning_rate, config.max_grad_norm)
    return {"td_loss": loss, "q_values": q_values.mean(-1)}


@torch.no_grad()
def update_target(target: QNetwork, net: QNetwork, syncs: int, tau: float | Tensor) -> None:
    """Apply Q_target <- tau Q + (1 - tau) Q_target `syncs` times at once, in place."""
    keep = math.prod([1 - tau] * syncs)  # a power's last bit is another on another machine
    for old, new in zip(target.parameters(), net.parameters(), strict=True):
        old.copy_(broadcast(1 - keep, old) * new + broadcast(keep, old) * old)


@in_c(kernel.learn, kernel.takes_round)
def learn(
    env: envs.Env,
    net: QNetwork,
    target: QNetwork,
    optimizer: SeedAdam,
    replay: Replay,
    episodes: envs.EpisodeTracker,
    state: envs.State,
    obs: Tensor,
    noise: tuple[Tensor, Tensor],
    draws: Tensor,
    syncs: int,
    config: Config,
) -> tuple[envs.State, Tensor, dict[str, Tensor]]:
    """A round: F steps per environment, and an update on what the memory then holds.

    noise: the policy's and the environments', [S, F, N, ...]. draws: as of `update`. syncs: how
    often the target network is updated. Returns the next state and observations, and the metrics.
    """
    state, obs, steps = envs.rollout(env, net, state, obs, *noise)
    new = (steps.obs, steps.actions, steps.rewards, steps.terminated, steps.next_obs)
    replay.add(Transitions(*(field.flatten(1, 2) for field in new)))
    if syncs:
        update_target(target, net, syncs, config.tau)
    metrics = episodes.update(steps.rewards, steps.done)
    if draws.shape[1]:
        metrics |= update(net, target, optimizer, replay, draws, config)
    return state, obs, metrics


def train(config: Config, run: Run) -> QNetwork:
    """Train all seeds of a run; returns their action-value functions."""
    S, N, F = len(run.seeds), config.num_envs, config.train_freq
    env = config.make_env()
    assert env.spec.obs_size is not None
    net = run.begin_with(QNetwork(env.spec, config, run.streams("init"))).to(run.device)
    target = run.begin_with(QNetwork(env.spec, config, run.streams("init"))).to(run.device)
    optimizer = SeedAdam(net)
    replay = Replay(S, config.buffer_size, env.spec.obs_size, run.device)
    episodes = envs.EpisodeTracker(S, N, run.device)
    parts = net, target, optimizer, replay, episodes
    # The interval counts environment steps, not gradient steps (SB3).
    interval = max(config.target_update_interval // N, 1) * N

    # On CUDA a round is recorded once as a graph, so all that changes is an argument.
    @captured(run.device, env.native)
    def iteration(
        state: envs.State,
        obs: Tensor,
        noise: tuple[Tensor, Tensor],
        draws: Tensor,
        syncs: int,
    ) -> tuple[envs.State, Tensor, dict[str, Tensor]]:
        return learn(env, *parts, state, obs, noise, draws, syncs, config)

    streams = run.streams("train")
    state, obs = env.reset(streams.uniform(N, env.initial_noise))
    timestep, state, obs = run.restore((*parts, streams), 0, state, obs)
    schedule = epsilons(timestep, config)
    run.evaluate_if_due(timestep, env, net)
    while timestep < config.total_timesteps:
        before, timestep = timestep, timestep + config.block
        # As in SB3: F steps, then G gradient steps once more than learning_starts have passed.
        learns = timestep > config.learning_starts
        epsilon = from_host(next(schedule), run.device)
        # Noise is drawn beforehand, from each seed's own stream: no seed depends on another.
        state, obs, metrics = iteration(
            state,
            obs,
            (net.draw(streams, F, N, epsilon=epsilon), streams.uniform(F, N, env.noise_size)),
            streams.uniform(config.updates if learns else 0, config.batch_size),  # [S, G, M]
            timestep // interval - before // interval,
        )
        run.log(timestep, metrics)
        run.evaluate_if_due(timestep, env, net)
        run.save_if_due(timestep, state, obs)
    return net


load = loader(Config, QNetwork)
PRESETS = read_presets("algos/presets/dqn.toml")

if __name__ == "__main__":
    main(parse(Config, PRESETS, __doc__), train, PRESETS)
