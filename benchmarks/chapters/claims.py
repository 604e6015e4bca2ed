"""The page of what papers on control claim: an experiment and a verdict for each claim.

Reads the runs of `python benchmarks/sweep.py --suite claims`, those of the algorithms' presets and
the published searches. ABOUT says which rules were written before the runs that they judge.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from manyseeds import envs, stats
from manyseeds.algos import grpo
from manyseeds.benchmarks.chapters import sensitivity
from manyseeds.benchmarks.chapters.blocks import (
    OURS,
    Block,
    Claim,
    Table,
    Text,
    folded_if_long,
    text_of,
)
from manyseeds.benchmarks.chapters.blocks import sections as titled
from manyseeds.benchmarks.chapters.differences import (
    BETTER,
    CLAIM_RULE,
    HOLM,
    MARGINS_SINCE,
    Answer,
    Compared,
    Verdicts,
    answer,
    answered,
    at_ceiling,
    claim_word,
    compared,
    corrected,
    judged,
    outcome_of,
    p_of,
    tested,
    verdict_forest,
    with_p,
)
from manyseeds.benchmarks.chapters.origins import command_text, commands
from manyseeds.benchmarks.experiments import catalog
from manyseeds.benchmarks.experiments.suite import (
    ABLATED,
    BUDGETS,
    DISCOUNTS,
    EQUAL_EPISODES,
    GROUP_SIZES,
    LARGE_MINIBATCHES,
    OUTCOME,
    Cell,
)
from manyseeds.benchmarks.experiments.verdicts import margin_at
from manyseeds.benchmarks.measurements import learning_rates, replicas
from manyseeds.benchmarks.store.comparison import COMMON, MEASURES, run_of, without_fresh
from manyseeds.benchmarks.store.names import display
from manyseeds.benchmarks.store.results import FEWEST, Result, parity, parity_of, verdict_text
from manyseeds.benchmarks.store.stored import find_file, section_of
from manyseeds.stats import Floats, Parity

CAPO = "Mustafaoglu et al., 2026, arXiv 2603.12596"
FERNANDEZ = "Fernandez-Hernandez et al., 2026, arXiv 2603.09950"
DE_OLIVEIRA = "de Oliveira et al., 2025, arXiv 2511.03527"
CHEN = "Chen et al., 2025, arXiv 2510.03679"
EIMER = "Eimer et al., 2023, arXiv 2306.01324"
HENDERSON = f"{OURS}, after Henderson et al., 2018, arXiv 1709.06560"
COLAS = "Colas et al., 2018, arXiv 1806.08295"
AGARWAL = "Agarwal et al., 2021, arXiv 2108.13264"

AS_GOOD = {"better": "true", "worse": "false", "equivalent": "true", "saturated": "true"}
PROMISED = 0.05  # of equal groups that a test calls different
MANY = 100  # seeds from which on those of a run stand for all seeds
SPLITS = 2_000  # of its seeds into two groups
FEW = (5, 10)  # seeds in a group
RESAMPLES = 500  # of a group, for its bootstrap

Find = Callable[..., Result | None]  # the run of an algorithm on an environment with settings


def page(results: Sequence[Result], folder: Path) -> Iterator[Block]:
    """The claims that there are runs for; nothing without any."""
    sections = {
        "Without a critic": [*without_critic(finder(results))],
        "Replicas": [
            *section_of(find_file(folder, "replicas.json"), replicas.STORED, averaged_replicas)
        ],
        "Tuning": [
            *tuning(sensitivity.read_studies(folder)),
            *section_of(
                find_file(folder, "learning_rates.json"), learning_rates.STORED, early_signals
            ),
        ],
        "Seeds": [*few_seeds(results)],
    }
    yield from with_outcome(sections, "claim", ABOUT)


def finder(results: Sequence[Result]) -> Find:
    """What finds a run of ours among these, by algorithm, environment and settings."""

    def find(algo: str, env: str, **settings: Any) -> Result | None:
        return run_of(Cell(algo, env, 30, settings=settings), results)

    return find


ABOUT = (
    "Claims of papers on control, and questions of our own, that can be tested in minutes. "
    "Learning speed until the common budget of an environment is the mean return until then, and "
    "its margin that of the learning speed over a whole training. What decides the claims on "
    "discounts and on sizes of groups was stated before the runs that vary these were trained; the "
    "others rest on runs that were known. "
    f"{MARGINS_SINCE}"
)


def with_outcome(sections: Mapping[str, Sequence[Block]], what: str, about: str) -> Iterator[Block]:
    """A page of claims, corrected together, below how many there are of each word; nothing without
    any. what: they are called."""
    blocks = corrected(titled(sections))
    if not any(isinstance(x, Claim) for x in blocks):
        return
    yield outcome_of(blocks, what)
    yield Text(
        f"{about} {CLAIM_RULE} {HOLM} Comparisons that decide nothing are single tests. "
        "Differences that are not verdicts are decided likewise, by their 95% interval and "
        "Student's test, unless their claim says otherwise; those of shares by Newcombe's interval "
        "and Fisher's test."
    )
    yield from blocks


# ---- Without a critic ----------------------------------------------------------------------

LONG = ("Acrobot-v1", "Pendulum-v1")
SHORT = "CartPole-v1"  # as the paper calls it
SPARSE = "MountainCar-v0"  # long, too, but without a signal for GRPO while no episode ends early

# A name, the side that is claimed to be better, and the other.
Contrast = tuple[str, Result | None, Result | None]
Runs = tuple[Result, Result]


def speed_at(result: Result, timesteps: int) -> Floats:
    """The mean return over the first timesteps, [S]: the area under the curve until then."""
    areas = []
    for at, returns in result.curves:
        until = np.append(at[at < timesteps], timesteps)
        areas.append(stats.area_under_curve(until, np.interp(until, at, returns)))
    return np.array(areas)


def early_speed(result: Result) -> Floats:
    """The mean return until the common budget of the environment, [S]."""
    return speed_at(result, COMMON[result.spec.id])


def early_parity(ours: Result, theirs: Result) -> Parity | None:
    """The verdict on two runs by `early_speed`."""
    imputed, margin = bool(ours.unscored or theirs.unscored), margin_at(ours.spec.id, "auc")
    return parity(early_speed(ours), early_speed(theirs), ours.spec, imputed, margin=margin)


def known(contrasts: Mapping[str, Sequence[Contrast]]) -> dict[tuple[str, str], Runs]:
    """The contrasts of which both runs are there, by environment and name."""
    return {
        (env, label): (one, other)
        for env, pairs in contrasts.items()
        for label, one, other in pairs
        if one and other
    }


def contrasts_of(
    name: str,
    claim: str,
    source: str,
    contrasts: Mapping[str, Sequence[Contrast]],
    about: str,
    measure: str = "early",
    meaning: Mapping[str, Answer] = BETTER,
    beside: Mapping[str, Mapping[str, Sequence[Contrast]]] | None = None,
    tells: bool = True,
) -> Iterator[Block]:
    """The card of a claim on pairs of runs, by environment; nothing without any pair.

    measure: of `NAMED`. meaning: of the words of verdicts, where it is not that the first side is
    better. beside: by measure, pairs that decide nothing; their p-values are not corrected. tells:
    whether equal scores at the ceiling of the second side (`at_ceiling`) decide, too.
    """
    by = NAMED[measure]
    deciding, sides = known(contrasts), known(contrasts)
    aside: dict[tuple[str, str], Parity | None] = {}
    for other_measure, pairs in (beside or {}).items():
        for (env, label), pair in known(pairs).items():
            name_of_measure = "" if other_measure == measure else f", by {NAMED[other_measure]}"
            key = env, f"{label}{name_of_measure}"
            sides[key], aside[key] = pair, judge(pair, other_measure)
    if not sides:
        return
    verdicts = {key: judge(pair, measure) for key, pair in deciding.items()}
    silent = {
        key: verdict
        for key, verdict in verdicts.items()
        if not tells and at_ceiling(verdict, key[0], deciding[key][1].algo)
    }
    verdicts = {key: verdict for key, verdict in verdicts.items() if key not in silent}
    columns = ("environment", "comparison", "n", by, "claim")
    runs = {x.run.path: x.run for pair in sides.values() for x in pair}

    def row(env: str, label: str, verdict: Parity | None, word: str) -> tuple[str, ...]:
        one, other = sides[env, label]
        n = f"{len(one.seeds)} and {len(other.seeds)}"
        return (env, label, n, verdict_text(verdict, one.spec), word)

    def card(p: Sequence[float], level: float) -> Claim:
        judged = with_p(verdicts, p)
        answers = [answer(verdict, meaning) for verdict in judged.values()]
        rows = [row(*key, judged[key], word) for key, word in zip(judged, answers, strict=True)]
        rows += [
            row(*key, verdict, "not tested, at the ceiling") for key, verdict in silent.items()
        ]
        rows += [
            row(*key, verdict, f"{answer(verdict, meaning)}, decides nothing")
            for key, verdict in aside.items()
        ]
        panels: Verdicts = {}
        for (env, label), verdict in judged.items():
            panels.setdefault(env, {})[label] = verdict
        figure = verdict_forest(name, f"Difference of {by}", panels, "first minus second")
        details = [
            Text(about),
            *too_few(judged),
            folded_if_long("Every comparison", Table(name, columns, rows)),
            *commands([*runs.values()]),
        ]
        if not answers:
            why = CEILING if silent else UNTESTED
            return Claim(claim, "not tested", why, None, details, source)
        shown = judged.values()
        found = answered(claim, source, answers, f"by {by}", figure, details, shown, level)
        if not silent:
            return found
        where = " and ".join(env for env, _ in silent)
        return replace(found, number=f"{text_of(found.number)}; not tested on {where}: {CEILING}")

    yield tested(p_of(verdicts), card)


def judge(pair: Runs, measure: str) -> Parity | None:
    """The verdict on two runs by a measure of `NAMED`."""
    return early_parity(*pair) if measure == "early" else parity_of(*pair, measure)


NAMED = {"early": "learning speed until the common budget", **MEASURES}
CEILING = "both sides are at the ceiling, where equal scores say nothing"
UNTESTED = "the runs that decide are not there"


def too_few(verdicts: Mapping[tuple[str, str], Parity | None]) -> list[Block]:
    """Which undecided comparisons have too few seeds for equivalence; nothing where none has."""
    few = [
        f"{label} on {env} ({verdict.difference.n})"
        for (env, label), verdict in verdicts.items()
        if verdict
        and verdict.word == "undecided"
        and verdict.difference.n < stats.EQUIVALENCE_SEEDS
    ]
    said = f"Equivalence cannot be shown with fewer than {stats.EQUIVALENCE_SEEDS} seeds on a side"
    return [Text(f"{said}, as in {', '.join(few)}.")] if few else []


# GRPO's estimators, with what their rows say: the paper's, which decides, and our default.
ESTIMATORS: tuple[tuple[Mapping[str, Any], str], ...] = ((OUTCOME, ""), ({}, ", returns-to-go"))
ESTIMATOR = (
    "GRPO by the paper's estimator decides, one advantage per episode (--advantage outcome); our "
    "default, which compares returns-to-go, stands beside it."
)


def without_critic(find: Find) -> Iterator[Block]:
    """What is claimed of GRPO and REINFORCE beside PPO, and of GRPO's hyperparameters."""
    yield from beside_ppo(find)
    yield from discounts(find)
    yield from group_sizes(find)


