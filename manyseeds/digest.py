"""A digest of exactly the code that decides a learning curve, so that the report can say "stale".

It begins at some definitions, written

    module:name            a function, class or constant, or what an import leads to
    module:Class.member    a method or attribute, perhaps inherited
    module:TABLE[key]      an entry of a dictionary that is written out
    module:Config()        the defaults of a Config and of those that it extends

and follows every name that they use through the files of this project, also those reached through a
module (`sampling.sample`) or, from a method, through `self`. What goes into the digest are the
names and texts of the definitions that were reached and which of them each use means, and no paths:
a definition may move to another file. What a name of a library means goes in, too; its code does
not: its version stands in the record.

C code that lies beside a module under its name belongs to all of its definitions, headers included.

Left out is what cannot change a curve: docstrings, comments, annotations, the fields of a Config
(their values stand in a run's record) and its conditions, the modules below that read flags, keep
records, print and draw, and how an iteration is run (`program`: tests hold all its modes equal).
A definition that is marked as a `boundary` is not followed either.
"""

from __future__ import annotations

import ast
import hashlib
import inspect
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

T = TypeVar("T")

ROOT = Path(__file__).resolve().parents[1]
BOOKKEEPING = {
    f"manyseeds.{name}"
    for name in (
        *("checkpoint", "cli", "digest", "errors", "plots", "process", "program", "progress"),
        *("record", "stats", "track", "kernels.guard"),
    )
}
# What is chosen from it stands in a run's record.
PRESETS = "PRESETS"
# Methods of a Config that refuse or record, and compute nothing that is learned with.
CONDITIONS = {"__post_init__", "check", "check_env", "contents", "origins"}
SUPER = "super()"
EXECUTION = "Execution"  # the mark of fields that change no curve
C = ".c"  # the C code beside a module, as a name in it
HEADERS = "manyseeds/kernels"  # where C code finds them
DEFAULTS = "()"  # what a Config's name ends with where its defaults are meant


