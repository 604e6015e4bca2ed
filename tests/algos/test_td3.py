"""TD3 and DDPG: targets, delays, noise, the rhythm of updates; updates as SB3's."""

from __future__ import annotations

import contextlib
import copy
import random
from functools import partial
from types import ModuleType, SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from stable_baselines3.common import policies
from stable_baselines3.common.logger import Logger
from stable_baselines3.common.noise import OrnsteinUhlenbeckActionNoise
from torch import Tensor

from manyseeds import envs, kernels
from manyseeds.algos import ddpg, sac, td3
from manyseeds.benchmarks.baselines import sb3_baseline
from manyseeds.optim import SeedAdam
from manyseeds.seeds import SeedStreams
from tests.algos import probes
from tests.algos.probes import Slider

SPEC = envs.make("Pendulum-v1").spec
SEEDS = [0, 1]
BASELINES = {"td3": sb3_baseline.TD3Baseline, "ddpg": sb3_baseline.DDPGBaseline}
BOTH = pytest.mark.parametrize("algo", [td3, ddpg], ids=["td3", "ddpg"])


def name_of(algo: ModuleType) -> str:
    return algo.__name__.rpartition(".")[2]


class Learner(NamedTuple):
    """What learns, and what it learns from, as `update` takes them."""

    actor: Any
    target_actor: Any
    critics: Any
    target_critics: Any
    of_actor: SeedAdam  # the optimizers
    of_critics: SeedAdam
    replay: Any


def learner_of(algo: Any, config: Any) -> Learner:
    """Two seeds that begin to learn, with targets of their own and a memory of random steps."""
    init = SeedStreams(SEEDS, "init")
    new = algo.Critics if algo is td3 else algo.Critic
    actors = [algo.Actor(SPEC, config, init) for _ in range(2)]
    critics = [new(SPEC, config, init) for _ in range(2)]
    optimizers = [SeedAdam(x) for x in (actors[0], critics[0])]
    replay = algo.Replay(2, 60, 3, 1, torch.device("cpu"))
    normal = partial(torch.randn, generator=torch.Generator().manual_seed(0))
    K = 40
    ends = normal(2, K) > 0.5
    replay.add(
        algo.Transitions(
            normal(2, K, 3), normal(2, K, 1).tanh(), 3 * normal(2, K), ends, normal(2, K, 3)
        )
    )
    return Learner(*actors, *critics, *optimizers, replay)


def drawn(algo: ModuleType, G: int, M: int) -> list[Tensor]:
    """What G updates draw."""
    streams = SeedStreams(SEEDS, "train")
    draws = [streams.uniform(G, M)]
    return [*draws, streams.normal(G, M, 1)] if algo is td3 else draws


def update(algo: Any, learner: Learner, draws: list[Tensor], config: Any, before: int = 0) -> Any:
    """The update of either."""
    steps = [before] if algo is td3 else []
    return algo.update(*learner, *draws, *steps, config)


def in_float64(learner: Learner) -> Learner:
    """The same, not yet trained, in float64."""
    for module in learner[:4]:
        module.double()
    learner.replay.rows = learner.replay.rows.double()
    return learner._replace(of_actor=SeedAdam(learner.actor), of_critics=SeedAdam(learner.critics))


def state_of(learner: Learner) -> list[Tensor]:
    """The parameters of all that learns."""
    return [p.detach() for module in learner[:4] for p in module.parameters()]


def settings_of(k: int, algo: ModuleType) -> dict[str, Any]:
    """Random hyperparameters."""
    draw = random.Random(k)
    both = {
        "learning_rate": 10 ** draw.uniform(-4, -2),
        "gamma": draw.uniform(0.5, 1.0),
        "tau": draw.choice([1.0, draw.uniform(0.001, 0.9)]),
        "batch_size": draw.randint(1, 40),
        "hidden": tuple(draw.choices([4, 16, 30], k=draw.randint(1, 3))),
    }
    of_td3 = {
        "policy_delay": draw.randint(1, 4),
        "target_policy_noise": draw.uniform(0.05, 1.0),
        "target_noise_clip": draw.uniform(0.0, 1.0),
    }
    return both | of_td3 if algo is td3 else both


# ---- Updates -----------------------------------------------------------------------------------


