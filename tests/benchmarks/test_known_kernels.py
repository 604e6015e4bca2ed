"""The digests that kernels were written for are those of the project as it is."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from manyseeds import envs
from manyseeds.algos import ppo
from manyseeds.benchmarks.experiments import catalog
from manyseeds.benchmarks.measurements import known_kernels
from manyseeds.kernels import guard
from tests.benchmarks.conftest import Output, Patch, Refusal


def test_known_functions_are_current() -> None:
    """After an honest change: `python benchmarks/known_kernels.py`."""
    stored = json.loads(known_kernels.FILE.read_text())
    found, _ = known_kernels.found_now()
    assert {kernel: entry["versions"] for kernel, entry in stored.items()} == {
        kernel: found.largest(kernel) for kernel in found.versions
    }


def test_kernels_within_others_are_compared() -> None:
    """PPO's update in C asks for none of what it stands for."""
    found = known_kernels.Found()
    list(found.asked("ppo", catalog.facts("ppo").small))
    within = {"ppo.gradient", "optim.step", "scan.take", "mlp.forward"}
    assert within <= found.versions.keys()
    assert found.outer("optim.step") == {"optim.step", "ppo.update"}


def test_no_known_function_is_one_that_could_not_be_read() -> None:
    unknown = hashlib.sha256(b"unknown").hexdigest()[:8]
    versions = [version for kernel in guard.known().values() for version in kernel.versions]
    assert not [x for version in versions for x in version if x.endswith(unknown)]


def test_writing_keeps_what_was_measured(tmp_path: Path, capsys: Output) -> None:
    file = tmp_path / "known.json"
    before = json.loads(known_kernels.FILE.read_text())
    file.write_text(json.dumps({"scan.gae": {"slower": 7.5, "versions": []}}))
    known_kernels.main([], file)
    after = json.loads(file.read_text())
    assert after["scan.gae"]["slower"] == 7.5
    assert after["scan.gae"]["versions"] == before["scan.gae"]["versions"]
    assert after.keys() == before.keys()
    assert capsys.readouterr().out == f"{file}\n"


def test_an_edit_that_c_does_not_follow_is_refused(
    tmp_path: Path, monkeypatch: Patch, refusal: Refusal
) -> None:
    """Else C would stand for it, silently."""
    monkeypatch.setattr(ppo, "policy_loss", lambda ratio, *args: 0 * ratio.mean(-1))
    monkeypatch.setattr(envs.Pendulum, "reward", lambda self, physics, *args: physics[..., 0])
    message = refusal(lambda _: known_kernels.main([], tmp_path / "known.json"))
    assert "ppo on CartPole-v1" in message
    assert "ppo on Pendulum-v1" in message
    assert "a2c" not in message
    assert not list(tmp_path.iterdir())
