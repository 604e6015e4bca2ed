"""Proximal policy optimization of a language model (Ouyang et al. 2022, arXiv 2203.02155).

    python llm_track/rlhf_ppo.py --task addition

The third step of InstructGPT (sec. 3.5), after "The N implementation details of RLHF with PPO"
(Huang et al. 2024, arXiv 2403.17031; vwxyzjn/summarize_from_feedback_details). A completion o of a
prompt q is an episode: its tokens are the actions, and the text before a token is the state s_t =
(q, o_{<t}). Every token has a KL penalty to the reference; the last one also has the reward R:

    r_t     = -beta log(pi_old(o_t | s_t) / pi_ref(o_t | s_t)) + (R if t is the last token)
    delta_t = r_t + gamma V(s_{t+1}) - V(s_t),      V = 0 after the last token
    A_t     = delta_t + gamma lambda A_{t+1}        (GAE, arXiv 1506.02438, eq. 16)
    L       = -E[ min(ratio A, clip(ratio, 1 - eps, 1 + eps) A) ]
              + c E[ 1/2 max((V - G)^2, (clip(V, V_old - eps_v, V_old + eps_v) - G)^2) ]
    ratio_t = pi_theta(o_t | s_t) / pi_old(o_t | s_t),   G_t = A_t + V_old(s_t)

GRPO is PPO without the critic: `diff llm_track/rlhf_ppo.py llm_track/grpo.py`. For control:
algos/ppo.py.

Shapes: K prompts with G completions each, B = K G; T tokens of the longest completion.

Implementation details, and where defaults leave the source (N: Huang et al. 2024):
 1. The reward is 1 for a right answer plus `--format-weight` for the format, both by rules. A
    reward model's score (`--reward-model`) is added to it, or is the whole reward (`--no-rules`),
    as in the paper.
 2. The KL is part of every token's reward; the score is added at the last token, which is the end
    of sequence itself, as in N (its reference implementation takes the token after it in later
    versions).
 3. A completion that is cut off loses `--missing-eos-penalty` from its reward. (N sets its score
    to -1. The difference keeps the order among such completions.) Cut off or not, a completion is
    over after its last token: nothing is bootstrapped from there.
 4. The critic is a model of its own with a scalar head: the reward model where there is one, as in
    the paper, otherwise the policy's model with a head that begins at 0. It is trained whole, with
    `--lora-rank` too. V(s_t) is read after the token before o_t: the first one at the prompt's last
    token, so the completion's mask is shifted by one (N: "value mask").
 5. Advantages are whitened over all tokens of a step, padding left out, with the population's
    variance plus 1e-8. Rewards are not whitened (N: they are, their mean kept; TRL: not).
 6. Losses are means over all tokens of a minibatch. Every loss is a sum of weighted token terms
    whose weights know the whole minibatch: how it is divided into micro-batches and processes does
    not matter.
 7. The value loss is clipped (N and SB3's `clip_range_vf`); `--clip-value-range 0` disables it.
 8. pi_old's log-probabilities are those of the sampling itself, unless it computed in bfloat16:
    there they differ from a forward pass's by up to 0.6, and are recomputed.
 9. AdamW without weight decay and without a schedule, one for the policy and one for the critic;
    the gradient of each is clipped to a norm of 1. Learning rates are for the tiny model (N: 3e-6
    for both, annealed linearly to 0, epsilon 1e-5, no clipping). No step is taken on a gradient of
    exactly 0: Adam would drift on; nor on NaN or infinity.
10. Logits are divided by `--temperature` in sampling and in training; it is 1 (N: 0.7).
11. Two passes over the samples of a step (N: four); `--gae-lambda` is 1 in the presets (N: 0.95).
12. No pretraining loss is mixed in (the paper's PPO-ptx).

Logged per step: reward (with what is lost by being cut off), accuracy, format, length and entropy
(nats per token) of the samples, all_solved and all_failed (shares of groups of equal prompts; with
G = 1 of completions); of its minibatches (means) loss, policy_loss, value_loss, kl (k3 to the
reference), clipfrac (ratios outside the clip range), clip_low and clip_high (where the clip removes
the gradient: of a negative advantage, of a positive one), approx_kl (k3 to pi_old), grad_norm,
critic_grad_norm; explained_variance of the returns by V_old.
"""

