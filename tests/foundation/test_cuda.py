"""What can be known of CUDA without a GPU.

Iterations are run on the meta device, which has shapes and no values. A tensor of the CPU that gets
into one is then on another device than the rest, and whatever reads a value back has none to read.
"""

from __future__ import annotations

from manyseeds.command import failing_in_one_line

import contextlib
import importlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from manyseeds import capture
from manyseeds.algos import ppo
from manyseeds.benchmarks.measurements import measure
from manyseeds.capture import CudaRecorder, leaves
from manyseeds.record import RunFolder
from manyseeds.runs import base, control
from manyseeds.runs.base import trained_on
from manyseeds.runs.control import Run
from tests.foundation.test_capture import CASES

META = torch.device("meta")


class OnMeta(TorchDispatchMode):
    """Every operation takes and returns tensors on the meta device, and reads nothing back."""

    FORBIDDEN = (
        *("_local_scalar_dense", "is_nonzero", "item", "lift_fresh", "masked_select", "nonzero"),
        *("unique_dim", "_unique2", "equal"),
    )

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        assert func.overloadpacket.__name__ not in self.FORBIDDEN, func
        out = func(*args, **kwargs)
        for tensor in leaves((args, kwargs, out)):
            assert tensor.device == META, f"{func}: a tensor on {tensor.device}"
        return out


class MetaRecorder:
    """Records nothing: it watches an iteration as often as it is run."""

    def warm_up(self, body: Callable[[], Any]) -> Any:
        return body()  # creates constants, from the host

    def record(self, body: Callable[[], Any]) -> tuple[MetaRecorder, Any]:
        with OnMeta():
            self.outputs = body()
        return self, self.outputs

    def replay(self) -> None:
        pass


@pytest.fixture
def recordings(monkeypatch: pytest.MonkeyPatch) -> list[MetaRecorder]:
    """The recorders of the captured functions made from now on."""
    made: list[MetaRecorder] = []

    def recorder_for(device: torch.device, native: bool) -> MetaRecorder:
        made.append(MetaRecorder())
        return made[-1]

    monkeypatch.setattr(capture, "recorder_for", recorder_for)
    return made


@pytest.mark.parametrize("case", CASES)
def test_an_iteration_stays_on_its_device(case: str, recordings: list[MetaRecorder]) -> None:
    """Initial weights are drawn on the CPU all the same: here they have values."""
    algo, settings = CASES[case]
    module = importlib.import_module(f"manyseeds.algos.{algo}")
    settings = {"hidden": (16, 16), "total_timesteps": 240, **settings}
    run = Run(module.Config(seeds=3, quiet=True, **settings))
    run.device = META
    run.log = run.evaluate_if_due = lambda *args: None  # type: ignore[method-assign]
    module.train(run.config, run)
    assert [recorder for recorder in recordings if hasattr(recorder, "outputs")]


def test_graphs_of_a_recorder_share_their_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    pools: list[Any] = []

    class Graph:
        def pool(self) -> str:
            return "the first graph's"

    @contextlib.contextmanager
    def graph(graph: Graph, pool: Any, stream: Any) -> Any:
        pools.append(pool)
        yield

    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    monkeypatch.setattr(torch.cuda, "graph", graph)
    monkeypatch.setattr(capture, "side_stream", lambda: None)
    for recorder in (CudaRecorder(), CudaRecorder()):
        for k in range(3):
            assert recorder.record(lambda k=k: k)[1] == k
    assert pools == [None, "the first graph's", "the first graph's"] * 2


# ---- What a run says and stores -------------------------------------------------------------

TORCH_SAYS = "CUDA out of memory. Tried to allocate 2.50 GiB. GPU 0 has a total capacity of 80 GiB."


def fails_in_a_graph() -> None:
    try:
        raise torch.OutOfMemoryError(TORCH_SAYS)
    finally:
        raise RuntimeError("CUDA error: operation failed due to a previous error during capture")


def asks_for_an_exbibyte() -> None:
    torch.empty(2**60, dtype=torch.uint8)


@pytest.mark.parametrize("fails", [fails_in_a_graph, asks_for_an_exbibyte])
def test_out_of_memory_is_one_line(
    fails: Callable[[], None], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (2**30, 80 * 2**30))
    with pytest.raises(SystemExit) as left, failing_in_one_line("; try a smaller --seeds"):
        fails()
    assert left.value.code == 1
    (line,) = capsys.readouterr().err.splitlines()
    if fails is fails_in_a_graph:
        what = "tried to allocate 2.50 GiB; 1.00 of 80.00 GiB are free on the GPU"
    else:
        what = f"tried to allocate {2**60} bytes"
    assert line == f"error: out of memory: {what}; try a smaller --seeds"


def test_other_errors_are_not_out_of_memory() -> None:
    with pytest.raises(RuntimeError, match="shapes"), failing_in_one_line():
        raise RuntimeError("shapes do not fit")


def test_a_part_names_its_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "gpu", lambda: "NVIDIA X, driver 1.2, CUDA 13.0")
    for device, part in (("cuda", tmp_path / "seeds-000-001"), ("cpu", tmp_path / "seeds-002-003")):
        run = Run(ppo.Config(seeds=2, quiet=True), directory=part, algo="ppo")
        run.device = torch.device(device)
        run.open([ppo.train])
        config = json.loads((part / "config.json").read_text())
        assert config["execution"]["device"] == device
        assert ("gpu" in config["machine"]) == (device == "cuda")
        run.close()
    assert trained_on(list(tmp_path.iterdir())[:1]) in ("cuda, 1 thread", "cpu, 1 thread")
    assert trained_on(sorted(tmp_path.iterdir())) == "cuda, 1 thread and cpu, 1 thread"


def test_a_measurement_waits_for_the_gpu_in_the_middle_and_at_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    waits: list[int] = []
    logged: list[int] = []
    monkeypatch.setattr(base, "resolve_device", lambda device: torch.device("cpu"))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: waits.append(logged[-1]))
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda: 2**20)
    log = Run.log
    monkeypatch.setattr(Run, "log", lambda run, t, x: (logged.append(t), log(run, t, x)))
    settings = {"num_envs": 2, "num_steps": 10, "minibatch_size": 20, "total_timesteps": 210}
    config = ppo.Config(seeds=2, device="cuda", hidden=(16,), quiet=True, **settings)
    figures = measure.time_training(ppo, config)
    assert waits == [120, 220]
    assert figures["timesteps"] == 2 * 100
    assert figures["memory"] == 2**20


@pytest.mark.parametrize(("backend", "notes"), [("gymnasium", 1), ("auto", 0)])
def test_a_bridged_environment_on_a_gpu_is_noted(
    backend: Any, notes: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(control, "complete_seeds", lambda *args: RunFolder(Path("x")))
    monkeypatch.setattr(control, "print_result", lambda *args: None)
    control.main(ppo.Config(device="cuda", backend=backend), ppo.train, {})
    said = capsys.readouterr().err.splitlines()
    assert [line[:37] for line in said] == ["note: CartPole-v1 is stepped on the C"] * notes
