"""Ablations as cells, and what the report says of the claims they decide."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from manyseeds.benchmarks.chapters import ablations
from manyseeds.benchmarks.chapters.ablations import BY_NAME, CLAIMS, Claim
from manyseeds.benchmarks.experiments import catalog, suite
from manyseeds.benchmarks.experiments.suite import ABLATION_ENVS, ABLATIONS, BASES, SUITES
from manyseeds.benchmarks.store.results import Result, load_result
from manyseeds.benchmarks.store.stored import open_runs
from manyseeds.cli import identity
from tests.benchmarks.test_report import plant

CLIPPING, LAMBDA, *_, WEIGHTS = CLAIMS


def scores(mean: float, spread: float = 3.0, seeds: int = 30) -> dict[int, float]:
    """Scores of seeds, evenly spread around a mean."""
    return dict(enumerate((mean + np.linspace(-spread, spread, seeds)).tolist()))


def make_runs(
    results: Path, claim: Claim, finals: Mapping[tuple[str, str, Any], dict[int, float]]
) -> list[Result]:
    """A store with runs of a claim, by environment, line and value; AUC follows final scores."""
    for (env, line, value), of_seeds in finals.items():
        cell = claim.ablation.cell(env, line, value)
        middle = float(np.mean(list(of_seeds.values())))
        plant(results, cell.algo, of_seeds, env=env, middle=middle, **cell.settings)
    return [load_result(run) for run in open_runs(results)]


@pytest.fixture(autouse=True)
def plots_folder(tmp_path: Path) -> None:
    (tmp_path / "plots").mkdir()


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
def test_a_sentence_per_claim_from_the_verdicts(tmp_path: Path) -> None:
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
    page = ablations.page(make_runs(tmp_path, CLIPPING, finals), tmp_path)
    assert f"**{CLIPPING.text}**: 4 comparisons by final score. " in page
    assert "*True* in 1 of 4: CartPole-v1 (learning rate 0.003). " in page
    assert "*False* in 2 of 4: CartPole-v1 (learning rate 0.001, learning rate 0.01). " in page
    assert "*Undecided* in 1 of 4: CartPole-v1 (learning rate 0.0003).\n" in page
    assert page.count("## ") == 1
    assert "| CartPole-v1 | clip range 0.2 | 0.001 (preset) | 30 |" in page
    assert "no clipping | 0.0001" not in page
    svg = (tmp_path / "plots" / "ablation-clipping.svg").read_text()
    assert svg.count("axes_") == 2


def test_learning_speed_decides_where_it_was_said_to(tmp_path: Path) -> None:
    """The AUC of the preset's lambda is the same as that of 1, and above that of 0."""
    finals = {("Acrobot-v1", "", x): scores(-90) for x in (0.94, 1.0)}
    finals["Acrobot-v1", "", 0.0] = scores(-90)
    loaded = make_runs(tmp_path, LAMBDA, finals)
    for result in loaded:
        result.auc[:] = -100 + np.linspace(-3, 3, 30)
        if result.config["gae_lambda"] == 0.0:
            result.auc[:] -= 200
    page = ablations.page(loaded, tmp_path)
    assert (
        "2 comparisons by learning speed (AUC). *True* in 1 of 2: Acrobot-v1 (0.94 against 0). "
        "*False* in 1 of 2: Acrobot-v1 (0.94 against 1)." in page
    )


def test_too_few_seeds_decide_nothing_and_half_a_pair_is_not_shown(tmp_path: Path) -> None:
    few = {
        ("CartPole-v1", "raw weights", weight): scores(mean, seeds=5)
        for weight, mean in (("total_return", 100), ("return_to_go", 400))
    }
    page = ablations.page(make_runs(tmp_path / "a", WEIGHTS, few), tmp_path)
    assert "*Undecided* in 1 of 1: CartPole-v1 (return_to_go against total_return, raw" in page
    alone = {("CartPole-v1", "raw weights", "q"): scores(100)}
    page = ablations.page(make_runs(tmp_path / "b", WEIGHTS, alone), tmp_path)
    assert page == ""
    plant(tmp_path / "c", "ppo", scores(480), gamma=0.5)  # of no ablation
    assert ablations.page([load_result(run) for run in open_runs(tmp_path / "c")], tmp_path) == ""


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim.ablation.name)
def test_every_comparison_has_its_cells(claim: Claim) -> None:
    cells = {cell.folder().path for cell in suite.SUITES["ablations"]}
    for env in ABLATION_ENVS:
        pairs = claim.pairs(claim.ablation, env)
        assert len({pair.name for pair in pairs}) == len(pairs) > 0
        for pair in pairs:
            for line, value in (pair.better, pair.worse):
                assert claim.ablation.cell(env, line, value).folder().path in cells
            assert pair.better != pair.worse
