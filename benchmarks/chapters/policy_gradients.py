"""The policy-gradient chapter of the report: REINFORCE weights, A2C's advantages, and no critic.

Reads the runs of `python benchmarks/sweep.py --suite policy-gradient`, those of REINFORCE of
`--suite ablations`, and the measurements of `benchmarks/critic_cost.py`; `report.py` writes the
page that `sections` returns. folder: of the results; figures go into its plots/, tables into its
tables/.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any, Literal

import numpy as np
import pandas as pd

from manyseeds import plots, stats
from manyseeds.benchmarks.chapters.tables import table
from manyseeds.benchmarks.experiments import catalog
from manyseeds.benchmarks.experiments.suite import (
    A2C_ADVANTAGES,
    ABLATED,
    ADVANTAGES,
    BUDGETS,
    LARGE_MINIBATCHES,
    WEIGHTS,
)
from manyseeds.benchmarks.store.names import display
from manyseeds.benchmarks.store.results import (
    Result,
    Rows,
    command_text,
    commands,
    cost_cells,
    parity_of,
    picture,
    verdict_text,
)
from manyseeds.benchmarks.store.stored import find_file, left_out, section_of
from manyseeds.cli import from_preset, identity
from manyseeds.plots import Line
from manyseeds.record import plural
from manyseeds.untrusted import COST, ORIGIN

METRIC_POINTS = 40  # of a curve of metrics
PPO_NAME = "PPO, with a critic"
STDS = {"group": "", "batch": ", std of the batch", "none": ", no std"}


def sections(results: Sequence[Result], folder: Path) -> str:
    """All sections that there are runs for."""
    text = ""
    for title, section in (
        ("REINFORCE weights", weights_section),
        ("GAE, n-step and Monte Carlo advantages", estimators_section),
        ("Advantages without a critic", advantages_section),
        ("Cost of the critic", critic_section),
    ):
        if content := section(results, folder):
            text += f"## {title}\n\n{content}"
    return text


# ---- REINFORCE ------------------------------------------------------------------------

WEIGHT_COLUMNS = (
    "weight",
    "normalised",
    "n",
    "variance of the gradient [95%]",
    "signal / noise [95%]",
)
SCALES = {True: "normalised weights", False: "raw weights"}


def metric_curve(result: Result, name: str) -> pd.DataFrame:
    """Means of a logged metric over `METRIC_POINTS` parts of the training; rows are seeds."""
    rows = metrics_of(result, name)
    total = result.config["total_timesteps"]
    part = np.ceil(rows["timestep"] / total * METRIC_POINTS).clip(1, METRIC_POINTS).rename("part")
    table = rows.groupby(["seed", part])[name].mean().unstack("part")
    table.columns = [int(k * total / METRIC_POINTS) for k in table.columns]
    return table.dropna(axis="columns")


def metrics_of(result: Result, *names: str) -> pd.DataFrame:
    """Some of the logged metrics, of all seeds."""
    rows = result.run.table("metrics.parquet", ("seed", "timestep", *names))
    return rows.drop_duplicates(["seed", "timestep"])


def has_settings(result: Result, **settings: Any) -> bool:
    """Whether a run has its preset with the suite's budget and these settings, and no others."""
    module = catalog.module("algos", result.algo)
    env = result.spec.id
    settings = {"total_timesteps": BUDGETS.get(env), **settings}
    return identity(from_preset(module.Config, module.PRESETS, env, **settings)) == result.config


def mean_curve(result: Result) -> Line:
    """The greedy return."""
    return plots.mean_line(*plots.curve_of(result.algo, result.curve))


def geometric_mean(result: Result, name: str, share: float = 1) -> tuple[Line, str]:
    """A logged metric over the training, and as text its geometric mean over the first share of
    it; both with their intervals."""
    logs = metric_curve(result, name).apply(np.log10)
    line = plots.mean_line(logs.columns, logs.to_numpy())
    end = share * result.timesteps_requested
    early = logs.to_numpy()[:, [float(timestep) <= end for timestep in logs.columns]]
    overall = stats.estimate(early.mean(axis=1), "mean")
    value, low, high = (f"{10**x:.3g}" for x in (overall.value, overall.low, overall.high))
    y, lower, upper = (10 ** np.asarray(x) for x in line[1:4])
    return Line(line.x, y, lower, upper, line.n), f"{value} [{low}, {high}]"


