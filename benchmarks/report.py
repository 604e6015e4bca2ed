"""Writes the report of all finished runs: a page, README.md, with tables and plots.

    python benchmarks/report.py             your own runs and the published ones, in results/local
    python benchmarks/report.py --publish   the published runs alone, in results

The same store gives the same bytes: intervals come from a constant bootstrap seed, and no date is
written. The tables are also written as CSV: `tables/seeds.csv` has a row per seed, `scores.csv` a
row per run, `verdicts.csv` a row per comparison with stable-baselines3. Invalid parts are left out,
with a line that says why.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from benchmarks import catalog
from benchmarks.chapters import (
    ablations,
    environments,
    evidence,
    gradient_variance,
    language_models,
    policy_gradients,
    sensitivity,
    speed,
    tabular,
    taxonomy,
)
from benchmarks.chapters.results import (
    FLOOR,
    Result,
    Rows,
    decision,
    decision_text,
    differences,
    escape,
    link,
    load_result,
    markdown_table,
    origins_text,
    parity,
    picture,
    place,
    print_table,
    seeds_due,
    settings_text,
    verdict_text,
)
from benchmarks.chapters.stored import (
    StoredRun,
    file_name,
    find_file,
    left_out,
    open_runs,
    section_of,
)
from benchmarks.revised import FRESH, REVISED
from benchmarks.suite import SUITES, Cell
from benchmarks.verdicts import FIRST_FRESH, LEVEL, LOOKS, MARGIN, Verdict
from manyseeds import plots, stats
from manyseeds.cli import PUBLISHED, LayerConfig, Preset, exit_with, parse
from manyseeds.errors import UsageError, printable
from manyseeds.evaluate import CURVE_EPISODES, FINAL_EPISODES, POINTS
from manyseeds.record import plural, ranges, write_bytes
from manyseeds.runs.control import reachable_threshold
from manyseeds.runs.stale import part_is_stale

SB3 = "sb3-"  # how the store names a baseline: sb3-ppo stands beside ppo
MEASURES = {"final": "final score", "auc": "learning speed (AUC)"}
SIDES = ("manyseeds", "stable-baselines3")  # of every figure, in the same colours everywhere

PROTOCOL = f"""\
- **Evaluation.** Each seed is evaluated {POINTS + 1} times, before training and at the first update
  after every 1/{POINTS} of it, on {CURVE_EPISODES} episodes, and after training on
  {FINAL_EPISODES}: greedy policy, raw rewards, and the same start states for all seeds and
  algorithms. In tabular environments the greedy policy's return is computed exactly from P and R
  instead. *Final score* is the greedy return after training, not the best one during training.
- **Interval.** One seed is one observation, and n is the number of seeds. `498.2 [493.1, 500.0]` is
  a statistic over seeds with its 95% expanded-percentile bootstrap interval. The IQM is the mean of
  the middle half of the seeds; the mean weights all seeds equally.
- **Failure.** A seed that ends below the environment's reward threshold, or without one below a
  normalised score of {FLOOR}, or that diverged (its loss became NaN or infinite). `0 of 30, at most
  10%`: so many of all seeds may fail, by the upper end of a one-sided 95% interval
  (Clopper-Pearson). All statistics include the failures. A non-finite return is replaced
  by the random policy's score, or where that is unknown by the lowest return of the run.
- **Verdict.** Ours against stable-baselines3 (SB3) with the same hyperparameters, network and
  evaluation. The number is the difference of the mean normalised scores (0: random policy, 1:
  reference), ours minus SB3's, with its {1 - LEVEL:.0%} interval, and p that of a permutation test.
  An interval within ±{MARGIN} is *equivalent*, from {stats.EQUIVALENCE_SEEDS} seeds a side on;
  otherwise one above 0 is *better* and one below 0 *worse* where p agrees. Where all seeds of both
  sides score the same, the cell is *saturated*: what is said is how many seeds may fail unseen. Any
  other interval is *undecided*. Verdicts are looked at with {", ".join(map(str, LOOKS))} seeds a
  side, and the first look that decides is the verdict, n its seeds a side. In the simulation below,
  sides that are alike are called better or worse in less than 5% of cases over all looks.
  *Equivalent* can still hide rare failures, up to the bound beside it. There is no verdict before
  both sides have the seeds 0 to {LOOKS[0] - 1}, or where the environment's random or reference
  score is unknown. Verdicts use the mean, not the IQM, so that failed seeds count. The rule was
  stated on 2026-11-22: the seeds that were published before had been looked at by another one.
  Verdicts on ablations, searches, language models and revised ones are looked at once, by 95%
  intervals and p < 0.05.
