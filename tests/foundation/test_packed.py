"""Packed parts: read as from folders, whole at each moment, and bounded if somebody else's."""

from __future__ import annotations

import io
import itertools
import json
import os
import shutil
from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from manyseeds import packed, record, untrusted
from manyseeds.algos import q_learning
from manyseeds.cli import identity, parse
from manyseeds.errors import UsageError
from manyseeds.record import (
    PLAN,
    POLICY,
    RunFolder,
    all_runs,
    copy_part,
    find_run,
    is_finished,
    pack,
    read_json,
    read_parquet,
    seal,
)
from manyseeds.writing import HOST, parquet_bytes, write_bytes, write_json
from tests.records import config_of

RESULTS = Path("r")
ALGO = RESULTS / "runs/CartPole-v1/ppo"
FIRST, SECOND, OTHER = (ALGO / x for x in ("a/seeds-000-001", "a/seeds-002-002", "b/seeds-000-001"))
PARTS = (FIRST, SECOND, OTHER)
CODE = {"digest": "old", "commit": "1", "origins": ["x:f"]}
PROVED = {"digest": "new", "origins": ["y:f"], "verified": ["2"]}


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def plant(part: Path, **columns: Any) -> Path:
    """A finished part. columns: further ones of its metrics."""
    part.mkdir(parents=True)
    first, last = map(int, part.name.split("-")[1:])
    seeds = list(range(first, last + 1))
    config = config_of(seeds, lr=part.parent.name)
    write_json(part / "config.json", {**config, "code": CODE})
    write_json(part / "summary.json", {"score": 1e-05, "none": None, "é": float("nan")})
    (part / "sweeps.json").write_text('{"by":\n [1, 2]}\n')
    rows = {"seed": seeds, "return_mean": [0.1 + part.parent.name.count("b"), None][: len(seeds)]}
    write_bytes(part / "curve.parquet", parquet_bytes(pd.DataFrame(rows).assign(mode="greedy")))
    metrics = {"seed": seeds, **columns, "loss": np.float32(np.arange(len(seeds)))}
    write_bytes(part / "metrics.parquet", parquet_bytes(pd.DataFrame(metrics)))
    (part / POLICY).write_bytes(b"weights")
    seal(part, [POLICY], POLICY)
    return part


def content(part: Path) -> dict[str, bytes]:
    return {x.name: x.read_bytes() for x in part.iterdir() if x.name != POLICY}


def planted() -> dict[Path, dict[str, bytes]]:
    """Three parts in folders, of which one has a column more, and their files."""
    plant(FIRST)
    plant(SECOND, clipped=[0.5])
    plant(OTHER)
    return {part: content(part) for part in PARTS}


def planted_and_packed() -> None:
    planted()
    pack(RESULTS)


def test_packed_parts_are_read_as_from_their_folders() -> None:
    files = planted()
    before = [(run.path, run.parts(), run.finished_seeds()) for run in all_runs(RESULTS)]
    tables = [part / name for part in PARTS for name in ("curve.parquet", "metrics.parquet")]
    frames = {path: read_parquet(path) for path in tables}
    for part in PARTS:
        (part / POLICY).unlink()
    assert pack(RESULTS) == 3
    assert {x.name for x in ALGO.iterdir()} == {"curve.parquet", "metrics.parquet", packed.RUNS}
    assert [(run.path, run.parts(), run.finished_seeds()) for run in all_runs(RESULTS)] == before
    for part in PARTS:
        assert is_finished(part)
        assert not is_finished(part, with_weights=True)
        assert packed.files_of(part) == files[part]  # byte for byte
        assert read_json(part / "config.json") == json.loads(files[part]["config.json"])
        assert record.exists(part / "sweeps.json")
        assert not record.exists(part / "transcripts.json")
    for path, frame in frames.items():
        pd.testing.assert_frame_equal(read_parquet(path), frame, check_exact=True)
    assert find_run(str(ALGO / "a")).finished_seeds() == {0, 1, 2}
    assert find_run(str(SECOND)).path.resolve() == SECOND.resolve()
    for path in (ALGO / "c", FIRST.with_name("seeds-000-002"), ALGO / "runs.json"):
        with pytest.raises(UsageError, match="no such folder"):
            find_run(str(path))
        assert not is_finished(path)
        with pytest.raises(FileNotFoundError):
            read_json(path / "config.json")
        with pytest.raises(FileNotFoundError):
            read_parquet(path / "curve.parquet")


