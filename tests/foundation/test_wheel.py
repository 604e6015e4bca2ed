"""The package without a checkout: its command, its prebuilt kernels, and the wheel that has both.

What needs a wheel is run by `make test-wheel`, which makes one, and skipped without.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from manyseeds import ROOMS, kernels
from manyseeds.__main__ import main
from manyseeds.benchmarks.measurements.portable_bits import RECORDED, TIMESTEPS, emulated, stored
from manyseeds.digest import PACKAGE, ROOT, code_digest
from manyseeds.kernels import prebuilt
from tests.binaries import read

ORIGINS = ("manyseeds.algos.ppo:train", "manyseeds.algos.sac:train", "manyseeds.envs.cartpole:*")
SMALL = ("--seeds", "2", "--total-timesteps", "1024", "--eval-budget", "0.1", "--name", "small")
WHEELS = sorted((ROOT / "dist").glob("*.whl"), key=os.path.getmtime)


def run(
    *words: str | Path,
    path: str | Path,
    cwd: Path,
    launcher: Sequence[str] = (sys.executable,),
    **settings: str,
) -> tuple[int, str, str]:
    """Exit status and output of Python with nothing of this checkout on its path."""
    outside = {"PYTHONPATH": str(path), "PYTHONSAFEPATH": "1", **settings}
    done = subprocess.run(
        [*launcher, *words],
        cwd=cwd,
        env={**os.environ, **outside},
        capture_output=True,
        text=True,
    )
    return done.returncode, done.stdout, done.stderr


# ---- The command --------------------------------------------------------------------------------


def typed(monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    """The exit status of the command in this process."""
    monkeypatch.setattr(sys, "argv", [PACKAGE, *words])
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    try:
        main()
    except SystemExit as ended:
        return int(ended.code or 0)
    return 0


def test_all_scripts_have_a_name(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    assert typed(monkeypatch, "--list") == 0
    names = re.findall(r"^  (\S+) ", capsys.readouterr().out, re.M)
    assert len(names) == len(set(names))
    assert {"ppo", "grpo", "llm_track/grpo", "sweep", "sb3_baseline"} <= set(names)


def test_the_version_names_all_folders(
    monkeypatch: pytest.MonkeyPatch, capsys: Any, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", "/some/cache")
    assert typed(monkeypatch, "--version") == 0
    version, results, cache = capsys.readouterr().out.splitlines()
    assert re.fullmatch(rf"{PACKAGE} \d+\.\d+\.\d+", version)
    assert f"results: {tmp_path / 'results' / 'local'}" in results
    assert f"cache: {Path('/some/cache') / 'manyseeds'}" in cache


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["pppo"], "pppo: no such name; did you mean ppo?"),
        (["copy", "ppo"], "copy: needs NAME and FILE, as in manyseeds copy NAME my_own.py"),
        (["copy", "nope", "x.py"], "nope: no such name"),
        (["copy", "ppo", "there.py"], "copy there.py: is there already"),
        (["copy", "ppo", "my-ppo.py"], "copy my-ppo.py: must be the name of a Python file"),
        (["copy", "ppo", "none/x.py"], "none"),
    ],
)
def test_mistakes_are_one_line(
    words: list[str], said: str, monkeypatch: pytest.MonkeyPatch, capsys: Any, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there.py").touch()
    assert typed(monkeypatch, *words) == (1 if words[-1] == "none/x.py" else 2)
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: ")
    assert said in err
    assert err.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["there.py"]


# ---- Installed ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package as a folder of libraries has it, the rooms within; beside it another library."""
    site = tmp_path_factory.mktemp("env") / "lib" / "site-packages"
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / PACKAGE, site / PACKAGE, ignore=ignored)
    for room in ROOMS:
        shutil.copytree(ROOT / room, site / PACKAGE / room, ignore=ignored)
    (site / "envs").mkdir()  # has the name of a room
    (site / "envs" / "__init__.py").write_text("raise ImportError('another library')\n")
    return site


def test_an_installed_package_has_the_digests_of_the_checkout(
    installed: Path, tmp_path: Path
) -> None:
    """And follows no library beside it, whatever its name."""
    program = (
        "import json, sys, torch, manyseeds; from manyseeds import digest, envs;"
        "print(json.dumps([manyseeds.__file__, *map(digest.code_digest, zip(sys.argv[1:])),"
        "digest.is_library(envs), digest.in_project('envs', digest.ROOT)]))"
    )
    status, out, err = run("-c", program, *ORIGINS, path=installed, cwd=tmp_path)
    assert (status, err) == (0, "")
    file, *digests, ours_is_library, beside = json.loads(out)
    assert Path(file).parent == installed / PACKAGE
    assert digests == [code_digest([origin]) for origin in ORIGINS]
    assert not ours_is_library
    assert not beside


