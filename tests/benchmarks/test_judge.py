"""The judge: its rule on known distributions, and verdicts on edits of ppo.py."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from manyseeds.benchmarks import judge
from manyseeds.benchmarks.experiments import catalog, judged_side, sessions
from manyseeds.benchmarks.experiments.sessions import LOOKS, Rule, level_of
from manyseeds.benchmarks.measurements import judge_rates
from manyseeds.benchmarks.store import sides
from manyseeds.benchmarks.store.tries import ROWS, Rows, Session
from manyseeds.cli import PUBLISHED
from manyseeds.digest import ROOT
from manyseeds.envs.cartpole import CartPole
from manyseeds.errors import UsageError
from manyseeds.stats import Estimate, Floats
from manyseeds.untrusted import check
from tests.benchmarks.conftest import Output, Patch, Refusal

PPO = ROOT / "algos" / "ppo.py"
CLIPPED = "-torch.minimum(ratio * advantages, clipped * advantages).mean(-1)"
# An edit of each kind: what it replaces, by what.
HURTS = (CLIPPED, CLIPPED.removeprefix("-"))
RENAMES = ("clipped", "bounded")
BESIDE = "import torch\n\nimport beside\n"
SHORT = ("--envs", "CartPole-v1", "--timesteps", "4096")


def edited(folder: Path, *edits: tuple[str, str], name: str = "mine.py") -> Path:
    """A copy of ppo.py with some of its text replaced."""
    text = PPO.read_text()
    for before, after in edits:
        assert before in text
        text = text.replace(before, after)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(text)
    return folder / name


def tries(results: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((results / "judge/ppo/ledger.json").read_text())[
        "tries"
    ]
    return found


# ---- The rule -------------------------------------------------------------------------------


@pytest.fixture
def few_choices(monkeypatch: Patch) -> Iterator[None]:
    """A faster rule, which needs larger levels."""
    monkeypatch.setattr(sessions, "CHOICES", 999)
    sessions.signs.cache_clear()
    monkeypatch.setattr(
        sessions, "interval", lambda own, look: Estimate(float(np.mean(own)), -9.0, 9.0, 1)
    )
    yield
    sessions.signs.cache_clear()


def decided(rule: Rule, differences: list[Floats], same: bool = False) -> sessions.Decision:
    while not rule.ended:
        own = [x[: LOOKS[rule.look + 1]] for x in differences]
        found = rule.decide(own, [same] * len(own))
    return found


def failing(rng: np.random.Generator, n: int) -> Floats:
    """Differences of sides on which one seed in five fails, and no other differs much."""
    sides = np.where(rng.random((2, n)) < 0.2, 0.0, 1.0) + 0.01 * rng.standard_normal((2, n))
    return np.asarray(sides[0] - sides[1])


def cauchy(rng: np.random.Generator, n: int) -> Floats:
    return rng.standard_cauchy(n)


@pytest.mark.usefixtures("few_choices")
@pytest.mark.parametrize("draw", [failing, cauchy])
@pytest.mark.parametrize("cells", [1, 2])
def test_a_change_without_effect_is_rarely_found(draw: Any, cells: int) -> None:
    """Over all looks, whatever the distribution: any word at most at the level, those of single
    cells included, and not much below it."""
    rng, level, samples = np.random.default_rng(0), 0.1, 1000
    words = []
    for _ in range(samples):
        differences = [draw(rng, LOOKS[-1]) for _ in range(cells)]
        found = decided(Rule(level, [0.001] * cells), differences)
        words.append({x.word for x in (found.overall, *found.cells)})
    for word in ("better", "worse"):
        share = sum(word in said for said in words) / samples  # its standard error is 0.0095
        assert 0.05 < share < 0.12, word


@pytest.mark.usefixtures("few_choices")
def test_looks_that_spend_all_of_the_level_each_would_err_too_often(monkeypatch: Patch) -> None:
    monkeypatch.setattr(sessions, "spent", lambda level, look: level * (look + 1))
    rng = np.random.default_rng(0)
    words = [
        decided(Rule(0.1, [0.001]), [rng.standard_normal(LOOKS[-1])]).overall.word
        for _ in range(300)
    ]
    assert words.count("better") / 300 > 0.17


def test_the_levels_of_all_tries_together_are_the_budget() -> None:
    levels = [level_of(k) for k in range(1, 100_000)]
    assert levels == sorted(levels, reverse=True)
    assert 0.0498 < sum(levels) < sessions.ALPHA
    spent = [sessions.spent(1.0, look) for look in range(len(LOOKS))]
    assert spent == sorted(spent)
    assert spent[-1] == pytest.approx(1.0)


def test_words() -> None:
    rng = np.random.default_rng(0)
    noise = 0.05 * rng.standard_normal(LOOKS[-1])
    first = Rule(level_of(1), [0.05])
    found = decided(first, [noise + 0.1])
    assert (found.overall.word, found.overall.seeds) == ("better", LOOKS[0])
    assert found.overall.effect.low < 0.1 < found.overall.effect.high
    found = decided(Rule(level_of(1), [0.05]), [noise - 0.1])
    assert found.overall.word == "worse"
    found = decided(Rule(level_of(1), [0.05]), [noise - noise.mean()])
    assert found.overall.word == "equivalent"
    found = decided(Rule(level_of(1), [0.05]), [0 * noise], same=True)
    assert (found.overall.word, found.overall.seeds) == ("equivalent", LOOKS[0])
    # The same returns say less than the same bits: all may be as low as can be.
    found = decided(Rule(level_of(1), [0.05]), [0 * noise])
    assert (found.overall.word, found.overall.seeds) == ("equivalent", sessions.EQUIVALENT_FROM)
    found = decided(Rule(level_of(1), [0.001]), [noise - noise.mean()])
    assert found.overall.word == "undecided"
    # Better over all, but worse somewhere.
    found = decided(Rule(level_of(1), [0.05, 0.05]), [noise + 0.9, noise - 0.3])
    assert [x.word for x in (*found.cells, found.overall)] == ["better", "worse", "better"]


def test_the_last_try_of_a_session_still_finds_what_is_large() -> None:
    """By choices enough for its level, 1.4e-5."""
    rng = np.random.default_rng(0)
    level = level_of(sessions.MOST_TRIES)
    found = decided(Rule(level, [0.05]), [0.1 + 0.05 * rng.standard_normal(LOOKS[-1])])
    assert (found.overall.word, found.overall.seeds) == ("better", LOOKS[1])
    assert len(sessions.SignTest(level, [0])._sums) >= sessions.FINEST / level


def test_what_a_look_finds_equal_may_differ_at_the_next() -> None:
    """Whether by the same returns or by the same bits: later seeds decide."""
    rng = np.random.default_rng(0)
    late = np.concatenate([np.zeros(LOOKS[0]), -1 + 0.1 * rng.standard_normal(LOOKS[-1])])
    noise = 0.2 * rng.standard_normal(LOOKS[-1])
    rule, words = Rule(level_of(1), [0.001, 0.001]), []
    while not rule.ended:
        n = LOOKS[rule.look + 1]
        found = rule.decide(
            [late[:n], noise[:n] - noise[:n].mean() - late[:n].mean()], [n == 12, False]
        )
        words.append(found.cells[0].word)
    assert (words[0], words[-1]) == ("equivalent", "worse")
    assert decided(Rule(level_of(1), [0.05]), [late[: LOOKS[-1]]]).overall.word == "worse"


def rows_of(folder: Path, changed: list[Any], against: list[Any]) -> Rows:
    """Rows of Pendulum: scores of either side, None for a diverged seed."""
    rows = Rows(folder / "rows.json", "", [])
    for side, scores in (("changed", changed), ("against", against)):
        for seed, score in enumerate(scores):
            row = {"env": "Pendulum-v1", "physics": 0, "side": side, "seed": seed, "auc": score}
            row |= {"final": score, "diverged": 64.0 if score is None else None, "weights": "a"}
            rows.rows.append(row | {"timesteps": [0, 64], "returns": [-1100.0, score]})
    return rows


def test_a_diverged_seed_counts_no_more_than_its_pair(tmp_path: Path) -> None:
    """The unchanged side is worse than a random policy, so that failing looks like a gain."""
    cell = judge.Cell("Pendulum-v1", 0, {"random": -1200.0, "reference": -150.0, "digits": 0})
    rows = rows_of(tmp_path, [None, None, -1300.0, None], [-1500.0, -1000.0, None, None])
    scores = cell.scores(rows, range(4), "auc")
    assert scores["changed"].tolist() == [-1500.0, -1200.0, -1300.0, -1200.0]
    assert scores["against"].tolist() == [-1500.0, -1000.0, -1300.0, -1200.0]


def test_what_diverges_more_often_is_not_kept(tmp_path: Path) -> None:
    cell = judge.Cell("Pendulum-v1", 0, {"random": -1200.0, "reference": -150.0, "digits": 0})
    n = LOOKS[0]
    for diverged, kept in ((0, True), (1, False)):
        rows = rows_of(tmp_path, [None] * diverged + [-200.0] * (n - diverged), [-900.0] * n)
        decision = decided(Rule(level_of(1), [0.05]), [cell.differences(rows, range(n), "auc")])
        outcome = judge.outcome_of(decision, [cell], rows, range(n))
        assert outcome["overall"]["word"] == "better"
        assert outcome["kept"] == kept
        lines = judge.said(outcome | {"stands": True, "seconds": 1.0})
        assert ("  not kept: worse on Pendulum-v1 (more seeds diverge)" in lines) != kept
        *_, last = judge.said(outcome | {"stands": True, "seconds": 1.0, "confirm": True})
        assert last.startswith("  confirmed on" if kept else "  not confirmed on held-out seeds: w")
        *_, over_all, last = judge.said(
            outcome | {"stands": False, "seconds": 1.0, "confirm": True}
        )
        assert "over all: not yet decided; more --minutes go on" in over_all
        assert last.startswith("  confirmed on" if kept else "  not yet confirmed on")
        outcome["overall"]["word"], outcome["kept"] = "undecided", False
        *_, over_all = judge.said(outcome | {"stands": False, "seconds": 1.0, "seeds": LOOKS[-1]})
        assert "over all: undecided; " in over_all


def test_the_same_returns_are_not_the_same_bits(tmp_path: Path) -> None:
    cell = judge.Cell("Pendulum-v1", 0, {"random": -1200.0, "reference": -150.0, "digits": 0})
    rows = rows_of(tmp_path, [-900.0] * 2, [-900.0] * 2)
    assert cell.identical(rows, range(2))
    for weights in ("b", None):
        rows.rows[1]["weights"] = weights
        assert not cell.identical(rows, range(2))
    for row in rows.rows:  # of a checkout that does not tell
        row["weights"] = None
    assert not cell.identical(rows, range(2))


def test_a_full_session_refuses_a_new_try(tmp_path: Path) -> None:
    session = Session.of(tmp_path, "ppo")
    entry: dict[str, Any] = {
        **dict.fromkeys(("change", "file", "against", "commit", "module"), ""),
        **{"set": [], "envs": [], "timesteps": 0, "paths": {}},
    }
    for number in range(sessions.MOST_TRIES):
        assert session.begin(f"{number}", entry, {})["number"] == number + 1
    with pytest.raises(UsageError, match="has all 200 tries of a session; begin another"):
        session.begin("another", entry, {})
    assert session.begin("7", entry, {})["number"] == 8
    ledger = session.path / "ledger.json"
    ledger.write_text(ledger.read_text().replace('"schema": 2', '"schema": 1'))
    with pytest.raises(UsageError, match="has schema 1, this version 2; begin another"):
        session.tries  # noqa: B018


def test_a_later_try_needs_more() -> None:
    rng = np.random.default_rng(1)
    differences = 0.1 + 0.1 * rng.standard_normal(LOOKS[-1])
    seeds = [decided(Rule(level_of(k), [0.001]), [differences]).overall.seeds for k in (1, 10, 200)]
    assert seeds[0] <= seeds[1] <= seeds[2]
    assert seeds[0] < seeds[2]


def test_tries_share_no_seeds() -> None:
    blocks = [sessions.seeds_of(k) for k in (1, 2, 3)] + [sessions.seeds_of(1, confirm=True)]
    assert len(set().union(*blocks)) == 4 * LOOKS[-1]


# ---- Verdicts -------------------------------------------------------------------------------


def test_an_edit_that_hurts_is_worse_and_a_rename_is_neither(
    tmp_path: Path, capsys: Output
) -> None:
    results = tmp_path / "results"
    hurts = edited(tmp_path, HURTS)
    with pytest.raises(SystemExit) as left:
        judge.main([str(hurts), *SHORT, "--results", str(results), "--fail-if", "worse"])
    assert left.value.code == 1
    printed = capsys.readouterr().out
    assert printed.startswith("changed: policy_loss (against algos/ppo.py)\n")
    assert "CartPole-v1: worse\n" in printed
    assert "over all: worse; learning speed -" in printed
    page = results / "judge/ppo/try-001/README.md"
    assert f"written: {page}" in printed.replace("\n", "")
    text = page.read_text()
    assert text.startswith("# policy_loss\n\n![Learning curves](curves.svg)\n")
    assert [x in text for x in printed.splitlines() if x.startswith("CartPole-v1: ")] == [True]
    assert (page.parent / "curves.svg").read_text().count("CartPole-v1") >= 1

    renamed = edited(tmp_path / "b", RENAMES)
    judge.main([str(renamed), *SHORT, "--results", str(results), "--json", "--fail-if", "worse"])
    outcome = json.loads(capsys.readouterr().out)
    (cell,) = outcome["cells"]
    assert (cell["word"], outcome["overall"]["word"]) == ("equivalent", "equivalent")
    assert cell["identical"]
    assert outcome["try"] == 2
    assert outcome["level"] < level_of(1)
    assert "update" in outcome["pytorch"]["changed"]
    assert outcome["pytorch"]["against"] == []
    assert [x["word"] for x in tries(results)] == ["worse", "equivalent"]
    # Again: the same outcome, no new try, and nothing is trained.
    seconds = outcome["seconds"]
    again = judge.judge(renamed, envs=["CartPole-v1"], timesteps=4096, results=results)
    assert (again["cells"], again["seconds"]) == (outcome["cells"], seconds)
    assert len(tries(results)) == 2
    check(json.loads((results / "judge/ppo/try-002/rows.json").read_text()), ROWS, "")


@pytest.mark.slow
def test_a_gain_is_kept_and_confirmed_on_held_out_seeds_and_physics(
    tmp_path: Path, capsys: Output, refusal: Refusal
) -> None:
    results = tmp_path / "results"
    words = [str(PPO), "--against", str(edited(tmp_path, HURTS)), *SHORT, "--results", str(results)]
    confirming = [str(PPO), "--confirm", "--results", str(results), "--json"]
    assert "has no try that was found better" in refusal(judge.main, *confirming)
    judge.main(words)
    printed = capsys.readouterr().out
    assert printed.replace("\n", "").startswith(f"changed: policy_loss (against {words[2]})")
    assert "kept; --confirm decides on held-out seeds\n" in printed
    judge.main(confirming)
    (outcome,) = json.loads(capsys.readouterr().out)
    assert [(x["env"], x["physics"]) for x in outcome["cells"]] == [
        ("CartPole-v1", 0),
        ("CartPole-v1", 1),
    ]
    assert outcome["kept"]
    assert [tries(results)[0][x] for x in ("confirmed", "rank")] == ["better", 1]
    rows = json.loads((results / "judge/ppo/try-001/confirm.json").read_text())["rows"]
    assert min(row["seed"] for row in rows) >= sessions.FIRST_HELD_OUT
    by_physics = [[x["auc"] for x in rows if x["physics"] == k] for k in (0, 1)]
    assert by_physics[0] != by_physics[1]


@pytest.mark.slow
def test_what_is_confirmed_is_what_was_judged(
    tmp_path: Path, capsys: Output, refusal: Refusal
) -> None:
    """With the files that it imports; a try whose code is gone keeps no other from it."""
    results, there = tmp_path / "results", ("--results", str(tmp_path / "results"))
    (tmp_path / "beside.py").write_text("SHARE = 1.0\n")
    hurts = edited(tmp_path, HURTS, name="hurts.py")
    helped = edited(tmp_path, ("pg_loss +", "beside.SHARE * pg_loss +"), ("import torch\n", BESIDE))
    for number in (1, 2):
        judge.main([str(helped), "--against", str(hurts), *SHORT, *there])
        assert tries(results)[-1]["kept"]
        if number == 1:
            helped.write_text(helped.read_text().replace("beside.SHARE *", "beside.SHARE * 1.0 *"))
    capsys.readouterr()
    # The file of the first try has changed since, and its copy has no other file beside it.
    judge.main([str(helped), "--confirm", *there, "--json"])
    printed, notes = capsys.readouterr()
    assert [x["try"] for x in json.loads(printed)] == [2]
    assert notes.count("note: --confirm: try 1: ModuleNotFoundError: No module named") == 1
    assert [x["rank"] for x in tries(results)] == [None, 1]
    (tmp_path / "beside.py").write_text("SHARE = 0.5\n")
    with pytest.raises(UsageError, match="--confirm: try 1: ") as refused_all:
        judge.judged(judge.Flags(file=str(helped), confirm=True, json=True, results=str(results)))
    assert "try 2: its code is no longer what was judged" in str(refused_all.value)


@pytest.mark.slow
def test_a_commit_is_trained_by_its_own_code(tmp_path: Path) -> None:
    outcome = judge.judge(
        PPO,
        against="HEAD",
        settings=["learning_rate=1e-6"],
        envs=["CartPole-v1"],
        timesteps=4096,
        results=tmp_path,
    )
    assert outcome["overall"]["word"] == "worse"
    assert "learning_rate 0.001 -> 1e-06" in outcome["change"]
    (tree,) = (tmp_path / "judge" / "trees").iterdir()
    assert (tree / "algos" / "ppo.py").is_file()


@pytest.mark.slow
def test_a_killed_judgement_goes_on(tmp_path: Path) -> None:
    """The same ledger and verdict as of one that was not."""
    file = edited(tmp_path, HURTS)
    envs = ["CartPole-v1", "Acrobot-v1"]
    words = [str(file), "--envs", *envs, "--timesteps", "4096"]
    command = [sys.executable, str(ROOT / "benchmarks" / "judge.py"), *words]
    killed = tmp_path / "killed"
    rows = killed / "judge/ppo/try-001/rows.json"
    with subprocess.Popen(
        [*command, "--results", str(killed)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.DEVNULL,
    ) as process:
        until = time.monotonic() + 120
        while not rows.exists() and time.monotonic() < until:
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
    there = json.loads(rows.read_text())["rows"]
    assert {row["env"] for row in there} == {"CartPole-v1"}
    outcomes = [
        judge.judge(file, envs=envs, timesteps=4096, results=folder)
        for folder in (killed, tmp_path / "whole")
    ]
    for name in ("overall", "cells", "try", "level", "kept", "change"):
        assert outcomes[0][name] == outcomes[1][name], name
    assert tries(killed) == tries(tmp_path / "whole")
    assert json.loads(rows.read_text())["rows"][: len(there)] == there


# ---- What is refused ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("", "FILE: name the file of an algorithm"),
        ("nowhere.py", "nowhere.py: there is no such file"),
        (f"{PPO} --against nowhere", "--against nowhere: is neither a file nor a commit"),
        (f"{PPO} --against nowhere.py", "--against nowhere.py: there is no such file"),
        (f"{PPO} --envs CartPole-v1 CartPole-v1", "--envs CartPole-v1: given twice"),
        (f"{ROOT}/benchmarks/merge.py", "resembles no file of algos/"),
        (f"{PPO} --minutes 0", "--minutes 0"),
        (f"{PPO} --fail-if never-ever", "--fail-if"),
    ],
)
def test_bad_commands(words: str, message: str, tmp_path: Path, refusal: Refusal) -> None:
    assert message in refusal(judge.main, *words.split(), "--results", tmp_path / "results")
    assert not (tmp_path / "results").exists()


def test_an_algorithm_unlike_ours_needs_only_something_to_compare_with(tmp_path: Path) -> None:
    names = [name for name in catalog.names("algos") if name != "ppo"]
    assert sides.algorithm_of(tmp_path / "my.own ppo.py", b"x = 1\n", "b.py") == "my-own-ppo"
    text = (ROOT / "algos" / f"{names[0]}.py").read_bytes()
    assert sides.algorithm_of(tmp_path / "mine.py", text, "") == names[0]


def refused(refusal: Refusal, folder: Path, *words: object) -> str:
    """The error line of a judgement, of which nothing is left."""
    results = folder / "results"
    message = refusal(judge.main, *words, *SHORT, "--results", results)
    assert not (results / "judge/ppo/ledger.json").exists()
    return message


def test_a_file_without_a_change_or_that_is_no_python(tmp_path: Path, refusal: Refusal) -> None:
    assert "says what algos/ppo.py says; edit it" in refused(refusal, tmp_path, edited(tmp_path))
    unfinished = edited(tmp_path, ("def train(", "def train(("))
    message = refused(refusal, tmp_path, unfinished)
    assert re.search(r"mine\.py: SyntaxError: .* \(line \d+\)$", message)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("edit", "words", "message"),
    [
        (('"""Set the gradients', '"""Sets the gradients'), "", "says what algos/ppo.py says"),
        (("total.sum().backward()", "total.nothing()"), "", r"'nothing' \(line \d+\)"),
        (
            ("    agent = run", "    __import__('os')._exit(3)\n    agent = run"),
            "",
            "cannot be trained: exit status 3",
        ),
        (RENAMES, "--set lerning_rate=1", "--lerning-rate: unknown flag"),
        (RENAMES, "--set env=Acrobot-v1", "--set env: is no hyperparameter"),
        (RENAMES, "--set gamma", "must be NAME=VALUE"),
        (RENAMES, "--set gamma=0.98", r"--set gamma=0\.98: .*mine\.py has that already"),
        (RENAMES, "--set clip_range=-1", "--clip-range -1"),
    ],
)
def test_bad_sides_are_one_line_and_no_try(
    edit: tuple[str, str], words: str, message: str, tmp_path: Path, refusal: Refusal
) -> None:
    found = refused(refusal, tmp_path, edited(tmp_path, edit), *words.split())
    assert re.search(message, found), found


@pytest.mark.slow
def test_a_change_that_diverges_is_worse(tmp_path: Path, capsys: Output) -> None:
    file = edited(tmp_path, ("total = pg_loss +", "total = pg_loss * float('nan') +"))
    judge.main([str(file), *SHORT, "--results", str(tmp_path / "results")])
    assert "CartPole-v1: worse; diverged: 12 changed\n" in capsys.readouterr().out


# ---- Parts ----------------------------------------------------------------------------------


def test_definitions_that_have_changed_are_named() -> None:
    before = PPO.read_bytes()
    after = before.replace(b"gains=(0.01, 1.0)", b"gains=(0.1, 1.0)")
    after = after.replace(b"* ~terminated", b"* ~truncated") + b"\nEXTRA = 1\n"
    names = sides.definitions_changed(after, before)
    assert sorted(names) == ["ActorCritic.__init__", "EXTRA", "gae"]
    commented = before.replace(b"# Core 7", b"# Core seven")
    assert sides.definitions_changed(commented, before) == []


def test_curves_of_seeds_that_were_evaluated_at_other_timesteps() -> None:
    rows = [
        {"timesteps": [0, 100], "returns": [0.0, 10.0]},
        {"timesteps": [0, 50, 100], "returns": [0.0, 10.0, None]},  # diverged
    ]
    curve = judge.mean_curve(rows)
    assert (len(curve), curve[0], curve[10], curve[-1]) == (21, 0.0, 7.5, 10.0)
    assert judge.bars(curve, 0.0, 10.0)[:1] == "▁"
    curve = judge.mean_curve(rows[1:])
    assert (curve[10], curve[-1]) == (10.0, None)
    assert judge.bars(curve, 0.0, 10.0) == "▁▁▂▃▄▅▅▆▇█" + "█" + 10 * " "
    assert judge.bars([1.0, 1.0], 1.0, 1.0) == "▁▁"


def test_held_out_physics_changes_constants_for_a_while() -> None:
    from manyseeds.envs import cartpole

    before = dict(vars(cartpole))
    ((module, constants),) = judged_side.vary(CartPole(), 1).items()
    assert module == cartpole.__name__
    ratio = cartpole.GRAVITY / before["GRAVITY"]
    assert 0.9 <= ratio <= 1.1
    assert ratio != 1
    assert cartpole.POLE_MOMENT == cartpole.MASS_POLE * cartpole.LENGTH
    assert before["X_LIMIT"] == cartpole.X_LIMIT
    vars(cartpole).update(constants)
    assert {k: x for k, x in vars(cartpole).items() if isinstance(x, float)} == {
        k: x for k, x in before.items() if isinstance(x, float)
    }


def test_rates_of_sessions(tmp_path: Path, monkeypatch: Patch, capsys: Output) -> None:
    """The whole simulation, of few sessions: its file has what it says."""
    rng = np.random.default_rng(0)
    known = {"ppo on CartPole-v1": judge_rates.Pool("CartPole-v1", 0.8 + 0.05 * rng.random(60))}
    monkeypatch.setattr(judge_rates, "pools", lambda: known)
    judge_rates.main(["--sessions", "20", "--results", str(tmp_path)])
    capsys.readouterr()
    stored = json.loads((tmp_path / "judge_rates.json").read_text())
    check(stored, judge_rates.STORED, "")
    assert stored["errors"]["better"] <= 0.2  # of 20 sessions, where 1 is expected at most
    (cell,) = stored["power"].values()
    assert cell["try 1"]["+10%"]["found"] == 1
    assert cell["try 1"]["-10%"]["found"] == 1
    assert cell["try 10"]["+10%"]["seeds"] >= cell["try 1"]["+10%"]["seeds"]
    with pytest.raises(UsageError, match=r"has no rows\.json of a try"):
        judge_rates.real_pairs(str(tmp_path))


def test_the_page_tells_how_often_the_judge_errs() -> None:
    stored = json.loads((PUBLISHED / "judge_rates.json").read_text())
    check(stored, judge_rates.STORED, "")
    page = " ".join((ROOT / "docs" / "judge.md").read_text().split())
    errors = {word: f"{100 * share:.1f}%" for word, share in stored["errors"].items()}
    assert max(stored["errors"].values()) <= sessions.ALPHA
    assert f"{errors['better']} keep one and {errors['worse']} call one worse" in page
    power = stored["power"]
    assert f"from published seeds of {len(power)} cells" in page

    def enough(number: int, percent: int, share: float) -> int:
        """The cells where a gain and a loss are both found so often."""
        signs = (f"+{percent}%", f"-{percent}%")
        return sum(
            all(cell[f"try {number}"][x]["found"] >= share for x in signs)
            for cell in power.values()
        )

    assert f"at least 95% of first tries in {enough(1, 10, 0.95)} cells" in page
    assert f"Of tenth tries, in at least 80% in {enough(10, 10, 0.8)} cells" in page
    assert f"at least 80% of first tries in {enough(1, 5, 0.8)} cells, of tenth ones in" in page
    assert f"of tenth ones in {enough(10, 5, 0.8)}; for PPO" in page
