"""Trains published seeds again and compares them with what is published, to the bit.

    python benchmarks/verify.py                                # ten cells, drawn at random
    python benchmarks/verify.py ppo/CartPole-v1 --seeds 3      # of cells with this name
    python benchmarks/verify.py CartPole-v1/ppo/169f4dbf       # one cell
    python benchmarks/verify.py grpo/addition                  # of a language model
    python benchmarks/verify.py examples--sums.py--Sums --updates 2    # of one from a folder

A cell is a run: an algorithm on an environment with one set of hyperparameters. Its seeds are
trained as its record says, by the code of this checkout, in memory: nothing is written but the
models that language models begin with. What is compared is the SHA-256 of a seed's weights, all
rows of its curve (timesteps, returns, lengths) and the return of every episode of its evaluations;
of a language model all rows of its curve and of the metrics of its updates; of a prediction all
values, of a plan all sweeps. A line for each seed:

    equal    to the bit
    close    of a language model from a folder: but for rounding
    DIFFERS  the first difference: file, timestep, column, both values
    FAILED   cannot be trained here

On native environments a seed has the same bits alone and in any batch, with any number of threads,
compiler and CPU; so has a small Llama that begins with a model of ours, such as `tiny`. What this
does not hold for is left out, and counted: other libraries, other language models, Gymnasium's own
environments (`--backend gymnasium`, `--env-kwargs`, ids that are not native), what was trained on
CUDA, or by PyTorch without a C compiler. What other code has trained is not drawn. Where it is
named it is trained all the same, and its line says so: if it differs, check out the commit that
trained it. Without a C compiler here there is nothing to compare.

A language model from a folder takes too long to be trained whole. With `--updates 2` the first two
updates are, without evaluations, and their metrics are compared with the published ones. The model
must have a folder here (`make smol` makes that of SmolLM2) with the published contents. PyTorch
gives the same bits with equal versions, threads and instructions of the CPU. With others they are
close, within 0.01% or a millionth, until rounding makes a drawn token another one: from there on
they differ. One seed that is close is not so by chance.

The exit status is 0 if all seeds are equal or close, otherwise 1.
"""

from __future__ import annotations

from manyseeds.command import failing_in_one_line

import json
import random
import secrets
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from tyro.conf import Positional

from manyseeds import kernels
from manyseeds.benchmarks.experiments import catalog
from manyseeds.benchmarks.store import language_again
from manyseeds.benchmarks.store.again import Again, machine_bound, train_again
from manyseeds.benchmarks.store.names import display
from manyseeds.benchmarks.store.results import processor
from manyseeds.benchmarks.store.stored import StoredRun, open_runs
from manyseeds.benchmarks.store.whole import progress
from manyseeds.cli import PUBLISHED, NonNegativeInt, PositiveInt, parse, path_of
from manyseeds.errors import UsageError, did_you_mean, printable
from manyseeds.record import layers, plural, provenance, read_json, read_parquet, run_paths
from manyseeds.runs.control import Run
from manyseeds.runs.language import LanguageRun
from manyseeds.runs.language_seeds import SeedsRun
from manyseeds.runs.planning import PlanningRun
from manyseeds.runs.prediction import PredictionRun
from manyseeds.runs.set_aside import differs, seeds_of, trainer
from manyseeds.runs.stale import digest_today
from manyseeds.untrusted import reading

if TYPE_CHECKING:
    import pandas as pd

CLOCK = "learn_s"
TOLERANCE = {"rtol": 1e-4, "atol": 1e-6}  # of equal samples: with AVX2, 3e-5 and 6e-8 were measured
POINTS = ("timestep", "episode", "samples")  # what rows are sorted by, and named after


@dataclass(frozen=True, kw_only=True)
class Flags:
    cell: Positional[tuple[str, ...]] = ()
    """Names of cells, such as ppo, CartPole-v1, ppo/CartPole-v1 or CartPole-v1/ppo/169f4dbf
    (default: all)."""
    cells: PositiveInt = 10
    """Maximum number of cells. Of more than these, some are drawn at random."""
    seeds: PositiveInt = 1
    """Seeds per cell, drawn at random."""
    draw: NonNegativeInt = 0
    """Seed of the draw, which is printed (0: a new one)."""
    updates: NonNegativeInt = 0
    """Number of first updates to verify, of language models from a folder; other runs are skipped
    (0: verify whole trainings)."""
    results: str = ""
    """Folder with the runs (default: the published ones)."""


