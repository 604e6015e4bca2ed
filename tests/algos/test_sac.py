"""SAC: the policy's distribution, the targets, the rhythm of updates; updates as SB3's."""

from __future__ import annotations

import math
import random
from functools import partial
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from stable_baselines3.common import policies
from stable_baselines3.common.distributions import (
    DiagGaussianDistribution,
    SquashedDiagGaussianDistribution,
)
from stable_baselines3.common.logger import Logger
from torch import Tensor
from torch.distributions import Normal
from torch.nn.functional import softplus

from manyseeds import envs, kernels
from manyseeds.algos import sac
from manyseeds.benchmarks.baselines import sb3_baseline
from manyseeds.optim import SeedAdam
from manyseeds.seeds import SeedStreams
from tests.algos import probes
from tests.algos.probes import Slider

SPEC = envs.make("Pendulum-v1").spec
SEEDS = [0, 1]


class Learner(NamedTuple):
    """What learns, and what it learns from, as `sac.update` takes them."""

    actor: sac.Actor
    critics: sac.Critics
    target: sac.Critics
    temperature: sac.Temperature
    of_actor: SeedAdam  # the optimizers
    of_critics: SeedAdam
    of_temperature: SeedAdam
    replay: sac.Replay


def learner_of(config: sac.Config) -> Learner:
    """Two seeds that begin to learn, with a memory of random transitions."""
    init = SeedStreams(SEEDS, "init")
    actor = sac.Actor(SPEC, config, init)
    critics, target = (sac.Critics(SPEC, config, init) for _ in range(2))
    temperature = sac.Temperature(2, SPEC, config)
    optimizers = [SeedAdam(x) for x in (actor, critics, temperature)]
    replay = sac.Replay(2, 60, 3, 1, torch.device("cpu"))
    generator = torch.Generator().manual_seed(0)
    normal = partial(torch.randn, generator=generator)
    K = 40
    ends = normal(2, K) > 0.5
    replay.add(
        sac.Transitions(
            normal(2, K, 3), normal(2, K, 1).tanh(), 3 * normal(2, K), ends, normal(2, K, 3)
        )
    )
    return Learner(actor, critics, target, temperature, *optimizers, replay)


def drawn(G: int, M: int) -> tuple[Tensor, Tensor]:
    """What G updates draw."""
    streams = SeedStreams(SEEDS, "train")
    return streams.uniform(G, M), streams.normal(G, 2, M, 1)


def in_float64(learner: Learner) -> Learner:
    """The same, not yet trained, in float64."""
    for module in learner[:4]:
        module.double()
    learner.replay.rows = learner.replay.rows.double()
    return learner._replace(
        of_actor=SeedAdam(learner.actor),
        of_critics=SeedAdam(learner.critics),
        of_temperature=SeedAdam(learner.temperature),
    )


def state_of(learner: Learner) -> list[Tensor]:
    """The parameters of all that learns."""
    return [p.detach() for module in learner[:4] for p in module.parameters()]


# ---- The policy --------------------------------------------------------------------------------


