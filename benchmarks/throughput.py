"""Timesteps per second of PPO and DQN on CartPole-v1: ours, SB3's and, where installed, rejax's.

    python benchmarks/throughput.py

Learning and logging are timed, evaluation is off on all sides, one thread on one pinned core.
Every measurement is a process of its own; the systems take turns, and each repeat visits all of
them, so that a slow minute of a shared machine meets everybody. What counts are the ratios within
a repeat; the table shows medians over repeats.

PPO: CleanRL's size, 4 environments x 128 steps, 4 epochs of 4 minibatches, two 64-64 networks.
DQN: CleanRL's setting, an update of 128 transitions every 10 steps, network 120-84, memory 10,000
(Huber loss and gradient clip 10 on both sides, because SB3 has no other loss).

SB3 trains one seed at a time: S seeds cost S times one. rejax is a JAX suite (`make jax-env`): cold
is a process's first training, with compilation; warm the second in the same process.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.harness.cli import PositiveInt, ScriptConfig, check_ranges, exit_with, parse
from benchmarks.harness.digest import ROOT
from benchmarks.harness.errors import UsageError
from benchmarks.harness.record import provenance, write_bytes, write_json

JAX_PYTHON = ROOT / ".venv-jax" / "bin" / "python"
SETTINGS: dict[str, dict[str, Any]] = {
    "ppo": {"total_timesteps": 40_960},
    "dqn": {
        "total_timesteps": 20_000,
        "learning_starts": 1_000,
        "loss": "huber",
        "max_grad_norm": 10.0,
    },
}


@dataclass(frozen=True, kw_only=True)
class Config(ScriptConfig):
    """Throughput."""

    repeats: PositiveInt = 3
    """Rounds over all measurements."""
    seeds: tuple[PositiveInt, ...] = (1, 10, 32)
    """Numbers of seeds in a batch."""
    algos: tuple[str, ...] = ("ppo", "dqn")
    """Algorithms."""
    core: int = 0
    """CPU core that every measurement is pinned to."""

    def __post_init__(self) -> None:
        check_ranges(self)
        unknown = [algo for algo in self.algos if algo not in SETTINGS]
        if unknown:
            raise UsageError(f"--algos {unknown[0]}: must be among {', '.join(SETTINGS)}")
        if hasattr(os, "sched_getaffinity") and self.core not in os.sched_getaffinity(0):
            cores = ", ".join(map(str, sorted(os.sched_getaffinity(0))))
            raise UsageError(f"--core {self.core}: must be among {cores}")


# ---- What a measuring process does ----------------------------------------------------------


def measure_ours(algo: str, seeds: int) -> dict[str, float]:
    """Train S seeds with evaluation off; learning seconds and timesteps of all seeds together."""
    import importlib

    from benchmarks.harness.process import set_up_process
    from benchmarks.harness.run import Run

    class LearningOnly(Run):
        def evaluate_if_due(self, timestep: int, env: Any, policy: Any) -> None:
            return

    set_up_process(threads=1)
    module = importlib.import_module(f"algos.{algo}")
    config = module.Config(seeds=seeds, quiet=True, **SETTINGS[algo])
    run = LearningOnly(config)
    module.train(config, run)
    return {"timesteps": run.windows[-1].timestep * seeds, "learn_s": run.learn_s}


def measure_sb3(algo: str, seeds: int) -> dict[str, float]:
    """Train one seed of SB3 with the same hyperparameters, no evaluation callback."""
    import importlib

    import torch

    from benchmarks import sb3_baseline

    assert seeds == 1
    torch.set_num_threads(1)
    config = importlib.import_module(f"algos.{algo}").Config(**SETTINGS[algo])
    model = sb3_baseline.build(sb3_baseline.BASELINES[algo], config, seed=0)
    began = time.perf_counter()
    model.learn(config.total_timesteps)
    return {"timesteps": model.num_timesteps, "learn_s": time.perf_counter() - began}


REJAX = """
import json, sys, time, jax
from rejax import get_algo
algo, seeds, steps = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
common = dict(env="CartPole-v1", total_timesteps=steps, eval_freq=steps, learning_rate=2.5e-4,
              gamma=0.99, skip_initial_evaluation=True)
