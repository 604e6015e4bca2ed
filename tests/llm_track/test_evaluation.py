"""The evaluation of the LLM track: its measures by enumeration, and the same luck for everybody."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from manyseeds.llm_track import evaluation, models, sampling, tasks
from manyseeds.llm_track.evaluation import TaskEvaluator, cons_at_k, cons_of_groups, pass_at_k
from manyseeds.llm_track.policies import HubModel, SeedModel
from manyseeds.llm_track.rollout import samples_of
from manyseeds.runs.language import LanguageConfig
from manyseeds.runs.parallel import Processes
from tests.random_models import new_model

# ---- pass@k and cons@k ---------------------------------------------------------------------


@pytest.mark.parametrize("n", [1, 2, 5, 8])
def test_pass_at_k_is_the_share_of_subsets_with_a_right_one(n: int) -> None:
    right = np.random.default_rng(0).random((6, n)) < np.linspace(0, 1, 6)[:, None]
    for k in range(1, n + 1):
        shares = [
            np.mean([any(row[list(some)]) for some in itertools.combinations(range(n), k)])
            for row in right
        ]
        assert pass_at_k(right.astype(float), k) == pytest.approx(np.mean(shares), abs=1e-12)


@pytest.mark.parametrize(
    ("votes", "right", "solved"),
    [
        (["7", "7", "8"], [1, 1, 0], 1),
        (["7", "8", "8"], [1, 0, 0], 0),
        (["7", "8"], [1, 0], 1),  # a tie: the first one given
        (["8", "7"], [0, 1], 0),
        (["8", "7", "9", "7", "8"], [0, 1, 0, 1, 0], 0),
        ([None, "7"], [0, 1], 1),  # who does not answer does not vote
        ([None, None, "7"], [0, 0, 1], 1),
        ([None, None], [0, 0], 0),
        (["7"], [1], 1),
    ],
)
def test_cons_at_k_of_a_prompt(votes: list[str | None], right: list[float], solved: float) -> None:
    assert cons_at_k([votes], np.array([right])) == solved


def test_cons_of_more_samples_is_the_mean_over_groups() -> None:
    votes = [["1", "1", "2", "2", "3", "3"], [*"454", None, None, None]]
    right = np.array([[0, 0, 1, 1, 1, 1], [1, 0, 1, 0, 0, 0]])
    # Groups of three: 1 and 4 win, then 2 or 3, the first one, and nobody.
    groups = [cons_at_k([v[i : i + 3] for v in votes], right[:, i : i + 3]) for i in (0, 3)]
    assert groups == [0.5, 0.5]
    assert cons_of_groups(votes, right, 3) == 0.5
    assert cons_of_groups(votes, right, 6) == cons_at_k(votes, right)
    assert cons_of_groups(votes, right, 4) == cons_at_k([v[:4] for v in votes], right[:, :4])


# ---- The evaluator -------------------------------------------------------------------------


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three samples each of five prompts; at the end four of nine; seven side by side."""
    monkeypatch.setattr(evaluation, "curve_size", lambda config: (5, 3))
    for name, value in (("FINAL_PROMPTS", 9), ("FINAL_SAMPLES", 4), ("BATCH", 7)):
        monkeypatch.setattr(evaluation, name, value)


def random_policy() -> tuple[Any, Any]:
    model = models.prepare(new_model("tiny"), LanguageConfig(), torch.device("cpu"))
    return model, models.tiny_tokenizer()


