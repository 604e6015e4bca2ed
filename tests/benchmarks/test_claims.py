"""Claims of papers on control, and why trainings fail: what is said of scores that are known."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from manyseeds import envs, stats
from manyseeds.algos import grpo, ppo
from manyseeds.benchmarks.chapters import claims, failures
from manyseeds.benchmarks.chapters.blocks import OURS, Claim, text_of, walk
from manyseeds.benchmarks.chapters.sensitivity import read_studies
from manyseeds.benchmarks.experiments import catalog
from manyseeds.benchmarks.experiments.suite import (
    ALONE,
    BASELINE,
    BUDGETS,
    GROUP_SIZES,
    LARGE_MINIBATCHES,
    MORE_STEPS,
    NO_PARTS,
    ONE_STEP,
    OUTCOME,
    SUITES,
    Cell,
)
from manyseeds.benchmarks.experiments.verdicts import margin_at
from manyseeds.benchmarks.measurements import goal_first, learning_rates, replicas
from manyseeds.benchmarks.measurements.measure import greedy_areas, measured_by, write_measured
from manyseeds.benchmarks.store.results import Result, load_result
from manyseeds.benchmarks.store.stored import open_runs
from manyseeds.cli import from_preset, identity
from manyseeds.layers import SeedMLP
from manyseeds.optim import SeedAdam
from manyseeds.record import RunFolder, read_json, seal
from manyseeds.runs.control import Run
from manyseeds.seeds import SeedStreams
from manyseeds.writing import parquet_bytes, write_bytes
from tests.benchmarks import test_sensitivity
from tests.benchmarks.conftest import MEASURED, Patch, tables_of
from tests.benchmarks.test_report import RANDOM, around, plant

ENV = "CartPole-v1"


def results_of(folder: Path) -> list[Result]:
    return [load_result(run) for run in open_runs(folder)]


def claims_in(blocks: Any) -> dict[str, Claim]:
    """The claims of a page, by the name of their figure or, without one, their words."""
    found = [x for x in walk(blocks) if isinstance(x, Claim)]
    return {x.figure.name if x.figure else text_of(x.claim): x for x in found}


def numbers(n: int, mean: float, deviation: float) -> dict[int, float]:
    """Normal scores of n seeds."""
    rng = np.random.default_rng(n)
    return dict(enumerate((mean + deviation * rng.standard_normal(n)).tolist()))


# ---- Without a critic ----------------------------------------------------------------------


def test_learning_speed_ends_at_the_budget(tmp_path: Path) -> None:
    """Of a curve that rises in a straight line to T/2 and then to T: a point in between counts."""
    plant(tmp_path, "ppo", {0: 500.0, 1: 300.0}, env=ENV, middle=100.0, total_timesteps=1000)
    (result,) = results_of(tmp_path)
    start = result.curve["return_mean"].iloc[0]
    half = claims.speed_at(result, 500)
    np.testing.assert_allclose(half, (start + 100) / 2)
    # Half a budget of the first line, and a quarter of the second, up to 300 and 200.
    whole = claims.speed_at(result, 750)
    middles = np.array([(100 + 300) / 2, (100 + 200) / 2])
    np.testing.assert_allclose(whole, (2 * (start + 100) / 2 + middles) / 3)


def test_a_critic_is_missed_where_it_is(tmp_path: Path) -> None:
    """By late score after GRPO's budget; PPO is slower on CartPole, and at its ceiling there."""
    for algo, env, mean, middle, settings in (
        ("ppo", "Acrobot-v1", -80.0, -80.0, {}),
        ("grpo", "Acrobot-v1", -300.0, -300.0, OUTCOME),
        ("grpo", "Acrobot-v1", -300.0, -300.0, {"std": "none"}),
        ("ppo", ENV, 480.0, 300.0, {}),
        ("grpo", ENV, 480.0, 480.0, LARGE_MINIBATCHES[0]),
        ("grpo", ENV, 480.0, 480.0, {"std": "none"}),
        ("ppo", "Pendulum-v1", -600.0, -600.0, {}),
        ("grpo", "Pendulum-v1", -300.0, -900.0, {"std": "none"}),
    ):
        budget = {"total_timesteps": BUDGETS[env]}
        plant(tmp_path, algo, around(mean, 30), env=env, middle=middle, **budget, **settings)
    found = claims_in(claims.page(results_of(tmp_path), tmp_path))
    assert found["claims-critic"].verdict == "holds"
    assert found["claims-short"].verdict == "holds"
    card = found["claims-group-gradient"]
    assert card.verdict == "in part"
    rows = [(row[0], row[1], row[-1]) for row in tables_of([card])["claims-group-gradient"]]
    name, speed = "groups against PPO", "groups against PPO, by learning speed (AUC)"
    assert rows == [
        ("Acrobot-v1", name, "false"),
        ("Pendulum-v1", name, "true"),
        (ENV, name, "not tested, at the ceiling"),
        (ENV, speed, "true, decides nothing"),
        ("Acrobot-v1", speed, "false, decides nothing"),
        ("Pendulum-v1", speed, "false, decides nothing"),
    ]
    assert text_of(card.number).endswith(f"; not tested on {ENV}: {claims.CEILING}")
    assert "claims-discount" not in found


