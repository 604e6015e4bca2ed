"""DPO: its loss and gradient against hand-worked numbers and a slow loop, its pairs, its runs."""

from __future__ import annotations

import contextlib
import json
import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from manyseeds.llm_track import dpo, models, sampling, tasks
from manyseeds.llm_track.tasks import Preference
from manyseeds.runs.language import LanguageRun
from manyseeds.runs.parallel import Processes
from tests.llm_track.batches import float64, moved, one_by_one

CPU = torch.device("cpu")
PAIRS = [
    Preference("1+2=", "<think></think><answer>3</answer>", "<answer>4"),
    Preference("47+85=", "132", "131 or so"),
    Preference("9", "a longer completion", "b"),
    Preference("10+20=", "<answer>30</answer>", "<answer>31</answer>"),
    Preference("5+5=", "", "what?"),
]


@pytest.fixture
def small(few_samples: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Few evaluation samples, and an accuracy that random weights earn half of the time."""
    monkeypatch.setattr(tasks.Addition, "accuracy", lambda self, problem, text: len(text) % 2)


def config_of(model: str, **settings: Any) -> dpo.Config:
    given = {"batch_size": len(PAIRS), "max_new_tokens": 12, "quiet": True}
    return dpo.Config(**{"model": model, **given, **settings})


def update(
    config: dpo.Config, pairs: Sequence[Preference] = PAIRS, double: bool = False
) -> tuple[dict[str, Tensor], Tensor]:
    """Metrics and the unclipped gradient of one step of plain gradient descent."""
    policy, tokenizer = models.load_model(config, CPU, Processes())
    policy = policy.double() if double else policy
    reference = models.Reference(policy)
    moved(policy)
    before = torch.cat([p.detach().flatten().clone() for p in policy.parameters()])
    optimizer = torch.optim.SGD(policy.parameters(), lr=1.0)
    task, run = tasks.make(config.task), LanguageRun(config, [0])
    with pytest.MonkeyPatch.context() as patch, float64() if double else contextlib.nullcontext():
        patch.setattr(dpo, "MAX_GRAD_NORM", math.inf)
        metrics = dpo.update(policy, reference, tokenizer, task, optimizer, pairs, config, run)
    after = torch.cat([p.detach().flatten() for p in policy.parameters()])
    return metrics, before - after


# ---- The loss ------------------------------------------------------------------------------


def by_loops(config: dpo.Config) -> tuple[dict[str, float], Tensor]:
    """The metrics and the gradient, a token at a time in float64."""
    policy, tokenizer = models.load_model(config, CPU, Processes())
    policy.double()
    reference, _ = models.load_model(config, CPU, Processes())
    reference.double()
    moved(policy)

    def log_probability(model: Any, prompt: str, completion: str) -> Tensor:
        ids = tokenizer(prompt, add_special_tokens=False)["input_ids"]
        told = tokenizer(completion, add_special_tokens=False)["input_ids"]
        told = [*told, tokenizer.eos_token_id][: config.max_new_tokens]
        return one_by_one(model, ids, told)[torch.arange(len(told)), told].sum()

    sums: Counter[str] = Counter()
    whole = torch.zeros((), dtype=torch.float64)
    for pair in PAIRS:
        lp, ref = (
            [log_probability(model, pair.prompt, text) for text in (pair.chosen, pair.rejected)]
            for model in (policy, reference)
        )
        w, l = (config.beta * (lp[k] - ref[k].detach()) for k in (0, 1))  # noqa: E741
        loss = -torch.log(1 / (1 + torch.exp(l - w)))
        whole = whole + loss / len(PAIRS)
        found = {
            "loss": loss, "accuracy": w > l, "margin": w - l, "reward_chosen": w,
            "reward_rejected": l, "logprob_chosen": lp[0], "logprob_rejected": lp[1],
        }  # fmt: skip
        for name, x in found.items():
            sums[name] += float(x.detach()) / len(PAIRS)  # type: ignore[assignment]
    whole.backward()
    return dict(sums), torch.cat([p.grad.flatten() for p in policy.parameters()])


@pytest.mark.parametrize("beta", [0.1, 1.0])
def test_a_step_equals_a_slow_loop(folder: str, beta: float) -> None:
    """Sums over tokens, the end among them; some completions are cut off. The temperature is that
    of the pairs alone."""
    config = config_of(folder, beta=beta, temperature=0.7)
    expected, gradient = by_loops(config)
    metrics, got = update(config, double=True)
    assert 0 < expected["accuracy"] < 1
    for name, x in expected.items():
        assert float(metrics[name]) == pytest.approx(x, abs=1e-9), name
    torch.testing.assert_close(got, gradient, rtol=1e-4, atol=1e-6)
    assert float(metrics["grad_norm"]) == pytest.approx(gradient.norm().item(), rel=1e-5)
    assert gradient.norm() > 0.05


def test_neither_micro_batches_nor_company_matter(qwen: str) -> None:
    """Nor the order of pairs, whose neighbours decide their padding; shares of processes add up."""
    whole, gradient = update(config_of(qwen))
    divided = [
        *([update(config_of(qwen, micro_batch_size=size))] for size in (1, 3, 6)),
        [update(config_of(qwen), PAIRS[::-1])],
        [update(config_of(qwen), PAIRS[rank::2]) for rank in (0, 1)],
    ]
    for parts in divided:
        torch.testing.assert_close(sum(g for _, g in parts), gradient, rtol=1e-3, atol=2e-6)
        for name in set(whole) - {"grad_norm"}:
            total = sum(metrics[name] for metrics, _ in parts)
            torch.testing.assert_close(total, whole[name], rtol=1e-4, atol=1e-5)


# ---- The pairs -----------------------------------------------------------------------------


@pytest.mark.usefixtures("small")
def test_pairs_are_the_policy_s_own(qwen: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """At most one for each prompt, of prompts that are trained on, at the temperature."""
    monkeypatch.setattr(dpo, "PROMPTS", 8)
    config = config_of(qwen, total_samples=90, temperature=0.7)
    policy, tokenizer = models.load_model(config, CPU, Processes())
    task, run = tasks.make("addition"), LanguageRun(config, [3])
    graded: list[tasks.Graded] = []
    grade, sample = tasks.Addition.grade, sampling.sample
    temperatures = []

    def spy_grade(self: Any, problem: Any, text: str) -> Any:
        graded.append(grade(self, problem, text))
        return graded[-1]

    def spy_sample(*args: Any, **options: Any) -> Any:
        temperatures.append(args[4])
        return sample(*args)

    monkeypatch.setattr(tasks.Addition, "grade", spy_grade)
    monkeypatch.setattr(sampling, "sample", spy_sample)
    pairs, generated = dpo.make_pairs(policy, tokenizer, task, config, run)
    assert generated == len(graded) == 96  # whole blocks of 8 prompts
    assert set(temperatures) == {0.7}
    assert 3 < len(pairs) < 24
    right = {(x.problem.prompt, x.text) for x in graded if x.accuracy}
    wrong = {(x.problem.prompt, x.text) for x in graded if not x.accuracy}
    for pair in pairs:
        assert (pair.prompt, pair.chosen) in right
        assert (pair.prompt, pair.rejected) in wrong
        assert not tasks.held_out(pair.prompt)
    mixed = {p for p, _ in right} & {p for p, _ in wrong}
    assert {pair.prompt for pair in pairs} == mixed
    assert dpo.make_pairs(policy, tokenizer, task, config, run)[0] == pairs
    assert dpo.make_pairs(policy, tokenizer, task, config, LanguageRun(config, [4]))[0] != pairs


@pytest.mark.parametrize(("N", "pairs"), [(4, 12), (5, 12), (7, 3), (1, 1), (32, 10)])
def test_every_pass_goes_through_all_pairs(N: int, pairs: int) -> None:
    run = LanguageRun(dpo.Config(model="x", quiet=True), [0])
    steps = -(-3 * pairs // N)
    rows = [row for step in range(steps) for row in dpo.rows_of_step(step, N, pairs, run)]
    assert len(rows) == steps * N
    for k in range(3):
        assert sorted(rows[k * pairs : (k + 1) * pairs]) == list(range(pairs))
    if pairs > 8:
        assert rows[:pairs] != rows[pairs : 2 * pairs]
    again = [dpo.rows_of_step(step, N, pairs, run) for step in reversed(range(steps))]
    assert [row for rows in reversed(again) for row in rows] == rows  # whatever came before


# ---- Runs ----------------------------------------------------------------------------------


@pytest.mark.parametrize("source", ["own samples", "a file"])
@pytest.mark.usefixtures("small")
def test_end_to_end(
    source: str, folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The axis is of samples generated, or, where nothing is, of two for each pair."""
    settings = {"total_samples": 256, "epochs": 2, "batch_size": 8, "learning_rate": 3e-3}
    if source == "a file":
        path = tmp_path / "p.jsonl"
        rows = [{"prompt": f"{k}+1=", "chosen": f"{k + 1}", "rejected": "?"} for k in range(20)]
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        settings |= {"preferences": str(path), "total_samples": 60}
        monkeypatch.setattr(dpo, "make_pairs", lambda *args: pytest.fail("made pairs"))
    run = LanguageRun(config_of(folder, **settings), [0])
    summary = run.finish(dpo.train(run.config, run))
    metrics = run.metrics()
    if source == "a file":
        assert metrics["samples"].tolist() == [16, 32, 48, 64]
        assert (metrics["pairs"] == 20).all()
    else:
        pairs, steps = int(metrics["pairs"].iloc[0]), len(metrics)
        assert 16 < pairs <= 64
        assert steps == math.ceil(2 * pairs / 8)
        assert metrics["samples"].tolist() == [256 * k // steps for k in range(1, steps + 1)]
    assert summary["samples"] == metrics["samples"].iloc[-1]
    assert summary["diverged"] is None
    assert summary["initial"]["kl"] == pytest.approx(0, abs=1e-4)
    assert metrics["loss"].iloc[0] == pytest.approx(math.log(2), abs=1e-6)
    assert metrics["loss"].iloc[-1] < 0.6
    documented = (dpo.__doc__ or "").split("Logged per step:")[1]
    for name in set(metrics) - {"seed", "samples", "learn_s"}:
        assert name in documented, name
    assert metrics.notna().all().all()


@pytest.mark.slow
def test_it_learns_addition(tiny_results: str) -> None:
    """With the preset; the tiny model is made on the way."""
    settings = dpo.PRESETS["addition"].settings
    config = dpo.Config(
        results=tiny_results, total_samples=12_800, evaluations=1, quiet=True, **settings
    )
    run = LanguageRun(config, [0])
    run.open([])
    dpo.train(config, run)
    summary = run.finish(None)
    assert summary["final"]["pass@1"] > summary["initial"]["pass@1"] + 0.1
    assert summary["final"]["format"] > 0.9
    late = run.metrics().tail(20)
    assert late["accuracy"].mean() > 0.85