extra = dict(
    ppo=dict(num_envs=4, num_steps=128, num_epochs=4, num_minibatches=4, gae_lambda=0.95,
             clip_eps=0.2, vf_coef=0.5, ent_coef=0.0, max_grad_norm=0.5,
             agent_kwargs=dict(activation="tanh")),
    dqn=dict(num_envs=10, num_epochs=1, buffer_size=10_000, fill_buffer=1_000, batch_size=128,
             target_update_freq=500, max_grad_norm=10.0, ddqn=False,
             agent_kwargs=dict(activation="relu")),
)[algo]
agent = get_algo(algo).create(**common, **extra)
agent = agent.replace(eval_callback=lambda algo, ts, rng: ())
train = jax.jit(jax.vmap(agent.train))
times = []
for repeat in range(2):
    began = time.perf_counter()
    state, _ = jax.block_until_ready(train(jax.random.split(jax.random.PRNGKey(repeat), seeds)))
    times.append(time.perf_counter() - began)
done = int(state.global_step[0]) * seeds
print(json.dumps(dict(timesteps=done, learn_s=times[1], cold_s=times[0])))
"""


def run_pinned(command: list[str], core: int) -> dict[str, float]:
    """Run a measuring process on one core; its JSON line, with the wall time of the process."""

    def pin() -> None:
        if hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(0, {core})

    threads = {"OMP_NUM_THREADS": "1", "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false"}
    began = time.perf_counter()
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        preexec_fn=pin,
        env={**os.environ, **threads},
        cwd=ROOT,
    )
    wall_s = time.perf_counter() - began
    if done.returncode:
        raise UsageError(f"{' '.join(command[:3])} failed: {done.stderr.strip()[-300:]}")
    measured: dict[str, float] = json.loads(done.stdout.strip().splitlines()[-1])
    return {**measured, "wall_s": wall_s}


def measure(system: str, algo: str, seeds: int, core: int) -> dict[str, Any]:
    """One measurement in a process of its own."""
    if system == "rejax":
        steps = str(SETTINGS[algo]["total_timesteps"])
        command = [str(JAX_PYTHON), "-c", REJAX, algo, str(seeds), steps]
    else:
        command = [sys.executable, __file__, "--measure", system, algo, str(seeds)]
    result = run_pinned(command, core)
    speed = result["timesteps"] / result["learn_s"]
    print(f"{system:9} {algo} x {seeds:2} seeds: {speed:9,.0f} timesteps/s", flush=True)
    return {"system": system, "algo": algo, "seeds": seeds, **result, "timesteps_per_s": speed}


def jax_versions() -> dict[str, str]:
    """Versions of the JAX side, asked of its own environment."""
    code = "from importlib.metadata import version as v; print(v('jax'), v('rejax'))"
    done = subprocess.run([JAX_PYTHON, "-c", code], capture_output=True, text=True, check=True)
    jax, rejax = done.stdout.split()
    return {"jax": jax, "rejax": rejax}


# ---- The table ------------------------------------------------------------------------------


def summarize(measurements: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Medians over repeats, and the median of the ratios to SB3 within each repeat."""
    sb3 = {(m["repeat"], m["algo"]): m for m in measurements if m["system"] == "sb3"}
    groups: dict[tuple[str, str, int], list[dict[str, Any]]] = {}
    for m in measurements:
        groups.setdefault((m["algo"], m["system"], m["seeds"]), []).append(m)
    rows = []
    for (algo, system, seeds), group in groups.items():
        ratios = [m["timesteps_per_s"] / sb3[m["repeat"], algo]["timesteps_per_s"] for m in group]
        row = {
            "algo": algo,
            "system": system,
            "seeds": seeds,
            "repeats": len(group),
            "timesteps_per_s": median(m["timesteps_per_s"] for m in group),
            "ratio_to_sb3": median(ratios),
            "ratio_low": min(ratios),
            "ratio_high": max(ratios),
            "wall_s": median(m["wall_s"] for m in group),
        }
        if system == "rejax":
            row["cold_timesteps_per_s"] = median(m["timesteps"] / m["cold_s"] for m in group)
        rows.append(row)
    order = ["sb3", "manyseeds", "rejax"]
    algos = list(SETTINGS)
    return sorted(
        rows, key=lambda r: (algos.index(r["algo"]), order.index(r["system"]), r["seeds"])
    )


