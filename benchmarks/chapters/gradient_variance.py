"""The page on the variance of the policy gradient: what gradient_variance.py has measured.

S is the number of seeds.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np

from manyseeds import stats
from manyseeds.benchmarks.chapters.blocks import (
    Block,
    Figure,
    Fold,
    Outcome,
    Table,
    Text,
)
from manyseeds.benchmarks.chapters.origins import command_text
from manyseeds.benchmarks.measurements.gradient_variance import REFERENCE, STORED, UNBIASED
from manyseeds.benchmarks.store.stored import find_file, section_of
from manyseeds.errors import printable
from manyseeds.record import plural
from manyseeds.stats import Estimate, Floats

WORST = "total_return"  # what the others are compared with
NAMES = {
    "total_return": "R(tau)",
    "return_to_go": "return-to-go",
    "return_to_go, normalised": "return-to-go, normalised",
    "baseline": "return-to-go minus V",
    "q": "Q",
}
COLUMNS = (
    *("policies", "weight", "n", "variance [95%]", "variance / signal [95%]"),
    *("R(tau)'s, divided by it [95%]", "cosine with the gradient [95%]"),
)


def page(results: Path) -> Sequence[Block]:
    """The page; nothing without measurements."""
    return section_of(find_file(results, "gradient_variance.json"), STORED, comparison)


POLICIES = ("policies", "mean return", "V explains", "Q explains")
LOWER, HIGHER = "lower at every stage", "higher at every stage"
UNKNOWN = "not the same or not known at every stage"


class StageFigures:
    """What was measured of all seeds at one stage, [S] each, by weight."""

    def __init__(self, stored: dict[str, Any], stage: str) -> None:
        rows = [m for m in stored["measurements"] if m["stage"] == stage]
        self.policies = [p for p in stored["policies"] if p["stage"] == stage]
        self.weights = list(dict.fromkeys(m["weight"] for m in rows))
        self.figures: dict[str, dict[str, Floats]] = {}
        for weight in self.weights:
            of_weight = sorted((m for m in rows if m["weight"] == weight), key=lambda m: m["seed"])
            if [m["seed"] for m in of_weight] != list(range(stored["seeds"])):
                raise ValueError(f"{stage}: {weight} lacks a seed")
            keys = ("variance", "signal", "dot")
            self.figures[weight] = {k: np.array([m[k] for m in of_weight]) for k in keys}
            if (self.figures[weight]["variance"] <= 0).any():
                raise ValueError(f"{stage}: {weight} has a variance of 0 or below")

    def variance(self, weight: str) -> Floats:
        return self.figures[weight]["variance"]

    def signal(self, weight: str) -> Floats:
        """The squared length of the mean; of those that have the same mean, from the one of them
        that varies least. NaN where none is detected."""
        signal = self.figures[REFERENCE if weight in UNBIASED else weight]["signal"]
        return np.where(signal > 0, signal, np.nan)

    def relative(self, weight: str) -> Floats:
        """Variance over signal."""
        return self.variance(weight) / self.signal(weight)

    def factor(self, weight: str) -> Floats:
        """By how much the relative variance is smaller than R(tau)'s."""
        if weight in UNBIASED:  # the signal is the same, seen or not
            return self.variance(WORST) / self.variance(weight)
        return self.relative(WORST) / self.relative(weight)

    def cosine(self, weight: str) -> Floats:
        """Between the mean of a weight and the gradient."""
        return self.figures[weight]["dot"] / np.sqrt(self.signal(weight) * self.signal(REFERENCE))

    def comparison(self, weight: str) -> Estimate | None:
        """The logarithm of the factor, over seeds; None where a signal is not detected."""
        factor = self.factor(weight)
        return stats.estimate(np.log10(factor), "mean") if np.isfinite(factor).all() else None

    def is_biased(self, weight: str) -> bool:
        """Whether the interval of the cosine lies below 1."""
        if weight in UNBIASED or weight not in self.figures:
            return False
        cosine = self.cosine(weight)
        return bool(np.isfinite(cosine).all() and stats.estimate(cosine, "mean").high < 1)


