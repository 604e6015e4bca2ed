"""A digest of exactly the code that decides a learning curve, so that the report can say "stale".

It begins at some definitions, written

    module:name            a function, class or constant, or what an import leads to
    module:Class.member    a method or attribute, perhaps inherited
    module:TABLE[key]      an entry of a dictionary that is written out
    module:Config()        the defaults of a Config and of those that it extends
    /folder/file.py:name   a function or class in a file outside the checkout

and follows every name that they use through the files of this project, also those reached through a
module (`sampling.sample`) or, from a method, through `self`. What goes into the digest are the
names and texts of the definitions that were reached and which of them each use means, and no paths:
a definition may move to another file. What a name of a library means goes in, too; its code does
not: its version stands in the record.

Modules that lie beside a file, or in a folder above it, are followed as well. What such a module
does when it is imported (a call, a loop, an `if`, a name that is bound twice) belongs to all of its
definitions. Modules that a user imports from elsewhere or by other means than `import`, and files
that his code reads, are not seen. Code that is in no file (`python -c`, a notebook's cells) is
unknown: its digest is never the same again.

C code belongs to the definitions that name its file, `"ppo.c"` in the folder of their module. Where
no definition in the module `kernels` of that folder does, it belongs to all of the module that has
its name. With it come the headers of ours that it includes, and the C code of what these declare.

Left out is what cannot change a curve: docstrings, comments, annotations (but for `file.py:*`, all
of a file outside the checkout and of the modules beside it), the fields of a Config
(their values stand in a run's record) and its conditions, the modules below that read flags, keep
records, print and draw, and how an iteration is run (`program`: tests hold all its modes equal).
A definition that is marked as a `boundary` is not followed either.
"""

from __future__ import annotations

import ast
import hashlib
import inspect
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from copy import deepcopy
from functools import cache, partial
from itertools import accumulate, takewhile
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple, TypeVar
from uuid import uuid4

from manyseeds import ROOMS

T = TypeVar("T")

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = "manyseeds"
BOOKKEEPING = {
    f"manyseeds.{name}"
    for name in (
        *("checkpoint", "cli", "digest", "errors", "plots", "process", "program", "progress"),
        *("record", "stats", "track", "kernels.guard"),
    )
}
# What is chosen from it stands in a run's record.
PRESETS = "PRESETS"
UNNAMED = {"algos", "benchmarks"}  # rooms whose files the command `manyseeds` calls by name alone
# Methods of a Config that refuse or record, and compute nothing that is learned with.
CONDITIONS = {"__post_init__", "check", "check_env", "check_request", "contents", "origins"}
# Methods of other classes that no training calls.
NOT_TRAINED_WITH = {"origins", "from_gymnasium", "to_gymnasium"}
SUPER = "super()"
EXECUTION = "Execution"  # the mark of fields that change no curve
C = ".c"  # what the name of C code in a module's folder ends with
HEADERS = "manyseeds/kernels"  # where C code finds them
BINDINGS = "kernels"  # the module of a room that calls the C code beside it
DEFAULTS = "()"  # what a Config's name ends with where its defaults are meant
SETTINGS = "{}"  # the same where its fields stand in a run's record
STATEMENTS = "<statements>"  # what a module does when it is imported, as a name in it
ALL = "*"  # all of a module, as a name in it
UNKNOWN = "<unknown>"  # the module of what is in no file
STANDARD_LIBRARY = Path(os.__file__).resolve().parent
INSTALLED = {"site-packages", "dist-packages"}  # folders of libraries
MAX_SIZE = 2**20  # bytes of a file outside the checkout that is read


def boundary(definition: T) -> T:
    """Mark a definition so that the digest does not follow it.

    A function or table that a run's settings choose from would reach every choice (what was chosen
    has to be an origin of its own); a clock changes no curve.
    """
    return definition


