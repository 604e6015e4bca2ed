"""What stands for functions of algos/td3.py and algos/ddpg.py in C (td3.c)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import Tensor

from manyseeds import kernels
from manyseeds.kernels import memory, mlp, optim
from manyseeds.kernels.binding import CannotTake

TD3_UPDATE = kernels.kernel(Path(__file__).parent / "td3.c", "td3_update")


def takes_update(actor: Any, *args: Any) -> bool:
    """Whether `td3_update` can compute an update: there is one."""
    return kernels.usable(actor.net.weights[0], args[6]) and args[6].numel() > 0


def update(
    actor: Any,
    target_actor: Any,
    critics: Any,
    target_critics: Any,
    actor_optimizer: Any,
    critic_optimizer: Any,
    replay: Any,
    draws: Tensor,
    noise: Tensor,
    before: int,
    config: Any,
) -> dict[str, Tensor]:
    """What `update` of td3.py says. Raises CannotTake."""
    networks = actor, target_actor, critics, target_critics
    metrics = run(
        networks,
        (actor_optimizer, critic_optimizer),
        replay,
        draws,
        config,
        noise=noise,
        before=before,
        delay=config.policy_delay,
        std=config.target_policy_noise,
        clip=config.target_noise_clip,
    )
    names = "critic_loss", "q_values", "policy_q_values"
    return dict(zip(names, metrics.unbind(), strict=True))


def run(
    networks: tuple[Any, Any, Any, Any],
    optimizers: tuple[Any, Any],
    replay: Any,
    draws: Tensor,
    config: Any,
    critics: int = 2,
    **given: Any,
) -> Tensor:
    """Metrics `[3, S]` of an update; networks: the actor, the critics, and each one's target
    behind it. Raises CannotTake."""
    S, G, M = draws.shape
    actor, target_actor = (x.net for x in networks[:2])
    q, target_q = (x.q for x in networks[2:])
    obs_size, _, action_size, _ = replay.sizes
    inputs = [net.weights[0].shape[2] for net in (actor, q)]
    nets = actor, target_actor, q, target_q
    shapes, of_all = ([[p.shape for p in x.parameters()] for x in xs] for xs in (nets, networks))
    if (
        {actor.outputs, target_actor.outputs} != {(action_size,)}
        or {q.outputs, target_q.outputs} != {(1,) * critics}
        or inputs != [obs_size, obs_size + action_size]
        or shapes != of_all  # there are no others
        or shapes[0] != shapes[1]
        or shapes[2] != shapes[3]
    ):
        raise CannotTake("the networks are not an actor, critics and targets as in the file")
    metrics = draws.new_empty(3, S)
    TD3_UPDATE(
        S=S,
        G=G,
        M=M,
        D=action_size,
        P=optimizers[0].params.shape[1],
        Q=optimizers[1].params.shape[1],
        actor=mlp.struct(actor, optimizers[0]),
        target_actor=mlp.struct(target_actor),
        critics=mlp.struct(q, optimizers[1]),
        target_critics=mlp.struct(target_q),
        of_actor=optim.struct(optimizers[0], config.learning_rate, 0.0),
        of_critics=optim.struct(optimizers[1], config.learning_rate, 0.0),
        memory=memory.struct(replay, obs_size, action_size),
        draws=draws,
        gamma=config.gamma,
        tau=config.tau,
        metrics=metrics,
        **given,
    )
    return metrics
