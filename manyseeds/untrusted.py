"""The one door to files that others may have written: a store, an export, a model, a checkpoint.

No link is followed, only regular files are opened, and size and shape are bounded before anything
is read or allocated. Nothing that is read is run. Whatever is wrong with a file raises UsageError,
which names it; FileNotFoundError says that there is none.

What the JSON of a record must hold is a shape: a type, a list of one shape, {str: shape} for any
keys, {name: shape, "name?": shape} for keys that must or may be there, or a tuple of shapes of
which one must fit. `float` is a finite number, NUMBER may be infinite or NaN too, `object` is
anything that is not long.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import math
import os
import re
import shutil
import stat
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NamedTuple, NewType

from manyseeds.cli import FLOAT32_MAX, INT_MAX, MAX_NAME
from manyseeds.errors import UsageError, described

if TYPE_CHECKING:
    import pyarrow as pa
    from torch import Tensor

MAX_BYTES = 2**28  # of a file that is read as a whole
MAX_JSON = 2**26  # bytes of a JSON file
MAX_VALUES = 2**22  # of a JSON file: lists, objects and what is in them
MAX_RECORD = 2**23  # bytes of a JSON file of a part, which may have 100,000 seeds
MAX_WEIGHTS = 2**36  # bytes of a file of weights
MAX_HEADER = 2**24  # bytes of the JSON that a safetensors file begins with
MAX_CELLS = 2**25  # of a table: rows times columns
MAX_FILES = 10_000  # of a folder
MAX_DEPTH = 32  # of nested lists and objects
MAX_TEXT = 240  # characters of an id or a name: a file's has at most 255
MAX_COMPLETION = 2**18  # characters
MAX_STRING = 2**14  # characters of any other text of a record, such as a command
SPARSE = 2**24  # bytes above which a file must be on the disk, not be a hole
NO_FOLLOW = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
# What leaves this machine in an export, and what a model's folder is read for: the files that
# `save_pretrained` writes and those of all tokenizers of `transformers`, and no code.
MODEL = re.compile(
    r"model(-\d+-of-\d+)?\.safetensors|(config|generation_config|model\.safetensors\.index)\.json"
    r"|(tokenizer|tokenizer_config|special_tokens_map|added_tokens)\.json"
    r"|(merges|vocab|dict)\.txt|(tekken|(entity_|target_)?vocab(-src|-tgt)?)\.json|vocab\.bpe"
    r"|(word_shape|word_pronunciation|normalizer|emoji|byte_maps)\.json|bpe\.codes"
    r"|\w[\w.-]*\.model(\.v\w+)?|(source|target)\.spm|prophetnet\.tokenizer"
    r"|(chat_template|additional_chat_templates/[\w-]+)\.jinja"
)
SHARED = re.compile(rf"README\.md|run\.json|curve\.parquet|policy\.safetensors|{MODEL.pattern}")
# What reading, or computing with what was read, may raise where a file holds something else.
BROKEN = (
    ArithmeticError,
    AttributeError,
    LookupError,
    MemoryError,
    NotImplementedError,
    OSError,
    RecursionError,
    RuntimeError,
    SyntaxError,
    TypeError,
    ValueError,
)


# ---- Files ----------------------------------------------------------------------------------


def open_checked(path: Path, limit: int = MAX_BYTES) -> io.BufferedReader:
    """A regular file of at most `limit` bytes, opened for reading.

    Raises FileNotFoundError, and UsageError for anything else that cannot be opened: a link, a
    pipe (which is not waited for), a file that is mostly a hole.
    """
    try:
        before = os.lstat(path)
        if not stat.S_ISREG(before.st_mode):
            raise UsageError(f"{path}: is a link, a folder or the like, not a file")
        descriptor = os.open(path, os.O_RDONLY | NO_FOLLOW)
    except (FileNotFoundError, NotADirectoryError):
        raise FileNotFoundError(2, "No such file", str(path)) from None
    except (OSError, ValueError) as error:  # no permission, too long a name, a loop of links
        raise UsageError(f"{path}: {getattr(error, 'strerror', None) or error}") from None
    file = os.fdopen(descriptor, "rb")
    try:
        after = os.fstat(descriptor)
        if not os.path.samestat(before, after):
            raise UsageError(f"{path}: was replaced while it was opened")
        if after.st_size > limit:
            raise UsageError(f"{path}: has {after.st_size} bytes, more than {limit}")
        if after.st_size > SPARSE and is_sparse(descriptor, after):
            raise UsageError(f"{path}: is a sparse file")
    except BaseException:
        file.close()
        raise
    return file


def is_sparse(descriptor: int, status: os.stat_result) -> bool:
    """Whether an open file is mostly a hole, where the system says that.

    Compression may save some blocks. ZFS counts those that were just written some seconds later,
    other file systems none at all, but they know where a hole is.
    """
    blocks = getattr(status, "st_blocks", None)  # not on Windows
    if blocks is None or blocks * 512 >= status.st_size // 16:
        return False
    with contextlib.suppress(OSError):
        hole = os.lseek(descriptor, 0, os.SEEK_HOLE)
        os.lseek(descriptor, 0, os.SEEK_SET)
        return hole < status.st_size
    return True


def read_bytes(path: Path, limit: int = MAX_BYTES) -> bytes:
    """The content of a file, of its size when it was opened. Raises as `open_checked`."""
    with open_checked(path, limit) as file:
        try:
            return file.read(os.fstat(file.fileno()).st_size)
        except (OSError, MemoryError) as error:
            raise UsageError(f"{path}: {described(error)}") from None


def read_text(path: Path, limit: int = MAX_BYTES) -> str:
    """The content of a file of UTF-8. Raises as `open_checked`."""
    content = read_bytes(path, limit)
    try:
        return content.decode()
    except ValueError as error:
        raise invalid(path, error) from None


def open_to_write(path: Path, append: bool) -> io.BufferedWriter:
    """A file of ours in a folder that others may write to, opened for writing.

    It is made where there is none. append: what it holds stays. Raises UsageError where a link, a
    second name (a hard link) or something else is there; OSError.
    """
    with contextlib.suppress(FileNotFoundError):
        if not stat.S_ISREG(os.lstat(path).st_mode):  # a pipe would be waited for
            raise UsageError(f"{path}: is a link, a folder or the like, not a file")
    flags = os.O_WRONLY | os.O_CREAT | NO_FOLLOW | (os.O_APPEND if append else 0)
    file = os.fdopen(os.open(path, flags, 0o666), "ab" if append else "wb")
    status = os.fstat(file.fileno())
    if not stat.S_ISREG(status.st_mode) or status.st_nlink > 1:
        file.close()
        raise UsageError(f"{path}: has a second name (a hard link); remove it")
    if not append:
        file.truncate(0)
    return file


def copy_file(source: Path, target: Path) -> None:
    """Copy a file to a name that is new, in a folder of ours. Raises as `open_checked`, OSError."""
    with open_checked(source, MAX_WEIGHTS) as file:
        target.parent.mkdir(parents=True, exist_ok=True)
        with open(target, "xb") as copy:
            shutil.copyfileobj(file, copy)


def sha256_of(path: Path, limit: int = MAX_WEIGHTS) -> str:
    """The SHA-256 of a file. Raises as `open_checked`."""
    with open_checked(path, limit) as file:
        try:
            return hashlib.file_digest(file, "sha256").hexdigest()
        except OSError as error:
            raise UsageError(f"{path}: {described(error)}") from None


def invalid(path: Path, error: BaseException, fault: str = "has invalid content") -> UsageError:
    """The error for what a file holds."""
    return UsageError(f"{path}: {fault} ({described(error)[:200]})")


@contextlib.contextmanager
def reading(path: Path, fault: str = "has invalid content") -> Iterator[None]:
    """Raise UsageError for whatever a file or folder of the store does to the block."""
    try:
        yield
    except BROKEN as error:
        raise invalid(path, error, fault) from error


def is_inner_name(name: Any) -> bool:
    """Whether something names a file within a folder, such as `model/config.json`.

    It leads out of no folder on any system, and is not hidden.
    """
    if not (isinstance(name, str) and name.isprintable()):
        return False
    parts = name.split("/")
    plain = all(x and x[0] != "." and len(x.encode()) <= MAX_NAME for x in parts)
    return plain and len(parts) <= 3 and not set(name) & set('\\:*?"<>|')


def check_within(path: Path, store: Path) -> None:
    """Raise UsageError where a path in a store, or a folder on the way to it, is a link: what is
    written there would be elsewhere. The store itself may be one."""
    for part in (path, *path.parents):
        if part == store:
            return
        if part.is_symlink():
            raise UsageError(f"{part}: is a link, and nothing is written to what it leads to")


def cached_file(folder: Path, name: str) -> Path:
    """The path of a file in a folder or, where that is a cache of the Hugging Face hub, whose
    folders hold links alone, of what its link leads to there."""
    path = folder / name
    blobs = folder.resolve().parent.parent / "blobs"
    return path.resolve() if path.is_symlink() and path.resolve().parent == blobs else path


def files_in(folder: Path) -> Iterator[str]:
    """The names of what is in a folder and in its folders, sorted: `config.json`, `model/x.json`.

    Linked folders are names, too, and are not entered. Raises UsageError where there are too many.
    """
    count = 0
    for path, folders, files in os.walk(folder):
        linked = [name for name in folders if os.path.islink(os.path.join(path, name))]
        folders[:] = sorted(set(folders) - set(linked))
        for name in sorted([*files, *linked]):
            if (count := count + 1) > MAX_FILES:
                raise UsageError(f"{folder}: has more than {MAX_FILES} files")
            yield Path(path, name).relative_to(folder).as_posix()


# ---- JSON -----------------------------------------------------------------------------------


def read_json(path: Path, limit: int = MAX_JSON) -> Any:
    """The content of a JSON file. Raises as `open_checked`."""
    return parse_json(read_bytes(path, limit), path)


def parse_json(content: bytes, path: Path) -> Any:
    """JSON that was read from a file: of few enough values, not too deep, text that is Unicode.

    Raises UsageError.
    """
    try:
        if sum(map(content.count, (b"[", b"{", b","))) > MAX_VALUES:
            raise ValueError(f"it has more than {MAX_VALUES} values")
        parsed = json.loads(content.decode())
        check_depth(parsed)
    except (ValueError, RecursionError, MemoryError) as error:
        raise invalid(path, error) from None
    return parsed


def check_depth(content: Any) -> None:
    """Raise ValueError for JSON that is nested too deeply to be compared and printed, and for half
    a surrogate pair, which can be written nowhere."""
    level, depth = [content], 0
    while level:
        for x in level:
            for text in x if isinstance(x, dict) else (x,):
                if isinstance(text, str) and not text.isascii():
                    text.encode()
        level = [x for x in level if isinstance(x, dict | list)]
        depth += 1
        if level and depth > MAX_DEPTH:
            raise ValueError(f"nested more than {MAX_DEPTH} deep")
        level = [y for x in level for y in (x.values() if isinstance(x, dict) else x)]


# ---- Tables and tensors -----------------------------------------------------------------------


def read_parquet(path: Path, dictionaries: Collection[str] = ()) -> pa.Table:
    """The rows of a Parquet file, as `parse_parquet`. Raises as `open_checked`."""
    return parse_parquet(read_bytes(path), path, dictionaries)


def parse_parquet(content: bytes, path: Path, dictionaries: Collection[str] = ()) -> pa.Table:
    """The rows of a Parquet file that was read; what its metadata says is checked before any row.

    Columns are numbers and texts. dictionaries: texts that stay indices into their values. Raises
    UsageError.
    """
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    try:
        about = pq.read_metadata(io.BytesIO(content))
        if about.num_rows * about.num_columns > MAX_CELLS or about.num_rows < 0:
            raise ValueError(f"it has more than {MAX_CELLS} cells")
        groups = [about.row_group(k) for k in range(about.num_row_groups)]
        if sum(max(group.total_byte_size, 0) for group in groups) > MAX_BYTES:
            raise ValueError(f"it has more than {MAX_BYTES} bytes when it is unpacked")
        if sum(group.num_rows for group in groups) != about.num_rows:
            raise ValueError("its groups have other rows than it has")
        columns = [about.schema.column(k) for k in range(about.num_columns)]
        if any(column.max_repetition_level for column in columns):
            raise ValueError("it has lists in a column")
        texts = [column.path for column in columns if column.physical_type == "BYTE_ARRAY"]
        rows = pq.ParquetFile(io.BytesIO(content), read_dictionary=texts).read(use_threads=False)
        for place, name in enumerate(rows.column_names):
            if name in texts:  # one long text may be in every row
                column = rows.column(place)
                longest = (
                    max(
                        (pc.max(pc.binary_length(x.dictionary)).as_py() or 0) for x in column.chunks
                    )
                    if column.num_chunks
                    else 0
                )
                if longest * len(rows) > MAX_BYTES:
                    raise ValueError(f"it has more than {MAX_BYTES} bytes when it is unpacked")
                if name not in dictionaries:
                    rows = rows.set_column(place, name, column.cast(column.type.value_type))
        return rows.replace_schema_metadata(None)
    except Exception as error:  # whatever pyarrow makes of somebody's file
        raise invalid(path, error) from None


# Types of tensors as safetensors and as PyTorch call them.
DTYPES = {
    **{"I8": "int8", "I16": "int16", "I32": "int32", "I64": "int64"},
    **{"U8": "uint8", "U16": "uint16", "U32": "uint32", "U64": "uint64", "BOOL": "bool"},
    **{"F16": "float16", "BF16": "bfloat16", "F32": "float32", "F64": "float64"},
}


class Stored(NamedTuple):
    """A tensor as the header of a safetensors file has it."""

    dtype: str  # such as F32
    shape: tuple[int, ...]
    place: tuple[int, int]  # of its bytes, from the end of the header


def read_header(path: Path, limit: int = MAX_WEIGHTS) -> tuple[dict[str, Stored], dict[str, str]]:
    """Types and shapes of the tensors of a safetensors file, and what it says of itself.

    Raises as `open_checked`, also where the shapes are not what the file has bytes for.
    """
    with open_checked(path, limit) as file:
        return _header(file, path)


def read_tensors(path: Path, limit: int = MAX_WEIGHTS) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors of a safetensors file, and what it says of itself. Raises as `read_header`.

    Each is read into memory of its own, so that there is never a second copy of all.
    """
    import torch

    with open_checked(path, limit) as file, reading(path):
        header, about = _header(file, path)
        data, tensors = file.tell(), {}
        for name, x in header.items():
            tensors[name] = torch.empty(x.shape, dtype=getattr(torch, DTYPES[x.dtype]))
            file.seek(data + x.place[0])
            content: Any = tensors[name].view(-1).view(torch.uint8).numpy()
            if file.readinto(content) != len(content):
                raise ValueError(f"{name} is cut off")
        return tensors, about


