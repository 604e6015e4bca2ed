"""The seed axis: one stream of random numbers per seed. S is the number of seeds."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.random  # NumPy would at its first use, and an import of it can swallow Ctrl-C
import torch
from torch import Tensor

from manyseeds.kernels import draws, in_c, usable

PURPOSES = {"init": 0, "train": 1, "evaluate": 2, "start-states": 3}


class SeedStreams:
    """One stream of random numbers per seed, for one purpose.

    What seed k draws depends on k, the purpose and the position in the stream; never on the other
    seeds or on the device. Streams are numpy's PCG64 keyed by `SeedSequence(k, spawn_key)`, which
    numpy keeps stable over versions. Draw whole blocks: the cost of a draw grows with S.
    """

    def __init__(
        self, seeds: Sequence[int], purpose: str, device: torch.device | str = "cpu"
    ) -> None:
        key = (PURPOSES[purpose],)
        self.seeds = list(seeds)
        self.device = torch.device(device)
        self._generators = [
            np.random.Generator(np.random.PCG64(np.random.SeedSequence(seed, spawn_key=key)))
            for seed in self.seeds
        ]

    def uniform(self, *shape: int) -> Tensor:
        """Uniforms in [0, 1), `[S, *shape]` float32."""
        memory, block = self._host_block(shape)
        for generator, row in zip(self._generators, memory, strict=True):
            generator.random(out=row, dtype=np.float32)
        return block.to(self.device, non_blocking=True)

    def gumbel(self, *shape: int) -> Tensor:
        """Standard Gumbel variables: argmax(logits + gumbel) is a sample of softmax(logits).

        Finite, also of a uniform that is 0: a logit of -inf is never the largest.
        """
        return gumbel_of(self.uniform(*shape))

    def normal(self, *shape: int) -> Tensor:
        """Standard normals, `[S, *shape]` float32: two of them take two uniforms."""
        count = math.prod(shape)
        uniforms = self.uniform(2, -(-count // 2))
        return normal_of(uniforms, count).view(len(self.seeds), *shape)

    def _host_block(self, shape: tuple[int, ...]) -> tuple[np.ndarray, Tensor]:
        """Empty memory `[S, *shape]`, and the same as a tensor.

        It is pinned for CUDA: the copy does not wait for the GPU.
        """
        if self.device.type == "cuda":
            block = torch.empty(len(self.seeds), *shape, dtype=torch.float32, pin_memory=True)
            return block.numpy(), block
        memory = np.empty((len(self.seeds), *shape), dtype=np.float32)  # faster than a tensor's
        return memory, torch.from_numpy(memory)


@in_c(draws.gumbel, usable)
def gumbel_of(uniforms: Tensor) -> Tensor:
    """Standard Gumbel variables of uniforms in [0, 1), of any shape; these may be overwritten."""
    return (-(-uniforms.log()).log()).clamp_(min=torch.finfo(torch.float32).min)


@in_c(draws.normal)
def normal_of(uniforms: Tensor, count: int) -> Tensor:
    """`[S, count]` standard normals of uniforms `[S, 2, n]` in [0, 1) (Box and Muller, 1958)."""
    radius = (-2 * (1 - uniforms[:, 0]).log()).sqrt()
    angle = 2 * math.pi * uniforms[:, 1]
    both = torch.cat((radius * angle.cos(), radius * angle.sin()), dim=1)
    return both[:, :count]