def weights(results: Path) -> list[str]:
    """The SHA-256 of each seed's weights, of the only run that is not stale."""
    (summary,) = results.glob("results/local/runs/*/*/small/seeds-*/summary.json")
    return list(json.loads(summary.read_text())["weights_sha256"].values())


def test_a_copy_is_edited_and_run_from_another_folder(installed: Path, tmp_path: Path) -> None:
    """Unedited it trains to the bits of the original; an edit counts at once, with a line."""
    for name in ("original", "own"):
        (tmp_path / name).mkdir()
    there = {"path": installed, "cwd": tmp_path / "own"}
    status, out, err = run("-m", PACKAGE, "copy", "ppo", "my_ppo.py", **there)
    assert (status, err) == (0, "")
    assert run("my_ppo.py", *SMALL, **there)[::2] == (0, "")
    script = ("-m", PACKAGE, "ppo", *SMALL)
    assert run(*script, path=installed, cwd=tmp_path / "original")[::2] == (0, "")
    unedited = weights(tmp_path / "own")
    assert unedited == weights(tmp_path / "original")
    file = tmp_path / "own" / "my_ppo.py"
    text = file.read_text()
    assert "python my_ppo.py" in text
    edited = text.replace("torch.minimum(ratio * advantages, clipped * advantages)", "(ratio * 0)")
    assert edited != text
    file.write_text(edited)
    status, out, err = run("my_ppo.py", *SMALL, **there)
    assert status == 0
    assert "policy_loss of my_ppo.py was changed: PyTorch computes this now, not C" in err
    assert len({*unedited, *weights(tmp_path / "own")}) == 4


def test_an_edited_copy_is_judged_against_its_original(installed: Path, tmp_path: Path) -> None:
    there = {"path": installed, "cwd": tmp_path}
    assert run("-m", PACKAGE, "copy", "ppo", "my_ppo.py", **there)[::2] == (0, "")
    file = tmp_path / "my_ppo.py"
    file.write_text(file.read_text().replace("-torch.minimum(ratio *", "torch.minimum(ratio *"))
    words = ("my_ppo.py", "--envs", "CartPole-v1", "--timesteps", "4096")
    status, out, err = run("-m", PACKAGE, "judge", *words, **there)
    assert status == 0, err
    assert "changed: policy_loss (against algos/ppo.py)" in out
    assert "over all: worse" in out


def test_help_is_typed_as_it_is_installed(installed: Path, tmp_path: Path) -> None:
    status, out, err = run("-m", PACKAGE, "sac", "--help", path=installed, cwd=tmp_path)
    assert (status, err) == (0, "")
    assert out.startswith("usage: manyseeds sac [flags]")
    assert "manyseeds sac --env Pendulum-v1" in out
    assert "python" not in out


# ---- Which library is taken ---------------------------------------------------------------------


