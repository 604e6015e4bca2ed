"""What tests of tabular environments share."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import torch
from torch import Tensor

from manyseeds import envs
from manyseeds.envs import TabularEnv


def table(env_id: str) -> TabularEnv:
    env = envs.NATIVE[env_id]()
    assert isinstance(env, TabularEnv)
    return env


def chance(env: TabularEnv) -> bool:
    return bool((env.P.max(-1).values < 1).any())


def sizes(env: TabularEnv) -> tuple[int, int]:
    """X and A."""
    A, X, _ = env.P.shape
    return X, A


def uniform(env: TabularEnv) -> Tensor:
    X, A = sizes(env)
    return torch.full((1, X, A), 1 / A, dtype=torch.float64)


def one_hot(actions: Tensor, A: int) -> Tensor:
    return torch.nn.functional.one_hot(actions, A)


def random_policies(env: TabularEnv, S: int, rng: np.random.Generator) -> Tensor:
    """Greedy for random actions, `[S, X, A]`."""
    X, A = sizes(env)
    return one_hot(torch.from_numpy(rng.integers(0, A, (S, X))), A)


def reachable(env: TabularEnv) -> set[int]:
    """The states that an episode can see."""
    seen, new = set(), set(env.start.nonzero()[:, 0].tolist())
    while new:
        seen |= new
        going = [x for x in new if not env.ends[x]]
        new = set(env.P[:, going].sum((0, 1)).nonzero()[:, 0].tolist()) - seen
    return seen


def best_actions(env: TabularEnv, gamma: float) -> Tensor:
    """Greedy `[X]` for the fixed point of the Bellman equation; ties to the first."""
    P, r, ends = env.P, (env.P * env.R).sum(-1), env.ends
    value = torch.zeros(len(ends)).double()
    for _ in range(5_000):
        q = r + gamma * P @ value  # [A, X]
        new = torch.where(ends, 0.0, q.max(0).values)
        if (new - value).abs().max() < 1e-13:
            break
        value = new
    return q.round(decimals=9).max(0).indices


def optimum(env: TabularEnv) -> float:
    """The mean return of the best of all policies under the time limit, stationary or not."""
    r, value = (env.P * env.R).sum(-1), torch.zeros(len(env.ends)).double()
    for _ in range(env.spec.time_limit):
        value = torch.where(env.ends, 0.0, (r + env.P @ value).max(0).values)
    return float(value @ env.start)


def gym_tables(env: Any) -> tuple[np.ndarray, np.ndarray]:
    """P [A, X, X] and R [A, X, X] of Gymnasium's dictionaries; R is 0 where P is."""
    A, X = env.action_space.n, env.observation_space.n
    P, R = np.zeros((A, X, X)), np.zeros((A, X, X))
    for x, a in itertools.product(range(X), range(A)):
        for probability, successor, reward, _ in env.P[x][a]:
            P[a, x, successor] += probability
            R[a, x, successor] = reward
    return P, R


def assert_equal_tables(ours: TabularEnv, theirs: Any) -> None:
    """For all states, also those that no episode sees; flags for those that one does."""
    P, R = gym_tables(theirs)
    np.testing.assert_allclose(ours.P, P, rtol=0, atol=1e-15)
    np.testing.assert_array_equal(np.where(P > 0, ours.R, 0.0), R)  # R elsewhere never counts
    np.testing.assert_array_equal(ours.start, theirs.initial_state_distrib)
    flags = set()
    for x in reachable(ours):
        for a in range(sizes(ours)[1]) if not ours.ends[x] else ():
            for _, successor, _, terminated in theirs.P[x][a]:
                assert bool(ours.ends[successor]) == bool(terminated)
                flags.add(bool(terminated))
    assert flags == {False, True}
