"""Sections of the page on what the language papers claim: why a training does what it does.

Which samples teach, what a clip does without a reward, how accuracy is bought with entropy, and
what a renewed reward model is worth. The runs are those of the suite `language-models`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from manyseeds import stats
from manyseeds.benchmarks.chapters.blocks import Block, Table, Text
from manyseeds.benchmarks.chapters.differences import Applied, Compared, compared, judged
from manyseeds.benchmarks.chapters.language_measures import (
    FIRST_STEP,
    NEAR_1,
    at_ends,
    averaged,
    between,
    change,
    curves_of,
    first,
    first_steps,
    has_metric,
    last,
    measure,
    metric,
    paired,
    run_of,
)
from manyseeds.benchmarks.chapters.language_runs import SIGNS, commands_of
from manyseeds.benchmarks.experiments import suite
from manyseeds.benchmarks.store.methods import Method, by_seed
from manyseeds.llm_track.evaluation import FINAL_PROMPTS
from manyseeds.stats import Floats

SIGNED = "Zhu et al., 2025, arXiv 2506.01347"
CLIPS = "Park et al., 2025, arXiv 2509.26114"
LAW = "Cui et al., 2025, arXiv 2505.22617"
GRPO = "Shao et al., 2024, arXiv 2402.03300"


def all_runs(
    found: Sequence[Method], algo: str, wanted: Mapping[str, Mapping[str, Any]]
) -> dict[str, Method]:
    """The runs on addition by their names; none unless all are there."""
    runs = {name: run_of(found, algo, "addition", x) for name, x in wanted.items()}
    known = {name: m for name, m in runs.items() if m}
    return known if len(known) == len(wanted) else {}


# ---- Right and wrong samples ---------------------------------------------------------------

AT = ("pass@1", "pass@4", "pass@256")
SIGN_COLUMNS = (
    *("learned from", "learning rate", "n", *AT, "pass@16"),
    *("entropy before", "after, mean [95%]", "largest KL"),
)
BROKEN = 0.2  # nats per token


def signs_section(found: Sequence[Method], results: Path) -> Iterator[Block]:
    """RL from right samples alone, from wrong ones alone, and from all."""
    runs = all_runs(found, "rloo", dict(zip(SIGNS, suite.SIGNS, strict=True)))
    if not runs:
        return
    plain, wrong = runs["all samples"], runs["wrong samples"]
    fast = run_of(found, "rloo", "addition", suite.FAST_WRONG)
    before = [f"{first(plain, name).mean():.3f}" for name in AT]
    rows = [("(the initial models)", "", plain.n, *before, plain.means("pass@16")[0], "", "", "")]
    for name, m in [*runs.items(), *([("wrong samples", fast)] if fast else [])]:
        after = (f"{last(m, x).mean():.3f}" for x in AT)
        entropy, kl = m.both("entropy"), f"{m.values('kl').max():.2f}"
        rate = f"{m.settings['learning_rate']:g}"
        rows.append((name, rate, m.n, *after, m.means("pass@16")[1], *entropy, kl))

    def gains(m: Method, what: str) -> list[Compared]:
        changes = {name: at_ends(m, name) for name in AT} | {"pass@16": change(m, "pass@16")}
        each = (compared(f"{name} after minus before", what, x) for name, x in changes.items())
        return [*itertools.chain(*each)]

    about = (
        "The run on all samples is RLOO. Right samples alone have a reward of 1, wrong ones alone "
        "of -1, without a baseline, as the paper's. There is no KL and no reward of the format. "
        "Each sample has one gradient step, so that no clip acts; the paper's have several "
        "minibatches, a clip and a small bonus of the entropy. pass@k is of the first and of the "
        f"last evaluation, of {suite.SIGNED['eval_prompts']} held-out prompts with "
        f"{suite.SIGNED['eval_samples']} samples each, pass@16 that of {FINAL_PROMPTS} prompts "
        "with 16, before and after the training."
    )
    start = first(plain, "pass@256")
    room = (
        f"pass@256 is {start.mean():.3f} before and exactly 1 in {np.mean(start >= 1):.0%} of the "
        f"seeds, so it can rise by {1 - start.mean():.3f} at most"
    )
    about += f" {room}" + (": little can be shown by it." if start.mean() > NEAR_1 else ".")
    weighted = (
        metric(runs["right samples"], "accuracy").mean(),
        1 - metric(wrong, "accuracy").mean(),
    )
    of_right, of_wrong = (first_steps(x, plain) for x in (runs["right samples"], wrong))
    applied = Applied(
        f"{weighted[0]:.0%} of the training samples have a weight where right ones alone count, "
        f"{weighted[1]:.0%} where wrong ones alone do; {FIRST_STEP} {of_right.said} for "
        f"right ones, and in {of_wrong.said} for wrong ones",
        min(weighted) > 0 and of_right.yes and of_wrong.yes,
    )
    if fast:
        about += (
            " Nothing bounds how far a wrong sample is pushed down: at the usual learning rate "
            f"{int((fast.values('kl') > BROKEN).sum())} of {fast.n} models end at a KL above "
            f"{BROKEN:g} nats per token. So these claims are decided at a third of it."
        )
    yield judged(
        "language-signs",
        "Learning from wrong samples alone raises pass@k for every k.",
        SIGNED,
        gains(wrong, "wrong samples"),
        [
            Text(about),
            Table("language-signs", SIGN_COLUMNS, rows),
            *commands_of([*runs.values(), *([fast] if fast else [])]),
        ],
        applied=applied,
        note=room,
        beside=gains(fast, "wrong samples, usual rate") if fast else [],
        figure=curves_of(
            "language-signs",
            "pass@1 and pass@256 by the samples that are learned from",
            {"pass@1": "pass@1", "pass@256": "pass@256"},
            runs,
        ),
    )
    differences = {
        name: compared(
            name,
            "right samples alone minus wrong samples alone",
            between(runs["right samples"], wrong, partial(last, name=name)),
        )
        for name in ("pass@1", "pass@256")
    }
    yield judged(
        "language-signs-many",
        "Learning from right samples alone lowers pass@256 compared with learning from wrong ones "
        "alone.",
        SIGNED,
        differences["pass@256"],
        applied=applied,
        note=room,
        beside=differences["pass@1"],
        sign=-1,
    )


# ---- The clip without a reward -------------------------------------------------------------

AFTER = "entropy after minus before"
COIN_COLUMNS = (
    *("clip", "n", "clipped above", "clipped below", "mean reward", "KL, nats per token"),
    *("entropy before", "after, mean [95%]", "pass@1 before", "after"),
)


def random_section(found: Sequence[Method], results: Path) -> Iterator[Block]:
    """What each side of the clip does to the entropy where the reward is a coin's."""
    runs = all_runs(found, "dapo", suite.RANDOM)
    if not runs:
        return
    rows = []
    clipped = {
        name: [float(metric(m, x).mean()) for x in ("clip_high", "clip_low")]
        for name, m in runs.items()
    }
    for name, m in runs.items():
        acts = (f"{x:.2%}" for x in clipped[name])
        reward = f"{metric(m, 'reward').mean():.3f}"
        scores = m.mean_text("kl"), *m.both("entropy"), *m.means("pass@1")
        rows.append((name, m.n, *acts, reward, *scores))

    def against_none(name: str, what: str) -> tuple[list[Compared], list[Compared]]:
        """What decides, at the same KL, and what stands beside it, at the end."""
        pair, minus = (runs[name], runs["none"]), f"{what} minus no clip"
        return (
            compared("entropy at the same KL, nats", minus, at_equal_kl(*pair)),
            compared("entropy at the end, nats", minus, between(*pair, measure("entropy"))),
        )

    def applied(name: str) -> Applied:
        """Whether a run's clip removes gradients on each side that it has."""
        sides = {"below": [1], "above": [0], "both": [0, 1]}[name]
        above, below = clipped[name]
        reward = f"rewards are {metric(runs[name], 'reward').mean():.3f} on average"
        said = f"the clip removes the gradient of {above:.2%} of the tokens above and of "
        return Applied(
            f"{said}{below:.2%} below; {reward}, and without it nothing is clipped"
            if not any(clipped["none"])
            else f"{said}{below:.2%} below, and without it there are clipped tokens, too; {reward}",
            all(clipped[name][side] > 0 for side in sides) and not any(clipped["none"]),
        )

    about = Text(
        "DAPO reduced to its clip, from rewards that a coin decides (examples/random_reward.py): "
        "nothing can be learned. Clipped shares are of the trained tokens whose gradient the clip "
        "removes. A clip also limits how far noise moves the policy, and noise itself changes the "
        "entropy. Therefore entropies are compared at the same distance from the initial model: at "
        "the largest KL that both runs of a seed reach, interpolated between evaluations. This "
        "rule was made after runs had been published by another one: until then the entropy at the "
        "end decided, and of the clip on both sides the change since before the training. These "
        "are not decisive now."
    )
    found_of, beside = against_none("below", "a clip below alone")
    yield judged(
        "language-coin-below",
        "A clip of small ratios raises the entropy, even with random rewards.",
        CLIPS,
        found_of,
        [about, Table("language-coin", COIN_COLUMNS, rows), *commands_of(runs.values())],
        applied=applied("below"),
        beside=beside,
        figure=curves_of(
            "language-coin-below",
            "Entropy and pass@1 with random rewards, by the clip",
            {"entropy, nats": "entropy", "pass@1": "pass@1"},
            {f"clip: {name}": m for name, m in runs.items()},
        ),
    )
    found_of, beside = against_none("above", "a clip above alone")
    yield judged(
        "language-coin-above",
        "A clip of large ratios lowers the entropy, even with random rewards.",
        CLIPS,
        found_of,
        applied=applied("above"),
        beside=beside,
        sign=-1,
    )
    found_of, beside = against_none("both", "a clip on both sides")
    for name, what in (("both", "a clip on both sides"), ("none", "no clip")):
        beside += compared(AFTER, what, change(runs[name], "entropy"))
    alone = [x.text for x in beside if x.measure == AFTER]
    yield judged(
        "language-coin-both",
        "The usual clip on both sides lowers the entropy compared with no clip, even with random "
        "rewards.",
        CLIPS,
        found_of,
        applied=applied("both"),
        note=f"after minus before it changes by {' with the clip and by '.join(alone)} without"
        if len(alone) > 1
        else "",
        beside=beside,
        sign=-1,
    )


