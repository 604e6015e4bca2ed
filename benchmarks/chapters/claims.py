"""The page of what papers on control claim: an experiment and a verdict for each claim.

Reads the runs of `python benchmarks/sweep.py --suite claims`, those of the algorithms' presets and
the published searches. ABOUT says which rules were written before the runs that they judge.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from manyseeds import envs, stats
from manyseeds.benchmarks.chapters import sensitivity
from manyseeds.benchmarks.chapters.blocks import (
    OURS,
    Block,
    Claim,
    Outcome,
    Table,
    Text,
    folded_if_long,
)
from manyseeds.benchmarks.chapters.blocks import sections as titled
from manyseeds.benchmarks.chapters.differences import (
    BETTER,
    CLAIM_RULE,
    HOLM,
    MARGINS_SINCE,
    Answer,
    Verdicts,
    answer,
    answered,
    claim_word,
    compared,
    corrected,
    counted,
    judged,
    p_of,
    tested,
    verdict_forest,
    with_p,
)
from manyseeds.benchmarks.chapters.origins import command_text, commands
from manyseeds.benchmarks.experiments import catalog
from manyseeds.benchmarks.experiments.suite import (
    ABLATED,
    DISCOUNTS,
    EQUAL_EPISODES,
    GROUP_SIZES,
    Cell,
)
from manyseeds.benchmarks.experiments.verdicts import margin_at
from manyseeds.benchmarks.measurements import learning_rates, replicas
from manyseeds.benchmarks.store.comparison import COMMON, MEASURES, run_of
from manyseeds.benchmarks.store.names import display
from manyseeds.benchmarks.store.results import Result, parity, parity_of, verdict_text
from manyseeds.benchmarks.store.stored import find_file, section_of
from manyseeds.record import plural
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
    "Claims of papers on control that can be tested in minutes; learning speed is the mean return "
    "until the common budget of an environment, and its margin that of the learning speed over a "
    "whole training. What decides the claims on discounts, groups, replicas and early signs was "
    "stated before the runs that test it were trained; the others rest on runs that were known. "
    f"{MARGINS_SINCE}"
)


def with_outcome(sections: Mapping[str, Sequence[Block]], what: str, about: str) -> Iterator[Block]:
    """A page of claims, corrected together, below how many there are of each word; nothing without
    any. what: they are called."""
    blocks = corrected(titled(sections))
    words = [x.verdict for x in blocks if isinstance(x, Claim)]
    if not words:
        return
    yield Outcome(f"{plural(len(words), what)}: {counted(words)}.")
    yield Text(
        f"{about} {CLAIM_RULE} {HOLM} Differences that are not verdicts are decided likewise, by "
        "their 95% interval and Student's test; those of shares by Newcombe's interval and "
        "Fisher's test."
    )
    yield from blocks


# ---- Without a critic ----------------------------------------------------------------------

CRITIC_FREE = ("grpo", "reinforce")
LONG = ("Acrobot-v1", "MountainCar-v0", "Pendulum-v1")
SHORT = "CartPole-v1"  # as the paper calls it

# A name, the side that is claimed to be better, and the other.
Contrast = tuple[str, Result | None, Result | None]


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


def contrasts_of(
    name: str,
    claim: str,
    source: str,
    contrasts: dict[str, list[Contrast]],
    about: str,
    measure: str = "early",
    meaning: dict[str, Answer] | None = None,
) -> Iterator[Block]:
    """The card of a claim on pairs of runs, by environment; nothing without any pair.

    measure: of `MEASURES`, or early, `early_speed`. meaning: of the words of verdicts, where it is
    not that the first side is better.
    """
    verdicts: dict[tuple[str, str], Parity | None] = {}
    sides: dict[tuple[str, str], tuple[Result, Result]] = {}
    early = measure == "early"
    by = "learning speed until the common budget" if early else MEASURES[measure]
    for env, pairs in contrasts.items():
        for label, better, other in pairs:
            if better and other:
                verdict = (
                    early_parity(better, other) if early else parity_of(better, other, measure)
                )
                verdicts[env, label], sides[env, label] = verdict, (better, other)
    if not verdicts:
        return
    runs = {x.run.path: x.run for pair in sides.values() for x in pair}
    columns = ("environment", "comparison", "n", by, "claim")

    def card(p: Sequence[float]) -> Claim:
        rows: list[tuple[str, ...]] = []
        panels: Verdicts = {}
        for (env, label), verdict in with_p(verdicts, p).items():
            panels.setdefault(env, {})[label] = verdict
            better, other = sides[env, label]
            n = f"{len(better.seeds)} and {len(other.seeds)}"
            text = verdict_text(verdict, better.spec)
            rows.append((env, label, n, text, answer(verdict, meaning or BETTER)))
        figure = verdict_forest(name, f"Difference of {by}", panels, "first minus second")
        details = [
            Text(about),
            folded_if_long("Every comparison", Table(name, columns, rows)),
            *commands([*runs.values()]),
        ]
        answers = [row[-1] for row in rows]
        judged = with_p(verdicts, p).values()
        return answered(claim, source, answers, f"by {by}", figure, details, judged)

    yield tested(p_of(verdicts), card)


def without_critic(find: Find) -> Iterator[Block]:
    """What is claimed of GRPO and REINFORCE beside PPO, and of GRPO's hyperparameters."""
    ppo = {env: find("ppo", env) for env in (*LONG, SHORT)}
    free = {env: {algo: find(algo, env) for algo in CRITIC_FREE} for env in ppo}
    limits = ", ".join(f"{envs.make(env).spec.time_limit} on {env}" for env in ppo)
    yield from contrasts_of(
        "claims-critic",
        "Without a critic, policy gradients learn more slowly than PPO, except on CartPole, whose "
        "horizon is short.",
        DE_OLIVEIRA,
        {
            env: [(f"PPO against {display(a)}", ppo[env], free[env][a]) for a in CRITIC_FREE]
            for env in LONG
        },
        "PPO, GRPO and REINFORCE with their presets: PPO's are tuned, of the others few. That "
        "CartPole's horizon is short is the paper's word, and no horizon is varied here: episodes "
        f"have up to so many steps: {limits}. On MountainCar GRPO has nothing to learn from, "
        "whatever the horizon.",
    )
    yield from contrasts_of(
        "claims-short",
        "On CartPole, GRPO is no worse than PPO.",
        DE_OLIVEIRA,
        {SHORT: [("GRPO against PPO", free[SHORT]["grpo"], ppo[SHORT])]},
        "Both with their presets. Equivalent is true, too.",
        meaning=AS_GOOD,
    )
    yield from contrasts_of(
        "claims-group-gradient",
        "Compared with its group, an action needs no critic: the group matches or outperforms PPO.",
        CHEN,
        {env: [("groups against PPO", find("grpo", env, std="none"), ppo[env])] for env in ABLATED},
        "GRPO with its preset, but without its division by the group's deviation (--std none), "
        "which is the paper's estimator but for details, and PPO with its preset. Equivalent is "
        "true, too.",
        meaning=AS_GOOD,
    )
    low, high = DISCOUNTS
    discounts: dict[str, list[Contrast]] = {}
    for env in ABLATED:
        # Pendulum's episodes never end early.
        pair = (low, high) if env == "Pendulum-v1" else (high, low)
        discounts[env] = in_turn([(f"{x:g}", find("grpo", env, gamma=x)) for x in pair])
    yield from contrasts_of(
        "claims-discount",
        f"GRPO learns faster with a discount of {high:g} than with {low:g}, except where "
        "episodes never end early.",
        DE_OLIVEIRA,
        discounts,
        "GRPO with its preset, except for the discount. Pendulum's episodes never end early: "
        f"there {low:g} is claimed to be better.",
    )
    sizes = {
        env: [(f"{G}", find("grpo", env, groups=1, group_size=G)) for G in GROUP_SIZES]
        for env in ABLATED
    }
    theirs = (
        "In the paper an episode has one advantage, and its groups mix episodes of different "
        "starts; here returns-to-go are compared, of episodes from one start."
    )
    yield from contrasts_of(
        "claims-group-size",
        "GRPO learns faster with smaller groups.",
        DE_OLIVEIRA,
        {env: in_turn(own) for env, own in sizes.items()},
        "GRPO with its preset, except that an update has one group of so many episodes: with "
        f"small groups it takes more updates. {theirs}",
    )
    equal = {
        env: [(f"{K} x {G}", find("grpo", env, groups=K, group_size=G)) for K, G in EQUAL_EPISODES]
        for env in ABLATED
    }
    yield from contrasts_of(
        "claims-group-equal",
        "GRPO learns faster with smaller groups, with as many episodes in every update.",
        DE_OLIVEIRA,
        {env: in_turn(own) for env, own in equal.items()},
        "GRPO with its preset, except that the episodes of an update are in so many groups of so "
        f"many. {theirs}",
    )


