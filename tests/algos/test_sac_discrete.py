"""SAC for discrete actions: the equations by hand, updates as the paper's, their rhythm."""

from __future__ import annotations

import math
import random
from functools import partial
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

from manyseeds import envs, kernels
from manyseeds.algos import sac_discrete
from manyseeds.optim import SeedAdam
from manyseeds.rows import stack
from manyseeds.seeds import SeedStreams
from tests.algos import probes
from tests.algos.probes import Counter, SignChoice

SPEC = envs.make("Acrobot-v1").spec  # 6 numbers, 3 actions
SEEDS = [0, 1]


class Learner(NamedTuple):
    """What learns, and what it learns from, as `sac_discrete.update` takes them."""

    actor: sac_discrete.Actor
    critics: sac_discrete.Critics
    target: sac_discrete.Critics
    temperature: sac_discrete.Temperature
    of_actor: SeedAdam  # the optimizers
    of_critics: SeedAdam
    of_temperature: SeedAdam
    replay: sac_discrete.Replay


def learner_of(config: sac_discrete.Config) -> Learner:
    """Two seeds that begin to learn, with a memory of random transitions."""
    init = SeedStreams(SEEDS, "init")
    actor = sac_discrete.Actor(SPEC, config, init)
    critics, target = (sac_discrete.Critics(SPEC, config, init) for _ in range(2))
    temperature = sac_discrete.Temperature(2, SPEC, config)
    optimizers = [SeedAdam(x) for x in (actor, critics, temperature)]
    replay = sac_discrete.Replay(2, 60, 6, torch.device("cpu"))
    generator = torch.Generator().manual_seed(0)
    normal, K = partial(torch.randn, generator=generator), 40
    actions = torch.randint(0, 3, (2, K), generator=generator)
    ends = normal(2, K) > 0.5
    new = normal(2, K, 6), actions, 3 * normal(2, K), ends, normal(2, K, 6)
    replay.add(sac_discrete.Transitions(*new))
    return Learner(actor, critics, target, temperature, *optimizers, replay)


def drawn(G: int, M: int) -> Tensor:
    """What G updates draw."""
    return SeedStreams(SEEDS, "train").uniform(G, M)


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


def settings_of(k: int) -> dict[str, Any]:
    """Random hyperparameters."""
    draw = random.Random(k)
    return {
        "learning_rate": 10 ** draw.uniform(-4, -2),
        "gamma": draw.uniform(0.5, 1.0),
        "tau": draw.choice([1.0, draw.uniform(0.001, 0.9)]),
        "alpha": draw.choice([0.0, draw.uniform(0.01, 1.0)]),
        "target_entropy": draw.uniform(0, 1),
        "batch_size": draw.randint(1, 40),
        "hidden": tuple(draw.choices([4, 16, 30], k=draw.randint(1, 3))),
    }


# ---- The equations, by hand --------------------------------------------------------------------

P = torch.tensor([[[0.25, 0.75], [0.5, 0.5], [1.0, 1e-30]]])  # [1, 3, 2]


def test_td_target_by_hand() -> None:
    """The lesser value of each action, by probabilities; nothing follows an end."""
    rewards = torch.tensor([[1.0, 2.0, 3.0]])
    terminated = torch.tensor([[False, True, False]])
    next_q = torch.tensor([[[4.0, 9.0], [1.0, 1.0], [2.0, 7.0]], [[8.0, 1.0], [1, 1], [6, 5]]])
    got = sac_discrete.td_target(rewards, terminated, next_q.unsqueeze(1), P.log(), 0.5, 0.5)
    entropy = -(0.25 * math.log(0.25) + 0.75 * math.log(0.75))
    value = 0.25 * 4 + 0.75 * 1 + 0.5 * entropy
    expected = [1 + 0.5 * value, 2, 3 + 0.5 * 2]
    torch.testing.assert_close(got, torch.tensor([expected]))