def test_the_estimator_of_the_paper_decides(tmp_path: Path) -> None:
    """One advantage per episode is worse than PPO on CartPole, returns-to-go are better, and so is
    REINFORCE; without the first, nothing is said of GRPO's discount."""
    plant(tmp_path, "ppo", around(300, 30), env=ENV, middle=300, total_timesteps=BUDGETS[ENV])
    plant(tmp_path, "reinforce", around(480, 30), env=ENV, middle=480)
    plant(tmp_path, "grpo", around(480, 30), env=ENV, middle=480)
    for settings in (OUTCOME, LARGE_MINIBATCHES[0]):
        plant(tmp_path, "grpo", around(100, 30), env=ENV, middle=100, **settings)
    for gamma in (0.9, 0.99):
        plant(tmp_path, "grpo", around(480, 30), env="Acrobot-v1", middle=-90, gamma=gamma)
    found = claims_in(claims.page(results_of(tmp_path), tmp_path))
    rows = tables_of([found["claims-short"]])["claims-short"]
    assert [(row[1], row[-1]) for row in rows[:4]] == [
        ("GRPO against PPO, minibatches of 2048", "false"),
        ("REINFORCE against PPO", "true"),
        ("GRPO against PPO, minibatches of the preset", "false, decides nothing"),
        ("GRPO against PPO, returns-to-go", "true, decides nothing"),
    ]
    assert len(rows) == 8
    assert all("learning speed (AUC)" in row[1] and "nothing" in row[-1] for row in rows[4:])
    assert found["claims-short"].verdict == "in part"
    assert "(--advantage outcome)" in str(found["claims-short"].details)
    (untested,) = (x for x in found.values() if "with a discount of" in text_of(x.claim))
    assert (untested.verdict, untested.number) == ("not tested", claims.UNTESTED)
    (row,) = tables_of([untested])["claims-discount"]
    assert row[1:3] == ["0.99 against 0.9, returns-to-go", "30 and 30"]
    assert row[-1].endswith("decides nothing")


@pytest.mark.parametrize(("n", "word"), [(30, "true"), (29, "undecided")])
def test_few_seeds_are_no_equivalence(tmp_path: Path, n: int, word: str) -> None:
    """Equal scores of 29 and 30 seeds, and the card says why they are not equivalent."""
    env, budget = "Acrobot-v1", BUDGETS["Acrobot-v1"]
    for algo, seeds, settings in (("ppo", 30, {}), ("grpo", n, {"std": "none"})):
        finals = around(-90, seeds)
        plant(tmp_path, algo, finals, env=env, middle=-90, total_timesteps=budget, **settings)
    found = claims_in(claims.page(results_of(tmp_path), tmp_path))["claims-group-gradient"]
    row, _ = tables_of([found])["claims-group-gradient"]
    assert row[-1] == word
    said = f"fewer than 30 seeds on a side, as in groups against PPO on {env} (29)."
    assert (said in str(found.details)) == (n == 29)


def test_a_low_discount_is_claimed_where_episodes_never_end_early(tmp_path: Path) -> None:
    """Everywhere the high one is better: true on CartPole, false on Pendulum."""
    for env, better, worse in ((ENV, 450.0, 300.0), ("Pendulum-v1", -300.0, -900.0)):
        for gamma, mean in ((0.99, better), (0.9, worse)):
            varied = {"gamma": gamma, **OUTCOME}
            plant(tmp_path, "grpo", around(mean, 30), env=env, middle=mean, **varied)
    found = claims_in(claims.page(results_of(tmp_path), tmp_path))
    rows = tables_of([found["claims-discount"]])["claims-discount"]
    assert [(row[0], row[1], row[-1]) for row in rows] == [
        (ENV, "0.99 against 0.9", "true"),
        ("Pendulum-v1", "0.9 against 0.99", "false"),
    ]


def test_claims_of_the_page_are_corrected_together(tmp_path: Path, monkeypatch: Patch) -> None:
    """Two comparisons with p of 0.03 are undecided."""
    verdict = stats.Parity("better", stats.Estimate(0.2, 0.1, 0.3, 30), 0.03)

    def parity(*given: Any, margin: float) -> stats.Parity:
        assert margin == margin_at(given[2].id, "auc")
        return verdict

    monkeypatch.setattr(claims, "parity", parity)
    for size in GROUP_SIZES:
        settings = {"groups": 1, "group_size": size, **OUTCOME}
        plant(tmp_path, "grpo", around(400, 30), env=ENV, **settings)
    found = claims_in(claims.page(results_of(tmp_path), tmp_path))
    assert found["claims-group-size"].verdict == "not shown"


def test_groups_are_compared_with_the_next_larger_ones(tmp_path: Path) -> None:
    for size, mean in zip(GROUP_SIZES, (400.0, 300.0, 450.0), strict=True):
        settings = {"groups": 1, "group_size": size, **OUTCOME}
        plant(tmp_path, "grpo", around(mean, 30), env=ENV, middle=mean, **settings)
    found = claims_in(claims.page(results_of(tmp_path), tmp_path))
    rows = tables_of([found["claims-group-size"]])["claims-group-size"]
    assert [(row[1], row[-1]) for row in rows] == [
        ("8 against 32", "true"),
        ("32 against 128", "false"),
    ]
    assert found["claims-group-size"].verdict == "in part"


def test_the_suites_have_the_runs_of_the_pages() -> None:
    """Each setting that a chapter looks for is one that is trained."""
    wanted: list[dict[str, Any]] = []

    def find(algo: str, env: str, **settings: Any) -> None:
        wanted.append({"algo": algo, "env": env, **settings})

    list(claims.without_critic(find))
    list(failures.without_signal(find, Path("nowhere")))
    list(failures.few_steps(find))
    list(failures.steadier(find, None))
    cells = [cell for suite in SUITES.values() for cell in suite if cell.source == "manyseeds"]
    trained = {(c.algo, c.env, *map(str, identity(c.config()).items())) for c in cells}
    for x in wanted:
        settings = {name: value for name, value in x.items() if name not in ("algo", "env")}
        if x["env"] in catalog.module("algos", x["algo"]).PRESETS:
            config = identity(Cell(x["algo"], x["env"], 30, settings=settings).config())
            assert (x["algo"], x["env"], *map(str, config.items())) in trained, x


