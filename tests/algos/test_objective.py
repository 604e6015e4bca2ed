"""Gradients and whole updates of PPO, A2C and TRPO in C against their files, in float64."""

from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from manyseeds import envs, kernels
from manyseeds.algos import a2c, ppo, trpo
from manyseeds.kernels.guard import Guard
from manyseeds.optim import SeedAdam, flatten_parameters
from manyseeds.seeds import SeedStreams

pytestmark = pytest.mark.skipif(kernels.library() is None, reason="no C compiler")

S, M = 3, 37
FILES: dict[str, Any] = {"ppo": ppo, "a2c": a2c, "trpo": trpo}
SETTINGS: dict[str, tuple[str, dict[str, Any]]] = {
    "ppo": ("ppo", {}),
    "ppo, as they are": ("ppo", {"normalize_advantage": False, "value_coef": 0.3}),
    "ppo, entropy": ("ppo", {"entropy_coef": 0.05, "clip_value_range": 0.1}),
    "ppo, unclipped": ("ppo", {"clip_range": 0.0, "hidden": (5, 3)}),
    "ppo, box": ("ppo", {"env": "Pendulum-v1", "entropy_coef": 0.05}),
    "ppo, normalised box": ("ppo", {"env": "Pendulum-v1", "normalize_obs": True, "hidden": ()}),
    "a2c": ("a2c", {}),
    "a2c, entropy": ("a2c", {"normalize_advantage": True, "entropy_coef": 0.05}),
    "a2c, box": ("a2c", {"env": "MountainCarContinuous-v0", "entropy_coef": 0.05}),
}
MINI = {"num_envs": 4, "num_steps": 10, "minibatch_size": 8, "hidden": (16, 12)}
UPDATES: dict[str, tuple[str, dict[str, Any]]] = {
    "ppo, update": ("ppo", {**MINI, "target_kl": 0.05}),
    "ppo, update, box": ("ppo", {**MINI, "env": "Pendulum-v1", "entropy_coef": 0.05}),
    "a2c, update": ("a2c", {"entropy_coef": 0.05}),
    "a2c, update, box": ("a2c", {"env": "Pendulum-v1", "optimizer": "adam", "hidden": (5,)}),
    "a2c, update, tf": ("a2c", {"optimizer": "rmsprop_tf", "normalize_obs": True, "hidden": ()}),
    "trpo, update": ("trpo", MINI),
    "trpo, update, box": ("trpo", {**MINI, "env": "Pendulum-v1", "normalize_obs": True}),
    "trpo, update, deterministic": ("trpo", {**MINI, "hidden": (5,), "cg_damping": 1.0}),
    "trpo, update, linear": ("trpo", {**MINI, "hidden": (), "normalize_advantage": False}),
}


def example(case: str, size: int = M, seeds: int = S) -> tuple[Any, Any, list[Any]]:
    """The algorithm, agents and the rest of the arguments of its loss; some ratios are cut."""
    algo, settings = (SETTINGS | UPDATES)[case]
    module = FILES[algo]
    config = module.Config(**settings)
    env = config.make_env()
    agent = module.ActorCritic(env.spec, config, SeedStreams(range(seeds), "init"))
    generators = [torch.Generator().manual_seed(seed) for seed in range(seeds)]

    def normal(*shape: int) -> Tensor:
        return torch.stack([torch.randn(*shape, generator=g) for g in generators])

    with torch.no_grad():
        for p in agent.parameters():  # policies that differ from state to state
            p.add_(0.3 * normal(*p.shape[1:]))
        if "deterministic" in case:
            agent.actor.biases[-1][:, :, :, 0] += 1e4
    obs = normal(size, env.spec.obs_size)
    if agent.obs_stats is not None:
        agent.obs_stats.update(obs)
    actions = agent.act(obs, normal(size, agent.action_size)).detach()
    logprobs, _, values = (x.detach() for x in agent.evaluate(obs, actions))
    fields = [obs, actions, logprobs + 0.3 * normal(size), values + 0.3 * normal(size)]
    if algo == "a2c":
        del fields[2]
    batch = module.Batch(*fields, 3 * normal(size) + 1, 5 * normal(size))
    rest = [batch, config]
    if algo == "ppo":
        rest.append(torch.tensor(config.clip_range) if config.clip_range else None)
    return module, agent, rest


