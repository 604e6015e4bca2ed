"""Edit, run, see: what other code has trained is set aside, and its seeds are trained anew."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from manyseeds.algos import q_learning
from manyseeds.benchmarks import sweep
from manyseeds.benchmarks.compare import compare
from manyseeds.benchmarks.experiments.suite import Cell
from manyseeds.benchmarks.launchers.display import Display
from manyseeds.benchmarks.launchers.jobs import all_jobs
from manyseeds.benchmarks.merge import stored_parts
from manyseeds.benchmarks.store.stored import open_run
from manyseeds.cli import parse
from manyseeds.digest import ROOT, forget
from manyseeds.errors import UsageError
from manyseeds.record import (
    DONE,
    STALE,
    RunFolder,
    all_runs,
    is_finished,
    pack,
    read_json,
    run_paths,
    seal,
)
from manyseeds.runs import base, set_aside, stale
from manyseeds.runs.control import Run, main
from manyseeds.runs.set_aside import Code, by_trainer, differs, trainer
from manyseeds.writing import write_json
from tests.benchmarks.conftest import Output, Patch
from tests.processes import Script

LAKE = ("--total-timesteps", "500", "--eval-budget", "0.1", "--quiet", "--results", "r")
HELPER = "def scaled(x):\n    return 1.0 * x\n"
OWN_ENV = """import gymnasium
from gymnasium.envs.toy_text import FrozenLakeEnv


class Lake(FrozenLakeEnv):
    def step(self, action):
        obs, reward, *rest = super().step(action)
        return obs, reward - 0.1, *rest


