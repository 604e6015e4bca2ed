"""The rule by which a comparison with stable-baselines3 is decided, stated on 2026-11-22.

A verdict is looked at with 10, 20, 30 and 60 seeds a side, the first ones of each: at every look by
the 99% interval and the same level of the permutation test (Pocock 1977, "Group sequential methods
in the design and analysis of clinical trials"). Then sides without a true difference are called
better or worse in less than 5% of cases over all looks, and a side of which one seed in ten fails
is called equivalent to one without failures in less than 5%; with the 1.8% of Pocock's tables that
would happen more often. The first look that decides is the verdict, and no seeds are added after
it. `benchmarks/error_rates.py` simulates the rule.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from manyseeds import stats
from manyseeds.stats import Floats, Parity

LOOKS = (10, 20, 30, 60)  # seeds a side
FIRST_FRESH = 1000  # the first of the seeds that nothing was chosen by
LEVEL = 0.01  # at each look, two-sided
MARGIN = 0.05  # of the normalised score: smaller differences count as equivalent


@dataclass(frozen=True)
class Verdict:
    """What the rule says with the seeds that there are."""

    parity: Parity
    look: int  # seeds a side that it rests on
    due: int | None  # the next look; None: decided, or at the last one

    @property
    def decided(self) -> bool:
        return is_decided(self.parity.word, self.look)


def is_decided(word: str, look: int) -> bool:
    """Whether a word ends the looking. Equal scores may hide failures, as equivalence may."""
    if word == "saturated":
        return look >= stats.EQUIVALENCE_SEEDS
    return word != "undecided"


def decide(
    ours: Floats, theirs: Floats, random: float, reference: float, measured: float = math.inf
) -> Verdict | None:
    """The verdict on scores `[S1]` and `[S2]`, in the order of the seeds; None below 10 a side.

    measured: how many of the first seeds of both sides have scores of their own, before one that
    has a failure score.
    """
    n = min(len(ours), len(theirs))
    found: Verdict | None = None
    for i, look in enumerate(LOOKS):
        if look > n:
            break
        sides = ours[:look], theirs[:look]
        imputed = look > measured
        parity = stats.parity(*sides, random, reference, MARGIN, 1 - LEVEL, imputed)
        decided = is_decided(parity.word, look)
        due = None if decided or look == LOOKS[-1] else LOOKS[i + 1]
        found = Verdict(parity, look, due)
        if decided:
            break
    return found
