"""The global random generators of Python, NumPy and PyTorch, as one environment's own."""

from __future__ import annotations

import pickle
import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import gymnasium as gym
import numpy as np
import torch


def seed_all(seed: int) -> None:
    """Seed the three of them."""
    random.seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002 - it takes no more
    torch.default_generator.manual_seed(seed)


def states() -> tuple[Any, ...]:
    """Where they are now."""
    torch_state = torch.default_generator.get_state().numpy()
    return random.getstate(), np.random.get_state(), torch_state  # noqa: NPY002


def restore(before: tuple[Any, ...]) -> None:
    """Set them to where they were."""
    random.setstate(before[0])
    np.random.set_state(before[1])  # noqa: NPY002
    torch.default_generator.set_state(torch.from_numpy(before[2]))


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Within it they are seeded, and go on as before afterwards."""
    before = states()
    seed_all(seed)
    try:
        yield
    finally:
        restore(before)


class OwnGenerators(gym.Wrapper[Any, Any, Any, Any]):
    """An environment whose luck from the global generators is its own, whoever else draws."""

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        super().__init__(env)
        self._states: tuple[Any, ...] = ()
        self.used = False  # whether anything was drawn

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        with self._own(seed):
            return self.env.reset(seed=seed, options=options)

    def step(self, action: Any) -> Any:
        with self._own():
            return self.env.step(action)

    @contextmanager
    def _own(self, seed: int | None = None) -> Iterator[None]:
        """Within it the generators are this environment's, and others' go on afterwards.

        seed: of an episode that begins; None: as they were left.
        """
        outside = states()
        if seed is None:
            restore(self._states)
        else:
            seed_all(seed)
        before = b"" if self.used else pickle.dumps(states())
        try:
            yield
        finally:
            self._states = states()
            self.used = self.used or pickle.dumps(self._states) != before
            restore(outside)
