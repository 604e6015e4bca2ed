"""Statistics over seeds: estimates with bootstrap intervals, learning-curve summaries, parity.

S is the number of seeds, K the number of evaluations on a learning curve. One seed counts as one
observation, whatever its number of evaluation episodes.

Every function that gives an interval refuses NaN and infinity. A diverged seed is a failure, and
dropping it would flatter the algorithm: the caller gives it its failure score first.

Sources: Agarwal et al. 2021, "Deep Reinforcement Learning at the Edge of the Statistical
Precipice" (arXiv 2108.13264), for the IQM and the stratified bootstrap; Hesterberg 2015, "What
Teachers Should Know About the Bootstrap" (The American Statistician 69), for expanded percentiles;
Holm 1979, "A Simple Sequentially Rejective Multiple Test Procedure" (Scandinavian Journal of
Statistics 6); Janssen 1997, "Studentized permutation tests for non-i.i.d. hypotheses and the
generalized Behrens-Fisher problem" (Statistics & Probability Letters 36); `scipy` for the
distributions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from itertools import combinations
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

# scipy.stats takes most of a second to import, scipy.special a part of that: functions import it.
# NumPy's sums over float64 have one order on every CPU, its sorts one result.

Floats = NDArray[np.float64]
Statistic = Literal["iqm", "mean"]
# `ceiling` is said by the rule of the benchmarks alone (benchmarks/experiments/verdicts.py).
VerdictWord = Literal["equivalent", "better", "worse", "undecided", "saturated", "ceiling"]

MAX_DIGITS = 6  # behind the first one, of a number that is written by its size
EQUIVALENCE_SEEDS = 30  # of fewer, a failure in ten seeds stays unseen too often
# How often, in percent, a 95% interval of the mean of few seeds covers it: where one seed in five
# fails, and where scores have a normal distribution (20,000 simulated samples each).
COVERAGE = {
    **{2: (32, 50), 3: (48, 75), 4: (59, 88), 5: (67, 93)},
    **{6: (74, 93), 7: (78, 94), 8: (83, 94), 9: (85, 94)},
}
RESAMPLES = 10_000
LEAST_P = 1 / (RESAMPLES + 1)  # of random permutations, twice that of random signs
BOOTSTRAP_SEED = 2108_13264  # constant: the same data always prints the same interval


@dataclass(frozen=True)
class Estimate:
    """A statistic of `n` observations with its interval, in the units of the data.

    `low` and `high` are NaN where there is no interval (fewer than two seeds).
    """

    value: float
    low: float
    high: float
    n: int
    equal: bool = field(default=False, compare=False)  # whether all observations are
    # What the interval over the seeds of one task is worth where it is not 95%, else "":
    # `3 seeds: covers 48 to 75%`, or `all 3 seeds equal: at most 64% do otherwise`.
    caveat: str = field(default="", compare=False)
    # That the mean is 0, of paired differences (`mean_difference`); NaN of other statistics.
    p: float = field(default=math.nan, compare=False)

    def text(self, digits: int | None = 1, sign: Literal["", "+"] = "") -> str:
        """`498.2 [493.1, 500.0]`, or `498.2 (no interval, n=1)`; sign: also write a plus.

        digits: decimals, None for as many as the size of the numbers asks for (`number_format`).
        A value that is 0 when rounded has no minus. A bound has: it tells on which side of 0 it is.
        """
        form = number_format((self.value, self.low, self.high), digits)
        value = f"{self.value:{sign}z{form}}"
        low, high = (f"{x:{sign}{form}}" for x in (self.low, self.high))
        if math.isnan(self.low):
            return f"{value} (no interval, n={self.n})"
        return f"{value} [{low}, {high}]"

    def short_text(self, digits: int | None) -> str:
        """The text, without an interval where all observations are equal."""
        return number_text(self.value, digits) if self.equal else self.text(digits)

    def full_text(self, digits: int | None) -> str:
        """The short text with its caveat: `498.2 [493.1, 500.0] (3 seeds: covers 48 to 75%)`."""
        return self.short_text(digits) + (f" ({self.caveat})" if self.caveat else "")

    def __str__(self) -> str:
        return self.text()


def _caveat(n: int, equal: bool) -> str:
    """That of an estimate of n seeds."""
    if equal:
        bound = math.ceil(100 * failure_bound(0, n))
        return f"{'both' if n == 2 else f'all {n}'} seeds equal: at most {bound}% do otherwise"
    return "{} seeds: covers {} to {}%".format(n, *COVERAGE[n]) if n in COVERAGE else ""


def coverage_note(sizes: Iterable[int]) -> str:
    """What the 95% intervals of a table are worth, of runs of so many seeds; empty from ten on."""
    few = [(n, *COVERAGE[n]) for n in sorted(set(sizes)) if n in COVERAGE]
    parts = [f"of {n} seeds {low} to {high}%" for n, low, high in few]
    return f"Intervals from few seeds cover less than 95%: {', '.join(parts)}." if parts else ""


def number_format(numbers: Iterable[float], digits: int | None) -> str:
    """The format of numbers that stand together, `.1f` or `.2e`.

    digits: decimals that are stated, None where nothing says which ones are worth printing. Then
    the numbers have two significant digits of what they differ by, where they are equal of their
    size, and at least one decimal; an exponent where the largest is below 1e-4 or above 1e9.
    """
    if digits is not None:
        return f".{digits}f"
    known = [x for x in numbers if math.isfinite(x)]
    size = max(map(abs, known), default=0.0)
    if not size:
        return ".1f"
    order = math.floor(math.log10(size))
    spread = max(known) - min(known)
    last = math.floor(math.log10(spread or size)) - 1  # the place of the last digit
    last = max(last, order - MAX_DIGITS)
    if -4 <= order < 9:
        return f".{max(-last, 0 if order > 5 else 1)}f"
    return f".{max(order - last, 1)}e"


def number_text(number: float, digits: int | None) -> str:
    """A number alone, as `number_format` says."""
    return f"{number:{number_format([number], digits)}}"


@dataclass(frozen=True)
class Parity:
    """Verdict of `parity`."""

    word: VerdictWord
    difference: Estimate  # of normalised scores, ours minus theirs; n is that of the smaller side
    p: float  # of the permutation test that both sides have one mean
    at_most: bool = field(default=False, kw_only=True)  # whether p could be smaller, of more draws
    margin: float = 0.05  # within which differences count as equivalent
    # Of paired seeds, how the scores of both sides correlate; NaN where those of a side are equal.
    r: float | None = None


@dataclass(frozen=True)
class Levels:
    """Two-sided error levels of a verdict."""

    differs: float = 0.05  # of better and worse
    equivalent: float = 0.05  # of equivalent; the interval that is shown is this one

    @property
    def confidences(self) -> tuple[float, float]:
        """Of the intervals of equivalence and of differences."""
        return 1 - self.equivalent, 1 - self.differs


def iqm(values: ArrayLike, axis: int = -1) -> Any:
    """Interquartile mean along `axis`, which is removed: the mean of the middle half.

    It cuts floor(n / 4) values at each end: 2 of 10, 7 of 30, none of 3.
    """
    ordered = np.sort(np.moveaxis(np.asarray(values, dtype=np.float64), axis, -1), axis=-1)
    n = ordered.shape[-1]
    return ordered[..., n // 4 : n - n // 4].mean(axis=-1)


STATISTICS: dict[str, Callable[..., Any]] = {"iqm": iqm, "mean": np.mean}


def estimate(
    values: ArrayLike | Sequence[ArrayLike],
    statistic: Statistic = "iqm",
    confidence: float = 0.95,
    resamples: int = 10_000,
    imputed: bool = False,
) -> Estimate:
    """Statistic over seeds with its percentile bootstrap interval.

    `values` is `[S]`, one number per seed, or a list of such arrays, one per task (sizes may
    differ). For a list the statistic is that of all values together, and seeds are resampled
    within each task: the stratified bootstrap of Agarwal et al. 2021. `n` is the number of values.

    The percentiles are expanded (`expanded_tail`): plain ones are too narrow at few seeds.
    With a single seed (in any task) there is no interval: `low` and `high` are NaN.
    imputed: whether a value is a failure score, no measured one; then equal values prove nothing.

    Raises ValueError for NaN or infinite values, for no values, and for other shapes.
    """
    if statistic not in STATISTICS:
        raise ValueError(f"statistic is {statistic!r}, must be one of {', '.join(STATISTICS)}")
    if isinstance(values, (list, tuple)) and len(values) > 0 and np.ndim(values[0]) > 0:
        tasks = [_sample(task) for task in values]
    else:
        tasks = [_sample(values)]  # type: ignore[arg-type]

    contents = tuple(task.tobytes() for task in tasks)
    found = _estimated(contents, statistic, confidence, resamples)
    return replace(found, caveat="") if imputed and found.equal else found


@lru_cache(maxsize=100_000)  # a report has the same estimate in several tables
def _estimated(
    tasks: tuple[bytes, ...], statistic: Statistic, confidence: float, resamples: int
) -> Estimate:
    """The estimate of tasks given as the bytes of their float64 values."""

    def pooled(*samples: Floats, axis: int) -> Any:
        return STATISTICS[statistic](np.concatenate(samples, axis=axis), axis=axis)

    samples = [np.frombuffer(task) for task in tasks]
    found = _bootstrap(samples, pooled, confidence, resamples)
    if len(samples) > 1:
        return found
    equal = found.n > 1 and bool(np.ptp(samples[0]) == 0)
    return replace(found, equal=equal, caveat=_caveat(found.n, equal))


def over_starts(
    found: Estimate,
    values: Floats,
    statistic: Statistic,
    confidence: float = 0.95,
    resamples: int = RESAMPLES,
) -> Estimate:
    """An estimate over seeds, with an interval that also contains the luck of the start states.

    values: `[S, E]`, of each seed from each start, the same E ones for all seeds. Seeds and starts
    are resampled, each on their own (Owen 2007, "The pigeonhole bootstrap", The Annals of Applied
    Statistics 1); the mean of a seed over starts is what the statistic is of.
    """
    S, E = values.shape
    if min(S, E) < 2:
        return found
    rng = np.random.default_rng(BOOTSTRAP_SEED)
    seeds = rng.integers(0, S, (resamples, S))
    chosen = rng.integers(0, E, (resamples, E)) + E * np.arange(resamples)[:, None]
    counts = np.bincount(chosen.ravel(), minlength=E * resamples)
    weights = counts.reshape(resamples, E).T / E  # [E, R]
    means = (values @ weights).T  # [R, S]
    drawn = np.take_along_axis(means, seeds, axis=1)
    resampled = STATISTICS[statistic](drawn, axis=-1)
    tail = expanded_tail(min(S, E), confidence)
    low, high = np.quantile(resampled, [tail, 1 - tail])
    return replace(found, low=float(low), high=float(high))


def estimate_curve(
    curves: Floats, statistic: Statistic, resamples: int, confidence: float = 0.95
) -> tuple[Floats, Floats, Floats]:
    """The statistic over seeds of curves `[S, K]` and the ends of its intervals, each `[K]`.

    Each column has what `estimate` gives, up to the order of sums: all are resampled alike, and an
    IQM sorts, which is five times as fast as scipy's partition. Raises ValueError as `estimate`.
    """
    columns = [_sample(column) for column in curves.T]
    value = np.array([STATISTICS[statistic](column) for column in columns])
    n = len(curves)
    if n < 2:
        return value, np.full_like(value, np.nan), np.full_like(value, np.nan)
    rows, tail, cut = _resampled(n, resamples), expanded_tail(n, confidence), n // 4
    ends = np.stack([value, value])
    for column, of_column in zip(columns, ends.T, strict=True):
        if np.ptp(column) > 0:
            drawn = column[rows]
            if statistic == "iqm":
                drawn = np.sort(drawn, axis=-1)[:, cut : n - cut]
            of_column[:] = np.quantile(drawn.mean(axis=-1), [tail, 1 - tail])
    return value, *ends


@lru_cache(maxsize=16)
def _resampled(n: int, resamples: int) -> NDArray[np.int64]:
    """The observations that `scipy.stats.bootstrap` draws of n, `[resamples, n]`."""
    return np.random.default_rng(BOOTSTRAP_SEED).integers(0, n, (resamples, n))


def probability_of_improvement(
    ours: Sequence[ArrayLike], theirs: Sequence[ArrayLike], resamples: int = 2000
) -> Estimate:
    """The chance that a run of ours scores above one of theirs, the mean over tasks.

    `ours` and `theirs` have an array of scores per task, `[S1]` and `[S2]`, which may differ in
    size. Equal scores count half. The 95% interval is the stratified bootstrap of Agarwal et al.
    2021: seeds of each side are resampled within each task. `n` is the number of scores.

    Raises ValueError for NaN or infinite scores and for different numbers of tasks.
    """
    if len(ours) != len(theirs) or not ours:
        raise ValueError(f"need as many tasks on both sides, got {len(ours)} and {len(theirs)}")

    def chance(a: Floats, b: Floats) -> Any:
        x, y = a[..., :, None], b[..., None, :]
        return (x > y).mean((-2, -1)) + 0.5 * (x == y).mean((-2, -1))

    def mean_chance(*samples: Floats, axis: int) -> Any:
        half = len(samples) // 2
        pairs = zip(samples[:half], samples[half:], strict=True)
        return np.mean([chance(a, b) for a, b in pairs], axis=0)

    samples = [_sample(task) for task in (*ours, *theirs)]
    return _bootstrap(samples, mean_chance, resamples=resamples)


def area_under_curve(timesteps: ArrayLike, returns: ArrayLike) -> Any:
    """Trapezoid area divided by the span of `timesteps`: the mean return over training.

    `timesteps` is `[K]`, increasing, K >= 2; `returns` is `[K]` or `[S, K]`. Gives a float or
    `[S]`, in the units of the return. NaN in a curve makes its own area NaN, no other.
    """
    from scipy.integrate import trapezoid

    steps, curves = _curve(timesteps, returns)
    if len(steps) < 2:
        raise ValueError("an area under the curve needs at least two evaluations")
    area = trapezoid(curves, steps, axis=-1) / (steps[-1] - steps[0])
    return float(area) if curves.ndim == 1 else area


def timesteps_to_threshold(timesteps: ArrayLike, returns: ArrayLike, threshold: float) -> Floats:
    """First evaluation timestep from which on all returns are >= `threshold`, `[S]`; NaN for a seed
    that is not there at the end.

    `timesteps` is `[K]`, increasing; `returns` is `[S, K]`. The resolution is that of the
    evaluations.
    """
    steps, curves = _curve(timesteps, returns)
    below = ~(np.atleast_2d(curves) >= threshold)  # [S, K]; NaN is below
    since = below.shape[-1] - below[:, ::-1].argmax(axis=-1)  # the one after the last below
    first = np.where(below.any(axis=-1), since, 0)
    return np.where(first < len(steps), steps[np.minimum(first, len(steps) - 1)], np.nan)


def normalise(score: ArrayLike, random: float, reference: float) -> Any:
    """Score on the scale where the random policy is 0 and the reference is 1, same shape."""
    if random == reference:
        raise ValueError(f"random and reference score are both {random}: nothing to scale by")
    return (np.asarray(score, dtype=np.float64) - random) / (reference - random)


def parity(
    ours: ArrayLike,
    theirs: ArrayLike,
    random: float,
    reference: float,
    margin: float = 0.05,
    levels: Levels = Levels(),
    imputed: bool = False,
    one_shape: bool = False,
    resamples: int = RESAMPLES,
) -> Parity:
    """Do we score what they score? `ours` is `[S1]`, `theirs` is `[S2]`, raw scores per seed.

    d is our mean normalised score minus theirs, with its intervals from the unpaired bootstrap. The
    mean, not the IQM: an IQM cuts off the failed seeds, and a verdict must count them. one_shape:
    an interval reaches at least as far as one from resamples of the deviations of both sides
    together, so that a small side cannot seem sure because it happens to lack the rare failures of
    the other.

        saturated   every seed of both sides has the same score: all that is known of the
                    difference is how many seeds may fail unseen (`failure_bound`)
        equivalent  the interval at the level of equivalence lies inside [-margin, margin], and
                    there are EQUIVALENCE_SEEDS
        better      that at the level of differences lies above 0, d is not equivalent, and the
                    permutation test agrees: p is below the level
        worse       likewise below 0
        undecided   else; also where all are the same and one is imputed, as in `estimate`

    Raises ValueError for fewer than two seeds on a side and for NaN or infinite scores.
    """
    a, b = _sides(ours, theirs, random, reference, margin)

    def difference(a: Floats, b: Floats, axis: int) -> Any:
        return a.mean(axis=axis) - b.mean(axis=axis)

    confidences = levels.confidences
    intervals = _intervals([a, b], difference, confidences, resamples)
    if one_shape:
        deviations = np.concatenate([a - a.mean(), b - b.mean()])
        wider = _intervals(
            [deviations, deviations], difference, confidences, resamples, [len(a), len(b)]
        )
        intervals = [
            replace(x, low=min(x.low, x.value + y.low), high=max(x.high, x.value + y.high))
            for x, y in zip(intervals, wider, strict=True)
        ]
    return _verdict((a, b), intervals, permutation_p(a, b), margin, levels, imputed, LEAST_P)


def paired_parity(
    ours: ArrayLike,
    theirs: ArrayLike,
    random: float,
    reference: float,
    margin: float = 0.05,
    levels: Levels = Levels(),
    imputed: bool = False,
    resamples: int = RESAMPLES,
) -> Parity:
    """`parity` where seed s of ours and of theirs share their data, both `[S]` in the same order.

    d is the mean of the differences of pairs. Its intervals resample pairs, its p is that of
    `sign_flip_p`, and the words mean the same. The luck of the data that a pair shares cancels, so
    that fewer seeds decide. Raises ValueError also for sides of different sizes.
    """
    a, b = _sides(ours, theirs, random, reference, margin)
    if len(a) != len(b):
        raise ValueError(f"pairs need as many seeds on both sides, got {len(a)} and {len(b)}")
    intervals = _intervals([a - b], np.mean, levels.confidences, resamples)
    p = sign_flip_p(a - b)
    verdict = _verdict((a, b), intervals, p, margin, levels, imputed, 2 * LEAST_P)
    constant = np.ptp(a) == 0 or np.ptp(b) == 0
    return replace(verdict, r=math.nan if constant else float(np.corrcoef(a, b)[0, 1]))


def _sides(
    ours: ArrayLike, theirs: ArrayLike, random: float, reference: float, margin: float
) -> tuple[Floats, Floats]:
    """Both sides of a verdict normalised, and its arguments checked."""
    a, b = (normalise(_sample(side), random, reference) for side in (ours, theirs))
    if min(len(a), len(b)) < 2:
        raise ValueError(f"parity needs two seeds or more per side, got {len(a)} and {len(b)}")
    if margin <= 0:
        raise ValueError(f"margin is {margin}, must be > 0")
    return a, b


def _verdict(
    sides: tuple[Floats, Floats],
    intervals: Sequence[Estimate],
    p: float,
    margin: float,
    levels: Levels,
    imputed: bool,
    least: float,
) -> Parity:
    """The verdict from the intervals of d at the levels of equivalence and of differences. least:
    the p of random draws of which none is as extreme."""
    inner, outer = intervals
    n = min(map(len, sides))
    d = replace(inner, n=n)
    same = bool(np.ptp(np.concatenate(sides)) == 0)
    word = word_of((d.low, d.high), (outer.low, outer.high), p, n, margin, levels.differs, same)
    if same and imputed:
        word = "undecided"
    return Parity(word, d, p, margin, at_most=p == least)


def word_of(
    inner: tuple[float, float],
    outer: tuple[float, float],
    p: float,
    n: int,
    margin: float,
    level: float,
    same: bool,
) -> VerdictWord:
    """The word for the intervals of a difference at the levels of equivalence and of differences,
    as `parity` says. n: seeds of the smaller side. level: of differences."""
    if same:
        return "saturated"
    if -margin <= inner[0] and inner[1] <= margin:
        return "equivalent" if n >= EQUIVALENCE_SEEDS else "undecided"
    if p >= level or outer[0] <= 0 <= outer[1]:
        return "undecided"
    return "better" if outer[0] > 0 else "worse"


def permutation_p(a: Floats, b: Floats, resamples: int = RESAMPLES) -> float:
    """Two-sided p of the permutation test that `[S1]` and `[S2]` have one mean. NaN of one seed.

    The statistic is Welch's t, not the difference of means: where the smaller side spreads more,
    that one is exceeded far too often although the means are equal (Janssen 1997). Of all
    divisions, or of so many random ones where there are more. Two-sided by |t|: where the sides
    differ in size and shape, t has two unlike tails, and twice the smaller one errs twice as often.
    """
    n, m = len(a), len(b)
    if min(n, m) < 2:
        return math.nan
    both = np.concatenate([a, b])
    if np.ptp(both) == 0:
        return 1.0
    both = both - both.mean()
    divisions = math.comb(n + m, n)
    exact = divisions <= resamples
    permuted = both[_divisions(n, m) if exact else _permutations(n + m, resamples)]
    null = np.abs(_welch_t(permuted[:, :n], permuted[:, n:]))
    observed = abs(_welch_t(both[None, :n], both[None, n:])[0])
    # Divisions of the same values are ties, in whatever order they are summed. The observed one is
    # one of all, or counts as one of the random ones.
    extreme = (null >= observed * (1 - 1e-9) - 1e-9).sum() + (not exact)
    return float(extreme / (len(null) + (not exact)))


def _welch_t(a: Floats, b: Floats) -> Floats:
    """Welch's t `[R]` of sides `[R, S1]` and `[R, S2]`; infinite where neither side varies."""
    variance = sum(
        np.where(np.ptp(x, axis=1) == 0, 0.0, x.var(axis=1, ddof=1)) / x.shape[1] for x in (a, b)
    )
    with np.errstate(divide="ignore"):
        return (a.mean(axis=1) - b.mean(axis=1)) / np.sqrt(variance)


