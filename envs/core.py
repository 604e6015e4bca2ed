"""The contract of an environment: pure dynamics, explicit state and noise, `[S, N, ...]` tensors.

S seeds, N environments per seed. A native environment defines its dynamics as five pure functions
in the split of Gymnasium's `FuncEnv` (initial, transition, observation, reward, terminal).
`NativeEnv.step` adds what all of them share: the time limit and the autoreset in the same step.

All randomness comes in as uniforms in [0, 1), drawn by the caller from each seed's own stream.
The same state, actions and noise therefore give the same step, on any device and in any batch.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from manyseeds.digest import origin_of
from manyseeds.errors import UsageError
from manyseeds.kernels import in_c
from manyseeds.kernels.scan import episode_means, takes_episodes


@dataclass(frozen=True)
class EnvSpec:
    """The fixed properties of an environment.

    Scores are undiscounted returns of one episode; None is unknown.
    """

    id: str
    time_limit: int  # steps after which an episode is truncated
    num_actions: int = 0  # A, for discrete actions
    action_low: tuple[float, ...] = ()  # bounds of the D components, for continuous actions
    action_high: tuple[float, ...] = ()
    obs_size: int | None = None  # O, for vector observations
    num_states: int | None = None  # X, for observations that are a state index
    reward_threshold: float | None = None  # "solved", as registered in Gymnasium
    random_score: float | None = None  # mean return of the uniformly random policy
    reference_score: float | None = None  # best known policy; None: no normalised scores

    @property
    def continuous(self) -> bool:
        """Whether actions are vectors, `[S, N, D]` floats, instead of `[S, N]` int64."""
        return len(self.action_low) > 0

    @property
    def digits(self) -> int | None:
        """Decimals with which a score is worth printing; None where its scale is unknown."""
        return digits_of(self.random_score, self.reference_score)


def digits_of(random_score: float | None, reference_score: float | None) -> int | None:
    """Decimals with which scores between these two are worth printing; None: nobody knows."""
    if random_score is None or reference_score is None:
        return None
    return 3 if abs(reference_score - random_score) < 10 else 1


class State(NamedTuple):
    """The state of all environments between two steps."""

    physics: Tensor  # [S, N, D] continuous, or [S, N] int64: state indices, or a bridge's handles
    elapsed: Tensor  # [S, N] int32, steps since the episode began


class Step(NamedTuple):
    """What one step returns. Episodes that ended are already reset in `state` and `obs`."""

    state: State
    obs: Tensor  # [S, N, O] or [S, N]: what the policy sees next
    reward: Tensor  # [S, N]
    terminated: Tensor  # [S, N] bool: the task ended, nothing follows
    truncated: Tensor  # [S, N] bool: the time limit cut the episode; both at once is a termination
    final_obs: Tensor  # like obs, before any reset: the true successor of (obs, action)


class Env(ABC):
    """S x N independent copies of one environment."""

    spec: EnvSpec
    native: bool  # steps are tensor operations only: they can be captured
    initial_noise: int  # uniforms that one initial state takes
    transition_noise: int  # uniforms that one transition takes

    @property
    def noise_size(self) -> int:
        """Uniforms that one step takes: its transition's, then those of a possible reset."""
        return self.transition_noise + self.initial_noise

    def origins(self) -> list[type | str]:
        """The definitions from which the digest of a run's code follows the code."""
        return [type(self)]

    def packages(self) -> list[str]:
        """The installed packages that its dynamics come from, besides Gymnasium."""
        return []

    def notes(self) -> list[str]:
        """What a user has to know of a training in it. Raises UsageError where none is possible."""
        return []

    def in_c(self) -> int | None:
        """The address of its C code; None where steps are PyTorch's or another library's."""
        return None

    def faults(self) -> dict[int, str]:
        """What came out of it since the last call that is not finite: a text for each seed's row.

        Such a reward or observation makes the seed that learns from it diverge.
        """
        return {}

    @abstractmethod
    def reset(self, noise: Tensor) -> tuple[State, Tensor]:
        """Begin all episodes. noise `[S, N, initial_noise]`; returns the state and its `obs`.

        Equal noise gives equal starts, also in two different environments.
        """

    @abstractmethod
    def step(self, state: State, action: Tensor, noise: Tensor) -> Step:
        """Advance all environments. noise `[S, N, noise_size]`.

        action: `[S, N]` int64, or `[S, N, D]` floats, which are clipped to their bounds. Raises
        IndexError or RuntimeError for an int64 that is not in 0 to A - 1 (on CUDA an assertion of
        the device fails). Rollouts in C check nothing: they act with a policy of A outputs.
        """

    def from_gymnasium(self, obs: Any) -> tuple[Tensor, bool]:
        """What the policy sees, `[N, O]` or `[N]`, of one or N observations of Gymnasium's own
        environment, and whether it was one. Raises UsageError for other shapes."""
        shape = () if self.spec.obs_size is None else (self.spec.obs_size,)
        array, one = one_or_many(obs, shape, self.spec.id)
        if self.spec.num_states is None:
            return torch.from_numpy(array.astype(np.float32)), one
        if array.dtype.kind not in "iu" or ((array < 0) | (array >= self.spec.num_states)).any():
            raise UsageError(
                f"predict: {self.spec.id} has the states 0 to {self.spec.num_states - 1}"
            )
        return torch.from_numpy(array.astype(np.int64)), one

    def to_gymnasium(self, action: Tensor) -> np.ndarray:
        """What Gymnasium's own environment takes for actions `[N]` or `[N, D]` of the policy."""
        if self.spec.continuous:
            action = action.clamp(*_bounds(self.spec, action.dtype, action.device))
        array: np.ndarray = action.numpy()
        return array


