"""Statistics against hand-worked numbers and simulation; figures as files."""

import math
import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import scipy.stats

from manyseeds import plots, stats
from manyseeds.stats import Estimate, estimate, number_text, parity

pytestmark = pytest.mark.usefixtures("pictures")

# ---------------------------------------------------------------- numbers as text


@pytest.mark.parametrize(
    ("numbers", "digits", "text"),
    [
        ((500.0, 500.0, 500.0), None, "500.0 [500.0, 500.0]"),
        ((500.0, 500.0, 500.0), 3, "500.000 [500.000, 500.000]"),
        ((498.24, 493.1, 500.0), None, "498.2 [493.1, 500.0]"),
        ((-1247.64, -1324.3, -1190.1), None, "-1247.6 [-1324.3, -1190.1]"),
        ((0.0123, 0.011, 0.013), None, "0.0123 [0.0110, 0.0130]"),
        ((0.0, 0.0, 0.0), None, "0.0 [0.0, 0.0]"),
        ((1e-6, 8e-7, 1.2e-6), None, "1.00e-06 [8.00e-07, 1.20e-06]"),
        ((1e-6, 1e-6, 1e-6), None, "1.0e-06 [1.0e-06, 1.0e-06]"),
        ((1e30, 9e29, 1.1e30), None, "1.00e+30 [9.00e+29, 1.10e+30]"),
        ((2.5e7, 2.4e7, 2.6e7), None, "25000000 [24000000, 26000000]"),
        ((3 + 1e-8, 3.0, 3 + 2e-8), None, "3.000000 [3.000000, 3.000000]"),
        ((0.0, -0.002, 0.002), 1, "0.0 [-0.0, 0.0]"),
    ],
)
def test_digits_follow_the_size_where_none_are_stated(
    numbers: tuple[float, float, float], digits: int | None, text: str
) -> None:
    assert Estimate(*numbers, n=30).text(digits) == text


def test_digits_of_a_number_alone() -> None:
    numbers = {0.0: "0.0", -200.0: "-200.0", 1e-6: "1.0e-06", 0.00123: "0.0012", 1e30: "1.0e+30"}
    assert {x: number_text(x, None) for x in numbers} == numbers
    assert number_text(1.25, 0) == "1"


def test_few_seeds_say_what_their_interval_is_worth() -> None:
    few, equal = estimate([1.0, 2.0, 4.0], "mean"), estimate([500.0] * 3)
    assert few.full_text(1) == "2.3 [1.0, 4.0] (3 seeds: covers 48 to 75%)"
    assert equal.full_text(1) == "500.0 (all 3 seeds equal: at most 64% do otherwise)"
    assert (few.short_text(1), equal.short_text(1)) == ("2.3 [1.0, 4.0]", "500.0")
    mostly = estimate([1.0] + [2.0] * 29)  # its IQM has no spread either, but not all are equal
    assert (mostly.full_text(1), mostly.caveat) == ("2.0 [2.0, 2.0]", "")
    assert estimate([7.0]).full_text(1) == "7.0 (no interval, n=1)"
    assert estimate([1.0, 2.0] * 5).caveat == ""
    assert estimate([1.0] * 30).caveat == "all 30 seeds equal: at most 10% do otherwise"
    assert estimate([1.0] * 2).caveat == "both seeds equal: at most 78% do otherwise"
    imputed = estimate([7.0] * 3, imputed=True)
    assert imputed.full_text(1) == "7.0"
    assert estimate([1, 2], imputed=True).caveat == estimate([1, 2]).caveat
    same = [1.0] * 3, [2.0] * 3
    several = estimate(same), stats.probability_of_improvement(*zip(same, strict=True))
    texts = {e.full_text(1) for e in (*several, parity(*same, 0, 1).difference)}
    assert texts == {"1.5 [1.5, 1.5]", "0.0 [0.0, 0.0]", "-1.0 [-1.0, -1.0]"}
    note = (
        "Intervals from few seeds cover less than 95%: of 3 seeds 48 to 75%, of 5 seeds 67 to 93%."
    )
    assert stats.coverage_note([5, 3, 30, 1, 3]) == note
    assert stats.coverage_note([10, 1]) == ""


@pytest.mark.parametrize("n", [2, 3, 4, 5, 9])
def test_the_coverage_of_few_seeds(n: int) -> None:
    """Up to four seeds it is that of their range, which is known; of others measured again."""
    said = stats.COVERAGE[n]
    if n <= 4:
        one_in_five, normal = 1 - 0.8**n - 0.2**n, 1 - 2 * 0.5**n
        assert said == pytest.approx((100 * one_in_five, 100 * normal), abs=0.6)
    else:
        rng = np.random.default_rng(n)
        good, fails = rng.normal(size=(600, n)), rng.random((600, n)) < 0.2
        for percent, scores, mean in zip(said, (good - 40 * fails, good), (-8, 0), strict=True):
            found = [estimate(x, "mean", resamples=1000) for x in scores]
            covered = np.mean([e.low <= mean <= e.high for e in found])
            assert percent == pytest.approx(100 * covered, abs=5)


