"""The store of results: run folders, their parts, and writes that are whole or absent.

A run is `runs/<env>/<algo>/<name>/` in a results folder; its parts `seeds-000-009/` hold what was
trained together. `DONE.json`, with a checksum of every file, is written last: a part without it, or
with a file that does not match it, is ignored by every reader.

There are two layers. What a person trains lies in `results/local`, which git ignores. `results` has
the published runs, which a sweep that publishes trains and then packs: `manyseeds.packed`. Readers
see both layers and both forms.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import platform
import re
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from manyseeds import packed, untrusted
from manyseeds.cli import PUBLISHED, RESULTS, RunConfig, flag, identity
from manyseeds.digest import ROOT, code_digest
from manyseeds.errors import UsageError, printable
from manyseeds.locks import Locks, alone, held
from manyseeds.packed import DONE
from manyseeds.untrusted import (
    BROKEN,
    CONFIG,
    MAX_BYTES,
    MAX_JSON,
    MAX_RECORD,
    MAX_WEIGHTS,
    MODEL,
    NAME,
    SUMMARIES,
    Shape,
    cached_file,
    check,
    check_within,
    copy_file,
    files_in,
    invalid,
    is_inner_name,
    open_checked,
    read_shaped,
    reading,
    sha256_of,
)
from manyseeds.writing import replace_folder, sweep, sync, write_bytes, write_json

if TYPE_CHECKING:
    import pandas as pd

SCHEMA = 4
POLICY = "policy.safetensors"
PLAN = "plan"  # the one part of a planning run
STALE = ".stale"  # in a run: what other code has trained, `manyseeds.runs.set_aside`
MAX_NAMED = 8  # runs of a folder that a message names
MEMORY = 1000  # files whose digests are remembered
LARGE = 2**24  # bytes of a file whose digest is remembered
SEAL = {"schema": int, "weights": str, "local": [str], "sha256": {str: str}}


def hash_of(settings: Any) -> str:
    """Eight letters that name settings, of what JSON can hold."""
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:8]


def folder_of(subject: str) -> str:
    """The name of the folder of an environment or task; ids may be module:Name/Env-v0."""
    return re.sub("[/:]", "--", subject)


def part_name(seeds: Sequence[int]) -> str:
    """The folder of consecutive seeds: seeds-000-009."""
    return f"seeds-{seeds[0]:03d}-{seeds[-1]:03d}"


def is_part(path: Path) -> bool:
    """Whether a path has the name of a part, `part_name`."""
    return re.fullmatch(r"seeds-\d{3,}-\d{3,}", path.name) is not None


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


def plural(n: int, noun: str) -> str:
    """A number of things for people: `1 seed`, `30 seeds`."""
    return f"{n} {noun}" + "s" * (n != 1)


def seal(part: Path, local: Sequence[str] = (), weights: str = "") -> None:
    """Declare a part finished: write the checksums of all its files.

    local: files and folders that are not committed, and so absent from a fresh checkout. weights:
    the file or folder with what was trained, '' where there is none. Other folders are a tracker's,
    and are not sealed. Raises UsageError where a file is a link.
    """
    sweep(part)
    names = sorted(x.name for x in part.glob("[!.]*") if not x.is_dir() and x.name != DONE)
    if (part / weights).is_dir() and weights:
        names += [f"{weights}/{name}" for name in files_in(part / weights)]
    sums = {name: sha256_of(part / name) for name in names if is_inner_name(name)}
    content = {"schema": SCHEMA, "weights": weights, "local": list(local), "sha256": sums}
    write_json(part / DONE, content)
    sync(part)


def read_seal(part: Path) -> dict[str, Any] | None:
    """DONE.json of a part, None where there is none that can be read.

    Raises UsageError for a part that another version of this project has written.
    """
    try:
        content = read_json(part / DONE)
        schema = content["schema"]
    except BROKEN:
        return None
    except UsageError:
        if os.path.lexists(part / DONE):
            return None
        raise  # that of runs.json
    if schema != SCHEMA:
        raise UsageError(f"{part}: has schema {schema!r:.20}, this version reads {SCHEMA}")
    try:
        check(content, SEAL, "")
    except ValueError:
        return None
    names = {*content["sha256"], *filter(None, [content["weights"]])}
    whole = "config.json" in names and all(map(is_inner_name, names))
    return content if whole else None


def is_finished(part: Path, with_weights: bool = False) -> bool:
    """Whether a part is sealed, and every file that is there is what was sealed, not a link.

    with_weights: and what was trained is on this machine. Raises UsageError as `read_seal`.
    """
    seal = read_seal(part)
    if seal is None:
        return False
    weights, local = seal["weights"], {*seal["local"], seal["weights"]}
    trained = {name for name in seal["sha256"] if weights in (name, name.split("/")[0])}
    if with_weights and weights and not trained:  # of a published language run
        return False
    for name, digest in seal["sha256"].items():
        try:
            if remembered_sha256(inner_file(part, name)) != digest:
                return False
        except FileNotFoundError:
            if with_weights and name in trained:
                return False
            if not (local & {name, name.split("/")[0]} or packed.holds(part / name, digest)):
                return False
        except UsageError:
            return False
    return True


def inner_file(folder: Path, name: str) -> Path:
    """The path of a file in a folder, where no folder between is a link. Raises UsageError."""
    path = folder / name
    for between in path.relative_to(folder).parents:
        if (folder / between).is_symlink() and between != Path("."):
            raise UsageError(f"{folder / between}: is a link")
    return path


def clear(part: Path, keep: str = "", strict: bool = True) -> None:
    """Remove whatever is left of a part that was not finished, but for files that match `keep`.

    strict: raise OSError for what cannot be removed, instead of leaving it.
    """
    for path in part.glob("*") if part.is_dir() and not part.is_symlink() else [part]:
        if keep and path.match(keep):
            continue
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=not strict)
        else:
            with contextlib.suppress(*(() if strict else (OSError,))):
                path.unlink(missing_ok=True)


def copy_part(source: Path, target: Path) -> None:
    """Put a finished part into another store, whole or not at all; what is at the target goes.

    What is not sealed stays behind. Raises UsageError for a copy that does not match its checksums,
    OSError.
    """
    there = read_seal(source)
    if there is None:
        raise UsageError(f"{source}: is damaged")

    def fill(fresh: Path) -> None:
        for name in (DONE, *there["sha256"]):
            with contextlib.suppress(FileNotFoundError):  # packed, or weights that are not here
                copy_file(inner_file(source, name), fresh / name)
        if not (fresh / DONE).exists():
            if not is_finished(source):
                raise UsageError(f"{source}: is damaged")
            for name, content in packed.files_of(source).items():
                write_bytes(fresh / name, content)
            seal(fresh, there["local"], there["weights"])
        if not is_finished(fresh):
            raise UsageError(f"{source}: changed while it was copied")

    replace_folder(target, fill)


def model_files(folder: Path, flag: str) -> dict[str, Path]:
    """The files that a model's folder is read for, by name; others are ignored.

    Raises UsageError, which names the flag, where there is none, where one is a link, and where
    `transformers` would read others: an adapter, or weights that an index or a config.json names.
    """
    templates = "additional_chat_templates"
    names = os.listdir(folder)
    if templates in names and not (folder / templates).is_symlink():
        names += [f"{templates}/{name}" for name in os.listdir(folder / templates)]
    found = {name: cached_file(folder, name) for name in sorted(filter(MODEL.fullmatch, names))}
    for name, path in found.items():
        limit = MAX_WEIGHTS if name.endswith(".safetensors") else MAX_BYTES
        try:
            open_checked(path, limit).close()
        except (FileNotFoundError, UsageError) as error:
            raise UsageError(f"{flag} {error}") from None
    if not found:
        raise UsageError(f"{flag} {folder}: has no files of a model, such as model.safetensors")
    if "adapter_config.json" in names:
        raise UsageError(f"{flag} {folder}: has an adapter; merge it into the model's own weights")
    for name in ("model.safetensors.index.json", "config.json"):
        try:
            named = weights_named(read_json(found[name])) if name in found else set()
        except UsageError as error:
            raise UsageError(f"{flag} {folder}: {error}") from None
        if others := sorted(named - {*found}):
            raise UsageError(f"{flag} {folder}: {name} names weights in {others[0]!r}, not read")
    return found


def weights_named(content: Any) -> set[str]:
    """The files of weights that the JSON of an index or of a config names."""
    content = content if isinstance(content, dict) else {}
    shards = content.get("weight_map")
    named = [content.get("transformers_weights")]
    named += shards.values() if isinstance(shards, dict) else ()
    return {str(name) for name in named if name is not None}


def folder_digest(folder: Path, flag: str = "--model") -> str:
    """Digest of the names and contents of all files of a model's folder. Raises UsageError."""
    digest = hashlib.sha256()
    for name, path in model_files(folder, flag).items():
        digest.update(f"{name} {remembered_sha256(path)}\n".encode())
    return digest.hexdigest()[:12]


