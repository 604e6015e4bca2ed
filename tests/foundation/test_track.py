"""`--track`: every seed's scalars, as TensorBoard and W&B read them back."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import shutil
import signal
import struct
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from manyseeds.algos import monte_carlo, q_learning
from manyseeds.cli import parse
from manyseeds.errors import UsageError
from manyseeds.record import DONE, RunFolder, is_finished, read_json
from manyseeds.runs import base, prediction
from manyseeds.runs.control import Run, main
from manyseeds.track import WRITERS, Tracker
from tests.benchmarks.test_sweep import wait_for
from tests.processes import Script

Scalars = dict[str, dict[int, float]]  # by name and step
RUN = "--env FrozenLake-v1 --seeds 2 --total-timesteps 2000 --eval-budget 0.1 --quiet --results r"
WITHOUT = "wandb is not installed: pip install -e '.[wandb]'"


def installed(name: str) -> bool:
    """Whether a package is there; a folder of its name in the current one is none."""
    found = importlib.util.find_spec(name)
    return found is not None and found.origin is not None


needs_tensorboard = pytest.mark.skipif(
    not installed("tensorboard"), reason="tensorboard is not installed"
)
needs_wandb = pytest.mark.skipif(not installed("wandb"), reason=WITHOUT)
each_tracker = pytest.mark.parametrize(
    "tracker",
    [
        pytest.param("tensorboard", marks=needs_tensorboard),
        pytest.param("wandb", marks=needs_wandb),
    ],
)


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("WANDB_MODE", raising=False)


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


def tracked(part: Path, seed: int, tracker: str) -> Scalars:
    """What a tracker has of a seed; W&B, by whose run that is."""
    if tracker == "tensorboard":
        return of_tensorboard(part / f"tensorboard/seed-{seed:03d}")
    runs = [of_wandb(file) for file in part.glob("wandb/offline-run-*/run-*.wandb")]
    ((about, _, found),) = [run for run in runs if run[1]["seed"] == seed]
    cell = "/".join(part.parts[-4:-1])
    assert about == {"project": "manyseeds", "group": cell, "name": f"{cell}/{seed}"}
    return found


@needs_tensorboard
def test_tracking_is_no_learning(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock of learning leaves out what a tracker takes."""
    log = Tracker.log

    def log_slowly(self: Tracker, step: Any, scalars: dict[str, Any]) -> None:
        if not slow and "evaluation/greedy_return" not in scalars:
            time.sleep(2)
            slow.append(2)
        log(self, step, scalars)

    slow: list[int] = []
    monkeypatch.setattr(Tracker, "log", log_slowly)
    part = train("tensorboard")
    assert slow
    summary = read_json(part / "summary.json")
    assert summary["learn_seconds"] < 2 < summary["total_seconds"]


@needs_tensorboard
def test_prediction_is_tracked() -> None:
    words = "--env RandomWalk-v0 --seeds 2 --total-episodes 20 --quiet --results r"
    words += " --track tensorboard"
    config = parse(monte_carlo.Config, monte_carlo.PRESETS, "", words.split())
    prediction.main(config, monte_carlo.train, monte_carlo.PRESETS)
    (part,) = Path("r").glob("runs/*/*/*/seeds-000-001")
    for seed in (0, 1):
        curve = pd.read_parquet(part / "curve.parquet").query(f"seed == {seed}")
        wanted = {"evaluation/rms_error": by_step(curve["episode"], curve["rms_error"])}
        check_same(of_tensorboard(part / f"tensorboard/seed-00{seed}"), wanted)


@needs_tensorboard
def test_what_is_not_finite_is_left_out(tmp_path: Path) -> None:
    tracker = Tracker("tensorboard", tmp_path, [3, 4], {})
    tracker.log([10, 20], {"loss": [1.0, np.nan], "other": 2.0})
    tracker.close()
    assert of_tensorboard(tmp_path / "tensorboard/seed-003") == {"loss": {10: 1}, "other": {10: 2}}
    assert of_tensorboard(tmp_path / "tensorboard/seed-004") == {"other": {20: 2}}


