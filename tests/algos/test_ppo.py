"""PPO: its mathematics against definitions, its gradients against oracles, its known faults."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from manyseeds import envs
from manyseeds.algos import ppo
from manyseeds.evaluate import evaluate
from manyseeds.optim import SeedAdam
from manyseeds.runs.control import Run
from manyseeds.seeds import SeedStreams
from tests.algos import probes
from tests.algos.probes import Counter

train_on = partial(probes.train_on, ppo)


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
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])  # in C, and by PyTorch
def test_gae_equals_its_definition(lam: float, ends: float, dtype: torch.dtype) -> None:
    """Random terminations and truncations, both at once among them, several in one rollout."""
    generator = torch.Generator().manual_seed(0)

    def draw() -> Tensor:
        return torch.randn(3, 4, 12, generator=generator, dtype=torch.float64).mT.to(dtype)

    def flags() -> Tensor:
        return torch.rand(3, 12, 4, generator=generator) < ends

    args = (draw(), draw(), draw(), flags(), flags())
    if ends:
        assert (args[3] & args[4]).any()
    exact = [x.double() if x.is_floating_point() else x for x in args]
    expected = gae_by_definition(*exact, 0.9, lam)
    bound = 1e-12 if dtype == torch.float64 else 1e-5
    torch.testing.assert_close(ppo.gae(*args, 0.9, lam).double(), expected, atol=bound, rtol=0)


@pytest.mark.usefixtures("computed")
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
    whole = ppo.gae(rewards, values, next_values, terminated, truncated, 1, 1)  # as 1.0
    assert torch.equal(
        whole, ppo.gae(rewards, values, next_values, terminated, truncated, 1.0, 1.0)
    )


def small_batch(
    dtype: torch.dtype = torch.float32, S: int = 3, env_id: str = "CartPole-v1", **settings: Any
) -> tuple[ppo.Config, ppo.ActorCritic, ppo.Batch, Any]:
    """A real rollout by S untrained agents; normalising ones have seen one before."""
    config = ppo.Config(num_steps=16, minibatch_size=64, env=env_id, **settings)
    env = envs.make(env_id)
    agent = ppo.ActorCritic(env.spec, config, SeedStreams(range(S), "init")).to(dtype)
    if agent.obs_stats is not None:
        agent.obs_stats.double()
        generator = torch.Generator().manual_seed(0)
        agent.obs_stats.update(
            torch.randn(S, 32, len(agent.obs_stats.mean[0, 0]), generator=generator)
        )
    streams = SeedStreams(range(S), "train")
    state, obs = env.reset(streams.uniform(4, env.initial_noise).to(dtype))
    noise = agent.draw(streams, 16, 4).to(dtype), streams.uniform(16, 4, env.noise_size).to(dtype)
    _, _, rollout = envs.rollout(env, agent, state, obs, *noise)
    return config, agent, ppo.prepare(agent, rollout, config), rollout


NORMALIZED = {"normalize_obs": True, "normalize_reward": True}


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


@pytest.mark.usefixtures("computed")
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


def test_the_clip_range_is_annealed(monkeypatch: pytest.MonkeyPatch) -> None:
    clips, backpropagate = [], ppo.backpropagate
    monkeypatch.setattr(
        ppo,
        "backpropagate",
        lambda a, b, c, clip: (clips.append(clip.item()), backpropagate(a, b, c, clip))[1],
    )
    settings = {"num_steps": 16, "minibatch_size": 64, "epochs": 1, "total_timesteps": 256}
    train_on(Counter(), monkeypatch, anneal_clip=True, **settings)
    assert clips == pytest.approx([0.2, 0.15, 0.1, 0.05])


def test_a_seed_that_has_stopped_stays_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Until the next rollout, however small its KL is again: from 1.5 times the target on."""
    config, agent, batch, _ = small_batch(target_kl=0.02, epochs=4)
    steps = [[0.0, 0, 0], [0, 0.031, 0], [0, 0, 0.029], [0.031, 0, 0]]
    plan = iter(torch.tensor([*steps, steps[-1]]))  # what is logged is computed once more
    optimizer, active = SeedAdam(agent), []
    monkeypatch.setattr(ppo, "approximate_kl", lambda *args: next(plan))
    optimizer.step = lambda lr, norm, mask: active.append(mask.tolist())  # type: ignore[method-assign]
    schedule = torch.tensor(0.1), torch.tensor(0.2)
    ppo.update(agent, optimizer, batch, torch.rand(3, 4, 64), config, *schedule)
    first, second = [True, True, True], [True, False, True]
    assert active == [first, second, second, [False, False, True]]


