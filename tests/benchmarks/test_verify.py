"""Published seeds that are trained again: what is equal, and what is said of what is not."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from manyseeds import kernels
from manyseeds.algos import ppo, td_prediction, value_iteration
from manyseeds.benchmarks import verify
from manyseeds.benchmarks.store import language_again
from manyseeds.benchmarks.verify import main, why_not
from manyseeds.digest import ROOT
from manyseeds.llm_track import evaluation, models, rloo
from manyseeds.record import PLAN, RunFolder, pack, plural, provenance, read_json, seal
from manyseeds.runs import language_seeds
from manyseeds.runs.base import carry_out
from manyseeds.runs.planning import PlanningRun
from manyseeds.runs.prediction import PredictionRun
from manyseeds.writing import write_json
from tests.benchmarks.conftest import Output, Patch, Refusal
from tests.benchmarks.test_watch import store
from tests.random_models import make_model


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with a run of each kind; the kernels of all are in C, whatever they are."""
    results = tmp_path_factory.mktemp("trained")
    settings: dict[str, Any] = {"results": str(results), "quiet": True}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernels, "execution", lambda: {"compiler": "a compiler"})
        store(results, "ppo", "CartPole-v1", [3, 4, 5])
        predicting = td_prediction.Config(seeds=3, total_episodes=20, **settings)
        part = RunFolder.of(predicting, "td_prediction").path / "seeds-000-002"
        run = PredictionRun(predicting, directory=part, algo="td_prediction")
        carry_out(predicting, td_prediction.train, run)
        planning = value_iteration.Config(**settings)
        part = RunFolder.of(planning, "value_iteration").path / PLAN
        plan = PlanningRun(planning, part, "value_iteration")
        carry_out(planning, value_iteration.solve, plan)
    return results


@pytest.fixture
def results(trained: Path, tmp_path: Path) -> Path:
    """A copy of it."""
    return shutil.copytree(trained, tmp_path / "results")


def said(capsys: Output, results: Path, *words: str, status: int = 0) -> list[str]:
    """The lines of a command but for the draw, and for the seconds at the end."""
    capsys.readouterr()
    ends = pytest.raises(SystemExit, match=str(status)) if status else contextlib.nullcontext()
    with ends:
        main([*words, "--results", str(results)])
    lines = capsys.readouterr().out.splitlines()
    lines[-1] = lines[-1].rpartition(",")[0]
    return [line for line in lines if "drawn by" not in line]


def everything(folder: Path) -> dict[Path, tuple[int, int]]:
    return {x: (x.stat().st_mtime_ns, x.stat().st_size) for x in folder.rglob("*")}


@pytest.mark.parametrize("packed", [False, True])
def test_what_is_trained_again_is_equal(packed: bool, results: Path, capsys: Output) -> None:
    """Also of seeds alone that were trained together, from folders and packed; nothing is
    written."""
    if packed:
        pack(results)
    before = everything(results)
    *lines, end = said(capsys, results, "--seeds", "2")
    assert sorted(line.split(",")[0] for line in lines) == [
        *["equal    PPO on CartPole-v1"] * 2,
        *["equal    TD prediction on RandomWalk-v0"] * 2,
        "equal    Value iteration on Gridworld-v0",
    ]
    assert end == "5 seeds: 5 equal, 0 DIFFERS, 0 FAILED"
    assert everything(results) == before


def change_table(
    name: str, column: str, row: int, value: float | None = None
) -> Callable[[Path], None]:
    """Change a row of the last seed: to a value, or by a bit."""

    def change(part: Path) -> None:
        frame = pd.read_parquet(part / name)
        at = frame.index[frame["seed"] == frame["seed"].max()][row]
        bit = np.nextafter(frame.loc[at, column], math.inf)
        frame.loc[at, column] = bit if value is None else value
        frame.to_parquet(part / name, index=False)

    return change


def change_json(name: str, change: Callable[[Any], object]) -> Callable[[Path], None]:
    def apply(part: Path) -> None:
        content = read_json(part / name)
        change(content)
        write_json(part / name, content)

    return apply


def drop_row(part: Path) -> None:
    frame = pd.read_parquet(part / "episodes.parquet")
    frame[:-1].to_parquet(part / "episodes.parquet", index=False)


