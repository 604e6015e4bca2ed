"""Simulates how often intervals and verdicts err.

    python benchmarks/error_rates.py

Draws the scores of seeds from distributions whose difference is known, and looks at them by the
rule of experiments/verdicts.py. Two sides that are alike should be called better or worse in at
most 5% of cases, over all looks; two that differ by exactly the margin should be called equivalent
in at most 5%. And it counts how often the published intervals contain what they estimate. *DQN's
own* are what its seeds scored on CartPole, ours and SB3's. Writes error_rates.json, which report.py
shows.

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
from typing import Any

import numpy as np
from numpy.random import Generator

from manyseeds import stats
from manyseeds.benchmarks.experiments.verdicts import LEVEL, LOOKS, MARGIN, is_decided
from manyseeds.benchmarks.measurements.measure import origin, write_measured
from manyseeds.benchmarks.store.results import load_result
from manyseeds.benchmarks.store.stored import open_runs
from manyseeds.cli import PUBLISHED, PositiveInt, ScriptConfig, parse
from manyseeds.errors import UsageError
from manyseeds.stats import Floats
from manyseeds.untrusted import NUMBER

RESAMPLES = 10_000
CHUNK = 250  # samples at a time, which bounds the memory
COVERED = (5, 10, 20, 30, 60)  # seeds of the table of coverage
TRUE_DRAWS = 2_000_000  # for what a statistic is in the limit
RATES = {str: NUMBER}
STORED: dict[str, Any] = {  # the file
    "command": str,
    "code": {"commit": str},
    "versions": {str: str},
    "looks": [int],
    "level": float,
    "margin": float,
    "samples": int,
    "seeds": [int],
    "alike": {str: RATES},
    "apart": {str: RATES},
    "coverage": {str: {"mean": [NUMBER], "iqm": [NUMBER]}},
}
Draw = Callable[[Generator, tuple[int, int]], Floats]


@dataclass(frozen=True, kw_only=True)
class Config(ScriptConfig):
    """The error rates of verdicts."""

    samples: PositiveInt = 4000
    """Samples of each distribution."""


# ---- Distributions --------------------------------------------------------------------------
# Normalised scores [T, n]. Sides that differ do so by MARGIN on average.


def normal(rng: Generator, shape: tuple[int, int]) -> Floats:
    return rng.normal(0.9, 0.05, shape)


def heavy_tailed(rng: Generator, shape: tuple[int, int]) -> Floats:
    """Student's t with 3 degrees of freedom."""
    return 0.9 + 0.03 * rng.standard_t(3, shape)


def skewed(rng: Generator, shape: tuple[int, int]) -> Floats:
    """Most at the top, some far below it."""
    return 1 - rng.exponential(0.05, shape)


def bimodal(
    rng: Generator, shape: tuple[int, int], failing: float, score: float = 0.5, noise: float = 0.0
) -> Floats:
    """1, or `score` for the seeds that fail; noise: normal, beside it."""
    return np.where(rng.random(shape) < failing, score, 1.0) + noise * rng.standard_normal(shape)


def resampled(rng: Generator, shape: tuple[int, int], scores: Floats) -> Floats:
    return rng.choice(scores, shape)


def lower(rng: Generator, shape: tuple[int, int], draw: Draw, by: float = MARGIN) -> Floats:
    return draw(rng, shape) - by


def distributions(dqn: Floats) -> tuple[dict[str, Draw], dict[str, tuple[Draw, Draw]]]:
    """By name: those that both sides have, and pairs that differ by MARGIN."""
    own = partial(resampled, scores=dqn)
    failing = partial(bimodal, failing=0.1)
    noisy = partial(bimodal, noise=0.01)
    alike: dict[str, Draw] = {
        "normal": normal,
        "heavy tails": heavy_tailed,
        "skewed": skewed,
        "one in ten fails": failing,
        "one in ten fails, noisy": partial(noisy, failing=0.1),
        "DQN's own": own,
    }
    apart: dict[str, tuple[Draw, Draw]] = {
        "normal": (partial(lower, draw=normal), normal),
        "heavy tails": (partial(lower, draw=heavy_tailed), heavy_tailed),
        "skewed": (partial(lower, draw=skewed), skewed),
        "skewed, the other way": (skewed, partial(lower, draw=skewed)),
        "one in ten fails, none fails": (failing, partial(bimodal, failing=0.0)),
        "one in ten fails, none fails, noisy": (
            partial(noisy, failing=0.1),
            partial(noisy, failing=0.0),
        ),
        "two in ten fail, one in ten fails": (partial(bimodal, failing=0.2), failing),
        "DQN's own": (partial(lower, draw=own), own),
    }
    # No rule with fewer than 59 seeds can tell these apart: 0.95^n are alike.
    apart["one in twenty learns nothing, none fails, noisy"] = (
        partial(noisy, failing=0.05, score=0.0),
        partial(noisy, failing=0.0),
    )
    return alike, apart


def dqn_scores(results: Path = PUBLISHED) -> Floats:
    """The published normalised scores of DQN on CartPole, ours and SB3's, that are compared."""
    found = []
    for run in open_runs(results):
        if run.path.parts[-3:-1] in (("CartPole-v1", "dqn"), ("CartPole-v1", "sb3-dqn")):
            result = load_result(run)
            random, reference = result.spec.random_score, result.spec.reference_score
            assert random is not None
            assert reference is not None
            found.append(stats.normalise(result.final, random, reference))
    if not found:
        raise UsageError(f"{results}: has no run of DQN on CartPole-v1")
    return np.concatenate(found)


