"""Trained policies in Gymnasium's own environments: as a film, and as a check of ours."""

from __future__ import annotations

import importlib
import json
import math
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest import mock

import gymnasium as gym
import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from manyseeds import envs
from manyseeds.algos import policy_iteration, ppo, q_learning
from manyseeds.benchmarks import watch
from manyseeds.benchmarks.chapters import environments
from manyseeds.benchmarks.chapters.blocks import Code, Table, Text, cells_of
from manyseeds.benchmarks.measurements.native import Checked
from manyseeds.benchmarks.store import trained
from manyseeds.benchmarks.web import film as films
from manyseeds.checkpoint import to_bytes
from manyseeds.cli import from_preset, parse
from manyseeds.digest import ROOT
from manyseeds.record import POLICY, RunFolder, part_name, read_json, seal
from manyseeds.runs import planning
from manyseeds.runs.control import Run
from manyseeds.stats import Estimate
from manyseeds.writing import write_bytes, write_json
from tests.benchmarks.conftest import Output, Patch, Refusal

BUDGETS: dict[str, dict[str, Any]] = {
    "ppo": {"total_timesteps": 128, "num_envs": 4, "num_steps": 16, "hidden": (16,)},
    "q_learning": {"total_timesteps": 500},
    "grpo": {"total_timesteps": 3000},
}


def store(
    results: Path,
    algo: str,
    env: str,
    seeds: list[int],
    change: Callable[[Any], None] | None = None,
) -> Path:
    """A finished part, trained for a moment, its policy then changed; returns its folder."""
    module = importlib.import_module(f"manyseeds.algos.{algo}")
    config = from_preset(
        module.Config, module.PRESETS, env, **BUDGETS[algo], results=str(results), quiet=True
    )
    part = RunFolder.of(config, algo).path / part_name(seeds)
    run = Run(config, seeds, part, algo)
    run.open([module.train])
    policy = module.train(config, run)
    run.finish(policy)
    if change:
        change(policy)
        write_bytes(part / POLICY, to_bytes(policy.state_dict()))
        seal(part)
    return part


def left_right_balanced(policy: q_learning.QTable) -> None:
    """On binned CartPole: seed 0 always pushes left, seed 1 right, the others towards the pole."""
    policy.q = torch.zeros_like(policy.q)
    policy.q[1, :, 1] = 1
    index = torch.arange(policy.q.shape[1])
    angle, speed = index // 8 % 8, index % 8  # the last two of 3 x 3 x 8 x 8 bins
    policy.q[2:, :, 1] = (angle + speed - 7.0).float()


@pytest.fixture(scope="module")
def cartpole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    results = tmp_path_factory.mktemp("cartpole")
    return store(results, "q_learning", "CartPole-v1", [0, 1, 2], left_right_balanced)


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every seed has the same table: the optimal policy's."""
    actions = torch.tensor([0, 3, 3, 3, 0, 0, 0, 0, 3, 1, 0, 0, 0, 2, 1, 0])

    def optimal(policy: q_learning.QTable) -> None:
        policy.q = torch.nn.functional.one_hot(actions).float().repeat(len(policy.q), 1, 1)

    results = tmp_path_factory.mktemp("lake")
    return store(results, "q_learning", "FrozenLake-v1", [0, 1, 2, 3], optimal)


