"""Five probe environments: every deep algorithm, in seconds, all seeds.

Each asks for one thing more than the one before, so that the first to fail names the fault: values
at all, values that depend on the observation, discounting, a policy, a policy that depends on the
observation. After the debugging advice of Andy Jones (2021), as rejax tests itself.
"""

from __future__ import annotations

import importlib
from typing import Any

import pytest
import torch
from torch import Tensor

from manyseeds import envs
from manyseeds.algos import reinforce
from manyseeds.evaluate import evaluate
from tests.algos.probes import (
    Endless,
    LateReward,
    OneChoice,
    OneReward,
    SignChoice,
    SignReward,
    train_on,
)

SEEDS = 10
GAMMA = 0.5
SETTINGS: dict[str, dict[str, Any]] = {
    "ppo": {"num_envs": 8, "num_steps": 8, "minibatch_size": 64, "learning_rate": 1e-2}
    | {"total_timesteps": 2560},
    "a2c": {"num_envs": 8, "num_steps": 8, "learning_rate": 1e-2, "anneal_lr": True}
    | {"total_timesteps": 3840},
    "trpo": {"num_envs": 8, "num_steps": 8, "minibatch_size": 64, "learning_rate": 1e-2}
    | {"target_kl": 0.02, "critic_epochs": 8, "total_timesteps": 1280},
    "dqn": {"num_envs": 4, "train_freq": 2, "gradient_steps": 2, "learning_rate": 1e-2}
    | {"batch_size": 32, "learning_starts": 64, "target_update_interval": 40}
    | {"total_timesteps": 1200},
    "rainbow": {"num_envs": 4, "train_freq": 2, "gradient_steps": 2, "learning_rate": 1e-2}
    | {"batch_size": 32, "learning_starts": 64, "target_update_interval": 40}
    | {"v_min": -4.0, "v_max": 4.0, "atoms": 21, "total_timesteps": 1200},
    "pqn": {"num_envs": 8, "num_steps": 8, "minibatch_size": 32, "learning_rate": 3e-2}
    | {"total_timesteps": 2560},
    "reinforce": {"episodes": 32, "learning_rate": 2e-2, "critic_learning_rate": 2e-2}
    | {"minibatch_size": 32, "critic_updates": 6, "total_timesteps": 1600},
    "grpo": {"groups": 2, "group_size": 8, "epochs": 3, "learning_rate": 2e-2}
    | {"total_timesteps": 960},
}
# Who learns values, and who a policy; settings besides the above.
VALUES: dict[str, dict[str, Any]] = {
    "ppo": {},
    "a2c": {},
    "trpo": {},
    "dqn": {},
    "rainbow": {},
    "rainbow, quantiles": {"distribution": "quantile", "noisy": False},
    "rainbow, values": {"distribution": "none", "noisy": False},
    "pqn": {},
    "reinforce, baseline": {"weight": "baseline"},
    "reinforce, q": {"weight": "q"},
}
POLICIES: dict[str, dict[str, Any]] = {
    **VALUES,
    "reinforce, total return": {"weight": "total_return"},
    "reinforce, return to go": {"weight": "return_to_go"},
    "grpo": {},
}
# Who bootstraps from the last observation of an episode that was cut.
BOOTSTRAPPING: dict[str, dict[str, Any]] = {
    "ppo": {},
    "a2c": {},
    "a2c, n steps": {"advantage": "n_step", "n_steps": 4},
    "a2c, Monte Carlo": {"advantage": "monte_carlo"},
    "trpo": {},
    "dqn": {},
    "rainbow": {},
    "rainbow, quantiles": {"distribution": "quantile", "noisy": False},
    "rainbow, values": {"distribution": "none", "noisy": False},
    "pqn": {},
}


