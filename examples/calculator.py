"""A calculator as a tool: GRPO in several turns, whose loss leaves out what the tool writes.

    python examples/calculator.py --task addition

When the policy has written `=` behind an expression such as 4+8+1, the calculator writes its value,
and the policy goes on behind it, up to CALLS times. All of it is one completion, which is graded as
any other, also in evaluations. The calculator's tokens are no actions: they have no weight in the
loss, and do not count in the mean over a completion.

Differences from `llm_track/grpo.py`: `sample`, `policy_loss` and what they need.
"""

from __future__ import annotations

from manyseeds.command import parse

import re
from dataclasses import dataclass, replace
from functools import partialmethod
from typing import Any, NamedTuple

import torch
from torch import Tensor

from manyseeds.llm_track import grpo, sampling, tasks
from manyseeds.llm_track.policies import AnyModel, HubModel, SeedModel
from manyseeds.llm_track.rollout import Batch, Prompts, Rollout, pad_left
from manyseeds.runs.language_seeds import SeedsRun, main

CALLS = 4  # of the calculator, for each completion
EXPRESSION = 32  # tokens in which the calculator looks for one
SAMPLE = {kind: kind.sample for kind in (SeedModel, HubModel)}  # without it
LOSS = grpo.policy_loss


@dataclass(frozen=True)
class ToolRollout(Rollout):
    """Completions of several turns."""

    tool: Tensor  # [S, B, T] bool, whether the calculator wrote a token


@dataclass(frozen=True)
class ToolBatch(Batch):
    """The same, to learn from."""

    tool: Tensor  # [S, B, T] bool


class Token(NamedTuple):
    """A token of a completion."""

    id: int
    logprob: float = 0.0
    entropy: float = 0.0
    tool: bool = True


def calculated(text: str) -> str:
    """What the calculator writes behind a text: '' unless it ends with an expression and =."""
    written = re.search(r"([0-9+*/() -]+)=$", text)
    found = written and tasks.arithmetic(written[1])
    return str(found[0]) if found and len(found[1]) > 1 else ""


def sample(
    self: AnyModel,
    prompts: Prompts,
    uniforms: Tensor,
    temperature: float,
    greedy: bool = False,
    *,
    plain: Any,
) -> ToolRollout:
    """Complete the prompts of each seed in turns; plain: completes them in one.

    uniforms: [S, B, T]; a token at a place of a completion is drawn with the number of that place,
    in whichever turn.
    """
    S, B, T = uniforms.shape
    rows: dict[tuple[int, int], list[Token]] = {(s, b): [] for s in range(S) for b in range(B)}
    open_rows, ended = set(rows), torch.zeros(S, B, dtype=torch.bool)
    for call in range(CALLS + 1):
        begun = [
            [[*prompts[s][b], *(x.id for x in rows[s, b])] for b in range(B)] for s in range(S)
        ]
        places = torch.tensor([[len(rows[s, b]) for b in range(B)] for s in range(S)])
        places = (places.unsqueeze(-1) + torch.arange(T)).clamp(max=T - 1).to(uniforms.device)
        part = plain(self, begun, uniforms.gather(-1, places), temperature, greedy)
        columns = [x.tolist() for x in (part.tokens, part.logprobs, part.entropy)]
        for s, b in sorted(open_rows):
            row, n = rows[s, b], int(part.lengths[s, b])
            ended[s, b] = part.ended[s, b] & (len(row) + n <= T)
            for token in zip(*(x[s][b][:n] for x in columns), strict=True):
                row.append(Token(*token, tool=False))
                text = sampling.text_of(self.tokenizer, [x.id for x in row[-EXPRESSION:]])
                if call < CALLS and (value := calculated(text)):
                    ids = self.tokenizer(value, add_special_tokens=False)["input_ids"]
                    row += map(Token, ids)
                    ended[s, b] = False
                    break
            else:
                open_rows.remove((s, b))
            del row[T:]
            if len(row) == T:
                open_rows.discard((s, b))
        if not open_rows:
            break
    rollout = assembled(self, prompts, rows, ended)
    with torch.no_grad():  # a ratio of 1 for the tool's tokens, too
        exact = self.logprobs(rollout, temperature)
    return replace(rollout, logprobs=torch.where(rollout.tool, exact, rollout.logprobs))


def assembled(
    self: AnyModel, prompts: Prompts, rows: dict[tuple[int, int], list[Token]], ended: Tensor
) -> ToolRollout:
    """The tokens of all rows, padded. ended: [S, B]."""
    S, B = ended.shape
    pad = self.tokenizer.pad_token_id
    ids, lengths = pad_left(prompts, pad, self.device)
    longest = max(map(len, rows.values()))
    filled = [row + [Token(pad, tool=False)] * (longest - len(row)) for row in rows.values()]
    tokens, logprobs, entropy, tool = (
        torch.tensor([list(x) for x in column], device=self.device).view(S, B, -1)
        for column in zip(*(zip(*row, strict=True) for row in filled), strict=True)
    )
    counts = torch.tensor([*map(len, rows.values())], device=self.device).view(S, B)
    ended = ended.to(self.device)
    return ToolRollout(ids, lengths, tokens, counts, ended, logprobs, entropy, tool)


def policy_loss(
    logprobs: Tensor, entropy: Tensor, batch: ToolBatch, weights: Tensor, config: grpo.Config
) -> Tensor:
    """GRPO's without the calculator's tokens: the mean over those that the policy wrote, [S]."""
    written = batch.mask & ~batch.tool
    share = batch.mask.sum(-1, keepdim=True) / written.sum(-1, keepdim=True).clamp(min=1)
    return LOSS(logprobs, entropy, batch, weights * written * share, config)


def train(config: grpo.Config, run: SeedsRun) -> AnyModel:
    """Train all seeds of a run; returns their policies."""
    for kind, plain in SAMPLE.items():
        kind.sample = partialmethod(sample, plain=plain)  # type: ignore[assignment]
    grpo.Batch, grpo.policy_loss = ToolBatch, policy_loss  # type: ignore[misc, assignment]
    return grpo.train(config, run)


if __name__ == "__main__":
    main(parse(grpo.Config, grpo.PRESETS, __doc__), train, grpo.PRESETS)
