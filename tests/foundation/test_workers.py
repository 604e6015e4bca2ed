"""Tests in forked workers, and tests that are left out since they passed with the same files."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from manyseeds.digest import ROOT
from tests import verified, workers

SHARED = """
import os, pytest

@pytest.fixture(scope="module")
def shared():
    print("set up in", os.getpid())
    yield os.getpid()

@pytest.mark.parametrize("k", range(6))
def test_shares(shared, k, tmp_path):
    assert shared == os.getpid()
    (tmp_path / "file").touch()
"""
FAILING = """
import os, warnings

def test_fails():
    print("said before")
    assert 1 + 1 == 3

def test_dies():
    os._exit(3)

def test_dies_too():
    os._exit(3)

def test_warns():
    warnings.warn("heard from a worker")
"""


def run(folder: Path, *words: str) -> tuple[int, str]:
    """Status and output of pytest on the tests of a folder, with these two plugins alone."""
    plugins = ["-p", "tests.workers", "-p", "tests.verified", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *plugins, "-c", os.devnull, "--rootdir", ".", *words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTEST_ADDOPTS": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


def test_workers_run_each_test_once(tmp_path: Path) -> None:
    """And set up what a file's tests share once, where no worker is idle."""
    for name in "ab":
        (tmp_path / f"test_{name}.py").write_text(SHARED)
    status, output = run(tmp_path, "--workers", "2", "-v", "-rP")
    assert status == 0, output
    assert "12 passed" in output
    assert len(re.findall(r"::test_shares\[\d\] PASSED", output)) == 12
    assert 2 <= len(set(re.findall(r"set up in (\d+)", output))) <= 2


def test_failures_and_lost_workers_are_told(tmp_path: Path) -> None:
    (tmp_path / "test_failing.py").write_text(FAILING)
    (tmp_path / "test_shared.py").write_text(SHARED)
    status, output = run(tmp_path, "--workers", "2")
    assert status == 1, output
    assert "assert (1 + 1) == 3" in output
    assert "said before" in output
    assert output.count("the worker died in this test") >= 2
    assert "3 failed, 7 passed, 1 warning" in output
    assert "heard from a worker" in output
    status, output = run(tmp_path, "--workers", "2", "-x", "test_failing.py")
    assert status == 1
    assert "stopping after" in output


def test_a_queue_gives_each_test_once_and_files_as_wholes() -> None:
    class Item:
        def __init__(self, nodeid: str) -> None:
            self.nodeid = nodeid

    items = [Item(f"a.py::{k}") for k in range(5)] + [Item("b.py::0"), Item("b.py::1")]
    queue = workers.Queue(items)  # type: ignore[arg-type]
    assert [queue.next(0), queue.next(1), queue.next(1)] == [0, 5, 6]  # the longest file first
    assert queue.next(1) == 3  # b is at its end: the second half of what is left of a
    assert [queue.next(k) for k in (0, 0, 1, 0, 1)] == [1, 2, 4, None, None]


def test_a_verified_test_runs_again_when_what_it_names_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a copy of this module's own, so that its list is not the project's."""
    plugin = tmp_path / "tests" / "verified.py"
    plugin.parent.mkdir()
    plugin.write_text(Path(verified.__file__).read_text().replace("SHARE = 10", "SHARE = 10**9"))
    (tmp_path / "code.py").write_text("1")
    (tmp_path / "test_slow.py").write_text(
        "import pytest\n@pytest.mark.verified('code.py')\n"
        "@pytest.mark.parametrize('k', [1, 2])\ndef test_it(k):\n    assert k != 3\n"
    )

    def outcome(*words: str) -> str:
        command = [sys.executable, "-m", "pytest", "-p", "tests.verified", "-c", os.devnull]
        monkeypatch.setenv("PYTHONPATH", str(tmp_path))
        done = subprocess.run(
            [*command, "--rootdir", ".", *words], cwd=tmp_path, capture_output=True, text=True
        )
        return re.sub(r" in .*", "", done.stdout.splitlines()[-1]).strip("= ")

    assert outcome() == "2 passed"
    assert outcome() == "2 passed"  # nothing is noted but under --verify
    assert outcome("--verify") == "2 passed"
    assert outcome("--verify", "test_slow.py::test_it[1]") == "1 passed"  # the other line stays
    assert outcome() == "2 deselected"
    assert outcome("test_slow.py::test_it") == "2 passed"
    (tmp_path / "code.py").write_text("2")
    assert outcome() == "2 passed"
    text = (tmp_path / "test_slow.py").read_text()
    (tmp_path / "test_slow.py").write_text(text.replace("[1, 2]", "[2, 3]"))
    assert outcome("--verify") == "1 failed, 1 passed"
    assert outcome() == "1 failed, 1 deselected"
    assert outcome("--verify", "test_slow.py::test_it[3]") == "1 failed"
    (tmp_path / "code.py").unlink()
    assert outcome() == "1 failed, 1 passed"
    (tmp_path / "tests/verified.txt").write_bytes(b"\xff")
    assert outcome() == "1 failed, 1 passed"


def test_a_commit_chooses_a_tenth() -> None:
    chosen = {c: {t for t in range(1000) if verified.is_chosen(str(t), c)} for c in ("a", "b")}
    assert all(60 < len(tests) < 140 for tests in chosen.values())
    assert chosen["a"] != chosen["b"]
