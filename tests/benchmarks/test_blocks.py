"""Blocks and their renderers: the same text everywhere, escaped once, whatever is stored."""

from __future__ import annotations

import csv
from html.parser import HTMLParser
from pathlib import Path

import pytest
from markdown_it import MarkdownIt

from manyseeds.benchmarks.chapters.blocks import (
    Block,
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
    text_of,
    walk,
)
from manyseeds.benchmarks.chapters.markdown import Writer, markdown, write_files
from manyseeds.benchmarks.chapters.origins import command_text
from manyseeds.benchmarks.web import html
from manyseeds.plots import Line
from manyseeds.record import provenance
from tests.benchmarks.conftest import MEASURED

# What would be markup somewhere, or end what it stands in.
HOSTILE = (
    *("<script>alert(1)</script>", "<img src=x onerror=alert(1)>", "[x](javascript:alert)", "a|b"),
    *("`code` **bold** *x*", "![x](http://x)", "&lt;b&gt;", "$x^2$", "~~x~~", "\\[x](y)", "a]: b"),
    *("[^1]", "</details>", "'\"", "[0.1, 0.2] (n = 3)", "# no heading", "]] [[x][y]", "x!"),
)
FIGURE = Figure(
    "f",
    "A figure",
    "lines",
    {"panels": {"p": {"a": Line([0, 1], [1, 2])}}, "xlabel": "x", "ylabel": "y", "legend": "l"},
)


class Shown(HTMLParser):
    """The text and the tags of HTML."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.text, self.tags = "", list[str]()
        self.feed(source)

    def handle_data(self, data: str) -> None:
        self.text += data

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)


def of_markdown(text: str) -> Shown:
    """What GitHub shows of Markdown; the tags that the report writes itself stay."""
    return Shown(MarkdownIt("commonmark").enable("table").enable("strikethrough").render(text))


@pytest.mark.parametrize("text", HOSTILE)
def test_stored_text_is_text_in_every_format(text: str, tmp_path: Path) -> None:
    pieces: dict[str, Inline] = {
        "": (text, " ", text),
        "code": Code(text),
        "strong": Strong(text),
        "a": Link(text, page="x.md"),
    }
    for tag, piece in pieces.items():
        table = Table("t", ("x", text), [(piece, Lines(text, piece)), (Sides(text, piece), "")])
        blocks: list[Block] = [
            Text("Is ", piece, "."),
            Text("!", Link(text, page="x.md")),
            table,
            Fold(text, [Items([piece])]),
        ]
        page = of_markdown(Writer(tmp_path, tmp_path).blocks(blocks))
        site = Shown(str(html.Writer({"x.md": "x.html"}).blocks(blocks)))
        for shown in (page, site):
            assert f"Is {text_of(piece)}." in shown.text
            assert shown.text.count(text) >= 7, shown.text
            own = {"p", "table", "thead", "tbody", "tr", "th", "td", "br", "sub", "ul", "li"}
            own |= {"details", "summary", "div", "span", "a", tag}
            assert set(shown.tags) <= own, shown.tags
    write_files([table], tmp_path)
    with (tmp_path / "tables" / "t.csv").open(newline="") as file:
        header, *rows = csv.reader(file)
    assert header[1].endswith(text)
    assert rows[0][1].endswith(f"{text}; {text}")
    latex = (tmp_path / "tables" / "t.tex").read_text()
    assert latex.count("&") - latex.count(r"\&") == 4  # one in each of four rows


def test_what_a_page_has() -> None:
    """All blocks in Markdown, and links as seen from a page in a folder."""
    results = Path("/r")
    claim = Claim("It learns.", "holds", "+1.0 [0.5, 1.5]", FIGURE, [Text("How.")], "A paper")
    page = Page(
        "environments/E.md",
        "E",
        [
            Outcome(("All ", Code("x"), " hold")),
            Heading("A title"),
            Text(Link("verdicts", page="verdicts.md", anchor="how"), Link("here", anchor="a")),
            Items(["one", Item(Strong("two"), Items(["below"]))]),
            claim,
        ],
    )
    assert markdown(page, results) == (
        "**All `x` hold**\n\n## A title\n\n[verdicts](../verdicts.md#how)[here](#a)\n\n"
        "- one\n- **two**\n  - below\n\nIt learns. (A paper)\n\n**Holds**: +1.0 [0.5, 1.5]\n\n"
        "![A figure](../plots/f.svg)\n\n<details><summary>Details</summary>\n\nHow.\n\n</details>"
    )
    assert [type(block) for block in walk([claim])] == [Claim, Figure, Text]
    writer = html.Writer({"verdicts.md": "verdicts.html"})
    shown = str(writer.blocks(page.blocks))
    assert '<a href="verdicts.html#how">verdicts</a><a href="#a">here</a>' in shown
    assert "<li><strong>two</strong><ul>\n<li>below</li>\n</ul></li>" in shown
    assert 'data-word="holds"' in shown
    assert [chart["kind"] for chart in writer.charts] == ["lines"]


def test_a_link_to_what_the_site_lacks_is_text() -> None:
    writer = html.Writer({})
    for link in (Link("x", page="missing.md", anchor="a"), Link("x", file=Path("/run"))):
        assert writer.inline(link) == "x"


def test_rows_of_a_table() -> None:
    """Two rows for a row with sides; numbers stand right; what few seeds are worth is said."""
    table = Table(
        "",
        ("", "n", "mean [95%]"),
        [(Sides(Mark("a", "ours"), "SB3"), Sides("3", "10"), Sides("1.0", "2.0")), ("x", "12", "")],
    )
    text = Writer(Path("/r"), Path("/r")).block(table)
    first, align, *rows = text.splitlines()
    assert first == "|  | n | mean [95%] |"
    assert align == "| --- | ---: | --- |"
    assert rows[0] == '| <a id="a"></a>ours<br>SB3 | 3<br>10 | 1.0<br>2.0 |'
    assert "of 3 seeds" in table.few_seeds
    assert not Table("", ("n",), [("3",)]).few_seeds


def test_a_long_table_is_folded_once() -> None:
    def shown(block: Block) -> str:
        return str(html.Writer({}).block(block))

    rows = [("a", "b")] * (html.LONG + 1)
    assert "<summary>16 rows: x, y</summary>" in shown(Table("", ("x", "y"), rows))
    assert shown(Fold("all", [Table("", ("x", "y"), rows)])).count("<details>") == 1
    assert "<details>" not in shown(Table("", ("x", "y"), rows[1:]))


def test_measurements_of_other_code_say_so() -> None:
    """Below their table, whatever is measured; what nobody can find is other code, too."""
    origins = ["manyseeds.benchmarks.measurements.margins:margins"]
    fresh = {**MEASURED, "code": provenance(origins)["code"]}
    assert not str(command_text(fresh)).count("Stale")
    for code in (
        {**fresh["code"], "digest": "0123"},
        {**fresh["code"], "origins": ["manyseeds.algos.ppo:train"]},
        {**fresh["code"], "origins": ["benchmarks.no_more:measure"]},
    ):
        assert "Stale: the code has changed since." in str(command_text({**fresh, "code": code}))
