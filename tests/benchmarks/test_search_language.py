"""The search of hyperparameters of methods for language models."""

from __future__ import annotations

import json
import math
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from manyseeds import track
from manyseeds.algos import ppo
from manyseeds.benchmarks import search
from manyseeds.benchmarks.chapters import sensitivity
from manyseeds.benchmarks.experiments import spaces
from manyseeds.cli import Preset
from manyseeds.llm_track import grpo, tasks
from manyseeds.process import set_up_process
from manyseeds.runs import language_configurations
from manyseeds.runs.language_configurations import diverged_at, train_configurations
from manyseeds.runs.stale import part_is_stale
from tests.benchmarks.conftest import Output, Patch, Refusal
from tests.random_models import make_model

TINY = (
    "--algo grpo --task addition --total-samples 48 --prompts 3 --group-size 4 --minibatches 2 "
    "--max-new-tokens 8 --fresh-seeds 2 --seeds 2 --evaluations 2 --quiet"
)
RATES = "--vary learning_rate=log:1e-3:1e-1:3"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return make_model("tiny", tmp_path_factory.mktemp("model") / "random")


@pytest.fixture(autouse=True)
def small(few_samples: None, monkeypatch: Patch) -> Iterator[None]:
    """Few evaluation samples, and an accuracy that random weights earn half of the time."""
    monkeypatch.setattr(
        tasks.Addition, "accuracy", lambda self, problem, text: float(sum(map(ord, text)) % 2)
    )
    yield
    set_up_process(1)


def command(results: Path, words: str, model: str) -> list[str]:
    return shlex.split(f"{TINY} --model {model} --results {results} {words}")


def run(results: Path, words: str, model: str) -> search.Search:
    """The command, run."""
    search.main(command(results, words, model))
    return search.read_flags(command(results, words, model))


def result_of(found: search.Search) -> Any:
    return json.loads((found.folder.path / "result.json").read_text())


def test_a_search_of_grpo(folder: str, tmp_path: Path, capsys: Output, monkeypatch: Patch) -> None:
    """End to end; again, it trains nothing; its rows are what a plain training gives."""
    words = f"{RATES} kl_coef=0.02,0.04"
    found = run(tmp_path, words, folder)
    printed = capsys.readouterr().out
    assert "grpo on addition: chosen by search (6 configurations x 2 seeds)" in printed
    assert "final pass@1, mean" in printed
    assert "SB3" not in printed
    text = printed[printed.index('"addition": Preset(') :].rstrip().rstrip(",")
    (preset,) = eval(f"{{{text}}}", {"Preset": Preset}).values()
    assert preset.source.startswith("our own search: 6 configurations, 2 seeds each (0-1)")
    assert preset.settings["total_samples"] == 48
    assert {"learning_rate", "model"} <= preset.settings.keys()
    assert not {"task", "eval_samples"} & preset.settings.keys()

    (study,) = sensitivity.read_studies(tmp_path)
    ((task, algo, samples, _, score, *others),) = sensitivity.search_rows(
        study, sensitivity.verdicts_of(study)
    )
    assert (task, algo, samples, others[0]) == ("addition", "GRPO", "48", "preset")
    assert re.match(r"0\.\d{3}", str(score))
    assert others[2:] == ["none (needs 10 seeds per side)"] * 2

    rows = found.folder.rows
    assert rows["stage"].value_counts().to_dict() == {"search": 12, "fresh": 4, "untuned": 2}
    own = rows[rows["stage"] == "search"]
    trials = search.open_journal(found).get_trials(deepcopy=False)
    assert [trial.params for trial in trials] == spaces.grid(found.space)
    configs = [found.point(trial) for trial in trials]
    assert {c.total_samples for c in configs} == {48}
    plain = train_configurations(grpo.train, configs, [0, 1])
    np.testing.assert_array_equal(own["final"], plain["pass@1"])
    np.testing.assert_array_equal(own["train_accuracy"], plain["train_accuracy"])
    assert plain["auc"].notna().all()
    assert own["auc"].isna().all()  # a trial is evaluated at its end alone
    assert own["final"].nunique() > 1
    means = own.groupby("trial")["final"].mean()
    assert [trial.value for trial in trials] == pytest.approx(means.tolist())

    result = result_of(found)
    assert list(result["final"]) == ["chosen by search", "preset"]
    assert means[result["winner"]] == means.max()
    fresh = rows[(rows["stage"] == "fresh") & (rows["trial"] == result["winner"])]
    assert fresh["seed"].tolist() == [1000, 1001]
    again = train_configurations(grpo.train, [configs[result["winner"]]], [1000, 1001])
    for name in ("final", "auc"):
        assert result[name]["chosen by search"] == again[name].tolist()
    about = json.loads((found.folder.path / "config.json").read_text())
    assert (about["kind"], about["task"], about["algo"]) == ("language", "addition", "grpo")
    assert not part_is_stale(about)

    names = ["config.json", "rows.parquet", "result.json"]
    before = [(found.folder.path / name).read_bytes() for name in names]
    monkeypatch.setattr(language_configurations, "LanguageRowRun", None)  # trains nothing
    run(tmp_path, words, folder)
    assert before == [(found.folder.path / name).read_bytes() for name in names]


