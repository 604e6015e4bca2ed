"""What most tests of the report do not look at, and what takes longer than all the rest of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from manyseeds import plots
from manyseeds.benchmarks.chapters.blocks import Block, Table, cells_of, walk
from manyseeds.benchmarks.store import comparison
from manyseeds.writing import write_bytes

Patch = pytest.MonkeyPatch
Output = pytest.CaptureFixture[str]
Refusal = Callable[..., str]  # of the fixture `refusal`
WHOLE = {"test_same_store_gives_the_same_bytes", "test_real_run_evaluated_exactly"}


MEASURED = {  # what every file of measurements says of them
    "command": "python benchmarks/something.py",
    "machine": {"cpu": "a CPU"},
    "code": {"commit": "abc", "digest": "0123", "origins": []},
    "versions": {"torch": "2"},
}


def tables_of(blocks: Iterable[Block]) -> dict[str, list[list[str]]]:
    """The rows of all tables of a page, folded ones too, by name: no page has a table twice."""
    tables = [x for x in walk(blocks) if isinstance(x, Table)]
    names = [x.name for x in tables if x.name]
    assert len(set(names)) == len(names), names
    return {x.name: cells_of(x) for x in tables}


@pytest.fixture(autouse=True)
def short_report(request: pytest.FixtureRequest, monkeypatch: Patch) -> None:
    """Reports of test_report.py, but for WHOLE, draw no pictures and know the quick suite alone."""

    def write(*data: Any, path: Path | None = None, **settings: Any) -> None:
        write_bytes(path or data[-1], b"<svg/>")

    if Path(request.path).stem == "test_report" and request.function.__name__ not in WHOLE:
        for kind in ("lines", "forest", "tree"):
            monkeypatch.setattr(plots, kind, write)
        monkeypatch.setattr(comparison, "SUITES", {"quick": comparison.SUITES["quick"]})


@pytest.fixture
def refusal(capsys: Output) -> Refusal:
    """The line of error with which a script's `main` refuses the words of a command."""

    def of(main: Callable[[list[str]], object], *words: object, status: int = 2) -> str:
        capsys.readouterr()
        with pytest.raises(SystemExit) as stop:
            main([str(word) for word in words])
        error = capsys.readouterr().err
        assert (stop.value.code, error[:7], error.count("\n")) == (status, "error: ", 1), error
        return error

    return of
