"""Networks with a seed axis: S independent networks of one shape, evaluated together.

S seeds, B samples per seed. Everything here is arranged so that a seed's outputs have the same
bits in any batch: matrix products never have fewer than 16 output columns, activations see a
multiple of 32 elements per seed (a vectorised loop then never ends inside a seed), and no
reduction runs over the seeds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.harness.seeds import SeedStreams

COLUMNS = 16  # the least width of a matrix product


class SeedLinear(nn.Module):
    """S independent affine maps: `[S, B, in] -> [S, B, out]`.

    The weight `[S, in, padded]` has at least 16 columns. The padding starts at zero and never gets
    a gradient, because the output is cut to `out` columns.
    """

    def __init__(self, in_features: int, out_features: int, seeds: int) -> None:
        super().__init__()
        self.out_features = out_features
        width = -(-out_features // COLUMNS) * COLUMNS
        self.weight = nn.Parameter(torch.zeros(seeds, in_features, width))
        self.bias = nn.Parameter(torch.zeros(seeds, 1, width))

    def forward(self, x: Tensor) -> Tensor:
        return torch.baddbmm(self.bias, x, self.weight)[..., : self.out_features]


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
    """Hyperbolic tangent of `[S, B, width]`; the fast one where a seed's bits stay its own."""
    fits = x.device.type == "cpu" and x.dtype == torch.float32 and x.shape[-1] % 32 == 0
    return _FastTanh.apply(x) if fits else torch.tanh(x)  # type: ignore[no-any-return]


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"tanh": tanh, "relu": torch.relu}


class SeedMLP(nn.Module):
    """S independent multilayer perceptrons: `[S, B, sizes[0]] -> [S, B, sizes[-1]]`."""

    def __init__(self, sizes: Sequence[int], seeds: int, activation: str = "tanh") -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            SeedLinear(n_in, n_out, seeds)
            for n_in, n_out in zip(sizes[:-1], sizes[1:], strict=True)
        )
        self.activation = ACTIVATIONS[activation]

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers[:-1]:  # type: ignore[index]
            x = self.activation(layer(x))
        return self.layers[-1](x)  # type: ignore[no-any-return]

    @torch.no_grad()
    def orthogonal_init(self, streams: SeedStreams, output_gain: float) -> None:
        """Orthogonal weights (gain sqrt(2), the last layer's given), zero biases: SB3's for PPO."""
        for layer in self.layers:
            gain = output_gain if layer is self.layers[-1] else math.sqrt(2)
            n_in, n_out = layer.weight.shape[1], layer.out_features  # type: ignore[union-attr]
            weight = orthogonal(streams.normal(n_in, n_out)) * gain
            layer.weight[..., :n_out] = weight  # type: ignore[index]

    @torch.no_grad()
    def uniform_init(self, streams: SeedStreams) -> None:
        """Weights and biases uniform in +-1/sqrt(in): `torch.nn.Linear`'s own initialisation."""
        for layer in self.layers:
            n_in, n_out = layer.weight.shape[1], layer.out_features  # type: ignore[union-attr]
            noise = (streams.uniform(n_in + 1, n_out) * 2 - 1) / math.sqrt(n_in)
            layer.weight[..., :n_out] = noise[:, :-1]  # type: ignore[index]
            layer.bias[..., :n_out] = noise[:, -1:]  # type: ignore[index]


def orthogonal(normal: Tensor) -> Tensor:
    """A random (semi-)orthogonal matrix per seed from standard normals, both `[S, in, out]`.

    QR with the signs of R's diagonal, as `torch.nn.init.orthogonal_` does (Saxe et al., 2013).
    """
    wide = normal.shape[1] < normal.shape[2]
    tall = normal.mT if wide else normal
    q, r = torch.linalg.qr(tall)
    q = q * r.diagonal(dim1=-2, dim2=-1).sign().unsqueeze(-2)
    return (q.mT if wide else q).contiguous()