# ---------------------------------------------------------------- iqm and estimate


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([0, 1, 2, 100], 1.5),  # one cut at each end
        ([0, 2, 100], 34.0),  # floor(3 / 4) = 0 cut: the plain mean
        ([-99, -99, 1, 2, 3, 4, 5, 6, 99, 99], 3.5),  # two of ten cut at each end
        ([7], 7.0),
    ],
)
def test_iqm_by_hand(values: list[float], expected: float) -> None:
    assert stats.iqm(values) == pytest.approx(expected, abs=1e-12)


def test_iqm_along_an_axis() -> None:
    table = np.array([[0, 1, 2, 100], [3, 3, 5, 5]])
    np.testing.assert_allclose(stats.iqm(table), [1.5, 4.0])
    np.testing.assert_allclose(stats.iqm(table.T, axis=0), [1.5, 4.0])


def test_a_lopsided_interval_by_hand() -> None:
    """Percentiles of the resampled means, not mirrored at the estimate (the basic bootstrap).

    Of 0, 0 and 9 the mean is 0, 3, 6 or 9 with probabilities 8/27, 12/27, 6/27 and 1/27. 80% of
    three values end at the 1% percentile: Phi(-sqrt(3 / 2) * 1.886), 1.886 being Student's.
    """
    assert stats.expanded_tail(3, 0.8) == pytest.approx(0.01046, rel=1e-3)
    assert estimate([0, 10], "mean") == Estimate(5.0, 0.0, 10.0, 2)
    assert estimate([0, 0, 9], "mean") == Estimate(3.0, 0.0, 9.0, 3)
    assert estimate([0, 0, 9], "mean", confidence=0.6) == Estimate(3.0, 0.0, 6.0, 3)
    assert estimate([0, 9, 9], "mean", confidence=0.6) == Estimate(6.0, 3.0, 9.0, 3)


def test_percentiles_are_expanded_as_in_the_source() -> None:
    """Hesterberg 2015, section 5.3: of n = 10 the nominal 2.5% become 0.9%, of many 2.5%."""
    assert stats.expanded_tail(10, 0.95) == pytest.approx(0.0086, abs=1e-4)
    assert stats.expanded_tail(100_000, 0.95) == pytest.approx(0.025, abs=1e-5)


def test_interval_covers_the_mean() -> None:
    """A nominal 95% interval; a plain percentile one covers 84% at n=5 and 89% at n=10."""
    rng = np.random.default_rng(1)
    trials = [estimate(rng.normal(3.0, 2.0, 5), "mean", resamples=500) for _ in range(600)]
    assert 0.92 <= np.mean([trial.low <= 3.0 <= trial.high for trial in trials]) <= 0.975


def test_same_data_same_interval() -> None:
    values = np.random.default_rng(1).normal(size=10)
    assert estimate(values) == estimate(list(values))
    assert estimate(values).low < estimate(values).value < estimate(values).high


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("value", [0.1, 500.0, -1e-300])
def test_what_does_not_vary(value: float) -> None:
    result = estimate([value] * 10)
    assert result.low == result.high == result.value == pytest.approx(value)
    one = estimate([value])
    assert one.value == value
    assert all(map(math.isnan, (one.low, one.high, estimate([[1.0, 2.0], [3.0]]).low)))


def test_stratified_resamples_within_each_task() -> None:
    """Tasks that differ, seeds that do not: the spread between tasks is no uncertainty."""
    easy, hard = np.ones(10), np.zeros(10)
    assert estimate([easy, hard]) == Estimate(0.5, 0.5, 0.5, 20)
    pooled = estimate(np.concatenate([easy, hard]))
    assert pooled.high - pooled.low > 0.3

    rng = np.random.default_rng(2)
    tasks = [rng.normal(0, 1, 10), rng.normal(100, 1, 30)]  # sizes may differ
    result = estimate(tasks, "mean")
    assert result.value == pytest.approx(np.concatenate(tasks).mean())
    assert result.n == 40
    # sd of the pooled mean is 1 / sqrt(40) when tasks are kept apart, about 7 when they are mixed
    assert result.high - result.low == pytest.approx(2 * 1.96 / math.sqrt(40), rel=0.25)


def test_text() -> None:
    result = Estimate(498.2, 493.14, 500.0, 10)
    assert str(result) == "498.2 [493.1, 500.0]"
    assert result.text(digits=0) == "498 [493, 500]"
    assert str(estimate([3.0])) == "3.0 (no interval, n=1)"
    # Zero has no minus; a bound has, which tells on which side of 0 it is.
    assert Estimate(-0.0002, -0.006, -0.0001, 10).text(3) == "0.000 [-0.006, -0.000]"
    assert Estimate(-0.0002, -0.006, 0.006, 10).text(3, "+") == "+0.000 [-0.006, +0.006]"


# ---------------------------------------------------------------- summaries of curves


def test_area_under_curve_by_hand() -> None:
    # (0 + 10) / 2 over 10 steps, then 10 over 30 steps: (50 + 300) / 40
    assert stats.area_under_curve([0, 10, 40], [0, 10, 10]) == pytest.approx(8.75)
    both = stats.area_under_curve([0, 10, 40], [[0, 10, 10], [4, 4, 4]])
    np.testing.assert_allclose(both, [8.75, 4.0])
    assert stats.area_under_curve([5, 6], [2, 4]) == 3.0  # the span counts, not the origin


