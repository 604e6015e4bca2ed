"""Tests run in the process that a training script sets up: one thread, denormals flushed."""

import contextlib
import gc
import math
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from manyseeds import kernels, plots
from manyseeds.process import set_up_process
from manyseeds.runs import checkpoints, control
from tests.random_models import KINDS, make_model

pytest_plugins = ["tests.verified", "tests.workers"]
set_up_process(threads=1)
gc.set_threshold(20_000, 10, 10)  # rarer than by default: 1% of the time
figure_bytes = plots.figure_bytes


def pytest_collection_finish() -> None:
    """Spare the garbage collector all that was imported and collected; it takes 7% of the time."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def _blank_pictures() -> Iterator[None]:
    """What runs draw at their end stays blank: it takes 7% of the time, and few tests look at it.

    Figures in SVG, which the report shows, are drawn.
    """

    def blank(figure: Any, suffix: str) -> bytes:
        return b"blank" if suffix == ".png" else figure_bytes(figure, suffix)

    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(plots, "figure_bytes", blank)
        yield


@pytest.fixture(autouse=True)
def _heeded_interrupt() -> None:
    """Commands that a test starts heed Ctrl-C, whatever the tests' own process does.

    A background job of a shell has SIGINT ignored, and what it starts inherits that.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also what runs draw at their end is drawn."""
    monkeypatch.setattr(plots, "figure_bytes", figure_bytes)


@pytest.fixture(params=["c", "torch"])
def computed(request: pytest.FixtureRequest) -> Iterator[None]:
    """By the kernels in C, and by PyTorch's operations."""
    with kernels.off() if request.param == "torch" else contextlib.nullcontext():
        yield


@pytest.fixture(scope="module", params=KINDS)
def folder(request: Any, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A folder with a small random language model, of each kind."""
    return make_model(request.param, tmp_path_factory.mktemp("models") / request.param)


@pytest.fixture(scope="module")
def qwen(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A folder with a small random Qwen2."""
    return make_model("qwen2", tmp_path_factory.mktemp("models") / "qwen2")


@pytest.fixture(scope="session")
def tiny_results(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A results folder whose tiny models all tests share, also those of other workers."""
    folder = tmp_path_factory.getbasetemp()
    return str((folder.parent if folder.name.startswith("worker-") else folder) / "tiny")


@pytest.fixture
def few_evaluations(monkeypatch: pytest.MonkeyPatch) -> None:
    """A training is evaluated at three points, and at its end over four episodes."""
    for name, few in (("POINTS", 2), ("FINAL_EPISODES", 4)):
        monkeypatch.setattr(control, name, few)


@pytest.fixture
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """Checkpoints are written as often as `--checkpoint-interval` says, whatever it costs."""
    monkeypatch.setattr(checkpoints, "WRITING", math.inf)


@pytest.fixture
def few_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    """Language models are evaluated on four prompts, two samples each."""
    from manyseeds.llm_track import evaluation

    monkeypatch.setattr(evaluation, "curve_size", lambda config: (4, 2))
    monkeypatch.setattr(evaluation, "final_size", lambda *of: (4, 2))
