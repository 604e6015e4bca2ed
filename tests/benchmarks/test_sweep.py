"""Suites as data, and sweeps that survive what happens to them."""

from __future__ import annotations

import importlib
import random
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from manyseeds import record
from manyseeds.algos import ppo, q_learning
from manyseeds.benchmarks import sweep
from manyseeds.benchmarks.baselines import rejax_baseline, sb3_baseline, sbx_baseline, trl_baseline
from manyseeds.benchmarks.chapters.tabular import curve_of
from manyseeds.benchmarks.experiments import suite
from manyseeds.benchmarks.experiments.suite import SUITES, Cell
from manyseeds.benchmarks.launchers import jobs, local
from manyseeds.benchmarks.launchers.jobs import Job
from manyseeds.benchmarks.store.results import load_result
from manyseeds.benchmarks.store.stored import open_run
from manyseeds.benchmarks.sweep import Plan
from manyseeds.cli import identity, parse, parse_both
from manyseeds.digest import PACKAGE, ROOT
from manyseeds.process import exit_reason
from manyseeds.record import seal
from manyseeds.runs import control
from manyseeds.writing import write_json
from tests.benchmarks.conftest import Output, Patch, Refusal
from tests.benchmarks.test_report import plant
from tests.records import config_of

TINY_PPO = {"total_timesteps": 512, "num_envs": 2, "num_steps": 64, "hidden": (8,)}
TINY_Q = {"total_timesteps": 500}
TINY = (
    Cell("ppo", "CartPole-v1", 2, settings=TINY_PPO),
    Cell("q_learning", "FrozenLake-v1", 2, settings=TINY_Q),
    Cell("q_learning", "CartPole-v1", 2, settings=TINY_Q),
)
# Ended long before it is done, but not endless should a test fail.
LONG = Cell("ppo", "CartPole-v1", 1, settings={"total_timesteps": 500_000})

CELLS = [cell for cells in SUITES.values() for cell in cells]
# The first cell of every kind: a script and the names of the settings that it is given.
KINDS = list(
    {(c.script, c.algo, frozenset(c.settings)): c for c in reversed([*CELLS, *TINY])}.values()
)


def sealed(results: Path) -> dict[Path, int]:
    """When each finished part was finished."""
    return {p: p.stat().st_mtime_ns for p in results.glob("runs/*/*/*/seeds-*/DONE.json")}


def wait_for(condition: Any, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.05)


def start_sweep(
    cells: Sequence[Cell], results: Path, *words: str, python: Any = sys.executable, **settings: Any
) -> Any:
    """A sweep with these cells as a process of its own; its output is text."""
    code = (
        "import sys; from manyseeds.benchmarks import sweep\n"
        "from manyseeds.benchmarks.experiments import suite\n"
        "from manyseeds.benchmarks.experiments.suite import Cell\n"
        f"suite.SUITES['test'] = {tuple(cells)!r}\n"
        "sweep.main(['--suite', 'test', '--results', *sys.argv[1:]])"
    )
    return subprocess.Popen(
        [python, "-c", code, str(results), *(words or ("--workers", "1"))],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        **settings,
    )


