"""GSPO, group sequence policy optimization (Zheng et al. 2025, arXiv 2507.18071).

    python llm_track/gspo.py --task addition

GRPO with one ratio for a whole completion, as it is whole completions that are rewarded. It is the
geometric mean of the tokens' ratios, so that long completions do not leave the clip range by their
length alone, and clipping concerns completions instead of tokens (eqs. 5 to 7):

    J(theta) = E[ 1/G sum_i min(s_i A_i, clip(s_i, 1 - eps, 1 + eps_high) A_i) ]

    s_i = (pi_theta(o_i | q) / pi_old(o_i | q))^(1/|o_i|) = exp( 1/|o_i| sum_t log r_{i,t} )

    A_i = (R_i - mean(R)) / std(R)

`diff llm_track/grpo.py llm_track/gspo.py` shows the method.

Shapes: K prompts with G completions each, B = K G; T tokens of the longest completion.

Implementation details, and where defaults leave the paper:
 1. The reward is 1 for a right answer plus `--format-weight` for the format, both by rules. A
    reward model's score (`--reward-model`) is added to it, or is the whole reward (`--no-rules`).
 2. A group whose rewards are all equal has advantages of exactly 0, not rounding noise.
 3. Deviations are the sample's (ddof 1), 1e-4 is added (as TRL).
 4. The clip range is the paper's, 3e-4 below and 4e-4 above: means over hundreds of tokens move
    little. Those of the tiny model's thirty move further: see the preset.
 5. No KL to a reference by default (TRL's advice: the paper leaves it out of the formula).
 6. One pass over the samples in four minibatches (as the paper).
 7. Every loss is a sum of weighted token terms whose weights know the whole minibatch: how it is
    divided into micro-batches and processes does not matter.
 8. pi_old's log-probabilities are those of the sampling itself, unless it computed in bfloat16:
    there they differ from a forward pass's by up to 0.6, and are recomputed.
 9. AdamW without weight decay, learning rate 3e-4 for the tiny model, no
    schedule; the gradient is clipped to a norm of 1. No step is taken on a gradient of exactly 0:
    Adam would drift on; nor on NaN or infinity.
10. Logits are divided by `--temperature` in sampling and in training.

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
    at_every_token,
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

EPS = 1e-4
MAX_GRAD_NORM = 1.0


@dataclass(frozen=True, kw_only=True)
class Config(GroupConfig):
    """GSPO."""

    clip_range: PerRow[NonNegative] = 3e-4
    """Epsilon of the clipped objective (0: no clipping)."""
    clip_range_high: PerRow[NonNegative] = 4e-4
    """Upper epsilon of the clipped objective (0: --clip-range)."""


PRESETS = {
    "addition": Preset(
        {"clip_range": 0.2, "clip_range_high": 0.2},
        source="GRPO's clip range; the paper's for long completions",
    ),
    **dict.fromkeys(
        ("mixed", "countdown", "rambling", "checking"),
        Preset({"clip_range": 0.2, "clip_range_high": 0.2}, source="addition's"),
    ),
}


# ---- Advantages ----------------------------------------------------------------------------


def group_advantages(rewards: Tensor) -> Tensor:
    """Rewards [S, K, G] compared within each group; 0 where they are all equal."""
    mean, std = rewards.mean(-1, keepdim=True), rewards.std(-1, keepdim=True)
    varied = rewards.amax(-1, keepdim=True) > rewards.amin(-1, keepdim=True)
    return torch.where(varied, (rewards - mean) / (std + EPS), 0.0)


# ---- The loss ------------------------------------------------------------------------------


def token_weights(mask: Tensor, samples: int) -> Tensor:
    """1 / (N |o_i|) for each token, [S, B, T]: the mean over a completion, then over N of them."""
    return mask / mask.sum(-1, keepdim=True).clamp(min=1) / samples


def ratio_of(logprobs: Tensor, batch: Batch) -> Tensor:
    """The geometric mean of pi_theta / pi_old over the completion, at each token, [S, B, T]."""
    logs = ((logprobs - batch.logprobs) * batch.mask).cumsum(-1)[..., -1:]
    mean = logs / batch.lengths.clamp(min=1).unsqueeze(-1)
    return at_every_token(exp(mean), logprobs)


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
        weights = token_weights(part.mask, rows.shape[1])
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
