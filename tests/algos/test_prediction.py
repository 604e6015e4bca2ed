"""Prediction: the updates against slow loops, the exact values as limit, seeds, store, flags."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor

from manyseeds import envs
from manyseeds.algos import monte_carlo, td_prediction
from manyseeds.algos.td_prediction import Episodes
from manyseeds.cli import from_preset, parse
from manyseeds.record import RunFolder, read_json
from manyseeds.runs import prediction
from manyseeds.runs.prediction import PredictionRun, random_policy
from manyseeds.seeds import SeedStreams

MODULES = {"monte_carlo": monte_carlo, "td_prediction": td_prediction}
METHODS: dict[str, tuple[Any, dict[str, Any]]] = {
    "first-visit mean": (monte_carlo, {}),
    "every-visit mean": (monte_carlo, {"visits": "every"}),
    "first-visit": (monte_carlo, {"learning_rate": 0.2}),
    "every-visit": (monte_carlo, {"visits": "every", "learning_rate": 0.2}),
    "TD(0)": (td_prediction, {"learning_rate": 0.2}),
    "3-step TD": (td_prediction, {"learning_rate": 0.2, "n_steps": 3}),
    "TD(0.7)": (td_prediction, {"learning_rate": 0.2, "trace_decay": 0.7}),
}
CONSTANT = [name for name in METHODS if not name.endswith("mean")]  # alpha


class Small(envs.TabularEnv):
    """Four states and an end, random transitions and rewards; state 3 is never met."""

    def __init__(self, time_limit: int = 30) -> None:
        generator = torch.Generator().manual_seed(0)
        P = torch.rand(2, 5, 5, generator=generator, dtype=torch.float64).square()
        R = torch.randn(2, 5, 5, generator=generator, dtype=torch.float64)
        P[:, :3, 3] = 0.0
        P[:, :, 4] += 0.3
        ends = torch.tensor([False, False, False, False, True])
        start = torch.tensor([0.5, 0.5, 0.0, 0.0, 0.0], dtype=torch.float64)
        spec = envs.EnvSpec("Small", time_limit, num_actions=2, num_states=5)
        super().__init__(spec, P / P.sum(-1, keepdim=True), R, ends, start)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], Small]:
    """Put a small environment behind whatever --env says."""

    def put(time_limit: int) -> Small:
        env = Small(time_limit)
        for module in MODULES.values():
            monkeypatch.setattr(module.Config, "make_env", lambda self: env)
        return env

    return put


def predict(module: Any, seeds: Any = None, **settings: Any) -> tuple[Tensor, PredictionRun]:
    """Learn in memory; the values and the run."""
    config = module.Config(quiet=True, **{"seeds": 3, **settings})
    run = PredictionRun(config, seeds)
    return module.train(config, run), run


def random_episodes(S: int = 40, L: int = 12, X: int = 4) -> Episodes:
    """One episode of each of S seeds, 1 to L steps long, terminated or cut, in float64."""
    generator = torch.Generator().manual_seed(1)
    states = torch.randint(X, (S, L + 1), generator=generator)
    rewards = torch.randn(S, L, generator=generator, dtype=torch.float64)
    length = torch.randint(1, L + 1, (S,), generator=generator)
    length[:2] = torch.tensor([1, L])
    t = torch.arange(L + 1)
    states = torch.where(t <= length.unsqueeze(1), states, states.gather(1, length.unsqueeze(1)))
    alive = t[:L] < length.unsqueeze(1)
    terminated = torch.rand(S, generator=generator) < 0.5
    terminated[:4] = torch.tensor([True, False, False, True])
    return Episodes(states, rewards * alive, alive, terminated)


def singles(episodes: Episodes) -> Iterator[tuple[list[int], list[float], bool]]:
    """States S_0 ... S_T, rewards R_1 ... R_T, terminated: seed by seed, without the padding."""
    for states, rewards, alive, terminated in zip(*episodes, strict=True):
        T = int(alive.sum())
        yield states[: T + 1].tolist(), rewards[:T].tolist(), bool(terminated)


# ---- The slow loops: one seed, one number at a time, as the book's boxes print them ---------


def slow_monte_carlo(
    V: list[float],
    N: list[int],
    states: list[int],
    rewards: list[float],
    terminated: bool,
    gamma: float,
    alpha: float,
    first: bool,
) -> None:
    """The box of section 5.1, visits in the order of time."""
    T = len(rewards)
    G = 0.0 if terminated else V[states[T]]
    returns = [0.0] * T
    for t in reversed(range(T)):
        G = gamma * G + rewards[t]
        returns[t] = G
    for t in range(T):
        if first and states[t] in states[:t]:
            continue
        N[states[t]] += 1
        step = alpha if alpha > 0 else 1 / N[states[t]]
        V[states[t]] += step * (returns[t] - V[states[t]])


def slow_n_step(
    V: list[float],
    states: list[int],
    rewards: list[float],
    terminated: bool,
    n: int,
    gamma: float,
    alpha: float,
) -> None:
    """The box of section 7.1: at time t the state of time tau = t - n + 1 is updated."""
    T, R = len(rewards), [0.0, *rewards]
    for t in itertools.count():
        tau = t - n + 1
        if tau >= 0:
            end = min(tau + n, T)
            G = sum(gamma ** (i - tau - 1) * R[i] for i in range(tau + 1, end + 1))
            if tau + n < T or not terminated:
                G += gamma ** (end - tau) * V[states[end]]
            V[states[tau]] += alpha * (G - V[states[tau]])
        if tau == T - 1:
            return


def slow_traces(
    V: list[float],
    states: list[int],
    rewards: list[float],
    terminated: bool,
    trace_decay: float,
    gamma: float,
    alpha: float,
) -> None:
    """The box of section 12.2 for a table."""
    T, z = len(rewards), [0.0] * len(V)
    for t in range(T):
        z = [gamma * trace_decay * x for x in z]
        z[states[t]] += 1.0
        next_value = 0.0 if terminated and t == T - 1 else V[states[t + 1]]
        delta = rewards[t] + gamma * next_value - V[states[t]]
        for s, x in enumerate(z):
            V[s] += alpha * delta * x


def start_values(S: int, X: int = 4) -> Tensor:
    """Also of terminal states: what must not be bootstrapped from would be seen."""
    return torch.randn(S, X, generator=torch.Generator().manual_seed(2), dtype=torch.float64) + 1.0


# ---- Monte Carlo ---------------------------------------------------------------------------


# ---- Temporal differences ------------------------------------------------------------------


@pytest.mark.parametrize("gamma", [0.9, 1.0, 0.0])
@pytest.mark.parametrize("n", [1, 2, 3, 7, 12, 50])
def test_n_step_equals_the_slow_loop(n: int, gamma: float) -> None:
    """Random lengths, terminated and truncated, in which states are visited many times."""
    episodes = random_episodes()
    V = start_values(40)
    slow = V.tolist()
    for values, single in zip(slow, singles(episodes), strict=True):
        slow_n_step(values, *single, n, gamma, alpha=0.3)
    td_prediction.learn_n_step(V, episodes, n, gamma, alpha=0.3)
    torch.testing.assert_close(V, torch.tensor(slow, dtype=torch.float64), atol=1e-12, rtol=0)


@pytest.mark.parametrize("gamma", [0.9, 1.0, 0.0])
@pytest.mark.parametrize("trace_decay", [0.0, 0.5, 1.0])
def test_traces_equal_the_slow_loop(trace_decay: float, gamma: float) -> None:
    episodes = random_episodes()
    V = start_values(40)
    slow = V.tolist()
    for values, single in zip(slow, singles(episodes), strict=True):
        slow_traces(values, *single, trace_decay, gamma, alpha=0.1)
    td_prediction.learn_traces(V, episodes, trace_decay, gamma, alpha=0.1)
    torch.testing.assert_close(V, torch.tensor(slow, dtype=torch.float64), atol=1e-12, rtol=0)


@pytest.mark.parametrize("n", [10_000, 2**53])
def test_n_beyond_the_episode_is_every_visit_monte_carlo(n: int) -> None:
    """The two ends of one spectrum, over many episodes."""
    n_step, run = predict(td_prediction, env="FrozenLake-v1", n_steps=n, learning_rate=0.2)
    mc, run_mc = predict(monte_carlo, env="FrozenLake-v1", visits="every", learning_rate=0.2)
    torch.testing.assert_close(n_step, mc, atol=1e-6, rtol=1e-5)
    assert (mc != 0).any()
    assert run.predictions().timesteps.tolist() == run_mc.predictions().timesteps.tolist()


# ---- Episodes, and a whole training ----------------------------------------------------------


@pytest.mark.parametrize("time_limit", [4, 200])
def test_play_is_what_env_step_does(time_limit: int) -> None:
    """The same actions and noise, through the contract with its autoreset."""
    env, S, N = Small(time_limit), 6, 5
    policy = torch.tensor([[0.2, 0.8]] * 5, dtype=torch.float64)
    noise = SeedStreams(range(S), "train").uniform(N, 1 + 2 * time_limit)
    played = monte_carlo.play(env, policy, noise)
    L = played.alive.shape[2]
    state, _ = env.reset(noise[..., :1])
    going = torch.ones(S, N, dtype=torch.bool)
    assert torch.equal(played.states[..., 0], state.physics)
    for t in range(L):
        assert torch.equal(played.alive[..., t], going)
        action = (noise[..., 1 + 2 * t] >= 0.2).long()
        chance = noise[..., 2 + 2 * t].unsqueeze(-1)
        step = env.step(state, action, torch.cat((chance, torch.zeros(S, N, 1)), -1))
        assert torch.equal(played.states[..., t + 1][going], step.final_obs[going])
        assert torch.equal(played.rewards[..., t][going], step.reward[going])
        assert (played.rewards[..., t][~going] == 0).all()
        assert torch.equal(played.states[..., t + 1][~going], played.states[..., t][~going])
        ended = going & (step.terminated | step.truncated)
        assert torch.equal(played.terminated[ended], step.terminated[ended])
        going, state = going & ~ended, step.state
    assert not going.any()
    assert played.terminated.any()
    assert played.terminated.all() == (time_limit == 200)


@pytest.mark.parametrize("method", METHODS)
def test_training_equals_the_slow_loop(
    method: str, small: Callable[[int], Small], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Several blocks of episodes, some cut by the time limit; nothing is carried between them."""
    env = small(5)
    module, settings = METHODS[method]
    episodes, gamma, alpha = 23, 0.9, settings.get("learning_rate", 0.0)
    values, run = predict(module, total_episodes=episodes, gamma=gamma, **settings)
    noise = SeedStreams(run.seeds, "train").uniform(episodes, 1 + 2 * 5)
    played = module.play(env, random_policy(env), noise)
    assert played.terminated.any()
    assert not played.terminated.all()
    slow, counts = [[0.0] * 5 for _ in range(3)], [[0] * 5 for _ in range(3)]
    for k in range(episodes):
        episode = Episodes(*(x[:, k] for x in played))
        for V, N, single in zip(slow, counts, singles(episode), strict=True):
            if module is monte_carlo:
                first = settings.get("visits", "first") == "first"
                slow_monte_carlo(V, N, *single, gamma, alpha, first)
            elif "trace_decay" in settings:
                slow_traces(V, *single, settings["trace_decay"], gamma, alpha)
            else:
                slow_n_step(V, *single, settings.get("n_steps", 1), gamma, alpha)
    torch.testing.assert_close(values, torch.tensor(slow), atol=1e-5, rtol=1e-5)
    steps = played.alive.sum((1, 2)).tolist()
    assert run.predictions().timesteps[:, -1].tolist() == steps