# ---- Replicas ------------------------------------------------------------------------------


def small_update() -> tuple[Any, ...]:
    """A PPO of two seeds after a rollout, and what its update is called with, 4 epochs of 8."""
    settings = {"num_envs": 2, "num_steps": 8, "minibatch_size": 8, "epochs": 4}
    config = ppo.Config(env=ENV, seeds=2, total_timesteps=16, **settings)
    env, streams = config.make_env(), SeedStreams([0, 1], "train")
    agent = ppo.ActorCritic(env.spec, config, SeedStreams([0, 1], "init"))
    optimizer = SeedAdam(agent, eps=1e-5)
    state, obs = env.reset(streams.uniform(2, env.initial_noise))
    noise = agent.draw(streams, 8, 2), streams.uniform(8, 2, env.noise_size)
    _, _, rollout = envs.rollout(env, agent, state, obs, *noise)
    batch = ppo.prepare(agent, rollout, config)
    rates = torch.tensor(1e-2), torch.tensor(0.2)
    return agent, optimizer, batch, streams.uniform(4, 16), config, *rates


def test_equal_replicas_are_one_update() -> None:
    """All K with the same order: their average is one of them."""
    agent, optimizer, batch, shuffle, config, *rates = small_update()
    alike = shuffle[:, :1].expand(-1, replicas.REPLICAS, -1).contiguous()
    averaged = replicas.Averaged(ppo.update)
    averaged(agent, optimizer, batch, alike, config, *rates)
    found = optimizer.params.clone(), optimizer.mean.clone()
    assert averaged.spreads[0].max() < 1e-5
    agent, optimizer, batch, _, config, *rates = small_update()
    ppo.update(agent, optimizer, batch, alike[:, :1], replace(config, epochs=1), *rates)
    torch.testing.assert_close(found, (optimizer.params, optimizer.mean))


def test_replicas_begin_at_the_same_start_and_are_averaged() -> None:
    agent, optimizer, batch, shuffle, config, *rates = small_update()
    averaged = replicas.Averaged(ppo.update)
    averaged(agent, optimizer, batch, shuffle, config, *rates)
    found = optimizer.params.clone()
    assert averaged.spreads[0].min() > 0.01  # the treatment was applied
    ends = []
    for k in range(replicas.REPLICAS):
        agent, optimizer, batch, shuffle, config, *rates = small_update()
        one = shuffle[:, k : k + 1].contiguous()
        ppo.update(agent, optimizer, batch, one, replace(config, epochs=1), *rates)
        ends.append(optimizer.params.clone())
    torch.testing.assert_close(found, torch.stack(ends).mean(0))


def test_replicas_are_an_update_of_ppo_itself(monkeypatch: Patch) -> None:
    """A whole training by PPO's own update in the place of itself has its bits."""
    config = ppo.Config(env=ENV, seeds=2, total_timesteps=512, num_steps=32, quiet=True)
    runs = [Run(config, range(2)) for _ in range(2)]
    ppo.train(config, runs[0])
    replicas.train_by(ppo.update)(config, runs[1])
    assert greedy_areas(runs[0]) == greedy_areas(runs[1])


def stored_replicas(**means: float) -> dict[str, Any]:
    """Trainings of 30 seeds by way; a seed's luck is the same in all of them."""
    luck, noise = (np.array([*numbers(n, 0, x).values()]) for n, x in ((30, 40), (32, 5)))
    rows = [
        {
            "env": ENV,
            "way": way,
            "auc": (mean + luck + noise[k : k + 30]).tolist(),
            "spread": 0.1 if way == "averaged" else None,
        }
        for k, (way, mean) in enumerate(means.items())
    ]
    return {**MEASURED, "seeds": 30, "replicas": 4, "measurements": rows}


def test_what_is_said_of_replicas(tmp_path: Path) -> None:
    """Where more epochs do harm, by 20 points, which unpaired the luck of seeds would hide."""
    stored = stored_replicas(plain=412, averaged=440)
    deeper = stored_replicas(deeper=392)["measurements"]
    write_measured(
        tmp_path / "replicas.json",
        stored | {"measurements": [*stored["measurements"], *deeper]},
    )
    page = list(claims.page([], tmp_path))
    found = claims_in(page)
    rows = tables_of(page)["claims-replicas"]
    assert [row[-2:] for row in rows] == [["", ""], ["0.10", "1.0%"], ["", ""]]  # 0.01 of 1.01
    assert "those of the claim above" in str(found["claims-replicas-deeper"].details)
    assert found["claims-replicas-plain"].verdict == "holds"
    assert found["claims-replicas-deeper"].verdict == "holds"
    assert "paired" in str(found["claims-replicas-plain"].details)
    code = {"digest": "0123"}
    about = {"seeds": 30, "replicas": 4}
    path = tmp_path / "replicas.json"
    assert len(measured_by(path, code, replicas.MEASURED, about)) == 3
    assert not measured_by(path, {"digest": "other"}, replicas.MEASURED, about)
    assert not measured_by(path, code, replicas.MEASURED, {**about, "seeds": 10})


