"""The chapters of the report as pages: the same blocks, figures as charts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from manyseeds.benchmarks.chapters.blocks import Heading, slug
from manyseeds.benchmarks.chapters.contents import CHAPTERS, Chapter
from manyseeds.benchmarks.chapters.environment_pages import FOLDER, page_name
from manyseeds.benchmarks.store.whole import Store, progress
from manyseeds.benchmarks.web import transcripts
from manyseeds.benchmarks.web.html import Writer
from manyseeds.benchmarks.web.page import CHARTS, Page

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
    headings: list[tuple[str, str]]  # anchor and text


def page_of(file: str) -> str:
    """The page of the site that has a chapter."""
    names = (first for first, files in TOGETHER.items() if file in files)
    return FILES.get(file) or next(names, file).replace(".md", ".html")


def environment_file(env: str) -> str:
    """The page of the site for an environment."""
    name = page_name(env).removeprefix(f"{FOLDER}/")
    return f"environment-{name.removesuffix('.md')}.html"


def targets_of(store: Store) -> dict[str, str]:
    """Where links between pages of the report lead on the site."""
    found = {chapter.file: page_of(chapter.file) for chapter in CHAPTERS}
    environments = {page_name(pair.env): environment_file(pair.env) for pair in store.found}
    return {**found, **environments, "README.md": "results.html"}


def pages(store: Store) -> list[Page]:
    """A page for each chapter that has content, or for some chapters together."""
    found = []
    joined = {file for files in TOGETHER.values() for file in files}
    by_file = {chapter.file: chapter for chapter in CHAPTERS}
    for chapter in progress(CHAPTERS, len(CHAPTERS), "chapters"):
        if chapter.file in joined and chapter.file not in TOGETHER:
            continue
        files = TOGETHER.get(chapter.file, (chapter.file,))
        if page := chapter_page([by_file[file] for file in files], store):
            found.append(page)
    return found


def chapter_page(chapters: Sequence[Chapter], store: Store) -> Page | None:
    """The page of some chapters, named after the first; None without content."""
    sections: list[Section] = []
    abouts: list[str] = []
    writer = Writer(targets_of(store))
    for chapter in chapters:
        if blocks := chapter.blocks(store):
            headings = [
                (slug(x.text), x.text) for x in blocks if isinstance(x, Heading) and x.level == 2
            ]
            abouts.append(chapter.about)
            name = chapter.file.removesuffix(".md")
            sections.append(Section(chapter.title, name, writer.blocks(blocks), headings))
    if not sections:
        return None
    file = chapters[0].file
    title = TITLES.get(file, sections[0].title)
    context: dict[str, Any] = {"sections": sections, "charts": writer.charts}
    scripts: tuple[str, ...] = SCRIPTS if writer.charts else (TABLES,)
    template = "chapter.html.j2"
    if file == LANGUAGE and (found := transcripts.of(store)):
        template = "language.html.j2"
        context["transcripts"] = found
        scripts = (*SCRIPTS, "static/transcripts.js")
    about = f"{title}: {'; '.join(abouts)}."
    return Page(page_of(file), title, template, context, scripts, description=about)
