"""Merging stores: by checksum, nothing lost, two results of one part told apart."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from manyseeds.benchmarks import merge
from manyseeds.cli import PUBLISHED
from manyseeds.packed import RUNS
from manyseeds.record import POLICY, RunFolder, is_finished, pack, read_json, seal
from manyseeds.writing import write_json
from tests.benchmarks.conftest import Output, Refusal
from tests.benchmarks.test_report import around, plant

ALL = around(480.0)


def parts_of(results: Path) -> dict[str, bytes]:
    """Every finished part of a store and its seal."""
    found = [path.parent for path in (results / "runs").glob("*/*/*/[!.]*/DONE.json")]
    return {
        str(part.relative_to(results)): (part / "DONE.json").read_bytes()
        for part in found
        if is_finished(part)
    }


def store(path: Path, first: int, last: int, algo: str = "ppo", **more: Any) -> RunFolder:
    """A store with one part of seeds first to last."""
    return plant(path, algo, {seed: ALL[seed] for seed in range(first, last)}, **more)


def change(part: Path, **changes: Any) -> None:
    """Another record of how a part was trained."""
    write_json(part / "config.json", {**read_json(part / "config.json"), **changes})
    seal(part)


def run(*words: str | Path) -> int:
    """The exit status of a merge."""
    try:
        merge.main([str(word) for word in words])
    except SystemExit as stop:
        return int(stop.code or 0)
    return 0


def test_parts_of_several_stores_become_one(tmp_path: Path, capsys: Output) -> None:
    a, b, c = (tmp_path / name for name in "abc")
    store(a, 0, 5)
    store(a, 0, 2, "dqn")
    store(b, 5, 10)
    store(b, 7, 9, "a2c", sealed=False)
    assert run(a, b, "--results", c) == 0
    assert "merged 3 parts into" in (said := capsys.readouterr().out)
    assert "1 unfinished" in said
    both = parts_of(a) | parts_of(b)
    assert parts_of(c) == both
    (folder,) = [RunFolder(path) for path in (c / "runs/CartPole-v1/ppo").glob("[!.]*")]
    assert folder.finished_seeds() == set(range(10))
    assert run(a, b, "--results", c) == 0
    assert "merged 0 parts into" in (said := capsys.readouterr().out)
    assert "3 there already" in said
    assert parts_of(c) == both
    assert pack(a) == 2  # a packed store is merged like any other one
    assert run(a, b, "--results", c) == run(a, b, "--results", tmp_path / "d") == 0
    assert parts_of(tmp_path / "d") == both


def another(b: Path) -> tuple[Path, Any]:
    """Let a store have another result of seed 3; the part and its record."""
    plant(b, "ppo", {**ALL, 3: 17.0}, parts=[range(5)])
    (part,) = b.glob("runs/*/ppo/*/seeds-*")
    return part, read_json(part / "config.json")


def test_two_results_are_refused_with_both_records(tmp_path: Path, capsys: Output) -> None:
    a, b, c = (tmp_path / name for name in "abc")
    store(a, 0, 5)
    part, theirs = another(b)
    code = {**theirs["code"], "commit": "beef", "digest": "feed"}
    machine = {**theirs["machine"], "cpu": "Z80"}
    change(part, code=code, machine=machine, command="python another")
    store(b, 0, 2, "dqn")
    assert run(a, b, "--results", c) == 1
    said = capsys.readouterr()
    words = ["commit c0ffee", "commit beef", "Z80", "python another", "the-command-of ppo", "feed"]
    words += [str(part), theirs["code"]["digest"], theirs["versions"]["torch"]]
    assert not [word for word in words if word not in said.err]
    assert "merged 2 parts" in said.out
    assert "1 refused" in said.out
    assert parts_of(c).items() >= parts_of(a).items()


@pytest.mark.parametrize(
    ("final", "build", "word"),
    [
        (17.0, "torch", "kept the first"),
        (None, "AVX-512", "there already"),
        (17.0, "AVX2", "refused"),
    ],
)
def test_the_first_of_two_builds_is_kept(
    tmp_path: Path, capsys: Output, final: float | None, build: str, word: str
) -> None:
    """Also where only the times differ. All builds in C must have the same results."""
    a, b, c = (tmp_path / name for name in "abc")
    finals = ALL if final is None else {**ALL, 3: final}
    for results, scores, kernels in ((a, ALL, "AVX-512"), (b, finals, build)):
        plant(results, "ppo", scores, parts=[range(5)])
        (part,) = results.glob("runs/*/ppo/*/seeds-*")
        summary = {**read_json(part / "summary.json"), "learn_seconds": len(results.name + kernels)}
        write_json(part / "summary.json", {**summary, "total_seconds": time.perf_counter()})
        built = kernels if kernels == "torch" else {"instructions": kernels}
        change(part, execution={"device": "cpu", "threads": 1, "kernels": built})
    assert parts_of(a) != parts_of(b)
    assert run(a, b, "--results", c) == (word == "refused")
    assert f"1 {word}" in capsys.readouterr().out
    assert parts_of(c) == parts_of(a)


def test_another_version_is_no_other_build(tmp_path: Path) -> None:
    a, b = tmp_path / "a", tmp_path / "b"
    store(a, 0, 5)
    part, theirs = another(b)
    other = {"machine": {**theirs["machine"], "cpu": "Z80"}}
    change(part, **other, versions={**theirs["versions"], "torch": "1.0"})
    assert run(b, "--results", a) == 1
    change(part, **other, versions=theirs["versions"])
    assert run(b, "--results", a) == 0


def test_parts_that_overlap(tmp_path: Path, capsys: Output) -> None:
    """The same seeds in other blocks: what adds a seed is merged, if the shared ones are equal."""
    a, b, c = (tmp_path / name for name in "abc")
    store(a, 0, 5)
    store(b, 3, 8)
    plant(c, "ppo", {**ALL, 4: 17.0}, parts=[[4]])
    assert run(b, "--results", a) == 0
    assert "merged 1 part " in capsys.readouterr().out
    assert run(c, "--results", a) == 1
    assert "another result of the same seeds" in capsys.readouterr().err
    store(tmp_path / "d", 4, 6)
    assert run(tmp_path / "d", "--results", a) == 0
    assert "1 there already" in capsys.readouterr().out
    assert set(parts_of(a)) == set(parts_of(a)) | set(parts_of(b))
    assert len(parts_of(a)) == 2


def test_damaged_parts_are_named_and_the_others_merged(tmp_path: Path, capsys: Output) -> None:
    a, b, c = (tmp_path / name for name in "abc")
    for algo, damage in (("ppo", "curve.parquet"), ("a2c", "DONE.json"), ("dqn", "")):
        part = store(a, 0, 5, algo).parts()[0]
        if damage:
            (part / damage).write_text("{")
    linked = store(a, 0, 5, "trpo").parts()[0]
    (linked / "model").symlink_to("/etc")
    strange = store(a, 0, 5, "reinforce").parts()[0]
    change(strange, seeds="all")
    store(b, 5, 10)
    assert run(a, b, "--results", c) == 1
    said = capsys.readouterr()
    assert "merged 3 parts" in said.out
    assert "3 failed" in said.out
    for algo in ("ppo", "a2c", "reinforce"):
        assert f"failed: {a / 'runs/CartPole-v1' / algo}" in said.err
    assert len(said.err.splitlines()) == 3
    assert not list(c.rglob("model"))  # what is not sealed stays behind


def test_what_is_malformed_is_named_once_and_the_others_merged(
    tmp_path: Path, capsys: Output
) -> None:
    """A runs.json, also one whose names lead to other files; files where runs should be."""
    a, b, c = (tmp_path / name for name in "abc")
    algos = [store(a, 0, 5, algo).path.parent for algo in ("a2c", "ppo", "dqn")]
    pack(a)
    broken, evil, _ = (algo / RUNS for algo in algos)
    broken.write_text("{")
    evil.write_text(
        evil.read_text().replace('"DONE.json"', f'"{tmp_path}/x.json": {{}}, "DONE.json"')
    )
    (algos[2] / "notes.txt").write_text("mine")
    for algo in algos[:2]:
        (algo / "run").mkdir()
    store(b, 5, 10)
    assert run(a, b, "--results", c) == 1
    said = capsys.readouterr()
    assert "merged 2 parts" in said.out
    assert "2 failed" in said.out
    for line, file in zip(said.err.splitlines(), (broken, evil), strict=True):
        assert line.startswith(f"failed: {file}: has invalid content")
    assert not list(tmp_path.glob("x*"))


def test_a_damaged_target_is_replaced(tmp_path: Path) -> None:
    a, b = tmp_path / "a", tmp_path / "b"
    store(a, 0, 5)
    part = store(b, 0, 5).parts()[0]
    (part / "curve.parquet").write_text("half")
    (part / "more").mkdir()
    assert not parts_of(b)
    assert run(a, "--results", b) == 0
    assert parts_of(b) == parts_of(a)
    assert not (part / "more").exists()


def test_weights_come_with_a_part_that_lacked_them(tmp_path: Path) -> None:
    a, b = tmp_path / "a", tmp_path / "b"
    for results in (a, b):
        part = store(results, 0, 5).parts()[0]
        (part / POLICY).write_bytes(b"weights")
        seal(part, local=[POLICY], weights=POLICY)
    (part / POLICY).unlink()
    assert parts_of(b) == parts_of(a)
    assert run(a, "--results", b) == 0
    assert (part / POLICY).read_bytes() == b"weights"
    (part / POLICY).unlink()
    assert run(b, "--results", a) == 0
    assert len(list(a.rglob(POLICY))) == 1


def test_another_run_of_the_same_name(tmp_path: Path, capsys: Output) -> None:
    a, b = tmp_path / "a", tmp_path / "b"
    store(a, 0, 5, name="mine")
    store(b, 5, 10, name="mine", gamma=0.5)
    assert run(a, "--results", b) == 1
    assert "--gamma 0.5 there, 0.98 here" in capsys.readouterr().err
    assert len(parts_of(b)) == 1


def test_mistakes_are_one_line(tmp_path: Path, refusal: Refusal) -> None:
    a, here = tmp_path / "a", tmp_path / "here"
    store(a, 0, 5)
    (tmp_path / "empty").mkdir()
    for words, said in (
        ([], "name a results folder"),
        ([a, "--results", PUBLISHED], "holds the published runs"),
        ([a, "--results", a], "is the folder that is merged into"),
        ([tmp_path / "empty", "--results", here], "has no folder runs"),
        ([tmp_path / "nowhere", "--results", here], "has no folder runs"),
    ):
        assert said in refusal(merge.main, *words)
    assert not here.exists()


def in_child(function: Callable[..., object], *words: Any) -> int:
    """Call a function in a fork of this process; its id."""
    if child := os.fork():
        return child
    try:
        function(*words)
        os._exit(0)
    finally:
        os._exit(1)


def test_killed_merges_lose_nothing_and_are_completed(tmp_path: Path) -> None:
    a, b = tmp_path / "a", tmp_path / "b"
    plant(a, "ppo", ALL, parts=[[seed] for seed in range(10)])
    plant(a, "dqn", ALL, parts=[[seed] for seed in range(10)])
    before, counts = parts_of(a), []

    def merge_until(touched: int) -> None:
        """Killed as it touches a file or folder of b for so many times."""
        left = iter(range(touched))

        def kill(event: str, words: Any) -> None:
            touches = event in ("open", "os.mkdir", "os.rename") and str(b) in str(words)
            if touches and next(left, None) is None:
                os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(kill)
        merge.merge([a], b)

    for touched in range(60, 400, 37):
        assert os.waitpid(in_child(merge_until, touched), 0)[1] == signal.SIGKILL
        assert parts_of(b).items() <= before.items()
        assert parts_of(a) == before
        counts.append(len(parts_of(b)))
    assert sum(0 < count < len(before) for count in counts) > 2, "kills in the middle"
    assert run(a, "--results", b) == 0
    assert parts_of(b) == before
    assert not list(b.rglob(".*"))


def test_two_merges_at_once(tmp_path: Path) -> None:
    a, b, c = (tmp_path / name for name in "abc")
    plant(a, "ppo", ALL, parts=[[seed] for seed in range(6)])
    plant(b, "ppo", ALL, parts=[[seed] for seed in range(4, 10)])
    children = [in_child(merge.merge, [x, y], c) for x, y in ((a, b), (b, a), (b, b))]
    assert [os.waitpid(child, 0)[1] for child in children] == [0, 0, 0]
    assert parts_of(c) == parts_of(a) | parts_of(b)
    assert not list(c.rglob(".*"))


def test_seeds_that_are_being_trained_are_left_out(tmp_path: Path, capsys: Output) -> None:
    a, b = tmp_path / "a", tmp_path / "b"
    folder = plant(a, "ppo", ALL, parts=[range(5), range(5, 10)])
    target = b / "runs" / folder.path.relative_to(a / "runs")
    settings = read_json(folder.parts()[0] / "config.json")["config"]
    reader, writer = os.pipe()

    def train() -> None:
        with RunFolder(target).locks_for(settings) as locks:
            assert locks.acquire(7)
            os.write(writer, b"!")
            time.sleep(60)

    child = in_child(train)
    assert os.read(reader, 1)
    assert run(a, "--results", b) == 1
    assert "its seeds are being trained there" in capsys.readouterr().err
    assert [Path(name).name for name in parts_of(b)] == ["seeds-000-004"]
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    assert run(a, "--results", b) == 0
    assert len(parts_of(b)) == 2
