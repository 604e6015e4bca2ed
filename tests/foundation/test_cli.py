"""The command line: a mistake is one line on stderr, exit status 2, and leaves nothing behind."""

from __future__ import annotations

import copy
import dataclasses
import os
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from manyseeds import checkpoint
from manyseeds.algos import dqn, ppo, q_learning
from manyseeds.arguments import canonical_kwargs
from manyseeds.benchmarks.experiments import catalog
from manyseeds.cli import (
    FLOAT32_MAX,
    ControlConfig,
    Execution,
    Preset,
    field_marks,
    from_preset,
    identity,
    parse,
    published_score,
    whole_number,
)
from manyseeds.digest import ROOT
from manyseeds.record import RunFolder, part_name, read_json
from manyseeds.runs import set_aside
from manyseeds.runs.control import Run, main
from manyseeds.usage import documented
from tests.benchmarks.conftest import Output, Patch

MODULES = {name: catalog.module("algos", name) for name in catalog.names("algos")}
CONTROL = {
    name: module for name, module in MODULES.items() if issubclass(module.Config, ControlConfig)
}


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: Patch) -> None:
    """Work in an empty folder: what a command creates there is seen."""
    monkeypatch.chdir(tmp_path)


def read(*args: str, module: Any = ppo) -> Any:
    return parse(module.Config, module.PRESETS, module.__doc__, args)


def run(*args: str, module: Any = ppo) -> None:
    """The three lines of a script, in this process."""
    main(read(*args, module=module), module.train, module.PRESETS)


def refused(capsys: Output, *args: str, module: Any = ppo) -> str:
    """The one line with which a command is refused, before anything is created."""
    before = contents(Path.cwd())
    with pytest.raises(SystemExit) as stop:
        run(*args, module=module)
    out, err = capsys.readouterr()
    assert stop.value.code == 2
    assert out == ""
    assert err.startswith("error: ")
    assert err.endswith("\n")
    assert err.count("\n") == 1
    assert contents(Path.cwd()) == before
    return err.removeprefix("error: ").rstrip("\n")


def contents(folder: Path) -> dict[str, bytes | None]:
    """Every file and folder below, with its bytes."""
    files = {str(p.relative_to(folder)): p for p in sorted(folder.rglob("*"))}
    return {name: p.read_bytes() if p.is_file() else None for name, p in files.items()}


# ---- Bad input --------------------------------------------------------------------------

UNKNOWN_ENV = "unknown environment; there are Acrobot-v1, CartPole-v1"
TABLE = "must be a finite number in float32 (to 3.4e+38)"


