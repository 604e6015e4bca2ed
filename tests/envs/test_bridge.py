"""The Gymnasium bridge, against Gymnasium itself and small worlds that can be worked out."""

from __future__ import annotations

import dataclasses
import gc
import importlib
import random
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor

from manyseeds import envs
from manyseeds.digest import origin_of
from manyseeds.envs.gymnasium_bridge import TIME_LIMIT, GymnasiumBridge, users_code
from manyseeds.errors import UsageError
from manyseeds.seeds import SeedStreams

INF = np.inf
VECTOR = spaces.Box(-INF, INF, (2,), dtype=np.float32)


class World(gym.Env[Any, Any]):
    """Whose spaces are arguments; every step returns 0 and pays the action, or its first part.

    Like many environments it returns one buffer, which it goes on changing.
    """

    made = 0

    def __init__(self, observation_space: Any = VECTOR, action_space: Any = None) -> None:
        type(self).made += 1
        self.observation_space = observation_space
        self.action_space = spaces.Discrete(2) if action_space is None else action_space

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return self.observe(), {}

    def step(self, action: Any) -> Any:
        assert self.action_space.contains(action)
        reward = np.ravel(action)[0]
        return self.observe(), reward, False, False, {}

    def observe(self) -> Any:
        return np.zeros(self.observation_space.shape)


class Scripted(World):
    """Counts up from 1000 k, k drawn at the start; the ends are planted in k.

    The task ends after 1 + k % 7 steps: terminated (k % 3 = 0), truncated (1), or both (2).
    """

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.k = int(self.np_random.integers(1000))
        self.buffer = np.full(2, 1000.0 * self.k)
        return self.buffer, {}

    def step(self, action: Any) -> Any:
        self.buffer += 1
        ends = self.buffer[0] % 1000 == 1 + self.k % 7
        terminated, truncated = ends and self.k % 3 != 1, ends and self.k % 3 != 0
        return self.buffer, 0.1 * self.buffer[0], terminated, truncated, {}


class Leaky(World):
    """Observes how many episodes the object has begun, and a number that tells seeds apart."""

    begun = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.begun += 1
        return super().reset(seed=seed)

    def step(self, action: Any) -> Any:
        return self.observe(), 0.0, bool(self.np_random.random() < 0.3), False, {}

    def observe(self) -> Any:
        return np.array([self.begun, self.np_random.random()])


def register(name: str, kind: Any = World, limit: int | None = 5, **kwargs: Any) -> str:
    """The id of an environment that exists during this test."""
    gym.register(f"bridge/{name}-v0", kind, max_episode_steps=limit, kwargs=kwargs)
    return f"bridge/{name}-v0"


@pytest.fixture(autouse=True)
def _registry() -> Iterator[None]:
    before = dict(gym.registry)
    World.made = Scripted.made = Leaky.made = 0
    torch.manual_seed(0)
    yield
    gym.registry.clear()
    gym.registry.update(before)


def seed_of(noise: Tensor) -> int:
    """48 bits from two uniforms, 24 from each, in whole numbers."""
    high, low = (int(float(u) * 2**24) for u in noise)
    assert high / 2**24 == float(noise[0])
    assert low / 2**24 == float(noise[1])
    return high * 2**24 + low


def draw_actions(spec: envs.EnvSpec, noise: Tensor) -> Tensor:
    """Random actions of an environment, for noise [..., D] or [..., 1]."""
    if not spec.continuous:
        return (noise[..., 0] * spec.num_actions).long()
    return (noise - 0.5) * 6  # also outside Pendulum's box


def play(env: envs.Env, seeds: Any, T: int, N: int = 3, state: Any = None) -> tuple[Any, Any]:
    """T random steps; the last state, and all that the seeds saw: first obs, and [S, T, N, ...]."""
    streams = SeedStreams(list(seeds), "train")
    state, obs = env.reset(streams.uniform(N, env.initial_noise))
    noise = streams.uniform(T, N, env.noise_size)
    actions = draw_actions(env.spec, streams.uniform(T, N, max(1, len(env.spec.action_low))))
    steps = []
    for t in range(T):
        step = env.step(state, actions[:, t], noise[:, t])
        state = step.state
        steps.append((step.state.elapsed, *step[1:]))
    return state, [obs, *(torch.stack(field, 1) for field in zip(*steps, strict=True))]


def assert_equal(one: list[Tensor], other: list[Tensor]) -> None:
    assert len(one) == len(other) == 7
    for a, b in zip(one, other, strict=True):
        assert torch.equal(a, b)


