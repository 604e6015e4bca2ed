"""What stands for functions of algos/ddpg.py in C (td3.c): one critic, no noise, no delay."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from manyseeds.algos.kernels import td3
from manyseeds.algos.kernels.td3 import takes_update as takes_update


def update(
    actor: Any,
    target_actor: Any,
    critic: Any,
    target_critic: Any,
    actor_optimizer: Any,
    critic_optimizer: Any,
    replay: Any,
    draws: Tensor,
    config: Any,
) -> dict[str, Tensor]:
    """What `update` of ddpg.py says. Raises CannotTake."""
    loss, q_values, of_policy = td3.run(
        (actor, target_actor, critic, target_critic),
        (actor_optimizer, critic_optimizer),
        replay,
        draws,
        config,
        critics=1,
        noise=None,
        before=0,
        delay=1,
        std=0.0,
        clip=0.0,
    )
    return {"critic_loss": loss, "actor_loss": -of_policy, "q_values": q_values}
