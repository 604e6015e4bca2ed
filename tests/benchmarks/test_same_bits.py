"""The same bits as an older commit: what is compared, what is trained for it, and the command."""

from __future__ import annotations

import dataclasses
import hashlib
import importlib
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal, get_args, get_origin, get_type_hints

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.torch import save_file

from manyseeds.algos import q_learning
from manyseeds.benchmarks.baselines import rejax_baseline, sb3_baseline, sbx_baseline
from manyseeds.benchmarks.experiments import catalog
from manyseeds.benchmarks.experiments.cases import CASES, FILES, Case, Trains, command_line, select
from manyseeds.benchmarks.measurements import same_bits
from manyseeds.benchmarks.measurements.same_bits import (
    Difference,
    compare_parts,
    compare_runs,
    main,
)
from manyseeds.cli import PUBLISHED, ControlConfig, from_identity, identity, parse
from manyseeds.digest import ROOT, module_at
from manyseeds.errors import UsageError
from manyseeds.llm_track.rollout import GroupConfig
from manyseeds.packed import RUNS, with_proved
from manyseeds.record import (
    RunFolder,
    all_runs,
    hash_of,
    is_finished,
    pack,
    read_json,
    seal,
    sha256_of,
)
from manyseeds.runs import control
from manyseeds.runs.language import LanguageConfig
from manyseeds.runs.stale import part_is_stale
from tests.benchmarks.conftest import Patch, Refusal

CASE = Case("algos/ppo.py", "CartPole-v1")
IN_CASES = "show what is missing in benchmarks/experiments/cases.py"
LANGUAGE = (
    *("sft", "reward_model", "dpo", "rlhf_ppo", "grpo", "dr_grpo", "dapo", "rloo", "reinforce_pp"),
    *("gspo", "cispo", "process_grpo", "distill"),
)


# ---- What is compared ----------------------------------------------------------------------


def write_part(part: Path, **changes: Any) -> Path:
    """A part with one of each kind of file; changes: other tensors, columns or fields."""
    part.mkdir(parents=True, exist_ok=True)
    weights = {
        "networks.biases.0": torch.zeros(2, 3),
        "networks.weights.0": torch.arange(24.0).view(2, 3, 4),
    }
    save_file(weights | changes.get("weights", {}), part / "policy.safetensors")
    metrics = {
        "seed": [0, 1],
        "learn_s": np.random.default_rng().random(2),
        "loss": [math.nan, 0.5],
        "entropy": np.float32([0.25, 0.125]),
    }
    metrics = {k: v for k, v in (metrics | changes.get("metrics", {})).items() if v is not None}
    pd.DataFrame(metrics).to_parquet(part / "metrics.parquet", index=False)
    curve = {"algo": "ppo", "seed": [0, 1], "return_mean": [1.0, math.nan]}
    pd.DataFrame(curve | changes.get("curve", {})).to_parquet(part / "curve.parquet", index=False)
    summary = {
        "schema": 1,
        "final": {"iqm": {"value": 1.5}},
        "values": [1.0, 2.0, 3.0],
        "learn_seconds": time.perf_counter(),
        "timesteps_per_second": time.perf_counter(),
    }
    (part / "summary.json").write_text(json.dumps(summary | changes.get("summary", {})))
    transcripts = [{"samples": 0, "completion": "<answer>1</answer>"}]
    (part / "transcripts.json").write_text(json.dumps(changes.get("transcripts", transcripts)))
    (part / "config.json").write_text("{}")
    return part


def difference(folder: Path, **changes: Any) -> str:
    """The difference between a part and the same part with changes, as it is printed."""
    old = write_part(folder / "old", **changes.pop("old", {}))
    return str(compare_parts(old, write_part(folder / "here", **changes)) or "")


def test_equal_parts_are_equal_times_and_nan_included(tmp_path: Path) -> None:
    assert difference(tmp_path) == ""
    assert difference(tmp_path, summary={"schema": 2}) == ""


W, B = "networks.weights.0", "networks.biases.0"
WRITTEN = {"weights": "policy.safetensors", "metrics": "metrics.parquet", "curve": "curve.parquet"}
WRITTEN |= {"summary": "summary.json", "transcripts": "transcripts.json"}
NEXT = np.nextafter(np.float32([0.25, 0.125]), np.float32(1))
ANOTHER = [{"samples": 0, "completion": "2"}]