def origin_of(definition: Any) -> str:
    """`module:name` of a function, class or method (a string stays as it is), or of what a module
    does when it is imported.

    Outside the checkout the module is the path of its file, and the name a top-level one.
    """
    if isinstance(definition, str):
        return definition
    definition = unwrapped(definition)
    if isinstance(definition, ModuleType):
        name = STATEMENTS
    else:
        name = getattr(definition, "__qualname__", type(definition).__qualname__)
    if is_library(definition):
        return f"{definition.__module__}:{name}"
    file = path_of(definition)
    if file is None or file.suffix != ".py" or not file.is_file():
        return f"{UNKNOWN}:{name}"
    module = module_at(file, ROOT)
    name = name.partition(".<locals>")[0]  # what is defined within a function: by its text
    if is_path(module):
        name = name.partition(".")[0]
    return f"{module}:{ALL if name == '<lambda>' else name}"


def unwrapped(definition: Any) -> Any:
    """The definition behind decorators and `functools.partial`."""
    while isinstance(definition, partial):
        definition = definition.func
    return inspect.unwrap(definition)


def path_of(definition: Any) -> Path | None:
    """The file that a definition or module says to be from; None without one."""
    try:
        return Path(inspect.getfile(unwrapped(definition))).resolve()
    except (OSError, TypeError):  # a class of `python -c`, a function in C
        return None


def is_library(definition: Any) -> bool:
    """Whether a definition or module belongs to an installed package or to Python itself."""
    file = path_of(definition)
    return file is not None and is_library_file(file)


def is_library_file(file: Path) -> bool:
    """The same of a file, by where it lies."""
    below = file.relative_to(ROOT) if ROOT in file.parents else file
    if below != file and is_installed(ROOT):
        return below.parts[0] != PACKAGE
    return STANDARD_LIBRARY in file.parents or not INSTALLED.isdisjoint(below.parts)


def code_digest(origins: Iterable[str], root: Path = ROOT) -> str:
    """Digest of all definitions that the origins reach; what is gone counts as empty.

    root: the checkout whose code is read. Where an origin is in no file, no two digests are equal.
    """
    digest = hashlib.sha256()
    for place, text, meant in reached(origins, root):
        if place.module == UNKNOWN:
            return f"unknown-{uuid4().hex[:8]}"
        digest.update(f"{place.name} {text} {meant}\n".encode(errors="replace"))
    return digest.hexdigest()[:12]


def reached(origins: Iterable[str], root: Path) -> Iterator[tuple[Place, str, list[int | str]]]:
    """All definitions that the origins reach: where they are, their texts, what their names mean.

    That is the number of a definition in this order, or what `read` says.
    """
    starts = dict.fromkeys(resolve(Place.of(origin), root) for origin in sorted(origins))
    places = sorted(starts, key=lambda place: (place.name, read(place, root)[0]))
    numbers = {place: number for number, place in enumerate(places)}
    for place in places:  # grows
        text, uses = read(place, root)
        meant: list[int | str] = []
        for use in uses:
            if isinstance(use, Place) and use not in numbers:
                numbers[use] = len(places)
                places.append(use)
            meant.append(numbers[use] if isinstance(use, Place) else use)
        yield place, text, meant


@cache
def c_reached(origin: str, root: Path = ROOT) -> dict[Path, str]:
    """The files of C code that a definition reaches, and their texts without comments."""
    files = (c_file(place, root) for place, _, _ in reached([origin], root))
    return {path: text for file in files if file for path, text in c_texts(file, root).items()}


class Place(NamedTuple):
    """A definition by its module and its name as in an origin; the module itself without a name.

    Of what is outside the checkout the module is the path of a file, or of a folder without an
    `__init__.py`.
    """

    module: str
    name: str

    @classmethod
    def of(cls, origin: str) -> Place:
        """The place that an origin names."""
        if is_path(origin):
            file, _, name = origin.rpartition(".py:")
            return cls(f"{file}.py", name)
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
    if isinstance(found, Place):
        return "", []
    if found is None:  # perhaps defined by a statement
        return "", list(statements_of(place, root))
    return text_of(found), list(used(found, place, root))


