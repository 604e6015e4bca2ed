"""Pages as Markdown, with the files that they link: figures, and tables as CSV and LaTeX."""

from __future__ import annotations

import html
import os
import re
from collections.abc import Iterable, Sequence
from itertools import groupby
from pathlib import Path
from urllib.parse import quote

import pandas as pd

from manyseeds import plots
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
    Page,
    Sides,
    Strong,
    Table,
    Text,
    cells_of,
    right_aligned,
    text_of,
    walk,
)
from manyseeds.errors import printable
from manyseeds.writing import csv_bytes, write_bytes

# What LaTeX reads as something else, and what its fonts lack.
LATEX = {
    **{"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"},
    **{c: f"\\{c}" for c in "&%$#_{}"},
    **{"<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}"},
    **{"▲": r"$\uparrow$", "▼": r"$\downarrow$", "≡": r"$\equiv$", "⏎": r"$\hookleftarrow$"},
    **{"†": r"\dag{}", "‡": r"\ddag{}", "\N{GREEK SMALL LETTER LAMDA}": r"$\lambda$"},
}


def write_files(blocks: Iterable[Block], results: Path) -> None:
    """Draw the figures of a page to results/plots, write its tables to results/tables."""
    for block in walk(blocks):
        if isinstance(block, Figure):
            path = results / "plots" / f"{block.name}.svg"
            path.parent.mkdir(parents=True, exist_ok=True)
            getattr(plots, block.kind)(path=path, **block.data)
        elif isinstance(block, Table) and block.name:
            (results / "tables").mkdir(parents=True, exist_ok=True)
            header, rows = [text_of(name) for name in block.columns], cells_of(block)
            frame = csv_bytes(pd.DataFrame(rows, columns=header))
            write_bytes(results / "tables" / f"{block.name}.csv", frame)
            tex = latex_table(header, rows).encode()
            write_bytes(results / "tables" / f"{block.name}.tex", tex)


def markdown(page: Page, results: Path) -> str:
    """The content of a page, without its title. results: the folder that the page is written to."""
    return Writer(results, (results / page.file).parent).blocks(page.blocks)


class Writer:
    """Markdown of blocks. results: the folder of the report. folder: of the page, from which links
    are seen; it may be another one than of the report."""

    def __init__(self, results: Path, folder: Path) -> None:
        self.results, self.folder = results, folder

    def blocks(self, blocks: Iterable[Block]) -> str:
        return "\n\n".join(filter(None, map(self.block, blocks)))

    def block(self, block: Block) -> str:
        match block:
            case Heading():
                return f"{'#' * block.level} {escape(block.text)}"
            case Text():
                return self.inline(block)
            case Items():
                return self.items(block)
            case Table():
                return self.table(block)
            case Figure():
                path = self.results / "plots" / f"{block.name}.svg"
                return f"![{escape(block.label)}]({self.path(path)})"
            case Fold():
                return fold(block.summary, self.blocks(block.blocks))
            case Claim():
                return self.claim(block)
            case Outcome():
                return f"**{self.inline(block.text)}**"

    def claim(self, block: Claim) -> str:
        """The claim and the verdict in two lines, the figure, and the rest folded."""
        source = f" ({escape(block.source)})" if block.source else ""
        number = f": {self.inline(block.number)}" if block.number else ""
        parts = [
            f"{self.inline(block.claim)}{source}",
            f"**{block.verdict[0].upper()}{block.verdict[1:]}**{number}",
        ]
        if block.figure:
            parts.append(self.block(block.figure))
        if block.details:
            parts.append(fold("Details", self.blocks(block.details)))
        return "\n\n".join(parts)

    def items(self, block: Items, indent: str = "") -> str:
        lines = []
        for item in block.items:
            text = item.text if isinstance(item, Item) else item
            lines.append(f"{indent}- {self.inline(text)}")
            if isinstance(item, Item):
                lines.append(self.items(item.below, indent + "  "))
        return "\n".join(lines)

    def table(self, block: Table) -> str:
        """The table, with a line below it that links its files."""
        align = ["---:" if x else "---" for x in right_aligned(block)]
        header = [self.cell(name) for name in block.columns]
        lines = [header, align, *([self.cell(x) for x in row] for row in block.rows)]
        text = "\n".join(f"| {' | '.join(line)} |" for line in lines)
        notes = [escape(block.few_seeds)] if block.few_seeds else []
        if block.name:
            stem = self.results / "tables" / block.name
            files = (f"[{kind}]({self.path(Path(f'{stem}.{end}'))})" for kind, end in FILES)
            notes.append(f"This table as {', '.join(files)}.")
        return text + (f"\n\n<sub>{' '.join(notes)}</sub>" if notes else "")

    def cell(self, cell: Cell) -> str:
        """A cell in one line. Long sides are not broken: they stand beside those of others."""
        if isinstance(cell, Sides):
            sides = (self.inline(side) for side in cell)
            return "<br>".join(re.sub(r"(?<!<a) ", "\N{NO-BREAK SPACE}", side) for side in sides)
        if isinstance(cell, Lines):
            return "<br>".join(map(self.inline, cell))
        return self.inline(cell)

    def inline(self, inline: Inline) -> str:
        match inline:
            case str():
                return escape(inline)
            case Code():
                return code(inline.text)
            case Strong():
                return f"**{text}**" if (text := self.inline(inline.text)) else ""
            case Mark():
                return f'<a id="{html.escape(inline.anchor)}"></a>{self.inline(inline.text)}'
            case Link():
                label = inline.label
                text = code(label.text) if isinstance(label, Code) else escape(label, IN_LABEL)
                return f"[{text}]({self.target(inline)})"
            case _:
                groups = groupby(inline, key=lambda part: isinstance(part, str))
                parts = (["".join(x)] if literal else x for literal, x in groups)  # type: ignore[arg-type]
                return "".join(self.inline(part) for group in parts for part in group)

    def target(self, link: Link) -> str:
        """Where a link leads, as seen from the page."""
        path = link.file or (self.results / link.page if link.page else None)
        anchor = f"#{quote(link.anchor)}" if link.anchor else ""
        return f"{self.path(path) if path else ''}{anchor}"

    def path(self, path: Path) -> str:
        return quote(os.path.relpath(path, self.folder))