@pytest.mark.parametrize(
    ("kind", "changes", "expected"),
    [
        ("weights", {W: torch.arange(24.0).view(2, 3, 4) + 1e-4}, f"{W} (max 0.0001)"),
        ("weights", {B: torch.tensor([[0.0, 0, -0.0], [0, 0, 0]])}, f"{B} (max 0)"),
        ("weights", {B: torch.full((2, 3), math.nan)}, f"{B} (max nan)"),
        ("weights", {B: torch.zeros(2, 3).bfloat16()}, f"{B} (float32 in OLD, bfloat16 here)"),
        ("weights", {B: torch.zeros(3, 2)}, f"{B} (shape [2, 3] in OLD, [3, 2] here)"),
        ("weights", {"extra": torch.zeros(1)}, "extra (only here)"),
        ("metrics", {"loss": [math.nan, 0.75]}, "loss (max 0.25)"),
        ("metrics", {"loss": [0.5, 0.5]}, "loss (max nan)"),
        ("metrics", {"entropy": NEXT}, "entropy (max 3e-08)"),
        ("metrics", {"loss": None}, "loss (only in OLD)"),
        ("metrics", {"loss": None, "mse": [math.nan, 0.5]}, "loss (renamed to mse)"),
        ("metrics", {"loss": None, "mse": [math.nan, 0.6]}, "loss (only in OLD)"),
        ("curve", {"seed": [0, 2]}, "seed (max 1)"),
        ("curve", {"algo": ["a", "b"]}, 'algo (["ppo", "ppo"] in OLD, ["a", "b"] here)'),
        ("summary", {"final": {"iqm": {"value": 1.25}}}, "final.iqm.value (max 0.25)"),
        ("summary", {"final": {"iqm": {"value": None}}}, "final.iqm.value (1.5 in OLD, null here)"),
        ("summary", {"values": [1.0, 2.5, 3.0]}, "values (max 0.5)"),
        ("summary", {"values": [1.0, 2.0]}, "values (shape [3] in OLD, [2] here)"),
        ("transcripts", ANOTHER, '[0].completion ("<answer>1</answer>" in OLD, "2" here)'),
    ],
    ids=lambda x: x if isinstance(x, str) else "",
)
def test_names_the_first_difference(tmp_path: Path, kind: str, changes: Any, expected: str) -> None:
    assert difference(tmp_path, **{kind: changes}) == f"{WRITTEN[kind]} {expected}"


def test_weights_come_before_curves_and_renamed_columns_last(tmp_path: Path) -> None:
    renamed = {"loss": None, "policy_loss": [math.nan, 0.5]}
    other = {"values": [1.0, 2.5, 3.0]}
    assert difference(tmp_path, metrics=renamed, summary=other).startswith("summary.json values")
    tensors = {"networks.weights.0": torch.zeros(2, 3, 4)}
    found = difference(tmp_path, weights=tensors, curve={"seed": [0, 2]})
    assert found == "policy.safetensors networks.weights.0 (max 23)"


@pytest.mark.parametrize(("side", "words"), [("here", "only in OLD"), ("old", "only here")])
@pytest.mark.parametrize("name", ["policy.safetensors", "curve.parquet", "summary.json"])
def test_a_missing_file_is_a_difference(tmp_path: Path, side: str, words: str, name: str) -> None:
    old, here = write_part(tmp_path / "old"), write_part(tmp_path / "here")
    (tmp_path / side / name).unlink()
    assert compare_parts(old, here) == Difference(name, words)


def test_models_of_language_runs_are_compared(tmp_path: Path) -> None:
    old, here = write_part(tmp_path / "old"), write_part(tmp_path / "here")
    for part, value in ((old, 0.0), (here, 2.0**-20)):
        (part / "model").mkdir()
        weights = {"model.embed_tokens.weight": torch.full((2, 2), value, dtype=torch.bfloat16)}
        save_file(weights, part / "model" / "model.safetensors")
    found = "model/model.safetensors model.embed_tokens.weight (max 9.5e-07)"
    assert str(compare_parts(old, here)) == found


