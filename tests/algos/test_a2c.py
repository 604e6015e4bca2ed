"""A2C: its advantages against definitions, its update against SB3's own, its known faults."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from stable_baselines3.common.logger import Logger
from torch import Tensor

from manyseeds import envs
from manyseeds.algos import a2c
from manyseeds.benchmarks.baselines import sb3_baseline
from manyseeds.cli import UsageError
from manyseeds.seeds import SeedStreams
from tests.algos import probes

train_on = partial(probes.train_on, a2c)

# ---- Advantages -------------------------------------------------------------------------


def n_step_by_definition(
    rewards: Tensor,
    values: Tensor,
    next_values: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    gamma: float,
    n: int,
) -> Tensor:
    """Rewards of n steps, or of what is left of the episode or rollout, and V after them."""
    S, T, N = rewards.shape
    advantages = -values.clone()
    for s in range(S):
        for e in range(N):
            for t in range(T):
                for k in range(t, min(t + n, T)):
                    advantages[s, t, e] += gamma ** (k - t) * rewards[s, k, e]
                    if terminated[s, k, e] or truncated[s, k, e]:
                        break
                if not terminated[s, k, e]:
                    advantages[s, t, e] += gamma ** (k - t + 1) * next_values[s, k, e]
    return advantages


def random_rollout(ends: float) -> tuple[Tensor, ...]:
    """Rewards, values, next values, terminations and truncations [3, 12, 4], float64."""
    generator = torch.Generator().manual_seed(0)
    draws = torch.randn(3, 3, 12, 4, generator=generator, dtype=torch.float64)
    terminated, truncated = torch.rand(2, 3, 12, 4, generator=generator) < ends
    if ends:
        assert (terminated & truncated).any()
        assert (terminated ^ truncated).sum(1).max() > 2
    return *draws, terminated, truncated


@pytest.mark.parametrize("ends", [0.0, 0.3])
@pytest.mark.parametrize("n", [1, 2, 5, 12])
def test_n_step_equals_its_definition(n: int, ends: float) -> None:
    """Random terminations and truncations, both at once among them, several in one rollout."""
    args = random_rollout(ends)
    expected = n_step_by_definition(*args, 0.9, n)
    torch.testing.assert_close(a2c.n_step(*args, 0.9, n), expected, atol=1e-12, rtol=0)
    if n == 12:  # of the whole rollout
        torch.testing.assert_close(a2c.monte_carlo(*args, 0.9), expected, atol=1e-12, rtol=0)


# ---- The update -------------------------------------------------------------------------


def rollout_of(
    config: a2c.Config, dtype: torch.dtype = torch.float32, S: int = 3
) -> tuple[a2c.ActorCritic, envs.Rollout]:
    """A real rollout by S untrained agents; normalising ones have seen one before."""
    env = config.make_env()
    agent = a2c.ActorCritic(env.spec, config, SeedStreams(range(S), "init")).to(dtype)
    if agent.obs_stats is not None:
        agent.obs_stats.double()
        generator = torch.Generator().manual_seed(0)
        agent.obs_stats.update(
            torch.randn(S, 32, agent.obs_stats.mean.shape[-1], generator=generator)
        )
    streams = SeedStreams(range(S), "train")
    T, N = config.num_steps, config.num_envs
    state, obs = env.reset(streams.uniform(N, env.initial_noise).to(dtype))
    noise = agent.draw(streams, T, N).to(dtype), streams.uniform(T, N, env.noise_size).to(dtype)
    _, _, rollout = envs.rollout(env, agent, state, obs, *noise)
    return agent, rollout


def into_sb3(agent: a2c.ActorCritic, s: int, policy: Any) -> None:
    """Give SB3's policy the weights of seed s; ours are [in, out], its are [out, in]."""
    policy_net, value_net = policy.mlp_extractor.policy_net, policy.mlp_extractor.value_net
    actor = [policy_net[0], policy_net[2], policy.action_net]
    critic = [value_net[0], value_net[2], policy.value_net]
    with torch.no_grad():
        for network, linears in enumerate((actor, critic)):
            for i, linear in enumerate(linears):
                n_out = linear.weight.shape[0]
                linear.weight.copy_(agent.networks.weights[i][s, network, :, :n_out].T)
                linear.bias.copy_(agent.networks.biases[i][s, network, 0, :n_out])
        if agent.continuous:
            policy.log_std.copy_(agent.log_std[s, 0, 0])