def forget() -> None:
    """Read all files again: they have changed."""
    for remembered in (contents, c_texts, c_reached, c_named, read, located, child_of):
        remembered.cache_clear()


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
    if file := c_file(place, root):
        return ast.Constant("\n".join(c_texts(file, root).values()))
    if place.name == ALL and is_path(place.module):
        return ast.Constant(whole_text(place.module, root))
    if place.name in (STATEMENTS, ALL):
        alone = place.name == STATEMENTS
        return ast.Module(contents(root, place.module)[1] if alone else [], type_ignores=[])
    own = definitions(root, place.module)
    outer, rest = place.split()
    node = own.get(outer)
    if isinstance(node, ast.Import | ast.ImportFrom):
        target = imported(node, outer, place.module, root)
        inside = isinstance(target, Place) and target.name
        return Place(target.module, target.name + rest) if inside else None  # type: ignore[union-attr]
    if rest.startswith("["):
        return entry(node, rest[1:-1])
    if rest.startswith("."):
        return member_of(node, rest[1:], place.module, root)
    return own.get(place.name)


def whole_text(module: str, root: Path) -> str:
    """All of a module outside the checkout without comments: docstrings and annotations may be data
    there."""
    file = module_file(module, root)
    text = text_at(file) if file else ""
    try:
        return dump(ast.parse(text))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return text


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
    if c_file(place, root):
        return
    yield from (Place(place.module, name) for name in c_names(node, place.module, root))
    if beside := c_beside(place.module, root):
        yield beside
    yield from statements_of(place, root)
    if place.name == ALL:
        for name in definitions(root, place.module):
            yield meaning([name], place.module, root) or ""
        if is_path(place.module):
            yield from (Place(module, ALL) for module in imported_by(place.module, root))
    chains, local = names_of(node)
    if place.name == STATEMENTS:
        imports = [x for x in ast.walk(node) if isinstance(x, ast.Import | ast.ImportFrom)]
        for x in imports:
            for alias in x.names:
                yield whole(imported(x, name_of(alias), place.module, root)) or ""
    outer, rest = place.split()
    extended = getattr(node, "bases", []) if rest == DEFAULTS else []
    foreign = is_path(place.module)
    inside = ast.walk(node) if foreign else ()
    beginnings = {x.value for x in inside if isinstance(x, ast.Attribute)}
    for inner, chain in chains:
        target: Place | str | None
        if PRESETS in chain and not foreign:
            continue
        if rest.startswith(".") and chain[0] in ("self", "cls", SUPER):
            target = member_used(chain, place.module, outer, root)
        else:
            target = meaning(chain, place.module, root, local)
        if isinstance(target, Place) and inner in extended:
            target = Place(target.module, target.name + DEFAULTS)
        if isinstance(target, Place) and not target.name:  # a module
            target = whole(target) if foreign and inner not in beginnings else None
        yield target or ""


def whole(target: Place | str | None) -> Place | str | None:
    """The same, but all of a module where a module is meant."""
    return Place(target.module, ALL) if isinstance(target, Place) and not target.name else target


def statements_of(place: Place, root: Path) -> Iterator[Place]:
    """What is done when the module of a place is imported, by it and by those that it imports.

    Modules of the project are made to do nothing then.
    """
    if place.name == STATEMENTS:
        if is_path(place.module):
            yield from (Place(module, STATEMENTS) for module in imported_by(place.module, root))
    elif contents(root, place.module)[1] or (
        is_path(place.module) and any(imported_by(place.module, root))
    ):
        yield Place(place.module, STATEMENTS)


