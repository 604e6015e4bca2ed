"""Verdicts that were published and are decided anew, each on seeds of its own.

A verdict that changed because code changed, or because seeds were added, is not evidence: this file
lists both values, and the comparison is repeated on 30 fresh seeds per side with a single test.
`python benchmarks/sweep.py --suite revised` trains them.
"""

from __future__ import annotations

from typing import NamedTuple

from manyseeds.benchmarks.experiments.verdicts import FIRST_FRESH

FRESH = range(FIRST_FRESH, FIRST_FRESH + 30)


class Revised(NamedTuple):
    """A verdict that did not stay as it was published."""

    algo: str
    env: str
    measure: str  # late or auc; the first was the final score when it was published
    first: str  # as it was published at first, with 95% percentile intervals
    then: str  # and after the change
    why: str


ROLLOUT = "2e4d698d normalises TRPO's first rollout before its update"
SEEDS_ADDED = f"{ROLLOUT}; later five seeds of SB3 were added"
REVISED = (
    Revised(
        "trpo",
        "MountainCar-v0",
        "late",
        "worse -0.032 [-0.061, -0.005]",
        "inconclusive -0.015 [-0.050, +0.019]",
        SEEDS_ADDED,
    ),
    Revised(
        "trpo",
        "MountainCar-v0",
        "auc",
        "worse -0.064 [-0.113, -0.015]",
        "inconclusive -0.048 [-0.096, +0.001]",
        SEEDS_ADDED,
    ),
    Revised(
        "trpo",
        "MountainCarContinuous-v0",
        "auc",
        "worse -0.084 [-0.158, -0.011]",
        "inconclusive -0.018 [-0.116, +0.069]",
        ROLLOUT,
    ),
)
