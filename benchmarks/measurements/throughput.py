"""Measures timesteps per second: ours, SB3's and, where they are installed, rejax's and RLtools'.

    python benchmarks/throughput.py                     one CPU core
    python benchmarks/throughput.py --device cuda       thousands of seeds on a GPU

Learning and logging are timed, evaluation is off on all sides. Every measurement is a process of
its own. The systems take turns within each repeat, so that background load affects all of them
equally. Ratios are taken within a repeat, and the table shows medians over repeats. On the CPU
every process is pinned to one core and uses one thread.

PPO: CleanRL's size, 4 environments x 128 steps, 4 epochs of 4 minibatches, two 64-64 networks.
    Pendulum-v1 likewise, with a constant learning rate, which all systems have.
A2C: SB3's defaults with 8 environments, 5 steps, RMSprop, two 64-64 networks.
TRPO: its preset, 2 environments x 512 steps, 20 passes of the values in minibatches of 512.
DQN: CleanRL's setting, an update of 128 transitions every 10 steps, network 120-84, memory 10,000
(Huber loss and gradient clip 10 on both sides, because SB3 has no other loss). rejax's DQN gets the
same network, and ten environments, so that it too updates every 10 timesteps.
SAC, TD3 and DDPG: the sizes of their presets on Pendulum-v1, a gradient step of 256 transitions
after each timestep, but learning from timestep 100 on; SAC also with 64-64 networks and 64.
PQN: its preset on CartPole-v1, without a schedule of the learning rate, 32 environments x 64 steps,
4 epochs of 16 minibatches, network 256-256; SB3 has none, the reference is one seed of ours.
Q-learning and SARSA: their presets on FrozenLake-v1. SB3 has no tabular algorithms, so the
reference is one seed of ours.

The measurements of an algorithm replace its former ones in results/throughput.json (on CUDA
throughput-cuda.json) and leave those of the others.

SB3 and RLtools train one seed at a time on the CPU, so S seeds take S times as long as one. On
CUDA, where iterations are captured, ours is timed over the second half of its training, and the
extra time of the first half is its warm-up. On the CPU ours, rejax, a JAX suite, and RLtools, a C++
library (`make peers` installs both), train twice in a process: the second training is timed, and
the extra time of the first is the warm-up. In it rejax and RLtools compile; ours looks whether the
files still say what its kernels compute, and those are built before. SB3, which does nothing of
the kind, trains once. "Fresh process" is the time
from the start of a process to the end of one training, with imports, set-up and warm-up.
"""

from __future__ import annotations

from manyseeds.command import failing_in_one_line

import dataclasses
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, Literal

from manyseeds.benchmarks.experiments import catalog, jax_peer, rltools_peer
from manyseeds.benchmarks.measurements.measure import (
    Measurement,
    check_core,
    in_turn,
    measured,
    measuring,
    origin,
    read_measured,
    time_training,
    usable_cores,
    write_measured,
)
from manyseeds.benchmarks.store.names import display, place_of
from manyseeds.cli import PositiveInt, ScriptConfig, check_device, parse
from manyseeds.digest import ROOT
from manyseeds.errors import UsageError
from manyseeds.progress import print_table
from manyseeds.record import gpu
from manyseeds.untrusted import ORIGIN

SB3_BASELINE = ROOT / "benchmarks" / "sb3_baseline.py"
OURS = "manyseeds"
SYSTEMS = ("sb3", OURS, "rejax", "rltools")  # in the order of a repeat
ONE_AT_A_TIME = ("sb3", "rltools")  # train seed after seed
ROW = {
    "system": str,
    "seeds": int,
    "repeats": int,
    **dict.fromkeys(("timesteps_per_s", "ratio", "ratio_low", "ratio_high"), float),
    **dict.fromkeys(("warm_up_s", "fresh_s", "memory_mib"), float),
}
STORED = {str: {**ORIGIN, "machine": {"cpu": str, "gpu?": str}, "rows": [ROW]}}


# ---- What is timed --------------------------------------------------------------------------


@dataclass(frozen=True)
class Subject:
    """An algorithm with the settings and batch sizes that are timed."""

    algo: str
    settings: dict[str, Any]
    env: str = "CartPole-v1"
    preset: bool = False  # of the environment, beneath the settings
    seeds: tuple[int, ...] = (1, 10, 32)
    seeds_on_cuda: tuple[int, ...] = (10, 1024, 8192)
    peers: tuple[str, ...] = ("sb3",)  # others too where their settings can be made the same
    sizes: str = ""  # of networks and minibatch, where an environment has several


def subjects_of(algo: str) -> dict[str, Subject]:
    """What is timed of an algorithm, as its facts say: `ppo`, `ppo-Pendulum-v1`; `sac-64-64`."""
    subjects = [Subject(algo, **timed) for timed in catalog.facts(algo).timed]
    return {f"{algo}-{x.sizes or x.env}" if i else algo: x for i, x in enumerate(subjects)}


