"""The gridworld to play with: planning and learning step by step, computed in the browser.

static/gridworld_engine.js computes what algos/policy_iteration.py, value_iteration.py,
q_learning.py and sarsa.py compute; the page without scripts shows the optimum of the first grid.
"""

from __future__ import annotations

from typing import Any

import torch

from manyseeds import envs
from manyseeds.algos import policy_iteration, value_iteration
from manyseeds.benchmarks.web.page import Page
from manyseeds.cli import from_preset
from manyseeds.envs.gridworld import GOAL, MOVES, SIZE, START, TRAP
from manyseeds.runs.planning import TIED, PlanningRun

ENV = "Gridworld-v0"
SCRIPTS = (
    "vendor/d3.min.js",
    "vendor/plot.min.js",
    "static/site.js",
    "static/plotting.js",
    "static/interactive.js",
    "static/gridworld_engine.js",
    "static/gridworld_state.js",
    "static/gridworld_board.js",
    "static/gridworld_charts.js",
    "static/gridworld.js",
)


def first_world() -> dict[str, Any]:
    """The world that the page begins with: the environment's defaults, the preset's gamma."""
    gamma = value_iteration.PRESETS[ENV].settings["gamma"]
    return {
        "rows": SIZE,
        "columns": SIZE,
        "start": START,
        "goals": [GOAL],
        "traps": [TRAP],
        "walls": [],
        "rewards": [],
        "jumps": [],
        "gamma": gamma,
        "slip": 0,
        "stepCost": 0,
        "bumpCost": 0,
        "goalReward": 1,
        "trapReward": -1,
        "restart": False,
    }


def planned(module: Any) -> tuple[torch.Tensor, PlanningRun]:
    """The optimal values [X] of the first world by an algorithm, and the record of its sweeps."""
    config = from_preset(module.Config, module.PRESETS, ENV)
    plan = PlanningRun(config)
    return module.solve(config, plan), plan


def optimum(values: torch.Tensor, gamma: float) -> list[list[dict[str, Any]]]:
    """Each cell of the first world: its mark, its V* of values [X], and all best actions."""
    env = envs.make_tabular(ENV)
    q = value_iteration.action_values(values, env, gamma)
    best = q >= q.amax(0) - TIED * q.amax(0).abs().clamp(min=1.0)
    cells = [
        {
            "mark": env.layout.marks.get(x, ""),
            "value": values[x].item(),
            "ends": bool(env.ends[x]),
            "arrows": [env.layout.actions[a] for a in range(len(MOVES)) if best[a, x]],
        }
        for x in range(SIZE**2)
    ]
    return [cells[row * SIZE : (row + 1) * SIZE] for row in range(SIZE)]


def pages() -> list[Page]:
    _, policy_plan = planned(policy_iteration)
    values, value_plan = planned(value_iteration)
    first = first_world()
    context = {
        "first": first,
        "optimum": optimum(values, first["gamma"]),
        "policy_sweeps": len(policy_plan.sweeps),
        "policies": policy_plan.sweeps[-1].iteration,
        "value_sweeps": len(value_plan.sweeps) - 1,  # the first is V = 0
    }
    about = (
        "A gridworld to play with: policy iteration, value iteration, Q-learning and SARSA step by "
        "step, on boards of your own and of Sutton and Barto."
    )
    file, title, template = "gridworld.html", "Gridworld", "gridworld.html.j2"
    return [Page(file, title, template, context, SCRIPTS, group="Learn", description=about)]
