"""Whether the functions that a kernel stands for still say what the kernel computes.

What is read is what runs: a kernel in C is used only while the functions that it stands for, and
all that these reach, are what it was written for. Otherwise the functions themselves run, and one
line says which one was changed.

What is compared are the live objects. From a function, every name that it uses is followed through
its globals, through `self` and through the objects that it is called with and hands on, as Python
would look it up: an edited file, a copy of it anywhere, a subclass, a rebound or wrapped function,
a changed constant and an object with attributes of its own are all seen. Of each function the
syntax tree counts, without docstrings, comments and annotations (`manyseeds.digest`), after a check
that the function's bytecode is that of the text. Libraries are followed by name only.

The digests that kernels were written for are in known.json: for each kernel the versions that it
stands for, its C code included, and how much longer a training takes without it. C that was edited
is used again when it has been compared with the Python: no C runs that says something else.

A walk takes milliseconds, so its outcome is kept, and `look` asks whether anything that was walked
over has changed since: at each call of a kernel or, during a training, once an iteration, at most
fifty times a second.
"""

from __future__ import annotations

import ast
import builtins
import contextlib
import functools
import hashlib
import importlib.util
import json
import linecache
import marshal
import operator
import sys
import time
import types
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from itertools import takewhile
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy
import torch
from torch import nn
from torch.nn.modules import module as torch_modules

from manyseeds import ROOMS
from manyseeds.digest import (
    PACKAGE,
    ROOT,
    SUPER,
    c_reached,
    chain_of,
    definitions_in,
    is_library_file,
    names_of,
    origin_of,
    text_of,
)

HERE = Path(__file__).parent
MISSING = object()
ANSWERING = {"__getattribute__", "__getattr__"}
INTERVAL = 0.02  # seconds between two looks within a training, at least
WALKING = 0.02  # of the time goes into walks, at most
MANY = 64  # more data than that is no constant of an equation
C_CODE = "the C code"
GRADIENTS = {"backward", "autograd"}  # what computes them
# Wherever they are installed.
PACKAGES = [Path(str(package.__file__)).resolve().parent for package in (torch, numpy)]
Value = (int, float, str, bytes, bool, type(None), torch.dtype, torch.device)
Data = (*Value, torch.Tensor, tuple, list, dict, set, frozenset)
BEHAVIOUR = operator.attrgetter("__code__", "__defaults__", "__kwdefaults__")  # of a function


class Known(NamedTuple):
    """What known.json says of a kernel."""

    versions: list[frozenset[str]]  # the definitions of each version, `name digest`
    slower: float  # how many times as long a training takes without it; 0: not measured


@cache
def known() -> dict[str, Known]:
    """By kernel."""
    stored = json.loads((HERE / "known.json").read_text())
    return {
        name: Known([frozenset(version) for version in x["versions"]], x["slower"])
        for name, x in stored.items()
    }


