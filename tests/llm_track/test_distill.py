"""On-policy distillation: the reverse KL's gradient, and a student that comes near."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from manyseeds.errors import UsageError
from manyseeds.llm_track import distill, models, tasks
from manyseeds.llm_track.policies import load_policy, load_teacher
from manyseeds.llm_track.rollout import from_texts
from manyseeds.runs.language_seeds import SeedsRun
from manyseeds.runs.parallel import Processes
from tests.llm_track.batches import close
from tests.random_models import make_model, make_teacher, new_model

V, TOKENS = 5, 3


def reverse_kl(logp: Tensor, teacher: Tensor) -> Tensor:
    """KL(student || teacher) of each token's distribution, [T]."""
    return (logp.exp() * (logp - teacher)).sum(-1)


def test_its_gradient_is_that_of_the_reverse_kl() -> None:
    """On average over all tokens that there are, at states that are held fixed."""
    generator = torch.Generator().manual_seed(0)
    logits, other = torch.randn(2, TOKENS, V, generator=generator, dtype=torch.float64)
    teacher = other.log_softmax(-1)
    leaf = logits.clone().requires_grad_()
    (expected,) = torch.autograd.grad(reverse_kl(leaf.log_softmax(-1), teacher).mean(), leaf)

    leaf = logits.clone().requires_grad_()
    logp, old = leaf.log_softmax(-1), logits.log_softmax(-1)
    found = torch.zeros_like(logits)
    for token in range(V):  # at every place the same
        part = SimpleNamespace(
            logprobs=old[None, None, :, token], advantages=(teacher - old)[None, None, :, token]
        )
        weights = old.exp()[None, None, :, token] / TOKENS
        (loss,) = distill.policy_loss(logp[None, None, :, token], part, weights)
        found += torch.autograd.grad(loss, leaf, retain_graph=True)[0]
    close(found, expected)
    assert expected.abs().max() > 0.01


def folders(tmp_path: Path) -> tuple[str, str]:
    """A student and a teacher: tiny models with other random weights."""
    student = make_model("tiny", tmp_path / "student")
    return student, make_teacher(student)


def config_of(student: str, teacher: str, **settings: Any) -> distill.Config:
    given = {"prompts": 8, "group_size": 2, "max_new_tokens": 8, "quiet": True, "evaluations": 1}
    return distill.Config(model=student, teacher=teacher, **given | settings)


@pytest.mark.usefixtures("few_samples")
def test_a_student_comes_near_its_teacher(tmp_path: Path) -> None:
    """The reverse KL at the states that it visits falls, for each seed; the teacher stays."""
    student, teacher = folders(tmp_path)
    config = config_of(student, teacher, group_size=8, total_samples=64 * 150, learning_rate=1e-3)
    run = SeedsRun(config, [0, 1])
    before = load_policy(config, run)
    taught = load_teacher(config, before, run)
    weights = taught.llama.flat.clone()
    policy = distill.train(config, run)
    assert torch.equal(taught.llama.flat, weights)
    for record in run.runs:
        metrics = record.metrics()
        rewards = metrics["reward"].to_numpy()  # minus the sum of the reverse KL
        assert rewards[:10].mean() < -3
        assert rewards[-10:].mean() > 0.65 * rewards[:10].mean()
        assert metrics["kl"].iloc[-10:].mean() < 0.65 * metrics["kl"].iloc[:10].mean()
        documented = (distill.__doc__ or "").split("Logged per step:")[1]
        for key in set(metrics) - {"seed", "samples", "learn_s"}:
            assert key in documented, key
    assert not torch.equal(policy.llama.flat[0], policy.llama.flat[1])


