"""Completions of a model, graded: rejection sampling, greedy answers, and scores of any model.

    python llm_track/generate.py --model tiny --task addition --samples 16
    python llm_track/generate.py --model RUN --task gsm8k --split test --greedy
    python llm_track/generate.py --model RUN --task addition --split train --prompts 2000 \\
        --samples 4 --keep right --most 1 --out right.jsonl

Prints pass@1, pass@k and cons@k of the prompts (llm_track/evaluation.py). `--out` keeps completions
as JSONL, a row each: prompt, completion, answer, right, format. Such a file is what `sft.py
--demonstrations right.jsonl` learns from: with `--keep right` this is the rejection sampling of
DeepSeek-R1 (arXiv 2501.12948v1, sec. 2.3.3), and the data of its distillation (sec. 2.4).

The random numbers of a prompt depend only on `--seed` and its position. Every batch is written as
soon as it is complete, and FILE.state.json beside the file records the progress: the same command
resumes an unfinished file. Only one process at a time can write it.
"""

from __future__ import annotations

from manyseeds.command import failing_in_one_line, parse

import contextlib
import json
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import torch

from manyseeds import user_code
from manyseeds.cli import (
    MAX_THREADS,
    NonNegativeInt,
    Positive,
    PositiveInt,
    Range,
    ScriptConfig,
    check_device,
    flag,
    path_of,
)
from manyseeds.digest import code_digest
from manyseeds.errors import UsageError
from manyseeds.llm_track import models, sampling, tasks
from manyseeds.llm_track.evaluation import cons_at_k, pass_at_k
from manyseeds.locks import Locks
from manyseeds.process import resolve_device, set_up_process
from manyseeds.progress import console
from manyseeds.runs.parallel import Processes
from manyseeds.untrusted import open_to_write, read_shaped
from manyseeds.writing import write_json


@dataclass(frozen=True, kw_only=True)
class Config(ScriptConfig):
    """Graded completions."""

    model: str = "tiny"
    """tiny, one of its base models, a folder, or a hub name. Base models are tiny-base, ...: see
    llm_track/models.py. The folder can be a finished run, or one of its seeds."""
    task: str = "addition"
    """A generated task (addition, mixed, ...), gsm8k, a JSONL file of prompt and answer, or a hub
    name."""
    grader: Literal["rules", "math-verify"] = "rules"
    """How to compare answers to a data set, as in training."""
    answer: str = "tags"
    """How an answer is read, as in training: tags, boxed, last, or FILE.py:function."""
    instruction: str | None = None
    """Instruction for the model, as in training."""
    split: Literal["test", "train"] = "test"
    """Held-out prompts (test) or training prompts (train)."""
    prompts: NonNegativeInt = 256
    """Number of prompts, starting from the first (0: all of a file or data set)."""
    samples: PositiveInt = 16
    """k, completions sampled for each prompt."""
    greedy: bool = False
    """Generate one greedy completion per prompt. Every token is the most likely one."""
    temperature: Positive = 1.0
    """Sampling temperature."""
    seed: NonNegativeInt = 0
    """Seed of the random numbers."""
    keep: Literal["all", "right", "wrong"] = "all"
    """Which completions to write to --out."""
    most: NonNegativeInt = 0
    """Maximum number of distinct completions kept per prompt (0: all, including repeated ones)."""
    out: str = ""
    """JSONL file to write completions to ('': only print the scores)."""
    max_new_tokens: NonNegativeInt = 0
    """Longest completion, in tokens (0: the task's)."""
    drop_long_rows: bool = False
    """Leave out rows of a data set whose prompt is too long for the model's context."""
    batch_size: PositiveInt = 256
    """Completions generated in parallel."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Precision of computations. auto is bfloat16 on a GPU that supports it."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Device. auto is the CPU."""
    threads: Annotated[int, Range(1, MAX_THREADS)] = 1
    """CPU threads."""
    quiet: bool = False
    """Print only the final table."""

    @property
    def k(self) -> int:
        """Completions of each prompt."""
        return 1 if self.greedy else self.samples

    def as_run(self) -> tasks.TaskConfig:
        """The flags that loading a model reads."""
        return tasks.TaskConfig(
            task=self.task,
            model=self.model,
            grader=self.grader,
            answer=self.answer,
            instruction=self.instruction,
            max_new_tokens=self.max_new_tokens,
            drop_long_rows=self.drop_long_rows,
            dtype=self.dtype,
            device=self.device,
            threads=self.threads,
            results=self.results,
            quiet=self.quiet,
        )

    def identity(self) -> dict[str, Any]:
        """All that determines the rows of a file, with digests of the data and code that it
        names."""
        no_effect = ("results", "out", "batch_size", "threads", "quiet")
        fields = {name: x for name, x in asdict(self).items() if name not in no_effect}
        for name, before in (("drop_long_rows", False), ("answer", "tags"), ("instruction", None)):
            if fields[name] == before:
                del fields[name]  # files that were begun before there was the flag
        run = self.as_run()
        if self.model in tasks.MADE:
            fields["made"] = models.store_of(self.model, run).name
        if own := run.own_code():
            fields["own_code"] = code_digest(user_code.origin(x, flag(k)) for k, x in own.items())
        return fields | run.contents()


