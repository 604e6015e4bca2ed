"""The cut quick suite by hand and by every launcher that is installed: are all bits equal?

    .venv-ray/bin/python -m tests.quick_by_launchers            # some minutes for each launcher
    .venv-ray/bin/python -m tests.quick_by_launchers local ray

Ray is a cluster of two nodes with a CPU each, Slurm one node with two. By launchers, cells are cut
into blocks of two seeds; curves and weights of each seed have to be those of the run by hand, in
which our algorithms train all seeds of a cell as one batch.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import safetensors.torch
import torch
from torch import Tensor

from manyseeds.benchmarks.experiments.suite import SUITES
from manyseeds.digest import ROOT
from manyseeds.record import POLICY, RunFolder
from tests import slurm_node
from tests.ray_cluster import PYTHON, Cluster, environment, installed

CELLS = [cell.shortened() for cell in SUITES["quick"]]
SWEEP = ("benchmarks/sweep.py", "--suite", "quick", "--cut", "--block", "2", "--workers", "2")


def learned(folder: RunFolder) -> tuple[pd.DataFrame, dict[str, Tensor]]:
    """Curves and weights of all seeds of a run, in order, without the clock."""
    parts = folder.parts()
    curves = pd.concat([pd.read_parquet(part / "curve.parquet") for part in parts])
    keys = ["seed", "timestep", "mode", "episodes"]
    curves = curves.drop(columns="learn_s").sort_values(keys, ignore_index=True)
    files = [part / POLICY for part in parts if (part / POLICY).exists()]
    weights = [safetensors.torch.load_file(file) for file in files]
    return curves, {x: torch.cat([w[x] for w in weights]) for x in (weights[0] if weights else ())}


def different(here: Path, there: Path) -> Iterator[str]:
    """The cells whose curves or weights differ in any bit."""
    for cell in CELLS:
        curves, weights = learned(cell.folder(str(here)))
        curves_there, weights_there = learned(cell.folder(str(there)))
        same = curves.equals(curves_there) and weights.keys() == weights_there.keys()
        if not (same and all(torch.equal(x, weights_there[k]) for k, x in weights.items())):
            yield str(cell)


@contextlib.contextmanager
def variables(launcher: str, folder: Path) -> Iterator[dict[str, str]]:
    """What the environment of a sweep has to name, while its cluster runs."""
    if launcher == "ray":
        with Cluster(folder) as cluster:
            cluster.add(2)
            # SB3's tasks ask for two CPUs, which no node has.
            yield {"RAY_ADDRESS": cluster.address}
    elif launcher == "slurm":
        with slurm_node.Slurm() as slurm:
            yield {"SLURM_CONF": slurm.environment["SLURM_CONF"]}
    else:
        yield {}


def main(launchers: list[str]) -> int:
    """Print a line for each launcher; the number of those that differ."""
    failed = 0
    here = {"ray": installed("ray"), "slurm": installed("submitit") and slurm_node.installed()}
    with tempfile.TemporaryDirectory(prefix="quick-") as name:
        folder = Path(name)
        for cell in CELLS:
            words = cell.command(str(folder / "hand"))
            subprocess.run([PYTHON, *words], cwd=ROOT, env=environment(), check=True)
        for launcher in launchers or ["local", "ray", "slurm"]:
            if not here.get(launcher, True):
                print(f"{launcher}: skipped: not installed; make {launcher}-env or {launcher}-test")
                continue
            (folder / launcher).mkdir()
            with variables(launcher, folder / launcher) as more:
                words = [*SWEEP, "--launcher", launcher, "--results", str(folder / launcher)]
                words[words.index("--workers") + 1] = "1" if launcher == "ray" else "2"
                subprocess.run([PYTHON, *words], cwd=ROOT, env=environment(**more), check=True)
            wrong = list(different(folder / "hand", folder / launcher / "cut"))
            failed += bool(wrong)
            print(f"{launcher}: " + ("; ".join(wrong) or f"{len(CELLS)} cells, all bits equal"))
    return failed


if __name__ == "__main__":
    os.chdir(ROOT)
    sys.exit(main(sys.argv[1:]))
