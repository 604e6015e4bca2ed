"""The front page: what this is, two commands, a film or a curve, the verdicts, and three doors."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from urllib.parse import quote

from manyseeds.benchmarks.chapters.blocks import Figure
from manyseeds.benchmarks.chapters.differences import difference_of
from manyseeds.benchmarks.chapters.environment_pages import curve, is_log_x
from manyseeds.benchmarks.chapters.front_page import shown_environment
from manyseeds.benchmarks.experiments.verdicts import SHOWN_LEVEL
from manyseeds.benchmarks.store.comparison import TABULAR, Pair
from manyseeds.benchmarks.store.names import display, place_of, place_of_env
from manyseeds.benchmarks.store.whole import Store
from manyseeds.benchmarks.web import code, overview
from manyseeds.benchmarks.web.chapter import environment_file
from manyseeds.benchmarks.web.docs import COPY, repository
from manyseeds.benchmarks.web.figures import figure_json
from manyseeds.benchmarks.web.films import films_of
from manyseeds.benchmarks.web.page import CHARTS, SUMMARY, Page
from manyseeds.errors import printable
from manyseeds.plots import Difference
from manyseeds.runs.control import reachable_threshold

SHOWN = "ppo"  # the algorithm whose film or learning curve is shown, where it has one


def page(store: Store, films: Path, guides: Sequence[Page]) -> Page:
    """The front page. films: a folder that may have films. guides: the pages of docs/."""
    deep = [pair for pair in store.found if pair.algo not in TABULAR]
    speeds, about_speed = overview.speeds(store)
    shown = shown_pair(deep)
    film = films_of(shown.env, shown.algo, films).get("median", "") if shown else ""
    figures = [learning_curve(shown)] if shown and not film else []
    panels = verdict_panels(deep)
    if panels:
        data = {"panels": panels, "xlabel": "ours minus SB3's"}
        figures.append(Figure("verdicts", "Verdicts against SB3", "forest", data))
    words = [row.word for rows in panels.values() for row in rows]
    context = {
        "repository": repository(),
        "code": code.file_of(f"algos/{SHOWN}.py"),
        "shown": shown and shown_context(shown),
        "film": film,
        "charts": list(map(figure_json, figures)),
        "verdicts": overview.counted(words),
        "comparisons": len(words),
        "level": SHOWN_LEVEL,
        "best": best_algorithms(deep),
        "speeds": speeds,
        "about_speed": about_speed,
        "guides": [(page.file, page.title) for page in guides],
    }
    scripts = (*CHARTS, "static/charts.js", COPY) if figures else (COPY,)
    return Page("index.html", "manyseeds", "front.html.j2", context, scripts, "", "", SUMMARY)


def shown_pair(found: Sequence[Pair]) -> Pair | None:
    """The pair that is shown, of the environment that the report shows."""
    env = shown_environment(found)
    there = [pair for pair in found if pair.env == env and pair.ours]
    return next((pair for pair in there if pair.algo == SHOWN), there[0] if there else None)


def shown_context(pair: Pair) -> dict[str, str]:
    """What the page says of the pair."""
    return {
        "algo": printable(display(pair.algo)),
        "env": printable(pair.env),
        "href": environment_file(pair.env),
        "seeds": " and ".join(dict.fromkeys(str(len(result.seeds)) for result in pair.headline)),
    }


def learning_curve(pair: Pair) -> Figure:
    """The IQM of both sides over training with its interval."""
    data = {
        "panels": {"": {printable(display(side.algo)): curve(side) for side in pair.headline}},
        "xlabel": "timesteps per seed",
        "ylabel": "greedy return",
        "log_x": is_log_x([pair]),
        "threshold": reachable_threshold(pair.headline[0].spec),
    }
    return Figure("curve", f"{display(pair.algo)} on {pair.env}", "lines", data)


def verdict_panels(found: Sequence[Pair]) -> dict[str, list[Difference]]:
    """The verdicts on learning speed as rows of a forest plot, a panel per algorithm."""
    panels: dict[str, list[Difference]] = {}
    for pair in sorted(found, key=lambda pair: (place_of(pair.algo), place_of_env(pair.env))):
        if verdict := pair.verdict("auc"):
            href = f"{environment_file(pair.env)}#algorithms={quote(pair.algo)}&sb3=1"
            row = difference_of(pair.env, verdict.parity)._replace(href=href)
            panels.setdefault(printable(display(pair.algo)), []).append(row)
    return panels


def best_algorithms(found: Sequence[Pair]) -> list[tuple[str, str, str]]:
    """Environment, its page, and the algorithms with the best score there."""
    matrix = overview.matrix("", found)
    return [(*column, names) for column, names in zip(matrix.columns, matrix.best, strict=True)]
