"""How commands end: one line and an exit status, whatever happens, and no child is left."""

from __future__ import annotations

from manyseeds.command import (
    BROKEN_PIPE,
    PARENT,
    Interrupted,
    failing_in_one_line,
    last_words,
    watch_parent,
)

import ast
import errno
import math
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from manyseeds import command
from manyseeds.benchmarks.__main__ import module_behind
from manyseeds.digest import ROOT
from manyseeds.errors import UsageError
from manyseeds.process import ENDING


@pytest.mark.parametrize(
    ("error", "text", "status"),
    [
        (UsageError("--seeds 0: must be\nat least 1"), "error: --seeds 0: must be at least 1", 2),
        (KeyboardInterrupt(), "interrupted; again", 130),
        (Interrupted("interrupted at 5"), "interrupted at 5", 130),
        (Interrupted(status=143), "interrupted; again", 143),
        (
            OSError(errno.ENOSPC, "No space left on device", "a/b"),
            "error: a/b: No space left on device",
            1,
        ),
        (OSError("no name"), "error: no name", 1),
        (shutil.Error([("a", "b", "a: is gone")]), "error: a: is gone", 1),
        (MemoryError("cannot"), "error: out of memory: cannot; less", 1),
        (RuntimeError("failed to allocate 3 GB of it"), "tried to allocate 3 GB; less", 1),
    ],
    ids=lambda x: type(x).__name__ if isinstance(x, BaseException) else "",
)
def test_the_last_line_of_a_command(
    error: BaseException, text: str, status: int, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end, failing_in_one_line("; less", "interrupted; again"):
        raise error
    said = capsys.readouterr().err
    assert said.endswith(f"{text}\n")
    assert said.count("\n") == 1
    assert end.value.code == status


def test_a_pipe_to_another_program_is_not_stdout(capfd: pytest.CaptureFixture[str]) -> None:
    """As of an environment whose simulator has ended: that is no silent end."""
    for error in (BrokenPipeError(errno.EPIPE, "Broken pipe"), UsageError("--env x: failed")):
        error.__context__ = BrokenPipeError(errno.EPIPE, "Broken pipe")
        words = last_words(error)
        assert words
        assert words[0].startswith("error: ")


def test_a_command_may_have_no_stdout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", None)
    with failing_in_one_line():
        pass


def test_a_fault_of_this_project_is_a_traceback() -> None:
    assert last_words(KeyError("x")) is None
    with pytest.raises(RuntimeError, match="shapes"), failing_in_one_line():
        raise RuntimeError("shapes")


# In short steps: a signal that comes just before a sleep begins is heeded only after it.
SLOW_IMPORT = """
import time
print("ready", flush=True)
for _ in range(600):
    time.sleep(0.1)
"""


@pytest.mark.parametrize("script", ["benchmarks/website.py", "benchmarks/merge.py"])
def test_an_interrupt_while_modules_are_imported(script: str, tmp_path: Path) -> None:
    (tmp_path / "numpy.py").write_text(SLOW_IMPORT)
    process = subprocess.Popen(
        [sys.executable, str(ROOT / script)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(tmp_path)])},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert (process.returncode, err) == (130, "interrupted\n")


COMMAND = """
import os, signal, subprocess, sys, time
from pathlib import Path
from manyseeds.command import failing_in_one_line

@failing_in_one_line()
def main():
    try:
        print("begun", flush=True)
        for _ in range(600):
            time.sleep(0.1)
            print("more" * 100)
    finally:
        os.kill(os.getpid(), signal.SIGTERM)  # what ends is not disturbed
        time.sleep(0.1)
        Path("cleared").touch()

main()
"""


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, "closed"])
def test_what_a_command_has_begun_is_cleared(how: object, tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", COMMAND],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout
    assert process.stdout.readline() == b"begun\n"
    if isinstance(how, signal.Signals):
        process.send_signal(how)
    process.stdout.close()
    assert process.stderr
    said = process.stderr.read().decode()
    process.stderr.close()
    status = process.wait(timeout=60)
    if isinstance(how, signal.Signals):
        assert (status, said) == (128 + how, "interrupted\n")
        assert (tmp_path / "cleared").exists()
    else:
        assert (status, said) == (BROKEN_PIPE, "")


def test_a_second_sigterm_counts_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python may have dropped what the first one raised."""
    monkeypatch.setattr(command, "_owner", os.getpid())
    monkeypatch.setattr(command, "_asked", -math.inf)
    with pytest.raises(command.Interrupted):
        command.interrupt(signal.SIGTERM, None)
    command.interrupt(signal.SIGTERM, None)
    monkeypatch.setattr(command, "CLEANING_S", -1)
    with pytest.raises(command.Interrupted):
        command.interrupt(signal.SIGTERM, None)


PARENT_OF = """
import subprocess, sys, time
from manyseeds.process import ENDING
sleep = [sys.executable, "-c", "import time; time.sleep(600)"]
print(subprocess.Popen(sleep, **ENDING).pid, flush=True)
time.sleep(600)
"""


@pytest.mark.skipif(not ENDING, reason="of Linux")
def test_a_child_ends_with_its_parent() -> None:
    command = [sys.executable, "-c", PARENT_OF]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, env={**os.environ, "PYTHONPATH": str(ROOT)}) as one:
        assert one.stdout
        child = int(one.stdout.readline())
        one.kill()
    for _ in range(100):
        if not Path(f"/proc/{child}/stat").exists():
            return
        if Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
            return
        time.sleep(0.1)
    pytest.fail("it still runs")


def test_where_a_system_does_not_end_children_they_look_for_their_parent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    parents, ends = iter([7, 7, 7, 1]), list[int]()
    monkeypatch.setenv(PARENT, "7")
    monkeypatch.setattr(os, "getppid", lambda: next(parents))
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    monkeypatch.setattr(os, "_exit", ends.append)
    watch_parent()
    for _ in range(10**6):
        if ends:
            break
    assert ends == [143]
    assert os.environ[PARENT] == str(os.getpid())


def behind(script: Path) -> Path:
    """The file that has the code of a script."""
    if script.parent.name != "benchmarks":
        return script
    return ROOT / f"{module_behind(script).partition('.')[2].replace('.', '/')}.py"


SCRIPTS = [
    behind(path)
    for room in ("algos", "llm_track", "benchmarks")
    for path in sorted((ROOT / room).glob("[a-z]*.py"))
    if '__name__ == "__main__"' in path.read_text()
]


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_every_script_ends_in_one_line(script: Path) -> None:
    """Its `main` is decorated, or that of a kind of run; Ctrl-C is heeded before other imports."""
    body = ast.parse(script.read_text()).body
    imports = [x for x in body if isinstance(x, ast.Import | ast.ImportFrom)]
    assert isinstance(imports[1], ast.ImportFrom)
    assert imports[1].module == "manyseeds.command"
    mains = [x for x in body if isinstance(x, ast.FunctionDef) and x.name == "main"]
    for main in mains:
        assert "failing_in_one_line" in ast.unparse(main.decorator_list[0])
    assert mains or any(
        "manyseeds.runs" in ast.unparse(x) and "main" in ast.unparse(x) for x in imports
    )
