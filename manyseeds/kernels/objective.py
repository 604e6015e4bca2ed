"""The objective of an actor-critic on a minibatch and its gradient in one call (objective.c).

S seeds, M samples, A logits or the means of D components.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from manyseeds import kernels
from manyseeds.kernels.mlp import accumulate, backpropagate
from manyseeds.kernels.optim import per_seed


class Terms(NamedTuple):
    """What the objective of a minibatch was made of, without gradients."""

    policy_loss: Tensor  # [S], like the next
    value_loss: Tensor
    entropy: Tensor  # [S, M], like the next
    logprobs: Tensor


@kernels.sets_gradients
def clipped_objective(agent: Any, batch: Any, config: Any, clip_range: Tensor | None) -> Terms:
    """The clipped objective with clipped values (PPO), for tensors that kernels can take."""
    bound = -1.0 if clip_range is None else clip_range
    return _compute(agent, batch, config, batch.logprobs, bound, config.clip_value_range)


@kernels.sets_gradients
def policy_gradient_objective(agent: Any, batch: Any, config: Any) -> Terms:
    """The policy gradient with squared errors of V (A2C), for tensors that kernels can take."""
    return _compute(agent, batch, config, None, -1.0, 0.0)


def _compute(
    agent: Any,
    batch: Any,
    config: Any,
    old_logprobs: Tensor | None,
    clip: Tensor | float,
    value_clip: float,
) -> Any:
    """Of agent it reads networks (the policy's first, the value's second), features, continuous,
    log_std and action_size; of batch obs, actions, values, advantages and returns; of config
    value_coef, entropy_coef and normalize_advantage."""
    networks = agent.networks
    S, M = batch.advantages.shape
    parameters = networks.weights[0]
    n_in = parameters.shape[2]
    floats = [batch.advantages, batch.values, batch.returns]
    if old_logprobs is not None:
        floats.append(old_logprobs)
    if (
        not torch.is_grad_enabled()
        or parameters.dtype != torch.float32
        or (len(parameters), n_in) != (S, batch.obs.shape[-1])
        or {batch.obs.shape[:2], batch.actions.shape[:2], *[x.shape for x in floats]} != {(S, M)}
        or any(x.dtype != torch.float32 for x in (batch.obs, *floats))
    ):
        return NotImplemented
    coefficients = clip, value_clip, config.value_coef, config.entropy_coef
    settings_of_seeds = [per_seed(value, S) for value in coefficients]
    continuous = agent.continuous
    choices, actions = (None, batch.actions) if continuous else (batch.actions, None)
    log_std = agent.log_std[:, 0].detach().contiguous() if continuous else None
    returns = batch.advantages, batch.values, batch.returns
    stride, samples = strided((choices, actions, old_logprobs, *returns), M)
    obs_stride, (obs,) = strided((agent.features(batch.obs),), M)
    new = batch.obs.new_empty
    losses, entropies, logprobs = new(3, S), new(S, M), new(S, M)
    of_log_std = new(S, agent.action_size) if continuous else None
    tensors = (obs, *samples, log_std, *settings_of_seeds, losses, entropies, logprobs, of_log_std)
    pointers = [None if x is None else x.data_ptr() for x in tensors]
    flags = continuous, config.normalize_advantage
    described = _Description(M, stride, obs_stride, *flags, *pointers)
    backpropagate(networks, kernels.functions().actor_critic, described)
    if of_log_std is not None:  # the first network's; the other never uses it
        gradient = torch.zeros_like(agent.log_std)
        gradient[:, 0, 0] = of_log_std
        accumulate(agent.log_std, gradient)
    return Terms(losses[1], losses[2], entropies, logprobs)


def strided(samples: Sequence[Tensor | None], count: int) -> tuple[int, tuple[Tensor | None, ...]]:
    """Samples `[S, M, ...]` as C can read them, and how many lie between the first of two seeds.

    A part of longer rows is read where it is.
    """
    given = [x for x in samples if x is not None]
    widths = [x.shape[2] if x.dim() > 2 else 1 for x in given]
    stride = given[0].stride(0) // widths[0]
    for x, width in zip(given, widths, strict=True):
        if x.stride() != ((stride * width, width, 1) if x.dim() > 2 else (stride, 1)):
            return count, tuple(None if x is None else x.contiguous() for x in samples)
    return stride, tuple(samples)


class _Description(ctypes.Structure):
    """`objective` of objective.c."""

    _fields_ = (
        *((name, ctypes.c_long) for name in ("samples", "stride", "x_stride")),
        *((name, ctypes.c_int) for name in ("continuous", "normalized")),
        *((name, ctypes.c_void_p) for name in ("x", "choices", "actions", "old_logprobs")),
        *((name, ctypes.c_void_p) for name in ("advantages", "old_values", "returns", "log_std")),
        *((name, ctypes.c_void_p) for name in ("clip", "value_clip", "value_coef")),
        *((name, ctypes.c_void_p) for name in ("entropy_coef", "losses", "entropies", "logprobs")),
        ("of_log_std", ctypes.c_void_p),
    )