class Trained:
    """What an algorithm has learned on a probe, of either kind, in one set of terms."""

    def __init__(self, case: str, probe: envs.Env, monkeypatch: pytest.MonkeyPatch) -> None:
        self.algo = case.split(",")[0]
        self.critics: list[reinforce.Critic] = []  # which reinforce.train keeps to itself
        build = reinforce.Critic.__init__

        def spy(critic: reinforce.Critic, *args: Any) -> None:
            build(critic, *args)
            self.critics.append(critic)

        monkeypatch.setattr(reinforce.Critic, "__init__", spy)
        module = importlib.import_module(f"manyseeds.algos.{self.algo}")
        own = {**SETTINGS[self.algo], **{**POLICIES, **BOOTSTRAPPING}[case]}
        settings = {"hidden": (16,), "gamma": GAMMA, "seeds": SEEDS, **own}
        self.policy, _ = train_on(module, probe, monkeypatch, **settings)

    @torch.no_grad()
    def values(self, *obs: float) -> Tensor:
        """V [S, B] of B observations."""
        x = torch.tensor(obs).view(1, -1, 1).expand(SEEDS, -1, 1)
        if self.algo in ("dqn", "pqn", "rainbow"):
            return self.policy(x).amax(-1)  # type: ignore[no-any-return]
        if self.algo == "reinforce":
            return self.critics[0](x, torch.zeros(x.shape[:2], dtype=torch.int64))
        return self.policy.value(x)  # type: ignore[no-any-return]

    @torch.no_grad()
    def probabilities(self, *obs: float) -> Tensor:
        """Of action 1 [S, B], for B observations; 0 or 1 of a greedy policy."""
        x = torch.tensor(obs).view(1, -1, 1).expand(SEEDS, -1, 1)
        actions = torch.ones(x.shape[:2], dtype=torch.int64)
        if self.algo in ("dqn", "pqn", "rainbow"):
            return self.policy.act(x).float()  # type: ignore[no-any-return]
        if self.algo == "reinforce":
            return self.policy(x, actions)[0].exp()  # type: ignore[no-any-return]
        return self.policy.evaluate(x, actions)[0].exp()  # type: ignore[no-any-return]


def assert_close(got: Tensor, *expected: float, atol: float = 0.1) -> None:
    """In every seed."""
    torch.testing.assert_close(got, torch.tensor([expected] * SEEDS), atol=atol, rtol=0)


@pytest.mark.parametrize("case", VALUES)
def test_a_value(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert_close(Trained(case, OneReward(), monkeypatch).values(0.0), 1.0)


@pytest.mark.parametrize("case", VALUES)
def test_a_value_of_the_observation(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert_close(Trained(case, SignReward(), monkeypatch).values(-1.0, 1.0), -1.0, 1.0)


@pytest.mark.parametrize("case", VALUES)
def test_a_discounted_value(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert_close(Trained(case, LateReward(), monkeypatch).values(0.0, 1.0), GAMMA, 1.0)


@pytest.mark.parametrize("case", POLICIES)
def test_a_policy(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert_close(Trained(case, OneChoice(), monkeypatch).probabilities(0.0), 1.0)


@pytest.mark.parametrize("case", POLICIES)
def test_a_policy_of_the_observation(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    trained = Trained(case, SignChoice(), monkeypatch)
    assert_close(trained.probabilities(-1.0, 1.0), 0.0, 1.0)


@pytest.mark.parametrize("case", BOOTSTRAPPING)
def test_a_time_limit_is_not_an_end(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of an endless stream of rewards, although every episode is cut after 2: as an end, 4/3."""
    assert_close(Trained(case, Endless(2), monkeypatch).values(1.0), 1 / (1 - GAMMA))


CARTPOLE: dict[str, tuple[int, int, dict[str, Any]]] = {  # seeds, least mean return, settings
    "ppo": (5, 450, {"total_timesteps": 50_000}),
    "a2c": (10, 300, {"total_timesteps": 200_000}),  # two fifths of the preset's
    # A fifth of the preset's budget, in more and longer steps: one seed in seven is below 100.
    "trpo": (
        8,
        120,
        {"total_timesteps": 20_480, "num_steps": 128, "minibatch_size": 128} | {"target_kl": 0.03},
    ),
    "reinforce": (5, 400, {"total_timesteps": 100_000}),
    "grpo": (5, 400, {"total_timesteps": 100_000}),
}


@pytest.mark.slow
@pytest.mark.parametrize("algo", CARTPOLE)
def test_learns_cartpole(algo: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the preset of each, cut short; a random policy's return is 22."""
    seeds, least, settings = CARTPOLE[algo]
    module = importlib.import_module(f"manyseeds.algos.{algo}")
    settings = {**module.PRESETS["CartPole-v1"].settings, **settings, "first_seed": 100}
    policy, run = train_on(module, "CartPole-v1", monkeypatch, seeds=seeds, **settings)
    result = evaluate(run.config.make_env(), policy, run.seeds, 20)
    assert result.return_mean.mean() > least, result.return_mean
