"""Rainbow: each part against the papers' equations in NumPy; updates as DQN's and SB3's."""

from __future__ import annotations

import dataclasses
import itertools
import random
from collections import Counter as Counts
from contextlib import nullcontext
from functools import partial
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from gymnasium import spaces
from stable_baselines3.common import policies
from stable_baselines3.common.buffers import NStepReplayBuffer
from stable_baselines3.common.logger import Logger
from torch import Tensor, nn

from manyseeds import envs, kernels
from manyseeds.algos import dqn, rainbow
from manyseeds.benchmarks.baselines import sb3_baseline
from manyseeds.errors import UsageError
from manyseeds.evaluate import evaluate
from manyseeds.optim import SeedAdam
from manyseeds.rows import stack
from manyseeds.seeds import SeedStreams
from tests.algos import probes
from tests.algos.probes import Counter

SPEC = envs.make("Acrobot-v1").spec  # six observations, three actions
SEEDS = [0, 1]
CPU = torch.device("cpu")
OFF: dict[str, Any] = {"double": False, "dueling": False, "n_steps": 1, "prioritized": False}
OFF |= {"noisy": False, "distribution": "none"}
train_on = partial(probes.train_on, rainbow, seeds=2)


class Learner(NamedTuple):
    """What learns, and what it learns from, as `rainbow.update` takes them."""

    net: rainbow.QNetwork
    target: rainbow.QNetwork
    optimizer: SeedAdam
    replay: rainbow.Replay


def transitions(K: int, generator: torch.Generator) -> rainbow.Transitions:
    """K random ones of two seeds, some of which end episodes in either way, or in both."""
    normal = partial(torch.randn, generator=generator)
    actions = torch.randint(0, 3, (2, K), generator=generator)
    ends = normal(2, 2, K) > 1
    return rainbow.Transitions(normal(2, K, 6), actions, 3 * normal(2, K), *ends, normal(2, K, 6))


