"""The pages of tabular methods: planning, prediction, and control along the cliff.

Reads the runs of `python benchmarks/sweep.py --suite tabular`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from manyseeds import envs, plots, stats
from manyseeds.benchmarks.chapters.blocks import (
    Block,
    Claim,
    Code,
    Figure,
    Outcome,
    Table,
    Text,
    curves,
    folded_if_long,
)
from manyseeds.benchmarks.chapters.differences import claim_word, lies_above
from manyseeds.benchmarks.chapters.origins import commands
from manyseeds.benchmarks.store.names import display
from manyseeds.benchmarks.store.stored import StoredRun, file_name, left_out
from manyseeds.errors import printable
from manyseeds.plots import Board, Line
from manyseeds.record import plural
from manyseeds.runs import prediction as predicting
from manyseeds.runs.planning import Replay
from manyseeds.stats import Estimate, Floats

Rows = list[tuple[str, ...]]
Panels = dict[str, dict[str, Line]]
BOTH = ("policy_iteration", "value_iteration")
WINDOWS = 40  # points of a curve of training returns


# ---- Planning -------------------------------------------------------------------------

PLANNING = (
    *("environment", "gamma", "policy iteration: policies", "residual", "value iteration: sweeps"),
    *("residual", "largest difference of values", "start value", "return", "reference"),
)


class Planned(NamedTuple):
    """A planning run."""

    run: StoredRun
    replay: Replay
    residuals: Floats  # of its sweeps


def planning(runs: Sequence[StoredRun]) -> Iterator[Block]:
    """Iterations and residuals against gamma, and the plans; nothing without such runs."""
    found: dict[tuple[str, float], dict[str, Planned]] = {}
    for run in runs:
        with left_out(run.path):
            replay = Replay.of(run.parts[0])
            residuals = np.array([sweep.residual for sweep in replay.sweeps], dtype=np.float64)
            sides = found.setdefault((run.env, float(run.config["gamma"])), {})
            sides[run.algo] = Planned(run, replay, residuals)
    if not found:
        return
    rows: Rows = []
    panels: Panels = {}
    apart: list[float] = []  # the largest difference of both sides' values, of every pair
    for (env, gamma), sides in sorted(found.items()):
        summaries = {algo: plan.run.summaries[0] for algo, plan in sides.items()}
        cells = []
        for algo, count in zip(BOTH, ("iterations", "sweeps"), strict=True):
            summary = summaries.get(algo)
            cells += [str(summary[count]), f"{summary['residual']:.0e}"] if summary else ["", ""]
        values = [np.array(summary["values"]) for summary in summaries.values()]
        comparable = len(values) == 2 and len(values[0]) == len(values[1]) > 0
        if comparable:
            apart.append(np.abs(values[0] - values[1]).max())
        last = next(iter(summaries.values()))
        reference = envs.NATIVE[env]().spec.reference_score if env in envs.NATIVE else None
        cells += [f"{apart[-1]:.0e}" if comparable else "", f"{last['start_value']:.4f}"]
        returns = " / ".join(sorted({f"{s['score']:.3f}" for s in summaries.values()}))
        known = "" if reference is None else f"{reference:g}"
        rows.append((env, f"{gamma:g}", *cells, returns, known))
        if "value_iteration" in sides:
            y = sides["value_iteration"].residuals
            y[y == 0] = np.finfo(np.float64).tiny  # no change at all: the line falls
            panels.setdefault(printable(env), {})[f"gamma {gamma:g}"] = Line(np.arange(len(y)), y)
    if apart:
        yield Outcome(
            "The values of policy iteration and of value iteration differ by at most "
            f"{max(apart):.0e}, over {plural(len(apart), 'pair')} of an environment and gamma."
        )
    if panels:
        label = "Bellman residual of value iteration over sweeps"
        axes = {"xlabel": "sweep", "ylabel": "Bellman residual", "legend": "value iteration"}
        more = {"log_y": True, "columns": 2, "floors": dict.fromkeys(panels, 1e-12)}
        yield Figure("value_iteration", label, "lines", {"panels": panels, **axes, **more})
    yield Text(
        Code("policy_iteration.py"),
        " and ",
        Code("value_iteration.py"),
        " on the exact model, until every value is within 1e-10 of the optimum (relative where "
        "values are above 1). The residual is the Bellman residual, the largest change of a value "
        "by another sweep. The return is that of the greedy policy, undiscounted and under the "
        "time limit; the optimal policy for a small gamma may not be optimal under the time limit.",
    )
    yield folded_if_long("Iterations, residuals and returns", Table("planning", PLANNING, rows))
    for algo in BOTH:
        if plan := headline([sides[algo] for sides in found.values() if algo in sides]):
            yield from plan_figure(algo, plan)
    yield from commands([plan.run for sides in found.values() for plan in sides.values()])


def plan_figure(algo: str, plan: Planned) -> list[Block]:
    """The values and greedy actions of every step; nothing of a record without steps."""
    run, replay, _ = plan
    with left_out(run.path):
        steps = replay.steps
        if algo == "value_iteration":
            steps = steps[1:]  # sweep 0 is all zeros
        pictures = []
        for board in map(replay.board, steps):
            title = printable(board.title.replace(algo, display(algo)))
            best = greedy_actions(run.env, replay.gamma, board)
            pictures.append(board._replace(title=title, best=best))
        if not pictures:
            raise ValueError("has no steps to draw")
        label = f"Values and greedy actions of {display(algo)}"
        data = {"pictures": pictures, "layout": replay.layout}
        return [Figure(f"{algo}-{run.env}", label, "boards", data)]
    return []


def headline(plans: Sequence[Planned]) -> Planned | None:
    """The run of the plain command: Gridworld with the preset's gamma, the default cells."""
    wanted = {"gamma": 0.9, "goal": [7, 7], "trap": [4, 4], "walls": []}
    for plan in plans:
        settings = {name: plan.run.config.get(name) for name in wanted}
        if plan.run.env == "Gridworld-v0" and settings == wanted:
            return plan
    return None


