"""The report's page of verdicts: all of them, what they are worth together, simulated error rates,
revised verdicts, and how the numbers of the report are to be read."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from statistics import NormalDist
from typing import Any

from manyseeds import stats
from manyseeds.benchmarks.chapters.environment_pages import anchor, page_name
from manyseeds.benchmarks.chapters.tables import table
from manyseeds.benchmarks.experiments.revised import FRESH, REVISED
from manyseeds.benchmarks.experiments.verdicts import LEVEL, LOOKS, MARGIN, Verdict
from manyseeds.benchmarks.store.comparison import MEASURES, SB3, Pair, plain_command
from manyseeds.benchmarks.store.names import display
from manyseeds.benchmarks.store.results import (
    FLOOR,
    Result,
    Rows,
    command_text,
    decision_text,
    escape,
    link,
    p_text,
    parity_of,
    print_table,
    verdict_text,
)
from manyseeds.benchmarks.store.stored import find_file, section_of
from manyseeds.evaluate import CURVE_EPISODES, FINAL_EPISODES, POINTS
from manyseeds.record import ranges
from manyseeds.stats import Parity
from manyseeds.untrusted import NUMBER

HOW_TO_READ = f"""\
- **Evaluation.** Each seed is evaluated {POINTS + 1} times, before training and at the first update
  after every 1/{POINTS} of it, on {CURVE_EPISODES} episodes, and after training on
  {FINAL_EPISODES}: greedy policy, raw rewards, and the same start states for all seeds and
  algorithms. In tabular environments the greedy policy's return is computed exactly from P and R
  instead. *Final score* is the greedy return after training, not the best one during training.
- **Interval.** One seed is one observation, and n is the number of seeds. `498.2 [493.1, 500.0]` is
  a statistic over seeds with its 95% expanded-percentile bootstrap interval. The IQM is the mean of
  the middle half of the seeds; the mean weights all seeds equally.
- **Failure.** A seed fails if it ends below the environment's reward threshold (below a normalised
  score of {FLOOR} if there is none), or if it diverges (its loss becomes NaN or infinite).
  `0 of 30, at most 10%` gives the observed failures and the upper bound of a one-sided 95% interval
  of the failure rate (Clopper-Pearson). All statistics include the failures. A non-finite return is
  replaced by the random policy's score or, if that is unknown, by the lowest return of the run.
- **Verdict.** A verdict compares ours with stable-baselines3 (SB3) at the same hyperparameters,
  network and evaluation. The number is the difference of the mean normalised scores (0: random
  policy, 1: reference), ours minus SB3's, with its {1 - LEVEL:.0%} interval; p is that of a
  permutation test. An interval within ±{MARGIN} is *equivalent*, given at least
  {stats.EQUIVALENCE_SEEDS} seeds per side. Otherwise an interval above 0 is *better* and one below
  0 is *worse*, if p agrees. If all seeds of both sides score the same, the cell is *saturated*, and
  the bound on the failure rate is given instead. Any other interval is *undecided*. The test is
  sequential: it is run at {", ".join(map(str, LOOKS))} seeds per side, and the first decisive
  result is the verdict, with n seeds per side. In simulations without a true difference
  (`error_rates.py`), less than 5% of comparisons are called better or worse, over all looks.
  *Equivalent* can still hide rare failures, up to the bound given with it. There is no verdict
  until both sides have seeds 0 to {LOOKS[0] - 1}, or if the environment's random or reference score
  is unknown. Verdicts use the mean, not the IQM, so that failed seeds count. The rule was stated on
  2026-11-22; seeds published before that date had already been tested by an earlier rule. Verdicts
  on ablations, searches and language models, and revised verdicts, use a single test with 95%
  intervals and p < 0.05.
- **Learning speed.** AUC is the area under the learning curve divided by its length, that is, the
  mean greedy return over training. Timesteps to threshold is the first evaluation at or above the
  reward threshold, the median over the seeds that reach it, with their number in brackets.
