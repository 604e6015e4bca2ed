"""The environments in C, against their Python and against Gymnasium's own."""

from __future__ import annotations

import ctypes
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from manyseeds import kernels
from manyseeds.envs import (
    Acrobot,
    CartPole,
    FrozenLake,
    MountainCar,
    MountainCarContinuous,
    NativeEnv,
    Pendulum,
)
from manyseeds.envs.kernels import GUARDS, address
from tests.envs.checks import Checks, declared, difference, random_actions, uniforms

CHECKS = declared()

each_env = pytest.mark.parametrize("kind", GUARDS)


def checks_of(kind: type[NativeEnv]) -> Checks:
    return CHECKS[kind.spec.id]


@pytest.fixture(autouse=True)
def has_kernels() -> None:
    if not kernels.available():
        pytest.skip("needs a C compiler")


# ---- The C code, called from Python -------------------------------------------------------


class Environment(ctypes.Structure):
    """`environment` of manyseeds/kernels/environment.h.

    ctypes passes no unions: an action is a pointer or a number of the same size.
    """

    _fields_ = (
        *((name, ctypes.c_int) for name in ("physics", "observation")),
        *((name, ctypes.c_int) for name in ("initial_noise", "transition_noise")),
        ("initial", ctypes.CFUNCTYPE(None, *2 * [ctypes.c_void_p])),
        ("observe", ctypes.CFUNCTYPE(None, *2 * [ctypes.c_void_p])),
        ("step", ctypes.CFUNCTYPE(ctypes.c_float, *4 * [ctypes.c_void_p])),
    )