def test_replicas_are_not_tested_where_more_epochs_do_no_harm(tmp_path: Path) -> None:
    """Although the average is worse than both; nothing of it is corrected with other claims."""
    stored = stored_replicas(plain=300, deeper=420, averaged=200)
    assert [getattr(card, "p", None) for card in claims.averaged_replicas(stored)] == [[], []]
    write_measured(tmp_path / "replicas.json", stored)
    found = claims_in(claims.page([], tmp_path))
    for name in ("claims-replicas-plain", "claims-replicas-deeper"):
        card = found[name]
        assert card.verdict == "not tested"
        said = text_of(card.number)
        assert said.startswith("more epochs are not shown to do harm on ")
        assert f"{ENV} (deeper against plain: better +0." in said
        assert "not tested" in str(card.details[0])


# ---- Tuning --------------------------------------------------------------------------------


def test_the_best_of_many_is_not_credited_for_its_noise() -> None:
    """Each seed is left out once: the trial that is best on the others, on them and on it."""
    scores = np.array([[1.0, 0.0, 1.0], [0.6, 0.6, 0.6]])
    # Without seed 1 the first is best: 1 on the others, 0 on it. Without 0 or 2 the second is.
    chose, other = claims.optimism(scores)
    assert (chose, other) == (
        pytest.approx((0.6 + 1.0 + 0.6) / 3),
        pytest.approx((0.6 + 0 + 0.6) / 3),
    )


def test_an_algorithm_on_an_environment_is_one_observation(tmp_path: Path) -> None:
    """The mean of its searches, by the test of flipped signs; searches of a part of the budget, and
    those that have seen all seeds, do not count."""
    plant_search = test_sensitivity.plant
    for algo in ("ppo", "a2c", "reinforce", "dqn", "trpo", "grpo", "pqn"):
        plant_search(tmp_path, algo, ENV)
    plant_search(tmp_path / "studies/below", "ppo", ENV)
    again = tmp_path / "studies" / ENV / "ppo" / "y"
    (tmp_path / "studies/below/studies" / ENV / "ppo/x").rename(again)
    plant_search(tmp_path, "a2c", "Pendulum-v1")
    plant_search(tmp_path, "ppo", "Pendulum-v1", cut=0.5)
    plant_search(tmp_path, "sac_discrete", ENV, sampler="tpe")
    (claim,) = claims.corrected(claims.tuning(read_studies(tmp_path)))
    assert isinstance(claim, Claim)
    tables = tables_of([claim])
    # On CartPole the first of two seeds chooses 0.9, which is 0.1 on the other; the other one 0.5.
    searched = [row[1:3] + row[4:] for row in tables["claims-tuning"]]
    assert searched.count([ENV, "100%", "0.700", "0.300"]) == 8
    assert searched.count(["Pendulum-v1", "50%", "1.000", "1.000"]) == 1
    decides, older = claim.details[0].rows
    assert (decides[2], decides[4], decides[5]) == ("8", "0.016", "higher")  # 4 of 2^8 signs
    assert (older[2], older[4]) == ("10", "<0.001")
    assert claim.verdict == "holds"


def test_the_balance_of_activations() -> None:
    """A unit that is positive in half of the states counts 1, one that always is counts 0."""
    config = ppo.Config(env=ENV, seeds=1, hidden=(2,))
    agent = ppo.ActorCritic(config.make_env().spec, config, SeedStreams([0], "init"))
    assert isinstance(agent.networks, SeedMLP)
    with torch.no_grad():
        agent.networks.weights[0].zero_()
        agent.networks.biases[0].zero_()
        agent.networks.weights[0][0, 0, 0, 0] = 1.0  # the policy's first unit: the first feature
        agent.networks.biases[0][0, 0, 0, 1] = 1.0  # its second one
    states = torch.zeros(4, 4)
    states[:, 0] = torch.tensor([1.0, 2.0, -1.0, -2.0])
    torch.testing.assert_close(learning_rates.balance(agent, 0, states), torch.tensor([0.5]))
    states[:, 0] = torch.tensor([1.0, -3.0, -1.0, -2.0])
    torch.testing.assert_close(learning_rates.balance(agent, 0, states), torch.tensor([0.375]))
    assert learning_rates.balance(agent, 1, states).item() == 0


def test_the_signals_are_those_of_a_tenth_of_the_training(monkeypatch: Patch) -> None:
    """Not those of its end, and the rows are in the order of the rates."""
    monkeypatch.setattr(learning_rates, "RATES", (1e-6, 1e-2))
    monkeypatch.setitem(learning_rates.COMMON, ENV, 5120)
    found = learning_rates.measure(ENV, 2)
    assert found["rates"] == [1e-6, 1e-6, 1e-2, 1e-2]
    assert {*found["signals"]} == {*learning_rates.SIGNALS}
    assert all(len(x) == 4 for x in found["signals"].values())
    kls = np.array(found["signals"]["kl"])
    assert kls[:2].min() > -1e-5 > kls[2:].max()
    assert found["timestep"] == 512


def test_the_chance_that_the_good_one_is_higher() -> None:
    good = np.array([True, True, False, False])

    def chance(*signal: float) -> float:
        return claims.discrimination(np.array(signal), good, ~good)

    assert chance(4.0, 3.0, 2.0, 1.0) == 1
    assert chance(4.0, 1.0, 2.0, 3.0) == 0.5
    assert chance(1.0, 1.0, 1.0, 1.0) == 0.5
    assert chance(0.0, 1.0, 1.0, 2.0) == 0.125


def test_bad_rates_are_those_of_either_side() -> None:
    """The one between good ones is on neither."""
    rates = np.array([1.0, 2.0, 3.0, 4.0, 5.0])
    found = claims.wings(rates, np.array([False, True, False, True, False]))
    assert {side: rates[x].tolist() for side, x in found.items()} == {
        "all": [1, 3, 5],
        "too small": [1],
        "too large": [5],
    }