def remembered_sha256(path: Path) -> str:
    """The SHA-256 of a file. Raises as `untrusted.open_checked`.

    Of a large one, such as a model's weights, it is remembered by path, size and times, the last of
    which is the system's: nobody can set it back.
    """
    try:
        status = os.lstat(path)
    except (OSError, ValueError):
        return sha256_of(path)  # which says why not
    if status.st_size < LARGE or not stat.S_ISREG(status.st_mode):
        return sha256_of(path)
    known: dict[str, str] = {}
    memory = Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "manyseeds")
    with contextlib.suppress(OSError, UsageError):
        known = dict(read_shaped(memory / "digests.json", {str: str}))
    times = f"{status.st_mtime_ns} {status.st_ctime_ns}"
    named = f"{path.resolve()} {status.st_ino} {status.st_size} {times}"
    key = hashlib.sha256(named.encode(errors="replace")).hexdigest()
    if key not in known:
        known[key] = sha256_of(path)
        with contextlib.suppress(OSError):  # it would only save time
            memory.mkdir(parents=True, exist_ok=True)
            write_json(memory / "digests.json", dict(list(known.items())[-MEMORY:]))
    return known[key]


@dataclass(frozen=True)
class RunFolder:
    """One run in the store: an algorithm, an environment and one set of hyperparameters."""

    path: Path
    below: Path | None = None  # the same run in the published layer, for readers
    checked: list[Path] | None = field(default=None, compare=False)  # parts, just found finished

    @classmethod
    def of(cls, config: RunConfig, algo: str) -> RunFolder:
        """Where the run of a config belongs."""
        fields = identity(config)
        group = folder_of(fields.get("env") or fields["task"])
        return cls(Path(config.results) / "runs" / group / algo / (config.name or hash_of(fields)))

    @property
    def algo(self) -> str:
        return home_of(self.path).parent.name

    def parts(self, with_weights: bool = False) -> list[Path]:
        """The finished parts, by first seed; a planning run, which has no seeds, has one.

        with_weights: those whose weights are on this machine. Where the published layer has the run
        too, its parts follow. Raises UsageError for parts of another schema.
        """
        if self.checked is not None and not with_weights:
            return self.checked
        own = [part for part in self.all_parts() if is_finished(part, with_weights)]
        published = RunFolder(self.below).parts(with_weights) if self.below else []
        if own and published and _settings(own[0]) != _settings(published[0]):
            return own  # another run, which somebody has given the same name
        return own + published

    def all_parts(self) -> list[Path]:
        """All parts, finished or not, in folders or packed. Raises UsageError."""
        names = {part.name for part in self.path.glob("seeds-*")} | {*packed.parts_of(self.path)}
        found = sorted(names - {PLAN}, key=lambda name: (len(name), name))
        return [self.path / name for name in (*found, PLAN)]

    def finished_seeds(
        self,
        with_weights: bool = False,
        accepts: Callable[[dict[str, Any]], bool] = lambda config: True,
    ) -> set[int]:
        """All seeds in finished parts; with_weights: whose weights are on this machine.

        accepts: whether a part counts, by its config.json.
        """
        configs = map(read_config, self.parts(with_weights))
        return {seed for config in configs if accepts(config) for seed in config["seeds"]}

    def missing(
        self,
        seeds: Iterable[int],
        with_weights: bool = False,
        accepts: Callable[[dict[str, Any]], bool] = lambda config: True,
    ) -> list[list[int]]:
        """The seeds that are not finished yet, in runs of consecutive ones.

        with_weights, accepts: what counts, as for `finished_seeds`.
        """
        finished = self.finished_seeds(with_weights, accepts)
        return consecutive(set(seeds) - finished)

    def in_training(self, seeds: Iterable[int]) -> set[int]:
        """Those of some seeds (a plan: 0) that a process has locked.

        Raises UsageError where something else has the name of a lock file or of their folder.
        """
        return held(self.path, seeds)

    def check_identity(self, ours: dict[str, Any]) -> None:
        """Refuse a name that already holds a run with other hyperparameters (an `identity`), and a
        folder that is a link."""
        check_within(self.path, self.path.parents[min(3, len(self.path.parents) - 1)])
        for part in self.parts():
            self._check_same(read_config(part)["config"], ours, "holds")

    def _check_same(self, theirs: dict[str, Any], ours: dict[str, Any], how: str) -> None:
        if theirs != ours:
            names = sorted(k for k in ours | theirs if ours.get(k) != theirs.get(k))
            changes = [f"{flag(k)} {theirs.get(k)} there, {ours.get(k)} here" for k in names]
            raise UsageError(
                f"--name {self.path.name}: {self.path} {how} another config: " + "; ".join(changes)
            )

    def locks(self, config: RunConfig) -> contextlib.AbstractContextManager[Locks]:
        """Locks on the parts of the run of a config, as `locks_for` its identity."""
        return self.locks_for(identity(config))

    @contextlib.contextmanager
    def locks_for(self, ours: dict[str, Any]) -> Iterator[Locks]:
        """Locks on the parts of this run, with the identity `ours`, against other processes that
        train it.

        Raises UsageError while another process trains other hyperparameters under its name. What a
        process that is gone has left unfinished does not count.

        Folders made here that are still empty at the end are removed: a mistake leaves nothing.
        """
        check_within(self.path, self.path.parents[3])
        new = [p for p in (self.path, *self.path.parents) if not p.exists()]
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(f"--results {self.path.parents[3]}: {error.strerror}") from None
        try:
            with contextlib.closing(Locks(self.path)) as locks:
                theirs = locks.enter(json.dumps(ours, sort_keys=True).encode())
                with reading(self.path):
                    settings = json.loads(theirs)
                    check(settings, {str: object}, "settings of a lock")
                self._check_same(settings, ours, "is being trained with")
                self.check_identity(ours)  # of what has been finished meanwhile
                yield locks
        finally:
            with contextlib.suppress(OSError):
                for folder_made in new:
                    folder_made.rmdir()


