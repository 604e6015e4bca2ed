"""DQN: the replay memory, the targets, the rhythm of updates, the gradients."""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from manyseeds import envs, kernels
from manyseeds.algos import dqn
from manyseeds.kernels.guard import Guard
from manyseeds.optim import SeedAdam
from manyseeds.rows import stack
from manyseeds.seeds import SeedStreams
from tests.algos import probes
from tests.algos.probes import Counter

train_on = partial(probes.train_on, dqn, seeds=2)


def coded(seeds: int, first: int, count: int) -> dqn.Transitions:
    """Transitions whose every field says who they are: seed s, index i."""
    index = torch.arange(first, first + count).float()
    code = index + 1000.0 * torch.arange(seeds).unsqueeze(1)  # [S, K]
    return dqn.Transitions(
        obs=code.unsqueeze(-1),
        actions=(index % 3).long().expand(seeds, -1),
        rewards=code + 0.25,
        terminated=(index % 5 == 4).expand(seeds, -1),
        next_obs=code.unsqueeze(-1) + 0.5,
    )


@pytest.mark.parametrize("block", [1, 3, 4, 10])
def test_replay_over_wrap_around(block: int) -> None:
    """Index-coded: every sampled row is whole, its own seed's, and among the newest C."""
    replay = dqn.Replay(seeds=2, capacity=10, obs_size=1, device=torch.device("cpu"))
    for first in range(0, 40, block):
        replay.add(coded(2, first, block))
        added = first + block
        assert replay.size == min(added, 10)
        batch = replay.sample(torch.rand(2, 50, 20))
        index = batch.obs[..., 0] % 1000
        seed = (batch.obs[..., 0] / 1000).floor()
        assert (seed == torch.arange(2.0).view(2, 1, 1)).all()
        assert set(index.flatten().int().tolist()) == set(range(max(0, added - 10), added))
        assert torch.equal(batch.next_obs, batch.obs + 0.5)
        assert torch.equal(batch.rewards, batch.obs[..., 0] + 0.25)
        assert torch.equal(batch.actions, (index % 3).long())
        assert torch.equal(batch.terminated, index % 5 == 4)


def test_replay_never_reads_beyond_what_it_holds() -> None:
    """The largest float32 below 1 times the size may round up to the size."""
    replay = dqn.Replay(1, 2**20, 1, torch.device("cpu"))
    replay.add(coded(1, 0, 7))
    last = torch.tensor([[1 - 2**-24]])
    assert replay.sample(last).obs.item() == 6
    replay.added.fill_(2**20)
    replay.sample(last)


def test_memory_holds_true_successors(monkeypatch: pytest.MonkeyPatch) -> None:
    """Through training, over terminations, truncations, both at once, and several wrap-arounds."""
    for env in (Counter(terminal_at=7, time_limit=5), Counter(4, 9), Counter(6, 6)):
        memories = []
        build = dqn.Replay.__init__

        def spy(self: Any, *args: Any, build: Any = build, memories: Any = memories) -> None:
            build(self, *args)
            memories.append(self)

        monkeypatch.setattr(dqn.Replay, "__init__", spy)
        train_on(
            env, monkeypatch, total_timesteps=500, learning_starts=0, buffer_size=64, num_envs=3
        )
        monkeypatch.undo()
        obs, next_obs, scalars = memories[0].rows.split((1, 1, 3), dim=-1)
        assert torch.equal(next_obs, obs + 1)
        assert torch.equal(scalars[..., 2].bool(), next_obs[..., 0] >= env.terminal_at)


def test_td_target_by_hand() -> None:
    rewards = torch.tensor([[1.0, 2.0]])
    terminated = torch.tensor([[False, True]])
    next_q = torch.tensor([[[3.0, 5.0], [7.0, 9.0]]])
    got = dqn.td_target(rewards, terminated, next_q, 0.5)
    assert torch.equal(got, torch.tensor([[3.5, 2.0]]))


@pytest.mark.parametrize(
    ("kind", "reference"),
    [("huber", torch.nn.functional.smooth_l1_loss), ("mse", torch.nn.functional.mse_loss)],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])  # in C, and by PyTorch
