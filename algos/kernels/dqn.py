"""What stands for functions of algos/dqn.py in C (dqn.c)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import Tensor

from manyseeds import kernels
from manyseeds.kernels import mlp, optim

SOURCE = Path(__file__).parent / "dqn.c"
DQN_ADD, DQN_UPDATE = (kernels.kernel(SOURCE, name) for name in ("dqn_add", "dqn_update"))


def takes_transitions(replay: Any, new: Any) -> bool:
    """Whether `dqn_add` can store transitions."""
    return kernels.usable(replay.rows, new.obs)


def add(replay: Any, /, new: Any) -> None:
    """What `Replay.add` of dqn.py says."""
    S, capacity, _ = replay.rows.shape
    count = new.actions.shape[1]
    state = {"C": capacity, "O": replay.obs_size, "added": replay.added, "rows": replay.rows}
    DQN_ADD(S=S, n=count, **state, **new._asdict())
    replay.added.add_(count)


def update(
    net: Any, target: Any, optimizer: Any, replay: Any, draws: Tensor, config: Any
) -> dict[str, Tensor]:
    """What `update` of dqn.py says."""
    S, G, M = draws.shape
    metrics = draws.new_empty(2, S)
    DQN_UPDATE(
        S=S,
        G=G,
        M=M,
        O=replay.obs_size,
        C=replay.rows.shape[1],
        P=optimizer.params.shape[1],
        huber=config.loss == "huber",
        net=mlp.struct(net.q, optimizer),
        target=mlp.struct(target.q),
        optimizer=optim.struct(optimizer, config.learning_rate, config.max_grad_norm),
        added=replay.added,
        rows=replay.rows,
        draws=draws,
        gamma=config.gamma,
        metrics=metrics,
    )
    return {"td_loss": metrics[0], "q_values": metrics[1]}
