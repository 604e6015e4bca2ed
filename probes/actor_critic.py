"""The formulas of PPO and A2C, and what each is mistaken for.

They are computed by the functions of the files, in float64, for one seed. A network is replaced by
what it would return: a loss takes log-probabilities and values, no observations.

Shapes: T steps, N environments, M samples.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from manyseeds.algos import a2c, ppo
from manyseeds.probes.compare import Batch, Formula, Function, Mistake, changed
from manyseeds.probes.examples import (
    M,
    chance,
    earlier,
    ended,
    later,
    never,
    normal,
    one_seed,
    times,
    without,
)

TRANSITIONS = {"rewards": "[T, N]", "values": "[T, N]", "next_values": "[T, N]"}
TRANSITIONS |= {"terminated": "[T, N]", "truncated": "[T, N]", "gamma": "", "gae_lambda": ""}
SAMPLES = {"logprobs": "[M]", "old_logprobs": "[M]", "entropy": "[M]", "values": "[M]"}
SAMPLES |= {"old_values": "[M]", "advantages": "[M]", "returns": "[M]"}
COEFFICIENTS = dict.fromkeys(("value_coef", "entropy_coef", "normalize_advantage"), "")
OF_A2C_SHAPES = {k: x for k, x in SAMPLES.items() if not k.startswith("old_")} | COEFFICIENTS


# ---- Advantages ----------------------------------------------------------------------------


def example_rollout() -> Batch:
    T, N = 24, 5
    terminated, truncated = chance(0.15, T, N, seed=1), chance(0.15, T, N, seed=2)
    terminated[-1] = truncated[-1] = False
    terminated[3, 0] = truncated[3, 0] = truncated[-1, 1] = True
    rewards, values, following = normal(3, T, N)
    # Within an episode V of a successor is that of the next step.
    next_values = torch.where(terminated | truncated, following, earlier(values))
    next_values[-1] = following[-1]
    flags = {"terminated": terminated, "truncated": truncated}
    steps = {"rewards": rewards + 1, "values": values, "next_values": next_values}
    return steps | flags | {"gamma": 0.9, "gae_lambda": 0.8}


def after_reset(b: Batch) -> Tensor:
    """V of the next row of the rollout in the place of V of the final observation."""
    shifted = torch.cat((b["values"][1:], b["next_values"][-1:]))
    return torch.where(b["truncated"], shifted, b["next_values"])


def leaking(f: Function, b: Batch) -> Any:
    """TD errors are right, but their sum goes on behind the ends of episodes."""
    rewards = b["rewards"] - b["gamma"] * b["next_values"] * b["terminated"]
    return f(**b | {"rewards": rewards, "terminated": never(b), "truncated": never(b)})


OF_ADVANTAGES: dict[str, Mistake] = {
    "a termination is bootstrapped, as if it were a truncation": changed(
        terminated=never, truncated=ended
    ),
    "a truncation is not bootstrapped, as if it were a termination": changed(terminated=ended),
    "a step that is terminated and truncated at once is bootstrapped": changed(
        terminated=lambda b: b["terminated"] & ~b["truncated"]
    ),
    "a truncation is bootstrapped by V of the state after the reset, not of the final one": changed(
        next_values=after_reset
    ),
    "a truncation is bootstrapped by V of the state before the step": changed(
        next_values=lambda b: torch.where(b["truncated"], b["values"], b["next_values"])
    ),
    "the sum goes on behind a truncation, into the next episode": changed(truncated=never),
    "the sum goes on behind the ends of episodes": leaking,
    "the ends of episodes are told one step late": changed(
        terminated=lambda b: later(b["terminated"]), truncated=lambda b: later(b["truncated"])
    ),
    "the ends of episodes are told one step early": changed(
        terminated=lambda b: earlier(b["terminated"]), truncated=lambda b: earlier(b["truncated"])
    ),
    "the last step of the rollout is not bootstrapped": changed(
        terminated=lambda b: torch.cat((b["terminated"][:-1], ~b["truncated"][-1:]))
    ),
    "lambda is not used (1)": changed(gae_lambda=lambda b: 1.0),
    "lambda is 0: these are one-step TD errors": changed(gae_lambda=lambda b: 0.0),
    "the decay lacks gamma: lambda alone": changed(
        gae_lambda=lambda b: b["gae_lambda"] / b["gamma"]
    ),
    "gamma and lambda are exchanged": changed(
        gamma=lambda b: b["gae_lambda"], gae_lambda=lambda b: b["gamma"]
    ),
    "gamma is not used (1)": changed(gamma=lambda b: 1.0),
    "rewards are told one step late": changed(rewards=lambda b: later(b["rewards"])),
    "these are returns: V is not subtracted": lambda f, b: f(**b) + b["values"],
    "V is not subtracted in the TD errors": changed(values=lambda b: torch.zeros_like(b["values"])),
    "advantages are normalised over the rollout": lambda f, b: one_seed(ppo.normalize)(
        f(**b).flatten()
    ).view_as(b["rewards"]),
}


def advantages(gae: Function) -> Formula:
    """Generalised advantage estimates by the `gae` of a file."""

    def compute(
        rewards: Tensor, values: Tensor, next_values: Tensor, terminated: Tensor,
        truncated: Tensor, gamma: float, gae_lambda: float,
    ) -> Any:  # fmt: skip
        steps = rewards, values, next_values, terminated, truncated
        return one_seed(gae)(*steps, gamma, gae_lambda)

    return Formula(compute, example_rollout, OF_ADVANTAGES, "advantages [T, N]", TRANSITIONS)


def normalized(advantages: Tensor) -> Any:
    return one_seed(ppo.normalize)(advantages)


def column_by_column(f: Function, b: Batch) -> Any:
    """Where a minibatch is [T, N], as SB3's and CleanRL's are not."""
    return torch.stack([f(advantages=x) for x in b["advantages"].unflatten(0, (4, -1))]).flatten()


OF_NORMALIZED: dict[str, Mistake] = {
    "advantages are not normalised": lambda f, b: b["advantages"] * 1.0,
    "the mean is not subtracted": lambda f, b: b["advantages"] / b["advantages"].std(),
    "advantages are not divided by their standard deviation": lambda f, b: (
        b["advantages"] - b["advantages"].mean()
    ),
    "advantages are divided by their variance": lambda f, b: f(**b) / b["advantages"].std(),
    "the standard deviation is that of the population (ddof 0)": lambda f, b: (
        f(**b) * b["advantages"].std() / b["advantages"].std(correction=0)
    ),
    "advantages are normalised over the wrong axis, in parts": column_by_column,
}


# ---- The losses of PPO and A2C -------------------------------------------------------------


def agent_with(logprobs: Tensor, entropy: Tensor, values: Tensor) -> Any:
    """What stands for an agent: it says of any observations what is given."""
    told = tuple(x.unsqueeze(0) for x in (logprobs, entropy, values))
    return SimpleNamespace(evaluate=lambda obs, actions: told)


def ppo_loss(
    logprobs: Tensor, old_logprobs: Tensor, entropy: Tensor, values: Tensor, old_values: Tensor,
    advantages: Tensor, returns: Tensor, clip_range: float, clip_value_range: float,
    value_coef: float, entropy_coef: float, normalize_advantage: bool,
) -> Any:  # fmt: skip
    coefficients: Batch = {"value_coef": value_coef, "entropy_coef": entropy_coef}
    config = ppo.Config(
        **coefficients, clip_value_range=clip_value_range, normalize_advantage=normalize_advantage
    )
    samples = (x.unsqueeze(0) for x in (old_logprobs, old_values, advantages, returns))
    batch: Any = ppo.Batch(None, None, *samples)  # type: ignore[arg-type]
    bound: Any = clip_range or None
    return ppo.loss(agent_with(logprobs, entropy, values), batch, config, bound)[0].squeeze(0)


def a2c_loss(
    logprobs: Tensor, entropy: Tensor, values: Tensor, advantages: Tensor, returns: Tensor,
    value_coef: float, entropy_coef: float, normalize_advantage: bool,
) -> Any:  # fmt: skip
    coefficients: Batch = {"value_coef": value_coef, "entropy_coef": entropy_coef}
    config = a2c.Config(**coefficients, normalize_advantage=normalize_advantage)
    samples = (x.unsqueeze(0) for x in (values.detach(), advantages, returns))
    batch: Any = a2c.Batch(None, None, *samples)  # type: ignore[arg-type]
    return a2c.loss(agent_with(logprobs, entropy, values), batch, config)[0].squeeze(0)


def example_samples() -> Batch:
    logprobs, change, values, moved, advantages = normal(5, M, seed=3)
    logprobs = -1 - logprobs.abs()
    old_values = values + 0.3 * moved
    return {
        "logprobs": logprobs,
        "old_logprobs": logprobs - 0.4 * change,
        "entropy": 1 + 0.2 * normal(M, seed=4),
        "values": values,
        "old_values": old_values,
        "advantages": 3 * advantages + 1,
        "returns": 3 * advantages + 1 + old_values,
        "value_coef": 0.6,
        "entropy_coef": 0.05,
    }


def example_of_ppo() -> Batch:
    settings = {"clip_range": 0.2, "clip_value_range": 0.0, "normalize_advantage": True}
    return example_samples() | settings


def example_of_a2c() -> Batch:
    samples = example_samples()
    samples["returns"] = samples["advantages"] + samples["values"]
    del samples["old_logprobs"], samples["old_values"]
    return samples | {"normalize_advantage": False}


def policy_part(f: Function, b: Batch) -> Any:
    return without(f, b, "value_coef", "entropy_coef")


def negated(b: Batch) -> Batch:
    return b | {"advantages": -b["advantages"]}


OF_ACTOR_CRITIC: dict[str, Mistake] = {
    "the policy loss has the wrong sign": lambda f, b: f(**b) - 2 * policy_part(f, b),
    "the policy loss is a sum, not a mean": lambda f, b: (
        f(**b) + (b["advantages"].numel() - 1) * policy_part(f, b)
    ),
    "the entropy bonus has the wrong sign: entropy is punished": times("entropy_coef", -1),
    "the entropy bonus is missing": times("entropy_coef", 0),
    "the entropy bonus is a sum, not a mean": lambda f, b: times(
        "entropy_coef", b["advantages"].numel()
    )(f, b),
    "the value loss is half as large": times("value_coef", 0.5),
    "the value loss is twice as large": times("value_coef", 2),
    "the value loss lacks its coefficient": changed(value_coef=lambda b: 1.0),
    "the value loss has the wrong sign": times("value_coef", -1),
    "the value loss is missing": times("value_coef", 0),
    "the value loss learns from advantages, not from returns": changed(
        returns=lambda b: b["advantages"]
    ),
    "advantages are not normalised": changed(normalize_advantage=lambda b: False),
    "advantages are normalised": changed(normalize_advantage=lambda b: True),
    "the standard deviation of advantages is that of the population (ddof 0)": changed(
        advantages=lambda b: (
            normalized(b["advantages"])
            * (b["advantages"].std() / b["advantages"].std(correction=0))
        ),
        normalize_advantage=lambda b: False,
    ),
    "returns stand in the place of advantages": changed(advantages=lambda b: b["returns"]),
    "the gradient flows through the advantages into V": changed(
        advantages=lambda b: b["advantages"] + b["values"].detach() - b["values"]
    ),
    "the gradient does not reach the policy": changed(logprobs=lambda b: b["logprobs"].detach()),
    "V has no gradient, or the returns have one, too": changed(
        values=lambda b: b["values"].detach()
    ),
    "the gradient of the entropy is missing": changed(entropy=lambda b: b["entropy"].detach()),
}


def other_policy_loss(change: Callable[[Function, Batch], Any]) -> Mistake:
    """Our loss with another loss of the policy."""
    return lambda f, b: f(**b) - policy_part(f, b) + change(partial_policy(f), b)


def partial_policy(f: Function) -> Function:
    return lambda **b: policy_part(f, b)


def clipped_logprobs(b: Batch) -> Tensor:
    """Those whose ratio is the clipped one."""
    ratio = (b["logprobs"] - b["old_logprobs"]).exp()
    return b["old_logprobs"] + ratio.clamp(1 - b["clip_range"], 1 + b["clip_range"]).log()


def larger_error(f: Function, b: Batch) -> Any:
    """CleanRL's value clipping, with clip_range."""
    old = b["old_values"]
    moved = old + (b["values"] - old).clamp(-b["clip_range"], b["clip_range"])
    errors = [(x - b["returns"]).square() for x in (b["values"], moved)]
    rest = without(f, b, "value_coef")
    return rest + b["value_coef"] * torch.maximum(*errors).mean()


