"""The loss of temporal-difference errors in C (td.c)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from manyseeds import kernels


def td_loss(q_values: Tensor, actions: Tensor, targets: Tensor, kind: str) -> Tensor:
    """What `td_loss` of algos/dqn.py says, for tensors that kernels can take.

    The gradient of q_values has none of its own.
    """
    return _Loss.apply(q_values, actions, targets, kind)  # type: ignore[no-any-return, no-untyped-call]


class _Loss(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, actions: Tensor, targets: Tensor, kind: str) -> Tensor:
        q, actions, targets = q.contiguous(), actions.contiguous(), targets.contiguous()
        losses, gradient = torch.empty(len(q)), torch.empty_like(q)
        pointers = [x.data_ptr() for x in (q, actions, targets)]
        outputs = losses.data_ptr(), gradient.data_ptr()
        kernels.functions().td_losses(*q.shape, *pointers, kind == "huber", *outputs)
        ctx.save_for_backward(gradient)
        return losses

    @staticmethod
    @torch.autograd.function.once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None]:
        (gradient,) = ctx.saved_tensors
        return gradient * grads[0].view(-1, 1, 1), None, None, None
