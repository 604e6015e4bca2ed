"""Sums, powers and linear systems with the same bits on every machine.

PyTorch and NumPy add the numbers of a sum, and LAPACK those of a solution, in an order that depends
on the CPU's vectors, on the number of threads and on the build; `pow` is as exact as the C library.
What stands here adds, multiplies and divides one number after the other, in an order that the code
says. Elementwise operations, comparisons and sums of integers are exact or rounded once anywhere.
"""

from __future__ import annotations

from itertools import accumulate, repeat
from operator import mul

import numpy as np
import torch
from torch import Tensor


def ordered_sum(x: Tensor, dim: int = -1) -> Tensor:
    """The sum along a dimension, which is removed: 0 + x_0 + x_1 + ..., added in this order."""
    return sum(x.unbind(dim), torch.zeros((), dtype=x.dtype, device=x.device))


def ordered_cumsum(x: Tensor) -> Tensor:
    """x_0, x_0 + x_1, ... along the last dimension, in the shape of x."""
    return torch.stack([*accumulate(x.unbind(-1))], -1)


def powers(base: float, count: int) -> list[float]:
    """1, base, base^2, ...: the first `count` powers, each the one before times base."""
    return [*accumulate(repeat(base, count - 1), mul, initial=1.0)]


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
