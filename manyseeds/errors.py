"""A user's mistake: one line on stderr, exit status 2, no traceback."""

from __future__ import annotations

import difflib
import unicodedata
from collections.abc import Iterable


class UsageError(Exception):
    """Names the flag, the value and what is allowed, in one line.

    Not a ValueError: tyro would catch it in a config's __post_init__ and draw a box around it.
    """

    def __str__(self) -> str:
        return printable(super().__str__())


def printable(text: str) -> str:
    """Text on one line, without what steers a terminal or cannot be written.

    Line ends and tabs become spaces; control characters, marks of writing direction, lone
    surrogates and the like go.
    """
    spaced = (" " if c.isspace() else c for c in text)
    return "".join(c for c in spaced if unicodedata.category(c)[0] != "C")


def described(error: BaseException) -> str:
    """`ValueError: message` on one line, or `ValueError` where there is no message."""
    try:
        text = " ".join(str(error).split())
    except Exception:  # of a user's own class
        text = ""
    return f"{type(error).__name__}: {text}".removesuffix(": ")


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """A suffix such as `; did you mean CartPole-v1?`, or the list of what there is."""
    known = list(known)
    close = difflib.get_close_matches(word, known, n=1, cutoff=0.6)
    return f"; did you mean {close[0]}?" if close else f"; there are {', '.join(known)}"
