"""The C code as a wheel has it: built for common systems already, so that no compiler is needed.

`setup.py` builds a library for each of BUILDS with one `zig cc` when a wheel is made, and writes
what it was made of beside them. A library is used if the system and the instructions of the CPU are
its own, and the C code is still what it was made of. Otherwise `load_library` builds from source.
A checkout has no such libraries. Only the standard library is imported here: `setup.py` does, too.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import json
import os
import platform
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).parent
FOLDER = HERE / "prebuilt"  # the libraries, what is compiled for them alone, and MADE_OF
MADE_OF = "made_of.json"


class Build(NamedTuple):
    """A system, the instructions that are used, and what tells `zig cc` of both."""

    system: str  # `sys.platform`
    machine: str
    capability: str  # of PyTorch on x86: how it calls the instructions; '' where all CPUs have them
    target: str
    cpu: str
    library: str  # its name


# The oldest glibc and macOS that any PyTorch we run with asks for. Of builds for a machine, those
# with wider vectors come first.
BUILDS = (
    Build("linux", "x86_64", "AVX512", "x86_64-linux-gnu.2.28", "x86_64_v4", "linux-avx512.so"),
    Build("linux", "x86_64", "AVX2", "x86_64-linux-gnu.2.28", "x86_64_v3", "linux-avx2.so"),
    Build("linux", "aarch64", "", "aarch64-linux-gnu.2.28", "generic", "linux-aarch64.so"),
    Build("darwin", "arm64", "", "aarch64-macos.11.0", "apple_m1", "macos-arm64.dylib"),
    Build("darwin", "x86_64", "AVX512", "x86_64-macos.11.0", "x86_64_v4", "macos-avx512.dylib"),
    Build("darwin", "x86_64", "AVX2", "x86_64-macos.11.0", "x86_64_v3", "macos-avx2.dylib"),
    Build("win32", "amd64", "AVX512", "x86_64-windows-gnu", "x86_64_v4", "windows-avx512.dll"),
    Build("win32", "amd64", "AVX2", "x86_64-windows-gnu", "x86_64_v3", "windows-avx2.dll"),
)
CAPABILITIES = ("AVX512", "AVX2")  # a CPU that has one has those behind it, too


def first(kernels: Any) -> Any:
    """Let the module `kernels` look for a library of the wheel before it builds all C; returns it.

    Where CC names a compiler, that one builds.
    """
    build: Callable[[Sequence[Path]], Any] = kernels.load_library

    @functools.wraps(build)
    def load_library(sources: Sequence[Path]) -> Any:
        if not os.environ.get("CC") and sources == kernels.sources():
            for functions, compiler, flags in loaded(sources):
                return kernels.SharedLibrary(functions, kernels.Build(compiler, flags))
        return build(sources)

    kernels.load_library = load_library
    return kernels


def loaded(sources: Sequence[Path]) -> Iterator[tuple[ctypes.CDLL, str, str]]:
    """The libraries that can be used here, with the compiler and the flags of each."""
    try:
        made_of = json.loads((FOLDER / MADE_OF).read_text())
    except OSError:
        return
    if made_of["sources"] != digest_of(sources):
        return
    for build in usable():
        try:
            functions = ctypes.CDLL(str(FOLDER / build.library))
        except OSError:  # an older C library than any that it was built for
            continue
        yield functions, made_of["compiler"], " ".join((*made_of["flags"], *flags_of(build)))


def usable() -> list[Build]:
    """The builds for this system whose instructions the CPU has."""
    own = [
        build
        for build in BUILDS
        if (build.system, build.machine) == (sys.platform, platform.machine().lower())
    ]
    if not any(build.capability for build in own):
        return own
    import torch

    capability = torch.backends.cpu.get_cpu_capability()
    known = CAPABILITIES[CAPABILITIES.index(capability) :] if capability in CAPABILITIES else ()
    return [build for build in own if build.capability in known]


def flags_of(build: Build) -> tuple[str, ...]:
    """What a build is compiled with besides the flags that all have."""
    return "-target", build.target, f"-mcpu={build.cpu}"


def digest_of(sources: Sequence[Path]) -> str:
    """What a library is made of: the texts of its sources and of all headers, in their order."""
    texts = [path.read_text() for path in (*sorted(HERE.glob("*.h")), *sources)]
    return hashlib.sha256(json.dumps(texts).encode()).hexdigest()
