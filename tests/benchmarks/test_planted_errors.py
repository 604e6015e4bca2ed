"""The same mistakes, planted before and after reinforcement learning."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch

from manyseeds.benchmarks.measurements import planted_errors
from manyseeds.benchmarks.measurements.planted_errors import (
    SHARES,
    Planted,
    columns_of,
    planted,
    probabilities,
)
from manyseeds.digest import ROOT
from manyseeds.llm_track import grpo, models, tasks
from manyseeds.llm_track.policies import load_policy
from manyseeds.runs.language_seeds import SeedsRun
from manyseeds.untrusted import check
from tests.random_models import make_model

COIN = f"{ROOT}/examples/random_reward.py:coin"  # a model with random weights earns nothing else
SMALL = {"prompts": 2, "group_size": 8, "max_new_tokens": 8, "reward": (COIN,)}
TASK = cast(tasks.Checking, tasks.GENERATED["checking"])


def test_columns_are_those_that_wait_does_not_take_back() -> None:
    for problem in TASK.test(256):
        a, b = problem.prompt.rstrip("=").split("+")
        assert columns_of(problem) == TASK.columns(int(a), int(b))
    assert sum("wait" in x.demonstration for x in TASK.test(256)) > 50


def test_a_mistake_is_one_column_after_right_ones() -> None:
    problems = TASK.test(256)
    pairs = zip(problems, planted(problems, True), planted(problems, False), strict=True)
    places = set()
    for problem, wrong, right in pairs:
        columns = columns_of(problem)
        *before, written, rest = wrong.beginning.removeprefix("<think>").split(";")
        k = len(before)
        assert (before, rest, wrong.right) == (columns[:k], "", columns[k])
        assert written.partition("=")[0] == columns[k].partition("=")[0]
        assert written != columns[k]
        assert 0 <= int(written.partition("=")[2]) < 20
        whole = f"<think>{''.join(f'{x};' for x in columns[: k + 1])}"
        assert right == Planted(problem.prompt, whole, columns[k])
        places.add(k)
    assert {0, 1} <= places


def test_probabilities_are_those_of_the_model(tmp_path: Path) -> None:
    """Token by token, of each seed."""
    name = make_model("tiny", tmp_path / "model")
    config = grpo.Config(task="checking", model=name, seeds=2, max_new_tokens=64)
    policy = load_policy(config, SeedsRun(config, [0, 1]))
    model, tokenizer = models.load_model(
        config, torch.device("cpu"), SeedsRun(config, [0]).processes
    )
    given = planted(TASK.test(3), wrong=True)
    found = probabilities(policy, TASK, given)
    for k, x in enumerate(given):
        for of_kind, before, after in (
            (found[0], x.beginning, "wait;"),
            (found[1], f"{x.beginning}wait;", f"{x.right};"),
        ):
            start = tokenizer.encode(x.prompt) + tokenizer.encode(before, add_special_tokens=False)
            more = tokenizer.encode(after, add_special_tokens=False)
            logits = model(torch.tensor([start + more])).logits[0].double().log_softmax(-1)
            logs = [logits[len(start) - 1 + i, token] for i, token in enumerate(more)]
            expected = float(torch.stack(logs).sum().exp().detach())
            np.testing.assert_allclose(of_kind[:, k], expected, rtol=1e-4)


def test_blocks_are_stored_and_the_others_follow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before is the initial model, and after it is another one; of other code nothing is kept."""
    name = make_model("tiny", tmp_path / "model")
    monkeypatch.setattr(planted_errors, "PROMPTS", 4)
    monkeypatch.setattr(planted_errors, "BLOCK", 1)
    monkeypatch.setattr(planted_errors.suite, "OWN", {"model": name, **SMALL})
    trained: list[list[int]] = []
    measure = planted_errors.measure

    def spy(seeds: Any, config: Any) -> Any:
        trained.append([*seeds])
        return measure(seeds, config)

    monkeypatch.setattr(planted_errors, "measure", spy)
    flags = ["--results", str(tmp_path / "results"), "--total-samples", "32"]

    def stored(seeds: int) -> Any:
        planted_errors.main([*flags, "--seeds", str(seeds)])
        content = json.loads((tmp_path / "results" / "planted_errors.json").read_text())
        check(content, planted_errors.STORED, "")
        return content

    assert len(stored(1)["measurements"]) == 1
    content = stored(3)
    assert trained == [[0], [1], [2]]
    assert [row["seed"] for row in content["measurements"]] == [0, 1, 2]
    for row in content["measurements"]:
        assert row["before"] == content["measurements"][0]["before"]  # a model that all share
        assert all(row["before"][x] != row["after"][x] for x in SHARES)
    ends = [row["after"]["wait_if_wrong"] for row in content["measurements"]]
    assert len({*ends}) == 3
    content["code"]["digest"] = "other"
    (tmp_path / "results" / "planted_errors.json").write_text(json.dumps(content))
    assert len(stored(1)["measurements"]) == 1
    assert trained[3:] == [[0]]
    # A training that diverged makes no file that cannot be read.
    monkeypatch.setattr(planted_errors, "shares", lambda *_: [dict.fromkeys(SHARES, math.nan)])
    diverged = stored(2)["measurements"][1]
    assert diverged["after"] == {"accuracy": diverged["after"]["accuracy"], **dict.fromkeys(SHARES)}