# ---- Episodes ---------------------------------------------------------------------------


def test_no_transition_crosses_a_reset() -> None:
    """final_obs == obs + 1 always; the flags are as planted, or the limit's; rewards are float32.

    Next-step autoreset stores a transition from one episode into the next.
    """
    env = GymnasiumBridge(register("Scripted", Scripted, limit=5))
    assert env.spec.time_limit == 5
    streams = SeedStreams(range(3), "train")
    state, obs = env.reset(streams.uniform(4, 2))
    seen = set()
    for _ in range(150):
        step = env.step(state, torch.zeros(3, 4).long(), streams.uniform(4, 2))
        assert torch.equal(step.final_obs, obs + 1)
        k, age = step.final_obs[..., 0] // 1000, step.final_obs[..., 0] % 1000
        ends = age == 1 + k % 7
        assert torch.equal(step.terminated, ends & (k % 3 != 1))
        assert torch.equal(step.truncated, (ends & (k % 3 != 0)) | (age == 5))
        torch.testing.assert_close(step.reward, 0.1 * step.final_obs[..., 0], rtol=1e-6, atol=0)
        done = step.terminated | step.truncated
        assert torch.equal(step.obs[..., 0] % 1000 == 0, done)  # a start exactly after an end
        assert torch.equal(step.obs[~done], step.final_obs[~done])
        assert torch.equal(step.state.elapsed, (step.obs[..., 0] % 1000).int())
        flags = torch.stack((step.terminated, step.truncated, age == 5), dim=-1)
        seen |= set(map(tuple, flags.flatten(0, 1).tolist()))
        state, obs = step.state, step.obs
    # Every kind of end, by itself and at the limit; at the limit none is without truncation.
    assert {(True, False, False), (False, True, False), (True, True, False)} < seen
    assert {(True, True, True), (False, True, True)} < seen


@pytest.mark.parametrize("env_id", ["CartPole-v1", "Pendulum-v1", "FrozenLake-v1"])
def test_episodes_are_gymnasiums(env_id: str) -> None:
    """Against objects of gymnasium.make, one by one, with the seeds that the noise stands for.

    Random actions; episodes that follow one another are compared as well.
    """
    S, N, T = 2, 3, 250
    env = GymnasiumBridge(env_id)
    _, (first, elapsed, obs, reward, terminated, truncated, final_obs) = play(env, range(S), T, N)
    streams = SeedStreams(range(S), "train")
    starts, noise = streams.uniform(N, 2), streams.uniform(T, N, 2)
    actions = draw_actions(env.spec, streams.uniform(T, N, max(1, len(env.spec.action_low))))
    ends = {"terminated": 0, "truncated": 0}
    for s, n in np.ndindex(S, N):
        theirs = gym.make(env_id)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the checker's, of actions outside the box
            start, _ = theirs.reset(seed=seed_of(starts[s, n]))
            np.testing.assert_array_equal(first[s, n], start)
            age = 0
            for t in range(T):
                action = actions[s, t, n].numpy()
                action = np.clip(action, -2, 2) if env.spec.continuous else int(action)
                successor, r, term, trunc, _ = theirs.step(action)
                np.testing.assert_array_equal(final_obs[s, t, n], successor)
                assert reward[s, t, n] == np.float32(r)
                assert (terminated[s, t, n], truncated[s, t, n]) == (term, trunc)
                age += 1
                if term or trunc:
                    successor, _ = theirs.reset(seed=seed_of(noise[s, t, n]))
                    age = 0
                np.testing.assert_array_equal(obs[s, t, n], successor)
                assert elapsed[s, t, n] == age
                ends["terminated"] += bool(term)
                ends["truncated"] += bool(trunc)
    often = "truncated" if env_id == "Pendulum-v1" else "terminated"
    assert ends[often] >= S * N


def test_an_environment_without_a_limit_gets_the_stated_one() -> None:
    assert gym.spec("CliffWalking-v1").max_episode_steps is None
    assert GymnasiumBridge("CliffWalking-v1").spec.time_limit == TIME_LIMIT == 1000
    env = GymnasiumBridge(register("Endless", limit=None))
    assert env.spec.time_limit == TIME_LIMIT
    state, _ = env.reset(torch.rand(1, 1, 2))
    for t in range(1, 2 * TIME_LIMIT + 1):
        step = env.step(state, torch.zeros(1, 1).long(), torch.rand(1, 1, 2))
        assert step.truncated.item() == (t % TIME_LIMIT == 0)
        assert not step.terminated.item()
        assert step.state.elapsed.item() == t % TIME_LIMIT
        state = step.state