@lru_cache(maxsize=16)
def _divisions(n: int, m: int) -> NDArray[np.int64]:
    """All divisions of n + m observations into n and m, `[divisions, n + m]`."""
    firsts = [list(x) for x in combinations(range(n + m), n)]
    everyone = range(n + m)
    return np.array([x + sorted(set(everyone) - set(x)) for x in firsts])


@lru_cache(maxsize=16)
def _permutations(n: int, resamples: int) -> NDArray[np.int64]:
    """Random permutations of n observations, `[resamples, n]`."""
    rng = np.random.default_rng(BOOTSTRAP_SEED)
    return np.stack([rng.permutation(n) for _ in range(resamples)])


def sign_flip_p(differences: Floats, resamples: int = RESAMPLES) -> float:
    """Two-sided p of the test that paired differences `[S]` could as well have the other signs.

    The statistic is their mean. Of all 2^S choices of signs, or of so many random ones where there
    are more; twice the smaller tail. Below six seeds no p is below 0.05.
    """
    if not differences.any():
        return 1.0
    n, magnitude = len(differences), np.abs(differences)
    exact = 2**n <= resamples
    null = (_signs(n, 2**n if exact else resamples) * magnitude).sum(axis=-1)
    observed, rounding = differences.sum(), 100 * np.finfo(np.float64).eps * magnitude.sum()
    extreme = min((null <= observed + rounding).sum(), (null >= observed - rounding).sum())
    drawn = 0 if exact else 1  # what was observed counts as one of the random ones
    return float(min(1.0, 2 * (extreme + drawn) / (len(null) + drawn)))


