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
import inspect
import pickle
import re
import sys
import warnings
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib import metadata
from numbers import Integral, Real
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from gymnasium.envs.registration import load_env_creator
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Space, Tuple
from gymnasium.spaces.utils import flatdim, flatten
from torch import Tensor

from manyseeds.arguments import read_kwargs
from manyseeds.digest import is_library
from manyseeds.envs import NATIVE
from manyseeds.envs.core import Env, EnvSpec, State, Step, one_or_many
from manyseeds.envs.global_generators import OwnGenerators, seed_all, seeded, states
from manyseeds.errors import UsageError, described, did_you_mean

TIME_LIMIT = 1000  # steps, for environments that are registered without a limit
TRIED = 50  # steps of two equal episodes, before a training
WATCHED = 64  # of so many steps of all, one is looked at for who draws; it takes 0.1 ms
RETURNS = {
    "reset": "(observation, info)",
    "step": "(observation, reward, terminated, truncated, info)",
}
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
    `Discrete`: `[S, N]` int64, counted from 0 whatever the space's `start`. `Box`: `[S, N, D]`
    floats, clipped to its bounds; NaN becomes the middle between them.

    ## Observations
    `Discrete`: `[S, N]` int64, counted from 0. Others are flattened, as `gymnasium.spaces.flatten`
    does: `[S, N, O]` float32. Images (`uint8` of three dimensions) are refused.

    ## Episode end
    Gymnasium's flags. Without a registered time limit: truncation after `time_limit` steps.

    ## Luck
    Of `reset(seed=...)`. One that draws from the global generators of Python, NumPy or PyTorch has
    them to itself, seeded alike, if it does so within the first `TRIED` steps that it is tried for;
    one that does so later repeats itself in the same batch only, which a note says. Those that its
    constructor draws from are seeded alike, too.

    `State.physics` are handles of the objects, `[S, N]` int64, on the CPU; everything else is on
    the device of the noise. A reward beyond float32 is infinite. The two scores of the spec are
    unknown.

    env_id: a registered id, or "module:id" for one that importing a module registers.
    time_limit: where none is registered. env_kwargs: arguments "key=value"; of an environment with
    any, the two scores and the threshold of the spec are unknown.
    Raises UsageError for an unknown id, for other spaces, and for packages that are not installed;
    `reset` and `step` raise it where the environment raises, or returns something that its API or
    its observation space does not allow.
    """

    native = False
    initial_noise = 2
    transition_noise = 0

    def __init__(
        self, env_id: str, time_limit: int = TIME_LIMIT, env_kwargs: Sequence[str] = ()
    ) -> None:
        registered = gym.spec(registered_id(env_id))
        self._gym_id = registered.id
        self._kwargs, self._altered = read_kwargs(env_kwargs), bool(env_kwargs)
        source = "is registered" if "max_episode_steps" not in self._kwargs else "is asked for"
        limit = self._kwargs.pop("max_episode_steps", registered.max_episode_steps)
        # -1 is "none" to Gymnasium
        self._limit_assumed = f"{source} without a time limit" if limit in (None, -1) else ""
        self._time_limit = time_limit if self._limit_assumed else checked_limit(env_id, limit)
        self._live: dict[int, Instance] = {}  # by handle
        self._idle: dict[tuple[int, int], list[list[Instance]]] = {}  # groups by shape [S, N]
        self._next_handle = 0
        self._faults: dict[int, str] = {}
        self._own_generators: bool | None = None  # whether it draws from global ones
        self._calls, self._late = 0, False  # resets and steps; whether it does so later than tried

        probe = self._make(env_id)
        observations: Any = getattr(probe, "observation_space", None)
        actions: Any = getattr(probe, "action_space", None)
        close(probe)
        sizes: dict[str, Any] = {}
        if isinstance(observations, Discrete):
            sizes["num_states"] = int(observations.n)
            self._first_state = int(observations.start)
        elif size := vector_size(observations):
            sizes["obs_size"] = size
        else:
            raise unsupported(env_id, "observations", observations)
        if isinstance(actions, Discrete):
            sizes["num_actions"] = int(actions.n)
        elif isinstance(actions, Box) and actions.dtype.kind == "f" and actions.low.size:
            low, high = actions.low.ravel(), actions.high.ravel()
            sizes["action_low"], sizes["action_high"] = tuple(low.tolist()), tuple(high.tolist())
            with np.errstate(invalid="ignore"):  # inf - inf
                middle = low / 2 + high / 2
            self._middle = np.where(np.isfinite(middle), middle, np.clip(0, low, high))
        else:
            raise unsupported(env_id, "actions", actions)
        self._observation_space, self._actions = observations, actions
        self.spec = EnvSpec(
            id=env_id,
            time_limit=self._time_limit,
            reward_threshold=None if env_kwargs else registered.reward_threshold,
            **sizes,
        )

    def origins(self) -> list[Any]:
        known = NATIVE[self.spec.id]().origins() if self.spec.id in NATIVE else []
        return [type(self), "manyseeds.envs:bridged", *known, *users_code(self.spec.id)]

    def packages(self) -> list[str]:
        makers = makers_of(self.spec.id)
        classes = [base for x in makers for base in getattr(x, "__mro__", (x,))]
        homes = [x if inspect.ismodule(x) else sys.modules.get(x.__module__) for x in classes]
        # And what these import, such as the simulator.
        modules = [y for x in homes if x for y in (x, *filter(inspect.ismodule, vars(x).values()))]
        owners = metadata.packages_distributions()
        found = {x for y in modules for x in owners.get(y.__name__.partition(".")[0], ())}
        return sorted(found - {"gymnasium", "numpy", "torch"})

    def notes(self) -> list[str]:
        notes = []
        if self._limit_assumed:
            notes.append(
                f"{self.spec.id} {self._limit_assumed}: episodes are cut after "
                f"{self._time_limit} steps; --env-kwargs max_episode_steps=N sets another limit"
            )
        if self.spec.id in NATIVE and self._altered:
            notes.append(f"--env-kwargs: {self.spec.id} is Gymnasium's own, not the native one")
        if differs := self._try_out():
            notes.append(
                f"two episodes of {self.spec.id} with one seed and the same actions differ "
                f"{differs}: the run cannot be repeated"
            )
        return notes

    def faults(self) -> dict[int, str]:
        faults, self._faults = self._faults, {}
        return faults

    def reset(self, noise: Tensor) -> tuple[State, Tensor]:
        if self._own_generators is None:
            self._try_out()
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
        with self._watching():
            for i, (instance, seed) in enumerate(zip(instances, _seeds(noise), strict=True)):
                obs[i] = self._begin(instance, seed)
        self._look_for_faults({"an observation": obs}, [0] * len(obs), N)
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
        with self._watching():
            for i, (handle, age, seed) in enumerate(zip(handles, ages, _seeds(noise), strict=True)):
                instance = self._live.get(handle)
                if instance is None or instance.elapsed != age:
                    raise RuntimeError(STALE)
                # Copied at once: an environment may return the same buffer every time.
                final_obs[i], rewards[i], terminated[i], truncated[i] = self._advance(
                    instance, actions[i]
                )
                ended = terminated[i] or truncated[i]
                obs[i] = self._begin(instance, seed) if ended else final_obs[i]
                elapsed[i] = instance.elapsed

        with np.errstate(over="ignore"):
            reward = rewards.astype(np.float32)
        seen = {"a reward": reward, "an observation": final_obs, "the start that follows": obs}
        self._look_for_faults(seen, [age + 1 for age in ages], N)

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

    def from_gymnasium(self, obs: Any) -> tuple[Tensor, bool]:
        space = self._observation_space
        if isinstance(space, Dict | Tuple):
            one = not isinstance(obs, list)
            many = [obs] if one else obs
        else:
            many, one = one_or_many(obs, space.shape, self.spec.id)
        try:
            seen = np.stack([self._observed(x) for x in many])
        except (KeyError, TypeError, ValueError) as error:
            raise UsageError(f"predict: {self.spec.id}: {described(error)}") from None
        if self.spec.obs_size is None:
            seen = seen - self._first_state
        return torch.from_numpy(seen), one

    def to_gymnasium(self, action: Tensor) -> np.ndarray:
        return self._gymnasium_actions(action)

    def _try_out(self) -> str:
        """Step two objects with equal seeds and actions; where they begin to differ, or ''.

        Notices, too, whether the environment draws from global generators. Raises UsageError for
        what it does wrong, and for an observation that is not finite.
        """
        self._own_generators = True
        pair = [Instance(self._make(self.spec.id)) for _ in range(2)]
        chance, differ, seed, ended = np.random.default_rng(0), "", 0, True
        size = len(self.spec.action_low)
        for t in range(TRIED):
            if ended:
                seed = t
                seen: list[Any] = [[self._begin(instance, seed)] for instance in pair]
            else:
                drawn = chance.normal(size=size) if size else chance.integers(self.spec.num_actions)
                (action,) = self._gymnasium_actions(torch.tensor(drawn).unsqueeze(0))
                seen = [self._advance(instance, action) for instance in pair]
            age, first = pair[0].elapsed, seen[0]
            if not np.isfinite(first[0]).all():
                raise UsageError(
                    f"--env {self.spec.id}: an observation is {_first_fault(first[0])} in float32 "
                    f"at step {age} after reset(seed={seed})"
                )
            if len(pair) == 2 and not all(
                np.array_equal(x, y, equal_nan=True) for x, y in zip(*seen, strict=True)
            ):
                differ = f"at step {age}" if age else "from the start"
                close(pair.pop().env)
            ended = any(first[2:])
        for instance in pair:
            close(instance.env)
        self._own_generators = pair[0].env.get_wrapper_attr("used")
        seed_all(0)  # for one that draws from them later
        return differ

    @contextmanager
    def _watching(self) -> Iterator[None]:
        """Notice, in one call of `WATCHED`, an environment that draws from global generators only
        now; say so once."""
        self._calls += 1
        watched = not self._own_generators and not self._late and self._calls % WATCHED == 1
        before = pickle.dumps(states()) if watched else b""
        yield
        if watched and pickle.dumps(states()) != before:
            self._late = True
            print(
                f"note: {self.spec.id} draws from a global random generator, not yet in its first "
                f"{TRIED} steps: the run repeats itself with the same seeds in one batch only",
                file=sys.stderr,
            )

    def _look_for_faults(self, seen: Mapping[str, np.ndarray], ages: Sequence[int], N: int) -> None:
        """Remember what is not finite: the first of each seed. seen: `[S * N, ...]`."""
        for what, x in seen.items():
            if not np.isfinite(x).all():
                for i in np.argwhere(~np.isfinite(x.reshape(len(x), -1)).all(1))[:, 0].tolist():
                    text = f"{what} is {_first_fault(x[i])} at step {ages[i]} of an episode"
                    self._faults.setdefault(i // N, text)

    def _begin(self, instance: Instance, seed: int) -> np.ndarray:
        """Reset an environment; its observation, `[O]` or a state index `[]`."""
        instance.elapsed = 0
        try:
            returned = instance.env.reset(seed=seed)
            if not isinstance(returned, tuple) or len(returned) != 2:
                raise TypeError(f"cannot unpack {type(returned).__name__}")
            return self._observed(returned[0])
        except Exception as error:  # anything that the environment raises
            raise misbehaved(self.spec.id, "reset", error, self._kwargs) from error

    def _advance(self, instance: Instance, action: Any) -> tuple[np.ndarray, float, bool, bool]:
        """Step an environment: observation, reward, terminated, truncated."""
        instance.elapsed += 1
        try:
            obs, reward, terminated, truncated, _ = instance.env.step(action)
            ends = flag_of("terminated", terminated), flag_of("truncated", truncated)
            return self._observed(obs), number_of("reward", reward), *ends
        except Exception as error:
            raise misbehaved(self.spec.id, "step", error, self._kwargs) from error

    def _observed(self, obs: Any) -> np.ndarray:
        """An observation in the type of the contract; ValueError where it is not in its space."""
        space = self._observation_space
        if isinstance(space, Discrete):
            array = np.asarray(obs)
            if array.shape or array.dtype.kind not in "iub":
                raise ValueError(f"observation {obs!r} is not a whole number")
            if not 0 <= int(array) - self._first_state < space.n:
                raise ValueError(f"observation {array} is not in its space")
            return array.astype(np.int64)
        if isinstance(space, Box):
            with np.errstate(over="ignore"):  # beyond float32 it is infinite
                array = np.asarray(obs, np.float32)
            if array.shape != space.shape:
                raise ValueError(
                    f"an observation of shape {array.shape}, its space has {space.shape}"
                )
            return array.reshape(-1)
        array = np.asarray(flatten(space, obs), np.float32)
        if array.shape != (self.spec.obs_size,):
            raise ValueError(f"an observation that is not in its space, {space}")
        return array

    def _make(self, env_id: str) -> gym.Env[Any, Any]:
        """An object with Gymnasium's wrappers: the time limit, and no step before a reset."""
        try:
            # Without Gymnasium's warnings: newer versions, precision of bounds.
            with warnings.catch_warnings(), seeded(0):
                warnings.simplefilter("ignore")
                made: gym.Env[Any, Any] = gym.make(
                    self._gym_id,
                    max_episode_steps=self._time_limit,
                    disable_env_checker=True,
                    **self._kwargs,
                )
        except Exception as error:  # anything that the environment raises
            raise cannot_be_made(env_id, error, self._kwargs) from error
        return OwnGenerators(made) if self._own_generators else made

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
        clipped = np.clip(array, self._actions.low.ravel(), self._actions.high.ravel())
        # A diverged seed must not end the others: some simulators stop at a NaN.
        finite = np.where(np.isfinite(clipped), clipped, self._middle)
        return finite.astype(self._actions.dtype).reshape(-1, *self._actions.shape)