def markdown(rows: list[dict[str, Any]], origin: dict[str, Any], repeats: int) -> str:
    """The table as the report includes it."""
    where = origin["machine"]
    lines = [
        f"Timesteps per second of all seeds together, learning and logging, evaluation off; one "
        f"thread on one core of {where['cpu']}. Medians of {repeats} interleaved repeats; the "
        f"ratio is taken within each repeat, its range over repeats in brackets.",
        "",
        "| algorithm | system | seeds | timesteps/s | times SB3 | process wall time, s | n |",
        "|---|---|---|---|---|---|---|",
    ]
    for r in rows:
        speed = f"{r['timesteps_per_s']:,.0f}"
        if "cold_timesteps_per_s" in r:
            speed += f" warm, {r['cold_timesteps_per_s']:,.0f} cold"
        ratio = f"{r['ratio_to_sb3']:.1f} [{r['ratio_low']:.1f}, {r['ratio_high']:.1f}]"
        lines.append(
            f"| {r['algo']} | {r['system']} | {r['seeds']} | {speed} | {ratio} "
            f"| {r['wall_s']:.1f} | {r['repeats']} |"
        )
    budgets = ", ".join(f"{a} {s['total_timesteps']:,}" for a, s in SETTINGS.items())
    lines += [
        "",
        f"Timesteps per seed: {budgets}. SB3 trains one seed at a time: S seeds run at the same "
        "timesteps/s and take S times the wall time of one. The wall time of a process includes "
        "its imports, and for rejax two trainings, the first with compilation. rejax's DQN has a "
        "64-64 network (ours and SB3's: 120-84) and "
        "ten environments, so that it too updates every 10 timesteps.",
        "",
        f"Command: `{origin['command']}`, commit {origin['code']['commit'] or 'not recorded'}, "
        + ", ".join(f"{name} {version}" for name, version in origin["versions"].items())
        + ".",
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measure, print, and write results/throughput.json and results/tables/throughput.md."""
    if sys.argv[1:2] == ["--measure"]:  # a measuring process
        system, algo, seeds = sys.argv[2:5]
        functions: dict[str, Callable[[str, int], dict[str, float]]]
        functions = {"manyseeds": measure_ours, "sb3": measure_sb3}
        print(json.dumps(functions[system](algo, int(seeds))))
        return
    config = parse(Config, {}, __doc__)
    cells = []
    for algo in config.algos:
        cells.append(("sb3", algo, 1))
        cells += [("manyseeds", algo, seeds) for seeds in config.seeds]
        if JAX_PYTHON.exists():
            cells += [("rejax", algo, seeds) for seeds in config.seeds]
    if not JAX_PYTHON.exists():
        print("rejax is left out: `make jax-env` installs it")
    try:
        measurements = [
            {"repeat": repeat, **measure(*cell, config.core)}
            for repeat in range(config.repeats)
            for cell in cells
        ]
    except UsageError as error:
        exit_with(error)
    rows = summarize(measurements)
    origins = [f"algos/{algo}.py:train" for algo in config.algos]
    origin = {
        "command": "python " + shlex.join(sys.argv),
        **provenance(origins, packages=("stable-baselines3",)),
    }
    if JAX_PYTHON.exists():
        origin["versions"] |= jax_versions()
    results = Path(config.results)
    (results / "tables").mkdir(parents=True, exist_ok=True)
    write_json(
        results / "throughput.json",
        {**origin, "settings": SETTINGS, "rows": rows, "measurements": measurements},
    )
    table = markdown(rows, origin, config.repeats)
    write_bytes(results / "tables" / "throughput.md", table.encode())
    print(table)


if __name__ == "__main__":
    main()
