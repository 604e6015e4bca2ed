"""What most tests of the report do not look at, and what takes longer than all the rest of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from manyseeds import plots
from manyseeds.benchmarks.chapters import comparison
from manyseeds.record import write_bytes

Patch = pytest.MonkeyPatch
Output = pytest.CaptureFixture[str]
Refusal = Callable[..., str]  # of the fixture `refusal`
WHOLE = {"test_same_store_gives_the_same_bytes", "test_real_run_evaluated_exactly"}


@contextmanager
def shortened() -> Iterator[None]:
    """Reports without pictures in their files, and the quick suite alone."""

    def write(_: Any, path: Path, **settings: Any) -> None:
        write_bytes(path, b"<svg/>")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plots, "lines", write)
        patch.setattr(plots, "tree", write)
        patch.setattr(comparison, "SUITES", {"quick": comparison.SUITES["quick"]})
        yield


@pytest.fixture(autouse=True)
def short_report(request: pytest.FixtureRequest) -> Iterator[None]:
    """Of test_report.py, but for WHOLE."""
    if Path(request.path).stem == "test_report" and request.function.__name__ not in WHOLE:
        with shortened():
            yield
    else:
        yield


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
