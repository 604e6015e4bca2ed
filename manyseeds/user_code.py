"""Functions and classes of a user's own that a flag names: FILE.py:NAME.

The file runs when it is loaded; nothing stored ever loads one. It may import modules beside it. The
digest of a run has all code of the file and of those modules: once it is edited, the run is stale.
"""

from __future__ import annotations

import contextlib
import re
import sys
import traceback
import types
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NoReturn

from manyseeds.cli import path_of
from manyseeds.digest import ALL, MAX_SIZE, ROOT, module_at
from manyseeds.errors import UsageError, described, did_you_mean
from manyseeds.untrusted import read_bytes

SHOWN = 60  # characters of a text in an error


def is_named(text: str) -> bool:
    """Whether a flag's text is FILE.py:NAME."""
    return re.fullmatch(r".+\.py:\w+", text, re.DOTALL) is not None


def file_and_name(text: str, what: str) -> tuple[Path, str]:
    """The file and the name that FILE.py:NAME means; UsageError for another text.

    what: the flag.
    """
    if not is_named(text):
        raise UsageError(f"{what} {text[:SHOWN]}: must be FILE.py:NAME")
    file, _, name = text.rpartition(":")
    return path_of(file, what).resolve(), name


def origin(text: str, what: str) -> str:
    """All of the file that FILE.py:NAME means, as `digest.origin_of` writes it."""
    return f"{module_at(file_and_name(text, what)[0], ROOT)}:{ALL}"


@cache
def load(text: str, what: str) -> Any:
    """What FILE.py:NAME means, which can be called; once, whatever becomes of the file meanwhile.

    Raises UsageError, also for what the file raises as it runs.
    """
    file, name = file_and_name(text, what)
    if not file.is_file():
        raise UsageError(f"{what} {text}: there is no such file")
    try:
        module = run_file(file)
    except (Exception, SystemExit) as error:
        hint = ""
        if isinstance(error, ModuleNotFoundError):
            hint = "; install it, or put it beside the file"
        fail(f"{what} {text}: cannot be loaded", error, file, hint)
    if not hasattr(module, name):
        known = [x for x in vars(module) if x[0] != "_" and callable(getattr(module, x))]
        hint = did_you_mean(name, known) if known else ""
        raise UsageError(f"{what} {text}: {file.name} has no {name}{hint}")
    if not callable(found := getattr(module, name)):
        raise UsageError(f"{what} {text}: {name} is {kind(found)}, not a function or a class")
    return found


@cache
def run_file(file: Path) -> types.ModuleType:
    """The module of a file, from its text.

    Python's own cache takes a text of equal size that was written in the same second for the same.
    """
    module = types.ModuleType(f"user_code.{file.stem}.{len(sys.modules)}")
    module.__file__ = str(file)
    sys.modules[module.__name__] = module  # dataclasses look there
    if str(file.parent) not in sys.path:
        sys.path.append(str(file.parent))
    exec(compile(read_bytes(file, MAX_SIZE), str(file), "exec"), vars(module))
    return module


@contextlib.contextmanager
def failing_in_one_line(text: str, what: str) -> Iterator[None]:
    """Make a UsageError of what the code of FILE.py:NAME raises; of another text there is none."""
    try:
        yield
    except (UsageError, KeyboardInterrupt):
        raise
    except (Exception, SystemExit) as error:
        if not is_named(text):
            raise
        file = file_and_name(text, what)[0]
        if any(x.filename == str(file) for x in traceback.extract_tb(error.__traceback__)):
            fail(f"{what} {text}", error, file)
        raise


def fail(what: str, error: BaseException, file: Path, hint: str = "") -> NoReturn:
    """Raise a UsageError that says what a user's file has raised, and where in it."""
    lines = [x.lineno for x in traceback.extract_tb(error.__traceback__) if x.filename == str(file)]
    where = f" ({file.name}, line {lines[-1]})" if lines else ""
    raise UsageError(f"{what}: {described(error)}{where}{hint}") from None


def kind(value: Any) -> str:
    """The type of a value, in words."""
    return "None" if value is None else f"of type {type(value).__name__}"


def shown(text: str) -> str:
    """A text in an error: on one line, its beginning and its end."""
    if len(text) > SHOWN:
        text = f"{text[: SHOWN // 2]} ... {text[-SHOWN // 2 :]}"
    return repr(text)
