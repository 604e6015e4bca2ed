"""Simulates how often verdicts and intervals err.

    python benchmarks/error_rates.py

Draws the scores of seeds from distributions whose difference is known, and looks at them by the
rule of experiments/verdicts.py, OURS seeds of ours and up to LOOKS[-1] of SB3's. Two sides with one
mean should be called better or worse in at most 5% of cases, over all looks, whether they spread
alike or not; two that differ by exactly the margin should be called equivalent in at most 5%. The
distributions are ones with a name, and those of every pair of runs that is compared: SB3's scores
and ours together, and for *own shapes* each side's own, moved to one mean. *Power* is how often
sides that differ by twice the margin are told apart. And it counts how often the published
intervals contain what they estimate. Writes error_rates.json, which report.py shows.

The bootstrap and the permutations are those of `manyseeds.stats`, for many samples at once: the
means of all resamples of n scores are one product with an [n, R] matrix. T samples, n seeds, R
resamples.
"""

from __future__ import annotations

from manyseeds.command import failing_in_one_line

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.random import Generator

from manyseeds import stats
from manyseeds.benchmarks.experiments.verdicts import (
    FAILED,
    LEVELS,
    LOOKS,
    MARGIN,
    MARGINS,
    OURS,
    Flags,
    may_be_equivalent,
)
from manyseeds.benchmarks.measurements.measure import origin, write_measured
from manyseeds.benchmarks.store.comparison import Pair, pairs
from manyseeds.benchmarks.store.results import load_result, side_of
from manyseeds.benchmarks.store.stored import open_runs
from manyseeds.cli import PUBLISHED, PositiveInt, ScriptConfig, parse
from manyseeds.stats import Floats
from manyseeds.untrusted import NUMBER, ORIGIN

RESAMPLES = 4_000
CHUNK = 250  # samples at a time, which bounds the memory
COVERED = (5, 10, 20, 30, 60)  # seeds of the table of coverage
TRUE_DRAWS = 2_000_000  # for what a statistic is in the limit
KINDS = ("better", "worse", "equivalent", "undecided")
RATES = {str: NUMBER}
CELL = {"margin": float, "alike": RATES, "shapes": RATES, "apart": RATES, "power": RATES}
STORED: dict[str, Any] = {  # the file
    **ORIGIN,
    "looks": [int],
    "ours": int,
    "levels": {str: float},
    "margin": float,
    "samples": int,
    "seeds": [int],
    "alike": {str: RATES},
    "apart": {str: RATES},
    "cells": {str: {str: {str: CELL}}},  # by measure, environment and algorithm
    "coverage": {str: {"mean": [NUMBER], "iqm": [NUMBER]}},
}


class Sample(NamedTuple):
    """Seeds of one side of T comparisons."""

    scores: Floats  # [T, n], normalised
    failed: Flags  # [T, n], whether the late score is a failure

    def some(self, rows: Any, n: int) -> Sample:
        return Sample(self.scores[rows, :n], self.failed[rows, :n])


Draw = Callable[[Generator, tuple[int, int]], Sample]


@dataclass(frozen=True, kw_only=True)
class Config(ScriptConfig):
    """The error rates of verdicts."""

    samples: PositiveInt = 4000
    """Samples of each distribution."""


# ---- Distributions --------------------------------------------------------------------------
# Normalised scores [T, n]. Sides that differ do so by MARGIN on average.


def with_failures(scores: Floats) -> Sample:
    return Sample(scores, scores < FAILED)


def normal(
    rng: Generator, shape: tuple[int, int], mean: float = 0.9, spread: float = 0.1
) -> Sample:
    return with_failures(rng.normal(mean, spread, shape))


def heavy_tailed(rng: Generator, shape: tuple[int, int]) -> Sample:
    """Student's t with 3 degrees of freedom."""
    return with_failures(0.9 + 0.06 * rng.standard_t(3, shape))


def skewed(rng: Generator, shape: tuple[int, int]) -> Sample:
    """Most at the top, some far below it."""
    return with_failures(1 - rng.exponential(0.1, shape))


def bimodal(
    rng: Generator, shape: tuple[int, int], failing: float, score: float = 0.5, noise: float = 0.0
) -> Sample:
    """1, or `score` for the seeds that fail; noise: normal, beside it."""
    failed = rng.random(shape) < failing
    return Sample(np.where(failed, score, 1.0) + noise * rng.standard_normal(shape), failed)


