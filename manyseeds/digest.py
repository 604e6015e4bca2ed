"""A digest of exactly the code that decides a learning curve, so that the report can say "stale".

It begins at some definitions (an algorithm's `train`, the environment's class, the evaluation and
so on) and follows every name they use, through the files of this project: a function that nothing
there reaches, a preset, a comment or a docstring can change without any run becoming stale.

It does not see what is reached through a module's attribute (`envs.make`), nor libraries. What
matters of that is a beginning of its own (below), or stands in a run's record (versions). Nor does
it see how an iteration is run (`program`): tests hold all its modes equal.
"""

from __future__ import annotations

import ast
import hashlib
import inspect
import os
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
# What these do cannot change a curve: they read flags, keep records, print and draw.
BOOKKEEPING = {
    *(
        f"manyseeds.{name}"
        for name in ("checkpoint", "cli", "digest", "errors", "plots", "process", "program")
    ),
    *(f"manyseeds.{name}" for name in ("progress", "record", "stats")),
    *(
        f"manyseeds.runs.{name}"
        for name in ("base", "control", "language", "parallel", "planning", "prediction")
    ),
}


# Where every run begins, besides its algorithm and environment.
COMMON = [
    *(f"manyseeds/evaluate.py:{name}" for name in ("evaluate", "POINTS")),
    *(f"manyseeds/evaluate.py:{name}" for name in ("CURVE_EPISODES", "FINAL_EPISODES")),
    "manyseeds/process.py:set_up_process",
    "envs/core.py:EpisodeTracker",
]


def code_origins(definitions: Sequence[Any], env: Any, common: Sequence[str] = COMMON) -> list[str]:
    """Where the code of a run begins, as `file:name`, files relative to the checkout.

    definitions: functions and classes. The classes of the environment and of what it wraps are
    added, and what is common to all runs of this kind.
    """
    found = [*definitions]
    while env is not None:
        found.append(type(env))
        env = getattr(env, "env", None)
    found = [inspect.unwrap(item) for item in found]  # behind decorators
    files = [os.path.relpath(inspect.getfile(item), ROOT) for item in found]
    names = [item.__qualname__.split(".")[0] for item in found]
    own = {f"{file}:{name}" for file, name in zip(files, names, strict=True)}
    if "envs/discretize.py:Discretize" in own:
        own.add("envs/discretize.py:BINS")
    return sorted(own | set(common))


def code_digest(origins: Iterable[str]) -> str:
    """Digest of all definitions that the origins reach by name; what is gone counts as empty."""
    waiting = [(file, name) for file, _, name in (origin.partition(":") for origin in origins)]
    reached: dict[tuple[str, str], str] = {}
    while waiting:
        place = file, name = waiting.pop()
        if place in reached:
            continue
        node = _definitions(file).get(name)
        if isinstance(node, ast.ImportFrom):
            if target := _project_file(node.module or ""):
                original = next(a.name for a in node.names if name in (a.asname, a.name))
                waiting.append((target, original))
            continue
        reached[place] = _text(node) if node else ""
        names = [n for n in ast.walk(node) if isinstance(n, ast.Name)] if node else []
        used = {n.id for n in names if isinstance(n.ctx, ast.Load)}  # a field may be named alike
        waiting += [(file, name) for name in used if name in _definitions(file)]
    digest = hashlib.sha256()
    for place in sorted(reached):
        digest.update(f"{place}{reached[place]}".encode())
    return digest.hexdigest()[:12]


@cache
def _definitions(file: str) -> dict[str, ast.stmt]:
    """The top-level names of a file: functions, classes, constants, `from x import name`."""
    path = ROOT / file
    found: dict[str, ast.stmt] = {}
    for node in ast.parse(path.read_text() if path.exists() else "").body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found[node.name] = node
        elif isinstance(node, ast.ImportFrom):
            found |= {alias.asname or alias.name: node for alias in node.names}
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names = [n for target in targets for n in ast.walk(target) if isinstance(n, ast.Name)]
            found |= {n.id: node for n in names}
    return found


def _project_file(module: str) -> str | None:
    """The file of one of our modules; None for a library and for bookkeeping."""
    path = Path(*module.split("."))
    for file in (path.with_suffix(".py"), path / "__init__.py"):
        if module not in BOOKKEEPING and (ROOT / file).exists():
            return str(file)
    return None


def _text(node: ast.AST) -> str:
    """The definition without docstrings and other strings that stand as statements."""
    for inner in ast.walk(node):
        body = getattr(inner, "body", None)
        if isinstance(body, list):
            inner.body = [x for x in body if not _is_string(x)]  # type: ignore[attr-defined]
    return ast.dump(node)


def _is_string(node: ast.AST) -> bool:
    constant = getattr(node, "value", None)
    return isinstance(node, ast.Expr) and isinstance(getattr(constant, "value", None), str)
