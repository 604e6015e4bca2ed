"""The methods of this project as a tree: which question each answers, and how.

`report.py` draws it into results/plots/taxonomy.svg, for algos/README.md.
"""

from __future__ import annotations

from typing import Any

from manyseeds.benchmarks.chapters.blocks import Figure
from manyseeds.benchmarks.experiments import catalog

# A branch is {question or kind: what is below}. The methods of an end are those that name it as
# their branch, {method: its file}, the oldest first.
TREE: dict[str, Any] = {
    "Reinforcement\nlearning": {
        "the model is known:\nplanning": {},
        "learn the values of\na fixed policy": {
            "from whole returns": {},
            "from estimates\n(bootstrapping)": {},
        },
        "learn action values,\nact on them": {"a table": {}, "a network": {}},
        "learn the policy\nitself": {
            "without a critic": {},
            "with a critic": {},
            "with a critic,\nfrom a memory": {},
        },
    }
}


def methods(branch: str) -> dict[str, str]:
    """The methods at the end of a branch, and their files."""
    named = {name: catalog.facts(name) for name in catalog.names("algos")}
    chosen = [name for name, about in named.items() if about.branch == branch.replace("\n", " ")]
    chosen.sort(key=lambda name: named[name].year)
    return {named[name].methods or named[name].name: f"algos/{name}.py" for name in chosen}


def filled(tree: dict[str, Any]) -> dict[str, Any]:
    """The tree with its methods."""
    return {branch: filled(below) if below else methods(branch) for branch, below in tree.items()}


def figure() -> Figure:
    """The methods that are there."""
    label = "The methods of this project as a tree"
    return Figure("taxonomy", label, "tree", {"branches": filled(TREE)})
