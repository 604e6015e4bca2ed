"""The page of why trainings fail: GRPO on MountainCar, REINFORCE on Pendulum, DQN on CartPole.

Reads the runs of `python benchmarks/sweep.py --suite failures`, those of the presets, and what
goal_first.py has measured. What decides a statement was written before its runs were trained, but
for what a stored run had shown already, and says so.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from manyseeds import stats
from manyseeds.benchmarks.chapters.ablations import value_text
from manyseeds.benchmarks.chapters.blocks import OURS, Block, Claim, Table, Text
from manyseeds.benchmarks.chapters.claims import Find, contrasts_of, finder, with_outcome
from manyseeds.benchmarks.chapters.differences import (
    Compared,
    claim_word,
    compared,
    judged,
)
from manyseeds.benchmarks.chapters.origins import command_text, commands
from manyseeds.benchmarks.experiments.suite import (
    ALONE,
    BEFORE_GRPO,
    MORE_STEPS,
    NO_PARTS,
    ONE_STEP,
    STEADIER,
    UNTRAINED_CRITIC,
)
from manyseeds.benchmarks.measurements import goal_first
from manyseeds.benchmarks.store.results import Result
from manyseeds.benchmarks.store.stored import StoredRun, find_file, left_out, section_of
from manyseeds.record import plural
from manyseeds.stats import Estimate, Floats


def page(results: Sequence[Result], folder: Path) -> Iterator[Block]:
    """The statements that there are runs for; nothing without any."""
    find = finder(results)
    sections = {
        "GRPO on MountainCar-v0": [*without_signal(find, folder)],
        "REINFORCE on Pendulum-v1": [*few_steps(find)],
        "DQN on CartPole-v1": [*unsteady(find)],
    }
    yield from with_outcome(
        sections,
        "suspicion",
        "Each suspicion about a training that fails is tested by taking the suspected cause away, "
        "or by putting it into a training that works.",
    )


# ---- GRPO on MountainCar ---------------------------------------------------------------------


def without_signal(find: Find, folder: Path) -> Iterator[Block]:
    """Whether GRPO lacks returns that differ, and what PPO's critic gives."""
    env = "MountainCar-v0"
    if grpo := find("grpo", env):
        with left_out(grpo.run.path):
            yield no_signal(grpo)
    path = find_file(folder, "goal_first.json")
    yield from section_of(path, goal_first.STORED, after_ppo)
    ppo = find("ppo", env, **BEFORE_GRPO)
    untrained = find("ppo", env, **BEFORE_GRPO, **UNTRAINED_CRITIC)
    yield from contrasts_of(
        "failures-critic",
        "PPO learns on MountainCar, from the same rewards, because its critic learns, and not "
        "without it.",
        OURS,
        {env: [("trained critic against untrained", ppo, untrained)]},
        "PPO with its preset and GRPO's budget, with and without a loss of the critic "
        "(--value-coef 0), which then stays as it was initialised. Gradients are clipped by the "
        "norm of both networks, so that without it the policy's steps may be larger.",
        "auc",
    )


def no_signal(grpo: Result) -> Claim:
    """Whether all groups of GRPO are left out."""
    rows = grpo.run.table("metrics.parquet", ("seed", "timestep", "zero_variance"))
    shares = rows.groupby("seed")["zero_variance"].mean()
    if shares.empty:
        raise ValueError("no metrics")
    return Claim(
        "No episode reaches the goal, so all episodes of a group return the same, and GRPO has "
        "nothing to learn from.",
        claim_word(["true" if shares.min() == 1 else "false"]),
        f"{shares.mean():.1%} of the groups are left out, a mean over "
        f"{plural(len(shares), 'seed')}",
        details=[Text("Known before from the runs of the preset."), *commands([grpo.run])],
        source=OURS,
    )


STAGE_COLUMNS = ("training", "n", "greedy, mean [95%]", "sampled, mean [95%]")


def after_ppo(stored: dict[str, Any]) -> Iterator[Block]:
    """Whether GRPO learns from a policy that reaches the goal."""
    returns = {
        stage: {mode: np.array(x) for mode, x in by_mode.items()}
        for stage, by_mode in stored["returns"].items()
    }
    if any(len(x) != stored["seeds"] for by_mode in returns.values() for x in by_mode.values()):
        raise ValueError("a stage lacks a seed")
    rows = []
    for stage, by_mode in returns.items():
        means = (stats.estimate(by_mode[mode], "mean").text(1) for mode in ("greedy", "sampled"))
        rows.append((stage, str(stored["seeds"]), *means))
    details: list[Block] = [
        Text(
            f"PPO is stopped after {stored['timesteps']:,} timesteps, GRPO goes on from its policy "
            "for the budget of its own preset. Differences are paired over seeds."
        ),
        Table("failures-goal", STAGE_COLUMNS, rows),
        command_text(stored),
    ]
    sampled = {stage: by_mode["sampled"] for stage, by_mode in returns.items()}
    before, divided, not_divided = (
        sampled[x] for x in (goal_first.PPO_STOPPED, "then GRPO", "then GRPO, not divided")
    )

    def difference(what: str, a: Floats, b: Floats) -> list[Compared]:
        return compared("sampled return", what, stats.mean_difference(a - b), digits=1)

    gain = difference("GRPO minus PPO before it", divided, before)
    yield judged(
        "failures-goal",
        "Where its first policy reaches the goal, GRPO learns to reach it sooner.",
        OURS,
        gain,
        details,
    )
    yield judged(
        "failures-divided",
        "What harms GRPO there is that advantages are divided by the deviation of their group, "
        "which makes the smallest differences as large as any.",
        OURS,
        difference("not divided minus divided", not_divided, divided),
        beside=difference("not divided minus PPO before it", not_divided, before),
    )


