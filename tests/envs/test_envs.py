"""The environments, against Gymnasium's own and against small worlds that can be worked out."""

from __future__ import annotations

import contextlib
import itertools
import math
from typing import Any, Literal

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.envs.classic_control.cartpole import CartPoleEnv
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from torch import Tensor

from manyseeds import envs, kernels
from manyseeds.envs import (
    CartPole,
    Discretize,
    EnvSpec,
    EpisodeTracker,
    FrozenLake,
    NativeEnv,
    State,
    TabularEnv,
)
from manyseeds.errors import UsageError
from manyseeds.seeds import SeedStreams

BATCHES = [(1, 1), (3, 3), (2, 8)]  # S, N


def uniforms(rng: np.random.Generator, *shape: int, dtype: torch.dtype) -> Tensor:
    return torch.from_numpy(rng.random(shape)).to(dtype)


def balance(obs: Tensor) -> Tensor:
    """Keeps the pole up, and the cart on its track, for more than 500 steps."""
    x, x_dot, theta, theta_dot = obs.unbind(-1)
    return (0.05 * x + 0.2 * x_dot + 2 * theta + theta_dot > 0).long()


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
    for S, N in BATCHES:
        for wrong in (-1, -100, None, 100):
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


# ---- CartPole against Gymnasium ---------------------------------------------------------


