"""The page of all results: the outcome, algorithms by environments, the speed, and every page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from manyseeds.benchmarks.chapters import speed
from manyseeds.benchmarks.chapters.blocks import text_of
from manyseeds.benchmarks.chapters.contents import CHAPTERS
from manyseeds.benchmarks.chapters.front_page import (
    SIGNS,
    Standing,
    budget_text,
    environments_of,
    grid,
    outcome,
    score,
    standing,
)
from manyseeds.benchmarks.measurements.throughput import SUBJECTS
from manyseeds.benchmarks.store.comparison import TABULAR, Pair, applies, is_due, is_stale
from manyseeds.benchmarks.store.names import display, place_of
from manyseeds.benchmarks.store.stored import find_file, left_out, read
from manyseeds.benchmarks.store.whole import Store
from manyseeds.benchmarks.web import code
from manyseeds.benchmarks.web.chapter import environment_file, page_of
from manyseeds.benchmarks.web.page import Page
from manyseeds.errors import printable

FILE = "results.html"


@dataclass(frozen=True)
class MatrixCell:
    """An algorithm on an environment. state: `run`, `missing` (a suite asks for it), `no` (does not
    apply) or empty (not run); the other fields are of a run."""

    state: str
    href: str = ""
    score: str = ""
    best: bool = False
    word: str = ""  # of the verdict against SB3; empty: none
    sign: str = ""
    budget: str = ""
    stale: bool = False
    few: bool = False  # fewer seeds than the rule asks for


@dataclass(frozen=True)
class MatrixRow:
    """A row of the matrix. code: the page of the algorithm's file, or empty. against: its verdicts
    counted, `1 equivalent, 2 undecided`."""

    name: str
    code: str
    cells: list[MatrixCell]
    against: str


@dataclass(frozen=True)
class Matrix:
    """Algorithms by environments."""

    title: str
    columns: list[tuple[str, str]]  # environment and its page
    rows: list[MatrixRow]
    best: list[str]  # the names of the best algorithms of each column

    @property
    def compared(self) -> bool:
        """Whether there is any verdict."""
        return any(row.against for row in self.rows)


@dataclass(frozen=True)
class Speed:
    """A line of the speed chart: multiples of SB3's timesteps/s."""

    name: str
    ratio: str
    interval: str  # the range over repeats
    width: float  # of the bar, percent
    peers: str  # what other libraries have, or empty


def pages(store: Store) -> list[Page]:
    deep = [pair for pair in store.found if pair.algo not in TABULAR]
    tabular = [pair for pair in store.found if pair.algo in TABULAR]
    rows, about = speeds(store)
    context = {
        "outcome": outcome(store.found),
        "matrices": [
            matrix(title, pairs)
            for title, pairs in (
                ("Which algorithm for which environment", deep),
                ("Tabular algorithms", tabular),
            )
            if pairs
        ],
        "signs": SIGNS,
        "speeds": rows,
        "speed_about": about,
        "chapters": [(page_of(c.file), c.title, c.about) for c in CHAPTERS],
    }
    about_page = "Scores of every algorithm on every environment, verdicts against SB3, and speed."
    page = Page(FILE, "All results", "results.html.j2", context, description=about_page)
    return [page, *environments_page(store.found)]


def matrix(title: str, found: Sequence[Pair]) -> Matrix:
    """The same cells as the first table of results/README.md."""
    rows = []
    for algo, cells in grid(found, cell).items():
        file = f"algos/{algo}.py"
        link = code.file_of(file) if file in code.paths() else ""
        rows.append(MatrixRow(shown(algo), link, cells, counted([c.word for c in cells])))
    columns = [(printable(env), environment_file(env)) for env in environments_of(found)]
    best = [", ".join(row.name for row in rows if row.cells[i].best) for i in range(len(columns))]
    return Matrix(title, columns, rows, best)


def shown(algo: str) -> str:
    return printable(display(algo))


def counted(words: Sequence[str]) -> str:
    return ", ".join(f"{words.count(word)} {word}" for word in SIGNS if word in words)


def cell(pair: Pair | None, algo: str, env: str, at: Standing) -> MatrixCell:
    """The cell of an algorithm and an environment."""
    if pair is None:
        if not applies(algo, env):
            return MatrixCell("no")
        return MatrixCell("missing" if is_due(algo, env) else "")
    href = f"{environment_file(env)}#algorithms={quote(algo)}"
    if pair.ours is None:
        return MatrixCell("missing", href)
    verdict, text = pair.verdict("auc"), score(pair.ours, at.budget)
    word = verdict.parity.word if verdict else ""
    return MatrixCell(
        "run",
        href,
        text,
        best=algo in at.leaders,
        word=word,
        sign=SIGNS.get(word, ""),
        budget=text_of(budget_text(pair.ours, at)),
        stale=any(map(is_stale, pair.headline)),
        few=any(len(r.seeds) < pair.requested_seeds(r) for r in pair.headline),
    )


def speeds(store: Store) -> tuple[list[Speed], dict[str, Any]]:
    """Ten seeds at once, as multiples of SB3, and what was measured on; empty without either."""
    path = find_file(store.results, "throughput.json")
    found: dict[str, dict[str, dict[str, Any]]] = {}
    about: dict[str, Any] = {}
    with left_out(path):
        stored = read(path, speed.STORED) if path.exists() else {}
        everywhere = speed.against_sb3(stored)
        found = {x: rows for x, rows in everywhere.items() if SUBJECTS[x].env == speed.ENV}
        for algo in [*found][-1:]:
            cpu = printable(stored[algo]["machine"]["cpu"])
            about = {"seeds": speed.SHOWN_SEEDS, "env": speed.ENV, "cpu": cpu}
    ours = {speed.label(name): rows[speed.OURS] for name, rows in found.items()}
    longest = max((row["ratio_high"] for row in ours.values()), default=1.0)
    shown = [
        Speed(
            name,
            f"{row['ratio']:.0f}",
            f"{row['ratio_low']:.1f} to {row['ratio_high']:.1f}",
            round(100 * max(0.0, row["ratio"]) / longest, 1) if longest > 0 else 0.0,
            speed.peers_text(rows),
        )
        for (name, row), rows in zip(ours.items(), found.values(), strict=True)
    ]
    return shown, about


@dataclass(frozen=True)
class Listed:
    """An environment in the list of environments."""

    name: str
    href: str
    algorithms: str
    best: str
    score: str


def environments_page(found: Sequence[Pair]) -> list[Page]:
    """The list of environments; none without runs."""
    rows = []
    for env in environments_of(found):
        here = [pair for pair in found if pair.env == env and pair.ours]
        at = standing(here)
        first = [shown(algo) for algo in sorted(at.leaders, key=place_of)]
        names = ", ".join(shown(pair.algo) for pair in here)
        file = environment_file(env)
        rows.append(Listed(printable(env), file, names, ", ".join(first), at.best))
    if not rows:
        return []
    about = "Learning curves of every seed on each environment, scores, and the origin of each run."
    context = {"rows": rows}
    file, template = "environments.html", "environments.html.j2"
    return [Page(file, "Environments", template, context, description=about)]