CHANGES: dict[str, tuple[str, Callable[[Path], None], str]] = {
    "weights": (
        "ppo",
        change_json("summary.json", lambda x: x["weights_sha256"].update({"5": "ab" * 32})),
        f"weights: SHA-256 {'ab' * 32} published, ",
    ),
    "a return": (
        "ppo",
        change_table("curve.parquet", "return_mean", 2, 9.5),
        "curve.parquet, timestep 128, return_mean: 9.5 published, ",
    ),
    "a length, by one bit": (
        "ppo",
        change_table("curve.parquet", "length_mean", 0),
        "curve.parquet, timestep 0, length_mean: ",
    ),
    "a timestep": (
        "ppo",
        change_table("curve.parquet", "timestep", 1, 63),
        "curve.parquet, timestep 64, timestep: 63 published, 64 here",
    ),
    "an episode": (
        "ppo",
        change_table("episodes.parquet", "return", 40, -1.0),
        "episodes.parquet, timestep 64, return: -1.0 published, ",
    ),
    "a row": ("ppo", drop_row, "episodes.parquet, 295 rows published, 296 here"),
    "a value": (
        "td_prediction",
        change_table("values.parquet", "3", 1, 0.25),
        "values.parquet, episode 1, 3: 0.25 published, ",
    ),
    "an error": (
        "td_prediction",
        change_table("curve.parquet", "rms_error", 0, 7.0),
        "curve.parquet, timestep 0, rms_error: 7.0 published, ",
    ),
    "a sweep": (
        "value_iteration",
        change_json("sweeps.json", lambda x: x["sweeps"][2].update(residual=0.5)),
        "sweeps.json, row 2, residual: 0.5 published, ",
    ),
}


@pytest.mark.parametrize("what", CHANGES)
def test_the_first_difference_is_named(what: str, results: Path, capsys: Output) -> None:
    """Of the seed that has it; the others are equal."""
    algo, change, line = CHANGES[what]
    (config,) = results.glob(f"runs/*/{algo}/*/*/config.json")
    part = config.parent
    weights, local = "policy.safetensors", ["policy.safetensors", "curve.png"]
    change(part)
    (part / "DONE.json").unlink()
    seal(part, local, weights)
    lines = said(capsys, results, algo, "--seeds", "3", status=1)
    seeds = max(1, len(read_json(config)["seeds"]))
    assert sum(x.startswith("equal") for x in lines) == seeds - 1
    (at,) = (k for k, x in enumerate(lines) if x.startswith("DIFFERS"))
    assert f": {line}" in lines[at]
    assert ("seed" in lines[at]) == (seeds > 1)
    assert lines[at + 1] == "         published: a compiler"
    assert lines[at + 2].startswith("         here: ")
    assert lines[-1].endswith(f"{seeds - 1} equal, 1 DIFFERS, 0 FAILED")


def test_an_edited_algorithm_differs_from_where_it_learns(
    results: Path, monkeypatch: Patch, capsys: Output
) -> None:
    def edited(config: ppo.Config, run: Any, train: Any = ppo.train) -> Any:
        return train(dataclasses.replace(config, gamma=0.5), run)

    monkeypatch.setattr(ppo, "train", edited)
    differs, *_ = said(capsys, results, "ppo", status=1)
    assert differs.startswith("DIFFERS  PPO on CartPole-v1, ")
    assert "curve.parquet, timestep " in differs
    assert "timestep 0," not in differs


def test_what_cannot_be_trained_here_has_failed(
    results: Path, monkeypatch: Patch, capsys: Output
) -> None:
    monkeypatch.setattr(ppo, "train", lambda config, run: ppo.Config(gamma=2.0))
    (line, end) = said(capsys, results, "ppo", status=1)
    assert line.startswith("FAILED   PPO on CartPole-v1, ")
    assert "--gamma 2" in line
    assert end == "1 seed: 0 equal, 0 DIFFERS, 1 FAILED"


# ---- What is left out -----------------------------------------------------------------------

REASONS: dict[str, dict[str, Any]] = {
    "trained by sb3": {"source": "sb3"},
    "of an algorithm that is not in this checkout": {"algo": "mine"},
    "on Gymnasium's own environment": {"env": "LunarLander-v3"},
    "on Gymnasium's own environment ": {"config.backend": "gymnasium"},
    "on Gymnasium's own environment  ": {"config.env_kwargs": ["sutton_barto_reward=True"]},
    "started from weights of another run": {"config.init": "results/policies/x.safetensors"},
    "trained on cuda": {"execution.device": "cuda"},
    "computed by PyTorch, not in C": {"execution.kernels": "torch"},
    "without the SHA-256 of its weights": {},
}


