"""The variance of the policy gradient: weights, moments, and the section of the report."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from manyseeds import envs
from manyseeds.algos import grpo, reinforce
from manyseeds.benchmarks.chapters import gradient_variance as chapter
from manyseeds.benchmarks.chapters.blocks import Outcome, text_of
from manyseeds.benchmarks.measurements import gradient_variance
from manyseeds.benchmarks.measurements.gradient_variance import Moments
from manyseeds.seeds import SeedStreams
from tests.benchmarks.conftest import MEASURED, Output, Patch, tables_of

SEEDS = [0, 1]
CONFIG = reinforce.Config(
    env="CartPole-v1", seeds=2, episodes=4, gamma=1.0, normalize_advantage=False, hidden=(8,)
)


@pytest.fixture(scope="module")
def actor() -> reinforce.Actor:
    return reinforce.Actor(CONFIG.make_env().spec, CONFIG, SeedStreams(SEEDS, "init"))


def played(
    actor: reinforce.Actor, same_start: bool = False
) -> tuple[envs.Episodes, reinforce.Batch]:
    streams = SeedStreams(SEEDS, "evaluate")
    episodes = gradient_variance.play(CONFIG.make_env(), actor, streams, 4, same_start)
    return episodes, reinforce.prepare(actor, episodes, CONFIG)


def critic() -> reinforce.Critic:
    config = replace(CONFIG, weight="baseline")
    return reinforce.Critic(config.make_env().spec, config, SeedStreams(SEEDS, "init"))


def test_episodes_end_with_the_longest_one(actor: reinforce.Actor) -> None:
    episodes, _ = played(actor)
    lengths = episodes.alive.sum(1)
    assert episodes.alive.shape[1] == lengths.max() < 500
    starts = episodes.obs[:, 0]
    assert not starts[:, 0].equal(starts[:, 1])
    starts = played(actor, same_start=True)[0].obs[:, 0]
    assert all(starts[:, 0].equal(starts[:, i]) for i in range(4))
    assert not starts[0].equal(starts[1])


def test_gae_with_lambda_1_is_the_baseline_and_with_0_the_td_error(actor: reinforce.Actor) -> None:
    episodes, batch = played(actor)
    found = gradient_variance.gae_weights(critic(), episodes, batch, 1.0)
    expected = reinforce.phi(critic(), batch, replace(CONFIG, weight="baseline"))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)

    alive = episodes.alive
    one_step = gradient_variance.gae_weights(critic(), episodes, batch, 0.0).view_as(alive)
    with torch.no_grad():
        values = critic()(batch.features, batch.actions).view_as(alive)
    for s, n in itertools.product(range(2), range(4)):
        T = int(alive[s, :, n].sum())
        own = values[s, :T, n]
        expected = 1.0 + torch.cat([own[1:], torch.zeros(1)]) - own
        torch.testing.assert_close(one_step[s, :T, n], expected, rtol=1e-5, atol=1e-6)


def test_grpo_compares_the_episodes_of_a_seed(actor: reinforce.Actor) -> None:
    episodes, batch = played(actor, same_start=True)
    config = grpo.Config(env="CartPole-v1", group_size=4, gamma=1.0, advantage="outcome")
    weights = gradient_variance.grpo_weights(episodes, config).view_as(episodes.alive)
    lengths = episodes.alive.sum(1).double()  # the returns of CartPole
    expected = (lengths - lengths.mean(1, keepdim=True)) / lengths.std(1, keepdim=True)
    for s, n in itertools.product(range(2), range(4)):
        T = int(lengths[s, n])
        assert weights[s, :T, n].tolist() == pytest.approx([float(expected[s, n])] * T)
        assert not weights[s, T:, n].any()


def test_moments_against_plain_loops() -> None:
    rng = np.random.default_rng(0)
    x, y = rng.normal(2.0, 1.0, (2, 7, 1, 5))  # of 7 estimates, one seed, 5 parameters
    ours, reference = Moments(), Moments()
    for a, b in zip(torch.from_numpy(x), torch.from_numpy(y), strict=True):
        ours.add(a, b)
        reference.add(b, b)
    found = {name: value.item() for name, value in ours.figures(reference).items()}
    x, y = x[:, 0], y[:, 0]
    different = [(i, j) for i in range(7) for j in range(7) if i != j]
    assert found["variance"] == pytest.approx(np.trace(np.cov(x.T)))
    assert found["signal"] == pytest.approx(np.mean([x[i] @ x[j] for i, j in different]))
    assert found["dot"] == pytest.approx(np.mean([x[i] @ y[j] for i, j in different]))


def test_gradient_is_linear_in_the_weights(actor: reinforce.Actor) -> None:
    """And the mean over episodes: of one step's weight, the gradient of its log-probability."""
    _, batch = played(actor)
    weights = torch.zeros_like(batch.returns)
    weights[:, 0] = 8.0
    found = gradient_variance.gradient(actor, batch, weights, CONFIG)
    logprobs, _ = actor(batch.features, batch.actions)
    names = [p for p in actor.parameters() if p.requires_grad]
    exact = torch.autograd.grad(-2.0 * logprobs[:, 0].sum(), names)
    torch.testing.assert_close(found, torch.cat([g.flatten(1) for g in exact], 1).double())


