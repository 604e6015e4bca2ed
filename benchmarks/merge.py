"""Merges the finished parts of several results folders into one, by checksum.

    python benchmarks/merge.py /mnt/a/results /mnt/b/results           # into results/local
    python benchmarks/merge.py a b --results all

A part (`runs/ENV/ALGORITHM/NAME/seeds-000-009`) is copied beside its target, its checksums are
verified there, and it is renamed: a merge that is killed has lost nothing, and the same command
completes it. Several merges into one folder wait for each other, and parts that are being trained
there are left out. Only runs are merged, no pages, policies or measurements of speed.

A part is skipped where the folder has its seeds with the same results (times may differ), and its
weights. Where results differ, only the CPU or the build of the kernels is another, and bits depend
on these (`benchmarks/verify.py --details` says where), the part that was there first is kept. All
other differences are refused: both records are shown, and you decide which part to remove. Damaged
parts are named. After a refused or damaged part the others are merged, and the exit status is 1.
The folders are taken in the order in which they are given.
"""

from __future__ import annotations

from manyseeds.command import failing_in_one_line

import json
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Any

from tyro.conf import Positional

from manyseeds.benchmarks.store.again import machine_bound
from manyseeds.benchmarks.store.results import commit_of, processor, versions_text
from manyseeds.benchmarks.store.stored import read_part, read_table
from manyseeds.cli import ScriptConfig, check_unpublished, parse, path_of
from manyseeds.errors import UsageError, printable
from manyseeds.locks import alone
from manyseeds.record import (
    DONE,
    PLAN,
    RunFolder,
    copy_part,
    exists,
    is_finished,
    is_part,
    is_stored,
    plural,
    ranges,
    read_json,
    read_seal,
    run_paths,
)
from manyseeds.untrusted import check_within, reading
from manyseeds.writing import sweep

CLOCK = ("learn_s", "seconds", "per_second")  # how the names of measured times end


@dataclass(frozen=True)
class Part:
    """A finished part of a store, its config.json checked."""

    path: Path
    config: dict[str, Any]
    sums: dict[str, str]  # of its files
    has_weights: bool  # or is of a kind that has none

    @classmethod
    def open(cls, path: Path) -> Part:
        """Raises UsageError for a part that is damaged or holds something else than it should."""
        seal = read_seal(path)
        if seal is None or not is_finished(path):
            raise UsageError(f"{path}: is damaged, a file differs from its checksum in {DONE}")
        return cls(path, read_part(path)[0], seal["sha256"], is_finished(path, with_weights=True))

    @property
    def settings(self) -> dict[str, Any]:
        return dict(self.config["config"])

    @property
    def seeds(self) -> list[int]:
        """Its seeds; a plan has none, and is locked as seed 0."""
        return list(self.config["seeds"]) or [0]

    def decided_by(self) -> dict[str, Any]:
        """What decides its results, but for the CPU and the build of the kernels."""
        names = ("kind", "source", "algo", "config", "versions")
        execution = {k: self.config["execution"][k] for k in ("device", "threads")}
        code = self.config["code"]["digest"]
        return {**{name: self.config.get(name) for name in names}, "code": code, **execution}

    def results(self, seeds: Sequence[int], whole: bool) -> Any:
        """What some of its seeds have learned, without times, for a comparison by `==`.

        whole: with the summary, some of whose numbers are of all seeds together.
        """
        found: dict[str, Any] = {}
        for name in sorted(self.sums):
            if name.endswith(".parquet"):
                frame = read_table(self.path / name, ["seed"])
                frame = frame[frame["seed"].isin(seeds)].sort_values("seed", kind="stable")
                frame = frame[[x for x in frame.columns if not x.endswith(CLOCK)]]
                found[name] = frame.to_csv(index=False)
        if whole:
            summary = read_json(self.path / "summary.json")
            found["summary"] = {k: v for k, v in summary.items() if not k.endswith(CLOCK)}
        return found

    def provenance(self) -> str:
        """Who has trained it: two lines for the terminal."""
        config = self.config
        execution, machine = config["execution"], config["machine"]
        kernels = execution.get("kernels", "not recorded")
        if isinstance(kernels, dict):
            kernels = ", ".join(map(str, kernels.values()))
        words = (
            f"{commit_of(config)}, code {config['code']['digest']}",
            f"{processor(machine)}, {machine['system']}, {execution['device']}",
            f"kernels: {kernels}",
            versions_text(config),
        )
        text = f"seeds {ranges(self.config['seeds'])}: " if self.config["seeds"] else ""
        text = f"  {self.path}: {text}{'; '.join(words)}"
        return f"{printable(text)}\n    {printable(config['command'])}"


class Refused(Exception):
    """Two different results of the same seeds; its text has a line or two for each."""


def stored_parts(run: Path) -> list[Path]:
    """The parts of a run, sealed or not. Raises UsageError."""
    parts = [path for path in RunFolder(run).all_parts() if is_part(path) or path.name == PLAN]
    return sorted(path for path in parts if is_stored(path))


