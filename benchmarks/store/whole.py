"""The whole store, read once: what the report and the site are made of."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TypeVar

from rich.progress import track

from manyseeds.benchmarks.experiments import catalog
from manyseeds.benchmarks.store.comparison import Missing, Pair, missing_cells, pairs
from manyseeds.benchmarks.store.methods import Method, methods
from manyseeds.benchmarks.store.results import Result, load_result
from manyseeds.benchmarks.store.stored import StoredRun, left_out, open_runs
from manyseeds.errors import UsageError, did_you_mean
from manyseeds.progress import console
from manyseeds.record import hash_of, run_paths

T = TypeVar("T")


@dataclass(frozen=True)
class Store:
    """What the pages are made of."""

    results: Path
    runs: list[StoredRun]
    loaded: list[Result]  # the control runs
    found: list[Pair]
    methods: list[Method]
    missing: list[Missing]

    def of_kind(self, kind: str) -> list[StoredRun]:
        return [run for run in self.runs if run.kind == kind]


def progress(items: Iterable[T], total: int, what: str) -> Iterator[T]:
    """The items, with a bar while they are worked on where there is a terminal."""
    shown = console.is_terminal
    yield from track(items, what, total, console=console, transient=True, disable=not shown)


def read_store(results: Path, own: bool = False, env: str = "") -> Store:
    """Read all that pages are made of.

    own: only a person's own runs, with the published ones of their kind that stand beside them.
    env: the control runs of an environment alone. Raises UsageError where there are none.
    """
    if own:
        names = own_runs(results)
        runs = open_runs(results, beside(names))
        kinds = {(x.env, x.kind) for x in runs if Path(*x.path.parts[-4:]) in names}
        runs = [run for run in runs if (run.env, run.kind) in kinds]
    else:
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
    if env and not loaded:
        raise UsageError(f"--env {env}: no valid control run under {results}")
    missing = [] if own or env else missing_cells(results, runs)
    return Store(results, runs, loaded, pairs(loaded), methods(runs), missing)


def own_runs(results: Path) -> set[Path]:
    """The runs of the first layer, by their paths within it: `runs/ENV/ALGO/NAME`."""
    return {path.relative_to(results) for path in run_paths(results)}


def beside(own: Collection[Path]) -> Callable[[Path], bool]:
    """Whether a run is one of some own ones or stands beside them: on the same environment or task,
    with the settings of one of them or of the plain command."""
    folders, names = {run.parts[1] for run in own}, {run.name for run in own}

    @cache
    def plain(env: str, algo: str) -> str:
        package: catalog.Package = "algos" if algo in catalog.names("algos") else "llm_track"
        return hash_of(catalog.plain_settings(package, algo, env))

    def wanted(run: Path) -> bool:
        _, env, algo, name = run.parts
        if run in own or env not in folders:
            return run in own
        return name in names or name == plain(env, algo.partition("-")[2] or algo)

    return wanted


def by_environment(found: Sequence[Pair]) -> dict[str, list[Pair]]:
    grouped: dict[str, list[Pair]] = {}
    for pair in found:
        grouped.setdefault(pair.env, []).append(pair)
    return grouped
