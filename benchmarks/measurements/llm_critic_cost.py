"""What a critic costs a language model: rlhf_ppo, which has one, against grpo, which has none.

    python benchmarks/llm_critic_cost.py --repeats 3

Both train the tiny model on one task with their presets, rlhf_ppo also with grpo's prompts, passes
over the samples and weight of the KL; evaluation is off. Each measurement is a process of its own,
pinned to one core; they take turns. Counted are the parameters that are trained, the bytes of their
gradients and of the optimizer's moments, the peak of memory above that of the imports, and the
seconds of learning per sample. What is reached with how many samples stands in the runs.

The report reads the file that this writes, results/llm_critic_cost.json.
"""

from __future__ import annotations

from manyseeds.command import failing_in_one_line

import importlib
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from manyseeds.benchmarks.experiments import catalog
from manyseeds.benchmarks.experiments.suite import EQUAL
from manyseeds.benchmarks.measurements.measure import (
    Measurement,
    SeedsLearningOnly,
    in_turn,
    measured,
    measuring,
    origin,
    peak_memory,
    usable_cores,
    write_measured,
)
from manyseeds.cli import PositiveInt, ScriptConfig, from_preset, parse, requested_seeds
from manyseeds.kernels.guard import looking_by_iteration
from manyseeds.llm_track import models, policies
from manyseeds.optim import SeedAdam
from manyseeds.process import set_up_process
from manyseeds.runs.parallel import Processes
from manyseeds.untrusted import COST, ORIGIN

CASES = (
    {"algo": "rlhf_ppo", "passes": "2"},  # the preset
    {"algo": "rlhf_ppo", "passes": "1"},  # benchmarks.suite.EQUAL
    {"algo": "grpo", "passes": "1"},  # the preset
)
TASK, SAMPLES = "addition", 10_240
FILE = "llm_critic_cost.json"
STORED: dict[str, Any] = {
    **ORIGIN,
    "versions": {"torch": str},
    "equal": {str: float},  # settings of the PPO that equals GRPO
    "measurements": [{"algo": str, "passes": str, "samples": float, **COST}],
}


@dataclass(frozen=True, kw_only=True)
class Config(ScriptConfig):
    """Cost of the critic of a language model."""

    repeats: PositiveInt = 3
    """Repeats of every measurement, interleaved."""


def config_of(algo: str, passes: str, results: str) -> Any:
    """The preset, or with another number of passes what makes PPO equal GRPO; fewer samples."""
    module: Any = catalog.module("llm_track", algo)
    settings = {"results": results, "total_samples": SAMPLES, "quiet": True}
    if int(passes) != from_preset(module.Config, module.PRESETS, TASK).epochs:
        settings |= EQUAL
    return from_preset(module.Config, module.PRESETS, TASK, **settings)


def measure(algo: str, passes: str, results: str) -> dict[str, float]:
    """Train with evaluation off; samples, seconds, memory, parameters and optimizer bytes."""
    module: Any = catalog.module("llm_track", algo)
    importlib.import_module("transformers.models.llama.modeling_llama")
    optimizers: list[SeedAdam] = []

    class Counted(SeedAdam):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            optimizers.append(self)

    policies.SeedAdam = Counted  # type: ignore[misc]
    set_up_process(1)
    imports = peak_memory()
    config = config_of(algo, passes, results)
    run = SeedsLearningOnly(config, requested_seeds(config))
    with looking_by_iteration():  # as in every command that trains
        module.train(config, run)
    trained = [x.params for x in optimizers]
    kept = [y for x in optimizers for y in (x.grads, x.mean, x.square)]
    return {
        "samples": run.samples,
        "learn_s": run.figures()["learn_s"],
        "memory": peak_memory() - imports,
        "parameters": sum(p.numel() for p in trained),
        "optimizer_bytes": sum(x.numel() * x.element_size() for x in kept),
    }


@failing_in_one_line()
def main(args: Sequence[str] | None = None) -> None:
    """Measure all of them in turn, and write the file."""
    if measured(sys.argv[1:] if args is None else args, measure=measure):
        return
    flags = parse(Config, {}, __doc__, args)

    def say(m: dict[str, Any]) -> str:
        each = 1e3 * m["learn_s"] / m["samples"]
        return f"{m['algo']:9} {m['passes']} passes {each:.2f} ms per sample"

    results = str(Path(flags.results).resolve())
    cases = [Measurement(case, measuring(__file__, *case.values(), results)) for case in CASES]
    config = config_of("grpo", "1", flags.results)
    models.find(config.model, config, Processes())  # made once, not by what is measured
    measurements = in_turn(cases, flags.repeats, min(usable_cores()), say)
    stored = {
        **origin(
            [f"manyseeds.llm_track.{case['algo']}:train" for case in CASES[1:]], ["transformers"]
        ),
        "task": TASK,
        "equal": EQUAL,
        "measurements": measurements,
    }
    write_measured(Path(flags.results) / FILE, stored)


if __name__ == "__main__":
    main()
