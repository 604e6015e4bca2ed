"""Builds the C code for common systems into a wheel (manyseeds/kernels/prebuilt.py).

All else is in pyproject.toml. An editable installation gets none: its C code may be edited.
"""

from __future__ import annotations

import ast
import importlib.util
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from setuptools import setup
from setuptools.command.build_py import build_py

ROOT = Path(__file__).resolve().parent
KERNELS = ROOT / "manyseeds" / "kernels"
ZIG = [sys.executable, "-m", "ziglang"]


def prebuilt() -> Any:
    """The module prebuilt.py, without the package around it, which needs PyTorch."""
    spec = importlib.util.spec_from_file_location("prebuilt", KERNELS / "prebuilt.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def flags() -> list[str]:
    """Those that all compilers get: FLAGS of manyseeds/kernels/__init__.py."""
    for node in ast.parse((KERNELS / "__init__.py").read_text()).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "FLAGS":
            return [*ast.literal_eval(node.value), "-fopenmp"]
    raise ValueError("manyseeds/kernels/__init__.py: no FLAGS")


def sources() -> list[Path]:
    """All C code, in the order of `kernels.sources`."""
    rooms = ("manyseeds/kernels", "envs", "algos/kernels")
    return [file for room in rooms for file in sorted((ROOT / room).glob("*.c"))]


def compile_all(folder: Path) -> None:
    """Write the libraries of all builds to a folder. Raises OSError and CalledProcessError."""
    found = prebuilt()
    own = KERNELS / found.FOLDER.name
    folder.mkdir(parents=True, exist_ok=True)

    def compile_one(build: Any) -> None:
        windows = build.system == "win32"
        words = [*ZIG, "cc", *flags(), *found.flags_of(build), f"-I{KERNELS}"]
        # -s: without what only debuggers read.
        words += [*map(str, sources()), "-shared", "-s", "-o", str(folder / build.library)]
        words += ["-include", str(own / "windows.h")] if windows else []
        words += [str(own / "threads.c"), "-lpthread", *([] if windows else ["-lm"])]
        subprocess.run(words, check=True)

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(compile_one, found.BUILDS))
    version = subprocess.check_output([*ZIG, "version"], text=True).strip()
    kept = {build.library for build in found.BUILDS}
    for file in folder.iterdir():  # what a linker writes besides: import libraries, symbols
        if file.name not in kept:
            file.unlink()
    made_of = {
        "compiler": f"zig cc {version}, in the wheel",
        "flags": flags(),
        "sources": found.digest_of(sources()),
    }
    (folder / found.MADE_OF).write_text(json.dumps(made_of, indent=2) + "\n")


class BuildPy(build_py):
    """Copies the package, and adds the libraries."""

    def run(self) -> None:
        super().run()
        if not self.editable_mode:
            compile_all(Path(self.build_lib, "manyseeds", "kernels", "prebuilt"))


if __name__ == "__main__":
    setup(cmdclass={"build_py": BuildPy})
