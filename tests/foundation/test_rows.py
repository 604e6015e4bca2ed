"""Rows of a batch: which hyperparameters may differ, and what makes configurations one batch."""

from __future__ import annotations

import dataclasses
import importlib
from typing import Any

import pytest
import torch

from manyseeds.algos import a2c, grpo, ppo
from manyseeds.benchmarks.experiments import catalog
from manyseeds.cli import ControlConfig
from manyseeds.rows import broadcast, stack, structure, used, varying

ALGOS = [
    name
    for name in catalog.names("algos")
    if issubclass(importlib.import_module(f"manyseeds.algos.{name}").Config, ControlConfig)
]
SHAPES = {"num_envs", "num_steps", "hidden", "minibatch_size", "epochs", "batch_size", "env"}


def test_values_of_rows_meet_the_first_dimension() -> None:
    values = torch.tensor([1.0, 2.0], dtype=torch.float64)
    x = torch.ones(2, 2, 2)
    got = broadcast(values, x) * x
    assert got.dtype == torch.float32
    assert got[0].unique().tolist() == [1.0]
    assert got[1].unique().tolist() == [2.0]
    assert broadcast(values, x[..., 0]).shape == (2, 1)
    assert broadcast(values, x[:, 0, 0]).shape == (2,)
    assert broadcast(values.view(2, 1), x).shape == (2, 1, 1)  # [S, F] for x [S, F, N]
    assert broadcast(values, torch.ones(2, 3, device="meta")).device.type == "meta"
    scalar = torch.tensor(0.5)  # what a captured iteration is given
    assert broadcast(scalar, x) is scalar
    assert broadcast(0.5, x) == 0.5


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_row_rounds_as_a_number_does(dtype: torch.dtype) -> None:
    """Products of hyperparameters are rounded once, as those of Python's numbers."""
    gammas, lambdas = (0.99, 0.97, 0.123456789), (0.95, 0.3, 0.987654321)
    x = torch.rand(3, 50, generator=torch.Generator().manual_seed(0)).to(dtype)
    rows = [torch.tensor(values, dtype=torch.float64) for values in (gammas, lambdas)]
    together = broadcast(rows[0] * rows[1], x) * x
    alone = [g * lam * x[k] for k, (g, lam) in enumerate(zip(gammas, lambdas, strict=True))]
    assert torch.equal(together, torch.stack(alone))


def test_used() -> None:
    assert used(0.1)
    assert not used(0.0)
    assert used(torch.tensor([0.1, 0.2]))


@pytest.mark.parametrize("algo", ALGOS)
def test_every_algorithm_has_fields_that_may_differ(algo: str) -> None:
    config = importlib.import_module(f"manyseeds.algos.{algo}").Config()
    names = varying(type(config))
    assert {"learning_rate", "gamma"} <= set(names)
    assert set(names) <= {field.name for field in dataclasses.fields(config)}
    assert not set(names) & SHAPES
    # Numbers and switches only: they become tensors.
    assert all(isinstance(getattr(config, name), (bool, float)) for name in names)


def test_planning_has_none_and_prediction_no_gamma() -> None:
    """Gamma is part of what is predicted."""
    found = {
        algo: set(varying(importlib.import_module(f"manyseeds.algos.{algo}").Config))
        for algo in set(catalog.names("algos")) - set(ALGOS)
    }
    assert not any("gamma" in names for names in found.values())
    assert found["policy_iteration"] == found["value_iteration"] == set()
    assert found["td_prediction"] == {"learning_rate", "trace_decay"}


@pytest.mark.parametrize(
    ("one", "other", "together"),
    [
        ({"learning_rate": 1e-3}, {"learning_rate": 1e-4}, True),
        ({"entropy_coef": 0.01}, {"entropy_coef": 0.0}, False),
        ({"entropy_coef": 0.0}, {"entropy_coef": 0.0, "gamma": 0.5}, True),
        ({"log_std_init": -1.0}, {"log_std_init": 1.0}, True),
        ({"anneal_lr": True}, {"anneal_lr": False}, True),
        ({"num_steps": 64}, {"num_steps": 128}, False),
        ({"normalize_obs": True}, {"normalize_obs": False}, False),
        ({"env": "Acrobot-v1"}, {"env": "CartPole-v1"}, False),
    ],
)
def test_what_rows_must_agree_in(
    one: dict[str, Any], other: dict[str, Any], together: bool
) -> None:
    assert (structure(ppo.Config(**one)) == structure(ppo.Config(**other))) == together
    assert structure(ppo.Config(**one)) != structure(a2c.Config())


def test_stacked_values() -> None:
    """What differs is [S] float64 in the order of the rows; what agrees stays a number."""
    rates, switches = [1e-3, 3e-4, 1e-3], [True, False, True]
    configs = [
        grpo.Config(learning_rate=rate, anneal_lr=switch, gamma=0.9)
        for rate, switch in zip(rates, switches, strict=True)
    ]
    batch: Any = stack(configs)
    assert batch.learning_rate.dtype == batch.anneal_lr.dtype == torch.float64
    assert batch.learning_rate.tolist() == rates
    assert batch.anneal_lr.tolist() == [1.0, 0.0, 1.0]
    assert batch.gamma == 0.9
    assert batch.clip_range == configs[0].clip_range
    assert configs[0].learning_rate == 1e-3  # the first is not the batch
    assert stack(configs[:1]) == configs[0]


def test_only_rows_of_one_batch_are_stacked() -> None:
    with pytest.raises(AssertionError, match="not of one batch"):
        stack([ppo.Config(target_kl=0.01), ppo.Config(target_kl=0.0)])
