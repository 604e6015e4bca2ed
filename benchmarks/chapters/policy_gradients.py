"""The page of policy gradients: REINFORCE weights, A2C's advantages, and no critic.

Reads the runs of `python benchmarks/sweep.py --suite policy-gradient`, those of REINFORCE of
`--suite ablations`, and the measurements of `benchmarks/critic_cost.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pandas as pd

from manyseeds import plots, stats
from manyseeds.benchmarks.chapters.blocks import (
    OURS,
    Block,
    Claim,
    Code,
    Link,
    Table,
    Text,
    curves,
    folded_if_long,
    sections,
)
from manyseeds.benchmarks.chapters.differences import (
    CLAIM_RULE,
    HOLM,
    LEVEL,
    Answer,
    Verdicts,
    answer,
    answered,
    corrected,
    lies_above,
    p_of,
    tested,
    verdict_forest,
    with_p,
)
from manyseeds.benchmarks.chapters.environment_pages import TO_THRESHOLD, core_seconds_note
from manyseeds.benchmarks.chapters.origins import command_text, commands
from manyseeds.benchmarks.experiments import catalog, suite
from manyseeds.benchmarks.measurements.critic_cost import STORED
from manyseeds.benchmarks.measurements.measure import cost_cells
from manyseeds.benchmarks.store.comparison import MEASURES
from manyseeds.benchmarks.store.names import display
from manyseeds.benchmarks.store.results import Result, Scores, parity_of, verdict_text
from manyseeds.benchmarks.store.stored import find_file, left_out, section_of
from manyseeds.cli import from_preset, identity
from manyseeds.plots import Line
from manyseeds.record import plural
from manyseeds.stats import Floats, Parity

Rows = list[tuple[str, ...]]
METRIC_POINTS = 40  # of a curve of metrics
PPO_NAME = "PPO, with a critic"
GRPO = "Shao et al., 2024, arXiv 2402.03300"
STDS = {"group": "", "batch": ", std of the batch", "none": ", no std"}


def page(results: Sequence[Result], folder: Path) -> Iterator[Block]:
    """All sections that there are runs for. folder: of the results, with the measurements."""
    titled = {
        "REINFORCE weights": weights_section(results),
        "GAE, n-step and Monte Carlo advantages": estimators_section(results),
        "Advantages without a critic": advantages_section(results),
        "Cost of the critic": critic_section(results, folder),
    }
    if blocks := corrected(sections(titled)):
        yield Text(
            f"{CLAIM_RULE} The details of a claim say when a comparison is true. {HOLM} The tests "
            "on signal / noise are corrected with them. Other verdicts in the tables decide "
            "nothing and are single tests. Costs are compared by their ranges."
        )
        yield from blocks


# ---- REINFORCE ------------------------------------------------------------------------

WEIGHT_COLUMNS = (
    *("weight", "normalised", "n"),
    *("variance of the gradient [95%]", "signal / noise [95%]"),
)
# The first of each pair has the less noisy gradient.
LESS_NOISE = (("return_to_go", "total_return"), ("baseline", "return_to_go"), ("q", "return_to_go"))
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


def run_with(results: Sequence[Result], algo: str, env: str, **settings: Any) -> Result | None:
    """The run that has its preset with the suite's budget and these settings, and no others."""
    module = catalog.module("algos", algo)
    settings = {"total_timesteps": suite.BUDGETS.get(env), **settings}
    wanted = identity(from_preset(module.Config, module.PRESETS, env, **settings))
    return next((r for r in results if (r.algo, r.spec.id, r.config) == (algo, env, wanted)), None)


def mean_curve(result: Result) -> Line:
    """The greedy return."""
    return plots.mean_line(*plots.curve_of(result.algo, result.curve))


