"""Sums, powers, exponentials and linear systems with the same bits on every machine.

PyTorch and NumPy add the numbers of a sum, and LAPACK those of a solution, in an order that depends
on the CPU's vectors, on the number of threads and on the build; `pow` is as exact as the C library,
and `exp` and `sqrt` are MKL's, which have other bits for other instructions.
What stands here adds, multiplies and divides one number after the other, in an order that the code
says. Elementwise operations, comparisons and sums of integers are exact or rounded once anywhere.
"""

from __future__ import annotations

import math
from itertools import accumulate, repeat
from operator import mul
from typing import Any

import numpy as np
import torch
from torch import Tensor

# log(2) in two parts; n times the first is exact.
LOG_2 = (0.693147180369123816490, 1.90821492927058770002e-10)


def ordered_sum(x: Tensor, dim: int = -1) -> Tensor:
    """The sum along a dimension, which is removed: 0 + x_0 + x_1 + ..., added in this order."""
    return sum(x.unbind(dim), torch.zeros((), dtype=x.dtype, device=x.device))


def ordered_cumsum(x: Tensor) -> Tensor:
    """x_0, x_0 + x_1, ... along the last dimension, in the shape of x."""
    return torch.stack([*accumulate(x.unbind(-1))], -1)


def powers(base: float, count: int) -> list[float]:
    """1, base, base^2, ...: the first `count` powers, each the one before times base."""
    return [*accumulate(repeat(base, count - 1), mul, initial=1.0)]


def exp(x: Tensor) -> Tensor:
    """e^x of each number, rounded from float64 where x is float32; differentiable."""
    return _Exp.apply(x)  # type: ignore[no-any-return, no-untyped-call]


def logsigmoid(x: Tensor) -> Tensor:
    """log(1 / (1 + e^-x)) of each number, likewise."""
    return _LogSigmoid.apply(x)  # type: ignore[no-any-return, no-untyped-call]


def sqrt(x: Tensor) -> Tensor:
    """The square root of each number of a small float64 tensor, rounded once."""
    roots = [math.sqrt(v) for v in x.flatten().tolist()]
    return torch.tensor(roots, dtype=x.dtype, device=x.device).view_as(x)


class _Exp(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        y = exp_of(x.double()).to(x.dtype)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:  # type: ignore[override]
        (y,) = ctx.saved_tensors
        return gradient * y


class _LogSigmoid(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        power = exp_of(-x.double().abs())
        ctx.save_for_backward((torch.where(x < 0, 1.0, power) / (1 + power)).to(x.dtype))
        # log(1 + p) = 2 (s + s^3/3 + s^5/5 + ...), s = p / (2 + p), at most 1/3
        s = power / (2 + power)
        square, sum_of_terms = s * s, torch.zeros_like(s)
        for k in reversed(range(17)):
            sum_of_terms = sum_of_terms * square + 1 / (2 * k + 1)
        return (x.double().clamp(max=0) - 2 * s * sum_of_terms).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:  # type: ignore[override]
        (slope,) = ctx.saved_tensors
        return gradient * slope


def exp_of(x: Tensor) -> Tensor:
    """e^x in float64: 2^n times a polynomial of the rest, |rest| <= log(2)/2."""
    inside = x.clamp(-708, 709).nan_to_num(0.0)
    n = (inside * (1 / math.log(2))).round()
    rest = inside - n * LOG_2[0] - n * LOG_2[1]
    y = torch.zeros_like(rest)
    for k in reversed(range(14)):  # its Taylor series
        y = y * rest + 1 / math.factorial(k)
    y = y * ((n.long() + 1023) << 52).view(torch.float64)  # 2^n by its bits
    y = torch.where(x < -708, 0.0, torch.where(x > 709, torch.inf, y))
    return torch.where(x.isnan(), x, y)


def solve(matrix: Tensor, right: Tensor) -> Tensor:
    """The solution x `[X]` of matrix x = right, for a matrix `[X, X]` that is I - gamma P.

    Gauss-Jordan elimination in float64. It needs no pivots: where no row of P sums to more than 1,
    the diagonal dominates every row, and stays so (Golub and Van Loan, 2013, section 3.4.10).
    Raises torch.linalg.LinAlgError for a singular matrix, unless rounding hides that.
    """
    rows = torch.cat((matrix, right.unsqueeze(-1)), -1).double().numpy()
    for k, row in enumerate(rows):
        if row[k] == 0:
            raise torch.linalg.LinAlgError("the matrix is singular")
        row /= row[k]
        others = np.flatnonzero(rows[:, k])  # few: most states cannot follow each other
        others = others[others != k]
        rows[others] -= rows[others, k, None] * row
    return torch.from_numpy(rows[:, -1].copy())
