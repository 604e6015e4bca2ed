"""The formulas of GRPO, Dr. GRPO and DAPO for language models, and what each is mistaken for.

Shapes: K prompts with G completions each, B completions, T tokens of the longest one.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from manyseeds.llm_track import dapo, dr_grpo, grpo
from manyseeds.probes.compare import Batch, Formula, Function, Mistake, changed
from manyseeds.probes.examples import later, normal, one_seed, without
from manyseeds.probes.grpo import OF_SURROGATE

TOKENS = ("logprobs", "old_logprobs", "reference", "entropy", "mask")
LENGTHS = (5, 11, 1, 7, 8, 3)  # of the completions of the example


# ---- Advantages ----------------------------------------------------------------------------


def example_of_rewards() -> Batch:
    rewards = normal(4, 5, seed=24).abs()
    rewards[1] = 0.5  # without a signal
    return {"rewards": rewards}


def group_std(b: Batch, correction: int = 1) -> Tensor:
    return b["rewards"].std(-1, correction=correction, keepdim=True)


def rescaled(scale: Callable[[Batch], Tensor]) -> Mistake:
    """Rewards less the mean of their group, divided by something else."""
    return lambda f, b: (b["rewards"] - b["rewards"].mean(-1, keepdim=True)) / scale(b)


def interleaved(f: Function, b: Batch) -> Any:
    """Completions k, k + K, k + 2 K, ... are taken for a group."""
    K, G = b["rewards"].shape
    return f(rewards=b["rewards"].reshape(G, K).T).T.reshape(K, G)


OF_REWARDS: dict[str, Mistake] = {
    "advantages are divided by the standard deviation of the group": rescaled(
        lambda b: group_std(b) + grpo.EPS
    ),
    "advantages are not divided by the standard deviation of the group": rescaled(
        lambda b: torch.ones(())
    ),
    "the standard deviation is that of the population (ddof 0)": rescaled(
        lambda b: group_std(b, 0) + grpo.EPS
    ),
    "the standard deviation is that of all rewards, not of the group": rescaled(
        lambda b: b["rewards"].std() + grpo.EPS
    ),
    "advantages are divided by the variance of the group": rescaled(
        lambda b: group_std(b).square() + grpo.EPS
    ),
    "rewards are normalised over the batch, not within the group": lambda f, b: f(
        rewards=b["rewards"].view(1, -1)
    ).view_as(b["rewards"]),
    "rewards are compared over prompts, not over the completions of one": lambda f, b: (
        f(rewards=b["rewards"].T).T
    ),
    "completions of different prompts are taken for a group: their order is another": interleaved,
    "the mean of the group is not subtracted": lambda f, b: (
        b["rewards"] / (group_std(b) + grpo.EPS)
    ),
    "the baseline is the mean of the others (leave-one-out)": lambda f, b: (
        (b["rewards"] - b["rewards"].mean(-1, keepdim=True))
        * (b["rewards"].shape[-1] / (b["rewards"].shape[-1] - 1))
    ),
}


def group_advantages(function: Function) -> Formula:
    def compute(rewards: Tensor) -> Any:
        return one_seed(function)(rewards)

    shapes = {"rewards": "[K, G]"}
    return Formula(compute, example_of_rewards, OF_REWARDS, "advantages [K, G]", shapes)


# ---- Losses --------------------------------------------------------------------------------


def weights_of_grpo(mask: Tensor) -> Tensor:
    """The mean over the tokens of a completion, then over completions."""
    return grpo.token_weights(mask, mask.shape[1])


def weights_of_dapo(mask: Tensor) -> Tensor:
    """The mean over all tokens."""
    completions, tokens = mask.any(-1).sum(1), mask.sum((1, 2))
    return dapo.token_weights(mask, completions, tokens, True)


def weights_of_dr_grpo(longest: int) -> Callable[[Tensor], Tensor]:
    """The sum over the tokens of a completion by a constant, then the mean over completions."""
    return lambda mask: dr_grpo.token_weights(mask, mask.shape[1], longest)


def token_loss(
    module: Any, weigh: Callable[[Tensor], Tensor], logprobs: Tensor, old_logprobs: Tensor,
    reference: Tensor, entropy: Tensor, advantages: Tensor, mask: Tensor, **settings: Any,
) -> Any:  # fmt: skip
    """The loss of a minibatch by a method's file; weigh: the weight of each token, of the mask."""
    of_tokens = advantages.unsqueeze(-1).expand_as(logprobs)
    samples = {"logprobs": old_logprobs, "reference": reference, "advantages": of_tokens}
    batch = SimpleNamespace(**{k: x.unsqueeze(0) for k, x in samples.items()})
    outputs = logprobs.unsqueeze(0), entropy.unsqueeze(0)
    weights = weigh(mask.unsqueeze(0))
    config = module.Config(**{k: x for k, x in settings.items() if hasattr(module.Config, k)})
    return module.policy_loss(*outputs, batch, weights, config).squeeze(0)