@pytest.mark.parametrize(
    ("command", "message"),
    [
        # The environment.
        ("--env CartPole-v2", "--env 'CartPole-v2': unknown environment; did you mean CartPole-v"),
        ("--env ../../x", f"--env '../../x': {UNKNOWN_ENV}"),
        ("--env=", f"--env '': {UNKNOWN_ENV}"),
        # Numbers out of range.
        ("--seeds 0", "--seeds 0: must be a number from 1 to 100000"),
        ("--seeds 1e9", "--seeds 1000000000: must be a number from 1 to 100000"),
        ("--first-seed -1", "--first-seed -1: must be a finite number of at least 0"),
        ("--learning-rate nan", "--learning-rate nan: must be a finite number above 0"),
        ("--learning-rate -inf", "--learning-rate -inf: must be a finite number above 0"),
        ("--learning-rate 0", "--learning-rate 0.0: must be a finite number above 0"),
        ("--gamma 1.5", "--gamma 1.5: must be a number from 0 to 1"),
        ("--log-std-init 21", "--log-std-init 21.0: must be a number from -20 to 20"),
        ("--threads 100000", "--threads 100000: must be a number from 1 to 1024"),
        ("--num-envs 1e18", f"--num-envs {10**18}: must be a whole number of at most 2**53"),
        ("--hidden 64 0", "--hidden 0: must be a finite number of at least 1"),
        # Numbers that do not fit together.
        ("--total-timesteps 255", "--total-timesteps 255: must be at least one rollout, "),
        ("--minibatch-size 100", "--minibatch-size 100: must divide num_envs * num_steps = 256"),
        ("--num-envs 1 --num-steps 1", "--num-steps 1: one environment needs at least 2 steps"),
        # Not numbers.
        ("--total-timesteps 1.5", "--total-timesteps: '1.5' is not a whole number"),
        ("--gamma high", "--gamma: 'high' is not a number"),
        # Flags.
        ("--total-timesteps=1000 --total_timesteps=1000", "--total-timesteps: given twice"),
        ("--quiet --no-quiet", "--quiet: given twice"),
        ("--seed 3", "--seed: unknown flag; did you mean --first-seed 3 --seeds 1?"),
        ("--total 1000", "--total: unknown flag"),
        ("--learning-rte 1e-3", "--learning-rte: unknown flag; did you mean --learning-rate?"),
        ("--gama=0.9", "--gama: unknown flag; did you mean --gamma?"),
        ("--zzz 1", "--zzz: unknown flag; see --help"),
        ("--batch-size 256", "--batch-size: unknown flag"),  # derived, not a flag
        ("--seeds", "--seeds: needs a value"),
        ("--seeds --quiet", "--seeds: needs a value"),
        ("--quiet=yes", "--quiet 'yes': takes no value; write --quiet or --no-quiet"),
        ("--no_anneal_lr no", "--no_anneal_lr 'no': takes no value; write --anneal-lr or --no-"),
        ("--lr 1e-3", "--lr: unknown flag; did you mean --learning-rate?"),  # initials
        ("--minibatch 64", "--minibatch: unknown flag; did you mean --minibatch-size?"),  # a part
        ("--reward", "--reward: unknown flag; did you mean --normalize-reward?"),
        ("--reward 1", "--reward: unknown flag; see --help"),  # no switch for a value
        ("--seeds 3 4", "'4': expected a flag; see --help"),
        ("-s 3", "'-s': expected a flag; see --help"),
        ("--help=please", "--help: unknown flag; see --help"),
        # What is common to all scripts.
        ("--device gpu", "--device 'gpu': must be one of auto, cpu, cuda"),
        ("--backend gym", "--backend 'gym': must be one of auto, gymnasium"),
        ("--name ../x", "--name '../x': use letters, digits, '-', '_' and '.'"),
        ("--name .hidden", "--name '.hidden': use letters, digits, '-', '_' and '.'"),
        (f"--name {'x' * 256}", f"--name {'x' * 256}: must have at most 240 characters"),
        (f"--results {'x' * 256}", f"--results {'x' * 256}: File name too long"),
        # Other algorithms.
        ("q_learning --initial-value=nan", "--initial-value nan: must be a finite number"),
        ("sarsa --initial-value=-inf", "--initial-value -inf: must be a finite number"),
        ("q_learning --initial-value=1e39", f"--initial-value 1e+39: {TABLE}"),
        ("sarsa --initial-value=-1e39", f"--initial-value -1e+39: {TABLE}"),
        ("td_prediction --n 3", "--n: unknown flag; did you mean --n-steps?"),
        ("td_prediction --lambda 3", "--lambda: unknown flag; see --help"),
        ("td_prediction --steps 3", "--steps: unknown flag; did you mean --n-steps?"),
        ("sarsa --rate 3", "--rate: unknown flag; did you mean --learning-rate?"),
        ("sarsa --sed=3", "--sed: unknown flag; did you mean --seeds?"),
        ("sarsa --- 3", "---: unknown flag; see --help"),
    ],
)
def test_bad_input_is_refused_in_one_line(command: str, message: str, capsys: Output) -> None:
    """The line names the flag, the value and what is allowed; PPO's, or the algorithm's named."""
    first, *others = command.split()
    module = MODULES.get(first, ppo)
    said = refused(capsys, *([] if first in MODULES else [first]), *others, module=module)
    assert said.startswith(message)


@pytest.mark.parametrize(
    ("name", "env", "hint"),
    [
        ("sac", "CartPole-v1", "sac_discrete.py takes the others"),
        ("sac_discrete", "Pendulum-v1", "sac.py takes the others"),
    ],
)
def test_sac_names_its_sibling_for_other_actions(
    name: str, env: str, hint: str, capsys: Output
) -> None:
    assert refused(capsys, "--env", env, module=CONTROL[name]).endswith(f"; {hint}")
    assert hint not in refused(capsys, "--env", "Cart", module=CONTROL[name])


WITH_TARGETS = [name for name, module in CONTROL.items() if hasattr(module.Config, "tau")]


@pytest.mark.parametrize("name", WITH_TARGETS)
def test_targets_that_never_move_are_refused(name: str, capsys: Output) -> None:
    said = refused(capsys, "--tau", "0", module=CONTROL[name])
    assert said == "--tau 0.0: must be a number above 0 to 1"


