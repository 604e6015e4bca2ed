"""The scores that an environment's results are normalised by: random policy 0, reference 1.

    python benchmarks/scores.py --env CartPole-v1
    python benchmarks/scores.py --env my_package.my_env:Mine-v0 --episodes 1000

Plays the uniformly random policy and prints its mean return with a 95% interval over episodes, and
the line for the environment's spec. For a tabular environment both that mean and the best mean
return of any policy within the time limit are computed exactly. For others you choose the
reference: the highest possible return, or the best published score, with its source.

Writes RESULTS/scores/ENV.json, whose name has the arguments, too, where there are any. From there
compare.py and the report take the scores of an environment of your own, for verdicts and failures:

    python benchmarks/scores.py --env my_package.my_env:Mine-v0 --reference 100
"""

from __future__ import annotations

from manyseeds.command import failing_in_one_line

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import torch
from torch import Tensor

from manyseeds import envs
from manyseeds.benchmarks.measurements.measure import origin, write_measured
from manyseeds.cli import FLOAT32_MAX, Range, ScriptConfig, parse
from manyseeds.digest import origin_of
from manyseeds.errors import UsageError
from manyseeds.seeds import SeedStreams
from manyseeds.stats import Estimate
from manyseeds.worth import scores_file

BATCH = 1000  # native environments at once
BRIDGED = 10  # Gymnasium objects at once


@dataclass(frozen=True, kw_only=True)
class Config(ScriptConfig):
    """Scores of an environment."""

    env: str = "CartPole-v1"
    """Environment id."""
    env_kwargs: tuple[str, ...] = ()
    """Arguments of the environment, as for a training."""
    reference: float | None = None
    """Return that is 1 on the normalised scale, of which a random policy is 0. For environments
    that do not state it."""
    episodes: Annotated[int, Range(2)] = 10_000
    """Episodes of the random policy. Not needed where its score is exact."""


def random_actions(spec: envs.EnvSpec, noise: Tensor) -> Tensor:
    """Uniformly random actions `[S, N]` or `[S, N, D]` from noise `[S, N, 1 or D]`."""
    if not spec.continuous:
        return (noise[..., 0] * spec.num_actions).long()
    low, high = torch.tensor(spec.action_low), torch.tensor(spec.action_high)
    return low + (high - low) * noise


@torch.inference_mode()
def random_returns(env: envs.Env, streams: SeedStreams, episodes: int) -> Tensor:
    """Returns `[episodes]` of the uniformly random policy, in float64."""
    state, _ = env.reset(streams.uniform(episodes, env.initial_noise))
    going = torch.ones(1, episodes, dtype=torch.bool)
    returns = torch.zeros(1, episodes, dtype=torch.float64)
    for _ in range(env.spec.time_limit):
        noise = streams.uniform(episodes, max(1, len(env.spec.action_low)))
        actions = random_actions(env.spec, noise)
        step = env.step(state, actions, streams.uniform(episodes, env.noise_size))
        returns += step.reward * going
        going &= ~(step.terminated | step.truncated)
        state = step.state
        if not going.any():
            break
    return returns[0]


def random_score(env: envs.Env, episodes: int) -> Estimate:
    """Mean return of the uniformly random policy, its interval over episodes; exact from tables.

    Raises UsageError for actions without bounds and for returns that are not finite.
    """
    spec = env.spec
    if isinstance(env, envs.TabularEnv):
        actions, states, _ = env.P.shape
        uniform = torch.full((1, states, actions), 1 / actions, dtype=torch.float64)
        exact = round(env.policy_score(uniform).item(), 12) + 0.0  # never -0
        return Estimate(exact, exact, exact, n=0)
    if not all(map(math.isfinite, (*spec.action_low, *spec.action_high))):
        raise UsageError(f"--env {spec.id}: its actions have no bounds to draw between")
    streams, left, parts = SeedStreams([0], "evaluate"), episodes, []
    while left:
        size = min(left, BATCH if env.native else BRIDGED)
        parts.append(random_returns(env, streams, size))
        left -= size
    returns = torch.cat(parts)
    if not returns.isfinite().all():
        raise UsageError(f"--env {spec.id}: a random episode has a return that is not finite")
    mean, half = returns.mean().item(), 1.96 * returns.std().item() / math.sqrt(episodes)
    return Estimate(mean, mean - half, mean + half, n=episodes)


def best_score(env: envs.TabularEnv) -> float:
    """The highest mean return of any policy within the time limit, by backward induction."""
    rewards, value = (env.P * env.R).sum(-1), torch.zeros_like(env.start)  # [A, X], [X]
    for _ in range(env.spec.time_limit):
        value = (rewards + env.P @ value).amax(0).masked_fill(env.ends, 0.0)
    return (value * env.start).sum().item()


def check_reference(env: envs.Env, reference: float) -> None:
    """Raise UsageError for a reference that cannot be one."""
    stated = env.spec.reference_score
    if stated is not None:
        raise UsageError(f"--reference {reference:g}: {env.spec.id} states its own, {stated:g}")
    if not abs(reference) <= FLOAT32_MAX:
        raise UsageError(f"--reference {reference:g}: must be a finite number")


@failing_in_one_line()
def main(args: Sequence[str] | None = None) -> None:
    """Measure, print and write the scores of one environment."""
    config = parse(Config, {}, __doc__, args)
    env = envs.make(config.env, env_kwargs=config.env_kwargs)
    if config.reference is not None:
        check_reference(env, config.reference)
    for note in env.notes():
        print(f"note: {note}", file=sys.stderr)
    score = random_score(env, config.episodes)
    if config.reference == score.value:
        raise UsageError(f"--reference {config.reference:g}: is the random policy's score")
    half = score.value - score.low
    digits = max(0, 1 - math.floor(math.log10(half))) if half > 0 else 4
    value = f"{score.value:.{digits}f}"
    how = f"{score.n:,} episodes: +-{half:.{digits}f}" if score.n else "exact"
    print(f"random policy on {config.env}: {value} ({how})")
    spec, best = env.spec, None
    print(f"in its spec: random_score={spec.random_score}, reference_score={spec.reference_score}")
    print(f"\nfor its spec:\n    random_score={value},  # {how}")
    if isinstance(env, envs.TabularEnv):
        best = best_score(env)
        print(f"    reference_score={best:.4f},  # the best of any policy, exact")
    else:
        stated = "..." if config.reference is None else f"{config.reference:g}"
        print(
            f"    reference_score={stated},  # the highest possible return, or the best published"
        )
    stored = {
        "env": config.env,
        "env_kwargs": config.env_kwargs,
        "random": {name: getattr(score, name) for name in ("value", "low", "high", "n")},
        "best": best,
        "reference": best if config.reference is None else config.reference,
    }
    if spec.reference_score is None and stored["reference"] is None:
        print("note: no verdicts without --reference", file=sys.stderr)
    path = scores_file(Path(config.results), config.env, config.env_kwargs)
    write_measured(path, {**origin(list(map(origin_of, env.origins()))), **stored})


if __name__ == "__main__":
    main()