def boundary(definition: T) -> T:
    """Mark a definition so that the digest does not follow it.

    A function or table that a run's settings choose from would reach every choice (what was chosen
    has to be an origin of its own); a clock changes no curve.
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
    starts = dict.fromkeys(resolve(Place.of(origin), root) for origin in sorted(origins))
    places = sorted(starts, key=lambda place: (place.name, read(place, root)[0]))
    numbers = {place: number for number, place in enumerate(places)}
    digest = hashlib.sha256()
    for place in places:  # grows
        text, uses = read(place, root)
        meant: list[int | str] = []
        for use in uses:
            if isinstance(use, Place) and use not in numbers:
                numbers[use] = len(places)
                places.append(use)
            meant.append(numbers[use] if isinstance(use, Place) else use)
        digest.update(f"{place.name} {text} {meant}\n".encode(errors="replace"))
    return digest.hexdigest()[:12]


class Place(NamedTuple):
    """A definition by its module and its name as in an origin; the module itself without a name."""

    module: str
    name: str

    @classmethod
    def of(cls, origin: str) -> Place:
        """The place that an origin names."""
        module, _, name = origin.partition(":")
        return cls(module, name)

    def split(self) -> tuple[str, str]:
        """The name of a top-level definition, and what of it: ".member", "[key]", "()" or ""."""
        match = re.match(r"\w*", self.name)
        assert match
        return match[0], self.name[match.end() :]


@cache
def read(place: Place, root: Path) -> tuple[str, list[Place | str]]:
    """The text of the definition at a place, and what its names mean, in their order.

    That is a place, the name of a library, or '' for what is not followed.
    """
    found = find(place, root)
    if found is None or isinstance(found, Place):
        return "", []
    return text_of(found), list(used(found, place, root))


def forget() -> None:
    """Read all files again: they have changed."""
    definitions.cache_clear()
    c_code.cache_clear()
    read.cache_clear()


@cache
def text_of(node: ast.AST) -> str:
    """The text of a definition, the same in every version of Python."""
    return dump(node)


def dump(node: Any) -> str:
    """The text of a syntax tree, or of what is in one."""
    if isinstance(node, ast.AST):
        fields = [
            f"{name}={dump(x)}"
            for name, x in ast.iter_fields(node)
            if x is not None and x != [] and name not in ("ctx", "kind", "type_comment")
        ]
        return f"{type(node).__name__}({', '.join(fields)})"
    return f"[{', '.join(map(dump, node))}]" if isinstance(node, list) else repr(node)


def find(place: Place, root: Path) -> ast.AST | Place | None:
    """The simplified definition at a place, another place that it comes from, or None."""
    if place.name == C:
        return ast.Constant(c_code(place.module, root))
    own = definitions(root, place.module)
    outer, rest = place.split()
    node = own.get(outer)
    if isinstance(node, ast.Import | ast.ImportFrom):
        target = imported(node, outer, root)
        inside = isinstance(target, Place) and target.name
        return Place(target.module, target.name + rest) if inside else None  # type: ignore[union-attr]
    if rest.startswith("["):
        return entry(node, rest[1:-1])
    if rest.startswith("."):
        return member_of(node, rest[1:], place.module, root)
    return own.get(place.name)


def resolve(place: Place, root: Path) -> Place:
    """Where imports and inheritance lead from a place."""
    seen = {place}
    while isinstance(found := find(place, root), Place) and found not in seen:
        place = found
        seen.add(place)
    return place


def entry(table: ast.AST | None, key: str) -> ast.AST | None:
    """The value of a key in the definition of a dictionary."""
    value = getattr(table, "value", None)
    if isinstance(value, ast.Call) and value.args:  # boundary({...})
        value = value.args[0]
    if not isinstance(value, ast.Dict):
        return None
    pairs = zip(value.keys, value.values, strict=True)
    return next((x for k, x in pairs if isinstance(k, ast.Constant) and k.value == key), None)


def member_of(cls: ast.AST | None, name: str, module: str, root: Path) -> ast.AST | Place | None:
    """A method or attribute in a class's definition, or the place of an inherited one."""
    if not isinstance(cls, ast.ClassDef):
        return None
    own = next((node for node in cls.body if name in bound(node)), None)
    return own or inherited(cls, name, module, root)


def inherited(cls: ast.AST | None, name: str, module: str, root: Path) -> Place | None:
    """Where a class gets a member from that it does not define itself."""
    for base in getattr(cls, "bases", []):
        place = meaning(chain_of(base), module, root)
        if isinstance(place, Place):
            found = resolve(Place(place.module, f"{place.name}.{name}"), root)
            if find(found, root) is not None:
                return found
    return None


def used(node: ast.AST, place: Place, root: Path) -> Iterator[Place | str]:
    """What a definition uses: places in the project, names of libraries."""
    if place.name == C:
        return
    if c_code(place.module, root):
        yield Place(place.module, C)
    chains, local = names_of(node)
    outer, rest = place.split()
    extended = getattr(node, "bases", []) if rest == DEFAULTS else []
    for inner, chain in chains:
        target: Place | str | None
        if rest.startswith(".") and chain[0] in ("self", "cls", SUPER):
            target = member_used(chain, place.module, outer, root)
        else:
            target = meaning(chain, place.module, root, local)
        if isinstance(target, Place) and inner in extended:
            target = Place(target.module, target.name + DEFAULTS)
        yield target or ""


def member_used(chain: list[str], module: str, cls: str, root: Path) -> Place | None:
    """What `["self", "a"]` or `["super()", "a"]` means in a method of a class of a module."""
    target: Place | None = None
    if chain[0] == SUPER:
        target = inherited(definitions(root, module).get(cls), chain[1], module, root)
    elif len(chain) > 1:
        target = resolve(Place(module, f"{cls}.{chain[1]}"), root)
    if target is None or find(target, root) is None or is_boundary(target, root):
        return None
    return target


