"""The pipeline of DeepSeek-R1: its commands, its scores, and going on after an interruption."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pandas as pd
import pytest

from manyseeds.benchmarks.measurements import llm_pipeline
from manyseeds.benchmarks.measurements.llm_pipeline import MEASURES
from manyseeds.cli import parse
from manyseeds.digest import ROOT
from manyseeds.errors import UsageError
from manyseeds.llm_track import generate, grpo, sft
from manyseeds.record import RunFolder, read_json, run_paths
from manyseeds.untrusted import check
from manyseeds.writing import parquet_bytes, write_bytes

STAGES = [
    *("base", "cold start", "RL", "rejection SFT", "RL again", "RL alone"),
    *("small base", "distillation", "RL on small base", "RL on small base for longer"),
]
TRAINED = [x for x in STAGES if x not in ("base", "small base")]
CURVE = {"samples": [0, 100], "pass@1": [0.0, 0.5]}


def flag(command: Sequence[str], name: str) -> str:
    return command[list(command).index(name) + 1]


class Track:
    """Stands for the commands of the track; the n-th training ends with a pass@1 of n / 10."""

    def __init__(self) -> None:
        self.commands: list[list[str]] = []

    def __call__(self, command: Sequence[str]) -> None:
        self.commands.append(list(command))
        if command[0] == "llm_track/generate.py":
            Path(flag(command, "--out")).write_text("{}\n" * 3)
            return
        algo = Path(command[0]).stem
        seed = int(flag(command, "--first-seed"))
        runs = Path(flag(command, "--results")) / "runs" / flag(command, "--task") / algo
        part = runs / flag(command, "--name") / f"seeds-{seed:03d}-{seed:03d}"
        if part.exists():
            return
        part.mkdir(parents=True)
        done = len(list(Path(flag(command, "--results")).rglob("summary.json"))) + 1
        ends = {"initial": 0.0, "final": done / 10}
        summary = {when: dict.fromkeys(MEASURES, x) for when, x in ends.items()}
        (part / "summary.json").write_text(json.dumps({"samples": 100, **summary}))
        write_bytes(part / "curve.parquet", parquet_bytes(pd.DataFrame(CURVE)))


@pytest.fixture
def track(monkeypatch: pytest.MonkeyPatch) -> Track:
    found = Track()
    monkeypatch.setattr(llm_pipeline, "run", found)
    return found


def command_line(tmp_path: Path, *flags: str) -> list[str]:
    return ["--results", str(tmp_path / "results"), "--work", str(tmp_path / "work"), *flags]


def test_every_stage_begins_with_what_it_says(tmp_path: Path, track: Track) -> None:
    llm_pipeline.main(command_line(tmp_path, "--seeds", "1", "--first-seed", "3"))
    stored = json.loads((tmp_path / "results" / "llm_pipeline.json").read_text())
    assert [row["stage"] for row in stored["rows"]] == STAGES
    assert {row["seed"] for row in stored["rows"]} == {3}
    by_stage = {row["stage"]: row for row in stored["rows"]}
    assert by_stage["base"]["pass@1"] == by_stage["small base"]["pass@1"] == 0
    # 25,600 of RL, and four of each of 2,048 prompts.
    assert [by_stage[name]["samples"] for name in STAGES] == [
        *(0, 0, 25_600, 33_792, 59_392, 59_392),
        *(0, 33_792, 33_792, 4 * 33_792),
    ]
    final = [by_stage[name]["pass@1"] for name in TRAINED]
    assert final == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8])
    assert [name for name in STAGES if by_stage[name]["curve"]] == TRAINED
    assert by_stage["RL"]["curve"] == [{"samples": x, "pass@1": x / 200} for x in (0.0, 100.0)]
    solved = {row["stage"]: row["solved"] for row in stored["rows"] if "solved" in row}
    assert solved == {"rejection SFT": 3, "distillation": 3}
    check(stored, llm_pipeline.STORED, "")

    runs = {flag(c, "--name"): c for c in track.commands if "generate" not in c[0]}
    (collected,) = {tuple(c) for c in track.commands if "generate" in c[0]}
    (work,) = (tmp_path / "work").glob("*/runs/addition")

    def model(algo: str, name: str) -> str:
        return str(work / algo / name / "seeds-003-003" / "model")

    assert flag(runs["cold-start-3"], "--model") == "tiny-base"
    assert "--demonstrations" not in runs["cold-start-3"]
    assert flag(runs["rl-3"], "--model") == model("sft", "cold-start-3")
    assert flag(collected, "--model") == model("grpo", "rl-3")
    assert flag(collected, "--keep") == "right"
    assert flag(collected, "--split") == "train"
    for name, base in (("rejection-sft-3", "tiny-base"), ("distillation-3", "micro-base-3200")):
        assert flag(runs[name], "--model") == base
        assert flag(runs[name], "--demonstrations") == flag(collected, "--out")
    assert flag(runs["rl-again-3"], "--model") == model("sft", "rejection-sft-3")
    assert flag(runs["rl-alone-3"], "--model") == model("grpo", "rl-3")
    of_small = "rl-on-small-base-3", "rl-on-small-base-for-longer-3", "distillation-3"
    assert {flag(runs[name], "--model") for name in of_small} == {"micro-base-3200"}
    before = {"rl-again": "rejection SFT", "rl-alone": "RL"}
    for name in ("rl", "rl-again", "rl-alone", *(x.removesuffix("-3") for x in of_small[:2])):
        drawn = by_stage[name.replace("-", " ").replace("rl", "RL")]["samples"]
        drawn -= by_stage[before[name]]["samples"] if name in before else 0
        assert int(flag(runs[f"{name}-3"], "--total-samples")) == drawn
    own = {name for name, c in runs.items() if "--initial-per-seed" in c}
    assert own == {"cold-start-3", "rejection-sft-3", *of_small}


def test_the_scripts_take_all_of_its_commands(tmp_path: Path, track: Track) -> None:
    """Their own parsers do; models and demonstrations are not there yet."""
    llm_pipeline.main(command_line(tmp_path, "--seeds", "1"))
    modules = {"sft": sft, "grpo": grpo, "generate": generate}
    for command in track.commands:
        module = modules[Path(command[0]).stem]
        words = list(command[1:])
        if "--demonstrations" in words:
            k = words.index("--demonstrations")
            words[k : k + 2] = []
        config = parse(module.Config, getattr(module, "PRESETS", {}), "", words)
        assert config.task == "addition"


def test_what_is_finished_of_an_interrupted_seed_is_kept(
    tmp_path: Path, track: Track, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And finished seeds are not trained again."""

    def interrupted(command: Sequence[str]) -> None:
        if "generate" in command[0]:
            raise UsageError("generate.py: no space left")
        track(command)

    monkeypatch.setattr(llm_pipeline, "run", interrupted)
    with pytest.raises(SystemExit, match="2"):
        llm_pipeline.main(command_line(tmp_path, "--seeds", "1"))
    stored = tmp_path / "results" / "llm_pipeline.json"
    assert not stored.exists()
    monkeypatch.setattr(llm_pipeline, "run", track)
    commands = []
    for seeds in ("1", "2"):
        track.commands.clear()
        llm_pipeline.main(command_line(tmp_path, "--seeds", seeds))
        commands.append(len(track.commands))
    assert commands[0] == commands[1]
    rows = json.loads(stored.read_text())["rows"]
    assert [row["pass@1"] for row in rows][1:3] == pytest.approx([0.1, 0.2])
    assert [row["seed"] for row in rows] == [0] * len(STAGES) + [1] * len(STAGES)