def test_runs_json_has_a_line_per_part_in_order() -> None:
    """And so a published part is a line of a diff, and can be deleted by hand."""
    planted_and_packed()
    lines = (ALGO / packed.RUNS).read_text().splitlines()
    keys = [str(part.relative_to(ALGO)) for part in PARTS]
    assert [line.split('"')[1] for line in lines if "/seeds-" in line[:20]] == keys
    (ALGO / packed.RUNS).write_text("\n".join(x for x in lines if not x.startswith(f'"{keys[0]}"')))
    assert RunFolder(ALGO / "a").parts() == [SECOND]
    shutil.rmtree(FIRST)
    plant(FIRST)
    pack(RESULTS)
    assert (ALGO / packed.RUNS).read_text().splitlines() == lines
    (last,) = (x for x in lines if x.startswith(f'"{keys[-1]}"'))
    (ALGO / packed.RUNS).write_text("\n".join(x for x in lines if x != last))
    assert [run.path.name for run in all_runs(RESULTS)] == ["a"]


def test_weights_stay_and_further_parts_are_added() -> None:
    files = planted()
    shutil.rmtree(OTHER)
    pack(RESULTS)
    assert is_finished(FIRST, with_weights=True)
    assert [x.name for x in FIRST.iterdir()] == [POLICY]
    (FIRST / POLICY).write_bytes(b"other weights")
    assert not is_finished(FIRST)
    shutil.rmtree(FIRST)
    plant(OTHER)
    assert pack(RESULTS) == 1
    assert {part: packed.files_of(part) for part in PARTS} == files
    assert pack(RESULTS) == 0


def test_a_folder_counts_before_what_is_packed() -> None:
    planted_and_packed()
    shutil.rmtree(ALGO / "a")
    plant(FIRST, clipped=[1.0, 2.0])
    new = content(FIRST)
    assert is_finished(FIRST)
    assert "clipped" in read_parquet(FIRST / "metrics.parquet")
    pack(RESULTS)
    assert packed.files_of(FIRST) == new
    # What is being trained anew is not finished, and does not hide what is packed once it is gone.
    write_json(FIRST / "config.json", {"seeds": [0, 1], "config": {}})
    assert not is_finished(FIRST)
    pack(RESULTS)
    (FIRST / "config.json").unlink()
    assert is_finished(FIRST)
    plant(damaged := ALGO / "a/seeds-007-007")
    (damaged / "curve.parquet").write_bytes(b"")
    assert pack(RESULTS) == 0
    assert (damaged / record.DONE).exists()