def test_large_numbers_are_exact() -> None:
    most = torch.finfo(torch.float32).max
    assert read("--initial-value", repr(most), module=q_learning).initial_value == most
    assert most == FLOAT32_MAX
    assert [whole_number(x) for x in ("-3", "12345678901234567890")] == [-3, 12345678901234567890]


@pytest.mark.parametrize("name", CONTROL)
def test_presets_are_settings_with_a_source_and_a_published_score(name: str) -> None:
    """From Python they are those of the command line."""
    module = CONTROL[name]
    marks = field_marks(module.Config)
    fields = {field for field, own in marks.items() if Execution() not in own}
    assert module.PRESETS
    for env, preset in module.PRESETS.items():
        assert isinstance(preset, Preset)
        assert set(preset.settings) <= fields
        assert preset.source
        config = read("--env", env, "--seeds", "3", "--first-seed", "7", module=module)
        assert from_preset(module.Config, module.PRESETS, env, seeds=3, first_seed=7) == config
        assert published_score(config, preset) == preset.published
        for field in preset.settings:
            assert published_score(changed(config, field), preset) == ""
    assert published_score(config, None) == ""


@pytest.mark.parametrize("name", CONTROL)
@pytest.mark.parametrize("command", ["--env Cart", "--seeds 0", "--total-timesteps 1", "--zzz 1"])
def test_every_algorithm_refuses(name: str, command: str, capsys: Output) -> None:
    """Also a budget of less than one iteration, which `Config.check` has to refuse."""
    said = refused(capsys, *command.split(), module=CONTROL[name])
    assert said.startswith(command.split()[0])


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has CUDA")
def test_cuda_without_cuda_is_refused(capsys: Output) -> None:
    """Never a silent fallback to the CPU."""
    said = refused(capsys, "--device", "cuda")
    assert said == "--device cuda: this torch sees no CUDA device; use cpu or auto"


def test_results_that_are_no_folder_are_refused(capsys: Output) -> None:
    """A file, a loop of links, and /proc, where not even root can create a folder."""
    file = Path("taken")
    file.write_text("precious")
    for results in ("taken", "taken/below", str(file.absolute())):
        said = refused(capsys, "--results", results)
        assert said.startswith(f"--results {results}: ")
        assert said.endswith("taken is not a folder")
    Path("loop").symlink_to("loop")
    for results in ("loop", "loop/below"):
        said = refused(capsys, "--results", results)
        assert said == f"--results {results}: Too many levels of symbolic links"
    Path("dangling").symlink_to("/proc/nothing/there")
    for results in ("/proc/manyseeds", "dangling"):
        assert refused(capsys, "--results", results).startswith(f"--results {results}: ")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_results_without_permission_are_refused(capsys: Output) -> None:
    Path("locked").mkdir(mode=0o555)
    assert refused(capsys, "--results", "locked/r").endswith("locked is not writable")


def test_a_tilde_in_results_is_the_home_folder(monkeypatch: Patch, capsys: Output) -> None:
    """Also where no shell has replaced it: `--results=~/x`."""
    monkeypatch.setenv("HOME", str(Path("home").absolute()))
    config = read("--results=~/x")
    assert config.results == str(Path("home/x").absolute())
    assert not Path("~").exists()
    assert refused(capsys, "--results", "~nobody-here/x").startswith("--results ~nobody-here/x: ")


def test_a_name_that_holds_another_config_is_refused(capsys: Output) -> None:
    """With the difference, flag by flag, and without touching what is there."""
    args = ["--name", "mine", "--seeds", "2", "--results", "r", "--total-timesteps", "1000"]
    config = read(*args, module=q_learning)
    folder = RunFolder.of(config, "q_learning")
    main(config, q_learning.train, q_learning.PRESETS)
    capsys.readouterr()
    said = refused(capsys, *args, "--learning-rate", "0.25", "--gamma", "0.9", module=q_learning)
    assert said == (
        "--name mine: r/runs/FrozenLake-v1/q_learning/mine holds another config: "
        "--gamma 0.99 there, 0.9 here; --learning-rate 0.5 there, 0.25 here"
    )
    # The same fields with other execution flags are the same run.
    same = read(*args, "--threads", "2", "--first-seed", "5", module=q_learning)
    folder.check_identity(identity(same))


