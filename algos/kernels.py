"""The C code of algorithms: what stands for functions of NAME.py is in NAME.c.

S seeds, T steps of N environments, B samples, M per gradient step.
"""

from __future__ import annotations

import ctypes
import math
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from manyseeds import kernels
from manyseeds.kernels import actor_critic, mlp, optim, policy
from manyseeds.kernels.binding import Struct
from manyseeds.rows import used

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
    S, M = batch.returns.shape
    networks = mlp.struct(agent.networks, agent)
    P = networks.networks * networks.size
    gradients, new = batch.obs.new_zeros(S, P), batch.obs.new_empty
    terms = Terms(*new(2, S).unbind(), *new(2, S, M).unbind())
    PPO_GRADIENT(
        S=S,
        M=M,
        O=agent.obs_size,
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
    S, B = batch.returns.shape
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
    samples, new = a2c_batch(agent, batch, config, agent), batch.obs.new_empty
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


def a2c_batch(agent: Any, batch: Any, config: Any, root: Any) -> ctypes.Structure:
    """What the loss is computed of; root: as of mlp.struct."""
    S, M = batch.returns.shape
    return A2C_BATCH(
        S=S,
        M=M,
        O=agent.obs_size,
        normalized=config.normalize_advantage,
        policy=policy.struct(agent, agent.networks, root),
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
        batch=a2c_batch(agent, batch, config, optimizer),
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


# ---- REINFORCE -----------------------------------------------------------------------------

REINFORCE_BATCH = Struct(HERE / "reinforce.c", "reinforce_batch")
REINFORCE_FIT, REINFORCE_GRADIENT, REINFORCE_UPDATE = (
    kernels.kernel(HERE / "reinforce.c", name)
    for name in ("reinforce_fit", "reinforce_gradient", "reinforce_update")
)
REINFORCE_METRICS = ("policy_loss", "entropy", "grad_norm", "grad_variance", "value_loss")
WEIGHTS = ("total_return", "return_to_go", "baseline", "q")  # as numbered in C


def reinforce_batch(batch: Any, episodes: int, continuous: bool, actions: int) -> ctypes.Structure:
    """The samples of an update; actions: how many there are, or components of one."""
    S, B, size = batch.features.shape
    return REINFORCE_BATCH(
        S=S,
        N=episodes,
        O=size,
        A=actions,
        continuous=continuous,
        B=B,
        **batch._asdict(),
    )


def reinforce_gradient(actor: Any, batch: Any, weights: Tensor, config: Any) -> dict[str, Tensor]:
    """What `policy_gradient` of reinforce.py says."""
    S, B = weights.shape
    networks = mlp.struct(actor.network, actor)
    gradients, metrics = weights.new_empty(S, networks.size), weights.new_empty(4, S)
    REINFORCE_GRADIENT(
        S=S,
        B=B,
        P=networks.size,
        batch=reinforce_batch(batch, config.episodes, actor.continuous, actor.action_size),
        policy=policy.struct(actor, actor.network),
        weights=weights,
        entropy_coef=config.entropy_coef,
        gradients=gradients,
        metrics=metrics,
    )
    for p in actor.parameters():
        p.grad = None
    mlp.set_gradients(actor, gradients)
    return dict(zip(REINFORCE_METRICS[:4], metrics.unbind(), strict=True))


def reinforce_fit(
    critic: Any, optimizer: Any, batch: Any, draws: Tensor, active: Tensor, lr: Tensor
) -> Tensor:
    """What `fit` of reinforce.py says."""
    S, updates, M = draws.shape
    value_loss = draws.new_empty(S)
    actions = batch.actions.shape[2] if critic.actions is None else critic.actions
    REINFORCE_FIT(
        S=S,
        M=M,
        Q=optimizer.params.shape[1],
        updates=updates,
        batch=reinforce_batch(batch, 1, critic.actions is None, actions),
        critic=mlp.struct(critic.network, optimizer),
        optimizer=optim.struct(optimizer, lr, 0.0),
        draws=draws,
        active=active,
        value_loss=value_loss,
    )
    return value_loss


def reinforce_update(
    actor: Any,
    optimizer: Any,
    critic: Any,
    critic_optimizer: Any,
    batch: Any,
    draws: Tensor,
    active: Tensor,
    config: Any,
    lr: Tensor,
    critic_lr: Tensor,
) -> dict[str, Tensor]:
    """What `update` of reinforce.py says."""
    S, updates, M = draws.shape
    names = REINFORCE_METRICS[: 4 if critic is None else 5]
    metrics = draws.new_empty(len(REINFORCE_METRICS), S)
    REINFORCE_UPDATE(
        S=S,
        M=M,
        P=optimizer.params.shape[1],
        Q=0 if critic is None else critic_optimizer.params.shape[1],
        updates=updates,
        weight=WEIGHTS.index(config.weight),
        normalized=config.normalize_advantage,
        batch=reinforce_batch(batch, config.episodes, actor.continuous, actor.action_size),
        policy=policy.struct(actor, actor.network, optimizer),
        optimizer=optim.struct(optimizer, lr, config.max_grad_norm),
        critic=None if critic is None else mlp.struct(critic.network, critic_optimizer),
        critic_optimizer=None if critic is None else optim.struct(critic_optimizer, critic_lr, 0.0),
        entropy_coef=config.entropy_coef,
        draws=draws,
        active=active,
        metrics=metrics,
    )
    return dict(zip(names, metrics[: len(names)].unbind(), strict=True))


# ---- GRPO ----------------------------------------------------------------------------------

GRPO_SETTINGS, GRPO_BATCH = (
    Struct(HERE / "grpo.c", name) for name in ("grpo_settings", "grpo_batch")
)
GRPO_ESTIMATE, GRPO_GRADIENT, GRPO_UPDATE = (
    kernels.kernel(HERE / "grpo.c", name)
    for name in ("grpo_estimate", "grpo_gradient", "grpo_update")
)
ADVANTAGES = ("return_to_go", "outcome", "process")  # as numbered in C, like the next
DIVISORS = ("group", "batch", "none")


def grpo_estimate(
    actor: Any, reference: Any, episodes: Any, config: Any
) -> tuple[Tensor, Tensor, Tensor, Tensor, dict[str, Tensor]]:
    """What `evaluate_samples` of grpo.py says."""
    S, L, N, size = episodes.obs.shape
    new = episodes.rewards.new_empty
    logprobs, wanted, advantages = new(3, S, L * N).unbind()
    mask, (entropy, zero_variance) = new(S, L * N, dtype=torch.bool), new(2, S).unbind()
    GRPO_ESTIMATE(
        S=S,
        L=L,
        K=config.groups,
        G=config.group_size,
        O=size,
        advantage=ADVANTAGES.index(config.advantage),
        all_peers=config.peers == "all",
        std=DIVISORS.index(config.std),
        policy=policy.struct(actor, actor.network),
        reference=None if reference is None else policy.struct(reference, reference.network),
        gamma=config.gamma,
        logprobs=logprobs,
        reference_logprobs=wanted,
        advantages=advantages,
        mask=mask,
        entropy=entropy,
        zero_variance=zero_variance,
        **episodes._asdict(),
    )
    metrics = {"entropy": entropy, "zero_variance": zero_variance}
    return logprobs, wanted, advantages, mask, metrics


def grpo_settings(actor: Any, config: Any, root: Any) -> ctypes.Structure:
    """What the loss is computed with; root: as of mlp.struct."""
    low, high = -math.inf, math.inf
    if used(config.clip_range):
        above = config.clip_range_high if used(config.clip_range_high) else config.clip_range
        low, high = 1 - config.clip_range, 1 + above
    return GRPO_SETTINGS(
        S=len(actor.network.weights[0]),
        has_penalty=used(config.kl_coef),
        policy=policy.struct(actor, actor.network, root),
        low=low,
        high=high,
        entropy_coef=config.entropy_coef,
        kl_coef=config.kl_coef,
    )


def grpo_batch(batch: Any) -> ctypes.Structure:
    """The samples of all seeds."""
    S, B, size = batch.obs.shape
    return GRPO_BATCH(S=S, O=size, B=B, **batch._asdict())


def grpo_metrics(metrics: Tensor, config: Any) -> dict[str, Tensor]:
    """The metrics `[S, 4]` by their names."""
    found = dict(
        zip(("policy_loss", "approx_kl", "clipfrac", "kl"), metrics.unbind(1), strict=True)
    )
    if not used(config.kl_coef):
        del found["kl"]
    return found


def grpo_gradient(actor: Any, batch: Any, valid: Tensor, config: Any) -> dict[str, Tensor]:
    """What `backpropagate` of grpo.py says."""
    S, B = valid.shape
    P = mlp.struct(actor.network, actor).size
    gradients, metrics = batch.obs.new_zeros(S, P), batch.obs.new_zeros(S, 4)
    GRPO_GRADIENT(
        S=S,
        B=B,
        P=P,
        settings=grpo_settings(actor, config, actor),
        batch=grpo_batch(batch),
        mask=valid,
        gradients=gradients,
        metrics=metrics,
    )
    mlp.set_gradients(actor, gradients)
    return grpo_metrics(metrics, config)


def grpo_update(
    actor: Any,
    optimizer: Any,
    batch: Any,
    mask: Tensor,
    shuffle: Tensor,
    active: Tensor,
    config: Any,
    lr: Tensor,
) -> dict[str, Tensor]:
    """What `update` of grpo.py says."""
    S, B = mask.shape
    metrics = batch.obs.new_zeros(S, 4)
    GRPO_UPDATE(
        S=S,
        M=config.minibatch_size,
        epochs=shuffle.shape[1],
        B=B,
        P=optimizer.params.shape[1],
        settings=grpo_settings(actor, config, optimizer),
        optimizer=optim.struct(optimizer, lr, config.max_grad_norm),
        batch=grpo_batch(batch),
        mask=mask,
        active=active,
        shuffle=shuffle,
        metrics=metrics,
    )
    return grpo_metrics(metrics, config)


# ---- TRPO -------------------------------------------------------------------------------------

TRPO_POLICY_STEP, TRPO_FIT_CRITIC, TRPO_UPDATE = (
    kernels.kernel(HERE / "trpo.c", name)
    for name in ("trpo_policy_step", "trpo_fit_critic", "trpo_update")
)


def trpo_policy_step(agent: Any, theta: Tensor, batch: Any, config: Any) -> dict[str, Tensor]:
    """What `policy_step` of trpo.py says."""
    given, metrics = step_arguments(agent, theta, batch, config)
    TRPO_POLICY_STEP(**given)
    return metrics


def trpo_fit_critic(agent: Any, optimizer: Any, batch: Any, shuffle: Tensor, config: Any) -> Tensor:
    """What `fit_critic` of trpo.py says."""
    given = fit_arguments(agent, optimizer, batch, shuffle, config)
    TRPO_FIT_CRITIC(**given)
    return given["losses"]  # type: ignore[no-any-return]


def trpo_update(
    agent: Any, theta: Tensor, optimizer: Any, batch: Any, shuffle: Tensor, config: Any
) -> dict[str, Tensor]:
    """What `update` of trpo.py says."""
    step, metrics = step_arguments(agent, theta, batch, config)
    fit = fit_arguments(agent, optimizer, batch, shuffle, config)
    S, B = batch.returns.shape
    explained_variance = batch.returns.new_empty(S)
    TRPO_UPDATE(
        S=S,
        B=B,
        step=TRPO_POLICY_STEP.struct(**step),
        fit=TRPO_FIT_CRITIC.struct(**fit),
        values=batch.values,
        explained_variance=explained_variance,
    )
    return metrics | {"value_loss": fit["losses"], "explained_variance": explained_variance}


def step_arguments(
    agent: Any, theta: Tensor, batch: Any, config: Any
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """What a step of the policies is computed of, and its metrics, which it will fill."""
    S, B = batch.returns.shape
    names = ["policy_loss", "kl", "line_search_success", "step_fraction", "entropy"]
    metrics = batch.obs.new_empty(len(names), S)
    given = {
        "S": S,
        "B": B,
        "O": agent.obs_size,
        "P": theta.shape[1],
        "normalized": config.normalize_advantage,
        "cg_steps": config.cg_steps,
        "line_search_steps": config.line_search_steps,
        "shrink": config.line_search_shrink,
        "policy": policy.struct(agent, agent.actor, agent.policy_parameters()),
        "theta": theta,
        "obs": batch.obs,
        "actions": batch.actions,
        "logprobs": batch.logprobs,
        "advantages": batch.advantages,
        "damping": config.cg_damping,
        "target_kl": config.target_kl,
        "metrics": metrics,
    }
    return given, dict(zip(names, metrics.unbind(), strict=True))


def fit_arguments(
    agent: Any, optimizer: Any, batch: Any, shuffle: Tensor, config: Any
) -> dict[str, Any]:
    """What passes of the value functions are computed of, and their losses to fill."""
    S, B = batch.returns.shape
    return {
        "S": S,
        "B": B,
        "M": config.minibatch,
        "O": agent.obs_size,
        "P": optimizer.params.shape[1],
        "epochs": shuffle.shape[1],
        "policy": policy.struct(agent, agent.actor, agent.policy_parameters()),
        "critic": mlp.struct(agent.critic, optimizer),
        "optimizer": optim.struct(optimizer, config.learning_rate, 0.0),
        "obs": batch.obs,
        "returns": batch.returns,
        "shuffle": shuffle,
        "losses": batch.obs.new_empty(S),
    }
