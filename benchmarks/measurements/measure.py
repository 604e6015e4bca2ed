"""Measurements that take turns: each a process of its own, pinned to one core."""

from __future__ import annotations

import json
import os
import resource
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from manyseeds import stats
from manyseeds.cli import exit_with
from manyseeds.digest import ROOT
from manyseeds.errors import UsageError
from manyseeds.record import provenance
from manyseeds.runs.language_seeds import SeedsRun
from manyseeds.untrusted import Shape, read_shaped
from manyseeds.writing import write_json

MEASURE = "--measure"  # what a measuring process is started with


def usable_cores() -> set[int]:
    """The CPU cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return os.sched_getaffinity(0)
    return set(range(os.cpu_count() or 1))


def check_core(core: int) -> None:
    """Raise UsageError for a core that measurements cannot be pinned to."""
    if core not in usable_cores():
        cores = ", ".join(map(str, sorted(usable_cores())))
        raise UsageError(f"--core {core}: must be among {cores}")


# ---- What a measuring process does ----------------------------------------------------------


def measured(words: Sequence[str], **measures: Callable[..., Mapping[str, float]]) -> bool:
    """Whether a command line is that of a measuring process; its figures are then printed as JSON.

    measures: by flag without its hyphens, functions of the words that follow it.
    """
    for name, measure in measures.items():
        if words[:1] == [f"--{name}"]:
            try:
                print(json.dumps(measure(*words[1:])))
            except UsageError as error:
                exit_with(error)
            return True
    return False


def time_training(module: Any, config: Any, seeds: Sequence[int] | None = None) -> dict[str, float]:
    """Train with evaluation off, on one thread: learning seconds, and timesteps of all together.

    seeds: those of the rows of a batch (manyseeds.rows), in the place of the Config's own.
    """
    import torch
    from torch import Tensor

    from manyseeds.kernels.guard import looking_by_iteration
    from manyseeds.process import set_up_process
    from manyseeds.runs.control import Run

    logged = [(0.0, 0.0)]  # timesteps per seed and seconds of learning, after each iteration
    on_cuda = config.device == "cuda"

    class LearningOnly(Run):
        def evaluate_if_due(self, timestep: int | Tensor, env: Any, policy: Any) -> None:
            return

        def log(self, timestep: int | Tensor, metrics: Any) -> None:
            super().log(timestep, metrics)
            mean = timestep.double().mean().item() if isinstance(timestep, Tensor) else timestep
            total = self.config.total_timesteps
            if on_cuda and (mean >= total or logged[-1][0] < total / 2 <= mean):
                torch.cuda.synchronize()  # elsewhere the time is that of the queue alone
            logged.append((mean, self.learn_s))

    set_up_process(threads=1)
    run = LearningOnly(config, seeds)
    with looking_by_iteration():  # as in every command that trains
        module.train(config, run)
    (t0, s0), (t1, s1) = logged[0], logged[-1]
    warm_up = 0.0
    if on_cuda:
        t0, s0 = next(x for x in logged if x[0] >= config.total_timesteps / 2)
        warm_up = s0 - (s1 - s0) / (t1 - t0) * t0
    return {
        "timesteps": (t1 - t0) * len(run.seeds),
        "learn_s": s1 - s0,
        "warm_up_s": warm_up,
        "memory": torch.cuda.max_memory_allocated() if on_cuda else peak_memory(),
    }


def peak_memory() -> int:
    """The most memory that this process has held, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024  # Linux counts in KiB


class SeedsLearningOnly(SeedsRun):
    """A language run in memory, never evaluated, whose clock begins at the first step."""

    def evaluate_if_due(self, evaluator: Any) -> None:
        for run in self.runs:
            run.evaluates(run.samples, evaluator)  # the first call starts the clock

    def figures(self) -> dict[str, float]:
        """Samples of all seeds, and the seconds from the first step to the end of the last
        update."""
        seconds = [float(run.metrics()["learn_s"].iloc[-1]) for run in self.runs]
        return {"samples": sum(run.samples for run in self.runs), "learn_s": sum(seconds)}


# ---- Who starts it --------------------------------------------------------------------------


