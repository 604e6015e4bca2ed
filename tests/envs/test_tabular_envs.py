"""The tabular environments, against Gymnasium's tables and against definitions written out."""

from __future__ import annotations

import itertools
import math
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from manyseeds import envs
from manyseeds.envs import CliffWalking, EnvSpec, Gridworld, RandomWalk, TabularEnv, Taxi
from manyseeds.errors import UsageError
from manyseeds.seeds import SeedStreams
from tests.envs.test_envs import monte_carlo

NEW = ["CliffWalking-v1", "Taxi-v4", "Gridworld-v0", "RandomWalk-v0"]
GYMNASIUMS = ["CliffWalking-v1", "Taxi-v4"]
TABULAR = [env_id for env_id in envs.NATIVE if isinstance(envs.NATIVE[env_id](), TabularEnv)]
# Several panels, or actions that do not lead where their arrows point (a wind).
NOT_ALONG_ARROWS = {"Taxi-v4"}
CELLS = list(itertools.product(range(8), range(8)))


def sizes(env: TabularEnv) -> tuple[int, int]:
    """X and A."""
    assert env.spec.num_states is not None
    return env.spec.num_states, env.spec.num_actions


def uniform(env: TabularEnv) -> Tensor:
    X, A = sizes(env)
    return torch.full((1, X, A), 1 / A, dtype=torch.float64)


def one_hot(actions: np.ndarray, A: int) -> Tensor:
    return torch.nn.functional.one_hot(torch.from_numpy(actions), A)


def reachable(env: TabularEnv) -> set[int]:
    """The states that an episode can see."""
    found, new = set(), set(env.start.nonzero()[:, 0].tolist())
    while new:
        found |= new
        going = [x for x in new if not env.ends[x]]
        new = set(env.P[:, going].sum((0, 1)).nonzero()[:, 0].tolist()) - found
    return found


# ---- The grid, cell by cell -------------------------------------------------------------

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


@settings(max_examples=60, deadline=None)
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
        here = (row, column)
        letter = {(0, 0): "S", goal: "G", trap: "T"}.get(here, "#" if here in walls else ".")
        assert plan[row][column] == letter
    closed = {row * 8 + column for row, column in walls}
    assert not reachable(env) & closed
    assert -1 <= env.spec.random_score <= 1
    assert env.policy_score(uniform(env)).item() == pytest.approx(env.spec.random_score, abs=5e-5)
    assert env.policy_values(uniform(env), 0.9)[0, env.ends].eq(0).all()


def test_gridworld_by_default_is_the_documented_one() -> None:
    env = Gridworld()
    P, R, ends = gridworld_by_hand((7, 7), (4, 4), ())
    np.testing.assert_array_equal(env.P, P)
    np.testing.assert_array_equal(env.R, R)
    assert env.ends.nonzero()[:, 0].tolist() == [36, 63]
    assert reachable(env) == set(range(64))


def test_gridworld_goal_may_be_cut_off() -> None:
    env = Gridworld(walls=((6, 7), (7, 6)))
    assert 63 not in reachable(env)
    assert env.spec.random_score < -0.99  # the trap is all there is


