"""The objectives of PPO and A2C in C against those of their files, in float64."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from manyseeds import kernels
from manyseeds.algos import a2c, ppo
from manyseeds.kernels.guard import Guard
from manyseeds.seeds import SeedStreams

pytestmark = pytest.mark.skipif(kernels.library() is None, reason="no C compiler")

S, M = 3, 37
FILES: dict[str, Any] = {"ppo": ppo, "a2c": a2c}
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


def example(case: str, size: int = M, seeds: int = S) -> tuple[Any, Any, list[Any]]:
    """The algorithm, agents and the rest of the arguments of its loss; some ratios are cut."""
    algo, settings = SETTINGS[case]
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
    monkeypatch.setattr(Guard, "allows", lambda self, agent: True)  # the spy is seen
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


def test_what_kernels_cannot_take_is_left_to_the_file() -> None:
    """Other types, shapes that broadcast or are wrong, inputs that need a gradient."""
    module, agent, (batch, *rest) = example("ppo")
    expected = learn(module, agent, [batch, *rest])

    def equal(changed: Any) -> None:
        for x, y in zip(learn(module, agent, [changed, *rest]), expected, strict=True):
            torch.testing.assert_close(x, y)

    advantages = batch.advantages.clone().requires_grad_()
    equal(batch._replace(advantages=advantages))
    assert advantages.grad is not None
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
