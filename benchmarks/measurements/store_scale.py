"""Measures the cost of a store with thousands of parts: files, bytes, CPU time and memory.

    python benchmarks/store_scale.py                    # 100, 1,000 and 10,000 parts
    python benchmarks/store_scale.py --parts 1000

A store is simulated in a temporary folder: parts of one seed each, thirty to a run, in the format
and about the size of real ones, with scores from a random generator. Its runs are the control cells
of experiments/suite.py; beyond these, cells with other learning rates. The commands that read a
store are then started on it, each as a process of its own: the report, a comparison of two runs,
and the sweep's planning (`sweep.py --dry-run`) of every suite. The seconds are those of the
processor, which other work on the machine changes little. The first row is planning with an empty
store.
"""

from __future__ import annotations

from manyseeds.command import failing_in_one_line

import dataclasses
import hashlib
import itertools
import json
import os
import subprocess
import sys
import tempfile
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from manyseeds.benchmarks.experiments.suite import SUITES, Cell
from manyseeds.cli import ControlConfig, PositiveInt, identity, parse
from manyseeds.digest import ROOT
from manyseeds.errors import UsageError
from manyseeds.progress import print_table
from manyseeds.record import DONE, POLICY, SCHEMA, RunFolder, part_name, provenance
from manyseeds.runs.control import Run
from manyseeds.writing import parquet_bytes

SEEDS = 30  # of a run, each a part
SHARES = np.linspace(0, 1, 21)  # of the budget, at which a curve has points


@dataclass(frozen=True, kw_only=True)
class Flags:
    """Flags of the measurement."""

    parts: tuple[PositiveInt, ...] = (100, 1_000, 10_000)
    """Sizes of the stores."""


# ---- The simulated store --------------------------------------------------------------------


def cells() -> Iterator[Cell]:
    """The control cells of the suites, each run once, then more with other learning rates."""
    seen = set()
    found = [cell for suite in SUITES.values() for cell in suite]
    found = [cell for cell in found if cell.package == "algos" and not cell.first_seed]
    for cell in found:
        path = cell.folder().path
        if isinstance(cell.config(), ControlConfig) and path not in seen:
            seen.add(path)
            yield cell
    ours = [cell for cell in SUITES["classic-control"] if cell.source == "manyseeds"]
    for k in itertools.count(1):
        for cell in ours:
            rate = 1e-4 + k * 1e-6
            yield dataclasses.replace(cell, settings={**cell.settings, "learning_rate": rate})


def simulate(results: Path, parts: int) -> list[Path]:
    """Write a store of so many parts; its runs."""
    runs: list[Path] = []
    for cell in cells():
        count = min(SEEDS, parts - len(runs) * SEEDS)
        if count <= 0:
            break
        folder = cell.folder(str(results))
        runs.append(folder.path)
        simulate_run(cell, folder, count)
    return runs


def simulate_run(cell: Cell, folder: RunFolder, count: int) -> None:
    """Write the parts of one run, a seed each."""
    config = cell.config()
    assert isinstance(config, ControlConfig)
    start = f"{cell.package}.{cell.algo}:train"
    if cell.source != "manyseeds":
        start = f"manyseeds.benchmarks.{cell.source}_baseline:train"
    head = {"schema": SCHEMA, "kind": "control", "source": cell.source, "algo": cell.label}
    written = {
        **{**head, "env": cell.env, "seeds": [], "config": identity(config)},
        "execution": {"device": "cpu", "threads": 1, "kernels": "torch"},
        "command": "python " + " ".join(cell.command()),
        **provenance([start, *config.origins()], kind=Run.kind_origins()),
    }
    for seed in range(count):
        files = simulated_files(cell, config.total_timesteps, seed)
        files["config.json"] = json.dumps({**written, "seeds": [seed]}, indent=1).encode()
        sums = {name: hashlib.sha256(x).hexdigest() for name, x in sorted(files.items())}
        seal = {"schema": SCHEMA, "weights": POLICY, "local": [POLICY, "curve.png"], "sha256": sums}
        files[DONE] = json.dumps(seal, indent=1).encode()
        part = folder.path / part_name([seed])
        part.mkdir(parents=True)
        for name, content in files.items():
            (part / name).write_bytes(content)