# ---- REINFORCE on Pendulum --------------------------------------------------------------------


def few_steps(find: Find) -> Iterator[Block]:
    """Whether REINFORCE lacks gradient steps, the size of them, or a baseline."""
    env = "Pendulum-v1"
    plain, grpo = find("reinforce", env), find("grpo", env)
    longer, larger, baseline = (find("reinforce", env, **x) for x in MORE_STEPS)
    about = "REINFORCE with its preset, which takes one gradient step per update, and one change."
    for name, claim, run, field in (
        (
            "failures-budget",
            "REINFORCE is trained too little: with a larger budget it ends higher.",
            longer,
            "total_timesteps",
        ),
        (
            "failures-rate",
            "Its steps are too small: with a larger learning rate REINFORCE ends higher.",
            larger,
            "learning_rate",
        ),
        (
            "failures-baseline",
            "Its gradient is too noisy: with a learned baseline REINFORCE ends higher.",
            baseline,
            "weight",
        ),
    ):
        what = ""
        if run and plain:
            what = f"{value_text(run.config[field])} against {value_text(plain.config[field])}"
        yield from contrasts_of(name, claim, OURS, {env: [(what, run, plain)]}, about, "late")
    yield from contrasts_of(
        "failures-one-step",
        "GRPO learns there because it takes many gradient steps per update: with one, it ends "
        "lower.",
        OURS,
        {env: [("the preset against one step", grpo, find("grpo", env, **ONE_STEP))]},
        "GRPO with its preset, and with one gradient step on all samples of an update.",
        "late",
    )


# ---- DQN on CartPole --------------------------------------------------------------------------


def unsteady(find: Find) -> Iterator[Block]:
    """Whether DQN's failing seeds have not learned, or have lost it again."""
    env = "CartPole-v1"
    dqn = find("dqn", env)
    if dqn is None:
        return
    if dqn.failures:
        yield had_learned(dqn)
    yield from steadier(find, dqn)
    plain, steps = (find("rainbow", env, **x) for x in (NO_PARTS, ALONE["n steps"]))
    if plain and steps:
        n = steps.config["n_steps"]
        yield judged(
            "failures-steps",
            "Fewer seeds fail with returns of several steps.",
            OURS,
            compared(FAILING, f"{n} steps minus 1, networks of 64-64", failing_less(steps, plain)),
            [
                Text(
                    "Known before from the runs of Rainbow's parts, of which n steps alone. A "
                    "reward then reaches earlier states in fewer updates of the target network, "
                    f"which may be why. {OF_SHARES}"
                ),
                *commands([plain.run, steps.run]),
            ],
            sign=-1,
            means=False,
        )


OF_SHARES = (
    "A seed fails that ends below the threshold. Intervals are Newcombe's (1998), p is Fisher's."
)


def steadier(find: Find, dqn: Result | None) -> Iterator[Block]:
    """Whether fewer seeds fail with one change. dqn: the run of the preset."""
    env = "CartPole-v1"
    found = []
    runs: list[StoredRun] = []
    for name, settings in STEADIER.items():
        if (run := find("dqn", env, **settings)) and dqn:
            found += compared(FAILING, f"{name} minus the preset", failing_less(run, dqn))
            runs += [dqn.run] * (not runs) + [run.run]
    plain, c51 = (find("rainbow", env, **x) for x in (NO_PARTS, ALONE["C51"]))
    if plain and c51:
        found += compared(FAILING, "C51 minus DQN, networks of 64-64", failing_less(c51, plain))
        runs += [plain.run, c51.run]
    if found:
        yield judged(
            "failures-steadier",
            "Fewer seeds fail with smaller steps, with fewer of them, with an older target "
            "network, and with a distribution of values.",
            OURS,
            found,
            [
                Text(
                    "DQN with its preset and one change; and Rainbow's parts, of which C51 alone, "
                    f"with smaller networks. {OF_SHARES}"
                ),
                *commands(runs),
            ],
            sign=-1,
            means=False,
        )


def had_learned(dqn: Result) -> Claim:
    """Whether the seeds that fail had been at the threshold before."""
    bar = dqn.spec.reward_threshold
    assert bar is not None
    there = {seed: y >= bar for seed, (_, y) in zip(dqn.seeds, dqn.curves, strict=True)}
    failed = dqn.failures
    reached = sum(bool(there[seed].any()) for seed in failed)
    others = [there[seed] for seed in dqn.seeds if seed not in failed]
    lost = sum(bool((~x[x.argmax() :]).any()) for x in others if x.any())
    return Claim(
        "The seeds that fail had learned, and then lost it.",
        claim_word(["true"] * reached + ["false"] * (len(failed) - reached)),
        f"{reached} of {len(failed)} failing seeds had scored {bar:g} or more before; of the "
        f"{len(others)} others {lost} had fallen below it in between",
        details=[Text("Known before from the runs of the preset."), *commands([dqn.run])],
        source=OURS,
    )


FAILING = "share of seeds that fail"


def failing_less(run: Result, other: Result) -> Estimate:
    """The difference of the shares of seeds that fail."""
    from scipy.stats import fisher_exact

    sizes = len(run.seeds), len(other.seeds)
    failures = len(run.failures), len(other.failures)
    low, high = stats.failure_difference(failures, sizes)
    value = failures[0] / sizes[0] - failures[1] / sizes[1]
    table = np.array([(k, n - k) for k, n in zip(failures, sizes, strict=True)])
    return Estimate(value, low, high, min(sizes), p=float(fisher_exact(table).pvalue))