def comparison(stored: dict[str, Any]) -> Iterator[Block]:
    """The page of gradient_variance.json."""
    names = list(dict.fromkeys(m["stage"] for m in stored["measurements"]))
    stages = {name: StageFigures(stored, name) for name in names}
    weights = list(dict.fromkeys(weight for stage in stages.values() for weight in stage.weights))
    words = {weight: word_of(weight, stages) for weight in weights if weight != WORST}
    biased = [weight for weight in weights if any(s.is_biased(weight) for s in stages.values())]
    rows = []
    for name, stage in stages.items():
        for weight in stage.weights:
            about = name, weight_name(weight), str(stored["seeds"])
            variance = geometric(stage.variance(weight)), geometric(stage.relative(weight))
            factor = "" if weight == WORST else geometric(stage.factor(weight))
            cosines = stage.cosine(weight)
            cosine = undetected(cosines) or stats.estimate(cosines, "mean").text(2)
            cosine = "1, by definition" if weight == REFERENCE else cosine
            rows.append((*about, *variance, factor, cosine))
    panels = {}
    for name, stage in stages.items():
        values = {printable(weight_name(w)): stage.relative(w) for w in stage.weights}
        panels[printable(name)] = {"": {w: x[np.isfinite(x)] for w, x in values.items()}}
    yield Outcome(outcome(words, biased))
    yield Figure(
        "gradient-variance",
        "Relative variance of the gradient with each weight",
        "scores_by_value",
        {"panels": panels, "xlabel": "", "ylabel": "variance / signal", "log_y": True},
    )
    elsewhere = {weight: "points elsewhere at some stage" for weight in biased}
    yield Table(
        "gradient-variance-weights",
        ("weight", "relative variance beside R(tau)'s", "R(tau)'s, divided by it", "mean"),
        [
            (weight_name(weight), word, factors_text(weight, stages), elsewhere.get(weight, ""))
            for weight, word in words.items()
        ],
    )
    yield Text(
        f"REINFORCE trains {plural(stored['seeds'], 'seed')} on {stored['env']} for "
        f"{stored['total_timesteps']:,} timesteps with its preset. Its policies at several stages "
        "are frozen, and of each the gradient is estimated "
        f"{plural(stored['estimates'], 'time')} from {plural(stored['episodes'], 'new episode')}, "
        "with every weight of the log-probabilities and gamma 1. Variance is the trace of the "
        "covariance of an estimate, signal the squared length of its mean, and their quotient, the "
        "relative variance, does not depend on the scale of the weights."
    )
    yield Text(
        "R(tau), return-to-go and return-to-go minus V have the same mean, the gradient itself. "
        "Its length is taken from the last of them, which varies least. A cosine below 1 is the "
        "bias of a weight. Its estimate may be above 1, and is unknown where no signal is "
        "detected. V and Q are fitted to each frozen policy on episodes of their own, so that no "
        "critic lags behind. All episodes of an estimate with GRPO's weights begin in the same "
        "state. Geometric means over seeds, arithmetic ones of cosines."
    )
    yield Fold(
        f"The figures of every weight at every stage: {plural(len(rows), 'row')}",
        [Table("gradient-variance", COLUMNS, rows)],
    )
    yield Fold(
        "The frozen policies: their returns, and what the critics explain",
        [Table("gradient-variance-policies", POLICIES, policy_rows(stages))],
    )
    yield command_text(stored, stored["machine"]["cpu"], f"torch {stored['versions']['torch']}")


def word_of(weight: str, stages: dict[str, StageFigures]) -> str:
    """How the relative variance with a weight compares with R(tau)'s over the stages."""
    found = [stage.comparison(weight) for stage in stages.values() if weight in stage.figures]
    if all(e and e.low > 0 for e in found):
        return LOWER
    if all(e and e.high < 0 for e in found):
        return HIGHER
    return UNKNOWN


def factors_text(weight: str, stages: dict[str, StageFigures]) -> str:
    """`4.17 to 5.56`: over the stages at which a signal is detected."""
    found = [stage.comparison(weight) for stage in stages.values() if weight in stage.figures]
    factors = [10**e.value for e in found if e]
    return f"{shown(min(factors))} to {shown(max(factors))}" if factors else ""


def outcome(words: dict[str, str], biased: Sequence[str]) -> str:
    """With how many weights the relative variance is lower than R(tau)'s, and which are biased."""
    others = ", ".join(dict.fromkeys(kind_of(x) for x, word in words.items() if word != LOWER))
    kinds = ", ".join(dict.fromkeys(map(kind_of, biased)))
    lower = list(words.values()).count(LOWER)
    return (
        f"With {lower} of {plural(len(words), 'weight')} the relative variance of the gradient is "
        "lower than with R(tau) at every stage"
        + (f", not with {others}." if others else ".")
        + (f" The mean points elsewhere at some stage with {kinds}." if kinds else "")
    )


def kind_of(weight: str) -> str:
    """`GAE` for all of its lambdas, `GRPO` for all of its advantages, else the weight's name."""
    name = weight_name(weight)
    return next((kind for kind in ("GAE", "GRPO") if name.startswith(f"{kind}, ")), name)


def weight_name(weight: str) -> str:
    """A weight for people: `GAE, lambda 0.9`."""
    if weight.startswith("gae "):
        return f"GAE, lambda {weight.removeprefix('gae ')}"
    if weight.startswith("grpo"):
        kind = weight.removeprefix("grpo").removeprefix(", ")
        return f"GRPO, {kind or 'return-to-go'}"
    return NAMES.get(weight, weight)


def policy_rows(stages: dict[str, StageFigures]) -> list[tuple[str, ...]]:
    """What the policies of each stage return, and what the critics explain of it."""
    rows = []
    for name, stage in stages.items():
        shares = [[p["explained"][critic] for p in stage.policies] for critic in ("baseline", "q")]
        explained = ("unknown" if None in known else f"{mean(known):.0%}" for known in shares)
        rows.append((name, f"{mean(p['return'] for p in stage.policies):.1f}", *explained))
    return rows


def geometric(values: Floats) -> str:
    """A geometric mean over seeds with its interval, or in how many seeds no signal is seen."""
    if text := undetected(values):
        return text
    e = stats.estimate(np.log10(values), "mean")
    value, low, high = (shown(10**x) for x in (e.value, e.low, e.high))
    return f"{value} [{low}, {high}]"


def undetected(values: Floats) -> str:
    """`no signal in 2 of 10`, or ''."""
    missing = int(np.isnan(values).sum())
    return f"no signal in {missing} of {len(values)}" if missing else ""


def shown(value: float) -> str:
    """Three digits: `0.0123`, `4.56`, `1,230`, `1.23e+07`."""
    return f"{value:,.0f}" if 1000 <= abs(value) < 1e6 else f"{value:.3g}"