def test_td3s_target_by_hand() -> None:
    rewards = torch.tensor([[1.0, 2.0, 3.0]])
    terminated = torch.tensor([[False, True, False]])
    next_q = torch.tensor([[[3.0, 5.0, 1.0]], [[4.0, 9.0, -1.0]]])
    got = td3.td_target(rewards, terminated, next_q, 0.5)
    assert got.tolist() == [[2.5, 2.0, 2.5]]
    assert ddpg.td_target(rewards, terminated, next_q[1], 0.5).tolist() == [[3.0, 2.0, 2.5]]


def test_targets_actions_are_smoothed() -> None:
    """Noise is clipped first, then the action."""
    actions = torch.tensor([[[0.0], [0.0], [0.9], [-0.9]]])
    noise = torch.tensor([[[1.0], [-9.0], [9.0], [-1.0]]])
    got = td3.smoothed(actions, noise, 0.2, 0.5)
    torch.testing.assert_close(got, torch.tensor([[[0.2], [-0.5], [1.0], [-1.0]]]))
    per_seed = td3.smoothed(actions, noise, torch.tensor([0.1]), torch.tensor([0.3]))
    torch.testing.assert_close(per_seed, torch.tensor([[[0.1], [-0.3], [1.0], [-1.0]]]))


def into_sb3(learner: Learner, s: int, model: Any) -> None:
    """Give SB3's model the weights of a seed."""

    def fill(net: Any, ours: Any, k: int) -> None:
        linears = [x for x in net if isinstance(x, torch.nn.Linear)]
        for linear, weight, bias in zip(linears, ours.weights, ours.biases, strict=True):
            width = linear.out_features
            linear.weight.data.copy_(weight[s, k].T[:width].detach())
            linear.bias.data.copy_(bias[s, k, 0, :width].detach())

    fill(model.policy.actor.mu, learner.actor.net, 0)
    fill(model.policy.actor_target.mu, learner.target_actor.net, 0)
    for ours, theirs in (
        (learner.critics, model.critic),
        (learner.target_critics, model.critic_target),
    ):
        for k, q_net in enumerate(theirs.q_networks):
            fill(q_net, ours.q, k)


def twin_of(algo: ModuleType, learner: Learner, s: int, config: Any) -> Any:
    """SB3's model with the weights of a seed, in float64."""
    model: Any = sb3_baseline.build(BASELINES[name_of(algo)], config, s)
    model.set_logger(Logger(None, []))
    for net in (model.actor, model.actor_target, model.critic, model.critic_target):
        net.double()
    into_sb3(learner, s, model)
    return model