@pytest.mark.parametrize(
    ("cells", "message"),
    [
        ({"goal": (9, 9)}, "--goal 9 9: rows and columns are 0 to 7"),
        ({"goal": (-1, 3)}, "--goal -1 3: rows and columns are 0 to 7"),
        ({"goal": (3, 8)}, "--goal 3 8: rows and columns are 0 to 7"),
        ({"goal": (0, 0)}, "--goal 0 0: is the start already"),
        ({"trap": (8, 0)}, "--trap 8 0: rows and columns are 0 to 7"),
        ({"trap": (0, 0)}, "--trap 0 0: is the start already"),
        ({"trap": (7, 7)}, "--trap 7 7: is the goal already"),
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


# ---- Gymnasium's tables -----------------------------------------------------------------


def gym_tables(env: Any) -> tuple[np.ndarray, np.ndarray]:
    """P [A, X, X] and R [A, X, X] of Gymnasium's dictionaries; R is 0 where P is."""
    A, X = env.action_space.n, env.observation_space.n
    P, R = np.zeros((A, X, X)), np.zeros((A, X, X))
    for x, a in itertools.product(range(X), range(A)):
        for probability, successor, reward, _ in env.P[x][a]:
            P[a, x, successor] += probability
            R[a, x, successor] = reward
    return P, R


@pytest.mark.parametrize("env_id", GYMNASIUMS)
def test_tables_are_gymnasiums(env_id: str) -> None:
    """For all states, also those that no episode sees; flags for those that one does."""
    ours, theirs = envs.make(env_id), gym.make(env_id).unwrapped
    assert isinstance(ours, TabularEnv)
    P, R = gym_tables(theirs)
    np.testing.assert_array_equal(ours.P, P)
    np.testing.assert_array_equal(ours.R, R)
    np.testing.assert_array_equal(ours.start, theirs.initial_state_distrib)
    flags = set()
    for x in reachable(ours):
        for a in range(ours.spec.num_actions) if not ours.ends[x] else ():
            ((_, successor, _, terminated),) = theirs.P[x][a]
            assert bool(ours.ends[successor]) == bool(terminated)
            flags.add(bool(terminated))
    assert flags == {False, True}


def test_taxi_sees_404_states_and_ends_in_4() -> None:
    env = Taxi()
    assert len(reachable(env)) == 404
    assert env.start.count_nonzero() == 300
    # (row, column, passenger, destination), with Gymnasium's own decoding
    theirs: Any = gym.make("Taxi-v4").unwrapped
    ends = {tuple(theirs.decode(x)) for x in env.ends.nonzero()[:, 0].tolist()}
    assert ends == {(*cell, i, i) for i, cell in enumerate([(0, 0), (0, 4), (4, 0), (4, 3)])}
    assert set(env.ends.nonzero()[:, 0].tolist()) < reachable(env)


# ---- Gymnasium, free-running ------------------------------------------------------------


@pytest.mark.parametrize("env_id", GYMNASIUMS)
def test_episodes_are_gymnasiums_free_running(env_id: str) -> None:
    """20,000 steps, many episodes of both ends; only the starts are given to Gymnasium's.

    Half of the environments act at random, the others half of the time as value iteration does,
    because chance alone hardly ever brings a passenger home.
    """
    env, rng, S, N = envs.make(env_id), np.random.default_rng(0), 2, 4
    assert isinstance(env, TabularEnv)
    A, limit = env.spec.num_actions, env.spec.time_limit
    best = torch.from_numpy(optimal_actions(env, 0.99))
    cells = list(np.ndindex(S, N))
    theirs: dict[Any, Any] = {c: gym.make(env_id, max_episode_steps=limit) for c in cells}

    def begin(cell: tuple[int, ...], state: Tensor) -> None:
        theirs[cell].reset(seed=0)
        theirs[cell].unwrapped.s = state.item()

    streams = SeedStreams(range(S), "train")
    state, obs = env.reset(streams.uniform(N, 1))
    for cell in cells:
        begin(cell, obs[cell])
    terminations = truncations = 0
    for _ in range(20_000 // (S * N)):
        follow = torch.from_numpy(rng.random((S, N)) < 0.5) & (torch.arange(N) < N // 2)
        actions = torch.where(follow, best[obs], torch.from_numpy(rng.integers(0, A, (S, N))))
        step = env.step(state, actions, streams.uniform(N, 2))
        for cell in cells:
            expected = theirs[cell].step(actions[cell].item())[:4]
            found = (step.final_obs, step.reward, step.terminated, step.truncated)
            # Gymnasium says True for both flags at once, and so do we.
            assert tuple(x[cell].item() for x in found) == expected
            if step.terminated[cell] or step.truncated[cell]:
                begin(cell, step.obs[cell])
        terminations += int(step.terminated.sum())
        truncations += int(step.truncated.sum())
        state, obs = step.state, step.obs
    assert terminations > 50
    assert truncations > 30


@pytest.mark.parametrize("env_id", TABULAR)
def test_starts_are_drawn_from_the_start_distribution(env_id: str) -> None:
    env = envs.make(env_id)
    assert isinstance(env, TabularEnv)
    draws = 150_000
    _, obs = env.reset(SeedStreams([1], "train").uniform(draws, 1))
    counts = obs[0].bincount(minlength=len(env.start)).double()
    assert not counts[env.start == 0].any()
    expected = draws * env.start[env.start > 0]
    statistic = ((counts[env.start > 0] - expected) ** 2 / expected).sum().item()
    freedom = len(expected) - 1
    assert abs(statistic - freedom) <= 4 * math.sqrt(2 * freedom)
    ends = torch.tensor([[[0.0], [1 - 2**-24]]])
    first, last = env.reset(ends)[1][0].tolist()
    states = env.start.nonzero()[:, 0].tolist()
    assert (first, last) == (states[0], states[-1])


@pytest.mark.parametrize(
    ("env_id", "limit", "threshold"),
    [
        ("CliffWalking-v1", 200, None),
        ("Taxi-v4", 200, 8),
        ("Gridworld-v0", 1000, None),
        ("RandomWalk-v0", 1000, None),
    ],
)
def test_time_limits_and_thresholds(env_id: str, limit: int, threshold: float | None) -> None:
    """Exactly at the limit, by walking into a wall, to and fro."""
    env = envs.make(env_id)
    assert env.spec.time_limit == limit
    assert env.spec.reward_threshold == threshold
    state, obs = env.reset(torch.zeros(1, 1, 1))
    for t in range(1, limit + 1):
        action = {"CliffWalking-v1": 0, "Taxi-v4": 1, "Gridworld-v0": 3, "RandomWalk-v0": t % 2}
        step = env.step(state, torch.tensor([[action[env_id]]]), torch.zeros(1, 1, 2))
        assert step.truncated.item() == (t == limit)
        assert not step.terminated.item()
        state = step.state
    if env_id in gym.registry:
        registered = gym.spec(env_id)
        assert registered.max_episode_steps in (limit, None)
        assert registered.reward_threshold == threshold


def test_random_walk_by_hand() -> None:
    env = RandomWalk()
    assert sizes(env) == (21, 2)
    assert env.start.nonzero().tolist() == [[10]]
    assert env.ends.nonzero()[:, 0].tolist() == [0, 20]
    for x in range(1, 20):
        for action, target in ((0, x - 1), (1, x + 1)):
            assert env.P[action, x].nonzero().tolist() == [[target]]
            pays = {0: -1, 20: 1}.get(target, 0)
            assert (env.P * env.R)[action, x].sum() == pays
    assert not env.R[:, env.ends].any()


# ---- Scores -----------------------------------------------------------------------------


def optimal_actions(env: TabularEnv, gamma: float) -> np.ndarray:
    """[X], greedy for the fixed point of the Bellman equation; ties to the first."""
    P, R, ends = env.P.numpy(), env.R.numpy(), env.ends.numpy()
    successors, rewards = P.argmax(-1), (P * R).sum(-1)  # no chance in these environments
    assert (P.max(-1) == 1).all()
    value = np.zeros(len(ends))
    while True:
        q = rewards + gamma * np.where(ends, 0.0, value)[successors]
        if np.array_equal(new := np.where(ends, 0.0, q.max(0)), value):
            return q.round(9).argmax(0)
        value = new


@pytest.mark.parametrize(
    ("env_id", "score", "digits"),
    [
        ("CliffWalking-v1", -2079.1, 1),
        ("Taxi-v4", -771.1, 1),
        ("Gridworld-v0", -0.6499, 4),
        ("RandomWalk-v0", 0.0, 12),
    ],
)
def test_random_scores(env_id: str, score: float, digits: int) -> None:
    """The anchor, the documented number, the exact score and 3,000 played episodes agree."""
    env = envs.make(env_id)
    assert isinstance(env, TabularEnv)
    exact = env.policy_score(uniform(env)).item()
    assert round(exact, digits) == score == env.spec.random_score
    mean, error = monte_carlo(env, uniform(env)[0], 3_000)
    assert abs(exact - mean) < 4 * error
    documented = type(env).__doc__
    assert documented is not None
    assert f"policy scores {score:g}" in documented.replace("\n    ", " ")


@pytest.mark.parametrize(
    ("env_id", "score"),
    [
        ("CliffWalking-v1", -13.0),
        ("Taxi-v4", 7.93),
        ("Gridworld-v0", 1.0),
        ("RandomWalk-v0", 1.0),
    ],
)
def test_value_iteration_reaches_the_reference(env_id: str, score: float) -> None:
    """Without chance the discounted optimum is a shortest way, and so the best there is."""
    env = envs.make(env_id)
    assert isinstance(env, TabularEnv)
    best = one_hot(optimal_actions(env, 0.99), env.spec.num_actions)[None]
    assert env.spec.reference_score == score
    assert env.policy_score(best).item() == pytest.approx(score, abs=1e-12)
    rng = np.random.default_rng(0)
    X, A = sizes(env)
    assert env.policy_score(one_hot(rng.integers(0, A, (20, X)), A)).max() <= score + 1e-9


# ---- policy_score and policy_values -----------------------------------------------------


def stochastic_world(rng: np.random.Generator, time_limit: int = 30) -> TabularEnv:
    """Up to 5 successors of 1 to 3 in each state and action, some of them ends, several starts."""
    A, X = 3, 24
    P, R = np.zeros((A, X, X)), rng.normal(size=(A, X, X))
    for a, x in np.ndindex(A, X):
        targets = rng.choice(X, rng.integers(1, 6), replace=False)
        P[a, x, targets] = rng.dirichlet(np.ones(len(targets)))
    ends = np.zeros(X, dtype=bool)
    ends[rng.choice(X, 3, replace=False)] = True
    spec = EnvSpec("World-v0", num_actions=A, time_limit=time_limit, num_states=X)
    start = torch.from_numpy(rng.dirichlet(np.ones(X)))
    return TabularEnv(spec, torch.from_numpy(P), torch.from_numpy(R), torch.from_numpy(ends), start)


def rainy_taxi() -> TabularEnv:
    """Gymnasium's tables where the taxi drifts to the sides: three successors of a move."""
    theirs, dry = gym.make("Taxi-v4", is_rainy=True).unwrapped, Taxi()
    P, R = gym_tables(theirs)
    return TabularEnv(dry.spec, torch.from_numpy(P), torch.from_numpy(R), dry.ends, dry.start)


def policies_of(env: TabularEnv, S: int, rng: np.random.Generator) -> Tensor:
    """Sparse and dense ones in one batch: some actions are never taken, some always."""
    X, A = sizes(env)
    policies = torch.from_numpy(rng.dirichlet(np.ones(A) * 0.5, size=(S, X)))
    policies = torch.where(policies < 0.2, 0.0, policies)
    policies /= policies.sum(-1, keepdim=True)
    policies[0] = 1 / A
    policies[1] = one_hot(rng.integers(0, A, X), A)
    return policies


def backward_induction(env: TabularEnv, policy: np.ndarray, gamma: float, T: int) -> np.ndarray:
    """Discounted values [X] of T steps with the dense matrices of one policy [X, A]."""
    P, R, ends = env.P.numpy(), env.R.numpy(), env.ends.numpy()
    value = np.zeros(len(ends))
    for _ in range(T):
        q = (P * (R + gamma * value)).sum(-1)  # [A, X]
        value = np.where(ends, 0.0, (policy.T * q).sum(0))
    return value


@pytest.mark.parametrize("seed", range(5))
def test_policy_score_is_backward_induction_on_any_tables(seed: int) -> None:
    rng = np.random.default_rng(seed)
    env = stochastic_world(rng)
    policies = policies_of(env, 6, rng)
    by_hand = [backward_induction(env, p, 1.0, 30) @ env.start.numpy() for p in policies.numpy()]
    np.testing.assert_allclose(env.policy_score(policies), by_hand, rtol=0, atol=1e-12)


def test_policy_score_is_backward_induction_in_the_rain() -> None:
    env, rng = rainy_taxi(), np.random.default_rng(0)
    assert env.P.max() == 1 > env.P[env.P > 0].min()
    policies = policies_of(env, 2, rng)
    by_hand = [backward_induction(env, p, 1.0, 200) @ env.start.numpy() for p in policies.numpy()]
    np.testing.assert_allclose(env.policy_score(policies), by_hand, rtol=1e-12, atol=0)
    dry = Taxi().policy_score(policies)
    assert (dry - env.policy_score(policies)).abs().min() > 0.1


@pytest.mark.parametrize("env_id", TABULAR)
def test_a_policys_score_does_not_depend_on_the_others(env_id: str) -> None:
    """Bit for bit, for greedy policies."""
    env = envs.make(env_id)
    assert isinstance(env, TabularEnv)
    X, A = sizes(env)
    policies = one_hot(np.random.default_rng(1).integers(0, A, (9, X)), A)
    scores, values = env.policy_score(policies), env.policy_values(policies, 0.9)
    for k in range(9):
        assert env.policy_score(policies[k : k + 1]).item() == scores[k].item()
        assert torch.equal(env.policy_values(policies[k : k + 1], 0.9)[0], values[k])


class LargestTensor(TorchDispatchMode):
    """Notes the most numbers that any operation returned."""

    numel = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for x in result if isinstance(result, (tuple, list)) else (result,):
            if isinstance(x, Tensor):
                self.numel = max(self.numel, x.numel())
        return result


def test_scores_of_many_seeds_need_no_more_memory_than_their_policies() -> None:
    """Taxi's matrices [S, X, X'] would be 80 times as large: 2 GB for 1,000 seeds."""
    env = Taxi()
    policies = one_hot(np.random.default_rng(2).integers(0, 6, (20, 500)), 6)
    with LargestTensor() as largest:
        env.policy_score(policies)
    assert largest.numel == policies.numel() == 20 * 500 * 6
    rain = rainy_taxi()
    with LargestTensor() as largest:
        rain.policy_score(policies)
    assert largest.numel <= 20 * 500 * 6  # three successors of the one action


@pytest.mark.parametrize("gamma", [0.0, 0.5, 0.95])
def test_policy_values_are_the_limit_of_the_bellman_equation(gamma: float) -> None:
    rng = np.random.default_rng(3)
    env = stochastic_world(rng)
    policies = policies_of(env, 5, rng)
    values = env.policy_values(policies, gamma)
    assert values.shape == (5, 24)
    assert values.dtype == torch.float64
    assert values[:, env.ends].eq(0).all()
    by_hand = [backward_induction(env, p, gamma, 800) for p in policies.numpy()]
    np.testing.assert_allclose(values, by_hand, rtol=0, atol=1e-11)


def test_policy_values_on_taxi() -> None:
    env = Taxi()
    policies = policies_of(env, 2, np.random.default_rng(4))
    by_hand = [backward_induction(env, p, 0.8, 200) for p in policies.numpy()]
    np.testing.assert_allclose(env.policy_values(policies, 0.8), by_hand, rtol=0, atol=1e-9)


@pytest.mark.parametrize("env_id", NEW)
def test_undiscounted_values_are_the_score_where_the_limit_never_cuts(env_id: str) -> None:
    """The best policy ends early from everywhere, also from where no episode goes."""
    env = envs.make(env_id)
    assert isinstance(env, TabularEnv)
    best = one_hot(optimal_actions(env, 0.99), env.spec.num_actions)[None]
    value = env.policy_values(best, 1.0)[0] @ env.start
    assert value.item() == pytest.approx(env.policy_score(best).item(), abs=1e-9)


def test_values_of_the_random_walk() -> None:
    """x / 10 - 1 without discounting (Sutton and Barto, example 7.1)."""
    env = RandomWalk()
    expected = torch.arange(21, dtype=torch.float64) / 10 - 1
    expected[[0, 20]] = 0.0
    torch.testing.assert_close(
        env.policy_values(uniform(env), 1.0)[0], expected, atol=1e-12, rtol=0
    )


def test_policy_that_never_ends_has_no_undiscounted_values() -> None:
    env = Gridworld()
    left = torch.zeros(1, 64, 4)
    left[..., 0] = 1.0
    values = env.policy_values(left, 0.5)[0].view(8, 8)
    assert values[4].tolist() == [0, 0, 0, 0, 0, -1, -0.5, -0.25]  # on the trap's right
    assert values.count_nonzero() == 3
    with pytest.raises(torch.linalg.LinAlgError):
        env.policy_values(left, 1.0)


# ---- Layouts ----------------------------------------------------------------------------


@pytest.mark.parametrize("env_id", TABULAR)
def test_layout_shows_every_state_once(env_id: str) -> None:
    """Every state in which an episode acts; no state twice; a sign for each action."""
    env = envs.make(env_id)
    assert isinstance(env, TabularEnv)
    layout, (X, A) = env.layout, sizes(env)
    shown = [x for panel in layout.panels.values() for row in panel for x in row if x >= 0]
    assert len(shown) == len(set(shown))
    assert set(shown) <= set(range(X))
    acting = {x for x in reachable(env) if not env.ends[x]}
    assert acting <= set(shown)
    assert len(layout.actions) == len(set(layout.actions)) == A
    assert set(layout.marks) <= set(shown)
    for panel in layout.panels.values():
        assert len({len(row) for row in panel}) == 1
    if env_id != "Taxi-v4":
        assert len(shown) == X
        (start,) = env.start.nonzero()[:, 0].tolist()
        assert layout.marks[start] == "S"


@pytest.mark.parametrize("env_id", [x for x in TABULAR if x not in NOT_ALONG_ARROWS])
def test_arrows_point_where_actions_lead(env_id: str) -> None:
    """The most likely successor is the neighbour on paper, or a step that is stopped (or falls)."""
    env = envs.make(env_id)
    assert isinstance(env, TabularEnv)
    (panel,) = env.layout.panels.values()
    place = {x: (i, j) for i, row in enumerate(panel) for j, x in enumerate(row)}
    arrows = {"←": (0, -1), "→": (0, 1), "↑": (-1, 0), "↓": (1, 0)}
    for x in sorted(reachable(env)):
        for a, sign in enumerate(env.layout.actions if not env.ends[x] else ()):
            row, column = (i + d for i, d in zip(place[x], arrows[sign], strict=True))
            inside = 0 <= row < len(panel) and 0 <= column < len(panel[0])
            target = panel[row][column] if inside else x
            if env.layout.marks.get(target) == "C":
                target = env.start.argmax().item()
            wrong = f"{sign} in state {x} does not lead to state {target}"
            assert env.P[a, x, target] > 0.3, f"{wrong}: mend it, or add to NOT_ALONG_ARROWS"


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


def test_tables_without_a_layout_lie_in_a_row() -> None:
    env = stochastic_world(np.random.default_rng(5))
    assert env.layout.panels == {"": [list(range(24))]}
    assert env.layout.actions == ("0", "1", "2")


# ---- make -------------------------------------------------------------------------------


@pytest.mark.parametrize("env_id", GYMNASIUMS)
def test_gymnasiums_own_have_our_limit_and_scores(env_id: str) -> None:
    """CliffWalking has no limit there: ours holds, and is what ends the episode."""
    env = envs.make(env_id, backend="gymnasium")
    assert not env.native
    assert env.spec == envs.make(env_id).spec
    state, obs = env.reset(torch.full((1, 2, env.initial_noise), 0.5))
    for t in range(1, env.spec.time_limit + 1):
        up = torch.full((1, 2), 0 if env_id == "CliffWalking-v1" else 1)
        step = env.step(state, up, torch.full((1, 2, env.noise_size), 0.5))
        assert step.truncated.tolist() == [[t == env.spec.time_limit] * 2]
        state = step.state


@pytest.mark.parametrize("env_id", [x for x in envs.NATIVE if x not in gym.registry])
def test_what_gymnasium_does_not_have(env_id: str) -> None:
    with pytest.raises(UsageError) as error:
        envs.make(env_id, backend="gymnasium")
    assert str(error.value) == (
        f"--backend gymnasium: Gymnasium has no {env_id}; use --backend auto"
    )


def test_classes_are_what_make_makes() -> None:
    kinds = [CliffWalking, Taxi, Gridworld, RandomWalk]
    assert [type(envs.make(env_id)) for env_id in NEW] == kinds
    assert all(envs.make(env_id, observations="index").spec.num_states for env_id in NEW)
