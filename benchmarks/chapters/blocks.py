"""What a page is made of: blocks of data. Renderers write them as Markdown, HTML, CSV and LaTeX.

All text is literal, stored text too: each renderer escapes it once. What is more than text, a link
or code, is an object of its own. `text_of` gives the plain text of a piece, `cells_of` that of a
table.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

from manyseeds.errors import printable
from manyseeds.stats import coverage_note

# ---- Pieces of text -------------------------------------------------------------------------


@dataclass(frozen=True)
class Code:
    """A command, a name or a file, in the font of code."""

    text: str


@dataclass(frozen=True)
class Strong:
    """What a reader should see first."""

    text: Inline


@dataclass(frozen=True)
class Link:
    """A link to a page of the report or to a file.

    page: as seen from the folder of the results, `environments/CartPole-v1.md`; empty: this page.
    anchor: of a heading or of a `Mark`. file: of the checkout or the store, which the site does not
    have: it shows the label alone.
    """

    label: str | Code
    page: str = ""
    anchor: str = ""
    file: Path | None = None


@dataclass(frozen=True)
class Mark:
    """A place in a page that links lead to; the text that stands there."""

    anchor: str
    text: Inline


Inline = str | Code | Strong | Link | Mark | tuple["Inline", ...]


class Lines(tuple[Inline, ...]):
    """A cell with several lines."""

    def __new__(cls, *lines: Inline) -> Lines:
        return super().__new__(cls, lines)


class Sides(NamedTuple):
    """A cell with a line for our run and one for the baseline's: two rows of a CSV file."""

    ours: Inline
    theirs: Inline


Cell = Inline | Lines | Sides
Rows = Sequence[Sequence[Cell]]


def text_of(inline: Cell) -> str:
    """The text of a piece without its markup, printable."""
    if isinstance(inline, str):
        return printable(inline)
    if isinstance(inline, Lines | Sides):
        return "; ".join(map(text_of, inline))
    if isinstance(inline, tuple):
        return "".join(map(text_of, inline))
    return text_of(inline.label if isinstance(inline, Link) else inline.text)


def joined(parts: Iterable[Inline], separator: str = ", ") -> Inline:
    """The parts with a separator between them."""
    found: list[Inline] = []
    for part in parts:
        found += [separator, part] if found else [part]
    return tuple(found)


def slug(heading: str) -> str:
    """The anchor of a heading, as GitHub makes it."""
    return re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")


# ---- Blocks ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Heading:
    """The title of a section; its anchor is `slug` of its text. level: 2 or 3."""

    text: str
    level: int = 2


class Text(tuple[Inline, ...]):
    """A paragraph."""

    def __new__(cls, *parts: Inline) -> Text:
        return super().__new__(cls, parts)


@dataclass(frozen=True)
class Item:
    """An item of a list with a list of its own."""

    text: Inline
    below: Items


@dataclass(frozen=True)
class Items:
    """A list."""

    items: Sequence[Inline | Item]


@dataclass(frozen=True)
class Table:
    """A table. name: of its files tables/NAME.csv and .tex; empty: it has none. Raises ValueError
    for a row of another length."""

    name: str
    columns: Sequence[Cell]
    rows: Rows

    def __post_init__(self) -> None:
        if any(len(row) != len(self.columns) for row in self.rows):
            raise ValueError("a row has not as many cells as there are columns")

    @property
    def few_seeds(self) -> str:
        """What the intervals are worth that stand beside few seeds (column `n`); mostly empty."""
        header = [text_of(x) for x in self.columns]
        if "n" not in header or not any("[95%]" in name for name in header):
            return ""
        i = header.index("n")
        # `30`, `30 of 60`, or `200 x 5`: configurations and seeds.
        counts = (re.fullmatch(r"(?:\d+ x )?(\d+)( of \d+)?", row[i]) for row in cells_of(self))
        return coverage_note(int(count[1]) for count in counts if count)


