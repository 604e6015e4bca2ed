"""The report's page on what the language papers claim: an experiment and a verdict for each claim.

The runs are those of the suite `language-models`; an experiment without its runs has no section.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from manyseeds import plots, stats
from manyseeds.benchmarks.chapters.blocks import (
    OURS,
    Block,
    Claim,
    ClaimWord,
    Code,
    Figure,
    Heading,
    Items,
    Strong,
    Table,
    Text,
    folded_if_long,
    sections,
)
from manyseeds.benchmarks.chapters.differences import (
    NOTHING_COMPARED,
    Compared,
    compared,
    comparison_table,
    corrected,
    judged,
    tested,
    with_ps,
)
from manyseeds.benchmarks.chapters.language_measures import (
    DAPO,
    SIDE_RULE,
    at_ends,
    averaged,
    between,
    change,
    curves,
    curves_of,
    has_metric,
    measure,
    metric,
    paired,
    run_of,
)
from manyseeds.benchmarks.chapters.language_mechanisms import (
    law_section,
    random_section,
    renewed_section,
    signs_section,
)
from manyseeds.benchmarks.chapters.origins import command_text
from manyseeds.benchmarks.experiments import suite
from manyseeds.benchmarks.measurements import llm_pipeline, planted_errors
from manyseeds.benchmarks.store.methods import Method, by_seed
from manyseeds.benchmarks.store.names import display
from manyseeds.benchmarks.store.stored import find_file, section_of
from manyseeds.llm_track.models import BASES
from manyseeds.llm_track.tasks import GENERATED
from manyseeds.record import plural
from manyseeds.stats import Floats

SOLVED = 0.7  # accuracy of the training samples that R1-Zero is to reach
WITHIN = 12_800  # samples

R1 = "DeepSeek-AI, 2025, arXiv 2501.12948"
DR_GRPO = "Liu et al., 2025, arXiv 2503.20783"
GAO = "Gao et al., 2022, arXiv 2210.10760"
YUE = "Yue et al., 2025, arXiv 2504.13837"
TWO = "Wu et al., 2025, arXiv 2510.00977"
ADDITION = GENERATED["addition"]

Section = Callable[[Sequence[Method], Path], Iterable[Block]]


def page(found: Sequence[Method], results: Path) -> Iterator[Block]:
    """The whole page; nothing without any of its runs."""
    blocks = [*sections({title: write(found, results) for title, write in SECTIONS.items()})]
    if blocks:
        yield Text(
            "Tiny models, and the claims of papers on large ones. A claim holds where all "
            "differences that it is about lie on the side of 0 that it says. It holds in part "
            "where some do. It does not hold where none does and one lies on the other side, and "
            "is not shown otherwise; without a comparison that could decide it is not tested. "
            f"{SIDE_RULE}"
        )
    yield from corrected(blocks)
    yield from still_rising(found)


RISING = ("task", "method", "n", "changed", "pass@1, mean [95%]", "gain in the last fifth")


def still_rising(found: Sequence[Method]) -> Iterator[Block]:
    """The trainings of the page that had not come to a plateau."""
    trained = [m for m in found if m.of_experiment and m.headline == "pass@1"]
    rows = []
    for m in trained:
        samples, scores = m.curve("pass@1")
        late = int(np.searchsorted(samples, 0.8 * samples[-1]))
        rise = stats.mean_difference(scores[:, -1] - scores[:, late])
        if rise.low > 0:
            rows.append((*m.named, m.changed, m.text("pass@1"), rise.text(3, "+")))
    if rows:
        yield Heading("Trainings that had not come to a plateau")
        yield Text(
            f"In {len(rows)} of {len(trained)} trainings pass@1 still rose in the last fifth, by "
            "single tests: the 95% interval of the gain lies above zero. What is said of their "
            "ends is said of these budgets. The others may rise, too."
        )
        yield folded_if_long("Which", Table("language-rising", RISING, rows))


def summary(blocks: Iterable[Block]) -> Items:
    """The papers' claims of the page for llm_track/README.md: claim, verdict and number."""
    found = [x for x in blocks if isinstance(x, Claim) and not x.source.startswith(OURS)]
    return Items(
        [
            (x.claim, " ", Strong(x.verdict.capitalize()), (": ", x.number) if x.number else "")
            for x in found
        ]
    )


# ---- Reading runs --------------------------------------------------------------------------


def best_accuracy(m: Method) -> Floats:
    """The highest accuracy of each seed's training samples within WITHIN samples, [S]."""
    tables = m.metrics("accuracy")
    firsts = (x.loc[x["samples"] <= WITHIN, "accuracy"].to_numpy() for x in tables)
    return np.array([np.fmax.reduce(first, initial=0.0) for first in firsts])


def metric_at_points(m: Method, name: str) -> Floats:
    """A metric of the training samples at each evaluation, [S, K]: its mean since the one before.

    At the first evaluation, that of the first step, whose samples are the initial model's.
    """
    points, _ = m.curve(m.headline)
    found = []
    for rows in m.metrics(name):
        x, y = rows["samples"].to_numpy(), rows[name].to_numpy()
        means = [y[0]]
        for before, after in itertools.pairwise(points):
            inside = (x > before) & (x <= after)
            means.append(y[inside].mean() if inside.any() else np.nan)
        found.append(means)
    return np.array(found)


