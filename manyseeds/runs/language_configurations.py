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
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from manyseeds.errors import UsageError
from manyseeds.process import resolve_device, set_up_process
from manyseeds.rows import stack
from manyseeds.runs.configurations import batches
from manyseeds.runs.language_seeds import SeedsRun

if TYPE_CHECKING:
    import pandas as pd

MAX_ROWS = 32  # of a batch: more need more memory, and are hardly faster


def train_configurations(
    train: Callable[[Any, Any], Any],
    configs: Sequence[Any],
    seeds: Sequence[int],
    rows: int = MAX_ROWS,
) -> pd.DataFrame:
    """Train configurations of one method, each for the same seeds; a line per row.

    train: that of the method's file. seeds: in the place of those that the configurations name.
    rows: at most so many are trained as one batch, or one configuration.

    Columns: configuration (its number), seed, the measures of the evaluation after training,
    diverged (the samples at which a loss was no number, or NaN), seconds (of its batch, divided by
    its rows). Raises UsageError for a model that is trained seed after seed.
    """
    import pandas as pd

    frames = []
    for numbers in batches(configs, len(seeds), rows):
        own = [dataclasses.replace(configs[k], quiet=True) for k in numbers for _ in seeds]
        if not own[0].trains_together():
            raise UsageError(f"--model {own[0].model}: is no small Llama, whose rows are one batch")
        set_up_process(own[0].threads)
        began = time.perf_counter()
        run = SeedsRun(stack(own, resolve_device(own[0].device)), list(seeds) * len(numbers))
        train(run.config, run)
        measures = [found for found, _ in run.runs[0].evaluator(True, range(len(own)))]
        run.close()
        frame = pd.DataFrame(measures)
        frame.insert(0, "configuration", np.repeat(numbers, len(seeds)))
        frame.insert(1, "seed", run.seeds)
        frame["diverged"] = [np.nan if x.diverged is None else x.diverged for x in run.runs]
        frame["seconds"] = (time.perf_counter() - began) / len(frame)
        frames.append(frame)
    return pd.concat(frames).sort_values("configuration", kind="stable", ignore_index=True)
