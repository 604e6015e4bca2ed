"""The steps of optimizers over the seed axis in C (optim.c). S seeds, P parameters per seed."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from manyseeds import kernels


class _Step(ctypes.Structure):
    """`step` of optim.c."""

    _fields_ = (
        *((name, ctypes.c_int) for name in ("seeds", "networks", "count", "threads")),
        ("size", ctypes.c_long),
        *((name, ctypes.c_void_p) for name in ("sizes", "gradients", "takes_step", "max_norm")),
        *((name, ctypes.c_void_p) for name in ("parameters", "norms")),
    )


class Stepper:
    """The steps of one optimizer.

    parameters: of a module, `[S, K, ...]`, views of flat `[S, P]`.
    """

    def __init__(self, parameters: Sequence[Tensor], flat: Tensor) -> None:
        self.parameters, self.flat = list(parameters), flat
        self.S, self.K = parameters[0].shape[:2]
        sizes = [p[0, 0].numel() for p in parameters]
        self._sizes = (ctypes.c_long * len(sizes))(*sizes)

    def adam(
        self,
        lr: Tensor | float,
        max_grad_norm: Tensor | float,
        mask: Tensor | None,
        betas: tuple[float, float],
        eps: float,
        mean: Tensor,
        square: Tensor,
        powers: Tensor,
    ) -> Tensor:
        """A step of Adam; mean, square `[S, P]`, powers `[2, S]` float64. Returns the norms."""
        state = map(Tensor.data_ptr, (mean, square, powers))
        return self._step(kernels.functions().adam, lr, max_grad_norm, mask, *betas, eps, *state)

    def rmsprop(
        self,
        lr: Tensor | float,
        max_grad_norm: Tensor | float,
        mask: Tensor | None,
        alpha: float,
        eps: float,
        under_root: bool,
        square: Tensor,
    ) -> Tensor:
        """A step of RMSprop; square `[S, P]`. Returns the norms."""
        settings = alpha, eps, under_root, square.data_ptr()
        return self._step(kernels.functions().rmsprop, lr, max_grad_norm, mask, *settings)

    def _step(
        self,
        function: Any,
        lr: Tensor | float,
        max_grad_norm: Tensor | float,
        mask: Tensor | None,
        *settings: Any,
    ) -> Tensor:
        """Call a function of optim.c, and forget the gradients; returns the norms."""
        grads = [None if p.grad is None else p.grad.contiguous() for p in self.parameters]
        pointers = (ctypes.c_void_p * len(grads))(
            *[g if g is None else g.data_ptr() for g in grads]
        )
        limits = per_seed(max_grad_norm, self.S)
        chosen = None if mask is None else mask.contiguous()
        norms = self.flat.new_empty(self.S)
        step = _Step(
            *(self.S, self.K, len(grads), torch.get_num_threads()),
            *(self.flat.shape[1] // self.K, ctypes.addressof(self._sizes)),
            *(ctypes.addressof(pointers), None if chosen is None else chosen.data_ptr()),
            *(limits.data_ptr(), self.flat.data_ptr(), norms.data_ptr()),
        )
        for p in self.parameters:
            p.grad = None
        rates = per_seed(lr, self.S, torch.float64)  # a name: it has to outlive the call
        if function(ctypes.byref(step), rates.data_ptr(), *settings):
            raise MemoryError("allocating memory for a step failed")
        return norms


def takes(optimizer: Any, *args: Any) -> bool:
    """Whether a step of a SeedOptimizer can be taken in C."""
    return kernels.usable(optimizer.params)


def adam(
    optimizer: Any,
    /,
    lr: Tensor | float,
    max_grad_norm: Tensor | float = 0.0,
    mask: Tensor | None = None,
) -> Tensor:
    """What `SeedAdam.step` of optim.py says."""
    state = optimizer.betas, optimizer.eps, optimizer.mean, optimizer.square, optimizer.beta_powers
    return optimizer.stepper.adam(lr, max_grad_norm, mask, *state)  # type: ignore[no-any-return]


def rmsprop(
    optimizer: Any,
    /,
    lr: Tensor | float,
    max_grad_norm: Tensor | float = 0.0,
    mask: Tensor | None = None,
) -> Tensor:
    """What `SeedRMSprop.step` of optim.py says."""
    state = optimizer.alpha, optimizer.eps, optimizer.tf, optimizer.square
    return optimizer.stepper.rmsprop(lr, max_grad_norm, mask, *state)  # type: ignore[no-any-return]


def per_seed(value: Tensor | float, seeds: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """A hyperparameter, a number or 0-d for all seeds, `[S]` or `[S, 1]`, as `[S]` for C."""
    if isinstance(value, Tensor):
        return value.to(dtype).flatten().expand(seeds).contiguous()
    return _constant(value, seeds, dtype)


@lru_cache(maxsize=256)
def _constant(value: float, seeds: int, dtype: torch.dtype) -> Tensor:
    return torch.full((seeds,), value, dtype=dtype)