# ---- R1-Zero -------------------------------------------------------------------------------

ZERO_COLUMNS = (
    *("base", "steps", "demonstrations", "method", "n", "steps with a gradient"),
    *("format before", "after"),
    *("pass@1 before", "after, mean [95%]", "right of formatted before", "after"),
    *("pass@16 before", "after", "cons@16 before", "after"),
    f"seeds with accuracy above {SOLVED} within {WITHIN:,} samples",
)
FORMATTED = "right of formatted, after minus before"


def share_of_steps(m: Method) -> float:
    """The share of all seeds' steps that have a gradient."""
    return float(np.mean([(x["grad_norm"] > 0).mean() for x in m.metrics("grad_norm")]))


class Decisive:
    """Comparisons that decide a claim, and others that stand beside them."""

    def __init__(self) -> None:
        self.decisive: list[Compared] = []
        self.others: list[Compared] = []

    def add(self, found: Sequence[Compared], decides: bool) -> None:
        (self.decisive if decides else self.others).extend(found)


def right_of_formatted(m: Method, when: str) -> Floats:
    """The share of right samples by that of formatted ones, [S]; NaN where there is none."""
    formatted = m.values("format", when)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(formatted > 0, m.values("pass@1", when) / formatted, np.nan)


def steps_of(base: str) -> int:
    """How many steps of pretraining a base model of addition has."""
    return BASES[base].steps or ADDITION.base_steps


def from_base(algo: str, base: str) -> str:
    """`GRPO from 800 steps, 15% demonstrations`: of a base model's pretraining."""
    share = f"{BASES[base].demonstrations:.0%} demonstrations"
    return f"{display(algo)} from {steps_of(base)} steps, {share}"


def zero_section(found: Sequence[Method], results: Path) -> Iterator[Block]:
    """RL from a base model, without SFT, by how often it has seen the format."""
    pairs = [(x, run_of(found, algo, "addition", x)) for algo, x in suite.R1_ZERO]
    shown = {from_base(m.algo, x["model"]): (x["model"], m) for x, m in pairs if m}
    if len(shown) < len(pairs):  # a base without a signal alone would decide against the paper
        return
    rows = []
    gains, apart, ahead = Decisive(), Decisive(), Decisive()
    for run, (base, m) in shown.items():
        moved = share_of_steps(m)
        best, made = best_accuracy(m), BASES[base]
        early = f"{int((best > SOLVED).sum())} of {m.n}"
        shares = [right_of_formatted(m, when) for when in ("initial", "final")]
        said = ("" if np.isnan(x).all() else f"{np.nanmean(x):.3f}" for x in shares)
        of_base = base, str(steps_of(base)), f"{made.demonstrations:.0%}"
        more = *m.both("pass@1"), *said, *m.means("pass@16"), *m.means("cons@16")
        rows.append((*of_base, m.label, m.n, f"{moved:.0%}", *m.means("format"), *more, early))
        gained = compared("pass@1 after minus before", run, change(m, "pass@1"))
        gains.add(gained, decides=moved > 0)
        both = [by_seed(m, x) for x in reversed(shares)]
        apart.add(compared(FORMATTED, run, paired(*both)), decides=moved > 0)
        over = stats.mean_difference(best - SOLVED)
        ahead.add(compared(f"best accuracy minus {SOLVED}", run, over), decides=moved > 0)
    about = Text(
        "A step has a gradient where its norm is above 0. GRPO's first one needs a group whose "
        "rewards differ. A run without a single such step has not been trained, and decides "
        "nothing."
    )
    yield judged(
        "language-zero",
        "Reinforcement learning from rules alone, without SFT, improves a base model.",
        f"{R1}, sec. 2.2",
        gains.decisive,
        [about, Table("language-zero", ZERO_COLUMNS, rows)],
        beside=gains.others,
        figure=curves_of(
            "language-zero",
            "pass@1 and format of R1-Zero",
            {"pass@1": "pass@1", "format": "format"},
            {run: m for run, (_, m) in shown.items()},
        ),
    )
    about = Text(
        "The base models differ in the steps of their pretraining, and in the share of its text "
        "that are demonstrations, which alone have the format; format before RL shows whether that "
        "was so. Right of formatted is pass@1 divided by the share of formatted samples."
    )
    yield judged(
        "language-zero-formatted",
        "Reinforcement learning from rules alone improves more than the format: of the formatted "
        "samples more are right.",
        f"{R1}, sec. 2.2",
        apart.decisive,
        [about],
        beside=apart.others,
    )
    about = Text(
        "In the paper pass@1 on AIME 2024 rises to 0.71. Here the highest accuracy that a seed's "
        f"training samples have within {WITHIN:,} samples, half of a training, is compared with "
        "it: that limit is ours."
    )
    yield judged(
        "language-zero-solved",
        "Reinforcement learning from rules alone takes a base model to a high accuracy: here "
        f"above {SOLVED} within {WITHIN:,} samples.",
        f"{OURS}, after {R1}, sec. 2.2",
        ahead.decisive,
        [about],
        beside=ahead.others,
    )


# ---- Many samples --------------------------------------------------------------------------


FORMAT = 0.9  # of the samples: then the format is taken to be learned
SINCE = "first evaluation with the format"


