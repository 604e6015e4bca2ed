"""Exact bias and variance of the LLM track's estimators, by enumerating every completion.

    python benchmarks/llm_oracle.py

A GPT-2 of a few thousand parameters, in double precision, completes K prompts with at most T tokens
of a vocabulary of V. There are so few completions that expectations over them are sums: the
objective J(theta) = E[R] with its gradient, the KL to a reference with its gradient, and of every
estimator of either gradient, from groups of G completions of one prompt, its mean and its variance.

Over groups nothing is sampled either. What an estimator makes of a completion depends on the others
of its group only by how many of them are right and how many tokens they have; the probabilities of
these totals are convolutions. With u_i the gradient of completion i, weighted by token, and c_i its
factor in a group,

    E[g]     = G sum_i p_i E[c_i] u_i
    E[|g|^2] = G sum_i p_i E[c_i^2] |u_i|^2 + G (G - 1) sum_ij p_i p_j E[c_i c_j] u_i . u_j

where the expectations are over the G - 1 and the G - 2 others.

Three tables:

    advantages and averages   of llm_track/grpo.py, dr_grpo.py, dapo.py, and leave-one-out (RLOO)
    k1, k2, k3                each in the reward and in the loss, for the KL to a reference
    clipping                  after a step away from the policy that has sampled

All of it for each of NETWORKS random models: what is said of a bias has to hold in all of them.
The tables are the first one's, with the range over all beside them.

A fourth table needs no network, only the probability that a completion is right: the advantages of
Dr. GRPO in mixed groups, of which some completions are right and some wrong, as dynamic sampling
keeps them.

Writes llm_oracle.json, which report.py shows. With `--results results` it is published.
"""

from __future__ import annotations

from manyseeds.command import failing_in_one_line

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from manyseeds.benchmarks.measurements.measure import origin, write_measured
from manyseeds.cli import ScriptConfig, parse
from manyseeds.llm_track import dr_grpo, grpo
from manyseeds.llm_track.rollout import kl
from manyseeds.process import set_up_process
from manyseeds.untrusted import NAME, ORIGIN

NETWORKS = 10
V, T, G = 5, 4, 8  # tokens (0 ends a completion), longest completion, completions per group
KL_STEP = 0.05  # nats per completion, the KL between a policy and its reference
CLIP_STEP = 0.02  # likewise, between a policy and the one that has sampled
CHUNK = 64  # tokens whose gradients are taken at once

FIGURES = {"scale": float, "cosine": float, "bias": float, "noise": float}
NAMES = "name", "average", "groups"  # of an estimator
EFFECTS = {"length_wrong": float, "entropy": float}


def over(name: str) -> dict[str, Any]:
    """The fields of a row for the least and the most of a figure over the networks."""
    return {f"{name}_least": float, f"{name}_most": float}


FILE = "llm_oracle.json"
STORED: dict[str, Any] = {
    **ORIGIN,
    "networks": int,
    "versions": {"torch": str, "transformers": str},
    "sizes": {"K": int, "V": int, "T": int, "G": int, "completions": int},
    "steps": {"kl": float, "clip": float},
    "prompts": [{"right": float, "length": float}],
    "exact": EFFECTS,
    "estimators": [
        {**dict.fromkeys(NAMES, NAME), **FIGURES, **EFFECTS, **over("bias"), **over("longer")}
    ],
    "kl": [
        {"name": NAME, "place": NAME, "value": float, "std": float, "kl": float}
        | {key: (float, None) for key in (*FIGURES, *over("bias"))}
    ],
    "clips": [{"name": NAME, "above": float, "below": float, **FIGURES, **EFFECTS, **over("left")}],
    "mixed": [
        {"size": int, "right": float, "mixed": float, "bias": float}
        | {f"{of}_{groups}": float for of in ("right", "wrong") for groups in ("all", "mixed")}
    ],
}


@dataclass(frozen=True, kw_only=True)
class Config(ScriptConfig):
    """Exact estimators."""


# ---- All completions --------------------------------------------------------------------------


def completions() -> tuple[Tensor, Tensor]:
    """Tokens [N, T] and mask [N, T] of all completions: ended by token 0, or cut off after T."""
    found = [[*body, 0] for n in range(T) for body in itertools.product(range(1, V), repeat=n)]
    found += [list(body) for body in itertools.product(range(1, V), repeat=T)]
    tokens = torch.tensor([row + [0] * (T - len(row)) for row in found])
    mask = torch.tensor([[True] * len(row) + [False] * (T - len(row)) for row in found])
    return tokens, mask