gymnasium.register("Lake-v0", Lake, max_episode_steps=20)
"""


@pytest.fixture(autouse=True)
def mine(tmp_path: Path, monkeypatch: Patch) -> Path:
    """A folder with a copy of an algorithm that imports a module of its own, and an environment."""
    monkeypatch.chdir(tmp_path)
    text = (ROOT / "algos/q_learning.py").read_text()
    old = "broadcast(alpha, error) * error"
    assert text.count(old) == 1
    text = text.replace(old, "helper.scaled(broadcast(alpha, error) * error)")
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "my_q.py").write_text(
        text.replace("from manyseeds import envs\n", "from manyseeds import envs\nimport helper\n")
    )
    (folder / "helper.py").write_text(HELPER)
    (folder / "own_env.py").write_text(OWN_ENV)
    return folder


@pytest.fixture(autouse=True)
def read_again_afterwards() -> Iterator[None]:
    """Other tests look at the code as it is."""
    yield
    stale.read_again()


def command(*words: str, status: int = 0, script: Path = Path("mine/my_q.py")) -> str:
    """What `python mine/my_q.py` prints; it trains two seeds, unless the words say otherwise."""
    usual = {"--seeds": "2", "--env": "FrozenLake-v1"}
    more = [x for name, value in usual.items() if name not in words for x in (name, value)]
    done = Script(str(script.resolve()), *LAKE, *more, *words).run()
    assert done.poll() == status, done.stderr
    return done.stdout


def edit(file: Path, old: str, new: str) -> None:
    text = file.read_text()
    assert text.count(old) == 1
    file.write_text(text.replace(old, new))


def run_of(algo: str = "my_q") -> RunFolder:
    (path,) = Path("r/runs").glob(f"*/{algo}/*")
    return RunFolder(path)


def sums(part: Path) -> Any:
    return read_json(part / DONE)["sha256"]


def curves(folder: RunFolder) -> Any:
    return open_run(folder).table("metrics.parquet", ["seed", "td_loss"])["td_loss"].tolist()


def test_an_edited_file_is_trained_anew_and_taken_back_when_it_is_restored(mine: Path) -> None:
    assert "moved to" not in command()
    folder = run_of()
    (first,) = folder.parts()
    before, learned = sums(first), curves(folder)
    assert "Finished already: 2 seeds" in command()

    edit(mine / "my_q.py", "rewards + gamma * next_values", "rewards - gamma * next_values")
    said = command()
    (aside,) = (folder.path / STALE).iterdir()
    expected = f"seeds 0-1 were trained by other code; moved to {aside}\n"
    assert expected in said
    assert sums(aside / first.name) == before
    after = sums(first)
    assert curves(folder) != learned
    assert "Finished already: 2 seeds" in command()
    assert sums(first) == after

    edit(mine / "my_q.py", "rewards - gamma * next_values", "rewards + gamma * next_values")
    said = command()
    assert f"seeds 0-1 were trained by this code: taken back from {aside}\n" in said
    assert sums(first) == before
    (other,) = (folder.path / STALE).iterdir()
    assert sums(other / first.name) == after
    assert "Finished already: 2 seeds" in command()


def test_a_file_may_lie_deep(mine: Path) -> None:
    """Its path is in the record, and longer than a name may be."""
    deep = mine.joinpath(*["a_folder_with_a_long_name"] * 12)
    shutil.copytree(mine, deep, ignore=shutil.ignore_patterns("a_folder*"))
    command(script=deep / "my_q.py")
    assert run_of().finished_seeds() == {0, 1}


def test_so_are_an_edited_module_beside_it_and_an_edited_environment(mine: Path) -> None:
    words = ("--env", "own_env:Lake-v0")
    command(*words)
    learned = [curves(run_of())]
    for file, old, new in (
        ("helper.py", "1.0 * x", "0.5 * x"),
        ("own_env.py", "reward - 0.1", "reward - 0.2"),
        ("own_env.py", "obs, reward - 0.2", "obs, reward - 0.3"),
    ):
        edit(mine / file, old, new)
        assert "seeds 0-1 were trained by other code; moved to" in command(*words)
        assert curves(run_of()) not in learned
        learned.append(curves(run_of()))


def test_keep_stale_takes_them_as_finished(mine: Path) -> None:
    command()
    (part,) = run_of().parts()
    before = sums(part)
    edit(mine / "helper.py", "1.0 * x", "0.5 * x")
    said = command("--keep-stale")
    assert "Finished already: 2 seeds" in said
    said = command("--keep-stale", "--seeds", "3")
    assert "seeds 0-1 were trained by other code, and kept: --keep-stale\n" in said
    assert sums(part) == before
    assert run_of().finished_seeds() == {0, 1, 2}
    assert "kept" not in command("--keep-stale", "--seeds", "1", "--first-seed", "2")


def test_a_part_is_set_aside_as_a_whole_and_never_lies_beside_another_of_its_seeds(
    mine: Path,
) -> None:
    command("--seeds", "4")
    edit(mine / "helper.py", "1.0 * x", "0.5 * x")
    said = command("--first-seed", "1")
    assert "seeds 0-3 were trained by other code; moved to" in said
    folder = run_of()
    assert folder.finished_seeds() == {1, 2}
    edit(mine / "helper.py", "0.5 * x", "1.0 * x")
    # Seeds 1 and 2 would be there twice.
    words = ("--seeds", "1", "--first-seed", "3", "--keep-stale")
    assert "taken back" not in command(*words)
    assert [part.name for part in folder.parts()] == ["seeds-001-002", "seeds-003-003"]
    said = command("--first-seed", "1")
    assert "seeds 1-2 were trained by other code; moved to" in said
    assert [part.name for part in folder.parts()] == ["seeds-001-002", "seeds-003-003"]


def test_parts_of_other_code_do_not_keep_one_from_being_taken_back(mine: Path) -> None:
    command("--seeds", "4")
    folder = run_of()
    (part,) = folder.parts()
    before = sums(part)
    edit(mine / "helper.py", "1.0 * x", "0.5 * x")
    command("--seeds", "2")
    command("--seeds", "4")
    edit(mine / "helper.py", "0.5 * x", "1.0 * x")
    said = command("--seeds", "2")
    for seeds in ("0-1", "2-3"):
        assert f"seeds {seeds} were trained by other code; moved to" in said
    assert "seeds 0-3 were trained by this code: taken back" in said
    assert [sums(x) for x in folder.parts()] == [before]
    (other,) = (folder.path / STALE).iterdir()
    assert [x.name for x in RunFolder(other).parts()] == ["seeds-000-001", "seeds-002-003"]


def test_nothing_is_lost_by_a_kill_before_the_training(mine: Path, monkeypatch: Patch) -> None:
    command("--seeds", "1")
    (part,) = run_of().parts()
    before = sums(part)
    edit(mine / "my_q.py", "def train(config: Config, run: Run)", "def train(config: Config, run)")
    edit(mine / "my_q.py", "    env = config.make_env()\n", "    raise SystemExit(9)\n")
    command("--seeds", "1", status=9)
    assert not part.exists()
    edit(mine / "my_q.py", "    raise SystemExit(9)\n", "    env = config.make_env()\n")
    (part.parent / part.name).mkdir()  # what a killed training has left
    (part / ".checkpoint.safetensors").write_text("of other code")
    assert "taken back" in command("--seeds", "1")
    assert sums(part) == before
    assert not (part.parent / STALE).exists()


def test_a_plan_is_made_anew(tmp_path: Path, mine: Path) -> None:
    shutil.copy(ROOT / "algos/value_iteration.py", mine / "my_plan.py")
    words = ("--env", "Gridworld-v0", "--quiet", "--results", "r")

    def said() -> str:
        return Script(str(mine / "my_plan.py"), *words).run().stdout

    said()
    assert "The plan is finished" in said()
    edit(mine / "my_plan.py", "rounding = 16 * ", "rounding = 32 * ")
    assert "the plan was made by other code; moved to r/runs/" in said()
    assert "The plan is finished" in said()
    edit(mine / "my_plan.py", "rounding = 32 * ", "rounding = 16 * ")
    assert "the plan was made by this code: taken back from" in said()


# ---- In this process --------------------------------------------------------------------

SETTINGS = {"total_timesteps": 500, "eval_budget": 0.1}


def train(results: str = "r", seeds: int = 2, **settings: Any) -> RunFolder:
    """The command of algos/q_learning.py."""
    fields: dict[str, Any] = {"env": "FrozenLake-v1", "quiet": True, **SETTINGS, **settings}
    config = q_learning.Config(**fields, results=results, seeds=seeds)
    main(config, q_learning.train, {})
    return RunFolder.of(config, "q_learning")


def restamp(part: Path, digest: str, **code: Any) -> Path:
    """Let a part say that other code has trained it."""
    config = read_json(part / "config.json")
    config["code"] |= {"digest": digest, **code}
    write_json(part / "config.json", config)
    done = read_json(part / DONE)
    seal(part, done["local"], done["weights"])
    return part


def test_what_was_set_aside_is_a_run_that_no_reader_counts(capsys: Output) -> None:
    folder = train()
    (part,) = folder.parts()
    restamp(part, "../../x", commit="abc1234-dirty")
    train()
    said = capsys.readouterr().out
    aside = folder.path / STALE / "------x"
    how = "other code (commit abc1234-dirty)"
    assert f"seeds 0-1 were trained by {how}; moved to {aside}\n" in said
    found = open_run(RunFolder(aside))
    assert (found.algo, found.seeds) == ("q_learning", [0, 1])
    assert q_learning.load(str(aside / part.name)).q.shape == (2, 16, 4)
    compare([str(folder.path), str(aside)], Path("x.svg"))
    assert "q_learning/------x" in capsys.readouterr().out
    assert [run.path for run in all_runs(Path("r"))] == [folder.path]
    assert [x for run in run_paths(Path("r")) for x in stored_parts(run)] == [part]
    restamp(part, "../../x")  # the name is taken
    train()
    assert [x.name for x in aside.iterdir()] == [part.name]


def test_other_settings_under_one_name_do_not_replace_what_was_set_aside(
    monkeypatch: Patch, capsys: Output
) -> None:
    settings: list[Any] = [{"name": "x", "learning_rate": rate} for rate in (0.1, 0.2)]
    stored = []

    def interrupt(*args: Any) -> None:
        raise KeyboardInterrupt

    for chosen in settings:
        folder = train(**chosen)
        (part,) = folder.parts()
        stored.append(sums(part))
        with monkeypatch.context() as patch:
            patch.setattr(set_aside, "code_digest", lambda origins: "edited")
            patch.setattr(base, "carry_out", interrupt)
            with pytest.raises(SystemExit):
                train(**chosen)
        assert folder.parts() == []
    assert len([*(folder.path / STALE).iterdir()]) == 2
    for chosen, expected in zip(settings, stored, strict=True):
        capsys.readouterr()
        folder = train(**chosen)
        assert "taken back" in capsys.readouterr().out
        (part,) = folder.parts()
        assert sums(part) == expected
        part.rename(f"of {chosen['learning_rate']}")
    assert not (folder.path / STALE).exists()


@pytest.mark.parametrize(
    ("name", "seeds", "there"),
    [(STALE, 2, False), (f"{STALE}/other", 3, False), (STALE, 2, True)],
)
def test_a_link_is_not_followed(
    name: str, seeds: int, there: bool, tmp_path: Path, capsys: Output
) -> None:
    """Neither to set aside nor, where the part lies there, to take back."""
    folder = train()
    (part,) = folder.parts()
    link, target = folder.path / name, tmp_path / "target"
    link.parent.mkdir(exist_ok=True)
    target.mkdir()
    link.symlink_to(target)
    if there:
        (target / read_json(part / "config.json")["code"]["digest"]).mkdir()
        part = part.rename(next(target.iterdir()) / part.name)
    else:
        restamp(part, "other")
    capsys.readouterr()
    with pytest.raises(SystemExit) as stop:
        train(seeds=seeds)
    assert stop.value.code == 2
    said = f"error: {link}: is a link: no part is put there or taken from there\n"
    assert capsys.readouterr().err == said
    assert [x.resolve() for x in tmp_path.rglob(part.name)] == [part.resolve()]


def test_a_record_that_says_nothing_of_its_code_is_refused(capsys: Output) -> None:
    folder = train()
    (part,) = folder.parts()
    stored = read_json(part / "config.json")
    write_json(part / "config.json", {x: stored[x] for x in ("schema", "seeds", "config")})
    seal(part)
    with pytest.raises(SystemExit, match="2"):
        train()
    expected = (
        f"error: {part / 'config.json'}: has invalid content (ValueError: command is missing)"
    )
    assert capsys.readouterr().err.splitlines() == [expected]


def test_published_runs_are_left_as_they_are(monkeypatch: Patch) -> None:
    (part,) = train().parts()
    before = sums(restamp(part, "other"))
    monkeypatch.setattr(set_aside, "PUBLISHED", Path("r").resolve())
    train()
    train(keep_stale=True)
    assert sums(part) == before
    train(seeds=3)
    assert sorted(x.name for x in part.parent.iterdir()) == ["seeds-000-001", "seeds-002-002"]


def test_packed_runs_of_other_code_are_not_trained_anew(capsys: Output) -> None:
    """Somebody's copy of published ones, given as --results: it stays as it is."""
    (part,) = train().parts()
    restamp(part, "other")
    pack(Path("r"))
    for seeds in (1, 3):
        with pytest.raises(SystemExit):
            train(seeds=seeds)
        said = capsys.readouterr().err
        assert said.startswith(f"error: {part}: is packed and was trained by other code")
        assert not (part / DONE).exists()
        assert is_finished(part, with_weights=True)
    train(seeds=3, keep_stale=True)
    assert RunFolder(part.parent).finished_seeds() == {0, 1, 2}


