"""A run of the LLM track as arrays over its seeds, and its verdict against another."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from statistics import median
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from manyseeds import plots, stats
from manyseeds.benchmarks.experiments import catalog
from manyseeds.benchmarks.experiments.suite import EXPERIMENTS
from manyseeds.benchmarks.store.names import display
from manyseeds.benchmarks.store.results import (
    FEWEST,
    Scores,
    differences,
    parity,
    verdict_text,
)
from manyseeds.benchmarks.store.stored import StoredRun, left_out, read, read_table
from manyseeds.errors import printable
from manyseeds.llm_track.tasks import MADE
from manyseeds.runs.stale import part_is_stale
from manyseeds.stats import Floats, Parity
from manyseeds.untrusted import NUMBER, TEXT, check, reading
from manyseeds.worth import (
    SHARE_OF_FAILURE,
    SUCCESSES,
    Worth,
    final_values,
    unscored_text,
    worths_of,
)

if TYPE_CHECKING:
    import pandas as pd

ORDER = (
    *("sft", "reward_model", "dpo", "rlhf_ppo", "grpo", "dr_grpo", "dapo", "rloo", "reinforce_pp"),
    *("gspo", "cispo", "process_grpo", "distill"),
)
NO_MEASURES = ("source", "algo", "task", "seed", "samples", "learn_s")  # columns of a curve
TRANSCRIPTS = [{"prompt": TEXT, "completion": TEXT, "samples": int, "right": bool}]


class Method:
    """All finished seeds of one run of the LLM track. Raises UsageError for a broken one."""

    def __init__(self, run: StoredRun) -> None:
        self.run, self.algo, self.task = run, run.algo, run.env
        self.parts, self.configs, self.summaries = run.parts, run.configs, run.summaries
        self.settings = run.config
        self.stale = any(part_is_stale(config) for config in self.configs)
        self.plain_settings = catalog.plain_settings(
            "llm_track", self.algo.removeprefix("trl-"), self.task
        )
        self.headline: str = self.summaries[0]["headline"]
        with reading(run.path):
            check(self.settings, {"total_samples": int}, "config")
            times = {"learn_seconds?": NUMBER, "total_seconds?": NUMBER}
            check(self.summaries, [times], "summary")
            self.frames = self._frames()
            for name in {self.headline, *self._shown()}:
                self.line(name)
            for when in ("initial", "final"):
                if np.isnan(self.values(self.headline, when)).any():
                    raise ValueError(f"a seed has no {when} {self.headline}")

    def _shown(self) -> tuple[str, ...]:
        """The measures that the figures of a method show."""
        if self.headline == "pass@1":
            return "pass@1", "length", "entropy"
        return ("accuracy", "loss") if self.algo == "reward_model" else ()

    @property
    def model(self) -> str:
        """The model that a run begins with: a name, or a folder."""
        return str(self.settings.get("model", ""))

    @property
    def made_here(self) -> bool:
        """Whether this model is one of those that the track makes itself."""
        return self.model in MADE

    @property
    def plain(self) -> bool:
        """Whether a run has the script's own settings for its task."""
        return self.settings == self.plain_settings

    def is_run_of(self, algo: str, task: str, settings: Mapping[str, Any]) -> bool:
        """Whether it differs from the plain command of a method by these settings alone."""
        changed = {**(self.plain_settings or {}), **settings}
        stored = json.loads(json.dumps(changed))  # whose tuples are lists
        return (self.algo, self.task, self.settings) == (algo, task, stored)

    @property
    def of_experiment(self) -> bool:
        """Whether a run belongs to an experiment of chapters/language_claims.py."""
        return any(self.is_run_of(algo, task, x) for algo, task, _, x in EXPERIMENTS)

    @property
    def budget(self) -> str:
        """`25,600 samples`: how many the training generates, or learns from."""
        return f"{self.settings['total_samples']:,} samples"

    @property
    def label(self) -> str:
        """The method, marked where its code has changed since."""
        return display(self.algo) + (" (stale)" if self.stale else "")

    @property
    def n(self) -> str:
        """The number of seeds."""
        return str(len(self.summaries))

    @property
    def named(self) -> tuple[str, str, str]:
        """The cells that begin a row: task, method, n."""
        return self.task, self.label, self.n

    @property
    def changed(self) -> str:
        """What differs from the plain command: `epochs 4 (not 1)`."""
        return differences(self.settings, self.plain_settings or self.settings)

    @property
    def worths(self) -> list[Worth]:
        """Of each seed, by the headline."""
        return [worth for summary in self.summaries for worth in worths_of(summary).values()]

    @property
    def imputed(self) -> bool:
        """Whether a seed has no headline of its own."""
        return bool(unscored_text(self.worths))

    def minutes(self, what: Literal["learn", "total"]) -> str:
        """Of a seed, total: with its evaluations; the median, empty where it is not known."""
        name = f"{what}_seconds"
        known = [x[name] / 60 for x in self.summaries if name in x]
        return f"{median(known):.0f}" if known else ""

    def values(self, name: str, when: str = "final") -> Floats:
        """A measure of each seed, [S], as `final_values` after the training; NaN: unknown."""
        if when == "final":
            return final_values(self.summaries, name)
        found = [summary[when].get(name) for summary in self.summaries]
        return np.array([np.nan if x is None else x for x in found])

    def text(self, name: str, digits: int = 3) -> str:
        """Mean after the training with its interval, empty where a seed has no such measure."""
        values = self.values(name)
        return "" if np.isnan(values).any() else stats.estimate(values, "mean").text(digits)

    def mean_text(self, name: str, when: str = "final", digits: int = 3) -> str:
        """Mean over seeds without its interval, empty where a seed has no such measure."""
        values = self.values(name, when)
        return "" if np.isnan(values).any() else f"{values.mean():.{digits}f}"

    def means(self, name: str, digits: int = 3) -> tuple[str, str]:
        """A measure before the training and after it."""
        return self.mean_text(name, "initial", digits), self.mean_text(name, digits=digits)

    def both(self, name: str, digits: int = 3) -> tuple[str, str]:
        """The same, with the interval of that after it."""
        return self.mean_text(name, "initial", digits), self.text(name, digits=digits)

    def gain(self) -> str:
        """Final headline minus the initial one, paired by seed: same prompts, same uniforms."""
        gains = self.values(self.headline) - self.values(self.headline, "initial")
        return stats.estimate(gains, "mean").text(3, "+")

    def has(self, name: str) -> bool:
        """Whether the curves of all seeds have a measure."""
        return all(name in rows for rows in self.frames)

    def metrics(self, name: str) -> list[pd.DataFrame]:
        """A metric of the training of each seed, over samples."""
        return [read_table(part / "metrics.parquet", ("samples", name)) for part in self.parts]

    def _frames(self) -> list[pd.DataFrame]:
        """The curve of each seed, and at which of its points each row was due."""
        numbers = ("samples", self.headline)
        found = [read_table(part / "curve.parquet", numbers) for part in self.parts]
        last = max(map(len, found)) - 1
        for rows, summary in zip(found, self.summaries, strict=True):
            if summary.get("diverged") is not None:
                late = rows["samples"] >= summary["diverged"]
                for name in rows.columns.difference([*NO_MEASURES]):
                    value = SHARE_OF_FAILURE if SUCCESSES.fullmatch(name) else np.nan
                    rows.loc[late, name] = value
            due = rows["samples"] * last // self.settings["total_samples"]
            rows["point"] = due.clip(upper=last)
        return found

    def curve(self, name: str) -> tuple[Floats, Floats]:
        """Samples [K], the mean over seeds, and a measure [S, K], at points that all seeds have."""
        by_point = [rows.set_index("point") for rows in self.frames]
        common = sorted(set.intersection(*(set(rows.index) for rows in by_point)))
        x, y = (np.array([rows.loc[common, n] for rows in by_point]) for n in ("samples", name))
        return x.mean(0), y.astype(float)

    def line(self, name: str, minus: str = "") -> plots.Line:
        """The mean of a measure, or of it minus another one, with its interval, where it is finite
        for all seeds."""
        x, y = self.curve(name)
        y = y - self.curve(minus)[1] if minus else y
        whole = np.isfinite(y).all(0) & np.isfinite(x)
        return plots.mean_line(x[whole], y[:, whole]) if whole.any() else plots.Line([], [])

    def reached(self, target: float) -> str:
        """Median samples after which a curve first had the target, and how many seeds did."""
        first = [rows.loc[rows[self.headline] >= target, "samples"].min() for rows in self.frames]
        there = [x for x in first if not np.isnan(x)]
        count = f"{len(there)} of {len(first)}"
        return f"{np.median(there):,.0f} ({count})" if there else f"never ({count})"

    def transcripts(self, index: int) -> list[dict[str, Any]]:
        """What the model of a seed wrote through its training. Raises UsageError."""
        found: list[dict[str, Any]] = read(self.parts[index] / "transcripts.json", TRANSCRIPTS)
        return found


