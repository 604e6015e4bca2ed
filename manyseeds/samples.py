"""Operations on the samples of rollouts, for all seeds at once. S seeds."""

from __future__ import annotations

import torch
from torch import Tensor

from manyseeds.kernels import in_c, scan, usable


@torch.no_grad()
@in_c(scan.discounted_sums, usable)
def discounted_sums(x: Tensor, decay: Tensor) -> Tensor:
    """y_t = x_t + decay_t y_{t+1} from the last step backwards; all `[S, T, N]`."""
    total, totals = torch.zeros_like(x[:, 0]), []
    for t in reversed(range(x.shape[1])):
        total = x[:, t] + decay[:, t] * total
        totals.append(total)
    return torch.stack(totals[::-1], dim=1)


@in_c(scan.shuffles, usable)
def shuffles(keys: Tensor) -> Tensor:
    """The orders `[..., B]` int64 that sort uniforms `[..., B]`: random permutations of B."""
    return keys.argsort(stable=True, dim=-1)


@in_c(scan.take)
def take(x: Tensor, indices: Tensor) -> Tensor:
    """Of each seed the samples that indices `[S, M]` name: `[S, M, ...]` of x `[S, B, ...]`."""
    S, B = x.shape[:2]
    first = B * torch.arange(S, device=x.device).unsqueeze(1)
    rows = x.flatten(0, 1).index_select(0, (first + indices).flatten())
    return rows.view(S, -1, *x.shape[2:])
