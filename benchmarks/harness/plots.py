"""Learning-curve figures, for the end of a run and for the report.

A line is the IQM over seeds, its band the 95% bootstrap interval (`stats.estimate`) at every
evaluation. Data are tidy frames with the columns `seed, timestep, return_mean, mode, episodes`
(others are ignored); the curve is their greedy evaluations.

Figures depend on nothing but the data: matplotlib's defaults and bundled font, whatever the
user's matplotlibrc says; no date and a fixed hash salt in SVG. White and opaque, so that they read
on light and dark pages. pyplot is not used, so no global figure and no backend is touched.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.harness import stats
from benchmarks.harness.evaluate import CURVE_EPISODES
from benchmarks.harness.record import write_bytes

# matplotlib and seaborn take seconds to import, so the functions that draw import them.
if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from pandas import DataFrame

FORMATS = (".svg", ".png")
LINE_STYLES = ("-", "--", ":", "-.")  # the palette has ten colours, then the style changes

STYLE: dict[str, Any] = {
    "figure.dpi": 100,
    "savefig.dpi": 200,
    "svg.hashsalt": "manyseeds",
    "svg.fonttype": "path",  # glyphs as outlines: the same picture wherever it is opened
    "font.family": "DejaVu Sans",  # comes with matplotlib
    "font.size": 9,
    "text.parse_math": False,  # a dollar sign in a name is a dollar sign
    "axes.titlesize": 10,
    "axes.labelcolor": "0.15",
    "axes.edgecolor": "0.4",
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.grid": True,
    "grid.color": "0.92",
    "grid.linewidth": 0.8,
    "xtick.color": "0.4",
    "ytick.color": "0.4",
    "xtick.labelcolor": "0.15",
    "ytick.labelcolor": "0.15",
    "lines.linewidth": 1.8,
    "lines.solid_capstyle": "round",
    "legend.frameon": False,
    "legend.fontsize": 8.5,
    "legend.title_fontsize": 8,
}


def learning_curves(
    groups: dict[str, DataFrame],
    path: Path | str,
    *,
    title: str,
    threshold: float | None = None,
    reference: float | None = None,
) -> None:
    """One panel, one line per group, written to `path` (.svg or .png).

    A single group also shows its seeds as faint lines. `threshold` and `reference` are scores
    drawn as horizontal lines. Raises ValueError for an unknown suffix, for a group without curve
    rows, and for seeds with missing or non-finite evaluations.
    """
    _check_suffix(path)
    with _style():
        figure = _draw({title: groups}, (5.6, 4.0), {title: threshold}, reference)
    write_bytes(Path(path), figure_bytes(figure, Path(path).suffix))


def grid_of_curves(
    panels: dict[str, dict[str, DataFrame]],
    path: Path | str,
    *,
    thresholds: dict[str, float | None],
    names: Sequence[str] = (),
) -> None:
    """One panel per key (its title), at most three columns, with one legend for all.

    A group keeps its colour in every panel, and in every figure with the same `names`, the groups
    that come first. `thresholds` may lack a panel. Writes and raises as `learning_curves` does.
    """
    _check_suffix(path)
    columns = min(3, len(panels))
    size = (3.3 * columns + 0.4, 2.4 * -(-len(panels) // 3) + 0.9)
    with _style():
        figure = _draw(panels, size, thresholds, first=names)
    write_bytes(Path(path), figure_bytes(figure, Path(path).suffix))


def figure_bytes(figure: Figure, suffix: str) -> bytes:
    """Content of the file for `figure`, `suffix` .svg or .png; the same figure, the same bytes."""
    _check_suffix(f"figure{suffix}")
    buffer = io.BytesIO()
    metadata = {"Date": None, "Creator": None} if suffix == ".svg" else {"Software": None}
    with _style():
        figure.savefig(buffer, format=suffix[1:], metadata=metadata)
    return buffer.getvalue()


def _draw(
    panels: dict[str, dict[str, DataFrame]],
    size: tuple[float, float],
    thresholds: dict[str, float | None],
    reference: float | None = None,
    first: Sequence[str] = (),
) -> Figure:
    """Figure of `size` inches with a panel per key, at most three columns, and one legend."""
    import seaborn
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    found = dict.fromkeys(name for groups in panels.values() for name in groups)
    if not found:
        raise ValueError("no curves to draw")
    order = list(dict.fromkeys((*first, *found)))
    names = [name for name in order if name in found]
    palette = seaborn.color_palette("colorblind")
    looks: dict[str, dict[str, Any]] = {
        name: {
            "color": palette[i % len(palette)],
            "linestyle": LINE_STYLES[i // len(palette) % len(LINE_STYLES)],
        }
        for i, name in enumerate(order)
    }

    figure = Figure(figsize=size, layout="constrained")
    columns = min(3, len(panels))
    grid = figure.subplots(-(-len(panels) // columns), columns, squeeze=False).flatten()
    seeds: dict[str, list[int]] = {name: [] for name in names}  # per panel that has the group
    for i, (title, groups) in enumerate(panels.items()):
        axes = grid[i]
        for name, frame in groups.items():
            n = _draw_group(axes, name, frame, looks[name], faint_seeds=len(names) == 1)
            seeds[name].append(n)
        _draw_score(axes, thresholds.get(title), "--")
        _draw_score(axes, reference, ":")
        _label_axes(
            axes,
            title,
            xlabel="timesteps per seed" if i + columns >= len(panels) else "",
            ylabel="greedy return" if i % columns == 0 else "",
        )
    for axes in grid[len(panels) :]:
        axes.remove()

    handles = [
        Line2D([], [], label=f"{name} (n={_span(seeds[name])})", **looks[name]) for name in names
    ]
    if any(thresholds.get(title) is not None for title in panels):
        handles.append(Line2D([], [], label="reward threshold", **_score_look("--")))
    if reference is not None:
        handles.append(Line2D([], [], label="reference score", **_score_look(":")))
    longest = max(len(str(handle.get_label())) for handle in handles)
    has_interval = any(n > 1 for counts in seeds.values() for n in counts)
    entry_inches = 0.5 + 0.075 * longest  # sample line and gap, then the text
    figure.legend(
        handles=handles,
        loc="outside lower center",
        ncols=max(1, min(len(handles), int(size[0] / entry_inches))),
        title="IQM over seeds, 95% bootstrap interval" if has_interval else None,
    )
    return figure


def _draw_group(
    axes: Axes, name: str, frame: DataFrame, look: dict[str, Any], faint_seeds: bool
) -> int:
    """Line and band of one group; the number of its seeds."""
    timesteps, returns = _curve(name, frame)
    points = [stats.estimate(column) for column in returns.T]
    low, high = [point.low for point in points], [point.high for point in points]
    if faint_seeds and len(returns) > 1:
        axes.plot(timesteps, returns.T, color=look["color"], alpha=0.25, linewidth=0.6, zorder=1.5)
    axes.fill_between(timesteps, low, high, color=look["color"], alpha=0.2, linewidth=0)
    axes.plot(timesteps, [point.value for point in points], zorder=3, **look)
    return len(returns)


def _curve(name: str, frame: DataFrame) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Timesteps `[K]` and greedy returns `[S, K]` of one group."""
    # 0 episodes: exact, for tabular policies. Not the larger evaluation at the end.
    on_curve = frame["episodes"].isin((CURVE_EPISODES, 0))
    rows = frame[(frame["mode"] == "greedy") & on_curve]
    if rows.empty:
        raise ValueError(f"{name}: no greedy evaluations to draw")
    # The exact evaluation at the end repeats the last one on the curve.
    rows = rows.drop_duplicates(["seed", "timestep", "return_mean"])
    if rows.duplicated(["seed", "timestep"]).any():
        raise ValueError(f"{name}: a seed has two returns at the same timestep")
    table = rows.pivot(index="seed", columns="timestep", values="return_mean")
    returns = table.to_numpy(dtype=np.float64)
    broken = table.index[~np.isfinite(returns).all(axis=1)].tolist()
    if broken:
        raise ValueError(f"{name}: missing or non-finite evaluations of seeds {broken}")
    return table.columns.to_numpy(dtype=np.int64), returns


