"""Commands that meet a fault, and what must be equal once the same command has run again.

    python -m tests.faults --minutes 10              # prints its seed
    python -m tests.faults --minutes 10 --seed 3     # the same, but for the times of signals
    python -m tests.faults --count 60 --only website,merge --how SIGKILL

Each case is a small command in a folder of its own. It is killed, interrupted or terminated at a
random time or at a random file event, or meets a full disk or an input/output error there. What it
says then is one line, and what it replaces is the old or the new one, whole. The same command
without a fault then leaves what an undisturbed one leaves, but for the clock, and nothing else. The
exit status is 1 where one of this is not so.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from manyseeds.digest import ROOT
from manyseeds.record import is_finished
from tests.faulty import FULL
from tests.processes import Script

CLOCK = ["learn_s", "seconds"]  # columns
# How keys of JSON end that hold seconds; and checksums of files that have them.
SECONDS = ("seconds", "per_second", "sha256", "DONE.json")
EVENTS = ["open", "fsync", "rename", "remove", "mkdir"]
SIGNALS = ["SIGKILL", "SIGTERM", "SIGINT"]
ERRORS = ["ENOSPC", "EIO"]
# Exit statuses of a command that a fault has ended.
ENDS = {"SIGKILL": [-9], "SIGTERM": [143], "SIGINT": [130], "ENOSPC": [1, 2], "EIO": [1, 2]}
SAID = ("error: ", "interrupted", "note: ")

LAKE = "--env FrozenLake-v1 --total-timesteps 500 --results r --quiet"
SMALL = "--seeds 2 --results r --quiet --hidden 8 8 --num-envs 2"


def nothing(folder: Path) -> None:
    pass


@dataclass(frozen=True)
class Case:
    """A command, its inputs, and where what it replaces as a whole lies."""

    command: str
    inputs: Callable[[Path], object] = nothing
    whole: str = ""  # a folder
    each: str = ""  # files, by a pattern
    parts: str = ""  # sealed parts, by a pattern
    own_process: bool = False  # not a fork of this one


def trained(folder: Path, results: str = "r", seeds: str = "--seeds 3", *more: str) -> None:
    """Train a tiny run."""
    words = [*LAKE.replace("--results r", f"--results {results}").split(), *seeds.split(), *more]
    run(folder, ["algos/q_learning.py", *words])


def site_before(folder: Path) -> None:
    """A site of one run, and then another run."""
    trained(folder)
    run(folder, CASES["website"].command.split())
    trained(folder, "r", "--seeds 3 --gamma 0.9")


def report_before(folder: Path) -> None:
    trained(folder)
    run(folder, CASES["report"].command.split())
    trained(folder, "r", "--seeds 3 --gamma 0.9")


def two_stores(folder: Path) -> None:
    trained(folder, "a", "--seeds 1")
    trained(folder, "a", "--seeds 1 --first-seed 1")
    trained(folder, "b", "--seeds 2 --first-seed 2")
    shutil.copytree(folder / "a/runs", folder / "c/runs")
    for weights in (folder / "c").rglob("policy.safetensors"):  # as of a published run
        weights.unlink()


def packable(folder: Path) -> None:
    trained(folder)
    trained(folder, "r", "--seeds 2 --gamma 0.9")
    (folder / "packing.py").write_text(
        "from pathlib import Path\n"
        "from manyseeds.command import failing_in_one_line\n"
        "from manyseeds.record import pack\n"
        "with failing_in_one_line():\n"
        "    pack(Path('r'))\n"
    )


def checkout(folder: Path) -> None:
    """A copy of the code with a suite of its own that has published one of two cells."""
    for name in ("manyseeds", "envs", "algos", "llm_track", "benchmarks", "tests"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", ".gitignore", "README.md"):
        shutil.copy(ROOT / name, folder)
    (folder / "llm_track/README.md").write_text("")
    suite = folder / "benchmarks/experiments/suite.py"
    cells = [
        f'Cell("q_learning", "FrozenLake-v1", 2, settings={{"total_timesteps": 500, "gamma": {x}}})'
        for x in (0.9, 0.8)
    ]
    first = f"SUITES['first'] = ({cells[0]},)\nSUITES['tiny'] = ({', '.join(cells)})\n"
    suite.write_text(suite.read_text() + "\n\n" + first)
    for words in (["init", "-q"], ["add", "-A"], ["commit", "-q", "-m", "x"]):
        identity = ["-c", "user.name=x", "-c", "user.email=x"]
        subprocess.run(["git", *identity, *words], cwd=folder, check=True, capture_output=True)
    run(
        folder, ["benchmarks/sweep.py", "--suite", "first", "--publish", "--workers", "1"], own=True
    )


def language_model(folder: Path) -> None:
    from tests.random_models import make_model

    make_model("qwen2", folder / "m")


PARTS = "**/[!.]*/DONE.json"
CASES = {
    "ppo": Case(f"algos/ppo.py {SMALL} --num-steps 16 --minibatch-size 16 --total-timesteps 160"),
    "dqn": Case(
        f"algos/dqn.py {SMALL} --total-timesteps 240 --train-freq 16 --gradient-steps 2 "
        "--learning-starts 40 --buffer-size 100 --batch-size 8"
    ),
    "q_learning": Case(f"algos/q_learning.py {LAKE} --seeds 3"),
    "value_iteration": Case("algos/value_iteration.py --results r --quiet"),
    "td_prediction": Case(
        "algos/td_prediction.py --total-episodes 40 --seeds 2 --results r --quiet"
    ),
    "sft": Case(
        "llm_track/sft.py --model m --seeds 1 --total-samples 64 --batch-size 16 "
        "--evaluations 1 --results r --quiet",
        language_model,
    ),
    "search": Case(
        "benchmarks/search.py --algo q_learning --env FrozenLake-v1 --total-timesteps 500 "
        "--vary learning_rate=0.1,0.5 --seeds 2 --fresh-seeds 2 --finalists 1 --results r"
    ),
    "merge": Case("benchmarks/merge.py a b --results c", two_stores, parts=PARTS),
    "export": Case(
        "benchmarks/export.py r/runs/FrozenLake-v1/q_learning/RUN --hub hub", trained, "hub"
    ),
    "website": Case("benchmarks/website.py --results r --out site", site_before, "site"),
    "report": Case("benchmarks/report.py --results r", report_before, each="r/**/*.*"),
    "pack": Case("packing.py", packable),
    "sweep": Case(
        "benchmarks/sweep.py --suite tiny --publish --workers 1", checkout, own_process=True
    ),
}


# ---- Running ---------------------------------------------------------------------------------


@dataclass
class Outcome:
    """How a command ended, and what it has said on stderr."""

    status: int
    said: str
    seconds: float = field(default=0.0)


def run(
    folder: Path,
    words: Sequence[str],
    fault: str = "",
    timed: tuple[str, float] | None = None,
    own: bool = False,
) -> Outcome:
    """Run a command in a folder. fault: of `tests.faulty`. timed: a signal, after seconds."""
    words = [name_of_run(folder) if x.endswith("/RUN") else x for x in words]
    began = time.monotonic()
    script = str(folder / words[0]) if (folder / words[0]).exists() else words[0]
    if own:
        outcome = run_own_process(folder, [script, *words[1:]], fault, timed)
    else:
        here = os.getcwd()
        os.chdir(folder)
        try:
            process = Script(script, *words[1:], fault=fault)
        finally:
            os.chdir(here)
        send(process, timed)
        outcome = Outcome(process.wait(), process.stderr)
    outcome.seconds = time.monotonic() - began
    return outcome


def run_own_process(
    folder: Path, words: Sequence[str], fault: str, timed: tuple[str, float] | None
) -> Outcome:
    """Run a command of a copy of the checkout."""
    faulty = ["-m", "tests.faulty", fault] if fault else []
    with tempfile.TemporaryFile() as said:
        process = subprocess.Popen(
            [sys.executable, *faulty, *words],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(folder)},
            stdout=subprocess.DEVNULL,
            stderr=said,
        )
        send(process, timed)
        status = process.wait()
        said.seek(0)
        return Outcome(status, said.read().decode())


def send(process: Any, timed: tuple[str, float] | None) -> None:
    if timed:
        end = time.monotonic() + timed[1]
        while process.poll() is None and time.monotonic() < end:
            time.sleep(0.001)
        if process.poll() is None:
            process.send_signal(signal.Signals[timed[0]])


def name_of_run(folder: Path) -> str:
    (run,) = folder.glob("r/runs/*/*/[!.]*")
    return str(run)


# ---- What it leaves --------------------------------------------------------------------------


def content_of(path: Path) -> Any:
    """What must be equal of a file: all but the clock."""
    content = path.read_bytes()
    if path.suffix == ".parquet":
        frame = pd.read_parquet(io.BytesIO(content)).drop(columns=CLOCK, errors="ignore")
        return frame.to_csv(index=False)
    if path.suffix == ".json" and path.name != "run.json":
        return timeless(json.loads(content))
    return content


def timeless(content: Any) -> Any:
    if isinstance(content, dict):
        return {k: timeless(x) for k, x in content.items() if not k.endswith(SECONDS)}
    if isinstance(content, list):
        return [timeless(x) for x in content]
    if isinstance(content, str) and content[:1] == "{":  # JSON as text in a packed run
        with contextlib.suppress(ValueError):
            return timeless(json.loads(content))
    return content


def tree(folder: Path, pattern: str = "**/*") -> dict[str, Any]:
    """The files below a folder, by path, with what must be equal of them."""
    return {
        str(path.relative_to(folder)): content_of(path)
        for path in sorted(folder.glob(pattern))
        if path.is_file() and not left_out(path.relative_to(folder))
    }


def left_out(path: Path) -> bool:
    """What says nothing of the outcome: a log with times, caches, git's own files, and what is
    being written (see `leftovers`)."""
    if any(x.endswith((".partial", ".former", ".locks")) for x in path.parts):
        return True
    names = {"logs", "__pycache__", ".git", "journal.log", "events.jsonl"}
    return bool(names.intersection(path.parts)) or path.suffix in (".gif", ".log")


def leftovers(folder: Path) -> list[str]:
    """Hidden files and folders, but for those that belong there."""
    known = {".manyseeds-site", ".gitignore", ".git", ".stale"}
    return sorted(
        str(path.relative_to(folder))
        for path in folder.rglob(".*")
        if path.name not in known and ".git" not in path.relative_to(folder).parts
    )


def differences(found: dict[str, Any], right: dict[str, Any]) -> list[str]:
    return [name for name in sorted(found | right) if found.get(name) != right.get(name)]


def faults_of(
    case: Case, work: Path, before: Any, after: Any, outcome: Outcome, how: str
) -> list[str]:
    """What is wrong right after a fault, `how` of ENDS."""
    found = []
    lines = [x for x in outcome.said.splitlines() if not x.startswith("note: ")]
    several = ("failed: ", "left out: ")  # of a merge, a line for each part
    ends = [x for x in lines if not x.startswith(several)]
    if len(ends) > 1 or not all(x.startswith(SAID + several) for x in lines):
        found.append(f"said {outcome.said[-600:]!r}")
    if outcome.status not in (0, *ENDS[how]):
        found.append(f"status {outcome.status}")
    if outcome.status and how != "SIGKILL" and not lines:
        found.append("it ended without a word")
    if case.whole:
        now = tree(work / case.whole)
        if now not in (before, after):
            found.append(f"{case.whole} is neither the old nor the new one")
    if case.each:
        now = tree(work, case.each)
        found += [
            f"{name} is neither the old nor the new one"
            for name, content in now.items()
            if content not in (before.get(name), after.get(name))
        ]
    if case.parts:
        found += [
            f"{part} is half" for part in work.glob(case.parts) if not is_finished(part.parent)
        ]
    return found


def snapshot(case: Case, work: Path) -> Any:
    return tree(work / case.whole) if case.whole else tree(work, case.each) if case.each else {}


# ---- The runner ------------------------------------------------------------------------------


class Prepared:
    """A case with its inputs, and what an undisturbed command leaves."""

    def __init__(self, name: str, folder: Path) -> None:
        self.case, self.name, self.folder = CASES[name], name, folder
        self.words = self.case.command.split()
        self.inputs, self.work = folder / "inputs", folder / "work"
        self.inputs.mkdir(parents=True)
        self.work.mkdir()
        self.case.inputs(self.inputs)
        self.before = snapshot(self.case, self.inputs)
        self.begin()
        log = folder / "events"
        done = run(self.work, self.words, json.dumps({"log": str(log)}), own=self.case.own_process)
        assert done.status == 0, f"{name}: {done.said}"
        self.events = Counter(log.read_text().splitlines())
        self.after, self.right = snapshot(self.case, self.work), tree(self.work)
        assert not leftovers(self.work), leftovers(self.work)
        self.begin()
        self.seconds = run(self.work, self.words, own=self.case.own_process).seconds
        assert not (found := differences(tree(self.work), self.right)), f"{name}: {found} differ"

    def begin(self) -> None:
        shutil.rmtree(self.work)
        shutil.copytree(self.inputs, self.work, symlinks=True)

    def random_fault(
        self, rng: random.Random, faults: Sequence[str]
    ) -> tuple[str, tuple[str, float] | None]:
        """One of some faults at a file event, or a signal of them and when it is sent."""
        if rng.random() < 0.35 and (signals := [x for x in faults if x in SIGNALS]):
            return "", (rng.choice(signals), rng.uniform(0, 1.1 * self.seconds))
        how = rng.choice(faults)
        possible = FULL if how == "ENOSPC" else EVENTS
        event = rng.choice([x for x in possible if self.events[x]])
        return json.dumps(
            {"event": event, "at": rng.randint(1, self.events[event]), "how": how}
        ), None

    def trial(self, rng: random.Random, faults: Sequence[str]) -> tuple[str, list[str]]:
        """Meet a random one of some faults: which, and all that is wrong."""
        self.begin()
        fault, timed = self.random_fault(rng, faults)
        own = self.case.own_process
        outcome = run(self.work, self.words, fault, timed, own)
        how = timed[0] if timed else json.loads(fault)["how"]
        found = faults_of(self.case, self.work, self.before, self.after, outcome, how)
        again = run(self.work, self.words, own=own)
        exists = self.case.whole == "hub" and again.status == 2  # it was written already
        if again.status and not exists:
            found.append(f"again: status {again.status}: {again.said[-300:]}")
        found += [f"{name} differs" for name in differences(tree(self.work), self.right)]
        found += [f"{name} is left" for name in leftovers(self.work)]
        label = f"{timed[0]} after {timed[1]:.2f} s" if timed else fault
        return f"{label}, status {outcome.status}", found


def main(words: Sequence[str] | None = None) -> int:
    """Let faults happen for some minutes; the exit status."""
    assert __doc__
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--count", type=int, default=None, help="faults, instead of minutes")
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--only", default="", help="cases, separated by commas")
    how = ",".join(SIGNALS + ERRORS)
    parser.add_argument("--how", default=how, help=f"faults, of {how}")
    parser.add_argument("--keep", action="store_true", help="keep the folder of what is wrong")
    flags = parser.parse_args(words)
    seed = random.SystemRandom().randrange(10**6) if flags.seed is None else flags.seed
    chosen = [x for x in CASES if not flags.only or x in flags.only.split(",")]
    print(f"seed {seed}, cases {', '.join(chosen)}", flush=True)
    rng, end = random.Random(seed), time.monotonic() + 60 * flags.minutes
    counts, wrong = Counter[str](), 0
    place = Path(tempfile.mkdtemp(prefix="faults-"))
    prepared: dict[str, Prepared] = {}
    while time.monotonic() < end if flags.count is None else sum(counts.values()) < flags.count:
        name = chosen[sum(counts.values()) % len(chosen)]
        if name not in prepared:
            prepared[name] = Prepared(name, place / name)
        label, found = prepared[name].trial(rng, flags.how.split(","))
        counts[name] += 1
        wrong += bool(found)
        print(f"{name}: {label}: {'; '.join(found) if found else 'equal'}", flush=True)
        if found and flags.keep:
            shutil.copytree(prepared[name].work, place / f"wrong-{wrong}", symlinks=True)
            print(f"kept: {place / f'wrong-{wrong}'}")
    if not flags.keep:
        shutil.rmtree(place, ignore_errors=True)
    total = sum(counts.values())
    print(f"{total} faults, {wrong} wrong: {', '.join(f'{n} {x}' for x, n in counts.items())}")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