def test_td_loss_equals_torchs(kind: str, reference: Any, dtype: torch.dtype) -> None:
    """Of the chosen actions; losses and gradients, from strided inputs."""
    config = dqn.Config(hidden=(16, 5))
    net = dqn.QNetwork(envs.make("Acrobot-v1").spec, config, SeedStreams(range(2), "init"))
    net = net.to(dtype)
    generator = torch.Generator().manual_seed(0)
    obs = torch.randn(2, 6, 25, generator=generator, dtype=dtype).transpose(1, 2)
    actions = torch.randint(0, 3, (25, 2), generator=generator).T
    with torch.no_grad():
        chosen = torch.stack([net(obs)[s, torch.arange(25), actions[s]] for s in (0, 1)])
    targets = chosen + 2 * torch.randn(2, 25, generator=generator, dtype=dtype)
    targets[0, :3] = chosen[0, :3] + torch.tensor([-1.0, 0.0, 1.0])  # at the bounds, and at 0
    got, q_values = dqn.backpropagate(net, obs, actions, targets, kind)
    torch.testing.assert_close(q_values, chosen)
    gradients = [p.grad for p in net.parameters()]
    for p in net.parameters():
        p.grad = None
    q = net(obs)
    chosen = torch.stack([q[s, torch.arange(25), actions[s]] for s in (0, 1)])
    expected = torch.stack([reference(chosen[s], targets[s]) for s in (0, 1)])
    torch.testing.assert_close(got, expected.detach())
    expected.sum().backward()
    for p, gradient in zip(net.parameters(), gradients, strict=True):
        torch.testing.assert_close(gradient, p.grad)


@pytest.mark.usefixtures("computed")
@pytest.mark.parametrize("kind", ["huber", "mse"])
def test_a_td_error_that_is_not_a_number_stays_one(kind: str) -> None:
    """In its seed, and there alone."""
    config = dqn.Config(hidden=(8,))
    net = dqn.QNetwork(envs.make("CartPole-v1").spec, config, SeedStreams(range(2), "init"))
    targets = torch.tensor([[torch.nan, 1.0], [1.0, 2.0]])
    sample = torch.ones(2, 2, 4), torch.ones(2, 2).long(), targets
    got, _ = dqn.backpropagate(net, *sample, kind)
    assert got.isnan().tolist() == [True, False]
    for p in net.parameters():
        assert p.grad is not None
        assert p.grad[0].isnan().any()
        assert p.grad[1].isfinite().all()


@pytest.mark.skipif(kernels.library() is None, reason="no C compiler")
@pytest.mark.parametrize("kind", ["huber", "mse"])
def test_an_update_in_c_is_that_of_the_file(kind: str) -> None:
    """In float64: metrics and weights after three gradient steps, which are clipped."""
    config = dqn.Config(loss=kind, hidden=(16, 5), learning_rate=0.01, max_grad_norm=1.0)
    spec = envs.make("Acrobot-v1").spec

    def learned(dtype: torch.dtype) -> list[Tensor]:
        generator = torch.Generator().manual_seed(0)
        normal = partial(torch.randn, generator=generator)
        net, target = (
            dqn.QNetwork(spec, config, SeedStreams(seeds, "init")).to(dtype)
            for seeds in ((0, 1), (2, 3))
        )
        optimizer, replay = SeedAdam(net), dqn.Replay(2, 20, 6, torch.device("cpu"))
        actions = torch.randint(0, 3, (2, 15), generator=generator)
        terminated = normal(2, 15) > 0
        new = normal(2, 15, 6), actions, 3 * normal(2, 15), terminated, normal(2, 15, 6)
        replay.add(dqn.Transitions(*new))
        replay.rows = replay.rows.to(dtype)
        draws = torch.rand(2, 3, 8, generator=generator)
        metrics = dqn.update(net, target, optimizer, replay, draws, config)
        return [*metrics.values(), *(p.detach() for p in net.parameters())]

    found = learned(torch.float32)
    with kernels.off():
        exact = learned(torch.float64)
    for x, y in zip(found, exact, strict=True):
        assert y.dtype == torch.float64
        torch.testing.assert_close(x.double(), y, rtol=1e-4, atol=1e-4)