def test_timesteps_to_threshold_by_hand() -> None:
    returns: list[list[float]] = [
        [0, 5, 9, 9],  # never
        [0, 10, 2, 10],  # reaches it, falls back: the second time counts
        [0, 10, 10, 12],
        [10, 11, 12, 10],  # at once
        [10, 11, 12, 9],  # not at the end
        [np.nan, np.nan, 11, 10],
        [10, 11, 12, np.nan],
    ]
    reached = stats.timesteps_to_threshold([0, 100, 200, 300], returns, 10)
    np.testing.assert_array_equal(reached, [np.nan, 300, 100, 0, np.nan, 200, np.nan])


def test_an_interval_over_starts_has_the_variances_of_both() -> None:
    """Seeds alone are nearly sure here; the 20 starts are not, and none of their luck averages."""
    rng = np.random.default_rng(0)
    of_seeds, of_starts = rng.normal(0, 0.1, (200, 1)), rng.normal(0, 1, (1, 20))
    values = of_seeds + of_starts
    for statistic in ("mean", "iqm"):
        alone = estimate(values.mean(1), statistic)
        both = stats.over_starts(alone, values, statistic)
        assert both.value == alone.value
        expected = 2 * 2.09 * (0.1**2 / 200 + np.var(of_starts, ddof=1) / 20) ** 0.5
        assert both.high - both.low == pytest.approx(expected, rel=0.12)
        assert both.high - both.low > 10 * (alone.high - alone.low)
    same = stats.over_starts(estimate(values.mean(1)), np.repeat(values[:, :1], 20, 1), "mean")
    assert same.high - same.low == pytest.approx(2 * 1.97 * 0.1 / 200**0.5, rel=0.2)


def test_normalise() -> None:
    np.testing.assert_allclose(stats.normalise([22.1, 500, 261.05], 22.1, 500), [0, 1, 0.5])
    assert stats.normalise(-200, random=-200, reference=-100.8) == 0


# ---------------------------------------------------------------- parity


def scores(mean: float, sd: float, n: int, seed: int) -> np.ndarray:
    """`n` scores with exactly this mean and standard deviation."""
    x = np.random.default_rng(seed).normal(size=n)
    return mean + sd * (x - x.mean()) / x.std()


@pytest.mark.parametrize(
    ("ours", "theirs", "word"),
    [
        # random 0, reference 100, 30 seeds: sd of d is 100 * sd * sqrt(2 / 30)
        (scores(90, 3, 30, 0), scores(91, 3, 30, 1), "equivalent"),
        (scores(90, 3, 30, 0), scores(80, 3, 30, 1), "better"),
        (scores(80, 3, 30, 0), scores(90, 3, 30, 1), "worse"),
        # six of thirty learn nothing; an IQM would cut seven at each end
        (np.repeat([100.0, 0.0], [24, 6]), np.full(30, 100.0), "worse"),
        (scores(60, 40, 30, 0), scores(62, 40, 30, 1), "undecided"),
        # significantly better, but by less than the margin: equivalent goes first
        (scores(92, 1, 30, 0), scores(90, 1, 30, 1), "equivalent"),
        # of so few seeds one in ten may fail unseen
        (scores(92, 1, 20, 0), scores(90, 1, 30, 1), "undecided"),
        (scores(90, 3, 20, 0), scores(80, 3, 30, 1), "better"),
    ],
)
def test_parity_words(ours: np.ndarray, theirs: np.ndarray, word: str) -> None:
    verdict = parity(ours, theirs, random=0, reference=100)
    assert verdict.word == word
    assert verdict.difference.value == pytest.approx((ours.mean() - theirs.mean()) / 100)
    assert verdict.difference.n == min(len(ours), len(theirs))


@pytest.mark.parametrize(
    ("low", "high", "p", "word"),
    [
        (0.0, 0.2, 0.001, "undecided"),
        (-0.2, 0.0, 0.001, "undecided"),
        (0.1, 0.2, 0.05, "undecided"),
        (0.1, 0.2, 0.049, "better"),
        (-0.05, 0.05, 1.0, "equivalent"),
    ],
)
def test_words_at_their_bounds(low: float, high: float, p: float, word: str) -> None:
    assert stats.word_of((low, high), (low, high), p, 30, 0.05, 0.05, False) == word


def test_each_word_has_its_own_level() -> None:
    """Equivalent by the narrower interval, better by the wider one and its p."""
    inner, outer = (0.0, 0.05), (-0.01, 0.06)
    assert stats.word_of(inner, outer, 0.001, 30, 0.05, 0.01, False) == "equivalent"
    assert stats.word_of(outer, inner, 0.001, 30, 0.05, 0.01, False) == "undecided"
    assert stats.word_of((0.02, 0.06), (0.01, 0.07), 0.02, 30, 0.05, 0.01, False) == "undecided"
    assert stats.word_of((0.02, 0.06), (0.01, 0.07), 0.009, 30, 0.05, 0.01, False) == "better"
    ours, theirs = scores(92, 10, 40, 0), scores(88, 10, 30, 1)
    narrow = parity(ours, theirs, 0, 100, levels=stats.Levels(0.01, 0.2)).difference
    wide = parity(ours, theirs, 0, 100, levels=stats.Levels(0.2, 0.01)).difference
    assert wide.low < narrow.low < narrow.high < wide.high
    many = parity(ours, theirs, 0, 100, resamples=100_000).difference
    few = parity(ours, theirs, 0, 100).difference
    assert many.low == pytest.approx(few.low, abs=0.003)
    assert many.low != few.low


