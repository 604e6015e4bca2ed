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

Shapes: K prompts with G completions each, B = K G; P tokens of the longest prompt, T of the longest
completion.

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

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from manyseeds.cli import Fraction, NonNegative, Positive, PositiveInt, Preset, UsageError
from manyseeds.llm_track import models, sampling, tasks
from manyseeds.llm_track.evaluation import TaskEvaluator
from manyseeds.llm_track.sampling import Samples
from manyseeds.runs.language import LanguageRun, main
from manyseeds.runs.parallel import Processes

MAX_GRAD_NORM = 1.0


@dataclass(frozen=True, kw_only=True)
class Config(tasks.TaskConfig):
    """PPO of a language model."""

    prompts: PositiveInt = 256
    """K, prompts per step."""
    group_size: PositiveInt = 1
    """G, completions sampled for each prompt."""
    minibatches: PositiveInt = 4
    """Number of minibatches in each pass over the samples."""
    epochs: PositiveInt = 2
    """Passes over the samples of a step."""
    learning_rate: Positive = 3e-4
    """Learning rate of the policy's AdamW."""
    critic_learning_rate: Positive = 3e-3
    """Learning rate of the critic's AdamW."""
    temperature: Positive = 1.0
    """Sampling temperature."""
    gamma: Fraction = 1.0
    """Discount factor per token."""
    gae_lambda: Fraction = 0.95
    """Lambda of GAE. 0 gives the one-step TD error, 1 the Monte Carlo advantage."""
    clip_range: NonNegative = 0.2
    """Epsilon of the clipped objective (0: no clipping)."""
    clip_value_range: NonNegative = 0.2
    """Largest change of the value prediction (0: no clipping)."""
    value_coef: NonNegative = 0.1
    """Weight of the value loss."""
    kl_coef: NonNegative = 0.05
    """Beta, weight of the KL to the reference policy. The KL is subtracted from the reward."""
    format_weight: NonNegative = 0.1
    """Weight of the format reward beside the accuracy reward."""
    missing_eos_penalty: NonNegative = 1.0
    """Penalty subtracted from the reward of a truncated completion."""
    reward_model: str = ""
    """Folder or hub name of a reward model. Its score is added to the rewards."""
    rules: bool = True
    """Reward accuracy and format by rules."""

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
    "mixed": Preset({"gae_lambda": 1.0}, source="addition's"),
    "countdown": Preset({"gae_lambda": 1.0}, source="addition's"),
    "rambling": Preset({"gae_lambda": 1.0}, source="addition's"),
    "checking": Preset({"gae_lambda": 1.0}, source="addition's"),
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


# ---- Rewards, values and advantages --------------------------------------------------------


def token_rewards(
    rewards: Tensor, logprobs: Tensor, reference: Tensor, mask: Tensor, kl_coef: float
) -> Tensor:
    """The reward of each token, [B, T]: rewards [B] go to the last one, the KL to every one.

    logprobs and reference [B, T] are log pi_old and log pi_ref.
    """
    last = mask.sum(1, keepdim=True) - 1
    penalties = -kl_coef * (logprobs - reference) * mask
    return penalties.scatter_add(1, last, rewards.unsqueeze(1))


def values_of(critic: Any, samples: Samples) -> Tensor:
    """V of the state before each token of the completions, [B, T], 0 outside the mask."""
    T = samples.tokens.shape[1]
    # The scalar after the prompt's last token stands before the completion's first one.
    return sampling.scalars(critic, samples)[:, -T - 1 : -1] * samples.mask


def gae(rewards: Tensor, values: Tensor, mask: Tensor, gamma: float, gae_lambda: float) -> Tensor:
    """Generalised advantage estimates, all [B, T]; 0 outside the mask.

    A completion ends with its last token: neither values nor advantages come from beyond it.
    """
    rewards, values = rewards * mask, values * mask
    next_values = torch.nn.functional.pad(values[:, 1:], (0, 1))
    deltas = rewards + gamma * next_values - values
    advantage, advantages = torch.zeros_like(deltas[:, 0]), []
    for t in reversed(range(deltas.shape[1])):
        advantage = deltas[:, t] + gamma * gae_lambda * advantage
        advantages.append(advantage)
    return torch.stack(advantages[::-1], dim=1)