def at_equal_kl(m: Method, other: Method) -> stats.Estimate | None:
    """The entropy of a run minus another's where each first reaches the largest KL that both do,
    paired by seed; None where that is unknown of a seed."""
    sides: list[dict[Any, float]] = [{}, {}]
    ways = [by_seed(x, np.arange(len(x.parts), dtype=float)) for x in (m, other)]
    curves = [(x.curve("kl")[1], x.curve("entropy")[1]) for x in (m, other)]
    for seed in set.intersection(*map(set, ways)):
        rows = [
            (kl[int(way[seed])], entropy[int(way[seed])])
            for way, (kl, entropy) in zip(ways, curves, strict=True)
        ]
        reached = float(np.min([kl.max() for kl, _ in rows]))  # NaN if one is
        for side, row in zip(sides, rows, strict=True):
            side[seed] = first_at(reached, *row)
    return paired(*sides)


def first_at(reached: float, kl: Floats, entropy: Floats) -> float:
    """The entropy where the KL, [K] evaluations, first reaches a value; NaN if it does nowhere."""
    there = np.flatnonzero(kl >= reached)
    if not len(there):
        return math.nan
    k = slice(max(there[0] - 1, 0), there[0] + 1)
    return float(np.interp(reached, kl[k], entropy[k]))


