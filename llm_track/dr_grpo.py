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
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any

import numpy as np
import torch
from torch import Tensor

from manyseeds.cli import NonNegative, Positive, PositiveInt, Preset, Range, UsageError
from manyseeds.llm_track import models, sampling, tasks
from manyseeds.llm_track.evaluation import TaskEvaluator
from manyseeds.llm_track.sampling import Samples
from manyseeds.runs.language import LanguageRun, main

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
    """Rewards [K, G] compared with the mean of their group; 0 where they are all equal."""
    varied = rewards.amax(1, keepdim=True) > rewards.amin(1, keepdim=True)
    return torch.where(varied, rewards - rewards.mean(1, keepdim=True), 0.0)


# ---- The loss ------------------------------------------------------------------------------


def token_weights(mask: Tensor, samples: int, longest: int) -> Tensor:
    """1 / (N T_max) for each token, [B, T]: a sum over a completion, by a constant."""
    return mask / (samples * longest)


def surrogate(logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor, clip: float) -> Tensor:
    """The clipped objective of each token, [B, T]."""
    ratio = (logprobs - old_logprobs).exp()
    return torch.min(ratio * advantages, ratio.clamp(1 - clip, 1 + clip) * advantages)


def k3(logprobs: Tensor, reference: Tensor) -> Tensor:
    """Estimate of the KL from a reference, [B, T] (Schulman 2020): never negative, unbiased."""
    difference = reference - logprobs
    return difference.exp() - difference - 1


def policy_loss(
    logprobs: Tensor,
    old_logprobs: Tensor,
    advantages: Tensor,
    weights: Tensor,
    config: Config,
) -> Tensor:
    """This part's share of a minibatch's loss, 0-d; all arguments [B, T]."""
    objective = surrogate(logprobs, old_logprobs, advantages, config.clip_range or math.inf)
    return -(weights * objective).sum()


# ---- The training --------------------------------------------------------------------------


@dataclass(frozen=True)
class Batch(Samples):
    """Samples to learn from; their log-probabilities are those of pi_old."""

    advantages: Tensor  # [B, T]


def collect(
    policy: Any, tokenizer: Any, task: tasks.Task, config: Config, run: LanguageRun, step: int
) -> tuple[Samples, list[tasks.Graded]]:
    """Draw prompts, complete each of them G times, and grade them; the share of this process."""
    K, G, T = config.prompts, config.group_size, models.completion_tokens(config)
    drawn = tasks.next_problems(task, K, step * K, run, "prompts", run.rng("prompts", step))
    problems = [p for p in drawn for _ in range(G)]
    mine = run.processes.share(K * G)
    problems, uniforms = problems[mine], run.uniforms(step, K * G, T)[mine]
    prompts = sampling.encode_prompts(tokenizer, task, [p.prompt for p in problems])
    samples = sampling.sample(
        policy, tokenizer, prompts, uniforms, config.temperature, size=config.sampling_batch_size
    )
    if policy.computes_in_half:
        old = sampling.in_batches(
            lambda part: sampling.logprobs(policy, part, config.temperature),
            samples,
            config.micro_batch_size,
        )
        samples = replace(samples, logprobs=old)
    texts = sampling.decode(tokenizer, samples)
    return samples, [task.grade(p, text) for p, text in zip(problems, texts, strict=True)]


def rewards_of(
    graded: Sequence[tasks.Graded], samples: Samples, reward_model: Any, config: Config
) -> Tensor:
    """The reward of each completion, [B]."""
    rules = [x.accuracy + config.format_weight * x.format for x in graded]
    rewards = torch.tensor(rules, device=samples.tokens.device) * config.rules
    if reward_model is not None:
        size = config.micro_batch_size
        rewards += sampling.in_batches(lambda x: sampling.scores(reward_model, x), samples, size)
    return rewards


