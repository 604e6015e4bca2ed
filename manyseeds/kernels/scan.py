"""Recurrences over the steps of rollouts, and shuffles, for all seeds at once."""

from __future__ import annotations

import torch
from torch import Tensor

from manyseeds import kernels


@torch.no_grad()
def discounted_sums(x: Tensor, decay: Tensor) -> Tensor:
    """y_t = x_t + decay_t y_{t+1} from the last step backwards; all `[S, T, N]`."""
    if kernels.usable(x, decay) and x.shape == decay.shape:
        x, decay = x.contiguous(), decay.contiguous()
        y = torch.empty_like(x)
        pointers = x.data_ptr(), decay.data_ptr(), y.data_ptr()
        kernels.functions().discounted_sums(*x.shape, *pointers)
        return y
    total, totals = torch.zeros_like(x[:, 0]), []
    for t in reversed(range(x.shape[1])):
        total = x[:, t] + decay[:, t] * total
        totals.append(total)
    return torch.stack(totals[::-1], dim=1)


def shuffles(keys: Tensor) -> Tensor:
    """The orders `[..., B]` int64 that sort uniforms `[..., B]`: random permutations of B."""
    if kernels.usable(keys):
        keys = keys.contiguous()
        order = torch.empty(keys.shape, dtype=torch.int64)
        rows, pointers = keys.numel() // keys.shape[-1], (keys.data_ptr(), order.data_ptr())
        if kernels.functions().order_of(rows, keys.shape[-1], *pointers):
            raise MemoryError("allocating memory for a shuffle failed")
        return order
    return keys.argsort(stable=True, dim=-1)