RULES: tuple[Callable[[Tensor, Tensor], Tensor], ...] = (  # whether completions are right, [N]
    lambda tokens, mask: (tokens == 1).any(1),
    lambda tokens, mask: (tokens == 2).sum(1) >= 2,
    lambda tokens, mask: ~(tokens == 3).any(1) & (mask.sum(1) > 1),
)
K = len(RULES)


def make_model(seed: int) -> Any:
    """A GPT-2 with random weights; token V + k is prompt k. (Llama's norms round to float32.)"""
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=V + K,
        n_embd=16,
        n_layer=1,
        n_head=2,
        n_positions=T + 1,
        initializer_range=0.3,
        bos_token_id=None,
        eos_token_id=None,
        attn_implementation="eager",  # type: ignore[call-arg]
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return GPT2LMHeadModel(config).double().eval()


def moved(model: Any, direction: Sequence[Tensor], length: float) -> Any:
    """A copy of a model whose parameters lie further along a direction."""
    other = make_model(0)
    other.load_state_dict(model.state_dict())
    with torch.no_grad():
        for p, d in zip(other.parameters(), direction, strict=True):
            p += length * d
    return other


def logprobs_of(model: Any, k: int) -> Tensor:
    """Log-probability of each token of all completions of a prompt, [N, T]; differentiable."""
    tokens, mask = completions()
    inputs = torch.cat([torch.full_like(tokens[:, :1], V + k), tokens[:, :-1]], 1)
    logits = model(input_ids=inputs, use_cache=False).logits[..., :V]
    return logits.log_softmax(-1).gather(-1, tokens.unsqueeze(-1)).squeeze(-1) * mask


class Prompt:
    """The N completions of a prompt under a model; gradients are with respect to P parameters."""

    def __init__(self, model: Any, k: int) -> None:
        self.tokens, self.mask = completions()
        self.lengths = self.mask.sum(1)  # [N]
        self.rewards = RULES[k](self.tokens, self.mask).double()  # [N]
        logprobs = logprobs_of(model, k)
        self.scores = gradients(logprobs, list(model.parameters())) * self.mask.unsqueeze(-1)
        self.logprobs = logprobs.detach()  # [N, T]
        self.p = self.logprobs.sum(1).exp()  # [N]
        self.score = self.scores.sum(1)  # [N, P], of whole completions

    def mean(self, values: Tensor) -> Tensor:
        """The expectation of values [N, ...]."""
        return torch.tensordot(self.p, values, dims=1)

    def gradient_of_mean(self, values: Tensor) -> Tensor:
        """The gradient of the expectation of values [N] that do not depend on the parameters."""
        return self.mean(values.unsqueeze(1) * self.score)


def gradients(outputs: Tensor, parameters: list[Tensor]) -> Tensor:
    """The gradient of each output [N, T], [N, T, P]."""
    n = outputs.numel()
    rows = []
    for start in range(0, n, CHUNK):
        each = torch.eye(n, dtype=outputs.dtype)[start : start + CHUNK].view(-1, *outputs.shape)
        found = torch.autograd.grad(
            outputs, parameters, each, retain_graph=True, is_grads_batched=True
        )
        rows.append(torch.cat([g.flatten(1) for g in found], 1))
    return torch.cat(rows).view(*outputs.shape, -1)


def mean_over(prompts: Sequence[Prompt], function: Callable[[Prompt], Tensor]) -> Tensor:
    """The mean of something over prompts, which are equally likely."""
    return torch.stack([function(prompt) for prompt in prompts]).mean(0)


def true_gradient(prompts: Sequence[Prompt]) -> Tensor:
    """The gradient of the expected reward, [P]."""
    return mean_over(prompts, lambda x: x.gradient_of_mean(x.rewards))


# ---- Estimators from groups -------------------------------------------------------------------


@dataclass(frozen=True)
class Estimator:
    """An estimator of the gradient of E[R] from one group of completions of a prompt."""

    name: str
    advantages: Callable[[Tensor], Tensor]  # rewards [1, G] to advantages [1, G]
    average: str  # of the tokens: `sample`, `token` or `constant`
    groups: str = "all"  # or mixed ones only: of the same prompt (`again`), or of `fresh` ones
    low: float = -math.inf  # bounds of the clipped ratio
    high: float = math.inf


def leave_one_out(rewards: Tensor) -> Tensor:
    """Rewards [1, G] minus the mean of the others (Ahmadian et al. 2024, arXiv 2402.14740)."""
    return (rewards - rewards.mean(1, keepdim=True)) * G / (G - 1)