@pytest.mark.parametrize("reason", REASONS)
def test_why_a_part_is_left_out(reason: str, trained: Path) -> None:
    (part,) = trained.glob("runs/*/ppo/*/*")
    config, summary = (read_json(part / f"{name}.json") for name in ("config", "summary"))
    assert why_not(config, summary) == ""
    for place, value in REASONS[reason].items():
        *above, name = place.split(".")
        (config[above[0]] if above else config)[name] = value
    if not REASONS[reason]:
        del summary["weights_sha256"]["4"]
    assert why_not(config, summary) == reason.strip()


def change_config(results: Path, **changes: Any) -> None:
    for config in results.glob("runs/*/ppo/*/*/config.json"):
        content = read_json(config)
        for name, value in changes.items():
            content[name] = {**content[name], **value} if isinstance(value, dict) else value
        write_json(config, content)
        seal(config.parent)


def test_what_other_code_has_trained(results: Path, capsys: Output) -> None:
    """It is not drawn, but trained where it is named, and said to be."""
    change_config(results, code={"digest": "x", "commit": "0123abc"})
    lines = said(capsys, results)
    assert lines[0] == "left out 1 cell trained by other code"
    assert lines[-1] == "2 seeds: 2 equal, 0 DIFFERS, 0 FAILED"
    equal, _ = said(capsys, results, "ppo")
    assert equal.startswith("equal    PPO on CartPole-v1, ")
    assert equal.endswith(", trained by other code (commit 0123abc)")


def test_what_is_left_out_is_said(results: Path, capsys: Output, refusal: Refusal) -> None:
    """For each cell that is named, otherwise in a line for each reason."""
    change_config(results, source="sb3")
    assert said(capsys, results)[0] == "left out 1 cell trained by sb3"
    assert "no cell that can be verified" in refusal(main, "ppo", "--results", results)
    with pytest.raises(SystemExit):
        main(["ppo", "--results", str(results)])
    out = capsys.readouterr().out
    assert re.fullmatch("left out PPO on CartPole-v1, [0-9a-f]{8}: trained by sb3\n", out)


def test_which_cells_and_seeds(results: Path, capsys: Output, refusal: Refusal) -> None:
    """Names as other commands have them; a number draws the same again."""
    (run,) = results.glob("runs/*/ppo/*")
    paths = [str(run), "/".join(run.parts[-3:])]
    for name in ("ppo", "CartPole-v1", "ppo/CartPole-v1", *paths):
        assert len(said(capsys, results, name)) == 2
    draws = {
        k: said(capsys, results, "--cells", "1", "--draw", str(k))[0] for k in [1, 2, 3, 4, 5, 1]
    }
    assert len(set(draws.values())) > 2
    assert said(capsys, results, "--cells", "1", "--draw", "1")[0] == draws[1]
    error = refusal(main, "ppo/CartPole", "--results", results)
    assert "CELL ppo/CartPole: no such run" in error
    assert "did you mean ppo/CartPole-v1?" in error


def test_without_a_compiler_nothing_is_compared(results: Path, refusal: Refusal) -> None:
    with kernels.off():
        assert "no C compiler" in refusal(main, "--results", results)


def test_the_published_runs_are_looked_at(monkeypatch: Patch, refusal: Refusal) -> None:
    """Unless another folder is named."""
    asked: list[Path] = []
    monkeypatch.setattr(verify, "named", lambda results, words: asked.append(results) or [])
    refusal(main)
    assert os.path.samefile(asked[0], verify.PUBLISHED)


# ---- The first updates of language models ---------------------------------------------------


