"""A length penalty beside the rules: a right answer earns less the longer it is.

    python llm_track/grpo.py --task rambling --reward examples/length_penalty.py:length_penalty

The penalty begins at FREE characters and is 1 at LONGEST. A wrong answer is not punished, so that
the model does not learn to give up early.
"""

from __future__ import annotations

from typing import Any

from manyseeds.llm_track.tasks import answer_of

FREE, LONGEST = 50, 150  # characters


def length_penalty(completions: list[str], answer: list[str], **columns: Any) -> list[float | None]:
    """From 0 to -1 for a completion with the right answer between its tags, None for others."""
    return [
        -min(max(len(text) - FREE, 0) / (LONGEST - FREE), 1.0) if answer_of(text) == right else None
        for text, right in zip(completions, answer, strict=True)
    ]
