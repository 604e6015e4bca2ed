"""Cost of separate hyperparameters per row: 64 learning rates x 10 seeds against 640 seeds.

    python benchmarks/rows_speed.py

PPO on CartPole-v1 with CleanRL's sizes, as in throughput.py, for a part of the training: evaluation
off, one core, each measurement a process of its own, in turn. Beside ours stand stable-baselines3,
which trains one row after another (one is measured, 640 cost 640 times that), and rejax's vmap over
the same 640 rows where it is installed (`make jax-env`). Writes results/rows_speed.json.
"""

from __future__ import annotations

from manyseeds.command import failing_in_one_line

import dataclasses
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from manyseeds.benchmarks.experiments import catalog, jax_peer
from manyseeds.benchmarks.measurements.measure import (
    Measurement,
    in_turn,
    measured,
    measuring,
    origin,
    time_training,
    usable_cores,
    write_measured,
)
from manyseeds.cli import PositiveInt, ScriptConfig, parse
from manyseeds.digest import ROOT
from manyseeds.progress import print_table
from manyseeds.rows import stack
from manyseeds.untrusted import NAME, ORIGIN

SB3_BASELINE = ROOT / "benchmarks" / "sb3_baseline.py"
RATES, SEEDS = 64, 10
ROWS = RATES * SEEDS
PLAIN, VARIED = f"{ROWS} seeds", f"{RATES} learning rates x {SEEDS} seeds"
STORED = {  # rows_speed.json
    **ORIGIN,
    "total_timesteps": int,
    "measurements": [
        {"repeat": int, "system": NAME, "rows": int, "timesteps": float, "learn_s": float}
    ],
}


@dataclass(frozen=True, kw_only=True)
class Config(ScriptConfig):
    """Speed of rows."""

    repeats: PositiveInt = 3
    """Repeats of every measurement, interleaved."""
    total_timesteps: PositiveInt = 20_480
    """Environment steps per row; a part of the 102,400 of throughput.py."""


def rates() -> list[float]:
    """The learning rate of every row."""
    return np.repeat(np.geomspace(1e-4, 1e-2, RATES), SEEDS).tolist()


def measure(system: str, timesteps: str) -> dict[str, float]:
    """Train 640 rows of ours."""
    module = catalog.module("algos", "ppo")
    config = module.Config(total_timesteps=int(timesteps), quiet=True)
    if system == PLAIN:
        return time_training(module, config, range(ROWS))
    batch = stack([dataclasses.replace(config, learning_rate=rate) for rate in rates()])
    return time_training(module, batch, [*range(SEEDS)] * RATES)


def cases(timesteps: int) -> list[Measurement]:
    """All measurements of a repeat."""
    found = [
        Measurement({"system": name, "rows": ROWS}, measuring(__file__, name, str(timesteps)))
        for name in (PLAIN, VARIED)
    ]
    config = catalog.module("algos", "ppo").Config(total_timesteps=timesteps)
    settings = json.dumps(dataclasses.asdict(config))
    found.append(
        Measurement({"system": "sb3", "rows": 1}, measuring(SB3_BASELINE, "ppo", settings))
    )
    if jax_peer.found("cpu"):
        command = jax_peer.command("ppo", "CartPole-v1", ROWS, timesteps, rates())
        found.append(
            Measurement({"system": "rejax", "rows": ROWS}, command, {"JAX_PLATFORMS": "cpu"})
        )
    return found


COLUMNS = ("system", "rows at once", "timesteps/s", f"time, {PLAIN} = 1", "n")


def by_repeat(measurements: Sequence[dict[str, Any]]) -> dict[str, list[float]]:
    """Seconds per timestep of one row, of every system, by repeat."""
    found: dict[str, list[float]] = {}
    for m in sorted(measurements, key=lambda m: int(m["repeat"])):
        found.setdefault(m["system"], []).append(m["learn_s"] / m["timesteps"])
    return found


def ratios(measurements: Sequence[dict[str, Any]]) -> dict[str, list[float]]:
    """How many times as long as PLAIN each system takes, by repeat."""
    seconds = by_repeat(measurements)
    return {
        system: [x / plain for x, plain in zip(own, seconds[PLAIN], strict=True)]
        for system, own in seconds.items()
    }


def cells(measurements: Sequence[dict[str, Any]]) -> list[tuple[str, ...]]:
    """The rows of the table, with the header COLUMNS."""
    seconds, rows = by_repeat(measurements), {m["system"]: m["rows"] for m in measurements}
    return [
        (
            system,
            f"{rows[system]:,}",
            f"{1 / median(seconds[system]):,.0f}",
            f"{median(found):.2f} [{min(found):.2f}, {max(found):.2f}]",
            str(len(found)),
        )
        for system, found in ratios(measurements).items()
    ]


@failing_in_one_line()
def main(args: Sequence[str] | None = None) -> None:
    """Measure, print the table, write the file."""
    if measured(sys.argv[1:] if args is None else args, measure=measure):
        return
    config = parse(Config, {}, __doc__, args)

    def say(m: dict[str, Any]) -> str:
        return f"{m['system']:28} {m['timesteps'] / m['learn_s']:9,.0f} timesteps/s"

    measurements = in_turn(cases(config.total_timesteps), config.repeats, min(usable_cores()), say)
    print_table("Speed of rows", COLUMNS, cells(measurements))
    stored = {
        **origin(["manyseeds.algos.ppo:train"], ("stable-baselines3",)),
        "total_timesteps": config.total_timesteps,
        "measurements": measurements,
    }
    if any(m["system"] == "rejax" for m in measurements):
        stored["versions"] |= jax_peer.versions()
    write_measured(Path(config.results) / "rows_speed.json", stored)


if __name__ == "__main__":
    main()
