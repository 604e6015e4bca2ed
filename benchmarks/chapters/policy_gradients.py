"""The page of policy gradients: REINFORCE weights, A2C's advantages, and no critic.

Reads the runs of `python benchmarks/sweep.py --suite policy-gradient`, those of REINFORCE of
`--suite ablations`, those of GRPO's supervision of `--suite claims`, and the measurements of
`benchmarks/critic_cost.py` and `benchmarks/gradient_variance.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
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
    Compared,
    Verdicts,
    answer,
    answered,
    at_ceiling,
    compared,
    corrected,
    judged,
    p_of,
    tested,
    verdict_forest,
    with_p,
)
from manyseeds.benchmarks.chapters.environment_pages import TO_THRESHOLD, core_seconds_note
from manyseeds.benchmarks.chapters.gradient_variance import (
    RELATIVE,
    StageFigures,
    stages_of,
    weight_name,
)
from manyseeds.benchmarks.chapters.origins import command_text, commands
from manyseeds.benchmarks.experiments import catalog, suite
from manyseeds.benchmarks.measurements import critic_cost, gradient_variance
from manyseeds.benchmarks.measurements.measure import cost_cells
from manyseeds.benchmarks.store.comparison import MEASURES
from manyseeds.benchmarks.store.names import display
from manyseeds.benchmarks.store.results import Result, Scores, parity_of, verdict_text
from manyseeds.benchmarks.store.stored import find_file, left_out, section_of
from manyseeds.cli import from_preset, identity
from manyseeds.plots import Line
from manyseeds.record import plural
from manyseeds.runs.stale import measurement_is_stale
from manyseeds.stats import Parity

Rows = list[tuple[str, ...]]
METRIC_POINTS = 40  # of a curve of metrics
PPO_NAME = "PPO, with a critic"
GRPO = "Shao et al., 2024, arXiv 2402.03300"
STDS = {"group": "", "batch": ", std of the batch", "none": ", no std"}


def page(results: Sequence[Result], folder: Path) -> Iterator[Block]:
    """All sections that there are runs for. folder: of the results, with the measurements."""
    titled = {
        "REINFORCE weights": weights_section(results, folder),
        "GAE, n-step and Monte Carlo advantages": estimators_section(results),
        "Advantages without a critic": advantages_section(results),
        "Cost of the critic": critic_section(results, folder),
    }
    if blocks := corrected(sections(titled)):
        yield Text(
            f"{CLAIM_RULE} The details of a claim say when a comparison is true. {HOLM} The tests "
            "on relative variances are corrected with them. Other verdicts in the tables decide "
            "nothing and are single tests. Costs are compared by their ranges."
        )
        yield from blocks


# ---- REINFORCE ------------------------------------------------------------------------

WEIGHT_COLUMNS = ("weight", "normalised", "n", "variance of the gradient [95%]")
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


def weights_section(results: Sequence[Result], folder: Path) -> Iterator[Block]:
    """REINFORCE's four weights: the noise of their gradients on frozen policies, returns, and the
    variance of the gradient in training."""
    path = find_file(folder, "gradient_variance.json")
    yield from section_of(path, gradient_variance.STORED, noise_blocks)
    env = "CartPole-v1"
    rows: Rows = []
    runs = []
    panels: dict[str, dict[str, Line]] = {}
    for (normalize, scale), weight in product(SCALES.items(), suite.WEIGHTS):
        own = {"weight": weight, "normalize_advantage": normalize, "gamma": 1.0}
        if result := run_with(results, "reinforce", env, **own):
            with left_out(result.run.path):
                line, variance = geometric_mean(result, "grad_variance")
                about = (weight, "yes" if normalize else "no", str(len(result.seeds)))
                rows.append((*about, variance))
                runs.append(result.run)
                panels.setdefault(f"greedy return, {scale}", {})[weight] = mean_curve(result)
                panels.setdefault(f"variance, {scale}", {})[weight] = line
    if not rows:
        return
    variances = [title for title in panels if title.startswith("variance")]
    label = "Returns and variance of the gradient for four weights"
    yield WEIGHTS_ABOUT
    yield curves("reinforce", label, panels, ylabel="", columns=2, log_y=variances)
    table = Table("reinforce-weights", WEIGHT_COLUMNS, rows)
    yield folded_if_long("The variance of the gradient in training", table)
    yield from commands(runs)


def noise_blocks(stored: dict[str, Any]) -> Iterator[Block]:
    """The claim on the noise of the weights, by gradient_variance.json."""
    found: list[Compared] = []
    untested: list[str] = []
    for (weight, other), (name, stage) in product(LESS_NOISE, stages_of(stored).items()):
        if not {weight, other} <= stage.figures.keys():
            continue
        what = f"{weight_name(weight)} against {weight_name(other)}, {name}"
        if difference := stage.difference(weight, other):
            found += compared("log10 of the relative variance", what, difference)
        else:
            untested.append(f"{what} ({undetected(stage, weight, other)})")
    if not found:
        return
    details: list[Block] = [NOISE_ABOUT]
    if untested:
        details.append(Text(f"Not tested: {'; '.join(untested)}."))
    yield judged(
        "reinforce-noise",
        "The gradient has less noise with return-to-go than with R(tau), and less with a "
        "baseline or Q than with return-to-go.",
        f"{OURS}; of a baseline, Sutton and Barto, 2018, section 13.4",
        found,
        details,
        sign=-1,
    )


def undetected(stage: StageFigures, *weights: str) -> str:
    """`Q has no signal in 2 of 10 seeds`, of all weights of which that is so."""
    seen = {weight: np.isfinite(stage.relative(weight)) for weight in weights}
    return ", ".join(
        f"{weight_name(weight)} has no signal in {int((~here).sum())} of {len(here)} seeds"
        for weight, here in seen.items()
        if not here.all()
    )


NOISE_ABOUT = Text(
    f"{RELATIVE} The signal is that component. All weights have the same frozen policies, those of "
    "the page ",
    Link("Variance of the policy gradient", page="gradient-variance.md"),
    ", so that seeds are paired. Less noise is below 0, half as much -0.3. A comparison is not "
    "tested where a weight has no signal in some seed. Q is learned, and its bias across the "
    "gradient is no signal.",
)
WEIGHTS_ABOUT = Text(
    "REINFORCE on CartPole-v1 with gamma 1. ",
    Code("--weight"),
    " selects the weight of the log-probabilities. Each weight trains policies of its own, so that "
    "these variances do not tell which has less noise. Scores are on the page of ",
    Link("ablations", page="ablations.md"),
    ". The variance is that of an update's gradient before clipping, estimated from its "
    "episodes and summed over the parameters. The table has its geometric mean over the "
    "training, without those parts in which it is 0 of a seed, all of whose episodes return "
    "the same. Normalised weights have mean 0 in every update, which acts as a baseline. ",
    Code("--no-normalize-advantage"),
    " keeps the raw weights.",
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

    def card(p: Sequence[float], level: float) -> Claim:
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
            level,
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
    gamma, size = settings.get("gamma"), settings.get("minibatch_size")
    name += f", gamma {gamma:g}" if gamma is not None else ""
    return f"{name}, minibatch {size}" if size else name


def groups_without_signal(result: Result) -> str:
    """The share of groups whose advantages are all 0: `12% / 34%` in the halves of the training."""
    share = metric_curve(result, "zero_variance")
    early = share.columns.to_numpy(float) <= result.timesteps_requested / 2
    halves = [share.to_numpy()[:, when] for when in (early, ~early)]
    return " / ".join(f"{half.mean():.0%}" for half in halves if half.size)


def informative_share(result: Result) -> float:
    """The share of groups with a gradient, over the windows of the training; 0 only where no update
    of any seed has one."""
    rows = metrics_of(result, "zero_variance")
    return float((1 - rows.groupby("seed")["zero_variance"].mean()).mean())


def advantages_section(results: Sequence[Result]) -> Iterator[Block]:
    """GRPO's advantages over all environments, beside PPO with the same budget."""
    rows: Rows = []
    panels: dict[str, dict[str, Line]] = {}
    by_name: dict[tuple[str, str], Result] = {}  # by environment and name
    shares: dict[tuple[str, str], float] = {}  # of groups with a gradient
    supervised = [side for pair in suite.SUPERVISION for side in pair]
    trained = *suite.ADVANTAGES, *suite.LARGE_MINIBATCHES, *supervised, None
    for env, settings in product(suite.BUDGETS, trained):
        algo = "ppo" if settings is None else "grpo"
        if result := run_with(results, algo, env, **(settings or {})):
            name = PPO_NAME if settings is None else advantage_name(settings)
            with left_out(result.run.path):
                silent = "" if settings is None else groups_without_signal(result)
                final, auc = result.text("final", "mean"), result.text("auc", "mean")
                scores = (result.text("final"), final, result.failures_text(), auc)
                rows.append((env, name, str(len(result.seeds)), *scores, silent))
                if settings is not None:
                    shares[env, name] = informative_share(result)
                by_name[env, name] = result
                if settings is None or settings in suite.ADVANTAGES:
                    panels.setdefault(env, {})[name] = mean_curve(result)
    if panels:
        for about in GRPO_CLAIMS:
            yield grpo_claim(*about, by_name, shares)
        yield from ADVANTAGES_ABOUT
        label = "Greedy returns with each advantage"
        yield curves("advantages", label, panels, ylabel="greedy return", columns=2)
        table = Table("grpo-advantages", ADVANTAGE_COLUMNS, rows)
        yield folded_if_long("Scores of all of them", table)
        yield from commands([result.run for result in by_name.values()])


