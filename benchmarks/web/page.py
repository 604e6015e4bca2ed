"""A page of the site: its file, template and data, and how it becomes HTML.

Templates are in templates/ (Jinja2, autoescaped), what they link in static/ and vendor/. A page is
opened from a file, so scripts are classic ones and data are inside the page.
"""

from __future__ import annotations

import base64
import gzip
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template
from markupsafe import Markup

HERE = Path(__file__).parent
CHARTS = (  # of a page with charts
    "vendor/d3.min.js",
    "vendor/plot.min.js",
    "static/site.js",
    "static/plotting.js",
)

GROUPS = ("Learn", "Results", "Use")  # of the navigation
SUMMARY = (
    "Reinforcement-learning algorithms in one readable file each, all seeds trained as one batch, "
    "compared with stable-baselines3."
)


@dataclass(frozen=True)
class Page:
    """A page that is to be written.

    template: in templates/, which extends base.html.j2. context: what the template shows. scripts:
    files of vendor/ and static/, as the page links them, in order. part_of: the file of the page
    that the navigation marks; empty: its own. group: of GROUPS, where the navigation lists the
    page; empty: nowhere. description: a sentence for search engines and links to the page.
    """

    file: str
    title: str
    template: str
    context: dict[str, Any] = field(default_factory=dict)
    scripts: tuple[str, ...] = ()
    part_of: str = ""
    group: str = "Results"
    description: str = ""


def packed(content: Any) -> str:
    """JSON, compressed, as text that HTML needs not escape; `unpack` in site.js reads it.

    The same content gives the same text.
    """
    text = json.dumps(content, separators=(",", ":"), allow_nan=False)
    return base64.b64encode(gzip.compress(text.encode(), mtime=0)).decode()


def inline_json(content: Any) -> Markup:
    """JSON for the inside of a <script>: no text in it can end the element."""
    text = json.dumps(content, separators=(",", ":"), allow_nan=False)
    return Markup(text.replace("<", "\\u003c"))


@cache
def templates() -> Environment:
    """The templates: everything is escaped, and a name that is not given raises."""
    environment = Environment(
        loader=FileSystemLoader(HERE / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["packed"] = packed
    environment.filters["inline_json"] = inline_json
    return environment


def html(page: Page, pages: Sequence[Page]) -> str:
    """The page. pages: all of the site, for the navigation."""
    written = {other.file for other in pages}
    template = templates().get_template(page.template)
    context: dict[str, Any] = {
        **page.context,
        "title": page.title,
        "description": page.description or f"{page.title}. {SUMMARY}",
        "navigation": navigation(pages),
        "group": page.group,
        "written": written,
        "here": page.part_of or page.file,
        "scripts": page.scripts,
    }
    return template.render(context, policy=policy(template, context))


def navigation(pages: Sequence[Page]) -> dict[str, list[tuple[str, str]]]:
    """File and title of the pages of each group, in their order."""
    listed = {
        group: [(p.file, p.title) for p in pages if p.group == group and not p.part_of]
        for group in GROUPS
    }
    return {group: found for group, found in listed.items() if found}


def policy(template: Template, context: dict[str, Any]) -> str:
    """The Content-Security-Policy of a page: no network, and no script but the site's own.

    Of scripts inside the page only those of the template's block `scripts` run, known by their
    digest: were stored text ever to become markup somewhere, it would still do nothing.
    """
    block = template.blocks.get("scripts")
    text = "".join(block(template.new_context(context))) if block else ""
    inline = re.findall(r"<script>(.*?)</script>", text, re.DOTALL)
    digests = [base64.b64encode(sha256(x.encode()).digest()).decode() for x in inline]
    scripts = " ".join(["'self'", "file:", *(f"'sha256-{digest}'" for digest in digests)])
    return (
        f"default-src 'none'; script-src {scripts}; style-src 'self' file: 'unsafe-inline'; "
        "img-src 'self' file: data: blob:; media-src 'self' file:; base-uri 'none'"
    )