def imported_by(module: str, root: Path) -> Iterator[str]:
    """The modules outside the checkout that a module outside it imports."""
    found, statements = contents(root, module)
    inside = (x for node in statements for x in ast.walk(node))
    for node in (*found.values(), *inside):
        names: list[str | None] = []
        if isinstance(node, ast.ImportFrom):
            source = origin_module(node, module, root)
            names = [source, *(child_of(source or "", alias.name, root) for alias in node.names)]
        elif isinstance(node, ast.Import):  # `import a.b` imports a and a.b
            dotted = (alias.name.split(".") for alias in node.names)
            parents = (name for parts in dotted for name in accumulate(parts, "{}.{}".format))
            names = [located(name, module, root) for name in parents]
        yield from (name for name in names if name and is_path(name) and name.endswith(".py"))


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
    return [(x, chain) for x in inside if (chain := chain_of(x))], local


def meaning(
    chain: list[str], module: str, root: Path, local: Mapping[str, ast.stmt] | None = None
) -> Place | str | None:
    """What `["a", "b"]`, the expression a.b in a module, means: a place, or a library's name.

    local: imports within the definition. None for what is not followed, a place without a name for
    a module.
    """
    first, *rest = chain or [""]
    node = (local or {}).get(first, definitions(root, module).get(first))
    if node is None:
        return None
    target: Place | str | None = Place(module, first)
    if isinstance(node, ast.Import | ast.ImportFrom):
        target = imported(node, first, module, root)
    while isinstance(target, Place) and not target.name and rest:  # a module: what is taken from it
        target = part_of(target.module, rest.pop(0), root)
    if not isinstance(target, Place):
        return target
    target = resolve(target, root)
    return None if is_boundary(target, root) else target


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


def imported(
    node: ast.Import | ast.ImportFrom, name: str, module: str, root: Path
) -> Place | str | None:
    """What an import in a module binds to a name: a definition, a module, or a library's name.

    None for bookkeeping.
    """
    alias = next(a for a in node.names if name == name_of(a))
    if isinstance(node, ast.ImportFrom):
        source = origin_module(node, module, root)
        return part_of(source, alias.name, root) if source else f"{node.module or ''}.{alias.name}"
    wanted = alias.name if alias.asname else name  # `import a.b` binds a
    found = located(alias.name, module, root, bare=False) and located(wanted, module, root)
    return Place(found, "") if found else wanted


def origin_module(node: ast.ImportFrom, module: str, root: Path) -> str | None:
    """The module that a `from ... import` in a module names; None for a library."""
    if not node.level:
        return located(node.module or "", module, root)
    file = module_file(module, root)
    above = list(file.parents)[node.level - 1 :] if file else []
    return module_in(above[0], node.module or "", root) if above else None


def part_of(module: str, name: str, root: Path) -> Place | str | None:
    """A module's own definition or submodule; of a library its name."""
    own = definitions(root, module).get(name)
    again = isinstance(own, ast.ImportFrom) and origin_module(own, module, root) == module
    child = child_of(module, name, root) if own is None or again else None
    if child:
        return None if child in BOOKKEEPING else Place(child, "")
    if module_file(module, root) is None:  # a folder that a library has the name of
        return f"{Path(module).name}.{name}"
    return None if module in BOOKKEEPING else Place(module, name)


# ---- Where modules are ------------------------------------------------------------------


@cache
def is_installed(root: Path) -> bool:
    """Whether a folder is no checkout but one of libraries: the rooms lie within the package."""
    return (root / PACKAGE / ROOMS[0]).is_dir()


def room_file(path: str) -> Path:
    """The file of a room that is called so in a checkout: `algos/ppo.py`."""
    return ROOT / PACKAGE / path if is_installed(ROOT) else ROOT / path


def name_of_script(file: Path) -> str:
    """How the command `manyseeds` calls the file of a room: `ppo`, `llm_track/grpo`."""
    room = file.parent.name
    return file.stem if room in UNNAMED else f"{room}/{file.stem}"


