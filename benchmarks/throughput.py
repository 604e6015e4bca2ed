"""Timesteps per second: ours, SB3's where it has the algorithm, rejax's where it is installed.

    python benchmarks/throughput.py                     one CPU core
    python benchmarks/throughput.py --device cuda       thousands of seeds on a GPU

Learning and logging are timed, evaluation is off on all sides. Every measurement is a process of
its own; the systems take turns, and each repeat visits all of them, so that a slow minute of a
shared machine meets everybody. What counts are the ratios within a repeat; the table shows medians
over repeats. On the CPU every process is pinned to one core and computes with one thread.

PPO: CleanRL's size, 4 environments x 128 steps, 4 epochs of 4 minibatches, two 64-64 networks.
A2C: SB3's defaults with 8 environments, 5 steps, RMSprop, two 64-64 networks.
TRPO: its preset, 2 environments x 512 steps, 20 passes of the values in minibatches of 512.
DQN: CleanRL's setting, an update of 128 transitions every 10 steps, network 120-84, memory 10,000
(Huber loss and gradient clip 10 on both sides, because SB3 has no other loss).
Q-learning and SARSA: their presets on FrozenLake-v1; SB3 has no tables, the reference is one seed.

The measurements of an algorithm replace its former ones in results/throughput.json (on CUDA
throughput-cuda.json) and leave those of the others; the table is made of all.

SB3 trains one seed at a time, on the CPU: S seeds cost S times one. Compiled or captured (with
--compile, or on CUDA) ours is timed over the second half of its training, and what the first half
took longer is its warm-up. It keeps compiled code on disk: the first repeat starts without any, the
later ones with it. rejax, a JAX suite (`make jax-env`), trains twice in a process: the second
training is timed, and what the first took longer is its warm-up.
"""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, Literal

from benchmarks.measure import peak_memory, run_pinned, time_training, usable_cores
from manyseeds.cli import PositiveInt, ScriptConfig, check_device, check_ranges, exit_with, parse
from manyseeds.digest import ROOT
from manyseeds.errors import UsageError
from manyseeds.record import provenance, write_bytes, write_json

JAX_PYTHON = ROOT / ".venv-jax" / "bin" / "python"
OURS, COMPILED = "manyseeds", "manyseeds --compile"


@dataclass(frozen=True)
class Subject:
    """An algorithm, and what of it is timed."""

    title: str
    settings: dict[str, Any]
    env: str = "CartPole-v1"
    seeds: tuple[int, ...] = (1, 10, 32)
    seeds_on_cuda: tuple[int, ...] = (10, 1024, 8192)
    peers: tuple[str, ...] = ("sb3",)  # "rejax" too where its settings can be made the same
    compiles: bool = True


TABLES: dict[str, Any] = {"seeds": (1, 10, 100, 1000), "peers": (), "compiles": False}
SUBJECTS = {
    "ppo": Subject("PPO", {"total_timesteps": 40_960}, peers=("sb3", "rejax")),
    "a2c": Subject("A2C", {"total_timesteps": 40_000}),
    "trpo": Subject(
        "TRPO",
        {"num_steps": 512, "minibatch_size": 512, "critic_updates": 20}
        | {"cg_damping": 1e-3, "gae_lambda": 0.98, "total_timesteps": 20_480},
    ),
    "dqn": Subject(
        "DQN",
        {"total_timesteps": 20_000, "learning_starts": 1_000}
        | {"loss": "huber", "max_grad_norm": 10.0},
        peers=("sb3", "rejax"),
    ),
    "q_learning": Subject("Q-learning", {"total_timesteps": 20_000}, "FrozenLake-v1", **TABLES),
    "sarsa": Subject("SARSA", {"total_timesteps": 20_000}, "FrozenLake-v1", **TABLES),
}


@dataclass(frozen=True, kw_only=True)
class Config(ScriptConfig):
    """Throughput."""

    repeats: PositiveInt = 3
    """Rounds over all measurements."""
    device: Literal["cpu", "cuda"] = "cpu"
    """Where ours and rejax compute."""
    seeds: tuple[PositiveInt, ...] = ()
    """Numbers of seeds in a batch (default: 1 10 32, tables 1 10 100 1000, CUDA 10 1024 8192)."""
    algos: tuple[str, ...] = tuple(SUBJECTS)
    """Algorithms."""
    core: int = field(default_factory=lambda: min(usable_cores()))
    """CPU core that every measurement is pinned to (not on CUDA)."""

    def __post_init__(self) -> None:
        check_ranges(self)
        unknown = [algo for algo in self.algos if algo not in SUBJECTS]
        if unknown:
            raise UsageError(f"--algos {unknown[0]}: must be among {', '.join(SUBJECTS)}")
        if self.core not in usable_cores():
            cores = ", ".join(map(str, sorted(usable_cores())))
            raise UsageError(f"--core {self.core}: must be among {cores}")
        check_device(self.device)

    def cells(self) -> list[tuple[str, str, int]]:
        """(algorithm, system, number of seeds) of every measurement of a repeat."""
        cells = []
        for algo in self.algos:
            subject = SUBJECTS[algo]
            on_cuda = self.device == "cuda"
            batches = self.seeds or (subject.seeds_on_cuda if on_cuda else subject.seeds)
            if "sb3" in subject.peers:
                cells.append((algo, "sb3", 1))
            cells += [(algo, OURS, S) for S in batches]
            if subject.compiles and not on_cuda:
                cells += [(algo, COMPILED, S) for S in batches]
            if "rejax" in subject.peers and JAX_PYTHON.exists():
                cells += [(algo, "rejax", S) for S in batches]
        return cells