OF_RATIO: dict[str, Mistake] = {
    "the ratio is inverted: old over new": changed(
        logprobs=lambda b: 2 * b["old_logprobs"] - b["logprobs"]
    ),
    "the ratio is 1: old log-probabilities are the new ones": changed(
        old_logprobs=lambda b: b["logprobs"].detach()
    ),
    "the ratio is a product of probabilities: log-probabilities are added": changed(
        old_logprobs=lambda b: -b["old_logprobs"]
    ),
}
OF_PPO: dict[str, Mistake] = OF_ACTOR_CRITIC | {
    "the clip is on the wrong side: the larger of both terms counts": other_policy_loss(
        lambda f, b: -f(**negated(b))
    ),
    "the ratio is not clipped": changed(clip_range=lambda b: 0.0),
    "only the clipped term counts, not the smaller of both": other_policy_loss(
        lambda f, b: f(**b | {"logprobs": clipped_logprobs(b)})
    ),
    "the ratio is inverted: old over new": other_policy_loss(
        OF_RATIO["the ratio is inverted: old over new"]
    ),
    "the ratio is 1: old log-probabilities are the new ones": other_policy_loss(
        OF_RATIO["the ratio is 1: old log-probabilities are the new ones"]
    ),
    "there is no ratio: the loss of A2C": other_policy_loss(
        lambda f, b: one_seed(a2c.policy_loss)(
            b["logprobs"],
            normalized(b["advantages"]) if b["normalize_advantage"] else b["advantages"],
        )
    ),
    "the clip range is twice as large": changed(clip_range=lambda b: 2 * b["clip_range"]),
    "V is clipped by clip_range, the bound of the ratio": changed(
        clip_value_range=lambda b: b["clip_range"]
    ),
    "V is clipped by clip_range, and the larger of both errors counts (CleanRL)": larger_error,
    "V is not clipped": changed(clip_value_range=lambda b: 0.0),
}


