"""What is computed in C on a CPU: built at first use by the machine's compiler, and kept.

The library holds the C of this folder and of the rooms above it. It is kept in a folder that is
named after the sources, the compiler, the flags and the CPU. The numbers depend on none but the
sources. Where none can be built, PyTorch's own operations compute the same up to rounding, several
times as slowly, and one line says so. The environment variable CC names a compiler, and with
`-march=` or `-mcpu=` the CPU that it compiles for; with `CC=` nothing is built.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import importlib.util
import inspect
import json
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from functools import cache
from pathlib import Path
from typing import Any, Literal, NamedTuple, ParamSpec, TypeVar

import torch
from torch import Tensor

from manyseeds import CHECKOUT, ROOMS
from manyseeds.errors import UsageError
from manyseeds.kernels import prebuilt
from manyseeds.kernels.binding import CannotTake, Kernel
from manyseeds.kernels.guard import Guard, say

P = ParamSpec("P")
R = TypeVar("R")

HERE = Path(__file__).parent
# Nothing is left to the compiler: the order of operations, where a product and a sum are rounded
# once, and NaN are what the sources say.
FLAGS = (
    "-std=gnu11",
    "-O3",
    "-fno-fast-math",
    "-ffp-contract=off",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-fPIC",
)
# What not every compiler has; the first that works is taken.
EXTRA = (("-march=native", "-fopenmp"), ("-march=native",), ("-mcpu=native",), ())
EXTRA_FOR_A_CPU = (("-fopenmp",), ())  # where CC names one
TIMEOUT = 120  # seconds for a compiler


class Build(NamedTuple):
    """What a library was built by: stands in the record of a run's execution."""

    compiler: str
    flags: str


class SharedLibrary(NamedTuple):
    """C code that was built and loaded."""

    functions: ctypes.CDLL
    build: Build


_used = False
_off: ContextVar[bool] = ContextVar("off", default=False)


@contextlib.contextmanager
def off() -> Iterator[None]:
    """Let PyTorch compute: what the kernels cannot, or to compare with them."""
    token = _off.set(True)
    try:
        yield
    finally:
        _off.reset(token)


def usable(*tensors: Tensor) -> bool:
    """Whether kernels can take tensors: float32 on a CPU."""
    for x in tensors:
        if x.dtype is not torch.float32 or not x.is_cpu:
            return False
    return available()


