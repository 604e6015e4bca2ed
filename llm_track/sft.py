"""Supervised fine-tuning of a language model on demonstrations of the format and the task.

    python llm_track/sft.py --task addition

The first step of InstructGPT (Ouyang et al. 2022, arXiv 2203.02155, sec. 3.5) and the cold start of
DeepSeek-R1 (arXiv 2501.12948, sec. 2.3.1): maximise the likelihood of a demonstration y, given its
prompt x. With N demonstrations in a step,

    L(theta) = - 1 / (sum of |y_i|) * sum_i sum_t log pi_theta(y_{i,t} | x_i, y_{i,<t})

Shapes: N demonstrations in a step, P tokens of the longest prompt, T of the longest completion.

Implementation details:
 1. The loss is on the completion and on the token that ends it, never on the prompt.
 2. The mean is over the tokens of an optimizer step, whatever micro-batches and processes it is
    divided into (dividing each micro-batch by its own tokens weighs short ones more: transformers
    #34191).
 3. AdamW without weight decay, a constant learning rate; the gradient is clipped to a norm of 1.
    No step is taken on a gradient of NaN or infinity.
 4. Demonstrations of a generated task are made on the fly; a data set's own come from its rows
    (GSM8K: the reasoning before ####). `--demonstrations` learns from others, for example right
    samples of a model (rejection sampling, DeepSeek-R1, sec. 2.3.3: `generate.py --keep right`).

The evaluation is that of all methods here, on held-out prompts (llm_track/evaluation.py).
`--model tiny` is what this script trains with its defaults from seed 0.

Logged per step: loss (nats per token), grad_norm.
"""

from __future__ import annotations

from manyseeds.command import parse

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import torch
from torch import Tensor

from manyseeds.cli import Added, PerRow, Positive, PositiveInt, Preset, path_of
from manyseeds.errors import UsageError
from manyseeds.llm_track import models, tasks
from manyseeds.llm_track.evaluation import TaskEvaluator
from manyseeds.llm_track.policies import AnyModel, load_policy
from manyseeds.llm_track.rollout import from_texts, total
from manyseeds.runs.language_seeds import SeedsRun, main

MAX_GRAD_NORM = 1.0


@dataclass(frozen=True, kw_only=True)
class Config(tasks.TaskConfig):
    """Supervised fine-tuning."""

    RATES: ClassVar = {"learning_rate": (2e-5, 2e-4)}  # TRL's

    model: str = "tiny-base"
    """tiny, one of its base models, a folder, or a hub name. Base models are tiny-base, ...: see
    llm_track/models.py. tiny is what this script trains with its defaults."""
    total_samples: PositiveInt = 4_800
    """Number of demonstrations to learn from."""
    batch_size: PositiveInt = 32
    """N, demonstrations per gradient step."""
    learning_rate: PerRow[Positive] = 3e-3
    """Learning rate of AdamW."""
    demonstrations: Annotated[str, Added("")] = ""
    """JSONL file of demonstrations ('': the task's own). Each row has a prompt, an answer and a
    completion, as generate.py writes them."""

    def check(self) -> None:
        super().check()
        if self.demonstrations:
            read_demonstrations(self)

    def learned_from(self) -> dict[tasks.Problem, Sequence[str]]:
        """The problems of the training with their demonstrations; UsageError for missing ones."""
        source = read_demonstrations(self) if self.demonstrations else tasks.of(self)
        problems = source.trained_on()
        without = [p.where for p in problems if not p.demonstration]
        if without:
            raise UsageError(
                tasks.by_file([(x, "has no completion to learn from") for x in without])
            )
        return {p: (p.demonstration,) for p in problems}


SEARCHED = "our own search: few enough to leave room for RL"
PRESETS = {
    "addition": Preset({"total_samples": 3_200}, SEARCHED),
    "mixed": Preset({"total_samples": 9_600}, SEARCHED),
    "countdown": Preset({"total_samples": 9_600}, SEARCHED),
    "rambling": Preset({"total_samples": 5_600}, SEARCHED),
    "checking": Preset({"total_samples": 5_600}, SEARCHED),
}


def read_demonstrations(config: Config) -> tasks.Task:
    """What `--demonstrations` names, as something to draw from. UsageError for a bad file."""
    path = path_of(config.demonstrations, "--demonstrations")
    if not path.is_file():
        raise UsageError(f"--demonstrations {config.demonstrations}: there is no such file")
    return tasks.read_demonstrations(path, tasks.of(config))


def source_of(config: Config, task: tasks.Task, policy: Any, tokenizer: Any) -> tasks.Task:
    """What demonstrations are drawn from: a generated task, or the rows of a data set that fit."""
    shown = {p: (task.shown(p),) for p in config.learned_from()}
    fitting = models.fitting(config, policy.config, tokenizer, shown)
    if config.task in tasks.GENERATED and not config.demonstrations:
        return task
    return tasks.JsonlTask(task.id, fitting, [])


def negative_log_likelihood(logprobs: Tensor, total_tokens: Tensor) -> Tensor:
    """This part's share of the mean over all tokens of each seed's step, [S].

    logprobs: [S, B, T], 0 after the last token. total_tokens: [S], of the step.
    """
    return -total(logprobs) / total_tokens


def train(config: Config, run: SeedsRun) -> AnyModel:
    """Train all seeds of a run; returns their models."""
    mine = run.processes.share(config.batch_size)
    policy = load_policy(config, run)
    task = models.task_of(config, policy.config, policy.tokenizer)
    source = source_of(config, task, policy, policy.tokenizer)
    optimizer = policy.optimizer()
    evaluator = TaskEvaluator(policy, task, config, policy.frozen())
    N, T = config.batch_size, models.completion_tokens(config)

    step, _ = run.restore(policy, optimizer)
    run.evaluate_if_due(evaluator)
    while run.samples < config.total_samples:
        done = run.samples / config.total_samples
        lr = models.learning_rate(config.learning_rate, done, config)
        problems = []
        for one, rng in zip(run.runs, run.rngs("demonstrations", step), strict=True):
            drawn = tasks.next_problems(source, N, step * N, one, "demonstrations", rng)
            problems.append(drawn[mine])
        prompts = [[p.prompt for p in own] for own in problems]
        shown = [[task.shown(p) for p in own] for own in problems]
        batch = from_texts(policy, task, prompts, shown, T)
        total_tokens = run.processes.sum(batch.lengths.sum(1))
        loss = torch.zeros(len(policy), device=run.device)
        for part in policy.parts(batch):
            shares = negative_log_likelihood(policy.logprobs(part, 1.0), total_tokens)
            shares.sum().backward()
            loss += shares.detach()
        grad_norm = optimizer.step(lr, MAX_GRAD_NORM)

        step += 1
        run.log(N, {"loss": run.processes.sum(loss), "grad_norm": grad_norm})
        run.save_if_due(step, policy, optimizer)
        run.evaluate_if_due(evaluator)
    return policy


if __name__ == "__main__":
    main(parse(Config, PRESETS, __doc__), train, PRESETS)
