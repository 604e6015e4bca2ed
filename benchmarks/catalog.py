"""The algorithms, methods and environments of this checkout, by name.

What a store names may come from anybody: nothing is imported or made here that is not ours.
"""

from __future__ import annotations

import importlib
from functools import cache
from typing import Any, Literal

from manyseeds import envs
from manyseeds.cli import identity
from manyseeds.digest import PACKAGE, ROOT
from manyseeds.errors import UsageError

Package = Literal["algos", "llm_track"]


@cache
def names(package: Package) -> tuple[str, ...]:
    """The algorithms of algos/ or the methods of llm_track/: the files that have presets."""
    files = sorted((ROOT / package).glob("*.py"))
    return tuple(file.stem for file in files if "\nPRESETS" in file.read_text())


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
