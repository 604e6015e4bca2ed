"""The tables of the report: Markdown on the page, CSV and LaTeX in the folder tables/.

Every table of the report goes through `table`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import pandas as pd

from manyseeds import plots
from manyseeds.benchmarks.store.results import markdown_table
from manyseeds.stats import coverage_note
from manyseeds.writing import csv_bytes, write_bytes


class Sides(NamedTuple):
    """A cell with a line for our run and one for the baseline's."""

    ours: str
    theirs: str


TableCell = str | Sides

# What LaTeX reads as something else, and what its fonts lack.
LATEX = {
    **{"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"},
    **{c: f"\\{c}" for c in "&%$#_{}"},
    **{"<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}"},
    **{"▲": r"$\uparrow$", "▼": r"$\downarrow$", "≡": r"$\equiv$", "⏎": r"$\hookleftarrow$"},
    **{"†": r"\dag{}", "‡": r"\ddag{}", "\N{GREEK SMALL LETTER LAMDA}": r"$\lambda$"},
}
MARKUP = re.compile(
    r"\\(?P<escaped>.)"
    r"|\[(?P<label>(?:\\.|[^\]\\])*)\]\([^)]*\)"
    r"|(?P<fence>`+)(?P<code>.+?)(?P=fence)"
    r'|(?P<gap><br>)|<a id="[^"]*"></a>|</?code>|\*\*'
)


def plain(cell: str) -> str:
    """A cell without its Markdown, as text."""

    def text_of(match: re.Match[str]) -> str:
        if match["label"] is not None:
            return plain(match["label"])
        if match["code"] is not None:
            return match["code"].strip()
        return match["escaped"] or ("; " if match["gap"] else "")

    return MARKUP.sub(text_of, cell)


def expanded(rows: Sequence[Sequence[TableCell]]) -> list[list[str]]:
    """A row of text for each side of a row; what is not of a side stands in the first."""
    found = []
    for row in rows:
        sides = 2 if any(isinstance(cell, Sides) for cell in row) else 1
        for side in range(sides):
            cells = [c[side] if isinstance(c, Sides) else c * (side == 0) for c in row]
            found.append([plain(text) for text in cells])
    return found


def table(
    folder: Path,
    name: str,
    header: Sequence[str],
    rows: Sequence[Sequence[TableCell]],
    up: str = "",
) -> str:
    """A table as Markdown, with a line below it that links its files tables/NAME.csv and .tex.

    folder: of the results, where the files are written. Cells are Markdown, a cell of `Sides` has
    two lines. up: the path from the page's folder to the folder of the results, such as `../`.
    Where figures are kept, not drawn (`plots.kept`), no files are written or linked.
    """
    lines = [tuple(two_lines(c) if isinstance(c, Sides) else c for c in row) for row in rows]
    note = few_seeds_note(header, expanded(rows))
    if plots.is_kept():
        return markdown_table(header, lines) + (f"\n{note}\n" if note else "")
    (folder / "tables").mkdir(parents=True, exist_ok=True)
    text = expanded(rows)
    csv = csv_bytes(pd.DataFrame(text, columns=list(header)))
    for suffix, content in ((".csv", csv), (".tex", latex_text(header, text).encode())):
        write_bytes(folder / "tables" / f"{name}{suffix}", content)
    files = f"[CSV]({up}tables/{name}.csv), [LaTeX]({up}tables/{name}.tex)"
    note = note and f"{note} "
    return f"{markdown_table(header, lines)}\n<sub>{note}This table as {files}.</sub>\n"


def few_seeds_note(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """What the intervals of a table over seeds are worth; its column n has how many there are."""
    if "n" not in header or not any("[95%]" in name for name in header):
        return ""
    cells = [re.fullmatch(r"(\d+)( of \d+)?", row[header.index("n")]) for row in rows]
    return coverage_note(int(cell[1]) for cell in cells if cell)


def two_lines(sides: Sides) -> str:
    """Both lines of a cell, neither broken where it is long: they stand beside those of others."""
    return "<br>".join(re.sub(r"(?<!<a) ", "\N{NO-BREAK SPACE}", line) for line in sides)


def latex_text(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
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
