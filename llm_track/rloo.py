"""RLOO, REINFORCE with a leave-one-out baseline (Ahmadian et al. 2024, arXiv 2402.14740).

    python llm_track/rloo.py --task addition

A whole completion is one action, and the baseline of each is the mean reward of the others of its
group (Kool et al. 2019), which leaves the gradient unbiased:

    J(theta) = E[ 1/G sum_i min(r_i A_i, clip(r_i, 1 - eps, 1 + eps) A_i) ]

    r_i = pi_theta(o_i | q) / pi_old(o_i | q) = prod_t r_{i,t}

    A_i = R_i - 1/(G - 1) sum_{j != i} R_j = G/(G - 1) (R_i - mean(R))

    R_i = reward - beta sum_t log(pi_old(o_{i,t}) / pi_ref(o_{i,t}))    the KL is in the reward

In the first minibatch r_i = 1, and with `--minibatches 1` this is REINFORCE. `--learn-from wrong`
has A_i = -1 for wrong completions and 0 for right ones, `right` 1 and 0 (Zhu et al. 2025, arXiv
2506.01347). `diff llm_track/dr_grpo.py llm_track/rloo.py` shows the method: no token has a ratio of
its own.

Shapes: K prompts with G completions each, B = K G; T tokens of the longest completion.

Implementation details, and where defaults leave the paper:
 1. The reward is 1 for a right answer plus `--format-weight` for the format, both by rules. A
    reward model's score (`--reward-model`) is added to it, or is the whole reward (`--no-rules`).
 2. A group whose rewards are all equal has advantages of exactly 0, not rounding noise (but for
    `--learn-from`, which has no baseline, and no reward but 1 or -1).
 3. The clip, and several minibatches, are TRL's: the paper takes one step on new samples, where
    they do nothing. The ratio of a completion is a product, and moves further than a token's.
 4. One pass over the samples in four minibatches (the paper: one).
 5. Every loss is a sum of weighted token terms whose weights know the whole minibatch: how it is
    divided into micro-batches and processes does not matter.
 6. pi_old's log-probabilities are those of the sampling itself, unless it computed in bfloat16:
    there they differ from a forward pass's by up to 0.6, and are recomputed.
 7. AdamW without weight decay, learning rate 3e-4 for the tiny model (TRL: 1e-6), no
    schedule; the gradient is clipped to a norm of 1. No step is taken on a gradient of exactly 0:
    Adam would drift on; nor on NaN or infinity.
 8. Logits are divided by `--temperature` in sampling and in training.

Logged per step: reward, accuracy, format, length and entropy (nats per token) of the samples; of
its minibatches (means) loss, grad_norm, and over the tokens that they learn from kl (k3 to the
reference; to pi_old where `--kl-coef` is 0), clipfrac (ratios outside the clip range), clip_low and
clip_high (where the clip removes the gradient: of a negative advantage, of a positive one),
approx_kl (k3 to pi_old); all_solved and all_failed, the shares of groups without a signal.
"""

from __future__ import annotations

from manyseeds.command import parse

from dataclasses import dataclass
from typing import Annotated, Any, Literal

import torch
from torch import Tensor

from manyseeds.cli import Added, NonNegative, PerRow, Preset
from manyseeds.errors import UsageError
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
    measured,
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
LARGEST = 80.0  # log of a ratio, of which a float32 can hold the exponential


@dataclass(frozen=True, kw_only=True)
class Config(GroupConfig):
    """RLOO."""

    clip_range: PerRow[NonNegative] = 0.2
    """Epsilon of the clipped objective (0: no clipping)."""
    kl_coef: PerRow[NonNegative] = 0.04
    """Beta, weight of the KL to the reference policy."""
    kl_estimator: Literal["k1", "k2", "k3", "corrected"] = "k1"
    """Estimator of the KL. corrected: k3 times the ratio, whose gradient is the KL's."""
    kl_in: Literal["loss", "reward"] = "reward"
    """Where the KL is subtracted. loss: from the objective. reward: before any division."""
    learn_from: Annotated[Literal["all", "right", "wrong"], Added("all")] = "all"
    """Completions that are learned from. right: with a reward of 1 and without a baseline. wrong:
    likewise with -1."""

    def check(self) -> None:
        super().check()
        if self.learn_from != "all" and (self.reward or self.reward_model or not self.rules):
            raise UsageError(
                f"--learn-from {self.learn_from}: is the reward; without --reward, --reward-model "
                "and --no-rules"
            )


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
    """Rewards [S, K, G] less the mean of the others of their group; 0 where they are all equal."""
    G = rewards.shape[-1]
    varied = rewards.amax(-1, keepdim=True) > rewards.amin(-1, keepdim=True)
    others = (rewards.sum(-1, keepdim=True) - rewards) / (G - 1)
    return torch.where(varied, rewards - others, 0.0)


def rewards_alone(accuracy: Tensor, learn_from: str) -> Tensor:
    """1 for right completions, or -1 for wrong ones, 0 for the others, [S, B]."""
    return accuracy if learn_from == "right" else accuracy - 1


# ---- The loss ------------------------------------------------------------------------------


def token_weights(mask: Tensor, samples: int) -> Tensor:
    """1 / (N |o_i|) for each token, [S, B, T]: the mean over a completion, then over N of them."""
    return mask / mask.sum(-1, keepdim=True).clamp(min=1) / samples


def ratio_of(logprobs: Tensor, batch: Batch) -> Tensor:
    """pi_theta / pi_old of the whole completion, at each of its tokens, [S, B, T]."""
    logs = ((logprobs - batch.logprobs) * batch.mask).cumsum(-1)[..., -1:]
    return at_every_token(exp(logs.clamp(max=LARGEST)), logprobs)


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
        kl = kl_of_rewards(rollout, ref, config)
        advantages = group_advantages((rewards - kl).unflatten(1, (-1, G))).flatten(1)
        if config.learn_from != "all":
            accuracy = measured(graded, "accuracy", rollout)
            advantages = rewards_alone(accuracy, config.learn_from) - kl
        advantages = advantages.unsqueeze(-1).expand_as(rollout.tokens)
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
