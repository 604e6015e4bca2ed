"""Checks that the current code trains bit-identically to an older commit.

    python benchmarks/same_bits.py 975e3b9 --workers 2
    python benchmarks/same_bits.py HEAD --only dqn "grpo addition"
    python benchmarks/same_bits.py HEAD~3 --restamp          # record it in the published runs

Every algorithm, language method and baseline is trained briefly, with the settings of
experiments/cases.py, by the scripts of OLD in a temporary worktree and by those of this checkout as
it is, uncommitted changes included. Weights, metrics, curves, transcripts and summaries must be the
same to the bit; NaN equals NaN, and times are left out. A line for each case:

    equal    all of that is the same
    DIFFERS  with the first tensor, column or field that is not, and its largest difference
    FAILED   a script failed, with its last line on stderr
    new      OLD has no such script or flag; here it runs

Baselines train with code of others, and are evaluated by ours. Their evaluations may differ in
rounding (DIGITS), and those of sampled actions, whose noise has changed, are left out.

`--restamp`: where all cases of an algorithm are equal (of a language method those on generated
tasks, or those on tasks that are read; of control those with scaled rewards, or those without), its
published runs that were not stale at OLD, as its own code says, count as trained by today's code:
each gets one line in its runs.json, which names OLD. It is done once for many changes, as they are
about to be published. Nothing else but a sweep writes what is published.

The exit status is 0 if all cases are equal or new, otherwise 1. What cannot be compared, since it
needs a package that is not installed, is skipped in one line, and where that is all of them, the
exit status is 2; SBX's and rejax's cases run with .venv-jax/bin/python.
"""

from __future__ import annotations

from manyseeds.command import failing_in_one_line

import contextlib
import hashlib
import importlib.util
import inspect
import itertools
import json
import os
import queue
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor
from tyro.conf import Positional

from manyseeds import ROOMS
from manyseeds.benchmarks.experiments import catalog
from manyseeds.benchmarks.experiments.cases import (
    CASES,
    FILES,
    Case,
    Trains,
    command_line,
    environment_kind,
    select,
    task_kind,
)
from manyseeds.benchmarks.store.studies import finished_studies
from manyseeds.cli import (
    PUBLISHED,
    PositiveInt,
    from_identity,
    parse,
)
from manyseeds.digest import PACKAGE, ROOT, Place, find, origin_of, resolve
from manyseeds.errors import UsageError
from manyseeds.packed import RUNS, is_packed, with_proved
from manyseeds.process import exit_reason
from manyseeds.record import (
    all_runs,
    pack,
    plural,
    read_bytes,
    read_json,
    read_parquet,
    read_seal,
    seal,
)
from manyseeds.runs.stale import digest_today, part_is_stale, read_again
from manyseeds.untrusted import read_tensors
from manyseeds.writing import write_bytes, write_json

DIGITS = 9  # of an evaluation of a baseline that are compared
# What is compared of a part, in the order in which differences are looked for.
CONTENTS = (
    "policy.safetensors",
    "model/*.safetensors",
    "metrics.parquet",
    "curve.parquet",
    "values.parquet",
    "sweeps.json",
    "transcripts.json",
    "summary.json",
)


# ---- Comparing two parts -------------------------------------------------------------------


class Difference(NamedTuple):
    """What differs first between two parts: a tensor, a column, a field or a file."""

    what: str
    how: str
    renamed: bool = False  # equal but for its name

    def __str__(self) -> str:
        return f"{self.what} ({self.how})"


def is_unchecked(name: str) -> bool:
    """Whether a column or field is a time, or says what kind of record it is."""
    return name in ("learn_s", "schema", "kind") or name.endswith(("_seconds", "_per_second"))


def compare_parts(old: Path, here: Path, rounded: bool = False) -> Difference | None:
    """The first difference between two parts; one in names alone only if there is no other.

    rounded: of evaluations, as of a baseline.
    """
    found = list(differences(old, here, rounded))
    return min(found, key=lambda difference: difference.renamed, default=None)


def differences(old: Path, here: Path, rounded: bool) -> Iterator[Difference]:
    """All differences between two parts, weights first."""
    for pattern in CONTENTS:
        names = {str(file.relative_to(part)) for part in (old, here) for file in part.glob(pattern)}
        for name in sorted(names):
            if not (here / name).exists():
                yield Difference(name, "only in OLD")
            elif not (old / name).exists():
                yield Difference(name, "only here")
            else:
                contents = read(old / name, rounded), read(here / name, rounded)
                for entry, how, renamed in compare_entries(*contents):
                    yield Difference(f"{name} {entry}", how, renamed)