class Guard:
    """What keeps one kernel from standing for functions that were changed.

    roots: the functions; methods by name where they belong to the first object that `allows` gets.
    c_of: a definition, or its origin, whose C code is compared, too.
    """

    kernels: ClassVar[set[str]] = set()  # that this process may use

    def __init__(
        self, kernel: str, *roots: Callable[..., Any] | str, c_of: Callable[..., Any] | str = ""
    ) -> None:
        self.kernel, self.roots, self.c_of = kernel, roots, c_of
        self.kernels.add(kernel)
        self._verdicts: dict[tuple[int | type, ...], bool] = {}  # by `key_of` what was asked for
        self._alive: dict[int, weakref.ref[Any]] = {}  # to the objects that have a verdict
        self._generation = -1  # of the verdicts

    def allows(self, *given: Any) -> bool:
        """Whether the kernel computes what the functions say.

        given: the arguments of the function, in the order of its parameters. Where methods are
        named, their object.
        """
        if watch.by_iteration and self._generation == watch.generation:
            verdict = self._verdicts.get(key_of(given))
            if verdict is not None:
                return verdict
        return self._ask(given)

    def _ask(self, given: Sequence[Any]) -> bool:
        if not watch.by_iteration:
            watch.look()
        if self._generation != watch.generation:
            self._generation = watch.generation
            self._verdicts.clear()
            self._alive.clear()
        objects = [x for x in given if is_object(x) and not is_frozen(x)]
        CLASSES.update(map(type, objects))
        key = key_of(given)
        if key not in self._verdicts:
            self._verdicts[key] = self._decide(given)
            for x in objects:
                self._alive[id(x)] = weakref.ref(x, functools.partial(self._drop, id(x)))
        return self._verdicts[key]

    def _drop(self, number: int, gone: Any) -> None:
        """Forget an object that is gone, unless another one has its place already."""
        if self._alive.get(number) is gone:
            del self._alive[number]
            self._verdicts = {k: x for k, x in self._verdicts.items() if number not in k}

    def walk(self, *given: Any) -> Walk:
        """All that the functions reach now; given: as for `allows`.

        Raises TypeError for objects in a tuple: what unpacks it hides whose methods are called.
        """
        for x in given:
            if isinstance(x, tuple) and any(map(is_object, x)):
                raise TypeError(f"{type(x).__name__} holds objects")
        walk = Walk()
        for root in self.roots:
            walk.follow_root(root, given)
        if any(not GRADIENTS.isdisjoint(f.__code__.co_names) for f in walk.functions):
            for module in given:
                named = module.named_parameters() if isinstance(module, nn.Module) else ()
                held = [name for name, p in named if is_held(p)]
                if held:
                    what, where = f"{held[0]} (frozen, or with a hook)", type(module).__name__
                    walk.add(what, "held", where)
        if self.c_of:
            for file, text in c_reached(origin_of(self.c_of)).items():
                walk.add(C_CODE, text, shown(str(file)))
        return walk

    def _decide(self, given: Sequence[Any]) -> bool:
        """Compare with what is known; say so where it differs."""
        began = time.perf_counter()
        kernel = known().get(self.kernel, Known([], 0.0))
        try:
            walk = self.walk(*given)
            watch.add(walk)
        except Exception as error:  # somebody's objects may do anything when they are looked at
            what = f"what its functions reach ({type(error).__name__}: {error})"
            say_changed([Definition(what, self.kernel, "")], kernel.slower)
            return False
        finally:
            watch.walked += time.perf_counter() - began
        if any(walk.found.keys() <= version for version in kernel.versions):
            return True
        closest = max(
            kernel.versions, key=lambda v: len(v & walk.found.keys()), default=frozenset()
        )
        changed = [definition for key, definition in walk.found.items() if key not in closest]
        # What was changed may be lost to other kernels as well.
        lost = [x for name, x in known().items() if name in self.kernels]
        lost = [x for x in lost if any(v & (closest - walk.found.keys()) for v in x.versions)]
        say_changed(changed, max(x.slower for x in (kernel, *lost)))
        return False


CLASSES: set[type] = set()  # of the objects that guards were asked for


def key_of(given: Sequence[Any]) -> tuple[int | type, ...]:
    """What a verdict depends on: which objects, and otherwise their classes."""
    return tuple([id(x) if type(x) in CLASSES else type(x) for x in given])


class Definition(NamedTuple):
    """Something that a walk came to: a function, a class, a constant."""

    name: str  # as in its file: `ActorCritic.act`
    file: str
    user: str  # the definition whose name led here


FIELD = type(Definition.name)  # what a named tuple has for each of its fields
_said: set[str] = set()


def say_changed(changed: Sequence[Definition], slower: float) -> None:
    """One line on stderr, once: which functions were changed, and what that costs.

    changed: in the order of the walk.
    """
    # A function whose names mean something else has not changed itself: what they mean now has.
    users = {definition.user for definition in changed}
    inner = [x for x in changed if x.name not in users] or list(changed)
    by_file: dict[str, list[str]] = {}
    for definition in inner:
        by_file.setdefault(definition.file, []).append(definition.name)
    texts = [f"{', '.join(names[:3])} of {file}" for file, names in by_file.items()]
    cost = f" (training takes about {slower:g} times as long)" if slower > 1 else ""
    was = "was" if sum(map(len, by_file.values())) == 1 else "were"
    since = " and not compared with the Python since" if inner[0].name == C_CODE else ""
    what = f"{' and '.join(texts)} {was} changed{since}"
    say(what, cost)


def say(what: str, cost: str = "") -> None:
    """One line on stderr, once: why a kernel is left out."""
    if what not in _said:  # by a kernel that stands for more, perhaps
        _said.add(what)
        print(f"note: {what}: PyTorch computes this now, not C{cost}", file=sys.stderr)


class Passed(NamedTuple):
    """The arguments of a call that are objects, or classes of such; MISSING for others."""

    by_position: Sequence[Any] = ()
    by_name: Mapping[str, Any] = {}


NOTHING = Passed()


