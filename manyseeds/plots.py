"""Learning-curve figures, for the end of a run and for the report.

A learning curve is the IQM over seeds, its band the 95% bootstrap interval (`stats.estimate`) at
every evaluation; the line below a figure says so, and how many seeds there are. Lines have their
names at their ends, and a legend only where these are not readable; markers and dashes tell them
apart without colour. Data are tidy frames with the columns `seed, timestep, return_mean, mode,
episodes` (others are ignored); the curve is their greedy evaluations.

Figures depend on nothing but the data: matplotlib's defaults, whatever the user's matplotlibrc
says; no date and a fixed hash salt in SVG. An SVG has no background, and the colours of its text
and axes have the same contrast to white and to dark pages; its text is text. A PNG is white. pyplot
is not used, so no global figure and no backend is touched.
"""

from __future__ import annotations

import io
import math
import re
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from manyseeds import stats
from manyseeds.stats import Estimate
from manyseeds.writing import write_bytes

# matplotlib and seaborn take seconds to import, so the functions that draw import them.
if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D
    from matplotlib.text import Annotation
    from pandas import DataFrame

FORMATS = (".svg", ".png")
# seaborn's `colorblind` begins with these. A training draws with no others, so that it need not
# import seaborn, which imports scipy.stats and takes half a second.
FIRST_COLORS: tuple[str, ...] = ("#0173b2", "#de8f05", "#029e73")
# Behind those of `colorblind`, since one figure has up to 14 algorithms.
MORE_COLORS = (
    *("#7d4fd8", "#c4265e", "#8c8c1a", "#8a4b32"),
    *("#2f7f86", "#79b215", "#5f6fb0", "#a5668b"),
)
MARKERS = "o^sDvP*X"
LINE_STYLES = ("-", (0, (5, 2)), (0, (1.2, 1.4)), (0, (5, 1.5, 1.2, 1.5)))
NAME_SIZE = 7.5  # points, of the names at the ends of lines
NAME_HEIGHT = 9.5  # points from one to the next
NAME_OFFSET = 17  # points from the end of the line, with a stroke and a marker between
SAME_END = 4.0  # dots at figure.dpi: ends that are nearer look like one
WIDEST = 10.5  # inches: a page that is narrower shrinks a figure, and its text

INK = "#787878"  # contrast 4.4 to white, and 4.3 to GitHub's dark page

STYLE: dict[str, Any] = {
    "figure.dpi": 100,
    "figure.constrained_layout.hspace": 0.06,  # titles stand apart from the ticks above
    "savefig.dpi": 200,
    "svg.hashsalt": "manyseeds",
    "svg.fonttype": "none",  # text is text: it can be selected, searched and read aloud
    "font.family": ["DejaVu Sans"],  # comes with matplotlib
    "font.size": 9,
    "text.color": INK,
    "text.parse_math": False,  # a dollar sign in a name is a dollar sign
    "axes.facecolor": "none",
    "axes.titlesize": 10,
    "axes.titlecolor": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": INK,
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.grid": True,
    "grid.color": INK,
    "grid.alpha": 0.25,
    "grid.linewidth": 0.6,
    "xtick.color": INK,
    "ytick.color": INK,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "lines.linewidth": 1.8,
    "lines.solid_capstyle": "round",
    "legend.frameon": False,
    "legend.fontsize": 8.5,
    "legend.handlelength": 3.2,  # dashes show beside the marker
    "legend.title_fontsize": 8,
}
IQM_LEGEND = "IQM over seeds, 95% bootstrap interval"


def learning_curves(
    groups: dict[str, DataFrame],
    path: Path | str,
    *,
    title: str,
    threshold: float | None = None,
) -> None:
    """One panel, one line per group, written to `path` (.svg or .png).

    A single group also shows its seeds as faint lines. `threshold` is a score drawn as a horizontal
    line. Raises ValueError for an unknown suffix, for a group without curve rows, and for seeds
    with missing or non-finite evaluations.
    """
    from matplotlib.figure import Figure

    _check_suffix(path)
    if not groups:
        raise ValueError("no curves to draw")
    looks = _looks(list(groups))
    size = (5.6, 4.0)
    with _style():
        figure = Figure(figsize=size, layout="constrained")
        axes = figure.subplots()
        lines = {name: iqm_line(name, frame) for name, frame in groups.items()}
        for name, frame in groups.items():
            timesteps, returns = curve_of(name, frame)
            n, color = len(returns), looks[name]["color"]
            if len(groups) == 1 and n > 1:
                faint: dict[str, Any] = {"alpha": min(0.25, 25 / n), "linewidth": 0.6}
                axes.plot(timesteps, returns.T, color=color, zorder=1.5, **faint)
            _draw_line(axes, lines[name], looks[name])
        score = _draw_score(axes, threshold)
        _label_axes(axes, title, xlabel="timesteps per seed", ylabel="greedy return")
        several = any(line.n > 1 for line in lines.values())
        _name_lines(figure, [(axes, lines)], looks, IQM_LEGEND if several else "", size)
        _move_off_lines(figure, [score])
    write_bytes(Path(path), figure_bytes(figure, Path(path).suffix))


def with_n(name: str, *counts: int) -> str:
    """`PPO, n = 30`, of two counts `PPO, n = 30 or 60`, of more `PPO, n = 30 to 90`, or the name
    alone of a line that is of no seeds."""
    several = [str(n) for n in sorted({*counts}) if n]
    words = " or ".join(several) if len(several) < 3 else f"{several[0]} to {several[-1]}"
    return f"{name}, n = {words}" if words else name


