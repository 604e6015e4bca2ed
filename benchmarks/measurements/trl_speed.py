"""Samples per second of learning: ours against TRL at the same settings.

    python benchmarks/trl_speed.py --algo grpo --repeats 3

The flags are those of the method's own file, as benchmarks/trl_baseline.py takes them; so are the
settings of both sides. The clock runs from the first step to the last: loading the model, making
the data set and evaluations are outside of it on both sides, sampling, grading, updates and
logging inside. Every measurement is a process of its own with one thread, pinned to one core; the
two take turns, so that a slow minute of a shared machine meets both. What counts is the ratio
within a repeat.

The measurement of a method replaces its former one with the same settings in
results/trl_speed.json.
"""

from __future__ import annotations

from manyseeds.command import failing_in_one_line

import dataclasses
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from manyseeds.benchmarks.experiments import catalog
from manyseeds.benchmarks.measurements.measure import (
    Measurement,
    SeedsLearningOnly,
    check_core,
    in_turn,
    measured,
    measuring,
    origin,
    read_measured,
    run_pinned,
    usable_cores,
    write_measured,
)
from manyseeds.cli import (
    PositiveInt,
    from_identity,
    identity,
    parse_both,
    read_algo,
    requested_seeds,
)
from manyseeds.digest import ROOT
from manyseeds.kernels.guard import looking_by_iteration
from manyseeds.llm_track import models
from manyseeds.process import resolve_device, set_up_process
from manyseeds.runs.language import LanguageConfig
from manyseeds.runs.parallel import Processes
from manyseeds.untrusted import NAME, ORIGIN

OURS, THEIRS = "manyseeds", "trl"
FILE = "trl_speed.json"
STORED = {
    str: {
        "algo": NAME,
        "settings": {"total_samples": int},
        **ORIGIN,
        "samples_per_s": {OURS: float, THEIRS: float},
        **dict.fromkeys(("ratio", "ratio_low", "ratio_high"), float),
        "repeats": int,
        "versions": {"trl": str},
    }
}
TRL_BASELINE = ROOT / "benchmarks" / "trl_baseline.py"


@dataclass(frozen=True, kw_only=True)
class Flags:
    """What this script has besides the flags of the method."""

    algo: str = "grpo"
    """Method: sft, reward_model, dpo, grpo, dr_grpo or dapo."""
    repeats: PositiveInt = 3
    """Repeats of the measurement on each side."""
    core: int = field(default_factory=lambda: min(usable_cores()))
    """CPU core that every measurement is pinned to."""


def measure(algo: str, settings: str) -> dict[str, float]:
    """Train the seeds of a Config, given as JSON; samples and seconds of learning, of all seeds."""
    module = catalog.module("llm_track", algo)
    config = from_identity(module.Config, json.loads(settings))
    set_up_process(config.threads)
    run = SeedsLearningOnly(config, requested_seeds(config))
    with looking_by_iteration():  # as in every command that trains
        module.train(config, run)
    return run.figures()


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


def measure_both(flags: Flags, config: LanguageConfig) -> list[dict[str, Any]]:
    """Measurements of both sides. Raises UsageError for what TRL cannot do before the first."""
    check_core(flags.core)
    settings = json.dumps(dataclasses.asdict(config) | {"quiet": True})
    run_pinned(measuring(TRL_BASELINE, flags.algo, settings, flag="--check"), flags.core)
    # The first run makes the tiny model; that is no part of anything measured.
    models.find(config.model, config, Processes(resolve_device(config.device)))

    def say(m: dict[str, Any]) -> str:
        return f"{m['system']:10} {flags.algo}: {m['samples'] / m['learn_s']:8,.0f} samples/s"

    cases = [
        Measurement({"system": system}, measuring(script, flags.algo, settings))
        for system, script in ((OURS, __file__), (THEIRS, TRL_BASELINE))
    ]
    measurements = in_turn(cases, flags.repeats, flags.core, say)
    return [{**m, "samples_per_s": m["samples"] / m["learn_s"]} for m in measurements]


def name_of(algo: str, config: LanguageConfig) -> str:
    """The method, its seeds, and what differs from its preset: `grpo, 10 seeds, beta 0.1`."""
    plain, own = catalog.plain_settings("llm_track", algo, config.task) or {}, identity(config)
    changed = (f", {name} {x}" for name, x in own.items() if plain.get(name) != x)
    seeds = f", {config.seeds} seeds" if config.seeds > 1 else ""
    return algo + seeds + "".join(changed)


@failing_in_one_line()
def main(args: Sequence[str] | None = None) -> None:
    """Measure, print, and write results/trl_speed.json."""
    words = sys.argv[1:] if args is None else args
    if measured(words, measure=measure):
        return
    algo = read_algo(words, Flags.algo, catalog.names("llm_track"), "the LLM track")
    module = catalog.module("llm_track", algo)
    flags, config = parse_both(Flags, module.Config, module.PRESETS, __doc__, words)
    path = Path(config.results) / FILE
    stored = read_measured(path, STORED)
    measurements = measure_both(flags, config)
    row = summary(measurements)
    stored[name_of(algo, config)] = {
        "algo": algo,
        **origin(
            [f"manyseeds.llm_track.{algo}:train"], packages=("transformers", "trl", "accelerate")
        ),
        "settings": identity(config),
        **row,
        "measurements": measurements,
    }
    ratio = f"{row['ratio']:.2f} [{row['ratio_low']:.2f}, {row['ratio_high']:.2f}]"
    print(f"ours / TRL: {ratio}, n={row['repeats']}")
    write_measured(path, stored)


if __name__ == "__main__":
    main()