def simulated_files(cell: Cell, total_timesteps: int, seed: int) -> dict[str, bytes]:
    """Curve, metrics, summary and weights of one seed."""
    rng = np.random.default_rng([seed, zlib.crc32(str(cell).encode())])
    level = float(rng.normal(300, 50))
    steps = (SHARES * total_timesteps).astype(int)
    scores = level * SHARES + rng.normal(0, 5, len(SHARES))
    train = np.linspace(0, total_timesteps, 101, dtype=int)[1:]
    curve = pd.concat(
        [
            rows(cell, seed, steps, scores, 7.0, 32, "greedy"),
            rows(cell, seed, steps[-1:], scores[-1:], 7.0, 100, "greedy"),
            rows(cell, seed, steps[-1:], scores[-1:] - 10, 9.0, 100, "sampled"),
            rows(cell, seed, train, level * train / total_timesteps, np.nan, 0, "train"),
        ]
    )
    names = ("train_return", "train_length", "loss", "entropy", "approx_kl")
    values = {name: rng.normal(size=200) for name in names}
    timesteps = np.linspace(0, total_timesteps, 201, dtype=int)[1:]
    final = {
        mode: {"episodes": 100, "per_seed": {str(seed): float(scores[-1] - minus)}}
        for mode, minus in (("greedy", 0), ("sampled", 10))
    }
    summary = {"schema": SCHEMA, "kind": "control", "seeds": [seed], "final": final}
    summary |= {"diverged": {}, "timesteps_per_seed": total_timesteps, "learn_seconds": 10.0}
    return {
        "curve.parquet": parquet_bytes(curve),
        "metrics.parquet": parquet_bytes(
            pd.DataFrame({"seed": seed, "timestep": timesteps, **values})
        ),
        "summary.json": json.dumps(summary, indent=1).encode(),
        POLICY: rng.bytes(40_000),
    }


def rows(
    cell: Cell, seed: int, steps: Any, scores: Any, std: float, episodes: int, mode: str
) -> pd.DataFrame:
    """Rows of a curve."""
    where = {"source": cell.source, "algo": cell.label, "env": cell.env, "seed": seed}
    measured = {"timestep": steps, "learn_s": 0.001 * steps, "return_mean": scores}
    spread = {"return_std": std, "length_mean": scores, "episodes": episodes, "mode": mode}
    return pd.DataFrame({**where, **measured, **spread})


# ---- Measuring ------------------------------------------------------------------------------


def measured(folder: Path, *words: str) -> tuple[float, float]:
    """Processor seconds and peak memory, in MiB, of a script of benchmarks/ in its own process."""
    with (folder / "output.txt").open("w+") as output:
        process = subprocess.Popen(
            [sys.executable, str(ROOT / "benchmarks" / words[0]), *words[1:]],
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=folder,
        )
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)  # Popen would wait for it again
        if process.returncode:
            output.seek(0)
            raise UsageError(f"{' '.join(words)} failed: {output.read()[-300:]}")
    return usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024  # Linux counts in KiB


def measure(parts: int) -> list[str]:
    """A row of the table: what a store of so many parts costs."""
    with tempfile.TemporaryDirectory(prefix="manyseeds-scale-") as text:
        folder = Path(text)
        results = folder / "store"
        (results / "runs").mkdir(parents=True)
        runs = simulate(results, parts)
        sizes = [path.stat().st_size for path in results.rglob("*") if path.is_file()]
        costs = []
        if runs:
            costs.append(measured(folder, "report.py", "--results", str(results)))
            costs.append(measured(folder, "compare.py", *map(str, runs[:2])))  # ours and SB3's
        plans = [
            measured(folder, "sweep.py", "--suite", suite, "--dry-run", "--results", str(results))
            for suite in SUITES
        ]
    planning = (sum(seconds for seconds, _ in plans), max(memory for _, memory in plans))
    shown = [f"{seconds:.1f} s, {memory:,.0f} MiB" for seconds, memory in (*costs, planning)]
    shown = ["", ""] * (not runs) + shown
    return [f"{parts:,}", f"{len(sizes):,}", f"{sum(sizes) / 2**20:,.0f} MiB", *shown]


@failing_in_one_line()
def main(args: Sequence[str] | None = None) -> None:
    """Measure and print the table."""
    flags = parse(Flags, {}, __doc__, args)
    table = [measure(parts) for parts in (0, *flags.parts)]
    header = ("parts", "files", "bytes", "report", "comparison", f"planning {len(SUITES)} suites")
    print_table("Cost of a store", header, table)


if __name__ == "__main__":
    main()