def test_trials_that_are_cut_have_finalists(
    folder: str, tmp_path: Path, capsys: Output, monkeypatch: Patch
) -> None:
    monkeypatch.setattr(sys.modules[__name__], "TINY", TINY.replace(" --quiet", ""))
    found = run(tmp_path, f"{RATES} --cut 0.25 --finalists 2", folder)
    printed = capsys.readouterr().out
    assert re.search(r"^36/36 x 2 seeds  0\.\d+ by trial \d  [\d,]+ samples/s", printed, re.M)
    assert re.search(r"^samples x seeds, trial \d at full length, speed$", printed, re.M)
    rows = found.folder.rows
    by_stage = {stage: set(group["samples"]) for stage, group in rows.groupby("stage")}
    fresh = by_stage.pop("fresh")  # a step of the preset has more samples
    assert by_stage == {"search": {12}, "untuned": {12}, "finalist": {48}}
    assert fresh == {48, 256}
    best = search.ranked(rows, "search")[:2]
    assert set(rows[rows["stage"] == "finalist"]["trial"]) == set(best)
    assert result_of(found)["winner"] == search.ranked(rows, "finalist")[0]


def test_what_is_not_varied_belongs_to_the_preset_too(folder: str, tmp_path: Path) -> None:
    """What the preset is trained on, and how it is scored."""
    words = f"{RATES} --eval-budget 0.5 --threads 2 --learning-rate 1e-5"
    found = search.read_flags(command(tmp_path, words, folder))
    found.folder.open(found.settings(), found.about())
    study = search.open_journal(found)
    search.ask(found, study, 1)
    preset = search.candidates(found, study, 0)["preset"]
    assert preset == grpo.Config(
        **{name: getattr(found.config, name) for name in spaces.fixed(grpo.Config)}
    )
    assert (preset.model, preset.max_new_tokens, preset.total_samples) == (folder, 8, 48)
    assert (preset.learning_rate, preset.prompts, preset.eval_budget) == (3e-4, 32, 0.5)


def test_a_diverged_trial_is_never_chosen(folder: str, tmp_path: Path, capsys: Output) -> None:
    found = run(tmp_path, "--vary learning_rate=1e3,1e-3", folder)
    rows = found.folder.rows.query("stage == 'search'").set_index(["trial", "seed"])
    assert rows["diverged"][0].tolist() == [12, 12]
    assert rows["diverged"][1].isna().all()
    assert search.trial_scores(found.folder.rows)[0] == -math.inf
    assert result_of(found)["winner"] == 1
    assert "'learning_rate': 0.001" in capsys.readouterr().out