def read_one(path: Path, name: str, most: int, limit: int = MAX_WEIGHTS) -> bytes:
    """The bytes of one tensor of a safetensors file, at most some. Raises as `read_header`."""
    with open_checked(path, limit) as file, reading(path):
        begin, end = _header(file, path)[0][name].place
        if end - begin > most:
            raise ValueError(f"{name} has more than {most} bytes")
        file.seek(begin, os.SEEK_CUR)  # behind the header
        return file.read(end - begin)


def _header(file: IO[bytes], path: Path) -> tuple[dict[str, Stored], dict[str, str]]:
    size = file.seek(0, os.SEEK_END)
    file.seek(0)
    length = int.from_bytes(file.read(8), "little")
    if size < 8 or length > min(MAX_HEADER, size - 8):
        raise UsageError(f"{path}: is no safetensors file")
    header = parse_json(file.read(length), path)
    try:
        about = header.pop("__metadata__", {})
        check(about, {str: str}, "__metadata__", MAX_HEADER)
        found = {
            name: Stored(x["dtype"], tuple(x["shape"]), tuple(x["data_offsets"]))
            for name, x in header.items()
        }
        total = 0
        for name, x in found.items():
            check([*x.shape, *x.place], [int], f"the shape of {name}")
            if len(x.shape) > 8 or min(*x.shape, *x.place, 0) < 0:
                raise ValueError(f"{name} has no shape")
            count = math.prod(x.shape) * int(re.sub(r"\D+", "", x.dtype[:4]) or 8) // 8
            if x.place[1] - x.place[0] != count:
                raise ValueError(f"{name} has another size than its shape")
            total += count
        if total != size - 8 - length:
            raise ValueError("its tensors have other sizes than the file")
    except BROKEN as error:
        raise invalid(path, error) from None
    return found, about


