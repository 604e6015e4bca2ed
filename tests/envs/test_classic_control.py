"""Acrobot, both MountainCars and Pendulum, against Gymnasium's own."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.envs.classic_control import acrobot, continuous_mountain_car, mountain_car, pendulum
from scipy import stats
from torch import Tensor

from manyseeds.envs import Acrobot, MountainCar, MountainCarContinuous, NativeEnv, Pendulum, State
from manyseeds.seeds import SeedStreams

ENVS: list[type[NativeEnv]] = [Acrobot, MountainCar, MountainCarContinuous, Pendulum]
BATCHES = [(1, 1, 3_000), (3, 3, 1_150), (2, 8, 1_150)]  # S, N, steps: 31,750 in all per env

each_env = pytest.mark.parametrize("kind", ENVS)


# ---- Policies that get somewhere, and actions at random -----------------------------------


def swing_up_links(obs: Tensor) -> Tensor:
    """Pushes the way the joint turns: the free end is up after about 90 steps."""
    return torch.where(obs[..., 5] > 0, 2, 0)


def follow_the_car(obs: Tensor) -> Tensor:
    """Pushes the way the car rolls: up after about 120 steps, with the wall hit on the way."""
    return torch.where(obs[..., 1] >= 0, 2, 0)


def follow_the_strong_car(obs: Tensor) -> Tensor:
    return torch.where(obs[..., 1:] >= 0, 1.0, -1.0)


def swing_up_rod(obs: Tensor) -> Tensor:
    """Brings the energy to that of the upright position, and balances there."""
    cos, sin, theta_dot = obs.split(1, dim=-1)
    lacking = 15 - (theta_dot.square() / 2 + 15 * cos)
    return torch.where(cos > 0.9, -10 * sin - 2 * theta_dot, lacking * theta_dot).clamp(-2, 2)


EXPERTS: dict[type[NativeEnv], Callable[[Tensor], Tensor]] = {
    Acrobot: swing_up_links,
    MountainCar: follow_the_car,
    MountainCarContinuous: follow_the_strong_car,
    Pendulum: swing_up_rod,
}


def uniforms(rng: np.random.Generator, *shape: int) -> Tensor:
    return torch.from_numpy(rng.random(shape))


def random_actions(env: NativeEnv, noise: Tensor) -> Tensor:
    """Uniform over the actions. noise `[S, N]`."""
    if not env.spec.continuous:
        return (noise * env.spec.num_actions).long()
    low, high = env.spec.action_low[0], env.spec.action_high[0]
    return (low + (high - low) * noise).unsqueeze(-1)


def act(env: NativeEnv, obs: Tensor, expert: Tensor, noise: Tensor) -> Tensor:
    """Actions of the expert where `expert`, `[S, N]`, and random ones elsewhere."""
    competent, random = EXPERTS[type(env)](obs), random_actions(env, noise)
    return torch.where(expert.unsqueeze(-1) if env.spec.continuous else expert, competent, random)


# ---- Gymnasium's own ----------------------------------------------------------------------


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
    for module in (acrobot, mountain_car, continuous_mountain_car, pendulum):
        monkeypatch.setattr(module, "np", DoubleNumpy())


class GymCopies:
    """S x N of Gymnasium's own environments, free-running; only the starts are given to them."""

    def __init__(self, env_id: str, physics: Tensor, obs: Tensor) -> None:
        self.shape = tuple(physics.shape[:2])
        self.obs = obs.double().clone()
        self.envs: dict[tuple[int, ...], Any] = {
            cell: gym.make(env_id, disable_env_checker=True) for cell in np.ndindex(*self.shape)
        }
        for cell in self.envs:
            self.start(cell, physics[cell], obs[cell])

    def start(self, cell: tuple[int, ...], physics: Tensor, obs: Tensor) -> None:
        self.envs[cell].reset(seed=0)
        self.envs[cell].unwrapped.state = physics.double().numpy().copy()
        self.obs[cell] = obs

    def step(self, actions: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """States [S, N, D], obs, rewards [S, N], terminated and truncated; in float64."""
        physics = []
        rewards = torch.empty(self.shape, dtype=torch.float64)
        terminated = torch.empty(self.shape, dtype=torch.bool)
        truncated = torch.empty(self.shape, dtype=torch.bool)
        for cell, env in self.envs.items():
            action = actions[cell].numpy() if actions.ndim == 3 else int(actions[cell])
            obs, rewards[cell], terminated[cell], truncated[cell], _ = env.step(action)
            self.obs[cell] = torch.from_numpy(obs)
            physics.append(np.array(env.unwrapped.state, dtype=np.float64))
        states = torch.from_numpy(np.stack(physics)).view(*self.shape, -1)
        return states, self.obs.clone(), rewards, terminated, truncated


def difference(env: NativeEnv, ours: Tensor, theirs: Tensor) -> Tensor:
    """Largest difference between two states, `[S, N]`; Acrobot's -pi and pi are one angle."""
    d = (ours - theirs).abs()
    if isinstance(env, Acrobot):
        assert ours[..., :2].abs().max() <= math.pi
        d[..., :2] = torch.minimum(d[..., :2], 2 * math.pi - d[..., :2])  # both are in [-pi, pi]
    return d.amax(-1)


# ---- Parity -------------------------------------------------------------------------------


def bound(env: NativeEnv, age: Tensor) -> Tensor:
    """How far a state may be from Gymnasium's after `age` steps of an episode, `[S, N]`.

    1e-9. Acrobot is chaotic, and so is a Pendulum under random torques near its upright position:
    after 100 steps an error of Acrobot may grow by e^0.3 a step (the worst of 1,800 swing-ups was
    at 1e-10 after 100 steps and at 1e-4 after 150), and one of Pendulum, whose episodes are 200
    steps, may reach 1e-7 (the worst of 1,300 episodes: 7e-9).
    """
    after = (age - 100).clamp(min=0).double()
    if isinstance(env, Acrobot):
        return 1e-9 * (0.3 * after).exp()
    return torch.where((after > 0) & isinstance(env, Pendulum), 1e-7, 1e-9)


@pytest.mark.usefixtures("in_float64")
@pytest.mark.parametrize(
    ("S", "N", "steps"), [*BATCHES[:2], pytest.param(*BATCHES[2], marks=pytest.mark.slow)]
)
@each_env
def test_follows_gymnasium_free_running(kind: type[NativeEnv], S: int, N: int, steps: int) -> None:
    """States, observations, rewards and both flags, over whole episodes and many resets.

    An environment's episodes are in turn an expert's and random. The expert sees its own side's
    observations: a balanced Pendulum is stable only under control. No state of ours is ever put
    back into Gymnasium's within an episode.

    Acrobot's states, rewards and terminations are compared in the first 140 steps of an episode,
    in which 91% of the expert's episodes end. Beyond them rounding errors decide.
    """
    env, rng = kind(), np.random.default_rng(S * 100 + N)
    state, obs = env.reset(uniforms(rng, S, N, env.initial_noise))
    theirs = GymCopies(env.spec.id, state.physics, obs)
    expert = (torch.arange(S * N) % 2 == 0).view(S, N)
    terminations = truncations = 0
    for _ in range(steps):
        noise, random = uniforms(rng, S, N, env.noise_size), uniforms(rng, S, N)
        step = env.step(state, act(env, obs, expert, random), noise)
        physics, their_obs, rewards, terminated, truncated = theirs.step(
            act(env, theirs.obs, expert, random)
        )
        age = state.elapsed + 1
        limit = bound(env, age)
        compared = age <= 140 if kind is Acrobot else torch.ones_like(terminated)
        done = step.terminated | step.truncated
        going = compared & ~done
        assert (difference(env, step.state.physics, physics) <= limit)[going].all()
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
    assert terminations >= 3 or kind is Pendulum


WIDEST: dict[type[NativeEnv], tuple[list[float], list[float]]] = {  # lowest and highest states
    Acrobot: ([-math.pi * k for k in (1, 1, 4, 9)], [math.pi * k for k in (1, 1, 4, 9)]),
    MountainCar: ([-1.2, -0.07], [0.6, 0.07]),
    MountainCarContinuous: ([-1.2, -0.07], [0.6, 0.07]),
    Pendulum: ([-50.0, -8.0], [50.0, 8.0]),
}


def edges(kind: type[NativeEnv], before: Tensor, after: Tensor) -> list[Tensor]:
    """Where a step met each bound of the state, `[S, N]` bool."""
    first, second = after[..., 0], after[..., 1]
    if kind is Acrobot:
        wrapped = ((after - before)[..., :2].abs() > math.pi).unbind(-1)
        fast = (after[..., 2].abs() == 4 * math.pi, after[..., 3].abs() == 9 * math.pi)
        return [*wrapped, *fast]
    if kind is Pendulum:
        return [second == 8, second == -8]
    wall = (first == -1.2) & (before[..., 1] < -0.01) & (second == 0)
    return [wall, first == 0.6, second == 0.07, second == -0.07]


@pytest.mark.usefixtures("in_float64")
@each_env
def test_one_step_is_gymnasiums_anywhere(kind: type[NativeEnv]) -> None:
    """Also from states that no episode reaches, and with actions beyond the box.

    To 1e-12, Acrobot at its highest speeds to 1e-11. Gymnasium is given the clipped actions.
    """
    env, rng, n = kind(), np.random.default_rng(9), 2_000
    low, high = torch.tensor(WIDEST[kind], dtype=torch.float64)
    physics = low + (high - low) * uniforms(rng, 1, n, len(low))
    actions = random_actions(env, uniforms(rng, 1, n))
    clipped = actions
    if env.spec.continuous:
        actions = actions * 3
        clipped = actions.clamp(env.spec.action_low[0], env.spec.action_high[0])
        assert (actions != clipped).any()
    state = State(physics, torch.zeros(1, n, dtype=torch.int32))
    noise = torch.zeros(1, n, env.noise_size, dtype=torch.float64)
    step = env.step(state, actions, noise)
    theirs = GymCopies(env.spec.id, physics, env.observation(physics))
    after, obs, rewards, terminated, _ = theirs.step(clipped)
    tolerance = 1e-11 if kind is Acrobot else 1e-12
    ours = env.transition(physics, clipped, noise[..., :0])
    assert difference(env, ours, after).max() <= tolerance
    assert torch.equal(step.terminated, terminated)
    torch.testing.assert_close(step.final_obs, obs, rtol=0, atol=tolerance)
    torch.testing.assert_close(step.reward, rewards, rtol=0, atol=tolerance)
    assert set(terminated.flatten().tolist()) == ({False} if kind is Pendulum else {False, True})
    for edge in edges(kind, physics, ours):
        assert edge.sum() >= 5


FLOAT32: dict[type[NativeEnv], tuple[int, float]] = {  # steps, and how far float32 may be off
    Acrobot: (60, 1e-4),  # measured 1e-5
    MountainCar: (200, 1e-5),  # measured 1e-6
    MountainCarContinuous: (300, 1e-5),  # measured 1e-6
    Pendulum: (100, 1e-2),  # measured 2e-3
}


@each_env
def test_gymnasium_as_it_is_agrees_in_float32(kind: type[NativeEnv]) -> None:
    """With all its roundings: the first steps of an episode, to the bounds above."""
    env, rng, S, N = kind(), np.random.default_rng(1), 4, 8
    steps, tolerance = FLOAT32[kind]
    noise = uniforms(rng, S, N, env.initial_noise).float()
    state, obs = env.reset(noise)
    theirs = GymCopies(env.spec.id, state.physics, obs)
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


def test_a_push_beyond_the_box_costs_more_in_gymnasium() -> None:
    """As the docstring says: Gymnasium moves the car with the clipped push, and charges for all."""
    env = MountainCarContinuous()
    state, obs = env.reset(torch.full((1, 1, 1), 0.5))
    theirs = GymCopies(env.spec.id, state.physics, obs)
    step = env.step(state, torch.full((1, 1, 1), 3.0), torch.zeros(1, 1, 1))
    physics, _, rewards, _, _ = theirs.step(torch.full((1, 1, 1), 3.0))
    torch.testing.assert_close(step.state.physics.double(), physics, rtol=0, atol=1e-7)
    assert step.reward.item() == pytest.approx(-0.1)
    assert rewards.item() == pytest.approx(-0.9)


# ---- Spec, time limit, starts -------------------------------------------------------------


@each_env
def test_spec_is_the_registered_one(kind: type[NativeEnv]) -> None:
    ours, theirs = kind.spec, gym.spec(kind.spec.id)
    made = gym.make(ours.id)
    assert ours.time_limit == theirs.max_episode_steps
    assert ours.reward_threshold == theirs.reward_threshold
    assert (ours.obs_size,) == made.observation_space.shape
    if isinstance(made.action_space, gym.spaces.Box):
        assert ours.action_low == tuple(made.action_space.low)
        assert ours.action_high == tuple(made.action_space.high)
        assert ours.num_actions == 0
    else:
        assert isinstance(made.action_space, gym.spaces.Discrete)
        assert ours.num_actions == made.action_space.n
        assert not ours.continuous
    assert ours.reference_score is not None
    assert ours.random_score < ours.reference_score


@each_env
def test_scores_of_the_random_policy(kind: type[NativeEnv]) -> None:
    """As in the spec, to 2% of the way to the reference; MountainCarContinuous: as its comment."""
    env, rng, n = kind(), np.random.default_rng(4), 2_000
    state, _ = env.reset(uniforms(rng, 1, n, env.initial_noise).float())
    returns, running = torch.zeros(1, n), torch.ones(1, n, dtype=torch.bool)
    for _ in range(env.spec.time_limit):
        noise = uniforms(rng, 1, n, env.noise_size).float()
        step = env.step(state, random_actions(env, uniforms(rng, 1, n).float()), noise)
        returns += torch.where(running, step.reward, 0)
        running &= ~(step.terminated | step.truncated)
        state = step.state
    expected = -33.3 if kind is MountainCarContinuous else env.spec.random_score
    assert env.spec.reference_score is not None
    span = env.spec.reference_score - expected
    assert abs(float(returns.mean()) - expected) < 0.02 * span


@each_env
def test_truncated_at_exactly_the_time_limit(kind: type[NativeEnv]) -> None:
    """Every environment counts its own steps; nobody arrives without doing anything."""
    env = kind()
    limit = env.spec.time_limit
    assert limit == gym.spec(env.spec.id).max_episode_steps
    state, obs = env.reset(torch.full((1, 2, env.initial_noise), 0.4))
    state = State(state.physics, torch.tensor([[0, 7]], dtype=torch.int32))
    idle = torch.zeros(1, 2, 1) if env.spec.continuous else torch.ones(1, 2).long()
    noise = torch.full((1, 2, env.noise_size), 0.3)
    for t in range(1, limit + 1):
        step = env.step(state, idle, noise)
        assert step.truncated.tolist() == [[t == limit, t == limit - 7]]
        assert not step.terminated.any()
        state = step.state
    assert state.elapsed.tolist() == [[0, 7]]
    assert torch.equal(step.obs[:, 0], env.reset(noise)[1][:, 0])
    assert not torch.equal(step.obs[:, 0], step.final_obs[:, 0])


STARTS: dict[type[NativeEnv], tuple[list[float], list[float]]] = {
    Acrobot: ([-0.1] * 4, [0.1] * 4),
    MountainCar: ([-0.6, 0.0], [-0.4, 0.0]),
    MountainCarContinuous: ([-0.6, 0.0], [-0.4, 0.0]),
    Pendulum: ([-math.pi, -1.0], [math.pi, 1.0]),
}


@each_env
def test_starts_are_gymnasiums(kind: type[NativeEnv]) -> None:
    """Uniform between the same bounds, ours and Gymnasium's (Kolmogorov-Smirnov)."""
    env, made = kind(), gym.make(kind.spec.id, disable_env_checker=True)
    noise = SeedStreams(range(4), "train").uniform(500, env.initial_noise)
    ours = env.reset(noise)[0].physics.flatten(0, 1).double().numpy()
    theirs = []
    for seed in range(1_000):
        made.reset(seed=seed)
        theirs.append(np.array(made.unwrapped.state))  # type: ignore[attr-defined]
    extremes = torch.tensor([0.0, 1 - 2**-24]).view(1, 2, 1).expand(1, 2, env.initial_noise)
    ends = env.reset(extremes)[0].physics[0].double().numpy()
    np.testing.assert_allclose(ends, STARTS[kind], rtol=0, atol=1e-6)
    for sample in (ours, np.array(theirs)):
        for x, low, high in zip(sample.T, *STARTS[kind], strict=True):
            if low == high:
                assert (x == low).all()
            else:
                assert stats.kstest(x, "uniform", args=(low, high - low)).pvalue > 0.001
    if env.initial_noise > 1:  # one uniform for each component
        correlation = np.corrcoef(ours.T) - np.eye(env.initial_noise)
        assert np.abs(correlation).max() < 0.1


@each_env
def test_equal_noise_gives_equal_starts(kind: type[NativeEnv]) -> None:
    """In another object, in a reset within a step, beside others; other noise gives others."""
    env, rng = kind(), np.random.default_rng(5)
    noise = uniforms(rng, 2, 5, env.initial_noise).float()
    state, obs = env.reset(noise)
    again, obs_again = kind().reset(noise.clone())
    assert torch.equal(state.physics, again.physics)
    assert torch.equal(obs, obs_again)
    assert len(obs.flatten(0, 1).unique(dim=0)) == 10
    old = State(state.physics.flip(1), torch.full((2, 5), env.spec.time_limit - 1).int())
    step = env.step(old, random_actions(env, torch.full((2, 5), 0.5)), noise)
    assert step.truncated.all()
    assert torch.equal(step.obs, obs)
    assert torch.equal(step.state.physics, state.physics)


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
def test_a_seed_has_the_same_bits_in_any_batch(kind: type[NativeEnv], N: int) -> None:
    """210 steps, resets included, of seed 4: alone, beside another one, among ten."""
    env = kind()

    def of_seed_4(seeds: list[int]) -> Tensor:
        noise = SeedStreams(seeds, "train").uniform(210, N, 1 + env.noise_size)
        return rollout(env, noise)[seeds.index(4)]

    alone = of_seed_4([4])
    assert alone[..., -2:].any()  # some episode has ended
    assert torch.equal(of_seed_4([9, 4]), alone)
    assert torch.equal(of_seed_4(list(range(10))), alone)


@each_env
def test_nan_stays_in_its_environment(kind: type[NativeEnv]) -> None:
    """The neighbours keep their bits, and the next episode of the broken one is clean."""
    env, rng = kind(), np.random.default_rng(6)
    shape = (3, 4)
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


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@each_env
def test_one_step_on_a_gpu(kind: type[NativeEnv]) -> None:
    env, rng = kind(), np.random.default_rng(7)
    noise = uniforms(rng, 4, 64, env.noise_size)
    actions = random_actions(env, uniforms(rng, 4, 64))
    state, _ = env.reset(noise)
    on_gpu, _ = env.reset(noise.cuda())
    a, b = env.step(state, actions, noise), env.step(on_gpu, actions.cuda(), noise.cuda())
    for x, y in zip((*a.state, *a[1:]), (*b.state, *b[1:]), strict=True):
        torch.testing.assert_close(x, y.cpu(), rtol=0, atol=1e-12)