def geometric_mean(result: Result, name: str, share: float = 1) -> tuple[Line, str]:
    """A logged metric over the training, and as text its geometric mean over the first share of
    it; both with their intervals. Without the parts of the training in which it is 0 of a seed."""
    values = metric_curve(result, name)
    logs = values.loc[:, (values > 0).all()].apply(np.log10)
    line = plots.mean_line(logs.columns, logs.to_numpy())
    end = share * result.timesteps_requested
    early = logs.to_numpy()[:, [float(timestep) <= end for timestep in logs.columns]]
    overall = stats.estimate(early.mean(axis=1), "mean")
    value, low, high = (f"{10**x:.3g}" for x in (overall.value, overall.low, overall.high))
    y, lower, upper = (10 ** np.asarray(x) for x in line[1:4])
    return Line(line.x, y, lower, upper, line.n), f"{value} [{low}, {high}]"


def signal_to_noise(result: Result) -> Floats:
    """Squared length of the mean gradient over the variance, `[S]`, over the training.

    The expected squared length of an estimate is that of its mean plus its variance. Where the
    signal is weak, its estimate may be negative.
    """
    rows = metrics_of(result, "grad_norm", "grad_variance")
    rows["square"] = rows["grad_norm"] ** 2
    sums = rows.groupby("seed")[["grad_variance", "square"]].sum()
    signal = sums["square"] - sums["grad_variance"]
    return (signal / sums["grad_variance"]).to_numpy()


def weights_section(results: Sequence[Result]) -> Iterator[Block]:
    """REINFORCE's four weights: returns, and the variance of the gradient."""
    env = "CartPole-v1"
    rows: Rows = []
    runs = []
    panels: dict[str, dict[str, Line]] = {}
    signals: dict[tuple[bool, str], Floats] = {}
    for (normalize, scale), weight in product(SCALES.items(), suite.WEIGHTS):
        own = {"weight": weight, "normalize_advantage": normalize}
        if result := run_with(results, "reinforce", env, **own):
            with left_out(result.run.path):
                line, variance = geometric_mean(result, "grad_variance")
                signal = signal_to_noise(result)
                ratio = stats.estimate(signal, "mean")
                about = (weight, "yes" if normalize else "no", str(len(result.seeds)))
                rows.append((*about, variance, ratio.text(2)))
                runs.append(result.run)
                signals[normalize, weight] = signal
                panels.setdefault(f"greedy return, {scale}", {})[weight] = mean_curve(result)
                panels.setdefault(f"variance, {scale}", {})[weight] = line
    if not rows:
        return
    compared = [
        (signals[normalize, a], signals[normalize, b])
        for normalize in SCALES
        for a, b in LESS_NOISE
        if (normalize, a) in signals and (normalize, b) in signals
    ]
    variances = [title for title in panels if title.startswith("variance")]
    label = "Returns and variance of the gradient for four weights"

    def card(p: Sequence[float]) -> Claim:
        return answered(
            "The gradient has less noise with return-to-go than with R(tau), and less with a "
            "baseline or Q than with return-to-go.",
            f"{OURS}; of a baseline, Sutton and Barto, 2018, section 13.4",
            [has_more(*sides, of_sides) for sides, of_sides in zip(compared, p, strict=True)],
            "of signal / noise",
            curves("reinforce", label, panels, ylabel="", columns=2, log_y=variances),
            [Table("reinforce-weights", WEIGHT_COLUMNS, rows), *WEIGHTS_ABOUT, *commands(runs)],
        )

    yield tested([stats.permutation_p(*sides) for sides in compared], card)


def has_more(a: Floats, b: Floats, p: float) -> Answer:
    """Whether the mean of `[S1]` is above that of `[S2]`: the intervals say so, and p agrees."""
    return lies_above(*(stats.estimate(x, "mean") for x in (a, b))) if p < LEVEL else "undecided"