- **Learning speed.** AUC is the area under the learning curve divided by its length, that is, the
  mean greedy return over training. Timesteps to threshold is the first evaluation at or above the
  reward threshold, the median over the seeds that reach it; the next column has their number.
- **n** is the number of seeds; `10 of 20` where the next look needs 20. Ours has 30 at least, SB3
  as many as decide both verdicts.
- **Stale** marks a run whose code has changed since, in a way that may change its curve. **Not the
  preset** marks a run with other hyperparameters than the algorithm's command with `--env` alone.
"""


@dataclass
class Pair:
    """All runs of one algorithm on one environment, ours and SB3's."""

    env: str
    algo: str
    preset: Preset | None
    settings: dict[str, Any]  # what the algorithm's command with --env alone would train with
    ours: Result | None = None  # the headline: the runs at these settings, where they exist
    sb3: Result | None = None
    others: list[Result] = field(default_factory=list)
    suite_seeds: dict[str, int] = field(default_factory=dict)  # of the headline, by name

    @property
    def headline(self) -> list[Result]:
        return [result for result in (self.ours, self.sb3) if result]

    def verdict(self, measure: str) -> Verdict | None:
        """Of the `final` scores or the `auc`; None without both sides or with too few seeds."""
        if self.ours is None or self.sb3 is None:
            return None
        return decision(self.ours, self.sb3, measure)


def is_sb3(result: Result) -> bool:
    return result.algo.startswith(SB3)


def pairs(results: Sequence[Result]) -> list[Pair]:
    """The runs grouped by environment and algorithm, each with its headline chosen.

    That is the run with the settings of the plain command. Without one it is the run with the
    most seeds, ours before SB3's. SB3's counterpart is the run with the very same settings.
    """
    groups: dict[tuple[str, str], list[Result]] = {}
    cells = suite_cells()
    for result in map(without_fresh, results):
        key = (result.spec.id, result.algo.removeprefix(SB3))
        groups.setdefault(key, []).append(result)
    found = []
    for (env, algo), members in sorted(groups.items()):
        preset, settings = plain_command(algo, env)
        best = max(members, key=lambda r: (r.config == settings, not is_sb3(r), len(r.seeds)))
        pair = Pair(env, algo, preset, settings)
        for result in sorted(members, key=lambda r: -len(r.seeds)):
            if result.config == best.config and not is_sb3(result) and pair.ours is None:
                pair.ours = result
            elif result.config == best.config and is_sb3(result) and pair.sb3 is None:
                pair.sb3 = result
            else:
                pair.others.append(result)
        for result in pair.headline:
            if asked := cells.get((env, result.algo, result.run.path.name)):
                pair.suite_seeds[result.algo] = asked
        found.append(pair)
    return found


def without_fresh(result: Result) -> Result:
    """A run without the seeds that only a revised verdict asks for, where it has others."""
    seeds = [seed for seed in result.seeds if seed < FIRST_FRESH]
    return result.only(seeds) if 0 < len(seeds) < len(result.seeds) else result


def plain_command(algo: str, env: str) -> tuple[Preset | None, dict[str, Any]]:
    """The preset of an environment, if any, and the settings that `--env ENV` trains with."""
    if algo not in catalog.names("algos"):
        return None, {}
    preset = catalog.module("algos", algo).PRESETS.get(env)
    return preset, catalog.plain_settings("algos", algo, env)


def is_stale(result: Result) -> bool:
    return any(part_is_stale(config) for config in result.configs)


# ---- Tables ---------------------------------------------------------------------------

