"""Traps that any of the deep algorithms may step into, each tested in all that can."""

from __future__ import annotations

import importlib
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from manyseeds import envs
from manyseeds.layers import tanh
from manyseeds.optim import SeedAdam, SeedRMSprop
from manyseeds.runs.control import Run
from manyseeds.seeds import SeedStreams
from tests.algos import probes
from tests.algos.probes import Counter, SignChoice, spy_on_optimizers

SMALL: dict[str, dict[str, Any]] = {
    "ppo": {"num_envs": 4, "num_steps": 8, "minibatch_size": 8, "epochs": 2},
    "a2c": {"num_envs": 4, "num_steps": 8},
    "trpo": {"num_envs": 4, "num_steps": 8, "minibatch_size": 8, "critic_epochs": 2},
    "dqn": {"num_envs": 4, "train_freq": 8, "batch_size": 8, "learning_starts": 0},
    "sac_discrete": {"num_envs": 4, "train_freq": 8, "batch_size": 8, "learning_starts": 0},
    "rainbow": {"num_envs": 4, "train_freq": 8, "batch_size": 8, "learning_starts": 0}
    | {"distribution": "quantile", "atoms": 5},  # a reward that is infinite is beyond all atoms
    "pqn": {"num_envs": 4, "num_steps": 8, "minibatch_size": 8, "epochs": 2},
    "reinforce": {"episodes": 4, "weight": "baseline", "critic_updates": 2},
    "grpo": {"groups": 2, "group_size": 2, "minibatch_size": 8, "epochs": 2},
}


def train_on(
    env: envs.Env | str, algo: str, monkeypatch: pytest.MonkeyPatch, **settings: Any
) -> tuple[Any, Run]:
    module = importlib.import_module(f"manyseeds.algos.{algo}")
    settings = {"hidden": (16,), "total_timesteps": 128, **SMALL[algo], **settings}
    return probes.train_on(module, env, monkeypatch, **settings)


class Lucky(SignChoice):
    """Starts and steps of any length, for four steps."""

    transition_noise = 1
    steps = 4

    def initial(self, noise: Tensor) -> Tensor:
        return torch.cat((2 * noise - 1, torch.zeros_like(noise)), dim=-1)

    def transition(self, physics: Tensor, action: Tensor, noise: Tensor) -> Tensor:
        return physics + torch.cat((noise - 0.5, torch.ones_like(noise)), dim=-1)