def test_runs_are_equal_where_all_their_parts_are(tmp_path: Path) -> None:
    def run(side: str) -> Path:
        return tmp_path / side / "runs" / "CartPole-v1" / "ppo" / CASE.name

    def compared() -> str:
        return str(compare_runs(CASE, tmp_path / "old", tmp_path / "here") or "")

    assert compared() == "parts (none in OLD, none here)"
    for side in ("old", "here"):
        for part in ("seeds-000-000", "seeds-001-001"):
            write_part(run(side) / part)
    assert compared() == ""
    write_part(run("here") / "seeds-001-001", curve={"seed": [0, 2]})
    assert compared() == "seeds-001-001 curve.parquet seed (max 1)"
    shutil.rmtree(run("old") / "seeds-001-001")
    assert compared() == "parts (seeds-000-000 in OLD, seeds-000-000, seeds-001-001 here)"


@pytest.mark.parametrize(
    ("here", "text"),
    [
        ("", "new      ppo CartPole-v1: OLD has no algos/ppo.py, 1.5 s"),
        ("a", "FAILED   ppo CartPole-v1: OLD: FileNotFoundError; here: a, 1.5 s"),
    ],
)
def test_a_case_is_new_where_only_old_lacks_its_script(
    tmp_path: Path, here: str, text: str
) -> None:
    sides: Any = [SimpleNamespace(name="OLD", root=tmp_path)]
    sides.append(SimpleNamespace(name="here", root=ROOT))
    ended = [same_bits.Ended(0.5, "FileNotFoundError"), same_bits.Ended(1.0, here)]
    assert str(same_bits.judge(CASE, sides, ended)) == text


# ---- The cases -----------------------------------------------------------------------------


def config_of(case: Case, folder: Path) -> Any:
    """The Config that a case's command gives."""
    for name, content in FILES.items():
        (folder / name).write_text(content)
    places = {name: str(folder / name) for name in case.placeholders}
    args = command_line(case.options, places)
    if "sb3" in case.script:
        return sb3_baseline.read_flags(args)[1]
    if "trl" in case.script:
        from manyseeds.benchmarks.baselines import trl_baseline

        return trl_baseline.read_flags(args)[1]
    module: Any = importlib.import_module(module_at(ROOT / case.script, ROOT))
    return parse(module.Config, module.PRESETS, "", args)


