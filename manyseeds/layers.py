"""Networks with a seed axis: S independent networks of one shape, evaluated together.

S seeds, B samples per seed. On a CPU the networks are computed in C (kernels/mlp.c), each alone.
Elsewhere PyTorch's operations are arranged so that a seed's outputs have the same bits in any
batch, given hidden layers of at least 16 units and a multiple of 4: matrix products then never have
fewer than 16 output columns, every seed's block begins at an address that is a multiple of 16
bytes, activations see a multiple of 32 elements per seed (a vectorised loop then never ends inside
a seed), and no reduction runs over the seeds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import layer_norm

from manyseeds.distributions import Categorical, Gaussian
from manyseeds.kernels import draws, in_c, mlp, statistics, usable
from manyseeds.kernels.rollout import PolicyKernel
from manyseeds.rows import broadcast
from manyseeds.seeds import SeedStreams

COLUMNS = 16  # the least width of a matrix product


class _FastTanh(torch.autograd.Function):
    """tanh as 2 sigmoid(2x) - 1: five times faster than torch.tanh on a CPU, equal to 1e-7."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        y = torch.sigmoid_(x * 2).mul_(2).sub_(1)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        (y,) = ctx.saved_tensors
        return torch.ops.aten.tanh_backward(grads[0], y)


def tanh(x: Tensor) -> Tensor:
    """Hyperbolic tangent of `[S, B, width]`, the fast one for large B.

    What is chosen, and whether a vectorised loop ends inside a seed, depends on B and the width
    only: a seed's bits are the same for every S.
    """
    large = x.shape[1] >= 16 and x.shape[1] * x.shape[2] % 32 == 0
    fast = large and x.device.type == "cpu" and x.dtype == torch.float32
    return _FastTanh.apply(x) if fast else torch.tanh(x)  # type: ignore[no-any-return]


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"tanh": tanh, "relu": torch.relu}


