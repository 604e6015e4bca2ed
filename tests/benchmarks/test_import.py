"""A curve from elsewhere beside runs: `compare.py RUN FILE.csv`."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import compare
from tests.benchmarks.test_report import around, plant


def test_a_csv_file_is_one_more_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
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


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("Step,value\n0,1\n", "has no column timestep"),
        ("timestep,value\n0,many\n", "many"),
        ("timestep,value\n", "no greedy evaluations"),
        ("timestep,value\n0,1\n0,2\n", "two returns at the same timestep"),
        ("timestep,value\n0,inf\n", "non-finite"),
        ("", "No columns"),
        ('timestep,value\n"0,1\n', "EOF"),
        (None, "No such file"),
    ],
)
def test_bad_files_are_one_line(
    content: str | None, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "theirs.csv"
    if content is not None:
        file.write_text(content)
    run = plant(tmp_path / "r", "ppo", around(480.0)).path
    with pytest.raises(SystemExit) as stop:
        compare.main([str(run), str(file), "--out", str(tmp_path / "x.svg")])
    error = capsys.readouterr().err
    assert stop.value.code == 2
    assert said in error
    assert error.count("\n") == 1
    assert not (tmp_path / "x.svg").exists()
