"""Arguments of an environment as texts "key=value", and the one way in which each is written."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from manyseeds.errors import UsageError

# Arguments of gym.make itself, and of an environment that is looked at.
OTHERS = ("id", "disable_env_checker", "vectorization_mode", "render_mode")


def read_kwargs(texts: Sequence[str]) -> dict[str, Any]:
    """The arguments that texts "key=value" mean; UsageError for others.

    A value is a literal of Python, `true` or `false`, or else the text itself.
    """
    kwargs: dict[str, Any] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key.isidentifier():
            raise UsageError(f"--env-kwargs {text!r}: must be key=value")
        if key in OTHERS:
            raise UsageError(f"--env-kwargs {text!r}: {key} is not for a training")
        if key in kwargs:
            raise UsageError(f"--env-kwargs {text!r}: {key} is given twice")
        kwargs[key] = {"true": True, "false": False}.get(value, value)
        with suppress(ValueError, SyntaxError, MemoryError, RecursionError):
            kwargs[key] = ast.literal_eval(value)
    return kwargs


def canonical_kwargs(texts: Sequence[str]) -> tuple[str, ...]:
    """The same arguments, sorted, each in one form: what a run is named by.

    2 and 2.0 are different: an environment may be, too.
    """
    return tuple(sorted(map(canonical, texts)))


def canonical(text: str) -> str:
    """One argument with its value as Python writes it, a text without quotes where it needs none;
    what cannot be read or written again stays as it is."""
    with suppress(UsageError, ValueError):  # too many digits
        ((key, value),) = read_kwargs([text]).items()
        for written in (f"{key}={value}", f"{key}={value!r}"):
            if repr(read_kwargs([written])[key]) == repr(value):
                return written
    return text
