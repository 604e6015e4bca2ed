"""The rule by which `judge.py` decides a change, and the error budget of a session of tries.

A *try* is one change. Both sides train the same seeds, and d is a seed's area under the curve with
the change minus that without it, normalised. A session has any number of tries, each with seeds of
its own, so that no try can be chosen by the luck of an earlier one's.

**Budget.** The k-th try has the level ALPHA gamma_k with gamma_k = k^-1.6 / zeta(1.6). All levels
together are ALPHA, however many tries there will be, so the probability that a session says
"better" of any change without effect is at most 5% (alpha spending: Foster and Stine 2008,
"Alpha-investing", Journal of the Royal Statistical Society B 70, section 2; this gamma: Tian and
Ramdas 2021, "Online control of the familywise error rate", Statistical Methods in Medical Research
30). The same holds for "worse", which has a budget of its own. On several environments half of a
level is for the word over all of them, and the other half for the words of single ones.

**Looks.** A try is looked at after LOOKS seeds, and spends its level by Pocock's function
ln(1 + (e - 1) t) (Lan and DeMets 1983, "Discrete sequential boundaries for clinical trials",
Biometrika 70). The test flips the signs of pairs. Without an effect every choice of signs is as
likely as the one observed, whatever the distribution: tails may be heavy, seeds may fail. At each
look the choices with the largest means, as many as the level allows, are crossed out, and the
change is better when the observed choice is one of them. All choices are equally likely to be the
observed one, so that is exact over all looks together, on several environments as well. Later
tries draw more choices: a level is that of FINEST of them at least.

**Equivalent** is said from EQUIVALENT_FROM seeds on, where the interval lies within the margin, and
at once where all weights are the same. The tails of the interval are those of 95%, spent over the
looks by the same function, so intervals hold at all looks at once.

S is a number of seeds, R of choices of signs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from manyseeds import stats
from manyseeds.benchmarks.experiments.verdicts import MARGIN, MARGINS
from manyseeds.stats import BOOTSTRAP_SEED, RESAMPLES, Estimate, Floats

ALPHA = 0.05  # of a session, for "better" and for "worse"
ZETA = 2.2857657  # of 1.6: the sum of all k^-1.6
LOOKS = (12, 24, 48, 96)  # seeds
EQUIVALENT_FROM = 48
CHOICES = 99_999  # of signs, besides the one observed; R is a multiple
FINEST = 10  # choices that a level is, at least
MOST_TRIES = 200  # of a session: on three environments the last one draws choices for 15 s
ROUNDING = 1e-5  # of sums in float32, by the sum of magnitudes
FIRST_TRIED = 100_000  # seeds from here on are the tries', BLOCK each
BLOCK = 1_000
FIRST_HELD_OUT = 10_000_000  # and these confirm

Word = Literal["better", "worse", "equivalent", "undecided"]


def level_of(number: int) -> float:
    """The level of a session's k-th try, from 1 on."""
    return ALPHA * number**-1.6 / ZETA


def spent(level: float, look: int) -> float:
    """How much of a level may be spent up to a look, from 0 on."""
    return level * math.log1p((math.e - 1) * LOOKS[look] / LOOKS[-1])


def margin_of(env: str) -> float:
    """The difference of learning speed, normalised, within which it counts as equivalent."""
    return MARGINS["auc"].get(env, MARGIN)


def seeds_of(number: int, confirm: bool = False) -> range:
    """The seeds of a session's k-th try, or those that confirm it."""
    first = (FIRST_HELD_OUT if confirm else FIRST_TRIED) + BLOCK * (number - 1)
    return range(first, first + LOOKS[-1])


