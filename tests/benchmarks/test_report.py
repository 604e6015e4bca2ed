"""The report and the comparison, on small stores whose every number can be worked out by hand."""

from __future__ import annotations

import errno
import importlib
import math
import re
import shutil
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any
from unittest import mock
from urllib.parse import unquote

import numpy as np
import pandas as pd
import pytest

from manyseeds import envs, plots, record, stats
from manyseeds.algos import a2c, q_learning
from manyseeds.benchmarks import compare, report
from manyseeds.benchmarks.chapters import (
    differences,
    environment_pages,
    evidence,
    front_page,
    markdown,
    speed,
)
from manyseeds.benchmarks.chapters.blocks import (
    OURS,
    Claim,
    Figure,
    Fold,
    Heading,
    Outcome,
    Page,
    Table,
    Text,
    text_of,
)
from manyseeds.benchmarks.chapters.contents import CHAPTERS
from manyseeds.benchmarks.chapters.environment_pages import page_name
from manyseeds.benchmarks.chapters.markdown import Writer
from manyseeds.benchmarks.experiments import verdicts
from manyseeds.benchmarks.experiments.revised import Revised
from manyseeds.benchmarks.experiments.suite import COMMON, SUITES, Cell
from manyseeds.benchmarks.store import comparison
from manyseeds.benchmarks.store.names import display
from manyseeds.benchmarks.store.whole import beside, read_store
from manyseeds.cli import from_preset, identity
from manyseeds.digest import ROOT
from manyseeds.errors import UsageError
from manyseeds.record import SCHEMA, RunFolder, part_name, provenance, read_json, seal
from manyseeds.runs import control
from manyseeds.runs.control import Run
from manyseeds.worth import scores_file
from manyseeds.writing import parquet_bytes, write_bytes, write_json
from tests.benchmarks.conftest import Output, Patch, Refusal

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
    speed: float | None = None,
    **settings: Any,
) -> RunFolder:
    """A finished run of `algo` (sb3-ppo: SB3's); a curve is RANDOM, middle, final at 0, T/2, T.

    Sampled scores are 10 below the greedy ones, and episodes spread by 7. speed: timesteps per
    second of a seed; evaluations take half as long as learning. rejax-ppo is another library's.
    """
    library, _, name = algo.rpartition("-")
    trained_by = f"manyseeds.algos.{algo}"
    if library:
        trained_by = f"manyseeds.benchmarks.baselines.{library}_baseline"
    module = importlib.import_module(f"manyseeds.algos.{name}")
    config = from_preset(module.Config, module.PRESETS, env, results=str(results), **settings)
    folder = RunFolder.of(config, algo)
    T = config.total_timesteps
    origin = provenance([f"{trained_by}:train"], kind=Run.kind_origins())
    origin["code"] |= {"digest": digest or origin["code"]["digest"], "commit": "c0ffee"}
    header = {"schema": SCHEMA, "kind": "control", "source": "manyseeds", "algo": algo, "env": env}
    header |= {"config": identity(config), "execution": {"device": "cpu", "threads": 1}, **origin}
    names = ["seed", "timestep", "return_mean", "return_std", "episodes", "mode"]
    for seeds in parts or [list(finals)]:
        part = folder.path / part_name(seeds)
        part.mkdir(parents=True)
        rows: list[tuple[Any, ...]] = []
        for seed in seeds:
            points = [(0, RANDOM, 32), (T // 2, middle, 32), (T, finals[seed], 32)]
            points += [(T, finals[seed], 100)]
            rows += [(seed, t, score, 7.0, episodes, "greedy") for t, score, episodes in points]
            rows.append((seed, T, finals[seed] - 10, 7.0, 100, "sampled"))
            rows.append((seed, T, -1.0, math.nan, 0, "train"))
        curve = pd.DataFrame(rows, columns=names)
        write_bytes(part / "curve.parquet", parquet_bytes(curve))
        command = f"python the-command-of {algo} {part.name}"
        write_json(part / "config.json", {**header, "seeds": list(seeds), "command": command})
        final = {
            mode: {"episodes": 100, "per_seed": {str(s): finals[s] - minus for s in seeds}}
            for mode, minus in (("greedy", 0), ("sampled", 10))
        }
        summary = {"seeds": list(seeds), "final": final, "timesteps_per_seed": T}
        if speed:
            summary["timesteps_per_second"] = speed * len(seeds)
            summary |= {"learn_seconds": T / speed, "total_seconds": 1.5 * T / speed}
        summary["diverged"] = {str(s): t for s, t in (diverged or {}).items() if s in seeds}
        write_json(part / "summary.json", summary)
        if sealed:
            seal(part)
    return folder


def around(mean: float, n: int = 10) -> dict[int, float]:
    """n finals, half a point below and above `mean`."""
    return {seed: mean + (0.5 if seed % 2 else -0.5) for seed in range(n)}


def table(page: str, title: str) -> list[dict[str, str]]:
    """The rows of the first table under a heading, without the anchors of rows."""
    lines = [x for x in page.split(f"# {title}\n\n")[1].splitlines() if x[:1] in ("|", "#")]
    end = next((i for i, line in enumerate(lines) if line.startswith("#")), len(lines))
    lines = [re.sub(r'<a id="[^"]*"></a>', "", line) for line in lines[:end]]
    lines = [line.replace("\N{NO-BREAK SPACE}", " ") for line in lines]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return [dict(zip(cells[0], row, strict=True)) for row in cells[2:]]


def written(results: Path, env: str = ENV, note: str = "") -> str:
    """The page of an environment, of a whole report."""
    report.report(results, note)
    return (results / page_name(env)).read_text()


def front(results: Path, note: str = "") -> str:
    """README.md."""
    report.report(results, note)
    return (results / "README.md").read_text()


def side(row: dict[str, str], column: str, of: int = 0) -> str:
    """The line of a cell that is ours (0) or SB3's (1)."""
    return row[column].split("<br>")[of]


FINAL, AUC = "final score, mean [95%]", "AUC, mean [95%]"
BUDGETS = "At an equal budget"
MATRIX, COLUMN = "Which algorithm for which environment", f"[{ENV}](environments/{ENV}.md)"


# ---- Numbers --------------------------------------------------------------------------


def test_numbers_are_those_of_the_data(tmp_path: Path, monkeypatch: Patch, capsys: Output) -> None:
    """On the page, in the terminal and, not rounded, in the tables for programs."""
    monkeypatch.setattr(verdicts, "LOOKS", (4,))
    plant(tmp_path, "ppo", FINALS, diverged={2: 512}, parts=[[0, 1], [1, 2, 3]], speed=1000)
    plant(tmp_path, "ppo", {0: 480.0, 1: 490.0, 2: 500.0}, gamma=0.9)
    plant(tmp_path, "sb3-ppo", FINALS)
    report.main(["--results", str(tmp_path)])
    out = capsys.readouterr().out
    assert "275.5 [" in out  # seed 2 has diverged, and counts as a random policy
    assert "392.5 [" in out
    assert f"page: {tmp_path}/environments/CartPole-v1.md" in out
    assert "missing: sb3-ppo on CartPole-v1, 30 seeds: 4-29" in out
    page = (tmp_path / page_name(ENV)).read_text()
    assert page.startswith(f"{report.MARK}\n\n← [Results](../README.md)\n\n# {ENV}\n")
    assert "- seeds 1-3: `python the-command-of ppo seeds-001-003`" in page
    note = "<sub>Intervals from few seeds cover less than 95%: of 4 seeds 59 to 88%. This table as"
    assert page.count(note) == 2  # Scores and Details
    (row,), (details,) = table(page, "Scores"), table(page, "Details")
    assert row["algorithm"] == "PPO<br>SB3's PPO"
    assert row["n"] == details["n"] == "4 of 30<br>4 of 30"  # a seed in two parts counts once
    assert [row["n"] for row in table(page, BUDGETS)] == ["4<br>4"]
    assert [row["n"] for row in table(page, "Other runs")] == ["3"]
    assert side(row, "failures").startswith("2 of 4 (1 diverged), at most ")
    assert side(row, "timesteps to threshold (seeds)") == "100,000 (2 of 4)"
    assert row["core-seconds to threshold"] == "33.3<br>-"  # by the part of three seeds
    counted = [22.1 if seed == 2 else final for seed, final in FINALS.items()]
    for cell, begin in {
        row[FINAL]: "275.5 [",
        row["timesteps"]: "100,000",
        # Means of the trapezoids (20 + 300) / 2 and (300 + final) / 2: 275, 280, and 180, and of
        # (20 + 22.1) / 2 and 22.1: 21.6.
        row[AUC]: "189.1 [",
        details["AUC, IQM [95%]"]: "227.5 [",
        # Sorted: 22.1, 100, 480, 500. Half of four seeds is cut, one at each end.
        details["final score, IQM [95%]"]: f"{stats.estimate(counted).text()}<br>",
        details["sampled actions, IQM [95%]"]: "280.0 [",
        details["std over seeds"]: "249.8",  # √((204.5² + 224.5² + 253.4² + 175.5²) / 3)
        details["std over episodes"]: "7.0",
        details["worst seed"]: "22.1",
    }.items():
        assert cell.startswith(begin)

    seeds = pd.read_csv(tmp_path / "tables/seeds.csv")
    ours = seeds[seeds["algo"] == "ppo"].head(4)
    assert list(ours["seed"]) == [0, 1, 2, 3]
    assert list(ours["final"]) == counted
    assert list(ours["auc"]) == [275.0, 280.0, pytest.approx(21.6, abs=0.1), 180.0]
    assert list(ours["late"]) == counted  # of three evaluations the last one
    assert list(ours["core_seconds_to_threshold"].dropna()) == [pytest.approx(100_000 / 3000)] * 2
    assert list(ours["failed"]) == [False, False, True, True]
    assert list(ours["diverged_at"].dropna()) == [512]
    scores = pd.read_csv(tmp_path / "tables/scores.csv").loc[0]
    assert (scores["algo"], scores["final_iqm"]) == ("ppo", 290.0)
    assert scores["final_mean_low"] == stats.estimate(ours["final"], "mean").low
    judged = pd.read_csv(tmp_path / "tables/verdicts.csv").set_index("measure")
    difference = pytest.approx((22.1 - 490) / 4 / (500 - 22.1))
    assert (judged.loc["late", "difference"], judged.loc["late", "look"]) == (difference, 4)


def test_core_seconds_name_their_machines() -> None:
    """The most frequent one, then the runs of each other."""

    spec = envs.make(ENV).spec

    def timed(algo: str, machine: str, steps: float = 1.0) -> Any:
        fastest, reached = (1.0, machine), np.array([steps])
        return SimpleNamespace(algo=algo, fastest=fastest, spec=spec, reached=reached)

    results = [timed("ppo", "B"), timed("sb3-ppo", "A"), timed("a2c", "A"), timed("ppo", "B")]
    (note,) = environment_pages.core_seconds_note([*results, timed("trpo", "A")])
    assert "while other processes ran, on A; those of PPO on B." in str(note)
    assert "SB3 one at a time" in str(note)
    (ours,) = environment_pages.core_seconds_note([timed("ppo", "B")])
    assert "SB3" not in str(ours)
    for unknown in (
        SimpleNamespace(algo="ppo", fastest=None),
        timed("ppo", "A", math.nan),
    ):
        nothing: list[Any] = [unknown]
        assert not [*environment_pages.core_seconds_note(nothing)]


# ---- Verdicts and failures ------------------------------------------------------------

SAME = dict.fromkeys(range(30), 500.0)
# Scores at the end, of ours and of SB3's, then the word, how its text begins and how it ends.
VERDICTS: dict[tuple[str, str], Any] = {
    ("trpo", ENV): (around(485, 30), around(450, 60), "better", "+0.073 [", "n=30 and 30"),
    ("ppo", "Acrobot-v1"): (
        *(around(-75.0, 60), around(-74.0, 60), "equivalent", "-0.002 ["),
        ", n=60 and 60",
    ),
    ("ppo", ENV): (around(450, 30), around(485, 60), "worse", "-0.073 [", "n=30 and 30"),
    ("dqn", ENV): (
        *(SAME, SAME | {5: 100.0}, "undecided", "+0.028 ["),
        ", n=30 and 30; next look at 60",
    ),
    # Those of SB3's A2C and PPO cannot be told apart there.
    ("a2c", ENV): (
        *(dict.fromkeys(range(60), 500.0), dict.fromkeys(range(60), 500.0), "ceiling"),
        *("+0.000 [", "n=60 and 60"),
    ),
}


def test_a_verdict_of_each_kind(tmp_path: Path) -> None:
    for (algo, env), (ours, theirs, *_) in VERDICTS.items():
        scale = 1.0 if env == ENV else -1.0
        plant(tmp_path, algo, ours, env=env, middle=200.0 * scale)
        plant(tmp_path, f"sb3-{algo}", theirs, env=env, middle=400.0 * scale)
    page = front(tmp_path)
    matrix = {row[""].strip("*"): row for row in table(page, MATRIX)}
    text = (tmp_path / "verdicts.md").read_text()
    for (algo, env), (_, _, word, begin, end) in VERDICTS.items():
        (row,) = (
            row
            for row in table((tmp_path / page_name(env)).read_text(), "Scores")
            if row["algorithm"].startswith(f"{display(algo)}<br>")
        )
        assert row["late score against SB3"].startswith(f"**{word}**<br>")
        assert algo != "a2c" or row["AUC against SB3"].startswith("**worse**<br>-0.209 [")
        (row,) = (
            row
            for row in table(text, "All verdicts")
            if row["environment"] == env and row["algorithm"].startswith(f"[{display(algo)}]")
        )
        assert row["late score"].startswith(f"{word} {begin}")
        assert row["late score"].replace("\\", "").endswith(end)
        speed = row["learning speed (AUC)"].split(" ")[0]
        shown = matrix[display(algo)][f"[{env}](environments/{env}.md)"]
        assert f" {front_page.SIGNS[speed]}" in shown
    counts = ", ".join(f"{word} in 1" for word in evidence.WORDS)
    counts = counts.replace("ceiling", "at the ceiling")
    assert f"The late score, the mean of the last fifth of training, is {counts}." in page
    assert "learning speed is better in 1, worse in 4" in page
    assert "`python benchmarks/verify.py` trains published seeds of ours again" in page
    _, late = table(text, "Together")
    assert [late[word] for word in (*evidence.WORDS, "differ")] == [*"11111", "2 of 4"]


def test_a_diverged_seed_is_never_the_best(tmp_path: Path) -> None:
    plant(tmp_path, "ppo", around(499.0), diverged={3: 99_999})
    plant(tmp_path, "a2c", around(300.0))
    shown = {row[""]: row[COLUMN] for row in table(front(tmp_path), MATRIX)}
    assert shown["**PPO**"].startswith("[0.90]")  # (499 - 22.1) / (500 - 22.1), and one at 0
    assert shown["**A2C**"].startswith("**[0.23]")  # (300 - 20) 2 / 5 at 100k of 500k
    assert shown["**A2C**"].endswith("100k; 0.58 at 500k")


def test_failures_are_counted_and_named(tmp_path: Path) -> None:
    """Without a threshold, as Pendulum: those with a normalised score below 0.1. A return that is
    not finite counts as random."""
    plant(tmp_path, "ppo", {0: 480.0, 1: 9.4, 2: 300.0}, diverged={1: 12_032})
    plant(tmp_path, "a2c", {0: 480.0, 1: math.nan}, diverged={1: 256})
    spec = envs.make("Pendulum-v1").spec
    assert spec.random_score is not None
    assert spec.reference_score is not None
    floor = spec.random_score + 0.9 * (spec.reference_score - spec.random_score)
    plant(tmp_path, "ppo", {0: floor - 1, 1: floor + 1}, env="Pendulum-v1")
    page = written(tmp_path)
    ppo, a2c = table(page, "Scores")
    assert ppo["failures"] == "2 of 3 (1 diverged), at most 99%"
    assert "seed 1 (9.4, diverged at timestep 12,032), seed 2 (300.0)" in page
    assert a2c[FINAL].startswith(f"{(480 + 22.1) / 2:.1f} [")
    assert a2c["failures"] == "1 of 2 (1 diverged), at most 98%"
    page = (tmp_path / page_name("Pendulum-v1")).read_text()
    assert table(page, "Scores")[0]["failures"] == "1 of 2, at most 98%"
    assert f"- PPO: seed 0 ({floor - 1:.1f})" in page


# ---- The store ------------------------------------------------------------------------


def test_headline_is_the_preset_whatever_else_there_is(tmp_path: Path) -> None:
    """Without it the headline says so. SB3 is set against the run with its hyperparameters."""
    plant(tmp_path, "ppo", around(400.0, 20), gamma=0.9)
    plant(tmp_path, "sb3-ppo", around(400.0), gamma=0.9)
    plant(tmp_path, "ppo", around(490.0))
    plant(tmp_path, "a2c", around(490.0), total_timesteps=20_000)
    plant(tmp_path, "a2c", around(490.0, 2), gamma=0.9)
    plant(tmp_path, "dqn", {0: 480.0})
    plant(tmp_path, "sb3-dqn", {0: 480.0})
    page = written(tmp_path)
    ppo, a2c, dqn = table(page, "Scores")
    assert ppo[FINAL].startswith("490.0")
    assert ppo["AUC against SB3"] == "no SB3 run"
    other = table(page, "Other runs")[0]
    assert side(other, "mean [95%]").startswith("400.0")
    assert other["settings"] == "gamma 0.9 (not 0.98)"
    assert (a2c["algorithm"], a2c["n"]) == ("A2C (not the preset)", "10")
    assert "not the preset: total_timesteps 20000 (not 500000)" in page
    assert side(dqn, FINAL) == "480.0 (no interval, n=1)"
    assert dqn["AUC against SB3"] == "none (needs 30 seeds per side)"


def test_a_published_score_stands_beside_the_preset_only(tmp_path: Path) -> None:
    plant(tmp_path / "preset", "ppo", around(490.0))
    (row,) = table(written(tmp_path / "preset"), BUDGETS)
    assert "500.0 +- 0.0, one agent (rl-baselines3-zoo" in row["published"]
    plant(tmp_path / "other", "ppo", around(490.0), eval_budget=0.5)
    page = written(tmp_path / "other")
    assert table(page, "Scores")[0]["algorithm"] == "PPO (not the preset)"
    assert BUDGETS not in page


@pytest.mark.parametrize(("score", "result"), [(480.0, "met"), (470.0, "missed")])
def test_targets_of_the_suites(
    tmp_path: Path, monkeypatch: Patch, score: float, result: str
) -> None:
    monkeypatch.setattr(comparison, "SUITES", SUITES)
    plant(tmp_path, "grpo", {0: score})
    plant(tmp_path, "rainbow", {**dict.fromkeys(range(9), 500.0), 9: score, 10: 400.0})
    grpo, rainbow = table(written(tmp_path), "Targets")
    assert (grpo["algorithm"], grpo["target"], grpo["result"]) == ("GRPO", "mean 475", result)
    assert rainbow["final score"] == f"{10 if result == 'met' else 9} of 11 seeds"
    assert (rainbow["target"], rainbow["result"]) == ("475 in 90% of seeds", result)


def test_presets_that_no_suite_trains_are_named(monkeypatch: Patch) -> None:
    monkeypatch.setattr(comparison, "SUITES", {"some": (Cell("sac", "Pendulum-v1", 30),)})
    found = comparison.untrained_presets()
    assert "td3 on Pendulum-v1, 20,000 timesteps" in found
    assert not any(x.startswith("sac on Pendulum-v1") for x in found)
    assert any(x.startswith("sac on MountainCarContinuous-v0") for x in found)


def test_without_a_threshold_steps_are_to_the_bar_of_failures(tmp_path: Path) -> None:
    """On Pendulum -258.2 is a normalised score of 0.9: PPO ends above it, A2C below."""
    plant(tmp_path, "ppo", around(-200.0), env="Pendulum-v1", middle=-1000.0)
    plant(tmp_path, "a2c", around(-400.0), env="Pendulum-v1", middle=-200.0)
    (ppo, a2c) = table(written(tmp_path, "Pendulum-v1"), "Scores")
    assert ppo["timesteps to 0.9 (seeds)"] == "100,000 (10 of 10)"
    assert a2c["timesteps to 0.9 (seeds)"] == "never (0 of 10)"
    assert "core-seconds to 0.9" in ppo


def test_scores_at_an_equal_budget(tmp_path: Path) -> None:
    """A shorter run's final scores beside a longer one's evaluations at that time."""
    plant(tmp_path, "ppo", {0: 480.0, 1: 490.0})
    plant(tmp_path, "a2c", {0: 500.0, 1: 500.0})
    ppo, a2c = table(written(tmp_path), BUDGETS)
    assert ppo["100,000"].startswith("**485.0 [")
    assert ppo["500,000"] == ""
    assert a2c["500,000"].startswith("**500.0 [")
    assert a2c["100,000"].startswith(f"{RANDOM + 0.4 * (300.0 - RANDOM):.1f} [")  # of 500,000


def test_code_of_another_day_is_marked_stale(tmp_path: Path) -> None:
    plant(tmp_path, "ppo", FINALS)
    plant(tmp_path, "sb3-ppo", FINALS, digest="0123456789ab")
    page = written(tmp_path)
    assert table(page, "Scores")[0]["algorithm"] == "PPO<br>SB3's PPO (stale)"
    assert front_page.STALE in table((tmp_path / "README.md").read_text(), MATRIX)[0][COLUMN]
    assert "<summary>2 runs, 1 of them stale</summary>" in page
    assert "code 0123456789ab (stale), commit c0ffee" in page
    assert list(pd.read_csv(tmp_path / "tables/scores.csv")["stale"]) == [False, True]


@pytest.mark.parametrize("digest", [None, "0123456789ab"])
def test_every_page_with_scores_of_stale_runs_says_so(tmp_path: Path, digest: str | None) -> None:
    common = COMMON["ppo", ENV]
    for algo in ("ppo", "sb3-ppo", "a2c", "sb3-a2c", "dqn", "sb3-dqn", "sac_discrete"):
        for env in (ENV, "Acrobot-v1"):
            plant(tmp_path, algo, around(300.0, 30), env=env, digest=digest)
    for algo in ("ppo", "rejax-ppo"):
        plant(tmp_path, algo, around(300.0, 30), digest=digest, **common)
    report.report(tmp_path)
    pages = {path.name: path.read_text() for path in generated(tmp_path)}
    del pages["missing.md"]
    shown = {f"{ENV}.md", "Acrobot-v1.md", "README.md", "verdicts.md", "aggregate.md"}
    assert {"failures.md", "interchange.md", *shown} == set(pages)
    for name, page in pages.items():
        without_key = page.replace("† stale,", "").replace("**Stale** marks", "")
        assert bool(re.search(r"stale\b|†", without_key)) is bool(digest), name
        judged = name not in ("README.md", "aggregate.md", "failures.md")
        assert page.count(str(differences.RULE[0])) == judged, name


def markup(page: str) -> str:
    """What of a page is not escaped, and stands in no code span."""
    page = re.sub(r"(?<![\\`])(`+)(?!`).*?(?<!`)\1(?!`)", "", page)
    return re.sub(r"\\.", "", page)


def targets_of(page: Path) -> list[str]:
    """What the links and pictures of a page lead to."""
    return re.findall(r"\]\(([^)]*)\)", markup(page.read_text()))


def check_links(results: Path) -> set[Path]:
    """Follow every link of every page from README.md on, to files, anchors and headings; the pages
    that are reached."""
    reached, waiting = set(), [(results / "README.md").resolve()]
    while waiting:
        page = waiting.pop()
        reached.add(page)
        for target in targets_of(page):
            path, _, anchor = unquote(target).partition("#")
            file = (page.parent / path).resolve() if path else page
            assert file.exists(), f"{page}: {target}"
            if anchor:
                text = file.read_text()
                heads = (x.lstrip("# ") for x in text.splitlines() if x.startswith("#"))
                slugs = {re.sub(r"[^\w -]", "", x.lower()).replace(" ", "-") for x in heads}
                assert f'<a id="{anchor}"></a>' in text or anchor in slugs, f"{page}: {target}"
            if file.suffix == ".md" and file not in reached:
                waiting.append(file)
    return reached


def generated(results: Path) -> set[Path]:
    return {x.resolve() for x in results.rglob("*.md") if x.read_text().startswith(report.MARK)}


def test_every_link_of_every_page_leads_somewhere(tmp_path: Path) -> None:
    """And every page can be reached from the first, and leads back."""
    plant(tmp_path, "ppo", around(485.0))
    plant(tmp_path, "sb3-ppo", around(485.0))
    plant(tmp_path, "a2c", around(-200.0), env="Pendulum-v1")
    plant(tmp_path, "sarsa", around(8.0), env="Taxi-v4")
    measured = {
        "throughput.json": ("speed.md", "| manyseeds | 10 | "),
        "tables/check.json": (
            "environments.md",
            "these commands train them: `python algos/ppo.py --env CartPole-v1 --seeds 10`, ",
        ),
        "error_rates.json": ("verdicts.md", "| one in ten fails | mean |"),
    }
    (tmp_path / "tables").mkdir()
    for name in measured:
        shutil.copy(ROOT / "results" / name, tmp_path / name)
    assert "../plots/CartPole-v1.svg" in written(tmp_path)
    for file, row in measured.values():
        assert row in (tmp_path / file).read_text()
    assert check_links(tmp_path) == generated(tmp_path)
    assert len(generated(tmp_path)) == 1 + 3 + 4  # environments; verdicts, speed, check, missing
    for path in generated(tmp_path) - {(tmp_path / "README.md").resolve()}:
        back = "../README.md" if path.parent.name == "environments" else "README.md"
        assert f"← [Results]({back})\n" in path.read_text()


def test_links_of_the_published_pages_lead_somewhere() -> None:
    own = {x.resolve() for x in (ROOT / "results" / "local").rglob("*.md")}
    assert check_links(ROOT / "results") == generated(ROOT / "results") - own


def test_publishing_removes_figures_and_tables_of_a_former_report_and_no_other_file(
    tmp_path: Path, monkeypatch: Patch, capsys: Output
) -> None:
    """What is written stays, under any link to the folder; so do files of other commands."""
    results = tmp_path / "results"
    plant(results, "ppo", FINALS)
    written(results)
    first = {path for name in ("plots", "tables") for path in (results / name).iterdir()}
    mine = [results / x for x in ("tables/other.json", "tables/check.md", "x.svg", "runs/x.csv")]
    mine += [results / "plots/deep/x.svg", tmp_path / "x.svg"]
    mine += [results / "notes.md", results / "environments/notes.md"]
    names = ("plots/old.png", "plots/old.svg", "tables/old.csv", "tables/old.tex")
    former = [results / name for name in names]
    gone = results / "environments/Taxi-v4.md"
    for path in (*mine, *former, gone):
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"{'# Notes' * (path != gone)}\n{report.MARK}\n".lstrip())
    (linked := tmp_path / "linked").symlink_to(results)
    monkeypatch.setattr(report, "PUBLISHED", linked)

    def removed(*words: str) -> list[str]:
        """What a report says that it removes."""
        capsys.readouterr()
        report.main([*words])
        assert all(path.exists() for path in (*mine, *first))
        said = capsys.readouterr().out.splitlines()
        return [line.removeprefix("removed: ") for line in said if line.startswith("removed: ")]

    assert removed("--results", str(results)) == [str(gone)]
    assert removed("--publish", "--env", ENV) == []
    assert all(path.exists() for path in former)
    assert removed("--publish") == [f"{linked}/{name}" for name in names]
    assert not any(path.exists() for path in former)
    assert removed("--publish") == []
    (results / "margins.json").write_text("{}")
    with pytest.raises(SystemExit):
        report.main(["--publish"])
    assert "error: the pages that were published lack " in capsys.readouterr().err


def test_one_environment_alone(tmp_path: Path, capsys: Output, refusal: Refusal) -> None:
    plant(tmp_path, "ppo", FINALS)
    plant(tmp_path, "ppo", around(-200.0), env="Pendulum-v1")
    report.main(["--results", str(tmp_path), "--env", ENV])
    assert [path.name for path in tmp_path.rglob("*.md")] == [f"{ENV}.md"]
    assert "Pendulum" not in capsys.readouterr().out
    alone = (tmp_path / page_name(ENV)).read_text()
    assert written(tmp_path) == alone
    error = refusal(report.main, "--results", tmp_path, "--env", "Pendulum")
    assert "did you mean Pendulum-v1?" in error
    (part,) = plant(tmp_path, "ppo", FINALS, env="Acrobot-v1").path.iterdir()
    write_bytes(part / "curve.parquet", b"")
    seal(part)
    error = refusal(report.main, "--results", tmp_path, "--env", "Acrobot-v1")
    assert "no valid control run" in error


# ---- The first page -------------------------------------------------------------------


def test_the_first_page_is_short() -> None:
    page = (ROOT / "results/README.md").read_text()
    assert page.count("![") == 1
    assert len(re.sub(r"\]\([^)]*\)", "", page)) < 8000


@pytest.mark.parametrize(
    ("readme", "page"),
    [
        ("README.md", "results/README.md"),
        ("llm_track/README.md", "results/language-claims.md"),
    ],
)
def test_readmes_have_the_outcome_of_the_report(readme: str, page: str) -> None:
    text = (ROOT / readme).read_text().split(front_page.BEGIN)[1].split(front_page.END)[0]
    parts = re.split(r"\*\*|\n\n|\n- ", text.replace("](results/", "]("))
    published = (ROOT / page).read_text()
    assert len(parts) > 20
    assert [part for part in parts if part.strip(" -:.\n") not in published] == []


def test_the_readme_has_the_speeds_that_were_measured() -> None:
    stored = read_json(ROOT / "results/throughput.json")
    begin, end = front_page.SPEED
    shown = (ROOT / "README.md").read_text().split(f"{begin}\n")[1].split(f"\n{end}")[0]
    assert shown == Writer(ROOT / "results", ROOT).blocks(speed.for_readme(stored))
    words = {6: "a sixth", 5: "a fifth", 7: "a seventh"}
    of_ten = speed.against_sb3(stored)["ppo"]["manyseeds"]["ratio"]
    said = f"ten seeds of PPO take {words[round(of_ten / 10)]} of the time that SB3 takes for one"
    assert said in " ".join((ROOT / "README.md").read_text().split())


def test_the_questions_have_the_speeds_that_were_measured() -> None:
    stored = read_json(ROOT / "results/throughput.json")
    longer = {}
    for algo in ("ppo", "a2c"):
        one, ten = (
            speed.against_sb3(stored, n)[algo]["manyseeds"]["timesteps_per_s"] for n in (1, 10)
        )
        longer[algo] = 10 * one / ten
    assert round(longer["a2c"]) == 2
    said = (
        f"ten seeds of PPO take {longer['ppo']:.1f} times as long as one, and ten of A2C twice as"
    )
    assert said in " ".join((ROOT / "docs/questions.md").read_text().split())


def test_an_excerpt_has_the_outcome_and_the_first_matrix_with_its_key() -> None:
    matrix, other = (Table(name, ("a",), [("1",)]) for name in ("matrix", "other"))
    blocks = [Text("b"), Outcome("c"), Heading("d"), matrix, front_page.KEY, other, Text("e")]
    assert front_page.excerpt(blocks) == [Text("c"), Table("", ("a",), [("1",)]), front_page.KEY]


def test_claims_of_papers_are_counted() -> None:
    """Of all pages; what is our own question is no claim of a paper."""
    card = partial(Claim, claim="claim", source="a paper")
    pages = [
        Page("a.md", "A", [card(verdict="holds"), Fold("more", [card(verdict="in part")])]),
        Page("b.md", "B", [Claim("claim", "holds", source=f"{OURS}; and more"), Text("b")]),
        Page("c.md", "C", [card(verdict="holds"), Claim("claim", "not shown")]),
    ]
    _, outcome = front_page.what_papers_claim(pages)
    assert isinstance(outcome, Outcome)
    said = "Of 3 claims of papers, 2 hold, 1 holds in part: A, C."
    assert text_of(outcome.text) == said
    assert not [*front_page.what_papers_claim(pages[1:2])]


def test_publishing_renews_the_outcome_of_the_readme(tmp_path: Path) -> None:
    readme = tmp_path / "README.md"
    readme.write_text(f"a\n{front_page.BEGIN}\nold\n{front_page.END}\nb\n")
    front_page.update_readme(readme, "new")
    assert readme.read_text() == f"a\n{front_page.BEGIN}\nnew\n{front_page.END}\nb\n"
    readme.write_text("mine")
    front_page.update_readme(readme, "new")
    assert readme.read_text() == "mine"


def test_the_matrix_says_what_is_best_missing_and_does_not_apply(tmp_path: Path) -> None:
    plant(tmp_path, "ppo", around(490.0))
    plant(tmp_path, "a2c", around(400.0))
    plant(tmp_path, "dqn", around(-120.0), env="MountainCar-v0")
    plant(tmp_path, "sb3-trpo", around(490.0))
    plant(tmp_path, "ppo", around(-200.0), env="Pendulum-v1")
    plant(tmp_path, "sarsa", around(0.7), env="FrozenLake-v1")
    page = front(tmp_path)
    rows = {row[""].strip("*"): row for row in table(page, MATRIX)}
    pendulum = "[Pendulum-v1](environments/Pendulum-v1.md)"
    assert list(rows) == ["PPO", "A2C", "TRPO", "DQN"]
    few = f" {front_page.FEW}<br>"
    assert rows["PPO"][COLUMN] == f"**[0.98](environments/{ENV}.md#ppo)**{few}100k"
    assert rows["A2C"][COLUMN].startswith(f"[0.23](environments/{ENV}.md#a2c)")
    assert rows["TRPO"][COLUMN] == f"[missing](environments/{ENV}.md#trpo)"
    assert rows["DQN"][COLUMN] == "missing"
    assert rows["DQN"][pendulum] == "-"
    (sarsa,) = table(page, "Tabular algorithms")
    assert "[0.94](environments/FrozenLake-v1.md#sarsa)" in " ".join(sarsa.values())


def test_those_not_shown_to_be_less_lead_together(tmp_path: Path) -> None:
    for algo, mean in (("ppo", 485.0), ("trpo", 484.9), ("reinforce", 300.0)):
        plant(tmp_path, algo, around(mean, 30), middle=mean, total_timesteps=100_000)
    assert front_page.standing(read_store(tmp_path).found).leaders == {"ppo", "trpo"}


def test_an_environment_says_what_its_reference_is(tmp_path: Path) -> None:
    """With our best mean where it is that of one published agent."""
    plant(tmp_path, "ppo", around(-101.0), env="MountainCar-v0")
    plant(tmp_path, "a2c", around(-120.0), env="MountainCar-v0")
    plant(tmp_path, "ppo", around(490.0))
    pages = [written(tmp_path, env) for env in (ENV, "MountainCar-v0")]
    assert "reference 500. The reference is the highest possible mean return.\n" in pages[0]
    assert "reference -100.8. The reference is that of one agent of DQN in rl-" in pages[1]
    assert "mean of our runs is that of PPO, -101.0 after 1,000,000 timesteps (n = 10)" in pages[1]


def test_the_matrix_compares_after_as_many_timesteps(tmp_path: Path) -> None:
    """A2C leads at the common budget, of those that train for as long; DQN leads after its own."""
    plant(tmp_path, "ppo", around(490.0), middle=490.0, total_timesteps=100_000)
    plant(tmp_path, "a2c", around(495.0), middle=300.0, total_timesteps=100_000)
    plant(tmp_path, "dqn", around(490.3), middle=200.0, total_timesteps=50_000)
    shown = {row[""].strip("*"): row[COLUMN] for row in table(front(tmp_path), MATRIX)}
    link, few = f"environments/{ENV}.md", f" {front_page.FEW}<br>"
    assert shown["PPO"] == f"[0.98]({link}#ppo){few}100k, **0.98** at 50k"
    assert shown["A2C"] == f"**[0.99]({link}#a2c)**<br>100k, 0.58 at 50k"
    assert shown["DQN"] == f"**[0.98]({link}#dqn)**{few}50k"


def test_same_store_gives_the_same_bytes(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    plant(first, "ppo", FINALS)
    plant(first, "sb3-ppo", around(485.0))
    shutil.copytree(first, second)
    for results in (first, second, second):
        report.report(results)
    files = {path.relative_to(first) for path in first.rglob("*") if path.is_file()}
    assert {Path("plots/CartPole-v1.svg"), Path("tables/environment-CartPole-v1.tex")} < files
    for file in files:
        assert (first / file).read_bytes() == (second / file).read_bytes(), file


def test_note_stands_at_the_top_and_replaces_the_missing_cells(
    tmp_path: Path, monkeypatch: Patch
) -> None:
    plant(tmp_path, "ppo", FINALS)
    assert "(missing.md)" in front(tmp_path)
    assert "\n| ppo on CartPole-v1, 30 seeds | 4-29 | " in (tmp_path / "missing.md").read_text()
    page = front(tmp_path, note="A cut, never to be quoted.")
    assert page.startswith(f"{report.MARK}\n\n# Results\n\n**A cut, never to be quoted.**\n")
    assert "missing.md" not in page
    assert not (tmp_path / "missing.md").exists()
    suites = {str(seeds): (Cell("ppo", ENV, seeds),) for seeds in (10, 30, 20)}
    monkeypatch.setattr(comparison, "SUITES", suites)
    (missing,) = comparison.missing_cells(tmp_path, [])
    assert str(missing) == f"ppo on {ENV}, 30 seeds: 0-29"


def test_environment_of_somebody_else_is_shown_as_far_as_it_is_known(
    tmp_path: Path, capsys: Output
) -> None:
    """Its threshold and digits are those of the part; without them the run is left out."""
    plant(tmp_path, "ppo", FINALS)
    finals = {0: 0.7, 1: 0.25, 2: math.nan}
    run = plant_foreign(tmp_path, "q_learning", finals, "Gone-v0", known={}, diverged={2: 9})
    written(tmp_path)
    assert not (tmp_path / page_name("Gone-v0")).exists()
    assert f"left out: {run}" in capsys.readouterr().out
    know(run, threshold=0.5, digits=2)
    page = written(tmp_path, "Gone-v0")
    (row,) = table(page, "Scores")
    assert row["failures"] == "2 of 3 (1 diverged), at most 99%"
    # A seed without a finite return counts as the lowest final one of the run, never as 0.
    assert row[FINAL].startswith(f"{(0.7 + 0.25 + 0.25) / 3:.2f} [")
    assert "\nReward threshold 0.5; random or reference score unknown, so no verdicts.\n" in page
    shown = table((tmp_path / "README.md").read_text(), "Tabular algorithms")
    assert "[0.40 (raw)](environments/Gone-v0.md" in str(shown)


def plant_foreign(
    results: Path,
    algo: str,
    finals: Mapping[int, float],
    env: str,
    *,
    known: Any = None,
    **more: Any,
) -> Path:
    """A finished run on an environment that is not ours, with episodes as CartPole's."""
    folder = plant(results, algo, finals, name="foreign", **more).path
    (part,) = folder.glob("seeds-*")
    config = read_json(part / "config.json")
    config |= {"env": env, "config": {**config["config"], "env": env}}
    write_json(part / "config.json", config)
    know(folder, **({"threshold": 475.0, "digits": 1} if known is None else known))
    new = results / "runs" / env.replace("/", "--").replace(":", "--") / algo / "foreign"
    new.parent.mkdir(parents=True)
    return folder.rename(new)


def know(run: Path, **known: float | None) -> None:
    """Add what the summary of a run's only part knows of its environment."""
    (part,) = run.glob("seeds-*")
    write_json(part / "summary.json", read_json(part / "summary.json") | known)
    seal(part)


def test_no_verdict_without_a_random_and_a_reference_score(tmp_path: Path, capsys: Output) -> None:
    """And no failures without a threshold either; the id of the environment has a namespace."""
    env = "weird:ns/Foo-v0"
    first = plant_foreign(tmp_path, "ppo", around(485.0), env)
    second = plant_foreign(tmp_path, "sb3-ppo", around(485.0), env)
    know(second, threshold=None)
    page = written(tmp_path, env)
    (row,) = table(page, "Scores")
    why = "none (random or reference score unknown; scores.py measures them)"
    assert row["late score against SB3"] == row["AUC against SB3"] == why
    assert side(row, "failures", 1) == "-"
    assert not (tmp_path / "tables/verdicts.csv").exists()
    assert re.search(r"\(\.\./plots/weird-ns-Foo-v0-[^)/]*\.svg\)", page)
    assert check_links(tmp_path) == generated(tmp_path)
    assert {path.parent for path in tmp_path.rglob("*.svg")} == {tmp_path / "plots"}
    capsys.readouterr()
    compared(first, second, "--out", tmp_path / "x.svg")
    assert capsys.readouterr().out.count(why) == 2


def measured(results: Path, env: str, changes: Mapping[str, Any] = MappingProxyType({})) -> None:
    """What scores.py writes."""
    path = scores_file(results, env, ())
    path.parent.mkdir(exist_ok=True)
    stored = {"random": {"value": 20.0}, "reference": 520.0, **changes}
    write_json(path, {"env": env, "env_kwargs": [], **stored})


def test_measured_scores_give_verdicts_and_failures(
    tmp_path: Path, capsys: Output, refusal: Refusal
) -> None:
    env = "weird:ns/Foo-v0"
    first = plant_foreign(tmp_path, "ppo", around(485.0, 30), env, diverged={7: 9})
    second = plant_foreign(tmp_path, "sb3-ppo", around(60.0, 30), env)
    for run in (first, second):
        know(run, threshold=None, digits=None)
    measured(tmp_path, env)
    page = written(tmp_path, env)
    (row,) = table(page, "Scores")
    # The seventh counts as 20.
    mean = (sum(around(485.0, 30).values()) - around(485.0, 30)[7] + 20) / 30
    found = row["late score against SB3"]
    assert found.startswith(f"**better**<br>{(mean - 60) / 500:+.3f} [")
    assert side(row, "failures") == "1 of 30 (1 diverged), at most 15%"
    assert side(row, "failures", 1).startswith("30 of 30, ")  # 60 is below 20 + 0.9 * 500
    assert "random policy 20, reference 520" in page
    capsys.readouterr()
    compared(second, first, "--out", tmp_path / "x.svg")
    assert "better +0." in capsys.readouterr().out
    for scores in ({"env": "other"}, {"reference": None}, {"reference": 20.0}):  # of no use
        measured(tmp_path, env, scores)
        assert table(written(tmp_path, env), "Scores")[0]["AUC against SB3"].startswith("none (")
    measured(tmp_path, env, {"random": {"value": "much"}})
    words = (first, second, "--out", tmp_path / "x.svg")
    assert "Foo-v0.json: has invalid content (ValueError: random.value" in refusal(
        compare.main, *words
    )


def test_arguments_make_another_environment(tmp_path: Path) -> None:
    """CartPole with arguments is Gymnasium's, its scores are not those of ours."""
    plant(tmp_path, "ppo", around(485.0))
    other = plant(tmp_path, "ppo", around(20.0), env_kwargs=("sutton_barto_reward=true",)).path
    know(other, threshold=None, digits=None)
    page = written(tmp_path)
    assert [row["n"] for row in table(page, "Scores")] == ["10 of 30"]
    assert "Other runs" not in page
    other_page = tmp_path / page_name(f"{ENV} sutton_barto_reward=True")
    page = other_page.read_text()
    assert "random or reference score unknown" in page
    report.main(["--results", str(tmp_path), "--env", f"{ENV} sutton_barto_reward=True"])
    assert other_page.read_text() == page
    report.main(["--results", str(tmp_path), "--env", ENV])
    assert "sutton" not in (tmp_path / page_name(ENV)).read_text()


def test_a_run_without_a_finite_return_is_left_out(tmp_path: Path, capsys: Output) -> None:
    """Where the random score is unknown, too."""
    run = plant_foreign(tmp_path, "ppo", {0: math.nan}, "Foo-v0")
    curve = pd.read_parquet(run / "seeds-000-000/curve.parquet")
    content = parquet_bytes(curve.assign(return_mean=math.nan))
    write_bytes(run / "seeds-000-000/curve.parquet", content)
    seal(run / "seeds-000-000")
    with pytest.raises(UsageError, match="no finished, valid run"):
        report.report(tmp_path)
    why = "no seed has a score, and Foo-v0 has no known random score"
    assert f"left out: {run}: {why}\n" in capsys.readouterr().out
    assert [path.name for path in tmp_path.iterdir()] == ["runs"]


CONTROL = ("a2c", "dqn", "grpo", "ppo", "q_learning", "reinforce", "sarsa", "trpo", "sb3-ppo")


@pytest.mark.parametrize("algo", CONTROL)
def test_store_of_one_algorithm_alone(algo: str, tmp_path: Path) -> None:
    plant(tmp_path, algo, FINALS)
    (row,) = table(written(tmp_path, note="a test"), "Scores")
    assert row["algorithm"] == display(algo)
    assert check_links(tmp_path) == generated(tmp_path)


ELSEWHERE = ["tables", "tables@", "environments@", "verdicts.md", "README.md/"]


@pytest.mark.parametrize("path", [*ELSEWHERE, "plots/CartPole-v1.svg/"])
def test_something_else_where_the_report_writes(
    path: str, tmp_path: Path, refusal: Refusal
) -> None:
    """A file, or as names end in a stroke or an at sign, a folder or a link to one."""
    plant(tmp_path, "ppo", FINALS)
    place = tmp_path / path.rstrip("@")
    if path.endswith("/"):
        place.mkdir(parents=True)
    elif path.endswith("@"):
        (tmp_path / "mine").mkdir()
        place.symlink_to("mine")
    else:
        place.touch()
    before = sorted(tmp_path.rglob("*"))
    assert refusal(report.main, "--results", tmp_path).startswith(f"error: {place}: ")
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("words", [(), ("--env", ENV)], ids=["all", "one"])
def test_a_report_that_is_interrupted_leaves_the_former_one(
    words: Sequence[str], tmp_path: Path, monkeypatch: Patch
) -> None:
    plant(tmp_path, "ppo", FINALS)
    report.main(["--results", str(tmp_path), *words])
    former = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    plant(tmp_path, "a2c", FINALS)
    run = {path for path in tmp_path.rglob("*") if path.is_file()} - former.keys()

    def interrupt(*_: object) -> str:
        raise KeyboardInterrupt

    monkeypatch.setattr(front_page, "page", interrupt)
    monkeypatch.setattr(report, "write_page", interrupt if words else report.write_page)
    with pytest.raises(SystemExit, match="130"):
        report.main(["--results", str(tmp_path), *words])
    left = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert {path: x for path, x in left.items() if path not in run} == former


def test_full_disk_is_one_line(tmp_path: Path, monkeypatch: Patch, refusal: Refusal) -> None:
    plant(tmp_path, "ppo", FINALS)
    full = OSError(errno.ENOSPC, "No space left on device")
    for module in (report, markdown):
        monkeypatch.setattr(module, "write_bytes", mock.Mock(side_effect=full))
    error = refusal(report.main, "--results", tmp_path)
    assert error == f"error: --results {tmp_path}: [Errno 28] No space left on device\n"


def test_real_run_evaluated_exactly(tmp_path: Path) -> None:
    settings = {"total_timesteps": 2000, "seeds": 3, "results": str(tmp_path), "quiet": True}
    config = from_preset(q_learning.Config, q_learning.PRESETS, "FrozenLake-v1", **settings)
    control.main(config, q_learning.train, {})
    (summary,) = tmp_path.glob("runs/*/*/*/*/summary.json")
    page = written(tmp_path, "FrozenLake-v1")
    finals = list(read_json(summary)["final"]["greedy"]["per_seed"].values())
    (row,) = table(page, "Scores")
    assert row[FINAL].startswith(f"{np.mean(finals):.3f} ")
    assert row["algorithm"] == "Q-learning (not the preset)"
    assert table(page, "Details")[0]["std over episodes"] == "exact"
    assert (tmp_path / "plots/FrozenLake-v1.svg").exists()


def test_early_learning_has_a_panel_of_its_own(tmp_path: Path, monkeypatch: Patch) -> None:
    """Of the same points, where all is over early; a logarithmic axis shows it anyway."""
    plant(tmp_path, "ppo", around(485.0))
    pairs = read_store(tmp_path, env=ENV).found

    def titles(end: float, log_x: bool = False) -> list[str]:
        x = np.arange(0, 101, 10)
        line = plots.Line(x, np.interp(x, (0, end), (0.0, 1.0)))
        monkeypatch.setattr(environment_pages, "curve", lambda _: line)
        monkeypatch.setattr(environment_pages, "is_log_x", lambda _: log_x)
        figure = environment_pages.all_algorithms(pairs)
        assert figure is not None
        for panel in figure.data["panels"].values():
            assert {*panel["PPO"].x} <= {*x}
        return [*figure.data["panels"]]

    assert titles(12) == [ENV, f"{ENV}, early learning"]
    assert titles(60) == titles(12, log_x=True) == [ENV]


# ---- compare.py -----------------------------------------------------------------------


def compared(*words: str | Path) -> None:
    compare.main([str(word) for word in words])


def test_compare_sets_later_runs_against_the_first(tmp_path: Path, capsys: Output) -> None:
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
        (["{run}", "{run}/"], "given twice"),
        (["{run}", "{tmp}/nowhere"], "no such folder"),
        (["{run}", "{tmp}"], "no finished seeds"),
        (["{run}", "{lake}"], "FrozenLake-v1"),
        (["{run}", "{lake}", "--out", "{tmp}/x.pdf"], "--out"),
        (["{run}", "{lake}", "--out", "{tmp}/nowhere/x.svg"], "--out"),
    ],
)
def test_compare_refuses_in_one_line(
    tmp_path: Path, monkeypatch: Patch, refusal: Refusal, words: list[str], says: str
) -> None:
    monkeypatch.chdir(tmp_path)
    run = plant(tmp_path, "ppo", FINALS).path
    lake = plant(tmp_path, "q_learning", {0: 0.7, 1: 0.7}, env="FrozenLake-v1").path
    before = sorted(tmp_path.rglob("*"))
    words = [word.format(run=run, lake=lake, tmp=tmp_path) for word in words]
    assert says in refusal(compare.main, *words)
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("sealed", [True, False])
@pytest.mark.parametrize("keep", [0, 100, 0.5])
def test_compare_refuses_a_truncated_curve_in_one_line(
    tmp_path: Path, refusal: Refusal, keep: float, sealed: bool
) -> None:
    first = plant(tmp_path, "ppo", FINALS).path
    second = plant(tmp_path, "sb3-ppo", FINALS).path
    (file,) = second.glob("seeds-*/curve.parquet")
    whole = file.read_bytes()
    file.write_bytes(whole[: int(keep if keep >= 1 else keep * len(whole))])
    if sealed:
        seal(file.parent)
    for name in (second, file.parent):  # the run, and its only part
        error = refusal(compare.main, first, name, "--out", tmp_path / "x.svg")
        assert error.startswith(f"error: {file if sealed else file.parent}: ")
        assert ("has invalid content" if sealed else "is damaged") in error
    assert not (tmp_path / "x.svg").exists()