@lru_cache(maxsize=16)
def _signs(n: int, rows: int) -> NDArray[np.int64]:
    """Signs of n differences, `[rows, n]`: all 2^n choices, or random ones."""
    if rows == 2**n:
        return 1 - 2 * (np.arange(rows)[:, None] >> np.arange(n) & 1)
    return 1 - 2 * np.random.default_rng(BOOTSTRAP_SEED).integers(0, 2, (rows, n))


def mean_difference(differences: ArrayLike) -> Estimate:
    """The mean of paired differences `[S]` with its interval, as `estimate`, and with p.

    p is that of Student's paired test. The expanded percentiles of the interval are Student's, too,
    so both mostly agree; and p is not bounded from below by few seeds, as that of flipped signs is:
    of five it is at least 1/16. That bound is p where all differences are equal, but for rounding,
    and not 0. NaN of a single seed. Raises ValueError as `estimate`.
    """
    from scipy.special import stdtr

    sample = _sample(differences)
    n, mean = len(sample), sample.mean()
    p = math.nan
    if n > 1:
        error = sample.std(ddof=1) / math.sqrt(n)
        if np.ptp(sample) <= 1e-9 * abs(mean):
            p = 1.0 if mean == 0 else 2.0 ** (1 - n)
        else:
            p = float(2 * stdtr(n - 1, -abs(mean) / error))
    return replace(estimate(sample, "mean"), p=p)


