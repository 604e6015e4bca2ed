"""Export for a model hub: what is written loads again, elsewhere, and scores what its card says."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import huggingface_hub
import pandas as pd
import pytest
import torch
from huggingface_hub import ModelCard

from algos import dqn, ppo
from benchmarks import export
from benchmarks.chapters.stored import find_and_open
from manyseeds.checkpoint import read_about
from manyseeds.digest import ROOT
from manyseeds.errors import UsageError
from manyseeds.record import POLICY, read_json
from tests.benchmarks.test_report import around, plant
from tests.benchmarks.test_watch import store


def run(*words: str | Path) -> int:
    """The exit status of an export."""
    try:
        export.main([str(word) for word in words])
    except SystemExit as stop:
        return int(stop.code or 0)
    return 0


@pytest.fixture
def trained(tmp_path: Path) -> Path:
    """A run of PPO in two parts of two seeds each, trained for a moment."""
    first = store(tmp_path / "r", "ppo", "CartPole-v1", [0, 1])
    store(tmp_path / "r", "ppo", "CartPole-v1", [2, 3])
    return first.parent


def test_what_is_exported_loads_again(trained: Path, tmp_path: Path) -> None:
    folder = tmp_path / "out" / "policy"
    assert run(trained, "--hub", folder) == 0
    assert {x.name for x in folder.iterdir()} == {
        *("README.md", "curve.parquet", POLICY, "run.json")
    }
    assert [x.name for x in folder.parent.iterdir()] == ["policy"]
    policy = ppo.load(f"hub:{folder}")
    for i, part in enumerate(sorted(trained.glob("seeds-*"))):
        stored = ppo.load(str(part)).state_dict()
        for name, x in policy.state_dict().items():
            assert torch.equal(x[2 * i : 2 * i + 2], stored[name])
    assert set(pd.read_parquet(folder / "curve.parquet")["seed"]) == {0, 1, 2, 3}
    assert [x["seeds"] for x in read_json(folder / "run.json")] == [[0, 1], [2, 3]]


def test_the_card_is_what_the_hub_reads(trained: Path, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    assert run(trained, "--hub", folder) == 0
    card = ModelCard.load(folder / "README.md")
    assert card.data.library_name == "manyseeds"
    assert card.data.pipeline_tag == "reinforcement-learning"
    assert {"ppo", "CartPole-v1"} <= set(card.data.tags or [])
    (result,) = card.data.eval_results or []
    assert result.dataset_name == "CartPole-v1"
    config = read_json(next(trained.glob("seeds-*")) / "config.json")
    for text in (str(result.metric_value), config["command"], config["code"]["commit"]):
        assert text in card.text
    assert "no run of stable-baselines3" in card.text
    assert str(tmp_path) not in card.text.replace(config["command"], "")


def test_the_card_has_the_verdict(tmp_path: Path) -> None:
    """SB3's run of the very same settings; of another one there is none."""
    ours = plant(tmp_path, "ppo", around(480.0, 30))
    plant(tmp_path, "sb3-ppo", around(480.0, 30))
    card = export.card(find_and_open(str(ours.path)), [0, 1])
    assert re.search(r"Against stable-baselines3: equivalent .*n=30", card)
    assert "Weights of seeds 0-1 of 0-29" in card
    other = plant(tmp_path, "ppo", around(480.0, 30), gamma=0.5)
    plant(tmp_path, "sb3-ppo", around(300.0, 30), name=other.path.name)
    card = export.card(find_and_open(str(other.path)), [0])
    assert "no run of stable-baselines3" in card


def test_published_policies_are_exported(tmp_path: Path) -> None:
    """A published run has no weights, but for those of two seeds in results/policies."""
    assert run(ROOT / "results/runs/CartPole-v1/ppo/169f4dbf", "--hub", tmp_path / "out") == 0
    assert "Weights of seeds" in (tmp_path / "out" / "README.md").read_text()
    seeds = read_about(tmp_path / "out" / POLICY)["seeds"]
    obs = torch.zeros(len(seeds), 1, 4)
    assert ppo.load(f"hub:{tmp_path / 'out'}").act(obs).shape == (len(seeds), 1)


