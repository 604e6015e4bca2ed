"""TRL under our protocol: the same hyperparameters, prompts, losses and evaluation."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from safetensors.torch import load_file

trl = pytest.importorskip("trl")

from manyseeds.benchmarks.baselines import trl_baseline  # noqa: E402
from manyseeds.benchmarks.measurements import trl_speed  # noqa: E402
from manyseeds.benchmarks.store.methods import PAIRED  # noqa: E402
from manyseeds.cli import from_preset  # noqa: E402
from manyseeds.llm_track import (  # noqa: E402
    cispo,
    dapo,
    dpo,
    dr_grpo,
    evaluation,
    grpo,
    gspo,
    models,
    reward_model,
    rloo,
    sampling,
    sft,
    tasks,
)
from manyseeds.llm_track.policies import HubModel  # noqa: E402
from manyseeds.llm_track.rollout import GroupConfig, rollout_of  # noqa: E402
from manyseeds.record import is_finished, part_name, read_json  # noqa: E402
from manyseeds.runs.language_seeds import SeedsRun  # noqa: E402
from manyseeds.runs.parallel import Processes  # noqa: E402
from tests.llm_track.batches import loss_of  # noqa: E402
from tests.random_models import make_model, new_model  # noqa: E402

BASELINES = trl_baseline.BASELINES
ROWS = 16  # of the batches that losses are compared on


# Names that a later version of transformers will take away are TRL's to change.
pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning:transformers")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A folder with the tiny model before any training."""
    return make_model("tiny", tmp_path_factory.mktemp("model") / "tiny")


@pytest.fixture
def preferences(tmp_path: Path) -> str:
    """A file with pairs of different lengths."""
    path = tmp_path / "pairs.jsonl"
    pairs = [(f"{k}+{k}=", f"<answer>{2 * k}</answer>", "?" * (k % 5 + 1)) for k in range(10, 34)]
    rows = [dict(zip(("prompt", "chosen", "rejected"), pair, strict=True)) for pair in pairs]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def rollouts(module: Any, model: str, **settings: Any) -> Any:
    """A Config of GRPO or a sibling with small rollouts."""
    if module is dapo:
        settings = {"dynamic_sampling": False} | settings
    small = {"prompts": 4, "group_size": 4, "minibatches": 2, "total_samples": 48}
    return module.Config(
        model=model, **small | {"max_new_tokens": 12, "evaluations": 3, "quiet": True} | settings
    )


def config_of(algo: str, model: str, preferences: str) -> Any:
    """A Config with which each method is trained in a moment."""
    common = {"model": model, "evaluations": 3, "quiet": True, "max_new_tokens": 24}
    if algo == "sft":
        return sft.Config(**common, batch_size=8, total_samples=48, micro_batch_size=4)
    if algo == "dpo":
        return dpo.Config(
            **common, preferences=preferences, batch_size=8, total_samples=48, micro_batch_size=8
        )
    if algo == "reward_model":
        return reward_model.Config(**common, prompts=4, group_size=4, total_samples=48)
    return rollouts(BASELINES[algo].module, model)


def prepared(algo: str, config: Any, folder: Path) -> Any:
    """TRL's trainer before its first step."""
    run = SeedsRun(config, [0])
    with trl_baseline.quiet():
        found = {**BASELINES, **WITH_GROUPS}[algo].prepare(config, run, str(folder))
    found.trainer.current_gradient_accumulation_steps = 1
    return found.trainer


PAIRS = [tasks.Preference(f"{k}+1=", "<answer>2</answer>", "?" * (k % 4 + 1)) for k in range(4)]


@pytest.fixture
def pairs_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reward_model, "draw_pairs", lambda *args: [PAIRS])
    monkeypatch.setattr(reward_model, "held_out_pairs", lambda *args: PAIRS)


# ---- Settings ------------------------------------------------------------------------------