def in_c(
    kernel: Callable[P, R], takes: Callable[..., bool] | None = None
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Let a kernel compute what a function of the same arguments says, where it can take them.

    The function is what is read, what runs everywhere else, and what tests hold the kernel to. The
    kernel is left out, with a line that says so, where the function or something that it reaches is
    not what the kernel was written for (manyseeds/kernels/guard.py).

    takes: whether the kernel can take some arguments, `fits` unless given. It may also return
    NotImplemented or, with a line, raise CannotTake before it changes anything.
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        name = f"{kernel.__module__.rpartition('.')[2]}.{kernel.__name__}"
        guard = Guard(name, function, c_of=kernel)
        parameters = inspect.signature(function).parameters
        defaults = {name: x.default for name, x in parameters.items()}
        can_take = takes or fits

        @functools.wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            given = args
            if kwargs:  # in the order of the parameters
                placed = dict(zip(defaults, args, strict=False))
                given = tuple((defaults | placed | kwargs).values())  # type: ignore[assignment]
            if can_take(*given) and guard.allows(*given):
                try:
                    result = kernel(*args, **kwargs)
                except CannotTake as reason:
                    say(str(reason))
                    result = NotImplemented  # type: ignore[assignment]
                if result is not NotImplemented:
                    return result
            return function(*args, **kwargs)

        call.guard = guard  # type: ignore[attr-defined]
        return call

    return decorate


def sets_gradients(kernel: Callable[P, R]) -> Callable[P, R]:
    """Mark a kernel that sets gradients: where there are to be none, PyTorch is to refuse."""

    @functools.wraps(kernel)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        return kernel(*args, **kwargs) if torch.is_grad_enabled() else NotImplemented  # type: ignore[return-value]

    return call


# What a kernel reads.
DTYPES = {torch.float32, torch.int64, torch.bool}


def fits(*args: Any) -> bool:
    """Whether kernels can take the tensors among arguments, and in named tuples among them.

    They hand no gradient back to any of them.
    """
    if not available():
        return False
    grads = torch.is_grad_enabled()
    for arg in args:
        for x in arg if isinstance(arg, tuple) else (arg,):
            if isinstance(x, Tensor) and (
                not readable(x) or not x.is_cpu or (grads and x.requires_grad)
            ):
                return False
    return True


def readable(x: Tensor) -> bool:
    """Whether a kernel reads tensors of this kind: samples, or a hyperparameter's values by row."""
    return x.dtype in DTYPES or (x.dtype == torch.float64 and x.dim() == 1)


def available() -> bool:
    """Whether there are kernels, and they are not switched off."""
    return not _off.get() and library() is not None


def execution() -> dict[str, str] | str:
    """What has computed in this process, for the record of a run: a build, or "torch"."""
    return described(library() if _used else None)


@contextlib.contextmanager
def unrecorded() -> Iterator[None]:
    """What computes meanwhile is no part of the run that `execution` is the record of."""
    global _used
    before = _used
    try:
        yield
    finally:
        _used = before


def computing() -> Literal["C", "torch"]:
    """What computes here from now on: C, all builds of which have the same bits, or PyTorch."""
    return "C" if available() else "torch"


def described(kernels: SharedLibrary | None) -> dict[str, str] | str:
    """What computes with a library of kernels, or without one."""
    if kernels is None:
        return "torch"
    return kernels.build._asdict() | {"instructions": kernels.functions.instructions().decode()}


@cache
def library() -> SharedLibrary | None:
    """All C; None, and a line that says why, where it cannot be built."""
    if os.environ.get("CC", "cc").strip() == "":
        return None
    try:
        kernels = load_library(sources())
    except UsageError as error:
        message = f"{error}; without kernels in C training takes several times as long"
        print(f"note: {message}", file=sys.stderr)
        return None
    declare(kernels.functions)
    return kernels


def sources() -> list[Path]:
    """The C of this folder, and of the rooms."""
    rooms = [Path(folder) / room for room in ROOMS for folder in (HERE.parent, CHECKOUT)]
    folders = [HERE, *rooms, *(room / HERE.name for room in rooms)]
    return [file for folder in folders for file in sorted(folder.glob("*.c"))]


def kernel(source: Path, name: str) -> Kernel:
    """A function of C that stands in a source with its struct (binding.py)."""
    return Kernel(source, name, lambda name: getattr(functions(), name))


def functions() -> ctypes.CDLL:
    """The kernels, where they are `usable`; from now on they count as used."""
    global _used
    _used = True
    kernels = library()
    assert kernels is not None
    return kernels.functions


def load_library(sources: Sequence[Path]) -> SharedLibrary:
    """The library of some sources, built unless it is kept. Raises UsageError."""
    reason = "no C compiler (cc, gcc or clang; or pip install ziglang)"
    for compiler in compilers():
        try:
            done = run([*compiler, "--version"])
            version = (done.stdout.splitlines() or [""])[0]
        except (OSError, subprocess.SubprocessError) as error:
            reason = f"{shlex.join(compiler)}: {said_by(error)}"
            continue
        names_cpu = any(word.startswith(("-march=", "-mcpu=")) for word in compiler)
        for extra in EXTRA_FOR_A_CPU if names_cpu else EXTRA:
            flags = (*FLAGS, *extra)
            command = [*compiler, *flags]
            try:
                path = kept(sources, command, version)
                functions = ctypes.CDLL(str(path))
            except subprocess.TimeoutExpired as error:  # with other flags, too
                reason = f"{shlex.join(compiler)}: {said_by(error)}"
                break
            except (OSError, subprocess.SubprocessError) as error:
                reason = f"{shlex.join(compiler)}: {said_by(error)}"
                continue
            return SharedLibrary(functions, Build(version, shlex.join(command[1:])))
    raise UsageError(reason)


def declare(functions: ctypes.CDLL) -> None:
    """Tell Python the types of the functions."""
    pointer = ctypes.c_void_p
    functions.instructions.argtypes, functions.instructions.restype = [], ctypes.c_char_p
    functions.mlp_forward.argtypes = [pointer, ctypes.c_int, *3 * [pointer]]
    functions.mlp_backward.argtypes = [pointer, ctypes.c_int, *4 * [pointer]]
    functions.mlp_tangent.argtypes = [pointer, ctypes.c_int, *4 * [pointer]]
    functions.categorical.argtypes = [ctypes.c_long, ctypes.c_int, *5 * [pointer]]
    functions.categorical_backward.restype = None
    functions.categorical_backward.argtypes = [ctypes.c_long, ctypes.c_int, *8 * [pointer]]


def compilers() -> Iterator[list[str]]:
    """The commands that may be compilers: CC if it is set. Raises UsageError."""
    text = os.environ.get("CC", "")
    try:
        chosen = shlex.split(text)
    except ValueError as error:
        raise UsageError(f"CC={text}: {error}") from None
    if chosen:
        yield chosen
        return
    yield from ([name] for name in ("cc", "gcc", "clang") if shutil.which(name))
    if importlib.util.find_spec("ziglang"):
        yield [sys.executable, "-m", "ziglang", "cc"]


def kept(sources: Sequence[Path], command: Sequence[str], version: str) -> Path:
    """The path of a library, built if it is not there or not as it was built.

    Sources may include the headers of this folder. Raises OSError and SubprocessError.
    """
    key = key_of(sources, command, version)
    for place in places():
        try:
            place.mkdir(parents=True, exist_ok=True)
            if place.stat().st_uid != uid():  # who could put another library there
                continue
            target = place / key
            if is_whole(target):
                return target / "library.so"
            build = Path(tempfile.mkdtemp(prefix=f".{key}.", dir=place))
        except OSError:  # cannot be written
            continue
        try:
            output = build / "library.so"
            objects = map(str, compiled(sources, command, version, place))
            run([*command, "-shared", *objects, "-o", str(output), "-lm"])
            ctypes.CDLL(str(output))  # what cannot be loaded is not kept
            (build / "sha256").write_text(sha256_of(output))
            if target.exists() and not is_whole(target):
                shutil.rmtree(target, ignore_errors=True)  # others may do it, too
            try:
                build.rename(target)
            except OSError:  # another process was first
                if not is_whole(target):
                    raise
            return target / "library.so"
        finally:
            shutil.rmtree(build, ignore_errors=True)
    raise OSError("no folder can be written, neither the cache nor a temporary one")


def key_of(sources: Sequence[Path], command: Sequence[str], version: str) -> str:
    """What is made of sources by a command is named after all that it depends on."""
    text = [path.read_text() for path in (*sorted(HERE.glob("*.h")), *sources)]
    return hashlib.sha256(json.dumps([text, command, version, cpu()]).encode()).hexdigest()[:16]


def compiled(
    sources: Sequence[Path], command: Sequence[str], version: str, place: Path
) -> list[Path]:
    """Each source as an object in a folder, several compiled at once; what is there is not compiled
    again when another source changes. Raises OSError and SubprocessError."""

    def compiled_one(source: Path) -> Path:
        target = place / f"{key_of([source], command, version)}.o"
        if not target.exists():
            number, name = tempfile.mkstemp(suffix=".o", prefix=f".{source.stem}.", dir=place)
            os.close(number)
            try:
                run([*command, f"-I{HERE}", "-c", str(source), "-o", name])
                Path(name).rename(target)
            finally:
                Path(name).unlink(missing_ok=True)
        return target

    if (cores := os.cpu_count() or 1) == 1:
        return [compiled_one(source) for source in sources]
    with ThreadPoolExecutor(cores) as pool:
        return list(pool.map(compiled_one, sources))


def places() -> list[Path]:
    """Folders for libraries: the user's cache, or else a temporary folder of this user."""
    folders = [Path(tempfile.gettempdir()) / f"manyseeds-{uid()}"]
    with contextlib.suppress(RuntimeError):  # a user without a home
        home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        folders.insert(0, Path(home) / "manyseeds")
    return folders


def uid() -> int:
    """This user's number, 0 on Windows."""
    return getattr(os, "getuid", int)()


def is_whole(folder: Path) -> bool:
    """Whether a library is as it was built, and this user's."""
    try:
        ours = folder.stat().st_uid == uid()
        return ours and (folder / "sha256").read_text() == sha256_of(folder / "library.so")
    except OSError:
        return False


def sha256_of(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def run(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """Run a command that must succeed. Raises OSError and SubprocessError."""
    return subprocess.run(
        command, capture_output=True, text=True, errors="replace", check=True, timeout=TIMEOUT
    )


def said_by(error: Exception) -> str:
    """What went wrong, in a line."""
    if isinstance(error, subprocess.CalledProcessError):
        lines = [line for line in str(error.stderr).splitlines() if "error" in line]
        return (lines or [f"exit status {error.returncode}"])[0].strip()
    return " ".join(str(error).split())


def cpu() -> list[str]:
    """What the machine's instructions depend on."""
    try:
        text = Path("/proc/cpuinfo").read_text().partition("\n\n")[0]
    except OSError:
        text = ""
    known = r"^(?:vendor_id|model name|flags|Features|CPU (?:implementer|part|variant)).*$"
    return [platform.machine(), platform.processor(), *re.findall(known, text, re.MULTILINE)]


# No definition uses this name: the bits are the same whoever built the C, so that a run's code
# digest does not depend on it.
WITH_PREBUILT = prebuilt.first(sys.modules[__name__])
