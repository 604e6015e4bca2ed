"""Export for a model hub: what is written loads again, elsewhere, and scores what its card says."""

from __future__ import annotations

import inspect
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import huggingface_hub
import numpy as np
import pandas as pd
import pytest
import torch
from huggingface_hub import ModelCard
from huggingface_hub.utils import filter_repo_objects

from manyseeds.algos import a2c, dqn, ppo
from manyseeds.benchmarks import export
from manyseeds.benchmarks.store.results import load_result
from manyseeds.benchmarks.store.stored import find_and_open
from manyseeds.checkpoint import read_about
from manyseeds.digest import ROOT
from manyseeds.errors import UsageError
from manyseeds.record import POLICY, read_json, seal
from manyseeds.writing import write_json
from tests.benchmarks.conftest import Output, Patch, Refusal
from tests.benchmarks.test_report import around, know, plant
from tests.benchmarks.test_watch import store

EXPORTED = ["README.md", "curve.parquet", POLICY, "run.json"]


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
    folder.mkdir(parents=True)
    (link := tmp_path / "link").symlink_to(folder)
    assert run(trained, "--hub", link) == 0
    assert link.is_symlink()
    assert sorted(x.name for x in folder.iterdir()) == EXPORTED
    assert [x.name for x in folder.parent.iterdir()] == ["policy"]
    policy = ppo.load(f"hub:{folder}")
    for i, part in enumerate(sorted(trained.glob("seeds-*"))):
        stored = ppo.load(str(part)).state_dict()
        for name, x in policy.state_dict().items():
            assert torch.equal(x[2 * i : 2 * i + 2], stored[name])
    assert set(pd.read_parquet(folder / "curve.parquet")["seed"]) == {0, 1, 2, 3}
    assert [x["seeds"] for x in read_json(folder / "run.json")] == [[0, 1], [2, 3]]


def test_no_path_of_this_machine_leaves_it(trained: Path, tmp_path: Path) -> None:
    """Neither in the record of a training by files that lie elsewhere, nor on its card."""
    part = sorted(trained.glob("seeds-*"))[0]
    config = read_json(part / "config.json")
    ours = "manyseeds.envs.cartpole:CartPole"
    config["code"]["origins"] = ["/home/somebody/x y/mine.py:train", ours]
    write_json(part / "config.json", config)
    seal(part, (POLICY,), POLICY)
    folder = tmp_path / "out"
    assert run(trained, "--hub", folder) == 0
    stored = read_json(folder / "run.json")[0]
    assert stored["code"]["origins"] == ["mine.py:train", ours]
    config["code"]["origins"] = stored["code"]["origins"]
    assert stored == config
    assert all(b"somebody" not in file.read_bytes() for file in folder.iterdir())
    assert export.is_export_of(find_and_open(str(trained)), folder)


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
    about = "mean over 4 seeds [95% interval; 4 seeds: covers 59 to 88%]"
    assert str(result.metric_name).endswith(about)
    for text in (str(result.metric_value), config["command"], config["code"]["commit"]):
        assert text in card.text
    assert "no run of stable-baselines3" in card.text
    assert str(tmp_path) not in card.text.replace(config["command"], "")


def test_the_card_has_the_verdict(tmp_path: Path) -> None:
    """SB3's run of the very same settings; of another one there is none."""
    ours = plant(tmp_path, "ppo", around(480.0, 60))
    plant(tmp_path, "sb3-ppo", around(480.0, 60))
    card = export.card(find_and_open(str(ours.path)), [0, 1], tmp_path)
    assert re.search(r"Against stable-baselines3: equivalent .*n=60 and 60 ", card)
    assert "with seeds 0-59. Weights of seeds 0, 1 (in this order).\n" in card
    assert "failures" not in card
    ill = plant(tmp_path, "ppo", around(480.0, 30), diverged={3: 64, 4: 9}, gamma=0.9)
    card = export.card(find_and_open(str(ill.path)), [0], tmp_path)
    assert "- Seeds without a score, which count as failures: 2 diverged\n" in card
    other = plant(tmp_path, "ppo", around(480.0, 30), gamma=0.5)
    plant(tmp_path, "sb3-ppo", around(300.0, 30), name=other.path.name)
    card = export.card(find_and_open(str(other.path)), [0], tmp_path)
    assert "no run of stable-baselines3" in card


