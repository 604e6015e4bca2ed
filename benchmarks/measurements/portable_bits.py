"""Checks that a seed is trained to the same bits by every build, in any batch, on any threads.

    python benchmarks/portable_bits.py
    python benchmarks/portable_bits.py --only ppo --timesteps 100000
    python benchmarks/portable_bits.py --record       # as what every other machine must find

Every algorithm is trained briefly: seed 0 alone, with 1, 6 and 31 others, on two threads, and
interrupted in the middle and resumed. That is done with every build of the C code that this machine
can have: by gcc, clang and zig cc (`make compilers`), for the instructions of this CPU and for
AVX2. The SHA-256 of each seed's weights, curve and metrics must be those in portable_bits.json
beside this file, or, for a number of timesteps that is not in it, those of the first build.

The exit status is 1 where one differs; the table names the first.
"""

from __future__ import annotations

from manyseeds.command import Interrupted, failing_in_one_line

import contextlib
import dataclasses
import hashlib
import importlib
import json
import os
import platform
import shlex
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
import torch

from manyseeds import kernels
from manyseeds.benchmarks.experiments import catalog
from manyseeds.benchmarks.measurements.measure import measured, measuring, run_pinned
from manyseeds.checkpoint import weights_sha256
from manyseeds.cli import ControlConfig, PositiveInt, parse
from manyseeds.digest import ROOT
from manyseeds.errors import UsageError
from manyseeds.process import set_up_process
from manyseeds.progress import print_table
from manyseeds.record import read_json
from manyseeds.runs.control import Run
from manyseeds.runs.language_seeds import SeedsRun
from manyseeds.runs.planning import PlanningConfig, PlanningRun
from manyseeds.runs.prediction import PredictionRun
from manyseeds.writing import write_json

DOOR = ROOT / "benchmarks" / "portable_bits.py"
ZIG = ROOT / ".venv-zig" / "bin" / "python"
EXPECTED = Path(__file__).with_suffix(".json")
TIMESTEPS = 2048
BASE_STEPS = 3
# PyTorch, NumPy and MKL compute as on a CPU without AVX-512.
LIKE_AVX2 = {
    "ATEN_CPU_CAPABILITY": "avx2",
    "NPY_DISABLE_CPU_FEATURES": "X86_V4 AVX512_ICL AVX512_SPR",
    "MKL_ENABLE_INSTRUCTIONS": "AVX2",
}

IDLE = {"OMP_WAIT_POLICY": "passive"}  # threads that wait leave the cores to others

# What is trained: an algorithm and an environment, and what differs from the preset.
FEW_UPDATES = {"learning_starts": 500, "gradient_steps": 16, "hidden": (64, 64)}
NORMALIZED = {"normalize_obs": True, "normalize_reward": True}
TRAININGS: dict[str, dict[str, Any]] = {
    "ppo CartPole-v1": {},
    "ppo Pendulum-v1": {"num_steps": 128},
    "ppo MountainCar-v0": {},  # observations and rewards are normalised
    "ppo MountainCarContinuous-v0": {"num_steps": 128, "target_kl": 0.01},
    "ppo Acrobot-v1": {"num_steps": 64},
    "a2c CartPole-v1": {},
    "a2c Pendulum-v1": {**NORMALIZED, "optimizer": "adam"},
    "dqn CartPole-v1": FEW_UPDATES,
    "dqn MountainCar-v0": {**FEW_UPDATES, "tau": 0.5},
    "trpo CartPole-v1": {},
    "trpo Pendulum-v1": {**NORMALIZED, "num_steps": 256},
    "reinforce CartPole-v1": {"weight": "baseline", "critic_updates": 3},
    "reinforce Pendulum-v1": {"episodes": 4},
    "grpo CartPole-v1": {},
    "grpo Pendulum-v1": {"groups": 1, "group_size": 4, "epochs": 2},
    "rainbow CartPole-v1": FEW_UPDATES,
    "rainbow Acrobot-v1": {
        **{"learning_starts": 1500, "hidden": (16, 16), "batch_size": 30},
        **{"distribution": "quantile", "atoms": 9},
    },
    "sac Pendulum-v1": {"hidden": (64, 64), "batch_size": 64, "learning_starts": 500},
    "sac MountainCarContinuous-v0": {"hidden": (16, 16), "batch_size": 32, "learning_starts": 500},
    "td3 Pendulum-v1": {"hidden": (64, 64), "batch_size": 64, "learning_starts": 500},
    "ddpg Pendulum-v1": {"hidden": (64, 64), "batch_size": 64, "learning_starts": 500},
    "sac_discrete CartPole-v1": FEW_UPDATES,
    "pqn CartPole-v1": {"num_envs": 8, "hidden": (64, 30)},
    "pqn Acrobot-v1": {"num_envs": 4, "hidden": (64, 64), "layer_norm": False},
    "q_learning FrozenLake-v1": {},
    "q_learning CartPole-v1": {},
    "sarsa Taxi-v4": {},
    "td_prediction RandomWalk-v0": {},
    "monte_carlo Gridworld-v0": {},
    "value_iteration FrozenLake-v1": {},
    "policy_iteration Taxi-v4": {},
    # Language models of random weights, RL by the score of another one; steps of 16 completions.
    "llm_track/grpo addition": {},
    "llm_track/dapo addition": {"dynamic_sampling": False, "overlong_filtering": False},
    "llm_track/gspo addition": {"kl_coef": 0.04, "entropy_coef": 0.01},
    "llm_track/reinforce_pp addition": {},
    "llm_track/rlhf_ppo addition": {"prompts": 16, "group_size": 1},
    # With base models that are made here, in BASE_STEPS.
    "llm_track/sft addition": {
        **{"batch_size": 16, "max_new_tokens": 0},
        **{"model": "tiny-base", "initial_per_seed": True},
    },
}


