"""What a node of a Ray cluster does with a job: train it by its own checkout, hand over the parts.

The node has no folder in common with the sweep. It trains into a store of its own, in the user's
cache folder, and what it hands over is an archive of sealed parts, which `receive` puts into the
store of the sweep. Models that a job makes first, and checkpoints of what was interrupted, stay
on the node for the next job.

    python -m benchmarks.launchers.node < REQUEST > ANSWER
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import pickle
import shutil
import subprocess
import sys
import tarfile
from functools import cache
from pathlib import Path
from typing import NamedTuple

from manyseeds import ROOMS
from manyseeds.benchmarks.launchers.jobs import Job, last_line, python_of
from manyseeds.cli import RunConfig, identity
from manyseeds.digest import PACKAGE, ROOT
from manyseeds.errors import UsageError
from manyseeds.process import ENDING, exit_reason
from manyseeds.record import (
    PLAN,
    RunFolder,
    clear,
    commit,
    is_finished,
    is_part,
    read_config,
)
from manyseeds.runs.set_aside import differs, installed, parts_with_any, seeds_of, set_aside
from manyseeds.untrusted import is_inner_name
from manyseeds.writing import beside, remove, write_bytes

MIN_FREE = 100 * 2**20  # bytes that a node's store must have room for
PACKAGES = ("torch", "numpy", "gymnasium", "stable-baselines3", "sb3-contrib", "transformers")


class Answer(NamedTuple):
    """What a node has to say of a job."""

    status: int | None  # of the command; None: the node cannot take any job
    said: str
    archive: bytes = b""  # a tar file of the parts that are finished


@cache
def version() -> dict[str, str]:
    """What has to be equal on all nodes: the sources of all rooms, and the packages that train."""
    digest = hashlib.sha256()
    files = [
        p
        for room in (PACKAGE, *ROOMS)
        for p in (ROOT / room).rglob("*")
        if p.suffix in (".py", ".c", ".h")
    ]
    for path in sorted(files):
        digest.update(f"{path.relative_to(ROOT)}\0{len(path.read_bytes())}\0".encode())
        digest.update(path.read_bytes())
    return {"sources": digest.hexdigest()[:12], **{name: installed(name) for name in PACKAGES}}


def describe() -> dict[str, str]:
    """The version, and the commit for people."""
    return {**version(), "commit": commit()}


def differences(theirs: dict[str, str], ours: dict[str, str]) -> str:
    """What is not equal of two versions, '' where all is. Commits alone make no difference."""
    names = [name for name in version() if theirs.get(name) != ours.get(name)]
    if "sources" in names:
        names.append("commit")
    return ", ".join(
        f"{x} {theirs.get(x) or 'none'} there, {ours.get(x) or 'none'} here" for x in names
    )


def refusal(theirs: dict[str, str], store: Path) -> str:
    """Why this node takes no job of a sweep with a version, '' where it does."""
    if other := differences(describe(), theirs):
        return f"has another version: {other}"
    try:
        store.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(store).free
    except OSError as error:
        return f"has no store: {error}"
    return f"has {free // 2**20} MiB left in {store}" if free < MIN_FREE else ""


def carry_out(job: Job, store: Path, workers: int) -> Answer:
    """Train a job in the store of this node; the parts that it finished are removed from there."""
    done = subprocess.run(
        [str(python_of(job.cell)), *job.command(str(store), workers)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        **ENDING,
    )
    said = f"{exit_reason(done.returncode)}: {last_line(done.stdout.decode(errors='replace'))}"
    asked = set(job.seeds)
    parts = [
        part
        for part in job.cell.folder(str(store)).parts(with_weights=True)
        if part.name == PLAN or asked & set(read_config(part)["seeds"])
    ]
    archive = pack(parts)
    for part in parts:
        shutil.rmtree(part)
    return Answer(done.returncode, said, archive)


def pack(parts: list[Path]) -> bytes:
    """Parts as a tar file."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for part in parts:
            tar.add(part, part.name)
    return buffer.getvalue()


def receive(archive: bytes, folder: RunFolder, config: RunConfig) -> None:
    """Put the parts of an archive into a run, each whole or not at all.

    A part that is there already stays, and one of other code is set aside. Raises UsageError for an
    archive with anything but files within parts, for a part that does not match its checksums, and
    for one of other settings.
    """
    folder.path.mkdir(parents=True, exist_ok=True)
    incoming = beside(folder.path / "incoming")
    try:
        incoming.mkdir()
        try:
            unpack(archive, incoming)
        except tarfile.TarError as error:
            raise UsageError(f"{folder.path}: got no archive of parts ({error})") from None
        for part in sorted(incoming.iterdir()):
            if not is_finished(part, with_weights=True):
                raise UsageError(f"{part.name}: does not match its checksums")
            received = read_config(part)
            if received["config"] != identity(config):
                raise UsageError(f"{part.name}: was trained with other settings")
            digest = received["code"]["digest"]
            there = parts_with_any(folder.path, seeds_of(received))
            set_aside([(path, its) for path, its in there if differs(its, digest)], digest)
            place(part, folder.path / part.name)
    finally:
        remove(incoming)


def unpack(archive: bytes, folder: Path) -> None:
    """Write the files of an archive. Raises UsageError for anything but files within parts, and
    tarfile's errors."""
    with tarfile.open(fileobj=io.BytesIO(archive), mode="r:") as tar:  # not compressed
        for member in tar:
            first, _, name = member.name.partition("/")
            known = is_part(Path(first)) or first == PLAN
            plain = member.isdir() or (member.isreg() and not member.issparse() and name)
            if not (known and plain and (not name or is_inner_name(name))):
                raise UsageError(f"{member.name!r:.80}: does not belong into an archive of parts")
            if member.isreg() and (content := tar.extractfile(member)):
                (folder / member.name).parent.mkdir(parents=True, exist_ok=True)
                write_bytes(folder / member.name, content.read())


def place(part: Path, target: Path) -> None:
    """Rename a finished part to its place, unless there is one."""
    if is_finished(target, with_weights=True):
        return
    if target.exists():  # what was left unfinished
        clear(target)
        target.rmdir()
    os.rename(part, target)


def main() -> None:
    """Read a request, write an answer: a line of JSON, then the archive."""
    request = pickle.load(sys.stdin.buffer)
    os.chdir(ROOT)  # the record of a run holds its command as a person types it there
    caches = Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser()
    store = caches / "manyseeds" / "node" / version()["sources"]
    if reason := refusal(request["version"], store):
        answer = Answer(None, reason)
    else:
        try:
            answer = carry_out(pickle.loads(request["job"]), store, request["workers"])
        except (OSError, UsageError) as error:
            answer = Answer(1, str(error))
    head = {"status": answer.status, "said": answer.said}
    sys.stdout.buffer.write(json.dumps(head).encode() + b"\n" + answer.archive)


def read_answer(content: bytes) -> Answer:
    """What `main` has written."""
    head, _, archive = content.partition(b"\n")
    return Answer(**json.loads(head), archive=archive)


if __name__ == "__main__":
    main()
