"""The exact estimators: sums over groups against the track's own losses on every single group."""

from __future__ import annotations

import copy
import itertools
import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from manyseeds.benchmarks.chapters import estimators
from manyseeds.benchmarks.chapters.blocks import Items, Table, Text, cells_of, text_of
from manyseeds.benchmarks.measurements import llm_oracle as oracle
from manyseeds.benchmarks.measurements.llm_oracle import Estimator, Prompt
from manyseeds.llm_track import dapo, dr_grpo, grpo
from tests.llm_track.batches import loss_of

GROUP = 3


@pytest.fixture(scope="module", autouse=True)
def _small() -> Any:
    """Seven completions of at most two tokens, in groups of three: 343 groups."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        for name, value in (("V", 3), ("T", 2), ("G", GROUP)):
            monkeypatch.setattr(oracle, name, value)
        yield


@pytest.fixture(scope="module")
def models() -> tuple[Any, Any]:
    """The policy that has sampled, and another one."""
    return oracle.make_model(3), oracle.make_model(4)


def prompt(model: Any) -> list[Prompt]:
    return [Prompt(model, 0)]


def test_the_true_gradient_is_that_of_the_expected_reward(models: tuple[Any, Any]) -> None:
    model = models[0]
    x = prompt(model)
    found = oracle.true_gradient(x)
    direction = [torch.randn_like(p) for p in model.parameters()]
    h = 1e-5

    def reward(step: float) -> float:
        (y,) = prompt(oracle.moved(model, direction, step))
        return y.mean(y.rewards).item()

    slope = (reward(h) - reward(-h)) / (2 * h)
    along = found @ torch.cat([d.flatten() for d in direction])
    assert along.item() == pytest.approx(slope, rel=1e-6)


def weights_of_dapo(mask: Tensor) -> Tensor:
    (weights,) = dapo.token_weights(mask, torch.tensor(GROUP), mask.sum(), token_level=True)
    return weights


METHODS: dict[str, tuple[Any, Any, Any, Estimator]] = {
    "grpo": (
        grpo.Config(clip_range=0.2, kl_coef=0.0),
        grpo,
        lambda mask: grpo.token_weights(mask, GROUP),
        Estimator("", grpo.group_advantages, "sample", low=0.8, high=1.2),
    ),
    "dr_grpo": (
        dr_grpo.Config(clip_range=0.0),
        dr_grpo,
        lambda mask: dr_grpo.token_weights(mask, GROUP, 2),
        Estimator("", dr_grpo.group_advantages, "constant"),
    ),
    "dapo": (
        dapo.Config(clip_range=0.2, clip_range_high=0.28),
        dapo,
        weights_of_dapo,
        Estimator("", dapo.group_advantages, "token", low=0.8, high=1.28),
    ),
}


@pytest.mark.parametrize("method", METHODS)
def test_sums_over_groups_are_those_of_the_tracks_losses(
    method: str, models: tuple[Any, Any]
) -> None:
    config, module, weights, estimator = METHODS[method]
    then, now = (prompt(model) for model in models)
    expected, square = oracle.moments(now, then, estimator)
    (x,), (y,) = then, now
    mean, squared = torch.zeros_like(expected), 0.0
    for group in itertools.product(range(7), repeat=GROUP):
        rows = list(group)
        logprobs = y.logprobs[rows].clone().requires_grad_()
        advantages = estimator.advantages(x.rewards[rows].unsqueeze(0)).view(-1, 1)
        tokens = weights(x.mask[rows])
        old, columns = x.logprobs[rows], advantages.expand_as(logprobs)
        loss = loss_of(module, logprobs, old, old, columns, tokens, config)
        (slope,) = torch.autograd.grad(loss, logprobs)
        gradient = -(slope.unsqueeze(-1) * y.scores[rows]).sum((0, 1))
        p = x.p[rows].prod().item()
        mean += p * gradient
        squared += p * gradient.square().sum().item()
    torch.testing.assert_close(mean, expected, rtol=1e-9, atol=1e-12)
    assert squared == pytest.approx(square.item(), rel=1e-9)


def test_which_estimators_are_unbiased(models: tuple[Any, Any]) -> None:
    """Up to their scale; leave-one-out's is 1 but for the constant 1/T."""
    x = prompt(models[0])
    true = oracle.true_gradient(x)
    figures = {e.name: oracle.compared(*oracle.moments(x, x, e), true) for e in oracle.ESTIMATORS}
    for name in ("REINFORCE, no baseline", "leave-one-out (RLOO)", "mean (Dr. GRPO)"):
        assert figures[name]["bias"] < 1e-10
    assert figures["leave-one-out (RLOO)"]["scale"] == pytest.approx(1 / 2)
    assert figures["mean (Dr. GRPO)"]["scale"] == pytest.approx((1 - 1 / GROUP) / 2)
    assert figures["mean, per sample"]["bias"] > 0.01
    assert figures["mean and std, per token (DAPO)"]["bias"] > 0.01


