"""Trains many configurations of a method for language models, each for several seeds, as one batch.

    from manyseeds.llm_track import grpo
    from manyseeds.runs.language_configurations import train_configurations

    configs = [grpo.Config(learning_rate=x, total_samples=12_800) for x in (1e-4, 3e-4, 1e-3)]
    scores = train_configurations(grpo.train, configs, seeds=range(5))
    print(scores.groupby("configuration")["pass@1"].mean())

A row has the same bits as its training alone. For control: manyseeds.runs.configurations.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor

from manyseeds import stats
from manyseeds.errors import UsageError
from manyseeds.kernels.guard import looking_by_iteration
from manyseeds.process import resolve_device, set_up_process
from manyseeds.rows import stack
from manyseeds.runs.configurations import in_batches
from manyseeds.runs.language import FINITE, Evaluator, LanguageConfig, LanguageRun
from manyseeds.runs.language_seeds import SeedsRun

if TYPE_CHECKING:
    import pandas as pd

MAX_ROWS = 32  # of a batch: more need more memory, and are hardly faster


class LanguageRowRun(SeedsRun):
    """A training of rows, in memory: what `train(config, run)` reports to."""

    def __init__(
        self,
        configs: Sequence[LanguageConfig],
        seeds: Sequence[int],
        on_progress: Callable[[float], None],
        curves: bool,
    ) -> None:
        """As manyseeds.runs.configurations.RowRun; without curves only the end is evaluated."""
        silent = [dataclasses.replace(config, quiet=True) for config in configs]
        super().__init__(stack(silent, resolve_device(configs[0].device)), seeds)
        self._on_progress, self._curves = on_progress, curves

    def log(
        self,
        drawn: int | Tensor,
        metrics: Mapping[str, Tensor],
        seeds: Sequence[int] | None = None,
    ) -> None:
        super().log(drawn, metrics, seeds)
        self._on_progress(min(self.samples / self.config.total_samples, 1.0))

    def evaluate_if_due(self, evaluator: Evaluator) -> None:
        self._evaluator = evaluator
        if self._curves:
            super().evaluate_if_due(evaluator)

    def scores(self) -> pd.DataFrame:
        """Evaluate for the last time; a line per row, with the columns of `train_configurations`
        that belong to a seed."""
        import pandas as pd

        self.close()
        final = [measures for measures, _ in self._evaluator(True, range(len(self.runs)))]
        headline = self._evaluator.headline
        return pd.DataFrame(
            [
                {
                    "seed": run.seed,
                    **measures,
                    "headline": headline,
                    "final": measures[headline],
                    "auc": self._area(run, headline),
                    "train_accuracy": mean_accuracy(run),
                    "diverged": diverged_at(run, measures),
                    "samples": run.samples,
                }
                for run, measures in zip(self.runs, final, strict=True)
            ]
        )

    def _area(self, run: LanguageRun, headline: str) -> float:
        """The area under the curve of a row; NaN without one."""
        if not self._curves or len(curve := run.curve()) < 2:
            return math.nan
        return float(stats.area_under_curve(curve["samples"], curve[headline]))


def mean_accuracy(run: LanguageRun) -> float:
    """The accuracy that a method logs, averaged over its updates; NaN where it logs none."""
    metrics = run.metrics()
    return float(metrics["accuracy"].mean()) if "accuracy" in metrics else math.nan


def diverged_at(run: LanguageRun, final: Mapping[str, float]) -> float:
    """The samples at which a loss was not finite, or NaN. final: the measures after training, which
    alone show that the last step has diverged."""
    if run.diverged is not None:
        return run.diverged
    finite = all(math.isfinite(final.get(name, 0.0)) for name in FINITE)
    return math.nan if finite else run.samples


def check_together(config: LanguageConfig) -> None:
    """Raise UsageError for a model that is trained seed after seed."""
    if not config.trains_together():
        raise UsageError(
            f"--model {config.model}: is trained seed after seed; only small Llamas are one batch, "
            "all of whose weights are trained in float32 by one process"
        )


def train_configurations(
    train: Callable[[Any, Any], Any],
    configs: Sequence[Any],
    seeds: Sequence[int],
    rows: int = MAX_ROWS,
    on_progress: Callable[[float], None] | None = None,
    curves: bool = True,
) -> pd.DataFrame:
    """Train configurations of one method, each for the same seeds; a line per row.

    train: that of the method's file. seeds: in the place of those that the configurations name.
    rows: at most so many are trained as one batch. on_progress: gets the fraction that is done.
    curves: evaluate before and during training, too.

    Columns: configuration (its number), seed, the measures of the evaluation after training,
    headline (the name of the measure that the method publishes first, such as pass@1), final (that
    measure), auc (its mean over training, NaN without curves), train_accuracy (mean accuracy that
    the method logs of its training, or NaN), diverged (the samples at which a loss was no number,
    or NaN), samples, seconds (of its batch, divided by its rows). Raises UsageError for a model
    that is trained seed after seed.
    """
    for config in configs:
        check_together(config)

    def train_rows(
        own: Sequence[Any], row_seeds: Sequence[int], hear: Callable[[float], None]
    ) -> pd.DataFrame:
        set_up_process(own[0].threads)
        run = LanguageRowRun(own, row_seeds, hear, curves)
        with looking_by_iteration():
            train(run.config, run)
        return run.scores()

    return in_batches(train_rows, configs, seeds, rows, on_progress)
