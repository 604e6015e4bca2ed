"""What the examples of formulas are made of, and what their mistakes have in common.

Shapes, without the first dimension of our files, the seed: T steps, N environments, M samples.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from manyseeds.probes.compare import Batch, Function, Mistake

M = 37  # samples of examples


def normal(*shape: int, seed: int = 0) -> Tensor:
    """The random numbers of an example: float64, the same every time, equal to their float32."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator).double()


def chance(p: float, *shape: int, seed: int = 0) -> Tensor:
    """Random flags."""
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed)) < p


def one_seed(function: Function) -> Function:
    """A function of tensors [1, ...], of the same without their first dimension."""

    def call(*args: Any) -> Any:
        given = (x.unsqueeze(0) if isinstance(x, Tensor) else x for x in args)
        return function(*given).squeeze(0)

    return call


def later(x: Tensor) -> Tensor:
    """x one step later, 0 before."""
    return torch.cat((torch.zeros_like(x[:1]), x[:-1]))


def earlier(x: Tensor) -> Tensor:
    return torch.cat((x[1:], torch.zeros_like(x[:1])))


def ended(b: Batch) -> Tensor:
    return b["terminated"] | b["truncated"]


def never(b: Batch) -> Tensor:
    return torch.zeros_like(b["terminated"])


def without(f: Function, b: Batch, *names: str) -> Any:
    """The function with hyperparameters of 0."""
    return f(**b | dict.fromkeys(names, 0.0))


def times(name: str, factor: float) -> Mistake:
    """Our function, in which the term of a coefficient has another factor."""

    def mistake(f: Function, b: Batch) -> Any:
        rest = without(f, b, name)
        return rest + factor * (f(**b) - rest)

    return mistake
