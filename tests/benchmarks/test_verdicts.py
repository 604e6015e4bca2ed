"""The rule for verdicts, and its simulated error rates."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from manyseeds import stats
from manyseeds.benchmarks.chapters import evidence
from manyseeds.benchmarks.experiments import verdicts
from manyseeds.benchmarks.experiments.verdicts import LEVEL, LOOKS, decide
from manyseeds.benchmarks.measurements import error_rates
from manyseeds.digest import ROOT
from manyseeds.stats import Floats
from tests.benchmarks.conftest import Output


def scores(mean: float, sd: float, n: int, seed: int) -> Floats:
    return np.random.default_rng(seed).normal(mean, sd, n)


def test_the_first_look_that_decides_is_the_verdict() -> None:
    """Ten seeds are far apart, and what follows does not count any more."""
    ours = np.concatenate([scores(0.5, 0.01, 10, 0), np.ones(50)])
    theirs = np.concatenate([scores(0.9, 0.01, 10, 1), np.zeros(50)])
    found = decide(ours, theirs, 0, 1)
    assert found
    assert (found.parity.word, found.look, found.due, found.decided) == ("worse", 10, None, True)
    assert found.parity == stats.parity(ours[:10], theirs[:10], 0, 1, 0.05, 1 - LEVEL)


def test_looks_go_on_until_one_decides() -> None:
    """Of alike sides equivalence is said from 30 seeds on, saturation too; 60 may leave it open."""
    alike = scores(0.9, 0.01, 60, 0), scores(0.9, 0.01, 60, 1)
    same = np.ones(60), np.ones(60)
    wide = scores(0.5, 0.3, 80, 3), scores(0.5, 0.3, 80, 4)
    assert decide(alike[0][:9], alike[1], 0, 1) is None
    for (ours, theirs), n, *expected in (
        *((alike, n, "undecided", 10, 20) for n in (10, 19)),
        *((alike, n, "undecided", 20, 30) for n in (20, 29)),
        *((alike, n, "equivalent", 30, None) for n in (30, 45, 60)),
        (same, 20, "saturated", 20, 30),
        (same, 30, "saturated", 30, None),
        (wide, 80, "undecided", 60, None),
    ):
        found = decide(ours[:n], theirs[:n], 0, 1)
        assert found
        assert [found.parity.word, found.look, found.due] == expected, n
        assert found.decided == (n in (30, 45, 60))
    for measured, word in ((30, "saturated"), (29, "undecided"), (0, "undecided")):
        found = decide(*(side[:30] for side in same), 0, 1, measured)
        assert found
        assert found.parity.word == word, measured  # equal failure scores prove nothing


# ---- Simulation -----------------------------------------------------------------------------


def test_the_simulation_stops_where_the_rule_does() -> None:
    rng = np.random.default_rng(1)
    a, b = rng.normal(0.9, 0.02, (40, 60)), rng.normal(0.87, 0.02, (40, 60))
    words, used = error_rates.decided(a, b)
    found = [decide(x, y, 0, 1) for x, y in zip(a, b, strict=True)]
    assert np.mean([f.parity.word for f in found if f] == words) >= 0.95
    assert np.mean([f.look for f in found if f] == used) >= 0.9
    assert set(used) > {10}


def test_distributions_differ_by_what_they_say() -> None:
    alike, apart = error_rates.distributions(np.array([0.0, 1.0]))
    shape = (1000, 1000)
    for ours, theirs in apart.values():
        rng = np.random.default_rng(0)
        d = theirs(rng, shape).mean() - ours(rng, shape).mean()
        assert abs(d) == pytest.approx(verdicts.MARGIN, abs=0.002)
    assert set(alike) >= {"normal", "heavy tails", "one in ten fails", "DQN's own"}


def test_coverage_of_a_known_case() -> None:
    """Normal scores: near 95% for all n."""
    for share in error_rates.coverage(error_rates.normal, "mean", 200):
        assert 0.88 <= share <= 0.995


def test_published_error_rates_hold() -> None:
    """At most 5% over all looks, but for the one case that no rule of so few seeds can tell."""
    stored = json.loads((ROOT / "results" / "error_rates.json").read_text())
    assert (stored["looks"], stored["level"]) == (list(LOOKS), LEVEL)
    most = 0.05 + 2 * np.sqrt(0.05 * 0.95 / stored["samples"])
    wrong = [rates["better"] + rates["worse"] for rates in stored["alike"].values()]
    apart = stored["apart"].items()
    wrong += [rates["equivalent"] for name, rates in apart if not name.startswith("one in twenty")]
    assert max(wrong) <= most


def test_the_command(tmp_path: Path, capsys: Output) -> None:
    error_rates.main(["--samples", "4", "--results", str(tmp_path)])
    stored = json.loads((tmp_path / "error_rates.json").read_text())
    assert stored["samples"] == 4
    for rates in (*stored["alike"].values(), *stored["apart"].values()):
        assert sum(rates.values()) - rates["seeds"] == pytest.approx(1)
    assert "alike, normal" in capsys.readouterr().out


def test_verdicts_together() -> None:
    """Strong evidence counts although nothing varies, with the sign of the difference."""
    worse, better = (decide(np.full(10, x), np.full(10, 0.6), 0, 1) for x in (0.4, 0.8))
    same = decide(np.full(10, 0.6), np.full(10, 0.6), 0, 1)
    assert worse
    assert better
    assert same
    assert evidence.z_of(worse.parity) == -evidence.z_of(better.parity) < -3
    text = evidence.together_text([worse, better, same], "final score")
    counted = (
        "- final score: 1 better, 1 worse, 1 saturated. Of the 2 that are not saturated, 2 are "
    )
    assert text.startswith(f"{counted}better or worse. Without any true difference, at most 0.1")
    assert "pooled z of the permutation tests is +0.00, p=1.000. A z above 0" in text
    pooled = 2**0.5 * evidence.z_of(worse.parity)
    text = evidence.together_text([worse, worse], "final score")
    assert f"is {pooled:+.2f}, p<0.001. A z above 0" in text
    assert evidence.together_text([same], "x") == "- x: 1 saturated.\n"