def typed(script: Path) -> str:
    """What is typed to start a script: `python algos/ppo.py` or, installed, `manyseeds ppo`.

    The script of a user is named without its folder.
    """
    if not script.is_relative_to(ROOT):
        return f"python {script.name}"
    if is_installed(ROOT):
        return f"{PACKAGE} {name_of_script(script)}"
    return f"python {script.relative_to(ROOT)}"


def installing(extra: str) -> str:
    """What installs an extra: `pip install -e '.[llm]'` or `pip install 'manyseeds[llm]'`."""
    what = f"'{PACKAGE}[{extra}]'" if is_installed(ROOT) else f"-e '.[{extra}]'"
    return f"pip install {what}"


def is_path(module: str) -> bool:
    """Whether a module, or an origin's, is outside the checkout: a path."""
    return module.startswith("/")


def module_at(file: Path, root: Path) -> str:
    """The module of a file: its name in the project, or else its path."""
    if root in file.parents:
        parts = file.relative_to(root).with_suffix("").parts
        ours = parts[0] == PACKAGE or not is_installed(root)
        if ours and all(map(str.isidentifier, parts)):
            within = f"{PACKAGE}." if parts[0] in ROOMS else ""
            return within + ".".join(parts).removesuffix(".__init__")
    return str(file)


def module_in(folder: Path, name: str, root: Path, bare: bool = True) -> str | None:
    """The module `a.b`, or '' for the folder itself, that is imported from a folder.

    bare: or a folder with modules, without an `__init__.py`.
    """
    path = folder.joinpath(*filter(None, name.split(".")))
    for file in (path / "__init__.py", Path(f"{path}.py")):
        if file.is_file():
            return module_at(file, root)
    return str(path) if bare and path.is_dir() and any(path.glob("*.py")) else None


@cache
def located(name: str, module: str, root: Path, bare: bool = True) -> str | None:
    """The module that `import name` in a module means: the project's, or a user's; None: a library.

    A user's lies beside the file, or in the nearest folder above it that has such a one. bare: it
    may be a folder without an `__init__.py`, where there is nothing else of the name.
    """
    if not all(map(str.isidentifier, name.split("."))):
        return None
    ours = name if in_project(name, root) else None
    if ours and not is_path(module):
        return ours
    file = module_file(module, root)
    folders = list(takewhile(lambda x: x != root, file.parents)) if file else []
    if name.partition(".")[0] in sys.stdlib_module_names:
        folders = folders[:1]

    def beside(bare: bool) -> str | None:
        places = (module_in(folder, name, root, bare) for folder in folders)
        return next(filter(None, places), None)

    return beside(bare=False) or ours or (beside(bare=True) if bare else None)


@cache
def child_of(module: str, name: str, root: Path) -> str | None:
    """A submodule of a package, None where there is none of this name."""
    if not name.isidentifier():
        return None
    if not is_path(module):
        return f"{module}.{name}" if in_project(f"{module}.{name}", root) else None
    path = Path(module)
    if path.name != "__init__.py" and not path.is_dir():
        return None
    return module_in(path if path.is_dir() else path.parent, name, root)


def is_boundary(place: Place, root: Path) -> bool:
    """Whether a definition is marked by `boundary`: a decorator, or around a table."""
    found = find(place, root)
    around = getattr(getattr(found, "value", None), "func", None)
    marks = [*getattr(found, "decorator_list", []), around]
    name = boundary.__name__
    marked = any(isinstance(mark, ast.Name) and mark.id == name for mark in marks)
    if not marked or not is_path(place.module):
        return marked
    node = definitions(root, place.module).get(name)  # a user's own may be called alike
    source = node.module if isinstance(node, ast.ImportFrom) else None
    return source == boundary.__module__


def c_file(place: Place, root: Path) -> Path | None:
    """The file that a place names as C code: `ppo.c` in the folder of its module."""
    module = module_file(place.module, root) if re.fullmatch(rf"\w+\{C}", place.name) else None
    file = module.with_name(place.name) if module else None
    return file if file and file.is_file() else None