# ---- Accuracy against entropy --------------------------------------------------------------

EARLY, LATE = 0.2, 0.1  # of the training: what the law is fitted on, and what it predicts
NEAR = 0.02  # an error of the accuracy that counts as small


LAW_RUNS: dict[str, tuple[str, Mapping[str, Any]]] = {  # without a KL, as the paper's
    "Dr. GRPO from 800 steps": ("dr_grpo", {"model": "tiny-base-800", **suite.ZERO}),
    **{f"DAPO, upper clip {x['clip_range_high']:g}": ("dapo", x) for x in suite.CLIP_HIGHER},
    "RLOO": ("rloo", suite.SIGNS[0]),
}


def law_section(found: Sequence[Method], results: Path) -> Iterator[Block]:
    """R = -a exp(H) + b, fitted to the beginning of a training, at its end."""
    runs = {name: run_of(found, algo, "addition", x) for name, (algo, x) in LAW_RUNS.items()}
    shown = {name: m for name, m in runs.items() if m}
    if not shown:
        return
    rows = []
    against_constant: list[Compared] = []
    against_line: list[Compared] = []
    fallen = []
    for run, m in shown.items():
        laws = [law_of(*x) for x in steps_of(m)]
        law, constant, line = (np.array([getattr(x, n) for x in laws]) for n in Law._fields[:3])
        explained = f"{np.mean([x.explained for x in laws]):.0%}"
        errors = (f"{abs(x).mean():.3f}" for x in (law, constant, line))
        near = f"{int((abs(law) <= NEAR).sum())} of {m.n}"
        rows.append((run, m.n, *errors, f"{law.mean():+.3f}", near, explained))
        fallen.append([(y[0], y[-1]) for _, y, _ in steps_of(m)])
        for other, compared_to, name in (
            (constant, against_constant, "a constant"),
            (line, against_line, "a line"),
        ):
            less = paired(by_seed(m, abs(law)), by_seed(m, abs(other)))
            what = f"the law minus {name}, {run}"
            compared_to += compared("error of the accuracy at the end", what, less)
    about = Text(
        "The law is R = -a exp(H) + b, for accuracy R and entropy H. a and b are fitted, by least "
        "squares, to the samples of each step "
        f"in the first {EARLY:.0%} of a seed's training. With the entropy of the last {LATE:.0%} "
        "they give an accuracy, and the error is its distance from the one there. Beside it stands "
        f"the error of the accuracy that the last tenth of the first {EARLY:.0%} had, a constant, "
        "and that of a straight line over samples, fitted to the same steps and kept within 0 and "
        "1. The paper predicts the end by the law. Whether the law errs less than a constant is a "
        f"weaker claim; the table counts the seeds whose error is at most {NEAR:g}. Explained is "
        "the variance of the accuracy by the law fitted to a whole training. The runs are all with "
        "rewards by rules, without a KL, and with initial models of their own."
    )
    columns = (
        *("run", "n", "mean error of the law", "of a constant", "of a line"),
        *(
            "the law's, with its sign",
            f"seeds that err by at most {NEAR:g}",
            "variance explained",
        ),
    )
    ends = np.array([np.mean(x, 0) for x in fallen])
    said = ", ".join(f"{a:.2f} to {b:.2f}" for a, b in ends)
    applied = Applied(
        f"the entropy, in nats, goes from {said} between the first and the last step, in the order "
        "of the table",
        bool((ends[:, 0] != ends[:, 1]).all()),
    )
    yield judged(
        "language-law",
        "The entropy predicts the accuracy: at the end of a training a law fitted to its first "
        "fifth errs less than a constant.",
        LAW,
        against_constant,
        [about, Table("language-law", columns, rows), *commands_of(shown.values())],
        applied=applied,
        beside=against_line,
        sign=-1,
    )


