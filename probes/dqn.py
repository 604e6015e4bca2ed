"""The formulas of DQN, double DQN and prioritized replay, and what each is mistaken for.

Shapes: M transitions, A actions, P parameters, T timesteps, U rounds.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from manyseeds.algos import dqn, rainbow
from manyseeds.probes.compare import Batch, Formula, Function, Mistake, changed
from manyseeds.probes.examples import M, chance, ended, never, normal, one_seed
from manyseeds.runs.control import Run

AGAINST = ("truncated", "online_next_q_values")  # what only mistakes need
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
    return {"total_timesteps": 320, **sizes}


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


FORMULAS: dict[str, Formula] = {
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
}  # fmt: skip