def test_actor_loss_by_hand() -> None:
    q_values = torch.tensor([[[4.0, 9.0], [1.0, 2.0]], [[8.0, 1.0], [3.0, 2.0]]]).unsqueeze(1)
    got = sac_discrete.actor_loss(P[:, :2].log(), q_values, torch.tensor([2.0]))
    first = 0.25 * (2 * math.log(0.25) - 4) + 0.75 * (2 * math.log(0.75) - 1)
    second = 2 * math.log(0.5) - 0.5 * (1 + 2)
    torch.testing.assert_close(got, torch.tensor([(first + second) / 2]))


def test_the_target_entropy_is_a_share_of_the_greatest() -> None:
    config = sac_discrete.Config(target_entropy=0.7)
    temperature = sac_discrete.Temperature(2, SPEC, config)
    assert temperature.target_entropy == pytest.approx(0.7 * math.log(3))
    uniform = torch.full((2, 5, 3), -math.log(3.0))
    temperature.loss(uniform).sum().backward()
    assert temperature.log_alpha.grad is not None
    excess = torch.full((2,), 0.3 * math.log(3))
    torch.testing.assert_close(temperature.log_alpha.grad.flatten(), excess)


@pytest.mark.parametrize(("q_gap", "sign"), [(0.0, -1), (10.0, 1)])
def test_the_temperature_rises_where_entropy_lacks(q_gap: float, sign: int) -> None:
    """And falls where there is too much of it."""
    temperature = sac_discrete.Temperature(2, SPEC, sac_discrete.Config(target_entropy=0.5))
    optimizer = SeedAdam(temperature)
    logprobs = torch.tensor([q_gap, 0.0, 0.0]).log_softmax(-1).expand(2, 5, 3)
    temperature.loss(logprobs).sum().backward()
    optimizer.step(0.1)
    assert (sign * (temperature() - 1) > 0).all()


@pytest.mark.parametrize("size", [0.0, 1e3, 1e30])
def test_large_logits(size: float) -> None:
    """A probability of 0 has no part in values and losses, and no gradient that is not finite."""
    logits = torch.tensor([[[size, -size, 0.0]]], requires_grad=True)
    logprobs = logits.log_softmax(-1)
    q_values = torch.tensor([[[[1.0, 2.0, 6.0]]]] * 2)
    loss = sac_discrete.actor_loss(logprobs, q_values, 0.1)
    expected = -1.0 if size else -3.0 - 0.1 * math.log(3)
    torch.testing.assert_close(loss, torch.tensor([expected]))
    loss.sum().backward()
    assert logits.grad is not None
    assert logits.grad.isfinite().all()
    nothing = torch.zeros(1, 1)
    y = sac_discrete.td_target(nothing, nothing.bool(), q_values, logprobs, 0.1, 1.0)
    torch.testing.assert_close(y.flatten(), -loss)


# ---- Updates -----------------------------------------------------------------------------------


