"""FrozenLake-v1 and FrozenLake8x8-v1: cross a frozen lake without falling into a hole."""

from __future__ import annotations

import torch

from manyseeds.envs.core import EnvSpec
from manyseeds.envs.tabular import Layout, TabularEnv, grid

MAPS = {
    4: ("SFFF", "FHFH", "FFFH", "HFFG"),
    8: (
        "SFFFFFFF",
        "FFFFFFFF",
        "FFFHFFFF",
        "FFFFFHFF",
        "FFFHFFFF",
        "FHHFFFHF",
        "FHFFHFHF",
        "FFFHFFFG",
    ),
}
MOVES = ((0, -1), (1, 0), (0, 1), (-1, 0))  # (row, column) of left, down, right, up


class FrozenLake(TabularEnv):
    """Walk from the start (S) over frozen cells (F) to the goal (G); holes (H) end the episode.

    ## Actions
    0 left, 1 down, 2 right, 3 up. On slippery ice the step goes in the chosen direction or in one
    of the two perpendicular ones, each with probability 1/3. The border stops a step.

    ## Observations
    The index `row * size + column` of the cell: 16 states on the 4x4 map, 64 on the 8x8 map.

    ## Rewards
    1 for reaching the goal, else 0. Thresholds: 0.70 (4x4) and 0.85 (8x8).

    ## Starting state
    The upper left cell.

    ## Episode end
    1. Termination: a hole or the goal.
    2. Truncation: after 100 steps (4x4) or 200 steps (8x8).

    Follows `gymnasium/envs/toy_text/frozen_lake.py`. The reference scores of the slippery maps are
    the best stationary policy's under the time limit.
    """

    def __init__(self, size: int = 4, slippery: bool = True) -> None:
        cells = "".join(MAPS[size])
        transitions = torch.zeros(4, size * size, size * size, dtype=torch.float64)
        for cell in range(size * size):
            for action in range(4):
                if cells[cell] in "GH":
                    transitions[action, cell, cell] = 1.0
                    continue
                directions = (action - 1, action, action + 1) if slippery else (action,)
                for direction in directions:
                    target = _move(cell, direction % 4, size)
                    transitions[action, cell, target] += 1 / len(directions)
        ends = torch.tensor([letter in "GH" for letter in cells])
        rewards = torch.zeros_like(transitions)
        rewards[:, ~ends, cells.index("G")] = 1.0
        start = torch.tensor([letter == "S" for letter in cells]).double()
        name = "FrozenLake" + ("" if size == 4 else "8x8") + ("" if slippery else "NotSlippery")
        random_score = 0.0139 if size == 4 else 0.0019  # of uniform actions, slippery or not
        reference_score = {4: 0.740, 8: 0.894}[size] if slippery else 1.0
        spec = EnvSpec(
            id=f"{name}-v1",
            num_actions=4,
            time_limit=100 if size == 4 else 200,
            num_states=size * size,
            reward_threshold=0.70 if size == 4 else 0.85,
            random_score=random_score,
            reference_score=reference_score,
        )
        marks = {cell: letter for cell, letter in enumerate(cells) if letter != "F"}
        layout = Layout({"": grid(size, size)}, ("←", "↓", "→", "↑"), marks)
        super().__init__(spec, transitions, rewards, ends, start, layout)


def _move(cell: int, direction: int, size: int) -> int:
    """The cell that one step in a direction leads to; the border stops it."""
    row, column = divmod(cell, size)
    row_step, column_step = MOVES[direction]
    row = min(max(row + row_step, 0), size - 1)
    column = min(max(column + column_step, 0), size - 1)
    return row * size + column


ENVS = {
    "FrozenLake-v1": lambda: FrozenLake(4),
    "FrozenLake8x8-v1": lambda: FrozenLake(8),
    "FrozenLakeNotSlippery-v1": lambda: FrozenLake(4, slippery=False),
    "FrozenLake8x8NotSlippery-v1": lambda: FrozenLake(8, slippery=False),
}