def effect_shown(difference: Estimate, level: float = 0.05, power: float = 0.8) -> float:
    """The true difference that a test of as many seeds at a level would show with a power.

    From the standard error that the 95% interval implies, by Student's t. NaN, not known, of a
    single seed and of an interval without a width.
    """
    from scipy.special import stdtrit

    if difference.n < 2 or not difference.low < difference.high:
        return math.nan
    t = partial(stdtrit, difference.n - 1)
    error = (difference.high - difference.low) / 2 / t(0.975)
    return float(error * (t(1 - level / 2) + t(power)))


def holm(p: ArrayLike) -> Floats:
    """The p-values `[M]` of tests that are read together, corrected by Holm's step-down, `[M]`.

    The smallest is multiplied by M, the next one by M - 1, and so on, and none is below one before
    it. Any of them is below a level by chance with at most that probability, however the tests
    depend on each other. Random permutations give no p below LEAST_P, so that of more than 500
    together none is below 0.05. NaN, of what could not be tested, stays NaN and is not counted.
    Raises ValueError for what is outside of [0, 1].
    """
    raw = np.asarray(p, dtype=np.float64)
    if raw.ndim != 1 or ((raw < 0) | (raw > 1)).any():
        raise ValueError(f"need p-values [M] in [0, 1], got {raw}")
    order = np.argsort(raw, kind="stable")[: np.isfinite(raw).sum()]  # NaN is sorted last
    steps = raw[order] * np.arange(len(order), 0, -1)
    found = np.full_like(raw, np.nan)
    found[order] = np.minimum(np.maximum.accumulate(steps), 1.0)
    return found