# ---- Two layers -----------------------------------------------------------------------


def test_report_shows_both_layers_and_writes_beside_the_first(
    tmp_path: Path, monkeypatch: Patch
) -> None:
    monkeypatch.chdir(tmp_path)
    published, local = tmp_path / "results", Path("results/local")
    monkeypatch.setattr(record, "PUBLISHED", published)
    monkeypatch.setattr(report, "PUBLISHED", published)
    plant(published, "ppo", FINALS)
    plant(published, "ppo", FINALS, gamma=0.9)
    plant(local, "dqn", FINALS)
    plant(local, "ppo", FINALS, gamma=0.5)
    shutil.copy(ROOT / "results/throughput.json", published / "throughput.json")
    report.main(["--note", "a test"])
    page = (local / page_name(ENV)).read_text()
    assert [row["algorithm"] for row in table(page, "Scores")] == ["PPO", "DQN"]
    assert (local / f"plots/{ENV}-own.svg").exists()
    (drawn,) = environment_pages.own_settings(read_store(local, own=True).found, local)
    assert isinstance(drawn, Figure)
    assert [*drawn.data["panels"]["PPO"]] == ["PPO", "PPO, gamma 0.5 (not 0.98)"]
    assert "](speed.md)" not in (local / "README.md").read_text()  # measured by others
    assert check_links(local) == generated(local)
    assert not (published / "README.md").exists()
    report.main(["--publish", "--note", "a test"])
    page = (published / page_name(ENV)).read_text()
    assert [row["algorithm"] for row in table(page, "Scores")] == ["PPO"]
    assert not (published / f"plots/{ENV}-own.svg").exists()


