"""Parts that other code has trained: they count as missing, and are set aside.

What stands in the user's layer was perhaps trained before somebody edited the code. Just before a
command trains the same seeds anew, such a part is renamed, whole, to

    RUN/.stale/DIGEST/seeds-000-009

with the digest of the code that trained it: RUN/.stale/DIGEST is a run that can be loaded and
compared, and that is no part of the results. Other hyperparameters that had the run's `--name`, and
the same code, get a folder of their own, RUN/.stale/DIGEST-HASH. When the code is again what it
was, its part is taken back. Published runs stay where they are: reports mark what is stale.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from importlib import metadata
from pathlib import Path
from typing import Any

from manyseeds.cli import PUBLISHED, RunConfig, identity
from manyseeds.digest import (
    ALL,
    ROOT,
    UNKNOWN,
    code_digest,
    is_library,
    is_path,
    origin_of,
    path_of,
)
from manyseeds.errors import UsageError
from manyseeds.kernels import guard
from manyseeds.packed import is_packed
from manyseeds.progress import console
from manyseeds.record import (
    DONE,
    PLAN,
    STALE,
    RunFolder,
    exists,
    hash_of,
    is_finished,
    is_part,
    ranges,
    read_config,
)

BASELINES = ("stable-baselines3", "sb3-contrib", "trl")  # packages that train instead of our code


@cache
def installed(package: str) -> str:
    """The version of a package here, '' without it."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


def code_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """Digest, commit and origins that a part's config.json says; empty where it does not."""
    said = config.get("code")
    return {"digest": "", "commit": "", "origins": [], **(said if isinstance(said, dict) else {})}


def other_baselines(config: Mapping[str, Any]) -> list[str]:
    """The baselines that trained a part in other versions than are installed, as `trl 0.9.1`.

    config: its config.json. One that is not installed here is taken to be the same.
    """
    versions = config.get("versions", {})
    names = [name for name in BASELINES if name in versions]
    return [f"{x} {versions[x]}" for x in names if installed(x) not in ("", versions[x])]


def differs(config: Mapping[str, Any], digest: str) -> bool:
    """Whether a part was trained by other code than that of a digest, or by another baseline."""
    return bool(code_of(config)["digest"] != digest or other_baselines(config))


def trainer(config: Mapping[str, Any], digest: str) -> str:
    """What trained a part, for people, where it `differs`: `other code (commit 693c8440)`."""
    code = code_of(config)
    if code["digest"] == digest:
        return " and ".join(other_baselines(config))
    if "unknown" in (code["digest"][:7], digest[:7]):
        return "code that may be another (it is in no file)"
    # What lies outside the checkout is of no commit.
    known = code["commit"] and not any(map(is_path, code["origins"]))
    return "other code" + (f" (commit {code['commit']})" if known else "")


def seeds_of(config: Mapping[str, Any]) -> set[int]:
    """The seeds of a part as they are locked: a plan is 0."""
    return set(config["seeds"] or [0])


def origins_of(config: RunConfig, definitions: Sequence[Any]) -> list[str]:
    """Where the code of a run begins, besides that of its kind (`digest.origin_of`).

    Raises UsageError for what is to be published, but is not of this checkout.
    """
    origins = sorted({*map(origin_of, definitions), *config.origins(), *script_of(definitions)})
    for name, other in guard.replaced().items():
        origins.append(f"{other}:{ALL}" if other else f"{UNKNOWN}:{name}")
    origins = sorted(set(origins))
    if is_published(config):
        for origin in origins:
            if is_path(origin) or origin.startswith(UNKNOWN):
                raise UsageError(f"--publish: {origin} is not in this checkout")
    return origins


def script_of(definitions: Sequence[Any]) -> list[str]:
    """All of a user's script that trains by definitions of other files: it may have replaced
    functions there, `ppo.policy_loss = mine`. None where there is no such script."""
    main = sys.modules["__main__"]
    file = path_of(main)
    if file is None or ROOT in file.parents or is_library(main):
        return []
    return [] if file in map(path_of, definitions) else [f"{file}:{ALL}"]


def is_published(config: RunConfig) -> bool:
    """Whether a run belongs to the published layer."""
    return Path(config.results).resolve() == PUBLISHED


