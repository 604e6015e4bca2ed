"""What a training does in an environment that somebody wrote: a right value, a note or a line."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from itertools import cycle
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces

from manyseeds.benchmarks.experiments import catalog
from manyseeds.envs.gymnasium_bridge import TRIED
from manyseeds.errors import UsageError
from manyseeds.runs.control import Run, say_notes
from tests.algos.test_traps import SMALL

Output = pytest.CaptureFixture[str]
INF, NAN = math.inf, math.nan
DEEP = [*SMALL]
TABLES = ["q_learning", "sarsa"]


class Odd(gym.Env[Any, Any]):
    """Pays 1 a step and shows the step, `[2]`, unless its arguments say otherwise.

    late: the steps of an episode in which it is as usual.
    """

    shared = np.random.default_rng(0)
    steps = 0  # of all of them

    def __init__(self, reward: float = 1.0, late: int = 0, **odd: Any) -> None:
        self.odd = {"shows": lambda env: np.full(2, env.t / 100, np.float32), **odd}
        self.observation_space = odd.get("sees", spaces.Box(-INF, INF, (2,)))
        self.action_space = odd.get("acts", spaces.Discrete(2))
        self.reward, self.late = reward, late

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.t = 0
        return self.odd["begins"](self) if "begins" in self.odd else (self.odd["shows"](self), {})

    def step(self, action: Any) -> Any:
        self.t, self.action = self.t + 1, action
        Odd.steps += 1
        if "returns" in self.odd and self.t > self.late:
            return self.odd["returns"](self)
        pays = self.odd["pays"](self) if "pays" in self.odd and self.t > self.late else self.reward
        return self.odd["shows"](self), pays, self.t >= self.odd.get("ends", INF), False, {}

    @classmethod
    def plain(cls, reward: float = 1.0) -> Odd:
        return cls(reward)

    def close(self) -> None:
        if "closes" in self.odd:
            raise RuntimeError("it cannot be closed")


class Seedless(Odd):
    """As before gym 0.26."""

    def reset(self) -> Any:  # type: ignore[override]
        return np.zeros(2)


class DrawnAtOnce(Odd):
    def __init__(self, **odd: Any) -> None:
        super().__init__(np.random.normal(), **odd)  # noqa: NPY002


class Unmakable(Odd):
    def __init__(self, **odd: Any) -> None:
        raise KeyError("boom")


def fails(*_: Any) -> Any:
    raise KeyError("boom")


def late_nan(env: Odd) -> Any:
    return np.full(2, NAN if env.t > 60 else 0.0)


def zeros(_: Odd) -> np.ndarray:
    return np.zeros(2)


def action(env: Odd) -> float:
    return float(np.sum(env.action))


def box(
    low: Any, high: Any, shape: tuple[int, ...] = (1,), dtype: Any = np.float32, **others: Any
) -> dict[str, Any]:
    return {"acts": spaces.Box(low, high, shape, dtype), "pays": action, **others}


def seen(space: Any, shown: Any) -> dict[str, Any]:
    return {"sees": space, "shows": lambda env: shown}


def paid(value: Any, **others: Any) -> dict[str, Any]:
    return {"pays": lambda env: value, **others}


def drawn(draw: Any) -> dict[str, Any]:
    return {"pays": lambda env: float(draw())}


MIXED = {"a": spaces.Discrete(3), "b": spaces.Box(0, 1, (2, 2))}
SHOWN = {"a": 2, "b": np.ones((2, 2), np.float32)}
FAR = "has actions from 1000 to 2000, and a policy's first ones are around 0 with a standard devi"
DIFFER = "with one seed and the same actions differ at step 1: the run cannot be repeated"
NO_LIMIT = "is registered without a time limit: episodes are cut after 1000 steps"
STEP = "(observation, reward, terminated, truncated, info)"


class Diverges(NamedTuple):
    """The score of seeds that diverge; None is unknown."""

    score: float | None


REFUSED, REPEATS = "refused", "repeats"
# What an environment is, what comes of it and what is said: a score, REPEATS for some score that is
# the same in every batch, or nothing because it is refused.
CASES: dict[str, tuple[dict[str, Any], Any, str]] = {
    "plain": ({}, 5.0, ""),
    "one step": ({"ends": 1}, 1.0, ""),
    "a reward of 1e-6": ({"reward": 1e-6}, 5e-6, ""),
    "a reward of 1e30": ({"reward": 1e30}, Diverges(5e30), ""),
    "a bool as reward": (paid(np.bool_(True)), 5.0, ""),
    "an array of no dimension as reward": (paid(np.array(2)), 10.0, ""),
    "a reward of NaN": (paid(NAN, late=3), Diverges(None), "a reward is nan at step 4 of an epi"),
    "an infinite reward": (paid(INF), Diverges(None), "a reward is inf at step 1 of an episode"),
    "a reward beyond float32": (paid(-1e300), Diverges(None), "a reward is -inf at step 1 of an"),
    "no reward": (paid(None), REFUSED, "a reward of type NoneType, must be a number"),
    "an array as reward": (paid(np.ones(1)), REFUSED, "type ndarray and shape (1,), must be a num"),
    "a text as reward": (paid("1"), REFUSED, "a reward of type str, must be a number"),
    "an observation of NaN": (
        seen(spaces.Box(-1, 1, (2,)), [0, NAN]),
        *(REFUSED, "an observation is nan in float32 at step 0 after reset(seed=0)"),
    ),
    "a late observation of NaN": (
        {"shows": late_nan, "limit": 70, "total_timesteps": 512},
        *(Diverges(70.0), "an observation is nan at step 61 of an episode"),
    ),
    "an observation beyond float32": (
        seen(spaces.Box(-INF, INF, (2,), np.float64), [0.0, 1e300]),
        *(REFUSED, "an observation is inf in float32 at step 0"),
    ),
    "NumPy's global generator": (drawn(lambda: np.random.normal()), REPEATS, ""),  # noqa: NPY002
    "Python's global generator": (drawn(random.random), REPEATS, ""),
    "PyTorch's global generator": (drawn(lambda: torch.rand(())), REPEATS, ""),
    "an unseeded generator": (drawn(lambda: np.random.default_rng().random()), ..., DIFFER),
    "a generator that all share": (drawn(lambda: Odd.shared.random()), ..., DIFFER),
    "no limit": ({"limit": None}, 1000.0, NO_LIMIT),
    "a limit of -1": ({"limit": -1, "ends": 7}, 7.0, NO_LIMIT),
    "a limit of 0": ({"limit": 0}, REFUSED, "its max_episode_steps is 0; it must be a whole num"),
    "half a limit": ({"limit": 2.5}, REFUSED, "its max_episode_steps is 2.5; it must be"),
    "actions far from 0": (box(1000, 2000), 5000.0, FAR),
    "actions far from 0, rescaled": (box(1000, 2000, rescale_actions=True), 7500.0, ""),
    "a large range": (box(-3e38, 3e38), ..., "has actions from -3e+38 to 3e+38, and a policy's f"),
    "a large range, rescaled": (
        box(-3e38, 3e38, rescale_actions=True, pays=lambda e: np.abs(e.action).max() < 2.9e38),
        *(5.0, ""),
    ),
    "no bounds": (box(-INF, INF), ..., ""),
    "one bound": (box(5, INF), 25.0, "has actions from 5 to inf"),
    "no bounds, rescaled": (box(-INF, INF, rescale_actions=True), REFUSED, "have no bounds"),
    "discrete actions, rescaled": ({"rescale_actions": True}, REFUSED, "has discrete actions"),
    "one possible action": (box(1, 1), 5.0, ""),
    "actions of two dimensions": (box(-1, 1, (2, 3)), ..., ""),
    "actions of float64": (box(-1, 1, dtype=np.float64), ..., ""),
    "no actions": (box(-1, 1, (0,)), REFUSED, "its actions are a float32 Box of shape (0,)"),
    "whole actions": (
        box(0, 9, dtype=np.int64),
        REFUSED,
        "its actions are a int64 Box of shape (1",
    ),
    "several actions": (
        {"acts": spaces.MultiDiscrete([2])},
        REFUSED,
        "actions are a MultiDiscrete",
    ),
    "actions from 7": ({"acts": spaces.Discrete(1, start=7), "pays": action}, 35.0, ""),
    "states": (seen(spaces.Discrete(4), 3), 5.0, ""),
    "states that pay NaN": (
        {**seen(spaces.Discrete(4), 3), **paid(NAN)},
        *(Diverges(None), "a reward is nan at step 1 of an episode"),
    ),
    "states from -3": (seen(spaces.Discrete(4, start=-3), np.int64(-3)), 5.0, ""),
    "a state outside": (seen(spaces.Discrete(4), 4), REFUSED, "observation 4 is not in its space"),
    "a state as a float": (seen(spaces.Discrete(4), 3.0), REFUSED, "3.0 is not a whole number"),
    "several states": (seen(spaces.MultiDiscrete([2, 3]), np.array([1, 2])), 5.0, ""),
    "bits": (seen(spaces.MultiBinary(3), np.array([0, 1, 1], np.int8)), 5.0, ""),
    "a dictionary": (seen(spaces.Dict(MIXED), SHOWN), 5.0, ""),
    "a tuple": (seen(spaces.Tuple(tuple(MIXED.values())), tuple(SHOWN.values())), 5.0, ""),
    "a matrix": (seen(spaces.Box(0, 1, (2, 3)), np.ones((2, 3))), 5.0, ""),
    "an image": (seen(spaces.Box(0, 255, (8, 8, 3), np.uint8), 0), REFUSED, "a uint8 Box of shape"),
    "a text to see": (seen(spaces.Text(5), "x"), REFUSED, "its observations are a Text"),
    "nothing to see": (seen(spaces.Box(-1, 1, (0,)), []), REFUSED, "a float32 Box of shape (0,)"),
    "observations of int8": (seen(spaces.Box(0, 9, (2,), np.int8), np.ones(2, np.int8)), 5.0, ""),
    "observations of float16": (seen(spaces.Box(0, 9, (2,), np.float16), np.ones(2)), 5.0, ""),
    "a list as observation": (seen(spaces.Box(0, 9, (2,)), [1, 2]), 5.0, ""),
    "a wrong shape": (
        seen(spaces.Box(0, 9, (2,)), np.ones(3)),
        REFUSED,
        "shape (3,), its space ha",
    ),
    "a constructor that raises": ({"kind": fails}, REFUSED, "'boom'"),
    "a late step that raises": (
        {"returns": fails, "late": 60, "limit": 70},
        *(REFUSED, "its step failed: KeyError: 'boom'"),
    ),
    "close() that raises": ({"closes": True}, 5.0, ""),
    "reset without info": ({"begins": zeros}, REFUSED, "it must return (observation, info)"),
    "reset without a seed": (
        {"kind": Seedless},
        REFUSED,
        "it must be reset(self, *, seed=None, opt",
    ),
    "step of four": ({"returns": lambda env: (zeros(env), 1.0, False, {})}, REFUSED, STEP),
    "no flag": (
        {"returns": lambda env: (zeros(env), 1.0, None, False, {})},
        *(REFUSED, "terminated of type NoneType, must be a bool"),
    ),
    "arguments": ({"env_kwargs": ("reward=2", "max_episode_steps=3")}, 6.0, ""),
    "an unknown argument": (
        {"kind": Odd.plain, "env_kwargs": ("rewards=2",)},
        *(REFUSED, "--env-kwargs rewards: odd/Odd-v0 takes no such argument; did you mean reward?"),
    ),
    "an argument twice": ({"env_kwargs": ("reward=2", "reward=1")}, REFUSED, "is given twice"),
    "an argument without a value": ({"env_kwargs": ("reward",)}, REFUSED, "must be key=value"),
    "a global generator in the constructor": ({"kind": DrawnAtOnce}, REPEATS, ""),
    "a global generator later on": (
        {**drawn(random.random), "late": 60, "limit": 70, "total_timesteps": 512},
        *(..., "draws from a global random generator, not yet in its first 50 steps"),
    ),
    "too many states": (
        seen(spaces.Discrete(10**9), 3),
        *(REFUSED, "has 1,000,000,000 states; as one-hot vectors at most 100,000"),
    ),
    "an argument of no use": (
        {"env_kwargs": ("reward=abc",)},
        *(REFUSED, "--env odd/Odd-v0 --env-kwargs reward=abc: its step failed: ValueError: a rewa"),
    ),
    "an argument that the constructor refuses": (
        {"kind": Unmakable, "env_kwargs": ("map=5x5",)},
        *(REFUSED, "--env odd/Odd-v0 --env-kwargs map=5x5: KeyError: 'boom'"),
    ),
    "no limit, as an argument": (
        {"env_kwargs": ("max_episode_steps=-1",), "ends": 7},
        *(7.0, "is asked for without a time limit: episodes are cut after 1000 steps"),
    ),
    "True as a limit": (
        {"env_kwargs": ("max_episode_steps=True",)},
        *(REFUSED, "its max_episode_steps is True; it must be a whole number"),
    ),
}
# Not of those that came later: planted bugs name the cases and whose turn they are.
LATER = {"pqn", "rainbow", "sac_discrete"}
TURN = dict(zip(CASES, cycle([algo for algo in DEEP if algo not in LATER]), strict=False))


def algos_of(name: str) -> list[str]:
    """Those that a case is tried with: one of the deep ones in turn, and of some cases all."""
    odd, _, _ = CASES[name]
    if name in ("plain", "one step", "a reward of NaN"):
        return DEEP
    if name == "a reward of 1e30":  # the square of a return, of which GRPO has none, is infinite
        return ["ppo", "a2c"]
    if isinstance(odd.get("sees"), spaces.Discrete) and name != "too many states":
        return [*DEEP, *TABLES] if name == "states" else TABLES
    return ["ppo" if isinstance(odd.get("acts"), spaces.Box) else TURN[name]]


@pytest.fixture(autouse=True)
def _registry() -> Iterator[None]:
    before = dict(gym.registry)
    yield
    gym.registry.clear()
    gym.registry.update(before)


def register(odd: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """The id of an environment, and the settings of the training."""
    odd = dict(odd)
    settings = {k: odd.pop(k) for k in ("env_kwargs", "rescale_actions") if k in odd}
    settings |= {"total_timesteps": odd.pop("total_timesteps")} if "total_timesteps" in odd else {}
    limit, kind = odd.pop("limit", 5), odd.pop("kind", Odd)
    gym.registry.pop("odd/Odd-v0", None)
    gym.register("odd/Odd-v0", kind, max_episode_steps=limit, kwargs=odd)
    return "odd/Odd-v0", settings


def train(algo: str, odd: dict[str, Any], seeds: Any = range(2)) -> tuple[dict[str, Any], Any]:
    """The summary of a training, and its policy."""
    env_id, settings = register(odd)
    small = {"hidden": (8,), "total_timesteps": 128, **SMALL.get(algo, {}), **settings}
    if algo in TABLES:
        small = {"total_timesteps": 500}
    module = catalog.module("algos", algo)
    config = module.Config(env=env_id, quiet=True, eval_budget=0.02, **small)
    run = Run(config, seeds)
    say_notes(config, config.make_env())
    policy = module.train(config, run)
    return run.finish(policy), policy


@pytest.mark.parametrize(("name", "algo"), [(x, algo) for x in CASES for algo in algos_of(x)])
def test_what_becomes_of_it(name: str, algo: str, capsys: Output) -> None:
    odd, outcome, text = CASES[name]
    if outcome == REFUSED:
        with pytest.raises(UsageError) as refused:
            train(algo, odd)
        assert text in str(refused.value)
        assert "\n" not in str(refused.value) + capsys.readouterr().err
        return
    summary, policy = train(algo, odd)
    said = capsys.readouterr().err
    assert text in said
    assert said.count("\n") == bool(text)
    found = [*summary["final"]["greedy"]["per_seed"].values()]
    assert len(summary["diverged"]) == 2 * isinstance(outcome, Diverges)
    if outcome == REPEATS:
        again, same = train(algo, odd)
        assert again["final"] == summary["final"]
        _, alone = train(algo, odd, [1])
        tensors = (x.state_dict().values() for x in (policy, same, alone))
        for one, other, single in zip(*tensors, strict=True):
            assert torch.equal(one, other)
            assert torch.equal(one[1:], single)
    elif outcome == Diverges(None):
        assert found == [None, None]
    elif outcome is ...:
        assert np.isfinite(found).all()
    else:
        score = outcome.score if isinstance(outcome, Diverges) else outcome
        assert found == pytest.approx([score] * 2, rel=0.05)


@pytest.mark.parametrize("algo", ["grpo", "reinforce"])
def test_episodes_that_have_ended_are_not_played_on(algo: str) -> None:
    """Steps of somebody's environment may be slow: those of trying it out, learning, evaluating."""
    Odd.steps = 0
    train(algo, {"ends": 1, "limit": 1000})
    assert Odd.steps < 2 * 2 * TRIED + 2 * 128 + 2 * 2 * 25
