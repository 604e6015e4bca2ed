"""Networks with a seed axis: S independent networks of one shape, evaluated together.

S seeds, B samples per seed. Everything here is arranged so that a seed's outputs have the same
bits in any batch, given hidden layers of at least 16 units: matrix products then never have fewer
than 16 output columns, activations see a multiple of 32 elements per seed (a vectorised loop then
never ends inside a seed), and no reduction runs over the seeds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.harness.seeds import SeedStreams

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

    The K networks of a seed (an actor and a critic, say) have the same input and hidden sizes and
    an output size each. Parameters are `[S, K, in, out]` and `[S, K, 1, out]`. The last layer is
    padded to at least 16 columns; the padding starts at zero and never gets a gradient, because the
    outputs are cut.
    """

    def __init__(
        self,
        seeds: int,
        in_features: int,
        hidden: Sequence[int],
        outputs: Sequence[int],
        activation: str,
    ) -> None:
        super().__init__()
        self.outputs = tuple(outputs)
        self.activation = ACTIVATIONS[activation]
        K, widest = len(outputs), -(-max(outputs) // COLUMNS) * COLUMNS
        sizes = (in_features, *hidden, widest)
        self.weights = nn.ParameterList(
            torch.zeros(seeds, K, n_in, n_out) for n_in, n_out in pairwise(sizes)
        )
        self.biases = nn.ParameterList(torch.zeros(seeds, K, 1, n_out) for n_out in sizes[1:])

    def forward(self, x: Tensor) -> list[Tensor]:
        """The outputs of all K networks, `[S, B, outputs[k]]` each, for x `[S, B, in]`."""
        S, B, n_in = x.shape
        K = len(self.outputs)
        x = x.unsqueeze(1).expand(S, K, B, n_in).reshape(S * K, B, n_in)
        weights, biases = self._parameter_lists()
        y = self._layers(x, [w.flatten(0, 1) for w in weights], [b.flatten(0, 1) for b in biases])
        y = y.view(S, K, B, -1)
        return [y[:, k, :, :width] for k, width in enumerate(self.outputs)]

    def only(self, k: int, x: Tensor) -> Tensor:
        """The output of network k alone, `[S, B, outputs[k]]`."""
        weights, biases = self._parameter_lists()
        y = self._layers(x, [w.select(1, k) for w in weights], [b.select(1, k) for b in biases])
        return y[..., : self.outputs[k]]

    def _parameter_lists(self) -> tuple[list[Tensor], list[Tensor]]:
        # Iterating over a ParameterList costs as much as a layer at the size of a rollout step.
        lists = self.weights._parameters, self.biases._parameters
        return list(lists[0].values()), list(lists[1].values())  # type: ignore[arg-type]

    def _layers(self, x: Tensor, weights: list[Tensor], biases: list[Tensor]) -> Tensor:
        for weight, bias in zip(weights[:-1], biases[:-1], strict=True):
            x = self.activation(torch.baddbmm(bias, x, weight))
        return torch.baddbmm(biases[-1], x, weights[-1])

    @torch.no_grad()
    def orthogonal_init(self, streams: SeedStreams, gains: Sequence[float]) -> None:
        """Orthogonal weights, zero biases, as SB3's PPO: gain sqrt(2), `gains` for the outputs."""
        for k, output_gain in enumerate(gains):
            for weight in self.weights:
                last = weight is self.weights[-1]
                columns = self.outputs[k] if last else weight.shape[-1]
                normal = streams.normal(weight.shape[-2], columns)
                gain = output_gain if last else math.sqrt(2)
                weight[:, k, :, :columns] = orthogonal(normal) * gain

    @torch.no_grad()
    def uniform_init(self, streams: SeedStreams) -> None:
        """Weights and biases uniform in +-1/sqrt(in): `torch.nn.Linear`'s own initialisation."""
        for k, output in enumerate(self.outputs):
            for weight, bias in zip(self.weights, self.biases, strict=True):
                n_in, columns = weight.shape[-2], weight.shape[-1]
                columns = output if weight is self.weights[-1] else columns
                noise = (streams.uniform(n_in + 1, columns) * 2 - 1) / math.sqrt(n_in)
                weight[:, k, :, :columns] = noise[:, :-1]
                bias[:, k, :, :columns] = noise[:, -1:]


def orthogonal(normal: Tensor) -> Tensor:
    """A random (semi-)orthogonal matrix per seed from standard normals, both `[S, in, out]`.

    QR with the signs of R's diagonal, as `torch.nn.init.orthogonal_` does (Saxe et al., 2013).
    """
    wide = normal.shape[1] < normal.shape[2]
    tall = normal.mT if wide else normal
    q, r = torch.linalg.qr(tall)
    q = q * r.diagonal(dim1=-2, dim2=-1).sign().unsqueeze(-2)
    return (q.mT if wide else q).contiguous()
