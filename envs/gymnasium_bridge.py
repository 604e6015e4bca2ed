"""Any registered Gymnasium environment, under the contract of `manyseeds.envs.core`.

An environment without a native version runs Gymnasium's own code: one object per environment,
stepped one after another. This is correct for every environment, and as slow as its `step`.
Gymnasium's vector environments are not used: after an end they step instead of resetting (a
transition from one episode into the next), and some share one random generator.

Gymnasium's environments are mutable objects, the contract's are functions of explicit states. Two
decisions reconcile them:

- The noise of a start is turned into the seed of `reset(seed=...)`. All randomness of an episode
  follows from it, whichever object plays the episode and whatever is in the batch beside it. Equal
  noise therefore gives an equal start and, afterwards, equal luck.
- A state holds handles of live objects, so it can be stepped only once. Stepping it again, or
  stepping a copy of it whose objects are in use elsewhere, is an error.
"""

from __future__ import annotations

import difflib
import importlib
import re
import sys
import warnings
import weakref
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from gymnasium.envs.registration import load_env_creator
from gymnasium.spaces import Box, Discrete, Space
from torch import Tensor

from manyseeds.digest import is_library
from manyseeds.envs import NATIVE
from manyseeds.envs.core import Env, EnvSpec, State, Step
from manyseeds.errors import UsageError, described, did_you_mean

TIME_LIMIT = 1000  # steps, for environments that are registered without a limit
STALE = (
    "a state of the Gymnasium bridge can be stepped once, each of its environments once, and only "
    "as long as the tensor `physics` that reset returned, or a view of it, is alive"
)


@dataclass(slots=True)
class Instance:
    """One Gymnasium environment, and the steps since its episode began."""

    env: gym.Env[Any, Any]
    elapsed: int = 0


