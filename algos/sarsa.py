"""SARSA (Rummery and Niranjan, 1994; Sutton and Barto, 2018, section 6.4): tabular action values.

    python algos/sarsa.py --env CliffWalking-v1

The equation, for one transition (s, a, r, s') and the next action a' at a time:

    Q(s, a) <- Q(s, a) + alpha [ r + gamma Q(s', a') - Q(s, a) ]                 (SB, eq. 6.7)

with Q(s', .) = 0 where s' is terminal. SARSA learns the values of the epsilon-greedy behaviour
policy pi, exploration included, so it stays away from a cliff that exploration would step off.
Evaluations are of the greedy policy, and exact where the environment provides P and R. Expected
SARSA (--expected; van Seijen et al., 2009) averages over a' instead of sampling it:

    Q(s, a) <- Q(s, a) + alpha [ r + gamma sum_a' pi(a'|s') Q(s', a') - Q(s, a) ]    (SB, eq. 6.9)

Shapes: S seeds, N = 1 environment per seed, X states, A actions. The table is [S, X, A]; one step
of all seeds is [S, N]. Environments with continuous observations are binned (envs/discretize.py).

stable-baselines3 has no tabular algorithms, so Expected SARSA on CliffWalking is compared with the
best epsilon-greedy policy from dynamic programming: with epsilon 0.1 that scores -20.71, and its
greedy path, one row from the edge, -15. SARSA, with its noisier updates, ends one row further out
(-17; with exploration -22.3). The path along the edge scores -13, and -45.8 with exploration.
algos/q_learning.py is the off-policy version of this file; the diff is the lesson.

Logged per block of steps: td_loss (mean squared TD error); train_return and train_length of the
episodes that ended, which measure the online performance, exploration included.
"""

from __future__ import annotations

from manyseeds.command import parse

from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from manyseeds import envs
from manyseeds.checkpoint import loader
from manyseeds.cli import ControlConfig, Fraction, PerRow, Range, UsageError, read_presets
from manyseeds.portable import ordered_sum
from manyseeds.rows import broadcast
from manyseeds.runs.control import Run, main
from manyseeds.seeds import SeedStreams

BLOCK = 500  # steps between two entries of the log; noise is drawn for that many at once


@dataclass(frozen=True, kw_only=True)
class Config(ControlConfig):
    """SARSA."""

    env: str = "FrozenLake-v1"
    """Environment id."""
    learning_rate: PerRow[Fraction] = 0.5
    """Alpha at the first timestep."""
    final_learning_rate: PerRow[Fraction] = 0.01
    """Alpha at the end of training."""
    gamma: PerRow[Fraction] = 0.99
    """Discount factor per step."""
    exploration_fraction: PerRow[Fraction] = 0.5
    """Fraction of training over which epsilon is annealed."""
    exploration_initial_eps: PerRow[Fraction] = 1.0
    """Initial epsilon."""
    exploration_final_eps: PerRow[Fraction] = 0.1
    """Final epsilon."""
    initial_value: PerRow[Annotated[float, Range()]] = 0.0
    """Initial value of every entry of the table."""
    expected: bool = False
    """Expected SARSA: the target averages over the next action."""

    def make_env(self) -> envs.Env:
        return envs.make_for(self, observations="index", actions="discrete")

    def check(self) -> None:
        if self.device == "cuda":
            raise UsageError("--device cuda: tables are trained on the CPU")
        if self.total_timesteps < BLOCK:
            raise UsageError(
                f"--total-timesteps {self.total_timesteps}: must be at least one block of {BLOCK}"
            )


class QTable:
    """S tables of action values, [S, X, A]."""

    def __init__(self, spec: envs.EnvSpec, config: Config, init: SeedStreams) -> None:
        assert spec.num_states is not None
        # A value above any return is optimistic, and explores by itself (SB, section 2.6).
        shape = (len(init.seeds), spec.num_states, spec.num_actions)
        self.q = torch.ones(shape)
        self.q *= broadcast(config.initial_value, self.q)
        self.final_eps = config.exploration_final_eps

    def state_dict(self) -> dict[str, Tensor]:
        """What a checkpoint holds."""
        return {"q": self.q}

    def load_state_dict(self, tensors: dict[str, Tensor]) -> None:
        """Load the table of a checkpoint."""
        self.q = tensors["q"]

    def draw(self, streams: SeedStreams, *shape: int) -> Tensor:
        """Noise [S, *shape, 3]: whether to explore, with which action, and how ties are broken."""
        return streams.uniform(*shape, 3)

    def act(
        self, obs: Tensor, noise: Tensor | None = None, epsilon: Tensor | None = None
    ) -> Tensor:
        """Actions [S, N] for states [S, N]; greedy without noise, epsilon-greedy with [S, N, 3].

        epsilon: [S or 1, 1]; by default its value at the end.
        """
        values = rows(self.q, obs)
        if noise is None:
            return values.argmax(-1)
        exploration = broadcast(self.final_eps if epsilon is None else epsilon, noise[..., 0])
        num_actions = values.shape[-1]
        explores, which, tie = noise.unbind(-1)
        random = (which * num_actions).long()
        is_best = values == values.amax(-1, keepdim=True)
        # Ties are broken at random, or a table of zeros would walk into one wall of FrozenLake.
        rank = is_best.cumsum(-1, dtype=tie.dtype)  # counts the best so far
        before = rank <= tie.unsqueeze(-1) * rank[..., -1:]  # the actions before the chosen one
        greedy = before.sum(-1).clamp(max=num_actions - 1)  # NaN has no best
        return torch.where(explores < exploration, random, greedy)