def prediction_errors(
    episodes: Sequence[int],
    errors: NDArray[np.float64],
    bias_squared: NDArray[np.float64],
    variance: NDArray[np.float64],
    path: Path | str,
    *,
    title: str,
) -> None:
    """The error of predicted values over K episodes, and what it consists of; written to `path`.

    errors `[S, K]`, their mean and its 95% interval; bias_squared and variance `[K]`, as roots. The
    dotted line is the bias that chance alone gives to S unbiased seeds. From the episode on at
    which a seed diverged, nothing is drawn.
    """
    from matplotlib.figure import Figure

    _check_suffix(path)
    whole = np.isfinite(errors).all(axis=0) & np.isfinite(bias_squared) & np.isfinite(variance)
    K = len(episodes) if whole.all() else int(whole.argmin())
    x, n = episodes[:K], len(errors)
    points = [stats.estimate(column, "mean") for column in errors.T[:K]]
    color = FIRST_COLORS
    std, bias = np.sqrt(variance[:K]), np.sqrt(bias_squared[:K])
    with _style():
        figure = Figure(figsize=(5.6, 4.0), layout="constrained")
        axes = figure.subplots()
        low, high = [point.low for point in points], [point.high for point in points]
        axes.fill_between(x, low, high, color=color[0], alpha=0.2, linewidth=0)
        label = with_n("RMS error (mean, 95% interval)", n)
        axes.plot(x, [point.value for point in points], color=color[0], label=label, zorder=3)
        if n > 1:
            axes.plot(x, bias, color=color[1], linestyle="--", label="bias")
            axes.plot(x, std, color=color[2], linestyle="-.", label="standard deviation over seeds")
            chance = std / np.sqrt(n - 1)
            look: dict[str, Any] = {"color": INK, "linewidth": 1.0, "linestyle": ":"}
            axes.plot(x, chance, label="bias by chance alone", **look)
        axes.set_ylim(bottom=0)
        _label_axes(axes, title, xlabel="episodes per seed", ylabel="error of the values")
        figure.legend(loc="outside lower center", ncols=2)
    write_bytes(Path(path), figure_bytes(figure, Path(path).suffix))


def figure_bytes(figure: Figure, suffix: str) -> bytes:
    """Content of the file for `figure`, `suffix` .svg or .png; the same figure, the same bytes."""
    _check_suffix(f"figure{suffix}")
    buffer = io.BytesIO()
    metadata = {"Date": None, "Creator": None} if suffix == ".svg" else {"Software": None}
    with _style():
        face = "none" if suffix == ".svg" else "white"
        figure.savefig(buffer, format=suffix[1:], metadata=metadata, facecolor=face)
    found = buffer.getvalue()
    return COORDINATES.sub(_rounded, found) if suffix == ".svg" else found


COORDINATES = re.compile(rb' (?:d|x|y|transform)="[^"]*"')  # of an SVG, in points


def _rounded(attribute: re.Match[bytes]) -> bytes:
    """An attribute with two decimals in the place of six, a quarter of a file less."""
    return re.sub(rb"-?\d+\.\d{3,}", lambda x: b"%.2f" % float(x[0]), attribute[0])


def _palette() -> Sequence[str]:
    """Ten colours that colour-blind readers can distinguish."""
    import seaborn

    colors: Sequence[str] = seaborn.color_palette("colorblind").as_hex()
    return colors


