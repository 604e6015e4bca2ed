"""The page of searches: what tuning gains, by hand-worked scores, and studies that are broken."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from manyseeds import envs, plots, stats
from manyseeds.benchmarks.chapters import claims, sensitivity
from manyseeds.benchmarks.chapters.blocks import Figure, Heading, Outcome
from manyseeds.benchmarks.experiments.verdicts import margin_at
from manyseeds.benchmarks.store.studies import StudyFolder, margin_for
from manyseeds.record import SCHEMA, seal
from manyseeds.writing import write_json
from tests.benchmarks.conftest import Output, Patch, tables_of

SEEDS = [100, 101]
SCORES = {  # normalised, [configurations, seeds]
    "CartPole-v1": [[0.9, 0.1], [0.5, 0.5], [0.0, 0.0]],
    "Pendulum-v1": [[0.2, 0.2], [0.3, 0.3], [1.0, 1.0]],
}
UNTUNED = {"CartPole-v1": [0.4, 0.6], "Pendulum-v1": [0.0, 0.1]}


@pytest.fixture(autouse=True)
def three_are_many(monkeypatch: Patch) -> None:
    monkeypatch.setattr(sensitivity, "MANY", 3)


def plant(results: Path, algo: str, env: str, shift: float = 0.0, **changes: Any) -> Path:
    """A finished search of three random configurations around the defaults, two seeds each."""
    folder = StudyFolder(results / "studies" / env / algo / "x")
    about = {
        "command": "python benchmarks/search.py",
        "code": {"digest": "", "commit": "1234567", "origins": [f"manyseeds.algos.{algo}:train"]},
        "versions": {},
        "algo": algo,
        "env": env,
        "config": {"env": env, "gamma": 0.99},
        "vary": ["gamma=linear:0.9:0.99", "num_steps=8,16,128"],
        "sampler": "random",
        "seeds": SEEDS,
        "fresh_seeds": [1000, 1001],
        "cut": 1.0,
        "base": "defaults",
    }
    folder.path.mkdir(parents=True)
    head = {"schema": SCHEMA, "kind": "control", "source": "manyseeds"}
    write_json(folder.path / "config.json", {**head, **about, **changes})
    spec = envs.make(env).spec
    assert spec.random_score is not None
    assert spec.reference_score is not None
    span = spec.reference_score - spec.random_score
    rows = [
        ("search", trial, seed, spec.random_score + (score + shift) * span, 0.9 + trial / 100, word)
        for trial, (scores, word) in enumerate(zip(SCORES[env], ("16", "128", "8"), strict=True))
        for seed, score in zip(SEEDS, scores, strict=True)
    ]
    rows += [
        ("untuned", -1, seed, spec.random_score + score * span, 0.99, "8")
        for seed, score in zip(SEEDS, UNTUNED[env], strict=True)
    ]
    frame = pd.DataFrame(rows, columns=["stage", "trial", "seed", "final", "gamma", "num_steps"])
    folder.add_rows(frame.assign(auc=np.nan, diverged=np.nan))
    chosen, alike = [10.0, 20.0] * 5, [10.0, 12.0] * 5
    result = {
        "winner": 0,
        "trials": 3,
        "settings": {},
        "final": {"chosen by search": chosen, "preset": [5.0] * 10, "other": [5.0] * 9 + [None]},
        "auc": {"chosen by search": alike, "preset": alike, "other": alike},
    }
    write_json(folder.path / "result.json", result)
    seal(folder.path)
    return folder.path


def test_a_seed_is_scored_by_what_is_best_for_the_others(tmp_path: Path) -> None:
    for env in SCORES:
        plant(tmp_path, "ppo", env)
    (group,) = sensitivity.together(sensitivity.read_studies(tmp_path))
    assert [study.env for study in group] == ["CartPole-v1", "Pendulum-v1"]
    untuned, for_all, for_each = sensitivity.held_out(group)
    np.testing.assert_allclose(untuned, [[0.4, 0.6], [0.0, 0.1]], atol=1e-12)
    # On CartPole seed 100 has the score of configuration 1, which is best for seed 101.
    np.testing.assert_allclose(for_each, [[0.5, 0.1], [1.0, 1.0]], atol=1e-12)
    # Best for seed 101 over both is configuration 2, for seed 100 it is configuration 0.
    np.testing.assert_allclose(for_all, [[0.0, 0.1], [1.0, 0.2]], atol=1e-12)


def test_the_page(tmp_path: Path) -> None:
    for algo, shift in (("ppo", 0.0), ("a2c", 0.1)):
        for env in SCORES:
            plant(tmp_path, algo, env, shift)
    plant(tmp_path, "dqn", "CartPole-v1")  # another set of environments
    blocks = list(sensitivity.page(tmp_path))
    tables = tables_of(blocks)
    rows = {row[5]: row for row in tables["searches"] if row[:2] == ["CartPole-v1", "PPO (stale)"]}
    assert rows["preset"][3:5] == ["3 x 2, 2 fresh", "15.0 [11.0, 19.0]"]
    assert rows["preset"][6] == "5.0 (all 10 seeds equal: at most 26% do otherwise)"
    assert rows["preset"][7].startswith("undecided +0.021 [")
    assert rows["other"][6:8] == ["unknown (1 unknown)", "none (a score is unknown)"]
    assert rows["other"][8].startswith("undecided +0.000 [")
    (row,) = (row for row in tables["sensitivity"] if row[0] == "PPO")
    assert row[1] == "CartPole-v1, Pendulum-v1"
    assert row[-1].startswith("0.325 [")  # (0.5 - 0 + 0.1 - 0.1) / 4 + ...
    figures = {block.name: block for block in blocks if isinstance(block, Figure)}
    assert sorted(figures) == [
        "searches",
        *(f"sensitivity{name}" for name in ("", "-a2c", "-dqn", "-ppo")),
    ]
    (drawn,) = (r for r in figures["searches"].data["panels"]["other"] if "Pole-v1, PPO" in r.label)
    assert drawn.word == "none"
    # Algorithms on the same environments: sensitivity to the right, tuned scores upwards.
    places = figures["sensitivity"].data["places"]
    assert "on CartPole-v1, Pendulum-v1; above and to the left" in figures["sensitivity"].label
    values = {algo: [estimate.value for estimate in place] for algo, place in places.items()}
    assert values == {"PPO": pytest.approx([0.325, 0.65]), "A2C": pytest.approx([0.325, 0.75])}


def test_the_winners_that_end_better_are_counted(tmp_path: Path) -> None:
    path = plant(tmp_path, "ppo", "CartPole-v1")
    result = json.loads((path / "result.json").read_text())
    result["final"] = {"chosen": [400.0, 410.0] * 5, "preset": [5.0] * 10, "other": [500.0] * 10}
    write_json(path / "result.json", result)
    seal(path)
    (outcome,) = (x for x in sensitivity.page(tmp_path) if isinstance(x, Outcome))
    assert outcome.text == (
        "Against the preset, 1 of 1 winner scored better on fresh seeds, 0 worse. "
        "Against other, 0 of 1 winner scored better on fresh seeds, 1 worse."
    )


def test_a_winner_is_not_tested_against_itself(tmp_path: Path) -> None:
    path = plant(tmp_path, "ppo", "CartPole-v1")
    result = json.loads((path / "result.json").read_text())
    result["settings"] = {"chosen by search": {"gamma": 1}, "preset": {"gamma": 1}}
    write_json(path / "result.json", result)
    seal(path)
    plant(tmp_path, "a2c", "CartPole-v1")
    blocks = [*sensitivity.page(tmp_path)]
    (outcome,) = (x for x in blocks if isinstance(x, Outcome))
    said = (
        "Against the preset, 0 of 1 winner scored better on fresh seeds, 0 worse; in 1 other search"
    )
    assert str(outcome.text).startswith(f"{said} it won itself. Against other, 0 of 2 winners")
    cells = {(row[1], row[5]): row[7:] for row in tables_of(blocks)["searches"]}
    assert cells["PPO (stale)", "preset"] == ["the winner"] * 2
    assert "the winner" not in cells["A2C (stale)", "preset"]


def test_all_differences_are_corrected_together(tmp_path: Path, monkeypatch: Patch) -> None:
    """0.03 four times: each alone is below 0.05, all together are not."""
    plant(tmp_path, "ppo", "CartPole-v1")
    margins = []

    def verdict(worths: Any, name: str, spec: Any, measure: str) -> stats.Parity:
        margins.append(margin_for(spec, measure))
        return stats.Parity("better", stats.Estimate(0.2, 0.1, 0.3, 30), 0.03)

    monkeypatch.setattr(sensitivity, "verdict_against", verdict)
    (outcome,) = (x for x in sensitivity.page(tmp_path) if isinstance(x, Outcome))
    assert "Against the preset, 0 of 1 winner" in str(outcome.text)
    assert set(margins) == {margin_at("CartPole-v1", measure) for measure in ("late", "auc")}


def test_what_was_not_sampled_around_the_defaults_is_left_out(tmp_path: Path) -> None:
    plant(tmp_path, "ppo", "CartPole-v1", sampler="tpe")
    plant(tmp_path, "a2c", "CartPole-v1", base="preset")
    plant(tmp_path, "reinforce", "CartPole-v1", cut=0.5)
    headings = [x.text for x in sensitivity.page(tmp_path) if isinstance(x, Heading)]
    assert headings == ["Searches"]


def test_searches_of_language_models_say_nothing_of_control(tmp_path: Path) -> None:
    """They are among the searches, with scores that are shares, and nowhere else."""
    plant(tmp_path, "grpo", "CartPole-v1", kind="language", task="addition")
    rows = tables_of(sensitivity.page(tmp_path))["searches"]
    assert {row[0] for row in rows} == {"addition"}
    assert {row[4] for row in rows} == {"15.000 [11.000, 19.000]"}
    (study,) = sensitivity.read_studies(tmp_path)
    assert not sensitivity.is_wide(study)
    assert list(claims.tuning([study, study])) == []
    headings = [x.text for x in sensitivity.page(tmp_path) if isinstance(x, Heading)]
    assert headings == ["Searches"]


@pytest.mark.parametrize("broken", ["schema", "truncated", "config", "result", "algo"])
def test_broken_studies_are_left_out_in_one_line(
    broken: str, tmp_path: Path, capsys: Output
) -> None:
    good = plant(tmp_path, "ppo", "Pendulum-v1")
    bad = plant(tmp_path, "ppo", "CartPole-v1")
    if broken == "schema":
        done = json.loads((bad / "DONE.json").read_text())
        write_json(bad / "DONE.json", {**done, "schema": 99})
    elif broken == "truncated":
        content = (bad / "rows.parquet").read_bytes()
        (bad / "rows.parquet").write_bytes(content[:-9])
    else:
        name = "result.json" if broken == "result" else "config.json"
        content = {} if broken != "algo" else json.loads((bad / name).read_text())
        write_json(bad / name, {**content, "algo": "nothing"})
        seal(bad)
    (study,) = sensitivity.read_studies(tmp_path)
    assert study.path == good
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith(f"left out: {bad}")


def test_words_are_in_the_order_of_their_numbers_which_are_short() -> None:
    _, kinds, parts = plots._parts(["16", "128", "8", "16"], 8)
    assert kinds == ["8", "16", "128"]
    assert [part.tolist() for part in parts] == [[2], [0, 3], [1]]
    _, kinds, _ = plots._parts(["256-256", "64-64", "120-84"], 8)
    assert kinds == ["64-64", "120-84", "256-256"]
    assert plots._parts(["true", "false"], 8)[1] == ["false", "true"]
    assert plots._parts(["0.001", "0", "1e-05"], 8)[1] == ["0", "1e-05", "0.001"]
    shown = [plots.short_number(x) for x in (0.0, 0.92, 100.0, 0.001, 1e-4, 3e-5)]
    assert shown == ["0", "0.92", "100", "0.001", "1e-4", "3e-5"]
