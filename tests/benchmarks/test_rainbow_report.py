"""The page of Rainbow's parts: what it says of runs whose scores are known."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from manyseeds import stats
from manyseeds.benchmarks.chapters import rainbow
from manyseeds.benchmarks.chapters.blocks import Block, Claim, Figure, Outcome, walk
from manyseeds.benchmarks.chapters.rainbow import ALL, NONE, VARIANTS
from manyseeds.benchmarks.experiments import catalog
from manyseeds.benchmarks.experiments.suite import ALONE, NO_PARTS, PARTS, QR_DQN, SUITES
from manyseeds.benchmarks.store.results import load_result
from manyseeds.benchmarks.store.stored import open_runs
from manyseeds.cli import identity
from tests.benchmarks.conftest import tables_of
from tests.benchmarks.test_report import plant

ENV = "CartPole-v1"


def page_of(results: Path, means: dict[str, float]) -> list[Block]:
    """The page of variants of 30 seeds with scores around these means, on CartPole."""
    for variant, mean in means.items():
        finals = dict(enumerate((mean + np.linspace(-3, 3, 30)).tolist()))
        plant(results, "rainbow", finals, env=ENV, middle=mean, **VARIANTS[variant])
    return list(rainbow.page([load_result(run) for run in open_runs(results)]))


def test_a_variant_turns_the_parts_it_says() -> None:
    """The preset has all parts; one is changed, or all but one."""
    plain = catalog.plain_settings("algos", "rainbow", ENV)
    assert {name: x for on, _ in PARTS.values() for name, x in on.items()}.items() <= plain.items()
    for variant, settings in VARIANTS.items():
        changed = {name for name, x in settings.items() if plain[name] != x}
        alone = 5 if variant != "quantiles alone" else 6
        expected = {NONE: 6, ALL: 0}.get(variant, 1 if "but" in variant else alone)
        assert len(changed) == expected, variant
    here = [cell for cell in SUITES["rainbow"] if cell.env == ENV]
    cells = [identity(cell.config()) for cell in here if cell.settings != QR_DQN[ENV]]
    assert len(cells) == len(VARIANTS) == 15
    assert [x.label for x in here if x.settings == QR_DQN[ENV]] == ["rainbow", "sb3-rainbow"]
    assert all(plain | settings in cells for settings in VARIANTS.values())
    assert plain | NO_PARTS in cells


@pytest.mark.slow
def test_what_carries_rainbow(tmp_path: Path) -> None:
    means = dict.fromkeys(VARIANTS, 300.0)
    means |= {ALL: 450.0, "n steps alone": 400.0, "all but n steps": 310.0}
    means |= {f"all but {name}": 450.0 for name in PARTS if name != "n steps"}
    blocks = page_of(tmp_path, means)
    together, steps, prioritized = (x for x in blocks if isinstance(x, Claim))
    assert together.verdict == steps.verdict == "holds"
    assert prioritized.verdict == "does not hold"
    (outcome,) = (x for x in blocks if isinstance(x, Outcome))
    assert "parts is n steps: DQN learns faster with it alone in 1 of 1 env" in str(outcome)
    assert tables_of(blocks)["rainbow-effects"][0] == ["n steps", ENV, "-", ENV, "-"]
    assert list(tables_of(blocks)["rainbow-effects"][1][1:]) == ["-"] * 4
    rows = {row[1]: row for row in tables_of(blocks)["rainbow"]}
    assert set(rows) == set(VARIANTS)
    assert rows["n steps alone"][-1].startswith("better")
    assert rows["all but n steps"][-1].startswith("worse")
    assert rows["all but double"][-1].startswith("equivalent")
    assert rows[ALL][-1].startswith("better")
    assert list(rows[NONE][-2:]) == ["", ""]
    drawn = {x.name for x in walk(blocks) if isinstance(x, Figure)}
    assert drawn == {
        *("rainbow", "rainbow-alone", "rainbow-without"),
        *("rainbow-n-steps", "rainbow-prioritized"),
    }


def test_a_crucial_part_is_missed_more_than_the_others_are(tmp_path: Path) -> None:
    """Removing any of them is worse, prioritized replay no more than the four others on average,
    although these differ; n steps more."""
    means = {"double": 440.0, "dueling": 380.0, "noisy": 410.0, "C51": 370.0}
    means |= {"prioritized": 400.0, "n steps": 300.0}
    variants = {ALL: 480.0} | {f"all but {name}": mean for name, mean in means.items()}
    blocks = page_of(tmp_path, variants)
    words = {x.figure.name: x.verdict for x in blocks if isinstance(x, Claim) and x.figure}
    assert words == {"rainbow-n-steps": "holds", "rainbow-prioritized": "does not hold"}
    ((env, change, of_others, text, answer),) = tables_of(blocks)["rainbow-prioritized"]
    assert (env, text[:10], answer) == (ENV, "equivalent", "false")
    assert change == of_others
    ((_, change, of_others, text, answer),) = tables_of(blocks)["rainbow-n-steps"]
    assert (text[:5], answer) == ("worse", "true")
    difference = float(text.split(" ")[1])
    assert difference == pytest.approx(float(change) - float(of_others), abs=0.0011)
    rows = {row[1]: row for row in tables_of(blocks)["rainbow"]}
    assert rows["all but prioritized"][-2].startswith("worse")


def test_without_one_of_the_others_no_part_is_crucial(tmp_path: Path) -> None:
    means = {f"all but {name}": 400.0 for name in PARTS if name != "noisy"}
    assert not any(isinstance(x, Claim) for x in page_of(tmp_path, {ALL: 480.0, **means}))


def test_what_the_other_parts_differ_by_is_no_noise(tmp_path: Path) -> None:
    """Spread out around the same mean, they give the same interval."""

    def interval(folder: Path, spread: float) -> tuple[float, float]:
        means = {"prioritized": 400.0, "double": 400.0 - spread, "dueling": 400.0 + spread}
        means |= {"noisy": 400.0 - spread, "C51": 400.0 + spread}
        page_of(folder, {f"all but {name}": mean for name, mean in means.items()})
        runs = rainbow.runs_of([load_result(run) for run in open_runs(folder)], ENV)
        verdict = rainbow.among_parts(runs, "prioritized")
        assert verdict
        return verdict.difference.low, verdict.difference.high

    alike = interval(tmp_path / "alike", 0.0)
    np.testing.assert_allclose(interval(tmp_path / "spread", 60.0), alike, atol=1e-6)


def test_verdicts_on_learning_speed_are_corrected_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    verdict = stats.Parity("better", stats.Estimate(0.2, 0.1, 0.3, 30), 0.03)
    monkeypatch.setattr(rainbow, "parity_of", lambda *_: verdict)
    for variants, word in (((NONE, ALL), "holds"), (("n steps alone",), "not shown")):
        blocks = page_of(tmp_path, dict.fromkeys(variants, 300.0))
        assert [x.verdict for x in blocks if isinstance(x, Claim)] == [word]
    rows = {row[1]: row[-2:] for row in tables_of(blocks)["rainbow"]}
    auc, final = rows["n steps alone"]
    assert (auc[:9], auc[-7:]) == ("undecided", "p=0.060")
    assert (final[:6], final[-7:]) == ("better", "p=0.030")
    assert not any(isinstance(x, Outcome) for x in blocks)


def test_an_environment_without_all_variants_is_not_counted() -> None:
    better, worse = (
        stats.Parity(word, stats.Estimate(x, x, x, 30), 0.03)
        for word, x in (("better", 0.2), ("worse", -0.2))
    )
    verdicts: dict[tuple[str, str, str], stats.Parity | None] = {}
    envs = ["CartPole-v1", "Acrobot-v1"]
    for env in envs:
        verdicts |= {(env, f"{name} alone", "auc"): better for name in ALONE}
        verdicts |= {(env, f"all but {name}", "auc"): worse for name in PARTS}
    verdicts["Acrobot-v1", "noisy alone", "auc"] = worse  # which hurts
    assert rainbow.environments_of(verdicts) == envs
    assert rainbow.effects(verdicts)["double"] == (envs, [], envs, [])
    assert rainbow.effects(verdicts)["noisy"] == (envs[:1], envs[1:], envs, [])
    assert rainbow.effects(verdicts)["quantiles"] == (envs, [], [], [])
    del verdicts["Acrobot-v1", "all but double", "auc"]
    assert rainbow.environments_of(verdicts) == envs[:1]
    assert rainbow.effects(verdicts)["noisy"] == (envs[:1], [], envs[:1], [])
    assert rainbow.carried_by(verdicts) == ""  # several are as useful
    verdicts["CartPole-v1", "all but noisy", "auc"] = better
    for name in set(PARTS) - {"noisy", "double"}:
        verdicts["CartPole-v1", f"all but {name}", "auc"] = None
    assert "Rainbow's parts is double: DQN learns faster with it alone in 1 of 1" in (
        rainbow.carried_by(verdicts)
    )


def test_quantiles_stand_beside_their_peer(tmp_path: Path) -> None:
    """Ours alone without a verdict; with sb3-contrib's it is against that."""
    for algo, mean in (("rainbow", 450.0), ("sb3-rainbow", 250.0)):
        finals = dict(enumerate((mean + np.linspace(-3, 3, 30)).tolist()))
        plant(tmp_path, algo, finals, env=ENV, middle=mean, **QR_DQN[ENV])
        blocks = list(rainbow.page([load_result(run) for run in open_runs(tmp_path)]))
        rows = tables_of(blocks)["qr-dqn"]
        assert [*tables_of(blocks)] == ["qr-dqn"]
        ours = rows[0]
        assert ours[1] == "QR-DQN"
        words = ["better", "better"] if len(rows) > 1 else ["", ""]
        assert [x.split(" ")[0] for x in ours[-2:]] == words
    assert rows[1][1] == "sb3-contrib's QR-DQN"
    assert list(rows[1][-2:]) == ["", ""]


def test_without_runs_there_is_no_page(tmp_path: Path) -> None:
    assert page_of(tmp_path, {}) == []
