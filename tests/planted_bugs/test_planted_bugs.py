"""Every planted bug is noticed: its test fails with the bug, and passes without it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import TypeGuard

import pytest

from tests.planted_bugs import BUGS, TRAPS, Bug, Copy, main, plant


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Copy]:
    with Copy(tmp_path_factory.mktemp("copy")) as copy:
        yield copy


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_a_bug_can_be_planted(bug: Bug, tmp_path: Path) -> None:
    """The text that it changes is still there: quick, so that no edit leaves it behind."""
    from manyseeds.digest import ROOT

    target = tmp_path / bug.file
    target.parent.mkdir(parents=True)
    target.write_text((ROOT / bug.file).read_text())
    plant(bug, tmp_path)
    assert target.read_text() != (ROOT / bug.file).read_text()
    file, _, function = bug.test.partition("[")[0].partition("::")
    tests = {node.name for node in ast.parse((ROOT / file).read_text()).body if is_test(node)}
    assert function in tests


def is_test(node: ast.stmt) -> TypeGuard[ast.FunctionDef]:
    return isinstance(node, ast.FunctionDef) and node.name.startswith("test_")


def test_every_trap_has_a_bug_and_no_two_bugs_one_name() -> None:
    names = [bug.name for bug in BUGS]
    assert len(set(names)) == len(names)
    for trap in TRAPS:
        assert any(name.startswith(f"{trap}: ") for name in names), trap


@pytest.mark.slow
@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_a_planted_bug_turns_its_test_red(bug: Bug, copy: Copy) -> None:
    assert copy.turns_red(bug)


def test_an_unknown_bug(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["no such thing"]) == 2
    assert "no bug is named like no such thing" in capsys.readouterr().err