@pytest.fixture(scope="module")
def language_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with four updates of RLOO on a small model of random weights, of two seeds."""
    results = tmp_path_factory.mktemp("language")
    small: dict[str, Any] = {"prompts": 2, "group_size": 2, "total_samples": 16}
    config = rloo.Config(
        model=make_model("qwen2", results / "model"),
        max_new_tokens=8,
        seeds=2,
        evaluations=1,
        results=str(results),
        quiet=True,
        **small,
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(evaluation, "curve_size", lambda config: (2, 2))
        patch.setattr(evaluation, "final_size", lambda *of: (2, 2))
        language_seeds.main(config, rloo.train, rloo.PRESETS)
    return results


def change_metric(results: Path, row: int, value: float | None = None) -> None:
    """Change the entropy of an update of both seeds: to a value, or by a bit."""
    for part in results.glob("runs/*/rloo/*/*"):
        change_table("metrics.parquet", "entropy", row, value)(part)
        (part / "DONE.json").unlink()
        seal(part, ["curve.png", "model"], "model")


def test_the_first_updates_are_trained_again(
    language_store: Path, tmp_path: Path, capsys: Output, monkeypatch: Patch
) -> None:
    """Without an evaluation, and nothing is written. One that rounds otherwise is close; what
    differs is named, with both machines."""
    results = shutil.copytree(language_store, tmp_path / "results")
    monkeypatch.setattr(evaluation.TaskEvaluator, "__call__", None)
    updates = "--updates", "2", "--seeds", "2"
    before = everything(results)
    first, second, end = said(capsys, results, *updates)
    assert re.fullmatch("equal    RLOO on addition, [0-9a-f]{8}, seed 0, 2 updates", first)
    assert second == first.replace("seed 0", "seed 1")
    assert end == "2 seeds: 2 equal, 0 close, 0 DIFFERS, 0 FAILED"
    assert everything(results) == before
    change_metric(results, row=2, value=9.0)  # of the third
    assert said(capsys, results, *updates)[2] == end
    change_metric(results, row=1)
    close = said(capsys, results, *updates)
    assert close[0].startswith(f"{first.replace('equal', 'close')[:-11]}: samples 8, entropy: ")
    assert close[1].startswith("         published: ")
    assert close[2].startswith("         here: ")
    assert close[1].partition(": ")[2] == close[2].partition(": ")[2]
    assert close[-1] == "2 seeds: 0 equal, 2 close, 0 DIFFERS, 0 FAILED"
    change_metric(results, row=1, value=9.0)
    differs = said(capsys, results, *updates, status=1)
    assert differs[0].startswith("DIFFERS  RLOO on addition, ")
    assert ": samples 8, entropy: 9.0 published, " in differs[0]
    assert differs[-1] == "2 seeds: 0 equal, 0 close, 2 DIFFERS, 0 FAILED"


def test_updates_of_another_model_have_failed(language_store: Path, capsys: Output) -> None:
    model = language_store / "model"
    kept = shutil.copytree(model, language_store / "kept")
    shutil.rmtree(model)
    make_model("gpt2", model)
    line, _ = said(capsys, language_store, "rloo", "--updates", "1", status=1)
    shutil.rmtree(model)
    kept.rename(model)
    assert re.fullmatch(
        "FAILED   RLOO on addition, .*, seed [01]: model_content is [0-9a-f]{12} here, "
        "not the published one",
        line,
    )


def test_models_of_folders_are_left_out_unless_updates_are_asked_for(
    results: Path, language_store: Path, capsys: Output
) -> None:
    """Then there are no others."""
    for words, folder, line in (
        ((), language_store, "left out 1 cell of a language model that is not made here\n"),
        (("--updates", "1"), results, "left out 3 cells of no language model\n"),
    ):
        with pytest.raises(SystemExit):
            main([*words, "--results", str(folder)])
        assert line in capsys.readouterr().out


@pytest.fixture(scope="module")
def made_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with two seeds of RLOO on base models of two steps."""
    results = tmp_path_factory.mktemp("made")
    small: dict[str, Any] = {"prompts": 2, "group_size": 2, "total_samples": 16}
    config = rloo.Config(
        model="tiny-base", initial_per_seed=True, max_new_tokens=8, seeds=2, evaluations=1,
        results=str(results), quiet=True, **small,
    )  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        made_quickly(patch)
        language_seeds.main(config, rloo.train, rloo.PRESETS)
    return results


def made_quickly(patch: Patch) -> None:
    patch.setitem(models.BASES, "tiny-base", models.Base(steps=2))
    patch.setattr(evaluation, "curve_size", lambda config: (2, 2))
    patch.setattr(evaluation, "final_size", lambda *of: (2, 2))


@pytest.fixture
def again(monkeypatch: Patch, tmp_path: Path) -> None:
    """Whatever verify.py makes, it makes quickly, and nowhere else."""
    made_quickly(monkeypatch)
    config_of, results = language_again.config_of, str(tmp_path / "again")
    monkeypatch.setattr(
        language_again,
        "config_of",
        lambda *part: dataclasses.replace(config_of(*part), results=results),
    )


@pytest.mark.usefixtures("again")
def test_a_model_that_is_made_here_is_trained_whole(made_store: Path, capsys: Output) -> None:
    """From its initial model on, each seed alone or with others."""
    before = everything(made_store)
    for seeds in "12":
        *lines, end = said(capsys, made_store, "rloo", "--seeds", seeds)
        assert all(line.startswith("equal    RLOO on addition, ") for line in lines)
        assert len(lines) == int(seeds)
        assert end == f"{plural(int(seeds), 'seed')}: {seeds} equal, 0 DIFFERS, 0 FAILED"
    assert everything(made_store) == before


