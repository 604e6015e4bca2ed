"""Blocks as HTML: figures become charts, and links lead to the pages of the site.

All text is escaped here, once: `Markup.format` escapes what is put into a template of tags.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from markupsafe import Markup, escape

from manyseeds.benchmarks.chapters.blocks import (
    Block,
    Cell,
    Claim,
    Code,
    Figure,
    Fold,
    Heading,
    Inline,
    Item,
    Items,
    Lines,
    Link,
    Mark,
    Outcome,
    Sides,
    Strong,
    Table,
    Text,
    right_aligned,
    slug,
    text_of,
)
from manyseeds.benchmarks.web.figures import figure_json
from manyseeds.errors import printable

EMPTY = Markup()
LONG = 15  # rows of a table above which it is folded
LONG_TEXT = 60  # characters of a cell above which its column is not squeezed


class Writer:
    """HTML of blocks.

    targets: the site's page for a page of the report. charts: what the figures show, as
    static/charts.js draws them, in the order in which they were written.
    """

    def __init__(self, targets: Mapping[str, str]) -> None:
        self.targets = targets
        self.charts: list[dict[str, Any]] = []

    def blocks(self, blocks: Iterable[Block]) -> Markup:
        return Markup("\n").join(map(self.block, blocks))

    def fold(self, summary: str, blocks: Iterable[Block]) -> Markup:
        """Blocks that a click on the summary shows; a long table within is not folded again."""
        text = Markup("<details><summary>{}</summary>\n{}\n</details>")
        inner = (self.table(x) if isinstance(x, Table) else self.block(x) for x in blocks)
        return text.format(printable(summary), Markup("\n").join(inner))

    def block(self, block: Block) -> Markup:
        match block:
            case Heading():
                tag = Markup('<h{0} id="{1}">{2}</h{0}>')
                return tag.format(block.level, slug(block.text), printable(block.text))
            case Text():
                return Markup("<p>{}</p>").format(self.inline(block))
            case Items():
                return self.items(block)
            case Table() if len(block.rows) > LONG:
                names = ", ".join(map(text_of, block.columns))
                return self.fold(f"{len(block.rows)} rows: {names}", [block])
            case Table():
                return self.table(block)
            case Figure():
                return self.figure(block)
            case Fold():
                return self.fold(block.summary, block.blocks)
            case Claim():
                return self.claim(block)
            case Outcome():
                return Markup('<p class="outcome">{}</p>').format(self.inline(block.text))

    def claim(self, block: Claim) -> Markup:
        """A card: the claim, the verdict with its number, the figure, and the rest folded."""
        card = Markup(
            '<article class="claim">\n<p class="said">{claim} {source}</p>\n'
            '<p class="verdict-line"><b class="word" data-word="{word}">{word}</b> {number}</p>\n'
            "{figure}\n{details}\n</article>"
        )
        source = EMPTY
        if block.source:
            source = Markup('<small class="source">{}</small>').format(block.source)
        return card.format(
            claim=self.inline(block.claim),
            source=source,
            word=block.verdict,
            number=self.inline(block.number),
            figure=self.figure(block.figure) if block.figure else EMPTY,
            details=self.fold("Details", block.details) if block.details else EMPTY,
        )

    def figure(self, block: Figure) -> Markup:
        """The place of a chart, with its name until it is drawn."""
        self.charts.append(figure_json(block))
        place = Markup(
            '<div class="chart" data-chart="{number}" role="group" aria-label="{label}">'
            '<span class="chart-name">{label}</span></div>'
        )
        return place.format(number=len(self.charts) - 1, label=printable(block.label))

    def items(self, block: Items) -> Markup:
        lines = []
        for item in block.items:
            text = item.text if isinstance(item, Item) else item
            below = self.items(item.below) if isinstance(item, Item) else EMPTY
            lines.append(Markup("<li>{}{}</li>").format(self.inline(text), below))
        return Markup("<ul>\n{}\n</ul>").format(Markup("\n").join(lines))

    def table(self, block: Table) -> Markup:
        """A table that scrolls where it is wide."""
        right = right_aligned(block)
        head = EMPTY.join(
            Markup('<th scope="col"{}>{}</th>').format(classes(name, x), self.cell(name))
            for name, x in zip(block.columns, right, strict=True)
        )
        rows = Markup("\n").join(
            Markup("<tr>{}</tr>").format(
                EMPTY.join(
                    Markup("<td{}>{}</td>").format(classes(cell, x), self.cell(cell))
                    for cell, x in zip(row, right, strict=True)
                )
            )
            for row in block.rows
        )
        few = block.few_seeds
        note = Markup('\n<p class="note">{}</p>').format(few) if few else EMPTY
        table = Markup(
            '<div class="scroll" tabindex="0" role="group" aria-label="Table: {}">\n<table>\n'
            "<thead><tr>{}</tr></thead>\n<tbody>\n{}\n</tbody>\n</table>\n</div>{}"
        )
        name = ", ".join(text_of(x) for x in block.columns[:3])
        return table.format(name, head, rows, note)

    def cell(self, cell: Cell) -> Markup:
        """A cell. A side is not broken: it stands beside those of other cells."""
        if isinstance(cell, Sides):
            side = Markup('<span class="side">{}</span>')
            return Markup("<br>").join(side.format(self.inline(text)) for text in cell)
        if isinstance(cell, Lines):
            lines = Markup("<br>").join(map(self.inline, cell))
            return Markup('<div class="lines">{}</div>').format(lines)
        return self.inline(cell)

    def inline(self, inline: Inline) -> Markup:
        match inline:
            case str():
                return escape(printable(inline))
            case Code():
                return Markup("<code>{}</code>").format(printable(inline.text))
            case Strong():
                return Markup("<strong>{}</strong>").format(self.inline(inline.text))
            case Mark():
                text = Markup('<span id="{}">{}</span>')
                return text.format(inline.anchor, self.inline(inline.text))
            case Link():
                return self.link(inline)
            case _:
                return EMPTY.join(map(self.inline, inline))

    def link(self, link: Link) -> Markup:
        """A link, or its label alone where the site lacks what it leads to."""
        target = self.targets.get(link.page, "") if link.page else ""
        if link.anchor and (target or not (link.page or link.file)):
            target = f"{target}#{link.anchor}"
        label = self.inline(link.label)
        return Markup('<a href="{}">{}</a>').format(target, label) if target else label


def classes(cell: Cell, right: bool) -> Markup:
    """Of a cell: numbers stand at the right, a side in one line beside that of other cells, and
    long text has room.
    """
    names = {
        "number": right,
        "sides": isinstance(cell, Sides),
        "long": len(text_of(cell)) > LONG_TEXT and not isinstance(cell, Sides),
    }
    text = " ".join(name for name, is_so in names.items() if is_so)
    return Markup(' class="{}"').format(text) if text else EMPTY
