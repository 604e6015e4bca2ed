"""Cards of claims on language models: differences as `differences.judged`, and what such a claim
needs besides.

A card says whether its treatment was applied; a claim whose treatment was not is not tested. Where
a comparison is undecided it says which true difference would have been shown at the level of the
page's correction. Where what is compared are the ends of trainings that still rise, it says so.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import NamedTuple, Protocol

import numpy as np

from manyseeds import stats
from manyseeds.benchmarks.chapters import differences
from manyseeds.benchmarks.chapters.blocks import (
    Block,
    Claim,
    Figure,
    Inline,
    Table,
    Text,
    text_of,
)
from manyseeds.benchmarks.chapters.differences import (
    COMPARISONS,
    LEVEL,
    NOTHING_COMPARED,
    WORDS,
    Compared,
    Tested,
    compared_forest,
    verdict_on,
    weakest,
    with_ps,
)
from manyseeds.benchmarks.chapters.language_runs import commands_of
from manyseeds.benchmarks.store.methods import Method
from manyseeds.benchmarks.store.results import p_text
from manyseeds.record import plural
from manyseeds.stats import Estimate, Floats

POWER = 0.8
SHOWN = f"would be shown in {POWER:.0%} of cases"
Curve = tuple[Floats, Floats]  # samples [K], scores [S, K]


class Applied(NamedTuple):
    """What shows that the treatment of a claim was applied, and whether it was."""

    said: str
    yes: bool = True


# ---- What would have been shown -------------------------------------------------------------


def level_of(p: Sequence[float]) -> float:
    """The level below which the p of one more of a page's comparisons would have to be.

    Holm's: LEVEL over the number of those that are undecided. p: of all, uncorrected.
    """
    undecided = int((stats.holm(p) >= LEVEL).sum())
    return LEVEL / max(undecided, 1)


def effect_shown(difference: Estimate, level: float) -> float:
    """The true difference that a test at a level would show in POWER of cases; NaN: not known.

    From the standard error that the 95% interval implies, by Student's t, as `stats.effect_shown`.
    """
    from scipy.special import stdtrit

    if difference.n < 2 or not difference.low < difference.high:
        return math.nan
    t = partial(stdtrit, difference.n - 1)
    error = (difference.high - difference.low) / 2 / t(0.975)
    return float(error * (t(1 - level / 2) + t(POWER)))


def effect_text(x: Compared, level: float) -> str:
    """The cell of an undecided comparison; empty of a decided one."""
    effect = effect_shown(x.difference, level)
    return "" if x.sign or not math.isfinite(effect) else f"{effect:.{x.digits}f}{x.unit}"


def effects_text(found: Sequence[Compared], level: float) -> str:
    """`; 0.013 to 0.020 would be shown in 80% of cases at the corrected level of 0.0024`"""
    cells = {
        effect_shown(x.difference, level): text for x in found if (text := effect_text(x, level))
    }
    if not cells:
        return ""
    ends = dict.fromkeys(cells[x] for x in (min(cells), max(cells)))
    return f"; {' to '.join(ends)} {SHOWN} at the corrected level of {level:.2g}"


# ---- Cards ----------------------------------------------------------------------------------


class Writer(Protocol):
    """Writes a claim by p-values and the level of their correction."""

    def __call__(self, p: Sequence[float], level: float) -> Claim: ...


@dataclass(frozen=True)
class Card(Tested):
    """A claim by single tests, which is to be written again with the correction of its page."""

    write: Writer | None = None

    def at(self, level: float) -> Tested:
        """The card, whose claim will be written with this level."""
        return replace(self, again=partial(self.write, level=level)) if self.write else self


def tested(p: Sequence[float], write: Writer) -> Card:
    """The claim that `write` makes of p-values, before those of its page are corrected."""
    claim = write(p, LEVEL)
    known = {x.name: getattr(claim, x.name) for x in fields(claim)}
    return Card(**known, p=p, again=partial(write, level=LEVEL), write=write)


def corrected(blocks: Iterable[Block]) -> list[Block]:
    """The blocks of a page, its claims by p-values that are corrected together."""
    found = [*blocks]
    level = level_of([p for x in found if isinstance(x, Tested) for p in x.p])
    return differences.corrected([x.at(level) if isinstance(x, Card) else x for x in found])


def judged(
    name: str,
    claim: Inline,
    source: str,
    found: Sequence[Compared],
    details: Sequence[Block] = (),
    *,
    applied: Applied,
    sign: int = 1,
    beside: Sequence[Compared] = (),
    figure: Figure | None = None,
    note: str = "",
    unreached: str = "",
    ends: Sequence[Curve] = (),
    runs: Sequence[Method] = (),
) -> Card:
    """The card of a claim that gives differences of means a sign, 1 or -1.

    name: of its figure, of the differences where there is no other. applied: without it the claim
    is not tested, and what was compared does not decide. beside: what is compared, too, but does
    not decide; its p-values are not corrected. note: what the number says besides. unreached: what
    is said instead of `does not hold` of a claim that a longer training could still make true.
    ends: the curves of pass@1 whose ends are compared. runs: whose commands are shown.
    """
    decisive, others = (found, beside) if applied.yes else ((), [*found, *beside])

    def card(p: Sequence[float], level: float) -> Claim:
        known = with_ps(decisive, p)
        word = verdict_on(known, sign)
        number = weakest(known, sign, means=False)
        if unreached and word == "does not hold":
            word, number = "not shown", f"{unreached}: {number}"
        elif word == "not shown":
            number += effects_text(known, level)
        if not number:
            number = NOTHING_COMPARED if applied.yes else "the treatment was not applied"
        elif note:
            number += f"; {note}"
        number += budget_text(ends) if known else ""
        return Claim(
            claim,
            word,
            number,
            figure or named_forest(name, claim, known),
            [*opening(applied, known, others, level), *details, *commands_of(runs)],
            source,
        )

    return tested([x.p for x in decisive], card)


def opening(
    applied: Applied, found: Sequence[Compared], beside: Sequence[Compared], level: float
) -> Iterator[Block]:
    """What the details of a card begin with."""
    yield Text(f"Applied: {applied.said}.")
    if found or beside:
        yield comparison_table(found, beside, level)


def named_forest(name: str, claim: Inline, found: Sequence[Compared]) -> Figure | None:
    """The differences; the label is the claim that they decide."""
    figure = compared_forest(name, found)
    return figure and replace(figure, label=f"What decides: {text_of(claim).rstrip('.')}")


def comparison_table(found: Sequence[Compared], beside: Sequence[Compared], level: float) -> Table:
    """beside: what does not decide."""

    def row(x: Compared, word: str, effect: str) -> tuple[str, ...]:
        p = p_text(x.p).removeprefix("p").removeprefix("=")
        return (x.measure, x.what, str(x.difference.n), x.text, p, word, effect)

    rows = [row(x, WORDS[x.sign], effect_text(x, level)) for x in found]
    rows += [row(x, f"{WORDS[x.sign]} (not decisive)", "") for x in beside]
    return Table("", (*COMPARISONS, SHOWN), rows)


# ---- Plateaus -------------------------------------------------------------------------------


def late_rise(samples: Floats, scores: Floats) -> Estimate:
    """The gain of a curve in the last fifth of a training, or since the evaluation before the last
    one, paired by seed."""
    late = min(int(np.searchsorted(samples, 0.8 * samples[-1])), max(len(samples) - 2, 0))
    return stats.mean_difference(scores[:, -1] - scores[:, late])


def budget_text(ends: Sequence[Curve]) -> str:
    """`; at this budget: pass@1 still rose in 2 of 3 trainings`; empty where none did."""
    rising = sum(late_rise(*curve).low > 0 for curve in ends)
    if not rising:
        return ""
    return f"; at this budget: pass@1 still rose in {rising} of {plural(len(ends), 'training')}"
