"""The page of ablations: what is claimed of PPO's and REINFORCE's parts, and what was found.

Reads the runs of `python benchmarks/sweep.py --suite ablations`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from manyseeds.benchmarks.chapters.blocks import (
    OURS,
    Block,
    Claim,
    Code,
    Figure,
    Heading,
    Inline,
    Table,
    Text,
    folded_if_long,
)
from manyseeds.benchmarks.chapters.differences import (
    BETTER,
    CLAIM_RULE,
    HOLM,
    MARGINS_SINCE,
    Verdicts,
    answer,
    answered,
    corrected,
    outcome_of,
    p_of,
    tested,
    verdict_forest,
    with_p,
)
from manyseeds.benchmarks.chapters.origins import commands
from manyseeds.benchmarks.experiments.suite import ABLATION_ENVS, ABLATIONS, BASES, Ablation
from manyseeds.benchmarks.store.comparison import MEASURES, run_of
from manyseeds.benchmarks.store.results import Result, parity_of, verdict_text
from manyseeds.benchmarks.store.stored import left_out
from manyseeds.stats import Floats, Parity

Measure = Literal["late", "auc"]
Runs = dict[tuple[str, str, Any], Result]  # by environment, line and value


Side = tuple[str, Any]  # a line and a value of an ablation
Contrast = tuple[str, Side, Side]  # what is compared, which is claimed to be better, and the other


@dataclass(frozen=True)
class Acts:
    """What shows that the ablated part can act in a comparison, and the least that does."""

    name: str
    of: Callable[[Result, Result], float]  # the side that is claimed to be better, and the other
    least: float


def mean_kl(_: Result, free: Result) -> float:
    """The mean approximate KL of an update, over the training and the seeds, without clipping."""
    rows = free.run.table("metrics.parquet", ("seed", "approx_kl"))
    return float(rows["approx_kl"].mean())


@dataclass(frozen=True)
class Hypothesis:
    """What is claimed of an ablation; stated before its runs were trained."""

    ablation: Ablation
    title: str
    claim: str
    source: str
    measure: Measure
    pairs: Callable[[Ablation, str], list[Contrast]]  # in an environment
    about: Inline  # of its runs
    acts: Acts | None = None  # where it is only claimed of some comparisons


def with_clipping(ablation: Ablation, env: str) -> list[Contrast]:
    """Clipping against none, at each learning rate."""
    clipped, free = ablation.lines
    return [(f"learning rate {x:g}", (clipped, x), (free, x)) for x in ablation.values_on(env)]


def between_extremes(ablation: Ablation, env: str) -> list[Contrast]:
    """The lambda of the preset against 0 and 1."""
    chosen = base_value(ablation, env)
    return [(f"{chosen:g} against {x:g}", ("", chosen), ("", x)) for x in (0.0, 1.0)]


def with_normalisation(ablation: Ablation, env: str) -> list[Contrast]:
    return [("normalised against raw", ("", True), ("", False))]


def many_epochs(ablation: Ablation, env: str) -> list[Contrast]:
    return [(f"{n} against 1", ("", n), ("", 1)) for n in ablation.values_on(env) if n > 1]


def lower_variance(ablation: Ablation, env: str) -> list[Contrast]:
    """Each weight of REINFORCE against the one before it, of which its variance is a part."""
    steps = (("return_to_go", "total_return"), ("baseline", "return_to_go"), ("q", "return_to_go"))
    return [(f"{a} against {b}, {x}", (x, a), (x, b)) for x in ablation.lines for a, b in steps]


def is_preset(ablation: Ablation, env: str, line: str, value: Any) -> bool:
    """Whether a cell has the preset's settings but for the budget."""
    return not ablation.cell(env, line, value).settings.keys() - {"total_timesteps"}


def base_value(ablation: Ablation, env: str) -> Any:
    """The value of the preset."""
    return BASES[ablation.algo, env][ablation.varied]


