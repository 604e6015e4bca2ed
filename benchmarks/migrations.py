"""How stored parts of older versions become parts of today's: `same_bits.py --migrate`.

Every version of the store has a number, `manyseeds.record.SCHEMA`. A migration leads from one to
the next: it renames or removes fields of a Config, or rewrites a part's records otherwise. The
code knows today's names only; every reader refuses a part of an older schema until it is migrated.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from manyseeds.cli import flag
from manyseeds.errors import UsageError
from manyseeds.record import DONE, POLICY, SCHEMA, read_json, sha256_of, write_bytes, write_json
from manyseeds.runs.stale import KINDS

RECORDS = ("config.json", "summary.json")
Records = dict[str, Any]  # those and the seal, by name


@dataclass(frozen=True)
class Migration:
    """What leads to a schema from the one before.

    renamed: new names of fields by their old ones, for each algorithm that has them.
    removed: fields that are gone, with the value that reproduces what is done now.
    rewrite: changes the records in place, before fields are renamed.
    """

    schema: int
    renamed: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    removed: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    rewrite: Callable[[Records], None] = lambda records: None

    def apply(self, records: Records) -> None:
        """Rewrite the records of a part; raises UsageError for what cannot be said any more."""
        self.rewrite(records)
        config = records["config.json"]
        algo = str(config["algo"]).removeprefix(f"{config['source']}-")
        settings: dict[str, Any] = config["config"]
        for name, reproduces in self.removed.get(algo, {}).items():
            if (value := settings.pop(name, reproduces)) != reproduces:
                raise UsageError(f"{flag(name)} {value} is gone; only {reproduces!r} can be kept")
            config["command"] = without_flag(config["command"], name)
        renamed = self.renamed.get(algo, {})
        config["config"] = {renamed.get(name, name): x for name, x in settings.items()}
        for old, new in renamed.items():
            config["command"] = rename_flag(config["command"], old, new)
        for content in records.values():
            content["schema"] = self.schema


def rename_flag(command: str, old: str, new: str) -> str:
    """A recorded command with a flag's new name."""
    for before, after in ((old, new), (f"no_{old}", f"no_{new}")):
        command = re.sub(rf"(?<!\S){written(before)}(?=[\s=]|$)", flag(after), command)
    return command


def without_flag(command: str, name: str) -> str:
    """A recorded command without a flag and its value."""
    command = re.sub(rf"\s{written('no_' + name)}(?!\S)", "", command)
    return re.sub(rf"\s{written(name)}(=\S+|(?!\S)(\s+(?!--)\S+)*)", "", command)


def written(name: str) -> str:
    """A pattern of how a flag may be written: the command line takes `--n_steps`, too."""
    return "--" + name.replace("_", "[-_]")


# ---- The migrations ------------------------------------------------------------------------


def to_schema_2(records: Records) -> None:
    """Origins without paths; the kind in every record; which files are local in the seal.

    The digest was another one: the part is stale until it is stamped again.
    """
    kind = records["config.json"].get("kind", "control")
    for name in ("config.json", "summary.json"):
        rest = {k: x for k, x in records[name].items() if k not in ("schema", "kind")}
        records[name] = {"schema": 1, "kind": kind, **rest}
    config = records["config.json"]
    algo = config["algo"].removeprefix("sb3-").removeprefix("trl-")
    room = "llm_track" if kind == "language" else "algos"
    kept = {"manyseeds": f"{room}/{algo}.py", "sb3": "benchmarks/sb3_baseline.py"}
    kept |= {"trl": "benchmarks/trl_baseline.py"}
    own = f"{room}.{algo}"
    origins = {f"{own}:Config"}
    for origin in config["code"]["origins"]:
        file, _, name = origin.partition(":")
        environment = file.startswith("envs/") and name != "EpisodeTracker"
        if file == kept[config["source"]] or environment:
            origins.add(f"{file.removesuffix('.py').replace('/', '.')}:{name}")
    if config["config"].get("model") == "tiny":
        origins |= {"manyseeds.llm_track.sft:train", "manyseeds.llm_track.sft:PRESETS"}
    config["code"] |= {"digest": "", "origins": sorted(origins)}
    run_class, done = KINDS[kind], records[DONE]
    weights = "model" if kind == "language" else POLICY * (POLICY in done["sha256"])
    records[DONE] = {
        "schema": 1,
        "weights": weights,
        "local": list(run_class.local),
        "sha256": done["sha256"],
    }


def to_schema_3(records: Records) -> None:
    """Nothing is compiled any more."""
    records["config.json"]["execution"].pop("compiled", None)