from __future__ import annotations

from manyseeds.command import parse

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn.functional import pad

from manyseeds.cli import Fraction, NonNegative, PerRow, Positive, PositiveInt, Preset
from manyseeds.llm_track import models
from manyseeds.llm_track.evaluation import TaskEvaluator
from manyseeds.llm_track.policies import AnyModel, load_policy, load_scalars
from manyseeds.llm_track.rewards import RewardConfig
from manyseeds.llm_track.rollout import (
    OF_TOKENS,
    Rollout,
    check_batch,
    clip_bounds,
    collect,
    mean_of_updates,
    minibatches,
    moments,
    of_tokens,
    rewards_of,
    sample_metrics,
    tokens_of,
    total,
    whiten,
)
from manyseeds.portable import exp
from manyseeds.rows import Row, broadcast, used
from manyseeds.runs.language_seeds import SeedsRun, main

MAX_GRAD_NORM = 1.0


@dataclass(frozen=True, kw_only=True)
class Config(RewardConfig):
    """PPO of a language model."""

    RATES: ClassVar = {"learning_rate": (1e-6, 1e-5), "critic_learning_rate": (1e-5, 1e-5)}

    prompts: PositiveInt = 256
    """K, prompts per step."""
    group_size: PositiveInt = 1
    """G, completions sampled for each prompt."""
    minibatches: PositiveInt = 4
    """Number of minibatches in each pass over the samples."""
    epochs: PositiveInt = 2
    """Passes over the samples of a step."""
    learning_rate: PerRow[Positive] = 3e-4
    """Learning rate of the policy's AdamW."""
    critic_learning_rate: PerRow[Positive] = 3e-3
    """Learning rate of the critic's AdamW."""
    temperature: PerRow[Positive] = 1.0
    """Sampling temperature."""
    gamma: PerRow[Fraction] = 1.0
    """Discount factor per token."""
    gae_lambda: PerRow[Fraction] = 0.95
    """Lambda of GAE. 0 gives the one-step TD error, 1 the Monte Carlo advantage."""
    clip_range: PerRow[NonNegative] = 0.2
    """Epsilon of the clipped objective (0: no clipping)."""
    clip_value_range: PerRow[NonNegative] = 0.2
    """Largest change of the value prediction (0: no clipping)."""
    value_coef: PerRow[NonNegative] = 0.1
    """Weight of the value loss."""
    kl_coef: PerRow[NonNegative] = 0.05
    """Beta, weight of the KL to the reference policy. The KL is subtracted from the reward."""
    missing_eos_penalty: PerRow[NonNegative] = 1.0
    """Penalty subtracted from the reward of a truncated completion."""

    def check(self) -> None:
        super().check()
        check_batch(self)


# Our own search on addition with earlier tiny models, 12,800 samples, one seed (100), 2 passes in 4
# minibatches unless said; pass@1 in brackets. From a model of 0.46: lambda 1 with the critic's
# learning rate 3e-3 (0.836) or 1e-3 (0.771); with 3e-3 and the policy's at 5e-4 (0.790), with 1e-3
# and 6e-4 (0.755); lambda 0.95 with 3e-3 (0.791). From a model of 0.27, critic 1e-3: lambda 1
# (0.726); lambda 0.95 (0.711), 4 passes (0.733, in 1.7 times the time), 1 pass in 8 minibatches
# (0.621), the same with lambda 1 and 5e-4 (0.673). With one seed differences of 0.05 say little.
PRESETS = {
    "addition": Preset(
        {"gae_lambda": 1.0}, source="our own search: the best of 10 settings, 1 seed"
    ),
    **dict.fromkeys(
        ("mixed", "countdown", "rambling", "checking"),
        Preset({"gae_lambda": 1.0}, source="addition's"),
    ),
}


