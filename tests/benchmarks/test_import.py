"""A curve from elsewhere beside runs: `compare.py RUN FILE.csv`."""

from __future__ import annotations

from pathlib import Path

import pytest

from manyseeds.benchmarks import compare
from tests.benchmarks.conftest import Output, Refusal
from tests.benchmarks.test_report import around, plant


def test_a_csv_file_is_one_more_line(tmp_path: Path, capsys: Output) -> None:
    run, out = plant(tmp_path / "r", "ppo", around(480.0)).path, tmp_path / "x.svg"
    line = tmp_path / "theirs.csv"
    line.write_text("timestep,value,seed,other\n0,20,0,a\n100000,300,0,b\n0,30,1,\n100000,400,1,\n")
    compare.main([str(run), str(line), "--out", str(out)])
    assert "PPO" in capsys.readouterr().out
    assert "theirs.csv" in out.read_text()
    curve = compare.imported_line(line)
    assert curve.groupby("timestep")["return_mean"].mean().to_dict() == {0: 25, 100_000: 350}
    line.write_text("timestep,value\n0,20\n100,300\n")
    assert set(compare.imported_line(line)["seed"]) == {0}


WANDB = """"step","a/0 - return","a/0 - return__MIN","a/0 - return__MAX","a/1 - return"
"0","20","20","20","30"
"100","","","","90"
"120","40","40","40",""
"""
TENSORBOARD = "Wall time,Step,Value\n1795442000.5,0,20\n1795442001.5,100,300\n"


def test_what_trackers_export_is_read_as_it_is(tmp_path: Path) -> None:
    file = tmp_path / "theirs.csv"
    file.write_text(WANDB)
    curve = compare.imported_line(file)
    rows = list(zip(curve["seed"], curve["timestep"], curve["return_mean"], strict=True))
    assert rows == [(0, 0, 20), (0, 120, 40), (1, 0, 30), (1, 100, 90)]
    file.write_text('"epoch","a - x","a - _step"\n"0","20","7"\n"100","30","8"\n')
    assert set(compare.imported_line(file)["seed"]) == {0}  # W&B's own steps are no seed
    file.write_text(TENSORBOARD)
    curve = compare.imported_line(file)
    rows = list(zip(curve["seed"], curve["timestep"], curve["return_mean"], strict=True))
    assert rows == [(0, 0, 20), (0, 100, 300)]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("Step,value\n0,1\n", "has no columns timestep and value"),
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