def many_section(found: Sequence[Method], results: Path) -> Iterator[Block]:
    """pass@256 of a base model, since it has the format, to the end of RL; beside it the format's
    part, and what 16 samples solve of models that have the format before RL."""
    m = run_of(found, "grpo", "addition", suite.MANY_SAMPLES)
    if m is None:
        return
    formats = m.curve("format")[1].mean(0)
    learned = np.flatnonzero(formats >= FORMAT)
    last = len(formats) - 1
    k = int(learned[0]) if len(learned) else last
    base, names = f"{m.label}, base model", ("pass@256", "pass@4", "pass@1")
    since = {
        x: compared(f"{x}, end minus {SINCE}", base, at_ends(m, x, k) if k < last else None)
        for x in names
    }
    whole = [
        each for x in names for each in compared(f"{x}, end minus before RL", base, at_ends(m, x))
    ]
    with_format = [
        each
        for algo, settings in (
            *(("grpo", x) for x in (*suite.GROUPS, *suite.PAIRS)),
            *(("dapo", x) for x in suite.CLIP_HIGHER),
        )
        if (x := run_of(found, algo, "addition", settings))
        for each in compared(
            "pass@16 after minus before", f"{x.label}, {x.changed}", change(x, "pass@16")
        )
    ]
    at = m.curve("format")[0][k]
    about = (
        f"pass@256 is that of {len(formats)} evaluations "
        f"on {suite.MANY_SAMPLES['eval_prompts']} held-out prompts. "
        f"{formats[0]:.0%} of the base model's samples have the format, which the paper's models "
        f"know, and RL adds it, too. So what decides is the change since the first evaluation at "
        f"which at least {FORMAT:.0%} have it, "
    )
    about += (
        f"here {formats[k]:.0%} at {at:,.0f} samples." if len(learned) else "and there is none."
    )
    if with_format:
        fall, rise = (sum(x.sign == sign for x in with_format) for sign in (-1, 1))
        about += (
            f" Of {plural(len(with_format), 'training')} of models that have the format before RL, "
            f"pass@16 falls in {fall} and rises in {rise}."
        )
    yield judged(
        "language-many",
        "A base model solves more than the same model after RL where each prompt has many samples.",
        YUE,
        since["pass@256"],
        [Text(about)],
        sign=-1,
        beside=[*since["pass@4"], *since["pass@1"], *whole, *with_format],
        figure=curves_of(
            "language-many",
            "pass@k during RL of a base model",
            {"pass@1": "pass@1", "pass@256": "pass@256", "format": "format"},
            {m.label: m},
        ),
    )


# ---- Group sizes ---------------------------------------------------------------------------

GROUP_COLUMNS = (
    *("prompts", "group size", "samples", "steps", "n", "groups with a signal"),
    *("pass@1 before", "after, mean [95%]"),
)
KEPT = 0.95  # of the score of large groups that small ones are to have; the paper finds 0.976


