"""Runs of the LLM track: exact resume, several processes, records, one-line errors."""

from __future__ import annotations

import itertools
import json
import math
import os
import re
import shlex
import shutil
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import huggingface_hub.constants
import numpy as np
import pandas as pd
import pytest
import safetensors.torch
import torch

from manyseeds.cli import identity, parse
from manyseeds.digest import ROOT
from manyseeds.errors import UsageError
from manyseeds.llm_track import (
    cispo,
    dapo,
    distill,
    dpo,
    dr_grpo,
    grpo,
    gspo,
    models,
    policies,
    process_grpo,
    reinforce_pp,
    reward_model,
    rlhf_ppo,
    rloo,
    sampling,
    sft,
    tasks,
)
from manyseeds.llm_track.policies import SeedAdamW
from manyseeds.record import STALE, RunFolder, is_finished, part_name, read_json, seal
from manyseeds.runs import language, set_aside
from manyseeds.runs.language import LanguageRun
from manyseeds.runs.language_seeds import SeedsRun, main
from manyseeds.runs.parallel import Processes
from tests.random_models import make_model, make_teacher, new_model

DATA = Path(__file__).parent / "data"
GSM8K = str(DATA / "gsm8k.jsonl")
PLAIN = str(DATA / "plain.jsonl")  # prompts and answers only
ALWAYS = 1e-9  # seconds between two checkpoints
TIMES = ["learn_s"]  # columns that differ between two runs of the same
METHODS: dict[str, Any] = {
    "sft": sft,
    "reward_model": reward_model,
    "rlhf_ppo": rlhf_ppo,
    "dpo": dpo,
    "grpo": grpo,
    "dr_grpo": dr_grpo,
    "dapo": dapo,
    "rloo": rloo,
    "reinforce_pp": reinforce_pp,
    "gspo": gspo,
    "cispo": cispo,
    "process_grpo": process_grpo,
    "distill": distill,
}

FAST = ("sft", "grpo")
SOME_SLOW = [x if x in FAST else pytest.param(x, marks=pytest.mark.slow) for x in METHODS]
SMALL = {"sft": {"batch_size": 16}, "dpo": {"batch_size": 8, "group_size": 4}}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model before any training."""
    return Path(make_model("tiny", tmp_path_factory.mktemp("model") / "random"))


@pytest.fixture(scope="module")
def qwen(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One that `transformers` computes."""
    return Path(make_model("qwen", tmp_path_factory.mktemp("model") / "qwen"))


def config_of(method: str, model: Path, results: Path, **settings: Any) -> Any:
    small = SMALL.get(method, {"prompts": 4, "group_size": 4})
    small |= {"teacher": make_teacher(model)} if method == "distill" else {}
    given = {"model": str(model), "results": str(results), "quiet": True, "total_samples": 128}
    given |= {"evaluations": 2, "checkpoint_interval": ALWAYS}
    return METHODS[method].Config(**{**small, **given, **settings})


def train(name: str, config: Any) -> Path:
    """Train seed 0 as the command does; the part."""
    main(config, METHODS[name].train, {})
    return RunFolder.of(config, name).path / part_name([0])


def weights(part: Path) -> dict[str, torch.Tensor]:
    return safetensors.torch.load_file(part / "model" / "model.safetensors")


def assert_same_weights(part: Path, other: Path) -> None:
    found, expected = weights(part), weights(other)
    assert all(torch.equal(found[key], expected[key]) for key in expected)


def of_even_length(task: tasks.Addition, problem: tasks.Problem, completion: str) -> float:
    """A reward that also random weights sometimes earn."""
    return float(len(completion) % 2 == 0)


