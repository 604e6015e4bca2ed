"""Weights as safetensors, no pickle anywhere."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import safetensors.torch
from torch import Tensor


def to_bytes(tensors: Mapping[str, Tensor]) -> bytes:
    """Tensors of a policy, the seed as first dimension, as one safetensors file."""
    return safetensors.torch.save({k: v.detach().cpu().contiguous() for k, v in tensors.items()})


def load(path: str | Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file."""
    return safetensors.torch.load_file(path)
