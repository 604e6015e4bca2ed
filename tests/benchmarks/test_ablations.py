"""Ablations as cells, and what the report says of the claims they decide."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from manyseeds import stats
from manyseeds.benchmarks.chapters import ablations
from manyseeds.benchmarks.chapters.ablations import BY_NAME, HYPOTHESES, Hypothesis
from manyseeds.benchmarks.chapters.blocks import Block, Claim, Figure, walk
from manyseeds.benchmarks.chapters.differences import claim_word, corrected_verdicts
from manyseeds.benchmarks.experiments import catalog, suite
from manyseeds.benchmarks.experiments.suite import ABLATION_ENVS, ABLATIONS, BASES, SUITES
from manyseeds.benchmarks.store.results import Result, load_result
from manyseeds.benchmarks.store.stored import open_runs
from manyseeds.cli import identity
from manyseeds.record import seal
from manyseeds.writing import parquet_bytes, write_bytes
from tests.benchmarks.conftest import tables_of
from tests.benchmarks.test_report import plant

CLIPPING, LAMBDA, *_, WEIGHTS = HYPOTHESES


def scores(mean: float, spread: float = 3.0, seeds: int = 30) -> dict[int, float]:
    """Scores of seeds, evenly spread around a mean."""
    return dict(enumerate((mean + np.linspace(-spread, spread, seeds)).tolist()))


def make_runs(
    results: Path, about: Hypothesis, finals: Mapping[tuple[str, str, Any], dict[int, float]]
) -> list[Result]:
    """A store with runs of a claim, by environment, line and value; AUC follows final scores."""
    for (env, line, value), of_seeds in finals.items():
        cell = about.ablation.cell(env, line, value)
        middle = float(np.mean(list(of_seeds.values())))
        folder = plant(results, cell.algo, of_seeds, env=env, middle=middle, **cell.settings)
        for part in folder.path.glob("seeds-*"):
            kl = 0.01 if value == 1e-3 else 0.1
            rows = pd.DataFrame({"seed": [*of_seeds], "timestep": 1, "approx_kl": kl})
            write_bytes(part / "metrics.parquet", parquet_bytes(rows))
            seal(part)
    return [load_result(run) for run in open_runs(results)]


def page_of(
    results: Path, about: Hypothesis, finals: Mapping[tuple[str, str, Any], dict[int, float]]
) -> list[Block]:
    return list(ablations.page(make_runs(results, about, finals)))


def answers(blocks: list[Block], ablation: str) -> dict[tuple[str, str], str]:
    """Whether the claim is true, by environment and comparison."""
    rows = tables_of(blocks)[f"ablation-{ablation}-comparisons"]
    return {(row[0], row[1]): row[-1] for row in rows}


def test_bases_are_the_presets() -> None:
    """So that leaving a setting out gives the value that the ablation means."""
    for (algo, env), base in BASES.items():
        settings = catalog.plain_settings("algos", algo, env)
        assert {name: settings[name] for name in base} == base, (algo, env)
    plain = catalog.plain_settings("algos", "ppo", "CartPole-v1")
    for ablation in (BY_NAME[x] for x in ("clipping", "lambda", "normalisation", "epochs")):
        value = BASES["ppo", "CartPole-v1"][ablation.varied]
        cell = ablation.cell("CartPole-v1", next(iter(ablation.lines)), value)
        assert identity(cell.config()) == plain


def test_every_cell_once_and_each_value_at_its_cell() -> None:
    cells = SUITES["ablations"]
    names = [cell.folder().path for cell in cells]
    assert len(set(names)) == len(names)
    for ablation in ABLATIONS:
        for env in ABLATION_ENVS:
            for line, settings in ablation.lines.items():
                for value in ablation.values_on(env):
                    cell = ablation.cell(env, line, value)
                    assert cell in cells
                    config = identity(cell.config())
                    assert config[ablation.varied] == value
                    assert settings.items() <= config.items()
                    assert cell.seeds == 30
    assert {c.env for c in cells} == set(ABLATION_ENVS)


@pytest.mark.slow
def test_a_claim_is_judged_by_its_comparisons(tmp_path: Path) -> None:
    finals = {}
    for x, (clipped, free) in {
        1e-3: (scores(480), scores(480, 3.01)),  # equivalent
        3e-3: (scores(480), scores(300)),
        1e-2: (scores(100), scores(200)),
        3e-4: (scores(300, 200), scores(310, 200)),
    }.items():
        finals["CartPole-v1", "clip range 0.2", x] = clipped
        finals["CartPole-v1", "no clipping", x] = free
    finals["CartPole-v1", "clip range 0.2", 1e-4] = scores(50)  # its counterpart is missing
    blocks = page_of(tmp_path, CLIPPING, finals)
    assert answers(blocks, "clipping") == {
        ("CartPole-v1", "learning rate 0.0003"): "undecided",
        ("CartPole-v1", "learning rate 0.001"): "not tested",  # without a large step
        ("CartPole-v1", "learning rate 0.003"): "true",
        ("CartPole-v1", "learning rate 0.01"): "false",
    }
    (claim,) = (block for block in blocks if isinstance(block, Claim))
    assert (claim.verdict, claim.number) == (
        "in part",
        "true in 1 of 3 comparisons by late score, false in 1, undecided in 1",
    )
    shown = [row[2] for row in tables_of(blocks)["ablation-clipping-comparisons"]]
    assert shown == ["0.1", "0.01", "0.1", "0.1"]
    assert claim.figure
    ((_, drawn),) = claim.figure.data["panels"].items()
    assert [row.word for row in drawn] == ["undecided", "equivalent", "better", "worse"]
    rows = [row[1:3] for row in tables_of(blocks)["ablation-clipping"]]
    assert ["clip range 0.2", "0.001 (preset)"] in rows
    assert ["no clipping", "0.001"] in rows
    assert ["no clipping", "0.0001"] not in rows
    metrics = [*tmp_path.glob("runs/CartPole-v1/ppo/*/seeds-*/metrics.parquet")]
    for path in metrics:
        write_bytes(path, b"no table")
    assert not list(ablations.page([load_result(run) for run in open_runs(tmp_path)]))
    scores_drawn = [x for x in walk(blocks) if isinstance(x, Figure) and x is not claim.figure]
    assert [len(figure.data["panels"]) for figure in scores_drawn] == [2]


@pytest.mark.parametrize(
    ("found", "word"),
    [
        (("true", "true"), "holds"),
        (("true", "undecided", "false"), "in part"),
        (("undecided", "false"), "does not hold"),
        (("undecided",), "not shown"),
    ],
)
def test_the_verdict_on_a_claim(found: tuple[str, ...], word: str) -> None:
    assert claim_word(found) == word


def test_learning_speed_decides_where_it_was_said_to(tmp_path: Path) -> None:
    """The AUC of the preset's lambda is the same as that of 1, and above that of 0."""
    finals = {("Acrobot-v1", "", x): scores(-90) for x in (0.94, 1.0)}
    finals["Acrobot-v1", "", 0.0] = scores(-90)
    loaded = make_runs(tmp_path, LAMBDA, finals)
    for result in loaded:
        result.auc[:] = -100 + np.linspace(-3, 3, 30)
        if result.config["gae_lambda"] == 0.0:
            result.auc[:] -= 200
    found = answers(list(ablations.page(loaded)), "lambda")
    assert found == {
        ("Acrobot-v1", "0.94 against 0"): "true",
        ("Acrobot-v1", "0.94 against 1"): "false",
    }