class CEnvironment:
    """An environment's C code, for n environments one after the other; float32."""

    def __init__(self, env: NativeEnv) -> None:
        where = address(env)
        assert where is not None
        self.continuous = env.spec.continuous
        self.c: Any = Environment.from_address(where)

    def initial(self, noise: Tensor) -> Tensor:
        """States `[n, D]`; noise `[n, initial_noise]`."""
        physics = torch.empty(len(noise), self.c.physics)
        for i in range(len(noise)):
            self.c.initial(noise[i].data_ptr(), physics[i].data_ptr())
        return physics

    def observe(self, physics: Tensor) -> Tensor:
        """Observations `[n, O]`."""
        obs = torch.empty(len(physics), self.c.observation)
        for i in range(len(physics)):
            self.c.observe(physics[i].data_ptr(), obs[i].data_ptr())
        return obs

    def step(self, physics: Tensor, actions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Successors `[n, D]`, rewards and terminated flags `[n]`."""
        physics = physics.clone()
        rewards = torch.empty(len(physics))
        terminated = torch.full((len(physics),), 7, dtype=torch.int32)  # neither 0 nor 1
        for i in range(len(physics)):
            action = actions[i].data_ptr() if self.continuous else int(actions[i])
            rewards[i] = self.c.step(physics[i].data_ptr(), action, None, terminated[i].data_ptr())
        assert set(terminated.tolist()) <= {0, 1}
        return physics, rewards, terminated.bool()


def random_states(kind: type[NativeEnv], rng: np.random.Generator, n: int) -> Tensor:
    """Also such as no episode reaches, `[n, D]`."""
    low, high = torch.tensor(checks_of(kind).widest)
    return low + (high - low) * uniforms(rng, n, len(low)).float()


def all_actions(env: NativeEnv, rng: np.random.Generator, n: int) -> list[Tensor]:
    """Every action for n environments; of continuous ones both bounds, none and random ones."""
    if not env.spec.continuous:
        return [torch.full((n,), a) for a in range(env.spec.num_actions)]
    high = env.spec.action_high[0]
    some = random_actions(env, uniforms(rng, n).float())
    return [some, *(torch.full((n, 1), x) for x in (-high, 0.0, high))]


# ---- Against the Python -------------------------------------------------------------------


@pytest.mark.parametrize("share", [1, 0.25])
@each_env
def test_one_step_is_that_of_the_python(kind: type[NativeEnv], share: float) -> None:
    """The state against float64. Rewards and flags: those of the state that the C code came to."""
    env, rng, n = kind(), np.random.default_rng(9), 2_000
    c_env, physics, ends = CEnvironment(env), random_states(kind, rng, n) * share, 0
    no_noise, checks = torch.empty(n, 0), checks_of(kind)
    for actions in all_actions(env, rng, n):
        after, rewards, terminated = c_env.step(physics, actions)
        double = actions.double() if env.spec.continuous else actions
        exact = env.transition(physics.double(), double, no_noise)
        assert (after[..., : checks.angles].abs() <= math.pi + 1e-6).all()
        tolerance = checks.c_step if share == 1 else checks.c_slow_step
        assert difference(checks.angles, after, exact).max() <= tolerance
        decided = torch.ones(n, dtype=torch.bool)
        if kind is Acrobot:  # the height of its end is rounded
            theta1, theta2, *_ = after.double().unbind(-1)
            decided = (theta1.cos() + (theta1 + theta2).cos() + 1).abs() > 1e-6
            assert decided.sum() >= n - 5
        assert torch.equal(terminated[decided], env.terminal(after)[decided])
        expected = env.reward(physics, actions, after)
        limit = 2e-5 if kind is Pendulum else 1e-7  # whole turns are taken off 50 rad
        torch.testing.assert_close(rewards[decided], expected[decided], rtol=2e-7, atol=limit)
        ends += int(terminated.sum())
    assert ends > 100 or kind is Pendulum or share < 1


def at_the_edges(kind: type[NativeEnv], rng: np.random.Generator, n: int) -> tuple[Tensor, Tensor]:
    """States `[n, D]` whose successors are within a few roundings of where the task ends.

    And edges that some successors are exactly at, `[m, 2]`: a component's index and its value.
    """
    places = torch.from_numpy(rng.integers(-2, 3, n)).int()  # in units of the last place
    sign = torch.from_numpy(rng.choice([-1.0, 1.0], n)).float()

    def beside(edge: float) -> Tensor:
        return (torch.full((n,), edge).view(torch.int32) + places).view(torch.float32)

    if kind is CartPole:  # at rest
        x, theta, zero = beside(2.4), beside(math.pi / 15), torch.zeros(n)
        x[::2], theta[1::2] = 0, 0
        physics = torch.stack((sign * x, zero, sign * theta, zero), dim=-1)
        return physics, torch.tensor([[0, 2.4], [0, -2.4], [2, math.pi / 15], [2, -math.pi / 15]])
    goal = kind.goal  # type: ignore[attr-defined]
    position = beside(goal)  # where the hill brings the car to a halt, nearly
    velocity = 0.0025 * (3 * position).cos() + 1e-8 * sign
    return torch.stack((position, velocity), dim=-1), torch.tensor([[0, goal]])


@pytest.mark.parametrize("kind", [CartPole, MountainCar, MountainCarContinuous])
def test_ends_exactly_where_the_python_does(kind: type[NativeEnv]) -> None:
    env, rng, n = kind(), np.random.default_rng(3), 2_000
    physics, edges = at_the_edges(kind, rng, n)
    idle = torch.zeros(n, 1) if env.spec.continuous else torch.ones(n).long()
    after, rewards, terminated = CEnvironment(env).step(physics, idle)
    for index, value in edges.tolist():
        assert (after[:, int(index)] == torch.tensor(value)).sum() >= 5
    assert torch.equal(terminated, env.terminal(after))
    assert torch.equal(rewards, env.reward(physics, idle, after))
    assert 100 < terminated.sum() < n - 100


@each_env
def test_starts_and_observations_are_those_of_the_python(kind: type[NativeEnv]) -> None:
    """Within a rounding: a processor may round a product and its sum once."""
    env, rng, n = kind(), np.random.default_rng(5), 2_000
    c_env, noise = CEnvironment(env), uniforms(rng, n, env.initial_noise).float()
    noise[0], noise[1] = 0, 1 - 2**-24
    starts = c_env.initial(noise)
    tolerance = {CartPole: 1e-8, Acrobot: 1e-8, Pendulum: 3e-7}.get(kind, 6e-8)
    torch.testing.assert_close(starts, env.initial(noise), rtol=0, atol=tolerance)
    for physics in (starts, random_states(kind, rng, n)):
        obs, expected = c_env.observe(physics), env.observation(physics)
        torch.testing.assert_close(obs, expected, rtol=0, atol=1.2e-7)
    assert c_env.c.physics == starts.shape[-1]
    assert c_env.c.observation == env.spec.obs_size
    assert c_env.c.initial_noise == env.initial_noise
    assert c_env.c.transition_noise == env.transition_noise


@each_env
def test_nan_stays(kind: type[NativeEnv]) -> None:
    """In what the Python has it in, and nowhere else; it ends no task."""
    env, rng, n = kind(), np.random.default_rng(6), 20
    c_env, size = CEnvironment(env), len(checks_of(kind).widest[0])
    for broken in range(size + env.spec.continuous):
        physics = random_states(kind, rng, n) / 10
        actions = random_actions(env, uniforms(rng, n).float())
        if broken < size:
            physics[:, broken] = math.nan
        else:
            actions.fill_(math.nan)
        after, rewards, terminated = c_env.step(physics, actions)
        expected = env.transition(physics, actions, torch.empty(n, 0))
        assert after.isnan().any(-1).all()
        assert torch.equal(after.isnan(), expected.isnan())
        assert torch.equal(rewards.isnan(), env.reward(physics, actions, expected).isnan())
        assert not terminated.any()
        assert torch.equal(c_env.observe(after).isnan(), env.observation(expected).isnan())


# ---- The library --------------------------------------------------------------------------


class LongPole(CartPole):
    """Another environment, of which CartPole's C code knows nothing."""


def test_only_what_is_written_in_c_has_an_address() -> None:
    assert address(CartPole()) == address(CartPole())
    assert len({address(kind()) for kind in GUARDS}) == len(GUARDS)
    assert address(LongPole()) is None
    assert address(FrozenLake(4)) is None
    with kernels.off():
        assert address(CartPole()) is None


def test_a_library_is_built_anew_for_other_headers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And kept for the same ones."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(kernels, "HERE", tmp_path)
    source, header = tmp_path / "number.c", tmp_path / "number.h"
    source.write_text('#include "number.h"\nconst int number = NUMBER;\n')
    numbers, names = [], []
    for text in ("1", "2", "1"):
        header.write_text(f"#define NUMBER {text}\n")
        library = kernels.load_library([source]).functions
        numbers.append(ctypes.c_int.in_dll(library, "number").value)
        names.append(library._name)
    assert numbers == [1, 2, 1]
    assert names[0] == names[2] != names[1]
