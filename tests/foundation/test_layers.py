"""Networks and statistics with a seed axis, against torch.nn, numpy and SB3."""

from __future__ import annotations

import copy
import math
from itertools import pairwise
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from stable_baselines3.common.running_mean_std import RunningMeanStd
from stable_baselines3.common.vec_env import VecEnv, VecNormalize
from torch import Tensor, nn

from manyseeds import kernels
from manyseeds.distributions import Categorical, Gaussian
from manyseeds.envs import EnvSpec
from manyseeds.kernels import mlp
from manyseeds.kernels.binding import CannotTake
from manyseeds.layers import RewardScale, RunningStats, SeedMLP, SeedPolicy, orthogonal
from manyseeds.optim import SeedAdam
from manyseeds.seeds import SeedStreams

BATCHES = (7, 32, 1, 100)  # samples of successive updates


def samples(S: int, B: int, size: int, offset: int = 0) -> Tensor:
    """Normal samples [S, B, size] whose mean and scale depend on seed, component and batch."""
    generator = torch.Generator().manual_seed(1000 * offset + B)
    x = torch.randn(S, B, size, generator=generator)
    seed, component = torch.arange(S).view(S, 1, 1), torch.arange(size)
    return x * (1 + seed + component) + 10 * component - 5 * seed + offset


def stream(S: int, size: int) -> list[Tensor]:
    return [samples(S, B, size, k) for k, B in enumerate(BATCHES)]


# ---- RunningStats -----------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 3, 17])
def test_running_statistics_are_those_of_everything_seen(size: int) -> None:
    """Mean and population variance, per seed, after every one of several updates."""
    stats, parts = RunningStats(3, size), stream(3, size)
    for k, x in enumerate(parts, 1):
        stats.update(x)
        seen = torch.cat(parts[:k], dim=1).double().numpy()
        np.testing.assert_allclose(stats.mean[:, 0], seen.mean(1), rtol=0, atol=1e-10)
        np.testing.assert_allclose(stats.var[:, 0], seen.var(1), rtol=1e-10, atol=1e-10)
        assert (stats.count == sum(BATCHES[:k])).all()


def test_running_statistics_survive_a_large_mean() -> None:
    """E[x^2] - E[x]^2 in float32 would be nothing but rounding here."""
    generator = torch.Generator().manual_seed(0)
    stats, seen = RunningStats(1, 1), []
    for _ in range(50):
        x = 1e4 + torch.randn(1, 64, 1, generator=generator)
        stats.update(x)
        seen.append(x)
    expected = torch.cat(seen, dim=1).double().var(correction=0).item()
    assert stats.var.item() == pytest.approx(expected, rel=1e-10)


def test_a_masked_update_is_one_of_the_samples_in_the_mask() -> None:
    """Seed by seed, whatever the others are; one without samples keeps its bits."""
    stats, seen = RunningStats(4, 3), [[] for _ in range(4)]  # type: ignore[var-annotated]
    generator = torch.Generator().manual_seed(0)
    for k, x in enumerate(stream(4, 3)):
        share = torch.tensor([1.0, 0.5, 0.1, 0.0 if k != 1 else 0.5]).view(4, 1)
        mask = torch.rand(x.shape[:2], generator=generator) < share
        before = {name: tensor.clone() for name, tensor in stats.state_dict().items()}
        stats.update(x.masked_fill(~mask.unsqueeze(-1), torch.nan), mask)
        for s in range(4):
            seen[s].append(x[s][mask[s]].double().numpy())
            everything = np.concatenate(seen[s])
            if not mask[s].any():
                for name, tensor in before.items():
                    assert torch.equal(stats.state_dict()[name][s], tensor[s])
            if len(everything):
                np.testing.assert_allclose(stats.mean[s, 0], everything.mean(0), atol=1e-10)
                np.testing.assert_allclose(stats.var[s, 0], everything.var(0), rtol=1e-10)
                assert stats.count[s].item() == len(everything)
    assert (stats.count[3] > 0).all()


def test_statistics_begin_as_the_identity() -> None:
    """And clip from the first observation on; one sample has no variance, which is no NaN."""
    stats = RunningStats(2, 3)
    x = torch.tensor([-30.0, -9.5, 0.25]).expand(2, 4, 3)
    expected = torch.tensor([-10.0, -9.5, 0.25]).expand(2, 4, 3)
    torch.testing.assert_close(stats.normalize(x), expected, atol=1e-6, rtol=1e-6)
    stats.update(x[:, :1])
    assert torch.equal(stats.mean[:, 0], x[:, 0].double())
    assert (stats.var == 0).all()
    torch.testing.assert_close(stats.normalize(x[:, :1]), torch.zeros(2, 1, 3), atol=1e-2, rtol=0)


