"""What stands for functions of algos/grpo.py in C (grpo.c)."""

from __future__ import annotations

import ctypes
import math
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from manyseeds import kernels
from manyseeds.kernels import mlp, optim, policy
from manyseeds.kernels.binding import Struct
from manyseeds.rows import used

SOURCE = Path(__file__).parent / "grpo.c"
GRPO_SETTINGS, GRPO_BATCH = (Struct(SOURCE, name) for name in ("grpo_settings", "grpo_batch"))
GRPO_ESTIMATE, GRPO_GRADIENT, GRPO_UPDATE = (
    kernels.kernel(SOURCE, name) for name in ("grpo_estimate", "grpo_gradient", "grpo_update")
)
ADVANTAGES = ("return_to_go", "outcome", "process")  # as numbered in C, like the next
DIVISORS = ("group", "batch", "none")


def estimate(
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


def settings(actor: Any, config: Any, root: Any) -> ctypes.Structure:
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


def batch_struct(batch: Any) -> ctypes.Structure:
    """The samples of all seeds."""
    S, B, size = batch.obs.shape
    return GRPO_BATCH(S=S, O=size, B=B, **batch._asdict())


def named(metrics: Tensor, config: Any) -> dict[str, Tensor]:
    """The metrics `[S, 4]` by their names."""
    found = dict(
        zip(("policy_loss", "approx_kl", "clipfrac", "kl"), metrics.unbind(1), strict=True)
    )
    if not used(config.kl_coef):
        del found["kl"]
    return found


def gradient(actor: Any, batch: Any, valid: Tensor, config: Any) -> dict[str, Tensor]:
    """What `backpropagate` of grpo.py says."""
    S, B = valid.shape
    P = mlp.struct(actor.network, actor).size
    gradients, metrics = batch.obs.new_zeros(S, P), batch.obs.new_zeros(S, 4)
    GRPO_GRADIENT(
        S=S,
        B=B,
        P=P,
        settings=settings(actor, config, actor),
        batch=batch_struct(batch),
        mask=valid,
        gradients=gradients,
        metrics=metrics,
    )
    mlp.set_gradients(actor, gradients)
    return named(metrics, config)


def update(
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
        settings=settings(actor, config, optimizer),
        optimizer=optim.struct(optimizer, lr, config.max_grad_norm),
        batch=batch_struct(batch),
        mask=mask,
        active=active,
        shuffle=shuffle,
        metrics=metrics,
    )
    return named(metrics, config)