def _looks(names: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Colour, dashes and marker of each line, by its place in `names`: they tell it apart without
    its colour, too."""
    palette = FIRST_COLORS
    if len(names) > 1:
        colors = _palette()  # without what is too light for a white page
        palette = (*colors[:6], colors[9], colors[7], *MORE_COLORS)
    M = len(MARKERS)
    return {
        name: {
            "color": palette[i % len(palette)],
            # As many pairs of dashes and markers differ as there are pairs.
            "linestyle": LINE_STYLES[(i + i // M) % len(LINE_STYLES)],
            "marker": (marker := MARKERS[(i + 2 * (i // M)) % M]),
            "markersize": 6 if marker == "*" else 4,
        }
        for i, name in enumerate(names)
    }


def _legend(figure: Figure, handles: Sequence[Any], title: str | None) -> None:
    """One legend below all panels, in as many columns as fit. Its first row has its place in the
    figure's height; each other one adds to it, so that the panels keep their size."""
    longest = max(len(str(handle.get_label())) for handle in handles)
    entry_inches = 0.62 + 0.075 * longest  # sample line and gap, then the text
    rows, columns = _grid(len(handles), max(1, int(figure.get_figwidth() / entry_inches)))
    figure.set_figheight(figure.get_figheight() + 0.18 * (rows - 1))
    figure.legend(handles=handles, loc="outside lower center", ncols=columns, title=title)


def _draw_line(axes: Axes, line: Line, look: Mapping[str, Any], log: bool = False) -> None:
    """A line on its band, with about five markers. log: the x axis is logarithmic."""
    if line.low is not None and line.high is not None:
        band: dict[str, Any] = {"color": look["color"], "alpha": 0.2, "linewidth": 0}
        axes.fill_between(line.x, line.low, line.high, **band)
    axes.plot(line.x, line.y, zorder=3, markevery=_marked(line.x, look["marker"], log), **look)


def _marked(x: ArrayLike, marker: str, log: bool) -> list[int]:
    """The points of a line that get a marker; those of lines with other markers lie elsewhere."""
    places = np.log(x) if log else np.asarray(x, dtype=np.float64)
    if len(places) < 8:
        return list(range(len(places)))
    first = (0.3 + 0.382 * MARKERS.index(marker)) % 1
    shares = (np.arange(5) + first) / 5
    wanted = places.min() + shares * np.ptp(places)
    return sorted({int(np.abs(places - place).argmin()) for place in wanted})


def _name_lines(
    figure: Figure,
    panels: Sequence[tuple[Axes, Mapping[str, Line]]],
    looks: Mapping[str, Mapping[str, Any]],
    note: str,
    size: tuple[float, float],
) -> None:
    """Names at the ends of all lines, or a legend where they do not fit into panels of a size, lie
    on other lines, or where most lines end together.

    A line of text below all is the note and, where all lines have as many, the number of seeds;
    otherwise each name says its own.
    """
    from matplotlib.lines import Line2D

    groups = [lines for _, lines in panels]
    counts = {name: {g[name].n for g in groups if name in g} for g in groups for name in g}
    common = set().union(*counts.values())
    if len(common) == 1 and any(common):
        note = ", ".join(filter(None, (note, f"n = {min(common)}")))
        counts = {name: {0} for name in counts}
    longest = max(len(with_n(name, max(ns))) for name, ns in counts.items())
    most = max(map(len, groups))
    labels = {name: with_n(name, *ns) for name, ns in counts.items()}
    handles = [Line2D([], [], label=labels[name], **looks[name]) for name in counts]
    if longest * 0.6 * NAME_SIZE > 0.42 * 72 * size[0] or most * NAME_HEIGHT > 0.7 * 72 * size[1]:
        _legend(figure, handles, note or None)
        return
    below = figure.supxlabel(note, size=8, color=INK) if note else None
    named: list[dict[str, Annotation]] = []
    for axes, lines in panels:
        named.append({})
        for name, line in lines.items():
            text = with_n(name, line.n * any(counts[name]))
            if end := _name_end(axes, line, text):
                named[-1][name] = end
    figure.draw_without_rendering()  # from here on, everything has its place
    for ends in named:
        _move_apart([*ends.values()])
    texts = [end for ends in named for end in ends.values()]
    if any(map(_lies_on_a_line, texts)) or not _end_apart(named):
        for drawn in (*([below] if below else []), *texts):
            drawn.remove()
        _legend(figure, handles, note or None)
        return
    for ends in named:
        for name, end in ends.items():
            _mark(end, looks[name])


def _lies_on_a_line(name: Annotation) -> bool:
    """Whether a line of its panel passes through a name."""
    return any(_passes(line, name) for line in name.axes.lines)  # type: ignore[union-attr]


def _passes(line: Line2D, name: Annotation) -> bool:
    """Whether a line passes through the box of a text."""
    from matplotlib.text import Text

    box = Text.get_window_extent(name)
    path = line.get_transform().transform_path(line.get_path())
    return bool(path.intersects_bbox(box, filled=False))


def _end_apart(panels: Sequence[Mapping[str, Annotation]]) -> bool:
    """Whether a third of the lines or more end away from all others, each in some panel."""
    alone = set()
    for ends in panels:
        places = {
            name: end.axes.transData.transform(end.xy)  # type: ignore[union-attr]
            for name, end in ends.items()
        }
        for name, place in places.items():
            near = [math.dist(place, other) < SAME_END for other in places.values()]
            if sum(near) == 1:  # itself
                alone.add(name)
    return 3 * len(alone) >= len({name for ends in panels for name in ends})


def _mark(name: Annotation, look: Mapping[str, Any]) -> None:
    """The marker of a line before its name, which tells without colour whose name it is, and a
    stroke to it from the end of the line."""
    from matplotlib.lines import Line2D
    from matplotlib.transforms import offset_copy

    axes, figure = name.axes, name.figure
    assert axes is not None
    x, y = name.get_position()
    place = offset_copy(axes.transData, figure, x - 5, y, units="points")  # type: ignore[arg-type]
    marker: dict[str, Any] = {key: look[key] for key in ("color", "marker", "markersize")}
    axes.add_artist(Line2D([name.xy[0]], [name.xy[1]], transform=place, clip_on=False, **marker))
    # To the left of all markers: strokes from ends to names in the same order do not cross.
    stroke = {"arrowstyle": "-", "color": look["color"], "linewidth": 0.8, "shrinkA": 0}
    axes.annotate(  # type: ignore[attr-defined]
        "",
        name.xy,
        xytext=(x - 9, y),
        textcoords="offset points",
        annotation_clip=False,
        arrowprops=stroke | {"shrinkB": 2},
    )


def _name_end(axes: Axes, line: Line, text: str) -> Annotation | None:
    """The name of a line at its last point within the axes; None where it has none there."""
    x, y = np.asarray(line.x, dtype=np.float64), np.asarray(line.y, dtype=np.float64)
    low, high = axes.get_ylim()
    drawn = np.flatnonzero((low <= y) & (y <= high))
    if not len(drawn):
        return None
    last = drawn[x[drawn].argmax()]
    return axes.annotate(
        text,
        (x[last], y[last]),
        xytext=(NAME_OFFSET, 0),
        textcoords="offset points",
        va="center",
        fontsize=NAME_SIZE,
        annotation_clip=False,
    )


def _move_apart(names: Sequence[Annotation]) -> None:
    """Move the names of one panel up and down where they lie on one another."""
    boxes = [name.get_window_extent() for name in names]
    starts = [(box.y0 + box.y1) / 2 for box in boxes]
    middles = list(starts)
    ordered = sorted(range(len(names)), key=middles.__getitem__)
    for _ in range(100):
        for a, lower in enumerate(ordered):
            bottom, top = names[lower].axes.bbox.intervaly  # type: ignore[union-attr]
            for upper in ordered[a + 1 :]:
                overlap = boxes[lower].x0 < boxes[upper].x1 and boxes[upper].x0 < boxes[lower].x1
                missing = NAME_HEIGHT * STYLE["figure.dpi"] / 72 - (middles[upper] - middles[lower])
                if overlap and missing > 0:
                    middles[lower] = max(bottom, middles[lower] - missing / 2)
                    middles[upper] = min(top, middles[upper] + missing / 2)
    for name, start, middle in zip(names, starts, middles, strict=True):
        name.set_position((NAME_OFFSET, round((middle - start) * 72 / STYLE["figure.dpi"], 2)))


def curve_of(name: str, frame: DataFrame) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Timesteps `[K]` and greedy returns `[S, K]` of one group."""
    rows = frame[frame["mode"] == "greedy"]
    if not rows.empty:  # the evaluation at the end has another number of episodes
        rows = rows[rows["episodes"] == rows.sort_values("timestep")["episodes"].iloc[0]]
    if rows.empty:
        raise ValueError(f"{name}: no greedy evaluations to draw")
    # The exact evaluation at the end repeats the last one on the curve.
    rows = rows.drop_duplicates(["seed", "timestep", "return_mean"])
    if rows.duplicated(["seed", "timestep"]).any():
        raise ValueError(f"{name}: a seed has two returns at the same timestep")
    seeds = [(seed, group.sort_values("timestep")) for seed, group in rows.groupby("seed")]
    curves = [(g["timestep"].to_numpy(), g["return_mean"].to_numpy()) for _, g in seeds]
    broken = [
        seed
        for (seed, _), (x, y) in zip(seeds, curves, strict=True)
        if x[0] != rows["timestep"].min() or not np.isfinite(y).all()
    ]
    if broken:
        raise ValueError(f"{name}: missing or non-finite evaluations of seeds {broken}")
    # Seeds that train by whole episodes are evaluated at timesteps of their own: lines between.
    common = max((x for x, _ in curves), key=len)
    return common, np.stack([np.interp(common, x, y) for x, y in curves])


def _draw_score(axes: Axes, score: float | None) -> Annotation | None:
    """Horizontal line at a score, with its name below it at the left."""
    if score is None:
        return None
    axes.axhline(score, zorder=2, color=INK, linestyle="--", linewidth=1.0)
    return axes.annotate(
        f"reward threshold {score:g}".replace("-", "\N{MINUS SIGN}"),  # as on the axis
        (0, score),
        xycoords=("axes fraction", "data"),
        xytext=(4, -3),
        textcoords="offset points",
        verticalalignment="top",
        fontsize=NAME_SIZE,
    )


def _move_off_lines(figure: Figure, names: Sequence[Annotation | None], once: bool = False) -> None:
    """Move the names of scores along their lines, to where fewest curves and bands pass. once: the
    score is at the same height in all panels, and only the name that is least in the way stays."""
    places = [(x, below) for x in (0.0, 1.0, 0.75, 0.5, 0.25) for below in (True, False)]
    shown = [name for name in names if name]
    if not shown:
        return
    figure.draw_without_rendering()
    least = []
    for name in shown:
        least.append(min((_covered(name, *place), i) for i, place in enumerate(places)))
        _covered(name, *places[least[-1][1]])
    if once:
        kept = shown[least.index(min(least))]
        for name in shown:
            if name is not kept:
                name.remove()


def _covered(name: Annotation, x: float, below: bool) -> tuple[int, int]:
    """Move the name of a score to a share x of its line, and count the curves and bands there."""
    axes = name.axes
    assert axes is not None
    side = "left" if x == 0 else "right" if x == 1 else "center"
    name.xy = (x, name.xy[1])
    name.set(ha=side, va="top" if below else "bottom")
    name.set_position(({"left": 4, "right": -4}.get(side, 0), -3 if below else 3))
    box = name.get_window_extent()
    if box.y0 < axes.bbox.y0 or box.y1 > axes.bbox.y1:
        return len(axes.lines), 0  # worse than any place within the axes
    bands = [
        path.transformed(band.get_transform())
        for band in axes.collections
        for path in band.get_paths()
    ]
    return (
        sum(_passes(line, name) for line in axes.lines),
        sum(path.intersects_bbox(box) for path in bands),
    )


def _label_axes(axes: Axes, title: str, xlabel: str, ylabel: str) -> None:
    from matplotlib.ticker import EngFormatter, FuncFormatter, MaxNLocator

    thousands = EngFormatter(sep="")  # 50k, 1M
    axes.set(title=title, xlabel=xlabel, ylabel=ylabel)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=6))
    axes.xaxis.set_major_formatter(
        FuncFormatter(lambda x, _: f"{x:.3g}" if abs(x) < 1 else thousands.format_eng(x))
    )
    axes.margins(x=0.02)


def _style() -> Any:
    """Context: matplotlib's defaults and ours on top, the caller's settings back afterwards."""
    import matplotlib.style

    return matplotlib.style.context(STYLE, after_reset=True)


def _check_suffix(path: Path | str) -> None:
    if Path(path).suffix not in FORMATS:
        raise ValueError(f"{path}: a figure is written as {' or '.join(FORMATS)}")


# ---- Any lines -------------------------------------------------------------------------------


class Line(NamedTuple):
    """One line of a panel: K points, with the interval of each where there is one."""

    x: ArrayLike  # [K]
    y: ArrayLike  # [K]
    low: ArrayLike | None = None
    high: ArrayLike | None = None
    n: int = 0  # seeds; 0: it is no statistic over seeds


def mean_line(x: Any, curves: NDArray[np.float64]) -> Line:
    """The mean over seeds of curves `[S, K]`, with its 95% interval, at x `[K]`."""
    return _line_of(x, curves, "mean", 2000)


def iqm_line(name: str, frame: DataFrame) -> Line:
    """The IQM over seeds of a learning curve. Raises ValueError as `curve_of` does."""
    return _line_of(*curve_of(name, frame), "iqm", 10_000)


def _line_of(
    x: Any, curves: NDArray[np.float64], statistic: stats.Statistic, resamples: int
) -> Line:
    return Line(x, *stats.estimate_curve(curves, statistic, resamples), len(curves))


EARLY = 0.3  # of the longest line: where learning is over by then, its beginning gets a panel


def early_end(lines: Iterable[Line]) -> float | None:
    """The x by which all lines have risen through 90% of their ranges; None where that is later
    than EARLY, so that a linear axis shows them rise, or where none rises after its first point."""
    risen, edges = [], []
    for line in lines:
        x, y = np.asarray(line.x, dtype=np.float64), np.asarray(line.y, dtype=np.float64)
        risen.append(x[(y >= y.min() + 0.9 * np.ptp(y)).argmax()])
        edges += [x[0], x[-1]]
    end = float(max(risen))
    return end if min(edges) < end <= EARLY * max(edges) else None


def beginning(line: Line, end: float) -> Line:
    """The points of a line up to the first one at or after `end`."""
    K = int(np.searchsorted(np.asarray(line.x), end)) + 1
    x, y, low, high = (None if a is None else np.asarray(a)[:K] for a in line[:4])
    assert x is not None
    assert y is not None
    return Line(x, y, low, high, line.n)


def lines(
    panels: Mapping[str, Mapping[str, Line]],
    path: Path | str,
    *,
    xlabel: str,
    ylabel: str,
    legend: str | None = None,
    log_x: bool = False,
    log_y: bool | Sequence[str] = False,
    columns: int = 3,
    share_x: bool = False,
    share_y: bool = False,
    floors: Mapping[str, float] | None = None,
    threshold: float | None = None,
    first: Sequence[str] = (),
    size: tuple[float, float] = (3.3, 2.5),
) -> None:
    """One panel per key (its title), with `legend` as a line of text below all; written to `path`.

    A name keeps its colour in every panel, and in every figure with the same names `first`. log_x:
    from the first point above 0 on. log_y: which panels have a logarithmic y axis, all or some by
    title. floors: where a panel's y axis begins, whatever lies below. threshold: a score, as a
    horizontal line in every panel. size: inches of a panel. Raises ValueError for an unknown
    suffix.
    """
    from matplotlib.figure import Figure

    _check_suffix(path)
    names = dict.fromkeys(name for group in panels.values() for name in group)
    looks = _looks(list(dict.fromkeys((*first, *names))))
    rows, columns = _grid(len(panels), columns)
    with _style():
        inches = (size[0] * columns + 0.4, size[1] * rows + 0.9)
        figure = Figure(figsize=inches, layout="constrained")
        sharing: dict[str, Any] = {"sharex": share_x, "sharey": share_y}
        grid = figure.subplots(rows, columns, squeeze=False, **sharing).flatten()
        drawn, scores = [], []
        for i, (title, group) in enumerate(panels.items()):
            shown = {name: _positive(line) if log_x else line for name, line in group.items()}
            drawn.append((grid[i], shown))
            for name, line in shown.items():
                _draw_line(grid[i], line, looks[name], log_x)
            scores.append(_draw_score(grid[i], threshold))
            bottom = i + columns >= len(panels)
            title = textwrap.fill(title, int(12 * size[0]))
            _label_axes(grid[i], title, xlabel if bottom else "", "" if i % columns else ylabel)
            grid[i].tick_params(labelbottom=bottom or not share_x)
            floor = floors.get(title) if floors else None
            if floor is not None:
                grid[i].set_ylim(bottom=floor)
            if log_x:
                _log_x(grid[i])
            if log_y is True or (log_y and title in log_y):
                _log_y(grid[i])
            if floor is not None:
                _leave_room(grid[i])
        for axes in grid[len(panels) :]:
            axes.remove()
        _name_lines(figure, drawn, looks, legend or "", size)
        _move_off_lines(figure, scores, once=share_y)
    write_bytes(Path(path), figure_bytes(figure, Path(path).suffix))


def _grid(panels: int, columns: int) -> tuple[int, int]:
    """Rows and columns, at most `columns`, with as few empty places as rows allow: 4 are 2 x 2."""
    rows = -(-panels // columns)
    return rows, -(-panels // rows)


def _leave_room(axes: Axes) -> None:
    """Room above the lines of an axis with a floor, where a line at the top would be cut to half of
    its width."""
    ends = ((1, axes.get_ylim()[0]), (1, axes.dataLim.y1))
    low, high = axes.transScale.transform(ends)[:, 1]
    top = high + 0.05 * (high - low)
    axes.set_ylim(top=axes.transScale.inverted().transform((1, top))[1])


def _positive(line: Line) -> Line:
    """A line from its first point above 0 on, for a logarithmic axis."""
    kept = np.asarray(line.x) > 0
    x, y, low, high = (None if a is None else np.asarray(a)[kept] for a in line[:4])
    assert x is not None
    assert y is not None
    return Line(x, y, low, high, line.n)


def _log_y(axes: Axes) -> None:
    """A logarithmic y axis with ticks such as 150 or 20k, at powers of ten if there are several."""
    from matplotlib.ticker import LogLocator, NullFormatter

    axes.set_yscale("log")
    low, high = axes.get_ylim()
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0,) if high / low > 100 else (1.0, 2.0, 5.0)))
    axes.yaxis.set_major_formatter(lambda y, _: tick_text(y))
    axes.yaxis.set_minor_formatter(NullFormatter())  # matplotlib's own is markup of TeX


def _log_x(axes: Axes) -> None:
    """A logarithmic x axis with ticks such as 10k, 20k, 50k, 100k."""
    from matplotlib.ticker import EngFormatter, LogLocator, NullFormatter

    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 3.0)))
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.xaxis.set_minor_formatter(NullFormatter())


def tick_text(x: float) -> str:
    """`1e-4`, `0.05`, `150`, `20k`, `1.5M`: the ticks of an axis look different."""
    for power, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(x) >= power:
            return f"{x / power:g}{letter}"
    return short_number(x)


class Panel(NamedTuple):
    """Scores of K configurations against one of their hyperparameters."""

    row: str  # the environment
    name: str  # of the hyperparameter
    values: Sequence[Any]  # [K], numbers or words
    scores: NDArray[np.float64]  # [K]
    log: bool


def scatter_grid(
    panels: Sequence[Panel], path: Path | str, *, ylabel: str, bins: int, legend: str
) -> None:
    """A panel per hyperparameter (rows) and environment (columns), with one y axis for all.

    Points are configurations; the line joins the means of `bins` equal parts of them, by the
    hyperparameter's rank, with 95% intervals. Of words, each is a part. legend: a line of text
    below all. Raises ValueError for an unknown suffix.
    """
    from matplotlib.figure import Figure
    from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter

    _check_suffix(path)
    envs, names = (list(dict.fromkeys(panel[i] for panel in panels)) for i in (0, 1))
    color = _palette()[0]
    with _style():
        size = (2.6 * len(envs) + 0.6, 1.5 * len(names) + 0.5)
        figure = Figure(figsize=size, layout="constrained")
        grid = figure.subplots(len(names), len(envs), squeeze=False, sharey=True, sharex="row")
        for env, name, values, scores, log in panels:
            axes = grid[names.index(name), envs.index(env)]
            x, kinds, line = binned(values, scores, bins)
            axes.scatter(x, scores, s=7, color="0.55", alpha=0.6, linewidths=0)
            centers, means, low, high = line.x, line.y, line.low, line.high
            look: dict[str, Any] = {"color": color, "marker": "o", "markersize": 3}
            if kinds:
                axes.vlines(centers, low, high, color=color)
                axes.plot(centers, means, linestyle="", **look)
            else:
                axes.fill_between(centers, low, high, color=color, alpha=0.25, linewidth=0)
                axes.plot(centers, means, **look)
            _label_axes(axes, env if name == names[0] else "", xlabel=name, ylabel="")
            if kinds:
                axes.set_xticks(range(len(kinds)), kinds)
                axes.set_xlim(-0.5, len(kinds) - 0.5)
                continue
            if log:
                axes.set_xscale("log")
                axes.xaxis.set_minor_formatter(NullFormatter())
            axes.xaxis.set_major_locator(LogLocator(numticks=4) if log else MaxNLocator(3))
            axes.xaxis.set_major_formatter(lambda x, _: short_number(x))
        figure.supxlabel(legend, size=8, color=INK)
        figure.supylabel(ylabel, size=9, color=INK)
    write_bytes(Path(path), figure_bytes(figure, Path(path).suffix))


def binned(
    values: Sequence[Any], scores: NDArray[np.float64], bins: int
) -> tuple[NDArray[np.float64], list[str], Line]:
    """Places of values on an axis [K], the words at 0, 1, ... if they are words, and the mean score
    with its 95% interval of each of `bins` parts by rank, at its median place."""
    x, kinds, parts = _parts(values, bins)
    centers = [float(np.median(x[part])) for part in parts]
    points = [stats.estimate(scores[part], "mean", resamples=2000) for part in parts]
    mean, low, high = ([getattr(p, name) for p in points] for name in ("value", "low", "high"))
    return x, kinds, Line(centers, mean, low, high)


def short_number(x: float) -> str:
    """`0.92`, `100`, `1e-4`"""
    text = f"{x:g}" if abs(x) >= 0.001 or x == 0 else f"{x:.0e}"
    return text.replace("e-0", "e-").replace("e+0", "e+")


def _parts(
    values: Sequence[Any], bins: int
) -> tuple[NDArray[np.float64], list[str], list[NDArray[np.int64]]]:
    """Places on an axis [K], the words at 0, 1, ... if values are words, and the parts' indices."""
    if isinstance(values[0], str):
        kinds = sorted(set(values), key=_word_order)
        places = np.array([kinds.index(value) for value in values], dtype=np.float64)
        return places, kinds, [np.flatnonzero(places == k) for k in range(len(kinds))]
    x = np.asarray(values, dtype=np.float64)
    parts = np.array_split(x.argsort(kind="stable"), bins)
    return x, [], [part for part in parts if len(part)]


def _word_order(word: str) -> tuple[list[float], str]:
    """By the numbers in a word: 8, 16, 128; 64-64 before 120-84."""
    return [float(x) for x in re.findall(r"\d+(?:\.\d+)?(?:e[-+]?\d+)?", word)], word


Groups = Mapping[str, Mapping[str, NDArray[np.float64]]]  # line -> value -> scores [S]


def scores_by_value(
    panels: Mapping[str, Groups],
    path: Path | str,
    *,
    xlabel: str,
    ylabel: str,
    columns: int = 2,
    log_y: bool = False,
) -> None:
    """One panel per key (its title): scores of seeds against the values of one setting.

    Values stand at equal distances, in the order in which the lines of a panel name them. A line
    is the IQM over seeds with its 95% interval, joined where values are numbers; small points are
    seeds. A value without scores is a gap in its line. Raises ValueError for an unknown suffix.
    """
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D
    from matplotlib.ticker import NullFormatter

    _check_suffix(path)
    looks = _looks(list(dict.fromkeys(line for groups in panels.values() for line in groups)))
    rows, columns = _grid(len(panels), columns)
    with _style():
        figure = Figure(figsize=(4.2 * columns + 0.4, 3.0 * rows + 0.6), layout="constrained")
        grid = figure.subplots(rows, columns, squeeze=False).flatten()
        for i, (title, groups) in enumerate(panels.items()):
            axes = grid[i]
            bottom = i + columns >= len(panels)
            _label_axes(axes, title, xlabel if bottom else "", "" if i % columns else ylabel)
            names = list(dict.fromkeys(value for group in groups.values() for value in group))
            numbers = all(re.fullmatch(r"[-+.\de]+", name) for name in names)
            for k, (line, group) in enumerate(groups.items()):
                color = looks[line]["color"]
                shift = 0.3 * (k - (len(groups) - 1) / 2)  # lines side by side
                places = np.arange(len(names)) + shift
                middle, low, high = (np.full(len(names), math.nan) for _ in range(3))
                for j, name in enumerate(names):
                    if not len(scores := group.get(name, ())):
                        continue
                    spread = places[j] + np.linspace(-0.09, 0.09, len(scores))
                    axes.scatter(spread, scores, s=6, color=color, alpha=0.35, linewidths=0)
                    point = stats.estimate(scores)
                    middle[j], low[j], high[j] = point.value, point.low, point.high
                axes.vlines(places, low, high, color=color, linewidth=1.6)
                axes.plot(places, middle, **looks[line] | ({} if numbers else {"linestyle": ""}))
            slant: dict[str, Any] = {"rotation": 40, "ha": "right", "rotation_mode": "anchor"}
            crowded = sum(map(len, names)) > 60
            axes.set_xticks(range(len(names)), names, **slant if crowded else {})
            axes.set_xlim(-0.5, len(names) - 0.5)
            if log_y:
                axes.set_yscale("log")
                axes.yaxis.set_major_formatter(lambda y, _: f"{y:g}")
                axes.yaxis.set_minor_formatter(NullFormatter())
        for axes in grid[len(panels) :]:
            axes.remove()
        handles = [Line2D([], [], label=name, **look) for name, look in looks.items() if name]
        if handles:
            _legend(figure, handles, "IQM over seeds, 95% interval; points are seeds")
    write_bytes(Path(path), figure_bytes(figure, Path(path).suffix))


def plane(
    places: Mapping[str, tuple[Estimate, Estimate]], path: Path | str, *, xlabel: str, ylabel: str
) -> None:
    """A point per name, with the intervals of its x and of its y. Raises ValueError for an unknown
    suffix."""
    from matplotlib.figure import Figure

    _check_suffix(path)
    with _style():
        figure = Figure(figsize=(5.0, 3.6), layout="constrained")
        axes = figure.subplots()
        for name, look in _looks(list(places)).items():
            x, y = places[name]
            wide, high = ([[p.value - p.low], [p.high - p.value]] for p in (x, y))
            color, marker = look["color"], look["marker"]
            axes.errorbar(x.value, y.value, high, wide, fmt=marker, color=color, capsize=2)
            axes.annotate(
                name,
                (x.value, y.value),
                xytext=(6, 5),
                textcoords="offset points",
                fontsize=9,
            )
        axes.set(xlabel=xlabel, ylabel=ylabel)
        axes.margins(0.15)
    write_bytes(Path(path), figure_bytes(figure, Path(path).suffix))


# ---- Differences with intervals --------------------------------------------------------------


class Difference(NamedTuple):
    """One row of a forest plot: a difference with its interval, and what it is called."""

    label: str
    value: float  # NaN where there is none: the row has its word alone
    low: float
    high: float
    word: str = ""
    href: str = ""  # of the label, on the site
    n: int = 0  # seeds of the smaller side; 0: it is of no seeds
    margin: float | None = None  # within which differences count as equivalent


def forest(
    panels: Mapping[str, Sequence[Difference]],
    path: Path | str,
    *,
    xlabel: str = "",
) -> None:
    """One panel per key (its title), with a row per difference; written to `path`. Panels are side
    by side, or below one another where they would be wider than WIDEST.

    A row has its label, its value in its interval, and its word at the right. Differences within
    its ±margin are a shaded band around the line at 0. Raises ValueError for an unknown suffix.
    """
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine
    from matplotlib.ticker import MaxNLocator

    _check_suffix(path)
    width = 0.07 * max(len(row.label) for rows in panels.values() for row in rows) + 3.0
    titles = [textwrap.fill(title, int(11 * width)) for title in panels]
    lines = [title.count("\n") for title in titles]
    heights = [
        0.19 * len(rows) + 0.8 + 0.17 * more
        for rows, more in zip(panels.values(), lines, strict=True)
    ]
    beside = width * len(panels) <= WIDEST
    with _style():
        size = (width * len(panels), max(heights)) if beside else (width, sum(heights))
        # Panels stand so far apart that words are not read as labels of the next one.
        figure = Figure(figsize=size, layout=ConstrainedLayoutEngine(wspace=0.1))
        shape = (1, len(panels)) if beside else (len(panels), 1)
        ratios = None if beside else heights
        grid = figure.subplots(*shape, squeeze=False, sharex=True, height_ratios=ratios).flatten()
        for axes, title, rows in zip(grid, titles, panels.values(), strict=True):
            axes.axvline(0, color=INK, linewidth=0.8)
            for i, row in enumerate(rows):
                look = _difference_look(row.word)
                if row.margin is not None:
                    band = {"height": 1, "color": INK, "alpha": 0.15, "linewidth": 0}
                    axes.barh(i, 2 * row.margin, left=-row.margin, **band)
                axes.hlines(i, row.low, row.high, color=look["color"], linewidth=1.4)
                axes.plot(row.value, i, linestyle="", **look)
                place: dict[str, Any] = {"xycoords": ("axes fraction", "data"), "va": "center"}
                axes.annotate(
                    row.word, (1, i), xytext=(5, 0), textcoords="offset points", size=8, **place
                )
            label = xlabel if beside or axes is grid[-1] else ""
            axes.set(title=title, xlabel=label, ylim=(len(rows) - 0.4, -0.6))
            axes.xaxis.set_major_locator(MaxNLocator(4))
            axes.set_yticks(range(len(rows)), [row.label for row in rows], size=8)
            axes.tick_params(axis="y", length=0)
            axes.spines["left"].set_visible(False)
            axes.grid(axis="y", visible=False)
        _move_titles_in(figure, grid)
    write_bytes(Path(path), figure_bytes(figure, Path(path).suffix))


def _move_titles_in(figure: Figure, panels: Iterable[Axes]) -> None:
    """Move titles, which are centred above axes, sideways where the figure's edge would cut them:
    the layout leaves no room for their width."""
    figure.draw_without_rendering()
    for axes in panels:
        box, edge = axes.title.get_window_extent(), 2.0
        right = max(0.0, edge - box.x0) - max(0.0, box.x1 - (figure.bbox.x1 - edge))
        axes.title.set_x(0.5 + right / axes.bbox.width)


def _difference_look(word: str) -> dict[str, Any]:
    """Colour and marker of a difference: a word is told by its marker alone, too."""
    palette = _palette()
    marker, color = {
        "better": ("^", palette[2]),
        "worse": ("v", palette[3]),
        "undecided": ("o", INK),
        "ceiling": ("s", INK),
    }.get(word, ("o", palette[0]))
    hollow = {"markerfacecolor": "none"} if word == "undecided" else {}
    return {"marker": marker, "markersize": 4.5, "color": color, **hollow}


# ---- Values and actions of a plan -----------------------------------------------------------

STEPS = (1, 2, 3, 5, 8)  # of a plan, that a still picture shows besides the last: most change first


class Board(NamedTuple):
    """What one picture of a plan shows."""

    title: str
    values: NDArray[np.float64]  # [X]
    actions: NDArray[np.int64]  # [X], greedy
    ends: NDArray[np.bool_]  # [X], states that are over: they show their letter only
    best: NDArray[np.bool_] | None = None  # [X, A], all greedy actions where they are known


def boards(pictures: Sequence[Board], layout: Any, path: Path | str) -> None:
    """Write pictures of values and greedy actions beside one another; `.gif`: after one another.

    Beside one another stand, of many pictures, those that STEPS names and the last.
    `layout` says how the states lie on paper (titles, actions, marks). All pictures share one scale
    of colours, that of the last one: blue above 0, red below. Raises ValueError for an unknown
    suffix.
    """
    path = Path(path)
    last = pictures[-1]
    limit = float(np.abs(last.values[~last.ends]).max()) or 1.0
    if path.suffix == ".gif":
        with _style():
            frames = [_draw_boards([picture], layout, limit, 1) for picture in pictures]
        write_bytes(path, _gif_bytes(frames))
        return
    _check_suffix(path)
    shown = [*(pictures[k - 1] for k in STEPS if k < len(pictures)), last]
    with _style():
        figure = _draw_boards(shown, layout, limit, 3)
    write_bytes(path, figure_bytes(figure, path.suffix))


def _draw_boards(pictures: Sequence[Board], layout: Any, limit: float, columns: int) -> Figure:
    """A block per picture, in which a panel of the layout (Taxi has 16) is one grid of cells.

    Blocks stand in at most `columns`, in fewer where they would be wider than WIDEST.
    """
    from matplotlib.figure import Figure

    panels = [(title, np.array(states)) for title, states in layout.panels.items()]
    across = -(-len(panels) // max(1, round(len(panels) ** 0.5)))
    down = -(-len(panels) // across)
    # All in inches, and placed by hand: matplotlib's own layout takes seconds for 16 panels.
    cell = 0.6 if len(panels) == 1 else 0.34
    height, width = (cell * n for n in panels[0][1].shape)
    gap, head = 0.2, 0.3
    panel_head = head if len(panels) > 1 else 0.0
    block_width = (width + gap) * across
    block_height = (height + panel_head) * down + head + gap / 2
    rows, columns = _grid(len(pictures), max(1, min(columns, int(WIDEST / block_width))))
    size = block_width * columns, block_height * rows
    figure = Figure(figsize=size)
    for i, picture in enumerate(pictures):
        left = block_width * (i % columns)
        top = size[1] - block_height * (i // columns)
        middle = (left + block_width / 2) / size[0], (top - head / 2) / size[1]
        figure.text(*middle, picture.title, ha="center", va="center", fontsize=9)
        for j, (title, states) in enumerate(panels):
            x = left + gap / 2 + (width + gap) * (j % across)
            y = top - head - (height + panel_head) * (j // across + 1)
            axes = figure.add_axes((x / size[0], y / size[1], width / size[0], height / size[1]))
            _draw_board(axes, picture, states, layout, limit)
            axes.set_title(title if panel_head else "", fontsize=6, pad=3)
    return figure


def _draw_board(
    axes: Axes, picture: Board, states: NDArray[np.int64], layout: Any, limit: float
) -> None:
    """One grid of cells: value above, action below, a letter where the layout has one.

    Walls, marked #, are grey. Actions that tie stand side by side where all greedy actions are
    known, otherwise the first of them stands alone.
    """
    from matplotlib.patches import Rectangle

    shown = np.where(states < 0, np.nan, picture.values[states])
    axes.imshow(shown, cmap="RdBu", vmin=-limit, vmax=limit)
    axes.set(xticks=[], yticks=[])
    axes.grid(False)
    size = 7.5 if len(layout.panels) == 1 else 4
    digits = max(0, 2 - math.floor(math.log10(limit)))
    for (row, column), state in np.ndenumerate(states):
        if state < 0:
            continue
        mark, over = layout.marks.get(int(state), ""), picture.ends[state]
        color = "white" if abs(picture.values[state]) > 0.6 * limit else "0.15"
        look: dict[str, Any] = {"ha": "center", "va": "center", "color": color}
        if over:
            if mark == "#":
                wall = Rectangle((column - 0.5, row - 0.5), 1, 1, facecolor="0.6", linewidth=0)
                axes.add_patch(wall)
            axes.text(column, row, mark, fontsize=size + 2, fontweight="bold", **look)
            continue
        value = round(float(picture.values[state]), digits) + 0.0  # never -0
        axes.text(column, row - 0.22, f"{value:g}", fontsize=size - 0.5, **look)
        best = [picture.actions[state]]
        if picture.best is not None:
            best = np.flatnonzero(picture.best[state]).tolist()
        sign = "".join(layout.actions[action] for action in best)
        fontsize = size + (2, 2, 1, -0.5)[min(len(best), 4) - 1]
        axes.text(column, row + 0.2, sign, fontsize=fontsize, **look)
        axes.text(column - 0.36, row + 0.34, mark, fontsize=size - 1, **look)


def _gif_bytes(frames: Sequence[Figure], seconds: float = 0.8) -> bytes:
    """Figures shown one after another, the last one longer, forever."""
    from PIL import Image

    images = []
    for figure in frames:
        buffer = io.BytesIO()
        figure.savefig(buffer, format="png", dpi=100)
        images.append(Image.open(buffer).convert("P", palette=Image.Palette.ADAPTIVE, colors=255))
    buffer = io.BytesIO()
    milliseconds = [round(1000 * seconds)] * (len(images) - 1) + [round(4000 * seconds)]
    first, *rest = images
    first.save(buffer, "GIF", save_all=True, append_images=rest, duration=milliseconds, loop=0)
    return buffer.getvalue()


# ---- A tree ---------------------------------------------------------------------------------


def tree(branches: dict[str, Any], path: Path | str) -> None:
    """A tree from left to right: a branch is {name: what is below}, a leaf {name: its file}.

    Leaves stand at the right, their files below their names. Raises ValueError for an unknown
    suffix.
    """
    from matplotlib.figure import Figure

    _check_suffix(path)
    depth, leaves = _depth(branches), _count(branches)
    with _style():
        figure = Figure(figsize=(2.25 * depth, 0.46 * leaves + 0.2))
        axes = figure.add_axes((0, 0, 1, 1))
        axes.set(xlim=(0, depth), ylim=(leaves, 0))
        axes.axis("off")
        _draw_branches(axes, branches, 0, 0.0, depth)
    write_bytes(Path(path), figure_bytes(figure, Path(path).suffix))


def _draw_branches(
    axes: Axes, branches: dict[str, Any], level: int, top: float, depth: int
) -> list[tuple[float, float]]:
    """Draw everything below one point; where its boxes begin."""
    places = []
    for name, below in branches.items():
        is_leaf = not isinstance(below, dict)
        x, height = (depth - 1 if is_leaf else level), _count({name: below})
        y = top + height / 2
        color = "#dfe8f3" if is_leaf else "0.95"
        box = {"boxstyle": "round,pad=0.35", "facecolor": color, "edgecolor": "0.7"}
        text = f"{name}\n{below}" if is_leaf else name
        look: dict[str, Any] = {"va": "center", "ha": "left", "fontsize": 7, "color": "0.15"}
        axes.text(x + 0.04, y, text, bbox=box, zorder=3, **look)
        places.append((float(x), y))
        if not is_leaf:
            for right, lower in _draw_branches(axes, below, level + 1, top, depth):
                axes.plot(
                    (x + 0.1, x + 0.5, right - 0.12, right),
                    (y, y, lower, lower),
                    color="0.7",
                    linewidth=0.9,
                    zorder=1,
                )
        top += height
    return places


def _count(branches: dict[str, Any]) -> int:
    """Leaves of a tree."""
    return sum(_count(below) if isinstance(below, dict) else 1 for below in branches.values())


def _depth(branches: dict[str, Any]) -> int:
    """Levels of a tree, leaves included."""
    inner = [_depth(below) for below in branches.values() if isinstance(below, dict)]
    return 1 + max(inner, default=0)


# ---- Formulas ---------------------------------------------------------------------------------

OPERATIONS = {1: "M", 2: "L", 3: "Q", 4: "C", 79: "Z"}  # of SVG, by matplotlib's codes of a path


class Outline(NamedTuple):
    """A formula as the data of an SVG path, y upwards from its baseline, and what it covers."""

    path: str
    left: float
    bottom: float
    right: float
    top: float


def formula(text: str, em: int) -> Outline:
    """A formula in TeX's notation as outlines, `em` units high as a letter M is wide.

    Raises ValueError for what matplotlib's mathtext does not know.
    """
    from matplotlib.textpath import TextPath

    outline = TextPath((0, 0), f"${text}$", size=em)
    path = "".join(
        OPERATIONS[int(code)] + ("" if code == 79 else " ".join(f"{x:.0f}" for x in points))
        for points, code in outline.iter_segments(simplify=False)
    )
    return Outline(path, *outline.get_extents().extents)
