"""The store of the judge: `judge/SESSION/` in a results folder, a session for each algorithm.

ledger.json has every try that was begun, in order, with what became of it; no try is ever removed,
since each has spent a part of the session's error budget. `try-001/` holds both sides' texts and
rows.json, a row for every seed that was trained, and result.json; `confirm.json` has the rows on
held-out seeds. `trees/COMMIT/` is the code of a commit that something is compared with. All files
are written whole or not at all, so that a killed judgement goes on by the same command.
"""

from __future__ import annotations

import contextlib
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from manyseeds import ROOMS, untrusted
from manyseeds.benchmarks.experiments.sessions import MOST_TRIES
from manyseeds.digest import PACKAGE, ROOT
from manyseeds.errors import UsageError
from manyseeds.locks import Locks
from manyseeds.record import git
from manyseeds.untrusted import NUMBER
from manyseeds.writing import replace_folder, write_bytes, write_json

SCHEMA = 2
TRY: dict[str, Any] = {
    "number": int,
    "key": str,
    "change": str,
    "file": str,
    "paths": {str: str},  # of the sides that are files
    "against": str,
    "commit": str,
    "module": str,  # of the commit
    "set": [str],
    "envs": [str],
    "timesteps": int,
    "word": str,
    "kept": bool,
    "seeds": int,
    "rank": (int, None),  # among those that are confirmed, by which they share a budget
    "confirmed": (str, None),
}
LEDGER = {"schema": int, "tries": [{str: object}]}
ROW: dict[str, Any] = {
    "env": str,
    "physics": int,
    "side": str,
    "seed": int,
    "auc": (NUMBER, None),
    "final": (NUMBER, None),
    "diverged": (NUMBER, None),
    "weights": (str, None),  # their SHA-256
    "seconds": NUMBER,
    "cpu_seconds": NUMBER,
    "timesteps": [int],
    "returns": [(NUMBER, None)],
}
ROWS = {"key": str, "rows": [ROW]}
CHANGED, AGAINST = "changed", "against"  # the sides
MAX_SOURCE = 2**20  # bytes of a file that is judged


@dataclass(frozen=True)
class Session:
    """The tries of one algorithm."""

    path: Path

    @classmethod
    def of(cls, results: Path, algo: str) -> Session:
        return cls(results / "judge" / algo)

    @property
    def tries(self) -> list[dict[str, Any]]:
        """All tries so far, in order. Raises UsageError for a damaged ledger."""
        try:
            found = untrusted.read_shaped(self.path / "ledger.json", LEDGER)
        except FileNotFoundError:
            return []
        if found["schema"] != SCHEMA:
            raise UsageError(
                f"{self.path}: has schema {found['schema']}, this version {SCHEMA}; "
                "begin another by --results"
            )
        found = untrusted.read_shaped(self.path / "ledger.json", {**LEDGER, "tries": [TRY]})
        tries: list[dict[str, Any]] = found["tries"]
        return tries

    def begin(self, key: str, about: dict[str, Any], texts: dict[str, bytes]) -> dict[str, Any]:
        """The try with this key, which is entered in the ledger unless it is there.

        texts: of the sides that are files. Raises UsageError where the session is full.
        """
        tries = self.tries
        if found := next((x for x in tries if x["key"] == key), None):
            return found
        if len(tries) == MOST_TRIES:
            raise UsageError(f"{self.path}: has all {MOST_TRIES} tries of a session; begin another")
        entry = {"number": len(tries) + 1, "key": key, **about}
        entry |= {"word": "undecided", "kept": False, "seeds": 0}
        entry |= {"rank": None, "confirmed": None}
        folder = self.folder(entry)
        folder.mkdir(parents=True, exist_ok=True)
        for side, text in texts.items():
            write_bytes(folder / f"{side}.py", text)
        self._write([*tries, entry])  # last: it counts from now on
        return entry

    def note(self, entry: dict[str, Any], **outcome: Any) -> None:
        """Write what became of a try."""
        self._write([x | outcome if x["number"] == entry["number"] else x for x in self.tries])

    def _write(self, tries: Sequence[dict[str, Any]]) -> None:
        write_json(self.path / "ledger.json", {"schema": SCHEMA, "tries": tries})

    def folder(self, entry: Mapping[str, Any]) -> Path:
        return self.path / f"try-{entry['number']:03d}"

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the session against other processes. Raises UsageError while another judges."""
        new = [x for x in (self.path, *self.path.parents) if not x.exists()]
        self.path.mkdir(parents=True, exist_ok=True)
        untrusted.check_within(self.path, self.path.parents[1])
        try:
            with contextlib.closing(Locks(self.path)) as locks:
                if not locks.acquire(0):
                    raise UsageError(f"{self.path}: is being judged in by another process")
                yield
        finally:
            for folder in new:  # a mistake leaves nothing
                with contextlib.suppress(OSError):
                    folder.rmdir()


@dataclass
class Rows:
    """The rows of a try, or of what confirms it."""

    path: Path
    key: str  # of what trains them: others are not taken
    rows: list[dict[str, Any]]

    @classmethod
    def read(cls, path: Path, key: str) -> Rows:
        """Those that are there already."""
        try:
            found = untrusted.read_shaped(path, ROWS)
        except FileNotFoundError:
            return cls(path, key, [])
        return cls(path, key, found["rows"] if found["key"] == key else [])

    def add(self, rows: Sequence[dict[str, Any]]) -> None:
        self.rows += rows
        write_json(self.path, {"key": self.key, "rows": self.rows})

    def of(self, env: str, physics: int, side: str) -> dict[int, dict[str, Any]]:
        """The rows of one side in one cell, by seed."""
        cell = (env, physics, side)
        return {x["seed"]: x for x in self.rows if (x["env"], x["physics"], x["side"]) == cell}


def tree_of(results: Path, commit: str) -> Path:
    """The code of a commit, in a folder of its own; results: where. Raises UsageError."""
    target = results / "judge" / "trees" / commit
    if (target / PACKAGE / "digest.py").is_file():
        return target
    there = git("ls-tree", "--name-only", commit).split()
    rooms = [name for name in (PACKAGE, *ROOMS) if name in there]

    def fill(fresh: Path) -> None:
        archive = fresh / "code.tar"
        git("archive", "--format=tar", f"--output={archive.absolute()}", commit, *rooms)
        shutil.unpack_archive(archive, fresh, "tar", filter="data")
        archive.unlink()

    try:
        replace_folder(target, fill)
    except subprocess.CalledProcessError as error:
        raise UsageError(f"--against {commit}: {error.stderr.strip()}") from None
    return target


def committed(file: Path, commit: str = "HEAD") -> bytes | None:
    """The text of a file in a commit of its repository; None where it is in none."""
    command = ["git", "-C", str(file.parent), "show", f"{commit}:./{file.name}"]
    try:
        done = subprocess.run(command, capture_output=True)
    except OSError:  # no git, no such folder
        return None
    return done.stdout if done.returncode == 0 else None


def commit_of(text: str) -> str:
    """The short hash of a commit of this checkout, '' for what is none."""
    try:
        return git("rev-parse", "--short=12", "--verify", "--quiet", f"{text}^{{commit}}").strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


def source(file: Path) -> bytes:
    """The text of a file that is judged. Raises UsageError."""
    try:
        return untrusted.read_bytes(file, MAX_SOURCE)
    except FileNotFoundError:
        raise UsageError(f"FILE {file}: there is no such file") from None


def within(file: Path) -> Path | None:
    """The path of a file in this checkout, None for one outside of it."""
    return file.relative_to(ROOT) if ROOT in file.parents else None
