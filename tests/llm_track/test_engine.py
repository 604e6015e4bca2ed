"""`--sampler vllm` and `--liger` against stubs of the documented interfaces of both packages."""

from __future__ import annotations

import copy
import importlib.metadata
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from torch import Tensor

from manyseeds.cli import identity
from manyseeds.errors import UsageError
from manyseeds.llm_track import engine, generate, grpo, models, sampling, tasks
from manyseeds.llm_track.sampling import Samples
from manyseeds.record import RunFolder, part_name, read_json
from manyseeds.runs import language_seeds
from manyseeds.runs.language import LanguageConfig
from manyseeds.runs.parallel import Processes
from tests.llm_track import vllm_stub
from tests.random_models import make_model

CPU = torch.device("cpu")
PROMPTS = ["1+2=", "47+85=", "9", "3 5 7 to 22:"] * 3


@pytest.fixture
def vllm(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The stub in vLLM's place."""
    monkeypatch.setitem(sys.modules, "vllm", vllm_stub)
    monkeypatch.setattr(vllm_stub.LLM, "made", [])
    monkeypatch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "1")  # as somebody may have set it
    monkeypatch.setenv("VLLM_LOGGING_LEVEL", "WARNING")
    known = {"vllm": "0.11.0", "liger-kernel": "0.6.0"}
    version = importlib.metadata.version
    monkeypatch.setattr(importlib.metadata, "version", lambda x: known.get(x) or version(x))
    engine.start.cache_clear()
    yield vllm_stub.LLM
    engine.start.cache_clear()


def loaded(folder: str, **settings: Any) -> tuple[Any, Any]:
    """A model with an engine, and its tokenizer."""
    config = LanguageConfig(model=folder, sampler="vllm", **settings)
    return models.load_model(config, CPU, Processes())


def uniforms(B: int, T: int, seed: int = 0) -> Tensor:
    return torch.rand(B, T, generator=torch.Generator().manual_seed(seed))


def drawn(
    model: Any, tokenizer: Any, T: int = 10, temperature: float = 0.7, greedy: bool = False
) -> Samples:
    """Completions of PROMPTS."""
    prompts = sampling.encode_prompts(tokenizer, tasks.make("addition"), PROMPTS)
    u = uniforms(len(prompts), T)
    return sampling.sample(model, tokenizer, prompts, u, temperature, greedy)


def change(model: Any) -> None:
    """Other weights, as an optimizer leaves them."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for p in models.trainable(model):
            p.add_(0.2 * torch.randn(p.shape, generator=generator))


# ---- vLLM ----------------------------------------------------------------------------------


def test_the_likeliest_completions_are_the_same_after_every_change(vllm: Any, folder: str) -> None:
    """Up to any of several end tokens; the cache has nothing of earlier weights."""
    model, tokenizer = loaded(folder)
    ends = [int(drawn(model, tokenizer, greedy=True).tokens[0, 3]), tokenizer.eos_token_id]
    model.generation_config.eos_token_id = ends
    assert drawn(model, tokenizer, greedy=True).ended.any()
    assert vllm.made[0].requests[-1][1].stop_token_ids == sorted(ends)
    before = None
    for _ in range(3):
        found = drawn(model, tokenizer, greedy=True)
        own = copy.copy(model)
        own.engine = None
        expected = drawn(own, tokenizer, greedy=True)
        for name in ("prompts", "prompt_mask", "tokens", "mask", "ended"):
            assert torch.equal(getattr(found, name), getattr(expected, name)), name
        torch.testing.assert_close(found.logprobs, expected.logprobs, rtol=1e-4, atol=1e-4)
        assert before is None or not torch.equal(found.tokens[:, :1], before)
        before = found.tokens[:, :1]
        change(model)


@pytest.mark.usefixtures("vllm")
def test_a_row_depends_on_its_own_uniforms_only(qwen: str) -> None:
    model, tokenizer = loaded(qwen)
    prompts = sampling.encode_prompts(tokenizer, tasks.make("addition"), ["1+2="] * 8)
    u = uniforms(8, 6)
    whole = sampling.sample(model, tokenizer, prompts, u)
    texts = sampling.decode(tokenizer, whole)
    assert len(set(texts)) > 4
    order = [5, 0, 7]
    some = sampling.sample(model, tokenizer, prompts[:3], u[order])
    assert sampling.decode(tokenizer, some) == [texts[i] for i in order]
    other = sampling.sample(model, tokenizer, prompts, uniforms(8, 6, seed=1))
    assert sampling.decode(tokenizer, other) != texts


def test_seeds_are_the_bits_of_two_numbers() -> None:
    u = torch.tensor([[0.0, 0.0, 0.5], [0.5, 2.0**-24, 0.1], [1 - 2.0**-24, 1 - 2.0**-24, 0.2]])
    assert engine.seeds(u) == [0, 2**47 + 1, 2**48 - 1]
    assert engine.seeds(u[:, :1]) == [0, 2**47 + 2**23, 2**48 - 1]
    assert len({*engine.seeds(uniforms(20_000, 4))}) == 20_000


def test_what_vllm_is_asked_for(vllm: Any, qwen: str) -> None:
    model, tokenizer = loaded(qwen, dtype="bfloat16", max_new_tokens=20)
    (llm,) = vllm.made
    assert llm.dtype == "bfloat16"
    assert llm.max_model_len == 2 * 6 + 20  # 47+85=
    drawn(model, tokenizer, T=7)
    assert len(llm.requests) == len(PROMPTS)
    assert {(p.temperature, p.max_tokens) for _, p in llm.requests} == {(0.7, 7)}
    assert sampling.decode(tokenizer, drawn(model, tokenizer, T=7))
    loaded(qwen, max_new_tokens=122)  # with 6 of the longest prompt
    assert [llm.dtype for llm in vllm.made] == ["bfloat16", "float32"]
    assert vllm.made[1].max_model_len == 128  # the model's context


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_adapters_are_merged_into_what_vllm_gets(vllm: Any, kind: str, tmp_path: Path) -> None:
    """Log-probabilities are our model's, whose own weights keep their bits."""
    pytest.importorskip("peft")
    model, tokenizer = loaded(make_model(kind, tmp_path / "m"), lora_rank=4)
    assert models.Reference(model).model.engine is model.engine
    change(model)
    before = {name: p.clone() for name, p in model.named_parameters()}
    samples = drawn(model, tokenizer, T=30)
    assert torch.equal(samples.entropy, -samples.logprobs)
    assert not samples.logprobs.requires_grad
    for name, p in model.named_parameters():
        assert torch.equal(p, before[name]), name
    with torch.no_grad():
        forced = sampling.logprobs(model, samples, 0.7)
    torch.testing.assert_close(samples.logprobs, forced, rtol=0, atol=1e-5)
    expected = dict(copy.deepcopy(model).merge_and_unload().named_parameters())
    given = dict(vllm.made[0].worker.inner.named_parameters())
    assert given.keys() == expected.keys()
    for name, p in expected.items():
        torch.testing.assert_close(given[name], p, rtol=1e-5, atol=1e-6)


