"""The evaluation protocol, and what a run makes of it: when, how long, and how a failure shows."""

from __future__ import annotations

import dataclasses
import importlib
import math
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import Tensor

from manyseeds import envs, plots
from manyseeds.algos import ppo, q_learning
from manyseeds.benchmarks.chapters.tabular import curve_of
from manyseeds.benchmarks.store.results import floor_of
from manyseeds.benchmarks.store.stored import StoredRun, open_run
from manyseeds.cli import ControlConfig, identity, parse
from manyseeds.envs import CartPole, Env, EnvSpec, FrozenLake, NativeEnv
from manyseeds.evaluate import CHUNK, CURVE_EPISODES, FINAL_EPISODES, Evaluation, evaluate
from manyseeds.kernels.guard import watch
from manyseeds.record import RunFolder, read_json
from manyseeds.runs import base
from manyseeds.runs import control as run_module
from manyseeds.runs.control import Run, main
from manyseeds.seeds import SeedStreams
from manyseeds.worth import worth_of
from tests.benchmarks.conftest import Output, Patch

BUDGETS: dict[str, dict[str, Any]] = {
    "a2c": {"total_timesteps": 640, "hidden": (16,)},
    "trpo": {"total_timesteps": 640, "num_steps": 32, "minibatch_size": 32, "hidden": (16,)},
    "ppo": {"total_timesteps": 640, "num_steps": 16, "minibatch_size": 32, "hidden": (16,)},
    "reinforce": {"total_timesteps": 640, "episodes": 4, "hidden": (16,)},
    "grpo": {"total_timesteps": 640, "group_size": 4, "minibatch_size": 32, "hidden": (16,)},
    "dqn": {"total_timesteps": 320, "learning_starts": 64, "batch_size": 16, "hidden": (16,)},
    "q_learning": {"total_timesteps": 1500, "env": "FrozenLake-v1"},
}


class OneUniform:
    """Sampled actions take one uniform."""

    def draw(self, streams: SeedStreams, *shape: int) -> Tensor:
        return streams.uniform(*shape, 1)


class Linear(OneUniform):
    """Pushes to the right where obs @ w > 0; sampled, it does so with the given probability."""

    def __init__(self, weights: Any, right: Any = 0.5) -> None:
        self.weights = torch.tensor(weights, dtype=torch.float64)  # [S, 4]
        self.right = torch.as_tensor(right, dtype=torch.float32)  # [] or [S, 1]

    def act(self, obs: Tensor, noise: Tensor | None = None) -> Tensor:
        if noise is not None:
            assert noise.shape == (*obs.shape[:2], 1)
            return (noise[..., 0] < self.right).long()
        return (torch.einsum("sno,so->sn", obs.double(), self.weights) > 0).long()


class Table(OneUniform):
    """Actions of a table of state values [S, X, A]: the best, or one of all at random."""

    def __init__(self, q: Tensor) -> None:
        self.q = q

    def act(self, obs: Tensor, noise: Tensor | None = None) -> Tensor:
        if noise is not None:
            return (noise[..., 0] * self.q.shape[-1]).long()
        seeds = torch.arange(len(self.q)).unsqueeze(1)
        return self.q[seeds, obs].argmax(-1)


class DoubleCartPole(CartPole):
    """In float64, to be compared exactly."""

    def initial(self, noise: Tensor) -> Tensor:
        return super().initial(noise.double())


class Played:
    """An environment without its tables, so that it is played."""

    native = True

    def __init__(self, env: Env) -> None:
        self.spec, self.reset, self.step = env.spec, env.reset, env.step
        self.initial_noise, self.noise_size = env.initial_noise, env.noise_size
        self.in_c = env.in_c


# ---- Against a loop in Gymnasium --------------------------------------------------------


def length_in_gymnasium(start: np.ndarray, act: Callable[[np.ndarray, int], int]) -> int:
    """Of one episode of Gymnasium's CartPole, with its own time limit; act: of obs and step."""
    env = gym.make("CartPole-v1")
    env.reset(seed=0)
    env.unwrapped.state = start.copy()  # type: ignore[attr-defined]
    obs, length, over = start, 0, False
    while not over:
        _, _, terminated, truncated, _ = env.step(act(obs, length))
        obs = np.array(env.unwrapped.state)  # type: ignore[attr-defined]
        length += 1
        over = terminated or truncated
    return length


def starts_in_gymnasium(episodes: int) -> np.ndarray:
    return SeedStreams([0], "start-states").uniform(episodes, 4)[0].double().numpy() * 0.1 - 0.05


