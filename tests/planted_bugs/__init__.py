"""Plants known bugs, one at a time, in a copy of the project, and shows the test that turns red.

    python -m tests.planted_bugs                    # all of them
    python -m tests.planted_bugs n-step traces      # those whose name contains a word
    python -m tests.planted_bugs "step counter"     # those of one trap

A bug that no test notices is a missing test: the exit status is then 1. One file for each
chapter. `make test-all` plants those whose file or test has changed since they were last noticed,
and a tenth of the others.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.planted_bugs.planting import Copy, bugs_in

# One file for each chapter: `[[bug]]`, with the fields of a `Bug`.
CHAPTERS = {file.stem: bugs_in(file) for file in sorted(Path(__file__).parent.glob("*.toml"))}
BUGS = tuple(bug for bugs in CHAPTERS.values() for bug in bugs)

# Traps that implementations of control fall into again and again. Names of bugs begin with theirs.
TRAPS = (
    "timeout as an end",
    "bootstrap from the wrong state",
    "an end and a timeout at once",
    "advantages across an end",
    "fake transition at a reset",
    "step counter",
    "replay",
    "spread of advantages",
    "ratio before an update",
    "entropy sign",
    "target interval",
    "shared seed",
    "noise drawn inside",
    "no number",
    "epsilon",
    # Those of language models.
    "language: temperature",
    "language: token mask",
    "language: positions",
    "language: shifted log-probabilities",
    "language: token mean",
    "language: spread of a group",
    "language: equal rewards",
    "language: steps of the thinking",
    "language: ratio",
    "language: KL",
    "language: cut off",
    "language: refills",
    "language: reward model",
    "language: values of tokens",
    "language: preferences",
    "language: entropy",
    "language: answers",
    "language: held-out prompts",
    "language: evaluation",
    "language: no gradient",
    "language: dropout",
    "language: cache",
    "language: reference",
    "language: half precision",
)


def main(words: Sequence[str]) -> int:
    chosen = [bug for bug in BUGS if not words or any(word in bug.name for word in words)]
    if not chosen:
        print(f"error: no bug is named like {' or '.join(words)}", file=sys.stderr)
        return 2
    unnoticed = 0
    with tempfile.TemporaryDirectory() as folder, Copy(Path(folder)) as copy:
        copy.turn_green(chosen)
        for bug in chosen:
            red = copy.turns_red(bug)
            unnoticed += not red
            print(f"{'red' if red else 'UNNOTICED':<10} {bug.name}: {bug.test}", flush=True)
    return int(unnoticed > 0)