def children(pid: int) -> list[int]:
    """The processes that a process has started."""
    return [int(p) for p in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def is_gone(pid: int) -> bool:
    return not Path(f"/proc/{pid}").exists()


@pytest.mark.parametrize("cell", [*KINDS, *(c.shortened() for c in KINDS)], ids=str)
def test_a_command_means_what_the_cell_says(cell: Cell) -> None:
    """A sweep looks for results where the command puts them."""
    script, *args = cell.command("elsewhere", workers=3)
    assert Path(script).samefile(ROOT / cell.script)
    if cell.source == "sb3":
        algo, config, workers = sb3_baseline.read_flags(args)
        assert (algo, workers) == (cell.algo, 3)
    elif cell.source == "trl":
        flags, config = trl_baseline.read_flags(args)
        assert flags.algo == cell.algo
    elif cell.source in ("sbx", "rejax"):
        flags_class = {"sbx": sbx_baseline.SBXFlags, "rejax": rejax_baseline.Flags}[cell.source]
        module = importlib.import_module(f"{PACKAGE}.{cell.package}.{cell.algo}")
        flags, config = parse_both(flags_class, module.Config, module.PRESETS, "", args)
        assert flags.algo == cell.algo
    else:
        module = importlib.import_module(f"{PACKAGE}.{cell.package}.{cell.algo}")
        config = parse(module.Config, module.PRESETS, "", args)
    assert config == cell.config("elsewhere")
    assert getattr(config, "seeds", 0) == cell.seeds


def test_a_cut_changes_budgets_and_seeds_only() -> None:
    budgets = {"total_timesteps", "total_episodes", "total_samples"}
    for cell in CELLS:
        full, cut = identity(cell.config()), identity(cell.shortened().config())
        assert {name for name in full if full[name] != cut[name]} <= budgets, cell
        assert cell.shortened().seeds <= cell.seeds, cell
        assert cell.shortened().command()[0] == cell.command()[0], cell


@pytest.mark.parametrize("name", SUITES)
def test_ours_and_sb3_of_a_suite_are_comparable(name: str) -> None:
    """Every baseline cell has a cell of ours with the same hyperparameters, also when cut."""
    cells = SUITES[name]
    for cell in (c for c in cells if c.source == "sb3"):
        here = [c for c in cells if (c.algo, c.env, c.source) == (cell.algo, cell.env, "manyseeds")]
        (ours,) = (c for c in here if identity(c.config()) == identity(cell.config()))
        assert identity(ours.shortened().config()) == identity(cell.shortened().config())


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--suite quik", "--suite quik: unknown suite; did you mean quick?"),
        ("--only --cut", "--only: needs a value"),
        ("--only ppo/CartPol-v1", "--only ppo/CartPol-v1: no such cell; did you mean"),
        ("--publish --cut", "--publish: a cut is never published"),
        ("--publish --results elsewhere", "--publish: writes what is published"),
        (f"--results {ROOT}/results", f"--results {ROOT}/results: holds the published"),
        ("--until-decided --seeds 3", "--until-decided: says how many seeds there are; without --"),
        ("--until-decided --shard 1/2", "--until-decided: looks at all seeds"),
        ("--shard 3", "--shard 3: must be I/N, with I from 1 to N, such as 2/8"),
        ("--shard 3/2", "--shard 3/2: must be"),
        ("--publish --launcher ray", "--publish: trains on this machine"),
        ("--slurm time=5", "--slurm: is for --launcher slurm"),
        ("--launcher slurm --slurm time", "--slurm time: must be KEY=VALUE"),
    ],
)
def test_mistakes_are_one_line(flags: str, message: str, refusal: Refusal) -> None:
    assert refusal(sweep.main, *flags.split()).startswith(f"error: {message}")


def test_dry_run_shows_commands_and_starts_nothing(
    tmp_path: Path, capsys: Output, monkeypatch: Patch
) -> None:
    monkeypatch.chdir(ROOT)
    results = tmp_path / "results"
    sweep.main(["--dry-run", "--seeds", "7", "--results", str(results)])
    out = capsys.readouterr().out
    assert f"python algos/ppo.py --env CartPole-v1 --seeds 7 --results {results}\n" in out
    words = f"--algo ppo --env CartPole-v1 --seeds 7 --results {results} --workers 2\n"
    assert f"python benchmarks/sb3_baseline.py {words}" in out
    assert out.count("train seeds 0-6") == len(SUITES["quick"])
    assert not results.exists()
    sweep.main(["--dry-run", "--cut", "--results", str(results)])
    commands = [line for line in capsys.readouterr().out.splitlines() if "python " in line]
    assert all(f"--results {results}/cut" in line for line in commands)
    default = SUITES["quick"][0].command()
    assert shlex.join(default) == "algos/ppo.py --env CartPole-v1 --seeds 30"


def test_exit_reason() -> None:
    assert exit_reason(1) == "exit status 1"
    assert exit_reason(-signal.SIGKILL) == "ended by SIGKILL (out of memory?)"
    assert exit_reason(-signal.SIGSEGV) == "ended by SIGSEGV"


def train_seed_by_seed(cell: Cell, module: Any, results: Path, at_once: int = 1) -> None:
    """Every seed of a cell as a part of its own, or as many as `at_once`."""
    for seed in range(0, cell.seeds, at_once):
        config = cell.config(str(results))
        fields = {**vars(config), "first_seed": seed, "seeds": at_once, "quiet": True}
        control.main(type(config)(**fields), module.train, {})


