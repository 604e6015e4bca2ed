"""Compares CUDA with the CPU on a machine with a GPU, then measures the throughput.

    make gpu-check

A check prints `pass` or `FAIL` with its figures, which are also written to gpu-check.json in
results/local. The exit status is 1 if one fails. Then `throughput.py --device cuda` measures 10,
1,024 and 8,192 seeds, beside rejax if its jax finds the GPU, and writes throughput-cuda.json.

Rounding errors grow: once one has changed an action, two trainings diverge. CUDA and the CPU are
therefore compared weight by weight after one iteration, and by scores after a whole training.
"""

from __future__ import annotations

from manyseeds.command import failing_in_one_line

import contextlib
import copy
import gc
import io
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from manyseeds import capture, envs, kernels
from manyseeds.algos import ppo
from manyseeds.benchmarks.experiments import catalog
from manyseeds.benchmarks.experiments.cases import ALGORITHMS, Case, command_line
from manyseeds.benchmarks.measurements.measure import SeedsLearningOnly, origin, write_measured
from manyseeds.checkpoint import to_bytes
from manyseeds.cli import ScriptConfig, from_preset, parse
from manyseeds.digest import ROOT
from manyseeds.errors import UsageError
from manyseeds.evaluate import CURVE_EPISODES, evaluate
from manyseeds.llm_track import grpo, models, sampling, tasks
from manyseeds.process import ENDING, set_up_process
from manyseeds.record import gpu
from manyseeds.runs.control import Run
from manyseeds.runs.parallel import Processes
from manyseeds.seeds import PURPOSES, SeedStreams

CPU = torch.device("cpu")
CAPTURED = [
    algo for algo in catalog.names("algos") if hasattr(catalog.module("algos", algo), "captured")
]
SEEDS = 8
ITERATIONS = 10  # of captured trainings: the first is run, the second recorded, the others replayed
TRAINED: dict[str, Any] = {"seeds": 20}  # PPO's preset on CartPole, but for these settings
KEPT = 64 * 2**20  # bytes that trainings may leave behind


@dataclass(frozen=True, kw_only=True)
class Config(ScriptConfig):
    """What is checked."""

    only: tuple[str, ...] = ()
    """Run only the checks whose names contain one of these words (default: all)."""
    throughput: bool = True
    """Measure the throughput after the checks."""


class Failed(Exception):
    """A check has found something else than it should."""


def require(holds: bool, found: str) -> str:
    """What a check found; raises Failed where it does not hold."""
    if not holds:
        raise Failed(found)
    return found


# ---- Trainings of a few iterations ----------------------------------------------------------


class Stopped(Exception):
    """Ends a training early."""


class ShortRun(Run):
    """Stops a training after some iterations, without evaluations; `policy` is what it learned."""

    def __init__(self, config: Any, iterations: int) -> None:
        super().__init__(config)
        self.left = iterations
        self.policy: Any = None

    def log(self, timestep: int | Tensor, metrics: dict[str, Tensor]) -> None:
        return

    def evaluate_if_due(self, timestep: int | Tensor, env: Any, policy: Any) -> None:
        self.policy = policy
        if self.left == 0:
            raise Stopped
        self.left -= 1


def cases(first: bool) -> list[Case]:
    """Trainings on native environments that CUDA captures; first: one for each environment."""
    native = [x for x in ALGORITHMS if x.method in CAPTURED and "--backend" not in x.flags]
    by_env: dict[tuple[str, str], Case] = {}
    for case in native:
        by_env.setdefault((case.method, case.subject), case)
    return list(by_env.values()) if first else native


def config_of(case: Case, device: torch.device, **settings: Any) -> Any:
    """The Config of a case on a device, long enough for any number of iterations here."""
    module = catalog.module("algos", case.method)
    config = parse(module.Config, module.PRESETS, args=command_line(case.options, {}))
    # A DQN that does not learn yet would have nothing to compare.
    learns = {"learning_starts": 0} if case.method == "dqn" else {}
    settings = {"seeds": SEEDS, "device": device.type, "total_timesteps": 100_000, **settings}
    return replace(config, **learns, **settings)


def learned(case: Case, device: torch.device, iterations: int, **settings: Any) -> Any:
    """The policies after some iterations."""
    run = ShortRun(config_of(case, device, **settings), iterations)
    with contextlib.suppress(Stopped):
        catalog.module("algos", case.method).train(run.config, run)
    return run.policy


def eagerly() -> Any:
    """Within it nothing is captured."""
    return mock.patch.object(capture, "recorder_for", return_value=None)


