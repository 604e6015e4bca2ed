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

from manyseeds import stats
from manyseeds.benchmarks.chapters.tables import table
from manyseeds.benchmarks.experiments.suite import COMMON, LIBRARIES, Cell
from manyseeds.benchmarks.store.comparison import MEASURES
from manyseeds.benchmarks.store.names import display
from manyseeds.benchmarks.store.results import (
    Result,
    Rows,
    command_text,
    escape,
    link,
    parity,
    parity_of,
    place,
    verdict_text,
)
from manyseeds.benchmarks.store.stored import find_file, section_of
from manyseeds.digest import ROOT
from manyseeds.stats import Floats, Parity
from manyseeds.untrusted import NAME, ORIGIN

NAMES = {"manyseeds": "manyseeds", "sb3": "SB3", "sbx": "SBX", "rejax": "rejax"}
SCORES = ("environment", "algorithm", "library", "n", "mean [95%]", "AUC, mean [95%]", "failures")
PAIRS = ("environment", "algorithm", "of", "against", *MEASURES.values())
DETAILS = ("environment", "details", "n", "AUC, mean [95%]", "against ours")
STORED: dict[str, Any] = {  # library_details_ppo.json and library_details_dqn.json
    **ORIGIN,
    "seeds": int,
    "measurements": [{"env": NAME, "detail": NAME, "of": [NAME], "auc": [float]}],
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
            verdicts = [parity_of(a, b, measure) for measure in MEASURES]
            words += [verdict.word for verdict in verdicts if verdict]
            judged = [verdict_text(verdict, a.spec) for verdict in verdicts]
            pairs.append((env, display(algo), NAMES[one], NAMES[other], *judged))
    differ = sum(word in ("better", "worse") for word in words)
    own = ", ".join(
        link(NAMES[name], place(ROOT / "benchmarks" / f"{name}_baseline.py", results))
        for name in SCRIPTS
    )
    return (
        "Each algorithm is trained by several libraries with the hyperparameters that all of them "
        "support. Each library uses its own environments, and all are evaluated in ours. "
        f"{differ} of {len(words)} verdicts find a difference between two libraries. Each verdict "
        "is a single test with a 95% interval, so without any true difference about 1 in 20 would "
        "do so by chance. The remaining differences, such as which gradients are clipped and "
        f"whether a time limit ends an episode, are described in the files of {own}.\n\n"
        f"{table(results, 'interchange-scores', SCORES, scores)}\n"
        f"{table(results, 'interchange-verdicts', PAIRS, pairs)}\n"
        f"{details_section('ppo', found, results)}"
        f"{details_section('dqn', found, results)}"
    )


def details_section(
    algo: str, found: Mapping[tuple[str, str], Mapping[str, Result]], results: Path
) -> str:
    """What benchmarks/library_details.py has measured, against the libraries' runs; '' without."""
    runs = {env: runs for (of, env), runs in found.items() if of == algo}
    path = find_file(results, f"library_details_{algo}.json")
    return section_of(path, STORED, partial(details_text, algo, runs, results))


def details_text(
    algo: str, runs: Mapping[str, Mapping[str, Result]], results: Path, stored: dict[str, Any]
) -> str:
    """Learning speed of ours with other libraries' details, and the verdicts on it.

    runs: the libraries' by environment.
    """
    measured = stored["measurements"]
    ours = {m["env"]: np.array(m["auc"]) for m in measured if m["detail"] == "none"}
    if len({(m["env"], m["detail"]) for m in measured}) < len(measured):
        raise ValueError("a detail is there twice")
    for m in measured:
        if len(m["auc"]) != stored["seeds"]:
            raise ValueError(f"{m['env']}, {m['detail']}: lacks a seed")
        if m["env"] not in ours:
            raise ValueError(f"{m['env']}: lacks the training without details")
    for env, areas in ours.items():
        check_same(areas, runs.get(env, {}).get("manyseeds"))
    present = {x for m in measured for x in m["of"] if x in runs.get(m["env"], {})}
    libraries = [x for x in ("sbx", "rejax") if x in present]
    rows: Rows = []
    before: dict[tuple[str, str], Parity | None] = {}  # verdicts without any detail
    outcomes: dict[str, list[str]] = {}
    for m in measured:
        env, detail, auc = m["env"], m["detail"], np.array(m["auc"])
        theirs = {x: runs[env][x] for x in m["of"] if x in runs.get(env, {})}
        if not theirs:
            continue
        spec = next(iter(theirs.values())).spec
        against = {x: parity(auc, r.auc, spec, bool(r.unscored)) for x, r in theirs.items()}
        judged = {x: verdict_text(verdict, spec) for x, verdict in against.items()}
        alone = "-" if detail == "none" else verdict_text(parity(auc, ours[env], spec), spec)
        mean = stats.estimate(auc, "mean").text(spec.digits)
        verdicts = (alone, *(judged.get(x, "-") for x in libraries))
        for x, verdict in against.items():
            if detail == "none":
                before[x, env] = verdict
            elif m["detail"] == f"all of {x}":
                detail = f"all of {NAMES[x]}'s"
                if verdict and (without := before.get((x, env))):
                    differences = (f"{v.difference.value:+.3f}" for v in (without, verdict))
                    outcomes.setdefault(x, []).append(f"{' to '.join(differences)} on {env}")
        rows.append((env, escape(detail), str(len(auc)), mean, *verdicts))
    if not rows:
        return ""
    outcome = "".join(
        f" All details of {NAMES[x]} together change the difference to {NAMES[x]} from "
        f"{', '.join(words)}."
        for x, words in outcomes.items()
    )
    columns = (*DETAILS, *(f"against {NAMES[x]}" for x in libraries))
    script = link("the script", place(ROOT / "benchmarks" / "library_details.py", results))
    return (
        f"\n## Details behind the differences: {display(algo)}\n\n"
        "The table has the learning speed of our code when it is trained with details of other "
        f"libraries, one at a time and all together, on the first {stored['seeds']} seeds. "
        "'Undecided' does not mean that two are equal. The details, and those that are not "
        f"imitated, are described in {script}.{outcome}\n\n"
        f"{table(results, f'interchange-details-{algo}', columns, rows)}\n"
        f"{command_text(stored)}\n"
    )


def check_same(areas: Floats, run: Result | None) -> None:
    """Raise ValueError where a run has other areas under the curves of the seeds from 0 on."""
    if run is None:
        return
    stored = dict(zip(run.seeds, run.auc, strict=True))
    if any(seed in stored and not np.isclose(x, stored[seed]) for seed, x in enumerate(areas)):
        raise ValueError(
            f"{run.spec.id}: without details, other areas than the run of the suite, as of other "
            "code or another machine"
        )
