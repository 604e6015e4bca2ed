"""Runs of language models for others: tracked, and exported as models of `transformers`."""

from __future__ import annotations

import copy
import json
import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
import transformers
from huggingface_hub import ModelCard
from torch import Tensor

from manyseeds.algos import ppo
from manyseeds.benchmarks import export
from manyseeds.benchmarks.store import results as chapter_results
from manyseeds.errors import UsageError
from manyseeds.llm_track import models, tasks
from manyseeds.llm_track.policies import HubModel
from manyseeds.record import RunFolder, is_finished, part_name, read_json
from manyseeds.runs import language_seeds
from manyseeds.runs.base import carry_out
from manyseeds.runs.checkpoints import CHECKPOINT
from manyseeds.runs.language_seeds import SeedsRun
from manyseeds.runs.parallel import Processes
from tests.benchmarks.test_export import run as run_export
from tests.foundation.test_track import (
    Scalars,
    by_step,
    check_same,
    installed,
    of_tensorboard,
    of_wandb,
)
from tests.llm_track.test_runs import (
    METHODS,
    Interrupted,
    config_of,
    interrupt_log,
    model,
    of_even_length,
)

__all__ = ["model"]  # a fixture

TRACKERS = [
    pytest.param(
        name,
        marks=pytest.mark.skipif(
            not installed(name), reason=f"{name} is not installed: pip install -e '.[{name}]'"
        ),
    )
    for name in ("tensorboard", "wandb")
]


