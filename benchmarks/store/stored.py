"""Reads results that anybody may have made: checked first, and nothing in them is run."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from manyseeds import record
from manyseeds.errors import UsageError
from manyseeds.packed import parts_of
from manyseeds.record import (
    DONE,
    RunFolder,
    all_runs,
    find_run,
    is_finished,
    is_part,
    layers,
    read_json,
    read_parquet,
    read_seal,
)
from manyseeds.runs.stale import part_is_stale
from manyseeds.untrusted import MAX_RECORD, Shape, check, reading

if TYPE_CHECKING:
    import pandas as pd

Item = TypeVar("Item")

# ---- Files ----------------------------------------------------------------------------------


LEFT_OUT: list[str] = []  # of this process, for whoever must not lack anything


@contextlib.contextmanager
def left_out(path: Path) -> Iterator[None]:
    """End the block where the store is broken, and say so in one line."""
    try:
        with reading(path):
            yield
    except UsageError as error:
        LEFT_OUT.append(str(error))
        print(f"left out: {error}")


def read(path: Path, shape: Shape) -> Any:
    """The content of a JSON file, of a shape. Raises UsageError."""
    with reading(path):
        content = read_json(path, MAX_RECORD)
        check(content, shape, "")
        return content


def section_of(path: Path, shape: Shape, write: Callable[[Any], Iterable[Item]]) -> Sequence[Item]:
    """What `write` makes of a JSON file; nothing without one, and, with a line that says so, for
    one that holds something else than it should."""
    with left_out(path):
        if os.path.lexists(path):
            return list(write(read(path, shape)))
    return ()


def read_table(path: Path, numbers: Sequence[str], texts: Sequence[str] = ()) -> pd.DataFrame:
    """The rows of a parquet file that has these columns. Raises UsageError."""
    from pandas.api.types import is_bool_dtype, is_numeric_dtype

    with reading(path):
        frame = read_parquet(path)
    for name in (*numbers, *texts):
        if name not in frame:
            raise UsageError(f"{path}: has no column {name}")
        column = frame[name]
        if name in numbers and (is_bool_dtype(column) or not is_numeric_dtype(column)):
            raise UsageError(f"{path}: {name} must be numbers")
    return frame


# ---- Runs -----------------------------------------------------------------------------------


def name_with_arguments(env: str, env_kwargs: Sequence[str]) -> str:
    """`FrozenLake-v1 is_slippery=False`"""
    return " ".join((env, *env_kwargs))


@dataclass(frozen=True)
class StoredRun:
    """The finished parts of one run, checked."""

    path: Path
    parts: list[Path]
    configs: list[dict[str, Any]]  # config.json of every part
    summaries: list[dict[str, Any]]  # summary.json of every part

    @property
    def kind(self) -> str:
        return str(self.configs[0]["kind"])

    @property
    def algo(self) -> str:
        """The algorithm's folder."""
        return RunFolder(self.path).algo

    @property
    def folder(self) -> Path:
        """The folder of its files: the run's own, or where it is packed the algorithm's."""
        return self.path.parent if parts_of(self.path) else self.path

    @property
    def env(self) -> str:
        """The id of the environment, or the task."""
        return str(self.configs[0]["task" if self.kind == "language" else "env"])

    @property
    def env_name(self) -> str:
        """Its id with the arguments, which make another environment."""
        return name_with_arguments(self.env, self.config.get("env_kwargs", ()))

    @property
    def config(self) -> dict[str, Any]:
        """The hyperparameters: every field that changes a learning curve."""
        return dict(self.configs[0]["config"])

    @property
    def seeds(self) -> list[int]:
        """All seeds of the parts, ascending."""
        return sorted({seed for config in self.configs for seed in config["seeds"]})

    def table(self, name: str, numbers: Sequence[str], texts: Sequence[str] = ()) -> pd.DataFrame:
        """The rows of a parquet file of all parts, which has these columns."""
        import pandas as pd

        frames = [read_table(part / name, numbers, texts) for part in self.parts]
        return pd.concat(frames, ignore_index=True)


def read_part(part: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """config.json and summary.json of a finished part. Raises UsageError."""
    config, summary = record.read_part(part)
    with reading(part / "config.json"):
        check(config["config"].get("env_kwargs", []), [str], "env_kwargs")
        part_is_stale(config)  # what it says that its code is may be no code at all
    return config, summary


def open_run(folder: RunFolder, skip_broken: bool = False) -> StoredRun:
    """The finished parts of a run, or one of them by its own path; none that is redundant.

    Raises UsageError without any, and for a part that holds something else than it should, or other
    settings than the first. skip_broken: such a part is left out, with a line that says so.
    """
    path = folder.path
    alone = is_part(path)
    seen: set[int] = set()
    run = StoredRun(path.parent if alone else path, [], [], [])
    with reading(path):
        if alone:
            parts = [path] if is_finished(path) else []
        else:
            parts = folder.parts()
    for part in parts:
        with left_out(part) if skip_broken else contextlib.nullcontext():
            config, summary = read_part(part)
            first = run.configs[0] if run.configs else config
            fields = ("kind", "algo", "env", "task", "config")
            if any(config.get(name) != first.get(name) for name in fields):
                raise UsageError(f"{part}: is of another run than {run.parts[0]}")
            if run.parts and set(config["seeds"]) <= seen:
                continue  # the user's layer has them, too
            seen |= set(config["seeds"])
            run.parts.append(part)
            run.configs.append(config)
            run.summaries.append(summary)
    if not parts:
        for part in [path] if alone else folder.all_parts():
            if read_seal(part):
                raise UsageError(f"{part}: is damaged, a file differs from its checksum in {DONE}")
        raise UsageError(
            f"{path}: no finished seeds; a run is a folder RESULTS/runs/ENV/ALGORITHM/NAME"
        )
    return run


def find_and_open(text: str) -> StoredRun:
    """The run, or part, that a person means (`record.find_run`). Raises UsageError."""
    with reading(Path(text)):
        return open_run(find_run(text))


def find_file(results: Path, name: str) -> Path:
    """A file of measurements in the first layer that has it, as readers of a folder see them."""
    found = [layer / name for layer in layers(results)]
    return next((path for path in found if os.path.lexists(path)), found[0])


def open_runs(results: Path, wanted: Callable[[Path], bool] = lambda name: True) -> list[StoredRun]:
    """Every run with a finished part; what is broken is left out with a line that says so.

    wanted: whether a run is read, by its path within a layer, `runs/ENV/ALGO/NAME`.
    """
    runs = []
    for folder in all_runs(results, wanted):
        with left_out(folder.path):
            runs.append(open_run(folder, skip_broken=True))
    return [run for run in runs if run.parts]


def file_name(text: str) -> str:
    """Stored text as a file's name: as it is where that is one, else shortened and told apart."""
    if re.fullmatch(r"\w[\w.-]{0,80}", text, re.ASCII):
        return text
    plain = re.sub(r"[^\w.-]+", "-", text, flags=re.ASCII).strip("-.")
    digest = sha256(text.encode(errors="replace")).hexdigest()
    return f"{plain[:60]}-{digest[:8]}"