def differences(policy: Any, other: Any) -> np.ndarray:
    """The largest difference of two policies' tensors, of each seed, [S].

    Absolute below 1, relative above it; infinite where only one of two is NaN.
    """
    found = []
    for a, b in zip(policy.state_dict().values(), other.state_dict().values(), strict=True):
        a, b = a.cpu().double().flatten(1), b.cpu().double().flatten(1)
        apart = ((a - b).abs() / b.abs().clamp(min=1)).nan_to_num(np.inf)
        found.append(apart.masked_fill((a == b) | (a.isnan() & b.isnan()), 0.0).amax(1))
    return torch.stack(found).amax(0).numpy()


# ---- The checks: each takes the device that is compared with the CPU ------------------------


def random_numbers(device: torch.device) -> str:
    """Uniforms and normals have the bits of the CPU's."""
    equal = []
    for purpose in PURPOSES:
        here, there = (SeedStreams(range(SEEDS), purpose, x) for x in (CPU, device))
        for shape in ((5, 3), (7,), (1000,)):
            equal.append(torch.equal(here.uniform(*shape), there.uniform(*shape).cpu()))
            equal.append(torch.equal(here.normal(*shape), there.normal(*shape).cpu()))
    return require(all(equal), f"{sum(equal)} of {len(equal)} draws are equal bit for bit")


def initial_weights(device: torch.device) -> str:
    """They have the bits of the CPU's."""
    apart = [differences(learned(x, device, 0), learned(x, CPU, 0)).max() for x in cases(True)]
    equal = sum(x == 0 for x in apart)
    return require(equal == len(apart), f"{equal} of {len(apart)} are equal bit for bit")


def environment_steps(device: torch.device) -> str:
    """A step of every environment from states of an episode: 1e-5, in float64 1e-10."""
    worst = {torch.float32: 0.0, torch.float64: 0.0}
    for name in envs.NATIVE:
        env = envs.make(name)
        if env.spec.obs_size is None:
            continue
        for dtype in worst:
            streams = SeedStreams(range(SEEDS), "train")
            state, _ = env.reset(streams.uniform(16, env.initial_noise).to(dtype))
            for _ in range(50):
                noise = streams.uniform(16, env.noise_size).to(dtype)
                if env.spec.continuous:
                    action = streams.normal(16, len(env.spec.action_low)).to(dtype)
                else:
                    action = (streams.uniform(16) * env.spec.num_actions).long()
                there = envs.State(*(x.to(device) for x in state))
                theirs = env.step(there, action.to(device), noise.to(device))
                step = env.step(state, action, noise)
                for a, b in zip(capture.leaves(theirs), capture.leaves(step), strict=True):
                    apart = (a.cpu().double() - b.double()).abs().max().item()
                    worst[dtype] = max(worst[dtype], apart)
                state = step.state
    single, double = worst.values()
    found = f"at most {single:.1e} apart, in float64 {double:.1e}"
    return require(single <= 1e-5 and double <= 1e-10, found)


def one_iteration(device: torch.device) -> str:
    """Rollout and update of every algorithm: 1e-4 in the median over seeds, at worst 1e-3."""
    apart = {x.label: differences(learned(x, device, 1), learned(x, CPU, 1)) for x in cases(True)}
    label = max(apart, key=lambda x: apart[x].max())
    worst, median = apart[label].max(), max(float(np.median(x)) for x in apart.values())
    found = f"median {median:.1e} apart, at worst {worst:.1e} ({label})"
    return require(median <= 1e-4 and worst <= 1e-3, found)


def captured_iterations(device: torch.device) -> str:
    """Replayed iterations are those of the eager loop: bit for bit, or to 1e-6."""
    apart = {}
    for case in cases(False):
        policy = learned(case, device, ITERATIONS)
        with eagerly():
            apart[case.label] = differences(policy, learned(case, device, ITERATIONS)).max()
    label = max(apart, key=apart.__getitem__)
    equal = sum(x == 0 for x in apart.values())
    found = f"{equal} of {len(apart)} are equal bit for bit, at worst {apart[label]:.1e} ({label})"
    return require(apart[label] <= 1e-6, found)


def captured_twice(device: torch.device) -> str:
    """The same training twice in a process has the same bits."""
    chosen = cases(True)
    pairs = [[learned(x, device, ITERATIONS) for _ in range(2)] for x in chosen]
    equal = sum(differences(*pair).max() == 0 for pair in pairs)
    return require(equal == len(chosen), f"{equal} of {len(chosen)} are equal bit for bit")