def resampled(rng: Generator, shape: tuple[int, int], known: Sample) -> Sample:
    """Of the seeds of runs, [n]."""
    chosen = rng.integers(0, len(known.scores), shape)
    return Sample(known.scores[chosen], known.failed[chosen])


def shifted(rng: Generator, shape: tuple[int, int], draw: Draw, by: float) -> Sample:
    """Whatever fails still does, and nothing else."""
    found = draw(rng, shape)
    return found._replace(scores=found.scores + by)


def distributions() -> tuple[dict[str, tuple[Draw, Draw]], dict[str, tuple[Draw, Draw]]]:
    """Of ours and of SB3's, by name: those with one mean, and those that differ by MARGIN."""
    kinds: dict[str, Draw] = {"normal": normal, "heavy tails": heavy_tailed, "skewed": skewed}
    failing, none = partial(bimodal, failing=0.1), partial(bimodal, failing=0.0)
    noisy = partial(bimodal, noise=0.01)
    same: dict[str, Draw] = {
        **kinds,
        "half fails": partial(bimodal, failing=0.5),
        "one in ten fails": failing,
        "one in ten fails, noisy": partial(noisy, failing=0.1),
        "none fails, noisy": partial(noisy, failing=0.0),
    }
    alike = {name: (draw, draw) for name, draw in same.items()}
    for name, one, other in (
        ("one spreads a quarter", normal, partial(normal, spread=0.025)),
        ("half of one fails", same["half fails"], partial(normal, mean=0.75, spread=0.02)),
        ("one in ten of one fails", failing, partial(normal, mean=0.95, spread=0.02)),
    ):
        alike |= {f"{name}: SB3's": (other, one), f"{name}: ours": (one, other)}
    apart: dict[str, tuple[Draw, Draw]] = {}
    for name, draw in kinds.items():
        lower = partial(shifted, draw=draw, by=-MARGIN)
        apart |= {f"{name}, ours lower": (lower, draw), f"{name}, SB3's lower": (draw, lower)}
    for name, one, other in (
        ("one in ten fails, none fails", failing, none),
        ("two in ten fail, one in ten fails", partial(bimodal, failing=0.2), failing),
        (
            "one in ten fails, none fails, noisy",
            partial(noisy, failing=0.1),
            partial(noisy, failing=0.0),
        ),
        # No rule with fewer than 59 seeds can tell these apart: 0.95^n of SB3's are alike.
        (
            "one in twenty learns nothing, none fails, noisy",
            partial(noisy, failing=0.05, score=0.0),
            partial(noisy, failing=0.0),
        ),
    ):
        apart |= {f"{name}, ours lower": (one, other), f"{name}, SB3's lower": (other, one)}
    return alike, apart


def cells(results: Path = PUBLISHED) -> list[Pair]:
    """The published pairs that the rule judges."""
    control = (run for run in open_runs(results) if run.kind == "control")
    return [pair for pair in pairs([load_result(run) for run in control]) if pair.verdict("auc")]


def shapes_of(pair: Pair, measure: str) -> list[Sample]:
    """The normalised scores of ours and of SB3's, [n] each, moved to the mean of all, so that a
    difference between them is none of the distributions."""
    known = [side for result in pair.headline if (side := side_of(result, measure))]
    middle = np.concatenate([side.scores for side in known]).mean()
    return [Sample(side.scores - side.scores.mean() + middle, side.failed) for side in known]


# ---- Intervals and p of many samples --------------------------------------------------------


@cache
def weights(n: int, side: int) -> Floats:
    """What each of n scores weighs in each resample's mean, [n, R]."""
    rng = np.random.default_rng((n, side))
    chosen = rng.integers(0, n, (RESAMPLES, n))
    return np.stack([np.bincount(row, minlength=n) for row in chosen], axis=1) / n


@cache
def splits(n: int, m: int) -> Floats:
    """Random divisions of n + m scores: 1 for those of one side, 0 for the other's, [n + m, R]."""
    order = np.random.default_rng((n, m)).random((n + m, RESAMPLES)).argsort(axis=0)
    return (order < n).astype(np.float64)


