"""GRPO: its comparisons against slow loops, its gradients against oracles, its guards."""

from __future__ import annotations

import copy
import math
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from manyseeds import envs
from manyseeds.algos import grpo
from manyseeds.errors import UsageError
from manyseeds.optim import SeedAdam
from manyseeds.seeds import SeedStreams
from tests.algos import probes
from tests.algos.probes import Counter, SignChoice

train_on = partial(
    probes.train_on, grpo, group_size=4, minibatch_size=32, hidden=(16,), total_timesteps=200
)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


# ---- Peers ------------------------------------------------------------------------------


def compare_by_loops(x: list[float], peers: list[bool], divide: bool) -> np.ndarray:
    """One comparison in numpy, float64: who is no peer, who is alone, and ties get 0."""
    result = np.zeros(len(x))
    among = [v for v, peer in zip(x, peers, strict=True) if peer]
    if len(set(among)) < 2:
        return result
    mean = sum(among) / len(among)
    std = math.sqrt(sum((v - mean) ** 2 for v in among) / (len(among) - 1))
    for i, peer in enumerate(peers):
        if peer:
            result[i] = (x[i] - mean) / (std + 1e-8 if divide else 1)
    return result


@pytest.mark.parametrize("divide", [False, True])
@pytest.mark.parametrize("share", [0.2, 0.7, 1.0])
def test_compare_equals_a_slow_loop(divide: bool, share: float) -> None:
    """Some groups have no peer, one, two; some values are tied."""
    x = torch.randn(3, 20, 2, 5, generator=generator(), dtype=torch.float64)
    x = torch.where(torch.rand(x.shape, generator=generator(1)) < 0.5, x, x.round())
    peers = torch.rand(x.shape, generator=generator(2)) < share
    got = grpo.compare(x, peers, (3,), divide)
    for row, who, out in zip(*(t.flatten(0, 2) for t in (x, peers, got)), strict=True):
        expected = compare_by_loops(row.tolist(), who.tolist(), divide)
        np.testing.assert_allclose(out, expected, atol=1e-12)
    over_two = grpo.compare(x, peers, (1, 3), divide)
    for s in range(3):
        for k in range(2):
            row, who = x[s, :, k].flatten().tolist(), peers[s, :, k].flatten().tolist()
            expected = compare_by_loops(row, who, divide)
            np.testing.assert_allclose(over_two[s, :, k].flatten(), expected, atol=1e-12)


@pytest.mark.parametrize("divide", [False, True])
@pytest.mark.parametrize("value", [0.1 + 0.1 + 0.1, -0.7, 1e-30, 3e7 + 1, 0.0])
def test_ties_are_exactly_0(value: float, divide: bool) -> None:
    """Also where the mean of equal numbers is not that number: 3 * (0.1 + 0.1 + 0.1) / 3."""
    for n in (2, 3, 7, 16):
        x = torch.full((1, 1, 1, n), value)
        everybody = torch.ones_like(x, dtype=torch.bool)
        assert (grpo.compare(x, everybody, (3,), divide) == 0).all()
        # What the others hold, who are no peers, is no difference.
        wider = torch.cat((x, torch.full_like(x, 5.0)), dim=-1)
        peers = torch.cat((everybody, ~everybody), dim=-1)
        assert (grpo.compare(wider, peers, (3,), divide) == 0).all()


