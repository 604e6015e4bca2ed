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
from manyseeds.kernels.mlp import ACTIVATIONS, addresses, describe, weighted
from manyseeds.kernels.optim import per_seed


class Terms(NamedTuple):
    """What the objective of a minibatch was made of, without gradients."""

    policy_loss: Tensor  # [S], like the next
    value_loss: Tensor
    entropy: Tensor  # [S, M], like the next
    logprobs: Tensor


def clipped_objective(
    agent: Any, batch: Any, config: Any, clip_range: Tensor | None
) -> tuple[Tensor, Terms]:
    """What `loss` of algos/ppo.py says, for tensors that kernels can take."""
    clip = 0.0 if clip_range is None else clip_range
    return _compute(agent, batch, config, batch.logprobs, clip, config.clip_value_range)


def policy_gradient_objective(agent: Any, batch: Any, config: Any) -> tuple[Tensor, Terms]:
    """What `loss` of algos/a2c.py says, for tensors that kernels can take."""
    return _compute(agent, batch, config, None, 0.0, 0.0)


def _compute(
    agent: Any,
    batch: Any,
    config: Any,
    old_logprobs: Tensor | None,
    clip: Tensor | float,
    value_clip: float,
) -> Any:
    networks = agent.networks
    if networks.networks != 2:  # a shared trunk
        return NotImplemented
    S, M = batch.advantages.shape
    coefficients = clip, value_clip, config.value_coef, config.entropy_coef
    settings_of_seeds = [per_seed(value, S) for value in coefficients]
    continuous = agent.continuous
    choices, actions = (None, batch.actions) if continuous else (batch.actions, None)
    log_std = agent.log_std[:, 0].detach().contiguous() if continuous else None
    returns = batch.advantages, batch.values, batch.returns
    stride, samples = strided((choices, actions, old_logprobs, *returns), M)
    obs_stride, (obs,) = strided((agent.features(batch.obs),), M)
    read = (obs, *samples, log_std, *settings_of_seeds)
    settings = M, stride, obs_stride, continuous, config.normalize_advantage
    weights, biases = networks.parameter_lists()
    parameters = [p for pair in zip(weights, biases, strict=True) for p in pair]
    parameters += [agent.log_std] if continuous else []
    columns = tuple(used.stop for _, used in networks.heads)
    kind = ACTIVATIONS.index(networks.activation)
    total, *terms = _Objective.apply(settings, read, columns, kind, *parameters)  # type: ignore[no-untyped-call]
    return total, Terms(*terms)


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


class _Objective(torch.autograd.Function):
    """The forward pass computes the gradients, too: they are always asked for."""

    @staticmethod
    def forward(
        ctx: Any,
        settings: tuple[int, int, int, bool, bool],
        read: Sequence[Tensor | None],
        columns: tuple[int, ...],
        kind: int,
        *parameters: Tensor,
    ) -> tuple[Tensor, ...]:
        S, M, continuous = len(parameters[0]), settings[0], settings[3]
        losses, entropies, logprobs = torch.empty(3, S), torch.empty(S, M), torch.empty(S, M)
        gradients = [torch.empty_like(p, memory_format=torch.contiguous_format) for p in parameters]
        of_networks, of_log_std = gradients, None
        if continuous:
            of_networks, of_log_std = gradients[:-1], torch.empty(S, columns[0])
        written = losses, entropies, logprobs, of_log_std
        pointers = [None if x is None else x.data_ptr() for x in (*read, *written)]
        described = _Description(*settings, *pointers)
        layers = parameters[: len(of_networks)]
        sizes = (layers[0].shape[2], *(bias.shape[-1] for bias in layers[1::2]))
        networks = describe(S, sizes, columns, kind, layers)
        if kernels.functions().actor_critic(
            networks, ctypes.byref(described), addresses(of_networks)
        ):
            raise MemoryError("allocating memory for an objective failed")
        if of_log_std is not None:  # the first network's; the other never uses it
            gradients[-1].zero_()[:, 0, 0] = of_log_std
        total, policy, value = losses.unbind()
        ctx.gradients = gradients
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(policy, value, entropies, logprobs)
        return total, policy, value, entropies, logprobs

    @staticmethod
    @torch.autograd.function.once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        return None, None, None, None, *weighted(ctx, grads[0])
