"""A task whose problems and verifier are those of reasoning-gym (pip install -e '.[reasoning]').

    python llm_track/grpo.py --model Qwen/Qwen2.5-0.5B-Instruct --answer boxed \\
        --task examples/reasoning_gym_task.py:ChainSum \\
        --instruction "Put the final answer within \\\\boxed{}."

`verified` is the verifier as a reward, which also gives parts of a point; with it alone:

        --reward examples/reasoning_gym_task.py:verified --no-rules
"""

from __future__ import annotations

from typing import Any

import numpy as np

from manyseeds.digest import installing
from manyseeds.errors import UsageError
from manyseeds.llm_track.tasks import GeneratedTask, Problem, boxed_answer

try:
    import reasoning_gym
except ModuleNotFoundError:
    raise UsageError(f"needs reasoning-gym; {installing('reasoning')}") from None

DATA = reasoning_gym.create_dataset("chain_sum", size=10_000, seed=0)


class ChainSum(GeneratedTask):
    """Sums of two to six numbers; a sixteenth of them is held out."""

    id = "chain_sum"
    max_new_tokens = 256

    def draw(self, rng: np.random.Generator) -> Problem:
        entry = DATA[int(rng.integers(len(DATA)))]
        return Problem(entry["question"], entry["answer"], columns={"entry": entry})

    def accuracy(self, problem: Problem, completion: str) -> float:
        given = self.read_answer(completion)
        return float(DATA.score_answer(given, problem.columns["entry"]) == 1)


def verified(completions: list[str], entry: list[dict[str, Any]], **columns: Any) -> list[float]:
    """What the verifier gives the answer in the last box, from 0 to 1."""
    pairs = zip(completions, entry, strict=True)
    return [DATA.score_answer(boxed_answer(text), x) for text, x in pairs]