def test_an_unfinished_run_does_not_hold_its_name() -> None:
    """Nothing was measured with its settings, and the next run overwrites them."""
    config = read("--name", "mine", "--seeds", "2", "--results", "r", module=q_learning)
    folder = RunFolder.of(config, "q_learning")
    Run(config, [0, 1], folder.path / part_name([0, 1]), "q_learning").open([q_learning.train])
    folder.check_identity(identity(dataclasses.replace(config, gamma=0.5)))


@pytest.mark.parametrize(
    ("command", "field", "value"),
    [
        ("--total-timesteps 1e6", "total_timesteps", 1_000_000),
        ("--total-timesteps 1_000_000", "total_timesteps", 1_000_000),
        ("--total_timesteps 2.5e5", "total_timesteps", 250_000),
        ("--total_timesteps=5000", "total_timesteps", 5_000),
        ("--learning-rate 3e-4", "learning_rate", 3e-4),
        ("--hidden 32 32", "hidden", (32, 32)),
        ("--hidden 8 --seeds 3", "hidden", (8,)),
        ("--hidden=8", "hidden", (8,)),
        ("--hidden --seeds 3", "hidden", ()),
        ("--no-anneal-lr", "anneal_lr", False),
        ("--quiet", "quiet", True),
        ("--gamma 1", "gamma", 1.0),
        ("--entropy-coef 0", "entropy_coef", 0.0),
        ("--name a-b_c.d", "name", "a-b_c.d"),
        ("--minibatch-size 4096", "minibatch", 256),  # SB3's rule: the rollout, if it is smaller
    ],
)
def test_good_input_is_read(command: str, field: str, value: Any) -> None:
    read_value = getattr(read(*command.split()), field)
    assert read_value == value
    assert type(read_value) is type(value)


def test_a_flag_beats_the_preset_beats_the_default() -> None:
    default = {f.name: f.default for f in dataclasses.fields(ppo.Config)}
    preset = ppo.PRESETS["CartPole-v1"].settings
    assert preset["gamma"] != default["gamma"]
    assert preset["epochs"] != default["epochs"]
    config = read("--gamma", "0.5")
    assert config.gamma == 0.5
    assert config.epochs == preset["epochs"]
    assert config.hidden == default["hidden"]
    # Also a flag that repeats the default, and whatever the order of the flags.
    again = read("--epochs", str(default["epochs"]), "--env", "CartPole-v1")
    assert again.epochs == default["epochs"]
    assert again.gamma == preset["gamma"]


def test_a_preset_belongs_to_its_environment() -> None:
    """An environment without a preset gets the defaults, not its neighbour's preset."""
    presets = {
        "FrozenLake-v1": Preset({"total_timesteps": 7_000}, source="here"),
        "CartPole-v1": Preset({"gamma": 0.5}, source="here"),
    }

    def lakes(*args: str) -> tuple[str, int, float]:
        config = parse(q_learning.Config, presets, "", args)
        return config.env, config.total_timesteps, config.gamma

    default = {f.name: f.default for f in dataclasses.fields(q_learning.Config)}
    T, gamma = default["total_timesteps"], default["gamma"]
    assert lakes() == ("FrozenLake-v1", 7_000, gamma)  # the first preset's environment
    assert lakes("--env", "CartPole-v1") == ("CartPole-v1", T, 0.5)
    assert lakes("--env=FrozenLake8x8-v1") == ("FrozenLake8x8-v1", T, gamma)
    assert lakes("--total-timesteps", "9000", "--env", "FrozenLake-v1")[1] == 9_000


def test_presets_are_those_of_their_file() -> None:
    preset = dqn.PRESETS["CartPole-v1"]
    assert preset.settings["hidden"] == (256, 256)
    assert not {"source", "published"} & set(preset.settings)
    assert preset.source.startswith("rl-baselines3-zoo hyperparams/dqn.yml")
    assert preset.published.startswith("SB3 500.0")


def test_every_flag_is_explained() -> None:
    rooms: tuple[catalog.Package, ...] = ("algos", "llm_track")
    for of in [catalog.module(room, name) for room in rooms for name in catalog.names(room)]:
        assert set(documented(of.Config)) == {x.name for x in dataclasses.fields(of.Config)}


# ---- Identity ---------------------------------------------------------------------------


def changed(config: Any, field: str) -> Any:
    """The config with another value in one field; conditions between fields are not checked."""
    old = getattr(config, field)
    value: Any
    if isinstance(old, bool):
        value = not old
    elif isinstance(old, int):
        value = old + 1
    elif isinstance(old, float):
        value = old + 0.125
    elif isinstance(old, tuple):
        value = (*old, 7)
    else:
        value = f"{old}x"
    other = copy.copy(config)
    object.__setattr__(other, field, value)
    return other