def _seeds(noise: Tensor) -> list[int]:
    """One seed of 48 bits for each two uniforms of noise `[S, N, 2]`, 24 bits of each."""
    high, low = (noise.cpu().double() * 2**24).long().reshape(-1, 2).unbind(-1)
    return ((high << 24) | low).tolist()


def checked_limit(env_id: str, limit: Any) -> int:
    """A time limit as given or registered; UsageError for one that is no number of steps."""
    if not isinstance(limit, Integral) or isinstance(limit, bool) or limit < 1:
        raise UsageError(
            f"--env {env_id}: its max_episode_steps is {limit!r}; it must be a whole number of at "
            "least 1, or None"
        )
    return int(limit)


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
        raise UsageError(
            f"--env {env_id}: Gymnasium has no such environment, which --backend gymnasium and "
            "--env-kwargs need"
        )
    known = list(dict.fromkeys((*NATIVE, *gym.registry)))
    if env_id.startswith("ALE/"):
        hint = "; Atari's observations are images, supported are vectors and state indices"
    elif alike := difflib.get_close_matches(gym_id, known, n=1):
        module = env_id.removesuffix(gym_id) if alike[0] in gym.registry else ""
        hint = f"; did you mean {module}{alike[0]}?"
    else:  # Gymnasium has a hundred
        hint = did_you_mean(gym_id, NATIVE)
        hint += ", all of gymnasium.pprint_registry(), and other packages' as MODULE:ID"
    raise UsageError(f"--env {env_id!r}: unknown environment{hint}")