class Walk:
    """Follows live functions, classes, constants and objects."""

    def __init__(self) -> None:
        self.found: dict[str, Definition] = {}  # by `name digest`
        self.functions: dict[types.FunctionType, None] = {}
        self.names: dict[int, tuple[Mapping[str, Any], dict[str, None]]] = {}
        self.containers: dict[int, Any] = {}
        self.objects: dict[int, Any] = {}
        self._seen: set[tuple[Any, ...]] = set()
        self._user = self._file = ""

    def follow_root(self, root: Callable[..., Any] | str, given: Sequence[Any]) -> None:
        """Begin with a function and its arguments, or with a method of the first of these."""
        for x in given:
            if is_object(x):
                self._watch_object(x)
        passed = [standing_for(x) for x in given]
        name = root if isinstance(root, str) else root.__name__
        if callable(root) and "." not in root.__qualname__:  # what its module calls so now
            owner, found = MISSING, self._global(root.__globals__, name)
        else:
            owner = given[0] if hasattr(given[0], "__dict__") else type(given[0])
            passed = passed[1:]
            if name == root:
                found = self._attribute(owner, name)
            else:  # as it stands in its class, with its decorators
                stored = (vars(cls).get(name) for cls in class_of(owner).__mro__)
                found = next((x for x in stored if unwrapped(x)[0] is root), root)
        if is_followed(unwrapped(found)[0]):
            self._follow(found, owner, passed=Passed(passed))
        else:  # nowhere, or where nobody can read it
            self.add(name, "unknown")

    def _follow(
        self, value: Any, owner: Any = MISSING, name: str = "", passed: Passed = NOTHING
    ) -> str:
        """Follow a value; returns what to call it in the meanings of names.

        owner: what `self` is in a method. name: of a constant, as it is written in its file.
        passed: what it is called with.
        """
        value, layers = unwrapped(value)
        if isinstance(value, types.ModuleType):
            return "" if is_ours(getattr(value, "__file__", None)) else value.__name__
        if isinstance(value, Data):
            text = self._text(value)
            if name:
                self.add(name, text)
            return name or text
        if not is_followed(value):
            for x in (*passed.by_position, *passed.by_name.values()):
                if is_object(x):
                    self._object(x)  # a library may call it
            return label_of(value)
        if isinstance(value, types.FunctionType):
            self._function(value, owner, layers, passed)
            return value.__qualname__
        if isinstance(value, type):
            self._class(value)
            return value.__qualname__
        self._object(value, passed)
        return type(value).__qualname__

    def _text(self, value: Any) -> str:
        """The text of plain data; functions in it are followed."""
        if isinstance(value, tuple | list | dict | set | frozenset) and len(value) > MANY:
            return f"{type(value).__name__} of many"
        if isinstance(value, dict):
            self.containers[id(value)] = value
            pairs = (f"{self._text(k)}: {self._text(x)}" for k, x in value.items())
            return f"{{{', '.join(pairs)}}}"
        if isinstance(value, tuple | list | set | frozenset):
            if isinstance(value, list):
                self.containers[id(value)] = value
            texts = [self._text(x) for x in value]
            texts = sorted(texts) if isinstance(value, set | frozenset) else texts
            return f"{type(value).__name__}({', '.join(texts)})"
        if isinstance(value, torch.Tensor):
            data = value.tolist() if value.numel() <= MANY else "many"
            return f"{value.dtype} {list(value.shape)} {data}"
        return repr(value) if isinstance(value, Value) else self._follow(value)

    def add(self, name: str, text: str, file: str = "") -> None:
        """Something that the walk came to, in the file that it is in unless one is given."""
        digest = hashlib.sha256(text.encode(errors="replace")).hexdigest()[:8]
        self.found.setdefault(f"{name} {digest}", Definition(name, file or self._file, self._user))

    def _function(
        self, function: types.FunctionType, owner: Any, layers: int, passed: Passed
    ) -> None:
        """Follow a function; owner: what its `self` is; layers: how many decorators it has."""
        objects = objects_of(function, owner, passed)
        key = id(function), *((name, id(x)) for name, x in objects.items())
        if key in self._seen:
            return
        self._seen.add(key)
        self.functions[function] = None
        before, self._file = (self._user, self._file), shown(file_of(function))
        node = definition_of(function)
        if node is None:  # its text is not what runs, or nowhere
            self.add(function.__qualname__, "unknown")
            self._user, self._file = before
            return
        user, self._user = self._user, function.__qualname__
        code = function.__code__
        defaults = function.__defaults__, function.__kwdefaults__
        cells = dict(zip(code.co_freevars, function.__closure__ or (), strict=True))
        local = locals_of(node)
        meanings = []  # of names that no object decides
        for (first, *rest), call in chains_of(node):
            handed_on = self._passed(call, objects)
            meaning = ""
            if first in objects:
                self._through(objects[first], rest or ["__call__"] * bool(call), handed_on)
            elif first == SUPER:
                self._through_super(function, owner, rest, handed_on)
            elif first in cells:
                meaning = self._follow(cells[first].cell_contents, passed=handed_on)
            elif first not in local:
                meaning = self._through_globals(function.__globals__, first, rest, handed_on)
            meanings.append(meaning)
        self._user = user
        said = text_of(node), self._text(defaults), meanings, layers
        self.add(function.__qualname__, str(said))
        self._user, self._file = before

    def _passed(self, call: ast.Call | None, objects: Mapping[str, Any]) -> Passed:
        """The objects among the arguments of a call in a function that has some objects."""
        if call is None:
            return NOTHING
        placed = takewhile(lambda x: not isinstance(x, ast.Starred), call.args)
        named = {x.arg: self._named(x.value, objects) for x in call.keywords if x.arg}
        return Passed([self._named(x, objects) for x in placed], named)

    def _named(self, node: ast.expr, objects: Mapping[str, Any]) -> Any:
        """The object that an expression names: `agent`, `agent.obs_stats`."""
        first, *rest = chain_of(node) or [""]
        value = objects.get(first, MISSING)
        for attribute in rest:
            if value is MISSING:
                break
            value = standing_for(self._attribute(value, attribute))
        return value

    def _through_globals(
        self, names: dict[str, Any], first: str, rest: Sequence[str], passed: Passed
    ) -> str:
        """What a name, and attributes of it, mean in a module."""
        value = self._global(names, first)
        if value is MISSING:
            return first if hasattr(builtins, first) else ""
        name = first
        for attribute in rest:
            if isinstance(value, types.ModuleType):
                inner = self._global(vars(value), attribute)
                if inner is MISSING:
                    return ""
                value, name = inner, attribute
            elif isinstance(value, type) and is_ours(file_of(value)):
                value = self._attribute(value, attribute)
                name = ""
            else:
                break
        return "" if value is MISSING else self._follow(value, name=name, passed=passed)

    def _global(self, names: dict[str, Any], name: str) -> Any:
        """The value of a global name, which is watched from now on, also where there is none."""
        self._watch(names, names, name)
        return names.get(name, MISSING)

    def _watch(self, key: Any, names: Mapping[str, Any], *chosen: str) -> None:
        """Watch names of a module or, with the class as key, of a class."""
        self.names.setdefault(id(key), (names, {}))[1].update(dict.fromkeys(chosen))

    def _through(self, value: Any, rest: Sequence[str], passed: Passed) -> None:
        """Follow attributes of an object or, where there is none yet, of its class."""
        if rest == ["__call__"] and is_object(value):
            self._object(value, passed)
            return
        for attribute in rest:
            owner, value = value, self._attribute(value, attribute)
            if value is MISSING:
                return
            if isinstance(value, property):
                self._follow(value.fget, owner)
                return
            inner, _ = unwrapped(value)
            own = is_own(owner, attribute)
            if isinstance(inner, types.FunctionType) and is_followed(inner):
                self._follow(value, owner, passed=passed)
                return
            if not is_followed(inner):
                # An object's own data is no code; what a library can call may be anything.
                if not own and type(inner) is not FIELD:
                    cls = definer(owner, attribute)
                    self.add(f"{cls.__qualname__}.{attribute}", self._text(inner))
                elif callable(inner):
                    self.add(attribute, label_of(inner))
                return
            if not own and hasattr(type(inner), "__get__"):
                self.add(f"{definer(owner, attribute).__qualname__}.{attribute}", "unknown")
            value = inner
        if is_object(value) and rest:
            self._object(value, passed)

    def _through_super(
        self, function: types.FunctionType, owner: Any, rest: list[str], passed: Passed
    ) -> None:
        """Follow `super().method` of a method."""
        if owner is MISSING:
            return
        order = class_of(owner).__mro__
        own = [
            k
            for k, c in enumerate(order)
            if function in (unwrapped(x)[0] for x in vars(c).values())
        ]
        for base in order[own[0] + 1 :] if own else ():
            self._watch(base, vars(base), rest[0])
            if rest[0] in vars(base):
                self._follow(vars(base)[rest[0]], owner, passed=passed)
                return

    def _attribute(self, owner: Any, name: str) -> Any:
        """The attribute of an object, or of the objects of a class, as it is stored."""
        if not isinstance(owner, type):
            if not is_frozen(owner):
                self.objects[id(owner)] = owner
            if is_own(owner, name):
                found = vars(owner).get(name, MISSING)
                return found if found is not MISSING else getattr(owner, name)
        for cls in class_of(owner).__mro__:
            if is_ours(file_of(cls)):
                for hook in ANSWERING & vars(cls).keys():
                    self.add(f"{cls.__qualname__}.{hook}", "unknown")  # it may answer anything
                self._watch(cls, vars(cls), name, *ANSWERING)
                if name in vars(cls):
                    return vars(cls)[name]
        return MISSING  # or a library's

    def _class(self, cls: type) -> None:
        """Follow a class as a whole, with all its methods."""
        if (id(cls), 0) in self._seen:
            return
        self._seen.add((id(cls), 0))
        before, self._file = (self._user, self._file), shown(file_of(cls))
        user, self._user = self._user, cls.__qualname__
        own = read(file_of(cls) or "")[1].get(cls.__qualname__)
        body = getattr(own, "body", ())
        methods = [x.name for x in body if isinstance(x, ast.FunctionDef)]
        data = [x for x in body if not isinstance(x, ast.FunctionDef)]
        text = [text_of(x) for x in (*getattr(own, "decorator_list", ()), *data)]
        text += [self._follow(base) for base in cls.__bases__]
        for name in dict.fromkeys((*methods, *vars(cls))):
            value = vars(cls).get(name)
            value = value.fget if isinstance(value, property) else value
            inner, _ = unwrapped(value)
            is_made = is_function(inner) and inner.__code__.co_filename == "<string>"
            if name not in methods and is_made:  # by the machinery of tuples and dataclasses
                continue
            if is_function(inner) and is_followed(inner):
                self._watch(cls, vars(cls), name)
                self._follow(value, cls)
            elif name in methods:  # something else has taken its place
                self.add(f"{cls.__qualname__}.{name}", "unknown")
        self._user = user
        self.add(cls.__qualname__, str(text))
        self._user, self._file = before

    def _object(self, value: Any, passed: Passed = NOTHING) -> None:
        """Follow what an object does when it is called."""
        self._watch_object(value)
        called = "forward" if isinstance(value, nn.Module) else "__call__"
        found = self._attribute(value, called)
        if found is not MISSING:
            self._follow(found, value, passed=passed)

    def _watch_object(self, value: Any) -> None:
        if not is_frozen(value):
            self.objects[id(value)] = value
        if isinstance(value, nn.Module) and hooks_of(value):
            file = shown(file_of(type(value)))
            self.add(f"a hook of {type(value).__qualname__}", "hook", file)