@pytest.mark.parametrize("name", CONTROL)
def test_a_runs_name_changes_with_exactly_the_fields_that_change_a_curve(
    name: str, monkeypatch: Patch
) -> None:
    """So that ten seeds today and thirty tomorrow train only the missing twenty."""
    monkeypatch.setattr(checkpoint, "stored_policy", lambda part: (Path(__file__), {}))
    module = CONTROL[name]
    config = read(module=module)
    hashed = RunFolder.of(config, name).path.name
    assert len(hashed) == 8
    stays = {"seeds", "first_seed", "device", "threads", "results", "track", "quiet"}
    stays |= {"checkpoint_interval", "keep_stale"}
    names = {hashed}
    fields = {f.name for f in dataclasses.fields(config)}
    assert stays < fields
    for field in sorted(fields - {"name"}):
        other = RunFolder.of(changed(config, field), name).path.name
        assert (other == hashed) == (field in stays), field
        names.add(other)
    assert len(names) == 1 + len(fields - stays - {"name"})


def test_a_runs_folder_is_where_the_documentation_says() -> None:
    """Of any id it is one; under its name, which is no field of its own."""
    config = read("--results", "there")
    named = read("--results", "there", "--name", "mine", "--gamma", "0.9")
    assert RunFolder.of(named, "ppo").path == Path("there/runs/CartPole-v1/ppo/mine")
    object.__setattr__(config, "env", "module:Name/Env-v0")
    where = Path("there/runs/module--Name--Env-v0/ppo")
    assert RunFolder.of(config, "ppo").path.parent == where


def test_a_run_with_a_slash_in_its_id(capsys: Output) -> None:
    """From the command line to the stored policy, in one folder, under the id itself."""
    entry = "gymnasium.envs.classic_control:CartPoleEnv"
    gym.register("Somebody/Pole-v0", entry_point=entry, max_episode_steps=20)
    try:
        args = ["--env", "Somebody/Pole-v0", "--seeds", "1", "--total-timesteps", "64"]
        args += ["--num-steps", "16", "--minibatch-size", "64", "--hidden", "8", "--results", "r"]
        run(*args, "--name", "x", "--quiet")
        (part,) = Path("r/runs").glob("*/*/*/*")
        assert part == Path("r/runs/Somebody--Pole-v0/ppo/x/seeds-000-000")
        assert read_json(part / "config.json")["env"] == "Somebody/Pole-v0"
        assert ppo.load(str(part)).act(torch.zeros(1, 1, 4)).shape == (1, 1)
        run(*args, "--name", "x", "--quiet")
        assert "Finished already: 1 seed" in capsys.readouterr().out
    finally:
        del gym.registry["Somebody/Pole-v0"]


class Stage(gym.Env[Any, Any]):
    """Ignores its seed, and may raise in its first step."""

    observation_space = gym.spaces.Box(-1, 1, (2,))
    action_space = gym.spaces.Discrete(2)

    def __init__(self, raises: bool) -> None:
        self.raises = raises

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return np.random.default_rng().random(2), {}

    def step(self, action: Any) -> Any:
        if self.raises:
            raise RuntimeError("the stage\nis broken")
        return np.zeros(2), 1.0, False, False, {}


def test_what_somebodys_environment_does_is_one_line(capsys: Output) -> None:
    """With nothing left behind where it raises, and a note where it ignores its seed."""
    args = ["--seeds", "1", "--total-timesteps", "64", "--num-steps", "16", "--hidden", "8"]
    args += ["--minibatch-size", "64", "--results", "r", "--quiet"]
    for name, raises in (("Broken", True), ("Deaf", False)):
        gym.register(f"{name}-v0", Stage, max_episode_steps=5, kwargs={"raises": raises})
    try:
        with pytest.raises(SystemExit, match="2"):
            run("--env", "Broken-v0", *args)
        (error,) = capsys.readouterr().err.splitlines()
        assert error == "error: --env Broken-v0: its step failed: RuntimeError: the stage is broken"
        assert not Path("r").exists()
        run("--env", "Deaf-v0", *args)
        (note,) = capsys.readouterr().err.splitlines()
        assert note.startswith(
            "note: two episodes of Deaf-v0 with one seed and the same actions dif"
        )
        assert Path("r/runs/Deaf-v0/ppo").exists()
    finally:
        del gym.registry["Broken-v0"], gym.registry["Deaf-v0"]