# ---- What can be verified -------------------------------------------------------------------


def is_named(run: Path, word: str) -> bool:
    """Whether a word names a run, by its path, of which ENV/ALGORITHM/NAME are the last parts."""
    env, algo, name = run.parts[-3:]
    return word in (env, algo, f"{algo}/{env}") or Path(word).parts[-3:] == (env, algo, name)


def named(results: Path, words: Sequence[str]) -> list[StoredRun]:
    """The runs that any of some words names, or all. Raises UsageError where one names none."""
    paths = {path for layer in layers(results) for path in run_paths(layer)}
    for word in words:
        if not any(is_named(path, word) for path in paths):
            known = sorted({f"{path.parts[-2]}/{path.parts[-3]}" for path in paths})
            raise UsageError(f"CELL {word}: no such run in {results}{did_you_mean(word, known)}")
    return open_runs(results, lambda path: not words or any(is_named(path, word) for word in words))


def why_not(config: Mapping[str, Any], summary: Mapping[str, Any], updates: int = 0) -> str:
    """Why a part cannot be verified, by its config.json and summary.json; '' if it can.

    updates: how many first ones of language models from a folder are to be, and nothing else; 0:
    whole trainings.
    """
    if updates:
        return language_again.why_not(config, whole=False)
    if (reason := machine_bound(config)) or config["kind"] == LanguageRun.kind:
        return reason
    if config["algo"] not in catalog.names("algos"):
        return "of an algorithm that is not in this checkout"
    if config["config"].get("init"):
        return "started from weights of another run"
    known = {*map(str, seeds_of(config))} <= summary.get("weights_sha256", {}).keys()
    return "" if known else "without the SHA-256 of its weights"


def other_code(config: Mapping[str, Any]) -> str:
    """Which other code has trained a part, by its config.json; '' if it is that of today."""
    today = digest_today(tuple(config["code"]["origins"]), config["kind"])
    return f"trained by {trainer(config, today)}" if differs(config, today) else ""


@dataclass(frozen=True, eq=False)
class Cell:
    """A run with the seeds that can be verified."""

    run: StoredRun
    parts: dict[int, int]  # the number of each seed's part
    left_out: tuple[str, ...]  # why others cannot

    @classmethod
    def of(cls, run: StoredRun, stale: bool, updates: int) -> Cell:
        """stale: also what other code has trained. updates: as for `why_not`."""
        parts: dict[int, int] = {}
        reasons = [why_not(*x, updates) for x in zip(run.configs, run.summaries, strict=True)]
        if not stale:
            reasons = [x or other_code(y) for x, y in zip(reasons, run.configs, strict=True)]
        for k, reason in enumerate(reasons):
            if not reason:
                parts = dict.fromkeys(seeds_of(run.configs[k]), k) | parts
        return cls(run, parts, tuple(dict.fromkeys(filter(None, reasons))))

    def __str__(self) -> str:
        run = self.run
        return f"{display(run.algo)} on {run.env_name}, {run.path.name}"

    def seed(self, seed: int) -> str:
        """A seed of it, for people; a plan has none."""
        return f"{self}, seed {seed}" if self.run.configs[0]["seeds"] else str(self)


# ---- Comparing ------------------------------------------------------------------------------


def tables_of(run: Any) -> dict[str, pd.DataFrame]:
    """What a training in memory has measured, by the file in which it is stored."""
    import pandas as pd

    if isinstance(run, SeedsRun):
        each = {"curve.parquet": [x.curve() for x in run.runs]}
        each["metrics.parquet"] = [x.metrics() for x in run.runs]
        return {name: pd.concat(tables) for name, tables in each.items()}
    if isinstance(run, Run):
        return {"curve.parquet": run.curve(), "episodes.parquet": run.episodes()}
    if isinstance(run, PredictionRun):
        found = run.predictions()
        curve = found.curve(run.source, run.algo, run.config.env)
        return {"curve.parquet": curve, "values.parquet": found.values_table()}
    assert isinstance(run, PlanningRun)
    return {"sweeps.json": pd.DataFrame(json.loads(run.replay())["sweeps"]).assign(seed=0)}


