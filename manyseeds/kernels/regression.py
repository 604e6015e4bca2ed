"""The loss of networks against targets and its gradient in one call (regression.c).

S seeds, M samples.
"""

from __future__ import annotations

import ctypes
from typing import Any

import torch
from torch import Tensor

from manyseeds import kernels
from manyseeds.kernels.mlp import ACTIVATIONS, addresses, describe, weighted


def td_loss(
    net: Any, obs: Tensor, actions: Tensor, targets: Tensor, kind: str
) -> tuple[Tensor, Tensor]:
    """What `td_loss` of algos/dqn.py says, for tensors that kernels can take."""
    return _compute(net.q, obs, actions, targets, kind == "huber")


def value_loss(agent: Any, obs: Tensor, returns: Tensor) -> Tensor:
    """What `value_loss` of algos/trpo.py says, for tensors that kernels can take."""
    loss, _ = _compute(agent.critic, agent.features(obs), None, returns, False)
    return loss


def _compute(
    networks: Any, x: Tensor, actions: Tensor | None, targets: Tensor, huber: bool
) -> tuple[Tensor, Tensor]:
    """The losses `[S]` of networks, one per seed, and the chosen outputs `[S, M]`."""
    weights, biases = networks.parameter_lists()
    parameters = [p for pair in zip(weights, biases, strict=True) for p in pair]
    ((_, used),) = networks.heads
    kind = ACTIVATIONS.index(networks.activation)
    settings = huber, kind, (used.stop,)
    return _Regression.apply(settings, x, actions, targets, *parameters)  # type: ignore[no-any-return, no-untyped-call]


class _Description(ctypes.Structure):
    """`regression` of regression.c."""

    _fields_ = (
        ("samples", ctypes.c_long),
        ("huber", ctypes.c_int),
        *((name, ctypes.c_void_p) for name in ("x", "actions", "targets", "losses", "outputs")),
    )


class _Regression(torch.autograd.Function):
    """The forward pass computes the gradients, too: they are always asked for."""

    @staticmethod
    def forward(
        ctx: Any,
        settings: tuple[bool, int, tuple[int, ...]],
        x: Tensor,
        actions: Tensor | None,
        targets: Tensor,
        *parameters: Tensor,
    ) -> tuple[Tensor, Tensor]:
        huber, kind, columns = settings
        S, M = targets.shape
        read = [None if t is None else t.contiguous() for t in (x, actions, targets)]
        losses, outputs = torch.empty(S), torch.empty(S, M)
        gradients = [torch.empty_like(p, memory_format=torch.contiguous_format) for p in parameters]
        pointers = [None if t is None else t.data_ptr() for t in (*read, losses, outputs)]
        described = _Description(M, huber, *pointers)
        sizes = (x.shape[-1], *(bias.shape[-1] for bias in parameters[1::2]))
        networks = describe(S, sizes, columns, kind, parameters)
        if kernels.functions().regress(networks, ctypes.byref(described), addresses(gradients)):
            raise MemoryError("allocating memory for a regression failed")
        ctx.gradients = gradients
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(outputs)
        return losses, outputs

    @staticmethod
    @torch.autograd.function.once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        return None, None, None, None, *weighted(ctx, grads[0])
