"""The FrozenLakes' own checks."""

from __future__ import annotations

import gymnasium as gym
import pytest
import torch
from scipy import stats

from manyseeds.envs import FrozenLake
from manyseeds.seeds import SeedStreams
from tests.envs.checks import Checks
from tests.envs.tables import assert_equal_tables, best_actions, one_hot

# Their random scores are those of a policy that never arrives.
CHECKS = {
    "FrozenLakeNotSlippery-v1": Checks(random_mean=0.0139),
    "FrozenLake8x8NotSlippery-v1": Checks(random_mean=0.0019),
}


@pytest.mark.parametrize("size", [4, 8])
def test_tables_without_slipping_are_gymnasiums(size: int) -> None:
    theirs = gym.make("FrozenLake-v1", map_name=f"{size}x{size}", is_slippery=False).unwrapped
    assert_equal_tables(FrozenLake(size, slippery=False), theirs)


@pytest.mark.parametrize(("size", "gamma"), [(4, 0.9), (8, 0.99)])
def test_reference_score_is_the_best_stationary_policys(size: int, gamma: float) -> None:
    """Changing one state's action at a time climbs to it (and, checked once, from any start)."""
    env, X = FrozenLake(size), size * size
    changes = torch.arange(4 * X)
    policy, best = best_actions(env, gamma), 0.0
    while True:
        neighbours = policy.repeat(4 * X, 1)  # every state, every action
        neighbours[changes, changes // 4] = changes % 4
        scores = env.policy_score(one_hot(neighbours, 4))
        if scores.max().item() <= best + 1e-9:
            break
        best, policy = scores.max().item(), neighbours[scores.argmax()]
    assert env.spec.reference_score == pytest.approx(best, abs=6e-4)


@pytest.mark.parametrize("size", [4, 8])
def test_transitions_follow_the_table(size: int) -> None:
    """Drawn successors against P (chi-square), for every state and action, from our streams."""
    env, draws = FrozenLake(size), 160_000 // size**2
    X, A = env.spec.num_states, env.spec.num_actions
    assert X is not None
    physics = torch.arange(X).repeat_interleave(A).repeat_interleave(draws)[None]
    action = torch.arange(A).repeat(X).repeat_interleave(draws)[None]
    noise = SeedStreams([0], "train").uniform(X * A * draws, 1)
    successors = env.transition(physics, action, noise)
    counts = torch.zeros(A, X, X)
    counts.index_put_((action, physics, successors), torch.ones(1), accumulate=True)
    P = env.P.numpy()
    assert not counts[env.P == 0].any()
    statistic = float(((counts.numpy() - draws * P)[P > 0] ** 2 / (draws * P[P > 0])).sum())
    freedom = int((P > 0).sum()) - A * X
    assert 0.001 < stats.chi2.sf(statistic, freedom) < 0.999


def test_every_uniform_leads_to_a_successor() -> None:
    """Also the smallest and the largest one that a stream can draw."""
    env = FrozenLake(4)
    extremes = torch.tensor([0.0, 1 - 2**-24]).view(2, 1, 1).expand(2, 64, 1)
    physics = torch.arange(16).repeat_interleave(4).expand(2, -1)
    action = torch.arange(4).repeat(16).expand(2, -1)
    successors = env.transition(physics, action, extremes)
    assert (env.P[action, physics, successors] > 0).all()
    assert not torch.equal(successors[0], successors[1])
    assert env.reset(extremes)[1].eq(0).all()
