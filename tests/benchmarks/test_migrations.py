"""Stored parts of older versions become parts of today's, and what was proven equal is stamped."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from manyseeds.algos import q_learning
from manyseeds.benchmarks import catalog, migrations, same_bits
from manyseeds.benchmarks.cases import Case, Trains
from manyseeds.benchmarks.migrations import (
    MIGRATIONS,
    Migration,
    migrate,
    rename_flag,
    without_flag,
)
from manyseeds.cli import PUBLISHED, from_identity, identity, parse
from manyseeds.errors import UsageError
from manyseeds.record import DONE, SCHEMA, RunFolder, all_runs, is_finished, read_json, sha256_of
from manyseeds.runs.control import main
from manyseeds.runs.stale import part_is_stale

FLAGS = ("--env", "FrozenLake-v1", "--total-timesteps", "500", "--seeds", "2", "--quiet")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, few_evaluations: None) -> RunFolder:
    """A finished run of Q-learning."""
    monkeypatch.chdir(tmp_path)
    config = parse(q_learning.Config, q_learning.PRESETS, "", [*FLAGS, "--results", "r"])
    main(config, q_learning.train, q_learning.PRESETS)
    return RunFolder.of(config, "q_learning")


def next_schema(monkeypatch: pytest.MonkeyPatch, **what: Any) -> tuple[Migration, ...]:
    """A migration to the schema after today's, which is then today's."""
    for module in ("manyseeds.record", "manyseeds.runs.base"):
        monkeypatch.setattr(f"{module}.SCHEMA", SCHEMA + 1)
    return (*MIGRATIONS, Migration(SCHEMA + 1, **what))


def test_migrations_lead_to_todays_schema() -> None:
    assert [migration.schema for migration in MIGRATIONS] == list(range(2, SCHEMA + 1))


def test_a_renamed_field(folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Config, folder name, command and checksums are the new ones; results stay as they are."""
    (part,) = folder.parts()
    config = read_json(part / "config.json")
    config["command"] += " --gamma 0.9 --gamma-ray 1"
    migrations.rewrite(part, {"config.json": config, DONE: read_json(part / DONE)}, part.parent)
    assert is_finished(part)
    curve = (part / "curve.parquet").read_bytes()
    todo = next_schema(monkeypatch, renamed={"q_learning": {"gamma": "discount"}})
    with pytest.raises(UsageError, match=rf"has schema {SCHEMA}, this version reads {SCHEMA + 1}"):
        is_finished(part)
    assert migrate(Path("r"), todo, SCHEMA + 1) == 1
    assert not folder.path.exists()
    (run,) = all_runs(Path("r"))
    (new,) = run.parts()
    stored = read_json(new / "config.json")
    assert "gamma" not in stored["config"]
    assert stored["config"]["discount"] == config["config"]["gamma"]
    assert run.path.name == migrations.identity_hash(stored["config"])
    assert stored["command"].endswith(" --discount 0.9 --gamma-ray 1")
    assert {read_json(new / n)["schema"] for n in ("config.json", "summary.json", DONE)} == {
        SCHEMA + 1
    }
    assert (new / "curve.parquet").read_bytes() == curve
    assert (new / "policy.safetensors").exists()
    assert migrate(Path("r"), todo, SCHEMA + 1) == 0
    assert sorted(os.listdir(run.path)) == ["seeds-000-001"]


