"""A run of the store as arrays over its seeds, its verdict against another, and tables of them.

S is the number of seeds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from manyseeds import envs, plots, stats, worth
from manyseeds.benchmarks.experiments.verdicts import (
    CEILINGS,
    FAILED,
    LAST_SHARE,
    LOOKS,
    MARGIN,
    MARGINS,
    Side,
    Verdict,
    decide,
    margin_at,
)
from manyseeds.benchmarks.store.costs import one_thread
from manyseeds.benchmarks.store.stored import StoredRun, name_with_arguments
from manyseeds.cli import FLOAT32_MAX
from manyseeds.envs.core import digits_of
from manyseeds.errors import UsageError
from manyseeds.evaluate import POINTS
from manyseeds.record import DONE, plural, read_json
from manyseeds.runs.control import reachable_threshold
from manyseeds.runs.stale import part_is_stale
from manyseeds.stats import Estimate, Floats, Parity
from manyseeds.untrusted import reading
from manyseeds.worth import (
    Worth,
    counted,
    failure_score,
    measured_scores,
    unscored_text,
    worth_of,
    worths_of,
)

EPISODES = "episodes.parquet"
FEWEST = 10  # seeds a side of a verdict by a single test


@dataclass(frozen=True)
class Scores:
    """Threshold, random and reference score of an environment; None is unknown."""

    id: str
    reward_threshold: float | None
    random_score: float | None
    reference_score: float | None
    digits: int | None  # decimals of a score; None: as many as its size asks for


def floor_of(spec: Scores) -> float | None:
    """The return that has a normalised score of FLOOR."""
    return worth.floor_of(spec.random_score, spec.reference_score)


def scores_of(results: Path, config: Mapping[str, Any], summary: Mapping[str, Any]) -> Scores:
    """The scores of the environment of a run's config.

    Another one than ours is not made. Its threshold and digits are those in a part's summary.json,
    and its scores those that scores.py has measured, where it has.
    """
    env, kwargs = config["env"], config.get("env_kwargs", ())
    if env in envs.NATIVE and not kwargs:
        spec = envs.NATIVE[env]().spec
        return Scores(
            env, spec.reward_threshold, spec.random_score, spec.reference_score, spec.digits
        )
    random, reference = measured_scores(results, env, kwargs) or (None, None)
    digits = digits_of(random, reference)
    if digits is None and summary["digits"] is not None:
        digits = min(max(summary["digits"], 0), 6)
    name = name_with_arguments(env, kwargs)
    return Scores(name, summary["threshold"], random, reference, digits)


@dataclass(frozen=True, eq=False)
class Result:
    """The finished seeds of one run; arrays are `[S]`, in the order of `seeds`."""

    run: StoredRun
    spec: Scores
    seeds: list[int]
    final: Floats  # greedy return after training
    sampled: Floats  # the same, actions sampled
    episode_std: Floats  # of the greedy return at the end, over episodes; NaN when exact
    final_episodes: int  # of the evaluation at the end; 0 when exact
    worths: dict[int, Worth]  # by seed; one that has no score counts as a failure above
    curve: pd.DataFrame  # the greedy evaluations during training, tidy
    timesteps: int  # per seed
    auc: Floats = field(init=False)  # mean return over training
    late: Floats = field(init=False)  # mean return of the evaluations in the last LAST_SHARE
    reached: Floats = field(init=False)  # timestep of the first evaluation at the threshold, or NaN

    def __post_init__(self) -> None:
        curves = self.curves
        threshold = reachable_threshold(self.spec)
        bar = math.inf if threshold is None else threshold
        auc = [stats.area_under_curve(*curve) for curve in curves]
        reached = [stats.timesteps_to_threshold(*curve, bar)[0] for curve in curves]
        # An evaluation may be late by as long as an update takes.
        share = 1 - LAST_SHARE - 0.5 / POINTS
        late = [returns[at >= share * at[-1]].mean() for at, returns in curves]
        object.__setattr__(self, "late", np.array(late))
        object.__setattr__(self, "auc", np.array(auc))
        object.__setattr__(self, "reached", np.array(reached))

    def only(self, seeds: Sequence[int]) -> Result:
        """The same run with some of its seeds."""
        chosen = np.isin(self.seeds, seeds)
        arrays = {name: getattr(self, name)[chosen] for name in ("final", "sampled", "episode_std")}
        kept = [seed for seed in self.seeds if seed in set(seeds)]
        curve = self.curve[self.curve["seed"].isin(kept)]
        worths = {seed: self.worths[seed] for seed in kept}
        return replace(self, seeds=kept, curve=curve, worths=worths, **arrays)

    @cached_property
    def curves(self) -> list[tuple[NDArray[np.int64], Floats]]:
        """Timesteps and greedy returns of each seed during training, in the order of `seeds`, which
        ascend."""
        rows = self.curve.sort_values(["seed", "timestep"])
        return split_by_seed(rows, "timestep", "return_mean")

    @property
    def diverged(self) -> dict[int, int]:
        """The timesteps at which seeds diverged."""
        return {seed: w.diverged for seed, w in self.worths.items() if w.diverged is not None}

    @property
    def unscored(self) -> str:
        """`2 diverged, 1 unknown`: the seeds without a score of their own; mostly empty."""
        return unscored_text([*self.worths.values()])

    @property
    def first_seeds(self) -> int:
        """How many of the seeds 0, 1, 2, ... there are, up to the first that is missing."""
        return next((i for i, seed in enumerate(self.seeds) if seed != i), len(self.seeds))

    @property
    def configs(self) -> list[dict[str, Any]]:
        """config.json of every part."""
        return self.run.configs

    @property
    def algo(self) -> str:
        return str(self.configs[0]["algo"])

    @property
    def config(self) -> dict[str, Any]:
        """The hyperparameters: every field that changes a learning curve."""
        return self.run.config

    @property
    def exact(self) -> bool:
        """Whether greedy returns were computed from P and R, not from episodes."""
        return bool((self.curve["episodes"] == 0).all())

    @property
    def digits(self) -> int | None:
        """Decimals with which its scores are worth printing; None: as many as their size asks."""
        return 3 if self.exact else self.spec.digits

    def number(self, score: float) -> str:
        """`498.2`"""
        return stats.number_text(score, self.digits)

    @property
    def timesteps_requested(self) -> int:
        """The budget per seed; `timesteps` are at least as many, to the end of an update."""
        return int(self.config["total_timesteps"])

    def scores(self, measure: str) -> Floats:
        """What verdicts compare, `[S]`: the `auc`, or the `late` score, which varies less than that
        of one evaluation. The final score is no measure of verdicts: KeyError."""
        return {"auc": self.auc, "late": self.late}[measure]

    def score_at(self, timesteps: int) -> Floats:
        """The greedy return after as many timesteps, `[S]`: the final score where that is the
        budget, and between two evaluations during training a straight line."""
        if timesteps == self.timesteps_requested:
            return self.final
        return np.array([np.interp(timesteps, *curve) for curve in self.curves])

    @property
    def failures(self) -> list[int]:
        """The seeds that have no score, or ended below the reward threshold; where there is none,
        those that ended hardly above a random policy."""
        bar = reachable_threshold(self.spec)
        bar = floor_of(self.spec) if bar is None else bar
        bar = -math.inf if bar is None else bar
        pairs = zip(self.seeds, self.final, strict=True)
        return [x for x, score in pairs if score < bar or self.worths[x].score is None]

    def failures_text(self) -> str:
        """`2 of 10 (1 diverged), at most 51%`: the bound is that of the share of all seeds. `-`
        where nothing says what a failure is."""
        n, failed = len(self.seeds), len(self.failures)
        text = f"{failed} of {n}"
        bars = reachable_threshold(self.spec), floor_of(self.spec)
        if bars == (None, None) and not self.unscored:
            return "-"
        if self.unscored:
            text += f" ({self.unscored})"
        return f"{text}, at most {math.ceil(100 * stats.failure_bound(failed, n))}%"

    def threshold_texts(self) -> tuple[str, str]:
        """When half of the seeds that reach the threshold have, and how many do: `12,800` and
        `9 of 10`."""
        if reachable_threshold(self.spec) is None:
            return "no threshold", ""
        there = self.reached[np.isfinite(self.reached)]
        median = f"{np.median(there):,.0f}" if len(there) else "never"
        return median, f"{len(there)} of {len(self.seeds)}"

    @cached_property
    def fastest(self) -> tuple[float, str] | None:
        """Timesteps per core-second of all seeds of the fastest part together, evaluation left out,
        and the processor; None without a part that says them."""
        parts = zip(self.run.summaries, self.run.configs, strict=True)
        speeds = [
            (summary.get("timesteps_per_second", 0.0), processor(config["machine"]))
            for summary, config in parts
            if one_thread(config)
        ]
        fastest = max(speeds, default=(0.0, ""))
        return fastest if fastest[0] > 0 else None

    @property
    def core_seconds(self) -> Floats:
        """What each seed cost at most until it was at the threshold to stay, `[S]`; NaN where it
        never was, or no part says how fast it was."""
        return self.reached / (self.fastest[0] if self.fastest else math.nan)

    def core_seconds_text(self) -> str:
        """The median over the seeds that reach the threshold, `0.16`, or `-`."""
        there = self.core_seconds[np.isfinite(self.core_seconds)]
        return stats.number_text(float(np.median(there)), None) if len(there) else "-"

    def estimate(self, measure: str, statistic: stats.Statistic = "iqm") -> Estimate:
        """Of a value per seed, `final`, `sampled` or `auc`. The interval is over seeds and starts,
        where the returns of single episodes are stored; otherwise over seeds alone."""
        return estimate_of(self, measure, statistic)

    def text(self, measure: str, statistic: stats.Statistic = "iqm") -> str:
        """`498.2 [493.1, 500.0]`"""
        return self.estimate(measure, statistic).text(self.digits)

    def text_at(self, timesteps: int) -> str:
        """The mean after a number of timesteps, with its interval over seeds alone."""
        return stats.estimate(self.score_at(timesteps), "mean").text(self.digits)

    @cached_property
    def episodes(self) -> pd.DataFrame | None:
        """A row per episode of the evaluations, in order; None where they are not stored."""
        with reading(self.run.path):
            kept = (read_json(part / DONE)["sha256"] for part in self.run.parts)
            if self.exact or not all(EPISODES in files for files in kept):
                return None
        numbers = ("seed", "timestep", "episodes", "episode", "return")
        rows = self.run.table(EPISODES, numbers, ("mode",))
        place = ["seed", "timestep", "episode", "mode", "episodes"]
        return rows.drop_duplicates(place).sort_values(place)

    def by_start(self, measure: str) -> Floats | None:
        """`final`, `sampled` or `auc` by start state, `[S, E]`: all seeds have the same ones. The
        means are those of the measure, also of a seed that has a failure score. None where not
        every episode of every evaluation is stored."""
        rows = self.episodes
        if rows is None:
            return None
        mode, whole = ("sampled" if measure == "sampled" else "greedy"), measure == "auc"
        rows = rows[(rows["mode"] == mode) & rows["seed"].isin(self.seeds)]
        E = self.curve["episodes"].iloc[0] if whole else self.final_episodes
        rows, found = rows[rows["episodes"] == E], []
        for timesteps, episodes, returns in split_by_seed(rows, "timestep", "episode", "return"):
            at = np.unique(timesteps)
            places = np.repeat(at, E), np.tile(np.arange(E), len(at))
            if not all(map(np.array_equal, (timesteps, episodes), places)):
                return None
            curve = returns.reshape(len(at), E).astype(np.float64)
            found.append(stats.area_under_curve(at, curve.T) if whole else curve[-1])
        if len(found) != len(self.seeds):
            return None
        starts = np.stack(found)
        starts = np.where(np.abs(starts) <= FLOAT32_MAX, starts, 0.0)
        values: Floats = getattr(self, measure)
        return starts + (values - starts.mean(axis=1))[:, None]


def split_by_seed(rows: pd.DataFrame, *names: str) -> list[tuple[Any, ...]]:
    """Columns of each seed's rows as arrays. rows: in the order of seeds."""
    if rows.empty:
        return []
    others = np.flatnonzero(np.diff(rows["seed"])) + 1  # where the rows of another seed begin
    return list(zip(*(np.split(rows[x].to_numpy(), others) for x in names), strict=True))


