"""The report's page on the estimators of the language methods, from llm_oracle.json.

`benchmarks/llm_oracle.py` says what is computed; nothing of it is sampled.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from manyseeds.benchmarks.chapters.blocks import (
    Block,
    Claim,
    ClaimWord,
    Heading,
    Items,
    Strong,
    Table,
    Text,
)
from manyseeds.benchmarks.chapters.origins import command_text
from manyseeds.benchmarks.measurements.llm_oracle import FILE, STORED
from manyseeds.benchmarks.store.stored import find_file, section_of
from manyseeds.record import plural

ROUNDING = 1e-6  # a bias below it is rounding


def page(results: Path) -> Sequence[Block]:
    """The whole page; nothing without the file."""
    return section_of(find_file(results, FILE), STORED, blocks_of)


def blocks_of(stored: dict[str, Any]) -> Iterator[Block]:
    """The page of llm_oracle.json."""
    sizes, steps = stored["sizes"], stored["steps"]
    right = ", ".join(f"{x['right']:.0%}" for x in stored["prompts"])
    yield Text(
        f"A small GPT-2 completes {sizes['K']} prompts with at most {sizes['T']} tokens of a "
        f"vocabulary of {sizes['V']}. All {sizes['completions']} completions of a prompt are "
        "enumerated, in double precision: every expectation below is a sum, and nothing is "
        "sampled. The tables are for one network with random weights, whose completions of the "
        f"prompts are right with a probability of {right}. The lists give the range over "
        f"{stored['networks']} such networks. An estimate is made from one group of {sizes['G']} "
        "completions of one prompt."
    )
    yield Text(
        "Scale is the factor by which the mean of an estimator multiplies the true gradient, bias "
        "the length of the rest of its mean, noise the trace of its covariance. Both are relative "
        "to the scaled gradient (its length, and its length squared). Where mixed groups alone are "
        "kept, noise is that of a kept group; those thrown away cost samples, too. An average by a "
        f"constant divides the sum over tokens by the longest length, {sizes['T']}, which "
        f"alone makes the scale {1 / sizes['T']:g}."
    )
    yield Heading("Advantages and averages")
    yield from group_outcome(stored)
    yield group_table(stored)
    yield Text(
        "The last two columns are what a small step along the mean changes, per unit of expected "
        "reward that it gains: the mean length of wrong completions in tokens, and the entropy of "
        "completions in nats."
    )
    yield Heading("Mixed groups")
    yield from mixed_outcome(stored)
    yield Heading("k1, k2 and k3")
    yield from kl_outcome(stored)
    yield kl_table(stored)
    yield Text(
        "Per completion, with a sum over its tokens. With d = log pi - log pi_ref of a token, "
        "k1 = d, k2 = d²/2, k3 = exp(-d) + d - 1. In the reward it is a number that weighs the "
        "gradient of the whole completion's log-probability. In the loss each token's term is "
        "differentiated. The KL from the reference to the policy is "
        f"{steps['kl']:g} nats per completion."
    )
    yield Heading("Clipping")
    yield Text(
        Strong("Share of the unclipped gradient that remains along its direction, by epsilons:")
    )
    yield Items([f"{x['name']}: {share(x, 'left')}" for x in stored["clips"][1:]] or ["none"])
    yield clip_table(stored)
    yield Text(
        f"The policy has moved {steps['clip']:g} nats per completion along the true gradient since "
        "it sampled. The advantages are Dr. GRPO's. Tokens of right completions are clipped from "
        "above, tokens of wrong ones from below. A scale of 0 means that the policy does not move."
    )
    yield command_text(stored, f"transformers {stored['versions']['transformers']}")


def is_unbiased(row: dict[str, Any]) -> bool:
    """Whether an estimator's mean is a multiple of the gradient, in every network."""
    return row["bias_most"] is not None and row["bias_most"] < ROUNDING


def share(row: dict[str, Any], name: str) -> str:
    """`22 to 66%`, over the networks."""
    return f"{100 * row[f'{name}_least']:.0f} to {row[f'{name}_most']:.0%}"


def group_table(stored: dict[str, Any]) -> Table:
    true = ("the gradient itself", "", "1", "0", "0", *effects(stored["exact"]))
    rows = [(x["name"], x["average"], *figures(x), *effects(x)) for x in stored["estimators"]]
    header = ("advantage", "tokens averaged by", "scale", "bias", "noise")
    return Table("estimators", (*header, "length of wrong ones", "entropy"), [true, *rows])


def mixed_table(stored: dict[str, Any]) -> Table:
    rows = []
    for x in stored["mixed"]:
        advantages = (
            f"{number:+.3f}"
            for reward, of in ((1, "right"), (0, "wrong"))
            for number in (reward - x["right"], x[f"{of}_all"], x[f"{of}_mixed"])
        )
        sizes = str(x["size"]), f"{x['right']:g}", f"{x['mixed']:.1%}"
        rows.append((*sizes, *advantages, signed(x["bias"])))
    header = [
        f"of a {of} one: {which}" for of in ("right", "wrong") for which in ("true", "all", "mixed")
    ]
    return Table(
        "estimators-mixed", ("group size", "P(right)", "mixed groups", *header, "bias"), rows
    )


def signed(number: float) -> str:
    """`+0.114`, or `0` where it is rounding."""
    return "0" if abs(number) < ROUNDING else f"{number:+.3f}"


def kl_table(stored: dict[str, Any]) -> Table:
    rows = []
    for x in stored["kl"]:
        value = f"{x['value']:.4f} (the KL: {x['kl']:.4f})"
        rows.append((x["name"], f"in the {x['place']}", value, f"{x['std']:.3f}", *figures(x)))
    header = ("estimator", "place", "mean", "std", "scale", "bias", "noise")
    return Table("estimators-kl", header, rows)


