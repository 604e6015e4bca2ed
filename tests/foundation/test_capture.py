"""An iteration as a function, and captured and replayed."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from manyseeds import capture, kernels
from manyseeds.benchmarks.experiments import catalog
from manyseeds.capture import captured, leaves
from manyseeds.runs.control import Run

NORMALIZED = {"normalize_obs": True, "normalize_reward": True}
SMALL: dict[str, Any] = {"num_envs": 2, "num_steps": 20, "minibatch_size": 20, "epochs": 2}
TRUST: dict[str, Any] = {"num_envs": 2, "num_steps": 20, "minibatch_size": 20, "cg_steps": 5}
# Every path of an iteration, over several episodes, updates and syncs.
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "ppo": ("ppo", {**SMALL, "total_timesteps": 240}),
    "ppo, early stop": ("ppo", {**SMALL, "target_kl": 1e-3, "total_timesteps": 240}),
    "ppo, normalised": ("ppo", {**SMALL, **NORMALIZED, "total_timesteps": 240}),
    "ppo, unclipped": ("ppo", {**SMALL, "clip_range": 0.0}),
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
    "a2c, Adam": ("a2c", {"num_envs": 2, "optimizer": "adam"}),
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

for algo in sorted(set(catalog.names("algos")) - {algo for algo, _ in CASES.values()}):
    if hasattr(catalog.module("algos", algo), "captured"):
        CASES[algo] = algo, catalog.facts(algo).small


def learn(case: str, **overrides: Any) -> tuple[dict[str, Tensor], Any]:
    """Train three seeds in memory; the policy's tensors and the metrics."""
    algo, settings = CASES[case]
    module = importlib.import_module(f"manyseeds.algos.{algo}")
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
def recorder(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeRecorder]:
    """Records every captured function made from now on: PyTorch's operations, as on CUDA."""
    fake = FakeRecorder()
    monkeypatch.setattr(capture, "recorder_for", lambda device, native: fake)
    with kernels.off():
        yield fake


@pytest.mark.parametrize("case", CASES)
def test_replaying_the_captured_iteration_is_the_eager_training(
    case: str, recorder: FakeRecorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bit for bit, every weight, statistic and metric."""
    replayed, metrics = learn(case)
    assert sum(r.replays for r in recorder.recordings) >= 2
    assert len(recorder.recordings) <= 6
    monkeypatch.undo()
    eager, eager_metrics = learn(case)
    for name, tensor in eager.items():
        assert torch.equal(tensor, replayed[name]), name
    for name in eager_metrics:
        np.testing.assert_array_equal(metrics[name], eager_metrics[name], err_msg=name)


def test_on_a_cpu_nothing_is_captured() -> None:
    """Nor where Python steps the environment."""
    for device, native in (("cpu", True), ("cuda", False)):
        assert captured(torch.device(device), native)(leaves) is leaves
    assert isinstance(captured(torch.device("cuda"), True)(leaves), capture.Captured)


def test_the_fake_recorder_notices_state_kept_in_python(recorder: FakeRecorder) -> None:
    """Negative control: a counter that Python holds is frozen in a replay."""

    class Learner:
        steps = 0
        total = torch.zeros(())

    @captured(torch.device("cpu"), True)
    def iteration(carry: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        Learner.steps += 1
        Learner.total = Learner.total + x  # bound anew: the graph goes on with the old one
        return carry + Learner.steps, Learner.total.clone()

    carry = torch.zeros(())
    for _ in range(5):
        carry, total = iteration(carry, torch.tensor(1.0))
    assert carry.item() == 1 + 2 + 2 + 2 + 2
    assert total.item() == 2


def test_reading_back_from_the_device_is_noticed(recorder: FakeRecorder) -> None:
    @captured(torch.device("cpu"), True)
    def iteration(x: Tensor) -> Tensor:
        return x + x.item()

    iteration(torch.ones(()))
    with pytest.raises(AssertionError, match="_local_scalar_dense"):
        iteration(torch.ones(()))


def test_outputs_survive_the_next_replay(recorder: FakeRecorder) -> None:
    @captured(torch.device("cpu"), True)
    def iteration(carry: Tensor, x: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        return carry + 1, {"double": 2 * x}

    carry, outputs = torch.zeros(()), []
    for k in range(5):
        carry, output = iteration(carry, torch.tensor(float(k)))
        outputs.append(output["double"])
    assert [x.item() for x in outputs] == [0, 2, 4, 6, 8]
    assert carry.item() == 5


def test_flags_and_sizes_have_recordings_of_their_own(recorder: FakeRecorder) -> None:
    @captured(torch.device("cpu"), True)
    def iteration(x: Tensor, first: bool) -> Tensor:
        return x.sum() if first else -x.sum()

    for _ in range(3):
        assert iteration(torch.ones(2), True).item() == 2
        assert iteration(torch.ones(2), False).item() == -2
        assert iteration(torch.ones(3), False).item() == -3
        assert iteration(torch.ones(3, dtype=torch.int64), False).dtype == torch.int64
    assert len(recorder.recordings) == 4
