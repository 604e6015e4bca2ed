"""The search of hyperparameters: reading spaces, and studies that survive what happens to them."""

from __future__ import annotations

import inspect
import json
import math
import re
import shlex
import sys
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from manyseeds import track
from manyseeds.algos import dqn, ppo
from manyseeds.benchmarks import search
from manyseeds.benchmarks.baselines.sb3_baseline import BASELINES
from manyseeds.benchmarks.baselines.sb3_defaults import SB3_DEFAULTS
from manyseeds.benchmarks.experiments import spaces
from manyseeds.benchmarks.store import studies
from manyseeds.cli import UsageError
from manyseeds.runs import configurations
from manyseeds.runs.configurations import train_configurations
from manyseeds.worth import worth_of
from tests.benchmarks.conftest import Output, Patch, Refusal

# ---- Spaces ---------------------------------------------------------------------------------


def read(*words: str, config: Any = None) -> spaces.Space:
    return spaces.read_space(words, config or ppo.Config())


def test_what_is_read() -> None:
    words = [
        "learning_rate=log:1e-4:1e-2:3",
        "gae_lambda=linear:0.8:1:3",
        "--clip-range=0.1,0.2",
        "anneal_lr=yes,no",
        "epochs=linear:1:4:8",
        "hidden=64-64,32",
    ]
    space = read(*words)
    # What divides a batch comes first.
    assert list(space)[:2] == ["epochs", "hidden"]
    values = {name: [x.value(stored) for stored in x.grid()] for name, x in space.items()}
    assert values == {
        "learning_rate": [1e-4, 1e-3, 1e-2],
        "gae_lambda": [0.8, 0.9, 1.0],
        "clip_range": [0.1, 0.2],
        "anneal_lr": [True, False],
        "epochs": [1, 2, 3, 4],  # not one value twice
        "hidden": [(64, 64), (32,)],
    }
    points = spaces.grid(space)
    assert len(points) == 3 * 3 * 2 * 2 * 4 * 2
    assert points == spaces.grid(read(*reversed(words)))  # their order does not matter
    point = spaces.configuration(ppo.Config(), space, points[-1])
    assert point == ppo.Config(
        hidden=(32,), epochs=4, anneal_lr=False, learning_rate=1e-2, gae_lambda=1.0, clip_range=0.2
    )
    space = read("loss=huber,mse", config=dqn.Config())
    assert spaces.grid(space) == [{"loss": "huber"}, {"loss": "mse"}]


def test_values_between_two_ends_are_short_and_stay_between_them() -> None:
    span = spaces.Span(0.12345, 0.98765, log=False, whole=False, points=0)
    assert span.value(0.333333333) == 0.3333
    assert span.low <= span.value(0.12345) < 0.1236
    assert span.value(0.98765) == 0.98765  # 0.9877 would be beyond


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("lerning_rate=1", "--vary lerning_rate: no such hyperparameter; did you mean"),
        ("env=CartPole-v1", "--vary env: cannot vary within a search; give --env"),
        ("total_timesteps=1,2", "cannot vary within a search; give --total-timesteps"),
        ("gamma", "--vary gamma: needs values, as gamma=A,B or gamma=log:LOW:HIGH:8"),
        ("gamma=0.9,", "'' is not a value of gamma"),
        ("gamma=0.9,0.90", "a value is given twice"),
        ("gamma=0.9,2", "--vary gamma=2.0: must be a number from 0 to 1"),
        ("gamma=linear:0.5:2", "--vary gamma=2.0: must be a number from 0 to 1"),
        ("learning_rate=linear:0:1:2", "--vary learning_rate=0.0: must be a finite number above 0"),
        ("learning_rate=log:1:1:2", "the range is empty"),
        ("learning_rate=log:1:0.1:2", "the range is reversed"),
        ("learning_rate=log:0:1:2", "a logarithmic scale begins above 0"),
        ("learning_rate=exp:0.1:1:2", "'exp' is no scale; there are log and linear"),
        ("learning_rate=log:0.1:1:2:3", "must be log:LOW:HIGH or log:LOW:HIGH:POINTS"),
        ("learning_rate=log:0.1:1:2.5", "must be log:LOW:HIGH or log:LOW:HIGH:POINTS"),
        ("learning_rate=log:0.1:1:1", "needs at least 2 points"),
        ("epochs=linear:1.5:4", "must be linear:LOW:HIGH or linear:LOW:HIGH:POINTS"),
        ("epochs=1.5", "'1.5' is not a value of epochs"),
        ("epochs=0,1", "--vary epochs=0: must be"),
        ("hidden=64-x", "'64-x' is not a value of hidden"),
        ("hidden=linear:1:2", "is no number; give its values, as hidden=A,B"),
        ("anneal_lr=1", "'1' is not a value of anneal_lr"),
        ("gamma=0.9 --gamma=0.8", "--vary gamma: given twice"),
    ],
)
def test_bad_spaces_are_refused_in_one_line(words: str, message: str) -> None:
    with pytest.raises(UsageError) as refused:
        read(*words.split())
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)