def test_published_runs_are_of_this_checkout(monkeypatch: Patch, capsys: Output) -> None:
    monkeypatch.setattr(set_aside, "PUBLISHED", Path("r").resolve())
    monkeypatch.setattr(q_learning.Config, "origins", lambda self: ["/x/y.py:Config"])
    with pytest.raises(SystemExit):
        train()
    assert capsys.readouterr().err == "error: --publish: /x/y.py:Config is not in this checkout\n"
    assert not Path("r").exists()


def test_code_that_is_in_no_file_is_never_the_same(monkeypatch: Patch, capsys: Output) -> None:
    monkeypatch.setattr(q_learning.Config, "origins", lambda self: ["<unknown>:Config"])
    folder = train()
    train()
    said = capsys.readouterr().out
    how = "code that may be another (it is in no file)"
    assert f"seeds 0-1 were trained by {how}; moved to" in said
    assert len([*(folder.path / STALE).iterdir()]) == 1


def test_a_command_asks_for_one_digest(monkeypatch: Patch) -> None:
    calls: list[Any] = []
    real = set_aside.code_digest
    monkeypatch.setattr(set_aside, "code_digest", lambda x: calls.append(x) or real(x))
    train(seeds=3)
    assert len(calls) == 1
    train(seeds=3)
    assert len(calls) == 2


