"""The store: whatever kills a run, and whenever, only what is whole counts as finished."""

from __future__ import annotations

import builtins
import contextlib
import errno
import io
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from manyseeds import cli, locks, record, writing
from manyseeds.algos import grpo, ppo, q_learning, reinforce
from manyseeds.benchmarks.chapters.tabular import curve_of
from manyseeds.benchmarks.store.stored import StoredRun, open_run
from manyseeds.cli import parse
from manyseeds.errors import UsageError
from manyseeds.locks import Locks
from manyseeds.record import (
    DONE,
    POLICY,
    RunFolder,
    is_finished,
    part_name,
    plural,
    read_json,
    seal,
)
from manyseeds.runs import control
from manyseeds.runs.base import complete_seeds
from manyseeds.runs.control import Run, main
from manyseeds.writing import HOST, write_bytes, write_json
from tests.benchmarks.conftest import Output, Patch
from tests.processes import Script
from tests.records import config_of

# What a run of one part writes, in this order.
FILES = ["config.json", "curve.parquet", "episodes.parquet", "metrics.parquet"]
FILES += ["policy.safetensors", "curve.png", "summary.json", DONE]
WRITES = ["settings.json", *FILES[:-1], "config.json", DONE]  # of locks; the record says kernels
DEAD = f"{HOST}.{2**22 + 1}.partial"  # of a process that no Linux has
LAKE = ("--env", "FrozenLake-v1", "--total-timesteps", "500", "--results", "r")
POLE = ("--total-timesteps", "64", "--num-envs", "2", "--num-steps", "16", "--epochs", "2")
POLE += ("--minibatch-size", "16", "--hidden", "8", "--results", "r")


class Killed(BaseException):
    """Ends a run as kill -9 does: no handler of ours may catch it."""


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: Patch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture(autouse=True, scope="module")
def few_points() -> Iterator[None]:
    """A training is evaluated at two points, besides the first."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(control, "POINTS", 2)
        yield


def train(module: Any, *args: str) -> RunFolder:
    """A script's three lines, in this process; returns its run."""
    config = parse(module.Config, module.PRESETS, module.__doc__, args)
    main(config, module.train, module.PRESETS)
    return RunFolder.of(config, module.__name__.split(".")[-1])


def learning(folder: RunFolder) -> pd.DataFrame:
    """The curve without its clock, in one order."""
    curve = curve_of(open_run(folder)).drop(columns="learn_s")
    return curve.sort_values(["mode", "episodes", "seed", "timestep"], ignore_index=True)


def same_curve(a: RunFolder, b: RunFolder) -> None:
    """Bit for bit, in every column but the clock's."""
    assert len(learning(a)) > 0
    pd.testing.assert_frame_equal(learning(a), learning(b), check_exact=True)


def leftovers(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.rglob(".*"))


def test_numbers_of_things() -> None:
    assert [plural(n, "seed") for n in (0, 1, 2)] == ["0 seeds", "1 seed", "2 seeds"]
    numbers = {"a": 0.5, "b": float("inf"), "c": float("-inf"), "d": float("nan")}
    assert record.finite_numbers(numbers) == {"a": 0.5, "b": None, "c": None, "d": None}


# ---- One file ---------------------------------------------------------------------------


def test_a_file_is_not_written_through_a_link() -> None:
    """Somebody may guess the name of the file beside it."""
    Path("victim").write_bytes(b"precious")
    writing.beside(Path("x.json")).symlink_to("victim")
    write_bytes(Path("x.json"), b"new")
    assert Path("victim").read_bytes() == b"precious"
    assert not Path("x.json").is_symlink()
    assert sorted(os.listdir()) == ["victim", "x.json"]


def test_content_reaches_the_disk_before_its_name(monkeypatch: Patch) -> None:
    """After a power cut a renamed file must not be empty: all of it is fsynced first."""
    events: list[str] = []
    fsync, replace = os.fsync, os.replace

    def log_fsync(descriptor: int) -> None:
        events.append(f"fsync of {os.fstat(descriptor).st_size} bytes")
        fsync(descriptor)

    def log_replace(a: Any, b: Any) -> None:
        events.append(f"rename to {b}")
        replace(a, b)

    monkeypatch.setattr(record.os, "fsync", log_fsync)
    monkeypatch.setattr(record.os, "replace", log_replace)
    write_bytes(Path("x"), b"12345")
    assert events == ["fsync of 5 bytes", "rename to x"]
    size = os.stat(".").st_size
    seal(Path("."))
    assert events[-2:] == ["rename to DONE.json", f"fsync of {size} bytes"]  # of the folder


# ---- Finished or not --------------------------------------------------------------------


def plant(part: Path, seeds: list[int], sealed: bool = True) -> Path:
    """A part without a training."""
    part.mkdir(parents=True)
    write_json(part / "config.json", config_of(seeds))
    for name in FILES[1:-1]:
        (part / name).write_bytes(name.encode())
    if sealed:
        seal(part, LOCAL, POLICY)
    return part