@pytest.mark.parametrize("algo", SMALL)
def test_no_two_environments_share_their_luck(algo: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Starts, actions, transitions and resets: of no seed, environment or rollout the same.

    The episodes of a group have one start, which is what makes it a group, and luck of their own.
    """
    env = Lucky()
    starts: list[Tensor] = []
    luck: list[tuple[Tensor, Tensor]] = []
    reset, module = env.reset, importlib.import_module(f"manyseeds.algos.{algo}")
    by_episodes = algo in ("reinforce", "grpo")  # which begin in reset alone
    by_values = algo in ("dqn", "pqn", "rainbow")
    acting = "play" if by_episodes else "rollout"
    play = getattr(envs, acting)

    def spy(*args: Any) -> Any:
        luck.append((made[-1] if by_values else args[-2], args[-1]))
        return play(*args)

    made: list[Tensor] = []  # the uniforms that say which of their actions are random, and which

    def spy_draw(self: Any, streams: SeedStreams, *shape: int, **settings: Any) -> Tensor:
        def uniform(*shape: int) -> Tensor:
            made.append(streams.uniform(*shape))
            return made[-1]

        return draw(self, SimpleNamespace(uniform=uniform), *shape, **settings)

    def spy_reset(noise: Tensor) -> Any:
        starts.append(noise)
        return reset(noise)

    env.reset = spy_reset  # type: ignore[method-assign]
    monkeypatch.setattr(envs, acting, spy)
    if by_values:
        draw = module.QNetwork.draw
        monkeypatch.setattr(module.QNetwork, "draw", spy_draw)
    train_on(env, algo, monkeypatch)
    assert len(luck) > 2
    begins = torch.cat([noise.flatten(0, 1) for noise in starts])
    assert begins.shape == (3 * 4 * len(starts), 1)
    assert len(begins.unique()) == len(begins) // (2 if algo == "grpo" else 1)
    actions, transitions, resets = (
        torch.cat([x.transpose(1, 2).flatten(0, 1).flatten(1) for x in kind])
        for kind in zip(*((u, v[..., :1], v[..., 1:]) for u, v in luck), strict=True)
    )
    kinds = [actions, transitions]
    if not by_episodes:
        kinds.append(resets)
    for noise in kinds:
        assert len(noise) == 3 * 4 * len(luck)
        assert len(noise.unique(dim=0)) == len(noise)


@pytest.mark.parametrize("algo", ["ppo", "a2c", "trpo", "reinforce", "grpo"])
def test_the_update_begins_at_the_policy_that_acted(
    algo: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same noise gives the same actions again, with statistics of observations that move.

    So whatever the update computes of its batch, it computes of the policy that collected it; and
    ratios to that policy are 1 in the first minibatch, however far another one, GRPO's reference,
    is away. Where there is a critic, the first update begins with the statistics of its own
    rollout, by an untrained policy.
    """
    raw = algo in ("reinforce", "grpo")  # which update the statistics after every update
    module = importlib.import_module(f"manyseeds.algos.{algo}")
    begin = "policy_gradient" if algo == "reinforce" else "update"
    acting = "play" if raw else "rollout"
    play, update = getattr(envs, acting), getattr(module, begin)
    noises: list[Tensor] = []
    means: list[Tensor] = []
    first: list[dict[str, Tensor]] = []  # metrics of the first minibatch since the rollout

    def spy_rollout(*args: Any) -> Any:
        noises.append(args[-2].flatten(1, 2))
        return play(*args)

    def spy_update(agent: Any, *args: Any) -> Any:
        (batch,) = (x for x in args if isinstance(x, module.Batch))
        if algo == "reinforce":  # its batch holds what the network sees
            again = agent.distribution(agent.network.only(0, batch.features)).sample(noises[-1])
            taken = batch.alive
        else:
            again = agent.act(batch.obs, noises[-1])
            taken = args[2] if algo == "grpo" else torch.ones_like(again, dtype=torch.bool)
        assert taken.any()
        if raw or means:
            assert torch.equal(again[taken], batch.actions[taken])
        means.append(agent.obs_stats.mean.clone())
        first.clear()
        metrics = update(agent, *args)
        if algo in ("ppo", "grpo"):
            assert (first[0]["clipfrac"] == 0).all()
            assert (first[0]["approx_kl"].abs() < 1e-6).all()
            assert (first[-1]["approx_kl"] > 1e-6).any()
        return metrics

    monkeypatch.setattr(envs, acting, spy_rollout)
    monkeypatch.setattr(module, begin, spy_update)
    settings: dict[str, Any] = {"normalize_obs": True}
    if algo in ("ppo", "grpo"):
        name = "backpropagate" if algo == "ppo" else "loss"
        compute = getattr(module, name)

        def spy_loss(*args: Any) -> Any:
            found = compute(*args)
            metrics = module.metrics_of(found, args[1], args[3]) if algo == "ppo" else found[1]
            first.append(metrics)
            return found

        monkeypatch.setattr(module, name, spy_loss)
    if algo == "grpo":
        settings |= {"kl_coef": 0.1}
    if algo != "trpo":
        settings["learning_rate"] = 0.1
    train_on(Lucky(), algo, monkeypatch, **settings)
    assert len(means) > 2
    assert (means[0] == 0).all() == raw
    assert (means[1] != means[2]).all()


@pytest.mark.parametrize("algo", ["ppo", "a2c", "trpo"])
def test_no_update_sees_raw_observations(algo: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first rollout's statistics are its own, each later one's those of all before it."""
    module = importlib.import_module(f"manyseeds.algos.{algo}")
    seen: list[Tensor] = []
    update = module.update

    def statistics_are_of(stats: Any, rollouts: list[Tensor]) -> None:
        expected = torch.cat(rollouts, dim=1).double()
        mean, var = expected.mean(1), expected.var(1, correction=0)
        assert (stats.count == expected.shape[1]).all()
        torch.testing.assert_close(stats.mean[:, 0], mean, atol=1e-12, rtol=0)
        torch.testing.assert_close(stats.var[:, 0], var, atol=1e-12, rtol=0)

    def spy(agent: Any, *args: Any) -> Any:
        (batch,) = (x for x in args if isinstance(x, module.Batch))
        seen.append(batch.obs)
        statistics_are_of(agent.obs_stats, seen[: max(len(seen) - 1, 1)])
        return update(agent, *args)

    monkeypatch.setattr(module, "update", spy)
    policy, _ = train_on("MountainCar-v0", algo, monkeypatch, normalize_obs=True)
    assert len(seen) == 4
    statistics_are_of(policy.obs_stats, seen)


@pytest.mark.parametrize("ends", [{"terminal_at": 4}, {"time_limit": 4}])
@pytest.mark.parametrize("algo", ["ppo", "a2c", "trpo"])
def test_normalised_rewards_are_scaled_and_returns_are_logged_raw(
    algo: str, ends: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The advantage is computed from scaled rewards, what is reported from the environment's."""
    module = importlib.import_module(f"manyseeds.algos.{algo}")
    rewards: list[Tensor] = []
    gae = module.gae
    monkeypatch.setattr(module, "gae", lambda *args: (rewards.append(args[0]), gae(*args))[1])
    settings = {"normalize_reward": True, "num_steps": 16, "gamma": 0.9}
    _, run = train_on(Counter(**ends), algo, monkeypatch, **settings)
    assert (run.metrics()["train_return"] == 4).all()
    scaled = torch.cat(rewards, dim=1)  # [S, T of all rollouts, N]
    R = torch.tensor([1.0, 1.9, 2.71, 3.439], dtype=torch.float64).repeat(8)  # whole episodes
    std = torch.stack([R[: t + 1].std(correction=0) for t in range(32)])  # of all steps so far
    expected = (1 / std).clamp(max=10).float().view(1, -1, 1).expand_as(scaled)
    torch.testing.assert_close(scaled, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("algo", ["ppo", "trpo", "grpo"])
def test_every_epoch_visits_all_samples_in_an_order_of_its_own(
    algo: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a seed and of a rollout, too: no two orders are alike."""
    module = importlib.import_module(f"manyseeds.algos.{algo}")
    orders: list[tuple[int, ...]] = []
    if algo == "grpo":
        minibatches = module.minibatches

        def spy_minibatches(mask: Tensor, *args: Any) -> Any:
            indices, valid = minibatches(mask, *args)
            for i in range(3):
                order = indices[i][valid[i]].tolist()
                assert sorted(order) == mask[i].nonzero().flatten().tolist()
                orders.append(tuple(order))
            return indices, valid

        monkeypatch.setattr(module, "minibatches", spy_minibatches)
    else:
        permutations = module.permutations

        def spy_permutations(uniforms: Tensor) -> Any:
            epochs = permutations(uniforms)
            assert (epochs.sort(-1).values == torch.arange(32)).all()
            orders.extend(map(tuple, epochs.flatten(0, 1).tolist()))
            return epochs

        monkeypatch.setattr(module, "permutations", spy_permutations)
    train_on(Lucky(), algo, monkeypatch)
    assert len(orders) >= 3 * 2 * 4  # seeds, epochs, rollouts
    assert len(set(orders)) == len(orders)


@pytest.mark.parametrize("algo", ["ppo", "a2c", "trpo"])
def test_advantages_read_the_values_of_the_true_successors(
    algo: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """V(final) at a truncation, neither V(s_t) nor V(reset); V is the count here."""
    module = importlib.import_module(f"manyseeds.algos.{algo}")
    env, config = Counter(time_limit=6), module.Config(**{**SMALL[algo], "num_envs": 2})
    agent = module.ActorCritic(env.spec, config, SeedStreams([0, 1], "init"))
    monkeypatch.setattr(agent, "value", lambda obs: obs[..., 0])
    seen: list[Tensor] = []
    gae = module.gae
    monkeypatch.setattr(module, "gae", lambda *args: (seen.append(args[2]), gae(*args))[1])
    state, obs = env.reset(torch.rand(2, 2, 0))
    noise = agent.draw(SeedStreams([0, 1], "train"), 20, 2), torch.zeros(2, 20, 2, 0)
    _, _, rollout = envs.rollout(env, agent, state, obs, *noise)
    module.prepare(agent, rollout, config)
    count = torch.arange(20.0).remainder(6).view(1, 20, 1)
    assert torch.equal(rollout.obs[..., 0], count.expand(2, 20, 2))
    assert torch.equal(seen[0], rollout.obs[..., 0] + 1)


@pytest.mark.parametrize("algo", ["reinforce", "grpo"])
def test_every_step_taken_counts_and_a_finished_seed_is_frozen(
    algo: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bit for bit: policy, critic, moments, statistics, timestep, while the others go on."""
    budget = 600
    rates = 1e-2, 3e-3  # of the policy and of its critic
    states: list[list[Tensor]] = []
    steps: list[Tensor] = []
    taken: list[Tensor] = []
    actors: list[Any] = []
    made = spy_on_optimizers(monkeypatch)
    play, log, adam_step = envs.play, Run.log, SeedAdam.step

    def spy_play(env: envs.Env, actor: Any, *noise: Tensor) -> Any:
        episodes = play(env, actor, *noise)
        actors.append(actor)
        taken.append(episodes.alive.sum((1, 2)))
        return episodes

    def spy_log(run: Run, timesteps: Tensor, metrics: Any) -> None:
        moments = [x for adam in made for x in (adam.params, adam.mean, adam.square)]
        powers = [x for adam in made for x in adam.beta_powers]
        stats = actors[0].obs_stats.state_dict().values()
        states.append([x.detach().clone() for x in (*moments, *powers, *stats)])
        steps.append(timesteps)
        log(run, timesteps, metrics)

    def spy_step(adam: SeedAdam, lr: Tensor, norm: float, active: Tensor) -> Tensor:
        timesteps = steps[-1] if steps else torch.zeros(6)
        left = (1 - timesteps / budget).clamp(min=0)
        torch.testing.assert_close(lr.flatten(), rates[made.index(adam)] * left)
        assert not active[timesteps >= budget].any()
        return adam_step(adam, lr, norm, active)

    monkeypatch.setattr(envs, "play", spy_play)
    monkeypatch.setattr(Run, "log", spy_log)
    monkeypatch.setattr(SeedAdam, "step", spy_step)
    settings = {"total_timesteps": budget, "normalize_obs": True, "learning_rate": rates[0]}
    _, run = train_on("CartPole-v1", algo, monkeypatch, seeds=6, **settings)
    total = torch.zeros(6, dtype=torch.int64)
    finished_before_the_end = 0
    for k, (now, played) in enumerate(zip(steps, taken, strict=True)):
        active = total < budget
        total = total + played * active
        assert torch.equal(now, total)
        if k > 0:
            for before, after in zip(states[k - 1], states[k], strict=True):
                assert torch.equal(before[~active], after[~active])
                assert (before[active] != after[active]).flatten(1).any(-1).all()
            finished_before_the_end += int((~active).sum())
    assert finished_before_the_end > 0
    assert (total >= budget).all()
    assert torch.equal(states[-1][-1].flatten(), total.double())  # observations
    metrics = run.metrics()
    assert metrics.groupby("seed")["timestep"].max().tolist() == total.tolist()
    assert metrics.notna().all().all()
    assert not metrics.duplicated(["seed", "timestep"]).any()


class Rude(Counter):
    """What it shows after the end of an episode, begun with noise of 0, is no number."""

    initial_noise = 1

    def initial(self, noise: Tensor) -> Tensor:
        return noise.clone()

    def observation(self, physics: Tensor) -> Tensor:
        return torch.where(physics == physics.floor(), torch.nan, physics)

    def reward(self, physics: Tensor, action: Tensor, next_physics: Tensor) -> Tensor:
        return self.observation(physics)[..., 0] * action


@pytest.mark.parametrize("algo", ["reinforce", "grpo"])
def test_what_an_environment_shows_after_an_end_is_never_learned(
    algo: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy, run = train_on(Rude(3, 60), algo, monkeypatch, normalize_obs=True)
    assert all(tensor.isfinite().all() for tensor in policy.state_dict().values())
    assert run.diverged == {}
    assert run.metrics().notna().all().all()


class Unpaid(Counter):
    """The second seed's reward of a step in the middle is no number."""

    def __init__(self, unpaid: float) -> None:
        super().__init__(time_limit=6)
        self.unpaid = unpaid

    def reward(self, physics: Tensor, action: Tensor, next_physics: Tensor) -> Tensor:
        paid = super().reward(physics, action, next_physics)
        paid[1][physics[1, ..., 0] == 3] = self.unpaid
        return paid


@pytest.mark.parametrize("unpaid", [torch.nan, torch.inf])
@pytest.mark.parametrize("algo", SMALL)
def test_a_reward_that_is_not_finite_is_a_divergence_with_its_step(
    algo: str, unpaid: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, run = train_on(Unpaid(unpaid), algo, monkeypatch)
    assert list(run.diverged) == [1]
    assert 0 < run.diverged[1] <= 48  # of 128: within the first updates


@pytest.mark.parametrize("anneal", [True, False])
@pytest.mark.parametrize(("algo", "kind"), [("ppo", SeedAdam), ("a2c", SeedRMSprop)])
def test_the_schedule_reaches_the_optimizer(
    algo: str, kind: Any, anneal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    rates, step = set(), kind.step
    monkeypatch.setattr(
        kind, "step", lambda self, lr, *a: (rates.add(lr.item()), step(self, lr, *a))[1]
    )
    train_on(Counter(), algo, monkeypatch, learning_rate=0.1, anneal_lr=anneal)
    assert sorted(rates) == pytest.approx([0.025, 0.05, 0.075, 0.1] if anneal else [0.1])


def test_tanh_far_out() -> None:
    """exp(2x) overflows at 45: neither values nor gradients may be of that."""
    x = torch.tensor([-1e4, -100.0, -50.0, 0.0, 50.0, 100.0, 1e4, 3e38]).repeat(1, 16, 4)
    x.requires_grad_()
    y = tanh(x)
    torch.testing.assert_close(y, x.detach().tanh(), atol=2.5e-7, rtol=0)
    (gradient,) = torch.autograd.grad(y.sum(), x)
    torch.testing.assert_close(gradient, (x == 0).to(gradient), atol=1e-6, rtol=0)
