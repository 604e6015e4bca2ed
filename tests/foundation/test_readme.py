"""What the README and the other pages say can be done, can be done; what they name is there."""

from __future__ import annotations

import ast
import dataclasses
import importlib
import pkgutil
import re
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Any

import pytest

from manyseeds.algos import ppo
from manyseeds.benchmarks.experiments import catalog
from manyseeds.benchmarks.experiments.suite import SUITES
from manyseeds.benchmarks.store.names import NAMES
from manyseeds.benchmarks.store.results import load_result
from manyseeds.benchmarks.store.stored import open_run
from manyseeds.cli import from_preset
from manyseeds.digest import ROOT
from manyseeds.record import RunFolder
from tests.processes import Script

README = (ROOT / "README.md").read_text()


PAGES = ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")
PAGES += (
    "algos/README.md",
    "benchmarks/CLUSTER.md",
    "llm_track/README.md",
    ".github/pull_request_template.md",
)
PAGES += tuple(sorted(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md")))
ROOMS = "manyseeds|envs|algos|llm_track|probes|benchmarks|tests"


def anchors(page: Path) -> set[str]:
    """What links may name after `#` in a page: its headings, as GitHub writes them, and marks."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    marks = set(re.findall(r'<a id="([^"]*)"></a>', page.read_text()))
    return marks | {re.sub(r"[^\w -]", "", text.lower()).replace(" ", "-") for text in headings}


@pytest.mark.parametrize("page", PAGES)
def test_links_paths_and_scripts_exist(page: str) -> None:
    text = (ROOT / page).read_text()
    for path, anchor in re.findall(r"\]\(([^)#:]*)(?:#([^)]*))?\)", text):
        target = (ROOT / page).parent / path if path else ROOT / page
        assert target.exists(), path
        assert not anchor or anchor in anchors(target), f"{path}#{anchor}"
    scripts = re.findall(rf"python ((?:{ROOMS})/\w+\.py)", text)
    for path in scripts + re.findall(rf"`((?:{ROOMS})/[\w/.-]+\.\w+)`", text):
        assert re.search("NAME|ALGO", path) or (ROOT / path).exists(), path
    assert page != "README.md" or len(scripts) > 4


def test_the_readme_is_short() -> None:
    assert len(README.splitlines()) <= 160


@pytest.mark.parametrize("page", ["ARCHITECTURE.md", "CONTRIBUTING.md"])
def test_what_pages_name_is_there(page: str) -> None:
    """Functions, classes and tables: `manyseeds.cli.parse`."""
    names = re.findall(r"`((?:manyseeds|tests)\.[\w.]+)`", (ROOT / page).read_text())
    assert len(names) > 3
    for name in names:
        pkgutil.resolve_name(name)  # raises where there is none


def test_every_published_algorithm_is_on_the_pages() -> None:
    trained = {cell.algo for cells in SUITES.values() for cell in cells if cell.package == "algos"}
    assert trained <= set(catalog.names("algos"))
    for page, link in (("README.md", "(algos/{}.py)"), ("algos/README.md", "| [{0}.py]({0}.py) |")):
        text = (ROOT / page).read_text()
        missing = [name for name in trained if link.format(name) not in text]
        assert not missing, f"give it a row in {page}"
    assert set(catalog.names("llm_track")) <= set(NAMES)


def test_versions_agree() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    citation = (ROOT / "CITATION.cff").read_text()
    bibtex = (ROOT / "docs" / "citing-a-number.md").read_text()
    for field in ("version", "license"):
        assert f"\n{field}: {project[field]}\n" in citation
        assert f"{field} = {{{project[field]}}}" in bibtex
    (author,) = project["authors"]
    assert f"{{{{{author['name']}}}}}" in bibtex
    assert f'name: "{author["name"]}"' in citation
    released = re.search(r'\ndate-released: "((\d+)-\d\d-\d\d)"\n', citation)
    assert released
    assert f"year    = {{{released[2]}}}" in bibtex
    changes = (ROOT / "CHANGELOG.md").read_text()
    assert f"\n## [{project['version']}] - {released[1]}\n" in changes
    named = re.findall(r"Python :: (3\.\d+)", " ".join(project["classifiers"]))
    workflow = (ROOT / ".github/workflows/tests.yml").read_text()
    assert re.findall(r'"(3\.\d+)"', workflow) == named
    assert project["requires-python"] == f">={named[0]}"


def test_make_targets_exist() -> None:
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    pages = [(ROOT / page).read_text() for page in PAGES]
    typed = re.compile(r"(?:`|^)make ([a-z][\w-]*)(?:`|  |$)", re.MULTILINE)
    named = {name for text in pages for name in typed.findall(text)}
    assert {"install", "benchmark", "test", "site"} <= named <= targets


def blocks_of(page: str) -> list[str]:
    """The blocks of Python on a page."""
    return re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)


def test_the_example_plays_an_episode(monkeypatch: pytest.MonkeyPatch) -> None:
    """A published policy, in Gymnasium's own environment."""
    monkeypatch.chdir(ROOT)
    (block,) = blocks_of("README.md")
    scope: dict[str, Any] = {}
    exec(block, scope)
    assert scope["truncated"]
    median = scope["policy"].predict.__self__.labels[0]
    assert f"its median: seed {median}\n" in block
    assert f"seed={median})" in block


@pytest.mark.usefixtures("few_evaluations")
def test_examples_from_python(capsys: pytest.CaptureFixture[str]) -> None:
    """The blocks of the page with their timesteps cut, and where it says that runs are."""
    scope: dict[str, Any] = {}
    for block in blocks_of("docs/from-python.md"):
        exec(block.replace("20_000", "512"), scope)
    assert scope["obs"].shape == (5, 4)
    assert set(scope["curve"]["seed"]) == {0, 1, 2}
    assert len(scope["scores"]) == 15
    assert "configuration" in capsys.readouterr().out
    loaded = re.findall(r'load\("(results.*?)"\)', (ROOT / "docs/from-python.md").read_text())
    preset = from_preset(ppo.Config, ppo.PRESETS, "CartPole-v1")
    assert [Path(path).parent for path in loaded][:1] == [RunFolder.of(preset, "ppo").path]
    assert set(ppo.load(ROOT / loaded[1]).predict.__self__.labels) <= set(range(300))


def test_what_the_readme_says_of_ppo() -> None:
    """How many verdicts of its row are which, and how many seeds fail on Pendulum-v1."""
    (row,) = [line.split("|")[2:-1] for line in README.splitlines() if line.startswith("| **PPO**")]
    words = dict(enumerate(("none", "one", "two", "three", "four", "five")))
    equivalent, undecided = (sum(f" {sign}" in cell for cell in row) for sign in "=?")
    preset = from_preset(ppo.Config, ppo.PRESETS, "Pendulum-v1", results=str(ROOT / "results"))
    folders = [RunFolder.of(preset, algo) for algo in ("ppo", "sb3-ppo")]
    ours, theirs = (load_result(open_run(folder)) for folder in folders)
    says = (
        f"By learning speed PPO is equivalent to SB3's PPO in {words[equivalent]} of "
        f"{words[len(row)]} environments, and undecided in {words[undecided]}. On Pendulum-v1 "
        f"{len(ours.failures)} of {len(ours.seeds)} seeds fail, and {len(theirs.failures)} of "
        f"SB3's {len(theirs.seeds)}."
    )
    assert says in " ".join(README.split())


@pytest.fixture(scope="module")
def helps(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What `python DIR/x.py --help` prints, by DIR/x.py, started in another folder."""
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    printed = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(elsewhere)
        patch.setenv("COLUMNS", "200")
        for folder in ("algos", "benchmarks", "llm_track"):
            named = (ROOT / folder).glob("[a-z]*.py")
            files = [path for path in named if "\nif __name__ ==" in path.read_text()]
            assert len(files) > 5
            for path in sorted(f"{folder}/{file.name}" for file in files):
                script = Script(path, "--help").run()
                assert (script.poll(), script.stderr) == (0, ""), path
                printed[path] = script.stdout
    assert not list(elsewhere.iterdir())
    return printed


def test_no_script_hides_a_module_or_waits_for_a_slow_one() -> None:
    """`python DIR/x.py` puts DIR first on the path; `--help` needs no figures."""
    others = {*sys.stdlib_module_names, *packages_distributions()}
    for folder in ("algos", "benchmarks", "llm_track", "envs", "manyseeds"):
        for path in (ROOT / folder).rglob("*.py"):
            assert path.stem not in others or path.parent != ROOT / folder, path
            slow = r"^(?:import|from) (?:matplotlib|scipy\.stats|seaborn)"
            assert not re.search(slow, path.read_text(), re.MULTILINE), path


@pytest.mark.slow
def test_every_script_explains_itself_from_anywhere(helps: dict[str, str]) -> None:
    for script, printed in helps.items():
        assert "usage:" in printed.lower()
        folder, name = script.removesuffix(".py").split("/")
        if folder == "algos":
            module = importlib.import_module(f"manyseeds.algos.{name}")
            for field in dataclasses.fields(module.Config):
                words = {f"  --{field.name} ", f"  --[no-]{field.name} "}
                assert any(x.replace("_", "-") in printed for x in words), (script, field.name)
            for env in module.PRESETS:
                assert env in printed
        lines = printed.splitlines()
        # Rainbow has six parts; DAPO has five of its own besides the flags of all.
        most = {"algos/rainbow.py": 66, "llm_track/dapo.py": 61}.get(script, 60)
        assert len(lines) <= most, script
        assert all(len(line) <= 100 for line in lines), script


EXAMPLE = re.compile(r"(?:python|accelerate launch .*?) (\w+/\w+\.py)((?:\\\n|[^`\n])*)")


@pytest.mark.slow
def test_every_example_names_a_script_and_its_flags(helps: dict[str, str]) -> None:
    """On the pages that people write, and in the docstrings of modules."""
    pages = [ROOT / page for page in PAGES if not page.startswith((".", "CHANGELOG"))]
    texts = {page: page.read_text() for page in pages}
    for folder in ("algos", "benchmarks", "envs", "llm_track", "manyseeds"):
        for path in (ROOT / folder).rglob("*.py"):
            texts[path] = ast.get_docstring(ast.parse(path.read_text())) or ""
    found = [(path, *x) for path, text in texts.items() for x in EXAMPLE.findall(text)]
    assert len(found) > 60
    for path, script, rest in found:
        if re.search("NAME|DIR|cleanrl/", script) or (script == "docs/recompute.py" and not rest):
            continue  # the last one has no flags
        assert script in helps, (path, script)
        known = helps[script].replace("[no-]", "")
        for flag in re.findall(r"(?<![\w-])--[a-z][\w-]*", rest):
            word = "--" + flag[2:].removeprefix("no-")
            assert re.search(rf"{word}(?![\w-])", known), (path, script, flag)