@pytest.mark.slow
def test_deleting_a_third_redoes_exactly_that(tmp_path: Path, capsys: Output) -> None:
    cells = [
        Cell("ppo", "CartPole-v1", 6, settings=TINY_PPO),
        Cell("q_learning", "FrozenLake-v1", 6, settings=TINY_Q),
    ]
    for cell, module in zip(cells, (ppo, q_learning), strict=True):
        train_seed_by_seed(cell, module, tmp_path)
    before, curves = sealed(tmp_path), [returns(cell, tmp_path) for cell in cells]
    deleted = random.Random(7).sample(sorted(before), 4)
    for done in deleted:
        shutil.rmtree(done.parent)
    kept = before.items() - {(path, before[path]) for path in deleted}
    lost = [s for cell in cells for group in cell.missing(str(tmp_path)) for s in group]
    assert len(lost) == 4
    plan = Plan(results=str(tmp_path), workers=2)
    assert sweep.sweep(cells, plan) == []
    after = sealed(tmp_path)
    assert kept <= after.items()
    redone = [path.parent.name for path in after.keys() - dict(kept).keys()]
    seeds = [s for name in redone for s in range(int(name[6:9]), int(name[10:13]) + 1)]
    assert sorted(seeds) == sorted(lost)
    for cell, curve in zip(cells, curves, strict=True):
        pd.testing.assert_frame_equal(returns(cell, tmp_path), curve)
    capsys.readouterr()
    assert sweep.sweep(cells, plan) == []
    assert capsys.readouterr().out.count("skipped") == 2
    assert sealed(tmp_path) == after


def returns(cell: Cell, results: Path) -> pd.DataFrame:
    """What a cell has stored, but for the clock."""
    keys = ["seed", "timestep", "mode", "episodes"]
    rows = curve_of(open_run(cell.folder(str(results)))).drop(columns="learn_s")
    return rows.sort_values(keys, ignore_index=True)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="looks processes up in /proc")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_no_cell_outlives_its_sweep(number: signal.Signals, tmp_path: Path) -> None:
    process = start_sweep([LONG], tmp_path)
    wait_for(lambda: list(tmp_path.glob("runs/*/*/*/seeds-*/config.json")))
    (cell,) = children(process.pid)
    process.send_signal(number)
    _, err = process.communicate(timeout=30)
    wait_for(lambda: is_gone(cell), 5)
    if number == signal.SIGINT:
        assert process.returncode == 130
        assert err == "interrupted; the same command again runs what is missing\n"


@pytest.mark.slow
def test_a_crashed_cell_is_reported_and_the_others_finish(
    tmp_path: Path, capsys: Output, monkeypatch: Patch
) -> None:
    start = local.start

    def start_and_kill(job: Job, results: str, workers: int) -> local.Running:
        running = start(job, results, workers)
        if job.cell is LONG:
            running.process.kill()  # as the kernel does when memory is out
        return running

    # The store wants one config per name; the command asks for another one.
    refused = Cell("q_learning", "FrozenLake-v1", 2, settings={**TINY_Q, "name": "taken"})
    part = refused.folder(str(tmp_path)).path / "seeds-007-007"
    part.mkdir(parents=True)
    write_json(part / "config.json", config_of([7]))
    seal(part)
    monkeypatch.setattr(local, "start", start_and_kill)
    monkeypatch.setitem(suite.SUITES, "test", (refused, LONG, TINY[1]))
    with pytest.raises(SystemExit, match="1"):
        sweep.main(["--suite", "test", "--results", str(tmp_path)])
    out, err = capsys.readouterr()
    assert out.count("\nfailed") + out.startswith("failed") == 2
    assert "exit status 2: error: --name taken: " in out
    assert "SIGKILL (out of memory?)" in out
    assert err.startswith("error: 2 of 3 cells failed: ")
    assert str(refused) in err
    assert str(LONG) in err
    assert not TINY[1].missing(str(tmp_path))


# ---- What is published ------------------------------------------------------------------