def beside_ppo(find: Find) -> Iterator[Block]:
    """What is claimed of GRPO and REINFORCE beside PPO."""

    def at(algo: str, env: str, **settings: Any) -> Result | None:
        """A run with the budget of GRPO's preset."""
        return find(algo, env, total_timesteps=BUDGETS[env], **settings)

    ppo = {env: at("ppo", env) for env in BUDGETS}
    reinforce = {env: at("reinforce", env) for env in (*LONG, SHORT)}
    outcome = {env: at("grpo", env, **OUTCOME) for env in (*LONG, SHORT)}
    to_go = {env: at("grpo", env) for env in BUDGETS}
    limits = ", ".join(f"{envs.make(env).spec.time_limit} on {env}" for env in BUDGETS)
    budgets = f"{', '.join(f'{n:,} timesteps on {env}' for env, n in BUDGETS.items())}"
    equal = (
        f"All train for GRPO's own budget ({budgets}); PPO's learning rate is annealed over as "
        "many. Until 2026-11-30 learning speed until the common budget decided, a third of this or "
        "half: the measure was changed when the runs were known."
    )
    long = {
        env: [
            ("PPO against GRPO", ppo[env], outcome[env]),
            ("PPO against REINFORCE", ppo[env], reinforce[env]),
        ]
        for env in LONG
    }
    yield from contrasts_of(
        "claims-critic",
        'Without a critic, policy gradients end below PPO where horizons are long: "all '
        'critic-free baselines underperform PPO", except where they are short.',
        DE_OLIVEIRA,
        long,
        f"{ESTIMATOR} {equal} Other settings are those of the presets: PPO's are tuned, of the "
        "others few. That CartPole's horizon is short is the paper's word, and no horizon is "
        f"varied here: episodes have up to so many steps: {limits}. {SPARSE} decides nothing: as "
        "long as no episode of a group reaches the goal, GRPO has nothing to learn from, whatever "
        "the horizon.",
        measure="late",
        beside={
            "late": {
                env: [("PPO against GRPO, returns-to-go", ppo[env], to_go[env])]
                for env in (*LONG, SPARSE)
            },
            "auc": long,
        },
    )
    large = LARGE_MINIBATCHES[0]
    short = [
        (f"GRPO against PPO, minibatches of {large['minibatch_size']}", at("grpo", SHORT, **large)),
        ("REINFORCE against PPO", reinforce[SHORT]),
    ]
    others = [
        ("GRPO against PPO, minibatches of the preset", outcome[SHORT]),
        ("GRPO against PPO, returns-to-go", to_go[SHORT]),
    ]

    def beside_ppo_on_short(
        runs: Sequence[tuple[str, Result | None]],
    ) -> dict[str, list[Contrast]]:
        return {SHORT: [(label, run, ppo[SHORT]) for label, run in runs]}

    yield from contrasts_of(
        "claims-short",
        'On CartPole, policy gradients without a critic end no lower than PPO: "except in '
        'short-horizon environments like CartPole where episodic returns can be effective".',
        DE_OLIVEIRA,
        beside_ppo_on_short(short),
        f"{ESTIMATOR} It has minibatches of {large['minibatch_size']} here: those of the preset "
        "were chosen for returns-to-go, and most seeds fail with them. "
        f"{equal} Equivalent is true, too: it is what the sentence says. PPO ends at the ceiling "
        "there, so that by late score nothing could be better.",
        measure="late",
        meaning=AS_GOOD,
        beside={"late": beside_ppo_on_short(others), "auc": beside_ppo_on_short(short + others)},
    )
    groups, presets = (
        {
            env: [("groups against PPO", run("grpo", env, std="none"), run("ppo", env))]
            for env in ABLATED
        }
        for run in (at, find)
    )
    yield from contrasts_of(
        "claims-group-gradient",
        'A group of parallel simulations replaces the critic: it "matches or outperforms PPO".',
        CHEN,
        groups,
        "GRPO with its preset, but without its division by the group's deviation (--std none), "
        "which is the paper's estimator but for details, and PPO with its preset. The paper has "
        "many parallel environments, and argues that a group makes better use of them; here a "
        f"group has as many episodes as the preset says, 8 to 16. {equal} Equivalent is true, too, "
        "except where PPO is at the ceiling.",
        measure="late",
        meaning=AS_GOOD,
        beside={"auc": groups, "early": presets},
        tells=False,
    )


