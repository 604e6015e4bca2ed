"""Where the numbers of a page are from: commands, code and machines, as blocks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from manyseeds.benchmarks.chapters.blocks import Block, Code, Fold, Inline, Item, Items, Text
from manyseeds.benchmarks.store.results import code_of, commit_of, processor, versions_text
from manyseeds.benchmarks.store.stored import StoredRun
from manyseeds.record import plural, ranges
from manyseeds.runs.stale import measurement_is_stale, part_is_stale


def command_text(stored: dict[str, Any], *more: str) -> Text:
    """The last line below a table of measurements: command, commit, and what else there is."""
    stale = " Stale: the code has changed since." if measurement_is_stale(stored) else ""
    more = (commit_of(stored), *more)
    return Text("Command: ", Code(stored["command"]), f", {', '.join(more)}.{stale}")


def origins(configs: Sequence[dict[str, Any]]) -> Items:
    """The commands, code and machines of the parts of a run; equal ones are grouped."""
    alike: dict[tuple[str, ...], list[int]] = {}
    for config in configs:
        alike.setdefault(origin_of(config), []).extend(config["seeds"])
    return Items(
        [
            Item((f"seeds {ranges(seeds)}: ", Code(command)), Items(lines))
            for (command, *lines), seeds in alike.items()
        ]
    )


def origin_of(config: dict[str, Any]) -> tuple[str, ...]:
    """Command, code, machine and versions of a part."""
    machine, execution = config["machine"], config["execution"]
    where = f"on {execution['device']}, {plural(execution['threads'], 'thread')}"
    if "gpu" in machine:
        where += f", {machine['gpu']}"
    return (
        str(config["command"]),
        f"{code_of(config)}, {commit_of(config)}",
        f"{processor(machine)}, {machine['system']}; {where}",
        versions_text(config),
    )


def commands(runs: Sequence[StoredRun]) -> list[Block]:
    """The command of every part of runs, folded away, below the code and machine that they share;
    nothing without runs."""
    configs = [config for run in runs for config in run.configs]
    if not configs:
        return []
    alike: dict[str, list[Inline]] = {}
    for config in configs:
        shared = (code_of(config), commit_of(config), processor(config["machine"]))
        origin = ", ".join((*shared, versions_text(config)))
        alike.setdefault(origin, []).append(Code(config["command"]))
    items = [Item(origin, Items(found)) for origin, found in alike.items()]
    return [folded_origins("command", [*map(part_is_stale, configs)], [Items(items)])]


def folded_origins(what: str, stale: Sequence[bool], blocks: Sequence[Block]) -> Fold:
    """The origins of runs or commands, behind the line that says how many, and how many stale."""
    code = f"{sum(stale)} of them stale" if any(stale) else "of the present code"
    return Fold(f"{plural(len(stale), what)}, {code}", blocks)
