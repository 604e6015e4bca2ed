"""Runs that go on: with the same bits after any interruption, and never from what is not theirs."""

from __future__ import annotations

import contextlib
import functools
import json
import math
import os
import shutil
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from manyseeds import capture, kernels, record, snapshot
from manyseeds.algos import ppo, q_learning
from manyseeds.digest import ROOT, Place, find, read, resolve
from manyseeds.record import RunFolder, is_finished
from manyseeds.runs import base, checkpoints, control, resumable
from manyseeds.runs.checkpoints import CHECKPOINT, Checkpoint
from manyseeds.runs.control import Run
from manyseeds.runs.prediction import PredictionRun
from manyseeds.runs.resumable import ResumableRun
from tests import resuming
from tests.benchmarks.conftest import Output, Patch
from tests.foundation.test_capture import FakeRecorder
from tests.foundation.test_track import check_same, expected, installed, of_tensorboard
from tests.resuming import CASES, differences, part_of, train

real = ResumableRun.save_if_due


@pytest.fixture(autouse=True, scope="module")
def short() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for module, name, few in resuming.FEWER:
            patch.setattr(module, name, few)
        yield


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The part of an undisturbed training of a case."""
    return functools.cache(lambda case: part_of(train(case, tmp_path_factory.mktemp("whole"))))


@pytest.fixture(autouse=True)
def _handlers() -> Iterator[None]:
    """Whatever happens, signals are handled as before."""
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    yield
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


@contextlib.contextmanager
def signalled(k: int, *numbers: signal.Signals) -> Iterator[None]:
    """Signals reach each training of the block during its k-th iteration."""
    calls: dict[int, int] = {}

    def save_if_due(self: ResumableRun, *variables: Any) -> None:
        calls[id(self)] = calls.get(id(self), 0) + 1
        if calls[id(self)] == k:
            for number in numbers:
                signal.raise_signal(number)
        real(self, *variables)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ResumableRun, "save_if_due", save_if_due)
        yield


def stopped(
    case: str, results: Path, k: int = 3, numbers: Any = (signal.SIGINT,), **settings: Any
) -> Any:
    """The exit status of a training that gets signals in its k-th iteration."""
    with signalled(k, *numbers), pytest.raises(SystemExit) as stop:
        train(case, results, **settings)
    return stop.value.code


def interrupted(case: str, results: Path, k: int = 3, **settings: Any) -> Path:
    """The folder of a training that was interrupted in its k-th iteration."""
    assert stopped(case, results, k, **settings) == 130
    (checkpoint,) = results.rglob(CHECKPOINT)
    assert os.listdir(checkpoint.parent) == [CHECKPOINT]
    return checkpoint.parent


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Results with an interrupted training of A2C under the name x."""
    results = tmp_path_factory.mktemp("stored")
    interrupted("a2c", results, name="x")
    return results


@pytest.fixture
def part(stored: Path, tmp_path: Path) -> Path:
    """A copy of that training's folder, in the results `tmp_path / "r"`."""
    shutil.copytree(stored, tmp_path / "r")
    return next((tmp_path / "r").rglob(CHECKPOINT)).parent


TWICE = (signal.SIGINT, signal.SIGINT)
FRESH = "interrupted; the same command trains what is missing, from the start\n"


# ---- Going on changes nothing ----------------------------------------------------------------


@pytest.mark.parametrize("case", CASES)
def test_an_interrupted_training_goes_on_as_if_nothing_had_happened(
    case: str, tmp_path: Path, whole: Callable[[str], Path]
) -> None:
    check_resumed(case, tmp_path, whole(case), k=3)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
@pytest.mark.usefixtures("computed")
def test_every_iteration_may_be_the_last_of_its_process(case: str, tmp_path: Path) -> None:
    check_resumed(case, tmp_path / "r", part_of(train(case, tmp_path / "whole")), k=2)


def test_policies_that_wait_for_other_seeds_are_kept(tmp_path: Path, monkeypatch: Patch) -> None:
    """A seed that is ahead is evaluated as it was when it passed the point."""
    monkeypatch.setattr(control, "POINTS", 20)
    settings = {"learning_rate": 0.1, "total_timesteps": 600, "seeds": 8}
    whole = part_of(train("reinforce", tmp_path / "whole", **settings))
    part = interrupted("reinforce", tmp_path / "r", k=5, **settings)
    state, _ = snapshot.read(part / CHECKPOINT, 2**30)
    assert '["_snapshots", {"dict": [[' in json.dumps(state)
    assert differences(part_of(train("reinforce", tmp_path / "r", **settings)), whole) == []


