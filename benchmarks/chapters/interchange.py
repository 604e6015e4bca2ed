"""Whether PPO is PPO and DQN is DQN: four libraries, the same hyperparameters, verdicts pairwise.

After "Are Deep RL implementations interchangeable?" (Hundt et al., arXiv 2503.22575), which found
that they are not, on Atari.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

from manyseeds import stats
from manyseeds.benchmarks.chapters.blocks import (
    Block,
    Claim,
    Figure,
    Heading,
    Link,
    Table,
    Text,
    folded_if_long,
    joined,
)
from manyseeds.benchmarks.chapters.differences import (
    HOLM,
    Verdicts,
    claim_word,
    corrected_verdicts,
    verdict_forest,
)
from manyseeds.benchmarks.chapters.origins import command_text, commands
from manyseeds.benchmarks.experiments.suite import COMMON, LIBRARIES, Cell
from manyseeds.benchmarks.experiments.verdicts import LOOKS, Verdict, margin_at
from manyseeds.benchmarks.measurements.library_details import STORED
from manyseeds.benchmarks.store.comparison import MEASURES, is_stale
from manyseeds.benchmarks.store.names import display
from manyseeds.benchmarks.store.results import (
    Result,
    decision,
    decision_text,
    parity,
    parity_of,
    settings_text,
    verdict_text,
)
from manyseeds.benchmarks.store.stored import find_file, section_of
from manyseeds.digest import ROOT
from manyseeds.record import plural
from manyseeds.stats import Floats, Parity

NAMES = {"manyseeds": "manyseeds", "sb3": "SB3", "sbx": "SBX", "rejax": "rejax"}
SCORES = (
    *("environment", "algorithm", "timesteps", "library", "n", "mean [95%]", "AUC, mean [95%]"),
    "failures",
)
PAIRS = ("environment", "algorithm", "of", "against", *MEASURES.values())
DETAILS = ("environment", "details", "n", "AUC, mean [95%]", "against ours")
Pair = tuple[str, str, str, str]  # algorithm, environment, and two libraries
BY_RULE = ("manyseeds", "sb3")  # whose verdicts are those of experiments/verdicts.py
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


def page(loaded: Sequence[Result], results: Path) -> Iterator[Block]:
    """Scores by library, and every pair's verdicts; nothing without a run of a third library."""
    found = {key: runs for key, runs in found_runs(loaded).items() if {"sbx", "rejax"} & set(runs)}
    if not found:
        return
    scores: list[tuple[str, ...]] = []
    pairs: list[tuple[str, ...]] = []
    speed: Verdicts = {}  # of ours against each library, by algorithm
    compared: dict[Pair, tuple[Result, Result]] = {}
    labels: dict[tuple[str, str, str], str] = {}
    for (algo, env), runs in found.items():
        for library, r in runs.items():
            label = NAMES[library] + " (stale)" * is_stale(r)
            labels[algo, env, library] = label
            texts = (r.text("final", "mean"), r.text("auc", "mean"), r.failures_text())
            steps = f"{r.timesteps_requested:,}"
            scores.append((env, display(algo), steps, label, str(len(r.seeds)), *texts))
        for one, other in combinations(runs, 2):
            compared[algo, env, one, other] = runs[one], runs[other]
    ruled = {
        pair: {m: decision(*compared[pair], m) for m in MEASURES}
        for pair in compared
        if pair[2:] == BY_RULE
    }
    single = {
        (pair, m): parity_of(*sides, m)
        for pair, sides in compared.items()
        if pair not in ruled
        for m in MEASURES
    }
    by_rule = {
        (pair, m): over_looks(v) for pair, verdicts in ruled.items() for m, v in verdicts.items()
    }
    corrected = corrected_verdicts(single | by_rule)
    judged: dict[tuple[str, str], list[Parity]] = {key: [] for key in found}
    for ((algo, env, *_), _), verdict in corrected.items():
        judged[algo, env] += [verdict] if verdict else []
    for pair, (a, _) in compared.items():
        algo, env, one, other = pair
        if pair in ruled:  # of the preset's settings it is that of every page
            words = [decision_text(v, a.spec) for v in ruled[pair].values()]
            auc = by_looks.parity if (by_looks := ruled[pair]["auc"]) else None
        else:
            words = [verdict_text(corrected[pair, m], a.spec) for m in MEASURES]
            auc = corrected[pair, "auc"]
        if one == "manyseeds":
            own = speed.setdefault(f"{display(algo)}, learning speed", {})
            own[f"{env}, {labels[algo, env, other]}"] = auc
        sides = (labels[algo, env, library] for library in (one, other))
        pairs.append((env, display(algo), *sides, *words))
    baselines = ROOT / "benchmarks" / "baselines"
    files = (Link(NAMES[name], file=baselines / f"{name}_baseline.py") for name in SCRIPTS)
    about = Text(
        "Each algorithm is trained by several libraries with the hyperparameters that all of them "
        "support. Each library uses its own environments, and all are evaluated in ours. The "
        f"verdicts on ours against SB3 are those of the rule.{changed_text()} Intervals of "
        "manyseeds' scores are over seeds and start states, those of the others over seeds alone, "
        f"which makes them narrower. {HOLM} For the claim those of the rule are corrected with "
        f"them, with p multiplied by its {len(LOOKS)} looks. The claim is true of an algorithm on "
        "an environment if any two libraries differ there, and holds in part if it is true of "
        "only some. The remaining differences, such as which gradients are clipped and whether a "
        "time limit ends an episode, are described in the files of ",
        joined(files),
        ". CleanRL is not among them: the package on PyPI (0.4.8, of 2021) imports gym, and the "
        "scripts of its repository, which is no package there, pin Gymnasium 0.29.1, PyTorch 2.4 "
        "and a Python older than ours.",
    )
    # Those of the others are on the pages of the environments.
    elsewhere = [r.run for runs in found.values() for x, r in runs.items() if x not in BY_RULE]
    label = "Learning speed of ours against other libraries"
    yield claim_of(
        judged,
        verdict_forest("interchange", label, speed, "ours minus theirs"),
        [
            about,
            folded_if_long("Scores by library", Table("interchange-scores", SCORES, scores)),
            folded_if_long("Every pair's verdicts", Table("interchange-verdicts", PAIRS, pairs)),
            *commands(elsewhere),
        ],
    )
    for algo in ("ppo", "dqn"):
        runs_of = {env: runs for (of, env), runs in found.items() if of == algo}
        yield from details_section(algo, runs_of, results)


