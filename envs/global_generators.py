"""The global random generators of Python, NumPy and PyTorch, as one environment's own."""

from __future__ import annotations

import pickle
import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

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


class OwnGenerators:
    """What an environment draws from the global generators: its own luck, whoever else draws."""

    def __init__(self) -> None:
        self._states: tuple[Any, ...] = ()
        self.used = False  # whether anything was drawn within `watching`

    @contextmanager
    def own(self, seed: int | None = None) -> Iterator[None]:
        """Within it the generators are this environment's, and others' go on afterwards.

        seed: of an episode that begins; None: as they were left.
        """
        outside = states()
        if seed is None:
            restore(self._states)
        else:
            seed_all(seed)
        try:
            yield
        finally:
            self._states = states()
            restore(outside)

    @contextmanager
    def watching(self, seed: int | None = None) -> Iterator[None]:
        """The same, and whether they are used."""
        with self.own(seed):
            before = pickle.dumps(states())
            yield
            self.used |= pickle.dumps(states()) != before