@pytest.fixture
def ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of libraries for this machine, which one source that says 42 was made into."""
    compiler = shutil.which("gcc") or shutil.which("clang") or shutil.which("cc")
    if compiler is None:
        pytest.skip("needs a C compiler")
    source, folder = tmp_path / "answer.c", tmp_path / "prebuilt"
    folder.mkdir()
    source.write_text("int answer(void) { return 42; }\n")
    build = prebuilt.usable()[0]
    made = ["-shared", "-fPIC", str(source), "-o", str(folder / build.library)]
    subprocess.run([compiler, *made], check=True)
    made_of = {"compiler": "zig", "flags": ["-O3"], "sources": prebuilt.digest_of([source])}
    (folder / prebuilt.MADE_OF).write_text(json.dumps(made_of))
    monkeypatch.setattr(prebuilt, "FOLDER", folder)
    monkeypatch.setattr(kernels, "sources", lambda: [source])
    monkeypatch.setattr(kernels, "declare", lambda functions: None)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("CC", raising=False)
    kernels.library.cache_clear()
    yield folder
    monkeypatch.undo()
    kernels.library.cache_clear()


def compiler_of() -> str:
    kernels.library.cache_clear()
    library = kernels.library()
    assert library is not None
    assert library.functions.answer() == 42
    return library.build.compiler


def test_a_prebuilt_library_is_taken_without_a_compiler(
    ours: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "")
    assert compiler_of() == "zig"
    assert not (ours.parent / "cache").exists()
    monkeypatch.setenv("CC", "")  # the wish for no C
    kernels.library.cache_clear()
    assert kernels.library() is None


@pytest.mark.parametrize("why", ["edited", "broken", "another CPU", "CC", "none"])
def test_otherwise_it_is_built_from_source(
    why: str, ours: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if why == "edited":
        (ours.parent / "answer.c").write_text("int answer(void) { return 40 + 2; }\n")
    elif why == "broken":
        (ours / prebuilt.usable()[0].library).write_text("no library")
    elif why == "another CPU":
        monkeypatch.setattr(prebuilt.platform, "machine", lambda: "riscv64")
    elif why == "CC":
        monkeypatch.setenv("CC", shutil.which("gcc") or shutil.which("clang") or "cc")
    else:
        shutil.rmtree(ours)
    assert compiler_of() not in ("zig", "")


def test_the_instructions_of_the_cpu_choose(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    monkeypatch.setattr(sys, "platform", "win32")
    monkeypatch.setattr(prebuilt.platform, "machine", lambda: "AMD64")
    for capability, names in {
        "AVX512": ["windows-avx512.dll", "windows-avx2.dll"],
        "AVX2": ["windows-avx2.dll"],
        "DEFAULT": [],
    }.items():
        monkeypatch.setattr(
            torch.backends.cpu, "get_cpu_capability", lambda found=capability: found
        )
        assert [build.library for build in prebuilt.usable()] == names


# ---- The wheel ----------------------------------------------------------------------------------


def setup_module_of_wheels() -> Any:
    """setup.py, without its setup()."""
    pytest.importorskip("setuptools")
    spec = importlib.util.spec_from_file_location("setup_of_wheels", ROOT / "setup.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_wheel_is_built_of_all_c_code_with_the_flags_of_all_builds() -> None:
    setup = setup_module_of_wheels()
    assert setup.sources() == kernels.sources()
    assert setup.flags() == [*kernels.FLAGS, "-fopenmp"]
    assert "prebuilt" not in sys.modules or sys.modules["prebuilt"] is not prebuilt
    text = (ROOT / "manyseeds" / "kernels" / "prebuilt.py").read_text()
    assert not re.search(r"^(from|import) (torch|numpy|manyseeds)", text, re.M)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that the newest wheel of dist/ is unpacked to, if it was made of this C code."""
    if not WHEELS:
        pytest.skip("no wheel: make wheel")
    site = tmp_path_factory.mktemp("wheel") / "site-packages"
    with zipfile.ZipFile(WHEELS[-1]) as archive:
        archive.extractall(site)
    made_of = json.loads((site / PACKAGE / "kernels/prebuilt" / prebuilt.MADE_OF).read_text())
    if made_of["sources"] != prebuilt.digest_of(kernels.sources()):
        pytest.skip("the wheel in dist is of other C code: make wheel")
    return site


def test_a_wheel_has_every_file_of_the_rooms(wheel: Path) -> None:
    rooms = {room: f"{PACKAGE}/{room}" for room in ROOMS} | {PACKAGE: PACKAGE}
    for room, within in rooms.items():
        for file in (ROOT / room).rglob("*.*"):
            if file.suffix in (".py", ".c", ".h", ".toml") and file.parent != prebuilt.FOLDER:
                there = wheel / within / file.relative_to(ROOT / room)
                assert there.is_file(), there
                assert there.read_bytes() == file.read_bytes(), there
    names = (wheel / next(wheel.glob("*.dist-info")) / "entry_points.txt").read_text()
    assert "manyseeds = manyseeds.__main__:main" in names


def called() -> set[str]:
    """The functions and data of C that Python asks for by name."""
    text = "\n".join(path.read_text() for path in kernels.sources())
    found = {*re.findall(r"^int (\w+)\(const struct \1 \*", text, re.M)}
    found |= {*re.findall(r"^const environment (\w+)", text, re.M)}
    by_hand = "instructions mlp_forward mlp_backward mlp_tangent categorical categorical_backward"
    assert len(found) > 30
    return found | {*by_hand.split()}


LIBC = {  # what every machine of a system has
    "linux": r"(libc|libm|libpthread|ld-linux-x86-64)\.so\.\d",
    "darwin": r"/usr/lib/libSystem\.B\.dylib",
    "win32": r"KERNEL32\.dll|api-ms-win-crt-\w+-l1-1-0\.dll",
}
INSTRUCTIONS = {"AVX512": b"AVX-512\0", "AVX2": b"AVX2\0", "": b"NEON\0"}