def test_the_difference_of_shares_of_failures() -> None:
    """Newcombe 1998, table II, (a) and (h): 56 of 70 against 48 of 80, and 10 of 10 against 0."""
    assert stats.failure_difference((56, 48), (70, 80)) == pytest.approx((0.0524, 0.3339), abs=1e-4)
    assert stats.failure_difference((10, 0), (10, 10)) == pytest.approx((0.6075, 1.0), abs=1e-4)


def test_better_needs_the_permutation_test() -> None:
    """Three failures of ten against none: the bootstrap's interval lies below 0, but three of
    twenty fall on one side by chance in 2 * C(17, 7) / C(20, 10) = 21% of cases."""
    ours = np.array([0.5] * 3 + [1.0] * 7)
    verdict = parity(ours, np.ones(10), 0, 1, levels=stats.Levels(0.2, 0.2))
    assert verdict.difference.high < 0
    assert verdict.p == pytest.approx(0.2105, abs=0.01)
    assert verdict.word == "undecided"
    assert parity(ours, np.ones(10), 0, 1, levels=stats.Levels(0.25, 0.25)).word == "worse"


def test_permutation_p_by_hand() -> None:
    """Of the 20 ways to divide six values, the two extreme ones are as far apart."""
    a, b = np.array([1.0, 2.0, 3.0]), np.array([4.0, 5.0, 6.0])
    assert stats.permutation_p(a, b) == pytest.approx(0.1)
    assert stats.permutation_p(b, a) == pytest.approx(0.1)
    assert stats.permutation_p(np.ones(3), np.ones(4)) == 1.0
    # Means that are equal but for rounding are: all 70 divisions are as far apart.
    assert stats.permutation_p(np.array([0.2, 0.2, 0.2, 0.9]), np.array([0.2, 0.7, 0.3, 0.3])) == 1


@pytest.mark.parametrize("sizes", [(2, 5), (10, 10), (30, 60)])
def test_permutation_p_is_that_of_scipy(sizes: tuple[int, int]) -> None:
    """The random permutations are the same ones, and ties are ties."""
    a, b = (np.random.default_rng(n).normal(size=n).round(1) + 0.1 for n in sizes)
    test = scipy.stats.permutation_test(
        (a, b),
        lambda a, b, axis: np.abs(
            scipy.stats.ttest_ind(a, b, axis=axis, equal_var=False).statistic
        ),
        n_resamples=10_000,
        alternative="greater",
        vectorized=True,
        rng=np.random.default_rng(stats.BOOTSTRAP_SEED),
    )
    assert stats.permutation_p(a, b) == pytest.approx(test.pvalue, abs=1e-12)


def test_the_permutation_test_allows_for_unequal_sides() -> None:
    """Of one mean: few seeds of which half fails, against many that are alike. p < 0.05 in 4.7% of
    cases; by the difference of means, or by twice the smaller tail of t, in 10% and more."""
    rng = np.random.default_rng(0)
    wrong = np.mean(
        [
            stats.permutation_p(
                rng.normal(0.75, 0.02, 300), np.where(rng.random(30) < 0.5, 0.5, 1.0), 500
            )
            < 0.05
            for _ in range(1000)
        ]
    )
    assert 0.02 < wrong < 0.07
    # Of sides that do not vary no random division has them apart as they are.
    assert stats.permutation_p(np.ones(300), np.zeros(30)) == stats.LEAST_P
    assert stats.permutation_p(np.zeros(30), np.ones(300)) == stats.LEAST_P
    assert parity(np.ones(30), np.zeros(30), 0, 1).at_most
    assert not parity(np.ones(3), np.zeros(3), 0, 1).at_most  # all 20 divisions


def test_the_effect_that_a_test_would_show() -> None:
    """A true difference of that size is found in 80% of samples, as Student's test counts."""
    rng = np.random.default_rng(0)
    effect = np.mean(
        [stats.effect_shown(stats.estimate(rng.normal(0, 1, 30), "mean")) for _ in range(50)]
    )
    # By G*Power, one sample of 30, two-sided at 0.05: d = 0.53.
    assert effect == pytest.approx(0.53, abs=0.02)
    assert np.isnan(stats.effect_shown(stats.estimate([1.0], "mean")))
    assert np.isnan(stats.effect_shown(stats.Estimate(0.2, 0.2, 0.2, 10)))
    # The interval has a standard error of 0.1 / 2.262; at 0.025, t is 2.685, and 0.883 for 80%.
    shown = stats.effect_shown(stats.Estimate(0.2, 0.1, 0.3, 10), 0.025)
    assert shown == pytest.approx(0.1 / 2.262 * (2.685 + 0.883), abs=1e-3)