@dataclass(frozen=True)
class Code:
    """The code that a command would train by now, with its Config.

    definitions: the functions and classes that it begins with, besides those of the Config. kind:
    where that of all runs of its kind begins (`BaseRun.kind_origins`).
    """

    config: RunConfig
    definitions: Sequence[Any]
    kind: Sequence[str]

    @cached_property
    def digest(self) -> str:
        return code_digest([*origins_of(self.config, self.definitions), *self.kind])

    def accepts(self, config: Mapping[str, Any]) -> bool:
        """Whether a finished part, by its config.json, counts as finished for the command."""
        kept = self.config.keep_stale or is_published(self.config)
        return kept or not differs(config, self.digest)

    def finished(self, part: Path) -> bool:
        """Whether a part is finished, with weights on this machine, and counts."""
        if not is_finished(part, with_weights=True):
            return False
        return self.accepts(read_config(part))

    def check_environment(self, folder: RunFolder) -> None:
        """Raise UsageError where a run has a part with another time limit than the environment has
        today, as where it is registered anew; a note for other versions of its packages.

        Parts that do not say theirs have the same.
        """
        configs = {part: read_config(part) for part in folder.parts()}
        if not configs or not hasattr(self.config, "make_env"):
            return
        env, notes = self.config.make_env(), set[str]()
        versions = {name: installed(name) for name in env.packages()}
        for part, config in configs.items():
            if (limit := config.get("time_limit", env.spec.time_limit)) != env.spec.time_limit:
                raise UsageError(
                    f"--env {env.spec.id}: its time limit is {env.spec.time_limit} now, and was "
                    f"{limit} for {part}: choose another --name, or another folder (--results)"
                )
            for name, now in versions.items():
                if (then := config["versions"].get(name, now)) != now:
                    notes.add(
                        f"a part of {folder.path} was trained with {name} {then}, here is {now}"
                    )
        for note in sorted(notes):
            print(f"note: {note}", file=sys.stderr)

    def say_what_is_kept(self, folder: RunFolder, seeds: Iterable[int]) -> None:
        """With `--keep-stale`, a line for the parts that are taken as finished all the same."""
        if self.config.keep_stale and not is_published(self.config):
            configs = [config for _, config in parts_with_any(folder.path, seeds)]
            parts = [config for config in configs if differs(config, self.digest)]
            for text in by_trainer(parts, self.digest):
                console.print(f"{text}, and kept: --keep-stale", markup=False)

    def set_aside(self, folder: RunFolder, seeds: Iterable[int]) -> None:
        """Set aside the parts with any of some seeds (a plan: 0) that do not count.

        seeds: locked by this process.
        """
        found = parts_with_any(folder.path, seeds)
        parts = [(part, config) for part, config in found if not self.accepts(config)]
        set_aside(parts, self.digest)

    def refuse_another(self, folder: RunFolder, seed: int) -> None:
        """Raise UsageError where other code is training a seed (a plan: 0) in another process.

        What it trains would be set aside as soon as it has finished.
        """
        for part in parts_in(folder.path):
            if not may_hold(part, [seed]) or exists(part / DONE):
                continue
            try:
                config = read_config(part)
            except UsageError:  # it has only begun
                continue
            if not self.accepts(config):
                raise UsageError(
                    f"seed {seed} is being trained in another process by "
                    f"{trainer(config, self.digest)}; wait until it has finished, or stop it"
                )

    def take_back(self, folder: RunFolder, seeds: Iterable[int]) -> set[int]:
        """Take back parts with any of some seeds (a plan: 0) that were set aside, but are of this
        code; returns their seeds.

        seeds: locked by this process. A part stays where it is if one that counts has any of its
        seeds; what does not count is set aside instead. Raises UsageError for links.
        """
        taken: set[int] = set()
        if is_published(self.config):
            return taken
        ours = identity(self.config)
        for aside in folders_aside(folder.path, self.digest, ours):
            back: list[dict[str, Any]] = []
            for part, config in parts_with_any(aside, seeds):
                target = folder.path / part.name
                same = config["config"] == ours and not differs(config, self.digest)
                there = [*parts_with_any(folder.path, seeds_of(config))]
                free = not any(self.accepts(other) for _, other in there)
                if same and free and is_finished(part, with_weights=True):
                    set_aside(there, self.digest)
                    shutil.rmtree(target, ignore_errors=True)  # what a killed process has left
                    os.rename(part, target)
                    back.append(config)
            if back:
                console.print(
                    f"{subject(back)} by this code: taken back from {aside}", markup=False
                )
                with contextlib.suppress(OSError):  # others are left there
                    aside.rmdir()
                    aside.parent.rmdir()
            taken.update(*map(seeds_of, back))
        return taken