def signal_to_noise(result: Result) -> np.ndarray:
    """Squared length of the mean gradient over the variance, `[S]`, over the training.

    The expected squared length of an estimate is that of its mean plus its variance. Where the
    signal is weak, its estimate may be negative.
    """
    rows = metrics_of(result, "grad_norm", "grad_variance")
    rows["square"] = rows["grad_norm"] ** 2
    sums = rows.groupby("seed")[["grad_variance", "square"]].sum()
    signal = sums["square"] - sums["grad_variance"]
    return (signal / sums["grad_variance"]).to_numpy()


def weights_section(results: Sequence[Result], folder: Path) -> str:
    """REINFORCE's four weights: returns, and the variance of the gradient."""
    env = "CartPole-v1"
    here = [r for r in results if (r.algo, r.spec.id) == ("reinforce", env)]
    rows: Rows = []
    runs = []
    panels: dict[str, dict[str, Line]] = {}
    for normalize, scale in SCALES.items():
        for weight in WEIGHTS:
            found = [
                r for r in here if has_settings(r, weight=weight, normalize_advantage=normalize)
            ]
            if not found:
                continue
            result = found[0]
            with left_out(result.run.path):
                line, variance = geometric_mean(result, "grad_variance")
                ratio = stats.estimate(signal_to_noise(result), "mean").text(2)
                rows.append(
                    (
                        weight,
                        "yes" if normalize else "no",
                        str(len(result.seeds)),
                        variance,
                        ratio,
                    )
                )
                runs.append(result.run)
                panels.setdefault(f"greedy return, {scale}", {})[weight] = mean_curve(result)
                panels.setdefault(f"variance, {scale}", {})[weight] = line
    if not rows:
        return ""
    figure = folder / "plots" / "reinforce.svg"
    plots.lines(
        panels,
        figure,
        xlabel="timesteps per seed",
        ylabel="",
        legend="mean over seeds, 95% interval",
        columns=2,
        log_y=[title for title in panels if title.startswith("variance")],
    )
    return (
        f"REINFORCE on {env}. `--weight` selects the weight of the log-probabilities. Each weight "
        "is trained separately. Scores are on the page of ablations. The variance is that of an "
        "update's gradient before clipping, estimated from its episodes and summed over the "
        "parameters. The table has its geometric mean over the training. Signal / noise is the "
        "squared length of the true gradient divided by that variance, which does not depend on "
        "the scale of the weights. An estimate below 0 means that no signal is detected. "
        "Normalised weights have mean 0 in every update, which acts as a baseline and hides "
        "most of the differences. `--no-normalize-advantage` keeps the raw weights. The weight "
        "Q has a small variance, at the price of the bias of a learned Q network.\n\n"
        f"{table(folder, 'reinforce-weights', WEIGHT_COLUMNS, rows)}\n"
        + picture("Returns and variance of the gradient for four weights", figure)
        + commands(runs)
    )


# ---- A2C ------------------------------------------------------------------------------

ESTIMATOR_COLUMNS = (
    "environment",
    "advantage",
    "n",
    "final, IQM [95%]",
    "failures",
    "final against GAE",
    "AUC, mean [95%]",
    "AUC against GAE",
    "mean squared advantage, first tenth [95%]",
)


def estimator_name(config: dict[str, Any]) -> str:
    """`n-step, n = 5`"""
    if config["advantage"] == "n_step":
        return f"n-step, n = {config['n_steps']}"
    if config["advantage"] == "monte_carlo":
        return "Monte Carlo"
    return f"GAE, lambda {config['gae_lambda']:g}"


