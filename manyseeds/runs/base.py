"""What all kinds of runs share: recording one part of a run, and the command around it."""

from __future__ import annotations

import inspect
import math
import shlex
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from manyseeds import stats
from manyseeds.cli import AnyConfig, EnvConfig, RunConfig, SeedsConfig, exit_with, identity
from manyseeds.digest import code_origins
from manyseeds.errors import UsageError
from manyseeds.process import resolve_device, set_up_process
from manyseeds.progress import console
from manyseeds.record import (
    POLICY,
    SCHEMA,
    RunFolder,
    part_name,
    provenance,
    read_json,
    seal,
    write_bytes,
    write_json,
)
from manyseeds.seeds import SeedStreams

if TYPE_CHECKING:
    from rich.table import Table


Part = TypeVar("Part")


class Recorder:
    """What every kind of run does: its folder, its clock, its files.

    Without a directory everything stays in memory. `learn_s` is the learning clock: it stands
    still between `pause` and `resume`.
    """

    kind = ""  # stands in config.json and summary.json; a control run has none

    def __init__(
        self,
        config: EnvConfig,
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

    def open(self, definitions: Sequence[Any], packages: Sequence[str] = ()) -> None:
        """Create the part's folder with its config.json: what is being trained, by which code.

        definitions: the functions and classes that the code begins with, such as `[train]`.
        """
        assert self.directory is not None
        origins = self.origins(definitions)
        try:
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
                "compiled": getattr(self.config, "compile", False),
            },
            "command": "python " + shlex.join(sys.argv),
            **provenance(origins, packages),
        }
        write_json(self.directory / "config.json", config)
        self.resume()  # none of this was learning

    def origins(self, definitions: Sequence[Any]) -> list[str]:
        """Where the code of the run begins (`digest.code_origins`)."""
        return code_origins(definitions, self.config.make_env())

    def subject(self) -> dict[str, str]:
        """What is learned, for config.json."""
        return {"env": self.config.env}

    def head(self) -> dict[str, Any]:
        """How every JSON file of a part begins."""
        return {"schema": SCHEMA} | ({"kind": self.kind} if self.kind else {})

    @property
    def learn_s(self) -> float:
        """Seconds of learning so far, of the whole batch, evaluation excluded."""
        return self._learned + time.perf_counter() - self._resumed

    @property
    def total_s(self) -> float:
        """Seconds since the beginning."""
        return time.perf_counter() - self._began

    def pause(self) -> None:
        """Stop the clock, until `resume`."""
        self._learned = self.learn_s

    def resume(self) -> None:
        """Let the clock go on from where it was stopped."""
        self._resumed = time.perf_counter()

    def streams(self, purpose: str) -> SeedStreams:
        """The random streams of this run's seeds for one purpose."""
        return SeedStreams(self.seeds, purpose, self.device)

    def finish(self, result: Any) -> dict[str, Any]:
        """Measure what was learned and, with a directory, `write` it; returns the summary."""
        raise NotImplementedError

    def close(self) -> None:
        """Give the terminal back; also after an interrupt."""

    def write(
        self,
        files: Mapping[str, bytes],
        draw: Callable[[Path], None],
        summary: dict[str, Any],
    ) -> None:
        """Write and seal the part: files by name, figures, summary.json.

        draw: writes its figures into the folder it is given.
        """
        assert self.directory is not None
        for name, content in files.items():
            write_bytes(self.directory / name, content)
        draw(self.directory)
        write_json(self.directory / "summary.json", summary)
        seal(self.directory)


def estimate_json(values: np.ndarray, statistic: stats.Statistic) -> dict[str, float | None]:
    """An estimate as JSON; an interval that does not exist is null."""
    fields = asdict(stats.estimate(values, statistic))
    return {k: None if isinstance(v, float) and math.isnan(v) else v for k, v in fields.items()}


def tensorboard(directory: Path) -> Any:
    from torch.utils.tensorboard import SummaryWriter

    return SummaryWriter(directory / "tensorboard")  # type: ignore[no-untyped-call]


def complete(
    folder: RunFolder,
    config: RunConfig,
    missing: Callable[[], Sequence[Part]],
    train_part: Callable[[Part], object],
    finished: str,
) -> None:
    """Train what a run still misses, if no other process does; a failure is one line and a status.

    missing: what stands for its unfinished parts, asked again once the run is locked.
    finished: what to say when there is none, as "All 10 seeds are finished".
    """
    try:
        folder.check_identity(config)
        if missing():
            with folder.lock():
                folder.check_identity(config)
                set_up_process(config.threads)
                for part in missing():
                    train_part(part)
        else:
            console.print(f"{finished} in {folder.path}.")
    except UsageError as error:
        exit_with(error)
    except OSError as error:  # a full disk, a folder that vanished
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(1) from None
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and "alloc" not in str(error):
            raise
        print(f"error: out of memory: {str(error).splitlines()[0]}", file=sys.stderr)
        raise SystemExit(1) from None
    except KeyboardInterrupt:
        print("interrupted; the same command again trains what is missing", file=sys.stderr)
        raise SystemExit(130) from None


def complete_seeds(
    config: SeedsConfig,
    train: Callable[[Any, Any], Any],
    run_class: Callable[[Any, Sequence[int], Path, str], Recorder],
) -> RunFolder:
    """Train the seeds that are not finished yet, in parts of consecutive ones; returns their run.

    run_class: the kind of run that carries a part, from its config, seeds, folder and algorithm.
    """
    algo = Path(inspect.getfile(train)).stem
    folder = RunFolder.of(config, algo)
    seeds = requested_seeds(config)

    def missing() -> list[list[int]]:
        # Weights are not committed: a run that only came with the checkout is trained here anew.
        return folder.missing(seeds, with_weights=True)

    def train_part(group: Sequence[int]) -> None:
        carry_out(config, train, run_class(config, group, folder.path / part_name(group), algo))

    complete(folder, config, missing, train_part, f"All {len(seeds)} seeds are finished")
    return folder


def carry_out(config: AnyConfig, train: Callable[[AnyConfig, Any], Any], run: Recorder) -> None:
    """Train and store one part."""
    try:
        run.open([train])
        run.finish(train(config, run))
    finally:
        run.close()


def requested_seeds(config: SeedsConfig) -> range:
    """The seeds that a command asks for."""
    return range(config.first_seed, config.first_seed + config.seeds)


def print_table(table: Table, folder: RunFolder, parts: Sequence[Path]) -> None:
    """The table of a run, then the files of its parts that a person may want to open."""
    if len(parts) > 3:
        table.add_row("stored", f"{len(parts)} parts in {folder.path}")
    console.print(table)
    for part in parts if len(parts) <= 3 else ():
        for name in ("curve.parquet", "curve.png", "sweeps.json", "plan.png", "plan.gif", POLICY):
            if (part / name).exists():
                console.print(part / name)


def parts_with(folder: RunFolder, asked: Sequence[int]) -> list[Path]:
    """The finished parts that hold the seeds asked for, those with weights first, none in vain."""
    parts, left = [], set(asked)
    for part in sorted(folder.parts(), key=lambda part: not (part / POLICY).exists()):
        seeds = set(read_json(part / "config.json")["seeds"])
        if seeds & left:
            parts.append(part)
            left -= seeds
    return parts
