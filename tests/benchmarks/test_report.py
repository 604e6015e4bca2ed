"""The report and the comparison, on small stores whose every number can be worked out by hand."""

from __future__ import annotations

import errno
import importlib
import math
import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import envs
from algos import q_learning
from benchmarks import compare, report, verdicts
from benchmarks.revised import Revised
from manyseeds import record, stats
from manyseeds.cli import from_preset, identity
from manyseeds.digest import ROOT
from manyseeds.record import (
    SCHEMA,
    RunFolder,
    parquet_bytes,
    part_name,
    provenance,
    read_json,
    seal,
    write_bytes,
    write_json,
)
from manyseeds.runs.control import Run

ENV = "CartPole-v1"  # threshold 475, anchors 22.1 and 500
FINALS = {0: 480.0, 1: 500.0, 2: 490.0, 3: 100.0}
RANDOM = 20.0  # planted return before training


def plant(
    results: Path,
    algo: str,
    finals: Mapping[int, float],
    *,
    env: str = ENV,
    middle: float = 300.0,
    diverged: Mapping[int, int] | None = None,
    digest: str | None = None,
    sealed: bool = True,
    parts: Sequence[Sequence[int]] = (),
    **settings: Any,
) -> RunFolder:
    """A finished run of `algo` (sb3-ppo: SB3's); a curve is RANDOM, middle, final at 0, T/2, T.

    Sampled scores are 10 below the greedy ones, and episodes spread by 7.
    """
    name = algo.removeprefix("sb3-")
    module = importlib.import_module(f"algos.{name}")
    config = from_preset(module.Config, module.PRESETS, env, results=str(results), **settings)
    folder = RunFolder.of(config, algo)
    T = config.total_timesteps
    for seeds in parts or [list(finals)]:
        part = folder.path / part_name(seeds)
        part.mkdir(parents=True)
        rows = []
        for seed in seeds:
            points = [(0, RANDOM, 32), (T // 2, middle, 32), (T, finals[seed], 32)]
            points += [(T, finals[seed], 100)]
            for t, score, episodes in points:
                rows.append((seed, t, score, 7.0, episodes, "greedy"))
            rows.append((seed, T, finals[seed] - 10, 7.0, 100, "sampled"))
            rows.append((seed, T, -1.0, float("nan"), 0, "train"))
        names = ["seed", "timestep", "return_mean", "return_std", "episodes", "mode"]
        curve = pd.DataFrame(rows, columns=names)
        write_bytes(part / "curve.parquet", parquet_bytes(curve))
        trained_by = "benchmarks.sb3_baseline:train" if name != algo else f"algos.{algo}:train"
        origin = provenance([trained_by], kind=Run.kind_origins())
        origin["code"]["digest"] = digest or origin["code"]["digest"]
        origin["code"]["commit"] = "c0ffee"
        header = {
            "schema": SCHEMA,
            "kind": "control",
            "source": "manyseeds",
            "algo": algo,
            "env": env,
            "seeds": list(seeds),
        }
        header |= {"config": identity(config), "execution": {"device": "cpu", "threads": 1}}
        header |= {"command": f"python the-command-of {algo} {part.name}", **origin}
        write_json(part / "config.json", header)
        final = {
            mode: {"episodes": 100, "per_seed": {str(s): finals[s] - minus for s in seeds}}
            for mode, minus in (("greedy", 0), ("sampled", 10))
        }
        summary = {"seeds": list(seeds), "final": final, "timesteps_per_seed": T}
        summary["diverged"] = {str(s): t for s, t in (diverged or {}).items() if s in seeds}
        write_json(part / "summary.json", summary)
        if sealed:
            seal(part)
    return folder


def around(mean: float, n: int = 10) -> dict[int, float]:
    """n finals, half a point below and above `mean`."""
    return {seed: mean + (0.5 if seed % 2 else -0.5) for seed in range(n)}


def table(page: str, title: str) -> list[dict[str, str]]:
    """The rows of the table under a heading."""
    lines = page.split(f"## {title}\n\n")[1].split("\n\n")[0].splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return [dict(zip(cells[0], row, strict=True)) for row in cells[2:]]


def written(results: Path, note: str = "") -> str:
    report.report(results, note)
    return (results / "README.md").read_text()


# ---- Numbers --------------------------------------------------------------------------


def test_final_scores_are_those_of_the_data(tmp_path: Path) -> None:
    plant(tmp_path, "ppo", FINALS)
    (row,) = table(written(tmp_path), "Final score")
    # Sorted: 100, 480, 490, 500. Half of four seeds is cut, one at each end.
    assert row["IQM [95%]"].startswith("485.0 [")
    assert row["mean [95%]"].startswith("392.5 [")
    assert row["IQM [95%]"] == stats.estimate(list(FINALS.values())).text()
    assert row["environment"] == ENV
    assert row["algorithm"] == "ppo"
    assert row["n"] == "4 of 30"
    assert row["failures"] == "1 of 4, at most 76%"
    assert row["against SB3"] == "no SB3 run"


def test_learning_speed_is_that_of_the_data(tmp_path: Path) -> None:
    plant(tmp_path, "ppo", FINALS)
    (row,) = table(written(tmp_path), "Learning speed")
    # Mean of the trapezoids (20 + 300) / 2 and (300 + final) / 2: 275, 280, 277.5 and 180.
    assert row["AUC, IQM [95%]"].startswith("276.2 [")
    assert row["timesteps to threshold"] == "100,000"
    assert row["reached by"] == "3 of 4"


def test_threshold_reached_on_the_way(tmp_path: Path) -> None:
    plant(tmp_path, "ppo", FINALS, middle=475.0)
    (row,) = table(written(tmp_path), "Learning speed")
    assert row["timesteps to threshold"] == "50,000"
    assert row["reached by"] == "4 of 4"


def test_threshold_never_reached(tmp_path: Path) -> None:
    plant(tmp_path, "ppo", {0: 30.0, 1: 40.0})
    (row,) = table(written(tmp_path), "Learning speed")
    assert row["timesteps to threshold"] == "never"
    assert row["reached by"] == "0 of 2"


def test_spread_over_seeds_and_over_episodes_apart(tmp_path: Path) -> None:
    plant(tmp_path, "ppo", FINALS)
    (row,) = table(written(tmp_path), "Details")
    assert row["std over seeds"] == "195.2"  # sqrt of (87.5² + 107.5² + 97.5² + 292.5²) / 3
    assert row["std over episodes"] == "7.0"
    assert row["worst seed"] == "100.0"
    assert row["sampled, IQM [95%]"].startswith("475.0 [")


def test_every_table_row_shows_its_number_of_seeds(tmp_path: Path) -> None:
    plant(tmp_path, "ppo", FINALS)
    plant(tmp_path, "ppo", {0: 480.0, 1: 490.0, 2: 500.0}, gamma=0.9)
    plant(tmp_path, "sb3-ppo", {0: 480.0, 1: 490.0})
    page = written(tmp_path)
    for title in ("Final score", "Learning speed", "Details"):
        assert [row["n"] for row in table(page, title)] == ["4 of 30", "2 of 10"]
    assert [row["n"] for row in table(page, "Published scores")] == ["4"]
    assert [row["n"] for row in table(page, "Other runs")] == ["3"]


def test_parts_are_put_together_and_a_seed_counts_once(tmp_path: Path) -> None:
    plant(tmp_path, "ppo", FINALS, parts=[[0, 1], [1, 2, 3]])
    assert table(written(tmp_path), "Final score")[0]["n"] == "4 of 30"
    assert list(pd.read_csv(tmp_path / "tables/seeds.csv")["seed"]) == [0, 1, 2, 3]


def test_one_seed_has_no_interval_and_no_verdict(tmp_path: Path) -> None:
    plant(tmp_path, "ppo", {0: 480.0})
    plant(tmp_path, "sb3-ppo", {0: 480.0})
    row = table(written(tmp_path), "Final score")[0]
    assert row["IQM [95%]"] == "480.0 (no interval, n=1)"
    assert row["against SB3"] == "none (needs 10 seeds a side)"


def test_tables_for_programs_hold_the_same_numbers_unrounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verdicts, "LOOKS", (4,))
    plant(tmp_path, "ppo", FINALS, diverged={3: 512})
    plant(tmp_path, "sb3-ppo", FINALS)
    written(tmp_path)
    seeds = pd.read_csv(tmp_path / "tables/seeds.csv")
    ours = seeds[seeds["algo"] == "ppo"]
    assert list(ours["final"]) == list(FINALS.values())
    assert list(ours["auc"]) == [275.0, 280.0, 277.5, 180.0]
    assert list(ours["failed"]) == [False, False, False, True]
    assert list(ours["diverged_at"].dropna()) == [512]
    scores = pd.read_csv(tmp_path / "tables/scores.csv").set_index("algo")
    assert scores.loc["ppo", "final_iqm"] == 485.0
    assert scores.loc["ppo", "final_mean_low"] == stats.estimate(ours["final"], "mean").low
    table = pd.read_csv(tmp_path / "tables/verdicts.csv").set_index("measure")
    assert table.loc["final", "difference"] == 0
    assert table.loc["final", "look"] == 4


# ---- Verdicts and failures ------------------------------------------------------------


@pytest.mark.parametrize(
    ("ours", "theirs", "word"),
    [(485.0, 450.0, "better"), (480.0, 485.0, "equivalent"), (450.0, 485.0, "worse")],
)
def test_planted_verdict(tmp_path: Path, ours: float, theirs: float, word: str) -> None:
    plant(tmp_path, "ppo", around(ours, 30))
    plant(tmp_path, "sb3-ppo", around(theirs, 30))
    page = written(tmp_path)
    text = table(page, "Final score")[0]["against SB3"]
    assert text.startswith(f"{word} ")
    assert f"at the same settings (1 comparison): 1 {word}.**" in page
    differ = 0 if word == "equivalent" else 1
    assert f"- final score: 1 {word}. Not saturated: 1; better or worse: {differ};" in page
    # No sequence goes on once it is decided; of fewer than 30 seeds none is equivalent.
    assert text.endswith(", n=30" if word == "equivalent" else "p<0.001, n=10")
    assert table(page, "Final score")[1]["against SB3"] == ""


def test_verdict_shows_the_normalised_difference(tmp_path: Path) -> None:
    plant(tmp_path, "ppo", around(485.0))
    plant(tmp_path, "sb3-ppo", around(450.0))
    text = table(written(tmp_path), "Final score")[0]["against SB3"]
    assert text.startswith(f"better {35 / (500 - 22.1):+.3f} [")


def test_verdict_on_the_area_is_its_own(tmp_path: Path) -> None:
    plant(tmp_path, "ppo", around(485.0, 30), middle=200.0)
    plant(tmp_path, "sb3-ppo", around(485.2, 30), middle=400.0)
    page = written(tmp_path)
    assert table(page, "Final score")[0]["against SB3"].startswith("equivalent ")
    assert table(page, "Learning speed")[0]["AUC against SB3"].startswith("worse -0.209 [")


def test_an_undecided_verdict_names_the_next_look(tmp_path: Path) -> None:
    plant(tmp_path, "ppo", dict.fromkeys(range(30), 500.0))
    plant(tmp_path, "sb3-ppo", dict.fromkeys(range(19), 500.0) | {5: 100.0})
    text = table(written(tmp_path), "Final score")[0]["against SB3"]
    assert text.startswith("undecided +0.084 [")
    assert text.endswith(", n=10; next look at 20")


def test_a_saturated_cell_says_what_may_be_unseen(tmp_path: Path) -> None:
    plant(tmp_path, "ppo", dict.fromkeys(range(30), 500.0))
    plant(tmp_path, "sb3-ppo", dict.fromkeys(range(30), 500.0))
    text = table(written(tmp_path), "Final score")[0]["against SB3"]
    assert text == "saturated: all seeds score the same; on each side at most 9.5% do not, n=30"


def test_sb3_is_set_against_the_run_with_its_hyperparameters(tmp_path: Path) -> None:
    plant(tmp_path, "ppo", around(485.0))
    plant(tmp_path, "sb3-ppo", around(485.0), gamma=0.9)
    page = written(tmp_path)
    assert table(page, "Final score")[0]["against SB3"] == "no SB3 run"
    assert table(page, "Other runs")[0]["settings"] == "gamma 0.9 (not 0.98)"


def test_failed_seed_is_counted_and_named(tmp_path: Path) -> None:
    plant(tmp_path, "ppo", {0: 480.0, 1: 9.4, 2: 300.0}, diverged={1: 12_032})
    page = written(tmp_path)
    assert table(page, "Final score")[0]["failures"] == "2 of 3 (1 diverged), at most 99%"
    assert "seed 1 (9.4, diverged at timestep 12,032), seed 2 (300.0)" in page


def test_without_a_threshold_a_failure_has_learned_nothing(tmp_path: Path) -> None:
    """Pendulum has none: a failure has a normalised score below 0.1."""
    spec = envs.make("Pendulum-v1").spec
    assert spec.random_score is not None
    assert spec.reference_score is not None
    floor = spec.random_score + 0.1 * (spec.reference_score - spec.random_score)
    plant(tmp_path, "ppo", {0: floor - 1, 1: floor + 1}, env="Pendulum-v1")
    page = written(tmp_path)
    assert table(page, "Final score")[0]["failures"] == "1 of 2 below 0.1, at most 98%"
    assert f"- ppo on Pendulum-v1: seed 0 ({floor - 1:.1f})" in page


def test_without_any_scale_there_are_no_failures(tmp_path: Path) -> None:
    run = plant_foreign(tmp_path, "ppo", around(485.0), "Foo-v0")
    (part,) = run.glob("seeds-*")
    summary = read_json(part / "summary.json") | {"threshold": None}
    write_json(part / "summary.json", summary)
    seal(part)
    assert table(written(tmp_path), "Final score")[0]["failures"] == "-"


def test_return_that_is_not_finite_counts_as_random(tmp_path: Path) -> None:
    plant(tmp_path, "ppo", {0: 480.0, 1: float("nan")}, diverged={1: 256})
    row = table(written(tmp_path), "Final score")[0]
    assert row["mean [95%]"].startswith(f"{(480 + 22.1) / 2:.1f} [")
    assert row["failures"] == "1 of 2 (1 diverged), at most 98%"


# ---- The store ------------------------------------------------------------------------


def test_part_that_is_not_sealed_does_not_exist(tmp_path: Path) -> None:
    plant(tmp_path, "ppo", FINALS)
    before = written(tmp_path)
    plant(tmp_path, "ppo", {9: 1.0}, sealed=False)
    assert written(tmp_path) == before


@pytest.mark.parametrize("file", ["curve.parquet", "summary.json", "config.json"])
def test_part_that_was_changed_after_sealing_does_not_exist(tmp_path: Path, file: str) -> None:
    plant(tmp_path, "ppo", FINALS)
    before = written(tmp_path)
    folder = plant(tmp_path, "ppo", {9: 1.0})
    with open(folder.path / "seeds-009-009" / file, "ab") as damaged:
        damaged.write(b" ")
    assert written(tmp_path) == before


def test_headline_is_the_preset_whatever_else_there_is(tmp_path: Path) -> None:
    plant(tmp_path, "ppo", around(400.0, 20), gamma=0.9)
    plant(tmp_path, "ppo", around(490.0))
    page = written(tmp_path)
    assert table(page, "Final score")[0]["mean [95%]"].startswith("490.0")
    (other,) = table(page, "Other runs")
    assert other["mean [95%]"].startswith("400.0")


def test_without_the_preset_the_headline_says_so(tmp_path: Path) -> None:
    plant(tmp_path, "ppo", around(490.0), total_timesteps=20_000)
    plant(tmp_path, "ppo", around(490.0, 2), gamma=0.9)
    page = written(tmp_path)
    row = table(page, "Final score")[0]
    assert (row["algorithm"], row["n"]) == ("ppo (not the preset)", "10")
    assert "not the preset: total_timesteps 20000 (not 100000)" in page


def test_a_published_score_stands_beside_the_preset_only(tmp_path: Path) -> None:
    """Not beside a run with a smaller evaluation, or with other hyperparameters."""
    plant(tmp_path / "preset", "ppo", around(490.0))
    assert table(written(tmp_path / "preset"), "Published scores")[0]["algorithm"] == "ppo"
    for name, value in (("eval_budget", 0.5), ("gamma", 0.9)):
        plant(tmp_path / name, "ppo", around(490.0), **{name: value})
        page = written(tmp_path / name)
        assert table(page, "Final score")[0]["algorithm"] == "ppo (not the preset)"
        assert "## Published scores" not in page


def test_code_of_another_day_is_marked_stale(tmp_path: Path) -> None:
    plant(tmp_path, "ppo", FINALS)
    plant(tmp_path, "sb3-ppo", FINALS, digest="0123456789ab")
    page = written(tmp_path)
    assert [row["algorithm"] for row in table(page, "Final score")] == ["ppo", "sb3-ppo (stale)"]
    assert "code 0123456789ab (stale), commit c0ffee" in page
    assert list(pd.read_csv(tmp_path / "tables/scores.csv")["stale"]) == [False, True]


def test_each_part_keeps_its_command(tmp_path: Path) -> None:
    plant(tmp_path, "ppo", FINALS, parts=[[0, 1], [2, 3]])
    page = written(tmp_path)
    assert "- seeds 0-1: `python the-command-of ppo seeds-000-001`" in page
    assert "- seeds 2-3: `python the-command-of ppo seeds-002-003`" in page
    assert "gamma 0.98" in page


def test_links_and_pictures_lead_somewhere(tmp_path: Path) -> None:
    plant(tmp_path, "ppo", FINALS)
    plant(tmp_path, "sb3-ppo", FINALS)
    page = written(tmp_path)
    targets = [part.split(")")[0] for part in page.split("](")[1:]]
    assert "plots/CartPole-v1.svg" in targets
    for target in targets:
        assert target.startswith("#") or (tmp_path / target).exists(), target


def test_same_store_gives_the_same_bytes(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    plant(first, "ppo", FINALS)
    plant(first, "sb3-ppo", around(485.0))
    shutil.copytree(first, second)
    for results in (first, second, second):
        report.report(results)
    files = [path.relative_to(first) for path in first.rglob("*") if path.is_file()]
    assert Path("plots/CartPole-v1.svg") in files
    for file in files:
        assert (first / file).read_bytes() == (second / file).read_bytes(), file


def test_note_stands_at_the_top_and_replaces_the_missing_cells(tmp_path: Path) -> None:
    plant(tmp_path, "ppo", FINALS)
    assert "\n- ppo on CartPole-v1, 30 seeds: 4-29\n" in written(tmp_path)
    page = written(tmp_path, note="A cut, never to be quoted.")
    assert page.startswith("# Results\n\n> **A cut, never to be quoted.**\n")
    assert "## Missing" not in page


@pytest.mark.parametrize(
    ("stored", "table", "heading"),
    [
        ("throughput.json", "tables/throughput.md", "Speed"),
        ("tables/check.json", "tables/check.md", "Native environments against Gymnasium's"),
    ],
)
def test_what_was_measured_has_its_section(
    stored: str, table: str, heading: str, tmp_path: Path
) -> None:
    plant(tmp_path, "ppo", FINALS)
    assert f"## {heading}" not in written(tmp_path)
    shutil.copy(ROOT / "results" / stored, tmp_path / stored)
    expected = (ROOT / "results" / table).read_text()
    assert f"## {heading}\n\n{expected}\n" in written(tmp_path)


def test_environment_of_somebody_else_is_shown_as_far_as_it_is_known(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its threshold and digits are those of the part; without them the run is left out."""
    plant(tmp_path, "ppo", FINALS)
    monkeypatch.setitem(envs.NATIVE, "Gone-v0", envs.NATIVE["FrozenLake-v1"])
    finals = {0: 0.7, 1: 0.25, 2: math.nan}
    run = plant(tmp_path, "q_learning", finals, env="Gone-v0", diverged={2: 9})
    monkeypatch.delitem(envs.NATIVE, "Gone-v0")
    assert len(table(written(tmp_path), "Final score")) == 1
    assert f"left out: {run.path}" in capsys.readouterr().out
    part = run.path / "seeds-000-002"
    known = {"threshold": 0.5, "digits": 2}
    write_json(part / "summary.json", read_json(part / "summary.json") | known)
    seal(part)
    page = written(tmp_path)
    row = table(page, "Final score")[1]
    assert row["environment"] == "Gone-v0"
    assert row["failures"] == "2 of 3 (1 diverged), at most 99%"
    # A seed without a finite return counts as the lowest of the run, which is a sampled one.
    assert row["mean [95%]"].startswith(f"{(0.7 + 0.25 - 9.75) / 3:.2f} [")
    scale = "random or reference score unknown, so no verdicts"
    assert f"- Gone-v0: reward threshold 0.5, {scale}\n" in page


def test_terminal_shows_the_tables_and_where_the_files_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plant(tmp_path, "ppo", FINALS)
    report.main(["--results", str(tmp_path)])
    out = capsys.readouterr().out
    assert "485.0 [" in out
    assert f"plot: {tmp_path}/plots/CartPole-v1.svg" in out
    assert "missing: sb3-ppo on CartPole-v1, 10 seeds: 0-9" in out


def test_store_without_a_finished_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        report.main(["--results", str(tmp_path / "none")])
    assert capsys.readouterr().err.count("\n") == 1
    assert not list(tmp_path.iterdir())


def plant_foreign(results: Path, algo: str, finals: Mapping[int, float], env: str) -> Path:
    """A finished run on an environment that is not ours, with episodes as CartPole's."""
    folder = plant(results, algo, finals, name="foreign").path
    (part,) = folder.glob("seeds-*")
    config = read_json(part / "config.json")
    config |= {"env": env, "config": {**config["config"], "env": env}}
    write_json(part / "config.json", config)
    known = {"threshold": 475.0, "digits": 1}
    write_json(part / "summary.json", read_json(part / "summary.json") | known)
    seal(part)
    new = results / "runs" / env.replace("/", "--").replace(":", "--") / algo / "foreign"
    new.parent.mkdir(parents=True)
    return folder.rename(new)


def test_no_verdict_without_a_random_and_a_reference_score(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = plant_foreign(tmp_path, "ppo", around(485.0), "Foo-v0")
    second = plant_foreign(tmp_path, "sb3-ppo", around(485.0), "Foo-v0")
    page = written(tmp_path)
    why = "none (random or reference score unknown)"
    assert table(page, "Final score")[0]["against SB3"] == why
    assert table(page, "Learning speed")[0]["AUC against SB3"] == why
    assert not (tmp_path / "tables/verdicts.csv").exists()
    capsys.readouterr()
    compared(first, second, "--out", tmp_path / "x.svg")
    assert capsys.readouterr().out.count(why) == 2


def test_return_that_is_not_finite_is_never_0_where_the_random_score_is_unknown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It counts as the lowest return of the run; a run without any finite return is invalid."""
    plant_foreign(tmp_path, "ppo", {0: 480.0, 1: math.nan, 2: 470.0}, "Foo-v0")
    written(tmp_path)
    seeds = pd.read_csv(tmp_path / "tables/seeds.csv")
    assert list(seeds["final"]) == [480.0, -1.0, 470.0]  # the lowest of its training returns
    run = plant_foreign(tmp_path / "b", "ppo", {0: math.nan}, "Foo-v0")
    curve = pd.read_parquet(run / "seeds-000-000/curve.parquet")
    content = parquet_bytes(curve.assign(return_mean=math.nan))
    write_bytes(run / "seeds-000-000/curve.parquet", content)
    seal(run / "seeds-000-000")
    with pytest.raises(SystemExit, match="2"):
        report.main(["--results", str(tmp_path / "b")])
    captured = capsys.readouterr()
    why = "no return is finite, and Foo-v0 has no known random score"
    assert f"left out: {run}: {why}\n" in captured.out
    assert "no finished, valid run" in captured.err
    assert [path.name for path in (tmp_path / "b").iterdir()] == ["runs"]


def test_environment_id_with_a_namespace(tmp_path: Path) -> None:
    env = "weird:ns/Foo-v0"
    plant_foreign(tmp_path, "ppo", around(485.0), env)
    page = written(tmp_path)
    assert table(page, "Final score")[0]["environment"] == env
    targets = [part.split(")")[0] for part in page.split("](")[1:]]
    (figure,) = [target for target in targets if target.startswith("plots/")]
    assert figure.startswith("plots/weird-ns-Foo-v0-")
    for target in targets:
        assert target.startswith("#") or (tmp_path / target).exists(), target
    assert {path.parent for path in tmp_path.rglob("*.svg")} == {tmp_path / "plots"}


def test_anchors_lead_to_headings(tmp_path: Path) -> None:
    plant(tmp_path, "ppo", FINALS)
    page = written(tmp_path)
    headings = [line.lstrip("# ") for line in page.splitlines() if line.startswith("#")]
    slugs = {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}
    anchors = {part.split(")")[0] for part in page.split("](#")[1:]}
    assert anchors
    assert anchors <= slugs


CONTROL = ("a2c", "dqn", "grpo", "ppo", "q_learning", "reinforce", "sarsa", "trpo", "sb3-ppo")


@pytest.mark.parametrize("algo", CONTROL)
def test_store_of_one_algorithm_alone(algo: str, tmp_path: Path) -> None:
    plant(tmp_path, algo, FINALS)
    (row,) = table(written(tmp_path, "a test"), "Final score")
    assert row["algorithm"] == algo


@pytest.mark.parametrize(
    ("path", "is_folder"),
    [
        ("README.md", True),
        ("tables", False),
        ("plots", False),
        ("tables/seeds.csv", True),
        ("plots/CartPole-v1.svg", True),
    ],
)
def test_something_else_where_the_report_writes(
    path: str, is_folder: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plant(tmp_path, "ppo", FINALS)
    (tmp_path / path).parent.mkdir(exist_ok=True)
    if is_folder:
        (tmp_path / path).mkdir()
    else:
        (tmp_path / path).write_text("mine")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(SystemExit, match="2"):
        report.main(["--results", str(tmp_path)])
    error = capsys.readouterr().err
    assert error.startswith(f"error: {tmp_path / path}: is ")
    assert error.count("\n") == 1
    assert sorted(tmp_path.rglob("*")) == before


def test_full_disk_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    plant(tmp_path, "ppo", FINALS)

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(report, "write_bytes", full)
    with pytest.raises(SystemExit, match="2"):
        report.main(["--results", str(tmp_path)])
    error = capsys.readouterr().err
    assert error == f"error: --results {tmp_path}: [Errno 28] No space left on device\n"


def test_real_run_evaluated_exactly(tmp_path: Path) -> None:
    settings = {"total_timesteps": 2000, "seeds": 3, "results": str(tmp_path), "quiet": True}
    presets = q_learning.PRESETS
    config = from_preset(q_learning.Config, presets, "FrozenLake-v1", **settings)
    folder = RunFolder.of(config, "q_learning")
    run = Run(config, [0, 1, 2], folder.path / "seeds-000-002", "q_learning")
    run.open([q_learning.train])
    summary = run.finish(q_learning.train(config, run))
    page = written(tmp_path)
    finals = list(summary["final"]["greedy"]["per_seed"].values())
    (row,) = table(page, "Final score")
    assert row["mean [95%]"].startswith(f"{np.mean(finals):.3f} ")
    assert row["algorithm"] == "q_learning (not the preset)"
    assert table(page, "Details")[0]["std over episodes"] == "exact"
    assert (tmp_path / "plots/FrozenLake-v1.svg").exists()


# ---- compare.py -----------------------------------------------------------------------


def compared(*words: str | Path) -> None:
    compare.main([str(word) for word in words])


def test_compare_sets_later_runs_against_the_first(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = plant(tmp_path, "ppo", around(485.0, 30)).path
    slower = plant(tmp_path, "sb3-ppo", around(450.0, 30)).path
    short = plant(tmp_path, "ppo", around(485.0, 30), total_timesteps=1024, name="short").path
    picture = tmp_path / "picture.svg"
    compared(first, slower, f"{short}/", "--out", picture)
    out = capsys.readouterr().out
    assert f"worse {-35 / (500 - 22.1):+.3f} [" in out
    assert "equivalent +0.000 [" in out
    assert "trained for other timesteps" in out
    assert "ppo/short" in out
    assert b"<svg" in picture.read_bytes()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["{run}"], "give two runs or more"),
        ([], "RUN"),
        (["{run}", "{run}/"], "given twice"),
        (["{run}", "{tmp}/nowhere"], "no such folder"),
        (["{run}", "{tmp}"], "no finished seeds"),
        (["{run}", "{lake}"], "FrozenLake-v1"),
        (["{run}", "{sb3}", "--out", "{tmp}/x.pdf"], "--out"),
        (["{run}", "{sb3}", "--out", "{tmp}/nowhere/x.svg"], "--out"),
        (["{run}", "{sb3}", "--ou", "{tmp}/x.svg"], "--ou"),
    ],
)
def test_compare_refuses_in_one_line(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
    says: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    folders = {
        "run": plant(tmp_path, "ppo", FINALS).path,
        "sb3": plant(tmp_path, "sb3-ppo", FINALS).path,
        "lake": plant(tmp_path, "q_learning", {0: 0.7, 1: 0.7}, env="FrozenLake-v1").path,
        "tmp": tmp_path,
    }
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(SystemExit, match="2"):
        compared(*(word.format(**folders) for word in words))
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert error.count("\n") == 1
    assert says in error
    assert sorted(tmp_path.rglob("*")) == before


def test_compare_ignores_what_is_not_finished(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = plant(tmp_path, "ppo", FINALS).path
    second = plant(tmp_path, "sb3-ppo", FINALS, sealed=False).path
    with pytest.raises(SystemExit, match="2"):
        compared(first, second, "--out", tmp_path / "x.svg")
    assert "no finished seeds" in capsys.readouterr().err


@pytest.mark.parametrize("sealed", [True, False])
@pytest.mark.parametrize("keep", [0, 1, 100, 0.5, 0.99])
def test_compare_refuses_a_truncated_curve_in_one_line(
    keep: float, sealed: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """sealed: the checksum is that of the truncated file."""
    first = plant(tmp_path, "ppo", FINALS).path
    second = plant(tmp_path, "sb3-ppo", FINALS).path
    file = second / "seeds-000-003/curve.parquet"
    content = file.read_bytes()
    file.write_bytes(content[: int(keep if keep >= 1 else keep * len(content))])
    if sealed:
        seal(file.parent)
    for runs in ((first, second), (second, first), (first, file.parent)):
        with pytest.raises(SystemExit, match="2"):
            compared(*runs, "--out", tmp_path / "x.svg")
        error = capsys.readouterr().err
        assert error.startswith(f"error: {file if sealed else file.parent}: ")
        assert ("cannot be read" if sealed else "is damaged") in error
        assert error.count("\n") == 1
    assert not (tmp_path / "x.svg").exists()


# ---- Two layers -----------------------------------------------------------------------


def test_report_shows_both_layers_and_writes_beside_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    published, local = tmp_path / "results", Path("results/local")
    monkeypatch.setattr(record, "PUBLISHED", published)
    monkeypatch.setattr(report, "PUBLISHED", published)
    plant(published, "ppo", FINALS)
    plant(local, "dqn", FINALS)
    shutil.copy(ROOT / "results/throughput.json", published / "throughput.json")
    report.main(["--note", "a test"])
    page = (local / "README.md").read_text()
    assert [row["algorithm"] for row in table(page, "Final score")] == ["dqn", "ppo"]
    assert "## Speed\n" in page
    for target in (part.split(")")[0] for part in page.split("](")[1:]):
        assert target.startswith("#") or (local / target).exists(), target
    assert not (published / "README.md").exists()
    report.main(["--publish", "--note", "a test"])
    page = (published / "README.md").read_text()
    assert [row["algorithm"] for row in table(page, "Final score")] == ["ppo"]


# ---- Revised verdicts -----------------------------------------------------------------


def test_revised_verdicts_are_those_of_fresh_seeds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both values as they were published, and what 30 fresh seeds a side say; they alone."""
    entry = Revised("ppo", ENV, "final", "worse -0.1", "inconclusive -0.01", "code | changed")
    monkeypatch.setattr(report, "REVISED", (entry, entry._replace(measure="auc")))
    fresh = {1000 + seed: score for seed, score in around(485.0, 30).items()}
    plant(tmp_path, "ppo", around(450.0) | fresh)
    plant(tmp_path, "sb3-ppo", around(485.0) | fresh)
    page = written(tmp_path)
    ours, theirs = table(page, "Final score")
    assert (ours["n"], theirs["n"]) == ("10 of 30", "10 of 20")  # the fresh ones do not count
    rows = page.split("## Revised verdicts\n\n")[1].split("\n\n")[1].splitlines()[2:]
    assert len(rows) == 2
    assert "| worse -0.1 | inconclusive -0.01 | " in rows[0]
    assert "| equivalent +0.000 [" in rows[0]
    assert "| learning speed (AUC) |" in rows[1]


def test_without_fresh_seeds_nothing_is_revised(tmp_path: Path) -> None:
    plant(tmp_path, "ppo", around(450.0))
    assert "## Revised verdicts" not in written(tmp_path)


def test_a_run_of_fresh_seeds_alone_is_shown(tmp_path: Path) -> None:
    plant(tmp_path, "ppo", {1000: 480.0, 1001: 490.0})
    (row,) = table(written(tmp_path), "Final score")
    assert row["n"] == "2 of 30"
