"""Do finished learning curves look like those of our own trainings at the same hyperparameters?

Four one-sided tests, each at a quarter of the level, so that together they flag at most 5% of
trainings that are right (Bonferroni):

    slower          the mean return over training is lower
    lower           the late return is: the mean of the evaluations in the last fifth
    more failures   more seeds end below half of what the median seed of both sides reaches
    too alike       seeds differ less, or are copies of each other

Right libraries have details of their own (what they do at a time limit, how they clip gradients),
so that a difference has to exceed a margin. Of the way from a random policy to the best known one
it is 20% over training (rejax's PPO is 21% behind ours on Acrobot-v1, SBX's 10%) and 10% at the
end; of the spread it is two thirds. S seeds, K evaluations.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from manyseeds import stats
from manyseeds.cli import ControlConfig, Execution, field_marks
from manyseeds.errors import UsageError
from manyseeds.runs.control import Run
from manyseeds.stats import Floats

SEEDS = 30  # of the reference
FEWEST = 3  # of the other side
LEVEL = 0.05  # of all tests together
TESTS = 4
MARGINS = {"slower": 0.2, "lower": 0.1}  # of the range of scores
LAST_SHARE = 0.2  # of the training, whose evaluations are the late return
GIVEN = {"env", "seeds", "first_seed", "init", "eval_budget"}  # otherwise, or always the same
NEAR_THE_END = (0.9, 1.02)  # of the training: the last update may end a little later
SPREAD = 1 / 3  # of the reference's: a spread below is too small


@dataclasses.dataclass(frozen=True)
class Reference:
    """Curves of our own trainings, and the scores between which the margin is measured."""

    timesteps: Floats  # [K]
    returns: Floats  # [S, K]
    random: float
    best: float

    def at(self, timesteps: Floats) -> Floats:
        """The returns at other timesteps, [S, K], by linear interpolation."""
        return np.stack([np.interp(timesteps, self.timesteps, row) for row in self.returns])


def learns_like(
    algo: str,
    env: str,
    returns: ArrayLike,
    *,
    timesteps: ArrayLike | None = None,
    hyperparameters: Mapping[str, Any],
) -> None:
    """Compare learning curves of other code with thirty seeds that are trained here in seconds.

    algo, env: a file of ours such as `ppo`, and a Gymnasium id.

    returns: `[S, K]`, of S >= 3 seeds the evaluations at K timesteps `[K]`, or without timesteps
    `[S]`, those after the training. An evaluation is the mean undiscounted return of complete
    episodes of raw rewards, played greedily (the most probable action, the mean, the largest Q) in
    an environment of their own. Ours has 32 episodes, at the start and after each twentieth of the
    training. NaN counts as the return of a random policy.

    hyperparameters: fields of the Config in the algorithm's file, with `total_timesteps` among
    them; all others have its defaults, which are not always those of the other library.

    Raises AssertionError with every test that fails: of right code in at most 5% of cases. Raises
    ValueError for other shapes and algorithms, and UsageError for hyperparameters that the Config
    does not have or refuses.
    """
    if "total_timesteps" not in hyperparameters:
        raise ValueError("hyperparameters: total_timesteps is missing")
    total = hyperparameters["total_timesteps"]
    theirs, steps = checked(returns, timesteps, total)  # before anything is trained
    reference = trained(algo, env, tuple(sorted(hashable(hyperparameters).items())))
    if found := differences(reference, theirs, steps):
        settings = ", ".join(f"{k}={x}" for k, x in hyperparameters.items())
        lines = "\n  ".join(found)
        raise AssertionError(
            f"this does not learn like our {algo} on {env} ({SEEDS} seeds, {settings}):\n  {lines}"
        )


def hashable(hyperparameters: Mapping[str, Any]) -> dict[str, Any]:
    return {k: tuple(x) if isinstance(x, list) else x for k, x in hyperparameters.items()}


def module_of(algo: str) -> Any:
    """The file of an algorithm that learns by control; raises ValueError."""
    with contextlib.suppress(ModuleNotFoundError):
        module = importlib.import_module(f"manyseeds.algos.{algo}")
        if issubclass(getattr(module, "Config", object), ControlConfig):
            return module
    raise ValueError(f"{algo}: algos has no file of this name that learns by control")


@lru_cache(maxsize=16)  # several tests may share a reference
def trained(algo: str, env: str, settings: tuple[tuple[str, Any], ...]) -> Reference:
    """Train the reference."""
    module, given = module_of(algo), dict(settings)
    free = {x for x, marks in field_marks(module.Config).items() if Execution() not in marks}
    if unknown := given.keys() - (free - GIVEN):
        raise UsageError(f"{algo} has no hyperparameter {', '.join(sorted(unknown))}")
    run = Run(module.Config(env=env, seeds=SEEDS, quiet=True, **given))
    module.train(run.config, run)
    curve = run.curve().query("mode == 'greedy'")
    table = curve.pivot(index="seed", columns="timestep", values="return_mean")
    steps, curves = table.columns.to_numpy(dtype=np.float64), table.to_numpy(dtype=np.float64)
    spec = run.env.spec
    return reference_of(steps, curves, spec.random_score, spec.reference_score)


def reference_of(
    timesteps: Floats, returns: Floats, random: float | None, best: float | None
) -> Reference:
    """Curves with the scores of their environment; unknown ones are those of the curves."""
    if random is None or best is None:
        random, best = float(returns[:, 0].mean()), float(np.nanmax(late(timesteps, returns)))
    return Reference(timesteps, np.where(np.isfinite(returns), returns, random), random, best)


def late(timesteps: Floats, returns: Floats) -> Floats:
    """The mean return of the evaluations in the last share of a training, [S]."""
    first = (1 - LAST_SHARE) * timesteps[-1]
    # An evaluation may come late by as long as an update takes.
    return returns[:, timesteps >= first - 0.5 * LAST_SHARE * timesteps[-1] / 4].mean(1)


def checked(
    returns: ArrayLike, timesteps: ArrayLike | None, total: int
) -> tuple[Floats, Floats | None]:
    """Returns [S, K] and timesteps [K], or returns [S] and none; raises ValueError."""
    theirs = np.asarray(returns, dtype=np.float64)
    steps = None if timesteps is None else np.asarray(timesteps, dtype=np.float64)
    shape = () if steps is None else steps.shape
    if not theirs.ndim or len(theirs) < FEWEST or theirs.shape[1:] != shape or len(shape) > 1:
        raise ValueError(
            f"need returns [S] or, with timesteps [K], [S, K] of at least {FEWEST} seeds; got "
            f"{list(theirs.shape)} with {'no' if steps is None else list(shape)} timesteps"
        )
    if steps is not None:
        low, high = (share * total for share in NEAR_THE_END)
        theirs, steps = theirs[:, steps <= high], steps[steps <= high]
        if len(steps) < 2 or steps[0] < 0 or not (np.diff(steps) > 0).all():
            raise ValueError(f"timesteps must be at least two up to {high:g}, in order")
        if steps[-1] < low:
            raise ValueError(
                f"timesteps: none from {low:g} to {high:g}, where a training of {total} ends"
            )
    return theirs, steps


def differences(reference: Reference, theirs: Floats, steps: Floats | None) -> list[str]:
    """The tests that fail, each as a sentence."""
    theirs = np.where(np.isfinite(theirs), theirs, reference.random)
    scale = abs(reference.best - reference.random)
    found: list[str] = []
    if steps is None:
        # One evaluation each: a mean of several, as below, would be steadier.
        scores = spreads = reference.returns[:, -1], theirs
    else:
        ours = reference.at(steps)
        spreads = stats.area_under_curve(steps, ours), stats.area_under_curve(steps, theirs)
        found += lower("slower", "the mean return over training", *spreads, scale)
        scores = late(steps, ours), late(steps, theirs)
        found += copies(theirs)
    found += lower("lower", "the mean return at the end", *scores, scale)
    found += more_failures(*scores, reference.random)
    found += too_alike(*spreads)
    return found


def lower(test: str, what: str, ours: Floats, theirs: Floats, scale: float) -> list[str]:
    """Whether theirs are lower by more than the margin of a test."""
    margin = MARGINS[test] * scale
    p = one_sided(theirs + margin, ours)
    if p >= LEVEL / TESTS:
        return []
    return [
        f"{test}: {what} is {theirs.mean():.1f}, that of the reference {ours.mean():.1f}: lower by "
        f"more than {margin:.1f} (p = {p:.2g})"
    ]


def one_sided(theirs: Floats, ours: Floats) -> float:
    """That theirs are distributed as ours, where their mean is lower; else 1.

    By the difference of means, as a right training spreads as ours does, too: Welch's t, which
    allows for other spreads, needs more seeds to find as much.
    """
    from scipy.stats import permutation_test

    if theirs.mean() >= ours.mean():
        return 1.0

    def difference(a: Floats, b: Floats, axis: int) -> Any:
        return a.mean(axis=axis) - b.mean(axis=axis)

    rng = np.random.default_rng(stats.BOOTSTRAP_SEED)
    sides, draws = (theirs, ours), stats.RESAMPLES
    return float(
        permutation_test(sides, difference, n_resamples=draws, alternative="less", rng=rng).pvalue
    )


def more_failures(ours: Floats, theirs: Floats, random: float) -> list[str]:
    """Fisher's exact test of how many seeds stay below half of what the median seed reaches.

    The median of both sides: by that of one, its own luck would set the bar for the other.
    """
    from scipy.stats import fisher_exact

    bar = (random + float(np.median(np.concatenate([ours, theirs])))) / 2
    failed = [int((side < bar).sum()) for side in (theirs, ours)]
    table = [[k, len(side) - k] for k, side in zip(failed, (theirs, ours), strict=True)]
    p = float(fisher_exact(np.array(table), "greater").pvalue)
    if p >= LEVEL / TESTS:
        return []
    return [
        f"more failures: {failed[0]} of {len(theirs)} seeds end below {bar:.1f}, of the reference "
        f"{failed[1]} of {len(ours)} (p = {p:.2g})"
    ]


def too_alike(ours: Floats, theirs: Floats) -> list[str]:
    """Whether the spread around the median is below a share of ours."""
    spread, other = (np.abs(side - np.median(side)) for side in (ours, theirs))
    p = one_sided(other / SPREAD, spread)
    if p >= LEVEL / TESTS:
        return []
    return [
        f"too alike: seeds differ by {other.mean():.3g} from their median, those of the reference "
        f"by {spread.mean():.3g} (p = {p:.2g}): is the seed used everywhere?"
    ]


def copies(theirs: Floats) -> list[str]:
    """Seeds with the same curve, where it is neither at the bottom nor at the top."""
    inner = (theirs > theirs.min()) & (theirs < theirs.max())
    S = len(theirs)
    same = [
        (i, j)
        for i in range(S)
        for j in range(i + 1, S)
        if inner[i].sum() > 2 and np.array_equal(theirs[i], theirs[j])
    ]
    if not same:
        return []
    i, j = same[0]
    return [f"too alike: {len(same)} pairs of seeds have the same curve, such as {i} and {j}"]