def test_bad_input_other_settings_and_other_code_are_one_line(
    tmp_path: Path,
    track: Track,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nothing is mixed with what is stored of others."""

    def refused(*flags: str) -> str:
        with pytest.raises(SystemExit, match="2"):
            llm_pipeline.main(command_line(tmp_path, *flags))
        (line,) = capsys.readouterr().err.splitlines()
        return line

    assert refused("--task", "gsm8k").startswith("error: --task gsm8k: must be addition, mixed")
    assert refused("--seeds", "0").startswith("error: --seeds 0: must be")
    llm_pipeline.main(command_line(tmp_path, "--seeds", "1"))
    capsys.readouterr()
    other = refused("--seeds", "2", "--rl-samples", "256")
    assert "llm_pipeline.json is of other settings" in other
    monkeypatch.setattr(llm_pipeline, "code_digest", lambda origins: "other")
    assert "llm_pipeline.json is of other code" in refused("--seeds", "2")
    path = tmp_path / "results" / "llm_pipeline.json"
    path.write_text(path.read_text().replace('"curve"', '"other"'))  # and of another shape
    assert "llm_pipeline.json is of other code" in refused("--seeds", "2")


def test_a_stage_that_fails_is_one_line() -> None:
    with pytest.raises(UsageError, match=r"llm_track/sft.py: --model tiny-reward: is a"):
        llm_pipeline.run(["llm_track/sft.py", "--model", "tiny-reward"])


def test_its_measures_are_those_of_real_runs() -> None:
    """Published ones of both scripts have all of them, before and after the training."""
    for algo in llm_pipeline.TRAINED:
        runs = (x for x in run_paths(ROOT / "results") if x.match(f"addition/{algo}/*"))
        part = next(part for run in runs for part in RunFolder(run).parts())
        stored = read_json(part / "summary.json")
        assert {*MEASURES} <= {*stored["initial"]} & {*stored["final"]}