def read(file: Path, rounded: bool) -> dict[str, Any]:
    """The tensors, columns or fields of a file by name: tensors, or plain values."""
    if file.suffix == ".safetensors":
        return read_tensors(file)[0]
    if file.suffix == ".parquet":
        frame = read_parquet(file)
        if rounded and "mode" in frame:
            frame = frame[frame["mode"] != "sampled"].map(rounded_value)
        names = [name for name in map(str, frame) if not is_unchecked(name)]
        columns = {name: frame[name].to_numpy() for name in names}
        return {
            name: x.tolist() if x.dtype == object else torch.from_numpy(x.copy())
            for name, x in columns.items()
        }
    found = dict(fields(read_json(file)))
    if rounded:
        found = {k: rounded_value(x) for k, x in found.items() if not k.startswith("final.sampled")}
    return found


def rounded_value(value: Any) -> Any:
    """A value with its floats, or those of a list, rounded to DIGITS."""
    if isinstance(value, list):
        return [rounded_value(x) for x in value]
    return float(f"{value:.{DIGITS}g}") if isinstance(value, float) else value


def fields(content: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """The leaves of JSON by their paths, `final.greedy.iqm` or `sweeps[3].values`.

    A list of numbers is one leaf.
    """
    if isinstance(content, dict) and content:
        for name, value in content.items():
            if not is_unchecked(name):
                yield from fields(value, f"{path}.{name}" if path else name)
    elif isinstance(content, list) and not all(isinstance(x, int | float) for x in content):
        for i, value in enumerate(content):
            yield from fields(value, f"{path}[{i}]")
    else:
        yield path, content


def compare_entries(old: dict[str, Any], here: dict[str, Any]) -> Iterator[tuple[str, str, bool]]:
    """Name, kind and whether-only-renamed of every entry that differs, those of both first."""
    for name in (name for name in old if name in here):
        if how := compare_values(old[name], here[name]):
            yield name, how, False
    new = [name for name in here if name not in old]
    for name in (name for name in old if name not in here):
        same = next((x for x in new if not compare_values(old[name], here[x])), None)
        if same is None:
            yield name, "only in OLD", False
        else:
            new.remove(same)
            yield name, f"renamed to {same}", True
    for name in new:
        yield name, "only here", False


def compare_values(old: Any, here: Any) -> str:
    """How two values differ, '' if they do not: in type, shape, or by how much at most."""
    if isinstance(old, Tensor) and isinstance(here, Tensor):
        return compare_tensors(old, here)
    if json.dumps(old, default=repr) == json.dumps(here, default=repr):
        return ""
    if is_numeric(old) and is_numeric(here):
        return compare_tensors(*(torch.tensor(x, dtype=torch.float64) for x in (old, here)))
    return f"{shortened(old)} in OLD, {shortened(here)} here"


def compare_tensors(old: Tensor, here: Tensor) -> str:
    """As `compare_values`; NaN equals NaN, 0 is not -0."""
    if old.dtype != here.dtype:
        return f"{old.dtype} in OLD, {here.dtype} here".replace("torch.", "")
    if old.shape != here.shape:
        return f"shape {list(old.shape)} in OLD, {list(here.shape)} here"
    if old.numel() == 0:
        return ""
    bits = [x.contiguous().view(-1, 1).view(torch.uint8) for x in (old, here)]
    differs = (bits[0] != bits[1]).any(1) & ~(old.isnan() & here.isnan()).view(-1)
    if not differs.any():
        return ""
    both = [x.double().view(-1)[differs].numpy() for x in (old, here)]
    with np.errstate(invalid="ignore"):  # inf - inf
        return f"max {np.abs(both[0] - both[1]).max():.2g}"


def is_numeric(value: Any) -> bool:
    """Whether a JSON leaf is a number or a list of numbers."""
    values = value if isinstance(value, list) else [value]
    return all(isinstance(x, int | float) and not isinstance(x, bool) for x in values)


def shortened(value: Any) -> str:
    text = json.dumps(value, default=repr)
    return text if len(text) <= 40 else f"{text[:37]}..."


def parts_of(results: Path, case: Case) -> dict[str, Path]:
    """The parts of a case's run by the names of their folders."""
    return {x.parent.name: x.parent for x in results.glob(f"runs/*/*/{case.name}/*/config.json")}


def compare_runs(case: Case, old: Path, here: Path) -> Difference | None:
    """The first difference between what a case has trained in two folders of results."""
    rounded = case.trains.source != "manyseeds"
    parts = parts_of(old, case), parts_of(here, case)
    names = [", ".join(sorted(found)) or "none" for found in parts]
    if names[0] != names[1] or "none" in names:
        return Difference("parts", f"{names[0]} in OLD, {names[1]} here")
    found = (
        (name, compare_parts(parts[0][name], parts[1][name], rounded)) for name in sorted(parts[0])
    )
    several = len(parts[0]) > 1
    unequal = [
        difference._replace(what=f"{name} {difference.what}") if several else difference
        for name, difference in found
        if difference
    ]
    return min(unequal, key=lambda difference: difference.renamed, default=None)


# ---- Running scripts -----------------------------------------------------------------------


def serve(libraries: Sequence[str], project: Sequence[str]) -> None:
    """Import libraries once, then run each script that stdin asks for in a fork of this process.

    A process of its own, in the checkout that is to be run: it gets the source of this function and
    none of our modules. A line of stdin is a JSON object with number, script, arguments and log; to
    stdout goes `number status seconds` when it has ended. The end of stdin ends everything.

    project: top-level packages that must come from the checkout.
    """
    import contextlib
    import importlib
    import json
    import os
    import runpy
    import select
    import signal
    import sys
    import time
    import traceback
    import warnings

    for name in libraries:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)

    def run(script: str, arguments: list[str], log: str) -> int:
        """Do as `python script arguments` does; returns the exit status."""
        for descriptor, name in enumerate((os.devnull, f"{log}.out", f"{log}.err")):
            os.dup2(os.open(name, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o644), descriptor)
        path = os.path.abspath(script)
        sys.argv[:] = [script, *arguments]
        sys.path[0] = os.path.dirname(path)
        try:
            runpy.run_path(path, run_name="__main__")
        except SystemExit as stop:
            if stop.code is not None and not isinstance(stop.code, int):
                print(stop.code, file=sys.stderr)
                return 1
            if stop.code:
                return stop.code
        except BaseException:
            traceback.print_exc()
            return 1
        for name, module in list(sys.modules.items()):
            file = getattr(module, "__file__", None) or path
            if name.split(".")[0] in project and not file.startswith(os.getcwd() + os.sep):
                print(f"error: {name} was imported from {file}", file=sys.stderr)
                return 1
        return 0

    running: dict[int, tuple[int, float]] = {}  # process -> number, when it began
    text = b""
    while True:
        if select.select([0], [], [], 0.02 if running else None)[0]:
            received = os.read(0, 65536)
            if not received:
                os.killpg(0, signal.SIGKILL)
            *lines, text = (text + received).split(b"\n")
            for job in map(json.loads, lines):
                with warnings.catch_warnings(action="ignore"):  # of threads: the libraries' own
                    process = os.fork()
                if process == 0:
                    status = 1
                    try:
                        status = run(job["script"], job["arguments"], job["log"])
                        sys.stdout.flush()
                        sys.stderr.flush()
                    finally:
                        os._exit(status)
                running[process] = job["number"], time.monotonic()
        while running:
            process, ended = os.waitpid(-1, os.WNOHANG)
            if process == 0:
                break
            number, began = running.pop(process)
            seconds = time.monotonic() - began
            print(number, os.waitstatus_to_exitcode(ended), seconds, flush=True)


