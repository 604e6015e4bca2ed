"""The report's page on the estimators of the language methods, from llm_oracle.json.

`benchmarks/llm_oracle.py` says what is computed; nothing of it is sampled.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

from manyseeds.benchmarks.chapters.tables import table
from manyseeds.benchmarks.store.results import Rows, command_text, escape
from manyseeds.benchmarks.store.stored import find_file, section_of
from manyseeds.untrusted import NAME, ORIGIN

FIGURES = {"scale": float, "cosine": float, "bias": float, "noise": float}
EFFECTS = {"length_wrong": float, "entropy": float}


def over(name: str) -> dict[str, Any]:
    """The fields of a row for the least and the most of a figure over the networks."""
    return {f"{name}_least": float, f"{name}_most": float}


STORED: dict[str, Any] = {
    **ORIGIN,
    "networks": int,
    "versions": {"torch": str, "transformers": str},
    "sizes": {"K": int, "V": int, "T": int, "G": int, "completions": int},
    "steps": {"kl": float, "clip": float},
    "prompts": [{"right": float, "length": float}],
    "exact": EFFECTS,
    "estimators": [
        {"name": NAME, "average": NAME, **FIGURES, **EFFECTS, **over("bias"), **over("longer")}
    ],
    "kl": [
        {"name": NAME, "place": NAME, "value": float, "std": float, "kl": float}
        | {key: (float, None) for key in (*FIGURES, *over("bias"))}
    ],
    "clips": [{"name": NAME, "above": float, "below": float, **FIGURES, **EFFECTS, **over("left")}],
}
ROUNDING = 1e-6  # a bias below it is rounding


def page(folder: Path) -> str:
    """The whole page; '' without the file."""
    return section_of(find_file(folder, "llm_oracle.json"), STORED, partial(text_of, folder=folder))


def text_of(stored: dict[str, Any], folder: Path) -> str:
    """The page of llm_oracle.json."""
    sizes = stored["sizes"]
    prompts = ", ".join(f"{x['right']:.0%}" for x in stored["prompts"])
    transformers = f"transformers {stored['versions']['transformers']}"
    return f"""A small GPT-2 completes {sizes["K"]} prompts with at most {sizes["T"]} tokens of a \
vocabulary of {sizes["V"]}. All {sizes["completions"]} completions of a prompt are enumerated, in \
double precision: every expectation below is a sum, and nothing is sampled. The tables are for one \
network with random weights, which answers {prompts} of the prompts right. The lists give the \
range over {stored["networks"]} such networks. An estimate is made from one group of \
{sizes["G"]} completions of one prompt.

*Scale* is the factor by which the mean of an estimator multiplies the true gradient, *bias* the \
length of the rest of its mean, *noise* the trace of its covariance. Both are relative to the \
scaled gradient (its length, and its length squared).

## Advantages and averages

{group_sentence(stored)}

{table(folder, "estimators", *group_table(stored))}
The last two columns are what a small step along the mean changes, per unit of expected reward \
that it gains: the mean length of wrong completions in tokens, and the entropy of completions in \
nats.

## k1, k2 and k3

{kl_sentence(stored)}

{table(folder, "estimators-kl", *kl_table(stored))}
Per completion, with a sum over its tokens. With d = log pi - log pi\\_ref of a token, k1 = d, \
k2 = d²/2, k3 = exp(-d) + d - 1. *In the reward* it is a number that weighs the gradient of the \
whole completion's log-probability. *In the loss* each token's term is differentiated. The KL \
from the reference to the policy is {stored["steps"]["kl"]:g} nats per completion.

## Clipping

{clip_sentence(stored)}

{table(folder, "estimators-clip", *clip_table(stored))}
The policy has moved {stored["steps"]["clip"]:g} nats per completion along the true gradient since \
it sampled. The advantages are Dr. GRPO's. Tokens of right completions are clipped from \
above, tokens of wrong ones from below. A scale of 0 means that the policy does not move.

{command_text(stored, transformers)}

"""


def is_unbiased(row: dict[str, Any]) -> bool:
    """Whether an estimator's mean is a multiple of the gradient, in every network."""
    return row["bias_most"] is not None and row["bias_most"] < ROUNDING


def share(row: dict[str, Any], name: str) -> str:
    """`22 to 66%`, over the networks."""
    return f"{100 * row[f'{name}_least']:.0f} to {row[f'{name}_most']:.0%}"