# ---- Starts -----------------------------------------------------------------------------


def test_no_two_environments_share_a_start() -> None:
    """At the reset and at every autoreset: the classic fault of vectorised environments."""
    env = GymnasiumBridge("CartPole-v1")
    streams = SeedStreams(range(10), "train")
    state, obs = env.reset(streams.uniform(32, 2))
    starts = [obs.flatten(0, 1)]
    for _ in range(30):
        step = env.step(state, torch.ones(10, 32).long(), streams.uniform(32, 2))
        starts.append(step.obs[step.terminated])
        state = step.state
    every = torch.cat(starts)
    assert len(every) > 800
    assert len(every.unique(dim=0)) == len(every)


def test_every_bit_of_the_noise_counts() -> None:
    """24 bits of each uniform, and nothing else, decide the start."""
    env = GymnasiumBridge("CartPole-v1")

    def start(high: float, low: float, dtype: torch.dtype = torch.float32) -> tuple[float, ...]:
        return tuple(env.reset(torch.tensor([[[high, low]]], dtype=dtype))[1].flatten().tolist())

    bit = 2.0**-24
    pairs = [(0, 0), (0, bit), (bit, 0), (0, 1 - bit), (1 - bit, 0), (1 - bit, 1 - bit)]
    pairs += [(0.5, 0.25), (0.25, 0.5)]
    assert len({start(*pair) for pair in pairs}) == len(pairs)
    assert start(1 - bit, 0.25) == start(1 - bit, 0.25) == start(1 - bit / 2, 0.25, torch.float64)


# ---- Several groups, and the objects behind them ----------------------------------------


def reset_and_play(env: envs.Env, S: int, E: int, T: int = 3) -> None:
    """As an evaluation does: under inference_mode, with starts expanded over seeds."""
    with torch.inference_mode():
        state, obs = env.reset(torch.rand(1, E, 2).expand(S, -1, -1))
        assert (obs == obs[:1]).all()
        for _ in range(T):
            actions = torch.randint(0, 2, (S, E))
            state = env.step(state, actions, torch.rand(1, E, 2).expand(S, -1, -1)).state


@pytest.mark.parametrize("inference", [False, True])
def test_an_evaluation_does_not_disturb_the_training(inference: bool) -> None:
    """Bit for bit, with evaluations of other and of the same shape in between."""
    undisturbed = GymnasiumBridge("CartPole-v1")
    disturbed = GymnasiumBridge("CartPole-v1")
    streams = SeedStreams(range(2), "train")
    noise, draws = streams.uniform(3, 2), streams.uniform(60, 3, 3)
    with torch.inference_mode(inference):
        (a, one), (b, two) = undisturbed.reset(noise), disturbed.reset(noise)
    assert torch.equal(one, two)
    for t in range(60):
        actions = (draws[:, t, :, 0] < 0.5).long()
        with torch.inference_mode(inference):
            one = undisturbed.step(a, actions, draws[:, t, :, 1:])
            two = disturbed.step(b, actions, draws[:, t, :, 1:])
        for x, y in zip((one.state.elapsed, *one[1:]), (two.state.elapsed, *two[1:]), strict=True):
            assert torch.equal(x, y)
        a, b = one.state, two.state
        if t % 10 == 0:
            reset_and_play(disturbed, 2, 5)
            reset_and_play(disturbed, 2, 3)


def test_objects_are_reused_by_later_resets() -> None:
    """Twenty evaluations need the objects of one; what is in use is never given away."""
    env = GymnasiumBridge(register("Scripted", Scripted))
    state, obs = env.reset(torch.rand(2, 3, 2))
    with torch.inference_mode():
        step = env.step(state, torch.zeros(2, 3).long(), torch.rand(2, 3, 2))
    made = Scripted.made
    assert made == 3 + 6  # and those that were asked for their spaces, and tried out
    for _ in range(20):
        reset_and_play(env, 2, 5)
    assert Scripted.made == made + 10
    for _ in range(3):
        reset_and_play(env, 2, 8)  # the last evaluation has other episodes
        reset_and_play(env, 2, 3)  # the shape of the training, whose objects are in use
    assert Scripted.made == made + 10 + 16 + 6
    after = env.step(step.state, torch.zeros(2, 3).long(), torch.rand(2, 3, 2))
    assert torch.equal(after.final_obs, step.obs + 1)
    # A training that begins anew while its old state is still there: one more group, once.
    state, step = after.state, after
    for _ in range(5):
        state, obs = env.reset(torch.rand(2, 3, 2))
        step = env.step(state, torch.zeros(2, 3).long(), torch.rand(2, 3, 2))
    assert Scripted.made <= made + 10 + 16 + 6 + 6


