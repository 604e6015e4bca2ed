"""How the iterations of a training are run: eagerly, with compiled pieces, or as a CUDA graph.

An algorithm writes its iteration (collect, then update) once, as a function

    iteration(learner, carry, inputs, *static) -> (carry, outputs)

carry: tensors that go from one iteration to the next, such as the state of the environments.
inputs: tensors that come from outside: noise, and numbers that follow a schedule, as 0-d tensors.
static: plain values that choose between a few variants of the iteration.

What else changes (weights, moments, a replay memory, statistics) lives in the learner and is
changed in place; nothing is read back from the device, and no random number is drawn. The same
function then serves all modes:

eager      calls it.
compiled   calls it with its `@piece` and `@stepwise` functions compiled (`--compile`).
captured   records its kernels once as a CUDA graph and replays them: no Python work per environment
           step. The way of every training on CUDA whose environment is native.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, ParamSpec, Protocol, TypeVar

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_map_only, tree_unflatten

from manyseeds.errors import UsageError

P = ParamSpec("P")
R = TypeVar("R")

# What one compiled graph holds: more runs a little faster and compiles a lot longer.
CHUNK = 16  # environment steps
UNROLL = 4  # gradient steps

_compiling: ContextVar[bool] = ContextVar("compiling", default=False)
_compiled: set[Callable[..., Any]] = set()  # the iterations that this process has compiled


def piece(function: Callable[P, R]) -> Callable[P, R]:
    """Mark a hot function, which a compiled program compiles and every other one just calls.

    It must not depend on numbers that change from call to call (they would be compiled in anew each
    time): those come as tensors. `loss.backward()` may be inside, and other pieces.
    """

    @functools.cache
    def compiled() -> Callable[P, R]:
        return torch.compile(function, dynamic=False, fullgraph=True)

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        traced = torch.compiler.is_compiling()  # as a part of another piece
        return (compiled() if not traced and _compiling.get() else function)(*args, **kwargs)

    return call


def stepwise(function: Callable[..., R]) -> Callable[..., R]:
    """Mark a function that acts for as many steps as its noise has; compiled in chunks of CHUNK.

    It is `function(env, policy, state, obs, *noise)` with noise `[..., T, ...]`, steps in dimension
    1, and returns the next state and obs and nested tuples of tensors, steps in dimension 1 too.
    """
    chunk_piece: Callable[..., Any] = piece(function)

    @functools.wraps(function)
    def call(env: Any, policy: Any, state: Any, obs: Any, *noise: Tensor) -> Any:
        if not _compiling.get():
            return function(env, policy, state, obs, *noise)
        chunks, steps = [], noise[0].shape[1]
        # Equally long ones where there is a way: a remainder would be compiled on its own.
        size = max((k for k in range(4, CHUNK + 1) if steps % k == 0), default=CHUNK)
        for chunk_noise in zip(*(n.split(size, dim=1) for n in noise), strict=True):
            state, obs, chunk = chunk_piece(env, policy, state, obs, *chunk_noise)
            chunks.append(chunk)
        _, structure = tree_flatten(chunks[0])
        fields = [torch.cat(field, dim=1) for field in zip(*map(leaves, chunks), strict=True)]
        return state, obs, tree_unflatten(fields, structure)

    return call


def unrolled(x: Tensor, unit: int = 1) -> tuple[Tensor, ...]:
    """Equal parts of x along dimension 1, each of UNROLL units or fewer.

    A part is what one compiled graph works on; how x is divided has no effect on the result.
    """
    units = x.shape[1] // unit
    most = max(k for k in range(1, UNROLL + 1) if units % k == 0)
    return x.split(most * unit, dim=1)


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
    """CUDA graphs."""

    def warm_up(self, body: Callable[[], Any]) -> Any:
        stream = torch.cuda.Stream()  # recording happens on a stream beside the main one, too
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            outputs = body()
        torch.cuda.current_stream().wait_stream(stream)
        return outputs

    def record(self, body: Callable[[], Any]) -> tuple[Graph, Any]:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            outputs = body()
        return graph, outputs


class Program:
    """Runs `iteration(learner, carry, inputs, *static)` in one of the modes.

    compiled: compile the pieces. native: the environment's steps are tensor operations only.
    """

    def __init__(
        self,
        iteration: Callable[..., tuple[Any, Any]],
        device: torch.device,
        compiled: bool = False,
        native: bool = True,
    ) -> None:
        self.iteration, self.compiled = iteration, compiled
        self.recorder: GraphRecorder | None = None
        if device.type == "cuda" and native:
            self.recorder = CudaRecorder()
        self._recorded: dict[tuple[Any, ...], _Recorded | None] = {}  # by static values
        if compiled:
            set_up_compiler(iteration)

    def __call__(self, learner: Any, carry: Any, inputs: Any, *static: Any) -> tuple[Any, Any]:
        """One iteration; returns the new carry and the outputs."""
        token = _compiling.set(self.compiled)
        try:
            if self.recorder is None:
                return self.iteration(learner, carry, inputs, *static)
            return self._replay(self.recorder, learner, carry, inputs, *static)
        finally:
            _compiling.reset(token)

    def _replay(
        self, recorder: GraphRecorder, learner: Any, carry: Any, inputs: Any, *static: Any
    ) -> tuple[Any, Any]:
        def body(carry: Any, inputs: Any) -> tuple[Any, Any]:
            return self.iteration(learner, carry, inputs, *static)

        if static not in self._recorded:  # a first time creates what is created once: constants
            self._recorded[static] = None
            return recorder.warm_up(lambda: body(carry, inputs))  # type: ignore[no-any-return]
        recorded = self._recorded[static]
        if recorded is None:
            recorded = self._recorded[static] = _Recorded(recorder, body, carry, inputs)
        return recorded(carry, inputs)


class _Recorded:
    """A graph with memory of its own for what goes in and comes out."""

    def __init__(
        self, recorder: GraphRecorder, body: Callable[..., tuple[Any, Any]], carry: Any, inputs: Any
    ) -> None:
        self.inputs = clone((carry, inputs))
        self.graph, self.outputs = recorder.record(lambda: body(*self.inputs))

    def __call__(self, carry: Any, inputs: Any) -> tuple[Any, Any]:
        # Into the memory of the graph, and out of it before the next replay overwrites it.
        for ours, given in zip(leaves(self.inputs), leaves((carry, inputs)), strict=True):
            ours.copy_(given)
        self.graph.replay()
        return clone(self.outputs)  # type: ignore[no-any-return]


def clone(tree: Any) -> Any:
    """A copy of every tensor in nested tuples and dictionaries."""
    return tree_map_only(Tensor, torch.clone, tree)


def leaves(tree: Any) -> list[Tensor]:
    """All tensors in nested tuples and dictionaries, in order."""
    found, _ = tree_flatten(tree)
    return [leaf for leaf in found if isinstance(leaf, Tensor)]


def check_compiler() -> None:
    """torch.compile needs a C++ compiler on the CPU; raises UsageError where there is none."""
    from torch._inductor.cpp_builder import get_cpp_compiler
    from torch._inductor.exc import InvalidCxxCompiler

    try:
        get_cpp_compiler()
    except InvalidCxxCompiler:
        raise UsageError("--compile: needs a C++ compiler such as g++; CXX may name it") from None


def set_up_compiler(iteration: Callable[..., Any]) -> None:
    """Let a graph hold `backward()`, and several sizes of a piece be compiled.

    Raises UsageError when this process has compiled another algorithm before: tracing `backward()`
    then confuses the two ("agent missing", torch 2.13).
    """
    import torch._dynamo

    if _compiled - {iteration}:
        raise UsageError("--compile: one algorithm per process; start another one for this")
    _compiled.add(iteration)
    torch._dynamo.config.trace_autograd_ops = True
    torch._dynamo.config.recompile_limit = 64
    # The tensors of constants are cached by functools: dynamo traces through, and says so.
    warnings.filterwarnings("ignore", message=".*functools.lru_cache.*")
