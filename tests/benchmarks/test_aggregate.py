"""The page across environments, on scores whose statistics can be worked out by hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from manyseeds import stats
from manyseeds.benchmarks.chapters import aggregate
from manyseeds.benchmarks.chapters.blocks import Figure, Table, Text, cells_of
from manyseeds.benchmarks.store.whole import read_store
from tests.benchmarks.test_report import ENV, around, plant


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
    runs = {
        "ppo": ("CartPole-v1", "Acrobot-v1", "Pendulum-v1"),
        "dqn": ("CartPole-v1", "Acrobot-v1"),
        "grpo": ("CartPole-v1", "Pendulum-v1"),
        "alone": ("Nowhere-v0",),
    }
    found = [(s.envs, s.algos) for s in aggregate.shared_sets(runs)]
    assert found == [
        (("CartPole-v1", "Acrobot-v1"), ("ppo", "dqn")),
        (("CartPole-v1", "Pendulum-v1"), ("ppo", "grpo")),
        (("CartPole-v1",), ("ppo", "dqn", "grpo")),
    ]


def test_as_many_seeds_of_each_environment(tmp_path: Path) -> None:
    plant(tmp_path, "ppo", {seed: 400.0 + seed for seed in range(12)})
    plant(tmp_path, "ppo", around(-150.0, 10), env="Pendulum-v1")
    plant(tmp_path, "ppo", around(-80.0, 5), env="Acrobot-v1")
    own = {pair.env: pair.ours for pair in read_store(tmp_path).found if pair.ours}
    budgets = {"CartPole-v1": 100_000, "Pendulum-v1": 100_000}
    cart_pole, pendulum = aggregate.tasks_of(own, budgets)
    np.testing.assert_allclose(cart_pole, (400 + np.arange(10) - 22.1) / (500 - 22.1))
    assert len(pendulum) == 10


def test_pairs_are_compared_after_as_many_timesteps_as_both_train_for(tmp_path: Path) -> None:
    """After 50,000 of 100,000 timesteps PPO is at 300, below DQN's 400 at the end of its 50,000."""
    plant(tmp_path, "ppo", around(500.0), middle=300.0, total_timesteps=100_000)
    plant(tmp_path, "a2c", around(450.0), middle=350.0, total_timesteps=100_000)
    plant(tmp_path, "dqn", around(400.0), middle=200.0, total_timesteps=50_000)
    blocks = list(aggregate.page(read_store(tmp_path).found))
    tables = {x.name: x for x in blocks if isinstance(x, Table)}
    cells = {row[0]: row[1:] for row in cells_of(tables["aggregate-cells"])}
    scores = [f"{(x - 22.1) / (500 - 22.1):.3f} (n = 10)" for x in (300, 500, 400)]
    assert tables["aggregate-cells"].columns == ("algorithm", f"{ENV}, 50k", f"{ENV}, 100k")
    assert cells["PPO"] == scores[:2]
    assert cells["DQN"] == [scores[2], "ends at 50k"]
    assert cells_of(tables["aggregate"])[0][0] == f"{ENV} (50k)"
    rows = {row[0]: [x[:4] for x in row[1:]] for row in cells_of(tables["improvement"])}
    assert rows["PPO"] == ["", "1.00", "0.00"]  # above A2C after 100,000, below DQN after 50,000
    assert rows["A2C"] == ["0.00", "", "0.00"]
    assert Text(f"{ENV} at 100k, pairs with DQN at 50k.") in blocks


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
    assert rows["aggregate"][1][:3] == ["CartPole-v1 (100k)", "A2C", "1 x 10"]
    assert rows["aggregate"][1][3].startswith("0.500 [")
    assert ["PPO", "", "1.00 [1.00, 1.00]"] in rows["improvement"]
    assert [x.name for x in blocks if isinstance(x, Figure)] == ["profiles"]
    assert not list(aggregate.page([pair for pair in found if pair.algo == "ppo"]))
