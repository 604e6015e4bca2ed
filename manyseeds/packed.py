"""The packed form of finished parts: all those of an algorithm on an environment in few files.

`runs/ENV/ALGORITHM/` then has, in the place of folders of runs or beside them,

    runs.json         a line per part, RUN/PART, with its JSON files, DONE.json among them; above
                      these a line per run whose code was proved equal to later code
    curve.parquet     the rows of the files of this name of all parts; the first columns are `run`
                      and `part`
    metrics.parquet   likewise, and values.parquet of predictions

A path such as RUN/seeds-000-009/config.json leads to no file then: `manyseeds.record` looks here
for what it names. Rows without a line in runs.json are ignored, so a line can be deleted by hand.
Nothing here writes: `record.pack` puts the files in their place.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import hashlib
import io
import json
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from manyseeds import untrusted
from manyseeds.errors import UsageError
from manyseeds.untrusted import BROKEN, invalid, is_inner_name

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

RUNS, DONE = "runs.json", "DONE.json"
KEY = ("run", "part")  # the first columns of a packed table
COLUMNS = "columns"  # in a part's line: those of a table, where the table has more


# ---- Reading --------------------------------------------------------------------------------


def read(folder: Path) -> dict[str, Any]:
    """The content of runs.json in a folder ENV/ALGORITHM; `{}` where nothing is packed.

    Shared by all callers, who must not change it. Raises UsageError for malformed content.
    """
    try:
        return _read(folder / RUNS, _version(folder / RUNS))
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except BROKEN as error:
        raise invalid(folder / RUNS, error) from None


def _version(path: Path) -> tuple[int, ...]:
    """What changes with a file's content."""
    status = os.lstat(path)
    return status.st_ino, status.st_size, status.st_mtime_ns


@functools.lru_cache(maxsize=128)
def _read(path: Path, version: tuple[int, ...]) -> dict[str, Any]:
    content = untrusted.read_bytes(path)
    content = content.replace(b",\n}", b"\n}")  # the last line of a section may be deleted, too
    return _checked(untrusted.parse_json(content, path))


def _checked(content: Any) -> dict[str, Any]:
    """The content of a runs.json, whose names lead out of no folder. Raises BROKEN errors."""
    sections: dict[str, Any] = {
        "sha256": {name: list(sums) for name, sums in content["sha256"].items()},
        "proved": {run: dict(codes) for run, codes in content["proved"].items()},
        "parts": {key: dict(files) for key, files in content["parts"].items()},
    }
    for key, files in sections["parts"].items():
        _check_name(key, r"[^./][^/]*/(seeds-\d{3,}-\d{3,}|plan)")
        for name in files.keys() - {COLUMNS}:
            _check_name(name, r"[^./][^/]*\.json")
        for name in files[DONE]["sha256"]:
            _check_name(name, ".*")
        for names in files.get(COLUMNS, {}).values():
            if not (isinstance(names, list) and all(isinstance(x, str) for x in names)):
                raise ValueError(f"the columns of {key} are no list of names")
    return sections


def _check_name(name: str, pattern: str) -> None:
    """Raise ValueError for a name that is not of a pattern, or not one of a file in a folder."""
    if not (is_inner_name(name) and re.fullmatch(pattern, name)):
        raise ValueError(f"{name[:80]} names no part and no file of one")


def parts_of(run: Path) -> list[str]:
    """The names of the packed parts of a run."""
    parts = (key.split("/") for key in read(run.parent).get("parts", ()))
    return [part for name, part in parts if name == run.name]


def is_packed(part: Path) -> bool:
    """Whether a part is packed."""
    return part.name in parts_of(part.parent)


def runs_of(folder: Path) -> set[str]:
    """The names of the runs with packed parts in a folder ENV/ALGORITHM."""
    return {key.split("/")[0] for key in read(folder).get("parts", ())}


def _line(part: Path) -> dict[str, Any]:
    """What runs.json has of a part; KeyError where it is not packed."""
    line: dict[str, Any] = read(part.parents[1])["parts"][f"{part.parent.name}/{part.name}"]
    return line


def has(file: Path) -> bool:
    """Whether a packed part has a JSON file."""
    return is_packed(file.parent) and file.name in _line(file.parent)


def read_bytes(file: Path) -> bytes:
    """A JSON file of a packed part, byte for byte. Raises FileNotFoundError."""
    try:
        return _text(_line(file.parent)[file.name])
    except LookupError:
        raise FileNotFoundError(errno.ENOENT, "no such file", str(file)) from None


def read_json(file: Path) -> Any:
    """The content of a JSON file of a packed part, with the code that its own was proved equal to.

    Raises FileNotFoundError where it is not packed.
    """
    content = untrusted.parse_json(read_bytes(file), file)  # a copy: callers change it
    if file.name == "config.json":
        proved = read(file.parents[2])["proved"].get(file.parents[1].name, {})
        with contextlib.suppress(LookupError, TypeError, ValueError):  # somebody's may say anything
            content["code"] |= proved.get(content["code"]["digest"], {})
    return content


