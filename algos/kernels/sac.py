"""What stands for functions of algos/sac.py in C (sac.c)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import Tensor

from manyseeds import kernels
from manyseeds.kernels import mlp, optim

SOURCE = Path(__file__).parent / "sac.c"
SAC_ADD, SAC_UPDATE = (kernels.kernel(SOURCE, name) for name in ("sac_add", "sac_update"))
METRICS = ("critic_loss", "actor_loss", "q_values", "entropy", "alpha")


def takes_transitions(replay: Any, new: Any) -> bool:
    """Whether `sac_add` can store transitions."""
    return kernels.usable(replay.rows, new.obs)


def add(replay: Any, /, new: Any) -> None:
    """What `Replay.add` of sac.py says."""
    S, capacity, _ = replay.rows.shape
    obs_size, _, action_size, _ = replay.sizes
    count = new.rewards.shape[1]
    memory = {"C": capacity, "added": replay.added, "rows": replay.rows}
    memory |= {"O": obs_size, "D": action_size}
    SAC_ADD(S=S, n=count, **memory, **new._asdict())
    replay.added.add_(count)


def takes_update(learner: Any, draws: Tensor, noise: Tensor, config: Any) -> bool:
    """Whether `sac_update` can compute an update."""
    return kernels.usable(learner.replay.rows, draws, noise)


def update(learner: Any, draws: Tensor, noise: Tensor, config: Any) -> dict[str, Tensor]:
    """What `update` of sac.py says."""
    actor, critics, target, temperature, *optimizers, replay = learner
    S, G, M = draws.shape
    obs_size, _, action_size, _ = replay.sizes
    metrics = draws.new_empty(len(METRICS), S)
    of_actor, of_critics, of_temperature = (
        optim.struct(optimizer, config.learning_rate, 0.0) for optimizer in optimizers
    )
    SAC_UPDATE(
        S=S,
        G=G,
        M=M,
        O=obs_size,
        D=action_size,
        C=replay.rows.shape[1],
        P=optimizers[0].params.shape[1],
        Q=optimizers[1].params.shape[1],
        actor=mlp.struct(actor.net, optimizers[0]),
        critics=mlp.struct(critics.q, optimizers[1]),
        target=mlp.struct(target.q),
        of_actor=of_actor,
        of_critics=of_critics,
        of_temperature=of_temperature,
        added=replay.added,
        rows=replay.rows,
        draws=draws,
        noise=noise,
        gamma=config.gamma,
        tau=config.tau,
        alpha=config.alpha,
        target_entropy=temperature.target_entropy,
        metrics=metrics,
    )
    return dict(zip(METRICS, metrics.unbind(), strict=True))