WEIGHTS_ABOUT = (
    Text(
        "A comparison is true if the interval of signal / noise lies above that of the other "
        "weight with the same normalisation and the permutation test agrees, false if below."
    ),
    Text(
        "REINFORCE on CartPole-v1. ",
        Code("--weight"),
        " selects the weight of the log-probabilities. Each weight is trained separately. Scores "
        "are on the page of ",
        Link("ablations", page="ablations.md"),
        ". The variance is that of an update's gradient before clipping, estimated from its "
        "episodes and summed over the parameters. The table has its geometric mean over the "
        "training, without those parts in which it is 0 of a seed, all of whose episodes return "
        "the same. Signal / noise is the squared length of the true gradient divided by that "
        "variance, which does not depend on the scale of the weights. An estimate below 0 means "
        "that no signal is detected. Normalised weights have mean 0 in every update, which acts as "
        "a baseline. ",
        Code("--no-normalize-advantage"),
        " keeps the raw weights. The weight Q has the bias of a learned Q network.",
    ),
)


# ---- A2C ------------------------------------------------------------------------------

ESTIMATOR_COLUMNS = (
    *("environment", "advantage", "n", "final, IQM [95%]", "failures", "late score against GAE"),
    *("AUC, mean [95%]", "AUC against GAE", "mean squared advantage, first tenth [95%]"),
)


def estimator_name(config: dict[str, Any]) -> str:
    """`n-step, n = 5`"""
    if config["advantage"] == "n_step":
        return f"n-step, n = {config['n_steps']}"
    if config["advantage"] == "monte_carlo":
        return "Monte Carlo"
    return f"GAE, lambda {config['gae_lambda']:g}"


def estimators_section(results: Sequence[Result]) -> Iterator[Block]:
    """A2C's ways to estimate advantages, from long rollouts, and its presets."""
    rows: dict[tuple[str, str], tuple[str, ...]] = {}  # by environment and estimator
    runs = []
    panels: dict[str, dict[str, Line]] = {}
    squares: dict[str, dict[str, Line]] = {}
    specs: dict[str, Scores] = {}
    speed: dict[tuple[str, str], Parity | None] = {}  # beside GAE's, of those that decide
    for env in suite.ABLATED:
        plain = catalog.plain_settings("algos", "a2c", env)
        here = [r for r in results if (r.algo, r.spec.id) == ("a2c", env)]
        gae: Result | None = None
        for settings in (*suite.A2C_ADVANTAGES, {}):
            result = next((r for r in here if r.config == plain | settings), None)
            if result is None:
                continue
            gae = result if settings == suite.A2C_ADVANTAGES[0] else gae
            name = estimator_name(result.config)
            steps = plural(result.config["num_steps"], "step")
            other = gae if gae is not result else None  # nothing stands beside itself
            with left_out(result.run.path):
                line, square = geometric_mean(result, "value_loss", share=0.1)
                verdicts = {m: parity_of(result, other, m) if other else None for m in MEASURES}
                texts = (verdict_text(v, result.spec) if other else "" for v in verdicts.values())
                auc, late = texts
                key = env, name if settings else f"preset: {name}, {steps}"
                scores = (result.text("final"), result.failures_text(), late)
                speeds = (result.text("auc", "mean"), auc, square)
                rows[key] = (*key, str(len(result.seeds)), *scores, *speeds)
                runs.append(result.run)
                if settings and other:
                    speed[key] = verdicts["auc"]
                    specs[env] = result.spec
                name = name if settings else "the preset"
                panels.setdefault(f"greedy return, {env}", {})[name] = mean_curve(result)
                squares.setdefault(f"mean squared advantage, {env}", {})[name] = line
    if not rows:
        return
    figure, label = "a2c-advantages-comparisons", "Learning speed beside GAE's"
    drawn = "Returns and mean squared advantages of A2C, by estimator"
    auc_verdict = ESTIMATOR_COLUMNS.index("AUC against GAE")

    def card(p: Sequence[float]) -> Claim:
        judged = with_p(speed, p)
        pairs: Verdicts = {}
        shown = dict(rows)
        for (env, name), verdict in judged.items():
            pairs.setdefault(env, {})[name] = verdict
            cells = list(rows[env, name])
            cells[auc_verdict] = verdict_text(verdict, specs[env])
            shown[env, name] = tuple(cells)
        table = Table("a2c-advantages", ESTIMATOR_COLUMNS, [*shown.values()])
        return answered(
            "GAE with a lambda between the extremes learns faster than n-step and Monte Carlo "
            "advantages.",
            f"{OURS}, after Schulman et al., 2016, arXiv 1506.02438",
            [answer(verdict, SLOWER) for verdict in judged.values()],
            f"by {MEASURES['auc']}",
            verdict_forest(figure, label, pairs, "other minus GAE"),
            [
                Text(
                    "A comparison is true if the verdict on the other estimator is worse, false if "
                    "it is better or equivalent."
                ),
                curves("a2c-advantages", drawn, panels | squares, ylabel="", log_y=[*squares]),
                folded_if_long("Scores and verdicts", table),
                *ESTIMATORS_ABOUT,
                *commands(runs),
            ],
            judged.values(),
        )

    yield tested(p_of(speed), card)


