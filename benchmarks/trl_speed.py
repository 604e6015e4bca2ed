"""Samples per second of learning: ours against TRL at the same settings.

    python benchmarks/trl_speed.py --algo grpo --repeats 3

The flags are those of the method's own file, as benchmarks/trl_baseline.py takes them; so are the
settings of both sides. The clock runs from the first step to the last: loading the model, making
the data set and evaluations are outside of it on both sides, sampling, grading, updates and
logging inside. Every measurement is a process of its own with one thread, pinned to one core; the
two take turns, so that a slow minute of a shared machine meets both. What counts is the ratio
within a repeat.

The measurement of a method replaces its former one in results/trl_speed.json.
"""

from __future__ import annotations

import json
import shlex
import sys
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks import trl_baseline
from benchmarks.measure import LearningOnly, run_pinned, usable_cores
from llm_track import models
from manyseeds.cli import PositiveInt, exit_with, identity
from manyseeds.errors import UsageError
from manyseeds.process import resolve_device, set_up_process
from manyseeds.record import provenance, write_json
from manyseeds.runs.language import LanguageConfig
from manyseeds.runs.parallel import Processes

OURS, THEIRS = "manyseeds", "trl"
MEASURE = "--measure-"  # followed by one of them: what a measuring process is started with


@dataclass(frozen=True, kw_only=True)
class Flags(trl_baseline.Flags):
    """What this script has besides the flags of the method."""

    repeats: PositiveInt = 3
    """Measurements of each side."""
    core: int = field(default_factory=lambda: min(usable_cores()))
    """CPU core that every measurement is pinned to."""


def measure(system: str, algo: str, config: LanguageConfig) -> dict[str, float]:
    """Train the first seed of a Config; its samples and the seconds of learning."""
    set_up_process(config.threads)
    run, baseline = LearningOnly(config), trl_baseline.BASELINES[algo]  # type: ignore[arg-type]
    if system == OURS:
        baseline.module.train(config, run)
    else:
        trl_baseline.train(baseline, config, run)
    return {"samples": run.samples, "learn_s": run._metrics[-1]["learn_s"]}


def summary(measurements: list[dict[str, Any]]) -> dict[str, Any]:
    """Medians of both sides, and the median and range of the ratios within repeats."""
    speeds = {
        system: [m["samples_per_s"] for m in measurements if m["system"] == system]
        for system in (OURS, THEIRS)
    }
    ratios = [ours / theirs for ours, theirs in zip(speeds[OURS], speeds[THEIRS], strict=True)]
    return {
        "samples_per_s": {system: median(values) for system, values in speeds.items()},
        "ratio": median(ratios),
        "ratio_low": min(ratios),
        "ratio_high": max(ratios),
        "repeats": len(ratios),
    }


def main() -> None:
    """Measure, print, and write results/trl_speed.json."""
    args = sys.argv[1:]
    system = args.pop(0).removeprefix(MEASURE) if args and args[0].startswith(MEASURE) else ""
    command, config = trl_baseline.read_flags(args, Flags, __doc__)
    if system:
        print(json.dumps(measure(system, command.algo, config)))
        return
    try:
        if command.core not in usable_cores():
            cores = ", ".join(map(str, sorted(usable_cores())))
            raise UsageError(f"--core {command.core}: must be among {cores}")
        # The first run makes the tiny model; that is no part of anything measured.
        models.find(config.model, config, Processes(resolve_device(config.device)))
        measurements = []
        for repeat in range(command.repeats):
            for system in (OURS, THEIRS):
                found = run_pinned(
                    [sys.executable, __file__, MEASURE + system, *args, "--quiet"],
                    command.core,
                )
                speed = found["samples"] / found["learn_s"]
                print(f"{system:10} {command.algo}: {speed:8,.0f} samples/s", flush=True)
                measurements.append(
                    {"repeat": repeat, "system": system, **found, "samples_per_s": speed}
                )
    except UsageError as error:
        exit_with(error)
    row = summary(measurements)
    path = Path(config.results) / "trl_speed.json"
    stored = json.loads(path.read_text()) if path.exists() else {}
    stored[command.algo] = {
        "command": "python " + shlex.join(sys.argv),
        "settings": identity(config),
        **row,
        "measurements": measurements,
        **provenance(
            [f"llm_track.{command.algo}:train"],
            packages=("transformers", *trl_baseline.PACKAGES),
        ),
    }
    write_json(path, stored)
    print(
        f"ours / TRL: {row['ratio']:.2f} [{row['ratio_low']:.2f}, {row['ratio_high']:.2f}], "
        f"n={row['repeats']}; {path}"
    )


if __name__ == "__main__":
    main()
