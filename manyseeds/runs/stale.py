"""Whether the code or the packages that decide a stored part's curves have changed since."""

from __future__ import annotations

from functools import cache
from importlib import metadata
from typing import Any

from manyseeds.digest import code_digest
from manyseeds.runs.base import Recorder
from manyseeds.runs.control import Run
from manyseeds.runs.language import LanguageRun
from manyseeds.runs.planning import Plan
from manyseeds.runs.prediction import PredictionRun

RUN_CLASSES: tuple[type[Recorder], ...] = (Run, PredictionRun, Plan, LanguageRun)
KINDS = {run_class.kind: run_class for run_class in RUN_CLASSES}
BASELINES = ("stable-baselines3", "sb3-contrib", "trl")  # packages that train instead of our code


def part_is_stale(config: dict[str, Any]) -> bool:
    """Whether today's code or a baseline's installed version differs from those of a part.

    config: its config.json. A baseline that is not installed here is taken to be the same.
    """
    code = config["code"]
    return bool(
        code["digest"] != digest_today(tuple(code["origins"]), config["kind"])
        or any(
            installed(name) not in ("", version)
            for name, version in config["versions"].items()
            if name in BASELINES
        )
    )


@cache
def digest_today(origins: tuple[str, ...], kind: str) -> str:
    """Digest of the code that would produce a part of some kind now."""
    return code_digest([*origins, *KINDS[kind].kind_origins()])


@cache
def installed(package: str) -> str:
    """The version of a package here, '' without it."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""
