"""What a seed is worth, and what it counts as in a mean over seeds."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from manyseeds.worth import (
    Worth,
    counted,
    final_values,
    mean_or_failure,
    unscored_text,
    worth_of,
    worths_of,
)

OK, NONE = worth_of(7.0), worth_of(None)


@pytest.mark.parametrize(
    ("score", "diverged", "expected"),
    [
        (0.0, None, Worth(0.0)),
        (-1e30, math.nan, Worth(-1e30)),
        (None, None, Worth()),
        (math.nan, None, Worth()),
        (-math.inf, None, Worth()),
        (1e39, None, Worth()),  # infinite in float32
        (500.0, 64, Worth(None, 64, 500.0)),
        (500.0, 0, Worth(None, 0, 500.0)),
        (math.nan, 64.0, Worth(None, 64)),
    ],
)
def test_a_score_diverged_or_unknown(score: Any, diverged: Any, expected: Worth) -> None:
    assert worth_of(score, diverged) == expected
    assert worth_of(score, diverged).unknown == (expected == Worth())


def test_control_and_language_runs_alike() -> None:
    scores = {"greedy": {"per_seed": {"3": 9.0, "4": 8.0, "5": None}}}
    control = {"seeds": [3, 4, 5], "final": scores, "diverged": {"4": 128}}
    assert worths_of(control) == {3: Worth(9.0), 4: Worth(None, 128, 8.0), 5: Worth()}
    language = {"seeds": [2], "headline": "pass@1", "final": {"pass@1": 0.5, "length": 3.0}}
    assert worths_of({**language, "diverged": None}) == {2: Worth(0.5)}
    assert worths_of({**language, "diverged": 96}) == {2: Worth(None, 96, 0.5)}
    assert worths_of({**language, "final": {"pass@1": None}}) == {2: Worth()}


@pytest.mark.parametrize(
    ("name", "of_diverged"),
    [
        *((x, 0.0) for x in ("pass@1", "pass@16", "cons@16", "accuracy", "greedy", "format")),
        *((x, math.nan) for x in ("length", "entropy", "kl", "truncated", "all_failed", "loss")),
    ],
)
def test_successes_of_a_diverged_language_run_are_none_and_all_else_is_unknown(
    name: str, of_diverged: float
) -> None:
    run = {"seeds": [0], "headline": "pass@1", "final": {name: 0.75}}
    runs = [run, {**run, "seeds": [1], "diverged": 96}, {**run, "final": {}}]
    np.testing.assert_array_equal(final_values(runs, name), [0.75, of_diverged, math.nan])


@pytest.mark.parametrize(
    ("worths", "random", "expected", "text"),
    [
        ([OK, worth_of(500.0, 1)], 2.0, [7.0, 2.0], "1 diverged"),
        ([OK, worth_of(-3.0, 1)], 2.0, [7.0, -3.0], "1 diverged"),  # lower than at random
        ([OK, worth_of(None, 1), NONE], 2.0, [7.0, 2.0, math.nan], "1 diverged, 1 unknown"),
        ([OK, worth_of(9.0, 1), worth_of(None, 1)], None, [7.0, 7.0, 7.0], "2 diverged"),
        ([worth_of(9.0, 1), worth_of(8.0, 1)], None, [math.nan] * 2, "2 diverged"),
        ([OK, *[worth_of(200.0, 1)] * 9], None, [7.0] * 10, "9 diverged"),
        ([worth_of(None, 1), NONE], None, [math.nan] * 2, "1 diverged, 1 unknown"),
        ([OK], None, [7.0], ""),
    ],
)
def test_a_diverged_seed_counts_as_a_failure(
    worths: list[Worth], random: float | None, expected: list[float], text: str
) -> None:
    np.testing.assert_array_equal(counted(worths, random), expected)
    assert unscored_text(worths) == text
    assert mean_or_failure(worths) == (-math.inf if text else 7.0)