def test_scores_are_those_of_a_slow_loop_in_gymnasium() -> None:
    """Bad, middling and perfect policies at once: every episode counts, once, to its end."""
    weights = [[0.0, 0, 0, 1], [0, 0, 1, 0], [0.05, 0.2, 2, 1], [-1, 0, 0, 0]]
    E = 20
    result = evaluate(DoubleCartPole(), Linear(weights), seeds=[0, 1, 2, 3], episodes=E)
    per_seed = [
        [
            length_in_gymnasium(x, lambda obs, t, w=w: int(obs @ w > 0))
            for x in starts_in_gymnasium(E)
        ]
        for w in np.array(weights)
    ]
    np.testing.assert_allclose(result.return_mean, np.mean(per_seed, axis=1), rtol=1e-14)
    np.testing.assert_allclose(result.return_std, np.std(per_seed, axis=1), rtol=1e-12)
    np.testing.assert_array_equal(result.length_mean, result.return_mean)
    assert result.episodes == E
    # The cases differ: also longer than one block of noise, and cut by the time limit.
    assert result.return_mean[2] == 500
    assert result.return_std[2] == 0
    assert result.return_mean[0] > CHUNK > result.return_mean[3]
    assert (result.return_std[[0, 1, 3]] > 0).all()


def test_sampled_scores_are_those_of_a_slow_loop() -> None:
    """Every episode has its own action noise, seed by seed, from the seed's own stream."""
    E, right = 8, 0.6
    result = evaluate(DoubleCartPole(), Linear(np.zeros((2, 4)), right), [4, 9], E, greedy=False)
    for i, seed in enumerate((4, 9)):
        stream = SeedStreams([seed], "evaluate")
        blocks = [stream.uniform(CHUNK, E, 1)[0, :, :, 0] for _ in range(3)]
        actions = (torch.cat(blocks) < right).long().numpy()  # [T, E]
        lengths = [
            length_in_gymnasium(start, lambda obs, t, own=own: int(own[t]))
            for start, own in zip(starts_in_gymnasium(E), actions.T, strict=True)
        ]
        assert result.return_mean[i] == np.mean(lengths)
        assert result.return_std[i] == pytest.approx(np.std(lengths), rel=1e-12)
    assert result.return_mean[0] != result.return_mean[1]


# ---- Start states and streams -----------------------------------------------------------


class Recording(CartPole):
    """Remembers the start states and the reset noise of every step."""

    def __init__(self) -> None:
        self.starts: list[Tensor] = []

    def reset(self, noise: Tensor) -> Any:
        state, obs = super().reset(noise)
        self.starts.append(obs.clone())
        return state, obs


def starts_of(seeds: list[int], episodes: int, greedy: bool = True) -> Tensor:
    env = Recording()
    evaluate(env, Linear(np.zeros((len(seeds), 4))), seeds, episodes, greedy)
    (starts,) = env.starts
    return starts


def test_start_states_are_fixed_and_shared_by_all_seeds() -> None:
    """Whatever the seeds, their number and the mode; the first of 100 are the 32 of the curve."""
    curve, final = starts_of([0], CURVE_EPISODES)[0], starts_of([0], FINAL_EPISODES)[0]
    assert torch.equal(final[:CURVE_EPISODES], curve)
    assert len(final.unique(dim=0)) == FINAL_EPISODES
    for seeds in ([7], [3, 0, 12]):
        for greedy in (True, False):
            for row in starts_of(seeds, FINAL_EPISODES, greedy):
                assert torch.equal(row, final)
    trained = SeedStreams([0], "train").uniform(FINAL_EPISODES, 4)[0] * 0.1 - 0.05
    assert not torch.isin(final, trained).any()  # not the ones that a seed trains on


def test_a_seeds_sampled_score_does_not_depend_on_the_others() -> None:
    """Also when the others' episodes are far longer or shorter than its own."""

    def score(seeds: list[int], right: list[float]) -> dict[int, tuple[float, ...]]:
        policy = Linear(np.zeros((len(seeds), 4)), np.array(right)[:, None])
        r = evaluate(CartPole(), policy, seeds, 40, greedy=False)
        return {s: (r.return_mean[i], r.return_std[i]) for i, s in enumerate(seeds)}

    alone = score([3], [0.5])
    assert score([1, 3, 8], [0.0, 0.5, 1.0])[3] == alone[3]
    assert score([8, 3], [0.6, 0.5])[3] == alone[3]
    together = score([1, 3, 8], [0.5, 0.5, 0.5])
    assert together[3] == alone[3]
    assert len(set(together.values())) == 3  # every seed has its own actions
    assert score([3], [0.5]) == alone  # and again the same ones


def test_equal_policies_score_equal_under_chance() -> None:
    """The ice of an evaluation is the same for all seeds: their scores differ by policy alone."""
    q = torch.rand(1, 16, 4, generator=torch.Generator().manual_seed(0)).repeat(3, 1, 1)
    result = evaluate(Played(FrozenLake(4)), Table(q), [0, 5, 6], 50)
    assert len(set(result.length_mean)) == 1
    q[1] = -q[1]
    other = evaluate(Played(FrozenLake(4)), Table(q), [0, 5, 6], 50).length_mean
    assert other[1] != other[0] == other[2] == result.length_mean[0]


# ---- Exact evaluation -------------------------------------------------------------------