SLOWER = {"worse": "true", "better": "false", "equivalent": "false"}  # of the other estimator
ESTIMATORS_ABOUT = (
    Text(
        "A2C with each ",
        Code("--advantage"),
        ", all from the same rollouts: one environment for 64 steps. Everything else is the "
        "preset, to which the last row of an environment belongs. The other rows are compared with "
        "GAE in long rollouts. The presets play 8 or 16 environments for 5 or 8 steps, too few to "
        "tell the estimators apart: n-step and Monte Carlo returns end with the rollout, where V "
        "stands for the rest, and GAE with lambda 1 is the Monte Carlo advantage. 64 samples are "
        "about as many as an update of the presets has, so the number of updates is about the "
        "same. Nothing was tuned for an estimator. The shape of the rollout was chosen with GAE on "
        "other seeds, since on Pendulum 8 environments for 64 steps leave too few updates to "
        "learn. Lambda 0.95 weights 20 steps on average.",
    ),
    Text(
        "The critic learns the estimated return, so its loss is the mean squared advantage, nearly "
        "the variance: here a geometric mean over the first tenth of the training, in units of the "
        "rewards as they are trained on. Later it mostly reflects how much a policy has learned. "
        "The explained variance is not shown, since every critic is measured by targets of its own "
        "kind."
    ),
)


# ---- GRPO -----------------------------------------------------------------------------

ADVANTAGE_COLUMNS = (
    *("environment", "advantage", "n", "final, IQM [95%]", "mean [95%]", "failures"),
    *("AUC, mean [95%]", "groups without signal, first / second half"),
)


def advantage_name(settings: dict[str, Any]) -> str:
    """`return to go, ended peers as 0`"""
    name = settings.get("advantage", "return_to_go").replace("_", " ")
    name += STDS[settings.get("std", "group")]
    name += ", ended peers as 0" * (settings.get("peers") == "all")
    size = settings.get("minibatch_size")
    return f"{name}, minibatch {size}" if size else name


def groups_without_signal(result: Result) -> str:
    """The share of groups whose advantages are all 0: `12% / 34%` in the halves of the training."""
    share = metric_curve(result, "zero_variance")
    early = share.columns.to_numpy(float) <= result.timesteps_requested / 2
    halves = [share.to_numpy()[:, when] for when in (early, ~early)]
    return " / ".join(f"{half.mean():.0%}" for half in halves if half.size)