def held(device: torch.device) -> int:
    """Bytes of memory on a device that nobody else can have now."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
        return torch.cuda.memory_reserved()
    tensors = [x for x in gc.get_objects() if issubclass(type(x), Tensor) and x.device == device]
    storages = {x.untyped_storage().data_ptr(): x.untyped_storage().nbytes() for x in tensors}
    return sum(storages.values())


def memory_given_back(device: torch.device) -> str:
    """Trainings with several recordings each leave at most 64 MiB behind."""
    chosen = cases(True)
    learned(chosen[0], device, 3)
    before = held(device)
    for case in chosen:
        learned(case, device, 3)
    kept = held(device) - before
    return require(kept <= KEPT, f"{len(chosen)} trainings keep {kept / 2**20:.1f} MiB")


class NothingRead(TorchDispatchMode):
    """Refuses operations that wait for a GPU; stands in for CUDA's own check."""

    WAITS = ("_local_scalar_dense", "is_nonzero", "item", "masked_select", "nonzero", "equal")

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.overloadpacket.__name__ in self.WAITS:
            raise RuntimeError(f"{func} waits for the device")
        return func(*args, **(kwargs or {}))


@contextlib.contextmanager
def without_waiting(device: torch.device) -> Iterator[None]:
    """Raise an error for what waits for the device."""
    if device.type != "cuda":
        with kernels.off(), NothingRead():  # what C reads is on the CPU anyway
            yield
        return
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def waits(device: torch.device) -> str:
    """An iteration, run eagerly with its random numbers, never waits for the device."""

    class WatchedRun(ShortRun):
        watch = contextlib.ExitStack()

        def evaluate_if_due(self, timestep: int | Tensor, env: Any, policy: Any) -> None:
            self.watch.close()
            super().evaluate_if_due(timestep, env, policy)
            if self.left == 0:  # the first iteration has made constants
                self.watch.enter_context(without_waiting(device))

    chosen = cases(False)
    for case in chosen:
        run = WatchedRun(config_of(case, device), 2)
        with eagerly(), run.watch, contextlib.suppress(Stopped):
            catalog.module("algos", case.method).train(run.config, run)
    return f"{len(chosen)} iterations do not wait"


def seed_alone(device: torch.device) -> str:
    """How far seed 3 alone is from seed 3 among 8 after one iteration: a report, not a check."""
    apart = {}
    for case in cases(True):
        among = learned(case, device, 1, first_seed=0).state_dict()
        alone = learned(case, device, 1, first_seed=3, seeds=1).state_dict()
        apart[case.label] = max(
            float((among[name][3:4] - x).abs().max()) for name, x in alone.items()
        )
    label = max(apart, key=apart.__getitem__)
    equal = sum(x == 0 for x in apart.values())
    return f"{equal} of {len(apart)} are equal bit for bit, at worst {apart[label]:.1e} ({label})"


def whole_training(device: torch.device) -> str:
    """PPO on CartPole: each IQM lies in the other's interval over seeds."""
    scores = []
    for where in (CPU, device):
        settings = {**TRAINED, "device": where.type, "quiet": True}
        config = from_preset(ppo.Config, ppo.PRESETS, "CartPole-v1", **settings)
        run = Run(config)
        scores.append(run.finish(ppo.train(config, run))["final"]["greedy"]["iqm"])
    here, there = scores
    holds = all(a["low"] <= b["value"] <= a["high"] for a, b in ((here, there), (there, here)))
    texts = [f"{x['value']:.1f} [{x['low']:.1f}, {x['high']:.1f}]" for x in scores]
    return require(holds, f"{texts[1]}, on the CPU {texts[0]}")


def one_policy(device: torch.device) -> str:
    """A policy has the same bytes and scores on both: half of the seeds to 1%, all to 10%."""
    case = cases(True)[0]
    policy = learned(case, CPU, ITERATIONS)
    moved = copy.deepcopy(policy).to(device)
    same = to_bytes(policy.state_dict()) == to_bytes(moved.state_dict())
    env = envs.make(case.subject)
    here, there = (
        evaluate(env, x, range(SEEDS), CURVE_EPISODES).return_mean for x in (policy, moved)
    )
    apart = np.abs(there - here) / np.abs(here).clip(1)
    found = f"{'equal' if same else 'other'} bytes, returns at worst {apart.max():.1%} apart"
    return require(same and np.median(apart) <= 0.01 and apart.max() <= 0.1, found)


@contextlib.contextmanager
def language_model() -> Iterator[str]:
    """A folder with a small model of random weights, and rewards that it earns by chance."""
    from transformers import LlamaForCausalLM

    tokenizer = models.tiny_tokenizer()
    torch.manual_seed(0)
    model = LlamaForCausalLM(models.tiny_config(tokenizer))
    rewards = mock.patch.object(
        tasks.Addition, "accuracy", lambda self, problem, text: float(sum(map(ord, text)) % 2)
    )
    with tempfile.TemporaryDirectory() as folder, rewards:
        models.save(model, tokenizer, Path(folder) / "model")
        yield str(Path(folder) / "model")


