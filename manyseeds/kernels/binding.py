"""Calls of C functions, by the declarations that stand in their sources.

A function that Python calls takes one argument, a struct of its own name:

    struct gae {
      int S, T, N;
      const float *rewards, *values;  // [S, T, N]
      const float *gamma;             // [S]
      const float *log_std;           // [S, D]; null: discrete
      float *advantages;              // [S, T, N]
    };
    int gae(const struct gae *x);

`Kernel(source, "gae")(S=1, T=128, rewards=..., ...)` fills it. Each tensor is checked against the
type and the shape that are declared, whose names are fields of the struct, and so is memory that C
may change. `const` ones are copied where they are not contiguous. A hyperparameter of shape [S] may
be a number. A field that may be null says so in its comment. C returns 0, 1 without memory, or 2
for an index that is out of range.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

NUMBERS = {"int": ctypes.c_int, "long": ctypes.c_long, "double": ctypes.c_double}
LIMIT = 2**31  # of what an int of C holds
DTYPES = {
    "float": torch.float32,
    "double": torch.float64,
    "int64_t": torch.int64,
    "int32_t": torch.int32,
    "unsigned char": torch.bool,
}


class CannotTake(Exception):
    """What a kernel cannot compute with, in a few words; the Python can."""


class Field(NamedTuple):
    """A field of a struct."""

    name: str
    number: Any = None  # the type of a number in ctypes; None: a pointer
    dtype: torch.dtype | None = None  # of a tensor; None: anything else, or another struct
    shape: str = ""  # `S, T, N`
    constant: bool = False  # C does not change it
    may_be_null: bool = False


class Struct:
    """A struct of C, by its declaration in a source."""

    def __init__(self, source: Path, name: str) -> None:
        self.name = name
        self.fields = fields_of(source.read_text(), name)
        as_c = [(x.name, x.number or ctypes.c_void_p) for x in self.fields]
        self._type: Any = type(name, (ctypes.Structure,), {"_fields_": as_c})
        self._checks: Any = self._compiled()

    def __call__(self, **given: Any) -> ctypes.Structure:
        """The struct with these fields, which are checked; it keeps what it points to alive.

        Raises TypeError and ValueError, and CannotTake for a number that C cannot hold.
        """
        kept, values = self._checks(**given)
        filled: ctypes.Structure = self._type(*values)
        filled.kept = kept
        return filled

    def _compiled(self) -> Callable[..., tuple[list[Any], tuple[Any, ...]]]:
        """A function of the fields that returns what C points to, and the values for C.

        It is put together once, as a check that interprets the fields takes as long as a small
        kernel. What is the usual case is looked at in line, all else in `_address`.
        """
        shapes = list(dict.fromkeys(x.shape for x in self.fields if x.shape))
        names = [x.name for x in self.fields]
        arguments = ", ".join("threads=None" if x == "threads" else x for x in names)
        lines = [f"def checks(*, {arguments}):", " kept = []"]
        if "threads" in names:
            lines.append(" threads = threads or get_num_threads()")
        whole = [x.name for x in self.fields if x.number is ctypes.c_int and x.name != "threads"]
        if whole:  # ctypes would drop what does not fit
            fits = " and ".join(f"-LIMIT <= {x} < LIMIT" for x in whole)
            lines.append(f" if not ({fits}): raise too_large({', '.join(whole)})")
        for i, shape in enumerate(shapes):
            lines.append(f" size_{i} = {'*'.join(f'({x})' for x in shape.split(','))}")
        known: dict[str, Any] = {
            "Tensor": Tensor,
            "Structure": ctypes.Structure,
            "addressof": ctypes.addressof,
            "constant": _constant,
            "LIMIT": LIMIT,
            "too_large": too_large,
            "other_seeds": other_seeds,
            "seeds_of": seeds_of,
            "get_num_threads": torch.get_num_threads,
        }
        for i, x in enumerate(self.fields):
            if x.number is not None:
                continue
            known |= {f"field_{i}": x, f"dtype_{i}": x.dtype, "address": self._address}
            size = f"size_{shapes.index(x.shape)}" if x.shape else "None"
            if x.constant and x.shape == "S":
                lines.append(f" if type({x.name}) is float:")
                lines.append(f"  {x.name} = constant({x.name}, {size}, dtype_{i})")
            usual, where = f"isinstance({x.name}, Structure)", f"addressof({x.name})"
            if x.dtype is not None:
                usual = f"type({x.name}) is Tensor and {x.name}.dtype is dtype_{i}"
                usual += f" and {x.name}.numel() == {size} and {x.name}.is_contiguous()"
                where = f"{x.name}.data_ptr()"
            lines.append(f" if {usual}:")
            if x.dtype is None and "S" in names:  # a struct of as many seeds
                lines.append(f"  if seeds_of({x.name}, S) != S: raise other_seeds({x.name!r})")
            lines += [
                f"  kept.append({x.name})",
                f"  {x.name} = {where}",
                " else:",
                f"  {x.name} = address(field_{i}, {x.name}, {size}, kept)",
            ]
        lines.append(f" return kept, ({', '.join(names)},)")
        exec("\n".join(lines), known)
        checks: Callable[..., Any] = known["checks"]
        return checks

    def _address(self, field: Field, value: Any, size: int | None, kept: list[Any]) -> int | None:
        """Where a field points to."""
        if value is None and field.may_be_null:
            return None
        if isinstance(value, int) and not field.shape:  # an address
            return value
        value = self._checked(field, value, size)
        kept.append(value)
        address: int = value.data_ptr()
        return address

    def _checked(self, field: Field, value: Tensor | float, size: int | None) -> Tensor:
        """A tensor as C may read it."""
        if field.shape == "S" and size is not None and field.constant:
            value = per_seed(value, size, field.dtype)
        if not isinstance(value, Tensor):
            raise TypeError(f"{self.name}: {field.name} is a {type(value).__name__}, not a tensor")
        if (field.dtype is not None and value.dtype is not field.dtype) or (
            size is not None and value.numel() != size
        ):
            declared = f"{field.dtype} [{field.shape}]"
            raise ValueError(
                f"{self.name}: {field.name} is {value.dtype} {list(value.shape)}, not {declared}"
            )
        if not value.is_contiguous():
            if not field.constant:
                raise ValueError(f"{self.name}: {field.name} is not contiguous")
            value = value.contiguous()
        return value


def seeds_of(filled: ctypes.Structure, otherwise: int) -> int:
    """The seeds that a struct is of; otherwise: of one that does not say."""
    seeds: int = getattr(filled, "S", 0) or getattr(filled, "seeds", otherwise)
    return seeds


def other_seeds(name: str) -> CannotTake:
    return CannotTake(f"{name}: of another number of seeds than what it is computed with")


def too_large(*given: int) -> CannotTake:
    most = max(given, key=abs)
    return CannotTake(f"{most:,} is too large for 32 bits")


class Kernel:
    """A function of C. function: finds it in its library, when it is called first."""

    def __init__(self, source: Path, name: str, function: Callable[[str], Any]) -> None:
        self.source, self.name, self._find = source, name, function

    @cached_property
    def struct(self) -> Struct:
        return Struct(self.source, self.name)

    @cached_property
    def function(self) -> Any:
        found = self._find(self.name)
        found.argtypes, found.restype = [ctypes.c_void_p], ctypes.c_int
        return found

    def __call__(self, **given: Any) -> None:
        """Compute. Raises MemoryError, IndexError, and TypeError or ValueError as `Struct`."""
        self.run(self.struct(**given))

    def run(self, filled: ctypes.Structure) -> None:
        """Compute with a struct. Raises MemoryError and IndexError."""
        failed = self.function(ctypes.addressof(filled))
        if failed == 1:
            raise MemoryError(f"allocating memory for {self.name} failed")
        if failed:
            raise IndexError(f"{self.name}: an action or index is out of range")


def fields_of(text: str, name: str) -> list[Field]:
    """The fields of `struct name {...}`, or of a struct with this typedef, in a source."""
    found = re.search(rf"^struct {name} \{{\n(.*?)^\}};", text, re.M | re.S) or re.search(
        rf"^typedef struct \{{\n([^}}]*)^\}} {name};", text, re.M
    )
    if found is None:
        raise ValueError(f"no struct {name}")
    fields = []
    for line in found[1].splitlines():
        declaration, _, comment = line.partition("//")
        parts = re.fullmatch(r"\s*(const )?(.+?) ?(\**\w+(?:, \**\w+)*);\s*", declaration)
        if parts is None:
            if declaration.strip():
                raise ValueError(f"struct {name}: cannot read {line!r}")
            continue
        constant, kind, names = bool(parts[1]), parts[2], parts[3].split(", ")
        shape = re.search(r"\[([^\]]*)\]", comment)
        for declared in names:
            if not declared.startswith("*"):
                fields.append(Field(declared, NUMBERS[kind]))
                continue
            dtype = DTYPES.get(kind) if declared.count("*") == 1 else None
            shape_text = shape[1] if shape and dtype else ""
            null = "null" in comment
            fields.append(Field(declared.lstrip("*"), None, dtype, shape_text, constant, null))
    return fields


def per_seed(value: Tensor | float, seeds: int, dtype: torch.dtype | None) -> Tensor:
    """A hyperparameter, a number or 0-d for all seeds, `[S]` or `[S, 1]`, as `[S]` for C."""
    if not isinstance(value, Tensor) or not value.dim():
        return _constant(float(value), seeds, dtype)
    if value.shape == (seeds,) and value.dtype is dtype:
        return value
    return value.to(dtype).flatten().expand(seeds).contiguous()


@lru_cache(maxsize=256)
def _constant(value: float, seeds: int, dtype: torch.dtype) -> Tensor:
    return torch.full((seeds,), value, dtype=dtype)