def test_critic_is_fitted_in_units_of_the_returns(
    actor: reinforce.Actor, monkeypatch: Patch
) -> None:
    """Values in the hundreds are learned in a few steps."""
    monkeypatch.setattr(gradient_variance, "FIT_ROUNDS", 3)
    _, batch = played(actor)
    batch = batch._replace(returns=300.0 + batch.returns)
    fitted = gradient_variance.fitted_critic(
        batch, replace(CONFIG, weight="baseline"), SeedStreams(SEEDS, "train")
    )
    with torch.no_grad():
        values = fitted(batch.features, batch.actions)
    errors = (values - batch.returns)[batch.alive]
    assert errors.abs().mean() < 20
    assert all(-0.5 < share <= 1 for share in gradient_variance.explained(fitted, batch))


@pytest.mark.slow
def test_measured_and_shown(tmp_path: Path, monkeypatch: Patch) -> None:
    monkeypatch.setattr(gradient_variance, "FIT_ROUNDS", 2)
    words = "--seeds 2 --episodes 4 --estimates 3 --total-timesteps 400 --results"
    gradient_variance.main([*words.split(), str(tmp_path)])
    stored = json.loads((tmp_path / "gradient_variance.json").read_text())
    weights = {m["weight"] for m in stored["measurements"]}
    assert len(weights) == 5 + len(gradient_variance.LAMBDAS) + 3
    assert len(stored["measurements"]) == len(gradient_variance.STAGES) * len(weights) * 2
    early, *_, late = (p["return"] for p in stored["policies"] if p["seed"] == 0)
    assert early != late  # another policy
    rows = tables_of(chapter.page(tmp_path))["gradient-variance"]
    assert len([row for row in rows if row[0] == "untrained"]) == len(weights)


# ---- The section ----------------------------------------------------------------------------


def stored_of(figures: dict[str, tuple[float, float, float]]) -> dict[str, Any]:
    """A file of one stage and two seeds: variance, signal and dot of each weight."""
    return {
        **MEASURED,
        "env": "CartPole-v1",
        "seeds": 2,
        "episodes": 8,
        "estimates": 200,
        "total_timesteps": 1000,
        "policies": [
            {"stage": "half", "seed": s, "return": 20.0, "explained": {"baseline": 0.5, "q": None}}
            for s in range(2)
        ],
        "measurements": [
            {"stage": "half", "seed": s, "weight": weight}
            | {"variance": variance * (1 + s), "signal": signal, "dot": dot}
            for weight, (variance, signal, dot) in figures.items()
            for s in range(2)
        ],
    }


