"""The formulas of PPO, A2C, DQN, SAC and GRPO for control, and what each is mistaken for.

Every one is computed by the functions of the algorithm's file, in float64, for one seed. A network
is replaced by what it would return: `loss` takes log-probabilities and values, no observations.

Shapes: T steps, N environments, M samples, A actions, D components of a continuous action, P
parameters, L steps of K groups of G episodes, U rounds.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from manyseeds.algos import a2c, dqn, grpo, ppo, rainbow, sac
from manyseeds.probes.compare import Batch, Formula, Function, Mistake, changed
from manyseeds.runs.control import Run

TRANSITIONS = {"rewards": "[T, N]", "values": "[T, N]", "next_values": "[T, N]"}
TRANSITIONS |= {"terminated": "[T, N]", "truncated": "[T, N]", "gamma": "", "gae_lambda": ""}
M = 37  # samples of examples


def normal(*shape: int, seed: int = 0) -> Tensor:
    """The random numbers of an example: float64, the same every time, equal to their float32."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator).double()


def chance(p: float, *shape: int, seed: int = 0) -> Tensor:
    """Random flags."""
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed)) < p


def one_seed(function: Function) -> Function:
    """A function of tensors [1, ...], of the same without their first dimension."""

    def call(*args: Any) -> Any:
        given = (x.unsqueeze(0) if isinstance(x, Tensor) else x for x in args)
        return function(*given).squeeze(0)

    return call


def later(x: Tensor) -> Tensor:
    """x one step later, 0 before."""
    return torch.cat((torch.zeros_like(x[:1]), x[:-1]))


def earlier(x: Tensor) -> Tensor:
    return torch.cat((x[1:], torch.zeros_like(x[:1])))


def ended(b: Batch) -> Tensor:
    return b["terminated"] | b["truncated"]


def never(b: Batch) -> Tensor:
    return torch.zeros_like(b["terminated"])


def without(f: Function, b: Batch, *names: str) -> Any:
    """The function with hyperparameters of 0."""
    return f(**b | dict.fromkeys(names, 0.0))


def times(name: str, factor: float) -> Mistake:
    """Our function, in which the term of a coefficient has another factor."""

    def mistake(f: Function, b: Batch) -> Any:
        rest = without(f, b, name)
        return rest + factor * (f(**b) - rest)

    return mistake


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


# ---- DQN -----------------------------------------------------------------------------------

OF_NEXT = {"rewards": "[M]", "terminated": "[M]", "truncated": "[M]"}
OF_NEXT_Q = OF_NEXT | {"next_q_values": "[M, A]", "online_next_q_values": "[M, A]", "gamma": ""}


def of_actions(q_values: Tensor, actions: Tensor) -> Any:
    """Q(s, a), [M]."""
    return one_seed(rainbow.of_actions)(q_values.unsqueeze(-1), actions).squeeze(-1)


def dqn_target(
    rewards: Tensor, terminated: Tensor, next_q_values: Tensor, gamma: float, **_: Any
) -> Any:
    return one_seed(dqn.td_target)(rewards, terminated, next_q_values, gamma)


def double_target(
    rewards: Tensor, terminated: Tensor, next_q_values: Tensor, online_next_q_values: Tensor,
    gamma: float, **_: Any,
) -> Any:  # fmt: skip
    """The online network chooses the action, the target network says what it is worth."""
    chosen = of_actions(next_q_values, online_next_q_values.argmax(-1)).unsqueeze(-1)
    return dqn_target(rewards, terminated, chosen, gamma)


def dqn_loss(q_values: Tensor, actions: Tensor, loss: str, **of_target: Any) -> Any:
    with torch.no_grad():
        targets = dqn_target(**of_target)
    return one_seed(dqn.td_loss)(of_actions(q_values, actions), targets, loss)


def example_transitions() -> Batch:
    terminated, truncated = chance(0.3, M, seed=5), chance(0.3, M, seed=6)
    return {"rewards": normal(M, seed=7), "terminated": terminated, "truncated": truncated}


def example_of_dqn_target() -> Batch:
    q_values, online = normal(2, M, 4, seed=8)
    return example_transitions() | {
        "next_q_values": 2 * q_values,
        "online_next_q_values": 2 * online,
        "gamma": 0.9,
    }


def example_of_dqn() -> Batch:
    actions = torch.arange(M) % 4
    return example_of_dqn_target() | {
        "q_values": normal(M, 4, seed=9),
        "actions": actions,
        "loss": "mse",
    }


def kept(name: str, choose: Callable[[Batch], Tensor]) -> Mistake:
    """Our function, for which the largest value of a row is another one."""
    return changed(**{name: lambda b: choose(b).unsqueeze(-1)})


