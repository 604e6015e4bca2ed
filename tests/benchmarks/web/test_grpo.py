"""The GRPO page: its numbers against the language track's own functions, in a real browser."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator
from fractions import Fraction
from math import comb
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import quote

import numpy as np
import pytest
import torch
from torch import Tensor

from manyseeds.benchmarks.web import grpo as page_of_grpo
from manyseeds.digest import ROOT
from manyseeds.llm_track import dapo, dr_grpo, grpo, rlhf_ppo
from manyseeds.llm_track.rollout import kl
from manyseeds.llm_track.tasks import Graded
from manyseeds.runs.parallel import Processes
from tests.benchmarks.conftest import Output
from tests.benchmarks.web.conftest import HOSTILE
from tests.benchmarks.web.test_browser import opened
from tests.llm_track.batches import loss_of

STORED = json.loads((ROOT / "results" / page_of_grpo.FILE).read_text())
PAGE = "grpo.html"
METHODS = page_of_grpo.methods(page_of_grpo.TASK, STORED["longest"])


@pytest.fixture(autouse=True)
def _double_precision() -> Iterator[None]:
    """A browser's numbers have 64 bits; so have the tensors that the track makes here."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def computed(engine: Any, completions: list[dict[str, Any]], settings: dict[str, Any]) -> Any:
    return engine.evaluate("([c, s]) => GrpoEngine.compute(c, s)", [completions, settings])


class Reference:
    """What the track's functions make of a group, in float64; the group is the minibatch."""

    def __init__(self, completions: list[dict[str, Any]], settings: dict[str, Any]) -> None:
        self.completions, self.settings = completions, settings
        self.lengths = torch.tensor([len(x["tokens"]) for x in completions])
        T = int(self.lengths.max())
        self.mask = torch.arange(T) < self.lengths.unsqueeze(1)

        def padded(name: str) -> Tensor:
            rows = [x[name] + [0.0] * (T - len(x[name])) for x in completions]
            return torch.tensor(rows)

        self.old, self.current, self.reference, self.values = map(padded, page_of_grpo.NUMBERS)
        self.ended = torch.tensor([x["ended"] for x in completions])
        self.rewards = self._rewards()
        self.advantages = self._advantages()
        self.learned = self._learned()

    def _rewards(self) -> Tensor:
        """By the track's own `rewards_of`, where a reward is not given."""
        s = self.settings
        graded = [Graded(None, "", float(x["right"]), float(x["format"])) for x in self.completions]
        rollout: Any = SimpleNamespace(tokens=torch.zeros(1), lengths=self.lengths.unsqueeze(0))
        config = SimpleNamespace(
            format_weight=s["formatWeight"],
            rules=True,
            reward=(),
            max_new_tokens=s["longest"],
            overlong_cache=s["overlongCache"],
        )
        (signed,) = dapo.rewards_of([graded], rollout, None, config)
        (plain,) = grpo.rewards_of([graded], rollout, None, config)
        punished = dapo.overlong_punishment(self.lengths, s["longest"], s["overlongCache"])
        rewards = signed if s["signed"] else plain + punished
        rewards -= s["missingEosPenalty"] * ~self.ended
        for i, x in enumerate(self.completions):
            if x.get("reward") is not None:
                rewards[i] = x["reward"]
        return rewards

    def _advantages(self) -> Tensor:
        s = self.settings
        if s["advantage"] == "critic":
            tensors = (self.rewards, self.old, self.reference, self.mask)
            given = [x.unsqueeze(0) for x in tensors]  # of one seed
            by_token, mask = rlhf_ppo.token_rewards(*given, s["kl"]), given[-1]
            values = self.values.unsqueeze(0)
            found = rlhf_ppo.gae(by_token, values, mask, s["gamma"], s["lambda"])
            return rlhf_ppo.whiten(found, mask, Processes(torch.device("cpu")))[0]
        module: Any = grpo if s["std"] else dr_grpo
        found = module.group_advantages(self.rewards.unsqueeze(0))[0]
        return found.unsqueeze(1).expand_as(self.old) * self.mask

    def _learned(self) -> Tensor:
        """DAPO's mask of what is learned from: mixed groups, completions that have ended."""
        s = self.settings
        right = sum(x["right"] for x in self.completions)
        mixed = not s["dynamicSampling"] or 0 < right < len(self.completions)
        keeps = self.ended if s["overlongFiltering"] else torch.ones_like(self.ended)
        return self.mask & (keeps & mixed).unsqueeze(1)

    def weights(self) -> Tensor:
        s, completions = self.settings, self.learned.any(1).sum()
        if s["normalise"] == "constant":
            return dr_grpo.token_weights(self.learned, max(int(completions), 1), s["longest"])
        token_level = s["normalise"] == "tokens"
        return dapo.token_weights(self.learned, completions, self.learned.sum(), token_level)[0]

    def loss(self, current: Tensor) -> Tensor:
        """By the clipped objective of DAPO, and GRPO's KL."""
        s = self.settings
        config = dapo.Config(
            clip_range=s["clipLow"],
            clip_range_high=s["clipHigh"],
            kl_coef=s["kl"] if s["advantage"] == "group" else 0.0,
        )
        tensors = (current, self.old, self.reference, self.advantages, self.weights())
        return loss_of(dapo, *tensors, config)