def language_config(model: str, device: torch.device, **settings: Any) -> grpo.Config:
    """GRPO for one step."""
    size: dict[str, Any] = {"prompts": 4, "group_size": 4, "minibatches": 1, "total_samples": 16}
    size |= {"max_new_tokens": 16, "quiet": True}
    return grpo.Config(model=model, device=device.type, **size, **settings)  # type: ignore[arg-type]


def log_probabilities(device: torch.device) -> str:
    """Of a small language model: 1e-4, in bfloat16 0.02."""
    worst = {"float32": 0.0, "bfloat16": 0.0}
    if device.type == "cuda" and not torch.cuda.is_bf16_supported(including_emulation=False):
        del worst["bfloat16"]
    with language_model() as folder, torch.no_grad():
        for dtype in worst:
            found = []
            for where in (CPU, device):
                config = language_config(folder, where, dtype=dtype)
                model, tokenizer = models.load_model(config, where, Processes(where))
                texts = sampling.from_texts(
                    tokenizer, tasks.make("addition"), ["1+2="] * 8, list("abcdefgh"), 16, where
                )
                found.append(sampling.logprobs(model, texts).cpu())
            worst[dtype] = float((found[0] - found[1]).abs().max())
    holds = worst["float32"] <= 1e-4 and worst.get("bfloat16", 0.0) <= 0.02
    return require(holds, ", ".join(f"{name} at most {x:.1e} apart" for name, x in worst.items()))


def language_step(device: torch.device) -> str:
    """A step of GRPO, whole and with LoRA: 99% of the weights to a tenth of the learning rate."""
    shares = []
    with language_model() as folder:
        for rank in (0, 4) if find_spec("peft") else (0,):
            found = []
            for where in (CPU, device):
                config = language_config(folder, where, dtype="float32", lora_rank=rank)
                policy = grpo.train(config, SeedsLearningOnly(config, [0]))
                found.append(torch.cat([p.cpu().flatten() for p in policy.tensors().values()]))
            apart = (found[0] - found[1]).abs() > config.learning_rate / 10
            shares.append(float(apart.double().mean()))
    found_shares = ", with LoRA ".join(f"{share:.2%}" for share in shares)
    return require(max(shares) <= 0.01, f"weights that differ: {found_shares}")


def out_of_memory(device: torch.device) -> str:
    """It is one line."""
    said = io.StringIO()
    with contextlib.redirect_stderr(said), contextlib.suppress(SystemExit), failing_in_one_line():
        torch.empty(2**50, dtype=torch.uint8, device=device)
    found = said.getvalue().rstrip("\n")
    return require(found.startswith("error: out of memory: ") and "\n" not in found, found)


CHECKS: tuple[Callable[[torch.device], str], ...] = (
    random_numbers,
    initial_weights,
    environment_steps,
    one_iteration,
    captured_iterations,
    captured_twice,
    memory_given_back,
    waits,
    seed_alone,
    whole_training,
    one_policy,
    log_probabilities,
    language_step,
    out_of_memory,
)


def carry_out(check: Callable[[torch.device], str], device: torch.device) -> dict[str, Any]:
    """Run a check and print its line; an error in it is a failure."""
    began, passed = time.perf_counter(), False
    try:
        found = check(device)
        passed = True
    except Failed as failed:
        found = str(failed)
    except Exception as error:  # whatever CUDA raises: the other checks may say why
        found = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
    name, seconds = check.__name__.replace("_", " "), time.perf_counter() - began
    print(f"{'pass' if passed else 'FAIL'}  {name}: {found} ({seconds:.0f} s)", flush=True)
    return {"name": name, "passed": passed, "found": found, "seconds": seconds}


@failing_in_one_line()
def main(args: Sequence[str] | None = None) -> None:
    """Check, write results/gpu-check.json, and measure the throughput."""
    config = parse(Config, {}, __doc__, args)
    if not torch.cuda.is_available():
        raise UsageError("gpu_check.py: this torch sees no CUDA device")
    set_up_process(threads=1)
    print(gpu())
    chosen = [x for x in CHECKS if not config.only or any(w in x.__name__ for w in config.only)]
    checks = [carry_out(check, torch.device("cuda")) for check in chosen]
    stored = origin(
        [f"manyseeds.algos.{algo}:train" for algo in CAPTURED], packages=["transformers"]
    )
    stored["machine"]["gpu"] = gpu()
    write_measured(Path(config.results) / "gpu-check.json", {**stored, "checks": checks})
    status = 0 if all(x["passed"] for x in checks) else 1
    if config.throughput:
        torch.cuda.empty_cache()
        command = [sys.executable, str(ROOT / "benchmarks" / "throughput.py"), "--device", "cuda"]
        status |= subprocess.run([*command, "--results", config.results], **ENDING).returncode
    raise SystemExit(min(status, 1))


if __name__ == "__main__":
    main()