def changed_text() -> str:
    """Which settings are not a preset's, as a sentence; empty without any."""
    changed = [
        f"{display(algo)} on {env} {settings_text(settings)}"
        for (algo, env), settings in COMMON.items()
        if settings
    ]
    what = "Settings that are not the preset's, so that other pages have verdicts on other runs: "
    return f" {what}{'; '.join(changed)}." if changed else ""


def over_looks(verdict: Verdict | None) -> Parity | None:
    """A verdict of the rule with a p-value that holds over all of its looks (Bonferroni)."""
    if verdict is None:
        return None
    return replace(verdict.parity, p=min(1.0, len(LOOKS) * verdict.parity.p))


def claim_of(
    judged: Mapping[tuple[str, str], Sequence[Parity]],
    figure: Figure | None,
    details: Sequence[Block],
) -> Claim:
    """The claim of the paper. judged: all verdicts by algorithm and environment, corrected."""
    found = [v for verdicts in judged.values() for v in verdicts]
    differ = sum(map(differs, found))
    apart = [any(map(differs, verdicts)) for verdicts in judged.values()]
    same = bool(found) and all(v.word in ("equivalent", "saturated", "ceiling") for v in found)
    none = "false" if same else "undecided"
    answers = ["true" if x else none for x in apart]
    return Claim(
        "Implementations of the same algorithm with the same hyperparameters are not "
        "interchangeable.",
        claim_word(answers),
        f"libraries differ in {sum(apart)} of {plural(len(apart), 'pair')} of algorithm and "
        f"environment; {differ} of {plural(len(found), 'verdict')} find a difference",
        figure,
        details,
        source="Hundt et al., 2025, arXiv 2503.22575",
    )