def sb3_update(model: Any, rollout: envs.Rollout, s: int, lr: float) -> None:
    """SB3's A2C on the rollout of seed s: its buffer filled as its collect_rollouts does."""
    buffer, policy = model.rollout_buffer, model.policy
    buffer.reset()
    done = torch.zeros(rollout.rewards.shape[2], dtype=torch.bool)
    with torch.no_grad():
        for t in range(rollout.rewards.shape[1]):
            obs, actions = rollout.obs[s, t], rollout.actions[s, t]
            values, log_prob, _ = policy.evaluate_actions(obs, actions)
            rewards = rollout.rewards[s, t].clone()
            cut = rollout.truncated[s, t] & ~rollout.terminated[s, t]
            final = policy.predict_values(rollout.next_obs[s, t])[:, 0]
            rewards[cut] += model.gamma * final[cut]
            stored = actions.reshape(len(obs), -1).numpy()
            buffer.add(obs.numpy(), stored, rewards.numpy(), done.numpy(), values, log_prob)
            done = rollout.terminated[s, t] | rollout.truncated[s, t]
        last = policy.predict_values(rollout.next_obs[s, -1])
        buffer.compute_returns_and_advantage(last_values=last, dones=done.numpy())
    model.lr_schedule = lambda progress: lr
    model.train()


@pytest.mark.parametrize("optimizer", ["rmsprop", "rmsprop_tf", "adam"])
@pytest.mark.parametrize(
    "settings",
    [
        {"num_steps": 30},
        {"num_steps": 30, "gae_lambda": 0.8, "normalize_advantage": True, "entropy_coef": 0.05},
        {"env": "Pendulum-v1", "log_std_init": -0.5, "gamma": 0.9, "gae_lambda": 0.9},
        {"env": "Pendulum-v1", "num_steps": 210, "num_envs": 2, "advantage": "monte_carlo"},
    ],
    ids=["discrete", "discrete, more terms", "box", "box, time limit"],
)
def test_updates_are_sb3s(settings: dict[str, Any], optimizer: Any) -> None:
    """Five updates on the same rollouts, terminations and truncations among them, seed by seed."""
    common = {"num_envs": 4, "max_grad_norm": 0.3, "value_coef": 0.7, "hidden": (16, 12)}
    config = a2c.Config(**{**common, **settings}, optimizer=optimizer)
    agent, _ = rollout_of(config)
    models = [sb3_baseline.build(sb3_baseline.A2CBaseline, config, s) for s in range(3)]
    for s, model in enumerate(models):
        model.set_logger(Logger(None, []))
        into_sb3(agent, s, model.policy)
    env, streams = config.make_env(), SeedStreams(range(3), "train")
    T, N = config.num_steps, config.num_envs
    state, obs = env.reset(streams.uniform(N, env.initial_noise))
    ours = a2c.make_optimizer(agent, config)
    # TensorFlow's average starts at 1: its first steps are shorter.
    ends, first_lr = [], 1.0 if optimizer == "rmsprop_tf" else 1e-2
    for step in range(5):
        noise = agent.draw(streams, T, N), streams.uniform(T, N, env.noise_size)
        state, obs, rollout = envs.rollout(env, agent, state, obs, *noise)
        ends.append((rollout.terminated | rollout.truncated).sum())
        lr = first_lr / (step + 1)
        for s, model in enumerate(models):
            sb3_update(model, rollout, s, lr)
        a2c.update(agent, ours, a2c.prepare(agent, rollout, config), config, torch.tensor(lr))
    assert sum(ends) > 0 or config.num_steps == 5
    fresh = a2c.ActorCritic(env.spec, config, SeedStreams(range(3), "init"))
    for s, model in enumerate(models):
        reference = sb3_baseline.build(sb3_baseline.A2CBaseline, config, s).policy
        into_sb3(agent, s, reference)
        theirs = dict(model.policy.named_parameters())
        for name, p in reference.named_parameters():
            torch.testing.assert_close(p, theirs[name], atol=2e-5, rtol=1e-3)
        moved = (agent.networks.weights[0][s] - fresh.networks.weights[0][s]).abs().max()
        assert moved > 2e-3


# ---- Settings ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"n_steps": 6, "advantage": "n_step"}, "--n-steps 6: must be at most num_steps = 5"),
        ({"n_steps": 0}, "--n-steps 0: must be a finite number of at least 1"),
        ({"num_envs": 1, "num_steps": 1}, "--num-steps 1: one environment needs at least 2 steps"),
    ],
)
def test_bad_settings(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError) as refused:
        a2c.Config(**settings)
    assert str(refused.value) == message
    assert a2c.Config(n_steps=6).n_steps == 6  # of another advantage


# ---- Normalisation ----------------------------------------------------------------------


# ---- Learning ---------------------------------------------------------------------------