def with_p(verdict: Parity, p: float, level: float = Levels().differs) -> Parity:
    """The verdict with a corrected p: better or worse only where that is below the level.

    Equivalence keeps its interval: Holm's step-down bounds how often equal sides are told apart,
    and that different ones are called equivalent is another error. Its two one-sided tests, that d
    is above -margin and below margin, must both reject, which needs no correction of its own.
    """
    found = verdict.word in ("better", "worse") and p >= level
    return replace(verdict, p=p, word="undecided" if found else verdict.word)


def failure_bound(failures: int, n: int, confidence: float = 0.95) -> float:
    """Upper bound on the share of seeds that fail, of which `failures` of n did (Clopper-Pearson,
    one-sided): 26% for 0 of 10, 9.5% for 0 of 30."""
    from scipy.special import betaincinv

    return float(betaincinv(failures + 1, n - failures, confidence)) if failures < n else 1.0


def failure_difference(failures: tuple[int, int], sizes: tuple[int, int]) -> tuple[float, float]:
    """The 95% interval of the difference of two sides' shares of failures, the first minus the
    second: Newcombe 1998 (Statistics in Medicine 17), method 10, from Wilson's intervals."""
    from scipy.stats import binomtest

    (p, low, high), (q, lower, higher) = (
        (k / n, *binomtest(k, n).proportion_ci(method="wilson"))
        for k, n in zip(failures, sizes, strict=True)
    )
    d = p - q
    return d - math.hypot(p - low, higher - q), d + math.hypot(high - p, q - lower)


