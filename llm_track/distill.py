"""On-policy distillation of a language model (Agarwal et al. 2024, arXiv 2306.13649).

    python llm_track/distill.py --task addition

The student samples, and at each of its tokens is moved towards the teacher's distribution: it
learns where its own mistakes lead, and every token has a reward, not only every completion.
Minimised is the reverse KL of the student from the teacher, at the states that the student visits:

    J(theta) = - E_{o ~ pi_theta}[ 1 / (sum_i |o_i|) sum_i sum_t KL(pi_theta || pi_T)(q, o_{i,<t}) ]

Its gradient, of a token with the past held fixed, is that of a policy gradient step in which the
reward is the log-ratio of the sampled token (Lu 2025, "On-Policy Distillation", Thinking Machines):

    grad J = E[ 1 / (sum_i |o_i|) sum_i sum_t A_{i,t} grad r_{i,t} ]
    A_{i,t} = log pi_T(o_{i,t}) - log pi_old(o_{i,t}),    r_{i,t} = pi_theta / pi_old of the token

`diff llm_track/cispo.py llm_track/distill.py` shows how little of RL is left.

Shapes: K prompts with G completions each, B = K G; T tokens of the longest completion.

Implementation details, and where defaults leave the sources:
 1. The KL is estimated from the sampled token alone: the whole distributions (the paper, TRL's
    trainer of this name) give the same gradient on average with less noise, for V times the memory.
 2. The teacher of the tasks, tiny-teacher, is what grpo.py makes of tiny with its defaults, from
    seed 0. Any model with the student's tokens can teach.
 3. Nothing is discounted: the future of a token counts for the tokens of the future alone.
 4. One pass over the samples in four minibatches, without a clip.
 5. Every loss is a sum of weighted token terms whose weights know the whole minibatch: how it is
    divided into micro-batches and processes does not matter.
 6. pi_old's log-probabilities are those of the sampling itself, unless it computed in bfloat16:
    there they differ from a forward pass's by up to 0.6, and are recomputed.
 7. AdamW without weight decay, learning rate 3e-4 for the tiny model, no schedule; the gradient is
    clipped to a norm of 1. No step is taken on a gradient of exactly 0: Adam would drift on; nor on
    NaN or infinity.
 8. Logits of both models are divided by `--temperature` in sampling and in training.

Logged per step: reward (the sum of a completion's A: minus its reverse KL), accuracy, format,
length and entropy (nats per token) of the samples; of its minibatches (means) loss, grad_norm, and
over their tokens kl (k3 to the teacher), approx_kl (k3 to pi_old); all_solved and all_failed, the
shares of groups of equal prompts.
"""

from __future__ import annotations

from manyseeds.command import parse

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from manyseeds.cli import PerRow, Positive, PositiveInt, Preset
from manyseeds.errors import UsageError
from manyseeds.llm_track import models, tasks
from manyseeds.llm_track.evaluation import TaskEvaluator
from manyseeds.llm_track.policies import AnyModel, load_policy, load_teacher
from manyseeds.llm_track.rollout import (
    Batch,
    check_batch,
    collect,
    mean_of_updates,
    means_of,
    minibatches,
    sample_metrics,
    token_sums,
    tokens_of,
    total,
)
from manyseeds.portable import exp
from manyseeds.rows import Row
from manyseeds.runs.language_seeds import SeedsRun, main

MAX_GRAD_NORM = 1.0


@dataclass(frozen=True, kw_only=True)
class Config(tasks.TaskConfig):
    """On-policy distillation."""

    teacher: str = "tiny-teacher"
    """The teacher of all seeds: tiny-teacher, which is tiny after a run of grpo.py, a folder, or a
    hub name."""
    prompts: PositiveInt = 64
    """K, prompts per step."""
    group_size: PositiveInt = 4
    """G, completions sampled for each prompt."""
    minibatches: PositiveInt = 4
    """Number of minibatches in each pass over the samples."""
    epochs: PositiveInt = 1
    """Passes over the samples of a step."""
    learning_rate: PerRow[Positive] = 3e-4
    """Learning rate of AdamW."""
    temperature: PerRow[Positive] = 1.0
    """Sampling temperature."""

    def check(self) -> None:
        super().check()
        check_batch(self)
        if not self.teacher:
            raise UsageError("--teacher '': must name a teacher")


