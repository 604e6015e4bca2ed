"""Soft actor-critic for discrete actions (Christodoulou, 2019, arXiv 1910.07207).

    python algos/sac_discrete.py --env CartPole-v1

The equations, for transitions (s, a, r, s') drawn from a replay memory. pi(s), log pi(s) and Q(s)
are vectors over the A actions: an expectation over actions is a sum, where SAC draws a sample.

    V(s')   = pi(s')^T [ min_i Q_target,i(s') - alpha log pi(s') ]
    y       = r + gamma V(s')
              without the second term if s' is terminal, not if the episode was truncated there
    L_Q     = 1/2 sum_i E[ (Q_i(s, a) - y)^2 ]
    L_pi    = E[ pi(s)^T [ alpha log pi(s) - min_i Q_i(s) ] ]
    L_alpha = -log(alpha) E[ pi(s)^T [ log pi(s) + H ] ], H = 0.98 log A by default

Differences from the author's code (p-christ's SAC_Discrete.py at c2da672, which has H's 0.98): log
pi is a log-softmax (there the log of probabilities, with 1e-8 in the place of 0), L_Q has the
factor 1/2, gradients are not clipped. From CleanRL's sac_atari.py at 004f8a0: H is 0.89 log A
there, L_Q has no 1/2, L_pi and L_alpha are divided by A, and L_alpha has alpha in the place of
log(alpha). Adam's epsilon is 1e-4 in both, here 1e-8, as SB3's. The other defaults are those of
SB3's SAC.

Shapes: S seeds, N environments per seed, F steps per environment between two updates (train_freq),
G gradient steps per update, M transitions in a minibatch, C capacity of the memory, O observation
size, A actions. Every loss is [S], and no term mixes two seeds, so `loss.sum().backward()` gives
each seed its own gradient. A hyperparameter is a number, or [S] where the seeds differ in it:
`broadcast` reshapes it to be multiplied with a tensor. `@in_c` names a C kernel that runs in the
place of a function until that is edited.

Logged per round of F steps: critic_loss, actor_loss, q_values (mean of both critics), entropy (mean
of -log pi) and alpha of the last minibatch; train_return and train_length of the episodes that
ended.
"""

from __future__ import annotations

from manyseeds.command import parse

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from manyseeds import envs
from manyseeds.algos.kernels import sac_discrete as kernel
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
    UsageError,
    read_presets,
)
from manyseeds.distributions import Categorical
from manyseeds.kernels import in_c, memory
from manyseeds.kernels.rollout import PolicyKernel
from manyseeds.layers import SeedMLP
from manyseeds.optim import SeedAdam
from manyseeds.rows import broadcast, used
from manyseeds.runs.control import Run, main
from manyseeds.seeds import SeedStreams


@dataclass(frozen=True, kw_only=True)
class Config(ControlConfig):
    """SAC for discrete actions. The defaults are those of SB3's SAC."""

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
    target_entropy: PerRow[Fraction] = 0.98
    """Share of the greatest entropy, H / log(A), that alpha is learned for."""
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


class Actor(nn.Module):
    """S policies, each a ReLU network."""

    def __init__(self, spec: envs.EnvSpec, config: Config, init: SeedStreams) -> None:
        super().__init__()
        assert spec.obs_size is not None
        self.num_actions = spec.num_actions
        outputs = (spec.num_actions,)
        self.net = SeedMLP(len(init.seeds), spec.obs_size, config.hidden, outputs, "relu")
        self.net.uniform_init(init)  # as torch.nn.Linear

    def forward(self, obs: Tensor) -> Categorical:
        """The distributions of actions for obs [S, B, O]."""
        return Categorical(self.net.only(0, obs))

    def logprobs(self, obs: Tensor) -> Tensor:
        """Log-probabilities of all actions [S, B, A], for obs [S, B, O]."""
        return self(obs).logits.log_softmax(-1)

    def draw(self, streams: SeedStreams, *shape: int) -> Tensor:
        """Noise [S, *shape, A] for sampled actions."""
        return streams.gumbel(*shape, self.num_actions)

    def act(self, obs: Tensor, noise: Tensor | None = None) -> Tensor:
        """Actions [S, N] for obs [S, N, O]; greedy without noise."""
        policy = self(obs)
        return policy.mode() if noise is None else policy.sample(noise)

    def as_kernel(self) -> PolicyKernel:
        """What `act` does, for rollouts in C."""
        return PolicyKernel(self.net)