# ---- Live objects ---------------------------------------------------------------------------


def unwrapped(value: Any) -> tuple[Any, int]:
    """What is behind a library's decorators, or behind `in_c`, and how many these are.

    Decorators of a user are functions like others.
    """
    layers = 0
    while True:
        if isinstance(value, staticmethod | classmethod | types.MethodType):
            value, layers = value.__func__, layers + (not isinstance(value, types.MethodType))
        elif isinstance(value, functools.cached_property):
            value, layers = value.func, layers + 1
        elif "__wrapped__" in getattr(value, "__dict__", ()) and (
            (is_function(value) and (is_kernel(value) or not is_ours(value.__code__.co_filename)))
            or isinstance(value, functools._lru_cache_wrapper)
        ):
            value, layers = value.__wrapped__, layers + 1
        else:
            return value, layers


def is_function(value: Any) -> bool:
    return isinstance(value, types.FunctionType)


def is_kernel(value: Any) -> bool:
    """Whether something belongs to the kernels themselves."""
    if isinstance(value, types.FunctionType):  # `__module__` may be that of what it wraps
        module = value.__globals__.get("__name__", "")
    else:
        module = getattr(value, "__module__", "")
    return str(module).startswith(PACKAGE) and "kernels" in str(module).split(".")


def label_of(value: Any) -> str:
    """The name of something of a library: its package and its own name."""
    module = str(getattr(value, "__module__", None) or "").partition(".")[0]
    name = getattr(value, "__name__", None) or type(value).__name__
    return f"{module}.{name}"