def welch_t(both: Floats, first: Floats, n: int) -> Floats:
    """|t| of Welch of scores [T, n + m], as divided by first [n + m, R]: [T, R]."""
    both = both - both.mean(axis=1, keepdims=True)
    m = both.shape[1] - n
    squares = np.square(both)
    a, a2 = both @ first / n, squares @ first / n
    b, b2 = -a * n / m, (squares.sum(axis=1, keepdims=True) - a2 * n) / m
    variance = (a2 - a**2) / (n - 1) + (b2 - b**2) / (m - 1)
    # Sides that do not vary are told apart by any difference, however it is rounded.
    return np.abs(a - b) / np.sqrt(np.maximum(variance, 1e-14 * a2.max() + 1e-300))


@cache
def deviation_weights(sizes: tuple[int, int]) -> Floats:
    """The same of a difference of means that are drawn of the deviations of both sides together,
    [n + m, R]."""
    rng = np.random.default_rng(sizes)
    found = np.zeros((sum(sizes), RESAMPLES))
    for sign, n in zip((1, -1), sizes, strict=True):
        chosen = rng.integers(0, sum(sizes), (RESAMPLES, n))
        found += sign * np.stack([np.bincount(x, minlength=sum(sizes)) for x in chosen], axis=1) / n
    return found


def looked_at(ours: Sample, theirs: Sample, margin: float) -> np.ndarray:
    """The words for samples of both sides at one look: [T]."""
    sizes = ours.scores.shape[1], theirs.scores.shape[1]
    may_be = cache(may_be_equivalent)
    n = min(sizes)
    tails = [stats.expanded_tail(n, 1 - x) for x in (LEVELS.equivalent, LEVELS.differs)]
    ends = [x for tail in tails for x in (tail, 1 - tail)]
    words: list[str] = []
    for i in range(0, len(ours.scores), CHUNK):
        x, y = (side.scores[i : i + CHUNK] for side in (ours, theirs))
        d = x @ weights(sizes[0], 0) - y @ weights(sizes[1], 1)
        quantiles = np.quantile(d, ends, axis=1, overwrite_input=True).T
        means = [side.mean(1, keepdims=True) for side in (x, y)]
        both = np.concatenate([x - means[0], y - means[1]], axis=1)
        d = means[0] - means[1] + both @ deviation_weights(sizes)
        wider = np.quantile(d, ends, axis=1, overwrite_input=True).T
        low = [True, False, True, False]
        quantiles = np.where(low, np.minimum(quantiles, wider), np.maximum(quantiles, wider))
        both = np.concatenate([x, y], axis=1)
        observed = welch_t(both, np.repeat([1.0, 0.0], sizes)[:, None], sizes[0])
        extreme = (welch_t(both, splits(*sizes), sizes[0]) >= observed * (1 - 1e-9)).sum(1)
        p = (extreme + 1) / (RESAMPLES + 1)
        same = np.ptp(both, axis=1) == 0
        failures = zip(
            *(side.failed[i : i + CHUNK].sum(1).tolist() for side in (ours, theirs)), strict=True
        )
        for ends_, p_, same_, failed in zip(quantiles, p, same, failures, strict=True):
            inner, outer = (ends_[0], ends_[1]), (ends_[2], ends_[3])
            word: str = stats.word_of(inner, outer, p_, n, margin, LEVELS.differs, same_)
            if word in ("equivalent", "saturated"):
                word = "equivalent" if may_be(failed, sizes) else "undecided"
            words.append(word)
    return np.array(words)


def decided(ours: Sample, theirs: Sample, margin: float = MARGIN) -> tuple[np.ndarray, Floats]:
    """The words by the rule, [T], and how many seeds of SB3's were looked at, [T]."""
    T = len(ours.scores)
    words = np.full(T, "undecided", dtype="<U10")
    used = np.full(T, LOOKS[-1], dtype=np.float64)
    going = np.arange(T)
    for look in LOOKS:
        found = looked_at(ours.some(going, OURS), theirs.some(going, look), margin)
        words[going] = found
        ended = found != "undecided"
        used[going[ended]] = look
        going = going[~ended]
        if not len(going):
            break
    return words, used


# ---- What is counted ------------------------------------------------------------------------


