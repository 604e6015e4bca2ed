"""Dr. GRPO, "GRPO done right" (Liu et al. 2025, arXiv 2503.20783), for a language model.

    python llm_track/dr_grpo.py --task addition

GRPO without its two divisions, which bias the gradient (sec. 3.1):

    1/|o_i|   a long wrong answer is punished less per token than a short one: they grow longer
    1/std(R)  questions that are nearly always, or nearly never, answered right weigh more

What remains (`diff llm_track/grpo.py llm_track/dr_grpo.py`) is the policy gradient with the group's
mean as its baseline. T_max, the longest completion's length, keeps its scale, as in their code.

    J(theta) = E[ 1/G sum_i 1/T_max sum_t min(r_{i,t} A_i, clip(r_{i,t}, 1 - eps, 1 + eps) A_i) ]

    A_i = R_i - mean(R)

Shapes: K prompts with G completions each, B = K G; T tokens of the longest completion.

Implementation details, and where defaults leave the paper:
 1. The reward is 1 for a right answer plus `--format-weight` for the format, both by rules. A
    reward model's score (`--reward-model`) is added to it, or is the whole reward (`--no-rules`).
 2. A group whose rewards are all equal has advantages of exactly 0, not rounding noise.
 3. The mean in A_i includes R_i itself, which scales the gradient by 1 - 1/G (appendix A).
 4. No KL to a reference by default: with rewards by rules it is not needed (sec. 3.2).
 5. One pass over the samples in four minibatches (the paper: in one, where the ratio is 1 and the
    clip never acts).
 6. Every loss is a sum of weighted token terms whose weights know the whole minibatch: how it is
    divided into micro-batches and processes does not matter.
 7. pi_old's log-probabilities are those of the sampling itself, unless it computed in bfloat16:
    there they differ from a forward pass's by up to 0.6, and are recomputed.
 8. AdamW without weight decay, learning rate 3e-4 for the tiny model (the paper: 1e-6 for 7B), no
    schedule; the gradient is clipped to a norm of 1. No step is taken on a gradient of exactly 0:
    Adam would drift on; nor on NaN or infinity.
 9. Logits are divided by `--temperature` in sampling and in training.

Logged per step: reward, accuracy, format, length and entropy (nats per token) of the samples; of
its minibatches (means) loss, grad_norm, and over the tokens that they learn from kl (k3 to the
reference; to pi_old where `--kl-coef` is 0), clipfrac (ratios outside the clip range), clip_low and
clip_high (where the clip removes the gradient: of a negative advantage, of a positive one),
approx_kl (k3 to pi_old); all_solved and all_failed, the shares of groups without a signal.
"""

from __future__ import annotations

from manyseeds.command import parse

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from manyseeds.cli import NonNegative, PerRow, Preset
from manyseeds.llm_track import models
from manyseeds.llm_track.evaluation import TaskEvaluator
from manyseeds.llm_track.policies import AnyModel, load_policy, load_scalars
from manyseeds.llm_track.rollout import (
    Batch,
    GroupConfig,
    clip_bounds,
    collect,
    kl_of_rewards,
    mean_of_updates,
    means_of,
    minibatches,
    regularizer,
    rewards_of,
    sample_metrics,
    token_sums,
    total,
    with_signal,
)
from manyseeds.portable import exp
from manyseeds.rows import Row, broadcast, used
from manyseeds.runs.language_seeds import SeedsRun, main

MAX_GRAD_NORM = 1.0


@dataclass(frozen=True, kw_only=True)
class Config(GroupConfig):
    """Dr. GRPO."""

    clip_range: PerRow[NonNegative] = 0.2
    """Epsilon of the clipped objective (0: no clipping)."""


PRESETS = {
    "addition": Preset(
        {},
        source="the defaults; our own search on an earlier tiny model, one seed, 12,800 samples: "
        "learning rates 3e-4 and 6e-4, 1 and 2 epochs",
    ),
    **dict.fromkeys(
        ("mixed", "countdown", "rambling", "checking"), Preset({}, source="addition's")
    ),
}


# ---- Advantages ----------------------------------------------------------------------------


def group_advantages(rewards: Tensor) -> Tensor:
    """Rewards [S, K, G] compared with the mean of their group; 0 where they are all equal."""
    varied = rewards.amax(-1, keepdim=True) > rewards.amin(-1, keepdim=True)
    return torch.where(varied, rewards - rewards.mean(-1, keepdim=True), 0.0)


# ---- The loss ------------------------------------------------------------------------------


def token_weights(mask: Tensor, samples: int, longest: int) -> Tensor:
    """1 / (N T_max) for each token, [S, B, T]: a sum over a completion, by a constant."""
    return mask / (samples * longest)


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
    sums = torch.zeros(7, len(rows), device=run.device)
    for part in policy.parts(with_signal(batch, config), rows):
        logprobs, entropy = policy.outputs(part, config.temperature, used(config.entropy_coef))
        weights = token_weights(part.mask, rows.shape[1], models.completion_tokens(config))
        losses = policy_loss(logprobs, entropy, part, weights, config)
        losses.sum().backward()
        ratio = ratio_of(logprobs, part)
        sums += token_sums(losses, logprobs, ratio, part, part.mask, *clip_bounds(config))
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