def differs(verdict: Parity) -> bool:
    return verdict.word in ("better", "worse")


def details_section(
    algo: str, runs: Mapping[str, Mapping[str, Result]], results: Path
) -> Sequence[Block]:
    """What library_details.py has measured, against the libraries' runs by environment; nothing
    without either."""
    path = find_file(results, f"library_details_{algo}.json")
    return section_of(path, STORED, partial(details_blocks, algo, runs))


def details_blocks(
    algo: str, runs: Mapping[str, Mapping[str, Result]], stored: dict[str, Any]
) -> Iterator[Block]:
    """Learning speed of ours with other libraries' details, and the verdicts on it."""
    measured = stored["measurements"]
    ours = {m["env"]: np.array(m["auc"]) for m in measured if m["detail"] == "none"}
    if len({(m["env"], m["detail"]) for m in measured}) < len(measured):
        raise ValueError("a detail is there twice")
    for m in measured:
        if len(m["auc"]) != stored["seeds"]:
            raise ValueError(f"{m['env']}, {m['detail']}: lacks a seed")
        if m["env"] not in ours:
            raise ValueError(f"{m['env']}: lacks the training without details")
    other = [x for x, a in ours.items() if not is_same(a, runs.get(x, {}).get("manyseeds"))]
    present = {x for m in measured for x in m["of"] if x in runs.get(m["env"], {})}
    libraries = [x for x in ("sbx", "rejax") if x in present]
    rows: list[tuple[str, ...]] = []
    before: dict[tuple[str, str], Parity | None] = {}  # verdicts without any detail
    together: list[tuple[str, ...]] = []
    for m in measured:
        env, detail, auc = m["env"], m["detail"], np.array(m["auc"])
        theirs = {x: runs[env][x] for x in m["of"] if x in runs.get(env, {})}
        if not theirs:
            continue
        spec = next(iter(theirs.values())).spec
        judge = partial(parity, auc, spec=spec, margin=margin_at(env, "auc"))
        against = {x: judge(r.auc, imputed=bool(r.unscored)) for x, r in theirs.items()}
        judged = {x: verdict_text(verdict, spec) for x, verdict in against.items()}
        alone = "-" if detail == "none" else verdict_text(judge(ours[env]), spec)
        mean = stats.estimate(auc, "mean").text(spec.digits)
        verdicts = (alone, *(judged.get(x, "-") for x in libraries))
        for x, verdict in against.items():
            if detail == "none":
                before[x, env] = verdict
            elif m["detail"] == f"all of {x}":
                detail = f"all of {NAMES[x]}'s"
                if verdict and (without := before.get((x, env))):
                    values = (f"{v.difference.value:+.3f}" for v in (without, verdict))
                    together.append((NAMES[x], env, *values))
        rows.append((env, detail, str(len(auc)), mean, *verdicts))
    if not rows:
        return
    columns = (*DETAILS, *(f"against {NAMES[x]}" for x in libraries))
    script = ROOT / "benchmarks" / "measurements" / "library_details.py"
    name = f"interchange-details-{algo}"
    header = ("library", "environment", "difference of ours to it", "with all of its details")
    yield Heading(f"Details behind the differences: {display(algo)}")
    yield Table(f"{name}-together", header, together)
    yield Text(
        "The learning speed of our code when it is trained with details of other libraries, one at "
        f"a time and all together, on the first {stored['seeds']} seeds. These verdicts decide no "
        "claim and are single tests. The details, and those that are not imitated, are described "
        "in ",
        Link("the script", file=script),
        ".",
        f" Without any detail the areas are not those of the runs above on {', '.join(other)}: "
        "they are of other code, or of another machine." * bool(other),
    )
    yield folded_if_long("One at a time", Table(name, columns, rows))
    yield command_text(stored)


def is_same(areas: Floats, run: Result | None) -> bool:
    """Whether a run has these areas under the curves of its seeds from 0 on."""
    stored = dict(zip(run.seeds, run.auc, strict=True)) if run else {}
    return all(seed not in stored or np.isclose(x, stored[seed]) for seed, x in enumerate(areas))