@pytest.fixture(scope="module")
def configs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The Config of every case of ours, by its label."""
    folder = tmp_path_factory.mktemp("files")
    return {case.label: config_of(case, folder) for case in CASES if not case.algo}


def literals(config_class: type) -> set[tuple[str, Any]]:
    """All values of the fields of a Config that have a few only, but for the device."""
    hints = get_type_hints(config_class)
    return {
        (name, value)
        for name, hint in hints.items()
        if name != "device"
        for value in (get_args(hint) if get_origin(hint) is Literal else ())
    }


def test_cases_are_valid_commands_for_a_few_seeds(configs: dict[str, Any]) -> None:
    assert all(config.quiet for config in configs.values())
    assert all(getattr(config, "seeds", 1) <= 3 for config in configs.values())


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, marks=[pytest.mark.slow] * ("trl" in case.needs), id=case.label)
        for case in CASES
        if case.algo
    ],
)
def test_a_case_of_a_baseline_is_a_valid_command(case: Case, tmp_path: Path) -> None:
    for package in case.needs:
        pytest.importorskip(package)
    assert config_of(case, tmp_path).seeds == 1


def test_labels_and_names_are_unique() -> None:
    assert len({case.label for case in CASES}) == len(CASES)
    assert len({case.name.lower() for case in CASES}) == len(CASES)


def test_cases_refer_to_files_and_to_earlier_cases() -> None:
    known = set(FILES)
    for case in CASES:
        assert known.issuperset(case.placeholders), case.label
        known.add(case.label)


def test_every_script_and_baseline_has_a_case() -> None:
    scripts = [ROOT / "algos" / f"{name}.py" for name in catalog.names("algos")]
    scripts += [ROOT / "llm_track" / f"{name}.py" for name in LANGUAGE]
    assert len(scripts) >= 12 + 7
    missing = {str(x.relative_to(ROOT)) for x in scripts} - {case.script for case in CASES}
    assert not missing, IN_CASES
    files = (ROOT / "llm_track").glob("*.py")
    has_main = {x.stem for x in files if 'if __name__ == "__main__"' in x.read_text()}
    assert has_main == {*LANGUAGE, "generate"}  # which trains nothing
    for name, algos in (
        ("sb3", sb3_baseline.BASELINES),
        ("sbx", sbx_baseline.SBX.baselines),
        ("rejax", rejax_baseline.PEERS),
    ):
        assert {c.algo for c in CASES if c.trains.source == name} == set(algos)


def test_every_baseline_of_trl_has_a_case() -> None:
    pytest.importorskip("trl")
    from manyseeds.benchmarks.baselines import trl_baseline

    assert {c.algo for c in CASES if "trl" in c.script} == set(trl_baseline.BASELINES)


def test_every_choice_of_a_config_is_in_some_case(configs: dict[str, Any]) -> None:
    """Of the fields that scripts share, such as backend, one script shows each choice."""
    shown: dict[type, set[tuple[str, Any]]] = defaultdict(set)
    for config in configs.values():
        names = [field.name for field in dataclasses.fields(config)]
        values = {(name, getattr(config, name)) for name in names}
        for config_class in type(config).__mro__[:-1]:
            shown[config_class] |= values
    bases = (ControlConfig, LanguageConfig, GroupConfig)
    shared = {name for base in bases for name in get_type_hints(base)}
    for config_class in {type(config) for config in configs.values()}:
        own = {(name, x) for name, x in literals(config_class) if name not in shared}
        missing = own - shown[config_class]
        assert not missing, f"{config_class.__module__}: {IN_CASES}"
    elsewhere = {("grader", "math-verify"), ("track", "tensorboard"), ("track", "wandb")}
    for config_class, others in (
        (ControlConfig, set()),
        (LanguageConfig, set()),
        (GroupConfig, literals(LanguageConfig)),
    ):
        assert literals(config_class) - elsewhere - others <= shown[config_class]


def test_every_switch_of_a_config_is_on_and_off_in_some_case(configs: dict[str, Any]) -> None:
    shown: dict[type, set[tuple[str, bool]]] = defaultdict(set)
    for config in configs.values():
        values = dataclasses.asdict(config).items()
        for name, x in ((name, x) for name, x in values if isinstance(x, bool)):
            bases = [base for base in (LanguageConfig, GroupConfig) if isinstance(config, base)]
            shared = (base for base in bases if name in {f.name for f in dataclasses.fields(base)})
            shown[next(shared, type(config))].add((name, x))
    execution = {"quiet", "keep_stale", "gif", "gradient_checkpointing"}
    # What no published run has, a wrapper and rows that are left out.
    elsewhere = {"rescale_actions", "drop_long_rows"}
    for config_class, found in shown.items():
        names = {name for name, _ in found}
        for name in names - execution - elsewhere:
            missing = {(name, True), (name, False)} - found
            assert not missing, f"{config_class.__module__}: {IN_CASES}"


@pytest.mark.slow
def test_every_switch_of_a_published_baseline_is_in_some_case() -> None:
    """As it is there, on or off: what no case enters, `--restamp` would take for proven."""
    shown: dict[Trains, set[tuple[str, bool]]] = defaultdict(set)
    missing: dict[Trains, set[tuple[str, bool]]] = defaultdict(set)
    for case in CASES:
        if case.algo and not case.is_language:
            algo, options = catalog.module("algos", case.method), dict(case.options)
            del options["--algo"]
            config = parse(algo.Config, algo.PRESETS, "", command_line(options, {}))
            values = dataclasses.asdict(config).items()
            shown[case.trains] |= {(name, x) for name, x in values if isinstance(x, bool)}
    for part in (part for run in all_runs(PUBLISHED) for part in run.parts()):
        trains = same_bits.trained_as(part)
        if trains in shown:
            values = read_json(part / "config.json")["config"].items()
            missing[trains] |= {(k, x) for k, x in values if isinstance(x, bool)} - shown[trains]
    assert {trains.source for trains in missing} == {"sb3", "sbx", "rejax"}
    assert not any(missing.values()), f"{dict(missing)}: {IN_CASES}"


def test_a_flag_replaces_the_one_of_the_budget() -> None:
    case = Case("algos/ppo.py", "CartPole-v1", "--hidden 8 8", "--seeds 2 --hidden 64")
    words = ["--env", "CartPole-v1", "--seeds", "2", "--hidden", "8", "8", "--quiet"]
    assert command_line(case.options, {}) == words
    assert case.label == "ppo CartPole-v1 --hidden 8 8"


def test_placeholders_become_paths_and_stay_one_word() -> None:
    case = Case("llm_track/dpo.py", "addition", "--model {grpo addition --epochs 2} --epochs 1")
    assert case.placeholders == ["grpo addition --epochs 2"]
    args = command_line(case.options, {"grpo addition --epochs 2": "/a folder/part"})
    assert args == ["--task", "addition", "--model", "/a folder/part", "--epochs", "1", "--quiet"]


def test_only_takes_along_what_a_case_begins_with() -> None:
    chosen = select(CASES, ["DR_GRPO countdown"])
    scripts = ["llm_track/grpo.py", "llm_track/reward_model.py", "llm_track/dr_grpo.py"]
    assert [case.script for case in chosen] == scripts
    assert [case.label for case in select(CASES, ["sb3-ppo"])] == [
        f"sb3-ppo {env}" for env in ("Pendulum-v1", "CartPole-v1", "Acrobot-v1")
    ]


# ---- Stamping ------------------------------------------------------------------------------


@pytest.fixture
def part(tmp_path: Path, monkeypatch: Patch, few_evaluations: None) -> Path:
    """The part of a finished run of Q-learning, in what counts as the published layer."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(same_bits, "PUBLISHED", Path("r"))
    words = "--env FrozenLake-v1 --total-timesteps 500 --seeds 2 --quiet --results r"
    config = parse(q_learning.Config, q_learning.PRESETS, "", words.split())
    control.main(config, q_learning.train, q_learning.PRESETS)
    (part,) = RunFolder.of(config, "q_learning").parts()
    return part


