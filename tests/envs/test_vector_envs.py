"""Environments with vector observations, against Gymnasium's own."""

from __future__ import annotations

import math
from importlib import import_module
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from manyseeds.envs import NATIVE, NativeEnv, State
from manyseeds.seeds import SeedStreams
from tests.envs.checks import Checks, GymCopies, declared, difference, random_actions, uniforms

CHECKS = declared()
VECTOR = [env_id for env_id, build in NATIVE.items() if build().spec.obs_size]
each_env = pytest.mark.parametrize("env_id", VECTOR)
each_of_gymnasiums = pytest.mark.parametrize("env_id", [x for x in VECTOR if x in gym.registry])


def made(env_id: str) -> tuple[NativeEnv, Checks]:
    assert env_id in CHECKS, f"give {env_id} an entry in CHECKS of its file's test in tests/envs"
    return NATIVE[env_id](), CHECKS[env_id]


def act(env: NativeEnv, obs: Tensor, expert: Tensor, noise: Tensor) -> Tensor:
    """Actions of the expert where `expert`, `[S, N]`, and random ones elsewhere."""
    policy, random = CHECKS[env.spec.id].expert, random_actions(env, noise)
    if policy is None:
        return random
    return torch.where(expert.unsqueeze(-1) if env.spec.continuous else expert, policy(obs), random)


class DoubleNumpy:
    """numpy, with float64 wherever Gymnasium writes float32."""

    float32 = np.float64

    def __getattr__(self, name: str) -> Any:
        return getattr(np, name)