def test_trainings_with_vllm(
    vllm: Any, qwen: str, tmp_path: Path, few_samples: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ratio is 1 at the first update, the run has a name and a record of its own."""
    even = lambda self, problem, text: float(len(text) % 2 == 0)  # noqa: E731
    monkeypatch.setattr(tasks.Addition, "accuracy", even)
    shared: dict[str, Any] = {"model": qwen, "quiet": True, "total_samples": 64, "seeds": 2}
    shared |= {"results": str(tmp_path), "max_new_tokens": 8, "sampler": "vllm", "prompts": 8}
    shared |= {"group_size": 4, "minibatches": 1, "learning_rate": 1e-3, "evaluations": 1}
    config = grpo.Config(**shared)
    language_seeds.main(config, grpo.train, {})
    part = RunFolder.of(config, "grpo").path / part_name([0])
    metrics = pd.read_parquet(part / "metrics.parquet")
    assert len(metrics) == 2
    assert (metrics["grad_norm"] > 0).all()
    assert (metrics["approx_kl"].abs() < 1e-8).all()
    assert metrics["kl"][0] < 1e-8 < metrics["kl"][1]
    assert generate.Config(model=qwen, sampler="vllm").as_run().sampler == "vllm"
    record = read_json(part / "config.json")
    assert record["versions"]["vllm"] == "0.11.0"
    assert "manyseeds.llm_track.engine:Engine" in record["code"]["origins"]
    assert record["config"]["sampler"] == "vllm"
    (llm,) = vllm.made  # for both seeds: a second one would find the GPU's memory taken
    tried = {params.seed for _, params in llm.requests}
    assert len(tried) > 2 * 64


def test_by_default_nothing_of_it_is_there(qwen: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("vllm", "liger_kernel", "liger_kernel.transformers"):
        monkeypatch.setitem(sys.modules, name, None)  # importing it fails
    config = LanguageConfig(model=qwen)
    model, _ = models.load_model(config, CPU, Processes())
    assert model.engine is None
    assert not {"sampler", "liger"} & identity(config).keys()
    origins = grpo.Config(model=qwen).origins()
    assert not [name for name in origins if "engine" in name or "fuse" in name]


def test_what_vllm_cannot_do_is_one_line(
    vllm: Any, qwen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "vllm", None)
        with pytest.raises(UsageError, match=r"needs vllm; pip install -e '\.\[vllm"):
            loaded(qwen)
    processes = Processes()
    monkeypatch.setattr(processes, "size", 2)
    with pytest.raises(UsageError, match=r"^--sampler vllm: samples in one process; leave out"):
        models.load_model(LanguageConfig(model=qwen, sampler="vllm"), CPU, processes)

    def refuse(self: Any, model: str, **settings: Any) -> None:
        raise ValueError("Model architectures ['X'] are not supported for now.\nSee ...")

    with monkeypatch.context() as patch:
        patch.setattr(vllm, "__init__", refuse)
        with pytest.raises(
            UsageError, match=r"^--sampler vllm: Model archi.* supported for now\.$"
        ):
            loaded(qwen)
    monkeypatch.setattr(vllm, "extra", True)
    model, tokenizer = loaded(qwen)
    with pytest.raises(UsageError, match=r"has weights that ours has not: a\.new\.weight"):
        drawn(model, tokenizer)
    monkeypatch.setattr(engine, "merged", lambda model: [("a.renamed.weight", torch.zeros(1))])
    with pytest.raises(UsageError, match=r"cannot take our weights: .*'a\.renamed\.weight'"):
        drawn(model, tokenizer)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("", "ValueError"),
        (  # what pydantic 2 says
            "1 validation error for ModelConfig\n  Value error, User-specified max_model_len (9) "
            "is too long [type=value_error, input_value=ArgsKwargs(()), input_type=ArgsKwargs]\n"
            "    For further information visit https://errors.pydantic.dev/2.12/v/value_error",
            "User-specified max_model_len (9) is too long",
        ),
    ],
)
def test_the_line_that_says_why(text: str, line: str) -> None:
    assert engine.reason(ValueError(text)) == line


# ---- Liger ---------------------------------------------------------------------------------


@pytest.fixture
def liger(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """A stub of Liger's interface, and what it was asked for: its RMSNorm is bound to instances."""
    asked: list[dict[str, Any]] = []

    def fused(self: Any, x: Tensor) -> Tensor:
        return self.weight * x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6)

    def apply(model: Any, **settings: Any) -> None:
        asked.append(settings)
        for module in model.modules():
            if type(module).__name__.endswith("RMSNorm"):
                module.forward = types.MethodType(fused, module)

    package = types.ModuleType("liger_kernel")
    names: Any = types.ModuleType("liger_kernel.transformers")
    patches: Any = types.ModuleType("liger_kernel.transformers.monkey_patch")
    names._apply_liger_kernel_to_instance = apply
    patches.MODEL_TYPE_TO_APPLY_LIGER_FN = {"llama": apply, "qwen2": apply}
    for module in (package, names, patches):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    return asked