REPLAY = "sweeps.json"
MIGRATIONS = (
    Migration(2, rewrite=to_schema_2),
    Migration(
        3,
        rewrite=to_schema_3,
        renamed={
            "a2c": {"td_steps": "n_steps"},
            "reinforce": {"normalize": "normalize_advantage"},
            "trpo": {"critic_updates": "critic_epochs"},
            "monte_carlo": {"episodes": "total_episodes"},
            "td_prediction": {"episodes": "total_episodes"},
        },
        removed={"a2c": {"shared_trunk": False}, "ppo": {"shared_trunk": False}},
    ),
)


# ---- A store -------------------------------------------------------------------------------


def migrate(
    results: Path, migrations: tuple[Migration, ...] = MIGRATIONS, schema: int = SCHEMA
) -> int:
    """Bring all finished parts of a results folder to today's schema; returns how many it changed.

    A part whose files do not match its seal is left as it is.
    """
    changed = 0
    recover(results)
    for part in old_parts(results, schema):
        records = {name: read_json(part / name) for name in (*RECORDS, DONE)}
        before = dict(records["config.json"]["config"])  # migrations change it in place
        try:
            for migration in migrations:
                if migration.schema > records[DONE]["schema"]:
                    migration.apply(records)
        except UsageError as error:
            raise UsageError(f"{part}: {error}") from None
        rewrite(part, records, renamed_run(part.parent, before, records["config.json"]["config"]))
        changed += 1
    return changed


def old_parts(results: Path, schema: int) -> Iterator[Path]:
    """The finished parts of an older schema."""
    for path in sorted(results.glob(f"runs/*/*/*/[!.]*/{DONE}")):
        try:
            seal = read_json(path)
            if seal["schema"] < schema and all(
                not (path.parent / name).exists() or sha256_of(path.parent / name) == digest
                for name, digest in seal["sha256"].items()
            ):
                yield path.parent
        except (OSError, ValueError, KeyError, TypeError):
            continue


def renamed_run(run: Path, before: dict[str, Any], after: dict[str, Any]) -> Path:
    """The folder of a run with its new identity; a name that a person gave stays."""
    return run.with_name(identity_hash(after)) if run.name == identity_hash(before) else run


def identity_hash(settings: dict[str, Any]) -> str:
    """The name of a run with these settings (`record.RunFolder.of`)."""
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:8]


def rewrite(part: Path, records: Records, run: Path) -> None:
    """Put a part with new records in the place of an old one, whole or not at all."""
    new, old = (part.with_name(f".{part.name}.{word}") for word in ("new", "old"))
    target = run / part.name
    if target != part and target.exists():
        if result_of(target) != result_of(part):
            raise UsageError(f"{part}: would take the place of another run, {target}; remove one")
        shutil.rmtree(target)  # the same, put there before an interruption
    for leftover in (new, old):
        shutil.rmtree(leftover, ignore_errors=True)
    shutil.copytree(part, new)
    sums = records[DONE]["sha256"]
    for name, content in records.items():
        if name != DONE and content != read_json(part / name):
            write_json(new / name, content)
            sums[name] = sha256_of(new / name)
    if (new / REPLAY).exists():  # has a line for each sweep: only its head is changed
        text = (new / REPLAY).read_text()
        head = f'"schema": {records[DONE]["schema"]}'
        write_bytes(new / REPLAY, re.sub(r'"schema": \d+', head, text, count=1).encode())
        sums[REPLAY] = sha256_of(new / REPLAY)
    write_json(new / DONE, records[DONE])
    run.mkdir(parents=True, exist_ok=True)
    part.rename(old)
    new.rename(run / part.name)
    shutil.rmtree(old)
    if not any(part.parent.iterdir()):
        part.parent.rmdir()


def result_of(part: Path) -> str:
    """The checksum of a part's curve, or of a plan's sweeps without their head; '' without any."""
    for table in ("curve.parquet", "rows.parquet"):  # of a run, of a study
        if (part / table).exists():
            return sha256_of(part / table)
    if not (part / REPLAY).exists():
        return ""
    return hashlib.sha256((part / REPLAY).read_bytes().partition(b"\n")[2]).hexdigest()


def recover(results: Path) -> None:
    """Put back the parts, and studies, that an interruption of `rewrite` has left under another
    name."""
    for old in (*results.glob("runs/*/*/*/.*.old"), *results.glob("studies/*/*/.*.old")):
        part = old.with_name(old.name.removeprefix(".").removesuffix(".old"))
        if part.exists():
            shutil.rmtree(old)
        else:
            old.rename(part)


class Code(NamedTuple):
    """What a part says of the code that trains it."""

    digest: str
    origins: list[str]


def stamp(part: Path, today: Code, verified: str) -> None:
    """Give a part the digest of today's code, which was found equal to that of a commit."""
    records = {name: read_json(part / name) for name in ("config.json", DONE)}
    code = records["config.json"]["code"]
    code |= today._asdict()
    code["verified"] = list(dict.fromkeys([*code.get("verified", []), verified]))
    rewrite(part, records, part.parent)