def test_log_probability_is_the_density_of_the_action() -> None:
    """By the change of variables, and by PyTorch's own distributions, in float64."""
    mean, log_std, noise = torch.randn(3, 2, 50, 3, dtype=torch.float64).unbind()
    actions, logprobs = sac.SquashedGaussian(mean, log_std).sample(noise)
    of_u = torch.distributions.Normal(mean, log_std.exp())
    squashed = torch.distributions.TransformedDistribution(
        of_u, [torch.distributions.TanhTransform()]
    )
    inside = actions.abs().amax(-1) < 0.999  # atanh of their actions is exact enough
    expected = squashed.log_prob(actions).sum(-1)
    assert inside.double().mean() > 0.3
    torch.testing.assert_close(logprobs[inside], expected[inside], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("size", [3.0, 10.0, 50.0, 1e4])
def test_log_probability_far_out(size: float) -> None:
    """log(1 - tanh(u)^2) is 2 log 2 - 2 |u| there; its gradient +-2."""
    mean = torch.tensor([[[size], [-size]]], requires_grad=True)
    zero = torch.zeros_like(mean)
    _, logprobs = sac.SquashedGaussian(mean, zero).sample(zero.detach())
    of_u = -0.5 * np.log(2 * np.pi)
    expected = of_u - 2 * np.log(2) + 2 * size + 2 * np.log1p(np.exp(-2 * size))
    torch.testing.assert_close(logprobs.double(), torch.full((1, 2), expected).double())
    logprobs.sum().backward()
    assert mean.grad is not None
    torch.testing.assert_close(mean.grad.flatten(), 2 * mean.detach().tanh().flatten())


def test_actions_span_the_bounds() -> None:
    config = sac.Config(hidden=(16,))
    actor = sac.Actor(SPEC, config, SeedStreams(SEEDS, "init"))
    ends = torch.tensor([-1.0, 0.0, 1.0]).unsqueeze(-1)
    torch.testing.assert_close(actor.within_bounds(ends).flatten(), torch.tensor([-2.0, 0, 2]))
    torch.testing.assert_close(actor.squashed(actor.within_bounds(ends)), ends)
    obs = 100 * torch.randn(2, 500, 3)
    actions = actor.act(obs, actor.draw(SeedStreams(SEEDS, "train"), 500))
    assert actions.abs().max() <= 2
    assert actions.min() < -1 < 1 < actions.max()


# ---- Updates -----------------------------------------------------------------------------------


def test_td_target_by_hand() -> None:
    rewards = torch.tensor([[1.0, 2.0, 3.0]])
    terminated = torch.tensor([[False, True, False]])
    next_q = torch.tensor([[[3.0, 5.0, 1.0]], [[4.0, 9.0, -1.0]]])
    logprobs = torch.tensor([[2.0, 2.0, -2.0]])
    got = sac.td_target(rewards, terminated, next_q, logprobs, 0.5, 0.5)
    assert torch.equal(got, torch.tensor([[1 + 0.5 * (3 - 1), 2, 3 + 0.5 * (-1 + 1)]]))


def test_the_temperature_rises_where_entropy_lacks() -> None:
    """And falls where there is too much of it."""
    for logprob, sign in ((3.0, 1), (-3.0, -1)):
        temperature = sac.Temperature(2, SPEC, sac.Config())
        optimizer = SeedAdam(temperature)
        temperature.loss(torch.full((2, 5), logprob)).sum().backward()
        optimizer.step(0.1)
        assert (sign * (temperature() - 1) > 0).all()


def settings_of(k: int) -> dict[str, Any]:
    """Random hyperparameters."""
    draw = random.Random(k)
    return {
        "learning_rate": 10 ** draw.uniform(-4, -2),
        "gamma": draw.uniform(0.5, 1.0),
        "tau": draw.choice([1.0, draw.uniform(0.001, 0.9)]),
        "alpha": draw.choice([0.0, draw.uniform(0.01, 1.0)]),
        "target_entropy": draw.uniform(-4, 2),
        "batch_size": draw.randint(1, 40),
        "hidden": tuple(draw.choices([4, 16, 30], k=draw.randint(1, 3))),
    }


def into_sb3(learner: Learner, s: int, model: Any) -> None:
    """Give SB3's model the weights of a seed."""

    def layers(net: Any, k: int) -> list[tuple[Tensor, Tensor]]:
        width, pairs = net.outputs[k], zip(net.weights, net.biases, strict=True)
        found = [(w[s, k].T, b[s, k, 0]) for w, b in pairs]
        return [*found[:-1], (found[-1][0][:width], found[-1][1][:width])]

    def fill(linears: list[Any], given: list[tuple[Tensor, Tensor]]) -> None:
        for linear, (weight, bias) in zip(linears, given, strict=True):
            linear.weight.data.copy_(weight.detach())
            linear.bias.data.copy_(bias.detach())

    actor = model.policy.actor
    hidden = [x for x in actor.latent_pi if isinstance(x, torch.nn.Linear)]
    *inner, (weight, bias) = layers(learner.actor.net, 0)
    fill(hidden, inner)
    fill([actor.mu, actor.log_std], list(zip(weight.chunk(2), bias.chunk(2), strict=True)))
    for ours, theirs in ((learner.critics, model.critic), (learner.target, model.critic_target)):
        for k, q_net in enumerate(theirs.q_networks):
            fill([x for x in q_net if isinstance(x, torch.nn.Linear)], layers(ours.q, k))


class WithoutEpsilon(SquashedDiagGaussianDistribution):
    """SB3's, with the derivative of tanh from u: what it adds 1e-6 to is a difference."""

    def log_prob(self, actions: Tensor, gaussian_actions: Tensor | None = None) -> Tensor:
        u: Any = gaussian_actions
        of_tanh = 2 * (math.log(2) - u - softplus(-2 * u))
        return DiagGaussianDistribution.log_prob(self, u) - of_tanh.sum(dim=1)


def twin_of(learner: Learner, s: int, config: sac.Config) -> Any:
    """SB3's model with the weights of a seed, in float64."""
    model: Any = sb3_baseline.build(sb3_baseline.SACBaseline, config, s)
    model.set_logger(Logger(None, []))
    for net in (model.actor, model.critic, model.critic_target):
        net.double()
    into_sb3(learner, s, model)
    model.actor.action_dist = WithoutEpsilon(1)
    if model.ent_coef_optimizer is None:
        model.ent_coef_tensor = model.ent_coef_tensor.double()
    else:
        model.log_ent_coef = torch.zeros(1, dtype=torch.float64, requires_grad=True)
        model.ent_coef_optimizer.param_groups[0]["params"] = [model.log_ent_coef]
    return model


def with_samples(
    model: Any, batches: list[Any], noise: Tensor, s: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Let SB3's model learn from minibatches of seed s, with noise [G, 2, M, D] of actions."""
    of_steps, now = iter(zip(batches, noise, strict=True)), []

    def sample(*args: Any, **kwargs: Any) -> Any:
        batch, now[:] = next(of_steps)
        ends, rewards = batch.terminated[s].double(), batch.rewards[s]
        states = {"observations": batch.obs[s], "next_observations": batch.next_obs[s]}
        scalars = {"rewards": rewards.unsqueeze(-1), "dones": ends.unsqueeze(-1)}
        return SimpleNamespace(actions=batch.actions[s], discounts=None, **states, **scalars)

    monkeypatch.setattr(policies, "preprocess_obs", lambda obs, *args, **kwargs: obs)  # no floats
    # The actions at s are drawn first, then those at s'.
    monkeypatch.setattr(Normal, "rsample", lambda self: self.loc + self.scale * now.pop(0))
    monkeypatch.setattr(model.replay_buffer, "sample", sample)


@pytest.mark.parametrize("k", range(20))
def test_updates_are_sb3s(k: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """In float64, on the same minibatches with the same noise: three steps of two seeds."""
    config, G = sac.Config(quiet=True, **settings_of(k)), 3
    learner = in_float64(learner_of(config))
    draws, noise = (x.double() for x in drawn(G, config.batch_size))
    batches = [learner.replay.sample(uniforms) for uniforms in draws.unbind(1)]
    models = [twin_of(learner, s, config) for s in SEEDS]
    sac.update(*learner, draws, noise, config)
    for s, model in zip(SEEDS, models, strict=True):
        with_samples(model, batches, noise[s], s, monkeypatch)
        model.train(G, config.batch_size)
        compare(learner, s, model)


def compare(learner: Learner, s: int, model: Any) -> None:
    """Weights of a seed and of SB3's model, and both temperatures."""
    before = [p.detach().clone() for p in parameters_of(model)]
    into_sb3(learner, s, model)
    for x, y in zip(before, parameters_of(model), strict=True):
        torch.testing.assert_close(x, y.detach(), rtol=1e-6, atol=1e-6)
    if model.ent_coef_optimizer is not None:
        ours = learner.temperature.log_alpha[s].flatten()
        torch.testing.assert_close(ours, model.log_ent_coef, rtol=1e-6, atol=1e-6)


def parameters_of(model: Any) -> list[Tensor]:
    return [p for x in (model.actor, model.critic, model.critic_target) for p in x.parameters()]


@pytest.mark.skipif(kernels.library() is None, reason="no C compiler")
@pytest.mark.parametrize("k", [*range(10), "many samples"])
def test_an_update_in_c_is_that_of_the_file(k: Any) -> None:
    """In float64: metrics, weights and moments after three gradient steps."""
    many = {"batch_size": 300, "learning_rate": 1e-3, "hidden": (16, 16)}  # of several blocks
    config = sac.Config(**(many if k == "many samples" else settings_of(k)))
    draws = drawn(3, config.batch_size)
    learner, exact = learner_of(config), in_float64(learner_of(config))
    found = sac.update(*learner, *draws, config)
    with kernels.off():
        expected = sac.update(*exact, *(x.double() for x in draws), config)
    assert found.keys() == expected.keys()
    pairs = zip(
        [*found.values(), *state_of(learner), learner.of_actor.square, learner.of_critics.mean],
        [*expected.values(), *state_of(exact), exact.of_actor.square, exact.of_critics.mean],
        strict=True,
    )
    for x, y in pairs:
        assert (x.dtype, y.dtype) == (torch.float32, torch.float64)
        torch.testing.assert_close(x.double(), y, rtol=2e-4, atol=2e-4)


@pytest.mark.usefixtures("computed")
def test_a_value_that_is_no_number_stays_one() -> None:
    """In all that its seed learns, and there alone."""
    config = sac.Config(hidden=(8,), batch_size=5)
    learner = learner_of(config)
    learner.critics.q.biases[1].data[0, 1, 0, 0] = torch.nan
    draws, noise = drawn(2, 5)
    metrics = sac.update(*learner, draws, noise, config)
    for name in ("critic_loss", "actor_loss", "q_values", "entropy"):
        assert metrics[name].isnan().tolist() == [True, False], name
    weights = learner.actor.net.weights[0].detach()
    assert weights[0].isnan().any()
    assert weights[1].isfinite().all()


@pytest.mark.usefixtures("computed")
def test_a_small_alpha_is_not_a_learned_one() -> None:
    config = sac.Config(hidden=(8,), batch_size=5, alpha=1e-50)
    learner = learner_of(config)
    metrics = sac.update(*learner, *drawn(1, 5), config)
    assert metrics["alpha"].tolist() == [0.0, 0.0]
    assert (learner.temperature.log_alpha == 0).all()


# ---- The memory and the rhythm -----------------------------------------------------------------


train_on = partial(probes.train_on, sac, seeds=2)
SMALL: dict[str, Any] = {"total_timesteps": 60, "batch_size": 4, "hidden": (8,)}


@pytest.mark.parametrize(("terminal_at", "time_limit"), [(7, 5), (4, 9), (6, 6)])
def test_memory_holds_true_successors(
    terminal_at: int, time_limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Through training, over terminations, truncations, both at once, and a wrap-around; actions
    as numbers from -1 to 1."""
    memories = []
    add = sac.Replay.add

    def spy(memory: Any, new: Any) -> None:
        memories.append(memory)
        assert new.actions.abs().max() <= 1 + 1e-6
        add(memory, new)

    monkeypatch.setattr(sac.Replay, "add", spy)
    env = Slider(terminal_at, time_limit)
    train_on(env, monkeypatch, learning_starts=30, buffer_size=32, num_envs=3, **SMALL)
    obs, next_obs, _, rewards, ends = memories[-1].rows.unbind(-1)
    assert torch.equal(next_obs, obs + 1)
    assert torch.equal(ends.bool(), next_obs >= terminal_at)
    assert (rewards == 1).all()


@pytest.mark.parametrize(
    ("settings", "updates"),
    [
        # rounds of 8; learning begins with the first round that ends beyond 20: 24, ..., 64
        ({"train_freq": 8, "gradient_steps": 3}, 6 * [3]),
        ({"train_freq": 4, "num_envs": 2, "gradient_steps": -1}, 6 * [8]),
    ],
)
def test_rhythm_of_updates(
    settings: dict[str, Any], updates: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """SB3's semantics of train_freq, gradient_steps and learning_starts; until then actions are
    uniform, whatever the policy."""
    counts: list[int] = []
    acted: list[tuple[str, Tensor]] = []
    update, rollout = sac.update, envs.rollout

    def spy(*args: Any) -> Any:
        counts.append(args[-3].shape[1])
        return update(*args)

    def played(env: Any, policy: Any, *args: Any) -> Any:
        state, obs, steps = rollout(env, policy, *args)
        acted.append((type(policy).__name__, steps.actions))
        return state, obs, steps

    monkeypatch.setattr(sac, "update", spy)
    monkeypatch.setattr(envs, "rollout", played)
    settings = SMALL | {"total_timesteps": 64, "learning_starts": 20} | settings
    train_on(Slider(), monkeypatch, **settings)
    assert counts == updates
    assert [name for name, _ in acted] == 3 * ["Uniform"] + 5 * ["Actor"]
    uniform = torch.cat([actions.flatten() for name, actions in acted if name == "Uniform"])
    assert -1 <= uniform.min() < 0 < 2 < uniform.max() <= 3


@pytest.mark.usefixtures("computed")
@pytest.mark.parametrize("policy", ["Actor", "Uniform", "Exploring"])
def test_rollouts_are_acted_as_the_file_says(policy: str) -> None:
    """In C as in PyTorch, sampled and greedily, to rounding."""
    config = sac.Config(hidden=(16, 5))
    env = config.make_env()
    actor = sac.Actor(env.spec, config, SeedStreams(SEEDS, "init"))
    acting: Any = actor if policy == "Actor" else getattr(sac, policy)(actor)
    streams = SeedStreams(SEEDS, "train")
    draw = streams.uniform if policy == "Uniform" else streams.normal
    state, obs = env.reset(streams.uniform(4, env.initial_noise))
    noise = draw(12, 4, 2 if policy == "Exploring" else 1), streams.uniform(12, 4, env.noise_size)
    *_, steps = envs.rollout(env, acting, state, obs, *noise)
    expected = acting.act(steps.obs.flatten(1, 2), noise[0].flatten(1, 2))
    torch.testing.assert_close(steps.actions.flatten(1, 2), expected)
    assert steps.actions.abs().max() > 0.1