PRESETS = dict.fromkeys(
    ("addition", "mixed", "countdown", "rambling", "checking"),
    Preset({}, source="the defaults: GRPO's rates, prompts and completions as in Lu 2025"),
)


# ---- The loss ------------------------------------------------------------------------------


def token_weights(mask: Tensor, tokens: Tensor) -> Tensor:
    """1 / sum_i |o_i| for each token, [S, B, T]; tokens: how many a minibatch has, [S, 1, 1]."""
    return mask / tokens


def ratio_of(logprobs: Tensor, batch: Batch) -> Tensor:
    """pi_theta / pi_old of each token, [S, B, T]."""
    return exp(logprobs - batch.logprobs)


def policy_loss(logprobs: Tensor, batch: Batch, weights: Tensor) -> Tensor:
    """This part's share of each seed's minibatch loss, [S]; all tensors [S, B, T]."""
    return -total(weights * ratio_of(logprobs, batch) * batch.advantages)


# ---- The training --------------------------------------------------------------------------


def update(
    policy: AnyModel,
    optimizer: Any,
    batch: Batch,
    rows: Tensor,
    lr: Row,
    config: Config,
    run: SeedsRun,
) -> dict[str, Tensor]:
    """One gradient step on some rows of each seed, [S, M]; returns metrics, [S] each."""
    tokens = tokens_of(batch, rows, run)
    sums = torch.zeros(7, len(rows), device=run.device)
    for part in policy.parts(batch, rows):
        logprobs = policy.logprobs(part, config.temperature)
        losses = policy_loss(logprobs, part, token_weights(part.mask, tokens))
        losses.sum().backward()
        ratio = ratio_of(logprobs, part)
        sums += token_sums(losses, logprobs, ratio, part, part.mask, -math.inf, math.inf)
    grad_norm = optimizer.step(lr, MAX_GRAD_NORM)
    means = means_of(run.processes.sum(sums))
    kept = {name: means[name] for name in ("loss", "kl", "approx_kl")}
    return {**kept, "grad_norm": grad_norm}


def train(config: Config, run: SeedsRun) -> AnyModel:
    """Train all seeds of a run; returns their policies."""
    run.processes.share(config.prompts)  # a group stays in one process
    policy = load_policy(config, run)
    task = models.task_of(config, policy.config, policy.tokenizer)
    teacher, optimizer = load_teacher(config, policy, run), policy.optimizer()
    evaluator = TaskEvaluator(policy, task, config, policy.frozen())
    B, G = config.prompts * config.group_size, config.group_size

    step, _ = run.restore(policy, optimizer)
    run.evaluate_if_due(evaluator)
    while run.samples < config.total_samples:
        done = run.samples / config.total_samples
        lr = models.learning_rate(config.learning_rate, done, config)
        rollout, graded = collect(policy, task, config, run, step)
        taught = teacher.logprobs(rollout, config.temperature)
        advantages = (taught - rollout.logprobs) * rollout.mask
        batch = Batch(**vars(rollout), reference=taught, advantages=advantages)

        updates = [
            update(policy, optimizer, batch, rows, lr, config, run)
            for rows in minibatches(run, step, B, config)
        ]

        step += 1
        metrics = mean_of_updates(updates)
        metrics |= sample_metrics(rollout, graded, advantages.cumsum(-1)[..., -1], G, run)
        run.log(B, metrics)
        run.save_if_due(step, policy, optimizer)
        run.evaluate_if_due(evaluator)
    return policy


if __name__ == "__main__":
    main(parse(Config, PRESETS, __doc__), train, PRESETS)
