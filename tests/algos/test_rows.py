"""Rows of a batch: each trains as its configuration does alone, whatever the other rows are."""

from __future__ import annotations

import functools
import importlib
import random
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from manyseeds.algos import grpo, monte_carlo, td_prediction
from manyseeds.benchmarks.experiments import catalog
from manyseeds.cli import ControlConfig
from manyseeds.rows import stack, structure, varying
from manyseeds.runs import configurations as module_docs
from manyseeds.runs import control
from manyseeds.runs.configurations import RowRun, batches, train_configurations
from manyseeds.runs.control import Run
from manyseeds.runs.prediction import PredictionRun

# From which values of a hyperparameter are drawn. None is 0, which would divide a batch.
SPANS: dict[str, tuple[float, float]] = {
    "learning_rate": (1e-4, 1e-2),
    "final_learning_rate": (0.01, 0.1),
    "critic_learning_rate": (1e-3, 1e-2),
    "gamma": (0.9, 0.999),
    "gae_lambda": (0.5, 0.99),
    "clip_range": (0.05, 0.3),
    "clip_range_high": (0.3, 0.5),
    "clip_value_range": (0.1, 0.5),
    "entropy_coef": (0.001, 0.01),
    "value_coef": (0.2, 0.8),
    "max_grad_norm": (0.1, 5),
    "target_kl": (0.003, 0.03),
    "log_std_init": (-1, 1),
    "cg_damping": (0.01, 0.2),
    "tau": (0.1, 0.9),
    "exploration_fraction": (0.1, 0.9),
    "exploration_initial_eps": (0.5, 1),
    "exploration_final_eps": (0.01, 0.2),
    "kl_coef": (0.01, 0.1),
    "initial_value": (-1, 1),
    "v_min": (-20, -10),
    "v_max": (10, 20),
}
NORMALIZED: dict[str, Any] = {"normalize_obs": True, "normalize_reward": True}
PENDULUM: dict[str, Any] = {"env": "Pendulum-v1"}
PPO: dict[str, Any] = {"num_envs": 4, "num_steps": 16, "minibatch_size": 32, "epochs": 2}
PPO |= {"total_timesteps": 192, "hidden": (16,)}
A2C: dict[str, Any] = {"num_envs": 4, "total_timesteps": 160, "hidden": (16,)}
TRPO: dict[str, Any] = {"num_envs": 4, "num_steps": 16, "minibatch_size": 32, "critic_epochs": 2}
TRPO |= {"total_timesteps": 192, "hidden": (16,)}
DQN: dict[str, Any] = {"num_envs": 2, "train_freq": 8, "gradient_steps": 2, "batch_size": 16}
DQN |= {"learning_starts": 40, "target_update_interval": 15, "buffer_size": 100}
DQN |= {"total_timesteps": 200, "hidden": (16,)}
REINFORCE: dict[str, Any] = {"episodes": 3, "critic_updates": 2, "minibatch_size": 32}
REINFORCE |= {"total_timesteps": 120, "hidden": (16,)}
GRPO: dict[str, Any] = {"group_size": 3, "groups": 2, "minibatch_size": 32, "epochs": 2}
GRPO |= {"total_timesteps": 200, "hidden": (16,)}
TABLE = {"total_timesteps": 500}
# By name: the algorithm, and what all rows share. Every path that a hyperparameter takes.
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "ppo": ("ppo", PPO),
    "ppo, box": ("ppo", {**PPO, **NORMALIZED, **PENDULUM}),
    "a2c": ("a2c", {**A2C, "optimizer": "adam", "advantage": "n_step"}),
    "a2c, box": ("a2c", {**A2C, **NORMALIZED, **PENDULUM}),
    "a2c, Monte Carlo": ("a2c", {**A2C, "optimizer": "rmsprop_tf", "advantage": "monte_carlo"}),
    "trpo": ("trpo", TRPO),
    "trpo, box": ("trpo", {**TRPO, **NORMALIZED, **PENDULUM}),
    "dqn": ("dqn", DQN),
    "reinforce": ("reinforce", REINFORCE),
    "reinforce, baseline": ("reinforce", {**REINFORCE, "weight": "baseline"}),
    "reinforce, box": ("reinforce", {**REINFORCE, **PENDULUM, "weight": "q", "episodes": 2}),
    "grpo": ("grpo", {**GRPO, "normalize_obs": True}),
    "grpo, box": ("grpo", {**GRPO, **PENDULUM, "advantage": "process"}),
    "q_learning": ("q_learning", TABLE),
    "sarsa": ("sarsa", TABLE),
    "sarsa, expected": ("sarsa", {**TABLE, "expected": True}),
}