@pytest.mark.parametrize(
    ("env", "settings", "title", "text"),
    [
        ("Pendulum-v1", {"rescale_actions": True}, "Pendulum-v1", "Its actions are from -1 to 1, "),
        ("Pendulum-v1", {"env_kwargs": ("g=2",)}, "Pendulum-v1 g=2", ""),
        ("FrozenLake-v1", {}, "FrozenLake-v1", "as a one-hot vector of length 16."),
    ],
)
def test_the_card_says_what_a_policy_sees_and_does(
    tmp_path: Path, env: str, settings: Any, title: str, text: str
) -> None:
    """And of equal scores, which have no interval, nothing of one."""
    planted = plant(tmp_path, "ppo", {0: 1.0, 1: 1.0}, env=env, **settings)
    know(planted.path, threshold=None, digits=None)
    card = export.card(find_and_open(str(planted.path)), [0, 1], tmp_path)
    assert "policy.predict(obs, seed=0)" in card
    assert f"# PPO on {title}\n" in card.replace("\\", "")
    assert f"name: {title}\n" in card
    assert text in card
    assert ("one-hot" in card, "from -1 to 1" in card) == ("one-hot" in text, "-1" in text)
    assert "both seeds equal: at most" in card
    assert "95% interval" not in card


def test_published_policies_are_exported(tmp_path: Path) -> None:
    """A published run has no weights, but for those of two seeds in results/policies."""
    assert run(ROOT / "results/runs/CartPole-v1/ppo/169f4dbf", "--hub", tmp_path / "out") == 0
    assert "Weights of seed" in (tmp_path / "out" / "README.md").read_text()
    seeds = read_about(tmp_path / "out" / POLICY)["seeds"]
    obs = torch.zeros(len(seeds), 1, 4)
    assert ppo.load(f"hub:{tmp_path / 'out'}").act(obs).shape == (len(seeds), 1)


KEPT = ["chat_template.jinja", "config.json", "generation_config.json", "merges.txt"]
KEPT += ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
KEPT += ["model.safetensors.index.json", "special_tokens_map.json", "spiece.model"]
KEPT += ["tokenizer.json", "tokenizer_config.json", "vocab.json"]


def test_what_is_no_file_of_a_model_is_left_out(tmp_path: Path, capsys: Output) -> None:
    """Code, pickles, other people's JSON, links, pipes, folders, and names that hide."""
    model, out, secret = tmp_path / "model", tmp_path / "out", tmp_path / "secret"
    for folder in (model, out, secret):
        folder.mkdir()
    (secret / "config.json").write_text("secret")
    others = ["modeling.py", "x.bin", "x.ckpt", "x.pickle", "x.pkl", "x.pt", "x.pth", ".netrc"]
    others += ["token.json", "config.json.bak", "a\x1b[2J.txt", "adapter.safetensors"]
    for name in (*KEPT, *others):
        (model / name).write_text(name)
    (model / "nested").mkdir()
    (model / "nested/config.json").touch()
    (model / "linked").symlink_to(secret)
    (model / "link.json").symlink_to(secret / "config.json")
    (model / "additional_chat_templates").symlink_to(secret)
    os.mkfifo(model / "pipe")
    export.copy_shared(model, out)
    assert sorted(x.name for x in out.iterdir()) == KEPT
    assert all((out / name).read_text() == name for name in KEPT)
    said = capsys.readouterr().out
    assert re.fullmatch(rf"left out: {model}: \.netrc, \S+, [^\n\x1b]+ and \d+ more\n", said)
    (model / "additional_chat_templates").unlink()
    (model / "additional_chat_templates").mkdir()
    (model / "additional_chat_templates/tools.jinja").touch()
    shutil.rmtree(out)
    out.mkdir()
    export.copy_shared(model, out)
    assert (out / "additional_chat_templates/tools.jinja").is_file()


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "."])
def test_a_link_in_a_model_is_refused(name: str, tmp_path: Path) -> None:
    """Without that file there would be no model, and what it leads to is not to leave."""
    model, out, secret = tmp_path / "model", tmp_path / "out", tmp_path / "secret"
    out.mkdir()
    secret.mkdir()
    if name != ".":
        model.mkdir()
        (secret / name).write_text("secret")
    (model / name).symlink_to(secret / name)
    with pytest.raises(UsageError, match=f"{model / name}: is a link"):
        export.copy_shared(model, out)
    assert not any(out.iterdir())


