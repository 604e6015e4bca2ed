"""The store of results: run folders, their parts, and writes that are whole or absent.

A run is `results/runs/<env>/<algo>/<name>/`; its parts `seeds-000-009/` hold what was trained
together. `DONE.json`, with a checksum of every file, is written last: a part without it, or with
a file that does not match it, does not exist as far as anybody who reads the store is concerned.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import io
import json
import os
import platform
import re
import shutil
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from manyseeds.cli import RunConfig, flag, identity
from manyseeds.digest import ROOT, code_digest
from manyseeds.errors import UsageError

if TYPE_CHECKING:
    import pandas as pd

SCHEMA = 1
DONE = "DONE.json"
POLICY = "policy.safetensors"
PLAN = "plan"  # the one part of a planning run
LOCAL = {
    POLICY,
    "curve.png",
    "plan.png",
    "plan.gif",
}  # not committed, so absent from a fresh checkout


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file whole or not at all: beside its target, fsynced, then renamed."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with open(beside, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, path)
    finally:
        beside.unlink(missing_ok=True)


def write_json(path: Path, content: Any) -> None:
    """Write JSON for people and programs: indented, keys in the given order."""
    write_bytes(path, (json.dumps(content, indent=1) + "\n").encode())


def parquet_bytes(frame: pd.DataFrame) -> bytes:
    """A data frame as one parquet file."""
    buffer = io.BytesIO()
    frame.to_parquet(buffer, index=False)
    return buffer.getvalue()


def part_name(seeds: Sequence[int]) -> str:
    """The folder of consecutive seeds: seeds-000-009."""
    return f"seeds-{seeds[0]:03d}-{seeds[-1]:03d}"


def consecutive(seeds: Iterable[int]) -> list[list[int]]:
    """Seeds in ascending runs of consecutive ones: {3, 0, 1} -> [[0, 1], [3]]."""
    groups: list[list[int]] = []
    for seed in sorted(set(seeds)):
        if groups and groups[-1][-1] == seed - 1:
            groups[-1].append(seed)
        else:
            groups.append([seed])
    return groups


def ranges(seeds: Iterable[int]) -> str:
    """Seeds for people: `0-9, 12`."""
    groups = consecutive(seeds)
    return ", ".join(str(g[0]) if len(g) == 1 else f"{g[0]}-{g[-1]}" for g in groups)


def seal(part: Path) -> None:
    """Declare a part finished: write the checksums of all its files."""
    for leftover in part.glob(".*.[0-9]*"):  # of a process that was killed while it wrote
        shutil.rmtree(leftover) if leftover.is_dir() else leftover.unlink()
    files = sorted(p for p in part.glob("[!.]*") if p.is_file() and p.name != DONE)
    write_json(part / DONE, {"schema": SCHEMA, "sha256": {p.name: _sha256(p) for p in files}})
    _sync_folder(part)


def is_finished(part: Path) -> bool:
    """Whether a part is sealed and every file is still what was sealed."""
    try:
        sums = dict(json.loads((part / DONE).read_text())["sha256"])
    except (OSError, ValueError, KeyError, TypeError):
        return False
    for name, digest in sums.items():
        file = part / name
        if not file.exists() and name in LOCAL:
            continue
        if not file.exists() or _sha256(file) != digest:
            return False
    return True


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Wait until no other process is within such a block for the same folder."""
    folder.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


