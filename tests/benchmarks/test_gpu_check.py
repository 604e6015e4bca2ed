"""The checks of `make gpu-check`, with the CPU in the place of the GPU, and with planted faults."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from manyseeds import capture, command, envs, kernels
from manyseeds.benchmarks.measurements import gpu_check, throughput
from manyseeds.benchmarks.measurements.gpu_check import CHECKS, CPU, carry_out, cases
from manyseeds.errors import UsageError
from manyseeds.llm_track import grpo, models, sampling
from manyseeds.seeds import SeedStreams
from tests.benchmarks.conftest import Output, Patch, Refusal
from tests.foundation.test_capture import FakeRecorder


@pytest.fixture(autouse=True)
def short(monkeypatch: Patch) -> None:
    """Two trainings, of two algorithms; and a whole one of three rollouts."""
    two = [case for case in cases(True) if case.label in ("ppo CartPole-v1", "dqn CartPole-v1")]
    assert len(two) == 2
    monkeypatch.setattr(gpu_check, "cases", lambda first: two)
    monkeypatch.setattr(gpu_check, "ITERATIONS", 3)
    monkeypatch.setattr(gpu_check, "TRAINED", {"seeds": 3, "total_timesteps": 768})


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_the_cpu_passes_as_its_own_gpu(
    check: Callable[[torch.device], str], capsys: Output
) -> None:
    """For `captured_iterations` the operations are recorded by the stand-in for CUDA."""
    with pytest.MonkeyPatch.context() as patch:
        if check is gpu_check.captured_iterations:
            patch.setattr(capture, "recorder_for", lambda device, native: FakeRecorder())
            patch.setattr(kernels, "available", lambda: False)
        found = carry_out(check, CPU)
    assert found["passed"], found
    assert capsys.readouterr().out.startswith(f"pass  {check.__name__.replace('_', ' ')}: ")


# ---- Faults: what differs at every second call would differ on a GPU -------------------------


def drifting(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Adds a little more at each call."""
    calls = itertools.count()
    return lambda *args: function(*args) + 1e-2 * next(calls)


def drift(place: Any, *names: str) -> Callable[[Patch], None]:
    """Functions that drift."""

    def fault(patch: Patch) -> None:
        for name in names:
            patch.setattr(place, name, drifting(getattr(place, name)))

    return fault


other_random_numbers = drift(SeedStreams, "uniform", "normal")


def an_optimizer_in_python(patch: Patch) -> None:
    """Whose learning rate a recording freezes."""
    patch.setattr(kernels, "available", lambda: False)
    patch.setattr(capture, "recorder_for", lambda device, native: FakeRecorder())
    rates = itertools.count()
    step = gpu_check.ppo.SeedAdam.step
    patch.setattr(
        gpu_check.ppo.SeedAdam, "step", lambda self, lr, *rest: step(self, lr * next(rates), *rest)
    )


def a_policy_kept(patch: Patch) -> None:
    kept: list[Any] = []
    learned = gpu_check.learned
    patch.setattr(gpu_check, "KEPT", 2**10)
    patch.setattr(gpu_check, "learned", lambda *args: kept.append(learned(*args)))


def a_look_at_the_rewards(patch: Patch) -> None:
    update = envs.EpisodeTracker.update

    def looking(self: Any, rewards: Tensor, done: Tensor) -> Any:
        assert rewards.sum().item() > 0
        return update(self, rewards, done)

    patch.setattr(envs.EpisodeTracker, "update", looking)


def other_scores(patch: Patch) -> None:
    scores = itertools.count()

    def finish(*args: Any) -> Any:
        score = float(next(scores))
        iqm = {"value": score, "low": score - 0.5, "high": score + 0.5}
        return {"final": {"greedy": {"iqm": iqm}}}

    patch.setattr(gpu_check.Run, "finish", finish)


def other_bytes(patch: Patch) -> None:
    written = itertools.count()
    patch.setattr(gpu_check, "to_bytes", lambda tensors: next(written))


def another_language_step(patch: Patch) -> None:
    train, calls = grpo.train, itertools.count()

    def drifting_train(*args: Any) -> Any:
        policy, more = train(*args), next(calls)
        for p in models.trainable(policy):
            p.data += 1e-3 * more
        return policy

    patch.setattr(grpo, "train", drifting_train)


@pytest.mark.parametrize(
    ("check", "fault"),
    [
        (gpu_check.random_numbers, other_random_numbers),
        (gpu_check.initial_weights, other_random_numbers),
        (gpu_check.environment_steps, drift(envs.CartPole, "transition")),
        (gpu_check.one_iteration, other_random_numbers),
        (gpu_check.captured_iterations, an_optimizer_in_python),
        (gpu_check.captured_twice, other_random_numbers),
        (gpu_check.memory_given_back, a_policy_kept),
        (gpu_check.waits, a_look_at_the_rewards),
        (gpu_check.whole_training, other_scores),
        (gpu_check.one_policy, other_bytes),
        (gpu_check.log_probabilities, drift(sampling, "logprobs")),
        (gpu_check.language_step, another_language_step),
        (
            gpu_check.out_of_memory,
            lambda patch: patch.setattr(command, "out_of_memory", lambda error: "so\nmuch"),
        ),
    ],
    ids=lambda x: x.__name__ if x in CHECKS else "",
)
def test_a_fault_is_a_line_that_says_so(
    check: Callable[[torch.device], str],
    fault: Callable[[Patch], None],
    monkeypatch: Patch,
    capsys: Output,
) -> None:
    fault(monkeypatch)
    assert not carry_out(check, CPU)["passed"]
    assert capsys.readouterr().out.startswith(f"FAIL  {check.__name__.replace('_', ' ')}: ")


def test_without_a_gpu_it_is_one_line(monkeypatch: Patch, refusal: Refusal) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert refusal(gpu_check.main) == "error: gpu_check.py: this torch sees no CUDA device\n"


def test_what_is_timed_on_a_gpu(monkeypatch: Patch) -> None:
    """Networks at 10, 1,024 and 8,192 seeds, and rejax only where its jax finds the GPU."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(throughput.jax_peer, "found", lambda device: False)
    cells = throughput.Config(device="cuda").cells()
    assert {algo for algo, _, _ in cells} == {"ppo", "a2c", "trpo", "dqn"}
    assert {seeds for _, system, seeds in cells if system != "sb3"} == {10, 1024, 8192}
    assert not [cell for cell in cells if cell[1] == "rejax"]
    monkeypatch.setattr(throughput.jax_peer, "found", lambda device: device == "cuda")
    assert ("ppo", "rejax", 8192) in throughput.Config(device="cuda").cells()
    with pytest.raises(UsageError, match="--algos sarsa: is timed on the CPU alone"):
        throughput.Config(device="cuda", algos=("sarsa",))