def test_settings_of_grpo(tmp_path: Path, model: str) -> None:
    """Those that the losses, advantages, rewards and runs below do not compare."""
    config = grpo.Config(
        model=model,
        prompts=12,
        group_size=4,
        minibatches=2,
        epochs=3,
        learning_rate=7e-4,
        temperature=0.9,
        micro_batch_size=10,
        max_new_tokens=20,
        total_samples=100,
    )
    args = trl.GRPOConfig(str(tmp_path), **BASELINES["grpo"].arguments(config))
    same = {
        "num_generations": 4,
        "per_device_train_batch_size": 8,  # the largest divisor of 24
        "gradient_accumulation_steps": 3,
        "steps_per_generation": 6,
        "generation_batch_size": 48,
        "num_iterations": 3,
        "max_steps": 3 * 2 * 3,  # 100 samples are three rollouts of 48
        "logging_steps": 6,
        "learning_rate": 7e-4,
        "temperature": 0.9,
        "top_p": 1.0,
        "top_k": 0,
        "max_completion_length": 20,
        "weight_decay": 0.0,
        "adam_beta1": 0.9,
        "adam_beta2": 0.999,
        "adam_epsilon": 1e-8,
        "warmup_steps": 0,
        "max_grad_norm": 1.0,
    }
    assert {name: getattr(args, name) for name in same} == same
    assert args.lr_scheduler_type == "constant"


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--algo ppo", "--algo ppo: TRL does not have it"),
        ("--algo grpo --kl-in reward", "--kl-in reward: TRL has no counterpart; use 'loss'"),
        ("--algo grpo --kl-estimator k1", "--kl-estimator k1: TRL has no counterpart; use 'k3'"),
        ("--algo grpo --minibatches 3", "--minibatches 3: TRL needs equal ones"),
        ("--algo grpo --reward a.py:f", "--reward a.py:f: here TRL learns from the rules"),
        ("--algo grpo --reward-model x", "--reward-model x: TRL has no counterpart"),
        ("--algo dapo", "--dynamic-sampling: TRL has no counterpart; use --no-dynamic-sampling"),
        ("--algo dapo --no-dynamic-sampling --no-token-level", "--no-token-level: TRL has no"),
        ("--algo grpo --beta 1", "--beta: unknown flag"),
    ],
)
def test_what_trl_cannot_do_is_refused_in_one_line(
    flags: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        trl_baseline.read_flags(flags.split())
    (line,) = capsys.readouterr().err.splitlines()
    assert stop.value.code == 2
    assert line.startswith(f"error: {message}")


def test_before_anything_is_timed_it_says_what_trl_cannot_do(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also where there is no TRL at all."""
    trl_baseline.main(["--check", "grpo", "{}"])
    assert capsys.readouterr().out == "{}\n"
    with pytest.raises(SystemExit, match="2"):
        trl_baseline.main(["--check", "grpo", '{"entropy_coef": 2}'])
    assert capsys.readouterr().err.startswith("error: --entropy-coef 2: TRL")
    monkeypatch.setitem(sys.modules, "trl", None)
    with pytest.raises(SystemExit):
        trl_baseline.read_flags(["--algo", "grpo"])
    assert "trl_baseline.py: needs trl; pip install -e '.[trl]'\n" in capsys.readouterr().err


# ---- Losses --------------------------------------------------------------------------------


def batch_of(policy: Any, tokenizer: Any, config: Any) -> tuple[sampling.Samples, torch.Tensor]:
    """Completions of prompts of different lengths; those of an older policy; advantages [B]."""
    generator = torch.Generator().manual_seed(1)
    task = tasks.make(config.task)
    prompts = sampling.encode_prompts(tokenizer, task, [f"{10**k}+5=" for k in range(4)] * 4)
    uniforms = torch.rand(ROWS, config.max_new_tokens, generator=generator)
    with torch.no_grad():  # half of the completions are to end
        policy.get_input_embeddings().weight[tokenizer.eos_token_id] *= 2
    samples = sampling.sample(policy, tokenizer, prompts, uniforms, config.temperature)
    noise = 0.4 * torch.randn(samples.logprobs.shape, generator=generator)
    samples = dataclasses.replace(samples, logprobs=(samples.logprobs + noise) * samples.mask)
    return samples, torch.randn(ROWS, generator=generator)


def gradient(policy: Any, loss: torch.Tensor) -> torch.Tensor:
    """The gradient of a loss, as one vector."""
    return torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(policy.parameters()))])


class GSPO(trl_baseline.GRPOBaseline):
    """trl.GRPOTrainer with the loss of GSPO"""

    module = gspo

    @classmethod
    def arguments(cls, config: Any) -> dict[str, Any]:
        high = config.clip_range_high
        own = {"importance_sampling_level": "sequence", "epsilon_high": high}
        return super().arguments(config) | own


class CISPO(trl_baseline.GRPOBaseline):
    """trl.GRPOTrainer with the loss of CISPO"""

    module = cispo
    loss_type = "cispo"

    @classmethod
    def arguments(cls, config: Any) -> dict[str, Any]:
        shared = {x.name: getattr(config, x.name) for x in dataclasses.fields(GroupConfig)}
        return super().arguments(grpo.Config(**shared)) | {"epsilon_high": config.clip_range_high}


class RLOO(trl_baseline.GRPOBaseline):
    """trl.RLOOTrainer"""

    module = rloo

    @classmethod
    def arguments(cls, config: Any) -> dict[str, Any]:
        in_loss = dataclasses.replace(config, kl_in="loss", kl_estimator="k3")
        known = {x.name for x in dataclasses.fields(trl.RLOOConfig)}
        return {k: x for k, x in super().arguments(in_loss).items() if k in known}

    @classmethod
    def prepare(cls, config: Any, run: SeedsRun, folder: str) -> Any:
        with pytest.MonkeyPatch.context() as patch:  # both take the same arguments
            patch.setattr(trl, "GRPOTrainer", trl.RLOOTrainer)
            patch.setattr(trl, "GRPOConfig", trl.RLOOConfig)
            return super().prepare(config, run, folder)


WITH_GROUPS: dict[str, Any] = {
    **{name: BASELINES[name] for name in ("grpo", "dr_grpo", "dapo")},
    **{"gspo": GSPO, "cispo": CISPO, "rloo": RLOO},
}


@pytest.mark.parametrize(
    ("algo", "settings"),
    [
        ("grpo", {"kl_coef": 0.0}),
        ("grpo", {"kl_coef": 0.04, "temperature": 0.7}),
        ("grpo", {"kl_coef": 0.3, "kl_estimator": "corrected"}),
        ("dr_grpo", {}),
        ("dr_grpo", {"kl_coef": 0.1}),
        ("dapo", {}),
        ("dapo", {"overlong_filtering": False, "clip_range_high": 0.5, "kl_coef": 0.1}),
        ("gspo", {"clip_range": 0.05, "clip_range_high": 0.08}),
        ("cispo", {"clip_range_high": 1.3}),
        ("cispo", {"clip_range_high": 1.3, "kl_coef": 0.1}),
        ("rloo", {}),
        ("rloo", {"clip_range": 0.5, "temperature": 0.7}),
    ],
)
def test_loss_and_gradient_are_ours(
    algo: str, settings: dict[str, Any], tmp_path: Path, model: str
) -> None:
    module = WITH_GROUPS[algo].module
    config = rollouts(module, model, minibatches=1, max_new_tokens=20, **settings)
    trainer = prepared(algo, config, tmp_path)
    policy, tokenizer = trainer.model, trainer.processing_class
    policy.train()
    samples, advantages = batch_of(policy, tokenizer, config)
    assert 0 < samples.ended.sum() < ROWS
    columns = advantages.unsqueeze(1).expand_as(samples.tokens)
    reference = samples.logprobs - 0.1 * samples.mask
    logprobs = sampling.logprobs(policy, samples, config.temperature)
    learned = samples.mask
    if algo == "dr_grpo":
        weights = dr_grpo.token_weights(samples.mask, ROWS, config.max_new_tokens)
    elif algo == "cispo":
        weights = cispo.token_weights(samples.mask, samples.mask.sum())
    elif algo == "dapo":
        if config.overlong_filtering:
            learned = learned & samples.ended.unsqueeze(1)
        (weights,) = dapo.token_weights(learned, learned.any(1).sum(), learned.sum(), True)
    else:
        weights = module.token_weights(samples.mask, ROWS)
    tensors = (logprobs, samples.logprobs, reference, columns, weights)
    ours = loss_of(module, *tensors, config, samples.mask)
    inputs = {
        "prompt_ids": samples.prompts,
        "prompt_mask": samples.prompt_mask.long(),
        "completion_ids": samples.tokens,
        "completion_mask": learned.long(),
        "advantages": advantages,
        "old_per_token_logps": samples.logprobs,
        "old_logps": samples.logprobs.sum(1),  # RLOO's
        "ref_per_token_logps": reference,
        "num_items_in_batch": learned.sum(),
    }
    theirs = trainer.compute_loss(policy, inputs)
    torch.testing.assert_close(theirs, ours, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(
        gradient(policy, theirs), gradient(policy, ours), rtol=1e-4, atol=1e-6
    )


@pytest.mark.parametrize("algo", [*WITH_GROUPS, "grpo batch", "grpo none"])
def test_advantages_are_ours(
    algo: str, tmp_path: Path, model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    algo, _, scale = algo.partition(" ")
    settings = {"scale": scale} if scale else {}
    own = {"kl_coef": 0.0} if algo == "rloo" else settings
    config = rollouts(WITH_GROUPS[algo].module, model, **own)
    trainer = prepared(algo, config, tmp_path)
    trainer.model.train()
    groups = torch.tensor([[0.0, 1.0, 1.1, 0.1], [0, 0, 0, 1], [1.1, 1.1, 1.1, 0], [0.5] * 4])
    parts = torch.zeros(16, len(trainer.reward_funcs))
    parts[:, 0] = groups.flatten() / trainer.reward_weights[0]
    monkeypatch.setattr(trainer, "_calculate_rewards", lambda *_: parts)
    rows = [{"prompt": f"{k}1+22=", "row": k} for k in range(1, 5) for _ in range(4)]
    found = trainer._generate_and_score_completions(rows)["advantages"]
    (ours,) = WITH_GROUPS[algo].module.group_advantages(groups[None], **settings)
    torch.testing.assert_close(found, ours.flatten(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("algo", ["grpo", "dapo"])
def test_rewards_are_ours(algo: str, tmp_path: Path, model: str) -> None:
    module = BASELINES[algo].module
    config = rollouts(module, model, max_new_tokens=32)
    problem = tasks.Problem("12+13=", "25")
    texts = [tasks.formatted("2+3=5;", "25"), "<answer>25</answer>", "no", "?" * 40]
    tokenizer = models.tiny_tokenizer()
    task = tasks.make("addition")
    T, cpu = config.max_new_tokens, torch.device("cpu")
    samples = sampling.from_texts(tokenizer, task, ["12+13="] * 4, texts, T, cpu)
    graded = [task.grade(problem, text) for text in texts]
    (ours,) = module.rewards_of([graded], rollout_of(samples), None, config)
    ids = [row[:n].tolist() for row, n in zip(samples.tokens, samples.lengths, strict=True)]
    read = trl_baseline.reader(new_model("tiny"), tokenizer)
    functions = BASELINES[algo].rewards(config, task, [problem], read)
    # TRL's own texts lack special tokens, which the tags of a model may be.
    parts = [f(completions=[""] * 4, completion_ids=ids, row=[0] * 4) for f in functions]
    weights = torch.tensor(BASELINES[algo].arguments(config)["reward_weights"])
    torch.testing.assert_close((torch.tensor(parts).T * weights).sum(1), ours)


@pytest.mark.usefixtures("few_samples")
def test_loss_of_dpo_is_ours(tmp_path: Path, model: str, preferences: str) -> None:
    config = config_of("dpo", model, preferences)
    trainer = prepared("dpo", config, tmp_path)
    policy, tokenizer = trainer.model, trainer.processing_class
    # Not a copy of the policy: TRL has replaced its forward by one that a copy would share.
    reference = models.load_model(config, torch.device("cpu"), Processes())[0]
    with torch.no_grad():
        for p in policy.parameters():
            p.mul_(1.1)
    rows = [trainer.train_dataset[k] for k in range(8)]
    theirs = trainer.compute_loss(policy, trainer.data_collator(rows))
    task, T = tasks.make(config.task), models.completion_tokens(config)
    texts = [row[side] for side in ("chosen", "rejected") for row in rows]
    texts = [text.removesuffix(tokenizer.eos_token) for text in texts]
    prompts = [row["prompt"] for row in rows] * 2
    both = sampling.from_texts(tokenizer, task, prompts, texts, T, torch.device("cpu"))
    logprobs = sampling.logprobs(policy, both).sum(1)
    with torch.no_grad():
        before = sampling.logprobs(reference, both).sum(1)
    found = dpo.rewards(logprobs, before, config.beta)
    ours = dpo.preference_loss(*found.chunk(2)).mean()
    assert abs(ours.item() - 0.6931) > 0.01
    torch.testing.assert_close(theirs, ours, rtol=1e-5, atol=1e-6)


@pytest.mark.usefixtures("pairs_by_hand")
def test_loss_of_the_reward_model_is_ours(tmp_path: Path, model: str) -> None:
    config = config_of("reward_model", model, "")
    trainer = prepared("reward_model", config, tmp_path)
    torch.nn.init.normal_(trainer.model.score.weight)
    rows = [trainer.train_dataset[k] for k in range(4)]
    theirs = trainer.compute_loss(trainer.model, trainer.data_collator(rows))
    scored = HubModel(trainer.model, trainer.processing_class, config, Processes())
    scores = reward_model.pair_scores(scored, tasks.make("addition"), [PAIRS], 20)
    ours = reward_model.bradley_terry_loss(*scores).mean()
    torch.testing.assert_close(theirs, ours, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("algo", ["sft", "grpo", "dr_grpo", "dapo"])
def test_prompts_are_ours(
    algo: str, tmp_path: Path, model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("curve_size", "final_size"):
        monkeypatch.setattr(evaluation, name, lambda *of: (1, 1))
    config = config_of(algo, model, "")
    drawn: list[tasks.Problem] = []
    draw = tasks.GeneratedTask.train

    def noted(*args: Any) -> list[tasks.Problem]:
        found = draw(*args)
        drawn.extend(found)
        return found

    monkeypatch.setattr(tasks.GeneratedTask, "train", noted)
    prepared(algo, config, tmp_path)
    theirs = [p.prompt for p in drawn]
    drawn.clear()
    BASELINES[algo].module.train(config, SeedsRun(config, [0]))
    assert [p.prompt for p in drawn] == theirs


# ---- Runs ----------------------------------------------------------------------------------


@pytest.mark.slow
def test_what_does_not_sample_is_paired() -> None:
    """TRL learns in these from what our code has drawn for the seed."""
    drawn = {x for x, y in BASELINES.items() if issubclass(y, trl_baseline.GRPOBaseline)}
    assert set(PAIRED) == BASELINES.keys() - drawn


@pytest.mark.parametrize("algo", BASELINES)
@pytest.mark.usefixtures("pairs_by_hand")
def test_a_run_is_stored_as_ours_are(
    algo: str, tmp_path: Path, model: str, preferences: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("curve_size", "final_size"):
        monkeypatch.setattr(evaluation, name, lambda *of: (4, 4))
    config = config_of(algo, model, preferences)
    taken: list[int] = []
    step = torch.optim.AdamW.step
    monkeypatch.setattr(
        torch.optim.AdamW, "step", lambda *a, **k: (taken.append(1), step(*a, **k))[1]
    )
    part = tmp_path / part_name([0])
    run = SeedsRun(config, [0], tmp_path, f"trl-{algo}", source="trl")
    trl_baseline.train_seed(algo, config, run)

    updates = {"sft": 6, "dpo": 3, "reward_model": 3}.get(algo, 6)
    assert len(taken) == updates
    assert is_finished(part)
    stored = read_json(part / "config.json")
    assert (stored["source"], stored["algo"]) == ("trl", f"trl-{algo}")
    assert {"trl", "transformers"} <= set(stored["versions"])
    seeds = SeedsRun(config, [0])
    trained = BASELINES[algo].module.train(config, seeds)
    (summary,), (ours,) = seeds.finish(trained), seeds.runs
    theirs = read_json(part / "summary.json")
    assert set(theirs) == set(summary)
    assert set(theirs["final"]) == set(summary["final"])
    assert (theirs["samples"], theirs["diverged"]) == (48, None)
    curve = pd.read_parquet(part / "curve.parquet")
    assert list(curve.columns) == list(ours.curve().columns)
    assert list(curve["samples"]) == list(ours.curve()["samples"])
    metrics = pd.read_parquet(part / "metrics.parquet")
    shared = set(metrics) & set(ours.metrics())
    assert {"seed", "samples", "learn_s", "loss", "grad_norm"} <= shared
    assert list(metrics["samples"]) == list(ours.metrics()["samples"])
    # Before the first step both are the same model.
    initial = [{k: x for k, x in s["initial"].items() if x is not None} for s in (theirs, summary)]
    assert initial[0] == pytest.approx(initial[1], rel=1e-4, abs=1e-6)
    if algo in ("sft", "dpo", "reward_model"):  # nothing random is left: both learn the same
        trained.save(0, tmp_path / "ours")
        mine, other = (
            load_file(x / "model.safetensors") for x in (tmp_path / "ours", part / "model")
        )
        torch.testing.assert_close(mine, other, rtol=1e-3, atol=2e-4)


def test_speed_is_taken_on_both_sides(model: str) -> None:
    config = rollouts(grpo, model)
    settings = json.dumps(dataclasses.asdict(config))
    for side in (trl_speed, trl_baseline):
        found = side.measure("grpo", settings)
        assert found["samples"] == 48
        assert found["learn_s"] > 0
    measurements = [
        {"system": system, "samples_per_s": speed}
        for pair in ((300.0, 200.0), (100.0, 50.0), (330.0, 110.0))
        for system, speed in zip((trl_speed.OURS, trl_speed.THEIRS), pair, strict=True)
    ]
    row = trl_speed.summary(measurements)
    assert (row["ratio"], row["ratio_low"], row["ratio_high"]) == (2.0, 1.5, 3.0)
    plain = from_preset(grpo.Config, grpo.PRESETS, "addition")
    changed = dataclasses.replace(plain, kl_coef=0.0, total_samples=2_560)
    names = [trl_speed.name_of("grpo", x) for x in (plain, changed)]
    assert names == ["grpo", "grpo, total_samples 2560, kl_coef 0.0"]