def evaluator(**settings: Any) -> TaskEvaluator:
    policy, tokenizer = random_policy()
    config = LanguageConfig(max_new_tokens=8, micro_batch_size=4, **settings)
    policy = HubModel(policy, tokenizer, config, Processes())
    return TaskEvaluator(policy, tasks.make("addition"), config, policy.frozen())


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize(("final", "samples"), [(False, 15), (True, 36)])
def test_two_models_meet_the_same_luck(
    final: bool, samples: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Prompts and random numbers are those of every seed, method and point of a curve."""
    seen: list[tuple[Any, Any]] = []
    sample = sampling.sample

    def spy(policy: Any, tokenizer: Any, prompts: Any, uniforms: Any, *rest: Any) -> Any:
        seen.append((prompts, uniforms.clone()))
        return sample(policy, tokenizer, prompts, uniforms, *rest)

    monkeypatch.setattr(sampling, "sample", spy)
    for scale, seed in ((1.0, 0), (1.3, 5)):
        measure = evaluator(first_seed=seed)
        with torch.no_grad():
            for p in measure.policy.model.parameters():
                p.mul_(scale)
        measure(final)
        torch.rand(5)  # whatever happened to the global generators
        np.random.seed(1)  # noqa: NPY002
    half = len(seen) // 2
    assert sum(len(u) for _, u in seen[:half]) == samples + samples // (4 if final else 3)
    for (prompts, u), (others, v) in zip(seen[:half], seen[half:], strict=True):
        assert prompts == others
        assert torch.equal(u, v)
    rows = torch.cat([u for _, u in seen[:half]])[:samples]
    assert len(rows.unique(dim=0)) == samples  # no two samples share theirs


@pytest.mark.usefixtures("small")
def test_the_measures_are_those_of_the_completions(monkeypatch: pytest.MonkeyPatch) -> None:
    """All of them from a policy that is told what to write."""
    measure, T = evaluator(), 8
    problems = measure.task.test(5)
    right = {p.prompt: f"<answer>{p.answer}</answer>" for p in problems}
    framed = {p.prompt: f"<think></think>{right[p.prompt]}" for p in problems}
    count = dict.fromkeys(right, 0)

    def write(policy: Any, tokenizer: Any, prompts: Any, uniforms: Any, *rest: Any) -> Any:
        texts = []
        for prompt in tokenizer.batch_decode(prompts):
            k = sorted(right).index(prompt)
            j, count[prompt] = count[prompt], count[prompt] + 1
            # Of prompt k the first k samples are right; one of them without the format.
            texts.append("none" if j >= k else (right if j == 1 else framed)[prompt])
        names = tokenizer.batch_decode(prompts)
        return sampling.from_texts(tokenizer, measure.task, names, texts, T, uniforms.device)

    monkeypatch.setattr(sampling, "sample", write)
    ((measures, transcripts),) = measure(False)
    solved = [0, 1 / 3, 2 / 3, 1, 1]
    assert measures["pass@1"] == pytest.approx(np.mean(solved))
    assert measures["pass@3"] == pytest.approx(4 / 5)
    assert measures["cons@3"] == pytest.approx(4 / 5)
    assert measures["all_solved"] == pytest.approx(2 / 5)
    assert measures["all_failed"] == pytest.approx(1 / 5)
    assert measures["format"] == pytest.approx((1 + 1 + 2 + 2) / 15)
    assert measures["greedy"] == pytest.approx(1 / 5)  # their fourth: right where k is 4
    assert len(transcripts) == 3
    assert all(x["right"] == ("answer" in x["completion"]) for x in transcripts)
    assert [x["prompt"] for x in transcripts] == [p.prompt for p in problems[:3]]
    assert measures["length_wrong"] == 5  # none and the end
    assert measures["truncated"] == pytest.approx(0)
    assert 5 < measures["length_right"] <= T


@pytest.mark.usefixtures("small")
def test_the_kl_is_measured_on_the_policy_s_samples() -> None:
    measure = evaluator()
    with torch.no_grad():
        measure.policy.model.model.embed_tokens.weight.mul_(1.5)
    ((measures, _),) = measure(True)
    assert measures["pass@1"] == 0  # then the right ones have no length
    assert math.isnan(measures["length_right"])
    assert measures["length_wrong"] == pytest.approx(measures["length"])
    # The mean over tokens of log pi - log pi_ref, from the exact distributions.
    problems = [p for p in measure.task.test(9) for _ in range(4)]
    ids = sampling.encode_prompts(
        measure.policy.tokenizer, measure.task, [p.prompt for p in problems]
    )
    uniforms = np.random.default_rng(evaluation.SEED).random((len(ids), 8), dtype=np.float32)
    rollout = measure.policy.sample([ids], torch.from_numpy(uniforms).unsqueeze(0), 1.0)
    samples = samples_of(rollout)
    with torch.no_grad():
        mine, its = (
            sampling.logprobs(x, samples)
            for x in (measure.policy.model, measure.reference.reference.model)
        )
    total, tokens = float((mine - its).sum()), int(samples.mask.sum())
    assert measures["kl"] == pytest.approx(total / tokens, abs=1e-4)
    assert measures["kl"] > 0.01
    assert measures["length"] == pytest.approx(tokens / len(problems))
    entropy, ended = (float(getattr(samples, k).sum()) for k in ("entropy", "ended"))
    assert measures["entropy"] == pytest.approx(entropy / tokens)
    assert measures["truncated"] > 0
    assert measures["truncated"] == pytest.approx(1 - ended / len(problems))


@pytest.mark.usefixtures("small")
def test_the_kl_to_itself_is_0_in_half_precision() -> None:
    """Sampling and teacher forcing round elsewhere; what is compared is computed alike."""
    found = evaluator(dtype="bfloat16")
    found.config = replace(found.config, max_new_tokens=60)
    found.policy.model.computes_in_half = True
    found.reference.reference.model.computes_in_half = True
    ((measures, _),) = found(final=False)
    assert measures["kl"] == 0.0


def test_the_size_of_evaluations(monkeypatch: pytest.MonkeyPatch) -> None:
    """More than 4 samples give the measures at 4, too; the prompts are those asked for."""
    seen = []
    test = tasks.GeneratedTask.test
    monkeypatch.setattr(
        tasks.GeneratedTask, "test", lambda self, n: (seen.append(n), test(self, n))[1]
    )
    settings = {"eval_prompts": 6, "eval_budget": 0.5, "eval_samples": 9}
    ((measures, _),) = evaluator(**settings, sampling_batch_size=4)(False)
    assert seen == [3]
    names = {name for name in measures if name.startswith(("pass@", "cons@"))}
    assert names == {"pass@1", "pass@4", "pass@9", "cons@4", "cons@9"}
    usual = evaluation.curve_size(LanguageConfig())
    assert usual == (128, 4)
    assert evaluation.final_size(tasks.make("addition"), LanguageConfig()) == (256, 16)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("final", [False, True])
def test_seeds_are_evaluated_as_alone(final: bool) -> None:
    each = [new_model("llama", scale) for scale in (0.1, 0.2, 0.3)]
    config, task = LanguageConfig(max_new_tokens=8), tasks.make("addition")
    policy = SeedModel.of_models(each, models.tiny_tokenizer())
    reference = SeedModel.of_models(each[1:] + each[:1], models.tiny_tokenizer())
    found = TaskEvaluator(policy, task, config, reference)(final, [2, 0])
    for seed, own in zip([2, 0], found, strict=True):
        alone = TaskEvaluator(policy.of([seed]), task, config, reference.of([seed]))
        ((measures, transcripts),) = alone(final)
        assert measures == pytest.approx(own[0], nan_ok=True, rel=0, abs=0)
        assert transcripts == own[1]
    assert found[0] != found[1]


@pytest.mark.usefixtures("small")
def test_a_small_test_set_is_evaluated_whole(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text("".join(f'{{"prompt": "{k}?", "answer": {k}}}\n' for k in range(6)))
    task, config = tasks.make(str(path)), LanguageConfig(task=str(path), max_new_tokens=4)
    policy = HubModel(*random_policy(), config, Processes())
    ((_, transcripts),) = TaskEvaluator(policy, task, config, policy.frozen())(True)
    assert len(transcripts) == min(3, len(task.test(100)))
    many = tasks.JsonlTask("many", [], [tasks.Problem("1?", "1")] * 1319)
    for budget, prompts in ((51_200, 307), (1_000, 128), (10**6, 1319)):
        assert evaluation.final_size(many, replace(config, total_samples=budget)) == (prompts, 4)
    assert evaluation.final_size(many, replace(config, eval_prompts=500)) == (500, 4)
