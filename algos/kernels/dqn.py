"""What stands for functions of algos/dqn.py in C (dqn.c)."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from manyseeds import kernels
from manyseeds.envs.rollout import PLAYING
from manyseeds.kernels import memory, mlp, optim, rollout, scan
from manyseeds.kernels.guard import watch
from manyseeds.kernels.rollout import acting_in_c

SOURCE = Path(__file__).parent / "dqn.c"
DQN_UPDATE, DQN_ROUND = (kernels.kernel(SOURCE, name) for name in ("dqn_update", "dqn_round"))


def update(
    net: Any, target: Any, optimizer: Any, replay: Any, draws: Tensor, config: Any
) -> dict[str, Tensor]:
    """What `update` of dqn.py says."""
    metrics = draws.new_empty(2, len(draws))
    DQN_UPDATE.run(update_struct(net, target, optimizer, replay, draws, config, metrics))
    return {"td_loss": metrics[0], "q_values": metrics[1]}


def update_struct(
    net: Any,
    target: Any,
    optimizer: Any,
    replay: Any,
    draws: Tensor,
    config: Any,
    metrics: Tensor,
) -> ctypes.Structure:
    """What an update is computed of."""
    S, G, M = draws.shape
    return DQN_UPDATE.struct(
        S=S,
        G=G,
        M=M,
        P=optimizer.params.shape[1],
        huber=config.loss == "huber",
        net=mlp.struct(net.q, optimizer),
        target=mlp.struct(target.q),
        optimizer=optim.struct(optimizer, config.learning_rate, config.max_grad_norm),
        memory=memory.struct(replay, replay.obs_size, 1),
        draws=draws,
        gamma=config.gamma,
        metrics=metrics,
    )


# ---- A round ------------------------------------------------------------------------------------


def takes_round(
    env: Any, net: Any, target: Any, optimizer: Any, replay: Any, episodes: Any, *args: Any
) -> bool:
    """Whether `dqn_round` can compute a round: all of it is in C."""
    tensors = net.q.weights[0], replay.rows, episodes.open_return
    hashable = type(replay).__hash__ is not None  # to find its `Round`
    return hashable and env.in_c() is not None and kernels.usable(*tensors)


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
    drawn = *noise, draws
    if syncs or not draws.numel() or not kernels.usable(*drawn, state[0]):
        return NotImplemented
    if not all(map(Tensor.is_contiguous, drawn)):
        return NotImplemented
    kept = replay.rows, replay.added, episodes.open_return, episodes.open_length
    moments = optimizer.params, optimizer.mean, optimizer.square, optimizer.beta_powers
    # All that the structs were made of.
    parts = (
        *(watch.generation, id(env.spec), optimizer.betas, optimizer.eps, config.loss),
        *map(as_now, (config.gamma, config.learning_rate, config.max_grad_norm)),
        *(id(mlp.struct(net.q, optimizer)), id(mlp.struct(target.q))),
        *((x.data_ptr(), x.shape, x.dtype) for x in (*kept, *moments)),
        *((x.shape, x.dtype) for x in (*state, *drawn)),
    )
    known = ROUNDS.get(replay)
    if known is None or known.parts != parts:
        acting = acting_in_c(env, net, PLAYING, state[0], *noise)
        if acting is None:
            return NotImplemented
        unused = draws.new_empty(2, len(draws))
        learned = update_struct(net, target, optimizer, replay, draws, config, unused)
        known = Round(parts, env.spec, *acting, replay, episodes, state, noise, learned)
        ROUNDS[replay] = known
    return known.play(state, *drawn)


def as_now(value: Tensor | float) -> Any:
    """What tells whether a hyperparameter has changed."""
    return (id(value), value._version) if isinstance(value, Tensor) else value


class Round:
    """The structs of a round in C: put together again only when one of their parts has changed.

    parts: what they were made of.
    """

    def __init__(
        self,
        parts: tuple[Any, ...],
        spec: Any,
        environment: int,
        acting: Any,
        replay: Any,
        episodes: Any,
        state: Any,
        noise: tuple[Tensor, Tensor],
        update: ctypes.Structure,
    ) -> None:
        self.parts, self.spec, self.update = parts, spec, update
        S, F, N = noise[0].shape[:3]
        physics, elapsed = rollout.copies(*state)
        last, means = physics.new_empty(S, N, spec.obs_size), physics.new_empty(2, S)
        steps = rollout.empty_steps(spec, physics, S, F, N)
        done = torch.empty_like(steps.terminated)
        self.rollout = rollout.struct(
            *(environment, spec, acting, physics, elapsed, last, *noise, steps)
        )
        self.episodes = scan.episodes_struct(episodes, steps.rewards, done, means)
        stored = steps._asdict()
        del stored["truncated"]
        self.round = DQN_ROUND.struct(
            S=S,
            F=F,
            N=N,
            rollout=self.rollout,
            add=memory.add_struct(replay, F * N, stored),
            episodes=self.episodes,
            update=update,
            terminated=steps.terminated,
            truncated=steps.truncated,
            done=done,
            added=replay.added,
        )

    def play(
        self, state: Any, action_noise: Tensor, env_noise: Tensor, draws: Tensor
    ) -> tuple[Any, Tensor, dict[str, Tensor]]:
        """The next state and observations, and the metrics of a round."""
        physics, elapsed = rollout.copies(*state)
        S, N = elapsed.shape
        last, metrics = physics.new_empty(S, N, self.spec.obs_size), physics.new_empty(4, S)
        moving = {
            "physics": physics,
            "elapsed": elapsed,
            "last": last,
            "action_noise": action_noise,
            "env_noise": env_noise,
        }
        for name, x in moving.items():
            setattr(self.rollout, name, x.data_ptr())
        self.update.draws = draws.data_ptr()
        self.episodes.means = metrics.data_ptr()
        self.update.metrics = metrics[2:].data_ptr()
        DQN_ROUND.run(self.round)
        return (
            type(state)(physics, elapsed),
            last,
            dict(zip(METRICS, metrics.unbind(), strict=True)),
        )


METRICS = ("train_return", "train_length", "td_loss", "q_values")
ROUNDS: WeakKeyDictionary[Any, Round] = WeakKeyDictionary()  # by the memory