def learn(module: Any, agent: Any, rest: list[Any]) -> list[Tensor]:
    """The terms and all gradients."""
    for p in agent.parameters():
        p.grad = None
    terms = module.backpropagate(agent, *rest)
    return [*terms, *(p.grad for p in agent.parameters())]


def doubled(agent: Any, rest: list[Any]) -> tuple[Any, list[Any]]:
    batch = rest[0]
    exact = type(batch)(*(x.double() if x.is_floating_point() else x for x in batch))
    return copy.deepcopy(agent).double(), [exact, *rest[1:]]


@pytest.mark.parametrize("case", SETTINGS)
@pytest.mark.parametrize("size", [1, 2, M, 300])
def test_it_is_that_of_the_file(case: str, size: int) -> None:
    module, agent, rest = example(case, size)
    found = learn(module, agent, rest)
    right = learn(module, *doubled(agent, rest))
    assert right[0].dtype == torch.float64  # by PyTorch
    for x, y in zip(found, right, strict=True):
        bound = 2e-5 * (1 + y.abs().max().item())
        torch.testing.assert_close(x.double(), y, rtol=0, atol=bound)


@pytest.mark.parametrize("case", ["ppo", "ppo, box"])
def test_some_ratios_are_cut_and_some_are_not(case: str) -> None:
    """Had all been on one side, the comparison above would have seen one branch."""
    _, agent, (batch, *_) = example(case)
    ratio = (agent.evaluate(batch.obs, batch.actions)[0] - batch.logprobs).exp()
    assert 0.1 < ((ratio - 1).abs() > 0.2).float().mean() < 0.9


def test_nothing_is_left_to_autograd(monkeypatch: pytest.MonkeyPatch) -> None:
    """Had it been, the comparisons above would be of one thing with itself."""
    module, agent, rest = example("ppo")
    asked: list[bool] = []
    loss = ppo.loss
    monkeypatch.setattr(Guard, "allows", lambda self, *given: True)  # the spy is seen
    monkeypatch.setattr(ppo, "loss", lambda *args: (asked.append(True), loss(*args))[1])
    module.backpropagate(agent, *rest)
    assert not asked
    assert all(p.grad is not None for p in agent.parameters())


@pytest.fixture
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("case", SETTINGS)
@pytest.mark.parametrize("number", [1, 2])
def test_bits_depend_on_neither_the_other_seeds_nor_threads(case: str, number: int) -> None:
    torch.set_num_threads(number)
    together = learn(*example(case, seeds=7))
    torch.set_num_threads(1)
    module, agent, rest = example(case, seeds=7)
    config = rest[1]
    for s in (0, 3):
        alone = module.ActorCritic(config.make_env().spec, config, SeedStreams([s], "init"))
        alone.load_state_dict({k: v[s : s + 1] for k, v in agent.state_dict().items()})
        batch = type(rest[0])(*(x[s : s + 1] for x in rest[0]))
        found = learn(module, alone, [batch, *rest[1:]])
        for x, y in zip(found, together, strict=True):
            assert torch.equal(x[0], y[s])


@pytest.mark.parametrize("advantage", [3.0, -3.0])
@pytest.mark.parametrize("case", ["ppo", "ppo, box"])
def test_a_ratio_that_overflows(case: str, advantage: float) -> None:
    """0 x infinity where it is cut: the seed counts as diverged, as it does in PyTorch."""
    module, agent, (batch, *rest) = example(case)
    batch.logprobs[1, 2] = -100
    batch.advantages[1, 2] = advantage
    found = learn(module, agent, [batch, *rest])
    with kernels.off():
        right = learn(module, agent, [batch, *rest])
    assert right[4].isnan()[1].any()
    for x, y in zip(found, right, strict=True):
        assert torch.equal(x.isfinite(), y.isfinite())


def test_shapes_and_types_that_are_wrong_are_errors() -> None:
    module, agent, (batch, *rest) = example("ppo")
    for wrong in (batch.obs[..., :-1], batch.obs[:1]):
        with pytest.raises((RuntimeError, ValueError)):
            learn(module, agent, [batch._replace(obs=wrong), *rest])
    with pytest.raises((RuntimeError, ValueError)):
        module.backpropagate(copy.deepcopy(agent).double(), batch, *rest)


@pytest.mark.parametrize("wrong", [-1, 2, 10**9])
def test_an_action_that_is_none_is_an_error(wrong: int) -> None:
    module, agent, (batch, *rest) = example("ppo")
    batch.actions[1, 3] = wrong
    with pytest.raises(IndexError):
        module.backpropagate(agent, batch, *rest)


