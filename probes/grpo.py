"""The formulas of GRPO for control, and what each is mistaken for.

Shapes: L steps of K groups of G episodes, M samples.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from manyseeds.algos import grpo
from manyseeds.probes.actor_critic import OF_RATIO, SAMPLES, example_samples, negated, normalized
from manyseeds.probes.compare import Batch, Formula, Function, Mistake, changed
from manyseeds.probes.examples import M, chance, earlier, later, normal, times, without


def grpo_advantages(rewards: Tensor, alive: Tensor, gamma: float, **kind: Any) -> Any:
    """kind: further settings of the Config, for mistakes."""
    config = grpo.Config(gamma=gamma, **kind)
    return grpo.group_advantages(rewards.unsqueeze(0), alive.unsqueeze(0), config).squeeze(0)


def example_of_groups() -> Batch:
    L, K, G = 9, 3, 6
    lengths = torch.arange(K * G).view(K, G) * 5 % L + 1
    alive = torch.arange(L).view(L, 1, 1) < lengths
    return {"rewards": normal(L, K, G, seed=20) * alive, "alive": alive, "gamma": 0.9}


def kind(**settings: Any) -> Mistake:
    return lambda f, b: f(**b | settings)


def population(f: Function, b: Batch) -> Any:
    """ddof 0: by how many peers each number has."""
    n = b["alive"].sum(-1, keepdim=True)
    return f(**b) * (n / (n - 1).clamp(min=1)).sqrt()


def exchanged(f: Function, b: Batch) -> Any:
    axes = {k: b[k].transpose(1, 2) for k in ("rewards", "alive")}
    return f(**b | axes).transpose(1, 2)


OF_GROUPS: dict[str, Mistake] = {
    "advantages are not divided by the standard deviation of the group": kind(std="none"),
    "the standard deviation is that of the update, not of the group": kind(std="batch"),
    "the standard deviation is that of the population (ddof 0)": population,
    "episodes that have ended count as peers, with a return of 0": kind(peers="all"),
    "every step has the advantage of its whole episode": kind(advantage="outcome"),
    "rewards are normalised, not returns": kind(advantage="process"),
    "the axes of groups and episodes are exchanged": exchanged,
    "gamma is not used (1)": changed(gamma=lambda b: 1.0),
    "only the reward of the step is compared (gamma 0)": changed(gamma=lambda b: 0.0),
    "the mean of the group is not subtracted": lambda f, b: (
        grpo.returns_to_go(b["rewards"].unsqueeze(0), b["gamma"]).squeeze(0) * b["alive"]
    ),
    "the end of an episode is told one step late": changed(
        alive=lambda b: torch.cat((b["alive"][:1], b["alive"][:-1]))
    ),
    "the last step of an episode is missing": changed(alive=lambda b: earlier(b["alive"])),
}


def grpo_loss(
    logprobs: Tensor, old_logprobs: Tensor, reference: Tensor, entropy: Tensor, advantages: Tensor,
    mask: Tensor, clip_range: float, clip_range_high: float, kl_coef: float, entropy_coef: float,
) -> Any:  # fmt: skip
    config = grpo.Config(
        clip_range=clip_range, clip_range_high=clip_range_high, kl_coef=kl_coef,
        entropy_coef=entropy_coef,
    )  # fmt: skip
    told = logprobs.unsqueeze(0), entropy.unsqueeze(0)
    actor: Any = SimpleNamespace(evaluate=lambda obs, actions: told)
    samples = (x.unsqueeze(0) for x in (old_logprobs, reference, advantages))
    batch: Any = grpo.Batch(None, None, *samples)  # type: ignore[arg-type]
    return grpo.loss(actor, batch, mask.unsqueeze(0), config)[0].squeeze(0)


def example_of_grpo() -> Batch:
    of_ppo, moved = example_samples(), normal(M, seed=21)
    names = ("logprobs", "old_logprobs", "entropy", "advantages", "entropy_coef")
    return {k: of_ppo[k] for k in names} | {
        "reference": of_ppo["logprobs"] + 0.5 * moved,
        "mask": chance(0.7, M, seed=22),
        "clip_range": 0.2,
        "clip_range_high": 0.28,
        "kl_coef": 0.1,
    }


def without_kl(f: Function, b: Batch) -> Any:
    return without(f, b, "kl_coef", "entropy_coef")


def other_surrogate(change: Callable[[Function, Batch], Any]) -> Mistake:
    """Our loss with another surrogate beside its KL and its entropy."""
    return lambda f, b: f(**b) - without_kl(f, b) + change(lambda **x: without_kl(f, x), b)


def other_kl(estimate: Callable[[Tensor], Tensor]) -> Mistake:
    """Our loss with another estimate of the KL, of log pi - log pi_ref."""

    def mistake(f: Function, b: Batch) -> Any:
        values = estimate(b["logprobs"] - b["reference"])
        wrong = grpo.masked_mean(values.unsqueeze(0), b["mask"].unsqueeze(0)).squeeze(0)
        return without(f, b, "kl_coef") + b["kl_coef"] * wrong

    return mistake


def wrong_clip(f: Function, b: Batch) -> Any:
    return -f(**negated(b))


OF_SURROGATE: dict[str, Mistake] = {
    "the surrogate has the wrong sign": other_surrogate(lambda f, b: -f(**b)),
    "the clip is on the wrong side: the larger of both terms counts": other_surrogate(wrong_clip),
    "the ratio is not clipped": changed(clip_range=lambda b: 0.0, clip_range_high=lambda b: 0.0),
    "the ratio is inverted: old over new": other_surrogate(
        OF_RATIO["the ratio is inverted: old over new"]
    ),
    "the ratio is 1: old log-probabilities are the new ones": other_surrogate(
        OF_RATIO["the ratio is 1: old log-probabilities are the new ones"]
    ),
    "the upper clip range is the lower one": changed(clip_range_high=lambda b: 0.0),
    "the entropy bonus has the wrong sign: entropy is punished": times("entropy_coef", -1),
    "the entropy bonus is missing": times("entropy_coef", 0),
    "the KL has the wrong sign: it is rewarded": times("kl_coef", -1),
    "the KL is missing": times("kl_coef", 0),
    "the gradient does not reach the policy": changed(logprobs=lambda b: b["logprobs"].detach()),
}
OF_KL: dict[str, Mistake] = {
    "the KL is that from the policy to the reference: pi and pi_ref are exchanged": other_kl(
        lambda x: x.exp() - x - 1
    ),
    "the KL is k1, the difference of log-probabilities": other_kl(lambda x: x),
    "the KL is k2, half the squared difference": other_kl(lambda x: x.square() / 2),
}
OF_GRPO: dict[str, Mistake] = (
    OF_SURROGATE
    | OF_KL
    | {
        "the mask is not used": changed(mask=lambda b: torch.ones_like(b["mask"])),
        "masked samples count in the divisor": lambda f, b: (
            f(**b) * (b["mask"].sum() / b["mask"].numel())
        ),
        "the mask is shifted by one step": changed(mask=lambda b: later(b["mask"])),
        "the mask is inverted": changed(mask=lambda b: ~b["mask"]),
        "the loss is a sum, not a mean": lambda f, b: f(**b) * b["mask"].sum(),
        "advantages are normalised once more": changed(
            advantages=lambda b: normalized(b["advantages"])
        ),
    }
)


FORMULAS: dict[str, Formula] = {
    "grpo.advantages": Formula(
        grpo_advantages, example_of_groups, OF_GROUPS, "advantages [L, K, G]",
        {"rewards": "[L, K, G]", "alive": "[L, K, G]", "gamma": ""},
    ),
    "grpo.loss": Formula(
        grpo_loss, example_of_grpo, OF_GRPO, "loss",
        {k: SAMPLES[k] for k in ("logprobs", "old_logprobs", "entropy", "advantages")}
        | {"reference": "[M]", "mask": "[M]"}
        | dict.fromkeys(("clip_range", "clip_range_high", "kl_coef", "entropy_coef"), ""),
        differentiated=("logprobs", "entropy"),
    ),
}  # fmt: skip