class Way(NamedTuple):
    """How a training is run."""

    seeds: int
    threads: int = 1
    resumed: bool = False  # from a checkpoint in the middle


WAYS = {
    "alone": Way(1),
    "2 seeds": Way(2),
    "7 seeds": Way(7),
    "32 seeds": Way(32),
    "2 threads": Way(7, threads=2),
    "resumed": Way(2, resumed=True),
}
RECORDED = "2 seeds"  # the way whose digests are stored

Digests = dict[str, list[str]]  # of "weights", "curve" and "metrics": the SHA-256 of each seed's


# ---- One training ----------------------------------------------------------------------------


def train(training: str, timesteps: int, way: Way) -> Digests:
    """The digests of a training."""
    set_up_process(way.threads)
    if training.startswith("llm_track/"):
        return train_language(training, way)
    algo, _, env = training.partition(" ")
    module = catalog.module("algos", algo)
    preset = module.PRESETS[env].settings if env in module.PRESETS else {}
    settings = {**preset, **TRAININGS[training], "env": env, "quiet": True}
    if issubclass(module.Config, PlanningConfig):
        plan = PlanningRun(module.Config(**settings))
        values = module.solve(plan.config, plan)
        rows = [[dataclasses.astuple(sweep) for sweep in plan.sweeps]]
        return {"weights": sha256_of_weights({"V": values[None]}), "curve": sha256_of(rows)}
    if issubclass(module.Config, ControlConfig):
        settings |= {"total_timesteps": timesteps, "eval_budget": 0.1}
    run_class = Run if issubclass(module.Config, ControlConfig) else PredictionRun
    with tempfile.TemporaryDirectory() as folder:
        interval = 1e9 if way.resumed else 0  # seconds
        config = module.Config(**settings, threads=way.threads, checkpoint_interval=interval)
        seeds, part = range(way.seeds), Path(folder) / "part"

        def prepared() -> Any:
            run = run_class(config, seeds, part if way.resumed else None, algo)
            if way.resumed:
                run.open([module.train])
            return run

        if way.resumed:
            train_half(module, prepared())
        run = prepared()
        result = module.train(config, run)
        if way.resumed and not run.checkpoint.at:
            raise UsageError(f"{training}: did not go on from its checkpoint")
        run.heed()
        run.close()
    if isinstance(run, PredictionRun):
        found = run.predictions()
        curve = [*zip(found.timesteps.tolist(), found.values.tolist(), strict=True)]
        return {"weights": sha256_of_weights({"v": result}), "curve": sha256_of(curve)}
    run.pause()
    run.evaluate_finally(result)
    return {
        "weights": sha256_of_weights(result.state_dict()),
        "curve": sha256_of(rows_by_seed(run.curve(), seeds)),
        "metrics": sha256_of(rows_by_seed(run.metrics(), seeds)),
    }