def check_resumed(case: str, results: Path, whole: Path, k: int) -> None:
    """A training that every process carries on for k iterations equals an undisturbed one."""
    commands = 0
    with signalled(k, signal.SIGINT):
        while True:
            with contextlib.suppress(SystemExit):
                folder = train(case, results)
                break
            commands += 1
            assert len(list(results.rglob(CHECKPOINT))) == 1
    assert commands >= 1
    assert differences(part_of(folder), whole) == []


def test_an_iteration_that_is_recorded_goes_on_too(
    tmp_path: Path, monkeypatch: Patch, whole: Callable[[str], Path]
) -> None:
    """What a CUDA graph reads keeps its place in memory."""
    monkeypatch.setattr(capture, "recorder_for", lambda device, native: FakeRecorder())
    with kernels.off():
        captured = part_of(train("dqn", tmp_path / "captured"))
        interrupted("dqn", tmp_path / "r", k=5)
        assert differences(part_of(train("dqn", tmp_path / "r")), captured) == []
    assert differences(captured, whole("dqn")) != []  # without C, to rounding only


@pytest.mark.slow
def test_kill_9_at_random_moments(capfd: Output) -> None:
    """100 of them: python -m tests.resuming 100"""
    assert resuming.main(12, ["ppo, box", "dqn", "grpo", "monte"]) == 0


@pytest.mark.skipif(not installed("tensorboard"), reason="tensorboard is not installed")
@pytest.mark.parametrize("case", ["ppo", pytest.param("td_prediction", marks=pytest.mark.slow)])
def test_a_training_that_goes_on_is_tracked_from_its_beginning(case: str, tmp_path: Path) -> None:
    settings = {"track": "tensorboard", "seeds": 2}
    interrupted(case, tmp_path, **settings)
    part = part_of(train(case, tmp_path, **settings))
    whole = part_of(train(case, tmp_path / "whole", **settings))
    for seed in (0, 1):
        found = of_tensorboard(part / f"tensorboard/seed-00{seed}")
        check_same(found, of_tensorboard(whole / f"tensorboard/seed-00{seed}"))
        if case == "ppo":
            check_same(found, expected(part, seed))


def test_seconds_go_on_from_where_they_were(tmp_path: Path, monkeypatch: Patch) -> None:
    part = interrupted("q_learning", tmp_path)
    state, tensors = snapshot.read(part / CHECKPOINT, 2**30)
    recorded = state["state"]["tuple"][1]["tuple"][1]["tuple"]
    recorded[:2] = [1000.0, 2000.0]  # of learning, and all
    snapshot.write(part / CHECKPOINT, state, tensors)
    summary = record.read_json(part_of(train("q_learning", tmp_path)) / "summary.json")
    assert 1000 < summary["learn_seconds"] < 1900
    assert 2000 < summary["total_seconds"] < 2900


# ---- How it ends -----------------------------------------------------------------------------


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_lets_the_iteration_end_and_is_one_line(
    number: signal.Signals, status: int, tmp_path: Path, capsys: Output
) -> None:
    assert stopped("q_learning", tmp_path, 2, [number]) == status
    goes_on = "the same command resumes from there"
    said = f"interrupted at timestep 1,000 of 2,000; {goes_on}\n"
    assert capsys.readouterr() == ("", said)
    assert is_finished(part_of(train("q_learning", tmp_path, quiet=False)))
    out, err = capsys.readouterr()
    assert "\ngoing on from timestep 1,000\n" in out
    assert err == ""


def test_a_second_ctrl_c_ends_at_once(tmp_path: Path, capsys: Output) -> None:
    assert stopped("q_learning", tmp_path, numbers=TWICE) == 130
    assert capsys.readouterr().err == FRESH
    assert os.listdir(tmp_path) == []
    part = interrupted("q_learning", tmp_path, k=2)
    stopped("q_learning", tmp_path, 2, TWICE)
    said = "interrupted; the same command resumes from timestep 1,000\n"
    assert capsys.readouterr().err.endswith(said)
    assert (part / CHECKPOINT).exists()


def test_a_launcher_that_ends_its_commands_after_ctrl_c_costs_no_checkpoint(tmp_path: Path) -> None:
    """The terminal has sent SIGINT to all, the sweep sends SIGTERM once more."""
    numbers = signal.SIGTERM, signal.SIGINT, signal.SIGTERM
    assert stopped("q_learning", tmp_path, 2, numbers) == 130
    assert len(list(tmp_path.rglob(CHECKPOINT))) == 1