def test_what_stands_beside_own_runs() -> None:
    """Runs on the same environment, with their settings or those of the plain command."""
    plain = RunFolder.of(from_preset(a2c.Config, a2c.PRESETS, ENV), "a2c").path.name
    wanted = beside([Path("runs", ENV, "ppo", "mine")])
    for run, stands in {
        (ENV, "ppo", "mine"): True,
        (ENV, "dqn", "mine"): True,
        (ENV, "a2c", plain): True,
        (ENV, "sb3-a2c", plain): True,
        (ENV, "a2c", "other"): False,
        ("Acrobot-v1", "ppo", "mine"): False,
    }.items():
        assert wanted(Path("runs", *run)) is stands, run


def test_own_reports_have_the_chapters_of_their_runs(tmp_path: Path) -> None:
    ablation, plain = (
        next(cell for cell in SUITES["ablations"] if bool(cell.settings) is changed)
        for changed in (True, False)
    )
    for runs, asked in {
        (f"{ENV}/ppo/mine",): {"verdicts.md"},
        (str(plain.run),): {"verdicts.md"},
        (f"{ENV}/ppo/mine", "Acrobot-v1/ppo/mine"): {"verdicts.md", "aggregate.md"},
        (str(ablation.run),): {"verdicts.md", "ablations.md"},
    }.items():
        own: Any = [
            SimpleNamespace(kind="control", env=run.split("/")[0], path=tmp_path / run)
            for run in runs
        ]
        assert {x.file for x in CHAPTERS if x.is_of(own, tmp_path)} == asked
    language: Any = [SimpleNamespace(kind="language", env="addition", path=tmp_path / "grpo/x")]
    files = {x.file for x in CHAPTERS if x.is_of(language, tmp_path)}
    pages = {"language-models.md", "real-models.md", "language-claims.md"}
    assert files == {"verdicts.md", *pages}