def discounts(find: Find) -> Iterator[Block]:
    """What is claimed of GRPO's discount."""
    low, high = DISCOUNTS

    def contrasts(estimator: Mapping[str, Any], note: str) -> dict[str, list[Contrast]]:
        found = {}
        for env in ABLATED:
            # Pendulum's episodes never end early.
            pair = (low, high) if env == "Pendulum-v1" else (high, low)
            runs = [(f"{x:g}", find("grpo", env, gamma=x, **estimator)) for x in pair]
            found[env] = in_turn(runs, note)
        return found

    deciding, beside = (contrasts(*x) for x in ESTIMATORS)
    # The discounted return of a reward of 1 per step is within gamma^n of its limit from n on.
    steps = math.ceil(math.log(grpo.EQUAL) / math.log(low))
    yield from contrasts_of(
        "claims-discount",
        f"GRPO learns faster with a discount of {high:g} than with {low:g}, except where "
        "episodes never end early.",
        DE_OLIVEIRA,
        deciding,
        f"{ESTIMATOR} GRPO with its preset, except for the discount. Pendulum's episodes never end "
        f"early: there {low:g} is claimed to be better. With {low:g}, CartPole's episodes of "
        f"{steps} steps or more count as equal, since their discounted returns differ by less than "
        f"{grpo.EQUAL:g} of them: a group of these has no signal. Of returns-to-go, {low:g} only "
        "shortens how far ahead an action is credited.",
        beside={"early": beside},
    )