def advantages_section(results: Sequence[Result]) -> Iterator[Block]:
    """GRPO's advantages over all environments, beside PPO with the same budget."""
    rows: Rows = []
    panels: dict[str, dict[str, Line]] = {}
    by_name: dict[tuple[str, str], Result] = {}  # by environment and name
    compared = *suite.ADVANTAGES, *suite.LARGE_MINIBATCHES, None
    for env, settings in product(suite.BUDGETS, compared):
        algo = "ppo" if settings is None else "grpo"
        if result := run_with(results, algo, env, **(settings or {})):
            name = PPO_NAME if settings is None else advantage_name(settings)
            with left_out(result.run.path):
                silent = "" if settings is None else groups_without_signal(result)
                final, auc = result.text("final", "mean"), result.text("auc", "mean")
                scores = (result.text("final"), final, result.failures_text(), auc)
                rows.append((env, name, str(len(result.seeds)), *scores, silent))
                by_name[env, name] = result
                if settings not in suite.LARGE_MINIBATCHES:
                    panels.setdefault(env, {})[name] = mean_curve(result)
    if panels:
        for about in GRPO_CLAIMS:
            yield grpo_claim(*about, by_name)
        yield from ADVANTAGES_ABOUT
        label = "Greedy returns with each advantage"
        yield curves("advantages", label, panels, ylabel="greedy return", columns=2)
        table = Table("grpo-advantages", ADVANTAGE_COLUMNS, rows)
        yield folded_if_long("Scores of all of them", table)
        yield from commands([result.run for result in by_name.values()])


PLAIN = advantage_name({})
# Claim, its source, name of its table, the advantage that it says is as good as or better than the
# other, what their difference is called, and what the verdicts on it mean; saturated sides are
# equally good.
GRPO_CLAIMS = (
    (
        "Comparing the episodes of a group replaces the critic: GRPO ends as high as PPO.",
        f"{OURS}; the paper's argument is memory",
        "grpo-critic",
        (PLAIN, PPO_NAME),
        "GRPO minus PPO",
        {"better": "true", "equivalent": "true", "saturated": "true", "worse": "false"},
    ),
    (
        "Advantages from the rewards of every step (process supervision) lead higher than those "
        "from the return alone (outcome supervision).",
        GRPO,
        "grpo-process",
        ("process", "outcome"),
        "process minus outcome",
        {"better": "true", "equivalent": "false", "saturated": "false", "worse": "false"},
    ),
)


def grpo_claim(
    claim: str,
    source: str,
    name: str,
    pair: tuple[str, str],
    sides: str,
    meaning: Mapping[str, str],
    by_name: Mapping[tuple[str, str], Result],
) -> Claim:
    """A claim on GRPO, judged by the late scores of a pair in every environment."""
    verdicts: dict[str, Parity | None] = {}
    specs: dict[str, Scores] = {}
    measure = MEASURES["late"]
    for env in suite.BUDGETS:
        ours, other = (by_name.get((env, x)) for x in pair)
        if ours and other:
            verdicts[env], specs[env] = parity_of(ours, other, "late"), ours.spec

    def card(p: Sequence[float]) -> Claim:
        judged = with_p(verdicts, p)
        rows = [(e, verdict_text(v, specs[e]), answer(v, meaning)) for e, v in judged.items()]
        return answered(
            claim,
            source,
            [row[-1] for row in rows],
            f"by {measure}",
            verdict_forest(name, sides, {measure: judged}, sides),
            [Table(name, ("environment", f"{measure}, {sides}", "claim"), rows)] if rows else [],
        )

    return tested(p_of(verdicts), card)


ADVANTAGES_ABOUT = (
    Text(
        Code("grpo.py"),
        " compares the episodes of a group, which start in the same state. ",
        Code("--advantage"),
        " selects the quantity that is compared, ",
        Code("--peers"),
        " the episodes that it is compared with, and ",
        Code("--std"),
        " the standard deviation that it is divided by. All other settings are the preset's, which "
        "was tuned for return to go. PPO has its preset and GRPO's budget. Two more runs on "
        "CartPole have larger minibatches, that is, fewer and less noisy steps on the same "
        "episodes.",
    ),
    Text(
        "Groups without signal are those in which all advantages are 0, in the first and in the "
        "second half of the training: either all episodes have reached the maximum return, or the "
        "returns have been equal from the start. On Pendulum no episode ends early, so the choice "
        "of peers has no effect."
    ),
)


