"""`--track`: every seed's scalars, as TensorBoard and W&B read them back."""

from __future__ import annotations

import importlib.util
import json
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from algos import monte_carlo, q_learning
from manyseeds.cli import parse
from manyseeds.record import is_finished
from manyseeds.runs import prediction
from manyseeds.runs.control import main
from manyseeds.track import Tracker

Scalars = dict[str, dict[int, float]]  # by name and step
RUN = "--env FrozenLake-v1 --seeds 2 --total-timesteps 2000 --eval-budget 0.1 --quiet --results r"
WITHOUT = "wandb is not installed: pip install -e '.[wandb]'"


def installed(name: str) -> bool:
    """Whether a package is there; a folder of its name in the current one is none."""
    found = importlib.util.find_spec(name)
    return found is not None and found.origin is not None


def train(tracker: str) -> Path:
    """A part of two seeds that was tracked."""
    words = [*RUN.split(), "--track", tracker]
    config = parse(q_learning.Config, q_learning.PRESETS, "", words)
    main(config, q_learning.train, q_learning.PRESETS)
    (part,) = Path("r").glob("runs/*/*/*/seeds-000-001")
    assert is_finished(part)
    return part


def expected(part: Path, seed: int) -> Scalars:
    """What the store itself says of a seed."""
    metrics = pd.read_parquet(part / "metrics.parquet").query(f"seed == {seed}")
    curve = pd.read_parquet(part / "curve.parquet").query(f"seed == {seed} and mode == 'greedy'")
    curve = curve.drop_duplicates("timestep")  # not the evaluation at the end, of more episodes
    columns = {f"train/{name}": metrics[name] for name in metrics.columns[2:]}
    found = {name: by_step(metrics["timestep"], x) for name, x in columns.items()}
    found["evaluation/greedy_return"] = by_step(curve["timestep"], curve["return_mean"])
    assert len(found["evaluation/greedy_return"]) > 3
    return {name: values for name, values in found.items() if values}


def by_step(steps: Sequence[int], values: Sequence[float]) -> dict[int, float]:
    return {int(s): float(x) for s, x in zip(steps, values, strict=True) if np.isfinite(x)}


def check_same(found: Scalars, wanted: Scalars) -> None:
    assert found.keys() == wanted.keys()
    for name, values in wanted.items():
        assert found[name].keys() == values.keys(), name
        for step, x in values.items():
            assert found[name][step] == pytest.approx(x, rel=1e-6), (name, step)


def of_tensorboard(folder: Path) -> Scalars:
    """The scalars of event files."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    events.Reload()
    names = events.Tags()["scalars"]
    return {name: {e.step: e.value for e in events.Scalars(name)} for name in names}


def records(file: Path) -> Iterator[bytes]:
    """The records of a file of W&B: 7 bytes, then a log in LevelDB's format.

    That is blocks of 32 KiB with chunks in them: checksum, length, kind (whole, first, middle or
    last of a record) and content.
    """
    content = file.read_bytes()
    assert content[:4] == b":W&B"
    place, record = 7, b""
    while place < len(content):
        if 2**15 - place % 2**15 < 7:  # too small for a chunk
            place += 2**15 - place % 2**15
            continue
        _, length, kind = struct.unpack_from("<IHB", content, place)
        record += content[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):
            yield record
            record = b""


def of_wandb(file: Path) -> tuple[dict[str, str], dict[str, object], Scalars]:
    """What an offline run of W&B holds: of the run, its config, and its history."""
    from wandb.proto.wandb_internal_pb2 import Record

    about: dict[str, str] = {}
    config: dict[str, object] = {}
    found: Scalars = {}
    for data in records(file):
        record = Record.FromString(data)
        if record.HasField("run"):
            run = record.run
            about = {"project": run.project, "group": run.run_group, "name": run.display_name}
            config = {item.key: json.loads(item.value_json) for item in run.config.update}
        if record.HasField("history"):
            items = record.history.item
            row = {x.key or "/".join(x.nested_key): json.loads(x.value_json) for x in items}
            for name, x in row.items():
                if name.startswith(("train/", "evaluation/")):
                    found.setdefault(name, {})[int(row["step"])] = x
    return about, config, found


@pytest.mark.skipif(not installed("tensorboard"), reason="tensorboard is not installed")
def test_tensorboard_has_the_scalars_of_every_seed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    part = train("tensorboard")
    for seed in (0, 1):
        check_same(of_tensorboard(part / f"tensorboard/seed-00{seed}"), expected(part, seed))


@pytest.mark.skipif(not installed("tensorboard"), reason="tensorboard is not installed")
def test_prediction_is_tracked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    words = "--env RandomWalk-v0 --seeds 2 --total-episodes 20 --quiet --results r"
    words += " --track tensorboard"
    config = parse(monte_carlo.Config, monte_carlo.PRESETS, "", words.split())
    prediction.main(config, monte_carlo.train, monte_carlo.PRESETS)
    (part,) = Path("r").glob("runs/*/*/*/seeds-000-001")
    for seed in (0, 1):
        curve = pd.read_parquet(part / "curve.parquet").query(f"seed == {seed}")
        wanted = {"evaluation/rms_error": by_step(curve["episode"], curve["rms_error"])}
        check_same(of_tensorboard(part / f"tensorboard/seed-00{seed}"), wanted)


@pytest.mark.skipif(not installed("wandb"), reason=WITHOUT)
def test_wandb_has_a_run_for_every_seed_without_a_network(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("WANDB_MODE", raising=False)
    part = train("wandb")
    files = sorted(part.glob("wandb/offline-run-*/run-*.wandb"))
    assert len(files) == 2
    seeds = set()
    for file in files:
        about, config, found = of_wandb(file)
        seed = config["seed"]
        cell = f"FrozenLake-v1/q_learning/{part.parent.name}"
        assert about == {"project": "manyseeds", "group": cell, "name": f"{cell}/{seed}"}
        assert config["total_timesteps"] == 2000
        check_same(found, expected(part, int(str(seed))))
        seeds.add(seed)
    assert seeds == {0, 1}


@pytest.mark.skipif(not installed("tensorboard"), reason="tensorboard is not installed")
def test_what_is_not_finite_is_left_out(tmp_path: Path) -> None:
    tracker = Tracker("tensorboard", tmp_path, [3, 4], {})
    tracker.log([10, 20], {"loss": [1.0, np.nan], "other": 2.0})
    tracker.close()
    assert of_tensorboard(tmp_path / "tensorboard/seed-003") == {"loss": {10: 1}, "other": {10: 2}}
    assert of_tensorboard(tmp_path / "tensorboard/seed-004") == {"other": {20: 2}}


@pytest.mark.parametrize("tracker", ["tensorboard", "wandb"])
def test_a_missing_package_is_one_line(
    tracker: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    find = importlib.util.find_spec

    def find_others(name: str) -> object:
        return None if name == tracker else find(name)

    monkeypatch.setattr(importlib.util, "find_spec", find_others)
    for value, said in ((tracker, f"--track {tracker}: needs {tracker}"), ("x", "one of ''")):
        with pytest.raises(SystemExit) as stop:
            train(value)
        error = capsys.readouterr().err
        assert stop.value.code == 2
        assert said in error
        assert error.count("\n") == 1
    assert not (tmp_path / "r").exists()
