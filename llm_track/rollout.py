"""What methods share: completions of all seeds, how they are drawn and graded, the KL to a
reference, and metrics.

Shapes: S seeds, K prompts of each with G completions, B = K G; P and T tokens of the longest prompt
and completion. Prompts are padded on the left, completions on the right.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from manyseeds.cli import Added, NonNegative, OfRow, PerRow, Positive, PositiveInt, Range
from manyseeds.errors import UsageError
from manyseeds.llm_track import models, sampling, tasks
from manyseeds.llm_track.rewards import RewardConfig, name_of, rewarded
from manyseeds.portable import exp, sqrt
from manyseeds.rows import Row, broadcast, used

if TYPE_CHECKING:
    from manyseeds.runs.language_seeds import SeedsRun
    from manyseeds.runs.parallel import Processes


Prompts = Sequence[Sequence[Sequence[int]]]  # token ids of B prompts of each seed


@dataclass(frozen=True)
class Rollout:
    """Completions of S seeds. A subclass may have more fields [S, B] and [S, B, T]."""

    prompts: Tensor  # [S, B, P] int64
    prompt_lengths: Tensor  # [S, B] int64
    tokens: Tensor  # [S, B, T] int64
    lengths: Tensor  # [S, B] int64, with the end of sequence; 0: nothing is learned from the row
    ended: Tensor  # [S, B] bool, false where the completion was cut off
    logprobs: Tensor  # [S, B, T] float32, log pi of each token at the temperature; 0 after the last
    entropy: Tensor  # [S, B, T] float32, nats, of the distribution each token was drawn from

    @property
    def mask(self) -> Tensor:
        """Which tokens there are, [S, B, T] bool."""
        columns = torch.arange(self.tokens.shape[-1], device=self.tokens.device)
        return columns < self.lengths.unsqueeze(-1)

    def __getitem__(self, rows: Tensor) -> Self:
        """Some rows of each seed, [S, M] int64."""
        seeds = torch.arange(len(rows), device=rows.device).unsqueeze(1)
        return type(self)(**{f.name: getattr(self, f.name)[seeds, rows] for f in fields(self)})


AnyRollout = TypeVar("AnyRollout", bound=Rollout)


@dataclass(frozen=True)
class Batch(Rollout):
    """Completions to learn from; their log-probabilities are those of pi_old."""

    reference: Tensor  # [S, B, T], log pi_ref; log pi_old where there is no KL
    advantages: Tensor  # [S, B, T]


AnyBatch = TypeVar("AnyBatch", bound=Batch)


@dataclass(frozen=True, kw_only=True)
class GroupConfig(RewardConfig):
    """Flags of the methods that learn from groups of completions."""

    prompts: PositiveInt = 32
    """K, prompts per step."""
    group_size: Annotated[int, Range(2)] = 8
    """G, completions sampled for each prompt."""
    minibatches: PositiveInt = 4
    """Number of minibatches in each pass over the samples."""
    epochs: PositiveInt = 1
    """Passes over the samples of a step."""
    learning_rate: PerRow[Positive] = 3e-4
    """Learning rate of AdamW."""
    temperature: PerRow[Positive] = 1.0
    """Sampling temperature."""
    kl_coef: Annotated[NonNegative, OfRow(), Added(0.0)] = 0.0
    """Beta, weight of the KL to the reference policy."""
    kl_estimator: Annotated[Literal["k1", "k2", "k3", "corrected"], Added("k3")] = "k3"
    """Estimator of the KL. corrected: k3 times the ratio, whose gradient is the KL's."""
    kl_in: Annotated[Literal["loss", "reward"], Added("loss")] = "loss"
    """Where the KL is subtracted. loss: from the objective. reward: before any division."""
    entropy_coef: Annotated[NonNegative, OfRow(), Added(0.0)] = 0.0
    """Weight of an entropy bonus, with the weights of the tokens."""

    def check(self) -> None:
        super().check()
        check_batch(self)


def check_batch(config: Any) -> None:
    """Conditions on a step's samples; raises UsageError."""
    if config.minibatches > config.prompts * config.group_size:
        raise UsageError(
            f"--minibatches {config.minibatches}: there are only "
            f"{config.prompts * config.group_size} samples per step"
        )


# ---- Drawing, and grading ------------------------------------------------------------------