def in_turn(runs: Sequence[tuple[str, Result | None]]) -> list[Contrast]:
    """Each of the runs against the next one."""
    return [(f"{a} against {b}", one, other) for (a, one), (b, other) in pairwise(runs)]


# ---- Replicas ------------------------------------------------------------------------------

WAYS = ("environment", "way", "n", "AUC, mean [95%]", "spread")


def averaged_replicas(stored: dict[str, Any]) -> Iterator[Block]:
    """Whether replicas of an update, averaged, learn faster than PPO and than more epochs."""
    areas = {(m["env"], m["way"]): np.array(m["auc"]) for m in stored["measurements"]}
    if any(len(x) != stored["seeds"] for x in areas.values()):
        raise ValueError("a measurement lacks a seed")
    rows = [
        (
            *(m["env"], m["way"], str(stored["seeds"])),
            stats.estimate(m["auc"], "mean").text(envs.make(m["env"]).spec.digits),
            "" if m["spread"] is None else f"{m['spread']:.2f}",
        )
        for m in stored["measurements"]
    ]
    K = stored["replicas"]
    about = (
        f"PPO with its presets and the common budgets: as it is (plain), with {K} times as many "
        f"epochs (deeper), and with these in {K} replicas from the same start, whose parameters "
        "are then averaged, with Adam's moments, which is our choice. spread: how far a replica is "
        "from the average, over the average's way from the start."
    )
    details: list[Block] = [
        Text(about),
        Table("claims-replicas", WAYS, rows),
        command_text(stored),
    ]
    for other, claim in (
        ("plain", f"PPO learns faster when {K} replicas of each update are averaged."),
        ("deeper", f"{K} replicas, averaged, learn faster than {K} times as many epochs."),
    ):
        verdicts = {
            env: parity(
                *(areas[env, "averaged"], areas[env, other], envs.make(env).spec),
                margin=margin_at(env, "auc"),
            )
            for env in dict.fromkeys(env for env, _ in areas)
            if (env, "averaged") in areas and (env, other) in areas
        }
        if verdicts:
            name = f"claims-replicas-{other}"
            sides = f"averaged minus {other}"
            yield tested(
                p_of(verdicts), partial(replicas_card, name, claim, verdicts, sides, details)
            )
            details = [Text("The trainings and their scores are those of the claim above.")]