def same_but_for_the_machine(ours: Part, theirs: Part) -> bool:
    """Whether two parts differ in the CPU or the build of the kernels alone, and may therefore have
    other results."""

    def build(part: Part) -> Any:
        return part.config["execution"].get("kernels"), part.config["machine"]["cpu"]

    may = machine_bound(ours.config) or machine_bound(theirs.config)
    return bool(may) and ours.decided_by() == theirs.decided_by() and build(ours) != build(theirs)


def what_to_do(part: Part, there: Sequence[Part]) -> str:
    """`merged`, `there already` or `kept the first`, for a part and the parts of its run that are
    there. Raises Refused."""
    left = set(part.seeds)
    for other in there:
        shared = sorted(set(part.seeds) & set(other.seeds))
        if not shared:
            continue
        if other.sums == part.sums:
            left -= set(shared) if other.has_weights or not part.has_weights else set()
            continue
        with reading(part.path):
            whole = set(part.seeds) == set(other.seeds)
            equal = part.results(shared, whole) == other.results(shared, whole)
        if not equal and set(shared) == set(part.seeds) and same_but_for_the_machine(part, other):
            return "kept the first"
        if not equal:
            raise Refused(f"{other.provenance()}\n{part.provenance()}")
        left -= set(shared)
    return "merged" if left else "there already"


def merge_run(parts: Sequence[Part], folder: RunFolder) -> Iterator[tuple[Part, str, str]]:
    """Merge the parts of one run, with one identity: each with what was done, and a reason.

    Raises UsageError where the folder holds a run of the same name with other settings.
    """
    with folder.locks_for(parts[0].settings) as locks:
        sweep(folder.path)
        taken = set(locks.acquire_free({seed for part in parts for seed in part.seeds}))
        free = [part for part in parts if taken.issuperset(part.seeds)]
        there = [Part.open(path) for path in folder.parts()]
        for part in parts:
            if part not in free:
                yield part, "failed", "its seeds are being trained there; merge again later"
                continue
            try:
                done = what_to_do(part, there)
                if done == "merged":
                    target = folder.path / part.path.name
                    copy_part(part.path, target)
                    there.append(replace(part, path=target))
                yield part, done, ""
            except Refused as error:
                yield part, "refused", f"another result of the same seeds\n{error}"
            except (UsageError, OSError) as error:
                yield part, "failed", str(error)


def merge(sources: Sequence[Path], results: Path) -> Counter[str]:
    """Merge parts of several stores into one: how many were merged, skipped and so on."""
    done: Counter[str] = Counter()

    def report(what: str, path: Path, reason: str) -> None:
        done[what] += 1
        if what in ("failed", "refused"):
            print(f"{what}: {path}: {reason.removeprefix(f'{path}: ')}", file=sys.stderr)
        elif what == "kept the first":
            print(f"{what}: {path} was trained by another build of the kernels or on another CPU")

    def finished(source: Path) -> Iterator[Part]:
        for run in sorted(run_paths(source)):
            try:
                paths = stored_parts(run)
            except UsageError as error:
                report("failed", run, str(error))
                continue
            for path in paths:
                try:
                    if exists(path / DONE):
                        yield Part.open(path)
                    else:
                        done["unfinished"] += 1
                except (UsageError, OSError) as error:
                    report("failed", path, str(error))

    def run_of(part: Part) -> tuple[Path, str]:
        return part.path.parent, json.dumps(part.settings, sort_keys=True)

    with alone(results / "runs"):
        for source in sources:
            for (run, _), parts in groupby(finished(source), run_of):
                group = list(parts)
                folder = RunFolder(results / "runs" / run.relative_to(source / "runs"))
                try:
                    for part, what, reason in merge_run(group, folder):
                        report(what, part.path, reason)
                except (UsageError, OSError) as error:
                    for part in group:
                        report("failed", part.path, str(error))
    return done


def check_sources(folders: Sequence[str], results: Path) -> list[Path]:
    """The folders to merge from. Raises UsageError for what is no results folder."""
    if not folders:
        raise UsageError("DIR: name a results folder to merge from")
    check_within(results / "runs", results)
    sources = [path_of(folder, "DIR") for folder in folders]
    for source in sources:
        if not (source / "runs").is_dir():
            raise UsageError(f"{source}: has no folder runs; name a results folder")
        if source.resolve() == results.resolve():
            raise UsageError(f"{source}: is the folder that is merged into (--results)")
    return sources


@dataclass(frozen=True, kw_only=True)
class Flags(ScriptConfig):
    """Flags of a merge."""

    folders: Positional[tuple[str, ...]] = ()
    """Results folders to merge from."""


@failing_in_one_line()
def main(args: Sequence[str] | None = None) -> None:
    """Merge stores; exit status 1 if a part could not be merged."""
    flags = parse(Flags, {}, __doc__, args)
    results = Path(flags.results)
    check_unpublished(results)
    sources = check_sources(flags.folders, results)
    done = merge(sources, results)
    words = [f"{n} {what}" for what, n in done.items() if what != "merged"]
    print(", ".join([f"merged {plural(done['merged'], 'part')} into {results}", *words]))
    if done["failed"] or done["refused"]:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