def test_mistakes_are_one_line(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bare = plant(tmp_path / "bare", "dqn", around(480.0)).path
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine").touch()
    for words, said in (
        ([], "RUN: name the folder"),
        ([trained], "--hub: name the folder"),
        ([tmp_path / "nowhere", "--hub", tmp_path / "x"], "no such folder"),
        ([bare, "--hub", tmp_path / "x"], "has no weights here"),
        ([trained, "--hub", tmp_path / "full"], "exists; name a folder"),
        ([trained, "--hub", tmp_path / "x", "--upload", "name"], "must be OWNER/NAME"),
    ):
        assert run(*words) == 2
        error = capsys.readouterr().err
        assert said in error
        assert error.count("\n") == 1
    assert not (tmp_path / "x").exists()
    assert [x.name for x in (tmp_path / "full").iterdir()] == ["mine"]


def test_loading_mistakes(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "out"
    assert run(trained, "--hub", folder) == 0
    with pytest.raises(UsageError):
        dqn.load(f"hub:{folder}")
    (folder / POLICY).write_bytes(b"\x80\x04pickle")
    with pytest.raises(UsageError, match="holds no policies"):
        ppo.load(f"hub:{folder}")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(UsageError, match="hub:nobody/nothing: no such folder"):
        ppo.load("hub:nobody/nothing")


def test_a_repository_is_fetched_without_other_files(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The hub itself is replaced: its answer is an exported folder."""
    folder = tmp_path / "out"
    assert run(trained, "--hub", folder) == 0
    asked: list[Any] = []

    def download(repo_id: str, allow_patterns: list[str]) -> str:
        asked.append((repo_id, allow_patterns))
        return str(folder)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    assert ppo.load("hub:owner/name").act(torch.zeros(4, 1, 4)).shape == (4, 1)
    assert asked == [("owner/name", ["*.safetensors", "*.json"])]


def test_upload(
    trained: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    calls: list[Any] = []

    class FakeHfApi:
        """Checks calls against the real signatures, and sends nothing."""

        def create_repo(self, *words: Any, **more: Any) -> None:
            bound = signature("create_repo", *words, **more)
            calls.append(("create_repo", bound["repo_id"], bound["exist_ok"]))

        def upload_folder(self, *words: Any, **more: Any) -> str:
            bound = signature("upload_folder", *words, **more)
            names = sorted(x.name for x in Path(bound["folder_path"]).iterdir())
            calls.append(("upload_folder", bound["repo_id"], names))
            return "https://hub/owner/name"

    real = huggingface_hub.HfApi

    def signature(name: str, *words: Any, **more: Any) -> dict[str, Any]:
        import inspect

        method = getattr(real, name)
        return dict(inspect.signature(method).bind(None, *words, **more).arguments)

    monkeypatch.setattr(huggingface_hub, "HfApi", FakeHfApi)
    assert run(trained, "--hub", tmp_path / "out", "--upload", "owner/name") == 0
    files = ["README.md", "curve.parquet", POLICY, "run.json"]
    assert calls == [("create_repo", "owner/name", True), ("upload_folder", "owner/name", files)]
    assert "uploaded: https://hub/owner/name" in capsys.readouterr().out

    monkeypatch.setattr(huggingface_hub, "HfApi", lambda: real("http://127.0.0.1:9", token="x"))
    assert run(trained, "--hub", tmp_path / "again", "--upload", "owner/name") == 2
    error = capsys.readouterr().err
    assert error.startswith("error: --upload owner/name: ")
    assert error.count("\n") == 1


SCORE = """
import sys
from algos.ppo import Config, load
from manyseeds.checkpoint import read_policy
from manyseeds.evaluate import FINAL_EPISODES, evaluate
from manyseeds.stats import iqm
config, seeds, _ = read_policy(sys.argv[1], Config)
result = evaluate(config.make_env(), load(sys.argv[1]), seeds, FINAL_EPISODES)
print(float(iqm(result.return_mean)))
"""


@pytest.mark.slow
def test_another_checkout_scores_within_the_interval(tmp_path: Path) -> None:
    """Trained here, exported, and loaded by a copy of the project in another folder."""
    words = ["--seeds", "4", "--total-timesteps", "20000", "--quiet", "--results", "r"]
    command = [sys.executable, str(ROOT / "algos/ppo.py"), *words]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    subprocess.run(command, cwd=tmp_path, env=environment, check=True, capture_output=True)
    (trained,) = (tmp_path / "r").glob("runs/*/*/*")
    assert run(trained, "--hub", tmp_path / "out") == 0
    other = tmp_path / "checkout"
    for room in ("manyseeds", "envs", "algos"):
        shutil.copytree(ROOT / room, other / room, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.rmtree(tmp_path / "r")
    done = subprocess.run(
        [sys.executable, "-c", SCORE, f"hub:{tmp_path / 'out'}"],
        cwd=other,
        env={**os.environ, "PYTHONPATH": str(other)},
        capture_output=True,
        text=True,
        check=True,
    )
    (result,) = ModelCard.load(tmp_path / "out" / "README.md").data.eval_results or []
    value, low, high = map(float, re.findall(r"[\d.]+", str(result.metric_value)))
    assert low < high
    assert low <= float(done.stdout) <= high
    assert float(done.stdout) == pytest.approx(value, abs=0.05)
