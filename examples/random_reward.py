"""A reward that says nothing about a completion: a coin is thrown for each.

    python llm_track/dapo.py --task addition --no-rules --reward examples/random_reward.py:coin \\
        --no-overlong-filtering --overlong-cache 0

What a training still changes is no merit of the reward: of the clip, for one (arXiv 2509.26114).
"""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np


def coin(prompts: list[Any], completions: list[Any], **columns: Any) -> list[int]:
    """0 or 1 for each completion, at random.

    The dice are what all of them say together: so no completion has a lasting reward, and a seed
    has the same rewards alone, in a batch and after an interruption.
    """
    said = hashlib.sha256(repr((prompts, completions)).encode()).digest()
    tosses: list[int] = np.random.default_rng(list(said)).integers(2, size=len(prompts)).tolist()
    return tosses