# ---- The exact values are the limit ----------------------------------------------------------


@pytest.mark.parametrize("gamma", [0.9, 1.0])
@pytest.mark.parametrize("method", CONSTANT)
@pytest.mark.parametrize("time_limit", [3, 100])
def test_the_exact_values_stay(time_limit: int, method: str, gamma: float) -> None:
    """Begun at them, with a tiny alpha, V drifts nowhere on average, episodes cut or not.

    Every update is alpha times an error whose mean is 0; within five standard errors, each state.
    """
    env, S, N, alpha = Small(time_limit), 1000, 10, 1e-9
    policy = random_policy(env)
    exact = env.policy_values(policy.unsqueeze(0), gamma)
    played = monte_carlo.play(
        env, policy, SeedStreams(range(S), "train").uniform(N, 1 + 2 * time_limit)
    )
    # As many are cut as the policy leaves running for so long.
    P_pi, running = torch.einsum("xa,axy->xy", policy, env.P), env.start
    for _ in range(time_limit):
        running = (running @ P_pi).masked_fill(env.ends, 0.0)
    cut = running.sum().item()
    within = 5 * (cut * (1 - cut) / (S * N)) ** 0.5
    assert (~played.terminated).double().mean().item() == pytest.approx(cut, abs=within)
    assert (cut > 0.1) == (time_limit == 3)
    episode = Episodes(*(x.flatten(0, 1) for x in played))
    episode = episode._replace(rewards=episode.rewards.double())
    V = exact.repeat(S * N, 1)
    module, settings = METHODS[method]
    if module is monte_carlo:
        G = monte_carlo.returns(episode, V, gamma)
        visits = monte_carlo.first_visits(episode, 5) if method == "first-visit" else episode.alive
        monte_carlo.learn(V, torch.zeros_like(V), episode.states[:, :-1], G, visits, alpha)
    elif "trace_decay" in settings:
        td_prediction.learn_traces(V, episode, settings["trace_decay"], gamma, alpha)
    else:
        td_prediction.learn_n_step(V, episode, settings.get("n_steps", 1), gamma, alpha)
    drift = ((V - exact) / alpha)[:, :3]
    standard_error = drift.std(0) / (S * N) ** 0.5
    assert (standard_error > 0).all()
    assert (drift.mean(0).abs() < 5 * standard_error).all()


