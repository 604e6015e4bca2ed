"""What the report says of the language papers' claims, from runs whose outcome is planted."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from manyseeds import stats
from manyseeds.benchmarks.chapters import language_claims as chapter
from manyseeds.benchmarks.chapters import language_models
from manyseeds.benchmarks.chapters.blocks import (
    OURS,
    Block,
    Claim,
    Figure,
    Heading,
    Item,
    Items,
    Table,
    Text,
    cells_of,
    text_of,
    walk,
)
from manyseeds.benchmarks.chapters.differences import Applied, Compared, judged, level_of
from manyseeds.benchmarks.chapters.language_measures import budget_text
from manyseeds.benchmarks.experiments import catalog
from manyseeds.benchmarks.experiments.suite import (
    CLIP_HIGHER,
    EQUAL,
    EXPERIMENTS,
    GROUPS,
    LENGTHS,
    LIKE_PPO,
    LONG,
    MANY_SAMPLES,
    OWN,
    PAIRS,
    PLACEBO,
    R1_ZERO,
    RLHF,
    SIGNS,
)
from manyseeds.benchmarks.store import results as chapter_results
from manyseeds.benchmarks.store.methods import Method, by_seed
from manyseeds.benchmarks.store.stored import open_run
from manyseeds.record import RunFolder, provenance, read_json, seal
from manyseeds.writing import parquet_bytes, write_bytes, write_json
from tests.benchmarks.test_hostile_store import language_run

SEEDS = 5
Ends = Mapping[str, tuple[float, float]]


def method(
    folder: Path,
    algo: str,
    task: str,
    settings: Mapping[str, Any],
    measures: Ends,
    metrics: Ends | None = None,
    steps: int = 50,
) -> Any:
    """A run whose measures and metrics go in a line from one end to the other, and differ by a
    thousandth from seed to seed."""
    plain = catalog.plain_settings("llm_track", algo, task) or {}
    found = object.__new__(Method)
    vars(found).update(algo=algo, task=task, headline="pass@1", stale=False)
    stored = json.loads(json.dumps({**plain, **settings}))
    vars(found).update(settings=stored, plain_settings=plain)
    vars(found).update(
        frames=[], parts=[], summaries=[], run=SimpleNamespace(path=folder, folder=folder)
    )
    found.configs = [{"seeds": [seed]} for seed in range(SEEDS)]
    total = found.settings["total_samples"]

    def lines(ends: Ends, samples: np.ndarray, seed: int) -> pd.DataFrame:
        # Differences that are all equal would say nothing of their noise.
        share = (1 + 1e-6 * (-1) ** seed) * samples / total
        values = {name: a + (b - a) * share for name, (a, b) in ends.items()}
        shifted = {name: x + 0.001 * seed for name, x in values.items()}
        return pd.DataFrame({"samples": samples, **shifted})

    for seed in range(SEEDS):
        part = folder / f"{algo}-{len(list(folder.glob('*')))}-{seed}"
        part.mkdir(parents=True)
        found.parts.append(part)
        rows = lines(metrics or {}, np.linspace(0, total, steps + 1)[1:], seed)
        write_bytes(part / "metrics.parquet", parquet_bytes(rows))
        curve = lines(measures, np.linspace(0, total, 6), seed)
        found.frames.append(curve.assign(point=range(6)))
        ends = {when: dict(curve.iloc[k]) for when, k in (("initial", 0), ("final", -1))}
        found.summaries.append({**ends, "seeds": [seed], "headline": "pass@1"})
    return found


def from_the_same_samples(m: Any, norm: float) -> Any:
    """The run with the first samples of all such runs, and gradients of a norm."""
    for part in m.parts:
        table = pd.read_parquet(part / "metrics.parquet").assign(grad_norm=norm)
        table.loc[0, "length"] = 30.0
        write_bytes(part / "metrics.parquet", parquet_bytes(table))
    return m


def cards(blocks: Iterable[Block]) -> list[Claim]:
    return [x for x in blocks if isinstance(x, Claim)]


def verdicts(blocks: Iterable[Block]) -> list[str]:
    """`holds: +0.200 [+0.195, +0.205], ...`, of each claim."""
    return [f"{x.verdict}: {text_of(x.number)}" for x in cards(blocks)]


def rows(blocks: Iterable[Block], name: str = "") -> list[list[str]]:
    """The rows of the tables of a name; without one, of those of what was compared."""
    found = [x for x in walk(blocks) if isinstance(x, Table) and x.name == name]
    return [row for table in found for row in cells_of(table)]


def rlhf(
    folder: Path,
    end: Callable[[Mapping[str, Any]], float],
    kl: Callable[[Mapping[str, Any]], float] = lambda _: 0.5,
    placebo: bool = False,
) -> list[Block]:
    """The section of runs whose pass@1 goes from 0.5 to where their settings say."""
    runs = [
        method(
            folder, algo, "addition", x,
            {"pass@1": (0.5, end(x)), "kl": (0.0, kl(x))}, {"reward": (1.0, 3.0)},
        )
        for algo, x in (*RLHF, *[("rlhf_ppo", PLACEBO)] * placebo)
    ]  # fmt: skip
    return [*chapter.rlhf_section(runs, folder)]


def test_the_rewards_of_a_coin_stand_beside(tmp_path: Path) -> None:
    """Their gain is subtracted where the weight of the KL is the same."""
    end = lambda x: 0.7 if x.get("reward") else 0.6  # noqa: E731
    blocks = rlhf(tmp_path, end, placebo=True)
    decisive = [row for row in rows(blocks) if "decides nothing" not in row[5]]
    assert [row[3].split(" ")[0] for row in decisive] == ["+0.100", "+0.100", "-0.100"]
    assert decisive[2][1].endswith("minus the gain under random rewards")
    beside = [(row[1], row[3][:6]) for row in rows(blocks) if "pass@1" in row[0]][3:]
    assert beside == [("RLHF-PPO (of a coin, beta 0.5)", "+0.200"),
                      ("at a KL of 0.502 nats per token", "+0.100")]  # fmt: skip
    table = rows(blocks, "language-overoptimisation")
    assert table[-1][:6] == ["RLHF-PPO", "of a coin, beta 0.5", "5", "", "", "0.502"]


def test_what_reward_gives_is_not_of_the_model_alone(tmp_path: Path) -> None:
    """Runs with and without a --reward begin with the same models, and are pairs."""
    ends = {"pass@1": (0.5, 0.6), "kl": (0.0, 0.1)}
    one = method(tmp_path, "rlhf_ppo", "addition", {}, ends)
    other = method(tmp_path, "rlhf_ppo", "addition", PLACEBO, {**ends, "reward": (0.5, 0.5)})
    assert by_seed(one, np.arange(5.0)) == by_seed(other, np.arange(5.0))


MANY = {"pass@16": (0.9, 0.98), "cons@16": (0.5, 0.9), "format": (0.2, 0.95)}


def test_r1_zero_rises_where_the_base_has_a_signal(tmp_path: Path) -> None:
    weak, *strong = [
        method(
            tmp_path, algo, "addition", settings,
            {"pass@1": (0.0, 0.0) if settings["model"] == "tiny-base" else (0.1, 0.8), **MANY},
            {"accuracy": (0.0, 0.1) if settings["model"] == "tiny-base" else (0.1, 1.5),
             "grad_norm": (-1, -1) if settings["model"] == "tiny-base-400" else (0.0, 1.0)},
        )
        for algo, settings in R1_ZERO
    ]  # fmt: skip
    blocks = [*chapter.zero_section([weak, *strong], tmp_path)]
    none, *some = verdicts(blocks)
    least = "pass@1 after minus before: GRPO from 200 steps, 15% demonstrations, n = 5 (the least"
    least += " favourable to the claim"
    assert none.startswith(f"in part: +0.000 [+0.000, +0.000], p=1.000, {least} of 7")
    # Without a gradient in any step nothing is decided, whatever comes of it.
    words = {row[1]: row[5] for row in rows(blocks) if row[0] == "pass@1 after minus before"}
    assert words["GRPO from 400 steps, 15% demonstrations"] == "higher, decides nothing"
    # 0.1 of 0.2 before, 0.8 of 0.95 after; a thousandth more from seed to seed.
    assert some[0].startswith("in part: -0.00")
    found = {row[1]: row[3][:6] for row in rows(blocks) if row[0].startswith("right of formatted")}
    words = {row[1]: row[5] for row in rows(blocks) if row[0].startswith("right of formatted")}
    assert words["GRPO from 400 steps, 15% demonstrations"].endswith("decides nothing")
    assert found["GRPO from 800 steps, 1% demonstrations"] == "+0.338"
    assert some[1].startswith("in part: -0.698 [")
    run = "GRPO from 800 steps, 15% demonstrations"
    assert ["pass@1 after minus 0.7", run] in [x[:2] for x in rows(blocks)]
    table = rows(blocks, "language-zero")
    assert [row[:3] for row in table][:4] == [
        ["tiny-base", "200", "15%"],
        ["tiny-base-400", "400", "15%"],
        ["tiny-base-800", "800", "15%"],
        ["tiny-base-800-5", "800", "5%"],
    ]
    assert [row[-1] for row in table] == ["0 of 5", *["5 of 5"] * 7]
    assert [row[5] for row in table][:3] == ["100%", "0%", "100%"]
    assert table[1][6:10] == ["0.202", "0.952", "0.102", "0.802 [0.800, 0.804]"]
    assert table[1][10:13] == ["0.505", "0.842", "0.902"]
    assert [*chapter.zero_section(strong, tmp_path)] == []  # without all of its runs


@pytest.mark.parametrize(("end", "word"), [(0.4, "holds"), (0.6, "does not hold")])
def test_the_base_at_many_samples(tmp_path: Path, end: float, word: str) -> None:
    """All goes in lines: at three fifths of the training 0.9 of the samples have the format."""
    measures = {"pass@1": (0.1, 0.8), "pass@4": (0.2, 0.9), "pass@256": (0.5, end)}
    m = method(tmp_path, "grpo", "addition", MANY_SAMPLES, measures | {"format": (0.0, 1.5)})
    blocks = [*chapter.many_section([m], tmp_path)]
    (said,) = verdicts(blocks)
    # The end minus the mean of the evaluations at three and at four fifths.
    assert said.startswith(f"{word}: {(end - 0.5) * 0.3:+.3f} [")
    assert "exactly 1 in 0% of the seeds" in said
    assert [row[5] for row in rows(blocks)][1:3] == ["higher, decides nothing"] * 2
    assert rows(blocks)[3][3].startswith(f"{(end - 0.5) * 0.4:+.3f} [")
    assert rows(blocks)[6][3].startswith(f"{end - 0.5:+.3f} [")
    table = rows(blocks, "language-many")
    assert [row[1] for row in table] == ["0%", "30%", "60%", "90%", "120%", "150%"]
    assert table[-1][2:] == ["0.802", "0.902", f"{end + 0.002:.3f}", "0 of 5"]
    assert [*chapter.many_section([], tmp_path)] == []
    bare = method(tmp_path / "x", "grpo", "addition", MANY_SAMPLES, measures | {"format": (0, 0.5)})
    untested = [*chapter.many_section([bare], tmp_path)]
    assert verdicts(untested)[0].startswith("not tested: no comparison could decide")
    text = " ".join(text_of(x) for x in walk(untested) if isinstance(x, Text))
    assert "at which at least 90% have the format, and there is none." in text
    formatted = [
        method(tmp_path, "grpo", "addition", GROUPS[0], {"pass@16": (0.7, 0.9)}),
        method(tmp_path, "dapo", "addition", CLIP_HIGHER[0], {"pass@16": (0.7, 0.5)}),
        method(tmp_path, "dapo", "addition", CLIP_HIGHER[2], {"pass@16": (0.7, 0.4)}),
    ]
    blocks = [*chapter.many_section([m, *formatted], tmp_path)]
    assert verdicts(blocks) == [said]  # which pass@256 of the base model decides alone
    assert rows(blocks)[9][1] == "GRPO, groups of 16"
    words = [row[5] for row in rows(blocks)][9:]
    assert words == [f"{word}, decides nothing" for word in ("higher", "lower", "lower")]
    text = " ".join(text_of(x) for x in walk(blocks) if isinstance(x, Text))
    assert "Of 3 trainings of models that have the format before RL, pass@16 falls in 2" in text
    assert "rises in 1." in text
    # A model that has the format before RL decides, too: here it solves more, by 0.1, afterwards.
    ends = {"pass@1": (0.3, 0.5), "pass@4": (0.5, 0.6), "pass@16": (0.7, 0.8)}
    plain = method(tmp_path, "rloo", "addition", SIGNS[0], {**ends, "pass@256": (0.8, 0.9)})
    blocks = [*chapter.many_section([m, plain], tmp_path)]
    both = "in part" if word == "holds" else word
    assert verdicts(blocks)[0].startswith(f"{both}: +0.100 [")
    assert [row[1] for row in rows(blocks)][:2] == ["GRPO, base model", "RLOO, all samples"]


@pytest.mark.parametrize(
    ("few", "large", "word"),
    [(0.79, 0.79, "holds"), (0.79, 0.6, "in part"), (0.7, 0.7, "does not hold")],
)
def test_groups_of_two_are_held_against_a_share_of_sixteen(
    tmp_path: Path, few: float, large: float, word: str
) -> None:
    """Those with an eighth of the samples, in as many steps and in as large ones."""
    ends = [0.8, 0.75, 0.7, 0.6, few, large]
    shares = {"all_solved": (0.1, 0.1), "all_failed": (0.2, 0.2)}
    runs = [
        method(
            tmp_path, "grpo", "addition", x,
            {"pass@1": (0.1, end), "entropy": (1, 0)},
            shares,
        )
        for x, end in zip((*GROUPS, *PAIRS), ends, strict=True)
    ]  # fmt: skip
    blocks = [*chapter.groups_section(runs, tmp_path)]
    (said,) = verdicts(blocks)
    assert said.startswith(f"{word}: {min(few, large) - 0.1 - 0.95 * 0.7:+.3f} [")
    assert said.endswith("; at this budget: pass@1 still rose in 3 of 3 trainings")
    table = rows(blocks, "language-groups")
    assert table[0][:6] == ["16", "16", "51,200", "200", "5", "70%"]
    assert [row[:4] for row in table[-2:]] == [
        ["16", "2", "6,400", "200"],
        ["128", "2", "6,400", "25"],
    ]
    assert [row[3][:6] for row in rows(blocks)][4:] == ["-0.050", "-0.100", "-0.200"]
    assert [*chapter.groups_section(runs[1:], tmp_path)] == []


def test_a_reward_that_rises_while_accuracy_falls(tmp_path: Path) -> None:
    blocks = rlhf(tmp_path, lambda x: 0.1 if x.get("rules") is False else 0.8)
    (turn,) = cards(blocks)
    (compared,) = [x for x in turn.details if isinstance(x, Table) and not x.name]
    found = cells_of(compared)
    # The metric of the last fifth of the training is from 2.6 to 3.0 in ten steps: 2.82, and the
    # first step's is 1.04.
    assert [row[3].split(" ")[0] for row in found] == ["-0.400"] * 3 + ["+1.78"] * 3
    assert [row[5] for row in found] == ["lower"] * 3 + ["higher, decides nothing"] * 3
    table = rows(blocks, "language-overoptimisation")
    assert table[3][:3] == ["RLHF-PPO", "learned and rules", "5"]
    assert table[0][3:5] == ["1.04", "2.82 [2.82, 2.82]"]
    said = "pass@1 at temperature 1 rises in 0 and falls in 3 of 3 runs: -0.400"
    assert turn.verdict == "in part"
    assert text_of(turn.number).startswith(said)
    (still,) = cards(rlhf(tmp_path / "still", lambda _: 0.5))
    assert still.verdict == "not shown"


def test_the_axis_is_the_square_root_of_the_kl(tmp_path: Path) -> None:
    measures = {"pass@1": (0.5, 0.1), "kl": (-0.102, 0.248)}  # 0.002 more on average over seeds
    x = chapter.distance(method(tmp_path, "grpo", "addition", {}, measures))
    assert (x[0], x[-1]) == (0, pytest.approx(0.5))
    # pass@1 goes in a line from 0.502 to 0.102.
    table = rows(rlhf(tmp_path, lambda _: 0.1, lambda _: 0.248), "language-overoptimisation")
    assert {(row[5], row[6][:7], row[7], row[-1]) for row in table} == {
        ("0.502", "0.102 [", "0.302", "0.250")
    }


@pytest.mark.parametrize(("end", "word"), [(0.2, "worse -0.200 ["), (0.6, "better +0.200 [")])
def test_a_verdict_on_trl_is_of_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: float, word: str
) -> None:
    monkeypatch.setattr(chapter_results, "FEWEST", SEEDS)
    ours, theirs = (
        method(tmp_path, "grpo", "addition", {}, {"pass@1": (0.3, x)}) for x in (end, 0.4)
    )
    theirs.algo = "trl-grpo"
    blocks = [*language_models.trl_section([ours, theirs], tmp_path)]
    assert rows(blocks, "language-trl")[0][-1].startswith(word)
    (said,) = [x for x in blocks if isinstance(x, Items)]
    assert said.items[0] == f"Shown to be worse than TRL: {'GRPO' if end < 0.4 else 'no method'}"


@pytest.mark.parametrize(
    ("algo", "n", "said"),
    [("dpo", "4 pairs", r"undecided \+0.000 \[.*, p=1.000, paired, r=1.00"),
     ("grpo", "5 and 5", r"undecided \+0.000 \[.*, p=1.000")],
)  # fmt: skip
def test_seeds_that_share_their_data_are_pairs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, algo: str, n: str, said: str
) -> None:
    """In DPO; by their numbers and what they began with, whatever their order."""
    monkeypatch.setattr(chapter_results, "FEWEST", 4)
    ours, theirs = (method(tmp_path, algo, "addition", {}, {"pass@1": (0.3, 0.4)}) for _ in "ab")
    theirs.algo = f"trl-{algo}"
    theirs.configs.reverse()
    theirs.summaries.reverse()
    for summary in theirs.summaries:
        summary["initial"]["pass@1"] *= 1 + 1e-8  # summed up in another order
    if algo == "dpo":
        theirs.summaries[-1]["initial"]["pass@1"] = 0.31  # of seed 0: another model
    row = lambda: rows(language_models.trl_section([ours, theirs], tmp_path), "language-trl")[0]  # noqa: E731
    assert row()[4] == n
    assert re.fullmatch(said, row()[-1])
    if algo == "dpo":
        monkeypatch.setattr(chapter_results, "FEWEST", 5)
        assert row()[-1].startswith("none (needs 10 seeds that both have, with the same initial m")


def test_accuracy_that_turns_is_said_to(tmp_path: Path) -> None:
    end = lambda x: 0.6 if x.get("kl_coef") == 0.5 else 0.3  # noqa: E731
    said = verdicts(rlhf(tmp_path, end, lambda x: 0.1 / x.get("kl_coef", 0.1)))
    # Seeds differ by a thousandth, 0.002 on average.
    assert said[0].startswith(
        "holds: pass@1 at temperature 1 turns from a gain to a loss between a KL of 0.202 and 0.502"
    )
    end = lambda x: 0.6 if x.get("kl_coef") == 0.05 else 0.3  # noqa: E731
    said = verdicts(rlhf(tmp_path, end, lambda x: 0.1 / x.get("kl_coef", 0.1)))
    assert said[0].startswith("does not hold: pass@1 at temperature 1 rises in 1 and falls in 2")


def test_clip_higher_that_changes_nothing_is_said_to(tmp_path: Path) -> None:
    runs = [
        method(
            tmp_path, "dapo", "addition", settings,
            {"pass@1": (0.2, 0.6), "pass@16": (0.7, 0.6),
             "entropy": (0.5, 0.3 if settings["clip_range_high"] > 0.4 else 0.1)},
            {"clip_high": (0.006 / settings["clip_range_high"],) * 2, "clip_low": (0.01, 0.01)},
        )
        for settings in CLIP_HIGHER
    ]  # fmt: skip
    blocks = [*chapter.clip_section(runs, tmp_path)]
    assert [text.split(":")[0] for text in verdicts(blocks)] == ["in part", "not shown"]
    found = {tuple(row[:2]): (row[3][:6], row[5]) for row in rows(blocks)}
    assert found["entropy", "an upper clip of 0.28 minus 0.2"] == ("+0.000", "undecided")
    assert found["entropy", "an upper clip of 0.5 minus 0.2"] == ("+0.200", "higher")
    assert found["pass@16", "an upper clip of 0.5 minus 0.2"] == ("+0.000", "undecided")
    assert rows(blocks, "language-clip-higher")[0][:4] == ["0.2", "5", "3.20%", "1.20%"]
    assert [*chapter.clip_section(runs[:1], tmp_path)] == []
    # DAPO's preset decides, too, where the smaller upper clip removes more.
    for of_small, texts in ((0.02, ["in part", "in part"]), (0.005, ["in part", "not shown"])):
        preset = [
            method(
                tmp_path, "dapo", "addition", settings,
                {"pass@1": (0.2, 0.6), "pass@16": (0.7, end), "entropy": (0.5, 0.1)},
                {"clip_high": (share, share), "clip_low": (0.01, 0.01)},
            )
            for settings, share, end in (
                ({**OWN, "clip_range_high": 0.2}, of_small, 0.8), (OWN, 0.005, 0.9)
            )
        ]  # fmt: skip
        blocks = [*chapter.clip_section([*runs, *preset], tmp_path)]
        assert [text.split(":")[0] for text in verdicts(blocks)] == texts
        assert len(rows(blocks, "language-clip-higher")) == 5


def test_larger_clips_that_remove_as_much_are_no_treatment(tmp_path: Path) -> None:
    runs = [
        method(
            tmp_path, "dapo", "addition", settings,
            {"pass@1": (0.2, 0.6), "pass@16": (0.7, 0.6), "entropy": (0.5, 0.3)},
            {"clip_high": (0.03, 0.03), "clip_low": (0.01, 0.01)},
        )
        for settings in CLIP_HIGHER
    ]  # fmt: skip
    found = verdicts(chapter.clip_section(runs, tmp_path))
    assert found == ["not tested: the treatment was not applied"] * 2


@pytest.mark.parametrize(("clipped", "word"), [(0.012, "holds"), (0.03, "does not hold")])
def test_probabilities_of_the_tokens_that_are_clipped(
    clipped: float, word: str, tmp_path: Path
) -> None:
    """They are 0.4 or 1, and 0.8 of all that could be clipped."""
    metrics = {"clip_high": 0.03, "clip_low": 0.01, "movable": 0.5, "old_prob": 0.4}
    runs = [
        method(
            tmp_path, "dapo", "addition", settings,
            {"pass@1": (0.2, 0.6), "pass@16": (0.7, 0.6), "entropy": (0.5, 0.1)},
            {k: (x, x) for k, x in {**metrics, "old_prob_high": clipped}.items()},
        )
        for settings in CLIP_HIGHER
    ]  # fmt: skip
    blocks = [*chapter.clip_section(runs, tmp_path)]
    assert verdicts(blocks)[2].startswith(f"{word}: ")
    assert len(rows(blocks, "language-clip-tokens")) == 3
    path = runs[2].parts[0] / "metrics.parquet"
    write_bytes(path, parquet_bytes(pd.read_parquet(path).assign(clip_high=0.0)))
    blocks = [*chapter.clip_section(runs, tmp_path)]
    assert len(rows(blocks, "language-clip-tokens")) == 2
    text = " ".join(text_of(x) for x in walk(blocks) if isinstance(x, Text))
    assert "Not tested with 0.5, which clips nothing in some seed." in text


def test_a_diverged_seed_scores_0(tmp_path: Path) -> None:
    """At the end and on its curve from there on; what is no share of successes is unknown."""
    run = language_run(tmp_path)
    part = run / "seeds-000-000"
    write_json(part / "summary.json", {**read_json(part / "summary.json"), "diverged": 32})
    seal(part)
    found = Method(open_run(RunFolder(run)))
    assert found.values("pass@1").tolist() == [0.0]
    assert found.values("pass@1", "initial") == found.values("greedy") + 0.5 == 0.5
    assert found.mean_text("length", "initial") == "9.000"
    assert found.mean_text("length") == ""
    assert found.curve("format")[1].tolist() == [[1.0, 0.0, 0.0]]
    np.testing.assert_array_equal(found.curve("length")[1], [[9.0, np.nan, np.nan]])


def test_lengths_are_compared_where_they_are_free(tmp_path: Path) -> None:
    """All go in lines, so that a mean over the training is half of what changes until its end."""
    common = {"pass@1": (0.3, 0.6), "truncated": (0.1, 0.2), "length_right": (30.0, 25.0)}
    # Rules give 2 * 0.5 - 1 + 0.1 * 1, of which 0.4 is punished; seeds differ by 0.001.
    ruled = {"accuracy": (0.5, 0.5), "format": (1.0, 1.0), "reward": (-0.3, -0.3)}
    cases = [
        (algo, x, wrong, 20.0)
        for (algo, x), wrong in zip(LENGTHS.values(), (40.0, 26.0, 27.0, 28.0), strict=True)
    ]
    cases += [("dapo", x, 31.0, 20.0 if k == 3 else 25.0) for k, x in enumerate(LONG)]
    runs = []
    for algo, x, wrong, length in cases:
        measures = {**common, "length_wrong": (30.0, wrong)}
        metrics = {**ruled, "length": (30.0, length)}
        run = method(tmp_path, algo, "rambling", x, measures, metrics)
        runs.append(from_the_same_samples(run, norm=len(runs)))
    blocks = [*chapter.length_section(runs, tmp_path)]
    bias, score, shorter = verdicts(blocks)
    # GRPO without a KL against Dr. GRPO, which has none, decides, and no other pair.
    assert bias.startswith("does not hold: -1.00 [")
    assert score.startswith("not shown: +0.000 [")
    # 30 - 5 x and 30 - 10 x, where x is 0.51 on average over fifty steps.
    assert shorter.startswith("holds: -2.55 [")
    compared = [row for row in rows(blocks) if not re.match("pass|length of", row[0])]
    found = {row[1]: (row[3].split(" ")[0], row[5]) for row in compared}
    assert found["GRPO with a KL minus Dr. GRPO"] == ("+6.00", "higher, decides nothing")
    assert found["GRPO without a KL minus Dr. GRPO"] == ("-1.00", "lower")
    sides = {row[0]: row[3].split(" ")[0] for row in rows(blocks) if row[0].startswith("length of")}
    assert sides == {"length of wrong ones": "-1.00", "length of right ones": "+0.00"}
    assert found["GRPO with a KL minus GRPO without a KL"] == ("+7.00", "higher, decides nothing")
    assert found["soft punishment alone minus none of the three"] == ("-2.55", "lower")
    assert found["overlong filtering alone minus none of the three"] == (
        *("+0.00", "undecided, decides nothing"),
    )
    assert len(found) == 9
    applied = [text_of(x.details[0]) for x in cards(blocks)]
    # 27.5 and 28 tokens on average, 0.002 more; 0.4 and 0.0022 of rewards.
    assert (
        "a token of a wrong completion has 0.98 of the weight of one of a right one" in applied[0]
    )
    first = (
        "in the first step, from the same samples, the gradient has another norm in 5 of 5 seeds"
    )
    assert applied[0].endswith(f"{first}.")
    assert f"overlong filtering: 15.2% of the completions are cut off, and {first}; " in applied[1]
    assert "soft punishment: it costs 0.402 of reward per sample." in applied[2]
    table = rows(blocks, "language-free-length")
    assert [row[:2] for row in table][:4] == [
        *[["GRPO", x] for x in [*LENGTHS][:3]],
        ["Dr. GRPO", ""],
    ]
    # pass@1 from .3 to .6 and a tenth cut off, then two; seeds add .002.
    assert (table[0][3], table[0][8]) == ("0.452", "15.2%")
    # 30 - 10 x, where x is 0.51 on average, but for the first step, and 0.002 for the seeds.
    assert table[3][-1] == "24.91"
    assert table[0][7].startswith("+7.5 [")
    assert [row[0] for row in table].count("DAPO") == 4
    runs[1].frames[2].loc[5, "length_wrong"] = np.nan  # a seed without wrong completions, at last
    blocks = [*chapter.length_section(runs, tmp_path)]
    assert "GRPO with a KL minus GRPO without a KL" not in [row[1] for row in rows(blocks)]
    assert verdicts(blocks)[0] == "not tested: no comparison could decide"
    assert rows(blocks, "language-free-length")[1][5:8] == ["27.5", "", ""]
    # A flag that does nothing leaves the gradients as they are.
    for run in runs:
        from_the_same_samples(run, norm=1.0)
    blocks = [*chapter.length_section(runs, tmp_path)]
    assert verdicts(blocks)[0] == "not tested: the treatment was not applied"
    decisive = [row[1] for row in rows([cards(blocks)[1]]) if "decides nothing" not in row[5]]
    assert decisive == ["soft punishment alone minus none of the three"]


WAITS: Ends = {"wait": (0.4, 0.5), "wait_if_wrong": (0.9, 0.7), "wait_if_right": (0.05, 0.02),
               "right_after_wait": (0.6, 0.9)}  # fmt: skip


def planted(folder: Path, gain: float, seeds: int = SEEDS, right: float = 0.0) -> None:
    """P(wait | wrong column) gains so much, and P(wait | right column) `right`."""
    shares = {"accuracy": 0.5, "wait_if_wrong": 0.8, "wait_if_right": 0.1, "right_after_wait": 0.6}
    rows = [
        {
            "seed": seed,
            "before": shares,
            "after": {
                **shares,
                "accuracy": 0.6,
                "wait_if_wrong": 0.8 + gain * (1 + 1e-6 * (-1) ** seed),
                "wait_if_right": 0.1 + right,
            },
        }
        for seed in range(seeds)
    ]
    origin = {"command": "python x", **provenance(["llm_track/grpo.py:train"])}
    content = {**origin, "total_samples": 1, "measurements": rows}
    write_json(folder / "planted_errors.json", content)


@pytest.mark.parametrize(
    ("gain", "word"), [(0.1, "holds"), (-0.1, "does not hold"), (0.0, "not shown")]
)
def test_self_correction_of_planted_mistakes(tmp_path: Path, gain: float, word: str) -> None:
    """Its own mistakes decide nothing: after RL others are left."""
    planted(tmp_path, gain)
    run = method(tmp_path, "grpo", "checking", OWN, {"pass@1": (0.3, 0.8), **WAITS})
    blocks = [*chapter.correction_section([run], tmp_path)]
    said, apart = verdicts(blocks)
    assert said.startswith(f"{word}: {gain:+.3f} [")
    # P(wait | right column) stays.
    assert apart.startswith(f"{word}: ")
    assert rows(blocks, "language-planted")[0][:3] == ["P(wait | wrong column)", "5", "0.800"]
    assert rows(blocks, "language-planted")[-2][:3] == [chapter.TOLD_APART, "5", "0.700"]
    # log(0.8 / 0.2) - log(0.1 / 0.9)
    assert rows(blocks, "language-planted")[-1][:3] == [chapter.IN_LOG_ODDS, "5", "3.584"]
    own = rows(blocks, "language-correction-own")
    assert own[1][:2] == ["P(wait | wrong column)", "0.902"]
    assert verdicts(chapter.correction_section([], tmp_path)) == [said, apart]
    (tmp_path / "planted_errors.json").unlink()
    assert verdicts(chapter.correction_section([run], tmp_path)) == []


def test_a_model_that_waits_everywhere_tells_nothing_apart(tmp_path: Path) -> None:
    """As much more probable after both, it is less so in odds: from 0.1 they nearly double."""
    planted(tmp_path, 0.1, right=0.1)
    said, apart = verdicts(chapter.correction_section([], tmp_path))
    assert said.startswith("holds: +0.100 [")
    assert apart.startswith("not shown: +0.000 [")
    planted(tmp_path, 0.1, right=0.2)
    assert verdicts(chapter.correction_section([], tmp_path))[1].startswith("does not hold: -0.")
    planted(tmp_path, -0.1, right=-0.099)
    assert verdicts(chapter.correction_section([], tmp_path))[1].startswith("in part: -0.001 [")


def test_a_probability_of_0_has_no_odds(tmp_path: Path) -> None:
    """The difference alone decides then, and the card says so."""
    planted(tmp_path, 0.1)
    path = tmp_path / "planted_errors.json"
    content = json.loads(path.read_text())
    content["measurements"][0]["after"]["wait_if_right"] = 0  # an integer, as JSON has it
    path.write_text(json.dumps(content))
    said, apart = cards(chapter.correction_section([], tmp_path))
    assert said.verdict == apart.verdict == "holds"
    assert "So both decide, but one is not known" in " ".join(
        text_of(x) for x in apart.details if isinstance(x, Text)
    )


def test_one_seed_of_planted_mistakes_decides_nothing(tmp_path: Path) -> None:
    planted(tmp_path, 0.1, seeds=1)
    nothing = ["not tested: no comparison could decide"] * 2
    assert verdicts(chapter.correction_section([], tmp_path)) == nothing
    planted(tmp_path, 0.1)
    path = tmp_path / "planted_errors.json"
    content = json.loads(path.read_text())
    content["measurements"][0]["after"] = dict.fromkeys(content["measurements"][0]["after"])
    path.write_text(json.dumps(content))  # a training that diverged
    blocks = [*chapter.correction_section([], tmp_path)]
    assert verdicts(blocks) == nothing
    assert rows(blocks, "language-planted")[0][3].startswith("0.900 [")
    planted(tmp_path, 0.1, seeds=0)
    assert [*chapter.correction_section([], tmp_path)] == []


def test_ppo_with_grpo_s_settings_is_paired_by_seeds(tmp_path: Path) -> None:
    """A score that depends on the seed alone makes no difference between two runs of others."""
    runs = [
        method(tmp_path, algo, "addition", x, {"pass@1": (0.5, end), "kl": (0.0, 0.2)})
        for algo, x, end in (
            *(("rlhf_ppo", EQUAL, 0.8), ("rlhf_ppo", OWN, 0.95)),
            ("grpo", LIKE_PPO, 0.9),
        )
    ]

    def said() -> str:
        return verdicts(chapter.equal_section(runs, tmp_path))[0]

    assert said().startswith("holds: -0.100 [")
    table = rows(chapter.equal_section(runs, tmp_path), "language-equal")
    assert [row[0] for row in table] == ["RLHF-PPO", "GRPO", "RLHF-PPO"]
    beside = rows(chapter.equal_section(runs, tmp_path))[1]
    assert (beside[3][:6], beside[5]) == ("+0.050", "higher, decides nothing")
    assert [*chapter.equal_section(runs[:2], tmp_path)] == []
    own = runs.pop(1)
    assert said().startswith("holds: -0.100 [")
    assert len(rows(chapter.equal_section(runs, tmp_path), "language-equal")) == 2
    runs.append(own)
    for k, summary in enumerate(runs[0].summaries):
        summary["final"]["pass@1"] = 0.9 + 0.001 * (k + 1)
        summary["initial"]["pass@1"] = 0.5 + 0.001 * (k + 1)
        runs[0].configs[k] = {"seeds": [k + 1]}
    assert said().startswith("not shown: +0.000 [")
    assert rows(chapter.equal_section(runs, tmp_path))[0][2] == "4"
    for summary in runs[0].summaries[:3]:  # began with another model
        summary["initial"]["pass@1"] += 0.01
    assert said() == "not tested: no comparison could decide"
    runs[0].configs = [{"seeds": [k + 100]} for k in range(SEEDS)]
    assert said() == "not tested: no comparison could decide"


def pipeline(folder: Path, gain: float, points: int = 3, solved: int | None = None) -> list[Block]:
    noise = [1 + 1e-6 * (-1) ** seed for seed in range(3)]
    rows = [
        {"seed": seed, "stage": stage, "samples": 100, "pass@1": x * noise[seed],
         "pass@16": x * noise[seed], "cons@16": x, "format": 1.0, "length": 20.0,
         "curve": [{"samples": 50.0 * k, "pass@1": x / 2 * k} for k in range(points)]}
        for seed in range(3)
        for stage, x in (("RL alone", 0.6), ("RL again", 0.6 + gain),
                         ("distillation", 0.5), ("RL on small base", 0.1),
                         ("RL on small base for longer", 0.3))
    ]  # fmt: skip
    origin = {"command": "python x", **provenance(["llm_track/grpo.py:train"])}
    settings = {"task": "addition", "rl_samples": 1, "prompts": 64, "sft_samples": 1}
    if solved is not None:
        rows += [{**rows[0], "stage": "rejection SFT", "curve": [], "solved": solved}]
    content = {**origin, "settings": settings, "rows": rows}
    (folder / "llm_pipeline.json").write_text(json.dumps(content))
    return [*chapter.pipeline_section([], folder)]


def test_the_stages_of_r1(tmp_path: Path) -> None:
    blocks = pipeline(tmp_path, 0.2)
    again, distilled = verdicts(blocks)
    assert again.startswith("holds: +0.200 [")
    assert distilled.startswith("holds: +0.400 [")
    assert rows(blocks, "language-pipeline")[1][:3] == ["RL again", "3", "100"]
    assert [row[5] for row in rows(blocks)] == ["higher"] * 4 + ["higher, decides nothing"] * 2
    drawn = [x.figure.name for x in cards(blocks) if x.figure]
    assert drawn == ["language-pipeline-rl", "language-pipeline-distillation"]
    assert "at this budget: pass@1 still rose in 2 of 2 trainings" in again
    (drawn,) = [x.figure for x in cards(blocks)[1:] if x.figure]
    assert [*drawn.data["panels"]["pass@1"]] == ["distillation", chapter.SMALL, chapter.LONGER]
    assert len(pipeline(tmp_path, 0.2, points=0)) == len(blocks)  # without a curve
    found = [cards(pipeline(tmp_path, 0.2, solved=n))[0] for n in (48, 0)]
    assert text_of(found[0].details[0]) == "Applied: 48 of 64 prompts gave a demonstration."
    assert [x.verdict for x in found] == ["holds", "not tested"]
    assert verdicts(pipeline(tmp_path, 0.0))[0].startswith("not shown: +0.000 [")
    assert verdicts(pipeline(tmp_path, -0.1))[0].startswith("does not hold: -0.100 [")


def test_every_experiment_of_the_suite_is_shown_on_the_page(tmp_path: Path) -> None:
    """And none of them is a plain run."""
    measures = {name: (0.2, 0.4) for name in ("pass@1", "pass@16", "cons@16", "kl")}
    measures |= {name: (20.0, 30.0) for name in ("length", "length_right", "length_wrong")}
    measures |= {name: (0.5, 0.6) for name in ("format", "pass@4", "pass@64", "pass@256")}
    measures |= {"entropy": (0.3, 0.2), "truncated": (0.0, 0.1)}
    measures |= WAITS
    metrics = {name: (0.1, 0.2) for name in ("accuracy", "reward", "clip_high", "clip_low")}
    metrics |= {
        "grad_norm": (1.0, 1.0),
        "length": (30.0, 20.0),
        "all_solved": (0.1, 0.3),
        "all_failed": (0.3, 0.1),
    }
    metrics |= {"entropy": (0.3, 0.2), "pairs": (0.0, 50.0), "format": (1.0, 1.0)}
    metrics |= {name: (0.1, 0.2) for name in ("movable", "old_prob", "old_prob_high")}
    metrics |= {name: (20.0, 30.0) for name in ("rankable", "ranked")}
    runs = [
        method(tmp_path, algo, task, settings, measures, metrics)
        for algo, task, _, settings in EXPERIMENTS
    ]
    runs += [method(tmp_path, algo, "addition", {}, measures) for algo in ("grpo", "rlhf_ppo")]
    assert all(m.of_experiment for m in runs[: len(EXPERIMENTS)])
    assert not any(m.of_experiment or not m.plain for m in runs[len(EXPERIMENTS) :])
    planted(tmp_path, 0.1)
    page = [*chapter.page(runs, tmp_path)]
    titles = [x.text for x in page if isinstance(x, Heading)]
    ended = "Trainings that had not reached a plateau"
    assert titles == [x for x in (*chapter.SECTIONS, ended) if x != "The stages of DeepSeek-R1"]
    figures = [x.name for x in walk(page) if isinstance(x, Figure)]
    assert len(figures) == len({*figures}) > 5
    assert all(
        text_of(x.details[0]).startswith("Applied: ")
        for x in cards(page)
        if isinstance(x.details[0], Text)
    )
    said = [text_of(x) for x in page[2:] if isinstance(x, Text)]
    assert not any(re.search(r"\d", x) for x in said[:-1])
    # All planted curves rise to the end, but for those that lack a headline of this kind.
    assert re.match(r"In (\d+) of \1 trainings pass@1 still rose", said[-1])
    assert [*chapter.page([], tmp_path / "empty")] == []

    named = [" ".join(row[:2]) for row in rows(page, "language-rising")]
    assert len(named) == len({*named}) == int(re.findall(r"\d+", said[-1])[0])
    assert not any("(not" in x for x in named)  # by a name, not by its flags

    listed = chapter.summary(page).items
    of_papers = [x for x in cards(page) if not x.source.startswith(OURS)]
    assert len(cards(page)) > len(listed) == len(of_papers)
    one = next(x for x in of_papers if x.number)
    said = f"{text_of(one.claim)} {one.verdict.capitalize()}: {text_of(one.number)}"
    assert said in [text_of(x) for x in listed if not isinstance(x, Item)]


def test_a_claim_without_its_treatment_is_not_tested() -> None:
    """What was compared stands in its table, and is not counted among what decides."""
    claim = judged("a", "A.", "", [side(0.01)], applied=Applied("nothing was", yes=False), note="x")
    assert (claim.verdict, claim.number) == ("not tested", "the treatment was not applied")
    assert rows([claim])[0][5] == "higher, decides nothing"
    assert claim.p == []
    assert text_of(claim.details[0]) == "Applied: nothing was."
    claim = judged("a", "A.", "", [side(0.01)], applied=Applied("it was"), note="x", sign=-1)
    assert (claim.verdict, text_of(claim.number)[-3:]) == ("does not hold", "; x")
    of_budget = judged(
        "a", "A.", "", [side(0.01)], applied=Applied("it was"), sign=-1, unreached="not within 9"
    )
    assert of_budget.verdict == "not shown"
    assert text_of(of_budget.number).startswith("not within 9: +0.200 [")
    assert of_budget.figure
    assert of_budget.figure.label == "What decides: A"


def test_the_level_is_that_of_one_more_comparison() -> None:
    """Of 0.001 and 0.01, times 4 and 3, both are decided; 0.3 and 0.5 are not."""
    assert level_of([0.5, 0.001, 0.3, 0.01]) == pytest.approx(0.05 / 2)
    assert level_of([0.001]) == level_of([]) == 0.05


def test_ends_that_still_rise_are_of_a_budget() -> None:
    samples = np.linspace(0, 100, 6)
    still = np.tile(np.minimum(samples, 80), (3, 1))
    rising = np.tile(samples, (3, 1)) * np.array([[0.9], [1.0], [1.1]])
    assert budget_text([(samples, still)]) == ""
    said = "at this budget: pass@1 still rose in 1 of 2 trainings"
    assert budget_text([(samples, still), (samples, rising)]) == said


def side(p: float) -> Compared:
    """A difference whose interval lies above 0."""
    return Compared("pass@1", "a minus b", stats.Estimate(0.2, 0.1, 0.3, 10), p=p)


def test_a_side_needs_its_interval_and_its_test() -> None:
    assert (side(0.049).sign, side(0.05).sign, side(np.nan).sign) == (1, 0, 0)
    assert side(0.001)._replace(difference=stats.Estimate(0.2, -0.1, 0.5, 10)).sign == 0
    assert side(0.001)._replace(difference=stats.Estimate(-0.2, -0.3, -0.1, 10)).sign == -1


@pytest.mark.parametrize(("second", "words"), [(0.01, ["holds"] * 2), (0.03, ["not shown"] * 2)])
@pytest.mark.parametrize("module", [chapter, language_models])
def test_the_claims_of_a_page_are_corrected_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: Any, second: float, words: list[str]
) -> None:
    """Each alone is below 0.05; of 0.01 and 0.03 both are, doubled the first, of 0.03 twice none.
    What stands beside a claim is not counted."""
    applied = Applied("it was")
    claims = [
        judged("a", "first", "", [side(0.03)], applied=applied, beside=[side(0.04)]),
        judged("b", "second", "", [side(second)], applied=applied),
    ]
    assert [x.verdict for x in claims] == ["holds", "holds"]
    monkeypatch.setattr(module, "sections", lambda titled: iter(claims))
    blocks = [*module.page([SimpleNamespace(of_experiment=False)], tmp_path)]
    assert [x.verdict for x in cards(blocks)] == words
    (first, beside), (alone,) = (rows([x]) for x in cards(blocks))
    assert (first[4], alone[4]) == (("0.030", "0.020") if second < 0.03 else ("0.060", "0.060"))
    assert beside[4:] == ["0.040", "higher, decides nothing"] + [""] * (second == 0.03)
    # Of 0.06 twice, the interval from 0.1 to 0.3 has a standard error of 0.1 / 2.262; at 0.05 / 2,
    # t is 2.685, and 0.883 more for 80%.
    assert first[6:] == alone[6:] == ([] if second < 0.03 else ["0.158"])
    assert "corrected together" in "".join(text_of(x) for x in blocks if isinstance(x, Text))
