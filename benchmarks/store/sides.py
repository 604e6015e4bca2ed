"""The two sides of a judgement: their code, what differs, and the processes that train them."""

from __future__ import annotations

import contextlib
import difflib
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from manyseeds import ROOMS, untrusted
from manyseeds.benchmarks.experiments import catalog, judged_side
from manyseeds.benchmarks.store.tries import (
    AGAINST,
    CHANGED,
    Session,
    commit_of,
    committed,
    source,
    tree_of,
    within,
)
from manyseeds.cli import path_of
from manyseeds.digest import PACKAGE, ROOT, contents_in, room_file, text_of
from manyseeds.errors import UsageError
from manyseeds.process import ENDING, exit_reason
from manyseeds.record import git, hash_of
from manyseeds.writing import write_bytes

ALIKE = 0.5  # of the lines of two files, at least, for one to be a copy of the other
SIDES = (CHANGED, AGAINST)


@dataclass(frozen=True)
class Code:
    """The code of one side."""

    label: str  # in messages, as it was typed
    text: bytes  # of its file
    file: Path | None  # that is run; None: `module` of the checkout `root`
    root: Path = ROOT
    module: str = ""
    commit: str = ""

    @property
    def name(self) -> str:
        return self.label.removeprefix("--against ")


class Trainer:
    """A process that trains one side, `judged_side`."""

    def __init__(self, code: Code) -> None:
        self.code = code
        if code.file and not code.file.exists():  # what a commit has of it
            code.file.parent.mkdir(parents=True, exist_ok=True)
            write_bytes(code.file, code.text)
        self._said = tempfile.TemporaryFile()  # noqa: SIM115
        text = untrusted.read_text(Path(str(judged_side.__file__)))
        paths = str(code.root), os.environ.get("PYTHONPATH", "")
        self._process = subprocess.Popen(
            [sys.executable, "-c", text],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._said,
            text=True,
            cwd=code.root,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))},
            **ENDING,
        )

    def ask(self, kind: str, **request: Any) -> None:
        """Send a request, whose answer `answer` waits for."""
        assert self._process.stdin
        with contextlib.suppress(BrokenPipeError):  # `answer` says why
            self._process.stdin.write(json.dumps({kind: request}) + "\n")
            self._process.stdin.flush()

    def answer(self) -> Any:
        """The answer to the last request. Raises UsageError."""
        assert self._process.stdout
        line = self._process.stdout.readline()
        if not line:
            self._said.seek(0)
            lines = self._said.read().decode(errors="replace").strip().splitlines() or [""]
            reason = exit_reason(self._process.wait())
            raise UsageError(f"{self.code.label}: cannot be trained: {reason}; {lines[-1][:300]}")
        ((kind, content),) = json.loads(line).items()
        if kind == "error":
            raise UsageError(f"{self.code.label}: {content}")
        return content

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        self._said.close()


class Trainers:
    """Those of both sides, which work at the same time."""

    def __init__(self, changed: Code, against: Code) -> None:
        self.of = {CHANGED: Trainer(changed), AGAINST: Trainer(against)}

    def ask(self, kind: str, sides: Sequence[str] = SIDES, **request: Any) -> dict[str, Any]:
        """The answers of some sides to the same request."""
        for side in sides:
            self.of[side].ask(kind, **request)
        return {side: self.of[side].answer() for side in sides}

    def close(self) -> None:
        for trainer in self.of.values():
            trainer.close()


@contextlib.contextmanager
def training(changed: Code, against: Code) -> Iterator[Trainers]:
    trainers = Trainers(changed, against)
    try:
        yield trainers
    finally:
        trainers.close()


def lost_kernels(
    trainers: Trainers, envs: Sequence[str]
) -> tuple[dict[str, Any], dict[str, Any], float]:
    """Try both sides for a moment, and let PyTorch compute on both what C does not on one.

    Returns the functions that PyTorch computes by side, the timesteps a second of CPU of both, and
    the seconds that a seed of the slower side takes at least.
    """
    probes = [trainers.ask("probe", env=env) for env in envs]
    in_torch = {
        side: {
            kernel: functions
            for probe in probes
            for kernel, (functions, in_c) in probe[side]["kernels"].items()
            if not in_c
        }
        for side in SIDES
    }
    denied = sorted({kernel for own in in_torch.values() for kernel in own})
    if denied:
        trainers.ask("deny", kernels=denied)
    functions = {
        side: list(dict.fromkeys(x for names in own.values() for x in names))
        for side, own in in_torch.items()
    }
    speed = {side: probes[0][side]["speed"] for side in SIDES}
    return functions, speed, max(sum(probe[side]["seconds"] for probe in probes) for side in SIDES)


