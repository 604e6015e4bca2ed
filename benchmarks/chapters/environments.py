"""Our environments compared with Gymnasium's: the table of the results of `watch.py --check`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from manyseeds import envs, stats
from manyseeds.benchmarks.chapters.speed import Table, plain_table
from manyseeds.benchmarks.store.names import display
from manyseeds.benchmarks.store.results import command_text, escape, versions_text
from manyseeds.record import plural
from manyseeds.stats import Estimate, Floats
from manyseeds.untrusted import ORIGIN

STORED = {  # check.json
    **ORIGIN,
    "episodes": int,
    "rows": [
        {
            "env": str,
            "algo": str,
            "run": str,
            "difference": {"value": float, "low": float, "high": float},
            "seeds": [int],
            "native": [float],
            "gymnasium": [float],
        }
    ],
}


@dataclass(frozen=True, eq=False)
class Checked:
    """A run evaluated in both environments: a row of the table."""

    env: str
    algo: str
    run: str
    seeds: list[int]
    native: Floats  # mean return of each seed, [S]
    gymnasium: Floats
    difference: Estimate  # native minus Gymnasium, over all; the interval is over episodes

    @property
    def verdict(self) -> str:
        return "agrees" if self.difference.low <= 0 <= self.difference.high else "differs"

    def cells(self) -> tuple[str, ...]:
        """The row for people, in Markdown."""
        digits = envs.NATIVE[self.env]().spec.digits
        assert digits is not None, "of a native environment both scores are known"
        sides = (stats.estimate(x, "mean").text(digits) for x in (self.native, self.gymnasium))
        d = self.difference
        value, low, high = (f"{x:+.{digits + 1}f}" for x in (d.value, d.low, d.high))
        name = (self.env, escape(display(self.algo)), escape(self.run), str(len(self.seeds)))
        return (*name, *sides, f"{value} [{low}, {high}]", self.verdict)

    def json(self) -> dict[str, Any]:
        """The row for programs."""
        d = self.difference
        return {
            "env": self.env,
            "algo": self.algo,
            "run": self.run,
            "verdict": self.verdict,
            "difference": {"value": d.value, "low": d.low, "high": d.high},
            "seeds": self.seeds,
            "native": self.native.tolist(),
            "gymnasium": self.gymnasium.tolist(),
        }

    @classmethod
    def of(cls, row: dict[str, Any]) -> Checked:
        """A row as `json` has written it."""
        names = {name: row[name] for name in ("env", "algo", "run", "seeds")}
        native, gymnasium = (np.array(row[side]) for side in ("native", "gymnasium"))
        difference = Estimate(**{x: row["difference"][x] for x in ("value", "low", "high")}, n=0)
        return cls(**names, native=native, gymnasium=gymnasium, difference=difference)


HEADER = (
    "environment",
    "algorithm",
    "run",
    "n",
    "native, mean [95%]",
    "Gymnasium, mean [95%]",
    "difference [95%]",
    "verdict",
)


def rows_of(stored: dict[str, Any]) -> list[Checked]:
    """The rows of check.json on environments that are ours."""
    return [Checked.of(row) for row in stored["rows"] if row["env"] in envs.NATIVE]


def markdown(stored: dict[str, Any], table: Table = plain_table) -> str:
    """The table, with the command and commit in check.json."""
    checked = table("native-against-gymnasium", HEADER, [row.cells() for row in rows_of(stored)])
    episodes = stored["episodes"]
    return (
        f"The greedy policies of n seeds play {plural(episodes, 'episode')} each in our native "
        f"environment and {plural(episodes, 'other episode')} in Gymnasium's. The intervals of the "
        "means are over seeds; that of the difference (native minus Gymnasium) is over episodes, "
        "because both sides have the same policies. The verdict is *agrees* where that interval "
        "contains 0. Correct environments *differ* by chance in one row of twenty; the width of an "
        "interval bounds the difference that a row may have missed.\n"
        f"\n{checked}\n{command_text(stored, versions_text(stored))}\n"
    )