@cache  # a report has the same estimate in several tables
def estimate_of(result: Result, measure: str, statistic: stats.Statistic) -> Estimate:
    """`Result.estimate`"""
    values: Floats = getattr(result, measure)
    found = stats.estimate(values, statistic, imputed=bool(result.unscored))
    if found.equal or found.n < 2 or (starts := result.by_start(measure)) is None:
        return found
    return stats.over_starts(found, starts, statistic)


def load_result(run: StoredRun) -> Result:
    """The seeds of a control run as arrays.

    A return that is not finite in float32 counts as a random policy's, or where that is not known
    as the lowest final one of the run. The final returns of a diverged seed, and those on its curve
    from where it diverged, count as no more than that. Raises UsageError for other runs, for files
    that do not fit, and where no seed has a score and no random score is known.
    """
    if run.kind != "control":
        raise UsageError(f"{run.path}: is a {run.kind} run, which has no returns")
    numbers = ("seed", "timestep", "return_mean", "return_std", "episodes")
    curves = run.table("curve.parquet", numbers, ("mode",))
    with reading(run.path):
        return _result(run, curves.drop_duplicates(["seed", "timestep", "mode", "episodes"]))


def _result(run: StoredRun, curves: pd.DataFrame) -> Result:
    summaries = run.summaries
    worths: dict[int, Worth] = {}
    for part in reversed(summaries):  # a seed that two parts hold counts once, the first time
        worths |= worths_of(part)
    diverged = {seed: w.diverged for seed, w in worths.items() if w.diverged is not None}
    spec = scores_of(run.path.parents[3], run.config, summaries[0])
    means = curves["return_mean"].where(curves["return_mean"].abs() <= FLOAT32_MAX)
    failure = failure_score([*worths.values()], spec.random_score)
    if np.isnan(failure):
        raise UsageError(
            f"{run.path}: no seed has a score, and {spec.id} has no known random score"
        )
    gone = curves["timestep"] >= curves["seed"].map(diverged).fillna(math.inf)
    means = means.fillna(failure)
    curves["return_mean"] = means.mask(gone, means.clip(upper=failure))
    greedy = curves[curves["mode"] == "greedy"]
    last = greedy.groupby("seed").last()
    # The evaluation at the end has another number of episodes, but for exact ones.
    curve = greedy[greedy["episodes"] == greedy.sort_values("timestep")["episodes"].iloc[0]]
    seeds = sorted(set(curve["seed"]) & set(run.seeds))

    def finals(mode: str) -> Floats:
        scores: dict[str, float] = {}
        for part in reversed(summaries):
            scores.update(part["final"][mode]["per_seed"])
        found = [worth_of(scores[str(seed)], diverged.get(seed)) for seed in seeds]
        return np.nan_to_num(counted(found, failure), nan=failure)

    curve = curve[curve["seed"].isin(seeds)]
    plots.curve_of(run.algo, curve)  # what cannot be drawn is found here
    return Result(
        run=run,
        spec=spec,
        seeds=seeds,
        final=finals("greedy"),
        sampled=finals("sampled"),
        episode_std=last.loc[seeds, "return_std"].to_numpy(dtype=np.float64),
        final_episodes=int(last.loc[seeds, "episodes"].min()),
        worths={seed: worths[seed] for seed in seeds},
        curve=curve,
        timesteps=summaries[0]["timesteps_per_seed"],
    )