class Law(NamedTuple):
    """By how much the law, a constant and a line are off at the end, and what the law explains."""

    law: float
    constant: float
    line: float
    explained: float


def steps_of(m: Method) -> Iterator[tuple[Floats, Floats, Floats]]:
    """Share of the training, entropy and accuracy at each step, of each seed."""
    for entropy, accuracy in zip(m.metrics("entropy"), m.metrics("accuracy"), strict=True):
        share = entropy["samples"] / m.settings["total_samples"]
        yield share.to_numpy(), entropy["entropy"].to_numpy(), accuracy["accuracy"].to_numpy()


def law_of(share: Floats, entropy: Floats, accuracy: Floats) -> Law:
    """The errors of predictions from the beginning of a training, [K] steps each."""
    x, early, late = np.exp(entropy), share <= EARLY, share > 1 - LATE
    if not np.isfinite([entropy, accuracy]).all():
        return Law(*[math.nan] * 4)
    slope, offset = np.polyfit(x[early], accuracy[early], 1)
    reached = accuracy[late].mean()
    known = accuracy[early & (share > EARLY * (1 - LATE))].mean()
    line = np.clip(np.polyval(np.polyfit(share[early], accuracy[early], 1), share[late]), 0, 1)
    with np.errstate(invalid="ignore"):  # of a constant: NaN
        explained = float(np.corrcoef(x, accuracy)[0, 1] ** 2)
    law = (slope * x[late] + offset).mean()
    return Law(law - reached, known - reached, line.mean() - reached, explained)


# ---- Renewed reward models -----------------------------------------------------------------

RENEWED_COLUMNS = (
    *("renewed", "n", "pairs, mean", "fewest", "ranked right, first tenth", "last tenth"),
    *("pass@1 before", "after, mean [95%]", "over the training", "KL, nats per token"),
)