def is_followed(value: Any) -> bool:
    """Whether a value is a function, a class or an object of ours, or of a user."""
    if isinstance(value, types.FunctionType | type):
        return not is_kernel(value) and is_ours(file_of(value))
    return is_object(value)


def is_object(value: Any) -> bool:
    """Whether a value is an instance of a class of ours, or of a user, with attributes."""
    return (
        hasattr(value, "__dict__")
        and not isinstance(value, (types.FunctionType, types.ModuleType, type, torch.Tensor, tuple))
        and is_ours(file_of(type(value)))
    )


def standing_for(value: Any) -> Any:
    """What stands for a value in a walk: an object itself, for a named tuple its class."""
    if is_object(value):
        return value
    is_named = isinstance(value, tuple) and is_ours(file_of(type(value)))
    return type(value) if is_named else MISSING


def objects_of(function: types.FunctionType, owner: Any, passed: Passed) -> dict[str, Any]:
    """The parameters of a function that are objects, when it is called with some."""
    code = function.__code__
    parameters = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    given = passed.by_position if owner is MISSING else (owner, *passed.by_position)
    found = dict(zip(parameters[: code.co_argcount], given, strict=False)) | {**passed.by_name}
    return {name: x for name, x in found.items() if x is not MISSING and name in parameters}