@pytest.fixture(autouse=True)
def _small(few_samples: None, eager: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Few evaluation samples, and an accuracy in the place of the task's."""
    monkeypatch.setattr(tasks.Addition, "accuracy", of_even_length)


# ---- Tracking -------------------------------------------------------------------------------


def expected(part: Path) -> Scalars:
    """What the store itself says of a part."""
    found = {}
    for what, file in (("train", "metrics"), ("evaluation", "curve")):
        frame = pd.read_parquet(part / f"{file}.parquet")
        about = {"source", "algo", "task", "seed", "samples", "learn_s"}
        for name in set(frame.columns) - about:
            found[f"{what}/{name}"] = by_step(frame["samples"], frame[name])
    assert {"train/loss", "evaluation/pass@1"} <= set(found)
    return {name: values for name, values in found.items() if values}


def tracked(part: Path, seed: int) -> Scalars:
    """What the tracker's files in a part say."""
    if (part / "tensorboard").exists():
        return of_tensorboard(part / f"tensorboard/seed-{seed:03d}")
    (file,) = part.glob("wandb/offline-run-*/run-*.wandb")
    about, config, found = of_wandb(file)
    cell = "/".join(part.parts[-4:-1])
    assert about == {"project": "manyseeds", "group": cell, "name": f"{cell}/{seed}"}
    assert (config["seed"], config["group_size"]) == (seed, 4)
    return found


@pytest.mark.parametrize("tracker", TRACKERS)
def test_every_seed_of_a_language_model_is_tracked(
    tracker: str, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also what was learned before an interrupt."""
    monkeypatch.delenv("WANDB_MODE", raising=False)
    config = config_of("grpo", model, tmp_path, seeds=2, total_samples=64, track=tracker)
    parts = [RunFolder.of(config, "grpo").path / part_name([seed]) for seed in (0, 1)]
    with monkeypatch.context() as patch:
        interrupt_log(patch, 4)
        with pytest.raises(Interrupted):
            language_seeds.main(config, METHODS["grpo"].train, {})
    assert [path.name for path in parts[0].iterdir()] == [CHECKPOINT]
    language_seeds.main(config, METHODS["grpo"].train, {})
    for seed, part in enumerate(parts):
        assert is_finished(part)
        assert min(expected(part)["train/loss"]) == 16
        check_same(tracked(part, seed), expected(part))


# ---- Export ---------------------------------------------------------------------------------


def train(name: str, config: Any, seed: int = 0) -> tuple[Path, Any]:
    """A part and what was trained, as it is in memory."""
    folder = RunFolder.of(config, name).path
    part, run = folder / part_name([seed]), SeedsRun(config, [seed], folder, name)
    run.open([METHODS[name].train])
    trained = METHODS[name].train(config, run)
    run.finish(trained)
    run.close()
    if isinstance(trained, HubModel):
        return part, trained.model
    of_seed = copy.deepcopy(trained.template)
    of_seed.load_state_dict(trained.llama.state_of(0), strict=False)
    return part, of_seed


def logits(model: Any) -> Tensor:
    with torch.no_grad():
        found: Tensor = model(torch.arange(3, 11).view(2, 4)).logits
    return found


def code_of(folder: Path) -> str:
    """The Python code on a card, for its own folder."""
    (code,) = re.findall(r"```python\n(.*?)```", (folder / "README.md").read_text(), re.DOTALL)
    return str(code).replace("FOLDER", str(folder))


@pytest.mark.parametrize("rank", [0, 2])
def test_an_exported_language_model_is_the_one_that_was_trained(
    rank: int, model: Path, tmp_path: Path
) -> None:
    if rank:
        pytest.importorskip("peft")
    config = config_of(
        "grpo", model, tmp_path / "r", total_samples=32, lora_rank=rank, learning_rate=0.01
    )
    part, trained = train("grpo", config)
    folder = tmp_path / "out"
    assert run_export(part.parent, "--hub", folder) == 0
    loaded = transformers.AutoModelForCausalLM.from_pretrained(folder, use_safetensors=True)
    torch.testing.assert_close(logits(loaded), logits(trained), rtol=0, atol=1e-5 if rank else 0)
    start = transformers.AutoModelForCausalLM.from_pretrained(model)
    assert not torch.allclose(logits(loaded), logits(start), atol=1e-3)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    assert tokenizer.get_vocab() == models.tiny_tokenizer().get_vocab()
    assert not list(folder.glob("*.bin"))
    assert read_json(folder / "run.json")[0]["config"] == read_json(part / "config.json")["config"]
    assert len(pd.read_parquet(folder / "curve.parquet")) == 3

    # What the card says to do, and where the flags of the track take it.
    names: dict[str, Any] = {}
    exec(code_of(folder), names)
    assert torch.equal(logits(names["model"]), logits(loaded))
    again = config_of("sft", folder, tmp_path / "r")
    read, _ = models.load_model(again, torch.device("cpu"), Processes())
    assert torch.equal(logits(read), logits(loaded))


def test_the_card_of_a_language_model(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The median seed of three, the mean with its interval, and the verdict against TRL."""
    config = config_of("grpo", model, tmp_path / "r", seeds=3, total_samples=32)
    language_seeds.main(config, METHODS["grpo"].train, {})
    run = RunFolder.of(config, "grpo").path
    assert run_export(run, "--hub", tmp_path / "alone") == 0
    assert "no run of TRL" in (tmp_path / "alone" / "README.md").read_text()
    for seed in range(3):
        folder = RunFolder.of(config, "trl-grpo").path
        theirs = SeedsRun(config, [seed], folder, "trl-grpo", "trl")
        carry_out(config, METHODS["grpo"].train, theirs)
    monkeypatch.setattr(chapter_results, "FEWEST", 3)
    folder = tmp_path / "out"
    assert run_export(run, "--hub", folder) == 0
    card = ModelCard.load(folder / "README.md")
    assert card.data.library_name == "transformers"
    assert card.data.pipeline_tag == "text-generation"
    summaries = [read_json(run / part_name([k]) / "summary.json") for k in range(3)]
    final = [x["final"]["pass@1"] for x in summaries]
    (result,) = card.data.eval_results or []
    assert str(result.metric_value).startswith(f"{np.mean(final):.3f} [")
    assert result.metric_type == "pass@1"
    assert "Against TRL: undecided +0.000 " in card.text  # the same training twice
    (seed,) = map(int, re.findall(r"with seeds 0-2\. Weights of seed (\d)\.\n", card.text))
    assert final[seed] == sorted(final)[1]
    stored = run / part_name([seed]) / "model"
    for path in stored.iterdir():  # all of it: what `save_pretrained` writes
        assert (folder / path.name).read_bytes() == path.read_bytes()

    with pytest.raises(UsageError, match=r"has no policy\.safetensors"):
        ppo.load(f"hub:{folder}")
    baseline = RunFolder.of(config, "trl-grpo").path
    (stored / "pytorch_model.bin").touch()
    (stored / "modeling.py").symlink_to(model)
    capsys.readouterr()
    assert run_export(run, "--hub", tmp_path / "clean") == 0
    assert {x.name for x in (tmp_path / "clean").iterdir()} == {x.name for x in folder.iterdir()}
    said = capsys.readouterr().out
    assert said.startswith(f"left out: {stored}: modeling.py, pytorch_model.bin\n")
    (stored / "model.safetensors").unlink()
    for refused, said in ((baseline, "is a baseline's"), (run, "no weights that are safetensors")):
        assert run_export(refused, "--hub", tmp_path / "x") == 2
        error = capsys.readouterr().err
        assert said in error
        assert error.count("\n") == 1
        assert not (tmp_path / "x").exists()


def test_a_script_that_is_started_finds_what_the_user_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "x.py").write_text("import os, sys; sys.exit(os.environ['PYTHONPATH'])")
    monkeypatch.setattr(models, "ROOT", tmp_path)
    monkeypatch.setenv("PYTHONPATH", "theirs")
    with pytest.raises(UsageError, match=f"x: {tmp_path}{os.pathsep}theirs$"):
        models.run_command([str(tmp_path / "x.py")], "x")


def test_a_reward_model_is_exported_with_its_own_class(model: Path, tmp_path: Path) -> None:
    settings = {"prompts": 8, "group_size": 8, "total_samples": 128}
    config = config_of("reward_model", model, tmp_path / "r", **settings)
    part, trained = train("reward_model", config)
    folder = tmp_path / "out"
    assert run_export(part, "--hub", folder) == 0
    names: dict[str, Any] = {}
    exec(code_of(folder), names)
    assert torch.equal(names["model"].score.weight, trained.score.weight)
    assert trained.score.weight.abs().max() > 0
    assert ModelCard.load(folder / "README.md").data.pipeline_tag == "text-classification"
    (config_file,) = [x for x in folder.iterdir() if x.name == "config.json"]
    content = json.loads(config_file.read_text())
    config_file.write_text(json.dumps({**content, "architectures": ["LlamaModel"]}))
    with pytest.raises(UsageError, match="has a model of the class LlamaModel"):
        export.class_of(folder)
