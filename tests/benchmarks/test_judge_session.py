"""The session of fifty edits: that each of them is one, and what is written of them."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from manyseeds.benchmarks import judge
from manyseeds.benchmarks.measurements import judge_session
from manyseeds.benchmarks.store import sides
from manyseeds.cli import PUBLISHED
from manyseeds.digest import ROOT
from manyseeds.untrusted import check
from tests.benchmarks.conftest import Output, Patch

EFFECT = {"value": -0.1, "low": -0.2, "high": 0.0}


@pytest.mark.parametrize("edit", judge_session.read_edits(), ids=lambda x: x.name)
def test_every_edit_changes_the_file(edit: judge_session.Edit) -> None:
    before = judge_session.FILE.read_text()
    after = edit.of(before)
    compile(after, edit.name, "exec")
    assert sides.definitions_changed(after.encode(), before.encode())


def test_the_edits_are_fifty_of_three_kinds() -> None:
    edits = judge_session.in_order()
    assert sorted(x.name for x in edits) == sorted(x.name for x in judge_session.read_edits())
    assert len({x.name for x in edits}) == len({*map(str, (x.changes for x in edits))}) == 50
    assert min(Counter(x.kind for x in edits).values()) >= 15
    with pytest.raises(ValueError, match="the file has no 'absent'"):
        judge_session.Edit("x", "trick", {"absent": ""}).of("text")


def test_a_session_is_judged_confirmed_and_written(
    tmp_path: Path, monkeypatch: Patch, capsys: Output
) -> None:
    """By a stub of the judge, which keeps the third edit and calls it better once more."""
    files: list[Path] = []

    def stub(
        file: Path, against: str, envs: tuple[str, ...], minutes: float, results: Path
    ) -> dict[str, Any]:
        assert (against, envs, minutes) == (str(judge_session.FILE), ("CartPole-v1",), 0.5)
        assert results == tmp_path / "judge_session" / "CartPole-v1"
        files.append(file)
        number, kept = len(files), len(files) == 3
        found = {"word": "better" if kept else "equivalent", "effect": EFFECT, "base": 0.5}
        cells = [{"env": "CartPole-v1", "identical": False, **found, "physics": 0}]
        return {
            **{"try": number, "pytorch": {"changed": ["update"]}, "overall": found},
            **{"cells": cells, "seeds": 12, "seconds": 1.0, "kept": kept},
        }

    def confirm(flags: judge.Flags) -> list[dict[str, Any]]:
        assert flags.confirm
        assert flags.results == str(tmp_path / "judge_session" / "CartPole-v1")
        return [{"try": 3, "overall": {"word": "undecided"}, "kept": False}]

    monkeypatch.setattr(judge, "judge", stub)
    monkeypatch.setattr(judge, "judged", confirm)
    judge_session.main(["--minutes", "0.5", "--results", str(tmp_path)])
    printed = capsys.readouterr().out
    stored = json.loads((tmp_path / "judge_session_CartPole-v1.json").read_text())
    check(stored, judge_session.STORED, "")
    for x, file, edit in zip(stored["tries"], files, judge_session.in_order(), strict=True):
        assert (x["edit"], x["changes"]) == (edit.name, dict(edit.changes))
        assert file.read_text() == edit.of(judge_session.FILE.read_text())
    assert [x["confirmed"] for x in stored["tries"]].count(None) == 49
    assert stored["tries"][2]["confirmed"] == "undecided"
    assert judge_session.table({"CartPole-v1": stored["tries"]}) in printed
    assert "| 1 | " in printed
    assert "-20.0% [-40.0, +0.0]" in printed


WORDS = ("worse", "better", "equivalent", "undecided", "not yet decided")
MEASURED = ("CartPole-v1", "Acrobot-v1", "Pendulum-v1")
KINDS = {"same formula": "edits that change no formula", "mistake": "mistakes", "trick": "tricks"}


def test_the_page_tells_what_was_measured() -> None:
    sessions: dict[str, list[dict[str, Any]]] = {}
    for env in MEASURED:
        stored = json.loads((PUBLISHED / f"judge_session_{env}.json").read_text())
        check(stored, judge_session.STORED, "")
        assert stored["env"] == env
        sessions[env] = stored["tries"]
    page = (ROOT / "docs" / "judge.md").read_text()
    assert judge_session.table(sessions) in page
    rows: dict[str, list[str]] = {}
    for tries in sessions.values():
        for kind, name in KINDS.items():
            words = Counter(judge_session.word_of(x) for x in tries if x["kind"] == kind)
            said = [f"{words[word]} {word}" for word in WORDS if words[word]]
            rows.setdefault(f"{words.total()} {name}", []).append(", ".join(said))
        large = [x for x in tries if abs(x["effect"]["value"] / x["base"]) >= 0.1]
        assert {x["word"] for x in large} == {"worse"}
        seconds = median(x["seconds"] for x in large)
        assert seconds <= 60
        said = [f"{len(large)}, {seconds:.0f} s in the median"]
        rows.setdefault("effects of 10% or more, all of them worse", []).extend(said)
        kept = [x["confirmed"] for x in tries if x["kept"]]
        said = [f"{kept.count('better')} of {len(kept)}"]
        rows.setdefault("kept edits that were confirmed", []).extend(said)
        identical = [x["kind"] for x in tries if x["identical"]]
        assert identical.count("same formula") == 13
    for name, cells in rows.items():
        assert f"| {name} | {' | '.join(cells)} |" in page