# ---- Distributions ----------------------------------------------------------------------


def gaussian(D: int, dtype: torch.dtype = torch.float64) -> tuple[ppo.Gaussian, Tensor]:
    """Policies of 2 seeds in 5 states, and actions [2, 5, D]."""
    generator = torch.Generator().manual_seed(D)
    mean, actions = torch.randn(2, 2, 5, D, generator=generator, dtype=torch.float64).to(dtype)
    log_std = torch.randn(2, 1, D, generator=generator, dtype=torch.float64).to(dtype)
    return ppo.Gaussian(mean, log_std), actions


@pytest.mark.parametrize("D", [1, 3])
def test_gaussian_is_torchs_with_independent_components(D: int) -> None:
    policy, actions = gaussian(D)
    reference = torch.distributions.Normal(policy.mean, policy.log_std.exp().expand(2, 5, D))
    logprobs, entropy = policy.logprob_and_entropy(actions)
    assert logprobs.shape == entropy.shape == (2, 5)
    expected = reference.log_prob(actions).sum(-1)
    torch.testing.assert_close(logprobs, expected, atol=1e-12, rtol=1e-12)
    torch.testing.assert_close(entropy, reference.entropy().sum(-1), atol=1e-12, rtol=1e-12)


def test_gaussian_stays_finite_far_out() -> None:
    """Large actions, tiny and huge deviations: log-probabilities and gradients, also in float32."""
    magnitudes = torch.tensor([0.0, 1e-3, 1.0, 30.0, 1e4])
    mean = torch.zeros(1, 5, 1, requires_grad=True)
    for value in (-20.0, -3.0, 0.0, 5.0, 20.0):
        log_std = torch.full((1, 1, 1), value, requires_grad=True)
        logprobs, entropy = ppo.Gaussian(mean, log_std).logprob_and_entropy(
            magnitudes.view(1, 5, 1)
        )
        exact = torch.distributions.Normal(0.0, torch.tensor(value).double().exp())
        torch.testing.assert_close(
            logprobs[0].double(), exact.log_prob(magnitudes.double()), atol=1e-5, rtol=1e-5
        )
        grads = torch.autograd.grad((logprobs + entropy).sum(), (mean, log_std))
        assert all(grad.isfinite().all() for grad in grads)
        torch.testing.assert_close(
            grads[0][0, :, 0].double(),
            magnitudes.double() * (-2 * torch.tensor(value).double()).exp(),
        )


def test_the_environment_gets_the_clipped_action_and_the_loss_the_sampled_one() -> None:
    received: list[Tensor] = []

    class Spy(envs.Pendulum):  # which has no code in C
        def transition(self, physics: Tensor, action: Tensor, noise: Tensor) -> Tensor:
            received.append(action)
            return super().transition(physics, action, noise)

    env = Spy()
    config = ppo.Config(env="Pendulum-v1", num_steps=16, log_std_init=1.5)
    agent = ppo.ActorCritic(env.spec, config, SeedStreams([0, 1], "init"))
    streams = SeedStreams([0, 1], "train")
    state, obs = env.reset(streams.uniform(4, env.initial_noise))
    noise = agent.draw(streams, 16, 4), streams.uniform(16, 4, env.noise_size)
    _, _, rollout = envs.rollout(env, agent, state, obs, *noise)
    outside = rollout.actions.abs() > 2
    assert 0.3 < outside.float().mean() < 0.9
    assert torch.equal(torch.stack(received, dim=1), rollout.actions.clamp(-2, 2))
    batch = ppo.prepare(agent, rollout, config)
    assert torch.equal(batch.actions, rollout.actions.flatten(1, 2))
    expected = torch.distributions.Normal(0, 1).log_prob(noise[0].flatten(1)) - 1.5
    torch.testing.assert_close(batch.logprobs, expected, atol=1e-4, rtol=0)


