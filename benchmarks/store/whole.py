"""The whole store, read once: what the report and the site are made of."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from rich.progress import track

from manyseeds.benchmarks.store.comparison import Pair, missing_cells, pairs
from manyseeds.benchmarks.store.methods import Method, methods
from manyseeds.benchmarks.store.results import Result, load_result
from manyseeds.benchmarks.store.stored import StoredRun, left_out, open_runs
from manyseeds.errors import UsageError, did_you_mean
from manyseeds.progress import console

T = TypeVar("T")


@dataclass(frozen=True)
class Store:
    """What the pages are made of."""

    results: Path
    runs: list[StoredRun]
    loaded: list[Result]  # the control runs
    found: list[Pair]
    methods: list[Method]
    missing: list[str]

    def of_kind(self, kind: str) -> list[StoredRun]:
        return [run for run in self.runs if run.kind == kind]


def progress(items: Iterable[T], total: int, what: str) -> Iterator[T]:
    """The items, with a bar while they are worked on where there is a terminal."""
    shown = console.is_terminal
    yield from track(items, what, total, console=console, transient=True, disable=not shown)


def open_store(results: Path, with_missing: bool = True, env: str = "") -> Store:
    """Read all that pages are made of. env: its control runs alone.

    Raises UsageError where there is no finished, valid run.
    """
    store = read_store(results, with_missing, env)
    if not store.loaded and all(run.kind == "control" for run in store.runs):
        raise UsageError(f"--results {results}: no finished, valid run under {results / 'runs'}")
    return store


def read_store(results: Path, with_missing: bool = True, env: str = "") -> Store:
    """The same of a store that may have no runs. Raises UsageError for an env without runs."""
    runs = open_runs(results)
    if env:
        known = dict.fromkeys(run.env_name for run in runs if run.kind == "control")
        if env not in known:
            where = did_you_mean(env, known) if known else ""
            raise UsageError(f"--env {env}: no finished control run under {results}{where}")
        runs = [run for run in runs if run.kind == "control" and run.env_name == env]
    control = [run for run in runs if run.kind == "control"]
    loaded = []
    for run in progress(control, len(control), "reading"):
        with left_out(run.path):
            loaded.append(load_result(run))
    missing = missing_cells(results, runs) if with_missing else []
    return Store(results, runs, loaded, pairs(loaded), methods(runs), missing)


def by_environment(found: Sequence[Pair]) -> dict[str, list[Pair]]:
    grouped: dict[str, list[Pair]] = {}
    for pair in found:
        grouped.setdefault(pair.env, []).append(pair)
    return grouped
