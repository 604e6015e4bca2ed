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
from manyseeds.benchmarks.chapters import speed
from manyseeds.benchmarks.chapters.blocks import Outcome, Strong, Table, cells_of, text_of, walk
from manyseeds.benchmarks.experiments import catalog, jax_peer, rltools_peer
from manyseeds.benchmarks.measurements import throughput
from manyseeds.benchmarks.measurements.measure import measuring, run_pinned
from manyseeds.benchmarks.measurements.throughput import OURS, SUBJECTS, Config, summarize
from manyseeds.cli import from_identity
from manyseeds.digest import ROOT
from manyseeds.errors import UsageError
from tests.benchmarks.conftest import Output, Patch


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


def test_cells(monkeypatch: Patch) -> None:
    tables = Config(algos=("q_learning",)).cells()
    assert tables == [("q_learning", OURS, S) for S in (1, 10, 100, 1000)]
    ppo = Config(algos=("ppo",), seeds=(3,)).cells()
    assert ppo[:2] == [("ppo", "sb3", 1), ("ppo", OURS, 3)]
    for peer, peers in ((True, ["sb3", OURS, "rejax", "rltools"]), (False, ["sb3", OURS])):
        monkeypatch.setattr(jax_peer, "found", lambda device, peer=peer: peer)
        monkeypatch.setattr(rltools_peer, "found", lambda peer=peer: peer)
        config = Config(algos=("ppo-Pendulum-v1",), seeds=(3,))
        assert [system for _, system, _ in config.cells()] == peers
        assert [S for _, _, S in config.cells()] == [1, 3, 3, 1][: len(peers)]
        assert config.missing() == ([] if peer else ["rejax", "rltools"])
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


# ---- RLtools, and the page --------------------------------------------------------------------


def test_all_systems_have_the_sizes_of_ours() -> None:
    """4 environments x 128 steps, minibatches of 128, 4 epochs, 64-64 tanh, a constant rate."""
    command = throughput.case("ppo-Pendulum-v1", "rltools", 1, "cpu").command
    assert command[0] == str(rltools_peer.PYTHON)
    network = {"HIDDEN_DIM": 64, "NUM_LAYERS": 3, "ACTIVATION_FUNCTION": "TANH"}
    assert json.loads(command[-1]) == {
        **{f"{name}_{key}": x for name in ("ACTOR", "CRITIC") for key, x in network.items()},
        **{"N_ENVIRONMENTS": 4, "ON_POLICY_RUNNER_STEPS_PER_ENV": 128, "BATCH_SIZE": 128},
        **{"N_EPOCHS": 4, "GAMMA": 0.99, "LAMBDA": 0.95, "EPSILON_CLIP": 0.2},
        **{"ACTION_ENTROPY_COEFFICIENT": 0.0, "NORMALIZE_ADVANTAGE": True},
        **{"INITIAL_ACTION_STD": 1.0, "OPTIMIZER_ALPHA": 2.5e-4, "TOTAL_STEP_LIMIT": 102_400},
    }
    settings = throughput.timed_settings("ppo-Pendulum-v1")
    assert settings == {"total_timesteps": 102_400, "anneal_lr": False, "env": "Pendulum-v1"}
    command = throughput.case("ppo-Pendulum-v1", "rejax", 10, "cpu").command
    assert command[3:] == ["ppo", "10", "102400", "Pendulum-v1", "[]"]
    assert throughput.timed_settings("sarsa").keys() > {"final_learning_rate"}  # of the preset


@pytest.mark.slow
@pytest.mark.skipif(not rltools_peer.found(), reason="no .venv-rltools")
def test_rltools_trains() -> None:
    """It compiles, and tells the seconds of that apart from those of learning."""
    config = catalog.module("algos", "ppo").Config(env="Pendulum-v1", total_timesteps=2600)
    figures = run_pinned(rltools_peer.command(config), None)
    assert figures["timesteps"] == 5 * 512  # whole updates
    assert figures["learn_s"] < 5 < figures["compile_s"] < figures["fresh_s"] < figures["wall_s"]
    assert abs(figures["warm_up_s"] - figures["compile_s"]) < 5
    versions = rltools_peer.versions()
    assert versions["rltools"] == "2.2.1"
    assert {"g++", "clang++"} & versions.keys()


def stored_rows(*rows: tuple[str, int, float]) -> dict[str, Any]:
    """What throughput.json has of an algorithm; rows: system, seeds, timesteps/s."""
    sb3 = rows[0][2]
    return {
        "rows": [
            {"system": system, "seeds": seeds, "timesteps_per_s": x, "ratio": x / sb3}
            for system, seeds, x in rows
        ]
    }


def test_the_fastest_stands_out_with_one_seed_first() -> None:
    both = ("sb3", 1, 5000.0), (OURS, 1, 93_000.0), (OURS, 10, 235_000.0)
    rejax = ("rejax", 1, 150_000.0), ("rejax", 10, 200_000.0)
    stored = {
        "ppo": stored_rows(*both, *rejax),
        "ppo-Pendulum-v1": stored_rows(*both, ("rltools", 1, 230_000.0)),
        "a2c": stored_rows(("sb3", 1, 10_000.0), (OURS, 10, 94_000.0)),
        "sarsa": stored_rows((OURS, 1, 5000.0)),  # which SB3 has not
    }
    table = speed.fastest_table(stored, "cpu")
    assert [text_of(x) for x in table.columns] == ["seeds", "", OURS, "SB3", "rejax", "RLtools"]
    pendulum = "PPO on Pendulum-v1"
    assert cells_of(table) == [
        ["1", "PPO on CartPole-v1", "93,000", "5,000", "150,000", ""],
        ["1", pendulum, "93,000", "5,000", "", "230,000"],
        ["10", "PPO on CartPole-v1", "235,000", "5,000", "200,000", ""],
        ["10", pendulum, "235,000", "5,000", "", "230,000"],
        ["10", "A2C on CartPole-v1", "94,000", "10,000", "", ""],
    ]
    bold = [[x.text for x in row if isinstance(x, Strong)] for row in table.rows]
    assert bold == [["150,000"], ["230,000"], ["235,000"], ["235,000"], ["94,000"]]
    one, ten = speed.summary(stored, 1), speed.summary(stored)
    assert "of one seed on CartPole-v1" in one
    assert one.endswith("at a time: PPO 19 (rejax 30). On Pendulum-v1: PPO 19 (RLtools 46).")
    assert ten.endswith(": PPO 47 (rejax 40), A2C 9.4. On Pendulum-v1: PPO 47 (RLtools 46).")
    assert speed.summary({"sarsa": stored["sarsa"]}) == ""
    assert speed.lines_of(stored)[pendulum]["RLtools"].y == (230_000.0, 230_000.0)


def test_the_page_begins_with_one_seed() -> None:
    blocks = [*speed.page(ROOT / "results")]
    first, second = (text_of(x.text) for x in walk(blocks[:3]) if isinstance(x, Outcome))
    assert "of one seed" in first
    assert "of 10 seeds" in second
    (table, *_) = (x for x in walk(blocks) if isinstance(x, Table))
    assert table.name == "speed-seeds"
    assert cells_of(table)[0][:2] == ["1", "PPO on CartPole-v1"]
