"""A digest of exactly the code that decides a learning curve, so that the report can say "stale".

It begins at some definitions, written `module:name` or `module:Class.method`, and follows every
name that they use through the files of this project, also those reached through a module
(`sampling.sample`) or, from a method, through `self`. What goes into the digest are the names and
the texts of the definitions that were reached, and no paths: a definition may move to another file.

Left out is what cannot change a curve: docstrings, comments, annotations, the fields of a Config
(their values stand in a run's record) and its conditions, the modules below that read flags, keep
records, print and draw, and how an iteration is run (`program`: tests hold all its modes equal).
A definition that is marked as a `boundary` is not followed either. Libraries are not seen: their
versions stand in the record.
"""

from __future__ import annotations

import ast
import hashlib
import inspect
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

T = TypeVar("T", bound=Callable[..., Any])

ROOT = Path(__file__).resolve().parents[1]
BOOKKEEPING = {
    f"manyseeds.{name}"
    for name in (
        *("checkpoint", "cli", "digest", "errors", "plots", "process", "program", "progress"),
        *("record", "stats"),
    )
}
# What is chosen from it stands in a run's record.
PRESETS = "PRESETS"
# Methods of a Config that refuse or record, and compute nothing that is learned with.
CONDITIONS = {"__post_init__", "check", "check_env", "contents", "origins"}


def boundary(definition: T) -> T:
    """Mark a function that chooses by a run's settings, so that the digest does not follow it.

    It would reach every choice. What was chosen has to be an origin of its own.
    """
    return definition


def origin_of(definition: Any) -> str:
    """`module:name` of a function, class or method of this project (a string stays as it is)."""
    if isinstance(definition, str):
        return definition
    definition = inspect.unwrap(definition)  # behind decorators
    file = Path(inspect.getfile(definition)).resolve()
    if ROOT in file.parents:
        module = ".".join(file.relative_to(ROOT).with_suffix("").parts)
    else:  # a user's environment
        module = definition.__module__
    return f"{module}:{definition.__qualname__}"


def code_digest(origins: Iterable[str], root: Path = ROOT) -> str:
    """Digest of all definitions that the origins reach; what is gone counts as empty.

    root: the checkout whose code is read.
    """
    waiting = [Place(*origin.partition(":")[::2]) for origin in origins]
    reached: dict[Place, str] = {}
    while waiting:
        place = waiting.pop()
        if place in reached:
            continue
        found = read(place, root)
        if isinstance(found, Place):  # where an import leads
            waiting.append(found)
        else:
            reached[place], uses = found
            waiting += uses
    digest = hashlib.sha256()
    for text in sorted(f"{place.name} {text}" for place, text in reached.items()):
        digest.update(text.encode(errors="replace"))
    return digest.hexdigest()[:12]


class Place(NamedTuple):
    """A definition by its module and name; `Class.method` for a method."""

    module: str
    name: str


@cache
def read(place: Place, root: Path) -> tuple[str, list[Place]] | Place:
    """The text of the definition at a place and the places that it uses, or where it leads."""
    found = find(place, root)
    if found is None or isinstance(found, Place):
        return found or ("", [])
    return ast.dump(found), list(used(found, place, root))


def forget() -> None:
    """Read all files again: they have changed."""
    definitions.cache_clear()
    read.cache_clear()


def find(place: Place, root: Path) -> ast.stmt | Place | None:
    """The simplified definition at a place, another place that it is imported from, or None."""
    name, _, method = place.name.partition(".")
    node = definitions(root, place.module).get(name)
    if isinstance(node, ast.Import | ast.ImportFrom):
        target = imported(node, name, root)
        return Place(target.module, place.name.replace(name, target.name, 1)) if target else None
    if method and isinstance(node, ast.ClassDef):
        return next((x for x in node.body if getattr(x, "name", None) == method), None)
    return node