def train_language(training: str, way: Way) -> Digests:
    """The digests of a training of language models."""
    from manyseeds.llm_track import models

    algo, _, task = training.removeprefix("llm_track/").partition(" ")
    module = importlib.import_module(f"manyseeds.llm_track.{algo}")
    small = {
        "prompts": 4,
        "group_size": 4,
        "minibatches": 2,
        "epochs": 2,
        "max_new_tokens": 12,
        "total_samples": 64,
        "evaluations": 1,
        "eval_budget": 0.02,
        "learning_rate": 3e-3,
    }
    few = mock.patch.dict(models.BASES, {"tiny-base": models.Base(steps=BASE_STEPS)})
    with tempfile.TemporaryDirectory() as folder, few:
        policy, judge = (random_llama(Path(folder) / x, x == "judge") for x in ("policy", "judge"))
        shared = {**small, "reward_model": judge, "rules": False}
        settings = {name: x for name, x in shared.items() if hasattr(module.Config, name)}
        settings |= {"model": policy, **TRAININGS[training], "task": task, "quiet": True}
        settings |= {"threads": way.threads, "results": folder}
        config = module.Config(**settings, checkpoint_interval=1e-9 if way.resumed else 1e9)

        def prepared() -> SeedsRun:
            run = SeedsRun(config, range(way.seeds), Path(folder) if way.resumed else None, algo)
            if way.resumed:
                run.open([module.train])
            return run

        if way.resumed:
            first = prepared()
            first.save_if_due = until_the_middle(first)  # type: ignore[method-assign]
            with contextlib.suppress(Interrupted):
                module.train(config, first)
            first.close()
        run = prepared()
        result = module.train(config, run)
        if way.resumed and not run.checkpoint.at:
            raise UsageError(f"{training}: did not go on from its checkpoint")
        run.close()
    tables = ([getattr(one, name)() for one in run.runs] for name in ("curve", "metrics"))
    curve, metrics = (
        sha256_of([x for own in each for x in rows_by_seed(own, own["seed"].unique())])
        for each in tables
    )
    weights = sha256_of_weights({"weights": result.llama.flat.detach()})
    return {"weights": weights, "curve": curve, "metrics": metrics}


def until_the_middle(run: SeedsRun) -> Callable[..., None]:
    """Its `save_if_due`, which ends the training after half of the samples."""
    save = run.save_if_due

    def save_or_end(*args: Any, **extra: Any) -> None:
        save(*args, **extra)
        if run.samples >= run.config.total_samples / 2:
            raise Interrupted

    return save_or_end


def random_llama(folder: Path, scalar: bool) -> str:
    """The folder of a tiny model whose weights every machine draws alike."""
    import transformers

    from manyseeds.llm_track import models

    tokenizer, rng = models.tiny_tokenizer(), np.random.default_rng(int(scalar))
    architecture = models.tiny_config(tokenizer, width=32)
    if scalar:
        architecture.num_labels = 1
    kind = "LlamaForSequenceClassification" if scalar else "LlamaForCausalLM"
    model = getattr(transformers, kind)(architecture)
    with torch.no_grad():
        for name, p in sorted(model.named_parameters()):
            if "norm" not in name:
                p.copy_(torch.from_numpy(rng.random(tuple(p.shape)) - 0.5) / 2)
    models.save(model, tokenizer, folder)
    return str(folder)


def train_half(module: Any, run: Any) -> None:
    """Train until the middle, and leave a checkpoint there."""
    save = run.save_if_due

    def save_or_end(position: Any, *others: Any) -> None:
        if float(position if isinstance(position, int) else position.min()) >= run.total / 2:
            run._ask(signal.SIGTERM, None)  # as if it had reached this process
        save(position, *others)

    run.save_if_due = save_or_end
    try:
        module.train(run.config, run)
    except Interrupted:
        run.close()


def sha256_of_weights(tensors: Mapping[str, Any]) -> list[str]:
    S = len(next(iter(tensors.values())))
    return list(weights_sha256(tensors, range(S)).values())


def rows_by_seed(frame: Any, seeds: Sequence[int]) -> list[Any]:
    """The rows of each seed, seconds left out."""
    frame = frame.drop(columns=["learn_s"], errors="ignore")
    return [frame[frame["seed"] == seed].to_dict("list") for seed in seeds]


def sha256_of(rows: Sequence[Any]) -> list[str]:
    """Of what JSON can hold, for each seed; a float has all its digits there."""
    return [hashlib.sha256(json.dumps(own).encode()).hexdigest() for own in rows]


# ---- Builds ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Build:
    """How a process that trains is started, and what its C code is compiled with."""

    name: str
    environment: Mapping[str, str]
    launcher: Sequence[str] = (sys.executable,)

    def train(
        self, timesteps: int, ways: Sequence[str], trainings: Sequence[str]
    ) -> dict[str, dict[str, Digests]]:
        """The digests of trainings, by training and way. Raises UsageError."""
        words = (str(timesteps), json.dumps(ways), json.dumps(trainings))
        command = [*self.launcher, *measuring(DOOR, *words)[1:]]
        done: Any = run_pinned(command, None, **IDLE, **self.environment)
        print(f"{self.name}: {done['instructions']}, {done['wall_s']:.0f} s", flush=True)
        found: dict[str, dict[str, Digests]] = done["found"]
        return found


def builds() -> list[Build]:
    """Those that this machine can have."""
    compilers = {name: name for name in ("gcc", "clang") if shutil.which(name)}
    if ZIG.exists():
        compilers["zig cc"] = f"{shlex.quote(str(ZIG))} -m ziglang cc"
    found = [Build(name, {"CC": compiler}) for name, compiler in compilers.items()]
    if platform.machine() == "x86_64":
        for name, compiler in compilers.items():
            environment = {"CC": f"{compiler} -march=haswell", **LIKE_AVX2}
            found.append(Build(f"{name} AVX2", environment))
    return found