@lru_cache(maxsize=8)
def signs(cell: int, first: int, n: int, part: int) -> NDArray[np.float32]:
    """Random signs, `[CHOICES, n]`, of the seeds from `first` on in a cell of a try: a part of all
    R choices."""
    rng = np.random.default_rng((BOOTSTRAP_SEED, cell, first, part))
    bits = np.frombuffer(rng.bytes(-(-CHOICES * n // 8)), dtype=np.uint8)
    chosen = np.unpackbits(bits, count=CHOICES * n).reshape(CHOICES, n)
    return 1 - 2 * chosen.astype(np.float32)


@dataclass
class SignTest:
    """The sequential tests that a mean difference is above 0, and that it is below.

    cells: of which the mean is tested, each with as many seeds. level: of either test.
    """

    level: float
    cells: Sequence[int]
    _looks: int = 0
    _seeds: int = 0
    _sums: NDArray[np.float32] = field(init=False)  # [R]
    # Of either test, the choices that no look has crossed out, [R].
    _alive: list[NDArray[np.bool_]] = field(init=False)

    def __post_init__(self) -> None:
        R = CHOICES * math.ceil(FINEST / self.level / CHOICES)
        self._sums = np.zeros(R, dtype=np.float32)
        self._alive = [np.ones(R, dtype=bool) for _ in range(2)]

    def word(self, differences: Sequence[Floats]) -> Word:
        """What the next look says, `undecided` where nothing. differences: all so far, [S] of each
        cell."""
        for cell, own in zip(self.cells, differences, strict=True):
            block = own[self._seeds :].astype(np.float32)
            for part, sums in enumerate(np.split(self._sums, len(self._sums) // CHOICES)):
                drawn = signs(cell, self._seeds, len(block), part)
                # Not by BLAS, whose order of sums depends on the machine and its threads.
                sums += np.einsum("rn,n->r", drawn, block)
        self._seeds = len(differences[0])
        R = len(self._sums)
        most = math.floor(spent(self.level, self._looks) * (R + 1))
        self._looks += 1
        rounding = ROUNDING * float(sum(np.abs(own).sum() for own in differences))
        observed = float(sum(own.sum() for own in differences))
        words: tuple[Word, Word] = ("better", "worse")
        for word, sign, alive in zip(words, (1, -1), self._alive, strict=True):
            allowed = most - (R - np.count_nonzero(alive))  # so many may be crossed out now
            if allowed < 1:
                continue
            sums = np.where(alive, sign * self._sums, -np.inf).astype(np.float32, copy=False)
            if np.count_nonzero(sums >= sign * observed - rounding) + 1 <= allowed:  # ties count
                return word
            bar = float(np.partition(sums, R - allowed)[R - allowed])
            tied = np.count_nonzero(sums >= bar) > allowed  # at the border: none of these
            alive &= sums <= bar + rounding if tied else sums < bar
        return "undecided"


@dataclass(frozen=True)
class Found:
    """What is said of a cell, or of all together, at a look."""

    word: Word
    differences: Sequence[Floats]  # of each cell, [S]
    look: int

    @property
    def seeds(self) -> int:
        return LOOKS[self.look]

    @property
    def effect(self) -> Estimate:
        """The mean normalised difference; its interval holds at all looks at once."""
        return interval(self.differences, self.look)


@dataclass(frozen=True)
class Decision:
    """What the rule says of a try at its last look."""

    overall: Found
    cells: list[Found]


class Rule:
    """Decides one try, look by look."""

    def __init__(self, level: float, margins: Sequence[float]) -> None:
        """margins: of each cell (an environment, perhaps with other physics)."""
        E = len(margins)
        self.margins = [*margins, float(np.mean(margins))]
        shared = level if E == 1 else level / 2
        groups = [*((shared / E, [e]) for e in range(E)), (shared, list(range(E)))]
        self.tests = [SignTest(a, cells) for a, cells in groups]
        self.groups = [cells for _, cells in groups]
        self.words: list[Word] = ["undecided"] * (E + 1)
        self.look = -1

    def decide(self, differences: Sequence[Floats], identical: Sequence[bool]) -> Decision:
        """The decision at the next look. differences: all so far, [S] of each cell, as many as
        LOOKS says. identical: the cells where both sides have the same weights."""
        self.look += 1
        n = LOOKS[self.look]
        if any(len(own) != n for own in differences):
            raise ValueError(f"look {self.look + 1} needs {n} seeds of each cell")
        found: list[Found] = []
        last = len(self.groups) - 1
        for i, (cells, margin) in enumerate(zip(self.groups, self.margins, strict=True)):
            own = [differences[e] for e in cells]
            if len(cells) == 1 and i == last:  # one cell is all there is
                self.words[i] = self.words[0]
            elif self.words[i] not in ("better", "worse"):
                same = all(identical[e] for e in cells)
                self.words[i] = self._word(i, own, margin, same)
            found.append(Found(self.words[i], own, self.look))
        *each, overall = found
        return Decision(overall, each)

    def _word(self, i: int, own: Sequence[Floats], margin: float, same: bool) -> Word:
        word = self.tests[i].word(own)
        if word != "undecided":
            return word
        if same:
            return "equivalent"
        if LOOKS[self.look] >= EQUIVALENT_FROM:
            effect = interval(own, self.look)
            if -margin <= effect.low and effect.high <= margin:
                return "equivalent"
        return "undecided"

    @property
    def ended(self) -> bool:
        """Whether the answer over all stands, or there is no further look."""
        return self.words[-1] != "undecided" or self.look + 1 == len(LOOKS)


@lru_cache(maxsize=16)
def weights(n: int, cells: int) -> Floats:
    """What each of n differences of each cell weighs in the means of resamples within cells,
    `[cells n, RESAMPLES]`: those of `stats.estimate`."""
    rng = np.random.default_rng(BOOTSTRAP_SEED)
    drawn = [rng.integers(0, n, (RESAMPLES, n)) for _ in range(cells)]
    counts = [np.stack([np.bincount(row, minlength=n) for row in x], axis=1) for x in drawn]
    return np.concatenate(counts) / (n * cells)


def interval(differences: Sequence[Floats], look: int) -> Estimate:
    """The mean of paired differences, [S] of each cell, with its interval at a look."""
    before = spent(ALPHA, look - 1) if look else 0.0
    tail = stats.expanded_tail(LOOKS[look], 1 - (spent(ALPHA, look) - before))
    own = np.concatenate(differences)
    means = np.einsum("n,nr->r", own, weights(LOOKS[look], len(differences)))
    low, high = np.quantile(means, [tail, 1 - tail])
    return Estimate(float(own.mean()), float(low), float(high), len(own))
