"""What most tests of the report do not look at, and what takes longer than all the rest of them."""

from pathlib import Path
from typing import Any

import pytest

from manyseeds import plots
from manyseeds.benchmarks.chapters import comparison
from manyseeds.record import write_bytes

WHOLE = {"test_same_store_gives_the_same_bytes", "test_real_run_evaluated_exactly"}


@pytest.fixture(autouse=True)
def short_report(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """test_report.py, but for WHOLE: no pictures in its files, and the quick suite alone."""

    def write(_: Any, path: Path, **settings: Any) -> None:
        write_bytes(path, b"<svg/>")

    if Path(request.path).stem == "test_report" and request.function.__name__ not in WHOLE:
        monkeypatch.setattr(plots, "lines", write)
        monkeypatch.setattr(plots, "tree", write)
        monkeypatch.setattr(comparison, "SUITES", {"quick": comparison.SUITES["quick"]})
