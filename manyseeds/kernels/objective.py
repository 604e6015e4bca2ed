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
from manyseeds.kernels.mlp import ACTIVATIONS, addresses, describe


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
    per_seed = torch.empty(len(coefficients), S)
    for row, value in zip(per_seed.unbind(), coefficients, strict=True):
        row[:] = value
    continuous = agent.continuous
    choices, actions = (None, batch.actions) if continuous else (batch.actions, None)
    log_std = agent.log_std[:, 0].detach() if continuous else None
    read = (agent.features(batch.obs), choices, actions, log_std, old_logprobs)
    read = (*read, batch.advantages, batch.values, batch.returns, *per_seed.unbind())
    settings = M, continuous, config.normalize_advantage
    weights, biases = networks.parameter_lists()
    parameters = [p for pair in zip(weights, biases, strict=True) for p in pair]
    parameters += [agent.log_std] if continuous else []
    columns = tuple(used.stop for _, used in networks.heads)
    kind = ACTIVATIONS.index(networks.activation)
    total, *terms = _Objective.apply(settings, read, columns, kind, *parameters)  # type: ignore[no-untyped-call]
    return total, Terms(*terms)


class _Description(ctypes.Structure):
    """`objective` of objective.c."""

    _fields_ = (
        *((name, ctypes.c_int) for name in ("samples", "continuous", "normalized")),
        *((name, ctypes.c_void_p) for name in ("x", "choices", "actions", "log_std")),
        *((name, ctypes.c_void_p) for name in ("old_logprobs", "advantages", "old_values")),
        *((name, ctypes.c_void_p) for name in ("returns", "clip", "value_clip", "value_coef")),
        *((name, ctypes.c_void_p) for name in ("entropy_coef", "losses", "entropies", "logprobs")),
        ("of_log_std", ctypes.c_void_p),
    )


class _Objective(torch.autograd.Function):
    """The forward pass computes the gradients, too: they are always asked for."""

    @staticmethod
    def forward(
        ctx: Any,
        settings: tuple[int, bool, bool],
        read: Sequence[Tensor | None],
        columns: tuple[int, ...],
        kind: int,
        *parameters: Tensor,
    ) -> tuple[Tensor, ...]:
        read = [None if tensor is None else tensor.contiguous() for tensor in read]
        S, M = len(parameters[0]), settings[0]
        losses, entropies, logprobs = torch.empty(3, S), torch.empty(S, M), torch.empty(S, M)
        gradients = [torch.empty_like(p, memory_format=torch.contiguous_format) for p in parameters]
        of_networks, of_log_std = gradients, None
        if settings[1]:
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
        ctx.mark_non_differentiable(policy, value, entropies, logprobs)
        return total, policy, value, entropies, logprobs

    @staticmethod
    @torch.autograd.function.once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        gradients = ctx.gradients
        del ctx.gradients  # nobody else's: autograd takes them as they are
        if not (grads[0] == 1).all():
            gradients = [g * grads[0].view(-1, 1, 1, 1) for g in gradients]
        return None, None, None, None, *gradients
