"""Steps of S x N environments with a policy: what every algorithm learns from."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from manyseeds.envs.core import Env, State, Step
from manyseeds.kernels import usable
from manyseeds.kernels.guard import Guard
from manyseeds.kernels.rollout import Rollout
from manyseeds.kernels.rollout import rollout as rollout_in_c
from manyseeds.kernels.rollout import step as step_in_c


@torch.no_grad()
def rollout(
    env: Env, policy: Any, state: State, obs: Tensor, action_noise: Tensor, env_noise: Tensor
) -> tuple[State, Tensor, Rollout]:
    """Act for as many steps as there is noise, [S, T, N, ...]; returns the next state and obs.

    policy: has `act(obs, noise)` and perhaps, for C code, `as_kernel()`: the same as a
    `kernels.rollout.PolicyKernel`.
    """
    address = env.in_c()
    if address and hasattr(policy, "as_kernel") and PLAYING.allows(policy):
        network, noise = policy.as_kernel(), (action_noise, env_noise)
        if network.usable(state.physics, *noise):
            physics, elapsed, obs, steps = rollout_in_c(address, env.spec, network, *state, *noise)
            return State(physics, elapsed), obs, steps
    return step_by_step(env, policy, state, obs, action_noise, env_noise)


def step_by_step(
    env: Env, policy: Any, state: State, obs: Tensor, action_noise: Tensor, env_noise: Tensor
) -> tuple[State, Tensor, Rollout]:
    """The same with PyTorch's operations, or Gymnasium's own environments."""
    steps = []
    for u, v in zip(action_noise.unbind(1), env_noise.unbind(1), strict=True):
        actions = policy.act(obs, u)
        step = env.step(state, actions, v)
        ends = (step.terminated, step.truncated)
        steps.append((obs, actions, step.reward, *ends, step.final_obs))
        state, obs = step.state, step.obs
    return state, obs, Rollout(*(torch.stack(field, dim=1) for field in zip(*steps, strict=True)))


def one_step(env: Env, state: State, action: Tensor, noise: Tensor) -> Step:
    """`env.step` with discrete actions [S, N]; in C, where the environment has C code.

    PyTorch's sines depend on the CPU, those of the C code do not.
    """
    address = env.in_c()
    if address and usable(state.physics, noise):
        physics, elapsed, *rest = step_in_c(address, env.spec, *state, action, noise)
        return Step(State(physics, elapsed), *rest)
    return env.step(state, action, noise)


# What a rollout in C stands for, besides the environment's own functions.
PLAYING = Guard("rollout.rollout", "act", "as_kernel", step_by_step)
