"""Packed parts: read as from folders, whole at each moment, and bounded if somebody else's."""

from __future__ import annotations

import io
import itertools
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from manyseeds import packed, record
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
    parquet_bytes,
    read_json,
    read_parquet,
    seal,
    write_bytes,
    write_json,
)

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
    config = {"seeds": seeds, "config": {"lr": part.parent.name}, "code": CODE}
    write_json(part / "config.json", config)
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


def test_packed_parts_are_read_as_from_their_folders() -> None:
    files = planted()
    before = [(run.path, run.parts(), run.finished_seeds()) for run in all_runs(RESULTS)]
    frames = {
        part: [read_parquet(part / x) for x in ("curve.parquet", "metrics.parquet")]
        for part in PARTS
    }
    for part in PARTS:
        (part / POLICY).unlink()
    assert pack(RESULTS) == 3
    assert sorted(x.name for x in ALGO.iterdir()) == [
        "curve.parquet",
        "metrics.parquet",
        "runs.json",
    ]
    assert [(run.path, run.parts(), run.finished_seeds()) for run in all_runs(RESULTS)] == before
    for part in PARTS:
        assert is_finished(part)
        assert not is_finished(part, with_weights=True)
        assert packed.files_of(part) == files[part]  # byte for byte
        assert read_json(part / "config.json") == json.loads(files[part]["config.json"])
        for name, frame in zip(("curve.parquet", "metrics.parquet"), frames[part], strict=True):
            pd.testing.assert_frame_equal(read_parquet(part / name), frame, check_exact=True)
        assert record.exists(part / "sweeps.json")
        assert not record.exists(part / "transcripts.json")
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
    planted()
    pack(RESULTS)
    lines = (ALGO / packed.RUNS).read_text().splitlines()
    keys = [str(part.relative_to(ALGO)) for part in PARTS]
    assert [line.split('"')[1] for line in lines if "/seeds-" in line[:20]] == keys
    (ALGO / packed.RUNS).write_text("\n".join(x for x in lines if not x.startswith(f'"{keys[0]}"')))
    assert RunFolder(ALGO / "a").parts() == [SECOND]
    shutil.rmtree(FIRST)
    plant(FIRST)
    pack(RESULTS)
    assert (ALGO / packed.RUNS).read_text().splitlines() == lines


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
    planted()
    pack(RESULTS)
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
        count = 0

        def counted(function: Callable[..., Any], k: int = k) -> Callable[..., Any]:
            def call(*args: Any, **kwargs: Any) -> Any:
                nonlocal count
                count += 1
                if count == k:
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
            assert {
                x: y for x, y in packed.files_of(part).items() if y != files[part].get(x)
            } == {}, (k, part)
    assert k > 10


@pytest.mark.parametrize("name", ["curve.parquet", "metrics.parquet", packed.RUNS])
def test_one_bit_of_a_packed_file_is_seen(name: str) -> None:
    planted()
    pack(RESULTS)
    for part in PARTS:
        shutil.rmtree(part)
    assert all(map(is_finished, PARTS))
    whole = (ALGO / name).read_bytes()
    place = whole.index(b'{"lr": "a"}') + 8 if name == packed.RUNS else len(whole) // 2
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
    copy_part(FIRST, RESULTS / "copy", RESULTS / "beside")  # and so does a copy in a folder
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
    write_json(part / "config.json", {"seeds": [0, 1], "config": identity(config), "code": CODE})
    seal(part, [POLICY], POLICY)
    pack(RESULTS)
    shutil.rmtree(folder.path)  # weights
    assert folder.missing(range(4)) == [[2, 3]]
    with folder.locks(config):
        pass
    other = parse(q_learning.Config, {}, "", ["--results", "r", "--name", "x", "--gamma", "0.5"])
    with pytest.raises(UsageError, match="holds another config"), folder.locks(other):
        pass


def test_what_is_no_json_and_no_table_is_not_packed() -> None:
    part = plant(FIRST)
    (part / "notes.txt").write_text("mine")
    seal(part)
    with pytest.raises(UsageError, match=r"notes\.txt: only JSON and parquet"):
        pack(RESULTS)
    assert is_finished(part)


# ---- Somebody else's ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    ["", "[]", "3", "{}", "{" * 9999, '{"sha256": 3, "proved": {}, "parts": {}}']
    + [
        f'{{"sha256": {{}}, "proved": {{}}, "parts": {{"{key}": {{}}}}}}'
        for key in ("../x/seeds-000-001", "a", "a/x", "/etc/plan", ".a/plan", "a/../plan")
    ],
    ids=[
        "empty",
        "list",
        "number",
        "object",
        "deep",
        "type",
        "up",
        "run",
        "name",
        "root",
        "hidden",
        "dots",
    ],
)
def test_a_malformed_runs_json_is_left_out(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    plant(OTHER)
    plant(RESULTS / "runs/CartPole-v1/a2c/a/seeds-000-001")
    (ALGO / packed.RUNS).write_text(text)
    assert [run.path.parent.name for run in all_runs(RESULTS)] == ["a2c"]
    assert capsys.readouterr().err.startswith(f"left out: {ALGO / packed.RUNS}: has invalid")
    with pytest.raises(UsageError, match="has invalid content"):
        RunFolder(ALGO / "a").parts()


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
    planted()
    pack(RESULTS)
    monkeypatch.setattr(packed, "MAX_CELLS", 100)
    (ALGO / "curve.parquet").write_bytes(content)
    with pytest.raises((ValueError, OSError, TypeError, AttributeError), match=error):
        read_parquet(OTHER / "curve.parquet")
    if "cells" in error:  # in a folder, too
        (OTHER / "curve.parquet").write_bytes(content)
        with pytest.raises(ValueError, match=error):
            read_parquet(OTHER / "curve.parquet")


def test_a_file_that_is_too_large_is_not_read() -> None:
    planted()
    pack(RESULTS)
    for name in (packed.RUNS, "curve.parquet"):
        with (ALGO / name).open("ab") as file:
            file.truncate(packed.MAX_BYTES + 1)  # sparse
    with pytest.raises(ValueError, match="bytes"):
        packed.check_table(ALGO / "curve.parquet")
    with pytest.raises(UsageError, match=r"more than .* bytes"):
        RunFolder(ALGO / "a").parts()
