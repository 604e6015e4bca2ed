"""A2C: its advantages against definitions, its update against SB3's own, its known faults."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from stable_baselines3.common.logger import Logger
from torch import Tensor

from manyseeds import envs
from manyseeds.algos import a2c
from manyseeds.benchmarks import sb3_baseline
from manyseeds.cli import UsageError
from manyseeds.optim import SeedAdam, SeedRMSprop
from manyseeds.runs.control import Run
from manyseeds.seeds import SeedStreams
from tests.algos import probes
from tests.algos.probes import Counter, Endless

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


@pytest.mark.parametrize("ends", [0.0, 0.3])
def test_monte_carlo_equals_its_definition(ends: float) -> None:
    args = random_rollout(ends)
    expected = n_step_by_definition(*args, 0.9, 12)
    torch.testing.assert_close(a2c.monte_carlo(*args, 0.9), expected, atol=1e-12, rtol=0)


def test_advantages_by_hand() -> None:
    """gamma 0.5: step 1 is truncated (bootstraps V = 8), step 3 terminated and truncated at once.

    Step 4 is the rollout's last one and bootstraps V = 2.
    """

    def row(*x: float) -> Tensor:
        return torch.tensor(x, dtype=torch.float32).view(1, 5, 1)

    rewards, values, next_values = row(1, 2, 3, 4, 5), row(1, 1, 1, 1, 1), row(1, 8, 1, 8, 2)
    terminated, truncated = row(0, 0, 0, 1, 0) > 0, row(0, 1, 0, 1, 0) > 0
    args = (rewards, values, next_values, terminated, truncated, 0.5)
    # Returns: 2 + 4 = 6 and 1 + 3 = 4; 4 and 3 + 2 = 5; 5 + 1 = 6.
    torch.testing.assert_close(a2c.monte_carlo(*args), row(3, 5, 4, 3, 5))
    torch.testing.assert_close(a2c.n_step(*args, 2), row(3, 5, 4, 3, 5))
    # One step: 1 + .5, 2 + 4, 3 + .5, 4, 5 + 1.
    torch.testing.assert_close(a2c.n_step(*args, 1), row(0.5, 5, 2.5, 3, 5))


VALUE_SETTINGS: dict[str, Any] = {
    "gamma": 0.9,
    "learning_rate": 2e-2,
    "anneal_lr": True,
    "num_envs": 8,
    "num_steps": 6,
    "total_timesteps": 7_200,
}
KINDS: dict[str, dict[str, Any]] = {
    "gae": {"advantage": "gae", "gae_lambda": 0.95},
    "n_step": {"advantage": "n_step", "n_steps": 4},
    "monte_carlo": {"advantage": "monte_carlo"},
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_time_limit_is_not_an_end(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """V -> 1 / (1 - gamma) = 10 although every episode is cut after 5 steps."""
    agent, _ = train_on(Endless(time_limit=5), monkeypatch, **VALUE_SETTINGS, **KINDS[kind])
    value = agent.value(torch.ones(3, 1, 1))
    torch.testing.assert_close(value, torch.full((3, 1), 10.0), atol=0.3, rtol=0)


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


@pytest.mark.usefixtures("computed")
def test_entropy_bonus_raises_entropy() -> None:
    """With zero advantages only the bonus moves the policy: it must raise the entropy."""
    config = a2c.Config(num_steps=16, entropy_coef=0.1, learning_rate=1e-2, gamma=0.0)
    agent, rollout = rollout_of(config)
    agent.networks.biases[-1].data[:, 0, :, 0] = 2.0  # begin away from the uniform policy
    batch = a2c.prepare(agent, rollout, config)
    batch = batch._replace(advantages=torch.zeros_like(batch.advantages))
    _, before, _ = agent.evaluate(batch.obs, batch.actions)
    optimizer = a2c.make_optimizer(agent, config)
    for _ in range(10):
        a2c.update(agent, optimizer, batch, config, torch.tensor(1e-3))
    after = agent.evaluate(batch.obs, batch.actions)[1]
    assert (after.mean(-1) > before.mean(-1) + 1e-3).all()


def test_the_loss_reads_the_values_of_the_true_successors(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of the final observations, not of the next episode's first ones."""
    config = a2c.Config(num_steps=20, num_envs=2)
    env = Counter(time_limit=6)
    agent = a2c.ActorCritic(env.spec, config, SeedStreams([0, 1], "init"))
    monkeypatch.setattr(agent, "value", lambda obs: obs[..., 0])
    seen: list[Tensor] = []
    gae = a2c.gae
    monkeypatch.setattr(a2c, "gae", lambda *args: (seen.append(args[2]), gae(*args))[1])
    state, obs = env.reset(torch.rand(2, 2, 0))
    noise = agent.draw(SeedStreams([0, 1], "train"), 20, 2), torch.zeros(2, 20, 2, 0)
    _, _, rollout = envs.rollout(env, agent, state, obs, *noise)
    a2c.prepare(agent, rollout, config)
    assert torch.equal(seen[0], rollout.obs[..., 0] + 1)
    assert seen[0].max() == 6