def test_the_books_figure() -> None:
    """SB, figure 7.2, 19 states, 10 episodes, as the public reimplementation by S. Zhang has it.

    Run by us 400 times: 0.2593, 0.3442, 0.2788, with standard errors 0.0024, 0.0010 and 0.0023.
    """
    for n, alpha, error in ((4, 0.4, 0.2593), (1, 0.8, 0.3442), (8, 0.2, 0.2788)):
        settings = {"n_steps": n, "learning_rate": alpha, "total_episodes": 10}
        _, run = predict(td_prediction, range(100), env="RandomWalk-v0", **settings)
        early = run.predictions().early_errors
        slack = 4 * early.std() / 10 + 0.005
        assert early.mean() == pytest.approx(error, abs=slack)
        assert slack < 0.03


# ---- What is measured ------------------------------------------------------------------------


def test_the_states_that_count_and_their_values() -> None:
    """Those that the random policy meets: not holes, goals, nor what cannot be reached."""
    env = Small()
    policy = random_policy(env)
    assert prediction.counted_states(env, policy).tolist() == [0, 1, 2]
    lake = envs.FrozenLake(4)
    holes = [5, 7, 11, 12, 15]
    expected = [x for x in range(16) if x not in holes]
    assert prediction.counted_states(lake, random_policy(lake)).tolist() == expected
    _, run = predict(td_prediction, env="RandomWalk-v0", total_episodes=1)
    found = run.predictions()
    assert found.states == list(range(1, 20))
    np.testing.assert_allclose(found.exact, np.arange(-9, 10) / 10, atol=1e-12)
    assert found.errors[:, 0] == pytest.approx(np.sqrt(0.3))  # V = 0: the mean of 0.01 to 0.81


