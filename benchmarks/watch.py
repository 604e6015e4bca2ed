"""Films a trained policy in Gymnasium's own environment, or compares its returns there with ours.

    python benchmarks/watch.py results/runs/CartPole-v1/ppo/169f4dbf
    python benchmarks/watch.py --learning results/runs/CartPole-v1/ppo/169f4dbf
    python benchmarks/watch.py --check results/runs/CartPole-v1/ppo/169f4dbf [RUN ...]

A RUN is the folder of a run or one of its parts `seeds-000-009`, with weights on this machine. Of
most published runs the weights of the median and the worst seed are there (results/policies).
The module of an environment `module:Name-v0` is imported only if `--env module:Name-v0` says so.

**The film**, a GIF, is drawn by Gymnasium's renderer, and by ours for Gridworld-v0:
the greedy policy of the median seed by final return, or of `--seed`, in episodes that begin with
`reset(seed=0)`, `reset(seed=1)`, ... It runs at the environment's speed; see web/film.py. With
`--learning` that seed is trained again, alone and in memory, and shown as it was at its start and
end and at the evaluations nearest to 5, 15 and 40% of the training. If its weights are not those
that are stored, a note says so.

**The check** plays the same greedy policies on our native environment and on Gymnasium's own, E
episodes of each of the S seeds on each side. States are not copied from one side to the other, so
it covers what tests of the dynamics may miss: observations, actions, rewards, episode ends.

- All E S episodes of a side are independent: each seed has its own start states and transition
  noise. (`manyseeds.evaluate` gives all seeds the same ones. That is right for comparing
  algorithms, but here their error would be common to all seeds and invisible to an interval over
  seeds.)
- The policies are the same on both sides, so their spread is not an error of the difference. The
  difference of the two episodes e is one observation. Observations are resampled within each seed,
  which is the stratified bootstrap of `stats.estimate` with the seeds as tasks.
- The verdict is "agrees" if the 95% interval of the difference of means contains 0, else "differs".
  Correct environments "differ" by chance in one row of twenty. More `--episodes` narrow the
  interval, whose width is the largest difference that could have been missed.
- A seed that diverged in training has no policy and is left out.

A second table shows each seed's return in Gymnasium beside its final score in the run, with the
interval that contains the mean of E other episodes in about 95% of cases. `--out FOLDER` keeps the
first table as check.json (the published one: `--out results/tables`).
"""

from __future__ import annotations

from manyseeds.command import failing_in_one_line

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from tyro.conf import Positional

from manyseeds import envs, stats
from manyseeds.benchmarks.chapters.environment_pages import in_other_episodes
from manyseeds.benchmarks.measurements.measure import origin
from manyseeds.benchmarks.measurements.native import COLUMNS, Checked
from manyseeds.benchmarks.store.again import machine_bound, train_again
from manyseeds.benchmarks.store.names import display
from manyseeds.benchmarks.store.results import load_result
from manyseeds.benchmarks.store.stored import file_name, open_run
from manyseeds.benchmarks.store.trained import Trained, load_trained, median_seed
from manyseeds.benchmarks.web.film import film
from manyseeds.cli import given_runs, parse, path_of
from manyseeds.digest import origin_of
from manyseeds.errors import UsageError
from manyseeds.evaluate import CHUNK, FINAL_EPISODES
from manyseeds.process import set_up_process
from manyseeds.progress import print_table
from manyseeds.record import RunFolder, plural, ranges
from manyseeds.runs.control import Run, Snapshot
from manyseeds.runs.stale import part_is_stale
from manyseeds.seeds import SeedStreams
from manyseeds.stats import Estimate, Floats
from manyseeds.writing import write_bytes, write_json

MIN_EPISODES = 20  # per seed and side: a bootstrap of fewer is far too sure of itself
RESAMPLES = 2000
STAGES = (0.0, 0.05, 0.15, 0.4)  # of a training, besides its end; early on a policy changes most
PUBLISHED = (
    "environment",
    "algorithm",
    "seed",
    "final score [95% of other episodes]",
    "in Gymnasium",
    "",
)


# ---- The film -------------------------------------------------------------------------------