def view(physics: Tensor) -> Tensor:
    return physics[:, :]


@pytest.mark.parametrize("inference", [False, True])
@pytest.mark.parametrize("held_as", [view, Tensor.detach, lambda x: x.view(3, 2)])
def test_objects_stay_while_any_view_of_the_state_is_held(held_as: Any, inference: bool) -> None:
    env = GymnasiumBridge(register("Scripted", Scripted))
    with torch.inference_mode(inference):
        state, obs = env.reset(torch.rand(2, 3, 2))
        physics, elapsed = held_as(state.physics), state.elapsed
        step = env.step(envs.State(physics.view(2, 3), elapsed), obs[..., 0].long() * 0, obs * 0)
        elapsed, expected = step.state.elapsed, step.obs + 1
        del state, step
    gc.collect()
    reset_and_play(env, 2, 3)
    assert Scripted.made == 3 + 6 + 6
    step = env.step(
        envs.State(physics.view(2, 3), elapsed), torch.zeros(2, 3).long(), torch.rand(2, 3, 2)
    )
    assert torch.equal(step.final_obs, expected)
    del step, physics
    gc.collect()
    reset_and_play(env, 2, 3)
    reset_and_play(env, 2, 3)
    assert Scripted.made == 3 + 6 + 6


def test_a_state_is_stepped_once() -> None:
    """Its objects have moved on: an error, not another transition than the one asked for."""
    env = GymnasiumBridge(register("Endless"))
    old, _ = env.reset(torch.rand(1, 3, 2))
    actions, noise = torch.zeros(1, 3).long(), torch.rand(1, 3, 2)
    new = env.step(old, actions, noise).state
    with pytest.raises(RuntimeError, match="stepped once"):
        env.step(old, actions, noise)
    expanded = envs.State(new.physics[:, :1].expand(1, 3), new.elapsed)
    with pytest.raises(RuntimeError, match="each of its environments once"):
        env.step(expanded, actions, noise)


def test_a_copy_does_not_keep_the_objects() -> None:
    """They may serve another group by then: an error, not a step in somebody else's episode."""
    env = GymnasiumBridge(register("Endless"))
    state, _ = env.reset(torch.rand(1, 3, 2))
    copy = envs.State(state.physics.clone(), state.elapsed)
    del state
    other, _ = env.reset(torch.rand(1, 3, 2))
    with pytest.raises(RuntimeError, match="is alive"):
        env.step(copy, torch.zeros(1, 3).long(), torch.rand(1, 3, 2))
    env.step(other, torch.zeros(1, 3).long(), torch.rand(1, 3, 2))


def test_what_an_object_keeps_over_resets_stays_with_its_seed() -> None:
    """Some environments carry something from episode to episode (BipedalWalker its world).

    Reuse must not make this depend on the batch: an object serves one seed, always.
    """
    env_id = register("Leaky", Leaky, limit=50)

    def episodes(seeds: list[int]) -> list[list[Tensor]]:
        env = GymnasiumBridge(env_id)
        training = env.reset(SeedStreams(seeds, "train").uniform(4, 2))
        played = [play(env, seeds, 30, N)[1] for N in (4, 6, 4, 6, 9, 4)]
        assert training[0].physics.shape == (len(seeds), 4)
        return played

    alone, batch = episodes([7]), episodes([7, 3, 11])
    for one, three in zip(alone, batch, strict=True):
        assert_equal(one, [x[:1] for x in three])
    begun = alone[-1][2][..., 0]
    assert begun.max() > alone[0][2][..., 0].max() + 10  # it does leak


