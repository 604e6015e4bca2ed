"""Plots runs of one environment together and tests whether one is better, with an interval.

    python benchmarks/compare.py results/runs/CartPole-v1/ppo/169f4dbf \\
                                 results/runs/CartPole-v1/sb3-ppo/169f4dbf

The first run is the baseline. Each later run is compared with it by the parity verdict of
`stats.parity`. Seeds of a run in results/local and in the published results are pooled.

A RUN that is a .csv or .npz file is one more line of the plot. It gets no verdict, since its
evaluation is unknown. The file is SB3's monitor.csv or evaluations.npz, a scalar exported by
TensorBoard or a chart exported by W&B (of CleanRL, rejax), whose lines (`NAME - METRIC`) are seeds,
a .csv with the columns timestep, value and, for several seeds, seed, or an .npz with the arrays
timesteps and returns. Steps have to be timesteps. Returns of a training's own episodes are averaged
over hundredths of the training.
"""

from __future__ import annotations

from manyseeds.command import failing_in_one_line

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tyro.conf import Positional

from manyseeds import plots, stats
from manyseeds.benchmarks.experiments.verdicts import margin_at
from manyseeds.benchmarks.store.imported import ENDINGS, imported_line
from manyseeds.benchmarks.store.names import display
from manyseeds.benchmarks.store.results import (
    Result,
    load_result,
    parity_of,
    verdict_text,
)
from manyseeds.benchmarks.store.stored import find_and_open
from manyseeds.cli import given_runs, parse, path_of
from manyseeds.errors import UsageError, printable
from manyseeds.progress import print_table
from manyseeds.runs.control import reachable_threshold


def labels(results: Sequence[Result]) -> list[str]:
    """The shortest names that tell the runs apart: algorithm, with the run's name, or the path."""
    choices = (
        [display(r.algo) for r in results],
        [f"{r.algo}/{r.run.path.name}" for r in results],
    )
    for choice in choices:
        names = list(map(printable, choice))
        if max(Counter(names).values()) == 1:
            return names
    return [str(r.run.path) for r in results]


def score_text(result: Result, measure: str, statistic: stats.Statistic = "iqm") -> str:
    """The estimate, and what equal scores do not tell."""
    found = result.estimate(measure, statistic)
    return found.full_text(result.digits) if found.equal else found.text(result.digits)


def compare(paths: Sequence[str], out: Path) -> None:
    """Draw the runs and the lines of other files into `out`, and print the table of the runs."""
    if out.suffix not in plots.FORMATS:
        raise UsageError(f"--out {out}: must end in {' or '.join(plots.FORMATS)}")
    if not out.absolute().parent.is_dir():
        raise UsageError(f"--out {out}: {out.parent} is not a folder")
    if len(paths) < 2:
        raise UsageError("RUN: give two runs or more")
    files = [path_of(path, "RUN") for path in paths if path.endswith(ENDINGS)]
    imported = {printable(file.name): imported_line(file) for file in files}
    if len(imported) < len(files):
        raise UsageError("RUN: two files of one name")
    paths = [path for path in paths if not path.endswith(ENDINGS)]
    if not paths:
        raise UsageError("RUN: give at least one run beside files")
    results = [load_result(find_and_open(path)) for path in paths]
    folders = [result.run.path for result in results]
    for path, folder in zip(paths, folders, strict=True):
        if folders.count(folder) > 1:
            raise UsageError(f"{path}: given twice")
    first = results[0]
    for path, result in zip(paths, results, strict=True):
        if result.spec.id != first.spec.id:
            raise UsageError(
                f"{path}: is on {result.spec.id}, but {paths[0]} is on {first.spec.id}; "
                "scores of different environments do not compare"
            )

    names = labels(results)
    title = printable(first.spec.id)
    plots.learning_curves(
        {**{name: r.curve for name, r in zip(names, results, strict=True)}, **imported},
        out,
        title=title,
        threshold=reachable_threshold(first.spec),
    )
    header = ("run", "n", "final IQM", "final mean", "failures", "AUC IQM", "timesteps")
    scores = [
        (
            name,
            str(len(r.seeds)),
            score_text(r, "final"),
            score_text(r, "final", "mean"),
            r.failures_text(),
            score_text(r, "auc"),
            f"{r.timesteps:,}",
        )
        for name, r in zip(names, results, strict=True)
    ]
    print_table(f"{title}, greedy return [95% interval]", header, scores)
    if note := stats.coverage_note(len(r.seeds) for r in results):
        print(note)
    env, measures = first.spec.id, (("late score", "late"), ("AUC", "auc"))
    verdicts = [
        (
            name,
            f"{len(r.seeds)} + {len(first.seeds)}",
            verdict_text(parity_of(r, first, "late"), first.spec),
            verdict_text(parity_of(r, first, "auc"), first.spec)
            if r.timesteps == first.timesteps
            else "none (trained for other timesteps)",
        )
        for name, r in zip(names[1:], results[1:], strict=True)
    ]
    if verdicts:
        print_table(
            f"Against {names[0]}: difference of mean normalised scores",
            ("run", "n", *(f"{title}, margin {margin_at(env, x)}" for title, x in measures)),
            verdicts,
        )
    print(f"plot: {out}")


@dataclass(frozen=True)
class Flags:
    runs: Positional[tuple[str, ...]] = ()
    """Folders of runs, the baseline first, and .csv and .npz files of curves."""
    out: str = "compare.svg"
    """The plot, .svg or .png."""


@failing_in_one_line()
def main(args: Sequence[str] | None = None) -> None:
    """Set runs against the first, on the terminal and in a plot."""
    flags = parse(Flags, {}, __doc__, args)
    try:
        compare(given_runs(flags.runs), path_of(flags.out, "--out"))
    except OSError as error:  # not writable, a folder of that name
        raise UsageError(f"--out {flags.out}: {error.strerror}") from None


if __name__ == "__main__":
    main()
