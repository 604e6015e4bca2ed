"""Curves that other libraries and trackers have written, for compare.py.

    .csv   SB3's monitor.csv (r, l, t: the training's own episodes); a scalar exported by
           TensorBoard (Step, Value), such as CleanRL's charts/episodic_return; a chart exported by
           W&B, whose lines `NAME - METRIC` are seeds; or the columns timestep, value, perhaps seed
    .npz   arrays: timesteps [K] and returns [K], [S, K] or [S, K, episodes], as rejax's `train`
           returns them; or the evaluations.npz of SB3's EvalCallback (timesteps, results)

S seeds, K evaluations. Steps have to be timesteps.
"""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

import numpy as np
import pandas as pd

from manyseeds import plots
from manyseeds.errors import UsageError, described
from manyseeds.untrusted import BROKEN, read_bytes

ENDINGS = (".csv", ".npz")
MAX_BYTES = 2**26  # of a file, and of the arrays in one
WINDOWS = 100  # of a training, over which returns of its own episodes are averaged
ACCEPTED = (
    "compare.py reads SB3's monitor.csv and evaluations.npz, scalars exported by TensorBoard, "
    "charts exported by W&B, CSV with the columns timestep, value (and seed), and .npz with the "
    "arrays timesteps and returns"
)


def imported_line(path: Path) -> pd.DataFrame:
    """The curve in a file, as a run's is. Raises UsageError for a file that has none."""
    try:
        content = read_bytes(path, MAX_BYTES)
        curve = from_arrays(content) if path.suffix == ".npz" else from_csv(content)
        curve = curve.apply(pd.to_numeric).dropna().rename(columns={"value": "return_mean"})
        curve = curve.assign(seed=curve.get("seed", 0), mode="greedy", episodes=1)
        plots.curve_of(path.name, curve)  # what cannot be drawn is found here
    except FileNotFoundError:
        raise UsageError(f"{path}: No such file or directory") from None
    except UsageError:
        raise
    except (*BROKEN, zipfile.BadZipFile, pd.errors.ParserError) as error:
        reason = described(error).removeprefix(f"{path.name}: ")
        raise UsageError(f"{path}: {reason}") from None
    return curve


def from_csv(content: bytes) -> pd.DataFrame:
    """Timestep, value and perhaps seed of a CSV file. Raises ValueError for other columns."""
    if content.startswith(b"#"):  # monitor.csv begins with a line of JSON
        content = content.partition(b"\n")[2]
    frame = pd.read_csv(io.BytesIO(content))
    if {"timestep", "value"} <= set(frame):
        return frame[[name for name in ("timestep", "value", "seed") if name in frame]]
    if {"r", "l", "t"} <= set(frame):
        episodes = frame[["l", "r"]].apply(pd.to_numeric).dropna()
        steps = episodes["l"].cumsum()
        return over_windows(pd.DataFrame({"timestep": steps, "value": episodes["r"], "seed": 0}))
    if {"Step", "Value"} <= set(frame):
        found = frame[["Step", "Value"]].set_axis(["timestep", "value"], axis=1).assign(seed=0)
        return over_windows(found) if is_of_episodes(found) else found
    extra = ("__MIN", "__MAX", "_step")  # bands, and W&B's own steps
    lines = [name for name in frame.columns[1:] if " - " in name and not name.endswith(extra)]
    if not lines:
        raise ValueError(f"has other columns; {ACCEPTED}")
    if "Time" in frame.columns[0]:
        raise ValueError(f"is over {frame.columns[0]}; export the chart over timesteps")
    if len(metrics := sorted({name.rpartition(" - ")[2] for name in lines})) > 1:
        raise ValueError(f"has several metrics: {', '.join(metrics)}")
    curves = [
        frame[[frame.columns[0], name]].set_axis(["timestep", "value"], axis=1).assign(seed=i)
        for i, name in enumerate(lines)
    ]
    found = pd.concat(curves).apply(pd.to_numeric).dropna()
    return over_windows(found) if is_of_episodes(found) else found


def is_of_episodes(curve: pd.DataFrame) -> bool:
    """Whether a curve has the returns of a training's own episodes, as they ended: several at one
    timestep, or of seeds that begin at different ones."""
    begins = curve.groupby("seed")["timestep"].min()
    return begins.nunique() > 1 or bool(curve.duplicated(["seed", "timestep"]).any())


def over_windows(curve: pd.DataFrame) -> pd.DataFrame:
    """The mean returns of the episodes that ended in each window of 1/100 of a training.

    Without any in a window it is on the line between its neighbours, or that of the nearest one.
    """
    total = curve["timestep"].max()
    window = np.ceil(curve["timestep"] * WINDOWS / total).clip(lower=1) * total / WINDOWS
    means = curve.groupby(["seed", window])["value"].mean().unstack("seed")
    means = means.interpolate("index", limit_direction="both")
    return means.rename_axis(index="timestep").melt(ignore_index=False).reset_index()


def from_arrays(content: bytes) -> pd.DataFrame:
    """Timestep, value and seed of an .npz file. Raises ValueError for other arrays."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        if sum(part.file_size for part in archive.infolist()) > MAX_BYTES:
            raise ValueError(f"holds more than {MAX_BYTES} bytes")
    with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
        names = set(arrays.files)
        if not {"timesteps"} < names & {"timesteps", "results", "returns"}:
            raise ValueError(f"has the arrays {', '.join(sorted(names))}; {ACCEPTED}")
        steps = arrays["timesteps"]
        returns = arrays["returns"] if "returns" in names else arrays["results"][None]
    if returns.ndim == 3:
        returns = returns.mean(-1)
    returns = np.atleast_2d(returns)
    if steps.ndim != 1 or returns.ndim != 2 or returns.shape[1] != len(steps):
        shapes = f"timesteps {list(steps.shape)}, returns {list(returns.shape)}"
        raise ValueError(f"has {shapes}; must be [K], and [K], [S, K] or [S, K, episodes]")
    seeds, K = returns.shape
    columns = {"timestep": np.tile(steps, seeds), "value": returns.ravel()}
    return pd.DataFrame({**columns, "seed": np.repeat(np.arange(seeds), K)})