def test_a_run_has_one_time_limit(capsys: Output, monkeypatch: Patch) -> None:
    """And a note says where packages of its environment are of several versions."""
    args = ["--env", "Stage-v0", "--total-timesteps", "64", "--num-steps", "16", "--hidden", "8"]
    args += ["--minibatch-size", "64", "--results", "r", "--quiet", "--seeds"]
    monkeypatch.setenv("PYTHONHASHSEED", "3")
    try:
        for limit, seeds, status in ((5, "1", 0), (5, "2", 0), (4, "3", 2)):
            gym.registry.pop("Stage-v0", None)
            gym.register("Stage-v0", Stage, max_episode_steps=limit, kwargs={"raises": False})
            with pytest.raises(SystemExit, match="2") if status else nullcontext():
                run(*args, seeds)
            monkeypatch.setattr(set_aside, "installed", lambda name: "99")
            said = capsys.readouterr().err
            assert ("was trained with pytest" in said) == (seeds == "2")
    finally:
        del gym.registry["Stage-v0"]
    (folder,) = map(RunFolder, Path("r/runs").glob("*/*/*"))
    first, second = folder.parts()
    assert read_json(first / "config.json")["execution"]["hash_seed"] == "3"
    line = f"--env Stage-v0: its time limit is 4 now, and was 5 for {first}: choose another --name"
    assert said.splitlines()[-1] == f"error: {line}, or another folder (--results)"


def test_arguments_of_the_environment_are_part_of_the_run(capsys: Output) -> None:
    """And the time limit that was used, and what the time was spent on."""
    args = ["--env", "CartPole-v1", "--seeds", "1", "--total-timesteps", "512", "--quiet"]
    args += ["--num-steps", "16", "--minibatch-size", "64", "--hidden", "8", "--results", "r"]
    names = {RunFolder.of(read(*args), "ppo").path}
    for kwargs in (["max_episode_steps=7"], ["max_episode_steps=7", "sutton_barto_reward=True"]):
        given = [*args, "--env-kwargs", *kwargs]
        run(*given)
        out, err = capsys.readouterr()
        assert err == "note: --env-kwargs: CartPole-v1 is Gymnasium's own, not the native one\n"
        (part,) = RunFolder.of(read(*given), "ppo").parts()
        stored = read_json(part / "config.json")
        assert (stored["config"]["env_kwargs"], stored["time_limit"]) == (kwargs, 7)
        found = read_json(part / "summary.json")
        assert found["final"]["greedy"]["per_seed"] == {"0": 7 if len(kwargs) == 1 else 0}
        assert found["threshold"] is None
        assert 0 < found["evaluation_seconds"] <= found["total_seconds"] - found["learn_seconds"]
        assert "s evaluation" in out
        assert "s preparation" in out
        names.add(part.parent)
        same = [x.replace("T", "t").replace("7", "0x7") for x in reversed(kwargs)]
        names.add(RunFolder.of(read(*args, "--env-kwargs", *same), "ppo").path)
    assert len(names) == 3


@pytest.mark.parametrize(
    ("given", "canonical"),
    [
        (("b=2", "a=true"), ("a=True", "b=2")),
        (("x=1e-3", "y=[1,2]"), ("x=0.001", "y=[1, 2]")),
        (("map_name='8x8'",), ("map_name=8x8",)),
        (("n='2'", "m=2.0"), ("m=2.0", "n='2'")),
        (("x=1e999", "wrong"), ("wrong", "x=1e999")),  # as Python writes it, it would be a text
    ],
)
def test_arguments_of_equal_meaning_are_written_alike(given: Any, canonical: Any) -> None:
    assert canonical_kwargs(given) == canonical
    assert canonical_kwargs(canonical) == canonical


# ---- As a process -----------------------------------------------------------------------


def test_a_mistake_is_one_line_for_a_person_too(tmp_path: Path) -> None:
    """Through a real process, also where the terminal is narrow and not UTF-8."""
    command = [sys.executable, str(ROOT / "algos/ppo.py"), "--env", "CartPole-v2"]
    environment = {**os.environ, "PYTHONIOENCODING": "ascii", "COLUMNS": "40"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    line = "error: --env 'CartPole-v2': unknown environment; did you mean CartPole-v1?\n"
    assert (done.returncode, done.stdout, done.stderr) == (2, "", line)
    assert contents(tmp_path) == {}