# ---- What a measuring process does ----------------------------------------------------------


def timed_settings(module: Any, algo: str) -> dict[str, Any]:
    """The fields of an algorithm's Config that its measurements set."""
    subject = SUBJECTS[algo]
    preset = {} if subject.env == "CartPole-v1" else module.PRESETS[subject.env].settings
    return {**preset, **subject.settings, "env": subject.env}


def measure_ours(algo: str, seeds: int, device: str, compiled: bool = False) -> dict[str, float]:
    """Train S seeds with evaluation off; learning seconds and timesteps of all seeds together."""
    import importlib

    module = importlib.import_module(f"algos.{algo}")
    settings = timed_settings(module, algo)
    config = module.Config(**settings, seeds=seeds, device=device, compile=compiled, quiet=True)
    return time_training(module, config)


def measure_sb3(algo: str) -> dict[str, float]:
    """Train one seed of SB3 with the same hyperparameters, no evaluation callback."""
    import importlib

    import torch

    from benchmarks import sb3_baseline

    torch.set_num_threads(1)
    module = importlib.import_module(f"algos.{algo}")
    config = module.Config(**timed_settings(module, algo))
    model = sb3_baseline.build(sb3_baseline.BASELINES[algo], config, seed=0)
    began = time.perf_counter()
    model.learn(config.total_timesteps)
    learn_s = time.perf_counter() - began
    return {
        "timesteps": model.num_timesteps,
        "learn_s": learn_s,
        "warm_up_s": 0.0,
        "memory": peak_memory(),
    }


def measuring_process(system: str, algo: str, seeds: str, device: str) -> None:
    """Print one measurement as a JSON line."""
    if system == "sb3":
        figures = measure_sb3(algo)
    else:
        figures = measure_ours(algo, int(seeds), device, compiled=system == COMPILED)
    print(json.dumps(figures))


REJAX = """
import json, resource, sys, time, jax
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
memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
if jax.devices()[0].platform != "cpu":
    memory = jax.devices()[0].memory_stats()["peak_bytes_in_use"]
warm_up = times[0] - times[1]
print(json.dumps(dict(timesteps=done, learn_s=times[1], warm_up_s=warm_up, memory=memory)))
"""


def measure(system: str, algo: str, seeds: int, config: Config, cache: str) -> dict[str, Any]:
    """One measurement in a process of its own. cache: folder of what torch.compile keeps."""
    if system == "rejax":
        steps = str(SUBJECTS[algo].settings["total_timesteps"])
        command = [str(JAX_PYTHON), "-c", REJAX, algo, str(seeds), steps]
        environment = {"JAX_PLATFORMS": str(config.device)}
    else:
        command = [sys.executable, __file__, "--measure", system, algo, str(seeds), config.device]
        environment = {"TORCHINDUCTOR_CACHE_DIR": cache}
    core = config.core if config.device == "cpu" else None
    result = run_pinned(command, core, **environment)
    speed = result["timesteps"] / result["learn_s"]
    print(f"{system:20} {algo} x {seeds:4} seeds: {speed:11,.0f} timesteps/s", flush=True)
    return {"system": system, "algo": algo, "seeds": seeds, **result, "timesteps_per_s": speed}


def jax_versions() -> dict[str, str]:
    """Versions of the JAX side, asked of its own environment."""
    code = "from importlib.metadata import version as v; print(v('jax'), v('rejax'))"
    done = subprocess.run([JAX_PYTHON, "-c", code], capture_output=True, text=True, check=True)
    jax, rejax = done.stdout.split()
    return {"jax": jax, "rejax": rejax}


