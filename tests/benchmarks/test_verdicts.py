"""The rule for verdicts, and its simulated error rates."""

from __future__ import annotations

import dataclasses
import json
import re
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from manyseeds import envs, stats
from manyseeds.benchmarks.chapters import evidence
from manyseeds.benchmarks.chapters.blocks import Block, Claim, Fold, Outcome, Table, Text
from manyseeds.benchmarks.chapters.differences import (
    RULE,
    compared,
    difference_of,
    judged,
    opened,
    verdict_forest,
)
from manyseeds.benchmarks.experiments import verdicts
from manyseeds.benchmarks.experiments.verdicts import LEVELS, LOOKS, Rivals, Side, decide
from manyseeds.benchmarks.measurements import error_rates
from manyseeds.benchmarks.measurements.error_rates import Sample
from manyseeds.benchmarks.store.results import verdict_text
from manyseeds.digest import ROOT
from manyseeds.stats import Floats
from tests.benchmarks.conftest import Output, tables_of
from tests.benchmarks.test_report import plant

SPEC = envs.make("Pendulum-v1").spec


WORDS: tuple[stats.VerdictWord, ...] = ("better", "worse", "equivalent", "ceiling", "undecided")


@pytest.mark.parametrize("word", WORDS)
def test_a_page_with_verdicts_begins_with_their_rule(word: stats.VerdictWord) -> None:
    """Below its outcome, whether a table has them, folded away, or a figure alone."""
    parity = stats.Parity(word, stats.Estimate(-0.01, -0.02, 0.01, 30), 0.3)
    outcome, text = Outcome("1 claim: 1 holds."), Text("The claims.")
    table = Table("x", ("environment", "AUC"), [("Pendulum-v1", verdict_text(parity, SPEC))])
    forest = verdict_forest("x", "x", {"": {"x": parity}}, "a minus b")
    assert forest
    for shown in (Fold("rows", [table]), forest, Claim("A claim.", "holds", "", forest)):
        assert opened([outcome, text, shown]) == [outcome, RULE, text, shown]
        assert opened([shown]) == [RULE, shown]


def test_a_page_of_other_differences_has_no_rule() -> None:
    found = compared("a measure", "a run", stats.Estimate(0.1, -0.1, 0.3, 10, p=0.2))
    claim = judged("x", "A claim.", "ours", found, beside=found)
    table = Table("x", ("claim",), [("undecided",), ("better",)])
    blocks: list[Block] = [Text("Better 1 than none."), claim, table]
    assert opened(blocks) == blocks
    assert opened([]) == []


def scores(mean: float, sd: float, n: int, seed: int) -> Floats:
    return np.random.default_rng(seed).normal(mean, sd, n)


def side(scores: Floats, imputed: int = 0, failed: int = 0) -> Side:
    """Of which the last ones have no score of their own, and some, evenly, have failed."""
    flags = np.zeros(len(scores), dtype=bool)
    flags[np.linspace(0, len(scores) - 1, failed).astype(int)] = True
    return Side(scores, flags, np.arange(len(scores)) >= len(scores) - imputed)


def test_the_first_look_that_decides_is_the_verdict() -> None:
    """Thirty seeds are far apart, and what follows does not count any more; ours all do."""
    ours = scores(0.5, 0.01, 300, 0)
    theirs = np.concatenate([scores(0.9, 0.01, 30, 1), np.zeros(70)])
    found = decide(side(ours), side(theirs))
    assert found
    assert (found.parity.word, found.ours, found.look) == ("worse", 300, 30)
    assert (found.due, found.decided) == (None, True)
    parity = stats.parity(
        *(ours, theirs[:30], 0, 1, 0.05, LEVELS), one_shape=True, resamples=verdicts.RESAMPLES
    )
    assert found.parity == parity
    more = decide(side(np.concatenate([ours, np.ones(50)])), side(theirs))
    assert more
    assert more.parity == parity  # of ours so many count