def is_frozen(value: Any) -> bool:
    """Whether an object is data that nobody changes, as a Config: its class says what it does."""
    parameters = getattr(type(value), "__dataclass_params__", None)
    return parameters is not None and parameters.frozen


def class_of(owner: Any) -> type:
    """The class of an object; a class stands for its objects."""
    return owner if isinstance(owner, type) else type(owner)


def definer(owner: Any, name: str) -> type:
    """The class that an attribute of an object is from."""
    return next(cls for cls in class_of(owner).__mro__ if name in vars(cls))


def is_own(owner: Any, name: str) -> bool:
    """Whether an object, not its class, has an attribute."""
    if isinstance(owner, type):
        return False
    own = vars(owner)
    tables = (own.get(x, {}) for x in ("_modules", "_parameters", "_buffers"))
    return name in own or (isinstance(owner, nn.Module) and any(name in x for x in tables))


def hooks_of(module: nn.Module) -> int:
    """How many hooks run when a module is called."""
    own = vars(module)
    forward = len(own["_forward_hooks"]) + len(own["_forward_pre_hooks"])
    backward = len(own["_backward_hooks"]) + len(own["_backward_pre_hooks"])
    return forward + backward + sum(map(len, HOOKS))


# Those of all modules.
HOOKS = [
    getattr(torch_modules, f"_global_{name}")
    for name in ("forward_hooks", "forward_pre_hooks", "backward_hooks", "backward_pre_hooks")
]


def is_held(p: torch.Tensor) -> bool:
    """Whether the gradient of a parameter is not what backpropagation alone makes of it."""
    after = getattr(p, "_post_accumulate_grad_hooks", None)
    return not p.requires_grad or bool(p._backward_hooks) or bool(after)


@cache
def is_ours(file: str | None) -> bool:
    """Whether a file is this project's or a user's, and no library's."""
    if not file or file.startswith("<frozen"):
        return False
    if file.startswith("<"):  # of a notebook, of `exec`
        return True
    path = Path(file)
    if ROOT in path.parents and path.relative_to(ROOT).parts[0] in (PACKAGE, *ROOMS):
        return True  # this project may be installed beside libraries
    return not is_library_file(path) and not any(x in path.parents for x in PACKAGES)


def file_of(value: Any) -> str | None:
    """The file of a function or class."""
    if isinstance(value, types.FunctionType):
        own = value.__code__.co_filename
        module = sys.modules.get(value.__module__)
        of_module = getattr(module, "__file__", None)
        # A script's code has the path as it was typed.
        same = of_module and Path(own).name == Path(of_module).name
        return str(of_module) if same else own
    module = sys.modules.get(getattr(value, "__module__", ""))
    if module is None:
        return None
    # What a notebook or `python -c` defines has no file, and is a user's.
    return getattr(module, "__file__", None) or ("" if is_builtin(module) else "<input>")


def is_builtin(module: types.ModuleType) -> bool:
    return module.__name__ in sys.builtin_module_names


def shown(file: str | None) -> str:
    """A file for people: from the checkout, or from the working folder, where it is in there."""
    path = Path(file or "")
    found = (path.relative_to(folder) for folder in (ROOT, Path.cwd()) if folder in path.parents)
    return str(next(found, file))


# ---- Texts ----------------------------------------------------------------------------------


