"""PQN: its returns against sums, its update against one written anew, what C makes of both."""

from __future__ import annotations

import math
import random
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from manyseeds import envs, kernels
from manyseeds.algos import pqn
from manyseeds.evaluate import evaluate
from manyseeds.optim import SeedRAdam
from manyseeds.rows import stack
from manyseeds.seeds import SeedStreams
from tests.algos import probes
from tests.algos.probes import Counter

SPEC = envs.make("CartPole-v1").spec
SEEDS = [0, 1, 2]
EPS = 1e-16  # of RAdam, next to nothing: PyTorch adds it before the bias correction
train_on = partial(probes.train_on, pqn, seeds=2)

# ---- Returns -----------------------------------------------------------------------------------


def returns_by_definition(
    rewards: Tensor,
    next_values: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    gamma: float,
    q_lambda: float,
) -> Tensor:
    """The weighted sum of all n-step returns up to the end of the episode or rollout."""
    S, T, N = rewards.shape
    returns = torch.zeros_like(rewards)
    for s in range(S):
        for e in range(N):
            for t in range(T):
                collected, weight = 0.0, 1.0  # rewards, and what is left for longer returns
                for k in range(t, T):
                    collected += gamma ** (k - t) * rewards[s, k, e].item()
                    value = 0.0 if terminated[s, k, e] else next_values[s, k, e].item()
                    n_step = collected + gamma ** (k - t + 1) * value
                    last = bool(terminated[s, k, e] or truncated[s, k, e]) or k == T - 1
                    share = 1.0 if last else 1 - q_lambda
                    returns[s, t, e] += weight * share * n_step
                    if last:
                        break
                    weight *= q_lambda
    return returns


def random_steps(ends: float, seed: int = 0) -> tuple[Tensor, ...]:
    """Rewards, next values, terminations and truncations [3, 12, 4], float64."""
    generator = torch.Generator().manual_seed(seed)
    draws = torch.randn(2, 3, 12, 4, generator=generator, dtype=torch.float64)
    terminated, truncated = torch.rand(2, 3, 12, 4, generator=generator) < ends
    if ends:
        assert (terminated & truncated).any()
        assert (terminated ^ truncated).sum(1).max() > 2
        assert truncated[:, -1].any()
    return *draws, terminated, truncated


@pytest.mark.parametrize("ends", [0.0, 0.3])
@pytest.mark.parametrize("q_lambda", [0.0, 0.3, 0.65, 1.0])
def test_returns_are_sums_of_n_step_returns(q_lambda: float, ends: float) -> None:
    """Random terminations and truncations, both at once among them, several in one rollout."""
    steps = random_steps(ends)
    expected = returns_by_definition(*steps, 0.9, q_lambda)
    found = pqn.lambda_returns(*steps, 0.9, q_lambda)
    torch.testing.assert_close(found, expected, atol=1e-12, rtol=0)


def test_returns_by_hand() -> None:
    rewards = torch.tensor([1.0, 2.0, 3.0, 4.0]).view(1, 4, 1)
    next_values = torch.tensor([10.0, 20.0, 30.0, 40.0]).view(1, 4, 1)
    nothing = torch.zeros(1, 4, 1, dtype=torch.bool)
    second = torch.arange(4).view(1, 4, 1) == 1
    last = [3 + 0.5 * (0.25 * 30 + 0.75 * (4 + 0.5 * 40)), 4 + 0.5 * 40]
    for terminated, truncated, at_end in ((second, nothing, 2), (nothing, second, 2 + 0.5 * 20)):
        found = pqn.lambda_returns(rewards, next_values, terminated, truncated, 0.5, 0.75)
        first = 1 + 0.5 * (0.25 * 10 + 0.75 * at_end)
        assert found.flatten().tolist() == [first, at_end, *last]


# ---- The update --------------------------------------------------------------------------------


