"""The contract that all environments keep, binned observations, episode statistics, and make."""

from __future__ import annotations

import contextlib
import itertools
import math
from typing import Literal

import gymnasium as gym
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from manyseeds import envs, kernels
from manyseeds.envs import CartPole, Discretize, EnvSpec, EpisodeTracker, NativeEnv
from manyseeds.envs.rollout import one_step
from manyseeds.errors import UsageError
from manyseeds.seeds import SeedStreams
from tests.envs.checks import uniforms

# ---- Other forms of observations and actions -----------------------------------------------


@pytest.mark.parametrize("backend", ["auto", "gymnasium"])
def test_one_hot_vectors_are_the_states(backend: Literal["auto", "gymnasium"]) -> None:
    """Also of true successors; everything else is as it was."""
    plain = envs.make("FrozenLake-v1", backend=backend)
    vectors = envs.make("FrozenLake-v1", observations="vector", backend=backend)
    assert (vectors.spec.obs_size, vectors.spec.num_states) == (16, None)
    start = torch.rand(2, 5, plain.initial_noise)
    (a, one), (b, other) = plain.reset(start), vectors.reset(start)
    for _ in range(40):
        actions, noise = torch.randint(0, 4, (2, 5)), torch.rand(2, 5, plain.noise_size)
        x, y = plain.step(a, actions, noise), vectors.step(b, actions, noise)
        for states, vector in ((one, other), (x.obs, y.obs), (x.final_obs, y.final_obs)):
            assert vector.dtype == torch.float32
            assert torch.equal(vector, torch.eye(16)[states])
        assert torch.equal(x.reward, y.reward)
        assert torch.equal(x.truncated, y.truncated)
        a, b, one, other = x.state, y.state, x.obs, y.obs
    assert any("OneHot" in str(origin) for origin in vectors.origins())


@pytest.mark.parametrize("backend", ["auto", "gymnasium"])
def test_rescaled_actions_span_the_bounds(backend: Literal["auto", "gymnasium"]) -> None:
    """-1 is the lower one, 1 the upper one, what is beyond them is clipped."""
    plain = envs.make("Pendulum-v1", backend=backend)
    scaled = envs.RescaledActions(envs.make("Pendulum-v1", backend=backend))
    assert (scaled.spec.action_low, scaled.spec.action_high) == ((-1.0,), (1.0,))
    start, noise = torch.rand(1, 5, plain.initial_noise), torch.rand(1, 5, plain.noise_size)
    given = torch.tensor([[[-3.0], [-1.0], [0.0], [0.25], [1.5]]])
    meant = torch.tensor([[[-2.0], [-2.0], [0.0], [0.5], [2.0]]])
    one = plain.step(plain.reset(start)[0], meant, noise)
    other = scaled.step(scaled.reset(start)[0], given, noise)
    assert torch.equal(one.final_obs, other.final_obs)
    assert torch.equal(one.reward, other.reward)


# ---- Actions that there are not -----------------------------------------------------------

DISCRETE = [name for name, build in envs.NATIVE.items() if not build().spec.continuous]


@pytest.mark.parametrize("backend", ["auto", "gymnasium"])
@pytest.mark.parametrize("env_id", DISCRETE)
def test_an_action_out_of_range_is_an_error(
    env_id: str, backend: Literal["auto", "gymnasium"]
) -> None:
    """Whatever the state, and whoever else acts beside it."""
    if backend == "gymnasium" and env_id not in gym.registry:
        pytest.skip("Gymnasium has none")
    for S, N in ((1, 1), (2, 8)):
        for wrong in (-1, None, 100):
            env = envs.make(env_id, backend=backend)
            state, _ = env.reset(torch.rand(S, N, env.initial_noise))
            actions = torch.randint(0, env.spec.num_actions, (S, N))
            actions[-1, -1] = env.spec.num_actions if wrong is None else wrong
            with pytest.raises((IndexError, RuntimeError)):
                env.step(state, actions, torch.rand(S, N, env.noise_size))


# ---- Every environment -----------------------------------------------------------------


