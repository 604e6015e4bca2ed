"""Dr. GRPO, "GRPO done right" (Liu et al. 2025, arXiv 2503.20783), for a language model.

    python llm_track/dr_grpo.py --task addition

GRPO without its two divisions, which bias the gradient (sec. 3.1):

    1/|o_i|   a long wrong answer is punished less per token than a short one, so wrong answers
              grow longer
    1/std(R)  questions that are nearly always, or nearly never, answered right weigh more

What remains is the policy gradient with the group's mean as its baseline:

    J(theta) = E[ 1/G sum_i sum_t min(r_{i,t} A_i, clip(r_{i,t}, 1 - eps, 1 + eps) A_i) ]

    A_i = R_i - mean(R)

A sum over tokens grows with their number. It is divided by a constant, the length of the longest
possible completion, which keeps it at the usual scale (the paper's implementation: `masked_sum /
max_tokens`).

`diff llm_track/grpo.py llm_track/dr_grpo.py` shows the method (and what this file leaves out:
process supervision, the reference and the iterative mode).

Shapes: K prompts with G completions each, B = K G; T tokens of the longest completion.

Implementation details, and where defaults leave the paper:
 1. The reward is 1 for a right answer plus `--format-weight` for the format, both by rules. A
    reward model's score (`--reward-model`) is added to it, or is the whole reward (`--no-rules`).
 2. No KL to a reference: with rewards by rules it is not needed (sec. 3.2).
 3. The mean in A_i includes R_i itself, which scales the gradient by 1 - 1/G and otherwise leaves
    it unbiased (the paper's appendix A). A group whose rewards are all equal has advantages of 0.
 4. One pass over the samples in four minibatches (the paper: one pass).
 5. Every loss is a sum of weighted token terms whose weights are computed over the whole minibatch,
    so its division into micro-batches and processes does not matter.
 6. pi_old's log-probabilities are those of the sampling itself, unless it computed in bfloat16.
 7. AdamW without weight decay, learning rate 3e-4 for the tiny model (the paper: 1e-6 for 7B), no
    schedule; the gradient is clipped to a norm of 1. No step is taken if the gradient is exactly 0,
    because Adam's momentum would still move the weights, or if it is NaN or infinite.
 8. Logits are divided by `--temperature` in sampling and in training.

Logged per step: reward, accuracy, format, length and entropy (nats per token) of the samples; of
its minibatches (means) loss, grad_norm, and over the tokens that they learn from clipfrac (ratios
outside the clip range), clip_low and clip_high (where the clip removes the gradient: of a negative
advantage, of a positive one), approx_kl (k3 to pi_old); all_solved and all_failed, the shares of
groups without a signal.
"""

from __future__ import annotations

from manyseeds.command import parse

import math
from dataclasses import dataclass
from typing import Annotated, Any

import torch
from torch import Tensor

from manyseeds.cli import NonNegative, Positive, PositiveInt, Preset, Range, UsageError
from manyseeds.llm_track import models, tasks
from manyseeds.llm_track.evaluation import TaskEvaluator
from manyseeds.llm_track.policies import AnyModel, load_policy, load_scalars
from manyseeds.llm_track.rollout import (
    Rollout,
    collect,
    minibatches,
    rewards_of,
    sample_metrics,
    total,
)
from manyseeds.runs.language_seeds import SeedsRun, main

MAX_GRAD_NORM = 1.0


@dataclass(frozen=True, kw_only=True)
class Config(tasks.TaskConfig):
    """Dr. GRPO."""

    prompts: PositiveInt = 32
    """K, prompts per step."""
    group_size: Annotated[int, Range(2)] = 8
    """G, completions sampled for each prompt."""
    minibatches: PositiveInt = 4
    """Number of minibatches in each pass over the samples."""
    epochs: PositiveInt = 1
    """Passes over the samples of a step."""
    learning_rate: Positive = 3e-4
    """Learning rate of AdamW."""
    temperature: Positive = 1.0
    """Sampling temperature."""
    clip_range: NonNegative = 0.2
    """Epsilon of the clipped objective (0: no clipping)."""
    format_weight: NonNegative = 0.1
    """Weight of the format reward beside the accuracy reward."""
    reward_model: str = ""
    """Folder or hub name of a reward model. Its score is added to the rewards."""
    rules: bool = True
    """Reward accuracy and format by rules."""

    def check(self) -> None:
        super().check()
        check_batch(self)


PRESETS = {
    "addition": Preset(
        {},
        source="the defaults; our own search on an earlier tiny model, one seed, 12,800 samples: "
        "learning rates 3e-4 and 6e-4, 1 and 2 epochs",
    ),
    "mixed": Preset({}, source="addition's"),
    "countdown": Preset({}, source="addition's"),
    "rambling": Preset({}, source="addition's"),
    "checking": Preset({}, source="addition's"),
}


def check_batch(config: Any) -> None:
    """Conditions on a step's samples; raises UsageError."""
    if config.minibatches > config.prompts * config.group_size:
        raise UsageError(
            f"--minibatches {config.minibatches}: there are only "
            f"{config.prompts * config.group_size} samples per step"
        )
    if not config.rules and not config.reward_model:
        raise UsageError("--no-rules: then there must be a --reward-model")