def stored_table(file: Path) -> pd.DataFrame:
    """The same of a part."""
    import pandas as pd

    if file.suffix == ".json":
        return pd.DataFrame(read_json(file)["sweeps"]).assign(seed=0)
    return read_parquet(file)


def unequal(stored: pd.Series[Any], ours: pd.Series[Any]) -> np.ndarray:
    """Where two columns differ to the bit, [N] bool; one NaN is as good as another."""
    x, y = stored.to_numpy(), ours.to_numpy()
    if {x.dtype.kind, y.dtype.kind} <= {*"bfiu"}:
        x, y = x.astype(np.float64), y.astype(np.float64)
        return (x.view(np.int64) != y.view(np.int64)) & ~(np.isnan(x) & np.isnan(y))
    return np.array([a != b for a, b in zip(x, y, strict=True)], dtype=bool)


def distant(stored: pd.Series[Any], ours: pd.Series[Any]) -> np.ndarray:
    """Where two columns differ by more than rounding, [N] bool."""
    x, y = stored.to_numpy(np.float64), ours.to_numpy(np.float64)
    return ~np.isclose(x, y, **TOLERANCE, equal_nan=True)


def first_difference(
    stored: pd.DataFrame,
    ours: pd.DataFrame,
    seed: int,
    differ: Callable[[pd.Series[Any], pd.Series[Any]], np.ndarray] = unequal,
) -> str:
    """The first of a seed's rows that differs: where, in which column, both values; '' if none."""
    point = next((name for name in POINTS if name in ours), "")
    both = [frame[frame["seed"] == seed].reset_index(drop=True) for frame in (stored, ours)]
    names = [name for name in ours if name != CLOCK]
    if missing := [name for name in names if name not in stored]:
        return f"no column {missing[0]} published"
    if point:
        both = [rows.sort_values(point, kind="stable", ignore_index=True) for rows in both]
    N = min(map(len, both))
    there, here = (rows[:N] for rows in both)
    differs = np.stack([differ(there[name], here[name]) for name in names], 1)  # [N, names]
    if differs.any():
        row = int(differs.any(1).argmax())
        name = names[int(differs[row].argmax())]
        at = f"{point} {here[point][row]:,}" if point else f"row {row}"
        values = [frame[name].tolist()[row] for frame in (there, here)]
        return f"{at}, {name}: {values[0]} published, {values[1]} here"
    lengths = [*map(len, both)]
    return "" if lengths[0] == lengths[1] else f"{lengths[0]} rows published, {lengths[1]} here"


def other_scores(stored: Mapping[str, Any], ours: Mapping[str, Any]) -> str:
    """The first score of a language model before or after its training that differs; '' if none."""
    for when in ("samples", "diverged", "initial", "final"):
        there, here = stored[when], ours[when]
        if there != here:
            return f"summary.json, {when}: {there} published, {here} here"
    return ""


def difference(cell: Cell, seed: int, again: Again | language_again.Whole) -> str:
    """The first difference between a seed of a cell and the same, trained again; '' if none."""
    k = cell.parts[seed]
    part, summary = cell.run.parts[k], cell.run.summaries[k]
    for name, ours in tables_of(again.run).items():
        with reading(part):
            if found := first_difference(stored_table(part / name), ours, seed):
                return f"{name}, {found}"
    if not isinstance(again, Again):
        return other_scores(summary, again.summaries[again.run.seeds.index(seed)])
    published, here = (x["weights_sha256"][str(seed)] for x in (summary, again.summary))
    return "" if published == here else f"weights: SHA-256 {published} published, {here} here"


def verified(cell: Cell, seeds: Sequence[int]) -> Iterator[tuple[str, list[str]]]:
    """`equal`, `DIFFERS` or `FAILED` for each of some seeds of a cell, and lines about it."""
    k = cell.parts[seeds[0]]
    language = cell.run.kind == LanguageRun.kind
    train = language_again.train_whole if language else train_again
    try:
        again = train(cell.run.parts[k], cell.run.configs[k], seeds)
        differences = {seed: difference(cell, seed, again) for seed in seeds}
    except UsageError as error:
        yield "FAILED", [f"{cell}: {error}"]
        return
    for seed, found in differences.items():
        config = cell.run.configs[cell.parts[seed]]
        lines = [", ".join(filter(None, [cell.seed(seed), other_code(config)]))]
        if found:
            lines[0] += f": {found}"
            build = config["execution"].get("kernels")
            lines.append(f"published: {build_text(build)}")
            lines.append(f"here: {build_text(kernels.execution())}")
        yield "DIFFERS" if found else "equal", lines