def folder_instead(path: Path) -> None:
    path.unlink()
    path.mkdir()
    (path / "x").touch()


DAMAGES: dict[str, Callable[[Path], Any]] = {
    "missing": Path.unlink,
    "empty": lambda file: file.write_bytes(b""),
    "cut": lambda file: file.write_bytes(file.read_bytes()[:-1]),
    "one bit": lambda file: file.write_bytes(file.read_bytes()[:-1] + b"\x00"),
    "longer": lambda file: file.write_bytes(file.read_bytes() + b"x"),
    "a pipe": lambda file: (file.unlink(), os.mkfifo(file)),  # which must not be waited for
    "a folder": folder_instead,
}
LOCAL = (POLICY, "curve.png")


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_part_is_not_finished(damage: str) -> None:
    """Weights and pictures are not committed, so only those may be absent; never different."""
    for name in FILES[:-1]:
        part = plant(Path(name, "seeds-000-001"), [0, 1])
        assert is_finished(part)
        DAMAGES[damage](part / name)
        assert is_finished(part) == (damage == "missing" and name in LOCAL), name


def test_a_part_without_a_readable_seal_is_not_finished() -> None:
    part = plant(Path("seeds-000-001"), [0, 1])
    whole = read_json(part / DONE)
    texts = [b"", b"{", b"{}", b"[]", b"3", b"\xff", b'{"sha256": 3}', b'{"schema": 4}']
    # Nothing else is read because somebody's seal names it; a device would never end.
    Path("x").write_bytes(b"1")
    for name in ("/dev/zero", "../x", "sub/x", ""):
        sums = {**whole["sha256"], name: record.sha256_of(Path("x"))}
        texts.append(json.dumps({**whole, "sha256": sums}).encode())
    for content in texts:
        (part / DONE).write_bytes(content)
        assert not is_finished(part), content
    (part / DONE).unlink()
    assert not is_finished(part)
    assert not is_finished(Path("nowhere"))


def test_a_seal_covers_every_result_and_no_leftover() -> None:
    """What a killed process left half-written is neither sealed nor kept."""
    part = plant(Path("seeds-000-001"), [0, 1], sealed=False)
    (part / f".curve.parquet.{DEAD}").write_bytes(b"half")
    (part / ".DS_Store").write_bytes(b"a visitor's")
    seal(part)
    assert set(json.loads((part / DONE).read_text())["sha256"]) == set(FILES) - {DONE}
    assert leftovers(part) == [".DS_Store"]
    (part / ".DS_Store").unlink()
    assert is_finished(part)


def test_weights_in_a_folder_are_sealed() -> None:
    """They may be absent, as in a fresh checkout; then the part has none, and is finished."""

    def sealed() -> Path:
        part = plant(Path(f"{len(os.listdir())}/seeds-000-001"), [0, 1], sealed=False)
        (part / "model").mkdir()
        (part / "model" / "model.safetensors").write_bytes(b"weights")
        (part / "model" / "config.json").write_bytes(b"{}")
        seal(part, ("curve.png", "model"), "model")
        assert is_finished(part, with_weights=True)
        return part

    part = sealed()
    assert "model/model.safetensors" in read_json(part / DONE)["sha256"]
    (part / "model/config.json").unlink()
    assert is_finished(part)
    assert not is_finished(part, with_weights=True)
    shutil.rmtree(part / "model")
    assert is_finished(part)
    assert not is_finished(part, with_weights=True)
    part = sealed()
    (part / "model/model.safetensors").write_bytes(bytes(7))
    assert not is_finished(part)
    part = sealed()
    (part / "model").rename("elsewhere")
    (part / "model").symlink_to(Path("elsewhere").absolute())
    assert not is_finished(part)
    part = plant(Path("packed/seeds-000-001"), [0, 1], sealed=False)
    seal(part, ("curve.png", "model"), "model")  # as a published part is, whose weights are nowhere
    assert is_finished(part)
    assert not is_finished(part, with_weights=True)


@pytest.mark.parametrize(
    ("finished", "requested", "missing"),
    [
        ([], range(3), [[0, 1, 2]]),
        ([[0, 1, 2]], range(3), []),
        ([[0, 1, 2]], range(2), []),
        ([[0, 1]], range(5), [[2, 3, 4]]),
        ([[3, 4]], range(6), [[0, 1, 2], [5]]),
        ([[1], [3]], range(5), [[0], [2], [4]]),
        ([[0, 1], [4, 5], [2]], range(2, 8), [[3], [6, 7]]),
        ([[0, 1], [1, 2]], range(4), [[3]]),
        ([list(range(10))], range(30), [list(range(10, 30))]),
    ],
)
def test_missing_seeds_come_in_consecutive_groups(
    finished: list[list[int]], requested: range, missing: list[list[int]]
) -> None:
    folder = RunFolder(Path("run"))
    for seeds in finished:
        plant(folder.path / part_name(seeds), seeds)
    plant(folder.path / "seeds-900-901", [900, 901], sealed=False)  # interrupted
    assert folder.missing(requested) == missing
    assert folder.finished_seeds() == {seed for seeds in finished for seed in seeds}
    assert folder.missing([900]) == [[900]]


