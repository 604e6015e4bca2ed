"""What the README and the other pages say can be done, can be done; what they name is there."""

from __future__ import annotations

import ast
import dataclasses
import importlib
import os
import pkgutil
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from manyseeds.algos import ppo
from manyseeds.benchmarks import catalog
from manyseeds.benchmarks.chapters.names import NAMES
from manyseeds.benchmarks.suite import SUITES
from manyseeds.cli import from_preset, parse
from manyseeds.digest import ROOT
from manyseeds.record import RunFolder
from manyseeds.runs.control import main

README = (ROOT / "README.md").read_text()


PAGES = ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md")
PAGES += (
    "algos/README.md",
    "benchmarks/CLUSTER.md",
    "docs/your-own-algorithm.md",
    "docs/your-own-environment.md",
    "llm_track/README.md",
    ".github/pull_request_template.md",
)
ROOMS = "manyseeds|envs|algos|llm_track|benchmarks|tests"


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
        assert "NAME" in path or (ROOT / path).exists(), path
    assert page != "README.md" or len(scripts) > 4


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
    assert re.findall(r"^version: (.+)$", citation, re.MULTILINE) == [project["version"]]
    assert re.findall(r"^license: (.+)$", citation, re.MULTILINE) == [project["license"]]
    assert f"version = {{{project['version']}}}" in README
    assert f"license = {{{project['license']}}}" in README
    (author,) = project["authors"]
    assert f"{{{{{author['name']}}}}}" in README
    assert f'name: "{author["name"]}"' in citation
    assert project["version"] in (ROOT / "CHANGELOG.md").read_text()


def test_the_workflow_tests_the_versions_of_python_that_are_named() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    named = re.findall(r"Python :: (3\.\d+)", " ".join(project["classifiers"]))
    workflow = (ROOT / ".github/workflows/tests.yml").read_text()
    assert re.findall(r'"(3\.\d+)"', workflow) == named
    assert project["requires-python"] == f">={named[0]}"


def test_make_targets_exist() -> None:
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"^make ([\w-]+)", README, re.MULTILINE)) == {"benchmark", "test"}
    assert {"benchmark", "test", "test-all"} <= targets


PYTHON_BLOCKS = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


@pytest.mark.usefixtures("few_evaluations")
def test_configurations_example(capsys: pytest.CaptureFixture[str]) -> None:
    """The block with its timesteps cut."""
    (block,) = [block for block in PYTHON_BLOCKS if "train_configurations" in block]
    scope: dict[str, Any] = {}
    exec(block.replace("20_000", "512"), scope)
    assert len(scope["scores"]) == 15
    assert "configuration" in capsys.readouterr().out