class Reference:
    """One seed of the paper's algorithm, in float64, of torch's own layers and optimizers.

    With the weights and the memory of one of ours.
    """

    def __init__(self, learner: Learner, s: int, config: sac_discrete.Config) -> None:
        self.config = config
        self.actor = as_layers(learner.actor.net, s, 0)
        self.critics = [as_layers(learner.critics.q, s, k) for k in range(2)]
        self.targets = [as_layers(learner.target.q, s, k) for k in range(2)]
        self.log_alpha = torch.zeros((), dtype=torch.float64, requires_grad=True)
        of_critics = [p for net in self.critics for p in net.parameters()]
        self.optimizers = [
            torch.optim.Adam(parameters, lr=config.learning_rate)  # type: ignore[arg-type]
            for parameters in (self.actor.parameters(), of_critics, [self.log_alpha])
        ]

    def step(self, batch: sac_discrete.Transitions, s: int) -> dict[str, float]:
        """A gradient step; its metrics, by loops over samples and actions."""
        config, M = self.config, len(batch.rewards[s])
        alpha = config.alpha or self.log_alpha.exp().item()
        of_actor, of_critics, of_temperature = self.optimizers
        targets = []
        for i in range(M):
            y = batch.rewards[s, i].item()
            if not batch.terminated[s, i]:
                pi = self.actor(batch.next_obs[s, i]).softmax(0).tolist()
                q1, q2 = (net(batch.next_obs[s, i]).tolist() for net in self.targets)
                soft = [min(a, b) - alpha * math.log(p) for a, b, p in zip(q1, q2, pi, strict=True)]
                y += config.gamma * sum(p * v for p, v in zip(pi, soft, strict=True))
            targets.append(y)
        y, rows = torch.tensor(targets, dtype=torch.float64), torch.arange(M)
        values = [net(batch.obs[s])[rows, batch.actions[s]] for net in self.critics]
        critic_loss = sum((0.5 * nn.functional.mse_loss(q, y) for q in values), torch.zeros(()))
        step(of_critics, critic_loss)

        pi = self.actor(batch.obs[s]).softmax(-1)
        least = torch.minimum(*[net(batch.obs[s]) for net in self.critics]).detach()
        actor_loss = (pi * (alpha * pi.log() - least)).sum(-1).mean()
        entropy = -(pi * pi.log()).sum(-1).mean().detach()
        step(of_actor, actor_loss)
        if not config.alpha:
            greatest = math.log(pi.shape[-1])
            step(of_temperature, self.log_alpha * (entropy - config.target_entropy * greatest))
        with torch.no_grad():
            for target, net in zip(self.targets, self.critics, strict=True):
                for old, new in zip(target.parameters(), net.parameters(), strict=True):
                    old.lerp_(new, config.tau)
        mean = sum(q.mean().item() for q in values) / 2
        losses = {"critic_loss": critic_loss.item(), "actor_loss": actor_loss.item()}
        return {**losses, "q_values": mean, "entropy": entropy.item(), "alpha": alpha}


def step(optimizer: torch.optim.Optimizer, loss: Any) -> None:
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def as_layers(net: Any, s: int, k: int) -> nn.Sequential:
    """Network k of a seed, of torch's layers in float64."""
    layers: list[nn.Module] = []
    for weight, bias in zip(net.weights, net.biases, strict=True):
        width = net.outputs[k] if weight is net.weights[-1] else weight.shape[-1]
        layers.append(nn.Linear(weight.shape[2], width, dtype=torch.float64))
        layers[-1].weight.data.copy_(weight[s, k, :, :width].T.detach())  # type: ignore[operator]
        layers[-1].bias.data.copy_(bias[s, k, 0, :width].detach())  # type: ignore[operator]
        layers.append(nn.ReLU())
    return nn.Sequential(*layers[:-1])


@pytest.mark.parametrize("k", range(20))
def test_updates_are_the_papers(k: int) -> None:
    """In float64, on the same minibatches: three steps of two seeds."""
    config, G = sac_discrete.Config(**settings_of(k)), 3
    learner = in_float64(learner_of(config))
    draws = drawn(G, config.batch_size).double()
    batches = [learner.replay.sample(uniforms) for uniforms in draws.unbind(1)]
    references = [Reference(learner, s, config) for s in SEEDS]
    metrics = sac_discrete.update(*learner, draws, config)
    close = partial(torch.testing.assert_close, rtol=1e-6, atol=1e-6)
    for s, reference in zip(SEEDS, references, strict=True):
        found = [reference.step(batch, s) for batch in batches][-1]
        for name, value in found.items():
            close(metrics[name][s].item(), value)
        theirs = [reference.actor, *reference.critics, *reference.targets]
        nets = (learner.actor.net, 0), *((x.q, k) for x in learner[1:3] for k in range(2))
        for net, (ours, which) in zip(theirs, nets, strict=True):
            pairs = zip(net.parameters(), as_layers(ours, s, which).parameters(), strict=True)
            for x, y in pairs:
                close(y, x)
        close(learner.temperature.log_alpha[s].detach().squeeze(), reference.log_alpha.detach())


