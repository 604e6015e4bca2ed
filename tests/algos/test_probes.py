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

from manyseeds.algos import reinforce
from tests.algos.probes import (
    LateReward,
    OneChoice,
    OneReward,
    Probe,
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
    "reinforce, baseline": {"weight": "baseline"},
    "reinforce, q": {"weight": "q"},
}
POLICIES: dict[str, dict[str, Any]] = {
    **VALUES,
    "reinforce, total return": {"weight": "total_return"},
    "reinforce, return to go": {"weight": "return_to_go"},
    "grpo": {},
}


class Trained:
    """What an algorithm has learned on a probe, of either kind, in one set of terms."""

    def __init__(self, case: str, probe: Probe, monkeypatch: pytest.MonkeyPatch) -> None:
        self.algo = case.split(",")[0]
        self.critics: list[reinforce.Critic] = []  # which reinforce.train keeps to itself
        build = reinforce.Critic.__init__

        def spy(critic: reinforce.Critic, *args: Any) -> None:
            build(critic, *args)
            self.critics.append(critic)

        monkeypatch.setattr(reinforce.Critic, "__init__", spy)
        module = importlib.import_module(f"manyseeds.algos.{self.algo}")
        settings = {"hidden": (16,), "gamma": GAMMA, **SETTINGS[self.algo], **POLICIES[case]}
        self.policy, _ = train_on(module, probe, monkeypatch, seeds=SEEDS, **settings)

    @torch.no_grad()
    def values(self, *obs: float) -> Tensor:
        """V [S, B] of B observations."""
        x = torch.tensor(obs).view(1, -1, 1).expand(SEEDS, -1, 1)
        if self.algo == "dqn":
            return self.policy(x).amax(-1)  # type: ignore[no-any-return]
        if self.algo == "reinforce":
            return self.critics[0](x, torch.zeros(x.shape[:2], dtype=torch.int64))
        return self.policy.value(x)  # type: ignore[no-any-return]

    @torch.no_grad()
    def probabilities(self, *obs: float) -> Tensor:
        """Of action 1 [S, B], for B observations; 0 or 1 of a greedy policy."""
        x = torch.tensor(obs).view(1, -1, 1).expand(SEEDS, -1, 1)
        actions = torch.ones(x.shape[:2], dtype=torch.int64)
        if self.algo == "dqn":
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
