"""A curve from elsewhere beside runs: `compare.py RUN FILE.csv`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from manyseeds.benchmarks import compare
from manyseeds.benchmarks.store.imported import imported_line
from tests.benchmarks.conftest import Output, Refusal
from tests.benchmarks.test_report import around, plant


def test_a_csv_file_is_one_more_line(tmp_path: Path, capsys: Output) -> None:
    run, out = plant(tmp_path / "r", "ppo", around(480.0)).path, tmp_path / "x.svg"
    line = tmp_path / "theirs.csv"
    line.write_text("timestep,value,seed,other\n0,20,0,a\n100000,300,0,b\n0,30,1,\n100000,400,1,\n")
    compare.main([str(run), str(line), "--out", str(out)])
    assert "PPO" in capsys.readouterr().out
    assert "theirs.csv" in out.read_text()
    curve = imported_line(line)
    assert curve.groupby("timestep")["return_mean"].mean().to_dict() == {0: 25, 100_000: 350}
    line.write_text("timestep,value\n0,20\n100,300\n")
    assert set(imported_line(line)["seed"]) == {0}


WANDB = """"step","a/0 - return","a/0 - return__MIN","a/0 - return__MAX","a/1 - return"
"0","20","20","20","30"
"100","","","","90"
"120","40","40","40",""
"""
TENSORBOARD = "Wall time,Step,Value\n1795442000.5,0,20\n1795442001.5,100,300\n"


def test_what_trackers_export_is_read_as_it_is(tmp_path: Path) -> None:
    file = tmp_path / "theirs.csv"
    file.write_text(WANDB)
    curve = imported_line(file)
    rows = list(zip(curve["seed"], curve["timestep"], curve["return_mean"], strict=True))
    assert rows == [(0, 0, 20), (0, 120, 40), (1, 0, 30), (1, 100, 90)]
    file.write_text('"epoch","a - x","a - _step"\n"0","20","7"\n"100","30","8"\n')
    assert set(imported_line(file)["seed"]) == {0}  # W&B's own steps are no seed
    file.write_text(TENSORBOARD)
    curve = imported_line(file)
    rows = list(zip(curve["seed"], curve["timestep"], curve["return_mean"], strict=True))
    assert rows == [(0, 0, 20), (0, 100, 300)]


MONITOR = """#{"t_start": 1614619328.331583, "env_id": "CartPole-v1"}
r,l,t
10.0,2,0.78
20.0,2,0.85
7.0,196,0.9
"""
CLEANRL = """"global_step","a - charts/episodic_return","b - charts/episodic_return"
"2","10",""
"2","20",""
"4","","5"
"200","7","9"
"""


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (MONITOR, {0: {2: 10.0, 4: 20.0, 200: 7.0}}),
        (CLEANRL, {0: {2: 15.0, 4: 14.9, 200: 7.0}, 1: {2: 5.0, 4: 5.0, 200: 9.0}}),
        ("Wall time,Step,Value\n1.5,2,10\n1.6,2,20\n2.0,200,7\n", {0: {2: 15.0, 200: 7.0}}),
    ],
)
def test_episodes_of_a_training_are_averaged_over_windows(
    content: str, expected: dict[int, dict[int, float]], tmp_path: Path
) -> None:
    """Of 2 timesteps: hundredths of 200. Between two windows with episodes there is a line."""
    file = tmp_path / "theirs.csv"
    file.write_text(content)
    curve = imported_line(file)
    found = {
        seed: dict(zip(x["timestep"], x["return_mean"], strict=True))
        for seed, x in curve.groupby("seed")
    }
    assert found == {seed: pytest.approx(x, abs=0.05) for seed, x in expected.items()}


@pytest.mark.parametrize(
    ("arrays", "expected"),
    [
        ({"results": [[1.0, 3.0], [5.0, 7.0]], "ep_lengths": [[9, 9], [9, 9]]}, [[2.0, 6.0]]),
        ({"returns": [1.0, 2.0]}, [[1.0, 2.0]]),
        ({"returns": [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]}, [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]),
        ({"returns": [[[1.0, 3.0], [5.0, 7.0]]]}, [[2.0, 6.0]]),
    ],
)
def test_arrays_of_evaluations(arrays: Any, expected: list[list[float]], tmp_path: Path) -> None:
    file = tmp_path / "evaluations.npz"
    np.savez(file, timesteps=[0, 100], **arrays)
    curve = imported_line(file)
    assert (
        curve.pivot(index="seed", columns="timestep", values="return_mean").values.tolist()
        == expected
    )


@pytest.mark.parametrize(
    ("arrays", "said"),
    [
        ({"returns": [1.0]}, "has the arrays returns; compare.py reads"),
        ({"timesteps": [0], "rewards": [1.0]}, "has the arrays rewards, timesteps; compare.py"),
        ({"timesteps": [0, 1], "returns": [[1.0]]}, "has timesteps [2], returns [1, 1]; must be"),
        ({"timesteps": [0], "returns": np.array([None])}, "ValueError: Object arrays"),
        ({"timesteps": [0], "returns": np.zeros(2**23 + 1)}, "holds more than"),
        (None, "BadZipFile"),
    ],
)
def test_bad_arrays_are_one_line(arrays: Any, said: str, tmp_path: Path, refusal: Refusal) -> None:
    file = tmp_path / "x.npz"
    file.write_bytes(b"PK") if arrays is None else np.savez_compressed(file, **arrays)
    run = plant(tmp_path / "r", "ppo", around(480.0)).path
    assert said in refusal(compare.main, run, file, "--out", tmp_path / "x.svg")


def test_no_link_is_followed(tmp_path: Path, refusal: Refusal) -> None:
    (tmp_path / "real.csv").write_text(MONITOR)
    (tmp_path / "x.csv").symlink_to(tmp_path / "real.csv")
    run = plant(tmp_path / "r", "ppo", around(480.0)).path
    words = (run, tmp_path / "x.csv", "--out", tmp_path / "x.svg")
    assert "x.csv: is a link" in refusal(compare.main, *words)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("Step,value\n0,1\n", "has other columns; compare.py reads"),
        ('"Step","a - x"\n"0","NaN"\n', "no greedy evaluations"),
        ("\xff\xfe", "theirs.csv: "),
        ("timestep,value\n0,many\n", "many"),
        ("timestep,value\n", "no greedy evaluations"),
        ("timestep,value\n0,1\n0,2\n", "two returns at the same timestep"),
        ("timestep,value\n0,inf\n", "non-finite"),
        ('"Relative Time (Wall)","a - x"\n"0","1"\n', "is over Relative Time (Wall)"),
        ('"Step","a - x","a - y"\n"0","1","2"\n', "has several metrics: x, y"),
        ("", "No columns"),
        ('timestep,value\n"0,1\n', "EOF"),
        (None, "No such file"),
    ],
)
def test_bad_files_are_one_line(
    content: str | None, said: str, tmp_path: Path, refusal: Refusal
) -> None:
    file = tmp_path / "theirs.csv"
    if content is not None:
        file.write_bytes(content.encode("latin-1"))
    run = plant(tmp_path / "r", "ppo", around(480.0)).path
    assert said in refusal(compare.main, run, file, "--out", tmp_path / "x.svg")
    assert not (tmp_path / "x.svg").exists()
