"""Trained policies as they are stored: in the parts of a run on this machine, and published."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import gymnasium as gym
from torch import Tensor

from manyseeds import envs
from manyseeds.benchmarks.experiments import catalog
from manyseeds.benchmarks.store.policies import (
    Finals,
    final_scores,
    median_and_worst,
    policies_name,
)
from manyseeds.benchmarks.store.stored import find_and_open, find_file
from manyseeds.checkpoint import read_policy
from manyseeds.cli import ControlConfig, identity
from manyseeds.errors import UsageError
from manyseeds.evaluate import Policy
from manyseeds.record import POLICY, home_of
from manyseeds.untrusted import BROKEN, reading
from manyseeds.worth import worths_of


@dataclass(frozen=True, eq=False)
class Trained:
    """The policies of one part; what is per seed has the order of `seeds`."""

    part: Path  # or the file of published policies
    run: Path
    algo: str
    config: ControlConfig
    seeds: list[int]
    final: Finals  # greedy returns at the end of the training, of all seeds of the run
    diverged: set[int]
    policy: Policy
    train: Callable[..., Any]  # where the code that made the policy begins

    @cached_property
    def env(self) -> envs.Env:
        """What the policy was trained in, or the native version of it where there is one."""
        env: envs.Env = replace(self.config, backend="auto").make_env()
        return env

    @property
    def results(self) -> Path:
        return home_of(self.run).parents[3]

    def act(self, obs: Tensor) -> Tensor:
        """Greedy actions `[S, N, ...]` for Gymnasium's observations `[S, N, ...]`."""
        if isinstance(self.env, envs.Discretize):
            obs = self.env.observe(obs)  # what is binned is the state, as Gymnasium shows it
        return self.act_natively(obs)

    def act_natively(self, obs: Tensor) -> Tensor:
        """Greedy actions `[S, N, ...]` for observations of our native environment."""
        try:
            return self.policy.act(obs)
        except BROKEN as error:  # a table of another size
            raise UsageError(f"{self.part}: its weights do not fit its environment") from error


def load_trained(path: str, trusted_env: str | None = None) -> list[Trained]:
    """The parts of RUN whose weights are on this machine and, last, its published policies.

    trusted_env: the id `module:Name-v0`, of all that import a module, that may be made; None where
    only environments are wanted that there are here and in Gymnasium.
    Raises UsageError in one line: no such folder, nothing finished, another kind of run, a
    baseline, an environment that imports a module, no weights (with the command that trains them),
    weights of another version of the algorithm's file.
    """
    run = find_and_open(path)
    algo, env_id = run.configs[0]["algo"], run.configs[0].get("env", "")
    if run.kind != "control":
        raise UsageError(f"{path}: is a {run.kind} run, which has no policy that plays episodes")
    if algo not in catalog.names("algos"):
        raise UsageError(
            f"{path}: {algo} is not an algorithm of algos/, and only those store weights"
        )
    if trusted_env is None and env_id in envs.NATIVE and env_id not in gym.registry:
        raise UsageError(f"{path}: Gymnasium has no {env_id}, so there is nothing to check against")
    if trusted_env is None and (env_id not in envs.NATIVE or run.config.get("env_kwargs")):
        raise UsageError(f"{path}: {env_id} has no native version to be checked")
    if env_id not in envs.NATIVE and ":" in env_id and trusted_env != env_id:
        raise UsageError(
            f"{path}: to show it would import the module of {env_id}; if you trust that module, "
            f"add --env {shlex.quote(env_id)}"
        )
    if trusted_env and trusted_env != env_id:
        raise UsageError(f"--env {trusted_env}: {path} is on {env_id}")
    command = run.configs[0]["command"]
    there = [part for part in run.parts if os.path.lexists(part / POLICY)]
    file = find_file(run.path.parents[3], policies_name(run.path))
    there += [file] if os.path.lexists(file) else []
    if not there:
        raise UsageError(f"{path}: no weights on this machine; to train it: {command}")

    module = catalog.module("algos", algo)
    with reading(run.path):
        final = final_scores(run)
        worths = [item for summary in run.summaries for item in worths_of(summary).items()]
        diverged = {seed for seed, worth in worths if worth.diverged is not None}
    found: list[Trained] = []
    for part in there:
        try:
            config, seeds, _ = read_policy(part, module.Config, trusted_env or "")
            policy = module.load(part, trusted_env or "")
        except UsageError as error:  # another field, another shape
            raise UsageError(f"{error}; to train it again: {command}") from error
        if part.is_file() and identity(config) != run.config:
            raise UsageError(f"{part}: is of another run than {run.path}")
        if not set(seeds) <= {*run.seeds}:  # published ones that were not asked for
            continue
        found.append(
            Trained(
                part=part,
                run=run.path,
                algo=algo,
                config=config,
                seeds=seeds,
                final=final,
                diverged=diverged,
                policy=policy,
                train=module.train,
            )
        )
    if not found:
        raise UsageError(f"{path}: no weights of its seeds on this machine; to train it: {command}")
    return found


def median_seed(parts: Sequence[Trained]) -> int:
    """The median of the run by final return, or of the seeds that have weights."""
    final = parts[0].final
    there = {seed: final.get(seed) for part in parts for seed in part.seeds}
    wanted = median_and_worst(final)[0]
    return wanted if wanted in there else median_and_worst(there)[0]
