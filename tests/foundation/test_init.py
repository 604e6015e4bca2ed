"""`--init`: a training starts from the weights of a finished one."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import safetensors.torch
import torch

from manyseeds.algos import ppo
from manyseeds.checkpoint import to_bytes
from manyseeds.cli import UsageError, identity, parse
from manyseeds.evaluate import evaluate, share
from manyseeds.record import POLICY, RunFolder, hash_of, is_finished, part_name, read_json, seal
from manyseeds.runs import control
from manyseeds.runs.configurations import train_configurations
from manyseeds.runs.control import Run
from manyseeds.writing import write_json
from tests import resuming
from tests.algos.test_seed_axis import BUDGETS
from tests.benchmarks.conftest import Output, Patch
from tests.resuming import CASES, part_of

SMALL = {**CASES["ppo"], "hidden": (16, 16)}


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: Patch) -> None:
    monkeypatch.chdir(tmp_path)
    for module, name, few in resuming.FEWER:
        monkeypatch.setattr(module, name, few)


def train(case: str, results: str = "r", **settings: Any) -> Path:
    return part_of(resuming.train(case, Path(results), **settings))


def starts(part: Path) -> list[float]:
    """The greedy returns at step 0."""
    curve = pd.read_parquet(part / "curve.parquet").query("timestep == 0 and mode == 'greedy'")
    return list(curve["return_mean"])


def scores(policy: Any, config: Any, seeds: list[int]) -> list[float]:
    """The returns of policies in an evaluation during a training."""
    episodes = share(control.CURVE_EPISODES, config.eval_budget)
    return list(evaluate(config.make_env(), policy, seeds, episodes).return_mean)


@pytest.mark.parametrize("algo", BUDGETS)
def test_a_training_starts_as_the_stored_one_has_ended(algo: str) -> None:
    part = train(algo)
    module = importlib.import_module(f"manyseeds.algos.{algo}")
    stored = module.load(str(part))
    again = train(algo, init=str(part))
    assert again != part
    config = module.Config(**{**CASES[algo], "init": str(part)})
    assert starts(again) == scores(stored, config, [0, 1, 2])
    record = read_json(again / "config.json")["config"]
    assert record["init"] == str(part)
    assert len(record["init_content"]) == 12
    before = safetensors.torch.load_file(part / POLICY)
    after = safetensors.torch.load_file(again / POLICY)
    assert any(not torch.equal(before[name], after[name]) for name in before)


def test_what_was_trained_goes_into_every_network() -> None:
    """The target of DQN is the network itself, statistics come along, the optimizer is new."""
    part = train("dqn")
    seen: list[Any] = []

    class Stopped(Exception):
        pass

    class Looking(Run):
        def restore(self, objects: Any, *variables: Any) -> Any:
            seen.extend(objects)
            raise Stopped

    module = importlib.import_module("manyseeds.algos.dqn")
    config = module.Config(**{**CASES["dqn"], "init": str(part), "quiet": True})
    with pytest.raises(Stopped):
        module.train(config, Looking(config, [2, 0]))
    net, target, optimizer = seen[:3]
    stored = safetensors.torch.load_file(part / POLICY)
    for name, x in stored.items():
        assert torch.equal(net.state_dict()[name], x[[2, 0]])
        assert torch.equal(target.state_dict()[name], x[[2, 0]])
    assert not optimizer.mean.any()


def test_one_seed_serves_all_and_another_seed_only_itself() -> None:
    one = train("ppo", seeds=1, first_seed=7)
    again = train("ppo", init=str(one), learning_rate=1e-12)
    weights = safetensors.torch.load_file(again / POLICY)["networks.weights.0"]
    first = safetensors.torch.load_file(one / POLICY)["networks.weights.0"]
    assert torch.allclose(weights, first.expand_as(weights), atol=1e-6)
    three = train("ppo", results="three")
    apart = train("ppo", init=str(three), seeds=1, first_seed=2)
    beside = train("ppo", results="s", init=str(three), seeds=3)
    tensors = [safetensors.torch.load_file(x / POLICY) for x in (apart, beside)]
    assert all(torch.equal(tensors[0][name][0], tensors[1][name][2]) for name in tensors[0])


def test_other_weights_are_another_run() -> None:
    part = train("ppo")
    plain = ppo.Config(**SMALL)
    assert "init" not in identity(plain)
    config = ppo.Config(**SMALL, init=str(part))
    names = {hash_of(identity(plain)), hash_of(identity(config))}
    content = bytearray((part / POLICY).read_bytes())
    content[-1] ^= 1
    (part / POLICY).write_bytes(content)
    seal(part, (POLICY,), POLICY)
    names.add(hash_of(identity(config)))
    assert len(names) == 3


def test_files_of_policies_exports_and_other_algorithms_serve_too() -> None:
    """A copy of a file starts from what the file has trained, and the other way round."""
    part = train("ppo")
    stored = read_json(part / "config.json")
    about = {"algo": "ppo", "config": stored["config"], "seeds": stored["seeds"]}
    Path("hub").mkdir()
    (Path("hub") / POLICY).write_bytes(to_bytes(safetensors.torch.load_file(part / POLICY), about))
    expected = starts(train("ppo", init=str(part)))
    assert starts(train("ppo", results="a", init="hub:hub")) == expected
    assert starts(train("ppo", results="b", init=f"hub/{POLICY}")) == expected
    write_json(part / "config.json", {**stored, "algo": "my_ppo"})
    seal(part, (POLICY,), POLICY)
    assert starts(train("ppo", results="c", init=str(part))) == expected
    assert starts(train("a2c", results="c", init=str(part))) == expected


def test_rows_start_from_stored_weights() -> None:
    part = train("ppo")
    configs = [
        ppo.Config(**SMALL, init=str(part), quiet=True, learning_rate=x) for x in (1e-3, 1e-2)
    ]
    frame = train_configurations(ppo.train, configs, [2, 0])
    alone = train_configurations(ppo.train, configs[1:], [0])
    row = frame.query("configuration == 1 and seed == 0")
    np.testing.assert_array_equal(row["final"], alone["final"])
    np.testing.assert_array_equal(row["auc"], alone["auc"])


def test_a_training_from_stored_weights_goes_on_after_an_interruption() -> None:
    from tests.foundation.test_resumable import interrupted

    part = train("ppo")
    whole = train("ppo", results="whole", init=str(part.absolute()))
    interrupted("ppo", Path("s"), init=str(part.absolute()))
    again = train("ppo", results="s", init=str(part.absolute()))
    assert resuming.differences(again, whole) == []


def test_the_environment_may_be_another_one_that_fits() -> None:
    """And no module is imported because a stored file names it."""
    part = train("ppo")
    stored = read_json(part / "config.json")
    stored["env"] = stored["config"]["env"] = "nowhere.to.be.found:Env-v0"
    write_json(part / "config.json", stored)
    seal(part, (POLICY,), POLICY)
    assert is_finished(train("ppo", init=str(part)))


# ---- Mistakes --------------------------------------------------------------------------------


def command(*words: str) -> None:
    """What ppo.py does with a command line."""
    small = ("--num-envs", "2", "--num-steps", "16", "--minibatch-size", "8", "--hidden", "16")
    given = ("--total-timesteps", "64", "--seeds", "3", "--results", "new", "--quiet")
    config = parse(ppo.Config, {}, "", (*small, "16", *given, *words))
    control.main(config, ppo.train, {})


def refused(capsys: Output, *words: str) -> str:
    """What a command is refused with: one line, status 2, nothing created."""
    capsys.readouterr()
    before = sorted(os.listdir("."))
    with pytest.raises(SystemExit) as stop:
        command(*words)
    assert stop.value.code == 2
    assert sorted(os.listdir(".")) == before
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert err.startswith("error: --init ")
    return err.removeprefix("error: --init ")


def stored(**settings: Any) -> Path:
    plain = {"normalize_obs": False, "normalize_reward": False}
    return train("ppo", **{**plain, **settings})


def test_mistakes_are_one_line(capsys: Output) -> None:
    part = stored()
    command("--init", str(part))
    assert is_finished(next(Path("new").glob("runs/*/*/*/seeds-000-002")))
    missing = refused(capsys, "--init", str(part), "--first-seed", "1")
    assert missing == f"{part}: has no seed 3; it has 0-2\n"
    other = train("dqn")
    assert refused(capsys, "--init", str(other)) == (
        f"{other}: networks.weights.0 is none there, [2, 4, 16] torch.float32 here\n"
    )
    wide = stored(hidden=(16, 32))
    assert refused(capsys, "--init", str(wide)) == (
        f"{wide}: networks.weights.1 is [2, 16, 32] torch.float32 there, "
        "[2, 16, 16] torch.float32 here\n"
    )
    scaled = stored(normalize_obs=True)
    assert refused(capsys, "--init", str(scaled)) == (
        f"{scaled}: obs_stats.count is [1, 1] torch.float64 there, none here\n"
    )
    assert refused(capsys, "--init", str(part), "--normalize-obs") == (
        f"{part}: obs_stats.mean is none there, [1, 4] torch.float64 here\n"
    )
    pendulum = stored(env="Pendulum-v1")
    assert refused(
        capsys, "--init", str(pendulum), "--env", "Pendulum-v1", "--rescale-actions"
    ) == (
        f"{pendulum}: its actions have another meaning: rescale_actions is False there, True here\n"
    )
    with_weights(lambda x: x / 0)(part / POLICY)
    seal(part, (POLICY,), POLICY)
    assert refused(capsys, "--init", str(part)) == (
        f"{part}: networks.weights.0 is not finite there: its training diverged\n"
    )
    for nothing in ("nowhere", "r", "hub:nowhere at all", "\0", "x" * 300):
        assert refused(capsys, "--init", nothing)


def with_weights(change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Path], Any]:
    def damage(file: Path) -> None:
        tensors = safetensors.torch.load_file(file)
        file.write_bytes(to_bytes({name: change(x) for name, x in tensors.items()}))

    return damage


def a_pipe(file: Path) -> None:
    file.unlink()
    os.mkfifo(file)


HOSTILE: dict[str, Callable[[Path], Any]] = {
    "weights": lambda file: file.write_bytes(b"x" * 100),
    "fewer rows": with_weights(lambda x: x[:2]),
    "no rows": with_weights(torch.sum),
    "no weights": Path.unlink,
    "a pipe": a_pipe,
}
RECORDS = {
    "a list": "[]",
    "no json": "x",
    "deep": "[" * 100_000,
    "no seeds": '{"algo": "ppo", "seeds": 3}',
    "seeds": '{"algo": "ppo", "seeds": ["0", null]}',
}


@pytest.mark.parametrize("kind", [*HOSTILE, *RECORDS])
def test_hostile_parts_are_one_line(kind: str, capsys: Output) -> None:
    part = stored()
    if kind in RECORDS:
        (part / "config.json").write_text(RECORDS[kind])
    else:
        HOSTILE[kind](part / POLICY)
    if kind != "a pipe":
        seal(part, (POLICY,), POLICY)
    assert str(part) in refused(capsys, "--init", str(part))
    (part / "DONE.json").unlink()
    assert "not a finished part with policy.safetensors" in refused(capsys, "--init", str(part))


def test_from_python_a_mistake_is_a_usage_error() -> None:
    part = stored()
    config = ppo.Config(**SMALL, init=str(part), quiet=True)
    with pytest.raises(UsageError, match=r"--init .*: obs_stats\.mean is none there"):
        ppo.train(config, Run(config, [0]))
    assert RunFolder.of(config, "ppo").path.name == hash_of(identity(config))
    assert part.name == part_name([0, 1, 2])
