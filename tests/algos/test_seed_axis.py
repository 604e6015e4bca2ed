"""The seed axis: a seed's learning does not depend on the seeds trained beside it."""

from __future__ import annotations

import dataclasses
import importlib
import math
import random
from typing import Any

import numpy as np
import pytest
import torch

from manyseeds import envs, kernels
from manyseeds.benchmarks.experiments import catalog
from manyseeds.cli import ControlConfig
from manyseeds.layers import orthogonal
from manyseeds.runs import control as run_module
from manyseeds.runs.configurations import train_configurations
from manyseeds.runs.control import Run
from manyseeds.seeds import SeedStreams


def is_control(algo: str) -> bool:
    return issubclass(catalog.module("algos", algo).Config, ControlConfig)


BUDGETS = {algo: catalog.facts(algo).small for algo in catalog.names("algos") if is_control(algo)}


def learn(algo: str, seeds: list[int], **overrides: Any) -> tuple[dict[str, torch.Tensor], Any]:
    """Train in memory; returns the policy's tensors and the run."""
    module = importlib.import_module(f"manyseeds.algos.{algo}")
    config = module.Config(quiet=True, **{**BUDGETS[algo], **overrides})
    run = Run(config, seeds)
    policy = module.train(config, run)
    return policy.state_dict(), run


def test_streams_known_answers() -> None:
    """The streams are part of what a published curve means: they must never change."""
    first = SeedStreams([0, 7], "train").uniform(3)
    assert first.dtype == torch.float32
    known = [[0.66205227, 0.6771968, 0.35279292], [0.6813961, 0.480582, 0.39902842]]
    np.testing.assert_array_equal(first.numpy(), np.array(known, dtype=np.float32))


def test_a_stream_depends_on_seed_purpose_and_position_only() -> None:
    alone = SeedStreams([7], "train")
    among = SeedStreams([3, 7, 100], "train")
    a, b = alone.uniform(5, 2), among.uniform(5, 2)
    assert torch.equal(a[0], b[1])
    assert torch.equal(alone.uniform(4)[0], among.uniform(4)[1])
    assert not torch.equal(SeedStreams([7], "init").uniform(5, 2)[0], a[0])
    assert len({tuple(row.flatten().tolist()) for row in b}) == 3
    # Two draws are one draw of both blocks: the position counts, not the number of calls.
    split = SeedStreams([7], "train")
    parts = torch.cat((split.uniform(4), split.uniform(6)), dim=1)
    assert torch.equal(parts, SeedStreams([7], "train").uniform(10))


