"""The simulated store of benchmarks/store_scale.py."""

from __future__ import annotations

import itertools
from pathlib import Path

from manyseeds.benchmarks.measurements.store_scale import SEEDS, cells, simulate
from manyseeds.record import is_finished


def test_there_are_as_many_cells_as_one_asks_for() -> None:
    """10,000 parts need more runs than the suites have; none is there twice."""
    paths = [cell.folder().path for cell in itertools.islice(cells(), 400)]
    assert len(set(paths)) == 400


def test_every_part_is_finished(tmp_path: Path) -> None:
    runs = simulate(tmp_path, SEEDS + 1)
    parts = [sorted(run.iterdir()) for run in runs]
    assert [len(x) for x in parts] == [SEEDS, 1]
    assert all(is_finished(part) for run in parts for part in run)