def test_greedy_tabular_policies_are_evaluated_exactly() -> None:
    env = FrozenLake(4)
    q = torch.rand(5, 16, 4, generator=torch.Generator().manual_seed(1))
    result = evaluate(env, Table(q), range(5), 32)
    chosen = torch.nn.functional.one_hot(q.argmax(-1), 4)
    np.testing.assert_array_equal(result.return_mean, env.policy_score(chosen).numpy())
    assert result.episodes == 0
    assert np.isnan(result.return_std).all()
    assert np.isnan(result.length_mean).all()
    assert len(set(result.return_mean)) == 5


def test_exact_and_played_scores_agree() -> None:
    """The best policy of value iteration, to the error of 4,000 episodes; sampled it is random."""
    env = FrozenLake(4)
    value = torch.zeros(16).double()
    for _ in range(2_000):
        q = (env.P * (env.R + 0.99 * value * ~env.ends)).sum(-1).T  # [X, A]
        value = q.amax(-1) * ~env.ends
    policy = Table(q.unsqueeze(0))
    exact = evaluate(env, policy, [0], 1)
    played = evaluate(Played(env), policy, [0], 4_000)
    error = played.return_std[0] / math.sqrt(4_000)
    assert abs(exact.return_mean[0] - played.return_mean[0]) < 4 * error
    assert exact.return_mean[0] == pytest.approx(0.7402, abs=5e-5)
    sampled = evaluate(env, policy, [0], 4_000, greedy=False)
    assert sampled.episodes == 4_000
    assert sampled.return_mean[0] == pytest.approx(env.spec.random_score, abs=0.008)


# ---- Policies that are no longer numbers ------------------------------------------------


class Poisoned(NativeEnv):
    """5 steps of reward 1; where the start is below 1/2, one reward is NaN or infinite."""

    initial_noise, transition_noise = 1, 0
    spec = EnvSpec("Poisoned-v0", num_actions=2, time_limit=5, obs_size=1, random_score=-7.0)

    def initial(self, noise: Tensor) -> Tensor:
        return noise

    def transition(self, physics: Tensor, action: Tensor, noise: Tensor) -> Tensor:
        return physics + 1

    def observation(self, physics: Tensor) -> Tensor:
        return physics

    def reward(self, physics: Tensor, action: Tensor, next_physics: Tensor) -> Tensor:
        third = (physics[..., 0] >= 2) & (physics[..., 0] < 3)
        bad = torch.where(physics[..., 0] % 1 < 0.25, math.nan, -math.inf)
        return torch.where(third & (physics[..., 0] % 1 < 0.5), bad, 1.0)

    def terminal(self, physics: Tensor) -> Tensor:
        return torch.zeros_like(physics[..., 0], dtype=torch.bool)


class Constant(OneUniform):
    def act(self, obs: Tensor, noise: Tensor | None = None) -> Tensor:
        return torch.zeros(obs.shape[:2], dtype=torch.int64)


def test_an_episode_that_is_no_number_scores_as_random() -> None:
    """A failure that stays in every mean, and spoils no other episode."""
    noise = SeedStreams([0], "start-states").uniform(40, 1)[0, :, 0]
    expected = np.where(noise < 0.5, -7.0, 5.0)
    assert len(set(expected)) == 2
    result = evaluate(Poisoned(), Constant(), [0, 1], 40)
    np.testing.assert_allclose(result.return_mean, [expected.mean()] * 2, rtol=1e-14)
    np.testing.assert_allclose(result.return_std, [expected.std()] * 2, rtol=1e-12)
    assert (result.length_mean == 5).all()
    # Where the score of a random policy is unknown, so is theirs: never 0.
    env = Poisoned()
    env.spec = dataclasses.replace(env.spec, random_score=None)
    assert np.isnan(evaluate(env, Constant(), [0, 1], 40).return_mean).all()
    assert EnvSpec("Other-v0", time_limit=1).random_score is None


@pytest.mark.parametrize("greedy", [True, False])
def test_a_seed_with_nan_weights_leaves_the_others_alone(greedy: bool) -> None:
    config = ppo.Config(hidden=(16,))
    env = CartPole()
    agent = ppo.ActorCritic(env.spec, config, SeedStreams([0, 1, 2], "init"))
    before = evaluate(env, agent, [0, 1, 2], 10, greedy)
    with torch.no_grad():
        for p in agent.parameters():
            p[1] = math.nan
    after = evaluate(env, agent, [0, 1, 2], 10, greedy)
    assert np.isfinite(after.return_mean).all()
    assert after.return_mean[1] < 50
    for name in ("return_mean", "return_std", "length_mean"):
        assert (getattr(after, name)[[0, 2]] == getattr(before, name)[[0, 2]]).all()


# ---- When a run evaluates ---------------------------------------------------------------


class AnyEnv(ControlConfig):
    """What a run needs to know, without an algorithm."""

    def make_env(self) -> Env:
        return Poisoned()


def silent(T: int, seeds: int = 1, **fields: Any) -> Run:
    return Run(AnyEnv(total_timesteps=T, seeds=seeds, quiet=True, **fields))