def test_no_noise_makes_an_impossible_action_the_largest(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even that of a uniform that is 0."""
    monkeypatch.setattr(SeedStreams, "uniform", lambda *args: torch.tensor([[0.5, 0.0]]))
    noise = SeedStreams([0], "train").gumbel(2)
    assert (torch.tensor([[-math.inf, 0.0]]) + noise).argmax() == 1
    assert (torch.tensor([[-100.0, 0.0]]) + noise).argmax() == 0


def test_uniforms_stay_below_one() -> None:
    block = SeedStreams([0], "train").uniform(2_000_000)
    assert block.min() >= 0
    assert block.max() < 1
    assert abs(block.mean().item() - 0.5) < 1e-3


def assert_seed_7_is_the_same_among(algo: str, batches: list[list[int]], **settings: Any) -> None:
    """Weights, statistics, evaluations and every metric, bit for bit as when it is alone."""
    alone, run_alone = learn(algo, [7], **settings)
    curve_alone = run_alone.curve()
    for seeds in batches:
        among, run = learn(algo, seeds, **settings)
        i = seeds.index(7)
        for name, tensor in alone.items():
            assert torch.equal(tensor[0], among[name][i]), f"{name} differs among {len(seeds)}"
        curve = run.curve().query("seed == 7")
        for column in ("timestep", "return_mean", "return_std", "length_mean", "mode"):
            np.testing.assert_array_equal(curve[column], curve_alone[column])
        metrics, metrics_alone = run.metrics().query("seed == 7"), run_alone.metrics()
        for column in metrics_alone:
            message = f"{column} among {len(seeds)}"
            np.testing.assert_array_equal(metrics[column], metrics_alone[column], message)


GROUPS = [[6, 7], list(range(10)), list(range(1, 33))]


@pytest.mark.usefixtures("computed")
@pytest.mark.parametrize("algo", [algo for algo in BUDGETS if algo not in ("reinforce", "grpo")])
def test_a_seed_alone_equals_the_seed_in_a_batch(algo: str) -> None:
    assert_seed_7_is_the_same_among(algo, GROUPS)


NORMALIZED = {"normalize_obs": True, "normalize_reward": True}
SHORT = {"total_timesteps": 160}
SMALL: dict[str, Any] = {"num_envs": 4, "num_steps": 16, "minibatch_size": 32, "epochs": 2}
SMALL |= {"total_timesteps": 192}
CASES: dict[str, dict[str, Any]] = {
    "normalised": {**SMALL, **NORMALIZED},
    "two layers": {**SMALL, "hidden": (48, 16), "entropy_coef": 0.01},
    "Acrobot": {**SMALL, **NORMALIZED, "env": "Acrobot-v1"},
    "box": {**SMALL, **NORMALIZED, "env": "Pendulum-v1", "target_kl": 0.01},
    "box, entropy": {**SMALL, "env": "Pendulum-v1", "entropy_coef": 0.01},
    "box, odd": {
        **{**SMALL, **NORMALIZED, "env": "MountainCarContinuous-v0", "log_std_init": 1.0},
        **{"num_envs": 3, "num_steps": 7, "minibatch_size": 7, "total_timesteps": 63},
    },
}


A2C: dict[str, dict[str, Any]] = {
    "normalised": {**NORMALIZED, "optimizer": "rmsprop_tf", "normalize_advantage": True},
    "Acrobot, Adam": {"env": "Acrobot-v1", "optimizer": "adam", "entropy_coef": 0.01},
    "box, n steps": {"env": "Pendulum-v1", **NORMALIZED, "advantage": "n_step"},
    "box, Monte Carlo": {"env": "Pendulum-v1", "advantage": "monte_carlo"},
    "box, odd": {"env": "MountainCarContinuous-v0", **NORMALIZED, "num_envs": 3, "num_steps": 7},
}


@pytest.fixture(autouse=True)
def fewer_evaluations(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few, and of short episodes: an untrained policy would go on to the limit in all of them."""
    monkeypatch.setattr(run_module, "POINTS", 1)
    monkeypatch.setattr(run_module, "CURVE_EPISODES", 4)
    for kind in (envs.Acrobot, envs.MountainCarContinuous):
        monkeypatch.setattr(kind, "spec", dataclasses.replace(kind.spec, time_limit=100))


TRUST: dict[str, Any] = {"num_envs": 4, "num_steps": 16, "minibatch_size": 32, "critic_epochs": 2}
TRUST |= {"total_timesteps": 192}
TRPO: dict[str, dict[str, Any]] = {
    "normalised": {**TRUST, **NORMALIZED, "cg_damping": 1e-3, "target_kl": 0.05},
    "Acrobot": {**TRUST, **NORMALIZED, "env": "Acrobot-v1", "hidden": (48, 16)},
    "box": {**TRUST, **NORMALIZED, "env": "Pendulum-v1", "line_search_steps": 2},
    "box, odd": {
        **{**TRUST, **NORMALIZED, "env": "MountainCarContinuous-v0", "log_std_init": 1.0},
        **{"num_envs": 3, "num_steps": 7, "minibatch_size": 7, "total_timesteps": 63},
    },
}


KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    **{f"ppo, {case}": ("ppo", settings) for case, settings in CASES.items()},
    **{f"a2c, {case}": ("a2c", {**SHORT, **settings}) for case, settings in A2C.items()},
    **{f"trpo, {case}": ("trpo", settings) for case, settings in TRPO.items()},
    "sarsa, expected": ("sarsa", {"total_timesteps": 1000, "expected": True}),
}