class Learning(Run):
    """A training that keeps the policy of every evaluation."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.kept: dict[int, Any] = {}  # by timestep

    def _evaluate(self, snapshot: Snapshot) -> None:
        super()._evaluate(snapshot)
        self.kept[int(snapshot.timesteps[0])] = copy.deepcopy(snapshot.policy)


def learning_of(trained: Trained, seed: int) -> dict[int, Trained]:
    """The policies of a seed, by timesteps of its training, which is repeated."""
    run = open_run(RunFolder(trained.run))
    total, config = trained.config.total_timesteps, run.configs[0]
    print(f"trains seed {seed} again, {total:,} timesteps", flush=True)
    again = train_again(run.parts[0], config, [seed], Learning)
    assert isinstance(again.run, Learning)
    kept = again.run.kept
    row, last = trained.seeds.index(seed), max(kept)
    policies: tuple[Any, Any] = trained.policy, kept[last]
    sides = (policy.state_dict().values() for policy in policies)
    if not all(torch.equal(stored[row], here[0]) for stored, here in zip(*sides, strict=True)):
        changed = "its code has changed since" if part_is_stale(config) else machine_bound(config)
        print(f"note: other weights than the stored ones{changed and ': '}{changed}")
    nearest = {min(kept, key=lambda t: abs(t - share * total)) for share in STAGES}
    return {t: replace(trained, policy=kept[t], seeds=[seed]) for t in sorted({*nearest, last})}


def watch(
    path: str,
    out: Path | None,
    seed: int | None,
    episodes: int,
    fps: float | None,
    trusted_env: str = "",
    learning: bool = False,
) -> None:
    """Write the film of a run, by default RESULTS/watch/ENV-ALGORITHM.gif.

    learning: show the seed at several points of its training, RESULTS/watch/ENV-ALGORITHM-learning.
    """
    parts = load_trained(path, trusted_env)
    if seed is None:
        seed = median_seed(parts)
    trained = next((part for part in parts if seed in part.seeds), None)
    if trained is None:
        there = ranges(s for part in parts for s in part.seeds)
        raise UsageError(f"--seed {seed}: {path} has weights of the seeds {there}")
    if out is None:
        name = file_name(f"{trained.config.env}-{trained.algo}")
        out = trained.results / "watch" / f"{name}{'-learning' if learning else ''}.gif"
        out.parent.mkdir(exist_ok=True)
    stages = partial(learning_of, trained, seed) if learning else None
    made = film(trained, seed, episodes, fps, stages)
    write_bytes(out, made.gif)
    print("\n".join(made.episodes))
    print(f"film: {out} ({made.size})")


# ---- The check ------------------------------------------------------------------------------


@torch.inference_mode()
def episode_returns(
    env: envs.Env, act: Callable[[Tensor], Tensor], seeds: Sequence[int], episodes: int
) -> Floats:
    """Returns of greedy episodes, `[S, E]`; each seed has its own starts and noise."""
    S, E = len(seeds), episodes
    streams = SeedStreams(seeds, "start-states")
    state, obs = env.reset(streams.uniform(E, env.initial_noise))
    alive = torch.ones(S, E, dtype=torch.bool)
    returns = torch.zeros(S, E, dtype=torch.float64)
    for t in range(env.spec.time_limit):
        if t % CHUNK == 0:
            if not alive.any():
                break
            noise = streams.uniform(CHUNK, E, env.noise_size)
        step = env.step(state, act(obs), noise[:, t % CHUNK])
        state, obs = step.state, step.obs
        returns += step.reward * alive
        alive &= ~(step.terminated | step.truncated)
    # As in manyseeds.evaluate: a non-finite return counts as a random policy's.
    failure_score = env.spec.random_score
    assert failure_score is not None, "every native environment has one; nan_to_num(None) is 0"
    return returns.nan_to_num(*[failure_score] * 3).numpy()


def difference_of_means(native: Floats, gymnasium: Floats) -> Estimate:
    """Mean of native minus mean of Gymnasium, with its 95% interval over episodes.

    Returns `[S, E]` each, all episodes independent.
    """
    return stats.estimate(list(native - gymnasium), "mean", resamples=RESAMPLES)


def check(path: str, parts: Sequence[Trained], episodes: int) -> Checked:
    """Play the policies of a run on both sides. Raises UsageError where every seed diverged."""
    native = parts[0].env
    gymnasium: envs.Env
    if isinstance(native, envs.Discretize):  # `Trained.act` bins what Gymnasium shows
        gymnasium = envs.make(native.spec.id, backend="gymnasium")
    else:
        gymnasium = replace(parts[0].config, backend="gymnasium").make_env()
    returns: dict[int, tuple[Floats, Floats]] = {}  # by seed, [E] each
    for part in parts:
        ours = episode_returns(native, part.act_natively, part.seeds, episodes)
        theirs = episode_returns(gymnasium, part.act, part.seeds, episodes)
        for seed, here, there in zip(part.seeds, ours, theirs, strict=True):
            if seed not in part.diverged:
                returns.setdefault(seed, (here, there))
    if not returns:
        raise UsageError(f"{path}: every seed diverged")
    ours, theirs = (np.stack(side) for side in zip(*returns.values(), strict=True))
    return Checked(
        env=native.spec.id,
        algo=parts[0].algo,
        run=parts[0].run.name,
        seeds=list(returns),
        native=ours.mean(1),
        gymnasium=theirs.mean(1),
        difference=difference_of_means(ours, theirs),
    )


def against_published(checked: Checked, run: Path, episodes: int) -> list[tuple[str, ...]]:
    """A row for each seed of a run: its final score, where the mean return of so many other
    episodes falls in about 95% of cases, and what it is in Gymnasium. None where that is unknown:
    where scores are exact, or all returns equal, and for seeds of another layer."""
    result = load_result(open_run(RunFolder(run)))
    rows: list[tuple[str, ...]] = []
    for seed, found in zip(checked.seeds, checked.gymnasium, strict=True):
        if seed not in result.seeds:
            continue
        expected = in_other_episodes(result, seed, episodes)
        if math.isnan(expected.low):
            continue
        within = "within" if expected.low <= found <= expected.high else "outside"
        name = (checked.env, display(checked.algo), str(seed))
        rows.append((*name, expected.text(result.digits), result.number(found), within))
    return rows


def check_all(paths: Sequence[str], episodes: int, out: Path | None) -> None:
    """Check runs of one results folder; print the tables, and keep the first one in `out`."""
    runs = [load_trained(path) for path in paths]  # all of them, before the first is played
    first = [parts[0] for parts in runs]
    folders = [Path(path).resolve() for path in paths]
    for path, folder, part in zip(paths, folders, first, strict=True):
        if folders.count(folder) > 1:
            raise UsageError(f"{path}: given twice")
        if part.results != first[0].results:
            raise UsageError(f"{path}: must lie in {first[0].results}, as {paths[0]} does")
    rows = [check(path, parts, episodes) for path, parts in zip(paths, runs, strict=True)]
    title = (
        f"Native environments against Gymnasium's, {plural(episodes, 'episode')} per seed and side"
    )
    print_table(title, COLUMNS, [row.cells() for row in rows])
    published = [
        line
        for row, part in zip(rows, first, strict=True)
        for line in against_published(row, part.run, episodes)
    ]
    if published:
        print_table("Each policy in its run, and here", PUBLISHED, published)
    if out is None:
        return
    origins = {origin_of(x) for part in first for x in (part.train, *part.env.origins())}
    stored = {
        **origin(sorted({*origins, "manyseeds.benchmarks.watch:check"})),
        "episodes": episodes,
        "rows": [row.json() for row in rows],
    }
    out.mkdir(exist_ok=True)
    write_json(out / "check.json", stored)
    print(f"table: {out / 'check.json'}")


# ---- The command ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Flags:
    runs: Positional[tuple[str, ...]] = ()
    """Folder of a run or of one of its parts; with --check of several."""
    learning: bool = False
    """Train the seed again, and show it at up to five points of its training."""
    check: bool = False
    """Compare returns in our environment and Gymnasium's, and print the tables."""
    seed: int | None = None
    """Seed to show (default: the median seed; the first of equal ones)."""
    out: str = ""
    """Default: RESULTS/watch/ENV-ALGORITHM.gif. With --check: a folder to keep its table in."""
    env: str = ""
    """The run's module:Name-v0. Required to allow the import of its module."""
    fps: float | None = None
    """Steps per second (default: the environment's)."""
    episodes: int | None = None
    """Episodes (default: 1; with --check 100 per seed and side)."""


