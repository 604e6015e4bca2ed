"""Completions by vLLM (`--sampler vllm`) instead of `sampling.sample`'s own loop.

    pip install -e '.[vllm]'
    python llm_track/grpo.py --model PATH --task gsm8k --device cuda --sampler vllm ...

The scripts do not know which sampler is used: `models.load_model` gives the model an engine, and
`sampling.sample` calls it.

 1. Weights. The engine has a copy in this process, on the same GPU. All weights are loaded into it
    before every batch (LoRA's adapters merged), and the keys and values of prompts that earlier
    weights have left in its cache are dropped.
 2. Log-probabilities are those of our own model, recomputed: vLLM rounds differently, and the
    ratio to pi_old has to be 1 at the first update. That the tokens were drawn from a slightly
    different distribution is not corrected.
 3. Entropies would need all logits. Minus the log-probability of each token takes their place,
    which is unbiased for the mean over tokens.
 4. A row's random numbers depend on its uniforms alone. The same seed gives the same completion
    where vLLM computes the same logits; it promises that for equal batches on equal hardware only.

Tested against a stub of vLLM's documented interface (tests/llm_track/vllm_stub.py), not against
vLLM itself.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from manyseeds.errors import UsageError
from manyseeds.llm_track import sampling
from manyseeds.llm_track.sampling import Samples

GPU_SHARE = 0.4  # of its memory, for the engine's weights and cache; training has the rest
SEED_BITS = 24  # of a uniform number in float32


@cache
def start(path: str, half: bool, length: int, size: int) -> Engine:
    """An engine; the same one for all seeds of a command, as vLLM does not free its memory."""
    return Engine(path, half, length, size)


class Engine:
    """vLLM with a copy of a model's weights.

    path: the model's folder or hub name. length: tokens of prompt and completion at most. size:
    completions that our own model reads at a time. Raises UsageError without vLLM, and, where
    vLLM cannot run the model, with the line of its message that names the reason.
    """

    def __init__(self, path: str, half: bool, length: int, size: int) -> None:
        # In this process: weights are passed by reference, not copied through a socket.
        os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
        os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
        try:
            import vllm
        except ImportError:
            raise UsageError("--sampler vllm: needs vllm; pip install -e '.[vllm]'") from None
        self.vllm, self.size = vllm, size
        try:
            self.llm = vllm.LLM(
                model=path,
                skip_tokenizer_init=True,  # it gets token ids and returns token ids
                trust_remote_code=False,
                load_format="safetensors",
                dtype="bfloat16" if half else "float32",
                max_model_len=length,
                gpu_memory_utilization=GPU_SHARE,
                seed=0,
            )
        except (ValueError, RuntimeError, OSError) as error:
            raise UsageError(f"--sampler vllm: {reason(error)}") from None

    def __deepcopy__(self, memo: dict[int, Any]) -> Engine:
        """Itself: the reference is a copy of the policy, and samples nothing."""
        return self

    @torch.no_grad()
    def sample(
        self,
        model: Any,
        tokenizer: Any,
        prompts: Sequence[Sequence[int]],
        uniforms: Tensor,
        temperature: float,
        greedy: bool,
    ) -> Samples:
        """As `sampling.sample`, with the present weights of the model."""
        self._load(model)
        last = sampling.end_tokens(model, tokenizer)
        shared = {
            "temperature": 0.0 if greedy else temperature,
            "max_tokens": uniforms.shape[1],
            "stop_token_ids": last.tolist(),
            "detokenize": False,
        }
        outputs = self.llm.generate(
            [{"prompt_token_ids": list(row)} for row in prompts],
            [self.vllm.SamplingParams(seed=seed, **shared) for seed in seeds(uniforms)],
            use_tqdm=False,
        )
        rows = [torch.tensor(output.outputs[0].token_ids) for output in outputs]
        lengths = torch.tensor([len(row) for row in rows])
        ended = torch.isin(torch.stack([row[-1] for row in rows]), last)
        tokens = pad_sequence(rows, batch_first=True, padding_value=tokenizer.pad_token_id)
        mask = torch.arange(tokens.shape[1]) < lengths.unsqueeze(1)

        device = uniforms.device
        tokens, mask, ended = tokens.to(device), mask.to(device), ended.to(device)
        zeros = torch.zeros(mask.shape, device=device)
        padded = sampling.pad_left(prompts, tokenizer.pad_token_id, device)
        samples = Samples(*padded, tokens, mask, ended, zeros, zeros)
        logprobs = sampling.in_batches(
            lambda part: sampling.logprobs(model, part, temperature), samples, self.size
        )
        return replace(samples, logprobs=logprobs, entropy=-logprobs)

    def _load(self, model: Any) -> None:
        """Load the model's weights; UsageError if some of the engine's would not be replaced."""

        def load(inner: Any) -> set[str]:
            """Names of the engine's weights that were not loaded. inner: vLLM's own model."""
            names = {name for name, _ in inner.named_parameters()}
            try:
                loaded = inner.load_weights(merged(model))
            except (KeyError, ValueError) as error:
                raise UsageError(
                    f"--sampler vllm: its model cannot take our weights: {reason(error)}"
                ) from None
            return names - (names if loaded is None else loaded)  # some models do not say

        (missing,) = self.llm.apply_model(load)
        if missing:
            raise UsageError(
                f"--sampler vllm: its model has weights that ours has not: {min(missing)}"
            )
        self.llm.reset_prefix_cache()


def reason(error: Exception) -> str:
    """The line of an error that names its reason.

    Messages of pydantic, with which vLLM checks its settings, begin with the number of errors.
    """
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if len(lines) > 1 and "validation error" in lines[0]:
        return lines[1].removeprefix("Value error, ").partition(" [type=")[0]
    return lines[0] if lines else type(error).__name__


def seeds(uniforms: Tensor) -> list[int]:
    """A seed for each row [B, T]: the bits of its first two uniform numbers."""
    bits = (uniforms[:, :2].double() * 2**SEED_BITS).long()
    return (bits[:, 0] * 2**SEED_BITS + bits[:, -1]).tolist()  # type: ignore[no-any-return]


def merged(model: Any) -> Iterator[tuple[str, Tensor]]:
    """Names and values of a model's weights as `save_pretrained` writes them, adapters added.

    Added to a copy: merging in place and undoing it would leave rounding errors in the weights.
    """
    inner = sampling.without_adapters(model)
    layers = {name: x for name, x in inner.named_modules() if hasattr(x, "get_delta_weight")}
    for name, p in inner.named_parameters():
        layer, _, rest = name.rpartition(".base_layer.")
        if layer in layers:
            added = layers[layer].get_delta_weight("default") if rest == "weight" else 0
            yield f"{layer}.{rest}", p.detach() + added
        elif not any(name.startswith(f"{layer}.") for layer in layers):  # no part of an adapter
            yield name, p.detach()