def no_baseline(rewards: Tensor) -> Tensor:
    """The rewards themselves, [1, G]."""
    return rewards


ESTIMATORS = (
    Estimator("REINFORCE, no baseline", no_baseline, "constant"),
    Estimator("leave-one-out (RLOO)", leave_one_out, "constant"),
    Estimator("mean (Dr. GRPO)", dr_grpo.group_advantages, "constant"),
    Estimator("mean, each prompt's groups mixed", dr_grpo.group_advantages, "constant", "again"),
    Estimator("mean, mixed groups of any prompts", dr_grpo.group_advantages, "constant", "fresh"),
    Estimator("mean, per sample", dr_grpo.group_advantages, "sample"),
    Estimator("mean and std, constant", grpo.group_advantages, "constant"),
    Estimator("mean and std, per sample (GRPO)", grpo.group_advantages, "sample"),
    Estimator("mean and std, per token (DAPO)", grpo.group_advantages, "token"),
)
CLIPS = (  # of the ratio; the advantages are Dr. GRPO's
    ("none", -math.inf, math.inf),
    ("0.2, 0.2", 0.8, 1.2),
    ("0.2, 0.28", 0.8, 1.28),
    ("0.2, 0.5", 0.8, 1.5),
)


def advantage_table(advantages: Callable[[Tensor], Tensor], size: int) -> Tensor:
    """Of a wrong and of a right completion in a group of `size` with k right ones, [2, size + 1];
    NaN where there is none."""
    table = torch.full((2, size + 1), math.nan, dtype=torch.float64)
    for k in range(size + 1):
        group = torch.tensor([[1.0] * k + [0.0] * (size - k)], dtype=torch.float64)
        found = advantages(group)[0]
        if k > 0:
            table[1, k] = found[0]
        if k < size:
            table[0, k] = found[-1]
    return table


def token_weight(average: str, length: Tensor, total: Tensor) -> Tensor:
    """The weight of each token of a completion in a group with so many tokens."""
    return {"sample": 1 / (length * G), "token": 1 / total, "constant": torch.tensor(1 / (T * G))}[
        average
    ]


def totals(types: Tensor, members: int) -> Tensor:
    """Probabilities of the right completions and of the tokens of so many, [members + 1, tokens +
    1], from those of one: types [2, T + 1], wrong or right and by length."""
    found = torch.ones(1, 1, dtype=torch.float64)
    for _ in range(members):
        k, tokens = found.shape
        wider = torch.zeros(k + 1, tokens + T, dtype=torch.float64)
        for right in range(2):
            for length in range(1, T + 1):
                wider[right : right + k, length : length + tokens] += types[right, length] * found
        found = wider
    return found


def moments(prompts: Sequence[Prompt], sampled: Sequence[Prompt], estimator: Estimator) -> Any:
    """Mean [P] and expected squared length of an estimate, over prompts and groups.

    sampled: the same prompts under the policy that samples. Where mixed groups only are kept, the
    estimate of any other has to be 0, as it is with advantages relative to the group.
    """
    means, squares, mixed = [], [], []
    for now, then in zip(prompts, sampled, strict=True):
        types = torch.zeros(2, T + 1, dtype=torch.float64)
        types.index_put_((then.rewards.long(), then.lengths), then.p, accumulate=True)
        table = advantage_table(estimator.advantages, G)

        def factor(
            right: int, length: int, k: Tensor, tokens: Tensor, table: Tensor = table
        ) -> Tensor:
            """Advantage times token weight in a group with so many right ones and tokens."""
            weight = token_weight(estimator.average, torch.tensor(float(length)), tokens)
            return table[right, k] * weight

        # A token's gradient is its score times its ratio, and 0 where the clip holds it.
        ratio = (now.logprobs - then.logprobs).exp()
        free = torch.where(
            then.rewards.unsqueeze(1) == 1, ratio <= estimator.high, ratio >= estimator.low
        )
        u = (now.scores * (ratio * free).unsqueeze(-1)).sum(1)  # [N, P]
        kinds = [(r, n) for r in range(2) for n in range(1, T + 1) if types[r, n] > 0]
        members = {(r, n): (then.rewards == r) & (then.lengths == n) for r, n in kinds}
        sums = {kind: then.p[rows] @ u[rows] for kind, rows in members.items()}  # [P]
        lengths = {kind: then.p[rows] @ u[rows].square().sum(1) for kind, rows in members.items()}

        one, two = totals(types, G - 1), totals(types, G - 2)
        mean, square = torch.zeros_like(sums[kinds[0]]), torch.zeros((), dtype=torch.float64)
        for r, n in kinds:
            k, tokens = grid(one)
            c = factor(r, n, k + r, tokens + n)
            mean = mean + G * (one * c).sum() * sums[r, n]
            square = square + G * (one * c.square()).sum() * lengths[r, n]
        k, tokens = grid(two)
        for (r, n), (s, m) in itertools.product(kinds, kinds):
            in_group = k + r + s, tokens + n + m
            both = factor(r, n, *in_group) * factor(s, m, *in_group)
            square = square + G * (G - 1) * (two * both).sum() * (sums[r, n] @ sums[s, m])
        means.append(mean)
        squares.append(square)
        right = types[1].sum()
        mixed.append(1 - right**G - (1 - right) ** G)
    # A prompt is drawn until a group is mixed; or prompts are drawn, and those left out whose group
    # is not: then each has its share P(mixed) of the groups kept, so that the two factors cancel.
    share = torch.stack(mixed)
    weights = {"all": torch.ones_like(share), "again": 1 / share, "fresh": 1 / share.mean()}
    weight = weights[estimator.groups].expand_as(share)
    return (
        (weight.unsqueeze(1) * torch.stack(means)).mean(0),
        (weight * torch.stack(squares)).mean(),
    )


