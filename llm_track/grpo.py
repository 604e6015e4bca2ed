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
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

import numpy as np
import torch
from torch import Tensor

from manyseeds.cli import NonNegative, Positive, PositiveInt, Preset, Range, UsageError
from manyseeds.llm_track import models, sampling, tasks
from manyseeds.llm_track.evaluation import TaskEvaluator
from manyseeds.llm_track.sampling import Samples
from manyseeds.runs.language import LanguageRun, main

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
    """Rewards [K, G] compared within each group; 0 where they are all equal."""
    mean, std = rewards.mean(1, keepdim=True), rewards.std(1, keepdim=True)
    varied = rewards.amax(1, keepdim=True) > rewards.amin(1, keepdim=True)
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
    graded: Sequence[tasks.Graded],
    samples: Samples,
    outcomes: Tensor,
    group_size: int,
) -> Tensor:
    """Advantages under process supervision, [B, T]; outcomes [B] is the reward of the last step."""
    rewards, ends = [], []
    for i, x in enumerate(graded):
        steps, n = task.steps(x.problem, x.text), int(samples.lengths[i])
        tokens = samples.tokens[i, :n].tolist()
        rewards.append([step.reward for step in steps] + [float(outcomes[i])])
        ends.append([*last_tokens(tokenizer, tokens, [step.end for step in steps]), n - 1])
    advantages = process_advantages(rewards, ends, group_size, samples.tokens.shape[1])
    return advantages.to(samples.tokens.device)


# ---- The loss ------------------------------------------------------------------------------


def token_weights(mask: Tensor, samples: int) -> Tensor:
    """1 / (N |o_i|) for each token, [B, T]: the mean over a completion, then over N of them."""
    return mask / mask.sum(1, keepdim=True) / samples


def surrogate(logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor, clip: float) -> Tensor:
    """The clipped objective of each token, [B, T]."""
    ratio = (logprobs - old_logprobs).exp()
    return torch.min(ratio * advantages, ratio.clamp(1 - clip, 1 + clip) * advantages)


def k3(logprobs: Tensor, reference: Tensor) -> Tensor:
    """Estimate of the KL from a reference, [B, T] (Schulman 2020): never negative, unbiased."""
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
    """This part's share of a minibatch's loss, 0-d; all arguments [B, T]."""
    objective = surrogate(logprobs, old_logprobs, advantages, config.clip_range or math.inf)
    objective = objective - config.kl_coef * k3(logprobs, reference_logprobs)
    return -(weights * objective).sum()


# ---- The training --------------------------------------------------------------------------


@dataclass(frozen=True)
class Batch(Samples):
    """Samples to learn from; their log-probabilities are those of pi_old."""

    reference: Tensor  # [B, T], log pi_ref
    advantages: Tensor  # [B, T]


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


def update(
    policy: Any,
    optimizer: torch.optim.Optimizer,
    batch: Batch,
    rows: np.ndarray,
    config: Config,
    run: LanguageRun,
) -> dict[str, Tensor]:
    """One gradient step on some rows of the whole batch; returns metrics."""
    processes, parameters = run.processes, models.trainable(policy)
    mine = processes.mine(rows, config.prompts * config.group_size)
    if config.kl_coef == 0:  # without an advantage exactly no gradient
        mine = mine[batch.advantages[mine].any(1).cpu().numpy()]
    eps = config.clip_range or math.inf
    sums = torch.zeros(7, device=run.device)
    for part in batch.parts(mine, config.micro_batch_size):
        logprobs = sampling.logprobs(policy, part, config.temperature)
        weights = token_weights(part.mask, len(rows))
        loss = policy_loss(
            logprobs, part.logprobs, part.reference, part.advantages, weights, config
        )
        loss.backward()
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
            sums += torch.stack([loss, *((part.mask * x).sum() for x in of_tokens)])
    processes.sum_gradients(parameters)
    grad_norm = torch.nn.utils.clip_grad_norm_(parameters, MAX_GRAD_NORM).to(run.device)
    if 0 < grad_norm < math.inf:
        optimizer.step()
    optimizer.zero_grad()
    loss, tokens, *means = processes.sum(sums)
    names = ("kl", "clipfrac", "clip_low", "clip_high", "approx_kl")
    metrics = {name: x / tokens.clamp(min=1) for name, x in zip(names, means, strict=True)}
    return {"loss": loss, **metrics, "grad_norm": grad_norm}


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


