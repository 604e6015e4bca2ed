"""Value iteration (Bellman, 1957; Sutton and Barto, 2018, section 4.4): planning with a model.

    python algos/value_iteration.py --env Gridworld-v0 --gif

The equation, applied to all states at once and repeated:

    V(s) <- max_a sum_s' P(s'|s, a) [ R(s, a, s') + gamma V(s') ]              (SB, eq. 4.10)

Every sweep shrinks the distance of V to the optimal values V* by at least the factor gamma. The
Bellman residual, the largest change that the next sweep would make, bounds that distance:
max |V - V*| <= residual / (1 - gamma).

Shapes: X states, A actions, K successors that can follow an action. P and R are [A, X, K], V is [X]
float64. There are no seeds, because nothing is random.

Values are those of episodes without the environment's time limit. The final score, the undiscounted
return of the greedy policy, respects the time limit. Values below the tolerance are
indistinguishable from 0: if gamma is so small that a distant goal is worth less than that, the
greedy actions far from it are arbitrary (Gridworld at 0.1: 14 steps, 1e-13).

Recorded per sweep (sweep 0 is V = 0): the values, the greedy actions, the Bellman residual.
"""

from __future__ import annotations

from manyseeds.command import parse

from dataclasses import dataclass

import torch
from torch import Tensor

from manyseeds import envs
from manyseeds.cli import read_presets
from manyseeds.portable import ordered_sum
from manyseeds.runs.planning import PlanningConfig, PlanningRun, main


@dataclass(frozen=True, kw_only=True)
class Config(PlanningConfig):
    """Value iteration."""

    goal: tuple[int, int] = envs.gridworld.GOAL
    """Row and column of Gridworld's goal, reward +1."""
    trap: tuple[int, int] = envs.gridworld.TRAP
    """Row and column of Gridworld's trap, reward -1."""
    walls: tuple[int, ...] = ()
    """Rows and columns of Gridworld's walls. 2 3 2 4 places two."""

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


def solve(config: Config, plan: PlanningRun) -> Tensor:
    """Sweep until the values have converged; returns them, [X]."""
    env = config.make_env()
    V = torch.zeros(len(env.ends), dtype=torch.float64)
    while True:
        # A sweep uses the values of the sweep before in all states (Jacobi). Sutton and Barto's box
        # overwrites V in place: fewer sweeps, but they depend on the order of the states.
        q = action_values(V, env, config.gamma)
        residual = (q.amax(0) - V).abs().max().item()
        plan.record(V, greedy(q), residual)
        if residual <= goal_of_residual(V, config.gamma, config.tolerance):
            return V
        V = q.amax(0)


PRESETS = read_presets("algos/presets/value_iteration.toml")

if __name__ == "__main__":
    main(parse(Config, PRESETS, __doc__), solve, PRESETS)