def test_only_what_was_fresh_is_stamped(part: Path, monkeypatch: Patch) -> None:
    """Stale at OLD is stale still, whatever else was found equal."""
    monkeypatch.setattr(same_bits, "commit_of", lambda old: old)
    monkeypatch.setattr(same_bits, "git", lambda *words: "c0ffee")
    fresh = same_bits.fresh_results()
    assert fresh == [sha256_of(part / "curve.parquet")]
    pack(Path("r"))
    assert same_bits.fresh_results() == fresh
    another = {"digest": "000000000000", "origins": [], "verified": ["another"]}
    runs, key = part.parents[1] / RUNS, f"{part.parent.name}/{part.name}"
    runs.write_bytes(with_proved(runs.parent, {key: another}))
    assert part_is_stale(read_json(part / "config.json"))
    assert same_bits.fresh_results() == []

    monkeypatch.setattr(same_bits, "fresh_at", lambda old: set())
    today = same_bits.stamps_today()
    equal = {same_bits.trained_as(part)}
    assert same_bits.restamp("OLD", today, equal) == (0, 1)
    assert part_is_stale(read_json(part / "config.json"))

    monkeypatch.setattr(same_bits, "fresh_at", lambda old: set(fresh))
    with pytest.raises(UsageError, match="the code was changed during the comparison"):
        same_bits.restamp("OLD", dict.fromkeys(today, same_bits.Code("another", [])), equal)
    assert same_bits.restamp("OLD", today, set()) == (0, 1)
    before = runs.read_text().splitlines()
    assert same_bits.restamp("OLD", today, equal) == (1, 0)
    assert len(set(runs.read_text().splitlines()) - set(before)) == 1
    stamped = read_json(part / "config.json")
    assert not part_is_stale(stamped)
    assert stamped["code"]["verified"] == ["c0ffee"]
    assert is_finished(part)
    assert same_bits.restamp("OLD", today, equal) == (0, 0)


def test_a_study_is_stamped_and_stays_sealed(part: Path) -> None:
    code = {"digest": "0", "origins": ["x:f"], "verified": ["c0ffee"]}
    same_bits.stamp_study(part, code)
    assert read_json(part / "config.json")["code"].items() >= code.items()
    assert is_finished(part, with_weights=True)


def test_the_result_of_a_plan_is_that_of_its_sweeps(tmp_path: Path) -> None:
    """Without the first line, which says the schema."""
    (tmp_path / "config.json").write_text("{}")
    for head, sweep in (("a", "x"), ("b", "x"), ("b", "y")):
        (tmp_path / "sweeps.json").write_text(f"{head}\n{sweep}\n")
        seal(tmp_path)
        expected = hashlib.sha256(f"{sweep}\n".encode()).hexdigest()
        assert same_bits.result_of(tmp_path) == expected


