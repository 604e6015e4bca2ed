"""Whether reinforcement learning makes a model reconsider the same mistakes more often.

    python benchmarks/planted_errors.py --seeds 30

GRPO trains the tiny model on `checking`, where demonstrations write some columns wrong, then
`wait;` and the right column. A model that becomes better makes fewer mistakes and other ones, so
that how often `wait` follows its own says little. Here every model, before and after, reads the
same beginnings of completions of held-out prompts: the right columns up to one, and that one right
or wrong. How probable `wait;` is there, and after it the right column, is computed and not sampled.

The report reads results/planted_errors.json, to which each finished block of seeds is added.
"""

from __future__ import annotations

from manyseeds.command import failing_in_one_line

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from manyseeds.benchmarks.experiments import suite
from manyseeds.benchmarks.measurements.measure import (
    SeedsLearningOnly,
    measured_by,
    origin,
    write_measured,
)
from manyseeds.cli import NonNegativeInt, PositiveInt, ScriptConfig, from_preset, parse
from manyseeds.kernels.guard import looking_by_iteration
from manyseeds.llm_track import grpo, tasks
from manyseeds.llm_track.policies import AnyModel, load_policy
from manyseeds.llm_track.rollout import from_texts
from manyseeds.process import set_up_process
from manyseeds.record import finite_numbers
from manyseeds.untrusted import ORIGIN

TASK = "checking"
PROMPTS = 256
BLOCK = 10  # seeds that are trained at once, and then stored
PART = 0.1  # of the training: at its beginning and at its end accuracies are means over so much
FILE = "planted_errors.json"
ORIGINS = (
    "manyseeds.benchmarks.measurements.planted_errors:measure",
    *(f"manyseeds.llm_track.grpo:{x}" for x in ("train", "Config", f"PRESETS[{TASK}]")),
    *tasks.made_origins("tiny", TASK),
)
SHARES = ("wait_if_wrong", "wait_if_right", "right_after_wait")
ENDS = ("before", "after")
MEASURED: dict[str, Any] = {
    "total_samples": int,
    "measurements": [
        # None: of a training that diverged.
        {"seed": int, **dict.fromkeys(ENDS, dict.fromkeys(("accuracy", *SHARES), (float, None)))}
    ],
}
STORED: dict[str, Any] = {**ORIGIN, **MEASURED}


@dataclass(frozen=True, kw_only=True)
class Config(ScriptConfig):
    """Mistakes that are planted before and after reinforcement learning."""

    seeds: PositiveInt = 30
    """Number of seeds; each has an initial model of its own."""
    first_seed: NonNegativeInt = 0
    """The first seed."""
    total_samples: PositiveInt = 51_200
    """Samples of each training."""


@dataclass(frozen=True)
class Planted:
    """The beginning of a completion, up to a column, and what it should have been."""

    prompt: str
    beginning: str
    right: str


def columns_of(problem: tasks.Problem) -> list[str]:
    """The right columns: those of the demonstration that no `wait` takes back."""
    lines = [text for _, text in tasks.separated(tasks.thinking(problem.demonstration)[1])]
    after = [*lines[1:], ""]
    return [x for x, y in zip(lines, after, strict=True) if tasks.WAIT not in (x, y)]


def planted(problems: Sequence[tasks.Problem], wrong: bool) -> list[Planted]:
    """One for each problem. Its column, and what stands there where it is wrong, are drawn once for
    all models; mistakes are drawn as those of the demonstrations."""
    rng = np.random.default_rng(0)
    found = []
    for problem in problems:
        columns = columns_of(problem)
        k, shift = int(rng.integers(len(columns))), int(rng.integers(1, 20))
        terms, _, total = columns[k].partition("=")
        written = f"{terms}={(int(total) + shift) % 20}" if wrong else columns[k]
        beginning = tasks.THINK + "".join(f"{x};" for x in (*columns[:k], written))
        found.append(Planted(problem.prompt, beginning, columns[k]))
    return found


