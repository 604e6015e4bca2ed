"""Sweeps on a real Slurm of one node: `make slurm-test` installs what this needs."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from manyseeds.benchmarks.experiments.suite import Cell
from manyseeds.record import read_json
from tests import slurm_node
from tests.benchmarks.test_launchers import (
    CELLS,
    PARTS,
    by_hand,
    check_equal,
    end,
    said,
    sealed_parts,
    start,
)
from tests.benchmarks.test_sweep import wait_for
from tests.ray_cluster import installed
from tests.slurm_node import Slurm

__all__ = ["by_hand"]  # a fixture

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not (installed("submitit") and slurm_node.installed()), reason="no Slurm: make slurm-test"
    ),
]
WORDS = ("--launcher", "slurm", "--block", "2", "--slurm", "partition=low")
# Some seconds of training, within which something can happen to it.
LONGER = Cell("ppo", "CartPole-v1", 1, settings={"total_timesteps": 400_000})


@pytest.fixture(scope="module")
def slurm() -> Iterator[Slurm]:
    with Slurm() as running:
        yield running


def start_sweep(slurm: Slurm, cells: tuple[Cell, ...], results: Path) -> subprocess.Popen[str]:
    return start(cells, results, *WORDS, SLURM_CONF=slurm.environment["SLURM_CONF"])


def begun(results: Path) -> list[Path]:
    """The parts that are being trained."""
    return [p.parent for p in results.glob("runs/*/ppo/*/seeds-*/config.json")]


def test_slurm_gives_the_bits_of_a_run_by_hand(slurm: Slurm, by_hand: Path, tmp_path: Path) -> None:
    """Also when the sweep is stopped: the next one waits for the jobs that it has submitted.

    Without a time limit of the person's own they have a day.
    """
    process = start_sweep(slurm, CELLS, tmp_path)
    jobs = tmp_path / "logs" / "slurm" / "jobs.json"
    wait_for(lambda: jobs.exists() and len(read_json(jobs)) == PARTS, 300)
    job = next(iter(read_json(jobs).values()))
    assert "TimeLimit=1-00:00:00" in slurm.call("scontrol", "show", "job", job)
    process.send_signal(signal.SIGINT)
    _, err = end(process, 130)
    assert err == "interrupted; the same command again runs what is missing\n"
    lines, _ = end(start_sweep(slurm, CELLS, tmp_path))
    assert len(said(lines, "waiting")) + len(said(lines, "skipped")) > 0
    assert not said(lines, "started")
    check_equal(tmp_path, by_hand)


@pytest.mark.parametrize("how", ["preempted", "signalled"])
def test_a_job_that_is_preempted_is_queued_again(how: str, slurm: Slurm, tmp_path: Path) -> None:
    """By Slurm, which ends its processes; or by the signal that comes before its time limit."""
    results = tmp_path / "results"
    process = start_sweep(slurm, (LONGER,), results)
    wait_for(lambda: begun(results), 300)
    (job,) = read_json(results / "logs" / "slurm" / "jobs.json").values()
    if how == "preempted":
        slurm.call("sbatch", "-p", "high", "-c", "2", "-o", "/dev/null", "--wrap", "sleep 3")
    else:
        slurm.call("scancel", "--signal=USR2", job)

    wait_for(lambda: "Restarts=1" in slurm.call("scontrol", "show", "job", job), 120)
    lines, _ = end(process)
    assert len(said(lines, "finished")) == 1
    (done,) = sealed_parts(results)
    alone = tmp_path / "alone"
    end(start((LONGER,), alone))
    check_equal(results, alone)
    (log,) = (results / "logs").glob("*.log")
    assert ("interrupted; the same command again" in log.read_text()) == (how == "signalled")


@pytest.mark.parametrize(
    ("option", "said"), [("partition=none", "nvalid partition"), ("colour=red", "colour")]
)
def test_what_slurm_refuses_is_one_line(
    option: str, said: str, slurm: Slurm, tmp_path: Path
) -> None:
    conf = slurm.environment["SLURM_CONF"]
    _, err = end(start(CELLS, tmp_path, *WORDS[:-1], option, SLURM_CONF=conf), 2)
    assert err.startswith("error: ")
    assert said in err
    assert err.count("\n") == 1