def methods(runs: Sequence[StoredRun]) -> list[Method]:
    """The runs of language models by task, in the order of the reading path, TRL after ours."""
    found = []
    for run in (run for run in runs if run.kind == "language"):
        with left_out(run.path):
            found.append(Method(run))

    def place(method: Method) -> tuple[str, int, str, str]:
        algo = method.algo.removeprefix("trl-")
        place = ORDER.index(algo) if algo in ORDER else len(ORDER)
        return method.task, place, method.algo, str(method.run.path)

    return sorted(found, key=place)


DIGITS = 3  # of a measure of an initial model


def begun_with(m: Method) -> list[tuple[tuple[str, float], ...]]:
    """All that is measured of the model that each seed began with.

    Other models differ in this. To DIGITS: transformers, which TRL's runs are evaluated by, and C
    sum up in other orders, which may turn a drawn token into another one.
    """
    return [
        tuple(
            sorted(
                (name, float(f"{x:.{DIGITS}g}"))
                for name, x in summary["initial"].items()
                if known(name, x)
            )
        )
        for summary in m.summaries
    ]


def by_seed(m: Method, values: Floats) -> dict[Any, float]:
    """Values [S] of a run by seed and by what the seed began with: others are no pairs."""
    seeds = [config["seeds"][0] for config in m.configs]
    return dict(zip(zip(seeds, begun_with(m), strict=True), values.tolist(), strict=True))