def verdict_rates(
    ours: Draw, theirs: Draw, samples: int, margin: float = MARGIN
) -> dict[str, float]:
    """How often each word is the verdict, and the mean number of SB3's seeds."""
    rng = np.random.default_rng(0)
    sides = ours(rng, (samples, OURS)), theirs(rng, (samples, LOOKS[-1]))
    words, used = decided(*sides, margin)
    return {**{kind: float((words == kind).mean()) for kind in KINDS}, "seeds": float(used.mean())}


def cell_rates(pair: Pair, measure: str, samples: int) -> dict[str, Any]:
    """The rates of a pair's own distribution: of sides that are alike, that have each its own
    shape, that differ by the margin, and by twice the margin. Ours or SB3's is lower, whichever is
    called equivalent more often."""
    margin = MARGINS[measure].get(pair.env, MARGIN)
    shapes = shapes_of(pair, measure)
    together = Sample(*(np.concatenate(x) for x in zip(*shapes, strict=True)))
    draw = partial(resampled, known=together)
    ours, theirs = (partial(resampled, known=known) for known in shapes)
    rates = partial(verdict_rates, samples=samples, margin=margin)
    found: dict[str, Any] = {
        "margin": margin,
        "alike": rates(draw, draw),
        "shapes": rates(ours, theirs),
    }
    for name, by in (("apart", margin), ("power", 2 * margin)):
        lower: Draw = partial(shifted, draw=draw, by=-by)
        both = [rates(lower, draw), rates(draw, lower)]
        found[name] = max(both, key=lambda r: r["equivalent"])
    return found


def coverage(draw: Draw, statistic: stats.Statistic, samples: int) -> list[float]:
    """How often 95% intervals of COVERED seeds contain the statistic's limit."""
    rng = np.random.default_rng(1)
    many = draw(rng, (TRUE_DRAWS // 1000, 1000)).scores
    # The limit of the IQM is that of large samples. Rounded: of scores that take two values, the
    # ends of intervals often are the limit itself, which the error of the draws would put outside.
    true = round(float(many.mean() if statistic == "mean" else stats.iqm(many.ravel())), 3)
    found = []
    for n in COVERED:
        inside = [
            e.low - 1e-12 <= true <= e.high + 1e-12
            for e in (stats.estimate(x, statistic) for x in draw(rng, (samples, n)).scores)
        ]
        found.append(float(np.mean(inside)))
    return found


def simulate(samples: int, judged: Sequence[Pair]) -> dict[str, Any]:
    """All tables; judged: the pairs whose own distributions are simulated, too."""
    alike, apart = distributions()
    found: dict[str, Any] = {"alike": {}, "apart": {}, "cells": {}, "coverage": {}}
    for name, (ours, theirs) in alike.items():
        found["alike"][name] = verdict_rates(ours, theirs, samples)
        print(f"alike, {name}: {found['alike'][name]}", flush=True)
    for name, (ours, theirs) in apart.items():
        found["apart"][name] = verdict_rates(ours, theirs, samples)
        print(f"apart, {name}: {found['apart'][name]}", flush=True)
    for measure in MARGINS:
        for pair in judged:
            rates = cell_rates(pair, measure, max(samples // 2, 1))
            found["cells"].setdefault(measure, {}).setdefault(pair.env, {})[pair.algo] = rates
            print(f"{measure}, {pair.env}, {pair.algo}: {rates}", flush=True)
    for name, (draw, other) in alike.items():
        if draw is not other:
            continue
        found["coverage"][name] = {
            statistic: coverage(draw, statistic, max(samples // 4, 1))
            for statistic in ("mean", "iqm")
        }
        print(f"coverage, {name}: {found['coverage'][name]}", flush=True)
    return found


@failing_in_one_line()
def main(args: Sequence[str] | None = None) -> None:
    """Simulate, and write the file."""
    config = parse(Config, {}, __doc__, args)
    found = simulate(config.samples, cells())
    levels = {"differs": LEVELS.differs, "equivalent": LEVELS.equivalent}
    rule = {"looks": LOOKS, "ours": OURS, "levels": levels, "margin": MARGIN}
    stored = {
        **origin(["manyseeds.benchmarks.measurements.error_rates:simulate"]),
        **rule,
        "samples": config.samples,
        "seeds": COVERED,
        **found,
    }
    write_measured(Path(config.results) / "error_rates.json", stored)


if __name__ == "__main__":
    main()
