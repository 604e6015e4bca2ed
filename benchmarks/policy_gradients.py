"""The policy-gradient chapter of the report: what to weight with, with a critic and without one.

Reads what `python benchmarks/sweep.py --suite policy-gradient` and `benchmarks/critic_cost.py` have
left; `report.py` writes the sections that these functions return, and their figures.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pandas as pd

from benchmarks.compare import Result, Rows, commands, markdown_table
from benchmarks.harness import plots, stats
from benchmarks.harness.plots import Line
from benchmarks.suite import ADVANTAGES, BUDGETS, WEIGHTS

POINTS = 40  # of a curve of metrics
NAMES = {  # of GRPO's advantages, as the figures call them
    "return_to_go": "return-to-go",
    "outcome": "outcome",
    "process": "process",
}
STDS = {"group": "", "batch": ", std of the batch", "none": ", no std"}


def sections(results: Sequence[Result], folder: Path) -> str:
    """All sections that there are runs for; figures go into folder/plots."""
    text = ""
    for title, section in (
        ("What to weight with", weights_section),
        ("Advantages without a critic", advantages_section),
        ("What the critic costs", critic_section),
    ):
        if content := section(results, folder):
            text += f"## {title}\n\n{content}"
    return text


def mean_curve(x: Any, curves: np.ndarray) -> Line:
    """Mean over seeds with its interval; curves [S, K]."""
    points = [stats.estimate(column, "mean", resamples=2000) for column in curves.T]
    bounds = zip(*[(p.value, p.low, p.high) for p in points], strict=True)
    return Line(np.asarray(x), *bounds)


# ---- REINFORCE ------------------------------------------------------------------------

WEIGHT_COLUMNS = (
    "weight",
    "n",
    "final, IQM [95%]",
    "AUC, mean [95%]",
    "variance of the gradient / its square",
    "variance, geometric mean [95%]",
)


def metric_curve(result: Result, name: str) -> pd.DataFrame:
    """A logged metric, its mean in each of `POINTS` parts of the training; rows are seeds."""
    frames = [pd.read_parquet(part / "metrics.parquet") for part in result.run.parts()]
    rows = pd.concat(frames, ignore_index=True).drop_duplicates(["seed", "timestep"])
    total = result.config["total_timesteps"]
    part = np.ceil(rows["timestep"] / total * POINTS).clip(1, POINTS).rename("part")
    table = rows.groupby(["seed", part])[name].mean().unstack("part")
    table.columns = [int(k * total / POINTS) for k in table.columns]
    return table


def weights_section(results: Sequence[Result], folder: Path) -> str:
    """REINFORCE's four weights: returns, and the variance of the gradient."""
    env = "CartPole-v1"
    plain = BUDGETS[env]
    found = {
        r.config["weight"]: r
        for r in results
        if (r.algo, r.spec.id, r.config.get("total_timesteps")) == ("reinforce", env, plain)
    }
    if len(found) < 2:
        return ""
    rows: Rows = []
    panels: dict[str, dict[str, Line]] = {"greedy return": {}, "variance of the gradient": {}}
    for weight in (name for name in WEIGHTS if name in found):
        result = found[weight]
        x, curves = plots.curve_of(weight, result.curve)
        panels["greedy return"][weight] = mean_curve(x, curves)
        variance = metric_curve(result, "grad_variance")
        norm = metric_curve(result, "grad_norm")
        logs = variance.apply(np.log10).dropna(axis="columns")
        line = mean_curve(logs.columns, logs.to_numpy())
        panels["variance of the gradient"][weight] = Line(
            line.x, *(10 ** np.asarray(y) for y in (line.y, line.low, line.high))
        )
        low = stats.estimate(logs.mean(axis="columns").to_numpy(), "mean")
        ratio = np.nanmedian(variance / norm**2)
        rows.append(
            (
                weight,
                str(len(result.seeds)),
                result.text(result.final),
                result.text(result.auc, "mean"),
                f"{ratio:.2f}",
                f"{10**low.value:.2e} [{10**low.low:.2e}, {10**low.high:.2e}]",
            )
        )
    plots.lines(
        panels,
        folder / "plots" / "reinforce.svg",
        xlabel="timesteps per seed",
        ylabel="",
        legend="mean over seeds, 95% interval",
        log_y=("variance of the gradient",),
    )
    return (
        f"REINFORCE on {env}, the weight of the log-probabilities chosen by `--weight`. The "
        "variance is that of an update's gradient, estimated from its episodes, summed over the "
        "parameters, before clipping. Weights are normalised over each update, so that variances "
        "are on one scale; the ratio to the squared length of the gradient does not depend on the "
        "scale at all.\n\n"
        f"{markdown_table(WEIGHT_COLUMNS, rows)}\n"
        "![Returns and variance of the gradient for four weights](plots/reinforce.svg)\n\n"
        + commands([found[name].run for name in WEIGHTS if name in found])
    )


# ---- GRPO -----------------------------------------------------------------------------

ADVANTAGE_COLUMNS = (
    "environment",
    "advantage",
    "n",
    "final, IQM [95%]",
    "mean [95%]",
    "failures",
    "AUC, mean [95%]",
    "groups left out",
)


def advantage_name(config: dict[str, Any]) -> str:
    """`return-to-go, ended peers as 0`"""
    name = NAMES[config["advantage"]] + STDS[config["std"]]
    return name + (", ended peers as 0" if config["peers"] == "all" else "")


