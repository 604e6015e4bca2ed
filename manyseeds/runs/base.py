"""Code shared by all kinds of runs: recording one part of a run, and the command that runs it."""

from __future__ import annotations

from manyseeds.command import Interrupted, failing_in_one_line

import contextlib
import dataclasses
import inspect
import itertools
import os
import shlex
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import ArrayLike

from manyseeds import kernels, stats
from manyseeds.cli import (
    AnyConfig,
    RunConfig,
    SeedsConfig,
    identity,
    requested_seeds,
    subject_of,
)
from manyseeds.digest import boundary, origin_of
from manyseeds.errors import UsageError
from manyseeds.kernels.guard import looking_by_iteration
from manyseeds.locks import tidy
from manyseeds.process import resolve_device, set_up_process
from manyseeds.progress import console
from manyseeds.record import (
    DONE,
    POLICY,
    SCHEMA,
    RunFolder,
    clear,
    consecutive,
    finite_numbers,
    gpu,
    is_finished,
    is_part,
    part_name,
    plural,
    provenance,
    read_config,
    seal,
)
from manyseeds.runs.checkpoints import ALL, CHECKPOINT, Checkpoint, remove_all
from manyseeds.runs.set_aside import Code, origins_of
from manyseeds.seeds import SeedStreams
from manyseeds.track import Tracker
from manyseeds.writing import write_bytes, write_json

if TYPE_CHECKING:
    from rich.table import Table

AGAIN = "interrupted; the same command trains what is missing"


