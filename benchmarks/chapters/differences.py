"""Claims of papers as cards: the comparisons that decide them, as answers and as forest plots.

A comparison is a verdict on two sides, or a difference with its interval. Those that decide the
claims of a page are read together, so their p-values are corrected together (`stats.holm`): of
verdicts that are at hand at once by `corrected_verdicts`, of cards that are made one by one by
`corrected`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple, Protocol, TypeVar

from manyseeds import stats
from manyseeds.benchmarks.chapters.blocks import (
    OURS,
    Block,
    Claim,
    ClaimWord,
    Figure,
    Inline,
    Link,
    Outcome,
    Table,
    Text,
    cells_of,
    text_of,
    walk,
)
from manyseeds.benchmarks.experiments.verdicts import CEILINGS
from manyseeds.benchmarks.store.results import p_text
from manyseeds.errors import printable
from manyseeds.plots import Difference
from manyseeds.record import plural
from manyseeds.stats import Estimate, Parity

Key = TypeVar("Key", bound=Hashable)
LEVEL = stats.Levels().differs  # of a p-value
Answer = str  # whether a claim is "true", "false" or "undecided" of a pair
Verdicts = dict[str, dict[str, Parity | None]]  # by the panel of a figure and the name of the pair
WORDS = {1: "higher", -1: "lower", 0: "undecided"}


# What verdicts say of a claim that the first side is better.
BETTER: Mapping[str, Answer] = {"better": "true", "worse": "false", "equivalent": "false"}
# How a sentence counts claims of each word: one, and several.
SAID = {
    "holds": ("holds", "hold"),
    "in part": ("holds in part", "hold in part"),
    "does not hold": ("does not hold", "do not hold"),
    "not shown": ("is not shown", "are not shown"),
    "not tested": ("is not tested", "are not tested"),
}


def counted(words: Sequence[str]) -> str:
    """`2 hold, 1 holds in part`, of the words of claims."""
    counts = {word: words.count(word) for word in SAID}
    return ", ".join(f"{n} {SAID[word][n > 1]}" for word, n in counts.items() if n)


def outcome_of(blocks: Sequence[Block], what: str) -> Outcome:
    """How many claims there are of each word, and how many of them no paper makes."""
    claims = [x for x in blocks if isinstance(x, Claim)]
    own = sum(x.source.startswith(OURS) for x in claims)
    said = f", {own} of them our own questions" * (0 < own < len(claims))
    words = counted([x.verdict for x in claims])
    return Outcome(f"{plural(len(claims), what)}{said}: {words}.")


def claim_word(answers: Iterable[Answer]) -> ClaimWord:
    """The verdict on a claim that is true or false of several pairs."""
    found = set(answers)
    if not found:
        return "not tested"
    if "true" in found:
        return "holds" if found == {"true"} else "in part"
    return "does not hold" if "false" in found else "not shown"


CLAIM_RULE = (
    "A claim holds if it is true in all comparisons, in part if in some, and does not hold if it "
    "is false in some and true in none. Otherwise it is not shown; without a comparison that could "
    "decide it is not tested."
)


NOTHING_COMPARED = "no comparison could decide"  # of a claim that is not tested


def answered(
    claim: str,
    source: str,
    answers: Sequence[Answer],
    by: str,
    figure: Figure | None,
    details: Sequence[Block],
    verdicts: Iterable[Parity | None] = (),
    level: float = LEVEL,
) -> Claim:
    """The card of a claim that is true or false of comparisons. by: what they compare. verdicts:
    of the same, for the differences that would be shown at a level."""
    true, false, undecided = (answers.count(x) for x in ("true", "false", "undecided"))
    word = claim_word(answers)
    if word == "not tested":
        return Claim(claim, word, NOTHING_COMPARED, figure, details, source)
    number = f"true in {true} of {plural(len(answers), 'comparison')} {by}"
    number += f", false in {false}, undecided in {undecided}"
    if word == "not shown":
        number += effects_text(
            [Compared("", "", v.difference, p=v.p) for v in verdicts if v], level
        )
    return Claim(claim, word, number, figure, details, source)


# ---- What would have been shown -------------------------------------------------------------

POWER = 0.8
SHOWN = f"would be shown in {POWER:.0%} of cases"


def level_of(p: Sequence[float]) -> float:
    """The level below which the p of one more of a page's comparisons would have to be.

    Holm's: LEVEL over the number of those that are undecided. p: of all, uncorrected.
    """
    undecided = int((stats.holm(p) >= LEVEL).sum())
    return LEVEL / max(undecided, 1)


def effect_text(x: Compared, level: float) -> str:
    """The true difference that would have been shown: the cell of an undecided comparison, empty
    of a decided one and where it is not known."""
    effect = stats.effect_shown(x.difference, level, POWER)
    return "" if x.sign or not math.isfinite(effect) else f"{effect:.{x.digits}f}{x.unit}"


def effects_text(found: Sequence[Compared], level: float) -> str:
    """`; 0.013 to 0.020 would be shown in 80% of cases at the corrected level of 0.0024`"""
    cells = {
        stats.effect_shown(x.difference, level, POWER): text
        for x in found
        if (text := effect_text(x, level))
    }
    if not cells:
        return ""
    ends = dict.fromkeys(cells[x] for x in (min(cells), max(cells)))
    return f"; {' to '.join(ends)} {SHOWN} at the corrected level of {level:.2g}"


# ---- Corrected together ---------------------------------------------------------------------

# What a page says of its verdicts.
HOLM = (
    "Verdicts are tests with the 95% interval of the difference of normalised means and p < 0.05. "
    "Their p-values are corrected together, for all comparisons on this page that decide a claim "
    "(Holm, 1979), so that with no true difference any of them is called better or worse in at "
    "most 5% of cases. The intervals are of one difference each. Equivalent is not a finding of a "
    "difference, and is not corrected."
)


class Writer(Protocol):
    """Writes a claim by p-values and the level of their correction."""

    def __call__(self, p: Sequence[float], level: float) -> Claim: ...


@dataclass(frozen=True)
class Tested(Claim):
    """A claim by single tests, which is to be written again with the correction of its page.

    p: of the comparisons that decide it.
    """

    p: Sequence[float] = ()
    write: Writer | None = None


def tested(p: Sequence[float], write: Writer) -> Tested:
    """The claim that `write` makes of p-values, before those of its page are corrected."""
    claim = write(p, LEVEL)
    return Tested(**{x.name: getattr(claim, x.name) for x in fields(Claim)}, p=p, write=write)


def corrected(blocks: Iterable[Block]) -> list[Block]:
    """The blocks of a page, its claims by p-values that are corrected together."""
    found = [*blocks]
    single = [p for x in found if isinstance(x, Tested) for p in x.p]
    level, p = level_of(single), iter(stats.holm(single).tolist())
    return [
        x.write([next(p) for _ in x.p], level) if isinstance(x, Tested) and x.write else x
        for x in found
    ]


def p_of(verdicts: Mapping[Any, Parity | None]) -> list[float]:
    """The p-values of the verdicts that there are."""
    return [verdict.p for verdict in verdicts.values() if verdict]


def with_p(verdicts: Mapping[Key, Parity | None], p: Iterable[float]) -> dict[Key, Parity | None]:
    """The verdicts with other p-values, in the order of `p_of`."""
    given = iter(p)
    return {
        key: verdict and stats.with_p(verdict, next(given)) for key, verdict in verdicts.items()
    }


def corrected_verdicts(verdicts: Mapping[Key, Parity | None]) -> dict[Key, Parity | None]:
    """All verdicts that decide the claims of a page, their p-values corrected together."""
    return with_p(verdicts, stats.holm(p_of(verdicts)))


# ---- Verdicts -------------------------------------------------------------------------------

# What a page that shows verdicts says of them first.
RULE = Text(
    "A verdict is on the difference of two means. It is equivalent if the interval of the "
    "difference lies within the margin, even where that is on one side of 0. Otherwise it is "
    "better or worse if the interval lies above or below 0 and the test agrees, and undecided if "
    "not, which does not mean equal. ",
    Link("The rule", page="verdicts.md", anchor="how-to-read-this"),
    " says how wide the intervals and margins are, and how many seeds a verdict needs.",
)
# Of tests that are no comparison with SB3 at the same settings.
MARGINS_SINCE = (
    "Until 2026-11-28 the margin of these tests was 0.05 everywhere: it was changed when the runs "
    "were known."
)
# `undecided -0.005 [-0.032, +0.021], p=0.659`, as a cell of a table
WRITTEN = re.compile(r"(better|worse|equivalent|ceiling|undecided)\W+\d")


def shows_verdicts(blocks: Iterable[Block]) -> bool:
    """Whether a table has a verdict, or a forest plot has one on a difference with a margin."""
    found = [*walk(blocks)]
    cells = (text for x in found if isinstance(x, Table) for row in cells_of(x) for text in row)
    forests = (x for x in found if isinstance(x, Figure) and x.kind == "forest")
    rows = (row for x in forests for of_panel in x.data["panels"].values() for row in of_panel)
    return any(map(WRITTEN.match, cells)) or any(row.margin is not None for row in rows)


def opened(blocks: Sequence[Block]) -> list[Block]:
    """The blocks of a page, below its outcome with the rule of the verdicts that it shows."""
    if not shows_verdicts(blocks):
        return [*blocks]
    first = next((i for i, x in enumerate(blocks) if not isinstance(x, Outcome)), len(blocks))
    return [*blocks[:first], RULE, *blocks[first:]]


def answer(verdict: Parity | None, meaning: Mapping[str, Answer]) -> Answer:
    """What a verdict says of a claim. meaning: of the words that decide."""
    return meaning.get(verdict.word, "undecided") if verdict else "undecided"


def at_ceiling(verdict: Parity | None, env: str, other: str) -> bool:
    """Whether late scores are as alike as those of another algorithm of SB3's and `other` are there
    (`experiments.verdicts`), or all equal: that an algorithm is as good then says nothing."""
    if verdict is None or verdict.word not in ("equivalent", "saturated"):
        return False
    return verdict.word == "saturated" or other in CEILINGS.get(env, ())


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
    p: float = math.nan  # that there is no difference, where it decides a claim the corrected one

    @property
    def text(self) -> str:
        """`+0.172 [+0.123, +0.219]`"""
        return self.difference.text(self.digits, "+") + self.unit

    @property
    def sign(self) -> int:
        """1 where the interval lies above 0 and p agrees, -1 where it lies below, else 0."""
        if not self.p < LEVEL:
            return 0
        return int(self.difference.low > 0) - int(self.difference.high < 0)


def compared(
    measure: str, what: str, difference: Estimate | None, digits: int = 3, unit: str = ""
) -> list[Compared]:
    """The comparison, if there is a difference; it has the p of `stats.mean_difference`."""
    return [Compared(measure, what, difference, digits, unit, difference.p)] if difference else []


def with_ps(found: Sequence[Compared], p: Sequence[float]) -> list[Compared]:
    """The comparisons with other p-values."""
    return [x._replace(p=of_x) for x, of_x in zip(found, p, strict=True)]


def verdict_on(found: Sequence[Compared], sign: int) -> ClaimWord:
    """Whether all differences have the sign (1 or -1) that a claim gives them."""
    return claim_word({1: "true", -1: "false", 0: "undecided"}[sign * x.sign] for x in found)


def weakest(found: Sequence[Compared], sign: int, refutes: bool = True) -> str:
    """The difference that speaks most against a sign; empty without any.

    refutes: whether one on the other side contradicts the claim.
    """
    if not found:
        return ""
    least = min(found, key=lambda x: (sign * x.sign, sign * x.difference.value))
    text = f"{least.text}, {p_text(least.p)}, {least.measure}: {least.what}"
    text += f", n = {least.difference.n}"
    if len(found) > 1:
        agree, contradict = (sum(x.sign == s for x in found) for s in (sign, -sign))
        text += f" (the least favourable to the claim of {len(found)} comparisons; {agree} "
        text += f"agree{'s' * (agree == 1)} with it, {contradict} "
        ending = "s" * (contradict == 1)
        text += f"contradict{ending} it)" if refutes else f"fall{ending} short)"
    return text


class Applied(NamedTuple):
    """What shows that the treatment of a claim was applied, and whether it was."""

    said: str
    yes: bool = True


def judged(
    name: str,
    claim: Inline,
    source: str,
    found: Sequence[Compared],
    details: Sequence[Block] = (),
    *,
    applied: Applied | None = None,
    sign: int = 1,
    beside: Sequence[Compared] = (),
    figure: Figure | None = None,
    means: bool = True,
    note: str = "",
    unreached: str = "",
) -> Tested:
    """The card of a claim that gives differences a sign, 1 or -1.

    name: of its figure, of the differences where there is no other. applied: without it the claim
    is not tested, and what was compared does not decide. beside: what is compared, too, but does
    not decide; its p-values are not corrected. means: whether the differences are of means; of
    others it is not known which would be shown. note: what the number says besides. unreached: what
    is said instead of `does not hold` of a claim that a longer training could still make true.
    """
    happened = applied is None or applied.yes
    decisive, others = (found, beside) if happened else ((), [*found, *beside])

    def card(p: Sequence[float], level: float) -> Claim:
        known = with_ps(decisive, p)
        level = level if means else math.nan
        word = verdict_on(known, sign)
        number = weakest(known, sign, not unreached)
        if unreached and word == "does not hold":
            word, number = "not shown", f"{unreached}: {number}"
        elif word == "not shown":
            number += effects_text(known, level)
        if not known:
            number = NOTHING_COMPARED if happened else "the treatment was not applied"
        elif note:
            number += f"; {note}"
        drawn = figure or named_forest(name, claim, known)
        return Claim(
            claim, word, number, drawn, [*opening(applied, known, others, level), *details], source
        )

    return tested([x.p for x in decisive], card)


def opening(
    applied: Applied | None, found: Sequence[Compared], beside: Sequence[Compared], level: float
) -> Iterator[Block]:
    """What the details of a card begin with."""
    if applied:
        yield Text(f"Applied: {applied.said}.")
    if found or beside:
        yield comparison_table(found, beside, level)


def named_forest(name: str, claim: Inline, found: Sequence[Compared]) -> Figure | None:
    """The differences; the label is the claim that they decide."""
    figure = compared_forest(name, found)
    return figure and replace(figure, label=f"What decides: {text_of(claim).rstrip('.')}")


COMPARISONS = ("measure", "what was compared", "n", "difference [95%]", "p", "it is", SHOWN)


def comparison_table(found: Sequence[Compared], beside: Sequence[Compared], level: float) -> Table:
    """beside: what does not decide."""

    def row(x: Compared, word: str, effect: str) -> tuple[str, ...]:
        p = p_text(x.p).removeprefix("p").removeprefix("=")
        return (x.measure, x.what, str(x.difference.n), x.text, p, word, effect)

    rows = [row(x, WORDS[x.sign], effect_text(x, level)) for x in found]
    rows += [row(x, f"{WORDS[x.sign]}, decides nothing", "") for x in beside]
    columns = COMPARISONS if any(cells[-1] for cells in rows) else COMPARISONS[:-1]
    return Table("", columns, [cells[: len(columns)] for cells in rows])


def compared_forest(name: str, found: Sequence[Compared]) -> Figure | None:
    """A panel for each measure."""
    panels: dict[str, list[Difference]] = {}
    for x in found:
        d, label = x.difference, printable(x.what)
        row = Difference(label, d.value, d.low, d.high, WORDS[x.sign], n=d.n)
        panels.setdefault(x.measure, []).append(row)
    return forest(name, "What was compared", panels, "difference, 95% interval")
