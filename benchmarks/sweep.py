"""Runs the unfinished cells of a suite, each as the command that a user would type.

    python benchmarks/sweep.py --suite quick --seeds 30 --workers 2
    python benchmarks/sweep.py --suite policy-gradient --only sb3       # some of its cells
    python benchmarks/sweep.py --suite classic-control --until-decided --publish
    python benchmarks/sweep.py --suite ablations --block 10 --shard 2/8   # the second of 8 machines
    python benchmarks/sweep.py --suite ablations --block 10 --launcher ray
    python benchmarks/sweep.py --suite ablations --watch                  # in another terminal

Finished cells are skipped. After a kill, a crash or a full disk, run the same command again to
train what is missing. A cell that fails is reported, the others go on, and the exit status is 1.
The output of the cells goes to RESULTS/logs/. benchmarks/CLUSTER.md explains how several machines
share the work.

Runs are written to your own layer, results/local, whatever is published already. `--publish` trains
the seeds that are missing from the published layer, writes them there and packs them at the end,
all of an algorithm on an environment into few files (`manyseeds/packed.py`). It needs a clean
commit, which the runs name. Published runs have no weights, except two seeds of each of our cells,
the median and the worst. These are trained once more, must reach their published scores, and are
written to results/policies (`benchmarks/store/policies.py`).
"""

from __future__ import annotations

from manyseeds.command import failing_in_one_line

import dataclasses
import os
import shlex
import sys
from collections.abc import Generator, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Literal, Protocol

from manyseeds.benchmarks.experiments.suite import SUITES, Cell
from manyseeds.benchmarks.launchers.display import Display, watch, write_event
from manyseeds.benchmarks.launchers.jobs import Event, Job, all_jobs, is_published, python_of
from manyseeds.benchmarks.launchers.local import LocalLauncher
from manyseeds.benchmarks.launchers.on_ray import RayLauncher
from manyseeds.benchmarks.launchers.on_slurm import SlurmLauncher
from manyseeds.benchmarks.store.policies import keep, lacking
from manyseeds.benchmarks.store.results import load_result, seeds_due
from manyseeds.benchmarks.store.stored import open_run
from manyseeds.cli import (
    PUBLISHED,
    LayerConfig,
    NonNegativeInt,
    PositiveInt,
    flag,
    parse,
)
from manyseeds.errors import UsageError, did_you_mean
from manyseeds.record import check_committed, pack, plural, ranges

# Whose policies would be as large as all the others.
WITHOUT_POLICIES = ("ablations", "claims", "failures", "rainbow")