def test_without_a_clip_range_nothing_is_clipped(monkeypatch: pytest.MonkeyPatch) -> None:
    """clip_range 0 is no range of 0: the policy moves, and no share of clipped ratios is logged."""
    settings = {"num_steps": 16, "minibatch_size": 64, "total_timesteps": 256, "epochs": 2}
    _, run = train_on(Counter(), monkeypatch, clip_range=0.0, anneal_clip=True, **settings)
    assert "clipfrac" not in run.metrics()
    assert (run.metrics()["approx_kl"] > 0).all()
    _, clipped = train_on(Counter(), monkeypatch, **settings)
    assert "clipfrac" in clipped.metrics()


# ---- Normalisation ----------------------------------------------------------------------


def test_statistics_are_frozen_during_evaluation(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of a training that is evaluated are those of one that is not."""
    settings: dict[str, Any] = {"num_steps": 16, "minibatch_size": 64, "epochs": 1, **NORMALIZED}
    settings |= {"seeds": 2, "total_timesteps": 128}
    config = ppo.Config(env="Pendulum-v1", quiet=True, **settings)
    agent = ppo.train(config, Run(config))
    undisturbed, _ = train_on("Pendulum-v1", monkeypatch, **settings)
    for name, tensor in undisturbed.state_dict().items():
        assert torch.equal(agent.state_dict()[name], tensor), name
    assert (undisturbed.state_dict()["obs_stats.count"] == 128).all()
    evaluate(envs.make("Pendulum-v1"), agent, [0, 1], 4, greedy=False)
    for name, tensor in undisturbed.state_dict().items():
        assert torch.equal(agent.state_dict()[name], tensor), name


# ---- Learning ---------------------------------------------------------------------------


class Target(envs.NativeEnv):
    """One step an episode: the observation is -1 or 1, the best action lies on the same side.

    The reward is -|action - target|^2 for the target (observation / 2, -0.3).
    """

    initial_noise = 1
    transition_noise = 0
    spec = envs.EnvSpec("Target", 10**6, action_low=(-1, -1), action_high=(1, 1), obs_size=1)

    def initial(self, noise: Tensor) -> Tensor:
        return 2 * (noise < 0.5).float() - 1

    def transition(self, physics: Tensor, action: Tensor, noise: Tensor) -> Tensor:
        return physics

    def observation(self, physics: Tensor) -> Tensor:
        return physics

    def reward(self, physics: Tensor, action: Tensor, next_physics: Tensor) -> Tensor:
        return -(action - self.best(physics)).square().sum(-1)

    def terminal(self, physics: Tensor) -> Tensor:
        return torch.ones_like(physics[..., 0], dtype=torch.bool)

    @staticmethod
    def best(obs: Tensor) -> Tensor:
        return torch.cat((obs / 2, torch.full_like(obs, -0.3)), dim=-1)


@pytest.mark.parametrize("settings", [{}, NORMALIZED], ids=["plain", "normalised"])
def test_finds_the_best_continuous_action(
    settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every seed, on both sides and in both components; the deviation falls."""
    base = {"num_envs": 16, "num_steps": 16, "minibatch_size": 64, "total_timesteps": 6000}
    base |= {"learning_rate": 1e-2, "epochs": 8, "log_std_init": -0.5, "gamma": 0.9}
    agent, _ = train_on(Target(), monkeypatch, **base, **settings)
    obs = torch.tensor([-1.0, 1.0]).view(1, 2, 1).expand(3, 2, 1)
    torch.testing.assert_close(agent.act(obs), Target.best(obs), atol=0.03, rtol=0)
    assert (agent.log_std[:, 0] < -2.5).all()
