"""Temporal-difference prediction (Sutton, 1988): the values of a fixed policy by bootstrapping.

    python algos/td_prediction.py --env RandomWalk-v0

SB is Sutton and Barto (2018). The value of a state is updated from the estimate of the next state,
during the episode:

    V(S_t) <- V(S_t) + alpha [ R_{t+1} + gamma V(S_{t+1}) - V(S_t) ]       TD(0)  (SB, eq. 6.2)

with V = 0 in terminal states. n-step TD uses n rewards and then the estimate, as soon as those n
steps are taken:

    G_{t:t+n} = R_{t+1} + ... + gamma^(n-1) R_{t+n} + gamma^n V(S_{t+n})          (SB, eq. 7.1)
    V(S_t) <- V(S_t) + alpha [ G_{t:t+n} - V(S_t) ]                               (SB, eq. 7.2)

Where the episode ends within n steps, G_{t:t+n} is the return. TD(lambda) mixes all n, with weights
(1 - lambda) lambda^(n-1). Its backward view updates at every step: a trace z records how recently a
state was visited, and thus its share of each error (SB, eq. 12.5 to 12.7 for a table):

    z <- gamma lambda z,  z(S_t) <- z(S_t) + 1
    V <- V + alpha [ R_{t+1} + gamma V(S_{t+1}) - V(S_t) ] z

(The two views are equal only if V is constant during an episode: SB, section 12.2.) TD(0) is n = 1
and lambda = 0. monte_carlo.py learns from whole returns:
`diff algos/monte_carlo.py algos/td_prediction.py` shows the difference.

Shapes: S seeds, N parallel episodes, L steps of the longest, X states, A actions. V is [S, X],
the policy [X, A]; one episode of every seed is [S, L].

Alpha is constant. The steps of an episode are correlated, and so are the estimates that they
update. This leaves a bias of order alpha, which does not vanish (RandomWalk-v0, 300 episodes, 1000
seeds: 0.155 for TD(0) with alpha 0.3, and 0.055 for 4-step TD with alpha 0.1; by chance 0.003 and
0.004).

Recorded before the first episode, after each of the first 10, then at every tenth of the total: V,
and its RMS error against the exact values, from P and R (manyseeds/runs/prediction.py).
"""

from __future__ import annotations

from manyseeds.command import parse

from dataclasses import dataclass
from typing import Annotated, NamedTuple

import torch
from torch import Tensor

from manyseeds import envs
from manyseeds.checkpoint import value_loader
from manyseeds.cli import Fraction, PerRow, PositiveInt, Range, UsageError, read_presets
from manyseeds.portable import ordered_cumsum, powers
from manyseeds.rows import broadcast, used
from manyseeds.runs.prediction import PredictionConfig, PredictionRun, main, random_policy

BLOCK = 10  # episodes that are played in parallel


@dataclass(frozen=True, kw_only=True)
class Config(PredictionConfig):
    """Temporal-difference prediction."""

    n_steps: PositiveInt = 1
    """n of n-step returns."""
    trace_decay: PerRow[Fraction] = 0.0
    """Lambda of TD(lambda)."""
    learning_rate: PerRow[Annotated[float, Range(0, 1, open_low=True)]] = 0.1
    """Alpha, the step size."""

    def make_env(self) -> envs.TabularEnv:
        return envs.make_tabular(self.env)

    def check(self) -> None:
        if self.n_steps > 1 and self.trace_decay > 0:
            raise UsageError(
                f"--trace-decay {self.trace_decay:g}: TD(lambda) is not n-step TD; "
                f"with it comes --n-steps 1, not {self.n_steps}"
            )


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