def replicas_card(
    name: str,
    claim: str,
    verdicts: Mapping[str, Parity | None],
    sides: str,
    details: Sequence[Block],
    p: Sequence[float],
) -> Claim:
    """The card of verdicts by environment, with these p-values."""
    judged = with_p(verdicts, p)
    answers = [answer(verdict, BETTER) for verdict in judged.values()]
    figure = verdict_forest(name, "Learning speed", {sides: judged}, sides)
    return answered(claim, CAPO, answers, "by learning speed", figure, details, judged.values())


# ---- Tuning --------------------------------------------------------------------------------

TUNED = ("algorithm", "environment", "n", "on the seeds that chose it", "on the other seed")


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
    rows, drops = [], []
    for study in studies:
        if study.of_language:  # these papers are on control
            continue
        scores = study.normalised("search").fillna(0.0).to_numpy()
        # Another sampler has seen the seed that is left out.
        if study.about["sampler"] != "random" or min(scores.shape) < 2:
            continue
        chose, other = optimism(scores)
        drops.append(chose - other)
        n = f"{scores.shape[0]} x {scores.shape[1]}"
        rows.append((study.label, study.env, n, f"{chose:.3f}", f"{other:.3f}"))
    if len(drops) < 2:
        return
    difference = stats.mean_difference(drops)
    what = "the seeds that chose minus the other, a mean of searches"
    yield judged(
        "claims-tuning",
        "Hyperparameters score higher on the seeds that they were tuned on than on other seeds.",
        EIMER,
        compared("normalised final score", what, difference),
        [
            Text(
                "From the published random searches: of n configurations x seeds, the best by the "
                "mean final score without one seed, on the seeds that chose it and on that one; "
                "each seed is left out once. n of the difference is the number of searches."
            ),
            folded_if_long("Every search", Table("claims-tuning", TUNED, rows)),
        ],
    )