def test_sign_flip_p_by_hand() -> None:
    """Of the 8 choices of signs one has as large a mean as 1, 2, 3, and one as small a one."""
    assert stats.sign_flip_p(np.array([1.0, 2.0, 3.0])) == pytest.approx(2 / 8)
    assert stats.sign_flip_p(np.array([-1.0, -2.0, 3.0])) == 1.0
    assert stats.sign_flip_p(np.zeros(3)) == 1.0
    assert stats.sign_flip_p(np.full(10, -0.1)) == pytest.approx(2 / 2**10)  # rounding or not
    assert stats.sign_flip_p(np.full(30, 0.1)) == pytest.approx(2 / 10_001)


def test_sign_flip_p_is_that_of_scipy() -> None:
    """Of all choices the same one; of random ones about that of all."""
    differences = np.random.default_rng(4).normal(0.5, size=13).round(1)
    exact = scipy.stats.permutation_test(
        (differences, np.zeros(13)),
        lambda a, b, axis: (a - b).mean(axis=axis),
        permutation_type="samples",
        vectorized=True,
    ).pvalue
    assert 0.005 < exact < 0.5
    assert stats.sign_flip_p(differences) == pytest.approx(exact, rel=1e-12)
    assert stats.sign_flip_p(differences, 8000) == pytest.approx(exact, abs=0.02)


def test_pairs_decide_where_what_they_share_hides_the_difference() -> None:
    """Seeds that differ by 30, and pairs by 6 +- 0.3: the interval is Student's of 29 degrees."""
    shared = scores(50, 30, 30, 0)
    differences = scores(6, 0.3, 30, 1)
    ours, theirs = shared + differences, shared
    assert parity(ours, theirs, 0, 100).word == "undecided"
    verdict = stats.paired_parity(ours, theirs, 0, 100)
    d = verdict.difference
    assert (verdict.word, d.n) == ("better", 30)
    assert d.value == pytest.approx(0.06)
    assert (d.high - d.low) / 2 == pytest.approx(2.045 * 0.003 / math.sqrt(30), rel=0.08)
    assert verdict.p == stats.sign_flip_p(differences / 100)
    assert verdict.r == pytest.approx(np.corrcoef(ours, theirs)[0, 1])
    assert stats.paired_parity(theirs, ours, 0, 100).word == "worse"
    assert stats.paired_parity(theirs + 1, theirs, 0, 100).word == "equivalent"
    assert stats.paired_parity(theirs[:29] + 1, theirs[:29], 0, 100).word == "undecided"


@pytest.mark.filterwarnings("error")
def test_pairs_of_constants() -> None:
    same = stats.paired_parity([500] * 10, [500] * 10, 22.1, 500)
    assert (same.word, same.p) == ("saturated", 1.0)
    assert same.r is not None
    assert math.isnan(same.r)
    assert stats.paired_parity([20] * 30, [20] * 30, 20, 500, imputed=True).word == "undecided"
    assert stats.paired_parity([400] * 10, [500] * 10, 22.1, 500).word == "worse"


@pytest.mark.filterwarnings("error")
def test_p_of_a_mean_difference_is_student_s() -> None:
    differences = np.random.default_rng(3).normal(0.4, size=7)
    found = stats.mean_difference(differences)
    assert found == estimate(differences, "mean")
    assert found.p == pytest.approx(scipy.stats.ttest_1samp(differences, 0).pvalue, rel=1e-9)
    assert stats.mean_difference([0.0, 0.0]).p == 1
    assert stats.mean_difference([-0.5, -0.5]).p == 0.5  # as that of flipped signs
    assert stats.mean_difference([0.3 - 0.2, 0.1, 0.1]).p == 0.25
    assert math.isnan(stats.mean_difference([1.0]).p)
    assert math.isnan(estimate(differences, "mean").p)


def test_holm_by_hand() -> None:
    """0.005 * 4, 0.01 * 3, 0.03 * 2, and 0.04 * 1, which is below the one before."""
    assert stats.holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert stats.holm([0.5, 0.5, 0.02]) == pytest.approx([1.0, 1.0, 0.06])
    assert stats.holm([0.03]) == pytest.approx([0.03])
    assert stats.holm([]).tolist() == []
    # What could not be tested is not counted.
    np.testing.assert_array_equal(stats.holm([0.02, math.nan, 0.01]), [0.02, math.nan, 0.02])


def test_holm_bounds_the_chance_of_any_error() -> None:
    """Of 20 tests without a difference one is below 5% in 64% of cases, corrected ones in 5%."""
    p = np.random.default_rng(0).uniform(size=(4000, 20))
    assert np.mean([stats.holm(row).min() < 0.05 for row in p]) == pytest.approx(0.05, abs=0.012)


@pytest.mark.parametrize(
    ("word", "p", "corrected"),
    [
        ("better", 0.049, "better"),
        ("better", 0.05, "undecided"),
        ("worse", 0.2, "undecided"),
        ("equivalent", 1.0, "equivalent"),  # its rule is that of its interval
        ("saturated", 1.0, "saturated"),
    ],
)
def test_a_corrected_p_decides(word: stats.VerdictWord, p: float, corrected: str) -> None:
    verdict = stats.with_p(stats.Parity(word, Estimate(0.1, 0.0, 0.2, 10), 0.001), p)
    assert (verdict.word, verdict.p) == (corrected, p)