# ---- Rewards, values and advantages --------------------------------------------------------


def token_rewards(
    rewards: Tensor, logprobs: Tensor, reference: Tensor, mask: Tensor, kl_coef: Row
) -> Tensor:
    """The reward of each token, [S, B, T]: rewards [S, B] go to the last one, the KL to every one.

    logprobs and reference [S, B, T] are log pi_old and log pi_ref.
    """
    last = mask.sum(-1, keepdim=True) - 1
    penalties = -broadcast(kl_coef, logprobs) * (logprobs - reference) * mask
    return penalties.scatter_add(-1, last, rewards.unsqueeze(-1))


def values_of(critic: AnyModel, rollout: Rollout) -> Tensor:
    """V of the state before each token of the completions, [S, B, T], 0 outside the mask."""
    return critic.scalars(rollout)[..., :-1] * rollout.mask


def gae(rewards: Tensor, values: Tensor, mask: Tensor, gamma: Row, gae_lambda: Row) -> Tensor:
    """Generalised advantage estimates, all [S, B, T]; 0 outside the mask.

    A completion ends with its last token: neither values nor advantages come from beyond it.
    """
    rewards, values = rewards * mask, values * mask
    decay = broadcast(gamma * gae_lambda, values[..., 0])
    next_values = pad(values[..., 1:], (0, 1))
    deltas = rewards + broadcast(gamma, values) * next_values - values
    advantage, advantages = torch.zeros_like(deltas[..., 0]), []
    for t in reversed(range(deltas.shape[-1])):
        advantage = deltas[..., t] + decay * advantage
        advantages.append(advantage)
    return torch.stack(advantages[::-1], dim=-1)


# ---- The loss ------------------------------------------------------------------------------


def ratio_of(logprobs: Tensor, batch: Batch) -> Tensor:
    """pi_theta / pi_old of each token, [S, B, T]."""
    return exp(logprobs - batch.logprobs)


def surrogate(ratio: Tensor, advantages: Tensor, low: Row, high: Row) -> Tensor:
    """The clipped objective of each token, [S, B, T]."""
    clipped = ratio.clamp(min=broadcast(low, ratio)).clamp(max=broadcast(high, ratio))
    return torch.min(ratio * advantages, clipped * advantages)


def policy_loss(logprobs: Tensor, batch: Batch, weights: Tensor, config: Config) -> Tensor:
    """This part's share of each seed's policy loss, [S]; all tensors [S, B, T]."""
    objective = surrogate(ratio_of(logprobs, batch), batch.advantages, *clip_bounds(config))
    return -total(weights * objective)


def value_loss(
    values: Tensor, old_values: Tensor, returns: Tensor, weights: Tensor, config: Config
) -> Tensor:
    """This part's share of each seed's value loss, [S]; all tensors [S, B, T]."""
    losses = (values - returns).square()
    if used(config.clip_value_range):
        bound = broadcast(config.clip_value_range, values)
        change = (values - old_values).clamp(-bound, bound)
        losses = torch.max(losses, (old_values + change - returns).square())
    return 0.5 * total(weights * losses)


# ---- The training --------------------------------------------------------------------------


@dataclass(frozen=True)
class Batch(Rollout):
    """Completions to learn from; their log-probabilities are those of pi_old."""

    reference: Tensor  # [S, B, T], log pi_ref
    values: Tensor  # [S, B, T], V_old
    advantages: Tensor  # [S, B, T], whitened
    returns: Tensor  # [S, B, T]


def prepare(
    rollout: Rollout,
    rewards: Tensor,
    critic: AnyModel,
    reference: Any,
    config: Config,
    run: SeedsRun,
) -> tuple[Batch, Tensor]:
    """What the update needs of completions and their rewards [S, B]; the explained variance [S]."""
    ref, mask = rollout.logprobs, rollout.mask
    if used(config.kl_coef):
        ref = reference.logprobs(rollout, config.temperature)
    with torch.no_grad():
        values = values_of(critic, rollout)
    by_token = token_rewards(rewards, rollout.logprobs, ref, mask, config.kl_coef)
    advantages = gae(by_token, values, mask, config.gamma, config.gae_lambda)
    returns = advantages + values
    # The returns' deviation from V_old is the advantage.
    (_, left), (_, all_of_it) = (moments(x, mask, run.processes) for x in (advantages, returns))
    batch = Batch(
        **vars(rollout),
        reference=ref,
        values=values,
        advantages=whiten(advantages, mask, run.processes),
        returns=returns,
    )
    return batch, 1 - left / all_of_it


