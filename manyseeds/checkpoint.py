"""Weights as safetensors, no pickle anywhere."""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import safetensors.torch
from torch import Tensor

from manyseeds.cli import PUBLISHED, RESULTS, AnyConfig, EnvConfig, from_identity
from manyseeds.errors import UsageError
from manyseeds.predict import add_predict
from manyseeds.record import POLICY, is_finished, plural, ranges, read_config
from manyseeds.seeds import SeedStreams
from manyseeds.untrusted import (
    NAME,
    cached_file,
    check,
    parse_json,
    read_header,
    read_tensors,
    reading,
)

ABOUT = "manyseeds"  # what a file of policies says of itself, as JSON
POLICIES = {"algo?": NAME, "config": {str: object}, "seeds": [int]}
PolicyType = TypeVar("PolicyType", bound=Any)
HUB = "hub:"  # what the name of an exported folder or of a repository on the hub begins with


def to_bytes(tensors: Mapping[str, Tensor], about: Mapping[str, Any] | None = None) -> bytes:
    """Tensors of a policy, the seed as first dimension, as one safetensors file.

    about: "config" (an `identity`), "seeds" and what else there is; then the file can be loaded
    without a run around it.
    """
    copied = {k: v.detach().cpu().contiguous() for k, v in tensors.items()}
    return safetensors.torch.save(copied, None if about is None else {ABOUT: json.dumps(about)})


def weights_sha256(tensors: Mapping[str, Tensor], seeds: Sequence[int]) -> dict[str, str]:
    """The SHA-256 of each seed's rows of tensors `[S, ...]`, by seed: whoever trains it alone gets
    the same.

    Of the names in order, each with type, shape and little-endian bytes; all NaN are the same.
    """
    digests = [hashlib.sha256() for _ in seeds]
    for name, tensor in sorted(tensors.items()):
        values = tensor.detach().cpu().numpy()
        if values.dtype.kind == "f":
            values = np.where(np.isnan(values), np.array(np.nan, values.dtype), values)
        values = values.astype(values.dtype.newbyteorder("<"))
        about = f"{name} {tensor.dtype} {list(values.shape[1:])}\n".encode()
        for digest, own in zip(digests, values, strict=True):
            digest.update(about + own.tobytes())
    return {str(seed): x.hexdigest() for seed, x in zip(seeds, digests, strict=True)}


def read_about(path: Path) -> dict[str, Any]:
    """What a file of policies says of itself, its "config" and "seeds" at least.

    Raises UsageError for a file that says nothing, or is none.
    """
    about: dict[str, Any]
    try:
        about = parse_json(read_header(path)[1][ABOUT].encode(), path)
        check(about, POLICIES, "")
    except (FileNotFoundError, KeyError, ValueError, UsageError) as error:
        reason = f" ({error})" if isinstance(error, ValueError) else ""
        raise UsageError(f"{path}: holds no policies that say what they are{reason}") from None
    return about


def read_policy(
    part: str | Path, config_class: type[AnyConfig], trusted_env: str = ""
) -> tuple[AnyConfig, list[int], dict[str, Tensor]]:
    """Config, seeds and tensors of a finished part such as `.../seeds-000-009`, of a file of
    policies, results/policies/ENV/ALGORITHM/NAME.safetensors, or of what was exported for a hub:
    `hub:FOLDER` or `hub:OWNER/NAME`.

    Of a published part that was trained here, too, it is the latter, which has weights.
    trusted_env: the id `module:Name-v0` of the part's environment where importing a module makes
    it; no other module is imported because a stored file names it.

    Raises UsageError for a folder that is not a finished part, whose weights are not there, or
    that is another algorithm's.
    """
    file, stored = stored_policy(part)
    env = str(stored["config"].get("env", ""))
    if ":" in env and env != trusted_env:
        raise UsageError(f"{part}: to load it would import the module of {env}; name it to agree")
    where, _, name = config_class.__module__.rpartition(".")
    if where.endswith(".algos") and stored.get("algo") != name:
        raise UsageError(f"{part}: has policies of {stored.get('algo')}, not of {name}")
    with reading(file):
        config = from_identity(config_class, stored["config"])
    return config, stored["seeds"], read_tensors(file)[0]


def stored_policy(part: str | Path) -> tuple[Path, dict[str, Any]]:
    """The file of stored policies and what is said of them: "config", "seeds" and "algo".

    part: as for `read_policy`. The shapes of the tensors, of which nothing but the header is read,
    are those of as many seeds and of such networks. Raises UsageError.
    """
    with reading(Path(part)):
        hub = str(part).startswith(HUB)
        part = from_hub(str(part).removeprefix(HUB)) if hub else own_part(Path(part))
        if part.is_dir():
            if not (os.path.lexists(part / POLICY) and is_finished(part)):
                raise UsageError(f"{part}: not a finished part with {POLICY}; train it here first")
            file, stored = part / POLICY, read_config(part)
        elif os.path.lexists(part):
            file, stored = part, read_about(part)
        else:
            raise UsageError(f"{part}: not a finished part with {POLICY}; train it here first")
        check_shapes(file, stored)
    return file, stored