def c_names(node: ast.AST, module: str, root: Path) -> list[str]:
    """The names of C code beside a module that are written in a definition of it."""
    texts = {x.value for x in ast.walk(node) if isinstance(x, ast.Constant)}
    return sorted(x for x in texts if isinstance(x, str) and c_file(Place(module, x), root))


@cache
def c_named(module: str, root: Path) -> set[str]:
    """The same of all definitions of a module."""
    found = definitions(root, module).values()
    return {name for node in found for name in c_names(node, module, root)}


def c_beside(module: str, root: Path) -> Place | None:
    """The C code that lies beside a module under its name and belongs to all of it."""
    python = module_file(module, root)
    place = Place(module, f"{python.stem}{C}" if python else "")
    bindings = f"{module.rpartition('.')[0]}.{BINDINGS}"
    return place if c_file(place, root) and place.name not in c_named(bindings, root) else None


@cache
def c_texts(file: Path, root: Path) -> dict[Path, str]:
    """The texts, without comments, of C code, of the headers of ours that it includes, and of the
    C code of what these declare."""
    waiting, texts = [file], dict[Path, str]()
    for path in waiting:  # grows
        if path in texts or not path.is_file():
            continue
        text = re.sub(r"/\*.*?\*/|//[^\n]*", " ", text_at(path), flags=re.DOTALL)
        texts[path] = " ".join(text.split())
        headers = [root / HEADERS / name for name in re.findall(r'#include "([\w.]+)"', text)]
        waiting += [path for header in headers for path in (header, header.with_suffix(C))]
    return texts


def in_project(module: str, root: Path) -> bool:
    """Whether a module or package is in the project."""
    return module_file(module, root) is not None


def module_file(module: str, root: Path) -> Path | None:
    """The file of one of our modules, or the one that a path means."""
    if is_path(module):
        return Path(module) if module.endswith(".py") and os.path.isfile(module) else None
    parts = module.split(".")
    if not all(map(str.isidentifier, parts)) or parts[0] in ROOMS:
        return None
    if is_installed(root):
        if parts[0] != PACKAGE:  # a library beside it
            return None
    elif parts[0] == PACKAGE and parts[1:2] and parts[1] in ROOMS:
        parts = parts[1:]  # a checkout's folder
    path = root.joinpath(*parts)
    for file in (path.with_suffix(".py"), path / "__init__.py"):
        if file.is_file():
            return file
    return None


# ---- What a module defines --------------------------------------------------------------


def definitions(root: Path, module: str) -> dict[str, ast.stmt]:
    """The top-level names of a module: functions, classes, constants, imports; simplified.

    Under `Config()` the defaults of a Config.
    """
    return contents(root, module)[0]


@cache
def contents(root: Path, module: str) -> tuple[dict[str, ast.stmt], list[ast.stmt]]:
    """The definitions of a module, and what else it does when it is imported."""
    file = module_file(module, root)
    if file is None:
        return {}, []
    if not is_path(module):
        return contents_in(file.read_text(encoding="utf-8"))
    text = text_at(file)
    try:
        found, statements = contents_in(text, foreign=True)
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # of somebody's record, perhaps
        return {}, [ast.Expr(ast.Constant(text))]
    found = dict(found)
    for name in [name for name in found if name.endswith(SETTINGS)]:
        simplified = found.pop(name)
        if extends_ours(simplified, found, root):
            found[name.removesuffix(SETTINGS)] = simplified
    return found, statements


def text_at(file: Path) -> str:
    """The text of a file outside the checkout; of one too large to be read its size and time."""
    try:
        status = file.stat()
        if status.st_size > MAX_SIZE:
            return f"{status.st_size} bytes, changed at {status.st_mtime_ns}"
        with file.open(encoding="utf-8", errors="replace") as text:
            return text.read(status.st_size)  # some files of /proc have no end, and no size
    except OSError:
        return ""