class GymnasiumBridge(Env):
    """S x N independent objects of one Gymnasium environment, with same-step autoreset.

    ## Actions
    `Discrete`: `[S, N]` int64, counted from 0 whatever the space's `start`. `Box` of one
    dimension: `[S, N, D]` floats, clipped to its bounds; NaN becomes the middle between them.

    ## Observations
    `Box` of one dimension: `[S, N, O]` float32. `Discrete`: `[S, N]` int64, counted from 0.

    ## Episode end
    Gymnasium's flags. Without a registered time limit: truncation after `time_limit` steps.

    `State.physics` are handles of the objects, `[S, N]` int64, on the CPU; everything else is on
    the device of the noise. A reward beyond float32 is infinite. The two scores of the spec are
    unknown.

    env_id: a registered id, or "module:id" for one that importing a module registers.
    time_limit: where none is registered.
    Raises UsageError for an unknown id, for other spaces, and for packages that are not installed;
    `reset` and `step` raise it where the environment raises, or returns something that its API or
    its observation space does not allow.
    """

    native = False
    initial_noise = 2
    transition_noise = 0

    def __init__(self, env_id: str, time_limit: int = TIME_LIMIT) -> None:
        registered = gym.spec(registered_id(env_id))
        self._gym_id = registered.id
        self._time_limit = registered.max_episode_steps or time_limit
        self._live: dict[int, Instance] = {}  # by handle
        self._idle: dict[tuple[int, int], list[list[Instance]]] = {}  # groups by shape [S, N]
        self._next_handle = 0

        probe = self._make(env_id)
        observations = getattr(probe, "observation_space", None)
        actions = getattr(probe, "action_space", None)
        probe.close()
        sizes: dict[str, Any] = {}
        if isinstance(observations, Discrete):
            sizes["num_states"] = int(observations.n)
            self._first_state = int(observations.start)
        elif isinstance(observations, Box) and len(observations.shape) == 1:
            sizes["obs_size"] = observations.shape[0]
        else:
            raise unsupported(env_id, "observations", observations)
        if isinstance(actions, Discrete):
            sizes["num_actions"] = int(actions.n)
        elif isinstance(actions, Box) and len(actions.shape) == 1 and actions.dtype.kind == "f":
            sizes["action_low"] = tuple(actions.low.tolist())
            sizes["action_high"] = tuple(actions.high.tolist())
            with np.errstate(invalid="ignore"):  # inf - inf
                middle = actions.low / 2 + actions.high / 2
            nearest_to_0 = np.clip(0, actions.low, actions.high)
            self._middle = np.where(np.isfinite(middle), middle, nearest_to_0)
        else:
            raise unsupported(env_id, "actions", actions)
        self._actions = actions
        self.spec = EnvSpec(
            id=env_id,
            time_limit=self._time_limit,
            reward_threshold=registered.reward_threshold,
            **sizes,
        )

    def origins(self) -> list[Any]:
        known = NATIVE[self.spec.id]().origins() if self.spec.id in NATIVE else []
        return [type(self), "manyseeds.envs:bridged", *known, *users_code(self.spec.id)]

    def reset(self, noise: Tensor) -> tuple[State, Tensor]:
        S, N = noise.shape[:2]
        idle = self._idle.get((S, N))
        instances = (
            idle.pop() if idle else [Instance(self._make(self.spec.id)) for _ in range(S * N)]
        )
        handles = range(self._next_handle, self._next_handle + S * N)
        self._next_handle += S * N  # a handle is never given out again
        self._live.update(zip(handles, instances, strict=True))
        # An object may take megabytes, and every evaluation resets: when a group's states are gone,
        # a later reset reuses its objects. The end of the tensor itself would be the wrong signal,
        # because views, detached tensors and inference tensors are other Python objects. They all
        # share its storage, and the storage holds this array.
        array = np.array(handles, dtype=np.int64).reshape(S, N)
        weakref.finalize(array, self._release, (S, N), handles).atexit = False
        physics = torch.from_numpy(array)

        obs = self._empty_observations(S * N)
        for i, (instance, seed) in enumerate(zip(instances, _seeds(noise), strict=True)):
            obs[i] = self._begin(instance.env, seed)
            instance.elapsed = 0
        elapsed = torch.zeros(S, N, dtype=torch.int32, device=noise.device)
        return State(physics, elapsed), self._observations(obs, noise)

    def step(self, state: State, action: Tensor, noise: Tensor) -> Step:
        S, N = noise.shape[:2]
        obs, final_obs = self._empty_observations(S * N), self._empty_observations(S * N)
        rewards = np.empty(S * N)
        terminated, truncated = np.empty(S * N, dtype=bool), np.empty(S * N, dtype=bool)
        elapsed = np.empty(S * N, dtype=np.int32)

        per_env = (state.physics, state.elapsed)
        handles, ages = (field.reshape(S * N).tolist() for field in per_env)
        actions = self._gymnasium_actions(action.reshape(S * N, *action.shape[2:]))
        for i, (handle, age, seed) in enumerate(zip(handles, ages, _seeds(noise), strict=True)):
            instance = self._live.get(handle)
            if instance is None or instance.elapsed != age:
                raise RuntimeError(STALE)
            # Copied at once: an environment may return the same buffer every time.
            final_obs[i], rewards[i], terminated[i], truncated[i] = self._advance(
                instance.env, actions[i]
            )
            if terminated[i] or truncated[i]:
                obs[i] = self._begin(instance.env, seed)
                instance.elapsed = 0
            else:
                obs[i] = final_obs[i]
                instance.elapsed += 1
            elapsed[i] = instance.elapsed

        with np.errstate(over="ignore"):
            reward = rewards.astype(np.float32)

        def tensor(x: np.ndarray) -> Tensor:
            return torch.from_numpy(x).view(S, N).to(noise.device)

        return Step(
            State(state.physics, tensor(elapsed)),
            self._observations(obs, noise),
            tensor(reward),
            tensor(terminated),
            tensor(truncated),
            self._observations(final_obs, noise),
        )

    def repeats_starts(self) -> bool:
        """Whether two resets with one seed begin alike: otherwise no run can be repeated."""
        made = [self._make(self.spec.id) for _ in range(2)]
        one, other = (self._begin(env, seed=1) for env in made)
        for env in made:
            env.close()
        return np.array_equal(one, other, equal_nan=True)

    def _begin(self, env: gym.Env[Any, Any], seed: int) -> np.ndarray:
        """Reset an environment; its observation, `[O]` or a state index `[]`."""
        try:
            obs, _ = env.reset(seed=seed)
            return self._observed(obs)
        except Exception as error:  # anything that the environment raises
            raise misbehaved(self.spec.id, "reset", "(observation, info)", error) from error

    def _advance(self, env: gym.Env[Any, Any], action: Any) -> tuple[np.ndarray, float, bool, bool]:
        """Step an environment: observation, reward, terminated, truncated."""
        try:
            obs, reward, terminated, truncated, _ = env.step(action)
            return self._observed(obs), float(reward), bool(terminated), bool(truncated)
        except Exception as error:
            returns = "(observation, reward, terminated, truncated, info)"
            raise misbehaved(self.spec.id, "step", returns, error) from error

    def _observed(self, obs: Any) -> np.ndarray:
        """An observation in the type of the contract; ValueError where it is not in its space."""
        size, states = self.spec.obs_size, self.spec.num_states
        with np.errstate(over="ignore"):  # beyond float32 it is infinite
            array = np.asarray(obs, np.int64 if size is None else np.float32)
        if array.shape != (shape := () if size is None else (size,)):
            raise ValueError(f"an observation of shape {array.shape}, its space has {shape}")
        if states is not None and not 0 <= int(array) - self._first_state < states:
            raise ValueError(f"observation {array} is not in its space")
        return array

    def _make(self, env_id: str) -> gym.Env[Any, Any]:
        """An object with Gymnasium's wrappers: the time limit, and no step before a reset."""
        try:
            # Without Gymnasium's warnings: newer versions, precision of bounds.
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                return gym.make(
                    self._gym_id, max_episode_steps=self._time_limit, disable_env_checker=True
                )
        except Exception as error:  # anything that the environment raises
            raise cannot_be_made(env_id, error) from error

    def _release(self, shape: tuple[int, int], handles: range) -> None:
        # As a whole and in order: some environments keep something over a reset (BipedalWalker its
        # world). An object's past then belongs to one seed, in any batch.
        instances = [self._live.pop(handle) for handle in handles]
        self._idle.setdefault(shape, []).append(instances)

    def _empty_observations(self, count: int) -> np.ndarray:
        if self.spec.obs_size is None:
            return np.empty(count, dtype=np.int64)
        return np.empty((count, self.spec.obs_size), dtype=np.float32)

    def _observations(self, obs: np.ndarray, noise: Tensor) -> Tensor:
        """Observations `[S * N, ...]` as the contract has them, where the noise is."""
        if self.spec.obs_size is None:
            obs = obs - self._first_state
        return torch.from_numpy(obs).view(*noise.shape[:2], *obs.shape[1:]).to(noise.device)

    def _gymnasium_actions(self, action: Tensor) -> np.ndarray:
        """Elements of the action space for actions `[S * N, ...]`."""
        array = action.numpy(force=True)
        if isinstance(self._actions, Discrete):
            if array.min() < 0 or array.max() >= self._actions.n:  # some would count from the end
                raise IndexError(f"an action is not in 0 to {self._actions.n - 1}")
            return array + self._actions.start
        assert isinstance(self._actions, Box)
        clipped = np.clip(array, self._actions.low, self._actions.high)
        # A diverged seed must not end the others: some simulators stop at a NaN.
        finite = np.where(np.isfinite(clipped), clipped, self._middle)
        return finite.astype(self._actions.dtype)


