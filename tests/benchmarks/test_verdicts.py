"""The rule for verdicts, and its simulated error rates."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from manyseeds import stats
from manyseeds.benchmarks.chapters import evidence
from manyseeds.benchmarks.chapters.blocks import Claim
from manyseeds.benchmarks.chapters.differences import difference_of
from manyseeds.benchmarks.experiments import verdicts
from manyseeds.benchmarks.experiments.verdicts import LEVEL, LOOKS, decide
from manyseeds.benchmarks.measurements import error_rates
from manyseeds.digest import ROOT
from manyseeds.stats import Floats
from tests.benchmarks.conftest import Output, tables_of


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
    assert evidence.together_row([worse, better, same], "final score") == (
        *("final score", "0", "1", "1", "1", "0", "2 of 2", "0.1", "+0.00, p=1.000"),
    )
    pooled = 2**0.5 * evidence.z_of(worse.parity)
    assert evidence.together_row([worse, worse], "x")[-1] == f"{pooled:+.2f}, p<0.001"
    assert evidence.together_row([same], "x")[-3:] == ("0 of 0", "-", "-")
    assert difference_of("x", better.parity).low > 0
    row = difference_of("a, b", same.parity)
    assert (row.label, row.value, row.word, row.n) == ("a, b", 0, "saturated", 10)
    assert np.isnan([row.low, row.high]).all()


@pytest.mark.parametrize(
    ("rates", "word", "number"),
    [
        ({"a": 0.02, "b": 0.01}, "holds", "2.0%, at most 2.9%, the highest of 2 distributions: a"),
        ({"a": 0.02, "b": 0.045}, "not shown", "4.5%, at most 5.7%, "),  # 5% is in the interval
        (
            {"a": 0.02, "b": 0.07},
            "in part",
            "7.0%, at most 8.5%, the highest of 2 distributions: b",
        ),
        ({"a": 0.07, "b": 0.2}, "does not hold", "20.0%, at most 22.2%, "),
        ({}, "not shown", ""),
    ],
)
def test_claims_on_error_rates_follow_their_bounds(
    rates: dict[str, float], word: str, number: str
) -> None:
    found = evidence.rate_verdict(rates, 1000)
    assert found[0] == word
    assert found[1].startswith(number)


def test_claims_of_the_published_simulation() -> None:
    """The verdicts stand on the page with the numbers of all tables."""
    blocks = list(evidence.page([], [], ROOT / "results"))
    claims = [block for block in blocks if isinstance(block, Claim)]
    assert [claim.verdict for claim in claims] == ["holds", "in part"]
    rows = tables_of(blocks)
    for name in ("error-rates-alike", "error-rates-apart", "error-rates-coverage"):
        published = pd.read_csv(ROOT / f"results/tables/{name}.csv", dtype=str, header=None)
        assert rows[name] == published.to_numpy().tolist()[1:]