def test_mistakes_are_one_line(trained: Path, tmp_path: Path, refusal: Refusal) -> None:
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
        ([trained, "--hub", tmp_path / "x", "--upload", "own er/name"], "must be OWNER/NAME"),
    ):
        assert said in refusal(export.main, *words)
    assert not (tmp_path / "x").exists()
    assert [x.name for x in (tmp_path / "full").iterdir()] == ["mine"]


def test_loading_mistakes(trained: Path, tmp_path: Path, monkeypatch: Patch) -> None:
    folder = tmp_path / "out"
    assert run(trained, "--hub", folder) == 0
    with pytest.raises(UsageError):
        dqn.load(f"hub:{folder}")
    (folder / POLICY).write_bytes(b"\x80\x04pickle")
    with pytest.raises(UsageError, match="holds no policies"):
        ppo.load(f"hub:{folder}")
    assert run(trained, "--hub", tmp_path / "of-ppo") == 0
    with pytest.raises(UsageError, match="has policies of ppo, not of a2c"):
        a2c.load(f"hub:{tmp_path / 'of-ppo'}")
    with pytest.raises(UsageError, match="no such folder"):
        ppo.load(f"hub:{'x' * 500}")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(UsageError, match="hub:nobody/nothing: no such folder"):
        ppo.load("hub:nobody/nothing")


def test_a_repository_is_fetched_without_other_files(
    trained: Path, tmp_path: Path, monkeypatch: Patch
) -> None:
    """The hub is replaced by a folder, with the real signature and the real filter of names."""
    monkeypatch.chdir(tmp_path)
    hub, cache = tmp_path / "hub", tmp_path / "cache"
    assert run(trained, "--hub", hub / "owner/name") == 0
    (hub / "owner/name/code.py").touch()
    (hub / "owner/name/policy.pkl").touch()
    real = inspect.signature(huggingface_hub.snapshot_download)

    def download(*words: Any, **more: Any) -> str:
        asked = real.bind(*words, **more).arguments
        folder = hub / asked["repo_id"]
        if not folder.is_dir():
            raise OSError("404\nmore of it")
        names = [x.name for x in folder.iterdir()]
        cache.mkdir()
        for name in filter_repo_objects(names, allow_patterns=asked["allow_patterns"]):
            shutil.copy(folder / name, cache)
        return str(cache)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    fetched, local = (ppo.load(f"hub:{x}").state_dict() for x in ("owner/name", hub / "owner/name"))
    assert all(torch.equal(fetched[name], x) for name, x in local.items())
    assert {x.name for x in cache.iterdir()} == {POLICY, "run.json"}
    with pytest.raises(UsageError, match=r"^hub:owner/other: no such folder, .* 404$"):
        ppo.load("hub:owner/other")


def test_upload(trained: Path, tmp_path: Path, monkeypatch: Patch, capsys: Output) -> None:
    calls: list[Any] = []

    class FakeHfApi:
        """Checks calls against the real signatures, and sends nothing."""

        def create_repo(self, *words: Any, **more: Any) -> None:
            bound = signature("create_repo", *words, **more)
            calls.append(("create_repo", bound["repo_id"], bound["exist_ok"]))

        def upload_folder(self, *words: Any, **more: Any) -> str:
            bound = signature("upload_folder", *words, **more)
            there = (x.name for x in Path(bound["folder_path"]).iterdir())
            names = sorted(filter_repo_objects(there, allow_patterns=bound["allow_patterns"]))
            calls.append(("upload_folder", bound["repo_id"], names))
            return "https://hub/owner/name"

    real = huggingface_hub.HfApi

    def signature(name: str, *words: Any, **more: Any) -> dict[str, Any]:
        method = getattr(real, name)
        return dict(inspect.signature(method).bind(None, *words, **more).arguments)

    monkeypatch.setattr(huggingface_hub, "HfApi", FakeHfApi)
    assert run(trained, "--hub", tmp_path / "out", "--upload", "owner/name") == 0
    uploaded = ("upload_folder", "owner/name", EXPORTED)
    assert calls == [("create_repo", "owner/name", True), uploaded]
    assert "uploaded: https://hub/owner/name" in capsys.readouterr().out

    monkeypatch.setattr(huggingface_hub, "HfApi", lambda: real("http://127.0.0.1:9", token="x"))
    assert run(trained, "--hub", tmp_path / "again", "--upload", "owner/name") == 2
    error = capsys.readouterr().err
    assert error.startswith("error: --upload owner/name: ")
    assert error.count("\n") == 1

    # What could not be uploaded can be tried again; another run's folder is not taken.
    calls.clear()
    monkeypatch.setattr(huggingface_hub, "HfApi", FakeHfApi)
    (tmp_path / "again" / "key.json").symlink_to(tmp_path / "out" / "run.json")
    assert run(trained, "--hub", tmp_path / "again", "--upload", "owner/name") == 0
    assert calls[1:] == [uploaded]
    assert f"left out: {tmp_path / 'again'}: key.json\n" in capsys.readouterr().out
    (tmp_path / "again" / "README.md").unlink()
    (tmp_path / "again" / "README.md").symlink_to(tmp_path / "out" / "README.md")
    assert run(trained, "--hub", tmp_path / "again", "--upload", "owner/name") == 2
    assert "README.md: is a link" in capsys.readouterr().err
    assert len(calls) == 2
    other = store(tmp_path / "r", "ppo", "CartPole-v1", [9]).parent
    assert run(other, "--hub", tmp_path / "again", "--upload", "owner/name") == 2
    assert "exists; name a folder" in capsys.readouterr().err