def makers_of(env_id: str) -> list[Any]:
    """What makes an environment, what wraps it, and the module of "module:id", if there is one."""
    spec = gym.spec(registered_id(env_id))
    makers = (spec.entry_point, *(wrapper.entry_point for wrapper in spec.additional_wrappers))
    code: list[Any] = [load_env_creator(x) if isinstance(x, str) else x for x in makers if x]
    module = sys.modules.get(env_id.rpartition(":")[0])
    return [*code, module] if module else code


def users_code(env_id: str) -> list[Any]:
    """The code of an environment that belongs to no installed package."""
    return [x for x in makers_of(env_id) if not is_library(x)]


def cannot_be_made(
    env_id: str, error: Exception, kwargs: Mapping[str, Any] | None = None
) -> UsageError:
    """Says what to install, or else why a registered environment cannot be made."""
    missing = error if isinstance(error, ModuleNotFoundError) else error.__cause__
    if isinstance(missing, ModuleNotFoundError) and missing.name:
        extra = re.search(r"gymnasium\[[\w-]+\]", str(error))  # in Gymnasium's own messages
        install = f"; pip install '{extra[0]}'" if extra else ", which is not installed"
        return UsageError(f"--env {env_id}: needs {missing.name}{install}")
    unexpected = re.search(r"unexpected keyword argument '(\w+)'", str(error))
    if unexpected and kwargs and unexpected[1] in kwargs:
        known = [name for x in makers_of(env_id)[:1] for name in inspect.signature(x).parameters]
        hint = did_you_mean(unexpected[1], known) if known else ""
        return UsageError(f"--env-kwargs {unexpected[1]}: {env_id} takes no such argument{hint}")
    module, _, gym_id = env_id.rpartition(":")
    stem = gym_id.rpartition("-v")[0] + "-v"
    versions = [name for name in gym.registry if name.startswith(stem) and name != gym_id]
    named = [f"{module}:{x}" if module else x for x in versions]
    hint = did_you_mean(env_id, named) if named else ""
    reason = described(error) if kwargs else _one_line(error)
    return UsageError(f"--env {env_id}{given(kwargs)}: {reason.rstrip('.')}{hint * bool(versions)}")