def check_shapes(file: Path, stored: Mapping[str, Any]) -> None:
    """Raise ValueError where networks as they are said to be have more weights than a file.

    A hidden layer of a billion units is refused before it is made.
    """
    tensors, _ = read_header(file)
    seeds, hidden = stored["seeds"], stored["config"].get("hidden", [])
    if min(seeds, default=-1) < 0 or len(set(seeds)) < len(seeds):
        raise ValueError("seeds must be different, and 0 or above")
    check(hidden, [int], "hidden")
    if other := [x for x, y in tensors.items() if y.shape[:1] != (len(seeds),)]:
        raise ValueError(f"{other[0]} is not of {plural(len(seeds), 'seed')}")
    stored_weights = sum(math.prod(x.shape) for x in tensors.values())
    weights = sum(a * b for a, b in pairwise(hidden)) + sum(hidden) + 1
    if len(seeds) * weights > stored_weights:
        raise ValueError(f"hidden {hidden} needs more weights than there are")


def rows_of(init: str, seeds: Sequence[int]) -> list[int]:
    """Where the policies for some seeds stand in what `--init` names, which `read_policy` could
    read; those of a single seed serve all.

    Of any algorithm: a copy of a file has another name. Nothing is imported. Raises UsageError.
    """
    try:
        known = list(stored_policy(init)[1]["seeds"])
    except UsageError as error:
        raise UsageError(f"--init {error}") from None
    if len(known) == 1:
        return [0] * len(seeds)
    if missing := set(seeds) - set(known):
        raise UsageError(f"--init {init}: has no seed {min(missing)}; it has {ranges(known)}")
    return [known.index(seed) for seed in seeds]


def start_from(init: str, seeds: Sequence[int], like: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors `[S, ...]` of what `--init` names, for S seeds.

    like: tensors `[S, ...]` with the names, shapes and types that they must have. Otherwise as
    `rows_of`.
    """
    rows = rows_of(init, seeds)
    try:
        tensors, _ = read_tensors(stored_policy(init)[0])
    except UsageError as error:
        raise UsageError(f"--init {error}") from None
    found = {name: x[rows] for name, x in tensors.items()}
    for name in dict.fromkeys((*like, *found)):
        ours, theirs = (
            f"{list(x[name].shape[1:])} {x[name].dtype}" if name in x else "none"
            for x in (like, found)
        )
        if ours != theirs:
            raise UsageError(f"--init {init}: {name} is {theirs} there, {ours} here")
        if not found[name].isfinite().all():
            raise UsageError(f"--init {init}: {name} is not finite there: its training diverged")
    return found


def from_hub(name: str) -> Path:
    """The file of policies in an exported folder, or else in a repository OWNER/NAME on the Hugging
    Face hub, of which safetensors and JSON alone are fetched. Raises UsageError."""
    folder = Path(name)
    if not os.path.isdir(folder):  # unlike Path.is_dir, of any text
        from huggingface_hub import snapshot_download

        try:
            patterns = ["*.safetensors", "*.json"]
            folder = Path(snapshot_download(name, allow_patterns=patterns))
        except Exception as error:  # of the name, the network, the hub
            reason = str(error).strip().partition("\n")[0] or type(error).__name__
            raise UsageError(
                f"{HUB}{name}: no such folder, and not from the hub: {reason}"
            ) from None
    if not os.path.lexists(folder / POLICY):
        raise UsageError(f"{HUB}{name}: has no {POLICY}: is not an export of policies")
    return cached_file(folder, POLICY)


def own_part(part: Path) -> Path:
    """The same part in the user's layer where it is there with weights, else the part itself."""
    published = PUBLISHED / "runs"
    if published in part.resolve().parents:
        own = Path(RESULTS) / "runs" / part.resolve().relative_to(published)
        if is_finished(own, with_weights=True):
            return own
    return part


def loader(
    config_class: type[EnvConfig], policy_class: Callable[[Any, Any, SeedStreams], PolicyType]
) -> Callable[..., PolicyType]:
    """The `load` of an algorithm.

    policy_class: makes untrained policies of the environment's spec, the Config and streams of
    seeds.
    """

    def load(part: str | Path, trusted_env: str = "") -> PolicyType:
        """The policies of a finished part `.../seeds-000-009`, of an export `hub:FOLDER`, or of a
        repository `hub:OWNER/NAME`, as one module; trusted_env and errors: see `read_policy`."""
        config, seeds, tensors = read_policy(part, config_class, trusted_env)
        with reading(Path(part), f"does not fit {config_class.__module__}"):
            policy = policy_class(config.make_env().spec, config, SeedStreams(seeds, "init"))
            policy.load_state_dict(tensors)
        add_predict(policy, config, seeds)
        return policy

    return load


def value_loader(config_class: type[EnvConfig]) -> Callable[[str | Path], Tensor]:
    """The `load` of an algorithm that learns values of states."""

    def load(part: str | Path) -> Tensor:
        """The values `[S, X]` of a finished part `.../seeds-000-099`."""
        with reading(Path(part)):
            return read_policy(part, config_class)[2]["v"]

    return load