SCORE = """
import sys, importlib
from manyseeds import algos
from manyseeds.checkpoint import read_policy
from manyseeds.evaluate import FINAL_EPISODES, evaluate
module = importlib.import_module(f"manyseeds.algos.{sys.argv[1]}")
config, seeds, _ = read_policy(sys.argv[2], module.Config)
result = evaluate(config.make_env(), module.load(sys.argv[2]), seeds, FINAL_EPISODES)
print(algos.__path__[0], *result.return_mean)
"""


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fresh clone of this repository, of what is committed."""
    folder = tmp_path_factory.mktemp("other") / "checkout"
    if not (ROOT / ".git").exists():
        pytest.skip("this is no clone")
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(folder)], check=True)
    return folder


def scores_in(clone: Path, algo: str, exported: Path) -> list[float]:
    """The final return of each exported policy, loaded and played in a clone."""
    done = subprocess.run(
        [sys.executable, "-c", SCORE, algo, f"hub:{exported}"],
        cwd=clone,
        env={**os.environ, "PYTHONPATH": str(clone)},
        capture_output=True,
        text=True,
        check=True,
    )
    folder, *scores = done.stdout.split()
    assert folder == str(clone / "algos")
    return [float(x) for x in scores]


def interval_on(card: Path) -> list[float]:
    """Score, low and high as a card states them."""
    (result,) = ModelCard.load(card).data.eval_results or []
    return [float(x) for x in re.findall(r"-?[\d.]+", str(result.metric_value))]


@pytest.mark.slow
def test_a_new_run_scores_in_another_checkout_what_its_card_says(
    clone: Path, tmp_path: Path
) -> None:
    words = ["--seeds", "4", "--total-timesteps", "20000", "--quiet", "--results", "r"]
    command = [sys.executable, str(ROOT / "algos/ppo.py"), *words]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    subprocess.run(command, cwd=tmp_path, env=environment, check=True, capture_output=True)
    (trained,) = (tmp_path / "r").glob("runs/*/*/*")
    assert run(trained, "--hub", tmp_path / "out") == 0
    shutil.rmtree(tmp_path / "r")
    scores = scores_in(clone, "ppo", tmp_path / "out")
    value, low, high = interval_on(tmp_path / "out" / "README.md")
    assert low < high
    assert low <= np.mean(scores) <= high
    assert np.mean(scores) == pytest.approx(value, abs=0.05)


@pytest.mark.slow
def test_a_published_policy_scores_in_another_checkout_what_is_published(
    clone: Path, tmp_path: Path
) -> None:
    """Of a run whose seeds differ: the median seed is in the interval, the worst one below it."""
    published = find_and_open(str(ROOT / "results/runs/Acrobot-v1/ppo/2abd3fc4"))
    assert run(published.path, "--hub", tmp_path / "out") == 0
    (median, worst) = read_about(tmp_path / "out" / POLICY)["seeds"]
    scores = scores_in(clone, "ppo", tmp_path / "out")
    of = dict(zip(published.seeds, load_result(published).final, strict=True))
    assert scores == pytest.approx([of[median], of[worst]], abs=0.5)
    value, low, high = interval_on(tmp_path / "out" / "README.md")
    assert scores[1] < low < scores[0] < high
    assert low < value < high
