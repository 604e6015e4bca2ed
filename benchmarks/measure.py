"""Measurements that take turns: each a process of its own, pinned to one core."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from manyseeds.digest import ROOT
from manyseeds.errors import UsageError
from manyseeds.runs.language import LanguageRun


def usable_cores() -> set[int]:
    """The CPU cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return os.sched_getaffinity(0)
    return set(range(os.cpu_count() or 1))


def time_training(module: Any, config: Any) -> dict[str, float]:
    """Train the seeds of a Config with evaluation off, on one thread; what `measure_ours` gives."""
    import torch
    from torch import Tensor

    from manyseeds.process import set_up_process
    from manyseeds.runs.control import Run

    logged = [(0.0, 0.0)]  # timesteps per seed and seconds of learning, after each iteration
    on_cuda = config.device == "cuda"

    class LearningOnly(Run):
        def evaluate_if_due(self, timestep: int | Tensor, env: Any, policy: Any) -> None:
            return

        def log(self, timestep: int | Tensor, metrics: Any) -> None:
            super().log(timestep, metrics)
            if on_cuda:
                torch.cuda.synchronize()
            mean = timestep.double().mean().item() if isinstance(timestep, Tensor) else timestep
            logged.append((mean, self.learn_s))

    set_up_process(threads=1)
    run = LearningOnly(config)
    module.train(config, run)
    (t0, s0), (t1, s1) = logged[0], logged[-1]
    warm_up = 0.0
    if config.compile or on_cuda:
        t0, s0 = logged[len(logged) // 2]
        warm_up = s0 - (s1 - s0) / (t1 - t0) * t0
    return {
        "timesteps": (t1 - t0) * config.seeds,
        "learn_s": s1 - s0,
        "warm_up_s": warm_up,
        "memory": torch.cuda.max_memory_allocated() if on_cuda else peak_memory(),
    }


def peak_memory() -> int:
    """The most memory that this process has held, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024  # Linux counts in KiB


def run_pinned(command: list[str], core: int | None, **environment: str) -> dict[str, float]:
    """Run a measuring process on one core; its JSON line, with the wall time of the process."""

    def pin() -> None:
        if core is not None and hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(0, {core})

    threads = {"OMP_NUM_THREADS": "1", "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false"}
    began = time.perf_counter()
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        preexec_fn=pin,
        env={**os.environ, **threads, **environment},
        cwd=ROOT,
    )
    wall_s = time.perf_counter() - began
    if done.returncode:
        raise UsageError(f"{' '.join(command[:3])} failed: {done.stderr.strip()[-300:]}")
    measured: dict[str, float] = json.loads(done.stdout.strip().splitlines()[-1])
    return {**measured, "wall_s": wall_s}


def in_turn(
    script: str, cases: Sequence[Mapping[str, str]], repeats: int, *more: str
) -> Iterator[dict[str, Any]]:
    """Measure cases by `SCRIPT --measure` with their values and `more`, one after another.

    Each is a process of its own on one core; all take turns, `repeats` times over.
    """
    for repeat in range(repeats):
        for case in cases:
            command = [sys.executable, script, "--measure", *case.values(), *more]
            yield {"repeat": repeat, **case, **run_pinned(command, min(usable_cores()))}


class LearningOnly(LanguageRun):
    """A run in memory whose clock begins at the first step and which is never evaluated."""

    def evaluate_if_due(self, samples: int, evaluator: Any) -> None:
        if not self._opened:
            self._open()
        self.samples = samples
