"""The pipeline of DeepSeek-R1 with tiny models, and distillation against RL on a smaller one.

    python benchmarks/llm_pipeline.py --task addition --seeds 5

The stages of DeepSeek-R1 (arXiv 2501.12948v1, sec. 2.3), each a command of the track:

    base               a base model
    cold start         SFT of the base on a few demonstrations
    RL                 GRPO from the cold start
    rejection SFT      SFT of the base on right samples of that model
    RL again           GRPO from there
    RL alone           GRPO that goes on from RL, until as many samples are drawn; like RL again,
                       its KL is to the model that it begins with

and those of its sections 2.4 and 4.1, with a smaller base, which is sometimes right:

    small base         a base model of fewer parameters
    distillation       SFT of the small base on the same right samples
    RL on small base   GRPO with as many samples as the teacher has drawn
    ... for longer     the same with four times as many

Every stage ends with the track's evaluation, and is evaluated ten times before, which shows whether
it still rises. Each seed has base models of its own. Samples are those drawn from a model until the
end of a stage, its teacher's among them. Models and files are kept in --work, in a folder for each
version of the code, so that an interrupted command goes on where it was. The report reads
results/llm_pipeline.json, to which the scores of each finished seed are added.
"""

from __future__ import annotations

from manyseeds.command import failing_in_one_line

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from manyseeds.benchmarks.measurements.measure import origin, read_measured, write_measured
from manyseeds.cli import (
    NonNegativeInt,
    PositiveInt,
    ScriptConfig,
    check_results,
    parse,
    path_of,
)
from manyseeds.digest import code_digest
from manyseeds.errors import UsageError
from manyseeds.llm_track import tasks
from manyseeds.llm_track.models import run_command
from manyseeds.progress import console
from manyseeds.record import read_json, read_parquet
from manyseeds.untrusted import NAME, ORIGIN, read_text

FILE = "llm_pipeline.json"
MEASURES = ("pass@1", "pass@16", "cons@16", "format", "length")
STORED: dict[str, Any] = {
    **ORIGIN,
    "settings": {"task": NAME, "rl_samples": int, "prompts": int, "sft_samples": int},
    "rows": [
        {
            **{"seed": int, "stage": NAME, "samples": int, **dict.fromkeys(MEASURES, float)},
            "curve": [{"samples": float, "pass@1": float}],  # from the beginning of the stage
            "solved?": int,  # prompts that gave a demonstration
        }
    ],
}
TRAINED = ("sft", "grpo")
SAMPLES = 4  # of each prompt, to collect a right one
EVALUATIONS = 10  # of each training
LONGER = 4  # times the samples of RL on the small base


@dataclass(frozen=True, kw_only=True)
class Config(ScriptConfig):
    """The pipeline of DeepSeek-R1."""

    task: str = "addition"
    """A generated task."""
    seeds: PositiveInt = 5
    """Number of seeds."""
    first_seed: NonNegativeInt = 0
    """The first seed."""
    rl_samples: PositiveInt = 25_600
    """Samples of each stage of RL on the tiny model."""
    prompts: PositiveInt = 2_048
    """Number of prompts to collect correct samples from."""
    sft_samples: PositiveInt = 12_800
    """Samples that rejection SFT and distillation learn from, in several passes."""
    work: str = "results/local/pipeline"
    """Folder for models and samples."""

    def __post_init__(self) -> None:
        if self.task not in tasks.GENERATED:
            raise UsageError(f"--task {self.task}: must be {', '.join(tasks.GENERATED)}")
        check_results(path_of(self.work, "--work"), "--work")


@dataclass(frozen=True)
class Stage:
    """A stage: the script that trains its model, flags, and which evaluation scores it."""

    name: str
    script: str
    flags: tuple[str, ...]
    samples: int  # drawn until its end
    when: str = "final"  # or initial: the model before the training


def stages(config: Config, seed: int) -> list[Stage]:
    """All stages of a seed; a base shares the command of what is trained from it."""
    rl = config.rl_samples
    collected = rl + SAMPLES * config.prompts
    both = collected + rl

    def after(name: str) -> tuple[str, str]:
        return "--model", str(folder_of(config, name, seed) / "model")

    def made(name: str) -> tuple[str, str, str]:
        return "--model", name, "--initial-per-seed"

    def of(samples: int) -> tuple[str, str]:
        return "--total-samples", str(samples)

    cold, small = made("tiny-base"), made("micro-base-3200")
    # Of right samples a few have no end within the limit, and so no room for one.
    samples = ("--demonstrations", str(samples_of(config, seed)), "--drop-long-rows")
    learned = (*samples, *of(config.sft_samples))
    return [
        Stage("base", "sft", cold, 0, "initial"),
        Stage("cold start", "sft", cold, 0),
        Stage("RL", "grpo", (*after("cold start"), *of(rl)), rl),
        Stage("rejection SFT", "sft", (*cold, *learned), collected),
        Stage("RL again", "grpo", (*after("rejection SFT"), *of(rl)), both),
        Stage("RL alone", "grpo", (*after("RL"), *of(both - rl)), both),
        Stage("small base", "sft", (*small, *learned), 0, "initial"),
        Stage("distillation", "sft", (*small, *learned), collected),
        Stage("RL on small base", "grpo", (*small, *of(collected)), collected),
        Stage(
            "RL on small base for longer",
            "grpo",
            (*small, *of(LONGER * collected)),
            LONGER * collected,
        ),
    ]