def collect(
    policy: Any, task: tasks.Task, config: Any, run: SeedsRun, step: int, *draw: int
) -> tuple[Rollout, list[list[tasks.Graded]]]:
    """Draw each seed's K prompts, complete each of them G times, and grade them.

    draw: the number of the draw, where a step may have several. Of several processes, each has its
    share of the rows.
    """
    K, G, T = config.prompts, config.group_size, models.completion_tokens(config)
    mine = run.processes.share(K * G)
    problems = []
    for one in run.runs:
        start, rng = one.samples // G + K * sum(draw), one.rng("prompts", step, *draw)
        drawn = tasks.next_problems(task, K, start, one, "prompts", rng)
        problems.append([p for p in drawn for _ in range(G)][mine])
    uniforms = run.uniforms(step, K * G, T, part=sum(draw))[:, mine]
    temperature = run.own(config.temperature)
    rollout = policy.sample(encode(policy, task, problems), uniforms, temperature)
    graded = grade(policy, task, problems, rollout)
    return rollout, [rewarded(own, config) for own in graded]


def encode(
    policy: Any, task: tasks.Task, problems: Sequence[Sequence[tasks.Problem]]
) -> list[list[list[int]]]:
    """The prompts of each seed's problems as token ids."""
    return [
        sampling.encode_prompts(policy.tokenizer, task, [p.prompt for p in own]) for own in problems
    ]


def grade(
    policy: Any, task: tasks.Task, problems: Sequence[Sequence[tasks.Problem]], rollout: Rollout
) -> list[list[tasks.Graded]]:
    """The completions of each seed's problems, graded."""
    return [
        [task.grade(p, text) for p, text in zip(own, texts, strict=True)]
        for own, texts in zip(problems, decode(policy.tokenizer, rollout), strict=True)
    ]


def decode(tokenizer: Any, rollout: Rollout) -> list[list[str]]:
    """The texts of each seed's completions, without the token that ends them."""
    lengths = (rollout.lengths - rollout.ended.long()).tolist()
    return [
        [sampling.text_of(tokenizer, row[:n]) for row, n in zip(tokens, of_seed, strict=True)]
        for tokens, of_seed in zip(rollout.tokens.tolist(), lengths, strict=True)
    ]


def rewards_of(
    graded: Sequence[Sequence[tasks.Graded]], rollout: Rollout, reward_model: Any, config: Any
) -> Tensor:
    """The reward of each completion, [S, B]: by rules, by --reward, and a reward model's score."""
    accuracy, framed = (measured(graded, name, rollout) for name in ("accuracy", "format"))
    rewards = (accuracy + broadcast(config.format_weight, framed) * framed) * config.rules
    if config.reward:
        rewards = rewards + measured(graded, "reward", rollout)
    if reward_model is not None:
        with torch.no_grad():
            rewards = rewards + reward_model.scores(rollout)
    return rewards


def minibatches(run: SeedsRun, step: int, B: int, config: Any) -> Iterator[Tensor]:
    """The rows of each minibatch, [S, M] int64; each seed shuffles its own in each pass."""
    shuffles = run.rngs("minibatches", step)
    for _ in range(config.epochs):
        orders = [np.array_split(rng.permutation(B), config.minibatches) for rng in shuffles]
        for parts in zip(*orders, strict=True):
            yield torch.from_numpy(np.stack(parts)).to(run.device)


def from_texts(
    policy: Any,
    task: tasks.Task,
    prompts: Sequence[Sequence[str]],
    texts: Sequence[Sequence[str]],
    longest: int,
) -> Rollout:
    """Given completions of each seed's prompts, as `sampling.from_texts`.

    Where a seed has fewer of them, its last rows are empty: of length 0.
    """
    asked, given = ([x for own in side for x in own] for side in (prompts, texts))
    known = sampling.from_texts(policy.tokenizer, task, asked, given, longest, policy.device)
    counts = torch.tensor([len(own) for own in prompts], device=policy.device).unsqueeze(1)
    places = torch.arange(int(counts.max()), device=policy.device)
    rows = (counts.cumsum(0) - counts + places).clamp(max=len(known) - 1)
    rollout = rollout_of(known)
    found, there = Rollout(*(x[0, rows] for x in vars(rollout).values())), places < counts
    return replace(found, lengths=found.lengths * there, ended=found.ended & there)