class GymCartPoles:
    """S x N of Gymnasium's own CartPoles, free-running; only the starts are given to them."""

    def __init__(self, starts: Tensor) -> None:
        self.shape = starts.shape[:2]
        cells = list(np.ndindex(*self.shape))
        self.envs: dict[tuple[int, ...], Any] = {
            c: gym.make("CartPole-v1").unwrapped for c in cells
        }
        for cell, env in self.envs.items():
            self.start(cell, starts[cell])
            assert isinstance(env, CartPoleEnv)

    def start(self, cell: tuple[int, ...], physics: Tensor) -> None:
        env = self.envs[cell]
        env.reset(seed=0)
        env.state = physics.double().numpy().copy()

    def step(self, actions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Successor states [S, N, 4] float64, rewards and terminated flags [S, N]."""
        physics = torch.empty(*self.shape, 4, dtype=torch.float64)
        rewards = torch.empty(self.shape, dtype=torch.float64)
        terminated = torch.empty(self.shape, dtype=torch.bool)
        for cell, env in self.envs.items():
            _, rewards[cell], terminated[cell], _, _ = env.step(int(actions[cell]))
            physics[cell] = torch.tensor(np.array(env.state, dtype=np.float64))
        return physics, rewards, terminated


@pytest.mark.parametrize(("S", "N"), BATCHES)
def test_cartpole_follows_gymnasium_free_running(S: int, N: int) -> None:
    """Random actions, 4,000 steps and more per batch, over hundreds of resets.

    In float64, and no state of ours is ever put back into Gymnasium's within an episode.
    """
    env, rng = CartPole(), np.random.default_rng(S * 100 + N)
    state, _ = env.reset(uniforms(rng, S, N, 4, dtype=torch.float64))
    theirs = GymCartPoles(state.physics)
    episodes = 0
    for _ in range(4_000 // (S * N)):
        actions = torch.from_numpy(rng.integers(0, 2, (S, N)))
        step = env.step(state, actions, uniforms(rng, S, N, 4, dtype=torch.float64))
        physics, rewards, terminated = theirs.step(actions)
        torch.testing.assert_close(step.final_obs, physics, rtol=0, atol=1e-12)
        assert torch.equal(step.reward, rewards)
        assert torch.equal(step.terminated, terminated)
        assert torch.equal(step.obs[~terminated], step.final_obs[~terminated])
        for cell in map(tuple, (step.terminated | step.truncated).nonzero().tolist()):
            theirs.start(cell, step.state.physics[cell])
            episodes += 1
        state = step.state
    assert episodes > 100


def test_cartpole_follows_gymnasium_over_long_episodes() -> None:
    """A balanced pole: 1e-9 over 200 steps, and then no more than its own instability.

    With given actions the upright pole falls as exp(t sqrt(g / moment)), with the moment
    l (4/3 - mp/mt): a rounding error of 1e-16 grows by e every 12.6 steps, and reaches 1 in 500.
    """
    env, rng = CartPole(), np.random.default_rng(0)
    state, obs = env.reset(uniforms(rng, 2, 3, 4, dtype=torch.float64))
    theirs = GymCartPoles(state.physics)
    growth = 0.02 * math.sqrt(9.8 / (0.5 * (4 / 3 - 0.1 / 1.1)))  # per step
    for t in range(350):
        actions = balance(obs)
        step = env.step(state, actions, torch.zeros(2, 3, 4, dtype=torch.float64))
        physics, _, terminated = theirs.step(actions)
        bound = 1e-9 if t < 200 else 1e-15 * math.exp(growth * t)
        torch.testing.assert_close(step.final_obs, physics, rtol=0, atol=bound)
        assert not terminated.any()
        assert not step.terminated.any()
        state, obs = step.state, step.obs


def test_one_cartpole_step_is_gymnasiums_anywhere() -> None:
    """Also in states that no random policy reaches: fast carts, fast poles, up to the limits."""
    env, rng = CartPole(), np.random.default_rng(9)
    scale = torch.tensor([2.4, 4.0, 0.2095, 4.0], dtype=torch.float64)
    physics = (uniforms(rng, 1, 2_000, 4, dtype=torch.float64) * 2 - 1) * scale
    actions = torch.from_numpy(rng.integers(0, 2, (1, 2_000)))
    state = State(physics, torch.zeros(1, 2_000, dtype=torch.int32))
    step = env.step(state, actions, torch.zeros(1, 2_000, 4, dtype=torch.float64))
    theirs = GymCartPoles(physics[:, :1])
    flags = set()
    for n in range(2_000):
        theirs.start((0, 0), physics[0, n])
        successor, _, terminated = theirs.step(actions[:, n : n + 1])
        torch.testing.assert_close(step.final_obs[:, n], successor[:, 0], rtol=0, atol=1e-14)
        assert step.terminated[0, n] == terminated[0, 0]
        flags.add(bool(terminated))
    assert flags == {False, True}


def test_cartpole_in_float32_stays_near_float64() -> None:
    """Within an episode of up to 60 random steps float32 is off by at most 1e-4."""
    env, rng = CartPole(), np.random.default_rng(1)
    noise = uniforms(rng, 4, 16, 4, dtype=torch.float32)
    single, _ = env.reset(noise)
    double, _ = env.reset(noise.double())
    running = torch.ones(4, 16, dtype=torch.bool)
    compared, errors = 0, torch.zeros(4, 16, dtype=torch.float64)
    for _ in range(60):
        actions = torch.from_numpy(rng.integers(0, 2, (4, 16)))
        a, b = env.step(single, actions, noise), env.step(double, actions, noise.double())
        assert a.obs.dtype == a.reward.dtype == torch.float32
        assert b.obs.dtype == b.reward.dtype == torch.float64
        error = (a.final_obs - b.final_obs).abs().amax(-1)
        errors = torch.where(running, torch.maximum(errors, error), errors)
        assert torch.equal(a.terminated[running], b.terminated[running])
        compared += int(running.sum())
        running &= ~b.terminated
        single, double = a.state, b.state
    assert compared > 1000
    assert 0 < errors.max() < 1e-4


def test_cartpole_is_cut_at_exactly_500_steps() -> None:
    """The time limit is Gymnasium's, and every environment counts its own steps."""
    limit = gym.spec("CartPole-v1").max_episode_steps
    env = CartPole()
    assert limit == env.spec.time_limit == 500
    state, obs = env.reset(torch.full((1, 2, 4), 0.5))  # both start upright at rest
    for t in range(1, limit + 1):
        step = env.step(state, balance(obs), torch.full((1, 2, 4), 0.3))
        assert step.truncated.tolist() == [[t == limit] * 2]
        assert not step.terminated.any()
        assert step.state.elapsed.tolist() == [[t % limit] * 2]
        state, obs = step.state, step.obs
    assert torch.equal(obs, torch.full((1, 2, 4), 0.3) * 0.1 - 0.05)
    assert step.final_obs.abs().sum() != step.obs.abs().sum()


def test_step_counters_are_right_in_every_environment_over_many_resets() -> None:
    """Half of the environments balance (truncated), half act at random (terminated)."""
    env, rng = CartPole(), np.random.default_rng(2)
    S, N = 2, 4
    state, obs = env.reset(uniforms(rng, S, N, 4, dtype=torch.float32))
    age = np.zeros((S, N), dtype=int)
    ends = {"terminated": 0, "truncated": 0}
    for _ in range(1_600):
        random = torch.from_numpy(rng.integers(0, 2, (S, N)))
        actions = torch.where(torch.arange(N) < N // 2, balance(obs), random)
        step = env.step(state, actions, uniforms(rng, S, N, 4, dtype=torch.float32))
        age += 1
        assert np.array_equal(step.truncated.numpy(), age == 500)
        done = (step.terminated | step.truncated).numpy()
        ends["terminated"] += int(step.terminated.sum())
        ends["truncated"] += int(step.truncated.sum())
        age[done] = 0
        assert np.array_equal(step.state.elapsed.numpy(), age)
        state, obs = step.state, step.obs
    assert ends["terminated"] > 200
    assert ends["truncated"] >= S * N // 2 * 3


def test_cartpole_limits_are_gymnasiums() -> None:
    """Just inside a limit goes on, just outside ends; velocities have none."""
    env, theirs = CartPole(), gym.make("CartPole-v1").unwrapped
    assert isinstance(theirs, CartPoleEnv)
    x, theta = theirs.x_threshold, theirs.theta_threshold_radians
    inside = torch.tensor(
        [[x, 0, 0, 0], [-x, 0, 0, 0], [0, 0, theta, 0], [0, 0, -theta, 0], [0, 1e9, 0, -1e9]],
        dtype=torch.float64,
    )
    assert env.terminal(inside).tolist() == [False] * 5
    outside = inside[:4] * (1 + 1e-12)
    assert env.terminal(outside).tolist() == [True] * 4


def test_cartpole_starts_are_gymnasiums() -> None:
    """Uniform in (-0.05, 0.05) in every component (Kolmogorov-Smirnov)."""
    noise = SeedStreams(range(4), "train").uniform(500, 4)
    _, obs = CartPole().reset(noise)
    for component in obs.flatten(0, 1).T.double().numpy():
        assert stats.kstest(component, "uniform", args=(-0.05, 0.1)).pvalue > 0.001
    assert gym.make("CartPole-v1").reset(seed=0)[0].max() < 0.05


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


class VectorCounter(Counter):
    """The same with observations [S, N, 2]: the reset must not depend on the state's shape."""

    def initial(self, noise: Tensor) -> Tensor:
        return super().initial(noise).unsqueeze(-1).expand(*noise.shape[:-1], 2)

    def reward(self, physics: Tensor, action: Tensor, next_physics: Tensor) -> Tensor:
        return super().reward(physics, action, next_physics)[..., 0]

    def terminal(self, physics: Tensor) -> Tensor:
        return super().terminal(physics)[..., 0]


@pytest.mark.parametrize("kind", [Counter, VectorCounter])
def test_no_transition_crosses_a_reset(kind: type[Counter]) -> None:
    """final_obs == obs + 1 always, and ends come where they are scripted.

    Gymnasium's next-step autoreset stores a transition from one episode into the next.
    """
    env, rng = kind(time_limit=5), np.random.default_rng(3)
    state, obs = env.reset(uniforms(rng, 3, 4, 1, dtype=torch.float32))
    first = lambda x: x[..., 0] if x.ndim == 3 else x  # noqa: E731
    seen = set()
    for _ in range(200):
        step = env.step(
            state, torch.zeros(3, 4).long(), uniforms(rng, 3, 4, 3, dtype=torch.float32)
        )
        assert torch.equal(step.final_obs, obs + 1)
        assert torch.equal(step.reward, torch.ones(3, 4))
        age, length = first(step.final_obs) % 1000, first(step.final_obs) // 1000
        assert torch.equal(step.terminated, age == length)
        assert torch.equal(step.truncated, age == 5)
        done = step.terminated | step.truncated
        assert torch.equal(first(step.obs) % 1000 == 0, done)  # a start exactly after an end
        assert torch.equal(step.obs[~done], step.final_obs[~done])
        assert torch.equal(step.state.elapsed, (first(step.obs) % 1000).int())
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


@pytest.mark.parametrize("env_id", ["CartPole-v1"])
def test_starts_are_distinct_and_reproducible(env_id: str) -> None:
    """All environments share one seed: the classic fault of vectorised environments."""
    env = envs.make(env_id)

    def starts(seeds: range) -> tuple[Tensor, Tensor]:
        streams = SeedStreams(seeds, "train")
        state, obs = env.reset(streams.uniform(8, env.initial_noise))
        state = State(torch.full_like(state.physics, 9.0), state.elapsed)  # all end at once
        step = env.step(
            state, torch.zeros(len(seeds), 8).long(), streams.uniform(8, env.noise_size)
        )
        assert step.terminated.all()
        return obs, step.obs

    at_reset, after_end = starts(range(5))
    every = torch.cat((at_reset, after_end)).flatten(0, 1)
    assert len(every.unique(dim=0)) == 2 * 5 * 8
    assert every.abs().max() <= 0.05
    for one, again in zip((at_reset, after_end), starts(range(5)), strict=True):
        assert torch.equal(one, again)
    for one, alone in zip((at_reset, after_end), starts(range(3, 4)), strict=True):
        assert torch.equal(one[3:4], alone)


# ---- FrozenLake against Gymnasium -------------------------------------------------------

LAKES = [(size, slippery) for size in (4, 8) for slippery in (True, False)]


def gym_lake(size: int, slippery: bool) -> Any:
    return gym.make("FrozenLake-v1", map_name=f"{size}x{size}", is_slippery=slippery).unwrapped


def gym_tables(env: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """P [A, X, X], R [A, X, X] and the ends [X] of Gymnasium's dictionaries."""
    A, X = env.action_space.n, env.observation_space.n
    P, R, ends = np.zeros((A, X, X)), np.zeros((A, X, X)), np.zeros(X, dtype=bool)
    for x, a in itertools.product(range(X), range(A)):
        for probability, successor, reward, terminated in env.P[x][a]:
            P[a, x, successor] += probability
            R[a, x, successor] = reward
            ends[successor] |= terminated
    return P, R, ends


@pytest.mark.parametrize(("size", "slippery"), LAKES)
def test_frozen_lake_tables_are_gymnasiums(size: int, slippery: bool) -> None:
    ours = FrozenLake(size, slippery)
    theirs = gym_lake(size, slippery)
    P, R, ends = gym_tables(theirs)
    np.testing.assert_allclose(ours.P, P, rtol=0, atol=1e-15)
    np.testing.assert_array_equal(np.where(P > 0, ours.R, 0.0), R)  # R elsewhere never counts
    np.testing.assert_array_equal(ours.ends, ends)
    np.testing.assert_allclose(ours.start, theirs.initial_state_distrib, rtol=0, atol=0)


# Reward threshold (as Gymnasium registers it), score of the random policy (exact, or of 1,000
# episodes and more), reference: the best there is, or the best published.
ANCHORS = {
    "CartPole-v1": (475.0, 22.1, 500.0),  # the cap
    "Acrobot-v1": (-100.0, -498.9, -69.1),  # best published
    "MountainCar-v0": (-110.0, -200.0, -100.8),  # rl-baselines3-zoo's DQN
    "MountainCarContinuous-v0": (90.0, 0.0, 96.7),  # doing nothing; best published
    "Pendulum-v1": (None, -1232.0, -150.0),  # about the best published
    "FrozenLake-v1": (0.70, 0.0139, 0.740),  # best stationary policy within the time limit
    "FrozenLake8x8-v1": (0.85, 0.0019, 0.894),
    "FrozenLakeNotSlippery-v1": (0.70, 0.0, 1.0),
    "FrozenLake8x8NotSlippery-v1": (0.85, 0.0, 1.0),
    "CliffWalking-v1": (None, -2079.1, -13.0),  # dynamic programming, as the next two
    "Taxi-v4": (8.0, -771.1, 7.93),
    "Gridworld-v0": (None, -0.6499, 1.0),
    "RandomWalk-v0": (None, 0.0, 1.0),
}


@pytest.mark.parametrize("env_id", envs.NATIVE)
def test_what_scores_are_normalised_by(env_id: str) -> None:
    """A change of an anchor changes every published number: it is to be made here, too."""
    spec = envs.make(env_id).spec
    scores = (spec.reward_threshold, spec.random_score, spec.reference_score)
    assert scores == ANCHORS.get(env_id), "measure them (benchmarks/scores.py), add to ANCHORS"


@pytest.mark.parametrize("env_id", ["CartPole-v1", "FrozenLake-v1", "FrozenLake8x8-v1", "Taxi-v4"])
def test_limits_and_thresholds_are_the_registered_ones(env_id: str) -> None:
    ours, theirs = envs.make(env_id).spec, gym.spec(env_id)
    assert ours.id == env_id
    assert ours.time_limit == theirs.max_episode_steps
    assert ours.reward_threshold == theirs.reward_threshold
    assert ours.num_actions == gym.make(env_id).action_space.n
    assert ours.random_score < ours.reference_score


@pytest.mark.parametrize(("size", "slippery"), LAKES)
def test_frozen_lake_transitions_follow_its_table(size: int, slippery: bool) -> None:
    """Drawn successors against P (chi-square), for every state and action, from our streams."""
    env, draws = FrozenLake(size, slippery), 320_000 // size**2
    X, A = env.spec.num_states, env.spec.num_actions
    assert X is not None
    physics = torch.arange(X).repeat_interleave(A).repeat_interleave(draws)[None]
    action = torch.arange(A).repeat(X).repeat_interleave(draws)[None]
    noise = SeedStreams([0], "train").uniform(X * A * draws, 1)
    successors = env.transition(physics, action, noise)
    counts = torch.zeros(A, X, X)
    counts.index_put_((action, physics, successors), torch.ones(1), accumulate=True)
    P = env.P.numpy()
    assert not counts[env.P == 0].any()
    statistic = float(((counts.numpy() - draws * P)[P > 0] ** 2 / (draws * P[P > 0])).sum())
    freedom = int((P > 0).sum()) - A * X
    if slippery:
        assert 0.001 < stats.chi2.sf(statistic, freedom) < 0.999
    else:
        assert statistic == freedom == 0


def test_every_uniform_leads_to_a_successor() -> None:
    """Also the smallest and the largest one that a stream can draw."""
    env = FrozenLake(4)
    extremes = torch.tensor([0.0, 1 - 2**-24]).view(2, 1, 1).expand(2, 64, 1)
    physics = torch.arange(16).repeat_interleave(4).expand(2, -1)
    action = torch.arange(4).repeat(16).expand(2, -1)
    successors = env.transition(physics, action, extremes)
    assert (env.P[action, physics, successors] > 0).all()
    assert not torch.equal(successors[0], successors[1])
    assert env.reset(extremes)[1].eq(0).all()


def test_lake_episodes_pay_and_end_as_documented() -> None:
    """The shortest way over ice that is not slippery: 6 steps, 1 at the goal, then a new start."""
    env = envs.make("FrozenLakeNotSlippery-v1")
    state, obs = env.reset(torch.zeros(1, 1, 1))
    rewards, ended = [], []
    for action in (1, 1, 2, 1, 2, 2):
        step = env.step(state, torch.tensor([[action]]), torch.zeros(1, 1, 2))
        rewards.append(step.reward.item())
        ended.append(step.terminated.item())
        state = step.state
    assert rewards == [0, 0, 0, 0, 0, 1]
    assert ended == [False] * 5 + [True]
    assert step.final_obs.item() == 15
    assert step.obs.item() == 0


def backward_induction(
    P: np.ndarray, R: np.ndarray, ends: np.ndarray, policy: np.ndarray, T: int
) -> float:
    """Mean return of T steps from state 0, written out in full; policy [X, A]."""
    A, X, _ = P.shape
    value = np.zeros(X)
    for _ in range(T):
        new = np.zeros(X)
        for x, a, y in itertools.product(range(X), range(A), range(X)):
            if not ends[x]:
                new[x] += policy[x, a] * P[a, x, y] * (R[a, x, y] + value[y])
        value = new
    return float(value[0])


def test_policy_score_is_backward_induction() -> None:
    """Long-hand, on Gymnasium's own tables, for several policies in one batch."""
    env = FrozenLake(4)
    P, R, ends = gym_tables(gym_lake(4, True))
    rng = np.random.default_rng(4)
    policies = rng.dirichlet(np.ones(4) * 0.3, size=(3, 16))
    policies[0] = 0.25
    scores = env.policy_score(torch.from_numpy(policies)).numpy()
    by_hand = [backward_induction(P, R, ends, policy, 100) for policy in policies]
    np.testing.assert_allclose(scores, by_hand, rtol=0, atol=1e-12)
    assert len(set(scores.round(6))) == 3


def test_policy_score_counts_steps_and_not_one_more() -> None:
    """A corridor of 4 states: the goal is 3 steps away, which a limit of 2 steps never sees."""
    for limit, score in ((2, 0.0), (3, 1.0), (10, 1.0)):
        P = torch.zeros(1, 4, 4, dtype=torch.float64)
        P[0, [0, 1, 2, 3], [1, 2, 3, 2]] = 1.0  # nothing follows an end, whatever P says
        R = torch.zeros_like(P)
        R[0, 2, 3] = 1.0
        R[0, 3, 2] = 7.0
        ends = torch.tensor([False, False, False, True])
        spec = EnvSpec("Corridor-v0", num_actions=1, time_limit=limit, num_states=4)
        env = TabularEnv(spec, P, R, ends, torch.tensor([1.0, 0, 0, 0]).double())
        assert env.policy_score(torch.ones(1, 4, 1)).item() == score


def monte_carlo(env: TabularEnv, policy: Tensor, episodes: int) -> tuple[float, float]:
    """Mean return and its standard error, by playing; policy [X, A]."""
    streams = SeedStreams([7], "evaluate")
    state, obs = env.reset(streams.uniform(episodes, 1))
    alive, returns = torch.ones(1, episodes), torch.zeros(1, episodes)
    cumulative = policy.cumsum(-1)
    cumulative[:, -1] = 1.0
    for _ in range(env.spec.time_limit):
        actions = (streams.uniform(episodes, 1) >= cumulative[obs]).sum(-1)
        step = env.step(state, actions, streams.uniform(episodes, env.noise_size))
        returns += alive * step.reward
        alive *= ~(step.terminated | step.truncated)
        state, obs = step.state, step.obs
        if not alive.any():
            break
    assert not alive.any()
    return returns.mean().item(), returns.std().item() / math.sqrt(episodes)


@pytest.mark.parametrize("env_id", ["FrozenLake-v1", "FrozenLake8x8-v1"])
def test_random_score_is_that_of_the_uniform_policy(env_id: str) -> None:
    """The anchor, the exact score and 10,000 played episodes agree."""
    env = envs.make(env_id)
    assert isinstance(env, TabularEnv)
    uniform = torch.full((env.spec.num_states, 4), 0.25)
    score = env.policy_score(uniform[None]).item()
    mean, error = monte_carlo(env, uniform, 10_000)
    assert abs(score - mean) < 4 * error
    assert score == pytest.approx(env.spec.random_score, abs=0.0015)


def greedy_of_value_iteration(env: TabularEnv, gamma: float) -> Tensor:
    """One-hot [1, X, A], greedy for the fixed point of the Bellman equation; ties to the first."""
    P, R, ends = env.P.numpy(), env.R.numpy(), env.ends.numpy()
    value = np.zeros(len(ends))
    for _ in range(5_000):
        q = (P * (R + gamma * np.where(ends, 0.0, value))).sum(-1)  # [A, X]
        value = np.where(ends, 0.0, q.max(0))
    return torch.nn.functional.one_hot(torch.from_numpy(q.round(12).argmax(0)), 4)[None]


@pytest.mark.parametrize(("size", "score"), [(4, 0.7402), (8, 0.8630)])
def test_value_iteration_scores_well(size: int, score: float) -> None:
    """The discounted optimum is a good policy under the time limit, though not quite the best."""
    env = FrozenLake(size)
    policy = greedy_of_value_iteration(env, 0.99)
    assert env.policy_score(policy).item() == pytest.approx(score, abs=5e-5)
    mean, error = monte_carlo(env, policy[0].float(), 3_000)
    assert abs(score - mean) < 4 * error


@pytest.mark.parametrize(("size", "gamma"), [(4, 0.9), (8, 0.99)])
def test_reference_score_is_the_best_stationary_policys(size: int, gamma: float) -> None:
    """Changing one state's action at a time climbs to it (and, checked once, from any start)."""
    env, X = FrozenLake(size), size * size
    changes = torch.nn.functional.one_hot(torch.arange(4 * X) % 4, 4)
    policy, best = greedy_of_value_iteration(env, gamma), 0.0
    while True:
        neighbours = policy.repeat(4 * X, 1, 1)  # every state, every action
        neighbours[torch.arange(4 * X), torch.arange(4 * X) // 4] = changes
        scores = env.policy_score(neighbours)
        if scores.max().item() <= best + 1e-9:
            break
        best, policy = scores.max().item(), neighbours[scores.argmax()][None]
    assert env.spec.reference_score == pytest.approx(best, abs=6e-4)


def time_dependent_optimum(env: TabularEnv) -> float:
    """No policy, stationary or not, does better under the time limit."""
    P, R, ends = env.P.numpy(), env.R.numpy(), env.ends.numpy()
    value = np.zeros(len(ends))
    for _ in range(env.spec.time_limit):
        value = np.where(ends, 0.0, (P * (R + value)).sum(-1).max(0))
    return float(value[0])


@pytest.mark.parametrize(("size", "optimum"), [(4, 0.7442), (8, 0.9132)])
def test_no_policy_beats_the_time_dependent_optimum(size: int, optimum: float) -> None:
    env = FrozenLake(size)
    best = time_dependent_optimum(env)
    assert best == pytest.approx(optimum, abs=5e-5)
    assert env.spec.reference_score < best
    rng = np.random.default_rng(5)
    policies = torch.from_numpy(rng.dirichlet(np.ones(4), size=(20, size * size)))
    assert env.policy_score(policies).max() < best


# ---- Discretize -------------------------------------------------------------------------


def bins_of(obs: Tensor) -> Tensor:
    """Index of one observation, by hand."""
    index = 0
    for x, (low, high, n) in zip(obs.tolist(), CartPole.bins, strict=True):
        inner = [low + (high - low) * k / n for k in range(1, n)]
        index = index * n + sum(x > edge for edge in inner)
    return torch.tensor(index)


def test_discretize_bins_and_numbers_as_documented() -> None:
    """Mixed radix over equal bins: against a loop, over the whole range and beyond it."""
    env = envs.make("CartPole-v1", observations="index")
    assert isinstance(env, Discretize)
    assert env.spec.num_states == 3 * 3 * 8 * 8
    assert env.spec.obs_size is None
    rng = np.random.default_rng(6)
    obs = torch.from_numpy(rng.normal(size=(500, 4)) * [1.5, 1.5, 0.12, 1.5]).float()
    index = env.observation(obs)
    assert index.dtype == torch.int64
    assert index.tolist() == [int(bins_of(row)) for row in obs]
    assert len(index.unique()) > 200


def test_discretize_gives_every_bin_its_own_index() -> None:
    """The centres of all bins are a permutation of 0..X-1, in order: none is shared or unused."""
    env = envs.make("CartPole-v1", observations="index")
    axes = [
        [low + (high - low) * (k + 0.5) / n for k in range(n)] for low, high, n in CartPole.bins
    ]
    centres = torch.tensor(list(itertools.product(*axes)))
    assert env.observation(centres).tolist() == list(range(576))


def test_outermost_bins_reach_to_infinity() -> None:
    env = envs.make("CartPole-v1", observations="index")
    high = torch.tensor([1e30, math.inf, 1e30, math.inf])
    assert env.observation(torch.stack((-high, high))).tolist() == [0, 575]
    just_outside = torch.tensor([[-2.41, -2.01, -0.21, -2.51], [2.41, 2.01, 0.21, 2.51]])
    assert env.observation(just_outside).tolist() == [0, 575]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_discretize_changes_what_is_seen_and_nothing_else(dtype: torch.dtype) -> None:
    inner, env = CartPole(), envs.make("CartPole-v1", observations="index")
    rng = np.random.default_rng(7)
    noise = uniforms(rng, 2, 3, 4, dtype=dtype)
    (a, _), (b, _) = inner.reset(noise), env.reset(noise)
    ended = 0
    for _ in range(60):
        actions = torch.from_numpy(rng.integers(0, 2, (2, 3)))
        noise = uniforms(rng, 2, 3, 4, dtype=dtype)
        one, two = inner.step(a, actions, noise), env.step(b, actions, noise)
        assert torch.equal(one.state.physics, two.state.physics)
        assert torch.equal(one.reward, two.reward)
        assert torch.equal(one.terminated, two.terminated)
        assert torch.equal(env.observation(one.obs), two.obs)
        assert torch.equal(env.observation(one.final_obs), two.final_obs)
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


@pytest.mark.usefixtures("computed")
def test_episode_tracker_by_hand() -> None:
    """Two rollouts of 3 steps, one environment, episodes of 2, 3 and 1 steps."""
    tracker = EpisodeTracker(1, 1)
    done = torch.tensor([[False], [True], [False]])[None]
    found = tracker.update(torch.tensor([[1.0], [2.0], [3.0]])[None], done)
    assert (found["train_return"].item(), found["train_length"].item()) == (3.0, 2.0)
    done = torch.tensor([[False], [True], [True]])[None]
    found = tracker.update(torch.tensor([[10.0], [20.0], [5.0]])[None], done)
    assert found["train_return"].item() == (33.0 + 5.0) / 2
    assert found["train_length"].item() == 2.0
    found = tracker.update(torch.ones(1, 3, 1), torch.zeros(1, 3, 1, dtype=torch.bool))
    assert all(mean.isnan().all() for mean in found.values())


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
    with pytest.raises(UsageError, match=r"FrozenLake-v1: .* needs vector .* Acrobot-v1"):
        envs.make("FrozenLake-v1", observations="vector")
    assert envs.make("CartPole-v1", observations="vector").spec.obs_size == 4
    with pytest.raises(UsageError, match=r"Pendulum-v1: .* needs discrete actions, as Acrobot-v1"):
        envs.make("Pendulum-v1", actions="discrete")


def test_make_refuses_an_environment_without_bins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CartPole, "bins", None)
    with pytest.raises(UsageError, match=r"CartPole-v1: a tabular algorithm needs one of Cliff"):
        envs.make("CartPole-v1", observations="index")
