"""PPO's two losses in C (clipped.c): what `policy_loss` and `value_loss` of algos/ppo.py say."""

from __future__ import annotations

import ctypes
from typing import Any

import torch
from torch import Tensor

from manyseeds import kernels


def clipped_losses(
    logprobs: Tensor, values: Tensor, batch: Any, config: Any, clip_range: Tensor | None
) -> tuple[Tensor, Tensor]:
    """What `losses` of algos/ppo.py says, for tensors that kernels can take.

    Gradients reach logprobs and values, and have none of their own.
    """
    S = len(logprobs)
    clip = torch.full((S,), -1.0) if clip_range is None else clip_range.float().expand(S)
    settings = config.normalize_advantage, clip.contiguous(), config.clip_value_range
    samples = logprobs, batch.logprobs, batch.advantages, values, batch.values, batch.returns
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