FINAL = ("environment", "algorithm", "n", "IQM [95%]", "mean [95%]", "failures", "against SB3")
SPEED = (
    "environment",
    "algorithm",
    "n",
    "AUC, IQM [95%]",
    "timesteps to threshold",
    "reached by",
    "AUC against SB3",
)
DETAILS = (
    "environment",
    "algorithm",
    "n",
    "timesteps",
    "worst seed",
    "std over seeds",
    "std over episodes",
    "sampled, IQM [95%]",
)
REVISED_COLUMNS = (
    *("environment", "algorithm", "of", "published first", "then", "what changed"),
    "on fresh seeds",
)
TARGETS = ("environment", "algorithm", "n", "target", "mean [95%]", "result")
PUBLISHED_SCORES = ("environment", "algorithm", "n", "ours, mean [95%]", "published")
OTHERS = ("environment", "algorithm", "run", "n", "IQM [95%]", "mean [95%]", "failures", "settings")


def label(pair: Pair, result: Result) -> str:
    """`ppo`, `sb3-ppo (stale)`"""
    marks = ["stale"] * is_stale(result) + ["not the preset"] * bool(changes_text(pair, result))
    return escape(result.algo) + (f" ({', '.join(marks)})" if marks else "")


def seeds_text(pair: Pair, result: Result) -> str:
    """`30`, or `10 of 30` where it should have more.

    The suites say how many; where verdicts are due, the rule may ask for more.
    """
    n = len(result.seeds)
    asked = pair.suite_seeds.get(result.algo, n)
    if result.algo in pair.suite_seeds and pair.ours and pair.sb3:
        asked = max(asked, seeds_due(pair.ours, pair.sb3)[result is pair.sb3])
    return str(n) if n >= asked else f"{n} of {asked}"


def suite_cells() -> dict[tuple[str, str, str], int]:
    """The seeds that the suites say, the most, by environment, algorithm and name of the run."""
    found: dict[tuple[str, str, str], int] = {}
    for cell in (cell for cells in SUITES.values() for cell in cells if cell.package == "algos"):
        if cell.first_seed:
            continue
        name = (cell.env, cell.label, cell.folder().path.name)
        found[name] = max(cell.seeds, found.get(name, 0))
    return found


def verdict_cell(pair: Pair, result: Result, measure: str) -> str:
    """The verdict, in the row of our run only."""
    if result is pair.sb3:
        return ""
    return "no SB3 run" if pair.sb3 is None else decision_text(pair.verdict(measure), result.spec)


def rows_of(found: Sequence[Pair], cells: Callable[[Pair, Result], Sequence[str]]) -> Rows:
    """A row for each headline run: environment, algorithm and n, then its cells."""
    return [
        (escape(pair.env), label(pair, r), seeds_text(pair, r), *cells(pair, r))
        for pair in found
        for r in pair.headline
    ]


def final_rows(found: Sequence[Pair]) -> Rows:
    return rows_of(
        found,
        lambda pair, r: (
            r.text(r.final),
            r.text(r.final, "mean"),
            r.failures_text(),
            verdict_cell(pair, r, "final"),
        ),
    )


def speed_rows(found: Sequence[Pair]) -> Rows:
    return rows_of(
        found,
        lambda pair, r: (r.text(r.auc), *r.threshold_texts(), verdict_cell(pair, r, "auc")),
    )


def detail_rows(found: Sequence[Pair]) -> Rows:
    return rows_of(
        found,
        lambda _, r: (
            f"{r.timesteps:,}",
            f"{r.final.min():.{r.digits}f}",
            f"{r.final.std(ddof=1):.{r.digits}f}" if len(r.seeds) > 1 else "",
            "exact" if r.exact else f"{r.episode_std.mean():.{r.digits}f}",
            r.text(r.sampled),
        ),
    )


def other_rows(found: Sequence[Pair], results: Path) -> Rows:
    return [
        (
            escape(pair.env),
            escape(r.algo) + " (stale)" * is_stale(r),
            link(r.run.path.name, place(r.run.path, results)),
            str(len(r.seeds)),
            r.text(r.final),
            r.text(r.final, "mean"),
            r.failures_text(),
            changes_text(pair, r) or "the preset",
        )
        for pair in found
        for r in pair.others
    ]


