"""A run of the store as arrays over its seeds, on numbers that can be worked out by hand."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from manyseeds import envs, stats
from manyseeds.benchmarks.store.results import Result, load_result
from manyseeds.benchmarks.store.stored import StoredRun, open_runs
from manyseeds.digest import ROOT
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


def test_the_late_score_is_the_mean_of_the_last_fifth() -> None:
    """Of 21 evaluations five, also where each is late by a little. No verdict compares final
    scores."""
    got = result([9.0], [[float(k) for k in range(21)]], {})
    assert got.scores("late").tolist() == [18.0]
    assert got.scores("auc").tolist() == [10.0]
    assert result([9.0], [[1.0, 2.0, 3.0]], {}).scores("late").tolist() == [3.0]
    with pytest.raises(KeyError):
        got.scores("final")


def test_intervals_of_ours_contain_the_luck_of_the_starts() -> None:
    """On Pendulum the starts decide more than the seeds; SB3's runs do not know them."""
    runs = {run.path.parts[-2]: run for run in open_runs(ROOT / "results") if is_plain(run)}
    ours, theirs = load_result(runs["trpo"]), load_result(runs["sb3-trpo"])
    for measure in ("final", "auc", "sampled"):
        values = getattr(ours, measure)
        starts = ours.by_start(measure)
        assert starts is not None
        assert starts.shape == (len(ours.seeds), 32 if measure == "auc" else 100)
        np.testing.assert_allclose(starts.mean(1), values, rtol=1e-4)
        alone, both = stats.estimate(values, "mean"), ours.estimate(measure, "mean")
        assert both.value == alone.value
        assert both.high - both.low > 3 * (alone.high - alone.low)
        assert theirs.by_start(measure) is None
        assert theirs.estimate(measure) == stats.estimate(getattr(theirs, measure))


def is_plain(run: StoredRun) -> bool:
    return run.path.parts[-3] == "Pendulum-v1" and run.config["total_timesteps"] == 100_000


def test_a_score_at_the_threshold_reaches_it() -> None:
    curves = [[0, 475.0, 500], [0, 474.99, 475.01], [0, 475.0, 474.99]]
    got = result([0.0] * 3, curves, {})
    np.testing.assert_array_equal(got.reached, [100, 200, np.nan])
    assert got.threshold_texts() == ("150", "2 of 3")
    assert result([0.0], curves[2:], {}).threshold_texts() == ("never", "0 of 1")


def test_core_seconds_are_those_of_the_fastest_part_of_one_thread() -> None:
    """Neither a GPU's, nor those of two threads, nor of a part that does not say how long it
    took."""
    curves = [[0, 475.0, 500], [0, 0, 475.0], [0, 475.0, 474.99]]

    def timed(*parts: tuple[str, int, float | None]) -> Result:
        run: Any = SimpleNamespace(
            configs=[
                {
                    "execution": {"device": device, "threads": threads},
                    "machine": {"cpu": f"{device} {speed}", "cores": 2},
                }
                for device, threads, speed in parts
            ],
            summaries=[{"timesteps_per_second": s} if s else {} for *_, s in parts],
        )
        return replace(result([0.0] * 3, curves, {}), run=run)

    others: list[tuple[str, int, float | None]] = [("cuda", 1, 1e6), ("cpu", 2, 1e6)]
    got = timed(*others, ("cpu", 1, None), ("cpu", 1, 20.0), ("cpu", 1, 50.0), ("cpu", 1, 40.0))
    assert got.fastest == (50.0, "cpu 50.0, 2 cores")
    np.testing.assert_array_equal(got.core_seconds, [2, 4, np.nan])
    assert got.core_seconds_text() == "3.0"
    unknown = timed(*others, ("cpu", 1, None))
    assert unknown.fastest is None
    assert unknown.core_seconds_text() == "-"
    assert timed(("cpu", 1, 1.0)).only([2]).core_seconds_text() == "-"
