"""REINFORCE: its weights against loops, its gradients and their variance against autograd."""

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
from manyseeds.algos import reinforce
from manyseeds.errors import UsageError
from manyseeds.optim import SeedAdam
from manyseeds.seeds import SeedStreams
from tests.algos import probes

train_on = partial(
    probes.train_on,
    reinforce,
    episodes=4,
    hidden=(16,),
    total_timesteps=200,
    minibatch_size=32,
    critic_updates=2,
)

WEIGHTS = ["total_return", "return_to_go", "baseline", "q"]


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def small_batch(
    dtype: torch.dtype = torch.float32, S: int = 3, env_id: str = "CartPole-v1", **settings: Any
) -> tuple[reinforce.Config, reinforce.Actor, reinforce.Critic, reinforce.Batch, envs.Episodes]:
    """Real episodes of S untrained policies, with critics beside them."""
    config = reinforce.Config(env=env_id, **{"episodes": 4, "hidden": (16,), **settings})
    env = envs.make(env_id)
    init = SeedStreams(range(S), "init")
    actor = reinforce.Actor(env.spec, config, init).to(dtype)
    critic = reinforce.Critic(env.spec, config, init).to(dtype)
    for p in (*actor.parameters(), *critic.parameters()):  # off the uniform policy and V = 0
        p.data += 0.1 * torch.randn(p.shape, generator=generator(1)).to(dtype)
    if actor.obs_stats is not None:
        actor.obs_stats.double()
        actor.obs_stats.update(torch.randn(S, 32, env.spec.obs_size or 0, generator=generator()))
    L, N = env.spec.time_limit, config.episodes
    streams = SeedStreams(range(S), "train")
    start = streams.uniform(N, env.initial_noise).to(dtype)
    noise = (
        actor.draw(streams, L, N).to(dtype),
        streams.uniform(L, N, env.transition_noise).to(dtype),
    )
    episodes = envs.play(env, actor, start, *noise)
    return config, actor, critic, reinforce.prepare(actor, episodes, config), episodes


# ---- The weights ------------------------------------------------------------------------


def phi_by_loops(episodes: envs.Episodes, values: Tensor, config: reinforce.Config) -> np.ndarray:
    """Phi_t of the docstring, step by step, for values V or Q [S, L, N]; [S, L, N]."""
    S, L, N = episodes.rewards.shape
    weights = np.zeros((S, L, N))
    alive = episodes.alive.numpy()
    for s in range(S):
        for n in range(N):
            r = episodes.rewards[s, alive[s, :, n], n].double().tolist()
            g = [
                sum(config.gamma ** (k - t) * r[k] for k in range(t, len(r))) for t in range(len(r))
            ]
            for t in range(len(r)):
                value = values[s, t, n].item()
                options = {"total_return": g[0], "return_to_go": g[t]}
                options |= {"baseline": g[t] - value, "q": value}
                weights[s, t, n] = options[config.weight]
        if config.normalize_advantage:
            chosen = weights[s][alive[s]]
            weights[s] = (weights[s] - chosen.mean()) / (chosen.std(ddof=1) + 1e-8)
    weights[~alive] = 0
    return weights


@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("weight", WEIGHTS)
def test_weights_equal_slow_loops(weight: Any, normalize: bool) -> None:
    config, _, critic, batch, episodes = small_batch(
        torch.float64, weight=weight, normalize_advantage=normalize, gamma=0.9
    )
    assert 0 < episodes.alive[:, :60].float().mean() < 1
    with torch.no_grad():
        values = critic(batch.features, batch.actions).view(episodes.rewards.shape)
    used = critic if weight in ("baseline", "q") else None
    got = reinforce.phi(used, batch, config)
    assert not got.requires_grad
    expected = phi_by_loops(episodes, values, config)
    np.testing.assert_allclose(got.view(episodes.rewards.shape), expected, atol=1e-9)
    assert np.abs(expected).max() > 0.01


def test_returns_and_order_of_a_batch() -> None:
    """Sample t N + n is step t of episode n; its return is that of the rest of the episode."""
    config, _, _, batch, episodes = small_batch(gamma=0.5)
    ends = episodes.alive.sum(1)
    for n in range(4):
        T = int(ends[1, n])
        steps = torch.arange(T) * 4 + n
        assert torch.equal(batch.features[1, steps], episodes.obs[1, :T, n])
        assert torch.equal(batch.actions[1, steps], episodes.actions[1, :T, n])
        expected = 2 * (1 - 0.5 ** (T - torch.arange(T)))
        torch.testing.assert_close(batch.returns[1, steps], expected)
    assert (batch.returns[~batch.alive] == 0).all()
    for field in episodes:
        assert (field[~episodes.alive] == 0).all()


