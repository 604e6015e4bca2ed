"""The documentation of the repository as pages: its Markdown, with links that lead on in the site.

Text between dollars is set as a formula by matplotlib, and becomes paths in the page: without a
network there is no script that could do it.
"""

from __future__ import annotations

import posixpath
import re
import tomllib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import pairwise
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import quote, unquote, urldefrag, urlsplit

from markdown_it import MarkdownIt
from markdown_it.renderer import RendererHTML
from markdown_it.rules_inline import StateInline
from markdown_it.token import Token
from markupsafe import Markup, escape

from manyseeds import plots
from manyseeds.benchmarks.chapters.blocks import slug
from manyseeds.benchmarks.web import code
from manyseeds.benchmarks.web.chapter import environment_file, page_of
from manyseeds.benchmarks.web.overview import FILE as RESULTS
from manyseeds.benchmarks.web.page import Page
from manyseeds.digest import ROOT

COPY = "static/copy.js"
PICTURES = "pictures"  # the folder of the site that has the documentation's images
LEARN = {f"{folder}/README.md": file for folder, file in code.LISTS.items()}
# Behind docs/ in the navigation: the page and its name there, where its heading does not say.
USE = {
    "README.md": ("readme.html", "README"),
    "benchmarks/CLUSTER.md": ("cluster.html", ""),
    "ARCHITECTURE.md": ("architecture.html", ""),
    "CONTRIBUTING.md": ("contributing.html", ""),
    "CHANGELOG.md": ("changelog.html", ""),
}

FORMULA = re.compile(r"\$\$(.+?)\$\$|\$(\S|\S[^$]*?\S)\$(?!\d)", re.DOTALL)
# What matplotlib does not know, in its words.
MATHTEXT = ((r"\\[bB]ig\b", ""), (r"\\le\b", r"\\leq"), (r"\\frac(\d)(\w)", r"\\frac{\1}{\2}"))
EM = 100  # units of a formula's path per em
DESCRIPTION = 160  # characters of a description that search engines show


@dataclass(frozen=True)
class Documentation:
    """Pages by path in the repository, and the files of their images by the place that the pages
    expect them in."""

    pages: dict[str, Page]
    pictures: dict[str, Path]

    @property
    def guides(self) -> list[Page]:
        return [page for path, page in self.pages.items() if path.startswith("docs/")]


@dataclass(frozen=True)
class Places:
    """Where links lead. documents: page by path in the repository. written: the other pages."""

    documents: Mapping[str, str]
    written: Collection[str]
    pictures: dict[str, Path] = field(default_factory=dict)  # filled by rendering

    def target(self, path: str, anchor: str) -> str:
        """The place of a file of the repository; empty where the site has none."""
        pure = PurePosixPath(path)
        if path in self.documents:
            page = self.documents[path]
        elif path in code.paths():
            page = code.file_of(path)
        elif pure.parts[:2] == ("results", "environments"):
            page = environment_file(pure.stem)
        elif path in ("results", "results/README.md"):
            page = RESULTS
        elif pure.parts[:1] == ("results",):
            page = page_of(pure.name)
            if page != f"{pure.stem}.html":  # a page of several chapters, or by another name
                anchor = anchor or pure.stem
        else:
            return f"{url}/blob/main/{quote(path)}" if (url := repository()) else ""
        if page not in self.written and page not in self.documents.values():
            return ""
        return f"{page}#{anchor}" if anchor else page


def documentation(written: Sequence[Page]) -> Documentation:
    """The pages of the repository's documents. written: the other pages of the site."""
    used = {f"docs/{path.name}": (f"{path.stem}.html", "") for path in ROOT.glob("docs/*.md")}
    files = {path: (file, "") for path, file in LEARN.items()} | dict(sorted(used.items())) | USE
    there = {path: both for path, both in files.items() if code.is_ours(ROOT / path)}
    documents = {path: file for path, (file, _) in there.items()}
    places = Places(documents, {page.file for page in written})
    pages = {path: document(path, *both, places) for path, both in there.items()}
    return Documentation(pages, places.pictures)


def document(path: str, file: str, name: str, places: Places) -> Page:
    """The page of a document. name: in the navigation; empty: its heading."""
    tokens = parser().parse((ROOT / path).read_text(encoding="utf-8", errors="replace"))
    title = next(texts(tokens, "h1"), file)
    body = tokens[3:] if tokens and tokens[0].tag == "h1" else tokens  # the template has the title
    context = {
        "body": Markup(Renderer(path, places).render(body, parser().options, {})),
        "headings": [(slug(text), text) for text in texts(tokens, "h2")],
    }
    group = "Learn" if path in LEARN else "Use"
    name = name or title
    about = description(name, [text for _, text in context["headings"]])
    return Page(file, name, "docs.html.j2", context, (COPY,), "", group, about)


def description(name: str, headings: Sequence[str]) -> str:
    """What a document is about, for search engines: as many of its headings as they show."""
    about = name
    for heading in headings:
        if len(about) + len(heading) > DESCRIPTION:
            break
        about += (": " if about == name else "; ") + heading
    return about


@cache
def repository() -> str:
    """The address of the repository, where pyproject.toml names one."""
    path = ROOT / "pyproject.toml"
    project = tomllib.loads(path.read_text())["project"] if path.is_file() else {}
    return str(project.get("urls", {}).get("Repository", "")).rstrip("/")


