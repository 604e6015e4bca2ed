"""DPO: its loss and gradient against hand-worked numbers and a slow loop, its pairs, its runs; and
what seeds of it and of SFT learn together."""

from __future__ import annotations

import contextlib
import copy
import json
import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from torch import Tensor

from manyseeds.llm_track import dpo, models, policies, sft, tasks
from manyseeds.llm_track.policies import AnyModel, HubModel, SeedModel
from manyseeds.llm_track.tasks import Preference
from manyseeds.runs.language import LanguageRun
from manyseeds.runs.language_seeds import SeedsRun
from manyseeds.runs.parallel import Processes
from tests.llm_track.batches import Watched, float64, moved, one_by_one
from tests.random_models import make_model

CPU = torch.device("cpu")
PAIRS = [
    Preference("1+2=", "<think></think><answer>3</answer>", "<answer>4"),
    Preference("47+85=", "132", "131 or so"),
    Preference("9", "a longer completion", "b"),
    Preference("10+20=", "<answer>30</answer>", "<answer>31</answer>"),
    Preference("5+5=", "", "what?"),
]
SHORT = [Preference(f"{k}+1=", f"{k + 1}", "?") for k in range(len(PAIRS))]


@pytest.fixture
def small(few_samples: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Few evaluation samples, and an accuracy that random weights earn half of the time."""
    monkeypatch.setattr(tasks.Addition, "accuracy", lambda self, problem, text: len(text) % 2)


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A folder with a small random Llama, whose seeds are trained together."""
    return make_model("llama", tmp_path_factory.mktemp("models") / "llama")


def config_of(model: str, **settings: Any) -> dpo.Config:
    given = {"batch_size": len(PAIRS), "max_new_tokens": 12, "quiet": True}
    return dpo.Config(**{"model": model, **given, **settings})


def step_of(
    policy: AnyModel, reference: Any, pairs: Sequence[Sequence[Preference]], config: dpo.Config
) -> tuple[dict[str, Tensor], list[Tensor]]:
    """Metrics and unclipped gradients of one step of each seed."""
    optimizer, run = Watched(policy), SeedsRun(config, range(len(pairs)))
    task, lr = tasks.make(config.task), torch.full((len(pairs),), 1e-3)
    batch = dpo.compare(policy, reference, task, pairs, config, run)
    rows = [range(len(own)) for own in pairs]
    metrics = dpo.update(policy, optimizer, batch, rows, lr, config, run)
    return metrics, optimizer.gradients


def update(
    config: dpo.Config, pairs: Sequence[Preference] = PAIRS, double: bool = False
) -> tuple[dict[str, Tensor], Tensor]:
    """Metrics and the unclipped gradient of one step of a model of transformers."""
    model, tokenizer = models.load_model(config, CPU, Processes())
    model = model.double() if double else model
    policy = HubModel(model, tokenizer, config, Processes())
    reference = policy.frozen()
    moved(model)
    with float64() if double else contextlib.nullcontext():
        metrics, (gradient,) = step_of(policy, reference, [pairs], config)
    return metrics, gradient


def of_llamas(config: dpo.Config, S: int) -> tuple[list[Any], list[Any], Any]:
    """Policies and references of S seeds, all different, and the tokenizer."""
    model, tokenizer = models.load_model(config, CPU, Processes())
    references = [moved(copy.deepcopy(model), seed=100 + s) for s in range(S)]
    return (
        [moved(copy.deepcopy(x), seed=s) for s, x in enumerate(references)],
        references,
        tokenizer,
    )


# ---- The loss ------------------------------------------------------------------------------


def by_loops(
    policy: Any, reference: Any, tokenizer: Any, pairs: Sequence[Preference], config: dpo.Config
) -> tuple[dict[str, float], Tensor]:
    """The metrics and the gradient, a token at a time in float64."""
    policy, reference = policy.double(), reference.double()

    def log_probability(model: Any, prompt: str, completion: str) -> Tensor:
        ids = tokenizer(prompt, add_special_tokens=False)["input_ids"]
        told = tokenizer(completion, add_special_tokens=False)["input_ids"]
        told = [*told, tokenizer.eos_token_id][: config.max_new_tokens]
        return one_by_one(model, ids, told)[torch.arange(len(told)), told].sum()

    sums: Counter[str] = Counter()
    whole = torch.zeros((), dtype=torch.float64)
    for pair in pairs:
        lp, ref = (
            [log_probability(model, pair.prompt, text) for text in (pair.chosen, pair.rejected)]
            for model in (policy, reference)
        )
        w, l = (config.beta * (lp[k] - ref[k].detach()) for k in (0, 1))  # noqa: E741
        loss = -torch.log(1 / (1 + torch.exp(l - w)))
        whole = whole + loss / len(pairs)
        found = {
            "loss": loss, "accuracy": w > l, "margin": w - l, "reward_chosen": w,
            "reward_rejected": l, "logprob_chosen": lp[0], "logprob_rejected": lp[1],
        }  # fmt: skip
        for name, x in found.items():
            sums[name] += float(x.detach()) / len(pairs)  # type: ignore[assignment]
    whole.backward()
    return dict(sums), torch.cat([p.grad.flatten() for p in policy.parameters()])


@pytest.mark.parametrize("beta", [0.1, 1.0])
def test_a_step_equals_a_slow_loop(folder: str, beta: float) -> None:
    """Sums over tokens, the end among them; some completions are cut off. The temperature is that
    of the pairs alone."""
    config = config_of(folder, beta=beta, temperature=0.7)
    policy, tokenizer = models.load_model(config, CPU, Processes())
    reference = copy.deepcopy(policy)
    expected, gradient = by_loops(moved(policy.double()), reference, tokenizer, PAIRS, config)
    metrics, got = update(config, double=True)
    assert 0 < expected["accuracy"] < 1
    for name, x in expected.items():
        assert float(metrics[name]) == pytest.approx(x, abs=1e-9), name
    torch.testing.assert_close(got, gradient, rtol=1e-4, atol=1e-6)
    assert float(metrics["grad_norm"]) == pytest.approx(gradient.norm().item(), rel=1e-5)
    assert gradient.norm() > 0.05


@pytest.mark.parametrize("beta", [0.1, 1.0])
@pytest.mark.usefixtures("computed")
def test_a_step_of_two_seeds_equals_slow_loops(llama: str, beta: float) -> None:
    """Of different policies, references and pairs; some of them shorter than all of the other."""
    config = config_of(llama, beta=beta, temperature=0.7)
    each, references, tokenizer = of_llamas(config, S=2)
    policy = SeedModel.of_models(each, tokenizer)
    pairs, frozen = [PAIRS, SHORT], SeedModel.of_models(references, tokenizer).frozen()
    metrics, gradients = step_of(policy, frozen, pairs, config)
    for s in range(2):
        expected, gradient = by_loops(each[s], references[s], tokenizer, pairs[s], config)
        assert 0 < expected["accuracy"] < 1
        for name, x in expected.items():
            assert float(metrics[name][s]) == pytest.approx(x, rel=1e-5, abs=1e-5), name
        torch.testing.assert_close(gradients[s], gradient, rtol=1e-4, atol=1e-5, check_dtype=False)
        assert float(metrics["grad_norm"][s]) == pytest.approx(gradient.norm().item(), rel=1e-5)


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


@pytest.mark.parametrize("size", [4, 64])
def test_other_seeds_change_no_bit(llama: str, size: int) -> None:
    """Neither longer completions, which are padding, nor seeds without pairs, which stay as they
    are."""
    config = config_of(llama, micro_batch_size=size, max_new_tokens=40)
    each, references, tokenizer = of_llamas(config, S=3)
    longer = [pair._replace(rejected="wrong, " * k) for k, pair in enumerate(SHORT)]
    lessons = [PAIRS, longer, []]

    def step(seeds: Sequence[int]) -> tuple[dict[str, Tensor], list[Tensor], Tensor]:
        policy, frozen = (
            SeedModel.of_models([x[s] for s in seeds], tokenizer) for x in (each, references)
        )
        found = step_of(policy, frozen.frozen(), [lessons[s] for s in seeds], config)
        return *found, policy.llama.flat.detach()

    metrics, gradients, weights = step([0, 1, 2])
    for s in (0, 1):
        own, (gradient,), (after,) = step([s])
        assert gradient.any()
        assert torch.equal(gradients[s], gradient)
        assert torch.equal(weights[s], after)
        assert all(torch.equal(x[s], own[name][0]) for name, x in metrics.items())
    assert not gradients[2].any()
    assert torch.equal(weights[2], SeedModel.of_models(each[2:], tokenizer).llama.flat[0])


@pytest.mark.parametrize("size", [2, 3, 64])
def test_the_reference_is_asked_once_about_each_completion(llama: str, size: int) -> None:
    """By which other pairs changes no bit; a seed without pairs has empty rows."""
    config = config_of(llama, micro_batch_size=size)
    _, references, tokenizer = of_llamas(config, S=3)
    frozen = SeedModel.of_models(references, tokenizer).frozen()

    def found(*pairs: Sequence[Preference]) -> dpo.Compared:
        run = SeedsRun(config, range(3))
        found = dpo.compare(frozen, frozen, tasks.make("addition"), pairs, config, run)
        assert found
        return found

    whole, some = found(PAIRS, [], SHORT), found([PAIRS[4], PAIRS[0]], [], [SHORT[3]])
    assert (whole.reference[[0, 2]] < 0).all()
    assert not whole.reference[1].any()
    assert not whole.lengths[1].any()
    assert torch.equal(some.reference[0], whole.reference[0, [8, 9, 0, 1]])
    assert torch.equal(some.reference[2, :2], whole.reference[2, 6:8])
    assert not some.reference[2, 2:].any()


# ---- The pairs -----------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["qwen", "llama"])
@pytest.mark.usefixtures("small")
def test_pairs_are_the_policy_s_own(
    kind: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At most one for each prompt, of prompts that are trained on, at the temperature."""
    monkeypatch.setattr(dpo, "PROMPTS", 8)
    model = request.getfixturevalue(kind)
    config = config_of(model, total_samples=90, temperature=0.7)
    graded: list[tasks.Graded] = []
    grade, task = tasks.Addition.grade, tasks.make("addition")
    temperatures = []

    def spy_grade(self: Any, problem: Any, text: str) -> Any:
        graded.append(grade(self, problem, text))
        return graded[-1]

    def made(*seeds: int) -> list[list[Preference]]:
        run = SeedsRun(config, seeds)
        policy = policies.load_policy(config, run)
        assert len(policy) == len(seeds)
        sample = policy.sample

        def spy_sample(*args: Any) -> Any:
            temperatures.append(args[2])
            return sample(*args)

        monkeypatch.setattr(policy, "sample", spy_sample)
        return dpo.make_pairs(policy, task, config, run)

    monkeypatch.setattr(tasks.Addition, "grade", spy_grade)
    (pairs,) = made(3)
    assert dpo.generated(config) == len(graded) == 96  # whole blocks of 8 prompts
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
    (others,) = made(4)
    assert made(3) == [pairs] != [others]
    if kind == "llama":
        assert made(4, 3) == [others, pairs]


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
    settings: dict[str, Any] = {"total_samples": 256, "epochs": 2, "batch_size": 8}
    settings["learning_rate"] = 3e-3
    if source == "a file":
        path = tmp_path / "p.jsonl"
        rows = [{"prompt": f"{k}+1=", "chosen": f"{k + 1}", "rejected": "?"} for k in range(20)]
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        settings |= {"preferences": str(path), "total_samples": 60}
        monkeypatch.setattr(dpo, "make_pairs", lambda *args: pytest.fail("made pairs"))
    run = SeedsRun(config_of(folder, **settings), [0])
    (summary,) = run.finish(dpo.train(run.config, run))
    metrics = run.runs[0].metrics()
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
        assert str(name) in documented, name
    assert metrics.notna().all().all()


@pytest.mark.usefixtures("small")
def test_a_seed_without_a_pair_stays_what_it_was(
    llama: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the others learn what they learn alone; so it does alone, and after a checkpoint."""
    config = config_of(llama, total_samples=256, learning_rate=3e-3)

    def learned(*pairs: list[Preference]) -> tuple[Tensor, list[dict[str, Any]]]:
        monkeypatch.setattr(dpo, "make_pairs", lambda *args: [*pairs])
        run = SeedsRun(config, range(5, 5 + len(pairs)))
        policy = dpo.train(config, run)
        for own, one in zip(pairs, run.runs, strict=True):
            losses = one.metrics()["loss"]
            assert (losses == 0).all() if not own else losses[0] == pytest.approx(math.log(2))
        return policy.tensors()["parameters"], run.finish(policy)

    together, summaries = learned(SHORT, [])
    alone, (summary,) = learned(SHORT)
    initial = policies.load_policy(config, SeedsRun(config, [6])).tensors()["parameters"]
    assert torch.equal(together[0], alone[0])
    assert torch.equal(together[1], initial[0])
    assert not torch.equal(alone, initial)
    assert summaries[0]["final"] == summary["final"]
    assert summaries[1]["samples"] == summary["samples"] == 256
    assert summaries[1]["final"] == summaries[1]["initial"]
    still, (other,) = learned([])
    assert torch.equal(still, initial)
    assert other["final"] == summaries[1]["final"]


def test_seeds_without_a_pair_are_named(llama: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Without any training the model has no right answers to compare."""
    config = config_of(llama, total_samples=256, max_new_tokens=4)
    run = SeedsRun(config, [5, 6])
    policy = dpo.train(config, run)
    said = "note: 2 seeds (5-6) without a prompt that has both right and wrong completions among"
    assert capsys.readouterr().err.startswith(said)
    assert [x["samples"] for x in run.finish(policy)] == [256, 256]


LESSONS: dict[str, tuple[Any, dict[str, Any]]] = {
    "sft": (sft, {"batch_size": 8, "total_samples": 32}),
    "dpo": (dpo, {"batch_size": 8, "total_samples": 256, "epochs": 2, "learning_rate": 3e-3}),
    "dpo, a file": (dpo, {"batch_size": 8, "total_samples": 64, "learning_rate": 3e-3}),
}


def trained(
    name: str, model: str, seeds: Sequence[int], folder: Path
) -> tuple[AnyModel, list[pd.DataFrame], list[dict[str, Any]]]:
    """The models, metrics and summaries of seeds that are trained at once."""
    module, settings = LESSONS[name]
    if name == "dpo, a file":
        path = folder / "p.jsonl"
        path.write_text("".join(json.dumps(pair._asdict()) + "\n" for pair in PAIRS[:-1]))
        settings = {**settings, "preferences": str(path)}
    config = module.Config(model=model, max_new_tokens=40, quiet=True, **settings)
    run = SeedsRun(config, seeds)
    found = module.train(config, run)
    metrics = [one.metrics().drop(columns="learn_s") for one in run.runs]
    return found, metrics, run.finish(found)


@pytest.mark.parametrize("name", LESSONS)
@pytest.mark.usefixtures("small")
def test_seeds_learn_together_what_they_learn_alone(name: str, llama: str, tmp_path: Path) -> None:
    """To the bit, also where they have different numbers of pairs and so of steps."""
    together, metrics, summaries = trained(name, llama, [0, 1, 2], tmp_path)
    assert len(together) == 3
    for s in range(3):
        alone, (own,), (summary,) = trained(name, llama, [s], tmp_path)
        assert torch.equal(together.tensors()["parameters"][s], alone.tensors()["parameters"][0])
        pd.testing.assert_frame_equal(metrics[s], own, rtol=1e-6)
        assert summaries[s]["final"] == pytest.approx(summary["final"], rel=1e-6, nan_ok=True)
    if name == "dpo":
        assert len({len(own) for own in metrics}) > 1
        assert {own["samples"].iloc[-1] for own in metrics} == {256}
        assert not any(own["margin"].iloc[0] for own in metrics)  # exactly: nothing is learned yet


@pytest.mark.parametrize("name", ["sft", "dpo, a file"])
@pytest.mark.usefixtures("small")
def test_a_small_llama_learns_what_transformers_would(
    name: str, llama: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, (metrics,), _ = trained(name, llama, [1], tmp_path)
    monkeypatch.setattr(policies, "together", lambda config: False)
    theirs, (expected,), _ = trained(name, llama, [1], tmp_path)
    assert isinstance(ours, SeedModel)
    assert isinstance(theirs, HubModel)
    # Accuracy is left out: at the beginning the two rewards of a pair are equal, but for rounding.
    found, wanted = (x.drop(columns="accuracy", errors="ignore") for x in (metrics, expected))
    pd.testing.assert_frame_equal(found, wanted, rtol=1e-3, atol=1e-5)
    for key, x in theirs.model.state_dict().items():
        torch.testing.assert_close(ours.llama.state_of(0)[key], x, rtol=0, atol=2e-4)


@pytest.mark.slow
def test_it_learns_addition(tiny_results: str) -> None:
    """With the preset; the tiny model is made on the way."""
    settings = dpo.PRESETS["addition"].settings
    config = dpo.Config(
        results=tiny_results, total_samples=12_800, evaluations=1, quiet=True, **settings
    )
    run = SeedsRun(config, [0])
    run.open([])
    (summary,) = run.finish(dpo.train(config, run))
    assert summary["final"]["pass@1"] > summary["initial"]["pass@1"] + 0.1
    assert summary["final"]["format"] > 0.9
    late = run.runs[0].metrics().tail(20)
    assert late["accuracy"].mean() > 0.85