@cache
def names_of(node: ast.AST) -> tuple[list[tuple[ast.AST, list[str]]], dict[str, ast.stmt]]:
    """The expressions of a definition that are names, and its own imports by name."""
    inside = list(ast.walk(node))
    imports = [x for x in inside if isinstance(x, ast.Import | ast.ImportFrom)]
    local: dict[str, ast.stmt] = {name: x for x in imports for name in bound(x)}
    found = [(x, chain) for x in inside if (chain := chain_of(x)) and PRESETS not in chain]
    return found, local


def meaning(
    chain: list[str], module: str, root: Path, local: Mapping[str, ast.stmt] | None = None
) -> Place | str | None:
    """What `["a", "b"]`, the expression a.b in a module, means: a place, or a library's name.

    local: imports within the definition. None for what is not followed.
    """
    first, *rest = chain or [""]
    node = (local or {}).get(first, definitions(root, module).get(first))
    if node is None:
        return None
    target: Place | str | None = Place(module, first)
    if isinstance(node, ast.Import | ast.ImportFrom):
        target = imported(node, first, root)
    while isinstance(target, Place) and not target.name and rest:  # a module: what is taken from it
        target = part_of(target.module, rest.pop(0), root)
    if not isinstance(target, Place):
        return target
    target = resolve(target, root)
    return target if target.name and not is_boundary(target, root) else None


def chain_of(node: ast.AST) -> list[str]:
    """`["a", "b", "c"]` for the expression a.b.c or its beginnings, where it is loaded."""
    names: list[str] = []
    while isinstance(node, ast.Attribute):
        names.append(node.attr)
        node = node.value
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):  # a field may be named alike
        return [node.id, *reversed(names)]
    called = node.func if isinstance(node, ast.Call) else None
    if names and isinstance(called, ast.Name) and called.id == "super":
        return [SUPER, *reversed(names)]
    return []


def imported(node: ast.Import | ast.ImportFrom, name: str, root: Path) -> Place | str | None:
    """What an import binds to a name: a definition, a module, or a library's name.

    None for bookkeeping.
    """
    alias = next(a for a in node.names if name == name_of(a))
    if isinstance(node, ast.ImportFrom):
        return part_of(node.module or "", alias.name, root)
    module = alias.name if alias.asname else name  # `import a.b` binds a
    return Place(module, "") if is_ours(module, root) else module


def part_of(module: str, name: str, root: Path) -> Place | str | None:
    """A module's own definition or submodule; of a library its name."""
    if not is_ours(module, root):
        return f"{module}.{name}"
    own = definitions(root, module).get(name)
    submodule = own is None or (isinstance(own, ast.ImportFrom) and own.module == module)
    if submodule and is_ours(f"{module}.{name}", root):
        return None if f"{module}.{name}" in BOOKKEEPING else Place(f"{module}.{name}", "")
    return None if module in BOOKKEEPING else Place(module, name)


def is_boundary(place: Place, root: Path) -> bool:
    """Whether a definition is marked by `boundary`: a decorator, or around a table."""
    found = find(place, root)
    around = getattr(getattr(found, "value", None), "func", None)
    marks = [*getattr(found, "decorator_list", []), around]
    return any(isinstance(mark, ast.Name) and mark.id == boundary.__name__ for mark in marks)


@cache
def c_code(module: str, root: Path) -> str:
    """The C code beside a module and its own headers, without comments; '' without any."""
    python = file_of(module, root)
    waiting = [python.with_suffix(C)] if python else []
    texts: dict[Path, str] = {}
    while waiting:
        path = waiting.pop(0)
        if path in texts or not path.is_file():
            continue
        text = re.sub(r"/\*.*?\*/|//[^\n]*", " ", path.read_text(encoding="utf-8"), flags=re.DOTALL)
        texts[path] = " ".join(text.split())
        waiting += [root / HEADERS / name for name in re.findall(r'#include "([\w.]+)"', text)]
    return "\n".join(texts.values())


