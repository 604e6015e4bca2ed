"""Building the C code: whatever the machine has, training works, and one line says what is missing.

Most build a small library of their own, which takes a twentieth of a second.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import platform
import shutil
import stat
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path

import pytest
import torch

from manyseeds import kernels
from manyseeds.algos import ppo
from manyseeds.runs.control import Run
from tests.planted_bugs.planting import ROOT


@pytest.fixture(autouse=True)
def _caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Libraries are kept in a folder of the test; what this process has loaded is forgotten."""
    before = kernels.library()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(kernels, "_used", False)
    monkeypatch.delenv("CC", raising=False)
    kernels.library.cache_clear()
    yield
    monkeypatch.undo()
    kernels.library.cache_clear()
    assert (kernels.library() is None) == (before is None)


needs_compiler = pytest.mark.skipif(
    not any(shutil.which(name) for name in ("cc", "gcc", "clang")), reason="needs a C compiler"
)


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """All C that there is."""
    path = tmp_path / "answer.c"
    path.write_text("int answer(void) { return 42; }\n")
    monkeypatch.setattr(kernels, "sources", lambda: [path])
    monkeypatch.setattr(kernels, "declare", lambda functions: None)
    return path


def built() -> kernels.SharedLibrary | None:
    """The library, as a new process gets it."""
    kernels.library.cache_clear()
    return kernels.library()


def answer(library: kernels.SharedLibrary | None) -> int:
    assert library is not None
    return int(library.functions.answer())


def train() -> dict[str, torch.Tensor]:
    config = ppo.Config(quiet=True, total_timesteps=512, num_envs=4, num_steps=64, epochs=1)
    return ppo.train(config, Run(config, [0, 1])).state_dict()


def script(path: Path, text: str) -> str:
    """A compiler that is a shell script."""
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def lines(capsys: pytest.CaptureFixture[str]) -> list[str]:
    """What was said on stderr."""
    return capsys.readouterr().err.splitlines()


# ---- Without a compiler -------------------------------------------------------------------

