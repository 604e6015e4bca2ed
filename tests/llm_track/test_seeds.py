"""All seeds of a language model as one batch: what each has alone, and what can be gone on from."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest
import safetensors.torch
import torch
from torch import Tensor

from manyseeds import rows
from manyseeds.errors import UsageError
from manyseeds.llm_track import (
    cispo,
    dapo,
    distill,
    dr_grpo,
    grpo,
    gspo,
    models,
    policies,
    process_grpo,
    reinforce_pp,
    rlhf_ppo,
    rloo,
    tasks,
)
from manyseeds.llm_track.policies import HubModel, SeedAdamW, SeedModel
from manyseeds.llm_track.rollout import Rollout, from_texts, rollout_of, samples_of, total
from manyseeds.process import set_up_process
from manyseeds.record import RunFolder, is_finished, part_name, read_json
from manyseeds.runs import language_seeds
from manyseeds.runs.checkpoints import CHECKPOINT
from manyseeds.runs.language import LanguageRun
from manyseeds.runs.language_configurations import train_configurations
from manyseeds.runs.language_seeds import SeedsRun, groups_of
from manyseeds.runs.parallel import Processes
from tests.random_models import make_model, make_teacher, new_model

METHODS: dict[str, Any] = {
    x.__name__.rpartition(".")[2]: x
    for x in (grpo, dr_grpo, dapo, rloo, reinforce_pp, gspo, cispo, distill, process_grpo, rlhf_ppo)
}
VARIANTS = [*METHODS, "iterative grpo"]
TOKENIZER = models.tiny_tokenizer()
TIMES = ["learn_s"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return make_model("tiny", tmp_path_factory.mktemp("model") / "random")


@pytest.fixture(scope="module")
def judge(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A reward model that is a small Llama."""
    path = tmp_path_factory.mktemp("model") / "judge"
    models.save(scalar_llama(0.2), TOKENIZER, path)
    return str(path)


