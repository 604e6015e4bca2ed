"""What a seed is worth: a score, diverged, or unknown. Every reader of results asks here.

The policy of a diverged seed still plays, and may have an ordinary return, which says nothing. A
diverged seed is a failure: no search chooses a configuration that has one, and in a mean over seeds
it has the score of a random policy, or its own where that is lower.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from manyseeds.arguments import canonical_kwargs
from manyseeds.cli import FLOAT32_MAX
from manyseeds.record import hash_of, layers
from manyseeds.stats import Floats
from manyseeds.untrusted import NAME, read_shaped

MAX_NAME = 200  # characters of a file's name
# RESULTS/scores/ENV.json; reference: null where none was stated.
SCORES = {
    "env": NAME,
    "env_kwargs": [str],
    "random": {"value": float},
    "reference": (float, None),
}
# Measures of language runs that are shares of successes, as every headline is.
SUCCESSES = re.compile(r"(pass|cons)@\d+|accuracy|greedy|format|all_solved")
SHARE_OF_FAILURE = 0.0  # failure score of these
FLOOR = 0.9  # normalised score that is the bar of a failure where there is no threshold


def floor_of(random: float | None, reference: float | None) -> float | None:
    """The return that has a normalised score of FLOOR; None where no score is normalised."""
    return None if random is None or reference is None else random + FLOOR * (reference - random)


class Worth(NamedTuple):
    """A score, or the step at which a seed diverged; with neither its score is unknown."""

    score: float | None = None
    diverged: int | None = None
    remnant: float | None = None  # the return that the policy of a diverged seed still has

    @property
    def unknown(self) -> bool:
        """Whether nothing says what the seed is worth: it has no finite return, or no episode."""
        return self.score is None and self.diverged is None


def worth_of(score: float | None, diverged: float | None = None) -> Worth:
    """What a seed with a final score is worth.

    score: None, NaN or infinite (in float32, too) where there is none. diverged: the step (a
    timestep, a sample) at which a loss or a reward was not finite; None or NaN where none was.
    """
    known = float(score) if score is not None and abs(score) <= FLOAT32_MAX else None
    if diverged is not None and not math.isnan(diverged):
        return Worth(None, int(diverged), known)
    return Worth(known)


def worths_of(summary: Mapping[str, Any]) -> dict[int, Worth]:
    """What the seeds of a part are worth by its summary.json: by the greedy return at the end of a
    control run, by the headline of a language run."""
    seeds, final, diverged = summary["seeds"], summary["final"], summary.get("diverged")
    if "headline" in summary:
        return {seed: worth_of(final.get(summary["headline"]), diverged) for seed in seeds}
    scores = final["greedy"]["per_seed"]
    return {seed: worth_of(scores[str(seed)], (diverged or {}).get(str(seed))) for seed in seeds}


def final_values(summaries: Sequence[Mapping[str, Any]], name: str) -> Floats:
    """A measure of language runs after their training, [S], of a run of one seed each.

    A diverged seed has `SHARE_OF_FAILURE` of successes. Its other measures, such as a length, are
    unknown (NaN), as those are that a seed lacks.
    """
    worths = [w for summary in summaries for w in worths_of({**summary, "headline": name}).values()]
    if SUCCESSES.fullmatch(name):
        return counted(worths, SHARE_OF_FAILURE)
    return np.array([math.nan if w.score is None else w.score for w in worths])


class Measured(NamedTuple):
    """The scores of an environment that its results are normalised by; None: not stated."""

    random: float
    reference: float | None


def scores_file(results: Path, env: str, env_kwargs: Sequence[str]) -> Path:
    """Where the measured scores of an environment with these arguments lie."""
    text = " ".join((env, *canonical_kwargs(env_kwargs)))
    name = re.sub(r"[^\w.-]", "--", text, flags=re.ASCII)
    return results / "scores" / f"{name if len(name) <= MAX_NAME else hash_of(text)}.json"


def measured_scores(results: Path, env: str, env_kwargs: Sequence[str] = ()) -> Measured | None:
    """The measured scores of an environment, None without any.

    results: of the runs that are read; published scores count for the user's own runs, too.
    Raises UsageError for a file that holds something else.
    """
    for layer in layers(results):
        try:
            stored = read_shaped(scores_file(layer, env, env_kwargs), SCORES)
        except FileNotFoundError:
            continue
        theirs = canonical_kwargs(stored["env_kwargs"])
        if stored["env"] != env or theirs != canonical_kwargs(env_kwargs):
            continue  # another one, of a similar name
        random, reference = stored["random"]["value"], stored["reference"]
        return Measured(random, None if reference == random else reference)
    return None


def failure_score(worths: Sequence[Worth], random: float | None) -> float:
    """The score that a diverged seed has at most in a mean over seeds: that of a random policy, or
    where it is None the lowest final return of all seeds; NaN where none has a score, since what
    diverged policies still return is no scale for itself."""
    if random is not None:
        return random
    if all(w.score is None for w in worths):
        return math.nan
    return min(x for w in worths for x in (w.score, w.remnant) if x is not None)


def counted(worths: Sequence[Worth], random: float | None) -> Floats:
    """The scores `[S]` as a mean over seeds counts them (`failure_score`); NaN: unknown."""
    failure = failure_score(worths, random)

    def score(worth: Worth) -> float:
        if worth.diverged is not None:
            own = failure if worth.remnant is None else worth.remnant
            return float(np.minimum(failure, own))  # NaN where the failure score is
        return math.nan if worth.score is None else worth.score

    return np.array([score(worth) for worth in worths], dtype=np.float64)


def mean_or_failure(worths: Iterable[Worth]) -> float:
    """The mean score, by which a configuration is chosen; -inf where a seed has none."""
    return float(np.mean([-math.inf if w.score is None else w.score for w in worths]))


def unscored_text(worths: Sequence[Worth]) -> str:
    """`2 diverged, 1 unknown`; empty where every seed has a score."""
    counts = {
        "diverged": sum(w.diverged is not None for w in worths),
        "unknown": sum(w.unknown for w in worths),
    }
    return ", ".join(f"{n} {word}" for word, n in counts.items() if n)