def changes_text(pair: Pair, result: Result) -> str:
    """How a run differs from the settings of the plain command: `gamma 0.9 (not 0.98)`."""
    return differences(result.config, pair.settings or result.config)


def csv_tables(found: Sequence[Pair]) -> dict[str, pd.DataFrame]:
    """The numbers behind the report, unrounded: per seed, per run, per verdict."""
    per_seed: list[dict[str, Any]] = []
    per_run: list[dict[str, Any]] = []
    verdicts: list[dict[str, Any]] = []
    for pair in found:
        for r in (*pair.headline, *pair.others):
            key = {"env": pair.env, "algo": r.algo, "run": r.run.path.name}
            key = {name: printable(text) for name, text in key.items()}
            for i, seed in enumerate(r.seeds):
                scores = {
                    "final": r.final[i],
                    "sampled": r.sampled[i],
                    "auc": r.auc[i],
                    "timesteps_to_threshold": r.reached[i],
                    "diverged_at": r.diverged.get(seed),
                    "failed": seed in r.failures,
                }
                per_seed.append({**key, "seed": seed, **scores})
            row = {**key, "headline": r in pair.headline, "stale": is_stale(r), "n": len(r.seeds)}
            row |= {"timesteps": r.timesteps, "failures": len(r.failures)}
            row |= {"diverged": len(r.diverged), "reached_threshold": np.isfinite(r.reached).sum()}
            for measure in ("final", "sampled", "auc"):
                values = getattr(r, measure)
                for statistic in ("iqm", "mean"):
                    e = stats.estimate(values, statistic)  # type: ignore[arg-type]
                    name = f"{measure}_{statistic}"
                    row |= {name: e.value, f"{name}_low": e.low, f"{name}_high": e.high}
            per_run.append(row)
        for measure in ("final", "auc"):
            verdict = pair.verdict(measure)
            if verdict is None or pair.ours is None or pair.sb3 is None:
                continue
            d = verdict.parity.difference
            verdicts.append(
                {
                    "env": printable(pair.env),
                    "algo": printable(pair.algo),
                    "measure": measure,
                    "n": len(pair.ours.seeds),
                    "n_sb3": len(pair.sb3.seeds),
                    "look": verdict.look,
                    "difference": d.value,
                    "low": d.low,
                    "high": d.high,
                    "p": verdict.parity.p,
                    "verdict": verdict.parity.word,
                    "decided": verdict.decided,
                }
            )
    tables = {"seeds": per_seed, "scores": per_run, "verdicts": verdicts}
    return {name: pd.DataFrame(rows) for name, rows in tables.items() if rows}


# ---- README.md ------------------------------------------------------------------------


MEASURED: tuple[tuple[str, str, Any, Callable[[Any], str]], ...] = (  # title, file, shape, text
    ("Speed", "throughput.json", speed.STORED, partial(speed.markdown, device="cpu")),
    (
        "Speed on a GPU",
        "throughput-cuda.json",
        speed.STORED,
        partial(speed.markdown, device="cuda"),
    ),
    ("Error rates of verdicts", "error_rates.json", evidence.STORED, evidence.error_rates),
    (
        "Native environments against Gymnasium's",
        "tables/check.json",
        environments.STORED,
        environments.markdown,
    ),
)


