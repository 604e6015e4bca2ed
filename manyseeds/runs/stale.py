"""Whether the code or the packages that decide a stored part's curves have changed since."""

from __future__ import annotations

from functools import cache
from typing import Any

from manyseeds.digest import code_digest, forget
from manyseeds.runs.base import BaseRun
from manyseeds.runs.control import Run
from manyseeds.runs.language import LanguageRun
from manyseeds.runs.planning import PlanningRun
from manyseeds.runs.prediction import PredictionRun
from manyseeds.runs.set_aside import differs

RUN_CLASSES: tuple[type[BaseRun], ...] = (Run, PredictionRun, PlanningRun, LanguageRun)
KINDS = {run_class.kind: run_class for run_class in RUN_CLASSES}


def part_is_stale(config: dict[str, Any]) -> bool:
    """Whether today's code or a baseline's installed version differs from those of a part.

    config: its config.json. A baseline that is not installed here is taken to be the same.
    """
    return differs(config, digest_today(tuple(config["code"]["origins"]), config["kind"]))


def measurement_is_stale(stored: dict[str, Any]) -> bool:
    """The same of a file of measurements; stored: its contents."""
    return differs(stored, digest_today(tuple(stored["code"]["origins"])))


@cache
def digest_today(origins: tuple[str, ...], kind: str = "") -> str:
    """Digest of the code that would produce a part of some kind now, or measurements."""
    return code_digest([*origins, *(KINDS[kind].kind_origins() if kind else ())])


def read_again() -> None:
    """Read all code again: it may have changed."""
    forget()
    digest_today.cache_clear()
