"""One iteration, three ways to run it: eagerly, with compiled pieces, captured and replayed."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from manyseeds import kernels, program
from manyseeds.digest import ROOT
from manyseeds.errors import UsageError
from manyseeds.program import Program, leaves, piece
from manyseeds.runs.control import Run

NORMALIZED = {"normalize_obs": True, "normalize_reward": True}
SMALL: dict[str, Any] = {"num_envs": 2, "num_steps": 20, "minibatch_size": 20, "epochs": 2}
TRUST: dict[str, Any] = {"num_envs": 2, "num_steps": 20, "minibatch_size": 20, "cg_steps": 5}
# Every path of an iteration, over several episodes, updates and syncs.
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "ppo": ("ppo", {**SMALL, "total_timesteps": 240}),
    "ppo, early stop": ("ppo", {**SMALL, "target_kl": 1e-3, "total_timesteps": 240}),
    "ppo, normalised": ("ppo", {**SMALL, **NORMALIZED, "total_timesteps": 240}),
    "ppo, unclipped": ("ppo", {**SMALL, "clip_range": 0.0, "shared_trunk": True}),
    "ppo, box": ("ppo", {**SMALL, **NORMALIZED, "env": "Pendulum-v1", "total_timesteps": 480}),
    "ppo, Acrobot": ("ppo", {**SMALL, "env": "Acrobot-v1", "total_timesteps": 160}),
    "ppo, MountainCar": ("ppo", {**SMALL, "env": "MountainCar-v0", "total_timesteps": 160}),
    "a2c": ("a2c", {"num_envs": 2, "total_timesteps": 80}),
    "a2c, box": (
        "a2c",
        {**NORMALIZED, "env": "Pendulum-v1", "num_envs": 2, "num_steps": 20}
        | {"advantage": "monte_carlo", "anneal_lr": True, "total_timesteps": 480},
    ),
    "a2c, n steps": ("a2c", {"num_envs": 2, "advantage": "n_step", "optimizer": "rmsprop_tf"}),
    "a2c, Adam": ("a2c", {"num_envs": 2, "shared_trunk": True, "optimizer": "adam"}),
    "trpo": ("trpo", {**TRUST, "total_timesteps": 240}),
    "trpo, normalised": ("trpo", {**TRUST, **NORMALIZED, "env": "Acrobot-v1"}),
    "trpo, box": ("trpo", {**TRUST, **NORMALIZED, "env": "Pendulum-v1"}),
    "dqn": (
        "dqn",
        {"train_freq": 18, "gradient_steps": 5, "learning_starts": 40, "batch_size": 8}
        | {"buffer_size": 50, "target_update_interval": 12, "tau": 0.5, "num_envs": 2}
        | {"hidden": (16,), "total_timesteps": 300},
    ),
}
# How long their episodes are is read back: never captured.
WHOLE: dict[str, tuple[str, dict[str, Any]]] = {
    "reinforce": ("reinforce", {"episodes": 3, "weight": "baseline", "critic_updates": 3}),
    "grpo": (
        "grpo",
        {"env": "Pendulum-v1", "group_size": 3, "minibatch_size": 64, "epochs": 2}
        | {"normalize_obs": True, "kl_coef": 0.1, "entropy_coef": 0.01},
    ),
}


def learn(case: str, **overrides: Any) -> tuple[dict[str, Tensor], Any]:
    """Train three seeds in memory; the policy's tensors and the metrics."""
    algo, settings = {**CASES, **WHOLE}[case]
    module = importlib.import_module(f"algos.{algo}")
    settings = {"hidden": (16, 16), "total_timesteps": 240, **settings, **overrides}
    config = module.Config(seeds=3, quiet=True, **settings)
    run = Run(config)
    run.evaluate_if_due = lambda *args: None  # type: ignore[method-assign]
    policy = module.train(config, run)
    return policy.state_dict(), run.metrics()


# ---- Captured -------------------------------------------------------------------------------


