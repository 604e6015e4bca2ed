"""The report's sections on what the verdicts are worth: counted together, and simulated."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from benchmarks.chapters.results import Rows, command_text, escape, markdown_table, print_table
from benchmarks.chapters.stored import NUMBER
from benchmarks.verdicts import Verdict
from manyseeds.record import plural
from manyseeds.stats import Floats

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


def z_of(ours: Floats, theirs: Floats) -> float:
    """The difference of means in its standard errors (Welch); 0 where nothing varies."""
    d = ours.mean() - theirs.mean()
    error = math.sqrt(ours.var(ddof=1) / len(ours) + theirs.var(ddof=1) / len(theirs))
    return float(d / error) if error > 0 else 0.0


def together_text(
    verdicts: Sequence[Verdict], scores: Sequence[tuple[Floats, Floats]], name: str
) -> str:
    """How many verdicts of a measure there are of each kind, how many intervals exclude 0 and how
    many would by chance, and Stouffer's pooled z. scores: ours and theirs, normalised.

    Saturated cells are left out of the last two: nothing varies there.
    """
    open_cells = [
        (v, s) for v, s in zip(verdicts, scores, strict=True) if v.parity.word != "saturated"
    ]
    text = f"- {name}: {counted(verdicts)}"
    if not open_cells:
        return text + ".\n"
    k = len(open_cells)
    excluding = sum(
        v.parity.difference.low > 0 or v.parity.difference.high < 0 for v, _ in open_cells
    )
    pooled = sum(z_of(*s) for _, s in open_cells) / math.sqrt(k)
    p = math.erfc(abs(pooled) / math.sqrt(2))
    return text + (
        f". Of {plural(k, 'interval')} that are not saturated, {excluding} exclude 0; if all pairs "
        f"were alike, at most {0.05 * k:.1f} would. Pooled z {pooled:+.2f} (p={p:.2f}; above 0: "
        "ours scores higher).\n"
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
    text += f"\nSides that differ by exactly the margin, {stored['margin']}:\n\n"
    apart = ("scores", "equivalent", "the right side better", "the wrong one", *alike[3:])
    rows = []
    for name, r in stored["apart"].items():
        first, second = sorted((r["better"], r["worse"]), reverse=True)
        shares = [r["equivalent"], first, second, r["saturated"], r["undecided"]]
        rows.append((escape(name), *(f"{x:.1%}" for x in shares), f"{r['seeds']:.0f}"))
    print_table("Verdicts on sides that differ by the margin", apart, rows)
    text += markdown_table(apart, rows)
    text += (
        "\nThe last row is what no rule can hold with fewer than 59 seeds: 0.95^58 of all samples "
        "show no failure. That is why failures are counted beside the verdicts, with their bound.\n"
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