class Uniform:
    """The policy before learning starts: its noise [S, N, 1] is the action."""

    def __init__(self, actor: Actor) -> None:
        self.actor = actor

    def draw(self, streams: SeedStreams, *shape: int) -> Tensor:
        """Actions [S, *shape, 1], each as probable as the others."""
        return (streams.uniform(*shape, 1) * self.actor.num_actions).floor()

    def act(self, obs: Tensor, noise: Tensor) -> Tensor:
        """Actions [S, N]."""
        return noise.squeeze(-1).long()

    def as_kernel(self) -> PolicyKernel:
        """What `act` does, for rollouts in C."""
        return PolicyKernel(self.actor.net, noise_is_action=True)


class Critics(nn.Module):
    """Two action-value functions per seed, each a ReLU network."""

    def __init__(self, spec: envs.EnvSpec, config: Config, init: SeedStreams) -> None:
        super().__init__()
        assert spec.obs_size is not None
        outputs = spec.num_actions, spec.num_actions
        self.q = SeedMLP(len(init.seeds), spec.obs_size, config.hidden, outputs, "relu")
        self.q.uniform_init(init)

    def forward(self, obs: Tensor) -> Tensor:
        """Q_1 and Q_2 of all actions, [2, S, B, A], for obs [S, B, O]."""
        return torch.stack(self.q(obs))


class Temperature(nn.Module):
    """log(alpha) of each seed."""

    def __init__(self, seeds: int, spec: envs.EnvSpec, config: Config) -> None:
        super().__init__()
        self.log_alpha = nn.Parameter(torch.zeros(seeds, 1, 1, 1))
        self.given = config.alpha
        self.target_entropy = math.log(spec.num_actions) * config.target_entropy

    def forward(self) -> Tensor | float:
        """alpha, [S], or as it is given."""
        return self.given if used(self.given) else self.log_alpha.detach().exp().flatten()

    def loss(self, logprobs: Tensor) -> Tensor:
        """-log(alpha) E[pi^T (log pi + H)] per seed, [S]; logprobs [S, M, A]."""
        surplus = logprobs + broadcast(self.target_entropy, logprobs)
        excess = expectation(logprobs, surplus).mean(-1)
        return -self.log_alpha.flatten() * excess.detach()


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


def expectation(logprobs: Tensor, values: Tensor) -> Tensor:
    """pi^T values, [S, M]; logprobs and values of all actions, [S, M, A]."""
    return (logprobs.exp() * values).sum(-1)


def td_target(
    rewards: Tensor,
    terminated: Tensor,
    next_q_values: Tensor,
    next_logprobs: Tensor,
    alpha: float | Tensor,
    gamma: float | Tensor,
) -> Tensor:
    """y [S, M]; of all actions: next_q_values of both target critics, [2, S, M, A], and
    next_logprobs, [S, M, A]; alpha: a number or [S]."""
    soft_q_values = next_q_values.amin(0) - broadcast(alpha, next_logprobs) * next_logprobs
    soft_values = expectation(next_logprobs, soft_q_values)
    # Only a termination ends the sum of rewards, a truncation does not.
    return rewards + broadcast(gamma, rewards) * soft_values * ~terminated


def critic_loss(q_values: Tensor, targets: Tensor) -> Tensor:
    """Half the mean squared errors of both critics per seed, [S]; q_values [2, S, M]."""
    return 0.5 * (q_values - targets).square().mean(-1).sum(0)