PLAIN = advantage_name({})
UNTESTED = "not tested"
SUPERVISION_ABOUT = Text(
    "Gamma is 1, as in the paper: a discount would take the later rewards of an episode out of its "
    "outcome, which is credited to all steps. Both sides have the minibatches of the preset, or "
    "larger ones, which reduce the noise of an outcome. A comparison is not tested where no update "
    "of a side has a gradient, so that its policies stay as they were initialised, or where all "
    "seeds of both sides score the same. On CartPole every reward is 1, and the normalised rewards "
    "of steps are 0."
)
CRITIC_ABOUT = Text(
    "A comparison counts also where no group has a gradient: whether the episodes of a group "
    "differ is part of the claim. It is not tested where both sides are at the ceiling, where PPO "
    "and another algorithm of SB3's score the same, too: equal scores say nothing there."
)
# Claim, its source, name of its table, pairs of the advantage that it says is as good as or better
# than the other, what their difference is called, what the verdicts on it and a side without a
# gradient mean, and what else there is to say. ceiling: sides that are as alike as different
# algorithms are there (`differences.at_ceiling`).
GRPO_CLAIMS = (
    (
        "Comparing the episodes of a group replaces the critic: GRPO ends as high as PPO.",
        f"{OURS}; the paper's argument is memory",
        "grpo-critic",
        {"": (PLAIN, PPO_NAME)},
        "GRPO minus PPO",
        {"better": "true", "equivalent": "true", "ceiling": UNTESTED, "worse": "false"},
        CRITIC_ABOUT,
    ),
    (
        "Advantages from the rewards of every step (process supervision) lead to higher scores "
        "than those from the return alone (outcome supervision).",
        GRPO,
        "grpo-process",
        {
            f", minibatch {process.get('minibatch_size', 'of the preset')}": (
                advantage_name(process),
                advantage_name(outcome),
            )
            for process, outcome in suite.SUPERVISION
        },
        "process minus outcome",
        {"better": "true", "equivalent": "false", "worse": "false"}
        | {"ceiling": UNTESTED, "no gradient": UNTESTED},
        SUPERVISION_ABOUT,
    ),
)