def test_normalize() -> None:
    x = torch.tensor([[1.0, 2.0, 3.0, 4.0, 99.0], [5.0, 5.0, 5.0, 5.0, 5.0], [3.0] * 4 + [1e30]])
    mask = torch.tensor([[True] * 4 + [False], [True] * 5, [True] + [False] * 4])
    y = reinforce.normalize(x, mask)
    expected = (torch.arange(1, 5) - 2.5) / torch.arange(1.0, 5).std()
    torch.testing.assert_close(y[0, :4], expected)
    assert (y[1] == 0).all()
    assert (y[2] == 0).all()  # a single one is its own mean
    assert (y[~mask] == 0).all()
    seven = reinforce.normalize(torch.tensor([[1.0] * 7 + [0.0]]), torch.ones(1, 8).bool())
    assert seven[0, -1] == pytest.approx(-2.4749, abs=1e-3)


def test_masked_mean() -> None:
    x = torch.tensor([[1.0, 2.0, math.nan], [math.nan, math.inf, 3.0]])
    mask = torch.tensor([[True, True, False], [False, False, False]])
    assert reinforce.masked_mean(x, mask).tolist() == [1.5, 0.0]


# ---- The gradient -----------------------------------------------------------------------

VARIANTS: dict[str, dict[str, Any]] = {
    "discrete": {},
    "entropy": {"entropy_coef": 0.1},
    "box": {"env_id": "Pendulum-v1", "entropy_coef": 0.1, "episodes": 3},
    "normalised": {"normalize_obs": True, "hidden": (16, 16)},
    "two episodes": {"episodes": 2},
    "linear": {"hidden": ()},
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_gradient_and_its_variance_are_those_of_one_episode_at_a_time(variant: str) -> None:
    """A backward pass for every episode, over its own steps only; then mean and variance."""
    config, actor, _, batch, episodes = small_batch(torch.float64, **VARIANTS[variant])
    weights = reinforce.phi(None, batch, config)
    metrics = reinforce.policy_gradient(actor, batch, weights, config)
    got = [p.grad.clone() for p in actor.parameters() if p.grad is not None]
    S, L, N = episodes.rewards.shape
    features = batch.features.view(S, L, N, -1)
    weights = weights.view(S, L, N)
    for s in range(S):
        gradients, losses, entropies = [], [], 0.0
        for n in range(N):
            T = int(episodes.alive[s, :, n].sum())
            inputs = torch.zeros(S, T, features.shape[-1], dtype=torch.float64)
            inputs[s] = features[s, :T, n]
            actions = episodes.actions[s, :T, n].expand(S, *episodes.actions[s, :T, n].shape)
            actor.zero_grad()
            logprobs, entropy = actor(inputs, actions)
            loss = -(weights[s, :T, n] * logprobs[s]).sum()
            (loss - config.entropy_coef * entropy[s].sum()).backward()
            gradients.append(torch.cat([p.grad[s].flatten() for p in actor.parameters()]))  # type: ignore[index]
            losses.append(loss.item())
            entropies += entropy[s].sum().item()
        each = torch.stack(gradients)
        mean = torch.cat([g[s].flatten() for g in got])
        torch.testing.assert_close(mean, each.mean(0), atol=1e-10, rtol=1e-8)
        found = {name: x[s].item() for name, x in metrics.items()}
        assert found["policy_loss"] == pytest.approx(np.mean(losses), rel=1e-9, abs=1e-9)
        assert found["entropy"] == pytest.approx(entropies / int(episodes.alive[s].sum()))
        assert found["grad_norm"] == pytest.approx(each.mean(0).norm().item())
        assert found["grad_variance"] == pytest.approx(each.var(0).sum().item() / N)


# ---- Steps after the end of an episode --------------------------------------------------


@pytest.mark.parametrize("weight", WEIGHTS)
@pytest.mark.parametrize("env_id", ["CartPole-v1", "MountainCarContinuous-v0"])
def test_steps_after_an_end_never_reach_the_update(env_id: str, weight: Any) -> None:
    """Whatever stands there: the same gradients, metrics and critics, bit for bit."""
    config, actor, critic, batch, _ = small_batch(
        env_id=env_id, weight=weight, entropy_coef=0.01, critic_updates=5, minibatch_size=64
    )
    L, N = 60, config.episodes
    batch = reinforce.Batch(*(field[:, : L * N] for field in batch))
    ends = torch.randint(1, L, (3, 1, N), generator=generator())
    alive = batch.alive & (torch.arange(L).view(1, L, 1) < ends).flatten(1)
    assert 0.2 < alive.float().mean() < 0.8
    batch = batch._replace(alive=alive, returns=batch.returns * alive)

    def learn(batch: reinforce.Batch) -> list[Tensor]:
        learner, of_actions = copy.deepcopy(actor), copy.deepcopy(critic)
        optimizer, critic_optimizer = SeedAdam(learner), SeedAdam(of_actions)
        used = of_actions if weight in ("baseline", "q") else None
        weights = reinforce.phi(used, batch, config)
        metrics = reinforce.policy_gradient(learner, batch, weights, config)
        optimizer.step(0.05)
        draws = torch.rand(3, 5, 64, generator=generator())
        everybody, lr = torch.ones(3, dtype=torch.bool), torch.full((3, 1), 0.05)
        v_loss = reinforce.fit(of_actions, critic_optimizer, batch, draws, everybody, lr)
        return [optimizer.params, critic_optimizer.params, v_loss, *metrics.values()]

    dead = ~alive.unsqueeze(-1)
    clean = learn(batch)
    # Finite: play() sets them to 0, so that infinities of an environment never come this far.
    actions = batch.actions
    poisoned = batch._replace(
        features=batch.features.masked_fill(dead, 1e9),
        actions=actions.masked_fill(dead, 1e9)
        if actions.is_floating_point()
        else actions.masked_fill(~alive, 1),
        returns=batch.returns.masked_fill(~alive, 0.0),
    )
    for one, other in zip(clean, learn(poisoned), strict=True):
        assert one.isfinite().all()
        assert torch.equal(one, other)


# ---- The critic -------------------------------------------------------------------------


def test_the_critic_learns_from_steps_that_were_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every one of them equally often, in every seed; from the right returns."""
    config, _, critic, batch, _ = small_batch(weight="baseline")
    drawn: list[Tensor] = []
    take = reinforce.take
    monkeypatch.setattr(reinforce, "take", lambda *args: (drawn.append(args[1]), take(*args))[1])
    draws = torch.rand(3, 50, 2000, generator=generator())
    draws[:, 0, 0], draws[:, 0, 1] = 0.0, 1 - 2**-24  # the least and the greatest uniform
    everybody, lr = torch.ones(3, dtype=torch.bool), torch.full((3, 1), 0.05)
    reinforce.fit(critic, SeedAdam(critic), batch, draws, everybody, lr)
    indices = torch.cat(drawn[:: len(batch)], dim=1)  # once for every field
    assert indices.shape == (3, 100_000)
    for s in range(3):
        counts = torch.bincount(indices[s], minlength=batch.alive.shape[1])
        assert (counts[~batch.alive[s]] == 0).all()
        taken = counts[batch.alive[s]]
        mean = 1e5 / len(taken)
        assert ((taken - mean).abs() < 5 * mean**0.5).all()


@pytest.mark.parametrize("weight", ["baseline", "q"])
@pytest.mark.parametrize("env_id", ["CartPole-v1", "Pendulum-v1"])
def test_a_step_of_the_critic_is_that_of_one_seed(env_id: str, weight: Any) -> None:
    """Mean squared error to g_t, by torch.optim.Adam on plain tensors."""
    _, _, critic, batch, _ = small_batch(env_id=env_id, weight=weight, episodes=2)
    before = [p.detach().clone() for p in critic.parameters()]
    draws = torch.rand(3, 1, 17, generator=generator())
    taken = [alive.nonzero().flatten() for alive in batch.alive]
    indices = [t[(u * len(t)).long()] for t, u in zip(taken, draws[:, 0], strict=True)]
    optimizer = SeedAdam(critic, eps=1e-5)
    active, lr = torch.tensor([True, True, False]), torch.full((3, 1), 0.01)
    v_loss = reinforce.fit(critic, optimizer, batch, draws, active, lr)
    for s in range(3):
        w1, w2, b1, b2 = (p[s, 0].clone().requires_grad_() for p in before)
        x, actions = batch.features[s, indices[s]], batch.actions[s, indices[s]]
        if weight == "q":
            one_hot = torch.eye(2)[actions] if env_id == "CartPole-v1" else actions
            x = torch.cat((x, one_hot), dim=-1)
        values = ((x @ w1 + b1).tanh() @ w2 + b2)[:, 0]
        loss = (values - batch.returns[s, indices[s]]).square().mean()
        assert v_loss[s].item() == pytest.approx(loss.item(), rel=1e-4)
        adam = torch.optim.Adam([w1, w2, b1, b2], lr=0.01, eps=1e-5)
        loss.backward()
        adam.step()
        for p, old, q in zip(critic.parameters(), before, (w1, w2, b1, b2), strict=True):
            expected = q.detach() if s < 2 else old[s, 0]  # seed 2 has ended
            torch.testing.assert_close(p[s, 0].detach(), expected, atol=1e-4, rtol=1e-3)
    for p, old in zip(critic.parameters(), before, strict=True):
        assert torch.equal(p[2], old[2])


def test_the_critic_has_not_seen_the_episodes_that_it_weights(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    order: list[str] = []
    for name in ("play", "phi", "policy_gradient", "fit"):
        module: Any = envs if name == "play" else reinforce
        real = getattr(module, name)
        monkeypatch.setattr(module, name, lambda *a, n=name, f=real: (order.append(n), f(*a))[1])
    train_on("CartPole-v1", monkeypatch, weight="baseline")
    assert order == ["play", "phi", "policy_gradient", "fit"] * (len(order) // 4)


# ---- Training ---------------------------------------------------------------------------


def test_a_budget_below_one_update_is_refused() -> None:
    with pytest.raises(UsageError, match="--total-timesteps 7: must be at least one step of each"):
        reinforce.Config(total_timesteps=7).check()
    reinforce.Config(total_timesteps=8).check()


# ---- Learning ---------------------------------------------------------------------------
