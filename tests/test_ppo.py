"""PPO: its mathematics against definitions, its gradients against oracles, its known faults."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.func import functional_call, grad, vmap

import envs
from algos import ppo
from benchmarks.harness.run import Run
from benchmarks.harness.seeds import SeedAdam, SeedStreams
from tests.probes import Counter, Endless


def gae_by_definition(
    rewards: Tensor,
    values: Tensor,
    next_values: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    gamma: float,
    lam: float,
) -> Tensor:
    """A_t = sum_k (gamma lambda)^k delta_{t+k} up to the end of the episode: O(T^2), by loops."""
    S, T, N = rewards.shape
    advantages = torch.zeros_like(rewards)
    for s in range(S):
        for n in range(N):
            for t in range(T):
                for k in range(t, T):
                    bootstrap = 0.0 if terminated[s, k, n] else next_values[s, k, n].item()
                    delta = rewards[s, k, n] + gamma * bootstrap - values[s, k, n]
                    advantages[s, t, n] += (gamma * lam) ** (k - t) * delta
                    if terminated[s, k, n] or truncated[s, k, n]:
                        break
    return advantages


@pytest.mark.parametrize("lam", [0.0, 0.8, 1.0])
@pytest.mark.parametrize("ends", [0.0, 0.3])
def test_gae_equals_its_definition(lam: float, ends: float) -> None:
    """Random terminations and truncations, both at once among them, several in one rollout."""
    generator = torch.Generator().manual_seed(0)

    def draw() -> Tensor:
        return torch.randn(3, 12, 4, generator=generator, dtype=torch.float64)

    def flags() -> Tensor:
        return torch.rand(3, 12, 4, generator=generator) < ends

    args = (draw(), draw(), draw(), flags(), flags())
    if ends:
        assert (args[3] & args[4]).any()
    expected = gae_by_definition(*args, 0.9, lam)
    torch.testing.assert_close(ppo.gae(*args, 0.9, lam), expected, atol=1e-12, rtol=0)


def test_gae_by_hand() -> None:
    """gamma 0.5, lambda 0.5: step 1 is truncated (bootstraps V = 8), step 3 terminated."""
    rewards = torch.tensor([1.0, 2.0, 3.0, 4.0]).view(1, 4, 1)
    values = torch.tensor([1.0, 1.0, 1.0, 1.0]).view(1, 4, 1)
    next_values = torch.tensor([1.0, 8.0, 1.0, 8.0]).view(1, 4, 1)
    truncated = torch.tensor([False, True, False, True]).view(1, 4, 1)
    terminated = torch.tensor([False, False, False, True]).view(1, 4, 1)
    # deltas: 1 + .5 - 1 = .5; 2 + 4 - 1 = 5; 3 + .5 - 1 = 2.5; 4 + 0 - 1 = 3
    expected = torch.tensor([0.5 + 0.25 * 5, 5.0, 2.5 + 0.25 * 3, 3.0]).view(1, 4, 1)
    got = ppo.gae(rewards, values, next_values, terminated, truncated, 0.5, 0.5)
    torch.testing.assert_close(got, expected)


def train_on(
    env: envs.Env, monkeypatch: pytest.MonkeyPatch, seeds: int = 3, **settings: Any
) -> tuple[ppo.ActorCritic, Run]:
    monkeypatch.setitem(envs.NATIVE, "Probe", lambda: env)
    config = ppo.Config(env="Probe", seeds=seeds, quiet=True, **settings)
    run = Run(config)
    monkeypatch.setattr(run, "evaluate_if_due", lambda *args: None)
    return ppo.train(config, run), run


VALUE_SETTINGS: dict[str, Any] = {
    "gamma": 0.9,
    "gae_lambda": 0.95,
    "learning_rate": 1e-2,
    "num_envs": 4,
    "num_steps": 16,
    "minibatch_size": 64,
    "total_timesteps": 12_000,
}


def test_a_time_limit_is_not_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """V -> 1 / (1 - gamma) = 10 although every episode is cut after 5 steps."""
    agent, _ = train_on(Endless(time_limit=5), monkeypatch, **VALUE_SETTINGS)
    value = agent.value(torch.ones(3, 1, 1))
    torch.testing.assert_close(value, torch.full((3, 1), 10.0), atol=0.3, rtol=0)


def test_negative_control_an_end_is_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same environment with real ends: V is near the mean of the five discounted sums."""
    agent, _ = train_on(Endless(time_limit=5, ends=True), monkeypatch, **VALUE_SETTINGS)
    sums = [(1 - 0.9**k) / (1 - 0.9) for k in range(1, 6)]
    value = agent.value(torch.ones(3, 1, 1))
    assert (value < 5).all()
    # The observation hides the time: V is one number for all five steps of an episode. With
    # lambda < 1 its fixed point lies near, not at, the mean of the five discounted sums.
    torch.testing.assert_close(value, torch.full((3, 1), sum(sums) / 5), atol=0.7, rtol=0)