def test_the_last_evaluation_shows_that_the_last_step_has_diverged() -> None:
    run: Any = SimpleNamespace(diverged=None, samples=48)
    assert diverged_at(run, {"entropy": math.nan, "pass@1": 0.5}) == 48
    assert math.isnan(diverged_at(run, {"length_right": math.nan, "pass@1": 0.5}))
    run.diverged = 12
    assert diverged_at(run, {"entropy": 1.0}) == 12


def test_the_accuracy_of_the_training_breaks_ties() -> None:
    columns = {"trial": [0, 1, 2], "final": [0.5, 0.5, 0.4], "diverged": [math.nan] * 3}
    rows = pd.DataFrame({"stage": "search", **columns, "train_accuracy": [0.1, 0.2, 0.9]})
    assert search.ranked(rows, "search") == [1, 0, 2]
    assert search.ranked(rows.assign(train_accuracy=math.nan), "search") == [0, 1, 2]


# What needs no model.
PLAIN = "--algo grpo --task addition"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--algo ppo --task addition", "--task: ppo acts in an environment; give --env"),
        ("--algo dapo --env CartPole-v1", "--env: dapo trains a language model; give --task"),
        (f"{PLAIN} --env CartPole-v1", "--env and --task: give one of them"),
        ("--algo dap --task addition", "a search does not have it; did you mean dapo?"),
        (f"{PLAIN} --task=adition", "given twice"),
        ("--algo dapo --task adition", "adition"),
        (f"{PLAIN} --total-timesteps 100", "--total-timesteps: unknown flag"),
        (f"{PLAIN} --vary gae_lambda=1", "--vary gae_lambda: no such hyperparameter"),
        (f"{PLAIN} --vary model=a,b", "--vary model: cannot vary within a search; give --model"),
        (f"{PLAIN} --vary eval_samples=1,2", "cannot vary within a search; give --eval-samples"),
        (f"{PLAIN} --vary lora_rank=0,1", "cannot vary within a search; give --lora-rank"),
        (f"{PLAIN} --vary kl_in=loss,gain", "'gain' is not a value of kl_in"),
        (f"{PLAIN} {RATES} --cut 1e-6", "--cut 1e-06: leaves no sample"),
        (f"{PLAIN} {RATES} --model {{qwen}}", "/qwen2: is trained seed after seed"),
        (f"{PLAIN} {RATES} --lora-rank 2", "only small Llamas are one batch, all of whose weights"),
        (f"{PLAIN} {RATES} --max-new-tokens 9999", "does not fit a prompt of 6 tokens"),
        (f"{PLAIN} {RATES} --track tensorboard", "--track: a search has files of its own"),
        (
            f"{PLAIN} --vary prompts=1 minibatches=9,10 --group-size 2 --model {{folder}}",
            "no configuration of this space can be trained",
        ),
    ],
)
def test_commands_that_are_refused(
    words: str,
    message: str,
    folder: str,
    qwen: str,
    tmp_path: Path,
    refusal: Refusal,
    monkeypatch: Patch,
) -> None:
    monkeypatch.setattr(track, "check_tracker", lambda name: None)  # `make test` installs none
    words = words.format(qwen=qwen, folder=folder)
    error = refusal(search.main, *shlex.split(words), "--results", tmp_path)
    assert message in error
    assert list(tmp_path.iterdir()) == [tmp_path / "studies"] * ("no configuration" in message)


def test_which_grpo_is_meant() -> None:
    """That of control, unless a flag is known to the other alone."""
    for words in ("--task addition", "--total-samples 100"):
        found = search.read_flags(shlex.split(f"--algo grpo {words} --vary kl_coef=0.1"))
        assert (found.track.package, found.subject) == ("llm_track", "addition")
    found = search.read_flags(shlex.split("--algo grpo --vary gamma=0.9"))
    assert (found.track.package, found.subject) == ("algos", "CartPole-v1")
    assert found.config.total_timesteps
    assert search.read_flags(["--vary", "gamma=0.9"]).module is ppo