def play(env: NativeEnv, noise: Tensor, first: Tensor) -> list[envs.Step]:
    """Steps with uniformly random actions; noise `[S, T, N, ...]`, an action's number last."""
    state, _ = env.reset(first)
    steps = []
    for uniform in noise.unbind(1):
        actions = (uniform[..., -1] * env.spec.num_actions).long()
        if env.spec.continuous:
            actions = 3 * (uniform[..., -1:] - 0.5).expand(-1, -1, len(env.spec.action_low))
        steps.append(env.step(state, actions, uniform[..., :-1]))
        state = steps[-1].state
    return steps


@pytest.mark.parametrize("env_id", envs.NATIVE)
def test_every_environment_keeps_the_contract(env_id: str) -> None:
    """Shapes and types, the time limit, resets within the step; a seed's steps are its own."""
    env = envs.NATIVE[env_id]()
    S, T, N, spec = 3, env.spec.time_limit + 1, 2, env.spec
    assert spec.continuous != bool(spec.num_actions), "either num_actions, or bounds of actions"
    streams = SeedStreams(range(S), "train")
    first = streams.uniform(N, env.initial_noise)
    noise = streams.uniform(T, N, env.noise_size + 1)
    steps = play(env, noise, first)
    age = torch.zeros(S, N, dtype=torch.int32)
    for step, uniform in zip(steps, noise.unbind(1), strict=True):
        age += 1
        done = step.terminated | step.truncated
        assert torch.equal(step.truncated, age >= spec.time_limit)
        age = age.masked_fill(done, 0)
        assert torch.equal(step.state.elapsed, age)
        assert step.reward.shape == done.shape == (S, N)
        assert step.reward.dtype == torch.float32
        for obs in (step.obs, step.final_obs):
            if spec.num_states is None:
                assert obs.shape == (S, N, spec.obs_size)
                assert obs.dtype == torch.float32
                assert obs.isfinite().all()
            else:
                assert obs.shape == (S, N)
                assert ((obs >= 0) & (obs < spec.num_states)).all()
        _, begin = env.reset(uniform[..., env.transition_noise : env.noise_size])
        assert torch.equal(step.obs[done], begin[done])
        assert torch.equal(step.obs[~done], step.final_obs[~done])
    assert any((step.terminated | step.truncated).any() for step in steps)
    for step, alone in zip(steps, play(env, noise[1:2], first[1:2]), strict=True):
        for together, own in zip(step[1:], alone[1:], strict=True):
            torch.testing.assert_close(together[1:2], own)


# ---- The contract: autoreset and starts -------------------------------------------------


class Counter(NativeEnv):
    """Counts up; episode length is planted in the start, so ends can be scripted.

    The physics is 1000 k at the start and one more every step; the task is over k steps later.
    """

    initial_noise, transition_noise = 1, 2

    def __init__(self, time_limit: int) -> None:
        self.spec = EnvSpec("Counter-v0", num_actions=2, time_limit=time_limit, num_states=10**6)

    def initial(self, noise: Tensor) -> Tensor:
        return (noise[..., 0] * 8).long() * 1000 + 1000  # k in 1..8

    def transition(self, physics: Tensor, action: Tensor, noise: Tensor) -> Tensor:
        return physics + 1

    def observation(self, physics: Tensor) -> Tensor:
        return physics

    def reward(self, physics: Tensor, action: Tensor, next_physics: Tensor) -> Tensor:
        return (next_physics - physics).float()

    def terminal(self, physics: Tensor) -> Tensor:
        return physics % 1000 == physics // 1000


