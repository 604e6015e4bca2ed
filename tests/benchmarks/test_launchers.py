"""Sweeps on several machines: how jobs are divided, what arrives, and faults, injected."""

from __future__ import annotations

import dataclasses
import gzip
import os
import re
import shutil
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manyseeds import ROOMS
from manyseeds.algos import q_learning
from manyseeds.benchmarks import sweep
from manyseeds.benchmarks.experiments import suite
from manyseeds.benchmarks.experiments.suite import SUITES, Cell
from manyseeds.benchmarks.launchers import node
from manyseeds.benchmarks.launchers.display import Display, write_event
from manyseeds.benchmarks.launchers.jobs import Event, all_jobs
from manyseeds.benchmarks.launchers.on_slurm import Command
from manyseeds.benchmarks.measurements.same_bits import compare_parts
from manyseeds.benchmarks.sweep import Plan
from manyseeds.cli import parse
from manyseeds.digest import PACKAGE, ROOT
from manyseeds.errors import UsageError
from manyseeds.record import DONE, STALE, RunFolder, is_finished, read_json, seal
from manyseeds.writing import write_json
from tests.benchmarks.conftest import Output, Patch
from tests.benchmarks.test_sweep import (
    TINY_PPO,
    TINY_Q,
    is_gone,
    sealed,
    start_sweep,
    train_seed_by_seed,
    wait_for,
)
from tests.ray_cluster import PYTHON, Cluster, descendants, environment, installed, kill

CELLS = (
    Cell("q_learning", "FrozenLake-v1", 4, settings=TINY_Q),
    Cell("policy_iteration", "Taxi-v4", 0, settings={"gamma": 0.5}),
)
PPO = Cell("ppo", "CartPole-v1", 2, settings=TINY_PPO)
# Ended long before it is done, but not endless should a test fail.
LONG = Cell("ppo", "CartPole-v1", 1, settings={"total_timesteps": 2_000_000})
HUGE = Cell("ppo", "CartPole-v1", 1, settings={**TINY_PPO, "hidden": (200_000, 200_000)})
PARTS = 3  # of CELLS with blocks of two seeds

ray = pytest.mark.skipif(not installed("ray"), reason="no Ray: make ray-env")
as_root = pytest.mark.skipif(
    os.geteuid() != 0 or not shutil.which("mount"), reason="mounts a file system: as root"
)


def start(
    cells: tuple[Cell, ...], results: Path, *words: str, **variables: str
) -> subprocess.Popen[str]:
    """A sweep of these cells as a process of its own, by the Python that has Ray."""
    words = words or ("--block", "0")
    process: subprocess.Popen[str] = start_sweep(
        cells, results, *words, python=PYTHON, env=environment(**variables)
    )
    return process


def end(process: subprocess.Popen[str], status: int = 0) -> tuple[list[str], str]:
    """Lines and errors of a sweep that has ended with a status."""
    out, err = process.communicate(timeout=900)
    assert process.returncode == status, out + err
    assert "Traceback" not in out + err
    return out.splitlines(), err


def said(lines: list[str], what: str) -> list[str]:
    """The lines of one kind of event."""
    return [line for line in lines if line.startswith(what)]


def parts(results: Path) -> set[str]:
    return {str(path.parent.relative_to(results)) for path in sealed_parts(results)}


def sealed_parts(results: Path) -> list[Path]:
    done = [p for p in results.glob("runs/*/*/*/*/DONE.json") if is_finished(p.parent)]
    assert not list(results.glob("runs/*/*/*/.incoming*"))
    return done