@pytest.mark.parametrize(
    ("T", "block"),
    [
        *[(100_000, 256)],  # the preset of PPO on CartPole
        *[(1000, 50), (1000, 49), (1000, 51), (1000, 7)],  # every boundary is a point, or few are
        *[(1000, 300), (1000, 1000)],  # updates larger than T / 20
        *[(999, 1), (997, 13)],  # points between two timesteps
        *[(20, 1), (7, 1), (1, 1)],  # no more timesteps than points
    ],
)
def test_evaluations_come_at_every_twentieth_or_the_first_update_after(
    T: int, block: int, monkeypatch: Patch
) -> None:
    """Against the definition, with the true timestep in the rows."""
    boundaries = range(0, T + block, block)
    boundaries = range(0, next(t for t in boundaries if t >= T) + block, block)
    due = {next(t for t in boundaries if 20 * t >= k * T) for k in range(21)}

    def quick(env: Any, policy: Any, seeds: Any, episodes: int, greedy: bool = True) -> Any:
        assert episodes == CURVE_EPISODES
        assert greedy
        return evaluate(Poisoned(), Constant(), seeds, 1)

    monkeypatch.setattr(run_module, "evaluate", quick)
    run = silent(T, seeds=2)
    for t in boundaries:
        run.evaluate_if_due(t, Poisoned(), Constant())
    curve = run.curve()
    assert curve["timestep"].tolist() == [t for t in sorted(due) for _ in range(2)]
    assert curve["seed"].tolist() == [0, 1] * len(due)
    assert set(curve["mode"]) == {"greedy"}


@pytest.mark.parametrize("algo", BUDGETS)
def test_evaluating_does_not_change_the_training(algo: str, monkeypatch: Patch) -> None:
    """Never, at the usual points, or after every update and sampled: the same weights, bit for bit.

    An evaluation has its own streams, and leaves the training's environments where they are.
    """
    monkeypatch.setattr(run_module, "POINTS", 4)
    module = importlib.import_module(f"manyseeds.algos.{algo}")
    config = module.Config(seeds=2, quiet=True, **BUDGETS[algo])
    calls: list[Any] = []

    def never(self: Run, timestep: Any, env: Any, policy: Any) -> None:
        self._env = env

    def always(self: Run, timestep: Any, env: Any, policy: Any) -> None:
        calls.append(timestep)
        evaluate(env, policy, self.seeds, 2)
        evaluate(env, policy, self.seeds, 1, greedy=False)

    weights = [module.train(config, Run(config)).state_dict()]
    for other in (never, always):
        monkeypatch.setattr(Run, "evaluate_if_due", other)
        weights.append(module.train(config, Run(config)).state_dict())
    assert len(calls) > 3
    for name, tensor in weights[0].items():
        assert torch.equal(tensor, weights[1][name])
        assert torch.equal(tensor, weights[2][name])


# ---- Seeds at timesteps of their own ----------------------------------------------------


class Versions(OneUniform, torch.nn.Module):
    """A policy that knows how many updates each seed has had."""

    def __init__(self, S: int) -> None:
        super().__init__()
        self.register_buffer("version", torch.zeros(S))

    def act(self, obs: Tensor, noise: Tensor | None = None) -> Tensor:
        return torch.zeros(obs.shape[:2], dtype=torch.int64)