def greedy_actions(env_id: str, gamma: float, board: Board) -> NDArray[np.bool_]:
    """All greedy actions for the values of a board, `[X, A]`, those that tie included.

    Recorded values have six significant digits. Where the recorded action is greedy for other
    values, as before an improvement of the policy, it stands alone.
    """
    env = envs.NATIVE[env_id]()
    assert isinstance(env, envs.TabularEnv)
    P, R = env.P.numpy(), env.R.numpy()
    q = (P * (R + gamma * np.where(board.ends, 0.0, board.values))).sum(-1).T  # [X, A]
    best = q >= q.max(axis=1, keepdims=True) - 1e-5 * np.abs(q).max()
    recorded = np.eye(q.shape[1], dtype=bool)[board.actions]
    return np.where((best & recorded).any(axis=1, keepdims=True), best, recorded)


# ---- Prediction -----------------------------------------------------------------------

PREDICTION = (
    *("environment", "method", "alpha", "n", "RMS error, first 10 episodes"),
    *("final RMS error [95%]", "bias", "standard deviation", "bias by chance"),
)
SAME_ALPHA = 0.1  # of the figure that shows bias and variance


def method(config: dict[str, Any]) -> str:
    """What a configuration is called: `every-visit MC`, `4-step TD`, `TD(0.8)`."""
    if "visits" in config:
        return f"{config['visits']}-visit MC"
    if config["n_steps"] > 1:
        return f"{config['n_steps']}-step TD"
    return f"TD({config['trace_decay']:g})"


def didactic_order(config: dict[str, Any]) -> tuple[float, ...]:
    """Monte Carlo, TD(0), n-step TD, TD(lambda); small step sizes first."""
    visits = ("first", "every").index(config["visits"]) if "visits" in config else 2
    numbers = config.get("trace_decay", 0.0), config.get("n_steps", 0), config["learning_rate"]
    return (visits, *map(float, numbers))  # somebody's may be no numbers: told of that run alone


def error_text(errors: Floats) -> str:
    """The mean of errors `[S]` with its interval, or how many seeds diverged."""
    broken = np.count_nonzero(~np.isfinite(errors))
    if broken:
        return f"infinite, {broken} of {plural(len(errors), 'seed')} diverged"
    return stats.estimate(errors, "mean").text(3)