def learn_preferences(
    reward_model: Any,
    optimizer: torch.optim.Optimizer,
    tokenizer: Any,
    task: tasks.Task,
    pairs: Sequence[tasks.Preference],
    config: Config,
    run: LanguageRun,
) -> None:
    """Train the reward model once on each pair (the loss of llm_track/reward_model.py)."""
    T = models.completion_tokens(config)
    for start in range(0, len(pairs), PAIRS):
        batch = pairs[start : start + PAIRS]
        prompts = [pair.prompt for pair in batch]
        both = [
            sampling.from_texts(tokenizer, task, prompts, texts, T, run.device)
            for texts in ([pair.chosen for pair in batch], [pair.rejected for pair in batch])
        ]
        chosen, rejected = (sampling.scores(reward_model, samples) for samples in both)
        bradley_terry_loss(chosen, rejected).mean().backward()
        grad_norm = torch.nn.utils.clip_grad_norm_(reward_model.parameters(), MAX_GRAD_NORM)
        if 0 < grad_norm < math.inf:
            optimizer.step()
        optimizer.zero_grad()


def bradley_terry_loss(chosen: Tensor, rejected: Tensor) -> Tensor:
    """-log sigmoid(r_chosen - r_rejected) of each pair, [B]; scores [B]."""
    return -torch.nn.functional.logsigmoid(chosen - rejected)


def train(config: Config, run: LanguageRun) -> Any:
    """Train one seed; returns the policy."""
    processes = run.processes
    processes.share(config.prompts)  # a group stays in one process
    policy, tokenizer = models.load_model(config, run.device, processes)
    task = models.task_of(config, policy, tokenizer)
    start = models.Reference(policy)  # what evaluations measure the KL to
    reference = models.Reference(policy) if config.iterations > 1 else start
    reward_model = None
    if config.reward_model:
        reward_model = models.load_scalar(
            config.reward_model, config, run.device, processes, "--reward-model", run.seed
        )
    trained = models.trainable(policy)
    optimizer = torch.optim.AdamW(trained, lr=config.learning_rate, weight_decay=0.0, fused=True)
    optimizers = [optimizer]
    if config.iterations > 1:
        trained = [*trained, *reference.model.parameters()]
        if reward_model is not None:
            trained += reward_model.parameters()
            rate = config.learning_rate
            optimizers.append(
                torch.optim.AdamW(reward_model.parameters(), lr=rate, weight_decay=0.0, fused=True)
            )
    evaluator = TaskEvaluator(policy, tokenizer, task, config, start)
    B = config.prompts * config.group_size

    step, state = run.restore(trained, *optimizers)
    pairs = [tasks.Preference(*pair) for pair in state.get("pairs", [])]
    old_pairs = [tasks.Preference(*pair) for pair in state.get("old_pairs", [])]
    run.evaluate_if_due(run.samples, evaluator)
    while run.samples < config.total_samples:
        for x in optimizers:
            done = run.samples / config.total_samples
            models.set_learning_rate(x, config.learning_rate, done, config)
        samples, graded = collect(policy, tokenizer, task, config, run, step)
        rewards = rewards_of(graded, samples, reward_model, config)
        if config.supervision == "process":
            advantages = step_advantages(
                tokenizer, task, graded, samples, rewards, config.group_size
            )
        else:
            groups = group_advantages(rewards.view(-1, config.group_size))
            advantages = groups.view(-1, 1).expand_as(samples.tokens)
        ref = samples.logprobs
        if config.kl_coef > 0:
            ref = reference.logprobs(samples, config.temperature, config.micro_batch_size)
        batch = Batch(**vars(samples), reference=ref, advantages=advantages)

        shuffle, updates = run.rng("minibatches", step), []
        for _ in range(config.epochs):
            for rows in np.array_split(shuffle.permutation(B), config.minibatches):
                updates.append(update(policy, optimizer, batch, rows, config, run))

        step += 1
        metrics = {k: torch.stack([x[k] for x in updates]).mean() for k in updates[0]}
        metrics |= sample_metrics(samples, graded, rewards, config.group_size, run)
        after = run.samples + B
        if reward_model is not None and config.iterations > 1:
            pairs += tasks.pairs_of(processes.gather_lists(graded), shuffle)
        share = config.total_samples // config.iterations
        if run.samples // share < after // share < config.iterations:
            reference.reset(policy)
            if reward_model is not None:
                replay = run.rng("init", step).permutation(len(old_pairs))[: len(pairs) // 9]
                lesson = pairs + [old_pairs[i] for i in replay]
                learn_preferences(reward_model, optimizers[1], tokenizer, task, lesson, config, run)
                old_pairs, pairs = old_pairs + pairs, []
        run.log(after, metrics)
        run.save_if_due(step, trained, *optimizers, pairs=pairs, old_pairs=old_pairs)
        run.evaluate_if_due(run.samples, evaluator)
    return policy


if __name__ == "__main__":
    main(parse(Config, PRESETS, __doc__), train, PRESETS)
