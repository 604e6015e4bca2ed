"""An iteration of a training as a CUDA graph: no Python work per environment step.

An algorithm writes its iteration (a rollout, then the update) once, as a function of tensors, and
marks it with `captured`. On a CPU that is the function itself. On CUDA its kernels are recorded and
from then on replayed, with the arguments copied into the memory of the graph. What a recorded
function may do:

- Tensors come in and go out as arguments and results, in nested tuples and dictionaries. Arguments
  that are not tensors (a flag such as `first`) choose between recordings.
- What else changes, such as weights, moments, a replay memory or statistics, it changes in place.
- Nothing is read back from the device, and no random number is drawn.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, ParamSpec, Protocol, TypeVar, cast

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_map_only

P = ParamSpec("P")
R = TypeVar("R")


class Graph(Protocol):
    """A recorded computation with fixed memory."""

    def replay(self) -> None:
        """Compute it again, on what its memory holds now."""


class GraphRecorder(Protocol):
    """Records computations."""

    def warm_up(self, body: Callable[[], Any]) -> Any:
        """Run body() once before it is recorded; returns what it returns."""

    def record(self, body: Callable[[], Any]) -> tuple[Graph, Any]:
        """Record body() without running it; returns the graph, and body's outputs in its memory."""


class CudaRecorder:
    """CUDA graphs, all in one memory pool.

    They may share it, in whatever order they are replayed: what goes into a graph lies outside, and
    what comes out is copied before the next replay.
    """

    def __init__(self) -> None:
        self.pool: Any = None  # that of the first graph

    def warm_up(self, body: Callable[[], Any]) -> Any:
        stream = side_stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            outputs = body()
        torch.cuda.current_stream().wait_stream(stream)
        return outputs

    def record(self, body: Callable[[], Any]) -> tuple[Graph, Any]:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self.pool, stream=side_stream()):
            outputs = body()
        self.pool = graph.pool()
        return graph, outputs


@cache
def side_stream() -> torch.cuda.Stream:
    """The stream that graphs are recorded on: cuBLAS keeps memory for every stream it has seen."""
    return torch.cuda.Stream()


def recorder_for(device: torch.device, native: bool) -> GraphRecorder | None:
    """What records on a device; native: the environment's steps are tensor operations only."""
    return CudaRecorder() if device.type == "cuda" and native else None


def captured(device: torch.device, native: bool) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Record a function's computation on CUDA, where the environment is native."""

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        recorder = recorder_for(device, native)
        if recorder is None:
            return function
        return cast(Callable[P, R], Captured(function, recorder))

    return decorate


class Captured:
    """A function that is run once, recorded at the next call, and replayed from then on.

    That holds for each combination of flags and of the tensors' shapes and types.
    """

    def __init__(self, function: Callable[..., Any], recorder: GraphRecorder) -> None:
        self.function, self.recorder = function, recorder
        self._recorded: dict[tuple[Any, ...], _Recorded | None] = {}

    def __call__(self, *args: Any) -> Any:
        found, _ = tree_flatten(args)
        variant = tuple((x.shape, x.dtype) if isinstance(x, Tensor) else x for x in found)
        if variant not in self._recorded:  # a first time creates what is created once: constants
            self._recorded[variant] = None
            return self.recorder.warm_up(lambda: self.function(*clone(args)))
        recorded = self._recorded[variant]
        if recorded is None:
            recorded = self._recorded[variant] = _Recorded(self.function, self.recorder, args)
        return recorded(args)


class _Recorded:
    """A graph with memory of its own for what goes in and comes out."""

    def __init__(
        self, function: Callable[..., Any], recorder: GraphRecorder, args: tuple[Any, ...]
    ) -> None:
        self.inputs = clone(args)
        self.graph, self.outputs = recorder.record(lambda: function(*self.inputs))

    def __call__(self, args: tuple[Any, ...]) -> Any:
        # Into the memory of the graph, and out of it before the next replay overwrites it.
        for ours, given in zip(leaves(self.inputs), leaves(args), strict=True):
            ours.copy_(given)
        self.graph.replay()
        return clone(self.outputs)


def from_host(values: Tensor | float, device: torch.device) -> Tensor:
    """Numbers as a tensor on a device, float32, without waiting for the device."""
    if isinstance(values, Tensor):
        host = values.float()
    else:
        host = torch.from_numpy(np.array(values, np.float32))  # half as long as torch.as_tensor
    if device.type == "cpu":
        return host
    if device.type == "cuda" and host.device.type == "cpu":
        host = host.pin_memory()
    return host.to(device, non_blocking=True)


def clone(tree: Any) -> Any:
    """A copy of every tensor in nested tuples and dictionaries."""
    return tree_map_only(Tensor, torch.clone, tree)


def leaves(tree: Any) -> list[Tensor]:
    """All tensors in nested tuples and dictionaries, in order."""
    found, _ = tree_flatten(tree)
    return [leaf for leaf in found if isinstance(leaf, Tensor)]