def problems_of(config: Config, task: tasks.Task) -> list[tasks.Problem]:
    """The prompts, those of a generated task once each."""
    if config.prompts == 0 and isinstance(task, tasks.GeneratedTask):
        raise UsageError(f"--prompts 0: {config.task} has no end")
    if config.split == "test":
        problems = task.test(config.prompts or sys.maxsize)
    elif isinstance(task, tasks.GeneratedTask):
        # More than needed, as a prompt that is drawn twice counts once.
        drawn = tasks.drawn(task, np.random.default_rng(config.seed), 4 * config.prompts)
        problems = list({p.prompt: p for p in drawn}.values())
    else:
        problems = list(task.trained_on())
    return problems[: config.prompts or None]


def draws(config: Config, places: range, T: int) -> torch.Tensor:
    """Uniform numbers [n * k, T] of the prompts at some places."""
    rows = [
        np.random.default_rng((config.seed, i)).random((config.k, T), dtype=np.float32)
        for i in places
    ]
    return torch.from_numpy(np.concatenate(rows))


def state_of(path: Path) -> Path:
    """The file beside an output file that records its progress."""
    return path.with_name(f"{path.name}.state.json")


STATE = {
    "settings": {str: object},
    "bytes": int,
    "right": [[bool]],
    "format": [float],
    "length": [float],
    "solved": [bool],
}


