"""The updates of REINFORCE and GRPO in C against those of their files, in float64."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from manyseeds import envs, kernels
from manyseeds.algos import grpo, reinforce
from manyseeds.envs.rollout import play_step_by_step
from manyseeds.kernels.guard import Guard
from manyseeds.optim import SeedAdam
from manyseeds.seeds import SeedStreams

pytestmark = pytest.mark.skipif(kernels.library() is None, reason="no C compiler")

S, L = 3, 40
BOX = {"env": "MountainCarContinuous-v0"}
CASES: dict[str, tuple[Any, dict[str, Any]]] = {
    "reinforce, total return": (reinforce, {"weight": "total_return", "entropy_coef": 0.1}),
    "reinforce, as they are": (reinforce, {"normalize_advantage": False, "hidden": (5, 3)}),
    "reinforce, two episodes": (reinforce, {"weight": "baseline", "episodes": 2}),
    "reinforce, q": (reinforce, {"weight": "q", "normalize_obs": True}),
    "reinforce, box": (reinforce, {**BOX, "weight": "q", "entropy_coef": 0.1, "hidden": ()}),
    "grpo": (grpo, {}),
    "grpo, outcome": (grpo, {"advantage": "outcome", "groups": 2, "kl_coef": 0.2}),
    "grpo, process": (grpo, {"advantage": "process", "peers": "all"}),
    "grpo, batch": (grpo, {"std": "batch", "entropy_coef": 0.1, "normalize_obs": True}),
    "grpo, unclipped": (grpo, {"std": "none", "clip_range": 0.0, "peers": "all"}),
    "grpo, box": (grpo, {**BOX, "clip_range_high": 0.3, "kl_coef": 0.1, "groups": 2}),
}


@pytest.fixture(autouse=True)
def kernels_are_used(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    threads = torch.get_num_threads()
    monkeypatch.setattr(Guard, "allows", lambda *args: True)
    yield
    torch.set_num_threads(threads)


class Learner:
    """What learns from some episodes: a file, its networks and optimizers."""

    def __init__(self, case: str, dtype: torch.dtype, seeds: range = range(S)) -> None:
        self.module, settings = CASES[case]
        small = {"episodes": 4, "minibatch_size": 32, "critic_updates": 3}
        if self.module is grpo:
            small = {"group_size": 4, "minibatch_size": 7, "epochs": 2}
        self.config = self.module.Config(**{"hidden": (16,), **small, **settings})
        self.spec = self.config.make_env().spec
        init = SeedStreams(seeds, "init")
        self.actor = self.module.Actor(self.spec, self.config, init)
        self.critic = None
        if getattr(self.config, "weight", "") in ("baseline", "q"):
            self.critic = reinforce.Critic(self.spec, self.config, init)
        self.noise = SeedStreams(seeds, "train")
        for network in filter(None, (self.actor, self.critic)):
            for p in network.parameters():
                p.data += 0.3 * self.noise.normal(*p.shape[1:])
        self.episodes = self._episodes(seeds)
        self.draws = (
            self.noise.uniform(3, 32),
            self.noise.uniform(2, self.episodes.alive[0].numel()),
        )
        if self.actor.obs_stats is not None:
            self.actor.obs_stats.update(self.episodes.obs.flatten(1, 2))
        self.reference = copy.deepcopy(self.actor)
        for p in self.actor.parameters():
            p.data += 0.1 * self.noise.normal(*p.shape[1:])
        if dtype == torch.float64:
            for network in filter(None, (self.actor, self.critic, self.reference)):
                network.double()
            self.episodes = envs.Episodes(
                *(x.double() if x.is_floating_point() else x for x in self.episodes)
            )

    def _episodes(self, seeds: range) -> envs.Episodes:
        """Of 1 to L steps; many rewards are equal, and those of some seeds tell little."""
        config = self.config
        N = config.num_envs if self.module is grpo else config.episodes
        alive = torch.arange(L).view(1, L, 1) <= self.noise.uniform(1, N) * L
        obs = self.noise.normal(L, N, self.spec.obs_size)
        rewards = (3 * self.noise.uniform(L, N)).floor() - 1
        for s, seed in enumerate(seeds):
            if self.module is grpo and seed % 3 == 1:  # only at the first step
                rewards[s, 1:] = 0
            elif self.module is grpo and seed % 3 == 2:  # not in the first group
                rewards[s, :, :4] = 0
        noise = self.actor.draw(self.noise, L * N)
        with torch.no_grad():
            flat = self.actor.act(obs.flatten(1, 2), noise)
        actions = flat.view(*obs.shape[:3], *flat.shape[2:])
        dead = ~alive
        fields = obs.masked_fill(dead.unsqueeze(-1), 0), actions, rewards * alive
        blank = dead.view(*dead.shape, *[1] * (actions.dim() - 3))
        return envs.Episodes(fields[0], actions.masked_fill(blank, 0), fields[2], alive)

    def learn(self, active: Tensor | None = None) -> dict[str, Tensor]:
        """One update; metrics, weights and what the update was computed of."""
        module, config = self.module, self.config
        if active is None:
            active = torch.ones(len(self.episodes.obs), dtype=torch.bool)
        lr = torch.full((len(active), 1), 0.01)
        optimizer = SeedAdam(self.actor, eps=1e-5)
        found: dict[str, Tensor] = {}
        if module is grpo:
            reference = self.reference if config.kl_coef else None
            batch, mask, metrics = grpo.prepare(self.actor, reference, self.episodes, config)
            found |= {"mask": mask.double(), "advantages": batch.advantages}
            # Behind the policy that learns, so that some ratios are cut.
            with torch.no_grad():
                old = self.reference.evaluate(batch.obs, batch.actions)[0]
            batch = batch._replace(logprobs=old)
            shuffle = self.draws[1]
            metrics |= grpo.update(
                *(self.actor, optimizer, batch, mask, shuffle, active, config, lr)
            )
        else:
            batch = reinforce.prepare(self.actor, self.episodes, config)
            of_critic = None if self.critic is None else SeedAdam(self.critic, eps=1e-5)
            metrics = reinforce.update(
                *(self.actor, optimizer, self.critic, of_critic, batch, self.draws[0]),
                *(active, config, lr, lr),
            ) | envs.means_of(self.episodes)
        found |= {f"moments {k}": x for k, x in enumerate((optimizer.mean, optimizer.params))}
        for k, p in enumerate(() if self.critic is None else self.critic.parameters()):
            found[f"critic {k}"] = p.detach()
        return found | metrics


@pytest.mark.parametrize("case", CASES)
def test_an_update_is_that_of_the_file(case: str) -> None:
    found = Learner(case, torch.float32).learn()
    right = Learner(case, torch.float64).learn()
    assert found.keys() == right.keys()
    assert right["moments 0"].dtype == torch.float64  # by PyTorch
    for name, y in right.items():
        bound = 1e-4 * (1 + y.abs().max().item())
        torch.testing.assert_close(found[name].double(), y.double(), rtol=0, atol=bound, msg=name)


@pytest.mark.parametrize("case", CASES)
def test_the_levels_within_an_update_are_it(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The gradient of a minibatch and the fit of a critic, where the update itself was edited."""
    whole = Learner(case, torch.float32).learn()
    updates = {"reinforce_update", "grpo_update"}
    monkeypatch.setattr(
        Guard, "allows", lambda self, *args: self.kernel.rpartition(".")[2] not in updates
    )
    for name, x in Learner(case, torch.float32).learn().items():
        bound = 1e-4 * (1 + x.abs().max().item())
        torch.testing.assert_close(x, whole[name], rtol=0, atol=bound, msg=name)