# ---- Actions ----------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_actions_are_clipped_to_the_box(dtype: Any) -> None:
    """Component by component; what is no number becomes the middle, or what is closest to 0."""
    low = np.array([-1, 0, -INF, 3, -INF, -3e38], dtype)
    high = np.array([1, 4, INF, INF, -5, 3e38], dtype)

    class Echo(World):
        def step(self, action: Any) -> Any:
            assert action.dtype == dtype
            assert self.action_space.contains(action)
            return action, 0.0, False, False, {}

    boxes = {"observation_space": spaces.Box(-INF, INF, (6,)), "action_space": None}
    boxes["action_space"] = spaces.Box(low, high, dtype=dtype)
    env = GymnasiumBridge(register("Echo", Echo, limit=100, **boxes))
    assert env.spec.action_low == (-1, 0, -INF, 3, -INF, pytest.approx(-3e38))
    assert env.spec.action_high == (1, 4, INF, INF, -5, pytest.approx(3e38))
    assert env.spec.num_actions == 0
    assert env.spec.continuous
    nan = float("nan")
    cases = {
        (0.5, 3.5, 7e8, 4, -6, 2): (0.5, 3.5, 7e8, 4, -6, 2),
        (-1.5, -0.1, -9, 2.5, -4.5, 0): (-1, 0, -9, 3, -5, 0),
        (1.5, 4.1, 9, 1e9, -1e9, 0): (1, 4, 9, 1e9, -1e9, 0),
        (nan,) * 6: (0, 2, 0, 3, -5, 0),
        (INF,) * 6: (1, 4, 0, 3, -5, 3e38),
        (-INF,) * 6: (-1, 0, 0, 3, -5, -3e38),
        (0.25, nan, 1, nan, nan, 5): (0.25, 2, 1, 3, -5, 5),
    }
    state, _ = env.reset(torch.rand(1, len(cases), 2))
    step = env.step(state, torch.tensor([list(cases)]), torch.rand(1, len(cases), 2))
    expected = torch.tensor([list(cases.values())], dtype=torch.float32)
    torch.testing.assert_close(step.final_obs, expected, rtol=1e-6, atol=0)


def test_discrete_spaces_count_from_0() -> None:
    """Whatever their `start`; Gymnasium gets its own numbers, the policy ours."""

    class Offset(World):
        def observe(self) -> Any:
            return np.int64(self.np_random.integers(-3, 1))

    kwargs = {
        "observation_space": spaces.Discrete(4, start=-3),
        "action_space": spaces.Discrete(3, start=10),
    }
    env = GymnasiumBridge(register("Offset", Offset, **kwargs))
    assert (env.spec.num_states, env.spec.num_actions, env.spec.obs_size) == (4, 3, None)
    state, obs = env.reset(torch.rand(2, 30, 2))
    assert obs.shape == (2, 30)
    assert obs.dtype == torch.int64
    assert obs.unique().tolist() == [0, 1, 2, 3]
    actions = torch.randint(0, 3, (2, 30))
    seen = []
    for _ in range(6):  # with a reset after 5
        step = env.step(state, actions, torch.rand(2, 30, 2))
        assert torch.equal(step.reward, actions + 10.0)
        seen.append(torch.stack((step.obs, step.final_obs)))
        state = step.state
    assert torch.stack(seen).unique().tolist() == [0, 1, 2, 3]
    assert torch.stack(seen).dtype == torch.int64


# ---- Types and devices ------------------------------------------------------------------

no_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA")


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=no_cuda)])
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.uint8, np.int64])
def test_types_shapes_and_devices(dtype: Any, device: str) -> None:
    """Vectors are float32, whatever Gymnasium has; handles stay on the CPU."""

    class Typed(World):
        def observe(self) -> Any:
            return np.array([1, 2, 3], dtype)

    env = GymnasiumBridge(register("Typed", Typed, observation_space=spaces.Box(0, 9, (3,), dtype)))
    assert (env.spec.obs_size, env.spec.num_states) == (3, None)
    state, obs = env.reset(torch.rand(2, 4, 2, device=device))
    assert obs.device.type == device
    step = env.step(
        state, torch.ones(2, 4, device=device).long(), torch.rand(2, 4, 2, device=device)
    )
    for values in (obs, step.obs, step.final_obs):
        assert values.dtype == torch.float32
        assert values.device.type == device
        assert values.tolist() == [[[1, 2, 3]] * 4] * 2
    flags = (step.terminated, torch.bool), (step.truncated, torch.bool)
    ages = (step.state.elapsed, torch.int32), (state.elapsed, torch.int32)
    for values, expected in ((step.reward, torch.float32), *flags, *ages):
        assert (values.shape, values.dtype, values.device.type) == ((2, 4), expected, device)
    assert step.state.physics.dtype == torch.int64
    assert step.state.physics.unique().numel() == 8
    assert not env.native
    assert env.noise_size == 2