def group_sizes(find: Find) -> Iterator[Block]:
    """What is claimed of the size of GRPO's groups."""

    def contrasts(
        sizes: Sequence[tuple[int, int]],
        names: Sequence[str],
        estimator: Mapping[str, Any],
        note: str,
    ) -> dict[str, list[Contrast]]:
        return {
            env: in_turn(
                [
                    (name, find("grpo", env, groups=K, group_size=G, **estimator))
                    for name, (K, G) in zip(names, sizes, strict=True)
                ],
                note,
            )
            for env in ABLATED
        }

    starts = (
        'The paper says that "smaller group sizes outperform larger ones", of groups that "mix '
        'unrelated episodes"; here the episodes of a group have one start, so this is a question '
        "of our own."
    )
    for name, claim, sizes, names, about in (
        (
            "claims-group-size",
            "GRPO learns faster with smaller groups.",
            [(1, G) for G in GROUP_SIZES],
            [f"{G}" for G in GROUP_SIZES],
            "an update has one group of so many episodes: with small groups it takes more updates.",
        ),
        (
            "claims-group-equal",
            "GRPO learns faster with smaller groups, with as many episodes in every update.",
            EQUAL_EPISODES,
            [f"{K} x {G}" for K, G in EQUAL_EPISODES],
            "the episodes of an update are in so many groups of so many.",
        ),
    ):
        deciding, beside = (contrasts(sizes, names, *x) for x in ESTIMATORS)
        about = f"{ESTIMATOR} GRPO with its preset, except that {about} {starts}"
        source = f"{OURS}, after {DE_OLIVEIRA}"
        yield from contrasts_of(name, claim, source, deciding, about, beside={"early": beside})


def in_turn(runs: Sequence[tuple[str, Result | None]], note: str = "") -> list[Contrast]:
    """Each of the runs against the next one. note: behind the name of a contrast."""
    return [(f"{a} against {b}{note}", one, other) for (a, one), (b, other) in pairwise(runs)]


# ---- Replicas ------------------------------------------------------------------------------

WAYS = ("environment", "way", "n", "AUC, mean [95%]", "spread", "removed")
PAIRED = ("environment", "comparison", "n", "learning speed", "claim")


