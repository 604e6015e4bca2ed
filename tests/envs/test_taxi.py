"""Taxi's own checks."""

from __future__ import annotations

from typing import Any

import gymnasium as gym

from manyseeds.envs import Taxi
from tests.envs.tables import reachable


def test_taxi_sees_404_states_and_ends_in_4() -> None:
    env = Taxi()
    assert len(reachable(env)) == 404
    assert env.start.count_nonzero() == 300
    # (row, column, passenger, destination), with Gymnasium's own decoding
    theirs: Any = gym.make("Taxi-v4").unwrapped
    ends = {tuple(theirs.decode(x)) for x in env.ends.nonzero()[:, 0].tolist()}
    assert ends == {(*cell, i, i) for i, cell in enumerate([(0, 0), (0, 4), (4, 0), (4, 3)])}
    assert set(env.ends.nonzero()[:, 0].tolist()) < reachable(env)


def test_taxi_has_a_panel_for_each_errand() -> None:
    """In each, arrows lead to neighbours, P and D out of the panel."""
    env = Taxi()
    places = {
        x: (title, i, j)
        for title, panel in env.layout.panels.items()
        for i, row in enumerate(panel)
        for j, x in enumerate(row)
    }
    assert len(env.layout.panels) == 16
    assert len(places) == 400
    theirs: Any = gym.make("Taxi-v4").unwrapped
    arrows = {"→": (0, 1), "←": (0, -1), "↑": (-1, 0), "↓": (1, 0)}
    for x, (title, i, j) in places.items():
        row, column, passenger, destination = theirs.decode(x)
        name = ("R", "G", "Y", "B", "in taxi")[passenger]
        assert (title, i, j) == (f"passenger {name}, to {'RGYB'[destination]}", row, column)
        assert env.layout.marks.get(x) == {(0, 0): "R", (0, 4): "G", (4, 0): "Y", (4, 3): "B"}.get(
            (row, column)
        )
        for action, sign in enumerate(env.layout.actions):
            successor = env.P[action, x].argmax().item()
            if sign in arrows:
                di, dj = arrows[sign]
                assert places[successor] in ((title, i, j), (title, i + di, j + dj))
            elif successor != x:
                assert (passenger == 4) == (sign == "D")
                assert env.ends[successor] or places[successor][0] != title
