"""Rollouts in C against the same step by step in PyTorch."""

from __future__ import annotations

import math
import sys
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from manyseeds import evaluate, kernels
from manyseeds.distributions import Categorical, Gaussian
from manyseeds.envs import (
    Acrobot,
    CartPole,
    MountainCarContinuous,
    NativeEnv,
    Pendulum,
    Rollout,
    State,
)
from manyseeds.envs import rollout as act
from manyseeds.envs.kernels import GUARDS
from manyseeds.envs.rollout import PLAYING, one_step
from manyseeds.kernels.rollout import PolicyKernel
from manyseeds.layers import RunningStats, SeedMLP
from tests.algos.probes import Counter
from tests.envs.checks import declared, uniforms
from tests.envs.test_kernels import LongPole

S, T, N = 3, 30, 5
each_env = pytest.mark.parametrize("kind", GUARDS)
each_policy = pytest.mark.parametrize("way", ["sampled", "normalised", "noise is action"])

CHECKS = declared()


@pytest.fixture(autouse=True)
def has_kernels() -> None:
    if not kernels.available():
        pytest.skip("needs a C compiler")


@pytest.fixture(autouse=True)
def _trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    """These actors are not the algorithms', whose `act` the kernel was written for."""
    for guard in (PLAYING, evaluate.PLAYING):
        monkeypatch.setattr(guard, "allows", lambda policy: True)


class Actor:
    """A policy of each kind: the first of two networks per seed."""

    def __init__(self, env: NativeEnv, way: str, seeds: int = S) -> None:
        spec, generator = env.spec, torch.Generator().manual_seed(0)
        assert spec.obs_size is not None
        self.size = len(spec.action_low) or spec.num_actions
        self.net = SeedMLP(seeds, spec.obs_size, (7, 20), (self.size, 1), "tanh")
        for p in self.net.parameters():
            p.data.copy_(torch.randn(p.shape, generator=generator) / math.sqrt(p.shape[-2]))
        self.log_std = torch.linspace(-1, 1, seeds) if spec.continuous else None
        self.noise_is_action = way == "noise is action"
        self.stats = None
        if way == "normalised":
            self.stats = RunningStats(seeds, spec.obs_size)
            some = torch.randn(seeds, 9, spec.obs_size, generator=generator) * 0.02
            self.stats.update(some)  # narrow: some observations are cut at 10

    def act(self, obs: Tensor, noise: Tensor | None) -> Tensor:
        output = self.net.only(0, obs if self.stats is None else self.stats.normalize(obs))
        if noise is None:
            return output.argmax(-1) if self.log_std is None else output
        if self.log_std is not None:
            return Gaussian(output, self.log_std.view(-1, 1, 1)).sample(noise)
        if self.noise_is_action:
            given = noise.squeeze(-1).long()
            return torch.where(given < 0, output.argmax(-1), given)
        return Categorical(output).sample(noise)

    def as_kernel(self) -> PolicyKernel:
        log_std = None if self.log_std is None else self.log_std.view(-1, 1, 1, 1)
        return self.net.policy_in_c(self.stats, log_std, self.noise_is_action)

    def noise(self, *shape: int) -> Tensor:
        rng = np.random.default_rng(1)
        if self.noise_is_action:
            drawn = uniforms(rng, *shape, 1).float()
            return torch.where(drawn < 0.5, (drawn * 2 * self.size).floor(), -1.0)
        if self.log_std is not None:
            return torch.from_numpy(rng.standard_normal((*shape, self.size), dtype=np.float32))
        return -(-uniforms(rng, *shape, self.size).float().log()).log()


def beginning(env: NativeEnv, seeds: int = S) -> tuple[State, Tensor]:
    """States in which some episodes end soon, and others at the time limit."""
    checks = CHECKS[env.spec.id]
    low, high = torch.tensor(checks.widest)
    rng = np.random.default_rng(2)
    u = uniforms(rng, seeds, N, len(low)).float()
    physics = (low + (high - low) * u) * torch.tensor(checks.near)
    elapsed = torch.from_numpy(rng.integers(0, 20, (seeds, N))).int()
    state = State(physics, env.spec.time_limit - 1 - elapsed)
    return state, env.observation(physics)


def inputs(env: NativeEnv, actor: Actor, seeds: int = S) -> tuple[Any, ...]:
    noise = uniforms(np.random.default_rng(3), seeds, T, N, env.noise_size).float()
    return *beginning(env, seeds), actor.noise(seeds, T, N), noise


