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
from types import CodeType
from typing import Any, NamedTuple

import torch
from torch import Tensor

NUMBERS = {"int": ctypes.c_int, "long": ctypes.c_long, "double": ctypes.c_double}
DTYPES = {
    "float": torch.float32,
    "double": torch.float64,
    "int64_t": torch.int64,
    "int32_t": torch.int32,
    "unsigned char": torch.bool,
}

NAMES: dict[str, Any] = {}  # of sizes, beside the numbers of a struct


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
        self._pointers = [x for x in self.fields if x.number is None]
        self._sizes = {x.shape: size_of(x.shape) for x in self._pointers if x.shape}
        as_c = [(x.name, x.number or ctypes.c_void_p) for x in self.fields]
        self._type: Any = type(name, (ctypes.Structure,), {"_fields_": as_c})

    def __call__(self, **given: Any) -> ctypes.Structure:
        """The struct with these fields, which are checked; it keeps what it points to alive.

        Raises TypeError and ValueError.
        """
        if "threads" not in given:
            given["threads"] = torch.get_num_threads()
        sizes = {shape: eval(code, NAMES, given) for shape, code in self._sizes.items()}
        kept = []
        for field in self._pointers:
            name, value = field.name, given[field.name]
            if isinstance(value, ctypes.Structure):
                kept.append(value)
                given[name] = ctypes.addressof(value)
            elif value is None:
                if not field.may_be_null:
                    raise TypeError(f"{self.name}: {name} is missing")
            elif field.shape or not isinstance(value, int):  # which is an address
                value = self._checked(field, value, sizes.get(field.shape))
                kept.append(value)
                given[name] = value.data_ptr()
        filled: ctypes.Structure = self._type(*[given[x.name] for x in self.fields])
        filled.kept = kept
        return filled

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
        filled = self.struct(**given)
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


def size_of(shape: str) -> CodeType:
    """What computes the product of a shape's dimensions from the numbers of a struct."""
    text = "*".join(f"({x})" for x in shape.split(","))
    return compile(text, f"[{shape}]", "eval")


def per_seed(value: Tensor | float, seeds: int, dtype: torch.dtype | None) -> Tensor:
    """A hyperparameter, a number or 0-d for all seeds, `[S]` or `[S, 1]`, as `[S]` for C."""
    if not isinstance(value, Tensor):
        return _constant(value, seeds, dtype)
    if value.shape == (seeds,) and value.dtype is dtype:
        return value
    return value.to(dtype).flatten().expand(seeds).contiguous()


@lru_cache(maxsize=256)
def _constant(value: float, seeds: int, dtype: torch.dtype) -> Tensor:
    return torch.full((seeds,), value, dtype=dtype)
