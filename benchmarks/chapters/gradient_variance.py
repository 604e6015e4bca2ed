"""The report's page on the variance of the policy gradient, from gradient_variance.json.

`benchmarks/gradient_variance.py` says what was measured. S is the number of seeds.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np

from manyseeds import plots, stats
from manyseeds.benchmarks.chapters.tables import table
from manyseeds.benchmarks.store.results import (
    Rows,
    command_text,
    escape,
    picture,
)
from manyseeds.benchmarks.store.stored import find_file, section_of
from manyseeds.record import plural
from manyseeds.stats import Floats
from manyseeds.untrusted import NAME, ORIGIN

STORED: dict[str, Any] = {
    **ORIGIN,
    "versions": {"torch": str},
    "env": NAME,
    "seeds": int,
    "episodes": int,
    "estimates": int,
    "total_timesteps": int,
    "policies": [
        {
            "stage": NAME,
            "seed": int,
            "return": float,
            "explained": {"baseline": (float, None), "q": (float, None)},
        }
    ],
    "measurements": [
        {
            "stage": NAME,
            "seed": int,
            "weight": NAME,
            "variance": float,
            "signal": float,
            "dot": float,
        }
    ],
}
WORST = "total_return"  # what the others are compared with
REFERENCE = "baseline"  # whose mean is the gradient
UNBIASED = (WORST, "return_to_go", REFERENCE)  # the mean of each is the gradient itself
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


def page(folder: Path) -> str:
    """The whole page; '' without measurements. The figure goes into folder/plots."""
    path = find_file(folder, "gradient_variance.json")
    return section_of(path, STORED, partial(text_of, folder=folder))


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

    def is_biased(self, weight: str) -> bool:
        """Whether the interval of the cosine lies below 1."""
        if weight in UNBIASED or weight not in self.figures:
            return False
        cosine = self.cosine(weight)
        return bool(np.isfinite(cosine).all() and stats.estimate(cosine, "mean").high < 1)


def text_of(stored: dict[str, Any], folder: Path) -> str:
    """The page of gradient_variance.json."""
    names = list(dict.fromkeys(m["stage"] for m in stored["measurements"]))
    stages = {name: StageFigures(stored, name) for name in names}
    rows: Rows = [
        (
            escape(name),
            weight_name(weight),
            str(stored["seeds"]),
            geometric(stage.variance(weight)),
            geometric(stage.relative(weight)),
            "" if weight == WORST else geometric(stage.factor(weight)),
            "1, by definition" if weight == REFERENCE else arithmetic(stage.cosine(weight)),
        )
        for name, stage in stages.items()
        for weight in stage.weights
    ]
    figure = folder / "plots" / "gradient-variance.svg"
    draw(stages, figure)
    policies = ", ".join(policies_text(name, stage) for name, stage in stages.items())
    return (
        f"{sentence(stages)}\n\n"
        f"REINFORCE trains {plural(stored['seeds'], 'seed')} on {escape(stored['env'])} for "
        f"{stored['total_timesteps']:,} timesteps with its preset. Its policies at several stages "
        "are frozen, and of each the gradient is estimated "
        f"{plural(stored['estimates'], 'time')} from {plural(stored['episodes'], 'new episode')}, "
        "with every weight of the log-probabilities and gamma 1. *Variance* is the trace of the "
        "covariance of an estimate, *signal* the squared length of its mean, and their quotient "
        "does not depend on the scale of the weights. R(tau), return-to-go and return-to-go minus "
        "V have the same mean, the gradient itself. Its length is taken from the last of them, "
        "which varies least. A *cosine* below 1 is the bias of a weight. Its estimate may be above "
        "1, and is unknown where no signal is detected. V and Q are "
        "fitted to each frozen policy on episodes of their own, so that no critic lags behind. "
        "All episodes of an estimate with GRPO's weights begin in the same state. Geometric means "
        "over seeds, arithmetic ones of cosines.\n\n"
        f"Mean returns of the policies: {policies}.\n\n"
        f"{table(folder, 'gradient-variance', COLUMNS, rows)}\n"
        + picture("Relative variance of the gradient with each weight", figure)
        + command_text(stored, stored["machine"]["cpu"], f"torch {stored['versions']['torch']}")
        + "\n\n"
    )


def sentence(stages: dict[str, StageFigures]) -> str:
    """Which weights have a smaller relative variance than R(tau), and by which factor.

    Those of one kind, such as all of GAE, are named once.
    """
    lower: dict[str, list[float]] = {}  # by kind, the factors
    higher, other = [], []
    weights = dict.fromkeys(weight for stage in stages.values() for weight in stage.weights)
    for weight in weights:
        if weight == WORST:
            continue
        logs = [np.log10(s.factor(weight)) for s in stages.values() if weight in s.figures]
        if not all(np.isfinite(x).all() for x in logs):
            other.append(weight_name(weight))
            continue
        found = [stats.estimate(x, "mean") for x in logs]
        if all(e.low > 0 for e in found):
            lower.setdefault(kind_of(weight), []).extend(10**e.value for e in found)
        elif all(e.high < 0 for e in found):
            higher.append(weight_name(weight))
        else:
            other.append(weight_name(weight))
    text = "Compared with that of R(tau), from the same number of episodes, the relative variance "
    text += "of the gradient is "
    sides = []
    if lower:
        of_kinds = (
            f"{kind} ({shown(min(x))} to {shown(max(x))} times)" for kind, x in lower.items()
        )
        sides.append(f"lower at every stage with {', '.join(of_kinds)}.")
    if higher:
        sides.append(f"higher at every stage with {', '.join(higher)}.")
    if other:
        sides.append(f"not the same or not known at every stage with {', '.join(other)}.")
    text += " It is ".join(sides)
    biased = [kind_of(w) for w in weights if any(s.is_biased(w) for s in stages.values())]
    if biased := list(dict.fromkeys(biased)):
        text += f" At some stage the mean points elsewhere with {', '.join(biased)}."
    return f"**{text}**"


def kind_of(weight: str) -> str:
    """`GAE` for all of its lambdas, `GRPO` for all of its advantages, else the weight's name."""
    name = weight_name(weight)
    return next((kind for kind in ("GAE", "GRPO") if name.startswith(f"{kind}, ")), name)