def holds(file: Path, digest: str) -> bool:
    """Whether a file of a packed part has a checksum: that of the file that was packed.

    Rows of a table count as such if the table is as it was written.
    """
    try:
        line = _line(file.parent)
        if file.suffix == ".json":
            return hashlib.sha256(_text(line[file.name])).hexdigest() == digest
        return file.name in line[DONE]["sha256"] and is_whole(file.parents[2] / file.name)
    except (UsageError, *BROKEN):
        return False


def is_whole(table: Path) -> bool:
    """Whether a packed table is there, as it was written."""
    try:
        return _sha256(table, _version(table)) in read(table.parent)["sha256"][table.name]
    except (UsageError, *BROKEN):
        return False


def _text(content: Any) -> bytes:
    """The bytes of a JSON file: as `record.write_json` writes it, unless it is stored as text."""
    return (content if isinstance(content, str) else json.dumps(content, indent=1) + "\n").encode()


@functools.lru_cache(maxsize=4096)
def _sha256(path: Path, version: tuple[int, ...]) -> str:
    return untrusted.sha256_of(path, untrusted.MAX_BYTES)


def read_parquet(file: Path) -> pd.DataFrame:
    """The rows of a parquet file of a packed part.

    Raises FileNotFoundError where it is not packed, UsageError for a table that is malformed.
    """
    return _rows(file).to_pandas()


def _rows(file: Path) -> pa.Table:
    table = file.parents[2] / file.name
    try:
        line = _line(file.parent)
        rows, where = _table(table, _version(table))
        start, stop = where[f"{file.parent.parent.name}/{file.parent.name}"]
        names = line.get(COLUMNS, {}).get(file.name) or rows.column_names[len(KEY) :]
        return rows.slice(start, stop - start).select(names)
    except LookupError:
        raise FileNotFoundError(errno.ENOENT, "no such file", str(file)) from None


def files_of(part: Path) -> dict[str, bytes]:
    """The files of a packed part, by name, `{}` where it is not packed.

    They are as they were, byte for byte if the same versions write parquet files, but for the code
    that its own was proved equal to; of values.parquet the rows alone are as they were. Raises
    UsageError for malformed content.
    """
    try:
        line = _line(part)
    except LookupError:
        return {}
    files = {}
    with _naming(part, "has invalid content"):
        for name in (DONE, *line[DONE]["sha256"]):
            if name.endswith(".parquet"):
                buffer = io.BytesIO()
                read_parquet(part / name).to_parquet(buffer, index=False)
                files[name] = buffer.getvalue()
            elif name in line:
                files[name] = _text(line[name])
        files["config.json"] = _text(read_json(part / "config.json"))
    return files


@contextlib.contextmanager
def _naming(path: Path, fault: str) -> Iterator[None]:
    """Raise UsageError, which names a path, for what is malformed in the block."""
    try:
        yield
    except BROKEN as error:
        raise invalid(path, error, fault) from None


@functools.lru_cache(maxsize=8)
def _table(path: Path, version: tuple[int, ...]) -> tuple[pa.Table, dict[str, tuple[int, int]]]:
    """A packed table, and where the rows of each part begin and end."""
    try:
        return _located(untrusted.read_parquet(path, KEY))
    except BROKEN as error:
        raise invalid(path, error) from None


def _located(rows: pa.Table) -> tuple[pa.Table, dict[str, tuple[int, int]]]:
    """A packed table whose KEY columns are dictionaries, and where the rows of each part begin and
    end. Raises BROKEN errors."""
    import numpy as np

    names = [rows.column(name).combine_chunks() for name in KEY]
    codes = np.stack([x.indices.to_numpy(zero_copy_only=False) for x in names])
    starts = [0, *(np.flatnonzero(np.diff(codes, axis=1).any(axis=0)) + 1).tolist()]
    where = {
        "/".join(name[start].as_py() for name in names): (start, stop)
        for start, stop in zip(starts, [*starts[1:], len(rows)], strict=True)
    }
    if len(where) < len(starts):
        raise ValueError("the rows of one part are in several places")
    return rows, where


# ---- Writing --------------------------------------------------------------------------------


