"""The report's Markdown as HTML for the site: figures become charts, links lead to its pages.

Of HTML within the Markdown only what the report itself writes is let through, tag by tag: all else
is shown as text, whatever a store has in it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import unquote

from markdown_it import MarkdownIt
from markdown_it.renderer import RendererHTML
from markdown_it.token import Token
from markupsafe import Markup, escape

OWN_TAGS = re.compile(
    r"<details><summary>[^<>]*</summary>|<br>|</?(?:sub|code|details)>|<a id=\"[\w.-]+\">|</a>"
)


class Renderer(RendererHTML):
    """HTML of Markdown tokens. charts: the number of each figure on the page by its file's name."""

    charts: Mapping[str, int]
    targets: Mapping[str, str]

    def html_inline(self, tokens: Sequence[Token], index: int, *_: Any) -> str:
        return own_tags(tokens[index].content)

    def html_block(self, tokens: Sequence[Token], index: int, *_: Any) -> str:
        return own_tags(tokens[index].content)

    def image(self, tokens: Sequence[Token], index: int, *_: Any) -> str:
        token = tokens[index]
        name = PurePosixPath(unquote(str(token.attrs["src"]))).name
        if name not in self.charts:
            return ""
        label = escape(token.content)
        return (
            f'<span class="chart" data-chart="{self.charts[name]}" role="group" '
            f'aria-label="{label}"><span class="chart-name">{label}</span></span>'
        )

    def link_open(self, tokens: Sequence[Token], index: int, *_: Any) -> str:
        target = self.target(str(tokens[index].attrs["href"]))
        return f'<a href="{escape(target)}">' if target else "<span>"

    def link_close(self, tokens: Sequence[Token], index: int, *_: Any) -> str:
        opened = index - 1
        depth = 1
        while depth:
            depth += {"link_close": 1, "link_open": -1}.get(tokens[opened].type, 0)
            opened -= 1
        target = self.target(str(tokens[opened + 1].attrs["href"]))
        return "</a>" if target else "</span>"

    def target(self, href: str) -> str:
        """Where a link of the report leads on the site; empty for what the site lacks."""
        path, _, anchor = href.partition("#")
        file = self.targets.get(PurePosixPath(unquote(path)).name, "")
        if not path or file:
            return f"{file}#{anchor}" if anchor else file
        return ""

    def table_open(self, *_: Any) -> str:
        return '<div class="scroll" tabindex="0" role="group" aria-label="Table">\n<table>\n'

    def table_close(self, *_: Any) -> str:
        return "</table>\n</div>\n"

    def heading_open(self, tokens: Sequence[Token], index: int, *_: Any) -> str:
        text = tokens[index + 1].content
        return f'<{tokens[index].tag} id="{escape(slug(text))}">'


def own_tags(text: str) -> str:
    """Text with the report's own tags, and all others escaped."""
    parts, end = [], 0
    for tag in OWN_TAGS.finditer(text):
        parts += [str(escape(text[end : tag.start()])), tag[0]]
        end = tag.end()
    return "".join((*parts, str(escape(text[end:]))))


def slug(heading: str) -> str:
    """The anchor of a heading, as GitHub makes it."""
    return re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")


def render(text: str, charts: Mapping[str, int], targets: Mapping[str, str]) -> Markup:
    """HTML of the report's Markdown.

    charts: of the page, file name of a figure to its number. targets: file name of a page of the
    report to the page of the site.
    """
    parser = MarkdownIt("commonmark", renderer_cls=Renderer).enable("table")
    assert isinstance(parser.renderer, Renderer)
    parser.renderer.charts, parser.renderer.targets = charts, targets
    return Markup(parser.render(text))
