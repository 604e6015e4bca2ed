"""Tests run in the process that a training script sets up: one thread, denormals flushed."""

import gc
from typing import Any

import pytest

from manyseeds.process import set_up_process
from tests.random_models import KINDS, make_model

set_up_process(threads=1)


def pytest_collection_finish() -> None:
    """Spare the garbage collector all that was imported and collected; it takes 7% of the time."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="module", params=KINDS)
def folder(request: Any, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A folder with a small random language model, of each kind."""
    return make_model(request.param, tmp_path_factory.mktemp("models") / request.param)


@pytest.fixture(scope="module")
def qwen(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A folder with a small random Qwen2."""
    return make_model("qwen2", tmp_path_factory.mktemp("models") / "qwen2")


@pytest.fixture
def few_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    """Language models are evaluated on four prompts, two samples each."""
    from llm_track import evaluation

    for name in ("CURVE_PROMPTS", "FINAL_PROMPTS"):
        monkeypatch.setattr(evaluation, name, 4)
    for name in ("CURVE_SAMPLES", "FINAL_SAMPLES"):
        monkeypatch.setattr(evaluation, name, 2)
