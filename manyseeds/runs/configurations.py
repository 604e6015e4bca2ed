"""Trains many configurations of an algorithm, each for several seeds, as one batch.

    from manyseeds.algos import ppo
    from manyseeds.runs.configurations import train_configurations

    configs = [ppo.Config(learning_rate=x, total_timesteps=20_000) for x in (1e-4, 1e-3, 1e-2)]
    scores = train_configurations(ppo.train, configs, seeds=range(5))
    print(scores.groupby("configuration")["final"].mean())

S rows: one per configuration and seed. A row has the same bits as its training alone.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from manyseeds import stats
from manyseeds.evaluate import FINAL_EPISODES, evaluate, share
from manyseeds.kernels.guard import looking_by_iteration
from manyseeds.process import resolve_device
from manyseeds.rows import stack, structure
from manyseeds.runs.control import Run

if TYPE_CHECKING:
    import pandas as pd
    from torch import Tensor

MAX_ROWS = 256  # of a batch: more are hardly faster, and take more memory


class RowRun(Run):
    """A training of rows, in memory: what `train(config, run)` reports to.

    Results are named by the number of the row, from 0 on.
    """

    def __init__(
        self,
        configs: Sequence[Any],
        seeds: Sequence[int],
        on_progress: Callable[[float], None] | None = None,
        curves: bool = True,
    ) -> None:
        """configs, seeds: of each row. on_progress: gets the fraction of the training that is done.

        curves: evaluate during training, too, which may take as long as the training.
        """
        silent = [dataclasses.replace(config, quiet=True) for config in configs]
        super().__init__(stack(silent, resolve_device(configs[0].device)), seeds)
        self.labels = list(range(len(seeds)))
        self._on_progress, self._curves = on_progress, curves

    def _close_windows(self, closing: np.ndarray) -> None:
        super()._close_windows(closing)
        if self._on_progress is not None:
            self._on_progress(min(float(self._timesteps.mean()) / self.config.total_timesteps, 1.0))

    def evaluate_if_due(self, timestep: int | Tensor, env: Any, policy: Any) -> None:
        if self._curves:
            super().evaluate_if_due(timestep, env, policy)
        self._env = env

    def scores(self, policy: Any) -> pd.DataFrame:
        """Evaluate for the last time; a line per row, with the columns of `train_configurations`
        that belong to a seed."""
        import pandas as pd

        self.pause()
        self.mark_broken(policy)
        points = pd.DataFrame(self._rows, columns=["seed", "timestep", "return_mean"])
        episodes = share(FINAL_EPISODES, self.config.eval_budget)
        final = evaluate(self._env, policy, self.seeds, episodes).return_mean
        areas = {
            label: stats.area_under_curve(curve["timestep"], curve["return_mean"])
            for label, curve in points.groupby("seed")
            if len(curve) > 1
        }
        return pd.DataFrame(
            {
                "seed": self.seeds,
                "final": final,
                "auc": [areas.get(label, math.nan) for label in self.labels],
                "train_return": self._train_return(),
                "diverged": [self.diverged.get(label, math.nan) for label in self.labels],
                "timesteps": self._timesteps,
            }
        )

    def _train_return(self) -> np.ndarray:
        """The mean of the windows' training returns, [S]; NaN where no episode has ended."""
        found = [w.metrics["train_return"] for w in self.windows if "train_return" in w.metrics]
        returns = np.stack([np.full(len(self.labels), math.nan), *found])
        known = ~np.isnan(returns)
        count = known.sum(0)
        total = np.where(known, returns, 0.0).cumsum(0)[-1]  # a row's bits are its own
        return np.where(count > 0, total / count.clip(1), math.nan)


def batches(configs: Sequence[Any], seeds: int, rows: int) -> Iterator[list[int]]:
    """The numbers of configurations that are trained together: alike in structure, and with all
    their seeds at most `rows` rows, or one configuration."""
    alike: dict[tuple[Any, ...], list[int]] = {}
    for number, config in enumerate(configs):
        alike.setdefault(structure(config), []).append(number)
    size = max(rows // seeds, 1)
    for numbers in alike.values():
        for first in range(0, len(numbers), size):
            yield numbers[first : first + size]


def train_configurations(
    train: Callable[[Any, Any], Any],
    configs: Sequence[Any],
    seeds: Sequence[int],
    rows: int = MAX_ROWS,
    on_progress: Callable[[float], None] | None = None,
    curves: bool = True,
) -> pd.DataFrame:
    """Train configurations of one algorithm, each for the same seeds; a line per row.

    train: that of the algorithm's file. seeds: in the place of those that the configurations name.
    rows: at most so many are trained as one batch. on_progress: gets the fraction that is done.
    curves: evaluate during training, too.

    Columns: configuration (its number), seed, final (greedy return at the end), auc (mean greedy
    return over training, NaN without curves), train_return (mean return of the training's own
    episodes), diverged (the timestep at which the loss was no number, or NaN), timesteps, seconds
    (of its batch, divided by its rows).
    """

    def train_rows(
        own: Sequence[Any], row_seeds: Sequence[int], hear: Callable[[float], None]
    ) -> pd.DataFrame:
        run = RowRun(own, row_seeds, hear, curves)
        with looking_by_iteration():
            policy = train(run.config, run)
        return run.scores(policy)

    return in_batches(train_rows, configs, seeds, rows, on_progress)


def in_batches(
    train_rows: Callable[[list[Any], list[int], Callable[[float], None]], pd.DataFrame],
    configs: Sequence[Any],
    seeds: Sequence[int],
    rows: int,
    on_progress: Callable[[float], None] | None,
) -> pd.DataFrame:
    """Train configurations by `train_rows`, a batch after another; a line per row.

    train_rows: gets the configuration and the seed of each row and what hears the fraction of the
    batch that is done; returns a line per row. configuration and seconds are added to them.
    """
    import pandas as pd

    frames, done = [], 0.0
    for numbers in batches(configs, len(seeds), rows):
        for first in range(0, len(seeds), rows):
            block = list(seeds[first : first + rows])
            share_of_all = len(numbers) * len(block) / (len(configs) * len(seeds))

            def hear(fraction: float, before: float = done, part: float = share_of_all) -> None:
                if on_progress is not None:
                    on_progress(before + part * fraction)

            began = time.perf_counter()
            own = [configs[k] for k in numbers for _ in block]
            frame = train_rows(own, block * len(numbers), hear)
            frame.insert(0, "configuration", np.repeat(numbers, len(block)))
            frame["seconds"] = (time.perf_counter() - began) / len(frame)
            frames.append(frame)
            done += share_of_all
    return pd.concat(frames).sort_values("configuration", kind="stable", ignore_index=True)