@pytest.fixture
def small(few_samples: None, eager: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Few evaluation samples, no figures, and an accuracy that random weights earn half of the
    time."""
    monkeypatch.setattr(LanguageRun, "_draw", lambda *args: None)
    monkeypatch.setattr(
        tasks.Addition, "accuracy", lambda self, problem, text: float(sum(map(ord, text)) % 2)
    )
    yield
    set_up_process(1)


def config_of(name: str, model: str, results: Path, **settings: Any) -> Any:
    given: dict[str, Any] = {"model": model, "results": str(results), "quiet": True}
    given |= {"prompts": 3, "group_size": 4, "minibatches": 2, "max_new_tokens": 8}
    given |= {"total_samples": 48, "evaluations": 2, "learning_rate": 3e-3, "lr_schedule": "linear"}
    given |= {"teacher": make_teacher(model)} if name == "distill" else {}
    given |= {"epochs": 1} if name == "rlhf_ppo" else {}
    if name == "dapo":  # random models hardly ever end
        given["overlong_filtering"] = False
    return METHODS[name].Config(**given | settings)


def variant_of(
    name: str, folder: str, judge: str, results: Path, **settings: Any
) -> tuple[str, Any]:
    """A method and its config; one variant of GRPO goes on training its reward model."""
    if name == "iterative grpo":
        name = "process_grpo"
        settings |= {"iterations": 4, "reward_model": judge, "temperature": 0.8}
        settings |= {"prompts": 6, "total_samples": 2 * settings.get("total_samples", 48)}
    return name, config_of(name, folder, results, **settings)


def trained(name: str, config: Any) -> dict[int, Path]:
    """The parts of the seeds that a command has trained."""
    language_seeds.main(config, METHODS[name].train, {})
    folder = RunFolder.of(config, name).path
    seeds = range(config.first_seed, config.first_seed + config.seeds)
    return {seed: folder / part_name([seed]) for seed in seeds}


def assert_same(part: Path, other: Path) -> None:
    """To the bit, but for times."""
    found, expected = (
        safetensors.torch.load_file(x / "model" / "model.safetensors") for x in (part, other)
    )
    assert all(torch.equal(found[key], expected[key]) for key in expected)
    for file in ("curve.parquet", "metrics.parquet"):
        ours, theirs = (pd.read_parquet(x / file).drop(columns=TIMES) for x in (part, other))
        pd.testing.assert_frame_equal(ours, theirs, check_exact=True)
    assert read_json(part / "transcripts.json") == read_json(other / "transcripts.json")
    ours, theirs = (read_json(x / "summary.json") for x in (part, other))
    for name in ("seeds", "initial", "final", "samples", "diverged"):
        assert ours[name] == theirs[name], name


# ---- Models --------------------------------------------------------------------------------


def scalar_llama(scale: float) -> Any:
    """A small reward model of random weights, of this standard deviation."""
    from transformers import LlamaForSequenceClassification

    config = new_model("llama", scale).config
    config.num_labels = 1
    return LlamaForSequenceClassification(config)


def both(scalar: bool = False) -> tuple[list[HubModel], SeedModel]:
    """Two models of transformers, and the same as a batch."""
    config = grpo.Config(micro_batch_size=3)
    make = scalar_llama if scalar else partial(new_model, "llama")
    each = [models.prepare(make(scale), config, torch.device("cpu")) for scale in (0.2, 0.3)]
    alone = [HubModel(model, TOKENIZER, config, Processes()) for model in each]
    return alone, SeedModel.of_models(each, TOKENIZER)


def test_a_batch_is_the_models_of_transformers() -> None:
    """Samples, their log-probabilities and entropies; prompts of different lengths."""
    each, policy = both()
    prompts = [[[5], [7, 8, 9], [5], [4] * 6], [[6, 6], [9], [5, 4], [3] * 7]]
    uniforms = torch.rand(2, 4, 9, generator=torch.Generator().manual_seed(0))
    found = policy.sample(prompts, uniforms, 0.8)
    likeliest = policy.sample(prompts, uniforms, 0.8, greedy=True)
    assert not torch.equal(found.tokens, likeliest.tokens)
    for s, alone in enumerate(each):
        expected = alone.sample([prompts[s]], uniforms[s : s + 1], 0.8)
        T = expected.tokens.shape[-1]
        assert torch.equal(found.tokens[s, :, :T], expected.tokens[0])
        assert torch.equal(found.lengths[s], expected.lengths[0])
        assert torch.equal(found.ended[s], expected.ended[0])
        for name in ("logprobs", "entropy"):
            ours, theirs = getattr(found, name)[s, :, :T], getattr(expected, name)[0]
            torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-5)
        with torch.no_grad():
            again = alone.logprobs(expected, 0.8)[0]
        torch.testing.assert_close(found.logprobs[s, :, :T], again, rtol=0, atol=1e-5)
        greedy = alone.sample([prompts[s]], uniforms[s : s + 1], 0.8, greedy=True)
        assert torch.equal(likeliest.tokens[s, :, : greedy.tokens.shape[-1]], greedy.tokens[0])


@torch.no_grad()
def test_scalars_are_those_of_transformers() -> None:
    """After the prompt and each token; also where a seed has fewer completions than another."""
    each, judges = both(scalar=True)
    task = tasks.make("addition")
    prompts = [["1+2=", "33+4=", "5+5="], ["7+7="]]
    texts = [["3", "a longer one", ""], ["14"]]
    rollout = from_texts(judges, task, prompts, texts, 8)
    assert rollout.lengths[1, 1:].tolist() == [0, 0]
    scalars, scores = judges.scalars(rollout), judges.scores(rollout)
    assert scalars.shape == (2, 3, 9)
    for s, alone in enumerate(each):
        own = from_texts(alone, task, prompts[s : s + 1], texts[s : s + 1], 8)
        B, T = own.tokens.shape[1:]
        inside = torch.arange(T + 1) <= own.lengths[0].unsqueeze(-1)
        assert not scalars[s, :B, T + 1 :].any()
        for ours, theirs in (
            (scalars[s, :B, : T + 1], alone.scalars(own)[0] * inside),
            (scores[s, :B], alone.scores(own)[0]),
        ):
            torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-5)
    assert (scores[0, 0] - scores[1, 0]).abs() > 1e-3
    rollout.lengths[0, 1] = 0  # a prompt alone
    assert scalars[0, 1, 0] == judges.scores(rollout)[0, 1] != scores[0, 1]


def test_empty_rows_are_nothing() -> None:
    """They have no log-probabilities and no gradient, and the others stay as they were."""
    _, policy = both()
    uniforms = torch.rand(2, 4, 9, generator=torch.Generator().manual_seed(2))
    rollout = policy.sample([[[5], [7, 8, 9], [5], [4] * 6]] * 2, uniforms, 1.0)
    kept = torch.tensor([[True, False, True, True], [False, False, True, False]])
    found, gradients = list[Tensor](), list[Any]()
    for batch in (replace(rollout, lengths=rollout.lengths * kept), rollout):
        logprobs = policy.logprobs(batch, 1.0) * kept.unsqueeze(-1)
        logprobs.sum().backward()
        found.append(logprobs.detach())
        gradients.append(policy.llama.flat.grad)
        policy.llama.flat.grad = None
    assert torch.equal(*found)
    assert gradients[0].abs().amax((1, 2)).min() > 0.1
    torch.testing.assert_close(*gradients, rtol=0, atol=1e-5)


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_the_first_ratio_is_1(temperature: float) -> None:
    """Sampling and training compute the same bits."""
    _, policy = both()
    uniforms = torch.rand(2, 30, 12, generator=torch.Generator().manual_seed(1))
    rollout = policy.sample([[[5, 6]] * 15 + [[7]] * 15] * 2, uniforms, temperature)
    with torch.no_grad():
        assert torch.equal(policy.logprobs(rollout, temperature), rollout.logprobs)
        other = policy.logprobs(rollout, 1.3)
    assert not torch.allclose(other, rollout.logprobs)
    with_gradients = policy.logprobs(rollout, temperature)
    assert with_gradients.requires_grad
    assert torch.equal(with_gradients, rollout.logprobs)
    samples = samples_of(Rollout(*(x[:1] for x in vars(rollout).values())))
    assert torch.equal(rollout_of(samples).tokens, rollout.tokens[:1])


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.usefixtures("small")
def test_the_first_step_of_a_training_has_a_ratio_of_1(
    name: str, folder: str, tmp_path: Path
) -> None:
    config = config_of(name, folder, tmp_path, minibatches=1, temperature=0.7)
    run = SeedsRun(config, [0, 1])
    METHODS[name].train(config, run)
    for one in run.runs:
        metrics = one.metrics()
        assert (metrics["grad_norm"] > 0).any()
        columns = [x for x in ("approx_kl", "clipfrac") if x in metrics]
        assert (metrics[columns] == 0).all(axis=None)


def test_a_gradient_of_0_or_nan_is_no_step() -> None:
    """Of its own seed, whose moments stay, too."""
    _, policy = both()
    third = policy.of([0, 1, 0])
    third.llama.flat.requires_grad_(True)
    optimizer = third.optimizer()
    assert isinstance(optimizer, SeedAdamW)
    before = third.llama.flat.detach().clone()
    gradients = torch.ones_like(before)
    gradients[0], gradients[1, 0, 3] = 0.0, float("nan")
    third.llama.flat.grad = gradients
    norms = optimizer.step(0.1, 1.0)
    assert norms[0] == 0
    assert norms[1].isnan()
    after = third.llama.flat.detach().clone()
    assert torch.equal(after[:2], before[:2])
    assert not torch.equal(after[2], before[2])
    assert not optimizer.adam.mean[:2].any()
    third.llama.flat.grad = torch.ones_like(before)
    optimizer.step(torch.tensor([0.1, 0.2, 0.0], dtype=torch.float64), 1.0)
    moved = (third.llama.flat.detach() - after).abs().amax((1, 2))
    assert moved.tolist() == pytest.approx([0.1, 0.2, 0.0], rel=1e-3)  # a first step is the rate


@pytest.mark.parametrize(
    ("kind", "settings", "expected"),
    [
        ("tiny", {}, True),
        ("llama", {}, True),
        ("tiny", {"lora_rank": 4}, False),
        ("tiny", {"dtype": "bfloat16"}, False),
        ("tiny", {"gradient_checkpointing": True}, False),
        ("qwen", {}, False),
        ("gpt2", {}, False),
    ],
)
def test_which_models_are_trained_together(
    kind: str, settings: dict[str, Any], expected: bool, tmp_path: Path
) -> None:
    folder = make_model(kind, tmp_path / "model")
    assert config_of("grpo", folder, tmp_path, **settings).trains_together() == expected


def test_what_a_small_llama_is_not(
    folder: str, judge: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With grouped keys, with scaled positions, with two ends, beside another reward model, in two
    processes."""
    assert config_of("grpo", "tiny", tmp_path).trains_together()
    assert config_of("grpo", folder, tmp_path, reward_model=judge).trains_together()
    other = make_model("reward model", tmp_path / "judge")
    assert not config_of("grpo", folder, tmp_path, reward_model=other).trains_together()
    for name, value in {
        "num_key_value_heads": 2,
        "rope_parameters": {"rope_theta": 1e4, "rope_type": "linear", "factor": 2.0},
        "attention_bias": True,
    }.items():
        other = make_model("tiny", tmp_path / name)
        path = Path(other) / "config.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), name: value}))
        assert not policies.is_small_llama(other), name
    path = Path(make_model("tiny", tmp_path / "ends")) / "generation_config.json"
    assert policies.is_small_llama(str(path.parent))
    path.write_text(json.dumps({"eos_token_id": [1, 2]}))
    assert not policies.is_small_llama(str(path.parent))
    path.unlink()  # then config.json says it
    assert policies.is_small_llama(str(path.parent))
    config = json.loads(path.with_name("config.json").read_text())
    path.with_name("config.json").write_text(json.dumps({**config, "eos_token_id": [1, 20]}))
    assert not policies.is_small_llama(str(path.parent))
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert not config_of("grpo", folder, tmp_path).trains_together()


# ---- Trainings -----------------------------------------------------------------------------


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.usefixtures("small")
def test_a_seed_has_the_same_bits_alone(
    variant: str, folder: str, judge: str, tmp_path: Path
) -> None:
    """On two threads, too; and its part says what it would say."""
    given: dict[str, Any] = {"seeds": 3, "first_seed": 1}
    given["epochs"] = 5  # so many updates that a sum over them may round differently
    if variant == "dapo":  # groups are mixed half of the time: few in some steps
        given |= {"group_size": 2, "minibatches": 6, "max_draws": 2}
    name, config = variant_of(variant, folder, judge, tmp_path / "all", **given)
    parts = trained(name, config)
    for threads, settings in ((1, {"seeds": 1, "first_seed": 2}), (2, {})):
        other = replace(config, results=str(tmp_path / f"{threads}"), threads=threads, **settings)
        for seed, part in trained(name, other).items():
            assert_same(parts[seed], part)
    few = [pd.read_parquet(part / "metrics.parquet") for part in parts.values()]
    assert all((x["grad_norm"] > 0).mean() > 0.5 for x in few)
    assert not few[0]["reward"].equals(few[1]["reward"])
    if name == "dapo":
        assert len({tuple(x["drawn"]) for x in few}) > 1
        assert len({len(x) for x in few}) > 1  # some are finished before others


def test_seeds_share_the_time_of_their_batch(
    folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Evaluations excluded, also those of the others, and what comes before the first."""
    now = 0.0
    real_open = LanguageRun._open

    def slow_open(self: LanguageRun) -> None:
        nonlocal now
        real_open(self)
        now += 0.5

    class Slow:
        headline = "pass@1"

        def __call__(self, final: bool, seeds: Sequence[int] = (0,)) -> list[Any]:
            nonlocal now
            now += 5.0
            return [({"pass@1": 0.0}, [])] * len(seeds)

        def save(self, folder: Path, seed: int = 0) -> None: ...

    with monkeypatch.context() as patch:
        patch.setattr(time, "perf_counter", lambda: now)
        patch.setattr(LanguageRun, "_open", slow_open)
        run = SeedsRun(config_of("grpo", folder, tmp_path, total_samples=16), [2, 4])
        run.evaluate_if_due(Slow())
        for seeds in ([0, 1], [0, 1], [1], [1]):
            now += 3.0
            run.log(torch.tensor([8, 4]), {"reward": torch.zeros(2)}, seeds)
            run.evaluate_if_due(Slow())
        parts = run.finish(None)
    # Two evaluations at the beginning, one after each of the steps 1, 2 and 4, and one at the end.
    assert [part["learn_seconds"] for part in parts] == [4 * 3 / 2] * 2
    assert [part["total_seconds"] for part in parts] == [(1 + 4 * 3 + 6 * 5) / 2] * 2
    curves, steps = ([getattr(x, what)() for x in run.runs] for what in ("curve", "metrics"))
    assert [x["learn_s"].tolist() for x in curves] == [[0, 1.5, 3], [0, 3, 6]]
    assert [x["learn_s"].tolist() for x in steps] == [[1.5, 3], [1.5, 3, 4.5, 6]]
    assert [x["samples"].tolist() for x in steps] == [[8, 16], [4, 8, 12, 16]]


class Interrupted(Exception):
    """What stops a training in these tests."""


def interrupt(patch: pytest.MonkeyPatch, owner: Any, name: str, k: int) -> None:
    """Raise where a method is called for the k-th time."""
    real, calls = getattr(owner, name), []

    def method(self: Any, *args: Any, **options: Any) -> Any:
        calls.append(1)
        if len(calls) == k:
            raise Interrupted
        return real(self, *args, **options)

    patch.setattr(owner, name, method)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.usefixtures("small")
def test_a_batch_goes_on_from_its_checkpoint(
    variant: str,
    folder: str,
    judge: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Also those that are left of it, each of them alone."""
    settings = {"seeds": 3, "checkpoint_interval": 1e-9, "total_samples": 96, "quiet": False}
    name, config = variant_of(variant, folder, judge, tmp_path / "whole", **settings)
    whole = trained(name, config)
    config = replace(config, results=str(tmp_path / "broken"))
    with monkeypatch.context() as patch:
        interrupt(patch, SeedsRun, "log", 4)
        with pytest.raises(Interrupted):
            trained(name, config)
    path = RunFolder.of(config, name).path
    assert [x.name for x in path.iterdir() if x.name.startswith("seeds")] == [part_name([0])]
    assert (path / part_name([0]) / CHECKPOINT).exists()
    capsys.readouterr()
    # The second seed goes on alone, then the first, then the third; a fourth begins.
    for first in (1, 0):
        trained(name, replace(config, seeds=1, first_seed=first))
        said = capsys.readouterr()
        assert (said.out.count("going on from"), said.err) == (1, "")
    parts = trained(name, replace(config, seeds=4))
    said = capsys.readouterr()
    assert (said.out.count("going on from"), said.err) == (1, "")
    for seed, part in parts.items():
        assert not (part / CHECKPOINT).exists()
        if seed in whole:
            assert_same(part, whole[seed])


@pytest.mark.usefixtures("small")
def test_seeds_that_went_on_alone_do_not_go_back(
    folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Interrupted again, they are further than the one that they left behind."""
    settings = {"checkpoint_interval": 1e-9, "total_samples": 96, "quiet": False}
    config = config_of("grpo", folder, tmp_path, seeds=3, **settings)
    for k, own in ((2, config), (4, replace(config, seeds=2, first_seed=1))):
        with monkeypatch.context() as patch:
            interrupt(patch, SeedsRun, "log", k)
            with pytest.raises(Interrupted):
                trained("grpo", own)
    capsys.readouterr()
    trained("grpo", config)
    found = re.findall(r"going on from sample (\d+)", capsys.readouterr().out)
    assert len(found) == 2
    assert int(found[0]) < int(found[1])


@pytest.mark.usefixtures("small")
def test_what_was_sealed_is_not_trained_again(
    folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Killed while the parts are written: the first seed's, with the checkpoint, is the last."""
    settings = {"seeds": 3, "checkpoint_interval": 1e-9, "quiet": False}
    config = config_of("grpo", folder, tmp_path, **settings)
    with monkeypatch.context() as patch:
        interrupt(patch, LanguageRun, "store", 3)
        with pytest.raises(Interrupted):
            trained("grpo", config)
    path = RunFolder.of(config, "grpo").path
    done = {seed: is_finished(path / part_name([seed])) for seed in range(3)}
    assert done == {0: False, 1: True, 2: True}
    sealed = read_json(path / part_name([1]) / "DONE.json")
    capsys.readouterr()
    with monkeypatch.context() as patch:
        patch.setattr(SeedsRun, "log", lambda *args: pytest.fail("a step was taken again"))
        trained("grpo", config)
    assert "going on from sample 48" in capsys.readouterr().out
    assert is_finished(path / part_name([0]))
    assert read_json(path / part_name([1]) / "DONE.json") == sealed


def test_how_seeds_are_grouped() -> None:
    of_checkpoints = {0: [0, 1, 2], 5: [4, 5, 6, 7]}
    resumes = lambda seed: of_checkpoints.get(seed, [])  # noqa: E731
    assert groups_of([0, 1, 2, 3], resumes) == [[0, 1, 2], [3]]
    assert groups_of([1, 2, 3], resumes) == [[1, 2, 3]]
    assert groups_of([0, 2, 3, 5, 6], resumes) == [[0, 2], [5, 6], [3]]
    assert groups_of([8, 9], resumes) == [[8, 9]]
    of_checkpoints |= {1: [0, 1, 2]}  # two of them went on alone
    assert groups_of([0, 1, 2, 3], resumes) == [[0], [1, 2], [3]]


@pytest.mark.parametrize("fault", ["damaged", "of other settings"])
@pytest.mark.usefixtures("small")
def test_a_checkpoint_of_no_use_is_a_line_and_a_fresh_start(
    fault: str, folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    config = config_of("grpo", folder, tmp_path / "broken", seeds=2, checkpoint_interval=1e-9)
    config = replace(config, name="a")  # of the run, whatever its settings
    with monkeypatch.context() as patch:
        interrupt(patch, SeedsRun, "finish", 1)
        with pytest.raises(Interrupted):
            trained("grpo", config)
    path = RunFolder.of(config, "grpo").path / part_name([0]) / CHECKPOINT
    if fault == "damaged":
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        path.write_bytes(content)
    else:
        config = replace(config, learning_rate=1e-3)
    capsys.readouterr()
    parts = trained("grpo", config)
    (said,) = capsys.readouterr().err.splitlines()
    assert said.startswith(f"note: {path}: not used: it is {fault}; ")
    whole = trained("grpo", replace(config, results=str(tmp_path / "whole")))
    for seed, part in parts.items():
        assert_same(part, whole[seed])


def test_sums_have_the_same_bits_with_more_padding() -> None:
    x = torch.rand(3, 40, 17, generator=torch.Generator().manual_seed(0)) - 0.3
    expected = total(x)
    torch.testing.assert_close(expected, x.sum((1, 2)))
    for width in range(40):
        assert torch.equal(total(torch.nn.functional.pad(x, (0, width))), expected)
    assert torch.equal(total(x[1:2]), expected[1:2])


def test_uniforms_are_those_of_each_seed(folder: str, tmp_path: Path) -> None:
    run = SeedsRun(config_of("grpo", folder, tmp_path), [4, 7])
    found: Tensor = run.uniforms(3, 5, 2, part=1)
    for s, one in enumerate(run.runs):
        assert torch.equal(found[s], one.uniforms(3, 5, 2, part=1))
    assert not torch.equal(found[0], found[1])
    assert [x.seed for x in run.of([1]).runs] == [7]


# ---- Rows ----------------------------------------------------------------------------------

# Each of two configurations: what changes no shape may differ in a batch.
ROWS: dict[str, dict[str, tuple[float, float]]] = {
    **{
        name: {"learning_rate": (1e-3, 3e-3), "temperature": (0.8, 1.1), "kl_coef": (0.3, 0.1)}
        for name in METHODS
    },
    "distill": {"learning_rate": (1e-3, 3e-3), "temperature": (0.8, 1.1)},
}
ROWS["rlhf_ppo"] |= {"gamma": (0.9, 1.0), "gae_lambda": (0.7, 0.95), "value_coef": (0.1, 0.5)}
ROWS["rlhf_ppo"] |= {"missing_eos_penalty": (1.0, 0.3), "critic_learning_rate": (1e-3, 1e-2)}
ROWS["rlhf_ppo"] |= {"clip_value_range": (0.1, 0.01)}
for name, values in ROWS.items():
    if name != "distill":
        values["format_weight"] = (0.5, 2.0)
    if name not in ("distill", "rlhf_ppo"):
        values["entropy_coef"] = (0.1, 0.01)
    if "clip_range" in METHODS[name].Config.__dataclass_fields__:
        values["clip_range"] = (0.01, 0.3)
    if "clip_range_high" in METHODS[name].Config.__dataclass_fields__:
        values["clip_range_high"] = (1.01, 3.0)


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.usefixtures("small")
def test_a_row_has_the_bits_that_its_hyperparameters_have_alone(
    name: str, folder: str, tmp_path: Path
) -> None:
    def trained_by(config: Any, seeds: Sequence[int]) -> Tensor:
        run = SeedsRun(config, seeds)
        policy = METHODS[name].train(config, run)
        return policy.llama.flat  # type: ignore[no-any-return]

    configs = [
        config_of(name, folder, tmp_path, **{key: pair[k] for key, pair in ROWS[name].items()})
        for k in (0, 1)
    ]
    assert set(ROWS[name]) <= set(rows.varying(type(configs[0])))
    batch = trained_by(rows.stack([configs[0], configs[1], configs[1]]), [4, 4, 5])
    alone = torch.cat([trained_by(configs[0], [4]), trained_by(configs[1], [4, 5])])
    assert torch.equal(batch, alone)
    assert not torch.equal(batch[0], batch[1])


@pytest.mark.usefixtures("small")
def test_configurations_are_trained_as_rows(folder: str, tmp_path: Path) -> None:
    """Three, of which one is of another structure, in batches of at most four rows."""
    configs = [
        config_of("grpo", folder, tmp_path, **settings)
        for settings in ({"learning_rate": 1e-3}, {"kl_coef": 0.0}, {"learning_rate": 1e-2})
    ]
    found = train_configurations(grpo.train, configs, [5, 2], rows=4)
    assert found["configuration"].tolist() == [0, 0, 1, 1, 2, 2]
    assert found["seed"].tolist() == [5, 2] * 3
    assert found["diverged"].isna().all()
    alone = train_configurations(grpo.train, configs[2:], [2], rows=1)
    columns = [name for name in alone if name not in ("configuration", "seconds")]
    pd.testing.assert_frame_equal(
        found.loc[[5], columns].reset_index(drop=True), alone[columns], check_exact=True
    )
    other = replace(configs[0], lora_rank=2)
    with pytest.raises(UsageError, match="only small Llamas are one batch"):
        train_configurations(grpo.train, [other], [0])


@pytest.mark.parametrize("module", [rloo, gspo], ids=["rloo", "gspo"])
def test_more_padding_changes_no_bit_of_a_completion_s_ratio(
    module: Any,
) -> None:
    generator = torch.Generator().manual_seed(0)
    lengths = torch.randint(1, 23, (1, 64), generator=generator)
    drawn = 0.1 * torch.randn(2, 1, 64, 22, generator=generator)
    advantages = torch.randn(1, 64, 1, generator=generator).expand(1, 64, 22)

    def gradient(width: int) -> Tensor:
        more = (0, width - 22)
        mask = torch.arange(width) < lengths.unsqueeze(-1)
        old, new = (torch.nn.functional.pad(x, more) * mask for x in drawn)
        known = {"logprobs": old, "reference": old, "mask": mask, "lengths": lengths}
        part = SimpleNamespace(**known, advantages=torch.nn.functional.pad(advantages, more))
        leaf = new.clone().requires_grad_()
        weights = module.token_weights(mask, 64)
        (loss,) = module.policy_loss(leaf, torch.zeros_like(leaf), part, weights, module.Config())
        return torch.autograd.grad(loss, leaf)[0][..., :22]

    expected = gradient(22)
    assert expected.abs().max() > 1e-4
    for width in (23, 26, 32, 47):
        assert torch.equal(gradient(width), expected)
