"""The rule by which a comparison with stable-baselines3 is decided: version 2, of 2026-11-27.

Learning speed (AUC) is judged first, because it tells algorithms apart; then the late score, the
mean of the evaluations in the last fifth of training. Each is looked at with 30, 60
and 100 seeds of SB3's, whose seeds are dear, and with all of ours up to OURS, which are cheap:

    better, worse   the 99% interval of the difference of means excludes 0, and the permutation test
                    agrees at 1%
    equivalent      the 96% interval lies within the margin of the environment, there are
                    EQUIVALENT_FROM seeds of SB3's, and the 95% interval of the difference of the
                    shares of seeds that end below FAILED lies within FAILURE_MARGIN; a difference
                    within the margin is neither better nor worse
    ceiling         the same by the late score, where SB3's algorithm and another of SB3's are as
                    alike within MARGIN_LEAST: that ours is equivalent then says nothing

The first look that decides is the verdict; no seeds of SB3's are added after it. It is final when
ours has the seeds that the suite states. `benchmarks/error_rates.py` simulates the rule, which aims
at an error of at most 5% for each word over all looks (Pocock 1977, "Group sequential methods in
the design and analysis of clinical trials"). Better and worse come near it in the worst case, and
equivalence exceeds it where rare failures are all on one side; the page of verdicts has all rates.
An interval has to know both sides' shapes (`one_shape` of stats.parity): with the plain bootstrap,
skewed scores that differ by the margin are called equivalent in 8.6% of cases, and those of PPO on
MountainCarContinuous-v0, of which one seed in sixty is far off, in 17%.

Margins are as wide as MARGIN at most, and so narrow that with all seeds of the rule nine in ten
pairs of different algorithms of SB3's, of those not at their ceiling, would not be equivalent:
`benchmarks/margins.py`.

Version 1, of 2026-11-22, had 10, 20, 30 and 60 seeds of both sides, 99% intervals for every word, a
margin of 0.05 everywhere, and the final score, that of the evaluation after training.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from manyseeds import stats
from manyseeds.stats import Floats, Levels, Parity, VerdictWord

LOOKS = (30, 60, 100)  # seeds of SB3's
OURS = 300  # seeds of ours, at most
FIRST_FRESH = 1000  # the first of the seeds that nothing was chosen by
LEVELS = Levels(differs=0.01, equivalent=0.04)  # at each look, two-sided
LAST_SHARE = 0.2  # of training: five evaluations, at its beginning and later
SHOWN_LEVEL = f"{1 - LEVELS.equivalent:.0%}"  # of the intervals of verdicts
FAILED = 0.75  # normalised late score below which a seed counts as failed
EQUIVALENT_FROM = 60  # seeds of SB3's: of 30 without a failure one in ten may fail
FAILURE_MARGIN = 0.1  # of the difference of failure rates
RESAMPLES = 100_000  # so that hardly any word depends on their seed
MARGIN = 0.05  # of the normalised score: smaller differences count as equivalent
MARGIN_CHOICES = (MARGIN, 0.04, 0.03, 0.025, 0.02, 0.015, 0.01)  # one of which an environment has
MARGIN_LEAST = MARGIN_CHOICES[-1]
# As benchmarks/margins.py found them on 2026-11-27, by measure and environment; elsewhere MARGIN.
MARGINS = {
    "auc": {
        "CartPole-v1": 0.025,
        "Acrobot-v1": 0.02,
        "MountainCar-v0": 0.04,
        "MountainCarContinuous-v0": 0.04,
        "Pendulum-v1": 0.05,
    },
    "late": {
        "CartPole-v1": 0.05,
        "Acrobot-v1": 0.015,
        "MountainCar-v0": 0.03,
        "MountainCarContinuous-v0": 0.01,
        "Pendulum-v1": 0.02,
    },
}


def margin_at(env: str, measure: str) -> float:
    """The margin of an environment, by `auc` or `late`; MARGIN where it has none of its own."""
    return MARGINS[measure].get(env, MARGIN)


# Algorithms of SB3's that are as alike as MARGIN_LEAST to another one, by the late score.
CEILINGS = {
    "CartPole-v1": ("a2c", "ppo"),
    "Acrobot-v1": ("a2c", "trpo"),
    "MountainCarContinuous-v0": ("a2c", "ppo"),
}

Flags = NDArray[np.bool_]


@dataclass(frozen=True)
class Side:
    """The seeds of one side, in their order."""

    scores: Floats  # [S], normalised
    failed: Flags  # [S], whether the late score is below FAILED
    imputed: Flags  # [S]; no score of its own, but a failure score

    def first(self, n: int) -> Side:
        return Side(self.scores[:n], self.failed[:n], self.imputed[:n])


@dataclass(frozen=True)
class Verdict:
    """What the rule says with the seeds that there are."""

    parity: Parity
    ours: int  # seeds
    look: int  # seeds of SB3's that it rests on
    due: int | None  # the next look; None: decided, or at the last one

    @property
    def decided(self) -> bool:
        return self.parity.word != "undecided"


def decide(
    ours: Side,
    theirs: Side,
    margin: float = MARGIN,
    at_ceiling: bool = False,
) -> Verdict | None:
    """The verdict on two sides; None before the first look. at_ceiling: equivalence says nothing
    here."""
    ours = ours.first(OURS)
    found: Verdict | None = None
    for i, look in enumerate(LOOKS):
        if look > len(theirs.scores) or len(ours.scores) < LOOKS[0]:
            break
        sides = ours, theirs.first(look)
        parity = stats.parity(
            sides[0].scores,
            sides[1].scores,
            random=0,
            reference=1,
            margin=margin,
            levels=LEVELS,
            imputed=any(side.imputed.any() for side in sides),
            one_shape=True,
            resamples=RESAMPLES,
        )
        parity = replace(parity, word=word_of(parity, sides, at_ceiling))
        undecided = parity.word == "undecided"
        due = LOOKS[i + 1] if undecided and look < LOOKS[-1] else None
        found = Verdict(parity, len(ours.scores), look, due)
        if found.decided:
            break
    return found


def word_of(parity: Parity, sides: tuple[Side, Side], at_ceiling: bool) -> VerdictWord:
    """The word of the rule for that of a single look. Equal scores are equivalent, too."""
    if parity.word not in ("equivalent", "saturated"):
        return parity.word
    ours, theirs = (int(side.failed.sum()) for side in sides)
    if not may_be_equivalent((ours, theirs), (len(sides[0].scores), len(sides[1].scores))):
        return "undecided"
    return "ceiling" if at_ceiling else "equivalent"


def may_be_equivalent(failures: tuple[int, int], sizes: tuple[int, int]) -> bool:
    """Whether there are seeds enough of SB3's, and the failure rates are equivalent."""
    low, high = stats.failure_difference(failures, sizes)
    return sizes[1] >= EQUIVALENT_FROM and -FAILURE_MARGIN <= low <= high <= FAILURE_MARGIN


