"""The report's page on what the language papers claim: an experiment and a verdict for each claim.

The runs are those of the suite `language-models`; an experiment without its runs has no section.
"""

from __future__ import annotations

import itertools
import operator
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
    Link,
    Strong,
    Table,
    Text,
    folded_if_long,
    sections,
)
from manyseeds.benchmarks.chapters.differences import (
    NOTHING_COMPARED,
    Applied,
    Compared,
    compared,
    corrected,
    effects_text,
    judged,
    opening,
    tested,
    with_ps,
)
from manyseeds.benchmarks.chapters.language_measures import (
    DAPO,
    FIRST_STEP,
    NEAR_1,
    SIDE_RULE,
    Curve,
    at_ends,
    averaged,
    between,
    budget_text,
    change,
    curves,
    curves_of,
    first_steps,
    gain_text,
    gained,
    has_metric,
    late_rise,
    measure,
    metric,
    paired,
    run_of,
)
from manyseeds.benchmarks.chapters.language_mechanisms import (
    GRPO,
    law_section,
    random_section,
    ranked,
    renewed_section,
    signs_section,
)
from manyseeds.benchmarks.chapters.language_runs import (
    AS_PAIRS,
    PARTS,
    commands_of,
    named,
    of_base,
    reward_name,
    steps_of,
)
from manyseeds.benchmarks.chapters.origins import command_text
from manyseeds.benchmarks.experiments import suite
from manyseeds.benchmarks.measurements import llm_pipeline, planted_errors
from manyseeds.benchmarks.store.methods import Method, by_seed
from manyseeds.benchmarks.store.names import display
from manyseeds.benchmarks.store.stored import find_file, section_of
from manyseeds.llm_track.evaluation import FINAL_PROMPTS, FINAL_SAMPLES
from manyseeds.llm_track.models import BASES, CHARACTERS, Base
from manyseeds.llm_track.tasks import TAGS, TEST_SHARE
from manyseeds.record import plural, ranges
from manyseeds.stats import Floats

SOLVED = 0.7  # pass@1 that R1-Zero is to reach

R1 = "DeepSeek-AI, 2025, arXiv 2501.12948"
DR_GRPO = "Liu et al., 2025, arXiv 2503.20783"
GAO = "Gao et al., 2022, arXiv 2210.10760"
YUE = "Yue et al., 2025, arXiv 2504.13837"
TWO = "Wu et al., 2025, arXiv 2510.00977"

Section = Callable[[Sequence[Method], Path], Iterable[Block]]


def page(found: Sequence[Method], results: Path) -> Iterator[Block]:
    """The whole page; nothing without any of its runs."""
    blocks = [*sections({title: write(found, results) for title, write in SECTIONS.items()})]
    if blocks:
        yield methods_text([m for m in found if m.of_experiment])
        yield Text(
            "A claim holds where all differences that it is about lie on the side of 0 that it "
            "says. It holds in part where some do. It does not hold where none does and one lies "
            "on the other side, and is not shown otherwise; without a comparison that could decide "
            "it, or where its treatment was not applied, it is not tested. "
            f"{SIDE_RULE}"
        )
    yield from corrected(blocks)
    yield from still_rising(found, results)


def parameters_of(base: Base) -> int:
    """Of a model of `llm_track.models.tiny_config`, whose embeddings are tied."""
    tokens, w = 3 + len(CHARACTERS) + len(TAGS), base.width
    return tokens * w + base.layers * (4 * w**2 + 3 * 4 * w**2 + 2 * w) + w


def methods_text(runs: Sequence[Method]) -> Text:
    """Models, tasks, scores and seeds of the page's trainings."""
    tiny, small = (f"{parameters_of(BASES[x]):,}" for x in ("tiny-base", SMALL_BASE))
    counts = sorted({int(m.n) for m in runs})
    seeds = " to ".join(str(x) for x in dict.fromkeys((counts[0], counts[-1]))) if counts else "no"
    own = all(m.settings.get("initial_per_seed") for m in runs)
    begun = "a model of its own, so that intervals contain that of initial models"
    return Text(
        "The claims are of papers on large models; what is tested here are tiny ones. A model is a "
        f"Llama of {tiny} parameters that was made here, the small one of DeepSeek-R1's stages of "
        f"{small}; a token is a character. It adds numbers of two digits, in ",
        Code("rambling"),
        " with thinking of free length and in ",
        Code("checking"),
        " with corrections. One prompt in "
        f"{TEST_SHARE} is held out. pass@k is the chance that at least one of k samples at "
        f"temperature 1 is right. Before and after a training it is that of {FINAL_PROMPTS} "
        f"held-out prompts with {FINAL_SAMPLES} samples each, where a table says nothing else. "
        "Evaluations during a training have fewer prompts and samples; a measure averaged over a "
        "training is the mean of these, the first of them before any learning. A "
        f"run has {seeds} seeds, where n says nothing else"
        + (f", and each begins with {begun}. " if own else ". ")
        + "The commands of all runs are under ",
        Link("provenance", page="language-models.md", anchor="provenance"),
        ".",
    )


RISING = ("task", "run", "n", "pass@1, mean [95%]", "gain in the last fifth")


