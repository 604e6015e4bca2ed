"""The report's chapter on language models, from small real runs."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from manyseeds import stats
from manyseeds.benchmarks import report
from manyseeds.benchmarks.chapters import language_models, real_models
from manyseeds.benchmarks.chapters.blocks import Items
from manyseeds.benchmarks.measurements import llm_critic_cost
from manyseeds.benchmarks.store import results as chapter_results
from manyseeds.benchmarks.store import whole
from manyseeds.benchmarks.store.methods import ORDER, methods
from manyseeds.benchmarks.store.names import display
from manyseeds.benchmarks.store.stored import open_runs
from manyseeds.cli import Preset, from_preset
from manyseeds.digest import ROOT
from manyseeds.llm_track import evaluation, grpo, reward_model, rlhf_ppo, tasks
from manyseeds.record import RunFolder, provenance, read_json, seal
from manyseeds.runs import language_seeds
from manyseeds.runs.base import carry_out
from manyseeds.runs.language import LanguageConfig
from manyseeds.runs.language_seeds import SeedsRun
from manyseeds.runs.stale import digest_today
from manyseeds.writing import write_json
from tests.benchmarks.test_hostile_store import language_run
from tests.benchmarks.test_language_claims import rows
from tests.benchmarks.test_report import check_links, generated
from tests.random_models import make_model

pytestmark = pytest.mark.slow  # trains models
SEEDS = 2


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """GRPO as its preset says, without a KL, and as if TRL had trained it; a reward model."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        yield make_runs(tmp_path_factory.mktemp("store"), monkeypatch)


def make_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(evaluation, "FINAL_PROMPTS", 4)
    monkeypatch.setattr(evaluation, "curve_size", lambda config: (4, 2))
    even = lambda self, problem, text: float(len(text) % 2 == 0)  # noqa: E731
    monkeypatch.setattr(tasks.Addition, "accuracy", even)
    settings = {
        "model": make_model("tiny", tmp_path / "random"),
        "total_samples": 32,
        "prompts": 4,
        "group_size": 4,
    }
    for module in (grpo, rlhf_ppo, reward_model):
        monkeypatch.setitem(module.PRESETS, "addition", Preset(settings, "a test"))
    monkeypatch.setattr(whole, "missing_cells", lambda results, runs: [])  # of the real presets

    folder = tmp_path / "results"
    for name in ("plots", "tables"):
        (folder / name).mkdir(parents=True)
    execution = {"results": str(folder), "seeds": SEEDS, "evaluations": 2, "quiet": True}
    plain = from_preset(grpo.Config, grpo.PRESETS, "addition", **execution)
    language_seeds.main(plain, grpo.train, grpo.PRESETS)
    free = from_preset(grpo.Config, grpo.PRESETS, "addition", kl_coef=0.0, **execution)
    language_seeds.main(free, grpo.train, grpo.PRESETS)
    for seed in range(SEEDS):
        theirs = RunFolder.of(plain, "trl-grpo").path
        carry_out(plain, grpo.train, SeedsRun(plain, [seed], theirs, "trl-grpo", "trl"))
    judge = from_preset(reward_model.Config, reward_model.PRESETS, "addition", **execution)
    language_seeds.main(judge, reward_model.train, reward_model.PRESETS)
    return folder


def cells(text: str, *first: str) -> list[list[str]]:
    """The rows of tables that begin with some cells."""
    rows = [[c.strip() for c in x.strip("|").split("|")] for x in text.splitlines() if x[:1] == "|"]
    return [row for row in rows if row[: len(first)] == list(first)]


def stored(
    results: Path, algo: str, name: str, when: str = "final", *, free: bool = False
) -> list[float]:
    """A measure of each seed of the plain runs, or of those without a KL."""
    folders = sorted((results / "runs" / "addition" / algo).glob("*/seeds-*"))
    chosen = [
        f for f in folders if (read_json(f / "config.json")["config"].get("kl_coef") == 0) == free
    ]
    return [read_json(f / "summary.json")[when][name] for f in chosen]