def small_batch(
    dtype: torch.dtype = torch.float32, S: int = 3, **settings: Any
) -> tuple[ppo.Config, ppo.ActorCritic, ppo.Batch, Any]:
    """A real rollout of CartPole, by S untrained agents."""
    config = ppo.Config(num_steps=16, minibatch_size=64, **settings)
    env = envs.make("CartPole-v1")
    agent = ppo.ActorCritic(env.spec, config, SeedStreams(range(S), "init")).to(dtype)
    streams = SeedStreams(range(S), "train")
    state, obs = env.reset(streams.uniform(4, 4).to(dtype))
    noise = agent.draw(streams, 16, 4).to(dtype), streams.uniform(16, 4, env.noise_size).to(dtype)
    _, _, rollout = ppo.collect(env, agent, state, obs, *noise)
    return config, agent, ppo.prepare(agent, rollout, None, config), rollout


def test_ratio_is_one_before_any_update() -> None:
    config, agent, batch, _ = small_batch()
    _, metrics = ppo.loss(agent, batch, config, torch.tensor(0.2))
    assert (metrics["clipfrac"] == 0).all()
    assert (metrics["approx_kl"].abs() < 1e-6).all()
    logprobs, _, values = agent.evaluate(batch.obs, batch.actions)
    torch.testing.assert_close(logprobs, batch.logprobs, atol=1e-6, rtol=0)
    torch.testing.assert_close(values, batch.values, atol=1e-6, rtol=0)
    expected = -ppo.normalize(batch.advantages).mean(-1)
    torch.testing.assert_close(metrics["policy_loss"], expected, atol=1e-6, rtol=0)


@pytest.mark.parametrize("settings", [{}, {"entropy_coef": 0.01, "clip_value_range": 0.2}])
def test_batched_loss_equals_vmap_of_the_single_seed_loss(settings: dict[str, Any]) -> None:
    """The gradient of loss.sum() is, seed by seed, the gradient of that seed's own loss."""
    config, agent, batch, _ = small_batch(torch.float64, **settings)
    for p in agent.parameters():  # move off the rollout's policy, so that the clip is active
        p.data += 0.3 * torch.randn(p.shape, generator=torch.Generator().manual_seed(1)).double()

    def single(params: dict[str, Tensor], one: Any) -> Tensor:
        params = {name: p.unsqueeze(0) for name, p in params.items()}
        minibatch = ppo.Batch(*(field.unsqueeze(0) for field in one))

        class Shim:
            @staticmethod
            def evaluate(obs: Tensor, actions: Tensor) -> Any:
                return functional_call(Evaluate(agent), params, (obs, actions))

        total, _ = ppo.loss(Shim, minibatch, config, torch.tensor(0.1))  # type: ignore[arg-type]
        return total[0]

    params = {f"agent.{name}": p.detach() for name, p in agent.named_parameters()}
    expected = vmap(grad(single))(params, batch)
    total, metrics = ppo.loss(agent, batch, config, torch.tensor(0.1, dtype=torch.float64))
    assert (metrics["clipfrac"] > 0).all()
    total.sum().backward()
    for name, p in agent.named_parameters():
        assert p.grad is not None
        torch.testing.assert_close(p.grad, expected[f"agent.{name}"], atol=1e-10, rtol=1e-8)