def algorithm_of(file: Path, text: bytes, against: str) -> str:
    """The algorithm of algos/ that a file is, or is a copy of. One that resembles none has its own
    name where it is said what it is compared with; else raises UsageError."""
    names = catalog.names("algos")
    folder = room_file("algos")
    if file.parent == folder and file.stem in names:
        return file.stem
    lines = text.decode(errors="replace").splitlines()

    def likeness(name: str) -> float:
        theirs = source(folder / f"{name}.py").decode().splitlines()
        return difflib.SequenceMatcher(None, lines, theirs, autojunk=False).ratio()

    found, name = max((likeness(name), name) for name in names)
    if found >= ALIKE:
        return name
    if not against:
        raise UsageError(f"FILE {file}: resembles no file of algos/; give --against FILE")
    return re.sub(r"[^\w-]", "-", file.stem)


def sides_of(
    session: Session, algo: str, name: str, against: str, with_itself: bool
) -> tuple[Code, Code]:
    """The code of both sides. Raises UsageError.

    name, against: as of the command; with_itself: unless something is named, the file is compared
    with itself.
    """
    file = path_of(name, "FILE").resolve()
    text = source(file)
    changed = Code(f"FILE {name}", text, file)
    if against:
        other = path_of(against, "--against")
        if other.is_file():
            return changed, Code(f"--against {against}", source(other), other.resolve())
        if against.endswith(".py"):
            raise UsageError(f"--against {against}: there is no such file")
        inside = within(file) or Path("algos", f"{algo}.py")
        module = ".".join((PACKAGE, *inside.with_suffix("").parts))
        return changed, code_of_commit(session, module, against)
    if with_itself:
        return changed, Code(f"{name} as it is", text, file)
    if (before := committed(file)) is not None:
        folder = session.path.resolve() / "texts" / hash_of(before.decode(errors="replace"))
        return changed, Code(f"the committed {file.name}", before, folder / file.name)
    original = room_file(f"algos/{algo}.py")
    return changed, Code(f"algos/{algo}.py", source(original), original)


def code_of_try(session: Session, entry: Mapping[str, Any], side: str) -> Code:
    """A side as it was tried: its file, beside which there may be others that it imports, or where
    that has changed the session's copy."""
    copy = (session.folder(entry) / f"{side}.py").resolve()
    text, file = source(copy), Path(entry["paths"][side])
    label = f"try {entry['number']}" if side == CHANGED else entry["against"]
    return Code(label, text, file if file.is_file() and source(file) == text else copy)


def code_of_commit(session: Session, module: str, against: str) -> Code:
    """The side of a commit: its version of a module. Raises UsageError."""
    if not (commit := commit_of(against)):
        raise UsageError(f"--against {against}: is neither a file nor a commit")
    tree = tree_of(session.path.parents[1], commit).resolve()
    inside = Path(*module.split(".")[1:]).with_suffix(".py")
    if not (tree / inside).is_file():
        raise UsageError(f"--against {against}: has no {inside}")
    return Code(f"--against {against}", source(tree / inside), None, tree, module, commit)


def check_text(code: Code) -> None:
    """Raise UsageError for a text that is no Python, before a process would."""
    try:
        compile(code.text, code.label, "exec", dont_inherit=True)
    except (SyntaxError, ValueError) as error:
        line = f" (line {error.lineno})" if isinstance(error, SyntaxError) else ""
        raise UsageError(f"{code.label}: {type(error).__name__}: {error.args[0]}{line}") from None


def definitions_changed(changed: bytes, against: bytes) -> list[str]:
    """What two versions of a file define differently, by name; comments and docstrings aside.
    Raises SyntaxError."""

    def parts(text: bytes) -> dict[str, str]:
        found, statements = contents_in(text.decode())
        texts = {"": "".join(map(text_of, statements))}
        for name, node in found.items():
            inner = {x.name: x for x in getattr(node, "body", ()) if hasattr(x, "name")}
            members = inner if type(node).__name__ == "ClassDef" else {}
            for member, own in members.items():
                texts[f"{name}.{member}"] = text_of(own)
            whole = text_of(node)
            for own in members.values():
                whole = whole.replace(text_of(own), "")
            texts[name] = whole
        return texts

    ours, theirs = parts(changed), parts(against)
    names = dict.fromkeys([*ours, *theirs])
    return [name or "statements" for name in names if ours.get(name) != theirs.get(name)]


def described_change(changed: Code, against: Code, loaded: Mapping[str, Any]) -> list[str]:
    """What the change is: definitions, settings and, against a commit, other files; [] for none."""
    found = []
    try:
        found += definitions_changed(changed.text, against.text)
    except (SyntaxError, ValueError):
        found.append("the text")
    for env, ours in loaded[CHANGED].items():
        theirs = loaded[AGAINST][env]["identity"]
        own = ours["identity"]
        for name in {**own, **theirs}:
            if own.get(name) != theirs.get(name):
                found.append(f"{name} {theirs.get(name)} -> {own.get(name)}")
    if against.commit:
        names = git("diff", "--name-only", against.commit, "--", PACKAGE, *ROOMS).split()
        own_file = str(within(changed.file or ROOT) or "")
        found += [x for x in names if x.endswith((".py", ".c", ".h", ".toml")) and x != own_file]
    return list(dict.fromkeys(found))