def moments(x: Tensor, mask: Tensor, processes: Processes) -> tuple[Tensor, Tensor]:
    """Mean and variance of the tokens [B, T] of all processes, 0-d each."""
    n = processes.sum(mask.sum())
    mean = processes.sum((x * mask).sum()) / n
    return mean, processes.sum((((x - mean) * mask) ** 2).sum()) / n


def whiten(advantages: Tensor, mask: Tensor, processes: Processes) -> Tensor:
    """Advantages [B, T] with mean 0 and variance 1 over the tokens of all processes."""
    mean, variance = moments(advantages, mask, processes)
    return (advantages - mean) * (variance + 1e-8).rsqrt() * mask


# ---- The loss ------------------------------------------------------------------------------


def surrogate(logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor, clip: float) -> Tensor:
    """The clipped objective of each token, [B, T]."""
    ratio = (logprobs - old_logprobs).exp()
    return torch.min(ratio * advantages, ratio.clamp(1 - clip, 1 + clip) * advantages)


def k3(logprobs: Tensor, reference: Tensor) -> Tensor:
    """Estimate of the KL from a reference, [B, T] (Schulman 2020): never negative, unbiased."""
    difference = reference - logprobs
    return difference.exp() - difference - 1


def policy_loss(
    logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor, weights: Tensor, config: Config
) -> Tensor:
    """This part's share of a minibatch's policy loss, 0-d; all arguments [B, T]."""
    return -(
        weights * surrogate(logprobs, old_logprobs, advantages, config.clip_range or math.inf)
    ).sum()


def value_loss(
    values: Tensor, old_values: Tensor, returns: Tensor, weights: Tensor, config: Config
) -> Tensor:
    """This part's share of a minibatch's value loss, 0-d; all arguments [B, T]."""
    losses = (values - returns).square()
    if config.clip_value_range > 0:
        change = (values - old_values).clamp(-config.clip_value_range, config.clip_value_range)
        losses = torch.max(losses, (old_values + change - returns).square())
    return 0.5 * (weights * losses).sum()


# ---- The training --------------------------------------------------------------------------


@dataclass(frozen=True)
class Batch(Samples):
    """Samples to learn from; their log-probabilities are those of pi_old."""

    reference: Tensor  # [B, T], log pi_ref
    values: Tensor  # [B, T], V_old
    advantages: Tensor  # [B, T], whitened
    returns: Tensor  # [B, T]


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


def prepare(
    samples: Samples,
    rewards: Tensor,
    critic: Any,
    reference: models.Reference,
    config: Config,
    run: LanguageRun,
) -> tuple[Batch, Tensor]:
    """What the update needs of a step's samples and rewards [B], and the explained variance."""
    size, ref = config.micro_batch_size, samples.logprobs
    if config.kl_coef > 0:
        ref = reference.logprobs(samples, config.temperature, size)
    values = sampling.in_batches(lambda part: values_of(critic, part), samples, size)
    by_token = token_rewards(rewards, samples.logprobs, ref, samples.mask, config.kl_coef)
    advantages = gae(by_token, values, samples.mask, config.gamma, config.gae_lambda)
    returns = advantages + values
    # The returns' deviation from V_old is the advantage.
    (_, left), (_, all_of_it) = (
        moments(x, samples.mask, run.processes) for x in (advantages, returns)
    )
    batch = Batch(
        **vars(samples),
        reference=ref,
        values=values,
        advantages=whiten(advantages, samples.mask, run.processes),
        returns=returns,
    )
    return batch, 1 - left / all_of_it