BY_NAME = {ablation.name: ablation for ablation in ABLATIONS}
HYPOTHESES = (
    Hypothesis(
        BY_NAME["clipping"],
        "Clipping",
        "Clipping keeps a large step from ruining the policy: PPO ends higher with it than "
        "without.",
        "Schulman et al., 2017, arXiv 1707.06347",
        "late",
        with_clipping,
        (
            "PPO with its preset, except for the learning rate and, in the second line, ",
            Code("--clip-range 0"),
            ". Without clipping, only the number of steps keeps the policy near the one that "
            "collected the samples. Where that is enough there is no large step, and the "
            "comparison is not a test: its mean KL is below 0.015, at which Spinning Up's and "
            "SB3's PPO end an update with their usual target of 0.01. This limit was added after "
            "the runs.",
        ),
        Acts("KL without clipping", mean_kl, 0.015),
    ),
    Hypothesis(
        BY_NAME["lambda"],
        "GAE's lambda",
        "A lambda between the extremes trades bias against variance: PPO learns faster with the "
        "preset's than with 0 or 1.",
        "Schulman et al., 2016, arXiv 1506.02438",
        "auc",
        between_extremes,
        ("PPO with its preset, except for ", Code("--gae-lambda"), "."),
    ),
    Hypothesis(
        BY_NAME["normalisation"],
        "Normalised advantages",
        "PPO learns faster with advantages that are normalised in every minibatch.",
        f"{OURS}; Huang et al. (2022) list the detail, and Andrychowicz et al. (2021, arXiv "
        "2006.05990) find little effect",
        "auc",
        with_normalisation,
        ("PPO with its preset, with and without ", Code("--normalize-advantage"), "."),
    ),
    Hypothesis(
        BY_NAME["epochs"],
        "Epochs",
        "Samples can be used several times: PPO learns faster with more than one epoch.",
        "Schulman et al., 2017, arXiv 1707.06347",
        "auc",
        many_epochs,
        (
            "PPO with its preset, except for ",
            Code("--epochs"),
            ". At a constant budget of timesteps, more epochs mean more gradient steps.",
        ),
    ),
    Hypothesis(
        BY_NAME["weights"],
        "Weights of REINFORCE",
        "REINFORCE learns faster with weights of lower variance: with return-to-go than with "
        "R(tau), and with a baseline or Q than with return-to-go.",
        f"{OURS}, after Schulman et al., 2016, arXiv 1506.02438",
        "auc",
        lower_variance,
        (
            "REINFORCE with its preset, except for ",
            Code("--weight"),
            " and ",
            Code("--gamma 1"),
            ", as R(tau) discounts the later steps of an episode and the other weights do not, so "
            "that with a smaller gamma they have different objectives; raw weights use ",
            Code("--no-normalize-advantage"),
            ". On Acrobot-v1 the preset is that of a search which varied the weight, too: this "
            "favours the weight that it chose.",
        ),
    ),
)
COLUMNS = (
    *("environment", "line", "value", "n", "final, IQM [95%]", "failures"),
    "AUC, IQM [95%]",
)
PAIR_COLUMNS = ("environment", "comparison", *MEASURES.values(), "claim")


def page(results: Sequence[Result]) -> Iterator[Block]:
    """A section per claim that there are runs for."""
    blocks = corrected(x for about in HYPOTHESES for x in claim_section(about, results))
    if not blocks:
        return
    yield outcome_of(blocks, "claim")
    yield Text(
        "Each ablation varies one or two hyperparameters; everything else is as in the preset, "
        "except PPO's budget on Acrobot-v1, which is a fifth of the preset's. The comparisons that "
        "decide a claim were stated before the runs were trained, except for the runs of the "
        "presets and the first ten seeds of REINFORCE on CartPole-v1. So was the measure: AUC, or "
        "the final score, in whose place verdicts have since compared the late score. "
        f"{MARGINS_SINCE}"
    )
    yield Text(
        'A claim is "true" in a comparison if its verdict is better, "false" if it is worse or '
        f'equivalent, and "undecided" otherwise. {CLAIM_RULE} {HOLM} Verdicts by the other measure '
        "of a comparison decide nothing, and are single tests."
    )
    yield from blocks