@each_tracker
def test_every_seed_is_tracked_though_a_training_was_interrupted(
    tracker: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []

    def interrupt(self: Run, result: object) -> None:
        seen.extend(Path("r").glob(f"runs/*/*/*/*/{tracker}/*"))
        raise KeyboardInterrupt

    close, closed = Tracker.close, []

    def close_in_time(self: Tracker) -> None:
        closed.append(seen[0].exists())
        close(self)

    with monkeypatch.context() as patch:
        patch.setattr(Run, "finish", interrupt)
        patch.setattr(Tracker, "close", close_in_time)
        with pytest.raises(SystemExit, match="130"):
            train(tracker)
    assert len(seen) >= 2
    assert closed == [True]  # what is left is written before the folder is removed, not after
    assert not list(Path("r").glob("runs/*/*/*/seeds-*"))
    part = train(tracker)
    for seed in (0, 1):
        check_same(tracked(part, seed, tracker), expected(part, seed))


def wandb_of(pid: int | None) -> bool:
    """Whether W&B's own process, which writes what a process tells it, is there (Linux)."""
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):  # it has ended
            if f"--pid\0{pid}\0".encode() in file.read_bytes():
                return True
    return False


@pytest.mark.slow
@pytest.mark.parametrize(
    ("seeds", "tracker"),
    [
        pytest.param(3, "tensorboard", marks=needs_tensorboard),
        pytest.param(2, "wandb", marks=needs_wandb),
    ],
)
def test_a_killed_training_leaves_no_tracker_behind(seeds: int, tracker: str) -> None:
    """A real SIGKILL; then the same seeds are trained, or those of another part."""
    words = f"{RUN} --name x --track {tracker}"
    endless = words.replace("--total-timesteps 2000", "--total-timesteps 2000000")
    killed = Script("algos/q_learning.py", *endless.split())
    run = Path("r/runs/FrozenLake-v1/q_learning/x")
    while killed.poll() is None and len(list(run.glob(f"*/{tracker}/*"))) < 2:
        time.sleep(0.01)
    killed.send_signal(signal.SIGKILL)
    assert killed.wait() == -signal.SIGKILL
    wait_for(lambda: not wandb_of(killed.process.pid))  # it outlives the training by some seconds
    (other := run / "seeds-005-006" / tracker).mkdir(parents=True)  # not trained again
    # Not links: W&B's log of the machine lies in the user's cache, and stays.
    paths = run.glob(f"seeds-000-001/{tracker}/**/*")
    old = [path for path in paths if path.is_file() and not path.is_symlink()]
    assert old

    words = words.replace("--seeds 2", f"--seeds {seeds}")
    assert Script("algos/q_learning.py", *words.split()).run().stderr == ""
    part = run / f"seeds-000-00{seeds - 1}"
    assert is_finished(part)
    assert sorted(run.iterdir()) == [part, other.parent]
    assert len(list((part / tracker).glob("*run-*" if tracker == "wandb" else "*"))) == seeds
    for seed in range(seeds):
        check_same(tracked(part, seed, tracker), expected(part, seed))
    assert not any(path.exists() for path in old)


def plant(folder: Path, *files: str) -> None:
    for file in files:
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / file).write_text("{}")


def left_in(folder: Path) -> set[str]:
    return {str(x.relative_to(folder)) for x in folder.rglob("*") if not x.is_dir()}


def test_only_what_a_killed_process_has_left_is_removed(tmp_path: Path) -> None:
    """Not what was sealed and is damaged, not others' seeds, not a checkpoint."""
    kept = {"seeds-010-012/tensorboard/events", "seeds-mine/events"}
    kept |= {f"seeds-005-009/{name}" for name in (DONE, "tensorboard/events")}
    kept |= {f"seeds-007-007/{x}" for x in (base.CHECKPOINT, ".checkpoint-0123abcd.safetensors")}
    plant(tmp_path, *kept, "seeds-000-003/tensorboard/events", "seeds-007-007/tensorboard/events")
    base.remove_abandoned(RunFolder(tmp_path), [3, 7])
    assert left_in(tmp_path) == kept
    assert not (tmp_path / "seeds-000-003").exists()


