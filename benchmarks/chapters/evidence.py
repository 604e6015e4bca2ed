"""The report's sections on what the verdicts are worth: counted together, and simulated."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist
from typing import Any

from benchmarks.chapters.results import Rows, command_text, escape, markdown_table, print_table
from benchmarks.chapters.stored import NUMBER
from benchmarks.verdicts import Verdict
from manyseeds.stats import Parity

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


# ---- All verdicts together ------------------------------------------------------------------


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
        f". Not saturated: {k}; better or worse: {differ}; if all pairs were alike, {0.05 * k:.1f} "
        f"would be on average, or fewer. Pooled z of the permutation tests {pooled:+.2f}, "
        f"p={p:.2f} (above 0: ours scores higher; approximate, since looking ends with a "
        "decision).\n"
    )


# ---- Simulated error rates ------------------------------------------------------------------


def error_rates(stored: dict[str, Any]) -> str:
    """The tables of benchmarks/error_rates.py."""
    looks = ", ".join(map(str, stored["looks"]))
    text = (
        f"{stored['samples']:,} simulated comparisons each, looked at with {looks} seeds a side as "
        f"above. Sides that are alike:\n\n"
    )
    alike = ("scores", "better or worse", "equivalent", "saturated", "undecided", "mean seeds")
    rows: Rows = []
    for name, r in stored["alike"].items():
        shares = [r["better"] + r["worse"], r["equivalent"], r["saturated"], r["undecided"]]
        rows.append((escape(name), *(f"{x:.1%}" for x in shares), f"{r['seeds']:.0f}"))
    print_table("Verdicts on sides that are alike", alike, rows)
    text += markdown_table(alike, rows)
    text += (
        f"\nSides that differ by exactly the margin, {stored['margin']}: ours is worse, but for "
        "*skewed, the other way*.\n\n"
    )
    apart = ("scores", "equivalent", "better", "worse", *alike[3:])
    rows = []
    for name, r in stored["apart"].items():
        shares = [r["equivalent"], r["better"], r["worse"], r["saturated"], r["undecided"]]
        rows.append((escape(name), *(f"{x:.1%}" for x in shares), f"{r['seeds']:.0f}"))
    print_table("Verdicts on sides that differ by the margin", apart, rows)
    text += markdown_table(apart, rows)
    text += (
        "\nThe last row is a limit of the rule: where fewer than one seed in ten fails, and badly, "
        "30 seeds often show no failure, and the sides are called equivalent. No rule that calls "
        "sides without failures equivalent can hold 5% there with fewer than 59 seeds, 0.95^58. "
        "That is why failures are counted beside the verdicts, with their bound.\n"
        "\nHow often the 95% intervals contain what they estimate, by the number of seeds:\n\n"
    )
    covered = ("scores", "statistic", *(f"n={n}" for n in stored["seeds"]))
    rows = [
        (escape(name), "IQM" if statistic == "iqm" else statistic, *(f"{x:.1%}" for x in shares))
        for name, both in stored["coverage"].items()
        for statistic, shares in both.items()
    ]
    print_table("Coverage of intervals", covered, rows)
    text += markdown_table(covered, rows)
    return text + f"\n{command_text(stored)}\n"