def rates_of(run: SeedsRun, config: Any) -> Tensor:
    """The learning rate of each seed after its samples, [S] float64; 0 of one that is finished."""
    done = [one.samples / config.total_samples for one in run.runs]
    initial = torch.as_tensor(config.learning_rate, dtype=torch.float64).expand(len(done))
    rates = [
        models.learning_rate(rate, x, config) if x < 1 else 0.0
        for rate, x in zip(initial.tolist(), done, strict=True)
    ]
    return torch.tensor(rates, dtype=torch.float64)


def with_signal(batch: AnyBatch, config: GroupConfig) -> AnyBatch:
    """A batch without the completions that have exactly no gradient: they are of length 0."""
    if (used(config.kl_coef) and config.kl_in == "loss") or used(config.entropy_coef):
        return batch
    signal = (batch.advantages * batch.mask).any(-1)
    return replace(batch, lengths=batch.lengths * signal)


def clip_bounds(config: Any) -> tuple[Row, Row]:
    """The bounds within which the ratio has a gradient."""
    if not used(config.clip_range):
        return -math.inf, math.inf
    high = getattr(config, "clip_range_high", 0.0)
    return 1 - config.clip_range, 1 + (high if used(high) else config.clip_range)


def at_every_token(x: Tensor, like: Tensor) -> Tensor:
    """x [S, B, 1] at each of T tokens, [S, B, T]; unlike those of expand, gradients are added up
    token after token, so that more padding changes no bit."""
    return pad(x, (0, like.shape[-1] - 1)).cumsum(-1)


def tokens_of(batch: Rollout, rows: Tensor, run: SeedsRun) -> Tensor:
    """How many tokens the rows [S, M] of all processes have, [S, 1, 1]."""
    lengths = run.processes.gather(batch.lengths.mT).mT
    return lengths.gather(1, rows).sum(1).view(-1, 1, 1)


def moments(x: Tensor, mask: Tensor, processes: Processes) -> tuple[Tensor, Tensor]:
    """Mean and variance of each seed's tokens [S, B, T] of all processes, [S] each."""
    n = processes.sum(mask.sum((1, 2)))
    mean = processes.sum(total(x * mask)) / n
    deviations = (x - mean.view(-1, 1, 1)) * mask
    return mean, processes.sum(total(deviations**2)) / n


def whiten(x: Tensor, mask: Tensor, processes: Processes) -> Tensor:
    """Numbers [S, B, T] with mean 0 and variance 1 over each seed's tokens of all processes; 0
    where they are all equal, not rounding noise."""
    mean, variance = moments(x, mask, processes)
    mean, std = (each.view(-1, 1, 1) for each in (mean, sqrt(variance.double() + 1e-8).to(x)))
    bounds = torch.stack(
        [x.where(mask, -torch.inf).amax((1, 2)), (-x).where(mask, -torch.inf).amax((1, 2))]
    )
    high, low = processes.gather(bounds.unsqueeze(0)).amax(0)
    varied = (high > -low).view(-1, 1, 1)
    return torch.where(varied, (x - mean) / std * mask, 0.0)


# ---- The KL to a reference, and the entropy ------------------------------------------------


def kl(logprobs: Tensor, reference: Tensor, estimator: str = "k3") -> Tensor:
    """Estimates of the KL from a reference, [S, B, T] (Schulman 2020); k3 is never negative."""
    difference = logprobs - reference
    if estimator == "k1":
        return difference
    if estimator == "k2":
        return difference.square() / 2
    return exp(-difference) + difference - 1


def kl_of_tokens(rollout: Rollout, reference: Tensor, config: GroupConfig) -> Tensor:
    """What the KL takes from the reward at each token, [S, B, T]."""
    if config.kl_in == "loss":
        return torch.zeros_like(reference)
    estimates = kl(rollout.logprobs, reference, config.kl_estimator)
    return broadcast(config.kl_coef, estimates) * estimates * rollout.mask


def kl_of_rewards(rollout: Rollout, reference: Tensor, config: GroupConfig) -> Tensor:
    """What the KL takes from the reward of each completion, [S, B]."""
    return kl_of_tokens(rollout, reference, config).cumsum(-1)[..., -1]