def test_a_band_has_most_good_ones_and_few_bad_ones() -> None:
    """Of five good ones it has four, 0.8: without that at 9, which three bad ones are close to."""
    good = np.array([True] * 5 + [False] * 4)
    signal = np.array([1.0, 2.0, 3.0, 4.0, 9.0, 0.0, 6.0, 7.0, 8.0])
    assert claims.band(signal, good, open_above=False) == (1, 4)
    assert claims.band(signal, good, open_above=True) == (1, np.inf)
    assert claims.band(np.where(good, signal, -1.0), good, open_above=True) == (1, np.inf)


def test_bands_are_scored_on_the_seed_that_did_not_choose_them() -> None:
    """Seed 1 has its good ones elsewhere: nothing that seed 0 chooses is good there."""
    signal = np.tile(np.arange(4.0)[:, None], 2)
    good = np.array([[True, False], [True, False], [False, True], [False, True]])
    assert claims.screened(signal, good, False) == ([0, 0], [0, 0])
    assert claims.screened(signal, good[:, [0, 0]], False) == ([1, 1], [1, 1])


def signals_of(S: int, good: Any, **signals: Any) -> dict[str, Any]:
    """A measurement of CartPole of six rates; those that are not given are noise."""
    rng = np.random.default_rng(0)
    noise = {name: rng.random((6, S)) for name in learning_rates.SIGNALS}
    rates = np.repeat([1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0], S)
    final = np.where(good, 500.0, 20.0).ravel().tolist()
    taken = {name: np.ravel(x).tolist() for name, x in {**noise, **signals}.items()}
    return {"env": ENV, "timestep": 10, "rates": rates.tolist(), "signals": taken, "final": final}


def test_what_is_said_of_early_signals(tmp_path: Path) -> None:
    """Both networks tell good from bad for each seed, the return does not; the actor's balance is
    in the middle, lower than that of too small rates."""
    S = 10
    good = np.repeat([False, False, True, True, False, False], S).reshape(6, S)
    falls = np.linspace(1, 0, 6 * S).reshape(6, S)
    m = signals_of(S, good, actor=falls, critic=falls)
    stored = {**MEASURED, "seeds": S, "measurements": [m]}
    write_measured(tmp_path / "learning_rates.json", stored)
    found = claims_in(claims.page([], tmp_path))
    assert found["claims-activations"].verdict == "in part"
    assert found["claims-screening"].verdict == "holds"
    assert found["claims-screening"].source.startswith(OURS)
    rows = tables_of([found["claims-activations"]])["claims-signals"]
    assert [x[:5] for x in rows[0][4:7]] == ["0.500", "0.000", "1.000"]
    assert rows[0][2:4] == ["10", "20 of 60"]
    assert "Not tested where" not in str(found["claims-activations"].details)


def test_an_environment_with_hardly_a_good_rate_tells_nothing(tmp_path: Path) -> None:
    """Of CartPole's rates 5 in 60 are good; Acrobot's are."""
    S = 10
    good = np.zeros((6, S), dtype=bool)
    good[2, :5] = True
    few = signals_of(S, good)
    many = signals_of(S, np.repeat([False, True, False], 2 * S).reshape(6, S))
    many |= {"env": "Acrobot-v1", "final": [x / 5 - 170 for x in many["final"]]}
    stored = {**MEASURED, "seeds": S, "measurements": [few, many]}
    write_measured(tmp_path / "learning_rates.json", stored)
    card = claims_in(claims.page([], tmp_path))["claims-activations"]
    assert f"are good: {ENV} (5 of 60)." in str(card.details)
    assert {row[1].split(",")[0] for row in card.details[0].rows} == {"Acrobot-v1"}


# ---- Seeds ---------------------------------------------------------------------------------


def test_groups_share_no_seed() -> None:
    a, b = claims.groups_of(np.arange(100.0), 5)
    assert a.shape == b.shape == (claims.SPLITS, 5)
    together = np.sort(np.concatenate([a, b], axis=1), axis=1)
    assert (np.diff(together, axis=1) > 0).all()
    # Any seed may be in any place.
    assert abs(a.mean() - 49.5) < 1
    assert abs(b.mean() - 49.5) < 1


def test_tests_of_few_seeds() -> None:
    rng = np.random.default_rng(1)
    a, b = rng.standard_normal((2, 4000, 10))
    assert 0.04 < claims.t_test(a, b).mean() < 0.06
    assert 0.065 < claims.bootstrap_test(a, b).mean() < 0.1  # too many: its intervals are short
    for test in (claims.t_test, claims.bootstrap_test):
        assert test(a, b + 3).mean() > 0.99
        assert not test(np.ones((3, 5)), np.ones((3, 5))).any()


def test_what_is_said_of_few_seeds(tmp_path: Path) -> None:
    """A comparison has a share per run; runs of other libraries and with few seeds have none."""
    plant(tmp_path, "ppo", numbers(120, 300, 30), env=ENV)
    plant(tmp_path, "a2c", numbers(121, 300, 30), env=ENV)
    plant(tmp_path, "trpo", numbers(122, 300, 30), env=ENV)
    plant(tmp_path, "dqn", numbers(60, 300, 30), env=ENV)
    plant(tmp_path, "sb3-ppo", numbers(120, 300, 30), env=ENV)
    plant(tmp_path, "ppo", numbers(120, 300, 30), env=ENV, gamma=0.9)
    found = claims_in(claims.page(results_of(tmp_path), tmp_path))
    assert found["claims-splits"].verdict in ("not shown", "does not hold")
    assert found["claims-splits"].source.startswith(OURS)
    assert found["claims-bootstrap"].verdict == "holds"
    rows = tables_of([found["claims-splits"]])["claims-seeds"]
    assert [row[:4] for row in rows] == [
        [algo, ENV, n, size]
        for algo, n in (("A2C", "121"), ("PPO", "120"), ("TRPO", "122"))
        for size in ("5", "10")
    ]