def group_table(stored: dict[str, Any]) -> tuple[tuple[str, ...], Rows]:
    exact = stored["exact"]
    true = ("the gradient itself", "", "1", "0", "0", *effects(exact))
    rows: Rows = [
        (escape(x["name"]), escape(x["average"]), *figures(x), *effects(x))
        for x in stored["estimators"]
    ]
    header = ("advantage", "tokens averaged by", "scale", "bias", "noise")
    return (*header, "length of wrong ones", "entropy"), [true, *rows]


def kl_table(stored: dict[str, Any]) -> tuple[tuple[str, ...], Rows]:
    rows: Rows = [
        (
            escape(x["name"]),
            f"in the {escape(x['place'])}",
            f"{x['value']:.4f} (the KL: {x['kl']:.4f})",
            f"{x['std']:.3f}",
            *figures(x),
        )
        for x in stored["kl"]
    ]
    return ("estimator", "place", "mean", "std", "scale", "bias", "noise"), rows


def clip_table(stored: dict[str, Any]) -> tuple[tuple[str, ...], Rows]:
    rows: Rows = [
        (
            escape(x["name"]),
            f"{x['above']:.1%}",
            f"{x['below']:.1%}",
            *figures(x),
            f"{x['entropy']:+.2f}",
        )
        for x in stored["clips"]
    ]
    header = ("epsilon, low and high", "clipped from above", "from below")
    return (*header, "scale", "bias", "noise", "entropy"), rows


def figures(row: dict[str, Any]) -> tuple[str, str, str]:
    """Scale, bias and noise; of an estimator whose mean is 0, that."""
    if row["bias"] is None:
        return "0", "-", "-"
    bias = "0" if row["bias"] < ROUNDING else f"{row['bias']:.3f}"
    return f"{row['scale']:.3f}", bias, f"{row['noise']:.2f}"


def effects(row: dict[str, Any]) -> tuple[str, str]:
    return f"{row['length_wrong']:+.2f}", f"{row['entropy']:+.2f}"


def items(texts: Iterable[str]) -> str:
    """A list in Markdown."""
    return "\n".join(f"- {text}" for text in texts) or "- none"


def group_sentence(stored: dict[str, Any]) -> str:
    """Which estimators have no bias, and what the others do to the length of wrong completions."""
    rows = stored["estimators"]
    unbiased = items(escape(x["name"]) for x in rows if is_unbiased(x))
    biased = sorted((x for x in rows if not is_unbiased(x)), key=lambda x: -x["bias_most"])
    text = f"**Unbiased up to a constant factor:**\n\n{unbiased}"
    if biased:
        listed = (
            f"{escape(x['name'])}: {share(x, 'bias')}, "
            f"{x['longer_least']:+.2f} to {x['longer_most']:+.2f} tokens"
            for x in biased
        )
        text += (
            "\n\nThe others are biased. The first number is the deviation of their mean from the "
            "gradient, as a share of its length. The second is how many more tokens they add to "
            "wrong completions than the gradient itself does, per unit of reward.\n\n"
            + items(listed)
        )
    return text


def kl_sentence(stored: dict[str, Any]) -> str:
    """Which estimators give the KL and which its gradient."""
    rows = stored["kl"]
    values = {x["name"]: abs(x["value"] / x["kl"] - 1) < ROUNDING for x in rows}
    exact = " and ".join(escape(name) for name, right in values.items() if right)
    right = [x for x in rows if is_unbiased(x)]
    nothing = [x for x in rows if x["bias_most"] is None]
    rest = [x for x in rows if x not in right and x not in nothing]
    text = f"**Unbiased for the value of the KL: {exact or 'none'}. Unbiased for its gradient: "
    text += (", ".join(map(placed, right)) or "none") + ".**"
    text += f" The mean of {' and '.join(map(placed, nothing))} is 0." * bool(nothing)
    rest.sort(key=lambda x: x["bias_most"])
    listed = items(f"{placed(x)}: {share(x, 'bias')}" for x in rest)
    return f"{text} Bias of the others, relative to the gradient:\n\n{listed}"


def placed(row: dict[str, Any]) -> str:
    """`k2 in the loss`"""
    return f"{escape(row['name'])} in the {escape(row['place'])}"


def clip_sentence(stored: dict[str, Any]) -> str:
    """How much of the gradient each clip leaves."""
    listed = items(f"{escape(x['name'])}: {share(x, 'left')}" for x in stored["clips"][1:])
    return (
        "**Share of the unclipped gradient that remains along its direction with each pair of "
        f"epsilons:**\n\n{listed}"
    )
