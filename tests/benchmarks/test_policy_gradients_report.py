"""The policy-gradient sections of the report, from small real runs."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from manyseeds import stats
from manyseeds.algos import a2c, grpo, ppo, reinforce
from manyseeds.benchmarks.chapters import gradient_variance, policy_gradients
from manyseeds.benchmarks.chapters.blocks import Block, Claim, Figure, Text, text_of, walk
from manyseeds.benchmarks.chapters.differences import lies_above
from manyseeds.benchmarks.chapters.policy_gradients import GRPO_CLAIMS, grpo_claim
from manyseeds.benchmarks.experiments import suite
from manyseeds.benchmarks.measurements import critic_cost
from manyseeds.benchmarks.store.results import load_result, parity, verdict_text
from manyseeds.benchmarks.store.stored import open_runs
from manyseeds.cli import Preset, flag, parse
from manyseeds.runs import control
from tests.benchmarks.conftest import MEASURED, Patch, tables_of
from tests.benchmarks.test_gradient_variance import stored_of
from tests.benchmarks.test_report import plant

BUDGET = 1_500


def command(module: Any, *args: str) -> None:
    budget = "--total-timesteps", str(BUDGET), "--seeds", "5"
    execution = "--quiet", "--results", "results"
    config = parse(module.Config, module.PRESETS, "", [*args, *budget, *execution])
    control.main(config, module.train, module.PRESETS)


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with pytest.MonkeyPatch.context() as monkeypatch:
        yield make_runs(tmp_path_factory.mktemp("store"), monkeypatch)


def make_runs(tmp_path: Path, monkeypatch: Patch) -> Path:
    for module in (suite, critic_cost):
        monkeypatch.setattr(module, "BUDGETS", {"CartPole-v1": BUDGET, "MountainCar-v0": BUDGET})
    preset = Preset({"num_envs": 2, "total_timesteps": BUDGET}, "a test")
    monkeypatch.setitem(a2c.PRESETS, "CartPole-v1", preset)
    with monkeypatch.context() as patch:
        patch.chdir(tmp_path)
        patch.setattr(control, "POINTS", 2)
        train_all()
    return tmp_path / "results"


def train_all() -> None:
    for weight in ("total_return", "baseline"):
        command(reinforce, "--weight", weight, "--gamma", "1")
    for args in ((), ("--advantage", "outcome", "--std", "none"), ("--gamma", "0.5")):
        command(grpo, *args)
    for advantage in ("process", "outcome"):
        command(grpo, "--advantage", advantage, "--gamma", "1")
    for settings in (suite.A2C_ADVANTAGES[0], suite.A2C_ADVANTAGES[1], {}, {"gamma": 0.5}):
        command(a2c, *(word for name, x in settings.items() for word in (flag(name), str(x))))
    command(grpo, "--env", "MountainCar-v0")
    command(ppo)


@pytest.mark.slow
def test_sections_hold_what_the_runs_found(results: Path) -> None:
    loaded = [load_result(folder) for folder in open_runs(results)]
    weights = [*policy_gradients.weights_section(loaded, results)]
    named = [row[:3] for row in tables_of(weights)["reinforce-weights"]]
    assert named == [["total_return", "yes", "5"], ["baseline", "yes", "5"]]
    assert not [x for x in weights if isinstance(x, Claim)]  # no policies are frozen
    advantages = [*policy_gradients.advantages_section(loaded)]
    found = tables_of(advantages)["grpo-advantages"]
    rows = {row[1]: row for row in found if row[0] == "CartPole-v1"}
    assert list(rows) == [  # not gamma 0.5
        *("return to go", "outcome, no std"),
        *("process, gamma 1", "outcome, gamma 1", "PPO, with a critic"),
    ]
    assert rows["PPO, with a critic"][-1] == ""
    (signalless,) = (row for row in found if row[0] == "MountainCar-v0")
    assert signalless[-1] == "100%"
    figures = [x.name for x in walk([*weights, *advantages]) if isinstance(x, Figure)]
    assert figures == ["reinforce", "grpo-critic", "advantages"]
    replaced, process = (x for x in advantages if isinstance(x, Claim))
    assert (replaced.verdict, replaced.number) == (
        "not shown",  # five seeds decide nothing
        "true in 0 of 1 comparison by late score, false in 0, undecided in 1",
    )
    assert (process.verdict, process.number) == ("not tested", "no comparison could decide")
    ((_, gradients, _, answer),) = tables_of([process])["grpo-process"]
    assert (gradients[:7], answer) == ("none / ", "not tested")  # all rewards of steps are 1
    assert not policy_gradients.critic_section(loaded, results)


def test_estimators_of_a2c_stand_beside_gae(results: Path) -> None:
    loaded = [load_result(folder) for folder in open_runs(results)]
    section = [*policy_gradients.estimators_section(loaded)]
    rows = {row[1]: row for row in tables_of(section)["a2c-advantages"]}
    # Not gamma 0.5, and nothing of what is not trained.
    assert list(rows) == ["GAE, lambda 0.95", "n-step, n = 1", "preset: GAE, lambda 1, 5 steps"]
    gae, one_step, preset = rows.values()
    assert gae[5] == gae[7] == ""  # beside itself
    by_name = {
        (r.config["advantage"], r.config["num_steps"]): r
        for r in loaded
        if r.algo == "a2c" and r.config["gamma"] == 0.99
    }
    reference = by_name["gae", 64]
    for row, key in ((one_step, ("n_step", 64)), (preset, ("gae", 5))):
        result = by_name[key]
        for column, measure in ((5, "late"), (7, "auc")):
            verdict = parity(getattr(result, measure), getattr(reference, measure), result.spec)
            assert row[column] == verdict_text(verdict, result.spec)
    (claim,) = (x for x in section if isinstance(x, Claim))
    assert claim.figure
    assert [row.label for row in claim.figure.data["panels"]["CartPole-v1"]] == ["n-step, n = 1"]
    assert not [*policy_gradients.estimators_section([])]


def test_cost_of_the_critic(results: Path, tmp_path: Path, monkeypatch: Patch) -> None:
    figures = {}
    for algo, module in (("ppo", ppo), ("grpo", grpo)):
        monkeypatch.setattr(module, "SeedAdam", module.SeedAdam)  # it is replaced: put it back
        figures[algo] = critic_cost.measure(algo, "CartPole-v1")
    # Two networks of the same size, with gradient, mean and square of float32 each.
    assert figures["ppo"]["parameters"] == 2 * figures["grpo"]["parameters"]
    padded = figures["grpo"]["optimizer_bytes"] / 12
    assert 0 <= padded - figures["grpo"]["parameters"] < 16
    assert figures["grpo"]["timesteps"] >= BUDGET * critic_cost.SEEDS

    where = {"repeat": 0, "env": "CartPole-v1"}
    measurements = [{**where, "algo": algo, **values} for algo, values in figures.items()]
    stored = {**MEASURED, "seeds": critic_cost.SEEDS, "measurements": measurements}
    (tmp_path / "critic_cost.json").write_text(json.dumps(stored))
    loaded = [load_result(folder) for folder in open_runs(results)]
    section = policy_gradients.critic_section(loaded, tmp_path)
    ours, theirs = tables_of(section)["critic-cost"]
    assert (ours[1], theirs[1]) == ("PPO", "GRPO")
    assert ours[6].startswith("1.00")
    assert theirs[2] == f"{figures['grpo']['parameters']:,.0f}"
    assert theirs[7] != ""
    runs = [r for r in loaded if r.algo in ("ppo", "grpo")]
    by_name = {
        algo: policy_gradients.run_with(runs, algo, "CartPole-v1") for algo in ("ppo", "grpo")
    }
    assert policy_gradients.CRITIC_COLUMNS[8:] == (
        *("timesteps to threshold", "reached by"),
        "core-seconds to threshold",
    )
    for row, result in ((ours, by_name["ppo"]), (theirs, by_name["grpo"])):
        assert result
        assert row[8:] == [*result.threshold_texts(), result.core_seconds_text()]


def test_the_cost_of_the_critic_has_core_seconds(tmp_path: Path) -> None:
    """Of the stored runs, with a note of what they are: a seed is there at its last evaluation."""
    budget = {"total_timesteps": suite.BUDGETS["CartPole-v1"]}
    for algo, speed in (("ppo", 10_000.0), ("grpo", 5_000.0)):
        plant(tmp_path, algo, dict.fromkeys(range(10), 490.0), speed=speed, **budget)
    loaded = [load_result(folder) for folder in open_runs(tmp_path)]
    where = {"repeat": 0, "env": "CartPole-v1", "timesteps": 100, "memory": 50.0}
    figures = {**where, "learn_s": 1.0, "parameters": 10, "optimizer_bytes": 120}
    stored = {**MEASURED, "seeds": 10}
    stored["measurements"] = [{**figures, "algo": algo} for algo in ("ppo", "grpo")]
    section = policy_gradients.critic_blocks(stored, loaded)
    for row, result in zip(tables_of(section)["critic-cost"], loaded[::-1], strict=True):
        assert row[1] == {"ppo": "PPO", "grpo": "GRPO"}[result.algo]
        assert result.fastest
        seconds = result.timesteps / result.fastest[0]
        assert row[8:10] == [f"{result.timesteps:,}", "10 of 10"]
        assert float(row[10]) == pytest.approx(seconds, rel=0.01)
    texts = [text_of(x) for x in walk(section) if isinstance(x, Text)]
    (note,) = (text for text in texts if "Core-seconds are" in text)
    assert "SB3" not in note


def test_a_geometric_mean_leaves_out_zeros(monkeypatch: Patch) -> None:
    """In the second part of the training the first seed has no gradient."""
    table = pd.DataFrame({100: [10.0, 1000.0], 200: [0.0, 1.0], 300: [100.0, 100.0]})
    monkeypatch.setattr(policy_gradients, "metric_curve", lambda *_: table)
    result: Any = SimpleNamespace(timesteps_requested=300)
    line, text = policy_gradients.geometric_mean(result, "grad_variance")
    assert list(line.x) == [100, 300]
    np.testing.assert_allclose(line.y, [100, 100])
    assert text.startswith("100 [")


@pytest.mark.parametrize(
    ("a", "b", "answer"),
    [((2, 3), (0, 1), "true"), ((0, 1), (2, 3), "false"), ((0, 2), (1, 3), "undecided")],
)
def test_answers_from_intervals_and_ranges(
    a: tuple[float, float], b: tuple[float, float], answer: str
) -> None:
    above = (stats.Estimate(sum(x) / 2, *x, n=10) for x in (a, b))
    assert lies_above(*above) == answer
    assert policy_gradients.is_less(b, a) == answer


UNBIASED = {  # variance, signal and dot: the gradient has the length of the baseline's mean
    "total_return": (400.0, -1.0, 9.0),
    "return_to_go": (40.0, 7.0, 5.0),
    "baseline": (4.0, 4.0, 4.0),
}


def noise_rows(blocks: Iterable[Block]) -> dict[str, str]:
    """The differences of the claim on noise, by what was compared."""
    return {row[1]: row[3] for row in tables_of(blocks)[""]}


def test_noise_counts_only_what_lies_along_the_gradient() -> None:
    """The mean of Q is ten times as long as the gradient, but across it: that is no signal."""
    blocks = [*policy_gradients.noise_blocks(stored_of(UNBIASED | {"q": (400.0, 400.0, 4.0)}))]
    assert noise_rows(blocks) == {
        "return-to-go against R(tau), half": "-1.000 [-1.000, -1.000]",
        "return-to-go minus V against return-to-go, half": "-1.000 [-1.000, -1.000]",
        "Q against return-to-go, half": "+1.000 [+1.000, +1.000]",
    }
    assert "Not tested" not in said(blocks)


def test_a_weight_without_a_signal_is_not_tested() -> None:
    blocks = [*policy_gradients.noise_blocks(stored_of(UNBIASED | {"q": (400.0, 400.0, -4.0)}))]
    assert len(noise_rows(blocks)) == 2
    assert said(blocks).endswith(
        "Not tested: Q against return-to-go, half (Q has no signal in 2 of 2 seeds)."
    )
    assert not [*policy_gradients.noise_blocks(stored_of({"baseline": (4.0, 4.0, 4.0)}))]


def test_pages_agree_on_the_noise_of_weights(tmp_path: Path) -> None:
    (tmp_path / "gradient_variance.json").write_text(json.dumps(stored_of(UNBIASED)))
    rows = noise_rows(policy_gradients.weights_section([], tmp_path))
    table = tables_of(gradient_variance.page(tmp_path))["gradient-variance-weights"]
    factor = table[0][2].split(" to ")[0]  # R(tau)'s relative variance, divided by return-to-go's
    difference = float(rows["return-to-go against R(tau), half"].split()[0])
    assert 10**-difference == pytest.approx(float(factor))


def said(blocks: Iterable[Block]) -> str:
    return " ".join(text_of(x) for x in walk(blocks) if isinstance(x, Text))


@pytest.mark.parametrize(
    ("share", "text"), [(0.0, "none"), (1e-6, "<1%"), (0.454, "45%"), (1.0, "100%")]
)
def test_share_of_groups_with_a_gradient(share: float, text: str, monkeypatch: Patch) -> None:
    """Of two seeds, one of which has logged more often."""
    silent = 1 - share
    table = pd.DataFrame({"seed": [0, 0, 1], "zero_variance": [silent] * 3})
    monkeypatch.setattr(policy_gradients, "metrics_of", lambda *_: table)
    result: Any = None
    found = policy_gradients.informative_share(result)
    assert found == pytest.approx(share)
    assert policy_gradients.share_text(found) == text


def test_supervisions_differ_in_nothing_else() -> None:
    """And no reward counts less than another."""
    for process, outcome in suite.SUPERVISION:
        assert {**process, "advantage": "outcome"} == outcome
        assert outcome["gamma"] == 1
        for settings in (process, outcome):
            cells = [c for c in suite.SUITES["claims"] if c.settings == settings]
            assert [c.env for c in cells] == [*suite.ABLATED]
            assert {c.seeds for c in cells} == {30}


Runs = dict[tuple[str, str], Any]


def decided(word: Any, monkeypatch: Patch) -> Runs:
    """Runs of every side of every claim on CartPole, which differ as the word says."""
    verdict = stats.Parity(word, stats.Estimate(0.2, 0.1, 0.3, 30), 0.03)
    monkeypatch.setattr(policy_gradients, "parity_of", lambda *_: verdict)
    spec = SimpleNamespace(random_score=0.0, reference_score=1.0)
    algos = {policy_gradients.PPO_NAME: "ppo"}
    names = [name for about in GRPO_CLAIMS for pair in about[3].values() for name in pair]
    return {
        ("CartPole-v1", name): SimpleNamespace(spec=spec, algo=algos.get(name, "grpo"))
        for name in names
    }


def test_a_side_without_a_gradient_tests_no_supervision(monkeypatch: Patch) -> None:
    """Its policies are those that it began with. That the critic is not replaced, it shows."""
    runs = decided("worse", monkeypatch)
    shares = {key: 0.0 if key[1].startswith("process") else 0.956 for key in runs}
    claim = grpo_claim(*GRPO_CLAIMS[1], runs, shares)
    assert (claim.verdict, claim.number) == (
        "not tested",
        "no comparison could decide",
    )
    first, second = tables_of([claim])["grpo-process"]
    assert first == [
        *("CartPole-v1, minibatch of the preset", "none / 96%"),
        *("no gradient with process, gamma 1", "not tested"),
    ]
    assert second[0] == "CartPole-v1, minibatch 2048"

    shares = dict.fromkeys(runs, 0.5)
    claim = grpo_claim(*GRPO_CLAIMS[1], runs, shares)
    assert claim.verdict == "does not hold"
    assert [row[-1] for row in tables_of([claim])["grpo-process"]] == ["false", "false"]

    key = "CartPole-v1", policy_gradients.PLAIN
    claim = grpo_claim(*GRPO_CLAIMS[0], runs, {key: 0.0})
    assert claim.verdict == "does not hold"
    ((_, gradient, _, answer),) = tables_of([claim])["grpo-critic"]
    assert (gradient, answer) == ("none", "false")


def test_equal_scores_of_all_seeds_test_no_supervision(monkeypatch: Patch) -> None:
    runs = decided("saturated", monkeypatch)
    claim = grpo_claim(*GRPO_CLAIMS[1], runs, dict.fromkeys(runs, 0.5))
    assert [row[-1] for row in tables_of([claim])["grpo-process"]] == ["not tested"] * 2
    claim = grpo_claim(*GRPO_CLAIMS[0], runs, {})
    assert claim.verdict == "not tested"
    assert tables_of([claim])["grpo-critic"][0][2].endswith("both are at the ceiling")


def test_equal_scores_at_the_ceiling_do_not_replace_a_critic(monkeypatch: Patch) -> None:
    """SB3's PPO and A2C score the same on CartPole, too."""
    runs = decided("equivalent", monkeypatch)
    claim = grpo_claim(*GRPO_CLAIMS[0], runs, {})
    assert [row[-1] for row in tables_of([claim])["grpo-critic"]] == ["not tested"]


def test_claims_are_corrected_together(tmp_path: Path, monkeypatch: Patch) -> None:
    """0.03 thrice: each alone is below 0.05, all together are not."""
    runs = decided("better", monkeypatch)
    claims = [grpo_claim(*about, runs, dict.fromkeys(runs, 1.0)) for about in GRPO_CLAIMS]
    assert [x.verdict for x in claims] == ["holds", "holds"]
    monkeypatch.setattr(policy_gradients, "sections", lambda titled: iter(claims))
    blocks = list(policy_gradients.page([], tmp_path))
    found = [x for x in blocks if isinstance(x, Claim)]
    assert [x.verdict for x in found] == ["not shown", "not shown"]
    for name in ("grpo-critic", "grpo-process"):
        for *_, text, answer in tables_of(blocks)[name]:
            assert (text[-7:], answer) == ("p=0.090", "undecided")