# Those without a special path are found.
for algo in sorted(set(catalog.names("algos")) - {algo for algo, _ in CASES.values()}):
    if issubclass(catalog.module("algos", algo).Config, ControlConfig):
        own = varying(catalog.module("algos", algo).Config)
        small = catalog.facts(algo).small
        CASES[algo] = algo, {name: x for name, x in small.items() if name not in own}


@pytest.fixture(autouse=True)
def fewer_evaluations(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, few in (("POINTS", 2), ("CURVE_EPISODES", 2), ("METRIC_WINDOWS", 20)):
        monkeypatch.setattr(control, name, few)


@functools.cache
def module_of(algo: str) -> Any:
    return importlib.import_module(f"manyseeds.algos.{algo}")


def configurations(algo: str, count: int, settings: dict[str, Any]) -> list[Any]:
    """Configurations that differ in every hyperparameter that may."""
    kind, draw = module_of(algo).Config, random.Random(0)
    found = []
    for k in range(count):
        values: dict[str, Any] = {}
        for name in varying(kind):
            is_switch = isinstance(getattr(kind, name), bool)
            values[name] = k % 2 == 0 if is_switch else draw.uniform(*SPANS.get(name, (0.1, 0.5)))
        found.append(kind(quiet=True, **settings, **values))
    return found


def assert_rows_equal_their_solo_runs(
    algo: str, configs: list[Any], seeds: list[int], checked: list[int]
) -> None:
    """Weights, curves and all metrics of the checked rows, bit for bit."""
    train = module_of(algo).train
    rows = [(config, seed) for config in configs for seed in seeds]
    run = RowRun([config for config, _ in rows], [seed for _, seed in rows])
    for name in varying(type(configs[0])):
        assert isinstance(getattr(run.config, name), torch.Tensor), name
    weights = train(run.config, run).state_dict()
    curve, metrics = (
        frame.drop(columns="learn_s", errors="ignore") for frame in (run.curve(), run.metrics())
    )
    for row in checked:
        config, seed = rows[row]
        alone = Run(config, [seed])
        for name, tensor in train(config, alone).state_dict().items():
            assert torch.equal(tensor[0], weights[name][row]), f"{name} of row {row}"
        for batch, solo in ((curve, alone.curve()), (metrics, alone.metrics())):
            own = batch[batch["seed"] == row].drop(columns="seed")
            for column in own:
                message = f"{column} of row {row}"
                np.testing.assert_array_equal(own[column], solo[column], message)
            assert set(solo) <= {*own, "seed", "learn_s"}


@pytest.mark.usefixtures("computed")
@pytest.mark.parametrize("case", CASES)
def test_a_row_equals_its_solo_run(case: str) -> None:
    algo, settings = CASES[case]
    configs = configurations(algo, 3, settings)
    assert len({structure(config) for config in configs}) == 1
    assert_rows_equal_their_solo_runs(algo, configs, [3, 8], [0, 3, 4])


def test_rows_that_agree_have_a_number() -> None:
    """Two rows of one configuration are two seeds."""
    config = configurations("ppo", 1, PPO)[0]
    batch = stack([config, config])
    both, seeds = RowRun([config, config], [3, 8]), Run(config, [3, 8])
    assert batch == config
    train = module_of("ppo").train
    one, other = train(batch, both).state_dict(), train(config, seeds).state_dict()
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_configurations_of_several_structures() -> None:
    """Results are in the order of the configurations, however they are put into batches."""
    settings = [{"num_steps": 16}, {"num_steps": 32}, {"entropy_coef": 0.1}, {"num_steps": 32}]
    configs = [
        module_of("ppo").Config(
            **{**PPO, "epochs": 1, "learning_rate": 1e-3 * (k + 1), "eval_budget": 0.05, **x}
        )
        for k, x in enumerate(settings)
    ]
    assert list(batches(configs, seeds=2, rows=8)) == [[0], [1, 3], [2]]
    assert list(batches(configs, seeds=2, rows=1)) == [[0], [1], [3], [2]]
    heard: list[float] = []
    train = module_of("ppo").train
    frame = train_configurations(train, configs, [3, 8], on_progress=heard.append)
    assert frame["configuration"].tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    assert frame["seed"].tolist() == [3, 8] * 4
    assert heard == sorted(heard)
    assert heard[-1] == pytest.approx(1)
    sizes: list[int] = []

    def train_counted(config: Any, run: Any) -> Any:
        sizes.append(len(run.seeds))
        return train(config, run)

    apart = [train_configurations(train_counted, [config], [3, 8], rows=1) for config in configs]
    assert sizes == [1] * 8  # --rows bounds a batch, the seeds of one configuration too
    for column in ("seed", "final", "auc", "timesteps"):
        np.testing.assert_array_equal(frame[column], pd.concat(apart)[column])


def test_the_example_runs(capsys: pytest.CaptureFixture[str]) -> None:
    """That of manyseeds/runs/configurations.py, with fewer timesteps and seeds."""
    lines = str(module_docs.__doc__).splitlines()
    code = "\n".join(line[4:] for line in lines if line.startswith("    "))
    assert code.count("20_000") == code.count("range(5)") == 1
    code = code.replace("20_000", "2_048").replace("range(5)", "range(2)")
    exec(code, {})
    printed = capsys.readouterr().out
    assert "configuration" in printed
    assert [line.split()[0] for line in printed.splitlines()[1:4]] == ["0", "1", "2"]


@pytest.mark.slow
@pytest.mark.parametrize("algo", [case for case in CASES if "," not in case])
def test_rows_of_a_large_batch_equal_their_solo_runs(algo: str) -> None:
    configs = configurations(algo, 64, CASES[algo][1])
    checked = random.Random(1).sample(range(640), 10)
    assert_rows_equal_their_solo_runs(algo, configs, list(range(10)), checked)


@pytest.mark.parametrize(
    ("module", "settings"),
    [
        (td_prediction, [{"trace_decay": 0.3}, {"trace_decay": 0.8}]),
        (td_prediction, [{"n_steps": 3}, {"n_steps": 3}]),
        (monte_carlo, [{}, {}]),
    ],
)
def test_a_row_of_prediction_equals_its_solo_run(
    module: Any, settings: list[dict[str, Any]]
) -> None:
    """Step sizes and trace decay of its own."""
    budget = {"env": "RandomWalk-v0", "total_episodes": 12, "quiet": True}
    rates = (0.1, 0.25)
    configs = [
        module.Config(**budget, **own, learning_rate=rate)
        for own, rate in zip(settings, rates, strict=True)
    ]
    rows = [(config, seed) for config in configs for seed in (3, 4)]
    batch = stack([config for config, _ in rows])
    values = module.train(batch, PredictionRun(batch, [seed for _, seed in rows]))
    for row, (config, seed) in zip(values, rows, strict=True):
        assert torch.equal(row, module.train(config, PredictionRun(config, [seed]))[0])


@pytest.mark.parametrize(
    "fields",
    [{"clip_range_high": (0.3, 0.4)}, {"clip_range": (0.1, 0.2), "clip_range_high": (0.3,)}],
)
def test_one_bound_of_grpo_may_differ_alone(fields: dict[str, tuple[float, ...]]) -> None:
    """The other one stays a number."""
    budget = {"groups": 2, "group_size": 2, "total_timesteps": 100, "quiet": True}
    configs = [
        grpo.Config(**budget, **{name: values[k % len(values)] for name, values in fields.items()})
        for k in range(2)
    ]
    batch = stack(configs)
    together = grpo.train(batch, Run(batch, [3, 3]))
    for k, config in enumerate(configs):
        alone = grpo.train(config, Run(config, [3]))
        for name, values in alone.state_dict().items():
            assert torch.equal(together.state_dict()[name][k], values[0])