def advantages_section(results: Sequence[Result], folder: Path) -> str:
    """GRPO's advantages over all environments, beside PPO with the same budget."""
    rows: Rows = []
    panels: dict[str, dict[str, Line]] = {}
    runs = []
    here = [r for r in results if r.algo == "grpo" and is_of_the_ablation(r)]
    for env, budget in BUDGETS.items():
        ours = [r for r in here if r.spec.id == env]
        if not ours:
            continue
        ours.sort(key=lambda r: order_of(r.config))
        peers = [
            r for r in results if (r.algo, r.spec.id, r.timesteps_asked) == ("ppo", env, budget)
        ]
        for result in (*ours, *peers):
            name = "PPO, with a critic" if result in peers else advantage_name(result.config)
            x, curves = plots.curve_of(name, result.curve)
            panels.setdefault(env, {})[name] = mean_curve(x, curves)
            left_out = ""
            if result not in peers:
                left_out = f"{np.nanmean(metric_curve(result, 'zero_variance')):.0%}"
            rows.append(
                (
                    env,
                    name,
                    str(len(result.seeds)),
                    result.text(result.final),
                    result.text(result.final, "mean"),
                    f"{len(result.failures)} of {len(result.seeds)}",
                    result.text(result.auc, "mean"),
                    left_out,
                )
            )
            runs.append(result.run)
    if not rows:
        return ""
    plots.lines(
        panels,
        folder / "plots" / "advantages.svg",
        xlabel="timesteps per seed",
        ylabel="greedy return",
        legend="mean over seeds, 95% interval",
        columns=2,
    )
    return (
        "`grpo.py` compares the episodes of a group that begin in one state; `--advantage`, "
        "`--peers` and `--std` choose what of them, with whom, and on what scale. PPO has its "
        "preset and GRPO's budget. *Groups left out* are those in which all advantages were 0, the "
        "mean over training. On MountainCar no episode of chance reaches the flag: every return is "
        "-200, and nothing can be compared.\n\n"
        f"{markdown_table(ADVANTAGE_COLUMNS, rows)}\n"
        "![Greedy returns with each advantage](plots/advantages.svg)\n\n" + commands(runs)
    )


def settings_of(config: dict[str, Any]) -> dict[str, Any]:
    """What of the advantage differs from the default."""
    default = {"advantage": "return_to_go", "peers": "alive", "std": "group"}
    return {name: config[name] for name, value in default.items() if config[name] != value}


def is_of_the_ablation(result: Result) -> bool:
    """Whether a run of GRPO has its preset, but for the advantage, and the suite's budget."""
    from algos import grpo
    from benchmarks.harness.cli import from_preset, identity

    settings, env = settings_of(result.config), result.spec.id
    budget = {"total_timesteps": BUDGETS.get(env)}
    wanted = from_preset(grpo.Config, grpo.PRESETS, env, **settings, **budget)
    return settings in ADVANTAGES and identity(wanted) == result.config


def order_of(config: dict[str, Any]) -> int:
    """The place in the suite's list."""
    return ADVANTAGES.index(settings_of(config))


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


def critic_section(results: Sequence[Result], folder: Path) -> str:
    """PPO against GRPO at the same budget; empty without measurements."""
    path = folder / "critic_cost.json"
    if not path.exists():
        return ""
    stored = json.loads(path.read_text())
    rows: Rows = []
    for env, budget in BUDGETS.items():
        seconds: dict[str, list[float]] = {}
        for algo in ("ppo", "grpo"):
            here = [m for m in stored["measurements"] if (m["algo"], m["env"]) == (algo, env)]
            if not here:
                continue
            seconds[algo] = [1e6 * m["learn_s"] / m["timesteps"] for m in here]
            ratios = [x / y for x, y in zip(seconds[algo], seconds["ppo"], strict=True)]
            scores = ["", "", ""]
            for r in results:
                if (r.algo, r.spec.id, r.timesteps_asked) != (algo, env, budget):
                    continue
                if algo == "grpo" and (not is_of_the_ablation(r) or settings_of(r.config)):
                    continue
                scores = [r.text(r.final, "mean"), *r.threshold_texts()]
            rows.append(
                (
                    env,
                    algo,
                    f"{median(m['parameters'] for m in here):,.0f}",
                    f"{median(m['optimizer_bytes'] for m in here) / 2**10:,.0f}",
                    f"{median(m['memory'] for m in here) / 2**20:,.0f}",
                    f"{median(seconds[algo]):.1f}",
                    f"{median(ratios):.2f} [{min(ratios):.2f}, {max(ratios):.2f}]",
                    *scores,
                )
            )
    machine, code = stored["machine"], stored["code"]
    repeats = 1 + max(m["repeat"] for m in stored["measurements"])
    return (
        "PPO learns a value function beside the policy; GRPO does without, and pays with episodes "
        "played to their ends in groups. Both with their presets and the same budget, "
        f"{stored['seeds']} seeds at once on one core, evaluation off; medians of {repeats} "
        "interleaved repeats, the range of the ratio in brackets. Parameters and optimizer "
        "(gradients and Adam's moments) per seed, memory of all seeds. The presets differ in more "
        "than the critic: epochs, minibatches, how many episodes an update has.\n\n"
        f"{markdown_table(CRITIC_COLUMNS, rows)}\n"
        f"Command: `{stored['command']}`, commit {code['commit'] or 'not recorded'}, "
        f"{machine['cpu']}, torch {stored['versions']['torch']}.\n\n"
    )
