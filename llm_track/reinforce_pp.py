"""REINFORCE++ (Hu et al. 2025, arXiv 2501.03262) of a language model.

    python llm_track/reinforce_pp.py --task addition

PPO's clip without a critic and without groups: advantages are normalised over the whole batch, not
within each prompt, whose few samples make a poor and biased deviation (eqs. 8 to 10).

    J(theta) = E[ 1 / (sum_i |o_i|) sum_i sum_t min(r_{i,t} A_{i,t}, clip(r_{i,t}, 1 - eps, 1 + eps)
                  A_{i,t}) ]

    A_{i,t} = (B_{i,t} - mean(B)) / std(B)                        over all tokens of the batch

    B_{i,t} = R_i - beta sum_{u >= t} log(pi_old(o_{i,u}) / pi_ref(o_{i,u}))   without a baseline
    B_{i,t} = R_i - mean(R of the group) - the same                            --baseline group

The paper's "REINFORCE++-baseline" has k2 in the loss instead, whose gradient is the KL's:
`--baseline group --group-size 8 --prompts 32 --kl-estimator k2 --kl-in loss`.

`diff llm_track/grpo.py llm_track/reinforce_pp.py` shows the method.

Shapes: K prompts with G completions each, B = K G; T tokens of the longest completion.

Implementation details, and where defaults leave the paper:
 1. The reward is 1 for a right answer plus `--format-weight` for the format, both by rules. A
    reward model's score (`--reward-model`) is added to it, or is the whole reward (`--no-rules`).
 2. Every prompt is sampled once (`--group-size 1`), so a batch has as many prompts as GRPO's has
    completions.
 3. The KL in the reward is that of the tokens that a token can still change: those from it on. It
    is k1.
 4. The deviation is the population's; 1e-8 is added to the variance (OpenRLHF: its least value).
    Where all returns of a batch are equal, advantages are exactly 0.
 5. The mean is over all tokens of a minibatch.
 6. One pass over the samples in four minibatches.
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
from typing import Any, Literal

import torch
from torch import Tensor

from manyseeds.cli import NonNegative, PerRow, PositiveInt, Preset
from manyseeds.errors import UsageError
from manyseeds.llm_track import models
from manyseeds.llm_track.evaluation import TaskEvaluator
from manyseeds.llm_track.policies import AnyModel, load_policy, load_scalars
from manyseeds.llm_track.rollout import (
    Batch,
    GroupConfig,
    clip_bounds,
    collect,
    kl_of_tokens,
    mean_of_updates,
    means_of,
    minibatches,
    regularizer,
    rewards_of,
    sample_metrics,
    token_sums,
    tokens_of,
    total,
    whiten,
    with_signal,
)
from manyseeds.portable import exp
from manyseeds.rows import Row, broadcast, used
from manyseeds.runs.language_seeds import SeedsRun, main

MAX_GRAD_NORM = 1.0


@dataclass(frozen=True, kw_only=True)
class Config(GroupConfig):
    """REINFORCE++."""

    prompts: PositiveInt = 256
    """K, prompts per step."""
    group_size: PositiveInt = 1
    """G, completions sampled for each prompt."""
    clip_range: PerRow[NonNegative] = 0.2
    """Epsilon of the clipped objective (0: no clipping)."""
    baseline: Literal["none", "group"] = "none"
    """What is subtracted from the reward before the batch is normalised: the group's mean."""
    kl_coef: PerRow[NonNegative] = 0.01
    """Beta, weight of the KL to the reference policy."""
    kl_estimator: Literal["k1", "k2", "k3", "corrected"] = "k1"
    """Estimator of the KL. corrected: k3 times the ratio, whose gradient is the KL's."""
    kl_in: Literal["loss", "reward"] = "reward"
    """Where the KL is subtracted: from each token's objective, or from the reward."""

    def check(self) -> None:
        super().check()
        if self.baseline == "group" and self.group_size == 1:
            raise UsageError("--baseline group: needs --group-size 2 or more")


PRESETS = {
    "addition": Preset(
        {},
        source="the defaults: GRPO's rates, and a small beta; not searched",
    ),
    **dict.fromkeys(
        ("mixed", "countdown", "rambling", "checking"), Preset({}, source="addition's")
    ),
}


# ---- Advantages ----------------------------------------------------------------------------


def token_returns(rewards: Tensor, penalties: Tensor, group_size: int | None) -> Tensor:
    """B of each token, [S, B, T], from rewards [S, B] and what the KL takes at each token.

    group_size: of a group whose mean is the baseline; None: there is none.
    """
    if group_size is not None:
        groups = rewards.unflatten(1, (-1, group_size))
        varied = groups.amax(-1, keepdim=True) > groups.amin(-1, keepdim=True)
        rewards = torch.where(varied, groups - groups.mean(-1, keepdim=True), 0.0).flatten(1)
    to_come = penalties.flip(-1).cumsum(-1).flip(-1)
    return rewards.unsqueeze(-1) - to_come


# ---- The loss ------------------------------------------------------------------------------


def token_weights(mask: Tensor, tokens: Tensor) -> Tensor:
    """1 / sum_i |o_i| for each token, [S, B, T]; tokens: how many a minibatch has, [S, 1, 1]."""
    return mask / tokens


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
    tokens = tokens_of(batch, rows, run)
    sums = torch.zeros(7, len(rows), device=run.device)
    for part in policy.parts(with_signal(batch, config), rows):
        logprobs, entropy = policy.outputs(part, config.temperature, used(config.entropy_coef))
        weights = token_weights(part.mask, tokens)
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
        group = config.group_size if config.baseline == "group" else None
        returns = token_returns(rewards, kl_of_tokens(rollout, ref, config), group)
        advantages = whiten(returns, rollout.mask, run.processes)
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