def grid(probabilities: Tensor) -> tuple[Tensor, Tensor]:
    """The right completions and the tokens that each entry of `totals` stands for."""
    k, tokens = (torch.arange(n) for n in probabilities.shape)
    return k.unsqueeze(1).expand_as(probabilities), tokens.unsqueeze(0).expand_as(probabilities)


def compared(mean: Tensor, square: Tensor, true: Tensor) -> dict[str, float]:
    """An estimate's mean and variance beside the true gradient.

    scale: by which the estimator multiplies the gradient; cosine: between both; bias: length of
    what is left beside the scaled gradient; noise: trace of the covariance; the last two relative
    to the scaled gradient's length, squared for the noise.
    """
    scale = (mean @ true / true.square().sum()).item()
    left = (mean - scale * true).norm() / true.norm()
    noise = (square - mean.square().sum()) / true.square().sum()
    cosine = mean @ true / mean.norm() / true.norm()
    return {
        "scale": scale,
        "cosine": cosine.item(),
        "bias": left.item() / abs(scale),
        "noise": noise.item() / scale**2,
    }


def side_effects(prompts: Sequence[Prompt], mean: Tensor) -> dict[str, float]:
    """What else a small step along an estimator's mean changes, per unit of expected reward: the
    mean length of wrong completions in tokens, and the entropy of completions in nats."""

    def length_of_wrong(x: Prompt) -> Tensor:
        wrong = 1 - x.rewards
        share = x.mean(wrong)
        expected = x.mean(wrong * x.lengths) / share
        return x.gradient_of_mean(wrong * (x.lengths - expected)) / share

    def entropy(x: Prompt) -> Tensor:
        return -x.gradient_of_mean(x.logprobs.sum(1))

    gained = mean @ true_gradient(prompts)
    return {
        "length_wrong": (mean @ mean_over(prompts, length_of_wrong) / gained).item(),
        "entropy": (mean @ mean_over(prompts, entropy) / gained).item(),
    }


# ---- Mixed groups ------------------------------------------------------------------------------

SIZES = (2, 8, 16)  # of groups
SHARES = (0.02, 0.1, 0.5, 0.9, 0.98)  # of right completions


def mixed_groups(right: float, size: int) -> dict[str, Any]:
    """Means of Dr. GRPO's advantages in groups of completions that are right with a probability.

    mixed: the share of groups with right and wrong ones. right_all, wrong_all: over all groups, the
    mean advantage of a right and of a wrong completion; right_mixed, wrong_mixed: over mixed ones.
    bias: the mean of the difference to the true advantage, which is the reward minus its
    expectation, over the completions of mixed groups.
    """
    table = advantage_table(dr_grpo.group_advantages, size)
    k, p = torch.arange(size), torch.tensor(right, dtype=torch.float64)
    counts = torch.tensor([math.comb(size - 1, n) for n in range(size)], dtype=torch.float64)
    others = counts * p**k * (1 - p) ** (size - 1 - k)  # P(k of the others are right)
    mixed = 1 - right**size - (1 - right) ** size
    found: dict[str, Any] = {"size": size, "right": right, "mixed": mixed, "bias": 0.0}
    for reward, of in enumerate(("wrong", "right")):
        advantages, kept = table[reward, k + reward], (k + reward > 0) & (k + reward < size)
        in_mixed = (others * kept).sum()
        found[f"{of}_all"] = (others * advantages).sum().item()
        found[f"{of}_mixed"] = ((others * kept * advantages).sum() / in_mixed).item()
        # The share of these completions in mixed groups, times what they differ by.
        share = (right if reward else 1 - right) * in_mixed.item() / mixed
        found["bias"] += share * (found[f"{of}_mixed"] - (reward - right))
    return found