class Recording(TorchDispatchMode):
    """Records operations with the memory of their results, as a CUDA graph records kernels.

    Replaying repeats the operations alone, with what their arguments hold then, into the same
    memory. Python does not run again: whatever it had computed is frozen.
    """

    # What capture on CUDA refuses (reading back) or would freeze (a constant from the host).
    FORBIDDEN = ("_local_scalar_dense", "nonzero", "item", "lift_fresh", "is_nonzero")

    def __init__(self) -> None:
        super().__init__()
        self.operations: list[tuple[Any, Any, Any, list[Tensor]]] = []
        self.replays = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        assert func.overloadpacket.__name__ not in self.FORBIDDEN, func
        out = func(*args, **(kwargs or {}))
        inputs = {t.untyped_storage().data_ptr() for t in leaves((args, kwargs or {}))}
        fresh = [t for t in leaves(out) if t.untyped_storage().data_ptr() not in inputs]
        self.operations.append((func, args, kwargs or {}, fresh))
        return out

    @torch.no_grad()
    def replay(self) -> None:
        self.replays += 1
        if self.replays == 1:
            return  # recording has computed it already; on CUDA it only records
        for func, args, kwargs, fresh in self.operations:
            again = leaves(func(*args, **kwargs))
            if fresh:
                for old, new in zip(fresh, again[-len(fresh) :], strict=True):
                    old.copy_(new)


class FakeRecorder:
    """Stands in for CUDA where there is none."""

    def __init__(self) -> None:
        self.recordings: list[Recording] = []

    def warm_up(self, body: Callable[[], Any]) -> Any:
        return body()

    def record(self, body: Callable[[], Any]) -> tuple[Recording, Any]:
        recording = Recording()
        self.recordings.append(recording)
        with recording:
            outputs = body()
        return recording, outputs


@pytest.fixture
def captured(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeRecorder]:
    """Every Program made from now on captures its iterations: PyTorch's operations, as on CUDA."""
    recorder = FakeRecorder()
    build = Program.__init__

    def __init__(self: Program, *args: Any, **kwargs: Any) -> None:
        build(self, *args, **kwargs)
        self.recorder = recorder

    monkeypatch.setattr(Program, "__init__", __init__)
    with kernels.off():
        yield recorder


