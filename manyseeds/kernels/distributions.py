"""Log-probabilities and entropies of distributions over actions in C (distributions.c)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from manyseeds import kernels


def takes(policy: Any, actions: Tensor) -> bool:
    """Whether `logprob_and_entropy` can take arguments."""
    logits = policy.logits
    fits = logits.shape[:-1] == actions.shape and actions.dtype == torch.int64
    return fits and kernels.usable(logits)


def logprob_and_entropy(policy: Any, /, actions: Tensor) -> tuple[Tensor, Tensor]:
    """What `Categorical.logprob_and_entropy` of distributions.py says.

    Gradients have none of their own. Raises IndexError for actions that are none.
    """
    return _Categorical.apply(policy.logits, actions)  # type: ignore[no-any-return, no-untyped-call]


class _Categorical(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        logits, actions = logits.contiguous(), actions.contiguous()
        logprobs, entropies = logits.new_empty(2, *actions.shape).unbind()
        probabilities = torch.empty_like(logits)
        rows, tensors = actions.numel(), (logits, actions, logprobs, entropies, probabilities)
        pointers = [x.data_ptr() for x in tensors]
        if kernels.functions().categorical(rows, logits.shape[-1], *pointers):
            raise IndexError(f"actions must be from 0 to {logits.shape[-1] - 1}")
        ctx.save_for_backward(*tensors)
        ctx.set_materialize_grads(False)
        return logprobs, entropies

    @staticmethod
    @torch.autograd.function.once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor, None]:
        logits, actions = ctx.saved_tensors[:2]
        gradient = torch.empty_like(logits)
        of_outputs = [None if g is None else g.contiguous() for g in grads]
        pointers = [x.data_ptr() for x in ctx.saved_tensors]
        pointers += [None if g is None else g.data_ptr() for g in of_outputs]
        rows = actions.numel()
        kernels.functions().categorical_backward(
            rows, logits.shape[-1], *pointers, gradient.data_ptr()
        )
        return gradient, None
