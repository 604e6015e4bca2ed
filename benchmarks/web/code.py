"""The algorithms' files as pages: the site has the code that its numbers are of."""

from __future__ import annotations

import ast
import contextlib
from functools import cache
from pathlib import Path

from markupsafe import Markup, escape
from pygments import lex
from pygments.lexers import PythonLexer
from pygments.token import Comment, Keyword, Name, String

from manyseeds.benchmarks.experiments import catalog
from manyseeds.benchmarks.web.page import Page
from manyseeds.digest import ROOT

# Kinds of tokens and their class in docs.css; the first one counts.
KINDS = {
    **{String.Doc: "", String: "s", Comment: "c", Keyword: "k"},
    **{Name.Function: "n", Name.Class: "n"},
}
# The page that lists the files of a folder, which the navigation marks.
LISTS = {"algos": "reading-path.html", "llm_track": "language-methods.html"}


@cache
def paths() -> list[str]:
    """The files of all algorithms, as paths in the repository."""
    found = [f"{room}/{name}.py" for room in LISTS for name in catalog.names(room)]
    return [path for path in found if is_ours(ROOT / path)]


def is_ours(path: Path) -> bool:
    """Whether a path is that of a file of the repository; a link may lead out of it."""
    return path.is_file() and ROOT in path.resolve().parents


def file_of(path: str) -> str:
    """The page of a file: `code-algos-ppo.html`."""
    return f"code-{path.removesuffix('.py').replace('/', '-')}.html"


def pages() -> list[Page]:
    return [page(path) for path in paths()]


def page(path: str) -> Page:
    text, about = (ROOT / path).read_text(encoding="utf-8", errors="replace"), ""
    with contextlib.suppress(SyntaxError, ValueError):  # somebody is writing it
        about = (ast.get_docstring(ast.parse(text)) or "").partition("\n")[0]
    part_of = LISTS[path.partition("/")[0]]
    context = {"code": highlighted(text)}
    return Page(file_of(path), path, "code.html.j2", context, (), part_of, "Learn", about)


def highlighted(text: str) -> Markup:
    """Python code with its comments, strings, keywords and definitions marked."""
    parts = []
    for kind, part in lex(text, PythonLexer()):
        name = next((name for known, name in KINDS.items() if kind in known), "")
        shown = escape(part)
        parts.append(f'<span class="{name}">{shown}</span>' if name else shown)
    return Markup("".join(parts))