def home_of(run: Path) -> Path:
    """The folder of a run, where a path may be that of parts of it that were set aside."""
    return run.parents[1] if run.parent.name == STALE else run


def _settings(part: Path) -> Any:
    try:
        return read_config(part)["config"]
    except UsageError:
        return None  # somebody's file that holds something else


def finite_numbers(values: Mapping[str, float]) -> dict[str, float | None]:
    """Numbers as JSON, which has neither NaN nor infinity: null."""
    return {name: x if math.isfinite(x) else None for name, x in values.items()}


def read_json(path: Path, limit: int = MAX_JSON) -> Any:
    """The content of a JSON file of a part, in its folder or packed.

    Raises as `untrusted.open_checked`.
    """
    if os.path.lexists(path):
        return untrusted.read_json(path, limit)
    return packed.read_json(path)


def read_bytes(path: Path) -> bytes:
    """The bytes of a JSON file of a part. Raises as `read_json`."""
    return untrusted.read_bytes(path) if os.path.lexists(path) else packed.read_bytes(path)


def exists(path: Path) -> bool:
    """Whether a JSON file of a part is there, in its folder or packed."""
    return os.path.lexists(path) or packed.has(path)


def read_parquet(path: Path) -> pd.DataFrame:
    """The rows of a parquet file of a part. Raises as `read_json`."""
    if os.path.lexists(path):
        return untrusted.read_parquet(path).to_pandas()
    return packed.read_parquet(path)