@pytest.fixture
def small(few_samples: None, eager: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Few evaluation samples, an accuracy in the place of the task's, a checkpoint every step."""
    monkeypatch.setattr(tasks.Addition, "accuracy", of_even_length)


class Interrupted(Exception):
    """What stops a training in these tests."""


def interrupt(*args: Any, **options: Any) -> Any:
    raise Interrupted


def interrupt_log(
    patch: pytest.MonkeyPatch, k: int, error: type[BaseException] = Interrupted
) -> list[int]:
    """Interrupt trainings when they log for the k-th time; the samples of all calls so far."""
    real, calls = SeedsRun.log, list[int]()

    def log(self: SeedsRun, drawn: Any, *rest: Any) -> None:
        calls.append(self.samples + int(drawn))
        if len(calls) == k:
            raise error
        real(self, drawn, *rest)

    patch.setattr(SeedsRun, "log", log)
    return calls


def interrupted(config: Any, monkeypatch: pytest.MonkeyPatch, method: str) -> Path:
    """The part of a training by SFT that ended where its run was to call a method."""
    with monkeypatch.context() as patch:
        patch.setattr(LanguageRun if method == "write" else SeedsRun, method, interrupt)
        with pytest.raises(Interrupted):
            train("sft", config)
    return RunFolder.of(config, "sft").path / part_name([0])


@pytest.mark.parametrize("name", SOME_SLOW)
@pytest.mark.usefixtures("small")
def test_an_interrupted_training_goes_on_as_if_nothing_had_happened(
    name: str,
    model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Whatever it holds, and at the learning rates that a warm-up and a schedule would have had."""
    settings = {"warmup": 0.25, "lr_schedule": "cosine", "total_samples": 80, "quiet": False}
    settings |= {"process_grpo": {"iterations": 3}, "dapo": {"total_samples": 128}}.get(name, {})
    rates: list[float] = []
    step = SeedAdamW.step

    def spy(self: Any, lr: Any, *args: Any) -> Any:
        rates.append(float(lr))
        return step(self, lr, *args)

    monkeypatch.setattr(SeedAdamW, "step", spy)
    whole = train(name, config_of(name, model, tmp_path / "whole", **settings))
    expected, rates[:] = rates[:], []
    assert expected[0] == 0
    assert 0.8 * max(expected) > expected[-1] > 0
    config = config_of(name, model, tmp_path / "broken", **settings)
    with monkeypatch.context() as patch:
        calls = interrupt_log(patch, 4, KeyboardInterrupt)
        with pytest.raises(SystemExit, match="130"):
            train(name, config)
    part = RunFolder.of(config, name).path / part_name([0])
    assert not is_finished(part)
    assert (part / language.CHECKPOINT).exists()
    said = f"interrupted; the same command resumes from sample {calls[2]}\n"
    assert capsys.readouterr().err == said
    rates.clear()
    assert train(name, config) == part
    assert f"\ngoing on from sample {calls[2]}\n" in capsys.readouterr().out
    assert rates == expected[-len(rates) :]
    assert 0 < len(rates) < len(expected)  # not from the beginning
    assert is_finished(part)
    assert not (part / language.CHECKPOINT).exists()
    for file in ("curve.parquet", "metrics.parquet"):
        ours, theirs = (pd.read_parquet(p / file).drop(columns=TIMES) for p in (part, whole))
        pd.testing.assert_frame_equal(ours, theirs, check_exact=True)
    assert read_json(part / "transcripts.json") == read_json(whole / "transcripts.json")
    assert_same_weights(part, whole)


@pytest.mark.usefixtures("small")
def test_an_interruption_at_the_very_end_loses_nothing(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The checkpoint stays until the part is sealed."""
    config = config_of("sft", model, tmp_path)
    part = interrupted(config, monkeypatch, "write")
    with monkeypatch.context() as patch:
        patch.setattr(SeedsRun, "log", lambda *args: pytest.fail("a step was taken again"))
        assert train("sft", config) == part
    assert is_finished(part)
    assert len(pd.read_parquet(part / "metrics.parquet")) == 128 / 16


@pytest.mark.parametrize("other", ["settings", "weights"])
@pytest.mark.usefixtures("small")
def test_a_checkpoint_of_other_settings_is_not_used_but_kept(
    other: str,
    model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Nor one of a training that began with other weights in the same folder."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    start = tmp_path / "start"
    shutil.copytree(model, start)
    config = config_of("sft", start, tmp_path, name="a", learning_rate=1e-3)
    part = interrupted(config, monkeypatch, "finish")
    assert (part / language.CHECKPOINT).exists()
    if other == "settings":
        config = replace(config, learning_rate=1e-4)
    else:
        weights = safetensors.torch.load_file(start / "model.safetensors")
        scaled = {name: 1.1 * x for name, x in weights.items()}
        safetensors.torch.save_file(scaled, start / "model.safetensors", {"format": "pt"})
    assert interrupted(config, monkeypatch, "log") == part  # before it has a checkpoint of its own
    (kept,) = part.iterdir()
    assert f"it is of other settings; kept as {kept.name}, " in capsys.readouterr().err
    assert train("sft", replace(config, quiet=False)) == part
    assert "going on from" not in capsys.readouterr().out
    assert not kept.exists()
    assert_same_weights(part, train("sft", replace(config, name="b")))


@pytest.mark.usefixtures("small")
def test_a_damaged_checkpoint_is_a_line_and_a_fresh_start(
    model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """It does not block its run, and nothing of it is used."""
    config = config_of("sft", model, tmp_path / "broken")
    path = interrupted(config, monkeypatch, "finish") / language.CHECKPOINT
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    capsys.readouterr()
    part = train("sft", config)
    said = f"note: {path}: not used: it is damaged; the training starts over\n"
    assert capsys.readouterr().err == said
    assert_same_weights(part, train("sft", config_of("sft", model, tmp_path / "whole")))


@pytest.mark.parametrize("name", SOME_SLOW)
@pytest.mark.usefixtures("small")
def test_a_data_set_is_passed_through_without_replacement(
    name: str, qwen: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every pass takes each prompt once, in an order of its own, with random numbers of its own."""
    rows = [{"prompt": f"{k}?", "answer": k, "completion": "x"} for k in range(26)]
    path = tmp_path / "t.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    task = tasks.make(str(path))
    assert isinstance(task, tasks.JsonlTask)
    monkeypatch.setattr(tasks.JsonlTask, "accuracy", of_even_length)
    monkeypatch.setattr(dpo, "PROMPTS", 8)
    drawn: list[str] = []
    real = tasks.next_problems

    def listen(*args: Any) -> list[tasks.Problem]:
        found = real(*args)
        drawn.extend(p.prompt for p in found)
        return found

    monkeypatch.setattr(tasks, "next_problems", listen)
    sample, uniforms = sampling.sample, []

    def listen_to_samples(*args: Any, **settings: Any) -> sampling.Samples:
        uniforms.append(args[3])
        return sample(*args, **settings)

    monkeypatch.setattr(sampling, "sample", listen_to_samples)
    monkeypatch.setattr(SeedsRun, "evaluate_if_due", lambda *args: None)
    total = 64 if name == "sft" else 256
    own = {"supervision": "outcome"} if name == "process_grpo" else {}
    config = config_of(
        name, qwen, tmp_path, task=str(path), max_new_tokens=8, total_samples=total, **own
    )
    METHODS[name].train(config, SeedsRun(config, [0]))
    N = len(task.trained)
    passes = [drawn[i : i + N] for i in range(0, len(drawn), N)]
    assert len(passes) > 2
    assert all(sorted(x) == sorted(p.prompt for p in task.trained) for x in passes[:-1])
    assert len(set(passes[-1])) == len(passes[-1])
    assert passes[0] != passes[1]
    if name != "sft":
        rows = torch.cat(uniforms)
        assert len(rows.unique(dim=0)) == len(rows) >= 256  # no completion has another's numbers


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, [1.0, 1.0, 1.0, 1.0]),
        ({"warmup": 0.5}, [0.0, 0.5, 1.0, 1.0]),
        ({"lr_schedule": "linear"}, [1.0, 0.75, 0.5, 0.25]),
        ({"lr_schedule": "linear", "warmup": 0.5}, [0.0, 0.5, 1.0, 0.5]),
        ({"lr_schedule": "cosine"}, [1.0, (2 + 2**0.5) / 4, 0.5, (2 - 2**0.5) / 4]),
        ({"warmup": 1.0}, [0.0, 0.25, 0.5, 0.75]),
    ],
)
def test_learning_rates_by_hand(settings: dict[str, Any], expected: list[float]) -> None:
    config = language.LanguageConfig(**settings)
    found = [models.learning_rate(3e-4, k / 4, config) for k in range(4)]
    assert found == pytest.approx([3e-4 * x for x in expected])


@pytest.mark.parametrize(("before", "after"), [(8, 2), (2, 8)])
@pytest.mark.usefixtures("small")
def test_other_evaluations_after_an_interruption(
    before: int, after: int, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are no part of a run's identity; the curve still reaches the end."""
    with monkeypatch.context() as patch:
        interrupt_log(patch, 6)  # after 80 samples
        with pytest.raises(Interrupted):
            train("grpo", config_of("grpo", model, tmp_path, evaluations=before))
    part = train("grpo", config_of("grpo", model, tmp_path, evaluations=after))
    curve = list(pd.read_parquet(part / "curve.parquet")["samples"])
    assert curve == ([0, 16, 32, 48, 64, 128] if before == 8 else [0, 64, 80, 96, 112, 128])


@pytest.mark.usefixtures("small")
def test_rl_does_not_begin_with_what_was_learned_before(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tiny model is SFT's of seed 0: RL with seed 0 is not to see SFT's prompts again."""
    seen: list[tuple[str, ...]] = []
    real = tasks.Addition.train

    def spy(self: Any, rng: Any, n: int) -> Any:
        found = real(self, rng, n)
        seen.append(tuple(p.prompt for p in found))
        return found

    monkeypatch.setattr(tasks.Addition, "train", spy)
    steps = {}
    for name in ("sft", "reward_model", "grpo", "rlhf_ppo"):
        settings = {"batch_size": 4} if name == "sft" else {}
        config = config_of(name, model, tmp_path, total_samples=32, **settings)
        METHODS[name].train(config, SeedsRun(config, [0]))
        steps[name] = [x for x in seen if len(x) == 4]
        seen.clear()
    assert steps["grpo"] == steps["rlhf_ppo"]  # what is compared sees the same
    assert len({steps[name][0] for name in ("sft", "reward_model", "grpo")}) == 3
    assert not set(steps["sft"]) & set(steps["grpo"])


@pytest.mark.usefixtures("small")
def test_micro_batches_do_not_change_what_sft_learns(qwen: Path, tmp_path: Path) -> None:
    """The other methods' updates are compared to the bit, or nearly, in files of their own."""
    parts = []
    for size in (3, 64):
        sizes = {"micro_batch_size": size, "total_samples": 32}
        parts.append(train("sft", config_of("sft", qwen, tmp_path / f"{size}", **sizes)))
    few, all_at_once = (weights(part) for part in parts)
    for key in all_at_once:
        torch.testing.assert_close(few[key], all_at_once[key], rtol=0, atol=2e-4)
    losses = [pd.read_parquet(part / "metrics.parquet")["loss"] for part in parts]
    assert np.allclose(*losses, rtol=1e-3, atol=1e-5)


@pytest.mark.usefixtures("small", "pictures")
def test_seeds_that_other_code_has_trained_are_trained_anew(
    model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    config = config_of("grpo", model, tmp_path, seeds=2, total_samples=16)
    part = train("grpo", config)
    before = read_json(part / "DONE.json")
    folder = RunFolder(part.parent)
    assert folder.finished_seeds() == {0, 1}
    curves = [pd.read_parquet(x / "curve.parquet")["length"] for x in folder.parts()]
    assert curves[0].iloc[0] == curves[1].iloc[0]  # the same model at the beginning
    assert curves[0].iloc[-1] != curves[1].iloc[-1]
    train("grpo", config)
    assert "Finished already: 2 seeds" in capsys.readouterr().out
    with monkeypatch.context() as patch:
        patch.setattr(set_aside, "code_digest", lambda origins: "of an edited file")
        train("grpo", replace(config, seeds=1))
    (aside,) = (part.parent / STALE).iterdir()
    said = capsys.readouterr().out
    assert "seed 0 was trained by other code" in said
    assert f"moved to {aside}\n" in said
    assert read_json(aside / part.name / "DONE.json") == before
    assert len(folder.parts()) == 2


@pytest.mark.parametrize("name", SOME_SLOW)
@pytest.mark.usefixtures("small")
def test_gradients_are_clipped_to_a_norm_of_1_and_give_no_step_if_0_or_not_finite(
    name: str, qwen: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each optimizer for itself: a critic learns where the policy has nothing to learn."""
    clip, step = torch.nn.utils.clip_grad_norm_, torch.optim.AdamW.step
    planned = itertools.cycle([np.nan, 1e3, 0.0, np.inf, 1e6])
    large, norms = [], []

    def spoilt(parameters: Any, *rest: Any) -> Any:
        """Clip, by the real function, a gradient with an element that is planned."""
        parameters = list(parameters)
        if parameters[0].grad is not None:
            bad = next(planned)
            for p in parameters:
                p.grad *= float(bad != 0)
            parameters[0].grad.view(-1)[0] = bad
            large.extend([bad] if 0 < bad < np.inf else [])
        return clip(parameters, *rest)

    def spy(self: Any, *args: Any) -> Any:
        grads = [p.grad.flatten() for group in self.param_groups for p in group["params"]]
        norms.append(torch.cat(grads).norm().item())
        return step(self, *args)

    config = config_of(name, qwen, tmp_path)
    monkeypatch.setattr(torch.nn.utils, "clip_grad_norm_", spoilt)
    monkeypatch.setattr(torch.optim.AdamW, "step", spy)
    METHODS[name].train(config, SeedsRun(config, [0]))
    assert len(large) > 1
    assert norms == pytest.approx([1.0] * len(large), abs=1e-4)


LAUNCH = """
import importlib, os
from manyseeds.llm_track import evaluation, tasks
from manyseeds.runs.language_seeds import main
print("one of " + os.environ["WORLD_SIZE"])
tasks.Addition.accuracy = lambda self, problem, completion: float(len(completion) % 2 == 0)
evaluation.curve_size = evaluation.final_size = lambda *of: (4, 2)
decode = evaluation.decode
evaluation.decode = lambda t, drawn: print("evaluates", drawn.lengths.numel()) or decode(t, drawn)
for name, settings in {runs}.items():
    method = importlib.import_module(f"manyseeds.llm_track.{{name}}")
    main(method.Config(**settings), method.train, {{}})
"""


@pytest.fixture(scope="module")
def of_two_processes(qwen: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The parts of all methods, each trained by the same two processes, one after another."""
    folder = tmp_path_factory.mktemp("two")
    configs = {name: config_of(name, qwen, folder) for name in METHODS}
    script = folder / "train.py"
    script.write_text(LAUNCH.format(runs={name: vars(x) for name, x in configs.items()}))
    # As `accelerate launch` does on GPUs; on CPUs it would start one process.
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc_per_node", "2", str(script)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.count("one of 2") == 2
    sizes = [int(x) for x in re.findall(r"^evaluates (\d+)$", done.stdout, re.MULTILINE)]
    assert set(sizes) == {2, 4}  # half of the likeliest, and of two samples of each
    return {name: RunFolder.of(x, name).path / part_name([0]) for name, x in configs.items()}


@pytest.mark.slow
@pytest.mark.parametrize("name", METHODS)
@pytest.mark.usefixtures("small")
def test_two_processes_train_what_one_does(
    name: str, of_two_processes: dict[str, Path], qwen: Path, tmp_path: Path
) -> None:
    found = train(name, config_of(name, qwen, tmp_path)), of_two_processes[name]
    one, two = (pd.read_parquet(part / "metrics.parquet") for part in found)
    assert np.allclose(one["loss"], two["loss"], rtol=1e-3, atol=1e-5)
    assert np.allclose(one["grad_norm"], two["grad_norm"], rtol=1e-3)
    for key, value in weights(found[0]).items():
        torch.testing.assert_close(weights(found[1])[key], value, rtol=0, atol=2e-4)
    before = [read_json(part / "summary.json")["initial"] for part in found]
    assert before[0] == pytest.approx(before[1], nan_ok=True, rel=1e-3, abs=1e-4)


@pytest.mark.parametrize(
    ("name", "flags", "message"),
    [
        ("grpo", "--task adition", "--task adition: unknown task; did you mean addition?"),
        ("grpo", "--task no/such.jsonl", "--task no/such.jsonl: there is no such file"),
        ("grpo", "--task ''", "--task '': must name a task"),
        ("grpo", "--model ''", "--model '': must name a model"),
        ("grpo", "--seeds 1e9", "--seeds 1000000000: must be a number from 1 to 100000"),
        ("grpo", "--group-size 1", "--group-size 1: must be"),
        ("grpo", "--temperature 0", "--temperature 0.0: must be"),
        ("grpo", "--no-rules", "--no-rules: then there must be a --reward or"),
        ("grpo", "--minibatches 1000", "--minibatches 1000: there are only 256 samples"),
        ("process_grpo", "--iterations 2 --lora-rank 4", "--iterations:"),
        (
            "process_grpo",
            "--iterations 2 --renewed reference",
            "--renewed reference: needs --iterations and a --reward-model",
        ),
        (
            "process_grpo",
            "--reward-model x --renewed reward_model",
            "--renewed reward_model: needs",
        ),
        ("reinforce_pp", "--baseline group", "--baseline group: needs --group-size 2"),
        ("distill", "--teacher tiny-reward", "--teacher tiny-reward: is a reward model"),
        ("distill", "--teacher ''", "--teacher '': must name a teacher"),
        ("distill", "--teacher /no/x", "--teacher /no/x: there is no such folder"),
        ("rloo", "--kl-estimator k4", "--kl-estimator"),
        ("dapo", "--overlong-cache 33", "--overlong-cache 33: completions have 32 tokens"),
        ("process_grpo", f"--task {GSM8K}", "--supervision process:"),
        (
            "process_grpo",
            "--no-rules --reward-model tiny-reward",
            "--supervision process: rewards",
        ),
        ("grpo", "--grader math-verify", "--grader math-verify: addition has rules of its own"),
        (
            "sft",
            f"--task {PLAIN}",
            "--model tiny-base: made for addition, mixed, countdown, rambling, checking, not for "
            f"--task {PLAIN}; {PLAIN}: line 2: has no completion to learn from, line 3: ",
        ),
        ("sft", f"--demonstrations {PLAIN}", f"{PLAIN}: line 1: has no completion to learn from"),
        ("sft", "--demonstrations x.jsonl", "--demonstrations x.jsonl: there is no such"),
        ("sft", "--model tiny-reward", "--model tiny-reward: is a reward model"),
        ("grpo", "--model tiny-reward", "--model tiny-reward: is a reward model"),
        ("dpo", "--preferences ~nobody-here/x", "--preferences ~nobody-here/x: "),
        ("dpo", "--preferences x.jsonl", "--preferences x.jsonl: there is no such file"),
        ("reward_model", "--lora-rank 4", "--lora-rank 4: a reward model is trained whole"),
        ("reward_model", "--group-size 1", "--group-size 1: must be"),
        ("rlhf_ppo", "--no-rules", "--no-rules: then there must be a --reward or"),
        ("rlhf_ppo", "--prompts 3", "--minibatches 4: there are only 3 samples"),
        ("rlhf_ppo", "--gae-lambda 1.5", "--gae-lambda 1.5: must be"),
        ("process_grpo", "--iterations 201", "--iterations 201: there are only 200 steps"),
        ("grpo", "--model ~nobody-here/x", "--model ~nobody-here/x: "),
        ("grpo", f"--model {'x' * 300}", f"--model {'x' * 80}: "),
        ("dapo", "--model nobody/nothing-at-all", "--model nobody/nothing-at-all: "),
        ("dapo", "--model nothing-at-all", "--model nothing-at-all: "),
        ("dpo", "--model /no/such/folder", "--model /no/such/folder: there is no such folder"),
        ("grpo", "--model Tiny", "--model Tiny: there is no such folder; did you mean tiny?"),
        ("rlhf_ppo", "--reward-model /no/x", "--reward-model /no/x: there is no such folder"),
        ("grpo", "--reward-model tiny", "--reward-model tiny: is no reward model"),
        ("sft", "--lora-rank 99999", "--lora-rank 99999: must be at most the width, 64"),
        ("dapo", "--drop-long-rows", "--drop-long-rows: addition has no rows of a data set"),
        ("grpo", f"--task {GSM8K}", "--model tiny: made for addition, mixed, countdown,"),
    ],
)
def test_bad_input_is_one_line(
    name: str,
    flags: str,
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    results, method = tmp_path / "results", METHODS[name]
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)

    def command() -> None:
        config = parse(
            method.Config, method.PRESETS, "", ["--results", str(results), *shlex.split(flags)]
        )
        main(config, method.train, method.PRESETS)

    with pytest.raises(SystemExit, match="2"):
        command()
    error = capsys.readouterr().err
    assert error.startswith(f"error: {message}")
    assert error.count("\n") == 1
    assert not results.exists()


@pytest.mark.parametrize(
    ("name", "samples", "settings", "at", "what"),
    [
        ("sft", 128, {"learning_rate": 3e38}, 32, "loss"),
        ("sft", 16, {"learning_rate": 3e38}, 16, "entropy"),  # in the last step
        ("dpo", 128, {"learning_rate": 3e38}, 24, "loss"),
        ("reward_model", 128, {"learning_rate": 3e38}, 32, "loss"),
        *((x, 32, {"reward_model": "", "format_weight": 0.0}, 16, "reward")
          for x in ("grpo", "dr_grpo", "rlhf_ppo")),
        ("dapo", 32, {"reward_model": "", "dynamic_sampling": False}, 16, "reward"),
    ],
)  # fmt: skip
@pytest.mark.usefixtures("small")
def test_what_is_not_finite_is_a_divergence(
    name: str, samples: int, settings: dict[str, Any], at: int, what: str, qwen: Path,
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    if "reward_model" in settings:
        # Finite weights, but not finite scores.
        monkeypatch.setattr(sampling, "scores", lambda model, x: x.lengths * math.nan)
        settings = {**settings, "reward_model": make_model("reward model", tmp_path / "judge")}
    config = config_of(name, qwen, tmp_path, total_samples=samples, **settings)
    assert read_json(train(name, config) / "summary.json")["diverged"] == at
    (note,) = capsys.readouterr().err.splitlines()
    assert note.startswith(f"note: seed 0 diverged at {at} samples: its {what} is nan")
    assert note.endswith(f"; see --reward-model {settings.get('reward_model')}") == (
        what == "reward"
    )


@pytest.mark.parametrize(("flag", "kind"), [("model", "tiny"), ("reward_model", "reward model")])
def test_a_model_that_is_not_finite_is_refused(
    flag: str, kind: str, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = Path(make_model(kind, tmp_path / "x"))
    tensors = safetensors.torch.load_file(folder / "model.safetensors")
    next(iter(tensors.values()))[0, 0] = math.nan
    safetensors.torch.save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    config = replace(config_of("grpo", model, tmp_path / "results"), **{flag: str(folder)})
    line = refused("grpo", config, capsys)
    assert (
        line == f"error: --{flag.replace('_', '-')} {folder}: has weights that are NaN or infinite"
    )


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("grpo", "none of the groups have right and wrong completions; try SFT first"),
        ("rlhf_ppo", "none of the steps have right and wrong completions; try SFT first"),
    ],
)
@pytest.mark.usefixtures("few_samples")
def test_a_run_without_a_signal_says_so(
    name: str, text: str, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    size = {"group_size": 1, "prompts": 16} if name == "rlhf_ppo" else {}
    config = config_of(name, model, tmp_path, total_samples=16, **size)
    train(name, config)
    assert text in " ".join(capsys.readouterr().out.replace("│", " ").split())


NONE = "none of the steps have right and wrong completions"


@pytest.mark.parametrize(
    ("metrics", "settings", "text"),
    [
        ({"all_solved": [0.5, 0.0], "all_failed": [0.5, 0.5]}, {"group_size": 4}, "25% of the g"),
        ({"accuracy": [0.0, 0.5]}, {"group_size": 1}, "50% of the steps have right and"),
        ({"accuracy": [1.0]}, {"group_size": 4}, "none of the steps"),  # TRL's
        ({"all_failed": [1.0]}, {"group_size": 4, "rules": False}, ""),
        ({"accuracy": [0.0]}, {"group_size": 1, "answer": "last"}, f"{NONE}; look at completions"),
        ({"accuracy": [0.0]}, {"group_size": 1, "answer": "tags"}, f"{NONE}; try SFT first, or"),
        ({"accuracy": [1.0]}, {"group_size": 1, "answer": "boxed"}, f"{NONE}; try SFT first, or"),
        ({"pairs": [0, 0]}, {}, "none of the steps have a pair"),
        ({"pairs": [3, 0]}, {}, "50% of the steps have a pair"),
        ({"loss": [0.5]}, {}, ""),
    ],
)
def test_how_much_of_the_samples_is_a_signal(
    metrics: dict[str, list[float]], settings: dict[str, Any], text: str
) -> None:
    given = {**({"rules": True} if "group_size" in settings else {}), **settings}
    found = language.signal_of(pd.DataFrame(metrics), SimpleNamespace(**given))
    assert found.startswith(text)
    assert bool(found) == bool(text)
    assert ("--answer and --instruction" in found) == ("look at" in text)


@pytest.mark.parametrize("answer", ["tags", "last"])
def test_without_a_signal_own_data_may_lack_an_instruction(answer: str) -> None:
    """Or have a wrong one: whatever the answer's marks."""
    config = SimpleNamespace(rules=True, group_size=1, answer=answer)
    found = language.signal_of(pd.DataFrame({"accuracy": [0.0]}), config, own_data=True)
    assert "--answer and --instruction, or try SFT first" in found


def test_the_signal_without_rules_is_that_of_steps() -> None:
    config, metrics = SimpleNamespace(rules=False, group_size=4), pd.DataFrame({"reward": [1.0]})
    found = language.signal_of(metrics, config, [[True, False], [False, False]])
    assert found == "25% of the steps have a group of different rewards"
    found = language.signal_of(metrics, config, [[False], [False]])
    assert found.startswith("none of the steps have a group of different rewards: there was")


@pytest.mark.usefixtures("few_samples")
def test_sft_learns_from_given_demonstrations_and_nothing_else(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each once before any twice; the file's content is part of the run's name."""
    path = tmp_path / "right.jsonl"
    prompts = [p for k in range(20) if not tasks.held_out(p := f"1{k % 10}+{k + 20}=")][:8]
    rows = [{"prompt": p, "answer": k, "completion": f"so {k}"} for k, p in enumerate(prompts)]
    path.write_text("\n".join(json.dumps(row) for row in rows))
    settings = {"batch_size": 4, "total_samples": 16, "demonstrations": str(path)}
    config = config_of("sft", model, tmp_path / "results", task="addition", **settings)
    learned = []
    kept = sampling.from_texts

    def from_texts(tokenizer: Any, task: Any, prompts: Any, texts: Any, *rest: Any) -> Any:
        learned.append(list(texts))
        return kept(tokenizer, task, prompts, texts, *rest)

    monkeypatch.setattr(sampling, "from_texts", from_texts)
    main(config, sft.train, {})
    both = [sorted(learned[i] + learned[i + 1]) for i in (0, 2)]
    assert both == [[f"so {k}" for k in range(8)]] * 2
    before = RunFolder.of(config, "sft").path
    path.write_text("\n".join(json.dumps(row) for row in rows[1:]))
    assert RunFolder.of(config, "sft").path != before


@pytest.mark.parametrize("name", METHODS)
def test_a_batch_that_the_processes_do_not_divide_is_one_line(
    name: str, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Groups stay whole: prompts must be divisible, not just samples. Before anything begins."""
    settings = {"sft": {"batch_size": 15}, "dpo": {}}.get(name, {"prompts": 3, "group_size": 6})
    size = 5 if name == "dpo" else 2  # its pairs are made from 64 prompts at a time
    config = config_of(name, model, Path("nowhere"), **settings)
    run = SeedsRun(config, [0])
    run.processes.size = size
    monkeypatch.setattr(models, "load_model", lambda *args: pytest.fail("the model was loaded"))
    with pytest.raises(UsageError, match=f"--num_processes {size}: does not divide a batch"):
        METHODS[name].train(config, run)


@pytest.mark.parametrize("field", ["model", "reward_model"])
def test_other_weights_in_a_folder_are_another_run(
    field: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also in the `model` of a finished part, which is what is read of it."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    part = tmp_path / "part"
    (part / "model").mkdir(parents=True)

    def name() -> str:
        return RunFolder.of(grpo.Config(**{field: str(part)}), "grpo").path.name

    (part / "model/model.safetensors").write_bytes(b"1")
    first = name()
    (part / "DONE.json").write_text("{}")
    assert name() == first
    (part / "model/model.safetensors").write_bytes(b"22")
    assert name() != first
    (part / "model/model.safetensors").write_bytes(b"1")
    assert name() == first


SIZES = {
    "hidden_size": (60_000, "describes"),
    "vocab_size": (10**9, "describes"),
    "num_hidden_layers": (900, "describes"),
    "max_position_embeddings": (2**70, "--model"),
    "layer_types": (["full_attention"] * 10**4, "at most"),
}


@pytest.mark.parametrize("field", SIZES)
def test_a_model_much_larger_than_its_files_is_refused(
    field: str, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`transformers` would make what the files lack."""
    from transformers import AutoModelForCausalLM

    value, reason = SIZES[field]
    shutil.copytree(model, tmp_path / "x")
    read = AutoModelForCausalLM.from_pretrained
    models.check_sizes(tmp_path / "x", AutoModelForCausalLM, "--model")
    config = read_json(tmp_path / "x/config.json")
    (tmp_path / "x/config.json").write_text(json.dumps({**config, field: value}))
    monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", None)
    with pytest.raises(UsageError, match=reason):
        models.read(str(tmp_path / "x"), AutoModelForCausalLM, "--model")
    assert read


def test_the_model_of_a_run_is_that_of_its_only_finished_seed(tmp_path: Path) -> None:
    one, two = (tmp_path / f"seeds-00{seed}-00{seed}" for seed in (0, 1))
    for part in (one, two):
        (part / "model").mkdir(parents=True)
        (part / "config.json").write_text("{}")
        (part / "model/model.safetensors").write_text("weights")
    seal(one, ["model"], "model")
    assert tasks.model_folder(tmp_path, "--model") == one / "model"
    assert tasks.model_folder(one, "--model") == one / "model"
    seal(two, ["model"], "model")
    with pytest.raises(UsageError, match=r"--model .*: has 2 seeds; name one, as .*seeds-000-000"):
        tasks.model_folder(tmp_path, "--model")
    (two / "model/model.safetensors").write_text("zeroed.")
    for _ in range(2):
        with pytest.raises(UsageError, match="has no weights"):
            tasks.model_folder(two, "--model")
        shutil.rmtree(two / "model", ignore_errors=True)
    for name in ("config.json", "model.safetensors"):  # a model that has runs beside it
        (tmp_path / name).write_text("{}")
    assert tasks.model_folder(tmp_path, "--model") == tmp_path


def test_a_hubs_revision_is_the_hubs_or_that_of_the_copy_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tiny models are made by code, which has its digest."""
    shas = ["abc"]
    file = tmp_path / "models--org--name/snapshots/1f2e3d/config.json"

    def model_info(self: Any, model: str, timeout: float) -> Any:
        if not shas:
            raise OSError("no network")
        return SimpleNamespace(sha={"org/name": shas.pop()}[model])

    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", model_info)
    monkeypatch.setattr(huggingface_hub, "try_to_load_from_cache", lambda *args: str(file))
    revision = tasks.hub_revision.__wrapped__
    monkeypatch.setattr(tasks, "hub_revision", revision)
    assert grpo.Config(model="tiny").contents() == {}
    assert grpo.Config(model="org/name").contents() == {"model_content": "abc"}
    assert revision("org/name") == "1f2e3d"
    monkeypatch.setattr(huggingface_hub, "try_to_load_from_cache", lambda *args: None)
    assert revision("org/name") == ""


def test_other_content_of_a_file_is_another_run(tmp_path: Path) -> None:
    """Of a file with preferences or problems, or of train.jsonl and test.jsonl in a folder."""
    path = tmp_path / "x.jsonl"
    problems = [json.dumps({"prompt": f"{k}+1", "answer": k + 1}) for k in range(8)]

    def of_preferences(text: str) -> Path:
        path.write_text(json.dumps({"prompt": "p", "chosen": text, "rejected": "c"}) + "\n")
        return RunFolder.of(dpo.Config(preferences=str(path)), "dpo").path

    def of_task(place: Path, **files: list[str]) -> Path:
        place.parent.mkdir(exist_ok=True)
        for name, rows in files.items():
            (place / f"{name}.jsonl" if place.is_dir() else place).write_text("\n".join(rows))
        tasks.named.cache_clear()
        return RunFolder.of(grpo.Config(task=str(place), model="x"), "grpo").path

    assert of_preferences("a") != of_preferences("b")
    assert of_preferences("a") == of_preferences("a")
    assert of_task(path, rows=problems) != of_task(path, rows=problems[1:])
    folder = tmp_path / "folder"
    folder.mkdir()
    there = of_task(folder, train=problems)
    assert of_task(folder, notes=["{}"]) == there
    others = [of_task(folder, test=problems[:2])]
    for k in (2, 3):  # the last rows, moved from one file to the other
        others.append(of_task(folder, train=problems[:-k], test=["", *problems[-k:]]))
    assert len({there, *others}) == 4
    assert "task_content" not in identity(grpo.Config(task="addition"))


def test_the_tiny_model_is_made_by_one_process_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two commands that are started together on fresh results: one waits for the other."""
    made = []

    def make_slowly(task: tasks.Task, base: models.Base, seeds: Any, folders: Any) -> None:
        time.sleep(0.2)
        made.extend(folders)
        for folder in folders:
            folder.mkdir(parents=True)
            (folder / "config.json").write_text("{}")

    monkeypatch.setattr(models, "make_bases", make_slowly)
    config = grpo.Config(model="tiny-base", results=str(tmp_path))
    asked = (config.model, config, Processes())
    threads = [threading.Thread(target=models.find_made, args=asked) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 1


def refused(name: str, config: Any, capsys: pytest.CaptureFixture[str]) -> str:
    """The line that a command ends with before anything is made."""
    tasks.named.cache_clear()  # files are read once
    with pytest.raises(SystemExit, match="2"):
        train(name, config)
    (line,) = capsys.readouterr().err.splitlines()
    assert not list(Path(config.results).rglob("config.json"))
    return line


PREFERENCES = [
    {"prompt": "1+1=", "chosen": "2", "rejected": "a-longer-one"},
    {"prompt": "9" * 250, "chosen": "2", "rejected": "3"},
]
SHORT = [{"prompt": f"{k}", "answer": k, "completion": "short"} for k in range(2000)]
LONG_PROMPT = {"prompt": "9" * 230, "answer": 1, "completion": "short"}
LONG_COMPLETION = {"prompt": "1", "answer": 1, "completion": "long" * 8}
TOO_LONG = "too long for --max-new-tokens {} in the context of 256 tokens of"


CUT, LONG = "line 1: a completion of 13 tokens", "line 2: a prompt of 250 tokens"


@pytest.mark.parametrize(
    ("name", "field", "rows", "tokens", "message"),
    [
        # A completion that is cut has lost its end: it is not what was preferred.
        *(
            (name, "preferences", PREFERENCES, 12, f"{CUT}, {LONG}: {TOO_LONG.format(12)}")
            for name in ("dpo", "reward_model")
        ),
        ("dpo", "preferences", PREFERENCES, 13, f"{LONG}: {TOO_LONG.format(13)}"),
        # One row among thousands.
        (
            "grpo",
            "task",
            [*SHORT, LONG_PROMPT],
            30,
            f"line 2001: a prompt of 338 tokens: {TOO_LONG.format(30)}",
        ),
        (
            "sft",
            "task",
            [*SHORT, LONG_COMPLETION, {**SHORT[0], "prompt": "9" * 200}],
            30,
            "line 2001: a completion of 33 tokens, line 2002: a prompt of 308 tokens: too long",
        ),
        # The tiny model without any training has no right answers to compare.
        ("reward_model", None, [], 4, "of no held-out prompt it has both right and wrong"),
    ],
)
def test_what_does_not_fit_is_one_line(
    name: str, field: str | None, rows: Any, tokens: int, message: str, model: Path,
    tmp_path: Path, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    settings: dict[str, Any] = {"max_new_tokens": tokens, "total_samples": 64}
    if field:
        settings[field] = str(tmp_path / "rows.jsonl")
        Path(settings[field]).write_text("".join(json.dumps(x) + "\n" for x in rows))
    line = refused(name, config_of(name, model, tmp_path / "results", **settings), capsys)
    assert message in line
    if field:
        assert line.startswith(f"error: {settings[field]}: line ")
        assert line.endswith("; --drop-long-rows leaves such rows out")


def test_rows_that_are_too_long_are_left_out(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of what is learned from and of what is evaluated; the note says how many."""
    path = tmp_path / "rows.jsonl"
    rows = [
        *SHORT[:30],
        LONG_PROMPT,
        LONG_COMPLETION,
        *({**LONG_PROMPT, "prompt": f"{n} " + "9" * 200} for n in range(30)),
    ]
    assert any(tasks.held_out(row["prompt"]) for row in rows[32:])
    path.write_text("".join(json.dumps(x) + "\n" for x in rows))
    settings = {"task": str(path), "max_new_tokens": 30, "drop_long_rows": True}
    config = config_of("sft", model, tmp_path / "results", **settings)
    config.check_request()
    assert capsys.readouterr().err == "note: --drop-long-rows: left out 32 of 62 rows\n"
    policy, tokenizer = models.load_model(config, torch.device("cpu"), Processes())
    task = models.task_of(config, policy.config, tokenizer)
    source = sft.source_of(config, task, policy, tokenizer)
    kept = [*source.trained_on(), *task.test(100)]
    assert sorted(p.prompt for p in kept) == sorted(row["prompt"] for row in SHORT[:30])
    assert identity(config)["drop_long_rows"] is True


@pytest.mark.parametrize("model", ["tiny", "tiny-base"])
@pytest.mark.parametrize("name", METHODS)
def test_beyond_the_context_nothing_is_made(
    name: str, model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The tiny models take a while: their context is known before."""
    line = refused(name, config_of(name, Path(model), tmp_path, max_new_tokens=251), capsys)
    assert line == (
        f"error: --max-new-tokens 251 in the context of 256 tokens of {model}: does not fit a "
        "prompt of 6 tokens"
    )


def test_what_is_missing_of_the_models_is_made_by_one_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tiny is one model for all seeds, the reward model one for each."""
    trained: list[tuple[str, ...]] = []

    def run_script(script: str, config: Any, results: Path, *flags: str) -> None:
        trained.append((script, *flags))
        (first, count) = (int(flags[flags.index(x) + 1]) for x in ("--first-seed", "--seeds"))
        for seed in range(first, first + count):
            part = results / "runs" / "addition" / script.removesuffix(".py") / flags[1]
            (part / f"seeds-{seed:03d}-{seed:03d}").mkdir(parents=True)

    monkeypatch.setattr(models, "run_script", run_script)
    monkeypatch.setattr(models, "is_finished", lambda part, with_weights: part.is_dir())

    def parts(name: str, seeds: list[int], **settings: Any) -> list[str]:
        config = grpo.Config(results=str(tmp_path), **settings)
        found = models.find_made(name, config, Processes(), seeds)
        return ["/".join(folder.parts[-4:-1]) for folder in found]

    of_zero = "sft/tiny-own/seeds-000-000"
    assert parts("tiny", [0, 7]) == [of_zero] * 2
    own = ("--name", "tiny-own", "--initial-per-seed")
    assert trained == [("sft.py", *own, "--first-seed", "0", "--seeds", "1")]
    of_one = of_zero.replace("000", "001")
    assert parts("tiny", [1, 0, 2, 7], initial_per_seed=True)[:2] == [of_one, of_zero]
    assert trained[1:] == [
        ("sft.py", *own, "--first-seed", "1", "--seeds", "2"),
        ("sft.py", *own, "--first-seed", "7", "--seeds", "1"),
    ]
    name = "reward_model/tiny-reward"
    assert parts(tasks.REWARD, [3, 4]) == [f"{name}/seeds-{x:03d}-{x:03d}" for x in (3, 4)]
    assert parts(tasks.REWARD, [3], initial_per_seed=True) == [f"{name}-own/seeds-003-003"]
    begun = ("reward_model.py", "--name")
    assert trained[3:] == [
        (*begun, "tiny-reward", "--first-seed", "3", "--seeds", "2"),
        (*begun, "tiny-reward-own", "--initial-per-seed", "--first-seed", "3", "--seeds", "1"),
    ]


def test_a_seed_may_have_an_initial_model_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Made with that seed, down to its base; alone and in a batch it is the same one, of seed 0 the
    one that all share otherwise."""
    for base in models.BASES:
        monkeypatch.setitem(models.BASES, base, replace(models.BASES[base], steps=2))
    settings: dict[str, Any] = {"model": "tiny-base", "results": str(tmp_path), "quiet": True}
    own = grpo.Config(initial_per_seed=True, **settings)

    def weights(config: grpo.Config, *seeds: int) -> torch.Tensor:
        run = SeedsRun(config, seeds)
        return policies.load_policy(config, run).tensors()["parameters"]

    together = weights(own, 0, 3)
    assert not torch.equal(together[0], together[1])
    alone = replace(own, results=str(tmp_path / "alone"))
    assert torch.equal(together[1:], weights(alone, 3))
    monkeypatch.setattr(models, "AT_ONCE", 1)
    apart = replace(own, results=str(tmp_path / "apart"))
    assert torch.equal(together, weights(apart, 0, 3))
    shared = weights(grpo.Config(**{**settings, "results": str(tmp_path / "shared")}), 0, 3)
    assert torch.equal(shared[0], shared[1])
    assert torch.equal(shared[0], together[0])

    with pytest.raises(UsageError, match="--initial-per-seed: --model x is one model"):
        grpo.Config(model="x", initial_per_seed=True)


# ---- Rates of models that were not made here ---------------------------------------------------


@pytest.mark.parametrize(
    ("name", "flags", "rates", "said"),
    [
        ("grpo", "", (1e-6,), "--learning-rate 1e-06"),
        ("grpo", "--lora-rank 2", (1e-5,), "--learning-rate 1e-05"),
        ("sft", "", (2e-5,), "--learning-rate 2e-05"),
        ("rlhf_ppo", "", (1e-6, 1e-5), "--learning-rate 1e-06, --critic-learning-rate 1e-05"),
        ("rlhf_ppo", "--learning-rate 1e-3", (1e-3, 1e-5), "--critic-learning-rate 1e-05"),
        ("process_grpo", "", (1e-6, 1e-5), "--learning-rate 1e-06, --reward-learning-rate 1e-05"),
        ("grpo", "--learning-rate=2e-3", (2e-3,), ""),
    ],
)
def test_a_model_of_other_tokens_has_other_rates(
    name: str, flags: str, rates: tuple[float, ...], said: str, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    tokenizer, model = models.tiny_tokenizer(), new_model("qwen")
    tokenizer.add_tokens(["one more"])
    model.resize_token_embeddings(len(tokenizer), mean_resizing=False)
    folder = tmp_path / "model"
    models.save(model, tokenizer, folder)
    words = ["--model", str(folder), *flags.split()]
    capsys.readouterr()
    config = parse(METHODS[name].Config, METHODS[name].PRESETS, args=words)
    others = (f"{x}_learning_rate" for x in ("critic", "reward"))
    other = next((getattr(config, x) for x in others if hasattr(config, x)), None)
    assert (config.learning_rate, other)[: len(rates)] == rates
    note = f"note: {said}: the default for --model {folder}\n" if said else ""
    assert capsys.readouterr().err == note


def test_models_of_ours_keep_their_rates(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By name, and by the folder of one that was trained from them."""
    for words in (["--model", str(model)], ["--model", "tiny-base"], ["--model", "/no/such"], []):
        assert parse(grpo.Config, grpo.PRESETS, args=words).learning_rate == 3e-4
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("ACCELERATE_USE_FSDP", "true", "accelerate: FSDP is not done here; TRL and verl do it"),
        ("ACCELERATE_USE_DEEPSPEED", "true", "accelerate: DeepSpeed is not done here"),
        ("ACCELERATE_USE_MEGATRON_LM", "1", "accelerate: Megatron-LM is not done here"),
        ("ACCELERATE_MIXED_PRECISION", "bf16", "accelerate: --mixed_precision bf16: use --dtype"),
        ("ACCELERATE_DYNAMO_BACKEND", "INDUCTOR", "accelerate: --dynamo_backend is not done"),
    ],
)
def test_settings_of_accelerate_that_nothing_heeds_are_refused(
    name: str, value: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = {"MIXED_PRECISION": "no", "DYNAMO_BACKEND": "NO"}
    for key, x in usual.items():
        monkeypatch.setenv(f"ACCELERATE_{key}", x)
    Processes()
    monkeypatch.setenv(name, value)
    with pytest.raises(UsageError, match=re.escape(said)):
        Processes()
