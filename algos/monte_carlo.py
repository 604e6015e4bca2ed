"""Monte Carlo prediction (Sutton and Barto, 2018, section 5.1): the values of a fixed policy.

    python algos/monte_carlo.py --env RandomWalk-v0

The value of a state is the expected return from it. Every visit in an episode gives one sample of
that return,

    G_t = R_{t+1} + gamma R_{t+2} + gamma^2 R_{t+3} + ... + gamma^(T-t-1) R_T     (SB, eq. 3.11)

After the episode, each visit updates the value of its state, for t = 0, ..., T-1:

    V(S_t) <- V(S_t) + alpha [ G_t - V(S_t) ]                                      (SB, eq. 6.1)

With alpha = 1 / N(S_t), where N counts the visits, V is the mean of the returns. First-visit Monte
Carlo learns from the first visit of each state in an episode, every-visit from all of them. No
estimate depends on another one, unless the time limit truncates an episode. First-visit means are
therefore unbiased (the bias of every-visit means vanishes with more episodes: Singh and Sutton,
1996), but they have the variance of whole returns. td_prediction.py is the alternative:
`diff algos/monte_carlo.py algos/td_prediction.py` shows the difference.

Shapes: S seeds, N parallel episodes, L steps of the longest, X states, A actions. V is [S, X],
the policy [X, A]; one episode of every seed is [S, L].

Recorded before the first episode, after each of the first 10, then at every tenth of the total: V,
and its RMS error against the exact values, from P and R (manyseeds/runs/prediction.py).
"""

from __future__ import annotations

from manyseeds.command import parse

from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from manyseeds import envs
from manyseeds.checkpoint import value_loader
from manyseeds.cli import Fraction, PerRow, read_presets
from manyseeds.portable import ordered_cumsum
from manyseeds.rows import broadcast, used
from manyseeds.runs.prediction import PredictionConfig, PredictionRun, main, random_policy

BLOCK = 10  # episodes that are played in parallel


@dataclass(frozen=True, kw_only=True)
class Config(PredictionConfig):
    """Monte Carlo prediction."""

    visits: Literal["first", "every"] = "first"
    """Which visits of a state in an episode to learn from."""
    learning_rate: PerRow[Fraction] = 0.0
    """Alpha, the step size (0: the mean of all returns, 1 / N)."""

    def make_env(self) -> envs.TabularEnv:
        return envs.make_tabular(self.env)


class Episodes(NamedTuple):
    """N complete episodes per seed; a finished one stays where it is until the longest is over.

    Where a function takes one episode of every seed, all shapes are without N.
    """

    states: Tensor  # [S, N, L + 1] int64: S_0, ..., S_T, S_T, ...
    rewards: Tensor  # [S, N, L]: R_1, ..., R_T, 0, ...
    alive: Tensor  # [S, N, L] bool: t < T
    terminated: Tensor  # [S, N] bool: S_T is terminal; otherwise the time limit cut the episode


def play(env: envs.TabularEnv, policy: Tensor, noise: Tensor) -> Episodes:
    """Play N episodes per seed with a policy [X, A].

    noise: [S, N, 1 + 2 * time_limit], for the start and for action and successor of each step. All
    of it is drawn beforehand: how far a seed is in its stream depends on no episode's length.
    """
    start, steps = noise[..., :1], noise[..., 1:].unflatten(-1, (-1, 2))
    cumulative = ordered_cumsum(policy)
    cumulative[:, -1] = 1.0
    state = env.initial(start)
    running = ~env.terminal(state)
    states, rewards, alive = [state], [], []
    for chance in steps.unbind(2):  # [S, N, 2]
        action = (chance[..., :1] >= cumulative[state]).sum(-1)
        successor = torch.where(running, env.transition(state, action, chance[..., 1:]), state)
        rewards.append(torch.where(running, env.reward(state, action, successor), 0.0))
        alive.append(running)
        states.append(successor)
        state, running = successor, running & ~env.terminal(successor)
        if not running.any():
            break
    return Episodes(
        torch.stack(states, 2), torch.stack(rewards, 2), torch.stack(alive, 2), env.terminal(state)
    )


