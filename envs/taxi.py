"""Taxi-v4: fetch a passenger and bring them to their destination."""

from __future__ import annotations

import torch

from manyseeds.envs.core import EnvSpec
from manyseeds.envs.tabular import Layout, TabularEnv, deterministic

SIZE = 5
STANDS = ((0, 0), (0, 4), (4, 0), (4, 3))  # (row, column) of R, G, Y, B
NAMES = ("R", "G", "Y", "B", "in taxi")  # where the passenger can be
IN_TAXI = 4
# Cells (row, column) with a wall on their right.
WALLS = {(0, 1), (1, 1), (3, 0), (3, 2), (4, 0), (4, 2)}
DOWN, UP, RIGHT, LEFT, PICK_UP, DROP_OFF = range(6)


class Taxi(TabularEnv):
    """Drive to the passenger, pick them up, drive to their destination, drop them off.

        +---------+
        |R: | : :G|
        | : | : : |
        | : : : : |    The four stands are R, G, Y and B. The bars are walls, the colons are not.
        | | : | : |
        |Y| : |B: |
        +---------+

    ## Actions
    0 down, 1 up, 2 right, 3 left, 4 pick up, 5 drop off. The border and walls stop a step.

    ## Observations
    The index `((row * 5 + column) * 5 + passenger) * 4 + destination`: 500 states. The passenger is
    at R, G, Y, B or in the taxi (0 to 4), the destination R, G, Y or B (0 to 3). An episode sees
    404 of them: a passenger who is at the destination already is only seen at the end.

    ## Rewards
    20 for a drop-off at the destination, -10 for a pick-up or drop-off that is not possible, -1 for
    any other step. Dropping off at another stand is possible. Threshold: 8. A uniformly random
    policy scores -771.1. The best policy's mean is 7.93, below the threshold.

    ## Starting state
    Uniform over the 300 states in which the passenger is at a stand that is not the destination.

    ## Episode end
    1. Termination: the passenger is dropped off at the destination.
    2. Truncation: after 200 steps.

    Follows `gymnasium/envs/toy_text/taxi.py`, without rain and with a passenger who does not change
    their mind. The task is over in the 4 states with taxi and passenger at the destination. From a
    start, only the last drop-off leads there. Among the states that no episode sees, a taxi can
    also drive to a passenger who waits at the destination: that ends here, but not in Gymnasium.
    """

    def __init__(self) -> None:
        num_states = SIZE**2 * 5 * 4
        start = torch.zeros(num_states, dtype=torch.float64)
        ends = torch.zeros(num_states, dtype=torch.bool)
        panels, marks = {}, {}
        for destination, stand in enumerate(STANDS):
            ends[_index(*stand, destination, destination)] = True
            for passenger, name in enumerate(NAMES):
                if passenger == destination:
                    continue
                panel = [
                    [_index(row, column, passenger, destination) for column in range(SIZE)]
                    for row in range(SIZE)
                ]
                panels[f"passenger {name}, to {NAMES[destination]}"] = panel
                for (row, column), letter in zip(STANDS, NAMES, strict=False):
                    marks[panel[row][column]] = letter
                if passenger != IN_TAXI:
                    start[torch.tensor(panel)] = 1.0
        spec = EnvSpec(
            id="Taxi-v4",
            num_actions=6,
            time_limit=200,
            num_states=num_states,
            reward_threshold=8.0,
            random_score=-771.1,
            reference_score=7.93,
        )
        layout = Layout(panels, ("↓", "↑", "→", "←", "P", "D"), marks)
        tables = deterministic(num_states, 6, _move)
        super().__init__(spec, *tables, ends, start / start.count_nonzero(), layout)


def _index(row: int, column: int, passenger: int, destination: int) -> int:
    return ((row * SIZE + column) * 5 + passenger) * 4 + destination


def _move(state: int, action: int) -> tuple[int, float]:
    """Successor and reward."""
    rest, destination = divmod(state, 4)
    cell, passenger = divmod(rest, 5)
    row, column = divmod(cell, SIZE)
    reward = -1.0
    if action == DOWN:
        row = min(row + 1, SIZE - 1)
    elif action == UP:
        row = max(row - 1, 0)
    elif action == RIGHT:
        if column < SIZE - 1 and (row, column) not in WALLS:
            column += 1
    elif action == LEFT:
        if column > 0 and (row, column - 1) not in WALLS:
            column -= 1
    elif action == PICK_UP:
        if passenger != IN_TAXI and STANDS[passenger] == (row, column):
            passenger = IN_TAXI
        else:
            reward = -10.0
    elif passenger == IN_TAXI and (row, column) in STANDS:
        passenger = STANDS.index((row, column))
        reward = 20.0 if passenger == destination else -1.0
    else:
        reward = -10.0
    return _index(row, column, passenger, destination), reward


ENVS = {"Taxi-v4": Taxi}