# ---- Rewards and advantages ----------------------------------------------------------------


def group_advantages(rewards: Tensor) -> Tensor:
    """Rewards [S, K, G] compared with the mean of their group; 0 where they are all equal."""
    varied = rewards.amax(-1, keepdim=True) > rewards.amin(-1, keepdim=True)
    return torch.where(varied, rewards - rewards.mean(-1, keepdim=True), 0.0)


# ---- The loss ------------------------------------------------------------------------------


def token_weights(mask: Tensor, samples: int, longest: int) -> Tensor:
    """1 / (N T_max) for each token, [S, B, T]: a sum over a completion, by a constant."""
    return mask / (samples * longest)


def surrogate(logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor, clip: float) -> Tensor:
    """The clipped objective of each token, [S, B, T]."""
    ratio = (logprobs - old_logprobs).exp()
    return torch.min(ratio * advantages, ratio.clamp(1 - clip, 1 + clip) * advantages)


def k3(logprobs: Tensor, reference: Tensor) -> Tensor:
    """Estimate of the KL from a reference, [S, B, T] (Schulman 2020): never negative, unbiased."""
    difference = reference - logprobs
    return difference.exp() - difference - 1


def policy_loss(
    logprobs: Tensor,
    old_logprobs: Tensor,
    advantages: Tensor,
    weights: Tensor,
    config: Config,
) -> Tensor:
    """This part's share of each seed's minibatch loss, [S]; all tensors [S, B, T]."""
    objective = surrogate(logprobs, old_logprobs, advantages, config.clip_range or math.inf)
    return -total(weights * objective)


# ---- The training --------------------------------------------------------------------------


@dataclass(frozen=True)
class Batch(Rollout):
    """Completions to learn from; their log-probabilities are those of pi_old."""

    advantages: Tensor  # [S, B, T]


def update(
    policy: AnyModel,
    optimizer: Any,
    batch: Batch,
    rows: Tensor,
    lr: float,
    config: Config,
    run: SeedsRun,
) -> dict[str, Tensor]:
    """One gradient step on some rows of each seed, [S, M]; returns metrics, [S] each."""
    eps, longest = config.clip_range or math.inf, models.completion_tokens(config)
    sums = torch.zeros(6, len(rows), device=run.device)
    for part in policy.parts(batch, rows):
        logprobs = policy.logprobs(part, config.temperature)
        weights = token_weights(part.mask, rows.shape[1], longest)
        losses = policy_loss(logprobs, part.logprobs, part.advantages, weights, config)
        losses.sum().backward()
        with torch.no_grad():
            ratio = (logprobs - part.logprobs).exp()
            below, above = ratio < 1 - eps, ratio > 1 + eps
            of_tokens = (
                torch.ones_like(ratio),
                below | above,
                below & (part.advantages < 0),
                above & (part.advantages > 0),
                k3(part.logprobs, logprobs),
            )
            sums += torch.stack([losses, *(total(part.mask * x) for x in of_tokens)])
    grad_norm = optimizer.step(lr, MAX_GRAD_NORM)
    loss, tokens, *means = run.processes.sum(sums)
    names = ("clipfrac", "clip_low", "clip_high", "approx_kl")
    metrics = {name: x / tokens.clamp(min=1) for name, x in zip(names, means, strict=True)}
    return {"loss": loss, **metrics, "grad_norm": grad_norm}


def train(config: Config, run: SeedsRun) -> AnyModel:
    """Train all seeds of a run; returns their policies."""
    run.processes.share(config.prompts)  # a group stays in one process
    policy = load_policy(config, run)
    task = models.task_of(config, policy.config, policy.tokenizer)
    reward_model, optimizer = None, policy.optimizer()
    if config.reward_model:
        reward_model = load_scalars(config.reward_model, config, policy, run, "--reward-model")
    evaluator = TaskEvaluator(policy, task, config, policy.frozen())
    B, G = config.prompts * config.group_size, config.group_size

    step, _ = run.restore(policy, optimizer)
    run.evaluate_if_due(evaluator)
    while run.samples < config.total_samples:
        done = run.samples / config.total_samples
        lr = models.learning_rate(config.learning_rate, done, config)
        rollout, graded = collect(policy, task, config, run, step)
        rewards = rewards_of(graded, rollout, reward_model, config)
        groups = group_advantages(rewards.unflatten(1, (-1, G)))
        advantages = groups.flatten(1).unsqueeze(-1).expand_as(rollout.tokens)
        learned = rollout.lengths * advantages.any(-1)  # the others have exactly no gradient
        batch = Batch(**{**vars(rollout), "lengths": learned}, advantages=advantages)

        updates = [
            update(policy, optimizer, batch, rows, lr, config, run)
            for rows in minibatches(run, step, B, config)
        ]

        step += 1
        metrics = {
            k: total(torch.stack([x[k] for x in updates], 1)) / len(updates) for k in updates[0]
        }
        metrics |= sample_metrics(rollout, graded, rewards, G, run)
        run.log(B, metrics)
        run.save_if_due(step, policy, optimizer)
        run.evaluate_if_due(evaluator)
    return policy


if __name__ == "__main__":
    main(parse(Config, PRESETS, __doc__), train, PRESETS)