@pytest.mark.skipif(kernels.library() is None, reason="no C compiler")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("k", [*range(10), "many samples"])
def test_an_update_in_c_is_that_of_the_file(k: Any, dtype: torch.dtype) -> None:
    """Metrics, weights and moments after three gradient steps."""
    many = {"batch_size": 300, "learning_rate": 1e-3, "hidden": (16, 16)}  # of several blocks
    config = sac_discrete.Config(**(many if k == "many samples" else settings_of(k)))
    draws = drawn(3, config.batch_size)
    learner, other = learner_of(config), learner_of(config)
    if dtype == torch.float64:
        other = in_float64(other)
    found = sac_discrete.update(*learner, draws, config)
    with kernels.off():
        expected = sac_discrete.update(*other, draws.to(dtype), config)
    assert found.keys() == expected.keys()
    pairs = zip(
        [*found.values(), *state_of(learner), learner.of_actor.square, learner.of_critics.mean],
        [*expected.values(), *state_of(other), other.of_actor.square, other.of_critics.mean],
        strict=True,
    )
    for x, y in pairs:
        assert (x.dtype, y.dtype) == (torch.float32, dtype)
        torch.testing.assert_close(x.to(dtype), y, rtol=2e-4, atol=2e-4)


@pytest.mark.skipif(kernels.library() is None, reason="no C compiler")
def test_rows_in_c_have_their_own_hyperparameters() -> None:
    """Two rows of one seed are what each is alone, to the bit."""
    hyperparameters: list[dict[str, Any]] = [
        {"learning_rate": 1e-3, "gamma": 0.9, "tau": 0.5, "target_entropy": 0.2},
        {"learning_rate": 1e-2, "gamma": 0.5, "tau": 0.1, "target_entropy": 0.9},
    ]
    configs = [sac_discrete.Config(hidden=(16,), **x) for x in hyperparameters]
    draws = drawn(3, 16)
    learners = [learner_of(config) for config in (stack(configs), *configs)]
    for learner, config in zip(learners, (stack(configs), *configs), strict=True):
        sac_discrete.update(*learner, draws, config)
    together, *alone = map(state_of, learners)
    for s, own in enumerate(alone):
        for x, y in zip(together, own, strict=True):
            assert torch.equal(x[s], y[s])


@pytest.mark.usefixtures("computed")
def test_equal_critics_are_one() -> None:
    """Both learn the same, and stay equal."""
    learner = learner_of(config := sac_discrete.Config(hidden=(8,), batch_size=5))
    for module in learner[1:3]:
        for p in module.parameters():
            p.data[:, 1] = p.data[:, 0]
    metrics = sac_discrete.update(*learner, drawn(3, 5), config)
    assert all(x.isfinite().all() for x in metrics.values())
    for p in (*learner.critics.parameters(), *learner.target.parameters()):
        assert torch.equal(p[:, 0], p[:, 1])


@pytest.mark.usefixtures("computed")
@pytest.mark.parametrize("size", [1e3, 1e30])
def test_an_update_of_a_policy_with_large_logits(size: float) -> None:
    """It is certain of an action: the entropy is 0, and all numbers are finite."""
    learner = learner_of(config := sac_discrete.Config(hidden=(8,), batch_size=5))
    learner.actor.net.biases[-1].data[:, :, :, 1] = size
    metrics = sac_discrete.update(*learner, drawn(2, 5), config)
    assert (metrics["entropy"] == 0).all()
    assert all(x.isfinite().all() for x in [*metrics.values(), *state_of(learner)])


@pytest.mark.usefixtures("computed")
def test_a_value_that_is_no_number_stays_one() -> None:
    """In all that its seed learns, and there alone."""
    learner = learner_of(config := sac_discrete.Config(hidden=(8,), batch_size=5))
    learner.critics.q.biases[1].data[0, 1, 0, 0] = torch.nan
    metrics = sac_discrete.update(*learner, drawn(2, 5), config)
    for name in ("critic_loss", "actor_loss", "q_values", "entropy"):
        assert metrics[name].isnan().tolist() == [True, False], name
    weights = learner.actor.net.weights[0].detach()
    assert weights[0].isnan().any()
    assert weights[1].isfinite().all()


@pytest.mark.usefixtures("computed")
def test_a_value_of_an_end_that_is_no_number_is_not_multiplied_away() -> None:
    learner = learner_of(config := sac_discrete.Config(hidden=(8,), batch_size=5))
    learner.target.q.biases[0].data[0] = torch.nan
    learner.replay.rows[..., -1] = 1
    metrics = sac_discrete.update(*learner, drawn(1, 5), config)
    assert metrics["critic_loss"].isnan().tolist() == [True, False]