LIBRARIES = (
    *("torch", "gymnasium", "pandas", "pyarrow.parquet", "scipy.stats", "safetensors.torch"),
    *("matplotlib.pyplot", "seaborn", "tyro", "rich.table", "rich.progress"),
)
PROJECT = (PACKAGE, *ROOMS)


def libraries_of(cases: Sequence[Case]) -> list[str]:
    """What is worth importing once for all of some cases."""
    found = [*LIBRARIES]
    if any(case.is_language for case in cases):
        found += ["transformers.models.llama", "transformers.modeling_utils"]
    # Without JAX, whose threads a fork would lose.
    return found + sorted({name for case in cases for name in case.needs} - {"sbx", "rejax"})


class Ended(NamedTuple):
    """A case on one side, when its script has ended."""

    seconds: float
    failure: str  # '' or why it failed


class Side:
    """One version of the code, its results, and the process that runs its scripts."""

    def __init__(
        self, name: str, root: Path, folder: Path, libraries: Sequence[str], ended: queue.Queue[Any]
    ) -> None:
        self.name, self.root = name, root
        self.results, self.logs = folder / "results", folder / "logs"
        self.logs.mkdir(parents=True)
        self._closed = False
        code = f"{inspect.getsource(serve)}\nserve({list(libraries)!r}, {list(PROJECT)!r})"
        self._errors = open(self.logs / "process.err", "wb")  # noqa: SIM115
        self.process = subprocess.Popen(
            [sys.executable, "-c", f"from collections.abc import Sequence\n{code}"],
            cwd=root,
            env={**os.environ, "PYTHONPATH": str(root)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            start_new_session=True,  # Ctrl-C is for us alone; `close` ends all of the session
        )
        threading.Thread(target=self._listen, args=(ended,), daemon=True).start()

    def _listen(self, ended: queue.Queue[Any]) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            number, status, seconds = line.split()
            ended.put((self, int(number), int(status), float(seconds)))
        if not self._closed:
            ended.put((self, -1, self.process.wait(), 0.0))

    def start(self, number: int, case: Case, places: dict[str, str]) -> None:
        """Let a case begin; when it has ended, self, number, exit status and seconds are queued."""
        options = {**case.options, "--name": [case.name], "--results": [str(self.results)]}
        arguments = command_line(options, places)
        job = {"number": number, "script": case.script, "arguments": arguments}
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it ended: that is in the queue
            self.process.stdin.write(json.dumps({**job, "log": str(self.log(case))}) + "\n")
            self.process.stdin.flush()

    def log(self, case: Case) -> Path:
        """What the files are named after that hold a script's output, .out and .err."""
        return self.logs / case.name

    def failure(self, case: Case, status: int) -> str:
        """Why a case failed, '' if it did not: its last line on stderr."""
        if status == 0:
            return ""
        said = last_line(Path(f"{self.log(case)}.err"))
        return said.replace(str(self.results), "RESULTS") or exit_reason(status)

    def close(self) -> None:
        """End whatever still runs."""
        self._closed = True
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self._errors.close()


def last_line(file: Path) -> str:
    """The last line of a log that says something."""
    lines = file.read_text(errors="replace").split("\n") if file.exists() else []
    return next((line.strip() for line in reversed(lines) if line.strip()), "")


# ---- All cases -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Outcome:
    """What came of a case."""

    case: Case
    status: Literal["equal", "DIFFERS", "FAILED", "new"]
    detail: str
    seconds: float  # on both sides together

    def __str__(self) -> str:
        detail = f": {self.detail}" if self.detail else ""
        return f"{self.status:<8} {self.case.label}{detail}, {self.seconds:.1f} s"


def compare_with(
    old: str,
    cases: Sequence[Case] = CASES,
    workers: int = 2,
    keep: bool = False,
    report: Callable[[Outcome], None] = lambda outcome: None,
) -> list[Outcome]:
    """Train cases with the code of a commit and with the code here, and compare what comes out.

    cases: together with those that they refer to. workers: scripts at a time.
    keep: leave the results and logs, and say where they are.
    report: called with each outcome as soon as it is known. Raises UsageError.
    """
    commit = commit_of(old)
    ended: queue.Queue[Any] = queue.Queue()
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(temporary_folder(keep))
        for name, content in FILES.items():
            (folder / name).write_text(content)
        checkout = stack.enter_context(worktree(commit, folder / "checkout"))
        sides = []
        for name, root in (("OLD", checkout), ("here", ROOT)):
            side = Side(name, root, folder / name.lower(), libraries_of(cases), ended)
            stack.callback(side.close)
            sides.append(side)
        return run(cases, sides, workers, ended, folder, report)


def run(
    cases: Sequence[Case],
    sides: Sequence[Side],
    workers: int,
    ended: queue.Queue[Any],
    files: Path,
    report: Callable[[Outcome], None],
) -> list[Outcome]:
    """Run every case on both sides, at most `workers` scripts at a time; compares as it goes."""
    labels = {case.label: case for case in cases}
    waiting = [(case, side) for case in cases for side in sides]
    running: dict[int, tuple[Case, Side]] = {}
    numbers = itertools.count()
    finished: dict[tuple[str, str], Ended] = {}  # by label and side
    outcomes = []

    def finish(case: Case, side: Side, how: Ended) -> None:
        finished[case.label, side.name] = how
        if all((case.label, side.name) in finished for side in sides):
            outcomes.append(judge(case, sides, [finished[case.label, x.name] for x in sides]))
            report(outcomes[-1])

    def origins(case: Case, side: Side) -> dict[str, Ended | None]:
        return {x: finished.get((x, side.name)) for x in case.placeholders if x in labels}

    while waiting or running:
        ready = (job for job in waiting if all(origins(*job).values()))
        if len(running) < workers and (job := next(ready, None)):
            waiting.remove(job)
            case, side = job
            if failed := [x for x, how in origins(case, side).items() if how and how.failure]:
                finish(case, side, Ended(0.0, f"needs {failed[0]}, which failed"))
                continue
            places = {name: str(files / name) for name in FILES}
            for name in origins(case, side):
                places[name] = str(min(parts_of(side.results, labels[name]).values()))
            number = next(numbers)
            running[number] = job
            side.start(number, case, places)
            continue
        side, number, status, seconds = ended.get()
        if number < 0:
            said = last_line(side.logs / "process.err") or exit_reason(status)
            raise ChildProcessError(f"the process that runs {side.name}'s scripts: {said}")
        case, _ = running.pop(number)
        finish(case, side, Ended(seconds, side.failure(case, status)))
    return outcomes


def judge(case: Case, sides: Sequence[Side], ended: Sequence[Ended]) -> Outcome:
    """Compare what a case has trained on both sides."""
    seconds = sum(how.seconds for how in ended)
    failures = {side.name: how.failure for side, how in zip(sides, ended, strict=True)}
    if not failures["here"]:
        if not (sides[0].root / case.script).exists():
            return Outcome(case, "new", f"OLD has no {case.script}", seconds)
        if any("unknown flag" in (said or "") for said in failures.values()):
            return Outcome(case, "new", "OLD has no such flag", seconds)
    if any(failures.values()):
        if len(set(failures.values())) == 1:
            return Outcome(case, "FAILED", f"on both sides: {failures['here']}", seconds)
        words = "; ".join(f"{name}: {said}" for name, said in failures.items() if said)
        return Outcome(case, "FAILED", words, seconds)
    difference = compare_runs(case, *(side.results for side in sides))
    status: Literal["equal", "DIFFERS"] = "DIFFERS" if difference else "equal"
    return Outcome(case, status, str(difference or ""), seconds)


@contextlib.contextmanager
def temporary_folder(keep: bool) -> Iterator[Path]:
    """A folder that is removed at the end, unless it is to be kept."""
    folder = Path(tempfile.mkdtemp(prefix="same-bits-")).resolve()
    try:
        yield folder
    finally:
        if keep:
            print(f"results and logs: {folder}", flush=True)
        else:
            shutil.rmtree(folder, ignore_errors=True)


def git(*arguments: str) -> str:
    """The output of a git command on this checkout; UsageError with its last line on stderr.

    Ctrl-C does not reach it: a worktree is there whole or not at all.
    """
    try:
        done = subprocess.run(
            ["git", "-C", str(ROOT), *arguments],
            capture_output=True,
            text=True,
            start_new_session=True,
        )
    except OSError as error:
        raise UsageError(f"git: {error.strerror}; OLD is read from git") from None
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [exit_reason(done.returncode)]
        raise UsageError(f"git {arguments[0]}: {lines[-1].removeprefix('fatal: ')}")
    return done.stdout.strip()


def commit_of(old: str) -> str:
    """The commit that OLD stands for; UsageError where git does not know it."""
    try:
        inside = Path(git("rev-parse", "--show-toplevel")).resolve() == ROOT
    except UsageError as error:
        if str(error).startswith("git:"):
            raise
        inside = False
    if not inside:
        raise UsageError(f"OLD {old}: {ROOT} is not a git checkout to read it from")
    try:
        return git("rev-parse", "--verify", "--quiet", "--end-of-options", f"{old}^{{commit}}")
    except UsageError:
        raise UsageError(f"OLD {old}: git knows no such commit") from None


@contextlib.contextmanager
def worktree(commit: str, folder: Path) -> Iterator[Path]:
    """A checkout of a commit, removed at the end."""
    try:
        git("worktree", "add", "--detach", "--quiet", str(folder), commit)
        yield folder
    finally:
        if folder.exists():
            git("worktree", "remove", "--force", "--force", str(folder))  # also a half-made one


# ---- Published parts -----------------------------------------------------------------------


class Code(NamedTuple):
    """What a part says of the code that trains it."""

    digest: str
    origins: list[str]


def published() -> list[Path]:
    """The published parts of runs, and the studies, whose rows are trainings too."""
    parts = [part for run in all_runs(PUBLISHED) for part in run.parts()]
    return parts + finished_studies(PUBLISHED)


def result_of(part: Path) -> str:
    """What identifies the results of a part or study: the checksum of its curve or rows; of a plan
    that of its sweeps, without the line with the head."""
    sums = (read_seal(part) or {})["sha256"]
    if table := sums.keys() & {"curve.parquet", "rows.parquet"}:
        return str(sums[table.pop()])
    return hashlib.sha256(read_bytes(part / "sweeps.json").partition(b"\n")[2]).hexdigest()


def fresh_results() -> list[str]:
    """What identifies the results of the published parts that are not stale, checksums."""
    return [result_of(p) for p in published() if not part_is_stale(read_json(p / "config.json"))]


def fresh_at(old: str) -> set[str]:
    """`fresh_results` of a commit, as the code of that commit says."""
    with temporary_folder(keep=False) as folder, worktree(commit_of(old), folder / "x") as checkout:
        done = subprocess.run(
            [sys.executable, str(checkout / "benchmarks/same_bits.py"), "--fresh"],
            cwd=checkout,
            env={**os.environ, "PYTHONPATH": str(checkout)},
            capture_output=True,
            text=True,
        )
        if done.returncode:
            raise UsageError(
                f"OLD {old}: {(done.stderr.strip().splitlines() or ['no output'])[-1]}"
            )
        return set(json.loads(done.stdout))


def stamps_today() -> dict[Path, Code]:
    """What each published part would say of its code now."""
    found = {}
    for part in published():
        config = read_json(part / "config.json")
        origins = origins_today(config)
        found[part] = Code(digest_today(origins, config["kind"]), list(origins))
    return found


def trained_as(part: Path) -> Trains:
    """Whose run a part belongs to, as `Case.trains`."""
    config = read_json(part / "config.json")
    source = config["source"]
    if config["kind"] == "language":
        subject = task_kind(config["task"])
    else:  # a study may vary what its base has
        space = " ".join(config.get("vary", ())).replace("-", "_")
        scaled = config["config"].get("normalize_reward", False) or "normalize_reward" in space
        subject = environment_kind(source, scaled)
    return Trains(source, config["algo"].removeprefix(f"{source}-"), subject)


def origins_today(config: dict[str, Any]) -> tuple[str, ...]:
    """Where the code begins now that would train a published part, from its config.json.

    Raises UsageError where its baseline's code has been moved or renamed.
    """
    source, algo = config["source"], config["algo"].removeprefix(f"{config['source']}-")
    found = catalog.module("llm_track" if config["kind"] == "language" else "algos", algo)
    if source == "manyseeds":
        begins = [getattr(found, name) for name in ("train", "solve") if hasattr(found, name)]
    else:  # no script imports another one, so their baselines are not asked
        # Parts that were trained before 2026-11-26 name their code without the package or the room.
        own = re.compile(rf"(?:{PACKAGE}\.)?benchmarks\.(?:baselines\.)?(.*)")
        named = filter(None, map(own.fullmatch, config["code"]["origins"]))
        begins = [f"{PACKAGE}.benchmarks.baselines.{x[1]}" for x in named]
    settings = from_identity(found.Config, config["config"])
    origins = sorted({*map(origin_of, begins), *settings.origins()})
    for origin in origins:
        if find(resolve(Place.of(origin), ROOT), ROOT) is None:
            raise UsageError(f"{origin}: not there, but runs of {config['algo']} begin with it")
    return tuple(origins)


def proven(outcomes: Sequence[Outcome]) -> set[Trains]:
    """Whose runs (`Case.trains`) all cases were compared of, and found equal, or new.

    Cases with scaled rewards are few: their runs also need those without.
    """
    equal = {outcome.case for outcome in outcomes if outcome.status == "equal"}
    known = equal | {outcome.case for outcome in outcomes if outcome.status == "new"}
    failed = {case.trains for case in CASES if case not in known}
    failed |= {x._replace(subject=environment_kind(x.source, scaled=True)) for x in failed}
    return {case.trains for case in equal} - failed


def restamp(old: str, before: dict[Path, Code], equal: set[Trains]) -> tuple[int, int]:
    """Stamp what was fresh at a commit; how many parts were stamped, and how many are stale still.

    equal: whose runs (`proven`). before: `stamps_today` of when the comparison began; raises
    UsageError where the code has changed since.
    """
    read_again()
    if stamps_today() != before:
        raise UsageError("--restamp: the code was changed during the comparison")
    fresh, name = fresh_at(old), git("rev-parse", "--short", commit_of(old))
    pack(PUBLISHED)
    stale = {part: x for part, x in before.items() if not says(part, x)}
    proved = {
        part: {**code._asdict(), "verified": [name]}
        for part, code in stale.items()
        if trained_as(part) in equal and result_of(part) in fresh
    }
    folders: dict[Path, dict[str, Any]] = {}
    for part, code in proved.items():
        if is_packed(part):
            folder = part.parents[1]
            folders.setdefault(folder, {})[part.relative_to(folder).as_posix()] = code
        else:
            stamp_study(part, code)
    for folder, codes in folders.items():
        write_bytes(folder / RUNS, with_proved(folder, codes))
    return len(proved), len(stale) - len(proved)


def says(part: Path, code: Code) -> bool:
    """Whether a part says that its code is some code, and where that begins."""
    said = read_json(part / "config.json")["code"]
    return bool(said["digest"] == code.digest and said["origins"] == code.origins)


def stamp_study(study: Path, code: dict[str, Any]) -> None:
    """Give a study the digest of today's code; a kill meanwhile leaves it damaged, git has it."""
    config, sealed = read_json(study / "config.json"), read_seal(study) or {}
    write_json(study / "config.json", {**config, "code": {**config["code"], **code}})
    seal(study, sealed["local"], sealed["weights"])


# ---- The command ---------------------------------------------------------------------------


def available(cases: Sequence[Case]) -> list[Case]:
    """The cases whose packages are installed; says in a line for each package what is skipped."""
    packages = {name for case in cases for name in case.needs}
    absent = {name for name in packages if importlib.util.find_spec(name) is None}
    for name in sorted(absent):
        count = sum(name in case.needs for case in cases)
        print(f"skipped  {plural(count, 'case')}: {name} is not installed")
    return [case for case in cases if not absent.intersection(case.needs)]


@dataclass(frozen=True)
class Flags:
    old: Positional[str] = ""
    """The commit to compare with."""
    restamp: bool = False
    """Record equality in the published runs."""
    fresh: bool = False
    """Only print checksums of the results that are not stale."""
    only: tuple[str, ...] = ()
    """Run only the cases whose names contain one of these words (default: all)."""
    workers: PositiveInt = 2
    """Number of parallel processes."""
    keep: bool = False
    """Keep the results and logs."""


@failing_in_one_line()
def main(args: Sequence[str] | None = None) -> None:
    """Compare with a commit; exit status 1 unless everything is equal or new."""
    given = parse(Flags, {}, __doc__, args)
    began = time.monotonic()
    if given.fresh:
        print(json.dumps(fresh_results()))
        return
    if not given.old:
        raise UsageError("OLD: name the commit to compare with")
    cases = list(select(CASES, given.only) if given.only else CASES)
    if not cases:
        raise UsageError(f"--only {' '.join(given.only)}: no case has any of it in its label")
    commit_of(given.old)  # an unknown one is named before any case is reported
    compared = available(cases)
    if not compared:
        raise UsageError("no case can run here: see above")
    before = stamps_today() if given.restamp else {}
    outcomes = compare_with(
        given.old,
        compared,
        given.workers,
        given.keep,
        report=lambda outcome: print(outcome, flush=True),
    )
    unequal = [outcome for outcome in outcomes if outcome.status in ("DIFFERS", "FAILED")]
    if given.restamp:
        stamped, left = restamp(given.old, before, proven(outcomes))
        print(f"{plural(stamped, 'part')} proved equal to {given.old}; stale still: {left}")
    counts = Counter(outcome.status for outcome in outcomes)
    words = ", ".join(f"{counts[status]} {status}" for status in ("equal", "DIFFERS", "FAILED"))
    if counts["new"]:
        words += f", {counts['new']} new"
    print(f"{plural(len(outcomes), 'case')}: {words}, {time.monotonic() - began:.0f} s")
    if unequal:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