@pytest.mark.parametrize("case", CASES)
def test_replaying_the_captured_iteration_is_the_eager_training(
    case: str, captured: FakeRecorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bit for bit, every weight, statistic and metric."""
    replayed, metrics = learn(case)
    assert sum(r.replays for r in captured.recordings) >= 2
    assert len(captured.recordings) <= 6
    monkeypatch.undo()
    eager, eager_metrics = learn(case)
    for name, tensor in eager.items():
        assert torch.equal(tensor, replayed[name]), name
    for name in eager_metrics:
        np.testing.assert_array_equal(metrics[name], eager_metrics[name], err_msg=name)


@pytest.mark.parametrize("algo", ["reinforce", "grpo"])
def test_what_reads_back_is_never_captured(algo: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also not on CUDA with a native environment."""
    module = importlib.import_module(f"algos.{algo}")
    asked: list[dict[str, Any]] = []

    class Stop(Exception):
        pass

    def make(iteration: Any, device: torch.device, compiled: bool, **settings: Any) -> Any:
        asked.append(settings)
        made = Program(iteration, torch.device("cuda"), compiled, **settings)
        assert made.recorder is None
        raise Stop

    monkeypatch.setattr(module, "Program", make)
    with pytest.raises(Stop):
        learn(algo)
    assert asked == [{"native": False}]


def test_the_fake_recorder_notices_state_kept_in_python(captured: FakeRecorder) -> None:
    """Negative control: a counter that Python holds stands still in a replay."""

    class Learner:
        steps = 0
        total = torch.zeros(())

    def iteration(learner: Any, carry: Tensor, inputs: Tensor) -> tuple[Tensor, Tensor]:
        learner.steps += 1
        learner.total = learner.total + inputs  # bound anew: the graph goes on with the old one
        return carry + learner.steps, learner.total.clone()

    run, learner, carry = Program(iteration, torch.device("cpu")), Learner(), torch.zeros(())
    for _ in range(5):
        carry, total = run(learner, carry, torch.tensor(1.0))
    assert carry.item() == 1 + 2 + 2 + 2 + 2
    assert total.item() == 2


def test_reading_back_from_the_device_is_noticed(captured: FakeRecorder) -> None:
    def iteration(learner: None, carry: Tensor, inputs: Tensor) -> tuple[Tensor, Tensor]:
        return carry, inputs + inputs.item()

    run = Program(iteration, torch.device("cpu"))
    run(None, torch.zeros(()), torch.ones(()))
    with pytest.raises(AssertionError, match="_local_scalar_dense"):
        run(None, torch.zeros(()), torch.ones(()))


def test_outputs_survive_the_next_replay(captured: FakeRecorder) -> None:
    run = Program(lambda learner, carry, inputs: (carry + 1, 2 * inputs), torch.device("cpu"))
    carry, outputs = torch.zeros(()), []
    for k in range(5):
        carry, output = run(None, carry, torch.tensor(float(k)))
        outputs.append(output)
    assert [x.item() for x in outputs] == [0, 2, 4, 6, 8]
    assert carry.item() == 5


# ---- Compiled -------------------------------------------------------------------------------


def test_a_piece_is_plain_unless_a_program_compiles(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[Any] = []

    def compile(function: Any, **kwargs: Any) -> Any:
        compiled.append(kwargs)
        return lambda x: -function(x)

    monkeypatch.setattr(torch, "compile", compile)
    monkeypatch.setattr(program, "_compiled", set())
    double = piece(lambda x: 2 * x)

    def iteration(learner: None, carry: int, inputs: int) -> tuple[int, int]:
        return carry, double(inputs)

    assert double(1) == 2
    assert Program(iteration, torch.device("cpu"))(None, 0, 1)[1] == 2
    program_ = Program(iteration, torch.device("cpu"), compiled=True)
    assert program_(None, 0, 1)[1] == program_(None, 0, 1)[1] == -2
    assert double(1) == 2
    assert len(compiled) == 1
    assert compiled[0]["fullgraph"]


def test_one_process_compiles_one_algorithm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program, "_compiled", set())
    cpu = torch.device("cpu")

    def iteration(learner: None, carry: int, inputs: int) -> tuple[int, int]:
        return carry, inputs

    for _ in range(2):
        Program(iteration, cpu, compiled=True)
    with pytest.raises(UsageError, match="one algorithm per process"):
        Program(lambda learner, carry, inputs: (carry, inputs), cpu, compiled=True)


def test_compile_without_a_compiler_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._inductor import config

    monkeypatch.setattr(config.cpp, "cxx", ("no-such-compiler",))
    with pytest.raises(UsageError, match="--compile: needs a C"):
        program.check_compiler()


COMPILED = """
import json, sys, torch
from torch._dynamo.utils import counters
from manyseeds import program
from manyseeds.process import set_up_process
from tests.foundation.test_program import learn
set_up_process(1)
program.CHUNK, program.UNROLL = 4, 2  # small graphs: several of each kind, and remainders
case = sys.argv[1]
eager, eager_metrics = learn(case)
compiled, metrics = learn(case, compile=True)
apart = max(((eager[k] - compiled[k]).abs() / (1 + eager[k].abs())).max().item() for k in eager)
cache = {name: counters["inductor"]["fxgraph_cache_" + name] for name in ("hit", "miss")}
found = {"apart": apart, **cache}
found["returns"] = [eager_metrics["train_return"].tolist(), metrics["train_return"].tolist()]
print(json.dumps(found))
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "case", ["a2c, n steps", "a2c, box", "trpo", "ppo", "ppo, box", "dqn", *WHOLE]
)
def test_compiled_is_eager_to_rounding_and_a_second_start_reuses_it(
    case: str, tmp_path: Path
) -> None:
    cache = {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path), "PYTHONPATH": str(ROOT)}
    starts = []
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, "-c", COMPILED, case],
            env={**os.environ, **cache},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        assert "Warning" not in done.stderr
        starts.append(json.loads(done.stdout.splitlines()[-1]))
    cold, warm = starts
    assert cold["apart"] < 1e-4
    assert cold["returns"][0] == pytest.approx(cold["returns"][1], rel=1e-4, nan_ok=True)
    assert cold["miss"] > 0
    assert (warm["miss"], warm["hit"]) == (0, cold["miss"])