def averaged_replicas(stored: dict[str, Any]) -> Iterator[Block]:
    """Whether replicas of an update, averaged, learn faster than PPO and than more epochs."""
    areas = {(m["env"], m["way"]): np.array(m["auc"]) for m in stored["measurements"]}
    if any(len(x) != stored["seeds"] for x in areas.values()):
        raise ValueError("a measurement lacks a seed")
    rows = [
        (
            *(m["env"], m["way"], str(stored["seeds"])),
            stats.estimate(m["auc"], "mean").text(envs.make(m["env"]).spec.digits),
            *spread_texts(m["spread"]),
        )
        for m in stored["measurements"]
    ]
    K = stored["replicas"]
    about = (
        f"PPO with its presets and the common budgets: as it is (plain), with {K} times as many "
        f"epochs (deeper), and with these in {K} replicas from the same start, whose parameters "
        "are then averaged, with Adam's moments, which is our choice. spread: how far a replica is "
        "from the average, over the average's way from the start. removed: how much of a replica's "
        "squared way the average lacks, by that spread; where it is little, the average is about "
        "a plain update."
    )
    details: list[Block] = [
        Text(about),
        Text(
            "The paper starts from more epochs that do harm. Where deeper is not shown to be worse "
            "than plain, there is no harm to remove, and the claim is not tested. This condition "
            "and the pairing of seeds were added when the measurements were known."
        ),
        Table("claims-replicas", WAYS, rows),
        command_text(stored),
    ]

    def verdicts(one: str, other: str) -> dict[str, Parity | None]:
        return {
            env: parity(
                *(areas[env, one], areas[env, other], envs.make(env).spec),
                paired=True,
                margin=margin_at(env, "auc"),
            )
            for env in dict.fromkeys(env for env, _ in areas)
            if (env, one) in areas and (env, other) in areas
        }

    premise = verdicts("deeper", "plain")
    for other, claim in (
        ("plain", f"PPO learns faster when {K} replicas of each update are averaged."),
        ("deeper", f"{K} replicas, averaged, learn faster than {K} times as many epochs."),
    ):
        if found := verdicts("averaged", other):
            harmed = {env: x for env, x in found.items() if is_worse(premise.get(env))}
            card = partial(replicas_card, other, claim, found, premise, details)
            yield tested(p_of(harmed), card)
            details = [Text("The trainings and their scores are those of the claim above.")]


def spread_texts(spread: float | None) -> tuple[str, str]:
    """The spread of replicas, and the share of a replica's squared way that averaging removes."""
    if spread is None:
        return "", ""
    # Deviations from the average sum to 0, so that the squares add up.
    return f"{spread:.2f}", f"{spread**2 / (1 + spread**2):.1%}"


def is_worse(verdict: Parity | None) -> bool:
    return verdict is not None and verdict.word == "worse"


def replicas_card(
    other: str,
    claim: str,
    verdicts: Mapping[str, Parity | None],
    premise: Mapping[str, Parity | None],
    details: Sequence[Block],
    p: Sequence[float],
    level: float,
) -> Claim:
    """The card of verdicts on averaged against another way, by environment, with these p-values of
    those that are tested: where `premise`, on deeper against plain, is worse."""
    harmed = {env: x for env, x in verdicts.items() if is_worse(premise.get(env))}
    judged = with_p(harmed, p)
    answers = {env: answer(verdict, BETTER) for env, verdict in judged.items()}
    rows = []
    untested = []
    for env in verdicts:
        spec = envs.make(env).spec
        verdict, condition = judged.get(env, verdicts[env]), premise.get(env)
        texts = verdict_text(verdict, spec), verdict_text(condition, spec)
        sizes = ["" if x is None else str(x.difference.n) for x in (verdict, condition)]
        word = "deeper is worse" if env in answers else "deeper is not shown to be worse"
        rows.append(
            (env, f"averaged against {other}", sizes[0], texts[0], answers.get(env, "not tested"))
        )
        rows.append((env, "deeper against plain", sizes[1], texts[1], word))
        if env not in answers:
            untested.append(f"{env} (deeper against plain: {texts[1]})")
    sides, name = f"averaged minus {other}", f"claims-replicas-{other}"
    figure = verdict_forest(name, "Learning speed", {sides: {**verdicts, **judged}}, sides)
    details = [Table("", PAIRED, rows), *details]
    words, shown = [*answers.values()], judged.values()
    card = answered(claim, CAPO, words, "by learning speed", figure, details, shown, level)
    if not untested:
        return card
    said = f"more epochs are not shown to do harm on {' and '.join(untested)}"
    return replace(card, number=f"{text_of(card.number)}; not tested: {said}" if answers else said)


# ---- Tuning --------------------------------------------------------------------------------

TUNED = (
    "algorithm",
    "environment",
    "budget",
    "n",
    "on the seeds that chose it",
    "on the other seed",
)


def optimism(scores: Floats) -> tuple[float, float]:
    """The mean score of the best of [trials, seeds], chosen without a seed, on the seeds that chose
    it, and on the other; each seed is left out once."""
    found = []
    for seed in range(scores.shape[1]):
        others = np.delete(scores, seed, axis=1).mean(1)
        best = others.argmax()
        found.append((others[best], scores[best, seed]))
    chose, other = np.mean(found, axis=0)
    return float(chose), float(other)


