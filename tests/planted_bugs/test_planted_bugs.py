"""Every planted bug is noticed: its test fails with the bug, and passes without it."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from functools import cache

import pytest

from tests.planted_bugs import BUGS, CHAPTERS, TRAPS, main
from tests.planted_bugs.planting import ROOT, Bug, Copy, planted
from tests.verified import COLLECTED


@pytest.fixture(scope="session")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Copy]:
    with Copy(tmp_path_factory.mktemp("copy")) as copy:
        yield copy


@cache
def functions_of(file: str) -> set[str]:
    """The names of a file's test functions."""
    body = ast.parse((ROOT / file).read_text()).body
    names = [node.name for node in body if isinstance(node, ast.FunctionDef)]
    return {name for name in names if name.startswith("test_")}


def obstacles(bug: Bug) -> Iterator[str]:
    """Why a bug cannot be planted, or its test not run."""
    try:
        if planted(bug, ROOT) == (ROOT / bug.file).read_text():
            yield f"{bug.name}: changes nothing"
        elif bug.file.endswith(".py"):
            ast.parse(planted(bug, ROOT))  # any test notices what cannot be imported
    except (OSError, ValueError) as error:
        yield str(error)
    except SyntaxError as error:
        yield f"{bug.name}: {error}"
    file, _, function = bug.test.partition("[")[0].partition("::")
    if not (ROOT / file).is_file() or function not in functions_of(file):
        yield f"{bug.name}: there is no {file}::{function}"


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_bugs_can_be_planted(chapter: str) -> None:
    """The texts that they change are still there: quick, so that no edit leaves one behind."""
    assert not [problem for bug in CHAPTERS[chapter] for problem in obstacles(bug)]


def test_the_tests_are_collected(pytestconfig: pytest.Config) -> None:
    """With the parameters that a bug names: else nothing runs where it is planted."""
    named = {bug.test for bug in BUGS}
    there = pytestconfig.stash[COLLECTED]
    # Of this session, if it has begun with all of them; else of one of their own.
    missing = {test.partition("::")[0] for test in named} - {x.partition("::")[0] for x in there}
    if missing:
        command = [sys.executable, "-m", "pytest", "--collect-only", "-q"]
        found = subprocess.run([*command, *missing], cwd=ROOT, capture_output=True, text=True)
        assert found.returncode == 0, found.stdout
        there = there | set(found.stdout.splitlines())
    assert named <= there | {test.partition("[")[0] for test in there}


def test_what_cannot_be_planted_is_named() -> None:
    gone = Bug("gone", "envs/core.py", "no such text", "", "tests/envs/test_envs.py::test_nothing")
    found = list(obstacles(gone))
    assert found[0] == "gone: envs/core.py has the text 0 times"
    assert found[1] == "gone: there is no tests/envs/test_envs.py::test_nothing"
    assert len(list(obstacles(Bug("gone", "no.py", "", "", "no.py::test")))) == 2


def test_every_trap_has_a_bug_and_no_two_bugs_one_name() -> None:
    names = [bug.name for bug in BUGS]
    assert len(set(names)) == len(names)
    for trap in TRAPS:
        assert any(name.startswith(f"{trap}: ") for name in names), trap


@pytest.mark.parametrize(
    ("chapter", "bug"),
    [
        pytest.param(
            *(chapter, bug),
            id=bug.name,
            marks=[pytest.mark.slow, pytest.mark.verified(bug.file, bug.test.partition("::")[0])],
        )
        for chapter, bugs in CHAPTERS.items()
        for bug in bugs
    ],
)
def test_a_planted_bug_turns_its_test_red(
    chapter: str, bug: Bug, copy: Copy, request: pytest.FixtureRequest
) -> None:
    names = {item.name.partition("[")[2][:-1] for item in request.session.items}
    copy.turn_green(other for other in CHAPTERS[chapter] if other.name in names)
    assert copy.turns_red(bug)


def test_an_unknown_bug(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["no such thing"]) == 2
    assert "no bug is named like no such thing" in capsys.readouterr().err
