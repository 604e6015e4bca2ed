"""Returns in our environments beside those in Gymnasium's: what `watch.py --check` measures."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from manyseeds import envs, stats
from manyseeds.benchmarks.store.names import display
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
        """The row for people, with the header COLUMNS."""
        digits = envs.NATIVE[self.env]().spec.digits
        assert digits is not None, "of a native environment both scores are known"
        sides = (stats.estimate(x, "mean").text(digits) for x in (self.native, self.gymnasium))
        d = self.difference
        value, low, high = (f"{x:+.{digits + 1}f}" for x in (d.value, d.low, d.high))
        name = (self.env, display(self.algo), self.run, str(len(self.seeds)))
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


COLUMNS = (
    *("environment", "algorithm", "run", "n", "native, mean [95%]", "Gymnasium, mean [95%]"),
    *("difference [95%]", "verdict"),
)
