"""The chapters of the report as pages: the same text and numbers, figures as charts."""

from __future__ import annotations

import contextlib
import html
import io
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from manyseeds import plots
from manyseeds.benchmarks.chapters import environment_pages
from manyseeds.benchmarks.chapters.contents import CHAPTERS, Chapter, Store
from manyseeds.benchmarks.web import transcripts
from manyseeds.benchmarks.web.figures import figure_json
from manyseeds.benchmarks.web.markdown import render
from manyseeds.benchmarks.web.page import CHARTS, Page
from manyseeds.plots import KeptFigure

TOGETHER = {"planning.md": ("planning.md", "prediction.md", "cliff.md")}  # on one page
TITLES = {"planning.md": "Planning and prediction"}
FILES = {"environments.md": "native-environments.html"}  # environments.html lists our own pages
TABLES = "static/tables.js"
SCRIPTS = (*CHARTS, "static/charts.js", TABLES)
LANGUAGE = "language-models.md"


@dataclass(frozen=True)
class Section:
    """A chapter on a page."""

    title: str
    anchor: str  # the name of the chapter's file, which links of the report give
    body: Markup

    @property
    def headings(self) -> list[tuple[str, Markup]]:
        """Anchor and text of the headings."""
        found = re.findall(r'<h2 id="([^"]*)">(.*?)</h2>', self.body)
        return [(html.unescape(anchor), Markup(text)) for anchor, text in found]


def page_of(file: str) -> str:
    """The page of the site that has a chapter."""
    names = (first for first, files in TOGETHER.items() if file in files)
    return FILES.get(file) or next(names, file).replace(".md", ".html")


def environment_file(env: str) -> str:
    """The page of the site for an environment."""
    name = environment_pages.page_name(env).removeprefix(f"{environment_pages.FOLDER}/")
    return f"environment-{name.removesuffix('.md')}.html"


def targets_of(store: Store) -> dict[str, str]:
    """Where links between pages of the report lead on the site."""
    found = {chapter.file: page_of(chapter.file) for chapter in CHAPTERS}
    for pair in store.found:
        name = environment_pages.page_name(pair.env).rpartition("/")[2]
        found[name] = environment_file(pair.env)
    return {**found, "README.md": "index.html"}


def written(write: Callable[[], str]) -> tuple[str, dict[str, KeptFigure]]:
    """Markdown of a chapter and its figures; no file is written.

    Chapters also print tables for a terminal: of that, what was left out is of interest here.
    """
    printed = io.StringIO()
    with plots.kept() as figures, contextlib.redirect_stdout(printed):
        text = write()
    for line in printed.getvalue().splitlines():
        if line.startswith("left out: "):
            print(line)
    return text, figures


def pages(store: Store) -> list[Page]:
    """A page for each chapter that has content, or for some chapters together."""
    found = []
    joined = {file for files in TOGETHER.values() for file in files}
    by_file = {chapter.file: chapter for chapter in CHAPTERS}
    for chapter in CHAPTERS:
        if chapter.file in joined and chapter.file not in TOGETHER:
            continue
        files = TOGETHER.get(chapter.file, (chapter.file,))
        if page := chapter_page([by_file[file] for file in files], store):
            found.append(page)
    return found


def chapter_page(chapters: Sequence[Chapter], store: Store) -> Page | None:
    """The page of some chapters, named after the first; None without content."""
    sections: list[Section] = []
    charts: list[dict[str, Any]] = []
    for chapter in chapters:
        text, figures = written(lambda chapter=chapter: chapter.write(store))  # type: ignore[misc]
        if not text:
            continue
        places = {name: len(charts) + i for i, name in enumerate(figures)}
        charts += [figure_json(figure) for figure in figures.values()]
        body = render(text, places, targets_of(store))
        sections.append(Section(chapter.title, chapter.file.removesuffix(".md"), body))
    if not sections:
        return None
    file = chapters[0].file
    title = TITLES.get(file, sections[0].title)
    context: dict[str, Any] = {"sections": sections, "charts": charts}
    scripts: tuple[str, ...] = SCRIPTS if charts else (TABLES,)
    template = "chapter.html.j2"
    if file == LANGUAGE and (found := transcripts.of(store)):
        template = "language.html.j2"
        context["transcripts"] = found
        scripts = (*SCRIPTS, "static/transcripts.js")
    return Page(page_of(file), title, template, context, scripts)
