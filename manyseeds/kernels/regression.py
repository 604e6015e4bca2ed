"""The loss of networks against targets and its gradient in one call (regression.c).

S seeds, M samples.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from manyseeds import kernels
from manyseeds.kernels import mlp

REGRESS = kernels.kernel(Path(__file__).parent / "regression.c", "regress")


@kernels.sets_gradients
def td_gradients(
    net: Any, obs: Tensor, actions: Tensor, targets: Tensor, kind: str
) -> tuple[Tensor, Tensor]:
    """What `backpropagate` of algos/dqn.py says, for tensors that kernels can take."""
    return _compute(net, net.q, obs, actions, targets, kind == "huber")  # type: ignore[no-any-return]


@kernels.sets_gradients
def squared_error_gradients(net: Any, batch: Any) -> tuple[Tensor, Tensor]:
    """What `backpropagate` of algos/pqn.py says."""
    given = batch.obs, batch.actions, batch.returns
    return _compute(net, net.q, *given, False)  # type: ignore[no-any-return]


@kernels.sets_gradients
def value_gradients(agent: Any, obs: Tensor, returns: Tensor) -> Tensor:
    """What `backpropagate` of algos/trpo.py says, for tensors that kernels can take."""
    found = _compute(agent.critic, agent.critic, agent.features(obs), None, returns, False)
    return found if found is NotImplemented else found[0]  # type: ignore[no-any-return]


def _compute(
    root: Any, module: Any, x: Tensor, actions: Tensor | None, targets: Tensor, huber: bool
) -> Any:
    """The losses `[S]` of networks, one per seed, and the chosen outputs `[S, M]`.

    root: the module whose flat gradients are set.
    """
    if not torch.is_grad_enabled() or module.weights[0].dtype != torch.float32:
        return NotImplemented
    (S, M), networks = targets.shape, mlp.struct(module, root, trains_gains=True)
    losses, outputs = x.new_empty(S), x.new_empty(S, M)
    gradients = x.new_zeros(S, networks.networks * networks.size)
    REGRESS(
        S=S,
        M=M,
        O=module.weights[0].shape[2],
        P=gradients.shape[1],
        huber=huber,
        networks=networks,
        x=x,
        actions=actions,
        targets=targets,
        losses=losses,
        outputs=outputs,
        gradients=gradients,
    )
    mlp.set_gradients(root, gradients)
    return losses, outputs