def regularizer(logprobs: Tensor, entropy: Tensor, batch: Batch, config: GroupConfig) -> Tensor:
    """What is subtracted from the objective of each token, [S, B, T]: the KL, less the bonus."""
    penalty = -broadcast(config.entropy_coef, entropy) * entropy
    if config.kl_in == "loss" and used(config.kl_coef):
        estimate = kl(logprobs, batch.reference, config.kl_estimator)
        if config.kl_estimator == "corrected":
            estimate = estimate * exp(logprobs - batch.logprobs)
        penalty = penalty + broadcast(config.kl_coef, estimate) * estimate
    return penalty


# ---- Metrics -------------------------------------------------------------------------------

OF_TOKENS = ("kl", "clipfrac", "clip_low", "clip_high", "approx_kl")


def of_tokens(
    logprobs: Tensor, ratio: Tensor, part: Any, low: Row, high: Row
) -> tuple[Tensor, ...]:
    """OF_TOKENS of each token, [S, B, T]; low, high: outside of which ratios the clip may act."""
    below, above = ratio < broadcast(low, ratio), ratio > broadcast(high, ratio)
    return (
        kl(logprobs, part.reference),
        below | above,
        below & (part.advantages < 0),
        above & (part.advantages > 0),
        kl(part.logprobs, logprobs),
    )


@torch.no_grad()
def token_sums(
    losses: Tensor, logprobs: Tensor, ratio: Tensor, part: Batch, mask: Tensor,
    low: Row, high: Row,
) -> Tensor:  # fmt: skip
    """A part's losses, tokens and sums of OF_TOKENS, [7, S], for `means_of`."""
    counted = (torch.ones_like(logprobs), *of_tokens(logprobs, ratio, part, low, high))
    return torch.stack([losses, *(total(mask * x) for x in counted)])


def means_of(sums: Tensor) -> dict[str, Tensor]:
    """The metrics of a minibatch from the sums of all its parts, [S] each."""
    loss, tokens, *rest = sums
    means = {name: x / tokens.clamp(min=1) for name, x in zip(OF_TOKENS, rest, strict=True)}
    return {"loss": loss, **means}


def mean_of_updates(updates: Sequence[dict[str, Tensor]]) -> dict[str, Tensor]:
    """The metrics of a step, [S] each, from those of its minibatches."""
    return {k: total(torch.stack([x[k] for x in updates], 1)) / len(updates) for k in updates[0]}


def sample_metrics(
    rollout: Rollout,
    graded: Sequence[Sequence[tasks.Graded]],
    rewards: Tensor,
    G: int,
    run: SeedsRun,
) -> dict[str, Tensor]:
    """What is logged of a step's samples, [S] each, over all processes."""
    accuracy, framed = (measured(graded, name, rollout) for name in ("accuracy", "format"))
    solved = accuracy.unflatten(1, (-1, G)).mean(-1).repeat_interleave(G, 1)
    columns = {
        "reward": rewards,
        "accuracy": accuracy,
        "format": framed,
        "length": rollout.lengths.float(),
        "all_solved": (solved == 1).float(),
        "all_failed": (solved == 0).float(),
    }
    drawn = rollout.lengths > 0  # a seed may have fewer than another
    sums = [total(x * drawn) for x in (*columns.values(), drawn)]
    tokens = total(rollout.entropy), rollout.lengths.sum(1)
    groups = rewards.unflatten(1, (-1, G))
    signal = (groups.amax(-1) > groups.amin(-1)).sum(1)
    if (learned := getattr(run.config, "learn_from", "all")) != "all":  # RLOO's other rewards
        signal = ((accuracy == (learned == "right")) & drawn).sum(1)
    *means, count, entropy, length, signal = run.processes.sum(
        torch.stack([*sums, *tokens, signal])
    )
    metrics = {name: x / count for name, x in zip(columns, means, strict=True)}
    if G > 1:
        run.look_for_signal(signal > 0, partial(no_signal, metrics))
    return {**metrics, **own_metrics(rollout, graded, run), "entropy": entropy / length}


def no_signal(metrics: dict[str, Tensor], seeds: Tensor) -> str:
    """What is said of seeds without a group of different rewards, and what to look at."""
    words = ", ".join(f"{x} {metrics[x][seeds].mean():.3g}" for x in ("reward", "format", "length"))
    return (
        f"all rewards of every group were equal ({words} on average): there is nothing to learn "
        "from; look at completions (llm_track/generate.py --out), at how answers and rewards are "
        "read (--answer, --instruction, --reward), and at --max-new-tokens"
    )