class BaseRun:
    """What every kind of run does: its folder, its clock, its files.

    Without a directory everything stays in memory. `learn_s` is the learning clock: it stops
    between `pause` and `resume`.
    """

    kind: str  # stands in config.json and summary.json
    decides: tuple[Any, ...] = ()  # code that decides curves: methods, functions of this project
    local: tuple[str, ...] = ()  # files that are not committed
    weights = POLICY  # the file or folder with what was trained
    _progress: Any = None  # manyseeds.progress.Progress, where there is one
    _tracker: Tracker | None = None
    _definitions: Sequence[Any] = ()  # where the code begins

    def __init__(
        self,
        config: RunConfig,
        seeds: Sequence[int],
        directory: Path | None = None,
        algo: str = "",
        source: str = "manyseeds",
    ) -> None:
        self.config = config
        self.seeds = list(seeds)  # empty where nothing is random
        self.directory, self.algo, self.source = directory, algo, source
        self.device = resolve_device(config.device)
        self._began = self._resumed = time.perf_counter()
        self._learned = 0.0
        self.checkpoint = Checkpoint(None)

    @classmethod
    def kind_origins(cls) -> list[str]:
        """Where the code begins that decides the curves of all runs of this kind."""
        found = []
        for x in (*cls.decides, set_up_process):
            if isinstance(x, str):  # a method: of the class that has it
                owner = next(base for base in cls.__mro__ if x in vars(base))
                found.append(f"{origin_of(owner)}.{x}")
            else:
                found.append(origin_of(x))
        return found

    def open(self, definitions: Sequence[Any], packages: Sequence[str] = ()) -> None:
        """Create the part's folder with its config.json: what is being trained, by which code.

        definitions: the functions and classes that the code begins with, such as `[train]`.
        """
        assert self.directory is not None
        self._definitions = definitions
        try:
            clear(self.directory, keep=ALL)
            self.directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(f"--results {self.config.results}: {error.strerror}") from None
        config = {
            **self.head(),
            "source": self.source,
            "algo": self.algo,
            **self.subject(),
            "seeds": self.seeds,
            "config": identity(self.config),
            "execution": {
                "device": str(self.device),
                "threads": self.config.threads,
                # An environment may walk through a set of texts.
                "hash_seed": os.environ.get("PYTHONHASHSEED") or "random",
            },
            "command": "python " + shlex.join(without_results(sys.argv)),
            **provenance(self.origins(definitions), packages, self.kind_origins()),
        }
        if self.device.type == "cuda":
            config["machine"]["gpu"] = gpu()
        write_json(self.directory / "config.json", config)
        read_config(self.directory)  # what could not be read again is refused before the training
        self.resume()  # none of this was learning

    def origins(self, definitions: Sequence[Any]) -> list[str]:
        """Where the code of this run begins, besides that of its kind (`digest.origin_of`)."""
        return origins_of(self.config, definitions)

    def subject(self) -> dict[str, str]:
        """What is learned, for config.json."""
        return {subject_of(type(self.config)): getattr(self.config, subject_of(type(self.config)))}

    def head(self) -> dict[str, Any]:
        """How every JSON file of a part begins."""
        return {"schema": SCHEMA, "kind": self.kind}

    @property
    @boundary
    def learn_s(self) -> float:
        """Seconds of learning so far, of the whole batch, evaluation excluded."""
        return self._learned + time.perf_counter() - self._resumed

    @property
    @boundary
    def total_s(self) -> float:
        """Seconds since the beginning."""
        return time.perf_counter() - self._began

    @boundary
    def pause(self) -> None:
        """Stop the clock, until `resume`."""
        self._learned = self.learn_s

    @boundary
    def resume(self) -> None:
        """Let the clock go on from where it was stopped."""
        self._resumed = time.perf_counter()

    @boundary
    def track(self, step: ArrayLike, scalars: Mapping[str, ArrayLike]) -> None:
        """Write scalars for `--track`, if it is given: as `manyseeds.track.Tracker.log`."""
        if self.config.track == "none" or self.directory is None:
            return
        began = time.perf_counter()
        if self._tracker is None:
            settings = identity(self.config)
            self._tracker = Tracker(self.config.track, self.directory, self.seeds, settings)
        self._tracker.log(step, scalars)
        self._resumed += time.perf_counter() - began  # none of this was learning

    def streams(self, purpose: str) -> SeedStreams:
        """The random streams of this run's seeds for one purpose.

        Those of initial weights are on the CPU: the weights have the same bits on every device.
        """
        return SeedStreams(self.seeds, purpose, "cpu" if purpose == "init" else self.device)

    def usable_checkpoint(self, definitions: Sequence[Any]) -> bool:
        """Whether there is a checkpoint that this training can go on from; says why not, if not.

        definitions: as for `open`.
        """
        return False

    def heed(self) -> None:
        """What is trained is complete: an interrupt that was put off is heeded now."""

    def outlook(self) -> str:
        """What the same command would do, if this one ended now."""
        if self.checkpoint.at:
            return f"the same command resumes from {self.checkpoint.at}"
        return "the same command trains what is missing, from the start"

    def finish(self, result: Any) -> dict[str, Any]:
        """Measure what was learned and, with a directory, `write` it; returns the summary."""
        raise NotImplementedError

    def close(self) -> None:
        """Restore the terminal and close what is written to; also after an interrupt."""
        for opened in (self._progress, self._tracker):
            if opened is not None:
                opened.close()
        self._tracker = None

    def discard(self) -> None:
        """Remove what a training that failed has written, but for checkpoints to go on from."""
        if self.directory is not None and not is_finished(self.directory):
            clear(self.directory, keep=ALL)
            with contextlib.suppress(OSError):
                self.directory.rmdir()

    def write(
        self,
        files: Mapping[str, bytes],
        draw: Callable[[Path], None],
        summary: dict[str, Any],
    ) -> None:
        """Write and seal the part: files by name, figures, summary.json.

        draw: writes its figures into the folder it is given. Raises UsageError where the run has
        meanwhile got a part with other hyperparameters.
        """
        assert self.directory is not None
        for name, content in files.items():
            write_bytes(self.directory / name, content)
        draw(self.directory)
        write_json(self.directory / "summary.json", summary)
        config = read_config(self.directory)
        # As it was at the beginning: a file that it names may have been changed since.
        RunFolder(self.directory.parent).check_identity(config["config"])
        config["execution"]["kernels"] = kernels.execution()
        write_json(self.directory / "config.json", config)
        weights = self.weights if (self.directory / self.weights).exists() else ""
        seal(self.directory, self.local, weights)
        remove_all(self.directory)


def without_results(words: Sequence[str]) -> list[str]:
    """A command without `--results`: where a result lies is no part of how it is made."""
    kept: list[str] = []
    skipped = False
    for word in words:
        if skipped:
            skipped = False
        elif word == "--results":
            skipped = True
        elif not word.startswith("--results="):
            kept.append(word)
    return kept


def estimate_json(values: np.ndarray, statistic: stats.Statistic) -> dict[str, float | None]:
    """An estimate as JSON; null where a seed's value is not known, and for no interval."""
    if not np.isfinite(values).all():
        return {"value": None, "low": None, "high": None, "n": len(values)}
    found = stats.estimate(values, statistic)
    return finite_numbers({name: getattr(found, name) for name in ("value", "low", "high", "n")})


