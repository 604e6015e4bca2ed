"""Policy and value iteration: the optimum of a linear program, each other, and their record."""

from __future__ import annotations

import dataclasses
import itertools
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from scipy.optimize import linprog
from scipy.sparse import csr_matrix

from manyseeds import envs, plots
from manyseeds.algos import policy_iteration, value_iteration
from manyseeds.cli import from_preset, parse
from manyseeds.record import RunFolder, is_finished
from manyseeds.runs.planning import MAX_FRAMES, PlanningRun, main

pytestmark = pytest.mark.usefixtures("pictures")

MODULES: dict[str, Any] = {"policy": policy_iteration, "value": value_iteration}
GAMMAS = (0.0, 0.5, 0.9, 0.99)
ENVS = ("Gridworld-v0", "FrozenLake-v1", "CliffWalking-v1", "Taxi-v4")


def random_mdp(X: int, A: int, seed: int) -> envs.TabularEnv:
    """Sparse random transitions, rewards of both signs, two ended states with tempting tables."""
    rng = np.random.default_rng(seed)
    P = rng.dirichlet(np.full(X, 0.2), size=(A, X))
    R = rng.normal(size=(A, X, X))
    ends = np.zeros(X, dtype=bool)
    ends[rng.choice(X, 2, replace=False)] = True
    R[:, ends] = 100.0  # must never count
    start = np.where(ends, 0.0, 1 / (X - 2))
    spec = envs.EnvSpec("Random-v0", num_actions=A, time_limit=50, num_states=X)
    layout = envs.Layout({"": [list(range(X))]}, tuple("abcdef"[:A]))
    tables = (torch.from_numpy(x) for x in (P, R, ends, start))
    return envs.TabularEnv(spec, *tables, layout)


def optimal_values(env: envs.TabularEnv, gamma: float) -> np.ndarray:
    """V* by linear programming: the least V with V(x) >= Q(x, a) for all a, 0 where ended.

    The solver keeps its constraints to about 1e-8; those that bind are then solved exactly.
    """
    P, R, ends = env.P.numpy(), env.R.numpy(), env.ends.numpy()
    A, X, _ = P.shape
    r = (P * R).sum(-1)
    open_states = np.flatnonzero(~ends)
    rows = [(gamma * P[a] - np.eye(X))[open_states] for a in range(A)]
    limits = [-r[a][open_states] for a in range(A)]
    bounds = [(0, 0) if end else (None, None) for end in ends]
    found = linprog(
        np.ones(X),
        A_ub=csr_matrix(np.concatenate(rows)),
        b_ub=np.concatenate(limits),
        bounds=bounds,
    )
    assert found.success
    binds = (r + gamma * P @ found.x).argmax(0)
    chosen = P[binds, np.arange(X)] * ~ends[:, None], r[binds, np.arange(X)] * ~ends
    values = np.linalg.solve(np.eye(X) - gamma * chosen[0], chosen[1])
    np.testing.assert_allclose(values, found.x, rtol=1e-6, atol=1e-6)
    return np.asarray(values)


def solved(
    name: str, env: envs.TabularEnv | str, **settings: Any
) -> tuple[np.ndarray, PlanningRun]:
    """The values [X] that an algorithm finds and its record, in memory."""
    module = MODULES[name]
    if isinstance(env, str):
        config = from_preset(module.Config, module.PRESETS, env, **settings)
    else:
        config = module.Config(env="FrozenLake-v1", **settings)
        object.__setattr__(config, "make_env", lambda: env)
    plan = PlanningRun(config)
    return module.solve(config, plan).numpy(), plan


BOTH_EVALUATIONS = [
    ("value", {}),
    ("policy", {"evaluation": "sweeps"}),
    ("policy", {"evaluation": "exact"}),
]


