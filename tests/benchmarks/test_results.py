"""A run of the store as arrays over its seeds, on numbers that can be worked out by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from manyseeds import envs
from manyseeds.benchmarks.store.results import Result
from manyseeds.worth import worth_of


def result(final: list[float], curves: list[list[float]], diverged: dict[int, int]) -> Result:
    """A result on CartPole-v1 (threshold 475), evaluated at 0, 100, 200, ..."""
    folder: Any = None  # nothing is read
    rows = [(s, 100 * k, x, 32) for s, curve in enumerate(curves) for k, x in enumerate(curve)]
    return Result(
        run=folder,
        spec=envs.make("CartPole-v1").spec,
        seeds=list(range(len(final))),
        final=np.array(final),
        sampled=np.array(final),
        episode_std=np.zeros(len(final)),
        final_episodes=100,
        worths={s: worth_of(x, diverged.get(s)) for s, x in enumerate(final)},
        curve=pd.DataFrame(rows, columns=["seed", "timestep", "return_mean", "episodes"]),
        timesteps=300,
    )


def test_a_score_at_the_threshold_is_no_failure() -> None:
    """Below it, or diverged."""
    got = result([475.0, 474.99, 475.01, 500.0], [[0.0, 0.0]] * 4, {3: 128})
    assert got.failures == [1, 3]


def test_the_final_score_of_verdicts_is_the_mean_of_the_last_fifth() -> None:
    """Of 21 evaluations five, also where each is late by a little."""
    got = result([9.0], [[float(k) for k in range(21)]], {})
    assert got.scores("final").tolist() == [18.0]
    assert got.scores("auc").tolist() == [10.0]
    assert result([9.0], [[1.0, 2.0, 3.0]], {}).scores("final").tolist() == [3.0]


def test_a_score_at_the_threshold_reaches_it() -> None:
    curves = [[0, 475.0, 500], [0, 474.99, 475.01], [0, 475.0, 474.99]]
    got = result([0.0] * 3, curves, {})
    np.testing.assert_array_equal(got.reached, [100, 200, np.nan])
    assert got.threshold_texts() == ("150", "2 of 3")
    assert result([0.0], curves[2:], {}).threshold_texts() == ("never", "0 of 1")
