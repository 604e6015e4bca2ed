"""Stands in for vLLM, which needs a GPU: the part of its documented interface that is used here.

It samples with a model of transformers, one token and one row at a time, and refuses what vLLM
would refuse. Like vLLM it keeps what it has computed of a prompt until the cache is reset, also
where the weights have changed since.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn


@dataclass(kw_only=True)
class SamplingParams:
    """https://docs.vllm.ai/en/latest/api/vllm/sampling_params"""

    n: int = 1
    temperature: float = 1.0
    seed: int | None = None
    max_tokens: int | None = 16
    stop_token_ids: list[int] = field(default_factory=list)
    detokenize: bool = True

    def __post_init__(self) -> None:
        assert self.seed is None or -(2**63) <= self.seed < 2**63
        assert type(self.seed) in (int, type(None))
        assert self.temperature >= 0
        assert self.max_tokens is None or self.max_tokens >= 1


class WorkerModel(nn.Module):
    """A model as vLLM holds it: weights under the names of a checkpoint, an `extra` one at will."""

    def __init__(self, inner: Any, extra: bool) -> None:
        super().__init__()
        self.inner = inner
        self.extra = extra

    def named_parameters(self, *args: Any, **settings: Any) -> Any:
        yield from self.inner.named_parameters()
        if self.extra:
            yield "a.new.weight", torch.zeros(1)

    def load_weights(self, weights: Iterable[tuple[str, Tensor]]) -> set[str]:
        own, loaded = dict(self.inner.named_parameters()), set()
        for name, value in weights:
            if name not in own:
                raise ValueError(f"There is no module or parameter named {name!r}")
            assert value.shape == own[name].shape
            assert not value.requires_grad
            own[name].data.copy_(value)
            loaded.add(name)
        return loaded


class LLM:
    """https://docs.vllm.ai/en/latest/api/vllm/entrypoints/llm"""

    made: list[LLM] = []  # noqa: RUF012 - as the tests look at them
    extra = False

    def __init__(
        self,
        model: str,
        *,
        skip_tokenizer_init: bool = False,
        trust_remote_code: bool = False,
        dtype: str = "auto",
        seed: int = 0,
        gpu_memory_utilization: float = 0.92,
        max_model_len: int | None = None,
        load_format: str = "auto",
    ) -> None:
        from transformers import AutoModelForCausalLM

        assert os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] == "0"  # else it may not hand functions
        assert skip_tokenizer_init
        assert not trust_remote_code
        assert load_format == "safetensors"
        assert 0 < gpu_memory_utilization < 1
        inner = AutoModelForCausalLM.from_pretrained(model, dtype=getattr(torch, dtype)).eval()
        context = inner.config.max_position_embeddings
        if max_model_len is not None and max_model_len > context:
            raise ValueError(f"User-specified max_model_len ({max_model_len}) is greater than ...")
        self.dtype, self.max_model_len = dtype, max_model_len or context
        self.worker = WorkerModel(inner, self.extra)
        self.cache: dict[tuple[int, ...], Tensor] = {}  # logits after a prompt
        self.requests: list[tuple[list[int], SamplingParams]] = []
        LLM.made.append(self)

    def apply_model(self, func: Callable[[nn.Module], Any]) -> list[Any]:
        return [func(self.worker)]

    def reset_prefix_cache(self) -> bool:
        self.cache.clear()
        return True

    def generate(
        self,
        prompts: Sequence[dict[str, list[int]]],
        sampling_params: Sequence[SamplingParams],
        *,
        use_tqdm: bool = True,
    ) -> list[Any]:
        assert not use_tqdm
        pairs = zip(prompts, sampling_params, strict=True)
        return [self._complete(prompt["prompt_token_ids"], params) for prompt, params in pairs]

    @torch.no_grad()
    def _complete(self, prompt: list[int], params: SamplingParams) -> Any:
        assert not params.detokenize  # without a tokenizer it cannot
        assert params.n == 1
        assert params.max_tokens is not None
        if len(prompt) >= self.max_model_len:
            raise ValueError(f"The decoder prompt (length {len(prompt)}) is longer than ...")
        self.requests.append((prompt, params))
        generator = torch.Generator()
        if params.seed is not None:
            generator.manual_seed(params.seed)
        tokens: list[int] = []
        reason = "length"
        for _ in range(min(params.max_tokens, self.max_model_len - len(prompt))):
            key = (*prompt, *tokens)
            if key not in self.cache:
                self.cache[key] = self.worker.inner(torch.tensor([key])).logits[0, -1].float()
            logits = self.cache[key]
            if params.temperature == 0:
                token = int(logits.argmax())
            else:
                p = (logits / params.temperature).softmax(-1)
                token = int(torch.multinomial(p, 1, generator=generator))
            tokens.append(token)  # the one that ends a completion, too
            if token in params.stop_token_ids:
                reason = "stop"
                break
        completion = SimpleNamespace(index=0, token_ids=tokens, finish_reason=reason)
        return SimpleNamespace(prompt_token_ids=prompt, outputs=[completion])
