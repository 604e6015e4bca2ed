"""Imports run one way, and no room names one above it, not even as text."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from manyseeds.digest import ROOT

ROOMS = ("manyseeds", "envs", "algos", "llm_track", "benchmarks")  # from the lowest
ABOVE = {
    "manyseeds": ("envs", "algos", "llm_track", "benchmarks"),
    "envs": ("algos", "llm_track", "benchmarks"),
    "algos": ("llm_track", "benchmarks"),
    "llm_track": ("algos", "benchmarks"),
}


def strings(path: Path) -> Iterator[str]:
    """The strings of a file that are no docstrings."""
    tree = ast.parse(path.read_text())
    texts = {
        id(x.value)
        for x in ast.walk(tree)
        if isinstance(x, ast.Expr) and isinstance(x.value, ast.Constant)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in texts:
            yield node.value


@pytest.mark.parametrize("room", ABOVE)
def test_no_room_names_one_above_it(room: str) -> None:
    """`llm_track/sft.py` in the foundation would be a dependency that no import rule sees."""
    above = re.compile(rf"\b({'|'.join(ABOVE[room])})\b[/.:]")
    files = sorted((ROOT / room).rglob("*.py"))
    assert files
    found = [(path.name, text) for path in files for text in strings(path) if above.search(text)]
    assert not found


def test_all_packages_are_rooms() -> None:
    packages = {path.parent.name for path in ROOT.glob("[a-z]*/__init__.py")} - {"tests"}
    assert packages == set(ROOMS)