@pytest.fixture(scope="module")
def pendulum(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return store(tmp_path_factory.mktemp("pendulum"), "ppo", "Pendulum-v1", [0, 1])


def shown(*words: str | Path) -> None:
    watch.main([str(word) for word in words])


def opened(path: Path) -> tuple[list[Image.Image], int]:
    """The frames of a GIF, and how long it runs in ms. Equal neighbours are one frame there."""
    frames, duration = [], 0
    with Image.open(path) as gif:
        for i in range(gif.n_frames):  # type: ignore[attr-defined]
            gif.seek(i)
            frames.append(gif.convert("RGB"))
            duration += gif.info["duration"]
    return frames, duration


# ---- The GIF --------------------------------------------------------------------------


def test_frames_are_those_of_the_steps_or_thinned(
    pendulum: Path, tmp_path: Path, monkeypatch: Patch, capsys: Output
) -> None:
    """At the speed of the environment; a long episode takes as long with fewer frames."""
    shown(pendulum, "--out", tmp_path / "all.gif")
    assert "(201 frames, " in capsys.readouterr().out  # 200 steps and the start
    frames, duration = opened(tmp_path / "all.gif")
    assert 195 <= len(frames) <= 201
    assert {frame.size for frame in frames} == {(400, 440)}  # of 500 x 500, and the caption
    assert duration == pytest.approx(200 / 30 * 1000 + 1000, abs=10)
    monkeypatch.setattr(films, "MAX_FRAMES", 50)
    shown(pendulum, "--out", tmp_path / "some.gif")
    fewer, same = opened(tmp_path / "some.gif")
    assert (len(fewer), same) == (26, duration)  # every eighth: every fourth would be 51
    end, near_end = (abs(np.asarray(fewer[-1], dtype=int) - frames[i]).mean() for i in (-1, -5))
    assert end < 0.5 < near_end  # up to the colours of the palette


def test_thinning_leaves_the_end_of_every_episode(
    cartpole: Path, tmp_path: Path, capsys: Output
) -> None:
    """Faster than a GIF can be: every fourth frame, for 1/50 s."""
    words = ["--seed", "0", "--fps", "200", "--episodes", "2"]
    shown(cartpole, *words, "--out", tmp_path / "x.gif")
    first, second, last = capsys.readouterr().out.splitlines()
    assert (first[-9:], second[-9:]) == (" 11 steps", " 10 steps")
    assert "(8 frames, " in last  # at 0, 4, 8, 11 and 0, 4, 8, 10
    assert opened(tmp_path / "x.gif")[1] == 2 * (3 * 20 + 1000)


def test_plays_the_seed_asked_for(cartpole: Path, tmp_path: Path, capsys: Output) -> None:
    where = {}
    for seed in (0, 1):
        shown(cartpole, "--seed", str(seed), "--out", tmp_path / "x.gif")
        frames, duration = opened(tmp_path / "x.gif")
        steps = (duration - 1000) // 20
        assert f"seed {seed}, reset(seed=0): return {steps}.0, {steps} " in capsys.readouterr().out
        assert frames[0].size == (400, 307)  # of 600 x 400, and the caption
        cart = np.asarray(frames[-1])[200:205].sum(-1) < 100
        where[seed] = cart.any(0).nonzero()[0].mean()
    assert where[0] < 195
    assert where[1] > 205
    shown(cartpole.parent, "--seed", "0")
    path = cartpole.parents[4] / "watch/CartPole-v1-q_learning.gif"  # beside the results
    assert f"film: {path} (" in capsys.readouterr().out
    assert opened(path)[0]


def test_shows_a_seed_as_it_learns(pendulum: Path, capsys: Output) -> None:
    """Its policy before, during and after the training, which is the stored one."""
    shown(pendulum, "--seed", "1")
    stored = capsys.readouterr().out.splitlines()[0]
    shown(pendulum, "--seed", "1", "--learning")
    began, *lines, last = capsys.readouterr().out.splitlines()
    assert began == "trains seed 1 again, 128 timesteps"
    path = pendulum.parents[4] / "watch/Pendulum-v1-ppo-learning.gif"
    assert f"film: {path} (" in last
    assert opened(path)[1] == pytest.approx(len(lines) * (200 / 30 * 1000 + 1000), abs=50)
    after, said = zip(*(line.split(" timesteps: ") for line in lines), strict=True)
    assert after == ("after 0", "after 64", "after 128")  # three evaluations, of two rollouts
    assert said[-1] == stored
    assert len(set(said)) == 3


def test_learning_ends_with_the_trained_policy(tmp_path: Path, capsys: Output) -> None:
    """Seed 1 of this GRPO ends further beyond its budget than it was before its last update."""
    run = store(tmp_path, "grpo", "CartPole-v1", [0, 1])
    shown(run, "--seed", "1")
    stored = capsys.readouterr().out.splitlines()[0]
    shown(run, "--seed", "1", "--learning")
    *_, line, _ = capsys.readouterr().out.splitlines()
    timesteps, said = line.removeprefix("after ").split(" timesteps: ")
    assert int(timesteps.replace(",", "")) > 3000
    assert said == stored


def test_other_weights_are_named(cartpole: Path, capsys: Output) -> None:
    """Of seed 0 the table was changed after its training."""
    shown(cartpole, "--seed", "0", "--learning")
    assert "note: other weights than the stored ones\n" in capsys.readouterr().out


def test_what_cannot_be_drawn_is_not_trained(cartpole: Path, monkeypatch: Patch) -> None:
    trains = mock.Mock()
    monkeypatch.setattr(watch, "train_again", trains)
    monkeypatch.setattr(films.GymnasiumScene, "picture", mock.Mock(side_effect=ImportError))
    with pytest.raises(SystemExit):
        shown(cartpole, "--learning")
    trains.assert_not_called()


def test_plays_what_gymnasium_plays(lake: Path, tmp_path: Path, capsys: Output) -> None:
    shown(lake, "--out", tmp_path / "x.gif", "--episodes", "2")
    lines, all_steps = capsys.readouterr().out.splitlines(), 0
    table = q_learning.load(str(lake)).q[0]
    for start in (0, 1):
        env = gym.make("FrozenLake-v1")
        obs, _ = env.reset(seed=start)
        total, steps, ended = 0.0, 0, False
        while not ended:
            obs, reward, terminated, truncated, _ = env.step(int(table[obs].argmax()))
            total, ended, steps = total + float(reward), terminated or truncated, steps + 1
        assert f"reset(seed={start}): return {total}, {steps} steps" in lines[start]
        all_steps += steps
    assert opened(tmp_path / "x.gif")[1] == all_steps * 250 + 2 * 1000


def test_action_is_clipped_to_the_box() -> None:
    spec = replace(envs.NATIVE["MountainCarContinuous-v0"]().spec, time_limit=50)
    scene = films.GymnasiumScene(ppo.Config(env=spec.id), spec)
    policy: Any = SimpleNamespace(seeds=[5], act=lambda obs: torch.full((1, 1, 1), 3.0))
    total, steps = films.play(scene, policy, seed=5, start=0, reel=films.Reel(30, ""))
    assert (round(total, 6), steps) == (-5.0, 50)  # 0.1 for each full throttle


@pytest.mark.parametrize(
    ("there", "seed"),
    [([0, 1, 2, 3, 4], 2), ([2, 1], 2), ([0, 1, 3], 0), ([3, 4], 3)],
)
def test_median_seed(there: list[int], seed: int) -> None:
    """That of the run where it has weights, else that of the seeds that have."""
    final = {0: 5.0, 1: 9.0, 2: 7.0, 3: math.nan, 4: 8.0}
    parts: Any = [SimpleNamespace(seeds=[k], final=final) for k in there]
    assert trained.median_seed(parts) == seed


def board_of(walk: Callable[[q_learning.QTable], None], env: str, results: Path) -> trained.Trained:
    """Q-learning with a changed table on a board of ours."""
    (found,) = trained.load_trained(str(store(results, "q_learning", env, [0, 7], walk)), "")
    return found


def test_board_of_our_own(tmp_path: Path, capsys: Output) -> None:
    """Down to the lowest row, then right to the goal: the disc goes that way."""

    def down_then_right(policy: q_learning.QTable) -> None:
        policy.q = torch.zeros_like(policy.q)
        policy.q[:, :56, 1] = 1
        policy.q[:, 56:, 2] = 1

    policy = board_of(down_then_right, "Gridworld-v0", tmp_path)
    shown(policy.part, "--seed", "7", "--out", tmp_path / "x.gif")
    assert "seed 7, reset(seed=0): return 1.0, 14 steps" in capsys.readouterr().out
    frames, duration = opened(tmp_path / "x.gif")
    assert duration == 14 * 250 + 1000
    side = films.CELL
    for step, frame in enumerate(frames):
        blue = abs(np.asarray(frame, dtype=int)[: 8 * side] - (31, 111, 178)).max(-1) < 24
        disc = np.argwhere(blue).mean(0) - (0, (385 - 8 * side - 1) // 2)
        assert [*disc // side] == [min(step, 7), max(step - 7, 0)]


def test_board_of_several_panels_and_of_one_row(tmp_path: Path) -> None:
    """The panel with the agent is drawn, and cells shrink where there are many."""
    walk = board_of(lambda policy: None, "RandomWalk-v0", tmp_path)
    scene = films.scene_of(walk)
    scene.reset(0)
    assert scene.picture().width <= films.MAX_SIDE + 1
    taxi = films.BoardScene(envs.Taxi())
    board = next(iter(taxi.env.layout.panels.values()))
    taxi.reset(0)
    assert taxi.picture().size == (48 * len(board[0]) + 1, 48 * len(board) + 1)


def test_caption_has_seed_step_and_return(cartpole: Path, monkeypatch: Patch) -> None:
    """What is drawn below each frame, and who is the median and who the worst."""
    (policy,) = trained.load_trained(str(cartpole), "")
    policy = replace(policy, final={0: 11.0, 1: 9.0, 2: 30.0})
    with monkeypatch.context() as patched:
        drawn = mock.Mock(side_effect=lambda image, lines: image)
        patched.setattr(films, "captioned", drawn)
        films.film(policy, 0)
    first, *_, last = (call.args[1] for call in drawn.call_args_list)
    assert first == ("Q-learning on CartPole-v1, seed 0 (median)", "step 0, return 0.0")
    assert last == (first[0], "step 11, return 11.0")
    assert films.title_of(policy, 1).endswith("seed 1 (worst)")
    assert films.title_of(policy, 2).endswith("seed 2")
    image = films.captioned(Image.new("RGB", (50, 30)), first)
    assert image.size == (films.MIN_WIDTH, 30 + 2 * films.LINE + 4)
    text = np.asarray(image)[32:].min(axis=(1, 2))
    assert (text[: films.LINE] < 128).any()
    assert (text[films.LINE :] < 128).any()


# ---- The check ------------------------------------------------------------------------


class Hasty(envs.CartPole):
    """With a time step of 0.03 s instead of 0.02 s."""

    def transition(self, physics: Tensor, action: Tensor, noise: Tensor) -> Tensor:
        return torch.lerp(physics, super().transition(physics, action, noise), 1.5)


def checked(run: Path) -> dict[str, Any]:
    """The only row of check.json."""
    tables = run.parents[4] / "tables"
    shown("--check", run, "--episodes", "40", "--out", tables)
    (row,) = read_json(tables / "check.json")["rows"]
    return cast(dict[str, Any], row)


def test_right_environments_agree(cartpole: Path, lake: Path) -> None:
    """And each side has the returns of each policy."""
    rows = {}
    for part in (cartpole, lake):
        row = rows[part] = checked(part)
        assert row["verdict"] == "agrees"
        assert row["difference"]["low"] <= 0 <= row["difference"]["high"]
        assert len(row["native"]) == len(row["seeds"])
    for side in ("native", "gymnasium"):
        left, right, balanced = rows[cartpole][side]
        assert 8 < left < 11  # the pole falls
        assert 8 < right < 11
        assert balanced > 50
        assert np.mean(rows[lake][side]) == pytest.approx(0.74, abs=0.15)  # 160 episodes


def test_seeds_of_another_layer_have_no_published_row(pendulum: Path) -> None:
    """A run may have policies that its folder lacks: those of results/policies."""
    returns = np.array([-1200.0, -1300.0, -150.0])
    row = Checked(
        *("Pendulum-v1", "ppo", "x", [0, 1, 174], returns, returns), Estimate(0.0, 0.0, 0.0, 3)
    )
    rows = watch.against_published(row, pendulum.parent, 20)
    assert [seed for _, _, seed, *_ in rows] == ["0", "1"]


def test_wrong_environment_differs(cartpole: Path, monkeypatch: Patch) -> None:
    monkeypatch.setitem(envs.NATIVE, "CartPole-v1", Hasty)
    assert checked(cartpole)["verdict"] == "differs"


def test_every_seed_has_start_states_and_luck_of_its_own(lake: Path) -> None:
    """The policies are equal: with shared episodes their returns would be, and n would lie."""
    trained, *_ = watch.load_trained(str(lake))
    for env in (trained.env, envs.make("FrozenLake-v1", backend="gymnasium")):
        returns = watch.episode_returns(env, trained.act, trained.seeds, 30)
        assert returns.shape == (4, 30)
        assert len({row.tobytes() for row in returns}) == 4


def test_interval_covers_the_true_difference() -> None:
    """Three seeds of very different policies, on 40 episodes that are as noisy as the policies;
    without any spread it is the difference."""
    d = watch.difference_of_means(np.full((3, 20), 500.0), np.full((3, 20), 500.0))
    assert (d.value, d.low, d.high) == (0, 0, 0)
    rng = np.random.default_rng(0)
    ability, noise, trials = np.array([[20.0], [150.0], [450.0]]), 30.0, 150
    held = 0
    for _ in range(trials):
        native, other = ability + noise * rng.standard_normal((2, 3, 40))
        d = watch.difference_of_means(native, other - 2)
        held += d.low <= 2 <= d.high
        assert d.high - d.low < 5 * noise * math.sqrt(2 / 120)  # 2 x 1.96 in expectation
    assert 0.89 < held / trials < 0.99


def test_table_has_all_runs_and_says_where_it_comes_from(
    tmp_path: Path, capsys: Output, monkeypatch: Patch
) -> None:
    first = store(tmp_path, "q_learning", "CartPole-v1", [0, 1])
    store(tmp_path, "q_learning", "FrozenLake-v1", [9])
    second = store(tmp_path, "q_learning", "FrozenLake-v1", [7, 8])
    diverged = {"diverged": {"8": 100}}  # left out
    write_json(second / "summary.json", read_json(second / "summary.json") | diverged)
    seal(second)
    words = ["--check", str(first), str(second.parent), "--episodes", "20"]
    words += ["--out", str(tmp_path / "tables")]
    monkeypatch.setattr(sys, "argv", ["benchmarks/watch.py", *words])
    watch.main()
    content = json.loads((tmp_path / "tables/check.json").read_text())
    assert content["command"] == f"python benchmarks/watch.py {' '.join(words)}"
    assert content["versions"]["gymnasium"] == gym.__version__
    assert content["code"]["origins"]
    assert [row["seeds"] for row in content["rows"]] == [[0, 1], [7, 9]]
    blocks = environments.comparison(content)
    (table,) = (block for block in blocks if isinstance(block, Table))
    row = ["FrozenLake-v1", "Q-learning", second.parent.name, "2"]
    assert cells_of(table)[1][:4] == row
    assert Code(content["command"]) in cast(Text, blocks[-1])
    capsys.readouterr()
    shown(second.parent, "--seed", "9", "--out", tmp_path / "x.gif")  # of another part
    assert "seed 9, " in capsys.readouterr().out


def test_without_a_folder_no_file_is_written(pendulum: Path, capsys: Output) -> None:
    """Of a published run the tables would be the published ones."""
    results = pendulum.parents[4]
    before = {path: path.stat().st_mtime_ns for path in results.rglob("*")}
    shown("--check", pendulum, "--episodes", "20")
    assert {path: path.stat().st_mtime_ns for path in results.rglob("*")} == before
    lines = capsys.readouterr().out.splitlines()
    assert sum("Pendulum-v1" in line and "within" in line for line in lines) == 2


def test_what_is_binned_is_what_gymnasium_shows() -> None:
    """A policy of binned observations is given Gymnasium's in place of the state."""
    for name in envs.NATIVE:
        env = envs.NATIVE[name]()
        if not env.bins:
            continue
        physics = env.initial(torch.rand(3, 5, env.initial_noise))
        assert torch.equal(env.observation(physics), physics), name


# ---- Mistakes -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["{tmp}/nowhere"], "no such folder"),
        (["{tmp}"], "no finished seeds"),
        (["{tmp}/seeds-000-009"], "no finished seeds"),
        (["{run}/../.."], "is no run; name one of those in it: CartPole-v1/q_learning/"),
        (["{run}/../../.."], "is no run; name one of those in it: CartPole-v1/q_learning/"),
        (["{run}", "--seed", "3"], "weights of the seeds 0-2"),
        (["{run}", "{run}"], "one film shows one run"),
        (["{run}", "--out", "{tmp}/x.png"], "must end in .gif"),
        (["{run}", "--out", "{tmp}/nowhere/x.gif"], "is not a folder"),
        (["{run}", "--out", "{tmp}/folder.gif"], "folder.gif"),
        (["{run}", "--fps", "0"], "--fps 0"),
        (["{run}", "--episodes", "0"], "--episodes 0: must be at least 1"),
        (["{run}", "--check", "--episodes", "19"], "--episodes 19: must be at least 20"),
        (["{run}", "--check", "--seed", "0"], "--seed: is for the film"),
        (["{run}", "--check", "--out", "none/here"], "none is not a folder"),
        (["--check", "{run}", "{run}/"], "given twice"),
        (["--check", "{run}", "{lake}"], "must lie in"),
    ],
)
def test_refused_in_one_line(
    words: list[str], says: str, cartpole: Path, lake: Path, tmp_path: Path, refusal: Refusal
) -> None:
    (tmp_path / "folder.gif").mkdir()
    (tmp_path / "seeds-000-009").mkdir()
    folders = {"run": cartpole, "lake": lake, "tmp": tmp_path}
    before = sorted(tmp_path.rglob("*"))
    assert says in refusal(watch.main, *(word.format(**folders) for word in words))
    assert sorted(tmp_path.rglob("*")) == before


def test_what_has_no_policy_of_today(
    lake: Path, tmp_path: Path, refusal: Refusal, monkeypatch: Patch
) -> None:
    """A planning run, and weights of another version."""
    words = ["--results", str(tmp_path / "results"), "--quiet"]
    config = parse(policy_iteration.Config, policy_iteration.PRESETS, "", words)
    planning.main(config, policy_iteration.solve, policy_iteration.PRESETS)
    (run,) = (tmp_path / "results/runs/Gridworld-v0/policy_iteration").glob("[!.]*")
    for more in ([], ["--check"]):
        assert "is a planning run" in refusal(watch.main, run, *more)
    monkeypatch.setattr(q_learning.QTable, "load_state_dict", mock.Mock(side_effect=RuntimeError))
    error = refusal(watch.main, lake)
    assert "does not fit manyseeds.algos.q_learning" in error
    assert "to train it again: python" in error


def test_pygame_is_missing(
    cartpole: Path, lake: Path, tmp_path: Path, refusal: Refusal, monkeypatch: Patch
) -> None:
    monkeypatch.setitem(sys.modules, "pygame", None)
    for run in (cartpole, lake):
        error = refusal(watch.main, run, "--out", tmp_path / "x.gif")
        assert error == "error: needs pygame: pip install -e '.[watch]'\n"
    assert not (tmp_path / "x.gif").exists()
    assert "\nwatch = " in (ROOT / "pyproject.toml").read_text()


def test_without_weights_or_an_algorithm_of_ours(
    tmp_path: Path, refusal: Refusal, monkeypatch: Patch
) -> None:
    monkeypatch.setattr(sys, "argv", ["algos/q_learning.py", "--env", "FrozenLake-v1"])
    part = store(tmp_path, "q_learning", "FrozenLake-v1", [0])
    (part / POLICY).unlink()  # as in a fresh checkout
    for words in ([part], ["--check", part.parent]):
        error = refusal(watch.main, *words)
        assert "no weights" in error
        assert "python algos/q_learning.py --env FrozenLake-v1\n" in error
        config = read_json(part / "config.json")
        for algo in ("sb3-ppo", "../x", "ppo/../a2c", "/ppo"):
            write_json(part / "config.json", config | {"algo": algo})
            seal(part)
            error = refusal(watch.main, *words)
            assert f"{algo} is not an algorithm of algos/" in error
        write_json(part / "config.json", config)
        seal(part)


def test_environment_of_our_own_is_shown_and_not_checked(tmp_path: Path, refusal: Refusal) -> None:
    part = store(tmp_path, "q_learning", "FrozenLakeNotSlippery-v1", [0])
    error = refusal(watch.main, "--check", part)
    assert "Gymnasium has no FrozenLakeNotSlippery-v1, so there is nothing to check" in error
    shown(part, "--out", tmp_path / "x.gif")
    size = opened(tmp_path / "x.gif")[0][0].size
    assert size == (films.MIN_WIDTH, 4 * films.CELL + 1 + 40)