class SeedMLP(nn.Module):
    """S times K independent multilayer perceptrons, evaluated as one batch.

    The K networks of a seed (an actor and a critic, say) have the same input and hidden sizes, and
    `outputs[k]` outputs. Parameters are `[S, K, in, out]` and `[S, K, 1, out]`. The last layer is
    padded to a multiple of 16 columns; the padding starts at zero and never gets a gradient,
    because it is cut off.

    layer_norm: normalise every hidden layer over its units, before the activation (Ba et al., 2016,
    arXiv 1607.06450; eps 1e-5), with gains and shifts `[S, K, 1, width]` that start at 1 and 0.
    """

    def __init__(
        self,
        seeds: int,
        in_features: int,
        hidden: Sequence[int],
        outputs: Sequence[int],
        activation: str,
        layer_norm: bool = False,
    ) -> None:
        super().__init__()
        self.activation = activation
        self.outputs = tuple(outputs)
        K = len(self.outputs)
        widest = -(-max(outputs) // COLUMNS) * COLUMNS
        sizes = (in_features, *hidden, widest)
        self.weights = nn.ParameterList(
            torch.zeros(seeds, K, n_in, n_out) for n_in, n_out in pairwise(sizes)
        )
        self._views: dict[Any, Any] = {}
        self.structs: dict[Any, Any] = {}  # for C (kernels/mlp.py)
        self.biases = nn.ParameterList(torch.zeros(seeds, K, 1, n_out) for n_out in sizes[1:])
        widths = hidden if layer_norm else ()
        self.gains = nn.ParameterList(torch.ones(seeds, K, 1, width) for width in widths)
        self.shifts = nn.ParameterList(torch.zeros(seeds, K, 1, width) for width in widths)

    def constant(self, size: int, value: Tensor | float) -> nn.Parameter:
        """A parameter `[S, K, 1, size]` that does not depend on the input.

        Every parameter of a module that SeedAdam trains has the same first two dimensions. A
        policy uses the first network's; the others never get a gradient.
        """
        ones = torch.ones(*self.weights[0].shape[:2], 1, size)
        return nn.Parameter(ones * broadcast(value, ones))

    @in_c(mlp.forward, mlp.takes)
    def forward(self, x: Tensor) -> list[Tensor]:
        """The outputs of all K networks, `[S, B, outputs[k]]` each, for x `[S, B, in]`."""
        S, B, n_in = x.shape
        K = len(self.outputs)
        x = x.unsqueeze(1).expand(S, K, B, n_in).reshape(S * K, B, n_in)
        y = self._layers(x, *([p.flatten(0, 1) for p in ps] for ps in self.parameter_lists()))
        y = y.view(S, K, B, -1)
        return [y[:, k, :, :width] for k, width in enumerate(self.outputs)]

    @in_c(mlp.only, mlp.takes)
    def only(self, k: int, x: Tensor) -> Tensor:
        """The output of network k alone, `[S, B, outputs[k]]`."""
        lists = ([p.select(1, k) for p in ps] for ps in self.parameter_lists())
        return self._layers(x, *lists)[..., : self.outputs[k]]

    def policy_in_c(
        self,
        stats: RunningStats | None = None,
        log_std: Tensor | None = None,
        noise_is_action: bool = False,
    ) -> PolicyKernel:
        """What acts in a rollout in C: the first network, for observations with statistics.

        log_std: a parameter of continuous actions, `[S, K, 1, D]`. noise_is_action: as
        `PolicyKernel`.
        """
        return PolicyKernel(self, stats, log_std, noise_is_action)

    def alone(self, k: int) -> tuple[list[Tensor], ...]:
        """The parameters of network k, `[S, 1, ...]`, in the lists of `parameter_lists`."""
        lists = self.parameter_lists()
        if len(self.outputs) == 1:
            return lists
        if torch.is_grad_enabled():
            return tuple([p.narrow(1, k, 1) for p in ps] for ps in lists)
        # Views of the same memory: made once, for as long as the parameters stay there.
        where = [p.data_ptr() for ps in lists for p in ps]
        if self._views.get("where") != where:
            self._views = {"where": where}
        if k not in self._views:
            self._views[k] = tuple([p.narrow(1, k, 1) for p in ps] for ps in lists)
        return self._views[k]  # type: ignore[no-any-return]

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_views": {}, "structs": {}}  # a copy has other memory

    def parameter_lists(self) -> tuple[list[Tensor], ...]:
        """Weights, biases, gains and shifts."""
        # Iterating over a ParameterList costs as much as a layer at the size of a rollout step.
        lists = self.weights, self.biases, self.gains, self.shifts
        return tuple(list(x._parameters.values()) for x in lists)  # type: ignore[arg-type]

    def _layers(
        self,
        x: Tensor,
        weights: list[Tensor],
        biases: list[Tensor],
        gains: list[Tensor],
        shifts: list[Tensor],
    ) -> Tensor:
        if not x.is_floating_point():
            raise ValueError(f"an input of {x.dtype}, must be vectors of floats; states one-hot")
        for layer, (weight, bias) in enumerate(zip(weights[:-1], biases[:-1], strict=True)):
            x = torch.baddbmm(bias, x, weight)
            if gains:  # each row is normalised alone, whatever the others are
                x = layer_norm(x, x.shape[-1:], eps=1e-5) * gains[layer] + shifts[layer]
            x = ACTIVATIONS[self.activation](x)
        return torch.baddbmm(biases[-1], x, weights[-1])

    def _matrices(self) -> Iterator[tuple[int, int, int]]:
        """Network, layer and columns in use, of one network after the other."""
        for k, width in enumerate(self.outputs):
            sizes = [bias.shape[-1] for bias in self.biases[:-1]]
            yield from ((k, layer, n) for layer, n in enumerate([*sizes, width]))

    @torch.no_grad()
    def orthogonal_init(self, streams: SeedStreams, gains: Sequence[float]) -> None:
        """Orthogonal weights, zero biases, as SB3's PPO: gain sqrt(2), `gains` for last layers."""
        for k, layer, n in self._matrices():
            matrix = self.weights[layer][:, k, :, :n]
            gain = gains[k] if layer == len(self.weights) - 1 else math.sqrt(2)
            matrix.copy_(orthogonal(streams.normal(*matrix.shape[1:])) * gain)

    @torch.no_grad()
    def uniform_init(self, streams: SeedStreams) -> None:
        """Weights and biases uniform in +-1/sqrt(in): `torch.nn.Linear`'s own initialisation."""
        for k, layer, n in self._matrices():
            matrix = self.weights[layer][:, k, :, :n]
            n_in, n_out = matrix.shape[1:]
            noise = (streams.uniform(n_in + 1, n_out) * 2 - 1) / math.sqrt(n_in)
            matrix.copy_(noise[:, :-1])
            self.biases[layer][:, k, :, :n] = noise[:, -1:]


class SeedPolicy(nn.Module):
    """S stochastic policies on vectors: what they share, whatever their networks.

    A subclass adds the networks, `policy(obs)` and `as_kernel()`, and `log_std`, a parameter
    `[S, K, 1, D]`, for continuous actions. These are Gaussian: independent components, a mean for
    each state, and a standard deviation that does not depend on the state.

    spec: the environment's `EnvSpec`. normalize_obs: by running statistics of each seed.
    """

    log_std: nn.Parameter | None

    def __init__(self, seeds: int, spec: Any, normalize_obs: bool) -> None:
        super().__init__()
        self.register_parameter("log_std", None)
        self.continuous = spec.continuous
        self.obs_size: int = spec.obs_size
        self.action_size = len(spec.action_low) if spec.continuous else spec.num_actions
        self.obs_stats = RunningStats(seeds, spec.obs_size) if normalize_obs else None

    def policy(self, obs: Tensor) -> Categorical | Gaussian:
        """The distributions of actions for obs `[S, B, O]`."""
        raise NotImplementedError

    def distribution(self, logits_or_means: Tensor) -> Categorical | Gaussian:
        """The distributions that the output `[S, B, A or D]` of a policy's network stands for."""
        if self.continuous:
            return Gaussian(logits_or_means, self.log_std[:, 0])  # type: ignore[index]
        return Categorical(logits_or_means)

    def features(self, obs: Tensor) -> Tensor:
        """What the networks see of obs `[S, B, O]`."""
        return obs if self.obs_stats is None else self.obs_stats.normalize(obs)

    def draw(self, streams: SeedStreams, *shape: int) -> Tensor:
        """Noise `[S, *shape, A or D]` for sampled actions."""
        draw = streams.normal if self.continuous else streams.gumbel
        return draw(*shape, self.action_size)

    def act(self, obs: Tensor, noise: Tensor | None = None) -> Tensor:
        """Actions `[S, N]` or `[S, N, D]` for obs `[S, N, O]`; greedy without noise."""
        policy = self.policy(obs)
        return policy.mode() if noise is None else policy.sample(noise)


class RunningStats(nn.Module):
    """Mean and variance of all the vectors that each of S seeds has seen so far.

    Starts as mean 0 and variance 1. `normalize` clips to +-10 (SB3's VecNormalize).
    """

    mean: Tensor  # [S, 1, size] float64, like the others
    var: Tensor
    count: Tensor  # [S, 1, 1]

    def __init__(self, seeds: int, size: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(seeds, 1, size, dtype=torch.float64))
        self.register_buffer("var", torch.ones(seeds, 1, size, dtype=torch.float64))
        self.register_buffer("count", torch.zeros(seeds, 1, 1, dtype=torch.float64))

    @torch.no_grad()
    @in_c(statistics.update, statistics.takes)
    def update(self, x: Tensor, mask: Tensor | None = None) -> None:
        """Update with samples `[S, B, size]` (Chan et al., 1983: merging two samples' moments).

        mask: `[S, B]` bool, which samples to take (None: all); a seed without any stays as it is.
        """
        chosen = x.new_ones(x.shape[:2], dtype=torch.bool) if mask is None else mask
        chosen, n = chosen.unsqueeze(-1), chosen.sum(1).view(-1, 1, 1)
        x = x.double().masked_fill(~chosen, 0.0)
        # Sums, because var() rounds otherwise for S = 1.
        mean = x.sum(1, keepdim=True) / n.clamp(min=1)
        var = (x - mean).square().masked_fill(~chosen, 0.0).sum(1, keepdim=True) / n.clamp(min=1)
        total = self.count + n
        share = n / total.clamp(min=1)  # 1 at first: the initial mean and variance are forgotten
        delta = mean - self.mean
        self.var.copy_((1 - share) * self.var + share * var + share * (1 - share) * delta.square())
        self.mean.addcmul_(delta, share)
        self.count.copy_(total)

    def normalize(self, x: Tensor) -> Tensor:
        """`[S, B, size]` with mean 0 and variance 1, clipped."""
        mean, scale = self.shift_and_scale(x.dtype)
        return ((x - mean) * scale).clamp(-10, 10)

    def shift_and_scale(self, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """The mean and the inverse of the standard deviation, `[S, 1, size]`."""
        return self.mean.to(dtype), (1 / (self.var + 1e-8).sqrt()).to(dtype)


class RewardScale(nn.Module):
    """Divides rewards by the standard deviation of the discounted return of each of S seeds.

    That return is summed up forwards, R <- gamma R + r, from the start of an episode (Engstrom et
    al., 2020, section 3; SB3's VecNormalize). Rewards are clipped to +-10 afterwards. The deviation
    is that of all steps up to the reward's own, as if each were scaled as soon as it is received.
    """

    open_return: Tensor  # [S, N], of the unfinished episodes

    def __init__(self, seeds: int, envs: int, gamma: Tensor | float) -> None:
        super().__init__()
        self.gamma = gamma
        self.stats = RunningStats(seeds, 1)
        self.register_buffer("open_return", torch.zeros(seeds, envs), persistent=False)

    @torch.no_grad()
    @in_c(statistics.scale_rewards, statistics.takes)
    def forward(self, rewards: Tensor, done: Tensor) -> Tensor:
        """Update with the rewards and ends of a rollout, both `[S, T, N]`; scale the rewards."""
        returns = []
        for reward, end in zip(rewards.unbind(1), done.unbind(1), strict=True):
            total = self.open_return * broadcast(self.gamma, reward) + reward
            returns.append(total)
            self.open_return.copy_(total.masked_fill(end, 0.0))
        var = self._variances(torch.stack(returns, dim=1))
        return (rewards * (var + 1e-8).rsqrt().to(rewards.dtype)).clamp(-10, 10)

    def _variances(self, returns: Tensor) -> Tensor:
        """Update with returns `[S, T, N]`; the variance of all up to each step, `[S, T, 1]`."""
        T, N = returns.shape[1:]
        seen, x = self.stats.count, returns.double() - self.stats.mean
        count = seen + N * torch.arange(1, T + 1, dtype=x.dtype, device=x.device).view(T, 1)
        mean = x.sum(-1, keepdim=True).cumsum(1) / count  # relative to the mean before
        squares = x.square().sum(-1, keepdim=True).cumsum(1)
        var = ((seen * self.stats.var + squares) / count - mean.square()).clamp(min=0)
        self.stats.mean.add_(mean[:, -1:])
        self.stats.var.copy_(var[:, -1:])
        self.stats.count.copy_(count[:, -1:])
        return var


def orthogonal(normal: Tensor) -> Tensor:
    """A random (semi-)orthogonal matrix per seed from standard normals, both `[S, in, out]`.

    QR with the signs of R's diagonal, as `torch.nn.init.orthogonal_` does (Saxe et al., 2013).
    """
    wide = normal.shape[1] < normal.shape[2]
    q = orthogonal_columns(normal.mT if wide else normal)
    return (q.mT if wide else q).contiguous()


@in_c(draws.orthogonal, usable)
def orthogonal_columns(tall: Tensor) -> Tensor:
    """The Q of the QR decomposition with a positive diagonal of R, both `[S, rows, columns]`."""
    # With one thread, and seed by seed: its bits depend on the number of threads, and on whether a
    # matrix begins at a multiple of 16 bytes, which in a batch only the first is sure to do.
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        factors = [torch.linalg.qr(matrix) for matrix in tall]
    finally:
        torch.set_num_threads(threads)
    q, r = (torch.stack(parts) for parts in zip(*factors, strict=True))
    return q * r.diagonal(dim1=-2, dim2=-1).sign().unsqueeze(-2)