def test_a_store_of_language_models_alone_has_a_report(
    results: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chapter_results, "FEWEST", SEEDS)
    measured = {"cpu": "x"}
    speed = {"samples_per_s": {"manyseeds": 20.0, "trl": 10.0}, "ratio": 2.0, "ratio_low": 1.5}
    origins = ["manyseeds.llm_track.grpo:train"]
    code = {"digest": digest_today((*origins,)), "commit": "", "origins": origins}
    speed |= {"ratio_high": 2.5, "repeats": 3, "command": "python a", "machine": measured}
    speed |= {"code": code}
    of = {"algo": "grpo", "settings": {"total_samples": 32}, "versions": {"trl": version("trl")}}
    content = {"grpo, kl_coef 0.0": {**speed, **of}}
    other = {**speed, **of, "code": {**code, "digest": "0"}}
    content["grpo, kl_coef 0.1"] = other
    (results / "trl_speed.json").write_text(json.dumps(content))
    report.report(results, note="a test")
    page = (results / "language-models.md").read_text()
    titles = re.findall(r"^## (.*)$", page, re.MULTILINE)
    expected = ["Scores before and after training", "The reward model", "Ablations", "Against TRL"]
    assert {*expected, "Transcripts", "Provenance"} <= {*titles}
    assert check_links(results) == generated(results)
    assert not (results / "environments").exists()
    assert not list(results.glob("plots/*seconds*"))
    for figure in ("language-addition", "language-reward_model", "language-trl", "language-grpo"):
        assert f"plots/{figure}.svg" in page or figure == "language-grpo"
        assert (results / "plots" / f"{figure}.svg").stat().st_size > 1000

    # Its numbers are those of the store.
    first, last = (stored(results, "grpo", "pass@1", when) for when in ("initial", "final"))
    (reached,) = [row for row in cells(page, "addition", "GRPO") if len(row) == 12]
    assert reached[2] == str(SEEDS)
    assert reached[3] == f"{np.mean(first):.3f}"
    assert reached[4].startswith(f"{np.mean(last):.3f} [")
    assert reached[5].startswith(f"{np.mean(last) - np.mean(first):+.3f} [")
    (changed,) = [row for row in cells(page, "addition", "GRPO") if "kl_coef" in row[2]]
    assert changed[2] == "kl_coef 0.0 (not 0.04)"
    other = stored(results, "grpo", "pass@1", free=True)
    assert changed[6].startswith(f"{np.mean(other) - np.mean(last):+.3f} [")
    (against,) = cells(page, "addition", "GRPO", "", "pass@1")
    assert against[5] == against[6]  # the same training twice
    assert "undecided +0.000 [" in against[7]
    assert cells(page, "GRPO", "kl_coef 0.0", "20", "10", "2.00 [1.50, 2.50]", "3")
    assert cells(page, "GRPO (stale)", "kl_coef 0.1", "20", "10")
    assert cells(page, "addition", "GRPO", "0")
    assert cells(page, "addition", "GRPO", "32")
    # Its model was not made here, so its commands stand on the page of such models.
    assert "Of other models: [models beyond the tiny one](real-models.md)." in page
    assert "Hyperparameters: " not in page
    others = (results / "real-models.md").read_text()
    elsewhere = [row[3:] for row in cells(others) if row[1:3] == ["addition", "GRPO"]]
    assert [str(SEEDS), "32", "0.0003", *reached[3:6]] in [row[:6] for row in elsewhere]
    assert "plots/real-models.svg" in others
    accuracy = np.mean(stored(results, "reward_model", "accuracy"))
    (judged,) = cells(page, "addition", "Reward model", str(SEEDS))
    assert judged[3].startswith(f"{accuracy:.3f} [")
    assert others.count("Hyperparameters: ") == 4  # of TRL's run, too
    assert others.count("commit ") >= 4

    frame = pd.read_csv(results / "tables" / "language.csv")
    assert len(frame) == 4 * SEEDS * 2  # runs, seeds, moments
    final = frame[(frame["algo"] == "grpo") & frame["plain"] & (frame["when"] == "final")]
    assert list(final["pass@1"]) == last
    assert set(final["samples"]) == {32}