def test_the_iqm_of_all_against_the_median_of_means(tmp_path: Path) -> None:
    """Scores around 0.3, 0.5 and 0.7: the median is the middle one's, and as noisy as it; the IQM
    is mostly of the same, but of more seeds."""
    for env, middle in ((ENV, 0.3), ("MountainCar-v0", 0.5), ("Acrobot-v1", 0.7)):
        spec = envs.make(env).spec
        assert spec.random_score is not None
        assert spec.reference_score is not None
        span = spec.reference_score - spec.random_score
        # The curve is RANDOM at first, then `middle`, then the final score.
        mean = 2 * (spec.random_score + middle * span) - RANDOM
        plant(tmp_path, "ppo", numbers(120, mean, 0.8 * span), env=env, middle=mean)
    found = claims_in(claims.page(results_of(tmp_path), tmp_path))
    name = "The IQM over environments and seeds varies less than the median over environments."
    (row,) = tables_of([found[name]])["claims-iqm"]
    iqm, median = (float(x) for x in row[2:])
    assert 0 < iqm < median
    assert found[name].verdict == "holds"
    assert text_of(found[name].number) == f"its deviation is {iqm / median:.2f} of the median's"
    plant(tmp_path / "two", "ppo", numbers(120, 300, 30), env=ENV)
    plant(tmp_path / "two", "ppo", numbers(120, -300, 30), env="Acrobot-v1")
    assert name not in claims_in(claims.page(results_of(tmp_path / "two"), tmp_path))


def test_the_iqm_where_the_median_does_not_vary() -> None:
    """Two environments on both sides of one without any spread, whose score is the median."""

    def runs(algo: str, spread: float, of_middle: float = 0.0) -> list[Any]:
        made = []
        for mean, noise in ((0.3, spread), (0.5, of_middle), (0.7, spread)):
            auc = np.array([*numbers(120, mean, noise).values()])
            spec = SimpleNamespace(random_score=0.0, reference_score=1.0)
            made.append(SimpleNamespace(algo=algo, spec=spec, auc=auc))
        return made

    (varies,) = claims.middle_half(runs("ppo", 0.01))
    (constant,) = claims.middle_half(runs("ppo", 0.0))
    (both,) = claims.middle_half([*runs("ppo", 0.01), *runs("a2c", 0.2, 0.2)])
    assert isinstance(varies, Claim)
    assert isinstance(constant, Claim)
    assert isinstance(both, Claim)
    assert varies.verdict == "does not hold"
    assert constant.verdict == "not shown"
    for claim in (varies, constant):
        assert text_of(claim.number) == "the median of PPO does not vary"
    (ppo, a2c) = tables_of([both])["claims-iqm"]
    assert ppo[-1] == "0.0000" < a2c[-1]
    ratio = float(a2c[2]) / float(a2c[3])
    found = re.fullmatch(
        "its deviation is (.*) of the median's, but the median of PPO does not vary",
        text_of(both.number),
    )
    assert found
    assert float(found[1]) == pytest.approx(ratio, abs=0.02)
    assert "there is no quotient" in str(both.details)


def test_runs_without_any_spread_are_left_out(tmp_path: Path) -> None:
    for env in (ENV, "Acrobot-v1", "Pendulum-v1"):
        plant(tmp_path, "ppo", dict.fromkeys(range(120), 100.0), env=env, middle=100.0)
    assert not claims_in(claims.page(results_of(tmp_path), tmp_path))


# ---- Why trainings fail ---------------------------------------------------------------------


def test_failing_seeds_that_had_learned(tmp_path: Path) -> None:
    """Two of 12 fail; both were at the threshold in the middle of their training."""
    finals = dict.fromkeys(range(10), 500.0) | {10: 100.0, 11: 20.0}
    plant(tmp_path, "dqn", finals, env=ENV, middle=500.0)
    plant(tmp_path, "dqn", dict.fromkeys(range(12), 500.0), env=ENV, learning_rate=0.000575)
    plant(tmp_path, "dqn", finals, env=ENV, middle=100.0, gradient_steps=32)
    found = claims_in(failures.page(results_of(tmp_path), tmp_path))
    had = found["The seeds that fail had learned, and then lost it."]
    assert had.verdict == "holds"
    assert text_of(had.number).startswith("2 of 2 failing seeds had scored 475 or more before; ")
    assert "of the 10 others 0 had fallen" in text_of(had.number)
    steadier = found["failures-learning-rate"]
    assert steadier.verdict == "not shown"
    assert text_of(steadier.number).startswith("-0.167 [")
    # Fisher's, of 2 in 12 and 0 in 12, twice: of fewer steps nobody loses it, as two never had it.
    assert "p=0.957" in text_of(steadier.number)
    fewer = found["failures-gradient-steps"]
    rows = tables_of([fewer])["failures-gradient-steps-seeds"]
    budget = load_result(open_runs(tmp_path)[0]).timesteps
    assert [row[1:] for row in rows] == [
        ["12", "10", f"{budget:,}", "0", "2"],
        ["12", "12", f"{budget // 2:,}", "2", "2"],
    ]
    assert text_of(fewer.number).startswith("-0.167 [")
    plant(tmp_path / "other", "dqn", finals, env=ENV, middle=100.0)
    found = claims_in(failures.page(results_of(tmp_path / "other"), tmp_path))
    had = found["The seeds that fail had learned, and then lost it."]
    assert had.verdict == "does not hold"