def prediction(runs: Sequence[StoredRun]) -> Iterator[Block]:
    """Errors of all methods and step sizes, and the split into bias and variance; nothing without
    such runs."""
    if not runs:
        return
    rows: Rows = []
    figures: list[Figure] = []
    best: dict[str, str] = {}  # by environment, the method with the smallest final error
    for env in dict.fromkeys(run.env for run in runs):
        errors: Panels = {}
        split: Panels = {"bias": {}, "standard deviation": {}}
        finals: dict[str, Estimate] = {}
        here = []
        for run in (run for run in runs if run.env == env):
            with left_out(run.path):
                here.append((didactic_order(run.config), run))
        for _, run in sorted(here, key=lambda x: x[0]):
            with left_out(run.path):
                found = predicting.load_predictions(run.parts, run.seeds)
                alpha = f"{run.config['learning_rate']:g}" if run.config["learning_rate"] else "1/N"
                name, n = method(run.config), len(run.seeds)
                bias, std = np.sqrt(found.bias_squared), np.sqrt(found.variance)
                spread = (bias[-1], std[-1], std[-1] / math.sqrt(n - 1) if n > 1 else None)
                texts = ("" if x is None or found.diverged else f"{x:.3f}" for x in spread)
                both = (error_text(x) for x in (found.early_errors, found.errors[:, -1]))
                rows.append((env, name, alpha, str(n), *both, *texts))
                if found.diverged:
                    continue  # no mean to draw
                finals[f"{name}, alpha {alpha}"] = stats.estimate(found.errors[:, -1], "mean")
                line = plots.mean_line(found.episodes, found.errors)
                errors.setdefault(printable(name), {})[f"alpha {alpha}"] = line
                if run.config["learning_rate"] == SAME_ALPHA:
                    split["bias"][printable(name)] = Line(found.episodes, bias, n=n)
                    split["standard deviation"][printable(name)] = Line(found.episodes, std, n=n)
        if len(finals) > 1:
            first = min(finals, key=lambda name: finals[name].value)
            best[env] = f"{first} on {env}, {finals[first].text(3)}"
        figures += error_figures(env, errors, split)
    if best:
        yield Outcome(f"The mean final error is smallest with {' and with '.join(best.values())}.")
    yield from figures
    yield Text(
        Code("monte_carlo.py"),
        " and ",
        Code("td_prediction.py"),
        ": estimated values of the random policy against the exact ones, over the states that it "
        "visits. The RMS error is computed per seed; the table has its mean over n seeds with the "
        "interval over seeds. Bias and standard deviation decompose the final error: the error of "
        "the mean of the seeds' values, and the deviation of the seeds from that mean, both as "
        "root mean squares over states. The bias by chance is that expected of n unbiased seeds, "
        "standard deviation / sqrt(n - 1).",
    )
    yield Text(
        "The bias of the initial values V = 0 vanishes; a constant alpha leaves a bias of the "
        "order of alpha, because the steps of an episode are correlated. With alpha 1/N the "
        "estimate is the mean of all returns. A run with a diverged seed has an infinite error, "
        "and no line in the figures."
    )
    table = Table("prediction", PREDICTION, rows)
    yield folded_if_long("Errors of every method and step size", table)
    yield from commands(runs)


def error_figures(env: str, errors: Panels, split: Panels) -> Iterator[Figure]:
    """The errors of every method, and what they consist of, where any line can be drawn."""
    same = f"alpha {SAME_ALPHA:g}"
    for name, what, panels, ylabel, legend in (
        ("errors", "RMS errors", errors, "RMS error", "mean over seeds, 95% interval"),
        ("bias-variance", "Bias and standard deviation", split, "error of the values", same),
    ):
        if panels and all(panels.values()):
            label = f"{what} of predicted values on {printable(env)}"
            file = f"prediction-{name}-{file_name(env)}"
            yield curves(file, label, panels, "episodes", ylabel, legend=legend, share_y=True)


# ---- Along the cliff ------------------------------------------------------------------