def update(
    policy: AnyModel,
    critic: AnyModel,
    optimizers: Sequence[Any],
    batch: Batch,
    rows: Tensor,
    rates: Sequence[float],
    config: Config,
    run: SeedsRun,
) -> dict[str, Tensor]:
    """One gradient step of policy and critic on some rows of each seed, [S, M]; returns metrics,
    [S] each."""
    tokens = tokens_of(batch, rows, run)
    sums = torch.zeros(8, len(rows), device=run.device)
    for part in policy.parts(batch, rows):
        logprobs = policy.logprobs(part, config.temperature)
        values = values_of(critic, part)
        weights = part.mask / tokens
        of_policy = policy_loss(logprobs, part, weights, config)
        of_critic = value_loss(values, part.values, part.returns, weights, config)
        losses = of_policy + broadcast(config.value_coef, of_critic) * of_critic
        losses.sum().backward()
        with torch.no_grad():
            each = of_tokens(logprobs, ratio_of(logprobs, part), part, *clip_bounds(config))
            means = (total(weights * x) for x in each)
            sums += torch.stack([losses, of_policy, of_critic, *means])
    grad_norm, critic_grad_norm = (
        optimizer.step(lr, MAX_GRAD_NORM) for optimizer, lr in zip(optimizers, rates, strict=True)
    )
    names = ("loss", "policy_loss", "value_loss", *OF_TOKENS)
    metrics = dict(zip(names, run.processes.sum(sums), strict=True))
    return {**metrics, "grad_norm": grad_norm, "critic_grad_norm": critic_grad_norm}


def train(config: Config, run: SeedsRun) -> AnyModel:
    """Train all seeds of a run; returns their policies."""
    run.processes.share(config.prompts)  # a group stays in one process
    policy = load_policy(config, run)
    task = models.task_of(config, policy.config, policy.tokenizer)
    reference, reward_model = policy.frozen(), None
    name, flag = config.model, "--model"
    if config.reward_model:
        name, flag = config.reward_model, "--reward-model"
        reward_model = load_scalars(name, config, policy, run, flag)
    critic = load_scalars(name, config, policy, run, flag)
    optimizers = [policy.optimizer(), critic.optimizer()]
    learners = [policy, critic, *optimizers]
    evaluator = TaskEvaluator(policy, task, config, reference)
    B, G = config.prompts * config.group_size, config.group_size

    step, _ = run.restore(*learners)
    run.evaluate_if_due(evaluator)
    while run.samples < config.total_samples:
        done = run.samples / config.total_samples
        rates = [
            models.learning_rate(initial, done, config)
            for initial in (config.learning_rate, config.critic_learning_rate)
        ]
        rollout, graded = collect(policy, task, config, run, step)
        rewards = rewards_of(graded, rollout, reward_model, config)
        rewards = rewards - broadcast(config.missing_eos_penalty, rewards) * ~rollout.ended
        batch, explained_variance = prepare(rollout, rewards, critic, reference, config, run)

        updates = [
            update(policy, critic, optimizers, batch, rows, rates, config, run)
            for rows in minibatches(run, step, B, config)
        ]

        step += 1
        metrics = mean_of_updates(updates)
        metrics |= sample_metrics(rollout, graded, rewards, G, run)
        metrics["explained_variance"] = explained_variance
        run.log(B, metrics)
        run.save_if_due(step, *learners)
        run.evaluate_if_due(evaluator)
    return policy


if __name__ == "__main__":
    main(parse(Config, PRESETS, __doc__), train, PRESETS)