@dataclass(frozen=True, kw_only=True)
class Flags(LayerConfig):
    """Flags of a sweep."""

    suite: str = "quick"
    """Name of the suite."""
    seeds: NonNegativeInt = 0
    """Seeds of every cell (0: the number in the suite)."""
    workers: PositiveInt = 2
    """Number of parallel processes."""
    only: tuple[str, ...] = ()
    """Run only cells with these names, such as `sb3` or `ppo/CartPole-v1` (default: all)."""
    cut: bool = False
    """Reduce budgets and seeds, for a quick preview; the results go to RESULTS/cut."""
    until_decided: bool = False
    """Add seeds until verdicts are decided. The rule in experiments/verdicts.py adds SB3 seeds, and
    ours where they are too few for the same look."""
    dry_run: bool = False
    """Only show the commands and what is missing."""
    launcher: Literal["local", "ray", "slurm"] = "local"
    """Where the commands run. local: processes on this machine. ray: a Ray cluster, which needs no
    shared folder. slurm: jobs, which share the folder of the results; see benchmarks/CLUSTER.md."""
    block: NonNegativeInt = 0
    """Seeds per command (0: all of a cell). Curves do not depend on it."""
    shard: str = "1/1"
    """Run share I of N, as I/N. A share is every N-th command, so N machines can divide a suite."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Device. auto is the CPU until the CUDA path has been measured. Baselines choose their own."""
    keep_stale: bool = False
    """Accept seeds trained by different code as finished. Otherwise they are trained again."""
    list: bool = False
    """Only list the commands of the suite in order, with their progress."""
    watch: bool = False
    """Only show the progress of another sweep on these results, until all cells are finished."""
    slurm: tuple[str, ...] = ()
    """Options for sbatch, as KEY=VALUE. Under its own names: partition=short time=120."""

    def __post_init__(self) -> None:
        if self.suite not in SUITES:
            raise UsageError(
                f"--suite {self.suite}: unknown suite{did_you_mean(self.suite, SUITES)}"
            )
        for word in self.only:
            if not any(cell.matches(word) for cell in SUITES[self.suite]):
                names = sorted({f"{cell.label}/{cell.env}" for cell in SUITES[self.suite]})
                raise UsageError(f"--only {word}: no such cell{did_you_mean(word, names)}")
        self.check_publish()
        shown = [name for name in ("dry_run", "list", "watch") if getattr(self, name)]
        if len(shown) > 1:
            raise UsageError(f"{flag(shown[1])}: not together with {flag(shown[0])}")
        if self.publish and self.keep_stale:
            raise UsageError("--keep-stale: what is published is never set aside")
        if self.publish and self.cut:
            raise UsageError("--publish: a cut is never published")
        if self.until_decided and (self.seeds or self.cut):
            which = "--seeds" if self.seeds else "--cut"
            raise UsageError(f"--until-decided: says how many seeds there are; without {which}")
        _, shards = self.share
        if self.until_decided and shards > 1:
            raise UsageError("--until-decided: looks at all seeds; without --shard")
        if self.publish and self.launcher != "local":
            raise UsageError(
                f"--publish: trains on this machine; without --launcher {self.launcher}"
            )
        if self.slurm and self.launcher != "slurm":
            raise UsageError("--slurm: is for --launcher slurm")
        for word in self.slurm:
            if not all(word.partition("=")):
                raise UsageError(f"--slurm {word}: must be KEY=VALUE, such as time=120")

    @property
    def share(self) -> tuple[int, int]:
        """I and N of --shard."""
        first, _, count = self.shard.partition("/")
        if not (first.isdecimal() and count.isdecimal() and 1 <= int(first) <= int(count)):
            raise UsageError(f"--shard {self.shard}: must be I/N, with I from 1 to N, such as 2/8")
        return int(first), int(count)

    @property
    def keeps_policies(self) -> bool:
        """Whether policies are published with the runs."""
        return self.publish and self.suite not in WITHOUT_POLICIES

    @property
    def folder(self) -> str:
        """The folder of the results. A cut never mixes with other runs."""
        if self.publish:
            return os.path.relpath(PUBLISHED)
        return str(Path(self.results) / "cut") if self.cut else self.results

    @property
    def plan(self) -> Plan:
        """How the cells are run."""
        names = ("workers", "launcher", "block", "share", "slurm")
        return Plan(results=self.folder, **{name: getattr(self, name) for name in names})

    def cells(self) -> Sequence[Cell]:
        """The cells as they are to be run."""
        chosen = [
            cell
            for cell in SUITES[self.suite]
            if not self.only or any(map(cell.matches, self.only))
        ]
        cells = [cell.shortened() if self.cut else cell for cell in chosen]
        if self.device != "auto":
            cells = [self.on_device(cell) for cell in cells]
        if self.keep_stale:
            kept = {"keep_stale": True}
            cells = [dataclasses.replace(c, settings={**c.settings, **kept}) for c in cells]
        S = self.seeds
        return [dataclasses.replace(c, seeds=S) if S and c.seeds else c for c in cells]

    def on_device(self, cell: Cell) -> Cell:
        """A cell on the chosen device, if it is ours and can be there."""
        moved = dataclasses.replace(cell, settings={**cell.settings, "device": self.device})
        try:
            moved.config()
        except UsageError:  # tables are trained on the CPU
            return cell
        return moved if cell.source == "manyseeds" else cell


class Launcher(Protocol):
    """Runs jobs somewhere; see benchmarks/launchers."""

    def run(self, jobs: Sequence[Job]) -> Generator[Event, None, None]:
        """What happens to the jobs, until every one has finished or failed."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How cells are divided into jobs, and where these run."""

    results: str
    workers: int = 2
    launcher: Literal["local", "ray", "slurm"] = "local"
    block: int = 0
    share: tuple[int, int] = (1, 1)
    slurm: tuple[str, ...] = ()

    def jobs(self, cells: Sequence[Cell]) -> list[Job]:
        """The jobs of this share, finished or not."""
        first, count = self.share
        return all_jobs(cells, self.block)[first - 1 :: count]

    def left(self, missing: Sequence[list[int]], jobs: Sequence[Job]) -> list[Job]:
        """What is left of some jobs of a cell. missing: what `Cell.missing` says of it.

        In the published layer a script cannot see what is finished, since runs that came with a
        checkout have no weights, and neither can one on a node that does not have the store: their
        commands name the seeds.
        """
        whole = self.launcher != "ray" and not is_published(self.results)
        return [left for job in jobs for left in job.without(missing, whole)]

    def launcher_of(self) -> Launcher:
        """What runs the jobs."""
        if self.launcher == "ray":
            return RayLauncher(self.results, self.workers)
        if self.launcher == "slurm":
            return SlurmLauncher(self.results, self.workers, self.slurm)
        return LocalLauncher(self.results, self.workers)