def walks(S: int, T: int, longest: int, seed: int = 0) -> list[Tensor]:
    """Timesteps [S] after every update, from steps of 1 to `longest`; a seed stops at T."""
    generator = torch.Generator().manual_seed(seed)
    now, found = torch.zeros(S, dtype=torch.int64), []
    while (now < T).any():
        steps = torch.randint(1, longest + 1, (S,), generator=generator)
        steps[0] = max(1, longest // 8)  # one is slow, one is fast
        steps[1] = longest
        now = now + steps * (now < T)
        found.append(now)
    return found


@pytest.mark.parametrize(
    ("T", "longest"),
    [(1000, 20), (1000, 60), (1000, 400), (1000, 2000), (20, 1), (7, 3), (997, 13)],
)
def test_each_seed_is_evaluated_as_it_was_when_it_passed_a_point(
    T: int, longest: int, monkeypatch: Patch
) -> None:
    """Against the definition for one seed: true timesteps, and the policy of that update.

    A point that a seed passes together with the next one has no row of it.
    """
    S, asked = 4, 0

    def as_it_was(env: Any, policy: Any, seeds: Any, episodes: int) -> Evaluation:
        nonlocal asked
        asked += 1
        version = policy.version.double().numpy()
        return Evaluation(*np.tile(version[:, None], (2, 1, episodes)))

    monkeypatch.setattr(run_module, "evaluate", as_it_was)
    run, policy = silent(T, seeds=S), Versions(S)
    run.evaluate_if_due(torch.zeros(S, dtype=torch.int64), Poisoned(), policy)
    before = torch.zeros(S, dtype=torch.int64)
    steps = walks(S, T, longest)
    for now in steps:
        policy.version += (now > before).float()
        before = now
        run.evaluate_if_due(now, Poisoned(), policy)
    assert not run._snapshots
    assert asked <= 21
    curve = run.curve()
    for s in range(S):
        history = [0, *dict.fromkeys(int(now[s]) for now in steps)]  # by its number of updates
        due = {next(v for v, t in enumerate(history) if 20 * t >= k * T) for k in range(21)}
        mine = curve[curve["seed"] == s]
        assert mine["timestep"].tolist() == [history[v] for v in sorted(due)]
        assert mine["return_mean"].tolist() == sorted(due)
    assert set(curve["mode"]) == {"greedy"}


def test_seeds_that_pass_a_point_together_are_evaluated_at_once(monkeypatch: Patch) -> None:
    """Without a copy of the policy; one is taken as soon as a seed is ahead."""
    policies: list[Any] = []

    def spy(env: Any, policy: Any, seeds: Any, episodes: int) -> Evaluation:
        policies.append(policy)
        return Evaluation(*np.zeros((2, 2, episodes)))

    monkeypatch.setattr(run_module, "evaluate", spy)
    run, policy = silent(100, seeds=2), Versions(2)
    for timesteps in ([0, 0], [5, 7], [10, 9], [11, 10]):
        run.evaluate_if_due(torch.tensor(timesteps), Poisoned(), policy)
    assert [p is policy for p in policies] == [True, True, False]


def test_metrics_are_averaged_over_a_seeds_own_windows() -> None:
    """Against the definition for one seed; nothing of a seed that has ended."""
    S, T = 4, 2000  # a window is 10 timesteps
    run, steps = silent(T, seeds=S), walks(S, T, 40, seed=1)
    generator = torch.Generator().manual_seed(2)
    logged = torch.randn(len(steps), S, generator=generator, dtype=torch.float64)
    logged[torch.rand(logged.shape, generator=generator) < 0.2] = math.nan  # no episode ended
    for k, now in enumerate(steps):
        metrics = {"train_return": logged[k], "train_length": logged[k].nan_to_num() + 1}
        if k >= 30:
            metrics["late"] = logged[k]
        run.log(now, metrics)
    frame, curve = run.metrics(), run.curve()
    for s in range(S):
        expected: dict[int, list[list[float]]] = {}
        open_window: list[list[float]] = []
        before = closed = 0
        for k, now in enumerate(steps):
            t = int(now[s])
            if t > before:
                x = logged[k, s].item()
                open_window.append([x, 1 + np.nan_to_num(x), x if k >= 30 else math.nan])
                if t // 10 > closed // 10 or t >= T:
                    expected[t], open_window, closed = open_window, [], t
            before = t
        mine = frame[frame["seed"] == s]
        assert mine["timestep"].tolist() == list(expected)
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # the mean of nothing
            means = np.array([np.nanmean(rows, axis=0) for rows in expected.values()])
        names = ["train_return", "train_length", "late"]
        np.testing.assert_allclose(mine[names].to_numpy(), means, rtol=1e-12)
        rows = curve[(curve["seed"] == s) & (curve["mode"] == "train")]
        np.testing.assert_allclose(rows["return_mean"], means[:, 0][~np.isnan(means[:, 0])])
        assert rows["timestep"].tolist() == mine["timestep"][~np.isnan(means[:, 0])].tolist()
    assert not run._pending


@pytest.mark.parametrize(("T", "block"), [(2000, 3), (1000, 7), (997, 13), (20, 1), (500, 500)])
def test_windows_of_seeds_that_keep_step_are_those_of_each(T: int, block: int) -> None:
    """One timestep for all, with which nothing is looked at before it is due, or [S] equal ones."""
    together, each = silent(T, seeds=2), silent(T, seeds=2)
    for t in range(block, T + block, block):
        metrics = {"td_loss": torch.tensor([1.0 / t, t / 3])}
        together.log(t, metrics)
        each.log(torch.tensor([t, t]), metrics)
        assert together._timesteps.tolist() == [t, t]
        assert len(together.windows) == len(each.windows)
    assert together.metrics().equals(each.metrics())
    ends = [t for t in range(block, T + block, block) if t * 200 // T > (t - block) * 200 // T]
    assert together.metrics()["timestep"].tolist() == [t for t in ends for _ in range(2)]


def test_an_iteration_in_which_nothing_is_due_makes_few_calls(
    tmp_path: Path, monkeypatch: Patch
) -> None:
    """Neither PyTorch nor NumPy computes anything."""
    monkeypatch.setattr(watch, "_next", math.inf)  # the next look at code is not due either
    config = ppo.Config(total_timesteps=10**6, seeds=3, quiet=True)
    run = Run(config, directory=tmp_path)
    env, metrics = config.make_env(), {"td_loss": torch.ones(3)}
    run.restore([envs.EpisodeTracker(3, 1)], 0)
    run._points[:] = 0
    called: list[str] = []

    def note(frame: Any, event: str, function: Any) -> None:
        if event in ("call", "c_call"):
            called.append(frame.f_code.co_name if event == "call" else function.__name__)

    for t in range(10, 50, 10):
        sys.setprofile(note if t > 10 else None)  # what is due next is computed at the first
        run.log(t, metrics)
        run.evaluate_if_due(t, env, Constant())
        run.save_if_due(t, metrics)
        sys.setprofile(None)
    run.close()
    assert len(run._pending) == 4
    assert len(called) <= 3 * 14, called


def test_a_seeds_log_has_the_same_bits_alone() -> None:
    """Sums over more or fewer logs than a neighbour's must not round otherwise."""
    T, steps = 2000, walks(9, 2000, 40, seed=3)
    logged = torch.randn(len(steps), 9, generator=torch.Generator().manual_seed(0))

    def frame(seeds: slice) -> Any:
        run = silent(T, seeds=len(range(9)[seeds]))
        for k, now in enumerate(steps):
            if (now[seeds] > (steps[k - 1][seeds] if k else 0)).any():
                run.log(now[seeds], {"x": logged[k, seeds]})
        return run.metrics()

    together = frame(slice(None))
    for s in range(9):
        alone, mine = frame(slice(s, s + 1)), together[together["seed"] == s]
        assert alone["timestep"].tolist() == mine["timestep"].tolist()
        np.testing.assert_array_equal(alone["x"], mine["x"])


def test_a_summary_of_seeds_at_timesteps_of_their_own(monkeypatch: Patch) -> None:
    run, policy = silent(100, seeds=3), Versions(3)
    for now in ([0, 0, 0], [60, 100, 130], [105, 100, 130]):
        timesteps = torch.tensor(now)
        if any(now):
            run.log(timesteps, {"train_return": torch.ones(3), "train_length": torch.ones(3)})
        run.evaluate_if_due(timesteps, Poisoned(), policy)
    summary = run.finish(policy)
    assert summary["timesteps_per_seed"] == 112
    curve = run.curve()
    for mode in ("greedy", "sampled"):
        last = curve[(curve["mode"] == mode) & (curve["episodes"] == FINAL_EPISODES)]
        assert last["timestep"].tolist() == [105, 100, 130]
    train = curve[curve["mode"] == "train"]
    assert sorted(zip(train["seed"], train["timestep"], strict=True)) == [
        *((0, 60), (0, 105), (1, 100), (2, 130))
    ]


# ---- The learning clock -----------------------------------------------------------------


def test_the_learning_clock_is_stopped_during_evaluations(monkeypatch: Patch) -> None:
    """Learning takes 10 s per update on a planted clock, an evaluation 1000 s."""
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr(base, "time", SimpleNamespace(perf_counter=lambda: clock.now))

    def slow(*args: Any, **kwargs: Any) -> Any:
        clock.now += 1000.0
        return evaluate(Poisoned(), Constant(), [0], 2)

    monkeypatch.setattr(run_module, "evaluate", slow)
    run = silent(100)
    run.evaluate_if_due(0, Poisoned(), Constant())
    for t in range(1, 101):
        clock.now += 10.0
        run.log(t, {"train_return": torch.ones(1), "train_length": torch.ones(1)})
        run.evaluate_if_due(t, Poisoned(), Constant())
        assert run.learn_s == 10.0 * t
    summary = run.finish(Constant())
    curve = run.curve()
    assert (curve["learn_s"] == 10.0 * curve["timestep"]).all()
    assert curve["mode"].value_counts().to_dict() == {"train": 100, "greedy": 22, "sampled": 1}
    assert summary["learn_seconds"] == 1000.0
    assert summary["total_seconds"] == 1000.0 + 23 * 1000.0
    assert summary["timesteps_per_second"] == 0.1


# ---- Failures ---------------------------------------------------------------------------


def test_a_nan_loss_marks_its_seed_with_the_step() -> None:
    """Inside a window of the log too; other metrics may be NaN, and mark nothing."""
    run = silent(2000, seeds=4, first_seed=5)  # a window is 10 timesteps
    nan, inf = math.nan, math.inf
    for t in range(1, 41):
        losses = [1.0, nan if t == 13 else 1.0, inf if t >= 26 else 1.0, 1.0]
        other = [1.0, 1.0, 1.0, nan if t == 31 else 1.0]
        metrics = {"td_loss": losses, "value_loss": other, "train_return": [nan] * 4}
        run.log(t, {name: torch.tensor(values) for name, values in metrics.items()})
    assert run.diverged == {6: 13, 7: 26, 8: 31}
    run = silent(2000, seeds=2)  # one that is not there yet, as before DQN learns, is no NaN
    for t in range(1, 21):
        run.log(t, {"td_loss": torch.ones(2)} if t > 15 else {"train_return": torch.ones(2)})
    assert run.diverged == {}
    run = silent(100, seeds=3)  # at timesteps of their own; not one that has ended
    for k in range(1, 40):
        now = torch.tensor([3 * k, min(10 * k, 100), 4 * k]).clamp(max=100)
        bad = [k == 7, k > 10, k in (20, 21)]
        run.log(now, {"policy_loss": torch.tensor([math.nan if b else 1.0 for b in bad])})
    assert run.diverged == {0: 21, 2: 80}


def test_weights_that_the_last_update_broke_mark_their_seed() -> None:
    """Its loss was still a number. A seed that had diverged keeps its timestep."""
    run, policy = silent(100, seeds=4, first_seed=5), Versions(4)
    run.evaluate_if_due(0, Poisoned(), policy)
    run.log(60, {"td_loss": torch.tensor([1.0, 1.0, math.nan, 1.0])})
    run.log(100, {"td_loss": torch.ones(4)})
    policy.version = torch.tensor([1.0, math.inf, math.nan, 0.0])
    assert run.finish(policy)["diverged"] == {"6": 100, "7": 60}


PLANT = ("--total-timesteps", "640", "--num-envs", "4", "--num-steps", "16", "--hidden", "8")
PLANT += ("--minibatch-size", "32", "--seeds", "3", "--first-seed", "4", "--results", "r")


def test_a_diverged_seed_is_reported_everywhere_and_harms_no_other(
    tmp_path: Path, monkeypatch: Patch, capsys: Output
) -> None:
    """In the summary, in the table, in every aggregate; the other seeds are bit-equal."""
    monkeypatch.chdir(tmp_path)

    def train(name: str) -> tuple[StoredRun, str]:
        config = parse(ppo.Config, ppo.PRESETS, "", [*PLANT, "--name", name])
        main(config, ppo.train, ppo.PRESETS)
        return open_run(RunFolder.of(config, "ppo")), capsys.readouterr().out

    real, count = ppo.gae, 0

    def gae(*args: Any) -> Tensor:
        """NaN for the second seed in the third rollout."""
        nonlocal count
        count += 1
        return real(*args) + torch.tensor([0, math.nan if count == 3 else 0, 0]).view(3, 1, 1)

    healthy, table = train("healthy")
    assert healthy.summaries[0]["diverged"] == {}
    assert "3 of 3 seeds below 475 " in table
    with monkeypatch.context() as patch:
        patch.setattr(ppo, "gae", gae)
        ill, table = train("ill")
    assert ill.summaries[0]["diverged"] == {"5": 192}  # 3 rollouts of 64
    assert "3 of 3 seeds: 3 below 475, 1 diverged " in table
    assert "seeds 5, the first at timestep 192" in table
    assert "each counts as a failure, 22.1 at most" in table
    assert "3 seeds: covers 48 to 75%" in table
    final = ill.summaries[0]["final"]["greedy"]
    assert set(final["per_seed"]) == {"4", "5", "6"}
    assert final["per_seed"]["5"] < 50
    assert final["mean"]["value"] == pytest.approx(np.mean(list(final["per_seed"].values())))
    assert 5 in ill.summaries[0]["below_threshold"]

    def rows(run: StoredRun, seeds: list[int]) -> Any:
        curve = curve_of(run).drop(columns="learn_s")
        return curve[curve["seed"].isin(seeds)].reset_index(drop=True)

    monkeypatch.setattr(run_module, "random_score", lambda config, spec: None)
    config = parse(ppo.Config, ppo.PRESETS, "", [*PLANT, "--name", "ill"])
    gone = dict.fromkeys((4, 5, 6), worth_of(20.0, 64))
    for worths, said in (({**gone, 4: worth_of(20.0)}, "IQM 20.0 "), (gone, "IQM unknown ")):
        monkeypatch.setattr(run_module, "worths_of", lambda _, found=worths: found)
        run_module.print_result(RunFolder.of(config, "ppo"), config, None)
        table = capsys.readouterr().out
        assert said in table
        assert "seeds equal" not in table

    assert rows(ill, [4, 6]).equals(rows(healthy, [4, 6]))
    assert not rows(ill, [5]).equals(rows(healthy, [5]))


def test_failures_are_said_once() -> None:
    none: set[int] = set()
    for seeds, kinds, said in (
        (10, {"below 475": none, "diverged": none}, "0 of 10 seeds below 475"),
        (10, {"below 475": none, "diverged": {3}}, "1 of 10 seeds diverged"),
        (10, {"below 475": {3, 4}, "diverged": {3}}, "2 of 10 seeds: 2 below 475, 1 diverged"),
        (1, {"not finite": none, "diverged": none}, "0 of 1 seed not finite"),
    ):
        assert run_module.failures_text(seeds, kinds) == said


@pytest.mark.parametrize("env", envs.NATIVE)
def test_the_report_counts_the_same_failures(env: str) -> None:
    spec = envs.NATIVE[env]().spec
    threshold = run_module.reachable_threshold(spec)
    bar, words = run_module.failure_bar(ppo.Config(), spec, threshold)
    assert bar == (floor_of(spec) if threshold is None else threshold)
    assert words.startswith("" if bar is None else f"below {bar:g}")


@pytest.mark.usefixtures("pictures")
@pytest.mark.parametrize("threshold", [475.0, None])
def test_a_score_that_is_not_known_is_null_and_a_failure(
    threshold: float | None, tmp_path: Path, monkeypatch: Patch, capsys: Output
) -> None:
    """In every file, in the aggregates and in the table; the other seeds keep theirs. One at the
    threshold is no failure, one below it is."""
    scores = np.array([475.0, math.nan, 474.99])

    def scored(env: Any, policy: Any, seeds: Any, episodes: int, *_: Any) -> Evaluation:
        return Evaluation(*np.tile(scores[:, None], (2, 1, episodes)))

    monkeypatch.setattr(run_module, "evaluate", scored)
    monkeypatch.setattr(run_module, "reachable_threshold", lambda spec: threshold)
    monkeypatch.chdir(tmp_path)
    config = parse(ppo.Config, ppo.PRESETS, "", PLANT)
    main(config, ppo.train, {})
    folder = RunFolder.of(config, "ppo")
    summary = read_json(folder.parts()[0] / "summary.json")
    final = summary["final"]["greedy"]
    assert final["per_seed"] == {"4": 475.0, "5": None, "6": 474.99}
    for name in ("iqm", "mean"):
        assert final[name] == {"value": None, "low": None, "high": None, "n": 3}
    assert summary["below_threshold"] == ([5, 6] if threshold else [])
    table = capsys.readouterr().out
    assert "IQM unknown (" in table
    floor = "1 below 452.21 (a normalised score of 0.9), 1"
    said = "2 of 3 seeds: 2 below 475, 1" if threshold else f"1 of 3 seeds: {floor}"
    assert f"{said} without a finite return " in " ".join(table.replace("│", " ").split())
    assert "nan" not in table


# ---- What is stored of a run ------------------------------------------------------------


def test_means_over_episodes_are_rounded_once() -> None:
    """In any order of the sum: that of numpy depends on the CPU."""
    returns = np.array([[1e16, 1.0, -1e16], [4.0, 1.0, 1.0]])
    result = Evaluation(returns, returns[:, ::-1])
    for means in (result.return_mean, result.length_mean):
        assert means.tolist() == [1 / 3, 2.0]
    assert result.return_std[1] == math.sqrt(2)


@pytest.mark.parametrize(("algo", "played"), [("ppo", 11 * 32 + 200), ("q_learning", 100)])
def test_the_return_of_every_episode_is_stored(algo: str, played: int) -> None:
    """Below the curve that it is averaged to; none where the curve is exact."""
    module = importlib.import_module(f"manyseeds.algos.{algo}")
    run = Run(module.Config(seeds=2, quiet=True, **BUDGETS[algo]))
    run.finish(module.train(run.config, run))
    table, curve = run.episodes(), run.curve()
    assert len(table) == 2 * played
    which = ["seed", "timestep", "mode", "episodes"]
    means = table.groupby(which)["return"].mean()
    assert (
        table.groupby(which)["episode"].agg(list) == [[*range(n)] for *_, n in means.index]
    ).all()
    stored = curve[curve["episodes"] > 0].set_index(which)["return_mean"].sort_index()
    assert stored.index.equals(means.index)
    np.testing.assert_allclose(stored, means, rtol=1e-6)


def test_a_run_in_memory_ends_with_100_episodes_in_both_modes() -> None:
    config = q_learning.Config(env="FrozenLake-v1", seeds=2, total_timesteps=500, quiet=True)
    run = Run(config)
    policy = q_learning.train(config, run)
    summary = run.finish(policy)
    env = envs.make("FrozenLake-v1")
    exact = evaluate(env, policy, [0, 1], FINAL_EPISODES)
    sampled = evaluate(env, policy, [0, 1], FINAL_EPISODES, greedy=False)
    assert list(summary["final"]["greedy"]["per_seed"].values()) == exact.return_mean.tolist()
    assert list(summary["final"]["sampled"]["per_seed"].values()) == sampled.return_mean.tolist()
    assert summary["final"]["greedy"]["episodes"] == 0
    assert summary["final"]["sampled"]["episodes"] == FINAL_EPISODES == 100
    assert summary["timesteps_per_seed"] == 500
    assert summary["below_threshold"] == [0, 1]
    curve = run.curve()
    last = curve[(curve["mode"] == "sampled")]
    assert last["timestep"].tolist() == [500, 500]
    assert last["return_mean"].tolist() == sampled.return_mean.tolist()


def test_an_evaluation_budget_shortens_every_evaluation_and_nothing_else() -> None:
    """The curve at the same points, the same training; a run of its own name."""
    runs = {}
    for budget in (1.0, 0.1, 0.001):
        config = ppo.Config(seeds=2, total_timesteps=2048, quiet=True, eval_budget=budget)
        run = Run(config)
        policy = ppo.train(config, run)
        run.evaluate_finally(policy)
        runs[budget] = run.curve(), policy.state_dict(), identity(config)
    whole, weights, name = runs[1.0]
    assert "eval_budget" not in name
    for budget, few, many in ((1.0, 32, 100), (0.1, 3, 10), (0.001, 1, 1)):
        curve, trained, other = runs[budget]
        greedy = curve[curve["mode"] == "greedy"]
        assert (greedy["episodes"].min(), greedy["episodes"].max()) == (few, many)
        assert list(greedy["timestep"]) == list(whole[whole["mode"] == "greedy"]["timestep"])
        assert all(torch.equal(trained[key], weights[key]) for key in weights)
        assert plots.curve_of("ppo", curve)[1].shape[0] == 2
        assert (other == name) == (budget == 1.0)