def estimators_section(results: Sequence[Result], folder: Path) -> str:
    """A2C's ways to estimate advantages, from long rollouts, and its presets."""
    rows: Rows = []
    runs = []
    panels: dict[str, dict[str, Line]] = {}
    for env in ABLATED:
        plain = catalog.plain_settings("algos", "a2c", env)
        here = [r for r in results if (r.algo, r.spec.id) == ("a2c", env)]
        gae: Result | None = None
        for settings in (*A2C_ADVANTAGES, {}):
            found = [r for r in here if r.config == plain | settings]
            if not found:
                continue
            result = found[0]
            gae = result if settings == A2C_ADVANTAGES[0] else gae
            name = estimator_name(result.config)
            with left_out(result.run.path):
                line, square = geometric_mean(result, "value_loss", share=0.1)
                rows.append(
                    (
                        env,
                        name
                        if settings
                        else f"preset: {name}, {plural(result.config['num_steps'], 'step')}",
                        str(len(result.seeds)),
                        result.text(result.final),
                        result.failures_text(),
                        against(result, gae, "final"),
                        result.text(result.auc, "mean"),
                        against(result, gae, "auc"),
                        square,
                    )
                )
                runs.append(result.run)
                name = name if settings else "the preset"
                panels.setdefault(f"greedy return, {env}", {})[name] = mean_curve(result)
                panels.setdefault(f"mean squared advantage, {env}", {})[name] = line
    if not rows:
        return ""
    squares = [title for title in panels if title.startswith("mean squared")]
    figure = folder / "plots" / "a2c-advantages.svg"
    plots.lines(
        {title: panels[title] for title in sorted(panels, key=squares.__contains__)},
        figure,
        xlabel="timesteps per seed",
        ylabel="",
        legend="mean over seeds, 95% interval",
        log_y=squares,
    )
    return (
        "A2C with each `--advantage`, all from the same rollouts: one environment for 64 steps. "
        "Everything else is the preset, to which the last row of an environment belongs. The other "
        "rows are compared with GAE in long rollouts. The presets play 8 or 16 environments for 5 "
        "or 8 steps, too few to tell the estimators apart: n-step and Monte Carlo returns end with "
        "the rollout, where V stands for the rest, and GAE with lambda 1 is the Monte Carlo "
        "advantage. 64 samples are about as many as an update of the presets has, so the number of "
        "updates is about the same. Nothing was tuned for an estimator. The shape of the rollout "
        "was chosen with GAE on other seeds, since on Pendulum 8 environments for 64 steps leave "
        "too few updates to learn. Lambda 0.95 weights 20 steps on average.\n\n"
        "The critic learns the estimated return, so its loss is the mean squared advantage, nearly "
        "the variance: here a geometric mean over the first tenth of the training, in units of the "
        "rewards as they are trained on. Later it mostly reflects how much a policy has learned. "
        "The explained variance is not shown, since every critic is measured by targets of its "
        "own kind.\n\n"
        "The verdicts are not corrected for multiple comparisons.\n\n"
        f"{table(folder, 'a2c-advantages', ESTIMATOR_COLUMNS, rows)}\n"
        + picture("Returns and mean squared advantages of A2C, by estimator", figure)
        + commands(runs)
    )


def against(result: Result, other: Result | None, measure: Literal["final", "auc"]) -> str:
    """The verdict on a run beside another; empty beside itself or none."""
    if other is None or other is result:
        return ""
    return verdict_text(parity_of(result, other, measure), result.spec)


# ---- GRPO -----------------------------------------------------------------------------

ADVANTAGE_COLUMNS = (
    "environment",
    "advantage",
    "n",
    "final, IQM [95%]",
    "mean [95%]",
    "failures",
    "AUC, mean [95%]",
    "groups without signal, first / second half",
)


def advantage_name(settings: dict[str, Any]) -> str:
    """`return to go, ended peers as 0`"""
    name = settings.get("advantage", "return_to_go").replace("_", " ")
    name += STDS[settings.get("std", "group")]
    name += ", ended peers as 0" if settings.get("peers") == "all" else ""
    return name + (
        f", minibatch {settings['minibatch_size']}" if "minibatch_size" in settings else ""
    )


def groups_without_signal(result: Result) -> str:
    """The share of groups whose advantages are all 0: `12% / 34%` in the halves of the training."""
    share = metric_curve(result, "zero_variance")
    early = np.array(
        [float(timestep) <= result.timesteps_requested / 2 for timestep in share.columns]
    )
    halves = [share.to_numpy()[:, when] for when in (early, ~early)]
    return " / ".join(f"{half.mean():.0%}" for half in halves if half.size)