def check(engine: Any, completions: list[dict[str, Any]], settings: dict[str, Any]) -> None:
    """Rewards, advantages, ratios, weights, loss and its gradient, to 1e-9."""
    found, reference = computed(engine, completions, settings), Reference(completions, settings)
    current = reference.current.requires_grad_()
    loss = reference.loss(current)
    loss.backward()
    low, high = dapo.clip_bounds(
        SimpleNamespace(clip_range=settings["clipLow"], clip_range_high=settings["clipHigh"])
    )
    ratio = (current - reference.old).exp()
    outside = (ratio < low) | (ratio > high)
    expected = {
        "advantage": reference.advantages,
        "ratio": ratio,
        "weight": reference.weights(),
        "push": -current.grad,
        "kl": kl(current, reference.reference),
        "outside": outside,
        "stopped": (ratio.clamp(low, high) - ratio) * reference.advantages < 0,
    }
    np.testing.assert_allclose(found["rewards"], reference.rewards, rtol=1e-9, atol=1e-9)
    for name, tensor in expected.items():
        ours = [x[name] for row in found["rows"] for x in row["tokens"]]
        theirs = tensor[reference.mask].tolist()
        np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=1e-9, err_msg=name)
    np.testing.assert_allclose(found["loss"], loss.item(), rtol=1e-9, atol=1e-9)
    share = (reference.weights() * outside).sum().item()
    np.testing.assert_allclose(found["clipfrac"], share, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("group", STORED["groups"])
@pytest.mark.parametrize("method", METHODS)
def test_methods_as_they_are(engine: Any, method: str, group: str) -> None:
    check(engine, STORED["groups"][group]["completions"], METHODS[method])


def edited(seed: int) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """A stored group with some rewards and marks changed, and settings of a random mixture."""
    rng = np.random.default_rng(seed)
    names = list(STORED["groups"])
    completions = copy.deepcopy(STORED["groups"][names[rng.integers(len(names))]]["completions"])
    for x in completions:
        if rng.random() < 0.3:
            x["reward"] = float(rng.choice([0.0, 1.0, rng.normal()]))
        if rng.random() < 0.3:
            x["right"] = not x["right"]
    longest = STORED["longest"]
    settings = {
        "advantage": str(rng.choice(["group", "group", "critic"])),
        "std": bool(rng.random() < 0.5),
        "normalise": str(rng.choice(["completion", "tokens", "constant"])),
        "kl": float(rng.choice([0.0, 0.04, rng.uniform(0, 2)])),
        "signed": bool(rng.random() < 0.5),
        "formatWeight": float(rng.choice([0.0, 0.1, 1.0])),
        "overlongCache": int(rng.integers(0, longest + 1) * (rng.random() < 0.7)),
        "missingEosPenalty": float(rng.choice([0.0, 1.0])),
        "overlongFiltering": bool(rng.random() < 0.5),
        "dynamicSampling": bool(rng.random() < 0.5),
        "gamma": float(rng.choice([1.0, 0.9])),
        "lambda": float(rng.choice([0.0, 0.95, 1.0])),
        "clipLow": float(rng.choice([0.0, 0.2, rng.uniform(0, 0.9)])),
        "clipHigh": float(rng.choice([0.0, 0.28, rng.uniform(0, 2)])),
        "longest": longest,
    }
    return completions, settings


@pytest.mark.parametrize("seed", range(40))
def test_edits_and_switches(engine: Any, seed: int) -> None:
    check(engine, *edited(seed))


def test_presets_are_those_of_the_track() -> None:
    """The names that the page has for them mean what the track's flags mean."""
    grpo_config, dapo_config = grpo.Config(), dapo.Config()
    assert METHODS["grpo"]["kl"] == grpo_config.kl_coef
    assert METHODS["dapo"]["clipHigh"] == dapo_config.clip_range_high > dapo_config.clip_range
    assert METHODS["ppo"]["lambda"] == rlhf_ppo.PRESETS["addition"].settings["gae_lambda"]
    assert not METHODS["dr_grpo"]["std"]
    assert METHODS["dr_grpo"]["kl"] == 0


# ---- The page --------------------------------------------------------------------------------


def shown_advantages(page: Any) -> list[float]:
    texts = page.locator(".completion .advantage").all_inner_texts()
    return [float(x.split("= ")[1].replace("\N{MINUS SIGN}", "-")) for x in texts]


def expected_advantages(completions: list[dict[str, Any]], method: str) -> list[float]:
    """The mean over the tokens of each completion."""
    found = Reference(completions, METHODS[method])
    return ((found.advantages * found.mask).sum(1) / found.lengths).tolist()


def test_methods_rewards_and_marks_as_a_reader_changes_them(browser: Any, site: Path) -> None:
    stored = STORED["groups"]["mixed"]["completions"]
    completions = copy.deepcopy(stored)
    with opened(browser, site, PAGE) as page:

        def check_advantages(completions: list[dict[str, Any]], method: str) -> None:
            expected = expected_advantages(completions, method)
            np.testing.assert_allclose(shown_advantages(page), expected, atol=6e-4)

        names = {"DAPO": "dapo", "PPO": "ppo", "Dr. GRPO": "dr_grpo", "GRPO": "grpo"}
        for name, method in names.items():
            page.get_by_role("button", name=name, exact=True).click()
            check_advantages(completions, method)
        page.get_by_label("Reward of completion 3").fill("0.7")
        page.locator(".completion .mark").nth(7).click()
        completions[2]["reward"] = 0.7
        completions[7]["right"] = not completions[7]["right"]
        check_advantages(completions, "grpo")
        page.get_by_label("Divide by std").uncheck()
        check_advantages(completions, "dr_grpo")
        assert page.evaluate("location.hash") == "#std=false&flipped=8&rewards=3%3A0.7"
        page.reload()
        check_advantages(completions, "dr_grpo")
        page.get_by_role("button", name="Reset", exact=True).click()
        check_advantages(stored, "grpo")


def test_an_edited_row_says_so_until_it_is_reset(browser: Any, site: Path) -> None:
    measured = [x["right"] for x in STORED["groups"]["mixed"]["completions"]]
    marks = ["✓ right" if right else "✗ wrong" for right in measured]
    with opened(browser, site, PAGE) as page:

        def check_marks(edits: dict[int, str], words: str) -> None:
            expected = [edits.get(i, mark) for i, mark in enumerate(marks)]
            shown = [" ".join(x.split()) for x in page.locator(".mark").all_inner_texts()]
            assert shown == expected
            rows = page.locator(".beside th[scope=row]").all_inner_texts()[1:]
            assert [i for i, row in enumerate(rows) if "edited" in row] == [*edits]
            assert page.locator(".restore:visible").count() == len(edits)
            assert words in page.locator(".group-sum").inner_text()

        there, becomes = sum(measured), "✗ wrong" if measured[7] else "✓ right"
        check_marks({}, f"{there} of 8 are right, ")
        page.get_by_label("Reward of completion 1").fill("0")
        check_marks({0: "edited"}, "1 row is edited.")
        assert page.get_by_label("Reward of completion 1, edited").count() == 1
        page.locator(".mark").nth(7).click()
        counted = there + (-1 if measured[7] else 1)
        check_marks({0: "edited", 7: f"edited to {becomes}"}, f"{counted} of 8 count as right")
        page.locator(".token").last.click()
        reward = "0.00 (wrong, your edit)" if measured[7] else "1.00 (right, your edit)"
        assert reward in page.locator(".sums-list").inner_text()
        for i in (0, 7):
            page.get_by_role("button", name=f"Reset completion {i + 1}").click()
            assert page.evaluate("document.activeElement.className") == "mark"
        check_marks({}, f"{there} of 8 are right, ")
        assert page.evaluate("location.hash") == ""


def test_size_of_the_group(browser: Any, site: Path) -> None:
    """The first of the measured completions; beyond them the slider counts for the means alone."""
    completions = STORED["groups"]["mixed"]["completions"]
    whole = "all 8 measured completions"
    with opened(browser, site, PAGE) as page:
        page.locator(".token").last.click()
        for selector, size, note in (
            ("#size", 3, "the first 3 of 8 measured completions"),
            ("#exact-size", 8, whole),
            (
                "#exact-size",
                64,
                f"{whole}; G = 64 counts in the exact part below",
            ),
            ("#size", 2, "the first 2 of 8 measured completions"),
        ):
            page.locator(selector).fill(str(size))
            expected = expected_advantages(completions[:size], "grpo")
            np.testing.assert_allclose(shown_advantages(page), expected, atol=6e-4)
            assert page.locator(".size-note").inner_text() == note
            assert page.locator('.token[tabindex="0"]').count() == 1
            assert f"= {(size - 1) / size:.3f} times" in page.locator(".findings").inner_text()
        assert page.evaluate("location.hash") == "#size=2"


def enumerated(p: Fraction, G: int, std: bool) -> dict[str, Any]:
    """`GrpoEngine.expected` by the track's advantages of all numbers of right answers."""
    module: Any = grpo if std else dr_grpo
    rewards = torch.ones(G + 1, G).tril(-1)  # row k: k right answers
    advantages = module.group_advantages(rewards)
    counts = range(G + 1)
    chances = torch.tensor([float(comb(G, k) * p**k * (1 - p) ** (G - k)) for k in counts])
    q, mixed = float(p), chances[1:G].sum()
    scale = (q * (1 - q)) ** -0.5 if std else 1.0

    def means(weights: Tensor) -> dict[str, float]:
        mean = {
            name: (weights * (advantages * x).sum(1)).sum() / (weights * x.sum(1)).sum()
            for name, x in (("right", rewards), ("wrong", 1 - rewards))
        }
        slopes = rewards / q - (1 - rewards) / (1 - q)  # of log pi, by p
        mean["factor"] = (weights * (advantages * slopes).mean(1)).sum() / weights.sum()
        return {name: x.item() for name, x in mean.items()}

    inside = (torch.arange(G + 1) > 0) & (torch.arange(G + 1) < G)
    exact = {"right": (1 - q) * scale, "wrong": -q * scale, "factor": scale}
    return {"mixed": mixed, "exact": exact, "all": means(chances), "kept": means(chances * inside)}


@pytest.mark.parametrize("std", [False, True])
@pytest.mark.parametrize("G", [2, 3, 8, 64])
def test_means_over_groups(engine: Any, G: int, std: bool) -> None:
    for p in (Fraction(1, 100), Fraction(1, 50), Fraction(1, 3), Fraction(1, 2), Fraction(99, 100)):
        found = engine.evaluate("([p, G, s]) => GrpoEngine.expected(G, s)(p)", [float(p), G, std])
        expected = enumerated(p, G, std)
        np.testing.assert_allclose(found.pop("mixed"), expected.pop("mixed"), rtol=1e-9)
        for kind, means in expected.items():
            for name, mean in means.items():
                message = f"{kind} {name} at {p}"
                np.testing.assert_allclose(found[kind][name], mean, rtol=1e-9, err_msg=message)


def test_keeping_mixed_groups_only(browser: Any, site: Path) -> None:
    """Right with probability .02, G = 8: (G - 1) / G (1 - p) = .858 stays; wrong answers change."""
    with opened(browser, site, PAGE) as page:
        rows = [row.split() for row in page.locator(".means tbody tr").all_inner_texts()]
        assert [row[-3:] for row in rows] == [
            ["+0.980", "−0.0200", "1.00"],
            ["+0.858", "−0.0175", "0.875"],
            ["+0.858", "−0.133", "5.86"],
        ]
        text = page.locator(".findings").inner_text()
        assert "14.9% of this prompt's groups are mixed" in text
        assert "−0.133 instead of −0.0175 (7.6 times)" in text
        assert "A mixed group moves the policy 6.7 times as far" in text
        page.locator("#p").focus()
        for _ in range(3):
            page.keyboard.press("ArrowRight")
        page.get_by_label("Advantage A").select_option("true")
        assert page.evaluate("location.hash") == "#p=0.05&exactStd=true"
        assert "hard and easy prompts count more" in page.locator(".findings").inner_text()
        assert page.locator(".exact figure svg").count() == 2


def test_filters_leave_out(browser: Any, site: Path) -> None:
    """Overlong filtering leaves out what was cut off, dynamic sampling groups without contrast."""
    completions = STORED["groups"]["mixed"]["completions"]
    with opened(browser, site, PAGE) as page:
        struck = page.locator(".token.left-out")
        page.get_by_label("Overlong filtering").check()
        cut = sum(len(x["tokens"]) for x in completions if not x["ended"])
        assert struck.count() == cut > 0
        page.get_by_label("Overlong filtering").uncheck()
        page.get_by_label("Dynamic sampling").check()
        assert struck.count() == 0
        for i, x in enumerate(completions):
            if not x["right"]:
                page.locator(".completion .mark").nth(i).click()
        assert struck.count() == sum(len(x["tokens"]) for x in completions)
        assert "discards this group" in page.locator(".group-sum").inner_text()


def test_tokens_by_keyboard(browser: Any, site: Path) -> None:
    with opened(browser, site, PAGE) as page:
        page.locator('.token[aria-selected="true"]').focus()
        title = page.locator("#token-title")
        for keys, number in (("Down Right Right Up Left", 1), ("Down", 2)):
            for key in keys.split():
                page.keyboard.press(f"Arrow{key}")
            assert title.inner_text().startswith(f"Completion {number}, token ")
        for mark in ('[aria-selected="true"]', '[tabindex="0"]'):
            assert page.locator(f".token{mark}").count() == 1


def test_the_numbers_of_a_clipped_token(browser: Any, site: Path) -> None:
    """The formula with numbers, for the token that the page begins with."""
    first = STORED["groups"]["mixed"]["completions"][0]
    change = np.subtract(first["current"], first["old"])
    t = int(np.abs(change).argmax())
    with opened(browser, site, PAGE) as page:
        text = page.locator(".sums-list").inner_text()
        assert page.locator("#token-title").inner_text() == (
            f"Completion 1, token {t + 1}: {first['tokens'][t]}"
        )
    assert f"= {np.exp(change[t]):.3f}" in text
    assert "The clip takes the gradient away: the token has grown enough" in text
    assert f"1 / (8 × {len(first['tokens'])})" in text


def test_hostile_text_is_shown_as_text(browser: Any, site: Path) -> None:
    with opened(browser, site, f"{PAGE}#group={quote(HOSTILE)}") as page:
        assert page.locator(".token").first.inner_text() == HOSTILE
        assert HOSTILE in page.locator(".answer").inner_text()
        assert page.locator("img").count() == 0


def test_without_scripts_there_is_a_table(browser: Any, site: Path) -> None:
    with opened(browser, site, PAGE, java_script_enabled=False) as page:
        rows = page.locator(".without tr").all_inner_texts()
    expected = expected_advantages(STORED["groups"]["mixed"]["completions"], "grpo")
    found = [float(row.split("\t")[-1]) for row in rows[1:]]
    np.testing.assert_allclose(found, expected, atol=6e-4)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda x: x["groups"].clear(), "has no group"),
        (lambda x: x["groups"]["mixed"]["completions"][0]["old"].pop(), "its numbers as many"),
        (lambda x: x["groups"]["mixed"].update(completions=[]), "must have 2 to 64 completions"),
        (lambda x: x["groups"]["mixed"]["completions"][0]["old"].insert(0, 1e9), "as many"),
        (lambda x: x["groups"]["mixed"]["completions"][0].update(right=1), "right"),
        (lambda x: x.update(longest=0), "longest must be 1 to 64"),
    ],
)
def test_groups_that_no_page_can_show_are_left_out(
    change: Callable[[Any], Any], words: str, tmp_path: Path, capsys: Output
) -> None:
    assert page_of_grpo.pages(tmp_path) == []  # without a file
    stored = copy.deepcopy(STORED)
    change(stored)
    (tmp_path / page_of_grpo.FILE).write_text(json.dumps(stored))
    assert page_of_grpo.pages(tmp_path) == []
    said = capsys.readouterr().out
    assert said.startswith("left out: ")
    assert words in said