@pytest.fixture
def published(tmp_path: Path, monkeypatch: Patch) -> Path:
    """An empty published layer, for the sweep; a suite `test` of two cells."""
    folder = tmp_path / "published"
    for module in (sweep, suite, jobs):
        monkeypatch.setattr(module, "PUBLISHED", folder)
    cells = (TINY[1], Cell("q_learning", "CartPole-v1", 3, settings=TINY_Q))
    monkeypatch.setitem(suite.SUITES, "test", cells)
    monkeypatch.chdir(tmp_path)
    return folder


@pytest.mark.slow
def test_publishing_trains_what_is_missing_and_nothing_else(
    published: Path, monkeypatch: Patch, capsys: Output
) -> None:
    """Published runs come without weights; a script alone would train them all again."""
    monkeypatch.setattr(record, "changed_sources", lambda: [])
    two = Cell("q_learning", "CartPole-v1", 2, settings=TINY_Q)
    assert sweep.sweep([two], Plan(results="published", workers=1)) == []
    (first,) = (path.read_bytes() for path in sealed(published))
    for weights in published.rglob("policy.safetensors"):
        weights.unlink()
    words = ["--suite", "test", "--only", "CartPole-v1"]
    capsys.readouterr()
    sweep.main([*words, "--dry-run"])
    assert "train seeds 0-2\n" in capsys.readouterr().out  # what is published is not the user's
    sweep.main([*words, "--publish"])
    assert not sealed(published)  # all are packed
    (run,) = record.all_runs(published)
    assert [part.name for part in run.parts()] == ["seeds-000-001", "seeds-002-002"]
    assert record.read_bytes(run.parts()[0] / record.DONE) == first
    command = open_run(run).configs[1]["command"]
    assert command.endswith("--env CartPole-v1 --seeds 1 --first-seed 2 --total-timesteps 500")
    assert not Path("results").exists()


def test_nothing_is_published_of_sources_without_a_commit(
    published: Path, monkeypatch: Patch, refusal: Refusal
) -> None:
    monkeypatch.setattr(record, "changed_sources", lambda: ["algos/mine.py", "x.c"])
    error = refusal(sweep.main, "--suite", "test", "--publish")
    assert error.endswith("algos/mine.py and 1 more differ from the commit; commit first\n")
    assert not published.exists()


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["sb3"], {"sb3-ppo/CartPole-v1", "sb3-dqn/CartPole-v1"}),
        (["ppo/CartPole-v1"], {"ppo/CartPole-v1"}),
        (["FrozenLake-v1", "dqn/CartPole-v1"], {"q_learning/FrozenLake-v1", "dqn/CartPole-v1"}),
    ],
)
def test_only_picks_cells(words: list[str], expected: set[str]) -> None:
    cells = parse(sweep.Flags, {}, "", ["--suite", "quick", "--only", *words]).cells()
    assert {f"{cell.label}/{cell.env}" for cell in cells} == expected


# ---- Until verdicts are decided -------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("spread", "apart", "rounds"),
    [
        (2.0, 100.0, [(40, 30)]),  # decided at the first look
        (150.0, 0.0, [(40, 30), (40, 60), (40, 100)]),
    ],
)
def test_seeds_are_added_until_verdicts_are_decided(
    spread: float, apart: float, rounds: list[tuple[int, int]], tmp_path: Path, monkeypatch: Patch
) -> None:
    rng = np.random.default_rng(0)
    scores = {name: rng.normal(300, spread, 100) for name in ("ppo", "sb3-ppo")}
    scores["ppo"] += apart
    trained = stand_in_for_training(tmp_path, monkeypatch, scores)
    cells = [Cell("ppo", "CartPole-v1", 40), Cell("ppo", "CartPole-v1", 30, "sb3")]
    assert not sweep.sweep_until_decided(cells, Plan(results=str(tmp_path), workers=1))
    assert [tuple(cell.seeds for cell in cells) for cells in trained] == rounds