def test_no_transition_crosses_a_reset() -> None:
    """final_obs == obs + 1 always, and ends come where they are scripted.

    Gymnasium's next-step autoreset stores a transition from one episode into the next.
    """
    env, rng = Counter(time_limit=5), np.random.default_rng(3)
    state, obs = env.reset(uniforms(rng, 3, 4, 1))
    seen = set()
    for _ in range(200):
        step = env.step(state, torch.zeros(3, 4).long(), uniforms(rng, 3, 4, 3))
        assert torch.equal(step.final_obs, obs + 1)
        assert torch.equal(step.reward, torch.ones(3, 4))
        age, length = step.final_obs % 1000, step.final_obs // 1000
        assert torch.equal(step.terminated, age == length)
        assert torch.equal(step.truncated, age == 5)
        done = step.terminated | step.truncated
        assert torch.equal(step.obs % 1000 == 0, done)  # a start exactly after an end
        assert torch.equal(step.obs[~done], step.final_obs[~done])
        assert torch.equal(step.state.elapsed, (step.obs % 1000).int())
        flags = torch.stack((step.terminated, step.truncated), dim=-1).flatten(0, 1)
        seen |= set(map(tuple, flags.tolist()))
        state, obs = step.state, step.obs
    assert seen == {(False, False), (True, False), (False, True), (True, True)}


def test_reset_noise_is_the_last_of_the_step_noise() -> None:
    """A reset draws from its own uniforms: transition noise must not decide the next start."""
    env = Counter(time_limit=1)
    state, _ = env.reset(torch.zeros(1, 2, 1))
    for first in (0.0, 0.9):
        noise = torch.tensor([[[first, first, 0.25], [first, first, 0.5]]])
        step = env.step(state, torch.zeros(1, 2).long(), noise)
        assert step.obs.tolist() == [[3000, 5000]]


# ---- Discretize -------------------------------------------------------------------------


def test_discretize_bins_and_numbers_as_documented() -> None:
    """Mixed radix over equal bins: against a loop, over the whole range and beyond it."""
    env = envs.make("CartPole-v1", observations="index")
    assert isinstance(env, Discretize)
    assert (env.spec.num_states, env.spec.obs_size) == (3 * 3 * 8 * 8, None)
    rng = np.random.default_rng(6)
    obs = torch.from_numpy(rng.normal(size=(500, 4)) * [1.5, 1.5, 0.12, 1.5]).float()

    def index_of(row: list[float]) -> int:
        index = 0
        for x, (low, high, n) in zip(row, CartPole.bins, strict=True):
            index = index * n + sum(x > low + (high - low) * k / n for k in range(1, n))
        return index

    index = env.observe(obs)
    assert index.dtype == torch.int64
    assert index.tolist() == [index_of(row) for row in obs.tolist()]
    axes = [[lo + (hi - lo) * (k + 0.5) / n for k in range(n)] for lo, hi, n in CartPole.bins]
    centres = torch.tensor(list(itertools.product(*axes)))
    assert env.observe(centres).tolist() == list(range(576))
    high = torch.tensor([[1e30, math.inf, 1e30, math.inf], [2.41, 2.01, 0.21, 2.51]])
    assert env.observe(torch.stack((-high, high))).tolist() == [[0, 0], [575, 575]]


def test_discretize_changes_what_is_seen_and_nothing_else() -> None:
    inner, env = CartPole(), envs.make("CartPole-v1", observations="index")
    rng = np.random.default_rng(7)
    noise = uniforms(rng, 2, 3, 4)
    (a, _), (b, _) = inner.reset(noise), env.reset(noise)
    ended = 0
    for _ in range(60):
        actions = torch.from_numpy(rng.integers(0, 2, (2, 3)))
        noise = uniforms(rng, 2, 3, 4)
        one, two = one_step(inner, a, actions, noise), env.step(b, actions, noise)
        assert torch.equal(one.state.physics, two.state.physics)
        assert torch.equal(one.reward, two.reward)
        assert torch.equal(one.terminated, two.terminated)
        assert torch.equal(env.observe(one.obs), two.obs)
        assert torch.equal(env.observe(one.final_obs), two.final_obs)
        assert two.obs.shape == (2, 3)
        ended += int(one.terminated.sum())
        a, b = one.state, two.state
    assert ended > 5


# ---- EpisodeTracker ---------------------------------------------------------------------