# ---- The command ----------------------------------------------------------------------------

TINY = (
    "--algo ppo --env CartPole-v1 --total-timesteps 256 --num-envs 2 --num-steps 64 "
    "--minibatch-size 64 --epochs 1 --hidden 8 --eval-budget 0.05 --fresh-seeds 2 --seeds 2 --quiet"
)
RATES = "--vary learning_rate=log:1e-4:1e-2:3"


@pytest.fixture(autouse=True)
def fewer_evaluations(few_evaluations: None, monkeypatch: Patch) -> None:
    monkeypatch.setattr(configurations, "FINAL_EPISODES", 4)


def command(results: Path, words: str) -> list[str]:
    return shlex.split(f"{TINY} --results {results} {words}")


def find(results: Path, words: str) -> search.Search:
    """The search of a command, read and not run."""
    return search.read_flags(command(results, words))


def run(results: Path, words: str) -> search.Search:
    """The command, run."""
    search.main(command(results, words))
    return find(results, words)


def params(found: search.Search) -> list[dict[str, Any]]:
    """What each trial of a journal has chosen."""
    return [trial.params for trial in search.open_journal(found).get_trials(deepcopy=False)]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("", "--vary: name what to vary"),
        ("--vary gamma=linear:0.5:1", "a grid needs a number of points, as linear:0.5:1:8"),
        ("--vary gamma=0.9 --sampler tpe", "--sampler tpe: needs --trials or --minutes"),
        (f"{RATES} --first-seed 999", "those from 1000 on are fresh ones"),
        (f"{RATES} --cut 0.001", "--cut 0.001: leaves no timestep"),
        (f"{RATES} --finalists 0", "--finalists 0"),
        (f"{RATES} --track tensorboard", "--track: a search has files of its own"),
        (f"{RATES} --keep-stale", "--keep-stale: no search goes on with what other code"),
        (f"{RATES} --publish", "--publish: writes what is published, and takes no --results"),
        ("--vary minibatch_size=7,9", "no configuration of this space can be trained"),
    ],
)
def test_commands_that_are_refused(
    words: str,
    message: str,
    tmp_path: Path,
    refusal: Refusal,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(track, "check_tracker", lambda name: None)  # `make test` installs none
    assert message in refusal(search.main, *command(tmp_path, words))


def test_a_search_of_a_grid(tmp_path: Path, capsys: Output) -> None:
    """End to end; again, it trains nothing; its rows are what a plain training gives."""
    words = f"{RATES} gamma=0.9,0.99"
    found = run(tmp_path, words)
    printed = capsys.readouterr().out
    assert "chosen by search (6 configurations x 2 seeds)" in printed
    assert "SB3's defaults: left out; --total-timesteps 256" in printed
    (preset,) = tomllib.loads(printed[printed.index("[presets.") :])["presets"].values()
    assert preset["source"].startswith("our own search: 6 configurations, 2 seeds each")
    assert preset["total_timesteps"] == 256
    rows = found.folder.rows
    assert rows["stage"].value_counts().to_dict() == {"search": 12, "fresh": 4, "untuned": 2}
    assert not rows.duplicated(["stage", "trial", "seed"]).any()
    assert params(found) == spaces.grid(found.space)
    own = rows[rows["stage"] == "search"]
    trials = search.open_journal(found).get_trials(deepcopy=False)
    configs = [found.point(trial) for trial in trials]
    plain = train_configurations(ppo.train, configs, [0, 1])
    for column in ("seed", "final", "train_return", "timesteps"):
        np.testing.assert_array_equal(own[column], plain[column])
    assert own["trial"].tolist() == plain["configuration"].tolist()
    assert own["learning_rate"].tolist() == [c.learning_rate for c in configs for _ in (0, 1)]
    means = own.groupby("trial")["final"].mean()
    assert [trial.value for trial in trials] == pytest.approx(means.tolist())

    result = json.loads((found.folder.path / "result.json").read_text())
    assert means[result["winner"]] == means.max()
    fresh = rows[(rows["stage"] == "fresh") & (rows["trial"] == result["winner"])]
    assert fresh["seed"].tolist() == [1000, 1001]
    assert result["final"]["chosen by search"] == fresh["final"].tolist()
    again = train_configurations(ppo.train, [configs[result["winner"]]], [1000, 1001])
    assert fresh["final"].tolist() == again["final"].tolist()

    names = ["config.json", "rows.parquet", "result.json"]
    before = [(found.folder.path / name).read_bytes() for name in names]
    run(tmp_path, words)
    assert before == [(found.folder.path / name).read_bytes() for name in names]
    assert params(found) == spaces.grid(found.space)


def test_trials_that_are_cut_have_finalists(
    tmp_path: Path, capsys: Output, monkeypatch: Patch
) -> None:
    monkeypatch.setattr(sys.modules[__name__], "TINY", TINY.replace(" --quiet", ""))
    found = run(tmp_path, f"{RATES} --cut 0.5 --finalists 2")
    printed = capsys.readouterr().out
    assert re.search(r"^384/384 x 2 seeds  [\d.]+ by trial \d  [\d,]+ steps/s", printed, re.M)
    assert re.search(r"^timesteps x seeds, trial \d at full length, speed$", printed, re.M)
    rows = found.folder.rows
    by_stage = {stage: set(group["timesteps"]) for stage, group in rows.groupby("stage")}
    assert by_stage == {"search": {128}, "untuned": {128}, "finalist": {256}, "fresh": {256}}
    best = search.ranked(rows, "search")[:2]
    assert set(rows[rows["stage"] == "finalist"]["trial"]) == set(best)
    result = json.loads((found.folder.path / "result.json").read_text())
    assert result["winner"] == search.ranked(rows, "finalist")[0]


@pytest.mark.parametrize("sampler", ["random", "tpe"])
def test_more_trials_extend_a_search(sampler: str, tmp_path: Path) -> None:
    """The first trials stay, and the others are those of a search that had all from the start."""
    words = f"--vary learning_rate=log:1e-4:1e-2 epochs=1,2 --sampler {sampler} --rows 4"
    short = run(tmp_path / "a", f"{words} --trials 4")
    first = short.folder.rows
    longer = run(tmp_path / "a", f"{words} --trials 8")
    assert longer.folder.path == short.folder.path
    rows = longer.folder.rows
    assert len({tuple(point.values()) for point in params(longer)}) == 8  # no two are equal
    assert not rows.duplicated(["stage", "trial", "seed"]).any()
    pd.testing.assert_frame_equal(rows[: len(first)], first)
    whole = run(tmp_path / "b", f"{words} --trials 8")
    assert params(longer) == params(whole)


def test_configurations_that_cannot_be_trained_are_skipped(tmp_path: Path) -> None:
    """128 samples do not divide into minibatches of 48."""
    found = run(tmp_path, "--vary minibatch_size=32,48,64")
    trials = search.open_journal(found).get_trials(deepcopy=False)
    assert [trial.state.name for trial in trials] == ["COMPLETE", "FAIL", "COMPLETE"]
    rows = found.folder.rows
    assert set(rows[rows["stage"] == "search"]["trial"]) == {0, 2}


def test_the_time_limit_stops_a_search(tmp_path: Path) -> None:
    words = f"{RATES.rpartition(':')[0]} --sampler random --rows 2 --minutes"
    found = run(tmp_path, f"{words} 0.0001")
    count = len(params(found))
    assert count == 1  # one batch is trained in any case
    run(tmp_path, f"{words} 0.0001")
    assert len(params(found)) == count
    run(tmp_path, f"{words} 0.0001 --trials 1")
    # The seconds of the fresh seeds are none of the trials'.
    rows = found.folder.rows
    own = rows[rows["stage"] == "search"]["seconds"].sum()
    minutes = 2.5 * own / 60
    flags = find(tmp_path, f"{words} {minutes:.6f}").flags
    assert search.room(flags, rows[rows["stage"] == "search"], own, 100) == 1
    run(tmp_path, f"{words} {minutes:.6f}")
    assert len(params(found)) > count


# ---- What happens to a study ----------------------------------------------------------------

SPACES = {
    "grid": "--vary learning_rate=log:1e-4:1e-2:4 gae_lambda=0.8,0.9 epochs=1,2",
    "random": "--vary learning_rate=log:1e-4:1e-2 epochs=1,2 --sampler random --trials 16",
    "tpe": "--vary learning_rate=log:1e-4:1e-2 epochs=1,2 --sampler tpe --trials 16",
}


# Of a line of Optuna's journal: what it does.
CREATE_TRIAL, SET_TRIAL_STATE_VALUES = 4, 6


def places(lines: list[bytes], operation: int) -> list[int]:
    """Where a journal has lines of a kind."""
    return [k for k, line in enumerate(lines) if json.loads(line)["op_code"] == operation]


@pytest.mark.parametrize("sampler", SPACES)
def test_a_journal_that_ends_anywhere_goes_on_alike(sampler: str, tmp_path: Path) -> None:
    """A killed process leaves some of the journal's lines, and half a line at its end."""
    words = f"{SPACES[sampler]} --rows 8"
    whole = run(tmp_path / "whole", words)
    lines = whole.folder.journal.read_bytes().splitlines(keepends=True)
    expected, rows = params(whole), whole.folder.rows
    cut = find(tmp_path / "cut", words)
    cut.folder.open(cut.settings(), cut.about())
    for count in range(1, len(lines), 3):
        head = b"".join(lines[:count]) + lines[count][: len(lines[count]) // 2]
        cut.folder.journal.write_bytes(head)
        trials = search.open_journal(cut).get_trials(deepcopy=False)
        assert [trial.params for trial in trials] == expected[: len(trials)]
    chosen, told = places(lines, CREATE_TRIAL), places(lines, SET_TRIAL_STATE_VALUES)
    for head, trials_there in (
        # Four trials were chosen, of which none was trained.
        (b"".join(lines[: chosen[2] + 1]) + lines[chosen[3]][:20], 0),
        # Four were trained, of which Optuna was told one score: none is trained again.
        (b"".join(lines[: told[1]]), 4),
    ):
        cut.folder.journal.write_bytes(head)
        there = rows[(rows["stage"] == "search") & (rows["trial"] < trials_there)]
        if trials_there:
            cut.folder.path.joinpath("rows.parquet").unlink()
            cut.folder.add_rows(there)
        cut.folder.path.with_name("journal.log.lock").touch()
        run(tmp_path / "cut", words)
        assert params(cut) == expected
        own = cut.folder.rows
        assert not own.duplicated(["stage", "trial", "seed"]).any()
        pd.testing.assert_frame_equal(own[: len(there)], there)
        columns = ["stage", "trial", "seed", "final", "auc"]
        pd.testing.assert_frame_equal(own[columns], rows[columns])


# ---- stable-baselines3's defaults -----------------------------------------------------------


@pytest.mark.parametrize("algo", SB3_DEFAULTS)
def test_sb3_defaults_are_those_of_its_classes(algo: str) -> None:
    """Every argument that our Config is translated to is the default of SB3's own signature."""
    baseline = BASELINES[algo]
    config: Any = baseline.config(**SB3_DEFAULTS[algo])
    defaults = {
        name: parameter.default
        for name, parameter in inspect.signature(baseline.model).parameters.items()
    }
    arguments = baseline.arguments(config)
    policy = arguments.pop("policy_kwargs")
    arguments.pop("use_sde", None)
    if algo == "dqn":
        assert policy["net_arch"] == [64, 64]
    else:
        assert policy["net_arch"] == {"pi": [64, 64], "vf": [64, 64]}
        assert policy["log_std_init"] == 0.0
    assert not {name for name, value in arguments.items() if defaults[name] != value}
    assert config.num_envs == 1
    assert all(math.isfinite(x) for x in arguments.values() if isinstance(x, float))


def test_only_what_has_a_score_is_ranked_and_training_breaks_ties() -> None:
    """A seed of trial 0 has no return, one of trial 3 diverged, whatever it still scores."""
    columns = {
        "trial": [0, 0, 1, 1, 2, 2, 3, 3],
        "final": [math.nan, 100.0, 90.0, 90.0, 90.0, 90.0, 99.0, 99.0],
        "train_return": [0.0, 0.0, 1.0, 1.0, 2.0, 2.0, 3.0, 3.0],
        "diverged": [math.nan] * 7 + [64.0],
    }
    rows = pd.DataFrame({"stage": "search", **columns})
    assert search.ranked(rows, "search") == [2, 1]
    assert search.trial_scores(rows) == {0: -math.inf, 1: 90.0, 2: 90.0, 3: -math.inf}


def test_a_diverged_trial_is_never_chosen(tmp_path: Path, capsys: Output) -> None:
    """Optuna hears that it failed; without any other nothing is recommended."""
    import optuna

    failed, complete = optuna.trial.TrialState.FAIL, optuna.trial.TrialState.COMPLETE
    found = run(tmp_path, "--vary learning_rate=1e30,1e-3 --cut 0.5 --finalists 2")
    assert "\nlearning_rate = 0.001\n" in capsys.readouterr().out
    rows = found.folder.rows
    assert set(rows[rows["stage"] == "finalist"]["trial"]) == {1}
    states = [trial.state for trial in search.open_journal(found).get_trials()]
    assert states == [failed, complete]
    result = json.loads((found.folder.path / "result.json").read_text())
    result["diverged"]["chosen by search"] = [None, 64]  # of the fresh seeds
    winner = search.candidates(found, search.open_journal(found), 1)
    search.print_result(found, result, winner)
    printed = capsys.readouterr().out
    assert "no preset is recommended: 1 diverged of the fresh seeds" in printed
    scores = [worth_of(480.0), worth_of(500.0, 64)]
    text = search.score_text(scores, found.config.make_env().spec)
    assert text.endswith(" [22.1, 480.0] (1 diverged)")
    for scores, expected in (
        ([worth_of(20.0)] * 2, "20.0 (both seeds equal: at most 78% do otherwise)"),
        ([worth_of(20.0, 64)] * 2, "20.0 (2 diverged)"),
        ([worth_of(20.0), worth_of(None)], "unknown (1 unknown)"),
    ):
        assert search.score_text(scores, found.config.make_env().spec) == expected
    assert "[presets." not in printed
    with pytest.raises(SystemExit) as left:
        run(tmp_path, "--vary learning_rate=1e29,1e30")
    out, err = capsys.readouterr()
    assert (left.value.code, out) == (1, "")
    assert re.fullmatch(
        r"error: nothing to choose: a seed diverged in 2 of 2 trials; see .*\n", err
    )


def test_another_study_is_neither_taken_nor_extended(
    tmp_path: Path, refusal: Refusal, monkeypatch: Patch
) -> None:
    """One of other settings under its name, or of other code; nor one that is being searched."""
    found = run(tmp_path, f"{RATES} --name mine")
    words = command(tmp_path, f"{RATES} --name mine")
    message = refusal(search.main, *words, "--gamma", 0.5, "--cut", 0.5)
    assert "--name mine" in message
    assert "holds another study" in message
    assert "cut 1.0 there, 0.5 here" in message
    path = found.folder.path / "config.json"
    config = json.loads(path.read_text())
    config["code"]["digest"] = "another"
    path.write_text(json.dumps(config))
    message = refusal(search.main, *words)
    assert "the code that trains has changed since" in message
    monkeypatch.setattr(studies.Locks, "acquire", lambda *_: False)
    assert refusal(search.main, *words).endswith("is being searched by another process\n")