def complete(
    folder: RunFolder,
    code: Code,
    requested: Sequence[int],
    missing: Callable[[], Sequence[int]],
    train_missing: Callable[[Sequence[int]], object],
    finished: str,
    together: bool = True,
) -> None:
    """Train what a run still misses; a failure is one line and a status.

    Seeds that another process is training are waited for, and trained here if it fails. What other
    code has trained is set aside, and taken back once the code is the same again.

    code: by which it is trained. requested: all seeds (of a plan: 0). missing: the unfinished ones
    among them, and those whose part the code does not accept. train_missing: trains some of them.
    finished: what to say when there is none, as "Finished already: 10 seeds".
    together: train all of them as one batch; otherwise one after another, of which other processes
    may take some.
    """
    memory = "--seeds" if together else "--micro-batch-size"
    config, done = code.config, set[int]()

    def left() -> list[int]:  # whatever another process does with what was trained here
        return [seed for seed in missing() if seed not in done]

    with failing_in_one_line(f"; try a smaller {memory}", AGAIN):
        folder.check_identity(identity(config))
        code.check_environment(folder)
        for part in filter(is_part, folder.path.glob("seeds-*")):
            if (part / DONE).exists():  # by a process that was killed as it ended
                remove_all(part)
        code.say_what_is_kept(folder, requested)
        if not (first := left()):
            tidy(folder.path)
            console.print(f"{finished} in {folder.path}.")
            return
        set_up_process(config.threads)
        with folder.locks(config) as locks:
            while todo := left():
                free = locks.acquire_free(todo)
                taken = list(free) if together else list(itertools.islice(free, 1))
                # Another process may have just finished some.
                own = [seed for seed in left() if seed in taken]
                if own:
                    remove_abandoned(folder, own)
                    code.set_aside(folder, own)
                    back = code.take_back(folder, own)
                    if own := [seed for seed in own if seed not in back]:
                        train_missing(own)
                    done.update(own)
                for seed in taken:
                    locks.release(seed)
                if taken:
                    continue
                if others := left():
                    code.refuse_another(folder, others[0])
                    console.print(f"waiting for another process that trains seed {others[0]}")
                    locks.acquire(others[0], wait=True)
                    locks.release(others[0])
        code.say_what_is_kept(folder, set(first) - done)  # of other processes


def remove_abandoned(folder: RunFolder, seeds: Sequence[int]) -> None:
    """Remove parts that were never sealed and hold one of some seeds; checkpoints are kept.

    seeds: locked by this process, so that no other process trains these parts: one that was killed
    has left them, event files of a tracker included. The seeds may now belong to other parts.
    What cannot be removed, as another user's files, stays and does not hinder the training.
    """
    for part in filter(is_part, folder.path.glob("seeds-*")):
        first, last = map(int, part.name.split("-")[1:])
        if any(first <= seed <= last for seed in seeds):
            # Unreadable; gone, as two processes may train seeds of one part; holds a checkpoint.
            with contextlib.suppress(OSError):
                if DONE not in os.listdir(part) and not is_finished(part):  # packed
                    clear(part, keep=ALL, strict=False)
                    part.rmdir()


def complete_seeds(
    config: SeedsConfig,
    train: Callable[[Any, Any], Any],
    run_class: Callable[[Any, Sequence[int], Path, str], BaseRun],
    algo: str = "",
    definitions: Sequence[Any] = (),
    packages: Sequence[str] = (),
) -> RunFolder:
    """Train the seeds that are not finished yet, in parts of consecutive ones; returns their run.

    run_class: the kind of run that records a part, from its config, seeds, folder and algorithm.
    algo: the name in the store, where it is not that of the file of `train`. definitions, packages:
    as for `carry_out`.
    """
    algo = algo or Path(inspect.getfile(train)).stem

    def usable(part: Path, seeds: Sequence[int]) -> bool:
        run = run_class(dataclasses.replace(config, quiet=True), seeds, part, algo)
        return run.usable_checkpoint(definitions or [train])

    def train_missing(folder: RunFolder, todo: Sequence[int]) -> None:
        for group in groups_of(folder, todo, usable):
            run = run_class(config, group, folder.path / part_name(group), algo)
            carry_out(config, train, run, definitions, packages)

    kind: Any = getattr(run_class, "func", run_class)  # behind a `partial`
    code = Code(config, definitions or [train], kind.kind_origins())
    return complete_parts(code, algo, train_missing)