@pytest.mark.parametrize(("name", "settings"), BOTH_EVALUATIONS)
@pytest.mark.parametrize("gamma", GAMMAS)
def test_values_of_random_problems_are_those_of_the_linear_program(
    name: str, settings: dict[str, Any], gamma: float
) -> None:
    for seed, (X, A) in enumerate([(5, 2), (12, 3), (30, 6)]):
        env = random_mdp(X, A, seed)
        values, plan = solved(name, env, gamma=gamma, **settings)
        np.testing.assert_allclose(values, optimal_values(env, gamma), rtol=0, atol=1e-8)
        assert plan.sweeps[-1].residual <= 1e-9
        assert not values[env.ends].any()


@pytest.mark.parametrize("gamma", [0.5, 0.9, 0.99])
@pytest.mark.parametrize("env_id", ENVS)
def test_both_reach_the_linear_programs_values(env_id: str, gamma: float) -> None:
    """The issue's bar: 1e-8, on every tabular environment."""
    evaluation = {"evaluation": "exact"} if env_id == "Taxi-v4" else {}
    by_policy, _ = solved("policy", env_id, gamma=gamma, **evaluation)
    by_value, _ = solved("value", env_id, gamma=gamma)
    np.testing.assert_allclose(by_policy, by_value, rtol=0, atol=1e-8)
    env = envs.make(env_id)
    assert isinstance(env, envs.TabularEnv)
    np.testing.assert_allclose(by_value, optimal_values(env, gamma), rtol=0, atol=1e-8)


def test_a_sweep_by_hand() -> None:
    """Two states and an end. Sweep 1: max(1, 0 + .5 * 0), 2; sweep 2: max(1, .5 * 2), 2."""
    P = torch.zeros(2, 3, 3, dtype=torch.float64)
    P[0, :, 2] = 1.0  # the first action ends
    P[1, [0, 1, 2], [1, 0, 0]] = 1.0  # the second one changes the state, and would revive
    R = torch.zeros_like(P)
    R[0, 0, 2], R[0, 1, 2], R[1, 2, 0] = 1.0, 2.0, 50.0
    ends = torch.tensor([False, False, True])
    spec = envs.EnvSpec("Hand-v0", num_actions=2, time_limit=5, num_states=3)
    env = envs.TabularEnv(spec, P, R, ends, torch.tensor([1.0, 0.0, 0.0]).double())
    q = value_iteration.action_values(torch.zeros(3, dtype=torch.float64), env, 0.5)
    assert q.tolist() == [[1.0, 2.0, 0.0], [0.0, 0.0, 0.0]]
    q = value_iteration.action_values(q.amax(0), env, 0.8)
    assert torch.allclose(q, torch.tensor([[1.0, 2.0, 0.0], [1.6, 0.8, 0.0]]).double())
    assert value_iteration.greedy(q).tolist() == [1, 0, 0]


def test_greedy_takes_the_first_of_the_best_also_after_rounding() -> None:
    q = torch.tensor([[0.0, -1.0, 3e6], [0.3, 5.0, 3e6 + 1e-8], [0.1 + 0.2, 5.0, -7.0]]).double()
    assert value_iteration.greedy(q).tolist() == [1, 1, 0]


def test_evaluation_is_that_of_the_policy() -> None:
    """Both kinds, for a stochastic policy, against the definition written out."""
    env, gamma = random_mdp(8, 3, seed=5), 0.9
    policy = torch.from_numpy(np.random.default_rng(0).dirichlet(np.ones(3), size=8))
    P, R, ends = env.P.numpy(), env.R.numpy(), env.ends.numpy()
    expected = np.zeros(8)
    for _ in range(400):
        new = np.zeros(8)
        for x, a, y in itertools.product(range(8), range(3), range(8)):
            if not ends[x]:
                new[x] += policy[x, a] * P[a, x, y] * (R[a, x, y] + gamma * expected[y])
        expected = new
    for evaluation in ("sweeps", "exact"):
        config = policy_iteration.Config(gamma=gamma, evaluation=evaluation)  # type: ignore[arg-type]
        *_, V = policy_iteration.evaluate(torch.ones(8).double(), policy, env, config)
        np.testing.assert_allclose(V, expected, rtol=0, atol=1e-8)