# ---- Estimators of the KL ---------------------------------------------------------------------


def kl_terms(x: Prompt, reference: Prompt) -> dict[str, tuple[Tensor, Tensor]]:
    """k1, k2, k3 of each token [N, T], and their derivatives by its log-probability."""
    difference = x.logprobs - reference.logprobs
    return {
        "k1": (difference, x.mask.double()),
        "k2": (difference.square() / 2, difference),
        "k3": (kl(x.logprobs, reference.logprobs), 1 - (-difference).exp()),
    }


def measure_kl(prompts: Sequence[Prompt], references: Sequence[Prompt]) -> list[dict[str, Any]]:
    """Each estimator of the KL of a completion: its value, and both of its gradients.

    Every completion is an estimate of its own, with the sum over its tokens.
    """
    pairs = list(zip(prompts, references, strict=True))
    differences = [(x.logprobs - y.logprobs).sum(1) for x, y in pairs]
    kl = torch.stack([x.mean(d) for (x, _), d in zip(pairs, differences, strict=True)]).mean()
    each = [x.gradient_of_mean(d) for (x, _), d in zip(pairs, differences, strict=True)]
    true = torch.stack(each).mean(0)
    rows: list[dict[str, Any]] = []
    for name in ("k1", "k2", "k3"):
        terms = [kl_terms(x, y)[name] for x, y in pairs]
        values = [(x, value.sum(1)) for (x, _), (value, _) in zip(pairs, terms, strict=True)]
        mean = torch.stack([x.mean(value) for x, value in values]).mean()
        square = torch.stack([x.mean(value.square()) for x, value in values]).mean()
        by_reward = [value.unsqueeze(1) * x.score for x, value in values]
        by_loss = [
            (slope.unsqueeze(-1) * x.scores).sum(1)
            for (x, _), (_, slope) in zip(pairs, terms, strict=True)
        ]
        for place, found in (("reward", by_reward), ("loss", by_loss)):
            g = torch.stack([x.mean(g) for x, g in zip(prompts, found, strict=True)]).mean(0)
            squares = [x.mean(g.square().sum(1)) for x, g in zip(prompts, found, strict=True)]
            zero = g.norm() < 1e-9 * true.norm()  # k1's in the loss: nothing is left but rounding
            row = {"scale": 0.0, "cosine": None, "bias": None, "noise": None}
            if not zero:
                row = {**compared(g, torch.stack(squares).mean(), true)}
            rows.append(
                {
                    "name": name,
                    "place": place,
                    "value": mean.item(),
                    "std": (square - mean.square()).sqrt().item(),
                    "kl": kl.item(),
                    **row,
                }
            )
    return rows


# ---- The measurement --------------------------------------------------------------------------


def prompts_of(model: Any) -> list[Prompt]:
    return [Prompt(model, k) for k in range(K)]


def along_gradient(model: Any, prompts: Sequence[Prompt], step: float) -> list[Prompt]:
    """The prompts after a step along the true gradient, so long that the KL of a completion from
    the old to the new policy is `step`, in nats."""
    true = true_gradient(prompts)
    sizes = [p.numel() for p in model.parameters()]
    pieces = [
        piece.view_as(p) / true.norm()
        for piece, p in zip(true.split(sizes), model.parameters(), strict=True)
    ]
    low, high = 0.0, 8.0
    for _ in range(30):
        middle = (low + high) / 2
        kl = mean_kl(prompts, moved(model, pieces, middle))
        low, high = (low, middle) if kl > step else (middle, high)
    return prompts_of(moved(model, pieces, low))


@torch.no_grad()
def mean_kl(prompts: Sequence[Prompt], model: Any) -> float:
    """KL of completions from the prompts' policy to a model, in nats."""
    sums = [(x.logprobs - logprobs_of(model, k)).sum(1) for k, x in enumerate(prompts)]
    kl = [x.mean(s).item() for x, s in zip(prompts, sums, strict=True)]
    return sum(kl) / K


