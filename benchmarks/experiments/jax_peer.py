"""rejax, a JAX suite, beside ours: in an environment of its own, `make jax-env`."""

from __future__ import annotations

import importlib
import json
import subprocess
from collections.abc import Sequence
from functools import cache
from typing import Any

from manyseeds.digest import ROOT

PYTHON = ROOT / ".venv-jax" / "bin" / "python"

MEASURE = """
import time
started = time.perf_counter()
import json, resource, sys, jax
from rejax import get_algo
algo, seeds, steps, env = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
rates = jax.numpy.array(json.loads(sys.argv[5]))  # of every row; [] where all have the same
common = dict(env=env, total_timesteps=steps, eval_freq=steps, learning_rate=2.5e-4,
              gamma=0.99, skip_initial_evaluation=True)
extra = dict(
    ppo=dict(num_envs=4, num_steps=128, num_epochs=4, num_minibatches=4, gae_lambda=0.95,
             clip_eps=0.2, vf_coef=0.5, ent_coef=0.0, max_grad_norm=0.5,
             agent_kwargs=dict(activation="tanh")),
    dqn=dict(num_envs=10, num_epochs=1, buffer_size=10_000, fill_buffer=1_000, batch_size=128,
             target_update_freq=500, max_grad_norm=10.0, ddqn=False,
             agent_kwargs=dict(activation="relu")),
    pqn=dict(num_envs=32, num_steps=64, num_epochs=4, num_minibatches=16, td_lambda=0.95,
             max_grad_norm=10.0),
)[algo]
agent = get_algo(algo).create(**common, **extra)
if algo != "ppo":  # create() has no way to say it
    hidden = dict(dqn=(120, 84), pqn=(256, 256))[algo]
    agent = agent.replace(agent=agent.agent.clone(hidden_layer_sizes=hidden))
agent = agent.replace(eval_callback=lambda algo, ts, rng: ())
if rates.size:
    train = jax.vmap(lambda key, rate: agent.replace(learning_rate=rate).train(key))
else:
    train = jax.vmap(agent.train)
train, inputs = jax.jit(train), (rates,) if rates.size else ()
times = []
for repeat in range(2):
    began = time.perf_counter()
    keys = jax.random.split(jax.random.PRNGKey(repeat), seeds)
    state, _ = jax.block_until_ready(train(keys, *inputs))
    ended = time.perf_counter()
    times.append(ended - began)
    fresh_s = fresh_s if repeat else ended - started
done = int(state.global_step[0]) * seeds
memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
if jax.devices()[0].platform != "cpu":
    memory = jax.devices()[0].memory_stats()["peak_bytes_in_use"]
warm_up = times[0] - times[1]
print(json.dumps(dict(timesteps=done, learn_s=times[1], warm_up_s=warm_up, memory=memory,
                      fresh_s=fresh_s)))
"""


def command(
    algo: str, env: str, rows: int, timesteps: int, rates: Sequence[float] = ()
) -> list[str]:
    """What trains rows at once, twice, and prints its figures; rates: a learning rate of each."""
    words = (algo, str(rows), str(timesteps), env, json.dumps(list(rates)))
    return [str(PYTHON), "-c", MEASURE, *words]


def optional(name: str) -> Any:
    """A module of the JAX environment; None where it is not installed."""
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


@cache
def found(device: str) -> bool:
    """Whether rejax is installed, with a jax that computes on a device."""
    if not PYTHON.exists():
        return False
    command = [str(PYTHON), "-c", f"import jax, rejax; jax.devices({device!r})"]
    return subprocess.run(command, capture_output=True).returncode == 0


def versions() -> dict[str, str]:
    """Versions of the JAX side, asked of its own environment."""
    code = "from importlib.metadata import version as v; print(v('jax'), v('rejax'))"
    done = subprocess.run([PYTHON, "-c", code], capture_output=True, text=True, check=True)
    jax, rejax = done.stdout.split()
    return {"jax": jax, "rejax": rejax}
