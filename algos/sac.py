"""Soft actor-critic, SAC (Haarnoja et al., 2018, arXiv 1812.05905: two critics, alpha learned).

    python algos/sac.py --env Pendulum-v1

The equations, for transitions (s, a, r, s') drawn from a replay memory, and actions of the policy,
a = tanh(u), u = mu(s) + sigma(s) n, n standard normal:

    log pi(a|s) = sum_d log N(u_d; mu_d, sigma_d) - log(1 - tanh(u_d)^2)            (eq. 26)
    y       = r + gamma (min_i Q_target,i(s', a') - alpha log pi(a'|s'))            (eqs. 2, 3)
              without the second term if s' is terminal, not if the episode was truncated there
    L_Q     = 1/2 sum_i E[ (Q_i(s, a) - y)^2 ]                                      (eq. 5)
    L_pi    = E[ alpha log pi(a|s) - min_i Q_i(s, a) ], a of the policy             (eq. 9)
    L_alpha = -log(alpha) E[ log pi(a|s) + H ], H = -D by default                   (eq. 18)

Differences from SB3's SAC: log(1 - tanh(u)^2) is computed without the 1e-6 that is added there, so
that it is right for any u; whether actions are random is decided per round of F steps, and noise to
explore by is not added to these. An Ornstein-Uhlenbeck process starts anew at the end of a round in
which an episode ended, there with each episode. As there, L_alpha has log(alpha) in the place of
alpha, and all of a gradient step uses alpha as it was before it. The defaults are SB3's.

Shapes: S seeds, N environments per seed, F steps per environment between two updates (train_freq),
G gradient steps per update, M transitions in a minibatch, C capacity of the memory, O observation
size, D components of an action. Every loss is [S], and no term mixes two seeds, so
`loss.sum().backward()` gives each seed its own gradient. A hyperparameter is a number, or [S] where
the seeds differ in it: `broadcast` reshapes it to be multiplied with a tensor. `@in_c` names a C
kernel that runs in the place of a function until that is edited.

Logged per round of F steps: critic_loss, actor_loss, q_values (mean of both critics), entropy (mean
of -log pi) and alpha of the last minibatch; train_return and train_length of the episodes that
ended.
"""

from __future__ import annotations

from manyseeds.command import parse

import math
from dataclasses import dataclass
from typing import Annotated, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

from manyseeds import envs
from manyseeds.algos.kernels import sac as kernel
from manyseeds.capture import captured
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
    Range,
    UsageError,
    read_presets,
)
from manyseeds.kernels import in_c, memory
from manyseeds.kernels.rollout import PolicyKernel
from manyseeds.layers import SeedMLP
from manyseeds.optim import SeedAdam
from manyseeds.rows import broadcast, used
from manyseeds.runs.control import Run, main
from manyseeds.seeds import SeedStreams


@dataclass(frozen=True, kw_only=True)
class Config(ControlConfig):
    """SAC. The defaults are SB3's."""

    env: str = "Pendulum-v1"
    """Environment id."""
    num_envs: PositiveInt = 1
    """N, environments per seed."""
    train_freq: PositiveInt = 1
    """F, steps per environment between two updates."""
    gradient_steps: int = 1
    """G, gradient steps per update (-1: one per collected transition)."""
    batch_size: PositiveInt = 256
    """M, transitions per gradient step."""
    buffer_size: PositiveInt = 1_000_000
    """C, transitions in each seed's replay memory."""
    learning_starts: NonNegativeInt = 100
    """Timesteps of random actions, to the end of a round, before the first update."""
    learning_rate: PerRow[Positive] = 3e-4
    """Learning rate of Adam, for the policy, the critics and alpha."""
    gamma: PerRow[Fraction] = 0.99
    """Discount factor per step."""
    tau: PerRow[PositiveFraction] = 0.005
    """Polyak coefficient of the target critics' update after each gradient step."""
    alpha: PerRow[NonNegative] = 0.0
    """Weight of the entropy (0: learned; it begins at 1)."""
    target_entropy: PerRow[Annotated[float, Range(-20, 20)]] = -1.0
    """Entropy per component of an action, H / D, that alpha is learned for."""
    noise_type: Literal["normal", "ornstein-uhlenbeck"] = "normal"
    """Noise that is added to the policy's actions in rollouts, from -1 to 1."""
    noise_std: PerRow[NonNegative] = 0.0
    """Standard deviation of that noise, of an Ornstein-Uhlenbeck process sigma (0: none)."""
    hidden: tuple[PositiveInt, ...] = (256, 256)
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
        return envs.make_for(self, observations="vector", actions="continuous")

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


