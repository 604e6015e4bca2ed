"""Steps of S x N environments with a policy: what every algorithm learns from."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from manyseeds.envs.core import Env, State, Step
from manyseeds.kernels import in_c, usable
from manyseeds.kernels import rollout as kernels
from manyseeds.kernels.guard import Guard
from manyseeds.kernels.rollout import Episodes, Rollout

LOOK = 50  # steps of native environments between checks of whether all episodes have ended


@torch.no_grad()
def rollout(
    env: Env, policy: Any, state: State, obs: Tensor, action_noise: Tensor, env_noise: Tensor
) -> tuple[State, Tensor, Rollout]:
    """Act for as many steps as there is noise, [S, T, N, ...]; returns the next state and obs.

    policy: has `act(obs, noise)` and perhaps, for C code, `as_kernel()`: the same as a
    `kernels.rollout.PolicyKernel`.
    """
    noise = action_noise, env_noise
    if found := kernels.acting_in_c(env, policy, PLAYING, state.physics, *noise):
        address, network = found
        physics, elapsed, obs, steps = kernels.rollout(address, env.spec, network, *state, *noise)
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
        physics, elapsed, *rest = kernels.step(address, env.spec, *state, action, noise)
        return Step(State(physics, elapsed), *rest)
    return env.step(state, action, noise)


@torch.no_grad()
def play(
    env: Env, policy: Any, start_noise: Tensor, action_noise: Tensor, transition_noise: Tensor
) -> Episodes:
    """Play N episodes per seed to their ends; start_noise [S, N, initial_noise], the others
    [S, L, N, ...], L the time limit."""
    noise = action_noise, transition_noise
    if found := kernels.acting_in_c(env, policy, PLAYING_EPISODES, start_noise, *noise):
        address, network = found
        return kernels.play(address, env.spec, network, env.reset(start_noise)[0].physics, *noise)
    return play_step_by_step(env, policy, start_noise, *noise)


def play_step_by_step(
    env: Env, policy: Any, start_noise: Tensor, action_noise: Tensor, transition_noise: Tensor
) -> Episodes:
    """The same by rollouts, in which the episodes that have ended begin anew."""
    state, obs = env.reset(start_noise)
    S, L, N = action_noise.shape[:3]
    env_noise = transition_noise.new_zeros(S, L, N, env.noise_size)  # resets: any
    env_noise[..., : env.transition_noise] = transition_noise
    parts: list[Rollout] = []
    going = torch.ones(S, N, dtype=torch.bool, device=obs.device)
    look = LOOK if env.native else 1
    for noise in zip(action_noise.split(look, 1), env_noise.split(look, 1), strict=True):
        state, obs, part = rollout(env, policy, state, obs, *noise)
        parts.append(part)
        going &= ~part.done.any(1)
        if not going.any():
            break
    steps = Rollout(*(torch.cat(field, dim=1) for field in zip(*parts, strict=True)))
    done = steps.done.long()
    alive = done.cumsum(1) == done  # no end before
    # Always L steps, and nothing after an end: neither an episode nor the rounding of a sum then
    # depends on how long the other seeds' episodes are.
    padded = []
    for field in (steps.obs, steps.actions, steps.rewards, alive):
        rest = field.new_zeros(S, L - alive.shape[1], *field.shape[2:])
        padded.append(torch.cat((field, rest), dim=1))
    ended = ~padded[-1]
    return Episodes(
        *(x.masked_fill(ended.view(*ended.shape, *[1] * (x.ndim - 3)), 0) for x in padded)
    )


@in_c(kernels.means_of)
def means_of(played: Episodes) -> dict[str, Tensor]:
    """The mean return and length of each seed's episodes, [S]."""
    N = played.alive.shape[2]
    return {
        "train_return": played.rewards.sum(1).mean(-1),
        "train_length": played.alive.sum((1, 2)) / N,
    }


# What the steps in C stand for, besides the environment's own functions. A policy that plays whole
# episodes may play steps, too: one name.
PLAYING = Guard("rollout.rollout", "act", "as_kernel", step_by_step)
PLAYING_EPISODES = Guard("rollout.rollout", "act", "as_kernel", step_by_step, play_step_by_step)
