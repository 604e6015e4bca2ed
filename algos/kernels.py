"""The C code of algorithms: what stands for functions of NAME.py is in NAME.c.

S seeds, T steps of N environments, B samples, M per gradient step.
"""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from manyseeds import kernels
from manyseeds.kernels import actor_critic, mlp, optim, policy
from manyseeds.kernels.binding import Struct

HERE = Path(__file__).parent
PPO_GRADIENT, PPO_UPDATE = (
    kernels.kernel(HERE / "ppo.c", name) for name in ("ppo_gradient", "ppo_update")
)


class Terms(NamedTuple):
    """What the objective of a minibatch was made of, without gradients."""

    policy_loss: Tensor  # [S], like the next
    value_loss: Tensor
    entropy: Tensor  # [S, M], like the next
    logprobs: Tensor


def takes(agent: Any, *args: Any) -> bool:
    """Whether a kernel can compute with an agent: it is on a CPU."""
    return kernels.usable(next(agent.parameters()))


def gae_estimate(
    agent: Any, rollout: Any, rewards: Tensor, config: Any
) -> tuple[Tensor, Tensor, Tensor]:
    """What `estimate` of ppo.py and trpo.py says."""
    logprobs, values, advantages = rewards.new_empty(3, len(rewards), config.batch_size).unbind()
    actor_critic.estimate(
        agent,
        rollout,
        rewards,
        logprobs=logprobs,
        values=values,
        advantages=advantages,
        gamma=config.gamma,
        gae_lambda=config.gae_lambda,
    )
    return logprobs, values, advantages


@kernels.sets_gradients
def ppo_gradient(agent: Any, batch: Any, config: Any, clip_range: Tensor | None) -> Terms:
    """What `backpropagate` of ppo.py says."""
    S, M, size = batch.obs.shape
    networks = mlp.struct(agent.networks, agent)
    P = networks.networks * networks.size
    gradients, new = batch.obs.new_zeros(S, P), batch.obs.new_empty
    terms = Terms(*new(2, S).unbind(), *new(2, S, M).unbind())
    PPO_GRADIENT(
        S=S,
        M=M,
        O=size,
        P=P,
        policy=policy.struct(agent, agent.networks),
        obs=batch.obs,
        actions=batch.actions,
        old_logprobs=batch.logprobs,
        old_values=batch.values,
        advantages=batch.advantages,
        returns=batch.returns,
        gradients=gradients,
        entropies=terms.entropy,
        logprobs=terms.logprobs,
        policy_loss=terms.policy_loss,
        value_loss=terms.value_loss,
        **ppo_settings(config, clip_range),
    )
    mlp.set_gradients(agent, gradients)
    return terms


def ppo_settings(config: Any, clip_range: Tensor | None) -> dict[str, Any]:
    """What the loss is computed with."""
    return {
        "normalized": config.normalize_advantage,
        "clip": -1.0 if clip_range is None else clip_range,
        "value_clip": config.clip_value_range,
        "value_coef": config.value_coef,
        "entropy_coef": config.entropy_coef,
    }


def ppo_update(
    agent: Any,
    optimizer: Any,
    batch: Any,
    shuffle: Tensor,
    config: Any,
    lr: Tensor,
    clip_range: Tensor | None,
) -> dict[str, Tensor]:
    """What `update` of ppo.py says."""
    S, B, size = batch.obs.shape
    names = ["policy_loss", "value_loss", "entropy", "approx_kl", "clipfrac", "explained_variance"]
    metrics = batch.obs.new_empty(len(names), S)
    clips = isinstance(config.clip_range, Tensor) or config.clip_range > 0
    PPO_UPDATE(
        S=S,
        B=B,
        M=config.minibatch,
        O=size,
        P=optimizer.params.shape[1],
        epochs=shuffle.shape[1],
        policy=policy.struct(agent, agent.networks),
        optimizer=optim.struct(optimizer, lr, config.max_grad_norm),
        shuffle=shuffle,
        target_kl=config.target_kl,
        metrics=metrics,
        **batch._asdict(),
        **ppo_settings(config, clip_range if clips else None),
    )
    found = dict(zip(names, metrics.unbind(), strict=True))
    if not clips:
        del found["clipfrac"]
    return found