def test_what_cannot_be_removed_does_not_hinder_a_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two processes that train seeds of one abandoned part remove it at once; files of another user
    and of a file server cannot be removed; a seal may be a link into another store."""
    raced, foreign, linked = "seeds-000-009", "seeds-004-005", "seeds-005-006"
    plant(tmp_path, "seeds-003-006", *(f"{x}/config.json" for x in (raced, foreign, linked)))
    plant(tmp_path, *(f"{raced}/tensorboard/events.{i}" for i in range(3)))
    (tmp_path / foreign / "tensorboard").mkdir()
    (tmp_path / linked / DONE).symlink_to("not-mounted")
    unlink, real = Path.unlink, shutil.rmtree

    def refuse(path: Path, missing_ok: bool = False) -> None:
        if path.parent.name == foreign:
            raise PermissionError(13, "Permission denied", str(path))
        unlink(path, missing_ok)

    def after_another(path: Path, ignore_errors: bool = False) -> None:
        real(path)
        real(path, ignore_errors)

    monkeypatch.setattr(Path, "unlink", refuse)
    monkeypatch.setattr(shutil, "rmtree", after_another)
    base.remove_abandoned(RunFolder(tmp_path), [5])
    kept = {"seeds-003-006", f"{foreign}/config.json"}
    assert left_in(tmp_path) == kept | {f"{linked}/{DONE}", f"{linked}/config.json"}
    assert not (tmp_path / raced).exists()


def refused(tracker: str, capsys: pytest.CaptureFixture[str]) -> str:
    """The one line that a training says; it leaves no part."""
    capsys.readouterr()
    with pytest.raises(SystemExit, match="2"):
        train(tracker)
    (line,) = [x for x in capsys.readouterr().err.splitlines() if x.startswith("error: ")]
    assert not list(Path("r").glob("runs/*/*/*/seeds-*"))
    return line


@needs_wandb
def test_variables_of_wandb(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An empty mode is none, an id that all seeds would have is not taken, nonsense is one line."""
    with monkeypatch.context() as patch:
        patch.setenv("WANDB_MODE", "")
        patch.setenv("WANDB_RUN_ID", "abc")
        train("wandb")
    runs = [path.name for path in tmp_path.rglob("offline-run-*")]
    assert len(runs) == len(set(runs)) == 2
    assert not any(name.endswith("-abc") for name in runs)
    shutil.rmtree("r")

    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
    modes = {"bogus": "WANDB_MODE bogus: must be one of", "online": "--track wandb: "}
    for mode, said in modes.items():  # one that there is not; a server without a key for it
        monkeypatch.setenv("WANDB_MODE", mode)
        assert said in refused("wandb", capsys)
    monkeypatch.delenv("WANDB_MODE")

    def refuse(**settings: object) -> None:
        raise ValueError("WANDB_SILENT perhaps:\nis no boolean")

    monkeypatch.setattr("wandb.init", refuse)
    said = "error: --track wandb: ValueError: WANDB_SILENT perhaps: is no boolean"
    assert refused("wandb", capsys) == said


@pytest.mark.parametrize("tracker", ["tensorboard", "wandb"])
def test_a_missing_package_is_one_line(
    tracker: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda x: None if x == tracker else find(x))
    assert f"--track {tracker}: needs {tracker}" in refused(tracker, capsys)
    assert "one of none," in refused("x", capsys)


class Broken:
    """A tracker of one seed that fails at its end."""

    def __init__(self, part: Path, seed: int, settings: object) -> None:
        self.seed, self.closed = seed, False
        if seed == 9:
            raise UsageError("cannot begin")
        OPENED.append(self)

    def write(self, step: int, scalars: object) -> None: ...

    def close(self) -> None:
        self.closed = True
        if self.seed == 0:
            raise OSError("disk full")


OPENED: list[Broken] = []


def test_what_fails_at_the_end_loses_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The other seeds are closed, too; so are those before one that cannot begin."""
    monkeypatch.setitem(WRITERS, "tensorboard", Broken)
    OPENED.clear()
    Tracker("tensorboard", Path(), [0, 1], {}).close()
    assert [x.closed for x in OPENED] == [True, True]
    assert capsys.readouterr().err == "warning: --track tensorboard: OSError: disk full\n"
    OPENED.clear()
    with pytest.raises(UsageError, match="cannot begin"):
        Tracker("tensorboard", Path(), [1, 2, 9, 3], {})
    assert [x.closed for x in OPENED] == [True, True]