def test_normalisation_is_sb3s() -> None:
    """(x - mean) / sqrt(var + 1e-8), clipped to +-10; SB3 counts 1e-4 samples before the first."""
    stats, theirs = RunningStats(2, 4), [RunningMeanStd(epsilon=0.0, shape=(4,)) for _ in range(2)]
    for x in stream(2, 4):
        stats.update(x)
        for s, reference in enumerate(theirs):
            reference.update(x[s].double().numpy())
    x = samples(2, 50, 4, offset=9) * 3
    before = {name: tensor.clone() for name, tensor in stats.state_dict().items()}
    outputs = stats.normalize(x)
    assert list(before) == ["mean", "var", "count"]
    assert all(torch.equal(stats.state_dict()[name], x) for name, x in before.items())  # unmoved
    assert outputs.dtype == torch.float32
    assert (outputs.abs() == 10).any()
    for s, reference in enumerate(theirs):
        normalizer = Scripted.normalizer(np.zeros((1, 1)), np.zeros((1, 1), dtype=bool))
        expected = normalizer._normalize_obs(x[s].numpy(), reference)
        np.testing.assert_allclose(outputs[s], expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("size", [1, 4, 17])
def test_a_seeds_statistics_have_the_same_bits_in_any_batch(size: int, masked: bool) -> None:
    """Alone as among 32: var() rounds otherwise for one seed."""
    x, generator = stream(32, size), torch.Generator().manual_seed(1)
    masks = [torch.rand(part.shape[:2], generator=generator) < 0.7 for part in x]
    among, alone = RunningStats(32, size), [RunningStats(1, size) for _ in range(32)]
    for part, mask in zip(x, masks, strict=True):
        among.update(part, mask if masked else None)
        for s, stats in enumerate(alone):
            stats.update(part[s : s + 1].clone(), mask[s : s + 1] if masked else None)
    outputs = among.normalize(x[-1])
    for s, stats in enumerate(alone):
        for name, tensor in stats.state_dict().items():
            assert torch.equal(tensor[0], among.state_dict()[name][s]), (name, s)
        assert torch.equal(stats.normalize(x[-1][s : s + 1].clone())[0], outputs[s])


# ---- RewardScale ------------------------------------------------------------------------


class Scripted(VecEnv):
    """Plays given rewards and ends, each [T, N], to SB3's VecNormalize."""

    def __init__(self, rewards: np.ndarray, done: np.ndarray) -> None:
        box = gym.spaces.Box(-1, 1, (1,))
        super().__init__(rewards.shape[1], box, box)
        self.rewards, self.done, self.t = rewards, done, 0

    @classmethod
    def normalizer(cls, rewards: np.ndarray, done: np.ndarray, gamma: float = 0.9) -> VecNormalize:
        wrapped = VecNormalize(cls(rewards, done), gamma=gamma)
        wrapped.ret_rms.count = 0.0  # SB3 begins with 1e-4 samples of mean 0 and variance 1
        wrapped.reset()
        return wrapped

    def reset(self) -> Any:
        return np.zeros((self.num_envs, 1), dtype=np.float32)

    def step_wait(self) -> Any:
        t, self.t = self.t, self.t + 1
        return self.reset(), self.rewards[t], self.done[t], [{} for _ in range(self.num_envs)]

    step_async = close = env_is_wrapped = env_method = set_attr = lambda self, *args: None

    def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
        return [None] * self.num_envs


def rewards_and_ends(S: int, T: int, N: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(4)
    rewards = torch.randn(S, T, N, generator=generator) * (1 + torch.arange(S).view(S, 1, 1))
    return rewards, torch.rand(S, T, N, generator=generator) < 0.15


def test_reward_scale_is_sb3s_given_the_same_stream() -> None:
    """Step by step: the same scaled rewards, discounted returns and variance."""
    S, N, T, rollouts, gamma = 3, 4, 10, 5, 0.9
    rewards, done = rewards_and_ends(S, T * rollouts, N)
    assert (done.view(S, rollouts, T, N)[:, :, -1].any(-1) != done[:, T - 1 :: T].all(-1)).any()
    rewards[:, 33, 1], done[:, 33, 1] = 1000.0, True  # clipped
    rewards[:, 0], done[:, :2] = -1.0, False  # the first returns do not vary: clipped too
    scale, clipped = RewardScale(S, N, gamma), torch.zeros(S)
    theirs = [Scripted.normalizer(rewards[s].numpy(), done[s].numpy(), gamma) for s in range(S)]
    for part, ends in zip(rewards.split(T, 1), done.split(T, 1), strict=True):
        scaled = scale(part, ends)
        for s, normalizer in enumerate(theirs):
            expected = np.stack([normalizer.step(np.zeros((N, 1)))[1] for _ in range(T)])
            np.testing.assert_allclose(scaled[s], expected, rtol=1e-5, atol=1e-6)
            np.testing.assert_allclose(scale.open_return[s], normalizer.returns, rtol=1e-5)
            assert scale.stats.mean[s].item() == pytest.approx(normalizer.ret_rms.mean, rel=1e-5)
            assert scale.stats.var[s].item() == pytest.approx(normalizer.ret_rms.var, rel=1e-5)
            assert scale.stats.count[s].item() == normalizer.ret_rms.count
        clipped += (scaled.abs() == 10).sum(dim=(1, 2))
    assert scaled.dtype == torch.float32
    assert clipped.tolist() == [N + 1] * S


def test_rewards_are_divided_but_not_centered_and_clipped() -> None:
    """All rewards 1: the sign and the order of rewards stay, and the middle is not moved."""
    scale = RewardScale(1, 2, gamma=0.5)
    done = torch.zeros(1, 4, 2, dtype=torch.bool)
    returns = torch.tensor([1.0, 1.5, 1.75, 1.875], dtype=torch.float64)
    scaled = scale(torch.ones(1, 4, 2), done)
    std = torch.stack([returns[: t + 1].std(correction=0) for t in range(4)])
    expected = (1 / std).clamp(max=10).float()  # of the first step, which does not vary, 10
    torch.testing.assert_close(scaled, expected.view(1, 4, 1).expand(1, 4, 2))
    assert (scale(torch.zeros(1, 4, 2), done) == 0).all()
    spike = torch.zeros(1, 200, 2)
    spike[0, 100, 0] = -1.0  # 20 standard deviations
    scaled = RewardScale(1, 2, gamma=0.5)(spike, torch.ones(1, 200, 2, dtype=torch.bool))
    assert scaled[0, 100, 0] == -10
    assert (scaled == 0).sum() == 399
    equal = torch.full((1, 99, 1), 1e7 / 3)  # rounding must not make their variance negative
    assert (RewardScale(1, 1, gamma=0.0)(equal, torch.ones(1, 99, 1).bool()) == 10).all()


# ---- SeedMLP ----------------------------------------------------------------------------

SHAPES: list[dict[str, Any]] = [
    {"outputs": (3, 1), "hidden": (64, 32)},
    {"outputs": (17, 1), "hidden": (16,)},  # padded to 32 columns
    {"outputs": (2, 5, 1), "hidden": ()},  # no hidden layer at all
]


def network(S: int, activation: str = "tanh", **shape: Any) -> SeedMLP:
    net = SeedMLP(S, 4, activation=activation, **shape)
    net.orthogonal_init(SeedStreams(range(S), "init"), gains=range(1, len(shape["outputs"]) + 1))
    return net


def plain(net: SeedMLP, s: int, k: int) -> nn.Sequential:
    """Network k of seed s as torch.nn layers in float64."""
    width = net.outputs[k]
    modules: list[nn.Module] = []
    for layer, (weight, bias) in enumerate(zip(net.weights, net.biases, strict=True)):
        last = layer == len(net.weights) - 1
        w, b = weight[s, k], bias[s, k, 0]
        w, b = (w[:, :width], b[:width]) if last else (w, b)
        linear = nn.Linear(*w.shape).double()
        linear.weight.data, linear.bias.data = w.detach().mT.double(), b.detach().double()
        modules += [linear] if last else [linear, nn.Tanh()]
    return nn.Sequential(*modules)


@pytest.mark.parametrize("shape", SHAPES)
def test_a_network_is_torchs(shape: dict[str, Any]) -> None:
    """Outputs of all heads and of one alone, and the gradient of all heads together."""
    net = network(2, **shape).double()
    for p in net.biases:
        p.data.normal_(generator=torch.Generator().manual_seed(0))
    x = samples(2, 20, 4).double() / 10
    outputs = net(x)
    weights = [torch.randn(20, w, dtype=torch.float64) for w in shape["outputs"]]
    sum((y * w).sum() for y, w in zip(outputs, weights, strict=True)).backward()  # type: ignore[union-attr]
    grads = torch.zeros_like(net.weights[0].data)
    for s in range(2):
        for k, width in enumerate(shape["outputs"]):
            reference = plain(net, s, k)
            expected = reference(x[s])
            assert outputs[k].shape == (2, 20, width)
            torch.testing.assert_close(outputs[k][s], expected, atol=1e-12, rtol=1e-12)
            torch.testing.assert_close(net.only(k, x)[s], expected, atol=1e-12, rtol=1e-12)
            (expected * weights[k]).sum().backward()
            first = reference[0].weight.grad
            assert isinstance(first, Tensor)
            grads[s, k, :, : len(first)] = first.mT
    assert net.weights[0].grad is not None
    torch.testing.assert_close(net.weights[0].grad, grads, atol=1e-10, rtol=1e-10)


@pytest.mark.usefixtures("computed")
@pytest.mark.parametrize("shape", SHAPES)
def test_sizes_and_padding(shape: dict[str, Any]) -> None:
    """Padding is 0 and stays 0."""
    net, S = network(2, **shape), 2
    outputs, hidden = shape["outputs"], shape["hidden"]
    K, widest = len(outputs), math.ceil(max(outputs) / 16) * 16
    sizes = (4, *hidden, widest)
    pairs = list(pairwise(sizes))
    assert [tuple(w.shape) for w in net.weights] == [(S, K, i, o) for i, o in pairs]
    assert [tuple(b.shape) for b in net.biases] == [(S, K, 1, o) for _, o in pairs]
    assert sum(p.numel() for p in net.parameters()) == S * K * sum(i * o + o for i, o in pairs)

    used = torch.zeros(K, widest, dtype=torch.bool)
    for k, width in enumerate(outputs):
        used[k, :width] = True
    optimizer = SeedAdam(net)
    for _ in range(3):
        sum(y.square().sum() for y in net(torch.ones(S, 5, 4))).backward()  # type: ignore[union-attr]
        optimizer.step(0.1, max_grad_norm=1.0)
    assert (net.weights[-1].mT[:, ~used] == 0).all()
    assert (net.biases[-1][:, :, 0][:, ~used] == 0).all()
    assert (net.weights[-1].mT[:, used].abs().sum(-1) > 0).all()


@pytest.mark.parametrize("shape", SHAPES)
def test_orthogonal_initialisation_has_a_gain_for_each_network(shape: dict[str, Any]) -> None:
    net = network(2, **shape)  # gains 1, 2, ...
    for weight in net.weights[:-1]:
        for matrix in weight.flatten(0, 1):
            tall = matrix if matrix.shape[0] >= matrix.shape[1] else matrix.mT
            eye = 2 * torch.eye(tall.shape[1])
            torch.testing.assert_close(tall.mT @ tall, eye, atol=1e-4, rtol=0)
    for k, width in enumerate(net.outputs):
        for matrix in net.weights[-1][:, k, :, :width]:
            tall = matrix if matrix.shape[0] >= matrix.shape[1] else matrix.mT
            eye = (k + 1) ** 2 * torch.eye(tall.shape[1])
            torch.testing.assert_close(tall.mT @ tall, eye, atol=1e-4, rtol=0)
    assert all((bias == 0).all() for bias in net.biases)


def test_networks_are_initialised_one_after_the_other() -> None:
    net = network(2, outputs=(3, 1), hidden=(64, 32))
    streams = SeedStreams(range(2), "init")
    shapes = [(4, 64), (64, 32), (32, 3), (4, 64), (64, 32), (32, 1)]
    found = [orthogonal(streams.normal(*shape)) for shape in shapes]
    expected = [*net.weights[:-1], net.weights[-1][..., :3]]
    for got, want, gain in zip(expected, found, (2**0.5, 2**0.5, 1), strict=False):
        torch.testing.assert_close(got[:, 0], want * gain)
    torch.testing.assert_close(net.weights[-1][:, 1, :, :1], found[-1] * 2)
    torch.testing.assert_close(net.weights[0][:, 1], found[3] * 2**0.5)


@pytest.mark.parametrize("shape", SHAPES)
def test_uniform_initialisation_is_torchs(shape: dict[str, Any]) -> None:
    """Weights and biases of every network within 1 / sqrt(in), and not a fraction of it."""
    net = SeedMLP(2, 4, activation="relu", **shape)
    net.uniform_init(SeedStreams(range(2), "init"))
    layers = list(zip(net.weights, net.biases, strict=True))
    for k, width in enumerate(net.outputs):
        for layer, (weight, bias) in enumerate(layers):
            used = width if layer == len(layers) - 1 else None
            w, b = weight[:, k, :, :used], bias[:, k, :, :used]
            bound = 1 / math.sqrt(w.shape[1])
            for x in (w, b):
                assert (x.abs() <= bound).all()
                assert (x != 0).all()
            if w.numel() > 100:
                assert w.abs().max() > 0.95 * bound
            assert not torch.equal(w[0], w[1])


class Direct(SeedPolicy):
    """Logits or means are what the networks would see."""

    def policy(self, obs: Tensor) -> Categorical | Gaussian:
        return self.distribution(self.features(obs))


def test_a_policy_of_continuous_actions() -> None:
    spec = EnvSpec("Plane", 10, obs_size=2, action_low=(-1, -1), action_high=(1, 1))
    policy = Direct(3, spec, normalize_obs=True)
    policy.log_std = nn.Parameter(torch.full((3, 1, 1, 2), -1.0))
    obs = 5 + 2 * torch.randn(3, 50, 2, generator=torch.Generator().manual_seed(0))
    assert policy.obs_stats is not None
    policy.obs_stats.update(obs)
    seen = policy.act(obs)
    torch.testing.assert_close(seen.mean(1), torch.zeros(3, 2), atol=1e-5, rtol=0)
    noise = policy.draw(SeedStreams([0, 1, 2], "train"), 50)
    assert torch.equal(noise, SeedStreams([0, 1, 2], "train").normal(50, 2))
    torch.testing.assert_close(policy.act(obs, noise), seen + math.exp(-1) * noise)


def test_a_policy_of_discrete_actions() -> None:
    policy = Direct(3, EnvSpec("Choice", 10, num_actions=4, obs_size=4), normalize_obs=False)
    obs = torch.randn(3, 50, 4, generator=torch.Generator().manual_seed(0))
    noise = policy.draw(SeedStreams([0, 1, 2], "train"), 50)
    assert torch.equal(noise, SeedStreams([0, 1, 2], "train").gumbel(50, 4))
    assert torch.equal(policy.act(obs), obs.argmax(-1))
    assert torch.equal(policy.act(obs, noise), (obs + noise).argmax(-1))


def test_indices_are_no_input() -> None:
    """Of a policy that was loaded, say: `act` with states."""
    net = SeedMLP(2, 5, (4,), (3,), "relu")
    with pytest.raises(ValueError, match=r"an input of torch\.int64, must be vectors of floats"):
        net.only(0, torch.zeros(2, 5, dtype=torch.int64))


@pytest.mark.skipif(kernels.library() is None, reason="no C compiler")
def test_networks_are_described_to_c_as_they_are_now() -> None:
    """Put together once, but not beyond a change of what is described."""
    net = SeedMLP(2, 3, (4,), (1,), "relu")
    described = mlp.struct(net)
    assert mlp.struct(net) is described
    net.activation = "tanh"
    assert mlp.struct(net).activation != described.activation
    net.activation = "relu"
    assert mlp.struct(net) is described
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "get_num_threads", lambda: 3)
        assert mlp.struct(net).threads == 3
    for p in net.parameters():
        p.data = p.data.clone()
    assert mlp.struct(net) is not described
    optimizer = SeedAdam(net)
    assert mlp.struct(net, optimizer).size == optimizer.params.shape[1]
    assert mlp.struct(copy.deepcopy(net)) is not mlp.struct(net)
    net.weights[0] = nn.Parameter(net.weights[0].data)  # which the optimizer does not know
    with pytest.raises(CannotTake, match="not among those that the optimizer trains"):
        mlp.struct(net, optimizer)
    assert mlp.struct(net).seeds == 2
    for p in net.parameters():
        p.data = p.data[:1]
    assert mlp.struct(net).seeds == 1
    for _ in range(20):
        mlp.struct(net, SeedAdam(net))
    assert len(net.structs) <= 8


@pytest.mark.skipif(kernels.library() is None, reason="no C compiler")
def test_normalised_layers_are_not_for_every_kernel() -> None:
    """One without a place for the gradients of gains and shifts would write behind its memory."""
    net = SeedMLP(2, 3, (4,), (1,), "relu", layer_norm=True)
    optimizer = SeedAdam(net)
    with pytest.raises(CannotTake, match="layer normalisation is not trained by this kernel"):
        mlp.struct(net, optimizer)
    assert mlp.struct(net, optimizer, trains_gains=True).normalized
    with pytest.raises(CannotTake, match="layer normalisation is not trained by this kernel"):
        mlp.struct(net, optimizer)
    assert mlp.struct(net).normalized  # to act