def verified_updates(
    cell: Cell, seeds: Sequence[int], updates: int
) -> Iterator[tuple[str, list[str]]]:
    """The same of the first updates of a language model from a folder, which may be `close`.

    One that is not equal has the machines below it: which bits PyTorch gives depends on them.
    """
    for seed in seeds:
        k = cell.parts[seed]
        part, config = cell.run.parts[k], cell.run.configs[k]
        line = ", ".join(filter(None, [cell.seed(seed), other_code(config)]))
        try:
            ours = language_again.train_updates(part, config, seed, updates)
            with reading(part):
                stored = stored_table(part / "metrics.parquet")[:updates]
                found = first_difference(stored, ours, seed)
                apart = first_difference(stored, ours, seed, distant)
        except UsageError as error:
            yield "FAILED", [f"{line}: {error}"]
            continue
        if not found:
            yield "equal", [f"{line}, {plural(len(ours), 'update')}"]
            continue
        here = provenance(())
        machines = [
            f"{where}: {processor(x['machine'])}, torch {x['versions'].get('torch', '?')}"
            for where, x in (("published", config), ("here", here))
        ]
        yield "DIFFERS" if apart else "close", [f"{line}: {apart or found}", *machines]


def build_text(build: Any) -> str:
    """A build of the kernels, as a record of execution has it, for people."""
    return ", ".join(map(str, build.values())) if isinstance(build, dict) else str(build)


# ---- The command ----------------------------------------------------------------------------


def say_left_out(cells: Sequence[Cell], each: bool) -> None:
    """Print why cells, or seeds of them, cannot be verified, for each or in a line for all."""
    found = [(cell, reason) for cell in cells for reason in cell.left_out]
    if each:
        for cell, reason in found:
            print(printable(f"left out {cell}: {reason}"))
    else:  # without the commits of other code
        counts = Counter(reason.partition(" (")[0] for _, reason in found)
        for reason, count in counts.most_common():
            print(printable(f"left out {plural(count, 'cell')} {reason}"))


@failing_in_one_line()
def main(args: Sequence[str] | None = None) -> None:
    """Verify cells; exit status 1 unless all of their seeds are equal or close."""
    flags = parse(Flags, {}, __doc__, args)
    results = path_of(flags.results, "--results") if flags.results else PUBLISHED
    if not flags.updates and kernels.computing() != "C":
        raise UsageError("no C compiler: PyTorch's numbers are equal to rounding only")
    began = time.monotonic()
    runs = named(results, flags.cell)
    cells = [Cell.of(run, stale=bool(flags.cell), updates=flags.updates) for run in runs]
    say_left_out(cells, each=bool(flags.cell))
    cells = sorted((cell for cell in cells if cell.parts), key=lambda cell: cell.run.path)
    if not cells:
        raise UsageError(f"{results}: no cell that can be verified")
    seed = flags.draw or secrets.randbelow(10**6) + 1
    draw = random.Random(seed)
    chosen = draw.sample(cells, min(flags.cells, len(cells)))
    print(f"{len(chosen)} of {plural(len(cells), 'cell')}, drawn by --draw {seed}", flush=True)
    counts = Counter[str]()
    for cell in progress(chosen, len(chosen), "cells"):
        own = sorted(draw.sample(sorted(cell.parts), min(flags.seeds, len(cell.parts))))
        found = verified_updates(cell, own, flags.updates) if flags.updates else verified(cell, own)
        for word, lines in found:
            counts[word] += 1
            for start, line in zip_longest([word], lines, fillvalue=""):
                print(f"{start:<8} {printable(line)}", flush=True)
    said = ("equal", *["close"] * bool(flags.updates), "DIFFERS", "FAILED")
    words = ", ".join(f"{counts[word]} {word}" for word in said)
    print(f"{plural(counts.total(), 'seed')}: {words}, {time.monotonic() - began:.0f} s")
    if counts["DIFFERS"] or counts["FAILED"]:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
