"""`learns_like`: right trainings and draws from stored seeds pass, planted bad curves do not."""

from __future__ import annotations

import time
from functools import cache
from typing import Any

import numpy as np
import pandas as pd
import pytest

from manyseeds import envs
from manyseeds.algos import ppo
from manyseeds.digest import ROOT
from manyseeds.errors import UsageError
from manyseeds.probes import curves, learns_like
from manyseeds.probes.curves import Reference, differences, reference_of
from manyseeds.stats import Floats

# Environment, algorithm and run: the same hyperparameters for all libraries.
SETTINGS = {
    "ppo CartPole-v1": "d4ab5568",
    "ppo Acrobot-v1": "5c7421a1",
    "ppo MountainCar-v0": "facec70a",
    "dqn CartPole-v1": "06933991",
    "dqn Acrobot-v1": "ac5259d8",
    "dqn MountainCar-v0": "cf8c90db",
}
# Neither clips the gradient as its hyperparameters ask for, and rejax's loss is no Huber loss.
OTHER = {("sbx", "dqn CartPole-v1"), ("rejax", "dqn CartPole-v1")}
POOLS = {  # with many seeds of ours, some of which fail
    "ppo CartPole-v1": "169f4dbf",
    "ppo Pendulum-v1": "595a38f5",
    "a2c Acrobot-v1": "83175201",
    "ppo MountainCarContinuous-v0": "2eee682e",
    "dqn CartPole-v1": "06933991",
}


@cache
def stored(env: str, algo: str, run: str) -> tuple[Floats, Floats]:
    """Timesteps [K] and greedy returns [S, K] of a published run."""
    rows = pd.read_parquet(ROOT / "results" / "runs" / env / algo / "curve.parquet")
    rows = rows[(rows["run"] == run) & (rows["mode"] == "greedy")]
    table = rows.pivot_table(index="seed", columns="timestep", values="return_mean").dropna()
    return table.columns.to_numpy(dtype=np.float64), table.to_numpy(dtype=np.float64)


def reference(env: str, timesteps: Floats, returns: Floats) -> Reference:
    spec = envs.NATIVE[env]().spec
    return reference_of(timesteps, returns, spec.random_score, spec.reference_score)


def of_library(library: str, setting: str) -> list[str]:
    """What is found of thirty seeds of a library, and of ten of them."""
    algo, env = setting.split()
    steps, ours = stored(env, algo, SETTINGS[setting])
    ref = reference(env, steps, ours[: curves.SEEDS])
    steps, theirs = stored(env, f"{library}-{algo}", SETTINGS[setting])
    return differences(ref, theirs[:30], steps) + differences(ref, theirs[:10], steps)


@pytest.mark.parametrize("library", ["sb3", "sbx", "rejax"])
@pytest.mark.parametrize("setting", SETTINGS)
def test_right_trainings_pass(library: str, setting: str) -> None:
    """Sixteen; two are none at these hyperparameters."""
    found = of_library(library, setting)
    assert bool(found) == ((library, setting) in OTHER), found


def test_five_percent_of_draws_at_most_are_flagged() -> None:
    """Two hundred: of 3, 5, 10 and 30 seeds, of curves and of final returns."""
    rng, flagged, drawn = np.random.default_rng(0), 0, 0
    for setting, run in POOLS.items():
        algo, env = setting.split()
        steps, pool = stored(env, algo, run)
        for k in range(40):
            order = rng.permutation(len(pool))
            ref = reference(env, steps, pool[order[:30]])
            theirs = pool[order[30 : 30 + (3, 5, 10, 30)[k % 4]]]
            of_curves = k % 8 < 6
            given = (theirs, steps) if of_curves else (theirs[:, -1], None)
            flagged += bool(differences(ref, *given))
            drawn += 1
    assert drawn == 200
    assert flagged <= 0.05 * drawn


# ---- Planted curves ----------------------------------------------------------------------------


def sides(seeds: int = 5) -> tuple[Reference, Floats, Floats]:
    """A reference, and timesteps and returns of other seeds."""
    steps, pool = stored("CartPole-v1", "ppo", POOLS["ppo CartPole-v1"])
    return reference("CartPole-v1", steps, pool[:30]), steps, pool[30 : 30 + seeds]


def names_of(found: list[str]) -> list[str]:
    return [text.partition(":")[0] for text in found]


def test_slower_curves_are_flagged() -> None:
    """They begin to learn after half of the training, and reach as much."""
    ref, steps, theirs = sides()
    late = np.stack([np.interp(steps, (steps + steps[-1]) / 2, row) for row in theirs])
    late[:, -5:] = theirs[:, -5:]
    assert names_of(differences(ref, late, steps)) == ["slower"]


def test_lower_ends_are_flagged() -> None:
    ref, steps, theirs = sides()
    low = theirs.copy()
    low[:, -5:] *= 0.75
    assert names_of(differences(ref, low, steps)) == ["lower"]
    assert names_of(differences(ref, low[:, -1], None)) == ["lower"]


def test_more_failures_are_flagged() -> None:
    ref, steps, theirs = sides(10)
    failing = theirs.copy()
    failing[:3, -5:] = 20.0
    assert "more failures" in names_of(differences(ref, failing, steps))


@pytest.mark.parametrize("noise", [0.0, 1e-3])
def test_seeds_that_are_ignored_are_flagged(noise: float) -> None:
    """Copies, or copies but for rounding."""
    ref, steps, theirs = sides()
    alike = theirs[:1] + noise * np.arange(5)[:, None]
    assert "too alike" in names_of(differences(ref, alike, steps))


