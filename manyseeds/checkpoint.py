"""Weights as safetensors, no pickle anywhere."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import safetensors.torch
from torch import Tensor

from manyseeds.cli import AnyConfig, from_identity
from manyseeds.errors import UsageError
from manyseeds.record import POLICY, is_finished, read_json


def to_bytes(tensors: Mapping[str, Tensor]) -> bytes:
    """Tensors of a policy, the seed as first dimension, as one safetensors file."""
    return safetensors.torch.save({k: v.detach().cpu().contiguous() for k, v in tensors.items()})


def read_policy(
    part: str | Path, config_class: type[AnyConfig]
) -> tuple[AnyConfig, list[int], dict[str, Tensor]]:
    """Config, seeds and tensors of a finished part such as `.../seeds-000-009`.

    Raises UsageError for a folder that is not a finished part, or whose weights are not there.
    """
    part = Path(part)
    if not is_finished(part) or not (part / POLICY).exists():
        raise UsageError(f"{part}: not a finished part with {POLICY}; train it here first")
    stored = read_json(part / "config.json")
    config = from_identity(config_class, stored["config"])
    return config, stored["seeds"], safetensors.torch.load_file(part / POLICY)