@pytest.fixture
def in_float64(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gymnasium's code without its roundings to float32.

    They concern observations, and the state of MountainCarContinuous. Another test is about
    Gymnasium as it is.
    """
    for name in ("acrobot", "cartpole", "mountain_car", "continuous_mountain_car", "pendulum"):
        module = import_module(f"gymnasium.envs.classic_control.{name}")
        monkeypatch.setattr(module, "np", DoubleNumpy())


# ---- Against Gymnasium --------------------------------------------------------------------


@pytest.mark.usefixtures("in_float64")
@pytest.mark.parametrize(
    ("S", "N", "steps"),
    [(1, 1, 3_000), (3, 3, 1_150), pytest.param(2, 8, 1_150, marks=pytest.mark.slow)],
)
@each_of_gymnasiums
def test_follows_gymnasium_free_running(env_id: str, S: int, N: int, steps: int) -> None:
    """States, observations, rewards and both flags, over whole episodes and many resets.

    An environment's episodes are in turn an expert's and random. The expert sees its own side's
    observations: a balanced Pendulum is stable only under control. No state of ours is ever put
    back into Gymnasium's within an episode.
    """
    (env, checks), rng = made(env_id), np.random.default_rng(S * 100 + N)
    state, obs = env.reset(uniforms(rng, S, N, env.initial_noise))
    theirs = GymCopies(env_id, state.physics, obs)
    expert = (torch.arange(S * N) % 2 == 0).view(S, N)
    terminations = truncations = 0
    for _ in range(steps):
        noise, random = uniforms(rng, S, N, env.noise_size), uniforms(rng, S, N)
        step = env.step(state, act(env, obs, expert, random), noise)
        physics, their_obs, rewards, terminated, truncated = theirs.step(
            act(env, theirs.obs, expert, random)
        )
        age = state.elapsed + 1
        limit, compared = checks.bound(age), age <= checks.compared
        done = step.terminated | step.truncated
        going = compared & ~done
        assert (difference(checks.angles, step.state.physics, physics) <= limit)[going].all()
        assert ((step.final_obs - their_obs).abs().amax(-1) <= limit)[compared].all()
        assert ((step.reward - rewards).abs() <= 10 * limit)[compared].all()
        assert torch.equal(step.terminated[compared], terminated[compared])
        assert torch.equal(step.truncated, truncated)
        assert torch.equal(step.obs[~done], step.final_obs[~done])
        assert torch.equal(step.state.elapsed, age.masked_fill(done, 0))
        terminations += int(step.terminated[compared].sum())
        truncations += int(step.truncated.sum())
        for cell in map(tuple, done.nonzero().tolist()):
            theirs.start(cell, step.state.physics[cell], step.obs[cell])
        expert ^= done
        state, obs = step.state, step.obs
    assert truncations >= 2
    assert terminations >= 3 or not checks.terminates


@pytest.mark.usefixtures("in_float64")
@each_of_gymnasiums
def test_one_step_is_gymnasiums_anywhere(env_id: str) -> None:
    """Also from states that no episode reaches, and with actions beyond their bounds.

    Gymnasium is given the clipped actions.
    """
    (env, checks), rng, n = made(env_id), np.random.default_rng(9), 2_000
    low, high = torch.tensor(checks.widest, dtype=torch.float64)
    physics = low + (high - low) * uniforms(rng, 1, n, len(low))
    actions = clipped = random_actions(env, uniforms(rng, 1, n))
    if env.spec.continuous:
        actions = actions * 3
        clipped = actions.clamp(env.spec.action_low[0], env.spec.action_high[0])
        assert (actions != clipped).any()
    noise = torch.zeros(1, n, env.noise_size, dtype=torch.float64)
    step = env.step(State(physics, torch.zeros(1, n).int()), actions, noise)
    theirs = GymCopies(env_id, physics, env.observation(physics))
    after, obs, rewards, terminated, _ = theirs.step(clipped)
    ours = env.transition(physics, clipped, noise[..., :0])
    assert difference(checks.angles, ours, after).max() <= checks.one_step
    assert (ours[..., : checks.angles].abs() <= math.pi).all()
    assert torch.equal(step.terminated, terminated)
    torch.testing.assert_close(step.final_obs, obs, rtol=0, atol=checks.one_step)
    torch.testing.assert_close(step.reward, rewards, rtol=0, atol=checks.one_step)
    assert set(terminated.flatten().tolist()) == {False, checks.terminates}
    for edge in checks.edges(physics, ours):
        assert edge.sum() >= 5


@each_of_gymnasiums
def test_gymnasium_as_it_is_agrees_in_float32(env_id: str) -> None:
    """With all its roundings: the first steps of an episode."""
    (env, checks), rng, S, N = made(env_id), np.random.default_rng(1), 4, 8
    steps, tolerance = checks.float32
    noise = uniforms(rng, S, N, env.initial_noise).float()
    state, obs = env.reset(noise)
    theirs = GymCopies(env_id, state.physics, obs)
    expert = torch.arange(N) < N // 2
    running, worst, compared = torch.ones(S, N, dtype=torch.bool), 0.0, 0
    for _ in range(steps):
        random = uniforms(rng, S, N).float()
        step = env.step(state, act(env, obs, expert, random), noise)
        _, their_obs, rewards, terminated, truncated = theirs.step(
            act(env, theirs.obs.float(), expert, random)
        )
        assert step.final_obs.dtype == step.reward.dtype == torch.float32
        errors = (step.final_obs - their_obs).abs().amax(-1)[running]
        worst = max(worst, float(errors.max()))
        assert ((step.reward - rewards).abs() <= 10 * tolerance)[running].all()
        assert torch.equal(step.terminated[running], terminated[running])
        assert torch.equal(step.truncated[running], truncated[running])
        compared += len(errors)
        running &= ~(terminated | truncated)
        if not running.any():
            break
        state, obs = step.state, step.obs
    assert compared >= 0.6 * steps * S * N
    assert 0 < worst < tolerance


# ---- Scores and starts --------------------------------------------------------------------


@each_env
def test_what_scores_are_normalised_by(env_id: str) -> None:
    env, checks = made(env_id)
    spec = env.spec
    assert (spec.reward_threshold, spec.random_score, spec.reference_score) == checks.anchors


@each_env
def test_scores_of_the_random_policy(env_id: str) -> None:
    """To 2% of the way to the reference."""
    (env, checks), rng, n = made(env_id), np.random.default_rng(4), 2_000
    state, _ = env.reset(uniforms(rng, 1, n, env.initial_noise).float())
    returns, running = torch.zeros(1, n), torch.ones(1, n, dtype=torch.bool)
    for _ in range(env.spec.time_limit):
        noise = uniforms(rng, 1, n, env.noise_size).float()
        step = env.step(state, random_actions(env, uniforms(rng, 1, n).float()), noise)
        returns += torch.where(running, step.reward, 0)
        running &= ~(step.terminated | step.truncated)
        if not running.any():
            break
        state = step.state
    _, random_score, reference = checks.anchors
    expected = random_score if checks.random_mean is None else checks.random_mean
    assert abs(float(returns.mean()) - expected) < 0.02 * (reference - expected)


@each_env
def test_starts_are_uniform(env_id: str) -> None:
    """Between the same bounds, ours and Gymnasium's (Kolmogorov-Smirnov)."""
    env, checks = made(env_id)
    noise = SeedStreams(range(4), "train").uniform(500, env.initial_noise)
    samples = [env.reset(noise)[0].physics.flatten(0, 1).double().numpy()]
    if env_id in gym.registry:
        theirs: Any = gym.make(env_id, disable_env_checker=True)
        states = []
        for seed in range(1_000):
            theirs.reset(seed=seed)
            states.append(np.array(theirs.unwrapped.state))
        samples.append(np.array(states))
    extremes = torch.tensor([0.0, 1 - 2**-24]).view(1, 2, 1).expand(1, 2, env.initial_noise)
    ends = env.reset(extremes)[0].physics[0].double().numpy()
    np.testing.assert_allclose(ends, checks.starts, rtol=0, atol=1e-6)
    for sample in samples:
        for x, low, high in zip(sample.T, *checks.starts, strict=True):
            if low == high:
                assert (x == low).all()
            else:
                assert stats.kstest(x, "uniform", args=(low, high - low)).pvalue > 0.001
    if env.initial_noise > 1:  # one uniform for each component
        correlation = np.corrcoef(samples[0].T) - np.eye(env.initial_noise)
        assert np.abs(correlation).max() < 0.1


# ---- The seed axis ------------------------------------------------------------------------


def rollout(env: NativeEnv, noise: Tensor) -> Tensor:
    """All that random actions lead to, `[S, T, N, ...]`. noise `[S, T, N, 1 + noise_size]`."""
    state, obs = env.reset(noise[:, 0, :, : env.initial_noise])
    rows = []
    for t in range(noise.shape[1]):
        actions = act(env, obs, noise[:, t, :, 0] < 0.8, noise[:, t, :, 0])
        step = env.step(state, actions, noise[:, t, :, 1:])
        flags = torch.stack((step.reward, step.terminated, step.truncated), dim=-1)
        rows.append(torch.cat((step.obs, step.final_obs, step.state.physics, flags), dim=-1))
        state, obs = step.state, step.obs
    return torch.stack(rows, dim=1)


@pytest.mark.parametrize("N", [1, 3, 16])
@each_env
def test_a_seed_has_the_same_bits_in_any_batch(env_id: str, N: int) -> None:
    """210 steps, resets included, of seed 4: alone, beside another one, among ten."""
    env, _ = made(env_id)

    def of_seed_4(seeds: list[int]) -> Tensor:
        noise = SeedStreams(seeds, "train").uniform(210, N, 1 + env.noise_size)
        return rollout(env, noise)[seeds.index(4)]

    alone = of_seed_4([4])
    assert torch.equal(of_seed_4([9, 4]), alone)
    assert torch.equal(of_seed_4(list(range(10))), alone)


@each_env
def test_nan_stays_in_its_environment(env_id: str) -> None:
    """The neighbours keep their bits, and the next episode of the broken one is clean."""
    (env, _), rng, shape = made(env_id), np.random.default_rng(6), (3, 4)
    noise = uniforms(rng, *shape, env.noise_size).float()
    state, _ = env.reset(noise)
    state = State(state.physics, torch.full(shape, env.spec.time_limit - 5).int())
    broken = State(state.physics.clone(), state.elapsed)
    broken.physics[1, 2] = math.nan
    sane = torch.ones(shape, dtype=torch.bool)
    sane[1, 2] = False
    for t in range(5):
        actions = random_actions(env, uniforms(rng, *shape).float())
        a, b = env.step(state, actions, noise), env.step(broken, actions, noise)
        for x, y in zip((*a.state, *a[1:]), (*b.state, *b[1:]), strict=True):
            assert torch.equal(x[sane], y[sane])
        assert b.final_obs[1, 2].isnan().any()
        assert b.truncated.all() == (t == 4)
        state, broken = a.state, b.state
    assert torch.equal(b.obs, a.obs)
