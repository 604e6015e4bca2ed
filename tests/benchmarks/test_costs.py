"""What missing seeds cost, from finished ones whose times are known."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from manyseeds.benchmarks.chapters import evidence, missing
from manyseeds.benchmarks.chapters.blocks import Table, Text, cells_of, text_of
from manyseeds.benchmarks.experiments.suite import Cell, language
from manyseeds.benchmarks.store import comparison
from manyseeds.benchmarks.store.comparison import Missing, missing_cells, pairs
from manyseeds.benchmarks.store.costs import cost_of, misses, seed_seconds
from manyseeds.benchmarks.store.results import load_result
from manyseeds.benchmarks.store.stored import StoredRun, open_runs
from manyseeds.benchmarks.store.whole import Store, read_store
from manyseeds.cli import identity
from tests.benchmarks.conftest import Patch, tables_of
from tests.benchmarks.test_report import around, plant

PPO = Cell("ppo", "CartPole-v1", 30)  # 100,000 timesteps
GRPO = language("grpo", "addition", 30)  # 51,200 samples

Part = tuple[Sequence[int], float, float]  # seeds, seconds of learning, and in all


def finished(cell: Cell, *parts: Part, threads: int = 1, **wrong: Any) -> StoredRun:
    """A run of a cell. wrong: what its summaries have in the place of a time."""
    config = identity(cell.config())
    head: Mapping[str, Any] = {
        "kind": "control" if cell.package == "algos" else "language",
        "env" if cell.package == "algos" else "task": cell.env,
        "config": config,
        "execution": {"device": "cpu", "threads": threads},
    }
    summaries = [
        {"learn_seconds": learning, "total_seconds": total} for _, learning, total in parts
    ]
    return StoredRun(
        path=cell.folder("results").path,
        parts=[],
        configs=[{**head, "seeds": [*seeds]} for seeds, *_ in parts],
        summaries=[{**summary, **wrong} for summary in summaries],
    )


def seconds_of(cell: Cell, *runs: StoredRun) -> float:
    found = cost_of(cell, runs)
    assert found
    return found.seconds


def text_and_row(runs: Sequence[StoredRun], *cells: Missing) -> tuple[str, list[list[str]]]:
    """The paragraphs and the rows of the page."""
    blocks = [*missing.page(Store(Path("results"), [*runs], [], [], [], [*cells]))]
    texts = [text_of(tuple(block)) for block in blocks if isinstance(block, Text)]
    return "\n".join(texts), tables_of(blocks)["missing"]


def test_two_finished_seeds_give_the_cost_of_the_others(monkeypatch: Patch) -> None:
    """At the speed of the faster one: 28 seeds of 90 s are 42 minutes, or 0.7 hours."""
    monkeypatch.setattr(comparison, "SUITES", {"a suite": (PPO,)})
    runs = [finished(PPO, ([0], 120.0, 150.0), ([1], 60.0, 90.0))]
    cells = missing_cells(Path("results"), runs)
    text, rows = text_and_row(runs, *cells)
    budget = "100,000 timesteps"
    assert rows == [["ppo on CartPole-v1, 30 seeds", "2-29", budget, "42", "its finished seeds"]]
    assert "In all, 0.7 core-hours, 0.0 of them for language models." in text
    assert "Initial models" not in text


def test_the_seeds_of_a_part_share_its_time() -> None:
    """The part whose seeds took the least each counts, not the one that took the least."""
    assert seconds_of(PPO, finished(PPO, (range(4), 60.0, 90.0), ([4], 20.0, 30.0))) == 22.5


def test_a_part_that_made_initial_models_is_not_the_cheapest() -> None:
    """The speed of learning says nothing of the rest."""
    assert seconds_of(GRPO, finished(GRPO, ([0], 24.0, 49.0), ([1], 25.0, 30.0))) == 30


def test_learning_is_proportional_to_the_budget_and_evaluation_is_not() -> None:
    longer = Cell("ppo", "CartPole-v1", 30, settings={"total_timesteps": 300_000})
    assert seconds_of(longer, finished(PPO, ([0], 60.0, 90.0))) == 3 * 60 + 30
    shorter = language("grpo", "addition", 30, {"total_samples": 25_600})
    assert seconds_of(shorter, finished(GRPO, ([0], 60.0, 90.0))) == 60 / 2 + 30


def test_the_nearest_run_gives_the_estimate() -> None:
    """Its own, then fewest other settings, then any environment; of equally near ones the median.
    Other algorithms, sources and budgets of another kind give none."""
    gamma, both = {"gamma": 0.9}, {"gamma": 0.9, "gae_lambda": 0.5}
    near, far = (Cell("ppo", "CartPole-v1", 30, settings=x) for x in (gamma, both))
    same = {k: tuple(x) if isinstance(x, list) else x for k, x in identity(PPO.config()).items()}
    del same["env"]
    elsewhere = Cell("ppo", "Acrobot-v1", 30, settings=same)
    runs = [
        finished(Cell("a2c", "CartPole-v1", 30), ([0], 1.0, 1.0)),
        finished(Cell("ppo", "CartPole-v1", 30, "sb3"), ([0], 1.0, 1.0)),
        finished(elsewhere, ([0], 2.0, 2.0)),
        finished(far, ([0], 3.0, 3.0)),
        finished(Cell("ppo", "CartPole-v1", 30, settings={"gamma": 0.8}), ([0], 5.0, 5.0)),
        finished(near, ([0], 4.0, 4.0)),
        finished(Cell("ppo", "CartPole-v1", 30, settings={"gamma": 0.7}), ([0], 9.0, 9.0)),
        finished(PPO, ([0], 6.0, 6.0)),
    ]
    expected = [None, None, 2.0, 3.0, 5.0, 4.0, 5.0, 6.0]
    for n, seconds in enumerate(expected, start=1):
        found = cost_of(PPO, runs[:n])
        assert (found and found.seconds) == seconds
    rows = [text_and_row(runs[:n], Missing(PPO, [0]))[1][0] for n in (2, 3, 5, 8)]
    assert [row[3:] for row in rows] == [
        ["unknown", ""],
        ["0", "Acrobot-v1, other settings"],
        ["0", "other settings"],
        ["0", "its finished seeds"],
    ]
    assert cost_of(GRPO, [finished(Cell("grpo", "CartPole-v1", 30), ([0], 1.0, 1.0))]) is None


@pytest.mark.parametrize("wrong", [None, "x", math.nan, math.inf, -1.0])
@pytest.mark.parametrize("name", ["learn_seconds", "total_seconds"])
def test_times_that_are_none_give_no_estimate(name: str, wrong: Any) -> None:
    assert cost_of(GRPO, [finished(GRPO, ([0], 60.0, 90.0), **{name: wrong})]) is None


@pytest.mark.parametrize("wrong", [None, "x", math.nan, math.inf, -5, 0, 1e-300])
def test_budgets_that_are_none_give_no_estimate(wrong: Any) -> None:
    run = finished(GRPO, ([0], 60.0, 90.0))
    wrong_config = {**run.config, "total_samples": wrong}
    wrong_run = replace(run, configs=[{**run.configs[0], "config": wrong_config}])
    assert seed_seconds(run, wrong_config) is None
    assert cost_of(GRPO, [wrong_run]) is None
    assert not misses([run, wrong_run])


def test_only_a_single_thread_has_core_seconds() -> None:
    assert cost_of(PPO, [finished(PPO, ([0], 60.0, 90.0), threads=2)]) is None


def test_the_sum_says_what_is_of_language_models_and_what_is_unknown() -> None:
    runs = [finished(PPO, ([0], 60.0, 90.0)), finished(GRPO, ([0], 300.0, 360.0))]
    unknown = Missing(Cell("a2c", "CartPole-v1", 30), [0, 1])
    cells = [Missing(PPO, [*range(80)]), Missing(GRPO, [*range(10)]), unknown]
    text, rows = text_and_row(runs, *cells)
    assert [row[3] for row in rows] == ["120", "60", "unknown"]
    assert "In all, 3.0 core-hours, 1.0 of them for language models, without 1 cell whose" in text


def test_initial_models_are_named_where_language_models_are_missing() -> None:
    for cell, named in ((GRPO, True), (PPO, False)):
        assert ("Initial models of language" in text_and_row([], Missing(cell, [0]))[0]) is named


def test_the_page_says_how_far_off_estimates_are() -> None:
    """Each of two runs of 4 and 5 s from the other is 0.8 and 1.25 times the real cost, and a third
    of 10 s from the lower one 0.4 times; those of another algorithm have no other."""
    cells = [Cell("ppo", "CartPole-v1", 30, settings={"gamma": x}) for x in (0.7, 0.8, 0.9)]
    runs = [finished(x, ([0], s, s)) for x, s in zip(cells, (4.0, 5.0, 10.0), strict=True)]
    alone = finished(Cell("a2c", "CartPole-v1", 30), ([0], 1.0, 1.0))
    assert misses([*runs, alone]) == [1.25, 0.8, 0.4]
    text, _ = text_and_row([*runs, alone], Missing(PPO, [0]))
    found = "those of 3 finished runs, each from the others, are 0.80 times the real cost in the "
    assert f"{found}median, and 80% of them 0.48 to 1.16 times." in text
    assert "rough" not in text_and_row([runs[0], alone], Missing(PPO, [0]))[0]


def test_undecided_verdicts_cost_what_missing_seeds_do(tmp_path: Path, monkeypatch: Patch) -> None:
    """30 of SB3's seeds take 150 s together, so that 120 more take 10 minutes."""
    plant(tmp_path, "ppo", around(480.0, 30))
    plant(tmp_path, "sb3-ppo", around(479.0, 30), speed=1000)
    runs = open_runs(tmp_path)
    found = pairs([load_result(run) for run in runs])
    monkeypatch.setattr(evidence, "seeds_to_decide", lambda *sides: 150)
    rows = tables_of(evidence.undecided(found))["verdicts-undecided"]
    assert rows
    assert {row[4] for row in rows} == {"10"}
    assert seconds_of(Cell("ppo", "CartPole-v1", 30, "sb3"), *runs) == 5.0


def test_the_seeds_of_the_next_look_are_missing(tmp_path: Path, monkeypatch: Patch) -> None:
    """Thirty alike seeds a side are undecided: the rule asks for sixty of SB3's, its suite not."""
    monkeypatch.setattr(comparison, "SUITES", {"a suite": (PPO, replace(PPO, source="sb3"))})
    for algo in ("ppo", "sb3-ppo"):
        plant(tmp_path, algo, around(490.0, 30))
    (table,) = (x for x in missing.page(read_store(tmp_path)) if isinstance(x, Table))
    ((cell, seeds, *_),) = cells_of(table)
    assert (cell, seeds) == ("sb3-ppo on CartPole-v1, 60 seeds (next look)", "30-59")
