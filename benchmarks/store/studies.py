"""The store of searches: `studies/<env or task>/<algo>/<name>/` in a results folder.

config.json says what is searched and by which code, as that of a run does; journal.log is Optuna's,
with every trial; rows.parquet has a line for every seed that was trained; result.json the winner
and how it was measured. All but the journal are written whole or not at all, and the journal grows
by lines. DONE.json seals a study that has come to its end; it may be extended, and is sealed anew.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from manyseeds import envs, stats, untrusted
from manyseeds.benchmarks.experiments.verdicts import MARGIN, margin_at
from manyseeds.benchmarks.store.results import Scores, parity, verdict_text
from manyseeds.errors import UsageError
from manyseeds.locks import Locks
from manyseeds.record import (
    DONE,
    SCHEMA,
    folder_of,
    hash_of,
    is_finished,
    read_record,
)
from manyseeds.stats import Parity
from manyseeds.untrusted import NUMBER
from manyseeds.worth import Worth, counted, unscored_text, worth_of
from manyseeds.writing import parquet_bytes, write_bytes, write_json

STUDY: dict[str, Any] = {  # config.json
    "command": str,
    "code": {"digest": str, "commit": str, "origins": [str]},
    "versions": {str: str},
    "algo": str,
    "env?": str,
    "task?": str,
    "config": {str: object},
    "kind": str,
    "vary": [str],
    "sampler": str,
    "seeds": [int],
    "fresh_seeds": [int],
    "cut": float,
    "base?": str,
}
PLACES = {"control": "env", "language": "task"}  # what is learned, by kind
RESULT: dict[str, Any] = {  # result.json
    "winner": int,
    "trials": int,
    "settings": {str: {str: object}},
    "final": {str: [(NUMBER, None)]},
    "auc": {str: [(NUMBER, None)]},
    "diverged?": {str: [(float, None)]},
}


@dataclass(frozen=True)
class StudyFolder:
    """One search in the store."""

    path: Path

    @classmethod
    def of(cls, results: Path, subject: str, algo: str, name: str, settings: Any) -> StudyFolder:
        """Where the study of these settings belongs; subject: its environment or task; name: '' for
        a hash of the settings."""
        return cls(results / "studies" / folder_of(subject) / algo / (name or hash_of(settings)))

    @property
    def journal(self) -> Path:
        return self.path / "journal.log"

    def open(self, settings: dict[str, Any], about: dict[str, Any]) -> None:
        """Begin the study, or go on with it; about: by which command and code it began.

        Raises UsageError where the name holds a study of other settings.
        """
        path = self.path / "config.json"
        if not os.path.lexists(path):
            self.path.mkdir(parents=True, exist_ok=True)
            write_json(path, {"schema": SCHEMA, "source": "manyseeds", **settings, **about})
            return
        there = read_record(path, {"code": {"digest": str}, "command": str})
        names = [name for name in settings if there.get(name) != settings[name]]
        if names:
            changes = "; ".join(f"{n} {there.get(n)} there, {settings[n]} here" for n in names)
            raise UsageError(f"--name {self.path.name}: {self.path} holds another study: {changes}")
        if there["code"]["digest"] != about["code"]["digest"]:
            raise UsageError(
                f"{self.path}: the code that trains has changed since; give another --name"
            )
        if there["command"] != about["command"]:  # more trials, say
            write_json(path, {**there, "command": about["command"]})

    def mend_journal(self) -> None:
        """Remove what a process that was killed has left: half a line, and its lock."""
        if os.path.lexists(self.journal):
            content = untrusted.read_bytes(self.journal)
            if not content.endswith(b"\n"):
                write_bytes(self.journal, content[: content.rfind(b"\n") + 1])
        for lock in self.path.glob("journal.log.lock*"):
            lock.unlink()

    @property
    def rows(self) -> pd.DataFrame:
        """All rows so far: stage (search, untuned, finalist, fresh), trial, seed, the scores of
        `train_configurations`, and what was varied."""
        try:
            return untrusted.read_parquet(self.path / "rows.parquet").to_pandas()
        except FileNotFoundError:
            return pd.DataFrame(columns=["stage", "trial", "seed", "final", "auc", "seconds"])

    def add_rows(self, frame: pd.DataFrame) -> None:
        """Write further rows."""
        there = self.rows
        both = pd.concat([there, frame], ignore_index=True) if len(there) else frame
        write_bytes(self.path / "rows.parquet", parquet_bytes(both))

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the study against other processes. Raises UsageError while another searches it, and
        for a folder that is a link."""
        untrusted.check_within(self.path, self.path.parents[3])
        with contextlib.closing(Locks(self.path)) as locks:
            if not locks.acquire(0):
                raise UsageError(f"{self.path}: is being searched by another process")
            yield


