"""Policy iteration (Howard, 1960; Sutton and Barto, 2018, section 4.3): planning with a model.

    python algos/policy_iteration.py --env Gridworld-v0 --gif

Policy iteration alternates two steps. Evaluation computes the values of the policy pi, the fixed
point of

    V(s) <- sum_a pi(a|s) sum_s' P(s'|s, a) [ R(s, a, s') + gamma V(s') ]       (SB, eq. 4.5)

and improvement takes the best action by one-step lookahead,

    pi(s) <- argmax_a sum_s' P(s'|s, a) [ R(s, a, s') + gamma V(s') ]           (SB, eq. 4.9)

until no action is better than the policy's own. V is then V*: Bellman's optimality equation holds.

Shapes: X states, A actions, K successors that can follow an action. P and R are [A, X, K], V is [X]
float64, a policy is [X, A] probabilities. There are no seeds, because nothing is random.

Values are those of episodes without the environment's time limit. The final score, the undiscounted
return of the greedy policy, respects the time limit. Values below the tolerance are
indistinguishable from 0: if gamma is so small that a distant goal is worth less than that, the
greedy actions far from it are arbitrary (Gridworld at 0.1: 14 steps, 1e-13).

Recorded per sweep of an evaluation (an exact one is a single sweep): the values, the greedy actions
for them, the Bellman residual; `iteration` counts the evaluated policies.
"""

from __future__ import annotations

from manyseeds.command import parse

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from manyseeds import envs
from manyseeds.cli import read_presets
from manyseeds.portable import ordered_sum
from manyseeds.runs.planning import PlanningConfig, PlanningRun, main


@dataclass(frozen=True, kw_only=True)
class Config(PlanningConfig):
    """Policy iteration."""

    goal: tuple[int, int] = envs.gridworld.GOAL
    """Row and column of Gridworld's goal, reward +1."""
    trap: tuple[int, int] = envs.gridworld.TRAP
    """Row and column of Gridworld's trap, reward -1."""
    walls: tuple[int, ...] = ()
    """Rows and columns of Gridworld's walls. 2 3 2 4 places two."""
    evaluation: Literal["sweeps", "exact"] = "sweeps"
    """Evaluate by iterating the Bellman equation, or by solving it as a linear system."""

    def make_env(self) -> envs.TabularEnv:
        return envs.make_tabular(self.env, self.goal, self.trap, self.walls)


def action_values(V: Tensor, env: envs.TabularEnv, gamma: float) -> Tensor:
    """Q(s, a) = sum_s' P(s'|s, a) [ R(s, a, s') + gamma V(s') ], [A, X]; 0 in ended states."""
    P, successors, R = env.outcomes  # s' with P(s'|s, a) = 0 are left out
    q = ordered_sum(P * (R + gamma * V[successors]))
    # An ended state has the value 0, whatever P says of it.
    return q.masked_fill(env.ends, 0.0)


def greedy(q: Tensor) -> Tensor:
    """The first of the best actions for q [A, X], [X]; what rounding parts counts as tied."""
    best = q.amax(0)
    return (q >= best - 1e-12 * best.abs().clamp(min=1.0)).int().argmax(0)


def goal_of_residual(V: Tensor, gamma: float, tolerance: float) -> float:
    """A Bellman residual below which all values are within tolerance * max(1, |V|) of V*.

    No less than what rounding leaves of a residual.
    """
    rounding = 16 * torch.finfo(V.dtype).eps
    return max(tolerance * (1 - gamma), rounding) * max(1.0, V.abs().max().item())


def evaluate(V: Tensor, policy: Tensor, env: envs.TabularEnv, config: Config) -> Iterator[Tensor]:
    """The values [X] after each sweep of the evaluation of policy [X, A], beginning with V [X]."""
    if config.evaluation == "exact":
        yield env.policy_values(policy.unsqueeze(0), config.gamma).squeeze(0)
        return
    # In all states at once (Jacobi), from the values of the policy before, which are near.
    while True:
        q = action_values(V, env, config.gamma)
        before, V = V, ordered_sum(policy.T * q, dim=0)
        yield V
        # Half of what the improvement may overlook is left to the errors of the evaluation.
        enough = goal_of_residual(V, config.gamma, config.tolerance) / 2
        if (V - before).abs().max().item() <= enough:
            return


def improve(policy: Tensor, V: Tensor, q: Tensor, accuracy: float) -> Tensor:
    """The policy [X, A] that is greedy for q [A, X] wherever that is better than V [X]."""
    # Else two equally good policies could follow each other forever (SB, exercise 4.4).
    better = q.amax(0) > V + accuracy
    chosen = torch.nn.functional.one_hot(greedy(q), len(q)).to(policy.dtype)
    return torch.where(better.unsqueeze(-1), chosen, policy)


def solve(config: Config, plan: PlanningRun) -> Tensor:
    """Evaluate and improve until no action is better; returns the values, [X]."""
    env = config.make_env()
    X, A = len(env.ends), env.spec.num_actions
    V = torch.zeros(X, dtype=torch.float64)
    policy = torch.full((X, A), 1 / A, dtype=torch.float64)  # uniformly random
    iteration = 0
    while True:
        iteration += 1
        for values in evaluate(V, policy, env, config):
            V = values
            q = action_values(V, env, config.gamma)
            residual = (q.amax(0) - V).abs().max().item()
            plan.record(V, greedy(q), residual, iteration)
        accuracy = goal_of_residual(V, config.gamma, config.tolerance)
        improved = improve(policy, V, q, accuracy)
        # After an exact evaluation that changes nothing the next would be the same.
        stays = config.evaluation == "exact" and torch.equal(improved, policy)
        if residual <= accuracy or stays:
            return V
        policy = improved


PRESETS = read_presets("algos/presets/policy_iteration.toml")

if __name__ == "__main__":
    main(parse(Config, PRESETS, __doc__), solve, PRESETS)
