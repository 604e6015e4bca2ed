"""All seeds of a language model as one batch: what each has alone, and what can be gone on from."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import safetensors.torch
import torch
from torch import Tensor

from manyseeds.llm_track import dapo, dr_grpo, grpo, models, policies, sampling, tasks
from manyseeds.llm_track.policies import HubModel, SeedAdamW, SeedModel
from manyseeds.llm_track.rollout import Rollout, from_texts, rollout_of, samples_of
from manyseeds.process import set_up_process
from manyseeds.record import RunFolder, is_finished, part_name, read_json
from manyseeds.runs import language_seeds
from manyseeds.runs.checkpoints import CHECKPOINT
from manyseeds.runs.language_seeds import SeedsRun, groups_of
from manyseeds.runs.parallel import Processes
from tests.random_models import make_model, new_model

METHODS: dict[str, Any] = {"grpo": grpo, "dr_grpo": dr_grpo, "dapo": dapo}
TOKENIZER = models.tiny_tokenizer()
TIMES = ["learn_s"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return make_model("tiny", tmp_path_factory.mktemp("model") / "random")


@pytest.fixture
def small(few_samples: None, eager: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Few evaluation samples, and an accuracy that random weights earn half of the time."""
    monkeypatch.setattr(
        tasks.Addition, "accuracy", lambda self, problem, text: float(sum(map(ord, text)) % 2)
    )


def config_of(name: str, model: str, results: Path, **settings: Any) -> Any:
    given: dict[str, Any] = {"model": model, "results": str(results), "quiet": True}
    given |= {"prompts": 3, "group_size": 4, "minibatches": 2, "max_new_tokens": 8}
    given |= {"total_samples": 48, "evaluations": 2, "learning_rate": 3e-3}
    return METHODS[name].Config(**given | settings)


def trained(name: str, config: Any, seeds: Sequence[int] = ()) -> dict[int, Path]:
    """The parts of the seeds that a command has trained."""
    language_seeds.main(config, METHODS[name].train, {})
    folder = RunFolder.of(config, name).path
    seeds = seeds or range(config.first_seed, config.first_seed + config.seeds)
    return {seed: folder / part_name([seed]) for seed in seeds}


def assert_same(part: Path, other: Path) -> None:
    """To the bit, but for times."""
    found, expected = (
        safetensors.torch.load_file(x / "model" / "model.safetensors") for x in (part, other)
    )
    assert all(torch.equal(found[key], expected[key]) for key in expected)
    for file in ("curve.parquet", "metrics.parquet"):
        frames = [pd.read_parquet(x / file).drop(columns=TIMES) for x in (part, other)]
        pd.testing.assert_frame_equal(*frames, check_exact=True)
    assert read_json(part / "transcripts.json") == read_json(other / "transcripts.json")


# ---- Models --------------------------------------------------------------------------------


def both(scalar: bool = False) -> tuple[list[Any], SeedModel]:
    """Two models of transformers, and the same as a batch."""
    each = [new_model("llama", scale) for scale in (0.2, 0.3)]
    if scalar:
        from transformers import LlamaForSequenceClassification

        for model in each:
            model.config.num_labels = 1
        each = [LlamaForSequenceClassification(x.config) for x in each]
        each[1].load_state_dict({k: 1.5 * x for k, x in each[1].state_dict().items()})
    each = [models.prepare(x, grpo.Config(), torch.device("cpu")) for x in each]
    return each, SeedModel.of_models(each, TOKENIZER)


def test_a_batch_is_the_models_of_transformers() -> None:
    """Samples, their log-probabilities and entropies; prompts of different lengths."""
    each, policy = both()
    prompts = [[[5], [7, 8, 9], [5], [4] * 6], [[6, 6], [9], [5, 4], [3] * 7]]
    uniforms = torch.rand(2, 4, 9, generator=torch.Generator().manual_seed(0))
    found = policy.sample(prompts, uniforms, 0.8)
    likeliest = policy.sample(prompts, uniforms, 0.8, greedy=True)
    assert not torch.equal(found.tokens, likeliest.tokens)
    for s, model in enumerate(each):
        alone = HubModel(model, TOKENIZER, grpo.Config(), Processes())
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