def actor_loss(logprobs: Tensor, q_values: Tensor, alpha: float | Tensor) -> Tensor:
    """E[pi^T (alpha log pi - min_i Q_i)] per seed, [S]; of all actions: logprobs [S, M, A] and
    q_values [2, S, M, A]."""
    costs = broadcast(alpha, logprobs) * logprobs - q_values.amin(0)
    return expectation(logprobs, costs).mean(-1)


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
    config: Config,
) -> dict[str, Tensor]:
    """A gradient step on each of the G minibatches that the uniforms draws [S, G, M] choose.

    Returns the last minibatch's metrics, each [S].
    """
    for uniforms in draws.unbind(1):
        # Uniform over the memory, with replacement.
        batch = replay.sample(uniforms)
        alpha = temperature()
        with torch.no_grad():
            next_logprobs = actor.logprobs(batch.next_obs)
            next_q_values = target(batch.next_obs)
            targets = td_target(
                *(batch.rewards, batch.terminated, next_q_values, next_logprobs),
                *(alpha, config.gamma),
            )
        chosen = batch.actions.unsqueeze(-1).expand(2, -1, -1, -1)
        q_values = critics(batch.obs).gather(-1, chosen).squeeze(-1)
        of_critics = critic_loss(q_values, targets)
        of_critics.sum().backward()
        critic_optimizer.step(config.learning_rate)

        # By the critics after their step, as in SB3's SAC. All that depends on the actor is pi: the
        # gradient does not go through the critics.
        with torch.no_grad():
            all_q_values = critics(batch.obs)
        logprobs = actor.logprobs(batch.obs)
        of_actor = actor_loss(logprobs, all_q_values, alpha)
        of_actor.sum().backward()
        actor_optimizer.step(config.learning_rate)

        if not used(temperature.given):
            temperature.loss(logprobs).sum().backward()
            temperature_optimizer.step(config.learning_rate)
        update_target(target, critics, config.tau)
    return {
        "critic_loss": of_critics.detach(),
        "actor_loss": of_actor.detach(),
        "q_values": q_values.detach().mean(-1).mean(0),
        "entropy": -expectation(logprobs, logprobs).detach().mean(-1),
        "alpha": torch.zeros_like(of_actor.detach()) + broadcast(alpha, of_actor.detach()),
    }


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
    replay = Replay(S, capacity, spec.obs_size, run.device)
    parts = actor, critics, target, temperature, *optimizers, replay
    episodes = envs.EpisodeTracker(S, N, run.device)
    uniform = Uniform(actor)

    # On CUDA a round is recorded once as a graph, so all that changes is an argument.
    @captured(run.device, env.native)
    def iteration(
        state: envs.State,
        obs: Tensor,
        noise: tuple[Tensor, Tensor],
        draws: Tensor,
        random: bool,
    ) -> tuple[envs.State, Tensor, dict[str, Tensor]]:
        state, obs, steps = envs.rollout(env, uniform if random else actor, state, obs, *noise)
        new = (steps.obs, steps.actions, steps.rewards, steps.terminated, steps.next_obs)
        replay.add(Transitions(*(field.flatten(1, 2) for field in new)))
        metrics = episodes.update(steps.rewards, steps.done)
        if draws.shape[1]:
            metrics |= update(*parts, draws, config)
        return state, obs, metrics

    streams = run.streams("train")
    state, obs = env.reset(streams.uniform(N, env.initial_noise))
    timestep, state, obs = run.restore((*parts, episodes, streams), 0, state, obs)
    run.evaluate_if_due(timestep, env, actor)
    while timestep < config.total_timesteps:
        random = timestep < config.learning_starts
        timestep += config.block
        # As in SB3: F steps, then G gradient steps once more than learning_starts have passed.
        G = config.updates if timestep > config.learning_starts else 0
        draw = uniform.draw if random else actor.draw
        # Noise is drawn beforehand, from each seed's own stream: no seed depends on another.
        state, obs, metrics = iteration(
            state,
            obs,
            (draw(streams, F, N), streams.uniform(F, N, env.noise_size)),
            streams.uniform(G, config.batch_size),  # [S, G, M]
            random,
        )
        run.log(timestep, metrics)
        run.evaluate_if_due(timestep, env, actor)
        run.save_if_due(timestep, state, obs)
    return actor


load = loader(Config, Actor)
PRESETS = read_presets("algos/presets/sac_discrete.toml")

if __name__ == "__main__":
    main(parse(Config, PRESETS, __doc__), train, PRESETS)