def test_looks_go_on_until_one_decides() -> None:
    alike = scores(0.9, 0.01, 60, 0), scores(0.9, 0.01, 100, 1)
    wide = scores(0.5, 0.3, 300, 3), scores(0.5, 0.3, 120, 4)
    assert decide(side(alike[0]), side(alike[1][:29])) is None
    assert decide(side(alike[0][:29]), side(alike[1])) is None
    for (ours, theirs), n, *expected in (
        (alike, 30, "undecided", 30, 60),
        (alike, 60, "equivalent", 60, None),
        (alike, 100, "equivalent", 60, None),
        (wide, 59, "undecided", 30, 60),
        (wide, 60, "undecided", 60, 100),
        (wide, 120, "undecided", 100, None),
    ):
        found = decide(side(ours), side(theirs[:n]))
        assert found
        assert [found.parity.word, found.look, found.due] == expected, n
        assert found.decided == (expected[0] == "equivalent")


def test_failure_rates_decide_with_the_scores() -> None:
    """Of 30 of SB3's without failures one in ten might fail; of 60 no more."""
    ours, theirs = scores(0.9, 0.01, 300, 0), scores(0.9, 0.01, 100, 1)

    def word(n: int, failed: int, of_theirs: int = 0, **more: bool) -> tuple[str, int]:
        sides = side(ours, failed=failed), side(theirs[:n], failed=of_theirs)
        found = decide(*sides, **more)
        assert found
        return found.parity.word, found.look

    assert word(30, 0) == word(30, 15) == ("undecided", 30)
    assert word(60, 0) == ("equivalent", 60)
    assert word(60, 0, at_ceiling=True) == ("ceiling", 60)
    assert word(100, 60) == ("undecided", 100)  # 20% against 0
    assert word(60, 0, 6) == ("undecided", 60)
    assert word(60, 30, 6) == ("undecided", 60)  # 10% of both, but known too badly
    apart = decide(side(ours), side(theirs - 0.5), at_ceiling=True)
    assert apart
    assert apart.parity.word == "better"


def test_equal_scores_are_equivalent_unless_one_is_imputed() -> None:
    same = side(np.ones(100))
    for other, word in ((same, "equivalent"), (side(np.ones(100), 1), "equivalent")):
        found = decide(same, other)
        assert found
        assert (found.parity.word, found.look) == (word, 60)  # the last one is not looked at
    for sides in ((side(np.ones(60), 1), same), (same, side(np.ones(60), 1))):
        found = decide(*sides)
        assert found
        assert found.parity.word == "undecided"  # equal failure scores prove nothing


def test_an_interval_knows_the_rare_failures_of_the_other_side() -> None:
    """SB3's 30 happen to have none: their mean is not as sure as it seems."""
    ours = np.concatenate([scores(0.95, 0.001, 290, 0), scores(0.45, 0.001, 10, 1)])
    theirs = scores(0.95, 0.001, 30, 2) + 0.028
    plain = stats.parity(ours, theirs, 0, 1, 0.05, LEVELS)
    wider = stats.parity(ours, theirs, 0, 1, 0.05, LEVELS, one_shape=True)
    assert plain.difference.value == wider.difference.value
    assert wider.difference.high - plain.difference.high > 0.01
    assert wider.difference.low <= plain.difference.low


def test_the_levels_reach_the_intervals(monkeypatch: pytest.MonkeyPatch) -> None:
    """Apart by the 96% interval, not by the 99% one, whatever the permutation test says."""
    monkeypatch.setattr(stats, "permutation_p", lambda *_: 0.0)
    ours = scores(0.5, 0.2, 300, 0)
    theirs = ours[:30] - ours[:30].mean() + ours.mean() - 0.088
    parity = stats.parity(ours, theirs, 0, 1, 0.05, LEVELS)
    assert parity.difference.low > 0
    assert parity.word == "undecided"
    alike = stats.Levels(LEVELS.equivalent, LEVELS.equivalent)
    assert stats.parity(ours, theirs, 0, 1, 0.05, alike).word == "better"


# ---- Margins --------------------------------------------------------------------------------


