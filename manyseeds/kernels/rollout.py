"""Rollouts in C (rollout.c): the policies of all seeds and their environments in one call.

S seeds, T steps, N environments per seed, A discrete actions or D components of a continuous
action, O observation size, P floats of an environment's state. Everything is float32 on the CPU.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from manyseeds import kernels
from manyseeds.kernels import mlp


class PolicyKernel(NamedTuple):
    """What acts: a network per seed, and what is around it."""

    weights: Sequence[Tensor]  # [S, 1, in, out] each
    biases: Sequence[Tensor]  # [S, 1, 1, out] each
    outputs: int  # A or D
    activation: str
    mean: Tensor | None = None  # [S, O], of observations; None: they are not normalised
    scale: Tensor | None = None  # [S, O], the inverse of their standard deviation
    log_std: Tensor | None = None  # [S, D], of continuous actions
    noise_is_action: bool = False  # noise [..., 1] is the action, or negative: the greedy one

    def usable(self, physics: Tensor, *noise: Tensor) -> bool:
        """Whether a rollout from states can be computed in C."""
        return kernels.usable(physics, self.weights[0], *noise)


class Rollout(NamedTuple):
    """T steps of N environments per seed; [S, T, N, ...]."""

    obs: Tensor
    actions: Tensor
    rewards: Tensor
    terminated: Tensor
    truncated: Tensor
    next_obs: Tensor  # the true successor, also at the end of an episode

    @property
    def done(self) -> Tensor:
        """Where episodes end."""
        return self.terminated | self.truncated


class _Rollout(ctypes.Structure):
    """`rollout` of rollout.c."""

    _fields_ = (
        *((name, ctypes.c_int) for name in ("steps", "envs", "time_limit", "dimensions")),
        ("noise_is_action", ctypes.c_int),
        *((name, ctypes.c_void_p) for name in ("low", "high", "log_std", "mean", "scale")),
        *((name, ctypes.c_void_p) for name in ("action_noise", "env_noise")),
        *((name, ctypes.c_void_p) for name in ("physics", "last_observations", "elapsed")),
        *((name, ctypes.c_void_p) for name in ("observations", "actions", "rewards")),
        *((name, ctypes.c_void_p) for name in ("terminated", "truncated", "next_observations")),
    )


def copies(*tensors: Tensor) -> list[Tensor]:
    """Contiguous ones: reset noise of another layout hands it on to the state."""
    return [x.clone(memory_format=torch.contiguous_format) for x in tensors]


def rollout(
    environment: int,
    spec: Any,
    policy: PolicyKernel,
    physics: Tensor,
    elapsed: Tensor,
    action_noise: Tensor,
    env_noise: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Rollout]:
    """Act for as many steps as there is noise, `[S, T, N, ...]`.

    environment: the address of its `environment` in C; spec: its EnvSpec. physics `[S, N, P]` and
    elapsed `[S, N]` int32 stay as they are. Returns both, and the observations `[S, N, O]`, after
    the steps, and the steps.
    """
    S, T, N = action_noise.shape[:3]
    D, size = len(spec.action_low), spec.obs_size
    physics, elapsed = copies(physics, elapsed)
    box = [physics.new_tensor(x) if D else None for x in (spec.action_low, spec.action_high)]
    new, steps_of = physics.new_empty, (S, T, N)
    actions = new(*steps_of, D) if D else new(steps_of, dtype=torch.int64)
    terminated, truncated = new(2, *steps_of, dtype=torch.bool).unbind()
    ends, obs, next_obs = (terminated, truncated), new(*steps_of, size), new(*steps_of, size)
    steps = Rollout(obs, actions, new(steps_of), *ends, next_obs)
    last = new(S, N, size)
    read = [*box, policy.log_std, policy.mean, policy.scale, action_noise, env_noise]
    read = [None if x is None else x.contiguous() for x in read]
    tensors = [*read, physics, last, elapsed, *steps]
    pointers = [None if x is None else x.data_ptr() for x in tensors]
    described = _Rollout(T, N, spec.time_limit, D, policy.noise_is_action, *pointers)
    parameters = [p for pair in zip(policy.weights, policy.biases, strict=True) for p in pair]
    sizes = (size, *(bias.shape[-1] for bias in policy.biases))
    kind = mlp.ACTIVATIONS.index(policy.activation)
    networks = mlp.describe(S, sizes, (policy.outputs,), kind, parameters)
    if kernels.functions().rollout_with(ctypes.byref(described), environment, networks):
        raise MemoryError("allocating memory for a rollout failed")
    return physics, elapsed, last, steps


def step(
    environment: int, spec: Any, physics: Tensor, elapsed: Tensor, actions: Tensor, noise: Tensor
) -> tuple[Tensor, ...]:
    """One step with discrete actions `[S, N]`; noise `[S, N, transition_noise + initial_noise]`.

    environment, spec, physics, elapsed: as of a rollout. Returns what `envs.Step` holds in its
    order, with physics and elapsed in the place of the state. Raises IndexError for other actions.
    """
    physics, elapsed = copies(physics, elapsed)
    obs, final_obs = physics.new_empty(2, *actions.shape, spec.obs_size).unbind()
    rewards = physics.new_empty(actions.shape)
    ends = physics.new_empty(2, *actions.shape, dtype=torch.bool).unbind()
    read = actions.contiguous(), noise.contiguous()
    pointers = [x.data_ptr() for x in (*read, physics, elapsed, obs, rewards, *ends, final_obs)]
    sizes = actions.numel(), spec.num_actions, spec.time_limit
    if kernels.functions().step_all(environment, *sizes, *pointers):
        raise IndexError(f"actions must be from 0 to {spec.num_actions - 1}")
    return physics, elapsed, obs, rewards, *ends, final_obs
