"""Environments given by their tables: transition probabilities P and rewards R."""

from __future__ import annotations

import torch
from torch import Tensor

from envs.core import EnvSpec, NativeEnv


class TabularEnv(NativeEnv):
    """A finite Markov decision process with X states and A actions.

    P: `[A, X, X']` float64, probability of each successor. R: `[A, X, X']` float64, its reward.
    ends: `[X]` bool, states in which the task is over. start: `[X]`, distribution of first states.
    The physics of such an environment is the state index, `[S, N]` int64.
    """

    initial_noise = 1
    transition_noise = 1

    def __init__(self, spec: EnvSpec, P: Tensor, R: Tensor, ends: Tensor, start: Tensor) -> None:
        self.spec, self.P, self.R, self.ends, self.start = spec, P, R, ends, start
        # Only successors that can occur are stored, so that one uniform is compared with K
        # cumulative probabilities instead of X.
        successors = int((P > 0).sum(-1).max())
        probabilities, self._successors = P.topk(successors, dim=-1)  # [A, X, K]
        self._cumulative = probabilities.cumsum(-1)
        self._cumulative[..., -1] = 1.0
        self._start_cumulative = start.cumsum(0)
        self._start_cumulative[start.nonzero()[-1, 0] :] = 1.0
        self._rewards = R.float()

    def initial(self, noise: Tensor) -> Tensor:
        return torch.searchsorted(self._start_cumulative, noise[..., 0].double(), right=True)

    def transition(self, physics: Tensor, action: Tensor, noise: Tensor) -> Tensor:
        which = (noise >= self._cumulative[action, physics]).sum(-1, keepdim=True)
        return self._successors[action, physics].gather(-1, which).squeeze(-1)

    def observation(self, physics: Tensor) -> Tensor:
        return physics

    def reward(self, physics: Tensor, action: Tensor, next_physics: Tensor) -> Tensor:
        return self._rewards[action, physics, next_physics]

    def terminal(self, physics: Tensor) -> Tensor:
        return self.ends[physics]

    def policy_score(self, policy: Tensor) -> Tensor:
        """Exact mean undiscounted return of one episode under the time limit, `[S]` float64.

        policy: `[S, X, A]` action probabilities. Backward induction over the time limit:
        V_h(x) = sum_a pi(a|x) sum_x' P(x'|x, a) (R(x, a, x') + V_{h-1}(x')), V = 0 once ended.
        """
        policy = policy.double()
        continues = (~self.ends).double()
        P_pi = torch.einsum("sxa,axy->sxy", policy, self.P) * continues[:, None]
        r_pi = torch.einsum("sxa,axy,axy->sx", policy, self.P, self.R) * continues
        value = torch.zeros_like(r_pi)
        for _ in range(self.spec.time_limit):
            value = r_pi + torch.einsum("sxy,sy->sx", P_pi, value)
        return value @ self.start