def change_score(part: Path) -> None:
    summary = read_json(part / "summary.json")
    summary["final"]["pass@1"] = 1.0
    write_json(part / "summary.json", summary)


def move_last_row(part: Path) -> None:
    curve = pd.read_parquet(part / "curve.parquet")
    curve.loc[curve.index[-1], "samples"] += 1
    curve.to_parquet(part / "curve.parquet")


def drop_last_row(part: Path) -> None:
    pd.read_parquet(part / "curve.parquet").iloc[:-1].to_parquet(part / "curve.parquet")


FORGED: dict[str, Callable[[Path], None]] = {
    "metrics.parquet, samples 12, entropy: ": change_table("metrics.parquet", "entropy", 2, None),
    "curve.parquet, samples 16, ": change_table("curve.parquet", "pass@1", 1, 1.0),
    "curve.parquet, samples 16, samples: 17 published": move_last_row,
    "curve.parquet, 1 rows published, 2 here": drop_last_row,
    "summary.json, final: ": change_score,
}


@pytest.mark.parametrize("said_of_it", FORGED)
@pytest.mark.usefixtures("again")
def test_what_differs_of_a_language_model_is_named(
    said_of_it: str, made_store: Path, tmp_path: Path, capsys: Output
) -> None:
    results = shutil.copytree(made_store, tmp_path / "results")
    for part in results.glob("runs/*/rloo/*/*"):
        FORGED[said_of_it](part)
        (part / "DONE.json").unlink()
        seal(part, ["curve.png", "model"], "model")
    line = said(capsys, results, "rloo", status=1)[0]
    assert re.match(f"DIFFERS  .*: {re.escape(said_of_it)}", line)


NOT_WHOLE: dict[str, dict[str, Any]] = {
    "of a language model that is not made here": {"config.model": "hub/model"},
    "of a language model that is not made here ": {"config.reward_model": "hub/judge"},
    "computed by PyTorch, not in C": {"execution.kernels": "none"},
    "of a language model that PyTorch trains": {"config.lora_rank": 4},
    "with code that is not of the examples": {"config.reward": ["mine.py:reward"]},
    "on a data set (gsm8k)": {"config.task": "gsm8k"},
    "on a data set (examples/sums.py:Sums)": {"config.task": "examples/sums.py:Sums"},
    "trained on cuda": {"execution.device": "cuda"},
    "": {},
}


@pytest.mark.parametrize("reason", NOT_WHOLE)
def test_why_a_language_model_is_left_out(reason: str, made_store: Path) -> None:
    part = next(made_store.glob("runs/*/rloo/*/seeds-000-000"))
    config = read_json(part / "config.json")
    for place, value in NOT_WHOLE[reason].items():
        above, name = place.split(".")
        config[above][name] = value
    assert language_again.why_not(config, whole=True) == reason.strip()


NO_UPDATES: dict[str, dict[str, Any]] = {
    "of no language model": {"kind": "control"},
    "trained by trl": {"source": "trl"},
    "trained on cuda": {"execution.device": "cuda"},
    "of a language model without a folder here (tiny)": {"config.model": "tiny"},
    "of a language model without a folder here (hub/model)": {"config.model": "hub/model"},
    "of a language model without a folder here (hub/judge)": {"config.reward_model": "hub/judge"},
    "with code that is not of the examples": {"config.task": "mine.py:Task"},
    "with code that is not of the examples ": {"config.reward": ["mine.py:reward"]},
    "of an algorithm that is not in this checkout": {"algo": "tasks"},
    "with invalid settings (config.reward must be a list)": {"config.reward": {"mine.py:f": 1}},
    "with invalid settings (each of config.reward must be text of at most 16384 characters)": {
        "config.reward": [["mine.py:f"]]
    },
    "on a data set (gsm8k)": {"config.task": "gsm8k"},
    "": {"config.task": f"{ROOT}/examples/sums.py:Sums"},
}