def n_step_sums(episode: Episodes, n: int, gamma: float) -> tuple[Tensor, Tensor]:
    """Of G_{t:t+n} all but V: the sum of rewards, and the factor of V(S_{t+n}), [S, L] each.

    Of one episode of every seed. Where it ends within n steps, S_{t+n} is its final state: the
    factor is that of the steps there are, or 0 if it is terminal.
    """
    rewards, L = episode.rewards, episode.rewards.shape[1]
    n = min(n, L)
    sums = torch.zeros_like(rewards)
    discounts = powers(gamma, n + 1)
    for i in range(n):
        sums[:, : L - i] += discounts[i] * rewards[:, i:]
    left = episode.alive.sum(1, keepdim=True) - torch.arange(L)  # T - t
    factors = torch.tensor(discounts, dtype=rewards.dtype)
    nothing_follows = episode.terminated.unsqueeze(1) & (left <= n)
    return sums, factors[left.clamp(0, n)].masked_fill(nothing_follows, 0.0)


def learn_n_step(
    values: Tensor, episode: Episodes, n: int, gamma: float, alpha: float | Tensor
) -> None:
    """n-step TD with one episode of every seed; changes values [S, X] in place."""
    states, alive = episode.states, episode.alive
    sums, factors = n_step_sums(episode, n, gamma)
    L = alive.shape[1]
    # At the end of an episode the states still waiting are updated with the steps there are. If the
    # time limit cuts it, V of its last state is bootstrapped, as everywhere in this project.
    later = states[:, (torch.arange(L) + min(n, L)).clamp(max=L)]  # S_{t+n}
    steps = (x.unsqueeze(-1).unbind(1) for x in (states[:, :-1], later, sums, factors, alive))
    for state, ahead, reward, factor, runs in zip(*steps, strict=True):  # [S, 1] each
        error = reward + factor * values.gather(1, ahead) - values.gather(1, state)
        step = broadcast(alpha, error) * error
        values.scatter_add_(1, state, torch.where(runs, step, 0.0))


def learn_traces(
    values: Tensor,
    episode: Episodes,
    trace_decay: float | Tensor,
    gamma: float,
    alpha: float | Tensor,
) -> None:
    """TD(lambda) with one episode of every seed; changes values [S, X] in place."""
    states, alive = episode.states, episode.alive
    rewards, factors = n_step_sums(episode, 1, gamma)
    # Accumulating traces, 0 where an episode begins.
    traces, one = torch.zeros_like(values), torch.ones_like(values[:, :1])
    columns = states[:, :-1], states[:, 1:], rewards, factors, alive
    steps = (x.unsqueeze(-1).unbind(1) for x in columns)
    for state, successor, reward, factor, runs in zip(*steps, strict=True):  # [S, 1] each
        error = reward + factor * values.gather(1, successor) - values.gather(1, state)
        traces *= broadcast(gamma * trace_decay, traces)
        traces.scatter_add_(1, state, one)
        step = broadcast(alpha, error) * error
        values += torch.where(runs, step, 0.0) * traces


def train(config: Config, run: PredictionRun) -> Tensor:
    """Learn the values of all seeds of a run, [S, X]."""
    # The policy does not depend on V: episodes are played many at once, and learned from in turn.
    env = config.make_env()
    policy = random_policy(env)
    S, X = len(run.seeds), len(policy)
    streams = run.streams("train")
    values = torch.zeros(S, X)  # a bias that fades with more episodes
    timesteps = torch.zeros(S, dtype=torch.int64)

    (first,) = run.restore((values, timesteps, streams), 0)
    run.evaluate_if_due(first, env, policy, values, timesteps)
    for number in range(first, config.total_episodes):
        if number % BLOCK == 0:
            run.save_if_due(number)
            N = min(BLOCK, config.total_episodes - number)
            played = play(env, policy, streams.uniform(N, 1 + 2 * env.spec.time_limit))
        episode = Episodes(*(x[:, number % BLOCK] for x in played))
        if used(config.trace_decay):
            learn_traces(values, episode, config.trace_decay, config.gamma, config.learning_rate)
        else:
            learn_n_step(values, episode, config.n_steps, config.gamma, config.learning_rate)
        timesteps += episode.alive.sum(1)
        run.evaluate_if_due(number + 1, env, policy, values, timesteps)
    return values


load = value_loader(Config)
PRESETS = read_presets("algos/presets/td_prediction.toml")

if __name__ == "__main__":
    main(parse(Config, PRESETS, __doc__), train, PRESETS)