# ---- Records ----------------------------------------------------------------------------------

Shape = Any
NUMBER = NewType("NUMBER", float)
NAME = NewType("NAME", str)
TEXT = NewType("TEXT", str)  # of a prompt or completion
ORIGIN: dict[str, Shape] = {
    "command": str,
    "code": {"digest": str, "commit": str, "origins": [str]},
    "machine": {"cpu": str},
    "versions": {str: str},
}
CONFIG: dict[str, Shape] = {
    **ORIGIN,
    "schema": int,
    "kind": str,
    "algo": NAME,
    "seeds": [int],
    "code": {"digest": str, "commit": str, "origins": [str], "verified?": [NAME]},
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
        "total_seconds?": float,
        "timesteps_per_second?": float,
        "threshold?": (float, None),
        "digits?": (int, None),
        "weights_sha256?": {str: str},
    },
    "planning": {
        "sweeps": int,
        "iterations": int,
        "residual": float,
        "start_value": float,
        "score": float,
        "values": [float],
        "weights_sha256?": {str: str},
    },
    "prediction": {
        "seeds": [int],
        "states": [int],
        "exact": [float],
        "weights_sha256?": {str: str},
    },
    "language": {
        "seeds": [int],
        "headline": str,
        "initial": MEASURES,
        "final": MEASURES,
        "samples": int,
        "diverged?": (int, None),
    },
}