def settings_of(k: int) -> dict[str, Any]:
    """Random hyperparameters."""
    draw = random.Random(k)
    minibatch = draw.choice([8, 16, 24])
    return {
        "num_envs": draw.choice([1, 2, 4]),
        "num_steps": 2 * minibatch,
        "minibatch_size": minibatch,
        "epochs": draw.randint(2, 4),
        "learning_rate": 10 ** draw.uniform(-4, -2),
        "gamma": draw.uniform(0.5, 1.0),
        "q_lambda": draw.choice([0.0, 1.0, draw.random()]),
        "reward_scale": 10 ** draw.uniform(-1, 0.5),
        "max_grad_norm": draw.choice([0.0, 10 ** draw.uniform(-1, 1)]),
        "layer_norm": draw.random() < 0.8,
        "hidden": tuple(draw.choices([8, 16, 30], k=draw.randint(1, 3))),
    }


class Learner(NamedTuple):
    """Three seeds that begin to learn, and a rollout."""

    net: pqn.QNetwork
    optimizer: SeedRAdam
    rollout: envs.Rollout
    shuffle: Tensor  # [S, epochs, B]

    def update(self, config: pqn.Config) -> tuple[Tensor, dict[str, Tensor]]:
        """Returns [S, B] of the rollout, and the metrics."""
        returns = pqn.estimate(self.net, self.rollout, config)
        samples = self.rollout.obs.flatten(1, 2), self.rollout.actions.flatten(1, 2)
        lr = torch.as_tensor(config.learning_rate, dtype=torch.float64)
        batch = pqn.Batch(*samples, returns)
        return returns, pqn.update(self.net, self.optimizer, batch, self.shuffle, config, lr)


def learner_of(config: pqn.Config, dtype: torch.dtype = torch.float32) -> Learner:
    """With gains and shifts that are not those of the beginning."""
    net = pqn.QNetwork(SPEC, config, SeedStreams(SEEDS, "init"))
    generator = torch.Generator().manual_seed(0)
    normal = partial(torch.randn, generator=generator)
    for p in (*net.q.gains, *net.q.shifts):
        p.data += 0.3 * normal(p.shape)
    net.to(dtype)
    T, N = config.num_steps, config.num_envs
    terminated, truncated = torch.rand(2, 3, T, N, generator=generator) < 0.15
    steps = normal(3, T, N, 4), torch.randint(0, 2, (3, T, N), generator=generator)
    rollout = envs.Rollout(
        steps[0].to(dtype),
        steps[1],
        normal(3, T, N).to(dtype),
        terminated,
        truncated,
        normal(3, T, N, 4).to(dtype),
    )
    shuffle = torch.rand(3, config.epochs, config.batch_size, generator=generator)
    return Learner(net, SeedRAdam(net, eps=EPS), rollout, shuffle.to(dtype))


def layers_of(net: Any) -> list[nn.Module]:
    """The modules that have weights."""
    return [x for x in net if isinstance(x, nn.Linear | nn.LayerNorm)]


def reference_of(net: pqn.QNetwork, s: int, config: pqn.Config) -> nn.Sequential:
    """PyTorch's modules, in float64, with the weights of a seed."""
    modules: list[nn.Module] = []
    for width in config.hidden:
        modules.append(nn.LazyLinear(width))
        modules += [nn.LayerNorm(width)] if config.layer_norm else []
        modules.append(nn.ReLU())
    twin = nn.Sequential(*modules, nn.LazyLinear(2)).double()
    twin(torch.zeros(1, 4, dtype=torch.float64))
    for layer, (weight, bias) in zip(layers_of(twin), parameters_of(net, s), strict=True):
        layer.weight.data.copy_(weight)  # type: ignore[union-attr, operator]
        layer.bias.data.copy_(bias)  # type: ignore[union-attr, operator]
    return twin


def parameters_of(net: pqn.QNetwork, s: int) -> list[tuple[Tensor, Tensor]]:
    """Weights and biases of a seed, gains and shifts behind those of their layer."""
    weights, biases, gains, shifts = net.q.parameter_lists()
    found = []
    for i, (weight, bias) in enumerate(zip(weights, biases, strict=True)):
        width = 2 if i == len(weights) - 1 else None
        found.append((weight[s, 0].T[:width].detach(), bias[s, 0, 0, :width].detach()))
        if i < len(gains):
            found.append((gains[i][s, 0, 0].detach(), shifts[i][s, 0, 0].detach()))
    return found


