"""CISPO, clipped importance sampling weights (MiniMax-M1, 2025, arXiv 2506.13585).

    python llm_track/cispo.py --task addition

PPO's clip removes the gradient of tokens whose ratio has moved too far; among them are the rare
ones at which a thought turns. CISPO keeps the gradient of every token and clips its weight
(eqs. 4 and 5; sg: no gradient flows through):

    J(theta) = E[ 1 / (sum_i |o_i|) sum_i sum_t sg(min(r_{i,t}, eps)) A_i log pi_theta(o_{i,t}) ]

    A_i = (R_i - mean(R)) / std(R)

`diff llm_track/grpo.py llm_track/cispo.py` shows the method.

Shapes: K prompts with G completions each, B = K G; T tokens of the longest completion.

Implementation details, and where defaults leave the paper:
 1. The reward is 1 for a right answer plus `--format-weight` for the format, both by rules. A
    reward model's score (`--reward-model`) is added to it, or is the whole reward (`--no-rules`).
 2. A group whose rewards are all equal has advantages of exactly 0, not rounding noise.
 3. Deviations are the sample's (ddof 1), 1e-4 is added (as TRL).
 4. Weights have an upper bound and no lower one, as in the paper's experiments; it gives no number
    for it. 5 is from ScaleRL (arXiv 2510.13786), which finds 4 to 8 alike.
 5. The mean is over all tokens of a minibatch: each of them has the same weight, as in DAPO.
 6. No KL to a reference by default, as in the paper.
 7. One pass over the samples in four minibatches (the paper: up to 16 steps).
 8. Every loss is a sum of weighted token terms whose weights know the whole minibatch: how it is
    divided into micro-batches and processes does not matter.
 9. pi_old's log-probabilities are those of the sampling itself, unless it computed in bfloat16:
    there they differ from a forward pass's by up to 0.6, and are recomputed.
10. AdamW without weight decay, learning rate 3e-4 for the tiny model, no
    schedule; the gradient is clipped to a norm of 1. No step is taken on a gradient of exactly 0:
    Adam would drift on; nor on NaN or infinity.
11. Logits are divided by `--temperature` in sampling and in training.

Logged per step: reward, accuracy, format, length and entropy (nats per token) of the samples; of
its minibatches (means) loss, grad_norm, and over the tokens that they learn from kl (k3 to the
reference; to pi_old where `--kl-coef` is 0), clipfrac (ratios above the bound), clip_low (0) and
clip_high (those of a positive advantage; weights of negative ones are cut as well), approx_kl (k3
to pi_old); all_solved and all_failed, the shares of groups without a signal.
"""

from __future__ import annotations