SUBJECTS = {
    name: subject
    for algo in sorted(catalog.names("algos"), key=place_of)
    for name, subject in subjects_of(algo).items()
}


@dataclass(frozen=True, kw_only=True)
class Config(ScriptConfig):
    """Throughput."""

    repeats: PositiveInt = 3
    """Repeats of every measurement, interleaved."""
    device: Literal["cpu", "cuda"] = "cpu"
    """Device for our algorithms and rejax."""
    seeds: tuple[PositiveInt, ...] = ()
    """Batch sizes in seeds (default: 1 10 32, tabular 1 10 100 1000, CUDA 10 1024 8192)."""
    algos: tuple[str, ...] = ()
    """Algorithms, also with another environment, `ppo-Pendulum-v1`, or other networks, `sac-64-64`
    (default: all; on CUDA those with networks)."""
    core: int = field(default_factory=lambda: min(usable_cores()))
    """CPU core that every measurement is pinned to (not on CUDA)."""

    def __post_init__(self) -> None:
        unknown = [algo for algo in self.algos if algo not in SUBJECTS]
        if unknown:
            raise UsageError(f"--algos {unknown[0]}: must be among {', '.join(SUBJECTS)}")
        check_core(self.core)
        others = [algo for algo in self.algos if not SUBJECTS[algo].seeds_on_cuda]
        if self.device == "cuda" and others:
            raise UsageError(f"--algos {others[0]}: is timed on the CPU alone")
        check_device(self.device)

    def chosen(self) -> list[str]:
        """The algorithms that are timed."""
        timed = (algo for algo, x in SUBJECTS.items() if self.device == "cpu" or x.seeds_on_cuda)
        return list(self.algos or timed)

    def cells(self) -> list[tuple[str, str, int]]:
        """(algorithm, system, number of seeds) of every measurement of a repeat."""
        cells = []
        for algo in self.chosen():
            subject = SUBJECTS[algo]
            on_cuda = self.device == "cuda"
            batches = self.seeds or (subject.seeds_on_cuda if on_cuda else subject.seeds)
            for system in SYSTEMS:
                if system == OURS or (system in subject.peers and found(system, self.device)):
                    sizes = (1,) if system in ONE_AT_A_TIME else batches
                    cells += [(algo, system, S) for S in sizes]
        return cells

    def missing(self) -> list[str]:
        """Peers of the algorithms that cannot be timed here."""
        peers = {peer for algo in self.chosen() for peer in SUBJECTS[algo].peers}
        return sorted(peer for peer in peers if not found(peer, self.device))


def found(peer: str, device: str) -> bool:
    """Whether a peer can be timed here; device: that of our algorithms and rejax."""
    if peer == "rejax":
        return jax_peer.found(device)
    return peer != "rltools" or rltools_peer.found()


# ---- What a measuring process does ----------------------------------------------------------


def timed_settings(algo: str) -> dict[str, Any]:
    """The fields of an algorithm's Config that its measurements set."""
    subject = SUBJECTS[algo]
    presets = catalog.module("algos", subject.algo).PRESETS
    preset = presets[subject.env].settings if subject.preset else {}
    return {**preset, **subject.settings, "env": subject.env}


def measure(algo: str, seeds: str, device: str) -> dict[str, float]:
    """Train S seeds with evaluation off; learning seconds and timesteps of all seeds together."""
    module = catalog.module("algos", SUBJECTS[algo].algo)
    execution = {"seeds": int(seeds), "device": device}
    config = module.Config(**timed_settings(algo), **execution, quiet=True)
    first = time_training(module, config)
    if device == "cuda":
        return first
    began = time.perf_counter()
    again = time_training(module, config)
    warm_up = max(first["learn_s"] - again["learn_s"], 0.0)
    return {**again, "warm_up_s": warm_up, "again_s": time.perf_counter() - began}


def case(algo: str, system: str, seeds: int, device: str) -> Measurement:
    """One measurement in a process of its own."""
    labels = {"system": system, "algo": algo, "seeds": seeds}
    subject = SUBJECTS[algo]
    config = catalog.module("algos", subject.algo).Config(**timed_settings(algo))
    if system == "rejax":
        command = jax_peer.command(subject.algo, subject.env, seeds, config.total_timesteps)
        return Measurement(labels, command, {"JAX_PLATFORMS": device})
    if system == "rltools":
        return Measurement(labels, rltools_peer.command(config))
    if system == "sb3":
        # All fields: one that is left out would have the value of runs from before it was added.
        settings = json.dumps(dataclasses.asdict(config))
        return Measurement(labels, measuring(SB3_BASELINE, subject.algo, settings))
    return Measurement(labels, measuring(__file__, algo, str(seeds), device))


