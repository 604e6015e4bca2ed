"""DAPO, decoupled clip and dynamic sampling policy optimization (Yu et al. 2025, arXiv 2503.14476).

    python llm_track/dapo.py --task addition

GRPO with four changes for long reasoning, each with a flag that disables it:

    clip-higher        the ratio is clipped to [1 - eps_low, 1 + eps_high], eps_high > eps_low: an
                       unlikely token can become likely faster, to keep the entropy up
                       (--clip-range-high 0.2 is GRPO's)
    dynamic sampling   prompts whose completions are all right or all wrong are discarded, and
                       sampling continues until K remain, so every prompt gives a gradient
                       (--no-dynamic-sampling)
    token-level loss   the mean over all tokens of a minibatch, not over each completion first:
                       every token has the same weight (--no-token-level)
    overlong           completions that were cut off are left out of the loss (filtering:
                       --no-overlong-filtering), and an answer earns less the nearer it ends to the
                       limit (soft punishment: --overlong-cache 0)

    J(theta) = E[ 1 / (sum_i |o_i|) sum_i sum_t min(r_{i,t} A_i, clip(r_{i,t}, 1 - eps_low,
                  1 + eps_high) A_i) ]   with 0 < |{o_i right}| < G                      (eq. 8)

    A_i = (R_i - mean(R)) / std(R)                                                       (eq. 9)

    punishment of a completion of length L:   0                           L <= Lmax - Lcache
                                              (Lmax - Lcache - L)/Lcache  up to Lmax
                                              -1                          cut off        (eq. 13)

`diff llm_track/grpo.py llm_track/dapo.py` shows the method (and what this file leaves out: process
supervision, the reference and the iterative mode).

Shapes: K prompts with G completions each, B = K G; T tokens of the longest completion.

Implementation details, and where defaults leave the paper:
 1. The reward is 1 for a right answer and -1 for a wrong one (sec. 2.4), plus `--format-weight` for
    the format, both by rules. A reward model's score (`--reward-model`) is added to it, or is the
    whole reward (`--no-rules`).
 2. Prompts are drawn K at a time until K mixed groups are found, at most ten times (the authors'
    code draws 3 K at a time and stops the training after ten), or the budget of samples is spent;
    the first K are used. Every sample counts, including those of groups left out. "Mixed" is by
    accuracy.
 3. Completions that were cut off count in their group's mean and deviation, and are then left out
    of the loss, numerator and denominator (sec. 3.4; the authors' published recipe only punishes
    them). If all are left out, no step is taken.
 4. One pass over the samples in four minibatches (the paper: sixteen).
 5. Every loss is a sum of weighted token terms whose weights are computed over the whole minibatch,
    so its division into micro-batches and processes does not matter.
 6. pi_old's log-probabilities are those of the sampling itself, unless it computed in bfloat16.
 7. No KL to a reference (sec. 2.3).
 8. AdamW without weight decay (the paper: 0.1), learning rate 3e-4 for the tiny model (the paper:
    1e-6 for 32B), without its warm-up; the gradient is clipped to a norm of 1. No step is taken if
    the gradient is exactly 0, because Adam's momentum would still move the weights, or if it is NaN
    or infinite.
 9. Logits are divided by `--temperature` in sampling and in training.

Logged per step: reward, accuracy, format, length and entropy (nats per token) of all samples drawn;
all_solved and all_failed, the shares of groups without a signal; drawn, the samples of the step;
of its minibatches (means) loss, grad_norm, and over the tokens that they learn from clipfrac
(ratios outside the clip range), clip_low and clip_high (where the clip removes the gradient: of
a negative advantage, of a positive one), approx_kl (k3 to pi_old).
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

from manyseeds.cli import (
    NonNegative,
    NonNegativeInt,
    Positive,
    PositiveInt,
    Preset,
    Range,
    UsageError,
)
from manyseeds.llm_track import models, sampling, tasks
from manyseeds.llm_track.evaluation import TaskEvaluator
from manyseeds.llm_track.sampling import Samples
from manyseeds.runs.language import LanguageRun, main

EPS = 1e-4
MAX_GRAD_NORM = 1.0


@dataclass(frozen=True, kw_only=True)
class Config(tasks.TaskConfig):
    """DAPO."""

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
    clip_range_high: NonNegative = 0.28
    """Upper epsilon of the clipped objective (0: --clip-range)."""
    dynamic_sampling: bool = True
    """Sample until K prompts have both right and wrong completions."""
    max_draws: PositiveInt = 10
    """Maximum draws of K prompts per step. The step then uses the groups found so far."""
    token_level: bool = True
    """Average the loss over all tokens. GRPO averages over each completion first."""
    overlong_filtering: bool = True
    """Exclude truncated completions from the loss."""
    overlong_cache: NonNegativeInt = 8
    """Number of penalised tokens before the limit (0: none)."""
    format_weight: NonNegative = 0.1
    """Weight of the format reward beside the accuracy reward."""
    reward_model: str = ""
    """Folder or hub name of a reward model. Its score is added to the rewards."""
    rules: bool = True
    """Reward accuracy and format by rules."""

    def check(self) -> None:
        super().check()
        check_batch(self)
        if self.overlong_cache > (longest := models.completion_tokens(self)):
            raise UsageError(
                f"--overlong-cache {self.overlong_cache}: completions have {longest} tokens at most"
            )


PRESETS = {
    "addition": Preset(
        {},
        source="the defaults; our own search on an earlier tiny model, one seed, 12,800 samples: "
        "1 and 2 epochs, 4 and 8 minibatches, groups of 8 and 16",
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
    """Rewards [K, G] compared within each group; 0 where they are all equal."""
    mean, std = rewards.mean(1, keepdim=True), rewards.std(1, keepdim=True)
    varied = rewards.amax(1, keepdim=True) > rewards.amin(1, keepdim=True)
    return torch.where(varied, (rewards - mean) / (std + EPS), 0.0)


def overlong_punishment(lengths: Tensor, longest: int, cache: int) -> Tensor:
    """Eq. 13 for completions of some lengths, [B]; 0 for all without a cache."""
    if cache == 0:
        return torch.zeros(lengths.shape, device=lengths.device)
    return ((longest - cache - lengths) / cache).clamp(-1.0, 0.0)


# ---- The loss ------------------------------------------------------------------------------


def token_weights(mask: Tensor, completions: Tensor, tokens: Tensor, token_level: bool) -> Tensor:
    """Weight of each token, [B, T]: the mean over tokens, or over completions first.

    completions, tokens: how many the whole minibatch learns from, 0-d; those that are left out have
    an empty mask.
    """
    if token_level:
        return mask / tokens.clamp(min=1)
    return mask / mask.sum(1, keepdim=True).clamp(min=1) / completions.clamp(min=1)


def clip_bounds(config: Config) -> tuple[float, float]:
    """The bounds within which the ratio has a gradient."""
    if config.clip_range == 0:
        return -math.inf, math.inf
    return 1 - config.clip_range, 1 + (config.clip_range_high or config.clip_range)


def surrogate(
    logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor, low: float, high: float
) -> Tensor:
    """The clipped objective of each token, [B, T]."""
    ratio = (logprobs - old_logprobs).exp()
    return torch.min(ratio * advantages, ratio.clamp(low, high) * advantages)


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
    objective = surrogate(logprobs, old_logprobs, advantages, *clip_bounds(config))
    return -(weights * objective).sum()


# ---- The training --------------------------------------------------------------------------


@dataclass(frozen=True)
class Batch(Samples):
    """Samples to learn from; their log-probabilities are those of pi_old."""

    advantages: Tensor  # [B, T]
    learned: Tensor  # [B, T] bool, the mask without the completions that are left out
    index: Tensor  # [B] int64, place in the batch of all processes


def collect(
    policy: Any,
    tokenizer: Any,
    task: tasks.Task,
    config: Config,
    run: LanguageRun,
    step: int,
    draw: int,
) -> tuple[Samples, list[tasks.Graded]]:
    """Draw prompts, complete each of them G times, and grade them; the share of this process."""
    K, G, T = config.prompts, config.group_size, models.completion_tokens(config)
    start, rng = run.samples // G + draw * K, run.rng("prompts", step, draw)
    drawn = tasks.next_problems(task, K, start, run, "prompts", rng)
    problems = [p for p in drawn for _ in range(G)]
    mine = run.processes.share(K * G)
    problems, uniforms = problems[mine], run.uniforms(step, K * G, T, part=draw)[mine]
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
    rules = [2 * x.accuracy - 1 + config.format_weight * x.format for x in graded]
    rewards = torch.tensor(rules, device=samples.tokens.device) * config.rules
    longest = models.completion_tokens(config)
    rewards += overlong_punishment(samples.lengths, longest, config.overlong_cache)
    if reward_model is not None:
        size = config.micro_batch_size
        rewards += sampling.in_batches(lambda x: sampling.scores(reward_model, x), samples, size)
    return rewards


def collect_step(
    policy: Any, tokenizer: Any, task: tasks.Task, config: Config, run: LanguageRun, step: int
) -> tuple[Samples, list[tasks.Graded], Tensor]:
    """Draw K prompts at a time until K groups have right and wrong completions.

    Returns everything drawn, the share of this process, and for each completion its place among the
    K G of all processes that are learned from, -1 for one that is not, [B].
    """
    K, G = config.prompts, config.group_size
    drawn: list[tuple[Samples, list[tasks.Graded]]] = []
    flags: list[Tensor] = []
    while True:
        drawn.append(collect(policy, tokenizer, task, config, run, step, len(drawn)))
        correct = torch.tensor([x.accuracy for x in drawn[-1][1]], device=run.device)
        share = correct.view(-1, G).mean(1)
        mixed = (share > 0) & (share < 1) if config.dynamic_sampling else share >= 0
        flags.append(run.processes.gather(mixed.to(torch.uint8)).bool())
        spent = run.samples + len(drawn) * K * G >= config.total_samples
        if torch.stack(flags).sum() >= K or spent or len(drawn) == config.max_draws:
            break
    learned = torch.stack(flags)  # [draws, K]
    places = (learned.flatten().cumsum(0) - 1).view_as(learned)
    places = torch.where(learned & (places < K), places, -1)[:, run.processes.share(K)]
    within = torch.arange(G, device=run.device)
    index = torch.where(places.unsqueeze(2) >= 0, places.unsqueeze(2) * G + within, -1)
    samples = sampling.joined([part for part, _ in drawn])
    return samples, [x for _, graded in drawn for x in graded], index.flatten()


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
    mine = np.flatnonzero(np.isin(batch.index.cpu(), rows))
    learned = batch.learned[mine]
    counts = processes.sum(torch.stack([learned.any(1).sum(), learned.sum()]))
    signal = (batch.advantages[mine] * learned).any(1)
    mine = mine[signal.cpu().numpy()]  # the others have exactly no gradient
    low, high = clip_bounds(config)
    sums = torch.zeros(6, device=run.device)
    for part in batch.parts(mine, config.micro_batch_size):
        logprobs = sampling.logprobs(policy, part, config.temperature)
        weights = token_weights(part.learned, counts[0], counts[1], config.token_level)
        loss = policy_loss(logprobs, part.logprobs, part.advantages, weights, config)
        loss.backward()
        with torch.no_grad():
            ratio = (logprobs - part.logprobs).exp()
            below, above = ratio < low, ratio > high
            of_tokens = (
                torch.ones_like(ratio),
                below | above,
                below & (part.advantages < 0),
                above & (part.advantages > 0),
                k3(part.logprobs, logprobs),
            )
            sums += torch.stack([loss, *((part.learned * x).sum() for x in of_tokens)])
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

    step, _ = run.restore(trained, optimizer)
    run.evaluate_if_due(run.samples, evaluator)
    while run.samples < config.total_samples:
        done = run.samples / config.total_samples
        models.set_learning_rate(optimizer, config.learning_rate, done, config)
        samples, graded, index = collect_step(policy, tokenizer, task, config, run, step)
        rewards = rewards_of(graded, samples, reward_model, config)
        groups = group_advantages(rewards.view(-1, config.group_size))
        advantages = groups.view(-1, 1).expand_as(samples.tokens)
        learned = samples.mask
        if config.overlong_filtering:
            learned = learned & samples.ended.unsqueeze(1)
        batch = Batch(**vars(samples), advantages=advantages, learned=learned, index=index)

        shuffle, updates = run.rng("minibatches", step), []
        places = 1 + int(processes.gather(index).max())  # B, or fewer of the last samples
        for _ in range(config.epochs):
            # There may be fewer than minibatches, or none.
            parts = min(config.minibatches, max(places, 1))
            for rows in np.array_split(shuffle.permutation(places), parts):
                updates.append(update(policy, optimizer, batch, rows, config, run))

        step += 1
        drawn = processes.size * len(samples)
        metrics = {k: torch.stack([x[k] for x in updates]).mean() for k in updates[0]}
        metrics |= sample_metrics(samples, graded, rewards, config.group_size, run)
        run.log(run.samples + drawn, {**metrics, "drawn": drawn})
        run.save_if_due(step, trained, optimizer)
        run.evaluate_if_due(run.samples, evaluator)
    return policy


if __name__ == "__main__":
    main(parse(Config, PRESETS, __doc__), train, PRESETS)
