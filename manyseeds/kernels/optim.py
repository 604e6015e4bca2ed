"""The steps of optimizers over the seed axis in C (optim.c). S seeds, P parameters per seed."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from torch import Tensor

from manyseeds import kernels
from manyseeds.kernels.binding import Struct

HERE = Path(__file__).parent
OPTIMIZER = Struct(HERE / "optim.h", "optimizer")
STEP = kernels.kernel(HERE / "optim.c", "step")


def struct(optimizer: Any, lr: Tensor | float, max_grad_norm: Tensor | float) -> ctypes.Structure:
    """The `optimizer` of optim.h for a SeedAdam, SeedRAdam or SeedRMSprop."""
    S, P = optimizer.params.shape
    kind = kind_of(optimizer.__class__)
    is_adam, is_radam = kind != "SeedRMSprop", kind == "SeedRAdam"
    beta1, beta2 = optimizer.betas if is_adam else (0.0, optimizer.alpha)
    return OPTIMIZER(
        S=S,
        kind=3 if is_radam else 0 if is_adam else 1 + optimizer.tf,  # as numbered in C
        P=P,
        parameters=optimizer.params,
        mean=optimizer.mean if is_adam else None,
        square=optimizer.square,
        powers=optimizer.beta_powers if is_adam else None,
        steps=optimizer.steps if is_radam else None,
        rates=lr,
        max_norm=max_grad_norm,
        beta1=beta1,
        beta2=beta2,
        eps=optimizer.eps,
    )


@lru_cache
def kind_of(optimizer: Any) -> str:
    """The class whose `step` an optimizer has."""
    return next(x.__name__ for x in optimizer.__mro__ if "step" in vars(x))


def takes(optimizer: Any, *args: Any) -> bool:
    """Whether a step of a SeedOptimizer can be taken in C."""
    return kernels.usable(optimizer.params)


def step(
    optimizer: Any,
    /,
    lr: Tensor | float,
    max_grad_norm: Tensor | float = 0.0,
    mask: Tensor | None = None,
) -> Tensor:
    """What `step` of the optimizers of optim.py says."""
    parameters: Sequence[Tensor] = optimizer.parameters
    S, K = parameters[0].shape[:2]
    grads = [None if p.grad is None else rows_whole(p.grad) for p in parameters]
    # Arrays of ctypes: tensors take several times as long to make.
    pointers = array(ctypes.c_void_p, [None if g is None else g.data_ptr() for g in grads])
    between = [0 if g is None else g.stride(d) for d in (0, 1) for g in grads]
    sizes, strides = array(ctypes.c_int64, map(size_of, parameters)), array(ctypes.c_int64, between)
    norms = optimizer.params.new_empty(S)
    STEP(
        S=S,
        K=K,
        count=len(grads),
        optimizer=struct(optimizer, lr, max_grad_norm),
        gradients=ctypes.addressof(pointers),
        sizes=ctypes.addressof(sizes),
        strides=ctypes.addressof(strides),
        mask=mask,
        norms=norms,
    )
    for p in parameters:
        p.grad = None
    return norms


def array(kind: Any, values: Iterable[Any]) -> Any:
    """An array in C."""
    numbers = list(values)
    return (kind * len(numbers))(*numbers)


def size_of(p: Tensor) -> int:
    """The floats of a network's parameter."""
    return p.numel() // (p.shape[0] * p.shape[1])


def rows_whole(gradient: Tensor) -> Tensor:
    """A gradient `[S, K, ...]` in which each network's lies in one piece."""
    return gradient if gradient[0, 0].is_contiguous() else gradient.contiguous()
