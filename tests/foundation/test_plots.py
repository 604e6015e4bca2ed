"""What figures look like: text within the figure, ticks that differ, strokes that do not cross."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.text import Annotation, Text

from manyseeds import plots
from manyseeds.benchmarks.store.names import FIRST
from tests.benchmarks.conftest import Patch


@pytest.fixture
def figures(monkeypatch: Patch) -> list[Figure]:
    """All figures that are drawn, as they are written."""
    drawn: list[Figure] = []
    to_bytes = plots.figure_bytes

    def keep(figure: Figure, suffix: str) -> bytes:
        content = to_bytes(figure, suffix)
        with plots._style():
            figure.draw_without_rendering()
        drawn.append(figure)
        return content

    monkeypatch.setattr(plots, "figure_bytes", keep)
    return drawn


def axis_labels(figure: Figure) -> Iterator[tuple[Axis, list[Text], list[Text]]]:
    """Of each axis its tick labels that are drawn, and those that lie outside it."""
    for axes in figure.axes:
        for axis in (axes.xaxis, axes.yaxis):
            low, high = sorted(axis.get_view_interval())
            room = 1e-6 * (high - low)
            shown: list[Text] = []
            hidden: list[Text] = []
            for tick in (*axis.get_major_ticks(), *axis.get_minor_ticks()):
                there = low - room <= tick.get_loc() <= high + room and tick.label1.get_visible()
                (shown if there and tick.label1.get_text() else hidden).append(tick.label1)
            yield axis, shown, hidden


def cut_texts(figure: Figure) -> list[str]:
    """The texts that reach beyond the edge of a figure."""
    hidden = {id(text) for _, _, out in axis_labels(figure) for text in out}
    edge, found = figure.bbox, []
    for text in figure.findobj(Text):
        assert isinstance(text, Text)
        if id(text) in hidden or not text.get_visible() or not text.get_text().strip():
            continue
        box = Text.get_window_extent(text)
        if min(box.x0, box.y0) < -1 or box.x1 > edge.x1 + 1 or box.y1 > edge.y1 + 1:
            found.append(text.get_text())
    return found


def repeated_ticks(figure: Figure) -> list[list[str]]:
    """The labels of axes on which two ticks have the same one."""
    labels = [[text.get_text() for text in shown] for _, shown, _ in axis_labels(figure)]
    return [texts for texts in labels if len(set(texts)) < len(texts)]


def speeds(low: float, high: float) -> Mapping[str, plots.Line]:
    return {"manyseeds": plots.Line([1, 10, 32], [low, high, high]), "SB3": plots.Line([1], [low])}


LONG = "share of pairs of groups that are called different, bootstrap minus t-test"
AXES: dict[str, Any] = {"xlabel": "seeds at once", "ylabel": "timesteps/s"}
DRAWINGS: dict[str, tuple[str, dict[str, Any]]] = {
    "speeds": (
        "lines",
        {
            "panels": {
                f"{low:g} to {high:g}": speeds(low, high)
                for low, high in ((108, 276), (110, 190), (9e3, 6e5), (2e4, 7e4), (3e-5, 0.4))
            },
            **AXES,
            "log_x": True,
            "log_y": True,
        },
    ),
    "linear": ("lines", {"panels": {LONG: speeds(-498.9, -69.1)}, **AXES}),
    "one row": (
        "forest",
        {"panels": {LONG: [plots.Difference("5 seeds", 0.1, 0.0, 0.2, "lower")]}},
    ),
    "long label": (  # which moves the axes, and with them their title, to the right
        "forest",
        {"panels": {LONG: [plots.Difference("MountainCarContinuous-v0 " * 2, 0.1, 0.0, 0.2)]}},
    ),
    "two panels": (
        "forest",
        {"panels": {x: [plots.Difference(a, 0.1, 0, 0.2) for a in FIRST] for x in ("AUC", LONG)}},
    ),
    "many names": (
        "lines",
        {
            "panels": {"x": {f"algorithm {i}": plots.Line([0, 1], [0, 1]) for i in range(14)}},
            **AXES,
        },
    ),
}


@pytest.mark.parametrize("name", DRAWINGS)
def test_no_text_is_cut_and_no_two_ticks_are_alike(
    name: str, figures: list[Figure], tmp_path: Path
) -> None:
    kind, data = DRAWINGS[name]
    getattr(plots, kind)(path=tmp_path / "x.svg", **data)
    (figure,) = figures
    assert cut_texts(figure) == []
    assert repeated_ticks(figure) == []


def test_ticks_of_a_logarithmic_axis_are_plain_numbers() -> None:
    numbers = (1e-4, 0.05, 125, 150, 1e3, 2e4, 1.5e6)
    texts = ["1e-4", "0.05", "125", "150", "1k", "20k", "1.5M"]
    assert [plots.tick_text(x) for x in numbers] == texts


def test_strokes_from_ends_to_names_do_not_cross(figures: list[Figure], tmp_path: Path) -> None:
    """Nor do they pass a marker of another name, where many lines end together."""
    x = np.arange(11)
    ends = [-75.0, -148, -89, -140, -100, -125, -155, -77, -170]
    lines = {
        f"part {i}": plots.Line(x, np.interp(x, (0, 10), (-500, y))) for i, y in enumerate(ends)
    }
    plots.lines({"": lines}, tmp_path / "x.svg", xlabel="", ylabel="", size=(3.3, 2.5))
    (axes,) = figures[0].axes
    notes = [text for text in axes.texts if isinstance(text, Annotation)]
    names = [note for note in notes if note.get_text()]
    strokes = [note.arrow_patch for note in notes if not note.get_text()]
    assert len(names) == len(strokes) == len(ends)
    heights = [Text.get_window_extent(name).y0 for name in names]
    assert [*np.argsort(heights)] == [*np.argsort(ends)]
    left = min(Text.get_window_extent(name).x0 for name in names)
    segments = []
    for stroke in strokes:
        assert stroke is not None
        path = stroke.get_path().transformed(stroke.get_transform())
        (_, y0), (x1, y1) = sorted(np.asarray(path.vertices)[[0, -1]].tolist())
        assert x1 < left - 8 * plots.STYLE["figure.dpi"] / 72  # a marker's half is 2 of 5 points
        segments.append((y0, y1))
    for (a0, a1), (b0, b1) in combinations(segments, 2):
        assert (a0 - b0) * (a1 - b1) >= 0


def test_no_two_algorithms_share_a_colour() -> None:
    """Nor dashes with a marker, which tell them apart in grey."""
    looks = plots._looks([*FIRST])
    control = [looks[algo] for algo in FIRST[:14]]
    assert len({look["color"] for look in control}) == 14
    assert len({(look["marker"], str(look["linestyle"])) for look in looks.values()}) == len(FIRST)