def update(
    policy: Any,
    optimizer: torch.optim.Optimizer,
    batch: Batch,
    rows: np.ndarray,
    config: Config,
    run: LanguageRun,
) -> dict[str, Tensor]:
    """One gradient step on some rows of the whole batch; returns metrics."""
    processes, parameters = run.processes, models.trainable(policy)
    mine = processes.mine(rows, config.prompts * config.group_size)
    mine = mine[batch.advantages[mine].any(1).cpu().numpy()]  # the others have exactly no gradient
    longest = models.completion_tokens(config)
    eps = config.clip_range or math.inf
    sums = torch.zeros(6, device=run.device)
    for part in batch.parts(mine, config.micro_batch_size):
        logprobs = sampling.logprobs(policy, part, config.temperature)
        weights = token_weights(part.mask, len(rows), longest)
        loss = policy_loss(logprobs, part.logprobs, part.advantages, weights, config)
        loss.backward()
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
            sums += torch.stack([loss, *((part.mask * x).sum() for x in of_tokens)])
    processes.sum_gradients(parameters)
    grad_norm = torch.nn.utils.clip_grad_norm_(parameters, MAX_GRAD_NORM).to(run.device)
    if 0 < grad_norm < math.inf:
        optimizer.step()
    optimizer.zero_grad()
    loss, tokens, *means = processes.sum(sums)
    names = ("clipfrac", "clip_low", "clip_high", "approx_kl")
    metrics = {name: x / tokens.clamp(min=1) for name, x in zip(names, means, strict=True)}
    return {"loss": loss, **metrics, "grad_norm": grad_norm}


def sample_metrics(
    samples: Samples, graded: Sequence[tasks.Graded], rewards: Tensor, G: int, run: LanguageRun
) -> dict[str, Tensor]:
    """What is logged of a step's samples, over all processes."""
    accuracy = torch.tensor([x.accuracy for x in graded], device=run.device)
    framed = torch.tensor([x.format for x in graded], device=run.device)
    solved = accuracy.view(-1, G).mean(1).repeat_interleave(G)
    columns = {
        "reward": rewards,
        "accuracy": accuracy,
        "format": framed,
        "length": samples.lengths.float(),
        "all_solved": (solved == 1).float(),
        "all_failed": (solved == 0).float(),
    }
    means = run.processes.gather(torch.stack(list(columns.values()), 1)).mean(0)
    tokens = run.processes.sum(torch.stack([samples.entropy.sum(), samples.mask.sum()]))
    return {**dict(zip(columns, means, strict=True)), "entropy": tokens[0] / tokens[1]}


def train(config: Config, run: LanguageRun) -> Any:
    """Train one seed; returns the policy."""
    processes = run.processes
    processes.share(config.prompts)  # a group stays in one process
    policy, tokenizer = models.load_model(config, run.device, processes)
    task = models.task_of(config, policy, tokenizer)
    reward_model = None
    if config.reward_model:
        reward_model = models.load_scalar(
            config.reward_model, config, run.device, processes, "--reward-model", run.seed
        )
    trained = models.trainable(policy)
    optimizer = torch.optim.AdamW(trained, lr=config.learning_rate, weight_decay=0.0, fused=True)
    evaluator = TaskEvaluator(policy, tokenizer, task, config, models.Reference(policy))
    B = config.prompts * config.group_size

    step, _ = run.restore(trained, optimizer)
    run.evaluate_if_due(run.samples, evaluator)
    while run.samples < config.total_samples:
        done = run.samples / config.total_samples
        models.set_learning_rate(optimizer, config.learning_rate, done, config)
        samples, graded = collect(policy, tokenizer, task, config, run, step)
        rewards = rewards_of(graded, samples, reward_model, config)
        groups = group_advantages(rewards.view(-1, config.group_size))
        advantages = groups.view(-1, 1).expand_as(samples.tokens)
        batch = Batch(**vars(samples), advantages=advantages)

        shuffle, updates = run.rng("minibatches", step), []
        for _ in range(config.epochs):
            for rows in np.array_split(shuffle.permutation(B), config.minibatches):
                updates.append(update(policy, optimizer, batch, rows, config, run))

        step += 1
        metrics = {k: torch.stack([x[k] for x in updates]).mean() for k in updates[0]}
        metrics |= sample_metrics(samples, graded, rewards, config.group_size, run)
        run.log(run.samples + B, metrics)
        run.save_if_due(step, trained, optimizer)
        run.evaluate_if_due(run.samples, evaluator)
    return policy


if __name__ == "__main__":
    main(parse(Config, PRESETS, __doc__), train, PRESETS)