def read_shaped(path: Path, shape: Shape, limit: int = MAX_JSON) -> Any:
    """The content of a JSON file, of a shape. Raises as `open_checked`."""
    content = read_json(path, limit)
    try:
        check(content, shape, "")
    except ValueError as error:
        raise invalid(path, error) from None
    return content


def check(value: Any, shape: Shape, place: str, longest: int = MAX_STRING) -> None:
    """Raise ValueError, which says where, for a value that does not fit a shape.

    longest: characters of a text that is no NAME, and of anything (`object`) as JSON.
    """
    if isinstance(shape, tuple):
        if not any(fits(value, one, longest) for one in shape):
            raise ValueError(f"{place or 'it'} must be {' or '.join(map(said, shape))}")
    elif isinstance(shape, list) and isinstance(value, list):
        for x in value:
            check(x, shape[0], f"each of {place}", longest)
    elif isinstance(shape, dict) and isinstance(value, dict):
        if long := next((key for key in value if len(key) > MAX_TEXT), None):
            raise ValueError(f"{place or 'it'} has the key {long[:40]}..., which is too long")
        if str in shape:
            for x in value.values():
                check(x, shape[str], f"each of {place}", longest)
            return
        for key, inner in shape.items():
            name = key.removesuffix("?")
            where = f"{place}.{name}" if place else name
            if name in value:
                check(value[name], inner, where, longest)
            elif name == key:
                raise ValueError(f"{where} is missing")
    elif isinstance(shape, list | dict) or not fits(value, shape, longest):
        raise ValueError(f"{place or 'it'} must be {said(shape)}")


def fits(value: Any, shape: Shape, longest: int = MAX_STRING) -> bool:
    """Whether a value is of a type that is no container."""
    if shape is None:
        return value is None
    if shape is NAME:
        return isinstance(value, str) and 0 < len(value) <= MAX_TEXT
    if shape is TEXT:
        return isinstance(value, str) and len(value) <= MAX_COMPLETION
    if shape is str:
        return isinstance(value, str) and len(value) <= longest
    if shape is object:
        return len(json.dumps(value)) <= longest
    if shape in (int, float, NUMBER) and isinstance(value, bool):
        return False
    if shape is int:
        return isinstance(value, int) and abs(value) <= INT_MAX
    if shape is float:
        return isinstance(value, int | float) and is_finite(value)
    if shape is NUMBER:
        return isinstance(value, float) or (isinstance(value, int) and abs(value) <= INT_MAX)
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
        str: f"text of at most {MAX_STRING} characters",
        TEXT: f"text of at most {MAX_COMPLETION} characters",
        NAME: f"text of 1 to {MAX_TEXT} characters",
        object: f"at most {MAX_STRING} characters of JSON",
    }
    if isinstance(shape, list | dict):
        return "a list" if isinstance(shape, list) else "an object"
    return words[shape]
