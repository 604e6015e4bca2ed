"""What tests.processes imports before it forks: scripts, and what they import when they need it.

The code that trains is read, too, which every run does once for its digest.
"""

# ruff: noqa: F401

import matplotlib.pyplot
import optuna
import pyarrow.parquet
import rich.progress
import safetensors.torch
import scipy.stats
import seaborn

from manyseeds.algos import ppo
from manyseeds.benchmarks import search
from manyseeds.digest import code_digest
from manyseeds.runs.control import Run

run = Run(ppo.Config())
code_digest([*run.origins([ppo.train]), *run.kind_origins()])
