"""A session of the judge: fifty edits of algos/ppo.py, one after another, as somebody tries them.

    python benchmarks/judge_session.py
    python benchmarks/judge_session.py --env Acrobot-v1

The edits (judge_session.toml) were written down before any was trained: some that change no
formula, tricks from papers and from other libraries, and mistakes. Each is made in a copy of the
file and judged against it, in an order drawn once; all of them share the error budget of one
session. What is kept is then confirmed on held-out seeds and physics. An interrupted session goes
on by the same command. Writes judge_session_ENV.json; prints its table in Markdown.
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
from manyseeds.benchmarks.experiments.sessions import LOOKS, level_of
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
    "identical": bool,
    "seeds": int,
    "seconds": NUMBER,
    "kept": bool,
    "confirmed": (str, None),
}
STORED: dict[str, Any] = {  # the file
    **ORIGIN,
    "env": str,
    "minutes": NUMBER,
    "tries": [TRY],
}


@dataclass(frozen=True, kw_only=True)
class Config(ScriptConfig):
    """A session of fifty edits."""

    env: str = "CartPole-v1"
    """Environment."""
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
    said = judge.judge(copy, str(FILE), (config.env,), config.minutes, results=folder)
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
        "identical": said["cells"][0]["identical"],
        "seeds": said["seeds"],
        "seconds": said["seconds"],
        "kept": said["kept"],
        "confirmed": None,
    }


def table(sessions: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    """The tries of sessions, by environment, in Markdown; all have the same edits in one order."""
    lines = [
        f"| try | edit | kind | {' | '.join(sessions)} |",
        "|--:|---|---|" + "---|" * len(sessions),
    ]
    for tries in zip(*sessions.values(), strict=True):
        first = tries[0]
        cells = [str(first["number"]), first["edit"], first["kind"], *map(outcome, tries)]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def word_of(tried: Mapping[str, Any]) -> str:
    """The verdict of a try; where its time was up before the last look, it is not yet decided."""
    undecided = tried["word"] == "undecided" and tried["seeds"] < LOOKS[-1]
    return "not yet decided" if undecided else str(tried["word"])


def outcome(tried: Mapping[str, Any]) -> str:
    """Verdict, difference and time of a try."""
    word = word_of(tried)
    word = f"**{word}**" if word in ("better", "worse") else word
    confirmed = f"; confirmed: {tried['confirmed']}" if tried["confirmed"] else ""
    effect = judge.effect_text(tried["base"], tried["effect"])
    return f"{word}{confirmed}, {effect}, {tried['seconds']:.0f} s"


@failing_in_one_line("", judge.AGAIN)
def main(args: Sequence[str] | None = None) -> None:
    """Judge all edits, confirm what was kept, and write the file."""
    config = parse(Config, {}, __doc__, args)
    folder = Path(config.results) / "judge_session" / config.env
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
        "env": config.env,
        "minutes": config.minutes,
        "tries": tries,
    }
    write_measured(Path(config.results) / f"judge_session_{config.env}.json", stored)
    print(table({config.env: tries}))


if __name__ == "__main__":
    main()
