"""A page for each environment: its curves, one table of all algorithms, and where each row is from.

Pages lie in environments/ of the results, so what they link to begins with `../`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache, partial
from itertools import compress
from pathlib import Path
from typing import Any

from manyseeds import plots
from manyseeds.benchmarks.chapters.tables import Sides, TableCell, expanded, table
from manyseeds.benchmarks.experiments.verdicts import Verdict
from manyseeds.benchmarks.store.comparison import Pair, is_stale, targets
from manyseeds.benchmarks.store.names import NAMES, display
from manyseeds.benchmarks.store.policies import median_and_worst, of_other_episodes, policies_name
from manyseeds.benchmarks.store.results import (
    FLOOR,
    Result,
    Rows,
    code,
    escape,
    floor_of,
    fold,
    link,
    origins_text,
    place,
    print_table,
    settings_text,
    verdict_text,
)
from manyseeds.benchmarks.store.stored import file_name, find_file
from manyseeds.errors import printable
from manyseeds.evaluate import FINAL_EPISODES
from manyseeds.plots import Line
from manyseeds.runs.control import reachable_threshold
from manyseeds.stats import Estimate

FOLDER = "environments"
UP = "../"  # from a page to the results
SIDES = ("manyseeds", "SB3")  # of every figure, in the same colours everywhere
RANKS = ("median", "worst")  # of seeds, by their final score
UNEQUAL = 3  # budgets that differ by more are drawn on a logarithmic axis

TO_THRESHOLD = "to threshold (seeds)"
SCORES = (
    "algorithm",
    "n",
    "final score, mean [95%]",
    "against SB3",
    "AUC, mean [95%]",
    "AUC against SB3",
    "failures",
    TO_THRESHOLD,
    "timesteps",
)
TARGETS = ("algorithm", "n", "mean [95%]", "target", "result")
DETAILS = (
    "algorithm",
    "n",
    "final score, IQM [95%]",
    "AUC, IQM [95%]",
    "worst seed",
    "std over seeds",
    "std over episodes",
    "sampled actions, IQM [95%]",
)
# The documentation of CleanRL: means over 3 seeds of 500,000 timesteps.
CLEANRL = {
    ("CartPole-v1", "ppo"): "490.0 +- 6.1",
    ("CartPole-v1", "dqn"): "488.7 +- 16.1",
    ("Acrobot-v1", "ppo"): "-86.4 +- 1.3",
    ("Acrobot-v1", "dqn"): "-91.5 +- 7.2",
    ("MountainCar-v0", "ppo"): "-200.0 +- 0.0",
    ("MountainCar-v0", "dqn"): "-194.9 +- 8.5",
}
POLICIES = ("algorithm", "rank", "seed", "final score", "of 100 other episodes, about 95%")
POLICIES_NOTE = (
    "The weights of the median and the worst seed of a run are published. "
    "`python benchmarks/watch.py RUN` shows them. All seeds are evaluated in the same episodes, so "
    "intervals over seeds do not include the noise between episodes. In about 95% of cases the "
    "mean return of a policy in 100 other episodes lies in the interval of the last column, but "
    "less often where failures are rare, and for the worst of many seeds. "
    "`python benchmarks/watch.py --check RUN` plays other episodes.\n\n"
)
OTHERS = ("algorithm", "run", "n", "IQM [95%]", "mean [95%]", "failures", "settings")


def page_name(env: str) -> str:
    """The page of an environment, as seen from the folder of the results."""
    return f"{FOLDER}/{file_name(env)}.md"


def anchor(algo: str) -> str:
    """What a link to the row of an algorithm names after `#`."""
    return file_name(algo)


def figure_names(env: str) -> tuple[str, str]:
    """The files in plots/ of the figure with all algorithms, and of those against SB3."""
    return f"{file_name(env)}.svg", f"{file_name(env)}-sb3.svg"


def page(pairs: Sequence[Pair], results: Path) -> str:
    """The page of an environment, from its pairs; its figures and tables are written."""
    return scale_text(pairs[0].headline[0]) + draw(pairs, results) + sections(pairs, results)


def sections(pairs: Sequence[Pair], results: Path) -> str:
    """All of the page below its figures: scores, budgets, targets, other runs, provenance."""
    env = pairs[0].env
    text = "## Scores\n\n" + score_note(pairs)
    scores, lines = score_table(pairs)
    text += table(results, f"environment-{file_name(env)}", scores, lines, UP)
    text += failures_list(pairs)
    text += equal_budgets(pairs, results)
    for title, name, note, header, rows in (
        ("Targets", "targets", "", TARGETS, target_rows(pairs)),
        ("Details", "details", "", DETAILS, detail_rows(pairs)),
        ("Policies", "policies", POLICIES_NOTE, POLICIES, policy_rows(pairs, results)),
        ("Other runs", "runs", "", OTHERS, other_rows(pairs, results)),
    ):
        if rows:
            stem = f"environment-{file_name(env)}-{name}"
            text += f"\n## {title}\n\n{note}{table(results, stem, header, rows, UP)}"
    return text + "\n## Provenance\n\n" + provenance(pairs, results)


def show(pairs: Sequence[Pair]) -> None:
    """Print the table of an environment."""
    header, rows = score_table(pairs)
    print_table(pairs[0].env, header, expanded(rows))


def scale_text(result: Result) -> str:
    """Threshold, random and reference score of the environment."""
    spec = result.spec
    bar = spec.reward_threshold
    threshold = "No reward threshold" if bar is None else f"Reward threshold {bar:g}"
    if bar is None and floor_of(spec) is not None:
        threshold += f" (a normalised score below {FLOOR} is a failure)"
    if bar != reachable_threshold(spec):
        threshold += " (above the best policy's score, so it counts no failures)"
    scale = "random or reference score unknown, so no verdicts"
    if spec.reference_score is not None and spec.random_score is not None:
        scale = f"random policy {spec.random_score:g}, reference {spec.reference_score:g}"
    return f"{threshold}; {scale}.\n\n"


# ---- Figures --------------------------------------------------------------------------------


def draw(pairs: Sequence[Pair], results: Path) -> str:
    """All algorithms on one axis, then each beside SB3's; both figures as Markdown."""
    env, folder = pairs[0].env, results / "plots"
    together, apart = (folder / name for name in figure_names(env))
    threshold = reachable_threshold(pairs[0].headline[0].spec)
    curves = {(pair.algo, r is pair.sb3): curve(r) for pair in pairs for r in pair.headline}
    log_x = is_log_x(pairs)
    text = ""
    axes: dict[str, Any] = {
        "xlabel": "timesteps per seed" + " (logarithmic)" * log_x,
        "ylabel": "greedy return",
        "legend": plots.IQM_LEGEND,
    }
    ours = {printable(display(p.algo)): curves[p.algo, False] for p in pairs if p.ours}
    if ours:
        plots.lines(
            {printable(env): ours},
            together,
            first=list(NAMES.values()),
            threshold=threshold,
            log_x=log_x,
            size=(7.0, 3.6),
            **axes,
        )
        text += picture(f"Learning curves of all algorithms on {env}", together)
    panels: dict[str, dict[str, Line]] = {}
    for pair in pairs:
        if pair.sb3 or not ours:
            sides = {name: curves.get((pair.algo, name == SIDES[1])) for name in SIDES}
            found = {name: line for name, line in sides.items() if line}
            panels[printable(display(pair.algo))] = found
    if panels:
        plots.lines(
            panels,
            apart,
            first=SIDES,
            threshold=threshold,
            log_x=log_x,
            share_x=True,
            share_y=True,
            **axes,
        )
        text += picture(f"Learning curves on {env}, ours and SB3's", apart)
        text += "All panels have the same axes.\n\n"
    return text


