"""The data of the report's figures, as static/charts.js draws them.

A figure is {kind, ...}; lines and points have lists of numbers of which null is none.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from manyseeds import plots, stats
from manyseeds.benchmarks.chapters.blocks import Figure
from manyseeds.plots import Board, Line, binned

DIGITS = 6  # significant, of every number of a chart


def number(x: Any) -> float | int | None:
    """A number for JSON; None for NaN and infinity."""
    value = float(x)
    if not math.isfinite(value):
        return None
    value = float(f"{value:.{DIGITS}g}")
    return int(value) if value.is_integer() else value


def numbers(values: Iterable[Any] | None) -> list[float | int | None]:
    return [] if values is None else [number(x) for x in values]


def line_json(name: str, line: Line) -> dict[str, Any]:
    """A line with its band, which is empty where it has none."""
    x, y, low, high = (None if part is None else np.asarray(part) for part in line[:4])
    found = {"name": name, "x": numbers(x), "y": numbers(y)}
    return {**found, "low": numbers(low), "high": numbers(high), "n": line.n}


def lines(arguments: dict[str, Any]) -> dict[str, Any]:
    """Of `plots.lines`; names: in the order of the colours."""
    panels, first = arguments["panels"], arguments["first"]
    there = dict.fromkeys(name for group in panels.values() for name in group)
    log_y, floors = arguments["log_y"], arguments["floors"] or {}
    return {
        "panels": [
            {
                "title": title,
                "lines": [line_json(name, line) for name, line in group.items()],
                "log_y": log_y is True or (log_y is not False and title in log_y),
                "floor": floors.get(title),
            }
            for title, group in panels.items()
        ],
        "names": list(dict.fromkeys((*first, *there))),
        "log_x": arguments["log_x"],
        "share_y": arguments["share_y"],
        "threshold": arguments["threshold"],
        **{name: arguments[name] or "" for name in ("xlabel", "ylabel", "legend")},
    }


def scores_by_value(arguments: dict[str, Any]) -> dict[str, Any]:
    """Of `plots.scores_by_value`: the seeds, and their IQM with its interval."""
    panels = []
    for title, groups in arguments["panels"].items():
        values = list(dict.fromkeys(value for group in groups.values() for value in group))
        points = []
        for name, group in groups.items():
            for value, scores in group.items():
                if len(scores):
                    found = stats.estimate(scores)
                    ends = {"y": found.value, "low": found.low, "high": found.high}
                    point = {"name": name, "value": value, "seeds": numbers(scores)}
                    points.append(point | {k: number(v) for k, v in ends.items()})
        panels.append({"title": title, "values": values, "points": points})
    names = dict.fromkeys(name for groups in arguments["panels"].values() for name in groups)
    return {
        "panels": panels,
        "names": list(names),
        "log_y": arguments["log_y"],
        "legend": "IQM over seeds, 95% interval; points are seeds",
        **{name: arguments[name] for name in ("xlabel", "ylabel")},
    }


def scatter_grid(arguments: dict[str, Any]) -> dict[str, Any]:
    """Of `plots.scatter_grid`: the configurations, and means of equal parts of them."""
    panels = []
    for panel in arguments["panels"]:
        x, words, line = binned(panel.values, panel.scores, arguments["bins"])
        panels.append(
            {
                "row": panel.row,
                "name": panel.name,
                "x": numbers(x),
                "y": numbers(panel.scores),
                "words": words,
                "log": panel.log,
                "line": line_json("", line),
            }
        )
    return {"panels": panels, "ylabel": arguments["ylabel"], "legend": arguments["legend"]}


def plane(arguments: dict[str, Any]) -> dict[str, Any]:
    """Of `plots.plane`."""
    points = [
        {
            "name": name,
            "x": numbers((x.value, x.low, x.high)),
            "y": numbers((y.value, y.low, y.high)),
        }
        for name, (x, y) in arguments["places"].items()
    ]
    return {"points": points, **{name: arguments[name] for name in ("xlabel", "ylabel")}}


def forest(arguments: dict[str, Any]) -> dict[str, Any]:
    """Of `plots.forest`: value, low and high are null where there is no difference, margin where
    none counts as equivalent."""
    panels = [
        {
            "title": title,
            "rows": [
                row._asdict() | {k: number(getattr(row, k)) for k in ("value", "low", "high")}
                for row in rows
            ],
        }
        for title, rows in arguments["panels"].items()
    ]
    return {"panels": panels, "xlabel": arguments["xlabel"]}


def boards(arguments: dict[str, Any]) -> dict[str, Any]:
    """Of `plots.boards`: the steps of a plan, each with the value and actions of every state."""
    layout = arguments["layout"]
    return {
        "panels": [{"title": title, "states": states} for title, states in layout.panels.items()],
        "marks": {str(state): mark for state, mark in layout.marks.items()},
        "steps": [board_json(board, layout.actions) for board in arguments["pictures"]],
    }


def board_json(board: Board, signs: Sequence[str]) -> dict[str, Any]:
    """A step: values, the signs of all greedy actions, and the states that are over."""
    best = board.best
    if best is None:
        best = np.eye(len(signs), dtype=bool)[board.actions]
    return {
        "title": board.title,
        "values": numbers(board.values),
        "actions": ["".join(signs[a] for a in np.flatnonzero(row).tolist()) for row in best],
        "ends": np.flatnonzero(board.ends).tolist(),
    }


KINDS = {
    "lines": lines,
    "scores_by_value": scores_by_value,
    "scatter_grid": scatter_grid,
    "plane": plane,
    "forest": forest,
    "boards": boards,
}


def figure_json(figure: Figure) -> dict[str, Any]:
    """The data of a figure, with what `manyseeds.plots` takes where a chapter gives nothing."""
    bound = inspect.signature(getattr(plots, figure.kind)).bind(path="", **figure.data)
    bound.apply_defaults()
    return {"kind": figure.kind, **KINDS[figure.kind](bound.arguments)}