def _draw_score(axes: Axes, score: float | None, linestyle: str) -> None:
    """Horizontal line at `score`, with the number in the right margin."""
    if score is None:
        return
    axes.axhline(score, zorder=2, **_score_look(linestyle))
    axes.annotate(
        f"{score:g}".replace("-", "\N{MINUS SIGN}"),  # as on the axis
        (1, score),
        xycoords=("axes fraction", "data"),
        xytext=(3, 0),
        textcoords="offset points",
        verticalalignment="center",
        fontsize="small",
        color="0.3",
    )


def _score_look(linestyle: str) -> dict[str, Any]:
    return {"color": "0.3", "linestyle": linestyle, "linewidth": 1.0}


def _label_axes(axes: Axes, title: str, xlabel: str, ylabel: str) -> None:
    from matplotlib.ticker import EngFormatter, MaxNLocator

    axes.set(title=title, xlabel=xlabel, ylabel=ylabel)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=6))
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))  # 50k, 1M
    axes.margins(x=0.02)


def _span(counts: list[int]) -> str:
    """`10`, or `10-30` where panels differ."""
    low, high = min(counts), max(counts)
    return str(low) if low == high else f"{low}-{high}"


def _style() -> Any:
    """Context: matplotlib's defaults and ours on top, the caller's settings back afterwards."""
    import matplotlib.style

    return matplotlib.style.context(STYLE, after_reset=True)


def _check_suffix(path: Path | str) -> None:
    if Path(path).suffix not in FORMATS:
        raise ValueError(f"{path}: a figure is written as {' or '.join(FORMATS)}")