def tuning(studies: Sequence[sensitivity.Study]) -> Iterator[Block]:
    """Whether the scores that a search reports are those of fresh seeds."""
    rows, drops = [], []  # drops: of every search
    by_pair: dict[tuple[str, str], list[float]] = {}  # of those that decide
    for study in studies:
        if study.of_language:  # these papers are on control
            continue
        scores = study.normalised("search").fillna(0.0).to_numpy()
        # Another sampler has seen the seed that is left out.
        if study.about["sampler"] != "random" or min(scores.shape) < 2:
            continue
        chose, other = optimism(scores)
        drops.append(chose - other)
        cut = study.about["cut"]
        if cut == 1:
            by_pair.setdefault((study.algo, study.env), []).append(chose - other)
        n = f"{scores.shape[0]} x {scores.shape[1]}"
        scored = f"{chose:.3f}", f"{other:.3f}"
        rows.append((study.label, study.env, f"{cut:.0%}", n, *scored))
    if len(by_pair) < 2:
        return
    means = np.array([np.mean(x) for x in by_pair.values()])
    measure, what = "normalised final score", "the seeds that chose minus the other, a mean of "
    (found,) = compared(measure, f"{what}algorithms and environments", stats.mean_difference(means))
    yield judged(
        "claims-tuning",
        "Hyperparameters score higher on the seeds that they were tuned on than on other seeds.",
        EIMER,
        [found._replace(p=stats.sign_flip_p(means))],
        [
            Text(
                "From the published random searches: of n configurations x seeds, the best by the "
                "mean final score without one seed, on the seeds that chose it and on that one; "
                "each seed is left out once. An algorithm on an environment counts once, by the "
                "mean of its searches, and searches whose configurations have a part of the budget "
                "do not count. p is that of flipped signs. This test was changed when the data "
                "were known: the older one took every search for one observation, and was "
                "Student's. It stands beside, uncorrected."
            ),
            folded_if_long("Every search", Table("claims-tuning", TUNED, rows)),
        ],
        beside=compared(measure, f"{what}all searches", stats.mean_difference(drops)),
    )


AREA = "area under the ROC curve"
SIGNAL_COLUMNS = (
    *("environment", "signal", "n", "good", f"{AREA}, mean [95%]", "against too small"),
    *("against too large", "precision of the band", "its recall"),
)
SIGNAL_NAMES = {
    "actor": "balance of the actor's activations",
    "critic": "balance of the critic's activations",
    "return": "greedy return",
    "kl": "minus KL of the updates",
}
FEWEST_GOOD = 0.1  # of all trainings, below which an environment tells nothing of screening
RECALL = 0.8  # of the good ones that a band has on the seeds that choose it


def discrimination(signal: Floats, good: NDArray[np.bool_], bad: NDArray[np.bool_]) -> float:
    """The area under the ROC curve, of [n]: the chance that a good one has a higher signal than a
    bad one, equal ones counting half."""
    higher, lower = signal[good][:, None], signal[bad][None, :]
    return float((higher > lower).mean() + 0.5 * (higher == lower).mean())


def wings(rates: Floats, good: NDArray[np.bool_]) -> dict[str, NDArray[np.bool_]]:
    """The bad ones of [n] by their side: all, those below and those above every good rate."""
    return {
        "all": ~good,
        "too small": rates < rates[good].min(),
        "too large": rates > rates[good].max(),
    }


def band(signal: Floats, good: NDArray[np.bool_], open_above: bool) -> tuple[float, float]:
    """The ends of the most precise interval of signals [n] that has RECALL of the good ones."""
    values, others = np.sort(signal[good]), np.sort(signal[~good])
    n = len(values)
    first, last = np.triu_indices(n, math.ceil(RECALL * n) - 1)
    if open_above:
        first, last = first[last == n - 1], last[last == n - 1]
    low, high = values[first], np.where(open_above, math.inf, values[last])
    inside = [
        x.searchsorted(high, side="right") - x.searchsorted(low, side="left")
        for x in (values, others)
    ]
    best = (inside[0] / (inside[0] + inside[1])).argmax()
    return float(low[best]), float(high[best])


def screened(
    signal: Floats, good: NDArray[np.bool_], open_above: bool
) -> tuple[list[float], list[float]]:
    """Precision and recall on each seed of the band that all others choose; both are
    [rates, seeds], with good ones in each seed. A band without anything in it has precision 0."""
    precision, recall = [], []
    for seed in range(signal.shape[1]):
        rest = np.arange(signal.shape[1]) != seed
        low, high = band(signal[:, rest].ravel(), good[:, rest].ravel(), open_above)
        chosen = (signal[:, seed] >= low) & (signal[:, seed] <= high)
        hits = (chosen & good[:, seed]).sum()
        precision.append(float(hits / max(chosen.sum(), 1)))
        recall.append(float(hits / good[:, seed].sum()))
    return precision, recall


