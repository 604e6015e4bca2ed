"""GRPO step by step: one group of completions, its advantages and what each token is pushed by.

static/grpo_engine.js computes what llm_track/grpo.py, dr_grpo.py, dapo.py and rlhf_ppo.py compute,
from the groups in grpo_group.json (benchmarks/grpo_group.py), and what groups give on average.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from manyseeds.benchmarks.store.stored import find_file, left_out, read
from manyseeds.benchmarks.web.page import CHARTS, Page
from manyseeds.cli import from_preset
from manyseeds.errors import UsageError, printable
from manyseeds.llm_track import dapo, dr_grpo, grpo, rlhf_ppo
from manyseeds.untrusted import NAME, ORIGIN

FILE = "grpo_group.json"
TASK = "addition"  # whose presets the methods begin with
SCRIPTS = (
    *CHARTS,
    "static/interactive.js",
    "static/grpo_engine.js",
    "static/grpo_formulas.js",
    "static/grpo_exact.js",
    "static/grpo.js",
)
NUMBERS = ("old", "current", "reference", "values")  # of each token
STORED: dict[str, Any] = {
    **ORIGIN,
    "versions": {"torch": str},
    "task": NAME,
    "seed": int,
    "step": int,
    "longest": int,
    "groups": {
        str: {
            "prompt": NAME,
            "answer": NAME,
            "completions": [
                {
                    "tokens": [NAME],
                    **{key: [float] for key in NUMBERS},
                    "ended": bool,
                    "right": bool,
                    "format": bool,
                }
            ],
        }
    },
}
MOST = 64  # completions of a group, and tokens of a completion, that a page has room for


def check_groups(stored: dict[str, Any], path: Path) -> None:
    """Raise UsageError for groups that no page can show."""
    if not stored["groups"]:
        raise UsageError(f"{path}: has no group")
    for name, group in stored["groups"].items():
        if not 2 <= len(group["completions"]) <= MOST:
            raise UsageError(f"{path}: group {name} must have 2 to {MOST} completions")
        for completion in group["completions"]:
            lengths = {len(completion[key]) for key in ("tokens", *NUMBERS)}
            if len(lengths) > 1 or not 0 < lengths.pop() <= MOST:
                raise UsageError(
                    f"{path}: a completion of {name} must have 1 to {MOST} tokens, "
                    "and its numbers as many"
                )
            if any(abs(x) > 100 for key in NUMBERS for x in completion[key]):
                raise UsageError(f"{path}: a number of {name} is beyond 100")
    if not 0 < stored["longest"] <= MOST:
        raise UsageError(f"{path}: longest must be 1 to {MOST}")


def methods(task: str, longest: int) -> dict[str, dict[str, Any]]:
    """The settings of each method, as the engine names them: the presets of the track."""
    found = {
        name: from_preset(module.Config, module.PRESETS, task)
        for name, module in {
            "ppo": rlhf_ppo,
            "grpo": grpo,
            "dr_grpo": dr_grpo,
            "dapo": dapo,
        }.items()
    }
    plain = {
        "advantage": "group",
        "std": True,
        "normalise": "completion",
        "kl": 0.0,
        "signed": False,
        "overlongCache": 0,
        "missingEosPenalty": 0.0,
        "overlongFiltering": False,
        "dynamicSampling": False,
        "gamma": found["ppo"].gamma,
        "lambda": found["ppo"].gae_lambda,
        "longest": longest,
    }
    shared = {
        name: {
            **plain,
            "clipLow": config.clip_range,
            "clipHigh": config.clip_range,
            "formatWeight": config.format_weight,
        }
        for name, config in found.items()
    }
    own: dict[str, dict[str, Any]] = {
        "ppo": {
            "advantage": "critic",
            "normalise": "tokens",
            "kl": found["ppo"].kl_coef,
            "missingEosPenalty": found["ppo"].missing_eos_penalty,
        },
        "grpo": {"kl": found["grpo"].kl_coef},
        "dr_grpo": {"std": False, "normalise": "constant"},
        "dapo": {
            "signed": True,
            "clipHigh": found["dapo"].clip_range_high,
            "normalise": "tokens" if found["dapo"].token_level else "completion",
            "overlongCache": found["dapo"].overlong_cache,
            "overlongFiltering": found["dapo"].overlong_filtering,
            "dynamicSampling": found["dapo"].dynamic_sampling,
        },
    }
    return {name: {**shared[name], **own[name]} for name in own}


def advantages_of(group: dict[str, Any], settings: dict[str, Any]) -> list[dict[str, Any]]:
    """Each completion with its reward and advantage under GRPO, for readers without scripts."""
    completions = group["completions"]
    rewards = torch.tensor(
        [x["right"] + settings["formatWeight"] * x["format"] for x in completions]
    )
    advantages = grpo.group_advantages(rewards.unsqueeze(0))[0]
    return [
        {
            "text": "".join(x["tokens"]),
            "right": x["right"],
            "reward": float(r),
            "advantage": float(a),
        }
        for x, r, a in zip(completions, rewards, advantages, strict=True)
    ]


def pages(results: Path) -> list[Page]:
    """The page, if the results have groups."""
    path = find_file(results, FILE)
    with left_out(path):
        if path.exists():
            stored = read(path, STORED)
            check_groups(stored, path)
            return [page_of(stored)]
    return []


def shown(content: Any) -> Any:
    """JSON with all of its text printable."""
    if isinstance(content, str):
        return printable(content)
    if isinstance(content, list):
        return [shown(x) for x in content]
    if isinstance(content, dict):
        return {printable(key): shown(x) for key, x in content.items()}
    return content


def page_of(stored: dict[str, Any]) -> Page:
    """The page of groups that have been checked."""
    stored = shown(stored)
    settings = methods(TASK, stored["longest"])
    first = next(iter(stored["groups"].values()))
    context = {
        "data": {"groups": stored["groups"], "methods": settings},
        "stored": stored,
        "first": first,
        "largest": MOST,
        "without_scripts": advantages_of(first, settings["grpo"]),
    }
    about = (
        "A group of completions under GRPO, Dr. GRPO, DAPO and PPO, token by token: advantages, "
        "clipping, KL and losses, and the exact bias of keeping mixed groups only."
    )
    file, template = "grpo.html", "grpo.html.j2"
    return Page(file, "GRPO", template, context, SCRIPTS, group="Learn", description=about)
