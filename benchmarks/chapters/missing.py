"""The page of what the suites lack: unfinished seeds, what these cost, and untrained presets."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import quantiles

from manyseeds.benchmarks.chapters.blocks import Block, Items, Table, Text
from manyseeds.benchmarks.experiments.suite import SUITES, Cell
from manyseeds.benchmarks.store.comparison import Missing, all_cells, run_of, untrained_presets
from manyseeds.benchmarks.store.costs import SeedCost, budget, cost_of, misses
from manyseeds.benchmarks.store.results import Result, seeds_due
from manyseeds.benchmarks.store.stored import StoredRun
from manyseeds.benchmarks.store.whole import Store
from manyseeds.cli import identity
from manyseeds.record import plural, ranges

COLUMNS = ("cell", "missing seeds", "budget of each", "core-minutes", "estimated from")
UNKNOWN = "unknown"
MODELS = (
    " Initial models of language models are made by the first run that needs them; an estimate has "
    "this time only where it is from such a run."
)


def page(store: Store) -> Iterator[Block]:
    """The page; empty where no seed is missing."""
    looks = next_looks(store)
    lacking = [*store.missing, *looks]
    if not lacking:
        return
    yield Text(
        "Unfinished seeds of the suites, those of SB3's that an undecided verdict asks for (its "
        "next look), and the minutes of a core that those of a cell take "
        "together, evaluations included. The estimate is what a seed took in the cheapest part of "
        "a finished run of the same algorithm and source: of the cell's own run or, without one, "
        "of that with the fewest other settings, if possible on the same environment or task. The "
        "time of learning is proportional to the budget, and the rest the same, also where "
        "evaluations sample more. Beside other processes everything takes longer."
        f"{misses_text(store.runs)}"
    )
    costs = [cost_of(missing.cell, store.runs) for missing in lacking]
    rows = [row(x, cost, x in looks) for x, cost in zip(lacking, costs, strict=True)]
    yield Table("missing", COLUMNS, rows)
    yield total(lacking, costs)
    if presets := untrained_presets():
        yield Text("Presets that no suite trains:")
        yield Items(presets)


def next_looks(store: Store) -> list[Missing]:
    """The seeds of SB3's that the rule of verdicts asks for and no suite does: of the algorithms on
    their environments, and of the page of interchangeable libraries."""
    due = {of_run(x.sb3): (x.sb3, x.requested_seeds(x.sb3)) for x in store.found if x.sb3}
    for cell in SUITES["interchange"]:
        sides = [run_of(replace(cell, source=x), store.loaded) for x in ("manyseeds", "sb3")]
        if cell.source == "sb3" and sides[0] and sides[1]:
            due.setdefault(cell.run, (sides[1], seeds_due(sides[0], sides[1])))
    listed = {missing.cell.run for missing in store.missing}
    cells = {cell.run: cell for cell in all_cells() if cell.source == "sb3" and not cell.first_seed}
    return [
        Missing(replace(cells[run], seeds=n), list(range(theirs.first_seeds, n)))
        for run, (theirs, n) in due.items()
        if run in cells and run not in listed and n > theirs.first_seeds
    ]


def of_run(result: Result) -> Path:
    """A run as cells name it."""
    return Path(*result.run.path.parts[-3:])


def misses_text(runs: Sequence[StoredRun]) -> str:
    """How far off estimates from another run are; empty where too few runs can tell."""
    found = misses(runs)
    if len(found) < 2:
        return ""
    tenths = quantiles(found, n=10, method="inclusive")
    return (
        f" An estimate from another run is rough: those of {len(found)} finished runs, each from "
        f"the others, are {tenths[4]:.2f} times the real cost in the median, and 80% of them "
        f"{tenths[0]:.2f} to {tenths[8]:.2f} times."
    )


def minutes(missing: Missing, cost: SeedCost) -> float:
    """Core-minutes of all missing seeds of a cell."""
    return len(missing.seeds) * cost.seconds / 60


def row(missing: Missing, cost: SeedCost | None, next_look: bool = False) -> tuple[str, ...]:
    """The cells of the table of an unfinished cell of the suites, or of one for a verdict."""
    field, steps = budget(identity(missing.cell.config())) or ("", 0)
    unit = field.removeprefix("total_")
    return (
        str(missing.cell) + " (next look)" * next_look,
        ranges(missing.seeds),
        f"{steps:,} {unit}" if steps else "",
        f"{minutes(missing, cost):,.0f}" if cost else UNKNOWN,
        basis(missing.cell, cost.run) if cost else "",
    )


def basis(cell: Cell, run: StoredRun) -> str:
    """What the run is to the cell that the estimate is from."""
    if Path(*run.path.parts[-3:]) == cell.run:
        return "its finished seeds"
    return "other settings" if run.env == cell.env else f"{run.env}, other settings"


def total(missing: Sequence[Missing], costs: Sequence[SeedCost | None]) -> Text:
    """The sum of the table: of all cells, and of language models alone; and what it lacks."""
    known = [(x, minutes(x, cost)) for x, cost in zip(missing, costs, strict=True) if cost]
    of_all = sum(each for _, each in known) / 60
    of_language = sum(each for x, each in known if x.cell.package == "llm_track") / 60
    unknown = costs.count(None)
    return Text(
        f"In all, {of_all:,.1f} core-hours, {of_language:,.1f} of them for language models",
        f", without {plural(unknown, 'cell')} whose cost is {UNKNOWN}." if unknown else ".",
        MODELS if any(x.cell.package == "llm_track" for x in missing) else "",
    )