@dataclass(frozen=True)
class Figure:
    """A figure. name: of its file in plots/. label: what it shows. kind: the function of
    `manyseeds.plots` that draws it, and data its arguments, the path excepted."""

    name: str
    label: str
    kind: str
    data: Mapping[str, Any]


def curves(
    name: str,
    label: str,
    panels: Mapping[str, Any],
    xlabel: str = "timesteps per seed",
    ylabel: str = "",
    **more: Any,
) -> Figure:
    """Means over seeds with their intervals: a panel per title, a line per name."""
    axes = {"xlabel": xlabel, "ylabel": ylabel, "legend": "mean over seeds, 95% interval"}
    return Figure(name, label, "lines", {"panels": panels, **axes, **more})


@dataclass(frozen=True)
class Fold:
    """Blocks that a reader opens by a click on the summary."""

    summary: str
    blocks: Sequence[Block]


ClaimWord = Literal["holds", "does not hold", "not shown", "in part", "not tested"]


OURS = "our own question"  # how the source begins of a claim that no paper makes


@dataclass(frozen=True)
class Claim:
    """What a paper says, and what was found.

    number: the one that the verdict rests on, with its interval. details: tables and conditions,
    which are folded. source: the paper; `OURS` or empty where it is none's.
    """

    claim: Inline
    verdict: ClaimWord
    number: Inline = ""
    figure: Figure | None = None
    details: Sequence[Block] = field(default=())
    source: str = ""


@dataclass(frozen=True)
class Outcome:
    """The sentence that a page is opened for."""

    text: Inline


Block = Heading | Text | Items | Table | Figure | Fold | Claim | Outcome


@dataclass(frozen=True)
class Page:
    """A page of the report. file: as seen from the folder of the results. about: what the page that
    lists it says of it, and search engines show."""

    file: str
    title: str
    blocks: Sequence[Block]
    about: str = ""


def sections(titled: Mapping[str, Iterable[Block]]) -> Iterator[Block]:
    """The sections that have blocks, each below its title."""
    for title, section in titled.items():
        if blocks := [*section]:
            yield Heading(title)
            yield from blocks


def walk(blocks: Iterable[Block]) -> Iterator[Block]:
    """All blocks, those within others too, in their order on the page."""
    for block in blocks:
        yield block
        if isinstance(block, Fold):
            yield from walk(block.blocks)
        elif isinstance(block, Claim):
            yield from walk([*([block.figure] if block.figure else []), *block.details])


MOST_ROWS = 15  # of a table that stands open


def folded_if_long(what: str, table: Table) -> Table | Fold:
    """The table, or with many rows a fold that says what it has and how many rows."""
    n = len(table.rows)
    return table if n <= MOST_ROWS else Fold(f"{what}: {n} rows", [table])


# ---- Tables as text -------------------------------------------------------------------------


def cells_of(table: Table) -> list[list[str]]:
    """The rows as text, two for a row with `Sides`: what is not of a side stands in the first."""
    found = []
    for row in table.rows:
        sides = 2 if any(isinstance(cell, Sides) for cell in row) else 1
        for side in range(sides):
            cells = [c[side] if isinstance(c, Sides) else c if side == 0 else "" for c in row]
            found.append([text_of(cell) for cell in cells])
    return found


def is_number(text: str) -> bool:
    """Whether a cell is a number without an interval, `-13.0` or `1,024`: it stands right."""
    return bool(re.fullmatch(r"-?[\d,.]+", text))


def right_aligned(table: Table) -> list[bool]:
    """Of each column, whether all its cells are numbers."""
    rows = [[text_of(cell) for cell in row] for row in table.rows]
    columns = list(zip(*rows, strict=True)) or [()] * len(table.columns)
    names = map(text_of, table.columns)
    return [name == "n" or all(map(is_number, x)) for name, x in zip(names, columns, strict=True)]