@pytest.mark.parametrize("statistic", ["iqm", "mean"])
@pytest.mark.parametrize("seeds", [1, 2, 10, 30])
def test_estimates_of_a_curve_are_those_of_its_points(
    seeds: int, statistic: stats.Statistic
) -> None:
    curves = np.random.default_rng(seeds).normal(size=(seeds, 3))
    curves[:, 1] = 2.3
    found = stats.estimate_curve(curves, statistic, resamples=500)
    for column, point in zip(curves.T, np.transpose(found), strict=True):
        one = stats.estimate(column, statistic, resamples=500)
        np.testing.assert_allclose(point, (one.value, one.low, one.high), rtol=1e-12)
    curves[0, 0] = np.nan
    with pytest.raises(ValueError, match="not finite"):
        stats.estimate_curve(curves, statistic, resamples=500)


@pytest.mark.parametrize(
    ("failures", "n", "bound"),
    [(0, 10, 0.2589), (0, 30, 0.0950), (0, 60, 0.0487), (2, 30, 0.1953), (10, 10, 1.0)],
)
def test_failure_bound_by_hand(failures: int, n: int, bound: float) -> None:
    """None of n: 1 - 0.05^(1/n)."""
    assert stats.failure_bound(failures, n) == pytest.approx(bound, abs=1e-4)


def test_parity_interval_has_the_width_of_two_samples() -> None:
    """Unpaired, and expanded as the smaller of both needs: 2.37 is Student's of 7 degrees."""
    sides = scores(0.5, 0.1, 8, 0), scores(0.5, 0.2, 60, 1)
    for ours, theirs in (sides, sides[::-1]):
        d = parity(ours, theirs, 0, 1).difference
        deviation = math.sqrt(8 / 7) * math.sqrt(0.01 / 8 + 0.04 / 60)
        assert (d.high - d.low) / 2 == pytest.approx(2.37 * deviation, rel=0.08)


@pytest.mark.filterwarnings("error")
def test_parity_of_constants() -> None:
    assert parity([500] * 10, [500] * 10, 22.1, 500) == stats.Parity(
        "saturated", Estimate(0.0, 0.0, 0.0, 10), 1.0
    )
    assert parity([20] * 30, [20] * 30, 20, 500, imputed=True).word == "undecided"
    assert parity([400] * 10, [500] * 10, 22.1, 500).word == "worse"
    assert parity([400] * 10, [500] * 10, random=600, reference=400).word == "better"  # less is


PAIR = [1.0, 2.0]


@pytest.mark.parametrize(
    ("call", "error"),
    [
        *(
            (lambda bad=bad: estimate(bad), "not finite|shape")
            for bad in ([1.0, np.nan], [np.inf, 1.0], [], [[1.0], [np.nan]], np.eye(3))
        ),
        (lambda: estimate(PAIR, "median"), "median"),  # type: ignore[arg-type]
        (lambda: stats.area_under_curve([0], [1]), "two evaluations"),
        (lambda: stats.area_under_curve([0, 0], [1, 2]), "increase"),
        (lambda: stats.area_under_curve([0, 1], [1, 2, 3]), "need timesteps"),
        (lambda: stats.normalise(1.0, 5.0, 5.0), "nothing to scale"),
        (lambda: parity([1.0], PAIR, 0, 1), "two seeds"),
        (lambda: parity([1.0, np.nan], PAIR, 0, 1), "not finite"),
        (lambda: parity(PAIR, PAIR, 0, 1, margin=0), "margin"),
        (lambda: stats.paired_parity(PAIR, [1.0, 2.0, 3.0], 0, 1), "got 2 and 3"),
        *((lambda bad=bad: stats.holm(bad), "in \\[0, 1\\]") for bad in ([-0.1], [1.1], [[0.1]])),
    ],
)
def test_what_cannot_be_used_is_refused(call: Callable[[], object], error: str) -> None:
    with pytest.raises(ValueError, match=error):
        call()


# ---------------------------------------------------------------- figures


def run_frame(seeds: int, budget: int = 100_000, episodes: int = 32) -> pd.DataFrame:
    """A run that learns CartPole: 21 evaluations, then the final one, then training rows."""
    steps = np.linspace(0, budget, 21).astype(int)
    rng = np.random.default_rng(seeds)
    rows = []
    for seed in range(seeds):
        for step in steps:
            level = 500 * step / budget * rng.uniform(0.9, 1.0)
            rows.append((seed, step, level, "greedy", episodes))
        if episodes == 0:  # the exact evaluation at the end repeats the last one
            rows.append(rows[-1])
        else:
            rows.append((seed, budget, -1e6, "greedy", 100))
        rows.append((seed, budget, -1e6, "sampled", 100))
        rows.append((seed, budget, np.nan, "train", 0))
    return pd.DataFrame(rows, columns=["seed", "timestep", "return_mean", "mode", "episodes"])


def curves_svg(path: Path) -> str:
    """The figure of a run, which waits for no import of seaborn; its words are text."""
    plots.learning_curves({"ppo": run_frame(3)}, path, title="x")
    return path.read_text()