from manyseeds.command import parse

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from manyseeds.cli import PerRow, Positive, Preset
from manyseeds.llm_track import models
from manyseeds.llm_track.evaluation import TaskEvaluator
from manyseeds.llm_track.policies import AnyModel, load_policy, load_scalars
from manyseeds.llm_track.rollout import (
    Batch,
    GroupConfig,
    collect,
    kl_of_rewards,
    mean_of_updates,
    means_of,
    minibatches,
    regularizer,
    rewards_of,
    sample_metrics,
    token_sums,
    tokens_of,
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
    """CISPO."""

    clip_range_high: PerRow[Positive] = 5.0
    """Largest weight of a token, the ratio's upper bound."""


PRESETS = {
    "addition": Preset(
        {},
        source="the defaults: GRPO's; not searched",
    ),
    **dict.fromkeys(
        ("mixed", "countdown", "rambling", "checking"), Preset({}, source="addition's")
    ),
}


# ---- Advantages ----------------------------------------------------------------------------


def group_advantages(rewards: Tensor) -> Tensor:
    """Rewards [S, K, G] compared within each group; 0 where they are all equal."""
    mean, std = rewards.mean(-1, keepdim=True), rewards.std(-1, keepdim=True)
    varied = rewards.amax(-1, keepdim=True) > rewards.amin(-1, keepdim=True)
    return torch.where(varied, (rewards - mean) / (std + EPS), 0.0)


# ---- The loss ------------------------------------------------------------------------------


def token_weights(mask: Tensor, tokens: Tensor) -> Tensor:
    """1 / sum_i |o_i| for each token, [S, B, T]; tokens: how many a minibatch has, [S, 1, 1]."""
    return mask / tokens


def ratio_of(logprobs: Tensor, batch: Batch) -> Tensor:
    """pi_theta / pi_old of each token, [S, B, T]."""
    return exp(logprobs - batch.logprobs)


def surrogate(logprobs: Tensor, ratio: Tensor, advantages: Tensor, high: Row) -> Tensor:
    """The objective of each token, [S, B, T]."""
    return ratio.detach().clamp(max=broadcast(high, ratio)) * advantages * logprobs


def policy_loss(
    logprobs: Tensor, entropy: Tensor, batch: Batch, weights: Tensor, config: Config
) -> Tensor:
    """This part's share of each seed's minibatch loss, [S]; all tensors [S, B, T]."""
    objective = surrogate(
        logprobs, ratio_of(logprobs, batch), batch.advantages, config.clip_range_high
    )
    return -total(weights * (objective - regularizer(logprobs, entropy, batch, config)))


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
    for part in policy.parts(with_signal(batch, config), rows):
        logprobs, entropy = policy.outputs(part, config.temperature, used(config.entropy_coef))
        weights = token_weights(part.mask, tokens)
        losses = policy_loss(logprobs, entropy, part, weights, config)
        losses.sum().backward()
        ratio = ratio_of(logprobs, part)
        sums += token_sums(
            losses, logprobs, ratio, part, part.mask, -math.inf, config.clip_range_high
        )
    grad_norm = optimizer.step(lr, MAX_GRAD_NORM)
    return {**means_of(run.processes.sum(sums)), "grad_norm": grad_norm}


def train(config: Config, run: SeedsRun) -> AnyModel:
    """Train all seeds of a run; returns their policies."""
    run.processes.share(config.prompts)  # a group stays in one process
    policy = load_policy(config, run)
    task = models.task_of(config, policy.config, policy.tokenizer)
    reference, reward_model, optimizer = policy.frozen(), None, policy.optimizer()
    if config.reward_model:
        reward_model = load_scalars(config.reward_model, config, policy, run, "--reward-model")
    evaluator = TaskEvaluator(policy, task, config, reference)
    B, G = config.prompts * config.group_size, config.group_size

    step, _ = run.restore(policy, optimizer)
    run.evaluate_if_due(evaluator)
    while run.samples < config.total_samples:
        done = run.samples / config.total_samples
        lr = models.learning_rate(config.learning_rate, done, config)
        rollout, graded = collect(policy, task, config, run, step)
        ref = rollout.logprobs
        if used(config.kl_coef):
            ref = reference.logprobs(rollout, config.temperature)
        rewards = rewards_of(graded, rollout, reward_model, config)
        returns = rewards - kl_of_rewards(rollout, ref, config)
        groups = group_advantages(returns.unflatten(1, (-1, G)))
        advantages = groups.flatten(1).unsqueeze(-1).expand_as(rollout.tokens)
        batch = Batch(**vars(rollout), reference=ref, advantages=advantages)

        updates = [
            update(policy, optimizer, batch, rows, lr, config, run)
            for rows in minibatches(run, step, B, config)
        ]

        step += 1
        metrics = mean_of_updates(updates)
        metrics |= sample_metrics(rollout, graded, rewards, G, run)
        run.log(B, metrics)
        run.save_if_due(step, policy, optimizer)
        run.evaluate_if_due(evaluator)
    return policy


if __name__ == "__main__":
    main(parse(Config, PRESETS, __doc__), train, PRESETS)
