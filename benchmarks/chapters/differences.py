"""Verdicts on several pairs of runs: as a forest plot, and as the verdict on a claim."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from manyseeds.benchmarks.chapters.blocks import Figure, Word
from manyseeds.benchmarks.experiments.verdicts import MARGIN
from manyseeds.errors import printable
from manyseeds.plots import Difference
from manyseeds.record import plural
from manyseeds.stats import Estimate, Parity

Answer = str  # whether a claim is "true", "false" or "undecided" of a pair


def forest(
    name: str, label: str, panels: Mapping[str, Mapping[str, Parity | None]], sides: str
) -> Figure:
    """Differences of normalised scores by the name of the pair, a panel per title.

    sides: `with clipping minus without`. Saturated pairs have no interval, and those without a
    verdict their name alone.
    """
    rows = {
        printable(title): [row_of(printable(pair), verdict) for pair, verdict in verdicts.items()]
        for title, verdicts in panels.items()
    }
    data = {"panels": rows, "margin": MARGIN, "xlabel": f"{sides}, normalised"}
    return Figure(name, label, "forest", data)


def row_of(label: str, verdict: Parity | None) -> Difference:
    if verdict is None:
        return Difference(label, math.nan, math.nan, math.nan, "none")
    d = verdict.difference
    ends = (math.nan, math.nan) if verdict.word == "saturated" else (d.low, d.high)
    return Difference(label, d.value, *ends, verdict.word, n=d.n)


def claim_word(answers: Iterable[Answer]) -> Word:
    """The verdict on a claim that is true or false of several pairs."""
    found = set(answers)
    if "true" in found:
        return "holds" if found == {"true"} else "in part"
    return "does not hold" if "false" in found else "not shown"


CLAIM_RULE = (
    "A claim holds if it is true in all comparisons, in part if in some, and does not hold if it "
    "is false in some and true in none. Otherwise it is not shown."
)


def counted(answers: Sequence[Answer], compared: str) -> str:
    """`true in 3 of 4 comparisons by final score, false in 1, undecided in 0`"""
    true, false, undecided = (answers.count(x) for x in ("true", "false", "undecided"))
    total = plural(len(answers), "comparison")
    return f"true in {true} of {total} {compared}, false in {false}, undecided in {undecided}"


def lies_above(a: Estimate, b: Estimate) -> Answer:
    """Whether an interval lies above another: true, false if below, undecided if they overlap."""
    return "true" if a.low > b.high else "false" if a.high < b.low else "undecided"
