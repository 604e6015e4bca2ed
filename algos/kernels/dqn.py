"""What stands for functions of algos/dqn.py in C (dqn.c)."""

from __future__ import annotations

import ctypes
from operator import is_
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from manyseeds import kernels
from manyseeds.envs.rollout import PLAYING
from manyseeds.kernels import mlp, optim, rollout, scan
from manyseeds.kernels.guard import watch
from manyseeds.kernels.rollout import acting_in_c

SOURCE = Path(__file__).parent / "dqn.c"
DQN_ADD, DQN_UPDATE, DQN_ROUND = (
    kernels.kernel(SOURCE, name) for name in ("dqn_add", "dqn_update", "dqn_round")
)


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
    metrics = draws.new_empty(2, len(draws))
    DQN_UPDATE(**described(net, target, optimizer, replay, draws, config, metrics))
    return {"td_loss": metrics[0], "q_values": metrics[1]}


def described(
    net: Any,
    target: Any,
    optimizer: Any,
    replay: Any,
    draws: Tensor,
    config: Any,
    metrics: Tensor,
) -> dict[str, Any]:
    """What `dqn_update` is given."""
    S, G, M = draws.shape
    return {
        "S": S,
        "G": G,
        "M": M,
        "O": replay.obs_size,
        "C": replay.rows.shape[1],
        "P": optimizer.params.shape[1],
        "huber": config.loss == "huber",
        "net": mlp.struct(net.q, optimizer),
        "target": mlp.struct(target.q),
        "optimizer": optim.struct(optimizer, config.learning_rate, config.max_grad_norm),
        "added": replay.added,
        "rows": replay.rows,
        "draws": draws,
        "gamma": config.gamma,
        "metrics": metrics,
    }


# ---- A round ------------------------------------------------------------------------------------


def takes_round(env: Any, net: Any, *args: Any) -> bool:
    """Whether `dqn_round` can compute a round: all of it is in C."""
    return env.in_c() is not None and kernels.usable(net.q.weights[0])


def learn(
    env: Any,
    net: Any,
    target: Any,
    optimizer: Any,
    replay: Any,
    episodes: Any,
    state: Any,
    obs: Tensor,
    noise: tuple[Tensor, Tensor],
    draws: Tensor,
    syncs: int,
    config: Any,
) -> tuple[Any, Tensor, dict[str, Tensor]]:
    """What `learn` of dqn.py says, unless the target network is updated, or nothing learned."""
    tensors = (*noise, draws)
    if syncs or not draws.numel() or not all(map(is_plain, tensors)):
        return NotImplemented
    # What a round computes with: where all of it is the same, and lies where it did.
    same = (
        *(env, net, target, optimizer, episodes, config),
        *(mlp.struct(net.q, optimizer), mlp.struct(target.q)),
        *(replay.rows, replay.added, episodes.open_return, episodes.open_length),
        *(optimizer.params, optimizer.mean, optimizer.square, optimizer.beta_powers),
    )
    sizes = watch.generation, *(x.shape for x in tensors)
    known = ROUNDS.get(replay)
    if known is None or known.sizes != sizes or not all(map(is_, known.same, same)):
        if (acting := acting_in_c(env, net, PLAYING, state.physics, *noise)) is None:
            return NotImplemented
        update = described(
            net, target, optimizer, replay, draws, config, draws.new_empty(2, len(draws))
        )
        known = Round(env.spec, *acting, replay, episodes, state, noise, update)
        known.same, known.sizes = same, sizes
        ROUNDS[replay] = known
    return known(state, *tensors)


def is_plain(x: Tensor) -> bool:
    """Whether C can read a tensor where it lies."""
    return x.dtype is torch.float32 and x.is_contiguous()


class Round:
    """The memory of rounds, and their structs in C: put together once, not in every round."""

    same: tuple[Any, ...]
    sizes: tuple[Any, ...]

    def __init__(
        self,
        spec: Any,
        environment: int,
        acting: Any,
        replay: Any,
        episodes: Any,
        state: Any,
        noise: tuple[Tensor, Tensor],
        update: dict[str, Any],
    ) -> None:
        S, F, N = noise[0].shape[:3]
        size = replay.obs_size
        new = noise[0].new_empty
        physics, elapsed = (x.clone(memory_format=torch.contiguous_format) for x in state)
        self.state, self.last = type(state)(physics, elapsed), new(S, N, size)
        ends = new(3, S, F, N, dtype=torch.bool).unbind()
        steps = {
            "obs": new(S, F, N, size),
            "actions": new(S, F, N, dtype=torch.int64),
            "rewards": new(S, F, N),
            "terminated": ends[0],
            "next_obs": new(S, F, N, size),
        }
        given = rollout.described(environment, spec, acting, physics, *noise)
        moving = {"physics": physics, "elapsed": elapsed, "last": self.last, "truncated": ends[1]}
        self.rollout = rollout.ROLLOUT.struct(T=F, O=size, **given, **moving, **steps)
        memory = {"C": replay.rows.shape[1], "O": size, "added": replay.added, "rows": replay.rows}
        self.episodes = scan.EPISODE_MEANS.struct(
            S=S,
            T=F,
            N=N,
            rewards=steps["rewards"],
            done=ends[2],
            open_returns=episodes.open_return,
            open_lengths=episodes.open_length,
            means=new(2, S),
        )
        self.update = DQN_UPDATE.struct(**update)
        self.round = DQN_ROUND.struct(
            S=S,
            F=F,
            N=N,
            rollout=self.rollout,
            add=DQN_ADD.struct(S=S, n=F * N, **memory, **steps),
            episodes=self.episodes,
            update=self.update,
            terminated=ends[0],
            truncated=ends[1],
            done=ends[2],
            added=replay.added,
        )

    def __call__(
        self, state: Any, action_noise: Tensor, env_noise: Tensor, draws: Tensor
    ) -> tuple[Any, Tensor, dict[str, Tensor]]:
        """The next state and observations, and the metrics of a round."""
        for own, x in zip(self.state, state, strict=True):
            if own is not x:
                own.copy_(x)
        metrics = draws.new_empty(4, len(draws))
        self.rollout.action_noise = action_noise.data_ptr()
        self.rollout.env_noise = env_noise.data_ptr()
        self.update.draws = draws.data_ptr()
        self.episodes.means = metrics.data_ptr()
        self.update.metrics = metrics[2:].data_ptr()
        if failed := DQN_ROUND.function(ctypes.addressof(self.round)):
            raise MemoryError(f"a round of DQN failed in C: {failed}")
        return self.state, self.last, dict(zip(METRICS, metrics.unbind(), strict=True))


METRICS = ("train_return", "train_length", "td_loss", "q_values")
ROUNDS: WeakKeyDictionary[Any, Round] = WeakKeyDictionary()  # by the memory