def parity(
    ours: Floats,
    theirs: Floats,
    spec: Scores | envs.EnvSpec,
    imputed: bool = False,
    paired: bool = False,
    margin: float = MARGIN,
) -> Parity | None:
    """The verdict on two arrays of scores, `[S1]` and `[S2]`, that are looked at once.

    imputed: whether one of them is a failure score, no measured one. paired: whether both have the
    same seeds in the same order, which share their data. margin: of normalised scores.
    None with too few seeds on a side, or where the random or the reference score is unknown.
    """
    random, reference = spec.random_score, spec.reference_score
    if min(len(ours), len(theirs)) < FEWEST or random is None or reference is None:
        return None
    judge = stats.paired_parity if paired else stats.parity
    return judge(ours, theirs, random, reference, margin, imputed=imputed)


def parity_of(ours: Result, theirs: Result, measure: str) -> Parity | None:
    """The same of two runs by a measure of `MEASURES`, with the margin of the environment."""
    imputed = bool(ours.unscored or theirs.unscored)
    sides, margin = (ours.scores(measure), theirs.scores(measure)), margin_at(ours.spec.id, measure)
    return parity(*sides, ours.spec, imputed, margin=margin)


def verdict_text(verdict: Parity | None, spec: Scores | envs.EnvSpec, fewest: int = FEWEST) -> str:
    """`worse -0.120 [-0.180, -0.061], p=0.002`, of pairs with `, paired, r=0.90`; or why there is
    no verdict.

    spec: of the environment, as for `parity`.
    """
    if verdict is None:
        if spec.random_score is None or spec.reference_score is None:
            return "none (random or reference score unknown; scores.py measures them)"
        return f"none (needs {fewest} seeds per side)"
    if verdict.word == "saturated":
        bound = stats.failure_bound(0, verdict.difference.n)
        return f"saturated: all seeds score the same (on each side at most {bound:.1%} do not)"
    text = f"{verdict.word} {verdict.difference.text(3, '+')}, {p_text(verdict.p, verdict.at_most)}"
    if verdict.r is None:
        return text
    return f"{text}, paired" + ("" if math.isnan(verdict.r) else f", r={verdict.r:z.2f}")