def test_a_margin_tells_nine_in_ten_pairs_apart() -> None:
    """Those alike within the least margin are at their ceiling, and not counted."""
    pairs = [Rivals("a", "b", 0.005), *(Rivals("a", f"c{i}", 0.035 + i) for i in range(10))]
    assert verdicts.at_ceiling(pairs) == {"a", "b"}
    assert verdicts.margin_of(pairs) == 0.05  # one in ten passes
    assert verdicts.margin_of(pairs[:10]) == 0.03
    assert verdicts.margin_of(pairs[:1]) == verdicts.margin_of([]) == verdicts.MARGIN
    assert verdicts.margin_of([Rivals("a", "b", 0.011)]) == verdicts.MARGIN_LEAST


def test_rivals_are_as_wide_apart_as_all_seeds_of_the_rule_would_show() -> None:
    a, b = scores(0.9, 0.2, 40, 0), scores(0.8, 0.1, 60, 1)
    of_b, of_a = np.var(b, ddof=1) / 300 + np.var(a, ddof=1) / 100, 0.0
    of_a = np.var(a, ddof=1) / 300 + np.var(b, ddof=1) / 100
    expected = abs(a.mean() - b.mean()) + 2.0537 * min(of_a, of_b) ** 0.5
    assert verdicts.rivals("a", "b", a, b).least == pytest.approx(expected, abs=1e-4)
    assert verdicts.rivals("b", "a", b, a).least == verdicts.rivals("a", "b", a, b).least


def test_the_stated_margins_are_those_that_were_computed() -> None:
    stored = json.loads((ROOT / "results" / "margins.json").read_text())["measures"]
    found = {m: {env: x["margin"] for env, x in by.items()} for m, by in stored.items()}
    assert found == verdicts.MARGINS
    ceilings = {env: tuple(x["at_ceiling"]) for env, x in stored["late"].items()}
    assert {env: x for env, x in ceilings.items() if x} == verdicts.CEILINGS


# ---- Simulation -----------------------------------------------------------------------------


def test_the_simulation_stops_where_the_rule_does() -> None:
    """By the failure rates, too."""
    rng = np.random.default_rng(1)
    sides = [
        Sample(rng.normal(mean, 0.06, (40, n)), rng.random((40, n)) < failing)
        for mean, n, failing in ((0.9, 300, 0.0), (0.88, 100, 0.02))
    ]
    words, used = error_rates.decided(*sides)
    rows = zip(*(zip(*x, strict=True) for x in sides), strict=True)
    found = [decide(*(Side(x, f, f & False) for x, f in row)) for row in rows]
    assert np.mean([f.parity.word for f in found if f] == words) >= 0.9
    assert np.mean([f.look for f in found if f] == used) >= 0.9
    assert len(set(used)) > 1
    assert len(set(words)) > 1


def test_distributions_differ_by_what_they_say() -> None:
    alike, apart = error_rates.distributions()
    shape = (1000, 1000)
    for name, (ours, theirs) in alike.items():
        rng = np.random.default_rng(0)
        a, b = ours(rng, shape).scores, theirs(rng, shape).scores
        assert a.mean() == pytest.approx(b.mean(), abs=0.002), name
        narrow, wide = sorted((a.std(), b.std()))
        assert (wide > 1.5 * narrow) == (": " in name), name
    for name, (ours, theirs) in apart.items():
        rng = np.random.default_rng(0)
        a, b = ours(rng, shape), theirs(rng, shape)
        d = a.scores.mean() - b.scores.mean()
        sign = -1 if name.endswith("ours lower") else 1
        assert sign * d == pytest.approx(verdicts.MARGIN, abs=0.002), name
        if "fail" in name:
            assert sign * (b.failed.mean() - a.failed.mean()) > 0.04
    assert set(alike) >= {"normal", "heavy tails", "skewed", "one in ten fails"}


def test_coverage_of_a_known_case() -> None:
    """Normal scores: near 95% for all n."""
    for share in error_rates.coverage(error_rates.normal, "mean", 200):
        assert 0.88 <= share <= 0.995