@pytest.mark.parametrize("k", range(20))
def test_updates_are_those_of_a_plain_implementation(k: int) -> None:
    """In float64: returns and weights, with PyTorch's modules and optimizer, seed by seed."""
    config = pqn.Config(**settings_of(k))
    learner = learner_of(config, torch.float64)
    twins = [reference_of(learner.net, s, config) for s in range(3)]
    returns, metrics = learner.update(config)
    rollout, B = learner.rollout, config.batch_size
    for s, twin in enumerate(twins):
        with torch.no_grad():
            next_values = twin(rollout.next_obs[s]).max(-1).values
        steps = rollout.rewards[s] * config.reward_scale, next_values
        ends = rollout.terminated[s], rollout.truncated[s]
        steps_of_seed = [x.unsqueeze(0) for x in (*steps, *ends)]
        targets = returns_by_definition(*steps_of_seed, config.gamma, config.q_lambda).flatten()
        torch.testing.assert_close(returns[s], targets, rtol=1e-9, atol=1e-9)
        optimizer = torch.optim.RAdam(twin.parameters(), config.learning_rate, eps=EPS)
        obs, actions = rollout.obs[s].reshape(B, 4), rollout.actions[s].flatten()
        for epoch in range(config.epochs):
            for chosen in learner.shuffle[s, epoch].argsort().split(config.minibatch):
                q_values = twin(obs[chosen])[torch.arange(len(chosen)), actions[chosen]]
                loss = ((targets[chosen] - q_values) ** 2).mean()
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(twin.parameters(), config.max_grad_norm or math.inf)
                optimizer.step()
        assert metrics["td_loss"][s].item() == pytest.approx(loss.item(), rel=1e-5)
        assert metrics["q_values"][s].item() == pytest.approx(q_values.mean().item(), abs=1e-5)
        for layer, ours in zip(layers_of(twin), parameters_of(learner.net, s), strict=True):
            for x, y in zip(ours, (layer.weight, layer.bias), strict=True):
                torch.testing.assert_close(x, y.detach(), rtol=1e-6, atol=1e-6)  # type: ignore[union-attr]


@pytest.mark.skipif(kernels.library() is None, reason="no C compiler")
@pytest.mark.parametrize("k", [*range(10), "many samples"])
def test_an_update_in_c_is_that_of_the_file(k: Any) -> None:
    """In float64: returns, metrics, weights and moments after all epochs."""
    many = {"num_envs": 8, "num_steps": 75, "minibatch_size": 300, "hidden": (33, 16)}  # 3 blocks
    config = pqn.Config(**(many if k == "many samples" else settings_of(k)))
    learner, exact = learner_of(config), learner_of(config, torch.float64)
    returns, found = learner.update(config)
    with kernels.off():
        expected_returns, expected = exact.update(config)
    ours, theirs = learner.optimizer, exact.optimizer
    assert found.keys() == expected.keys()
    pairs = zip(
        [returns, *found.values(), ours.params, ours.mean, ours.square, ours.steps],
        [
            *(expected_returns, *expected.values()),
            *(theirs.params, theirs.mean, theirs.square, theirs.steps),
        ],
        strict=True,
    )
    for x, y in pairs:
        assert y.dtype == torch.float64
        torch.testing.assert_close(x.double(), y, rtol=2e-4, atol=2e-4)


@pytest.mark.usefixtures("computed")
@pytest.mark.parametrize("ends", [0.0, 0.3])
def test_returns_of_a_rollout(ends: float) -> None:
    """From the true successors, whatever is observed next."""
    config = pqn.Config(num_envs=4, num_steps=12, reward_scale=0.3, q_lambda=0.8, hidden=(16,))
    learner = learner_of(config)
    rewards, _, terminated, truncated = random_steps(ends)
    rollout = learner.rollout._replace(
        rewards=rewards.float(), terminated=terminated, truncated=truncated
    )
    with torch.no_grad():
        next_values = learner.net(rollout.next_obs.flatten(1, 2)).max(-1).values
    steps = 0.3 * rewards, next_values.view(3, 12, 4).double(), terminated, truncated
    expected = returns_by_definition(*steps, config.gamma, 0.8).flatten(1)
    found = pqn.estimate(learner.net, rollout, config)
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.usefixtures("computed")
def test_rows_have_hyperparameters_of_their_own() -> None:
    """Each row's bits are those of its own hyperparameters for all."""
    shared: dict[str, Any] = {"num_envs": 2, "num_steps": 32, "minibatch_size": 16, "epochs": 2}
    own: list[dict[str, Any]] = [
        {"gamma": 0.9, "q_lambda": 0.2, "reward_scale": 0.5, "learning_rate": 1e-3},
        {"gamma": 0.99, "q_lambda": 0.9, "reward_scale": 1.0, "max_grad_norm": 0.1},
        {"gamma": 0.5, "q_lambda": 0.5, "reward_scale": 2.0, "learning_rate": 1e-2},
    ]
    configs = [pqn.Config(**shared, **settings, hidden=(32, 16)) for settings in own]
    together = learner_of(configs[0])
    together.update(stack(configs))
    for s, config in enumerate(configs):
        alone = learner_of(config)
        alone.update(config)
        assert torch.equal(together.optimizer.params[s], alone.optimizer.params[s])