@pytest.mark.parametrize(("others", "answer"), [(0, "true"), (1, "undecided")])
def test_comparisons_are_corrected_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, others: int, answer: str
) -> None:
    """Of all claims: 0.03 is below 0.05 alone, and not beside another comparison."""
    verdict = stats.Parity("better", stats.Estimate(0.2, 0.1, 0.3, 30), 0.03)
    monkeypatch.setattr(ablations, "parity_of", lambda *_: verdict)
    finals = {("CartPole-v1", "", x): scores(480) for x in (0.8, 1.0)}
    loaded = make_runs(tmp_path, LAMBDA, finals)
    if others:
        finals = {("Acrobot-v1", x, "q"): scores(-90) for x in WEIGHTS.ablation.lines}
        finals |= {("Acrobot-v1", x, "return_to_go"): scores(-90) for x in WEIGHTS.ablation.lines}
        loaded = make_runs(tmp_path, WEIGHTS, finals)
    blocks = list(ablations.page(loaded))
    assert answers(blocks, "lambda") == {("CartPole-v1", "0.8 against 1"): answer}
    (row,) = tables_of(blocks)["ablation-lambda-comparisons"]
    auc, final = row[2:4]
    assert final.startswith("better +0.200 [+0.100, +0.300], p=0.030")  # decides nothing
    assert auc.startswith("better") == (not others)
    if others:
        assert set(answers(blocks, "weights").values()) == {"undecided"}
        assert auc.endswith("p=0.090")


def test_verdicts_that_there_are_count() -> None:
    verdict = stats.Parity("worse", stats.Estimate(-0.2, -0.3, -0.1, 30), 0.02)
    found = corrected_verdicts({"a": verdict, "b": None, "c": replace(verdict, p=0.03)})
    assert found["b"] is None
    assert [(x.word, x.p) for x in found.values() if x] == [("worse", 0.04)] * 2
    found = corrected_verdicts({"a": verdict, "b": verdict, "c": verdict})
    assert {x.word for x in found.values() if x} == {"undecided"}


def test_too_few_seeds_decide_nothing_and_half_a_pair_is_not_shown(tmp_path: Path) -> None:
    few = {
        ("CartPole-v1", "raw weights", weight): scores(mean, seeds=5)
        for weight, mean in (("total_return", 100), ("return_to_go", 400))
    }
    blocks = page_of(tmp_path / "a", WEIGHTS, few)
    pair = "CartPole-v1", "return_to_go against total_return, raw weights"
    assert answers(blocks, "weights") == {pair: "undecided"}
    alone = {("CartPole-v1", "raw weights", "q"): scores(100)}
    assert not page_of(tmp_path / "b", WEIGHTS, alone)
    plant(tmp_path / "c", "ppo", scores(480), gamma=0.5)  # of no ablation
    assert not list(ablations.page([load_result(run) for run in open_runs(tmp_path / "c")]))


@pytest.mark.parametrize("about", HYPOTHESES, ids=lambda about: about.ablation.name)
def test_every_comparison_has_its_cells(about: Hypothesis) -> None:
    cells = {cell.folder().path for cell in suite.SUITES["ablations"]}
    for env in ABLATION_ENVS:
        pairs = about.pairs(about.ablation, env)
        assert len({name for name, *_ in pairs}) == len(pairs) > 0
        for _, better, worse in pairs:
            for line, value in (better, worse):
                assert about.ablation.cell(env, line, value).folder().path in cells
            assert better != worse
