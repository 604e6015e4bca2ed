"""What stands for functions of algos/sac_discrete.py in C (sac_discrete.c)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import Tensor

from manyseeds import kernels
from manyseeds.kernels import memory, mlp, optim
from manyseeds.kernels.binding import CannotTake
from manyseeds.rows import used

SOURCE = Path(__file__).parent / "sac_discrete.c"
SAC_DISCRETE_UPDATE = kernels.kernel(SOURCE, "sac_discrete_update")
METRICS = ("critic_loss", "actor_loss", "q_values", "entropy", "alpha")


def takes_update(actor: Any, *args: Any) -> bool:
    """Whether `sac_discrete_update` can compute an update: there is one."""
    return kernels.usable(actor.net.weights[0], args[-2]) and args[-2].numel() > 0


def update(
    actor: Any,
    critics: Any,
    target: Any,
    temperature: Any,
    actor_optimizer: Any,
    critic_optimizer: Any,
    temperature_optimizer: Any,
    replay: Any,
    draws: Tensor,
    config: Any,
) -> dict[str, Tensor]:
    """What `update` of sac_discrete.py says. Raises CannotTake."""
    S, G, M = draws.shape
    nets = critics.q, target.q, critics, target
    shapes = [[p.shape for p in net.parameters()] for net in nets]
    inputs = [net.weights[0].shape[2] for net in (actor.net, critics.q)]
    outputs = actor.net.outputs, critics.q.outputs, target.q.outputs
    A = outputs[0][0]
    if (
        outputs != ((A,), (A, A), (A, A))
        or inputs != [replay.obs_size, replay.obs_size]
        or any(of_one != shapes[0] for of_one in shapes)  # there are no others
    ):
        raise CannotTake("the networks are not an actor and two critics of all actions")
    metrics = draws.new_empty(len(METRICS), S)
    rates = config.learning_rate, 0.0
    SAC_DISCRETE_UPDATE(
        S=S,
        G=G,
        M=M,
        P=actor_optimizer.params.shape[1],
        Q=critic_optimizer.params.shape[1],
        actor=mlp.struct(actor.net, actor_optimizer),
        critics=mlp.struct(critics.q, critic_optimizer),
        target=mlp.struct(target.q),
        of_actor=optim.struct(actor_optimizer, *rates),
        of_critics=optim.struct(critic_optimizer, *rates),
        of_temperature=optim.struct(temperature_optimizer, *rates),
        memory=memory.struct(replay, replay.obs_size, 1),
        draws=draws,
        gamma=config.gamma,
        tau=config.tau,
        learned=not used(temperature.given),
        alpha=temperature.given,
        target_entropy=temperature.target_entropy,
        metrics=metrics,
    )
    return dict(zip(METRICS, metrics.unbind(), strict=True))