def claim_section(about: Hypothesis, results: Sequence[Result]) -> list[Block]:
    """A claim with its comparisons and scores; nothing where none has both of its runs."""
    ablation = about.ablation
    runs = runs_of(ablation, results)
    compared: dict[tuple[str, str], dict[str, Parity | None]] = {}  # by environment and comparison
    acts: dict[tuple[str, str], float] = {}
    for env in ABLATION_ENVS:
        for name, *sides in about.pairs(ablation, env):
            better, worse = (runs.get((env, *side)) for side in sides)
            if better and worse:
                with left_out(worse.run.path):
                    if about.acts:
                        acts[env, name] = about.acts.of(better, worse)
                    compared[env, name] = {m: parity_of(better, worse, m) for m in MEASURES}
    if not compared:
        return []
    spec = {env: result.spec for (env, _, _), result in runs.items()}
    rows = [
        (
            env,
            line or "PPO",
            value_text(value) + " (preset)" * is_preset(ablation, env, line, value),
            str(len(result.seeds)),
            result.text("final"),
            result.failures_text(),
            result.text("auc"),
        )
        for (env, line, value), result in runs.items()
    ]
    name, label = f"ablation-{ablation.name}", f"Scores against {varied_name(ablation)}"
    pairs, by = f"{name}-comparisons", f"by {MEASURES[about.measure]}"
    single = {
        key: verdicts[about.measure]
        for key, verdicts in compared.items()
        if not about.acts or acts[key] >= about.acts.least
    }

    def card(p: Sequence[float], level: float) -> Claim:
        panels: Verdicts = {}
        judged = []
        decided = with_p(single, p)
        for (env, pair), verdicts in compared.items():
            verdict = decided.get((env, pair), verdicts[about.measure])
            panels.setdefault(env, {})[pair] = verdict
            both = verdicts | {about.measure: verdict}
            texts = (verdict_text(both[m], spec[env]) for m in MEASURES)
            shown = [f"{acts[env, pair]:.2g}"] if about.acts else []
            said = answer(verdict, BETTER) if (env, pair) in single else "not tested"
            judged.append((env, pair, *shown, *texts, said))
        check = [about.acts.name] if about.acts else []
        columns = (*PAIR_COLUMNS[:2], *check, *PAIR_COLUMNS[2:])
        return answered(
            about.claim,
            about.source,
            [row[-1] for row in judged if row[-1] != "not tested"],
            by,
            verdict_forest(pairs, f"Comparisons {by}", panels, "claimed better minus other"),
            [
                Text(about.about),
                Table(pairs, columns, judged),
                Figure(name, label, "scores_by_value", scores(ablation, runs)),
                folded_if_long("Scores of every value", Table(name, COLUMNS, rows)),
                *commands([result.run for result in runs.values()]),
            ],
            decided.values(),
            level,
        )

    return [Heading(about.title), tested(p_of(single), card)]


def runs_of(ablation: Ablation, results: Sequence[Result]) -> Runs:
    """The runs of an ablation that there are."""
    return {
        (env, line, value): result
        for env in ABLATION_ENVS
        for line in ablation.lines
        for value in ablation.values_on(env)
        if (result := run_of(ablation.cell(env, line, value), results))
    }


def scores(ablation: Ablation, runs: Runs) -> dict[str, Any]:
    """What `plots.scores_by_value` draws: a panel per environment and measure, a line per line."""

    def line_of(env: str, line: str, measure: str) -> dict[str, Floats]:
        values = ablation.values_on(env)
        found = {value_text(x): runs.get((env, line, x)) for x in values}
        return {x: getattr(r, measure) if r else np.array([]) for x, r in found.items()}

    panels = {
        f"{env}, {name}": {line: line_of(env, line, measure) for line in ablation.lines}
        for env in dict.fromkeys(env for env, _, _ in runs)
        for measure, name in MEASURES.items()
    }
    return {"panels": panels, "xlabel": varied_name(ablation), "ylabel": "greedy return"}


def varied_name(ablation: Ablation) -> str:
    return ablation.varied.replace("_", " ")


def value_text(value: Any) -> str:
    """A value as text: `0.001`, `yes`, `return_to_go`."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:g}" if isinstance(value, float) else str(value)