def test_coverage_of_scores_that_take_two_values() -> None:
    """Where one seed in ten scores 0.5, exactly: the ends of intervals are such shares, too.

    Of 30 seeds the interval lacks 0.95 where none fails, and hardly else: 1 - 0.9^30 = 0.958.
    """
    draw = partial(error_rates.bimodal, failing=0.1)
    five, *_, thirty, _ = error_rates.coverage(draw, "mean", 500)
    assert thirty == pytest.approx(0.956, abs=0.025)
    assert five == pytest.approx(1 - 0.9**5, abs=0.06)


def test_the_documentation_has_the_highest_error_rates() -> None:
    """Of better or worse and of equivalent, each with its bound."""
    stored = json.loads((ROOT / "results" / "error_rates.json").read_text())
    numbers = [str(x.number) for x in evidence.error_rates(stored) if isinstance(x, Claim)]
    highest = [re.match(r"([\d.]+%), at most ([\d.]+%)", number) for number in numbers]
    said = (ROOT / "docs" / "reading-the-numbers.md").read_text()
    found = re.findall(r"([\d.]+%)(?: of comparisons)? \(at most ([\d.]+%)\)", said)
    assert found == [x and x.groups() for x in highest]


def test_published_error_rates_hold() -> None:
    """At most 5% over all looks, but for the one case that no rule of so few seeds can tell; also
    with the scores of each pair of runs."""
    stored = json.loads((ROOT / "results" / "error_rates.json").read_text())
    assert (stored["looks"], stored["ours"]) == (list(LOOKS), verdicts.OURS)
    assert stored["levels"] == dataclasses.asdict(LEVELS)
    own = [r for by in stored["cells"].values() for x in by.values() for r in x.values()]
    assert len(own) >= 36
    for samples, alike, apart in (
        (stored["samples"], stored["alike"], stored["apart"]),
        (
            stored["samples"] // 2,
            dict(enumerate(r[kind] for r in own for kind in ("alike", "shapes"))),
            dict(enumerate(r["apart"] for r in own)),
        ),
    ):
        most = 0.05 + 2 * np.sqrt(0.05 * 0.95 / samples)
        wrong = {name: rates["better"] + rates["worse"] for name, rates in alike.items()}
        assert max(wrong.values()) <= most
        known = {k: r["equivalent"] for k, r in apart.items() if "one in twenty" not in str(k)}
        assert max(known.values()) <= most