@pytest.mark.parametrize("gamma", [0.99, 1.0])
@pytest.mark.parametrize("peers", ["alive", "all"])
@pytest.mark.parametrize("std", ["group", "batch", "none"])
def test_equal_returns_added_up_in_another_order_are_ties(
    std: Any, peers: Any, gamma: float
) -> None:
    """In float32 their sums differ in the last bits: no advantage, but exactly 0.

    A difference of a thousandth of the return stays one.
    """
    L, G = 200, 16
    # 16 episodes of the same discounted rewards, each in an order of its own.
    discounted = torch.rand(3, L, 1, 1, generator=generator(), dtype=torch.float64)
    orders = torch.rand(3, L, 1, G, generator=generator(1)).argsort(1)
    shuffled = discounted.expand(3, L, 1, G).gather(1, orders)
    discounts = gamma ** torch.arange(L, dtype=torch.float64).view(1, L, 1, 1)
    rewards = (shuffled / discounts).float()
    rewards[2, 0, 0, 0] += 1e-3 * discounted[2].sum()
    total = grpo.returns_to_go(rewards, gamma)[:, 0, 0]
    assert (total.max(-1).values > total.min(-1).values).all()
    alive = torch.ones_like(rewards, dtype=torch.bool)
    config = grpo.Config(advantage="outcome", std=std, peers=peers, gamma=gamma)
    advantages = grpo.group_advantages(rewards, alive, config)
    assert (advantages[:2] == 0).all()
    assert (advantages[2, :, 0, 0] > 0).all()
    assert (advantages[2, :, 0, 1:] < 0).all()
    # At every step, too, where what is to come is the same but for its order.
    config = grpo.Config(std=std, peers=peers, gamma=gamma)
    advantages = grpo.group_advantages(rewards, alive, config)
    assert (advantages[:2, 0] == 0).all()
    assert (advantages[:2, L // 2] != 0).all()
    assert (advantages[2, 0] != 0).all()


# ---- Returns and advantages -------------------------------------------------------------


def episodes_that_end(S: int, L: int, K: int, G: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Random rewards of few values (many ties), and episodes of 1 to L steps; [S, L, K, G]."""
    shape = (S, L, K, G)
    length = torch.randint(1, L + 1, (S, 1, K, G), generator=generator(seed))
    alive = torch.arange(L).view(1, L, 1, 1) < length
    rewards = torch.randint(-1, 2, shape, generator=generator(seed + 1)).double()
    rewards = rewards + 0.3 * (torch.rand(shape, generator=generator(seed + 2)) < 0.3)
    return rewards * alive, alive


def returns_by_loops(rewards: np.ndarray, gamma: float) -> np.ndarray:
    """sum_k gamma^k r_{t+k} for one episode [L], by the definition."""
    L = len(rewards)
    return np.array([sum(gamma ** (k - t) * rewards[k] for k in range(t, L)) for t in range(L)])


def advantages_by_loops(rewards: np.ndarray, alive: np.ndarray, config: grpo.Config) -> np.ndarray:
    """The definition in the file's docstring, one seed [L, K, G], sample by sample."""
    L, K, G = rewards.shape
    divide = config.std == "group"
    A = np.zeros((L, K, G))
    for k in range(K):
        g = np.stack([returns_by_loops(rewards[:, k, i], config.gamma) for i in range(G)], axis=1)
        peers = alive[:, k] if config.peers == "alive" else np.ones((L, G), dtype=bool)
        if config.advantage == "return_to_go":
            for t in range(L):
                A[t, k] = compare_by_loops(g[t].tolist(), peers[t].tolist(), divide)
        elif config.advantage == "outcome":
            A[:, k] = compare_by_loops(g[0].tolist(), [True] * G, divide)
        else:
            flat = rewards[:, k].flatten().tolist(), peers.flatten().tolist()
            steps = compare_by_loops(*flat, divide).reshape(L, G) * alive[:, k]
            for i in range(G):
                A[:, k, i] = returns_by_loops(steps[:, i], config.gamma)
    A *= alive
    if config.std == "batch":
        chosen = A[alive]
        A /= math.sqrt((chosen**2).sum() / max(len(chosen) - 1, 1)) + 1e-8
    return A


@pytest.mark.parametrize("std", ["group", "batch", "none"])
@pytest.mark.parametrize("peers", ["alive", "all"])
@pytest.mark.parametrize("advantage", ["return_to_go", "outcome", "process"])
@pytest.mark.parametrize("gamma", [0.9, 1.0])
def test_advantages_equal_slow_loops(advantage: Any, peers: Any, std: Any, gamma: float) -> None:
    config = grpo.Config(advantage=advantage, peers=peers, std=std, gamma=gamma)
    rewards, alive = episodes_that_end(4, 8, 3, 5)
    got = grpo.group_advantages(rewards, alive, config)
    assert (got[~alive] == 0).all()
    for s in range(4):
        expected = advantages_by_loops(rewards[s].numpy(), alive[s].numpy(), config)
        np.testing.assert_allclose(got[s], expected, atol=1e-10)
        assert np.abs(expected).max() > 0.1
    if advantage == "return_to_go" and peers == "alive":
        torch.testing.assert_close(got.sum((1, 2, 3)), torch.zeros(4).double(), atol=1e-9, rtol=0)


# ---- Minibatches ------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 7, 64, 1000])
def test_every_sample_is_in_one_minibatch(size: int) -> None:
    """Once, in as few minibatches as there can be, of one size to within 1; empty seeds too."""
    S, B = 6, 150
    share = torch.tensor([1.0, 0.5, 0.0, 0.02, 0.9, 0.3]).view(S, 1)
    mask = torch.rand(S, B, generator=generator()) < share
    shuffle = torch.rand(S, B, generator=generator(1))
    indices, valid = grpo.minibatches(mask, shuffle, size)
    assert indices.shape == valid.shape
    assert indices.shape[2] == size
    for s in range(S):
        wanted = mask[s].nonzero().flatten().tolist()
        parts = [indices[s, j][valid[s, j]].tolist() for j in range(indices.shape[1])]
        assert sorted(i for part in parts for i in part) == wanted
        sizes = [len(part) for part in parts if part]
        assert len(sizes) == -(-len(wanted) // size)
        assert not sizes or max(sizes) - min(sizes) <= 1
        assert not any(parts[len(sizes) :])  # the empty ones come last
        order = [i for part in parts for i in part]
        assert order == sorted(wanted, key=lambda i: shuffle[s, i].item())
        # What does not count must not bring in a step after an end.
        assert not wanted or mask[s][indices[s]].all()
        alone, counts = grpo.minibatches(mask[s : s + 1], shuffle[s : s + 1], size)
        assert torch.equal(alone[0], indices[s, : len(sizes)])
        assert torch.equal(counts[0], valid[s, : len(sizes)])


def test_no_seed_has_a_sample() -> None:
    nobody = torch.zeros(2, 9, dtype=torch.bool)
    indices, valid = grpo.minibatches(nobody, torch.rand(2, 9), 4)
    assert indices.shape == valid.shape == (2, 0, 4)


# ---- The loss ---------------------------------------------------------------------------


def test_policy_loss_by_hand() -> None:
    """eq. 3 with a wider range upwards: 1 - 0.2 to 1 + 0.5."""
    config = grpo.Config(clip_range=0.2, clip_range_high=0.5)
    ratio = torch.tensor([[1.8, 1.3, 0.5, 1.8, 0.9, 0.5]])
    advantages = torch.tensor([[1.0, 1.0, 1.0, -1.0, -1.0, -1.0]])
    expected = torch.tensor([[-1.5, -1.3, -0.5, 1.8, 0.9, 0.8]])
    torch.testing.assert_close(grpo.policy_loss(ratio, advantages, config), expected)
    symmetric = grpo.policy_loss(ratio, advantages, grpo.Config(clip_range=0.2))
    expected[0, :2] = -1.2
    torch.testing.assert_close(symmetric, expected)
    config = grpo.Config(clip_range=0.0, clip_range_high=0.5)  # without range
    unclipped = grpo.policy_loss(ratio, advantages, config)
    torch.testing.assert_close(unclipped, -ratio * advantages)


def test_k3_has_the_mean_of_the_exact_divergence_and_is_never_negative() -> None:
    """By enumeration of the actions: sum_a pi(a) k3(a) = KL(pi, pi_ref)."""
    logits = 3 * torch.randn(2, 200, 6, generator=generator(), dtype=torch.float64)
    new, ref = logits.log_softmax(-1)
    estimates = grpo.k3(new, ref)
    assert (estimates >= 0).all()
    exact = (new.exp() * (new - ref)).sum(-1)
    torch.testing.assert_close((new.exp() * estimates).sum(-1), exact, atol=1e-10, rtol=1e-10)
    assert (grpo.k3(new, new) == 0).all()


def small_batch(
    dtype: torch.dtype = torch.float32, S: int = 3, env_id: str = "CartPole-v1", **settings: Any
) -> tuple[grpo.Config, grpo.Actor, grpo.Batch, Tensor, envs.Episodes]:
    """Real episodes of S untrained agents, which samples count, and the episodes themselves."""
    settings = {"groups": 2, "group_size": 3, "hidden": (16,), **settings}
    config = grpo.Config(env=env_id, **settings)
    env = envs.make(env_id)
    actor = grpo.Actor(env.spec, config, SeedStreams(range(S), "init")).to(dtype)
    if actor.obs_stats is not None:
        actor.obs_stats.double()
        actor.obs_stats.update(torch.randn(S, 32, env.spec.obs_size or 0, generator=generator()))
    episodes = play(env, actor, config, dtype)
    batch, mask, _ = grpo.prepare(actor, None, episodes, config)
    return config, actor, batch, mask, episodes


def play(
    env: envs.Env, actor: grpo.Actor, config: grpo.Config, dtype: torch.dtype = torch.float32
) -> envs.Episodes:
    S, L, N = len(actor.network.weights[0]), env.spec.time_limit, config.num_envs
    streams = SeedStreams(range(S), "train")
    start = streams.uniform(config.groups, env.initial_noise).to(dtype)
    noise = streams.uniform(L, N, env.transition_noise).to(dtype)
    action_noise = actor.draw(streams, L, N).to(dtype)
    start = start.repeat_interleave(config.group_size, dim=1)
    return envs.play(env, actor, start, action_noise, noise)


VARIANTS: dict[str, dict[str, Any]] = {
    "discrete": {},
    "box": {"env_id": "Pendulum-v1", "groups": 1},
    "normalised": {"normalize_obs": True},
    "box, normalised": {"env_id": "Pendulum-v1", "groups": 1, "normalize_obs": True},
    "more terms": {"entropy_coef": 0.1, "kl_coef": 0.2},
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_first_gradient_is_the_policy_gradient(variant: str) -> None:
    """Ratio 1 before any update; then the gradient of E[ratio A] is that of E[log pi A].

    Besides it there are the entropy bonus and the penalty for leaving the reference.
    """
    config, actor, batch, mask, _ = small_batch(torch.float64, **VARIANTS[variant])
    log_ratio = 0.3 * torch.randn(batch.logprobs.shape, generator=generator()).double()
    batch = batch._replace(reference=batch.logprobs + log_ratio)
    total, metrics = grpo.loss(actor, batch, mask, config)
    assert (metrics["clipfrac"] == 0).all()
    assert (metrics["approx_kl"] == 0).all()
    expected = -grpo.masked_mean(batch.advantages, mask)
    torch.testing.assert_close(metrics["policy_loss"], expected, atol=1e-12, rtol=0)
    total.sum().backward()
    grads = [p.grad.clone() for p in actor.parameters() if p.grad is not None]
    actor.zero_grad()
    logprobs, entropy = actor.evaluate(batch.obs, batch.actions)
    assert torch.equal(logprobs.detach(), batch.logprobs)
    log_ratio = batch.reference - logprobs
    penalty = log_ratio.exp() - log_ratio - 1
    gains = logprobs * batch.advantages + config.entropy_coef * entropy - config.kl_coef * penalty
    (-(gains * mask).sum(-1) / mask.sum(-1)).sum().backward()
    for p, got in zip(actor.parameters(), grads, strict=True):
        assert p.grad is not None
        torch.testing.assert_close(got, p.grad, atol=1e-12, rtol=1e-9)


# ---- Steps after the end of an episode --------------------------------------------------


@pytest.mark.parametrize("poison", [1e30, math.inf, math.nan])
@pytest.mark.parametrize("env_id", ["CartPole-v1", "MountainCarContinuous-v0"])
def test_steps_after_an_end_never_reach_the_update(env_id: str, poison: float) -> None:
    """Whatever stands there: the same weights, moments and metrics, bit for bit."""
    settings = {"kl_coef": 0.1, "entropy_coef": 0.01, "minibatch_size": 32, "epochs": 2}
    config, actor, _, _, episodes = small_batch(env_id=env_id, **settings)
    L = 60  # CartPole's are about 20 steps long; MountainCar's are made so here
    episodes = envs.Episodes(*(field[:, :L] for field in episodes))
    ends = torch.randint(1, L, (3, 1, config.num_envs), generator=generator())
    alive = episodes.alive & (torch.arange(L).view(1, L, 1) < ends)
    episodes = episodes._replace(alive=alive, rewards=episodes.rewards * alive)
    assert 0.2 < alive.float().mean() < 0.8

    def learn(obs: Tensor, actions: Tensor) -> list[Tensor]:
        learner = copy.deepcopy(actor)
        reference, optimizer = copy.deepcopy(actor), SeedAdam(learner)
        seen = episodes._replace(obs=obs, actions=actions)
        batch, mask, metrics = grpo.prepare(learner, reference, seen, config)
        shuffle = torch.rand(3, 2, L * config.num_envs, generator=generator())
        everybody, lr = torch.ones(3, dtype=torch.bool), torch.full((3, 1), 0.05)
        metrics |= grpo.update(learner, optimizer, batch, mask, shuffle, everybody, config, lr)
        return [optimizer.params, optimizer.mean, optimizer.square, *metrics.values()]

    dead = ~alive.unsqueeze(-1)
    clean = learn(episodes.obs, episodes.actions)
    actions = episodes.actions
    actions = actions.masked_fill(dead, poison) if actions.is_floating_point() else actions
    poisoned = learn(episodes.obs.masked_fill(dead, poison), actions)
    for one, other in zip(clean, poisoned, strict=True):
        assert one.isfinite().all()
        assert torch.equal(one, other)


class PythonsCartPole(envs.CartPole):
    """Without code in C, as every subclass."""


@pytest.mark.parametrize("kind", [envs.CartPole, PythonsCartPole])
def test_an_episode_is_the_one_of_its_noise(
    kind: type[envs.CartPole], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Step by step against the environment, one episode at a time, over several looks.

    The environment in C goes single steps in C, too: its last bits are its own.
    """
    monkeypatch.setitem(envs.NATIVE, "CartPole-v1", kind)
    config, actor, _, _, episodes = small_batch(groups=1, S=2)
    env, streams = envs.make("CartPole-v1"), SeedStreams(range(2), "train")
    start = streams.uniform(1, env.initial_noise).repeat_interleave(3, dim=1)
    env_noise = torch.zeros(2, 500, 3, env.noise_size)  # CartPole takes none
    action_noise = actor.draw(streams, 500, 3)
    state, obs = env.reset(start)
    alive = torch.ones(2, 3, dtype=torch.bool)
    for t in range(500):
        assert torch.equal(episodes.alive[:, t], alive)
        if not alive.any():
            break
        actions = actor.act(obs, action_noise[:, t])
        assert torch.equal(episodes.obs[:, t][alive], obs[alive])
        assert torch.equal(episodes.actions[:, t][alive], actions[alive])
        if kind is envs.CartPole:
            noise = action_noise[:, t : t + 1], env_noise[:, t : t + 1]
            state, obs, one = envs.rollout(env, actor, state, obs, *noise)
            ended = (one.terminated | one.truncated)[:, 0]
        else:
            step = env.step(state, actions, env_noise[:, t])
            ended = step.terminated | step.truncated
            state, obs = step.state, step.obs
        alive = alive & ~ended
    assert not alive.any()
    for field in episodes:  # also while others go on, whose environments act meanwhile
        assert (field[~episodes.alive] == 0).all()


# ---- Training ---------------------------------------------------------------------------


def test_moments_stay_after_learning_has_stopped() -> None:
    """An update with something to learn, then one without: Adam must not drift on."""
    config, actor, batch, mask, _ = small_batch()
    optimizer = SeedAdam(actor)
    shuffle = torch.rand(3, 4, mask.shape[1], generator=generator())
    everybody, lr = torch.ones(3, dtype=torch.bool), torch.full((3, 1), 1e-2)
    tell = batch.advantages * torch.tensor([1.0, 0.0, 1.0]).unsqueeze(1)  # nothing for seed 1

    def state() -> list[Tensor]:
        return [x.clone() for x in (optimizer.params, optimizer.mean, *optimizer.beta_powers)]

    begin = state()
    grpo.update(
        actor, optimizer, batch._replace(advantages=tell), mask, shuffle, everybody, config, lr
    )
    moved = state()
    for before, after in zip(begin, moved, strict=True):
        assert torch.equal(before[1], after[1])
        assert not torch.equal(before[0], after[0])
    nothing = batch._replace(advantages=torch.zeros_like(tell))
    metrics = grpo.update(actor, optimizer, nothing, mask, shuffle, everybody, config, lr)
    for before, after in zip(moved, state(), strict=True):
        assert torch.equal(before, after)
    assert all((x == 0).all() for x in metrics.values())


def test_uninformative_groups_are_left_out() -> None:
    """Of two groups, one with equal returns: its samples are in no minibatch."""
    config, actor, _, _, episodes = small_batch()
    S, L, N = episodes.rewards.shape
    alive = torch.zeros(S, L, N, dtype=torch.bool)
    alive[:, :5] = True
    alive[:, :9, 4] = True  # in the second group one episode is longer
    rewards = alive.float()
    same = episodes._replace(alive=alive, rewards=rewards)
    _, mask, metrics = grpo.prepare(actor, None, same, config)
    by_group = mask.view(S, L, 2, 3)
    assert not by_group[:, :, 0].any()
    assert torch.equal(by_group[:, :, 1], alive[:, :, 3:])
    assert (metrics["zero_variance"] == 0.5).all()
    assert (metrics["train_length"] == (5 * 5 + 9) / 6).all()
    assert (metrics["train_return"] == metrics["train_length"]).all()


@pytest.mark.parametrize("every", [0, 1, 3])
def test_the_reference_is_the_policy_of_some_updates_ago(
    every: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the statistics of its observations: it is the policy as it was."""
    policies: list[dict[str, Tensor]] = []
    references: list[dict[str, Tensor]] = []
    prepare = grpo.prepare

    def spy(actor: Any, reference: Any, *args: Any) -> Any:
        policies.append(copy.deepcopy(actor.state_dict()))
        references.append(copy.deepcopy(reference.state_dict()))
        batch, *rest = prepare(actor, reference, *args)
        alive = args[0].alive.flatten(1)  # elsewhere there is nothing to compare
        logprobs, _ = reference.evaluate(batch.obs, batch.actions)
        torch.testing.assert_close(batch.reference[alive], logprobs[alive], atol=1e-6, rtol=0)
        return batch, *rest

    monkeypatch.setattr(grpo, "prepare", spy)
    settings: dict[str, Any] = {"kl_coef": 0.1, "reference_updates": every, "normalize_obs": True}
    train_on(SignChoice(), monkeypatch, **settings)
    assert len(policies) > 6
    for k, reference in enumerate(references):
        expected = policies[k - k % every if every else 0]
        for name, tensor in expected.items():
            assert torch.equal(reference[name], tensor), (k, name)
    assert not torch.equal(policies[0]["obs_stats.mean"], policies[1]["obs_stats.mean"])


@pytest.mark.parametrize("backend", ["auto", "gymnasium"])
@pytest.mark.parametrize("env_id", ["CartPole-v1", "Pendulum-v1"])
def test_a_group_begins_in_one_state_and_goes_on_apart(
    env_id: str, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[envs.Episodes] = []
    play = envs.play
    monkeypatch.setattr(envs, "play", lambda *args: (seen.append(play(*args)), seen[-1])[1])
    settings: dict[str, Any] = {"groups": 3, "total_timesteps": 300, "backend": backend}
    train_on(env_id, monkeypatch, seeds=2, **settings)
    for episodes in seen:
        first = episodes.obs[:, 0].unflatten(1, (3, 4))
        assert torch.equal(first, first[:, :, :1].expand_as(first))
        starts = {tuple(row) for row in first[:, :, 0].flatten(0, 1).tolist()}
        assert len(starts) == 6  # a start of its own for every group of every seed
        actions = episodes.actions[:, :5].flatten(2).mT.reshape(2, 12, -1)
        assert all(len({tuple(row) for row in one.tolist()}) > 3 for one in actions)
    if len(seen) > 1:
        assert not torch.equal(seen[0].obs[:, 0], seen[1].obs[:, 0])


def test_statistics_are_those_of_the_steps_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each observation acted on once, raw, and none after an end."""
    seen: list[list[np.ndarray]] = [[], [], []]
    play = envs.play

    def spy(*args: Any) -> envs.Episodes:
        episodes = play(*args)
        for s in range(3):
            if sum(map(len, seen[s])) < 200:  # a seed with its budget spent stands still
                seen[s].append(episodes.obs[s][episodes.alive[s]].double().numpy())
        return episodes

    monkeypatch.setattr(envs, "play", spy)
    actor, _ = train_on("CartPole-v1", monkeypatch, normalize_obs=True)
    stats = actor.obs_stats
    assert stats is not None
    for s in range(3):
        everything = np.concatenate(seen[s])
        assert stats.count[s].item() == len(everything)
        np.testing.assert_allclose(stats.mean[s, 0], everything.mean(0), atol=1e-12)
        np.testing.assert_allclose(stats.var[s, 0], everything.var(0), atol=1e-12)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"clip_range_high": 0.1}, "--clip-range-high 0.1: must be 0 or at least"),
        ({"total_timesteps": 15}, "--total-timesteps 15: must be at least one step of each"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        grpo.Config(**settings).check()
    grpo.Config(clip_range_high=0.2, total_timesteps=16).check()


# ---- Learning ---------------------------------------------------------------------------


def test_a_time_limit_is_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing follows it: the return-to-go of the last step is its reward."""
    seen: list[Tensor] = []
    returns = grpo.returns_to_go
    monkeypatch.setattr(
        grpo, "returns_to_go", lambda *args: (seen.append(returns(*args)), seen[-1])[1]
    )
    train_on(Counter(time_limit=5), monkeypatch, gamma=0.5)
    expected = torch.tensor([1.9375, 1.875, 1.75, 1.5, 1.0]).view(1, 5, 1, 1)
    for got in seen:
        assert torch.equal(got, expected.expand_as(got))
