"""What plants a bug in a copy of the project and runs the test that must notice."""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import subprocess
import sys
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from manyseeds import PROBES, ROOMS, digest
from manyseeds.kernels.guard import C_CODE, Walk

ROOT = Path(__file__).resolve().parents[2]
KNOWN = "manyseeds/kernels/known.json"


@dataclass(frozen=True)
class Bug:
    """One edit that breaks the project, and the fast test that must notice."""

    name: str
    file: str
    right: str  # stands in the file exactly once
    wrong: str
    test: str  # file::function, perhaps with [parameters]


def bugs_in(file: Path) -> tuple[Bug, ...]:
    """The bugs of a chapter."""
    return tuple(Bug(**bug) for bug in tomllib.loads(file.read_text())["bug"])


def planted(bug: Bug, folder: Path) -> str:
    """The file with the bug; raises ValueError where the right text is not there exactly once."""
    text = (folder / bug.file).read_text()
    if text.count(bug.right) != 1:
        raise ValueError(f"{bug.name}: {bug.file} has the text {text.count(bug.right)} times")
    return text.replace(bug.right, bug.wrong)


# A line names tests. They run in a fork of a process that has imported what is slow to import and
# not ours, which takes a fraction of a second where a process of its own takes several.
SERVER = """
import gc, os, signal, sys
import gymnasium, hypothesis, jinja2, numpy, pandas, pytest, rich.progress, safetensors.torch
import scipy.stats, torch, tyro
try:
    from transformers import GPT2LMHeadModel, LlamaForCausalLM, Qwen2ForCausalLM
except ImportError:  # an extra
    pass
gc.freeze()  # no child looks through all that
for line in sys.stdin:
    child = os.fork()
    if child == 0:
        tests = line.rstrip("\\n").split("\\t")
        signal.alarm(300 * len(tests))  # a bug may keep a training from ending
        output = os.open("output.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(output, 1), os.dup2(output, 2)
        status = pytest.main(["-q", "-x", "-p", "no:cacheprovider", *tests])
        sys.stdout.flush()
        os._exit(status)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


class Copy:
    """The code and its tests, without results, in an empty folder; and a process to run them in."""

    def __init__(self, folder: Path) -> None:
        for name in ("manyseeds", *ROOMS, PROBES, "examples", "tests"):
            ignore = shutil.ignore_patterns("__pycache__")
            shutil.copytree(ROOT / name, folder / name, ignore=ignore)
        shutil.copy(ROOT / "pyproject.toml", folder)
        self.folder = folder
        self.green: set[str] = set()  # tests that have passed without a bug
        self.clock = itertools.count(10**9)
        self.server = subprocess.Popen(
            [sys.executable, "-c", SERVER],
            cwd=folder,
            env={
                **os.environ,
                "PYTHONPATH": str(folder),
                "PYTHONDONTWRITEBYTECODE": "",  # what no bug changes is compiled once
                "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
            },
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> Copy:
        return self

    def __exit__(self, *args: object) -> None:
        self.server.communicate()  # the end of its input is its end

    def passes(self, *tests: str) -> bool:
        """Whether all tests pass in the copy as it is; RuntimeError if one cannot be run."""
        assert self.server.stdin
        assert self.server.stdout
        print(*tests, sep="\t", file=self.server.stdin, flush=True)
        status = int(self.server.stdout.readline())
        # C that reads beyond an array or divides by 0 may end so, or give a wrong number.
        if status in (-signal.SIGSEGV, -signal.SIGFPE):
            return False
        if status not in (0, 1):  # not even collected, or it took too long
            output = (self.folder / "output.txt").read_text()
            raise RuntimeError(f"{' '.join(tests)}: status {status}\n{output}")
        return status == 0

    def write(self, file: str, text: str) -> None:
        """Change a file, and its time of change to one that no bytecode was ever compiled at."""
        (self.folder / file).write_text(text)
        now = next(self.clock)
        os.utime(self.folder / file, (now, now))

    def turn_green(self, bugs: Iterable[Bug]) -> None:
        """Run the tests of bugs without the bugs, in one go where they pass."""
        tests = sorted({bug.test for bug in bugs} - self.green)
        if tests and self.passes(*tests):
            self.green.update(tests)

    def turns_red(self, bug: Bug) -> bool:
        """Whether the test fails with the bug and passes without it."""
        self.turn_green([bug])
        if bug.test not in self.green:
            return False
        original = {file: (self.folder / file).read_text() for file in (bug.file, KNOWN)}
        try:
            before = self.c_digest(bug.file)
            self.write(bug.file, planted(bug, self.folder))
            # C that was edited does not run, so the bug's has to count as compared with the Python.
            if bug.file != KNOWN and before:
                known = original[KNOWN].replace(before, self.c_digest(bug.file))
                self.write(KNOWN, known)
            return not self.passes(bug.test)
        finally:
            for file, text in original.items():
                self.write(file, text)

    def c_digest(self, file: str) -> str:
        """How known.json names the text of C code; empty for another file."""
        path = self.folder / file
        if path.suffix not in (".c", ".h"):
            return ""
        digest.forget()
        walk = Walk()
        walk.add(C_CODE, digest.c_texts(path, self.folder)[path])
        return next(iter(walk.found))