def ratios(logprobs: Tensor, old_logprobs: Tensor) -> Any:
    """-M times the gradient of the unclipped loss with respect to the advantages."""
    weights = torch.ones_like(logprobs, requires_grad=True)
    names = "entropy", "values", "old_values", "returns"
    of_value: Batch = dict.fromkeys(names, logprobs.detach())
    settings: Batch = dict.fromkeys(
        ("clip_range", "clip_value_range", "value_coef", "entropy_coef"), 0.0
    )
    loss = ppo_loss(
        logprobs.detach(), old_logprobs.detach(), advantages=weights, **of_value, **settings,
        normalize_advantage=False,
    )  # fmt: skip
    return -logprobs.numel() * torch.autograd.grad(loss, weights)[0]


FORMULAS: dict[str, Formula] = {
    "ppo.advantages": advantages(ppo.gae),
    "ppo.normalized": Formula(
        lambda advantages: normalized(advantages),
        lambda: {"advantages": 3 * normal(36, seed=23) + 1},
        OF_NORMALIZED,
        "advantages [M]",
        {"advantages": "[M]"},
    ),
    "ppo.ratio": Formula(
        ratios,
        lambda: {k: example_samples()[k] for k in ("logprobs", "old_logprobs")},
        OF_RATIO | {
            "these are logarithms of ratios": lambda f, b: b["logprobs"] - b["old_logprobs"],
        },
        "ratio [M]",
        {"logprobs": "[M]", "old_logprobs": "[M]"},
    ),
    "ppo.loss": Formula(
        ppo_loss, example_of_ppo, OF_PPO, "loss",
        SAMPLES | dict.fromkeys(("clip_range", "clip_value_range"), "") | COEFFICIENTS,
        differentiated=("logprobs", "entropy", "values"),
    ),
    "a2c.advantages": advantages(a2c.gae),
    "a2c.loss": Formula(
        a2c_loss, example_of_a2c, OF_ACTOR_CRITIC, "loss", OF_A2C_SHAPES,
        differentiated=("logprobs", "entropy", "values"),
    ),
}  # fmt: skip