- **n** is the number of seeds; `10 of 20` means that the next look needs 20. Ours has at least 30,
  SB3 as many as decide both verdicts.
- **Stale** marks a run whose code has since changed in a way that may change its curve. **Not the
  preset** marks a run whose hyperparameters differ from those of the command with `--env` alone.
"""

RATES = {str: NUMBER}
STORED: dict[str, Any] = {  # error_rates.json
    "command": str,
    "code": {"commit": str},
    "versions": {str: str},
    "looks": [int],
    "level": float,
    "margin": float,
    "samples": int,
    "seeds": [int],
    "alike": {str: RATES},
    "apart": {str: RATES},
    "coverage": {str: {"mean": [NUMBER], "iqm": [NUMBER]}},
}
WORDS = ("equivalent", "better", "worse", "saturated", "undecided")


ALL = ("environment", "algorithm", *MEASURES.values())
REVISED_COLUMNS = (
    *("environment", "algorithm", "measure", "published first", "then", "what changed"),
    "on fresh seeds",
)


def page(found: Sequence[Pair], loaded: Sequence[Result], folder: Path) -> str:
    """The page. loaded: all control runs, with the fresh seeds that `found` lacks. folder: of the
    results, where the tables are written."""
    rates = section_of(
        find_file(folder, "error_rates.json"), STORED, partial(error_rates, folder=folder)
    )
    text = all_verdicts(found, folder) + revised_verdicts(loaded, folder)
    if rates:
        text += f"## Error rates of verdicts\n\n{rates}\n"
    return text + f"## How to read this\n\n{HOW_TO_READ}"


# ---- All verdicts ---------------------------------------------------------------------------


def all_verdicts(found: Sequence[Pair], folder: Path) -> str:
    """Every verdict in full, and what they say together; empty without any."""
    judged = [pair for pair in found if pair.verdict("final") and pair.ours]
    if not judged:
        return ""
    rows: Rows = [
        (
            escape(pair.env),
            link(display(pair.algo), Path(page_name(pair.env)), anchor(pair.algo)),
            *(decision_text(pair.verdict(m), pair.headline[0].spec) for m in MEASURES),
        )
        for pair in judged
    ]
    text = f"## All verdicts\n\n{table(folder, 'all-verdicts', ALL, rows)}\nTogether:\n\n"
    for measure, name in MEASURES.items():
        of_measure = [verdict for pair in judged if (verdict := pair.verdict(measure))]
        text += together_text(of_measure, name)
    return text + "\n"


def revised_verdicts(results: Sequence[Result], folder: Path) -> str:
    """The verdicts that changed after they were published, and what fresh seeds say."""
    rows: Rows = []
    for entry in REVISED:
        sides = []
        _, settings = plain_command(entry.algo, {"env": entry.env})
        for name in (entry.algo, SB3 + entry.algo):
            of_cell = [r for r in results if (r.algo, r.config) == (name, settings)]
            sides += [r.only(FRESH) for r in of_cell if set(FRESH) <= set(r.seeds)]
        text = "not trained yet"
        if len(sides) == 2:
            ours, theirs = sides
            text = verdict_text(parity_of(ours, theirs, entry.measure), ours.spec)
        algo, name = display(entry.algo), MEASURES[entry.measure]
        why = escape(entry.why)
        rows.append((entry.env, algo, name, entry.first, entry.then, why, text))
    if all(row[-1] == "not trained yet" for row in rows):
        return ""
    print_table("Revised verdicts", REVISED_COLUMNS, rows)
    return (
        "## Revised verdicts\n\nThese verdicts changed after publication. They were therefore "
        f"repeated on fresh seeds ({ranges(FRESH)}) of both sides, with a single test and 95% "
        "intervals:\n\n"
        f"{table(folder, 'revised-verdicts', REVISED_COLUMNS, rows)}\n"
    )


def counted(verdicts: Sequence[Verdict]) -> str:
    """`12 equivalent, 3 better, 1 undecided`"""
    words = [v.parity.word for v in verdicts]
    return ", ".join(f"{words.count(word)} {word}" for word in WORDS if word in words)


def z_of(parity: Parity) -> float:
    """The z of a permutation test, with the sign of the difference."""
    return math.copysign(NormalDist().inv_cdf(1 - parity.p / 2), parity.difference.value)


def together_text(verdicts: Sequence[Verdict], name: str) -> str:
    """How many verdicts of a measure there are of each kind, how many would be better or worse by
    chance, and Stouffer's pooled z.

    Saturated cells are left out of the last two: nothing varies there.
    """
    found = [v.parity for v in verdicts if v.parity.word != "saturated"]
    text = f"- {name}: {counted(verdicts)}"
    if not found:
        return text + ".\n"
    k = len(found)
    differ = sum(parity.word in ("better", "worse") for parity in found)
    pooled = sum(map(z_of, found)) / math.sqrt(k)
    p = math.erfc(abs(pooled) / math.sqrt(2))
    return text + (
        f". Of the {k} that are not saturated, {differ} are better or worse. Without any true "
        f"difference, at most {0.05 * k:.1f} would be on average. The pooled z of the permutation "
        f"tests is {pooled:+.2f}, {p_text(p)}. A z above 0 means that ours scores higher. It is "
        "approximate, because testing stops at the first decision.\n"
    )


# ---- Simulated error rates ------------------------------------------------------------------


def error_rates(stored: dict[str, Any], folder: Path) -> str:
    """The tables of benchmarks/error_rates.py."""
    looks = ", ".join(map(str, stored["looks"]))
    text = (
        f"Each row simulates {stored['samples']:,} comparisons, tested at {looks} seeds per side "
        "as above. Both sides have the same distribution of scores:\n\n"
    )
    alike = ("scores", "better or worse", "equivalent", "saturated", "undecided", "mean seeds")
    rows: Rows = []
    for name, r in stored["alike"].items():
        shares = [r["better"] + r["worse"], r["equivalent"], r["saturated"], r["undecided"]]
        rows.append((escape(name), *(f"{x:.1%}" for x in shares), f"{r['seeds']:.0f}"))
    print_table("Verdicts on sides without a true difference", alike, rows)
    text += table(folder, "error-rates-alike", alike, rows)
    text += (
        f"\nThe sides differ by exactly the margin, {stored['margin']}. Ours is worse, except in "
        "*skewed, the other way*:\n\n"
    )
    apart = ("scores", "equivalent", "better", "worse", *alike[3:])
    rows = []
    for name, r in stored["apart"].items():
        shares = [r["equivalent"], r["better"], r["worse"], r["saturated"], r["undecided"]]
        rows.append((escape(name), *(f"{x:.1%}" for x in shares), f"{r['seeds']:.0f}"))
    print_table("Verdicts on sides that differ by the margin", apart, rows)
    text += table(folder, "error-rates-apart", apart, rows)
    text += (
        "\nThe last row shows a limit of the rule. If fewer than one seed in ten fails, but fails "
        "badly, 30 seeds often show no failure, and the sides are called equivalent. A rule that "
        "calls sides without failures equivalent needs 59 seeds to keep this error below 5% "
        "(0.95^58). This is why failures are reported next to the verdicts, with a bound.\n"
        "\nCoverage of the 95% intervals, by the number of seeds:\n\n"
    )
    covered = ("scores", "statistic", *(f"n={n}" for n in stored["seeds"]))
    rows = [
        (escape(name), "IQM" if statistic == "iqm" else statistic, *(f"{x:.1%}" for x in shares))
        for name, both in stored["coverage"].items()
        for statistic, shares in both.items()
    ]
    print_table("Coverage of intervals", covered, rows)
    text += table(folder, "error-rates-coverage", covered, rows)
    return text + f"\n{command_text(stored)}\n"