def definition_of(function: types.FunctionType) -> Any:
    """The simplified syntax tree of a function; None where its text is not what runs."""
    file = file_of(function)
    codes, tree = read(file or "")
    code, name = function.__code__, function.__qualname__
    if code not in codes.get(name, ()):
        return None
    outer, *inner = name.split(".")
    node = tree.get(outer)
    for part in inner:
        body = getattr(node, "body", ())
        node = next((x for x in body if getattr(x, "name", None) == part), None)
    if node is None:
        return None
    first = min([node.lineno, *(x.lineno for x in node.decorator_list)])
    return node if first == code.co_firstlineno else None


def read(file: str) -> tuple[dict[str, list[types.CodeType]], Mapping[str, Any]]:
    """The bytecode of all functions in a file by their qualified names, and its definitions."""
    linecache.checkcache(file)
    return read_text(file, "".join(linecache.getlines(file)))


@cache
def read_text(file: str, text: str) -> tuple[dict[str, list[types.CodeType]], Mapping[str, Any]]:
    """The same of a file's text."""
    try:
        compiled = bytecode_of(file) or compile(text, file, "exec", dont_inherit=True)
        tree = definitions_in(text)
    except (SyntaxError, ValueError):
        return {}, {}
    found: dict[str, list[types.CodeType]] = {}
    waiting = [compiled]
    for code in waiting:  # grows
        found.setdefault(code.co_qualname, []).append(code)
        waiting += [x for x in code.co_consts if isinstance(x, types.CodeType)]
    return found, tree


def bytecode_of(file: str) -> types.CodeType | None:
    """What Python has kept of a module's compilation, where that is of the file as it is."""
    try:
        status = Path(file).stat()
        data = Path(importlib.util.cache_from_source(file)).read_bytes()
    except (OSError, NotImplementedError, ValueError):
        return None
    head = importlib.util.MAGIC_NUMBER + bytes(4)
    head += (int(status.st_mtime) & 0xFFFFFFFF).to_bytes(4, "little")
    head += (status.st_size & 0xFFFFFFFF).to_bytes(4, "little")
    return marshal.loads(data[16:]) if data[:16] == head else None


def replaced() -> dict[str, str]:
    """The functions and methods of algorithms, environments and networks that are not those of
    their files: somebody has bound others, or has edited a file while it was imported.

    By name, with the file outside the checkout that has the other one; '' where none can be read.
    """
    found = {}
    for module in list(sys.modules.values()):
        file = getattr(module, "__file__", None)
        if not (file and is_ours(file) and has_equations(module.__name__)):
            continue
        for name, node in read(file)[1].items():
            live = vars(module).get(name, MISSING)
            if isinstance(node, ast.FunctionDef):
                is_same = is_of(live, node)
            elif isinstance(node, ast.ClassDef) and isinstance(live, type):
                names = [x.name for x in node.body if isinstance(x, ast.FunctionDef)]
                once = {x.name: x for x in node.body if isinstance(x, ast.FunctionDef)}
                own = {x: y for x, y in once.items() if names.count(x) == 1}
                is_same = all(is_of(vars(live).get(x), y) for x, y in own.items())
            elif isinstance(node, ast.ImportFrom):
                source = sys.modules.get(node.module or "")
                alias = next(x for x in node.names if (x.asname or x.name) == name)
                is_same = source is None or live is getattr(source, alias.name, live)
            else:
                is_same = True
            if not is_same:
                found[f"{module.__name__}.{name}"] = readable_file(live)
    return found


def readable_file(live: Any) -> str:
    """The file outside the checkout of a function whose text is what runs; '' for others."""
    function, _ = unwrapped(live)
    if not is_function(function) or definition_of(function) is None:
        return ""
    path = Path(file_of(function) or "").resolve()
    return "" if ROOT in path.parents or not path.is_file() else str(path)


def has_equations(module: str) -> bool:
    """Whether a module is an algorithm, an environment, or what these compute with."""
    package, _, name = module.partition(".")
    computed = ("layers", "optim", "distributions", "samples", "rows", "seeds", "evaluate")
    ours = package == PACKAGE and (name in computed or name.partition(".")[0] in ("envs", "algos"))
    return ours or module == "__main__"


def is_of(live: Any, node: ast.FunctionDef) -> bool:
    """Whether a function is that of a definition."""
    function, _ = unwrapped(live.fget if isinstance(live, property) else live)
    return is_function(function) and definition_of(function) is node


@cache
def chains_of(node: Any) -> list[tuple[list[str], ast.Call | None]]:
    """The names that a definition uses, `["a", "b"]` for a.b, and the call of each that is."""
    calls = {id(x.func): x for x in ast.walk(node) if isinstance(x, ast.Call)}
    return [(chain, calls.get(id(name))) for name, chain in names_of(node)[0]]


