"""Random variables and orthogonal matrices in C (draws.c). S seeds."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from manyseeds import kernels

SOURCE = Path(__file__).parent / "draws.c"
GUMBEL, NORMAL, ORTHOGONAL = (
    kernels.kernel(SOURCE, name) for name in ("gumbel", "normal", "orthogonal")
)


def gumbel(uniforms: Tensor) -> Tensor:
    """What `gumbel_of` of seeds.py says; the uniforms are overwritten."""
    GUMBEL(S=len(uniforms), n=uniforms[0].numel(), x=uniforms)
    return uniforms


def normal(uniforms: Tensor, count: int) -> Tensor:
    """What `normal_of` of seeds.py says."""
    S, _, pairs = uniforms.shape
    normals = uniforms.new_empty(S, count)
    NORMAL(S=S, n=count, pairs=pairs, uniforms=uniforms, normals=normals)
    return normals


def orthogonal(tall: Tensor) -> Tensor:
    """What `orthogonal_columns` of layers.py says."""
    S, rows, columns = tall.shape
    q = torch.empty(S, rows, columns)
    ORTHOGONAL(S=S, rows=rows, columns=columns, matrices=tall, q=q)
    return q