def renewed_section(found: Sequence[Method], results: Path) -> Iterator[Block]:
    """Iterations of GRPO under a learned reward: the reward model and the reference, 2 x 2."""
    runs = all_runs(found, "process_grpo", suite.RENEWED)
    if not (runs and all(has_metric(m, "ranked") for m in runs.values())):
        return
    rows = []
    for name, m in runs.items():
        pairs = pairs_of(m)
        right = (f"{ranked(m, *share):.2f}" for share in ((0.0, 0.1), (0.9, 1.0)))
        scores = *m.both("pass@1"), f"{averaged(m).mean():.3f}", m.mean_text("kl")
        rows.append((name, m.n, f"{pairs.mean():,.0f}", f"{pairs.min():,.0f}", *right, *scores))
    start = np.mean([m.values("pass@1", "initial").mean() for m in runs.values()])
    ends = [m.values("pass@1").mean() for m in runs.values()]

    def effect(a: str, b: str, c: str, d: str) -> stats.Estimate | None:
        """Half of (a - b) + (c - d), paired by seed."""
        values = [by_seed(runs[x], averaged(runs[x])) for x in (a, b, c, d)]
        seeds = set.intersection(*map(set, values))
        sides = (
            {s: (x[s] + y[s]) / 2 for s in seeds}
            for x, y in ((values[0], values[2]), (values[1], values[3]))
        )
        return paired(*sides)

    score = "pass@1 averaged over the training"
    of_model = effect("the reward model", "neither", "both", "the reference")
    of_reference = effect("the reference", "neither", "both", "the reward model")
    iterations = between(runs["both"], runs["neither"], averaged)
    at_end = between(runs["both"], runs["neither"], measure("pass@1"))
    falls = max(ends) < start
    pairs = pairs_of(runs["both"])
    late = (f"{ranked(runs[x], 0.9, 1.0):.0%}" for x in ("both", "neither"))
    ordered = " of the policy's pairs in order with iterations, and ".join(late)
    applied = Applied(
        f"the reward model is trained further on {pairs.mean():,.0f} pairs on average, on at least "
        f"{pairs.min():,.0f}; in the last tenth it ranks {ordered} without",
        bool(pairs.min() > 0),
    )
    about = Text(
        "Seed k has an initial model and a reward model of its own. The training has "
        f"{runs['both'].settings['iterations']} parts, "
        "and before each but the first the reward model is trained further on pairs of a right "
        "and a wrong completion of the policy, or the reference of the KL becomes the policy, or "
        "both. The effect of each is the mean over both settings of the other. Ranked right: of "
        "all pairs of a right and a wrong completion of the same prompt that the policy sampled, "
        "how many the reward model puts in order, over all seeds. "
        f"pass@1 ends between {min(ends):.3f} and {max(ends):.3f}, from {start:.3f}"
        + (
            ": all four lose accuracy, and one that loses almost all can show little."
            if falls
            else "."
        )
        + " In earlier editions the effect of the reward model alone decided, which is not the "
        "paper's claim. That was changed when the runs were known."
    )
    yield judged(
        "language-renewed",
        "Iterations of GRPO, which renew the reward model and the reference, make it more "
        "accurate.",
        f"{GRPO}, sec. 5.2.1",
        compared(score, "both renewed minus neither", iterations),
        [about, Table("language-renewed", RENEWED_COLUMNS, rows), *commands_of(runs.values())],
        applied=applied,
        note=f"pass@1 is {start:.3f} before and ends between {min(ends):.3f} and {max(ends):.3f}",
        beside=[
            *compared("pass@1 at the end", "both renewed minus neither", at_end),
            *compared(score, "reward model renewed minus not", of_model),
            *compared(score, "reference renewed minus not", of_reference),
        ],
        figure=curves_of(
            "language-renewed",
            "pass@1 and KL by what is renewed",
            {"pass@1": "pass@1", "KL to the initial model": "kl"},
            {f"renewed: {name}": m for name, m in runs.items()},
        ),
    )


def ranked(m: Method, since: float, until: float) -> float:
    """Share of the policy's pairs that the reward model ranks right in a part of the training."""
    counts = np.zeros(2)
    for both in zip(m.metrics("ranked"), m.metrics("rankable"), strict=True):
        share = both[0]["samples"] / m.settings["total_samples"]
        taken = (share > since) & (share <= until)
        counts += [
            x.loc[taken, name].sum() for x, name in zip(both, ("ranked", "rankable"), strict=True)
        ]
    return float(counts[0] / counts[1]) if counts[1] else math.nan


def pairs_of(m: Method) -> Floats:
    """How many pairs each seed's reward model was trained further on, [S]."""
    if m.settings["iterations"] == 1 or m.settings.get("renewed") == "reference":
        return np.zeros(len(m.parts))
    return np.array([x["pairs"].iloc[-1] for x in m.metrics("pairs")], float)