def grpo_claim(
    claim: str,
    source: str,
    name: str,
    pairs: Mapping[str, tuple[str, str]],
    sides: str,
    meaning: Mapping[str, str],
    about: Text,
    by_name: Mapping[tuple[str, str], Result],
    shares: Mapping[tuple[str, str], float],
) -> Claim:
    """A claim on GRPO, judged by the late scores of pairs in every environment.

    pairs: by what tells them apart. shares: of groups with a gradient; PPO has none.
    """
    verdicts: dict[str, Parity | None] = {}
    specs: dict[str, Scores] = {}
    untested: dict[str, str] = {}  # and why
    gradients: dict[str, str] = {}
    measure = MEASURES["late"]
    for env, (which, pair) in product(suite.BUDGETS, pairs.items()):
        ours, other = (by_name.get((env, x)) for x in pair)
        if not ours or not other:
            continue
        key = f"{env}{which}"
        found = {x: shares[env, x] for x in pair if (env, x) in shares}
        gradients[key] = " / ".join(map(share_text, found.values()))
        silent = [x for x, share in found.items() if share == 0]
        verdict, specs[key] = parity_of(ours, other, "late"), ours.spec
        if silent and "no gradient" in meaning:
            untested[key] = f"no gradient with {', '.join(silent)}"
        elif "ceiling" in meaning and at_ceiling(verdict, env, other.algo):
            untested[key] = f"{verdict_text(verdict, ours.spec)}; both are at the ceiling"
        else:
            verdicts[key] = verdict

    def card(p: Sequence[float], level: float) -> Claim:
        decisive = with_p(verdicts, p)
        answers = {key: answer(verdict, meaning) for key, verdict in decisive.items()}
        texts = {key: verdict_text(verdict, specs[key]) for key, verdict in decisive.items()}
        texts |= untested
        columns = "environment", "groups with a gradient", f"{measure}, {sides}", "claim"
        rows = [(x, gradients[x], texts[x], answers.get(x, UNTESTED)) for x in gradients]
        found = answered(
            claim,
            source,
            [*answers.values()],
            f"by {measure}",
            verdict_forest(name, sides, {measure: decisive}, sides),
            [Table(name, columns, rows), about] if rows else [],
            decisive.values(),
            level,
        )
        more = f", {UNTESTED} in {len(untested)}" if untested and answers else ""
        return replace(found, number=f"{found.number}{more}")

    return tested(p_of(verdicts), card)