def advantages_section(results: Sequence[Result], folder: Path) -> str:
    """GRPO's advantages over all environments, beside PPO with the same budget."""
    rows: Rows = []
    panels: dict[str, dict[str, Line]] = {}
    runs = []
    for env in BUDGETS:
        for settings in (*ADVANTAGES, *LARGE_MINIBATCHES, None):
            algo = "ppo" if settings is None else "grpo"
            here = [r for r in results if (r.algo, r.spec.id) == (algo, env)]
            found = [r for r in here if has_settings(r, **(settings or {}))]
            if not found:
                continue
            result = found[0]
            name = PPO_NAME if settings is None else advantage_name(settings)
            with left_out(result.run.path):
                silent = "" if settings is None else groups_without_signal(result)
                rows.append(
                    (
                        env,
                        name,
                        str(len(result.seeds)),
                        result.text(result.final),
                        result.text(result.final, "mean"),
                        result.failures_text(),
                        result.text(result.auc, "mean"),
                        silent,
                    )
                )
                runs.append(result.run)
                if settings not in LARGE_MINIBATCHES:
                    panels.setdefault(env, {})[name] = mean_curve(result)
    if not panels:
        return ""
    figure = folder / "plots" / "advantages.svg"
    plots.lines(
        panels,
        figure,
        xlabel="timesteps per seed",
        ylabel="greedy return",
        legend="mean over seeds, 95% interval",
        columns=2,
    )
    text = (
        "`grpo.py` compares the episodes of a group, which start in the same state. `--advantage` "
        "selects the quantity that is compared, `--peers` the episodes that it is compared with, "
        "and `--std` the standard deviation that it is divided by. All other settings are the "
        "preset's, which was tuned for return to go. Two more runs on CartPole show the effect of "
        "that tuning: with larger minibatches, that is, fewer and less noisy steps on the same "
        "episodes, the advantages that fail with the preset do learn. *Groups without signal* are "
        "those in which all advantages are 0, in the first and in the second half of the training: "
        "either all episodes have reached the maximum return, or the returns have been equal from "
        "the start. On Pendulum no episode ends early, so the choice of peers has no effect."
    )
    if any(row[1] == PPO_NAME for row in rows):
        text += " PPO has its preset and GRPO's budget."
    if any(row[0] == "MountainCar-v0" for row in rows):
        text += (
            " On MountainCar random exploration does not reach the flag: all returns are equal, so "
            "all advantages are 0."
        )
    return (
        f"{text}\n\n{table(folder, 'grpo-advantages', ADVANTAGE_COLUMNS, rows)}\n"
        + picture("Greedy returns with each advantage", figure)
        + commands(runs)
    )


# ---- The critic -----------------------------------------------------------------------

CRITIC_COLUMNS = (
    "environment",
    "algorithm",
    "parameters",
    "optimizer, KiB",
    "peak memory, MiB",
    "s per 1M timesteps",
    "times PPO's",
    "final, mean [95%]",
    "timesteps to threshold",
    "reached by",
)


STORED = {  # critic_cost.json
    **ORIGIN,
    "versions": {"torch": str},
    "seeds": int,
    "measurements": [{"repeat": int, "algo": str, "env": str, "timesteps": float, **COST}],
}


def critic_section(results: Sequence[Result], folder: Path) -> str:
    """PPO against GRPO at the same budget; empty without measurements."""
    path = find_file(folder, "critic_cost.json")
    return section_of(path, STORED, lambda stored: critic_text(stored, results, folder))


def critic_text(stored: dict[str, Any], results: Sequence[Result], folder: Path) -> str:
    """The table of critic_cost.json."""
    rows: Rows = []
    for env in ABLATED:
        seconds: dict[str, list[float]] = {}
        for algo in ("ppo", "grpo"):
            here = [m for m in stored["measurements"] if (m["algo"], m["env"]) == (algo, env)]
            if not here:
                continue
            seconds[algo] = [1e6 * m["learn_s"] / m["timesteps"] for m in here]
            ratios = [x / y for x, y in zip(seconds[algo], seconds["ppo"], strict=True)]
            scores = ["", "", ""]
            for r in results:
                if (r.algo, r.spec.id) == (algo, env) and has_settings(r):
                    scores = [r.text(r.final, "mean"), *r.threshold_texts()]
            rows.append(
                (
                    env,
                    display(algo),
                    *cost_cells(here),
                    f"{median(seconds[algo]):.1f}",
                    f"{median(ratios):.2f} [{min(ratios):.2f}, {max(ratios):.2f}]",
                    *scores,
                )
            )
    repeats = 1 + max(m["repeat"] for m in stored["measurements"])
    return (
        "PPO learns a value function in addition to the policy; GRPO does not, but needs groups of "
        "complete episodes. Both use their presets and the same budget, "
        f"{plural(stored['seeds'], 'seed')} at once on one core, evaluation off; medians of "
        f"{plural(repeats, 'interleaved repeat')}, with the range of the ratio in brackets. "
        "Parameters (as stored in memory, the last layer padded to 16 columns) and optimizer "
        "(gradients and Adam's moments) are per seed, memory is that of all seeds. The presets "
        "differ in more than the critic: epochs, minibatches and the number of episodes per "
        "update.\n\n"
        f"{table(folder, 'critic-cost', CRITIC_COLUMNS, rows)}\n"
        + command_text(stored, stored["machine"]["cpu"], f"torch {stored['versions']['torch']}")
        + "\n\n"
    )