@pytest.mark.parametrize("case", CASES)
def test_bits_depend_on_neither_the_other_seeds_nor_threads(case: str) -> None:
    together = Learner(case, torch.float32, range(5)).learn()
    torch.set_num_threads(2)
    alone = Learner(case, torch.float32, range(3, 4)).learn()
    for name, x in alone.items():
        assert torch.equal(x[0], together[name][3]), name


@pytest.mark.parametrize("case", CASES)
def test_what_is_no_number_stays_in_its_seed_and_who_is_done_stays(case: str) -> None:
    """Seed 1's reward is none, and seed 2 does not learn."""
    clean = Learner(case, torch.float32).learn()
    learner = Learner(case, torch.float32)
    learner.episodes.rewards[1, 0, 0] = math.nan
    before = {k: p.detach()[2].clone() for k, p in learner.actor.named_parameters()}
    found = learner.learn(torch.tensor([True, True, False]))
    for name, x in found.items():
        assert torch.equal(x[0], clean[name][0]), name
    learned = [x[1] for name, x in found.items() if name.startswith(("moments", "critic"))]
    assert any(x.isnan().any() for x in learned)
    assert found["train_return"].isnan().tolist() == [False, True, False]
    for name, p in learner.actor.named_parameters():
        assert torch.equal(p[2], before[name])


@pytest.mark.parametrize("case", ["reinforce, as they are", "grpo", "grpo, box"])
@pytest.mark.parametrize("scale", [1e4, 1e-42])
def test_large_logits_and_numbers_next_to_0(case: str, scale: float) -> None:
    outcomes = []
    for dtype in (torch.float32, torch.float64):
        learner = Learner(case, dtype)
        for networks in (learner.actor, learner.reference):
            networks.network.weights[-1].data *= scale
        outcomes.append(learner.learn())
    found, right = outcomes
    for name in ("moments 1", "entropy", "policy_loss"):
        assert torch.equal(found[name].isfinite(), right[name].isfinite()), name


@pytest.mark.parametrize("case", ["reinforce, q", "grpo"])
def test_an_action_that_is_none_is_an_error(case: str) -> None:
    learner = Learner(case, torch.float32)
    learner.episodes.actions[1, 0, 0] = 10**9
    with pytest.raises(IndexError):
        learner.learn()


@pytest.mark.parametrize("env_id", ["CartPole-v1", "Pendulum-v1", "MountainCar-v0"])
def test_episodes_are_those_of_rollouts(env_id: str) -> None:
    """To the bit, each seed for as long as it takes, also where the noise ends before them."""
    config = grpo.Config(env=env_id, hidden=(16,), normalize_obs=True)
    env, streams = config.make_env(), SeedStreams(range(S), "train")
    actor = grpo.Actor(env.spec, config, SeedStreams(range(S), "init"))
    for steps in (15, env.spec.time_limit):
        noise = actor.draw(streams, steps, 5), streams.uniform(steps, 5, env.transition_noise)
        start = streams.uniform(5, env.initial_noise)
        found = envs.play(env, actor, start, *noise)
        with torch.no_grad():
            right = play_step_by_step(env, actor, start, *noise)
        for x, y in zip(found, right, strict=True):
            assert torch.equal(x, y)
        for name, mean in envs.means_of(found).items():
            with kernels.off():
                torch.testing.assert_close(mean, envs.means_of(right)[name])