@pytest.mark.parametrize("episodes", [1, 7, 10, 11, 40, 100, 12_345])
def test_the_episodes_that_are_measured(episodes: int) -> None:
    found = prediction.points(episodes)
    assert found == sorted(set(found))
    assert found[: min(episodes, 10) + 1] == list(range(min(episodes, 10) + 1))
    assert found[-1] == episodes
    assert len(found) <= 21
    assert max(np.diff(found)) <= max(1, -(-episodes // 10))


def test_squared_error_is_bias_squared_plus_variance() -> None:
    _, run = predict(td_prediction, range(20), n_steps=4, learning_rate=0.4, total_episodes=30)
    found = run.predictions()
    squared = np.square(found.errors).mean(0)
    np.testing.assert_allclose(squared, found.bias_squared + found.variance, rtol=1e-12)
    assert (found.variance[1:] > 0).all()
    # By their definitions, state by state.
    V = found.values[:, -1]
    bias = sum((V[:, i].mean() - found.exact[i]) ** 2 for i in range(19)) / 19
    variance = sum(((V[:, i] - V[:, i].mean()) ** 2).mean() for i in range(19)) / 19
    assert found.bias_squared[-1] == pytest.approx(bias)
    assert found.variance[-1] == pytest.approx(variance)


# ---- The seed axis ---------------------------------------------------------------------------


@pytest.mark.parametrize("method", METHODS)
def test_a_seed_alone_equals_the_seed_in_a_batch(method: str) -> None:
    """Bit for bit, whatever the lengths of the others' episodes."""
    module, settings = METHODS[method]
    settings = {"env": "RandomWalk-v0", "total_episodes": 12, **settings}
    alone, run = predict(module, seeds=[7], **settings)
    for seeds in ([6, 7], list(range(10))):
        among, other = predict(module, seeds=seeds, **settings)
        i = seeds.index(7)
        assert torch.equal(alone[0], among[i])
        for name in ("values", "errors", "timesteps"):
            a, b = getattr(run.predictions(), name)[0], getattr(other.predictions(), name)[i]
            np.testing.assert_array_equal(a, b, name)
    assert (among[0] != among[1]).any()


@pytest.mark.usefixtures("pictures")
def test_a_seed_that_diverges_is_alone_with_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Long traces and a large alpha: V overflows, and every file and number says so."""
    args = ["--trace-decay", "1", "--n-steps", "1", "--learning-rate", "1"]
    args += ["--total-episodes", "20"]
    args += ["--seeds", "4", "--results", str(tmp_path), "--quiet"]
    folder = command(td_prediction, *args)
    (part,) = folder.parts()
    summary = json.loads((part / "summary.json").read_text(), parse_constant=pytest.fail)
    found = prediction.load_predictions([part], range(4))
    assert len(found.diverged) > 0
    assert summary["diverged"] == {str(seed): when for seed, when in found.diverged.items()}
    assert summary["rms_error"]["mean"]["value"] is None
    for seed, when in found.diverged.items():
        assert summary["rms_error"]["per_seed"][str(seed)] is None
        k = found.episodes.index(when)
        assert np.isfinite(found.errors[seed, :k]).all()
    assert "seeds diverged" in " ".join(capsys.readouterr().out.split())
    assert (part / "curve.png").stat().st_size > 1000
    # Alone it does the same: what a diverged seed goes through does not depend on the others.
    seed = next(iter(found.diverged))
    values, run = predict(
        td_prediction, seeds=[seed], trace_decay=1.0, learning_rate=1.0, total_episodes=20
    )
    np.testing.assert_array_equal(run.predictions().errors[0], found.errors[seed])


# ---- The store -------------------------------------------------------------------------------


def command(module: Any, *args: str) -> RunFolder:
    """A script's three lines, in this process; returns its run."""
    config = parse(module.Config, module.PRESETS, module.__doc__, args)
    prediction.main(config, module.train, module.PRESETS)
    return RunFolder.of(config, module.__name__.split(".")[-1])


@pytest.mark.parametrize("name", MODULES)
@pytest.mark.usefixtures("pictures")
def test_what_a_run_stores(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    module = MODULES[name]
    args = ("--env", "RandomWalk-v0", "--seeds", "3", "--total-episodes", "12", "--results", "r")
    folder = command(module, *args, "--name", "x")
    part = Path(f"r/runs/RandomWalk-v0/{name}/x/seeds-000-002")
    assert folder.parts() == [part]
    files = "DONE.json config.json curve.parquet curve.png policy.safetensors summary.json "
    assert sorted(p.name for p in part.iterdir()) == (files + "values.parquet").split()
    config, summary = read_json(part / "config.json"), read_json(part / "summary.json")
    assert config["kind"] == summary["kind"] == "prediction"
    assert config["config"]["gamma"] == 1.0
    assert "seeds" not in config["config"]

    curve = pd.read_parquet(part / "curve.parquet")
    columns = ["source", "algo", "env", "seed", "episode", "timestep", "rms_error"]
    assert list(curve) == columns
    assert set(curve["algo"]) == {name}
    last = curve[curve["episode"] == 12].set_index("seed")
    errors = summary["rms_error"]["per_seed"]
    assert errors == {str(seed): x for seed, x in last["rms_error"].items()}
    mean = summary["rms_error"]["mean"]
    assert mean["value"] == pytest.approx(last["rms_error"].mean())
    assert mean["low"] <= mean["value"] <= mean["high"]
    assert summary["timesteps"] == last["timestep"].sum()
    total = summary["bias_squared"] + summary["variance"]
    assert total == pytest.approx(np.square(last["rms_error"]).mean())

    values = module.load(str(part))
    found = prediction.load_predictions([part], range(3))
    np.testing.assert_allclose(found.values[:, -1], values[:, found.states], rtol=1e-7)
    np.testing.assert_array_equal(found.curve("manyseeds", name, "RandomWalk-v0"), curve)
    config = from_preset(module.Config, module.PRESETS, "RandomWalk-v0", seeds=3, total_episodes=12)
    assert torch.equal(module.train(config, PredictionRun(config)), values)

    out = capsys.readouterr().out
    assert f"{name} on RandomWalk-v0, 3 seeds, 12 episodes" in out
    assert "published" not in out  # that is of 100 episodes
    before = {p: p.stat().st_mtime_ns for p in part.iterdir()}
    command(module, *args, "--name", "x")
    assert capsys.readouterr().out.startswith(f"Finished already: 3 seeds in {folder.path}.\n")
    assert before == {p: p.stat().st_mtime_ns for p in part.iterdir()}


@pytest.mark.parametrize(
    ("args", "shown"),
    [
        ("", True),
        ("--n-steps 1", False),
        ("--gamma 0.9", False),
        ("--total-episodes 99", False),
        ("--env Gridworld-v0", False),
    ],
)
def test_a_published_score_is_beside_its_own_settings_only(
    args: str, shown: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command(td_prediction, *args.split(), "--seeds", "2", "--quiet", "--results", str(tmp_path))
    assert ("0.26 over the first 10" in " ".join(capsys.readouterr().out.split())) == shown


def test_more_seeds_tomorrow_train_only_the_missing_ones(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """10, then 20, and everything is that of 20 at once: errors, bias, variance."""
    args = ["--total-episodes", "12", "--quiet", "--results"]
    command(td_prediction, *args, str(tmp_path / "a"), "--seeds", "10")
    capsys.readouterr()
    folder = command(td_prediction, *args, str(tmp_path / "a"), "--seeds", "20")
    two = capsys.readouterr().out.splitlines()
    assert [part.name for part in folder.parts()] == ["seeds-000-009", "seeds-010-019"]
    at_once = command(td_prediction, *args, str(tmp_path / "b"), "--seeds", "20")
    one = capsys.readouterr().out.splitlines()
    found = [prediction.load_predictions(run.parts(), range(20)) for run in (folder, at_once)]
    for field in ("values", "timesteps", "errors", "bias_squared", "variance"):
        a, b = (getattr(x, field) for x in found)
        np.testing.assert_array_equal(a, b, field)
    for word in ("RMS error", "bias", "standard deviation"):
        a, b = ([line.split() for line in lines if f" {word} " in line] for lines in (one, two))
        assert len(a) > 0
        assert a == b
    some = prediction.load_predictions([*folder.parts(), *at_once.parts()], [12, 3])
    assert some.seeds == [3, 12]
    np.testing.assert_array_equal(some.values, found[0].values[[3, 12]])


# ---- The command line ------------------------------------------------------------------------


@pytest.mark.parametrize("name", MODULES)
@pytest.mark.parametrize(
    ("args", "message"),
    [
        ("--env CartPole-v1", "--env CartPole-v1: "),
        ("--env RandomWalk-v1", "--env 'RandomWalk-v1': unknown environment; did you mean "),
        ("--total-episodes 0", "--total-episodes 0: must be a finite number of at least 1"),
        ("--gamma 1.1", "--gamma 1.1: must be a number from 0 to 1"),
        ("--learning-rate 1.5", "--learning-rate 1.5: must be a number "),
        ("--total-timesteps 5", "--total-timesteps: unknown flag"),
    ],
)
def test_bad_flags_are_refused_in_one_line(
    name: str, args: str, message: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert refusal(MODULES[name], capsys, *args.split()).startswith(f"error: {message}")


def refusal(module: Any, capsys: pytest.CaptureFixture[str], *args: str) -> str:
    with pytest.raises(SystemExit) as stop:
        command(module, *args)
    out, err = capsys.readouterr()
    assert (stop.value.code, out, err.count("\n")) == (2, "", 1)
    return err


def test_n_steps_and_traces_together_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    said = refusal(td_prediction, capsys, "--n-steps", "3", "--trace-decay", "0.5")
    assert said == (
        "error: --trace-decay 0.5: TD(lambda) is not n-step TD; with it comes --n-steps 1, not 3\n"
    )
    assert refusal(td_prediction, capsys, "--learning-rate", "0").startswith(
        "error: --learning-rate 0.0: must be a number above 0 to 1"
    )


def test_values_that_are_not_defined_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Undiscounted, where the policy can get stuck; also in a state that it never meets."""
    env = Small()
    P = env.P.clone()
    P[:, 3] = torch.eye(5, dtype=torch.float64)[3]
    stuck = envs.TabularEnv(env.spec, P, env.R, env.ends, env.start)
    monkeypatch.setattr(td_prediction.Config, "make_env", lambda self: stuck)
    with pytest.raises(prediction.UsageError, match=r"--gamma 1: .* never ends from state 3"):
        td_prediction.Config()
    td_prediction.Config(gamma=0.9)


def test_cuda_is_refused() -> None:
    with pytest.raises(prediction.UsageError, match="--device cuda: tables are trained on the CPU"):
        td_prediction.Config(device="cuda")