@cache
def locals_of(node: Any) -> frozenset[str]:
    """The names that a function binds itself."""
    inside = list(ast.walk(node))
    stored = {x.id for x in inside if isinstance(x, ast.Name) and not isinstance(x.ctx, ast.Load)}
    return frozenset(stored | {x.arg for x in inside if isinstance(x, ast.arg)})


# ---- What has changed since -----------------------------------------------------------------


class Watch:
    """What all walks have come across, and whether it is still as it was.

    A look compares hundreds of references, which takes some 20 to 50 microseconds of a training.
    """

    def __init__(self) -> None:
        self.by_iteration = False
        self.generation = 0
        self._next = 0.0  # when the next iteration looks
        self.walked = 0.0  # seconds since the last look
        self._forget()

    def _forget(self) -> None:
        self._names: dict[int, Names] = {}
        self._functions: dict[types.FunctionType, None] = {}
        self._behaviour: list[Any] = []
        self._containers: dict[int, tuple[Any, list[Any]]] = {}
        self._objects: dict[int, tuple[weakref.ref[Any], tuple[Any, ...]]] = {}

    def add(self, walk: Walk) -> None:
        """Watch what a walk has come across."""
        for key, (names, chosen) in walk.names.items():
            before = self._names[key].watched if key in self._names else ()
            self._names[key] = Names.of(names, {*before, *chosen})
        self._functions |= walk.functions
        self._behaviour = list(map(BEHAVIOUR, self._functions))
        for key, container in walk.containers.items():
            self._containers[key] = container, contents_of(container)
        for key, thing in walk.objects.items():
            self._objects[key] = weakref.ref(thing), state_of(thing)

    def look_by_iteration(self) -> None:
        """`look`, after an iteration of a training; where those are short, after some."""
        now = time.perf_counter()
        if now >= self._next:
            # Something that changes all the time is not followed all the time.
            self._next = now + max(INTERVAL, self.walked / WALKING)
            self.walked = 0.0
            self.look()

    def look(self) -> None:
        """Let all verdicts be made again if anything has changed."""
        try:
            same = self._is_as_it_was()
        except Exception:  # a name is gone, or now means something that cannot be compared
            same = False
        if not same:
            self.generation += 1
            self._forget()

    def _is_as_it_was(self) -> bool:
        for names, get, values, absent, _ in self._names.values():
            if get(names) != values or (absent and not absent.isdisjoint(names)):
                return False
        if list(map(BEHAVIOUR, self._functions)) != self._behaviour:
            return False
        for container, values in self._containers.values():
            if contents_of(container) != values:
                return False
        gone = {key for key, (reference, _) in self._objects.items() if reference() is None}
        for reference, state in self._objects.values():
            thing = reference()
            # Another object may have taken the place in memory of a part that is gone.
            if thing is not None and (state_of(thing) != state or not gone.isdisjoint(state)):
                return False
        for key in gone:
            del self._objects[key]
        return True


class Names(NamedTuple):
    """Names of a module or class, and what they mean."""

    names: Mapping[str, Any]
    get: Callable[[Any], Any]
    values: Any
    absent: frozenset[str]  # which mean something built in, unless somebody binds them
    watched: frozenset[str]

    @classmethod
    def of(cls, names: Mapping[str, Any], watched: set[str]) -> Names:
        """What the names mean now."""
        there = sorted(name for name in watched if name in names)
        # A tuple also of one name. Of none: the type of the mapping, always the same.
        get = operator.itemgetter(there[0], *there) if there else type
        absent = frozenset(watched.difference(there))
        return cls(names, get, get(names), absent, frozenset(watched))


def contents_of(container: Any) -> list[Any]:
    return list(container.values() if isinstance(container, dict) else container)


def state_of(thing: Any) -> tuple[Any, ...]:
    """What of an object decides which functions it runs."""
    own = vars(thing)
    parts = [id(x) for x in own.values() if callable(x) or type(x) in CLASSES]
    if isinstance(thing, nn.Module):
        parts += map(id, own["_modules"].values())
        parts += hooks_of(thing), *map(is_held, thing.parameters())
    return type(thing), len(own), *parts


watch = Watch()


@contextlib.contextmanager
def looking_by_iteration() -> Iterator[None]:
    """Let kernels rely on whoever trains to look once an iteration."""
    before, watch.by_iteration = watch.by_iteration, True
    watch.look()
    try:
        yield
    finally:
        watch.by_iteration = before
