"""Computes the margins within which verdicts count differences as equivalent.

    python benchmarks/margins.py

The margin of an environment must tell algorithms apart: for each pair of different algorithms of
SB3's it finds the margin from which on the rule of experiments/verdicts.py would call them
equivalent, and the widest of MARGIN_CHOICES that nine in ten pairs do not pass. Algorithms that are
as alike as the least margin are at their ceiling. The rule states what this found when it was made;
later runs do not change it. As a control, each algorithm of ours is then judged against each
*other* one of SB3's, as if they were the same. Writes margins.json, which report.py shows.
"""

from __future__ import annotations

from manyseeds.command import failing_in_one_line

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import combinations, product
from pathlib import Path
from typing import Any

from manyseeds.benchmarks.experiments.verdicts import (
    LOOKS,
    MARGINS,
    Rivals,
    at_ceiling,
    margin_of,
    rivals,
)
from manyseeds.benchmarks.measurements.measure import origin, write_measured
from manyseeds.benchmarks.store.comparison import Pair, pairs
from manyseeds.benchmarks.store.names import display
from manyseeds.benchmarks.store.results import decision, load_result, side_of
from manyseeds.benchmarks.store.stored import open_runs
from manyseeds.cli import PUBLISHED, ScriptConfig, parse
from manyseeds.progress import print_table
from manyseeds.untrusted import NAME, ORIGIN

RIVALS = {"first": NAME, "second": NAME, "least": float}
MARGIN = {"margin": float, "at_ceiling": [NAME], "pairs": [RIVALS]}
STORED: dict[str, Any] = {  # the file
    **ORIGIN,
    "measures": {str: {str: MARGIN}},  # by environment
    "control": {str: {str: {str: int}}},  # by environment and word
}
COLUMNS = ("environment", "measure", "margin", "at their ceiling", "closest", "alike from")


@dataclass(frozen=True, kw_only=True)
class Config(ScriptConfig):
    """The margins of verdicts."""


def rivals_on(env: str, found: Sequence[Pair], measure: str) -> list[Rivals]:
    """All pairs of different algorithms of SB3's with enough seeds for a verdict on an environment,
    the closest first."""
    sides = [pair.sb3 for pair in found if pair.env == env and pair.sb3]
    scores = {
        result.algo.removeprefix("sb3-"): side.scores
        for result in sides
        if (side := side_of(result, measure)) and len(side.scores) >= LOOKS[0]
    }
    compared = (rivals(a, b, scores[a], scores[b]) for a, b in combinations(scores, 2))
    return sorted(compared, key=lambda pair: pair.least)


def margins(found: Sequence[Pair]) -> dict[str, dict[str, dict[str, Any]]]:
    """The margins of all environments with two algorithms of SB3's, by measure."""
    by_measure: dict[str, dict[str, dict[str, Any]]] = {}
    for measure in MARGINS:
        for env in dict.fromkeys(pair.env for pair in found):
            if compared := rivals_on(env, found, measure):
                by_measure.setdefault(measure, {})[env] = {
                    "margin": margin_of(compared),
                    "at_ceiling": sorted(at_ceiling(compared)) if measure == "late" else [],
                    "pairs": [asdict(pair) for pair in compared],
                }
    return by_measure


def control(found: Sequence[Pair]) -> dict[str, dict[str, dict[str, int]]]:
    """How often each word is the verdict on an algorithm of ours and another one of SB3's."""
    counts: dict[str, dict[str, dict[str, int]]] = {}
    for measure, one, other in product(MARGINS, found, found):
        if one.env != other.env or one.algo == other.algo or not (one.sb3 and other.sb3):
            continue
        if one.ours and (verdict := decision(one.ours, other.sb3, measure)):
            words = counts.setdefault(measure, {}).setdefault(one.env, {})
            words[verdict.parity.word] = words.get(verdict.parity.word, 0) + 1
    return counts


@failing_in_one_line()
def main(args: Sequence[str] | None = None) -> None:
    """Compute, print, and write the file."""
    config = parse(Config, {}, __doc__, args)
    published = (run for run in open_runs(PUBLISHED) if run.kind == "control")
    known = pairs([load_result(run) for run in published])
    found = margins(known)
    rows = [
        (
            *(env, measure, f"{x['margin']:g}", ", ".join(map(display, x["at_ceiling"]))),
            f"{display(x['pairs'][0]['first'])}, {display(x['pairs'][0]['second'])}",
            f"{x['pairs'][0]['least']:.3f}",
        )
        for measure, by_env in found.items()
        for env, x in by_env.items()
    ]
    print_table("Margins, of normalised scores", COLUMNS, rows)
    code = origin(["manyseeds.benchmarks.measurements.margins:margins"])
    stored = {**code, "measures": found, "control": control(known)}
    write_measured(Path(config.results) / "margins.json", stored)


if __name__ == "__main__":
    main()