def test_losing_less_is_claimed_of_each_change_alone(tmp_path: Path) -> None:
    """All of 20 lose it, none with a lower rate, all with fewer steps; the others never had it."""
    losing, keeping = (dict.fromkeys(range(20), x) for x in (100.0, 500.0))
    plant(tmp_path, "dqn", losing, env=ENV, middle=500.0)
    plant(tmp_path, "dqn", keeping, env=ENV, learning_rate=0.000575)
    plant(tmp_path, "dqn", losing, env=ENV, middle=500.0, gradient_steps=32)
    learned_late = {**losing, **dict.fromkeys(range(9), 500.0)}  # none loses it
    plant(tmp_path, "dqn", learned_late, env=ENV, middle=100.0, target_update_interval=1_024)
    plant(tmp_path, "rainbow", losing, env=ENV, middle=500.0, **NO_PARTS)
    plant(tmp_path, "rainbow", keeping, env=ENV, **ALONE["n steps"])
    claims_found = claims_in(failures.page(results_of(tmp_path), tmp_path))
    words = {name: claim.verdict for name, claim in claims_found.items()}
    target = "a target network that is 1,024 timesteps old"
    untested = f"Fewer seeds lose what they have learned with {target}."
    had = "The seeds that fail had learned, and then lost it."
    assert words == {
        had: "holds",
        "failures-learning-rate": "holds",
        "failures-gradient-steps": "not shown",
        untested: "not tested",
        "failures-n-steps": "holds",
    }
    assert text_of(claims_found[untested].number).startswith(
        f"of 20 seeds with {target}, 9 reach the threshold within "
    )
    assert "n steps alone minus no part" in text_of(claims_found["failures-n-steps"].number)
    plant(tmp_path / "other", "dqn", keeping, env=ENV, middle=500.0)
    plant(tmp_path / "other", "dqn", losing, env=ENV, middle=500.0, learning_rate=0.000575)
    found = claims_in(failures.page(results_of(tmp_path / "other"), tmp_path))
    assert found["failures-learning-rate"].verdict == "does not hold"


def test_what_reinforce_lacks_on_pendulum(tmp_path: Path) -> None:
    """Each change stands under what it changes."""
    env = "Pendulum-v1"
    plant(tmp_path, "reinforce", around(-1150, 30), env=env, middle=-1150)
    for mean, settings in zip((-400, -1150), MORE_STEPS, strict=True):
        plant(tmp_path, "reinforce", around(mean, 30), env=env, middle=mean, **settings)
    found = claims_in(failures.page(results_of(tmp_path), tmp_path))
    words = {name: claim.verdict for name, claim in found.items()}
    assert words == {"failures-budget": "holds", "failures-rate": "does not hold"}
    rows = {name: tables_of([claim])[name][0][1] for name, claim in found.items()}
    assert rows["failures-budget"] == "6000000 against 300000"
    assert rows["failures-rate"] == "0.01 against 0.001"


def log_metrics(folder: RunFolder, rows: int, budget: int, **columns: float) -> None:
    """So many rows of metrics of each seed, all alike; value_loss falls by half in the last row."""
    (part,) = folder.path.glob("seeds-*")
    seeds = read_json(part / "config.json")["seeds"]
    at = np.linspace(budget / rows, budget, rows)
    table = pd.DataFrame({"seed": np.repeat(seeds, rows), "timestep": np.tile(at, len(seeds))})
    table = table.assign(**columns)
    if "value_loss" in columns:
        table.loc[table["timestep"] == budget, "value_loss"] /= 2
    write_bytes(part / "metrics.parquet", parquet_bytes(table))
    seal(part)


def test_a_baseline_is_tested_where_reinforce_learns(tmp_path: Path) -> None:
    """Not before its runs are there, and not by the preset, which does not learn."""
    env = "Pendulum-v1"
    more, larger = MORE_STEPS

    def train(mean: float, rows: int, **settings: Any) -> None:
        folder = plant(tmp_path, "reinforce", around(mean, 30), env=env, middle=mean, **settings)
        budget = settings.get("total_timesteps", 300_000)
        loss = {"value_loss": 1000.0} if "weight" in settings else {}
        # 1.5 times the variance: a signal of half the noise.
        log_metrics(folder, rows, budget, grad_norm=3.0, grad_variance=6.0, **loss)

    def card() -> Claim:
        found = claims_in(failures.page(results_of(tmp_path), tmp_path))
        start = "It lacks a baseline: with a learned one REINFORCE ends higher"
        (claim,) = (x for x in found.values() if text_of(x.claim).startswith(start))
        return claim

    train(-1190.0, 188)
    train(-1150.0, 188, **BASELINE)
    train(-500.0, 200, **more)
    train(-800.0, 188, **larger)
    train(-400.0, 200, **more, **BASELINE)
    untested = card()
    assert untested.verdict == "not tested"
    assert text_of(untested.number) == ("no runs yet of learning rate 0.01 with a learned baseline")
    train(-600.0, 188, **larger, **BASELINE)
    assert card().verdict == "holds"
    tables = tables_of([card()])
    assert [row[1] for row in tables["failures-baseline"]] == [
        "total timesteps 6,000,000",
        "learning rate 0.01",
    ]
    settings = ["the preset", "total timesteps 6,000,000", "learning rate 0.01"]
    noise = tables["failures-noise"]
    assert [row[:3] for row in noise] == [
        [x, side, "30"] for x in settings for side in ("learned", "none")
    ]
    assert [row[4] for row in noise] == ["no: it does not learn"] * 2 + ["yes"] * 4
    assert [row[5:7] for row in noise[:2]] == [["1,000", "979"], ["-", "-"]]
    assert [row[7][:5] for row in noise] == ["0.500", "0.500", "-", "-", "0.500", "0.500"]