def test_an_interrupted_packing_loses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed after each write and each removal: every part is whole, then and in the end."""
    files = planted()
    for part in (FIRST, OTHER):
        (part / POLICY).unlink()
    shutil.rmtree(SECOND)
    pack(RESULTS)
    plant(SECOND, clipped=[0.5])
    shutil.copytree(RESULTS, "before")

    class Killed(BaseException):
        pass

    for k in itertools.count(1):
        shutil.rmtree(RESULTS)
        shutil.copytree("before", RESULTS)
        counter = itertools.count(1)

        def counted(
            function: Callable[..., Any], k: int = k, counter: Iterator[int] = counter
        ) -> Callable[..., Any]:
            def call(*args: Any, **kwargs: Any) -> Any:
                if next(counter) == k:
                    raise Killed
                return function(*args, **kwargs)

            return call

        with monkeypatch.context() as patch:
            patch.setattr(record, "write_bytes", counted(record.write_bytes))
            patch.setattr(Path, "unlink", counted(Path.unlink))
            try:
                pack(RESULTS)
            except Killed:
                pass
            else:
                break
        assert [run.parts() for run in all_runs(RESULTS)] == [[FIRST, SECOND], [OTHER]]
        pack(RESULTS)
        assert not list(RESULTS.rglob("seeds-*/*.json"))
        for part in PARTS:
            assert packed.files_of(part).items() <= files[part].items(), (k, part)
    assert k > 10


@pytest.mark.parametrize("missing", [False, True])
def test_a_table_that_is_damaged_gets_no_new_checksum(missing: bool) -> None:
    planted()
    shutil.move(OTHER, "other")
    pack(RESULTS)
    shutil.move("other", OTHER)
    rows = pd.read_parquet(ALGO / "curve.parquet").assign(return_mean=500.0)
    rows.to_parquet(ALGO / "curve.parquet", index=False)
    if missing:
        (ALGO / "curve.parquet").unlink()
    before = (ALGO / packed.RUNS).read_text()
    with pytest.raises(UsageError, match=r"ppo/curve\.parquet: differs from its checksum"):
        pack(RESULTS)
    with pytest.raises(UsageError, match=f"{FIRST}: is damaged"):
        copy_part(FIRST, RESULTS / "copy")
    assert (ALGO / packed.RUNS).read_text() == before
    assert not is_finished(FIRST)
    assert (OTHER / record.DONE).exists()


@pytest.mark.parametrize("name", ["curve.parquet", "metrics.parquet", packed.RUNS])
def test_one_bit_of_a_packed_file_is_seen(name: str) -> None:
    planted_and_packed()
    for part in PARTS:
        shutil.rmtree(part)
    assert all(map(is_finished, PARTS))
    whole = (ALGO / name).read_bytes()
    place = whole.index(b'"lr": "a"}') + 7 if name == packed.RUNS else len(whole) // 2
    (ALGO / name).write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
    assert not is_finished(FIRST)
    (ALGO / name).unlink()
    assert not is_finished(OTHER)
    assert RunFolder(ALGO / "a").parts() == []


def test_a_run_whose_code_was_proved_equal_says_so_in_one_line() -> None:
    """Its parts keep what trained them, and a part of other code is as it was."""
    planted()
    config = read_json(SECOND / "config.json")
    write_json(SECOND / "config.json", {**config, "code": {**CODE, "digest": "another"}})
    seal(SECOND, [POLICY], POLICY)
    pack(RESULTS)
    before = (ALGO / packed.RUNS).read_text().splitlines()
    write_bytes(ALGO / packed.RUNS, packed.with_proved(ALGO, {"a/seeds-000-001": PROVED}))
    new = [x for x in (ALGO / packed.RUNS).read_text().splitlines() if x not in before]
    assert len(new) == 1
    assert read_json(FIRST / "config.json")["code"] == {**CODE, **PROVED}
    assert read_json(SECOND / "config.json")["code"]["digest"] == "another"
    assert read_json(OTHER / "config.json")["code"] == CODE
    assert all(map(is_finished, PARTS))
    write_bytes(ALGO / packed.RUNS, packed.with_proved(ALGO, {"a/seeds-002-002": PROVED}))
    assert read_json(SECOND / "config.json")["code"]["digest"] == "new"
    assert read_json(FIRST / "config.json")["code"]["digest"] == "new"
    plant(ALGO / "a/seeds-003-003")
    pack(RESULTS)  # keeps the lines
    assert read_json(FIRST / "config.json")["code"] == {**CODE, **PROVED}
    copy_part(FIRST, RESULTS / "copy")  # and so does a copy in a folder
    assert read_json(RESULTS / "copy/config.json")["code"] == {**CODE, **PROVED}
    assert is_finished(RESULTS / "copy", with_weights=True)


def test_a_plan_is_packed_too() -> None:
    part = plant(ALGO / "a/seeds-000-000").rename(ALGO / "a" / PLAN)
    pack(RESULTS)
    assert RunFolder(ALGO / "a").parts() == [part]


def test_a_packed_run_keeps_its_name() -> None:
    """Training into it trains what is missing; other settings under its name are refused."""
    config = parse(q_learning.Config, {}, "", ["--results", "r", "--name", "x"])
    folder = RunFolder.of(config, "q_learning")
    part = plant(folder.path / "seeds-000-001")
    write_json(part / "config.json", config_of([0, 1], **identity(config)))
    seal(part, [POLICY], POLICY)
    pack(RESULTS)
    shutil.rmtree(folder.path)  # weights
    assert folder.missing(range(4)) == [[2, 3]]
    with folder.locks(config):
        pass
    other = parse(q_learning.Config, {}, "", ["--results", "r", "--name", "x", "--gamma", "0.5"])
    with pytest.raises(UsageError, match="holds another config"), folder.locks(other):
        pass


UNREADABLE: dict[str, tuple[str, Any, str]] = {  # a file, its text or columns, what is said
    "none": ("losses.parquet", {"loss": [None, None]}, r"ppo/losses\.parquet: cannot be packed"),
    "whole": ("losses.parquet", {"loss": [1, 2]}, "cannot be packed"),
    "single": ("losses.parquet", {"loss": np.ones(2, np.float32)}, "cannot be packed"),
    "empty": ("losses.parquet", {"loss": []}, "cannot be packed"),
    "run": ("losses.parquet", {"run": [0.5, 1.5]}, "cannot be packed"),
    "text": ("notes.txt", "mine", r"notes\.txt: only JSON and parquet"),
    "MAX_CELLS": ("x.json", "{}", "more than 5 "),
    "MAX_BYTES": ("x.json", "{}", "more than 5 "),
}


@pytest.mark.parametrize("kind", UNREADABLE)
def test_what_would_be_read_otherwise_is_not_packed(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is written, and all is as it was."""
    name, content, said = UNREADABLE[kind]
    planted()
    files = {SECOND / "losses.parquet": {"loss": [0.5, 1.5]}, OTHER / name: content}
    for path, x in files.items():
        write_bytes(path, x.encode() if isinstance(x, str) else parquet_bytes(pd.DataFrame(x)))
        seal(path.parent, [POLICY], POLICY)
    if kind.startswith("MAX"):
        monkeypatch.setattr(untrusted, kind, 5)
    with pytest.raises(UsageError, match=said):
        pack(RESULTS)
    assert [x.name for x in sorted(ALGO.iterdir())] == ["a", "b"]
    assert [run.parts() for run in all_runs(RESULTS)] == [[FIRST, SECOND], [OTHER]]


