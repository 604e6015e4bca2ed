"""The tabular sections of the report, from small real runs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from manyseeds.algos import (
    monte_carlo,
    policy_iteration,
    q_learning,
    sarsa,
    td_prediction,
    value_iteration,
)
from manyseeds.benchmarks import report
from manyseeds.benchmarks.chapters import tabular
from manyseeds.benchmarks.store.stored import open_runs
from manyseeds.cli import parse
from manyseeds.record import read_json, seal
from manyseeds.runs import control, planning, prediction
from manyseeds.writing import write_json
from tests.benchmarks.conftest import Output, Patch
from tests.benchmarks.test_report import check_links, generated

def command(module: Any, main: Any, function: Any, *args: str) -> None:
    config = parse(module.Config, module.PRESETS, "", [*args, "--quiet", "--results", "results"])
    main(config, function, module.PRESETS)


@pytest.fixture
def results(tmp_path: Path, monkeypatch: Patch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(control, "POINTS", 2)
    for gamma in ("0.5", "0.9"):
        for module in (policy_iteration, value_iteration):
            command(module, planning.main, module.solve, "--gamma", gamma)
    short = "--seeds", "5", "--total-episodes", "3", "--learning-rate", "0.1"
    for visits in ("first", "every"):
        command(monte_carlo, prediction.main, monte_carlo.train, "--visits", visits, *short)
    command(td_prediction, prediction.main, td_prediction.train, "--n-steps", "1", *short)
    for module, extra in ((q_learning, ()), (sarsa, ()), (sarsa, ("--expected",))):
        cliff = "--env", "CliffWalking-v1", "--seeds", "2", "--total-timesteps", "2000", *extra
        command(module, control.main, module.train, *cliff)
    (tmp_path / "results/plots").mkdir()
    return tmp_path / "results"


def cells(section: str, first: str) -> list[list[str]]:
    """The rows of a table whose first cell begins with a word."""
    lines = [line for line in section.splitlines() if line.startswith(f"| {first}")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def last_returns(results: Path) -> tuple[dict[str, float], dict[str, float]]:
    """Beside the cliff, means over seeds: online, and greedy at the end.

    Online are the last four windows that hold a measurement: all blocks of so short a training.
    """
    online, greedy = {}, {}
    for folder in (results / "runs" / "CliffWalking-v1").glob("*/*/seeds-*"):
        config = read_json(folder / "config.json")
        algo, expected = config["algo"], config["config"].get("expected")
        name = "Q-learning" if algo == "q_learning" else "Expected " * bool(expected) + "SARSA"
        curve = pd.read_parquet(folder / "curve.parquet")
        train = curve[curve["mode"] == "train"]
        assert set(train["timestep"]) <= {500, 1000, 1500, 2000}
        online[name] = train.groupby("seed")["return_mean"].mean().mean()
        final = read_json(folder / "summary.json")["final"]["greedy"]["per_seed"]
        greedy[name] = float(np.mean(list(final.values())))
    return online, greedy


def test_sections_hold_what_the_runs_found(results: Path) -> None:
    def section(write: Any, kind: str) -> str:
        assert write([], results) == ""
        runs = [run for run in open_runs(results) if run.kind == kind]
        return str(write(runs, results))

    planning = section(tabular.planning_section, "planning")
    for row, gamma in zip(cells(planning, "Gridworld"), (0.5, 0.9), strict=True):
        assert float(row[1]) == gamma
        assert float(row[6]) <= 1e-8
        assert float(row[7]) == pytest.approx(gamma**13, abs=1e-4)  # 14 steps to the goal
        assert float(row[8]) == 1.0
    predicted = cells(section(tabular.prediction_section, "prediction"), "RandomWalk")
    assert sorted(row[1] for row in predicted) == ["TD(0)", "every-visit MC", "first-visit MC"]
    for row in predicted:
        error, bias, std = float(row[5].split()[0]), float(row[6]), float(row[7])
        # The mean of roots is at most the root of the mean square, bias^2 + std^2.
        assert 0 < error <= np.hypot(bias, std) + 2e-3
    cliff = section(tabular.cliff_section, "control")
    online, greedy = last_returns(results)
    for name in ("Q-learning", "SARSA", "Expected SARSA"):
        (row,) = (row for row in cells(cliff, name) if row[0] == name)
        assert row[1] == "2"
        assert float(row[2].split()[0]) == pytest.approx(online[name], abs=0.051)
        assert float(row[3].split()[0]) == pytest.approx(greedy[name], abs=0.051)
    for text in (planning, cliff):
        assert "plots/" in text
    drawn = {path.name for path in (results / "plots").iterdir()}
    assert {"value_iteration.svg", "cliff.svg", "prediction-errors-RandomWalk-v0.svg"} <= drawn
    assert "policy_iteration-Gridworld-v0.svg" in drawn


@pytest.mark.parametrize("module", [policy_iteration, value_iteration, monte_carlo, td_prediction])
def test_store_of_one_algorithm_alone(
    module: Any, tmp_path: Path, monkeypatch: Patch, capsys: Output
) -> None:
    monkeypatch.chdir(tmp_path)
    if hasattr(module, "solve"):
        command(module, planning.main, module.solve)
    else:
        command(module, prediction.main, module.train, "--seeds", "2", "--total-episodes", "3")
    report.main(["--results", "results", "--note", "a test"])
    page = "planning.md" if hasattr(module, "solve") else "prediction.md"
    assert f"]({page})" in Path("results/README.md").read_text()
    assert "left out" not in capsys.readouterr().out
    assert check_links(Path("results")) == generated(Path("results"))


def test_a_prediction_that_diverged_is_shown(
    tmp_path: Path, monkeypatch: Patch, capsys: Output
) -> None:
    """With its seeds that diverged, and beside one that did not; only the latter is drawn."""
    monkeypatch.chdir(tmp_path)
    words = "--seeds", "4", "--trace-decay", "1", "--n-steps", "1", "--total-episodes", "20"
    for alpha in ("0.1", "1"):
        args = *words, "--learning-rate", alpha
        command(td_prediction, prediction.main, td_prediction.train, *args)
    drawn = []
    monkeypatch.setattr(tabular.plots, "lines", lambda panels, *_, **__: drawn.append(panels))
    capsys.readouterr()
    section = tabular.prediction_section(open_runs(Path("results")), tmp_path)
    assert "left out" not in capsys.readouterr().out
    fine, diverged = cells(section, "RandomWalk")
    assert [row[2] for row in (fine, diverged)] == ["0.1", "1"]
    assert "diverged" not in "".join(fine)
    assert re.fullmatch(r"infinite, [1-4] of 4 seeds diverged", diverged[5])
    assert diverged[6:] == ["", "", ""]
    assert list(drawn[0]["TD(1)"]) == ["alpha 0.1"]


def test_plan_of_a_single_sweep_is_left_out(
    tmp_path: Path, monkeypatch: Patch, capsys: Output
) -> None:
    """Value iteration records V = 0 as sweep 0; a record that ends there has no picture."""
    monkeypatch.chdir(tmp_path)
    command(value_iteration, planning.main, value_iteration.solve)
    (part,) = Path("results/runs").glob("*/*/*/plan")
    replay = read_json(part / "sweeps.json")
    write_json(part / "sweeps.json", {**replay, "sweeps": replay["sweeps"][:1]})
    seal(part)
    capsys.readouterr()
    report.main(["--results", "results", "--note", "a test"])
    assert f"left out: {part.parent}" in capsys.readouterr().out
