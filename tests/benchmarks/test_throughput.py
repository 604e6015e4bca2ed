"""The timing of the algorithms: what is measured, and how the tables are made of it."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from manyseeds.benchmarks.baselines import sb3_baseline
from manyseeds.benchmarks.experiments import catalog
from manyseeds.benchmarks.measurements import throughput
from manyseeds.benchmarks.measurements.measure import measuring, run_pinned
from manyseeds.benchmarks.measurements.throughput import OURS, SUBJECTS, Config, summarize
from manyseeds.cli import from_identity
from manyseeds.digest import ROOT
from manyseeds.errors import UsageError
from tests.benchmarks.conftest import Output


def measured(repeat: int, system: str, seeds: int, speed: float) -> dict[str, Any]:
    return {
        "repeat": repeat,
        "system": system,
        "seeds": seeds,
        "timesteps_per_s": speed,
        "warm_up_s": 1.0 + repeat,
        "memory": 2**20,
        "fresh_s": 2.0 + repeat,
    }


def test_ratios_are_taken_within_a_repeat() -> None:
    """The second repeat met a machine half as fast: the ratio is 4 all the same."""
    repeats = [(0, 1.0), (1, 0.5), (2, 2.0)]
    runs = [measured(r, "sb3", 1, 100 * f) for r, f in repeats]
    runs += [measured(r, OURS, 10, 400 * f) for r, f in repeats]
    sb3, ours = summarize(sorted(runs, key=lambda m: m["repeat"]))
    assert (sb3["ratio"], ours["ratio"], ours["ratio_low"], ours["ratio_high"]) == (1, 4, 4, 4)
    assert (ours["timesteps_per_s"], ours["repeats"]) == (400, 3)
    assert (ours["warm_up_s"], ours["fresh_s"]) == (2, 3)


def test_cells() -> None:
    tables = Config(algos=("q_learning",)).cells()
    assert tables == [("q_learning", OURS, S) for S in (1, 10, 100, 1000)]
    ppo = Config(algos=("ppo",), seeds=(3,)).cells()
    assert ppo[:2] == [("ppo", "sb3", 1), ("ppo", OURS, 3)]
    for flags in ({"algos": ("pppo",)}, {"core": 99_999}):
        with pytest.raises(UsageError, match="must be among"):
            Config(**flags)  # type: ignore[arg-type]


@pytest.mark.slow
def test_a_measurement_leaves_those_of_other_algorithms(tmp_path: Path) -> None:
    former = json.loads((ROOT / "results/throughput.json").read_text())
    (tmp_path / "throughput.json").write_text(json.dumps(former))
    command = ["--algos", "q_learning", "--seeds", "1", "2", "--repeats", "1", "--results"]
    done = subprocess.run(
        [sys.executable, ROOT / "benchmarks/throughput.py", *command, tmp_path],
        check=True,
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    stored = json.loads((tmp_path / "throughput.json").read_text())
    assert stored["ppo"] == former["ppo"]
    one, two = stored["q_learning"]["rows"]
    assert (one["seeds"], two["seeds"], one["ratio"]) == (1, 2, 1.0)
    assert min(one["timesteps_per_s"], two["timesteps_per_s"]) > 100
    timesteps = SUBJECTS["q_learning"].settings["total_timesteps"]
    run = stored["q_learning"]["measurements"][1]
    assert run["timesteps"] == 2 * timesteps
    assert "Q-learning on FrozenLake-v1" in done.stdout


def test_sb3_is_timed_at_the_same_settings(capsys: Output) -> None:
    settings = throughput.timed_settings("a2c")
    case = throughput.case("a2c", "sb3", 1, "cpu")
    assert case.command[1:4] == [str(throughput.SB3_BASELINE), "--measure", "a2c"]
    ours = catalog.module("algos", "a2c").Config(**settings)
    assert json.loads(case.command[4]) == json.loads(json.dumps(dataclasses.asdict(ours)))
    assert from_identity(type(ours), json.loads(case.command[4])) == ours
    assert settings["env"] == "CartPole-v1"
    short = json.dumps(settings | {"total_timesteps": 80})
    sb3_baseline.main(measuring("", "a2c", short)[2:])  # prints its figures
    assert json.loads(capsys.readouterr().out)["timesteps"] == 80


@pytest.mark.parametrize(
    ("code", "says"),
    [
        ("import sys; sys.exit('error: --x 1: is not allowed')", "failed: error: --x"),
        ("import sys; print('error: --x 1: must be 2', file=sys.stderr); sys.exit(2)", "--x 1: mu"),
        ("1 / 0", "failed: Traceback"),
    ],
)
def test_a_measuring_process_that_fails_is_one_line(code: str, says: str) -> None:
    with pytest.raises(UsageError) as failed:
        run_pinned([sys.executable, "-c", code], None)
    assert says in str(failed.value)