def test_improvement_never_makes_a_policy_worse() -> None:
    """In any state; and a state without a better action keeps the one it has."""
    _, plan = solved("policy", "FrozenLake-v1")
    values = np.array([plan.sweeps[k].values for k in range(len(plan.sweeps))])
    assert (np.diff(values, axis=0) > -1e-9).all()
    policy = torch.eye(2).double()[[1, 0]]
    V, q = torch.tensor([1.0, 1.0]).double(), torch.tensor([[1.0, 1.0], [1.0, 2.0]]).double()
    improved = policy_iteration.improve(policy, V, q, accuracy=1e-9)
    assert improved.tolist() == [[0.0, 1.0], [0.0, 1.0]]


def test_equally_good_policies_do_not_follow_each_other_forever() -> None:
    """Sutton and Barto's exercise 4.4: two ways that are worth the same up to rounding."""
    P = torch.zeros(3, 2, 2, dtype=torch.float64)
    P[:, :, 1] = 1.0
    R = torch.zeros_like(P)
    R[:, 0, 1] = torch.tensor([0.3, 0.1 + 0.2, 0.3 - 1e-17])
    spec = envs.EnvSpec("Ties-v0", num_actions=3, time_limit=5, num_states=2)
    ends, start = torch.tensor([False, True]), torch.tensor([1.0, 0.0]).double()
    env = envs.TabularEnv(spec, P, R, ends, start, envs.Layout({"": [[0, 1]]}, tuple("abc")))
    values, plan = solved("policy", env, gamma=0.9, evaluation="sweeps")
    assert values[0] == pytest.approx(0.3)
    assert len(plan.sweeps) < 5


@pytest.mark.parametrize(("name", "settings"), BOTH_EVALUATIONS)
@pytest.mark.parametrize(
    ("env_id", "gamma", "tolerance"),
    [
        ("CliffWalking-v1", 0.999, 1e-13),
        ("FrozenLake-v1", 0.99, 1e-20),
        ("Gridworld-v0", 0.9, 1e-300),
    ],
)
def test_a_tolerance_below_rounding_ends_too(
    name: str, settings: dict[str, Any], env_id: str, gamma: float, tolerance: float
) -> None:
    values, plan = solved(name, env_id, gamma=gamma, tolerance=tolerance, **settings)
    optimum = optimal_values(plan.env, gamma)
    np.testing.assert_allclose(values, optimum, rtol=0, atol=1e-11 * max(1, np.abs(optimum).max()))
    if settings == {"evaluation": "exact"}:
        assert len(plan.sweeps) < 30


def test_an_exact_evaluation_is_not_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    """A policy that stays is the end, whatever rounding leaves of the residual."""
    monkeypatch.setattr(policy_iteration, "goal_of_residual", lambda *_: 0.0)
    _, plan = solved("policy", "Taxi-v4", gamma=0.99, evaluation="exact")
    assert plan.sweeps[-1].residual > 0
    assert len(plan.sweeps) < 10


def test_the_residual_bounds_the_distance_and_shrinks_with_gamma() -> None:
    for gamma in (0.5, 0.9, 0.99):
        optimum = optimal_values(envs.make("FrozenLake-v1"), gamma)  # type: ignore[arg-type]
        _, plan = solved("value", "FrozenLake-v1", gamma=gamma)
        residuals = np.array([sweep.residual for sweep in plan.sweeps])
        errors = np.array([np.abs(sweep.values - optimum).max() for sweep in plan.sweeps])
        assert (errors <= residuals / (1 - gamma) + 1e-8).all()
        assert (residuals[1:] <= gamma * residuals[:-1] + 1e-12).all()
        assert residuals[0] == pytest.approx(1 / 3)  # the goal, one slippery step away


# ---- The command line and the store ---------------------------------------------------------