def assert_close(env: NativeEnv, ours: Rollout, theirs: Rollout) -> None:
    limit = CHECKS[env.spec.id].c_rollout
    for name, x, y in zip(Rollout._fields, ours, theirs, strict=True):
        assert x.dtype == y.dtype
        assert x.shape == y.shape
        if x.is_floating_point():
            assert (x - y).abs().max() <= limit, name
        else:
            assert torch.equal(x, y), name


@each_policy
@each_env
def test_a_rollout_is_that_of_pytorch(kind: type[NativeEnv], way: str) -> None:
    """Over ends of both kinds, from the middle of episodes; what it is given stays as it is."""
    env = kind()
    if env.spec.continuous and way == "noise is action":
        way = "sampled"
    actor = Actor(env, way)
    given = inputs(env, actor)
    before = [x.clone() for x in (*given[0], *given[1:])]
    state, obs, steps = act(env, actor, *given)
    for x, y in zip((*given[0], *given[1:]), before, strict=True):
        assert torch.equal(x, y)
    with kernels.off():
        their_state, their_obs, their_steps = act(env, actor, *given)
    assert_close(env, steps, their_steps)
    limit = CHECKS[kind.spec.id].c_rollout
    torch.testing.assert_close(obs, their_obs, rtol=0, atol=limit)
    torch.testing.assert_close(state.physics, their_state.physics, rtol=0, atol=limit)
    assert torch.equal(state.elapsed, their_state.elapsed)
    assert state.elapsed.dtype == torch.int32
    torch.testing.assert_close(obs, env.observation(state.physics), rtol=0, atol=1.2e-7)
    assert steps.truncated.sum() >= 5
    assert steps.terminated.sum() >= 2 or kind is Pendulum
    if actor.stats is not None:
        assert (actor.stats.normalize(steps.obs.flatten(1, 2)).abs() == 10).any()
    if env.spec.continuous:  # clipped for the environment, not in what is returned
        assert (steps.actions.abs() > env.spec.action_high[0]).any()
    else:
        assert len(steps.actions.unique()) == env.spec.num_actions


@torch.no_grad()
@each_policy
@each_env
def test_episodes_are_those_of_pytorch(kind: type[NativeEnv], way: str) -> None:
    """Of an evaluation, greedy and not: nothing is added up after an end."""
    env = kind()
    actor = Actor(env, way)
    state, obs, noise, env_noise = inputs(env, actor)

    def play(noise: Tensor | None) -> list[Tensor]:
        alive = torch.arange(S * N).view(S, N) % 4 > 0
        progress = evaluate._Progress(alive, *torch.zeros(2, S, N, dtype=torch.float64).unbind())
        evaluate._play(env, actor, state, obs, noise, env_noise[0], progress)
        return [progress.returns, progress.lengths, progress.alive]

    for given in (noise, None):
        found = play(given)
        with kernels.off():
            expected = play(given)
        torch.testing.assert_close(found[0], expected[0], rtol=1e-5, atol=1e-5)
        assert torch.equal(found[1], expected[1])
        assert torch.equal(found[2], expected[2])
        assert len(found[1].unique()) > 4


@pytest.mark.usefixtures("computed")
@pytest.mark.parametrize("way", ["sampled", "noise is action"])
def test_the_first_of_equal_actions_is_taken(way: str) -> None:
    """The noise asks for the greedy action, or is the same for all; the first is impossible."""
    env = Acrobot()
    actor = Actor(env, way)
    for p in actor.net.parameters():
        p.data.zero_()
    state, obs, noise, env_noise = inputs(env, actor)
    equal = torch.full_like(noise, -1.0)
    assert not act(env, actor, state, obs, equal, env_noise)[2].actions.any()
    actor.net.biases[-1].data[:, 0, 0, 0] = -math.inf
    assert (act(env, actor, state, obs, equal, env_noise)[2].actions == 1).all()


def test_an_end_and_a_timeout_at_once() -> None:
    """Both are reported, and one reset follows."""
    env = CartPole()
    actor = Actor(env, "sampled")
    state, obs, *noise = inputs(env, actor)
    state.physics[:, 0] = torch.tensor([2.4, 5.0, 0.0, 0.0])
    state.elapsed[:, 0] = env.spec.time_limit - 1
    _, _, steps = act(env, actor, state, obs, *noise)
    assert steps.terminated[:, 0, 0].all()
    assert steps.truncated[:, 0, 0].all()
    assert (steps.obs[:, 1, 0].abs() <= 0.05).all()


