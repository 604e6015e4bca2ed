"""What stands for functions of algos/sac.py in C (sac.c)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import Tensor

from manyseeds import kernels
from manyseeds.kernels import memory, mlp, optim
from manyseeds.kernels.binding import CannotTake
from manyseeds.rows import used

SOURCE = Path(__file__).parent / "sac.c"
SAC_UPDATE = kernels.kernel(SOURCE, "sac_update")
METRICS = ("critic_loss", "actor_loss", "q_values", "entropy", "alpha")


def takes_update(actor: Any, *args: Any) -> bool:
    """Whether `sac_update` can compute an update: there is one."""
    return kernels.usable(actor.net.weights[0], *args[-3:-1]) and args[-3].numel() > 0


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
    noise: Tensor,
    config: Any,
) -> dict[str, Tensor]:
    """What `update` of sac.py says. Raises CannotTake."""
    S, G, M = draws.shape
    obs_size, _, action_size, _ = replay.sizes
    nets = critics.q, target.q, critics, target
    shapes = [[p.shape for p in net.parameters()] for net in nets]
    inputs = [net.weights[0].shape[2] for net in (actor.net, critics.q)]
    outputs = actor.net.outputs, critics.q.outputs, target.q.outputs
    if (
        outputs != ((2 * action_size,), (1, 1), (1, 1))
        or inputs != [obs_size, obs_size + action_size]
        or any(of_one != shapes[0] for of_one in shapes)  # there are no others
    ):
        raise CannotTake("the networks are not an actor and two critics as in algos/sac.py")
    metrics = draws.new_empty(len(METRICS), S)
    rates = config.learning_rate, 0.0
    SAC_UPDATE(
        S=S,
        G=G,
        M=M,
        D=action_size,
        P=actor_optimizer.params.shape[1],
        Q=critic_optimizer.params.shape[1],
        actor=mlp.struct(actor.net, actor_optimizer),
        critics=mlp.struct(critics.q, critic_optimizer),
        target=mlp.struct(target.q),
        of_actor=optim.struct(actor_optimizer, *rates),
        of_critics=optim.struct(critic_optimizer, *rates),
        of_temperature=optim.struct(temperature_optimizer, *rates),
        memory=memory.struct(replay, obs_size, action_size),
        draws=draws,
        noise=noise,
        gamma=config.gamma,
        tau=config.tau,
        learned=not used(temperature.given),
        alpha=temperature.given,
        target_entropy=temperature.target_entropy,
        metrics=metrics,
    )
    return dict(zip(METRICS, metrics.unbind(), strict=True))
