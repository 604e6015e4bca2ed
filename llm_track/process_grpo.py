"""GRPO as DeepSeekMath describes it further: rewards of steps, iterations (Shao et al. 2024, arXiv
2402.03300, secs. 4.1.3 and 4.1.4).

    python llm_track/process_grpo.py --task addition

    process supervision   the rewards at the ends of all steps of the group are normalised;
                          A_{i,t} = sum of those whose step ends at t or later          (sec. 4.1.3)
    iterations            the training in N equal parts; before each but the first the reference
                          becomes the policy, and the reward model is trained further   (sec. 4.1.4)

With `--supervision outcome` and one iteration this is grpo.py, to the bit. What is not said here is
said there.

Shapes: K prompts with G completions each, B = K G; T tokens of the longest completion.

Implementation details:
 1. The steps' rewards are the task's. The last step ends with the completion, and its reward is
    that of the completion: 1 for a right answer plus `--format-weight` for the format, both by
    rules, and a reward model's score (`--reward-model`), or the score alone (`--no-rules`).
 2. A group whose rewards are all equal has advantages of exactly 0, not rounding noise.
 3. The reward model learns from the policy's graded samples, a tenth of them old (the paper's
    replay), once from each pair, with reward_model.py's learning rate for the tiny model.
 4. With `--kl-in reward` the KL of the whole completion is in the reward of its last step.
 5. What is not learned is a reward of steps: the paper trains a model for it.

Logged per step: as grpo.py; rankable, how many pairs of a right and a wrong completion of the same
prompt were sampled, and ranked, in how many of them the right one has the larger reward, a tie
counting one half; where a reward model is renewed also pairs, how many it has been trained further
on.
"""

from __future__ import annotations

from manyseeds.command import parse

import bisect
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import torch
from torch import Tensor

