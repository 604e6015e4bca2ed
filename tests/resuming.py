"""Trainings of every algorithm that are interrupted, and what must be equal in the end.

    python -m tests.resuming 100            # so many are killed with kill -9, at random moments
    python -m tests.resuming 100 dqn ppo    # of cases whose name contains one of some words

Each training is killed again and again until it is finished: after a random time, or at a random
byte of a file that it writes. What it leaves must equal what an undisturbed one leaves. The exit
status is 1 where it does not.
"""

from __future__ import annotations

import contextlib
import importlib
import itertools
import math
import os
import random
import signal
import stat
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from manyseeds import kernels, record
from manyseeds.benchmarks.experiments import catalog
from manyseeds.cli import SeedsConfig
from manyseeds.process import set_up_process
from manyseeds.record import RunFolder, read_json
from manyseeds.runs import checkpoints, control
from manyseeds.runs.base import complete_seeds
from manyseeds.runs.control import Run
from manyseeds.runs.prediction import PredictionConfig, PredictionRun
from tests.processes import SERVER

NORMALIZED = {"normalize_obs": True, "normalize_reward": True, "hidden": (16, 16)}
ROLLOUT: dict[str, Any] = {"num_envs": 2, "num_steps": 16, "total_timesteps": 160, **NORMALIZED}
EPISODES = {"total_timesteps": 300, "hidden": (16, 16), "normalize_obs": True}
CASES: dict[str, dict[str, Any]] = {
    "ppo": {**ROLLOUT, "minibatch_size": 8, "epochs": 2},
    "ppo, box": {**ROLLOUT, "env": "Pendulum-v1", "minibatch_size": 16, "epochs": 2},
    "a2c": {**ROLLOUT, "optimizer": "adam"},
    "a2c, RMSprop": {**ROLLOUT, "optimizer": "rmsprop_tf"},
    "trpo": {**ROLLOUT, "minibatch_size": 16, "critic_epochs": 2},
    "dqn": {
        **{"total_timesteps": 240, "train_freq": 16, "gradient_steps": 2, "learning_starts": 40},
        **{"buffer_size": 100, "batch_size": 8, "target_update_interval": 32, "tau": 0.5},
        **{"hidden": (16, 16), "num_envs": 2},
    },
    "q_learning": {"env": "FrozenLake-v1", "total_timesteps": 2000},
    "sarsa": {"env": "FrozenLake-v1", "total_timesteps": 2000},
    "reinforce": {**EPISODES, "episodes": 3, "critic_updates": 2, "weight": "baseline"},
    "grpo": {
        **{**EPISODES, "group_size": 3, "minibatch_size": 32, "epochs": 2},
        **{"kl_coef": 0.1, "reference_updates": 2},
    },
    "td_prediction": {"total_episodes": 40},
    "monte_carlo": {"total_episodes": 40, "visits": "every"},
}
# Those that are interrupted nowhere else.
for algo in sorted(set(catalog.names("algos")) - {case.partition(",")[0] for case in CASES}):
    if issubclass(catalog.module("algos", algo).Config, SeedsConfig):
        CASES[algo] = catalog.facts(algo).small
CLOCK = ["learn_s"]
SECONDS = {"learn_seconds", "evaluation_seconds", "total_seconds", "timesteps_per_second"}


def train(case: str, results: Path, **settings: Any) -> RunFolder:
    """Train three seeds of a case, or what is missing of them."""
    algo = case.partition(",")[0]
    module = importlib.import_module(f"manyseeds.algos.{algo}")
    fields = {"seeds": 3, "quiet": True, "results": str(results), **CASES[case], **settings}
    config = module.Config(**fields)
    run_class = PredictionRun if isinstance(config, PredictionConfig) else Run
    return complete_seeds(config, module.train, run_class)


def part_of(folder: RunFolder) -> Path:
    """The part of a run that has one."""
    (part,) = folder.parts()
    return part