def code_of(**settings: Any) -> Code:
    """The code of a command of algos/q_learning.py."""
    config = q_learning.Config(env="FrozenLake-v1", results="r", **settings)
    return Code(config, [q_learning.train], Run.kind_origins())


def test_what_another_process_has_finished_meanwhile_is_kept_with_a_line(capsys: Output) -> None:
    folder = train()
    (part,) = folder.parts()
    restamp(part, "other", commit="")
    part.rename("elsewhere")

    def missing() -> list[int]:
        if part.exists():
            return []
        os.rename("elsewhere", part)
        return [0, 1]

    capsys.readouterr()
    code = code_of(keep_stale=True, **SETTINGS)
    base.complete(folder, code, [0, 1], missing, lambda seeds: pytest.fail(str(seeds)), "")
    expected = "seeds 0-1 were trained by other code, and kept: --keep-stale\n"
    assert capsys.readouterr().out == expected


BASE = {"code": {"digest": "a", "commit": "abc", "origins": []}, "seeds": [3], "kind": "control"}


def test_another_version_of_a_baseline_is_other_code(monkeypatch: Patch) -> None:
    versions = {"trl": "1.0", "sb3-contrib": "2.0"}
    monkeypatch.setattr(set_aside, "installed", lambda name: versions.get(name, ""))
    same = {**BASE, "versions": {"torch": "0", "stable-baselines3": "9", "trl": "1.0"}}
    assert not differs(same, "a")
    assert differs(same, "b")
    assert trainer(same, "b") == "other code (commit abc)"
    other = {**BASE, "versions": {"trl": "0.9", "sb3-contrib": "1.9"}}
    assert differs(other, "a")
    assert by_trainer([other], "a") == ["seed 3 was trained by sb3-contrib 1.9 and trl 0.9"]