OF_ENDS: dict[str, Mistake] = {
    "a termination is bootstrapped": changed(terminated=never),
    "a truncation is not bootstrapped, as if it were a termination": changed(terminated=ended),
    "only truncations end the sum, terminations do not": changed(
        terminated=lambda b: b["truncated"]
    ),
    "flags are inverted: only terminations are bootstrapped": changed(
        terminated=lambda b: ~b["terminated"]
    ),
    "gamma is not used (1)": changed(gamma=lambda b: 1.0),
    "the reward is missing": changed(rewards=lambda b: torch.zeros_like(b["rewards"])),
}
OF_DQN_TARGET: dict[str, Mistake] = OF_ENDS | {
    "the target network is not used": changed(next_q_values=lambda b: b["online_next_q_values"]),
    "double: the online network chooses the action": kept(
        "next_q_values",
        lambda b: of_actions(b["next_q_values"], b["online_next_q_values"].argmax(-1)),
    ),
    "double, with the networks exchanged: the target network chooses the action": kept(
        "next_q_values",
        lambda b: of_actions(b["online_next_q_values"], b["next_q_values"].argmax(-1)),
    ),
    "the mean over actions, not the largest": kept(
        "next_q_values", lambda b: b["next_q_values"].mean(-1)
    ),
    "the smallest over actions, not the largest": kept(
        "next_q_values", lambda b: b["next_q_values"].amin(-1)
    ),
    "the largest action value of the whole batch": kept(
        "next_q_values", lambda b: b["next_q_values"].amax().expand(len(b["rewards"]))
    ),
}
OF_DOUBLE_TARGET: dict[str, Mistake] = OF_ENDS | {
    "the networks are exchanged: the target network chooses, the online network evaluates": changed(
        next_q_values=lambda b: b["online_next_q_values"],
        online_next_q_values=lambda b: b["next_q_values"],
    ),
    "not double: the target network also chooses": changed(
        online_next_q_values=lambda b: b["next_q_values"]
    ),
    "the target network is not used": changed(next_q_values=lambda b: b["online_next_q_values"]),
}
OF_DQN: dict[str, Mistake] = OF_DQN_TARGET | {
    "the loss is Huber's": changed(loss=lambda b: "huber"),
    "the loss is the squared error, not Huber's": changed(loss=lambda b: "mse"),
    "the loss is half as large": lambda f, b: 0.5 * f(**b),
    "the loss is a sum, not a mean": lambda f, b: len(b["rewards"]) * f(**b),
    "the gradient flows through the target": lambda f, b: one_seed(dqn.td_loss)(
        of_actions(b["q_values"], b["actions"]),
        dqn_target(b["rewards"], b["terminated"], b["next_q_values"], b["gamma"]),
        b["loss"],
    ),
    "the gradient reaches the target alone": lambda f, b: one_seed(dqn.td_loss)(
        of_actions(b["q_values"], b["actions"]).detach(),
        dqn_target(b["rewards"], b["terminated"], b["next_q_values"], b["gamma"]),
        b["loss"],
    ),
    "Q of the greedy action, not of the one that was taken": changed(
        actions=lambda b: b["q_values"].argmax(-1)
    ),
}


def importance_weights(probabilities: Tensor, beta: float) -> Any:
    """By the replay memory of rainbow.py, for a minibatch of all that it holds."""
    leaves = torch.cat((torch.zeros(1), probabilities)).unsqueeze(0)
    nodes = SimpleNamespace(nodes=leaves, depth=0)
    memory: Any = SimpleNamespace(priorities=nodes, rows=probabilities)
    places = torch.arange(len(probabilities)).unsqueeze(0)
    weights = rainbow.Replay.importance_weights(memory, places, torch.tensor([beta]))
    return weights.squeeze(0)


def weighted_loss(q_values: Tensor, targets: Tensor, weights: Tensor, loss: str) -> Any:
    config = rainbow.Config(distribution="none", loss=loss)  # type: ignore[arg-type]
    outputs, goals = (x.view(1, -1, 1) for x in (q_values, targets))
    losses, _ = rainbow.losses_of(outputs, goals, goals, config)
    return (losses.flatten() * weights).mean()


def example_of_weights() -> Batch:
    return {"probabilities": normal(M, seed=10).exp(), "beta": 0.6}


def example_of_weighted() -> Batch:
    q_values, targets, weights = normal(3, M, seed=11)
    return {"q_values": q_values, "targets": targets, "weights": weights.sigmoid(), "loss": "mse"}