# ---- What the bridge says of an environment ---------------------------------------------

REGISTERED = [env_id for env_id in envs.NATIVE if env_id in gym.registry]


@pytest.mark.parametrize("env_id", REGISTERED)
def test_specs_are_those_of_the_native_environments(env_id: str) -> None:
    """Read from Gymnasium; only the scores are ours."""
    native = envs.NATIVE[env_id]().spec
    assert envs.make(env_id, backend="gymnasium").spec == native
    without = dataclasses.replace(native, random_score=None, reference_score=None)
    assert GymnasiumBridge(env_id, native.time_limit).spec == without
    limit = gym.spec(env_id).max_episode_steps  # CliffWalking has none
    assert GymnasiumBridge(env_id).spec.time_limit == (limit or TIME_LIMIT)


def test_nothing_of_gymnasiums_warnings_reaches_the_terminal() -> None:
    """Of an old version, of bounds that lose precision, and of its checker."""

    class Careless(World):
        def __init__(self) -> None:
            super().__init__(spaces.Box(np.array([1 / 3] * 2), np.array([2 / 3] * 2)))

    env_id = register("Careless", Careless)
    with pytest.warns(UserWarning, match="precision"):
        gym.make(env_id)
    with pytest.warns(DeprecationWarning, match="out of date"):
        gym.make("CartPole-v0")
    for name in (env_id, "CartPole-v0"):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            env = GymnasiumBridge(name)
            play(env, [0, 1], 10)


def test_huge_rewards_are_infinite_without_a_warning() -> None:
    class Huge(World):
        def step(self, action: Any) -> Any:
            return self.observe(), np.float64(1e300), False, False, {}

    env = GymnasiumBridge(register("Huge", Huge))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        state, _ = env.reset(torch.rand(2, 2, 2))
        step = env.step(state, torch.zeros(2, 2).long(), torch.rand(2, 2, 2))
    assert step.reward.tolist() == [[INF, INF]] * 2
    text = "a reward is inf at step 1 of an episode"
    assert (env.faults(), env.faults()) == ({0: text, 1: text}, {})


def test_luck_from_a_global_generator_is_of_the_start_alone() -> None:
    """Whatever was drawn before, by the same objects or by others; and nobody is disturbed."""

    class Global(World):
        def step(self, action: Any) -> Any:
            return self.observe(), np.random.random(), False, False, {}  # noqa: NPY002

    env = GymnasiumBridge(register("Global", Global))
    first = play(env, [0, 1], 12)[1]
    random.seed(7)
    np.random.seed(7)  # noqa: NPY002
    again = play(env, [0, 1], 12)[1]
    assert_equal(first, again)
    assert len(first[3].unique()) == first[3].numel()
    drawn = random.random(), np.random.random()  # noqa: NPY002
    assert drawn == (random.Random(7).random(), np.random.RandomState(7).random())


# ---- Errors -----------------------------------------------------------------------------


def boom(*_: Any, **__: Any) -> Any:
    raise KeyError("boom\nand more")


def silent(*_: Any, **__: Any) -> Any:
    raise ValueError("")


STEP = "its step failed: "
NOTHING = "TypeError: cannot unpack non-iterable NoneType object"
UNPACK = "; it must return (observation, reward, terminated, truncated, info)"
SHAPE = "ValueError: an observation of shape (3,), its space has (2,)"


@pytest.mark.parametrize(
    ("method", "returns", "said"),
    [
        ("reset", boom, "its reset failed: KeyError: 'boom\\nand more'"),
        ("reset", (np.zeros(3), {}), f"its reset failed: {SHAPE}"),
        ("reset", (None, {}), "its reset failed: ValueError: an observation of shape ()"),
        ("reset", silent, "its reset failed: ValueError"),
        ("step", boom, f"{STEP}KeyError: 'boom\\nand more'"),
        ("step", None, f"{STEP}{NOTHING}{UNPACK}"),
        ("step", (np.zeros(3), 0.0, False, False, {}), f"{STEP}{SHAPE}"),
        ("step", (np.zeros(2), None, False, False, {}), f"{STEP}ValueError: a reward of type None"),
        ("step", (["a", "b"], 0.0, False, False, {}), f"{STEP}ValueError: could not convert"),
    ],
)
def test_what_an_environment_does_wrong_is_one_line(method: str, returns: Any, said: str) -> None:
    does = returns if callable(returns) else lambda *_, **__: returns
    env_id = register("Wrong", type("Wrong", (World,), {method: does}))
    env = GymnasiumBridge(env_id)
    with pytest.raises(UsageError) as error:
        play(env, [0], 1)
    assert str(error.value).startswith(f"--env {env_id}: {said}")
    assert "\n" not in str(error.value)
    assert not str(error.value).endswith(": ")
    if "unpack" in said:
        assert "; it must return (observation, " in str(error.value)


