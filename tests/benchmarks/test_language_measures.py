"""What the report says of many samples, and of dynamic sampling over steps and over samples."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from manyseeds.benchmarks.chapters import language_measures as chapter
from manyseeds.benchmarks.chapters.blocks import Figure, Text, text_of, walk
from tests.benchmarks.test_language_claims import method, rows, verdicts


def run(folder: Path, *, dynamic: bool, final: float, steps: int, many: float = 0.5) -> Any:
    """DAPO's in some steps: pass@1 rises from 0.2 in a line, pass@16 begins at 0.6."""
    measures = {"pass@1": (0.2, final), "pass@16": (0.6, many), "cons@16": (0.5, 0.5)}
    drawn = {"drawn": (100 / steps, 100 / steps)}
    made = method(folder, "dapo", "addition", {"total_samples": 100}, measures, drawn, steps=steps)
    made.settings = {"dynamic_sampling": dynamic, "total_samples": 100}
    made.plain_settings = made.settings
    for seed, summary in enumerate(made.summaries):  # or there would be no spread
        summary["final"]["pass@16"] += 0.001 * seed
    return made


def test_ahead_over_steps_and_behind_over_samples(tmp_path: Path) -> None:
    dynamic = run(tmp_path, dynamic=True, final=0.8, steps=40)
    plain = run(tmp_path, dynamic=False, final=0.9, steps=100)
    blocks = [*chapter.steps_section([plain, dynamic])]
    assert verdicts(blocks)[0].startswith("in part: -0.100 [")
    assert "; at this budget: pass@1 still rose in 2 of 2" in verdicts(blocks)[0]
    applied = (
        "Applied: a step draws on average 3 samples with dynamic sampling, 1 samples without it."
    )
    assert applied in [text_of(x) for x in walk(blocks) if isinstance(x, Text)]
    # After 40 of 100 steps the plain run is at 0.2 + 0.4 * 0.7.
    over = {row[1]: row[3][:6] for row in rows(blocks)}
    assert over == {"after 40 steps": "+0.320", "after 100 generated samples": "-0.100"}
    assert [x.name for x in walk(blocks) if isinstance(x, Figure)] == ["language-steps"]
    assert [*chapter.steps_section([plain])] == []
    plain.settings["epochs"] = 2  # runs that differ by more are no pair
    assert [*chapter.steps_section([plain, dynamic])] == []


@pytest.mark.parametrize(
    ("many", "said"), [(0.5, "rises in 0 and falls in 1"), (0.7, "rises in 1 and falls in 0")]
)
def test_pass_at_16_that_falls_is_said(tmp_path: Path, many: float, said: str) -> None:
    """Without a verdict: that of the page on claims is with more samples."""
    made = run(tmp_path, dynamic=True, final=0.8, steps=10, many=many)

    def text() -> str:
        blocks = [*chapter.many_samples_section([made])]
        assert verdicts(blocks) == []
        return " ".join(text_of(x) for x in blocks if isinstance(x, Text))

    assert f"Of 1 run of RL whose pass@1 rises, pass@16 {said}, by the" in text()
    blocks = [*chapter.many_samples_section([made])]
    assert rows(blocks, "language-many-samples")[0][:3] == ["addition", "DAPO", "5"]
    for summary in made.summaries:  # where pass@1 does not rise, nothing is said of pass@16
        summary["final"]["pass@1"] = 0.1
    assert "whose pass@1 rises" not in text()
    for summary in made.summaries:  # without 16 samples there is no table
        del summary["final"]["pass@16"]
    assert [*chapter.many_samples_section([made])] == [*chapter.length_section([made])] == []