# ---- The critic -----------------------------------------------------------------------

CRITIC_COLUMNS = (
    *("environment", "algorithm", "parameters", "optimizer, KiB", "peak memory, MiB"),
    *("s per 1M timesteps", "times PPO's", "final, mean [95%]", "timesteps to threshold"),
    *("reached by", TO_THRESHOLD[1]),
)


def critic_section(results: Sequence[Result], folder: Path) -> Sequence[Block]:
    """PPO against GRPO at the same budget; nothing without measurements."""
    path = find_file(folder, "critic_cost.json")
    return section_of(path, STORED, lambda stored: critic_blocks(stored, results))


def critic_blocks(stored: dict[str, Any], results: Sequence[Result]) -> list[Block]:
    """The claim and the table of critic_cost.json."""
    rows: Rows = []
    answers = []
    runs: list[Result] = []
    for env in suite.ABLATED:
        seconds: dict[str, list[float]] = {}
        memory: dict[str, list[float]] = {}
        for algo in ("ppo", "grpo"):
            here = [m for m in stored["measurements"] if (m["algo"], m["env"]) == (algo, env)]
            if not here:
                continue
            seconds[algo] = [1e6 * m["learn_s"] / m["timesteps"] for m in here]
            memory[algo] = [m["memory"] for m in here]
            ratios = [x / y for x, y in zip(seconds[algo], seconds["ppo"], strict=True)]
            if algo == "grpo":
                answers.append(is_less(ratios, [1.0]))
                answers.append(is_less(memory["grpo"], memory["ppo"]))
            scores = [""] * 4
            if r := run_with(results, algo, env):
                runs.append(r)
                steps = r.threshold_texts()
                scores = [r.text("final", "mean"), *steps, r.core_seconds_text()]
            ratio = f"{median(ratios):.2f} [{min(ratios):.2f}, {max(ratios):.2f}]"
            costs = *cost_cells(here), f"{median(seconds[algo]):.1f}", ratio
            rows.append((env, display(algo), *costs, *scores))
    repeats = 1 + max(m["repeat"] for m in stored["measurements"])
    about = Text(
        "A comparison is true if all repeats of GRPO need less than all of PPO, false if all need "
        "more; time is compared within each repeat. PPO learns a value function in addition to the "
        "policy; GRPO does not, but needs groups of complete episodes. Both use their presets and "
        f"the same budget, {plural(stored['seeds'], 'seed')} at once on one core, evaluation off; "
        f"medians of {plural(repeats, 'interleaved repeat')}, with the range of the ratio in "
        "brackets. Parameters (as stored in memory, the last layer padded to 16 columns) and "
        "optimizer (gradients and Adam's moments) are per seed, memory is that of all seeds. The "
        "presets differ in more than the critic: epochs, minibatches and the number of episodes "
        "per update."
    )
    machine = stored["machine"]["cpu"], f"torch {stored['versions']['torch']}"
    claim = "Without a critic, training needs less time and memory: GRPO less than PPO."
    details: list[Block] = [
        Table("critic-cost", CRITIC_COLUMNS, rows),
        about,
        *core_seconds_note(runs),
        command_text(stored, *machine),
        *commands([r.run for r in runs]),
    ]
    return [answered(claim, GRPO, answers, "of time or memory", None, details)]


def is_less(ours: Sequence[float], theirs: Sequence[float]) -> str:
    """Whether all of ours lie below all of theirs: true, false if above, undecided if between."""
    if max(ours) < min(theirs):
        return "true"
    return "false" if min(ours) > max(theirs) else "undecided"
