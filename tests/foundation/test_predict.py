"""`policy.predict` plays in Gymnasium's own environment what an evaluation plays."""

from __future__ import annotations

import copy
import dataclasses
import importlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor

from manyseeds.algos import ppo
from manyseeds.errors import UsageError
from manyseeds.record import RunFolder
from manyseeds.runs.control import Run, main
from tests.algos.test_seed_axis import BUDGETS

pytestmark = pytest.mark.usefixtures("few_evaluations")
STEPS = 60
SEEDS = [4, 7]
DICT = spaces.Dict({"a": spaces.Box(-1, 1, (2, 1)), "b": spaces.MultiDiscrete([2, 3])})
# Spaces that the bridge translates: numbers that do not begin at 0, parts, shapes.
SPACES: dict[str, tuple[Any, Any]] = {
    "Offset": (spaces.Discrete(5, start=-2), spaces.Discrete(3, start=10)),
    "Parts": (DICT, spaces.Box(-0.01, 0.02, (2, 1))),
    "Pair": (spaces.Tuple((spaces.Discrete(3), DICT)), spaces.Discrete(2)),
    "Matrix": (spaces.Box(-1, 1, (2, 3)), spaces.Discrete(3)),
}


class Sampled(gym.Env[Any, Any]):
    """Shows samples of its space; pays the first part of the action."""

    def __init__(self, name: str) -> None:
        self.observation_space, self.action_space = copy.deepcopy(SPACES[name])

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.observation_space.seed(seed)
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> Any:
        assert self.action_space.contains(action)
        reward = float(np.ravel(action)[0])
        return self.observation_space.sample(), reward, False, False, {}


@pytest.fixture(autouse=True)
def _sampled() -> Iterator[None]:
    before = dict(gym.registry)
    for name in SPACES:
        gym.register(f"predict/{name}-v0", Sampled, max_episode_steps=9, kwargs={"name": name})
    yield
    gym.registry.clear()
    gym.registry.update(before)


def trained(algo: str, seeds: list[int] = SEEDS, **settings: Any) -> Any:
    """Policies that act at random, mostly, and the Config."""
    module = importlib.import_module(f"manyseeds.algos.{algo}")
    config = module.Config(quiet=True, **{**BUDGETS[algo], **settings})
    return module.train(config, Run(config, seeds)), config


def played(env_id: str, predict: Callable[[Any], Any]) -> list[float]:
    """The rewards of an episode in Gymnasium, of its first steps."""
    env = gym.make(env_id)
    obs, _ = env.reset(seed=0)
    rewards, terminated, truncated = [], False, False
    while not (terminated or truncated) and len(rewards) < STEPS:
        action = predict(obs)
        assert env.action_space.contains(action)
        obs, reward, terminated, truncated, _ = env.step(action)
        rewards.append(float(reward))
    return rewards


@torch.inference_mode()
def evaluated(config: Any, act: Callable[[Tensor], Tensor], row: int) -> list[float]:
    """The same of one seed, as an evaluation plays it on the bridge."""
    env = dataclasses.replace(config, backend="gymnasium").make_env()
    noise = torch.zeros(len(SEEDS), 1, 2)  # reset(seed=0)
    state, obs = env.reset(noise)
    rewards: list[float] = []
    while len(rewards) < STEPS:
        step = env.step(state, act(obs), noise)
        state, obs = step.state, step.obs
        rewards.append(float(step.reward[row, 0]))
        if (step.terminated | step.truncated)[row, 0]:
            break
    return rewards


CASES: list[tuple[str, dict[str, Any]]] = [
    ("ppo", {"env": "CartPole-v1"}),
    ("dqn", {"env": "CartPole-v1"}),
    ("ppo", {"env": "Pendulum-v1", "normalize_obs": True, "log_std_init": 1.0}),
    ("a2c", {"env": "Pendulum-v1", "rescale_actions": True}),
    ("ppo", {"env": "FrozenLake-v1"}),  # one-hot vectors
    ("q_learning", {"env": "FrozenLake-v1"}),
    ("sarsa", {"env": "Taxi-v4"}),
    *(("ppo", {"env": f"predict/{name}-v0"}) for name in SPACES),
]


@pytest.mark.parametrize(("algo", "settings"), CASES)
def test_an_episode_is_an_evaluations(algo: str, settings: dict[str, Any]) -> None:
    policy, config = trained(algo, **settings)
    if config.env == "Pendulum-v1":  # around the bound of its actions
        policy.networks.biases[-1].data += 1.0 if config.rescale_actions else 2.0
    for row, seed in enumerate(SEEDS):
        found = played(config.env, lambda obs, seed=seed: policy.predict(obs, seed=seed))
        np.testing.assert_allclose(found, evaluated(config, policy.act, row), rtol=1e-6, atol=1e-6)


def test_binned_observations() -> None:
    policy, config = trained("q_learning", env="CartPole-v1", total_timesteps=2000)
    obs = np.random.default_rng(0).normal(0, 0.5, (50, 4)).astype(np.float32)
    states = config.make_env().observe(torch.from_numpy(obs)).expand(2, -1)
    expected = policy.act(states)[1].tolist()
    assert policy.predict(obs, seed=7).tolist() == expected
    assert len(set(expected)) == 2


def test_many_observations_a_copy_and_what_is_stored(tmp_path: Path) -> None:
    settings = {**BUDGETS["ppo"], "env": "Pendulum-v1", "seeds": 2, "results": str(tmp_path)}
    config = ppo.Config(quiet=True, **settings)
    main(config, ppo.train, ppo.PRESETS)
    (part,) = RunFolder.of(config, "ppo").parts()
    loaded, obs = ppo.load(part), np.random.default_rng(0).normal(size=(20, 3))
    many = loaded.predict(obs, seed=1)
    assert many.shape == (20, 1)
    alone = [loaded.predict(x, seed=1) for x in obs.tolist()]  # a list, too
    np.testing.assert_allclose(many, np.stack(alone), atol=1e-6)
    copied = copy.deepcopy(loaded)
    for parameter in copied.parameters():
        parameter.data.zero_()
    assert (copied.predict(obs, seed=1) == 0).all()
    assert (loaded.predict(obs, seed=1) == many).all()


def test_mistakes_are_one_line() -> None:
    policy, _ = trained("ppo", env="CartPole-v1")
    table, _ = trained("q_learning", env="FrozenLake-v1", seeds=[5])
    parts, _ = trained("ppo", env="predict/Parts-v0", seeds=[5])
    obs = np.zeros(4)
    assert table.predict(0) in range(4)  # of one seed
    for predict, given, message in (
        (policy, (obs,), r"which seed\? there are policies of the seeds 4, 7"),
        (policy, (obs, 5), "no seed 5; there are policies of the seeds 4, 7"),
        (policy, (obs[:3], 4), r"shape \[3\]; CartPole-v1 has \[4\], or \[N, 4\] for many"),
        (policy, (np.zeros((1, 1, 4)), 4), r"shape \[1, 1, 4\]"),
        (policy, ("left", 4), "must be an array of numbers"),
        (policy, ([[0, 0], [0]], 4), "must be an array of numbers"),
        (table, (obs[None],), r"shape \[1, 4\]; FrozenLake-v1 has \[\], or \[N\] for many"),
        (table, (16,), "has the states 0 to 15"),
        (table, (0.5,), "has the states 0 to 15"),
        (table, (0, 4), "no seed 4; there are policies of seed 5"),
        (parts, ({"a": 1},), "predict/Parts-v0"),
    ):
        with pytest.raises(UsageError, match=message):
            predict.predict(*given)