def test_svg_is_deterministic_and_says_n(tmp_path: Path) -> None:
    groups = {"manyseeds ppo": run_frame(5), "sb3 ppo": run_frame(1, budget=100_352)}
    paths = [tmp_path / "a.svg", tmp_path / "b.svg"]
    for path in paths:
        plots.learning_curves(groups, path, title="CartPole-v1", threshold=475)
    assert paths[0].read_bytes() == paths[1].read_bytes()
    text = paths[0].read_text()
    for words in ("manyseeds ppo, n = 5", "sb3 ppo, n = 1", "reward threshold 475", "100k"):
        assert f">{words}</text>" in text
    assert plots.IQM_LEGEND in text
    assert "<dc:date>" not in text
    plots.learning_curves(groups, tmp_path / "a.png", title="ppo")
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    assert len(list(tmp_path.iterdir())) == 3  # nothing left beside


def test_the_curve_is_the_evaluations_and_nothing_else() -> None:
    timesteps, returns = plots.curve_of("ppo", run_frame(4))
    assert timesteps.shape == (21,)
    assert returns.shape == (4, 21)
    assert returns.min() == 0.0
    exact_steps, _ = plots.curve_of("q_learning", run_frame(4, episodes=0))
    assert len(exact_steps) == 21


def test_lines_have_their_names_at_their_ends(tmp_path: Path) -> None:
    """With n where it differs, with their markers, and apart where lines end close to each other; a
    legend has long ones, and those of lines that end at one point."""

    def drawn(n: int, other: str = "dqn $", below: float = 15.0) -> str:
        line = plots.iqm_line("ppo", run_frame(3))
        lower = line._replace(y=np.asarray(line.y) - below, low=None, high=None, n=n)
        panels = {f"env {i}": {"ppo": line, other: lower} for i in range(2)}
        look = {"threshold": 475, "log_x": True, "log_y": ["env 1"]}
        plots.lines(panels, tmp_path / "x.svg", xlabel="x", ylabel="y", legend="IQM", **look)
        return (tmp_path / "x.svg").read_text()

    def count(text: str, *words: str) -> list[int]:
        return [text.count(f">{word}</text>") for word in words]

    text = drawn(3)
    words = ("ppo", "dqn $", "reward threshold 475", "IQM, n = 3", "env 0", "env 1")
    assert count(text, *words) == [2, 2, 2, 1, 1, 1]
    heights = re.findall(r' y="([\d.]+)"[^>]*>(?:ppo|dqn \$)</text>', text)
    assert abs(float(heights[0]) - float(heights[1])) > plots.NAME_SIZE
    assert "mathdefault" not in text
    for color in plots.FIRST_COLORS[:2]:  # markers outside the axes, which are not cut at them
        assert len(re.findall(rf'<g>\s*<use [^>]*style="fill: {color}', text)) == 2
    assert count(drawn(3, below=0.0), "ppo", "dqn $", "IQM, n = 3") == [1, 1, 1]
    assert count(drawn(5), "ppo, n = 3", "dqn $, n = 5", "IQM") == [2, 2, 1]
    long = "an algorithm with a long name"
    assert count(drawn(5, long), "ppo, n = 3", f"{long}, n = 5", "IQM") == [1, 1, 1]


def test_the_name_of_a_threshold_is_where_no_curve_passes(tmp_path: Path) -> None:
    """And there once where all panels have one y axis."""
    early, late = (
        plots.Line(range(21), np.interp(range(21), x, (0, 500))) for x in ((0, 3), (18, 20))
    )
    look = {"xlabel": "", "ylabel": "", "threshold": 475}

    def names(panels: dict[str, dict[str, plots.Line]], share_y: bool) -> list[str]:
        plots.lines(panels, tmp_path / "x.svg", share_y=share_y, **look)
        text = (tmp_path / "x.svg").read_text()
        return re.findall(r"text-anchor: (\w+)[^>]*>reward threshold 475<", text)

    panels = {"early": {"ppo": early}, "late": {"ppo": late}}
    assert names({"early": {"ppo": early}}, share_y=False) == ["end"]
    assert len(names(panels, share_y=True)) == 1


def test_early_learning_is_what_a_linear_axis_hides() -> None:
    x = np.arange(0, 101, 10)
    fast, slow, flat = (plots.Line(x, np.interp(x, (0, end), (0.0, 1.0))) for end in (12, 60, 1e9))
    flat = flat._replace(y=np.zeros(11))
    assert plots.early_end([fast, flat]) == 20
    assert plots.early_end([fast, slow]) is None
    assert plots.early_end([flat]) is None
    shown = plots.beginning(plots.Line(x, x, x, None, 3), 25)
    assert [*np.asarray(shown.x)] == [*np.asarray(shown.low)] == [0, 10, 20, 30]
    assert (shown.high, shown.n) == (None, 3)
    assert [*np.asarray(plots.beginning(fast, 20).x)] == [0, 10, 20]


def size_of(path: Path) -> tuple[float, float]:
    """Inches of an SVG."""
    width, height = re.findall(r'(?:width|height)="([\d.]+)pt"', path.read_text())[:2]
    return float(width) / 72, float(height) / 72