@dataclass(frozen=True)
class Measurement:
    """A measuring process."""

    labels: dict[str, Any]  # what stands beside its figures
    command: list[str]
    environment: dict[str, str] = field(default_factory=dict)


def measuring(script: str | Path, *words: str, flag: str = MEASURE) -> list[str]:
    """The command of a measuring process."""
    return [sys.executable, str(script), flag, *words]


def run_pinned(command: list[str], core: int | None, **environment: str) -> dict[str, float]:
    """Run a measuring process on one core; its JSON line, with the wall time of the process.

    Raises UsageError where it fails, with its own words where it was given a mistake.
    """

    from manyseeds.process import end_with_parent

    def begin() -> None:
        end_with_parent()
        if core is not None:
            os.sched_setaffinity(0, {core})

    threads = {"OMP_NUM_THREADS": "1", "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false"}
    began = time.perf_counter()
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        preexec_fn=begin if sys.platform == "linux" else None,
        env={**os.environ, **threads, **environment},
        cwd=ROOT,
    )
    wall_s = time.perf_counter() - began
    said = done.stderr.strip()
    if done.returncode == 2 and said.startswith("error: ") and "\n" not in said:
        raise UsageError(said.removeprefix("error: "))
    if done.returncode:
        raise UsageError(f"{' '.join(command[:3])} failed: {said[-300:]}")
    figures: dict[str, float] = json.loads(done.stdout.strip().splitlines()[-1])
    return {**figures, "wall_s": wall_s}


def in_turn(
    cases: Sequence[Measurement],
    repeats: int,
    core: int | None,
    say: Callable[[dict[str, Any]], str],
) -> list[dict[str, Any]]:
    """Measure cases one after another, `repeats` times over: their labels and figures.

    core: the one that every process is pinned to, if any. say: the line to print of each.
    """
    measurements = []
    for repeat in range(repeats):
        for case in cases:
            figures = run_pinned(case.command, core, **case.environment)
            measurements.append({"repeat": repeat, **case.labels, **figures})
            print(say(measurements[-1]), flush=True)
    return measurements


def origin(origins: Sequence[str], packages: Sequence[str] = ()) -> dict[str, Any]:
    """This command, and the code, machine and versions of what it measures."""
    return {"command": "python " + shlex.join(sys.argv), **provenance(origins, packages)}


def read_measured(path: Path, shape: Shape) -> dict[str, Any]:
    """What was measured before, `{}` where nothing was; shape: as for `untrusted.check`.

    Raises UsageError.
    """
    found: dict[str, Any] = read_shaped(path, shape) if os.path.lexists(path) else {}
    return found


def measured_by(
    path: Path, code: Mapping[str, Any], shape: dict[str, Any], about: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """The `measurements` of a file, none where other code made it, or with another `about`.

    shape: of the file without its origin.
    """
    stored = read_measured(path, {"code": {"digest": str}, **shape})
    if not stored or stored["code"]["digest"] != code["digest"]:
        return []
    same = all(stored[name] == value for name, value in about.items())
    return stored["measurements"] if same else []


def greedy_areas(run: Any) -> list[float]:
    """The area under each seed's greedy curve, [S], of a control run in memory."""
    curve = run.curve()
    curve = curve[curve["mode"] == "greedy"].drop_duplicates(["seed", "timestep"])
    by_seed = curve.groupby("seed")
    rows = (by_seed.get_group(seed) for seed in run.seeds)
    return [
        float(stats.area_under_curve(x["timestep"].to_numpy(), x["return_mean"].to_numpy()))
        for x in rows
    ]


def write_measured(path: Path, stored: Mapping[str, Any]) -> None:
    """Write what was measured, and say where."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, stored)
    print(f"written: {path}")


def cost_cells(measurements: Sequence[dict[str, Any]]) -> tuple[str, str, str]:
    """Medians of parameters, of what the optimizer keeps (KiB) and of memory (MiB), of
    `untrusted.COST`."""
    figures = (("parameters", 1), ("optimizer_bytes", 2**10), ("memory", 2**20))
    parameters, kept, memory = (
        f"{median(m[name] for m in measurements) / unit:,.0f}" for name, unit in figures
    )
    return parameters, kept, memory