def test_factors_and_cosines() -> None:
    stored = stored_of(
        {
            "total_return": (800.0, -1.0, 9.0),  # its own signal is not looked at
            "return_to_go": (100.0, 7.0, 4.0),
            "baseline": (50.0, 4.0, 4.0),
            "gae 0.9": (50.0, 16.0, 4.0),
            "grpo": (8000.0, 16.0, 8.0),
            "q": (10.0, -1.0, 2.0),
            "gae 0.5": (10.0, 16.0, -1.0),
        }
    )
    blocks = [*chapter.comparison(stored)]
    tables = tables_of(blocks)
    rows = {row[1]: row for row in tables["gradient-variance"]}
    assert rows["R(tau)"][5] == ""
    assert rows["return-to-go"][5].startswith("8 [8, 8]")
    assert rows["return-to-go minus V"][5:] == ["16 [16, 16]", "1, by definition"]
    assert rows["GAE, lambda 0.9"][5:] == ["16 [16, 16]", "0.50 [0.50, 0.50]"]
    assert rows["GRPO, return-to-go"][5:] == ["0.4 [0.4, 0.4]", "1.00 [1.00, 1.00]"]
    assert rows["Q"][5:] == ["20 [20, 20]", "no signal in 2 of 2"]  # along the gradient alone
    assert rows["GAE, lambda 0.5"][4:6] == ["no signal in 2 of 2"] * 2
    elsewhere = "points elsewhere at some stage"
    assert tables["gradient-variance-weights"] == [
        ["return-to-go", chapter.LOWER, "8 to 8", ""],
        ["return-to-go minus V", chapter.LOWER, "16 to 16", ""],
        ["GAE, lambda 0.9", chapter.LOWER, "16 to 16", elsewhere],
        ["GRPO, return-to-go", chapter.HIGHER, "0.4 to 0.4", ""],
        ["Q", chapter.LOWER, "20 to 20", ""],
        ["GAE, lambda 0.5", chapter.UNKNOWN, "", elsewhere],
    ]
    assert isinstance(blocks[0], Outcome)
    sentence = text_of(blocks[0].text)
    assert "With 4 of 6 weights" in sentence
    assert (
        "which is not shown for GAE (lambda 0.5). It is higher at every stage with GRPO" in sentence
    )
    assert sentence.endswith("elsewhere at some stage with GAE.")
    assert tables["gradient-variance-policies"] == [["half", "20.0", "50%", "unknown"]]


def test_a_weight_is_compared_at_the_stages_where_it_has_a_signal() -> None:
    stored = stored_of(
        {"total_return": (8.0, 4.0, 4.0), "baseline": (2.0, 4.0, 4.0), "q": (8.0, 4.0, 2.0)}
    )
    later = [{**m, "stage": "trained"} for m in stored["measurements"]]
    late_q = [{**m, "dot": -1.0} for m in later if m["weight"] == "q"]
    stored["measurements"] += [m for m in later if m["weight"] != "q"] + late_q
    stored["policies"] += [{**p, "stage": "trained"} for p in stored["policies"]]
    table = tables_of(chapter.comparison(stored))["gradient-variance-weights"]
    assert [row[1:3] for row in table] == [
        [chapter.LOWER, "4 to 4"],
        [chapter.UNKNOWN, "0.25 to 0.25 at 1 of 2 stages"],
    ]


def test_without_all_measurements_no_section(tmp_path: Path, capsys: Output) -> None:
    assert not chapter.page(tmp_path)
    stored = stored_of({"total_return": (8.0, 1.0, 1.0), "baseline": (4.0, 1.0, 1.0)})
    stored["measurements"].pop()
    (tmp_path / "gradient_variance.json").write_text(json.dumps(stored))
    assert not chapter.page(tmp_path)
    assert "half: baseline lacks a seed" in capsys.readouterr().out