def test_a_seed_in_two_parts_counts_once() -> None:
    folder = RunFolder(Path("run"))
    for seeds in ([0, 1], [1, 2]):
        part = plant(folder.path / part_name(seeds), seeds, sealed=False)
        rows = [(s, t, mode, n, s + t) for s in seeds for t in (0, 8) for mode, n in MODES]
        columns = ["seed", "timestep", "mode", "episodes", "return_mean"]
        write_bytes(
            part / "curve.parquet", writing.parquet_bytes(pd.DataFrame(rows, columns=columns))
        )
        seal(part)
    curves = curve_of(StoredRun(folder.path, folder.parts(), [], []))
    assert len(curves) == 3 * 2 * len(MODES)
    assert (curves["return_mean"] == curves["seed"] + curves["timestep"]).all()


MODES = [("greedy", 32), ("greedy", 100), ("sampled", 100), ("train", 0)]


def python(code: str) -> subprocess.Popen[str]:
    """A process of its own, which waits for a line in the end."""
    pipe = subprocess.PIPE
    command = [sys.executable, "-c", f"from pathlib import Path\n{code}"]
    return subprocess.Popen(command, text=True, stdin=pipe, stdout=pipe)


def line_of(process: subprocess.Popen[str]) -> str:
    assert process.stdout
    return process.stdout.readline()


def test_a_seed_is_locked_against_other_processes_until_its_process_ends() -> None:
    code = "from manyseeds.locks import Locks; locks = Locks(Path('x'))\n"
    code += "print(*[locks.acquire(k) for k in (3, 5, 9)], flush=True); input()"
    ours = Locks(Path("x"))
    assert ours.acquire(5)
    assert ours.acquire(7)
    first = python(code)
    assert line_of(first) == "True False True\n"
    assert [ours.acquire(k) for k in (3, 5, 7, 9)] == [False, True, True, False]
    ours.release(5)
    first.kill()
    assert ours.acquire(3, wait=True)  # also of a process that was killed
    first.wait()
    second = python(code)
    assert line_of(second) == "False True True\n"
    ours.close()
    assert os.listdir() == [".x.locks"]  # the other one still needs it
    second.communicate("\n")
    Locks(Path("x")).close()
    assert os.listdir() == []


def test_a_seed_that_somebody_looks_at_is_taken_all_the_same(monkeypatch: Patch) -> None:
    """To look is to try: a batch is not split by it."""
    ours, looks, trains = Locks(Path("x")), Locks(Path("x")), Locks(Path("x"))
    assert looks.acquire(1)
    assert trains.acquire(2)
    monkeypatch.setattr(locks.time, "sleep", lambda seconds: looks.release(1))
    assert [*ours.acquire_free(range(4))] == [0, 3, 1]
    for x in (ours, looks, trains):
        x.close()


def test_more_seeds_are_locked_than_files_may_usually_be_open() -> None:
    usual = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, usual[1]))
    ours = Locks(Path("x"))
    try:
        assert len([*ours.acquire_free(range(400))]) == 400
    finally:
        ours.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, usual)
    assert os.listdir() == []


def test_locks_of_a_store_that_is_only_read_are_held(monkeypatch: Patch) -> None:
    def acquire(self: Any, timeout: float) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    Path(".x.locks").mkdir()
    Path(".x.locks/0.lock").touch()
    monkeypatch.setattr(locks.FileLock, "acquire", acquire)
    assert RunFolder(Path("x")).in_training([0, 1]) == {0}


def test_a_name_is_held_until_the_last_process_of_its_settings_has_left() -> None:
    """A and B train under it; C, with others, is refused also once A, who came first, has left."""
    code = "from manyseeds.locks import Locks; locks = Locks(Path('x'))\n"
    code += "print(locks.enter(b'ours').decode(), flush=True); input(); locks.close()"
    a, b = (process for process in map(python, [code] * 2) if line_of(process) == "ours\n")
    for process, joined in ((a, b"ours"), (b, b"others")):
        process.communicate("\n")
        locks = Locks(Path("x"))
        assert locks.enter(b"others") == joined
        locks.close()
    assert os.listdir() == []


def refused(*args: str) -> str:
    """Why a training by the command line is refused: one line, exit status 2."""
    err = io.StringIO()
    with contextlib.redirect_stderr(err), pytest.raises(SystemExit) as stop:
        train(q_learning, *args)
    assert stop.value.code == 2
    assert err.getvalue().count("\n") == 1
    return err.getvalue()


def link(path: Path) -> None:
    path.symlink_to(Path("victim").resolve())


def second_name(path: Path) -> None:
    path.hardlink_to("victim")


def dangling_link(path: Path) -> None:
    path.symlink_to(Path("nothing").resolve())