class Evaluate(torch.nn.Module):
    """ActorCritic.evaluate as a module's forward, for functional_call."""

    def __init__(self, agent: ppo.ActorCritic) -> None:
        super().__init__()
        self.agent = agent

    def forward(self, obs: Tensor, actions: Tensor) -> Any:
        return self.agent.evaluate(obs, actions)


def test_policy_loss_by_hand() -> None:
    """eq. 7: a good action gains nothing beyond 1 + eps, a bad one nothing below 1 - eps."""
    ratio = torch.tensor([[1.5, 0.5, 1.5, 0.5]])
    advantages = torch.tensor([[1.0, 1.0, -1.0, -1.0]])
    expected = -(1.2 + 0.5 - 1.5 - 0.8) / 4
    assert ppo.policy_loss(ratio, advantages, torch.tensor(0.2)).item() == pytest.approx(expected)
    unclipped = -(1.5 + 0.5 - 1.5 - 0.5) / 4
    assert ppo.policy_loss(ratio, advantages, None).item() == pytest.approx(unclipped)


def test_value_loss_by_hand() -> None:
    values, old, returns = torch.tensor([[2.0]]), torch.tensor([[1.0]]), torch.tensor([[3.0]])
    assert ppo.value_loss(values, old, returns, 0.0).item() == pytest.approx(1.0)
    assert ppo.value_loss(values, old, returns, 0.5).item() == pytest.approx(1.5**2)


def test_explained_variance() -> None:
    returns = torch.tensor([[1.0, 2.0, 3.0], [1.0, 2.0, 3.0], [1.0, 2.0, 3.0]])
    values = torch.stack((returns[0], torch.full((3,), 7.0), -returns[2]))
    expected = torch.tensor([1.0, 0.0, -3.0])
    torch.testing.assert_close(ppo.explained_variance(values, returns), expected)


def test_normalize() -> None:
    x = torch.tensor([[1.0, 2.0, 3.0, 4.0], [5.0, 5.0, 5.0, 5.0]])
    y = ppo.normalize(x)
    assert y[0].mean().abs() < 1e-6
    assert y[0].std() == pytest.approx(1.0, abs=1e-5)
    assert (y[1] == 0).all()
    one = torch.tensor([[3.0]])
    assert torch.equal(ppo.normalize(one), one)
    peers = ppo.normalize(torch.tensor([[1.0] * 7 + [0.0]]))
    assert peers.isfinite().all()
    assert peers[0, -1] == pytest.approx(-2.4749, abs=1e-3)


def test_entropy_bonus_raises_entropy() -> None:
    """With zero advantages only the bonus moves the policy: it must raise the entropy."""
    config, agent, batch, _ = small_batch(entropy_coef=0.1, learning_rate=1e-2, epochs=10)
    agent.networks.biases[-1].data[:, 0, :, 0] = 2.0  # begin away from the uniform policy
    before = agent.evaluate(batch.obs, batch.actions)[1].mean(-1)
    flat = batch._replace(
        advantages=torch.zeros_like(batch.advantages),
        returns=batch.values,
        logprobs=agent.evaluate(batch.obs, batch.actions)[0].detach(),
    )
    schedule = torch.tensor(config.learning_rate), torch.tensor(config.clip_range)
    ppo.update(agent, SeedAdam(agent), flat, torch.rand(3, 10, 64), config, *schedule)
    after = agent.evaluate(batch.obs, batch.actions)[1].mean(-1)
    assert (after > before + 1e-3).all()