@pytest.mark.parametrize("case", KINDS)
def test_every_kind_of_policy_is_the_same_alone_and_in_a_batch(case: str) -> None:
    algo, settings = KINDS[case]
    assert_seed_7_is_the_same_among(algo, GROUPS, **settings)


@pytest.mark.parametrize("env", ["CartPole-v1", "Pendulum-v1"])
@pytest.mark.parametrize("algo", ["ppo", "a2c", "reinforce", "grpo"])
def test_a_seed_is_the_same_in_a_batch_of_gymnasiums_environments(algo: str, env: str) -> None:
    settings = {"env": env, "backend": "gymnasium", "normalize_obs": True}
    settings |= {"ppo": {**SMALL, **NORMALIZED}, "a2c": {**SHORT, **NORMALIZED}}.get(algo, {})
    assert_seed_7_is_the_same_among(algo, [[6, 7, 8]], **settings)


@pytest.mark.parametrize("extra", [{"target_kl": 0.003}, {"clip_value_range": 0.2, "epochs": 2}])
def test_early_stopping_is_per_seed(extra: dict[str, Any]) -> None:
    """Seeds stop at different minibatches; none may notice when another one stops."""
    alone, _ = learn("ppo", [2], total_timesteps=2048, **extra)
    among, _ = learn("ppo", [0, 1, 2, 3], total_timesteps=2048, **extra)
    for name, tensor in alone.items():
        assert torch.equal(tensor[0], among[name][2])


# Seeds are at timesteps of their own, and pass the points of evaluations one after another.
EPISODES: dict[str, dict[str, Any]] = {"total_timesteps": 700, "hidden": (32,)}
PENALTY: dict[str, Any] = {"kl_coef": 0.1, "entropy_coef": 0.01, "reference_updates": 2}
WHOLE: dict[str, tuple[str, dict[str, Any]]] = {
    "grpo": ("grpo", {"normalize_obs": True, **PENALTY}),
    "grpo, outcome": ("grpo", {"groups": 3, "group_size": 5, "advantage": "outcome"}),
    "grpo, process": (
        "grpo",
        {"groups": 2, "advantage": "process", "std": "batch", "peers": "all", "gamma": 0.9},
    ),
    "grpo, box": ("grpo", {"env": "Pendulum-v1", "groups": 2, "normalize_obs": True, **PENALTY}),
    "grpo, box, odd": (
        "grpo",
        {"env": "MountainCarContinuous-v0", "normalize_obs": True, "std": "batch"}
        | {"minibatch_size": 77, "epochs": 1, "log_std_init": 1.0, "hidden": (48, 16)},
    ),
    "reinforce, total return": (
        "reinforce",
        {"weight": "total_return", "normalize_advantage": False},
    ),
    "reinforce, baseline": ("reinforce", {"weight": "baseline", "normalize_obs": True}),
    "reinforce, q": ("reinforce", {"weight": "q", "entropy_coef": 0.01, "episodes": 2}),
    "reinforce, box": ("reinforce", {"env": "Pendulum-v1", "weight": "q", "normalize_obs": True}),
    "reinforce, box, odd": (
        "reinforce",
        {"env": "MountainCarContinuous-v0", "normalize_obs": True, "weight": "baseline"}
        | {"minibatch_size": 7, "log_std_init": 1.0, "hidden": (48, 16)},
    ),
}