@contextlib.contextmanager
def deadline(seconds: int) -> Iterator[None]:
    """Fail where the block waits for ever."""

    def late(*args: object) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("name", ["", "0.lock", "entrance.lock", "settings.json"])
@pytest.mark.parametrize("make", [link, dangling_link, second_name, Path.mkdir, os.mkfifo])
def test_a_lock_file_that_is_something_else_is_refused(
    make: Callable[[Path], None], name: str
) -> None:
    """What it is called elsewhere must not be emptied, nor the other end of a pipe waited for."""
    folder = Path("r/runs/FrozenLake-v1/q_learning")
    folder.mkdir(parents=True)
    Path("victim").write_text("precious")
    locks = folder / ".x.locks"
    place = locks / name if name else locks
    place.parent.mkdir(exist_ok=True)
    if make is not Path.mkdir or name:
        make(place)
    else:
        place.write_text("")
    why = f"is not a {'file' if name else 'folder'}, or is a link"
    if make is second_name and name:
        why = "has a second name"
    with deadline(10):
        error = refused(*LAKE, "--name", "x", "--seeds", "1")
    assert error == f"error: {place}: {why}; remove it\n".replace("name;", "name (a hard link);")
    if name in ("", "0.lock"):
        with deadline(10), pytest.raises(UsageError, match=f"{place}: {why}"):
            RunFolder(folder / "x").in_training([0])
    assert os.listdir(folder) == [".x.locks"]
    assert not name or os.listdir(locks) == [name]
    assert Path("victim").read_text() == "precious"
    assert not Path("nothing").exists()


def test_another_schema_is_refused_in_one_line(capsys: Output) -> None:
    (part,) = train(q_learning, *LAKE, "--seeds", "2").parts()
    write_json(part / DONE, read_json(part / DONE) | {"schema": 1})
    err = refused(*LAKE, "--seeds", "2")
    assert err.startswith(f"error: {part}: has schema 1, this version reads 4\n")
    assert list(record.all_runs(Path("r"))) == []
    assert capsys.readouterr().err == err.replace("error:", "left out:")


# ---- The two layers ---------------------------------------------------------------------


@pytest.fixture
def two_layers(monkeypatch: Patch) -> tuple[Path, Path]:
    """The user's folder of results and a published one, both empty."""
    published = Path("published").resolve()
    for module in (record, cli):
        monkeypatch.setattr(module, "PUBLISHED", published)
    return Path(cli.RESULTS), published


def test_what_is_published_is_finished_for_nobody_who_trains(
    two_layers: tuple[Path, Path], capsys: Output
) -> None:
    own, published = two_layers
    args = (*LAKE[:-2], "--seeds", "2")
    folder = train(q_learning, *args)
    assert folder.path.is_relative_to(own)
    shutil.copytree(own, published)
    shutil.rmtree(own)
    capsys.readouterr()
    again = train(q_learning, *args)
    assert "finished in" not in capsys.readouterr().out
    assert again.finished_seeds() == {0, 1}
    train(q_learning, *args)
    assert "Finished already: 2 seeds in" in capsys.readouterr().out


def test_only_a_sweep_writes_what_is_published(
    two_layers: tuple[Path, Path], monkeypatch: Patch
) -> None:
    published = str(two_layers[1])
    error = refused(*LAKE[:-1], published)
    assert error.startswith(f"error: --results {published}: holds the published")
    assert not Path(published).exists()
    monkeypatch.setenv(cli.PUBLISHING, "1")
    assert train(q_learning, *LAKE[:-1], published).finished_seeds() == set(range(10))


def test_readers_see_both_layers_the_users_first(two_layers: tuple[Path, Path]) -> None:
    own, published = two_layers
    for results, seeds in ((published, [[0, 1], [2]]), (own, [[1], [5]])):
        for group in seeds:
            plant(results / "runs/E/a/x" / part_name(group), group)
    plant(published / "runs/E/b/y/seeds-000-000", [0])
    other = plant(own / "runs/E/b/z/seeds-001-001", [1], sealed=False)  # of other settings
    plant(published / "runs/E/b/z/seeds-000-000", [0])
    write_json(other / "config.json", config_of([1], gamma=0.5))
    seal(other, LOCAL, POLICY)
    runs = {run.path.name: run for run in record.all_runs(own)}
    first = own / "runs/E/a/x"
    assert runs["x"].parts()[:2] == [first / "seeds-001-001", first / "seeds-005-005"]
    assert runs["x"].finished_seeds() == {0, 1, 2, 5}
    assert runs["y"].finished_seeds() == {0}
    assert runs["z"].finished_seeds() == {1}  # another run, although its name is the same
    assert [run.path.name for run in record.all_runs(published)] == ["x", "y", "z"]
    assert next(record.all_runs(published)).finished_seeds() == {0, 1, 2}
    for name in ("E/a/x", "published/runs/E/a/x", f"{own}/runs/E/a/x"):
        assert record.find_run(name).finished_seeds() == {0, 1, 2, 5}, name
    assert record.find_run("E/b/y").finished_seeds() == {0}
    with pytest.raises(UsageError, match=r"E/c: no such folder"):
        record.find_run("E/c")


