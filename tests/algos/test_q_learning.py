"""Q-learning: its update by hand, its exploration, and the optimum it must reach.

What test_sarsa.py needs too is here: a small decision process, a recorded training, and the
training once more in plain loops.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from manyseeds import envs
from manyseeds.algos import q_learning, sarsa
from manyseeds.runs.control import Run
from manyseeds.seeds import SeedStreams

TINY = "Tiny-v0"


def tiny(time_limit: int = 5) -> envs.TabularEnv:
    """5 states, the last one terminal, 3 actions; at random, but with one best action by far."""
    generator = torch.Generator().manual_seed(38)
    X, A = 5, 3
    P = torch.rand(A, X, X, generator=generator, dtype=torch.float64) ** 4
    R = torch.randn(A, X, 1, generator=generator, dtype=torch.float64).expand(A, X, X)
    start = torch.tensor([0.5, 0.3, 0.2, 0.0, 0.0], dtype=torch.float64)
    spec = envs.EnvSpec(TINY, num_actions=A, num_states=X, time_limit=time_limit)
    return envs.TabularEnv(spec, P / P.sum(-1, keepdim=True), R, torch.arange(X) == X - 1, start)


def optimal_values(env: envs.TabularEnv, gamma: float, epsilon: float = 0.0) -> Tensor:
    """Action values `[X, A]` of the best epsilon-greedy policy, by dynamic programming."""
    q = torch.zeros(env.P.shape[1], env.P.shape[0], dtype=torch.float64)
    for _ in range(500):
        values = ((1 - epsilon) * q.amax(-1) + epsilon * q.mean(-1)).masked_fill(env.ends, 0)
        q = torch.einsum("axy,axy->xa", env.P, env.R + gamma * values)
    return q


def train(
    env: str, seeds: range, module: Any = q_learning, **settings: object
) -> tuple[q_learning.QTable, Run]:
    config = module.Config(env=env, quiet=True, **settings)
    run = Run(config, seeds)
    return module.train(config, run), run


class Recorded:
    """A training on an environment in memory: what was asked of the policy and of the world."""

    def __init__(
        self,
        monkeypatch: pytest.MonkeyPatch,
        build: Callable[[], envs.TabularEnv],
        module: Any,
        **settings: object,
    ) -> None:
        self.asked: list[tuple[Tensor, Tensor, float]] = []  # states, actions, epsilon
        self.steps: list[tuple[Tensor, Tensor, envs.Step]] = []  # state, action, what followed
        act = module.QTable.act

        def recorded_act(
            policy: Any, obs: Tensor, noise: Tensor | None = None, epsilon: Tensor | None = None
        ) -> Tensor:
            actions = act(policy, obs, noise, epsilon)
            if epsilon is not None:  # not an evaluation
                self.asked.append((obs, actions, epsilon.item()))
            return actions

        class RecordedEnv(envs.TabularEnv):
            def __init__(self) -> None:
                env = build()
                super().__init__(env.spec, env.P, env.R, env.ends, env.start)

            def step(inner, state: envs.State, action: Tensor, noise: Tensor) -> envs.Step:
                step = super().step(state, action, noise)
                if noise.shape[1] == 1:  # not an evaluation
                    self.steps.append((state.physics, action, step))
                return step

        monkeypatch.setitem(envs.NATIVE, TINY, RecordedEnv)
        monkeypatch.setattr(module.QTable, "act", recorded_act)
        self.policy, self.run = train(TINY, range(3), module, **settings)


# Not a multiple of the block: the training ends at 1000, past the end of the schedules.
SETTINGS: dict[str, Any] = {
    **{"total_timesteps": 800, "gamma": 0.9, "initial_value": 0.5},
    **{"learning_rate": 0.4, "final_learning_rate": 0.1},
    **{"exploration_fraction": 0.5, "exploration_initial_eps": 0.9, "exploration_final_eps": 0.2},
}


def alpha_at(timestep: int) -> float:
    return float(np.interp(timestep, [0, 800], [0.4, 0.1]))


def epsilon_at(timestep: int) -> float:
    return float(np.interp(timestep, [0, 400], [0.9, 0.2]))


def replay(recorded: Recorded, value_of_next: Callable[..., float]) -> np.ndarray:
    """The tables [S, X, A] that the recorded transitions give, in plain loops.

    value_of_next(q, t, seed): V(s'), unless s' is terminal, of the table q so far.
    """
    tables = np.full(recorded.policy.q.shape, SETTINGS["initial_value"])
    kinds = set()
    for seed, q in enumerate(tables):
        for t, (state, action, step) in enumerate(recorded.steps):
            s, a, r = int(state[seed]), int(action[seed]), float(step.reward[seed])
            terminated, truncated = bool(step.terminated[seed]), bool(step.truncated[seed])
            target = r if terminated else r + SETTINGS["gamma"] * value_of_next(q, t, seed)
            q[s, a] += alpha_at(t) * (target - q[s, a])
            kinds.add((terminated, truncated))
    assert kinds == set(itertools.product((False, True), repeat=2))
    return tables


def test_training_equals_a_plain_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every update of a training, with ends of both kinds; both at once are a termination.

    The behaviour is given the epsilons of the schedule, past the end of their fall, too.
    """
    recorded = Recorded(monkeypatch, tiny, q_learning, **SETTINGS)

    def value_of_next(q: np.ndarray, t: int, seed: int) -> float:
        return max(q[int(recorded.steps[t][2].final_obs[seed])])

    tables = replay(recorded, value_of_next)
    np.testing.assert_allclose(recorded.policy.q, tables, atol=1e-5)
    for (obs, actions, _), (state, taken, _) in zip(recorded.asked, recorded.steps, strict=True):
        assert torch.equal(obs, state)
        assert torch.equal(actions, taken)
    epsilons = [epsilon for _, _, epsilon in recorded.asked]
    assert epsilons == pytest.approx([epsilon_at(t) for t in range(1000)])
    assert (epsilons[0], epsilons[400], epsilons[-1]) == pytest.approx((0.9, 0.2, 0.2))


def test_linear_schedule() -> None:
    points = {0.0: 1.0, 0.25: 0.55, 0.5: 0.1, 0.75: 0.1, 1.0: 0.1, 1.5: 0.1}
    progress = torch.tensor([list(points)], dtype=torch.float64)
    got = q_learning.linear(progress, 1.0, 0.1, 0.5)
    assert got.tolist() == [pytest.approx(list(points.values()))]
    assert q_learning.linear(progress, 1.0, 0.1, 0.0).tolist() == [pytest.approx([0.1] * 6)]


# Two seeds, two states, three actions.
TABLE = [[[1.0, 2.0, 0.0], [3.0, 4.0, 8.0]], [[0.0, -1.0, -2.0], [-3.0, -6.0, -5.0]]]


def test_td_error_by_hand() -> None:
    """A bootstrapped and a terminated transition, and both the other way round."""
    table = torch.tensor(TABLE)
    obs, actions = torch.tensor([[0], [0]]), torch.tensor([[1], [2]])
    next_values = q_learning.greedy_value(table, torch.tensor([[1], [1]]))
    assert torch.equal(next_values, torch.tensor([[8.0], [-3.0]]))

    def error(*terminated: bool) -> list[float]:
        rewards, ends = torch.tensor([[1.0], [-1.0]]), torch.tensor(terminated).unsqueeze(1)
        got = q_learning.td_error(table, obs, actions, rewards, next_values, ends, gamma=0.5)
        assert got.shape == (2, 1)
        return got.flatten().tolist()

    # r + gamma max_a' Q(s', a') - Q(s, a), with 0 in place of the maximum after a termination
    assert error(False, False) == [1 + 0.5 * 8 - 2, -1 + 0.5 * -3 + 2]
    assert error(False, True) == [1 + 0.5 * 8 - 2, -1 + 2]
    assert error(True, False) == [1 - 2, -1 + 0.5 * -3 + 2]


def table_policy(values: list[float], module: Any = q_learning) -> q_learning.QTable:
    spec = envs.EnvSpec("t", num_actions=len(values), time_limit=1, num_states=1)
    policy = module.QTable(spec, module.Config(), SeedStreams([0], "init"))
    policy.q[:] = torch.tensor(values)
    return policy


def shares(policy: q_learning.QTable, epsilon: float) -> Tensor:
    """How often each action is chosen in state 0, exactly: noise on a grid that fits."""
    A = policy.q.shape[-1]
    axes = [(torch.arange(n) + 0.5) / n for n in (20, A, 12)]
    noise = torch.cartesian_prod(*axes).unsqueeze(0)
    obs = torch.zeros(noise.shape[:2], dtype=torch.int64)
    actions = policy.act(obs, noise, torch.tensor([[epsilon]]))
    return torch.bincount(actions[0], minlength=A) / noise.shape[1]


def test_ties_are_broken_at_random_while_learning() -> None:
    policy = table_policy([1.0, 3.0, 0.0, 3.0])
    assert (policy.act(torch.zeros(1, 100, dtype=torch.int64)) == 1).all()
    torch.testing.assert_close(shares(policy, 0.0), torch.tensor([0, 0.5, 0, 0.5]))
    torch.testing.assert_close(shares(policy, 0.4), torch.tensor([0.1, 0.4, 0.1, 0.4]))
    torch.testing.assert_close(shares(policy, 1.0), torch.full((4,), 0.25))
    equal = table_policy([2.0] * 4)
    torch.testing.assert_close(shares(equal, 0.0), torch.full((4,), 0.25))
    # Not even the largest uniform chooses an action that is not among the best.
    largest = torch.full((1, 1, 3), 1 - 2**-24)
    policy = table_policy([1.0, 1.0, 1.0, 0.0])
    never = torch.zeros(1, 1)
    assert policy.act(torch.zeros(1, 1, dtype=torch.int64), largest, never).item() == 2


def test_without_an_epsilon_the_last_one_is_taken() -> None:
    """The sampled evaluation at the end is that of the behaviour at the end."""
    policy = table_policy([0.0, 1.0])
    noise = torch.tensor([[[0.09, 0.1, 0.0], [0.11, 0.1, 0.0]]])  # Config: 0.1 at the end
    assert policy.act(torch.zeros(1, 2, dtype=torch.int64), noise).tolist() == [[0, 1]]


# Enough for tiny(): alpha falls to 0, and what little bias is left is far below its gaps.
ANNEALED: dict[str, Any] = {
    **{"total_timesteps": 3000, "gamma": 0.6, "learning_rate": 0.3, "final_learning_rate": 0.0}
}


def test_learns_the_optimum_while_it_acts_at_random(monkeypatch: pytest.MonkeyPatch) -> None:
    """Off policy: the behaviour is uniform throughout, and Q is that of the best policy."""
    monkeypatch.setitem(envs.NATIVE, TINY, lambda: tiny(time_limit=20))
    policy, _ = train(TINY, range(30), **ANNEALED, exploration_final_eps=1.0)
    optimum = optimal_values(tiny(), gamma=0.6)[:-1].float()  # all but the terminal state
    learned = policy.q[:, :-1]
    torch.testing.assert_close(learned.mean(0), optimum, atol=0.06, rtol=0)
    assert (learned.argmax(-1) == optimum.argmax(-1)).all()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("module", "env", "timesteps", "score", "within"),
    [
        (q_learning, "FrozenLake-v1", 40_000, 0.740, 0.02),  # as all of seeds 200-239
        (q_learning, "Taxi-v4", 60_000, 7.93, 0.3),  # seeds 200-239, by tens: 7.76 to 7.85
        (q_learning, "Gridworld-v0", 8_000, 1.0, 0.0),
        (sarsa, "FrozenLake-v1", 40_000, 0.740, 0.05),  # seeds 200-259, by tens: 0.690 to 0.731
        (sarsa, "Gridworld-v0", 12_000, 1.0, 0.0),
    ],
)
def test_presets_reach_the_optimum(
    module: Any, env: str, timesteps: int, score: float, within: float
) -> None:
    """Exact scores of 40 seeds that no preset was chosen on, with presets cut short.

    Beside the cliff: test_walks_better_online_than_q_learning. On Taxi-v4 SARSA takes two minutes.
    """
    settings = {**module.PRESETS[env].settings, "total_timesteps": timesteps}
    policy, run = train(env, range(200, 240), module, **settings)
    final = run.finish(policy)["final"]["greedy"]["mean"]["value"]
    assert final == pytest.approx(score, abs=within)