@pytest.mark.parametrize("case", ["q_learning", "td_prediction"])
def test_ctrl_c_in_the_final_evaluation_ends_at_once(
    case: str, tmp_path: Path, monkeypatch: Patch, capsys: Output, whole: Callable[[str], Path]
) -> None:
    """A checkpoint of before stands."""
    interrupted(case, tmp_path)
    capsys.readouterr()
    with monkeypatch.context() as patch:
        for kind in (Run, PredictionRun):
            patch.setattr(kind, "write", lambda *args: signal.raise_signal(signal.SIGINT))
        with pytest.raises(SystemExit):
            train(case, tmp_path)
    at = "timestep 1,500" if case == "q_learning" else "episode 20"
    said = f"interrupted; the same command resumes from {at}\n"
    assert capsys.readouterr().err == said
    assert differences(part_of(train(case, tmp_path)), whole(case)) == []


def test_an_interrupt_after_the_last_look_is_heeded(
    tmp_path: Path, monkeypatch: Patch, capsys: Output
) -> None:
    """Predictions look once a block of episodes, and not after the last."""
    evaluate = PredictionRun.evaluate_if_due

    def at_the_end(self: PredictionRun, episode: int, *args: Any) -> None:
        evaluate(self, episode, *args)
        if episode == 40:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(PredictionRun, "evaluate_if_due", at_the_end)
    with pytest.raises(SystemExit):
        train("monte_carlo", tmp_path)
    assert capsys.readouterr().err == FRESH


@pytest.mark.parametrize(
    ("case", "settings"),
    [("ppo", {"backend": "gymnasium"}), ("q_learning", {"checkpoint_interval": 0.0})],
)
def test_what_is_not_stored_is_interrupted_at_once(
    case: str, settings: Any, tmp_path: Path, capsys: Output
) -> None:
    """Gymnasium's environments are objects of somebody else."""
    assert stopped(case, tmp_path, **settings) == 130
    assert capsys.readouterr().err == FRESH
    assert os.listdir(tmp_path) == []


def test_an_object_that_cannot_be_stored_is_named(
    tmp_path: Path, monkeypatch: Patch, capsys: Output
) -> None:
    init = q_learning.QTable.__init__

    def with_a_lock(self: Any, *args: Any) -> None:
        init(self, *args)
        self.lock = threading.Lock()

    monkeypatch.setattr(q_learning.QTable, "__init__", with_a_lock)
    assert is_finished(part_of(train("q_learning", tmp_path)))
    assert capsys.readouterr().err == "note: no checkpoints: a lock cannot be stored\n"


def test_other_threads_and_other_handlers_are_left_alone(tmp_path: Path) -> None:
    worker = threading.Thread(target=train, args=("q_learning", tmp_path / "a"))
    worker.start()
    worker.join()
    assert len(list(tmp_path.rglob("DONE.json"))) == 1
    own: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: own.append(number))
    try:
        with signalled(3, signal.SIGTERM):
            assert is_finished(part_of(train("q_learning", tmp_path / "b")))
    finally:
        signal.signal(signal.SIGTERM, before)
    assert own == [signal.SIGTERM]


# ---- When ------------------------------------------------------------------------------------


def test_writing_takes_two_percent_of_the_time_at_most(tmp_path: Path, monkeypatch: Patch) -> None:
    clock, slow = 0.0, 0.0

    def write(*args: Any) -> None:
        nonlocal clock
        clock += slow

    monkeypatch.setattr(checkpoints.time, "perf_counter", lambda: clock)
    monkeypatch.setattr(snapshot, "write", write)
    checkpoint = Checkpoint(tmp_path / CHECKPOINT, 60.0)
    written = []
    for second in range(1, 2001):
        clock, slow = max(clock, float(second)), 0.1 if second < 500 else 5.0
        if checkpoint.due():
            checkpoint.write("", {}, {}, {})
            written.append(second)
    assert written[:3] == [60, 121, 182]
    assert written[-1] - written[-2] == 255
    assert not Checkpoint(None, 60.0).due()
    assert not Checkpoint(tmp_path / CHECKPOINT, 0.0).due()


@pytest.mark.usefixtures("eager")
def test_checkpoints_are_written_as_often_as_asked_for(tmp_path: Path, monkeypatch: Patch) -> None:
    written = []
    write = snapshot.write
    monkeypatch.setattr(snapshot, "write", lambda *args: written.append(write(*args)))
    assert is_finished(part_of(train("q_learning", tmp_path, checkpoint_interval=1e-9)))
    assert len(written) == 4
    assert not list(tmp_path.rglob(CHECKPOINT))


