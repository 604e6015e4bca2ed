"""The page of why trainings fail: GRPO on MountainCar, REINFORCE on Pendulum, DQN on CartPole.

Reads the runs of `python benchmarks/sweep.py --suite failures`, those of the presets, and what
goal_first.py has measured. What decides a statement was written before its runs were trained, but
for what a stored run had shown already, and says so.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from manyseeds import envs, stats
from manyseeds.benchmarks.chapters.ablations import value_text
from manyseeds.benchmarks.chapters.blocks import OURS, Block, Claim, Table, Text
from manyseeds.benchmarks.chapters.claims import Find, contrasts_of, finder, with_outcome
from manyseeds.benchmarks.chapters.differences import (
    Compared,
    Tested,
    claim_word,
    compared,
    judged,
    tested,
)
from manyseeds.benchmarks.chapters.origins import command_text, commands
from manyseeds.benchmarks.experiments.suite import (
    ALONE,
    BASELINE,
    BEFORE_GRPO,
    MORE_STEPS,
    NO_PARTS,
    ONE_STEP,
    STEADIER,
    UNTRAINED_CRITIC,
)
from manyseeds.benchmarks.measurements import goal_first
from manyseeds.benchmarks.store.results import Result
from manyseeds.benchmarks.store.stored import find_file, left_out, section_of
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
            "for the budget of its own preset. Differences are paired over seeds, which are those "
            f"from {goal_first.FIRST_SEED} on. Observations are normalised, as PPO's are but "
            "not those of GRPO's preset, so GRPO alone is not the run of other pages."
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
    plain = find("reinforce", env)
    longer, larger = (find("reinforce", env, **x) for x in MORE_STEPS)
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
    ):
        what = ""
        if run and plain:
            what = f"{value_text(run.config[field])} against {value_text(plain.config[field])}"
        yield from contrasts_of(name, claim, OURS, {env: [(what, run, plain)]}, about, "late")
    yield from baselines(find)
    yield from one_step(find)


LEARNS = 0.1  # normalised late score from which on a side has learned something
Pair = tuple[Result, Result]  # with a learned baseline, and without


def baselines(find: Find) -> Iterator[Block]:
    """Whether a learned baseline helps where REINFORCE learns; not tested without all runs."""
    env = "Pendulum-v1"
    claim = "It lacks a baseline: with a learned one REINFORCE ends higher, where it learns."
    pairs: dict[str, Pair] = {}
    missing: list[str] = []
    for x in ({}, *MORE_STEPS):
        name = " and ".join(f"{of.replace('_', ' ')} {y:,}" for of, y in x.items()) or "the preset"
        learned, none = find("reinforce", env, **x, **BASELINE), find("reinforce", env, **x)
        if learned and none:
            pairs[name] = learned, none
        missing += [f"{name} with a learned baseline"] * (not learned)
        missing += [f"{name} without a baseline"] * (not none)
    if not pairs:
        return
    learns = {x: pair for x, pair in pairs.items() if max(map(normalised_late, pair)) >= LEARNS}
    details: list[Block] = [
        Text(
            "Weights are centred and scaled in every update with and without the learned baseline: "
            "it adds what depends on the state. A setting is not tested where neither side ends "
            f"{LEARNS:g} above a random policy, in normalised scores. Stated before the runs with "
            "a baseline and more or larger steps, when all others were known. Signal / noise is "
            "the squared length of the true gradient divided by the variance of an update's: "
            "unknown for longer trainings, whose metrics are means over several updates."
        ),
        Table("failures-noise", NOISE_COLUMNS, [*noise_rows(pairs, learns)]),
    ]
    if missing or not learns:
        why = f"no runs yet of {' or '.join(missing)}" if missing else "it learns in no setting"
        runs = commands([x.run for pair in pairs.values() for x in pair])
        yield Claim(claim, "not tested", why, None, [*details, *runs], OURS)
        return
    contrasts = {env: [(name, *pair) for name, pair in learns.items()]}
    about = "REINFORCE with and without a learned baseline (--weight baseline)."
    for card in contrasts_of("failures-baseline", claim, OURS, contrasts, about, "late"):
        yield with_details(card, details)


def normalised_late(result: Result) -> float:
    """The mean late score; NaN where the random or the reference score is unknown."""
    random, reference = result.spec.random_score, result.spec.reference_score
    if random is None or reference is None:
        return math.nan
    return float(stats.normalise(result.late, random, reference).mean())


def with_details(card: Block, more: Sequence[Block]) -> Block:
    """A card with more details, also once its p-values are corrected."""
    if not isinstance(card, Tested) or not card.write:
        return card
    write = card.write

    def again(p: Sequence[float], level: float) -> Claim:
        claim = write(p, level)
        return replace(claim, details=[*claim.details, *more])

    return tested(card.p, again)


NOISE_COLUMNS = (
    *("setting", "baseline", "n", "late score, normalised", "tested"),
    *("critic's loss, first eighth", "last eighth", "signal / noise [95%]"),
)


def noise_rows(pairs: Mapping[str, Pair], learns: Container[str]) -> Iterator[tuple[str, ...]]:
    """How either side ends, and what its critic and its gradient say of the baseline."""
    for name, pair in pairs.items():
        for baseline, result in zip(("learned", "none"), pair, strict=True):
            with left_out(result.run.path):
                yield (
                    *(name, baseline, str(len(result.seeds)), f"{normalised_late(result):.3f}"),
                    "yes" if name in learns else "no: it does not learn",
                    *(critic_losses(result) if baseline == "learned" else ("-", "-")),
                    noise_text(result),
                )


def critic_losses(result: Result) -> tuple[str, str]:
    """The mean squared error of the critic in the first and in the last eighth of the training."""
    rows = result.run.table("metrics.parquet", ("seed", "timestep", "value_loss"))
    share = rows["timestep"] / result.timesteps_requested
    first, last = (rows["value_loss"][part].mean() for part in (share <= 1 / 8, share > 7 / 8))
    return loss_text(first), loss_text(last)


def loss_text(loss: float) -> str:
    """At least three digits: `5,374`, `0.152`."""
    return f"{loss:,.0f}" if loss >= 100 else f"{loss:.3g}"


def noise_text(result: Result) -> str:
    """The squared length of the mean gradient over the variance of an update's, over the training.

    The expected square of an update's norm is that of the mean's plus the variance. `-` where rows
    of the metrics are means over several updates, as the square of a mean is no mean of squares.
    """
    columns = ("seed", "timestep", "grad_norm", "grad_variance")
    rows = result.run.table("metrics.parquet", columns).drop_duplicates(["seed", "timestep"])
    by_seed = rows.assign(square=rows["grad_norm"] ** 2).groupby("seed")
    if (by_seed.size() < updates(result, result.config["episodes"])).any():
        return "-"
    sums = by_seed[["grad_variance", "square"]].sum()
    return stats.estimate(sums["square"] / sums["grad_variance"] - 1, "mean").text(3)


def updates(result: Result, episodes: int) -> int:
    """How many updates of so many episodes, none of which ends early, the budget has."""
    steps = episodes * envs.make(result.spec.id).spec.time_limit
    return math.ceil(result.timesteps_requested / steps)


# ---- GRPO on Pendulum -------------------------------------------------------------------------

STEP_COLUMNS = ("GRPO", "n", "gradient steps", "approx_kl, mean", "late score, normalised")


def one_step(find: Find) -> Iterator[Block]:
    """How GRPO ends with its preset and with one gradient step per update.

    No claim: that it needs more steps than so few could not fail.
    """
    env = "Pendulum-v1"
    sides = {
        "the preset": find("grpo", env),
        "one gradient step per update": find("grpo", env, **ONE_STEP),
    }
    rows, steps = [], []
    for name, result in sides.items():
        if result:
            with left_out(result.run.path):
                kl = result.run.table("metrics.parquet", ("seed", "timestep", "approx_kl"))
                steps.append(grpo_steps(result))
                score = f"{normalised_late(result):.3f}"
                about = (name, str(len(result.seeds)), f"{steps[-1]:,}")
                rows.append((*about, f"{kl['approx_kl'].mean():.4f}", score))
    if len(rows) == len(sides):
        yield Text(
            f"GRPO on Pendulum takes {steps[0]:,} gradient steps per seed with its preset, and "
            f"{steps[1]:,} with one per update, on all of its samples, at the same learning rate. "
            "The table shows how both end. With numbers of steps so far apart it tests no cause. "
            "approx_kl is measured before the last step of an update, so that it is 0 where that "
            "is the only one."
        )
        yield Table("failures-one-step", STEP_COLUMNS, rows)
        yield from commands([x.run for x in sides.values() if x])


def grpo_steps(result: Result) -> int:
    """GRPO's gradient steps per seed, where no episode ends early."""
    config = result.config
    episodes = config["groups"] * config["group_size"]
    samples = episodes * envs.make(result.spec.id).spec.time_limit
    minibatches = math.ceil(samples / config["minibatch_size"])
    return updates(result, episodes) * int(config["epochs"]) * minibatches