from manyseeds.cli import Added, NonNegative, PerRow, Positive, PositiveInt, Preset
from manyseeds.errors import UsageError
from manyseeds.llm_track import models, sampling, tasks
from manyseeds.llm_track.evaluation import TaskEvaluator
from manyseeds.llm_track.policies import AnyModel, load_policy, load_scalars
from manyseeds.llm_track.rollout import (
    Batch,
    GroupConfig,
    Rollout,
    clip_bounds,
    collect,
    from_texts,
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
from manyseeds.portable import exp, logsigmoid
from manyseeds.rows import Row, broadcast, used
from manyseeds.runs.language_seeds import SeedsRun, main

EPS = 1e-4
MAX_GRAD_NORM = 1.0
BLOCK = 256  # tokens
PAIRS = 32  # of completions, per step of the reward model


@dataclass(frozen=True, kw_only=True)
class Config(GroupConfig):
    """GRPO with rewards of steps."""

    RATES: ClassVar = {"learning_rate": (1e-6, 1e-5), "reward_learning_rate": (1e-5, 1e-5)}

    clip_range: PerRow[NonNegative] = 0.2
    """Epsilon of the clipped objective (0: no clipping)."""
    kl_coef: PerRow[NonNegative] = 0.04
    """Beta, weight of the KL to the reference policy."""
    supervision: Literal["outcome", "process"] = "process"
    """Unit of reward. outcome: a completion. process: a reasoning step."""
    iterations: PositiveInt = 1
    """Number of equal parts of the training. Before each but the first, the reference becomes the
    policy, and a reward model is trained further."""
    renewed: Annotated[Literal["both", "reference", "reward_model"], Added("both")] = "both"
    """Renewed between iterations."""
    # Runs from before this flag used the policy's.
    reward_learning_rate: Annotated[Positive, Added(1e-3)] = 1e-3
    """Learning rate of a renewed reward model."""

    def check(self) -> None:
        super().check()
        if self.supervision == "process" and self.task not in tasks.GENERATED:
            raise UsageError(f"--supervision process: {self.task} has no rewards for steps")
        if self.supervision == "process" and not self.rules:
            raise UsageError("--supervision process: rewards steps by rules; not for --no-rules")
        if self.iterations > 1 and self.lora_rank > 0:
            raise UsageError("--iterations: the reference cannot be refreshed with --lora-rank")
        if self.renewed != "both" and (self.iterations == 1 or not self.reward_model):
            raise UsageError(f"--renewed {self.renewed}: needs --iterations and a --reward-model")
        steps = -(-self.total_samples // (self.prompts * self.group_size))
        if self.iterations > steps:
            raise UsageError(f"--iterations {self.iterations}: there are only {steps} steps")


PRESETS = dict.fromkeys(
    ("addition", "mixed", "countdown", "rambling", "checking"),
    Preset({}, source="grpo.py's, searched for addition"),
)


# ---- Advantages ----------------------------------------------------------------------------


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
        weights = token_weights(part.mask, rows.shape[1])
        losses = policy_loss(logprobs, entropy, part, weights, config)
        losses.sum().backward()
        ratio = ratio_of(logprobs, part)
        sums += token_sums(losses, logprobs, ratio, part, part.mask, *clip_bounds(config))
    grad_norm = optimizer.step(lr, MAX_GRAD_NORM)
    return {**means_of(run.processes.sum(sums)), "grad_norm": grad_norm}


def learn_preferences(
    reward_model: AnyModel,
    optimizer: Any,
    task: tasks.Task,
    lessons: Sequence[Sequence[tasks.Preference]],
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
        optimizer.step(config.reward_learning_rate, MAX_GRAD_NORM)


def bradley_terry_loss(chosen: Tensor, rejected: Tensor) -> Tensor:
    """-log sigmoid(r_chosen - r_rejected) of each pair, [S, B]; scores [S, B]."""
    return -logsigmoid(chosen - rejected)


def ranking(rewards: Tensor, accuracy: Tensor, G: int) -> Tensor:
    """How many pairs of a right and a wrong completion groups of G have, and how many of these have
    the larger reward for the right one, a tie counting one half, [2, S]. Arguments: [S, B].
    """
    right, reward = (x.unflatten(1, (-1, G)) for x in (accuracy, rewards))
    pairs = right.unsqueeze(-1) > right.unsqueeze(-2)
    won = (torch.sign(reward.unsqueeze(-1) - reward.unsqueeze(-2)) + 1) / 2
    return torch.stack([total(pairs.float()), total(pairs * won)])


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
    pupil = None if config.iterations == 1 or config.renewed == "reference" else reward_model
    if config.iterations > 1:
        reference = policy.frozen()
        learners.append(reference)
    if pupil is not None:
        of_pupil = pupil.optimizer()
        learners += [pupil, of_pupil]
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
        ref = rollout.logprobs
        if used(config.kl_coef):
            ref = reference.logprobs(rollout, config.temperature)
        rewards = rewards_of(graded, rollout, reward_model, config)
        returns = rewards - kl_of_rewards(rollout, ref, config)
        if config.supervision == "process":
            advantages = step_advantages(policy.tokenizer, task, graded, rollout, returns, G)
        else:
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
        counts = run.processes.sum(ranking(rewards, measured(graded, "accuracy", rollout), G))
        metrics |= dict(zip(("rankable", "ranked"), counts, strict=True))
        after, share = run.samples + B, config.total_samples // config.iterations
        if pupil is not None:
            for own, new, rng in zip(pairs, graded, run.rngs("pairs", step), strict=True):
                own += tasks.pairs_of(run.processes.gather_lists(new), rng)
        if run.samples // share < after // share < config.iterations:
            if config.renewed != "reward_model":
                reference.reset(policy)
            if pupil is not None:
                lessons = []
                for own, old, rng in zip(pairs, old_pairs, run.rngs("init", step), strict=True):
                    again = rng.permutation(len(old))[: len(own) // 9]
                    lessons.append(own + [old[i] for i in again])
                learn_preferences(pupil, of_pupil, task, lessons, config, run)
                old_pairs = [old + own for old, own in zip(old_pairs, pairs, strict=True)]
                pairs = [[] for _ in run.seeds]
        if pupil is not None:
            metrics["pairs"] = torch.tensor([float(len(own)) for own in old_pairs])
        run.log(B, metrics)
        run.save_if_due(step, *learners, pairs=pairs, old_pairs=old_pairs)
        run.evaluate_if_due(evaluator)
    return policy


if __name__ == "__main__":
    main(parse(Config, PRESETS, __doc__), train, PRESETS)