@dataclass(frozen=True)
class RunFolder:
    """One run in the store: an algorithm, an environment and one set of hyperparameters."""

    path: Path

    @classmethod
    def of(cls, config: RunConfig, algo: str) -> RunFolder:
        """Where the run of a config belongs."""
        fields = identity(config)
        digest = hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()
        group = re.sub(
            "[/:]", "--", fields.get("env") or fields["task"]
        )  # ids as module:Name/Env-v0
        return cls(Path(config.results) / "runs" / group / algo / (config.name or digest[:8]))

    @property
    def algo(self) -> str:
        return self.path.parent.name

    @property
    def env(self) -> str:
        return self.path.parent.parent.name

    @property
    def kind(self) -> str:
        """What its finished parts are of: control, prediction or planning."""
        return str(self.configs()[0].get("kind", "control"))

    def parts(self) -> list[Path]:
        """The finished parts, by first seed; a planning run, which has no seeds, has one."""
        found = sorted(self.path.glob("seeds-*"), key=lambda part: (len(part.name), part.name))
        return [part for part in (*found, self.path / PLAN) if is_finished(part)]

    def finished_seeds(self, with_weights: bool = False) -> set[int]:
        """All seeds in finished parts; with_weights: whose policies are on this machine."""
        parts = [part for part in self.parts() if not with_weights or (part / POLICY).exists()]
        return {seed for part in parts for seed in read_json(part / "config.json")["seeds"]}

    def missing(self, seeds: Iterable[int], with_weights: bool = False) -> list[list[int]]:
        """The seeds that are not finished yet, in runs of consecutive ones."""
        finished = self.finished_seeds(with_weights)
        return consecutive(set(seeds) - finished)

    def check_identity(self, config: RunConfig) -> None:
        """Refuse a name that already holds a run with other hyperparameters."""
        ours = identity(config)
        for part in self.parts():
            theirs = read_json(part / "config.json")["config"]
            if theirs != ours:
                names = sorted(k for k in ours | theirs if ours.get(k) != theirs.get(k))
                changes = [f"{flag(k)} {theirs.get(k)} there, {ours.get(k)} here" for k in names]
                raise UsageError(
                    f"--name {self.path.name}: {self.path} holds another config: "
                    + "; ".join(changes)
                )

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Keep other processes from training this run; released when this process ends.

        Folders made here that are still empty at the end are removed: a mistake leaves nothing.
        """
        new = [folder for folder in (self.path, *self.path.parents) if not folder.exists()]
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            folder = os.open(self.path, os.O_RDONLY)
        except OSError as error:
            results = self.path.parents[3]
            raise UsageError(f"--results {results}: {error.strerror}") from None
        try:
            try:
                fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                message = f"{self.path}: another process is training this run"
                raise UsageError(message) from None
            yield
        finally:
            os.close(folder)
            with contextlib.suppress(OSError):
                for folder_made in new:
                    folder_made.rmdir()

    def configs(self) -> list[dict[str, Any]]:
        """config.json of every finished part."""
        return [read_json(part / "config.json") for part in self.parts()]

    def summaries(self) -> list[dict[str, Any]]:
        """summary.json of every finished part."""
        return [read_json(part / "summary.json") for part in self.parts()]

    def curves(self) -> pd.DataFrame:
        """The tidy rows of all finished parts, each seed once."""
        import pandas as pd

        frames = [pd.read_parquet(part / "curve.parquet") for part in self.parts()]
        rows = pd.concat(frames, ignore_index=True)
        return rows.drop_duplicates(["seed", "timestep", "mode", "episodes"])


def read_json(path: Path) -> Any:
    """Parsed JSON file."""
    return json.loads(path.read_text())


def all_runs(results: Path) -> Iterator[RunFolder]:
    """Every run with at least one finished part."""
    for path in sorted((results / "runs").glob("*/*/*")):
        run = RunFolder(path)
        if run.parts():
            yield run


def provenance(origins: Sequence[str], packages: Sequence[str] = ()) -> dict[str, Any]:
    """Code, machine and versions of a run, for its config.json; packages: further ones it uses.

    origins: see `digest.code_origins`.
    """
    return {
        "code": {"digest": code_digest(origins), "commit": _commit(), "origins": list(origins)},
        "machine": machine(),
        "versions": {
            "python": platform.python_version(),
            **{p: metadata.version(p) for p in ("torch", "numpy", "gymnasium", *packages)},
        },
    }


def machine() -> dict[str, Any]:
    """What a measured time depends on."""
    return {
        "cpu": _cpu_name(),
        "cores": os.cpu_count(),
        "system": f"{platform.system()} {platform.machine()}",
    }


def _commit() -> str:
    """The checked-out commit, marked when code differs from it; empty outside git."""
    git = ["git", "-C", str(ROOT)]
    try:
        head = subprocess.run(
            [*git, "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True
        )
        same = subprocess.run([*git, "diff", "--quiet", "HEAD", "--", "*.py"])
    except (OSError, subprocess.CalledProcessError):
        return ""
    return head.stdout.strip() + ("-dirty" if same.returncode else "")


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(
            line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")
        )
    except (OSError, StopIteration):
        return platform.processor()