def vector_size(space: Space[Any] | None) -> int:
    """The length of the vector that an observation of a space becomes; 0 where it becomes none."""
    if isinstance(space, Dict | Tuple):
        parts = space.spaces.values() if isinstance(space, Dict) else space.spaces
        sizes = [vector_size(part) for part in parts]
        return sum(sizes) if all(sizes) else 0
    if isinstance(space, Box) and space.dtype == np.uint8 and len(space.shape) == 3:
        return 0  # an image
    return flatdim(space) if isinstance(space, Box | Discrete | MultiBinary | MultiDiscrete) else 0


def number_of(what: str, x: Any) -> float:
    """A reward as a float; ValueError for what is no number."""
    if isinstance(x, float) or is_number(x):
        return float(x)
    shape = f" and shape {tuple(x.shape)}" if hasattr(x, "shape") else ""
    raise ValueError(f"a {what} of type {type(x).__name__}{shape}, must be a number")


def flag_of(what: str, x: Any) -> bool:
    """A flag as a bool; ValueError for what is none."""
    if isinstance(x, bool) or is_number(x):
        return bool(x)
    raise ValueError(f"{what} of type {type(x).__name__}, must be a bool")


def is_number(x: Any) -> bool:
    """Whether something is a number, also as an array or tensor without a dimension."""
    return isinstance(x, Real | np.bool_) or getattr(x, "ndim", 1) == 0