def share_text(share: float) -> str:
    """`none`, `45%`, or `<1%`: none only where it is 0."""
    return "none" if share == 0 else "<1%" if share < 0.005 else f"{share:.0%}"


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
        "was tuned for return to go, but for a gamma or a minibatch that a name has. Larger "
        "minibatches are fewer and less noisy steps on the same episodes. PPO has its preset and "
        "GRPO's budget.",
    ),
    Text(
        "Groups without signal are those in which all advantages are 0, in the first and in the "
        "second half of its timesteps: all episodes have the same return, such as the maximum, or "
        "what is compared is equal by itself. Shares of groups with a gradient are means over "
        "updates instead, of which there are more where episodes are short. On Pendulum no episode "
        "ends early, so the choice of peers has no effect."
    ),
)


# ---- The critic -----------------------------------------------------------------------

CRITIC_COLUMNS = (
    *("environment", "algorithm", "parameters", "optimizer, KiB", "peak memory, MiB"),
    *("s per 1M timesteps of all seeds together", "times PPO's", "final, mean [95%]"),
    *("timesteps to threshold", "reached by", TO_THRESHOLD[1]),
)


def critic_section(results: Sequence[Result], folder: Path) -> Sequence[Block]:
    """PPO against GRPO at the same budget; nothing without measurements."""
    path = find_file(folder, "critic_cost.json")
    return section_of(path, critic_cost.STORED, lambda stored: critic_blocks(stored, results))


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
    card = answered(claim, GRPO, answers, "of time or memory", None, details)
    stale = "; the measurements are stale" if measurement_is_stale(stored) else ""
    return [replace(card, number=f"{card.number}{stale}")]


def is_less(ours: Sequence[float], theirs: Sequence[float]) -> str:
    """Whether all of ours lie below all of theirs: true, false if above, undecided if between."""
    if max(ours) < min(theirs):
        return "true"
    return "false" if min(ours) > max(theirs) else "undecided"