def test_the_recorded_command_does_not_say_where_results_lie(monkeypatch: Patch) -> None:
    words = ["algos/ppo.py", "--results", "x y", "--seeds", "2", "--results=z"]
    monkeypatch.setattr(sys, "argv", words)
    folder = train(q_learning, *LAKE, "--seeds", "1")
    assert open_run(folder).configs[0]["command"] == "python algos/ppo.py --seeds 2"


def test_the_commit_is_that_of_the_code_and_may_be_dirty(monkeypatch: Patch) -> None:
    def git(*words: str) -> None:
        identity = ["-c", "user.name=x", "-c", "user.email=x"]
        subprocess.run(["git", *identity, *words], check=True, capture_output=True)

    git("init", "-q")
    Path("a.py").write_text("x = 1\n")
    git("add", ".")
    git("commit", "-qm", "x")
    monkeypatch.setattr(record, "ROOT", Path.cwd())
    clean = record.commit()
    assert clean
    assert not clean.endswith("-dirty")
    Path("notes.md").touch()
    assert record.commit() == clean
    for name in ("mine.py", "kernel.c"):
        Path(name).touch()
        assert record.commit() == f"{clean}-dirty"
        Path(name).unlink()
    Path("a.py").write_text("x = 2\n")
    assert record.commit() == f"{clean}-dirty"
    Path("vendored").mkdir()  # a copy in another repository has none
    monkeypatch.setattr(record, "ROOT", Path.cwd() / "vendored")
    assert record.commit() == ""


# ---- Contents of folders ----------------------------------------------------------------


def test_a_folders_digest_is_of_its_names_and_contents(monkeypatch: Patch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "cache")
    folder = Path("model")
    folder.mkdir()
    (folder / "config.json").write_text("1")
    (folder / "vocab.txt").write_text("2")
    first = record.folder_digest(folder)
    assert record.folder_digest(folder) == first
    (folder / "setup.py").write_text("no file that a model is read from")
    assert record.folder_digest(folder) == first
    monkeypatch.setattr(record, "LARGE", 0)
    assert record.folder_digest(folder) == first
    read = []
    real = record.sha256_of
    monkeypatch.setattr(record, "sha256_of", lambda path: read.append(path) or real(path))  # type: ignore[func-returns-value]
    assert record.folder_digest(folder) == first
    assert read == []  # remembered by size and times
    before = os.stat(folder / "config.json")
    (folder / "config.json").write_text("3")
    os.utime(folder / "config.json", ns=(before.st_atime_ns, before.st_mtime_ns))
    assert record.folder_digest(folder) != first  # its other time nobody can set
    assert read == [folder / "config.json"]
    (folder / "config.json").write_text("1")
    assert record.folder_digest(folder) == first
    (folder / "config.json").rename(folder / "tokenizer.json")
    assert record.folder_digest(folder) != first
    shutil.copytree(folder, "moved")
    assert record.folder_digest(Path("moved")) == record.folder_digest(folder)
    read_by_tokenizers = (
        *(
            "vocab.json",
            "merges.txt",
            "vocab.bpe",
            "tekken.json",
            "source.spm",
            "target_vocab.json",
        ),
        *("spiece.model", "tokenizer.model.v3", "spm_char.model", "vocab-src.json", "dict.txt"),
    )
    digests = {record.folder_digest(folder)}
    for name in read_by_tokenizers:
        (folder / name).write_text("1")
        digests.add(record.folder_digest(folder))
    assert len(digests) == 1 + len(read_by_tokenizers)


@pytest.mark.parametrize(
    ("name", "content", "why"),
    [
        ("adapter_config.json", {}, "has an adapter; merge it into the model's own weights"),
        ("model.safetensors.index.json", {"weight_map": {"w": "other.safetensors"}}, "'other.saf"),
        ("model.safetensors.index.json", {"weight_map": {"w": "../model.safetensors"}}, "'../mod"),
        ("config.json", {"transformers_weights": "other.safetensors"}, "names weights in 'other."),
        ("config.json", {"transformers_weights": "model.safetensors"}, ""),
        ("model.safetensors.index.json", {"weight_map": {"w": "model.safetensors"}}, ""),
        ("model.safetensors.index.json", [], ""),
    ],
)
def test_a_models_folder_is_read_for_what_its_digest_covers(
    name: str, content: Any, why: str
) -> None:
    Path("model").mkdir()
    Path("model/model.safetensors").write_bytes(b"w")
    Path("model/other.safetensors").write_bytes(b"w")
    write_json(Path("model", name), content)
    if not why:
        record.folder_digest(Path("model"))
        return
    with pytest.raises(UsageError) as refused:
        record.folder_digest(Path("model"))
    assert why in str(refused.value)


# ---- Killed at every write --------------------------------------------------------------