class SlowTracker:
    """EpisodeTracker as a loop over seeds, steps and environments."""

    def __init__(self, S: int, N: int) -> None:
        self.returns, self.lengths = np.zeros((S, N)), np.zeros((S, N), dtype=int)

    def update(self, rewards: np.ndarray, done: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        S, T, N = rewards.shape
        ended: list[list[tuple[float, int]]] = [[] for _ in range(S)]
        for s, t, n in np.ndindex(S, T, N):
            self.returns[s, n] += rewards[s, t, n]
            self.lengths[s, n] += 1
            if done[s, t, n]:
                ended[s].append((self.returns[s, n], self.lengths[s, n]))
                self.returns[s, n] = self.lengths[s, n] = 0
        means = [np.mean(episodes, axis=0) if episodes else (np.nan, np.nan) for episodes in ended]
        return np.array([m[0] for m in means]), np.array([m[1] for m in means])


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    S=st.integers(1, 4),
    N=st.integers(1, 4),
    lengths=st.lists(st.integers(1, 12), min_size=1, max_size=6),
    rate=st.sampled_from([0.0, 0.05, 0.3, 0.9, 1.0]),
)
def test_episode_tracker_is_the_slow_loop(
    seed: int, S: int, N: int, lengths: list[int], rate: float
) -> None:
    """Over consecutive rollouts: an episode may begin in one and end in another."""
    rng = np.random.default_rng(seed)
    trackers, slow = [EpisodeTracker(S, N), EpisodeTracker(S, N)], SlowTracker(S, N)
    for T in lengths:
        rewards = rng.normal(size=(S, T, N)).astype(np.float32)
        done = rng.random((S, T, N)) < rate
        theirs = slow.update(rewards, done)
        for tracker, how in zip(trackers, (contextlib.nullcontext(), kernels.off()), strict=True):
            with how:
                ours = tracker.update(torch.from_numpy(rewards), torch.from_numpy(done))
            for a, b in zip(ours.values(), theirs, strict=True):
                assert a.shape == (S,)
                np.testing.assert_allclose(a.numpy(), b, rtol=1e-4, atol=1e-4)  # NaN equals NaN


# ---- make -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("typo", "hint"),
    [
        ("CartPole-v2", "did you mean CartPole-v1?"),
        ("cartpole-v1", "did you mean CartPole-v1?"),
        ("FrozenLake-v0", "did you mean FrozenLake-v1?"),
        ("FrozenLake8x8", "did you mean FrozenLake8x8-v1?"),
        ("../../x", "there are Acrobot-v1, CartPole-v1"),
        ("", "there are Acrobot-v1, CartPole-v1"),
    ],
)
def test_make_helps_with_an_unknown_id(typo: str, hint: str) -> None:
    with pytest.raises(UsageError) as error:
        envs.make(typo)
    assert str(error.value).startswith(f"--env {typo!r}: unknown environment")
    assert hint in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("env_id", envs.NATIVE)
def test_make_builds_every_environment_under_its_own_id(env_id: str) -> None:
    env = envs.make(env_id)
    assert env.spec.id == env_id
    assert (env.spec.obs_size is None) != (env.spec.num_states is None)
    if env.spec.num_states is None and envs.NATIVE[env_id]().bins is None:
        return
    indexed = envs.make(env_id, observations="index")
    assert indexed.spec.id == env_id
    assert indexed.spec.num_states is not None
    state, obs = indexed.reset(torch.full((2, 3, indexed.initial_noise), 0.5))
    assert obs.shape == (2, 3)
    assert obs.max() < indexed.spec.num_states


def test_make_refuses_what_an_environment_cannot_show() -> None:
    assert envs.make("FrozenLake-v1", observations="vector").spec.obs_size == 16
    assert envs.make("CartPole-v1", observations="vector").spec.obs_size == 4
    with pytest.raises(UsageError, match=r"Pendulum-v1: .* needs discrete actions, as Acrobot-v1"):
        envs.make("Pendulum-v1", actions="discrete")


def test_make_refuses_an_environment_without_bins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CartPole, "bins", None)
    with pytest.raises(UsageError, match=r"CartPole-v1: a tabular algorithm needs one of Cliff"):
        envs.make("CartPole-v1", observations="index")