def on_a_gpu(patch: pytest.MonkeyPatch) -> None:
    """models.fuse takes the CPU for a GPU."""
    real = models.fuse
    patch.setattr(models, "fuse", lambda model, device: real(model, torch.device("cuda")))


def patched(model: Any) -> list[Any]:
    return [m for m in model.modules() if "forward" in vars(m) and "RMSNorm" in type(m).__name__]


@pytest.mark.parametrize("lora_rank", [0, 2])
def test_liger_s_kernels_are_put_into_a_model(
    liger: list[dict[str, Any]], lora_rank: int, qwen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the policy, of its reference, and of critics; without the losses that do not fit."""
    if lora_rank:
        pytest.importorskip("peft")
    on_a_gpu(monkeypatch)
    plain, tokenizer = models.load_model(LanguageConfig(model=qwen), CPU, Processes())
    config = LanguageConfig(model=qwen, liger=True, lora_rank=lora_rank)
    model, _ = models.load_model(config, CPU, Processes())
    assert liger == [{"cross_entropy": False, "fused_linear_cross_entropy": False}]
    assert len(patched(model)) == 3
    assert not patched(plain)
    reference = models.Reference(model)
    samples = drawn(plain, tokenizer)
    own = samples.logprobs
    torch.testing.assert_close(reference.logprobs(samples, 0.7, 5), own, rtol=0, atol=1e-4)
    if not lora_rank:  # its norms compute with the reference's weights, not with the policy's
        change(model)
        torch.testing.assert_close(reference.logprobs(samples, 0.7, 5), own, rtol=0, atol=1e-4)
    for limit in (sampling.MAX_LOGITS, 1):  # also in chunks
        monkeypatch.setattr(sampling, "MAX_LOGITS", limit)
        sampling.logprobs(model, samples).sum().backward()
    critic = models.load_scalar(qwen, config, CPU, Processes(), "--model")
    assert len(patched(critic)) == 3
    assert identity(config)["liger"] is True
    assert "manyseeds.llm_track.models:fuse" in grpo.Config(model=qwen, liger=True).origins()


@pytest.mark.usefixtures("liger")
def test_what_liger_cannot_do_is_one_line(
    qwen: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refusal(folder: str) -> str:
        with pytest.raises(UsageError) as error:
            models.load_model(LanguageConfig(model=folder, liger=True), CPU, Processes())
        return str(error.value)

    assert refusal(qwen) == "--liger: its kernels need a GPU; add --device cuda"
    on_a_gpu(monkeypatch)
    gpt2 = make_model("gpt2", tmp_path / "gpt2")
    assert refusal(gpt2) == "--liger: has no kernels for models of type gpt2"
    monkeypatch.setitem(sys.modules, "liger_kernel", None)
    assert refusal(qwen) == "--liger: needs liger-kernel; pip install -e '.[liger]'"