def common(a: Mapping[Any, float], b: Mapping[Any, float]) -> tuple[Floats, Floats]:
    """Values by seed of two sides, [S] each, of the seeds that both have."""
    both = sorted(a.keys() & b.keys())
    return np.array([a[seed] for seed in both]), np.array([b[seed] for seed in both])


def known(name: str, value: Any) -> bool:
    """Whether a measure is known, and one of the model alone, not of a reference or --reward."""
    return isinstance(value, int | float) and np.isfinite(value) and name not in ("kl", "reward")


# Methods that learn from what our code has drawn, which TRL is given in the same order: a seed of
# ours and of TRL's are a pair. The others share their prompts alone, and each samples its own
# completions.
PAIRED = ("sft", "reward_model", "dpo")
SCALE = Scores("a share", None, random_score=0.0, reference_score=1.0, digits=3)


def verdict_against(ours: Method, theirs: Method) -> tuple[str, Parity | None]:
    """The verdict on the headline against a run of TRL's, as a text and in numbers.

    That of a method of PAIRED is of the seeds that both have. The text is empty where the settings
    differ. There are no numbers with too few seeds or other initial models.
    """
    if (ours.settings, ours.headline) != (theirs.settings, theirs.headline):
        return "", None
    a, b = (side.values(side.headline) for side in (ours, theirs))
    imputed = ours.imputed or theirs.imputed
    if ours.algo in PAIRED:
        found = parity(*common(by_seed(ours, a), by_seed(theirs, b)), SCALE, imputed, paired=True)
        needed = f"none (needs {FEWEST} seeds that both have, with the same initial model)"
        return (verdict_text(found, SCALE) if found else needed), found
    if set(begun_with(ours)) != set(begun_with(theirs)):
        return "none (other initial models)", None
    found = parity(a, b, SCALE, imputed)
    return verdict_text(found, SCALE), found


def seed_table(found: Sequence[Method]) -> pd.DataFrame:
    """The measures of every seed before and after, unrounded, a row per seed and moment."""
    import pandas as pd

    rows = [
        {
            "task": printable(m.task),
            "algo": printable(m.algo),
            "run": printable(m.run.path.name),
            "plain": m.plain,
            "seed": summary["seeds"][0],
            "when": when,
            "samples": summary["samples"] * (when == "final"),
            **{printable(name): m.values(name, when)[k] for name in summary[when]},
        }
        for m in found
        for k, summary in enumerate(m.summaries)
        for when in ("initial", "final")
    ]
    return pd.DataFrame(rows)