def test_scores_are_those_of_transformers() -> None:
    """Also where a seed has fewer completions than another."""
    each, judges = both(scalar=True)
    task = tasks.make("addition")
    prompts = [["1+2=", "33+4=", "5+5="], ["7+7="]]
    texts = [["3", "a longer one", ""], ["14"]]
    rollout = from_texts(judges, task, prompts, texts, 8)
    assert rollout.lengths[1, 1:].tolist() == [0, 0]
    found = judges.scores(rollout)
    for s, model in enumerate(each):
        own = sampling.from_texts(TOKENIZER, task, prompts[s], texts[s], 8, torch.device("cpu"))
        expected = sampling.scores(model, own)
        torch.testing.assert_close(found[s, : len(own)], expected, rtol=0, atol=1e-5)
    assert (found[0, 0] - found[1, 0]).abs() > 1e-3


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
    samples = samples_of(Rollout(*(x[:1] for x in vars(rollout).values())))
    assert torch.equal(rollout_of(samples).tokens, rollout.tokens[:1])


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
    folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With grouped keys, with scaled positions, with two ends, in two processes."""
    assert config_of("grpo", "tiny", tmp_path).trains_together()
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


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.usefixtures("small")
def test_a_seed_has_the_same_bits_alone(name: str, folder: str, tmp_path: Path) -> None:
    """On two threads, too; and its part says what it would say."""
    many = {"epochs": 5}  # so many updates that a sum over them may round differently
    config = config_of(name, folder, tmp_path / "all", seeds=3, first_seed=2, **many)
    if name == "dapo":  # groups are mixed half of the time
        config = replace(config, group_size=2)
    parts = trained(name, config)
    for threads, seed in ((1, 3), (2, 4)):
        other = replace(config, results=str(tmp_path / f"{seed}"), seeds=1, first_seed=seed)
        (alone,) = trained(name, replace(other, threads=threads)).values()
        assert_same(parts[seed], alone)
    few = [pd.read_parquet(part / "metrics.parquet") for part in parts.values()]
    assert not few[0]["reward"].equals(few[1]["reward"])
    if name == "dapo":
        assert len({tuple(x["drawn"]) for x in few}) > 1
    seconds = [read_json(part / "summary.json")["learn_seconds"] for part in parts.values()]
    assert max(seconds) < 1.5 * min(seconds)  # each has its share
    set_up_process(1)


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


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.usefixtures("small")
def test_a_batch_goes_on_from_its_checkpoint(
    name: str, folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {"seeds": 3, "checkpoint_interval": 1e-9, "total_samples": 96}
    whole = trained(name, config_of(name, folder, tmp_path / "whole", **settings))
    config = config_of(name, folder, tmp_path / "broken", **settings)
    with monkeypatch.context() as patch:
        interrupt(patch, SeedsRun, "log", 4)
        with pytest.raises(Interrupted):
            trained(name, config)
    path = RunFolder.of(config, name).path
    assert [x.name for x in path.iterdir() if x.name.startswith("seeds")] == [part_name([0])]
    assert (path / part_name([0]) / CHECKPOINT).exists()
    # Two of the three go on from it, the third from the beginning.
    parts = trained(name, replace(config, seeds=2))
    parts |= trained(name, config)
    for seed, part in parts.items():
        assert_same(part, whole[seed])
        assert not (part / CHECKPOINT).exists()


@pytest.mark.usefixtures("small")
def test_what_was_sealed_is_not_trained_again(
    folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Killed while the parts are written: the first seed's, with the checkpoint, is the last."""
    settings = {"seeds": 3, "checkpoint_interval": 1e-9, "quiet": False}
    config = config_of("grpo", folder, tmp_path, **settings)
    with monkeypatch.context() as patch:
        interrupt(patch, language_seeds.LanguageRun, "store", 3)
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


@pytest.mark.usefixtures("small")
def test_a_damaged_checkpoint_is_a_line_and_a_fresh_start(
    folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    config = config_of("grpo", folder, tmp_path / "broken", seeds=2, checkpoint_interval=1e-9)
    with monkeypatch.context() as patch:
        interrupt(patch, SeedsRun, "finish", 1)
        with pytest.raises(Interrupted):
            trained("grpo", config)
    path = RunFolder.of(config, "grpo").path / part_name([0]) / CHECKPOINT
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    capsys.readouterr()
    parts = trained("grpo", config)
    said = f"note: {path}: not used: it is damaged; the training starts over\n"
    assert capsys.readouterr().err == said
    whole = trained("grpo", config_of("grpo", folder, tmp_path / "whole", seeds=2))
    for seed, part in parts.items():
        assert_same(part, whole[seed])


def test_uniforms_are_those_of_each_seed(folder: str, tmp_path: Path) -> None:
    run = SeedsRun(config_of("grpo", folder, tmp_path), [4, 7])
    found: Tensor = run.uniforms(3, 5, 2, part=1)
    for s, one in enumerate(run.runs):
        assert torch.equal(found[s], one.uniforms(3, 5, 2, part=1))
    assert not torch.equal(found[0], found[1])
    assert [x.seed for x in run.of([1]).runs] == [7]