@pytest.mark.parametrize("build", prebuilt.BUILDS, ids=lambda build: build.library)
def test_each_library_has_what_its_system_wants(build: prebuilt.Build, wheel: Path) -> None:
    content = (wheel / PACKAGE / "kernels/prebuilt" / build.library).read_bytes()
    binary = read(content)
    assert (binary.system, binary.machine) == (build.system, build.machine)
    assert called() <= binary.exports
    assert not [name for name in binary.exports if name.startswith("__kmpc")]
    for library in binary.libraries:
        assert re.fullmatch(LIBC[build.system], library), library
    code = binary.sections.get(".text") or binary.sections["__text"]
    assert 100_000 < code < 1_000_000
    assert not [name for name in binary.sections if "debug" in name]
    assert INSTRUCTIONS[build.capability] in content
    assert b"/home/" not in content
    assert str(ROOT).encode() not in content
    if build.system == "linux":  # 2.28: of manylinux_2_28, as PyTorch
        assert all(tuple(map(int, x[6:].split("."))) <= (2, 28) for x in binary.versions)
    if build.system == "darwin":
        assert binary.versions == {"11.0"}
        assert binary.signed or build.machine != "arm64"  # it loads nothing else


# What a process with the wheel alone trains.
TRAIN = """
import json, sys
from manyseeds import kernels
from manyseeds.benchmarks.measurements.portable_bits import TIMESTEPS, WAYS, train
found = {name: train(name, TIMESTEPS, WAYS[sys.argv[1]]) for name in sys.argv[2:]}
print(json.dumps([kernels.execution(), found]))
"""
FEW = ("ppo CartPole-v1", "sac Pendulum-v1")


def trained(
    path: str | Path,
    folder: Path,
    way: str,
    launcher: Sequence[str] = (sys.executable,),
    **settings: str,
) -> tuple[Any, Any]:
    """What computed, and the digests of trainings without a compiler. path: of Python's modules."""
    # An absolute path of qemu: PATH is empty.
    python = [str(shutil.which(launcher[0])), *launcher[1:]]
    empty = {"PATH": "", "XDG_CACHE_HOME": str(folder / "cache")}
    words = ("-c", TRAIN, way, *FEW)
    status, out, err = run(*words, path=path, cwd=folder, launcher=python, **empty, **settings)
    assert (status, err) == (0, "")
    assert not (folder / "cache" / "manyseeds").exists()
    execution, found = json.loads(out.splitlines()[-1])
    return execution, found


def assert_stored(found: Any) -> None:
    """Seeds have the digests of all compilers; those of some seeds are stored."""
    for name, digests in found.items():
        recorded = stored(TIMESTEPS)[name]
        assert digests.keys() == recorded.keys()
        for part, own in digests.items():
            both = list(zip(own, recorded[part], strict=False))
            assert both
            assert all(one == other for one, other in both), (name, part)


@pytest.mark.parametrize("capability", ["avx512", "avx2", ""])
@pytest.mark.parametrize("way", [RECORDED, "2 threads"])
def test_a_wheel_trains_to_the_stored_bits_without_a_compiler(
    capability: str, way: str, wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each library that this CPU can run; the digests are those of all compilers."""
    own = {build.capability.lower() for build in prebuilt.usable()}
    if capability not in own:
        pytest.skip("not for this CPU")
    settings = {"ATEN_CPU_CAPABILITY": capability} if capability else {}
    execution, found = trained(wheel, tmp_path, way, **settings)
    assert execution["compiler"].startswith("zig cc")
    assert execution["instructions"].lower().replace("-", "") == (capability or "neon")
    assert_stored(found)


@pytest.mark.slow
def test_the_library_for_arm64_trains_to_the_stored_bits(wheel: Path, tmp_path: Path) -> None:
    """Under qemu, with the Python and the PyTorch of `make check-arm64`."""
    build = emulated(ROOT / "build" / "arm64")
    if not shutil.which(build.launcher[0]) or not (ROOT / "build/arm64/.installed").exists():
        pytest.skip("needs qemu-user-static and build/arm64: make check-arm64")
    path = os.pathsep.join([str(wheel), str(ROOT / "build/arm64/site")])
    execution, found = trained(path, tmp_path, RECORDED, build.launcher)
    assert execution["instructions"] == "NEON"
    assert_stored(found)
