"""What stands for functions of algos/ppo.py in C (ppo.c)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import Tensor

from manyseeds import kernels
from manyseeds.algos.kernels import Terms, set_gradients_of_loss
from manyseeds.kernels import optim, policy
from manyseeds.kernels.binding import CannotTake

SOURCE = Path(__file__).parent / "ppo.c"
PPO_GRADIENT, PPO_UPDATE = (kernels.kernel(SOURCE, name) for name in ("ppo_gradient", "ppo_update"))


@kernels.sets_gradients
def gradient(agent: Any, batch: Any, config: Any, clip_range: Tensor | None) -> Terms:
    """What `backpropagate` of ppo.py says."""
    return set_gradients_of_loss(
        PPO_GRADIENT,
        agent,
        batch,
        O=agent.obs_size,
        policy=policy.struct(agent, agent.networks, agent),
        obs=batch.obs,
        actions=batch.actions,
        old_logprobs=batch.logprobs,
        old_values=batch.values,
        advantages=batch.advantages,
        returns=batch.returns,
        **settings(config, clip_range),
    )


def settings(config: Any, clip_range: Tensor | None) -> dict[str, Any]:
    """What the loss is computed with."""
    return {
        "normalized": config.normalize_advantage,
        "clip": -1.0 if clip_range is None else clip_range,
        "value_clip": config.clip_value_range,
        "value_coef": config.value_coef,
        "entropy_coef": config.entropy_coef,
    }


def update(
    agent: Any,
    optimizer: Any,
    batch: Any,
    shuffle: Tensor,
    config: Any,
    lr: Tensor,
    clip_range: Tensor | None,
) -> dict[str, Tensor]:
    """What `update` of ppo.py says. Raises CannotTake."""
    S, B = batch.returns.shape
    if B % config.minibatch:
        raise CannotTake("a rollout is no whole number of minibatches")
    names = ["policy_loss", "value_loss", "entropy", "approx_kl", "clipfrac", "explained_variance"]
    metrics = batch.obs.new_empty(len(names), S)
    clips = isinstance(config.clip_range, Tensor) or config.clip_range > 0
    PPO_UPDATE(
        S=S,
        B=B,
        M=config.minibatch,
        O=agent.obs_size,
        P=optimizer.params.shape[1],
        epochs=shuffle.shape[1],
        policy=policy.struct(agent, agent.networks, optimizer),
        optimizer=optim.struct(optimizer, lr, config.max_grad_norm),
        shuffle=shuffle,
        target_kl=config.target_kl,
        metrics=metrics,
        **batch._asdict(),
        **settings(config, clip_range if clips else None),
    )
    found = dict(zip(names, metrics.unbind(), strict=True))
    if not clips:
        del found["clipfrac"]
    return found