def test_the_command(tmp_path: Path, capsys: Output, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(error_rates, "cells", lambda: [])
    error_rates.main(["--samples", "4", "--results", str(tmp_path)])
    stored = json.loads((tmp_path / "error_rates.json").read_text())
    assert stored["samples"] == 4
    for rates in (*stored["alike"].values(), *stored["apart"].values()):
        assert sum(rates.values()) - rates["seeds"] == pytest.approx(1)
    assert "alike, normal" in capsys.readouterr().out


def test_a_pair_has_the_shape_of_both_sides(tmp_path: Path) -> None:
    """Without the difference between them."""
    for algo, middle in (("ppo", 400.0), ("sb3-ppo", 300.0)):
        plant(tmp_path, algo, dict(enumerate(middle + np.linspace(-20, 20, 30))), middle=middle)
    (pair,) = error_rates.cells(tmp_path)
    ours, theirs = error_rates.shapes_of(pair, "late")
    assert (ours.failed.sum(), theirs.failed.sum()) == (1, 30)  # the one of ours with 380
    assert len(ours.scores) == len(theirs.scores) == 30
    assert ours.scores.mean() == pytest.approx(theirs.scores.mean())
    both = np.concatenate([ours.scores, theirs.scores])
    assert np.ptp(both) == pytest.approx(40 / (500 - 22.1), rel=1e-3)
    rates = error_rates.cell_rates(pair, "late", 8)
    assert rates["margin"] == verdicts.MARGINS["late"]["CartPole-v1"]
    assert rates["power"]["better"] + rates["power"]["worse"] == 1


def ramp(middle: float) -> Side:
    return side(middle + np.linspace(-0.01, 0.01, 30))


def test_verdicts_together() -> None:
    """Strong evidence counts although nothing varies, with the sign of the difference."""
    worse, better = (decide(ramp(x), ramp(0.6)) for x in (0.4, 0.8))
    same = decide(side(np.full(60, 0.6)), side(np.full(60, 0.6)))
    assert worse
    assert better
    assert same
    assert evidence.z_of(worse.parity) == -evidence.z_of(better.parity) < -3
    assert evidence.together_row([worse, better, same], "late score") == (
        *("late score", "1", "1", "1", "0", "0", "2 of 2", "0.1", "+0.00, p=1.000"),
    )
    pooled = 2**0.5 * evidence.z_of(worse.parity)
    assert evidence.together_row([worse, worse], "x")[-1] == f"{pooled:+.2f}, p<0.001"
    assert evidence.together_row([same], "x")[-3:] == ("0 of 0", "-", "-")
    assert difference_of("x", better.parity).low > 0
    row = difference_of("a, b", same.parity)
    assert (row.label, row.value, row.word, row.n) == ("a, b", 0, "equivalent", 60)
    assert (row.low, row.high, row.margin) == (0, 0, 0.05)
    saturated = difference_of("x", stats.parity(np.ones(10), np.ones(10), 0, 1))
    assert np.isnan([saturated.low, saturated.high]).all()


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
    assert [claim.verdict for claim in claims] == ["not shown", "in part"]
    rows = tables_of(blocks)
    for name in ("error-rates-alike", "error-rates-apart", "error-rates-coverage"):
        published = pd.read_csv(ROOT / f"results/tables/{name}.csv", dtype=str, header=None)
        assert rows[name] == published.to_numpy().tolist()[1:]


def test_how_many_seeds_would_decide() -> None:
    """By the width of the interval, at a look; failures need more, and some need too many."""
    ours, theirs = side(scores(0.95, 0.06, 30, 0)), side(scores(0.95, 0.06, 30, 1))
    failing = side(ours.scores, failed=6), side(theirs.scores, failed=6)
    assert verdicts.seeds_to_decide(ours, theirs, 0.05) == 60
    more = verdicts.seeds_to_decide(*failing, 0.05)
    assert more
    assert more > 60
    assert verdicts.seeds_to_decide(ours, theirs, 0.005) is None
    n = verdicts.seeds_to_decide(ours, theirs, 0.015)
    assert n
    assert n > LOOKS[-1]
    d = abs(ours.scores.mean() - theirs.scores.mean())
    variances = [float(np.var(x.scores, ddof=1)) for x in (ours, theirs)]
    widths = [verdicts.half_width(variances, (300, k)) for k in (n - 1, n)]
    assert d + widths[1] <= 0.015 < d + widths[0]
    assert verdicts.seeds_to_decide(ours, side(theirs.scores - 0.2), 0.05) is None


@pytest.mark.parametrize(("of_ours", "of_theirs"), [(0.1, 0.02), (0.02, 0.1), (0.1, 0.1)])
def test_widths_that_would_decide_are_those_of_the_rule(of_ours: float, of_theirs: float) -> None:
    """Also where SB3's few seeds vary less than ours."""
    sides = scores(0.9, of_ours, 300, 0), scores(0.9, of_theirs, 60, 1)
    d = stats.parity(*sides, 0, 1, 0.05, LEVELS, one_shape=True).difference
    variances = [float(np.var(x, ddof=1)) for x in sides]
    found = verdicts.half_width(variances, (300, 60))
    assert found == pytest.approx((d.high - d.low) / 2, rel=0.05)


def test_planted_mistakes_are_counted_by_word() -> None:
    """As the judge's sessions that are stored say; those of other kinds of edits are not."""
    _, table = evidence.mistakes(ROOT / "results")
    assert isinstance(table, Table)
    session = json.loads((ROOT / "results" / "judge_session_CartPole-v1.json").read_text())
    words = [x["word"] for x in session["tries"] if x["kind"] == "mistake"]
    (row,) = (row for row in table.rows if row[0] == "CartPole-v1")
    assert row[1:] == (str(len(words)), *(str(words.count(x)) for x in evidence.WORDS))
    assert words.count("worse") > len(words) / 2
    assert len(table.rows) == 3
