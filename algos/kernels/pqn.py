"""What stands for functions of algos/pqn.py in C (pqn.c)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import Tensor

from manyseeds import kernels
from manyseeds.kernels import mlp, optim
from manyseeds.kernels.binding import CannotTake

SOURCE = Path(__file__).parent / "pqn.c"
PQN_ESTIMATE, PQN_UPDATE = (kernels.kernel(SOURCE, name) for name in ("pqn_estimate", "pqn_update"))


def estimate(net: Any, rollout: Any, config: Any) -> Tensor:
    """What `estimate` of pqn.py says."""
    S, T, N, obs_size = rollout.next_obs.shape
    returns = rollout.rewards.new_empty(S, T * N)
    PQN_ESTIMATE(
        S=S,
        T=T,
        N=N,
        O=obs_size,
        net=mlp.struct(net.q),
        next_obs=rollout.next_obs,
        rewards=rollout.rewards,
        terminated=rollout.terminated,
        truncated=rollout.truncated,
        reward_scale=config.reward_scale,
        gamma=config.gamma,
        q_lambda=config.q_lambda,
        returns=returns,
    )
    return returns


def update(
    net: Any, optimizer: Any, batch: Any, shuffle: Tensor, config: Any, lr: Tensor
) -> dict[str, Tensor]:
    """What `update` of pqn.py says. Raises CannotTake."""
    S, B, obs_size = batch.obs.shape
    if B % config.minibatch:
        raise CannotTake("a rollout is no whole number of minibatches")
    metrics = batch.obs.new_empty(2, S)
    PQN_UPDATE(
        S=S,
        B=B,
        M=config.minibatch,
        O=obs_size,
        P=optimizer.params.shape[1],
        epochs=shuffle.shape[1],
        net=mlp.struct(net.q, optimizer, trains_gains=True),
        optimizer=optim.struct(optimizer, lr, config.max_grad_norm),
        shuffle=shuffle,
        metrics=metrics,
        **batch._asdict(),
    )
    return {"td_loss": metrics[0], "q_values": metrics[1]}
