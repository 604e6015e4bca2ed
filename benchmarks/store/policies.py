"""Trained policies that are published: of each run, those of the median and of the worst seed.

A published run comes without weights. Beside the runs,
RESULTS/policies/ENV/ALGORITHM/NAME.safetensors holds the weights of two of its seeds: that in the
middle by final greedy return, and the last one. A seed trains to the same bits in any batch, so
`keep` trains these two anew, and compares what they score with what is published before it writes
them. `benchmarks/watch.py` shows them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from manyseeds.benchmarks.experiments.suite import Cell
from manyseeds.benchmarks.experiments.verdicts import FIRST_FRESH
from manyseeds.benchmarks.store.again import train_again
from manyseeds.benchmarks.store.stored import StoredRun, open_run
from manyseeds.checkpoint import read_about, to_bytes
from manyseeds.cli import ControlConfig, identity
from manyseeds.errors import UsageError
from manyseeds.record import commit, plural, ranges
from manyseeds.runs.stale import part_is_stale
from manyseeds.stats import Estimate
from manyseeds.worth import worths_of
from manyseeds.writing import write_bytes

MAX_BYTES = 10 * 2**20  # of all files together
Finals = dict[int, float | None]  # by seed; None: diverged, or unknown


def policies_name(run: Path) -> str:
    """Where the policies of a run RESULTS/runs/ENV/ALGORITHM/NAME lie in RESULTS."""
    env, algo, name = run.parts[-3:]
    return f"policies/{env}/{algo}/{name}.safetensors"


def policies_file(run: Path) -> Path:
    """The file of policies of a published run."""
    return run.parents[3] / policies_name(run)


def final_scores(run: StoredRun) -> Finals:
    """The final score of every seed, ascending; where there are others, without the fresh ones that
    only a revised verdict asks for."""
    found: Finals = {}
    for summary in reversed(run.summaries):
        found |= {seed: worth.score for seed, worth in worths_of(summary).items()}
    first = {seed: score for seed, score in sorted(found.items()) if seed < FIRST_FRESH}
    return first or found


def median_and_worst(final: Mapping[int, float | None]) -> list[int]:
    """The seed in the middle by final return (of two, the lower return) and the last one.

    Of seeds with equal returns, the lowest number; where both are the same seed, it alone. One
    without a score is worse than any.
    """

    def rank(seed: int) -> float:
        score = final[seed]
        return -math.inf if score is None or math.isnan(score) else score

    ranked = sorted(final, key=rank)  # stable: the lower number first
    middle = rank(ranked[(len(ranked) - 1) // 2])
    median = min(seed for seed in final if rank(seed) == middle)
    return list(dict.fromkeys((median, ranked[0])))


def of_other_episodes(score: float, std: float, episodes: int, others: int) -> Estimate:
    """Where the mean return of one policy over `others` new episodes falls in about 95% of cases.

    score, std: the mean and the standard deviation (ddof 0, as curves have it) of its returns over
    `episodes`. All seeds are evaluated from the same start states, and no interval over seeds has
    the noise of these. This is Student's prediction interval, with the noise of both sides.
    It is too narrow where failures are so rare that the episodes had none, and for a seed that was
    chosen because it was the worst. There is none (low and high are NaN) for an exact score (std
    NaN), which is no mean of episodes, and where all returns are equal.
    """
    from scipy.stats import t  # takes most of a second to import

    if not std > 0:
        return Estimate(score, math.nan, math.nan, episodes)
    error = std * math.sqrt(episodes / (episodes - 1) * (1 / episodes + 1 / others))
    half = float(t.ppf(0.975, episodes - 1)) * error
    return Estimate(score, score - half, score + half, episodes)


def keeps(cell: Cell) -> bool:
    """Whether the policies of a cell are published: ours, of control."""
    ours = cell.source == "manyseeds" and cell.package == "algos"
    return ours and not cell.first_seed and isinstance(cell.config(), ControlConfig)


def lacking(cells: Sequence[Cell], results: str) -> list[Cell]:
    """The cells that are finished, and whose policies are to be published and are not."""
    by_run = {cell.folder(results).path: cell for cell in cells if keeps(cell)}
    return [
        cell
        for path, cell in by_run.items()
        if cell.folder(results).parts() and not is_kept(path, open_run(cell.folder(results)))
    ]


def keep(cells: Sequence[Cell], results: str) -> list[str]:
    """Publish the policies that cells lack; a line for each that cannot be, with the reason."""
    failed = []
    for cell in lacking(cells, results):
        try:
            scores = train_and_write(cell, results)
        except UsageError as error:
            failed.append(f"policies of {cell}: {error}")
            print(f"failed    {failed[-1]}", flush=True)
        else:
            said = ", ".join(f"seed {seed} scores {score:.6g}" for seed, score in scores.items())
            print(f"kept      policies of {cell}: {said}", flush=True)
    return failed


def is_kept(path: Path, run: StoredRun) -> bool:
    """Whether the policies of a run are there, with what these seeds score in it now."""
    final = final_scores(run)
    wanted = median_and_worst(final)
    try:
        about = read_about(policies_file(path))
    except UsageError:
        return False
    return (about["seeds"], about.get("final")) == (wanted, [final[seed] for seed in wanted])


def train_and_write(cell: Cell, results: str) -> Finals:
    """Train the two seeds of a cell anew and write their policies; their final scores.

    Raises UsageError where the run's code has changed since, where a seed scores something else
    than is published, and where all files together would become too large.
    """
    run = open_run(cell.folder(results))
    if any(part_is_stale(config) for config in run.configs):
        raise UsageError("is stale: its code has changed since; train it again first")
    final = final_scores(run)
    seeds = median_and_worst(final)
    again = train_again(run.parts[0], run.configs[0], seeds)
    found = worths_of(again.summary)
    scores: Finals = {seed: found[seed].score for seed in seeds}
    published = {seed: final[seed] for seed in seeds}
    if scores != published:
        raise UsageError(
            f"seeds {ranges(seeds)} score {list(scores.values())} here, "
            f"{list(published.values())} as published"
        )
    about = {
        "algo": cell.algo,
        "config": identity(again.run.config),
        "seeds": seeds,
        "final": list(scores.values()),
        "commit": commit(),
    }
    path = policies_file(cell.folder(results).path)
    content = to_bytes(again.result.state_dict(), about)
    others = (f for f in path.parents[2].rglob("*.safetensors") if f != path)
    total = len(content) + sum(f.stat().st_size for f in others)
    if total > MAX_BYTES:
        raise UsageError(f"{path}: {plural(total, 'byte')} in all, more than {MAX_BYTES}")
    path.parent.mkdir(parents=True, exist_ok=True)
    write_bytes(path, content)
    return scores