def groups_section(found: Sequence[Method], results: Path) -> Iterator[Block]:
    """Small groups beside large ones: with as many samples, and with as many steps."""
    wanted = (*suite.GROUPS, *suite.PAIRS)
    shown = [m for x in wanted if (m := run_of(found, "grpo", "addition", x))]
    if len(shown) < len(wanted):
        return
    rows = []
    for m in shown:
        prompts, size, total = (m.settings[x] for x in ("prompts", "group_size", "total_samples"))
        mixed = 1 - metric(m, "all_solved").mean() - metric(m, "all_failed").mean()
        sizes = str(prompts), str(size), f"{total:,}", str(-(-total // (prompts * size)))
        rows.append((*sizes, m.n, f"{mixed:.0%}", *m.both("pass@1")))
    large, *others = shown[: len(suite.GROUPS)]
    enough = by_seed(large, KEPT * large.values("pass@1"))
    kept, equal = [], []
    for m, steps in zip(shown[len(suite.GROUPS) :], ("as many", "as large"), strict=True):
        what = f"pass@1 minus {KEPT:g} of that of groups of 16"
        score = by_seed(m, m.values("pass@1"))
        kept += compared(what, f"groups of 2, {steps} steps", paired(score, enough))
    for m in others:
        what = f"groups of {m.settings['group_size']} minus {large.settings['group_size']}"
        equal += compared("pass@1, equal samples", what, between(m, large, measure("pass@1")))
    about = Text(
        "A step is one gradient step on all its samples, where GRPO's preset makes four, so that "
        "no minibatch parts the right samples of a prompt from its wrong ones. Groups of 2 with an "
        "eighth of the samples have as many steps as groups of 16, each of an eighth as many "
        "samples, or steps that are as large, and an eighth as many."
    )
    details: list[Block] = [about, Table("language-groups", GROUP_COLUMNS, rows)]
    yield judged(
        "language-groups",
        f"Groups of 2 reach at least {KEPT:.0%} of the pass@1 of groups of 16, with an eighth of "
        "the samples.",
        TWO,
        kept,
        details,
        beside=equal,
        figure=curves_of(
            "language-groups",
            "pass@1 and entropy by the size of groups, equal samples",
            {"pass@1": "pass@1", "entropy": "entropy"},
            {f"groups of {m.settings['group_size']}": m for m in (large, *others)},
        ),
    )


# ---- Over-optimisation ---------------------------------------------------------------------

RLHF_COLUMNS = (
    *("method", "reward", "n", "learned reward before", "after, mean [95%]"),
    *("pass@1 before", "after, mean [95%]", "over the training", "greedy before", "after"),
    "KL, nats per token",
)
COIN = f"of a coin, beta {suite.PLACEBO['kl_coef']:g}"


def reward_name(settings: Mapping[str, Any]) -> str:
    """What a run of the RLHF chain is rewarded by."""
    name = "learned" if settings.get("rules") is False else "learned and rules"
    if "kl_coef" in settings:
        name += f", beta {settings['kl_coef']:g}"
    return name


def rlhf_section(found: Sequence[Method], results: Path) -> Iterator[Block]:
    """The learned reward and the true accuracy over the KL."""
    pairs = [(reward_name(x), run_of(found, algo, "addition", x)) for algo, x in suite.RLHF]
    shown = [(name, m) for name, m in pairs if m]
    if not shown:
        return
    rows = []
    rewards, scores = {}, {}
    beside: list[Compared] = []
    for name, m in shown:
        reward = metric_at_points(m, "reward")
        x, score = distance(m), m.curve("pass@1")[1]
        line = f"{display(m.algo)}: {name}"
        rewards[line], scores[line] = plots.mean_line(x, reward), plots.mean_line(x, score)
        rewarded = f"{reward[:, 0].mean():.2f}", stats.estimate(reward[:, -1], "mean").text(2)
        rows.append((m.label, name, m.n, *rewarded, *scored(m)))
        if "rules" not in name:
            more = paired(by_seed(m, reward[:, -1]), by_seed(m, reward[:, 0]))
            run = f"{display(m.algo)} ({name})"
            beside += compared("learned reward after minus before", run, more, 2)
    coin = run_of(found, "rlhf_ppo", "addition", suite.PLACEBO)
    if coin:
        rows.append((coin.label, COIN, coin.n, "", "", *scored(coin)))
        for name in ("pass@1", "greedy"):
            what = f"{display(coin.algo)} ({COIN})"
            beside += compared(f"{name} after minus before", what, change(coin, name))
    about = Text(
        "Every seed has its own reward model, trained by ",
        Code("reward_model.py"),
        " with its defaults. The reward shown is the mean reward of the training samples since the "
        "previous evaluation. It includes the rewards for format and by rules where there are any, "
        "and PPO subtracts 1 for a truncated completion. The curves are over the square root of "
        "the KL, as those of Gao et al., whose KL is of whole answers. A gain in pass@1 without "
        "one in greedy answers can also be that of a lower entropy. With the rewards of a coin "
        "(examples/random_reward.py) a gain has another cause than a learned reward, such as noise "
        "or the penalty for truncation. So the gain at the same weight of the KL is counted less "
        "that of the coin. The coin's critic begins as the policy, that of the others as the "
        "reward model.",
    )
    label = "Learned reward and pass@1 over the square root of the KL"
    panels = {"learned reward": rewards, "pass@1": scores}
    xlabel = "√KL to the initial model, KL in nats per token"
    yield from turn_claim(
        [m for name, m in shown if "rules" not in name],
        coin,
        curves("language-overoptimisation", label, panels, xlabel=xlabel, columns=2),
        [about, Table("language-overoptimisation", RLHF_COLUMNS, rows)],
        beside,
    )


def scored(m: Method) -> tuple[str, ...]:
    """The cells of a row on accuracy and KL."""
    over_training = f"{averaged(m).mean():.3f}"
    return (*m.both("pass@1"), over_training, *m.means("greedy"), m.mean_text("kl"))


def gained(m: Method) -> Floats:
    """pass@1 after the training minus before, [S]."""
    return m.values("pass@1") - m.values("pass@1", "initial")


def distance(m: Method) -> Floats:
    """The square root of the mean KL to the initial model at each evaluation, [K]."""
    # The KL is sampled: where the models are the same it can be below 0.
    return np.sqrt(np.maximum(m.curve("kl")[1].mean(0), 0))


def turn_claim(
    runs: Sequence[Method],
    coin: Method | None,
    figure: Figure,
    details: Sequence[Block],
    beside: Sequence[Compared],
) -> Iterator[Block]:
    """Between which KLs the gain in accuracy becomes a loss, among runs that differ in their KL.

    coin: the run from random rewards, whose gain is subtracted from that of the run with its KL.
    """
    gains: list[tuple[float, Compared]] = []
    for m in runs:
        kl = m.values("kl").mean()
        if np.isfinite(kl):
            what = f"at a KL of {kl:.3f} nats per token"
            gain = compared("pass@1 after minus before", what, change(m, "pass@1"))
            if coin and m.settings["kl_coef"] == coin.settings["kl_coef"]:
                beside = [*beside, *gain]
                less = f"{what}, less that with a coin's rewards"
                gain = compared("pass@1 after minus before", less, between(m, coin, gained))
            gains += [(kl, x) for x in gain]

    def card(p: Sequence[float]) -> Claim:
        found = with_ps([x for _, x in gains], p)
        at = [kl for kl, _ in gains]
        higher = [kl for kl, x in zip(at, found, strict=True) if x.sign > 0]
        lower = [kl for kl, x in zip(at, found, strict=True) if x.sign < 0]
        word: ClaimWord = "not shown" if found else "not tested"
        number = "" if found else NOTHING_COMPARED
        if higher and lower:
            word = "holds" if max(higher) < min(lower) else "does not hold"
        if word == "holds":
            ends = f"{max(higher):.3f} and {min(lower):.3f} nats per token"
            number = f"pass@1 turns from a gain to a loss between a KL of {ends}"
        return Claim(
            "The true score rises close to the initial model, and falls far from it.",
            word,
            number,
            figure,
            [comparison_table(found, beside), *details],
            GAO,
        )

    yield tested([x.p for _, x in gains], card)


# ---- The R1 pipeline -----------------------------------------------------------------------

SMALL, LONGER = "RL on small base", "RL on small base for longer"
PIPELINE_COLUMNS = (
    *("stage", "n", "samples drawn", "pass@1, mean [95%]", "pass@16, mean [95%]"),
    *("cons@16", "format", "length"),
)


def pipeline_section(found: Sequence[Method], results: Path) -> Sequence[Block]:
    """The stages of DeepSeek-R1, and distillation against RL."""
    path = find_file(results, llm_pipeline.FILE)
    return section_of(path, llm_pipeline.STORED, pipeline_claims)


def pipeline_claims(stored: dict[str, Any]) -> Iterator[Block]:
    """The claims on llm_pipeline.json, and its table."""
    rows = []
    values: dict[str, dict[str, dict[int, float]]] = {}
    for stage in dict.fromkeys(row["stage"] for row in stored["rows"]):
        here = [row for row in stored["rows"] if row["stage"] == stage]
        of = {name: np.array([row[name] for row in here]) for name in llm_pipeline.MEASURES}
        seeds = [row["seed"] for row in here]
        values[stage] = {name: dict(zip(seeds, x.tolist(), strict=True)) for name, x in of.items()}
        cells = [stats.estimate(of[name], "mean").text(3) for name in ("pass@1", "pass@16")]
        cells += [f"{of[x].mean():.3f}" for x in ("cons@16", "format")]
        cells.append(f"{of['length'].mean():.1f}")
        samples = f"{np.mean([row['samples'] for row in here]):,.0f}"
        rows.append((stage, str(len(here)), samples, *cells))

    def differences(a: str, b: str) -> list[Compared]:
        if not {a, b} <= values.keys():
            return []
        pairs = {x: paired(values[a][x], values[b][x]) for x in ("pass@1", "pass@16")}
        return [x for name, d in pairs.items() for x in compared(name, f"{a} minus {b}", d)]

    def figure(name: str, about: str, *stages: str) -> Figure | None:
        """pass@1 of stages over their own samples."""
        lines = {stage: stage_line(stored["rows"], stage) for stage in stages}
        known = {stage: line for stage, line in lines.items() if line}
        return curves(name, about, {"pass@1": known}) if known else None

    settings = stored["settings"]
    about = Text(
        f"The stages of DeepSeek-R1, on {settings['task']}, are compared with RL alone, and "
        "distillation with RL on the small base model, each with as many samples. Rejection SFT "
        "and distillation learn, in several passes, from one right sample of each of "
        f"{settings['prompts']:,} prompts that the model after RL solves in {llm_pipeline.SAMPLES} "
        "attempts. Samples are those drawn from a model until the end of a stage: these attempts "
        "and the training of that model count. RL again and RL alone both have a KL to the model "
        "that they begin with: RL alone goes on from RL, and both see its prompts again. RL for "
        f"longer has {llm_pipeline.LONGER} times as many samples. The figures count the samples "
        "of a stage. Each seed has base models of its own."
    )
    yield judged(
        "language-pipeline-rl",
        "Rejection SFT and a second stage of RL improve a model more than RL alone.",
        f"{OURS}; stages: {R1}v1, sec. 2.3",
        differences("RL again", "RL alone"),
        figure=figure(
            "language-pipeline-rl", "pass@1 of stages of RL", "RL", "RL again", "RL alone"
        ),
        details=[
            about,
            Table("language-pipeline", PIPELINE_COLUMNS, rows),
            command_text(stored, stored["machine"]["cpu"]),
        ],
    )
    yield judged(
        "language-pipeline-distillation",
        "Distillation improves a small model more than RL on it.",
        f"{R1}v1, sec. 4.1",
        differences("distillation", SMALL),
        beside=differences("distillation", LONGER),
        figure=figure(
            "language-pipeline-distillation",
            "pass@1 of RL on the small base model",
            SMALL,
            LONGER,
        ),
    )


def stage_line(rows: Sequence[Mapping[str, Any]], stage: str) -> plots.Line | None:
    """pass@1 of a stage over its samples, where all its seeds were evaluated alike."""
    found = [row["curve"] for row in rows if row["stage"] == stage]
    points = [[x["samples"] for x in curve] for curve in found]
    if not found or not points[0] or any(x != points[0] for x in points):
        return None
    return plots.mean_line(
        np.array(points[0]), np.array([[x["pass@1"] for x in curve] for curve in found])
    )


# ---- Clip-higher ---------------------------------------------------------------------------

CLIP_COLUMNS = (
    *("upper clip", "n", "clipped above", "clipped below", "entropy before", "after, mean [95%]"),
    *("pass@1, mean [95%]", "pass@16 before", "after, mean [95%]"),
)


def clip_section(found: Sequence[Method], results: Path) -> Iterator[Block]:
    """What a larger upper clip range does where the clip acts."""
    pairs = [(x, run_of(found, "dapo", "addition", x)) for x in suite.CLIP_HIGHER]
    shown = [(x["clip_range_high"], m) for x, m in pairs if m]
    if len(shown) < 2:
        return
    rows = []
    for high, m in shown:
        acts = (f"{metric(m, name).mean():.2%}" for name in ("clip_high", "clip_low"))
        scores = *m.both("entropy"), m.text("pass@1"), *m.both("pass@16")
        rows.append((f"{high:g}", m.n, *acts, *scores))
    (low, plain), *others = shown
    found_of: dict[str, list[Compared]] = {"entropy": [], "pass@16": []}
    for name, differences in found_of.items():
        for high, m in others:
            what = f"an upper clip of {high:g} minus {low:g}"
            differences += compared(name, what, between(m, plain, measure(name)))
    about = Text(
        "Clipped shares are of the trained tokens whose gradient the clip removes. Dynamic "
        "sampling is off."
    )
    yield judged(
        "language-clip-higher",
        "A larger upper clip range keeps the entropy up.",
        f"{DAPO}, sec. 3.1",
        found_of["entropy"],
        [about, Table("language-clip-higher", CLIP_COLUMNS, rows)],
        figure=curves_of(
            "language-clip-higher",
            "Entropy and pass@16 by the upper clip range",
            {name: name for name in found_of},
            {f"upper clip {high:g}": m for high, m in shown},
        ),
    )
    yield judged(
        "language-clip-higher-samples",
        "A larger upper clip range keeps the samples diverse, as pass@16 shows.",
        f"{DAPO}, sec. 3.1",
        found_of["pass@16"],
    )
    if all(has_metric(m, "old_prob") for _, m in shown):
        yield clipped_probabilities(shown)


BOUND_OF_PAPER = 0.2  # at most so likely are the tokens that DAPO's authors see clipped


def clipped_probabilities(shown: Sequence[tuple[float, Method]]) -> Block:
    """The mechanism that DAPO gives: which tokens the upper clip stops."""

    def clipped(m: Method) -> Floats:
        return metric(m, "old_prob_high") / metric(m, "clip_high")

    def movable(m: Method) -> Floats:
        return metric(m, "old_prob") / metric(m, "movable")

    rows, found, others = [], [], []
    none: list[str] = []
    for high, m in shown:
        if (metric(m, "clip_high") == 0).any():
            none.append(f"{high:g}")
            continue
        sides = clipped(m), movable(m)
        rows.append((f"{high:g}", m.n, *(f"{x.mean():.3f}" for x in sides)))
        name, upper = "mean probability of a token", f"an upper clip of {high:g}"
        what = f"clipped minus all that could be, {upper}"
        found += compared(name, what, paired(*(by_seed(m, x) for x in sides)))
        bound = np.full(len(m.parts), BOUND_OF_PAPER)
        what = f"clipped minus {BOUND_OF_PAPER:g}, {upper}"
        others += compared(name, what, paired(*(by_seed(m, x) for x in (sides[0], bound))))
    about = Text(
        "The probability is the one with which a token was sampled, averaged over the tokens of a "
        "training whose gradient the upper clip removes, and over all those that it could stop: "
        "they have a positive advantage, and can become so much more likely. The paper shows that "
        f"clipped tokens have at most about {BOUND_OF_PAPER:g}."
        + (f" Not tested with {' and '.join(none)}, which clips nothing in some seed." * bool(none))
    )
    columns = ("upper clip", "n", "probability of clipped tokens", "of all that could be clipped")
    return judged(
        "language-clip-tokens",
        "The upper clip stops tokens of low probability.",
        f"{DAPO}, sec. 3.1",
        found,
        [about, Table("language-clip-tokens", columns, rows)],
        beside=others,
        sign=-1,
    )


# ---- Length --------------------------------------------------------------------------------

LENGTH_COLUMNS = (
    *("method", "changed", "n", "pass@1, mean over the training", "at the end, mean [95%]"),
    *("tokens of right ones", "of wrong ones", "wrong minus right, mean [95%]", "cut off"),
    "tokens of all samples",
)
CHANGED = ("none of the three", "token-level loss", "overlong filtering", "soft punishment")


def length_section(found: Sequence[Method], results: Path) -> Iterator[Block]:
    """Lengths where the task leaves them free, under GRPO, Dr. GRPO and parts of DAPO."""
    shown = {
        changed: m
        for changed, (algo, settings) in suite.LENGTHS.items()
        if (m := run_of(found, algo, "rambling", settings))
    }
    parts = {
        name: m
        for name, settings in zip(CHANGED, suite.LONG, strict=True)
        if (m := run_of(found, "dapo", "rambling", settings))
    }
    rows = [length_row(m, x) for x, m in (*shown.items(), *parts.items())]
    if not rows:
        return
    details: list[Block] = [
        Text(
            "Excess length is how many tokens wrong completions are longer than right ones. In ",
            Code("rambling"),
            " the thinking of the demonstrations has random filler, so that length is free. What "
            "is not at the end is averaged over the evaluations of a training, and the length of "
            "samples over its steps. In the first edition ends decided, at ten times the learning "
            "rate: there nothing was cut off after a tenth of a training. GRPO has a KL to the "
            "initial model, which favours its lengths. Dr. GRPO has none, and GRPO without one is "
            "what it is compared with. DAPO's completions have at most "
            f"{suite.PLAIN_DAPO['max_new_tokens']} tokens. It has a symmetric clip, no dynamic "
            "sampling, and each of its other parts alone.",
        ),
        Table("language-free-length", LENGTH_COLUMNS, rows),
    ]
    if shown:
        yield bias_claim({f"{display(m.algo)} {x}".strip(): m for x, m in shown.items()}, details)
    yield from part_claims(parts, [] if shown else details)


def excess(m: Method) -> Floats:
    """By how many tokens wrong completions are longer than right ones, over the training, [S]."""
    return averaged(m, "length_wrong") - averaged(m, "length_right")


def bias_claim(runs: Mapping[str, Method], details: Sequence[Block]) -> Claim:
    """GRPO and Dr. GRPO, both without a KL; beside it the other pairs of runs."""
    like = f"{display('grpo')} without a KL", display("dr_grpo")
    decisive: list[Compared] = []
    others: list[Compared] = []
    for a, b in itertools.combinations(runs, 2):
        pair, minus = (runs[a], runs[b]), f"{a} minus {b}"
        difference = compared("excess length", minus, between(*pair, excess), 2, " tokens")
        (decisive if (a, b) == like else others).extend(difference)
        if (a, b) == like:
            for side in ("wrong", "right"):
                length = between(*pair, partial(averaged, name=f"length_{side}"))
                others += compared(f"length of {side} ones", minus, length, 2, " tokens")
    panels = {
        **{
            f"{side} ones, tokens": {x: m.line(f"length_{side}") for x, m in runs.items()}
            for side in ("right", "wrong")
        },
        "wrong minus right, tokens": {
            x: m.line("length_wrong", minus="length_right") for x, m in runs.items()
        },
    }
    return judged(
        "language-free-length",
        "GRPO makes wrong completions longer than Dr. GRPO does, beside right ones.",
        DR_GRPO,
        decisive,
        details,
        beside=others,
        figure=curves(
            "language-free-length",
            "Lengths of right and of wrong completions of rambling, and their difference",
            panels,
        ),
    )


def part_claims(parts: Mapping[str, Method], details: Sequence[Block]) -> Iterator[Block]:
    """What each part of DAPO changes against the run without any of them."""
    plain = parts.get(CHANGED[0])
    over_training = "pass@1 averaged over the training"
    scores, ends, lengths = [], [], []
    for name, m in parts.items():
        if plain and m is not plain:
            alone = f"{name} alone minus {CHANGED[0]}"
            scores += compared(over_training, alone, between(m, plain, averaged))
            ends += compared("pass@1 at the end", alone, between(m, plain, measure("pass@1")))
            shorter = between(m, plain, partial(metric, name="length"))
            length = "length averaged over the training"
            lengths += [(name, x) for x in compared(length, alone, shorter, 2, " tokens")]
    if scores:
        yield judged(
            "language-parts",
            "DAPO's token-level loss, overlong filtering and soft punishment raise the accuracy.",
            f"{DAPO}, table 1",
            scores,
            details,
            beside=ends,
        )
    if lengths:
        yield judged(
            "language-parts-length",
            "DAPO's soft punishment of long completions makes them shorter.",
            f"{DAPO}, sec. 3.4",
            [x for name, x in lengths if name == CHANGED[3]],
            beside=[x for name, x in lengths if name != CHANGED[3]],
            sign=-1,
        )


def length_row(m: Method, changed: str) -> tuple[str, ...]:
    """A row of the table of lengths."""

    def mean(name: str, form: str) -> str:
        """Of all seeds over the training, empty where one lacks it."""
        values = averaged(m, name)
        return "" if np.isnan(values).any() else format(values.mean(), form)

    extra = excess(m)
    apart = "" if np.isnan(extra).any() else stats.estimate(extra, "mean").text(1, "+")
    return (
        *(m.label, changed, m.n, mean("pass@1", ".3f"), m.text("pass@1")),
        *(mean("length_right", ".1f"), mean("length_wrong", ".1f"), apart),
        *(mean("truncated", ".1%"), f"{metric(m, 'length').mean():.2f}"),
    )


# ---- Self-correction -----------------------------------------------------------------------

WAITS = {
    "wait_if_wrong": "P(wait | wrong column)",
    "wait_if_right": "P(wait | right column)",
    "right_after_wait": "P(right column | wait after a wrong one)",
}
OWN_WAITS = {"wait": "P(wait)", **WAITS}


def correction_section(found: Sequence[Method], results: Path) -> Iterator[Block]:
    """Whether a model comes to reconsider, by mistakes that are the same before and after RL."""
    m = run_of(found, "grpo", "checking", suite.OWN)
    path = find_file(results, planted_errors.FILE)
    write = partial(correction_claim, details=[*own_mistakes(m)] if m else [])
    yield from section_of(path, planted_errors.STORED, write)


TOLD_APART = "P(wait | wrong column) minus P(wait | right column)"


def correction_claim(stored: dict[str, Any], details: Sequence[Block]) -> Iterator[Block]:
    """The claim on planted_errors.json; nothing of no seed."""
    measured = stored["measurements"]
    if not measured:
        return

    def ends(name: str) -> list[dict[int, float]]:
        """A share by seed, before and after; NaN of a training that diverged."""
        return [
            {row["seed"]: np.nan if row[x][name] is None else row[x][name] for row in measured}
            for x in planted_errors.ENDS
        ]

    values = {title: ends(name) for name, title in WAITS.items()}
    wrong, right, _ = values.values()
    values[TOLD_APART] = [{k: x[k] - y[k] for k in x} for x, y in zip(wrong, right, strict=True)]
    gains = {
        title: compared(title, "planted columns, after RL minus before", paired(after, before))
        for title, (before, after) in values.items()
    }
    rows = [
        (title, str(len(after)), f"{np.mean([*before.values()]):.3f}", text_of_mean(after))
        for title, (before, after) in values.items()
    ]
    first, last = (np.nanmean([*x.values()]) for x in ends("accuracy"))
    yield judged(
        "language-correction",
        "By reinforcement learning a model comes to reconsider what it wrote.",
        f"{R1}, sec. 2.2.4",
        gains.pop(TOLD_APART),
        [
            Text(
                "In ",
                Code("checking"),
                " a quarter of the demonstrations' columns are first written wrong, followed by ",
                Code("wait;"),
                " and the right column. Every model reads the same beginnings of completions of "
                f"{planted_errors.PROMPTS} held-out prompts, up to a column that is planted wrong "
                "or right. How probable ",
                Code("wait;"),
                " is after it, and then the right column, is computed. What decides is by how "
                "much more probable it is after a wrong column than after a right one. The "
                f"accuracy of the samples is {first:.3f} in the first tenth of RL and {last:.3f} "
                "in the last. In earlier editions a model's own columns decided, but the mistakes "
                "that a model still makes after RL are not those that it made before.",
            ),
            Table("language-planted", ("planted", "n", "before", "after, mean [95%]"), rows),
            command_text(stored, stored["machine"]["cpu"]),
            *details,
        ],
        beside=[x for found in gains.values() for x in found],
    )


def text_of_mean(values: Mapping[int, float]) -> str:
    """Of the seeds that have one."""
    known = np.array([x for x in values.values() if np.isfinite(x)])
    return stats.estimate(known, "mean").text(3) if len(known) else ""


def own_mistakes(m: Method) -> Iterator[Block]:
    """How often a model reconsiders its own columns."""
    rows = []
    for name, title in OWN_WAITS.items():
        gains = compared(title, "after RL minus before", change(m, name))
        rows.append((title, *m.both(name), *([x.text for x in gains] or [""])))
    columns = ("own columns", "before", "after, mean [95%]", "gain, paired [95%]")
    yield Table("language-correction-own", columns, rows)
    yield Text(
        f"Base models reconsider before any reinforcement learning ({DR_GRPO}). This is not "
        "tested: the demonstrations here contain ",
        Code("wait"),
        ".",
    )
    # A model that never makes a mistake, or never reconsiders, has no such share.
    known = {title: name for name, title in OWN_WAITS.items() if m.has(name)}
    if known:
        label, floors = "Own columns over the training", dict.fromkeys(known, 0.0)
        name = "language-correction-own"
        yield curves_of(name, label, known, {display("grpo"): m}, floors=floors)


# ---- PPO and GRPO at equal settings --------------------------------------------------------

EQUAL_COLUMNS = ("method", "passes", "prompts per step", "n", "pass@1, mean [95%]", "KL")


def equal_section(found: Sequence[Method], results: Path) -> Iterator[Block]:
    """PPO with its own settings and with GRPO's, beside GRPO."""
    wanted = (("rlhf_ppo", suite.EQUAL), ("grpo", suite.LIKE_PPO), ("rlhf_ppo", suite.OWN))
    equal, grpo, own = (run_of(found, algo, "addition", x) for algo, x in wanted)
    if not (equal and grpo):
        return
    rows = []
    for m in (equal, grpo, own):
        if m:
            sizes = (str(m.settings[name]) for name in ("epochs", "prompts"))
            rows.append((m.label, *sizes, m.n, m.text("pass@1"), m.mean_text("kl")))
    about = Text(
        "PPO's own preset makes two passes over 256 prompts with a sample each. GRPO makes one "
        "pass over 32 prompts with eight samples each. PPO subtracts the KL from the reward, and 1 "
        "for a truncated completion. GRPO adds the KL to the loss."
    )
    what = "PPO with GRPO's prompts, passes and weight of the KL, minus GRPO"
    yield judged(
        "language-equal",
        "GRPO, which has no critic, is at least as accurate as PPO.",
        f"{OURS}; the paper's argument is memory",
        compared("pass@1", what, between(equal, grpo, measure("pass@1"))),
        [about, Table("language-equal", EQUAL_COLUMNS, rows)],
        beside=compared(
            "pass@1",
            "PPO with its own settings minus GRPO",
            between(own, grpo, measure("pass@1")) if own else None,
        ),
        sign=-1,
    )


SECTIONS: dict[str, Section] = {
    "R1-Zero: reinforcement learning without SFT": zero_section,
    "Many samples of a base model": many_section,
    "The size of groups": groups_section,
    "Right and wrong samples": signs_section,
    "A learned reward is over-optimised": rlhf_section,
    "A renewed reward model": renewed_section,
    "The stages of DeepSeek-R1": pipeline_section,
    "Clip-higher and entropy": clip_section,
    "The clip with random rewards": random_section,
    "Accuracy against entropy": law_section,
    "Length": length_section,
    "Self-correction": correction_section,
    "PPO and GRPO with equal settings": equal_section,
}