class NativeEnv(Env):
    """An environment whose dynamics are pure functions on tensors."""

    native = True
    c_name: str | None = None  # of its `const environment` in the C file beside its own
    # (lowest, highest, bins) of each observation component, for tabular algorithms.
    bins: tuple[tuple[float, float, int], ...] | None = None

    def origins(self) -> list[type | str]:
        """Its class, and the entry of `ENVS` with the arguments that it is made with."""
        module, _, _ = origin_of(type(self)).rpartition(":")
        return [type(self), f"{module}:ENVS[{self.spec.id}]"]

    def in_c(self) -> int | None:
        from manyseeds.envs.kernels import address  # where the classes are known that have C code

        return address(self)

    @abstractmethod
    def initial(self, noise: Tensor) -> Tensor:
        """First states of episodes, from noise `[..., initial_noise]`."""

    @abstractmethod
    def transition(self, physics: Tensor, action: Tensor, noise: Tensor) -> Tensor:
        """Successor states, from noise `[..., transition_noise]`."""

    @abstractmethod
    def observation(self, physics: Tensor) -> Tensor:
        """What the policy sees of a state."""

    @abstractmethod
    def reward(self, physics: Tensor, action: Tensor, next_physics: Tensor) -> Tensor:
        """Reward of a transition, `[S, N]` in the floating-point type of the dynamics."""

    @abstractmethod
    def terminal(self, physics: Tensor) -> Tensor:
        """Whether the task has ended in a state, `[S, N]` bool."""

    def reset(self, noise: Tensor) -> tuple[State, Tensor]:
        physics = self.initial(noise)
        elapsed = torch.zeros(noise.shape[:2], dtype=torch.int32, device=noise.device)
        return State(physics, elapsed), self.observation(physics)

    def step(self, state: State, action: Tensor, noise: Tensor) -> Step:
        if self.spec.continuous:
            low, high = _bounds(self.spec, action.dtype, action.device)
            action = action.clamp(low, high)
        next_physics = self.transition(state.physics, action, noise[..., : self.transition_noise])
        reward = self.reward(state.physics, action, next_physics)
        terminated = self.terminal(next_physics)
        elapsed = state.elapsed + 1
        truncated = elapsed >= self.spec.time_limit

        # Same-step autoreset: no transition ever leads from one episode into the next.
        done = terminated | truncated
        initial = self.initial(noise[..., self.transition_noise :])
        done_like = done.unsqueeze(-1) if next_physics.ndim > done.ndim else done
        physics = torch.where(done_like, initial, next_physics)
        obs = self.observation(physics)
        final_obs = self.observation(next_physics)
        next_state = State(physics, elapsed.masked_fill(done, 0))
        return Step(next_state, obs, reward, terminated, truncated, final_obs)


