"""Reads results that anybody may have made: checked first, and nothing in them is run.

What a file of a part must hold is a shape: a type, a list of one shape, {str: shape} for any keys,
{name: shape, "name?": shape} for keys that must or may be there, or a tuple of shapes of which one
must fit. `float` is a finite number, NUMBER may be infinite or NaN too, `object` is anything.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, NewType

from manyseeds.cli import FLOAT32_MAX
from manyseeds.errors import UsageError, described
from manyseeds.packed import parts_of
from manyseeds.record import (
    DONE,
    SCHEMA,
    RunFolder,
    all_runs,
    find_run,
    is_finished,
    is_part,
    layers,
    plural,
    read_json,
    read_parquet,
    read_seal,
)
from manyseeds.runs.stale import part_is_stale

if TYPE_CHECKING:
    import pandas as pd

# What reading, or computing with what was read, may raise where a file holds something else.
BROKEN = (
    ArithmeticError,
    AttributeError,
    LookupError,
    MemoryError,
    NotImplementedError,
    OSError,
    RecursionError,
    SyntaxError,
    TypeError,
    ValueError,
)
MAX_DEPTH = 32  # of nested lists and objects
MAX_TEXT = 240  # characters of an id or a name: a file's has at most 255
MAX_INT = 2**53

Shape = Any
NUMBER = NewType("NUMBER", float)
NAME = NewType("NAME", str)
ORIGIN: dict[str, Shape] = {
    "command": str,
    "code": {"digest": str, "commit": str},
    "machine": {"cpu": str},
    "versions": {str: str},
}
CONFIG: dict[str, Shape] = {
    **ORIGIN,
    "schema": int,
    "kind": str,
    "algo": NAME,
    "seeds": [int],
    "code": {"digest": str, "commit": str, "origins": [NAME], "verified?": [NAME]},
    "config": {str: object},
    "execution": {"device": str, "threads": int},
    "machine": {"cpu": str, "cores": (int, None), "system": str, "gpu?": str},
}
COST = dict.fromkeys(("learn_s", "memory", "parameters", "optimizer_bytes"), float)
FINAL = {"per_seed": {str: (NUMBER, None)}}  # None: no number, nor a random score
MEASURES = {str: (float, None)}
SUMMARIES: dict[str, dict[str, Shape]] = {  # by the kind of run
    "control": {
        "seeds": [int],
        "final": {"greedy": FINAL, "sampled": FINAL},
        "diverged": {str: int},
        "timesteps_per_seed": int,
        "threshold?": (float, None),
        "digits?": (int, None),
    },
    "planning": {
        "sweeps": int,
        "iterations": int,
        "residual": float,
        "start_value": float,
        "score": float,
        "values": [float],
    },
    "prediction": {"seeds": [int], "states": [int], "exact": [float]},
    "language": {
        "seeds": [int],
        "headline": str,
        "initial": MEASURES,
        "final": MEASURES,
        "samples": int,
        "diverged?": (int, None),
    },
}


# ---- Files ----------------------------------------------------------------------------------


@contextlib.contextmanager
def reading(path: Path) -> Iterator[None]:
    """Raise UsageError for whatever a file or folder of the store does to the block."""
    try:
        yield
    except BROKEN as error:
        raise UsageError(f"{path}: has invalid content ({described(error)[:200]})") from error


@contextlib.contextmanager
def left_out(path: Path) -> Iterator[None]:
    """End the block where the store is broken, and say so in one line."""
    try:
        with reading(path):
            yield
    except UsageError as error:
        print(f"left out: {error}")


def read(path: Path, shape: Shape) -> Any:
    """Parsed JSON of a shape. Raises UsageError."""
    with reading(path):
        content = read_json(path)
        check_depth(content)
        check(content, shape, "")
        return content


def section_of(path: Path, shape: Shape, write: Callable[[Any], str]) -> str:
    """What `write` makes of a JSON file; '' without one, and, with a line that says so, for one
    that holds something else than it should."""
    with left_out(path):
        if path.exists():
            return write(read(path, shape))
    return ""


def read_table(path: Path, numbers: Sequence[str], texts: Sequence[str] = ()) -> pd.DataFrame:
    """The rows of a parquet file that has these columns. Raises UsageError."""
    from pandas.api.types import is_bool_dtype, is_numeric_dtype

    try:
        frame = read_parquet(path)
    except Exception as error:  # whatever pandas and pyarrow make of somebody's file
        raise UsageError(f"{path}: cannot be read: {error}") from error
    for name in (*numbers, *texts):
        if name not in frame:
            raise UsageError(f"{path}: has no column {name}")
        column = frame[name]
        if name in numbers and (is_bool_dtype(column) or not is_numeric_dtype(column)):
            raise UsageError(f"{path}: {name} must be numbers")
    return frame


def check_depth(content: Any) -> None:
    """Raise ValueError for JSON that is nested too deeply to be compared and printed."""
    level, depth = [content], 0
    while level := [x for x in level if isinstance(x, dict | list)]:
        depth += 1
        if depth > MAX_DEPTH:
            raise ValueError(f"nested more than {MAX_DEPTH} deep")
        level = [y for x in level for y in (x.values() if isinstance(x, dict) else x)]


def check(value: Any, shape: Shape, place: str) -> None:
    """Raise ValueError, which says where, for a value that does not fit a shape."""
    if isinstance(shape, tuple):
        if not any(fits(value, one) for one in shape):
            raise ValueError(f"{place or 'it'} must be {' or '.join(map(said, shape))}")
    elif isinstance(shape, list) and isinstance(value, list):
        for x in value:
            check(x, shape[0], f"each of {place}")
    elif isinstance(shape, dict) and isinstance(value, dict):
        if str in shape:
            for x in value.values():
                check(x, shape[str], f"each of {place}")
            return
        for key, inner in shape.items():
            name = key.removesuffix("?")
            where = f"{place}.{name}" if place else name
            if name in value:
                check(value[name], inner, where)
            elif name == key:
                raise ValueError(f"{where} is missing")
    elif isinstance(shape, list | dict) or not fits(value, shape):
        raise ValueError(f"{place or 'it'} must be {said(shape)}")


def fits(value: Any, shape: Shape) -> bool:
    """Whether a value is of a type that is no container."""
    if shape is None:
        return value is None
    if shape is NAME:
        return isinstance(value, str) and 0 < len(value) <= MAX_TEXT
    if shape in (int, float, NUMBER) and isinstance(value, bool):
        return False
    if shape is int:
        return isinstance(value, int) and abs(value) <= MAX_INT
    if shape is float:
        return isinstance(value, int | float) and is_finite(value)
    if shape is NUMBER:
        return isinstance(value, float) or (isinstance(value, int) and abs(value) <= MAX_INT)
    return isinstance(value, shape)


def is_finite(value: float) -> bool:
    """Whether a number is one in float32: what is beyond that, no environment gives."""
    return -FLOAT32_MAX <= value <= FLOAT32_MAX


def said(shape: Shape) -> str:
    """A shape in words."""
    words: dict[Shape, str] = {
        None: "null",
        bool: "true or false",
        int: "a whole number",
        float: "a finite number",
        NUMBER: "a number",
        str: "text",
        NAME: f"text of 1 to {MAX_TEXT} characters",
    }
    if isinstance(shape, list | dict):
        return "a list" if isinstance(shape, list) else "an object"
    return words[shape]


# ---- Runs -----------------------------------------------------------------------------------


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
    path = part / "config.json"
    config = read(path, CONFIG)
    if config["schema"] != SCHEMA:
        raise UsageError(f"{path}: has schema {config['schema']}, this version reads {SCHEMA}")
    kind = config["kind"]
    if kind not in SUMMARIES:
        raise UsageError(f"{path}: {kind} is not a kind of run; there are {', '.join(SUMMARIES)}")
    subject = "task" if kind == "language" else "env"
    with reading(path):
        check(config, {subject: NAME}, "")
        if config["config"].get(subject) != config[subject]:
            raise ValueError(f"config.{subject} is not {subject}")
        seeds = config["seeds"]
        if min(seeds, default=0) < 0 or len(set(seeds)) < len(seeds):
            raise ValueError("seeds must be different, and 0 or above")
        if (kind == "planning") != (not seeds) or (kind == "language" and len(seeds) != 1):
            raise ValueError(f"a {kind} part cannot have {plural(len(seeds), 'seed')}")
        part_is_stale(config)  # what it says that its code is may be no code at all
    summary = read(part / "summary.json", SUMMARIES[kind])
    if summary.get("seeds", []) != config["seeds"]:
        raise UsageError(f"{part / 'summary.json'}: has other seeds than config.json")
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
    return next((path for path in found if path.exists()), found[0])


def open_runs(results: Path) -> list[StoredRun]:
    """Every run with a finished part; what is broken is left out with a line that says so."""
    runs = []
    for folder in all_runs(results):
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