def emulated(folder: Path) -> Build:
    """A Python and a torch of arm64 that qemu runs; the C code is cross-compiled."""
    root = folder / "root"
    environment = {
        "CC": "aarch64-linux-gnu-gcc -mcpu=generic",
        "PYTHONPATH": f"{ROOT}:{folder / 'site'}",
        "PYTHONPYCACHEPREFIX": str(folder / "pycache"),
    }
    qemu = ("qemu-aarch64-static", "-L", str(root), str(root / "usr" / "bin" / "python3.11"))
    return Build("arm64, emulated", environment, qemu)


def measure(timesteps: str, ways: str, trainings: str) -> dict[str, Any]:
    """What a process that trains prints. ways, trainings: JSON."""
    # In turn, without threads: under qemu one that starts a process may hang.
    with mock.patch.object(os, "cpu_count", return_value=1):
        library = kernels.library()
    if library is None:
        raise UsageError(f"CC={os.environ.get('CC')}: the C code cannot be built")
    found = {
        training: {way: train(training, int(timesteps), WAYS[way]) for way in json.loads(ways)}
        for training in json.loads(trainings)
    }
    return {"instructions": library.functions.instructions().decode(), "found": found}


# ---- The check -------------------------------------------------------------------------------


def first_difference(found: Mapping[str, Digests], expected: Digests) -> str:
    """What differs first, '' if nothing does. found: by way."""
    for way, digests in found.items():
        for part, own in digests.items():
            for seed, pair in enumerate(zip(own, expected[part], strict=False)):
                if len(set(pair)) > 1:
                    return f"{part} of seed {seed}, {way}"
    return ""


def stored(timesteps: int) -> dict[str, Digests]:
    """What is stored for a number of timesteps, {} where nothing is."""
    found: dict[str, Digests] = read_json(EXPECTED).get(str(timesteps), {})
    return found


def extended(recorded: Digests, more: Digests) -> Digests:
    """The digests of the first seeds as they are recorded, those of others from `more`."""
    return {
        part: [*recorded.get(part, ()), *own[len(recorded.get(part, ())) :]]
        for part, own in more.items()
    }


@dataclass(frozen=True, kw_only=True)
class Config:
    """The same bits by every build."""

    only: tuple[str, ...] = ()
    """Run only the trainings whose names contain one of these words (default: all)."""
    timesteps: PositiveInt = TIMESTEPS
    """Environment steps per seed of each training."""
    record: bool = False
    """Store the digests as the expected ones, if all builds agree."""
    emulated: str = ""
    """Folder with an arm64 Python that runs under qemu, see `make check-arm64`. Trains there alone,
    with 2 seeds, and compares with the stored digests."""


@failing_in_one_line()
def main(args: Sequence[str] | None = None) -> None:
    """Train with every build, print the table."""
    if measured(sys.argv[1:] if args is None else args, measure=measure):
        return
    given = parse(Config, {}, __doc__, args)
    only = given.only or ("",)
    trainings = [name for name in TRAININGS if any(word.lower() in name.lower() for word in only)]
    if not trainings:
        raise UsageError(f"--only {' '.join(only)}: no training has any of it in its name")
    recorded = {} if given.record else stored(given.timesteps)
    if given.emulated:
        if missing := set(trainings) - set(recorded):
            raise UsageError(f"--timesteps {given.timesteps}: not stored for {min(missing)}")
        chosen, ways = [emulated(Path(given.emulated).resolve())], [RECORDED]
    else:
        chosen, ways = builds(), list(WAYS)
    if not chosen:
        raise UsageError("no C compiler (gcc, clang; or make compilers)")
    found = [build.train(given.timesteps, ways, trainings) for build in chosen]
    rows, differ = [], False
    for training in trainings:
        widest = found[0][training][max(ways, key=lambda way: WAYS[way].seeds)]
        expected = extended(recorded.get(training, {}), widest)
        said = [first_difference(own[training], expected) for own in found]
        differ |= any(said)
        rows.append((training, expected["weights"][0][:12], *(x or "equal" for x in said)))
    header = ("training", "seed 0's weights", *(build.name for build in chosen))
    print_table(f"Bits after {given.timesteps:,} timesteps", header, rows)
    if differ:
        sys.exit(1)
    if given.record:
        fresh = {training: found[0][training][RECORDED] for training in trainings}
        everything = read_json(EXPECTED)
        everything[str(given.timesteps)] = {**stored(given.timesteps), **fresh}
        write_json(EXPECTED, everything)
        print(f"written: {EXPECTED}")


if __name__ == "__main__":
    main()
