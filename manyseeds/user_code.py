"""Functions and classes of a user's own that a flag names: FILE.py:NAME.

The file runs when it is loaded; nothing stored ever loads one. It may import modules beside it,
which come before all others of their names. The digest of a run has all code of the file and of
those modules: once it is edited, the run is stale.
"""

from __future__ import annotations

import ast
import contextlib
import re
import sys
import traceback
import types
from collections.abc import Iterator
from functools import cache
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import Any, NoReturn

from manyseeds.cli import path_of
from manyseeds.digest import ALL, MAX_SIZE, PACKAGE, ROOT, module_at
from manyseeds.errors import UsageError, described, did_you_mean
from manyseeds.untrusted import read_bytes

SHOWN = 60  # characters of a text in an error
BESIDE: dict[str, str] = {}  # modules beside users' files, with their folders


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
    except KeyboardInterrupt:
        raise
    except UsageError as error:  # which says all there is to say
        raise UsageError(f"{what} {text}: {error}") from None
    except BaseException as error:  # also SystemExit and GeneratorExit
        hint = ""
        if isinstance(error, ModuleNotFoundError):
            hint = "; install it, or put it beside the file"
        fail(f"{what} {text}: cannot be loaded", error, file, hint)
    if not hasattr(module, name):
        known = [
            x
            for x, value in vars(module).items()
            if x[0] != "_" and callable(value) and is_from(module, value)
        ]
        hint = did_you_mean(name, known) if known else ""
        raise UsageError(f"{what} {text}: {file.name} has no {name}{hint}")
    if not callable(found := getattr(module, name)):
        raise UsageError(f"{what} {text}: {name} is {kind(found)}, not a function or a class")
    return found


def is_from(module: types.ModuleType, value: Any) -> bool:
    """Whether a value is defined in a module, not imported there."""
    return getattr(value, "__module__", None) == module.__name__


@cache
def run_file(file: Path) -> types.ModuleType:
    """The module of a file, from its text. Raises what the file raises, and as `modules_beside`.

    Python's own cache takes a text of equal size that was written in the same second for the same.
    """
    text = read_bytes(file, MAX_SIZE)
    BESIDE.update(modules_beside(file, text))
    if Beside not in sys.meta_path:
        sys.meta_path.insert(0, Beside)
    if str(file.parent) not in sys.path:  # for names that no `import` spells
        sys.path.append(str(file.parent))
    module = types.ModuleType(f"user_code.{file.stem}.{len(sys.modules)}")
    module.__file__ = str(file)
    sys.modules[module.__name__] = module  # dataclasses look there
    exec(compile(text, str(file), "exec", dont_inherit=True), vars(module))
    return module


class Beside:
    """Finds the modules beside users' files, also after the file has run: sys.path begins with the
    folder of the script, whose modules have names such as `rewards`."""

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        """As of a finder in sys.meta_path."""
        return PathFinder.find_spec(name, [BESIDE[name]]) if name in BESIDE else None


def modules_beside(file: Path, text: bytes) -> dict[str, str]:
    """The modules beside a file that its text imports, and those that these import; their folder.

    Raises SyntaxError, and ImportError for a module whose name means another one in this process.
    """
    folder = str(file.parent)
    found = dict[str, str]()
    trees = [ast.parse(text, str(file))]
    for tree in trees:  # grows
        for name in imported_names(tree) - found.keys() - {PACKAGE}:
            spec = PathFinder.find_spec(name, [folder])
            if spec is None or spec.origin is None:  # a folder without __init__.py is a library's
                continue
            origin = Path(spec.origin)
            loaded = getattr(sys.modules.get(name), "__file__", "") or ""
            if BESIDE.get(name, folder) != folder or (
                name in sys.modules and Path(loaded).resolve() != origin.resolve()
            ):
                other = BESIDE.get(name) or loaded or "a module of Python"
                raise ImportError(f"{name} beside it has the name of another module: {other}")
            found[name] = folder
            package = spec.submodule_search_locations is not None
            for path in sorted(origin.parent.rglob("*.py")) if package else [origin]:
                with contextlib.suppress(SyntaxError, ValueError, UsageError):  # its import says it
                    trees.append(ast.parse(read_bytes(path, MAX_SIZE)))
    return found


def imported_names(tree: ast.AST) -> set[str]:
    """The top-level modules that a text imports, also within functions."""
    names = set[str]()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module.partition(".")[0])
    return names


@contextlib.contextmanager
def failing_in_one_line(text: str, what: str) -> Iterator[None]:
    """Make a UsageError of what the code of FILE.py:NAME raises; of another text there is none."""
    try:
        yield
    except (UsageError, KeyboardInterrupt):
        raise
    except BaseException as error:
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
    """The type of a value, in words: `a float`, `an ndarray of shape [3, 1]`."""
    name = type(value).__name__
    if value is None or isinstance(value, bytes):
        return "None" if value is None else "bytes"
    article = "an" if name[0] in "aeioAEIO" or name == "ndarray" else "a"
    shape = getattr(value, "shape", None)
    if isinstance(shape, tuple) and hasattr(value, "__len__"):  # no number of NumPy
        return f"{article} {name} of shape {list(shape)}"
    return f"{article} {name}"


def shown(text: str) -> str:
    """A text in an error: on one line, its beginning and its end."""
    if len(text) > SHOWN:
        text = f"{text[: SHOWN // 2]} ... {text[-SHOWN // 2 :]}"
    return repr(text)
