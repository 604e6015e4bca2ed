"""RandomWalk-v0: a row of 19 states between two ends, the classic of prediction."""

from __future__ import annotations

import torch

from manyseeds.envs.core import EnvSpec
from manyseeds.envs.tabular import Layout, TabularEnv, deterministic, grid

LENGTH = 19  # states between the ends
RIGHT_END = LENGTH + 1


class RandomWalk(TabularEnv):
    """Walk along a row until one of its ends.

    ## Actions
    0 left, 1 right.

    ## Observations
    The index of the state: 0 is the left end, 1 to 19 are the states between, 20 is the right end.

    ## Rewards
    -1 for reaching the left end, 1 for the right end, else 0. The uniformly random policy scores 0;
    its undiscounted values are x / 10 - 1.

    ## Starting state
    The state in the centre, 10.

    ## Episode end
    1. Termination: one of the ends.
    2. Truncation: after 1000 steps (a random walk takes 100 on average).

    Example 7.1 of Sutton and Barto, "Reinforcement Learning: An Introduction" (2018), where the
    direction of each step is drawn: here that is the uniformly random policy.
    """

    def __init__(self) -> None:
        def move(state: int, action: int) -> tuple[int, float]:
            if state in (0, RIGHT_END):
                return state, 0.0
            successor = state + (1 if action == 1 else -1)
            return successor, {0: -1.0, RIGHT_END: 1.0}.get(successor, 0.0)

        num_states = LENGTH + 2
        centre = num_states // 2
        ends = torch.zeros(num_states, dtype=torch.bool)
        ends[[0, RIGHT_END]] = True
        start = torch.zeros(num_states, dtype=torch.float64)
        start[centre] = 1.0
        spec = EnvSpec(
            id="RandomWalk-v0",
            num_actions=2,
            time_limit=1000,
            num_states=num_states,
            random_score=0.0,
            reference_score=1.0,
        )
        layout = Layout({"": grid(1, num_states)}, ("←", "→"), {centre: "S"})
        super().__init__(spec, *deterministic(num_states, 2, move), ends, start, layout)


ENVS = {"RandomWalk-v0": RandomWalk}