# ---- DQN on CartPole --------------------------------------------------------------------------


def unsteady(find: Find) -> Iterator[Block]:
    """Whether DQN's failing seeds have not learned, or have lost it again."""
    dqn = find("dqn", "CartPole-v1")
    if dqn is None:
        return
    if dqn.failures:
        yield had_learned(dqn)
    yield from steadier(find, dqn)


def steadier(find: Find, dqn: Result | None) -> Iterator[Block]:
    """Whether fewer seeds lose what they learned with one change. dqn: the run of the preset."""
    env = "CartPole-v1"
    for change, settings in STEADIER.items():
        run = find("dqn", env, **settings)
        if run and dqn:
            name = "-".join(settings).replace("_", "-")
            yield keeping(f"failures-{name}", change, {change: run, "the preset": dqn})
    plain = find("rainbow", env, **NO_PARTS)
    about = "Rainbow's parts, of which one alone, with networks of 64-64. "
    for part, change, why in (
        ("C51", "a distribution of values (C51)", ""),
        (
            "n steps",
            "returns of several steps",
            "A reward then reaches earlier states in fewer updates of the target network, which "
            "may be why. ",
        ),
    ):
        run = find("rainbow", env, **ALONE[part])
        if run and plain:
            sides = {f"{part} alone": run, "no part": plain}
            name = part.lower().replace(" ", "-")
            yield keeping(f"failures-{name}", change, sides, about + why)


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


