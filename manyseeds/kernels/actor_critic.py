"""Values and advantages of the samples of rollouts in C (actor_critic.c)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import Tensor

from manyseeds import kernels
from manyseeds.kernels import mlp, policy

ESTIMATE = kernels.kernel(Path(__file__).parent / "actor_critic.c", "estimate")


def estimate(
    agent: Any,
    rollout: Any,
    rewards: Tensor,
    *,
    values: Tensor,
    advantages: Tensor,
    logprobs: Tensor | None = None,
    n_steps: int = 0,
    gamma: Tensor | float,
    gae_lambda: Tensor | float,
) -> None:
    """Fill values, advantages and, where they are asked for, log-probabilities, all `[S, T N]`.

    agent: policy and value function are the two `networks` of a seed, or its `actor` and `critic`.
    n_steps: of n-step returns; 0: GAE.
    """
    S, T, N = rewards.shape
    in_one = hasattr(agent, "networks")
    as_c = policy.struct(agent, agent.networks if in_one else agent.actor)
    steps = rollout._asdict() | {"rewards": rewards}
    ESTIMATE(
        S=S,
        T=T,
        N=N,
        O=agent.obs_size,
        policy=as_c,
        critic=as_c.networks if in_one else mlp.struct(agent.critic),
        value=int(in_one),
        n_steps=n_steps,
        gamma=gamma,
        gae_lambda=gae_lambda,
        logprobs=logprobs,
        values=values,
        advantages=advantages,
        **steps,
    )