@pytest.mark.usefixtures("few_evaluations")
def test_python_example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The block runs as it stands; the stored run that it loads is made first, and is smaller."""
    monkeypatch.chdir(tmp_path)
    (block,) = [block for block in PYTHON_BLOCKS if "load(" in block]
    (part,) = re.findall(r'load\("(.*?)"\)', block)
    preset = from_preset(ppo.Config, ppo.PRESETS, "CartPole-v1")
    assert Path(part).parent == RunFolder.of(preset, "ppo").path
    settings = f"--seeds 10 --total-timesteps 512 --name {part.split('/')[-2]} --quiet".split()
    main(parse(ppo.Config, ppo.PRESETS, "", settings), ppo.train, ppo.PRESETS)
    scope: dict[str, Any] = {}
    exec(block, scope)
    assert scope["actions"].shape == (3, 1)
    assert set(scope["curve"]["seed"]) == {0, 1, 2}
    assert scope["policy"].act(scope["obs"][:1].expand(10, -1, -1)).shape == (10, 1)


# What scripts import.
IMPORTED = {"cases", "catalog", "films", "measure", "policies", "suite", "trained"}
IMPORTED |= {"jax_peer", "sb3_defaults", "spaces", "revised", "stated", "studies", "verdicts"}
IMPORTED |= {"tasks", "models", "sampling", "engine", "evaluation"}


# Runs scripts as `python DIR/x.py --help` does, each in a fork of a process that has imported what
# is slow to import. All their folders are first on the path from the beginning, then its own alone.
HELP = """
import os, runpy, sys
scripts, libraries = sys.argv[1:], sys.path[1:]
sys.path[:1] = dict.fromkeys(os.path.dirname(script) for script in scripts)
import pandas, rich, scipy, torch, tyro
for script in scripts:
    if not (child := os.fork()):
        folder, name = os.path.split(script)
        sys.path[:] = [folder, *libraries]
        sys.argv = [name, "--help"]
        output = os.path.join(os.environ["OUTPUT"], os.path.basename(folder), name)
        sys.stdout, sys.stderr = open(output, "w"), open(output + ".err", "w")
        status = 1
        try:
            runpy.run_path(script, run_name="__main__")
            status = 0
        except SystemExit as stop:
            status = stop.code or 0
        finally:
            slow = ("matplotlib.pyplot", "scipy.stats", "seaborn")
            if found := [name for name in slow if name in sys.modules]:
                print("imported for its help:", *found, file=sys.stderr)
            sys.stdout.flush(), sys.stderr.flush()
            os._exit(status)
    print(script, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


@pytest.fixture(scope="module")
def helps(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What `python DIR/x.py --help` prints, by DIR/x.py, started in another folder."""
    elsewhere, output = (tmp_path_factory.mktemp(name) for name in ("elsewhere", "output"))
    scripts: list[Path] = []
    for folder in ("algos", "benchmarks", "llm_track"):
        found = [p for p in (ROOT / folder).glob("[!_]*.py") if p.stem not in IMPORTED]
        assert len(found) > 5
        scripts += sorted(found)
        (output / folder).mkdir(parents=True)
    done = subprocess.run(
        [sys.executable, "-c", HELP, *scripts],
        cwd=elsewhere,
        env={**os.environ, "OUTPUT": str(output), "COLUMNS": "200"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    printed = {}
    for line, path in zip(done.stdout.splitlines(), scripts, strict=True):
        script, status = line.split()
        assert script == str(path)
        file = output / path.relative_to(ROOT)
        assert (status, Path(f"{file}.err").read_text()) == ("0", ""), script
        printed[str(path.relative_to(ROOT))] = file.read_text()
    assert not list(elsewhere.iterdir())
    return printed


@pytest.mark.slow
def test_every_script_explains_itself_from_anywhere(helps: dict[str, str]) -> None:
    """`python DIR/x.py` puts DIR first on the path: no file may hide a module others import."""
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
        assert len(lines) <= 60, script
        assert all(len(line) <= 100 for line in lines), script


EXAMPLE = re.compile(r"(?:python|accelerate launch .*?) (\w+/\w+\.py)((?:\\\n|[^`\n])*)")


@pytest.mark.slow
def test_every_example_names_a_script_and_its_flags(helps: dict[str, str]) -> None:
    """In the READMEs that people write, and in the docstrings of modules."""
    pages = [ROOT / folder / "README.md" for folder in ("", "algos", "llm_track")]
    pages.append(ROOT / "benchmarks" / "CLUSTER.md")
    texts = {page: page.read_text() for page in pages}
    for folder in ("algos", "benchmarks", "envs", "llm_track", "manyseeds"):
        for path in (ROOT / folder).rglob("*.py"):
            texts[path] = ast.get_docstring(ast.parse(path.read_text())) or ""
    found = [(path, *x) for path, text in texts.items() for x in EXAMPLE.findall(text)]
    assert len(found) > 60
    for path, script, rest in found:
        assert script in helps, (path, script)
        known = helps[script].replace("[no-]", "")
        for flag in re.findall(r"(?<![\w-])--[a-z][\w-]*", rest):
            word = "--" + flag[2:].removeprefix("no-")
            assert re.search(rf"{word}(?![\w-])", known), (path, script, flag)
