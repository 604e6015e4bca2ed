"""Published policies: which seeds, that they are those of the run, and how they are shown."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch

from manyseeds import record
from manyseeds.algos import ppo
from manyseeds.benchmarks import sweep, watch
from manyseeds.benchmarks.chapters import environment_pages
from manyseeds.benchmarks.experiments import suite
from manyseeds.benchmarks.experiments.suite import Cell
from manyseeds.benchmarks.launchers import jobs
from manyseeds.benchmarks.store import policies
from manyseeds.benchmarks.store.comparison import pairs
from manyseeds.benchmarks.store.policies import (
    keep,
    lacking,
    median_and_worst,
    of_other_episodes,
    policies_file,
)
from manyseeds.benchmarks.store.results import load_result
from manyseeds.benchmarks.store.stored import open_run
from manyseeds.benchmarks.store.trained import load_trained
from manyseeds.checkpoint import read_about, to_bytes
from manyseeds.digest import ROOT
from manyseeds.record import POLICY, read_json, seal
from manyseeds.writing import write_json
from tests.benchmarks.conftest import Output, Patch, Refusal
from tests.benchmarks.test_watch import BUDGETS, shown, store


@pytest.mark.parametrize(
    ("final", "seeds"),
    [
        ({0: 5.0, 1: 9.0, 2: 7.0}, [2, 0]),
        ({0: 9.0, 3: 5.0}, [3]),  # of two, the lower is the median, and the worst
        ({4: 1.0, 5: 2.0, 6: 2.0, 7: 2.0, 8: 3.0}, [5, 4]),  # the lowest of those that tie
        ({0: 500.0, 1: 500.0, 2: 500.0}, [0]),
        ({0: None, 1: 1.0, 2: math.nan, 3: 2.0, 4: 3.0}, [1, 0]),
    ],
)
def test_median_and_worst(final: dict[int, float | None], seeds: list[int]) -> None:
    assert median_and_worst(final) == seeds


def test_interval_of_other_episodes_holds_their_mean() -> None:
    """In 95% of cases, where the returns of both sides are drawn alike."""
    assert all(math.isnan(of_other_episodes(0.7, std, 100, 100).low) for std in (math.nan, 0.0))
    rng, held, trials = np.random.default_rng(0), 0, 2000
    for _ in range(trials):
        seen, others = rng.exponential(20, 100), rng.exponential(20, 50)
        expected = of_other_episodes(seen.mean(), seen.std(), 100, 50)
        held += expected.low <= others.mean() <= expected.high
    assert 0.93 < held / trials < 0.97
    # Of four episodes: a standard deviation of 10 with ddof 1, t of 3 degrees of freedom 3.182.
    high = of_other_episodes(5.0, 10 * math.sqrt(3 / 4), 4, 4).high
    assert high == pytest.approx(5 + 3.18245 * 10 * math.sqrt(0.5))


@pytest.fixture
def published(tmp_path: Path) -> tuple[Path, Path]:
    """A results folder with five seeds of PPO in two parts; and the folder of the run."""
    for seeds in ([0, 1, 2], [3, 4]):
        part = store(tmp_path, "ppo", "Pendulum-v1", seeds)
    return tmp_path, part.parent


CELL = Cell("ppo", "Pendulum-v1", 5, settings=BUDGETS["ppo"])


@pytest.mark.slow
def test_two_seeds_are_trained_again_to_the_same_weights(
    published: tuple[Path, Path], capsys: Output, refusal: Refusal
) -> None:
    results, run = published
    before = {}
    for part in sorted(run.glob("seeds-*")):
        tensors = safetensors.torch.load_file(part / POLICY)
        for i, seed in enumerate(read_json(part / "config.json")["seeds"]):
            before[seed] = {name: tensor[i] for name, tensor in tensors.items()}
        (part / POLICY).unlink()
        seal(part)
    final = policies.final_scores(open_run(record.RunFolder(run)))
    wanted = median_and_worst(final)
    assert len(wanted) == 2
    assert lacking([CELL, CELL], str(results)) == [CELL]
    assert keep([CELL], str(results)) == []
    file = policies_file(run)
    assert file == results / "policies" / "Pendulum-v1" / "ppo" / f"{run.name}.safetensors"
    about = read_about(file)
    assert about["seeds"] == wanted
    assert about["final"] == [final[seed] for seed in wanted]
    kept = safetensors.torch.load_file(file)
    for i, seed in enumerate(wanted):
        assert kept.keys() == before[seed].keys()
        for name, tensor in kept.items():
            assert tensor[i].equal(before[seed][name]), (seed, name)
    assert ppo.load(str(file)).state_dict().keys() == kept.keys()

    written = file.stat().st_mtime_ns
    assert lacking([CELL], str(results)) == keep([CELL], str(results)) == []
    assert file.stat().st_mtime_ns == written

    # What watch.py shows of them, with no other weights on this machine.
    for words, seed in (([], wanted[0]), (["--seed", str(wanted[1])], wanted[1])):
        capsys.readouterr()
        shown(run, *words, "--out", results / "x.gif")
        assert capsys.readouterr().out.startswith(f"seed {seed}, reset(seed=0)")
    (other, *_) = (seed for seed in final if seed not in wanted)
    error = refusal(watch.main, run, "--seed", other)
    assert f"--seed {other}: " in error
    assert f"has weights of the seeds {record.ranges(wanted)}\n" in error
    shown("--check", run, "--episodes", "20", "--out", results / "tables")
    (row,) = read_json(results / "tables" / "check.json")["rows"]
    assert row["seeds"] == wanted


def change_scores(run: Path, add: float) -> None:
    """Let a run say that it has scored something else."""
    for part in run.glob("seeds-*"):
        summary = read_json(part / "summary.json")
        scores = summary["final"]["greedy"]["per_seed"]
        for seed in scores:
            scores[seed] += add
        write_json(part / "summary.json", summary)
        seal(part)


def test_what_is_refused(published: tuple[Path, Path], monkeypatch: Patch) -> None:
    """Stale runs, too many bytes, other scores than published."""
    results, run = published
    with monkeypatch.context() as patch:
        patch.setattr(policies, "MAX_BYTES", 1000)
        (failed,) = keep([CELL], str(results))
        assert "bytes in all, more than 1000" in failed
    with monkeypatch.context() as patch:
        patch.setattr(policies, "part_is_stale", lambda config: True)
        (failed,) = keep([CELL], str(results))
        assert "is stale" in failed
    change_scores(run, 1.0)
    (failed,) = keep([CELL], str(results))
    assert "as published" in failed
    assert "score [" in failed
    assert not policies_file(run).exists()


def test_whose_policies_are_published_and_shown(published: tuple[Path, Path]) -> None:
    results, run = published
    others = [
        Cell("ppo", "CartPole-v1", 10, "sb3"),
        Cell("policy_iteration", "Gridworld-v0", 0),
        Cell("td_prediction", "RandomWalk-v0", 10),
        Cell("sft", "addition", 5, package="llm_track"),
        Cell("ppo", "CartPole-v1", 10, first_seed=1000),
    ]
    assert not any(map(policies.keeps, others))
    assert lacking([CELL], str(results / "none")) == []  # nothing is finished
    assert lacking([CELL, *others], str(results)) == [CELL]
    found = pairs([load_result(open_run(record.RunFolder(run)))])
    assert environment_pages.policy_rows(found, results) == []
    assert keep([CELL], str(results)) == []
    median, *worst = environment_pages.policy_rows(found, results)
    about = read_about(policies_file(run))
    assert (median[1], int(median[2])) == ("median", about["seeds"][0])
    assert [(row[1], int(row[2])) for row in worst] == [("worst", about["seeds"][-1])]
    value, low, high = (float(x) for x in (median[3], *median[4].split(" to ")))
    assert low < value < high
    assert value == pytest.approx(about["final"][0], abs=0.1)
    # Of one part of the run, the policies are those of its seeds.
    for part in sorted(run.glob("seeds-*")):
        seeds = read_json(part / "config.json")["seeds"]
        assert {x for y in load_trained(str(part)) for x in y.seeds} == {*seeds}
    change_scores(run, 1.0)
    assert lacking([CELL], str(results)) == [CELL]


def test_a_sweep_that_publishes_keeps_policies(
    tmp_path: Path, monkeypatch: Patch, capsys: Output
) -> None:
    folder = tmp_path / "published"
    cell = Cell("q_learning", "FrozenLake-v1", 3, settings=BUDGETS["q_learning"])
    store(folder, "q_learning", "FrozenLake-v1", [0, 1, 2])
    for module in (sweep, suite, jobs):
        monkeypatch.setattr(module, "PUBLISHED", folder)
    monkeypatch.setattr(record, "changed_sources", lambda: [])
    monkeypatch.setitem(suite.SUITES, "test", (cell,))
    monkeypatch.setitem(suite.SUITES, "ablations", (cell,))
    monkeypatch.chdir(tmp_path)
    sweep.main(["--suite", "ablations", "--publish"])
    assert not (folder / "policies").exists()
    with monkeypatch.context() as patch:
        patch.setattr(policies, "MAX_BYTES", 0)
        with pytest.raises(SystemExit, match="1"):
            sweep.main(["--suite", "test", "--publish"])
    assert "failed: policies of q_learning on FrozenLake-v1" in capsys.readouterr().err
    sweep.main(["--suite", "test", "--publish", "--dry-run"])
    assert f"missing   policies of {cell}\n" in capsys.readouterr().out
    sweep.main(["--suite", "test", "--publish"])
    (file,) = folder.rglob("policies/*/*/*.safetensors")
    assert read_about(file)["algo"] == "q_learning"


@pytest.mark.parametrize("broken", ["text", "silent", "list", "seeds", "other", "shapes"])
def test_a_file_that_anybody_may_have_made(
    broken: str, published: tuple[Path, Path], refusal: Refusal
) -> None:
    results, run = published
    assert keep([CELL], str(results)) == []
    for part in run.glob("seeds-*"):
        (part / POLICY).unlink()
        seal(part)
    file = policies_file(run)
    about, tensors = read_about(file), safetensors.torch.load_file(file)
    content: dict[str, Any] = {
        "text": b"nothing of the kind",
        "silent": to_bytes(tensors),
        "list": to_bytes(tensors, {**about, "config": ["ppo"]}),
        "seeds": to_bytes(tensors, {**about, "seeds": [7, 8]}),
        "other": to_bytes(tensors, {**about, "config": {**about["config"], "gamma": 0.5}}),
        "shapes": to_bytes({name: x[:1] for name, x in tensors.items()}, about),
    }
    file.write_bytes(content[broken])
    assert refusal(watch.main, run).count("\n") == 1


@pytest.mark.parametrize("run", ["Acrobot-v1/ppo/2abd3fc4", "Pendulum-v1/trpo/5bddef50"])
def test_published_policies_score_as_published(run: str) -> None:
    """As in a fresh clone: the median and the worst seed play in Gymnasium's own environment, in
    100 episodes that begin elsewhere than those of the evaluation."""
    folder = ROOT / "results" / "runs" / run
    file = policies_file(folder)
    trained = [part for part in load_trained(str(folder)) if part.part == file]
    checked = watch.check(str(folder), trained, 100)
    rows = watch.against_published(checked, folder, 100)
    assert [row[2] for row in rows] == [str(seed) for seed in read_about(file)["seeds"]]
    assert [row[-1] for row in rows] == ["within"] * 2, rows