# ---- Intervals and p of many samples --------------------------------------------------------


@cache
def weights(n: int, side: int) -> Floats:
    """What each of n scores weighs in each resample's mean, [n, R]."""
    rng = np.random.default_rng((n, side))
    chosen = rng.integers(0, n, (RESAMPLES, n))
    return np.stack([np.bincount(row, minlength=n) for row in chosen], axis=1) / n


@cache
def splits(n: int) -> Floats:
    """Random halves of 2 n scores: 1 / n for one, -1 / n for the other, [2 n, R]."""
    order = np.random.default_rng(n).random((2 * n, RESAMPLES)).argsort(axis=0)
    return np.where(order < n, 1 / n, -1 / n)


def looked_at(a: Floats, b: Floats, confidence: float = 1 - LEVEL) -> np.ndarray:
    """The words for samples of n seeds a side, [T, n] each: [T]."""
    n = a.shape[1]
    tail = stats.expanded_tail(n, confidence)
    words = []
    for i in range(0, len(a), CHUNK):
        x, y = a[i : i + CHUNK], b[i : i + CHUNK]
        low, high = np.quantile(
            x @ weights(n, 0) - y @ weights(n, 1), [tail, 1 - tail], axis=1, overwrite_input=True
        )
        both = np.concatenate([x, y], axis=1)
        bar = np.abs(x.mean(1) - y.mean(1)) * (1 - 1e-9)  # ties count, however they are rounded
        extreme = (np.abs(both @ splits(n)) >= bar[:, None]).sum(1)
        p = (extreme + 1) / (RESAMPLES + 1)
        same = np.ptp(both, axis=1) == 0
        values = zip(low, high, p, same, strict=True)
        words += [
            stats.word_of(lo, hi, p, n, MARGIN, 1 - confidence, same) for lo, hi, p, same in values
        ]
    return np.array(words)


def decided(a: Floats, b: Floats) -> tuple[np.ndarray, Floats]:
    """The words by the rule, [T], and how many seeds a side were looked at, [T]."""
    words = np.full(len(a), "undecided", dtype="<U10")
    used = np.full(len(a), LOOKS[-1], dtype=np.float64)
    going = np.arange(len(a))
    for look in LOOKS:
        found = looked_at(a[going, :look], b[going, :look])
        words[going] = found
        ended = np.array([is_decided(word, look) for word in found], dtype=bool)
        used[going[ended]] = look
        going = going[~ended]
        if not len(going):
            break
    return words, used


# ---- What is counted ------------------------------------------------------------------------


def verdict_rates(ours: Draw, theirs: Draw, samples: int) -> dict[str, float]:
    """How often each word is the verdict, and the mean number of seeds a side."""
    rng = np.random.default_rng(0)
    shape = (samples, LOOKS[-1])
    words, used = decided(ours(rng, shape), theirs(rng, shape))
    kinds = ("better", "worse", "equivalent", "saturated", "undecided")
    return {**{kind: float((words == kind).mean()) for kind in kinds}, "seeds": float(used.mean())}


def coverage(draw: Draw, statistic: stats.Statistic, samples: int) -> list[float]:
    """How often 95% intervals of COVERED seeds contain the statistic's limit."""
    rng = np.random.default_rng(1)
    many = draw(rng, (TRUE_DRAWS // 1000, 1000))
    # The limit of the IQM is that of large samples.
    true = float(many.mean() if statistic == "mean" else stats.iqm(many.ravel()))
    found = []
    for n in COVERED:
        inside = [
            e.low <= true <= e.high
            for e in (stats.estimate(x, statistic) for x in draw(rng, (samples, n)))
        ]
        found.append(float(np.mean(inside)))
    return found


def simulate(samples: int) -> dict[str, Any]:
    """All tables."""
    alike, apart = distributions(dqn_scores())
    found: dict[str, Any] = {"alike": {}, "apart": {}, "coverage": {}}
    for name, draw in alike.items():
        found["alike"][name] = verdict_rates(draw, draw, samples)
        print(f"alike, {name}: {found['alike'][name]}")
    for name, (ours, theirs) in apart.items():
        found["apart"][name] = verdict_rates(ours, theirs, samples)
        print(f"apart, {name}: {found['apart'][name]}")
    for name, draw in alike.items():
        found["coverage"][name] = {
            statistic: coverage(draw, statistic, max(samples // 4, 1))
            for statistic in ("mean", "iqm")
        }
        print(f"coverage, {name}: {found['coverage'][name]}")
    return found


@failing_in_one_line()
def main(args: Sequence[str] | None = None) -> None:
    """Simulate, and write the file."""
    config = parse(Config, {}, __doc__, args)
    found = simulate(config.samples)
    rule = {"looks": LOOKS, "level": LEVEL, "margin": MARGIN, "samples": config.samples}
    stored = {
        **origin(["manyseeds.benchmarks.measurements.error_rates:simulate"]),
        **rule,
        "seeds": COVERED,
        **found,
    }
    write_measured(Path(config.results) / "error_rates.json", stored)


if __name__ == "__main__":
    main()