OF_WEIGHTS: dict[str, Mistake] = {
    "importance weights are missing (1)": lambda f, b: torch.ones_like(b["probabilities"]),
    "the exponent is positive: rare samples weigh less": lambda f, b: (
        (b["probabilities"] / b["probabilities"].amax()) ** b["beta"]
    ),
    "weights are not divided by the largest of them": lambda f, b: (
        (b["probabilities"] * len(b["probabilities"])) ** -b["beta"]
    ),
    "weights are divided by their mean, not by the largest of them": lambda f, b: (
        f(**b) / f(**b).mean()
    ),
    "weights are divided by their sum, not by the largest of them": lambda f, b: (
        f(**b) / f(**b).sum()
    ),
    "beta is not used (1)": changed(beta=lambda b: 1.0),
}
OF_WEIGHTED: dict[str, Mistake] = {
    "importance weights are missing": changed(weights=lambda b: torch.ones_like(b["weights"])),
    "errors are weighted before they are squared": changed(weights=lambda b: b["weights"].square()),
    "the loss is divided by the sum of weights": lambda f, b: f(**b) / b["weights"].mean(),
    "the loss is Huber's": changed(loss=lambda b: "huber"),
    "the loss is the squared error, not Huber's": changed(loss=lambda b: "mse"),
    "the loss is half as large": lambda f, b: 0.5 * f(**b),
    "the loss is a sum, not a mean": lambda f, b: len(b["weights"]) * f(**b),
}


def following(update_target: Callable[..., None], *syncs: int) -> Formula:
    """A target's parameters after an update, by a file's `update_target`."""

    def compute(target: Tensor, online: Tensor, tau: float) -> Any:
        modules = [nn.ParameterList([x.detach().clone()]) for x in (target, online)]
        update_target(*modules, *syncs, tau)
        return modules[0][0].detach()

    def example() -> Batch:
        target, online = normal(2, 7, seed=12)
        return {"target": target, "online": online, "tau": 0.1}

    mistakes: dict[str, Mistake] = {
        "tau is inverted, or the networks are exchanged": changed(tau=lambda b: 1 - b["tau"]),
        "the target is copied": changed(tau=lambda b: 1.0),
        "the target does not change": changed(tau=lambda b: 0.0),
        "the target's own share is not reduced: tau of the online network is added": lambda f, b: (
            b["target"] + b["tau"] * b["online"]
        ),
    }
    shapes = {"target": "[P]", "online": "[P]", "tau": ""}
    return Formula(compute, example, mistakes, "target [P]", shapes)


class Watcher(Run):
    """A training of DQN that counts how often its target network is updated."""

    def __init__(self, config: dqn.Config) -> None:
        super().__init__(config, [0])
        self.networks: list[nn.Module] = []  # the online one, and the target
        self.counts = [0]

    def begin_with(self, policy: Any) -> Any:
        self.networks.append(policy)
        return policy

    def evaluate_if_due(self, *args: Any) -> None:
        """Let the networks differ, so that an update of the target is seen."""
        online, target = self.networks
        with torch.no_grad():
            for p in online.parameters():
                p.add_(1.0)
        self.before = [p.detach().clone() for p in target.parameters()]

    def log(self, *args: Any) -> None:
        pairs = zip(self.before, self.networks[1].parameters(), strict=True)
        self.counts.append(self.counts[-1] + (not all(torch.equal(x, y) for x, y in pairs)))

    def save_if_due(self, *args: Any) -> None: ...


def target_updates(
    total_timesteps: int, num_envs: int, train_freq: int, target_update_interval: int
) -> Any:
    """How often the target network has been updated after each round, by a training."""
    config = dqn.Config(
        num_envs=num_envs, train_freq=train_freq, total_timesteps=total_timesteps,
        target_update_interval=target_update_interval, learning_starts=0, batch_size=1,
        hidden=(2,), quiet=True, gradient_steps=1,
    )  # fmt: skip
    watcher = Watcher(config)
    dqn.train(config, watcher)
    return torch.tensor(watcher.counts[1:])


def example_of_updates() -> Batch:
    sizes = {"num_envs": 4, "train_freq": 2, "target_update_interval": 40}
    return {"total_timesteps": 640, **sizes}


def interval_times(factor: Callable[[Batch], int]) -> Mistake:
    return changed(target_update_interval=lambda b: b["target_update_interval"] * factor(b))


OF_UPDATES: dict[str, Mistake] = {
    "the interval counts steps of the vector environment, not timesteps": interval_times(
        lambda b: b["num_envs"]
    ),
    "the interval counts rounds (gradient steps), not timesteps": interval_times(
        lambda b: b["num_envs"] * b["train_freq"]
    ),
    "the target network is updated in every round": changed(
        target_update_interval=lambda b: b["num_envs"] * b["train_freq"]
    ),
    "the target network is never updated": changed(
        target_update_interval=lambda b: 2 * b["total_timesteps"]
    ),
}