def _seeds(noise: Tensor) -> list[int]:
    """One seed of 48 bits for each two uniforms of noise `[S, N, 2]`, 24 bits of each."""
    high, low = (noise.cpu().double() * 2**24).long().reshape(-1, 2).unbind(-1)
    return ((high << 24) | low).tolist()


def registered_id(env_id: str) -> str:
    """The id in Gymnasium's registry, for "id" or "module:id"; raises UsageError for others.

    An id needs its version: results under a name that means another environment in the next
    release of Gymnasium could not be compared.
    """
    gym_id = env_id
    module, _, name = env_id.rpartition(":")
    if all(part.isidentifier() for part in module.split(".")):  # not so for ""
        try:
            importlib.import_module(module)
        except Exception as error:  # anything that the module raises
            message = f"--env {env_id!r}: cannot import {module}: {_one_line(error)}"
            if isinstance(error, ModuleNotFoundError) and f"{module}.".startswith(f"{error.name}."):
                message += "; install it, or add its folder to PYTHONPATH"
            raise UsageError(message) from error
        gym_id = name
    if gym_id in gym.registry:
        return gym_id
    if env_id in NATIVE:
        raise UsageError(f"--backend gymnasium: Gymnasium has no {env_id}; use --backend auto")
    known = list(dict.fromkeys((*NATIVE, *gym.registry)))
    if env_id.startswith("ALE/"):
        hint = "; Atari's observations are images, supported are vectors and state indices"
    elif difflib.get_close_matches(gym_id, known, n=1):
        hint = did_you_mean(gym_id, known)
    else:  # Gymnasium has a hundred
        hint = did_you_mean(gym_id, NATIVE)
        hint += ", all of gymnasium.pprint_registry(), and other packages' as MODULE:ID"
    raise UsageError(f"--env {env_id!r}: unknown environment{hint}")