@pytest.mark.usefixtures("computed")
def test_a_value_that_is_no_number_stays_one() -> None:
    """In all that its seed learns, and there alone."""
    config = pqn.Config(num_envs=2, num_steps=16, minibatch_size=8, hidden=(8,))
    learner = learner_of(config)
    learner.net.q.gains[0].data[1, 0, 0, 0] = torch.nan
    returns, metrics = learner.update(config)
    assert returns[1].isnan().any()
    assert metrics["td_loss"].isnan().tolist() == [False, True, False]
    assert learner.optimizer.params[[0, 2]].isfinite().all()


# ---- Training ----------------------------------------------------------------------------------


def test_epsilon() -> None:
    config = pqn.Config(exploration_initial_eps=0.8, exploration_final_eps=0.2)
    for progress, expected in ((0.0, 0.8), (0.25, 0.5), (0.5, 0.2), (0.9, 0.2)):
        assert pqn.exploration_rate(progress, config).tolist() == pytest.approx([expected])
    config = pqn.Config(exploration_fraction=0.0, exploration_final_eps=0.2)
    assert pqn.exploration_rate(0.0, config).tolist() == pytest.approx([0.2])
    rows = stack([pqn.Config(exploration_fraction=x) for x in (0.5, 1.0)])
    assert pqn.exploration_rate(0.5, rows).tolist() == pytest.approx([0.05, 0.525])


@pytest.mark.parametrize(("terminal_at", "time_limit"), [(7, 5), (4, 9), (6, 6)])
def test_rollouts_of_a_training(
    terminal_at: int, time_limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Epsilon and learning rate are annealed; successors are true ones, over terminations,
    truncations, and both at once."""
    acted, rates = [], []
    rollout, update = envs.rollout, pqn.update

    def played(env: Any, net: Any, state: Any, obs: Tensor, noise: Tensor, *args: Any) -> Any:
        acted.append((noise >= 0).double().mean().item())
        state, obs, steps = rollout(env, net, state, obs, noise, *args)
        assert torch.equal(steps.next_obs, steps.obs + 1)
        assert torch.equal(steps.terminated, steps.next_obs.squeeze(-1) >= terminal_at)
        return state, obs, steps

    def spy(*args: Any) -> Any:
        rates.append(float(args[-1]))
        return update(*args)

    monkeypatch.setattr(envs, "rollout", played)
    monkeypatch.setattr(pqn, "update", spy)
    settings = {"num_envs": 20, "num_steps": 50, "minibatch_size": 500, "epochs": 1}
    annealed = {"exploration_fraction": 0.5, "exploration_final_eps": 0.1, "learning_rate": 0.4}
    env = Counter(terminal_at, time_limit)
    train_on(env, monkeypatch, total_timesteps=4000, **settings, **annealed)
    assert acted == pytest.approx([1.0, 0.55, 0.1, 0.1], abs=0.03)
    assert rates == pytest.approx([0.4, 0.3, 0.2, 0.1])


def test_it_learns_cartpole(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = {"num_envs": 8, "num_steps": 64, "minibatch_size": 64, "learning_rate": 5e-4}
    settings |= {"total_timesteps": 100_000, "hidden": (64, 64), "q_lambda": 0.95}
    net, run = train_on("CartPole-v1", monkeypatch, seeds=5, reward_scale=0.1, **settings)
    played = evaluate(envs.make("CartPole-v1"), net, run.seeds, 10)
    assert np.median(played.returns.mean(-1)) > 450
