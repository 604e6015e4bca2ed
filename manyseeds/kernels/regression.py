"""The loss of networks against targets and its gradient in one call (regression.c).

S seeds, M samples.
"""

from __future__ import annotations

import ctypes
from typing import Any

import torch
from torch import Tensor

from manyseeds import kernels
from manyseeds.kernels.mlp import backpropagate


@kernels.sets_gradients
def td_gradients(
    net: Any, obs: Tensor, actions: Tensor, targets: Tensor, kind: str
) -> tuple[Tensor, Tensor]:
    """What `backpropagate` of algos/dqn.py says, for tensors that kernels can take."""
    return _compute(net.q, obs, actions, targets, kind == "huber")  # type: ignore[no-any-return]


@kernels.sets_gradients
def value_gradients(agent: Any, obs: Tensor, returns: Tensor) -> Tensor:
    """What `backpropagate` of algos/trpo.py says, for tensors that kernels can take."""
    found = _compute(agent.critic, agent.features(obs), None, returns, False)
    return found if found is NotImplemented else found[0]  # type: ignore[no-any-return]


def _compute(networks: Any, x: Tensor, actions: Tensor | None, targets: Tensor, huber: bool) -> Any:
    """The losses `[S]` of networks, one per seed, and the chosen outputs `[S, M]`."""
    parameters = networks.weights[0]
    S, M = targets.shape
    if (
        not torch.is_grad_enabled()
        or parameters.dtype != torch.float32
        or x.shape != (S, M, parameters.shape[2])
        or len(parameters) != S
        or (actions is not None and actions.shape != (S, M))
        or {x.dtype, targets.dtype} != {torch.float32}
    ):
        return NotImplemented
    read = [None if t is None else t.contiguous() for t in (x, actions, targets)]
    losses, outputs = x.new_empty(S), x.new_empty(S, M)
    pointers = [None if t is None else t.data_ptr() for t in (*read, losses, outputs)]
    backpropagate(networks, kernels.functions().regress, _Description(M, huber, *pointers))
    return losses, outputs


class _Description(ctypes.Structure):
    """`regression` of regression.c."""

    _fields_ = (
        ("samples", ctypes.c_long),
        ("huber", ctypes.c_int),
        *((name, ctypes.c_void_p) for name in ("x", "actions", "targets", "losses", "outputs")),
    )