SIGNAL_COLUMNS = ("environment", "signal", "n", "area under the ROC curve, mean [95%]")
SIGNAL_NAMES = {
    "actor": "balance of the actor's activations",
    "critic": "balance of the critic's activations",
    "return": "greedy return",
    "kl": "minus KL of the updates",
}


def discrimination(signal: Floats, good: NDArray[np.bool_]) -> float:
    """The area under the ROC curve, of [n]: the chance that a good one has the higher signal, equal
    ones counting half."""
    higher, lower = signal[good][:, None], signal[~good][None, :]
    return float((higher > lower).mean() + 0.5 * (higher == lower).mean())


def early_signals(stored: dict[str, Any]) -> Iterator[Block]:
    """What a tenth of a training tells of its learning rate."""
    areas: dict[str, dict[str, Floats]] = {}  # by environment and signal, of each seed
    rows = []
    for m in stored["measurements"]:
        bar = envs.make(m["env"]).spec.reward_threshold
        shape = -1, stored["seeds"]
        good = np.reshape(m["final"], shape) >= (math.inf if bar is None else bar)  # [rates, S]
        both = good.any(0) & ~good.all(0)
        for name in SIGNAL_NAMES:
            signal = np.reshape(m["signals"][name], shape)
            own = [discrimination(signal[:, s], good[:, s]) for s in np.flatnonzero(both)]
            areas.setdefault(m["env"], {})[name] = np.array(own)
            about = (m["env"], SIGNAL_NAMES[name], str(len(own)))
            rows.append((*about, stats.estimate(own, "mean").text(3) if len(own) > 1 else "-"))
    known = {env: own for env, own in areas.items() if len(own["actor"]) > 1}
    details: list[Block] = [
        Text(
            f"PPO with its presets and the common budgets, except for the learning rate: "
            f"{len(learning_rates.RATES)} of them from {learning_rates.RATES[0]:g} to "
            f"{learning_rates.RATES[-1]:g}. A rate is good for a seed that ends at the reward "
            "threshold. The area under the ROC curve is the chance that of a good and a bad rate "
            "the good one has the higher signal: 0.5 is a coin. n: seeds. The balance is that of "
            "the paper as we read it; the paper compares rules of screening, by their precision at "
            "equal recall, and says that the critic's is best in between."
        ),
        Table("claims-signals", SIGNAL_COLUMNS, rows),
        command_text(stored),
    ]
    for name, claim, other in (
        (
            "claims-activations",
            "After a tenth of PPO's training, good learning rates have a higher balance of the "
            "actor's activations than bad ones.",
            None,
        ),
        (
            "claims-screening",
            "The balance of the actor's activations tells good learning rates from bad ones better "
            "than the return does.",
            "return",
        ),
    ):
        found = []
        for env, signals in known.items():
            d = signals["actor"] - (signals[other] if other else 0.5)
            against = f"minus that of the {SIGNAL_NAMES[other]}" if other else "minus 0.5"
            measure = f"area under the ROC curve {against}"
            found += compared(measure, env, stats.mean_difference(d))
        if found:
            yield judged(name, claim, FERNANDEZ, found, details if other is None else ())


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
    runs = [run for run in results if is_preset(run) and len(run.seeds) >= MANY]
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
        "without common seeds, and tested at 5%. Whatever differs, differs by chance. n of a "
        "difference: runs."
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
                "of all of them together, the median that of the environments' means."
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
