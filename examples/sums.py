"""Sums of small numbers in words, for a real language model: see examples/smollm2.py."""

from __future__ import annotations

import numpy as np

from manyseeds.llm_track.tasks import GeneratedTask, Problem


class Sums(GeneratedTask):
    """Sums of three numbers from 1 to 9; a sixteenth of them is held out."""

    id = "sums"
    max_new_tokens = 48
    instruction = "Answer briefly."

    def draw(self, rng: np.random.Generator) -> Problem:
        a, b, c = (int(x) for x in rng.integers(1, 10, 3))
        return Problem(f"What is {a} + {b} + {c}?", str(a + b + c))