def used(node: ast.stmt, place: Place, root: Path) -> Iterator[Place]:
    """The places that a definition uses."""
    own = definitions(root, place.module)
    local = {
        (alias.asname or alias.name): statement
        for statement in ast.walk(node)
        if isinstance(statement, ast.ImportFrom)
        for alias in statement.names
    }
    cls, _, method = place.name.partition(".")
    for inner in ast.walk(node):
        chain = chain_of(inner)
        if not chain or PRESETS in chain:
            continue
        first, *rest = chain
        if method and first == "self" and rest:
            siblings = getattr(own.get(cls), "body", [])
            if any(getattr(x, "name", None) == rest[0] for x in siblings):
                yield Place(place.module, f"{cls}.{rest[0]}")
            continue
        origin = local.get(first, own.get(first))
        if isinstance(origin, ast.Import | ast.ImportFrom):
            target = imported(origin, first, root)
            while target and not target.name and rest:  # a module: what is taken from it
                target = member(target.module, rest.pop(0), root)
            if target and target.name and not is_boundary(target, root):
                yield target
        elif origin is not None and not is_boundary(Place(place.module, first), root):
            yield Place(place.module, first)


def chain_of(node: ast.AST) -> list[str]:
    """`["a", "b", "c"]` for the expression a.b.c or its beginnings, where it is loaded."""
    names: list[str] = []
    while isinstance(node, ast.Attribute):
        names.append(node.attr)
        node = node.value
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):  # a field may be named alike
        return [node.id, *reversed(names)]
    return []


def imported(node: ast.Import | ast.ImportFrom, name: str, root: Path) -> Place | None:
    """What an import binds to a name: a definition, or a module (with an empty name).

    None for a library and for bookkeeping.
    """
    alias = next(a for a in node.names if name in (a.asname, a.name))
    if isinstance(node, ast.ImportFrom):
        return member(node.module or "", alias.name, root)
    return Place(alias.name, "") if file_of(alias.name, root) else None


def member(module: str, name: str, root: Path) -> Place | None:
    """A module's own definition or submodule."""
    if file_of(f"{module}.{name}", root):
        return None if f"{module}.{name}" in BOOKKEEPING else Place(f"{module}.{name}", "")
    known = module not in BOOKKEEPING and file_of(module, root)
    return Place(module, name) if known else None


def is_boundary(place: Place, root: Path) -> bool:
    """Whether a definition is marked by `boundary`."""
    found = find(place, root)
    while isinstance(found, Place):
        found = find(found, root)
    marks = getattr(found, "decorator_list", [])
    return any(isinstance(mark, ast.Name) and mark.id == boundary.__name__ for mark in marks)


def file_of(module: str, root: Path) -> Path | None:
    """The file of one of our modules."""
    if not all(part.isidentifier() for part in module.split(".")):
        return None
    path = root.joinpath(*module.split("."))
    for file in (path.with_suffix(".py"), path / "__init__.py"):
        if file.exists():
            return file
    return None


@cache
def definitions(root: Path, module: str) -> dict[str, ast.stmt]:
    """The top-level names of a module: functions, classes, constants, imports; simplified."""
    file = file_of(module, root)
    found: dict[str, ast.stmt] = {}
    for node in ast.parse(file.read_text() if file else "").body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found[node.name] = node
        elif isinstance(node, ast.Import | ast.ImportFrom):
            found |= {alias.asname or alias.name: node for alias in node.names}
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names = [n for target in targets for n in ast.walk(target) if isinstance(n, ast.Name)]
            found |= {n.id: node for n in names}
    return {name: Simplified().visit(node) for name, node in found.items()}


class Simplified(ast.NodeTransformer):
    """Removes what cannot change a curve from a definition."""

    def visit(self, node: ast.AST) -> Any:
        node = super().visit(node)
        body = getattr(node, "body", None)
        if isinstance(body, list):
            node.body = [x for x in body if not is_text(x)]  # type: ignore[attr-defined]
        return node

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        if node.name.endswith("Config"):
            node.body = [
                x
                for x in node.body
                if not isinstance(x, ast.AnnAssign) and getattr(x, "name", "") not in CONDITIONS
            ]
        return self.generic_visit(node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        node.returns = None
        return self.generic_visit(node)

    def visit_arg(self, node: ast.arg) -> ast.AST:
        node.annotation = None
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        node.annotation = ast.Constant(None)
        return self.generic_visit(node)


def is_text(node: ast.AST) -> bool:
    """Whether a statement is a string: a docstring, or the description of a field."""
    constant = getattr(node, "value", None)
    return isinstance(node, ast.Expr) and isinstance(getattr(constant, "value", None), str)
