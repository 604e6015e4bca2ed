"""Weights as safetensors, no pickle anywhere."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import safetensors.torch
from torch import Tensor

from manyseeds.cli import PUBLISHED, RESULTS, AnyConfig, EnvConfig, from_identity
from manyseeds.errors import UsageError
from manyseeds.record import POLICY, is_finished, read_json
from manyseeds.seeds import SeedStreams


def to_bytes(tensors: Mapping[str, Tensor]) -> bytes:
    """Tensors of a policy, the seed as first dimension, as one safetensors file."""
    return safetensors.torch.save({k: v.detach().cpu().contiguous() for k, v in tensors.items()})


def read_policy(
    part: str | Path, config_class: type[AnyConfig], trusted_env: str = ""
) -> tuple[AnyConfig, list[int], dict[str, Tensor]]:
    """Config, seeds and tensors of a finished part such as `.../seeds-000-009`.

    Of a published part that was trained here, too, it is the latter, which has weights.
    trusted_env: the id `module:Name-v0` of the part's environment where importing a module makes
    it; no other module is imported because a stored file names it.

    Raises UsageError for a folder that is not a finished part, or whose weights are not there.
    """
    part = own_part(Path(part))
    if not is_finished(part) or not (part / POLICY).exists():
        raise UsageError(f"{part}: not a finished part with {POLICY}; train it here first")
    stored = read_json(part / "config.json")
    env = str(stored["config"].get("env", ""))
    if ":" in env and env != trusted_env:
        raise UsageError(f"{part}: to load it would import the module of {env}; name it to agree")
    config = from_identity(config_class, stored["config"])
    return config, stored["seeds"], safetensors.torch.load_file(part / POLICY)


def own_part(part: Path) -> Path:
    """The same part in the user's layer where it is there with weights, else the part itself."""
    published = PUBLISHED / "runs"
    if published in part.resolve().parents:
        own = Path(RESULTS) / "runs" / part.resolve().relative_to(published)
        if is_finished(own, with_weights=True):
            return own
    return part


def load_policy(
    part: str | Path,
    config_class: type[EnvConfig],
    policy_class: Callable[[Any, Any, SeedStreams], Any],
    trusted_env: str = "",
) -> Any:
    """The policies of a finished part, one module.

    policy_class: makes untrained ones of the environment's spec, the Config and streams of seeds.
    Otherwise as `read_policy`.
    """
    config, seeds, tensors = read_policy(part, config_class, trusted_env)
    policy = policy_class(config.make_env().spec, config, SeedStreams(seeds, "init"))
    policy.load_state_dict(tensors)
    return policy
