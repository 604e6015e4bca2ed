"""The formulas of SAC, and what each is mistaken for.

Shapes: two critics of M transitions, D components of an action, P parameters.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from manyseeds.algos import sac
from manyseeds.probes.compare import Batch, Formula, Function, Mistake, changed
from manyseeds.probes.dqn import AGAINST, OF_ENDS, OF_NEXT, example_transitions, following
from manyseeds.probes.examples import M, normal

OF_SAC_NEXT = OF_NEXT | dict.fromkeys(("next_q_values", "online_next_q_values"), "[2, M]")
OF_SAC_NEXT |= {"next_logprobs": "[M]", "alpha": "", "gamma": ""}


def sac_target(
    rewards: Tensor, terminated: Tensor, next_q_values: Tensor, next_logprobs: Tensor,
    alpha: float, gamma: float, **_: Any,
) -> Any:  # fmt: skip
    return sac.td_target(
        rewards.unsqueeze(0), terminated.unsqueeze(0), next_q_values.unsqueeze(1),
        next_logprobs.unsqueeze(0), alpha, gamma,
    ).squeeze(0)  # fmt: skip


def critic_loss(q_values: Tensor, factor: float, **of_target: Any) -> Any:
    """factor: of the squared error, 0.5 in sac.py."""
    with torch.no_grad():
        targets = sac_target(**of_target)
    return regression(q_values, targets, factor)


def regression(q_values: Tensor, targets: Tensor, factor: float) -> Any:
    loss = sac.critic_loss(q_values.unsqueeze(1), targets.unsqueeze(0)).squeeze(0)
    return 2 * factor * loss


def actor_loss(logprobs: Tensor, q_values: Tensor, alpha: float) -> Any:
    return sac.actor_loss(logprobs.unsqueeze(0), q_values.unsqueeze(1), alpha).squeeze(0)


def alpha_loss(log_alpha: Tensor, logprobs: Tensor, target_entropy: float) -> Any:
    temperature: Any = SimpleNamespace(log_alpha=log_alpha, target_entropy=target_entropy)
    return sac.Temperature.loss(temperature, logprobs.unsqueeze(0)).squeeze(0)


def squashed(mean: Tensor, log_std: Tensor, noise: Tensor) -> Any:
    policy = sac.SquashedGaussian(mean.unsqueeze(0), log_std.unsqueeze(0))
    actions, logprobs = policy.sample(noise.unsqueeze(0))
    return {"logprobs": logprobs.squeeze(0), "actions": actions.squeeze(0)}


def example_of_sac_target() -> Batch:
    next_q_values, online = normal(2, 2, M, seed=13)
    return example_transitions() | {
        "next_q_values": 2 * next_q_values,
        "online_next_q_values": 2 * online,
        "next_logprobs": normal(M, seed=14) - 1,
        "alpha": 0.3,
        "gamma": 0.9,
    }


def example_of_critic_loss() -> Batch:
    return example_of_sac_target() | {"q_values": normal(2, M, seed=15), "factor": 0.5}


def example_of_actor_loss() -> Batch:
    return {"logprobs": normal(M, seed=16) - 1, "q_values": normal(2, M, seed=17), "alpha": 0.3}


def example_of_alpha_loss() -> Batch:
    logprobs = normal(M, seed=18) + 0.7
    return {"log_alpha": torch.tensor(-1.2).double(), "logprobs": logprobs, "target_entropy": -3.0}


def example_of_squashed() -> Batch:
    mean, log_std, noise = normal(3, M, 3, seed=19)
    return {"mean": 0.5 * mean, "log_std": 0.3 * log_std - 0.5, "noise": noise}


def twins(name: str) -> dict[str, Mistake]:
    """What is mistaken for the smaller of two critics, [2, M]."""
    return {
        "the mean of both critics, not the smaller": changed(
            **{name: lambda b: b[name].mean(0, keepdim=True)}
        ),
        "the larger of both critics, not the smaller": changed(
            **{name: lambda b: b[name].amax(0, keepdim=True)}
        ),
        "only the first critic is used, not the smaller of both": changed(
            **{name: lambda b: b[name][:1]}
        ),
        "only the second critic is used, not the smaller of both": changed(
            **{name: lambda b: b[name][1:]}
        ),
    }


OF_SAC_TARGET: dict[str, Mistake] = (
    OF_ENDS
    | twins("next_q_values")
    | {
        "the entropy term is missing": changed(alpha=lambda b: 0.0),
        "the entropy term has the wrong sign": changed(next_logprobs=lambda b: -b["next_logprobs"]),
        "the entropy term lacks alpha": changed(alpha=lambda b: 1.0),
        "the entropy term stays at a termination, and is not discounted": lambda f, b: (
            f(**b | {"alpha": 0.0}) - b["alpha"] * b["next_logprobs"]
        ),
        "the target critics are not used": changed(
            next_q_values=lambda b: b["online_next_q_values"]
        ),
    }
)


def both_critics(f: Function, b: Batch) -> Any:
    """Each critic has its own target."""
    return sum(
        f(
            **b
            | {"q_values": b["q_values"][k : k + 1], "next_q_values": b["next_q_values"][k : k + 1]}
        )
        for k in range(2)
    )


OF_CRITIC_LOSS: dict[str, Mistake] = (OF_SAC_TARGET) | {
    "the loss is half as large (the mean over both critics, not their sum)": lambda f, b: (
        0.5 * f(**b)
    ),
    "the loss is twice as large: without its factor": lambda f, b: 2 * f(**b),
    "the loss is a sum, not a mean": lambda f, b: len(b["rewards"]) * f(**b),
    "every critic learns from its own target, not from the smaller of both": both_critics,
    "only the first critic learns": changed(q_values=lambda b: b["q_values"][:1]),
    "the gradient flows through the target": lambda f, b: regression(
        b["q_values"], sac_target(**b), b["factor"]
    ),
}
OF_ACTOR_LOSS: dict[str, Mistake] = twins("q_values") | {
    "the loss has the wrong sign": lambda f, b: -f(**b),
    "Q has the wrong sign": changed(q_values=lambda b: -b["q_values"].amin(0, keepdim=True)),
    "the entropy term has the wrong sign": changed(alpha=lambda b: -b["alpha"]),
    "the entropy term is missing": changed(alpha=lambda b: 0.0),
    "the entropy term lacks alpha": changed(alpha=lambda b: 1.0),
    "alpha multiplies Q, too": lambda f, b: b["alpha"] * f(**b | {"alpha": 1.0}),
    "the loss is a sum, not a mean": lambda f, b: len(b["logprobs"]) * f(**b),
    "the gradient does not flow through Q": changed(q_values=lambda b: b["q_values"].detach()),
    "the gradient does not flow through the log-probabilities": changed(
        logprobs=lambda b: b["logprobs"].detach()
    ),
}
OF_ALPHA_LOSS: dict[str, Mistake] = {
    "the loss has the wrong sign: alpha grows where entropy is too high": lambda f, b: -f(**b),
    "the target entropy has the wrong sign": changed(target_entropy=lambda b: -b["target_entropy"]),
    "the target entropy is missing": changed(target_entropy=lambda b: 0.0),
    "alpha stands in the place of log(alpha), as in the paper and in CleanRL": changed(
        log_alpha=lambda b: b["log_alpha"].exp()
    ),
    "the gradient flows through the log-probabilities into the policy": lambda f, b: (
        -b["log_alpha"] * (b["logprobs"] + b["target_entropy"]).mean()
    ),
    "entropy is log pi, without its minus": changed(logprobs=lambda b: -b["logprobs"]),
}


def of_tanh(f: Function, b: Batch) -> Tensor:
    """What tanh takes from the log-probability, [M, D]."""
    u = b["mean"] + b["log_std"].exp() * b["noise"]
    return (1 - u.tanh().square()).log()


def adding(change: Callable[[Function, Batch], Tensor]) -> Mistake:
    """Our log-probabilities plus a term."""
    return lambda f, b: f(**b) | {"logprobs": f(**b)["logprobs"] + change(f, b)}


def density_at_action(f: Function, b: Batch) -> Tensor:
    """The normal density at tanh(u) in the place of that at u."""
    std = b["log_std"].exp()
    z = ((b["mean"] + std * b["noise"]).tanh() - b["mean"]) / std
    return (0.5 * (b["noise"].square() - z.square())).sum(-1)


OF_SQUASHED: dict[str, Mistake] = {
    "the derivative of tanh is missing": adding(lambda f, b: of_tanh(f, b).sum(-1)),
    "the derivative of tanh has the wrong sign": adding(lambda f, b: 2 * of_tanh(f, b).sum(-1)),
    "only the derivative of the first component's tanh counts": adding(
        lambda f, b: of_tanh(f, b)[:, 1:].sum(-1)
    ),
    "the normal density is that of tanh(u), not of u": adding(density_at_action),
    "the mean over the components, not the sum": lambda f, b: (
        f(**b) | {"logprobs": f(**b)["logprobs"] / b["mean"].shape[-1]}
    ),
    "log_std is taken for the logarithm of the variance": changed(
        log_std=lambda b: b["log_std"] / 2
    ),
    "actions are not squashed": lambda f, b: (
        f(**b) | {"actions": b["mean"] + b["log_std"].exp() * b["noise"]}
    ),
    "log-probabilities have the wrong sign": lambda f, b: (
        f(**b) | {"logprobs": -f(**b)["logprobs"]}
    ),
}


FORMULAS: dict[str, Formula] = {
    "sac.target": Formula(
        sac_target, example_of_sac_target, OF_SAC_TARGET, "targets [M]", OF_SAC_NEXT,
        optional=AGAINST,
    ),
    "sac.critic_loss": Formula(
        critic_loss, example_of_critic_loss, OF_CRITIC_LOSS, "loss",
        OF_SAC_NEXT | {"q_values": "[2, M]", "factor": ""},
        differentiated=("q_values", "next_q_values", "next_logprobs"), optional=AGAINST,
    ),
    "sac.actor_loss": Formula(
        actor_loss, example_of_actor_loss, OF_ACTOR_LOSS, "loss",
        {"logprobs": "[M]", "q_values": "[2, M]", "alpha": ""},
        differentiated=("logprobs", "q_values"),
    ),
    "sac.alpha_loss": Formula(
        alpha_loss, example_of_alpha_loss, OF_ALPHA_LOSS, "loss",
        {"log_alpha": "[]", "logprobs": "[M]", "target_entropy": ""},
        differentiated=("log_alpha", "logprobs"),
    ),
    "sac.logprobs": Formula(
        squashed, example_of_squashed, OF_SQUASHED, "logprobs [M]",
        {"mean": "[M, D]", "log_std": "[M, D]", "noise": "[M, D]"},
    ),
    "sac.polyak": following(sac.update_target),
}  # fmt: skip
