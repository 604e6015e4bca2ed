"""What the report says of many samples, and of dynamic sampling over steps and over samples."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from manyseeds.benchmarks.chapters import language_measures as chapter
from tests.benchmarks.test_language_claims import method


def run(folder: Path, *, dynamic: bool, final: float, steps: int, many: float = 0.5) -> Any:
    """DAPO's in some steps: pass@1 rises from 0.2 in a line, pass@16 begins at 0.6."""
    measures = {"pass@1": (0.2, final), "pass@16": (0.6, many), "cons@16": (0.5, 0.5)}
    made = method(folder, "dapo", "addition", {"total_samples": 100}, measures, steps=steps)
    made.settings = {"dynamic_sampling": dynamic, "total_samples": 100}
    made.plain_settings = made.settings
    for seed, summary in enumerate(made.summaries):  # or there would be no spread
        summary["final"]["pass@16"] += 0.001 * seed
    return made


def test_ahead_over_steps_and_behind_over_samples(tmp_path: Path) -> None:
    (tmp_path / "plots").mkdir()
    dynamic = run(tmp_path, dynamic=True, final=0.8, steps=40)
    plain = run(tmp_path, dynamic=False, final=0.9, steps=100)
    text = chapter.steps_section([plain, dynamic], tmp_path)
    # After 40 of 100 steps the plain run is at 0.2 + 0.4 * 0.7.
    said = "**After 40 steps of DAPO on addition, pass@1 with dynamic sampling is higher than with"
    assert text.startswith(f"{said}out it (+0.320 [")
    assert "After 100 generated samples it is lower (-0.100 [" in text
    assert (tmp_path / "plots/language-steps.svg").exists()
    assert chapter.steps_section([plain], tmp_path) == ""
    plain.settings["epochs"] = 2  # runs that differ by more are no pair
    assert chapter.steps_section([plain, dynamic], tmp_path) == ""


@pytest.mark.parametrize(("many", "said"), [(0.5, True), (0.7, False)])
def test_pass_at_16_that_falls_is_said(tmp_path: Path, many: float, said: bool) -> None:
    (tmp_path / "tables").mkdir()
    made = run(tmp_path, dynamic=True, final=0.8, steps=10, many=many)
    text = chapter.many_samples_section([made], tmp_path)
    sentence = "**With DAPO on addition pass@16 falls from 0.602 to 0.504 while pass@1 rises.** "
    assert text.startswith(sentence) == said
    assert "| addition | DAPO | 5 |" in text
    for summary in made.summaries:  # without 16 samples there is no table
        del summary["final"]["pass@16"]
    assert chapter.many_samples_section([made], tmp_path) == ""
    assert chapter.length_section([made], tmp_path) == ""