@pytest.mark.parametrize("algo", [*ORDER, "trl-grpo"])
def test_store_of_one_method_alone(
    algo: str, results: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if algo == "reward_model":
        place = Path("runs/addition", algo)
        shutil.copytree(results / place, tmp_path / place)
    else:
        language_run(tmp_path, algo)
    report.report(tmp_path, note="a test")
    assert "left out" not in capsys.readouterr().out
    pages = "".join(path.read_text() for path in tmp_path.glob("*-models.md"))
    assert "## Provenance\n" in pages
    assert f"/{algo}/" in pages
    assert not re.search(r"\bnan\b", pages)
    assert check_links(tmp_path) == generated(tmp_path)


def test_what_is_said_of_a_model_that_was_not_made_here(tmp_path: Path) -> None:
    """Of two seeds by hand: before training all cut-off completions may be the right ones."""
    path = language_run(tmp_path, model="mine")
    first = path / "seeds-000-000"
    config, summary = (read_json(first / f"{name}.json") for name in ("config", "summary"))
    config["config"] |= {"prompts": 4, "group_size": 8, "max_new_tokens": 32, "eval_budget": 0.1}
    config["config"]["model_content"] = "aac3780af6dd"
    before = {**summary["initial"], "pass@1": 0.02, "truncated": 0.6}
    for seed, right, cut in ((0, 0.3, 0.1), (1, 0.05, 0.2)):
        part = path / f"seeds-00{seed}-00{seed}"
        if seed:
            shutil.copytree(first, part)
        (part / "DONE.json").unlink()
        after = {**before, "pass@1": right, "truncated": cut}
        times = {"total_seconds": 600 + 120 * seed, "learn_seconds": 300}
        write_json(part / "config.json", {**config, "seeds": [seed]})
        ends = {"initial": before, "final": after}
        write_json(part / "summary.json", {**summary, **times, **ends, "seeds": [seed]})
        seal(part)
    report.report(tmp_path, note="a test")
    page = (tmp_path / "real-models.md").read_text()
    name = "SmolLM2-135M-Instruct"
    assert f"pass@1 of {name} on addition is 0.020 before GRPO and 0.175 [" in page
    assert "4 prompts with 8 completions each per update, completions of at most 32 to" in page
    assert "- `mine`: SmolLM2-135M-Instruct, from a package" in page
    assert "one after another" not in page  # a small Llama's are not
    assert "  - 2 seeds." in page
    assert "on the same 26 held-out prompts with 16 samples each" in page
    assert (
        "Before training 60.0% of the completions are cut off at 32 tokens, afterwards 10.0% to "
        "20.0%, so part of the gain may be that answers end in time. Of the completions that end, "
        "at most 5.0% are right before training, and more than that afterwards in 1 of 2 seeds, "
        "whatever was cut off."
    ) in page
    assert "GRPO on addition: Before training 60.0% of the completions are cut off" in page
    assert "So a gain can have two parts" in page
    rows = [row[3:] for row in cells(page, name)]
    assert ["0", "9.0", "9.0", "0.600", "0.100", "0.020", "0.300", *ENDED[0]] in rows
    assert ["1", "9.0", "9.0", "0.600", "0.200", "0.020", "0.050", *ENDED[1]] in rows
    assert [row for row in rows if row[:3] == ["2", "11", "5"]]
    assert cells(page, "addition", "GRPO (stale)", "64")


# Right among those that end, at least and at most: (0.3 - 0.1) / 0.9 and 0.3 / 0.9.
ENDED = ("0.000 to 0.050", "0.222 to 0.333"), ("0.000 to 0.050", "0.000 to 0.062")


def test_how_many_of_the_completions_that_end_are_right() -> None:
    """At least and at most; unknown where none ends."""
    right, cut = np.array([0.5, 0.9, 0.1]), np.array([1.0, 0.5, 0.0])
    least, most = real_models.among_ended(right, cut)
    np.testing.assert_allclose(least, [np.nan, 0.8, 0.1])
    np.testing.assert_allclose(most, [np.nan, 1.0, 0.1])
    assert list(map(real_models.between, least, most)) == ["", "0.800 to 1.000", "0.100 to 0.100"]


def test_a_model_all_of_whose_completions_are_cut_off(tmp_path: Path) -> None:
    """It is said that they are, and not what is right of none."""
    part = language_run(tmp_path, model="mine") / "seeds-000-000"
    summary = read_json(part / "summary.json")
    summary["initial"]["truncated"] = 1.0
    write_json(part / "summary.json", summary)
    (part / "DONE.json").unlink()
    seal(part)
    (m,) = methods(open_runs(tmp_path))
    cut_off = real_models.CutOff(m)
    assert cut_off.text() == (
        "Before training 100.0% of the completions are cut off, afterwards 25.0%."
    )
    assert cut_off.rows()[0][-2:] == ("", "0.333 to 0.667")


def changed_run(results: Path, settings: dict[str, Any], final: dict[str, float]) -> Path:
    """A run of another model by hand, with other settings (None: without one) and measures."""
    path = language_run(results, model="build/smollm2")
    part = path / "seeds-000-000"
    config, summary = (read_json(part / f"{name}.json") for name in ("config", "summary"))
    merged = {**config["config"], **settings}
    config["config"] = {name: x for name, x in merged.items() if x is not None}
    summary["initial"]["truncated"] = 0.75
    summary["final"] = {**summary["final"], **final}
    write_json(part / "config.json", config)
    write_json(part / "summary.json", summary)
    (part / "DONE.json").unlink()
    seal(part)
    return path


@pytest.mark.parametrize(
    ("right", "cut", "explained"),
    [(0.6, 0.25, True), (0.5, 0.25, False), (0.4, 0.25, False), (0.6, 0.75, False)],
)
def test_what_answers_that_end_in_time_explain(
    right: float, cut: float, explained: bool, tmp_path: Path
) -> None:
    """A gain, where more of them do: from 0.5, and 75% that are cut off."""
    changed_run(tmp_path, {}, {"pass@1": right, "truncated": cut})
    (m,) = methods(open_runs(tmp_path))
    assert ("part of the gain" in real_models.CutOff(m).text()) == explained


def test_a_folder_of_a_known_name_may_hold_another_model(tmp_path: Path) -> None:
    """What is known is said of the published contents alone. Settings without the number of
    prompts have their command all the same."""
    changed_run(tmp_path, {"model_content": "0123456789ab", "prompts": None}, {})
    report.report(tmp_path, note="a test")
    page = (tmp_path / "real-models.md").read_text()
    assert "\n- `build/smollm2`\n" in page
    assert "SmolLM2" not in page
    assert "completions each per update" not in page
    assert "all weights" in page


@pytest.mark.parametrize(
    ("task", "said"),
    [
        ("addition", "256 held-out prompts with 16 samples each"),
        ("examples/sums.py:Sums", "256 held-out prompts with 16 samples each"),
        ("mine.py:Rows", "held-out prompts"),
        ("gsm8k", "held-out prompts"),
    ],
)
def test_held_out_prompts_are_counted_where_they_are_known(
    task: str, said: str, tmp_path: Path
) -> None:
    """Of a task that draws them; a user's own may read a data set."""
    language_run(tmp_path, model="mine")
    (m,) = methods(open_runs(tmp_path))
    m.task = task
    assert f"the same {said}, so" in real_models.same_prompts(m)


def test_tasks_of_which_the_held_out_prompts_are_known_draw_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(ROOT)
    for name in real_models.DRAWN:
        whole = evaluation.FINAL_PROMPTS, evaluation.FINAL_SAMPLES
        assert evaluation.final_size(tasks.make(name), LanguageConfig()) == whole


def test_what_the_verdicts_on_trl_say_together() -> None:
    def verdict(word: Any, low: float, high: float) -> stats.Parity:
        return stats.Parity(word, stats.Estimate((low + high) / 2, low, high, 10), 0.5)

    found = [
        ("DPO", verdict("undecided", -0.02, 0.01)),
        ("SFT", verdict("undecided", -0.08, 0.08)),
        ("GRPO", verdict("worse", -0.049, -0.01)),
    ]
    twice = [("GRPO", verdict("undecided", -0.02, 0.02)), ("GRPO", verdict("worse", -0.2, -0.1))]
    worse, close = (
        "Shown to be worse than TRL: ",
        "A score lower than TRL's by more than 0.05 is excluded: ",
    )
    others, missing = "It is not excluded: ", "No verdict: "
    for judged, *lines in (
        (found, f"{worse}GRPO", f"{close}DPO, GRPO", f"{others}SFT"),
        (found[:1], f"{worse}no method", f"{close}DPO"),
        (found[1:2], f"{worse}no method", f"{close}no method", f"{others}SFT"),
        (twice, f"{worse}GRPO", f"{close}GRPO", f"{others}GRPO"),
        ([("GRPO", None), found[0]], f"{worse}no method", f"{close}DPO", f"{missing}GRPO"),
        (
            [("GRPO", verdict("saturated", 0.0, 0.0))],
            f"{worse}no method",
            f"{close}no method",
            f"{others}GRPO",
        ),
    ):
        items, _ = language_models.trl_outcome(judged)
        assert isinstance(items, Items)
        assert items.items == lines
    assert [*language_models.trl_outcome([("DPO", None)])] == []


def test_too_few_seeds_have_no_verdict_and_one_no_interval(results: Path) -> None:
    """Nor has a comparison of other initial models a verdict."""

    def verdict() -> str:
        return rows(language_models.trl_section(found, results), "language-trl")[0][7]

    found = methods(open_runs(results))
    (theirs,) = [m for m in found if m.algo == "trl-grpo"]
    assert verdict() == "none (needs 10 seeds per side)"
    theirs.summaries[0]["initial"]["entropy"] *= 1 + 1e-4  # a token that was drawn is another one
    assert verdict() == "none (needs 10 seeds per side)"
    theirs.summaries[0]["initial"]["entropy"] *= 1.02
    assert verdict() == "none (other initial models)"
    theirs.parts, theirs.configs = theirs.parts[:1], theirs.configs[:1]
    theirs.summaries = theirs.summaries[:1]
    assert theirs.gain().endswith("(no interval, n=1)")
    assert "nan" not in theirs.gain() + theirs.text("pass@1")


def test_what_the_critic_costs_is_counted(results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Twice the parameters but for the heads, and their gradients and moments."""
    adamw = torch.optim.AdamW
    monkeypatch.setattr(llm_critic_cost, "SAMPLES", 32)
    equal = {"epochs": 1, "kl_coef": 0.04}  # the prompts are those of the fixture
    monkeypatch.setattr(llm_critic_cost, "EQUAL", equal)
    measurements = []
    for case in llm_critic_cost.CASES:
        monkeypatch.setattr(torch.optim, "AdamW", adamw)
        figures = llm_critic_cost.measure(*case.values(), str(results))
        measurements.append({"repeat": 0, **case, **figures})
    two, one, without = measurements
    assert two["samples"] == one["samples"] == without["samples"] == 32
    policy = without["parameters"]
    assert two["parameters"] == one["parameters"] == 2 * policy + 64  # the head has one per unit
    for m in measurements:
        assert m["optimizer_bytes"] == 3 * 4 * m["parameters"]
        assert m["learn_s"] > 0
    origin = provenance(["llm_track/grpo.py:train"], ["transformers"])
    path = results / "llm_critic_cost.json"
    content = {"command": "python x", "equal": equal, "measurements": measurements, **origin}
    path.write_text(json.dumps(content))
    blocks = language_models.critic_section(methods(open_runs(results)), results)
    table = rows(blocks, "language-critic-cost")
    cases = [[display(case["algo"]), case["passes"]] for case in llm_critic_cost.CASES]
    assert [row[:2] for row in table] == cases
    for row, m in zip(table, measurements, strict=True):
        assert row[2] == f"{m['parameters']:,.0f}"
        assert row[5] == f"{1e3 * median([m['learn_s'] / m['samples']]):.2f}"
    assert table[2][6]  # of the plain run in the store
    assert not table[1][6]