def returns(episode: Episodes, values: Tensor, gamma: float | Tensor) -> Tensor:
    """G_t, [S, L], of one episode of every seed; values [S, X] for the final state of a cut one."""
    # An episode that the time limit cuts is bootstrapped, as everywhere in this project.
    final_value = values.gather(1, episode.states[:, -1:]).squeeze(1)
    G, found = torch.where(episode.terminated, 0.0, final_value), []
    steps = (x.flip(1).unbind(1) for x in (episode.rewards, episode.alive))
    for reward, runs in zip(*steps, strict=True):  # [S] each, the last step first
        G = torch.where(runs, reward + gamma * G, G)
        found.append(G)
    return torch.stack(found[::-1], 1)


def first_visits(episode: Episodes, num_states: int) -> Tensor:
    """Whether a step is the first of its episode in its state, [S, L] bool."""
    alive, states = episode.alive, episode.states[:, :-1]
    S, L = alive.shape
    t = torch.arange(L).expand(S, L)
    first = torch.full((S, num_states), L).scatter_reduce(1, states, t.where(alive, L), "amin")
    return alive & (first.gather(1, states) == t)


def learn(
    values: Tensor,
    counts: Tensor,
    states: Tensor,
    targets: Tensor,
    visits: Tensor,
    alpha: float | Tensor,
) -> None:
    """Move values [S, X] towards targets [S, L], in place, in the states [S, L] of the visits.

    visits: [S, L] bool. counts: [S, X], how many there were; in place, too. alpha 0: 1 / counts.
    """
    # In the order of time, which matters to a constant alpha: every-visit Monte Carlo is then
    # n-step TD with an n longer than any episode (SB, chapter 7).
    steps = (x.unsqueeze(-1).unbind(1) for x in (states, targets, visits))
    for state, target, visit in zip(*steps, strict=True):  # [S, 1] each
        counts.scatter_add_(1, state, visit.to(counts.dtype))
        mean = 1 / counts.gather(1, state).clamp(min=1)
        step_size = broadcast(alpha, target) if used(alpha) else mean
        error = target - values.gather(1, state)
        values.scatter_add_(1, state, torch.where(visit, step_size * error, 0.0))


def train(config: Config, run: PredictionRun) -> Tensor:
    """Learn the values of all seeds of a run, [S, X]."""
    # The policy does not depend on V: episodes are played many at once, and learned from in turn.
    env = config.make_env()
    policy = random_policy(env)
    S, X = len(run.seeds), len(policy)
    streams = run.streams("train")
    # Until its first visit a state keeps the value 0: the bias that one sees at first.
    values, counts = torch.zeros(S, X), torch.zeros(S, X)
    timesteps = torch.zeros(S, dtype=torch.int64)

    (first,) = run.restore((values, counts, timesteps, streams), 0)
    run.evaluate_if_due(first, env, policy, values, timesteps)
    for number in range(first, config.total_episodes):
        if number % BLOCK == 0:
            run.save_if_due(number)
            N = min(BLOCK, config.total_episodes - number)
            played = play(env, policy, streams.uniform(N, 1 + 2 * env.spec.time_limit))
        episode = Episodes(*(x[:, number % BLOCK] for x in played))
        targets = returns(episode, values, config.gamma)
        visits = episode.alive if config.visits == "every" else first_visits(episode, X)
        learn(values, counts, episode.states[:, :-1], targets, visits, config.learning_rate)
        timesteps += episode.alive.sum(1)
        run.evaluate_if_due(number + 1, env, policy, values, timesteps)
    return values


load = value_loader(Config)
PRESETS = read_presets("algos/presets/monte_carlo.toml")

if __name__ == "__main__":
    main(parse(Config, PRESETS, __doc__), train, PRESETS)