def test_a_name_that_a_person_gave_stays(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder.path.rename(folder.path.with_name("mine"))
    todo = next_schema(monkeypatch, renamed={"q_learning": {"gamma": "discount"}})
    assert migrate(Path("r"), todo, SCHEMA + 1) == 1
    assert [run.path.name for run in all_runs(Path("r"))] == ["mine"]


def settings_of(run: RunFolder) -> Any:
    """The settings of a run that has one part, of whichever schema."""
    (part,) = run.parts()
    return read_json(part / "config.json")["config"]


def test_a_removed_field(folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    """It goes where it had the value that is done now, and is refused where it had another."""
    todo = next_schema(monkeypatch, removed={"q_learning": {"gamma": 0.5}})
    with pytest.raises(UsageError, match=r"--gamma 0\.99 is gone; only 0\.5 can be kept"):
        migrate(Path("r"), todo, SCHEMA + 1)
    todo = next_schema(monkeypatch, removed={"q_learning": {"gamma": 0.99}})
    assert migrate(Path("r"), todo, SCHEMA + 1) == 1
    (run,) = all_runs(Path("r"))
    assert "gamma" not in settings_of(run)
    assert run.path.name == migrations.identity_hash(settings_of(run))


def test_other_algorithms_keep_their_fields(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    todo = next_schema(monkeypatch, renamed={"sarsa": {"gamma": "discount"}})
    assert migrate(Path("r"), todo, SCHEMA + 1) == 1
    (run,) = all_runs(Path("r"))
    assert run.path == folder.path
    assert "gamma" in settings_of(run)


@pytest.mark.parametrize("damage", ["curve.parquet", DONE])
def test_what_is_damaged_is_left_as_it_is(
    damage: str, folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    (part,) = folder.parts()
    (part / damage).write_bytes(b"x")
    assert migrate(Path("r"), next_schema(monkeypatch), SCHEMA + 1) == 0


@pytest.mark.parametrize("renamed", [{}, {"q_learning": {"gamma": "discount"}}])
@pytest.mark.parametrize("moment", range(4))
def test_an_interruption_loses_nothing(
    moment: int, renamed: Any, folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the new part is written, before and after each renaming; the same command goes on."""
    todo = next_schema(monkeypatch, renamed=renamed)
    calls: list[Any] = []

    def stop_at(k: int, real: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            calls.append(k)
            if len(calls) == moment + 1:
                raise KeyboardInterrupt
            return real(*args, **kwargs)

        return call

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "copytree", stop_at(0, shutil.copytree))
        patch.setattr(Path, "rename", stop_at(1, Path.rename))
        patch.setattr(migrations.shutil, "rmtree", lambda *args, **kwargs: None)
        if moment < 3:
            with pytest.raises(KeyboardInterrupt):
                migrate(Path("r"), todo, SCHEMA + 1)
        else:
            migrate(Path("r"), todo, SCHEMA + 1)
    migrate(Path("r"), todo, SCHEMA + 1)
    (run,) = all_runs(Path("r"))
    assert run.finished_seeds() == {0, 1}
    assert os.listdir(run.path) == ["seeds-000-001"]


def test_a_run_of_today_is_not_overwritten(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody may have trained the settings anew since; both parts stay."""
    todo = next_schema(monkeypatch, renamed={"q_learning": {"gamma": "discount"}})
    (part,) = folder.path.glob("seeds-*")
    settings = read_json(part / "config.json")["config"]
    settings["discount"] = settings.pop("gamma")
    other = folder.path.with_name(migrations.identity_hash(settings)) / part.name
    shutil.copytree(part, other)
    (other / "curve.parquet").write_bytes(b"NEW")
    with pytest.raises(UsageError, match="would take the place of another run"):
        migrate(Path("r"), todo, SCHEMA + 1)
    assert (other / "curve.parquet").read_bytes() == b"NEW"
    assert (part / "curve.parquet").exists()


def test_flags_of_recorded_commands() -> None:
    command = "python x.py --td-steps 5 --no-shared-trunk --td-steps=4 --td-steps-high 1"
    assert rename_flag(command, "td_steps", "n_steps") == command.replace(
        "--td-steps ", "--n-steps "
    ).replace("--td-steps=", "--n-steps=")
    assert rename_flag(command, "shared_trunk", "trunk").count("--no-trunk") == 1
    assert without_flag(command, "shared_trunk") == command.replace(" --no-shared-trunk", "")
    assert without_flag("x --hidden 8 8 --gamma 1", "hidden") == "x --gamma 1"
    assert without_flag("x --hidden=8 --gamma 1", "gamma") == "x --hidden=8"
    underscores = "x --td_steps 5 --no_shared_trunk --td-steps_high 1"
    assert rename_flag(underscores, "td_steps", "n_steps") == underscores.replace(
        "--td_steps ", "--n-steps "
    )
    assert rename_flag(underscores, "shared_trunk", "trunk").count("--no-trunk") == 1
    assert without_flag(underscores, "shared_trunk") == underscores.replace(
        " --no_shared_trunk", ""
    )
    assert without_flag(underscores, "td_steps_high") == underscores.replace(
        " --td-steps_high 1", ""
    )


def test_old_code_gets_the_flags_that_it_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    renamed = {"a2c": {"td_steps": "n_steps", "normalize": "normalize_advantage"}}
    later = Migration(SCHEMA + 1, renamed=renamed)
    monkeypatch.setattr(same_bits, "MIGRATIONS", (*MIGRATIONS, later))
    case = Case("algos/a2c.py", "CartPole-v1", "--n-steps 3 --no-normalize-advantage --gamma 1")
    old = same_bits.old_flags(case, SCHEMA)
    assert old["--td-steps"] == ["3"]
    assert "--no-normalize" in old
    assert not {"--n-steps", "--no-normalize-advantage"} & old.keys()
    assert same_bits.old_flags(case, SCHEMA + 1) == case.options


# ---- Stamping ---------------------------------------------------------------------------


def test_only_what_was_fresh_is_stamped(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Stale at OLD is stale still, whatever else was found equal."""
    (part,) = folder.parts()
    monkeypatch.setattr(same_bits, "PUBLISHED", Path("r"))
    monkeypatch.setattr(same_bits, "commit_of", lambda old: old)
    monkeypatch.setattr(same_bits, "git", lambda *words: "c0ffee")
    fresh = same_bits.fresh_results()
    assert fresh == [sha256_of(part / "curve.parquet")]
    migrations.stamp(part, migrations.Code("000000000000", []), "another")
    assert part_is_stale(read_json(part / "config.json"))
    assert same_bits.fresh_results() == []

    monkeypatch.setattr(same_bits, "fresh_at", lambda old: set())
    today = same_bits.stamps_today()
    equal = {same_bits.trained_as(part)}
    assert same_bits.restamp("OLD", today, equal) == (0, 1)
    assert part_is_stale(read_json(part / "config.json"))

    monkeypatch.setattr(same_bits, "fresh_at", lambda old: set(fresh))
    with pytest.raises(UsageError, match="the code was changed during the comparison"):
        same_bits.restamp("OLD", dict.fromkeys(today, migrations.Code("another", [])), equal)
    assert same_bits.restamp("OLD", today, set()) == (0, 1)
    assert same_bits.restamp("OLD", today, equal) == (1, 0)
    stamped = read_json(part / "config.json")
    assert not part_is_stale(stamped)
    assert stamped["code"]["verified"] == ["another", "c0ffee"]
    assert is_finished(part)
    assert same_bits.restamp("OLD", today, equal) == (0, 0)
    migrations.stamp(part, today[part], "c0ffee")  # again, after another change
    assert read_json(part / "config.json")["code"]["verified"] == ["another", "c0ffee"]


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
    for changed in (
        all_equal[:last] + all_equal[last + 1 :],
        [*all_equal[:last], replace(all_equal[last], status="DIFFERS"), *all_equal[last + 1 :]],
    ):
        scaled = ours._replace(subject="scaled rewards")  # of which there are few cases
        assert same_bits.proven(changed) == everybody - {ours, scaled}


def test_mistakes_are_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    for words, message in (
        ([], "OLD: name the commit"),
        (["HEAD", "--migrate"], "--migrate: compares with no commit; leave out HEAD"),
        (["--migrate=no"], "--migrate 'no': takes no value; write --migrate or --no-migrate"),
        (["HEAD", "--only"], "--only: needs a value"),
        (["HEAD", "--workers", "0"], "--workers 0: must be a finite number of at least 1"),
    ):
        with pytest.raises(SystemExit) as stop:
            same_bits.main(words)
        assert stop.value.code == 2
        assert capsys.readouterr().err.startswith(f"error: {message}")


# ---- The published runs -----------------------------------------------------------------


@pytest.mark.slow
def test_every_published_run_is_what_its_settings_say() -> None:
    """Its name is the hash of its identity, and its origins are those of a new run."""
    parts = sorted(PUBLISHED.glob("runs/*/*/*/*"))
    assert len(parts) > 400
    for part in parts:
        assert is_finished(part), part
        stored = read_json(part / "config.json")
        algo = stored["algo"].removeprefix(f"{stored['source']}-")
        room: Any = "llm_track" if stored["kind"] == "language" else "algos"
        config = from_identity(catalog.module(room, algo).Config, stored["config"])
        assert identity(config) == stored["config"], part
        assert part.parent.name == migrations.identity_hash(stored["config"]), part
        assert same_bits.origins_today(stored) == tuple(stored["code"]["origins"]), part
        assert json.loads((part / "summary.json").read_text())["kind"] == stored["kind"]