def readme(
    found: Sequence[Pair],
    loaded: Sequence[Result],
    results: Path,
    figures: dict[str, Path],
    note: str,
    missing: Sequence[str],
    chapter: str,
) -> str:
    """The whole page."""
    text = "# Results\n\n"
    if note:
        text += f"> **{note}**\n\n"
    text += outcome(found)
    text += (
        "Generated by `python benchmarks/report.py` from the runs in [runs](runs); do not edit.\n"
        "Intervals, verdicts and failures are defined in [how to read this](#how-to-read-this).\n"
        "Commands, commits and hyperparameters: [provenance](#provenance).\n"
        "The same numbers as CSV: [tables](tables).\n\n"
    )
    if found:
        text += f"## Final score\n\n{markdown_table(FINAL, final_rows(found))}\n"
        text += failures_list(found)
        text += f"## Learning speed\n\n{markdown_table(SPEED, speed_rows(found))}\n"
        text += verdicts_together(found)
        text += revised_verdicts(loaded)
        text += "## Learning curves\n\n"
        for env, figure in figures.items():
            text += picture(f"Learning curves on {env}", figure)
        text += f"## Details\n\n{markdown_table(DETAILS, detail_rows(found))}\n"
        text += scales(found)
    if rows := target_rows(found):
        text += f"## Targets\n\n{markdown_table(TARGETS, rows)}\n"
    if rows := published_rows(found):
        text += f"## Published scores\n\n{markdown_table(PUBLISHED_SCORES, rows)}\n"
    for title, name, shape, write in MEASURED:
        if section := section_of(find_file(results, name), shape, write):
            text += f"## {title}\n\n{section.strip()}\n\n"
    text += chapter
    if rows := other_rows(found, results):
        text += f"## Other runs\n\n{markdown_table(OTHERS, rows)}\n"
    if missing:
        lines = "".join(f"- {line}\n" for line in missing)
        text += f"## Missing\n\nUnfinished seeds of the suites:\n\n{lines}\n"
    text += f"## How to read this\n\n{PROTOCOL}\n"
    text += "## Provenance\n\n"
    for pair in found:
        text += f"### {escape(pair.algo)} on {escape(pair.env)}\n\n"
        for result in (*pair.headline, *pair.others):
            text += provenance_of(pair, result, results)
    return text.rstrip("\n") + "\n"


def outcome(found: Sequence[Pair]) -> str:
    """One sentence: the verdicts on final scores against SB3, counted."""
    verdicts = [verdict for pair in found if (verdict := pair.verdict("final"))]
    if not verdicts:
        return ""
    return (
        "**Final scores against stable-baselines3 at the same settings "
        f"({plural(len(verdicts), 'comparison')}): {evidence.counted(verdicts)}.**\n\n"
    )


def verdicts_together(found: Sequence[Pair]) -> str:
    """What the verdicts say together, of the final scores and of learning speed."""
    text = ""
    for measure, name in MEASURES.items():
        judged = [verdict for pair in found if (verdict := pair.verdict(measure))]
        if not judged:
            continue
        text += evidence.together_text(judged, name)
    return f"## All verdicts together\n\n{text}\n" if text else ""


def revised_verdicts(results: Sequence[Result]) -> str:
    """The verdicts that changed after they were published, and what fresh seeds say."""
    rows: Rows = []
    for entry in REVISED:
        sides = []
        _, settings = plain_command(entry.algo, entry.env)
        for name in (entry.algo, SB3 + entry.algo):
            of_cell = [r for r in results if (r.algo, r.config) == (name, settings)]
            sides += [r.only(FRESH) for r in of_cell if set(FRESH) <= set(r.seeds)]
        text = "not trained yet"
        if len(sides) == 2:
            ours, theirs = (getattr(side, entry.measure) for side in sides)
            text = verdict_text(parity(ours, theirs, sides[0].spec), sides[0].spec)
        name = MEASURES[entry.measure]
        rows.append((entry.env, entry.algo, name, entry.first, entry.then, entry.why, text))
    if all(row[-1] == "not trained yet" for row in rows):
        return ""
    print_table("Revised verdicts", REVISED_COLUMNS, rows)
    return (
        "## Revised verdicts\n\nPublished, then changed, and therefore decided anew on fresh seeds "
        f"({ranges(FRESH)}) of both sides, looked at once with 95% intervals:\n\n"
        f"{markdown_table(REVISED_COLUMNS, rows)}\n"
    )