def early_signals(stored: dict[str, Any]) -> Iterator[Block]:
    """What a tenth of a training tells of its learning rate."""
    rows = []
    actor: list[Compared] = []
    precise: list[Compared] = []
    floors = []
    for m in stored["measurements"]:
        env, shape = m["env"], (-1, stored["seeds"])
        bar = envs.make(env).spec.reward_threshold
        good = np.reshape(m["final"], shape) >= (math.inf if bar is None else bar)  # [rates, S]
        both = good.any(0) & ~good.all(0)
        share = f"{good.sum()} of {good.size}"
        good, rates = good[:, both], np.reshape(m["rates"], shape)[:, both]
        decides = good.sum() >= FEWEST_GOOD * np.size(m["final"])
        if not decides:
            floors.append(f"{env} ({share})")
        sides = [wings(rates[:, s], good[:, s]) for s in range(both.sum())]
        precisions = {}
        for name, called in SIGNAL_NAMES.items():
            signal = np.reshape(m["signals"][name], shape)[:, both]
            areas = {
                side: [
                    discrimination(signal[:, s], good[:, s], bad[side])
                    for s, bad in enumerate(sides)
                    if bad[side].any()
                ]
                for side in ("all", "too small", "too large")
            }
            found = screened(signal, good, name == "return") if len(sides) > 1 else ([], [])
            precisions[name] = np.array(found[0])
            n = len(sides)
            texts = [mean_text(x, n) for x in (*areas.values(), *found)]
            rows.append((env, called, str(n), share, *texts))
            for side in ("too small", "too large"):
                if name == "actor" and decides and len(areas[side]) >= FEWEST:
                    d = stats.mean_difference(np.array(areas[side]) - 0.5)
                    actor += compared(f"{AREA} minus 0.5", f"{env}, against {side} ones", d)
        for name in ("actor", "critic"):
            d = precisions[name] - precisions["return"]
            if decides and len(d) >= FEWEST:
                what = f"{env}, {SIGNAL_NAMES[name]}"
                precise += compared(
                    "precision minus that of the greedy return", what, stats.mean_difference(d)
                )
    details: list[Block] = [
        Text(
            f"PPO with its presets and the common budgets, except for the learning rate: "
            f"{len(learning_rates.RATES)} of them from {learning_rates.RATES[0]:g} to "
            f"{learning_rates.RATES[-1]:g}. A rate is good for a seed that ends at the reward "
            "threshold. The area under the ROC curve is the chance that of a good and a bad rate "
            "the good one has the higher signal: 0.5 is a coin. Of all bad rates it depends on how "
            "many too small and too large ones the grid has, so that it stands beside those of "
            "either side, the rates below and above every good one of a seed. n: seeds that have "
            "good and bad rates; fewer may have bad ones on a side."
        ),
        Text(
            f"A band is the interval of a signal with the highest precision of those that have "
            f"{RECALL:.0%} of the good rates, and open above for the return. It is chosen on all "
            "other seeds: precision and recall are those on the seed that is left out."
        ),
        Text(
            "The balance is that of the paper as we read it, on states of one rollout of an "
            "untrained policy, and these rules are ours. They were chosen when the measurements "
            "were known: until 2026-11-29 the area against all bad rates decided. Not tested here "
            "is the paper's combination with the return."
        ),
        *floor_note(floors),
        Table("claims-signals", SIGNAL_COLUMNS, rows),
        command_text(stored),
    ]
    if actor:
        yield judged(
            "claims-activations",
            "After a tenth of PPO's training, good learning rates have a higher balance of the "
            "actor's activations than too small ones and than too large ones.",
            f"{OURS}, after {FERNANDEZ}",
            actor,
            details,
        )
        details = [Text("The trainings and the bands are those of the claim above.")]
    if precise:
        yield judged(
            "claims-screening",
            "At the same recall on the seeds that choose it, a band of the balance of activations "
            "screens learning rates more precisely than the return does.",
            f"{OURS}, after {FERNANDEZ}",
            precise,
            details,
        )


def mean_text(values: Sequence[float], n: int) -> str:
    """The mean of seeds with its interval; `-` of fewer than two. n: seeds of its row."""
    if len(values) < 2:
        return "-"
    fewer = f", n={len(values)}" if len(values) < n else ""
    return stats.estimate(values, "mean").text(3) + fewer


def floor_note(floors: Sequence[str]) -> list[Block]:
    """Where nothing is tested, with how many trainings are good; nothing where it is everywhere."""
    if not floors:
        return []
    said = f"Not tested where fewer than {FEWEST_GOOD:.0%} of the trainings are good"
    return [Text(f"{said}: {', '.join(floors)}.")]


# ---- Seeds ---------------------------------------------------------------------------------

SPLIT = ("algorithm", "environment", "n", "seeds a group", "t-test", "bootstrap")


def groups_of(scores: Floats, size: int) -> tuple[Floats, Floats]:
    """Random disjoint groups of a run's seeds, two of [SPLITS, size]."""
    rng = np.random.default_rng(0)
    n = len(scores)
    order = rng.random((SPLITS, n)).argpartition(2 * size, axis=1)[:, : 2 * size]
    # A partition leaves both groups in an order of its own, so they are drawn once more.
    order = rng.permuted(order, axis=1)
    drawn = scores[order]
    return drawn[:, :size], drawn[:, size:]


def t_test(a: Floats, b: Floats) -> NDArray[np.bool_]:
    """Whether Welch's test calls groups [splits, size] different at 5%, [splits]."""
    from scipy.stats import ttest_ind

    vary = (np.ptp(a, axis=1) > 0) | (np.ptp(b, axis=1) > 0)
    found = np.zeros(len(a), dtype=bool)
    found[vary] = ttest_ind(a[vary], b[vary], axis=1, equal_var=False).pvalue < PROMISED
    return found


def bootstrap_test(a: Floats, b: Floats) -> NDArray[np.bool_]:
    """Whether the 95% percentile bootstrap of the difference of means excludes 0, [splits]."""
    rng = np.random.default_rng(0)
    size = a.shape[1]
    picks = [rng.integers(size, size=(RESAMPLES, size)) for _ in range(2)]
    first, second = (x[:, pick].mean(-1) for x, pick in zip((a, b), picks, strict=True))
    low, high = np.quantile(first - second, (0.025, 0.975), axis=1)
    return (low > 0) | (high < 0)