def test_what_other_code_is_training_is_not_waited_for() -> None:
    """It would be set aside as soon as it was finished."""
    folder = train()
    (part,) = folder.parts()
    code = code_of(**SETTINGS)
    code.refuse_another(folder, 0)
    (part / DONE).unlink()
    code.refuse_another(folder, 0)
    stored = read_json(part / "config.json")
    write_json(part / "config.json", {**stored, "code": {**stored["code"], "digest": "other"}})
    code.refuse_another(folder, 2)
    with pytest.raises(UsageError, match=r"seed 1 is being trained in another process by other c"):
        code.refuse_another(folder, 1)


def test_one_command_trains_its_seeds_once() -> None:
    """Whatever another process, with other code, does with them meanwhile."""
    trained: list[Any] = []

    def once(seeds: Any) -> None:
        assert not trained
        trained.append(seeds)

    base.complete(RunFolder(Path("r/runs/E/a/x")), code_of(), [0, 1], lambda: [0, 1], once, "")
    assert trained == [[0, 1]]


# ---- Sweeps -----------------------------------------------------------------------------


def test_a_sweep_plans_what_its_command_would_train() -> None:
    cell = Cell("q_learning", "FrozenLake-v1", 2, settings=SETTINGS)
    plan = Cell("value_iteration", "FrozenLake-v1", 0)
    kept = Cell("q_learning", "FrozenLake-v1", 2, settings={**SETTINGS, "keep_stale": True})
    assert (cell.missing("r"), plan.missing("r")) == ([[0, 1]], [[]])
    train()
    Script(str(ROOT / "algos/value_iteration.py"), "--env", plan.env, "--results", "r").run()
    assert (cell.missing("r"), plan.missing("r")) == ([], [])
    forget()
    for run in all_runs(Path("r")):
        for part in run.parts():
            restamp(part, "other")
    assert (cell.missing("r"), plan.missing("r")) == ([[0, 1]], [[]])
    assert cell.missing("r", by_any_code=True) == kept.missing("r") == []
    assert "--keep-stale" in kept.command("r")