def failures_list(found: Sequence[Pair]) -> str:
    """Every failed seed by number."""
    lines = []
    for pair in found:
        for r in pair.headline:
            scores = dict(zip(r.seeds, r.final, strict=True))
            seeds = []
            for seed in r.failures:
                when = f", diverged at timestep {r.diverged[seed]:,}" if seed in r.diverged else ""
                seeds.append(f"seed {seed} ({scores[seed]:.{r.digits}f}{when})")
            if seeds:
                lines.append(f"- {escape(r.algo)} on {escape(pair.env)}: {', '.join(seeds)}\n")
    return f"Failures:\n\n{''.join(lines)}\n" if lines else ""


def scales(found: Sequence[Pair]) -> str:
    """Threshold, random and reference score of each environment."""
    specs = {result.spec.id: result.spec for pair in found for result in pair.headline}
    lines = []
    for spec in specs.values():
        bar = spec.reward_threshold
        threshold = "no reward threshold" if bar is None else f"reward threshold {bar:g}"
        if bar != reachable_threshold(spec):
            threshold += " (above the best policy's score, so it counts no failures)"
        scale = "random or reference score unknown, so no verdicts"
        if spec.reference_score is not None and spec.random_score is not None:
            scale = f"random policy {spec.random_score:g}, reference {spec.reference_score:g}"
        lines.append(f"- {escape(spec.id)}: {threshold}, {scale}\n")
    return "Scales:\n\n" + "".join(lines) + "\n"


def published_rows(found: Sequence[Pair]) -> Rows:
    """Published scores beside ours, of runs with the settings and evaluation of the preset."""
    return [
        (
            escape(pair.env),
            label(pair, pair.ours),
            str(len(pair.ours.seeds)),
            pair.ours.text(pair.ours.final, "mean"),
            pair.preset.published,
        )
        for pair in found
        if pair.ours and pair.preset and pair.preset.published and pair.ours.config == pair.settings
    ]


def target_rows(found: Sequence[Pair]) -> Rows:
    """The suites' targets for the mean final score, met or missed."""
    cells = (cell for suite in SUITES.values() for cell in suite)
    targets = {(cell.env, cell.algo): cell.target for cell in cells if cell.target is not None}
    rows: Rows = []
    for pair in found:
        target = targets.get((pair.env, pair.algo))
        if pair.ours is None or target is None:
            continue
        met = "met" if pair.ours.final.mean() >= target else "missed"
        mean = pair.ours.text(pair.ours.final, "mean")
        name, n = label(pair, pair.ours), str(len(pair.ours.seeds))
        rows.append((pair.env, name, n, f"{target:g}", mean, met))
    return rows


def provenance_of(pair: Pair, result: Result, results: Path) -> str:
    """Commands, code, machine and hyperparameters of a run, equal parts grouped."""
    path = place(result.run.path, results)
    text = f"**{label(pair, result)}**, n={len(result.seeds)}: {link(path, path)}\n\n"
    text += origins_text(result.configs)
    if result is pair.sb3 and pair.ours:
        return text + f"- hyperparameters: the same as those of {escape(pair.algo)} above\n\n"
    values = settings_text({k: v for k, v in result.config.items() if k != "env"})
    source = f" ({pair.preset.source})" if pair.preset else ""
    if changes := changes_text(pair, result):
        text += f"- not the preset: {changes}\n"
        source = ""
    return text + f"- hyperparameters{source}: {values}\n\n"


# ---- The whole report -----------------------------------------------------------------