def sweep(cells: Sequence[Cell], plan: Plan) -> list[Job]:
    """Run what is missing; returns the failed jobs."""
    todo: list[Job] = []
    failed: list[Job] = []
    jobs = plan.jobs(cells)
    for cell, of_cell in groupby(jobs, lambda job: job.cell):
        if left := plan.left(cell.missing(plan.results), list(of_cell)):
            todo += left
        else:
            report("skipped", cell, "finished already")
    if not todo:
        return failed
    with Display(jobs, todo) as display, closing(plan.launcher_of().run(todo)) as events:
        write_event(plan.results, "began", done=display.done)
        for event in events:
            report(*event)
            write_event(plan.results, event.what, job=str(event.job), detail=event.detail)
            display.add(event)
            if event.what == "failed":
                failed.append(event.job)
    return failed


def sweep_until_decided(cells: Sequence[Cell], plan: Plan) -> list[Job]:
    """Sweep, look at the verdicts and sweep again, until none is due; returns the failed jobs.

    What fails is not tried again, nor looked at; the other comparisons go on.
    """
    failed: list[Job] = []
    while True:
        broken = {(job.cell.algo, job.cell.env) for job in failed}
        now = [c for c in asked_for(cells, plan.results) if (c.algo, c.env) not in broken]
        failed += (failing := sweep(now, plan))
        if not failing and asked_for(now, plan.results) == now:
            return failed


def asked_for(cells: Sequence[Cell], results: str) -> list[Cell]:
    """The cells with the seeds that the rule asks for."""
    return [dataclasses.replace(cell, seeds=requested_seeds(cell, results)) for cell in cells]


def requested_seeds(cell: Cell, results: str) -> int:
    """The seeds of a cell by the rule: of SB3's those that the next look needs, and never fewer
    than the suite says."""
    if cell.package != "algos" or cell.source != "sb3" or cell.first_seed:
        return cell.seeds
    sides = [dataclasses.replace(cell, source=source) for source in ("manyseeds", "sb3")]
    folders = [side.folder(results) for side in sides]
    if not all(folder.parts() for folder in folders):
        return cell.seeds
    ours, theirs = (load_result(open_run(folder)) for folder in folders)
    return max(cell.seeds, seeds_due(ours, theirs))


def report(what: str, job: Job | Cell, detail: str = "") -> None:
    """One line of progress."""
    print(f"{what:<9} {job}" + (f": {detail}" if detail else ""), flush=True)


def show(cells: Sequence[Cell], plan: Plan) -> None:
    """What every cell would train, and by which commands; of a finished one its command."""
    for cell, of_cell in groupby(plan.jobs(cells), lambda job: job.cell):
        jobs = list(of_cell)
        missing = cell.missing(plan.results)
        left = plan.left(missing, jobs)
        asked = {seed for job in jobs for seed in job.seeds or cell.all_seeds}
        seeds = ranges(seed for group in missing for seed in group if seed in asked)
        todo = f"train seeds {seeds}" if seeds else "plan"
        report("missing" if left else "finished", cell, todo if left else "")
        for job in left or jobs:
            print(f"          python {shlex.join(job.command(plan.results, plan.workers))}")


def list_jobs(cells: Sequence[Cell], plan: Plan) -> None:
    """A line for every job of the share: its number in the suite, its state, its seeds."""
    first, count = plan.share
    for k, job in enumerate(plan.jobs(cells)):
        left = plan.left(job.cell.missing(plan.results), [job])
        asked = job.seeds or job.cell.all_seeds or [0]
        running = left and job.cell.folder(plan.results).in_training(asked)
        state = "running" if running else "missing" if left else "finished"
        print(f"{first + k * count:>5} {state:<9} {job}")


@failing_in_one_line(interrupted="interrupted; the same command again runs what is missing")
def main(args: Sequence[str] | None = None) -> None:
    """Run a suite; exit status 1 if a cell failed."""
    flags = parse(Flags, {}, __doc__, args)
    cells, plan = flags.cells(), flags.plan
    if flags.dry_run:
        due = asked_for(cells, flags.folder) if flags.until_decided else cells
        show(due, plan)
        for cell in lacking(cells, flags.folder) if flags.keeps_policies else ():
            print(f"missing   policies of {cell}")
        return
    if flags.list:
        return list_jobs(cells, plan)
    if flags.watch:
        return watch(plan.jobs(cells), plan.results)
    for cell in cells:
        python_of(cell)  # before any is trained
    if flags.publish:
        check_committed()
    run = sweep_until_decided if flags.until_decided else sweep
    failed = [str(job) for job in run(cells, plan)]
    if flags.keeps_policies:
        failed += keep(cells, flags.folder)
    if flags.publish:
        pack(PUBLISHED)
    if failed:
        names = "; ".join(failed)
        what = "command" if plan.block else "cell"
        count = plural(len(plan.jobs(cells)), what)
        print(f"error: {len(failed)} of {count} failed: {names}", file=sys.stderr)
        raise SystemExit(1)


if __name__ == "__main__":
    main()
