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

`diff llm_track/grpo.py llm_track/dapo.py` shows the method.

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
 7. No KL to a reference by default (sec. 2.3).
 8. AdamW without weight decay (the paper: 0.1), learning rate 3e-4 for the tiny model (the paper:
    1e-6 for 32B), without its warm-up; the gradient is clipped to a norm of 1. No step is taken if
    the gradient is exactly 0, because Adam's momentum would still move the weights, or if it is NaN
    or infinite.
 9. Logits are divided by `--temperature` in sampling and in training.

Logged per step: reward, accuracy, format, length and entropy (nats per token) of all samples drawn;
all_solved and all_failed, the shares of groups without a signal; drawn, the samples of the step;
of its minibatches (means) loss, grad_norm, and over the tokens that they learn from kl (k3 to the
reference; to pi_old where `--kl-coef` is 0), clipfrac (ratios outside the clip range), clip_low and
clip_high (where the clip removes the gradient: of a negative advantage, of a positive one),
approx_kl (k3 to pi_old), movable (whether the advantage is positive, and pi_old so small that the
upper clip can act at all), and, 0 elsewhere, old_prob (pi_old of what is movable) and old_prob_high
(pi_old of what counts in clip_high). So old_prob / movable is the mean pi_old of tokens that might
be clipped above, and old_prob_high / clip_high of those that are.
"""

from __future__ import annotations

from manyseeds.command import parse

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from manyseeds.cli import (
    NonNegative,
    NonNegativeInt,
    PerRow,
    PositiveInt,
    Preset,
    UsageError,
)
from manyseeds.llm_track import models, tasks
from manyseeds.llm_track.evaluation import TaskEvaluator
from manyseeds.llm_track.policies import AnyModel, load_policy, load_scalars
from manyseeds.llm_track.rollout import (
    Batch,
    GroupConfig,
    Rollout,
    clip_bounds,
    collect,
    joined,
    kl_of_rewards,
    means_of,
    measured,
    rates_of,
    regularizer,
    sample_metrics,
    spread,
    token_sums,
    total,
    with_signal,
)
from manyseeds.portable import exp
from manyseeds.rows import Row, broadcast, used
from manyseeds.runs.language_seeds import SeedsRun, main

EPS = 1e-4
MAX_GRAD_NORM = 1.0


@dataclass(frozen=True, kw_only=True)
class Config(GroupConfig):
    """DAPO."""

    clip_range: PerRow[NonNegative] = 0.2
    """Epsilon of the clipped objective (0: no clipping)."""
    clip_range_high: PerRow[NonNegative] = 0.28
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

    def check_request(self) -> None:
        super().check_request()
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
    **dict.fromkeys(
        ("mixed", "countdown", "rambling", "checking"), Preset({}, source="addition's")
    ),
}


# ---- Rewards and advantages ----------------------------------------------------------------


def group_advantages(rewards: Tensor) -> Tensor:
    """Rewards [S, K, G] compared within each group; 0 where they are all equal."""
    mean, std = rewards.mean(-1, keepdim=True), rewards.std(-1, keepdim=True)
    varied = rewards.amax(-1, keepdim=True) > rewards.amin(-1, keepdim=True)
    return torch.where(varied, (rewards - mean) / (std + EPS), 0.0)


def overlong_punishment(lengths: Tensor, longest: int, cache: int) -> Tensor:
    """Eq. 13 for completions of some lengths, [S, B]; 0 for all without a cache."""
    if cache == 0:
        return torch.zeros(lengths.shape, device=lengths.device)
    return ((longest - cache - lengths) / cache).clamp(-1.0, 0.0)


# ---- The loss ------------------------------------------------------------------------------


def token_weights(mask: Tensor, completions: Tensor, tokens: Tensor, token_level: bool) -> Tensor:
    """Weight of each token, [S, B, T]: the mean over tokens, or over completions first.

    completions, tokens: how many each seed's whole minibatch learns from, [S]; those that are left
    out have an empty mask.
    """
    if token_level:
        return mask / tokens.clamp(min=1).view(-1, 1, 1)
    means = mask / mask.sum(-1, keepdim=True).clamp(min=1)
    return means / completions.clamp(min=1).view(-1, 1, 1)


def ratio_of(logprobs: Tensor, batch: Batch) -> Tensor:
    """pi_theta / pi_old of each token, [S, B, T]."""
    return exp(logprobs - batch.logprobs)


def surrogate(ratio: Tensor, advantages: Tensor, low: Row, high: Row) -> Tensor:
    """The clipped objective of each token, [S, B, T]."""
    clipped = ratio.clamp(min=broadcast(low, ratio)).clamp(max=broadcast(high, ratio))
    return torch.min(ratio * advantages, clipped * advantages)


def policy_loss(
    logprobs: Tensor, entropy: Tensor, batch: Batch, weights: Tensor, config: Config
) -> Tensor:
    """This part's share of each seed's minibatch loss, [S]; all tensors [S, B, T]."""
    objective = surrogate(ratio_of(logprobs, batch), batch.advantages, *clip_bounds(config))
    return -total(weights * (objective - regularizer(logprobs, entropy, batch, config)))


OF_MOVABLE = ("movable", "old_prob", "old_prob_high")


@torch.no_grad()
def movable_sums(ratio: Tensor, part: Batch, mask: Tensor, high: Row) -> Tensor:
    """Sums of OF_MOVABLE over the tokens of a part, [3, S]."""
    old, bound = exp(part.logprobs), broadcast(high, ratio)
    movable = mask & (part.advantages > 0) & (old * bound < 1)
    return torch.stack(
        [total(x) for x in (movable.float(), movable * old, (movable & (ratio > bound)) * old)]
    )


# ---- The training --------------------------------------------------------------------------


@dataclass(frozen=True)
class Draws(Batch):
    """Completions to learn from; their log-probabilities are those of pi_old."""

    learned: Tensor  # [S, B, T] bool, the mask without the completions that are left out
    places: Tensor  # [S, B] int64, of each completion among those of all processes


def rewards_of(
    graded: Sequence[Sequence[tasks.Graded]], rollout: Rollout, reward_model: Any, config: Config
) -> Tensor:
    """The reward of each completion, [S, B]."""
    accuracy, framed = (measured(graded, name, rollout) for name in ("accuracy", "format"))
    rewards = (2 * accuracy - 1 + broadcast(config.format_weight, framed) * framed) * config.rules
    if config.reward:
        rewards = rewards + measured(graded, "reward", rollout)
    longest = models.completion_tokens(config)
    rewards = rewards + overlong_punishment(rollout.lengths, longest, config.overlong_cache)
    if reward_model is not None:
        with torch.no_grad():
            rewards = rewards + reward_model.scores(rollout)
    return rewards


def collect_step(
    policy: AnyModel, task: tasks.Task, config: Config, run: SeedsRun, step: int
) -> tuple[Rollout, list[list[tasks.Graded]], Tensor]:
    """Draw K prompts at a time, for each seed until K groups have right and wrong completions.

    Returns everything drawn, the share of this process, and for each completion its place among the
    K G of all processes that are learned from, -1 for one that is not, [S, B]. A seed with fewer
    draws than another has empty rows.
    """
    K, G, S = config.prompts, config.group_size, len(policy)
    drawn, flags = list[Rollout](), list[Tensor]()
    graded: list[list[tasks.Graded]] = [[] for _ in range(S)]
    left = run.unfinished
    while left:
        rollout, own = collect(policy.of(left), task, config, run.of(left), step, len(drawn))
        drawn.append(spread(rollout, left, S))
        for s, new in zip(left, own, strict=True):
            graded[s] += new
        by = "reward" if config.reward and not config.rules else "accuracy"
        told = measured(own, by, rollout)
        groups = told.unflatten(1, (-1, G))
        mixed = (groups.amax(-1) > groups.amin(-1)) | (not config.dynamic_sampling)
        flags.append(torch.zeros(S, K, dtype=torch.bool, device=run.device))
        flags[-1][left] = run.processes.gather(mixed.mT.to(torch.uint8)).mT.bool()
        enough = torch.stack(flags).sum((0, 2)) >= K
        spent = len(drawn) * K * G
        left = [
            s
            for s in left
            if not enough[s]
            and run.runs[s].samples + spent < config.total_samples
            and len(drawn) < config.max_draws
        ]
    learned = torch.stack(flags, 1)  # [S, draws, K]
    places = (learned.flatten(1).cumsum(1) - 1).view_as(learned)
    places = torch.where(learned & (places < K), places, -1)[..., run.processes.share(K)]
    within = torch.arange(G, device=run.device)
    index = torch.where(places.unsqueeze(-1) >= 0, places.unsqueeze(-1) * G + within, -1)
    return joined(drawn), graded, index.flatten(1)


def minibatches(
    places: Tensor, run: SeedsRun, step: int, config: Config
) -> Iterator[tuple[Tensor, Tensor]]:
    """Which completions each minibatch learns from, [S, B] bool, and which seeds have it, [S].

    places: [S, B], as in Draws. The last samples may be fewer than minibatches, or none.
    """
    counts = [1 + int(run.processes.gather(x).max()) for x in places]
    learning, shuffles = run.unfinished, run.rngs("minibatches", step)
    for _ in range(config.epochs):
        parts = [
            np.array_split(rng.permutation(n), min(config.minibatches, max(n, 1)))
            for rng, n in zip(shuffles, counts, strict=True)
        ]
        for rows in itertools.zip_longest(*parts):
            chosen = [np.isin(places[s].cpu(), () if x is None else x) for s, x in enumerate(rows)]
            there = [s in learning and x is not None for s, x in enumerate(rows)]
            yield torch.tensor(np.stack(chosen), device=run.device), torch.tensor(there)


def update(
    policy: AnyModel,
    optimizer: Any,
    batch: Draws,
    rows: Tensor,
    lr: Tensor,
    config: Config,
    run: SeedsRun,
) -> dict[str, Tensor]:
    """One gradient step on some rows of each seed, [S, B] bool; returns metrics, [S] each."""
    learned = batch.learned & rows.unsqueeze(-1)
    counts = torch.stack([learned.any(-1).sum(1), learned.sum((1, 2))])
    completions, tokens = run.processes.sum(counts)
    batch = with_signal(
        replace(batch, lengths=batch.lengths * learned.any(-1), learned=learned), config
    )
    sums, bounds = torch.zeros(7, len(rows), device=run.device), clip_bounds(config)
    of_movable = torch.zeros(3, len(rows), device=run.device)
    for part in policy.parts(batch):
        logprobs, entropy = policy.outputs(part, config.temperature, used(config.entropy_coef))
        weights = token_weights(part.learned, completions, tokens, config.token_level)
        losses = policy_loss(logprobs, entropy, part, weights, config)
        losses.sum().backward()
        ratio = ratio_of(logprobs, part)
        mask = part.learned & part.mask
        sums += token_sums(losses, logprobs, ratio, part, mask, *bounds)
        of_movable += movable_sums(ratio, part, mask, bounds[1])
    grad_norm = optimizer.step(lr, MAX_GRAD_NORM)
    sums, of_movable = run.processes.sum(sums), run.processes.sum(of_movable)
    shares = zip(OF_MOVABLE, of_movable / sums[1].clamp(min=1), strict=True)
    return {**means_of(sums), **dict(shares), "grad_norm": grad_norm}


def train(config: Config, run: SeedsRun) -> AnyModel:
    """Train all seeds of a run; returns their policies."""
    run.processes.share(config.prompts)  # a group stays in one process
    policy = load_policy(config, run)
    task = models.task_of(config, policy.config, policy.tokenizer)
    reference, reward_model, optimizer = policy.frozen(), None, policy.optimizer()
    if config.reward_model:
        reward_model = load_scalars(config.reward_model, config, policy, run, "--reward-model")
    evaluator = TaskEvaluator(policy, task, config, reference)
    G = config.group_size

    step, _ = run.restore(policy, optimizer)
    run.evaluate_if_due(evaluator)
    while run.samples < config.total_samples:
        learning = run.unfinished
        lr = rates_of(run, config)
        drawn, graded, places = collect_step(policy, task, config, run, step)
        ref = drawn.logprobs
        if used(config.kl_coef):
            ref = reference.logprobs(drawn, config.temperature)
        rewards = rewards_of(graded, drawn, reward_model, config)
        returns = rewards - kl_of_rewards(drawn, ref, config)
        groups = group_advantages(returns.unflatten(1, (-1, G)))
        advantages = groups.flatten(1).unsqueeze(-1).expand_as(drawn.tokens)
        learned = drawn.mask
        if config.overlong_filtering:
            learned = learned & drawn.ended.unsqueeze(-1)
        batch = Draws(
            **vars(drawn), reference=ref, advantages=advantages, learned=learned, places=places
        )

        updates, took = [], []
        for rows, there in minibatches(places, run, step, config):
            updates.append(update(policy, optimizer, batch, rows, lr, config, run))
            took.append(there.to(run.device))

        step += 1
        samples = run.processes.size * (drawn.lengths > 0).sum(1)
        share = torch.stack(took, 1) / torch.stack(took, 1).sum(1, keepdim=True)
        metrics = {k: total(torch.stack([x[k] for x in updates], 1) * share) for k in updates[0]}
        metrics |= sample_metrics(drawn, graded, rewards, G, run)
        run.log(samples, {**metrics, "drawn": samples}, learning)
        run.save_if_due(step, policy, optimizer)
        run.evaluate_if_due(evaluator)
    return policy


if __name__ == "__main__":
    main(parse(Config, PRESETS, __doc__), train, PRESETS)