@each_env
def test_two_rollouts_are_one(kind: type[NativeEnv]) -> None:
    """To the bit, and for any number of threads; also of one seed alone."""
    env = kind()
    actor = Actor(env, "normalised")
    state, obs, *noise = inputs(env, actor)
    expected = act(env, actor, state, obs, *noise)
    parts, threads = [], torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        for k in (slice(None, 11), slice(11, None)):
            state, obs, steps = act(env, actor, state, obs, *[x[:, k] for x in noise])
            parts.append(steps)
    finally:
        torch.set_num_threads(threads)
    for x, *both in zip(expected[2], *parts, strict=True):
        assert torch.equal(x, torch.cat(both, 1))
    for x, y in zip((*expected[0], expected[1]), (*state, obs), strict=True):
        assert torch.equal(x, y)


@pytest.mark.parametrize("kind", [kind for kind in GUARDS if not kind.spec.continuous])
def test_a_step_alone_is_that_of_a_rollout(kind: type[NativeEnv]) -> None:
    env = kind()
    actor = Actor(env, "sampled")
    state, obs, *noise = inputs(env, actor)
    expected, seen, steps = act(env, actor, state, obs, *(x[:, :1] for x in noise))
    actions = steps.actions[:, 0]
    found = one_step(env, state, actions, noise[1][:, 0])
    of_rollout = (*expected, seen, *(x[:, 0] for x in steps[2:]))
    for x, y in zip((*found.state, *found[1:]), of_rollout, strict=True):
        assert torch.equal(x, y)
    with pytest.raises(IndexError):
        one_step(env, state, actions + 3, noise[1][:, 0])


def test_nan_stays_in_its_seed() -> None:
    """Of weights and of a state; it ends no episode."""
    env = CartPole()
    actor = Actor(env, "normalised")
    given = inputs(env, actor)
    _, obs, steps = act(env, actor, *given)
    for p in actor.net.parameters():
        p.data[1] = math.nan
    given[0].physics[1, 2] = math.nan
    _, broken_obs, broken = act(env, actor, *given)
    for x, y in zip((*steps, obs), (*broken, broken_obs), strict=True):
        assert torch.equal(x[[0, 2]], y[[0, 2]])
    assert broken.next_obs[1, 0, 2].isnan().all()
    assert not broken.terminated[1, 0, 2]
    car = MountainCarContinuous()
    actor = Actor(car, "sampled")
    for p in actor.net.parameters():
        p.data[1] = math.nan
    _, _, steps = act(car, actor, *inputs(car, actor))
    assert steps.actions[1].isnan().all()
    assert not steps.actions[[0, 2]].isnan().any()
    assert steps.rewards[1].isnan().all()


def test_states_and_noise_of_any_layout() -> None:
    env = CartPole()
    actor = Actor(env, "sampled")
    state, obs, *noise = inputs(env, actor)
    expected = act(env, actor, state, obs, *noise)
    turned = State(*(x.transpose(0, 1).contiguous().transpose(0, 1) for x in state))
    noise = [x.transpose(0, 2).contiguous().transpose(0, 2) for x in noise]
    assert not turned.physics.is_contiguous()
    found = act(env, actor, turned, obs, *noise)
    for x, y in zip((*expected[0], *expected[2]), (*found[0], *found[2]), strict=True):
        assert torch.equal(x, y)


def test_what_has_no_c_code_is_stepped_in_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other environments, subclasses, other types; CartPole itself is not."""
    called = []

    def steps_in_c(*args: Any) -> Any:
        called.append(args)
        raise NotImplementedError

    module = sys.modules["manyseeds.envs.rollout"]  # envs.rollout is the function
    monkeypatch.setattr(module.kernels, "rollout", steps_in_c)
    for env in (Counter(time_limit=7), LongPole()):
        actor = Actor(env, "sampled")
        noise = actor.noise(S, T, N), torch.rand(S, T, N, env.noise_size)
        state, obs = env.reset(torch.rand(S, N, env.initial_noise))
        assert act(env, actor, state, obs, *noise)[2].obs.shape[:3] == (S, T, N)
    env = CartPole()
    actor = Actor(env, "sampled")
    state, obs, *noise = inputs(env, actor)
    with pytest.raises(NotImplementedError):
        act(env, actor, state, obs, *noise)
    actor.net.double()
    double = State(state.physics.double(), state.elapsed), obs.double(), *map(Tensor.double, noise)
    assert act(env, actor, *double)[2].obs.dtype == torch.float64
    assert len(called) == 1