@pytest.mark.skipif(kernels.library() is None, reason="no C compiler")
@pytest.mark.parametrize("N", [1, 3])
def test_a_round_in_c_is_its_parts(N: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """To the last bit: with truncations, a target that moves, and changes in between of all that
    the structs in C were made of."""
    common = dqn.Config(env="MountainCar-v0", num_envs=N, train_freq=90, hidden=(16, 5), tau=0.5)
    env = common.make_env()

    def played(in_one: bool) -> list[Tensor]:
        config: Any = stack([dataclasses.replace(common, gamma=gamma) for gamma in (0.9, 0.8)])
        net, target = (dqn.QNetwork(env.spec, config, SeedStreams([0, 1], "init")) for _ in "ab")
        optimizer, replay = SeedAdam(net), dqn.Replay(2, 500, 2, torch.device("cpu"))
        episodes, streams = envs.EpisodeTracker(2, N), SeedStreams([0, 1], "train")
        state, obs = env.reset(streams.uniform(N, env.initial_noise))
        found: list[Tensor] = []
        for k in range(9):
            if k == 2:
                replay.rows.data = replay.rows.clone()
            if k == 3:
                optimizer = SeedAdam(net)  # which puts the weights into memory of its own
            if k == 5:
                optimizer.eps = 0.1
            if k == 6:
                target.q.weights[0].data = 2 * target.q.weights[0]
            if k == 7:
                config.gamma.fill_(0.5)
            noise = net.draw(streams, 90, N), streams.uniform(90, N, env.noise_size)
            draws = streams.uniform(2, 8 if k < 8 else 5)
            objects = net, target, optimizer, replay, episodes
            state, obs, metrics = dqn.learn(
                env, *objects, state, obs, noise, draws, int(k == 4), config
            )
            found += [*state, obs, *metrics.values()]
        assert (replay in dqn.kernel.ROUNDS) is in_one
        weights = [p.detach() for x in (net, target) for p in x.parameters()]
        open_ones = [episodes.open_return, episodes.open_length]
        return [*found, *weights, *open_ones, replay.rows, replay.added]

    in_c, allows = played(in_one=True), Guard.allows
    monkeypatch.setattr(
        Guard, "allows", lambda guard, *x: guard.kernel != "dqn.learn" and allows(guard, *x)
    )
    for x, y in zip(in_c, played(in_one=False), strict=True):
        torch.testing.assert_close(x, y, rtol=0, atol=0, equal_nan=True)


@pytest.mark.usefixtures("computed")
def test_a_value_of_an_end_that_is_no_number_is_not_multiplied_away() -> None:
    """Although it counts 0 times: its seed has diverged."""
    config = dqn.Config(hidden=(8,))
    net, target = (
        dqn.QNetwork(envs.make("CartPole-v1").spec, config, SeedStreams(range(2), "init"))
        for _ in range(2)
    )
    target.q.biases[0].data[0] = torch.nan
    replay = dqn.Replay(2, 3, 4, torch.device("cpu"))
    states, ends = torch.ones(2, 3, 4), torch.ones(2, 3, dtype=torch.bool)
    replay.add(dqn.Transitions(states, ends.long(), torch.ones(2, 3), ends, states))
    metrics = dqn.update(net, target, SeedAdam(net), replay, torch.zeros(2, 1, 5), config)
    assert metrics["td_loss"].isnan().tolist() == [True, False]


def epsilon_at(timestep: int, config: dqn.Config) -> float:
    """The exploration rate at one timestep."""
    return dqn.epsilon_at(torch.tensor([[timestep]], dtype=torch.float64), config).item()


def test_epsilon_schedule() -> None:
    config = dqn.Config(
        total_timesteps=1000,
        learning_starts=0,
        exploration_fraction=0.5,
        exploration_initial_eps=0.8,
        exploration_final_eps=0.1,
    )
    points = {0: 0.8, 250: 0.45, 500: 0.1, 501: 0.1, 999: 0.1, 2000: 0.1}
    for timestep, epsilon in points.items():
        assert epsilon_at(timestep, config) == pytest.approx(epsilon)
    late = dqn.Config(total_timesteps=1000, learning_starts=300)
    assert epsilon_at(299, late) == 1.0
    assert epsilon_at(300, late) < 1.0
    none = dqn.Config(total_timesteps=1000, learning_starts=0, exploration_fraction=0.0)
    assert epsilon_at(0, none) == pytest.approx(0.05)


@pytest.mark.parametrize("N", [1, 2])
def test_epsilon_falls_while_training(N: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The action after t timesteps uses epsilon(t), in every environment."""
    used: list[float] = []
    draw = dqn.QNetwork.draw

    def spy(self: Any, streams: SeedStreams, F: int, envs: int, *, epsilon: Tensor) -> Tensor:
        assert envs == N
        used.extend(epsilon.expand(1, F).flatten().tolist())
        return draw(self, streams, F, N, epsilon=epsilon)

    monkeypatch.setattr(dqn.QNetwork, "draw", spy)
    settings = {"total_timesteps": 80, "learning_starts": 10, "train_freq": 4, "batch_size": 4}
    train_on(Counter(), monkeypatch, num_envs=N, exploration_fraction=0.5, **settings)
    config = dqn.Config(**settings, exploration_fraction=0.5)
    assert used == pytest.approx([epsilon_at(t, config) for t in range(0, 80, N)])
    assert used[-1] < used[30 // N] < used[0] == 1.0


def test_epsilon_greedy_frequencies() -> None:
    env = envs.make("CartPole-v1")
    net = dqn.QNetwork(env.spec, dqn.Config(), SeedStreams([0], "init"))
    obs = torch.zeros(1, 40_000, 4)
    greedy = net.act(obs[:, :1]).item()
    epsilons = torch.tensor([0.0, 0.3, 1.0])
    streams = SeedStreams([3], "train")
    noises = net.draw(streams, 3, 40_000, epsilon=epsilons.view(1, 3, 1)).unbind(1)
    noises += (net.draw(streams, 40_000),)  # as at the end of a training
    for epsilon, noise in zip((*epsilons.tolist(), 0.05), noises, strict=True):
        random = (noise >= 0).double().mean().item()
        assert random == pytest.approx(epsilon, abs=0.01)
        share = (net.act(obs, noise) == greedy).double().mean().item()
        assert share == pytest.approx(1 - epsilon / 2, abs=0.012)


@pytest.mark.parametrize(
    ("settings", "gradient_steps"),
    [
        # rounds of 8; learning begins with the first round that ends beyond 20: 24, ..., 64
        ({"train_freq": 8, "gradient_steps": 3}, 6 * 3),
        ({"train_freq": 4, "num_envs": 2, "gradient_steps": -1}, 6 * 8),
    ],
)
def test_rhythm_of_updates(
    settings: dict[str, Any], gradient_steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SB3's semantics of train_freq, gradient_steps, learning_starts and the target interval.

    When the target is due, the update begins with one that is the network as it has acted.
    """
    calls: list[int] = []
    syncs: list[int] = []
    in_rounds: list[int] = []
    fresh: list[bool] = []
    add, update, update_target = dqn.Replay.add, dqn.update, dqn.update_target

    def spy_syncs(*args: Any) -> None:
        syncs.append(args[2])
        in_rounds[-1] += args[2]
        update_target(*args)

    def spy(net: Any, target: Any, *rest: Any) -> Any:
        pairs = zip(net.parameters(), target.parameters(), strict=True)
        fresh.append(all(torch.equal(a, b) for a, b in pairs))
        calls.append(rest[2].shape[1])
        return update(net, target, *rest)

    monkeypatch.setattr(dqn, "update", spy)
    monkeypatch.setattr(dqn, "update_target", spy_syncs)
    monkeypatch.setattr(dqn.Replay, "add", lambda *a: (in_rounds.append(0), add(*a))[1])
    train_on(
        Counter(),
        monkeypatch,
        total_timesteps=64,
        learning_starts=20,
        batch_size=4,
        target_update_interval=12,
        **settings,
    )
    assert sum(calls) == gradient_steps
    # multiples of 12 up to 64, in rounds that end at 8, 16, ...: 12, 24, 36, 48, 60
    assert in_rounds == [0, 1, 1, 0, 1, 1, 0, 1]
    assert syncs == [1] * 5
    assert fresh == [bool(synced) for synced in in_rounds[2:]]


def test_polyak_updates_compose() -> None:
    env = envs.make("CartPole-v1")
    config = dqn.Config()
    net = dqn.QNetwork(env.spec, config, SeedStreams([0], "init"))
    once = dqn.QNetwork(env.spec, config, SeedStreams([1], "init"))
    thrice = dqn.QNetwork(env.spec, config, SeedStreams([1], "init"))
    for _ in range(3):
        dqn.update_target(once, net, 1, 0.3)
    dqn.update_target(thrice, net, 3, 0.3)
    for a, b in zip(once.parameters(), thrice.parameters(), strict=True):
        torch.testing.assert_close(a, b)
    dqn.update_target(once, net, 1, 1.0)
    for a, b in zip(once.parameters(), net.parameters(), strict=True):
        assert torch.equal(a, b)