def is_ours(module: str, root: Path) -> bool:
    """Whether a module or package is in the project."""
    return file_of(module, root) is not None


def file_of(module: str, root: Path) -> Path | None:
    """The file of one of our modules."""
    if not all(part.isidentifier() for part in module.split(".")):
        return None
    path = root.joinpath(*module.split("."))
    for file in (path.with_suffix(".py"), path / "__init__.py"):
        if file.is_file():
            return file
    return None


@cache
def definitions(root: Path, module: str) -> dict[str, ast.stmt]:
    """The top-level names of a module: functions, classes, constants, imports; simplified.

    Under `Config()` the defaults of a Config. Each name must be bound once, and not within an `if`.
    """
    file = file_of(module, root)
    return definitions_in(file.read_text(encoding="utf-8") if file else "")


@cache
def definitions_in(text: str) -> dict[str, ast.stmt]:
    """The same of a module's text: reading it takes longest."""
    found: dict[str, ast.stmt] = {}
    for node in ast.parse(text).body:
        if isinstance(node, ast.ClassDef) and is_config(node):
            found[node.name + DEFAULTS] = defaults_of(node)
        found |= dict.fromkeys(bound(node), node)
    return {name: Simplified().visit(node) for name, node in found.items()}


def bound(node: ast.stmt) -> list[str]:
    """The names that a statement defines."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return [node.name]
    if isinstance(node, ast.Import | ast.ImportFrom):
        return [name_of(alias) for alias in node.names]
    if isinstance(node, ast.Assign | ast.AnnAssign):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        return [x.id for target in targets for x in ast.walk(target) if isinstance(x, ast.Name)]
    return []


def name_of(alias: ast.alias) -> str:
    """The name that an import binds."""
    return alias.asname or alias.name.partition(".")[0]


def is_config(node: ast.ClassDef) -> bool:
    return node.name.endswith("Config")


def defaults_of(config: ast.ClassDef) -> ast.ClassDef:
    """The fields of a Config that change a curve, with their defaults alone."""
    body: list[ast.stmt] = [
        ast.Assign(targets=[field.target], value=field.value)
        for field in config.body
        if isinstance(field, ast.AnnAssign)
        and field.value is not None
        and EXECUTION not in names_in(field.annotation)
    ]
    return ast.ClassDef(config.name, config.bases, [], body, [])


def names_in(node: ast.AST) -> set[str]:
    return {x.id for x in ast.walk(node) if isinstance(x, ast.Name)}


class Simplified(ast.NodeTransformer):
    """Removes what cannot change a curve from a definition."""

    def visit(self, node: ast.AST) -> Any:
        node = super().visit(node)
        body = getattr(node, "body", None)
        if isinstance(body, list):
            node.body = [x for x in body if not is_text(x)]  # type: ignore[attr-defined]
        return node

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        left_out = CONDITIONS if is_config(node) else {"origins"}
        node.body = [
            x
            for x in node.body
            if getattr(x, "name", "") not in left_out and not (is_config(node) and is_field(x))
        ]
        return self.generic_visit(node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        node.returns = None
        return self.generic_visit(node)

    visit_AsyncFunctionDef = visit_FunctionDef  # type: ignore[assignment]

    def visit_arg(self, node: ast.arg) -> ast.AST:
        node.annotation = None
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        node.annotation = ast.Constant(None)
        return self.generic_visit(node)


def is_field(node: ast.stmt) -> bool:
    """Whether a statement of a dataclass declares a field."""
    return isinstance(node, ast.AnnAssign) and "ClassVar" not in names_in(node.annotation)


def is_text(node: ast.AST) -> bool:
    """Whether a statement is a string: a docstring, or the description of a field."""
    constant = getattr(node, "value", None)
    return isinstance(node, ast.Expr) and isinstance(getattr(constant, "value", None), str)
