"""Documents of the repository as pages: links, formulas, and nothing but text from raw HTML."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from markupsafe import Markup

from manyseeds.benchmarks.web import code, docs
from manyseeds.benchmarks.web.docs import FORMULA, Places, Renderer, document, drawn, parser
from manyseeds.digest import ROOT
from tests.benchmarks.conftest import Patch

WRITTEN = {"verdicts.html", "planning.html", "results.html", *map(code.file_of, code.paths())}
PLACES = Places({"docs/a.md": "a.html"}, WRITTEN)


def shown(text: str) -> str:
    return str(Renderer("docs/x.md", PLACES).render(parser().parse(text), parser().options, {}))


@pytest.mark.parametrize(
    ("href", "target"),
    [
        ("a.md#b", "a.html#b"),
        ("../docs/a.md", "a.html"),
        ("../results/README.md", "results.html"),
        ("../results/verdicts.md#how-to-read-this", "verdicts.html#how-to-read-this"),
        ("../results/prediction.md", "planning.html#prediction"),
        ("../results/speed.md", ""),  # which this site has not
        ("../algos/ppo.py", "code-algos-ppo.html"),
        ("../manyseeds/stats.py", ""),
        ("../../etc/passwd", ""),
        ("https://example.org/x", "https://example.org/x"),
        ("#b", "#b"),
    ],
)
def test_links(href: str, target: str) -> None:
    text = shown(f"[name]({href})")
    assert (f'<a href="{target}">name</a>' if target else '<span class="file">name</span>') in text


def test_links_to_the_repository(tmp_path: Path, monkeypatch: Patch) -> None:
    """Where pyproject.toml names it."""
    monkeypatch.setattr(docs, "repository", lambda: "https://example.org/r")
    assert "https://example.org/r/blob/main/manyseeds/stats.py" in shown(
        "[x](../manyseeds/stats.py)"
    )


@pytest.mark.parametrize(
    ("text", "html"),
    [
        ("a <b>c</b>", "a &lt;b&gt;c&lt;/b&gt;"),
        ("<script>x</script>", "&lt;script&gt;"),
        ("a <!-- b --><br>c", "a <br>c"),
        ("[x](javascript:alert(1))", "[x](javascript:alert(1))"),
        ("![x](../../y.png)", '<span class="note">x</span>'),
        ("costs $5 and $6", "costs $5 and $6"),
        ("`$a$`", "<code>$a$</code>"),
        ("$a_b$", 'aria-label="a_b"'),
        (r"$\unknown<$", r"<code>\unknown&lt;</code>"),
        ("```sh\nmake\n```", "data-copy"),
    ],
)
def test_text(text: str, html: str) -> None:
    assert html in shown(text)


def test_all_formulas_are_drawn() -> None:
    """Of every document: those that matplotlib does not know are shown as code."""
    texts = [ROOT / path for path in docs.LEARN] + [*ROOT.glob("docs/*.md")]
    found = [match for path in texts for match in FORMULA.finditer(path.read_text())]
    assert len(found) > 30
    for match in found:
        for part in (match[1] or match[2]).split(r"\qquad"):
            assert drawn(part).startswith("<svg"), part


def test_the_reading_path() -> None:
    page = document("algos/README.md", "reading-path.html", "", PLACES)
    body = page.context["body"]
    assert page.title == "The reading path"
    assert page.description.startswith("The reading path: 1. Policy iteration; 2. Value iteration")
    assert "12. GRPO" in [text for _, text in page.context["headings"]]
    assert {f"code-algos-{Path(x).stem}.html" for x in code.paths() if x.startswith("algos")} <= {
        *re.findall(r'href="([^"]+)"', body)
    }
    assert "pictures/taxonomy.svg" in PLACES.pictures


def test_code_is_text() -> None:
    assert code.highlighted("x = '<b>'  # <i>\n") == (
        'x = <span class="s">&#39;</span><span class="s">&lt;b&gt;</span>'
        '<span class="s">&#39;</span>  <span class="c"># &lt;i&gt;</span>\n'
    )


def test_files_of_any_form(tmp_path: Path, monkeypatch: Patch) -> None:
    """What somebody is writing is shown as it is; what a link leads out to is not shown."""
    root = tmp_path / "root"
    for module in (docs, code):
        monkeypatch.setattr(module, "ROOT", root)
    monkeypatch.setattr(code, "paths", lambda: ["algos/x.py"])
    for folder in ("algos", "docs"):
        (root / folder).mkdir(parents=True)
    (tmp_path / "y.png").touch()
    (root / "algos/x.py").write_bytes(b"PRESETS = {  # \xe9\n")
    (root / "docs/a.md").write_bytes(b"# A\n\n\xe9 ![y](../../y.png)\n")
    (root / "docs/b.md").symlink_to(ROOT / "README.md")
    (root / "docs/c.md").mkdir()
    (page,) = code.pages()
    assert "PRESETS = {" in Markup(page.context["code"]).striptags()
    found = docs.documentation([page])
    assert (list(found.pages), found.pictures) == (["docs/a.md"], {})
