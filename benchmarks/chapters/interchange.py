"""Whether PPO is PPO and DQN is DQN: four libraries, the same hyperparameters, verdicts pairwise.

After "Are Deep RL implementations interchangeable?" (Hundt et al., arXiv 2503.22575), which found
that they are not, on Atari.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.chapters.comparison import MEASURES
from benchmarks.chapters.names import display
from benchmarks.chapters.results import (
    Result,
    Rows,
    command_text,
    escape,
    link,
    parity,
    place,
    verdict_text,
)
from benchmarks.chapters.stored import NAME, ORIGIN, find_file, section_of
from benchmarks.chapters.tables import table
from benchmarks.suite import COMMON, LIBRARIES, Cell
from manyseeds import stats
from manyseeds.digest import ROOT

NAMES = {"manyseeds": "manyseeds", "sb3": "SB3", "sbx": "SBX", "rejax": "rejax"}
SCORES = ("environment", "algorithm", "library", "n", "mean [95%]", "AUC, mean [95%]", "failures")
PAIRS = ("environment", "algorithm", "of", "against", *MEASURES.values())
DETAILS = (
    *("environment", "details of rejax", "n", "AUC, mean [95%]"),
    *("against ours", "against rejax"),
)
STORED: dict[str, Any] = {  # rejax_details.json
    **ORIGIN,
    "seeds": int,
    "measurements": [{"env": NAME, "detail": NAME, "final": [float], "auc": [float]}],
}
SCRIPTS = ("sb3", "sbx", "rejax")  # whose files say what stays their own


def found_runs(loaded: Sequence[Result]) -> dict[tuple[str, str], dict[str, Result]]:
    """The runs of each algorithm and environment with the common settings, by library."""
    by_cell = {(r.spec.id, r.algo, r.run.path.name): r for r in loaded}
    found = {}
    for (algo, env), settings in COMMON.items():
        runs = {}
        for library in LIBRARIES:
            cell = Cell(algo, env, 1, library, settings)
            if result := by_cell.get((env, cell.label, cell.folder().path.name)):
                runs[library] = result
        found[algo, env] = runs
    return found


def page(loaded: Sequence[Result], results: Path) -> str:
    """Scores by library, and every pair's verdicts; '' without a run of a third library."""
    found = {key: runs for key, runs in found_runs(loaded).items() if {"sbx", "rejax"} & set(runs)}
    if not found:
        return ""
    scores: Rows = []
    pairs: Rows = []
    words: list[str] = []
    for (algo, env), runs in found.items():
        for library, r in runs.items():
            texts = (r.text(r.final, "mean"), r.text(r.auc, "mean"), r.failures_text())
            scores.append((env, display(algo), NAMES[library], str(len(r.seeds)), *texts))
        for one, other in combinations(runs, 2):
            a, b = runs[one], runs[other]
            verdicts = [
                parity(getattr(a, measure), getattr(b, measure), a.spec) for measure in MEASURES
            ]
            words += [verdict.word for verdict in verdicts if verdict]
            judged = [verdict_text(verdict, a.spec) for verdict in verdicts]
            pairs.append((env, display(algo), NAMES[one], NAMES[other], *judged))
    differ = sum(word in ("better", "worse") for word in words)
    own = ", ".join(
        link(NAMES[name], place(ROOT / "benchmarks" / f"{name}_baseline.py", results))
        for name in SCRIPTS
    )
    return (
        "The same algorithm by several libraries with the hyperparameters that all of them can "
        "set, each in its own environments and all evaluated in ours. "
        f"{differ} of {len(words)} verdicts say that two libraries differ. Verdicts are looked at "
        "once, by 95% intervals: where nothing differs, about 1 in 20 says so by chance. What "
        "stays each library's own, such as which gradients are "
        f"clipped and whether a time limit ends an episode, is said in the files of {own}.\n\n"
        f"{table(results, 'interchange-scores', SCORES, scores)}\n"
        f"{table(results, 'interchange-verdicts', PAIRS, pairs)}\n"
        f"{details_section(found, results)}"
    )


def details_section(found: Mapping[tuple[str, str], Mapping[str, Result]], results: Path) -> str:
    """What benchmarks/rejax_details.py has measured, against rejax's runs; '' without."""
    rejax = {
        env: runs["rejax"]
        for (algo, env), runs in found.items()
        if "rejax" in runs and algo == "ppo"
    }
    write = partial(details_text, rejax=rejax, results=results)
    return section_of(find_file(results, "rejax_details.json"), STORED, write)


def details_text(stored: dict[str, Any], rejax: Mapping[str, Result], results: Path) -> str:
    """Learning speed of ours with rejax's details, and the verdicts on it."""
    areas: dict[str, dict[str, Any]] = {}
    for m in stored["measurements"]:
        if len(m["auc"]) != stored["seeds"]:
            raise ValueError(f"{m['env']}, {m['detail']}: lacks a seed")
        areas.setdefault(m["env"], {})[m["detail"]] = np.array(m["auc"])
    rows: Rows = []
    outcomes: list[str] = []
    for env, by_detail in areas.items():
        if env not in rejax:
            continue
        spec = rejax[env].spec
        ours = by_detail["none"]
        for detail, auc in by_detail.items():
            with_ours = "" if detail == "none" else verdict_text(parity(auc, ours, spec), spec)
            with_rejax = verdict_text(parity(auc, rejax[env].auc, spec), spec)
            mean = stats.estimate(auc, "mean").text(spec.digits)
            rows.append((env, escape(detail), str(len(auc)), mean, with_ours, with_rejax))
        left = parity(by_detail["all"], rejax[env].auc, spec)
        if left:
            outcomes.append(f"{left.word} on {env}")
    if not rows:
        return ""
    outcome = f"With all of them, ours against rejax is {', '.join(outcomes)}. " if outcomes else ""
    return (
        "\n## Why rejax's PPO learns at another speed\n\n"
        "Ours, trained with details of rejax's, one at a time and all together. "
        f"{outcome}{command_text(stored)}\n\n"
        f"{table(results, 'interchange-details', DETAILS, rows)}\n"
    )