# ---- Markdown -----------------------------------------------------------------------------------


@cache
def parser() -> MarkdownIt:
    found = MarkdownIt("commonmark").enable("table")
    found.inline.ruler.before("escape", "formula", read_formula)
    return found


def texts(tokens: Sequence[Token], tag: str) -> Iterator[str]:
    """The text of each element of a kind, without markup and line breaks."""
    for token, content in pairwise(tokens):
        if token.tag == tag and token.nesting == 1:
            parts = (child for child in content.children or () if not child.nesting)
            yield "".join(child.content or " " for child in parts)


class Renderer(RendererHTML):
    """HTML of a document. Tags in it are shown as text, comments are left out."""

    def __init__(self, path: str, places: Places) -> None:
        super().__init__()
        self.folder, self.places = posixpath.dirname(path), places
        self.closing: list[str] = []  # tags of open links

    def html_inline(self, tokens: Sequence[Token], index: int, *_: Any) -> str:
        text = re.sub(r"<!--.*?-->", "", tokens[index].content, flags=re.DOTALL)
        return text if text == "<br>" else escape(text)

    def html_block(self, tokens: Sequence[Token], index: int, *_: Any) -> str:
        return self.html_inline(tokens, index)

    def formula(self, tokens: Sequence[Token], index: int, *_: Any) -> str:
        return formula(tokens[index].content, display=bool(tokens[index].block))

    def fence(self, tokens: Sequence[Token], index: int, *_: Any) -> str:
        """Code; commands of a shell have a button that copies them."""
        shown = f'<pre tabindex="0"><code>{escape(tokens[index].content.rstrip())}</code></pre>'
        if tokens[index].info != "sh":
            return f"{shown}\n"
        button = '<button type="button" data-copy hidden>Copy</button>'
        return f'<div class="command">{shown}{button}</div>\n'

    def code_block(self, tokens: Sequence[Token], index: int, *_: Any) -> str:
        return self.fence(tokens, index)

    def image(self, tokens: Sequence[Token], index: int, *_: Any) -> str:
        label = escape(tokens[index].content)
        source = ROOT / self.resolved(str(tokens[index].attrs["src"]))
        if not code.is_ours(source):
            return f'<span class="note">{label}</span>'
        place = f"{PICTURES}/{source.name}"
        self.places.pictures[place] = source
        return f'<img class="picture" src="{escape(quote(place))}" alt="{label}" loading="lazy">'

    def link_open(self, tokens: Sequence[Token], index: int, *_: Any) -> str:
        href = str(tokens[index].attrs["href"])
        if urlsplit(href).scheme in ("http", "https") or href.startswith("#"):
            target = href
        else:
            file, anchor = urldefrag(href)
            target = self.places.target(self.resolved(file), anchor)
        self.closing.append("</a>" if target else "</span>")
        return f'<a href="{escape(target)}">' if target else '<span class="file">'

    def link_close(self, *_: Any) -> str:
        return self.closing.pop()

    def resolved(self, href: str) -> str:
        """A link's path from the root of the repository."""
        return posixpath.normpath(posixpath.join(self.folder, unquote(href)))

    def th_open(self, tokens: Sequence[Token], index: int, *_: Any) -> str:
        if not tokens[index + 1].content:
            tokens[index].tag = tokens[index + 2].tag = "td"  # a header without text is none
        return self.renderToken(tokens, index, parser().options, {})

    def table_open(self, *_: Any) -> str:
        return '<div class="scroll" tabindex="0" role="group" aria-label="Table">\n<table>\n'

    def table_close(self, *_: Any) -> str:
        return "</table>\n</div>\n"

    def heading_open(self, tokens: Sequence[Token], index: int, *_: Any) -> str:
        return f'<{tokens[index].tag} id="{escape(slug(tokens[index + 1].content))}">'


# ---- Formulas -----------------------------------------------------------------------------------


def read_formula(state: StateInline, silent: bool) -> bool:
    """A rule of markdown-it: `$...$` is a formula of the line, `$$...$$` one that stands alone."""
    found = FORMULA.match(state.src, state.pos)
    if not found:
        return False
    if not silent:
        token = state.push("formula", "", 0)
        token.content, token.block = found[1] or found[2], found[1] is not None
    state.pos = found.end()
    return True


def formula(text: str, display: bool) -> str:
    """A formula as SVG, `display`: on lines of its own, broken where there is much space."""
    if not display:
        return drawn(text)
    parts = "\n".join(drawn(part) for part in text.split(r"\qquad"))
    return f'<span class="formula" tabindex="0" role="group" aria-label="Equation">{parts}</span>'


def drawn(text: str) -> str:
    """A formula as an image in the text's colour; as code where matplotlib cannot read it."""
    for pattern, word in MATHTEXT:
        text = re.sub(pattern, word, text)
    text = " ".join(text.split())
    try:
        path, left, bottom, right, top = plots.formula(text, EM)
    except ValueError:
        return f"<code>{escape(text)}</code>"
    width, height = right - left, top - bottom
    return (
        f'<svg class="math" role="img" aria-label="{escape(text)}" '
        f'viewBox="{left:.0f} {-top:.0f} {width:.0f} {height:.0f}" '
        f'style="width: {width / EM:.2f}em; height: {height / EM:.2f}em; '
        f'vertical-align: {bottom / EM:.2f}em"><path transform="scale(1 -1)" d="{path}"/></svg>'
    )