def expanded_tail(n: int, confidence: float) -> float:
    """The tail below which the bootstrap distribution of samples of n is cut off, on each side.

    Plain percentiles are too narrow by sqrt((n - 1) / n), and by the normal distribution's tail in
    the place of Student's: Phi(-sqrt(n / (n - 1)) t_{n-1}) makes up for both (Hesterberg 2015).
    """
    from scipy.special import ndtr, stdtrit

    tail = ndtr(math.sqrt(n / (n - 1)) * stdtrit(n - 1, (1 - confidence) / 2))
    return round(float(tail), 12)  # the last bits are the machine's


def _bootstrap(
    samples: Sequence[Floats],
    statistic: Callable[..., Any],
    confidence: float = 0.95,
    resamples: int = RESAMPLES,
) -> Estimate:
    """Interval of `statistic(*samples, axis)`, each sample resampled on its own: the percentiles
    of the smallest one (as R's package `resample`)."""
    (found,) = _intervals(samples, statistic, [confidence], resamples)
    return found


def _intervals(
    samples: Sequence[Floats],
    statistic: Callable[..., Any],
    confidences: Sequence[float],
    resamples: int,
    sizes: Sequence[int] = (),
) -> list[Estimate]:
    """The same at several levels, of one set of resamples; sizes: of these, where they are not as
    large as the samples.

    The first RESAMPLES are those that `scipy.stats.bootstrap` draws."""
    value = float(statistic(*samples, axis=-1))
    sizes = sizes or [len(sample) for sample in samples]
    n, smallest = sum(sizes), min(sizes)
    if smallest < 2:
        return [Estimate(value, math.nan, math.nan, n) for _ in confidences]
    if all(np.ptp(sample) == 0 for sample in samples):  # exact, where resampling would round
        return [Estimate(value, value, value, n) for _ in confidences]
    rng = np.random.default_rng(BOOTSTRAP_SEED)
    resampled = []
    for first in range(0, resamples, RESAMPLES):  # so many at a time, which bounds the memory
        rows = min(RESAMPLES, resamples - first)
        drawn = [
            sample[rng.integers(0, len(sample), (rows, size))]
            for sample, size in zip(samples, sizes, strict=True)
        ]
        resampled.append(statistic(*drawn, axis=-1))
    tails = [expanded_tail(smallest, confidence) for confidence in confidences]
    ends = np.quantile(np.concatenate(resampled), [(x, 1 - x) for x in tails])
    return [Estimate(value, float(low), float(high), n) for low, high in ends]


def _sample(values: ArrayLike) -> Floats:
    """`values` as `[S]` float64, checked."""
    sample = np.asarray(values, dtype=np.float64)
    if sample.ndim != 1 or len(sample) == 0:
        raise ValueError(f"need one value per seed, shape [S], got shape {list(sample.shape)}")
    if not np.isfinite(sample).all():
        where = np.flatnonzero(~np.isfinite(sample)).tolist()
        raise ValueError(f"not finite at index {where}: give a diverged seed its failure score")
    return sample


def _curve(timesteps: ArrayLike, returns: ArrayLike) -> tuple[Floats, Floats]:
    """`[K]` and `[K]` or `[S, K]` as float64, checked."""
    steps = np.asarray(timesteps, dtype=np.float64)
    curves = np.asarray(returns, dtype=np.float64)
    if steps.ndim != 1 or curves.ndim not in (1, 2) or curves.shape[-1] != len(steps):
        raise ValueError(
            f"need timesteps [K] and returns [K] or [S, K], "
            f"got {list(steps.shape)} and {list(curves.shape)}"
        )
    if len(steps) == 0 or not (np.diff(steps) > 0).all():
        raise ValueError("timesteps must increase, and there must be at least one")
    return steps, curves