def test_what_a_killed_packing_was_writing_is_removed() -> None:
    plant(FIRST)
    dead = f"{HOST}.{2**22 + 1}.partial"  # more than Linux has
    kept = {ALGO / ".a.2", ALGO / f".runs.json.{HOST}.{os.getppid()}.partial"}
    for path in (*kept, ALGO / f".runs.json.{dead}", ALGO / f".curve.parquet.{dead}"):
        path.write_text("")
    pack(RESULTS)
    assert {*ALGO.glob(".*")} == kept


# ---- Somebody else's ------------------------------------------------------------------------


def edit(change: Callable[[Any], Any]) -> None:
    """Change what runs.json has, and the checksums of JSON files and tables with it."""
    content = json.loads((ALGO / packed.RUNS).read_text())
    change(content)
    for line in content["parts"].values():
        sums = line[record.DONE]["sha256"]
        sums |= {x: sha256(packed._text(line[x])).hexdigest() for x in sums if x in line}
    for name in content["sha256"]:
        content["sha256"][name] = [sha256((ALGO / name).read_bytes()).hexdigest()]
    (ALGO / packed.RUNS).write_text(json.dumps(content))


def line_of(content: Any, part: Path = FIRST) -> Any:
    return content["parts"][part.relative_to(ALGO).as_posix()]


def file_named(name: str) -> Callable[[Any], Any]:
    return lambda content: line_of(content).update({name: {}})


def part_named(key: str) -> Callable[[Any], Any]:
    return lambda content: content["parts"].update({key: line_of(content)})


def columns(value: Any) -> Callable[[Any], Any]:
    return lambda content: line_of(content).update({packed.COLUMNS: value})


WRONG: dict[str, str | Callable[[Any], Any]] = {
    "empty": "",
    "list": "[]",
    "number": "3",
    "object": "{}",
    "deep": "{" * 9999,
    "type": '{"sha256": 3, "proved": {}, "parts": {}}',
    "up": part_named("../x/seeds-000-001"),
    "run": part_named("a"),
    "name": part_named("a/x"),
    "root": part_named("/etc/plan"),
    "hidden": part_named(".a/plan"),
    "dots": part_named("a/../plan"),
    "null": part_named("a\0/plan"),
    "surrogate": part_named("\ud800/plan"),
    "line": part_named("a\n/plan"),
    "escape": part_named("\x1b[31m/plan"),
    "long": part_named(241 * "a" + "/plan"),
    "file-root": file_named("/tmp/x.json"),
    "file-up": file_named("../../x.json"),
    "file-kind": file_named("x.txt"),
    "file-escape": file_named("\x07.json"),
    "sealed-up": lambda content: line_of(content)[record.DONE]["sha256"].update({"../x": ""}),
    "columns-number": columns(3),
    "columns-list": columns(["seed"]),
    "columns-text": columns({"curve.parquet": "seed"}),
    "columns-numbers": columns({"curve.parquet": [1.5]}),
}


