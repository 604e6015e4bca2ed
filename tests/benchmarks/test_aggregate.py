"""The page across environments, on scores whose statistics can be worked out by hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from manyseeds import stats
from manyseeds.benchmarks.chapters import aggregate
from manyseeds.benchmarks.chapters.blocks import Figure, Table, cells_of
from manyseeds.benchmarks.store.whole import read_store
from tests.benchmarks.test_report import around, plant


def test_probability_of_improvement() -> None:
    """Of six pairs of the first task five are won and one is even; of the second all are lost."""
    first, second = ([3.0, 5.0], [1.0, 2.0, 3.0]), ([0.0, 0.0], [1.0, 1.0])
    found = stats.probability_of_improvement([first[0], second[0]], [first[1], second[1]])
    assert found.value == pytest.approx((5.5 / 6 + 0) / 2)
    assert found.low <= found.value <= found.high
    back = stats.probability_of_improvement([first[1], second[1]], [first[0], second[0]])
    assert back.value == pytest.approx(1 - found.value)
    same = [np.arange(10.0), np.ones(10)]
    assert stats.probability_of_improvement(same, same).value == 0.5


@pytest.mark.parametrize(
    ("ours", "theirs"), [([], []), ([[1.0]], []), ([[1.0, np.nan]], [[1.0, 2.0]])]
)
def test_probability_of_improvement_refuses(
    ours: list[list[float]], theirs: list[list[float]]
) -> None:
    with pytest.raises(ValueError, match=r"need|not finite"):
        stats.probability_of_improvement(ours, theirs)


def test_shared_sets() -> None:
    here = np.ones(2)
    scores = {
        "ppo": {"CartPole-v1": here, "Acrobot-v1": here, "Pendulum-v1": here},
        "dqn": {"CartPole-v1": here, "Acrobot-v1": here},
        "grpo": {"CartPole-v1": here, "Pendulum-v1": here},
        "alone": {"Nowhere-v0": here},
    }
    found = [(s.envs, s.algos) for s in aggregate.shared_sets(scores)]
    assert found == [
        (("CartPole-v1", "Acrobot-v1"), ("ppo", "dqn")),
        (("CartPole-v1", "Pendulum-v1"), ("ppo", "grpo")),
        (("CartPole-v1",), ("ppo", "dqn", "grpo")),
    ]


def test_as_many_seeds_of_each_environment() -> None:
    own = {"a": np.arange(30.0), "b": np.arange(10.0), "c": np.arange(5.0)}
    first = list(range(10))
    assert [task.tolist() for task in aggregate.tasks_of(own, ["a", "b"])] == [first, first]


def test_profile() -> None:
    line = aggregate.profile([np.array([0.0, 0.5]), np.array([1.0, 1.0])])
    assert line.n == 4  # runs, not environments
    share = dict(zip(np.round(line.x, 2).tolist(), line.y, strict=True))  # type: ignore[arg-type]
    assert (share[0.0], share[0.45], share[0.5], share[0.98], share[1.0]) == (
        *(0.75, 0.75, 0.5, 0.5),
        0.0,  # above, not at
    )


def test_page(tmp_path: Path) -> None:
    plant(tmp_path, "ppo", around(500.0))
    scored = {"middle": 261.05, "total_timesteps": 200_000}
    plant(tmp_path, "a2c", around(400.0), **scored)  # after half of it half way from 22.1 to 500
    plant(tmp_path, "ppo", around(-150.0), env="Pendulum-v1")
    found = read_store(tmp_path).found
    blocks = list(aggregate.page(found))
    rows = {x.name: cells_of(x) for x in blocks if isinstance(x, Table)}
    assert ["A2C", "0.500 (n = 10)", "missing"] in rows["aggregate-cells"]
    assert rows["aggregate"][1][:3] == ["CartPole-v1", "A2C", "1 x 10"]
    assert rows["aggregate"][1][3].startswith("0.500 [")
    assert ["PPO", "", "1.00 [1.00, 1.00]"] in rows["improvement"]
    assert [x.name for x in blocks if isinstance(x, Figure)] == ["profiles"]
    assert not list(aggregate.page([pair for pair in found if pair.algo == "ppo"]))
