"""The tabular sections of the report, from small real runs."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from manyseeds import record
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
from manyseeds.benchmarks.chapters.blocks import Block, Figure, Outcome, text_of, walk
from manyseeds.benchmarks.store.stored import open_runs
from manyseeds.cli import parse
from manyseeds.record import read_json, seal
from manyseeds.runs import control, planning, prediction
from manyseeds.stats import Estimate
from manyseeds.writing import write_json
from tests.benchmarks.conftest import Output, Patch, tables_of
from tests.benchmarks.test_report import check_links, generated, plant


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
    return tmp_path / "results"


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
    def section(write: Any, kind: str) -> list[Block]:
        assert not list(write([]))
        return list(write([run for run in open_runs(results) if run.kind == kind]))

    planned = section(tabular.planning, "planning")
    for row, gamma in zip(tables_of(planned)["planning"], (0.5, 0.9), strict=True):
        assert float(row[1]) == gamma
        assert float(row[6]) <= 1e-8
        assert float(row[7]) == pytest.approx(gamma**13, abs=1e-4)  # 14 steps to the goal
        assert float(row[8]) == 1.0
    predicted = section(tabular.prediction, "prediction")
    rows = tables_of(predicted)["prediction"]
    assert sorted(row[1] for row in rows) == ["TD(0)", "every-visit MC", "first-visit MC"]
    for row in rows:
        error, bias, std = float(row[5].split()[0]), float(row[6]), float(row[7])
        # The mean of roots is at most the root of the mean square, bias^2 + std^2.
        assert 0 < error <= np.hypot(bias, std) + 2e-3
    smallest = min(rows, key=lambda row: float(row[5].split()[0]))
    assert isinstance(predicted[0], Outcome)
    assert f"smallest with {smallest[1]}, " in text_of(predicted[0].text)
    cliff = section(tabular.cliff, "control")
    online, greedy = last_returns(results)
    found = tables_of(cliff)["cliff"]
    assert [row[0] for row in found] == ["Q-learning", "SARSA", "Expected SARSA"]
    for name, n, late, final in found:
        assert n == "2"
        assert float(late.split()[0]) == pytest.approx(online[name], abs=0.051)
        assert float(final.split()[0]) == pytest.approx(greedy[name], abs=0.051)
    blocks = walk([*planned, *predicted, *cliff])
    assert [block.name for block in blocks if isinstance(block, Figure)] == [
        "value_iteration",
        "policy_iteration-Gridworld-v0",
        "value_iteration-Gridworld-v0",
        "prediction-errors-RandomWalk-v0",
        "prediction-bias-variance-RandomWalk-v0",
        "cliff",
    ]


@pytest.mark.parametrize(
    ("sarsa_online", "q_greedy", "word"),
    [(-20.0, -13.0, "holds"), (-60.0, -13.0, "in part"), (-60.0, -20.0, "does not hold")],
)
def test_the_claim_of_the_cliff(sarsa_online: float, q_greedy: float, word: str) -> None:
    def end(value: float) -> Estimate:
        return Estimate(value, value - 1, value + 1, 30)

    returns = {
        "Q-learning": (end(-50.0), end(q_greedy)),
        "SARSA": (end(sarsa_online), end(-17.0)),
    }
    figure = Figure("cliff", "", "lines", {})
    assert tabular.cliff_claim(returns, figure, ()).verdict == word


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


def test_own_plans_stand_beside_published_plans_alone(tmp_path: Path, monkeypatch: Patch) -> None:
    """Not beside runs of other kinds, whose page links the verdicts."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(record, "PUBLISHED", tmp_path / "results")
    own = tmp_path / "results/local/runs/Gridworld-v0"
    own.mkdir(parents=True)
    command(policy_iteration, planning.main, policy_iteration.solve)
    plant(tmp_path / "results", "sarsa", {0: 8.0}, env=policy_iteration.Config().env)
    shutil.move("results/runs/Gridworld-v0/policy_iteration", own / "policy_iteration")
    report.main([])
    written = check_links(tmp_path / "results/local")
    assert [path.name for path in sorted(written)] == ["README.md", "planning.md"]


def test_a_prediction_that_diverged_is_shown(
    tmp_path: Path, monkeypatch: Patch, capsys: Output
) -> None:
    """With its seeds that diverged, and beside one that did not; only the latter is drawn."""
    monkeypatch.chdir(tmp_path)
    words = "--seeds", "4", "--trace-decay", "1", "--n-steps", "1", "--total-episodes", "20"
    for alpha in ("0.1", "1"):
        args = *words, "--learning-rate", alpha
        command(td_prediction, prediction.main, td_prediction.train, *args)
    capsys.readouterr()
    blocks = list(tabular.prediction(open_runs(Path("results"))))
    assert "left out" not in capsys.readouterr().out
    fine, diverged = tables_of(blocks)["prediction"]
    assert [row[2] for row in (fine, diverged)] == ["0.1", "1"]
    assert "diverged" not in "".join(fine)
    assert re.fullmatch(r"infinite, [1-4] of 4 seeds diverged", diverged[5])
    assert diverged[6:] == ["", "", ""]
    drawn = next(block for block in blocks if isinstance(block, Figure))
    assert list(drawn.data["panels"]["TD(1)"]) == ["alpha 0.1"]


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
    blocks = list(tabular.planning(open_runs(Path("results"))))
    assert "boards" not in [block.kind for block in blocks if isinstance(block, Figure)]
    assert f"left out: {part.parent}" in capsys.readouterr().out