FILES = (("CSV", "csv"), ("LaTeX", "tex"))


# A bracket is part of a link only before one of `([:`, of a footnote before `^`, and of a picture
# behind `!`, which a link may follow; within a link's label every one counts.
SPECIAL = r"[\\`*<>|&#~$]|!(?=\[|$)"
IN_TEXT, IN_LABEL = rf"{SPECIAL}|\](?=[(\[:])|\[(?=\^)", rf"{SPECIAL}|[\[\]]"


def escape(text: str, special: str = IN_TEXT) -> str:
    """Text as text in Markdown, in the cell of a table too: no markup, no HTML, one line."""
    return re.sub(special, r"\\\g<0>", printable(text))


def code(text: str) -> str:
    """Text as a code span, in the cell of a table too."""
    shown = printable(text)
    if "|" in shown:  # would end a cell, and a backslash before it is shown outside of tables
        return f"<code>{escape(shown)}</code>"
    fence = "`" * (1 + max(map(len, re.findall("`+", shown)), default=0))
    pad = " " if len(fence) > 1 or not shown.strip() else ""
    return f"{fence}{pad}{shown}{pad}{fence}" if shown else ""


def fold(summary: str, content: str) -> str:
    """Markdown that a reader opens by a click."""
    title = re.sub(r"[\[\]`*_]", lambda c: f"&#{ord(c[0])};", html.escape(printable(summary)))
    return f"<details><summary>{title}</summary>\n\n{content}\n\n</details>"


# ---- LaTeX ----------------------------------------------------------------------------------


def latex_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A tabular with the rules of booktabs, every cell escaped."""
    align = "".join("r" if name == "n" else "l" for name in header)
    lines = [" & ".join(map(latex, row)) + r" \\" for row in (header, *rows)]
    body = "\n".join(lines[1:])
    return (
        f"% \\usepackage{{booktabs}}\n\\begin{{tabular}}{{{align}}}\n\\toprule\n{lines[0]}\n"
        f"\\midrule\n{body}\n\\bottomrule\n\\end{{tabular}}\n"
    )


def latex(text: str) -> str:
    """Text as LaTeX; a bracket at the start would be read as an option of the row before."""
    escaped = "".join(LATEX.get(c, c) for c in text)
    return f"{{{escaped[0]}}}{escaped[1:]}" if escaped[:1] in ("[", "*") else escaped