def kill_at_write(patch: Patch, k: int) -> list[str]:
    """Kill the run at its k-th write (from 1), after the content is beside its target.

    The file beside it stays, as it would after kill -9. Returns the names written so far.
    """
    names: list[str] = []
    replace = os.replace

    def replace_or_die(beside: Path, target: Path) -> None:
        names.append(Path(target).name)
        if len(names) == k:
            shutil.copy(beside, Path(target).with_name(f".{Path(target).name}.{DEAD}"))
            raise Killed
        replace(beside, target)

    patch.setattr(record.os, "replace", replace_or_die)
    return names


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> dict[str, RunFolder]:
    """What a killed and resumed run must equal."""
    with pytest.MonkeyPatch.context() as patch:
        runs = {}
        for name, module, args in (("q", q_learning, LAKE), ("ppo", ppo, POLE)):
            where = tmp_path_factory.mktemp(name)
            patch.chdir(where)
            with pytest.MonkeyPatch.context() as log:
                names = kill_at_write(log, 0)
                folder = train(module, *args, "--seeds", "2")
            assert names == WRITES  # DONE.json last: these are all moments of a kill
            runs[name] = RunFolder(where / folder.path)
        return runs


@pytest.mark.parametrize("damaged", [False, True])
@pytest.mark.parametrize("k", range(2, len(WRITES) + 1), ids=WRITES[1:])
def test_killed_at_any_write_and_resumed(
    k: int, damaged: bool, uninterrupted: dict[str, RunFolder], monkeypatch: Patch
) -> None:
    """The same command again trains it again, to the same bits, and the debris is no result.

    damaged: it replaces a part whose seal must not vouch for new files.
    """
    part = Path("r/runs/FrozenLake-v1/q_learning/same/seeds-000-001")
    args = (*LAKE, "--seeds", "2", "--name", "same")
    if damaged:
        shutil.copytree(uninterrupted["q"].path / part.name, part)
        (part / "curve.parquet").write_bytes(b"damaged")
    with monkeypatch.context() as patch:
        names = kill_at_write(patch, k)
        with pytest.raises(Killed):
            train(q_learning, *args)
    assert names == WRITES[:k]
    assert leftovers(part) == [f".{WRITES[k - 1]}.{DEAD}"]
    assert not (part / DONE).exists()
    assert list(record.all_runs(Path("r"))) == []

    folder = train(q_learning, *args)
    assert folder.parts() == [part]
    assert sorted(os.listdir(part)) == sorted(FILES)
    same_curve(folder, uninterrupted["q"])
    theirs = uninterrupted["q"].path / part.name / POLICY
    assert (part / POLICY).read_bytes() == theirs.read_bytes()


@pytest.mark.parametrize(
    ("name", "content"), [("config.json", b"[]"), (DONE, b"{"), (DONE, None), (POLICY, None)]
)
def test_a_damaged_record_is_trained_again(
    name: str, content: bytes | None, uninterrupted: dict[str, RunFolder]
) -> None:
    """It must not stop the run that would mend it; None: a folder is in its place."""
    folder = RunFolder(Path("r/runs/FrozenLake-v1/q_learning/same"))
    part = folder.path / "seeds-000-001"
    shutil.copytree(uninterrupted["q"].path / part.name, part)
    folder_instead(part / name) if content is None else (part / name).write_bytes(content)
    assert folder.parts() == []
    train(q_learning, *LAKE, "--seeds", "2", "--name", "same")
    assert folder.parts() == [part]
    same_curve(folder, uninterrupted["q"])


# ---- Stopped by an error ----------------------------------------------------------------