@pytest.mark.parametrize("hub", [False, True])
def test_an_update_equals_a_slow_loop(hub: bool, tmp_path: Path) -> None:
    """Token by token; the mean over all tokens of the minibatch."""
    student, teacher = folders(tmp_path)
    config = config_of(student, teacher, micro_batch_size=2, gradient_checkpointing=hub)
    run = SeedsRun(config, [0])
    policy = load_policy(config, run)
    taught = load_teacher(config, policy, run)
    task, prompts = tasks.make("addition"), ["1+2=", "47+85=", "9+9="]
    texts = ["12", "<answer>3+4</answer>", "a"]
    rollout = from_texts(policy, task, [prompts], [texts], 12)
    with torch.no_grad():
        old = policy.logprobs(rollout, config.temperature) - 0.05 * rollout.mask
    ref = taught.logprobs(rollout, config.temperature)
    fields = {**vars(rollout), "logprobs": old}
    batch = distill.Batch(**fields, reference=ref, advantages=(ref - old) * rollout.mask)
    rows = torch.tensor([[2, 1]])

    class Kept:
        def step(self, lr: float, max_grad_norm: float) -> Tensor:
            return torch.ones(1)

    metrics = distill.update(policy, Kept(), batch, rows, 1e-3, config, run)
    current = policy.logprobs(rollout, config.temperature).detach()[0]
    losses, kls = [], []
    for i in (1, 2):
        for t in range(int(rollout.lengths[0, i])):
            A = float(ref[0, i, t] - old[0, i, t])
            losses.append(-float((current[i, t] - old[0, i, t]).exp()) * A)
            d = float(ref[0, i, t] - current[i, t])
            kls.append(torch.tensor(d).exp().item() - d - 1)
    assert len(losses) > 5
    assert float(metrics["loss"]) == pytest.approx(sum(losses) / len(losses), rel=1e-4)
    assert float(metrics["kl"]) == pytest.approx(sum(kls) / len(kls), rel=1e-3)


def test_a_teacher_reads_the_tokens_of_its_student(tmp_path: Path) -> None:
    student, _ = folders(tmp_path)
    tokenizer = models.tiny_tokenizer()
    tokenizer.add_tokens(["one more"])
    other = new_model("tiny")
    other.resize_token_embeddings(len(tokenizer))
    models.save(other, tokenizer, tmp_path / "other")
    config = config_of(student, str(tmp_path / "other"))
    with pytest.raises(UsageError, match=r"--teacher .*: its tokens are not those of --model"):
        config.check_request()
    with pytest.raises(UsageError, match=r"--teacher tiny-reward: is a reward model"):
        config_of(student, tasks.REWARD)
    with pytest.raises(UsageError, match=r"--teacher /no/such: there is no such folder"):
        config_of(student, "/no/such").check_request()


def test_a_teacher_can_teach(tmp_path: Path) -> None:
    """No reward model, whose head for tokens would be random; none of a shorter context."""
    student, _ = folders(tmp_path)
    judge = make_model("reward model", tmp_path / "judge")
    with pytest.raises(UsageError, match=r"--teacher .*judge: is a reward model"):
        config_of(student, judge).check_request()
    with pytest.raises(UsageError, match=r"--model .*judge: is a reward model; use --reward-model"):
        config_of(judge, student).check_request()
    short = make_model("qwen2", tmp_path / "short")
    with pytest.raises(UsageError, match=r"--teacher .*short: its context is 128 tokens, that of"):
        config_of(student, short).check_request()
    other = make_model("roberta", tmp_path / "other")
    config = config_of(short, other)
    run = SeedsRun(config, [0])
    with pytest.raises(UsageError, match=r"--teacher .*other: a roberta model computes other"):
        load_teacher(config, load_policy(config, run), run)


@pytest.mark.slow
def test_its_teacher_is_made(tmp_path: Path) -> None:
    """By GRPO, from tiny, at first use, and once."""
    config = distill.Config(results=str(tmp_path), quiet=True)
    (found,) = models.find_made(tasks.TEACHER, config, Processes())
    assert found.parts[-4] == "grpo"
    assert "tiny-teacher" in found.parts
    before = (found / "model.safetensors").stat().st_mtime_ns
    assert models.find_made(tasks.TEACHER, config, Processes()) == [found]
    assert (found / "model.safetensors").stat().st_mtime_ns == before