def users_code(env_id: str) -> list[Any]:
    """The code of an environment that belongs to no installed package.

    Its maker, its wrappers, and the module of "module:id", which registers it.
    """
    spec = gym.spec(registered_id(env_id))
    makers = (spec.entry_point, *(wrapper.entry_point for wrapper in spec.additional_wrappers))
    code: list[Any] = [load_env_creator(x) if isinstance(x, str) else x for x in makers if x]
    if module := sys.modules.get(env_id.rpartition(":")[0]):
        code.append(module)
    return [x for x in code if not is_library(x)]


def cannot_be_made(env_id: str, error: Exception) -> UsageError:
    """Says what to install, or else why a registered environment cannot be made."""
    missing = error if isinstance(error, ModuleNotFoundError) else error.__cause__
    if isinstance(missing, ModuleNotFoundError) and missing.name:
        extra = re.search(r"gymnasium\[[\w-]+\]", str(error))  # in Gymnasium's own messages
        install = f"; pip install '{extra[0]}'" if extra else ", which is not installed"
        return UsageError(f"--env {env_id}: needs {missing.name}{install}")
    stem = env_id.rpartition("-v")[0] + "-v"
    versions = [name for name in gym.registry if name.startswith(stem) and name != env_id]
    hint = did_you_mean(env_id, versions) if versions else ""
    return UsageError(f"--env {env_id}: {_one_line(error).rstrip('.')}{hint}")


def misbehaved(env_id: str, method: str, returns: str, error: Exception) -> UsageError:
    """Says what an environment did in a method, which ought to return `returns`."""
    hint = f"; it must return {returns}" if "unpack" in str(error) else ""
    return UsageError(f"--env {env_id}: its {method} failed: {described(error)}{hint}")


def unsupported(env_id: str, what: str, space: Space[Any] | None) -> UsageError:
    """For observations or actions of a space that no policy here can use."""
    kind = type(space).__name__
    if isinstance(space, Box):
        kind = f"{space.dtype} Box of shape {space.shape}"
    return UsageError(
        f"--env {env_id}: its {what} are a {kind}; supported are Discrete and a Box of one "
        f"dimension{' of floats' if what == 'actions' else ''}"
    )


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