def differences(part: Path, whole: Path) -> list[str]:
    """What is not the same of two parts, besides seconds."""
    found = [] if sorted(os.listdir(part)) == sorted(os.listdir(whole)) else ["files"]
    for file in whole.glob("*.parquet"):
        frames = [
            pd.read_parquet(x / file.name).drop(columns=CLOCK, errors="ignore")
            for x in (part, whole)
        ]
        if not frames[0].equals(frames[1]):
            found.append(file.name)
    summaries = [
        {k: x for k, x in read_json(x / "summary.json").items() if k not in SECONDS}
        for x in (part, whole)
    ]
    if summaries[0] != summaries[1]:
        found.append("summary.json")
    if (part / record.POLICY).read_bytes() != (whole / record.POLICY).read_bytes():
        found.append(record.POLICY)
    return found


# ---- Killed --------------------------------------------------------------------------------


def hurried(seed: int, kill: bool, *args: Any) -> None:
    """Train in this process, which writes a checkpoint after every iteration.

    kill: end by SIGKILL at a random byte of a random file, if so many are written.
    """
    rng = random.Random(seed)
    set_up_process(1)
    checkpoints.WRITING = math.inf
    for module, name, few in FEWER:
        setattr(module, name, few)
    if kill:
        left, real = rng.randrange(8), os.fsync

        def sync(descriptor: int) -> None:
            nonlocal left
            left -= 1
            if left < 0:
                size = os.fstat(descriptor).st_size
                if stat.S_ISREG(os.fstat(descriptor).st_mode):
                    os.ftruncate(descriptor, rng.randrange(size + 1))
                os.kill(os.getpid(), signal.SIGKILL)
            real(descriptor)

        os.fsync = sync
    torch_only, case, results = args
    with kernels.off() if torch_only else contextlib.nullcontext():
        train(case, results, checkpoint_interval=1e-9)


FEWER = [(control, "POINTS", 5), (control, "FINAL_EPISODES", 4), (control, "CURVE_EPISODES", 4)]


def killed_until_finished(case: str, torch_only: bool, results: Path, rng: random.Random) -> int:
    """Train a case, killed again and again; returns how often."""
    for kills in itertools.count():
        at_a_file = bool(kills % 2)
        args = (rng.randrange(2**31), at_a_file, torch_only, case, results)
        process = SERVER.Process(target=hurried, args=args, daemon=True)
        process.start()
        # A process takes some time to begin; later ones longer, so that there is an end.
        process.join(60 if at_a_file else 0.1 + rng.random() * (0.5 + 0.1 * kills))
        if process.exitcode is None:
            process.kill()
            process.join()
        if process.exitcode == 0:
            return kills
        if process.exitcode != -signal.SIGKILL:
            raise RuntimeError(f"{case}: exit status {process.exitcode}")
    raise AssertionError("never")


def main(count: int, words: Sequence[str]) -> int:
    """Kill trainings `count` times at least; the exit status."""
    rng = random.Random(0)
    chosen = [case for case in CASES if not words or any(word in case for word in words)]
    kills, wrong = 0, 0
    for case, torch_only in itertools.cycle(itertools.product(chosen, (False, True))):
        if kills >= count:
            break
        with tempfile.TemporaryDirectory() as folder:
            whole, broken = Path(folder) / "whole", Path(folder) / "broken"
            process = SERVER.Process(target=hurried, args=(0, False, torch_only, case, whole))
            process.start()
            process.join()
            own = killed_until_finished(case, torch_only, broken, rng)
            parts = [next(x.glob("runs/*/*/*/seeds-*")) for x in (broken, whole)]
            found = differences(*parts)
            left = [p.name for p in broken.rglob(".*") if not p.name.endswith(".locks")]
        kills, wrong = kills + own, wrong + bool(found or left)
        by = "PyTorch" if torch_only else "C"
        said = f"differs: {', '.join(found + left)}" if found or left else "equal"
        print(f"{case} ({by}): killed {own} times, {said}", flush=True)
    print(f"{kills} kills, {wrong} trainings that differ")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2:]))