def weight_name(weight: str) -> str:
    """A weight for people: `GAE, lambda 0.9`."""
    if weight.startswith("gae "):
        return escape(f"GAE, lambda {weight.removeprefix('gae ')}")
    if weight.startswith("grpo"):
        kind = weight.removeprefix("grpo").removeprefix(", ")
        return escape(f"GRPO, {kind or 'return-to-go'}")
    return escape(NAMES.get(weight, weight))


def policies_text(name: str, stage: StageFigures) -> str:
    """What the policies of a stage return, and what the critics explain."""
    returns = mean(p["return"] for p in stage.policies)
    shares = []
    for critic, letter in (("baseline", "V"), ("q", "Q")):
        known = [p["explained"][critic] for p in stage.policies]
        if None not in known:
            shares.append(f"{letter} explains {mean(known):.0%}")
    return f"{escape(name)} {returns:.1f}" + f" ({', '.join(shares)})" * bool(shares)


def geometric(values: Floats) -> str:
    """A geometric mean over seeds with its interval, or in how many seeds no signal is seen."""
    if text := undetected(values):
        return text
    e = stats.estimate(np.log10(values), "mean")
    value, low, high = (shown(10**x) for x in (e.value, e.low, e.high))
    return f"{value} [{low}, {high}]"


def arithmetic(values: Floats) -> str:
    """A mean over seeds with its interval, likewise."""
    return undetected(values) or stats.estimate(values, "mean").text(2)


def undetected(values: Floats) -> str:
    """`no signal in 2 of 10`, or ''."""
    missing = int(np.isnan(values).sum())
    return f"no signal in {missing} of {len(values)}" if missing else ""


def shown(value: float) -> str:
    """Three digits: `0.0123`, `4.56`, `1,230`, `1.23e+07`."""
    if 1000 <= abs(value) < 1e6:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def draw(stages: dict[str, StageFigures], path: Path) -> None:
    """A panel per stage: the relative variance of the seeds with each weight."""
    panels = {
        name: {"": {weight_name(w): seen(stage.relative(w)) for w in stage.weights}}
        for name, stage in stages.items()
    }
    plots.scores_by_value(panels, path, xlabel="", ylabel="variance / signal", log_y=True)


def seen(values: Floats) -> Floats:
    """The values of the seeds whose signal is seen."""
    return values[np.isfinite(values)]