def test_a_baseline_is_not_tested_where_nothing_learns(tmp_path: Path) -> None:
    """Nor do runs without metrics, or without any without a baseline, end the page."""
    for x in ({}, *MORE_STEPS):
        for side in ({}, BASELINE):
            settings = {"env": "Pendulum-v1", "middle": -1190.0, **x, **side}
            plant(tmp_path, "reinforce", around(-1190, 30), **settings)
    found = claims_in(failures.page(results_of(tmp_path), tmp_path))
    (number,) = (text_of(x.number) for x in found.values() if "baseline" in text_of(x.claim))
    assert number == "it learns in no setting"
    plant(tmp_path / "alone", "reinforce", around(-1190, 30), env="Pendulum-v1", **BASELINE)
    assert not claims_in(failures.page(results_of(tmp_path / "alone"), tmp_path))


def test_one_gradient_step_is_no_claim(tmp_path: Path) -> None:
    env = "Pendulum-v1"
    plant(tmp_path, "reinforce", around(-1150, 30), env=env, middle=-1150)
    plant(tmp_path, "reinforce", around(-400, 30), env=env, **MORE_STEPS[0])
    log_metrics(plant(tmp_path, "grpo", around(-170, 30), env=env), 47, 300_000, approx_kl=0.25)
    one = plant(tmp_path, "grpo", around(-900, 30), env=env, **ONE_STEP)
    log_metrics(one, 47, 300_000, approx_kl=0.0)
    blocks = [*failures.page(results_of(tmp_path), tmp_path)]
    assert [*claims_in(blocks)] == ["failures-budget"]
    rows = tables_of(blocks)["failures-one-step"]
    # 47 updates of 4 groups of 8 episodes of 200 steps: 10 epochs of 25 minibatches, or one.
    assert [row[:4] for row in rows] == [
        ["the preset", "30", "11,750", "0.2500"],
        ["one gradient step per update", "30", "47", "0.0000"],
    ]


def test_groups_that_differ_are_a_signal(tmp_path: Path) -> None:
    env = "MountainCar-v0"
    folder = plant(tmp_path, "grpo", around(-200, 2), env=env, middle=-200)
    assert not claims_in(failures.page(results_of(tmp_path), tmp_path))  # no metrics
    (part,) = folder.path.glob("seeds-*")
    for share, word in ((1.0, "holds"), (0.9, "does not hold")):
        rows = pd.DataFrame({"seed": [0, 1], "timestep": 100, "zero_variance": [1.0, share]})
        write_bytes(part / "metrics.parquet", parquet_bytes(rows))
        seal(part)
        (claim,) = claims_in(failures.page(results_of(tmp_path), tmp_path)).values()
        assert claim.verdict == word


def test_an_untrained_critic_is_what_is_missed(tmp_path: Path) -> None:
    env, budget = "MountainCar-v0", {"total_timesteps": 300_000}
    plant(tmp_path, "ppo", around(-110, 30), env=env, middle=-150, **budget)
    plant(tmp_path, "ppo", around(-199, 30), env=env, middle=-200, **budget, value_coef=0.0)
    found = claims_in(failures.page(results_of(tmp_path), tmp_path))
    assert [*found] == ["failures-critic"]
    assert found["failures-critic"].verdict == "holds"


def test_grpo_goes_on_from_ppos_policy() -> None:
    """With the same actions; its statistics of observations are PPO's, too."""
    settings = {"seeds": 2, "quiet": True}
    first = from_preset(ppo.Config, ppo.PRESETS, goal_first.ENV, **settings, total_timesteps=512)
    agent = ppo.train(first, Run(first, range(2)))
    then = from_preset(grpo.Config, grpo.PRESETS, goal_first.ENV, normalize_obs=True, **settings)
    run = goal_first.After(then, range(2), agent)
    actor = run.begin_with(grpo.Actor(then.make_env().spec, then, run.streams("init")))
    obs = torch.randn(2, 50, 2) * 0.05
    torch.testing.assert_close(actor.policy(obs).logits, agent.policy(obs).logits)


def test_what_is_said_of_grpo_after_ppo(tmp_path: Path) -> None:
    means = {goal_first.PPO_STOPPED: -130.0}
    means |= dict(zip(goal_first.STAGES, (-140.0, -115.0, -200.0, -200.0), strict=True))
    returns = {
        stage: {mode: [*numbers(30, mean, 2).values()] for mode in ("greedy", "sampled")}
        for stage, mean in means.items()
    }
    stored = {**MEASURED, "seeds": 30, "timesteps": 50_000, "returns": returns}
    write_measured(tmp_path / "goal_first.json", stored)
    found = claims_in(failures.page([], tmp_path))
    assert found["failures-goal"].verdict == "does not hold"
    assert found["failures-divided"].verdict == "holds"
    alone = {**stored, "seeds": 1}
    alone["returns"] = {x: {m: y[:1] for m, y in z.items()} for x, z in returns.items()}
    write_measured(tmp_path / "alone" / "goal_first.json", alone)
    one = claims_in(failures.page([], tmp_path / "alone"))
    assert one["failures-goal"].verdict == "not shown"
    rows = tables_of([found["failures-goal"]])["failures-goal"]
    assert [row[0] for row in rows] == [*means]