def test_a_clip_range_of_0_cuts_every_gain() -> None:
    """Of a tensor, as in PyTorch; None is what does not clip."""
    module, agent, (batch, config, _) = example("ppo")
    rest = [batch, config, torch.tensor(0.0)]
    for x, y in zip(learn(module, agent, rest), learn(module, *doubled(agent, rest)), strict=True):
        torch.testing.assert_close(x.double(), y, rtol=0, atol=1e-4 * (1 + y.abs().max().item()))


ESTIMATES: dict[str, tuple[str, dict[str, Any]]] = {
    "ppo": SETTINGS["ppo"],
    "ppo, normalised box": SETTINGS["ppo, normalised box"],
    "a2c": ("a2c", {}),
    "a2c, n steps": ("a2c", {"advantage": "n_step"}),
    "a2c, Monte Carlo": ("a2c", {"advantage": "monte_carlo"}),
    "trpo": UPDATES["trpo, update, box"],
}


@pytest.mark.parametrize("case", ESTIMATES)
def test_estimates_are_those_of_the_file(case: str) -> None:
    """Of rollouts with random ends; the successor of an end is another state than the next one."""
    algo, settings = ESTIMATES[case]
    sizes = {"num_envs": 3, "num_steps": 11} | ({} if algo == "a2c" else {"minibatch_size": 11})
    module, config = FILES[algo], FILES[algo].Config(**settings | sizes)
    spec = config.make_env().spec
    agent = module.ActorCritic(spec, config, SeedStreams(range(S), "init"))
    generator = torch.Generator().manual_seed(0)
    obs = torch.randn(S, 12, 3, spec.obs_size, generator=generator)
    if agent.obs_stats is not None:
        agent.obs_stats.update(obs.flatten(1, 2))
    ends = torch.rand(2, S, 11, 3, generator=generator) < 0.2
    other = torch.randn(S, 11, 3, spec.obs_size, generator=generator)
    next_obs = torch.where(ends.any(0).unsqueeze(-1), other, obs[:, 1:])
    noise = torch.randn(S, 33, agent.action_size, generator=generator)
    actions = agent.act(obs[:, :-1].flatten(1, 2), noise).detach().unflatten(1, (11, 3))
    rewards = torch.randn(S, 11, 3, generator=generator)
    rollout = envs.Rollout(obs[:, :-1], actions, rewards, *ends, next_obs)
    found = module.estimate(agent, rollout, rewards, config)
    exact = copy.deepcopy(agent).double()
    given = envs.Rollout(*(x.double() if x.is_floating_point() else x for x in rollout))
    with torch.no_grad(), kernels.off():
        close(list(found), list(module.estimate(exact, given, given.rewards, config)), 1e-5)


@pytest.mark.parametrize("advantage", ["gae", "n_step"])
def test_a_last_observation_that_is_no_number_is_not_multiplied_away(advantage: str) -> None:
    """Also where V of it counts 0 times: its seed has diverged, in C as in PyTorch."""
    config = a2c.Config(advantage=advantage, num_envs=1, num_steps=4)
    agent = a2c.ActorCritic(config.make_env().spec, config, SeedStreams(range(2), "init"))
    obs, ends = torch.ones(2, 4, 1, 4), torch.zeros(2, 4, 1, dtype=torch.bool)
    next_obs, terminated = obs.clone(), ends.clone()
    next_obs[1, 2], terminated[:, 2] = math.nan, True
    steps = ends.long(), torch.ones(2, 4, 1), terminated, ends, next_obs
    rollout = envs.Rollout(obs, *steps)
    _, found = a2c.estimate(agent, rollout, rollout.rewards, config)
    assert found.isnan().any(-1).tolist() == [False, True]


