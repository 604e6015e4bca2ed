"""Group relative policy optimization of a language model (Shao et al. 2024, arXiv 2402.03300).

    python llm_track/grpo.py --task addition

PPO without a critic: the baseline of a completion is the mean reward of its group, the completions
of the same prompt. For each prompt q, pi_old samples G completions o_i; with the ratio
r_{i,t} = pi_theta(o_{i,t} | q, o_{i,<t}) / pi_old(o_{i,t} | q, o_{i,<t}) the objective (eq. 3) is

    J(theta) = E[ 1/G sum_i 1/|o_i| sum_t { min(r_{i,t} A_{i,t}, clip(r_{i,t}, 1 - eps, 1 + eps)
                  A_{i,t}) - beta D_KL(pi_theta || pi_ref)_{i,t} } ]

    D_KL = pi_ref/pi_theta - log(pi_ref/pi_theta) - 1        "k3", per token            (eq. 4)

    outcome supervision   A_{i,t} = (R_i - mean(R)) / std(R), the same for all tokens   (sec. 4.1.2)
    process supervision   the rewards at the ends of all steps of the group are normalised;
                          A_{i,t} = sum of those whose step ends at t or later          (sec. 4.1.3)

Siblings: `diff llm_track/grpo.py llm_track/dr_grpo.py`, `diff llm_track/grpo.py llm_track/dapo.py`,
`diff llm_track/rlhf_ppo.py llm_track/grpo.py`. For control: algos/grpo.py.

Shapes: K prompts with G completions each, B = K G; T tokens of the longest completion.

Implementation details, and where defaults leave the paper:
 1. The reward is 1 for a right answer plus `--format-weight` for the format, both by rules (as
    DeepSeek-R1, arXiv 2501.12948). A reward model's score (`--reward-model`) is added to it, or is
    the whole reward (`--no-rules`), as in the paper.
 2. Deviations are the sample's (ddof 1), 1e-4 is added (as TRL). A group whose rewards are all
    equal has advantages of exactly 0, not rounding noise over 1e-4.
 3. One pass over the samples in four minibatches (the paper: in one, where the ratio is 1 and the
    clip never takes effect), groups of 8 (the paper: 64).
 4. Under process supervision the steps' rewards are the task's, and the reward above is that of the
    last step, which ends with the completion.
 5. Every loss is a sum of weighted token terms whose weights know the whole minibatch: how it is
    divided into micro-batches and processes does not matter.
 6. pi_old's log-probabilities are those of the sampling itself, unless it computed in bfloat16:
    there they differ from a forward pass's by up to 0.6, and are recomputed.
 7. k3's gradient is not that of the KL (k2's is, token by token: verl #2953); the paper uses it
    all the same.
 8. Iterative (sec. 4.1.4, `--iterations N`): in N equal parts of the training; before each but the
    first the reference becomes the policy, and the reward model is trained further on the policy's
    graded samples, a tenth of them old, at the policy's learning rate.
 9. AdamW without weight decay, learning rate 3e-4 for the tiny model (the paper: 1e-6 for 7B), no
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

import bisect
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import torch
from torch import Tensor

from manyseeds.cli import NonNegative, Positive, PositiveInt, Preset, Range, UsageError
from manyseeds.llm_track import models, sampling, tasks
from manyseeds.llm_track.evaluation import TaskEvaluator
from manyseeds.llm_track.policies import AnyModel, load_policy, load_scalars
from manyseeds.llm_track.rollout import (
    Rollout,
    collect,
    from_texts,
    minibatches,
    rewards_of,
    sample_metrics,
    total,
)
from manyseeds.runs.language_seeds import SeedsRun, main

EPS = 1e-4
MAX_GRAD_NORM = 1.0
BLOCK = 256  # tokens
PAIRS = 64  # of completions, per step of the reward model in an iterative training


@dataclass(frozen=True, kw_only=True)
class Config(tasks.TaskConfig):
    """GRPO."""

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
    kl_coef: NonNegative = 0.04
    """Beta, weight of the KL to the reference policy."""
    supervision: Literal["outcome", "process"] = "outcome"
    """Unit of reward. outcome: a completion. process: a reasoning step."""
    format_weight: NonNegative = 0.1
    """Weight of the format reward beside the accuracy reward."""
    reward_model: str = ""
    """Folder or hub name of a reward model. Its score is added to the rewards."""
    rules: bool = True
    """Reward accuracy and format by rules."""
    iterations: PositiveInt = 1
    """Number of equal parts of the training. Before each but the first, the reference becomes the
    policy, and a reward model is trained further."""

    def check(self) -> None:
        super().check()
        check_batch(self)
        if self.supervision == "process" and self.task not in tasks.GENERATED:
            raise UsageError(f"--supervision process: {self.task} has no rewards for steps")
        if self.supervision == "process" and not self.rules:
            raise UsageError("--supervision process: rewards steps by rules; not for --no-rules")
        if self.iterations > 1 and self.lora_rank > 0:
            raise UsageError("--iterations: the reference cannot be refreshed with --lora-rank")
        steps = -(-self.total_samples // (self.prompts * self.group_size))
        if self.iterations > steps:
            raise UsageError(f"--iterations {self.iterations}: there are only {steps} steps")


PRESETS = {
    "addition": Preset(
        {},
        source="the defaults; our own search on an earlier tiny model, one seed, 12,800 samples: "
        "learning rates 5e-5 to 1e-3, 2 and 4 minibatches",
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
    """Rewards [S, K, G] compared within each group; 0 where they are all equal."""
    mean, std = rewards.mean(-1, keepdim=True), rewards.std(-1, keepdim=True)
    varied = rewards.amax(-1, keepdim=True) > rewards.amin(-1, keepdim=True)
    return torch.where(varied, (rewards - mean) / (std + EPS), 0.0)


def process_advantages(
    rewards: Sequence[Sequence[float]], ends: Sequence[Sequence[int]], group_size: int, T: int
) -> Tensor:
    """Advantages of all tokens, [B, T], from the rewards of steps and the tokens they end with.

    rewards[i][j] is that of step j of completion i, ends[i][j] the index of its last token.
    """
    advantages = torch.zeros(len(rewards), T)
    for start in range(0, len(rewards), group_size):
        group = range(start, start + group_size)
        every = torch.tensor([r for i in group for r in rewards[i]])
        if every.max() == every.min():
            continue
        for i in group:
            normalised = (torch.tensor(rewards[i]) - every.mean()) / (every.std() + EPS)
            for r, end in zip(normalised, ends[i], strict=True):
                advantages[i, : end + 1] += r
    return advantages


def last_tokens(tokenizer: Any, tokens: Sequence[int], ends: Sequence[int]) -> list[int]:
    """The index of the token with which each prefix of `ends` characters is complete."""

    def length(first: int, last: int) -> int:
        return len(sampling.text_of(tokenizer, tokens[first:last]))

    # Long completions are searched block by block, where the blocks' texts make up the whole.
    starts = list(range(0, len(tokens), BLOCK))
    done = list(itertools.accumulate((length(s, s + BLOCK) for s in starts), initial=0))
    if done[-1] != length(0, len(tokens)):
        starts, done = [0], [0, done[-1]]
    indices = []
    for end in ends:
        block = min(bisect.bisect_left(done, end, lo=1), len(starts)) - 1
        start = starts[block]
        low, high = start, (*starts, len(tokens))[block + 1] - 1
        while low < high:  # the first index whose prefix is long enough
            middle = (low + high) // 2
            enough = done[block] + length(start, middle + 1) >= end
            low, high = (low, middle) if enough else (middle + 1, high)
        indices.append(low)
    return indices


def step_advantages(
    tokenizer: Any,
    task: tasks.Task,
    graded: Sequence[Sequence[tasks.Graded]],
    rollout: Rollout,
    outcomes: Tensor,
    group_size: int,
) -> Tensor:
    """Advantages under process supervision, [S, B, T].

    outcomes: [S, B], the reward of the last step.
    """
    advantages = []
    for s, own in enumerate(graded):
        rewards, ends = [], []
        for i, x in enumerate(own):
            steps, n = task.steps(x.problem, x.text), int(rollout.lengths[s, i])
            tokens = rollout.tokens[s, i, :n].tolist()
            rewards.append([step.reward for step in steps] + [float(outcomes[s, i])])
            ends.append([*last_tokens(tokenizer, tokens, [step.end for step in steps]), n - 1])
        T = rollout.tokens.shape[-1]
        advantages.append(process_advantages(rewards, ends, group_size, T))
    return torch.stack(advantages).to(rollout.tokens.device)


# ---- The loss ------------------------------------------------------------------------------


def token_weights(mask: Tensor, samples: int) -> Tensor:
    """1 / (N |o_i|) for each token, [S, B, T]: the mean over a completion, then over N of them."""
    return mask / mask.sum(-1, keepdim=True).clamp(min=1) / samples


def surrogate(logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor, clip: float) -> Tensor:
    """The clipped objective of each token, [S, B, T]."""
    ratio = (logprobs - old_logprobs).exp()
    return torch.min(ratio * advantages, ratio.clamp(1 - clip, 1 + clip) * advantages)


def k3(logprobs: Tensor, reference: Tensor) -> Tensor:
    """Estimate of the KL from a reference, [S, B, T] (Schulman 2020): never negative, unbiased."""
    difference = reference - logprobs
    return difference.exp() - difference - 1


def policy_loss(
    logprobs: Tensor,
    old_logprobs: Tensor,
    reference_logprobs: Tensor,
    advantages: Tensor,
    weights: Tensor,
    config: Config,
) -> Tensor:
    """This part's share of each seed's minibatch loss, [S]; all tensors [S, B, T]."""
    objective = surrogate(logprobs, old_logprobs, advantages, config.clip_range or math.inf)
    objective = objective - config.kl_coef * k3(logprobs, reference_logprobs)
    return -total(weights * objective)


# ---- The training --------------------------------------------------------------------------


@dataclass(frozen=True)
class Batch(Rollout):
    """Completions to learn from; their log-probabilities are those of pi_old."""

    reference: Tensor  # [S, B, T], log pi_ref
    advantages: Tensor  # [S, B, T]


def update(
    policy: AnyModel,
    optimizer: Any,
    batch: Batch,
    rows: Tensor,
    lr: float,
    config: Config,
    run: SeedsRun,
) -> dict[str, Tensor]:
    """One gradient step on some rows of each seed, [S, M]; returns metrics, [S] each."""
    eps = config.clip_range or math.inf
    sums = torch.zeros(7, len(rows), device=run.device)
    for part in policy.parts(batch, rows):
        logprobs = policy.logprobs(part, config.temperature)
        weights = token_weights(part.mask, rows.shape[1])
        losses = policy_loss(
            logprobs, part.logprobs, part.reference, part.advantages, weights, config
        )
        losses.sum().backward()
        with torch.no_grad():
            ratio = (logprobs - part.logprobs).exp()
            below, above = ratio < 1 - eps, ratio > 1 + eps
            of_tokens = (
                torch.ones_like(ratio),
                k3(logprobs, part.reference),
                below | above,
                below & (part.advantages < 0),
                above & (part.advantages > 0),
                k3(part.logprobs, logprobs),
            )
            sums += torch.stack([losses, *(total(part.mask * x) for x in of_tokens)])
    grad_norm = optimizer.step(lr, MAX_GRAD_NORM)
    loss, tokens, *means = run.processes.sum(sums)
    names = ("kl", "clipfrac", "clip_low", "clip_high", "approx_kl")
    metrics = {name: x / tokens.clamp(min=1) for name, x in zip(names, means, strict=True)}
    return {"loss": loss, **metrics, "grad_norm": grad_norm}


def learn_preferences(
    reward_model: AnyModel,
    optimizer: Any,
    task: tasks.Task,
    lessons: Sequence[Sequence[tasks.Preference]],
    lr: float,
    config: Config,
    run: SeedsRun,
) -> None:
    """Train each seed's reward model once on each of its pairs (the loss of
    llm_track/reward_model.py); every process on all of them."""
    T = models.completion_tokens(config)
    for start in range(0, max(map(len, lessons)), PAIRS):
        parts = [own[start : start + PAIRS] for own in lessons]
        prompts = [[pair.prompt for pair in own] for own in parts]
        chosen, rejected = (
            from_texts(reward_model, task, prompts, texts, T)
            for texts in (
                [[pair.chosen for pair in own] for own in parts],
                [[pair.rejected for pair in own] for own in parts],
            )
        )
        losses = bradley_terry_loss(reward_model.scores(chosen), reward_model.scores(rejected))
        counts = (chosen.lengths > 0).sum(1, keepdim=True)
        means = losses * (chosen.lengths > 0) / counts.clamp(min=1)
        (means.sum() / run.processes.size).backward()  # a step adds up those of all processes
        optimizer.step(lr, MAX_GRAD_NORM)


def bradley_terry_loss(chosen: Tensor, rejected: Tensor) -> Tensor:
    """-log sigmoid(r_chosen - r_rejected) of each pair, [S, B]; scores [S, B]."""
    return -torch.nn.functional.logsigmoid(chosen - rejected)


def train(config: Config, run: SeedsRun) -> AnyModel:
    """Train all seeds of a run; returns their policies."""
    run.processes.share(config.prompts)  # a group stays in one process
    policy = load_policy(config, run)
    task = models.task_of(config, policy.config, policy.tokenizer)
    start = policy.frozen()  # what evaluations measure the KL to
    reference, reward_model, optimizer = start, None, policy.optimizer()
    learners: list[Any] = [policy, optimizer]
    if config.reward_model:
        reward_model = load_scalars(config.reward_model, config, policy, run, "--reward-model")
    if config.iterations > 1:
        reference = policy.frozen()
        learners.append(reference)
        if reward_model is not None:
            of_reward_model = reward_model.optimizer()
            learners += [reward_model, of_reward_model]
    evaluator = TaskEvaluator(policy, task, config, start)
    B, G = config.prompts * config.group_size, config.group_size

    step, state = run.restore(*learners)
    none: list[list[Any]] = [[] for _ in run.seeds]
    pairs, old_pairs = (
        [[tasks.Preference(*pair) for pair in own] for own in state.get(name, none)]
        for name in ("pairs", "old_pairs")
    )
    run.evaluate_if_due(evaluator)
    while run.samples < config.total_samples:
        done = run.samples / config.total_samples
        lr = models.learning_rate(config.learning_rate, done, config)
        rollout, graded = collect(policy, task, config, run, step)
        rewards = rewards_of(graded, rollout, reward_model, config)
        if config.supervision == "process":
            advantages = step_advantages(policy.tokenizer, task, graded, rollout, rewards, G)
        else:
            groups = group_advantages(rewards.unflatten(1, (-1, G)))
            advantages = groups.flatten(1).unsqueeze(-1).expand_as(rollout.tokens)
        ref, learned = rollout.logprobs, rollout.lengths
        if config.kl_coef > 0:
            ref = reference.logprobs(rollout, config.temperature)
        else:  # without an advantage exactly no gradient
            learned = learned * advantages.any(-1)
        fields = {**vars(rollout), "lengths": learned}
        batch = Batch(**fields, reference=ref, advantages=advantages)

        updates = [
            update(policy, optimizer, batch, rows, lr, config, run)
            for rows in minibatches(run, step, B, config)
        ]

        step += 1
        metrics = {
            k: total(torch.stack([x[k] for x in updates], 1)) / len(updates) for k in updates[0]
        }
        metrics |= sample_metrics(rollout, graded, rewards, G, run)
        after, share = run.samples + B, config.total_samples // config.iterations
        if reward_model is not None and config.iterations > 1:
            for own, new, rng in zip(pairs, graded, run.rngs("pairs", step), strict=True):
                own += tasks.pairs_of(run.processes.gather_lists(new), rng)
        if run.samples // share < after // share < config.iterations:
            reference.reset(policy)
            if reward_model is not None:
                lessons = []
                for own, old, rng in zip(pairs, old_pairs, run.rngs("init", step), strict=True):
                    again = rng.permutation(len(old))[: len(own) // 9]
                    lessons.append(own + [old[i] for i in again])
                learn_preferences(reward_model, of_reward_model, task, lessons, lr, config, run)
                old_pairs = [old + own for old, own in zip(old_pairs, pairs, strict=True)]
                pairs = [[] for _ in run.seeds]
        run.log(B, metrics)
        run.save_if_due(step, *learners, pairs=pairs, old_pairs=old_pairs)
        run.evaluate_if_due(evaluator)
    return policy


if __name__ == "__main__":
    main(parse(Config, PRESETS, __doc__), train, PRESETS)