def clip_table(stored: dict[str, Any]) -> Table:
    rows = []
    for x in stored["clips"]:
        clipped = (f"{x[side]:.1%}" for side in ("above", "below"))
        rows.append((x["name"], *clipped, *figures(x), f"{x['entropy']:+.2f}"))
    header = ("epsilon, low and high", "clipped from above", "from below")
    return Table("estimators-clip", (*header, "scale", "bias", "noise", "entropy"), rows)


def figures(row: dict[str, Any]) -> tuple[str, str, str]:
    """Scale, bias and noise; of an estimator whose mean is 0, that."""
    if row["bias"] is None:
        return "0", "-", "-"
    bias = "0" if row["bias"] < ROUNDING else f"{row['bias']:.3f}"
    return f"{row['scale']:.3f}", bias, f"{row['noise']:.2f}"


def effects(row: dict[str, Any]) -> tuple[str, str]:
    return f"{row['length_wrong']:+.2f}", f"{row['entropy']:+.2f}"


def group_outcome(stored: dict[str, Any]) -> Iterator[Block]:
    """Which estimators have no bias, and what the others do to the length of wrong completions."""
    rows = stored["estimators"]
    biased = sorted((x for x in rows if not is_unbiased(x)), key=lambda x: -x["bias_most"])
    yield Text(Strong("Unbiased up to a constant factor:"))
    yield Items([x["name"] for x in rows if is_unbiased(x)] or ["none"])
    if biased:
        yield Text(
            "The others are biased. The first number is the deviation of their mean from the "
            "gradient's direction, as a share of the part that lies along it. The second is how "
            "many more tokens they add to wrong completions than the gradient itself does, per "
            "unit of reward."
        )
        longer = (f"{x['longer_least']:+.2f} to {x['longer_most']:+.2f} tokens" for x in biased)
        pairs = zip(biased, longer, strict=True)
        yield Items([f"{x['name']}: {share(x, 'bias')}, {tokens}" for x, tokens in pairs])


def mixed_outcome(stored: dict[str, Any]) -> Iterator[Block]:
    """What the advantages of mixed groups are off by, and whether that turns the gradient."""
    rows = [x for x in stored["mixed"] if x["right"] != 0.5]
    agree = [x["bias"] * (x["right"] - 0.5) > 0 and abs(x["bias"]) > ROUNDING for x in rows]
    word: ClaimWord = "holds" if all(agree) else "in part" if any(agree) else "does not hold"
    most = max(rows, key=lambda x: (x["size"] == stored["sizes"]["G"], 0.5 - x["right"]))
    yield Claim(
        "The advantages of hard prompts are underestimated, and those of easy ones overestimated, "
        "in groups of which some completions are right and some wrong.",
        word,
        f"{most['bias']:+.3f}, mean difference to the true advantage: groups of {most['size']}, "
        f"right with a probability of {most['right']:g}",
        details=[
            mixed_table(stored),
            Text(
                "The advantages are Dr. GRPO's: the reward, 0 or 1, minus the mean of its group. "
                "The true one is the reward minus P(right). Over all groups the mean is (G-1)/G of "
                "the true one, for right and wrong completions alike: no bias but a factor. The "
                "bias is the mean difference over the completions of mixed groups."
            ),
        ],
        source="Yang et al., 2026, arXiv 2601.08521",
    )
    turned = [x for x in stored["estimators"] if x["groups"] != "all"]
    yield Text(
        "This need not turn the gradient. Groups that are not mixed have none, so the mixed ones "
        "of a prompt pull 1/P(mixed) times as hard as all of its groups do on average, and are "
        "P(mixed) times as frequent where prompts are drawn until there are enough mixed groups, "
        "as by DAPO: both cancel. They do not where the same prompt is sampled until its group is "
        "mixed. Deviation of the mean from the direction of the true gradient, as a share of "
        f"the part along it, over {plural(stored['networks'], 'network')}:"
    )
    yield Items(
        [f"{x['name']}: {'0' if is_unbiased(x) else share(x, 'bias')}" for x in turned] or ["none"]
    )


def kl_outcome(stored: dict[str, Any]) -> Iterator[Block]:
    """Which estimators give the KL and which its gradient."""
    rows = stored["kl"]
    exact = dict.fromkeys(x["name"] for x in rows if abs(x["value"] / x["kl"] - 1) < ROUNDING)
    right = [placed(x) for x in rows if is_unbiased(x)]
    nothing = [placed(x) for x in rows if x["bias_most"] is None]
    rest = [x for x in rows if placed(x) not in (*right, *nothing)]
    outcome = (
        f"Unbiased for the value of the KL: {' and '.join(exact) or 'none'}. "
        f"Unbiased for its gradient: {', '.join(right) or 'none'}."
    )
    zero = f" The mean of {' and '.join(nothing)} is 0." * bool(nothing)
    yield Text(
        Strong(outcome),
        f"{zero} Bias of the others, as a share of the part of their mean that lies along the "
        "gradient, and how long that mean is in the table's network:",
    )
    rest.sort(key=lambda x: x["bias_most"])
    yield Items(
        [f"{placed(x)}: {share(x, 'bias')}, {length(x):.0%} of the gradient" for x in rest]
        or ["none"]
    )


def length(row: dict[str, Any]) -> float:
    """Of an estimator's mean, as a share of the gradient's."""
    return float(abs(row["scale"]) * math.hypot(1, row["bias"]))


def placed(row: dict[str, Any]) -> str:
    """`k2 in the loss`"""
    return f"{row['name']} in the {row['place']}"
