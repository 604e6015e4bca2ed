"""What the report says of many samples, and of dynamic sampling over steps and over samples."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from manyseeds.benchmarks.chapters import language_measures as chapter
from manyseeds.benchmarks.chapters.language_models import Method
from manyseeds.record import parquet_bytes, write_bytes

SEEDS = 5


def method(folder: Path, *, dynamic: bool, final: float, steps: int, many: float = 0.5) -> Any:
    """A run of 100 samples in some steps, whose pass@1 rises from 0.2 to `final` in a line, the
    same for all seeds but for a thousandth, and whose pass@16 goes from 0.6 to `many`."""
    frames, parts = [], []
    for seed in range(SEEDS):
        part = folder / f"{dynamic}" / f"seeds-{seed:03d}-{seed:03d}"
        done = np.linspace(0, 100, steps + 1)[1:]
        part.mkdir(parents=True)
        write_bytes(part / "metrics.parquet", parquet_bytes(pd.DataFrame({"samples": done})))
        points = np.linspace(0, 100, 11)
        rise = (final - 0.2) * points / 100 + 0.001 * seed
        frames.append(pd.DataFrame({"samples": points, "pass@1": 0.2 + rise, "point": range(11)}))
        parts.append(part)
    summaries = [
        {
            "initial": {"pass@1": 0.2 + 0.001 * seed, "pass@16": 0.6 + 0.001 * seed},
            "final": {"pass@1": final + 0.001 * seed, "pass@16": many + 0.002 * seed},
        }
        for seed in range(SEEDS)
    ]
    found = object.__new__(Method)
    vars(found).update(
        algo="dapo",
        task="addition",
        headline="pass@1",
        stale=False,
        settings={"dynamic_sampling": dynamic, "total_samples": 100},
        plain_settings={"dynamic_sampling": dynamic, "total_samples": 100},
        configs=[{"seeds": [seed]} for seed in range(SEEDS)],
        summaries=summaries,
        frames=frames,
        parts=parts,
        run=SimpleNamespace(path=folder),
    )
    return found


def test_ahead_over_steps_and_behind_over_samples(tmp_path: Path) -> None:
    (tmp_path / "plots").mkdir()
    dynamic = method(tmp_path, dynamic=True, final=0.8, steps=40)
    plain = method(tmp_path, dynamic=False, final=0.9, steps=100)
    text = chapter.steps_section([plain, dynamic], tmp_path)
    # After 40 of 100 steps the plain run is at 0.2 + 0.4 * 0.7.
    assert "is higher after equally many gradient steps (+0.320 " in text
    assert "after 40 steps" in text
    assert "and lower after equally many generated samples (-0.100 " in text
    assert (tmp_path / "plots/language-steps.svg").exists()
    assert chapter.steps_section([plain], tmp_path) == ""


def test_runs_that_differ_by_more_are_no_pair(tmp_path: Path) -> None:
    dynamic = method(tmp_path / "a", dynamic=True, final=0.8, steps=40)
    plain = method(tmp_path / "b", dynamic=False, final=0.9, steps=100)
    plain.settings["epochs"] = 2
    assert chapter.steps_section([plain, dynamic], tmp_path) == ""


@pytest.mark.parametrize(("many", "said"), [(0.5, True), (0.7, False)])
def test_pass_at_16_that_falls_is_said(tmp_path: Path, many: float, said: bool) -> None:
    (tmp_path / "tables").mkdir()
    run = method(tmp_path, dynamic=True, final=0.8, steps=10, many=many)
    text = chapter.many_samples_section([run], tmp_path)
    sentence = "**pass@16 falls while pass@1 rises with DAPO on addition (0.602 to 0.504).** "
    assert text.startswith(sentence) == said
    assert "| addition | DAPO | 5 |" in text


def test_without_16_samples_there_is_no_table(tmp_path: Path) -> None:
    run = method(tmp_path, dynamic=True, final=0.8, steps=10)
    for summary in run.summaries:
        del summary["final"]["pass@16"]
    assert chapter.many_samples_section([run], tmp_path) == ""
    assert chapter.length_section([run], tmp_path) == ""