def epsilon(
    timesteps: Tensor, total_timesteps: int, exploration_fraction: float,
    exploration_initial_eps: float, exploration_final_eps: float,
) -> Any:  # fmt: skip
    config = dqn.Config(
        total_timesteps=total_timesteps, exploration_fraction=exploration_fraction,
        exploration_initial_eps=exploration_initial_eps, learning_starts=0,
        exploration_final_eps=exploration_final_eps,
    )  # fmt: skip
    return dqn.epsilon_at(timesteps.double().unsqueeze(0), config).squeeze(0)


def example_of_epsilon() -> Batch:
    return {
        "timesteps": torch.arange(0, 1001, 10),
        "total_timesteps": 1000,
        "exploration_fraction": 0.5,
        "exploration_initial_eps": 0.9,
        "exploration_final_eps": 0.05,
    }


def unbounded(f: Function, b: Batch) -> Any:
    """It goes on behind exploration_fraction."""
    start, end = b["exploration_initial_eps"], b["exploration_final_eps"]
    return start + b["timesteps"] / (b["exploration_fraction"] * b["total_timesteps"]) * (
        end - start
    )


OF_EPSILON: dict[str, Mistake] = {
    "epsilon is annealed over the whole training": changed(exploration_fraction=lambda b: 1.0),
    "initial and final epsilon are exchanged": changed(
        exploration_initial_eps=lambda b: b["exploration_final_eps"],
        exploration_final_eps=lambda b: b["exploration_initial_eps"],
    ),
    "epsilon falls on below its final value": unbounded,
    "epsilon is annealed to 0": changed(exploration_final_eps=lambda b: 0.0),
    "epsilon is annealed from 1": changed(exploration_initial_eps=lambda b: 1.0),
    "this is the probability of the greedy action, 1 - epsilon": lambda f, b: 1 - f(**b),
}


# ---- SAC -----------------------------------------------------------------------------------


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


# ---- GRPO for control ----------------------------------------------------------------------


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

SAMPLES = {"logprobs": "[M]", "old_logprobs": "[M]", "entropy": "[M]", "values": "[M]"}
SAMPLES |= {"old_values": "[M]", "advantages": "[M]", "returns": "[M]"}
COEFFICIENTS = dict.fromkeys(("value_coef", "entropy_coef", "normalize_advantage"), "")
OF_A2C_SHAPES = {k: x for k, x in SAMPLES.items() if not k.startswith("old_")} | COEFFICIENTS
OF_SAC_NEXT = OF_NEXT | dict.fromkeys(("next_q_values", "online_next_q_values"), "[2, M]")
OF_SAC_NEXT |= {"next_logprobs": "[M]", "alpha": "", "gamma": ""}
AGAINST = ("truncated", "online_next_q_values")

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
    "dqn.target": Formula(
        dqn_target, example_of_dqn_target, OF_DQN_TARGET, "targets [M]", OF_NEXT_Q,
        optional=AGAINST,
    ),
    "dqn.double_target": Formula(
        double_target, example_of_dqn_target, OF_DOUBLE_TARGET, "targets [M]", OF_NEXT_Q,
        optional=("truncated",),
    ),
    "dqn.loss": Formula(
        dqn_loss, example_of_dqn, OF_DQN, "loss",
        OF_NEXT_Q | {"q_values": "[M, A]", "actions": "[M]", "loss": ""},
        differentiated=("q_values", "next_q_values"), optional=AGAINST,
    ),
    "dqn.importance_weights": Formula(
        importance_weights, example_of_weights, OF_WEIGHTS, "weights [M]",
        {"probabilities": "[M]", "beta": ""},
    ),
    "dqn.weighted_loss": Formula(
        weighted_loss, example_of_weighted, OF_WEIGHTED, "loss",
        {"q_values": "[M]", "targets": "[M]", "weights": "[M]", "loss": ""},
        differentiated=("q_values",),
    ),
    "dqn.polyak": following(dqn.update_target, 1),
    "dqn.target_updates": Formula(
        target_updates, example_of_updates, OF_UPDATES, "updates [U]",
        dict.fromkeys(example_of_updates(), ""),
    ),
    "dqn.epsilon": Formula(
        epsilon, example_of_epsilon, OF_EPSILON, "epsilon [T]",
        dict.fromkeys(example_of_epsilon(), "") | {"timesteps": "[T]"},
    ),
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
