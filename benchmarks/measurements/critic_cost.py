"""What the critic costs: PPO against GRPO at the same budget, in memory and in time.

    python benchmarks/critic_cost.py

Each trains ten seeds with its preset and GRPO's budget, evaluation off, in a process of its own on
one CPU core. The two take turns. Counted per seed are the parameters in memory (the last layer of
a network is padded to 16 columns) and the optimizer's bytes: gradients and moments. Memory is the
process's peak above its memory after the imports. Writes results/critic_cost.json. The report joins
it with the stored runs, which have the timesteps to the reward threshold.
"""

from __future__ import annotations

from manyseeds.command import failing_in_one_line

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from manyseeds.benchmarks.experiments import catalog
from manyseeds.benchmarks.experiments.suite import ABLATED, BUDGETS
from manyseeds.benchmarks.measurements.measure import (
    Measurement,
    in_turn,
    measured,
    measuring,
    origin,
    peak_memory,
    time_training,
    usable_cores,
    write_measured,
)
from manyseeds.cli import PositiveInt, ScriptConfig, from_preset, parse
from manyseeds.untrusted import COST, ORIGIN

ALGOS = ("ppo", "grpo")
SEEDS = 10
STORED = {  # critic_cost.json
    **ORIGIN,
    "versions": {"torch": str},
    "seeds": int,
    "measurements": [{"repeat": int, "algo": str, "env": str, "timesteps": float, **COST}],
}


@dataclass(frozen=True, kw_only=True)
class Config(ScriptConfig):
    """Cost of the critic."""

    repeats: PositiveInt = 3
    """Repeats of every measurement, interleaved."""


def measure(algo: str, env: str) -> dict[str, float]:
    """Train with evaluation off; time, memory, parameters and optimizer bytes per seed."""
    module: Any = catalog.module("algos", algo)
    optimizers: list[Any] = []

    class CountedAdam(module.SeedAdam):  # type: ignore[misc]
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            optimizers.append(self)

    module.SeedAdam = CountedAdam
    settings = {"total_timesteps": BUDGETS[env], "seeds": SEEDS, "quiet": True}
    config = from_preset(module.Config, module.PRESETS, env, **settings)
    imports = peak_memory()
    figures = time_training(module, config)
    parameters = sum(p.numel() for optimizer in optimizers for p in optimizer.parameters)
    kept = [x for o in optimizers for x in (o.grads, o.mean, o.square)]
    return {
        "timesteps": figures["timesteps"],
        "learn_s": figures["learn_s"],
        "memory": figures["memory"] - imports,
        "parameters": parameters / SEEDS,
        "optimizer_bytes": sum(x.numel() * x.element_size() for x in kept) / SEEDS,
    }


@failing_in_one_line()
def main(args: Sequence[str] | None = None) -> None:
    """Measure all of them in turn, and write the file."""
    if measured(sys.argv[1:] if args is None else args, measure=measure):
        return
    config = parse(Config, {}, __doc__, args)

    def say(m: dict[str, Any]) -> str:
        per_million = 1e6 * m["learn_s"] / m["timesteps"]
        return f"{m['algo']:5} {m['env']:15} {per_million:6.1f} s per 1M timesteps"

    cases = [
        Measurement({"algo": algo, "env": env}, measuring(__file__, algo, env))
        for env in ABLATED
        for algo in ALGOS
    ]
    measurements = in_turn(cases, config.repeats, min(usable_cores()), say)
    stored = {
        **origin([f"manyseeds.algos.{algo}:train" for algo in ALGOS]),
        "seeds": SEEDS,
        "measurements": measurements,
    }
    write_measured(Path(config.results) / "critic_cost.json", stored)


if __name__ == "__main__":
    main()