def is_log_x(pairs: Sequence[Pair]) -> bool:
    """Whether the budgets differ so much that timesteps are on a logarithmic axis."""
    budgets = [r.timesteps_requested for pair in pairs for r in pair.headline]
    return max(budgets) > UNEQUAL * min(budgets) > 0


@cache  # the site asks for it, too
def curve(result: Result) -> Line:
    """The IQM of the greedy return over training."""
    return plots.iqm_line(result.algo, result.curve)


def picture(text: str, path: Path) -> str:
    return f"!{link(text, Path(UP, 'plots', path.name))}\n\n"


# ---- Tables ---------------------------------------------------------------------------------


def score_note(pairs: Sequence[Pair]) -> str:
    """What the table needs to be read, one paragraph."""
    text = "Means over n seeds with their 95% intervals. "
    if any(pair.sb3 for pair in pairs):
        text += (
            "The second line of a row is SB3 at the same settings. Below a verdict are the "
            "difference of the normalised means, ours minus SB3's, and the seeds per side that it "
            "is based on. "
        )
    return (
        text
        + f"The terms are explained in [how to read this]({UP}verdicts.md#how-to-read-this).\n\n"
    )


def verdict_cell(pair: Pair, measure: str) -> str:
    """The word, and below it the difference."""
    if pair.sb3 is None or pair.ours is None:
        return "no SB3 run" if pair.sb3 is None else "no run of ours"
    return short_verdict(pair.verdict(measure), pair)