def with_samples(
    model: Any, batches: list[Any], noise: Tensor, s: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Let SB3's model learn from minibatches of seed s, with noise [G, M, D] of the target."""
    of_steps, now = iter(zip(batches, noise, strict=True)), []

    def sample(*args: Any, **kwargs: Any) -> Any:
        batch, now[:] = next(of_steps)
        ends, rewards = batch.terminated[s].double(), batch.rewards[s]
        states = {"observations": batch.obs[s], "next_observations": batch.next_obs[s]}
        scalars = {"rewards": rewards.unsqueeze(-1), "dones": ends.unsqueeze(-1)}
        return SimpleNamespace(actions=batch.actions[s], discounts=None, **states, **scalars)

    def normal_(x: Tensor, mean: float, std: float) -> Tensor:
        return x.copy_(mean + std * torch.stack(list(now)))

    monkeypatch.setattr(policies, "preprocess_obs", lambda obs, *args, **kwargs: obs)  # no floats
    monkeypatch.setattr(Tensor, "normal_", normal_)
    monkeypatch.setattr(model.replay_buffer, "sample", sample)


@BOTH
@pytest.mark.parametrize("k", range(20))
def test_updates_are_sb3s(algo: Any, k: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """In float64, on the same minibatches with the same noise: five steps of two seeds, in two
    updates."""
    config = algo.Config(quiet=True, **settings_of(k, algo))
    learner = in_float64(learner_of(algo, config))
    drawn_of_all = [x.double() for x in drawn(algo, 5, config.batch_size)]
    batches = [learner.replay.sample(uniforms) for uniforms in drawn_of_all[0].unbind(1)]
    models = [twin_of(algo, learner, s, config) for s in SEEDS]
    update(algo, learner, [x[:, :2] for x in drawn_of_all], config)
    update(algo, learner, [x[:, 2:] for x in drawn_of_all], config, before=2)
    zeros = drawn_of_all[0].new_zeros(2, 5, config.batch_size, 1)
    noise = drawn_of_all[1] if algo is td3 else zeros
    for s, model in zip(SEEDS, models, strict=True):
        with_samples(model, batches, noise[s], s, monkeypatch)
        model.train(2, config.batch_size)
        model.train(3, config.batch_size)
        compare(learner, s, model)


def compare(learner: Learner, s: int, model: Any) -> None:
    """Weights of a seed and of SB3's model."""
    nets = model.actor, model.actor_target, model.critic, model.critic_target
    theirs = [p for net in nets for p in net.parameters()]
    before = [p.detach().clone() for p in theirs]
    into_sb3(learner, s, model)
    for x, y in zip(before, theirs, strict=True):
        torch.testing.assert_close(x, y.detach(), rtol=1e-6, atol=1e-6)


@BOTH
@pytest.mark.skipif(kernels.library() is None, reason="no C compiler")
@pytest.mark.parametrize("k", [*range(10), "many samples"])
def test_an_update_in_c_is_that_of_the_file(algo: Any, k: Any) -> None:
    """In float64: metrics, weights and moments after three gradient steps."""
    many = {"batch_size": 300, "learning_rate": 1e-3, "hidden": (16, 16)}  # of several blocks
    config = algo.Config(**(many if k == "many samples" else settings_of(k, algo)))
    draws = drawn(algo, 3, config.batch_size)
    learner, exact = learner_of(algo, config), in_float64(learner_of(algo, config))
    found = update(algo, learner, draws, config, before=1)
    with kernels.off():
        expected = update(algo, exact, [x.double() for x in draws], config, before=1)
    assert found.keys() == expected.keys()
    pairs = zip(
        [*found.values(), *state_of(learner), learner.of_actor.square, learner.of_critics.mean],
        [*expected.values(), *state_of(exact), exact.of_actor.square, exact.of_critics.mean],
        strict=True,
    )
    for x, y in pairs:
        assert (x.dtype, y.dtype) == (torch.float32, torch.float64)
        torch.testing.assert_close(x.double(), y, rtol=2e-4, atol=2e-4, equal_nan=True)


@pytest.mark.usefixtures("computed")
def test_the_policy_moves_at_each_third_step() -> None:
    """And the targets with it, counted from the first update on."""
    config = td3.Config(hidden=(8,), batch_size=5, policy_delay=3)
    learner = learner_of(td3, config)
    moved = []
    for step in range(7):
        before = copy.deepcopy(state_of(learner))
        draws = [x[:, :1] for x in drawn(td3, 1, 5)]
        metrics = update(td3, learner, draws, config, before=step % 3)
        pairs = zip(before, state_of(learner), strict=True)
        changed = [not torch.equal(x, y) for x, y in pairs]
        # Weights and biases of two layers of each.
        actor, target_actor, critics, target_critics = (changed[i] for i in (0, 4, 8, 12))
        assert critics
        assert actor == target_actor == target_critics
        assert metrics["policy_q_values"].isnan().any().item() is not actor
        moved.append(actor)
    assert moved == [False, False, True, False, False, True, False]


@pytest.mark.skipif(kernels.library() is None, reason="no C compiler")
def test_a_delay_beyond_32_bits(capsys: pytest.CaptureFixture[str]) -> None:
    """C would read it as 0 and divide by it: PyTorch computes, and the policy stands still."""
    learner = learner_of(td3, config := td3.Config(hidden=(8,), batch_size=5, policy_delay=2**32))
    before = copy.deepcopy(state_of(learner))
    update(td3, learner, drawn(td3, 3, 5), config, before=2**32 - 4)
    assert "4,294,967,296 is too large for 32 bits" in capsys.readouterr().err
    pairs = zip(before[:4], state_of(learner)[:4], strict=True)  # the policy's parameters
    assert all(torch.equal(x, y) for x, y in pairs)


@BOTH
@pytest.mark.usefixtures("computed")
def test_a_saturated_policy_stays(algo: Any) -> None:
    """Its actions are +-1, where tanh is flat, as in SB3."""
    learner = learner_of(algo, config := algo.Config(hidden=(8,), batch_size=5))
    learner.actor.net.biases[-1].data[..., 0] = torch.tensor([[[12.0]], [[-15.0]]])
    before = copy.deepcopy(state_of(learner))
    update(algo, learner, drawn(algo, 4, 5), config)
    changed = [not torch.equal(x, y) for x, y in zip(before, state_of(learner), strict=True)]
    assert not any(changed[:4])  # the policy's parameters
    assert all(changed[8:12])  # those of its critics


@BOTH
@pytest.mark.usefixtures("computed")
def test_a_value_that_is_no_number_stays_one(algo: Any) -> None:
    """In all that its seed learns, and there alone."""
    config = algo.Config(hidden=(8,), batch_size=5)
    learner = learner_of(algo, config)
    learner.critics.q.biases[1].data[0, -1, 0, 0] = torch.nan
    metrics = update(algo, learner, drawn(algo, 2, 5), config)
    for name in ("critic_loss", "q_values"):
        assert metrics[name].isnan().tolist() == [True, False], name
    assert learner.actor.net.weights[0].detach()[1].isfinite().all()
    assert learner.critics.q.weights[0].detach()[0].isnan().any()


@BOTH
@pytest.mark.skipif(kernels.library() is None, reason="no C compiler")
@pytest.mark.parametrize("change", ["copy", "outputs", "steps", "seeds", "empty", "none"])
def test_what_c_must_not_take(algo: Any, change: str) -> None:
    """Copies of networks, other targets, an optimizer that counts, one seed of two, no memory, no
    minibatch: as PyTorch, or refused."""
    config = algo.Config(hidden=(8,), batch_size=5)
    found = []
    for torch_alone in (False, True):
        learner, draws = learner_of(algo, config), drawn(algo, 2, 5)
        if change == "copy":
            for critics in (learner.critics, learner.target_critics):
                critics.net = copy.deepcopy(critics.q)
        if change == "outputs":
            learner.target_actor.net.outputs = (16,)
        if change == "steps":
            learner.of_actor.steps = torch.zeros_like(learner.of_actor.beta_powers[0])
        if change == "seeds":
            draws = [x[:1] for x in draws]
        if change == "empty":
            learner.replay.added.zero_()
        if change == "none":
            draws = [x[:, :0] for x in draws]
        with kernels.off() if torch_alone else contextlib.nullcontext():
            try:
                update(algo, learner, draws, config)
            except (RuntimeError, IndexError, ValueError, UnboundLocalError):
                found.append([])
            else:
                found.append(state_of(learner))
    torch.testing.assert_close(*found)
    assert bool(found[1]) == (change in ("copy", "steps"))


@BOTH
def test_more_fields_of_transitions_are_no_fault(algo: Any) -> None:
    class Weighted(NamedTuple):
        obs: Tensor
        actions: Tensor
        rewards: Tensor
        terminated: Tensor
        next_obs: Tensor
        weights: Tensor | None = None

    learner = learner_of(algo, algo.Config(hidden=(8,)))
    before = learner.replay.rows.clone()
    one = torch.ones(2, 1)
    vectors = torch.ones(2, 1, 3)
    for ends in (one.bool(), one):
        learner.replay.add(Weighted(vectors, one.unsqueeze(-1), one, ends, vectors))
    assert (learner.replay.rows[:, 40:42] == 1).all()
    assert torch.equal(learner.replay.rows[:, :40], before[:, :40])


# ---- Noise to explore by -----------------------------------------------------------------------


@pytest.mark.parametrize("algo", [sac, td3, ddpg], ids=["sac", "td3", "ddpg"])
def test_the_process_is_sb3s(algo: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    config = algo.Config(noise_type="ornstein-uhlenbeck", noise_std=0.5)
    noise = algo.ActionNoise(config, 2, 1, torch.device("cpu"))
    path = torch.cat([noise.draw(SeedStreams(SEEDS, "train"), 20) for _ in range(2)], dim=1)
    given = SeedStreams(SEEDS, "train").normal(20, 1, 1).double()
    theirs = OrnsteinUhlenbeckActionNoise(np.zeros(1), np.full(1, 0.5))
    normals = iter(torch.cat((given, given), dim=1)[1].flatten().tolist())
    monkeypatch.setattr(np.random, "normal", lambda size: np.full(size, next(normals)))
    expected = torch.tensor(np.array([theirs() for _ in range(40)]))
    torch.testing.assert_close(path[1, :, 0].double(), expected.double(), rtol=1e-5, atol=1e-6)


def test_the_process_starts_anew_where_an_episode_ended() -> None:
    config = sac.Config(noise_type="ornstein-uhlenbeck", noise_std=0.5, num_envs=2)
    noise = sac.ActionNoise(config, 2, 1, torch.device("cpu"))
    noise.draw(SeedStreams(SEEDS, "train"), 5)
    before = noise.last.clone()
    done = torch.zeros(2, 5, 2, dtype=torch.bool)
    done[0, 3, 1] = True
    noise.end(done)
    expected = before.clone()
    expected[0, 1] = 0
    assert (before != 0).all()
    assert torch.equal(noise.last, expected)


@BOTH
@pytest.mark.usefixtures("computed")
@pytest.mark.parametrize("policy", ["Actor", "Uniform"])
def test_rollouts_are_acted_as_the_file_says(algo: Any, policy: str) -> None:
    """In C as in PyTorch, to rounding."""
    config = algo.Config(hidden=(16, 5), noise_std=0.5)
    env = config.make_env()
    actor = algo.Actor(env.spec, config, SeedStreams(SEEDS, "init"))
    acting: Any = actor if policy == "Actor" else algo.Uniform(actor)
    streams = SeedStreams(SEEDS, "train")
    draw = streams.normal if policy == "Actor" else streams.uniform
    state, obs = env.reset(streams.uniform(4, env.initial_noise))
    noise = draw(12, 4, 1), streams.uniform(12, 4, env.noise_size)
    *_, steps = envs.rollout(env, acting, state, obs, *noise)
    expected = acting.act(steps.obs.flatten(1, 2), noise[0].flatten(1, 2))
    torch.testing.assert_close(steps.actions.flatten(1, 2), expected)
    assert steps.actions.abs().max() <= 2
    assert (steps.actions.abs() == 2).any() == (policy == "Actor")  # clipped


# ---- The memory and the rhythm -----------------------------------------------------------------

SMALL: dict[str, Any] = {"total_timesteps": 64, "batch_size": 4, "hidden": (8,)}


@BOTH
@pytest.mark.parametrize(("terminal_at", "time_limit"), [(7, 5), (4, 9), (6, 6)])
def test_memory_holds_true_successors(
    algo: Any, terminal_at: int, time_limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Through training, over terminations, truncations, both at once, and a wrap-around; actions
    as numbers from -1 to 1."""
    memories = []
    add = algo.Replay.add

    def spy(memory: Any, new: Any) -> None:
        memories.append(memory)
        assert new.actions.abs().max() <= 1 + 1e-6
        add(memory, new)

    monkeypatch.setattr(algo.Replay, "add", spy)
    env = Slider(terminal_at, time_limit)
    settings = SMALL | {"learning_starts": 30, "buffer_size": 32, "num_envs": 3}
    probes.train_on(algo, env, monkeypatch, seeds=2, **settings)
    obs, next_obs, _, rewards, ends = memories[-1].rows.unbind(-1)
    assert torch.equal(next_obs, obs + 1)
    assert torch.equal(ends.bool(), next_obs >= terminal_at)
    assert (rewards == 1).all()


@pytest.mark.parametrize(
    ("settings", "updates", "before"),
    [
        # rounds of 8; learning begins with the first round that ends beyond 20: 24, ..., 64
        ({"train_freq": 8, "gradient_steps": 3}, 6 * [3], [0, 3, 6, 9, 12, 15]),
        ({"train_freq": 4, "num_envs": 2, "gradient_steps": -1}, 6 * [8], range(0, 48, 8)),
    ],
)
def test_rhythm_of_updates(
    settings: dict[str, Any],
    updates: list[int],
    before: list[int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """SB3's semantics of train_freq, gradient_steps, learning_starts and policy_delay; until then
    actions are uniform, whatever the policy."""
    counts, taken, acted = [], [], []
    update, rollout = td3.update, envs.rollout

    def spy(*args: Any) -> Any:
        counts.append(args[-4].shape[1])
        taken.append(args[-2])
        return update(*args)

    def played(env: Any, policy: Any, *args: Any) -> Any:
        acted.append(type(policy).__name__)
        return rollout(env, policy, *args)

    monkeypatch.setattr(td3, "update", spy)
    monkeypatch.setattr(envs, "rollout", played)
    settings = SMALL | {"learning_starts": 20, "policy_delay": 5} | settings
    probes.train_on(td3, Slider(), monkeypatch, seeds=2, **settings)
    assert counts == updates
    assert taken == [n % 5 for n in before]
    assert acted == 3 * ["Uniform"] + 5 * ["Actor"]
