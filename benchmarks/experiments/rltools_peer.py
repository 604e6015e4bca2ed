"""RLtools, a C++ library, beside ours: in an environment of its own, `make peers`.

Its Python package compiles a program for every choice of hyperparameters, which are constants
there. One program trains one agent. Its PPO knows continuous actions alone, so neither CartPole nor
Acrobot can be set beside ours; Pendulum is its own, in C++. Matrices are multiplied by MKL, without
which it is a tenth as fast. Of its two compilers g++ is the default and the faster one.

What stays RLtools' own, besides the lines of `parameters`:
 1. Pendulum pays for the torque that was asked for, Gymnasium's for the clipped one. Actions are
    scaled from [-1, 1].
 2. The last step before a time limit has the advantage 0: nothing is bootstrapped behind it.
 3. Gradients are not clipped. Adam's epsilon is 1e-7 (SB3's PPO and ours: 1e-5).
 4. Layers start as Kaiming uniform. The advantages' standard deviation is that of the population.
 5. Nothing is logged.
"""

from __future__ import annotations

import json
import math
import subprocess
from functools import cache
from typing import TYPE_CHECKING, Any

from manyseeds.digest import ROOT

if TYPE_CHECKING:
    from manyseeds.algos import ppo

PYTHON = ROOT / ".venv-rltools" / "bin" / "python"

# What `environment.h` in the folder of an environment has to define.
PENDULUM = """
#include <rl_tools/rl/environments/pendulum/operations_generic.h>
namespace pendulum = rl_tools::rl::environments::pendulum;
template <typename T, typename TI>
using ENVIRONMENT_FACTORY =
    rl_tools::rl::environments::Pendulum<pendulum::Specification<T, TI>>;
"""

MEASURE = """
import time
started = time.perf_counter()
import json, resource, sys, tempfile
from pathlib import Path
environment, parameters = sys.argv[1], json.loads(sys.argv[2])
steps, total = parameters["N_ENVIRONMENTS"] * parameters["ON_POLICY_RUNNER_STEPS_PER_ENV"], \
    parameters["TOTAL_STEP_LIMIT"]
with tempfile.TemporaryDirectory() as folder:
    tempfile.tempdir = folder  # RLtools keeps its programs there: each process compiles, as in JAX
    from rltools import PPO
    Path(folder, "environment.h").write_text(environment)
    began = time.perf_counter()
    program = PPO({"path": folder}, enable_evaluation=False, **parameters)
    compile_s = time.perf_counter() - began
times = []
for repeat in range(2):
    began = time.perf_counter()
    agent = program.State(repeat)
    for _ in range(total // steps):
        agent.step()  # a rollout and its update
    ended = time.perf_counter()
    times.append(ended - began)
    fresh_s = fresh_s if repeat else ended - started
memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
print(json.dumps(dict(timesteps=total // steps * steps, learn_s=times[1], compile_s=compile_s,
                      warm_up_s=compile_s + times[0] - times[1], memory=memory, fresh_s=fresh_s)))
"""

VERSIONS = """
import json, subprocess
from importlib.metadata import distributions
from rltools.src.compile import find_compiler
found = {x.name: x.version for x in distributions() if x.name in ("rltools", "mkl")}
compiler = find_compiler()[0]
version = subprocess.check_output([compiler, "-dumpfullversion"], text=True).strip()
print(json.dumps({**found, compiler: version}))
"""


def parameters(config: ppo.Config) -> dict[str, Any]:
    """RLtools' names of our hyperparameters; its weight of the value loss is our default, 0.5."""
    width, *_ = config.hidden  # all its layers have the same
    network = {
        "HIDDEN_DIM": width,
        "NUM_LAYERS": len(config.hidden) + 1,  # the last one counts
        # As ours. FAST_TANH, a rational function off by up to 0.024, trains 5 to 10% faster.
        "ACTIVATION_FUNCTION": "TANH",
    }
    return {
        "N_ENVIRONMENTS": config.num_envs,
        "ON_POLICY_RUNNER_STEPS_PER_ENV": config.num_steps,
        "BATCH_SIZE": config.minibatch_size,
        "N_EPOCHS": config.epochs,
        "GAMMA": config.gamma,
        "LAMBDA": config.gae_lambda,
        "EPSILON_CLIP": config.clip_range,
        "ACTION_ENTROPY_COEFFICIENT": config.entropy_coef,
        "INITIAL_ACTION_STD": math.exp(config.log_std_init),
        "NORMALIZE_ADVANTAGE": config.normalize_advantage,
        "OPTIMIZER_ALPHA": config.learning_rate,  # constant: ADAPTIVE_LEARNING_RATE stays off
        "TOTAL_STEP_LIMIT": config.total_timesteps,
        **{f"{name}_{key}": x for name in ("ACTOR", "CRITIC") for key, x in network.items()},
    }


def command(config: ppo.Config) -> list[str]:
    """What compiles PPO, trains an agent twice, and prints the figures of the second training."""
    return [str(PYTHON), "-c", MEASURE, PENDULUM, json.dumps(parameters(config))]


@cache
def found() -> bool:
    """Whether RLtools is installed, with a compiler that it knows."""
    if not PYTHON.exists():
        return False
    return subprocess.run([PYTHON, "-c", VERSIONS], capture_output=True).returncode == 0


def versions() -> dict[str, str]:
    """Versions of RLtools, MKL where it has it, and the compiler."""
    done = subprocess.run([PYTHON, "-c", VERSIONS], capture_output=True, text=True, check=True)
    found: dict[str, str] = json.loads(done.stdout)
    return found