def test_an_algorithm_is_proven_by_all_its_cases() -> None:
    """One that differs, or was not compared, leaves its algorithm's runs as they are."""
    all_equal = [same_bits.Outcome(case, "equal", "", 0.0) for case in same_bits.CASES]
    everybody = {case.trains for case in same_bits.CASES}
    assert same_bits.proven(all_equal) == everybody
    ours, theirs = (Trains(source, "ppo", "environment") for source in ("manyseeds", "sb3"))
    kinds = ("environment", "generated")
    assert {ours, theirs, *(Trains("manyseeds", "grpo", kind) for kind in kinds)} <= everybody
    assert {Trains("manyseeds", "dapo", kind) for kind in ("generated", "read")} <= everybody
    for algo in ("a2c", "ppo", "trpo"):
        assert Trains("manyseeds", algo, "scaled rewards") in everybody
    last = max(k for k, outcome in enumerate(all_equal) if outcome.case.trains == ours)
    differs = dataclasses.replace(all_equal[last], status="DIFFERS")
    for changed in (
        all_equal[:last] + all_equal[last + 1 :],
        [*all_equal[:last], differs, *all_equal[last + 1 :]],
    ):
        scaled = ours._replace(subject="scaled rewards")  # of which there are few cases
        assert same_bits.proven(changed) == everybody - {ours, scaled}


@pytest.mark.slow
def test_every_published_run_is_what_its_settings_say() -> None:
    """Its name is the hash of its identity, and unless it is stale its origins are a new run's."""
    parts = [part for run in all_runs(PUBLISHED) for part in run.parts()]
    stale = 0
    for part in parts:
        stored = read_json(part / "config.json")
        algo = stored["algo"].removeprefix(f"{stored['source']}-")
        room: Any = "llm_track" if stored["kind"] == "language" else "algos"
        config = from_identity(catalog.module(room, algo).Config, stored["config"])
        today = identity(config)
        if "model_content" in today and not (ROOT / config.model).exists():  # made by `make smol`
            today["model_content"] = stored["config"]["model_content"]
        assert today == stored["config"], part
        assert part.parent.name == hash_of(stored["config"]), part
        assert read_json(part / "summary.json")["kind"] == stored["kind"]
        if part_is_stale(stored):
            stale += 1
        else:
            assert same_bits.origins_today(stored) == tuple(stored["code"]["origins"]), part
    assert len(parts) - stale > 1000


# ---- Where the old code is -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["nothing"], "error: OLD nothing: git knows no such commit\n"),
        (["HEAD", "--only", "no such case"], "error: --only no such case: no case has any of it"),
        (["HEAD", "--workers", "0"], "error: --workers 0: must be a finite number of at least 1\n"),
        ([], "error: OLD: name the commit to compare with\n"),
        (["HEAD", "--only"], "error: --only: needs a value"),
        (["HEAD", "--onl", "ppo"], "error: --onl: unknown flag; did you mean --only?\n"),
    ],
    ids=str,
)
def test_a_mistake_is_one_line(args: list[str], message: str, refusal: Refusal) -> None:
    if args == ["nothing"] and not (ROOT / ".git").exists():
        pytest.skip("no git checkout")
    assert refusal(main, *args).startswith(message)


def test_a_checkout_without_git_is_a_mistake(
    tmp_path: Path, monkeypatch: Patch, refusal: Refusal
) -> None:
    """Nor is a copy of the files inside somebody else's repository one."""
    subprocess.run(["git", "init", "-q", str(tmp_path / "theirs")], check=True)
    for folder in (tmp_path / "plain", tmp_path / "theirs/copy"):
        folder.mkdir()
        monkeypatch.setattr(same_bits, "ROOT", folder)
        message = f"error: OLD HEAD: {folder} is not a git checkout to read it from\n"
        assert refusal(main, "HEAD") == message