@pytest.mark.parametrize("size", [2, 5])
def test_advantages_of_mixed_groups_are_those_of_every_single_group(size: int) -> None:
    p = 0.2
    total: dict[Any, float] = {}
    for group in itertools.product((0.0, 1.0), repeat=size):
        rewards = torch.tensor([group], dtype=torch.float64)
        of_first = dr_grpo.group_advantages(rewards)[0, 0].item()
        weight = math.prod(p if x else 1 - p for x in group)
        kept = 0 < sum(group) < size
        for key in ("all", "mixed") if kept else ("all",):
            for name, value in (("n", 1), ("sum", of_first), ("bias", of_first - group[0] + p)):
                place = key, name, "right" if group[0] else "wrong"
                total[place] = total.get(place, 0.0) + weight * value
    found = oracle.mixed_groups(p, size)
    for key, of in itertools.product(("all", "mixed"), ("right", "wrong")):
        mean = total[key, "sum", of] / total[key, "n", of]
        assert found[f"{of}_{key}"] == pytest.approx(mean, rel=1e-12)
    kept = total["mixed", "n", "right"] + total["mixed", "n", "wrong"]
    assert found["mixed"] == pytest.approx(kept, rel=1e-12)
    bias = (total["mixed", "bias", "right"] + total["mixed", "bias", "wrong"]) / kept
    assert found["bias"] == pytest.approx(bias, rel=1e-12)
    assert bias < 0  # hard prompts are underestimated
    assert oracle.mixed_groups(1 - p, size)["bias"] == pytest.approx(-bias, rel=1e-12)


def test_the_numbers_of_a_hard_prompt() -> None:
    found = oracle.mixed_groups(0.02, 8)
    assert found["right_mixed"] == pytest.approx(7 / 8 * 0.98)
    assert 1 / found["mixed"] == pytest.approx(6.70, abs=0.01)


def test_mixed_groups_of_any_prompts_keep_the_gradient_and_of_each_prompt_turn_it(
    models: tuple[Any, Any],
) -> None:
    """Two prompts of unequal difficulty, all pairs of a prompt and a group enumerated."""
    hard, easy = Prompt(models[0], 0), Prompt(models[0], 2)
    prompts, true = [hard, easy], oracle.true_gradient([hard, easy])
    by_prompt, squares, shares = [], [], []
    for x in prompts:
        total, squared, kept = torch.zeros_like(true), 0.0, 0.0
        for group in itertools.product(range(7), repeat=GROUP):
            rows = list(group)
            rewards, p = x.rewards[rows], x.p[rows].prod().item()
            if 0 < rewards.sum() < GROUP:
                advantages = dr_grpo.group_advantages(rewards.unsqueeze(0))[0]
                gradient = (advantages.unsqueeze(1) * x.score[rows]).sum(0) / (2 * GROUP)
                total += p * gradient
                squared += p * gradient.square().sum().item()
                kept += p
        by_prompt.append(total)
        squares.append(squared)
        shares.append(kept)
    assert abs(shares[0] - shares[1]) > 0.05
    wanted = {
        "again": (by_prompt[0] / shares[0] + by_prompt[1] / shares[1]) / 2,
        "fresh": (by_prompt[0] + by_prompt[1]) / (shares[0] + shares[1]),
    }
    lengths = {
        "again": (squares[0] / shares[0] + squares[1] / shares[1]) / 2,
        "fresh": (squares[0] + squares[1]) / (shares[0] + shares[1]),
    }
    bias = {}
    for e in oracle.ESTIMATORS:
        if e.groups in wanted:
            mean, square = oracle.moments(prompts, prompts, e)
            # A token's weight is in single precision, as in the track.
            torch.testing.assert_close(mean, wanted[e.groups], rtol=1e-7, atol=1e-12)
            assert square.item() == pytest.approx(lengths[e.groups], rel=1e-6)
            bias[e.groups] = oracle.compared(mean, square, true)["bias"]
    assert bias["fresh"] < 1e-10
    assert bias["again"] > 1e-3