LOSING = "share below the threshold at the end, of those that reach it"
MIN_REACHED = 0.5  # of the seeds of a side, below which what they keep is not compared
COUNTS = (
    *("DQN with", "n", "reach the threshold", "first there, median timestep"),
    *("of these end below it", "of all end below it"),
)


def keeping(name: str, change: str, sides: Mapping[str, Result], about: str = "") -> Claim:
    """Whether fewer seeds that reach the threshold lose it with a change. sides: with, without."""
    claim = f"Fewer seeds lose what they have learned with {change}."
    counts = {side: ever_reached(result) for side, result in sides.items()}
    rows = [
        (
            *(side, str(len(result.seeds)), str(len(counts[side]))),
            f"{np.median([*counts[side].values()]):,.0f}" if counts[side] else "never",
            *(str(len(lost(result, counts[side]))), str(len(result.failures))),
        )
        for side, result in sides.items()
    ]
    details = [
        Table(f"{name}-seeds", COUNTS, rows),
        Text(f"{about}{OF_SHARES}"),
        *commands([result.run for result in sides.values()]),
    ]
    few = [x for x, result in sides.items() if len(counts[x]) < MIN_REACHED * len(result.seeds)]
    if few:
        result, reached = sides[few[0]], len(counts[few[0]])
        number = f"of {plural(len(result.seeds), 'seed')} with {few[0]}, {reached} "
        number += f"reach the threshold within {result.timesteps_requested:,} timesteps"
        return Claim(claim, "not tested", number, None, details, OURS)
    changed, other = sides.values()
    what = " minus ".join(sides)
    found = compared(LOSING, what, losing_less(changed, other))
    return judged(name, claim, OURS, found, details, sign=-1, means=False)


OF_SHARES = (
    "A seed reaches the threshold where an evaluation during the training is there, or the one at "
    "its end, and has lost it where that one is below. One that reaches it later has less time to "
    "lose it. Not tested where fewer than half of the seeds of a side reach it: seeds that end "
    "below may never have learned. This rule was written when the runs were known. Intervals are "
    "Newcombe's (1998), p is Fisher's."
)


def ever_reached(result: Result) -> dict[int, int]:
    """The seeds that were at the threshold in an evaluation, and the first timestep of each."""
    bar = result.spec.reward_threshold
    assert bar is not None
    failed = set(result.failures)
    found = {}
    for seed, (timesteps, returns) in zip(result.seeds, result.curves, strict=True):
        there = timesteps[returns >= bar].tolist()
        if seed not in failed:
            there.append(result.timesteps)
        if there:
            found[seed] = there[0]
    return found


def lost(result: Result, reached: Container[int]) -> list[int]:
    """The seeds that were at the threshold, and ended below it."""
    return [seed for seed in result.failures if seed in reached]


def losing_less(run: Result, other: Result) -> Estimate:
    """The difference of the shares of seeds that lose it, of those that reach it."""
    from scipy.stats import fisher_exact

    reached = [ever_reached(x) for x in (run, other)]
    n, m = map(len, reached)
    failures = len(lost(run, reached[0])), len(lost(other, reached[1]))
    low, high = stats.failure_difference(failures, (n, m))
    table = np.array([(k, of - k) for k, of in zip(failures, (n, m), strict=True)])
    value = failures[0] / n - failures[1] / m
    return Estimate(value, low, high, min(n, m), p=float(fisher_exact(table).pvalue))
