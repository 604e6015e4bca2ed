"""Imports run one way, and no room names one above it, not even as text."""

from __future__ import annotations

import ast
import importlib
import re
import tomllib
from collections.abc import Iterator, Sequence
from graphlib import TopologicalSorter
from pathlib import Path
from typing import Any

import pytest

from manyseeds import PROBES, ROOMS
from manyseeds.benchmarks.__main__ import module_behind
from manyseeds.digest import PACKAGE, ROOT
from tests.processes import Script

ALL_ROOMS = (PACKAGE, *ROOMS, PROBES)
ABOVE = {
    "manyseeds": ("envs", "algos", "llm_track", "probes", "benchmarks"),
    "envs": ("algos", "llm_track", "probes", "benchmarks"),
    "algos": ("llm_track", "probes", "benchmarks"),
    "llm_track": ("algos", "probes", "benchmarks"),
    "probes": ("benchmarks",),
}


def strings(path: Path, docstrings: bool = False) -> Iterator[str]:
    """The strings of a file that are no docstrings, or its docstrings."""
    tree = ast.parse(path.read_text())
    texts = {
        id(x.value)
        for x in ast.walk(tree)
        if isinstance(x, ast.Expr) and isinstance(x.value, ast.Constant)
    }
    for node in ast.walk(tree):
        is_text = isinstance(node, ast.Constant) and isinstance(node.value, str)
        if is_text and (id(node) in texts) == docstrings:
            yield node.value


def scripts(*rooms: str) -> set[str]:
    """The names of the files in some rooms: `sweep.py`."""
    return {path.name for room in rooms for path in (ROOT / room).rglob("*.py")}


def names_of(room: str, rooms: Sequence[str]) -> re.Pattern[str]:
    """What finds the names of rooms above one, and of scripts that only they have."""
    own = scripts(*(x for x in ALL_ROOMS if x not in ABOVE[room]))
    files = "|".join(map(re.escape, sorted(scripts(*rooms) - own)))
    return re.compile(rf"\b({'|'.join(rooms)})\b[/.:]|\b({files})\b")


@pytest.mark.parametrize("room", ABOVE)
def test_no_room_names_one_above_it(room: str) -> None:
    """`llm_track/sft.py` in the foundation would be a dependency that no import rule sees."""
    above = names_of(room, ABOVE[room])
    files = sorted((ROOT / room).rglob("*.py"))
    assert files
    found = [(path.name, text) for path in files for text in strings(path) if above.search(text)]
    assert not found


def imports(path: Path) -> Iterator[str]:
    """What a file imports, also within functions: `manyseeds.envs.core`."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def test_the_foundation_imports_no_room() -> None:
    for path in (ROOT / PACKAGE).rglob("*.py"):
        assert not [
            x for x in imports(path) if x.startswith(tuple(f"{PACKAGE}.{r}" for r in ALL_ROOMS[1:]))
        ]


def test_no_module_has_two_names(tmp_path: Path) -> None:
    """A room is imported as manyseeds.ROOM alone, though its folder may be on the path."""
    files = [path for room in (*ALL_ROOMS, "tests") for path in (ROOT / room).rglob("*.py")]
    for path in files:
        assert not [x for x in imports(path) if x.partition(".")[0] in ALL_ROOMS[1:]], path
    script = tmp_path / "script.py"
    script.write_text(
        "import runpy, sys\n"
        f"sys.argv = ['{ROOT}/benchmarks/sweep.py', '--suite', 'quick', '--cut', '--dry-run']\n"
        "runpy.run_path(sys.argv[0], run_name='__main__')\n"
        "files = [getattr(module, '__file__', None) for module in sys.modules.values()]\n"
        f"ours = [x for x in files if x and x.startswith({str(ROOT)!r}) and '.venv' not in x]\n"
        "assert len(ours) == len(set(ours)) > 30, ours\n"
    )
    done = Script(str(script)).run()
    assert done.poll() == 0, done.stderr


@pytest.mark.parametrize("room", ALL_ROOMS[1:])
def test_the_name_of_a_folder_alone_imports_nothing(room: str, monkeypatch: Any) -> None:
    """It would be another copy of its modules, whose code no digest sees."""
    monkeypatch.syspath_prepend(ROOT)
    with pytest.raises(ImportError, match=f"{room} is imported as manyseeds.{room}"):
        importlib.import_module(room)


@pytest.mark.parametrize("room", ABOVE)
def test_no_docstring_names_what_only_measures(room: str) -> None:
    """Other rooms may be pointed at for a reader; the code below knows nothing of benchmarks."""
    above = names_of(room, ["benchmarks"])
    files = sorted((ROOT / room).rglob("*.py"))
    found = [
        (path.name, text)
        for path in files
        for text in strings(path, docstrings=True)
        if above.search(text)
    ]
    assert not found


def test_scripts_of_other_rooms_are_found_by_their_names() -> None:
    found = names_of("manyseeds", ABOVE["manyseeds"])
    assert found.search("sweep.py --publish writes them")
    assert found.search("as algos/ppo.py")
    assert not found.search("record.py")
    assert not names_of("algos", ABOVE["algos"]).search("as in ppo.py")  # its own
    assert not names_of("algos", ABOVE["algos"]).search("the siblings of grpo.py")


def test_every_script_is_under_the_contract_of_scripts() -> None:
    """And every method of the LLM track under that of methods; algorithms are by their folder."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    named = {name for x in contracts["contracts"] for name in x.get("modules", ())}
    scripts = {f"{PACKAGE}.llm_track.{path.stem}" for path in scripts_of("llm_track")}
    scripts |= set(map(module_behind, scripts_of("benchmarks")))
    assert scripts <= named


def scripts_of(room: str) -> list[Path]:
    """The files of a room that are started as scripts."""
    files = sorted((ROOT / room).glob("[a-z]*.py"))
    return [path for path in files if "\nif __name__ ==" in path.read_text()]


def test_benchmarks_is_a_house_of_few_rooms() -> None:
    """Its folders and the commands at its door, doors to folders aside: no circle, few arrows."""
    arrows: dict[str, set[str]] = {}
    for path in (ROOT / "benchmarks").rglob("*.py"):
        room = path.relative_to(ROOT / "benchmarks").parts[0].removesuffix(".py")
        if len(path.read_text().splitlines()) <= 6:
            continue  # a door, or the face of a package
        found = [x.split(".") for x in imports(path) if x.startswith("manyseeds.benchmarks.")]
        arrows.setdefault(room, set()).update(x[2] for x in found if x[2] != room)
    assert len(arrows) <= 20, sorted(arrows)
    assert sum(map(len, arrows.values())) <= 40, arrows
    TopologicalSorter(arrows).prepare()  # raises CycleError


def test_all_packages_are_rooms() -> None:
    packages = {path.parent.name for path in ROOT.glob("[a-z]*/__init__.py")} - {"tests"}
    assert packages == set(ALL_ROOMS)
