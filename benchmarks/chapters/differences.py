"""Claims of papers as cards: the comparisons that decide them, as answers and as forest plots.

A comparison is a verdict on two sides, or a difference with its interval.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from manyseeds.benchmarks.chapters.blocks import Block, Claim, ClaimWord, Figure, Inline, Table
from manyseeds.errors import printable
from manyseeds.plots import Difference
from manyseeds.record import plural
from manyseeds.stats import Estimate, Parity

Answer = str  # whether a claim is "true", "false" or "undecided" of a pair
Verdicts = dict[str, dict[str, Parity | None]]  # by the panel of a figure and the name of the pair
WORDS = {1: "higher", -1: "lower", 0: "undecided"}


def claim_word(answers: Iterable[Answer]) -> ClaimWord:
    """The verdict on a claim that is true or false of several pairs."""
    found = set(answers)
    if "true" in found:
        return "holds" if found == {"true"} else "in part"
    return "does not hold" if "false" in found else "not shown"


CLAIM_RULE = (
    "A claim holds if it is true in all comparisons, in part if in some, and does not hold if it "
    "is false in some and true in none. Otherwise it is not shown."
)


def answered(
    claim: str,
    source: str,
    answers: Sequence[Answer],
    by: str,
    figure: Figure | None,
    details: Sequence[Block],
) -> Claim:
    """The card of a claim that is true or false of comparisons. by: what they compare."""
    true, false, undecided = (answers.count(x) for x in ("true", "false", "undecided"))
    number = f"true in {true} of {plural(len(answers), 'comparison')} {by}"
    number += f", false in {false}, undecided in {undecided}"
    return Claim(claim, claim_word(answers), number, figure, details, source)


# ---- Verdicts -------------------------------------------------------------------------------


def answer(verdict: Parity | None, meaning: Mapping[str, Answer]) -> Answer:
    """What a verdict says of a claim. meaning: of the words that decide."""
    return meaning.get(verdict.word, "undecided") if verdict else "undecided"


def lies_above(a: Estimate, b: Estimate) -> Answer:
    """Whether an interval lies above another: true, false if below, undecided if they overlap."""
    return "true" if a.low > b.high else "false" if a.high < b.low else "undecided"


def forest(
    name: str, label: str, panels: Mapping[str, Sequence[Difference]], xlabel: str, **more: Any
) -> Figure | None:
    """Differences with their intervals, a panel per title; None without any."""
    rows = {printable(title): of_pairs for title, of_pairs in panels.items() if of_pairs}
    data = {"panels": rows, "xlabel": xlabel, **more}
    return Figure(name, label, "forest", data) if rows else None


def verdict_forest(
    name: str, label: str, panels: Mapping[str, Mapping[str, Parity | None]], sides: str
) -> Figure | None:
    """Differences of normalised scores. sides: `with clipping minus without`."""
    rows = {
        title: [difference_of(pair, verdict) for pair, verdict in verdicts.items()]
        for title, verdicts in panels.items()
    }
    return forest(name, label, rows, f"{sides}, normalised")


def difference_of(label: str, verdict: Parity | None) -> Difference:
    """A row of a forest plot: of saturated sides without an interval, without a verdict its label
    alone."""
    if verdict is None:
        return Difference(printable(label), math.nan, math.nan, math.nan, "none")
    d = verdict.difference
    ends = (math.nan, math.nan) if verdict.word == "saturated" else (d.low, d.high)
    row = Difference(printable(label), d.value, *ends, verdict.word)
    return row._replace(n=d.n, margin=verdict.margin)


# ---- Differences with a sign ----------------------------------------------------------------


class Compared(NamedTuple):
    """A difference, and what it is of: a measure, and a run or the side of a pair."""

    measure: str
    what: str
    difference: Estimate
    digits: int = 3
    unit: str = ""

    @property
    def text(self) -> str:
        """`+0.172 [+0.123, +0.219]`"""
        return self.difference.text(self.digits, "+") + self.unit

    @property
    def sign(self) -> int:
        """1 where the interval lies above 0, -1 where it lies below, else 0."""
        return int(self.difference.low > 0) - int(self.difference.high < 0)


def compared(
    measure: str, what: str, difference: Estimate | None, digits: int = 3, unit: str = ""
) -> list[Compared]:
    """The comparison, if there is a difference."""
    return [Compared(measure, what, difference, digits, unit)] if difference else []


def verdict_on(found: Sequence[Compared], sign: int) -> ClaimWord:
    """Whether all differences have the sign (1 or -1) that a claim gives them."""
    return claim_word({1: "true", -1: "false", 0: "undecided"}[sign * x.sign] for x in found)


def weakest(found: Sequence[Compared], sign: int) -> str:
    """The difference that speaks most against a sign; empty without any."""
    if not found:
        return ""
    least = min(found, key=lambda x: x.difference.low if sign > 0 else -x.difference.high)
    text = f"{least.text}, {least.measure}: {least.what}, n = {least.difference.n}"
    if len(found) > 1:
        agreeing = sum(x.sign == sign for x in found)
        text += f" (the weakest of {len(found)} comparisons; {agreeing} agree with the claim)"
    return text


def judged(
    name: str,
    claim: Inline,
    source: str,
    found: Sequence[Compared],
    details: Sequence[Block] = (),
    *,
    sign: int = 1,
    beside: Sequence[Compared] = (),
    figure: Figure | None = None,
) -> Claim:
    """The card of a claim that gives differences a sign, 1 or -1.

    name: of its figure, of the differences where there is no other. beside: what is compared, too,
    but does not decide.
    """
    table = [comparison_table([*found, *beside])] if found or beside else []
    drawn = figure or compared_forest(name, found)
    return Claim(
        claim, verdict_on(found, sign), weakest(found, sign), drawn, [*table, *details], source
    )


def comparison_table(found: Sequence[Compared]) -> Table:
    rows = [(x.measure, x.what, str(x.difference.n), x.text, WORDS[x.sign]) for x in found]
    return Table("", ("measure", "what was compared", "n", "difference [95%]", "it is"), rows)


def compared_forest(name: str, found: Sequence[Compared]) -> Figure | None:
    """A panel for each measure."""
    panels: dict[str, list[Difference]] = {}
    for x in found:
        d, label = x.difference, printable(x.what)
        row = Difference(label, d.value, d.low, d.high, WORDS[x.sign], n=d.n)
        panels.setdefault(x.measure, []).append(row)
    return forest(name, "What was compared", panels, "difference, 95% interval")