def seeds_to_decide(ours: Side, theirs: Side, margin: float, most: int = 1000) -> int | None:
    """The seeds of SB3's with which equivalence could be said, if means, variances and shares of
    failures stayed as they are and ours had OURS: at a look, or more than the last one; None beyond
    `most`."""
    variances = [float(np.var(side.scores, ddof=1)) for side in (ours, theirs)]
    room = margin - abs(ours.scores.mean() - theirs.scores.mean())
    shares = [float(side.failed.mean()) for side in (ours, theirs)]
    for n in range(EQUIVALENT_FROM, most + 1):
        if half_width(variances, (OURS, n)) > room:
            continue
        failures = round(shares[0] * OURS), round(shares[1] * n)
        if may_be_equivalent(failures, (OURS, n)):
            return next((look for look in LOOKS if look >= n), n)
    return None


def half_width(variances: Sequence[float], sizes: tuple[int, int]) -> float:
    """Half the interval of equivalence of a difference of means of normal scores, as
    `stats.parity` has it with `one_shape`: by each side's own variance or by that of both together,
    whichever is wider."""
    (one, other), (n, m) = variances, sizes
    both = (n * one + m * other) / (n + m)
    variance = max(one / n + other / m, both / n + both / m)
    tail = stats.expanded_tail(min(sizes), 1 - LEVELS.equivalent)
    return NormalDist().inv_cdf(1 - tail) * math.sqrt(variance)


# ---- Margins --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Rivals:
    """Two different algorithms of SB3's on an environment, by one measure."""

    first: str
    second: str
    least: float  # the margin from which on they would be called equivalent


def rivals(first: str, second: str, a: Floats, b: Floats) -> Rivals:
    """Of normalised scores, [S1] and [S2]: how far apart their means are, with an interval as wide
    as it would be with all seeds of the rule, OURS of one and LOOKS[-1] of the other."""
    variances = [np.var(side, ddof=1) for side in (a, b)]
    width = min(math.sqrt(x / OURS + y / LOOKS[-1]) for x, y in (variances, reversed(variances)))
    z = NormalDist().inv_cdf(1 - LEVELS.equivalent / 2)
    return Rivals(first, second, float(abs(a.mean() - b.mean()) + z * width))


def at_ceiling(pairs: Sequence[Rivals]) -> set[str]:
    """The algorithms that are as alike as the least margin to another one."""
    return {x for pair in pairs if pair.least <= MARGIN_LEAST for x in (pair.first, pair.second)}


def margin_of(pairs: Sequence[Rivals]) -> float:
    """The widest margin with which nine in ten pairs are not equivalent, of those that are apart
    at all; the least one where there is none."""
    apart = [pair.least for pair in pairs if pair.least > MARGIN_LEAST]
    passing = {margin: sum(x <= margin for x in apart) for margin in MARGIN_CHOICES}
    return next((m for m, n in passing.items() if 10 * n <= len(apart)), MARGIN_LEAST)