def groups_of(
    folder: RunFolder, todo: Sequence[int], usable: Callable[[Path, Sequence[int]], bool]
) -> list[list[int]]:
    """The groups that seeds are trained in: those of checkpoints first, then consecutive ones.

    todo: locked by this process: no other one is training a group that has one of them. usable:
    whether there is a checkpoint in a part, of some seeds, that can be gone on from.
    """
    groups, left, finished = [], set(todo), folder.finished_seeds()
    for part in sorted(filter(is_part, folder.path.glob("seeds-*"))):
        first, last = map(int, part.name.split("-")[1:])
        own = sorted(seed for seed in left if first <= seed <= last)
        if not own or (part / DONE).exists() or not any(part.glob(ALL)):
            continue
        if len(own) < last - first + 1:
            checkpoint = Checkpoint(part / CHECKPOINT)
            why = f"it is of seeds {first}-{last}, not all of which are trained now"
            if finished.isdisjoint(range(first, last + 1)):
                print(f"note: {checkpoint.path}: not used: {why}; kept", file=sys.stderr)
                continue
            checkpoint.refuse(why)
            remove_all(part)
        elif usable(part, own):
            groups.append(own)
            left -= set(own)
            continue
        with contextlib.suppress(OSError):
            part.rmdir()
    return groups + consecutive(left)


def complete_parts(
    code: Code, algo: str, train_missing: Callable[[RunFolder, Sequence[int]], object]
) -> RunFolder:
    """Train the seeds that are not finished yet, or whose weights are gone; returns their run.

    code: by which, and with which Config. train_missing: trains some seeds of the run, in parts.
    """
    folder = RunFolder.of(code.config, algo)
    seeds = requested_seeds(code.config)

    def missing() -> list[int]:
        groups = folder.missing(seeds, with_weights=True, accepts=code.accepts)
        return [s for group in groups for s in group]

    complete(
        folder,
        code,
        seeds,
        missing,
        lambda todo: train_missing(folder, todo),
        f"Finished already: {plural(len(seeds), 'seed')}",
    )
    return folder


class Recording(Protocol):
    """What `carry_out` asks of a run: see BaseRun."""

    def open(self, definitions: Sequence[Any], packages: Sequence[str] = ()) -> None: ...
    def heed(self) -> None: ...
    def finish(self, result: Any) -> Any: ...
    def close(self) -> None: ...
    def discard(self) -> None: ...
    def outlook(self) -> str: ...


def carry_out(
    config: AnyConfig,
    train: Callable[[AnyConfig, Any], Any],
    run: Recording,
    definitions: Sequence[Any] = (),
    packages: Sequence[str] = (),
) -> None:
    """Train and store one part, or those of a batch.

    definitions: what the code begins with, where that is not `train` alone. packages: whose
    versions decide its curves, besides those of every run.
    """
    try:
        run.open(definitions or [train], packages)
        with looking_by_iteration():
            trained = train(config, run)
        run.heed()
        run.finish(trained)
    except (Exception, KeyboardInterrupt, SystemExit) as error:
        run.close()  # a tracker writes what is left, into the folder that is to be removed
        run.discard()
        if isinstance(error, KeyboardInterrupt) and not getattr(error, "text", ""):
            status = getattr(error, "status", 130)
            raise Interrupted(f"interrupted; {run.outlook()}", status) from None
        raise
    finally:
        run.close()


def print_table(table: Table, folder: RunFolder, parts: Sequence[Path]) -> None:
    """The table of a run, then the files of its parts that a person may want to open."""
    if len(parts) > 3:
        table.add_row("stored", f"{len(parts)} parts in {folder.path}")
    console.print(table)
    for part in parts if len(parts) <= 3 else ():
        for name in ("curve.parquet", "curve.png", "sweeps.json", "plan.png", "plan.gif", POLICY):
            if (part / name).exists():
                console.print(part / name)


def trained_on(parts: Sequence[Path]) -> str:
    """On which devices, with how many threads parts were trained: `cuda, 1 thread`."""
    found = [read_config(part)["execution"] for part in parts]
    texts = [f"{x['device']}, {plural(x['threads'], 'thread')}" for x in found]
    return " and ".join(dict.fromkeys(texts))


def parts_with(folder: RunFolder, requested: Sequence[int]) -> list[Path]:
    """The finished parts that hold the requested seeds, with weights first and none redundant."""
    parts, left = [], set(requested)
    whole = folder.parts(with_weights=True)
    for part in (*whole, *(part for part in folder.parts() if part not in whole)):
        seeds = set(read_config(part)["seeds"])
        if seeds & left:
            parts.append(part)
            left -= seeds
    return parts
