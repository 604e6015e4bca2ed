"""A run of the store as arrays over its seeds, on numbers that can be worked out by hand."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from manyseeds import envs, stats
from manyseeds.benchmarks.chapters.claims import early_parity
from manyseeds.benchmarks.experiments.verdicts import MARGINS
from manyseeds.benchmarks.store.results import Result, load_result, parity_of
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


def test_scores_by_start_are_of_all_episodes() -> None:
    """Of two seeds, evaluated at 0 and 100 in 2 episodes each; the last ones have 3."""
    rows = pd.DataFrame(
        [
            (s, t, E, k, 10.0 * s + t + k, "greedy")
            for s in (0, 1)
            for t, E in ((0, 2), (100, 2), (200, 3))
            for k in range(E)
        ],
        columns=["seed", "timestep", "episodes", "episode", "return", "mode"],
    )

    def by_start(rows: pd.DataFrame, measure: str) -> Any:
        found = result([0.0, 0.0], [[0.0, 0.0]] * 2, {})
        found = replace(found, final_episodes=3, curve=found.curve.assign(episodes=2))
        # The scores are the means over the starts, so that these are left as they are.
        of_seeds = {"final": [201.0, 211.0], "sampled": [201.0, 211.0], "auc": [50.5, 60.5]}
        object.__setattr__(found, measure, np.array(of_seeds[measure]))
        found.__dict__["episodes"] = rows
        return found.by_start(measure)

    np.testing.assert_array_equal(by_start(rows, "final"), [[200, 201, 202], [210, 211, 212]])
    np.testing.assert_array_equal(by_start(rows, "auc"), [[50, 51], [60, 61]])
    assert by_start(rows, "sampled") is None  # no episode is
    for at in range(len(rows)):
        measure = "final" if rows["episodes"][at] == 3 else "auc"
        assert by_start(rows.drop(at), measure) is None
    unlike = rows.assign(episode=rows["episode"].replace(1, 7))
    assert by_start(unlike, "final") is by_start(unlike, "auc") is None
    assert by_start(rows.sort_values(["seed", "episode"]), "auc") is None
    others = rows[rows["seed"] == 1]
    assert by_start(others, "final") is by_start(others, "auc") is None


def test_single_tests_have_the_margin_of_the_environment() -> None:
    one, other = (result([400.0] * 12, [[x, x + k] for k in range(12)], {}) for x in (100.0, 101.0))
    for verdict, measure in (
        (parity_of(one, other, "auc"), "auc"),
        (parity_of(one, other, "late"), "late"),
        (early_parity(one, other), "auc"),
    ):
        assert verdict
        assert verdict.margin == MARGINS[measure]["CartPole-v1"]
    assert MARGINS["auc"]["CartPole-v1"] != MARGINS["late"]["CartPole-v1"]


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
            summaries=[
                {"timesteps_per_second" if s else "samples_per_second": s or "x"} for *_, s in parts
            ],
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