@pytest.mark.usefixtures("computed")
@pytest.mark.parametrize("alpha", [0.3, 1e-50])
def test_a_given_alpha_is_not_learned(alpha: float) -> None:
    """Even where it is 0 in float32."""
    learner = learner_of(config := sac_discrete.Config(hidden=(8,), batch_size=5, alpha=alpha))
    metrics = sac_discrete.update(*learner, drawn(1, 5), config)
    torch.testing.assert_close(metrics["alpha"], torch.full((2,), alpha))
    assert (learner.temperature.log_alpha == 0).all()


# ---- The memory, the rhythm, and whether it learns ----------------------------------------------


train_on = partial(probes.train_on, sac_discrete, seeds=2)
SMALL: dict[str, Any] = {"total_timesteps": 60, "batch_size": 4, "hidden": (8,)}


@pytest.mark.parametrize(("terminal_at", "time_limit"), [(7, 5), (4, 9), (6, 6)])
def test_memory_holds_true_successors(
    terminal_at: int, time_limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Through training, over terminations, truncations, both at once, and a wrap-around."""
    memories = []
    add = sac_discrete.Replay.add

    def spy(memory: Any, new: Any) -> None:
        memories.append(memory)
        assert set(new.actions.unique().tolist()) <= {0, 1}
        add(memory, new)

    monkeypatch.setattr(sac_discrete.Replay, "add", spy)
    env = Counter(terminal_at, time_limit)
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
    acted: list[str] = []
    update, rollout = sac_discrete.update, envs.rollout

    def spy(*args: Any) -> Any:
        counts.append(args[-2].shape[1])
        return update(*args)

    def played(env: Any, policy: Any, *args: Any) -> Any:
        acted.append(type(policy).__name__)
        return rollout(env, policy, *args)

    monkeypatch.setattr(sac_discrete, "update", spy)
    monkeypatch.setattr(envs, "rollout", played)
    settings = SMALL | {"total_timesteps": 64, "learning_starts": 20} | settings
    train_on(Counter(), monkeypatch, **settings)
    assert counts == updates
    assert acted == 3 * ["Uniform"] + 5 * ["Actor"]


@pytest.mark.usefixtures("computed")
@pytest.mark.parametrize("policy", ["Actor", "Uniform"])
def test_rollouts_are_acted_as_the_file_says(policy: str) -> None:
    """In C as in PyTorch; each action as often as its probability says."""
    config = sac_discrete.Config(env="Acrobot-v1", hidden=(16, 5))
    env = config.make_env()
    actor = sac_discrete.Actor(env.spec, config, SeedStreams(SEEDS, "init"))
    acting: Any = actor if policy == "Actor" else sac_discrete.Uniform(actor)
    streams = SeedStreams(SEEDS, "train")
    state, obs = env.reset(streams.uniform(4, env.initial_noise))
    noise = acting.draw(streams, 500, 4), streams.uniform(500, 4, env.noise_size)
    *_, steps = envs.rollout(env, acting, state, obs, *noise)
    expected = acting.act(steps.obs.flatten(1, 2), noise[0].flatten(1, 2))
    assert torch.equal(steps.actions.flatten(1, 2), expected)
    shares = nn.functional.one_hot(expected, 3).float().mean(1)
    third = torch.full((2, 3), 1 / 3)
    probable = actor.logprobs(steps.obs.flatten(1, 2)).exp().mean(1).detach()
    torch.testing.assert_close(shares, probable if policy == "Actor" else third, atol=0.04, rtol=0)


def test_the_policy_learns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which of two actions a sign asks for: all of ten seeds, in a second."""
    settings = {"train_freq": 8, "gradient_steps": 8, "batch_size": 32, "learning_starts": 64}
    settings |= {"total_timesteps": 800, "target_entropy": 0.2}
    policy, _ = probes.train_on(
        sac_discrete, SignChoice(), monkeypatch, 10, hidden=(16,), learning_rate=1e-2, **settings
    )
    signs = torch.tensor([-1.0, 1.0]).view(1, 2, 1).expand(10, 2, 1)
    assert policy.act(signs).tolist() == 10 * [[0, 1]]