def with_speed(m: dict[str, Any]) -> dict[str, Any]:
    """A measurement with its timesteps per second."""
    fresh_s = m.get("fresh_s", m["wall_s"] - m.get("again_s", 0.0))
    return {**m, "timesteps_per_s": m["timesteps"] / m["learn_s"], "fresh_s": fresh_s}


# ---- What is made of it ---------------------------------------------------------------------


def summarize(measurements: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Of one algorithm: medians over repeats, and the median of the ratios within each repeat.

    The ratios are to the repeat's first measurement: SB3, or where it has no such algorithm the
    smallest batch of ours.
    """
    reference: dict[int, float] = {}
    groups: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for m in measurements:
        reference.setdefault(m["repeat"], m["timesteps_per_s"])
        groups.setdefault((m["system"], m["seeds"]), []).append(m)
    rows = []
    for (system, seeds), group in groups.items():
        ratios = [m["timesteps_per_s"] / reference[m["repeat"]] for m in group]
        rows.append(
            {
                "system": system,
                "seeds": seeds,
                "repeats": len(group),
                "timesteps_per_s": median(m["timesteps_per_s"] for m in group),
                "ratio": median(ratios),
                "ratio_low": min(ratios),
                "ratio_high": max(ratios),
                "warm_up_s": median(m["warm_up_s"] for m in group),
                "fresh_s": median(m["fresh_s"] for m in group),
                "memory_mib": median(m["memory"] for m in group) / 2**20,
            }
        )
    return rows


def columns(algo: str) -> tuple[str, ...]:
    """The header of an algorithm's table."""
    reference = "times SB3" if "sb3" in SUBJECTS[algo].peers else "times one seed"
    columns = ("system", "seeds", "timesteps/s", reference, "warm-up, s", "fresh process, s")
    return (*columns, "memory, MiB", "n")


def cells(rows: Sequence[dict[str, Any]]) -> list[tuple[str, ...]]:
    """The rows of an algorithm's table."""
    found: list[tuple[str, ...]] = []
    for r in rows:
        found.append(
            (
                r["system"],
                f"{r['seeds']:,}",
                f"{r['timesteps_per_s']:,.0f}",
                f"{r['ratio']:.1f} [{r['ratio_low']:.1f}, {r['ratio_high']:.1f}]",
                "none" if r["system"] == "sb3" else f"{r['warm_up_s']:.1f}",
                f"{r['fresh_s']:.1f}",
                f"{r['memory_mib']:,.0f}",
                str(r["repeats"]),
            )
        )
    return found


def title(algo: str) -> str:
    subject = SUBJECTS[algo]
    sizes = f", networks {subject.sizes}" if subject.sizes else ""
    return f"{display(subject.algo)} on {subject.env}{sizes}"


@failing_in_one_line()
def main(args: Sequence[str] | None = None) -> None:
    """Measure, print, and write results/throughput[-cuda].json."""
    if measured(sys.argv[1:] if args is None else args, measure=measure):
        return
    config = parse(Config, {}, __doc__, args)
    for peer in config.missing():
        needs = f"jax that finds the {config.device}" if peer == "rejax" else "g++ or clang++"
        print(f"{peer} is left out: `make peers` installs it; it needs {needs}")

    def say(m: dict[str, Any]) -> str:
        speed = with_speed(m)["timesteps_per_s"]
        return f"{m['system']:20} {m['algo']} x {m['seeds']:4} seeds: {speed:11,.0f} timesteps/s"

    core = config.core if config.device == "cpu" else None
    path = Path(config.results) / f"throughput{'-cuda' * (config.device == 'cuda')}.json"
    stored = read_measured(path, {str: {}})
    cases = [case(*cell, config.device) for cell in config.cells()]
    measurements = [with_speed(m) for m in in_turn(cases, config.repeats, core, say)]
    for algo in config.chosen():
        packages = ("stable-baselines3",) if "sb3" in SUBJECTS[algo].peers else ()
        here = [m for m in measurements if m["algo"] == algo]
        stored[algo] = {
            **origin([f"manyseeds.algos.{SUBJECTS[algo].algo}:train"], packages=packages),
            "settings": SUBJECTS[algo].settings,
            "rows": summarize(here),
            "measurements": here,
        }
        systems = {m["system"] for m in here}
        if "rejax" in systems:
            stored[algo]["versions"] |= jax_peer.versions()
        if "rltools" in systems:
            stored[algo]["versions"] |= rltools_peer.versions()
        if config.device == "cuda":
            stored[algo]["machine"]["gpu"] = gpu()
        print_table(title(algo), columns(algo), cells(stored[algo]["rows"]))
    write_measured(path, stored)


if __name__ == "__main__":
    main()