def update(
    policy: Any,
    critic: Any,
    optimizers: Sequence[torch.optim.Optimizer],
    batch: Batch,
    rows: np.ndarray,
    config: Config,
    run: LanguageRun,
) -> dict[str, Tensor]:
    """One gradient step of policy and critic on some rows of the whole batch; returns metrics."""
    processes = run.processes
    mine = processes.mine(rows, config.prompts * config.group_size)
    total_tokens = processes.sum(batch.mask[mine].sum())
    eps = config.clip_range or math.inf
    sums = torch.zeros(8, device=run.device)
    for part in batch.parts(mine, config.micro_batch_size):
        logprobs = sampling.logprobs(policy, part, config.temperature)
        values = values_of(critic, part)
        weights = part.mask / total_tokens
        losses = torch.stack([
            policy_loss(logprobs, part.logprobs, part.advantages, weights, config),
            value_loss(values, part.values, part.returns, weights, config),
        ])  # fmt: skip
        loss = losses[0] + config.value_coef * losses[1]
        loss.backward()
        with torch.no_grad():
            ratio = (logprobs - part.logprobs).exp()
            below, above = ratio < 1 - eps, ratio > 1 + eps
            of_tokens = (
                k3(logprobs, part.reference),
                below | above,
                below & (part.advantages < 0),
                above & (part.advantages > 0),
                k3(part.logprobs, logprobs),
            )
            sums += torch.stack([loss, *losses, *((weights * x).sum() for x in of_tokens)])
    norms = []
    for model, optimizer in zip((policy, critic), optimizers, strict=True):
        parameters = models.trainable(model)
        processes.sum_gradients(parameters)
        norms.append(torch.nn.utils.clip_grad_norm_(parameters, MAX_GRAD_NORM))
        if 0 < norms[-1] < math.inf:
            optimizer.step()
        optimizer.zero_grad()
    names = (
        "loss", "policy_loss", "value_loss",
        "kl", "clipfrac", "clip_low", "clip_high", "approx_kl",
    )  # fmt: skip
    metrics = dict(zip(names, processes.sum(sums), strict=True))
    return {**metrics, "grad_norm": norms[0], "critic_grad_norm": norms[1]}


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
    reference = models.Reference(policy)
    reward_model, origin = None, ("--model", config.model)
    if config.reward_model:
        origin = ("--reward-model", config.reward_model)
        reward_model = models.load_scalar(
            origin[1], config, run.device, processes, origin[0], run.seed
        )
    critic = models.load_scalar(origin[1], config, run.device, processes, origin[0], run.seed)
    rates = config.learning_rate, config.critic_learning_rate
    optimizers = [
        torch.optim.AdamW(models.trainable(model), lr=rate, weight_decay=0.0, fused=True)
        for model, rate in zip((policy, critic), rates, strict=True)
    ]
    trained = models.trainable(policy, critic)
    evaluator = TaskEvaluator(policy, tokenizer, task, config, reference)
    B = config.prompts * config.group_size

    step, _ = run.restore(trained, *optimizers)
    run.evaluate_if_due(run.samples, evaluator)
    while run.samples < config.total_samples:
        done = run.samples / config.total_samples
        for optimizer, rate in zip(optimizers, rates, strict=True):
            models.set_learning_rate(optimizer, rate, done, config)
        samples, graded = collect(policy, tokenizer, task, config, run, step)
        rewards = rewards_of(graded, samples, reward_model, config)
        rewards -= config.missing_eos_penalty * ~samples.ended
        batch, explained_variance = prepare(samples, rewards, critic, reference, config, run)

        shuffle, updates = run.rng("minibatches", step), []
        for _ in range(config.epochs):
            for rows in np.array_split(shuffle.permutation(B), config.minibatches):
                updates.append(update(policy, critic, optimizers, batch, rows, config, run))

        step += 1
        metrics = {k: torch.stack([x[k] for x in updates]).mean() for k in updates[0]}
        metrics |= sample_metrics(samples, graded, rewards, config.group_size, run)
        metrics["explained_variance"] = explained_variance
        run.log(run.samples + B, metrics)
        run.save_if_due(step, trained, *optimizers)
        run.evaluate_if_due(run.samples, evaluator)
    return policy


if __name__ == "__main__":
    main(parse(Config, PRESETS, __doc__), train, PRESETS)