def rows(table: Tensor, obs: Tensor) -> Tensor:
    """Q(s, .), [S, N, A], in the states [S, N] of a table [S, X, A]."""
    return table.gather(1, obs.unsqueeze(-1).expand(-1, -1, table.shape[-1]))


def lookup(table: Tensor, obs: Tensor, actions: Tensor) -> Tensor:
    """Q(s, a), [S, N], of pairs [S, N] in a table [S, X, A]."""
    return table.flatten(1).gather(1, obs * table.shape[-1] + actions)


def add_(table: Tensor, obs: Tensor, actions: Tensor, amount: Tensor) -> None:
    """Q(s, a) <- Q(s, a) + amount, [S, N], in place."""
    table.flatten(1).scatter_add_(1, obs * table.shape[-1] + actions, amount)


def linear(
    progress: Tensor, start: float | Tensor, end: float | Tensor, fraction: float | Tensor = 1.0
) -> Tensor:
    """From start to end over the first `fraction` of the training, then constant.

    [S or 1, K] for a progress [1, K] from 0 to 1.
    """
    start, end, fraction = (broadcast(x, progress) for x in (start, end, fraction))
    covered = (progress / fraction).nan_to_num(1.0).clamp(max=1)  # NaN: 0 of 0
    return start + (end - start) * covered


def schedules(config: Config, timesteps: Tensor) -> tuple[Tensor, Tensor]:
    """Alpha and epsilon, [S or 1, K] each, at timesteps [1, K] float64."""
    # Convergence is proved for an alpha that decays (Watkins and Dayan, 1992) and, for SARSA, a
    # behaviour policy that becomes greedy as well (Singh et al., 2000).
    progress = timesteps / config.total_timesteps
    alpha = linear(progress, config.learning_rate, config.final_learning_rate)
    start, end = config.exploration_initial_eps, config.exploration_final_eps
    return alpha, linear(progress, start, end, config.exploration_fraction)


def expected_value(table: Tensor, obs: Tensor, epsilon: Tensor) -> Tensor:
    """sum_a pi(a|s) Q(s, a), [S, N]: the mean over the actions that `act` draws in s, [S, N].

    All of the best actions are worth the maximum, so it does not matter how `act` breaks ties.
    """
    values = rows(table, obs)
    mean, best = ordered_sum(values) / values.shape[-1], values.amax(-1)
    return broadcast(epsilon, mean) * mean + broadcast(1 - epsilon, best) * best


def td_error(
    table: Tensor,
    obs: Tensor,
    actions: Tensor,
    rewards: Tensor,
    next_values: Tensor,
    terminated: Tensor,
    gamma: float | Tensor,
) -> Tensor:
    """r + gamma V(s') - Q(s, a), [S, N], with V(s') = 0 where s' is terminal."""
    # Only a termination ends the sum of rewards, a truncation does not (Pardo et al., 1712.00378).
    gamma = broadcast(gamma, rewards)
    return rewards + gamma * next_values * ~terminated - lookup(table, obs, actions)


def train(config: Config, run: Run) -> QTable:
    """Train all seeds of a run; returns their tables."""
    env = config.make_env()
    S = len(run.seeds)
    policy = run.begin_with(QTable(env.spec, config, run.streams("init")))
    streams = run.streams("train")
    state, obs = env.reset(streams.uniform(1, env.initial_noise))
    _, epsilon = schedules(config, torch.zeros(1, 1, dtype=torch.float64))
    actions = policy.act(obs, policy.draw(streams, 1), epsilon)
    episodes = envs.EpisodeTracker(S, 1)

    timestep, state, obs, actions = run.restore((policy, streams, episodes), 0, state, obs, actions)
    run.evaluate_if_due(timestep, env, policy)
    while timestep < config.total_timesteps:
        block_noise = policy.draw(streams, BLOCK, 2), streams.uniform(BLOCK, 1, env.noise_size)
        rewards, ends, errors = [], [], []
        timesteps = torch.arange(timestep, timestep + BLOCK, dtype=torch.float64).unsqueeze(0)
        scheduled = (x.split(1, dim=1) for x in schedules(config, timesteps))
        noise = (x.unbind(1) for x in block_noise)
        for action_noise, env_noise, alpha, epsilon in zip(*noise, *scheduled, strict=True):
            step = env.step(state, actions, env_noise)
            # a' is chosen before the update and taken after it, whatever that makes of Q(s', .)
            # (SB, the box of section 6.4). At a truncation it is never taken: the next one begins
            # in another state, with another action.
            both_obs = torch.cat((step.final_obs, step.obs), 1)
            next_actions, first_actions = policy.act(both_obs, action_noise, epsilon).split(1, 1)
            if config.expected:
                next_values = expected_value(policy.q, step.final_obs, epsilon)
            else:
                next_values = lookup(policy.q, step.final_obs, next_actions)
            error = td_error(
                policy.q, obs, actions, step.reward, next_values, step.terminated, config.gamma
            )
            add_(policy.q, obs, actions, broadcast(alpha, error) * error)
            done = step.terminated | step.truncated
            state, obs = step.state, step.obs
            actions = torch.where(done, first_actions, next_actions)
            timestep += 1
            rewards.append(step.reward)
            ends.append(done)
            errors.append(error)

        metrics = episodes.update(torch.stack(rewards, 1), torch.stack(ends, 1))
        metrics["td_loss"] = ordered_sum(torch.cat(errors, 1).square()) / BLOCK
        run.log(timestep, metrics)
        run.evaluate_if_due(timestep, env, policy)
        run.save_if_due(timestep, state, obs, actions)
    return policy


load = loader(Config, QTable)
PRESETS = read_presets("algos/presets/sarsa.toml")

if __name__ == "__main__":
    main(parse(Config, PRESETS, __doc__), train, PRESETS)