def test_a_state_index_outside_its_space_is_one_line() -> None:
    class Outside(World):
        def observe(self) -> Any:
            return 4

    env = GymnasiumBridge(register("Outside", Outside, observation_space=spaces.Discrete(4)))
    with pytest.raises(UsageError, match="ValueError: observation 4 is not in its space"):
        env.reset(torch.rand(1, 2, 2))


def test_an_environment_without_spaces_is_one_line() -> None:
    class Bare(gym.Env[Any, Any]):
        pass

    assert "its observations are a NoneType; supported are" in refusal(register("Bare", Bare))


def refusal(env_id: str) -> str:
    with pytest.raises(UsageError) as error:
        envs.make(env_id, backend="gymnasium")
    message = str(error.value)
    assert "\n" not in message
    assert "\x1b" not in message
    return message


BOX = spaces.Box(
    -np.ones(50, np.float32), np.arange(50, dtype=np.float32)
)  # prints on several lines
IMAGE = spaces.Box(0, 255, (84, 84, 3), np.uint8)
BOTH = [
    (spaces.Text(5), "a Text"),
    (spaces.Box(-1, 1, (0,)), "a float32 Box of shape (0,)"),
]
REFUSED = [
    *((what, *row) for what in ("observation", "action") for row in BOTH),
    ("observation", IMAGE, "a uint8 Box of shape (84, 84, 3)"),
    ("observation", spaces.Dict({"a": BOX, "b": IMAGE}), "a Dict"),
    ("observation", spaces.Sequence(BOX), "a Sequence"),
    ("action", spaces.Dict({"a": BOX}), "a Dict"),
    ("action", spaces.MultiDiscrete([2, 3]), "a MultiDiscrete"),
    ("action", spaces.Box(0, 10, (2,), np.int64), "a int64 Box of shape (2,)"),
]


@pytest.mark.parametrize(("what", "space", "name"), REFUSED)
def test_other_spaces_are_refused(what: str, space: Any, name: str) -> None:
    env_id = register("Refused", **{f"{what}_space": space})
    assert refusal(env_id).startswith(f"--env {env_id}: its {what}s are {name}; supported are Dis")


@pytest.mark.parametrize(
    ("env_id", "hint"),
    [
        ("CartPol-v1", "; did you mean CartPole-v1?"),
        ("CartPole", "; did you mean CartPole-v1?"),  # a version is part of a benchmark
        ("LunarLander-v2", "; did you mean LunarLander-v3?"),
        ("Taxi-v3", "; did you mean Taxi-v4?"),
        ("HalfCheetah-v1", "; did you mean HalfCheetah-v5?"),
        ("gymnasium:CartPol-v1", "; did you mean gymnasium:CartPole-v1?"),
        ("../:CartPole-v1", "; did you mean CartPole-v1?"),
        ("ALE/Pong-v5", "; Atari's observations are images, supported are vectors and state in"),
        ("zzzzz", "; there are Acrobot-v1, CartPole-v1, "),
        ("a b\nc", "; there are Acrobot-v1, "),
    ],
)
def test_unknown_ids(env_id: str, hint: str) -> None:
    message = refusal(env_id)
    assert message.startswith(f"--env {env_id!r}: unknown environment{hint}")
    assert "FrozenLake8x8-v1" in message or "there are" not in message
    assert "HalfCheetah-v4" not in message  # no list of a hundred ids
    if "there are" in message:
        assert message.endswith(
            "all of gymnasium.pprint_registry(), and other packages' as MODULE:ID"
        )


def test_a_native_id_that_gymnasium_lacks() -> None:
    message = refusal("FrozenLakeNotSlippery-v1")
    assert message.startswith("--env FrozenLakeNotSlippery-v1: Gymnasium has no such environment")