def learner_of(config: rainbow.Config, dtype: torch.dtype = torch.float32) -> Learner:
    """Two seeds that begin to learn, with a memory that has been filled one and a half times."""
    net, target = (
        rainbow.QNetwork(SPEC, config, SeedStreams(seeds, "init")).to(dtype)
        for seeds in (SEEDS, [2, 3])
    )
    replay = rainbow.Replay(2, 6, config, CPU)
    generator = torch.Generator().manual_seed(0)
    for _ in range(3):
        replay.add(transitions(config.buffer_size // 2, generator))
    if replay.priorities is not None:
        errors = torch.rand(2, config.buffer_size, generator=generator) * 5
        places = torch.arange(config.buffer_size).expand(2, -1)
        replay.set_priorities(places, errors, config.priority_alpha)
    replay.rows = replay.rows.to(dtype)
    return Learner(net, target, SeedAdam(net, config.adam_eps), replay)


def drawn(config: rainbow.Config, G: int, net: rainbow.QNetwork) -> tuple[Tensor, Tensor]:
    """The uniforms and the noise of G updates."""
    streams = SeedStreams(SEEDS, "train")
    size = len(net.q.outputs), net.noise_size
    return streams.uniform(G, config.batch_size), streams.normal(G, 2, *size)


def settings_of(k: int) -> dict[str, Any]:
    """Random hyperparameters, and a random choice of parts."""
    draw = random.Random(k)
    v_min = draw.uniform(-10, 5)
    return {
        "double": draw.random() < 0.5,
        "dueling": draw.random() < 0.5,
        "n_steps": draw.choice([1, 2, 3, 5]),
        "prioritized": draw.random() < 0.5,
        "priority_alpha": draw.choice([0.0, 1.0, draw.random()]),
        "noisy": draw.random() < 0.5,
        "noise_std": draw.uniform(0.1, 1),
        "distribution": draw.choice(["none", "categorical", "quantile"]),
        "atoms": draw.randint(2, 30),
        "v_min": v_min,
        "v_max": v_min + draw.uniform(0.1, 15),
        "num_envs": draw.randint(1, 3),
        "train_freq": 1,
        "learning_rate": 10 ** draw.uniform(-4, -2),
        "adam_eps": 10 ** draw.uniform(-8, -3),
        "gamma": draw.uniform(0.5, 1.0),
        "batch_size": draw.randint(1, 40),
        "buffer_size": 2 * draw.randint(10, 40),
        "max_grad_norm": draw.choice([0.0, draw.uniform(0.1, 10)]),
        "loss": draw.choice(["huber", "mse"]),
        "hidden": tuple(draw.choices([4, 16, 30], k=draw.randint(1, 3))),
    }


# ---- Everything off ----------------------------------------------------------------------------


@pytest.mark.parametrize("k", range(8))
@pytest.mark.parametrize("computed", ["C", "torch"])
def test_without_its_parts_an_update_is_dqns(k: int, computed: str) -> None:
    """To the bit, on the same memory and draws: three steps of two seeds."""
    config = rainbow.Config(**{**settings_of(k), **OFF, "adam_eps": 1e-8})
    names = {field.name for field in dataclasses.fields(dqn.Config)}
    plain = dqn.Config(**{name: x for name, x in vars(config).items() if name in names})
    ours = learner_of(config)
    net, target = (dqn.QNetwork(SPEC, plain, SeedStreams(s, "init")) for s in (SEEDS, [2, 3]))
    optimizer, replay = SeedAdam(net), dqn.Replay(2, config.buffer_size, 6, CPU)
    # Without the column of truncations.
    replay.rows, replay.added = ours.replay.rows[..., :-1].contiguous(), ours.replay.added.clone()
    draws, noise = drawn(config, 3, ours.net)
    with kernels.off() if computed == "torch" else nullcontext():
        expected = dqn.update(net, target, optimizer, replay, draws, plain)
        found = rainbow.update(*ours, draws, noise, torch.tensor(0.0), config)
    assert found.keys() == expected.keys()
    pairs = [(found[name], expected[name]) for name in found]
    pairs += zip(ours.net.parameters(), net.parameters(), strict=True)
    for x, y in pairs:
        assert torch.equal(x, y)


@pytest.mark.parametrize("computed", ["C", "torch"])
def test_without_its_parts_a_training_is_dqns(
    computed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It draws nothing more, and explores by the same epsilon."""
    settings = {"total_timesteps": 300, "learning_starts": 60, "train_freq": 8, "num_envs": 2}
    settings |= {"batch_size": 7, "target_update_interval": 50, "hidden": (16,)}
    with kernels.off() if computed == "torch" else nullcontext():
        ours, _ = train_on("CartPole-v1", monkeypatch, **settings, **OFF)
        plain, _ = probes.train_on(dqn, "CartPole-v1", monkeypatch, seeds=2, **settings)
    for name, x in plain.state_dict().items():
        assert torch.equal(ours.state_dict()[name], x)


# ---- All parts, by the equations ---------------------------------------------------------------


def forward(
    weights: list[Any], biases: list[Any], x: np.ndarray, shape: tuple[int, int]
) -> np.ndarray:
    """The outputs [B, A, Z] of a seed's K networks, each layer [K, in, out]."""
    heads = []
    for k in range(len(weights[0])):
        y = x
        for layer, (weight, bias) in enumerate(zip(weights, biases, strict=True)):
            y = y @ weight[k] + bias[k]
            if layer < len(weights) - 1:
                y = np.maximum(y, 0)
        heads.append(y)
    A, Z = shape
    advantages = heads[0][:, : A * Z].reshape(-1, A, Z)
    if len(heads) == 1:
        return advantages
    value = heads[1][:, None, :Z]
    centered = advantages - sum(advantages[:, a] for a in range(A))[:, None] / A
    return np.asarray(value + centered)


def weights_with_noise(
    net: rainbow.QNetwork, s: int, noise: np.ndarray
) -> tuple[list[Any], list[Any]]:
    """Of seed s, with noise [K, n] as Fortunato et al. have it, element by element."""
    weights, biases = [], []
    at = 0
    for layer in range(len(net.q.weights)):
        weight = net.q.weights[layer][s].detach().numpy().copy()
        bias = net.q.biases[layer][s].detach().numpy().copy()
        if net.sigma is not None:
            std_w = net.sigma.weights[layer][s].detach().numpy()
            std_b = net.sigma.biases[layer][s].detach().numpy()
            K, n_in, n_out = weight.shape
            for k in range(K):
                e = [np.sign(x) * abs(x) ** 0.5 for x in noise[k, at : at + n_in + n_out]]
                for i, j in itertools.product(range(n_in), range(n_out)):
                    weight[k, i, j] += std_w[k, i, j] * e[i] * e[n_in + j]
                for j in range(n_out):
                    bias[k, 0, j] += std_b[k, 0, j] * e[n_in + j]
            at += n_in + n_out
        weights.append(weight)
        biases.append(bias)
    return weights, biases


def n_steps_by_hand(
    replay: rainbow.Replay, s: int, place: int, n: int, gamma: float
) -> tuple[float, float, int]:
    """R, gamma^k or 0, and the place of the last transition, by walking from one to the next."""
    capacity, N, added = replay.rows.shape[1], replay.num_envs, int(replay.added)
    # The number of a transition since the beginning: the last one that lies at this place.
    number = max(x for x in range(place, added, capacity))
    total, discount = 0.0, 1.0
    for _ in range(n):
        *_, reward, terminated, truncated = replay.rows[s, number % capacity].tolist()
        total += discount * reward
        discount *= gamma
        last = number % capacity
        if terminated:
            return total, 0.0, last
        number += N
        if truncated or number >= added:
            break
    return total, discount, last


def project_by_hand(targets: np.ndarray, p: np.ndarray, low: float, high: float) -> np.ndarray:
    """Algorithm 1 of Bellemare et al., with all the mass of b where it is an integer."""
    Z = len(p)
    m = np.zeros(Z)
    for t, mass in zip(targets, p, strict=True):
        b = (min(max(t, low), high) - low) / ((high - low) / (Z - 1))
        b = min(b, Z - 1.0)
        lower, upper = int(np.floor(b)), int(np.ceil(b))
        if lower == upper:
            m[lower] += mass
        else:
            m[lower] += mass * (upper - b)
            m[upper] += mass * (b - lower)
    return m


def softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max(-1, keepdims=True))
    return np.asarray(e / e.sum(-1, keepdims=True))


def places_by_hand(replay: rainbow.Replay, s: int, uniforms: np.ndarray) -> list[int]:
    """What the uniforms of a minibatch choose."""
    size = int(replay.size)
    if replay.priorities is None:
        return [int(u * size) for u in uniforms]
    leaves = leaves_of(replay)[s]
    sums, M = np.cumsum(leaves), len(uniforms)
    return [int((sums <= (i + u) / M * sums[-1]).sum()) for i, u in enumerate(uniforms)]


def leaves_of(replay: rainbow.Replay) -> np.ndarray:
    """p^alpha of all transitions, [S, size]."""
    assert replay.priorities is not None
    first = replay.priorities.nodes.shape[1] // 2
    return replay.priorities.nodes[:, first : first + int(replay.size)].numpy().copy()


def step_by_hand(
    learner: Learner,
    s: int,
    uniforms: np.ndarray,
    noise: np.ndarray,
    beta: float,
    config: rainbow.Config,
) -> tuple[float, float, dict[int, float]]:
    """The weighted loss of a minibatch of seed s, the mean of Q(s, a), and the new leaves."""
    net, target, _, replay = learner
    Z = config.outputs
    atoms = np.array([config.v_min + i * (config.v_max - config.v_min) / max(Z - 1, 1)
                      for i in range(Z)])  # fmt: skip

    def mean_of(outputs: np.ndarray) -> np.ndarray:
        if config.distribution == "categorical":
            return np.asarray((softmax(outputs) * atoms).sum(-1))
        return np.asarray(outputs.mean(-1))

    rows = replay.rows[s].numpy()
    online, other = (weights_with_noise(x, s, e) for x, e in zip((net, target), noise, strict=True))
    losses, values, leaves, shares = [], [], {}, []
    before = leaves_of(replay)[s] if config.prioritized else np.ones(len(rows))
    places = places_by_hand(replay, s, uniforms)
    for place in places:
        R, discount, last = n_steps_by_hand(replay, s, place, config.n_steps, config.gamma)
        row, next_obs = rows[place], rows[last, 6:12][None]
        theirs = forward(*other, next_obs, net.shape)[0]
        own = forward(*online, next_obs, net.shape)[0]
        best = int(np.argmax(mean_of(own if config.double else theirs)))
        following = theirs[best]
        outputs = forward(*online, row[None, :6], net.shape)[0, int(row[12])]
        if config.distribution == "categorical":
            m = project_by_hand(
                R + discount * atoms, softmax(following), config.v_min, config.v_max
            )
            log_p = np.log(softmax(outputs))
            loss = -(m * log_p).sum()
            error = sum(a * (np.log(a) - b) for a, b in zip(m, log_p, strict=True) if a > 0)
        elif config.distribution == "quantile":
            loss = 0.0
            for i, j in itertools.product(range(Z), range(Z)):
                d = R + discount * following[j] - outputs[i]
                huber = 0.5 * d * d if abs(d) <= 1 else abs(d) - 0.5
                loss += abs((i + 0.5) / Z - (d < 0)) * huber / Z
            error = loss
        else:
            d = R + discount * following[0] - outputs[0]
            small = 0.5 * d * d if abs(d) <= 1 else abs(d) - 0.5
            loss, error = (small if config.loss == "huber" else d * d), abs(d)
        losses.append(loss)
        values.append(mean_of(outputs))
        leaves[place] = (error + 1e-6) ** config.priority_alpha
        shares.append(before[place] / before.sum())
    size = int(replay.size)
    importance = np.array([(size * share) ** -beta for share in shares])
    weights = importance / importance.max() if config.prioritized else np.ones(len(losses))
    return float((weights * losses).mean()), float(np.mean(values)), leaves


@pytest.mark.parametrize("k", range(40))
def test_a_step_is_that_of_the_papers(k: int) -> None:
    """Its loss, values and new priorities, in float64, with any parts."""
    config = rainbow.Config(**settings_of(k))
    learner = learner_of(config, torch.float64)
    draws, noise = (x.double() for x in drawn(config, 1, learner.net))
    beta = torch.tensor(0.7, dtype=torch.float64)
    expected = [
        step_by_hand(learner, s, draws[s, 0].numpy(), noise[s, 0].numpy(), 0.7, config)
        for s in SEEDS
    ]
    unchanged = leaves_of(learner.replay) if config.prioritized else None
    found = rainbow.update(*learner, draws, noise, beta, config)
    for s, (loss, value, leaves) in enumerate(expected):
        assert found["td_loss"][s].item() == pytest.approx(loss, rel=1e-9, abs=1e-9)
        assert found["q_values"][s].item() == pytest.approx(value, rel=1e-9, abs=1e-9)
        if unchanged is not None:
            unchanged[s, list(leaves)] = list(leaves.values())
            now = leaves_of(learner.replay)[s]
            np.testing.assert_allclose(now, unchanged[s], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("k", range(10))
def test_gradients_are_those_of_the_loss(k: int) -> None:
    """Of both means and deviations of the weights: a step of the optimizer goes down by them."""
    config = rainbow.Config(**{**settings_of(k), "noisy": True, "max_grad_norm": 0.0})
    draws, noise = (x.double() for x in drawn(config, 1, learner_of(config).net))
    beta, step = torch.tensor(0.7, dtype=torch.float64), 1e-6

    def loss_of(change: Tensor | None) -> tuple[Tensor, Tensor]:
        learner = learner_of(config, torch.float64)
        if change is not None:
            learner.optimizer.params.data += change
        grads: list[Tensor] = []
        gather = learner.optimizer.gather

        def spy(*args: Any) -> Tensor:
            norms = gather(*args)
            grads.append(learner.optimizer.grads.clone())
            return norms

        learner.optimizer.gather = spy  # type: ignore[method-assign]
        metrics = rainbow.update(*learner, draws, noise, beta, config)
        return metrics["td_loss"], grads[0]

    _, gradient = loss_of(None)
    generator = torch.Generator().manual_seed(k)
    direction = torch.randn(gradient.shape, generator=generator, dtype=torch.float64)
    above, below = (loss_of(sign * step * direction)[0] for sign in (1, -1))
    slope = (gradient * direction).sum(-1)
    torch.testing.assert_close((above - below) / (2 * step), slope, rtol=1e-4, atol=1e-6)


@pytest.mark.skipif(kernels.library() is None, reason="no C compiler")
@pytest.mark.parametrize("k", [*range(24), "many samples"])
def test_an_update_in_c_is_that_of_the_file(k: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """In float64: metrics, weights, moments and priorities after three gradient steps, of two rows
    with hyperparameters of their own."""
    many = {"batch_size": 300, "hidden": (16, 16), "buffer_size": 500}  # of several blocks
    config = rainbow.Config(**(many if k == "many samples" else settings_of(k)))
    other = {"gamma": 0.4, "v_min": config.v_min - 1, "noise_std": 0.3}
    if config.priority_alpha:
        other["priority_alpha"] = 0.3
    config = stack([config, dataclasses.replace(config, **other)])
    learner, exact = learner_of(config), learner_of(config, torch.float64)
    draws, noise = drawn(config, 3, learner.net)
    beta = torch.tensor([0.7, 0.4])
    with monkeypatch.context() as patch:
        patch.setattr(Tensor, "backward", None)  # which Python would call
        found = rainbow.update(*learner, draws, noise, beta, config)
    with kernels.off():
        expected = rainbow.update(*exact, draws.double(), noise.double(), beta.double(), config)
    assert found.keys() == expected.keys()
    pairs = [(found[name], expected[name]) for name in found]
    pairs += zip(learner.net.parameters(), exact.net.parameters(), strict=True)
    pairs.append((learner.optimizer.square, exact.optimizer.square))
    if config.prioritized:
        trees = [x.replay.priorities for x in (learner, exact)]
        pairs += [
            (getattr(trees[0], name), getattr(trees[1], name)) for name in ("nodes", "largest")
        ]
    for x, y in pairs:
        assert y.dtype == torch.float64
        torch.testing.assert_close(x.double(), y, rtol=2e-4, atol=2e-4)


@pytest.mark.usefixtures("computed")
@pytest.mark.parametrize("k", range(12))
def test_rollouts_are_acted_as_the_file_says(k: int) -> None:
    """In C as in PyTorch, with and without noise in the weights, of two rows."""
    config = rainbow.Config(**{**settings_of(k), "env": "Acrobot-v1"})
    config = stack([config, dataclasses.replace(config, v_min=config.v_min - 3)])
    env = config.make_env()
    net = rainbow.QNetwork(SPEC, config, SeedStreams(SEEDS, "init"))
    streams, policy = SeedStreams(SEEDS, "train"), net
    acting: Any = policy
    if config.noisy:
        acting = rainbow.Explorer(net)
        acting.renew(streams.normal(len(net.q.outputs), net.noise_size))
    state, obs = env.reset(streams.uniform(4, env.initial_noise))
    action_noise = net.draw(streams, 30, 4, epsilon=torch.tensor([[0.3]]))
    noise = action_noise, streams.uniform(30, 4, env.noise_size)
    *_, steps = envs.rollout(env, acting, state, obs, *noise)
    expected = acting.act(steps.obs.flatten(1, 2), action_noise.flatten(1, 2))
    assert torch.equal(steps.actions.flatten(1, 2), expected)


# ---- SB3 ---------------------------------------------------------------------------------------


def into_sb3(net: rainbow.QNetwork, s: int, linears: list[Any]) -> None:
    """Give a network of SB3's the weights of a seed; its outputs are [Z, A]."""
    A, Z = net.shape
    pairs = zip(net.q.weights, net.q.biases, strict=True)
    for k, (linear, (w, b)) in enumerate(zip(linears, pairs, strict=True)):
        weight, bias = w[s, 0].T.detach(), b[s, 0, 0].detach()
        if k == len(linears) - 1:
            order = torch.arange(A * Z).view(A, Z).T.flatten()
            weight, bias = weight[order], bias[order]
        linear.weight.data.copy_(weight)
        linear.bias.data.copy_(bias)


def linears_of(model: Any) -> list[list[Any]]:
    names = ("quantile_net", "quantile_net_target") if hasattr(model, "quantile_net") else ()
    nets = [getattr(model, name) for name in names or ("q_net", "q_net_target")]
    return [[x for x in net.modules() if isinstance(x, nn.Linear)] for net in nets]


@pytest.mark.parametrize("distribution", ["none", "quantile"])
@pytest.mark.parametrize("k", range(20))
def test_updates_are_sb3s(k: int, distribution: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """DQN's with n steps, and QR-DQN's: three steps of two seeds in float64, same minibatches."""
    own = {"distribution": distribution, "n_steps": settings_of(k)["n_steps"], "loss": "huber"}
    own |= {"env": "Acrobot-v1", "quiet": True, "num_envs": 1}
    config, G = rainbow.Config(**{**settings_of(k), **OFF, **own}), 3
    learner = learner_of(config, torch.float64)
    draws, noise = (x.double() for x in drawn(config, G, learner.net))
    models = []
    for s in SEEDS:
        if distribution == "quantile":
            one_step = dataclasses.replace(config, n_steps=1)
            model: Any = sb3_baseline.build(sb3_baseline.QRDQNBaseline, one_step, s)
        else:
            names = {field.name for field in dataclasses.fields(dqn.Config)}
            plain = dqn.Config(**{name: x for name, x in vars(config).items() if name in names})
            model = sb3_baseline.build(sb3_baseline.DQNBaseline, plain, s)
            model.policy.optimizer.param_groups[0]["eps"] = config.adam_eps
        model.set_logger(Logger(None, []))
        model.policy.double()
        for net, linears in zip(learner[:2], linears_of(model), strict=True):
            into_sb3(net, s, linears)
        models.append(model)
    monkeypatch.setattr(policies, "preprocess_obs", lambda obs, *args, **kwargs: obs)  # no floats
    batches = [minibatches_of(learner.replay, s, draws[s], config) for s in SEEDS]
    metrics = rainbow.update(*learner, draws, noise, torch.tensor(0.0), config)
    for s, model in enumerate(models):
        of_steps = iter(batches[s])
        monkeypatch.setattr(
            model.replay_buffer, "sample", lambda *a, of_steps=of_steps, **b: next(of_steps)
        )
        model.train(G, config.batch_size)
        online = linears_of(model)[0]
        trained = [p.detach().clone() for x in online for p in x.parameters()]
        into_sb3(learner.net, s, online)
        ours = [p for x in online for p in x.parameters()]
        for x, y in zip(trained, ours, strict=True):
            torch.testing.assert_close(x, y.detach(), rtol=1e-6, atol=1e-6)
    assert metrics["td_loss"].isfinite().all()


def minibatches_of(
    replay: rainbow.Replay, s: int, draws: Tensor, config: rainbow.Config
) -> list[Any]:
    """The minibatches of seed s as SB3 has them, for draws [G, M]."""
    found = []
    for uniforms in draws:
        rows = []
        for place in places_by_hand(replay, s, uniforms.numpy()):
            R, discount, last = n_steps_by_hand(replay, s, place, config.n_steps, config.gamma)
            rows.append((replay.rows[s, place], replay.rows[s, last], R, discount))
        first, last_rows, totals, discounts = zip(*rows, strict=True)
        column = partial(torch.tensor, dtype=torch.float64)
        after = column(discounts).unsqueeze(-1)
        found.append(
            SimpleNamespace(
                observations=torch.stack(first)[:, :6],
                actions=torch.stack(first)[:, 12:13].long(),
                rewards=column(totals).unsqueeze(-1),
                next_observations=torch.stack(last_rows)[:, 6:12],
                dones=(after == 0).double(),
                discounts=after,
            )
        )
    return found


@pytest.mark.parametrize("n", [1, 2, 3, 7])
@pytest.mark.parametrize("steps", [5, 8, 13, 16])  # of a memory of 8 per environment
def test_n_steps_are_sb3s(n: int, steps: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of every transition in the memory, also over its end, terminations and truncations."""
    N, per_env, gamma = 2, 8, 0.9
    config = rainbow.Config(num_envs=N, train_freq=1, buffer_size=N * per_env, n_steps=n)
    ours = rainbow.Replay(1, 6, config, CPU)
    box, discrete = spaces.Box(-np.inf, np.inf, (6,)), spaces.Discrete(3)
    theirs = NStepReplayBuffer(N * per_env, box, discrete, "cpu", N, n_steps=n, gamma=gamma)
    generator = torch.Generator().manual_seed(steps)
    for _ in range(steps):
        new = transitions(N, generator)
        ours.add(rainbow.Transitions(*(x[:1] for x in new)))
        obs, actions, rewards, terminated, truncated, next_obs = (x[0].numpy() for x in new)
        infos = [{"TimeLimit.truncated": bool(b and not a)}
                 for a, b in zip(terminated, truncated, strict=True)]  # fmt: skip
        done = terminated | truncated
        theirs.add(obs, next_obs, actions[:, None], rewards, done, infos)
    held = min(steps, per_env)
    for env in range(N):
        monkeypatch.setattr(np.random, "randint", lambda *a, env=env, **b: np.full(held, env))
        expected = theirs._get_samples(np.arange(held))
        places = (torch.arange(held) * N + env).unsqueeze(0)
        found = ours.sample(places, n, gamma)
        after = expected.discounts * (1 - expected.dones)
        for x, y in [
            (found.obs, expected.observations),
            (found.actions, expected.actions.flatten()),
            (found.rewards, expected.rewards.flatten()),
            (found.discounts, after.flatten()),
        ]:
            torch.testing.assert_close(x[0], y, check_dtype=False)
        goes_on = after.flatten() > 0  # of a terminal state nothing is asked
        torch.testing.assert_close(found.next_obs[0][goes_on], expected.next_observations[goes_on])


# ---- n steps -----------------------------------------------------------------------------------


def test_n_steps_by_hand() -> None:
    """Terminal states, truncations, the newest transition and the end of the ring."""
    config = rainbow.Config(num_envs=1, train_freq=1, buffer_size=6)
    replay = rainbow.Replay(1, 1, config, CPU)
    terminated = torch.tensor([[0, 0, 1, 0, 0, 0, 0, 0]]).bool()
    truncated = torch.tensor([[0, 0, 0, 0, 1, 0, 0, 0]]).bool()
    numbers = torch.arange(8.0).unsqueeze(0)  # two more than fit: 6 and 7 lie at 0 and 1
    obs, actions = numbers.unsqueeze(-1), numbers.long()
    for k in range(8):
        new = (obs, actions, 10**numbers, terminated, truncated, obs + 0.5)
        replay.add(rainbow.Transitions(*(x[:, k : k + 1] for x in new)))
    batch = replay.sample(torch.tensor([[2, 3, 4, 5, 0, 1]]), 3, 0.5)
    torch.testing.assert_close(
        batch.rewards,
        torch.tensor([[1e2, 1e3 + 0.5e4, 1e4, 1e5 + 0.5e6 + 0.25e7, 1e6 + 0.5e7, 1e7]]),
    )
    assert batch.discounts.tolist() == [[0.0, 0.25, 0.5, 0.125, 0.25, 0.5]]
    assert batch.next_obs[0, 1:, 0].tolist() == [4.5, 4.5, 7.5, 7.5, 7.5]
    assert batch.obs[0, :, 0].tolist() == batch.actions[0].tolist() == [2, 3, 4, 5, 6, 7]


@pytest.mark.parametrize(("terminal_at", "time_limit"), [(7, 5), (4, 9), (6, 6)])
def test_memory_holds_true_successors(
    terminal_at: int, time_limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Through training, over terminations, truncations, both at once, and wrap-arounds; what is
    sampled never leaves an episode."""
    env, checked = Counter(terminal_at, time_limit), []
    sample = rainbow.Replay.sample

    def spy(replay: rainbow.Replay, places: Tensor, n: int, gamma: Any) -> rainbow.Batch:
        batch = sample(replay, places, n, gamma)
        obs, next_obs = batch.obs[..., 0], batch.next_obs[..., 0]
        assert (next_obs > obs).all()
        assert (next_obs <= min(terminal_at, time_limit)).all()
        # A step's reward is 1, and so is gamma.
        assert torch.equal(batch.rewards, next_obs - obs)
        assert torch.equal(batch.discounts > 0, next_obs < terminal_at)
        checked.append(batch)
        return batch

    monkeypatch.setattr(rainbow.Replay, "sample", spy)
    settings = {"total_timesteps": 400, "learning_starts": 0, "buffer_size": 64, "num_envs": 3}
    train_on(env, monkeypatch, gamma=1.0, hidden=(8,), **settings)
    assert len(checked) > 10


# ---- Priorities --------------------------------------------------------------------------------


@pytest.mark.parametrize("capacity", [1, 2, 5, 8, 100])
def test_a_sum_tree_is_a_list_of_priorities(capacity: int) -> None:
    """Sums, and what is found, after any changes."""
    tree = rainbow.SumTree(2, capacity, CPU)
    rng = np.random.default_rng(capacity)
    leaves = np.zeros((2, capacity))
    for _ in range(5):
        places = np.stack([rng.permutation(capacity)[: capacity // 2 + 1] for _ in SEEDS])
        values = rng.integers(1, 100, places.shape) / 8.0
        np.put_along_axis(leaves, places, values, 1)
        tree.set(torch.from_numpy(places), torch.from_numpy(values))
        np.testing.assert_array_equal(tree.nodes[:, 1], leaves.sum(1))
        uniforms = rng.random((2, 40)).astype(np.float32)
        found = tree.find(torch.from_numpy(uniforms)).numpy()
        for s in SEEDS:
            sums = np.cumsum(leaves[s])
            rest = (np.arange(40) + uniforms[s].astype(np.float64)) / 40 * sums[-1]
            expected = [(sums <= x).sum() for x in rest]
            np.testing.assert_array_equal(found[s], expected)
            assert (leaves[s][found[s]] > 0).all()


def test_samples_follow_the_priorities() -> None:
    """(p + 1e-6)^alpha; the largest uniforms stay within what is held."""
    config = rainbow.Config(train_freq=1, buffer_size=10, priority_alpha=0.5)
    replay = rainbow.Replay(2, 6, config, CPU)
    replay.add(transitions(7, torch.Generator().manual_seed(0)))
    errors = torch.arange(7.0).square().expand(2, -1)
    replay.set_priorities(torch.arange(7).expand(2, -1), errors, 0.5)
    places = replay.places(torch.rand(2, 20_000))
    for own in places.tolist():
        counts = Counts(own)
        shares = [counts[k] / 20_000 for k in range(7)]
        assert shares == pytest.approx([k / 21 for k in range(7)], abs=0.001)
    assert replay.places(torch.full((2, 3), 1 - 2**-24)).amax() == 6
    weights = replay.importance_weights(torch.tensor([[1, 2, 4]] * 2), torch.tensor([0.5, 1.0]))
    expected = torch.tensor([[1.0, 2**-0.5, 0.5], [1.0, 0.5, 0.25]])
    torch.testing.assert_close(weights, expected, rtol=1e-5, atol=1e-5)


def test_new_transitions_have_the_largest_priority_so_far() -> None:
    """Also when what had it is gone; each seed its own."""
    config = rainbow.Config(train_freq=1, buffer_size=4, priority_alpha=1.0)
    replay = rainbow.Replay(2, 6, config, CPU)
    generator = torch.Generator().manual_seed(0)
    replay.add(transitions(2, generator))
    assert leaves_of(replay).tolist() == [[1, 1], [1, 1]]
    errors = torch.tensor([[0.5, 9.0], [0.25, 0.125]])
    replay.set_priorities(torch.tensor([[0, 1]] * 2), errors, 1.0)
    replay.set_priorities(torch.tensor([[1], [1]]), torch.tensor([[2.0], [2.0]]), 1.0)
    replay.add(transitions(1, generator))
    expected = [[0.5, 2, 9], [0.25, 2, 2]]
    np.testing.assert_allclose(leaves_of(replay), expected, rtol=1e-5)
    replay.add(transitions(3, generator))
    np.testing.assert_allclose(leaves_of(replay), [[9] * 4, [2] * 4], rtol=1e-5)


def test_beta_goes_to_one() -> None:
    config = rainbow.Config(total_timesteps=1000, learning_starts=0, priority_beta=0.4)
    points = {0: 0.4, 500: 0.7, 1000: 1.0, 1003: 1.0}
    assert {t: rainbow.beta_at(t, config) for t in points} == pytest.approx(points)
    rows: Any = stack([config, dataclasses.replace(config, priority_beta=0.8)])
    assert rainbow.beta_at(500, rows).tolist() == pytest.approx([0.7, 0.9])


def test_beta_while_training(monkeypatch: pytest.MonkeyPatch) -> None:
    """The update after t timesteps uses beta(t)."""
    used: list[float] = []
    update = rainbow.update
    monkeypatch.setattr(
        rainbow, "update", lambda *args: (used.append(args[-2].item()), update(*args))[1]
    )
    settings: dict[str, Any] = {"total_timesteps": 80, "learning_starts": 40, "train_freq": 10}
    train_on(Counter(), monkeypatch, batch_size=4, hidden=(8,), **settings)
    assert used == pytest.approx([0.4 + 0.6 * t / 80 for t in (50, 60, 70, 80)])


# ---- Distributions -----------------------------------------------------------------------------


def test_projection_by_hand() -> None:
    """On an atom, between two, on the ends, beyond both, and all on one after a terminal state."""
    targets = torch.tensor([[[-1.0, 0, 0.5, 1.25, 2]]]).double() + torch.tensor([[[0.0]]])
    p = torch.tensor([[[0.1, 0.2, 0.3, 0.15, 0.25]]]).double()
    found = rainbow.project(targets, p, -1.0, 1.0)  # atoms -1, -0.5, 0, 0.5, 1
    expected = torch.tensor([[[0.1, 0, 0.2, 0.3, 0.4]]]).double()
    torch.testing.assert_close(found, expected)
    for value, wanted in [(-7.0, [1, 0, 0, 0, 0]), (0.5, [0, 0, 0, 1, 0]), (-0.875, [0.75, 0.25])]:
        found = rainbow.project(torch.full_like(targets, value), p, -1.0, 1.0)
        wanted = wanted + [0] * (5 - len(wanted))
        torch.testing.assert_close(found, torch.tensor([[wanted]]).double())


def test_projection_keeps_mass_and_mean() -> None:
    """Within the bounds, with bounds of each seed; as the papers' loop."""
    generator = torch.Generator().manual_seed(0)
    targets = torch.rand(2, 30, 51, generator=generator, dtype=torch.float64) * 2
    p = torch.rand(2, 30, 51, generator=generator, dtype=torch.float64).softmax(-1)
    low, high = torch.tensor([0.0, -1.0]).double(), torch.tensor([2.0, 3.0]).double()
    found = rainbow.project(targets, p, low, high)
    torch.testing.assert_close(found.sum(-1), torch.ones(2, 30).double())
    for s in SEEDS:
        atoms = torch.linspace(low[s].item(), high[s].item(), 51).double()
        torch.testing.assert_close((found[s] * atoms).sum(-1), (p[s] * targets[s]).sum(-1))
        for i in range(30):
            by_hand = project_by_hand(
                targets[s, i].numpy(), p[s, i].numpy(), low[s].item(), high[s].item()
            )
            np.testing.assert_allclose(found[s, i], by_hand, atol=1e-12)


def test_quantiles_of_a_coin() -> None:
    """What the loss is smallest at: the quantiles of the targets, not their mean."""
    targets = torch.tensor([0.0, 0, 0, 100]).expand(1, 1, -1)
    quantiles = torch.zeros(1, 1, 4, requires_grad=True)
    optimizer = torch.optim.Adam([quantiles], lr=1.0)
    for step in range(400):
        optimizer.param_groups[0]["lr"] = 1.0 if step < 200 else 0.1
        optimizer.zero_grad()
        rainbow.quantile_loss(quantiles, targets).sum().backward()
        optimizer.step()
    assert (quantiles[..., :3].abs() < 1).all()
    assert (quantiles[..., 3] > 95).all()


# ---- Networks ----------------------------------------------------------------------------------


def test_dueling_by_hand() -> None:
    """V + A - mean A; a constant in all advantages changes nothing."""
    config = rainbow.Config(**{**OFF, "dueling": True}, hidden=(8,))
    net = rainbow.QNetwork(SPEC, config, SeedStreams(SEEDS, "init"))
    obs = torch.randn(2, 5, 6)
    advantages, value = net.q(obs)
    expected = value + advantages - advantages.mean(-1, keepdim=True)
    torch.testing.assert_close(net(obs), expected)
    torch.testing.assert_close(net(obs).mean(-1, keepdim=True), value)
    before = net(obs)
    net.q.biases[-1].data[:, 0, :, :3] += 5
    torch.testing.assert_close(net(obs), before)


def test_noise_at_the_beginning() -> None:
    """Means as torch.nn.Linear's, deviations sigma_0 / sqrt(inputs); a unit's noise is shared."""
    config = rainbow.Config(hidden=(16, 32), noise_std=0.3)
    net = rainbow.QNetwork(SPEC, config, SeedStreams(SEEDS, "init"))
    assert net.sigma is not None
    for weight, std, bias_std, n_in in zip(
        net.q.weights, net.sigma.weights, net.sigma.biases, (6, 16, 32), strict=True
    ):
        bound = 1 / n_in**0.5
        assert bound * 0.9 < weight.abs().max() <= bound
        torch.testing.assert_close(std, torch.full_like(std, 0.3 * bound))
        torch.testing.assert_close(bias_std, torch.full_like(bias_std, 0.3 * bound))
    noise = SeedStreams(SEEDS, "train").normal(1, 2, net.noise_size)[:, 0]
    weights = net.sampled(noise)
    assert weights is not None
    factors = (weights["weights.1"] - net.q.weights[1]) / net.sigma.weights[1]
    assert (torch.linalg.matrix_rank(factors, atol=1e-4) == 1).all()
    assert net.sampled(torch.zeros_like(noise))["weights.0"].equal(net.q.weights[0])  # type: ignore[index]


def test_noise_explores(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rollouts have one sample each, of every seed another; evaluations the means."""
    made: list[Any] = []
    renew = rainbow.Explorer.renew

    def spy(explorer: Any, noise: Tensor) -> None:
        renew(explorer, noise)
        made.append(explorer.q.weights[0].detach().clone())

    monkeypatch.setattr(rainbow.Explorer, "renew", spy)
    draws: list[Tensor] = []
    draw = rainbow.QNetwork.draw

    def spy_draw(*args: Any, **kwargs: Any) -> Tensor:
        draws.append(draw(*args, **kwargs))
        return draws[-1]

    monkeypatch.setattr(rainbow.QNetwork, "draw", spy_draw)
    settings: dict[str, Any] = {"total_timesteps": 80, "learning_starts": 20, "train_freq": 10}
    net, _ = train_on(Counter(), monkeypatch, batch_size=4, hidden=(8,), **settings)
    assert len(made) == 8
    assert not any(torch.equal(a, b) for a, b in itertools.combinations(made, 2))
    assert all(not torch.equal(x[0], x[1]) for x in made)
    acted = torch.cat(draws, dim=1)
    assert (acted[:, :20] >= 0).all()  # random until learning starts, then greedy
    assert (acted[:, 20:] < 0).all()
    assert (net.draw(SeedStreams(SEEDS, "evaluate"), 1000) < 0).all()


# ---- Settings ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"atoms": 1}, "--atoms 1"),
        ({"v_min": 1.0, "v_max": 1.0}, "--v-min 1.0"),
        ({"v_min": 0.0, "v_max": 1e-40}, "--v-max 1e-40: atoms must be"),
        ({"v_min": -3e38, "v_max": 3e38}, r"--v-max 3e\+38: atoms must be"),
        ({"distribution": "c51"}, "'c51': must be one of none, categorical, quantile"),
        ({"gradient_steps": 0}, "--gradient-steps 0"),
    ],
)
def test_settings_that_make_no_sense(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        rainbow.Config(**settings)


def test_bounds_of_presets_hold_all_returns() -> None:
    """Of rewards of one sign and at most 1."""
    for name, preset in rainbow.PRESETS.items():
        config = rainbow.Config(env=name, **preset.settings)
        bound = 1 / (1 - config.gamma)
        expected = (0, bound) if name == "CartPole-v1" else (-bound, 0)
        assert (config.v_min, config.v_max) == pytest.approx(expected)


@pytest.mark.usefixtures("computed")
@pytest.mark.parametrize("part", ["all", *OFF])
def test_a_value_that_is_no_number_stays_one(part: str) -> None:
    """In all that its seed learns, and there alone."""
    on = {"distribution": "quantile"} if part == "distribution" else {part: True}
    on = {"n_steps": 3} if part == "n_steps" else on
    config = rainbow.Config(**({} if part == "all" else {**OFF, **on}), hidden=(8,), batch_size=5)
    config = dataclasses.replace(config, buffer_size=20)
    learner = learner_of(config)
    learner.target.q.biases[-1].data[0, 0, 0, :3] = torch.nan
    metrics = rainbow.update(*learner, *drawn(config, 2, learner.net), torch.tensor(0.5), config)
    assert metrics["td_loss"].isnan().tolist() == [True, False]
    weights = learner.net.q.weights[0].detach()
    assert weights[0].isnan().any()
    assert weights[1].isfinite().all()


def test_learns_cartpole_within_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    """All parts on, a tenth of the preset's budget; a random policy's return is 22."""
    settings = {**rainbow.PRESETS["CartPole-v1"].settings, "total_timesteps": 4000}
    policy, run = train_on("CartPole-v1", monkeypatch, **settings)
    env = run.config.make_env()
    assert evaluate(env, policy, run.seeds, 10).return_mean.mean() > 150
