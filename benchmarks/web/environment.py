"""A page for each environment: all curves on one axis with switches, and what the report says.

The IQM and the mean with their intervals are computed here, as the report does; static/
environment.js draws them, and the median and the seeds from the seeds' curves.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from manyseeds import plots
from manyseeds.benchmarks.chapters import environment_pages
from manyseeds.benchmarks.chapters.environment_pages import curve, is_log_x, ranked_seeds
from manyseeds.benchmarks.store.comparison import Pair, is_stale
from manyseeds.benchmarks.store.names import display, place_of
from manyseeds.benchmarks.store.results import Result, commit_of, versions_text
from manyseeds.benchmarks.store.whole import Store, by_environment, progress
from manyseeds.benchmarks.web.chapter import TABLES, environment_file, targets_of
from manyseeds.benchmarks.web.figures import numbers
from manyseeds.benchmarks.web.films import films_of
from manyseeds.benchmarks.web.html import Writer
from manyseeds.benchmarks.web.page import CHARTS, Page
from manyseeds.errors import printable
from manyseeds.record import ranges
from manyseeds.runs.control import reachable_threshold

COLOURS = 8  # --c0 to --c7 in static/site.css


def pages(store: Store, films: Path) -> list[Page]:
    """A page for each environment with control runs. films: a folder that may have films."""
    grouped = by_environment(store.found).values()
    shown = progress(grouped, len(grouped), "environments")
    return [environment_page(pairs, store, films) for pairs in shown]


def environment_page(pairs: Sequence[Pair], store: Store, films: Path) -> Page:
    env, spec = pairs[0].env, pairs[0].headline[0].spec
    writer = Writer(targets_of(store))
    at = places([pair.algo for pair in pairs])
    data = {
        "env": printable(env),
        "threshold": reachable_threshold(spec),
        "random": spec.random_score,
        "reference": spec.reference_score,
        "log_x": is_log_x(pairs),
        "early": environment_pages.early_end(pairs),  # a second chart ends there
        "runs": [
            run_json(pair, result, at[pair.algo], films)
            for pair in pairs
            for result in pair.headline
        ],
    }
    context = {
        "opening": writer.blocks(environment_pages.opening(pairs)),
        "data": data,
        "body": writer.blocks(environment_pages.sections(pairs, store.results)),
    }
    scripts = (*CHARTS, "static/copy.js", "static/environment.js", TABLES)
    file, title = environment_file(env), printable(env)
    about = f"Learning curves of every seed, and scores and verdicts of all algorithms, on {title}."
    listed, template = "environments.html", "environment.html.j2"
    return Page(file, title, template, context, scripts, listed, description=about)


def places(algos: Sequence[str]) -> dict[str, int]:
    """The place of each algorithm's colour: that of all pages, or one that is free on this one."""
    chosen: dict[str, int] = {}
    for algo in algos:
        place = place_of(algo)[0]
        taken = {other % COLOURS for other in chosen.values()}
        if place % COLOURS in taken:
            place = next((free for free in range(COLOURS) if free not in taken), place)
        while place in chosen.values():
            place += COLOURS  # another marker
        chosen[algo] = place
    return chosen


def run_json(pair: Pair, result: Result, place: int, films: Path) -> dict[str, Any]:
    """A run: its curves, their statistics, and where it is from.

    place: of the algorithm's colour, which both sides have.
    """
    x, curves = plots.curve_of(result.algo, result.curve)
    return {
        "key": result.algo,
        "algorithm": pair.algo,
        "name": printable(display(pair.algo)),
        "side": "SB3" if result is pair.sb3 else "manyseeds",
        "place": place,
        "stale": is_stale(result),
        "budget": result.timesteps_requested,
        "seeds": result.seeds,
        **ranked_seeds(result),
        "failures": result.failures,
        "diverged": {str(seed): when for seed, when in result.diverged.items()},
        "final": [result.number(score) for score in result.final],
        "x": numbers(x),
        "curves": [numbers(row) for row in curves],
        "iqm": band(curve(result)),
        "mean": band(plots.mean_line(x, curves)),
        "origins": origins(result),
        "settings": {
            printable(name): printable(str(value))
            for name, value in result.config.items()
            if name != "env"
        },
        "changes": printable(pair.changes(result)),
        "films": films_of(pair.env, result.algo, films),
    }


def band(line: plots.Line) -> dict[str, Any]:
    """A statistic over seeds with its interval."""
    return {name: numbers(getattr(line, name)) for name in ("y", "low", "high")}


def origins(result: Result) -> list[dict[str, str]]:
    """Command, commit, machine and versions of the parts of a run; equal ones once."""
    alike: dict[tuple[str, ...], list[int]] = {}
    for config in result.configs:
        lines = (config["command"], commit_of(config), config["machine"]["cpu"])
        alike.setdefault((*lines, versions_text(config)), []).extend(config["seeds"])
    names = ("command", "commit", "machine", "versions")
    return [
        {"seeds": ranges(seeds), **dict(zip(names, map(printable, key), strict=True))}
        for key, seeds in alike.items()
    ]
