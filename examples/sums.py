"""Sums of small numbers in words, for a real language model: see examples/smollm2.py."""

from __future__ import annotations

import numpy as np

from manyseeds.llm_track.tasks import GeneratedTask, Problem

WORDS = (
    "What is {} + {} + {}?",
    "Add {}, {} and {}.",
    "How much is {} plus {} plus {}?",
    "Give the sum of {}, {} and {}.",
)


class Sums(GeneratedTask):
    """Sums of three numbers from 1 to 9; a sixteenth of them is held out."""

    id = "sums"
    max_new_tokens = 48
    instruction = "Answer briefly."

    def draw(self, rng: np.random.Generator) -> Problem:
        numbers = rng.integers(1, 10, 3).tolist()
        return Problem(WORDS[rng.integers(len(WORDS))].format(*numbers), str(sum(numbers)))