def run_name(stage: str, seed: int) -> str:
    """The name of a stage's run; a stage before a training has that of the training."""
    stage = {"base": "cold start", "small base": "distillation"}.get(stage, stage)
    return f"{stage.replace(' ', '-').lower()}-{seed}"


def work_of(config: Config) -> Path:
    """The folder for models and samples of today's code."""
    return path_of(config.work, "--work").resolve() / code_digest(origins(config))


def folder_of(config: Config, stage: str, seed: int) -> Path:
    """Where the run of a stage is."""
    algo = "grpo" if stage.startswith("RL") else "sft"
    runs = work_of(config) / "runs" / config.task / algo
    return runs / run_name(stage, seed) / f"seeds-{seed:03d}-{seed:03d}"


def samples_of(config: Config, seed: int) -> Path:
    """The right samples of the model after RL."""
    return work_of(config) / f"right-{config.task}-{seed}.jsonl"


def training(config: Config, stage: Stage, seed: int) -> list[str]:
    """The command that trains a stage, without `python`."""
    return [
        f"llm_track/{stage.script}.py", "--task", config.task, *stage.flags,
        "--first-seed", str(seed), "--seeds", "1",
        "--evaluations", str(EVALUATIONS),
        "--name", run_name(stage.name, seed), "--results", str(work_of(config)),
    ]  # fmt: skip


def sampling(config: Config, seed: int) -> list[str]:
    """The command that collects right samples of the model after RL, without `python`."""
    return [
        "llm_track/generate.py", "--task", config.task,
        "--model", str(folder_of(config, "RL", seed) / "model"),
        "--split", "train", "--prompts", str(config.prompts),
        "--samples", str(SAMPLES), "--keep", "right",
        "--most", "1", "--seed", str(seed), "--out", str(samples_of(config, seed)),
        "--results", str(work_of(config)),
    ]  # fmt: skip


def run(command: Sequence[str]) -> None:
    """Run a command of the track; a failure is a UsageError with its last line."""
    console.print(f"python {shlex.join(command)}", soft_wrap=True)
    run_command([*command, "--quiet"], command[0])


def scores(config: Config, seed: int) -> list[dict[str, Any]]:
    """Train whatever stage of a seed is not finished; a row of scores for each of them."""
    rows = []
    for stage in stages(config, seed):
        if stage.name == "rejection SFT":
            run(sampling(config, seed))
        run(training(config, stage, seed))
        folder = folder_of(config, stage.name, seed)
        summary = read_json(folder / "summary.json")[stage.when]
        found = {name: summary[name] for name in MEASURES}
        about: dict[str, Any] = {"seed": seed, "stage": stage.name, "samples": stage.samples}
        if stage.when == "final" and "--demonstrations" in stage.flags:
            about["solved"] = demonstrations(config, seed)
        rows.append({**about, **found, "curve": curve_of(folder) if stage.when == "final" else []})
    return rows


def demonstrations(config: Config, seed: int) -> int:
    """How many prompts the model after RL has solved; of each, one sample is learned from."""
    return len(read_text(samples_of(config, seed)).splitlines())


def curve_of(folder: Path) -> list[dict[str, float]]:
    """pass@1 at each evaluation of a run."""
    rows = read_parquet(folder / "curve.parquet")[["samples", "pass@1"]].astype(float)
    return [{str(name): x for name, x in row.items()} for row in rows.to_dict("records")]


def origins(config: Config) -> list[str]:
    """Where the code begins that decides the scores."""
    parts = ("train", "Config", "Config()", f"PRESETS[{config.task}]")
    return [
        *(f"manyseeds.benchmarks.measurements.llm_pipeline:{x}" for x in ("stages", "training")),
        *(f"manyseeds.llm_track.{script}:{part}" for script in TRAINED for part in parts),
        "manyseeds.llm_track.generate:generate",
        *tasks.made_origins("tiny-base", config.task),
    ]


def settings_of(config: Config) -> dict[str, Any]:
    """What decides the scores, but for the seeds."""
    names = ("task", "rl_samples", "prompts", "sft_samples")
    return {name: getattr(config, name) for name in names}


@failing_in_one_line()
def main(args: Sequence[str] | None = None) -> None:
    """Run all stages of all seeds that are not stored yet."""
    config = parse(Config, {}, __doc__, args)
    path = Path(config.results) / FILE
    made = read_measured(path, {"code": {"digest": str}})
    if made and made["code"]["digest"] != code_digest(origins(config)):
        raise UsageError(f"--results {config.results}: {FILE} is of other code")
    stored = read_measured(path, STORED)
    if stored and stored["settings"] != settings_of(config):
        raise UsageError(f"--results {config.results}: {FILE} is of other settings")
    rows = stored.get("rows", [])
    for seed in range(config.first_seed, config.first_seed + config.seeds):
        if any(row["seed"] == seed for row in rows):
            continue
        rows += scores(config, seed)
        made = {"settings": settings_of(config), "rows": rows}
        write_measured(path, {**origin(origins(config), ["transformers"]), **made})


if __name__ == "__main__":
    main()