def test_rollout_keeps_true_successors() -> None:
    """next_obs == obs + 1 always, over terminations, truncations and both at once."""
    config = ppo.Config()
    for env in (Counter(terminal_at=7, time_limit=5), Counter(4, 9), Counter(6, 6)):
        agent = ppo.ActorCritic(env.spec, config, SeedStreams([0, 1], "init"))
        state, obs = env.reset(torch.rand(2, 3, 0))
        noise = agent.draw(SeedStreams([0, 1], "train"), 40, 3), torch.zeros(2, 40, 3, 0)
        _, _, rollout = ppo.collect(env, agent, state, obs, *noise)
        assert torch.equal(rollout.next_obs, rollout.obs + 1)
        ends = rollout.terminated | rollout.truncated
        length = min(env.terminal_at, env.spec.time_limit)
        assert torch.equal(ends[0, :, 0].nonzero().flatten() + 1, torch.arange(length, 41, length))
        assert (rollout.obs[:, 1:][ends[:, :-1]] == 0).all()


def test_gumbel_max_samples_the_softmax() -> None:
    config, agent, batch, _ = small_batch(S=1)
    agent.networks.weights[-1].data[:, 0] *= 100
    obs = batch.obs[:, :1].expand(1, 50_000, -1)
    actions = agent.act(obs, agent.draw(SeedStreams([5], "train"), 50_000))
    p = agent.evaluate(obs[:, :1], torch.ones(1, 1, dtype=torch.int64))[0].exp().item()
    assert 0.05 < p < 0.95
    assert actions.double().mean().item() == pytest.approx(p, abs=4 * (p * (1 - p) / 5e4) ** 0.5)


def test_schedules_reach_the_optimizer(monkeypatch: pytest.MonkeyPatch) -> None:
    rates, clips = [], []
    step, loss = SeedAdam.step, ppo.loss
    monkeypatch.setattr(
        SeedAdam, "step", lambda self, lr, *a: (rates.append(lr.item()), step(self, lr, *a))[1]
    )
    monkeypatch.setattr(
        ppo, "loss", lambda a, b, c, clip: (clips.append(clip.item()), loss(a, b, c, clip))[1]
    )
    settings = {"num_steps": 16, "minibatch_size": 64, "epochs": 1, "total_timesteps": 256}
    train_on(Counter(), monkeypatch, learning_rate=0.1, anneal_clip=True, **settings)
    assert rates == pytest.approx([0.1, 0.075, 0.05, 0.025])
    assert clips == pytest.approx([0.2, 0.15, 0.1, 0.05])


def test_early_stop_takes_no_step_beyond_the_limit() -> None:
    """A KL far above the limit after one step: the second and all later steps are masked."""
    config, agent, batch, _ = small_batch(target_kl=1e-6, learning_rate=1.0, epochs=3)
    optimizer = SeedAdam(agent)
    powers: list[Tensor] = []
    step = optimizer.step
    optimizer.step = lambda *a: (step(*a), powers.append(optimizer.beta_powers[0].clone()))[0]  # type: ignore[method-assign]
    schedule = torch.tensor(1.0), torch.tensor(0.2)
    ppo.update(agent, optimizer, batch, torch.rand(3, 3, 64), config, *schedule)
    assert len(powers) == 3
    assert (powers[0] < 1).all()  # ratio 1: the first step is taken
    assert torch.equal(powers[0], powers[2])


@pytest.mark.slow
def test_learns_cartpole() -> None:
    config = ppo.Config(**{**ppo.PRESETS["CartPole-v1"].settings, "total_timesteps": 50_000})
    run = Run(config, range(100, 105))
    agent = ppo.train(config, run)
    summary = run.finish(agent)
    assert summary["final"]["greedy"]["mean"]["value"] > 450