@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG)
def test_a_malformed_runs_json_is_left_out(
    wrong: str | Callable[[Any], Any], capsys: pytest.CaptureFixture[str]
) -> None:
    """With one line, though there are runs in folders beside it."""
    planted()
    plant(RESULTS / "runs/CartPole-v1/a2c/a/seeds-000-001")
    pack(RESULTS)
    plant(ALGO / "c/seeds-000-001")
    if isinstance(wrong, str):
        (ALGO / packed.RUNS).write_text(wrong)
    else:
        edit(wrong)
    assert [run.path.parent.name for run in all_runs(RESULTS)] == ["a2c"]
    said = capsys.readouterr().err
    assert said.startswith(f"left out: {ALGO / packed.RUNS}: has invalid")
    assert len(said.splitlines()) == 1
    with pytest.raises(UsageError, match="has invalid content"):
        RunFolder(ALGO / "a").parts()


@pytest.mark.parametrize("code", [None, 3, [1], "x", {}, {"digest": [1]}, CODE])
def test_a_config_that_says_anything_is_read(code: Any) -> None:
    planted_and_packed()

    def change(content: Any) -> None:
        line_of(content)["config.json"] = {"code": code}
        line_of(content, SECOND)["config.json"] = [code]
        content["proved"]["a"] = {"old": "no code"}

    edit(change)
    shutil.rmtree(ALGO / "a")
    assert read_json(FIRST / "config.json") == {"code": code}
    assert read_json(SECOND / "config.json") == [code]
    assert RunFolder(ALGO / "a").parts() == [FIRST, SECOND]


@pytest.mark.parametrize("wrong", ["short", "columns"])
def test_what_cannot_be_read_is_not_copied(wrong: str) -> None:
    """And of what can be read, the files that are sealed."""
    planted_and_packed()
    edit(file_named("more.json"))
    assert "more.json" not in packed.files_of(FIRST)
    if wrong == "short":
        (ALGO / "curve.parquet").write_bytes((ALGO / "curve.parquet").read_bytes()[:99])
    edit(columns({"metrics.parquet": ["nothing"]}) if wrong == "columns" else bool)
    assert is_finished(FIRST)
    with pytest.raises(UsageError, match="has invalid content"):
        copy_part(FIRST, RESULTS / "copy")
    assert not (RESULTS / "copy").exists()


@pytest.mark.parametrize("name", ["curve.parquet", packed.RUNS])
def test_a_pipe_or_device_is_not_read(name: str) -> None:
    """It may never end. This one does, and so do the checksums of what it gives."""
    planted_and_packed()
    (ALGO / name).unlink()
    (ALGO / name).symlink_to("/dev/null")
    if name != packed.RUNS:
        edit(bool)
        assert not is_finished(FIRST)
    else:
        with pytest.raises(UsageError, match="is a link"):
            is_finished(FIRST)


def table(rows: int, **columns: Any) -> bytes:
    buffer = io.BytesIO()
    frame = pd.DataFrame({"run": "a", "part": "seeds-000-001", "seed": np.zeros(rows)})
    frame.assign(**columns).to_parquet(buffer, index=False)
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("content", "error"),
    [
        (table(40), "more than .* cells"),
        (b"PAR1", "."),
        (table(3, run=["a", "b", "a"]), "in several places"),
        (table(3, run=[1, 2, 3]), "."),
        (table(3, part=None), "."),
    ],
    ids=["large", "short", "mixed", "numbers", "none"],
)
def test_a_malformed_table_is_refused(
    content: bytes, error: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file of a few hundred bytes may declare more rows than there is memory."""
    planted_and_packed()
    monkeypatch.setattr(untrusted, "MAX_CELLS", 100)
    (ALGO / "curve.parquet").write_bytes(content)
    with pytest.raises(UsageError, match=error):
        read_parquet(OTHER / "curve.parquet")
    if "cells" in error:  # in a folder, too
        (OTHER / "curve.parquet").write_bytes(content)
        with pytest.raises(UsageError, match=error):
            read_parquet(OTHER / "curve.parquet")


def test_a_file_that_is_too_large_is_not_read() -> None:
    planted_and_packed()
    for name in (packed.RUNS, "curve.parquet"):
        with (ALGO / name).open("ab") as file:
            file.truncate(untrusted.MAX_BYTES + 1)  # sparse
    with pytest.raises(UsageError, match="bytes"):
        untrusted.read_parquet(ALGO / "curve.parquet")
    with pytest.raises(UsageError, match=r"bytes, more than"):
        RunFolder(ALGO / "a").parts()