def short_verdict(verdict: Verdict | None, pair: Pair) -> str:
    """`equivalent<br>+0.001 [-0.012, +0.014], n = 30`, or why there is none."""
    if verdict is None:
        return verdict_text(None, pair.headline[0].spec)
    difference = (
        "" if verdict.parity.word == "saturated" else verdict.parity.difference.text(3, "+")
    )
    parts = ", ".join(filter(None, (difference, f"n = {verdict.look}")))
    return f"**{verdict.parity.word}**<br>{parts}"


def name_cell(pair: Pair) -> TableCell:
    """The names of both sides, with the anchor of the row."""
    names = pair.sides(pair.label)
    mark = f'<a id="{anchor(pair.algo)}"></a>'
    return Sides(mark + names.ours, names.theirs) if isinstance(names, Sides) else mark + names


def score_table(pairs: Sequence[Pair]) -> tuple[Sequence[str], Sequence[Sequence[TableCell]]]:
    """Header and rows: one for each algorithm, ours and SB3's. Without a threshold nothing is said
    of when it is reached."""
    shown = [
        name != TO_THRESHOLD or reachable_threshold(pairs[0].headline[0].spec) is not None
        for name in SCORES
    ]
    rows = [list(compress(row, shown)) for row in score_rows(pairs)]
    return list(compress(SCORES, shown)), rows


def score_rows(pairs: Sequence[Pair]) -> list[tuple[TableCell, ...]]:
    """The cells of all of SCORES."""

    def to_threshold(r: Result) -> str:
        when, seeds = r.threshold_texts()
        return f"{when} ({seeds})" if seeds else when

    return [
        (
            name_cell(pair),
            pair.sides(pair.seeds_text),
            pair.sides(lambda r: r.text(r.final, "mean")),
            verdict_cell(pair, "final"),
            pair.sides(lambda r: r.text(r.auc, "mean")),
            verdict_cell(pair, "auc"),
            pair.sides(Result.failures_text),
            pair.sides(to_threshold),
            pair.sides(lambda r: f"{r.timesteps:,}"),
        )
        for pair in pairs
    ]


def detail_rows(pairs: Sequence[Pair]) -> list[tuple[TableCell, ...]]:
    def spread(r: Result) -> str:
        return r.number(r.final.std(ddof=1)) if len(r.seeds) > 1 else "-"

    def over_episodes(r: Result) -> str:
        return "exact" if r.exact else r.number(r.episode_std.mean())

    return [
        (
            pair.sides(pair.label),
            pair.sides(pair.seeds_text),
            pair.sides(lambda r: r.text(r.final)),
            pair.sides(lambda r: r.text(r.auc)),
            pair.sides(lambda r: r.number(r.final.min())),
            pair.sides(spread),
            pair.sides(over_episodes),
            pair.sides(lambda r: r.text(r.sampled)),
        )
        for pair in pairs
    ]


def target_rows(pairs: Sequence[Pair]) -> Rows:
    """The suites' targets for the mean final score, met or missed."""
    rows: Rows = []
    asked = targets()
    for pair in pairs:
        target = asked.get((pair.env, pair.algo))
        if pair.ours is None or target is None:
            continue
        mean = pair.ours.text(pair.ours.final, "mean")
        result = "met" if pair.ours.final.mean() >= target else "missed"
        n = str(len(pair.ours.seeds))
        rows.append((pair.label(pair.ours), n, mean, f"{target:g}", result))
    return rows


def equal_budgets(pairs: Sequence[Pair], results: Path) -> str:
    """A table of scores after equal numbers of timesteps, and of published ones; `` where there is
    nothing to compare."""
    budgets = sorted({r.timesteps_requested for pair in pairs for r in pair.headline})
    published = [published_text(pair) for pair in pairs]
    if len(budgets) == 1 and not any(published):
        return ""
    header = ["algorithm", "n", *(f"{budget:,}" for budget in budgets), "published"]

    def at(budget: int, r: Result) -> str:
        if budget > r.timesteps_requested:
            return ""
        text = r.text(r.score_at(budget), "mean")
        return f"**{text}**" if budget == r.timesteps_requested else text

    rows = [
        (
            pair.sides(pair.label),
            pair.sides(lambda r: str(len(r.seeds))),
            *(pair.sides(partial(at, budget)) for budget in budgets),
            text,
        )
        for pair, text in zip(pairs, published, strict=True)
    ]
    stem = f"environment-{file_name(pairs[0].env)}-budgets"
    return (
        "\n## At an equal budget\n\n"
        "Mean scores after the same number of timesteps, with their 95% intervals. Scores in bold "
        "are from the final evaluation of a run. The others are from evaluations during a longer "
        "run, with fewer episodes and a learning rate that may still be high. In published scores, "
        "+- is over the episodes of one agent (the zoo) or over seeds (CleanRL).\n\n"
    ) + table(results, stem, header, rows, UP)