def p_text(p: float, at_most: bool = False) -> str:
    """`p=0.002` or `p<0.001`; `p≤0.007` of a p that more draws could only lower."""
    return "p<0.001" if p < 0.001 else f"p{'≤' if at_most and p < 1 else '='}{p:.3f}"


@cache  # a report asks for each in several tables
def decision(ours: Result, theirs: Result, measure: str) -> Verdict | None:
    """The verdict of the rule, of experiments/verdicts.py, by a measure of `MEASURES`.

    It counts the seeds 0, 1, 2, ... up to the first that is missing: what is decided stays so when
    others are added. None with too few of them on a side, or where the random or the reference
    score is unknown.
    """
    one, other = side_of(ours, measure), side_of(theirs, measure)
    if one is None or other is None:
        return None
    name = theirs.algo.removeprefix("sb3-")
    at_ceiling = measure == "late" and name in CEILINGS.get(theirs.spec.id, ())
    return decide(one, other, margin_at(ours.spec.id, measure), at_ceiling)


def side_of(result: Result, measure: str) -> Side | None:
    """The seeds of a run that the rule counts; None where the random or the reference score is
    unknown."""
    random, reference = result.spec.random_score, result.spec.reference_score
    if random is None or reference is None:
        return None
    seeds = result.seeds[: result.first_seeds]
    scores = result.scores(measure)[: len(seeds)]
    failed = stats.normalise(result.late[: len(seeds)], random, reference) < FAILED
    imputed = np.array([result.worths[seed].score is None for seed in seeds])
    return Side(stats.normalise(scores, random, reference), failed, imputed)