@pytest.mark.parametrize(
    ("env_id", "module", "package", "extra"),
    [
        ("LunarLander-v3", "Box2D", "gymnasium.envs.box2d", "gymnasium[box2d]"),
        ("Ant-v5", "mujoco", "gymnasium.envs.mujoco", "gymnasium[mujoco]"),
    ],
)
def test_a_missing_extra_is_named(
    env_id: str, module: str, package: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.startswith(package)]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, module, None)  # cannot be imported, installed or not
    assert refusal(env_id) == f"--env {env_id}: needs {module}; pip install '{extra}'"


def test_other_reasons_that_an_environment_cannot_be_made() -> None:
    message = refusal("Reacher-v2")
    assert message.startswith("--env Reacher-v2: The mujoco v2 and v3 based environments have been")
    assert message.endswith("; did you mean Reacher-v5?")
    gym.register("bridge/Lost-v0", "no_such_module:Lost")
    message = "--env bridge/Lost-v0: needs no_such_module, which is not installed"
    assert refusal("bridge/Lost-v0") == message
    gym.register("bridge/OnlyVector-v0", vector_entry_point="no_such_module:Lost")
    assert refusal("bridge/OnlyVector-v0").startswith("--env bridge/OnlyVector-v0: ")
    gym.register("bridge/Silent-v0", silent)
    assert refusal("bridge/Silent-v0") == "--env bridge/Silent-v0: ValueError"


def test_the_code_of_a_users_environment_is_part_of_the_digest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What makes it and what wraps it; of Gymnasium's own, whose version is recorded, neither."""
    code = "from gymnasium import Wrapper, register, spec\n"
    code += "from gymnasium.envs.registration import WrapperSpec\n"
    code += "class Mine(Wrapper):\n    pass\ndef make(**settings):\n    pass\n"
    code += "wrapper = WrapperSpec('Mine', 'bridge_own_module:Mine', {})\n"
    code += "register('bridge/Own-v0', make, additional_wrappers=(wrapper,))\n"
    file = tmp_path / "bridge_own_module.py"
    file.write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, file.stem, raising=False)
    importlib.import_module(file.stem)
    assert [*map(origin_of, users_code("bridge/Own-v0"))] == [f"{file}:make", f"{file}:Mine"]
    assert len(users_code(f"{file.stem}:bridge/Own-v0")) == 3
    assert users_code("CartPole-v1") == []


def test_an_environments_packages_are_those_of_its_code() -> None:
    """Whose versions are recorded; Gymnasium's is always."""
    entry_point = "stable_baselines3.common.envs.identity_env:IdentityEnv"
    gym.register("bridge/Theirs-v0", entry_point, max_episode_steps=5, kwargs={"dim": 2})
    assert GymnasiumBridge("bridge/Theirs-v0").packages() == ["stable_baselines3"]
    assert GymnasiumBridge("CartPole-v1").packages() == envs.CartPole().packages() == []


def test_an_id_may_name_the_module_that_registers_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = "import gymnasium as gym\nfrom gymnasium.envs.classic_control import CartPoleEnv\n"
    code += "gym.register('mine/Pole-v3', CartPoleEnv, max_episode_steps=12)\n"
    (tmp_path / "bridge_test_module.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "bridge_test_module", raising=False)
    env = envs.make("bridge_test_module:mine/Pole-v3")
    assert (env.spec.id, env.spec.time_limit) == ("bridge_test_module:mine/Pole-v3", 12)
    _, seen = play(env, [0, 1], 20)
    assert seen[5].sum() > 0
    file = tmp_path / "bridge_test_module.py"  # what is registered there is Gymnasium's own
    assert [*map(origin_of, env.origins())][2:] == [f"{file}:<statements>"]
    said = "did you mean bridge_test_module:mine/Pole-v3?"
    assert refusal("bridge_test_module:mine/Pol-v3").endswith(said)
    message = refusal("bridge_no_module:mine/Pole-v3")
    assert message.startswith("--env 'bridge_no_module:mine/Pole-v3': cannot import bridge_no_mod")
    assert message.endswith("; install it, or add its folder to PYTHONPATH")


@pytest.mark.parametrize(
    ("low", "high"), [(-1e39, 1e39), (-3e38, 3e38), (1e10, 1e10 + 1), (0.0, 1e-46), (-INF, 1.0)]
)
def test_actions_are_squashed_only_between_bounds_that_float32_holds(
    low: float, high: float
) -> None:
    """Others would be NaN in the memory, and all that is learned from it."""
    name = register("Boxed", action_space=spaces.Box(low, high, (1,), np.float64))
    with pytest.raises(UsageError, match="needs actions between two bounds"):
        envs.make(name, actions="continuous")