def test_who_looks_on_sees_that_the_code_was_edited(monkeypatch: Patch) -> None:
    cell = Cell("q_learning", "FrozenLake-v1", 2, settings=SETTINGS)
    train()
    jobs = all_jobs([cell])
    display = Display(jobs, [])
    display.look(jobs, "r")
    assert display.done == 2
    monkeypatch.setattr(stale, "code_digest", lambda origins: "of an edited file")
    display.look(jobs, "r")
    assert display.done == 0


def test_a_sweep_may_keep_what_other_code_has_trained(capsys: Output) -> None:
    cells = parse(sweep.Flags, {}, "", ["--suite", "quick", "--keep-stale"]).cells()
    assert all(cell.settings["keep_stale"] for cell in cells)
    with pytest.raises(SystemExit):
        parse(sweep.Flags, {}, "", ["--suite", "quick", "--keep-stale", "--publish"])
    assert capsys.readouterr().err.startswith("error: --keep-stale: what is published is never s")


def test_the_code_of_a_baseline_is_that_of_its_record() -> None:
    """No script imports another one, so that it is not asked."""
    cell = Cell("ppo", "CartPole-v1", 2, "sb3")
    baseline = "manyseeds.benchmarks.baselines.sb3_baseline"
    recorded = [f"{baseline}:train", f"{baseline}:PPOBaseline"]
    code = Code(cell.config(), recorded, Run.kind_origins())
    stored = {"code": {"digest": code.digest, "origins": recorded}, "versions": {}}
    assert cell.is_current({**stored, "kind": "control"})
    stored["code"]["origins"] = recorded[:1]
    assert not cell.is_current({**stored, "kind": "control"})


PATCHED = """from manyseeds.algos import q_learning
from manyseeds.cli import parse
from manyseeds.runs.control import main

{text}
config = parse(q_learning.Config, q_learning.PRESETS, q_learning.__doc__)
main(config, q_learning.train, q_learning.PRESETS)
"""


REPLACED = """
def td_error(*args):
    return 1.0 * original(*args)


original, q_learning.td_error = q_learning.td_error, td_error
"""


@pytest.mark.parametrize(
    ("text", "old", "new"),
    [
        (REPLACED, "1.0 * original", "0.5 * original"),
        ("q_learning.BLOCK = 250\n", "250", "125"),
    ],
    ids=["a function", "a constant"],
)
def test_a_script_that_replaces_something_of_ours_is_read(
    text: str, old: str, new: str, mine: Path
) -> None:
    """`q_learning.td_error = mine`, and then the training of algos/q_learning.py."""
    script = mine / "patched.py"
    script.write_text(PATCHED.format(text=text))
    command(script=script)
    first = sums(run_of("q_learning").parts()[0])
    assert "Finished already" in command(script=script)
    edit(script, old, new)
    assert "were trained by other code" in command(script=script)
    assert sums(run_of("q_learning").parts()[0]) != first


def test_replaced_functions_are_code_in_no_file(monkeypatch: Patch) -> None:
    """As by `python -c`: the ordinary command afterwards trains anew, and so does this one."""
    usual = code_of().digest
    assert code_of().digest == usual
    for place, name, other in (
        (q_learning, "td_error", lambda *args: 0 * q_learning.lookup(*args[:3])),
        (q_learning.QTable, "act", q_learning.QTable.draw),  # a method
        (q_learning, "broadcast", q_learning.linear),  # an import
    ):
        with monkeypatch.context() as patch:
            patch.setattr(place, name, other)
            assert code_of().digest.startswith("unknown")
            assert code_of().digest != code_of().digest
    assert code_of().digest == usual