class FullDisk(io.FileIO):
    """A file on a disk that is full."""

    def write(self, content: Any) -> int:
        super().write(content[: len(content) // 2])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("k", range(1, len(WRITES) + 1), ids=WRITES)
def test_a_full_disk_ends_in_one_line(k: int, monkeypatch: Patch, capsys: Output) -> None:
    """Exit status 1, and nothing is left."""
    count = 0

    def full_at_k(path: Any, mode: str = "r") -> Any:
        nonlocal count
        count += 1
        return FullDisk(path, mode) if count >= k else builtins.open(path, mode)

    monkeypatch.setattr(writing, "open", full_at_k, raising=False)
    with pytest.raises(SystemExit) as stop:
        train(q_learning, *LAKE, "--seeds", "1")
    assert stop.value.code == 1
    assert capsys.readouterr().err.endswith(f"/{WRITES[k - 1]}: No space left on device\n")
    assert not Path("r").exists()


# ---- The same command again, and more seeds ---------------------------------------------


def test_what_is_finished_is_reported_and_not_redone(capsys: Output, monkeypatch: Patch) -> None:
    args = (*LAKE, "--seeds", "3")
    folder = train(q_learning, *args)
    table = capsys.readouterr().out.partition("q_learning on FrozenLake-v1, 3 seeds")[2]
    before = {p: (p.read_bytes(), p.stat().st_mtime_ns) for p in Path("r").rglob("*.*")}

    def never(*args: Any) -> None:
        raise AssertionError("trained again")

    monkeypatch.setattr(q_learning, "QTable", never)
    train(q_learning, *args)
    out = capsys.readouterr().out
    assert out.startswith(f"Finished already: 3 seeds in {folder.path}.\n")
    assert out.partition("q_learning on FrozenLake-v1, 3 seeds")[2] == table
    train(q_learning, *LAKE, "--seeds", "1", "--first-seed", "1")
    assert capsys.readouterr().out.startswith(f"Finished already: 1 seed in {folder.path}.\n")
    assert {p: (p.read_bytes(), p.stat().st_mtime_ns) for p in Path("r").rglob("*.*")} == before


WHOLE = ("--total-timesteps", "120", "--hidden", "8", "--results", "r")


@pytest.mark.parametrize(
    ("module", "args"),
    [
        (q_learning, LAKE),
        (ppo, POLE),
        (reinforce, (*WHOLE, "--episodes", "2", "--weight", "baseline")),
        (grpo, (*WHOLE, "--group-size", "2")),
    ],
)
def test_more_seeds_tomorrow_train_only_the_missing_ones(
    module: Any, args: tuple[str, ...], capsys: Output
) -> None:
    """2, then 5, and both curves are those of 5 at once, bit for bit."""
    folder = train(module, *args, "--seeds", "2")
    first = {p.name: p.read_bytes() for p in (folder.path / "seeds-000-001").iterdir()}
    again = train(module, *args, "--seeds", "5")
    assert [part.name for part in again.parts()] == ["seeds-000-001", "seeds-002-004"]
    assert first == {p.name: p.read_bytes() for p in (folder.path / "seeds-000-001").iterdir()}
    at_once = train(module, *(a if a != "r" else "other" for a in args), "--seeds", "5")
    assert [part.name for part in at_once.parts()] == ["seeds-000-004"]
    same_curve(again, at_once)
    assert set(learning(again)["seed"]) == set(range(5))
    finals = [s["final"]["greedy"]["per_seed"] for s in open_run(again).summaries]
    (whole,) = open_run(at_once).summaries
    assert finals[0] | finals[1] == whole["final"]["greedy"]["per_seed"]
    assert f"{again.algo} on {open_run(again).env}, 5 seeds" in capsys.readouterr().out


# ---- Real processes ---------------------------------------------------------------------


def training(*flags: str) -> Script:
    """Start a longer training of the run x."""
    words = "--results r --name x --total-timesteps 30000 --quiet"
    return Script("algos/ppo.py", *words.split(), *flags)


def wait_for(path: str) -> None:
    for _ in range(6000):
        if Path(path).exists():
            return
        time.sleep(0.01)
    pytest.fail(f"{path} did not appear")


def test_a_run_is_not_trained_with_two_settings_at_the_same_time() -> None:
    """Other seeds under one name: the second command is refused before it has written anything."""
    args = (*LAKE, "--name", "x", "--seeds", "1")
    code = "from manyseeds.algos.q_learning import Config; from manyseeds.record import RunFolder\n"
    code += "config = Config(env='FrozenLake-v1', total_timesteps=500, results='r', name='x')\n"
    code += "with RunFolder.of(config, 'q_learning').locks(config) as locks:\n"
    code += "    print(locks.acquire(7), flush=True); input()"
    other = python(code)
    assert line_of(other) == "True\n"
    assert refused(*args, "--gamma", "0.5") == (
        "error: --name x: r/runs/FrozenLake-v1/q_learning/x is being trained with another config: "
        "--gamma 0.99 there, 0.5 here\n"
    )
    assert train(q_learning, *args).finished_seeds() == {0}  # the same settings are welcome
    shutil.rmtree("r/runs/FrozenLake-v1/q_learning/x")
    other.kill()
    other.communicate()
    assert leftovers(Path("r")) == [".x.locks"]
    folder = train(q_learning, *args, "--gamma", "0.5")  # what it has left holds no name
    assert folder.finished_seeds() == {0}
    assert not leftovers(Path("r"))


def test_a_record_that_could_not_be_read_again_is_refused_before_the_training(
    monkeypatch: Patch,
) -> None:
    monkeypatch.setattr(q_learning, "td_error", lambda *args: pytest.fail("trains"))
    monkeypatch.setattr(sys, "argv", ["x.py", "x" * 2**14])
    assert "command must be text of at most 16384 characters" in refused(*LAKE, "--seeds", "1")
    assert os.listdir() == []


def test_a_part_of_other_settings_that_appears_meanwhile_stops_the_seal(monkeypatch: Patch) -> None:
    td_error = q_learning.td_error
    there = Path("r/runs/FrozenLake-v1/q_learning/x/seeds-007-007")

    def and_meanwhile(*args: Any) -> Any:
        if not there.exists():
            plant(there, [7])
        return td_error(*args)

    monkeypatch.setattr(q_learning, "td_error", and_meanwhile)
    error = refused(*LAKE, "--name", "x", "--seeds", "1")
    assert error.startswith(f"error: --name x: {there.parent} holds another config: ")
    assert os.listdir(there.parent) == [there.name]


@pytest.mark.slow
def test_overlapping_commands_train_no_seed_twice() -> None:
    """The second trains what the first has not taken, waits for the rest, and shows all."""
    first = training("--seeds", "3")
    wait_for("r/runs/CartPole-v1/ppo/x/seeds-000-002/config.json")
    second = training("--seeds", "4", "--first-seed", "1")
    assert [process.run().stderr for process in (first, second)] == ["", ""]
    folder = RunFolder(Path("r/runs/CartPole-v1/ppo/x"))
    assert [part.name for part in folder.parts()] == ["seeds-000-002", "seeds-003-004"]
    assert "ppo on CartPole-v1, 4 seeds" in second.stdout


@pytest.mark.slow
def test_seeds_of_a_process_that_is_interrupted_are_trained_by_the_one_that_waits() -> None:
    first = training("--seeds", "2")
    wait_for("r/runs/CartPole-v1/ppo/x/seeds-000-001/config.json")
    first.send_signal(signal.SIGSTOP)  # or it might be done before the other has begun
    second = training("--seeds", "2")
    while not second.stdout.startswith("waiting for another process"):
        assert second.poll() is None
        time.sleep(0.01)
    first.send_signal(signal.SIGINT)
    first.send_signal(signal.SIGCONT)
    assert first.run().stderr.startswith("interrupted; ")
    assert second.run().stderr == ""
    assert second.poll() == 0
    assert RunFolder(Path("r/runs/CartPole-v1/ppo/x")).finished_seeds() == {0, 1}
    assert not leftovers(Path("r"))


@pytest.mark.parametrize("removed", ["a/b/.x.locks", "a"])
def test_a_lock_survives_that_its_folder_is_removed(removed: str) -> None:
    Path("a/b").mkdir(parents=True)
    locks = Locks(Path("a/b/x"))
    shutil.rmtree(removed)
    assert locks.acquire(3)
    assert os.listdir("a/b/.x.locks") == ["3.lock"]
    locks.close()
    assert not os.listdir("a/b")


def test_a_run_of_another_name_and_library() -> None:
    """A baseline trains by a function that is no file's, and records its packages."""
    config = parse(q_learning.Config, q_learning.PRESETS, "", (*LAKE, "--seeds", "3", "--quiet"))

    def of_another_library(peer: str, config: Any, run: Run) -> Any:
        return q_learning.train(config, run)

    def complete() -> RunFolder:
        work, run_class = partial(of_another_library, "x"), partial(Run, source="other")
        origins, packages = [q_learning.train], ("pandas",)
        return complete_seeds(config, work, run_class, "other-q", origins, packages)

    folder = complete()
    assert (folder.path.parent.name, folder.finished_seeds()) == ("other-q", {0, 1, 2})
    (part,) = folder.parts()
    stored = read_json(part / "config.json")
    assert (stored["algo"], stored["source"]) == ("other-q", "other")
    assert "manyseeds.algos.q_learning:train" in stored["code"]["origins"]
    assert stored["versions"]["pandas"] == pd.__version__
    shutil.rmtree(part)
    middle = plant(folder.path / "seeds-001-001", [1], sealed=False)
    write_json(middle / "config.json", {**stored, "seeds": [1]})
    seal(middle, LOCAL, POLICY)
    complete()  # parts of consecutive seeds
    names = [part.name for part in folder.parts()]
    assert names == ["seeds-000-000", "seeds-001-001", "seeds-002-002"]


def test_a_run_that_was_finished_while_one_waited_is_not_taken_for_ones_own() -> None:
    """Another command with other settings may end between the first look and the lock."""
    folder = train(q_learning, *LAKE, "--name", "x", "--seeds", "1")
    args = (*LAKE, "--name", "x", "--gamma", "0.5")
    config = parse(q_learning.Config, q_learning.PRESETS, "", args)
    said = r"holds another config: --gamma 0\.99 there, 0\.5 here"
    with pytest.raises(UsageError, match=said), folder.locks(config):
        pytest.fail("entered")
    assert not leftovers(Path("r"))


def test_a_file_that_changes_while_a_seed_is_trained_does_not_cost_the_seed(
    monkeypatch: Patch,
) -> None:
    """A part says what it was trained from when it began."""
    began = Path("r/runs/FrozenLake-v1/q_learning/x/seeds-001-001/config.json")
    monkeypatch.setattr(
        q_learning.Config, "contents", lambda self: {"data": "new" if began.exists() else "old"}
    )
    train(q_learning, *LAKE, "--name", "x", "--seeds", "1")
    config = parse(q_learning.Config, q_learning.PRESETS, "", (*LAKE, "--name", "x"))
    folder = RunFolder.of(config, "q_learning")
    run = Run(config, [1], began.parent, "q_learning")
    run.open([q_learning.train])
    run.finish(q_learning.train(config, run))
    assert folder.finished_seeds() == {0, 1}