def example_of_tokens() -> Batch:
    shape = len(LENGTHS), 12
    logprobs, change, moved, spread = normal(4, *shape, seed=25)
    lengths = torch.tensor(LENGTHS)
    mask = torch.arange(shape[1]) < lengths.unsqueeze(-1)
    logprobs = -0.5 - logprobs.abs()
    return {
        "logprobs": logprobs,
        "old_logprobs": logprobs - 0.3 * change,
        "reference": logprobs + 0.5 * moved,
        "entropy": 1 + 0.2 * spread,
        "advantages": normal(len(LENGTHS), seed=26),
        "mask": mask,
        "lengths": lengths,
        "clip_range": 0.2,
        "kl_coef": 0.1,
        "entropy_coef": 0.05,
    }


def by_tokens(x: Tensor) -> Tensor:
    """x one token later."""
    return later(x.T).T


def with_lengths(change: Callable[[Tensor], Tensor]) -> Mistake:
    """Masks of other lengths."""

    def mask(b: Batch) -> Tensor:
        lengths = change(b["mask"].sum(-1, keepdim=True))
        return torch.arange(b["mask"].shape[1]) < lengths

    return changed(mask=mask)


def exchanged_kl(f: Function, b: Batch) -> Any:
    other = b | {"logprobs": b["reference"], "reference": b["logprobs"]}
    return without(f, b, "kl_coef") + f(**other) - without(f, other, "kl_coef")


def weighing(weigh: Callable[[Tensor], Tensor]) -> Mistake:
    return changed(weigh=lambda b: weigh)


def setting(name: str, value: Any) -> Mistake:
    return changed(**{name: lambda b: value})


OF_TOKENS: dict[str, Mistake] = OF_SURROGATE | {
    "the mask begins one token late: the first token is missing": changed(
        mask=lambda b: b["mask"] & (torch.arange(b["mask"].shape[1]) > 0)
    ),
    "the mask is shifted by one token": changed(mask=lambda b: by_tokens(b["mask"])),
    "the last token, the end of the sequence, is missing": with_lengths(lambda n: n - 1),
    "one token of padding counts": with_lengths(lambda n: n + 1),
    "the mask is not used: padding counts": changed(mask=lambda b: torch.ones_like(b["mask"])),
    "the mask is inverted": changed(mask=lambda b: ~b["mask"]),
    "log-probabilities are those of the token before": changed(
        logprobs=lambda b: by_tokens(b["logprobs"])
    ),
    "old log-probabilities are those of the token before": changed(
        old_logprobs=lambda b: by_tokens(b["old_logprobs"])
    ),
    "the mean over completions of the mean over their tokens": weighing(weights_of_grpo),
    "the mean over all tokens, not over the completions": weighing(weights_of_dapo),
    "the mean over all tokens and padding": weighing(
        lambda mask: mask / mask.shape[1] / mask.shape[2]
    ),
    "the loss is the sum over tokens, and the mean over completions": weighing(
        lambda mask: mask / mask.shape[1]
    ),
    "the loss is the sum over all tokens": weighing(lambda mask: mask.double()),
    "the KL is that of the exchanged policies: pi and pi_ref have each other's place": exchanged_kl,
    "the KL is k1, the difference of log-probabilities": setting("kl_estimator", "k1"),
    "the KL is k2, half the squared difference": setting("kl_estimator", "k2"),
    "the KL is that to the old policy, not to the reference": changed(
        reference=lambda b: b["old_logprobs"]
    ),
}
SHAPES = dict.fromkeys(TOKENS, "[B, T]") | {"advantages": "[B]", "lengths": "[B]"}
SHAPES |= dict.fromkeys(("clip_range", "kl_coef", "entropy_coef"), "")


def loss(module: Any, weigh: Callable[[Tensor], Tensor] | None, **more: Any) -> Formula:
    """The loss of a method; more: its other hyperparameters. weigh: None: by max_tokens."""

    def compute(lengths: Any = None, max_tokens: int = 0, **batch: Any) -> Any:
        of_mask = weigh or weights_of_dr_grpo(max_tokens)
        return token_loss(module, **{"weigh": of_mask} | batch)

    def example() -> Batch:
        return example_of_tokens() | more

    shapes = SHAPES | dict.fromkeys(more, "")
    differentiated = ("logprobs", "entropy")
    return Formula(compute, example, OF_TOKENS, "loss", shapes, differentiated, ("lengths",))


FORMULAS: dict[str, Formula] = {
    "llm.grpo.advantages": group_advantages(grpo.group_advantages),
    "llm.grpo.loss": loss(grpo, weights_of_grpo),
    "llm.dr_grpo.advantages": group_advantages(dr_grpo.group_advantages),
    "llm.dr_grpo.loss": loss(dr_grpo, None, max_tokens=12),
    "llm.dapo.advantages": group_advantages(dapo.group_advantages),
    "llm.dapo.loss": loss(dapo, weights_of_dapo, clip_range_high=0.28),
}
