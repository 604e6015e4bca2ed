"""What all rooms share, and no algorithm.

The rooms themselves are `manyseeds.envs`, `manyseeds.algos`, ...; in a checkout their folders lie
beside this one.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import sys
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_file_location
from typing import Any

ROOMS = ("envs", "algos", "llm_track", "benchmarks")  # from the lowest
# Also a room, but nothing that trains reaches it: in ROOMS it would be part of every digest.
PROBES = "probes"


def own_checkout() -> str:
    """The folder of the checkout that is imported; ends a script of another one, in one line.

    `python DIR/x.py` puts DIR on the path, not the checkout, so what is installed is imported.
    """
    package = os.path.dirname(os.path.realpath(__file__))
    main = sys.modules.get("__main__")
    script = getattr(main, "__file__", None)
    if script and not getattr(main, "__spec__", None):  # no prompt, notebook or `python -m`
        root = os.path.dirname(os.path.realpath(script))
        while root != os.path.dirname(root) and not os.path.isfile(f"{root}/manyseeds/digest.py"):
            root = os.path.dirname(root)
        other = os.path.join(root, "manyseeds")
        if os.path.isfile(f"{other}/digest.py") and not os.path.samefile(other, package):
            from manyseeds.errors import printable

            line = (
                f"error: {script}: is of the checkout {root}, but imports the manyseeds of "
                f"{os.path.dirname(package)}; set PYTHONPATH={shlex.quote(root)}, or install that "
                f"checkout: pip install -e {shlex.quote(root)}"
            )
            print(printable(line), file=sys.stderr)
            raise SystemExit(2)
        if os.path.dirname(os.path.realpath(script)) in [f"{root}/{name}" for name in ROOMS]:
            sys.excepthook = end_own_script
            if signal.getsignal(signal.SIGINT) == signal.default_int_handler:
                with contextlib.suppress(ValueError):  # not in the main thread
                    signal.signal(signal.SIGINT, leave_early)
    return os.path.dirname(package)


def leave_early(number: int, frame: Any) -> None:
    """What our scripts do about Ctrl-C before `main`, when nothing has begun. An exception might be
    swallowed: torch goes on without NumPy if its import fails."""
    os.write(2, b"interrupted\n")
    os._exit(128 + number)


def end_own_script(kind: type[BaseException], error: BaseException, trace: Any) -> None:
    """`sys.excepthook` of our scripts, for what happens outside of `main`: see `command`."""
    from manyseeds.command import end_script

    end_script(kind, error, trace)


def room(name: str) -> str:
    """The name of a room that is being imported. Raises ImportError under its folder's name alone:
    it would be a second copy, whose code no digest sees."""
    if name in (*ROOMS, PROBES):
        raise ImportError(f"{name} is imported as {__name__}.{name}")
    return name


class RoomFinder:
    """Finds the rooms of a checkout; in an installed package they lie within this one."""

    @staticmethod
    def find_spec(name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        parent, _, room = name.rpartition(".")
        if parent != __name__ or room not in (*ROOMS, PROBES):
            return None
        if os.path.isdir(f"{__path__[0]}/{room}"):
            return None
        folder = os.path.join(CHECKOUT, room)
        file = os.path.join(folder, "__init__.py")
        if not os.path.isfile(file):
            return None
        return spec_from_file_location(name, file, submodule_search_locations=[folder])

    @classmethod
    def installed(cls) -> type[RoomFinder]:
        sys.meta_path.insert(0, cls)  # before that of an installed checkout, which may be another
        return cls


CHECKOUT = own_checkout()
FINDER = RoomFinder.installed()
