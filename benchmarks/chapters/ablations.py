"""The ablations of the report: what is claimed of PPO's and REINFORCE's parts, and what is found.

Reads the runs of `python benchmarks/sweep.py --suite ablations`; `report.py` writes the sections
that `page` returns, and their figures.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from manyseeds import plots
from manyseeds.benchmarks.chapters.tables import table
from manyseeds.benchmarks.experiments.suite import ABLATION_ENVS, ABLATIONS, BASES, Ablation
from manyseeds.benchmarks.store.comparison import MEASURES
from manyseeds.benchmarks.store.results import (
    Result,
    Rows,
    commands,
    parity_of,
    picture,
    verdict_text,
)
from manyseeds.cli import identity
from manyseeds.record import plural

Measure = Literal["final", "auc"]
WORDS = {"better": "true", "worse": "false", "equivalent": "false"}  # of verdicts; else undecided
ANSWERS = ("true", "false", "undecided")


@dataclass(frozen=True)
class Contrast:
    """A cell that a claim says is better than another, each a line and a value of an ablation."""

    name: str  # what is compared
    better: tuple[str, Any]
    worse: tuple[str, Any]


@dataclass(frozen=True)
class Claim:
    """What is claimed of an ablation; stated before its runs were trained."""

    ablation: Ablation
    title: str
    text: str  # a sentence without its full stop
    measure: Measure
    pairs: Callable[[Ablation, str], list[Contrast]]  # in an environment
    about: str  # what the section says of its runs


def with_clipping(ablation: Ablation, env: str) -> list[Contrast]:
    """Clipping against none, at each learning rate."""
    clipped, free = ablation.lines
    return [
        Contrast(f"learning rate {x:g}", (clipped, x), (free, x)) for x in ablation.values_on(env)
    ]


def between_extremes(ablation: Ablation, env: str) -> list[Contrast]:
    """The lambda of the preset against 0 and 1."""
    chosen = base_value(ablation, env)
    return [Contrast(f"{chosen:g} against {x:g}", ("", chosen), ("", x)) for x in (0.0, 1.0)]


def with_normalisation(ablation: Ablation, env: str) -> list[Contrast]:
    """Normalised advantages against raw ones."""
    return [Contrast("normalised against raw", ("", True), ("", False))]


def many_epochs(ablation: Ablation, env: str) -> list[Contrast]:
    """Each number of epochs against one."""
    return [Contrast(f"{n} against 1", ("", n), ("", 1)) for n in ablation.values_on(env) if n > 1]


def lower_variance(ablation: Ablation, env: str) -> list[Contrast]:
    """Each weight of REINFORCE against the one before it, of which its variance is a part."""
    steps = (("return_to_go", "total_return"), ("baseline", "return_to_go"), ("q", "return_to_go"))
    return [
        Contrast(f"{a} against {b}, {line}", (line, a), (line, b))
        for line in ablation.lines
        for a, b in steps
    ]


def base_value(ablation: Ablation, env: str) -> Any:
    """The value of the preset."""
    return BASES[ablation.algo, env][ablation.varied]


BY_NAME = {ablation.name: ablation for ablation in ABLATIONS}
CLAIMS = (
    Claim(
        BY_NAME["clipping"],
        "Clipping",
        "Clipping keeps a large step from ruining the policy: PPO ends higher with it than without",
        "final",
        with_clipping,
        "PPO with its preset, except for the learning rate and, in the second line, "
        "`--clip-range 0`. Without clipping, only the number of steps keeps the policy near the "
        "one that collected the samples.",
    ),
    Claim(
        BY_NAME["lambda"],
        "GAE's lambda",
        "A lambda between the extremes trades bias against variance: PPO learns faster with the "
        "preset's than with 0 or 1",
        "auc",
        between_extremes,
        "PPO with its preset, except for `--gae-lambda`.",
    ),
    Claim(
        BY_NAME["normalisation"],
        "Normalised advantages",
        "PPO learns faster with advantages that are normalised in every minibatch",
        "auc",
        with_normalisation,
        "PPO with its preset, with and without `--normalize-advantage`.",
    ),
    Claim(
        BY_NAME["epochs"],
        "Epochs",
        "Samples can be used several times: PPO learns faster with more than one epoch",
        "auc",
        many_epochs,
        "PPO with its preset, except for `--epochs`. At a constant budget of timesteps, more "
        "epochs mean more gradient steps.",
    ),
    Claim(
        BY_NAME["weights"],
        "Weights of REINFORCE",
        "REINFORCE learns faster with weights of lower variance: with return-to-go than with "
        "R(tau), and with a baseline or Q than with return-to-go",
        "auc",
        lower_variance,
        "REINFORCE with its preset, except for `--weight`; *raw weights* use "
        "`--no-normalize-advantage`.",
    ),
)
COLUMNS = (
    *("environment", "line", "value", "n", "final, IQM [95%]", "failures"),
    "AUC, IQM [95%]",
)
PAIR_COLUMNS = ("environment", "comparison", "final score", "AUC", "claim")


def page(results: Sequence[Result], folder: Path) -> str:
    """A section per claim that there are runs for; figures go into folder/plots."""
    found = [section for claim in CLAIMS if (section := claim_section(claim, results, folder))]
    if not found:
        return ""
    return (
        "Each ablation varies one or two hyperparameters; everything else is as in the preset, "
        "except PPO's budget on Acrobot-v1, which is a fifth of the preset's. Each section tests a "
        "common claim. The comparisons that decide it, by final score or by AUC, were stated "
        "before the runs were trained, except for the runs of the presets and the first ten seeds "
        "of REINFORCE on CartPole-v1. A claim is *true* in a comparison if its verdict is better, "
        "*false* if it is worse or equivalent, and *undecided* otherwise. A verdict is a single "
        "test with the 95% interval of the difference of normalised means and p < 0.05, not "
        "corrected for the number of comparisons.\n\n" + "".join(found)
    )


def claim_section(claim: Claim, results: Sequence[Result], folder: Path) -> str:
    """Sentence, comparisons, scores and figure of a claim; '' where none has both of its runs."""
    ablation = claim.ablation
    runs: dict[tuple[str, str, Any], Result] = {}
    for env in ABLATION_ENVS:
        here = {
            result.run.path.name: result
            for result in results
            if (result.algo, result.spec.id) == (ablation.algo, env)
        }
        for line in ablation.lines:
            for value in ablation.values_on(env):
                cell = ablation.cell(env, line, value)
                result = here.get(cell.folder().path.name)
                if result is not None and result.config == identity(cell.config()):
                    runs[env, line, value] = result
    answers, comparisons = judged(claim, runs)
    if not comparisons:
        return ""
    rows: Rows = [
        (
            env,
            line or "PPO",
            value_text(value) + " (preset)" * (value == base_value(ablation, env)),
            str(len(result.seeds)),
            result.text(result.final),
            result.failures_text(),
            result.text(result.auc),
        )
        for (env, line, value), result in runs.items()
    ]
    figure = folder / "plots" / f"ablation-{ablation.name}.svg"
    draw(claim, runs, figure)
    return (
        f"## {claim.title}\n\n"
        f"{sentence(claim, answers)}\n\n"
        f"{claim.about}\n\n"
        + picture(f"Scores against {ablation.varied.replace('_', ' ')}", figure)
        + f"{table(folder, f'ablation-{ablation.name}-comparisons', PAIR_COLUMNS, comparisons)}\n"
        + f"{table(folder, f'ablation-{ablation.name}', COLUMNS, rows)}\n"
        + commands([result.run for result in runs.values()])
    )


def judged(
    claim: Claim, runs: dict[tuple[str, str, Any], Result]
) -> tuple[dict[str, dict[str, str]], Rows]:
    """By environment, the answer of each comparison whose runs there are; and their table."""
    answers: dict[str, dict[str, str]] = {}
    rows: Rows = []
    for env in ABLATION_ENVS:
        for pair in claim.pairs(claim.ablation, env):
            if (env, *pair.better) not in runs or (env, *pair.worse) not in runs:
                continue
            better, worse = runs[env, *pair.better], runs[env, *pair.worse]
            verdicts = {measure: parity_of(better, worse, measure) for measure in MEASURES}
            verdict = verdicts[claim.measure]
            answer = WORDS.get(verdict.word, "undecided") if verdict else "undecided"
            answers.setdefault(env, {})[pair.name] = answer
            texts = (verdict_text(verdicts[measure], better.spec) for measure in MEASURES)
            rows.append((env, pair.name, *texts, answer))
    return answers, rows


def sentence(claim: Claim, answers: dict[str, dict[str, str]]) -> str:
    """What the comparisons say of a claim, in a sentence per answer."""
    total = sum(map(len, answers.values()))
    text = f"**{claim.text}**: {plural(total, 'comparison')} by {MEASURES[claim.measure]}."
    for answer in ANSWERS:
        names = {
            env: [name for name, word in named.items() if word == answer]
            for env, named in answers.items()
        }
        if count := sum(map(len, names.values())):
            where = [f"{env} ({', '.join(of_env)})" for env, of_env in names.items() if of_env]
            text += f" *{answer.capitalize()}* in {count} of {total}: {' and '.join(where)}."
    return text


def draw(claim: Claim, runs: dict[tuple[str, str, Any], Result], path: Path) -> None:
    """Final scores and AUC against the value, a row of panels per environment."""
    ablation = claim.ablation
    panels: dict[str, dict[str, dict[str, np.ndarray]]] = {}
    for env in ABLATION_ENVS:
        if not any(there == env for there, _, _ in runs):
            continue
        for measure, name in MEASURES.items():
            panels[f"{env}, {name}"] = {
                line: {
                    value_text(value): getattr(result, measure)
                    if (result := runs.get((env, line, value)))
                    else np.array([])
                    for value in ablation.values_on(env)
                }
                for line in ablation.lines
            }
    plots.scores_by_value(
        panels, path, xlabel=ablation.varied.replace("_", " "), ylabel="greedy return"
    )


def value_text(value: Any) -> str:
    """A value as text: `0.001`, `yes`, `return_to_go`."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:g}" if isinstance(value, float) else str(value)