# ---- The table ------------------------------------------------------------------------------


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
        warm_up = [m["warm_up_s"] for m in group]
        rows.append(
            {
                "system": system,
                "seeds": seeds,
                "repeats": len(group),
                "timesteps_per_s": median(m["timesteps_per_s"] for m in group),
                "ratio": median(ratios),
                "ratio_low": min(ratios),
                "ratio_high": max(ratios),
                "first_warm_up_s": warm_up[0],
                "later_warm_up_s": median(warm_up[1:] or warm_up),
                "memory_mib": median(m["memory"] for m in group) / 2**20,
                "wall_s": median(m["wall_s"] for m in group),
            }
        )
    return rows


def markdown(stored: dict[str, dict[str, Any]], device: str) -> str:
    """The tables as the report includes them, one for each algorithm of throughput.json."""
    place = "one thread on one core" if device == "cpu" else "on one GPU, SB3 on one core"
    lines = [
        "Timesteps per second of all seeds together, learning and logging, evaluation off; "
        f"{place}. Medians of n interleaved repeats; the ratio is taken within each repeat, its "
        "range over repeats in brackets. SB3 trains one seed at a time: S seeds run at the same "
        "timesteps/s and take S times the wall time of one. Warm-up: seconds of compilation or "
        "capture before that speed, at the first start / at later ones, which find compiled code "
        "on disk (rejax keeps none there). Memory: the process's peak, on a GPU the device's.",
    ]
    for algo in (algo for algo in SUBJECTS if algo in stored):
        block, subject = stored[algo], SUBJECTS[algo]
        machine, code, versions = block["machine"], block["code"], block["versions"]
        reference = "times SB3" if "sb3" in subject.peers else "times one seed"
        lines += [
            "",
            f"### {subject.title} on {subject.env}",
            "",
            f"| system | seeds | timesteps/s | {reference} | warm-up, s | memory, MiB | n |",
            "|---|---:|---:|---|---|---:|---:|",
        ]
        for r in block["rows"]:
            ratio = f"{r['ratio']:.1f} [{r['ratio_low']:.1f}, {r['ratio_high']:.1f}]"
            warm_up = f"{r['first_warm_up_s']:.0f} / {r['later_warm_up_s']:.0f}"
            if r["system"] in ("sb3", OURS) and device == "cpu":
                warm_up = "none"
            lines.append(
                f"| {r['system']} | {r['seeds']:,} | {r['timesteps_per_s']:,.0f} "
                f"| {ratio} | {warm_up} | {r['memory_mib']:,.0f} | {r['repeats']} |"
            )
        note = f"{subject.settings['total_timesteps']:,} timesteps per seed"
        if algo == "dqn" and any(r["system"] == "rejax" for r in block["rows"]):
            note += (
                "; rejax's DQN has a 64-64 network (ours and SB3's: 120-84) and ten environments, "
                "so that it too updates every 10 timesteps"
            )
        lines += [
            "",
            f"{note}; {machine.get('gpu', machine['cpu'])}. Command: `{block['command']}`, commit "
            f"{code['commit'] or 'not recorded'}, "
            + ", ".join(f"{name} {version}" for name, version in versions.items())
            + ".",
        ]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measure, print, and write results/throughput[-cuda].json and results/tables/ beside it."""
    if sys.argv[1:2] == ["--measure"]:
        measuring_process(*sys.argv[2:])
        return
    config = parse(Config, {}, __doc__)
    if not JAX_PYTHON.exists() and any("rejax" in SUBJECTS[a].peers for a in config.algos):
        print("rejax is left out: `make jax-env` installs it")
    measurements: dict[str, list[dict[str, Any]]] = {algo: [] for algo in config.algos}
    try:
        with tempfile.TemporaryDirectory() as cache:
            for repeat in range(config.repeats):
                for algo, system, seeds in config.cells():
                    measured = measure(system, algo, seeds, config, cache)
                    measurements[algo].append({"repeat": repeat, **measured})
    except UsageError as error:
        exit_with(error)
    results, name = Path(config.results), "throughput" + "-cuda" * (config.device == "cuda")
    path = results / f"{name}.json"
    stored = json.loads(path.read_text()) if path.exists() else {}
    for algo in config.algos:
        packages = ("stable-baselines3",) if "sb3" in SUBJECTS[algo].peers else ()
        origin = provenance([f"algos.{algo}:train"], packages=packages)
        if any(m["system"] == "rejax" for m in measurements[algo]):
            origin["versions"] |= jax_versions()
        if config.device == "cuda":
            import torch

            origin["machine"]["gpu"] = torch.cuda.get_device_name()
        stored[algo] = {
            "command": "python " + shlex.join(sys.argv),
            **origin,
            "settings": SUBJECTS[algo].settings,
            "rows": summarize(measurements[algo]),
            "measurements": measurements[algo],
        }
    (results / "tables").mkdir(parents=True, exist_ok=True)
    write_json(path, stored)
    table = markdown(stored, config.device)
    write_bytes(results / "tables" / f"{name}.md", table.encode())
    print(table)


if __name__ == "__main__":
    main()