def few_seeds(results: Sequence[Result]) -> Iterator[Block]:
    """What few seeds of one algorithm say, by runs of which there are many seeds."""
    runs = [run for run in map(without_fresh, results) if is_preset(run) and len(run.seeds) >= MANY]
    runs = [run for run in runs if np.ptp(run.auc) > 0]
    rows = []
    called: dict[tuple[str, int], list[float]] = {}  # by test and seeds a group, a share per run
    for run, size in product(runs, FEW):
        a, b = groups_of(run.auc, size)
        shares = {"t-test": t_test(a, b).mean(), "bootstrap": bootstrap_test(a, b).mean()}
        for test, found in shares.items():
            called.setdefault((test, size), []).append(float(found))
        about = display(run.algo), run.spec.id, str(len(run.seeds)), str(size)
        rows.append((*about, *(f"{x:.1%}" for x in shares.values())))
    if len(runs) < 2:
        return
    drawn = Text(
        "Learning speed (AUC) of the presets' runs with "
        f"{MANY} seeds or more: two groups of so many of their seeds are drawn {SPLITS:,} times, "
        "without common seeds, and tested at 5%. All differences are chance; n counts runs."
    )
    share = "share of pairs of groups that are called different"
    beyond = np.array(called["t-test", FEW[0]]) - PROMISED
    yield judged(
        "claims-splits",
        f"Two groups of {FEW[0]} seeds of one algorithm are called different more often than the "
        "5% that a t-test promises.",
        HENDERSON,
        compared(f"{share}, minus 5%", f"{FEW[0]} seeds a group", stats.mean_difference(beyond)),
        [
            Text("The paper shows one such pair; here is how often there is one."),
            drawn,
            folded_if_long("Every run", Table("claims-seeds", SPLIT, rows)),
            *commands([run.run for run in runs]),
        ],
    )
    found = []
    for size in FEW:
        excess = np.array(called["bootstrap", size]) - called["t-test", size]
        what = f"{size} seeds a group"
        found += compared(f"{share}, bootstrap minus t-test", what, stats.mean_difference(excess))
    yield judged(
        "claims-bootstrap",
        "With few seeds, the bootstrap calls equal algorithms different more often than Welch's "
        "t-test does.",
        COLAS,
        found,
        [drawn],
    )
    yield from middle_half(runs)


def deviation(values: Floats) -> float:
    """The standard deviation, and exactly 0 of equal values."""
    return float(np.std(values)) if np.ptp(values) > 0 else 0.0


def is_preset(run: Result) -> bool:
    """Whether it is the run of an algorithm of ours with its preset."""
    if run.algo not in catalog.names("algos"):
        return False
    presets = catalog.module("algos", run.algo).PRESETS
    return run.spec.id in presets and finder([run])(run.algo, run.spec.id) is not None


def middle_half(runs: Sequence[Result]) -> Iterator[Block]:
    """Whether the IQM of a few runs of several environments varies less than the median."""
    by_algo: dict[str, list[Floats]] = {}
    for run in runs:
        by_algo.setdefault(run.algo, []).append(normalised(run))
    rows = []
    answers: list[Answer] = []
    ratios = []
    constant = []  # algorithms whose median does not vary
    rng = np.random.default_rng(0)
    for algo, tasks in by_algo.items():
        if len(tasks) < 3:  # the median of two is their mean
            continue
        drawn = np.stack([rng.choice(x, (SPLITS, FEW[-1])) for x in tasks])  # [tasks, draws, seeds]
        iqm = deviation(stats.iqm(drawn.transpose(1, 0, 2).reshape(SPLITS, -1)))
        median = deviation(np.median(drawn.mean(-1), axis=0))
        answers.append("undecided" if iqm == median == 0 else "true" if iqm < median else "false")
        if median > 0:
            ratios.append(f"{iqm / median:.2f}")
        else:
            constant.append(display(algo))
        rows.append((display(algo), str(len(tasks)), f"{iqm:.4f}", f"{median:.4f}"))
    if not rows:
        return
    number = f"its deviation is {', '.join(ratios)} of the median's" if ratios else ""
    without = f"the median of {' and '.join(constant)} does not vary" if constant else ""
    guarded = Text(
        "Where the median does not vary, there is no quotient: the comparison is false if the IQM "
        "varies, and undecided if it does not."
    )
    yield Claim(
        "The IQM over environments and seeds varies less than the median over environments.",
        claim_word(answers),
        ", but ".join(filter(None, (number, without))),
        details=[
            Text(
                f"Normalised learning speed of the presets' runs with {MANY} seeds or more: "
                f"{FEW[-1]} seeds of each environment are drawn {SPLITS:,} times. The IQM is that "
                "of all of them together, the median that of the environments' means. The smaller "
                "deviation decides, without a test."
            ),
            *([guarded] if constant else []),
            Table("claims-iqm", MIDDLE, rows),
        ],
        source=AGARWAL,
    )


MIDDLE = ("algorithm", "environments", "deviation of the IQM", "deviation of the median")


def normalised(run: Result) -> Floats:
    """Learning speed, [S]: 0 a random policy, 1 the reference; both are known of our presets."""
    random, reference = run.spec.random_score, run.spec.reference_score
    assert random is not None
    assert reference is not None
    found: Floats = stats.normalise(run.auc, random, reference)
    return found
