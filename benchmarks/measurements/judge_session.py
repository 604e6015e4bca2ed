"""A session of the judge: fifty edits of algos/ppo.py, one after another, as somebody tries them.

    python benchmarks/judge_session.py

The edits (judge_session.toml) were written down before any was trained: some that change no
formula, tricks from papers and from other libraries, and mistakes. Each is made in a copy of the
file and judged against it, in an order drawn once; all of them share the error budget of one
session. What is kept is then confirmed on held-out seeds and physics. An interrupted session goes
on by the same command. Writes judge_session.json; prints the table of docs/judge.md.
"""

from __future__ import annotations

from manyseeds.command import failing_in_one_line

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from manyseeds.benchmarks import judge
from manyseeds.benchmarks.experiments.sessions import level_of
from manyseeds.benchmarks.measurements.measure import origin, write_measured
from manyseeds.cli import Positive, ScriptConfig, parse
from manyseeds.digest import room_file
from manyseeds.errors import UsageError
from manyseeds.untrusted import NUMBER, ORIGIN
from manyseeds.writing import write_bytes

Kind = Literal["same formula", "trick", "mistake"]
FILE = room_file("algos/ppo.py")
EDITS = Path(__file__).with_name("judge_session.toml")
EFFECT = {"value": NUMBER, "low": NUMBER, "high": NUMBER}
TRY: dict[str, Any] = {
    "edit": str,
    "kind": str,
    "changes": {str: str},
    "number": int,
    "level": NUMBER,
    "pytorch": [str],
    "word": str,
    "effect": EFFECT,
    "base": NUMBER,
    "cells": {str: {"word": str, "effect": EFFECT, "base": NUMBER, "identical": bool}},
    "seeds": int,
    "seconds": NUMBER,
    "kept": bool,
    "confirmed": (str, None),
}
STORED: dict[str, Any] = {  # the file
    **ORIGIN,
    "envs": [str],
    "minutes": NUMBER,
    "tries": [TRY],
}


@dataclass(frozen=True, kw_only=True)
class Config(ScriptConfig):
    """A session of fifty edits."""

    envs: tuple[str, ...] = ("CartPole-v1",)
    """Environments."""
    minutes: Positive = 2.0
    """Time limit of each judgement."""
    confirm_minutes: Positive = 5.0
    """Time limit of each confirmation."""


@dataclass(frozen=True)
class Edit:
    """Texts of the file and what stands there instead, every time."""

    name: str
    kind: Kind
    changes: Mapping[str, str]

    def of(self, text: str) -> str:
        """The edited text. Raises ValueError where there is nothing to edit."""
        for old, new in self.changes.items():
            if old not in text:
                raise ValueError(f"{self.name}: the file has no {old!r}")
            text = text.replace(old, new)
        return text


def read_edits() -> list[Edit]:
    """All edits, as they were written down."""
    listed = tomllib.loads(EDITS.read_text())["edit"]
    return [Edit(x["name"], x["kind"], dict(x["changes"])) for x in listed]


def in_order() -> list[Edit]:
    """The edits as they are tried."""
    edits = read_edits()
    return [edits[i] for i in np.random.default_rng(0).permutation(len(edits))]


def judged(one: Edit, number: int, config: Config, folder: Path) -> dict[str, Any]:
    """What the judge says of an edit, in a session of its own in a folder. Raises UsageError."""
    copy = folder / f"{number:02d}.py"
    folder.mkdir(parents=True, exist_ok=True)
    write_bytes(copy, one.of(FILE.read_text()).encode())
    said = judge.judge(copy, str(FILE), config.envs, config.minutes, results=folder)
    if said["try"] != number:
        raise UsageError(f"{folder}: has a session of other code or flags; remove it")
    return {
        "edit": one.name,
        "kind": one.kind,
        "changes": dict(one.changes),
        "number": number,
        "level": level_of(number),
        "pytorch": said["pytorch"]["changed"],
        **said["overall"],
        "cells": {
            cell["env"]: {name: cell[name] for name in ("word", "effect", "base", "identical")}
            for cell in said["cells"]
        },
        "seeds": said["seeds"],
        "seconds": said["seconds"],
        "kept": said["kept"],
        "confirmed": None,
    }


def table(tries: Sequence[Mapping[str, Any]]) -> str:
    """All tries in Markdown."""
    lines = ["| try | edit | kind | verdict | learning speed | seeds | s |"]
    lines += ["|--:|---|---|---|---|--:|--:|"]
    for x in tries:
        word = x["word"] + (f"; confirmed: {x['confirmed']}" if x["confirmed"] else "")
        cells = [x["number"], x["edit"], x["kind"], word, judge.effect_text(x["base"], x["effect"])]
        cells += [x["seeds"], f"{x['seconds']:.0f}"]
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines)


@failing_in_one_line("", judge.AGAIN)
def main(args: Sequence[str] | None = None) -> None:
    """Judge all edits, confirm what was kept, and write the file."""
    config = parse(Config, {}, __doc__, args)
    folder = Path(config.results) / "judge_session"
    tries = []
    for number, one in enumerate(in_order(), 1):
        tries.append(judged(one, number, config, folder))
        last = tries[-1]
        print(
            f"{number:2} {one.kind:12} {one.name}: {last['word']}, {last['seconds']:.0f} s",
            flush=True,
        )
    if any(x["kept"] for x in tries):
        flags = judge.Flags(
            file=str(FILE), confirm=True, json=True,
            minutes=config.confirm_minutes, results=str(folder),
        )  # fmt: skip
        for said in judge.judged(flags):
            word = judge.confirmation(said)
            tries[said["try"] - 1]["confirmed"] = word
            print(f"try {said['try']} on held-out seeds and physics: {word}")
    stored = {
        **origin(["manyseeds.benchmarks.measurements.judge_session:judged"]),
        "envs": list(config.envs),
        "minutes": config.minutes,
        "tries": tries,
    }
    write_measured(Path(config.results) / "judge_session.json", stored)
    print(table(tries))


if __name__ == "__main__":
    main()
