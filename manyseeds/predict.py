"""`policy.predict`: the actions of trained policies in an environment of Gymnasium itself.

env = gymnasium.make("CartPole-v1")
obs, _ = env.reset(seed=0)
obs, *_ = env.step(policy.predict(obs, seed=7))
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch

from manyseeds.cli import EnvConfig
from manyseeds.errors import UsageError
from manyseeds.record import ranges


class Predictor:
    """Plays S policies on what Gymnasium shows; labels: the name of each, mostly its seed."""

    def __init__(self, policy: Any, config: EnvConfig, labels: Sequence[int]) -> None:
        self.policy, self.config, self.labels = policy, config, list(labels)

    @cached_property
    def env(self) -> Any:
        """Translates between Gymnasium and the policies; made when it is first needed."""
        return self.config.make_env()

    @torch.no_grad()
    def predict(self, obs: Any, seed: int | None = None) -> Any:
        """The greedy actions that an evaluation plays, ready for `env.step` of Gymnasium.

        obs: one observation of Gymnasium's environment, or N of them as an array `[N, ...]`.
        seed: which of the policies; may be left out where there is only one.

        Returns the action for one observation (an int where actions are discrete), or an array
        `[N, ...]`. Raises UsageError for observations of another shape and for other seeds.
        """
        if seed is None and len(self.labels) == 1:
            seed = self.labels[0]
        if seed not in self.labels:
            given = "which seed?" if seed is None else f"no seed {seed};"
            raise UsageError(f"predict: {given} there are policies of {seeds_text(self.labels)}")
        observations, one = self.env.from_gymnasium(obs)
        device = next(iter(self.policy.state_dict().values())).device
        every = observations.to(device).expand(len(self.labels), *observations.shape)
        chosen = self.policy.act(every)[self.labels.index(seed)]
        actions: np.ndarray = self.env.to_gymnasium(chosen.cpu())
        if not one:
            return actions
        return actions[0] if self.env.spec.continuous else int(actions[0])


def seeds_text(labels: Sequence[int]) -> str:
    """`seed 3`, or `the seeds 0-9`."""
    return f"seed {labels[0]}" if len(labels) == 1 else f"the seeds {ranges(labels)}"


def add_predict(policy: Any, config: EnvConfig, labels: Sequence[int]) -> None:
    """Give policies, trained or loaded, the method `predict`."""
    policy.predict = Predictor(policy, config, labels).predict