SPEAKS = 'case "$*" in *--version*) echo "cc 1"; exit 0;; esac'
BROKEN: dict[str, str] = {  # of CC
    "fails": "false",
    "does not exist": "/no/such/compiler",
    "does nothing": "true",
    "quotation marks": "gcc '-O1",
    "says why": f'{SPEAKS}; echo "x.c:1: error: no luck" >&2; echo "error: again" >&2; exit 1',
    "babbles": r'printf "\377\376 error \200" >&2; printf "\377\n\377"; exit 1',
    "writes rubbish": f"{SPEAKS}; "
    'while [ "$1" != -o ]; do shift; done; printf "\\377\\376" > "$2"; printf "\\377"',
    "kills itself": f"{SPEAKS}; kill -9 $$",
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_compiler_is_one_line(
    case: str,
    tmp_path: Path,
    source: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Nothing of it is kept: a compiler that was repaired is asked again."""
    cc = script(tmp_path / "cc", BROKEN[case]) if ";" in BROKEN[case] else BROKEN[case]
    monkeypatch.setenv("CC", cc)
    assert built() is None
    (line,) = lines(capsys)
    assert line.startswith("note: ")
    assert line.endswith("; without kernels in C training takes several times as long")
    assert cc in line
    assert ("no luck" in line) == (case == "says why")
    assert "again" not in line
    assert not [path for path in tmp_path.rglob("*") if path.suffix == ".so"]


def test_training_without_kernels(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Says so once, learns the same with PyTorch's operations, and records it."""
    monkeypatch.setenv("CC", "false")
    with_torch = train()
    (line,) = lines(capsys)
    assert "false" in line
    assert kernels.execution() == "torch"
    kernels.library.cache_clear()
    monkeypatch.setenv("CC", "")  # the wish to have none: no line
    for name, x in train().items():
        assert torch.equal(x, with_torch[name])
    assert lines(capsys) == []


def test_no_compiler_at_all(
    source: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setenv("PATH", "")
    assert built() is None
    (line,) = lines(capsys)
    assert "no C compiler (cc, gcc or clang" in line


@pytest.mark.parametrize("speaks", [True, False])
def test_a_compiler_that_hangs_is_asked_once(
    speaks: bool,
    tmp_path: Path,
    source: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Not once more for every set of flags: two minutes are enough."""
    log = tmp_path / "log"
    text = f"{SPEAKS if speaks else ':'}; echo called >> {log}; exec sleep 60"
    monkeypatch.setenv("CC", script(tmp_path / "cc", text))
    monkeypatch.setattr(kernels, "TIMEOUT", 0.3)
    assert built() is None
    assert log.read_text() == "called\n"
    (line,) = lines(capsys)
    assert "timed out" in line


@needs_compiler
def test_the_next_flags_and_the_next_compiler(
    tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A compiler without OpenMP does without it; where one is broken, another is taken."""
    real = shutil.which("gcc") or shutil.which("clang") or shutil.which("cc")
    script(tmp_path / "cc", "exit 1")
    no_openmp = f'case "$*" in *-fopenmp*) echo "error: none" >&2; exit 1;; esac; exec {real} "$@"'
    script(tmp_path / "gcc", no_openmp)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    library = built()
    assert answer(library) == 42
    assert library is not None
    assert "-fopenmp" not in library.build.flags
    assert len(library.build.compiler) > 3


# ---- Libraries that are kept --------------------------------------------------------------


def kept(tmp_path: Path) -> list[Path]:
    """All libraries and what a build leaves behind."""
    folders = [tmp_path / "cache/manyseeds", *tmp_path.glob("manyseeds-*")]
    found = [path for folder in folders if folder.is_dir() for path in folder.iterdir()]
    return [x for x in found if x.suffix != ".o" or x.name.startswith(".")]  # objects stay, too


@needs_compiler
def test_a_library_is_built_once(
    tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert answer(built()) == 42
    (folder,) = kept(tmp_path)
    calls: list[object] = []
    run = kernels.run
    monkeypatch.setattr(kernels, "run", lambda command: (calls.append(command), run(command))[1])
    assert answer(built()) == 42
    assert [command[1:] for command in calls] == [["--version"]]  # type: ignore[index]
    assert kept(tmp_path) == [folder]
    monkeypatch.setattr(kernels, "cpu", lambda: ["another machine of a cluster"])
    assert answer(built()) == 42
    assert len(kept(tmp_path)) == 2


@needs_compiler
def test_flags_in_cc(tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stand in the record, and make another library."""
    source.write_text("int answer(void) { return ANSWER; }\n")
    for number in (1, 2):
        monkeypatch.setenv("CC", f"gcc -O1 -DANSWER={number}")
        library = built()
        assert answer(library) == number
        assert library is not None
        assert library.build.flags.startswith(f"-O1 -DANSWER={number} -std=gnu11")
        assert "native" in library.build.flags
    cpu = "-march=x86-64" if platform.machine() == "x86_64" else "-mcpu=generic"
    monkeypatch.setenv("CC", f"gcc {cpu} -DANSWER=2")
    named = built()
    assert answer(named) == 2
    assert named is not None
    assert "native" not in named.build.flags
    assert len(kept(tmp_path)) == 3


@needs_compiler
@pytest.mark.parametrize("how", ["a bit", "truncated", "empty", "no checksum", "gone"])
def test_a_corrupt_library_is_built_anew(how: str, tmp_path: Path, source: Path) -> None:
    assert answer(built()) == 42
    (folder,) = kept(tmp_path)
    library = folder / "library.so"
    content = library.read_bytes()
    library.unlink()  # this process has the old one mapped
    middle = len(content) // 2
    flipped = content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]
    broken = {"a bit": flipped, "truncated": content[:-100], "empty": b"", "no checksum": content}
    if how in broken:
        library.write_bytes(broken[how])
    if how == "no checksum":
        (folder / "sha256").unlink()
    assert answer(built()) == 42
    assert kept(tmp_path) == [folder]
    assert library.read_bytes() == content
    assert kernels.is_whole(folder)


@needs_compiler
def test_a_cache_that_cannot_be_written(
    tmp_path: Path,
    source: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A temporary folder takes its place; without that, too, a line says so."""
    file = tmp_path / "file"
    file.touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(file))
    assert answer(built()) == 42
    assert kept(tmp_path)[0].parent.name == f"manyseeds-{os.getuid()}"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.delenv("HOME")

    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", no_home)
    assert answer(built()) == 42
    assert lines(capsys) == []
    monkeypatch.setattr(kernels, "places", lambda: [file / "no folder"])
    assert built() is None
    (line,) = lines(capsys)
    assert "no folder can be written" in line


@needs_compiler
def test_another_users_library_is_not_loaded(
    tmp_path: Path,
    source: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Neither one in this user's cache nor any in a folder that is another's."""
    assert answer(built()) == 42
    (folder,) = kept(tmp_path)
    assert kernels.is_whole(folder)
    me = os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: me + 1)
    assert not kernels.is_whole(folder)
    (tmp_path / f"manyseeds-{me + 1}").mkdir()  # by somebody who expects this user
    assert built() is None
    assert kept(tmp_path) == [folder]
    (line,) = lines(capsys)
    assert "no folder" in line


@needs_compiler
def test_builds_at_once(tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first one stays, all load it, and nothing is left behind."""
    command = [shutil.which("gcc") or "cc", *kernels.FLAGS]
    for corrupt in (False, True):
        with ThreadPoolExecutor(4) as pool:
            found = list(pool.map(lambda _: kernels.kept([source], command, ""), range(4)))
        assert len(set(found)) == 1
        assert ctypes.CDLL(str(found[0])).answer() == 42
        assert kept(tmp_path) == [found[0].parent]
        if not corrupt:
            (found[0].parent / "sha256").write_text("")


def test_the_cpu_is_part_of_the_key() -> None:
    """Its instructions at least: a library of one would be killed on another."""
    found = kernels.cpu()
    if Path("/proc/cpuinfo").exists() and found[0] in ("x86_64", "aarch64"):
        assert any(line.startswith(("flags", "Features")) for line in found)
        assert len(found) < 12


# ---- Sanitizers and other instructions ----------------------------------------------------

# -O1 compiles in a fifth of the time. It stands last, where it wins over our own -O3.
SANITIZED = """unset LD_PRELOAD
exec gcc "$@" -O1 -fsanitize=address,undefined -fno-sanitize-recover -g {}"""
VECTORS = [  # what uses networks, language models and optimizers
    "foundation/test_kernels.py",
    "foundation/test_llama.py",
    "envs/test_rollout.py",
    *(f"algos/test_{name}.py" for name in ("objective", "episode_updates", "dqn", "trpo", "pqn")),
]
TESTS = [
    *VECTORS,
    "envs/test_kernels.py",
    "envs/test_envs.py::test_episode_tracker_is_the_slow_loop",
    "foundation/test_layers.py",
]
SANITIZED_FILES = sorted(
    [str(file.relative_to(ROOT)) for file in kernels.sources()]
    + [str(file.relative_to(ROOT)) for file in kernels.HERE.glob("*.h")]
    + [f"tests/{name.partition('::')[0]}" for name in TESTS]
)


def sanitized(folder: Path, *command: str, less: str = "") -> tuple[int, str]:
    """A Python's exit status and output, with libraries that check what they do.

    folder: for the compiler. less: instructions that it shall not use.
    """
    files = []  # PyTorch throws exceptions, which libasan passes on to libstdc++
    for name in ("libasan.so", "libstdc++.so.6"):
        asked = ["gcc", f"-print-file-name={name}"]
        try:
            found = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()
        except (OSError, subprocess.CalledProcessError):
            found = ""
        if not Path(found).is_absolute():
            pytest.skip(f"no gcc with {name}")
        files.append(found)
    cc = script(folder / "sanitizing-gcc", SANITIZED.format(less))
    settings = {"LD_PRELOAD": " ".join(files), "ASAN_OPTIONS": "detect_leaks=0", "CC": cc}
    done = subprocess.run(
        [sys.executable, *command],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), **settings},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=560,
        check=False,
    )
    return done.returncode, done.stdout


@pytest.mark.slow
@pytest.mark.verified(*SANITIZED_FILES)
@pytest.mark.parametrize("less", ["", "-mno-avx512f"])
def test_no_sanitizer_reports_anything(tmp_path: Path, less: str) -> None:
    """Addresses and undefined behaviour; vectors of each width that this CPU has."""
    tests = [f"tests/{name}" for name in (VECTORS if less else TESTS)]
    options = ["-q", "-x", "-s", "-p", "no:cacheprovider"]
    status, output = sanitized(tmp_path, "-m", "pytest", *options, *tests, less=less)
    assert status == 0, output
    assert "skipped" not in output
    assert "runtime error" not in output
    assert "AddressSanitizer" not in output


@pytest.mark.slow
@pytest.mark.skipif(platform.machine() != "x86_64", reason="names instructions of x86")
def test_every_build_computes_language_models_to_the_same_bits(tmp_path: Path) -> None:
    """By both compilers, with and without AVX-512."""
    program = "import sys, torch; from tests.foundation.test_llama import trained; "
    program += "torch.save(trained(), sys.argv[1]); "
    program += "from manyseeds import kernels; print(kernels.execution()['instructions'])"
    compilers = [name for name in ("gcc", "clang") if shutil.which(name)]
    found, instructions = [], set()
    for compiler, cpu in product(compilers, ("native", "haswell")):
        settings = {"CC": f"{compiler} -march={cpu}", "PYTHONPATH": str(ROOT)}
        done = subprocess.run(
            [sys.executable, "-c", program, str(tmp_path / "found")],
            cwd=ROOT,
            env={**os.environ, **settings},
            capture_output=True,
            text=True,
            check=True,
        )
        instructions.add(done.stdout.strip())
        found.append(torch.load(tmp_path / "found"))
    assert "AVX2" in instructions
    for other in found[1:]:
        assert all(torch.equal(x, y) for x, y in zip(other, found[0], strict=True))


@pytest.mark.slow
def test_a_sanitizer_would_report_something(tmp_path: Path, source: Path) -> None:
    """Otherwise the test above could not fail."""
    source.write_text("#include <stdlib.h>\nint answer(int n) { return ((int *)malloc(4))[n]; }\n")
    program = "from pathlib import Path; from manyseeds import kernels; "
    program += f"print(kernels.load_library([Path({str(source)!r})]).functions.answer(%d))"
    status, output = sanitized(tmp_path, "-c", program % 0)
    assert status == 0, output
    status, output = sanitized(tmp_path, "-c", program % 1)
    assert status != 0
    assert "runtime error" in output


def test_what_is_read_at_run_time_is_in_a_wheel() -> None:
    """The C code, and what the kernels stand for."""
    tools = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]
    data = tools["setuptools"]["package-data"]
    for room in ("manyseeds", "envs", "algos/kernels"):
        for file in (ROOT / room).rglob("*.*"):
            package = ".".join(file.parent.relative_to(ROOT).parts)
            patterns = [*data["*"], *data.get(package, []), "*.py", "*.pyc"]
            assert any(file.match(pattern) for pattern in patterns), file
