"""The methods of this project as a tree: which question each answers, and how.

`report.py` draws it into results/plots/taxonomy.svg, for algos/README.md. A method appears once
its file is there.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from manyseeds import plots
from manyseeds.benchmarks.chapters.names import NAMES
from manyseeds.digest import ROOT

# A branch is {question or kind: what is below}, a leaf {method: its file}.
TREE: dict[str, Any] = {
    "Reinforcement\nlearning": {
        "the model is known:\nplanning": {
            NAMES["policy_iteration"]: "algos/policy_iteration.py",
            NAMES["value_iteration"]: "algos/value_iteration.py",
        },
        "learn the values of\na fixed policy": {
            "from whole returns": {NAMES["monte_carlo"]: "algos/monte_carlo.py"},
            "from estimates\n(bootstrapping)": {"TD(0), n-step, TD(λ)": "algos/td_prediction.py"},
        },
        "learn action values,\nact on them": {
            "a table": {
                NAMES["q_learning"]: "algos/q_learning.py",
                "SARSA, Expected SARSA": "algos/sarsa.py",
            },
            "a network": {NAMES["dqn"]: "algos/dqn.py"},
        },
        "learn the policy\nitself": {
            "without a critic": {
                NAMES["reinforce"]: "algos/reinforce.py",
                NAMES["grpo"]: "algos/grpo.py",
            },
            "with a critic": {
                NAMES["a2c"]: "algos/a2c.py",
                NAMES["trpo"]: "algos/trpo.py",
                NAMES["ppo"]: "algos/ppo.py",
            },
        },
    }
}


def present(tree: dict[str, Any]) -> dict[str, Any]:
    """The tree without methods whose file is not there, and without branches that are empty."""
    found: dict[str, Any] = {}
    for name, below in tree.items():
        if isinstance(below, dict):
            if inner := present(below):
                found[name] = inner
        elif (ROOT / below).exists():
            found[name] = below
    return found


def draw(path: Path) -> None:
    """Draw the methods that are there."""
    plots.tree(present(TREE), path)