def worths_of_rows(rows: pd.DataFrame) -> list[Worth]:
    """What the seed of each row is worth by its final return."""
    return [worth_of(*row) for row in zip(rows["final"], rows["diverged"], strict=True)]


def measured(result: Mapping[str, Any], measure: str) -> dict[str, list[Worth]]:
    """What the fresh seeds of each candidate are worth by a measure, `final` or `auc`, according to
    result.json. In one without `diverged`, written before that was stored, none diverged."""
    found = {}
    for name, values in result[measure].items():
        diverged = result.get("diverged", {}).get(name) or [None] * len(values)
        found[name] = [worth_of(*seed) for seed in zip(values, diverged, strict=True)]
    return found


def margin_for(spec: Scores | envs.EnvSpec, measure: str) -> float:
    """The margin of a measure of `measured`: of the environment's late score for the final one, and
    MARGIN of language models."""
    known = isinstance(spec, envs.EnvSpec)
    return margin_at(spec.id, "late" if measure == "final" else measure) if known else MARGIN


def verdict_against(
    worths: Mapping[str, Sequence[Worth]],
    name: str,
    spec: Scores | envs.EnvSpec,
    measure: str = "final",
) -> Parity | None:
    """The verdict on the first scores, those of what was chosen, against those of a name; None
    where one of them is unknown, and as `parity`. measure: of both."""
    chosen, other = next(iter(worths.values())), worths[name]
    ours, theirs = (counted(side, spec.random_score) for side in (chosen, other))
    if np.isnan((*ours, *theirs)).any():
        return None
    imputed, margin = bool(unscored_text([*chosen, *other])), margin_for(spec, measure)
    return parity(ours, theirs, spec, imputed, margin=margin)


def against_text(
    worths: Mapping[str, Sequence[Worth]],
    name: str,
    spec: Scores | envs.EnvSpec,
    verdict: Parity | None,
) -> str:
    """A verdict of `verdict_against` as text."""
    both = (*next(iter(worths.values())), *worths[name])
    if np.isnan(counted(both, spec.random_score)).any():
        return "none (a score is unknown)"
    return verdict_text(verdict, spec)


def score_text(worths: Sequence[Worth], spec: Scores | envs.EnvSpec) -> str:
    """`498.2 [493.1, 500.0] (1 diverged)`, and what equal scores do not tell."""
    scores, unscored = counted(worths, spec.random_score), unscored_text(worths)
    if np.isnan(scores).any():
        return f"unknown ({unscored})"
    found = stats.estimate(scores, "mean", imputed=bool(unscored))
    text = found.full_text(spec.digits) if found.equal else found.text(spec.digits)
    return text + (f" ({unscored})" if unscored else "")


def sealed_studies(results: Path) -> list[Path]:
    """The folders of the studies of one layer of results that say they have come to an end."""
    return sorted(path.parent for path in results.glob(f"studies/*/*/[!.]*/{DONE}"))


def finished_studies(results: Path) -> list[Path]:
    """Those that are what was sealed. Raises UsageError for one of another schema."""
    return [path for path in sealed_studies(results) if is_finished(path)]