def seeds_due(ours: Result, theirs: Result) -> int:
    """How many seeds of SB3's the rule asks for, so that both verdicts are decided."""
    verdicts = [decision(ours, theirs, measure) for measure in MARGINS]
    return max(v.due or v.look if v else LOOKS[0] for v in verdicts)


def decision_text(verdict: Verdict | None, spec: Scores) -> str:
    """The same of a verdict by the rule of experiments/verdicts.py, with the seeds of ours and of
    SB3's that it rests on: `equivalent +0.001 [-0.012, +0.014], p=0.71, n=300 and 60`."""
    if verdict is None:
        return verdict_text(None, spec, LOOKS[0])
    text = f"{verdict_text(verdict.parity, spec)}, n={verdict.ours} and {verdict.look}"
    return text + (f"; next look at {verdict.due}" if verdict.due else "")


def differences(ours: dict[str, Any], plain: dict[str, Any]) -> str:
    """How settings differ from the plain ones: `gamma 0.9 (not 0.98)`."""
    names = [name for name in plain | ours if plain.get(name) != ours.get(name)]
    return ", ".join(f"{name} {ours.get(name)} (not {plain.get(name)})" for name in names)


def settings_text(settings: dict[str, Any]) -> str:
    """`env CartPole-v1, gamma 0.98`"""
    return ", ".join(f"{name} {value}" for name, value in settings.items())


# ---- Where it is from -----------------------------------------------------------------------


def versions_text(config: dict[str, Any]) -> str:
    """`python 3.11.7, torch 2.9`, of a config.json or of a file of measurements."""
    return ", ".join(f"{name} {version}" for name, version in config["versions"].items())


def commit_of(config: dict[str, Any]) -> str:
    """The commit whose code trained, or measured; runs.json says which later ones equal it."""
    return f"commit {config['code']['commit'] or 'not recorded'}"


def code_of(config: dict[str, Any]) -> str:
    """The digest of the code that trained, and whether it is that of today."""
    return f"code {config['code']['digest']}" + (" (stale)" if part_is_stale(config) else "")


def processor(machine: dict[str, Any]) -> str:
    """`AMD EPYC, 2 cores`"""
    cores = machine["cores"]
    return f"{machine['cpu']}, {'cores unknown' if cores is None else plural(cores, 'core')}"
