"""Gridworld, cell by cell."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from manyseeds.envs import Gridworld
from manyseeds.errors import UsageError
from tests.envs.tables import reachable, uniform

CELLS = list(itertools.product(range(8), range(8)))
Placed = tuple[tuple[int, int], tuple[int, int], tuple[tuple[int, int], ...]]


def gridworld_by_hand(
    goal: tuple[int, int], trap: tuple[int, int], walls: tuple[tuple[int, int], ...]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """P [A, X, X], R [A, X, X] and the ends [X] of a map with a frame of walls around it."""
    plan = np.full((10, 10), "#")
    plan[1:-1, 1:-1] = " "
    plan[goal[0] + 1, goal[1] + 1] = "G"
    plan[trap[0] + 1, trap[1] + 1] = "T"
    for row, column in walls:
        plan[row + 1, column + 1] = "#"
    number = {(row + 1, column + 1): row * 8 + column for row, column in CELLS}
    P, R, ends = np.zeros((4, 64, 64)), np.zeros((4, 64, 64)), np.zeros(64, dtype=bool)
    for (row, column), x in number.items():
        left, down, right, up = (
            (row, column - 1),
            (row + 1, column),
            (row, column + 1),
            (row - 1, column),
        )
        ends[x] = plan[row, column] != " "
        for action, target in enumerate((left, down, right, up)):
            if ends[x] or plan[target] == "#":
                P[action, x, x] = 1.0
                continue
            P[action, x, number[target]] = 1.0
            R[action, x, number[target]] = {"G": 1.0, "T": -1.0, " ": 0.0}[str(plan[target])]
    return P, R, ends


@st.composite
def placements(draw: st.DrawFn) -> Placed:
    cells = draw(st.permutations(CELLS[1:]))
    walls = draw(st.integers(0, 30))
    return cells[0], cells[1], tuple(cells[2 : 2 + walls])


@settings(max_examples=30, deadline=None)
@given(placements())
def test_gridworld_is_its_map(placed: Placed) -> None:
    """Tables, start and layout for any goal, trap and walls; also where the goal is cut off."""
    goal, trap, walls = placed
    env = Gridworld(goal, trap, walls)
    P, R, ends = gridworld_by_hand(goal, trap, walls)
    np.testing.assert_array_equal(env.P, P)
    np.testing.assert_array_equal(env.R, R)
    np.testing.assert_array_equal(env.ends, ends)
    assert env.start.nonzero().tolist() == [[0]]
    assert env.start.sum() == 1.0
    plan = [[env.layout.marks.get(x, ".") for x in row] for row in env.layout.panels[""]]
    for row, column in CELLS:
        cell = (row, column)
        letter = {(0, 0): "S", goal: "G", trap: "T"}.get(cell, "#" if cell in walls else ".")
        assert plan[row][column] == letter
    closed = {row * 8 + column for row, column in walls}
    assert not reachable(env) & closed
    assert -1 <= env.spec.random_score <= 1
    assert env.policy_score(uniform(env)).item() == pytest.approx(env.spec.random_score, abs=5e-5)
    assert env.policy_values(uniform(env), 0.9)[0, env.ends].eq(0).all()


def test_gridworld_by_default_is_the_documented_one() -> None:
    env = Gridworld()
    P, R, _ = gridworld_by_hand((7, 7), (4, 4), ())
    np.testing.assert_array_equal(env.P, P)
    np.testing.assert_array_equal(env.R, R)


def test_gridworld_goal_may_be_cut_off() -> None:
    env = Gridworld(walls=((6, 7), (7, 6)))
    assert 63 not in reachable(env)
    assert env.spec.random_score < -0.99  # the trap is all there is


@pytest.mark.parametrize(
    ("cells", "message"),
    [
        ({"goal": (9, 9)}, "--goal 9 9: rows and columns are 0 to 7"),
        ({"goal": (-1, 3)}, "--goal -1 3: rows and columns are 0 to 7"),
        ({"goal": (0, 0)}, "--goal 0 0: is the start already"),
        ({"trap": (8, 0)}, "--trap 8 0: rows and columns are 0 to 7"),
        ({"trap": (0, 0)}, "--trap 0 0: is the start already"),
        ({"goal": (4, 4)}, "--trap 4 4: is the goal already"),
        ({"walls": ((1, 1), (2, 8))}, "--walls 2 8: rows and columns are 0 to 7"),
        ({"walls": ((0, 0),)}, "--walls 0 0: is the start already"),
        ({"walls": ((7, 7),)}, "--walls 7 7: is the goal already"),
        ({"walls": ((4, 4),)}, "--walls 4 4: is the trap already"),
        ({"walls": ((2, 3), (3, 2), (2, 3))}, "--walls 2 3: is a wall already"),
    ],
)
def test_gridworld_refuses_misplaced_cells(cells: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError) as error:
        Gridworld(**cells)
    assert str(error.value) == message


def test_a_policy_that_never_ends_has_no_undiscounted_values() -> None:
    env = Gridworld()
    left = torch.zeros(1, 64, 4)
    left[..., 0] = 1.0
    values = env.policy_values(left, 0.5)[0].view(8, 8)
    assert values[4].tolist() == [0, 0, 0, 0, 0, -1, -0.5, -0.25]  # on the trap's right
    assert values.count_nonzero() == 3
    with pytest.raises(torch.linalg.LinAlgError):
        env.policy_values(left, 1.0)