def may_hold(part: Path, seeds: Iterable[int]) -> bool:
    """Whether the name of a part says that it has one of some seeds (a plan: 0)."""
    first, last = map(int, part.name.split("-")[1:]) if is_part(part) else (0, 0)
    return any(first <= seed <= last for seed in seeds)


def parts_in(run: Path) -> list[Path]:
    """The parts of a run, finished or not, in folders or packed."""
    return [part for part in RunFolder(run).all_parts() if is_part(part) or part.name == PLAN]


def parts_with_any(run: Path, seeds: Iterable[int]) -> Iterator[tuple[Path, dict[str, Any]]]:
    """The finished parts in a folder that hold any of some seeds (a plan: 0), each with its
    config.json."""
    wanted = set(seeds)
    for part in parts_in(run):
        if may_hold(part, wanted) and is_finished(part):
            config = read_config(part)
            if wanted & seeds_of(config):
                yield part, config


def set_aside(parts: Iterable[tuple[Path, dict[str, Any]]], digest: str) -> None:
    """Rename finished parts of one run to its `.stale`, and say so in a line for each code.

    parts: each with its config.json. digest: of the code that is to train their seeds. A part that
    was set aside before, with the same code, hyperparameters and seeds, is replaced. Raises
    UsageError, before anything is moved, where it would follow a link, and for a packed part.
    """
    parts, moved = list(parts), dict[Path, list[dict[str, Any]]]()
    for part, config in parts:
        if is_packed(part):
            how = f"{trainer(config, digest)}; choose another folder (--results)"
            raise UsageError(f"{part}: is packed and was trained by {how}")
    targets = [(part, config, place_aside(part.parent, config)) for part, config in parts]
    for part, config, target in targets:
        target.mkdir(parents=True, exist_ok=True)
        if (target / part.name).exists():
            shutil.rmtree(target / part.name)
        with contextlib.suppress(FileNotFoundError):  # another process was faster
            os.rename(part, target / part.name)
            moved.setdefault(target, []).append(config)
    for target, configs in moved.items():
        for text in by_trainer(configs, digest):
            console.print(f"{text}; moved to {target}", markup=False)


def folders_aside(run: Path, digest: str, ours: Mapping[str, Any]) -> list[Path]:
    """Where parts of a code, with the identity `ours`, lie aside: where they do usually, and where
    they do if others were there first. Raises UsageError for links."""
    code = re.sub(r"[^\w-]", "-", digest)[:40] or "none"  # anybody's text
    folders = [run / STALE / code, run / STALE / f"{code}-{hash_of(ours)}"]
    for folder in (run / STALE, *folders):
        if folder.is_symlink():
            raise UsageError(f"{folder}: is a link: no part is put there or taken from there")
    return folders


def place_aside(run: Path, config: Mapping[str, Any]) -> Path:
    """The folder where a part with some config.json is to lie aside. Raises UsageError."""
    usual, own = folders_aside(run, code_of(config)["digest"], config["config"])
    there = [read_config(part) for part in parts_in(usual) if is_finished(part)]
    return usual if all(x["config"] == config["config"] for x in there) else own


def by_trainer(configs: Iterable[Mapping[str, Any]], digest: str) -> list[str]:
    """What trained parts, for people: `seeds 0-9 were trained by other code (commit 693c8440)`."""
    found: dict[str, list[Mapping[str, Any]]] = {}
    for config in configs:
        found.setdefault(trainer(config, digest), []).append(config)
    return [f"{subject(those)} by {how}" for how, those in found.items()]


def subject(configs: Sequence[Mapping[str, Any]]) -> str:
    """What parts are, as the beginning of a sentence: `seeds 0-9 were trained`."""
    if configs[0].get("kind") == "planning":
        return "the plan was made"
    seeds = set().union(*map(seeds_of, configs))
    several = len(seeds) > 1
    return f"seeds {ranges(seeds)} were trained" if several else f"seed {min(seeds)} was trained"