class SquashedGaussian(NamedTuple):
    """Distributions of tanh(u), u normal, over actions of D components between -1 and 1."""

    mean: Tensor  # [S, B, D], of u
    log_std: Tensor  # [S, B, D]

    def mode(self) -> Tensor:
        """The actions [S, B, D] of the means."""
        return self.mean.tanh()

    def sample(self, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Actions [S, B, D] from standard normal noise [S, B, D], and log-probabilities [S, B]."""
        u = self.mean + self.log_std.exp() * noise
        of_u = -0.5 * noise.square() - self.log_std - 0.5 * math.log(2 * math.pi)
        # log(1 - tanh(u)^2), without the difference, of which nothing is left for large u.
        of_tanh = 2 * (math.log(2) - u - softplus(-2 * u))
        return u.tanh(), (of_u - of_tanh).sum(-1)


class Actor(nn.Module):
    """S policies, each a ReLU network."""

    low: Tensor  # [D], the bounds of actions
    high: Tensor

    def __init__(self, spec: envs.EnvSpec, config: Config, init: SeedStreams) -> None:
        super().__init__()
        assert spec.obs_size is not None
        self.action_size = len(spec.action_low)
        outputs = (2 * self.action_size,)
        self.net = SeedMLP(len(init.seeds), spec.obs_size, config.hidden, outputs, "relu")
        self.net.uniform_init(init)  # as torch.nn.Linear
        self.register_buffer("low", torch.tensor(spec.action_low), persistent=False)
        self.register_buffer("high", torch.tensor(spec.action_high), persistent=False)

    def forward(self, obs: Tensor) -> SquashedGaussian:
        """The distributions of actions for obs [S, B, O]."""
        mean, log_std = self.net.only(0, obs).split(self.action_size, dim=-1)
        return SquashedGaussian(mean, log_std.clamp(-20, 2))  # SB3's bounds

    def draw(self, streams: SeedStreams, *shape: int) -> Tensor:
        """Noise [S, *shape, D] for sampled actions."""
        return streams.normal(*shape, self.action_size)

    def act(self, obs: Tensor, noise: Tensor | None = None) -> Tensor:
        """Actions [S, N, D] within their bounds, for obs [S, N, O]; greedy without noise."""
        policy = self(obs)
        return self.within_bounds(policy.mode() if noise is None else policy.sample(noise)[0])

    def as_kernel(self) -> PolicyKernel:
        """What `act` does, for rollouts in C."""
        return PolicyKernel(self.net, squashed_to=(self.low, self.high))

    def within_bounds(self, squashed: Tensor) -> Tensor:
        """Actions from -1 to 1 as the environment's, [..., D]."""
        share = (squashed + 1) / 2
        return self.low * (1 - share) + self.high * share

    def squashed(self, actions: Tensor) -> Tensor:
        """The environment's actions [..., D] as numbers from -1 to 1, as the critics see them."""
        return 2 * (actions - self.low) / (self.high - self.low) - 1


class Uniform:
    """The policy before learning starts: its noise [S, N, D], from 0 to 1, is the action."""

    def __init__(self, actor: Actor) -> None:
        self.actor = actor

    def act(self, obs: Tensor, noise: Tensor) -> Tensor:
        """Actions [S, N, D] within their bounds."""
        return self.actor.within_bounds(2 * noise - 1)

    def as_kernel(self) -> PolicyKernel:
        """What `act` does, for rollouts in C."""
        bounds = self.actor.low, self.actor.high
        return PolicyKernel(self.actor.net, noise_is_action=True, squashed_to=bounds)


class Exploring:
    """The policy with noise added: its noise is that of the actor, and behind it the other."""

    def __init__(self, actor: Actor) -> None:
        self.actor = actor

    def act(self, obs: Tensor, noise: Tensor) -> Tensor:
        """Actions [S, N, D] within their bounds, for obs [S, N, O] and noise [S, N, 2 D]."""
        of_actor, added = noise.chunk(2, dim=-1)
        squashed = self.actor(obs).sample(of_actor)[0] + added
        return self.actor.within_bounds(squashed.clamp(-1, 1))

    def as_kernel(self) -> PolicyKernel:
        """What `act` does, for rollouts in C."""
        bounds = self.actor.low, self.actor.high
        return PolicyKernel(self.actor.net, squashed_to=bounds, explores=True)


class ActionNoise:
    """Noise [S, F, N, D] to explore by: normal, or an Ornstein-Uhlenbeck process per environment.

    The process is x <- x - theta x dt + sigma sqrt(dt) n with SB3's theta = 0.15 and dt = 0.01. It
    starts at 0, and anew at the end of a round in which an episode ended.
    """

    def __init__(self, config: Config, seeds: int, action_size: int, device: torch.device) -> None:
        self.std, self.is_process = config.noise_std, config.noise_type == "ornstein-uhlenbeck"
        self.last = torch.zeros(seeds, config.num_envs, action_size, device=device)

    def draw(self, streams: SeedStreams, steps: int) -> Tensor:
        """The noise of the next F steps."""
        noise = streams.normal(steps, *self.last.shape[1:])
        noise = noise * broadcast(self.std, noise)
        if not self.is_process:
            return noise
        path = [self.last]
        for change in noise.unbind(1):
            path.append(path[-1] * (1 - 0.15 * 0.01) + change * 0.1)
        self.last.copy_(path[-1])
        return torch.stack(path[1:], dim=1)

    def end(self, done: Tensor) -> None:
        """Start anew where one of the steps of a round, done [S, F, N], ended an episode."""
        self.last.masked_fill_(done.any(1).unsqueeze(-1), 0.0)


class Critics(nn.Module):
    """Two action-value functions per seed, each a ReLU network."""

    def __init__(self, spec: envs.EnvSpec, config: Config, init: SeedStreams) -> None:
        super().__init__()
        assert spec.obs_size is not None
        inputs = spec.obs_size + len(spec.action_low)
        self.q = SeedMLP(len(init.seeds), inputs, config.hidden, (1, 1), "relu")
        self.q.uniform_init(init)

    def forward(self, obs: Tensor, actions: Tensor) -> Tensor:
        """Q_1 and Q_2, [2, S, B], for obs [S, B, O] and actions [S, B, D] from -1 to 1."""
        return torch.stack(self.q(torch.cat((obs, actions), dim=-1))).squeeze(-1)


class Temperature(nn.Module):
    """log(alpha) of each seed."""

    def __init__(self, seeds: int, spec: envs.EnvSpec, config: Config) -> None:
        super().__init__()
        self.log_alpha = nn.Parameter(torch.zeros(seeds, 1, 1, 1))
        self.given = config.alpha
        self.target_entropy = len(spec.action_low) * config.target_entropy

    def forward(self) -> Tensor | float:
        """alpha, [S], or as it is given."""
        return self.given if used(self.given) else self.log_alpha.detach().exp().flatten()

    def loss(self, logprobs: Tensor) -> Tensor:
        """-log(alpha) E[log pi + H] per seed, [S]; logprobs [S, M]."""
        excess = (logprobs + broadcast(self.target_entropy, logprobs)).mean(-1)
        return -self.log_alpha.flatten() * excess.detach()


class Transitions(NamedTuple):
    """Transitions, [S, ...] each."""

    obs: Tensor  # [S, ..., O]
    actions: Tensor  # [S, ..., D], from -1 to 1
    rewards: Tensor
    terminated: Tensor  # bool
    next_obs: Tensor  # [S, ..., O], the true successor: at a truncation the final observation


class Replay:
    """The memory of S seeds: a ring of C transitions each, all at the same position.

    A transition is one row of floats (obs, next_obs, action, reward, terminated), so that a
    minibatch is one gather.
    """

    def __init__(
        self, seeds: int, capacity: int, obs_size: int, action_size: int, device: torch.device
    ) -> None:
        self.sizes = obs_size, obs_size, action_size, 2
        self.rows = torch.zeros(seeds, capacity, sum(self.sizes), device=device)
        self.added = torch.zeros((), dtype=torch.int64, device=device)  # per seed, so far

    @property
    def size(self) -> Tensor:
        """Transitions per seed in the memory, 0-d."""
        return self.added.clamp(max=self.rows.shape[1])

    @in_c(memory.add, memory.takes)
    def add(self, new: Transitions) -> None:
        """Store K <= C transitions per seed, [S, K, ...], over the oldest ones."""
        scalars = torch.stack((new.rewards, new.terminated), dim=-1)
        rows = torch.cat((new.obs, new.next_obs, new.actions, scalars), dim=-1)
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
        obs, next_obs, actions, scalars = rows.view(*noise.shape, width).split(self.sizes, dim=-1)
        rewards, terminated = scalars.unbind(-1)
        return Transitions(obs, actions, rewards, terminated.bool(), next_obs)


def td_target(
    rewards: Tensor,
    terminated: Tensor,
    next_q_values: Tensor,
    next_logprobs: Tensor,
    alpha: float | Tensor,
    gamma: float | Tensor,
) -> Tensor:
    """y [S, M]; next_q_values: both target critics', [2, S, M]; alpha: a number or [S]."""
    soft_values = next_q_values.amin(0) - broadcast(alpha, rewards) * next_logprobs
    # Only a termination ends the sum of rewards, a truncation does not.
    return rewards + broadcast(gamma, rewards) * soft_values * ~terminated


def critic_loss(q_values: Tensor, targets: Tensor) -> Tensor:
    """Half the mean squared errors of both critics per seed, [S]; q_values [2, S, M]."""
    return 0.5 * (q_values - targets).square().mean(-1).sum(0)


def actor_loss(logprobs: Tensor, q_values: Tensor, alpha: float | Tensor) -> Tensor:
    """E[alpha log pi - min_i Q_i] per seed, [S]; q_values [2, S, M]."""
    return (broadcast(alpha, logprobs) * logprobs - q_values.amin(0)).mean(-1)


@in_c(kernel.update, kernel.takes_update)
def update(
    actor: Actor,
    critics: Critics,
    target: Critics,
    temperature: Temperature,
    actor_optimizer: SeedAdam,
    critic_optimizer: SeedAdam,
    temperature_optimizer: SeedAdam,
    replay: Replay,
    draws: Tensor,
    noise: Tensor,
    config: Config,
) -> dict[str, Tensor]:
    """A gradient step on each of the G minibatches that the uniforms draws [S, G, M] choose.

    noise: of the policy's actions at s and s', standard normal, [S, G, 2, M, D]. Returns the last
    minibatch's metrics, each [S].
    """
    for uniforms, normals in zip(draws.unbind(1), noise.unbind(1), strict=True):
        # Uniform over the memory, with replacement.
        batch = replay.sample(uniforms)
        alpha = temperature()
        with torch.no_grad():
            next_actions, next_logprobs = actor(batch.next_obs).sample(normals[:, 1])
            next_q_values = target(batch.next_obs, next_actions)
            targets = td_target(
                *(batch.rewards, batch.terminated, next_q_values, next_logprobs),
                *(alpha, config.gamma),
            )
        q_values = critics(batch.obs, batch.actions)
        of_critics = critic_loss(q_values, targets)
        of_critics.sum().backward()
        critic_optimizer.step(config.learning_rate)

        # By the critics after their step, as in SB3.
        actions, logprobs = actor(batch.obs).sample(normals[:, 0])
        of_actor = actor_loss(logprobs, critics(batch.obs, actions), alpha)
        set_gradients(actor, of_actor)
        actor_optimizer.step(config.learning_rate)

        if not used(temperature.given):
            temperature.loss(logprobs).sum().backward()
            temperature_optimizer.step(config.learning_rate)
        update_target(target, critics, config.tau)
    return {
        "critic_loss": of_critics.detach(),
        "actor_loss": of_actor.detach(),
        "q_values": q_values.detach().mean(-1).mean(0),
        "entropy": -logprobs.detach().mean(-1),
        "alpha": torch.zeros_like(of_actor.detach()) + broadcast(alpha, of_actor.detach()),
    }


def set_gradients(module: nn.Module, loss: Tensor) -> None:
    """Set the gradients of a loss [S] for one module: a critic gets none of the actor's loss."""
    parameters = list(module.parameters())
    for p, gradient in zip(parameters, torch.autograd.grad(loss.sum(), parameters), strict=True):
        p.grad = gradient


@torch.no_grad()
def update_target(target: nn.Module, source: nn.Module, tau: float | Tensor) -> None:
    """Let a target's parameters follow: p_target <- tau p + (1 - tau) p_target, in place."""
    for old, new in zip(target.parameters(), source.parameters(), strict=True):
        old.copy_(broadcast(tau, old) * new + broadcast(1 - tau, old) * old)


def train(config: Config, run: Run) -> Actor:
    """Train all seeds of a run; returns their policies."""
    S, N, F = len(run.seeds), config.num_envs, config.train_freq
    env = config.make_env()
    spec, init = env.spec, run.streams("init")
    assert spec.obs_size is not None
    actor = run.begin_with(Actor(spec, config, init)).to(run.device)
    critics, target = (Critics(spec, config, init).to(run.device) for _ in range(2))
    target.load_state_dict(critics.state_dict())
    temperature = Temperature(S, spec, config).to(run.device)
    optimizers = SeedAdam(actor), SeedAdam(critics), SeedAdam(temperature)
    # No larger than what will be stored: 10 seeds of a million take gigabytes.
    capacity = min(config.buffer_size, -(-config.total_timesteps // config.block) * config.block)
    replay = Replay(S, capacity, spec.obs_size, actor.action_size, run.device)
    parts = actor, critics, target, temperature, *optimizers, replay
    episodes = envs.EpisodeTracker(S, N, run.device)
    exploration = ActionNoise(config, S, actor.action_size, run.device)
    explores = used(config.noise_std)
    players = {"uniform": Uniform(actor), "exploring": Exploring(actor), "policy": actor}

    # On CUDA a round is recorded once as a graph, so all that changes is an argument.
    @captured(run.device, env.native)
    def iteration(
        state: envs.State,
        obs: Tensor,
        noise: tuple[Tensor, Tensor],
        draws: tuple[Tensor, Tensor],
        player: str,
    ) -> tuple[envs.State, Tensor, dict[str, Tensor]]:
        state, obs, steps = envs.rollout(env, players[player], state, obs, *noise)
        exploration.end(steps.done)
        actions = actor.squashed(steps.actions)
        new = (steps.obs, actions, steps.rewards, steps.terminated, steps.next_obs)
        replay.add(Transitions(*(field.flatten(1, 2) for field in new)))
        metrics = episodes.update(steps.rewards, steps.done)
        if draws[0].shape[1]:
            metrics |= update(*parts, *draws, config)
        return state, obs, metrics

    streams = run.streams("train")
    state, obs = env.reset(streams.uniform(N, env.initial_noise))
    timestep, state, obs = run.restore((*parts, exploration, episodes, streams), 0, state, obs)
    run.evaluate_if_due(timestep, env, actor)
    while timestep < config.total_timesteps:
        # Noise is drawn beforehand, from each seed's own stream: no seed depends on another.
        if timestep < config.learning_starts:
            player, noise = "uniform", streams.uniform(F, N, actor.action_size)
        elif explores:
            noises = actor.draw(streams, F, N), exploration.draw(streams, F)
            player, noise = "exploring", torch.cat(noises, dim=-1)
        else:
            player, noise = "policy", actor.draw(streams, F, N)
        timestep += config.block
        # As in SB3: F steps, then G gradient steps once more than learning_starts have passed.
        G = config.updates if timestep > config.learning_starts else 0
        state, obs, metrics = iteration(
            state,
            obs,
            (noise, streams.uniform(F, N, env.noise_size)),
            (
                streams.uniform(G, config.batch_size),  # [S, G, M]
                actor.draw(streams, G, 2, config.batch_size),  # [S, G, 2, M, D]
            ),
            player,
        )
        run.log(timestep, metrics)
        run.evaluate_if_due(timestep, env, actor)
        run.save_if_due(timestep, state, obs)
    return actor


load = loader(Config, Actor)
PRESETS = read_presets("algos/presets/sac.toml")

if __name__ == "__main__":
    main(parse(Config, PRESETS, __doc__), train, PRESETS)
