"""What stands for functions of algos/reinforce.py in C (reinforce.c)."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

from torch import Tensor

from manyseeds import kernels
from manyseeds.kernels import mlp, optim, policy
from manyseeds.kernels.binding import Struct

SOURCE = Path(__file__).parent / "reinforce.c"
REINFORCE_BATCH = Struct(SOURCE, "reinforce_batch")
REINFORCE_FIT, REINFORCE_GRADIENT, REINFORCE_UPDATE = (
    kernels.kernel(SOURCE, name)
    for name in ("reinforce_fit", "reinforce_gradient", "reinforce_update")
)
REINFORCE_METRICS = ("policy_loss", "entropy", "grad_norm", "grad_variance", "value_loss")
WEIGHTS = ("total_return", "return_to_go", "baseline", "q")  # as numbered in C


def batch_struct(batch: Any, episodes: int, continuous: bool, actions: int) -> ctypes.Structure:
    """The samples of an update; actions: how many there are, or components of one."""
    S, B, size = batch.features.shape
    return REINFORCE_BATCH(
        S=S,
        N=episodes,
        O=size,
        A=actions,
        continuous=continuous,
        B=B,
        **batch._asdict(),
    )


def gradient(actor: Any, batch: Any, weights: Tensor, config: Any) -> dict[str, Tensor]:
    """What `policy_gradient` of reinforce.py says."""
    S, B = weights.shape
    networks = mlp.struct(actor.network, actor)
    gradients, metrics = weights.new_empty(S, networks.size), weights.new_empty(4, S)
    REINFORCE_GRADIENT(
        S=S,
        B=B,
        P=networks.size,
        batch=batch_struct(batch, config.episodes, actor.continuous, actor.action_size),
        policy=policy.struct(actor, actor.network, actor),
        weights=weights,
        entropy_coef=config.entropy_coef,
        gradients=gradients,
        metrics=metrics,
    )
    for p in actor.parameters():
        p.grad = None
    mlp.set_gradients(actor, gradients)
    return dict(zip(REINFORCE_METRICS[:4], metrics.unbind(), strict=True))


def fit(
    critic: Any, optimizer: Any, batch: Any, draws: Tensor, active: Tensor, lr: Tensor
) -> Tensor:
    """What `fit` of reinforce.py says."""
    S, updates, M = draws.shape
    value_loss = draws.new_empty(S)
    actions = batch.actions.shape[2] if critic.actions is None else critic.actions
    REINFORCE_FIT(
        S=S,
        M=M,
        Q=optimizer.params.shape[1],
        updates=updates,
        batch=batch_struct(batch, 1, critic.actions is None, actions),
        critic=mlp.struct(critic.network, optimizer),
        optimizer=optim.struct(optimizer, lr, 0.0),
        draws=draws,
        active=active,
        value_loss=value_loss,
    )
    return value_loss


def update(
    actor: Any,
    optimizer: Any,
    critic: Any,
    critic_optimizer: Any,
    batch: Any,
    draws: Tensor,
    active: Tensor,
    config: Any,
    lr: Tensor,
    critic_lr: Tensor,
) -> dict[str, Tensor]:
    """What `update` of reinforce.py says."""
    S, updates, M = draws.shape
    names = REINFORCE_METRICS[: 4 if critic is None else 5]
    metrics = draws.new_empty(len(REINFORCE_METRICS), S)
    REINFORCE_UPDATE(
        S=S,
        M=M,
        P=optimizer.params.shape[1],
        Q=0 if critic is None else critic_optimizer.params.shape[1],
        updates=updates,
        weight=WEIGHTS.index(config.weight),
        normalized=config.normalize_advantage,
        batch=batch_struct(batch, config.episodes, actor.continuous, actor.action_size),
        policy=policy.struct(actor, actor.network, optimizer),
        optimizer=optim.struct(optimizer, lr, config.max_grad_norm),
        critic=None if critic is None else mlp.struct(critic.network, critic_optimizer),
        critic_optimizer=None if critic is None else optim.struct(critic_optimizer, critic_lr, 0.0),
        entropy_coef=config.entropy_coef,
        draws=draws,
        active=active,
        metrics=metrics,
    )
    return dict(zip(names, metrics[: len(names)].unbind(), strict=True))
