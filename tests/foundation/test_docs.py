"""The pages in docs, executed: what they say is typed, and what they say is printed."""

from __future__ import annotations

import dataclasses
import inspect
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from manyseeds.benchmarks.__main__ import commands as listed
from manyseeds.benchmarks.baselines.sb3_baseline import BASELINES
from manyseeds.benchmarks.verify import named
from manyseeds.cli import PUBLISHED
from manyseeds.digest import ROOT

DOCS = ROOT / "docs"


def commands(page: str) -> list[str]:
    """The blocks that a reader types."""
    return re.findall(r"^```sh\n(.*?)^```$", (DOCS / page).read_text(), re.DOTALL | re.MULTILINE)


def typed(block: str, folder: Path) -> str:
    """Run a block with the environment that the page asks for; what it prints."""
    path = f"{ROOT / '.venv' / 'bin'}:{os.environ['PATH']}"
    variables = {**os.environ, "PATH": path, "MANYSEEDS": str(ROOT), "COLUMNS": "200"}
    variables.pop("PYTHONPATH", None)
    command = ["bash", "-euo", "pipefail", "-c", block]
    out, err = subprocess.PIPE, subprocess.STDOUT
    done = subprocess.run(command, cwd=folder, env=variables, text=True, stdout=out, stderr=err)
    assert done.returncode == 0, done.stdout
    return done.stdout


def score(printed: str) -> str:
    """The final score of a training's table."""
    found = re.search(r"IQM ([\d.-]+)", printed.rpartition("final greedy return")[2])
    assert found, printed
    return found[1]


@pytest.mark.slow
def test_your_own_algorithm(tmp_path: Path) -> None:
    blocks = commands("your-own-algorithm.md")
    first, edit, again, compared = (typed(block, tmp_path) for block in blocks)
    assert "note" not in first
    assert "return -(ratio * advantages).mean(-1)" in edit
    assert "policy_loss of my_ppo.py was changed: PyTorch computes this now, not C" in again
    line = re.search(r"^note: policy_loss.*$", again, re.MULTILINE)
    assert line
    assert line[0] in (DOCS / "your-own-algorithm.md").read_text()
    assert ".stale" in again
    assert score(again) != score(first) == score(compared.partition("curve.parquet")[0])
    assert "my_ppo" in compared


@pytest.mark.slow
def test_your_own_environment(tmp_path: Path) -> None:
    blocks = commands("your-own-environment.md")
    written, first, again, measured = (typed(block, tmp_path) for block in blocks)
    assert written == ""
    assert ".stale" not in first
    assert ".stale" in again
    assert score(first) != score(again)
    assert "random policy on corridor:Corridor-v0: " in measured


@pytest.mark.slow
def test_your_own_reward(tmp_path: Path) -> None:
    blocks = commands("your-own-reward.md")
    written, first, again, data, task, wrong = (typed(block, tmp_path) for block in blocks)
    assert written == ""
    assert ".stale" not in first
    assert ".stale" in again
    assert re.search("grpo on doubles.jsonl, 1 seed.* reward ", data, re.DOTALL)
    assert "grpo on halves.py:Halves, 1 seed" in task
    assert wrong.count("\n") == 1
    assert wrong in (DOCS / "your-own-reward.md").read_text()
    part = tmp_path / "results/local/runs/doubles.jsonl/grpo/doubles/seeds-000-000"
    metrics = pd.read_parquet(part / "metrics.parquet")
    for name in ("reward/large.right", "reward/large.large"):
        assert metrics[name].iloc[-3:].mean() > metrics[name].iloc[:3].mean() + 0.15


def sections(page: str) -> dict[str, str]:
    """What stands below the headings of a page."""
    parts = re.split(r"^## (.*)\n", (DOCS / page).read_text(), flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def test_commands() -> None:
    """All of a group stand in its table."""
    page = sections("commands.md")
    for title, found in listed().items():
        table = page[title.partition(":")[0]]
        named = re.findall(r"^\| `python benchmarks/(\w+\.py)", table, re.MULTILINE)
        assert sorted(named) == sorted(found)


def test_five_cells_are_computed_again() -> None:
    """By a script that has nothing of this project but its files."""
    script = ROOT / "docs" / "recompute.py"
    assert "manyseeds" not in script.read_text()
    lines = typed("python docs/recompute.py", ROOT).splitlines()
    assert len(lines) == 5
    assert all(line.endswith(" equal") for line in lines)


def test_the_cited_number_is_published() -> None:
    quote = (DOCS / "citing-a-number.md").read_text().partition("> ")[2].partition("\n\n")[0]
    score, interval, commit, command = re.findall(r"-[\d.]+(?=,)|\[.*?\]|commit \w+|`.*?`", quote)
    page = (ROOT / "results" / "environments" / "Pendulum-v1.md").read_text()
    assert f" {score} {interval}<br>" in page.replace("\N{NO-BREAK SPACE}", " ")
    assert f"{command}\n" in page
    assert f", {commit}\n" in page


def test_the_command_of_a_real_model_has_trained_the_published_run() -> None:
    """Its seeds, one after another; the next command names this run."""
    block, verified, *_ = commands("your-own-model.md")
    typed = " ".join(block.partition("llm_track/rloo.py")[2].replace("\\\n", "").split())
    flags, seeds = typed.split(" --seeds ")
    (run,) = named(PUBLISHED, [verified.split()[2]])
    assert [len(config["seeds"]) for config in run.configs] == [1] * int(seeds)
    for config in run.configs:
        assert all(f" --{x.strip()} " in f"{config['command']} " for x in flags.split("--")[1:])
    assert f"`{run.configs[0]['command']}`" in (PUBLISHED / "real-models.md").read_text()


QRDQN: dict[str, Any] = {"distribution": "quantile", "n_steps": 1, "double": False}
QRDQN |= {"dueling": False, "prioritized": False, "noisy": False}


@pytest.mark.parametrize("algo", BASELINES)
def test_names(algo: str) -> None:
    """A name of the tables is a field of our Config, and the argument of SB3 that follows it."""
    own = sections("names.md")
    baseline = BASELINES[algo]
    config = baseline.config(**{"dqn": {"loss": "huber"}, "rainbow": QRDQN}.get(algo, {}))
    arguments = baseline.arguments(config)
    followed = []
    for title in ("Every algorithm", "DQN" if algo == "rainbow" else algo.upper()):
        for here, there in re.findall(r"^\| (`.*?) \| (.*?) \|", own[title], re.MULTILINE):
            first, *_ = fields = re.findall(r"`(\w+)`", here)
            for field in fields:
                assert hasattr(config, field), title
            if not (name := re.fullmatch(r"`(\w+)`", there)):
                continue
            assert name[1] in inspect.signature(baseline.model).parameters, title
            value = getattr(config, first)
            if name[1] in arguments and not isinstance(value, str):
                other = value / 2 or 0.5 if isinstance(value, float) else value * 2
                other = not value if isinstance(value, bool) else other
                changed = baseline.arguments(dataclasses.replace(config, **{first: other}))
                assert changed[name[1]] != arguments[name[1]], name[1]
                followed.append(name[1])
    assert followed