def plan_by_command(name: str, *args: str) -> Path:
    module = MODULES[name]
    config = parse(module.Config, module.PRESETS, "", [*args, "--results", "r"])
    main(config, module.solve, module.PRESETS)
    return RunFolder.of(config, module.__name__.split(".")[-1]).path / "plan"


def test_a_run_holds_every_sweep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The documented JSON, its pictures, and a second command that finds it finished."""
    monkeypatch.chdir(tmp_path)
    part = plan_by_command("policy", "--gamma", "0.5")
    assert is_finished(part)
    content = json.loads((part / "sweeps.json").read_text())
    assert list(content) == ["schema", "algo", "env", "gamma", "layout", "ends", "sweeps"]
    assert content["algo"] == "policy_iteration"
    assert content["gamma"] == 0.5
    (panel,) = content["layout"]["panels"].values()
    assert np.array(panel).tolist() == np.arange(64).reshape(8, 8).tolist()
    config = policy_iteration.Config(gamma=0.5)
    plan = PlanningRun(config)
    policy_iteration.solve(config, plan)
    assert len(content["sweeps"]) == len(plan.sweeps)
    for stored, sweep in zip(content["sweeps"], plan.sweeps, strict=True):
        np.testing.assert_allclose(stored["values"], sweep.values, rtol=1e-5)
        assert (stored["actions"], stored["iteration"]) == (sweep.actions, sweep.iteration)
        assert stored["residual"] == sweep.residual
    summary = json.loads((part / "summary.json").read_text())
    assert summary["values"] == plan.sweeps[-1].values
    assert summary["iterations"] == plan.sweeps[-1].iteration
    assert summary["sweeps"] == len(plan.sweeps)
    assert Image.open(part / "plan.png").size[0] > 300
    before = {path: path.stat().st_mtime_ns for path in part.iterdir()}
    assert plan_by_command("policy", "--gamma", "0.5", "--gif") == part
    assert all(path.stat().st_mtime_ns == before[path] for path in before)
    assert is_finished(part)
    gif = Image.open(part / "plan.gif")
    assert gif.n_frames == summary["iterations"]  # type: ignore[attr-defined]


def test_the_first_values_are_no_sweep() -> None:
    """The furthest of the cells is 14 steps from the goal: the 15th sweep changes nothing."""
    values, plan = solved("value", "Gridworld-v0")
    assert not any(plan.sweeps[0].values)
    assert plan.finish(torch.from_numpy(values))["sweeps"] == len(plan.sweeps) - 1 == 14


@pytest.mark.parametrize("name", MODULES)
@pytest.mark.parametrize(("gamma", "near"), [("0.1", True), ("0.5", False)])
def test_a_start_that_is_worth_nothing_is_pointed_out(
    name: str,
    gamma: str,
    near: bool,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    part = plan_by_command(name, "--gamma", gamma, "--tolerance", "1e-10")
    said = " ".join(capsys.readouterr().out.split())
    assert ("too near to 0" in said) == near
    assert json.loads((part / "summary.json").read_text())["score"] == (0.0 if near else 1.0)


def test_an_environment_without_a_reference_is_planned_too(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unmeasured() -> envs.NativeEnv:
        env = envs.RandomWalk()
        env.spec = dataclasses.replace(env.spec, random_score=None, reference_score=None)
        return env

    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(envs.NATIVE, "RandomWalk-v0", unmeasured)
    plan_by_command("value", "--env", "RandomWalk-v0")
    said = " ".join(capsys.readouterr().out.split())
    assert "undiscounted return │ 1.0 (exact, at most 1000 steps) │" in said


def test_a_long_plan_makes_a_gif_of_bounded_length(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    part = plan_by_command("value", "--env", "FrozenLake-v1", "--gif")
    frames = Image.open(part / "plan.gif").n_frames  # type: ignore[attr-defined]
    sweeps = len(json.loads((part / "sweeps.json").read_text())["sweeps"])
    assert sweeps > 2 * MAX_FRAMES
    assert MAX_FRAMES / 3 < frames <= MAX_FRAMES  # equal pictures become one, shown for longer


@pytest.mark.parametrize("name", MODULES)
@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("--env CartPole-v1", "--env CartPole-v1: needs a model, tables P and R, as Cliff"),
        ("--env Gridwrld-v0", "did you mean Gridworld-v0?"),
        ("--gamma 1", "--gamma 1.0: must be a number from 0 to 0.999"),
        ("--tolerance 0", "--tolerance 0.0: must be a finite number above 0"),
        ("--goal 8 0", "--goal 8 0: "),
        ("--goal 4 4", "--trap 4 4: is the goal already"),
        ("--trap 0 0", "--trap 0 0: is the start already"),
        ("--walls 1 2 3", "--walls 1 2 3: "),
        ("--walls 0 0", "--walls 0 0: "),
        ("--env Taxi-v4 --goal 1 1", "--goal 1 1: only for Gridworld-v0"),
        ("--device cuda", "--device cuda: "),
        ("--track=wandb", "--track: planning logs no metrics"),
        ("--seeds 3", "--seeds: unknown flag"),
        ("--goal 1", "--goal"),
    ],
)
def test_bad_input_is_refused_in_one_line(
    name: str,
    command: str,
    message: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    module = MODULES[name]
    with pytest.raises(SystemExit) as stop:
        parse(module.Config, module.PRESETS, "", command.split())
    said = capsys.readouterr().err
    assert stop.value.code == 2
    assert message in said
    assert said.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_walls_are_grey(tmp_path: Path) -> None:
    _, plan = solved("value", "Gridworld-v0", walls=(2, 3))
    last, env = plan.sweeps[-1], plan.env
    board = plots.Board("x", np.array(last.values), np.array(last.actions), env.ends.numpy())
    grey = tuple(round(0.6 * 255) for _ in range(3))
    plots.boards([board], env.layout, tmp_path / "x.png")
    plots.boards([board], dataclasses.replace(env.layout, marks={}), tmp_path / "none.png")
    shares = []
    for name in ("x.png", "none.png"):
        pixels = np.asarray(Image.open(tmp_path / name).convert("RGB"))
        shares.append((pixels == grey).all(-1).mean())
    assert 0.5 / 64 < shares[0] < 1 / 64  # one cell of 64, less its sign and what is around
    assert shares[1] < 1e-3


def test_a_still_picture_has_some_steps_of_a_long_plan(tmp_path: Path) -> None:
    _, plan = solved("value", "Gridworld-v0")
    sweep, env = plan.sweeps[-1], plan.env
    board = plots.Board("", np.array(sweep.values), np.array(sweep.actions), env.ends.numpy())
    pictures = [board._replace(title=f"step {k}") for k in range(1, 15)]
    plots.boards(pictures, env.layout, tmp_path / "x.svg")
    text = (tmp_path / "x.svg").read_text()
    assert re.findall(r">step (\d+)<", text) == ["1", "2", "3", "5", "8", "14"]


def test_boards_are_the_same_bytes_for_the_same_plan(tmp_path: Path) -> None:
    _, plan = solved("value", "Gridworld-v0")
    env = plan.env
    pictures = [
        plots.Board("x", np.array(s.values), np.array(s.actions), env.ends.numpy())
        for s in plan.sweeps[:2]
    ]
    for suffix in (".svg", ".png", ".gif"):
        for folder in ("a", "b"):
            (tmp_path / folder).mkdir(exist_ok=True)
            plots.boards(pictures, env.layout, tmp_path / folder / f"x{suffix}")
        one, two = ((tmp_path / folder / f"x{suffix}").read_bytes() for folder in ("a", "b"))
        assert one == two
    with pytest.raises(ValueError, match=r"x\.jpg"):
        plots.boards(pictures, env.layout, tmp_path / "x.jpg")
