"""What stands for functions of algos/a2c.py in C (a2c.c)."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

from torch import Tensor

from manyseeds import kernels
from manyseeds.algos.kernels import Terms, set_gradients_of_loss
from manyseeds.kernels import actor_critic, optim, policy
from manyseeds.kernels.binding import Struct

SOURCE = Path(__file__).parent / "a2c.c"
A2C_BATCH = Struct(SOURCE, "a2c_batch")
A2C_GRADIENT, A2C_UPDATE = (kernels.kernel(SOURCE, name) for name in ("a2c_gradient", "a2c_update"))


def estimate(agent: Any, rollout: Any, rewards: Tensor, config: Any) -> tuple[Tensor, Tensor]:
    """What `estimate` of a2c.py says."""
    values, advantages = rewards.new_empty(2, len(rewards), config.batch_size).unbind()
    n_steps = config.n_steps if config.advantage == "n_step" else 0
    # With a lambda of 1 GAE is the return minus V.
    gae_lambda = 1.0 if config.advantage == "monte_carlo" else config.gae_lambda
    actor_critic.estimate(
        agent,
        rollout,
        rewards,
        values=values,
        advantages=advantages,
        n_steps=n_steps,
        gamma=config.gamma,
        gae_lambda=gae_lambda,
    )
    return values, advantages


@kernels.sets_gradients
def gradient(agent: Any, batch: Any, config: Any) -> Terms:
    """What `backpropagate` of a2c.py says."""
    samples = batch_struct(agent, batch, config, agent)
    return set_gradients_of_loss(A2C_GRADIENT, agent, batch, batch=samples)


def batch_struct(agent: Any, batch: Any, config: Any, root: Any) -> ctypes.Structure:
    """What the loss is computed of; root: as of mlp.struct."""
    S, M = batch.returns.shape
    return A2C_BATCH(
        S=S,
        M=M,
        O=agent.obs_size,
        normalized=config.normalize_advantage,
        policy=policy.struct(agent, agent.networks, root),
        obs=batch.obs,
        actions=batch.actions,
        advantages=batch.advantages,
        returns=batch.returns,
        value_coef=config.value_coef,
        entropy_coef=config.entropy_coef,
    )


def update(agent: Any, optimizer: Any, batch: Any, config: Any, lr: Tensor) -> dict[str, Tensor]:
    """What `update` of a2c.py says."""
    S, M = batch.returns.shape
    names = ["policy_loss", "value_loss", "entropy", "explained_variance"]
    metrics = batch.obs.new_empty(len(names), S)
    A2C_UPDATE(
        S=S,
        M=M,
        P=optimizer.params.shape[1],
        batch=batch_struct(agent, batch, config, optimizer),
        optimizer=optim.struct(optimizer, lr, config.max_grad_norm),
        values=batch.values,
        metrics=metrics,
    )
    return dict(zip(names, metrics.unbind(), strict=True))
