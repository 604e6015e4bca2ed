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
    *("policies", "weight", "n", "variance [95%]", "relative variance [95%]"),
    *("R(tau)'s, divided by it [95%]", "cosine with the gradient [95%]"),
)


def page(results: Path) -> Sequence[Block]:
    """The page; nothing without measurements."""
    return section_of(find_file(results, "gradient_variance.json"), STORED, comparison)


POLICIES = ("policies", "mean return", "V explains", "Q explains")
LOWER, HIGHER = "lower at every stage", "higher at every stage"
UNKNOWN = "not the same or not known at every stage"
RELATIVE = (
    "The relative variance of a weight is the variance of its estimates of the gradient, summed "
    "over the parameters, divided by the squared length of the component of their mean along the "
    "gradient."
)


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

    def length(self, weight: str) -> Floats:
        """The squared length of the mean; of those that have the same mean, from the one of them
        that varies least. NaN where it is too short to be detected."""
        length = self.figures[REFERENCE if weight in UNBIASED else weight]["signal"]
        return np.where(length > 0, length, np.nan)

    def signal(self, weight: str) -> Floats:
        """The squared length of the mean's component along the gradient. NaN where none is
        detected."""
        gradient = self.length(REFERENCE)
        if weight in UNBIASED:
            return gradient
        # Not the mean's own length: a bias is no signal.
        dot = self.figures[weight]["dot"]
        return np.where(dot > 0, dot, np.nan) ** 2 / gradient

    def relative(self, weight: str) -> Floats:
        """Variance over signal."""
        return self.variance(weight) / self.signal(weight)

    def ratio(self, weight: str, other: str) -> Floats:
        """The relative variance of a weight divided by that of another one."""
        if weight in UNBIASED and other in UNBIASED:  # the signal is the same, seen or not
            return self.variance(weight) / self.variance(other)
        return self.relative(weight) / self.relative(other)

    def difference(self, weight: str, other: str) -> Estimate | None:
        """log10 of the ratio, over seeds; None where a signal is not detected."""
        ratio = self.ratio(weight, other)
        return stats.mean_difference(np.log10(ratio)) if np.isfinite(ratio).all() else None

    def cosine(self, weight: str) -> Floats:
        """Between the mean of a weight and the gradient."""
        return self.figures[weight]["dot"] / np.sqrt(self.length(weight) * self.length(REFERENCE))

    def is_biased(self, weight: str) -> bool:
        """Whether the interval of the cosine lies below 1."""
        if weight in UNBIASED or weight not in self.figures:
            return False
        cosine = self.cosine(weight)
        return bool(np.isfinite(cosine).all() and stats.estimate(cosine, "mean").high < 1)


def stages_of(stored: dict[str, Any]) -> dict[str, StageFigures]:
    """The figures of every stage of gradient_variance.json."""
    names = dict.fromkeys(m["stage"] for m in stored["measurements"])
    return {name: StageFigures(stored, name) for name in names}


def comparison(stored: dict[str, Any]) -> Iterator[Block]:
    """The page of gradient_variance.json."""
    stages = stages_of(stored)
    weights = list(dict.fromkeys(weight for stage in stages.values() for weight in stage.weights))
    words = {weight: word_of(weight, stages) for weight in weights if weight != WORST}
    biased = [weight for weight in weights if any(s.is_biased(weight) for s in stages.values())]
    rows = []
    for name, stage in stages.items():
        for weight in stage.weights:
            about = name, weight_name(weight), str(stored["seeds"])
            variance = geometric(stage.variance(weight)), geometric(stage.relative(weight))
            factor = "" if weight == WORST else geometric(stage.ratio(WORST, weight))
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
        {"panels": panels, "xlabel": "", "ylabel": "relative variance", "log_y": True},
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
        f"with every weight of the log-probabilities and gamma 1. {RELATIVE} It does not depend on "
        "the scale of the weights, and a bias across the gradient does not lower it. No signal is "
        "detected where the estimate of that component is not above 0. The square of a noisy "
        "estimate is too large on average, which favours the weights with the most noise."
    )
    yield Text(
        "R(tau), return-to-go and return-to-go minus V have the same mean, the gradient itself. "
        "Its length is taken from the last of them, which varies least. A cosine below 1 is the "
        "bias of a weight. Its estimate may be above 1, and is unknown where the mean itself is "
        "too short to be detected. V and Q are fitted to each frozen policy on episodes of their "
        "own, so that no critic lags behind. All episodes of an estimate with GRPO's weights begin "
        "in the same state. Geometric means over seeds, arithmetic ones of cosines."
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


def beside_worst(weight: str, stages: dict[str, StageFigures]) -> list[Estimate | None]:
    """log10 of R(tau)'s relative variance divided by that of a weight, at its stages."""
    return [s.difference(WORST, weight) for s in stages.values() if weight in s.figures]


def word_of(weight: str, stages: dict[str, StageFigures]) -> str:
    """How the relative variance with a weight compares with R(tau)'s over the stages."""
    found = beside_worst(weight, stages)
    if all(e and e.low > 0 for e in found):
        return LOWER
    if all(e and e.high < 0 for e in found):
        return HIGHER
    return UNKNOWN


def factors_text(weight: str, stages: dict[str, StageFigures]) -> str:
    """`4.17 to 5.56`, or `33 to 48 at 2 of 4 stages` where a signal is detected only there."""
    found = beside_worst(weight, stages)
    factors = [10**e.value for e in found if e]
    if not factors:
        return ""
    where = "" if len(factors) == len(found) else f" at {len(factors)} of {len(found)} stages"
    return f"{shown(min(factors))} to {shown(max(factors))}{where}"


def outcome(words: dict[str, str], biased: Sequence[str]) -> str:
    """With how many weights the relative variance is lower than R(tau)'s, and which are biased."""
    weights = list(words)
    others = kinds_of(
        [weight for weight in weights if words[weight] not in (LOWER, HIGHER)], weights
    )
    kinds = kinds_of(biased, weights)
    lower = list(words.values()).count(LOWER)
    higher = kinds_of([weight for weight in weights if words[weight] == HIGHER], weights)
    return (
        f"With {lower} of {plural(len(words), 'weight')} the relative variance of the gradient is "
        "lower than with R(tau) at every stage"
        + (f", which is not shown for {others}." if others else ".")
        + (f" It is higher at every stage with {higher}." if higher else "")
        + (f" The mean points elsewhere at some stage with {kinds}." if kinds else "")
    )


def kinds_of(chosen: Sequence[str], weights: Sequence[str]) -> str:
    """`Q, GAE`, or `Q, GAE (lambda 0; lambda 0.5)` where other lambdas are not chosen."""
    found = []
    for kind in dict.fromkeys(map(kind_of, chosen)):
        of_kind = [weight_name(x) for x in weights if kind_of(x) == kind]
        names = [weight_name(x) for x in chosen if kind_of(x) == kind]
        some = "; ".join(name.removeprefix(f"{kind}, ") for name in names)
        found.append(kind if names == of_kind else f"{kind} ({some})")
    return ", ".join(found)


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