def extends_ours(node: ast.AST, found: Mapping[str, ast.stmt], root: Path) -> bool:
    """Whether a class has a base that is imported from the project.

    found: the definitions of its module.
    """
    for base in getattr(node, "bases", []):
        where = found.get((chain_of(base) or [""])[0])
        modules = [alias.name for alias in where.names] if isinstance(where, ast.Import) else []
        modules += [where.module or ""] if isinstance(where, ast.ImportFrom) else []
        if any(in_project(module, root) for module in modules):
            return True
    return False


def definitions_in(text: str) -> dict[str, ast.stmt]:
    """The same as `definitions`, of a module's text."""
    return contents_in(text)[0]


@cache
def contents_in(text: str, foreign: bool = False) -> tuple[dict[str, ast.stmt], list[ast.stmt]]:
    """The same as `contents`, of a module's text: reading it takes longest.

    foreign: of a file outside the checkout, where any class may be called Config: under `Config{}`
    it is simplified as the Config of a run.
    """
    found: dict[str, ast.stmt] = {}
    statements: list[ast.stmt] = []
    for node in ast.parse(text).body:
        if isinstance(node, ast.ClassDef) and is_config(node):
            found[node.name + DEFAULTS] = defaults_of(node)
            if foreign:
                found[node.name + SETTINGS] = Simplified().visit(deepcopy(node))
        names = [name for name in bound(node) if name != ALL]
        for name in names:
            before = found.get(name)
            both = isinstance(node, ast.Import) and isinstance(before, ast.Import)
            if before is not None and not both and before not in statements:
                statements.append(before)
        found |= dict.fromkeys(names, node)
        if does_something(node):
            statements.append(node)
    simplified = Foreign() if foreign else Simplified()
    return (
        {name: simplified.visit(node) for name, node in found.items()},
        [simplified.visit(node) for node in statements],
    )


def does_something(node: ast.stmt) -> bool:
    """Whether a top-level statement may do more than to define names, or defines any name.

    The call in `if __name__ == "__main__"` is a run's command, which its record has.
    """
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Import):
        return False
    if isinstance(node, ast.ImportFrom):
        return ALL in bound(node)
    if isinstance(node, ast.Assign | ast.AnnAssign):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        return not all(isinstance(x, ast.Name | ast.Tuple) for x in targets)
    if isinstance(node, ast.If) and not node.orelse:
        condition = ast.unparse(node.test)
        if condition == "__name__ == '__main__'":
            (first, *more) = node.body
            return bool(more) or not isinstance(getattr(first, "value", None), ast.Call)
        return condition != "TYPE_CHECKING"
    return not (is_text(node) or isinstance(node, ast.Pass))


def bound(node: ast.stmt) -> list[str]:
    """The names that a statement defines."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return [node.name]
    if isinstance(node, ast.Import | ast.ImportFrom):
        return [name_of(alias) for alias in node.names]
    if isinstance(node, ast.Assign | ast.AnnAssign):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        inner = (x for target in targets for x in ast.walk(target) if isinstance(x, ast.Name))
        return [x.id for x in inner if isinstance(x.ctx, ast.Store)]
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
        left_out = CONDITIONS if is_config(node) else NOT_TRAINED_WITH
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


class Foreign(Simplified):
    """The same of a file outside the checkout: its classes may have any names."""

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        return self.generic_visit(node)


def is_field(node: ast.stmt) -> bool:
    """Whether a statement of a dataclass declares a field."""
    return isinstance(node, ast.AnnAssign) and "ClassVar" not in names_in(node.annotation)


def is_text(node: ast.AST) -> bool:
    """Whether a statement is a string: a docstring, or the description of a field."""
    constant = getattr(node, "value", None)
    return isinstance(node, ast.Expr) and isinstance(getattr(constant, "value", None), str)
