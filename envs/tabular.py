"""Environments given by their tables: transition probabilities P and rewards R."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import embedding

from manyseeds.envs.core import EnvSpec, NativeEnv
from manyseeds.portable import ordered_cumsum, ordered_sum, solve


@dataclass(frozen=True)
class Layout:
    """Where figures and replays of runs draw the states."""

    panels: dict[str, list[list[int]]]  # title -> state indices by row and column; -1: no state
    actions: tuple[str, ...]  # a symbol for each action: an arrow or a letter
    marks: dict[int, str] = field(default_factory=dict)  # state -> letter: S start, G goal, ...


class Outcomes(NamedTuple):
    """The successors that can occur, K for each action in each state, `[A, X, K]` each.

    Where there are fewer, others with probability 0 follow.
    """

    probabilities: Tensor
    successors: Tensor  # int64
    rewards: Tensor


def outcomes_of(P: Tensor, R: Tensor) -> Outcomes:
    """The outcomes that tables P and R, `[A, X, X']`, have; by the numbers of the successors."""
    most = int((P > 0).sum(-1).max())
    successors = _first(P > 0, most)
    return Outcomes(P.gather(-1, successors), successors, R.gather(-1, successors))


def _first(wanted: Tensor, count: int) -> Tensor:
    """The indices of the first `count` wanted numbers in each row, then of others."""
    n = wanted.shape[-1]
    keys = torch.arange(n) + n * ~wanted  # no two are equal: the order of those is not defined
    return keys.topk(count, largest=False).indices


class TabularEnv(NativeEnv):
    """A finite Markov decision process with X states and A actions.

    P: `[A, X, X']` float64, probability of each successor. R: `[A, X, X']` float64, its reward.
    ends: `[X]` bool, states in which the task is over: nothing follows them, whatever P says.
    start: `[X]` float64, distribution of first states. layout: by default all states in one row.
    The physics of such an environment is the state index, `[S, N]` int64.
    """

    initial_noise = 1
    transition_noise = 1

    def __init__(
        self,
        spec: EnvSpec,
        P: Tensor,
        R: Tensor,
        ends: Tensor,
        start: Tensor,
        layout: Layout | None = None,
    ) -> None:
        self.spec, self.P, self.R, self.ends, self.start = spec, P, R, ends, start
        if layout is None:
            layout = Layout(
                {"": grid(1, len(ends))}, tuple(str(action) for action in range(len(P)))
            )
        self.layout = layout
        # Only successors that can occur are stored, so that one uniform is compared with K
        # cumulative probabilities instead of X.
        self.outcomes = outcomes_of(P, R)
        self._cumulative = ordered_cumsum(self.outcomes.probabilities).flatten(0, 1)  # [A X, K]
        self._cumulative[..., -1] = 1.0
        self._start_cumulative = ordered_cumsum(start)
        self._start_cumulative[start.nonzero()[-1, 0] :] = 1.0
        self._rewards = R.float()

    def initial(self, noise: Tensor) -> Tensor:
        return torch.searchsorted(self._start_cumulative, noise[..., 0].double(), right=True)

    def transition(self, physics: Tensor, action: Tensor, noise: Tensor) -> Tensor:
        row = torch.add(physics, action, alpha=len(self.ends))
        which = (noise >= embedding(row, self._cumulative)).sum(-1, keepdim=True)
        return self.outcomes.successors[action, physics].gather(-1, which).squeeze(-1)

    def observation(self, physics: Tensor) -> Tensor:
        return physics

    def reward(self, physics: Tensor, action: Tensor, next_physics: Tensor) -> Tensor:
        return self._rewards[action, physics, next_physics]

    def terminal(self, physics: Tensor) -> Tensor:
        return self.ends[physics]

    def policy_score(self, policy: Tensor) -> Tensor:
        """Exact mean undiscounted return of one episode under the time limit, `[S]` float64.

        policy: `[S, X, A]` action probabilities. Backward induction over the time limit:
        V_h(x) = sum_a pi(a|x) sum_x' P(x'|x, a) (R(x, a, x') + V_{h-1}(x')), V = 0 once ended.
        """
        r_pi, weights, successors = self._chain(policy)
        value = torch.zeros_like(r_pi)
        for _ in range(self.spec.time_limit):
            value_of_next = value.gather(1, successors.flatten(1)).view_as(weights)
            value = r_pi + ordered_sum(weights * value_of_next)
        return ordered_sum(value * self.start)

    def policy_values(self, policy: Tensor, gamma: float) -> Tensor:
        """Exact discounted values of fixed policies without a time limit, `[S, X]` float64.

        policy: `[S, X, A]` action probabilities. Solves V = r_pi + gamma P_pi V; V is 0 where the
        task has ended. That is singular for gamma 1 and a policy that from some state on, reachable
        or not, never ends: torch.linalg.LinAlgError, or huge values where rounding hides it.
        """
        X, values = len(self.ends), []
        # One policy at a time: the matrices of all of them together would be S times as large.
        for r_pi, weights, successors in zip(*self._chain(policy), strict=True):
            P_pi = torch.zeros(X, X, dtype=torch.float64)
            for successor, weight in zip(successors.split(1, 1), weights.split(1, 1), strict=True):
                P_pi.scatter_add_(1, successor, weight)
            identity = torch.eye(X, dtype=torch.float64)
            values.append(solve(identity - gamma * P_pi, r_pi))
        return torch.where(self.ends, 0.0, torch.stack(values))

    def _chain(self, policy: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """What follows each state under policies `[S, X, A]`; all zero where the task has ended.

        Returns the expected rewards r_pi `[S, X]`, and probabilities and indices `[S, X, L]` of
        successors, where one may occur several times. L is K times the most actions that any
        policy takes in any state: K for greedy policies, A K at most.
        """
        policy = policy.double() * ~self.ends.unsqueeze(-1)
        most = int((policy != 0).sum(-1).max())
        actions = _first(policy != 0, most)  # [S, X, M]
        states = torch.arange(len(self.ends)).unsqueeze(-1)
        probabilities, successors, rewards = (x[actions, states] for x in self.outcomes)
        weights = policy.gather(-1, actions).unsqueeze(-1) * probabilities  # [S, X, M, K]
        r_pi = ordered_sum((weights * rewards).flatten(2))
        return r_pi, weights.flatten(2), successors.flatten(2)


def deterministic(
    num_states: int, num_actions: int, move: Callable[[int, int], tuple[int, float]]
) -> tuple[Tensor, Tensor]:
    """P and R of an environment without chance: `move(state, action)` is (successor, reward)."""
    moves = [[move(x, a) for x in range(num_states)] for a in range(num_actions)]
    table = torch.tensor(moves, dtype=torch.float64)  # [A, X, 2]
    P = torch.nn.functional.one_hot(table[..., 0].long(), num_states).double()
    return P, P * table[..., 1:]


def grid(rows: int, columns: int) -> list[list[int]]:
    """The panel of states that are numbered row by row."""
    return [list(range(row * columns, (row + 1) * columns)) for row in range(rows)]