# ---- The command ---------------------------------------------------------------------------


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the source in a git repository of its own, committed."""
    folder = tmp_path_factory.mktemp("copy").resolve() / "checkout"
    ignore = shutil.ignore_patterns("__pycache__")
    for name in ("manyseeds", "envs", "algos", "llm_track", "benchmarks"):
        shutil.copytree(ROOT / name, folder / name, ignore=ignore)
    git = ["git", "-C", str(folder), "-c", "user.name=test", "-c", "user.email=test@localhost"]
    for words in (["init", "-q"], ["add", "-A"], ["commit", "-q", "-m", "All of it"]):
        subprocess.run([*git, *words], check=True)
    return folder


def start(copy: Path, temporary: Path, *args: str) -> subprocess.Popen[str]:
    """The command in the copy, whose temporary files lie elsewhere."""
    return subprocess.Popen(
        [sys.executable, "benchmarks/same_bits.py", "HEAD", *args],
        cwd=copy,
        env={**os.environ, "PYTHONPATH": str(copy), "TMPDIR": str(temporary)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run(copy: Path, temporary: Path, *args: str, status: int = 0) -> str:
    """What it prints."""
    process = start(copy, temporary, *args)
    out, err = process.communicate(timeout=300)
    assert (process.returncode, err) == (status, "")
    return out


def assert_clean(copy: Path, temporary: Path) -> None:
    """Nothing is left: no folder, no worktree."""
    assert not list(temporary.glob("same-bits-*"))
    listed = ["git", "-C", str(copy), "worktree", "list"]
    trees = subprocess.run(listed, capture_output=True, text=True, check=True).stdout
    assert len(trees.splitlines()) == 1


@pytest.mark.slow
def test_equal_code_is_equal_and_a_planted_change_is_named(copy: Path, tmp_path: Path) -> None:
    labels = "q_learning FrozenLake-v1", "dqn CartPole-v1 --tau"
    only = ["--only", *labels]
    lines = run(copy, tmp_path, *only).splitlines()
    assert [line.split(" ", 1)[0] for line in lines] == ["equal", "equal", "equal", "3"]
    assert "3 equal, 0 DIFFERS, 0 FAILED" in lines[-1]
    assert_clean(copy, tmp_path)

    dqn, q_learning = copy / "algos" / "dqn.py", copy / "algos" / "q_learning.py"
    texts = [file.read_text() for file in (dqn, q_learning)]
    changed = texts[0].replace("config.learning_rate", "config.learning_rate * 1.001")
    assert changed != texts[0]
    dqn.write_text(changed)
    q_learning.write_text(texts[1].replace('__main__":', '__main__":\n    raise ValueError("a")'))
    try:
        lines = run(copy, tmp_path, *only, status=1).splitlines()
    finally:
        for file, text in zip((dqn, q_learning), texts, strict=True):
            file.write_text(text)
    found = {line.split()[1]: line for line in lines[:-1]}
    assert found["dqn"].startswith(
        "DIFFERS  dqn CartPole-v1 --tau 0.5 --first-seed 3: policy.safetensors "
    )
    assert " (max " in found["dqn"]
    assert found["q_learning"].startswith("FAILED   q_learning FrozenLake-v1")
    assert "here: ValueError: a, " in found["q_learning"]
    assert "0 equal, 1 DIFFERS, 2 FAILED" in lines[-1]
    assert_clean(copy, tmp_path)


def test_cases_that_cannot_run_here_do_not_count_as_equal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(SystemExit) as refused:
        main(["HEAD", "--only", "rejax-"])
    said = capsys.readouterr()
    assert (refused.value.code, len(said.out.splitlines())) == (2, 1)
    assert said.err == "error: no case can run here: see above\n"
    with pytest.raises(SystemExit):  # an unknown commit is named first
        main(["no-such-commit", "--only", "rejax-"])
    assert capsys.readouterr().out == ""


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda x: x.name)
def test_an_interrupt_leaves_nothing(copy: Path, tmp_path: Path, number: signal.Signals) -> None:
    process = start(copy, tmp_path, "--only", "a2c")  # none of its cases is skipped
    assert process.stdout is not None
    process.stdout.readline()  # of the first case; the next ones have begun
    trained = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    process.send_signal(number)
    _, errors = process.communicate(timeout=180)
    assert process.returncode == 128 + number
    assert errors in ("", "interrupted\n")
    assert_clean(copy, tmp_path)
    assert not any(Path(f"/proc/{child}").exists() for child in trained)


@pytest.mark.slow
def test_kept_results_are_of_both_sides(copy: Path, tmp_path: Path) -> None:
    out = run(copy, tmp_path, "--keep", "--workers", "1", "--only", "value_iteration Grid")
    (folder,) = tmp_path.glob("same-bits-*")
    assert f"results and logs: {folder}\n" in out
    for side in ("old", "here"):
        assert len(list((folder / side / "results").glob("runs/*/*/*/plan/DONE.json"))) == 2
        assert list((folder / side / "logs").glob("*.out"))
    shutil.rmtree(folder)
    assert_clean(copy, tmp_path)