@failing_in_one_line()
def main(args: Sequence[str] | None = None) -> None:
    """Draw a film of a run, or check its environment."""
    given = parse(Flags, {}, __doc__, args)
    try:
        runs = given_runs(given.runs)
        least = MIN_EPISODES if given.check else 1
        if given.episodes is not None and given.episodes < least:
            raise UsageError(f"--episodes {given.episodes}: must be at least {least}")
        set_up_process(threads=1)
        out = path_of(given.out, "--out") if given.out else None
        if out is not None and not out.absolute().parent.is_dir():
            raise UsageError(f"--out {out}: {out.parent} is not a folder")
        if given.check:
            if out is not None and out.exists() and not out.is_dir():
                raise UsageError(f"--out {out}: is not a folder")
            for name in ("seed", "fps", "env", "learning"):
                if getattr(given, name) != getattr(Flags(), name):
                    raise UsageError(f"--{name}: is for the film, not for --check")
            check_all(runs, given.episodes or FINAL_EPISODES, out)
            return
        if len(runs) > 1:
            raise UsageError(f"{runs[1]}: one film shows one run")
        if given.fps is not None and not 2 <= given.fps <= 1000:
            raise UsageError(f"--fps {given.fps:g}: must be from 2 to 1000")
        if out is not None and out.suffix != ".gif":
            raise UsageError(f"--out {out}: must end in .gif")
        watch(runs[0], out, given.seed, given.episodes or 1, given.fps, given.env, given.learning)
    except OSError as error:  # not writable, a folder of that name
        raise UsageError(str(error)) from None


if __name__ == "__main__":
    main()
