"""The one evaluation protocol, for our policies and for every baseline.

Raw rewards, episodes from fixed start states shared by all seeds and algorithms, own random
stream. A greedy policy in a tabular environment is evaluated exactly instead. S seeds, E episodes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from manyseeds.kernels import rollout as in_c
from manyseeds.kernels.guard import Guard
from manyseeds.seeds import SeedStreams

POINTS = 20  # evaluations during training, besides the one at step 0
CURVE_EPISODES = 32
FINAL_EPISODES = 100
CHUNK = 50  # steps between two looks at whether all episodes have ended, where steps are fast


def share(number: int, eval_budget: float) -> int:
    """A number of episodes, prompts or the like under `--eval-budget`: at least one."""
    return max(1, round(number * eval_budget))


class Policy(Protocol):
    """What can be evaluated."""

    def draw(self, streams: SeedStreams, *shape: int) -> Tensor:
        """The noise `[S, *shape, ...]` that sampled actions take, from the seeds' streams."""

    def act(self, obs: Tensor, noise: Tensor | None = None) -> Tensor:
        """Actions `[S, N, ...]` for obs `[S, N, ...]`; greedy without noise `[S, N, ...]`."""


@dataclass(frozen=True, eq=False)
class Evaluation:
    """What S seeds reached in E episodes each; E is 0 where the tables say it exactly."""

    returns: np.ndarray  # [S, E] float64; NaN: not finite, and a random policy's is unknown
    lengths: np.ndarray  # [S, E]
    exact: np.ndarray | None = None  # [S], the returns where E is 0

    @property
    def episodes(self) -> int:
        return int(self.returns.shape[1])

    @cached_property
    def return_mean(self) -> np.ndarray:
        """[S]"""
        return _means(self.returns) if self.exact is None else self.exact

    @cached_property
    def return_std(self) -> np.ndarray:
        """Over episodes, [S]; NaN when exact."""
        deviations = self.returns - self.return_mean[:, None]
        return np.sqrt(_means(deviations * deviations))

    @cached_property
    def length_mean(self) -> np.ndarray:
        """[S]; NaN when exact."""
        return _means(self.lengths)


def _means(values: np.ndarray) -> np.ndarray:
    """The mean of each row of values [S, E], NaN where E is 0.

    Sums are rounded once: numpy's depend on the CPU, and on how rows lie in memory.
    """
    return np.array([math.fsum(row) / len(row) if row else math.nan for row in values.tolist()])


@torch.inference_mode()
def evaluate(
    env: Any, policy: Policy, seeds: Sequence[int], episodes: int, greedy: bool = True
) -> Evaluation:
    """Evaluate S policies (one per seed) on the same `episodes` start states."""
    if greedy and hasattr(env, "policy_score"):
        return _evaluate_exactly(env, policy, len(seeds))
    S, E, device = len(seeds), episodes, _device_of(policy)
    start_states = SeedStreams([0], "start-states", device)
    action_noise = SeedStreams(seeds, "evaluate", device)

    state, obs = env.reset(start_states.uniform(E, env.initial_noise).expand(S, -1, -1))
    zeros = torch.zeros(S, E, dtype=torch.float64, device=device)
    progress = _Progress(torch.ones_like(zeros, dtype=torch.bool), zeros, zeros.clone())
    for start in range(0, env.spec.time_limit, CHUNK):
        if not progress.alive.any():
            break
        steps = min(CHUNK, env.spec.time_limit - start)
        env_noise = start_states.uniform(CHUNK, E, env.noise_size)[0, :steps]
        noise = None if greedy else policy.draw(action_noise, CHUNK, E)[:, :steps]
        state, obs = _play(env, policy, state, obs, noise, env_noise, progress)
    # A return that is not finite counts as a random policy's: a failure stays in every aggregate.
    random = math.nan if env.spec.random_score is None else env.spec.random_score
    returns = torch.where(progress.returns.isfinite(), progress.returns, random)
    return Evaluation(returns.cpu().numpy(), progress.lengths.cpu().numpy())


class _Progress(NamedTuple):
    """Of episodes, [S, E]; changed in place."""

    alive: Tensor  # bool: it has not ended
    returns: Tensor  # float64, so far, like the next
    lengths: Tensor


def _play(
    env: Any,
    policy: Any,
    state: Any,
    obs: Tensor,
    noise: Tensor | None,
    env_noise: Tensor,
    progress: _Progress,
) -> tuple[Any, Tensor]:
    """Go on with episodes for as many steps as there is env_noise `[T, E, ...]`.

    noise: of actions, `[S, T, E, ...]`, None: greedy. Returns the next state and obs.
    """
    if found := in_c.acting_in_c(env, policy, PLAYING, state.physics, env_noise):
        address, acting = found
        given = address, env.spec, acting, *state, noise, env_noise
        return type(state)(*in_c.episodes(*given, **progress._asdict())), obs
    return _step_by_step(env, policy, state, obs, noise, env_noise, progress)


def _step_by_step(
    env: Any,
    policy: Any,
    state: Any,
    obs: Tensor,
    noise: Tensor | None,
    env_noise: Tensor,
    progress: _Progress,
) -> tuple[Any, Tensor]:
    """What `_play` does, with the environment's own steps."""
    alive, returns, lengths = progress
    for t, of_step in enumerate(env_noise):
        actions = policy.act(obs, None if noise is None else noise[:, t])
        step = env.step(state, actions, of_step.expand(len(alive), -1, -1))
        state, obs = step.state, step.obs
        returns += step.reward * alive
        lengths += alive
        alive &= ~(step.terminated | step.truncated)
        if not env.native and not alive.any():
            break
    return state, obs


# What episodes in C stand for, besides the environment's own functions.
PLAYING = Guard("rollout.episodes", "act", "as_kernel", _step_by_step)


def _evaluate_exactly(env: Any, policy: Policy, seeds: int) -> Evaluation:
    """The greedy policy's mean return under the time limit, by backward induction over P and R."""
    states = torch.arange(env.spec.num_states).expand(seeds, -1)
    chosen = torch.nn.functional.one_hot(policy.act(states).cpu(), env.spec.num_actions)
    score = env.policy_score(chosen).cpu().numpy()
    none = np.empty((seeds, 0))
    return Evaluation(none, none, exact=score)


def _device_of(policy: Policy) -> torch.device:
    parameters = getattr(policy, "parameters", None)
    first = next(iter(parameters()), None) if parameters else None
    return torch.device("cpu") if first is None else first.device
