"""PPO's two losses in C (clipped.c): what `policy_loss` and `value_loss` of algos/ppo.py say."""

from __future__ import annotations

import ctypes
from typing import Any

import torch
from torch import Tensor

from manyseeds import kernels


def clipped_losses(
    logprobs: Tensor,
    old_logprobs: Tensor,
    advantages: Tensor,
    values: Tensor,
    old_values: Tensor,
    returns: Tensor,
    normalized: bool,
    clip_range: Tensor | None,
    clip_value_range: float,
) -> tuple[Tensor, Tensor]:
    """The policy's loss and the value loss of each seed, `[S]`, of samples `[S, M]`.

    normalized: advantages get mean 0 and deviation 1 (ddof 1). clip_range: of the ratio, 0-d or
    `[S]`; None: it is not clipped. Gradients reach logprobs and values, and have none of their own.
    """
    S = len(logprobs)
    clip = torch.full((S,), -1.0) if clip_range is None else clip_range.float().expand(S)
    samples = logprobs, old_logprobs, advantages, values, old_values, returns
    settings = normalized, clip.contiguous(), clip_value_range
    return _Losses.apply(settings, *samples)  # type: ignore[no-any-return, no-untyped-call]


class _Losses(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, settings: tuple[bool, Tensor, float], *samples: Tensor
    ) -> tuple[Tensor, ...]:
        normalized, clip, value_clip = settings
        samples = tuple(x.contiguous() for x in samples)
        S, M = samples[0].shape
        found, gradients = torch.empty(2, S), torch.empty(2, S, M)
        pointers = (ctypes.c_void_p * len(samples))(*[x.data_ptr() for x in samples])
        outputs = found.data_ptr(), gradients.data_ptr()
        kernels.functions().clipped_losses(
            S, M, pointers, normalized, clip.data_ptr(), value_clip, *outputs
        )
        ctx.save_for_backward(gradients)
        return found.unbind()

    @staticmethod
    @torch.autograd.function.once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (gradients,) = ctx.saved_tensors
        of_logprobs, of_values = gradients * torch.stack(grads).unsqueeze(-1)
        return None, of_logprobs, None, None, of_values, None, None