class Output:
    """The output file and its progress: scores of the finished prompts, and its length in bytes."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.path = path_of(config.out, "--out") if config.out else None
        self.right: list[list[bool]] = []  # [prompts done, k]
        self.framed: list[float] = []  # share of completions in the format, by prompt
        self.tokens: list[float] = []  # mean length, by prompt
        self.solved: list[bool] = []  # whether the most frequent answer is right, by prompt
        self.bytes = 0
        if self.path is None:
            return
        if os.path.lexists(state_of(self.path)):
            self._resume(self.path)
        elif self.path.exists():
            raise UsageError(f"--out {config.out}: exists already")

    def _resume(self, path: Path) -> None:
        """Resume a file of the same settings."""
        out, state = self.config.out, state_of(path)
        try:
            stored = read_shaped(state, STATE)
            settings = stored["settings"]
            self.right, self.framed = stored["right"], stored["format"]
            self.tokens, self.solved = stored["length"], stored["solved"]
            self.bytes = stored["bytes"]
            counts = {len(self.right), len(self.framed), len(self.tokens), len(self.solved)}
            if len(counts) > 1 or self.bytes < 0:
                raise ValueError("its numbers do not fit each other")
        except (UsageError, ValueError) as error:
            raise UsageError(f"--out {out}: {state.name} is broken: {error}") from None
        if settings != json.loads(json.dumps(self.config.identity())):
            raise UsageError(f"--out {out}: was begun with other settings")
        if (path.stat().st_size if path.exists() else 0) < self.bytes:
            raise UsageError(f"--out {out}: rows are gone; to start over, delete {state.name}, too")

    def begin(self, prompts: int) -> None:
        """Remove the rows of an unfinished batch; from now on an interrupted file is resumed."""
        if len(self.right) < prompts:
            if self.path is not None and os.path.lexists(self.path):
                with open_to_write(self.path, append=True) as file:
                    file.truncate(self.bytes)
            self.store_state()

    def store_state(self) -> None:
        """Write the progress."""
        if self.path is None:
            return
        state = {"settings": self.config.identity(), "bytes": self.bytes, "right": self.right}
        state |= {"format": self.framed, "length": self.tokens, "solved": self.solved}
        write_json(state_of(self.path), state)

    def add(
        self, task: tasks.Task, rows: Sequence[Sequence[tasks.Graded]], lengths: np.ndarray
    ) -> None:
        """The completions of some more prompts, k of each; lengths [prompts, k], in tokens.

        Rows begin with what the prompts open, as another model's template may not open it.
        """
        text = ""
        for group, tokens in zip(rows, lengths, strict=True):
            right = [x.accuracy == 1 for x in group]
            votes = [task.vote(x.text) for x in group]
            self.right.append(right)
            self.framed.append(float(np.mean([x.format for x in group])))
            self.tokens.append(float(tokens.mean()))
            self.solved.append(cons_at_k([votes], np.array([right])) == 1)
            for x in self._kept(group):
                completion = task.opening + x.text
                row: dict[str, Any] = {"prompt": x.problem.prompt, "completion": completion}
                answers = list(x.problem.answers) if x.problem.also else x.problem.answer
                row |= {"answer": answers, "right": x.accuracy == 1}
                text += json.dumps({**row, "format": x.format == 1}) + "\n"
        if self.path is None:
            return
        content = text.encode()
        with open_to_write(self.path, append=True) as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        self.bytes += len(content)
        self.store_state()

    def _kept(self, group: Sequence[tasks.Graded]) -> list[tasks.Graded]:
        wanted = {"all": (0, 1), "right": (1,), "wrong": (0,)}[self.config.keep]
        kept = [x for x in group if x.accuracy in wanted]
        if not self.config.most:
            return kept
        return list({x.text: x for x in kept}.values())[: self.config.most]

    def scores(self) -> dict[str, float]:
        """The measures over all prompts."""
        right, k = np.array(self.right), self.config.k
        measures = {"greedy" if self.config.greedy else "pass@1": float(right.mean())}
        if k > 1:
            measures |= {f"pass@{k}": pass_at_k(right, k), f"cons@{k}": float(np.mean(self.solved))}
        return {
            **measures,
            "format": np.mean(self.framed).item(),
            "length": np.mean(self.tokens).item(),
        }


@contextlib.contextmanager
def alone_on(out: str) -> Iterator[None]:
    """Hold an exclusive lock on the file of `--out`; UsageError while another process holds it."""
    if not out:
        yield
        return
    path = path_of(out, "--out")
    if not path.parent.is_dir():
        raise UsageError(f"--out {out}: there is no folder {path.parent}")
    if path.is_symlink() or (path.exists() and not path.is_file()):
        raise UsageError(f"--out {out}: is a link, or is not a file")
    try:
        opened = Locks(path)
    except OSError as error:
        raise UsageError(f"--out {out}: {error.strerror}") from None
    with contextlib.closing(opened) as locks:
        if not locks.acquire(0):
            raise UsageError(f"--out {out}: another process writes it")
        yield


def generate(config: Config) -> dict[str, float]:
    """Complete and grade all remaining prompts; returns the scores of all."""
    if config.prompts == 0 and config.task in tasks.GENERATED:
        raise UsageError(f"--prompts 0: {config.task} has no end")
    with user_code.failing_in_one_line(config.task, "--task"):
        config.as_run().check_request()
        with alone_on(config.out):
            return completed(config).scores()


def completed(config: Config) -> Output:
    """Complete and grade all remaining prompts; returns the finished output."""
    as_run = config.as_run()
    output = Output(config)
    device = resolve_device(config.device)
    policy, tokenizer = models.load_model(as_run, device, Processes(device))
    task = models.task_of(as_run, policy.config, tokenizer)
    problems = problems_of(config, task)
    output.begin(len(problems))
    prompts = sampling.encode_prompts(tokenizer, task, [p.prompt for p in problems])
    T = models.completion_tokens(as_run)
    each = max(config.batch_size // config.k, 1)
    for start in range(len(output.right), len(problems), each):
        places = range(start, min(start + each, len(problems)))
        repeated = [i for i in places for _ in range(config.k)]
        with torch.no_grad():
            samples = sampling.sample(
                policy,
                tokenizer,
                [prompts[i] for i in repeated],
                draws(config, places, T).to(device),
                config.temperature,
                config.greedy,
            )
        texts = sampling.decode(tokenizer, samples)
        graded = [task.grade(problems[i], text) for i, text in zip(repeated, texts, strict=True)]
        groups = [graded[j : j + config.k] for j in range(0, len(graded), config.k)]
        output.add(task, groups, samples.lengths.cpu().numpy().reshape(-1, config.k))
        if not config.quiet:
            console.print(f"{places.stop:,} of {len(problems):,} prompts", highlight=False)
    return output


@failing_in_one_line("; try a smaller --batch-size")
def main(args: Sequence[str] | None = None) -> None:
    """Generate, and print the table."""
    from rich.table import Table

    config = parse(Config, {}, __doc__, args)
    check_device(config.device)
    set_up_process(config.threads)
    scores = generate(config)
    table = Table(show_header=False, title=f"{config.model} on {config.task}, {config.split}")
    for name, value in scores.items():
        table.add_row(name, f"{value:.3f}")
    if config.out:
        table.add_row("stored", config.out)
    console.print(table)


if __name__ == "__main__":
    main()
