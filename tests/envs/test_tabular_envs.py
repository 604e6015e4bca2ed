"""Environments with tables P and R, against Gymnasium's and against definitions written out."""

from __future__ import annotations

import math
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from manyseeds import envs
from manyseeds.envs import EnvSpec, TabularEnv, Taxi
from manyseeds.seeds import SeedStreams
from tests.envs.checks import Checks, declared
from tests.envs.tables import (
    assert_equal_tables,
    best_actions,
    chance,
    one_hot,
    optimum,
    random_policies,
    reachable,
    sizes,
    table,
    uniform,
)

CHECKS = declared()

TABULAR = [env_id for env_id, build in envs.NATIVE.items() if isinstance(build(), TabularEnv)]


def one_panel(env_id: str) -> bool:
    return len(table(env_id).layout.panels) == 1


# ---- Gymnasium's own --------------------------------------------------------------------


@pytest.mark.parametrize("env_id", [x for x in TABULAR if x in gym.registry])
def test_tables_are_gymnasiums(env_id: str) -> None:
    assert_equal_tables(table(env_id), gym.make(env_id).unwrapped)


@pytest.mark.parametrize(
    "env_id", [x for x in TABULAR if x in gym.registry and not chance(table(x))]
)
def test_episodes_are_gymnasiums_free_running(env_id: str) -> None:
    """10,000 steps, many episodes of both ends; only the starts are given to Gymnasium's.

    Half of the environments act at random, the others half of the time as value iteration does,
    because chance alone hardly ever brings a passenger home.
    """
    env, rng, S, N = table(env_id), np.random.default_rng(0), 2, 4
    A, limit = env.spec.num_actions, env.spec.time_limit
    best = best_actions(env, 0.99)
    cells = list(np.ndindex(S, N))
    theirs: dict[Any, Any] = {c: gym.make(env_id, max_episode_steps=limit) for c in cells}

    def begin(cell: tuple[int, ...], state: Tensor) -> None:
        theirs[cell].reset(seed=0)
        theirs[cell].unwrapped.s = state.item()

    streams = SeedStreams(range(S), "train")
    state, obs = env.reset(streams.uniform(N, 1))
    for cell in cells:
        begin(cell, obs[cell])
    terminations = truncations = 0
    for _ in range(10_000 // (S * N)):
        follow = torch.from_numpy(rng.random((S, N)) < 0.5) & (torch.arange(N) < N // 2)
        actions = torch.where(follow, best[obs], torch.from_numpy(rng.integers(0, A, (S, N))))
        step = env.step(state, actions, streams.uniform(N, 2))
        for cell in cells:
            expected = theirs[cell].step(actions[cell].item())[:4]
            ours = (step.final_obs, step.reward, step.terminated, step.truncated)
            # Gymnasium says True for both flags at once, and so do we.
            assert tuple(x[cell].item() for x in ours) == expected
            if step.terminated[cell] or step.truncated[cell]:
                begin(cell, step.obs[cell])
        terminations += int(step.terminated.sum())
        truncations += int(step.truncated.sum())
        state, obs = step.state, step.obs
    assert terminations > 25
    assert truncations > 15


@pytest.mark.parametrize("env_id", TABULAR)
def test_starts_are_drawn_from_the_start_distribution(env_id: str) -> None:
    env = table(env_id)
    draws = 150_000
    _, obs = env.reset(SeedStreams([1], "train").uniform(draws, 1))
    counts = obs[0].bincount(minlength=len(env.start)).double()
    assert not counts[env.start == 0].any()
    expected = draws * env.start[env.start > 0]
    statistic = ((counts[env.start > 0] - expected) ** 2 / expected).sum().item()
    freedom = len(expected) - 1
    assert abs(statistic - freedom) <= 4 * math.sqrt(2 * freedom)
    ends = torch.tensor([[[0.0], [1 - 2**-24]]])
    first, last = env.reset(ends)[1][0].tolist()
    states = env.start.nonzero()[:, 0].tolist()
    assert (first, last) == (states[0], states[-1])


# ---- Scores -----------------------------------------------------------------------------


@pytest.mark.parametrize("env_id", TABULAR)
def test_scores_are_exact(env_id: str) -> None:
    """No policy beats the reference without chance; with it, stationary ones are not the best."""
    env, rng = table(env_id), np.random.default_rng(0)
    exact = env.policy_score(uniform(env)).item()
    assert exact == pytest.approx(env.spec.random_score, rel=1e-4, abs=5e-5)
    reference = env.spec.reference_score
    assert reference is not None
    greedy = env.policy_score(one_hot(best_actions(env, 0.99), env.spec.num_actions)[None]).item()
    assert greedy - 5e-4 <= reference <= optimum(env) + 5e-4
    assert chance(env) or greedy == pytest.approx(reference, abs=1e-9)
    assert env.policy_score(random_policies(env, 20, rng)).max() <= reference


# ---- policy_score and policy_values -----------------------------------------------------


def stochastic_world(rng: np.random.Generator, time_limit: int = 30) -> TabularEnv:
    """Up to 5 successors of 1 to 3 in each state and action, some of them ends, several starts."""
    A, X = 3, 24
    P, R = np.zeros((A, X, X)), rng.normal(size=(A, X, X))
    for a, x in np.ndindex(A, X):
        targets = rng.choice(X, rng.integers(1, 6), replace=False)
        P[a, x, targets] = rng.dirichlet(np.ones(len(targets)))
    ends = np.zeros(X, dtype=bool)
    ends[rng.choice(X, 3, replace=False)] = True
    spec = EnvSpec("World-v0", num_actions=A, time_limit=time_limit, num_states=X)
    start = torch.from_numpy(rng.dirichlet(np.ones(X)))
    return TabularEnv(spec, torch.from_numpy(P), torch.from_numpy(R), torch.from_numpy(ends), start)


def policies_of(env: TabularEnv, S: int, rng: np.random.Generator) -> Tensor:
    """Sparse and dense ones in one batch: some actions are never taken, some always."""
    X, A = sizes(env)
    policies = torch.from_numpy(rng.dirichlet(np.ones(A) * 0.5, size=(S, X)))
    policies = torch.where(policies < 0.2, 0.0, policies)
    policies /= policies.sum(-1, keepdim=True)
    policies[0] = 1 / A
    policies[1] = random_policies(env, 1, rng)[0]
    return policies


def backward_induction(env: TabularEnv, policy: np.ndarray, gamma: float, T: int) -> np.ndarray:
    """Discounted values [X] of T steps with the dense matrices of one policy [X, A]."""
    P, R, ends = env.P.numpy(), env.R.numpy(), env.ends.numpy()
    value = np.zeros(len(ends))
    for _ in range(T):
        q = (P * (R + gamma * value)).sum(-1)  # [A, X]
        value = np.where(ends, 0.0, (policy.T * q).sum(0))
    return value


@pytest.mark.parametrize("seed", range(3))
def test_policy_score_is_backward_induction_on_any_tables(seed: int) -> None:
    rng = np.random.default_rng(seed)
    env = stochastic_world(rng)
    policies = policies_of(env, 6, rng)
    by_hand = [backward_induction(env, p, 1.0, 30) @ env.start.numpy() for p in policies.numpy()]
    np.testing.assert_allclose(env.policy_score(policies), by_hand, rtol=0, atol=1e-12)


@pytest.mark.parametrize("env_id", TABULAR)
def test_a_policys_score_does_not_depend_on_the_others(env_id: str) -> None:
    """Bit for bit, for greedy policies."""
    env = table(env_id)
    policies = random_policies(env, 9, np.random.default_rng(1))
    scores, values = env.policy_score(policies), env.policy_values(policies, 0.9)
    for k in range(9):
        assert env.policy_score(policies[k : k + 1]).item() == scores[k].item()
        assert torch.equal(env.policy_values(policies[k : k + 1], 0.9)[0], values[k])


class LargestTensor(TorchDispatchMode):
    """Notes the most numbers that any operation returned."""

    numel = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for x in result if isinstance(result, (tuple, list)) else (result,):
            if isinstance(x, Tensor):
                self.numel = max(self.numel, x.numel())
        return result


def test_scores_of_many_seeds_need_no_more_memory_than_their_policies() -> None:
    """Taxi's matrices [S, X, X'] would be 80 times as large: 2 GB for 1,000 seeds."""
    env = Taxi()
    policies = random_policies(env, 20, np.random.default_rng(2))
    with LargestTensor() as largest:
        env.policy_score(policies)
    assert largest.numel == policies.numel() == 20 * 500 * 6


@pytest.mark.parametrize("gamma", [0.0, 0.95])
def test_policy_values_are_the_limit_of_the_bellman_equation(gamma: float) -> None:
    rng = np.random.default_rng(3)
    env = stochastic_world(rng)
    policies = policies_of(env, 5, rng)
    values = env.policy_values(policies, gamma)
    assert values.shape == (5, 24)
    assert values.dtype == torch.float64
    assert values[:, env.ends].eq(0).all()
    by_hand = [backward_induction(env, p, gamma, 800) for p in policies.numpy()]
    np.testing.assert_allclose(values, by_hand, rtol=0, atol=1e-11)


# ---- Layouts ----------------------------------------------------------------------------


@pytest.mark.parametrize("env_id", TABULAR)
def test_layout_shows_every_state_once(env_id: str) -> None:
    """Every state in which an episode acts; no state twice; a sign for each action."""
    env = table(env_id)
    layout, (X, A) = env.layout, sizes(env)
    shown = [x for panel in layout.panels.values() for row in panel for x in row if x >= 0]
    assert len(shown) == len(set(shown))
    assert set(shown) <= set(range(X))
    acting = {x for x in reachable(env) if not env.ends[x]}
    assert acting <= set(shown)
    assert len(layout.actions) == len(set(layout.actions)) == A
    assert set(layout.marks) <= set(shown)
    for panel in layout.panels.values():
        assert len({len(row) for row in panel}) == 1
    if len(layout.panels) == 1:
        assert len(shown) == X
        (start,) = env.start.nonzero()[:, 0].tolist()
        assert layout.marks[start] == "S"


@pytest.mark.parametrize(
    "env_id", [x for x in TABULAR if CHECKS.get(x, Checks()).along_arrows and one_panel(x)]
)
def test_arrows_point_where_actions_lead(env_id: str) -> None:
    """The most likely successor is the neighbour on paper, or a step that is stopped (or falls)."""
    env = table(env_id)
    (panel,) = env.layout.panels.values()
    place = {x: (i, j) for i, row in enumerate(panel) for j, x in enumerate(row)}
    arrows = {"←": (0, -1), "→": (0, 1), "↑": (-1, 0), "↓": (1, 0)}
    for x in sorted(reachable(env)):
        for a, sign in enumerate(env.layout.actions if not env.ends[x] else ()):
            row, column = (i + d for i, d in zip(place[x], arrows[sign], strict=True))
            inside = 0 <= row < len(panel) and 0 <= column < len(panel[0])
            target = panel[row][column] if inside else x
            if env.layout.marks.get(target) == "C":
                target = env.start.argmax().item()
            wrong = f"{sign} in state {x} does not lead to state {target}"
            assert env.P[a, x, target] > 0.3, f"{wrong}: mend it, or declare along_arrows=False"


def test_tables_without_a_layout_lie_in_a_row() -> None:
    env = stochastic_world(np.random.default_rng(5))
    assert env.layout.panels == {"": [list(range(24))]}
    assert env.layout.actions == ("0", "1", "2")
