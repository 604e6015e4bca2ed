"""The page of what the suites lack: unfinished seeds, what these cost, and untrained presets."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path

from manyseeds.benchmarks.chapters.blocks import Block, Code, Items, Table, Text
from manyseeds.benchmarks.experiments.suite import OWN, Cell, language
from manyseeds.benchmarks.store.comparison import Missing, untrained_presets
from manyseeds.benchmarks.store.costs import SeedCost, budget, cost_of
from manyseeds.benchmarks.store.stored import StoredRun
from manyseeds.benchmarks.store.whole import Store
from manyseeds.cli import identity
from manyseeds.record import plural, ranges

COLUMNS = ("cell", "missing seeds", "budget of each", "core-minutes", "estimated from")
UNKNOWN = "unknown"


def page(store: Store) -> Iterator[Block]:
    """The page; empty where no seed is missing."""
    if not store.missing:
        return
    yield Text(
        "Unfinished seeds of the suites, and the minutes of a core that those of a cell take "
        "together, evaluations included. The estimate has the speed of the fastest part of a "
        "finished run of the same algorithm and source: of the cell's own run or, without one, of "
        "that with the fewest other settings, if possible on the same environment or task. The "
        "time of learning is proportional to the budget, the rest to the completions that "
        "evaluations of a language model sample. Beside other processes everything takes longer."
    )
    costs = [cost_of(missing.cell, store.runs) for missing in store.missing]
    rows = [row(*x) for x in zip(store.missing, costs, strict=True)]
    yield Table("missing", COLUMNS, rows)
    yield total(store.missing, costs)
    yield from initial_models(store)
    if presets := untrained_presets():
        yield Text("Presets that no suite trains:")
        yield Items(presets)


def minutes(missing: Missing, cost: SeedCost) -> float:
    """Core-minutes of all missing seeds of a cell."""
    return len(missing.seeds) * cost.seconds / 60


def row(missing: Missing, cost: SeedCost | None) -> tuple[str, ...]:
    """The cells of the table of an unfinished cell of the suites."""
    field, steps = budget(identity(missing.cell.config())) or ("", 0)
    unit = field.removeprefix("total_")
    return (
        str(missing.cell),
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
    """The sum of the table: of all cells, and of language models alone."""
    known = [(x, minutes(x, cost)) for x, cost in zip(missing, costs, strict=True) if cost]
    of_all = sum(each for _, each in known) / 60
    of_language = sum(each for x, each in known if x.cell.package == "llm_track") / 60
    unknown = costs.count(None)
    return Text(
        f"In all {of_all:,.1f} core-hours, {of_language:,.1f} of them of language models",
        f", without {plural(unknown, 'cell')} whose cost is {UNKNOWN}." if unknown else ".",
    )


def initial_models(store: Store) -> Iterator[Block]:
    """What it takes to make the initial models that seeds of language models have of their own."""
    seeds: dict[str, set[int]] = {}
    for missing in store.missing:
        config = identity(missing.cell.config())
        if config.get("initial_per_seed") and config["model"] == "tiny":
            seeds.setdefault(missing.cell.env, set()).update(missing.seeds)
    if not seeds:
        return
    models = ", ".join(f"{len(found)} of {task}" for task, found in seeds.items())
    yield Text(
        "Cells with ",
        Code("initial_per_seed True"),
        f" begin each seed with a model of its own: {models}. The first run that needs a model "
        "makes it, unless today's code has made it before. This is part of that run's time, but "
        "not of the time of runs that found their models made, so most estimates lack it.",
        sft_text(seeds, store.runs),
    )


def sft_text(seeds: Mapping[str, Collection[int]], runs: Sequence[StoredRun]) -> str:
    """What SFT of the initial models of some tasks takes; empty where that is not known."""
    costs = {task: cost_of(language("sft", task, settings=OWN), runs) for task in seeds}
    of_sft = sum(len(seeds[task]) * cost.seconds / 60 for task, cost in costs.items() if cost)
    if not all(costs.values()):
        return ""
    return (
        f" At the speed of finished runs, SFT of all of them takes {of_sft:,.0f} core-minutes, and "
        "the pretraining before it comes on top."
    )