def test_each_kind_of_advantage_is_the_one_that_is_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    args = random_rollout(0.3)
    rewards, values, next_values = (x.float() for x in args[:3])
    ends = [x.bool() for x in args[3:]]
    given = (rewards, values, next_values, *ends)
    obs = torch.zeros(*rewards.shape, 4)
    rollout = envs.Rollout(obs, rewards.long(), rewards, *ends, obs)
    for kind, expected in (
        ("gae", a2c.gae(*given, 0.99, 0.7)),
        ("n_step", a2c.n_step(*given, 0.99, 2)),
        ("monte_carlo", a2c.monte_carlo(*given, 0.99)),
    ):
        config = a2c.Config(num_steps=12, advantage=kind, n_steps=2, gae_lambda=0.7)  # type: ignore[arg-type]
        agent = a2c.ActorCritic(config.make_env().spec, config, SeedStreams(range(3), "init"))
        answer = torch.cat((values.flatten(1), next_values.flatten(1)), dim=1)
        monkeypatch.setattr(agent, "value", lambda obs, answer=answer: answer)
        batch = a2c.prepare(agent, rollout, config)
        assert torch.equal(batch.advantages, expected.flatten(1))
        assert torch.equal(batch.returns, expected.flatten(1) + values.flatten(1))


@pytest.mark.parametrize(
    ("optimizer", "kind", "tf"),
    [("rmsprop", SeedRMSprop, False), ("rmsprop_tf", SeedRMSprop, True), ("adam", SeedAdam, None)],
)
def test_the_optimizer_is_the_one_that_is_asked_for(optimizer: Any, kind: Any, tf: Any) -> None:
    config = a2c.Config(optimizer=optimizer)
    agent = a2c.ActorCritic(config.make_env().spec, config, SeedStreams([0], "init"))
    made = a2c.make_optimizer(agent, config)
    assert isinstance(made, kind)
    assert getattr(made, "tf", None) is tf
    assert made.eps == 1e-5


@pytest.mark.parametrize(("anneal", "last"), [(True, 0.025), (False, 0.1)])
def test_the_schedule_reaches_the_optimizer(
    anneal: bool, last: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    rates = []
    step = SeedRMSprop.step
    monkeypatch.setattr(
        SeedRMSprop, "step", lambda self, lr, *a: (rates.append(lr.item()), step(self, lr, *a))[1]
    )
    train_on(Counter(), monkeypatch, learning_rate=0.1, anneal_lr=anneal, total_timesteps=160)
    assert len(rates) == 4
    assert rates[0] == pytest.approx(0.1)
    assert rates[-1] == pytest.approx(last)


# ---- Settings ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"n_steps": 6, "advantage": "n_step"}, "--n-steps 6: must be at most num_steps = 5"),
        ({"n_steps": 0}, "--n-steps 0: must be a finite number of at least 1"),
        ({"num_envs": 1, "num_steps": 1}, "--num-steps 1: one environment needs at least 2 steps"),
        (
            {"total_timesteps": 39},
            "--total-timesteps 39: must be at least one rollout, num_envs * num_steps = 40",
        ),
        ({"gae_lambda": 1.1}, "--gae-lambda 1.1: must be a number from 0 to 1"),
        ({"learning_rate": 0.0}, "--learning-rate 0.0: must be a finite number above 0"),
    ],
)
def test_bad_settings(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError) as refused:
        a2c.Config(**settings)
    assert str(refused.value) == message


def test_what_is_not_asked_for_may_be_too_long() -> None:
    assert a2c.Config(n_steps=6).n_steps == 6


# ---- Normalisation ----------------------------------------------------------------------


def test_normalised_rewards_are_scaled_and_returns_are_logged_raw(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The advantage is computed from scaled rewards, what is reported from the environment's."""
    rewards: list[Tensor] = []
    gae = a2c.gae

    def spy(*args: Any) -> Tensor:
        rewards.append(args[0])
        return gae(*args)

    monkeypatch.setattr(a2c, "gae", spy)
    env, settings = Counter(terminal_at=4), {"num_steps": 16, "num_envs": 4, "gamma": 0.9}
    settings |= {"total_timesteps": 128, "normalize_reward": True}
    _, run = train_on(env, monkeypatch, **settings)
    assert (run.metrics()["train_return"] == 4).all()
    assert len(rewards) == 2
    scaled = torch.cat(rewards, dim=1)  # [S, T of all rollouts, N]
    R = torch.tensor([1.0, 1.9, 2.71, 3.439], dtype=torch.float64).repeat(8)  # whole episodes
    std = torch.stack([R[: t + 1].std(correction=0) for t in range(32)])  # of all steps so far
    expected = (1 / std).clamp(max=10).float().view(1, -1, 1).expand_as(scaled)
    torch.testing.assert_close(scaled, expected, atol=1e-5, rtol=1e-5)


# ---- Learning ---------------------------------------------------------------------------


@pytest.mark.slow
def test_learns_cartpole() -> None:
    """Two fifths of the preset's timesteps, in which random policies' 22 become most of 500."""
    config = a2c.Config(**{**a2c.PRESETS["CartPole-v1"].settings, "total_timesteps": 200_000})
    run = Run(config, range(100, 110))
    agent = a2c.train(config, run)
    summary = run.finish(agent)
    assert np.mean(list(summary["final"]["greedy"]["per_seed"].values())) > 300