@pytest.mark.parametrize("reason", NO_UPDATES)
def test_why_updates_are_left_out(reason: str, language_store: Path) -> None:
    """Nothing stored makes this command ask a hub, or run code of elsewhere."""
    part = next(language_store.glob("runs/*/rloo/*/seeds-000-000"))
    config = read_json(part / "config.json")
    assert language_again.why_not(config, whole=False) == ""
    for place, value in NO_UPDATES[reason].items():
        *above, name = place.split(".")
        (config[above[0]] if above else config)[name] = value
    assert language_again.why_not(config, whole=False) == reason.strip()


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("model", 3, "config.model must be text"),
        ("model", ["a"], "config.model must be text"),
        ("model", "x" * 5000, f"({'x' * 80})"),
        ("model", "a\0b", "without a folder here"),
        ("answer", "a\0b.py:f", "with invalid settings (--answer a"),
        ("answer", "~nosuchuser/x.py:f", "with invalid settings (--answer ~nosuchuser/x.py: "),
        ("instruction", ["a"], "config.instruction must be text"),
        ("max_new_tokens", 2.5, "config.max_new_tokens must be a whole number"),
        ("group_size", 2.0, "config.group_size must be a whole number"),
        ("rules", 1, "config.rules must be true or false"),
        ("learning_rate", True, "config.learning_rate must be a finite number"),
        ("task", None, "config.task must be text"),
    ],
    ids=lambda x: repr(x)[:40],
)
def test_settings_that_cannot_be_are_a_reason(
    name: str, value: Any, reason: str, language_store: Path
) -> None:
    """Not the end of the command."""
    part = next(language_store.glob("runs/*/rloo/*/seeds-000-000"))
    config = read_json(part / "config.json")
    config["config"][name] = value
    assert reason in language_again.why_not(config, whole=False)


def test_a_stored_run_chooses_nothing_but_what_changes_a_curve(
    language_store: Path, monkeypatch: Patch
) -> None:
    """Neither a device nor a tracker, which would send what is trained."""
    part = next(language_store.glob("runs/*/rloo/*/seeds-000-000"))
    config = read_json(part / "config.json")
    config["config"] |= {"device": "cuda", "track": "wandb", "results": "/elsewhere"}
    trained: list[rloo.Config] = []

    def train(config: rloo.Config, run: Any) -> None:
        trained.append(config)
        raise language_again.Enough

    monkeypatch.setattr(rloo, "train", train)
    language_again.train_updates(part, config, 0, 1)
    plain = rloo.Config()
    assert (trained[0].device, trained[0].track) == (plain.device, plain.track)
    assert trained[0].results == plain.results


def test_what_breaks_a_training_ends_only_that(
    language_store: Path, monkeypatch: Patch, capsys: Output
) -> None:
    def broken(config: rloo.Config, run: Any) -> None:
        raise TypeError("no such update")

    monkeypatch.setattr(rloo, "train", broken)
    first, second, end = said(capsys, language_store, "--updates", "1", "--seeds", "2", status=1)
    for line in (first, second):
        assert line.startswith("FAILED   RLOO on addition, ")
        assert line.endswith(": cannot be trained here (TypeError: no such update)")
    assert end == "2 seeds: 0 equal, 0 close, 0 DIFFERS, 2 FAILED"


def test_a_run_that_does_not_say_its_pytorch(
    language_store: Path, tmp_path: Path, capsys: Output
) -> None:
    results = shutil.copytree(language_store, tmp_path / "results")
    for path in results.glob("runs/*/rloo/*/*/config.json"):
        config = read_json(path)
        del config["versions"]["torch"]
        write_json(path, config)
    change_metric(results, row=0, value=9.0)
    lines = said(capsys, results, "--updates", "1", status=1)
    assert lines[0].startswith("DIFFERS  RLOO on addition, ")
    assert lines[1].endswith(", torch ?")
    assert lines[2].endswith(f", torch {torch.__version__}")


@pytest.mark.slow
@pytest.mark.skipif(not (ROOT / "build/smollm2/config.json").exists(), reason="needs `make smol`")
def test_the_first_update_of_a_real_model(monkeypatch: Patch, capsys: Output) -> None:
    """It is equal on the processor that trained it; on others a token may be another one."""
    (run,) = verify.named(verify.PUBLISHED, ["rloo/examples--sums.py--Sums"])
    both = provenance(()), run.configs[0]
    here, trained = ((x["machine"], x["versions"]["torch"]) for x in both)
    if here != trained or torch.backends.cpu.get_cpu_capability() != "AVX512":
        pytest.skip("needs the processor and the PyTorch of the published run")
    monkeypatch.chdir(ROOT)
    main(["rloo/examples--sums.py--Sums", "--updates", "1"])
    assert re.search("^equal    RLOO .*, 1 update$", capsys.readouterr().out, re.MULTILINE)
