"""Gridworld-v0: an 8x8 room with a goal, a trap and, if wanted, walls."""

from __future__ import annotations

from dataclasses import replace

import torch

from manyseeds.envs.core import EnvSpec
from manyseeds.envs.tabular import Layout, TabularEnv, deterministic, grid
from manyseeds.errors import UsageError

Cell = tuple[int, int]  # row and column, counted from the upper left cell

SIZE = 8
START: Cell = (0, 0)
GOAL: Cell = (7, 7)
TRAP: Cell = (4, 4)
MOVES = ((0, -1), (1, 0), (0, 1), (-1, 0))  # (row, column) of left, down, right, up


class Gridworld(TabularEnv):
    """Walk from the upper left cell to the goal, around the trap and the walls.

    ## Actions
    0 left, 1 down, 2 right, 3 up. The border and walls stop a step.

    ## Observations
    The index `row * 8 + column` of the cell: 64 states. No step leads into a wall: a wall is a
    state all the same, and counts as ended.

    ## Rewards
    1 for reaching the goal, -1 for the trap, else 0. A uniformly random policy scores -0.6499 with
    the default cells. The reference is 1, which is out of reach where walls cut the goal off.

    ## Starting state
    The upper left cell.

    ## Episode end
    1. Termination: the goal or the trap.
    2. Truncation: after 1000 steps.

    goal, trap, walls: (row, column), 0 to 7. Walls may cut the goal off from the start.
    Raises UsageError for a cell outside the grid, and where two things share one.
    """

    def origins(self) -> list[type | str]:
        return [*super().origins(), "manyseeds.envs:make_gridworld"]

    def __init__(self, goal: Cell = GOAL, trap: Cell = TRAP, walls: tuple[Cell, ...] = ()) -> None:
        _check(goal, trap, walls)
        pays = {goal: 1.0, trap: -1.0}

        def move(state: int, action: int) -> tuple[int, float]:
            cell = divmod(state, SIZE)
            if cell in pays or cell in walls:
                return state, 0.0
            row, column = (
                min(max(x + step, 0), SIZE - 1) for x, step in zip(cell, MOVES[action], strict=True)
            )
            if (row, column) in walls:
                return state, 0.0
            return _index((row, column)), pays.get((row, column), 0.0)

        marks = {_index(START): "S", _index(goal): "G", _index(trap): "T"}
        marks |= {_index(wall): "#" for wall in walls}
        ends = torch.zeros(SIZE**2, dtype=torch.bool)
        ends[[_index(cell) for cell in (goal, trap, *walls)]] = True
        start = torch.zeros(SIZE**2, dtype=torch.float64)
        start[_index(START)] = 1.0
        spec = EnvSpec(
            id="Gridworld-v0",
            num_actions=4,
            time_limit=1000,
            num_states=SIZE**2,
            reference_score=1.0,
        )
        layout = Layout({"": grid(SIZE, SIZE)}, ("←", "↓", "→", "↑"), marks)
        super().__init__(spec, *deterministic(SIZE**2, 4, move), ends, start, layout)
        random_score = self.policy_score(torch.full((1, SIZE**2, 4), 0.25)).item()
        self.spec = replace(spec, random_score=round(random_score, 4))


def _index(cell: Cell) -> int:
    return cell[0] * SIZE + cell[1]


def _check(goal: Cell, trap: Cell, walls: tuple[Cell, ...]) -> None:
    """Everything has a cell of its own."""
    things = [("goal", "the goal", goal), ("trap", "the trap", trap)]
    things += [("walls", "a wall", wall) for wall in walls]
    taken = {START: "the start"}
    for flag, thing, (row, column) in things:
        if not (0 <= row < SIZE and 0 <= column < SIZE):
            raise UsageError(f"--{flag} {row} {column}: rows and columns are 0 to {SIZE - 1}")
        if (row, column) in taken:
            raise UsageError(f"--{flag} {row} {column}: is {taken[row, column]} already")
        taken[row, column] = thing


ENVS = {"Gridworld-v0": Gridworld}
