"""Small Llamas of a seed axis in C (llama_*.c), as operations that autograd knows.

S seeds, B completions per seed, P and T tokens of the longest prompt and completion; N nodes of the
tree of a seed's completions at most.
"""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from manyseeds import kernels
from manyseeds.kernels.binding import Struct

HERE = Path(__file__).parent
OUTPUTS = HERE / "llama_outputs.c"
LLAMA = Struct(HERE / "llama.h", "llama")
COMPLETIONS = Struct(OUTPUTS, "completions")
FORWARD, BACKWARD, SIZES = (
    kernels.kernel(OUTPUTS, f"llama_{name}") for name in ("forward", "backward", "sizes")
)
SAMPLE = kernels.kernel(HERE / "llama_sample.c", "llama_sample")


def takes(model: Any, *args: Any) -> bool:
    """Whether kernels can compute with a SeedLlama that has logits."""
    return _has_layers(model) and not model.scalar


def takes_scalar(model: Any, *args: Any) -> bool:
    """Whether kernels can compute with a SeedLlama that has a scalar head."""
    return _has_layers(model) and bool(model.scalar)


def _has_layers(model: Any) -> bool:
    return kernels.usable(model.flat) and model.layers > 0  # the last one decides what has a row


def logprobs(
    model: Any, completions: Any, temperature: Tensor | float, entropies: bool = True
) -> tuple[Tensor, Tensor]:
    """What `logprobs` of llama.py says."""
    return _outputs(model, completions, temperature, entropies)


def scalars(model: Any, completions: Any) -> Tensor:
    """What `scalars` of llama.py says."""
    return _outputs(model, completions, 1.0, False)[0]


def sample(
    model: Any,
    prompts: Tensor,
    prompt_lengths: Tensor,
    uniforms: Tensor,
    end: int,
    temperature: Tensor | float = 1.0,
    greedy: bool = False,
) -> Any:
    """What `sample` of llama.py says: the fields of its result in their order."""
    S, B, T = uniforms.shape
    tokens, lengths = prompts.new_empty(S, B, T), prompts.new_empty(S, B)
    ended = torch.empty(S, B, dtype=torch.bool)
    logprobs, entropies = uniforms.new_empty(2, S, B, T)
    SAMPLE(
        S=S,
        B=B,
        P=prompts.shape[-1],
        T=T,
        end=end,
        greedy=greedy,
        model=struct(model),
        prompts=prompts,
        prompt_lengths=prompt_lengths,
        uniforms=uniforms,
        temperatures=temperature,
        tokens=tokens,
        logprobs=logprobs,
        entropies=entropies,
        lengths=lengths,
        ended=ended,
    )
    return tokens, lengths, ended, logprobs, entropies


def _outputs(
    model: Any, completions: Any, temperature: Tensor | float, entropies: bool
) -> tuple[Tensor, Tensor]:
    """Log-probabilities or scalars, and the entropies, or 0 if they are not asked for."""
    completions = type(completions)(*(x.contiguous() for x in completions))
    if torch.is_grad_enabled() and model.flat.requires_grad:
        return _Outputs.apply(model.flat, model, completions, temperature, entropies)  # type: ignore[no-any-return, no-untyped-call]
    return forward(model, completions, temperature, entropies, None)


class _Outputs(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        flat: Tensor,
        model: Any,
        completions: Any,
        temperature: Tensor | float,
        entropies: bool,
    ) -> tuple[Tensor, Tensor]:
        kept = Kept(len(flat), kept_size(model, completions))
        outputs = forward(model, completions, temperature, entropies, kept)
        ctx.given = model, completions, temperature, entropies, kept
        ctx.save_for_backward(flat)  # refuses weights that have changed since
        if not entropies:
            ctx.mark_non_differentiable(outputs[1])
        return outputs

    @staticmethod
    @torch.autograd.function.once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, of_outputs: Tensor, of_entropies: Tensor) -> tuple[Tensor | None, ...]:
        model, completions, temperature, entropies, kept = ctx.given
        (flat,) = ctx.saved_tensors
        gradients = torch.empty_like(flat)
        BACKWARD(
            **dimensions(model, completions),
            kept_size=kept.size,
            size=flat.shape[-1],
            model=struct(model),
            completions=completions_struct(completions),
            temperatures=temperature,
            memory=kept.floats,
            of_outputs=of_outputs.contiguous(),
            of_entropies=of_entropies.contiguous() if entropies else None,
            gradients=gradients,
        )
        return gradients, None, None, None, None


class Kept:
    """Memory for what a forward pass keeps for the gradients: S times some floats.

    It is used again once the graph is gone, as fresh memory of this size costs page faults.
    """

    free: list[Tensor] = []  # noqa: RUF012  # of all

    def __init__(self, seeds: int, size: int) -> None:
        self.size = size
        fitting = [x for x in self.free if x.numel() >= seeds * size]
        self.whole = min(fitting, key=Tensor.numel) if fitting else torch.empty(seeds * size)
        self.free[:] = [x for x in self.free if fitting and x is not self.whole]
        self.floats = self.whole[: seeds * size]

    def __del__(self) -> None:
        self.free.append(self.whole)


def forward(
    model: Any, completions: Any, temperature: Tensor | float, entropies: bool, kept: Kept | None
) -> tuple[Tensor, Tensor]:
    """What `_outputs` returns; kept gets what gradients need."""
    sizes = dimensions(model, completions)
    outputs = model.flat.new_empty(sizes["S"], sizes["B"], sizes["O"])
    nats = torch.empty_like(outputs) if entropies else torch.zeros_like(outputs)
    FORWARD(
        **sizes,
        kept_size=kept.size if kept else 0,
        model=struct(model),
        completions=completions_struct(completions),
        temperatures=temperature,
        memory=kept.floats if kept else None,
        outputs=outputs,
        entropies=nats if entropies else None,
    )
    return outputs, nats


def kept_size(model: Any, completions: Any) -> int:
    """Floats that the gradients of a seed need."""
    size = torch.empty(1, dtype=torch.int64)
    SIZES(model=struct(model), completions=completions_struct(completions), kept_size=size)
    return int(size)


def dimensions(model: Any, completions: Any) -> dict[str, int]:
    """What forward and backward begin with: O outputs of each completion."""
    S, B, T = completions.tokens.shape
    return {"S": S, "B": B, "O": T + model.scalar}


def struct(model: Any) -> ctypes.Structure:
    """The `llama` of llama.h."""
    return LLAMA(
        S=len(model.flat),
        V=model.vocabulary,
        H=model.width,
        I=model.mlp_width,
        D=model.head_size,
        half=model.head_size // 2,
        heads=model.heads,
        layers=model.layers,
        tied=model.tied,
        scalar=model.scalar,
        size=model.flat.shape[-1],
        eps=model.eps,
        parameters=model.flat.detach(),
        frequencies=model.frequencies,
    )


def completions_struct(completions: Any) -> ctypes.Structure:
    """The `completions` of llama_outputs.c."""
    (S, B, P), T = completions.prompts.shape, completions.tokens.shape[-1]
    lengths = completions.prompt_lengths + completions.lengths
    return COMPLETIONS(
        S=S, B=B, P=P, T=T, N=int(lengths.sum(1).max()) if B else 0, **completions._asdict()
    )
