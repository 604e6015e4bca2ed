"""What the report says of the language papers' claims, from runs whose outcome is planted."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from manyseeds.benchmarks.chapters import language_claims as chapter
from manyseeds.benchmarks.chapters import language_models
from manyseeds.benchmarks.chapters.language_models import Method
from manyseeds.benchmarks.experiments import catalog
from manyseeds.benchmarks.experiments.suite import (
    CLIP_HIGHER,
    EQUAL,
    EXPERIMENTS,
    LONG,
    R1_ZERO,
    RLHF,
    WITHOUT_KL,
)
from manyseeds.benchmarks.store import results as chapter_results
from manyseeds.benchmarks.store.stored import open_run
from manyseeds.digest import ROOT
from manyseeds.record import RunFolder, read_json, seal
from manyseeds.untrusted import ORIGIN
from manyseeds.writing import parquet_bytes, write_bytes, write_json
from tests.benchmarks.test_hostile_store import language_run

SEEDS = 5
Ends = Mapping[str, tuple[float, float]]


def method(
    folder: Path,
    algo: str,
    task: str,
    settings: Mapping[str, Any],
    measures: Ends,
    metrics: Ends | None = None,
    steps: int = 50,
) -> Any:
    """A run whose measures and metrics go in a line from one end to the other, and differ by a
    thousandth from seed to seed."""
    plain = catalog.plain_settings("llm_track", algo, task) or {}
    found = object.__new__(Method)
    vars(found).update(algo=algo, task=task, headline="pass@1", stale=False)
    vars(found).update(settings={**plain, **settings}, plain_settings=plain)
    vars(found).update(frames=[], parts=[], summaries=[], run=SimpleNamespace(path=folder))
    found.configs = [{"seeds": [seed]} for seed in range(SEEDS)]
    total = found.settings["total_samples"]

    def lines(ends: Ends, samples: np.ndarray, seed: int) -> pd.DataFrame:
        values = {name: a + (b - a) * samples / total for name, (a, b) in ends.items()}
        shifted = {name: x + 0.001 * seed for name, x in values.items()}
        return pd.DataFrame({"samples": samples, **shifted})

    for seed in range(SEEDS):
        part = folder / f"{algo}-{len(list(folder.glob('*')))}-{seed}"
        part.mkdir(parents=True)
        found.parts.append(part)
        rows = lines(metrics or {}, np.linspace(0, total, steps + 1)[1:], seed)
        write_bytes(part / "metrics.parquet", parquet_bytes(rows))
        curve = lines(measures, np.linspace(0, total, 6), seed)
        found.frames.append(curve.assign(point=range(6)))
        ends = {when: dict(curve.iloc[k]) for when, k in (("initial", 0), ("final", -1))}
        found.summaries.append({**ends, "seeds": [seed], "headline": "pass@1"})
    return found


def rlhf_text(
    folder: Path,
    end: Callable[[Mapping[str, Any]], float],
    kl: Callable[[Mapping[str, Any]], float] = lambda _: 0.5,
) -> str:
    """The section of runs whose pass@1 goes from 0.5 to where their settings say."""
    runs = [
        method(
            folder / "runs", algo, "addition", x,
            {"pass@1": (0.5, end(x)), "kl": (0.0, kl(x))}, {"reward": (1.0, 3.0)},
        )
        for algo, x in RLHF
    ]  # fmt: skip
    return chapter.rlhf_section(runs, folder)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("plots", "tables", "runs"):
        (tmp_path / name).mkdir()
    return tmp_path


MANY = {"pass@16": (0.9, 0.98), "cons@16": (0.5, 0.9), "format": (0.2, 0.95)}


def test_r1_zero_rises_where_the_base_has_a_signal(folder: Path) -> None:
    weak, *strong = [
        method(
            folder / "runs", algo, "addition", settings,
            {"pass@1": (0.0, 0.0) if settings["model"] == "tiny-base" else (0.1, 0.8),
             "length": (10.0, 20.0), **MANY},
            {"accuracy": (0.0, 0.1) if settings["model"] == "tiny-base" else (0.1, 1.5)},
        )
        for algo, settings in R1_ZERO
    ]  # fmt: skip
    text = chapter.zero_section([weak, *strong], folder)
    assert text.startswith("**The base tiny-base has a pass@16 of 0.902. GRPO from tiny-base takes")
    assert text.count("has a pass@16 of") == 2
    assert "GRPO from tiny-base-800 takes pass@1 from 0.102 to 0.802 [" in text
    # 0.1 + 1.4 x > 0.7 from x = 0.43 on, and 12,800 samples are half of the training.
    assert "5 of 5 seeds of GRPO from tiny-base-800 exceed 0.7 within 12,800 samples." in text
    assert "GRPO from tiny-base takes pass@1 from 0.002 to 0.002 [" in text
    assert "0 of 5 seeds of GRPO from tiny-base exceed 0.7" in text
    assert text.count("| tiny-base-800 |") == 3
    assert (folder / "plots/language-zero.svg").exists()
    assert chapter.zero_section([], folder) == ""


def test_a_reward_that_rises_while_accuracy_falls(folder: Path) -> None:
    text = rlhf_text(folder, lambda x: 0.1 if x.get("rules") is False else 0.8)
    # The metric of the last fifth of the training: from 2.6 to 3.0 in ten steps.
    assert text.count(" takes the learned reward from 1.04 to 2.82. Pass@1 is lower after ") == 5
    for run in ("RLHF-PPO (learned, beta 0.05)", "GRPO (learned, refreshed in 4 iterations)"):
        assert f"Pass@1 is lower after {run} than before it (-0.400 [" in text
    assert "| RLHF-PPO | learned and rules | 5 |" in text
    assert "turns" not in text  # it is lower whatever the weight of the KL
    assert "Renewing the reward model and the reference is not shown to delay the loss. A" in text


@pytest.mark.parametrize(("end", "said"), [(0.3, "delays"), (0.0, "does not delay")])
def test_a_refreshed_reward_model_that_delays_the_loss(folder: Path, end: float, said: str) -> None:
    text = rlhf_text(folder, lambda x: end if x.get("iterations", 1) > 1 else 0.1)
    # Half of the difference at the end, as both go in lines.
    mean = f"{(end - 0.1) / 2:+.3f} ["
    assert f"Renewing the reward model and the reference {said} the loss. Averaged over" in text
    assert f" than without it ({mean}" in text


def test_the_axis_is_the_square_root_of_the_kl(folder: Path) -> None:
    measures = {"pass@1": (0.5, 0.1), "kl": (-0.102, 0.248)}  # 0.002 more on average over seeds
    x = chapter.distance(method(folder / "runs", "grpo", "addition", {}, measures))
    assert (x[0], x[-1]) == (0, pytest.approx(0.5))
    # pass@1 goes in a line from 0.502 to 0.102.
    text = rlhf_text(folder, lambda _: 0.1, lambda _: 0.248)
    assert text.count("| 0.502 | 0.102 [") == text.count("] | 0.302 | 0.250 |") == len(RLHF)


@pytest.mark.parametrize(("end", "word"), [(0.2, "worse -0.200 ["), (0.6, "better +0.200 [")])
def test_a_verdict_on_trl_is_of_ours(
    folder: Path, monkeypatch: pytest.MonkeyPatch, end: float, word: str
) -> None:
    monkeypatch.setattr(chapter_results, "LOOKS", (SEEDS,))
    ours, theirs = (
        method(folder / "runs", "grpo", "addition", {}, {"pass@1": (0.3, x)}) for x in (end, 0.4)
    )
    theirs.algo = "trl-grpo"
    text = language_models.trl_section([ours, theirs], folder)
    assert f"| {word}" in text
    worse = "GRPO" if end < 0.4 else "no method"
    assert f"**The verdict is worse than TRL for {worse}. The interval excludes" in text


def test_accuracy_that_turns_is_said_to(folder: Path) -> None:
    end = lambda x: 0.6 if x.get("kl_coef") == 0.5 else 0.3  # noqa: E731
    text = rlhf_text(folder, end, lambda x: 0.1 / x.get("kl_coef", 0.1))
    # Seeds differ by a thousandth, 0.002 on average.
    assert "pass@1 turns from a gain to a loss between a KL of 0.202 and 0.502 nats" in text


def test_clip_higher_that_changes_nothing_is_said_to(folder: Path) -> None:
    runs = [
        method(
            folder / "runs", "dapo", "countdown", settings,
            {"pass@1": (0.2, 0.6), "pass@16": (0.7, 0.6),
             "entropy": (0.5, 0.3 if settings["clip_range_high"] > 0.4 else 0.1)},
            {"clip_high": (0.03, 0.03), "clip_low": (0.01, 0.01)},
        )
        for settings in CLIP_HIGHER
    ]  # fmt: skip
    text = chapter.clip_section(runs, folder)
    same = "not shown to be higher or lower"
    assert f"Entropy with an upper clip of 0.28 is {same} than with 0.2 (+0.000 [" in text
    assert "Entropy with an upper clip of 0.5 is higher than with 0.2 (+0.200 [" in text
    assert f"Pass@16 with an upper clip of 0.5 is {same}" in text
    assert "| 0.2 | 5 | 3.20% | 1.20% |" in text
    assert chapter.clip_section(runs[:1], folder) == ""


def test_a_diverged_seed_scores_0(tmp_path: Path) -> None:
    """At the end and on its curve from there on; what is no share of successes is unknown."""
    run = language_run(tmp_path)
    part = run / "seeds-000-000"
    write_json(part / "summary.json", {**read_json(part / "summary.json"), "diverged": 32})
    seal(part)
    found = Method(open_run(RunFolder(run)))
    assert found.values("pass@1").tolist() == [0.0]
    assert found.values("pass@1", "initial") == found.values("greedy") + 0.5 == 0.5
    assert found.mean_text("length", "initial") == "9.000"
    assert found.mean_text("length") == ""
    assert found.curve("format")[1].tolist() == [[1.0, 0.0, 0.0]]
    np.testing.assert_array_equal(found.curve("length")[1], [[9.0, np.nan, np.nan]])


def test_lengths_are_compared_where_they_are_free(folder: Path) -> None:
    common = {"pass@1": (0.3, 0.6), "truncated": (0.1, 0.2), "length_right": (30.0, 25.0)}
    cases = [
        ("grpo", {}, 40.0, 20.0),
        ("dr_grpo", {}, 28.0, 20.0),
        ("grpo", WITHOUT_KL, 26.0, 20.0),
    ]
    cases += [("dapo", x, 31.0, 20.0 if k == 3 else 25.0) for k, x in enumerate(LONG)]
    runs = []
    for algo, x, wrong, length in cases:
        measures, metrics = {**common, "length_wrong": (30.0, wrong)}, {"length": (30.0, length)}
        runs.append(method(folder / "runs", algo, "rambling", x, measures, metrics))
    text = chapter.length_section(runs, folder)
    assert "is higher after GRPO than after Dr. GRPO (+12.0 [" in text
    assert "is lower after GRPO without a KL than after Dr. GRPO (-2.0 [" in text
    assert "is higher after GRPO than after GRPO without a KL (+14.0 [" in text
    assert "| GRPO | without a KL | 5 |" in text
    # 30 - 10 x, where x is 0.06 on average, and 0.002 for the seeds.
    assert re.search(r"\| Dr. GRPO .*\| 29.40 \|$", text, re.MULTILINE)
    assert "| DAPO | token-level loss | 5 |" in text
    assert text.count("\n| DAPO |") == 4
    assert "+15.0 [" in text
    said = "the length of completions with {} alone is {} than with"
    # Five of fifty steps: 30 - 5 x and 30 - 10 x, where x is 0.06 on average.
    assert f"{said.format('soft punishment', 'lower')} none of the three (-0.30 [" in text
    same = "not shown to be higher or lower"
    assert f"{said.format('overlong filtering', same)} none of the three (+0.00 [" in text
    assert f"Pass@1 after training with soft punishment alone is {same} than with none of" in text
    assert "with none of the three alone" not in text
    runs[1].summaries[2]["final"]["length_wrong"] = None  # a seed without wrong completions
    assert "after GRPO than after Dr. GRPO" not in chapter.length_section(runs, folder)


def test_self_correction_that_was_there_before(folder: Path) -> None:
    waits = {"wait": (0.4, 0.5), "wait_if_wrong": (0.9, 0.95), "wait_if_right": (0.05, 0.02),
             "right_after_wait": (0.6, 0.9)}  # fmt: skip
    run = method(folder / "runs", "grpo", "checking", {}, {"pass@1": (0.3, 0.8), **waits})
    text = chapter.correction_section([run], folder)
    assert text.startswith("**The model writes `wait` before any RL, as its demonstrations do. P(")
    said = "P(wait given wrong column) is higher after RL than before it, when it was 0.902 (+0.050"
    assert said in text
    assert "P(wait given right column) is lower after RL" in text
    assert "| P(wait \\| wrong column) | 0.902 |" in text
    for summary in run.summaries:  # a model that never corrects itself
        for when in ("initial", "final"):
            summary[when] = {"pass@1": summary[when]["pass@1"], "wait": 0.0}
    text = chapter.correction_section([run], folder)
    assert text.startswith("**P(wait) is not shown to be higher or lower after RL than before it, ")
    assert "writes `wait` before any RL" not in text


def test_ppo_with_grpo_s_settings_is_paired_by_seeds(folder: Path) -> None:
    """A score that depends on the seed alone makes no difference between two runs of others."""
    runs = [
        method(folder / "runs", algo, "addition", x, {"pass@1": (0.5, end), "kl": (0.0, 0.2)})
        for algo, x, end in (("rlhf_ppo", EQUAL, 0.8), ("rlhf_ppo", {}, 0.95), ("grpo", {}, 0.9))
    ]
    text = chapter.equal_section(runs, folder)
    assert "pass@1 of PPO is lower than that of GRPO (-0.100 [" in text
    assert text.count("\n| RLHF-PPO |") == 2
    assert chapter.equal_section(runs[:2], folder) == ""
    for k, summary in enumerate(runs[0].summaries):
        summary["final"]["pass@1"] = 0.9 + 0.001 * (k + 1)
        summary["initial"]["pass@1"] = 0.5 + 0.001 * (k + 1)
        runs[0].configs[k] = {"seeds": [k + 1]}
    text = chapter.equal_section(runs, folder)
    assert "is not shown to be higher or lower than that of GRPO (+0.000 [" in text
    assert "4 seeds)" in text
    for summary in runs[0].summaries[:3]:  # began with a model that another processor made
        summary["initial"]["pass@1"] += 1 / 4096
    assert chapter.equal_section(runs, folder).startswith("PPO's own preset")
    runs[0].configs = [{"seeds": [k + 100]} for k in range(SEEDS)]
    assert chapter.equal_section(runs, folder).startswith("PPO's own preset")


def pipeline(folder: Path, gain: float) -> str:
    rows = [
        {"seed": seed, "stage": stage, "samples": 100, "pass@1": x + 0.001 * seed, "pass@16": x,
         "cons@16": x, "format": 1.0, "length": 20.0}
        for seed in range(3)
        for stage, x in (("RL twice as long", 0.6), ("RL again", 0.6 + gain),
                         ("distillation", 0.5), ("RL on small base", 0.1))
    ]  # fmt: skip
    stored = json.loads((ROOT / "results" / "llm_oracle.json").read_text())
    origin = {name: stored[name] for name in ORIGIN}
    settings = {"task": "addition", "rl_samples": 1, "prompts": 64, "sft_samples": 1}
    content = {**origin, "settings": settings, "rows": rows}
    (folder / "llm_pipeline.json").write_text(json.dumps(content))
    return chapter.pipeline_section([], folder)


def test_the_stages_of_r1(folder: Path) -> None:
    text = pipeline(folder, 0.2)
    assert "Pass@1 is higher after RL again than after RL twice as long (+0.200 [" in text
    assert "Pass@1 is higher after distillation than after RL on small base (+0.400 [" in text
    outcome = text.split("** ")[0]
    assert ";" not in outcome
    assert max(map(len, outcome.split(". "))) < 120  # a claim, a verdict and a number each
    assert "| RL again | 3 | 100 | 0.801 [" in text
    assert "is not shown to be higher or lower after RL again" in pipeline(folder, 0.0)


def test_every_experiment_of_the_suite_is_shown_on_the_page(folder: Path) -> None:
    """And none of them is a plain run."""
    measures = {name: (0.2, 0.4) for name in ("pass@1", "pass@16", "cons@16", "kl", "format")}
    measures |= {name: (20.0, 30.0) for name in ("length", "length_right", "length_wrong")}
    measures |= {"entropy": (0.3, 0.2), "truncated": (0.0, 0.1)}
    metrics = {name: (0.1, 0.2) for name in ("accuracy", "reward", "clip_high", "clip_low")}
    metrics["length"] = (30.0, 20.0)
    runs = [
        method(folder / "runs", algo, task, settings, measures, metrics)
        for algo, task, _, settings in EXPERIMENTS
    ]
    runs += [
        method(folder / "runs", algo, "addition", {}, measures) for algo in ("grpo", "rlhf_ppo")
    ]
    assert all(m.of_experiment for m in runs[: len(EXPERIMENTS)])
    assert not any(m.of_experiment or not m.plain for m in runs[len(EXPERIMENTS) :])
    page = chapter.page(runs, folder)
    titles = re.findall(r"^## (.*)$", page, re.MULTILINE)
    others = ("The stages of DeepSeek-R1", "Self-correction")
    assert titles == [title for title in chapter.SECTIONS if title not in others]
    assert chapter.page([], folder) == ""