CLIFF = "CliffWalking-v1"


def curve_of(run: StoredRun) -> pd.DataFrame:
    """All rows of a control run."""
    numbers = ("seed", "timestep", "return_mean", "episodes")
    rows = run.table("curve.parquet", numbers, ("mode",))
    return rows.drop_duplicates(["seed", "timestep", "mode", "episodes"])


def online_returns(run: StoredRun) -> pd.DataFrame:
    """Mean return of the episodes that ended in each of `WINDOWS` parts of the training.

    Rows are seeds, columns the timesteps at which the parts end.
    """
    rows = curve_of(run).query("mode == 'train'")
    width = math.ceil(rows["timestep"].max() / WINDOWS)
    part = (np.ceil(rows["timestep"] / width) * width).astype(int).rename("part")
    return rows.groupby(["seed", part])["return_mean"].mean().unstack("part")


def cliff(found: Sequence[StoredRun]) -> Iterator[Block]:
    """Returns on CliffWalking: online, while exploring, and of the greedy policy; nothing without
    two of the algorithms."""
    runs: dict[str, StoredRun] = {}
    for run in found:
        if run.env_name == CLIFF and run.algo in ("q_learning", "sarsa"):
            name = display(run.algo)
            runs[f"Expected {name}" if run.config.get("expected") else name] = run
    if len(runs) < 2:
        return
    returns: dict[str, tuple[Estimate, Estimate]] = {}  # online and greedy, at the end
    rows: Rows = []
    panels: Panels = {"online, while exploring": {}, "greedy": {}}
    for name in sorted(runs, key=("Q-learning", "SARSA", "Expected SARSA").index):
        run = runs[name]
        with left_out(run.path):
            online = online_returns(run)
            greedy = curve_of(run).query("mode == 'greedy'").drop_duplicates(["seed", "timestep"])
            final = greedy.pivot(index="seed", columns="timestep", values="return_mean")
            whole = [frame.dropna(axis="columns") for frame in (online, final)]
            lines = [plots.mean_line(frame.columns, frame.to_numpy()) for frame in whole]
            late = online.iloc[:, -WINDOWS // 10 :].mean(axis="columns")
            ends = stats.estimate(late, "mean"), stats.estimate(final.iloc[:, -1], "mean")
            rows.append((name, str(len(online)), *(end.text() for end in ends)))
            returns[name] = ends
            for title, line in zip(panels, lines, strict=True):
                panels[title][name] = line
    if not rows:
        return
    label = "Online and greedy returns on CliffWalking"
    floors = dict(zip(panels, (-100.0, -40.0), strict=True))
    figure = curves("cliff", label, panels, floors=floors, ylabel="return")
    about = Text(
        "The shortest path, return -13, runs along the edge, the safest, -17, along the opposite "
        "wall. Exact returns with exploration, epsilon 0.1: -45.8 for the edge, -20.7 for the row "
        "above it, whose greedy return is -15, and -22.3 for the safest path. Expected SARSA has "
        "SARSA's target without the noise of the next action."
    )
    measures = ("online return, last tenth, mean [95%]", "final greedy return, mean [95%]")
    table = Table("cliff", ("algorithm", "n", *measures), rows)
    yield cliff_claim(returns, figure, [table, about, *commands([*runs.values()])])


def cliff_claim(
    returns: Mapping[str, tuple[Estimate, Estimate]], figure: Figure, details: Sequence[Block]
) -> Claim:
    """Sutton and Barto's claim, from the online and greedy returns by algorithm."""
    answers, number = [], ""
    if "SARSA" in returns and "Q-learning" in returns:
        (online, greedy), (q_online, q_greedy) = returns["SARSA"], returns["Q-learning"]
        answers = [lies_above(online, q_online), lies_above(q_greedy, greedy)]
        number = f"online return {online.text()} beside Q-learning's {q_online.text()}"
    return Claim(
        "SARSA has the higher return while it explores, Q-learning the better greedy policy: it "
        "learns the path along the edge, where exploration makes it fall.",
        claim_word(answers),
        number,
        figure,
        details,
        "Sutton and Barto, 2018, example 6.6",
    )