@pytest.mark.parametrize("case", WHOLE)
def test_whole_episodes_are_the_same_alone_and_in_a_batch(
    case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With windows of the log and evaluations that some seeds reach before others."""
    monkeypatch.setattr(run_module, "METRIC_WINDOWS", 5)
    monkeypatch.setattr(run_module, "POINTS", 3)
    algo, settings = WHOLE[case]
    assert_seed_7_is_the_same_among(algo, GROUPS, **{**EPISODES, **settings})


BRIEF: dict[str, dict[str, Any]] = {
    "a2c": {"total_timesteps": 160},
    "ppo": SMALL,
    "trpo": TRUST,
    "dqn": {"total_timesteps": 300, "learning_starts": 100, "buffer_size": 200},
    "reinforce": {"total_timesteps": 120, "episodes": 2, "critic_updates": 2},
    "grpo": {"total_timesteps": 120, "group_size": 3, "minibatch_size": 32, "epochs": 2},
    "sac": {"total_timesteps": 60, "learning_starts": 30, "batch_size": 8, "noise_std": 0.2},
    "td3": {"total_timesteps": 60, "learning_starts": 30, "batch_size": 8},
    "ddpg": {"total_timesteps": 60, "learning_starts": 30, "batch_size": 8},
    "sac_discrete": {"total_timesteps": 60, "learning_starts": 30, "batch_size": 8},
    "rainbow": {"total_timesteps": 200, "learning_starts": 100, "buffer_size": 150},
    "pqn": {"num_envs": 2, "num_steps": 32, "minibatch_size": 16, "total_timesteps": 192},
}
USUAL = "CartPole-v1", "Pendulum-v1"
PLACES = {  # an environment, and one whose continuous scores show every bit
    "dqn": ("CartPole-v1", "Acrobot-v1"),
    **dict.fromkeys(("sac", "td3", "ddpg"), ("MountainCarContinuous-v0", "Pendulum-v1")),
    "sac_discrete": ("CartPole-v1", "Acrobot-v1"),
    "rainbow": ("CartPole-v1", "Acrobot-v1"),
    "pqn": ("CartPole-v1", "Acrobot-v1"),
}
with_a_compiler = pytest.mark.skipif(not kernels.available(), reason="no C compiler")


def drawn_widths(key: str) -> list[tuple[int, ...]]:
    """One, two and three hidden layers of any width; none of the first is a multiple of 4."""
    rng = random.Random(key)
    return [
        (4 * rng.randrange(32) + rng.randint(1, 3), *(rng.randint(1, 128) for _ in range(further)))
        for further in range(3)
    ]


@with_a_compiler
@pytest.mark.parametrize("algo", BRIEF)
def test_layers_of_any_width_are_the_same_alone_and_in_a_batch(algo: str) -> None:
    for hidden in drawn_widths(algo):
        for env in PLACES.get(algo, USUAL):
            settings = {**BRIEF[algo], "env": env, "hidden": hidden}
            assert_seed_7_is_the_same_among(algo, [[6, 7, 8, 9]], **settings)


@with_a_compiler
@pytest.mark.parametrize("algo", BRIEF)
def test_configurations_of_any_width_are_the_same_alone_and_in_a_batch(algo: str) -> None:
    module = importlib.import_module(f"manyseeds.algos.{algo}")
    env = PLACES.get(algo, USUAL)[1]
    configs = [
        module.Config(**BRIEF[algo], env=env, hidden=hidden, eval_budget=0.05)
        for hidden in drawn_widths(f"{algo}, rows")
    ]
    alone = train_configurations(module.train, configs, [1])
    among = train_configurations(module.train, configs, range(4)).query("seed == 1")
    for column in ("final", "auc", "train_return"):
        np.testing.assert_array_equal(among[column], alone[column], column)


def test_every_algorithm_with_layers_is_held_to_any_width() -> None:
    configs = {algo: importlib.import_module(f"manyseeds.algos.{algo}").Config for algo in BUDGETS}
    assert {algo for algo, kind in configs.items() if "hidden" in kind.__annotations__} == {*BRIEF}


SICK: dict[str, tuple[str, dict[str, Any]]] = {
    **{algo: (algo, {}) for algo in BUDGETS},
    "sarsa, expected": ("sarsa", {"expected": True}),
    "ppo, normalised": ("ppo", CASES["normalised"]),
    "ppo, box": ("ppo", CASES["box"]),
    "trpo, box": ("trpo", TRPO["box"]),
    "a2c, box": ("a2c", {**A2C["box, n steps"], "total_timesteps": 160}),
    "reinforce, box": WHOLE["reinforce, box"],
    "grpo, box": WHOLE["grpo, box"],
    "grpo, Gymnasium's": ("grpo", {"backend": "gymnasium"}),
    "grpo, Gymnasium's box": ("grpo", {"env": "Pendulum-v1", "backend": "gymnasium"}),
    "ppo, Gymnasium's box": ("ppo", {**CASES["box"], "backend": "gymnasium"}),
}


@pytest.mark.parametrize("case", SICK)
def test_nan_in_one_seed_leaves_the_others_bit_equal(
    case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    algo, settings = SICK[case]
    healthy, run_healthy = learn(algo, [0, 1, 2], **settings)
    module = importlib.import_module(f"manyseeds.algos.{algo}")
    network = module.train.__annotations__["return"]  # the name of its policies' class
    build = getattr(module, network).__init__

    def poisoned(self: Any, *args: Any) -> None:
        build(self, *args)
        for tensor in self.state_dict().values():
            tensor[1] = torch.nan

    monkeypatch.setattr(getattr(module, network), "__init__", poisoned)
    sick, run = learn(algo, [0, 1, 2], **settings)
    for name, tensor in healthy.items():
        assert torch.equal(sick[name][0], tensor[0])
        assert torch.equal(sick[name][2], tensor[2])
        assert sick[name][1].isnan().any()
    assert list(run.diverged) == [1]
    assert 0 < run.diverged[1] <= run.windows[-1].timesteps[0]
    same_curves_but_of_seed_1(run, run_healthy)


def same_curves_but_of_seed_1(sick: Run, healthy: Run) -> None:
    curves = [run.curve().drop(columns="learn_s").query("seed != 1") for run in (sick, healthy)]
    assert len(curves[0]) > 0
    assert curves[0].reset_index(drop=True).equals(curves[1].reset_index(drop=True))


class PythonsPendulum(envs.Pendulum):
    """Without code in C, as every subclass."""


@pytest.mark.parametrize("where", ["observation", "reward"])
def test_nan_from_one_seeds_environment_leaves_the_others_bit_equal(
    where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It goes through the statistics of observations and of rewards, and no further."""
    settings = CASES["box"]
    monkeypatch.setitem(envs.NATIVE, "Pendulum-v1", PythonsPendulum)
    healthy, run_healthy = learn("ppo", [0, 1, 2], **settings)
    function = getattr(PythonsPendulum, where)

    def poisoned(*args: Any) -> torch.Tensor:
        out = function(*args).clone()
        out[1] = torch.nan
        return out

    monkeypatch.setattr(PythonsPendulum, where, poisoned)
    sick, run = learn("ppo", [0, 1, 2], **settings)
    for name, tensor in healthy.items():
        assert torch.equal(sick[name][[0, 2]], tensor[[0, 2]]), name
    assert (
        sick["obs_stats.mean" if where == "observation" else "reward_scale.stats.mean"][1]
        .isnan()
        .any()
    )
    assert list(run.diverged) == [1]
    same_curves_but_of_seed_1(run, run_healthy)


@pytest.mark.slow
def test_two_threads_keep_the_seeds_apart() -> None:
    torch.set_num_threads(2)
    try:
        alone, _ = learn("ppo", [7], total_timesteps=512)
        among, _ = learn("ppo", [6, 7, 8], total_timesteps=512)
    finally:
        torch.set_num_threads(1)
    for name, tensor in alone.items():
        assert torch.equal(tensor[0], among[name][1])


@pytest.mark.parametrize("shape", [(3, 30), (30, 3), (7, 7), (64, 2), (1, 1), (63, 65)])
def test_an_orthogonal_matrix_is_the_same_alone_and_in_a_batch(shape: tuple[int, int]) -> None:
    """Whatever the address at which its normals begin."""
    normal = SeedStreams(range(6), "init").normal(*shape)
    among = orthogonal(normal)
    for s in range(6):
        assert torch.equal(among[s], orthogonal(normal[s : s + 1])[0])