def test_a_legend_takes_no_room_from_the_panels(tmp_path: Path) -> None:
    """Nor do empty places: four panels are two by two."""
    line = plots.Line([0, 1], [0, 1])
    heights = []
    for n in (2, 12):
        panels = {str(i): {f"a long name, the {k}th": line for k in range(n)} for i in range(4)}
        plots.lines(panels, tmp_path / "x.svg", xlabel="", ylabel="")
        width, height = size_of(tmp_path / "x.svg")
        assert width == pytest.approx(2 * 3.3 + 0.4, abs=0.01)
        heights.append(height)
    assert heights[1] > heights[0] + 0.5
    assert plots.with_n("PPO", 30, 60, 90) == "PPO, n = 30 to 90"
    assert plots.with_n("PPO", 60, 0, 30) == "PPO, n = 30 or 60"


def test_a_line_at_the_top_is_not_cut(tmp_path: Path) -> None:
    """Where the axis begins at a floor, which keeps matplotlib from leaving room above."""
    from matplotlib.figure import Figure

    for scale in ("linear", "log"):
        axes = Figure().subplots()
        axes.plot([0, 1], [20.0, 20.0])
        axes.set_ylim(bottom=0.5)
        axes.set_yscale(scale)
        plots._leave_room(axes)
        low, high = axes.get_ylim()
        assert low == 0.5
        assert high > 20.5


def test_wide_boards_stand_below_one_another(tmp_path: Path) -> None:
    layout = SimpleNamespace(panels={"": [[*range(8)]] * 2}, actions=("L",), marks={})
    zeros = np.zeros(8)
    board = plots.Board("x", zeros, zeros.astype(int), zeros.astype(bool))
    plots.boards([board] * 3, layout, tmp_path / "x.svg")
    assert size_of(tmp_path / "x.svg")[0] <= plots.WIDEST


def test_lines_are_told_apart_without_colour() -> None:
    looks = plots._looks([f"name {i}" for i in range(30)])
    assert len({(look["marker"], str(look["linestyle"])) for look in looks.values()}) == 30
    by_color: dict[str, list[str]] = {}
    for look in looks.values():
        by_color.setdefault(look["color"], []).append(look["marker"])
    assert all(len({*markers}) == len(markers) for markers in by_color.values())


def test_a_name_keeps_its_colour_in_every_figure() -> None:
    """Whatever else is drawn; no two of eight are alike."""
    first = [f"name {i}" for i in range(8)]
    looks = plots._looks(first)
    assert len({str(look["color"]) for look in looks.values()}) == 8
    for names in ([*first, "other"], first[:2], first[:1]):
        assert plots._looks(names).items() <= (plots._looks([*first, "other"]) | looks).items()
    assert plots._palette()[:3] == [*plots.FIRST_COLORS]


def luminance(color: str) -> float:
    """Relative luminance, as WCAG defines it."""
    parts = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [x / 12.92 if x <= 0.04045 else ((x + 0.055) / 1.055) ** 2.4 for x in parts]
    return sum(w * x for w, x in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def test_figures_are_legible_on_white_and_on_dark_pages(tmp_path: Path) -> None:
    for page in ("#ffffff", "#0d1117"):
        low, high = sorted((luminance(page), luminance(plots.INK)))
        assert (high + 0.05) / (low + 0.05) > 4
    text = curves_svg(tmp_path / "a.svg")
    (patch,) = re.findall(r'<g id="patch_1">\s*<path[^>]*>', text)
    assert "fill: none" in patch  # the background of the figure
    assert f"fill: {plots.INK}" in text
    assert "black" not in text


def test_actions_that_tie_stand_side_by_side(tmp_path: Path) -> None:
    layout = SimpleNamespace(panels={"": [[0, 1]]}, actions=("L", "D", "R", "U"), marks={})
    values, ends = np.array([0.5, 1.0]), np.array([False, False])
    best = np.array([[False, True, True, False], [True, False, False, False]])
    board = plots.Board("x", values, np.array([1, 0]), ends)
    for shown, words in ((board, {"D", "L"}), (board._replace(best=best), {"DR", "L"})):
        plots.boards([shown], layout, tmp_path / "a.svg")
        text = (tmp_path / "a.svg").read_text()
        assert {x for x in ("D", "L", "DR") if f">{x}</text>" in text} == words


def test_figures_leave_global_state_alone(tmp_path: Path) -> None:
    import matplotlib
    import matplotlib.pyplot as plt

    with matplotlib.rc_context({"font.size": 33, "svg.hashsalt": "theirs"}):
        before = dict(matplotlib.rcParams)
        drawn = curves_svg(tmp_path / "a.svg")
        assert dict(matplotlib.rcParams) == before
    assert plt.get_fignums() == []
    assert curves_svg(tmp_path / "b.svg") == drawn


GOOD = run_frame(3)


@pytest.mark.parametrize(
    ("groups", "name", "error"),
    [
        ({"ppo": GOOD}, "a.jpg", r"\.svg or \.png"),
        ({}, "a.svg", "no curves"),
        ({"ppo": GOOD[GOOD["mode"] == "train"]}, "a.svg", "ppo: no greedy"),
        ({"ppo": GOOD.iloc[1:]}, "a.svg", r"ppo: missing .* seeds \[0\]"),
        ({"ppo": pd.concat([GOOD, GOOD.assign(return_mean=1)])}, "a.svg", "two returns"),
    ],
)
def test_plots_refuse_what_they_cannot_draw(
    groups: dict[str, pd.DataFrame], name: str, error: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=error):
        plots.learning_curves(groups, tmp_path / name, title="x")
    assert list(tmp_path.iterdir()) == []
