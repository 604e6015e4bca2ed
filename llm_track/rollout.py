"""What methods share: completions of all seeds, how they are drawn and graded, and their metrics.

Shapes: S seeds, K prompts of each with G completions, B = K G; P and T tokens of the longest prompt
and completion. Prompts are padded on the left, completions on the right.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, Self, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from manyseeds.llm_track import models, sampling, tasks

if TYPE_CHECKING:
    from manyseeds.runs.language_seeds import SeedsRun


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
    rollout = policy.sample(encode(policy, task, problems), uniforms, config.temperature)
    return rollout, grade(policy, task, problems, rollout)


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
    """The reward of each completion, [S, B]: by rules, and a reward model's score."""
    accuracy, framed = (measured(graded, name, rollout) for name in ("accuracy", "format"))
    rewards = (accuracy + config.format_weight * framed) * config.rules
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
    rates = [models.learning_rate(config.learning_rate, x, config) if x < 1 else 0.0 for x in done]
    return torch.tensor(rates, dtype=torch.float64)


# ---- Metrics -------------------------------------------------------------------------------


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
    *means, count, entropy, length = run.processes.sum(torch.stack([*sums, *tokens]))
    metrics = {name: x / count for name, x in zip(columns, means, strict=True)}
    return {**metrics, "entropy": entropy / length}


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
    P = max(len(row) for own in rows for row in own)
    ids = [[[token] * (P - len(row)) + list(row) for row in own] for own in rows]
    lengths = [[len(row) for row in own] for own in rows]
    return torch.tensor(ids, device=device), torch.tensor(lengths, device=device)


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
