"""Operations on the samples of rollouts, for all seeds at once. S seeds."""

from __future__ import annotations

import torch
from torch import Tensor

from manyseeds.kernels import in_c, scan, usable
from manyseeds.rows import broadcast


@torch.no_grad()
@in_c(scan.discounted_sums, usable)
def discounted_sums(x: Tensor, decay: Tensor) -> Tensor:
    """y_t = x_t + decay_t y_{t+1} from the last step backwards; all `[S, T, N]`."""
    total, totals = torch.zeros_like(x[:, 0]), []
    for t in reversed(range(x.shape[1])):
        total = x[:, t] + decay[:, t] * total
        totals.append(total)
    return torch.stack(totals[::-1], dim=1)


def n_step(
    rewards: Tensor,
    values: Tensor,
    next_values: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    gamma: float | Tensor,
    n_steps: int,
) -> Tensor:
    """r_t + ... + gamma^{n-1} r_{t+n-1} + gamma^n V(s_{t+n}) - V(s_t), n = n_steps; `[S, T, N]`.

    n is smaller where the episode or the rollout ends before: V of the last successor bootstraps
    there, but after a termination.
    """
    gamma = broadcast(gamma, rewards)
    one_step = rewards + gamma * next_values * ~terminated
    goes_on = ~(terminated | truncated)[:, :-1]
    targets = one_step
    for _ in range(n_steps - 1):  # n + 1 steps from here are one step, then n from the next
        longer = rewards[:, :-1] + gamma * targets[:, 1:]
        longer = torch.where(goes_on, longer, one_step[:, :-1])
        targets = torch.cat((longer, one_step[:, -1:]), dim=1)
    return targets - values


def monte_carlo(
    rewards: Tensor,
    values: Tensor,
    next_values: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    gamma: float | Tensor,
) -> Tensor:
    """The return to the end of the episode or of the rollout, minus V(s_t); all `[S, T, N]`.

    V of the last successor stands for what would follow, but after a termination.
    """
    following, returns = next_values[:, -1], []
    gamma = broadcast(gamma, following)
    for t in reversed(range(rewards.shape[1])):
        following = torch.where(truncated[:, t], next_values[:, t], following) * ~terminated[:, t]
        following = rewards[:, t] + gamma * following
        returns.append(following)
    return torch.stack(returns[::-1], dim=1) - values


@in_c(scan.permutations, usable)
def permutations(keys: Tensor) -> Tensor:
    """Random permutations of B, `[..., B]` int64: the orders that sort uniforms `[..., B]`."""
    return keys.argsort(stable=True, dim=-1)


@in_c(scan.take)
def take(x: Tensor, indices: Tensor) -> Tensor:
    """Of each seed the samples that indices `[S, M]` name: `[S, M, ...]` of x `[S, B, ...]`."""
    S, B = x.shape[:2]
    first = B * torch.arange(S, device=x.device).unsqueeze(1)
    rows = x.flatten(0, 1).index_select(0, (first + indices).flatten())
    return rows.view(S, -1, *x.shape[2:])