@pytest.mark.usefixtures("eager")
def test_a_full_disk_costs_the_checkpoint_and_not_the_training(
    tmp_path: Path, monkeypatch: Patch, capsys: Output
) -> None:
    def full(*args: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(snapshot, "write_bytes", full)
    part = part_of(train("q_learning", tmp_path, checkpoint_interval=1e-9))
    assert is_finished(part)
    assert capsys.readouterr().err == (
        f"note: {part / CHECKPOINT}: no checkpoint at timestep 500: "
        "[Errno 28] No space left on device\n"
    )
    stopped("q_learning", tmp_path / "r")
    assert capsys.readouterr().err.endswith(f"\n{FRESH}")


# ---- What is not gone on from ----------------------------------------------------------------


def damage_a_byte(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def is_a_link(path: Path) -> None:
    path.rename(path.parents[1] / "elsewhere")
    path.symlink_to(path.parents[1] / "elsewhere")


def is_a_fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def is_a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()
    (path / "x").write_text("x")


def is_sparse(path: Path) -> None:
    """A tensor of 4 GiB that takes no place."""
    tensor = {"dtype": "U8", "shape": [2**32], "data_offsets": [0, 2**32]}
    header = json.dumps({"state": tensor}).encode()
    path.write_bytes(len(header).to_bytes(8, "little") + header)
    os.truncate(path, 8 + len(header) + 2**32)


def has_another(path: Path) -> None:
    """One whose tensors are of another network, and all checksums are right."""
    state, tensors = snapshot.read(path, 2**30)
    snapshot.write(path, state, {name: x[..., :1] for name, x in tensors.items()})


DAMAGES: dict[str, tuple[Any, str]] = {
    "cut off": (lambda path: os.truncate(path, path.stat().st_size // 2), "it has invalid content"),
    "empty": (lambda path: path.write_bytes(b""), "it is no safetensors file"),
    "a byte": (damage_a_byte, "it is damaged"),
    "a text": (lambda path: path.write_text("x" * 100), "it is no safetensors file"),
    "other tensors": (has_another, "it is damaged"),
    "no state": (lambda path: save_file({"x": torch.ones(2)}, path), "it has invalid content"),
    "sparse": (is_sparse, "it is a sparse file"),
    "a link": (is_a_link, "it is a link, a folder or the like, not a file"),
    "a FIFO": (is_a_fifo, "it is a link, a folder or the like, not a file"),
    "a folder": (is_a_folder, "it is a link, a folder or the like, not a file"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_what_is_damaged_is_a_line_and_a_fresh_start(
    damage: str, part: Path, tmp_path: Path, whole: Callable[[str], Path], capsys: Output
) -> None:
    change, why = DAMAGES[damage]
    change(part / CHECKPOINT)
    again = part_of(train("a2c", tmp_path / "r", name="x"))
    assert differences(again, whole("a2c")) == []
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"note: {part / CHECKPOINT}: not used: {why}")
    assert line.endswith("; the training starts over")


def test_a_checkpoint_of_another_build_of_the_kernels_goes_on(
    part: Path, tmp_path: Path, whole: Callable[[str], Path], monkeypatch: Patch, capsys: Output
) -> None:
    """All builds have the same bits."""
    here = kernels.library()
    assert here is not None
    other = here._replace(build=kernels.Build("another compiler", "-O1"))
    monkeypatch.setattr(kernels, "library", lambda: other)
    again = part_of(train("a2c", tmp_path / "r"))
    assert differences(again, whole("a2c")) == []
    assert "note" not in capsys.readouterr().err


OTHERS: dict[str, tuple[tuple[Any, ...], dict[str, Any], str]] = {
    "settings": ((), {"learning_rate": 0.1}, "it is of other settings"),
    "threads": (
        # Under its name, because its code belongs to the digest.
        (base, "set_up_process", functools.wraps(base.set_up_process)(lambda threads: None)),
        {"threads": 2},
        "it is of another number of threads",
    ),
    "code": ((resumable, "code_digest", lambda origins: "x"), {}, "it is of other code"),
    "kernels": (
        (kernels, "available", lambda: False),
        {},
        "it was not computed as here, in C or by PyTorch",
    ),
    "torch": (
        (resumable, "installed", lambda package: "0"),
        {},
        "it was computed by another version of PyTorch",
    ),
}


@pytest.mark.parametrize("other", OTHERS)
def test_what_belongs_to_another_training_is_a_line_and_kept(
    other: str,
    part: Path,
    tmp_path: Path,
    whole: Callable[[str], Path],
    monkeypatch: Patch,
    capsys: Output,
) -> None:
    """Its own command goes on from it, whatever was interrupted meanwhile."""
    change, settings, why = OTHERS[other]
    (part / "config.json").write_text("left by a kill")
    before = (part / CHECKPOINT).read_bytes()
    with monkeypatch.context() as patch:
        if change:
            patch.setattr(*change)
        for k in (1, 2):  # before it has a checkpoint of its own, and after
            stopped("a2c", tmp_path / "r", 2, TWICE[k - 1 :], name="x", **settings)
            kept = next(part.glob(".checkpoint-*")).name
            assert sorted(os.listdir(part)) == [kept, CHECKPOINT][:k]
    note, *_ = capsys.readouterr().err.splitlines()
    goes_on = "the command that it belongs to resumes from there"
    assert note == f"note: {part / CHECKPOINT}: not used: {why}; kept as {kept}, {goes_on}"
    assert (part / kept).read_bytes() == before
    folder = train("a2c", tmp_path / "r", name="x", quiet=False)
    assert "going on from timestep 96" in capsys.readouterr().out
    assert differences(part_of(folder), whole("a2c")) == []
    assert not list(tmp_path.rglob(".checkpoint*"))


def test_one_of_other_seeds_is_not_gone_on_from(tmp_path: Path, capsys: Output) -> None:
    part = interrupted("a2c", tmp_path, first_seed=3)
    part.rename(part.parent / "seeds-000-002")
    capsys.readouterr()
    assert is_finished(part_of(train("a2c", tmp_path)))
    assert "not used: it is of other seeds; " in capsys.readouterr().err


def test_one_that_is_kept_may_be_damaged(part: Path, tmp_path: Path, capsys: Output) -> None:
    stopped("a2c", tmp_path / "r", 2, name="x", learning_rate=0.1)
    (kept,) = part.glob(".checkpoint-*")
    damage_a_byte(kept)
    capsys.readouterr()
    assert is_finished(part_of(train("a2c", tmp_path / "r", name="x")))
    assert "not used: it is damaged; the training starts over" in capsys.readouterr().err


def test_the_code_that_stores_is_part_of_what_a_checkpoint_belongs_to(
    tmp_path: Path, monkeypatch: Patch
) -> None:
    """Otherwise another version of this project would read its files in another way."""
    origins: list[str] = []
    monkeypatch.setattr("manyseeds.runs.resumable.code_digest", origins.extend)
    run = Run(ppo.Config(quiet=True), [0], tmp_path)
    run.usable_checkpoint([ppo.train])
    assert all(find(resolve(Place.of(origin), ROOT), ROOT) is not None for origin in origins)
    uses = {use for x in origins for use in read(resolve(Place.of(x), ROOT), ROOT)[1]}
    assert {Place("manyseeds.snapshot", name) for name in ("take", "restore")} <= uses
    assert Place("manyseeds.runs.control", "Window") in uses


# ---- Parts -----------------------------------------------------------------------------------


def seeds_of(folder: RunFolder) -> list[str]:
    return [part.name for part in folder.parts()]


def test_seeds_of_a_checkpoint_are_trained_first_and_apart(tmp_path: Path, capsys: Output) -> None:
    """A command that asks for more seeds than the one that was interrupted."""
    interrupted("q_learning", tmp_path, seeds=2, first_seed=1)
    capsys.readouterr()
    folder = train("q_learning", tmp_path, seeds=5, quiet=False)
    out = capsys.readouterr().out
    assert seeds_of(folder) == ["seeds-000-000", "seeds-001-002", "seeds-003-004"]
    assert out.index("going on from timestep 1,500") < out.index("0/2,000 x 1 seed")
    assert not list(tmp_path.rglob(CHECKPOINT))


@pytest.mark.parametrize("asked", [{"seeds": 2}, {"seeds": 3, "first_seed": 2}])
def test_a_checkpoint_whose_seeds_are_not_all_asked_for_is_kept_until_some_are_finished(
    asked: dict[str, int], tmp_path: Path, capsys: Output
) -> None:
    """They would be trained twice."""
    part = interrupted("q_learning", tmp_path, seeds=3)
    capsys.readouterr()
    folder = train("q_learning", tmp_path, **asked)
    why = "it is of seeds 0-2, not all of which are trained now"
    said = f"note: {part / CHECKPOINT}: not used: {why}; "
    assert capsys.readouterr().err == f"{said}kept\n"
    assert len(seeds_of(folder)) == 1
    assert os.listdir(part) == [CHECKPOINT]
    train("q_learning", tmp_path, seeds=3)
    assert capsys.readouterr().err == f"{said}the training starts over\n"
    assert not part.exists()


def test_a_checkpoint_of_seeds_that_nobody_asks_for_stays(tmp_path: Path) -> None:
    part = interrupted("q_learning", tmp_path, seeds=2)
    train("q_learning", tmp_path, seeds=2, first_seed=5)
    assert os.listdir(part) == [CHECKPOINT]


def test_what_a_process_that_was_killed_at_its_end_has_left_is_removed(tmp_path: Path) -> None:
    part = part_of(train("q_learning", tmp_path))
    (part / CHECKPOINT).write_text("x")
    train("q_learning", tmp_path)
    assert not (part / CHECKPOINT).exists()


# ---- Snapshots -------------------------------------------------------------------------------


class Box:
    """An object with some of everything."""

    def __init__(self, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.flat = torch.rand(3, 4, generator=generator)
        self.view = self.flat[1:]  # in the same memory
        self.turned = torch.rand(4, 3, generator=generator).T
        self.turned_array = self.turned.double().numpy().copy(order="F")
        self.random = np.random.Generator(np.random.MT19937(seed))
        self.rows: list[Any] = [{1: math.nan, "a": (seed, None)}] * (seed + 1)
        self.device, self.kind, self.me = torch.device("cpu"), torch.float32, self
        self.huge, self.small = 2**200 + seed, 0.1 + seed


def test_an_object_gets_its_state_back_in_place() -> None:
    first, second = Box(1), Box(2)
    node, tensors = snapshot.take(((first,), None))
    stored = json.loads(json.dumps(node)), {k: x.clone() for k, x in tensors.items()}
    memory = second.flat.data_ptr()
    following = first.random.random(5).tolist()
    snapshot.restore(*stored, (second,), None, torch.device("cpu"))
    assert second.flat.data_ptr() == memory
    assert torch.equal(second.flat, first.flat)
    first.flat += 1
    second.flat += 1
    assert torch.equal(second.view, first.view)
    assert second.random.random(5).tolist() == following
    assert second.me is second
    assert repr(second.rows) == repr(first.rows)
    assert second.rows[0] is second.rows[1]
    assert (second.huge, second.small) == (first.huge, first.small)


def test_values_come_back_with_the_layout_of_their_memory(tmp_path: Path) -> None:
    """Sums are added in its order."""
    box = Box(1)
    values = {"a": box.turned, "b": box.turned_array, "c": box.turned_array.mean()}
    snapshot.write(tmp_path / "x", *snapshot.take(((), values)))
    node, tensors = snapshot.read(tmp_path / "x", 2**20)
    again = snapshot.restore(node, tensors, (), None, torch.device("cpu"))
    assert again["a"].stride() == box.turned.stride() == (1, 3)
    assert again["b"].flags.f_contiguous
    assert type(again["c"]) is type(values["c"])
    assert again["c"] == values["c"]


def test_nothing_is_changed_where_something_does_not_fit() -> None:
    first, second = Box(1), Box(2)
    node, tensors = snapshot.take(((first,), None))
    before = repr(vars(second))
    last = list(tensors)[-1]
    tensors = {**tensors, last: tensors[last][:1]}
    with pytest.raises(snapshot.MALFORMED):
        snapshot.restore(node, tensors, (second,), None, torch.device("cpu"))
    assert repr(vars(second)) == before


@pytest.mark.parametrize("thing", [{1, 2}, object(), {(1, 2): 3}, threading.Lock(), b"x"])
def test_what_cannot_be_stored_is_refused(thing: Any) -> None:
    with pytest.raises(snapshot.UnstorableError):
        snapshot.take([thing])


def test_control_runs_keep_what_they_gather() -> None:
    """What `__init__` makes and a training changes is stored, but for what is made anew."""
    made = set(vars(Run(ppo.Config(quiet=True))))
    anew = {"config", "seeds", "directory", "algo", "source", "device", "labels", "checkpoint"}
    anew |= {"_progress", "_env", "_began", "_resumed", "_learned"}
    assert made - anew == set(Run.gathered)
    assert set(Run.gathered) <= made
    assert control.Run.kind == "control"