def updated(module: Any, agent: Any, rest: list[Any]) -> list[Tensor]:
    """The metrics of two updates, and all parameters after them; the agent stays as it is."""
    agent, (batch, config, *clip) = copy.deepcopy(agent), rest
    seeds, kind = len(batch.obs), batch.returns.dtype
    keys = torch.rand(2, 4, 40, generator=torch.Generator().manual_seed(0)).expand(
        seeds, -1, -1, -1
    )
    lr = torch.tensor(1e-2)
    if module is trpo:
        theta, optimizer = flatten_parameters(agent.policy_parameters()), SeedAdam(agent.critic)
    else:
        optimizer = a2c.make_optimizer(agent, config) if module is a2c else SeedAdam(agent)
    found: list[Tensor] = []
    for shuffle in keys.unbind(1):
        if module is trpo:
            metrics = trpo.update(agent, theta, optimizer, batch, shuffle.to(kind), config)
        elif module is a2c:
            metrics = a2c.update(agent, optimizer, batch, config, lr)
        else:
            shuffle = shuffle.contiguous().to(kind)
            metrics = ppo.update(agent, optimizer, batch, shuffle, config, lr, *clip)
        found += metrics.values()
    return [*found, *(p.detach() for p in agent.parameters())]


def close(found: list[Tensor], right: list[Tensor], bound: float) -> None:
    for x, y in zip(found, right, strict=True):
        limit = bound * (1 + y.abs().nan_to_num().max().item())
        torch.testing.assert_close(x.double(), y.double(), rtol=0, atol=limit, equal_nan=True)


@pytest.mark.parametrize("case", UPDATES)
def test_updates_are_those_of_the_file(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module, agent, rest = example(case, 40)
    asked: list[bool] = []
    with monkeypatch.context() as patch:
        patch.setattr(Guard, "allows", lambda self, *given: True)  # the spy is seen
        patch.setattr(module, "explained_variance", lambda *args: asked.append(True))
        found = updated(module, agent, rest)
    assert not asked  # PyTorch has computed nothing
    exact, given = doubled(agent, rest)
    with kernels.off():
        close(found, updated(module, exact, given), 1e-3)
    start = [p.detach() for p in agent.parameters()]
    assert any(not torch.equal(x, y) for x, y in zip(found[-len(start) :], start, strict=True))


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("case", UPDATES)
def test_updates_keep_the_seeds_apart(case: str) -> None:
    """The same bits with one thread and two, alone and with a seed of NaN beside it."""
    module, agent, rest = example(case, 40)
    right = updated(module, agent, rest)
    torch.set_num_threads(2)
    with torch.no_grad():
        for x in (*agent.parameters(), rest[0].returns):
            x[1] = torch.nan
    sick = updated(module, agent, rest)
    for x, y in zip(sick, right, strict=True):
        assert torch.equal(x[[0, 2]], y[[0, 2]])
    assert sick[-1][1].isnan().any()
    one = copy.deepcopy(agent)
    alone = module.ActorCritic(rest[1].make_env().spec, rest[1], SeedStreams([2], "init"))
    alone.load_state_dict({k: v[2:] for k, v in one.state_dict().items()})
    batch = type(rest[0])(*(x[2:] for x in rest[0]))
    for x, y in zip(updated(module, alone, [batch, *rest[1:]]), right, strict=True):
        assert torch.equal(x[0], y[2])


def test_steps_of_trpo_keep_its_constraint() -> None:
    """Of thirty seeds; without it some of them would have gone on to a larger KL."""
    _, agent, (batch, config) = example("trpo, update", 40, seeds=30)
    config = dataclasses.replace(config, cg_damping=1e-3, target_kl=0.05)
    theta = flatten_parameters(agent.policy_parameters())
    metrics = trpo.policy_step(agent, theta, batch, config)
    assert (metrics["kl"] <= 0.05).all()
    assert (metrics["step_fraction"] < 1).any()


@pytest.mark.parametrize("case", [case for case in UPDATES if "trpo" in case])
def test_parts_of_trpos_update_are_the_whole(case: str) -> None:
    """`policy_step` and `fit_critic` in C one after the other."""
    module, agent, (batch, config) = example(case, 40)
    found = []
    for whole in (True, False):
        mine = copy.deepcopy(agent)
        theta = flatten_parameters(mine.policy_parameters())
        given = (
            SeedAdam(mine.critic),
            batch,
            torch.rand(S, 2, 40, generator=torch.Generator().manual_seed(0)),
            config,
        )
        if whole:
            metrics = trpo.update(mine, theta, *given)
            del metrics["explained_variance"]
        else:
            metrics = trpo.policy_step(mine, theta, batch, config)
            metrics["value_loss"] = trpo.fit_critic(mine, *given)
        found.append([*metrics.values(), *mine.parameters()])
    for x, y in zip(*found, strict=True):
        assert torch.equal(x, y)