@torch.no_grad()
def probabilities(
    policy: AnyModel, task: tasks.Task, given: Sequence[Planted]
) -> tuple[np.ndarray, np.ndarray]:
    """Of `wait;` after each beginning, and of the right column after that, [S, B] each."""
    S, wait = len(policy), f"{tasks.WAIT};"
    texts = [f"{x.beginning}{wait}{x.right};" for x in given]
    tokens = [policy.tokenizer.encode(x, add_special_tokens=False) for x in texts]
    longest = max(map(len, tokens)) + 1
    rollout = from_texts(policy, task, [[x.prompt for x in given]] * S, [texts] * S, longest)
    until = policy.logprobs(rollout, 1.0).double().cumsum(-1)

    def log_of(ends: Sequence[str]) -> torch.Tensor:
        """Log of the probability of each text up to one of its ends."""
        known = [policy.tokenizer.encode(x, add_special_tokens=False) for x in ends]
        if any(x != y[: len(x)] for x, y in zip(known, tokens, strict=True)):
            raise AssertionError("a beginning has other tokens alone than in the text")
        at = torch.tensor([len(x) - 1 for x in known])
        return until.gather(-1, at.expand(S, -1).unsqueeze(-1)).squeeze(-1)

    begun, waited = (log_of([x.beginning + y for x in given]) for y in ("", wait))
    both = waited - begun, log_of(texts) - waited
    return both[0].exp().numpy(), both[1].exp().numpy()


def shares(policy: AnyModel, task: tasks.Task) -> list[dict[str, float]]:
    """SHARES of each seed: means over the held-out prompts."""
    problems = task.test(PROMPTS)
    if_wrong, right = probabilities(policy, task, planted(problems, wrong=True))
    if_right, _ = probabilities(policy, task, planted(problems, wrong=False))
    means = (x.mean(1).tolist() for x in (if_wrong, if_right, right))
    return [dict(zip(SHARES, own, strict=True)) for own in zip(*means, strict=True)]


def measure(seeds: Sequence[int], config: Config) -> list[dict[str, Any]]:
    """Train some seeds; a row of each."""
    settings = {**suite.OWN, "total_samples": config.total_samples, "quiet": True}
    given = from_preset(
        grpo.Config, grpo.PRESETS, TASK, results=str(Path(config.results).resolve()), **settings
    )
    run, task = SeedsLearningOnly(given, seeds), tasks.of(given)
    before = shares(load_policy(given, run), task)
    with looking_by_iteration():  # as in every command that trains
        after = shares(grpo.train(given, run), task)
    rows = []
    for seed, own, *found in zip(seeds, run.runs, before, after, strict=True):
        accuracy = own.metrics()["accuracy"]
        steps = math.ceil(PART * len(accuracy))
        means = float(accuracy[:steps].mean()), float(accuracy[-steps:].mean())
        ends = zip(ENDS, means, found, strict=True)
        both = {when: {"accuracy": x, **y} for when, x, y in ends}
        rows.append({"seed": seed, **{when: finite_numbers(x) for when, x in both.items()}})
    return rows


@failing_in_one_line()
def main(args: Sequence[str] | None = None) -> None:
    """Measure the seeds that are not stored yet, in blocks."""
    config = parse(Config, {}, __doc__, args)
    set_up_process(1)
    path = Path(config.results) / FILE
    about = {"total_samples": config.total_samples}
    begun = origin(ORIGINS)
    rows = measured_by(path, begun["code"], MEASURED, about)
    wanted = range(config.first_seed, config.first_seed + config.seeds)
    missing = [seed for seed in wanted if all(row["seed"] != seed for row in rows)]
    for k in range(0, len(missing), BLOCK):
        rows = [*rows, *measure(missing[k : k + BLOCK], config)]
        write_measured(path, {**begun, **about, "measurements": rows})


if __name__ == "__main__":
    main()