# ---- Revised verdicts -----------------------------------------------------------------


def test_revised_verdicts_are_those_of_fresh_seeds(tmp_path: Path, monkeypatch: Patch) -> None:
    """Both values as they were published, and what 30 fresh seeds a side say; they alone."""
    entry = Revised("ppo", ENV, "late", "worse -0.1", "inconclusive -0.01", "code | changed")
    monkeypatch.setattr(evidence, "REVISED", (entry, entry._replace(measure="auc")))
    fresh = {1000 + seed: score for seed, score in around(485.0, 30).items()}
    plant(tmp_path, "ppo", around(450.0) | fresh)
    plant(tmp_path, "sb3-ppo", around(485.0) | fresh)
    plant(tmp_path, "dqn", {1000: 480.0, 1001: 490.0})
    ppo, dqn = table(written(tmp_path), "Scores")
    assert ppo["n"] == "10 of 30<br>10 of 30"  # the fresh ones do not count
    assert dqn["n"] == "2 of 30"  # but where there are no others
    page = (tmp_path / "verdicts.md").read_text()
    rows = page.split("## Revised verdicts\n\n")[1].split("\n\n")[1].splitlines()[2:]
    assert len(rows) == 2
    assert "| worse -0.1 | inconclusive -0.01 | " in rows[0]
    assert "| equivalent +0.000 [" in rows[0]
    assert "| learning speed (AUC) |" in rows[1]


def test_no_published_figure_has_markup_in_its_text() -> None:
    """Such as Matplotlib's `$\\mathdefault{10^2}$`."""
    figures = [*(ROOT / "results" / "plots").glob("*.svg")]
    assert len(figures) > 20
    texts = [x for figure in figures for x in re.findall(r">([^<>]+)</text>", figure.read_text())]
    assert len(texts) > 500
    assert not [text for text in texts if "$" in text or "\\" in text]