def own_metrics(
    rollout: Rollout, graded: Sequence[Sequence[tasks.Graded]], run: SeedsRun
) -> dict[str, Tensor]:
    """The mean of each function of --reward over the completions that it rewards, [S] each; NaN
    where there are none."""
    means = {}
    for k, named in enumerate(getattr(run.config, "reward", ())):
        rows = [[x.own[k] for x in own if x.own[k] == x.own[k]] for own in graded]
        known = torch.tensor([[math.fsum(own), len(own)] for own in rows]).to(rollout.logprobs)
        sums, counts = run.processes.sum(known).unbind(1)
        means[f"reward/{name_of(named)}"] = sums / counts
    return means


def total(x: Tensor) -> Tensor:
    """The sum of each seed's numbers, [S], of [S, ...]: one after another, so that more padding,
    whose numbers are 0, changes no bit."""
    return x.flatten(1).cumsum(1)[:, -1]


def measured(graded: Sequence[Sequence[tasks.Graded]], name: str, rollout: Rollout) -> Tensor:
    """A field of what is graded, [S, B]; 0 for rows that a seed has not drawn."""
    B = rollout.lengths.shape[1]
    rows = [[float(getattr(x, name)) for x in own] + [0.0] * (B - len(own)) for own in graded]
    return torch.tensor(rows, device=rollout.tokens.device)


# ---- Other forms ---------------------------------------------------------------------------


def pad_left(rows: Prompts, token: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Token ids [S, B, P], padded on the left, and their numbers [S, B]."""
    ids, mask = sampling.pad_rows([x for own in rows for x in own], token, device, left=True)
    return ids.unflatten(0, (len(rows), -1)), mask.sum(1).unflatten(0, (len(rows), -1))


def samples_of(rollout: Rollout) -> sampling.Samples:
    """A rollout of one seed as sampling.py takes it."""
    P = rollout.prompts.shape[-1]
    columns = torch.arange(P, device=rollout.prompts.device)
    prompt_mask = columns >= P - rollout.prompt_lengths.unsqueeze(-1)
    known = rollout.prompts, prompt_mask, rollout.tokens, rollout.mask, rollout.ended
    return sampling.Samples(*(x[0] for x in (*known, rollout.logprobs, rollout.entropy)))


def rollout_of(samples: sampling.Samples) -> Rollout:
    """Samples of one model as a rollout of one seed."""
    known = samples.prompts, samples.prompt_mask.sum(1), samples.tokens, samples.lengths
    rest = samples.ended, samples.logprobs, samples.entropy
    return Rollout(*(x.unsqueeze(0) for x in (*known, *rest)))


def trimmed(batch: AnyRollout) -> AnyRollout:
    """A batch without columns that are padding in all rows."""
    P, T = int(batch.prompt_lengths.max()), int(batch.lengths.max())
    kept = {}
    for f in fields(batch):
        x = getattr(batch, f.name)
        kept[f.name] = x[..., -P:] if f.name == "prompts" else x[..., :T] if x.dim() > 2 else x
    return type(batch)(**kept)


# ---- Of some seeds, and of several draws ---------------------------------------------------


def joined(parts: Sequence[Rollout]) -> Rollout:
    """The rows of rollouts of the same seeds one after another, padded to the longest."""
    P, T = (max(getattr(x, name).shape[-1] for x in parts) for name in ("prompts", "tokens"))

    def padded(name: str, x: Tensor) -> Tensor:
        if name == "prompts":
            return pad(x, (P - x.shape[-1], 0))
        return pad(x, (0, T - x.shape[-1])) if x.dim() > 2 else x

    return Rollout(**{
        f.name: torch.cat([padded(f.name, getattr(x, f.name)) for x in parts], 1)
        for f in fields(Rollout)
    })  # fmt: skip


def spread(rollout: Rollout, seeds: Sequence[int], S: int) -> Rollout:
    """A rollout of some of S seeds as one of all of them; the others have empty rows."""
    whole = {}
    for f in fields(Rollout):
        x = getattr(rollout, f.name)
        whole[f.name] = x.new_full((S, *x.shape[1:]), f.name == "prompt_lengths")
        whole[f.name][list(seeds)] = x
    return Rollout(**whole)