def with_parts(
    folder: Path, parts: Mapping[str, Mapping[str, bytes]]
) -> Iterator[tuple[str, bytes]]:
    """The files of a folder ENV/ALGORITHM to write, by name, so that it has further parts.

    parts: by RUN/PART their files, JSON and parquet, DONE.json among them. To be written in this
    order: at each moment every part that runs.json has then is whole. Raises UsageError, before the
    first one, for a table that is damaged and for rows that would not be read as they are.
    """
    old = read(folder) or {"sha256": {}, "proved": {}, "parts": {}}
    lines = {
        key: {k: x for k, x in line.items() if k != COLUMNS} for key, line in old["parts"].items()
    }
    for key, files in parts.items():
        texts = {name: x.decode() for name, x in files.items() if name.endswith(".json")}
        lines[key] = {name: _content(text) for name, text in texts.items()}
    lines = dict(sorted(lines.items()))
    tables: dict[str, dict[str, pa.Table]] = {}
    for key, line in lines.items():
        for name in (name for name in line[DONE]["sha256"] if name.endswith(".parquet")):
            given = parts.get(key, {}).get(name)
            if given is None and not is_whole(folder / name):
                raise UsageError(f"{folder / name}: differs from its checksum; restore it")
            path = folder / key / name
            with _naming(path, "cannot be packed"):
                rows = _rows(path) if given is None else untrusted.parse_parquet(given, path)
                tables.setdefault(name, {})[key] = rows
    whole, contents = {}, {}
    for name, own in tables.items():
        with _naming(folder / name, "cannot be packed"):
            whole[name] = _joined(own)
            contents[name] = _parquet(whole[name])
            _check_rows(contents[name], folder / name, own)
    sums = {name: [hashlib.sha256(x).hexdigest()] for name, x in contents.items()}

    def line_of(key: str, every: bool) -> dict[str, Any]:
        columns = {name: rows[key].column_names for name, rows in tables.items() if key in rows}
        own = {k: x for k, x in columns.items() if every or [*KEY, *x] != whole[k].column_names}
        return {**({COLUMNS: own} if own else {}), **lines[key]}

    new = {"sha256": sums, "proved": old["proved"], "parts": {k: line_of(k, False) for k in lines}}
    with _naming(folder / RUNS, "cannot be packed"):
        _checked(new)
    if old["parts"]:  # meanwhile each table may be the old one or the new one
        both = {name: [*old["sha256"].get(name, ()), *x] for name, x in sums.items()}
        there = {k: line if k in parts else line_of(k, True) for k, line in old["parts"].items()}
        yield RUNS, _dumped({"sha256": both, "proved": old["proved"], "parts": there})
    yield from contents.items()
    yield RUNS, _dumped(new)


def with_proved(folder: Path, codes: Mapping[str, Mapping[str, Any]]) -> bytes:
    """runs.json of a folder with parts whose code was proved equal to that of today.

    codes: by RUN/PART, what of "code" in its config.json is to be read from now on. A run has a
    line with the codes by the digests of those that have trained its parts.
    """
    old = read(folder)
    proved = {run: dict(known) for run, known in old["proved"].items()}
    for key, code in codes.items():
        trained = json.loads(_text(old["parts"][key]["config.json"]))["code"]["digest"]
        proved.setdefault(key.split("/")[0], {})[trained] = dict(code)
    return _dumped({**old, "proved": dict(sorted(proved.items()))})


def _content(text: str) -> Any:
    """The content of a JSON file, or its text, if it would not be written like this again."""
    content = json.loads(text)
    return content if _text(content) == text.encode() else text


def _dumped(content: Mapping[str, Any]) -> bytes:
    """runs.json, a line for each table, run and part."""
    sections = []
    for name, lines in content.items():
        inner = ",\n".join(f"{json.dumps(key)}: {json.dumps(x)}" for key, x in lines.items())
        sections.append(f"{json.dumps(name)}: {{\n{inner}\n}}")
    return ("{\n" + ",\n".join(sections) + "\n}\n").encode()


def _joined(parts: Mapping[str, pa.Table]) -> pa.Table:
    """The rows of parts, by RUN/PART, as one table."""
    import pyarrow as pa

    tables = []
    for key, rows in parts.items():
        for place, (name, value) in enumerate(zip(KEY, key.split("/"), strict=True)):
            rows = rows.add_column(place, name, pa.array([value] * len(rows)))
        tables.append(rows.replace_schema_metadata(None))
    return pa.concat_tables(tables, promote_options="default")


def _check_rows(content: bytes, path: Path, parts: Mapping[str, pa.Table]) -> None:
    """Raise BROKEN errors unless the rows of parts are read from a packed table as they are."""
    if len(content) > untrusted.MAX_BYTES:
        raise ValueError("too large to be read again")
    rows, where = _located(untrusted.parse_parquet(content, path, KEY))
    for key, part in parts.items():
        start, stop = where.get(key, (0, 0))
        there = rows.slice(start, stop - start).select(part.column_names)
        if start == stop or not there.to_pandas().equals(part.to_pandas()):
            raise ValueError(f"those of {key} would not be read as they are")


def _parquet(rows: pa.Table) -> bytes:
    """A packed table as a file: numbers hardly repeat, so their bytes are split, not listed."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    numbers = [field.name for field in rows.schema if pa.types.is_floating(field.type)]
    others = [name for name in rows.column_names if name not in numbers]
    buffer = io.BytesIO()
    split: Any = {"use_dictionary": others, "use_byte_stream_split": numbers}
    pq.write_table(rows, buffer, compression="zstd", **split)
    return buffer.getvalue()