def test_k1_in_the_reward_is_the_kl_and_in_the_loss_nothing(models: tuple[Any, Any]) -> None:
    then, now = (prompt(model) for model in models)
    rows = {(row["name"], row["place"]): row for row in oracle.measure_kl(now, then)}
    assert rows["k1", "reward"]["bias"] < 1e-10
    assert rows["k1", "reward"]["scale"] == pytest.approx(1)
    assert rows["k1", "loss"]["cosine"] is None
    for name in ("k1", "k3"):  # the values of both are unbiased
        assert rows[name, "loss"]["value"] == pytest.approx(rows[name, "loss"]["kl"])
    assert rows["k2", "loss"]["value"] != pytest.approx(rows["k2", "loss"]["kl"], rel=1e-3)


def test_the_page_says_which_are_unbiased(tmp_path: Path) -> None:
    row = {"scale": 1.0, "cosine": 1.0, "bias": 1e-15, "noise": 2.0}
    effects = {"length_wrong": 0.5, "entropy": 1.0}
    biased = {**row, "bias": 0.25, "length_wrong": 1.5}
    nothing = {"scale": 0.0, "cosine": None, "bias": None, "noise": None}
    value = {"value": 0.1, "std": 1.0, "kl": 0.1}
    tables: dict[str, Any] = {
        "command": "a",
        "code": {"digest": "0" * 12, "commit": "c0ffee", "origins": []},
        "machine": {"cpu": "x"},
        "versions": {"torch": "1", "transformers": "2"},
        "sizes": {"K": 1, "V": 3, "T": 2, "G": 3, "completions": 7},
        "steps": {"kl": 0.1, "clip": 0.2},
        "prompts": [{"right": 0.5, "length": 2.0}],
        "exact": effects,
        "estimators": [
            {"name": "good", "average": "constant", "groups": "all", **effects, **row},
            {"name": "long", "average": "sample", "groups": "again", **effects, **biased},
        ],
        "kl": [
            {"name": "k1", "place": "reward", **value, **row},
            {"name": "k1", "place": "loss", **value, **nothing},
            {
                "name": "k2",
                "place": "loss",
                **value,
                **row,
                "value": 0.2,
                "bias": 0.01,
                "scale": 0.5,
            },
        ],
        "clips": [
            {"name": "none", "above": 0.0, "below": 0.0, **row, **effects},
            {"name": "0.2, 0.2", "above": 0.1, "below": 0.0, **row, **effects, "scale": 0.5},
        ],
    }
    other = copy.deepcopy(tables)  # a network where all is larger
    other["estimators"][1] |= {"bias": 0.5, "length_wrong": 3.5}
    other["kl"][2]["bias"] = 0.03
    other["clips"][1]["scale"] = 0.75
    stored = oracle.with_ranges([tables, other])
    assert {(x["size"], x["right"]) for x in stored["mixed"]} >= {(8, 0.02), (2, 0.98)}
    (tmp_path / "llm_oracle.json").write_text(json.dumps(stored))
    blocks = estimators.page(tmp_path)
    said = [text_of(x) for x in blocks if isinstance(x, Text)]
    listed = [x.items for x in blocks if isinstance(x, Items)]
    assert "range over 2 such networks" in said[0]
    assert said[2] == "Unbiased up to a constant factor:"
    assert listed == [
        ["good"],
        ["long: 25 to 50%, +1.00 to +3.00 tokens"],
        ["long: 25 to 50%"],  # whose groups are mixed
        ["k2 in the loss: 1 to 3%, 50% of the gradient"],
        ["0.2, 0.2: 50 to 75%"],
    ]
    kl = next(text for text in said if text.startswith("Unbiased for the value"))
    assert kl.startswith("Unbiased for the value of the KL: k1. Unbiased for its gradient: k1 in ")
    assert "The mean of k1 in the loss is 0." in kl
    tables = {x.name: cells_of(x) for x in blocks if isinstance(x, Table)}
    assert tables["estimators"][2][:4] == ["long", "sample", "1.000", "0.250"]
