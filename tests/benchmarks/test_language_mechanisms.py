"""What the report says of why trainings do what they do, from runs whose outcome is planted."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from manyseeds.benchmarks.chapters import language_mechanisms as chapter
from manyseeds.benchmarks.chapters.blocks import Block, Text, text_of, walk
from manyseeds.benchmarks.chapters.language_measures import first_steps
from manyseeds.benchmarks.experiments.suite import CLIP_HIGHER, FAST_WRONG, RANDOM, RENEWED, SIGNS
from manyseeds.writing import parquet_bytes, write_bytes
from tests.benchmarks.test_language_claims import (
    cards,
    from_the_same_samples,
    method,
    rows,
    verdicts,
)

AT = (*chapter.AT, "pass@16")


def signs(
    folder: Path,
    wrong: Mapping[str, float],
    right: float = 0.8,
    fast: bool = False,
    learns: bool = True,
) -> list[Block]:
    """Every pass@k begins at 0.5. It gains so much from wrong samples alone, nothing from all, and
    from right ones pass@256 alone changes, to `right`. learns: whether gradients differ."""
    ends = {
        "all": dict.fromkeys(AT, 0.5),
        "right": {**dict.fromkeys(AT, 0.5), "pass@256": right},
        "wrong": {name: 0.5 + gain for name, gain in wrong.items()},
    }
    runs = []
    for settings in SIGNS:
        of = ends[settings.get("learn_from", "all")]
        measures = {name: (0.5, end) for name, end in of.items()}
        measures |= {"entropy": (0.3, 0.2), "kl": (0.0, 0.1)}
        run = method(folder, "rloo", "addition", settings, measures, {"accuracy": (0.25, 0.25)})
        runs.append(from_the_same_samples(run, norm=len(runs) if learns else 1.0))
    if fast:
        measures = {**dict.fromkeys(AT, (0.5, 0.3)), "entropy": (0.3, 0.2), "kl": (0.0, 0.1975)}
        runs.append(method(folder, "rloo", "addition", FAST_WRONG, measures))
    assert [*chapter.signs_section(runs[:2], folder)] == []
    return [*chapter.signs_section(runs, folder)]


def test_wrong_samples_are_to_raise_every_pass_at_k(tmp_path: Path) -> None:
    gains = dict.fromkeys(AT, 0.1)
    blocks = signs(tmp_path / "all", gains)
    assert verdicts(blocks)[0].startswith("holds: +0.100 [")
    # 0.8 after right samples, 0.6 after wrong ones.
    assert verdicts(blocks)[1].startswith("does not hold: +0.200 [")
    assert all("pass@256 is 0.502 before and exactly 1 in 0%" in x for x in verdicts(blocks))
    said = {text_of(x.details[0]) for x in cards(blocks)}
    assert said == {
        "Applied: 25% of the training samples have a weight where right ones alone count, 75% "
        "where wrong ones alone do; in the first step, from the same samples, the gradient has "
        "another norm in 5 of 5 seeds for right ones, and in 5 of 5 seeds for wrong ones."
    }
    table = rows(blocks, "language-signs")
    assert [row[6] for row in table] == ["0.502", "0.502", "0.502", "0.602"]
    assert verdicts(signs(tmp_path / "few", {**gains, "pass@16": -0.1}))[0].startswith("in part")
    blocks = signs(tmp_path / "some", {**gains, "pass@256": -0.1}, right=0.2)
    assert verdicts(blocks)[0].startswith("in part: -0.100 [")
    assert verdicts(blocks)[1].startswith("holds: -0.200 [")
    untreated = "not tested: the treatment was not applied"
    assert verdicts(signs(tmp_path / "none", gains, learns=False)) == [untreated] * 2


def test_gradients_that_are_not_known_are_not_others(tmp_path: Path) -> None:
    """Of steps that are not finite, of runs that did not log them, and of runs without a step."""
    ends = {"pass@1": (0.5, 0.6)}

    def run(norm: float) -> Any:
        plain = method(tmp_path, "rloo", "addition", {}, ends, {"accuracy": (0.2, 0.2)})
        return from_the_same_samples(plain, norm)

    one, other = run(1.0), run(2.0)
    assert first_steps(one, other) == ("5 of 5 seeds", True)
    assert first_steps(one, run(1.0)) == ("0 of 5 seeds", False)
    assert first_steps(run(np.nan), run(np.nan)) == ("0 of 5 seeds", False)
    path = other.parts[0] / "metrics.parquet"
    table = pd.read_parquet(path)
    write_bytes(path, parquet_bytes(table.head(0)))
    assert first_steps(one, other) == ("4 of 4 seeds", True)
    write_bytes(path, parquet_bytes(table.drop(columns="grad_norm")))
    assert first_steps(one, other) == ("0 of 5 seeds", False)


def test_models_that_the_usual_rate_breaks_are_counted(tmp_path: Path) -> None:
    """They decide nothing. Seeds differ by a thousandth: of KLs from 0.1975 on two are above."""
    blocks = signs(tmp_path, dict.fromkeys(AT, 0.1), fast=True)
    assert verdicts(blocks)[0].startswith("holds: +0.100 [")
    words = [row[5] for row in rows(blocks) if row[1] == "wrong samples, usual rate"]
    assert words == ["lower, decides nothing"] * 4
    text = " ".join(text_of(x) for x in walk(blocks) if isinstance(x, Text))
    assert "at the usual learning rate 2 of 5 models end at a KL above 0.2" in text
    assert [row[1] for row in rows(blocks, "language-signs")][3:] == ["0.0001", "0.0003"]


CLIPPED = {"none": (0, 0), "below": (0, 0.01), "above": (0.03, 0), "both": (0.03, 0.01)}


def coin(
    folder: Path,
    ends: Mapping[str, tuple[float, float]],
    clipped: Mapping[str, tuple[float, float]] = CLIPPED,
) -> list[Block]:
    """DAPO from random rewards, whose entropy and KL go in lines from 0.5 and 0 to these ends."""
    runs = [
        method(
            folder, "dapo", "addition", settings,
            {"entropy": (0.5, ends[name][0]), "kl": (0.0, ends[name][1]), "pass@1": (0.3, 0.3)},
            {"reward": (0.5, 0.5)},
        )
        for name, settings in RANDOM.items()
    ]  # fmt: skip
    for name, m in zip(RANDOM, runs, strict=True):
        for part in m.parts:
            path, (high, low) = part / "metrics.parquet", clipped[name]
            table = pd.read_parquet(path).assign(clip_high=high, clip_low=low)
            write_bytes(path, parquet_bytes(table))
    assert [*chapter.random_section(runs[1:], folder)] == []
    return [*chapter.random_section(runs, folder)]


def test_each_side_of_the_clip_is_held_against_no_clip_at_the_same_kl(tmp_path: Path) -> None:
    as_said = {"none": (0.5, 0.4), "below": (0.7, 0.4), "above": (0.2, 0.4), "both": (0.4, 0.4)}
    blocks = coin(tmp_path / "as said", as_said)
    said = ["holds: +0.200 [", "holds: -0.300 [", "holds: -0.100 ["]
    assert all(x.startswith(y) for x, y in zip(verdicts(blocks), said, strict=True))
    assert rows(blocks, "language-coin")[2][:4] == ["above", "5", "3.00%", "0.00%"]
    # Without a clip noise goes twice as far. Where the others are it has half of its gain.
    far = {"none": (0.9, 0.8), "below": (0.8, 0.4), "above": (0.6, 0.4), "both": (0.7, 1.6)}
    blocks = coin(tmp_path / "far", far)
    said = ["holds: +0.100 [", "holds: -0.100 [", "holds: -0.300 ["]
    assert all(x.startswith(y) for x, y in zip(verdicts(blocks), said, strict=True))
    found = {row[1]: row[3][:6] for row in rows(blocks) if row[0].startswith("entropy at the end")}
    assert found["a clip below alone minus no clip"] == "-0.100"


def test_a_clip_that_stops_nothing_is_no_treatment(tmp_path: Path) -> None:
    ends = dict.fromkeys(RANDOM, (0.5, 0.4))
    blocks = coin(tmp_path / "above", ends, {**CLIPPED, "above": (0, 0)})
    assert [x.split(":")[0] for x in verdicts(blocks)] == ["not shown", "not tested", "not shown"]
    blocks = coin(tmp_path / "none", ends, {**CLIPPED, "none": (0.01, 0)})
    assert verdicts(blocks) == ["not tested: the treatment was not applied"] * 3


def test_the_entropy_is_that_where_the_kl_is_first_reached() -> None:
    kl, entropy = np.array([0.0, 0.2, 0.4, 0.1, 0.4]), np.array([1.0, 2.0, 3.0, 4.0, 5.0])
    assert chapter.first_at(0.3, kl, entropy) == pytest.approx(2.5)
    assert chapter.first_at(0.4, kl, entropy) == 3.0
    assert chapter.first_at(-0.1, kl, entropy) == 1.0
    assert np.isnan(chapter.first_at(0.5, kl, entropy))


@pytest.mark.parametrize("side", ["none", "below"])
def test_a_diverged_seed_leaves_no_entropy_at_the_same_kl(tmp_path: Path, side: str) -> None:
    runs = {
        name: method(
            tmp_path, "dapo", "addition", RANDOM[name], {"entropy": (0.5, 0.6), "kl": (0, 0.4)}
        )
        for name in ("none", "below")
    }
    assert chapter.at_equal_kl(runs["below"], runs["none"])
    runs[side].frames[0].loc[3, "kl"] = np.nan
    assert chapter.at_equal_kl(runs["below"], runs["none"]) is None


def test_the_law_is_fitted_to_the_beginning_alone() -> None:
    share, entropy = np.arange(1, 101) / 100, np.linspace(0.5, 0.1, 100)
    accuracy = 0.9 - 0.3 * np.exp(entropy)
    found = chapter.law_of(share, entropy, accuracy)
    assert (found.law, found.explained) == (pytest.approx(0), pytest.approx(1))
    # The steps of 19 and 20%, against those of 91 to 100%.
    assert found.constant == pytest.approx(accuracy[18:20].mean() - accuracy[90:].mean())
    turned = np.where(share > 0.2, accuracy + 0.1, accuracy)
    assert chapter.law_of(share, entropy, turned).law == pytest.approx(-0.1)
    # The same steep line until the end would give more than 1.
    steep = chapter.law_of(share, entropy, np.minimum(0.2 + 2 * share, 0.6))
    assert steep.line == pytest.approx(0.4)
    assert chapter.law_of(share, entropy, 0.2 + 0.5 * share).line == pytest.approx(0)
    assert np.isnan(chapter.law_of(share, np.where(share < 0.1, np.nan, entropy), accuracy)).all()


@pytest.mark.parametrize(("end", "word"), [(0.7, "holds"), (0.5, "does not hold")])
def test_the_law_against_a_constant(tmp_path: Path, end: float, word: str) -> None:
    """Where accuracy and entropy go in lines the law is right; where accuracy stays it is not."""
    settings = {**CLIP_HIGHER[0]}
    metrics = {"entropy": (0.5, 0.4), "accuracy": (0.5, end)}
    m = method(tmp_path, "dapo", "addition", settings, {"pass@1": (0.3, 0.6)}, metrics, steps=100)
    for k, part in enumerate(m.parts):  # accuracy that has stopped after a fifth
        if end == 0.5:
            bend(part, k)
    assert verdicts(chapter.law_section([m], tmp_path))[0].startswith(f"{word}: ")


def bend(part: Path, k: int) -> None:
    """Let accuracy rise in the first fifth of a training, and stay, but for a noise of its own."""
    table = pd.read_parquet(part / "metrics.parquet")
    share = np.arange(1, len(table) + 1) / len(table)
    table["accuracy"] = 0.5 + 0.001 * k * share + np.minimum(share, 0.2)
    write_bytes(part / "metrics.parquet", parquet_bytes(table))


def renewals(folder: Path, below: float = 0.0) -> list[Any]:
    """The reward model's is worth 0.2 at the end, the reference's nothing: 0.1 over a training."""
    ends = {"neither": 0.3, "the reference": 0.3, "the reward model": 0.5, "both": 0.5}
    return [
        method(
            folder, "process_grpo", "addition", RENEWED[name],
            {"pass@1": (0.3, end - below), "kl": (0.0, 0.1)},
            {"ranked": (60.0, 20.0), "rankable": (80.0, 80.0), "pairs": (0.0, 80.0)},
        )
        for name, end in ends.items()
    ]  # fmt: skip


def test_the_two_renewals_are_told_apart(tmp_path: Path) -> None:
    runs = renewals(tmp_path)
    blocks = [*chapter.renewed_section(runs, tmp_path)]
    assert verdicts(blocks)[0].startswith("holds: +0.100 [")
    lower = [*chapter.renewed_section(renewals(tmp_path / "lower", below=0.3), tmp_path)]
    assert cards(lower)[0].claim == cards(blocks)[0].claim  # whatever comes of it
    details = " ".join(text_of(x) for x in cards(lower)[0].details if isinstance(x, Text))
    assert ": all four lose accuracy" in details
    found = {row[1]: (row[3][:6], row[5]) for row in rows(blocks)}
    assert found["reference renewed minus not"] == ("+0.000", "undecided, decides nothing")
    assert found["reward model renewed minus not"] == ("+0.100", "higher, decides nothing")
    table = rows(blocks, "language-renewed")
    assert [row[2] for row in table] == ["0", "0", "80", "80"]
    assert float(table[0][4]) > 0.6 > 0.4 > float(table[0][5])
    assert [*chapter.renewed_section(runs[1:], tmp_path)] == []
    older = runs[0].parts[0] / "metrics.parquet"  # of code that did not log it
    write_bytes(older, parquet_bytes(pd.read_parquet(older).drop(columns="ranked")))
    assert [*chapter.renewed_section(runs, tmp_path)] == []