def one_or_many(obs: Any, shape: tuple[int, ...], env_id: str) -> tuple[np.ndarray, bool]:
    """Observations as an array `[N, *shape]`, and whether one was given. Raises UsageError."""
    try:
        array = np.asarray(obs)
        if array.dtype.kind not in "biuf":
            raise ValueError(f"{array.dtype} is no type of numbers")
    except (RuntimeError, TypeError, ValueError) as error:
        raise UsageError(f"predict: observations must be an array of numbers: {error}") from None
    if array.shape == shape:
        return array[None], True
    if array.ndim != len(shape) + 1 or array.shape[1:] != shape:
        many = f"[N, {', '.join(map(str, shape))}]" if shape else "[N]"
        raise UsageError(
            f"predict: observations of shape {list(array.shape)}; {env_id} has {list(shape)}, or "
            f"{many} for many"
        )
    return array, False


def chosen(values: Tensor, action: Tensor) -> Tensor:
    """values `[A]` by action, in the shape of action; like gather, it refuses other actions."""
    return values.expand(*action.shape[:-1], -1).gather(-1, action)


@cache
def tensors(
    values: tuple[Any, ...], dtype: torch.dtype, device: torch.device
) -> tuple[Tensor, ...]:
    """Numbers, or tuples of them, as tensors; cached, since a conversion at every step is slow."""
    return tuple(torch.tensor(value, dtype=dtype, device=device) for value in values)


@cache
def _bounds(spec: EnvSpec, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    """Bounds of the action's components, `[D]` each."""
    low = torch.tensor(spec.action_low, dtype=dtype, device=device)
    return low, torch.tensor(spec.action_high, dtype=dtype, device=device)


class EpisodeTracker:
    """Returns and lengths of the episodes that end inside consecutive rollouts.

    Works on whole rollouts after the fact, so that the environment loop carries no bookkeeping.
    """

    def __init__(self, seeds: int, envs: int, device: torch.device | str = "cpu") -> None:
        self.open_return = torch.zeros(seeds, envs, device=device)  # of the unfinished episodes
        self.open_length = torch.zeros(seeds, envs, device=device)

    @in_c(episode_means, takes_episodes)
    def update(self, rewards: Tensor, done: Tensor) -> dict[str, Tensor]:
        """Means of the episodes that ended: train_return and train_length, `[S]`; NaN without any.

        rewards, done: `[S, T, N]`, the rollout that follows the one of the previous call.
        """
        returns, open_return = _episode_sums(rewards, done, self.open_return)
        lengths, open_length = _episode_sums(torch.ones_like(rewards), done, self.open_length)
        self.open_return.copy_(open_return)
        self.open_length.copy_(open_length)
        ended = done.sum(dim=(1, 2))
        return {
            "train_return": returns.sum(dim=(1, 2)) / ended,
            "train_length": lengths.sum(dim=(1, 2)) / ended,
        }


def _episode_sums(x: Tensor, done: Tensor, open_sum: Tensor) -> tuple[Tensor, Tensor]:
    """Sum of x over each episode, placed at its last step (0 elsewhere), and the sums still open.

    x, done `[S, T, N]`, open_sum `[S, N]`.
    """
    total = x.cumsum(1) + open_sum.unsqueeze(1)
    step = torch.arange(1, x.shape[1] + 1, device=x.device).view(1, -1, 1)
    last_end = torch.where(done, step, 0).cummax(1).values  # 1-based; 0: no episode ended yet
    padded = torch.cat((torch.zeros_like(total[:, :1]), total), dim=1)
    total_at_end = padded.gather(1, last_end)
    before = torch.cat((torch.zeros_like(total[:, :1]), total_at_end[:, :-1]), dim=1)
    return torch.where(done, total - before, 0.0), total[:, -1] - total_at_end[:, -1]
