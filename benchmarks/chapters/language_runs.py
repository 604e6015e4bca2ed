"""What the runs of the experiments on language models are called, and how their commands are found.

The names replace lists of flags in tables; the flags stand with the command of the run.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from manyseeds.benchmarks.chapters.blocks import Block, Inline, Link, Text, joined
from manyseeds.benchmarks.experiments import suite
from manyseeds.benchmarks.store.methods import Method
from manyseeds.benchmarks.store.names import display
from manyseeds.llm_track.models import BASES
from manyseeds.llm_track.tasks import GENERATED

ADDITION = GENERATED["addition"]
# The parts of DAPO that `suite.LONG` has, in its order.
PARTS = ("none of the three", "token-level loss", "overlong filtering", "soft punishment")
SIGNS = ("all samples", "right samples", "wrong samples")  # what `suite.SIGNS` learn from
AS_PAIRS = ("as many steps", "steps as large")  # as groups of 16: what `suite.PAIRS` have


def steps_of(base: str) -> int:
    """How many steps of pretraining a base model of addition has."""
    return BASES[base].steps or ADDITION.base_steps


def of_base(base: str) -> str:
    """`from 800 steps, 15% demonstrations`: of a base model's pretraining."""
    return f"from {steps_of(base)} steps, {BASES[base].demonstrations:.0%} demonstrations"


def reward_name(settings: Mapping[str, Any]) -> str:
    """What a run of the RLHF chain is rewarded by."""
    name = "learned" if settings.get("rules") is False else "learned and rules"
    if "kl_coef" in settings:
        name += f", beta {settings['kl_coef']:g}"
    return name


def names() -> Iterator[tuple[str, str, Mapping[str, Any], str]]:
    """Method, task and settings of each experiment, and its name."""
    for algo, x in suite.R1_ZERO:
        yield algo, "addition", x, of_base(x["model"])
    of_many = f"{of_base(suite.MANY_SAMPLES['model'])}, many samples"
    yield "grpo", "addition", suite.MANY_SAMPLES, of_many
    for x in suite.GROUPS:
        yield "grpo", "addition", x, f"groups of {x['group_size']}"
    for x, what in zip(suite.PAIRS, AS_PAIRS, strict=True):
        yield "grpo", "addition", x, f"groups of 2, {what}"
    for algo, x in suite.RLHF:
        yield algo, "addition", x, f"reward {reward_name(x)}"
    yield "rlhf_ppo", "addition", suite.PLACEBO, "reward of a coin"
    yield "rlhf_ppo", "addition", suite.EQUAL, "settings of GRPO"
    for algo in ("rlhf_ppo", "grpo"):
        yield algo, "addition", suite.OWN, "its own settings"
    for x in suite.CLIP_HIGHER:
        yield "dapo", "addition", x, f"upper clip {x['clip_range_high']:g}"
    for name, x in suite.RANDOM.items():
        yield "dapo", "addition", x, f"reward of a coin, clip: {name}"
    for name, x in zip(SIGNS, suite.SIGNS, strict=True):
        yield "rloo", "addition", x, name
    yield "rloo", "addition", suite.FAST_WRONG, "wrong samples, usual learning rate"
    for name, x in suite.RENEWED.items():
        yield "process_grpo", "addition", x, f"renewed: {name}"
    for name, x in zip(PARTS, suite.LONG, strict=True):
        yield "dapo", "rambling", x, f"parts: {name}"
    for name, (algo, x) in suite.LENGTHS.items():
        yield algo, "rambling", x, name
    yield "grpo", "checking", suite.OWN, "its own settings"


def about(m: Method) -> str:
    """`groups of 16`: the name of an experiment's run, of another one how its settings differ."""
    found = (name for algo, task, x, name in names() if m.is_run_of(algo, task, x))
    return next(found, m.changed)


def named(m: Method) -> str:
    """`GRPO, groups of 16`"""
    return ", ".join(filter(None, (display(m.algo), about(m))))


def commands_of(runs: Iterable[Method]) -> Iterator[Block]:
    """Where the runs and their commands are; nothing without runs."""
    links: list[Inline] = [
        (f"{named(m)}, {m.budget}: ", Link("/".join(m.run.path.parts[-3:]), file=m.run.folder))
        for m in runs
    ]
    if links:
        page = Link("provenance", page="language-models.md", anchor="provenance")
        yield Text("Runs, whose commands are under ", page, ": ", joined(links, "; "), ".")