def read_record(path: Path, shape: Shape) -> Any:
    """The content of config.json or summary.json of a part, of a shape. Raises UsageError."""
    try:
        content = read_json(path, MAX_RECORD)
        check(content, shape, "")
    except BROKEN as error:
        raise invalid(path, error) from None
    return content


def read_part(part: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """config.json and summary.json of a finished part. Raises UsageError."""
    config = read_config(part)
    path = part / "summary.json"
    summary = read_record(path, SUMMARIES[config["kind"]])
    if summary.get("seeds", []) != config["seeds"]:
        raise UsageError(f"{path}: has other seeds than config.json")
    return config, summary


def read_config(part: Path) -> dict[str, Any]:
    """config.json of a part: what was trained, by which code. Raises UsageError."""
    path = part / "config.json"
    config: dict[str, Any] = read_record(path, CONFIG)
    if config["schema"] != SCHEMA:
        raise UsageError(f"{path}: has schema {config['schema']}, this version reads {SCHEMA}")
    kind, seeds = config["kind"], config["seeds"]
    if kind not in SUMMARIES:
        kinds = ", ".join(SUMMARIES)
        raise UsageError(f"{path}: {kind} is not a kind of run; there are {kinds}")
    subject = "task" if kind == "language" else "env"
    try:
        check(config, {subject: NAME}, "")
        if config["config"].get(subject) != config[subject]:
            raise ValueError(f"config.{subject} is not {subject}")
        if min(seeds, default=0) < 0 or len(set(seeds)) < len(seeds):
            raise ValueError("seeds must be different, and 0 or above")
        if (kind == "planning") != (not seeds) or (kind == "language" and len(seeds) != 1):
            raise ValueError(f"a {kind} part cannot have {plural(len(seeds), 'seed')}")
    except ValueError as error:
        raise invalid(path, error) from None
    return config


def layers(results: Path) -> list[Path]:
    """Where readers look for runs: a results folder, and behind the user's own the published one.

    What stands in both is taken from the first.
    """
    return [results, PUBLISHED] if results.resolve() == Path(RESULTS).resolve() else [results]


def all_runs(
    results: Path, wanted: Callable[[Path], bool] = lambda name: True
) -> Iterator[RunFolder]:
    """Every run with at least one finished part, in all layers that readers see.

    wanted: whether a run is read, by its path within a layer, `runs/ENV/ALGO/NAME`. Its `parts` are
    not looked for again: checksums of large stores take long.

    Parts of another schema are left out, with one line for each run.
    """
    first, *below = layers(results)
    own = {path.relative_to(first): path for path in run_paths(first)}
    published = {path.relative_to(x): path for x in below for path in run_paths(x)}
    for name in sorted(filter(wanted, own | published)):
        both = RunFolder(own[name], published.get(name)) if name in own else None
        run = both or RunFolder(published[name])
        try:
            if parts := run.parts():
                yield replace(run, checked=parts)
        except UsageError as error:
            print(f"left out: {error}", file=sys.stderr)


def run_paths(results: Path) -> Iterator[Path]:
    """Where the runs of one layer are, or would be if they were not packed.

    Where runs.json is malformed, its path takes the place of all runs beside it: as that of a run
    it raises UsageError.
    """
    for folder in (results / "runs").glob("*/*"):
        try:
            names = packed.runs_of(folder)
        except UsageError:
            yield folder / packed.RUNS
        else:
            yield from {path for path in folder.glob("[!.]*") if path.is_dir()} | {
                folder / name for name in names
            }


def is_stored(path: Path) -> bool:
    """Whether there is a run, or a part, in a folder or packed."""
    return path.is_dir() or bool(packed.parts_of(path)) or packed.is_packed(path)


def pack(results: Path) -> int:
    """Pack all finished parts of a results folder; how many there were in folders.

    Files that are not committed, such as weights, stay in the folders. Raises UsageError for what
    cannot be packed.
    """
    count = 0
    with alone(results / "runs"):
        for folder in sorted((results / "runs").glob("*/*")):
            runs = [RunFolder(path) for path in folder.glob("[!.]*") if path.is_dir()]
            finished = [part for run in runs for part in run.parts() if part.is_dir()]
            parts = {part: sealed_files(part) for part in finished if (part / DONE).is_file()}
            if parts:
                files = {part.relative_to(folder).as_posix(): x for part, x in parts.items()}
                for name, content in packed.with_parts(folder, files):
                    write_bytes(folder / name, content)
            for part in finished:
                remove_packed(part)
            sweep(folder)
            count += len(parts)
    return count


def sealed_files(part: Path) -> dict[str, bytes]:
    """The files of a finished part that are packed, by name. Raises UsageError."""
    seal = read_seal(part) or {}
    local = {*seal["local"], seal["weights"]}
    names = [name for name in seal["sha256"] if not local & {name, name.split("/")[0]}]
    if other := [name for name in names if not name.endswith((".json", ".parquet"))]:
        raise UsageError(f"{part / other[0]}: only JSON and parquet files are packed")
    return {name: untrusted.read_bytes(part / name) for name in (DONE, *names)}


def remove_packed(part: Path) -> None:
    """Remove from the folder of a part what is packed and can be read again from there."""
    sums = packed.read_json(part / DONE)["sha256"]
    for name in (DONE, *(name for name, x in sums.items() if packed.holds(part / name, x))):
        (part / name).unlink(missing_ok=True)
    with contextlib.suppress(OSError):  # weights stay
        part.rmdir()
        part.parent.rmdir()


def find_run(text: str) -> RunFolder:
    """The run that a path means, as readers see it: also with its parts in the other layer.

    ENV/ALGORITHM/NAME is looked for in the user's layer, then in the published one.
    """
    own, published = Path(RESULTS).resolve() / "runs", PUBLISHED / "runs"
    try:
        path = Path(text).resolve()
    except (OSError, RuntimeError, ValueError) as error:  # a loop of links, too long a name
        raise UsageError(f"{text[:80]}: {error}") from None
    if not is_stored(path):
        named = [x / text for x in (own, published) if is_stored(x / text)]
        if not named:
            raise UsageError(f"{text}: no such folder")
        path = named[0].resolve()
    if below := runs_below(path):
        names = ", ".join(map(printable, below[:MAX_NAMED]))
        more = f" and {len(below) - MAX_NAMED} more" if len(below) > MAX_NAMED else ""
        raise UsageError(f"{text}: is no run; name one of those in it: {names}{more}")
    for layer in (own, published):
        if layer in path.parents and not is_part(path):
            name = path.relative_to(layer)
            here, there = own / name, published / name
            if is_stored(here) and is_stored(there):
                return RunFolder(here, there)
    return RunFolder(path)


def runs_below(path: Path) -> list[str]:
    """The names ENV/ALGORITHM/NAME of the runs in a folder ENV or ENV/ALGORITHM of a store; none
    where it is no such folder."""
    store = next((x for x in (path.parent, path.parent.parent) if x.name == "runs"), None)
    if store is None:
        return []
    found = (run for run in run_paths(store.parent) if path in run.parents)
    return sorted(str(run.relative_to(store)) for run in found if run.name != packed.RUNS)


def provenance(
    origins: Sequence[str], packages: Sequence[str] = (), kind: Sequence[str] = ()
) -> dict[str, Any]:
    """Code, machine and versions of a run, for its config.json.

    origins: where its code begins (`digest.origin_of`). packages: further ones it uses. kind: where
    the code begins that all runs of its kind share; it is not recorded, but asked again.
    """
    return {
        "code": {
            "digest": code_digest([*origins, *kind]),
            "commit": commit(),
            "origins": list(origins),
        },
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


def gpu() -> str:
    """The GPU of this process: `NVIDIA H100 80GB HBM3, driver 550.54.15, CUDA 12.8`."""
    import torch

    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        driver = done.stdout.split()[0]  # a line for each GPU, which all have the same
    except (OSError, subprocess.CalledProcessError, IndexError):
        driver = "unknown"
    return f"{torch.cuda.get_device_name()}, driver {driver}, CUDA {torch.version.cuda}"


def commit() -> str:
    """The checked-out commit, marked when a source differs from it.

    Empty without git, also for a copy of the project that lies in a checkout of something else.
    """
    try:
        if Path(git("rev-parse", "--show-toplevel").removesuffix("\n")).resolve() != ROOT:
            return ""
        head = git("rev-parse", "--short", "HEAD").strip()
        return head + ("-dirty" if changed_sources() else "")
    except (OSError, subprocess.CalledProcessError):
        return ""


def changed_sources() -> list[str]:
    """The source files that differ from the checked-out commit, or that git does not track."""
    sources = [f"*.{ending}" for ending in ("py", "c", "h")]
    status = git("status", "--porcelain", "--untracked-files=all", "--", *sources)
    return [line[3:] for line in status.splitlines()]


def check_committed() -> None:
    """What is published names its commit; UsageError where the sources are those of none."""
    if changed := changed_sources():
        more = f" and {len(changed) - 1} more" * (len(changed) > 1)
        raise UsageError(f"--publish: {changed[0]}{more} differ from the commit; commit first")


def git(*words: str) -> str:
    """What a git command about this checkout prints."""
    done = subprocess.run(
        ["git", "-C", str(ROOT), *words], capture_output=True, text=True, check=True
    )
    return done.stdout


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(
            line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")
        )
    except (OSError, StopIteration):
        return platform.processor()
