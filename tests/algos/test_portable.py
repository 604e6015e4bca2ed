"""Tables, curves and scores have the same bits on every machine: digests, pinned.

A digest that is right here and wrong elsewhere is a number that depends on the CPU, its vectors,
the threads, or the build of a library.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import math
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from manyseeds import kernels, portable
from manyseeds.cli import from_preset
from manyseeds.portable import ordered_cumsum, ordered_sum, powers, solve
from manyseeds.runs.control import Run
from manyseeds.runs.planning import PlanningRun
from manyseeds.runs.prediction import PredictionRun
from tests.planted_bugs.planting import ROOT

CONTROL, PREDICTION = {"total_timesteps": 2000}, {"total_episodes": 25}
RUNS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "q_learning": ("q_learning", "FrozenLake-v1", CONTROL),
    "q_learning on Taxi": ("q_learning", "Taxi-v4", CONTROL),
    "sarsa": ("sarsa", "CliffWalking-v1", CONTROL | {"expected": False}),
    "expected sarsa": ("sarsa", "CliffWalking-v1", CONTROL | {"expected": True}),
    "td": ("td_prediction", "RandomWalk-v0", PREDICTION | {"n_steps": 4, "gamma": 0.9}),
    "td(lambda)": ("td_prediction", "FrozenLake-v1", PREDICTION | {"trace_decay": 0.7}),
    "monte carlo": ("monte_carlo", "FrozenLake-v1", PREDICTION | {"gamma": 0.97}),
    "value iteration": ("value_iteration", "FrozenLake8x8-v1", {"gamma": 0.97}),
    "policy iteration": ("policy_iteration", "FrozenLake-v1", {"evaluation": "sweeps"}),
    "exact policy iteration": ("policy_iteration", "FrozenLake8x8-v1", {"evaluation": "exact"}),
}
BINNED = {"q_learning on CartPole": ("q_learning", "CartPole-v1", CONTROL)}  # C: a sine
PINNED = {
    "q_learning": "833b223523fc35c9661be72657746a9fd3f9372bbc99e786385d04080dd28578",
    "q_learning on Taxi": "d3e6fc30813278c1afadf0e0affedcc81e5fda14434b148aaca61dc7a87a33b4",
    "sarsa": "04969de4357c9ba5747010c210fb768bcbdc4c482120dd16e3c77adadea8452b",
    "expected sarsa": "a146abe06e8e2eb89697dd5388bc12ba58da9e5f4f6566593b3c154a97ea4676",
    "td": "e92f80215adb1364fd2b01f5b891a4b30b0bea4af1d69bc6f0e4377ad634c312",
    "td(lambda)": "1ff73224e25077285bc32607970f111eb7343a2d45f3da42ff5ab059315d9929",
    "monte carlo": "4b2a7312520f590813446f6cd97a15d5d5489ee07ff34004008811d2abe18dd6",
    "value iteration": "da23e85bf63fa7a2c235737358b38c2c0513a005304918775886e9ed3a1147b1",
    "policy iteration": "724c505f0bd602f28b0984cd31d1131d5cc613aea32c8a23643f81ad346e4904",
    "exact policy iteration": "62bcfc8c1c089432987327634daec7ed49655a4ff7b880b87288ff2fed1ab107",
}


def train(name: str) -> list[Any]:
    """The tables of a run, its curve, and the numbers of its summary that no clock decides."""
    algo, env, settings = (RUNS | BINNED)[name]
    module = importlib.import_module(f"manyseeds.algos.{algo}")
    config = from_preset(module.Config, module.PRESETS, env, **settings)
    if "iteration" in algo:
        plan = PlanningRun(config)
        values = module.solve(config, plan)
        sweeps = [(sweep.residual, sweep.values, sweep.actions) for sweep in plan.sweeps]
        return [values.numpy(), sweeps, plan.measures(values)]
    object.__setattr__(config, "quiet", True)
    if "total_episodes" in settings:
        prediction = PredictionRun(config, [0, 1, 2])
        table = module.train(config, prediction)
        found = prediction.predictions()
        measured = (found.errors, found.early_errors, found.bias_squared, found.variance)
        return [table.numpy(), found.timesteps, found.values, found.exact, *measured]
    run = Run(config, [0, 1, 2])
    policy = module.train(config, run)
    finals = run.finish(policy)["final"]
    curve = run.curve().drop(columns="learn_s")
    scores = {mode: final["per_seed"] for mode, final in finals.items()}
    return [policy.q.numpy(), curve.to_dict("list"), scores]


def digest(name: str) -> str:
    """SHA-256 of what a training comes to, every float with all its bits."""

    def write(x: Any) -> Any:
        return [str(x.dtype), x.tolist()] if isinstance(x, np.ndarray) else x.item()

    text = json.dumps(train(name), default=write)
    return hashlib.sha256(text.encode()).hexdigest()


def digests() -> dict[str, str]:
    """Of all runs, and of binned ones where there is C."""
    return {name: digest(name) for name in (RUNS | BINNED if kernels.available() else RUNS)}


@pytest.mark.parametrize("name", RUNS)
def test_a_training_has_the_same_bits_everywhere(name: str) -> None:
    assert digest(name) == PINNED[name]


@pytest.mark.slow
def test_bits_depend_on_no_kernel_of_pytorch() -> None:
    """Nor of NumPy, on threads or on a compiler."""
    found = []
    for capability, threads, cc in [
        ("default", "1", ""),
        ("avx2", "2", "cc"),
        ("avx512", "1", "cc"),
    ]:
        settings = {
            **{"ATEN_CPU_CAPABILITY": capability, "OMP_NUM_THREADS": threads, "CC": cc},
            **{"PYTHONPATH": str(ROOT), "NPY_DISABLE_CPU_FEATURES": "AVX512F" * (threads == "2")},
        }
        code = "import json; from tests.algos.test_portable import digests; "
        done = subprocess.run(
            [sys.executable, "-c", code + "print(json.dumps(digests()))"],
            env={**os.environ, **settings},
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=True,
        )
        found.append(json.loads(done.stdout.splitlines()[-1]))
    without_c, one, two = found
    assert one == two
    assert without_c == {name: one[name] for name in without_c}
    assert without_c == PINNED


def test_sums_are_added_in_order() -> None:
    rng = np.random.default_rng(0)
    x = torch.from_numpy(rng.normal(size=(3, 200)) * 10.0 ** rng.integers(-8, 8, (3, 200)))
    for row, cumulative in zip(x.tolist(), ordered_cumsum(x).tolist(), strict=True):
        total, expected = 0.0, []
        for number in row:
            total += number
            expected.append(total)
        assert cumulative == expected
    assert torch.equal(ordered_sum(x), ordered_cumsum(x)[:, -1])
    assert torch.equal(ordered_sum(x.T, dim=0), ordered_sum(x))
    assert powers(0.9, 4) == [1.0, 0.9, 0.9 * 0.9, 0.9 * 0.9 * 0.9]


@pytest.mark.parametrize("make", [np.ones, np.zeros])
def test_linear_systems(make: Callable[..., np.ndarray]) -> None:
    """Dense ones, and such with many zeros; a right side of zero has no other solution."""
    rng = np.random.default_rng(1)
    P = rng.dirichlet(np.full(40, 0.05), size=40)
    matrix, right = np.eye(40) - 0.99 * P, make(40) * rng.normal(size=40)
    found = solve(torch.from_numpy(matrix), torch.from_numpy(right))
    np.testing.assert_allclose(found, np.linalg.solve(matrix, right), rtol=1e-12, atol=1e-12)
    with pytest.raises(torch.linalg.LinAlgError):
        solve(torch.tensor([[1.0, -1.0], [-1.0, 1.0]]), torch.ones(2))


# ---- Exponentials --------------------------------------------------------------------------


def test_exponentials_are_those_of_float64_rounded_once() -> None:
    """Also at their ends, of NaN and of infinity."""
    x = torch.cat([torch.linspace(-120, 120, 100_001), torch.tensor([0.0, -0.0, 88.9, -200.0])])
    expected = torch.tensor([math.exp(v) if v < 700 else math.inf for v in x.tolist()]).float()
    assert torch.equal(portable.exp(x), expected)
    ends = torch.tensor([math.inf, -math.inf, math.nan, 1e30, -1e30])
    assert portable.exp(ends).tolist()[:2] == [math.inf, 0.0]
    assert portable.exp(ends).isnan().tolist() == [False, False, True, False, False]
    assert portable.exp(ends)[3:].tolist() == [math.inf, 0.0]
    found = portable.logsigmoid(x)
    exact = [
        -math.log1p(math.exp(-v)) if v > 0 else v - math.log1p(math.exp(v)) for v in x.tolist()
    ]
    torch.testing.assert_close(found, torch.tensor(exact).float(), rtol=1.2e-7, atol=0)
    assert portable.logsigmoid(ends)[:2].tolist() == [0.0, -math.inf]
    assert portable.logsigmoid(ends)[2].isnan()


@pytest.mark.parametrize("function", [portable.exp, portable.logsigmoid])
def test_exponentials_have_their_gradients(function: Any) -> None:
    x = torch.randn(40, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    assert torch.autograd.gradcheck(function, x.requires_grad_())
