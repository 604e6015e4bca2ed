"""The random walk, by hand."""

from __future__ import annotations

import torch

from manyseeds.envs import RandomWalk
from tests.envs.tables import uniform


def test_random_walk_by_hand() -> None:
    env = RandomWalk()
    assert env.P.shape == (2, 21, 21)
    assert env.start.nonzero().tolist() == [[10]]
    assert env.ends.nonzero()[:, 0].tolist() == [0, 20]
    for x in range(1, 20):
        for action, target in ((0, x - 1), (1, x + 1)):
            assert env.P[action, x].nonzero().tolist() == [[target]]
            pays = {0: -1, 20: 1}.get(target, 0)
            assert (env.P * env.R)[action, x].sum() == pays
    assert not env.R[:, env.ends].any()


def test_values_of_the_random_walk() -> None:
    """x / 10 - 1 without discounting (Sutton and Barto, example 7.1)."""
    env = RandomWalk()
    expected = torch.arange(21, dtype=torch.float64) / 10 - 1
    expected[[0, 20]] = 0.0
    torch.testing.assert_close(
        env.policy_values(uniform(env), 1.0)[0], expected, atol=1e-12, rtol=0
    )
