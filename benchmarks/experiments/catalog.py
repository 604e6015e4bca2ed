"""The algorithms, methods and environments of this checkout, by name.

What a store names may come from anybody: nothing is imported or made here that is not ours.
"""

from __future__ import annotations

import importlib
import tomllib
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Literal

from manyseeds import envs
from manyseeds.cli import identity, with_tuples
from manyseeds.digest import PACKAGE, room_file
from manyseeds.errors import UsageError

Package = Literal["algos", "llm_track"]


@cache
def names(package: Package) -> tuple[str, ...]:
    """The algorithms of algos/ or the methods of llm_track/: the files that have presets."""
    files = sorted(room_file(package).glob("*.py"))
    return tuple(file.stem for file in files if "\nPRESETS" in file.read_text())


@dataclass(frozen=True)
class Facts:
    """What `algos/presets/NAME.toml` says of an algorithm besides its presets."""

    name: str
    """For people."""
    branch: str
    """Where it is in the tree of methods (chapters/taxonomy.py), ..."""
    year: int
    """... and behind whom."""
    family: str = "policies"
    """The files that define the same things in the same words (tests/algos/test_copies.py)."""
    methods: str = ""
    """What the tree says instead of its name."""
    small: dict[str, Any] = field(default_factory=dict)
    """Settings with which it trains for a moment."""
    cases: dict[str, Any] = field(default_factory=dict)
    """Trainings that `same_bits.py` compares: a budget, and what sets each of the runs apart."""
    timed: tuple[dict[str, Any], ...] = ()
    """What throughput.py times: fields of its `Subject`s, CartPole-v1 or a table first."""
    versions: dict[str, str] = field(default_factory=dict)
    """Definitions that differ from those of its family, and why."""


@cache
def facts(name: str) -> Facts:
    """What is said of an algorithm of this checkout."""
    text = room_file(f"algos/presets/{name}.toml").read_text()
    tables = {key: x for key, x in with_tuples(tomllib.loads(text)).items() if key != "presets"}
    return Facts(**tables)


def module(package: Package, name: str) -> Any:
    """The module of an algorithm or method. Raises UsageError, and imports nothing, for others."""
    if name not in names(package):
        raise UsageError(f"{name}: no algorithm of {package}/")
    return importlib.import_module(f"{PACKAGE}.{package}.{name}")


def plain_settings(package: Package, name: str, subject: str) -> dict[str, Any]:
    """The settings that the plain command `--env SUBJECT` (or `--task SUBJECT`) trains with.

    {} for an algorithm that is not ours or does not go with the subject, and for a task that only
    its file or hub knows. An environment that is not ours is not made: it has the defaults.
    """
    if name not in names(package):
        return {}
    found = module(package, name)
    field = "env" if package == "algos" else "task"
    preset = found.PRESETS.get(subject)
    if field == "task" and preset is None:
        return {}
    settings = dict(preset.settings) if preset else {}
    if field == "task" or subject in envs.NATIVE:
        settings[field] = subject
    try:
        return {**identity(found.Config(**settings)), field: subject}
    except UsageError:
        return {}
