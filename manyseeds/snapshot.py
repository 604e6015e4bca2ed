"""The state of a training as tensors and JSON, and back; one safetensors file, no pickle.

What changes in place, such as weights, moments, statistics, a replay memory or random streams, is
put back in place: views, aliases and recorded CUDA graphs stay valid. An object is what its
`__getstate__` says, by default its attributes; a module of PyTorch has its parameters and all of
its buffers, also those that no `state_dict` holds.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any

import numpy as np
import safetensors.torch
import torch
from torch import Tensor, nn

from manyseeds import untrusted
from manyseeds.errors import UsageError
from manyseeds.untrusted import BROKEN
from manyseeds.writing import write_bytes

STATE, DIGEST = "state", "sha256"  # in every file: the JSON, and a digest of all else
SCALARS = (bool, int, float, str, type(None))
# What chooses how is computed, and does not change.
FIXED = (torch.device, torch.dtype, type, FunctionType, BuiltinFunctionType, MethodType)
MALFORMED = BROKEN  # what values of another form raise
MOST = 2**30  # bytes of JSON
MODULE = frozenset(vars(nn.Module()))  # what every module keeps for itself


class UnstorableError(Exception):
    """Names a kind of object that cannot be stored."""


class UnusableError(Exception):
    """Says why nothing can go on from a file."""


# ---- Values as JSON and tensors ------------------------------------------------------------


def take(value: Any) -> tuple[Any, dict[str, Tensor]]:
    """A value as JSON, and the tensors that the JSON names, which share its memory.

    Values are numbers, texts, tensors, numpy's arrays and Generators, in lists, tuples,
    dictionaries and objects. What is met twice is stored once. Raises UnstorableError.
    """
    taker = _Taker()
    return taker.node(value), taker.tensors


def restore(
    node: Any, tensors: Mapping[str, Tensor], objects: Any, like: Any, device: torch.device
) -> Any:
    """Undo `take((objects, values))`: objects get their state in place, values come back as new.

    like: values of this kind, where named tuples and what is fixed come from. device: of tensors
    that have no like. Everything is read before anything is changed. Raises MALFORMED errors for
    what was taken of other objects.
    """
    builder = _Builder(tensors, device)
    ours, theirs = node["tuple"]
    builder.value(objects, ours)
    builder.in_place = False
    values = builder.value(like, theirs)
    with torch.no_grad():
        for change in builder.changes:
            change()
    return values


class _Taker:
    """A node of JSON is a number or text itself, or `{kind: content}`."""

    def __init__(self) -> None:
        self.tensors: dict[str, Tensor] = {}
        self.met: dict[int, int] = {}  # the number of what has an identity, by its id
        self.kept: list[Any] = []  # so that no id is given twice

    def node(self, x: Any) -> Any:
        if type(x) in SCALARS:
            return x
        if isinstance(x, np.generic):
            return {"scalar": [x.dtype.str, x.item()]}
        if isinstance(x, FIXED):
            return {"fixed": None}
        if isinstance(x, tuple):
            return {"tuple": [self.node(y) for y in x]}
        if id(x) in self.met:
            return {"met": self.met[id(x)]}
        self.met[id(x)] = len(self.met)
        self.kept.append(x)
        if isinstance(x, Tensor):
            return {"tensor": self.name(x.detach())}
        if isinstance(x, np.ndarray) and x.dtype.kind in "biuf":
            return {"array": self.name(torch.from_numpy(x.copy(order="K")))}
        if isinstance(x, np.random.Generator):
            return {"generator": self.node(x.bit_generator.state)}
        if isinstance(x, list):
            return {"list": [self.node(y) for y in x]}
        if isinstance(x, dict):
            if not all(type(key) in SCALARS for key in x):
                raise UnstorableError("a dictionary whose keys are no texts or numbers")
            return {"dict": [[key, self.node(y)] for key, y in x.items()]}
        return {"object": {name: self.node(y) for name, y in attributes(x).items()}}

    def name(self, x: Tensor) -> list[Any]:
        """The name of a tensor, and the order of its dimensions in memory: sums round by it."""
        strides = x.stride()
        order = sorted(range(x.dim()), key=lambda dim: -strides[dim])
        if not x.permute(order).is_contiguous():  # a part of another one
            order = list(range(x.dim()))
        name = str(len(self.tensors))
        self.tensors[name] = x.permute(order)
        return [name, order]


def attributes(x: Any) -> dict[str, Any]:
    """The state of an object by the names of its attributes. Raises UnstorableError."""
    try:
        state = x.__getstate__()
    except TypeError:
        state = None
    if not isinstance(state, dict):
        raise UnstorableError(type(x).__name__)
    if isinstance(x, nn.Module):
        state = {name: y for name, y in state.items() if name not in MODULE}
        state |= {**x._parameters, **x._buffers, **x._modules}
    return state


class _Builder:
    """Makes values of nodes; live: the value that there is now, None where there is none."""

    def __init__(self, tensors: Mapping[str, Tensor], device: torch.device) -> None:
        self.tensors, self.device, self.in_place = tensors, device, True
        self.met: list[Any] = []
        self.changes: list[Callable[[], Any]] = []  # to be made in place

    def value(self, live: Any, node: Any) -> Any:
        if type(node) in SCALARS:
            return live if type(live) is type(node) and live == node else node
        ((kind, content),) = node.items()
        if kind == "scalar":
            return np.dtype(content[0]).type(content[1])
        if kind == "fixed":
            return live
        if kind == "met":
            return self.met[content]
        if kind == "tuple":
            return self.tuple_of(live, content)
        kinds: dict[str, Callable[[Any, Any], Any]] = {
            "tensor": self.tensor_of,
            "array": self.array_of,
            "generator": self.generator_of,
            "list": self.list_of,
            "dict": self.dict_of,
            "object": self.object_of,
        }
        return kinds[kind](live, content)

    def tuple_of(self, live: Any, nodes: Sequence[Any]) -> Any:
        old = live if isinstance(live, tuple) and len(live) == len(nodes) else (None,) * len(nodes)
        new = [self.value(x, node) for x, node in zip(old, nodes, strict=True)]
        if live is old and all(x is y for x, y in zip(old, new, strict=True)):
            return live
        return type(live)(*new) if hasattr(live, "_fields") else tuple(new)

    def named(self, content: tuple[str, Sequence[int]]) -> Tensor:
        """The tensor of a name with the order of its dimensions."""
        name, order = content
        if sorted(order) != list(range(self.tensors[name].dim())):
            raise ValueError(order)
        return self.tensors[name].permute([order.index(dim) for dim in range(len(order))])

    def tensor_of(self, live: Any, content: tuple[str, Sequence[int]]) -> Tensor:
        new = self.named(content)
        if self.in_place and isinstance(live, Tensor):
            if (live.shape, live.dtype) != (new.shape, new.dtype):
                raise ValueError(f"{list(new.shape)} {new.dtype} in the place of {live.shape}")
            self.changes.append(partial(live.copy_, new))
            new = live
        else:
            new = new.to(live.device if isinstance(live, Tensor) else self.device)
        self.met.append(new)
        return new

    def array_of(self, live: Any, content: tuple[str, Sequence[int]]) -> Any:
        new = self.named(content).numpy()
        if self.in_place and isinstance(live, np.ndarray):
            if (live.shape, live.dtype) != (new.shape, new.dtype):
                raise ValueError(f"{new.shape} {new.dtype} in the place of {live.shape}")
            self.changes.append(partial(np.copyto, live, new))
            new = live
        self.met.append(new)
        return new

    def generator_of(self, live: np.random.Generator, node: Any) -> np.random.Generator:
        self.met.append(live)
        state = self.value(None, node)
        if state["bit_generator"] != type(live.bit_generator).__name__:
            raise ValueError(state["bit_generator"])
        type(live.bit_generator)().state = state  # raises for what is none
        self.changes.append(partial(setattr, live.bit_generator, "state", state))
        return live

    def list_of(self, live: Any, nodes: Sequence[Any]) -> Any:
        own = self.in_place and isinstance(live, list)
        made: list[Any] = live if own else []
        self.met.append(made)
        old = [*live, *[None] * len(nodes)] if own else [None] * len(nodes)
        new = [self.value(x, node) for x, node in zip(old, nodes, strict=False)]
        if own:
            self.changes.append(partial(made.__setitem__, slice(None), new))
        else:
            made.extend(new)
        return made

    def dict_of(self, live: Any, items: Sequence[tuple[Any, Any]]) -> Any:
        own = self.in_place and isinstance(live, dict)
        made: dict[Any, Any] = live if own else {}
        self.met.append(made)
        new = {key: self.value(live.get(key) if own else None, node) for key, node in items}
        if own:
            self.changes += [made.clear, partial(made.update, new)]
        else:
            made.update(new)
        return made

    def object_of(self, live: Any, state: Mapping[str, Any]) -> Any:
        if live is None:
            raise ValueError("an object that is not there")
        self.met.append(live)
        for name, node in state.items():
            old = getattr(live, name, None)
            new = self.value(old, node)
            if new is not old:
                self.changes.append(partial(setattr, live, name, new))
        return live


# ---- The file ------------------------------------------------------------------------------


def write(path: Path, state: Any, tensors: Mapping[str, Tensor]) -> None:
    """Write JSON and tensors as one file, whole or not at all. Raises OSError."""
    found: dict[str, Tensor] = {}
    memory = set()
    for name, x in tensors.items():
        x = x.detach().cpu().contiguous()
        if x.untyped_storage().data_ptr() in memory:  # safetensors refuses a view of another one
            x = x.clone()
        memory.add(x.untyped_storage().data_ptr())
        found[name] = x
    # As a tensor: the header of a safetensors file may have 100 MB at most.
    found[STATE] = torch.frombuffer(bytearray(json.dumps(state).encode()), dtype=torch.uint8)
    found[DIGEST] = digest_of(found)
    write_bytes(path, safetensors.torch.save(found))


def read(path: Path, limit: int) -> tuple[Any, dict[str, Tensor]]:
    """The JSON and the tensors of a file of at most `limit` bytes. Raises UnusableError."""
    with _reading(path):
        tensors, _ = untrusted.read_tensors(path, limit)
        digest = tensors.pop(DIGEST)
        if not torch.equal(digest, digest_of(tensors)):
            raise UnusableError("it is damaged")
        return json.loads(bytes(tensors.pop(STATE).numpy())), tensors


def read_state(path: Path) -> Any:
    """The JSON of a file alone, which may be damaged elsewhere. Raises UnusableError."""
    with _reading(path):
        return json.loads(untrusted.read_one(path, STATE, MOST))


@contextlib.contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Raise UnusableError for whatever a file does to the block."""
    try:
        yield
    except UsageError as error:
        raise UnusableError("it " + str(error).removeprefix(f"{path}: ")) from None
    except MALFORMED:
        raise UnusableError("it is damaged") from None


def digest_of(tensors: Mapping[str, Tensor]) -> Tensor:
    """SHA-256 of the names, types, shapes and bytes of tensors, [32] uint8."""
    digest = hashlib.sha256()
    for name, x in sorted(tensors.items()):
        digest.update(f"{name} {x.dtype} {list(x.shape)}\n".encode())
        digest.update(x.reshape(-1).view(torch.uint8).numpy().data)
    return torch.frombuffer(bytearray(digest.digest()), dtype=torch.uint8)