# ---- A2C --------------------------------------------------------------------------------------

A2C_BATCH = Struct(HERE / "a2c.c", "a2c_batch")
A2C_GRADIENT, A2C_UPDATE = (
    kernels.kernel(HERE / "a2c.c", name) for name in ("a2c_gradient", "a2c_update")
)


def a2c_estimate(agent: Any, rollout: Any, rewards: Tensor, config: Any) -> tuple[Tensor, Tensor]:
    """What `estimate` of a2c.py says."""
    values, advantages = rewards.new_empty(2, len(rewards), config.batch_size).unbind()
    n_steps = config.n_steps if config.advantage == "n_step" else 0
    # With a lambda of 1 GAE is the return minus V.
    gae_lambda = 1.0 if config.advantage == "monte_carlo" else config.gae_lambda
    actor_critic.estimate(
        agent,
        rollout,
        rewards,
        values=values,
        advantages=advantages,
        n_steps=n_steps,
        gamma=config.gamma,
        gae_lambda=gae_lambda,
    )
    return values, advantages


@kernels.sets_gradients
def a2c_gradient(agent: Any, batch: Any, config: Any) -> Terms:
    """What `backpropagate` of a2c.py says."""
    S, M = batch.returns.shape
    samples, new = a2c_batch(agent, batch, config), batch.obs.new_empty
    terms = Terms(*new(2, S).unbind(), *new(2, S, M).unbind())
    networks = mlp.struct(agent.networks, agent)
    gradients = batch.obs.new_zeros(S, networks.networks * networks.size)
    A2C_GRADIENT(
        S=S,
        M=M,
        P=gradients.shape[1],
        batch=samples,
        gradients=gradients,
        entropies=terms.entropy,
        logprobs=terms.logprobs,
        policy_loss=terms.policy_loss,
        value_loss=terms.value_loss,
    )
    mlp.set_gradients(agent, gradients)
    return terms


def a2c_batch(agent: Any, batch: Any, config: Any) -> ctypes.Structure:
    """What the loss is computed of."""
    S, M, size = batch.obs.shape
    return A2C_BATCH(
        S=S,
        M=M,
        O=size,
        normalized=config.normalize_advantage,
        policy=policy.struct(agent, agent.networks),
        obs=batch.obs,
        actions=batch.actions,
        advantages=batch.advantages,
        returns=batch.returns,
        value_coef=config.value_coef,
        entropy_coef=config.entropy_coef,
    )


def a2c_update(
    agent: Any, optimizer: Any, batch: Any, config: Any, lr: Tensor
) -> dict[str, Tensor]:
    """What `update` of a2c.py says."""
    S, M = batch.returns.shape
    names = ["policy_loss", "value_loss", "entropy", "explained_variance"]
    metrics = batch.obs.new_empty(len(names), S)
    A2C_UPDATE(
        S=S,
        M=M,
        P=optimizer.params.shape[1],
        batch=a2c_batch(agent, batch, config),
        optimizer=optim.struct(optimizer, lr, config.max_grad_norm),
        values=batch.values,
        metrics=metrics,
    )
    return dict(zip(names, metrics.unbind(), strict=True))


# ---- DQN ------------------------------------------------------------------------------------

DQN_ADD, DQN_UPDATE = (kernels.kernel(HERE / "dqn.c", name) for name in ("dqn_add", "dqn_update"))


def dqn_takes_transitions(replay: Any, new: Any) -> bool:
    """Whether `dqn_add` can store transitions."""
    return kernels.usable(replay.rows, new.obs)


def dqn_add(replay: Any, /, new: Any) -> None:
    """What `Replay.add` of dqn.py says."""
    S, capacity, _ = replay.rows.shape
    count = new.actions.shape[1]
    state = {"C": capacity, "O": replay.obs_size, "added": replay.added, "rows": replay.rows}
    DQN_ADD(S=S, n=count, **state, **new._asdict())
    replay.added.add_(count)


def dqn_update(
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