def still_rising(found: Sequence[Method], results: Path) -> Iterator[Block]:
    """The trainings of the page that had not reached a plateau."""
    # The run with many samples is that of R1-Zero, evaluated in another way.
    trained = [
        m
        for m in found
        if m.of_experiment
        and m.headline == "pass@1"
        and not m.is_run_of("grpo", "addition", suite.MANY_SAMPLES)
    ]
    rises = [
        (m.task, named(m), m.n, m.text("pass@1"), late_rise(*m.curve("pass@1"))) for m in trained
    ]
    path = find_file(results, llm_pipeline.FILE)
    rises += section_of(path, llm_pipeline.STORED, stages_that_rise)
    rows = [(*cells, rise.text(3, "+")) for *cells, rise in rises if rise.low > 0]
    if rows:
        yield Heading("Trainings that had not reached a plateau")
        yield Text(
            f"In {len(rows)} of {len(rises)} trainings pass@1 still rose in the last fifth, by "
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
    f"seeds with pass@1 above {SOLVED} after",
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


def from_base(algo: str, base: str) -> str:
    """`GRPO from 800 steps, 15% demonstrations`: of a base model's pretraining."""
    return f"{display(algo)} {of_base(base)}"


def formats_of(runs: Sequence[Method]) -> str:
    """The shares of formatted samples of runs, before and after RL."""
    before, after = (
        [float(m.values("format", when).mean()) for m in runs] for when in ("initial", "final")
    )
    first, last = (f"{min(x, default=0):.1%} to {max(x, default=0):.1%}" for x in (before, after))
    return f"in these, {first} of the samples have the format before RL, and {last} afterwards"


def zero_section(found: Sequence[Method], results: Path) -> Iterator[Block]:
    """RL from a base model, without SFT, by how often it has seen the format."""
    pairs = [(x, run_of(found, algo, "addition", x)) for algo, x in suite.R1_ZERO]
    shown = {from_base(m.algo, x["model"]): (x["model"], m) for x, m in pairs if m}
    if len(shown) < len(pairs):  # a base without a signal alone would decide against the paper
        return
    rows = []
    gains, apart, ahead = Decisive(), Decisive(), Decisive()
    runs = [m for _, m in shown.values()]
    for run, (base, m) in shown.items():
        moved = share_of_steps(m)
        reached, made = m.values("pass@1"), BASES[base]
        solved = f"{int((reached > SOLVED).sum())} of {m.n}"
        shares = [right_of_formatted(m, when) for when in ("initial", "final")]
        said = ("" if np.isnan(x).all() else f"{np.nanmean(x):.3f}" for x in shares)
        begun = base, str(steps_of(base)), f"{made.demonstrations:.0%}"
        more = *m.both("pass@1"), *said, *m.means("pass@16"), *m.means("cons@16")
        rows.append((*begun, m.label, m.n, f"{moved:.0%}", *m.means("format"), *more, solved))
        gained = compared("pass@1 after minus before", run, change(m, "pass@1"))
        gains.add(gained, decides=moved > 0)
        both = [by_seed(m, x) for x in reversed(shares)]
        apart.add(compared(FORMATTED, run, paired(*both)), decides=moved > 0)
        over = stats.mean_difference(reached - SOLVED)
        ahead.add(compared(f"pass@1 after minus {SOLVED}", run, over), decides=moved > 0)
    trained = [m for m in runs if share_of_steps(m) > 0]
    moving = [share_of_steps(m) for m in trained]
    least = min(moving, default=1)
    share = "all of their steps" if least == 1 else f"at least {least:.1%} of the steps of each"
    some = f", in {share}" if moving else ""
    applied = Applied(
        f"{len(moving)} of {plural(len(runs), 'run')} have a gradient{some}", bool(moving)
    )
    text = Text(
        "A step has a gradient where its norm is above 0. GRPO's first one needs a group whose "
        "rewards differ. A run without a single such step has not been trained, and is not "
        "decisive."
    )
    yield judged(
        "language-zero",
        "Reinforcement learning from rules alone, without SFT, improves a base model.",
        f"{R1}, sec. 2.2",
        gains.decisive,
        [text, Table("language-zero", ZERO_COLUMNS, rows), *commands_of(runs)],
        applied=applied,
        beside=gains.others,
        figure=curves_of(
            "language-zero",
            "pass@1 and format of R1-Zero",
            {"pass@1": "pass@1", "format": "format"},
            {run: m for run, (_, m) in shown.items()},
        ),
    )
    text = Text(
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
        [text],
        applied=Applied(f"{applied.said}; {formats_of(trained)}", applied.yes),
        beside=apart.others,
    )
    within = " or ".join(dict.fromkeys(f"{m.settings['total_samples']:,}" for m in runs))
    text = Text(
        "In the paper pass@1 on AIME 2024 rises to 0.71. That these trainings end after "
        f"{within} samples is our choice. A longer one could reach it, so the claim can be shown, "
        "or not be shown, but it cannot be refuted here. In earlier editions the best accuracy of "
        "the training samples in the first half decided: that was changed when the runs were known."
    )
    yield judged(
        "language-zero-solved",
        "Reinforcement learning from rules alone takes a base model to a high accuracy, here "
        f"to a pass@1 above {SOLVED} within {within} samples.",
        f"{OURS}, after {R1}, sec. 2.2",
        ahead.decisive,
        [text],
        applied=applied,
        unreached=f"not reached within {within} samples",
        note=budget_text([m.curve("pass@1") for m in runs]),
        beside=ahead.others,
    )


# ---- Many samples --------------------------------------------------------------------------


FORMAT = 0.9  # of the samples: then the format is taken to be learned
SINCE = "end minus mean of the evaluations before it with the format"
MANY_COLUMNS = ("samples", "format", "pass@1", "pass@4", "pass@256", "pass@256 of exactly 1")


def many_section(found: Sequence[Method], results: Path) -> Iterator[Block]:
    """pass@256 of a base model at the end of RL, against all evaluations since it has the format;
    beside it what the format adds, and what 16 samples solve of models that have it before RL."""
    m = run_of(found, "grpo", "addition", suite.MANY_SAMPLES)
    if m is None:
        return
    samples, formats = m.curve("format")
    formats = formats.mean(0)
    learned = np.flatnonzero(formats >= FORMAT)
    last = len(formats) - 1
    k = int(learned[0]) if len(learned) else last
    base, names = f"{display(m.algo)}, base model", ("pass@256", "pass@4", "pass@1")
    since = {x: compared(f"{x}, {SINCE}", base, since_mean(m, x, k)) for x in names}
    others = [
        each
        for what, start in (("first evaluation with the format", k), ("before RL", 0))
        for x in names
        for each in compared(
            f"{x}, end minus {what}", base, at_ends(m, x, start) if start < last else None
        )
    ]
    plain = run_of(found, "rloo", "addition", suite.SIGNS[0])
    formatted = [
        x
        for algo, settings in (
            *(("grpo", x) for x in (*suite.GROUPS, *suite.PAIRS)),
            *(("dapo", x) for x in suite.CLIP_HIGHER),
            *(("rlhf_ppo", suite.EQUAL), ("grpo", suite.LIKE_PPO)),
        )
        if (x := run_of(found, algo, "addition", settings))
    ]
    if plain:
        formatted.append(plain)
        for name in names:
            direct = compared(f"{name} after minus before", named(plain), at_ends(plain, name))
            (since[name] if name == "pass@256" else others).extend(direct)
    with_format = [
        each
        for x in formatted
        for each in compared("pass@16 after minus before", named(x), change(x, "pass@16"))
    ]
    curve = {x: m.curve(x)[1] for x in names}
    rows = [
        (
            *(f"{at:,.0f}", f"{formats[i]:.0%}"),
            *(f"{curve[x][:, i].mean():.3f}" for x in reversed(names)),
            f"{int((curve['pass@256'][:, i] >= 1).sum())} of {m.n}",
        )
        for i, at in enumerate(samples)
    ]
    most = curve["pass@256"][:, k]
    ceiling = (
        f"pass@256 is {most.mean():.3f} when the format is there, and exactly 1 in "
        f"{np.mean(most >= 1):.0%} of the seeds"
    )
    text = (
        f"pass@256 is that of {len(formats)} evaluations "
        f"on {suite.MANY_SAMPLES['eval_prompts']} held-out prompts. "
        f"{formats[0]:.0%} of the base model's samples have the format, which the paper's models "
        f"know, and RL adds it, too. So what decides is the end minus the mean of all evaluations "
        f"before it, since the first one at which at least {FORMAT:.0%} have the format, "
    )
    text += (
        f"here {formats[k]:.0%} at {samples[k]:,.0f} samples. {ceiling}"
        + (": it can fall, but hardly rise." if most.mean() > NEAR_1 else ".")
        if len(learned)
        else "and there is none."
    )
    text += (
        " This rule was made when runs had been published under other ones: first the end minus "
        "before RL decided, then the end minus the first evaluation with the format. Neither is "
        "decisive now."
    )
    if plain:
        text += (
            f" A model that has the format before RL can be compared with itself: {named(plain)} "
            "decides, too, which was added when its runs were known."
        )
    if with_format:
        fall, rise = (sum(x.sign == sign for x in with_format) for sign in (-1, 1))
        text += (
            f" Of {plural(len(with_format), 'training')} of models that have the format before RL, "
            f"pass@16 falls in {fall} and rises in {rise}."
        )
    gain = at_ends(m, "pass@1")
    yield judged(
        "language-many",
        "A base model solves more than the same model after RL where each prompt has many samples.",
        YUE,
        since["pass@256"],
        [Text(text), Table("language-many", MANY_COLUMNS, rows), *commands_of([m, *formatted])],
        applied=Applied(
            f"RL changes pass@1 by {gain_text(gain)} and the format from {formats[0]:.0%} to "
            f"{formats[last]:.0%}",
            bool(gain and gain.low > 0),
        ),
        note=f"of the base model {ceiling}",
        sign=-1,
        beside=[*since["pass@4"], *since["pass@1"], *others, *with_format],
        figure=curves_of(
            "language-many",
            "pass@k during RL of a base model",
            {"pass@1": "pass@1", "pass@256": "pass@256", "format": "format"},
            {m.label: m},
        ),
    )


def since_mean(m: Method, name: str, since: int) -> stats.Estimate | None:
    """The last evaluation minus the mean of those from a certain one on before it, by seed."""
    values = m.curve(name)[1]
    if since >= values.shape[1] - 1:
        return None
    return paired(*(by_seed(m, x) for x in (values[:, -1], values[:, since:-1].mean(1))))


# ---- Group sizes ---------------------------------------------------------------------------

GROUP_COLUMNS = (
    *("prompts", "group size", "samples", "steps", "n", "groups with a signal"),
    *("pass@1 before", "after, mean [95%]", "share of the gain of the largest groups"),
)
KEPT = 0.95  # of the gain of large groups that small ones are to have; the paper finds 0.976


def groups_section(found: Sequence[Method], results: Path) -> Iterator[Block]:
    """Small groups beside large ones: with as many samples, and with as many steps."""
    wanted = (*suite.GROUPS, *suite.PAIRS)
    shown = [m for x in wanted if (m := run_of(found, "grpo", "addition", x))]
    if len(shown) < len(wanted):
        return
    large, *others = shown[: len(suite.GROUPS)]
    rows, mixed = [], []
    gain = gained(large).mean()
    for m in shown:
        prompts, size, total = (m.settings[x] for x in ("prompts", "group_size", "total_samples"))
        mixed.append(1 - metric(m, "all_solved").mean() - metric(m, "all_failed").mean())
        sizes = str(prompts), str(size), f"{total:,}", str(-(-total // (prompts * size)))
        share = f"{gained(m).mean() / gain:.0%}" if gain > 0 else ""
        rows.append((*sizes, m.n, f"{mixed[-1]:.0%}", *m.both("pass@1"), share))
    kept: list[Compared] = []
    kept_of_score: list[Compared] = []
    equal: list[Compared] = []
    for m, steps in zip(shown[len(suite.GROUPS) :], AS_PAIRS, strict=True):
        what = f"groups of 2, {steps}"
        for of, values, to in (
            ("gain in pass@1", gained, kept),
            ("pass@1", measure("pass@1"), kept_of_score),
        ):
            sides = by_seed(m, values(m)), by_seed(large, KEPT * values(large))
            to += compared(f"{of} minus {KEPT:g} of that of groups of 16", what, paired(*sides))
    for m in others:
        what = f"groups of {m.settings['group_size']} minus {large.settings['group_size']}"
        equal += compared("pass@1, equal samples", what, between(m, large, measure("pass@1")))
    text = Text(
        "A step is one gradient step on all its samples, where GRPO's preset makes four, so that "
        "no minibatch parts the right samples of a prompt from its wrong ones. Groups of 2 with an "
        "eighth of the samples have as many steps as groups of 16, each of an eighth as many "
        "samples, or steps that are as large, and an eighth as many. As in the paper, the gain is "
        "compared. In earlier editions pass@1 itself was, which an untrained model has a part of; "
        "that is not decisive now."
    )
    details: list[Block] = [text, Table("language-groups", GROUP_COLUMNS, rows)]
    yield judged(
        "language-groups",
        f"Groups of 2 reach at least {KEPT:.0%} of the gain in pass@1 of groups of 16, with an "
        "eighth of the samples.",
        TWO,
        kept,
        [*details, *commands_of(shown)],
        applied=Applied(
            f"of the groups {mixed[0]:.0%} have a signal with 16 samples each, and "
            f"{mixed[-2]:.0%} and {mixed[-1]:.0%} of those of 2; groups of 16 gain {gain:+.3f}",
            bool(gain > 0 and min(mixed) > 0),
        ),
        note=budget_text([m.curve("pass@1") for m in (large, *shown[len(suite.GROUPS) :])]),
        beside=[*kept_of_score, *equal],
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


def rlhf_section(found: Sequence[Method], results: Path) -> Iterator[Block]:
    """The learned reward and the true accuracy over the KL."""
    pairs = [(reward_name(x), run_of(found, algo, "addition", x)) for algo, x in suite.RLHF]
    shown = [(name, m) for name, m in pairs if m]
    if not shown:
        return
    rows = []
    rewards, scores = {}, {}
    beside: list[Compared] = []
    risen: list[bool] = []
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
            risen.append(bool(more and more.low > 0))
    coin = run_of(found, "rlhf_ppo", "addition", suite.PLACEBO)
    if coin:
        rows.append((coin.label, COIN, coin.n, "", "", *scored(coin)))
        for name in ("pass@1", "greedy"):
            what = f"{display(coin.algo)} ({COIN})"
            beside += compared(f"{name} after minus before", what, change(coin, name))
    applied = Applied(
        f"the learned reward rises in {sum(risen)} of {plural(len(risen), 'run')} with it alone; "
        + pair_accuracy(found),
        any(risen),
    )
    text = Text(
        "Every seed has its own reward model, trained by ",
        Code("reward_model.py"),
        " with its defaults. The reward shown is the mean reward of the training samples since the "
        "previous evaluation. It includes the rewards for format and by rules where there are any, "
        "and PPO subtracts 1 for a truncated completion. The curves are over the square root of "
        "the KL, as those of Gao et al., whose KL is of whole answers. A gain in pass@1 without "
        "one in greedy answers can also be that of a lower entropy. With the rewards of a coin "
        "(examples/random_reward.py) a gain has another cause than a learned reward, such as noise "
        "or the penalty for truncation. So the gain at the same weight of the KL is counted "
        "minus the gain under random rewards. The coin's critic begins as the policy, that of the "
        "others as the reward model. Where the gain or the loss alone is shown, the claim holds in "
        "part: before that was changed, when the runs were known, it was not shown.",
    )
    label = "Learned reward and pass@1 over the square root of the KL"
    panels = {"learned reward": rewards, "pass@1": scores}
    xlabel = "√KL to the initial model, KL in nats per token"
    yield from turn_claim(
        [m for name, m in shown if "rules" not in name],
        coin,
        curves("language-overoptimisation", label, panels, xlabel=xlabel, columns=2),
        [
            text,
            Table("language-overoptimisation", RLHF_COLUMNS, rows),
            *commands_of([*(m for _, m in shown), *([coin] if coin else [])]),
        ],
        beside,
        applied,
    )


def pair_accuracy(found: Sequence[Method]) -> str:
    """How well the reward models of these runs rank, by the run that has them and counts pairs."""
    m = run_of(found, "process_grpo", "addition", suite.RENEWED["neither"])
    if m is None or not has_metric(m, "ranked"):
        return "how well its models rank pairs was not counted"
    return (
        f"its models rank {ranked(m, 0.0, 0.1):.0%} of the pairs of a right and a wrong completion "
        "in order that a policy samples in the first tenth of a training (that of the section on "
        "renewal without any)"
    )


def scored(m: Method) -> tuple[str, ...]:
    """The cells of a row on accuracy and KL."""
    over_training = f"{averaged(m).mean():.3f}"
    return (*m.both("pass@1"), over_training, *m.means("greedy"), m.mean_text("kl"))


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
    applied: Applied,
) -> Iterator[Block]:
    """Between which KLs the gain in accuracy becomes a loss, among runs that differ in their KL.

    coin: the run from random rewards, whose gain is subtracted from that of the run with its KL.
    """
    gains: list[tuple[float, Compared]] = []
    greedy: dict[float, str] = {}
    for m in runs:
        kl = m.values("kl").mean()
        if np.isfinite(kl):
            what = f"at a KL of {kl:.3f} nats per token"
            gain = compared("pass@1 after minus before", what, change(m, "pass@1"))
            sampled = compared("greedy after minus before", what, change(m, "greedy"))
            greedy[kl] = "".join(x.text for x in sampled)
            if coin and m.settings["kl_coef"] == coin.settings["kl_coef"]:
                beside = [*beside, *gain, *sampled]
                less = f"{what}, minus the gain under random rewards"
                gain = compared("pass@1 after minus before", less, between(m, coin, gained))
                of_greedy = between(m, coin, partial(gained, name="greedy"))
                sampled = compared("greedy after minus before", less, of_greedy)
                under = "".join(x.text for x in sampled)
                greedy[kl] += f", minus that under random rewards by {under}" if under else ""
            beside = [*beside, *sampled]
            gains += [(kl, x) for x in gain]
    decisive = gains if applied.yes else []

    def card(p: Sequence[float], level: float) -> Claim:
        found = with_ps([x for _, x in decisive], p)
        at = [kl for kl, _ in decisive]
        higher = [kl for kl, x in zip(at, found, strict=True) if x.sign > 0]
        lower = [kl for kl, x in zip(at, found, strict=True) if x.sign < 0]
        word: ClaimWord = "in part" if higher or lower else "not shown" if found else "not tested"
        number = NOTHING_COMPARED if applied.yes else "the treatment was not applied"
        if higher and lower:
            word = "holds" if max(higher) < min(lower) else "does not hold"
        if word == "holds":
            ends = f"{max(higher):.3f} and {min(lower):.3f} nats per token"
            number = f"pass@1 at temperature 1 turns from a gain to a loss between a KL of {ends}"
            if said := greedy[max(higher)]:
                number += f"; at the lower of them greedy accuracy changes by {said}"
        elif found:
            number = f"pass@1 at temperature 1 rises in {len(higher)} and falls in {len(lower)} "
            number += f"of {plural(len(found), 'run')}"
            if word == "in part":
                number += f": {', '.join(x.text for x in found if x.sign)}"
        if found:
            number += f"; n = {min(x.difference.n for x in found)}"
        if word in ("in part", "not shown"):
            number += effects_text(found, level)
        return Claim(
            "pass@1 at temperature 1 rises close to the initial model, and falls far from it.",
            word,
            number,
            figure,
            [*opening(applied, found, beside, level), *details],
            GAO,
        )

    yield tested([x.p for _, x in decisive], card)


# ---- The R1 pipeline -----------------------------------------------------------------------

SMALL_BASE = "micro-base-3200"  # what the small base of the pipeline is
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

    def figure(name: str, label: str, *stages: str) -> Figure | None:
        """pass@1 of stages over their own samples."""
        known = {x: plots.mean_line(*curve) for x in stages if (curve := of_stage(x))}
        return curves(name, label, {"pass@1": known}) if known else None

    of_stage = partial(stage_curve, stored["rows"])
    settings = stored["settings"]
    applied = demonstrations(stored)
    text = Text(
        f"The stages of DeepSeek-R1, on {settings['task']}, are compared with RL alone, and "
        "distillation with RL on the small base model, each with as many samples. Rejection SFT "
        "and distillation learn, in several passes, from one right sample of each of "
        f"{settings['prompts']:,} prompts that the model after RL solves in {llm_pipeline.SAMPLES} "
        "attempts. Samples are those drawn from a model until the end of a stage: these attempts "
        "and the training of that model count. RL again and RL alone both have a KL to the model "
        "that they begin with: RL alone goes on from RL, and both see its prompts again. RL for "
        f"longer has {llm_pipeline.LONGER} times as many samples. The figures count the samples "
        "of a stage, of distillation its demonstrations. Each seed has base models of its own."
    )
    yield judged(
        "language-pipeline-rl",
        "Rejection SFT and a second stage of RL improve a model more than RL alone.",
        f"{OURS}; stages: {R1}v1, sec. 2.3",
        differences("RL again", "RL alone"),
        applied=applied,
        note=budget_text([x for stage in ("RL again", "RL alone") if (x := of_stage(stage))]),
        figure=figure(
            "language-pipeline-rl", "pass@1 of stages of RL", "RL", "RL again", "RL alone"
        ),
        details=[
            text,
            Table("language-pipeline", PIPELINE_COLUMNS, rows),
            command_text(stored, seeds_of(stored["rows"]), stored["machine"]["cpu"]),
        ],
    )
    yield judged(
        "language-pipeline-distillation",
        "Distillation improves a small model more than RL on it.",
        f"{R1}v1, sec. 4.1",
        differences("distillation", SMALL),
        applied=applied,
        note=budget_text([x for stage in ("distillation", SMALL) if (x := of_stage(stage))]),
        beside=differences("distillation", LONGER),
        figure=figure(
            "language-pipeline-distillation",
            "pass@1 of distillation and of RL on the small base model",
            "distillation",
            SMALL,
            LONGER,
        ),
    )


def seeds_of(rows: Iterable[Mapping[str, Any]]) -> str:
    """`seeds 0-29`: those of a measured file, which several commands may have added."""
    return f"seeds {ranges({row['seed'] for row in rows})}"


def demonstrations(stored: Mapping[str, Any]) -> Applied:
    """How many prompts gave a demonstration for rejection SFT and distillation."""
    prompts, rows = stored["settings"]["prompts"], stored["rows"]
    solved = [row["solved"] for row in rows if row["stage"] == "rejection SFT" and "solved" in row]
    if solved:
        ends = " to ".join(dict.fromkeys(f"{x:,}" for x in (min(solved), max(solved))))
        return Applied(f"{ends} of {prompts:,} prompts gave a demonstration", min(solved) > 0)
    teacher = [row for row in rows if row["stage"] == "RL"]
    said = "these runs did not count the prompts that gave a demonstration"
    if teacher:
        least, most = (np.mean([row[x] for row in teacher]) for x in ("pass@1", "pass@16"))
        said += (
            f"; of held-out prompts the model after RL solves {least:.0%} in one attempt and "
            f"{most:.0%} in 16"
        )
    return Applied(said, not teacher or bool(most > 0))


def stage_curve(rows: Sequence[Mapping[str, Any]], stage: str) -> Curve | None:
    """pass@1 of a stage over its samples, where all its seeds were evaluated alike."""
    found = [row["curve"] for row in rows if row["stage"] == stage]
    points = [[x["samples"] for x in curve] for curve in found]
    if not found or not points[0] or any(x != points[0] for x in points):
        return None
    return np.array(points[0]), np.array([[x["pass@1"] for x in curve] for curve in found])


def stages_that_rise(
    stored: Mapping[str, Any],
) -> list[tuple[str, str, str, str, stats.Estimate]]:
    """Task, stage, n, pass@1 and the gain in the last fifth, of each stage that is a training."""
    rows, task = stored["rows"], stored["settings"]["task"]
    found = []
    for stage in dict.fromkeys(row["stage"] for row in rows):
        if curve := stage_curve(rows, stage):
            ends = np.array([row["pass@1"] for row in rows if row["stage"] == stage])
            score = stats.estimate(ends, "mean").text(3)
            found.append((task, f"stage: {stage}", str(len(ends)), score, late_rise(*curve)))
    return found


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
    (low, plain), *others = shown
    # DAPO's preset, and the same with the symmetric clip.
    presets = ({**suite.OWN, **suite.DAPO_SWITCHES[0]}, suite.OWN)
    preset = [m for x in presets if (m := run_of(found, "dapo", "addition", x))]
    acts_in_preset = len(preset) > 1 and clipped_above(preset[0]) > clipped_above(preset[1])
    rows = []
    of_preset = ((m.settings["clip_range_high"], m) for m in preset)
    for high, m in (*shown, *of_preset):
        acts = (f"{metric(m, name).mean():.2%}" for name in ("clip_high", "clip_low"))
        scores = *m.both("entropy"), m.text("pass@1"), *m.both("pass@16")
        name = f"{high:g}" + ", else DAPO's preset" * (m in preset)
        rows.append((name, m.n, *acts, *scores))
    found_of: dict[str, list[Compared]] = {"entropy": [], "pass@16": []}
    for name, differences in found_of.items():
        for high, m in others:
            what = f"an upper clip of {high:g} minus {low:g}"
            differences += compared(name, what, between(m, plain, measure(name)))
        if acts_in_preset:
            small, large = (m.settings["clip_range_high"] for m in preset)
            what = f"an upper clip of {large:g} minus {small:g}, DAPO's preset"
            differences += compared(name, what, between(preset[1], preset[0], measure(name)))
    clipped = [clipped_above(m) for _, m in shown]
    larger = ", ".join(f"{x:.2%}" for x in clipped[1:])
    right = ", ".join(m.mean_text("pass@1") for _, m in shown)
    applied = Applied(
        f"an upper clip of {low:g} removes the gradient of {clipped[0]:.2%} of the tokens, larger "
        f"ones of {larger}; pass@1 is {plain.means('pass@1')[0]} before and {right} afterwards",
        clipped[0] > max(clipped[1:]),
    )
    before, after = plain.means("pass@16")[0], [m.mean_text("pass@16") for _, m in shown]
    many = f"pass@16 is {before} before and {', '.join(after)} afterwards"
    if all(m.values("pass@16").mean() < m.values("pass@16", "initial").mean() for _, m in shown):
        many += ": it falls with every clip"
    text = Text(
        "Clipped shares are of the trained tokens whose gradient the clip removes. Dynamic "
        f"sampling is off, and there are so many steps per sample that the clip acts. {many}."
        + (
            f" DAPO's preset has dynamic sampling, {steps_text(preset[0])}, the others "
            f"{steps_text(plain)}. It decides, too, which was added when its runs were known."
            if acts_in_preset
            else ""
        )
    )
    yield judged(
        "language-clip-higher",
        "A larger upper clip range keeps the entropy up.",
        f"{DAPO}, sec. 3.1",
        found_of["entropy"],
        [
            text,
            Table("language-clip-higher", CLIP_COLUMNS, rows),
            *commands_of([*(m for _, m in shown), *preset]),
        ],
        applied=applied,
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
        applied=applied,
        note=many,
    )
    if all(has_metric(m, "old_prob") for _, m in shown):
        yield clipped_probabilities(shown)


def steps_text(m: Method) -> str:
    """`25,600 samples and 32 gradient steps a batch`"""
    steps = m.settings["epochs"] * m.settings["minibatches"]
    return f"{m.budget} and {plural(steps, 'gradient step')} a batch"


def clipped_above(m: Method) -> float:
    """The share of trained tokens whose gradient the upper clip removes."""
    return float(metric(m, "clip_high").mean())


BOUND_OF_PAPER = 0.2  # at most so likely are the tokens that DAPO's authors see clipped


def clipped_probabilities(shown: Sequence[tuple[float, Method]]) -> Block:
    """The mechanism that DAPO gives: which tokens the upper clip stops."""

    def clipped(m: Method) -> Floats:
        return metric(m, "old_prob_high") / metric(m, "clip_high")

    def movable(m: Method) -> Floats:
        return metric(m, "old_prob") / metric(m, "movable")

    rows, found, others, means = [], [], [], []
    none: list[str] = []
    for high, m in shown:
        if (metric(m, "clip_high") == 0).any():
            none.append(f"{high:g}")
            continue
        sides = clipped(m), movable(m)
        means.append(float(sides[0].mean()))
        rows.append((f"{high:g}", m.n, *(f"{x.mean():.3f}" for x in sides)))
        name, upper = "mean probability of a token", f"an upper clip of {high:g}"
        what = f"clipped minus all that could be, {upper}"
        found += compared(name, what, paired(*(by_seed(m, x) for x in sides)))
        bound = np.full(len(m.parts), BOUND_OF_PAPER)
        what = f"clipped minus {BOUND_OF_PAPER:g}, {upper}"
        others += compared(name, what, paired(*(by_seed(m, x) for x in (sides[0], bound))))
    text = Text(
        "The probability is the one with which a token was sampled, averaged over the tokens of a "
        "training whose gradient the upper clip removes, and over all those that it could stop: "
        "they have a positive advantage, and could still exceed the upper ratio. The paper shows "
        f"that clipped tokens have at most about {BOUND_OF_PAPER:g}, which is compared, too."
        + (f" Not tested with {' and '.join(none)}, which clips nothing in some seed." * bool(none))
    )
    ends = " to ".join(f"{x:.2f}" for x in (min(means, default=0), max(means, default=0)))
    columns = ("upper clip", "n", "probability of clipped tokens", "of all that could be clipped")
    return judged(
        "language-clip-tokens",
        "The upper clip stops tokens less likely than those it could stop.",
        f"{DAPO}, sec. 3.1",
        found,
        [text, Table("language-clip-tokens", columns, rows)],
        applied=Applied(
            f"{len(means)} of {plural(len(shown), 'upper clip')} remove gradients in every seed",
            bool(means),
        ),
        note=f"the clipped have a mean probability of {ends}, in the paper at most about "
        f"{BOUND_OF_PAPER:g}",
        beside=others,
        sign=-1,
    )


# ---- Length --------------------------------------------------------------------------------

LENGTH_COLUMNS = (
    *("method", "changed", "n", "pass@1, mean over the training", "at the end, mean [95%]"),
    *("tokens of right ones", "of wrong ones", "wrong minus right, mean [95%]", "cut off"),
    "tokens of all samples",
)


def length_section(found: Sequence[Method], results: Path) -> Iterator[Block]:
    """Lengths where the task leaves them free, under GRPO, Dr. GRPO and parts of DAPO."""
    shown = {
        changed: m
        for changed, (algo, settings) in suite.LENGTHS.items()
        if (m := run_of(found, algo, "rambling", settings))
    }
    parts = {
        name: m
        for name, settings in zip(PARTS, suite.LONG, strict=True)
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
        runs = {f"{display(m.algo)} {x}".strip(): m for x, m in shown.items()}
        yield bias_claim(runs, [*details, *commands_of([*shown.values(), *parts.values()])])
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
        "GRPO makes wrong completions longer, relative to right ones, than Dr. GRPO does.",
        DR_GRPO,
        decisive,
        details,
        applied=weights_of(*map(runs.get, like)),
        beside=others,
        figure=curves(
            "language-free-length",
            "Lengths of right and of wrong completions of rambling, and their difference",
            panels,
        ),
    )


def weights_of(m: Method | None, other: Method | None) -> Applied:
    """What a division by the length changes: how much a token of a wrong completion weighs."""
    if m is None or other is None:
        return Applied("a run is missing", False)
    changed = first_steps(m, other)
    right, wrong = averaged(m, "length_right"), averaged(m, "length_wrong")
    share = (right / wrong).mean()
    said = (
        "with GRPO's division by the length a token of a wrong completion has "
        f"{share:.2f} of the weight of one of a right one, by their mean lengths, and with "
        "Dr. GRPO the same weight"
        if np.isfinite(share)
        else "the lengths of right and of wrong completions are not known of all seeds"
    )
    # Dr. GRPO leaves out the division by deviations, too: gradients alone would not show this one.
    weighs = not np.isfinite(share) or bool(abs(share - 1) > SAME)
    return Applied(f"{said}; {FIRST_STEP} {changed.said}", weighs and changed.yes)


def part_applied(name: str, m: Method, plain: Method) -> Applied:
    """Whether a part of DAPO did anything in its run."""
    if name in PARTS[1:3]:
        changed = first_steps(m, plain)
        if name == PARTS[1]:
            longer = (averaged(plain, "length_wrong") / averaged(plain, "length_right")).mean()
            said = f"wrong completions have {longer:.2f} times the tokens of right ones"
            acts = not bool(abs(longer - 1) <= SAME)
        else:
            cut = averaged(m, "truncated").mean()
            said, acts = f"{cut:.1%} of the completions are cut off", not bool(cut <= 0)
        return Applied(f"{name}: {said}, and {FIRST_STEP} {changed.said}", acts and changed.yes)
    # DAPO's reward is 1 or -1, a weight for the format, and the punishment.
    ruled = 2 * metric(m, "accuracy") - 1 + m.settings["format_weight"] * metric(m, "format")
    cost = (ruled - metric(m, "reward")).mean()
    return Applied(f"{name}: it costs {cost:.3f} of reward per sample", not bool(cost <= SAME))


SAME = 1e-6  # differences of sums in float32


def part_claims(parts: Mapping[str, Method], details: Sequence[Block]) -> Iterator[Block]:
    """What each part of DAPO changes against the run without any of them."""
    plain = parts.get(PARTS[0])
    over_training = "pass@1 averaged over the training"
    scores, shorter = Decisive(), Decisive()
    applied: dict[str, Applied] = {}
    for name, m in parts.items():
        if plain and m is not plain:
            applied[name] = part_applied(name, m, plain)
            decides, alone = applied[name].yes, f"{name} alone minus {PARTS[0]}"
            scores.add(compared(over_training, alone, between(m, plain, averaged)), decides)
            at_end = between(m, plain, measure("pass@1"))
            scores.add(compared("pass@1 at the end", alone, at_end), decides=False)
            length = between(m, plain, partial(metric, name="length"))
            of_length = compared("length averaged over the training", alone, length, 2, " tokens")
            shorter.add(of_length, decides and name == PARTS[3])
    said = "; ".join(x.said for x in applied.values())
    if scores.decisive or scores.others:
        yield judged(
            "language-parts",
            "DAPO's token-level loss, overlong filtering and soft punishment raise the accuracy.",
            f"{DAPO}, table 1",
            scores.decisive,
            [*details, *commands_of(parts.values())],
            applied=Applied(said, any(x.yes for x in applied.values())),
            beside=scores.others,
        )
    if shorter.decisive or shorter.others:
        punished = applied.get(PARTS[3], Applied(f"no run has the {PARTS[3]}", False))
        yield judged(
            "language-parts-length",
            "DAPO's soft punishment of long completions makes them shorter.",
            f"{DAPO}, sec. 3.4",
            shorter.decisive,
            applied=punished,
            beside=shorter.others,
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
IN_LOG_ODDS = "log odds of wait, wrong column minus right column"


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
    for title, apart in ((TOLD_APART, operator.sub), (IN_LOG_ODDS, log_odds_ratio)):
        values[title] = [
            {k: apart(x[k], y[k]) for k in x} for x, y in zip(wrong, right, strict=True)
        ]
    gains = {
        title: compared(title, "planted columns, after RL minus before", paired(after, before))
        for title, (before, after) in values.items()
    }
    rows = [
        (title, str(len(after)), text_of_mean(before).partition(" ")[0], text_of_mean(after))
        for title, (before, after) in values.items()
    ]
    first, last = (np.nanmean([*x.values()]) for x in ends("accuracy"))
    applied = Applied(
        f"RL changes the accuracy of the samples from {first:.3f} in its first tenth to "
        f"{last:.3f} in the last",
        bool(last > first),
    )
    told_apart = [x for title in (TOLD_APART, IN_LOG_ODDS) for x in gains.pop(title)]
    yield judged(
        "language-correction",
        "By reinforcement learning a model comes to reconsider its mistakes more often.",
        f"{R1}, sec. 2.2.4",
        gains.pop(WAITS["wait_if_wrong"]),
        applied=applied,
        details=[
            Text(
                "In ",
                Code("checking"),
                " a quarter of the demonstrations' columns are first written wrong, followed by ",
                Code("wait;"),
                " and the right column. Every model reads the same beginnings of completions of "
                f"{planted_errors.PROMPTS} held-out prompts, up to a column that is planted wrong "
                "or right. How probable ",
                Code("wait;"),
                " is after it, and then the right column, is computed. Of odds the mean over "
                "prompts is taken first. In earlier editions a model's own columns decided, but "
                "the mistakes that a model still makes after RL are not those that it made before; "
                "then the difference in probability between wrong and right columns, which is "
                "another question and has a card of its own.",
            ),
            Table("language-planted", ("planted", "n", "before", "after, mean [95%]"), rows),
            command_text(stored, seeds_of(measured), stored["machine"]["cpu"]),
            *details,
        ],
        beside=[x for found in gains.values() for x in found],
    )
    yield judged(
        "language-correction-apart",
        "By reinforcement learning a model comes to reconsider mistakes rather than what is right.",
        f"{OURS}, after {R1}, sec. 2.2.4",
        told_apart,
        [
            Text(
                "Which scale is right is open: where both probabilities fall, their difference has "
                "less room, and their odds have not. So both decide"
                + (
                    "."
                    if len(told_apart) == 2
                    else ", but one is not known: a seed has no value before or afterwards, or a "
                    "probability of 0 or 1."
                )
            )
        ],
        applied=applied,
    )


def log_odds_ratio(a: float, b: float) -> float:
    """Of two probabilities; NaN at 0 and 1, where it is not known."""
    if not 0 < min(a, b) <= max(a, b) < 1:
        return np.nan
    return float(np.log(a / (1 - a)) - np.log(b / (1 - b)))


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
    runs = [m for m in (equal, grpo, own) if m]
    for m in runs:
        sizes = (str(m.settings[name]) for name in ("epochs", "prompts"))
        rows.append((m.label, *sizes, m.n, m.text("pass@1"), m.mean_text("kl")))
    text = Text(
        "PPO's own preset makes two passes over 256 prompts with a sample each. GRPO makes one "
        "pass over 32 prompts with eight samples each. PPO subtracts the KL from the reward, and 1 "
        "for a truncated completion. GRPO adds the KL to the loss. Methods that are equally "
        "accurate would leave the claim not shown."
    )
    gains = " and ".join(gain_text(change(m, "pass@1")) for m in (equal, grpo))
    moved = [share_of_steps(m) for m in (equal, grpo) if has_metric(m, "grad_norm")]
    steps = " and ".join(f"{x:.0%}" for x in moved) or "an unknown share"
    applied = Applied(
        f"a step of both has {equal.settings['prompts']} prompts with "
        f"{equal.settings['group_size']} samples each; {steps} of their steps have a gradient, and "
        f"pass@1 changes by {gains}",
        all(x > 0 for x in moved),
    )
    what = "PPO with GRPO's prompts, passes and weight of the KL, minus GRPO"
    yield judged(
        "language-equal",
        "GRPO, which has no critic, is at least as accurate as PPO.",
        f"{OURS}; {GRPO} argues by memory",
        compared("pass@1", what, between(equal, grpo, measure("pass@1"))),
        [text, Table("language-equal", EQUAL_COLUMNS, rows), *commands_of(runs)],
        applied=applied,
        note=budget_text([m.curve("pass@1") for m in (equal, grpo)]),
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