def test_one_copy_is_flagged() -> None:
    ref, steps, theirs = sides()
    theirs = theirs.copy()
    theirs[4] = theirs[1]
    (text,) = differences(ref, theirs, steps)
    assert text == "too alike: 1 pairs of seeds have the same curve, such as 1 and 4"


def test_seeds_at_the_ceiling_are_no_copies() -> None:
    ref, steps, _ = sides()
    assert differences(ref, np.full(5, 500.0), None) == []
    perfect = np.full((5, 21), 500.0)
    perfect[:, 0] = 9.0
    assert curves.copies(perfect) == []


def test_what_is_not_finite_counts_as_a_random_policy() -> None:
    ref, steps, theirs = sides(10)
    theirs = theirs.copy()
    theirs[:4, 10:] = np.nan
    found = differences(ref, theirs, steps)
    assert "more failures" in names_of(found)
    assert "nan" not in " ".join(found)


def test_scores_that_are_not_known_are_those_of_the_curves() -> None:
    _, steps, theirs = sides()
    ref = reference_of(steps, theirs, None, None)
    assert ref.random == theirs[:, 0].mean()
    assert ref.best == curves.late(steps, theirs).max()


# ---- With a training -----------------------------------------------------------------------------

SMALL: dict[str, Any] = {
    "total_timesteps": 20_480,
    "learning_rate": 1e-3,
    "num_envs": 8,
    "num_steps": 32,
}
SMALL |= {"minibatch_size": 64, "hidden": [64, 64]}


@pytest.mark.parametrize("algo", ["trrpo", "kernels", "policy_iteration"])
def test_other_algorithms_are_refused(algo: str) -> None:
    with pytest.raises(ValueError, match=f"{algo}: algos has no file of this name that learns by"):
        learns_like(algo, "CartPole-v1", [1.0, 2.0, 3.0], hyperparameters=SMALL)


@pytest.mark.slow
def test_it_trains_its_reference_within_seconds() -> None:
    """Other seeds of the same pass, with a hundredth of the learning rate they do not."""
    curves.trained.cache_clear()
    began = time.process_time()
    ours = curves.trained("ppo", "CartPole-v1", tuple(sorted(curves.hashable(SMALL).items())))
    assert time.process_time() - began < 60
    assert ours.returns.shape == (30, 21)
    run = {k: x for k, x in curves.hashable(SMALL).items() if k != "learning_rate"}
    for rate, passes in ((1e-3, True), (1e-5, False)):
        slow = trained_anew(learning_rate=rate, **run)
        arguments: dict[str, Any] = {"timesteps": slow.timesteps, "hyperparameters": SMALL}
        if passes:
            learns_like("ppo", "CartPole-v1", slow.returns, **arguments)
            continue
        with pytest.raises(AssertionError) as raised:
            learns_like("ppo", "CartPole-v1", slow.returns, **arguments)
        assert "does not learn like our ppo on CartPole-v1 (30 seeds, total_ti" in str(raised.value)
        assert "\n  slower: the mean return over training is " in str(raised.value)


def trained_anew(**settings: Any) -> Reference:
    """Five other seeds."""
    run = curves.Run(ppo.Config(quiet=True, **settings), [100, 101, 102, 103, 104])
    ppo.train(run.config, run)
    curve = run.curve().query("mode == 'greedy'")
    table = curve.pivot(index="seed", columns="timestep", values="return_mean")
    return Reference(table.columns.to_numpy(float), table.to_numpy(float), 22.0, 500.0)


@pytest.mark.parametrize(
    ("returns", "timesteps", "hyperparameters", "error", "said"),
    [
        ([1.0, 2.0, 3.0], None, {}, ValueError, "hyperparameters: total_timesteps is missing"),
        (
            [1.0, 2.0, 3.0],
            None,
            {"total_timesteps": 9, "n_steps": 5},
            UsageError,
            "ppo has no hyper",
        ),
        ([1.0, 2.0], None, SMALL, ValueError, "of at least 3 seeds; got [2] with no timesteps"),
        (np.ones((3, 2)), None, SMALL, ValueError, "got [3, 2] with no timesteps"),
        (
            np.ones((3, 2)),
            [0, 10_000],
            SMALL,
            ValueError,
            "timesteps: none from 18432 to 20889.6, where a training of 20480 ends",
        ),
        *(
            (np.ones((3, len(steps))), steps, SMALL, ValueError, "must be at least two up to 20889")
            for steps in ([0, 40_000], [20_480, 0], [20_480], [-9, 20_480], [0, np.nan])
        ),
        (np.ones((3, 3)), [0, 10, 40_000], SMALL, ValueError, "timesteps: none from 18432"),
        *(
            ([1.0, 2.0, 3.0], None, SMALL | {name: value}, UsageError, "ppo has no hyperparameter")
            for name, value in {"seeds": 5, "env": "CartPole-v1", "quiet": True}.items()
        ),
        (np.ones((3, 2)), [0, 1, 20_480], SMALL, ValueError, "got [3, 2] with [3] timesteps"),
    ],
)
def test_what_is_refused(
    returns: Any, timesteps: Any, hyperparameters: Any, error: Any, said: str
) -> None:
    with pytest.raises(error) as raised:
        learns_like(
            "ppo", "CartPole-v1", returns, timesteps=timesteps, hyperparameters=hyperparameters
        )
    assert said in str(raised.value)