def measure() -> dict[str, Any]:
    """All tables of the first model, and the ranges over all models."""
    found = []
    for seed in range(1, NETWORKS + 1):
        found.append(measure_model(seed))
        print(f"model {seed} of {NETWORKS}", flush=True)
    return with_ranges(found)


def with_ranges(found: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The first model's tables, and in each row the least and the most over the models.

    bias: as in `compared`; longer: by how many tokens wrong completions grow more than along the
    gradient; left: what a clip leaves of the gradient.
    """

    def bias(tables: dict[str, Any], row: dict[str, Any]) -> float | None:
        return row["bias"]  # type: ignore[no-any-return]

    def longer(tables: dict[str, Any], row: dict[str, Any]) -> float:
        return row["length_wrong"] - tables["exact"]["length_wrong"]  # type: ignore[no-any-return]

    def left(tables: dict[str, Any], row: dict[str, Any]) -> float:
        return row["scale"] / tables["clips"][0]["scale"]  # type: ignore[no-any-return]

    first = dict(found[0])
    for table, measures in (("estimators", (bias, longer)), ("kl", (bias,)), ("clips", (left,))):
        first[table] = [dict(row) for row in first[table]]
        for measure in measures:
            for i, row in enumerate(first[table]):
                values = [measure(tables, tables[table][i]) for tables in found]
                known = [x for x in values if x is not None]
                for name, of in (("least", min), ("most", max)):
                    row[f"{measure.__name__}_{name}"] = of(known) if known else None
    mixed = [mixed_groups(right, size) for size in SIZES for right in SHARES]
    return {"networks": len(found), **first, "mixed": mixed}


def measure_model(seed: int) -> dict[str, Any]:
    """All tables of a random model."""
    model = make_model(seed)
    prompts = prompts_of(model)
    true = true_gradient(prompts)
    estimators = []
    for estimator in ESTIMATORS:
        mean, square = moments(prompts, prompts, estimator)
        figures = compared(mean, square, true) | side_effects(prompts, mean)
        names = {x: getattr(estimator, x) for x in NAMES}
        estimators.append({**names, **figures})
    after = along_gradient(model, prompts, CLIP_STEP)
    ahead = true_gradient(after)
    clips = []
    for name, low, high in CLIPS:
        estimator = Estimator(name, dr_grpo.group_advantages, "constant", low=low, high=high)
        mean, square = moments(after, prompts, estimator)
        figures = compared(mean, square, ahead) | side_effects(after, mean)
        clips.append({"name": name, **clipped(after, prompts, low, high), **figures})
    return {
        "sizes": {"K": K, "V": V, "T": T, "G": G, "completions": len(prompts[0].p)},
        "prompts": [
            {
                "right": x.mean(x.rewards).item(),
                "length": x.mean(x.lengths.double()).item(),
            }
            for x in prompts
        ],
        "exact": side_effects(prompts, true),
        "estimators": estimators,
        "kl": measure_kl(along_gradient(model, prompts, KL_STEP), prompts),
        "steps": {"kl": KL_STEP, "clip": CLIP_STEP},
        "clips": clips,
    }


def clipped(
    now: Sequence[Prompt], then: Sequence[Prompt], low: float, high: float
) -> dict[str, float]:
    """Shares of the sampled tokens whose gradient is clipped from above, and from below."""
    above, below, count = 0.0, 0.0, 0.0
    for x, old in zip(now, then, strict=True):
        ratio, right = (x.logprobs - old.logprobs).exp(), old.rewards.unsqueeze(1) == 1
        above += old.mean((right & (ratio > high) & x.mask).double()).sum().item()
        below += old.mean((~right & (ratio < low) & x.mask).double()).sum().item()
        count += old.mean(x.mask.double()).sum().item()
    return {"above": above / count, "below": below / count}


@failing_in_one_line()
def main(args: Sequence[str] | None = None) -> None:
    """Measure, print, and write the file."""
    config = parse(Config, {}, __doc__, args)
    set_up_process(threads=1)
    begun = origin(["manyseeds.benchmarks.measurements.llm_oracle:measure"], ("transformers",))
    found = measure()
    for row in found["estimators"]:
        print(f"{row['name']:32} cosine {row['cosine']:.6f}, bias {row['bias']:.2e}")
    write_measured(Path(config.results) / FILE, {**begun, **found})


if __name__ == "__main__":
    main()