def draw(found: Sequence[Pair], folder: Path) -> dict[str, Path]:
    """One figure per environment with a panel per algorithm; their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    figures = {}
    for env in dict.fromkeys(pair.env for pair in found):
        here = [pair for pair in found if pair.env == env]
        panels = {}
        for pair in here:
            sides = dict(zip(SIDES, (pair.ours, pair.sb3), strict=True))
            title = printable(f"{pair.algo} on {env}")
            panels[title] = {name: r.curve for name, r in sides.items() if r}
        threshold = reachable_threshold(here[0].headline[0].spec)
        figures[env] = folder / f"{file_name(env)}.svg"
        thresholds: dict[str, float | None] = dict.fromkeys(panels, threshold)
        plots.grid_of_curves(panels, figures[env], thresholds=thresholds, names=SIDES)
    return figures


def missing_cells(results: Path, runs: Sequence[StoredRun]) -> list[str]:
    """Cells of the suites that are not finished: `ppo on CartPole-v1, 30 seeds: 10-29`.

    Of cells that differ only in the number of seeds, the largest.
    """
    largest: dict[tuple[tuple[str, ...], int], Cell] = {}
    for cell in (cell for suite in SUITES.values() for cell in suite):
        name = (cell.folder(str(results)).path.parts[-3:], cell.first_seed)
        largest[name] = max(cell, largest.get(name, cell), key=lambda c: c.seeds)
    finished = {run.path.parts[-3:]: set(run.seeds) for run in runs}
    found = []
    for (run, _), cell in largest.items():
        seeds = set(cell.all_seeds) - finished.get(run, set())
        if seeds:
            found.append(f"{cell}: {ranges(seeds)}")
        elif run not in finished:
            found.append(str(cell))
    return found


def check_writable(results: Path) -> None:
    """Raise UsageError, before anything is written, for what stands where a report is written."""
    for name in ("tables", "plots"):
        folder = results / name
        if os.path.lexists(folder) and not folder.is_dir():
            raise UsageError(f"{folder}: is not a folder")
    written = ("README.md", "tables/*.csv", "plots/*.svg")
    for path in (path for pattern in written for path in results.glob(pattern)):
        if path.is_dir():
            raise UsageError(f"{path}: is a folder, where the report writes a file")


def report(results: Path, note: str = "") -> None:
    """Write the report of a results folder, print its tables and what it wrote.

    note: a warning at the top of the page, such as that the runs are a cut of the suite. The list
    of missing cells is then omitted.
    """
    runs = open_runs(results)
    loaded = []
    for run in (run for run in runs if run.kind == "control"):
        with left_out(run.path):
            loaded.append(load_result(run))
    if not loaded and all(run.kind == "control" for run in runs):
        raise UsageError(f"--results {results}: no finished, valid run under {results / 'runs'}")
    check_writable(results)
    found = pairs(loaded)
    if found:
        print_table("Final score (greedy return)", FINAL, final_rows(found))
        print_table("Learning speed", SPEED, speed_rows(found))

    (results / "tables").mkdir(parents=True, exist_ok=True)
    figures = draw(found, results / "plots")
    for path in figures.values():
        print(f"plot: {path}")
    taxonomy.draw(results / "plots" / "taxonomy.svg")
    frames = csv_tables(found)
    if methods := language_models.methods(runs):
        frames["language"] = language_models.seed_table(methods)
    for name, frame in frames.items():
        path = results / "tables" / f"{name}.csv"
        write_bytes(path, frame.to_csv(index=False, lineterminator="\n").encode())
        print(f"table: {path}")
    missing = [] if note else missing_cells(results, runs)
    chapter = tabular.sections(runs, results / "plots")
    chapter += policy_gradients.sections(loaded, results)
    chapter += ablations.sections(loaded, results)
    chapter += gradient_variance.section(results)
    chapter += language_models.sections(methods, results)
    if written := sensitivity.write_page(results):
        print(f"page: {written}")
        chapter += "## Hyperparameters\n\n"
        chapter += "Searches and sensitivity: [sensitivity.md](sensitivity.md).\n\n"
    page = readme(found, loaded, results, figures, note, missing, chapter)
    write_bytes(results / "README.md", page.encode())
    print(f"report: {results / 'README.md'}")
    for line in missing:
        print(f"missing: {line}")


@dataclass(frozen=True, kw_only=True)
class Flags(LayerConfig):
    """Flags of a report."""

    note: str = ""
    """A warning for the top of the page, such as that the runs are a cut."""

    def __post_init__(self) -> None:
        self.check_publish()


def main(args: Sequence[str] | None = None) -> None:
    flags = parse(Flags, {}, __doc__, args)
    try:
        report(PUBLISHED if flags.publish else Path(flags.results), flags.note)
    except UsageError as error:
        exit_with(error)
    except OSError as error:  # no space, no permission
        exit_with(UsageError(f"--results {flags.results}: {error}"))


if __name__ == "__main__":
    main()