@pytest.fixture(scope="module")
def by_hand(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """CELLS in blocks of two seeds, trained by the commands that a person types."""
    results = tmp_path_factory.mktemp("hand")
    for job in all_jobs(CELLS, 2):
        words = job.command(str(results), 1)
        subprocess.run([sys.executable, *words], check=True, capture_output=True, cwd=ROOT)
    return results


def check_equal(results: Path, by_hand: Path) -> None:
    """Every part bit for bit, and no part besides these."""
    assert parts(results) == parts(by_hand)
    for part in parts(by_hand):
        assert compare_parts(by_hand / part, results / part) is None


# ---- Tasks --------------------------------------------------------------------------------


@given(st.sampled_from(sorted(SUITES)), st.integers(0, 40), st.integers(1, 9))
def test_shards_are_a_suite_and_do_not_overlap(name: str, block: int, count: int) -> None:
    cells = SUITES[name]
    every = [str(job) for job in Plan(results="x", block=block).jobs(cells)]
    shards = [
        [str(job) for job in Plan(results="x", block=block, share=(k, count)).jobs(cells)]
        for k in range(1, count + 1)
    ]
    assert sorted(name for shard in shards for name in shard) == sorted(every)
    assert max(map(len, shards)) - min(map(len, shards)) <= 1


@given(st.integers(0, 2000), st.integers(1, 100), st.integers(1, 40))
def test_blocks_begin_at_multiples_and_are_all_seeds(first: int, seeds: int, block: int) -> None:
    cell = Cell("ppo", "CartPole-v1", seeds, first_seed=first)
    found = [job.seeds for job in all_jobs([cell], block)]
    assert [seed for x in found for seed in x] == list(range(first, first + seeds))
    assert all(x[0] % block == 0 for x in found[1:])
    assert all(len(x) <= block for x in found)


def test_a_device_is_for_our_algorithms_and_names_no_other_run() -> None:
    flags = parse(sweep.Flags, {}, "", ["--suite", "quick", "--device", "cuda"])
    for cell, plain in zip(flags.cells(), SUITES["quick"], strict=True):
        deep = cell.algo != "q_learning"  # tables are trained on the CPU
        assert (cell.config().device == "cuda") == (cell.source == "manyseeds" and deep)
        assert cell.folder().path == plain.folder().path


# ---- What arrives from a node -------------------------------------------------------------


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished part of CELLS[0], seeds 0 and 1."""
    results = tmp_path_factory.mktemp("trained")
    train_seed_by_seed(dataclasses.replace(CELLS[0], seeds=2), q_learning, results, at_once=2)
    return CELLS[0].folder(str(results)).path / "seeds-000-001"


def received(archive: bytes, results: Path, cell: Cell = CELLS[0]) -> RunFolder:
    folder = cell.folder(str(results))
    node.receive(archive, folder, cell.config(str(results)))
    return folder


def test_a_part_arrives_whole_and_once(trained: Path, tmp_path: Path) -> None:
    folder = received(node.pack([trained]), tmp_path)
    assert folder.finished_seeds(with_weights=True) == {0, 1}
    assert compare_parts(trained, folder.path / trained.name) is None
    before = sealed(tmp_path)
    received(node.pack([trained]), tmp_path)
    assert sealed(tmp_path) == before
    (folder.path / trained.name / "curve.parquet").write_bytes(b"half")  # no longer finished
    received(node.pack([trained]), tmp_path)
    assert folder.finished_seeds() == {0, 1}
    assert len(sealed_parts(tmp_path)) == 1


def test_a_part_that_arrives_takes_the_place_of_one_of_other_code(
    trained: Path, tmp_path: Path
) -> None:
    folder = received(node.pack([trained]), tmp_path)
    (part,) = folder.parts()
    new = read_json(part / DONE)
    config = read_json(part / "config.json")
    config["code"]["digest"] = "other"
    write_json(part / "config.json", config)
    seal(part, new["local"], new["weights"])
    old = read_json(part / DONE)
    received(node.pack([trained]), tmp_path)
    assert read_json(part / DONE) == new
    assert read_json(folder.path / STALE / "other" / part.name / DONE) == old


def test_what_is_damaged_or_foreign_is_refused(trained: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="other settings"):
        received(node.pack([trained]), tmp_path, Cell("q_learning", "FrozenLake-v1", 4))
    damaged = shutil.copytree(trained, tmp_path / trained.name)
    (damaged / "summary.json").write_text("{}")
    with pytest.raises(UsageError, match="does not match its checksums"):
        received(node.pack([damaged]), tmp_path)
    assert not sealed_parts(tmp_path)


EVIL = {name: tarfile.REGTYPE for name in ("../x", "/x", "seeds-000-001/../../x", "x")}
EVIL |= {f"seeds-000-001/{name}": tarfile.REGTYPE for name in (".x", "a/b/c/d", "a\nb")}
EVIL |= {"seeds-000-001/link": tarfile.SYMTYPE, "seeds-000-001/device": tarfile.CHRTYPE}
EVIL |= {"seeds-000-001/hole": tarfile.GNUTYPE_SPARSE}


@pytest.mark.parametrize("name", EVIL)
def test_an_archive_stays_in_its_run(name: str, tmp_path: Path) -> None:
    member = tarfile.TarInfo(name)
    member.type, member.linkname = EVIL[name], "/etc/passwd"
    archive = member.tobuf(tarfile.GNU_FORMAT) + bytes(2 * tarfile.BLOCKSIZE)
    with pytest.raises(UsageError, match="does not belong"):
        received(archive, tmp_path / "results")
    assert not [path for path in tmp_path.rglob("*") if not path.is_dir()]


def test_what_is_no_archive_is_refused(tmp_path: Path) -> None:
    for archive in (b"x" * 1000, b"", gzip.compress(bytes(2**20))):
        with pytest.raises(UsageError, match="no archive of parts"):
            received(archive, tmp_path)


def test_another_version_is_named_with_both_sides() -> None:
    ours = node.describe()
    assert node.differences(ours, ours) == ""
    assert node.differences({**ours, "commit": "other"}, ours) == ""
    theirs = {**ours, "sources": "0", "torch": "1.0", "commit": "abc"}
    assert node.differences(theirs, {**ours, "commit": "def"}) == (
        f"sources 0 there, {ours['sources']} here, torch 1.0 there, {ours['torch']} here, "
        "commit abc there, def here"
    )


# ---- The picture --------------------------------------------------------------------------


def test_list_and_watch_show_what_another_process_does(
    trained: Path, tmp_path: Path, monkeypatch: Patch, capsys: Output
) -> None:
    monkeypatch.setitem(suite.SUITES, "test", CELLS)
    received(node.pack([trained]), tmp_path)
    write_event(str(tmp_path), "failed", job=str(CELLS[1]))
    code = (
        "import sys; from manyseeds.benchmarks.experiments.suite import Cell\n"
        f"cell = {CELLS[0]!r}\n"
        "with cell.folder(sys.argv[1]).locks(cell.config(sys.argv[1])) as locks:\n"
        "    assert locks.acquire(3); print(flush=True); sys.stdin.read()"
    )
    words = ["--suite", "test", "--block", "2", "--results", str(tmp_path)]
    command, pipe = [sys.executable, "-c", code, str(tmp_path)], subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, env=environment()) as process:
        assert process.stdout
        process.stdout.readline()
        sweep.main([*words, "--list"])
        listed = capsys.readouterr().out.splitlines()
        sweep.main([*words, "--watch"])
        picture = capsys.readouterr().out
        process.kill()
    shown = [line.split()[:2] for line in listed]
    assert shown == [["1", "finished"], ["2", "running"], ["3", "missing"]]
    assert "2/4 1" in " ".join(picture.split())
    assert "2 of 5 seeds, 1 running, 1 failed" in picture
    sweep.main([*words, "--shard", "2/2", "--list"])
    assert capsys.readouterr().out.split()[:2] == ["2", "missing"]  # the lock has gone
    sweep.main([*words, "--shard", "1/2", "--list"])
    listed = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in listed] == ["1", "3"]  # numbers in the suite


def test_the_picture_counts_events(monkeypatch: Patch) -> None:
    jobs = all_jobs(CELLS, 2)
    monkeypatch.setattr(time, "time", lambda: 1000.0)
    display = Display(jobs, jobs[1:])
    for what, k in (("started", 1), ("started", 2), ("finished", 1), ("failed", 2)):
        display.add(Event(what, jobs[k]))  # type: ignore[arg-type]
    monkeypatch.setattr(time, "time", lambda: 1060.0)
    assert display.summary() == "4 of 5 seeds, 1 failed, 2.0 seeds/min"
    monkeypatch.setattr(time, "time", lambda: -9e9)  # a clock that was put back
    assert "seeds/min" in display.summary()


# ---- Faults on one machine ----------------------------------------------------------------

SHIM = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <unistd.h>
int rename(const char *old, const char *new) {
    usleep(300000);
    int (*next)(const char *, const char *) = dlsym(RTLD_NEXT, "rename");
    return next(old, new);
}
"""


@pytest.fixture(scope="module")
def shim(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A library that delays renames by 0.3 s."""
    if not shutil.which("cc"):
        pytest.skip("no C compiler")
    folder = tmp_path_factory.mktemp("shim")
    (folder / "shim.c").write_text(SHIM)
    words = ["cc", "-shared", "-fPIC", "-o", "shim.so", "shim.c", "-ldl"]
    subprocess.run(words, cwd=folder, check=True)
    return str(folder / "shim.so")


@pytest.mark.slow
def test_two_drivers_on_one_store(shim: str, by_hand: Path, tmp_path: Path) -> None:
    """The second one's renames are late: nothing is trained twice."""
    code = "import os; open('a', 'w'); os.rename('a', 'b')"
    command, began = [sys.executable, "-c", code], time.time()
    subprocess.run(command, cwd=tmp_path, env={**os.environ, "LD_PRELOAD": shim}, check=True)
    assert time.time() - began > 0.3, "the library is not in effect"
    results = tmp_path / "results"
    words = ("--block", "2", "--workers", "1")
    both = [start(CELLS, results, *words), start(CELLS, results, *words, LD_PRELOAD=shim)]
    for process in both:
        end(process)
    check_equal(results, by_hand)
    again, _ = end(start(CELLS, results, *words))
    assert len(said(again, "skipped")) == len(CELLS)
    assert len(list((results / "logs").glob("*.log"))) == PARTS  # one name for each command


@pytest.mark.slow
def test_what_is_out_of_memory_fails_alone(tmp_path: Path) -> None:
    lines, err = end(start((HUGE, CELLS[1]), tmp_path), 1)
    (failed,) = said(lines, "failed")
    assert "error: out of memory: tried to allocate" in failed or "alloc" in failed
    assert len(sealed_parts(tmp_path)) == 1
    assert err.startswith("error: 1 of 2 cells failed: ppo on CartPole-v1")


def words_of(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()


# ---- Faults on a cluster ------------------------------------------------------------------

RAY = ("--launcher", "ray", "--block", "2", "--workers", "1")


def on_ray(cells: tuple[Cell, ...], results: Path, cluster: Cluster) -> subprocess.Popen[str]:
    return start(cells, results, *RAY, RAY_ADDRESS=cluster.address)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """A head and a second node, of one CPU each, with stores of their own."""
    with Cluster(tmp_path) as running:
        running.add(2)
        yield running


def training(cluster: Cluster, k: int) -> list[int]:
    """The processes of node k that train."""
    return cluster.workers(k, "algos/")


@pytest.mark.slow
@ray
def test_ray_gives_the_bits_of_a_run_by_hand(
    cluster: Cluster, by_hand: Path, tmp_path: Path
) -> None:
    results = tmp_path / "results"
    both = [on_ray(CELLS, results, cluster) for _ in range(2)]
    lines = [line for process in both for line in end(process)[0]]
    check_equal(results, by_hand)
    ours = [line for line in said(lines, "finished") if "by another process" not in line]
    assert len(ours) == PARTS  # two drivers, nothing twice
    for k in (1, 2):
        assert not list((tmp_path / f"cache-{k}").rglob("DONE.json"))
    again, _ = end(on_ray(CELLS, results, cluster))
    assert len(said(again, "skipped")) == len(CELLS)


@pytest.mark.slow
@ray
def test_a_worker_and_a_node_that_are_lost_are_replaced(
    cluster: Cluster, by_hand: Path, tmp_path: Path
) -> None:
    results = tmp_path / "results"
    process = on_ray(CELLS, results, cluster)
    wait_for(lambda: training(cluster, 1) and training(cluster, 2), 300)
    trainers = training(cluster, 1)
    busy = [pid for pid in cluster.workers(1, "ray::") if {*descendants(pid)} & {*trainers}]
    (worker,) = busy  # others are idle
    kill(worker)
    wait_for(lambda: all(map(is_gone, trainers)), 10)
    cluster.remove(2)
    lines, _ = end(process)
    assert len(said(lines, "finished")) == PARTS
    check_equal(results, by_hand)


@pytest.mark.slow
@ray
def test_what_fails_on_a_node_is_named_and_the_others_go_on(
    cluster: Cluster, by_hand: Path, tmp_path: Path
) -> None:
    """A training that is killed, and one without memory."""
    results = tmp_path / "results"
    process = on_ray((LONG, HUGE, *CELLS), results, cluster)
    found: list[int] = []

    def trains() -> bool:
        found[:] = [pid for k in (1, 2) for pid in cluster.workers(k, "2000000")]
        return any("ppo.py" in words_of(pid) for pid in found)

    wait_for(trains, 300)
    for pid in found:
        if "algos/ppo.py" in words_of(pid) and "launchers" not in words_of(pid):
            kill(pid)
    lines, _ = end(process, 1)
    killed, huge = sorted(said(lines, "failed"), key=lambda line: "200000" in line)
    assert re.search(r"node [\d.]+: ended by SIGKILL \(out of memory\?\)", killed)
    assert "alloc" in huge
    check_equal(results, by_hand)


@pytest.mark.slow
@ray
def test_a_driver_that_is_killed_is_started_again(
    cluster: Cluster, by_hand: Path, tmp_path: Path
) -> None:
    results = tmp_path / "results"
    process = on_ray((*CELLS, LONG), results, cluster)
    wait_for(lambda: sealed_parts(results) and (training(cluster, 1) or training(cluster, 2)), 300)
    trainers = [*training(cluster, 1), *training(cluster, 2)]
    process.kill()
    process.communicate()
    before = sealed(results)
    wait_for(lambda: all(map(is_gone, trainers)), 60)
    end(on_ray(CELLS, results, cluster))
    assert before.items() <= sealed(results).items()
    check_equal(results, by_hand)


@pytest.mark.slow
@ray
def test_a_head_that_is_gone_ends_the_sweep_in_one_line(by_hand: Path, tmp_path: Path) -> None:
    results = tmp_path / "results"
    with Cluster(tmp_path) as cluster:
        process = on_ray((LONG, *CELLS), results, cluster)
        wait_for(lambda: training(cluster, 1), 300)
        address = cluster.address
        cluster.remove(1)
        _, err = end(process, 2)
        own = [line for line in err.splitlines(keepends=True) if not line.startswith("[20")]
        assert "".join(own) == (  # without what Ray's core may say, with its date
            f"error: --launcher ray: the head at {address} is gone; once it is back, the same "
            "command does what is left\n"
        )
        _, err = end(start(CELLS, results, *RAY, RAY_ADDRESS=address), 2)
        assert err.startswith(f"error: --launcher ray: no cluster at {address}")
        assert err.count("\n") == 1
        cluster.start_head()
        end(on_ray(CELLS, results, cluster))
    check_equal(results, by_hand)


@pytest.mark.slow
@ray
def test_a_node_with_another_version_is_refused_and_named(by_hand: Path, tmp_path: Path) -> None:
    results, other = tmp_path / "results", tmp_path / "other"
    for room in (PACKAGE, *ROOMS):
        ignored = shutil.ignore_patterns("__pycache__", "local")
        shutil.copytree(ROOT / room, other / room, ignore=ignored)
    changed = other / "algos" / "q_learning.py"
    changed.write_text(changed.read_text() + "\nOTHER = 1\n")
    with Cluster(tmp_path) as cluster:
        cluster.add(2, checkout=other)
        lines, _ = end(on_ray(CELLS, results, cluster))
        (refused,) = said(lines, "refused")
        ours = node.version()["sources"]
        assert "node 127.0.0.2: has another version: sources " in refused
        assert f" there, {ours} here" in refused
        assert len(said(lines, "finished")) == PARTS
    check_equal(results, by_hand)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A mounted file system of 1 MiB."""
    folder = tmp_path / "mounted"
    folder.mkdir()
    words = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)]
    if subprocess.run(words, capture_output=True).returncode:
        pytest.skip("cannot mount a file system here")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], capture_output=True)


@pytest.mark.slow
@ray
@as_root
def test_a_node_with_a_full_disk_is_refused_and_named(
    small_disk: Path, by_hand: Path, tmp_path: Path
) -> None:
    results = tmp_path / "results"
    with Cluster(tmp_path) as cluster:
        cluster.add(2, cache=small_disk)
        lines, _ = end(on_ray(CELLS, results, cluster))
    (refused,) = said(lines, "refused")
    assert "node 127.0.0.2: has 0 MiB left in" in refused or "node 127.0.0.2: has 1 MiB" in refused
    check_equal(results, by_hand)


def test_without_a_cluster(tmp_path: Path) -> None:
    """One line, with Ray or without."""
    _, err = end(start(CELLS, tmp_path, *RAY, RAY_ADDRESS="127.0.0.1:1"), 2)
    assert err.startswith("error: --launcher ray: ")
    assert err.count("\n") == 1


def test_a_job_s_command_outlives_the_signal_that_slurm_sends_to_all(tmp_path: Path) -> None:
    """submitit alone heeds it, and interrupts the command; tested here without a Slurm."""
    code = "import os, signal; os.kill(os.getpid(), signal.SIGUSR2); print('goes on')"
    log = tmp_path / "log"
    assert Command([sys.executable, "-c", code], str(tmp_path), str(log))() == 0
    assert log.read_text() == "goes on\n"
