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


def td_gradients(
    net: Any, obs: Tensor, actions: Tensor, targets: Tensor, kind: str
) -> tuple[Tensor, Tensor]:
    """What `backpropagate` of algos/dqn.py says, for tensors that kernels can take."""
    return _compute(net.q, obs, actions, targets, kind == "huber")


def value_gradients(agent: Any, obs: Tensor, returns: Tensor) -> Tensor:
    """What `backpropagate` of algos/trpo.py says, for tensors that kernels can take."""
    loss, _ = _compute(agent.critic, agent.features(obs), None, returns, False)
    return loss


def _compute(
    networks: Any, x: Tensor, actions: Tensor | None, targets: Tensor, huber: bool
) -> tuple[Tensor, Tensor]:
    """The losses `[S]` of networks, one per seed, and the chosen outputs `[S, M]`."""
    S, M = targets.shape
    read = [None if t is None else t.contiguous() for t in (x, actions, targets)]
    losses, outputs = torch.empty(S), torch.empty(S, M)
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
