"""Every planted bug is noticed: its test fails with the bug, and passes without it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.planted_bugs import BUGS, Bug, copy_of_the_project, main, plant, turns_red


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return copy_of_the_project(tmp_path_factory.mktemp("copy"))


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_a_bug_can_be_planted(bug: Bug, tmp_path: Path) -> None:
    """The text that it changes is still there: quick, so that no edit leaves it behind."""
    from benchmarks.harness.digest import ROOT

    target = tmp_path / bug.file
    target.parent.mkdir(parents=True)
    target.write_text((ROOT / bug.file).read_text())
    plant(bug, tmp_path)
    assert target.read_text() != (ROOT / bug.file).read_text()
    assert bug.test.split("::")[0] in {f"tests/{path.name}" for path in (ROOT / "tests").iterdir()}


@pytest.mark.slow
@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_a_planted_bug_turns_its_test_red(bug: Bug, copy: Path) -> None:
    assert turns_red(bug, copy)


def test_an_unknown_bug(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["no such thing"]) == 2
    assert "no bug is named like no such thing" in capsys.readouterr().err