class Named(gym.Wrapper[Any, Any, Any, Any]):
    """An environment of which a UsageError says what it did wrong."""

    def __init__(self, env: gym.Env[Any, Any], env_id: str) -> None:
        super().__init__(env)
        self.env_id = env_id

    def reset(self, **given: Any) -> Any:
        try:
            return self.env.reset(**given)
        except Exception as error:
            raise misbehaved(self.env_id, "reset", error) from error

    def step(self, action: Any) -> Any:
        try:
            return self.env.step(action)
        except Exception as error:
            raise misbehaved(self.env_id, "step", error) from error


def as_ours(env: gym.Env[Any, Any], spec: EnvSpec, rescale: bool) -> gym.Env[Any, Any]:
    """Gymnasium's environment with the observations and actions of one of ours, of this spec."""
    space = env.observation_space
    env = Named(env, spec.id)
    if spec.obs_size is not None and not (isinstance(space, Box) and len(space.shape) == 1):
        env = gym.wrappers.FlattenObservation(env)
    return gym.wrappers.RescaleAction(env, np.float32(-1), np.float32(1)) if rescale else env


def close(env: gym.Env[Any, Any]) -> None:
    """Close an environment; one that cannot has been of use already."""
    with suppress(Exception):
        env.close()


def misbehaved(
    env_id: str, method: str, error: Exception, kwargs: Mapping[str, Any] | None = None
) -> UsageError:
    """Says what an environment, made with some arguments, did in a method."""
    hint = f"; it must return {RETURNS[method]}" if "unpack" in str(error) else ""
    if method == "reset" and "'seed'" in str(error):
        hint = "; it must be reset(self, *, seed=None, options=None)"
    return UsageError(
        f"--env {env_id}{given(kwargs)}: its {method} failed: {described(error)}{hint}"
    )


def given(kwargs: Mapping[str, Any] | None) -> str:
    """` --env-kwargs g=2`, '' without any."""
    return " --env-kwargs " + " ".join(f"{k}={v}" for k, v in kwargs.items()) if kwargs else ""


def unsupported(env_id: str, what: str, space: Space[Any] | None) -> UsageError:
    """For observations or actions of a space that no policy here can use."""
    kind = type(space).__name__
    if isinstance(space, Box):
        kind = f"{space.dtype} Box of shape {space.shape}"
    usable = "Discrete and Box of floats"
    if what == "observations":
        usable = "Discrete, Box (no images), MultiDiscrete, MultiBinary, and Dict and Tuple of them"
    return UsageError(f"--env {env_id}: its {what} are a {kind}; supported are {usable}")


def _first_fault(x: np.ndarray) -> float:
    """The first of some numbers that is not finite."""
    return float(x[~np.isfinite(x)].flat[0])


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
