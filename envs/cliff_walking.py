"""CliffWalking-v1: walk along a cliff without falling off."""

from __future__ import annotations

import torch

from manyseeds.envs.core import EnvSpec
from manyseeds.envs.tabular import Layout, TabularEnv, deterministic, grid

ROWS, COLUMNS = 4, 12
MOVES = ((-1, 0), (0, 1), (1, 0), (0, -1))  # (row, column) of up, right, down, left
START, GOAL = 36, 47  # lower left, lower right
CLIFF = range(START + 1, GOAL)


class CliffWalking(TabularEnv):
    """Walk from the lower left cell to the lower right one; the cells between are a cliff.

    ## Actions
    0 up, 1 right, 2 down, 3 left. The border stops a step.

    ## Observations
    The index `row * 12 + column` of the cell on 4 rows of 12: 48 states. Those
    in the cliff, 37 to 46, are never observed.

    ## Rewards
    -1 for every step, -100 for a step off the cliff, which leads back to the start. No threshold is
    registered. A uniformly random policy scores -2079.1, the shortest way along the cliff -13.

    ## Starting state
    The lower left cell, 36.

    ## Episode end
    1. Termination: the lower right cell, 47.
    2. Truncation: after 200 steps. Gymnasium registers no limit: the cap is ours.

    Follows `gymnasium/envs/toy_text/cliffwalking.py`, not slippery, also in states of the cliff.
    """

    def __init__(self) -> None:
        num_states = ROWS * COLUMNS
        start = torch.zeros(num_states, dtype=torch.float64)
        start[START] = 1.0
        spec = EnvSpec(
            id="CliffWalking-v1",
            num_actions=4,
            time_limit=200,
            num_states=num_states,
            random_score=-2079.1,
            reference_score=-13.0,
        )
        marks = {START: "S", GOAL: "G"} | dict.fromkeys(CLIFF, "C")
        layout = Layout({"": grid(ROWS, COLUMNS)}, ("↑", "→", "↓", "←"), marks)
        ends = torch.arange(num_states) == GOAL
        super().__init__(spec, *deterministic(num_states, 4, _move), ends, start, layout)


def _move(state: int, action: int) -> tuple[int, float]:
    """Successor and reward."""
    row, column = divmod(state, COLUMNS)
    row_step, column_step = MOVES[action]
    row = min(max(row + row_step, 0), ROWS - 1)
    column = min(max(column + column_step, 0), COLUMNS - 1)
    successor = row * COLUMNS + column
    return (START, -100.0) if successor in CLIFF else (successor, -1.0)


ENVS = {"CliffWalking-v1": CliffWalking}
