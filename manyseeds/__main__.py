"""The command `manyseeds`, with which an installed package needs no checkout.

manyseeds NAME [flags]            train, compare, show: NAME --help lists the flags of NAME
manyseeds copy NAME my_own.py     copy the file of NAME, to edit it and run `python my_own.py`
manyseeds --list                  all names
manyseeds --version               the version, and where results and the cache are
"""

from __future__ import annotations

from manyseeds.command import failing_in_one_line

import ast
import importlib.metadata
import re
import runpy
import signal
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path

from manyseeds import ROOMS, end_own_script, leave_early
from manyseeds.cli import RESULTS, check_results, path_of
from manyseeds.digest import PACKAGE, ROOT, name_of_script, room_file
from manyseeds.errors import UsageError, did_you_mean
from manyseeds.untrusted import read_text
from manyseeds.writing import write_bytes

SCRIPT = "\nif __name__ =="  # what a file has that is run


def scripts() -> dict[str, Path]:
    """The files that can be run, by name."""
    files = [file for room in ROOMS for file in sorted(room_file(room).glob("[a-z]*.py"))]
    return {name_of_script(file): file for file in files if SCRIPT in read_text(file)}


def named(name: str) -> Path:
    """The file of a name; UsageError for an unknown one."""
    found = scripts()
    if name not in found:
        raise UsageError(f"{name}: no such name{did_you_mean(name, found)}")
    return found[name]


def about(file: Path) -> str:
    """The first line of a file's docstring."""
    return (ast.get_docstring(ast.parse(read_text(file))) or "").partition("\n")[0]


def show_names() -> None:
    """Print all names by room, with what each is."""
    found = scripts()
    width = max(map(len, found))
    for room in dict.fromkeys(file.parent for file in found.values()):
        print(f"{room.name}\n")
        for name, file in found.items():
            if file.parent == room:
                print(f"  {name:<{width}}  {about(file)}")
        print()


def show_version() -> None:
    """Print the version, and the folders that are written to."""
    from manyseeds import kernels

    try:
        version = importlib.metadata.version(PACKAGE)
    except importlib.metadata.PackageNotFoundError:  # a checkout that is not installed
        version = tomllib.loads(read_text(ROOT / "pyproject.toml"))["project"]["version"]
    print(f"{PACKAGE} {version}")
    print(f"results: {Path(RESULTS).absolute()}, unless --results names another folder")
    print(f"cache: {kernels.places()[0]}, for C code that is compiled here")


def copy(name: str, to: str) -> None:
    """Copy the file of a name; UsageError for a path that cannot be written or exists."""
    source, target = named(name), path_of(to, "copy")
    if target.suffix != ".py" or not target.stem.isidentifier():
        raise UsageError(f"copy {to}: must be the name of a Python file, such as my_{source.name}")
    check_results(target.parent, "copy")
    if target.exists():
        raise UsageError(f"copy {to}: is there already")
    typed = f"python {source.parent.name}/{source.name}"
    write_bytes(target, read_text(source).replace(typed, f"python {target.name}").encode())
    print(f"{target}: edit it, then run it: python {target} --help")


def extra_of(module: str) -> str:
    """The optional dependencies of this package that a module is among, '' for other modules."""
    for requirement in importlib.metadata.requires(PACKAGE) or ():
        package, _, condition = requirement.partition(";")
        found = re.search(r'extra == "(\w+)"', condition)
        if found and package.startswith(module.partition(".")[0].replace("_", "-")):
            return found[1]
    return ""


def run(file: Path, args: Sequence[str]) -> None:
    """Run a file as `python FILE` does. Raises UsageError where it needs packages that are not
    installed, and SystemExit."""
    sys.excepthook = end_own_script
    if signal.getsignal(signal.SIGINT) == signal.default_int_handler:
        signal.signal(signal.SIGINT, leave_early)
    sys.argv[1:] = args
    try:
        runpy.run_path(str(file), run_name="__main__")
    except ModuleNotFoundError as error:
        if not (extra := extra_of(error.name or "")):
            raise
        needs = f"{name_of_script(file)}: needs {error.name}"
        raise UsageError(f"{needs}; pip install '{PACKAGE}[{extra}]'") from None


@failing_in_one_line()
def main() -> None:
    """The entry point."""
    name, *args = sys.argv[1:] or ["--help"]
    if name in ("-h", "--help"):
        print(__doc__)
    elif name == "--list":
        show_names()
    elif name == "--version":
        show_version()
    elif name == "copy":
        if len(args) != 2:
            raise UsageError(f"copy: needs NAME and FILE, as in {PACKAGE} copy NAME my_own.py")
        copy(*args)
    else:
        run(named(name), args)


if __name__ == "__main__":
    main()
