"""What stands for functions of algos/trpo.py in C (trpo.c)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import Tensor

from manyseeds import kernels
from manyseeds.kernels import mlp, optim, policy

SOURCE = Path(__file__).parent / "trpo.c"
TRPO_POLICY_STEP, TRPO_FIT_CRITIC, TRPO_UPDATE = (
    kernels.kernel(SOURCE, name) for name in ("trpo_policy_step", "trpo_fit_critic", "trpo_update")
)


def policy_step(agent: Any, theta: Tensor, batch: Any, config: Any) -> dict[str, Tensor]:
    """What `policy_step` of trpo.py says."""
    given, metrics = step_arguments(agent, theta, batch, config)
    TRPO_POLICY_STEP(**given)
    return metrics


def fit_critic(agent: Any, optimizer: Any, batch: Any, shuffle: Tensor, config: Any) -> Tensor:
    """What `fit_critic` of trpo.py says."""
    given = fit_arguments(agent, optimizer, batch, shuffle, config)
    TRPO_FIT_CRITIC(**given)
    return given["losses"]  # type: ignore[no-any-return]


def update(
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