def published_text(pair: Pair) -> str:
    """Scores that others have published, beside a run with every setting of the preset."""
    if pair.headline[0].config != pair.settings:
        return ""
    found = []
    if pair.preset and pair.preset.published:
        text = pair.preset.published
        budget = "" if "timesteps" in text else f" at {pair.settings['total_timesteps']:,}"
        found.append(f"{text}{budget}")
    if score := CLEANRL.get((pair.env, pair.algo)):
        found.append(f"CleanRL {score} over the last 100 training episodes, 3 seeds, at 500,000")
    return "<br>".join(found)


def other_rows(pairs: Sequence[Pair], results: Path) -> Rows:
    return [
        (
            escape(display(r.algo)) + " (stale)" * is_stale(r),
            link(r.run.path.name, place(r.run.folder, results / FOLDER)),
            str(len(r.seeds)),
            r.text(r.final),
            r.text(r.final, "mean"),
            r.failures_text(),
            pair.changes(r) or "the preset",
        )
        for pair in pairs
        for r in pair.others
    ]


def ranked_seeds(result: Result) -> dict[str, int]:
    """The median and the worst seed of a run; one seed can be both."""
    seeds = median_and_worst({seed: worth.score for seed, worth in result.worths.items()})
    return dict(zip(RANKS, (seeds[0], seeds[-1]), strict=True))


def in_other_episodes(result: Result, seed: int, episodes: int) -> Estimate:
    """The final score of a seed, and where the mean return of so many other episodes falls."""
    i = result.seeds.index(seed)
    std = result.episode_std[i]
    return of_other_episodes(result.final[i], std, result.final_episodes, episodes)


def policy_rows(pairs: Sequence[Pair], results: Path) -> Rows:
    """The policies that are published, and what they score in other episodes."""
    rows: Rows = []
    for pair in pairs:
        ours = pair.ours
        if ours is None or not find_file(results, policies_name(ours.run.path)).is_file():
            continue
        for rank, seed in ranked_seeds(ours).items():
            expected = in_other_episodes(ours, seed, FINAL_EPISODES)
            interval = " to ".join(map(ours.number, (expected.low, expected.high)))
            name = pair.label(ours), rank, str(seed), ours.number(expected.value)
            alike = "exact" if ours.exact else "all returns are equal"
            rows.append((*name, alike if math.isnan(expected.low) else interval))
    return rows


def failures_list(pairs: Sequence[Pair]) -> str:
    """Every failed seed by number, folded away."""
    lines = []
    for pair in pairs:
        for r in pair.headline:
            scores = dict(zip(r.seeds, r.final, strict=True))
            seeds = []
            for seed in r.failures:
                when = f", diverged at timestep {r.diverged[seed]:,}" if seed in r.diverged else ""
                seeds.append(f"seed {seed} ({r.number(scores[seed])}{when})")
            if seeds:
                lines.append(f"- {escape(display(r.algo))}: {', '.join(seeds)}\n")
    return "\n" + fold("Failed seeds", "".join(lines)) if lines else ""


# ---- Provenance -----------------------------------------------------------------------------


def provenance(pairs: Sequence[Pair], results: Path) -> str:
    """Commands, code, machine and hyperparameters of each run, behind a fold."""
    text = ""
    for pair in pairs:
        for result in (*pair.headline, *pair.others):
            stale = " (stale)" * is_stale(result)
            name = f"{display(result.algo)}{stale}, n = {len(result.seeds)}"
            if result in pair.others:
                name += f", run {result.run.path.name}"
            text += fold(name, provenance_of(pair, result, results))
    return text


def provenance_of(pair: Pair, result: Result, results: Path) -> str:
    """Where a run is from; parts with the same origin are grouped."""
    path = place(result.run.folder, results / FOLDER)
    shown = place(result.run.path, results)
    text = f"{link(shown, path)}\n\n{origins_text(result.configs)}"
    if result is pair.sb3 and pair.ours:
        return text + f"- hyperparameters: the same as those of {code(pair.algo)} above\n"
    values = settings_text({k: v for k, v in result.config.items() if k != "env"})
    source = f" ({pair.preset.source})" if pair.preset else ""
    if changes := pair.changes(result):
        text += f"- not the preset: {changes}\n"
        source = ""
    return text + f"- hyperparameters{source}: {values}\n"