def stand_in_for_training(
    results: Path, monkeypatch: Patch, scores: Mapping[str, Any], *failed: Job
) -> list[list[Cell]]:
    """Cells are planted instead of trained; which ones, sweep by sweep. failed: of the first."""
    trained: list[list[Cell]] = []

    def sweep_of(cells: list[Cell], plan: Plan) -> list[Any]:
        trained.append(cells)
        for cell in cells:
            shutil.rmtree(cell.folder(plan.results).path, ignore_errors=True)
            plant(results, cell.label, dict(enumerate(scores[cell.label][: cell.seeds].tolist())))
        return [*failed] if len(trained) == 1 else []

    monkeypatch.setattr(sweep, "sweep", sweep_of)
    return trained


def test_what_fails_is_not_tried_again_and_the_others_go_on(
    tmp_path: Path, monkeypatch: Patch
) -> None:
    """PPO's comparison fails at once; A2C's has its looks."""
    pairs = [(algo, source) for algo in ("ppo", "a2c") for source in ("manyseeds", "sb3")]
    cells = [Cell(algo, "CartPole-v1", 30, source) for algo, source in pairs]
    failed, rng = Job(cells[1]), np.random.default_rng(0)
    scores = {cell.label: rng.normal(300, 150, 60) for cell in cells}
    trained = stand_in_for_training(tmp_path, monkeypatch, scores, failed)
    assert sweep.sweep_until_decided(cells, Plan(results=str(tmp_path), workers=1)) == [failed]
    rounds = [[f"{cell.label} {cell.seeds}" for cell in cells] for cells in trained]
    assert rounds[0] == ["ppo 30", "sb3-ppo 30", "a2c 30", "sb3-a2c 30"]
    assert all("ppo" not in word for words in rounds[1:] for word in words)
    assert rounds[1] == ["a2c 30", "sb3-a2c 60"]


def test_cells_without_a_counterpart_have_the_seeds_of_the_suite(tmp_path: Path) -> None:
    plant(tmp_path, "reinforce", {0: 300.0})
    for cell in (Cell("reinforce", "CartPole-v1", 30), Cell("policy_iteration", "Taxi-v4", 0)):
        for results in (tmp_path, tmp_path / "none"):
            assert sweep.requested_seeds(cell, str(results)) == cell.seeds


def test_a_seed_that_is_missing_ends_what_is_looked_at(tmp_path: Path) -> None:
    """Else a verdict could be withdrawn when it is filled in. Seeds from 1000 on decide nothing:
    they are for what the others have chosen or found."""
    plant(tmp_path, "ppo", {seed: 480.0 + seed % 3 for seed in (*range(30), *range(1000, 1030))})
    theirs = {seed: 100.0 + seed % 4 for seed in (*range(20, 60), *range(1000, 1030))}
    plant(tmp_path, "sb3-ppo", theirs)
    sb3 = Cell("ppo", "CartPole-v1", 5, "sb3")
    assert sweep.requested_seeds(sb3, str(tmp_path)) == 30
    result = load_result(open_run(sb3.folder(str(tmp_path))))
    assert (result.first_seeds, len(result.seeds)) == (0, 70)
    plant(tmp_path, "sb3-ppo", {seed: 300.0 + 90 * (seed % 4) for seed in (*range(40), 50)})
    assert sweep.requested_seeds(sb3, str(tmp_path)) == 30  # worse, at the first look
    ours = {seed: 435.0 + 20 * (seed % 3) for seed in range(30)}
    plant(tmp_path, "ppo", ours, middle=330.0)
    plant(tmp_path, "sb3-ppo", {seed: 300.0 + 90 * (seed % 4) for seed in (*range(60), 99)})
    assert sweep.requested_seeds(sb3, str(tmp_path)) == 100


def test_a_dry_run_says_what_the_rule_asks_for(
    tmp_path: Path, capsys: Output, monkeypatch: Patch
) -> None:
    for algo in ("ppo", "sb3-ppo"):
        plant(tmp_path, algo, {seed: 480.0 + seed % 3 for seed in range(30)})
    cells = (Cell("ppo", "CartPole-v1", 30), Cell("ppo", "CartPole-v1", 30, "sb3"))
    monkeypatch.setitem(suite.SUITES, "test", cells)
    monkeypatch.setattr(Cell, "is_current", lambda *_: True)
    words = ["--suite", "test", "--until-decided", "--dry-run", "--results", str(tmp_path)]
    sweep.main(words)
    assert "sb3-ppo on CartPole-v1, 60 seeds: train seeds 30-59" in capsys.readouterr().out
