"""The report's page of verdicts: all of them, what they are worth together, simulated error rates,
revised verdicts, and how the numbers of the report are to be read."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from statistics import NormalDist
from typing import Any

from manyseeds import stats
from manyseeds.benchmarks.chapters.blocks import (
    Block,
    Claim,
    ClaimWord,
    Code,
    Heading,
    Item,
    Items,
    Link,
    Outcome,
    Rows,
    Strong,
    Table,
    Text,
    folded_if_long,
)
from manyseeds.benchmarks.chapters.differences import MARGINS_SINCE, Verdicts, verdict_forest
from manyseeds.benchmarks.chapters.environment_pages import anchor, page_name
from manyseeds.benchmarks.chapters.origins import command_text
from manyseeds.benchmarks.experiments.revised import FRESH, REVISED
from manyseeds.benchmarks.experiments.verdicts import (
    EQUIVALENT_FROM,
    FAILED,
    FAILURE_MARGIN,
    LAST_SHARE,
    LEVELS,
    LOOKS,
    MARGIN,
    MARGIN_LEAST,
    OURS,
    SHOWN_LEVEL,
    Verdict,
    seeds_to_decide,
)
from manyseeds.benchmarks.measurements import margins
from manyseeds.benchmarks.measurements.error_rates import STORED
from manyseeds.benchmarks.store.comparison import (
    MEASURES,
    SB3,
    Pair,
    is_stale,
    plain_command,
)
from manyseeds.benchmarks.store.costs import seed_seconds
from manyseeds.benchmarks.store.names import display
from manyseeds.benchmarks.store.results import (
    Result,
    decision_text,
    p_text,
    parity_of,
    side_of,
    verdict_text,
)
from manyseeds.benchmarks.store.stored import find_file, section_of
from manyseeds.evaluate import CURVE_EPISODES, FINAL_EPISODES, POINTS
from manyseeds.record import plural, ranges
from manyseeds.stats import EQUIVALENCE_SEEDS, RESAMPLES, Parity
from manyseeds.worth import FLOOR

RULE = Items(
    [
        "Learning speed is judged first, because it tells algorithms apart; then the late score.",
        f'"Equivalent" takes three things: the {SHOWN_LEVEL} interval lies within the margin of '
        f"the environment, whatever its sign; SB3 has at least {EQUIVALENT_FROM} seeds; and the "
        f"shares of seeds with a normalised late score below {FAILED} differ by less than "
        f"{FAILURE_MARGIN} (95% interval). An interval within the margin is otherwise undecided.",
        f'If the {1 - LEVELS.differs:.0%} interval lies above 0, it is "better", and below 0 '
        f'"worse", if the permutation test agrees at {LEVELS.differs:.0%}.',
        '"Ceiling" is said in the place of equivalent where SB3\'s algorithm is as close to '
        f"another one of SB3's by the late score, within ±{MARGIN_LEAST}: there equivalence says "
        "nothing.",
        'Any other interval is "undecided".',
        f"The margin is at most ±{MARGIN}, and so narrow that nine in ten pairs of different "
        "algorithms of SB3's, of those not at their ceiling, would not be equivalent (margins.py).",
        f"The test is sequential: it is run at {', '.join(map(str, LOOKS))} seeds of SB3's, which "
        f"are dear, and all of ours up to {OURS}, which are cheap; the first decisive result is "
        "the verdict, and final when ours has the seeds that its suite states. How often this errs "
        f"is simulated with {OURS} (error_rates.py); cases where it errs in more than 5% are named "
        "with the error rates.",
        f"There is no verdict until both sides have seeds 0 to {LOOKS[0] - 1}, or if the "
        "environment's random or reference score is unknown.",
        "Verdicts use the mean, not the IQM, so that failed seeds count. Intervals come from two "
        "bootstraps, of each side alone and of the deviations of both together, whichever reaches "
        "further.",
        "The rule is version 2, stated on 2026-11-27. The seeds published before had been judged "
        "by version 1, which had 10, 20, 30 and 60 seeds a side and a margin of 0.05 everywhere.",
        "Comparisons other than those with SB3 at the same settings, and revised verdicts, are "
        "single tests with 95% intervals and p < 0.05, unless their page corrects them. Their "
        f"margins are those of the environment; {MARGIN} where it has none of its own and for "
        f'language models. "Equivalent" takes {EQUIVALENCE_SEEDS} seeds a side there, and failure '
        "rates are not compared: where none of these fails, one in ten may. "
        '"Saturated" is said where all seeds of both sides score the same. It says only that, and '
        "decides a claim only where its page says so. "
        f"{MARGINS_SINCE}",
    ]
)
HOW_TO_READ = Items(
    [
        (
            Strong("Evaluation."),
            f" Each seed is evaluated {POINTS + 1} times, before training and at the first update "
            f"after every 1/{POINTS} of it, on {CURVE_EPISODES} episodes, and after training on "
            f"{FINAL_EPISODES}: greedy policy, raw rewards, and the same start states for all "
            "seeds and algorithms. In tabular environments the greedy policy's return is computed "
            "exactly from P and R instead. The final score is the greedy return after training, "
            "not the best one during training. The late score, which verdicts compare, is the mean "
            f"of the evaluations in the last {LAST_SHARE:.0%} of training.",
        ),
        (
            Strong("Interval."),
            " One seed is one observation, and n is the number of seeds. ",
            Code("498.2 [493.1, 500.0]"),
            " is a statistic over seeds with its 95% expanded-percentile bootstrap interval. The "
            "IQM is the mean of the middle half of the seeds; the mean weights all seeds equally. "
            "Intervals of our scores resample seeds and start states, which are the same for all "
            "seeds: they say how the algorithm does from any starts. Most of the baselines' runs "
            "are older and hold no returns of single episodes: their intervals, those of curves, "
            "of scores at equal budgets and of differences are over seeds alone. Protocol and "
            "starts are the same, and the "
            "dynamics equal to rounding.",
        ),
        (
            Strong("Failure."),
            " A seed fails if it ends below the environment's reward threshold (below a "
            f"normalised score of {FLOOR} if there is none), or if it diverges (its loss becomes "
            "NaN or infinite). ",
            Code("0 of 30, at most 10%"),
            " gives the observed failures and the upper bound of a one-sided 95% interval of the "
            "failure rate (Clopper-Pearson). All statistics include the failures. A non-finite "
            "return is replaced by the random policy's score or, if that is unknown, by the lowest "
            "return of the run.",
        ),
        Item(
            (
                Strong("Verdict."),
                " A verdict compares ours with stable-baselines3 (SB3) at the same "
                "hyperparameters, network and evaluation. The number is the difference of the mean "
                "normalised scores (0: random policy, 1: reference), ours minus SB3's, with its "
                f"{SHOWN_LEVEL} interval; p is that of a permutation test of Welch's t, which "
                "allows for sides that spread differently. Where none of "
                f"{RESAMPLES:,} permutations is as extreme, p is a bound: p<0.001, or, corrected "
                "for several tests, p≤ and a multiple.",
            ),
            RULE,
        ),
        (
            Strong("Learning speed."),
            " AUC is the area under the learning curve divided by its length, that is, the mean "
            "greedy return over training. Timesteps to threshold is the first evaluation from "
            "which on all are at or above the reward threshold, the median over the seeds that are "
            "there in the last evaluation of the curve, with their number in brackets. Failures "
            "are judged by the 100 episodes after the training, so the two numbers need not add "
            "up. Core-seconds to threshold are these timesteps "
            "over the timesteps per second that all seeds of a part have together on one core. "
            "Stored is the wall time of one thread, often on a busy machine, so the fastest part "
            "of a run counts: an upper bound. SB3 has a part for each seed, ours has few, so SB3's "
            "is the closer one.",
        ),
        (
            Strong("n"),
            " is the number of seeds; ",
            Code("30 of 60"),
            " means that the next look needs 60. SB3 has as many as it takes to decide both "
            "verdicts, or as the last look needs.",
        ),
        (
            Strong("Stale"),
            " marks a run whose code has since changed in a way that may change its curve. ",
            Strong("Not the preset"),
            " marks a run whose hyperparameters differ from those of the command with ",
            Code("--env"),
            " alone.",
        ),
    ]
)
WORDS = ("equivalent", "better", "worse", "ceiling", "undecided")
ALL = ("environment", "algorithm", *MEASURES.values())
TOGETHER = ("measure", *WORDS, "differ", "differ by chance, at most", "pooled z")
REVISED_COLUMNS = (
    *("environment", "algorithm", "measure", "published first", "then", "what changed"),
    "on fresh seeds",
)
VERSION_1 = {"commit": str, "verdicts": [{"env": str, "algo": str, "late": str, "auc": str}]}
VERSION_1_COLUMNS = ("environment", "algorithm", "measure", "version 1", "version 2")
ERROR = 0.05  # that the rule should stay below, over all looks


def page(found: Sequence[Pair], loaded: Sequence[Result], results: Path) -> Iterator[Block]:
    """The page. loaded: all control runs, with the fresh seeds that `found` lacks."""
    if sentence := outcome(found):
        yield Outcome(sentence)
        yield from all_verdicts(found)
        expected = partial(expected_verdicts, found=found)
        yield from section_of(find_file(results, "error_rates.json"), STORED, expected)
    yield from section_of(find_file(results, "margins.json"), margins.STORED, control)
    yield from mistakes(results)
    yield from revised_verdicts(loaded)
    by_version = partial(version_1, found=found)
    yield from section_of(find_file(results, "verdicts_version_1.json"), VERSION_1, by_version)
    yield from section_of(find_file(results, "error_rates.json"), STORED, error_rates)
    yield Heading("How to read this")
    yield HOW_TO_READ


# ---- All verdicts ---------------------------------------------------------------------------


def judged(found: Sequence[Pair]) -> list[Pair]:
    """The pairs that have verdicts, of both measures."""
    return [pair for pair in found if pair.verdict("late")]


def verdicts(pairs: Sequence[Pair], measure: str) -> list[Verdict]:
    return [verdict for pair in pairs if (verdict := pair.verdict(measure))]


def counted(found: Sequence[Verdict]) -> dict[str, int]:
    """How many verdicts there are of each kind."""
    words: list[str] = [verdict.parity.word for verdict in found]
    return {word: words.count(word) for word in WORDS}


def outcome(found: Sequence[Pair]) -> str:
    """The verdicts against SB3 counted, in a sentence per measure; empty without any."""
    if not (pairs := judged(found)):
        return ""
    auc, late = (
        ", ".join(
            f"{'at the ' * (word == 'ceiling')}{word} in {n}"
            for word, n in counted(verdicts(pairs, measure)).items()
            if n
        )
        for measure in MEASURES
    )
    return (
        f"In {plural(len(pairs), 'comparison')} with stable-baselines3 (SB3) at the same settings, "
        f"learning speed is {auc}. The late score, the mean of the last fifth of training, "
        f"is {late}."
    )


def all_verdicts(found: Sequence[Pair]) -> Iterator[Block]:
    """Every verdict, as a figure and in full, and what they say together."""
    pairs = judged(found)
    yield Heading("All verdicts")
    yield Text(
        "The difference of the mean normalised scores, ours minus SB3's, with its "
        f"{SHOWN_LEVEL} interval. Differences within the band of a row count as equivalent."
    )
    panels: Verdicts = {name: {} for name in MEASURES.values()}
    for pair, (measure, name) in product(pairs, MEASURES.items()):
        if verdict := pair.verdict(measure):
            panels[name][f"{pair.env}, {name_of(pair)}"] = verdict.parity
    label = "All verdicts against SB3"
    if figure := verdict_forest("verdicts", label, panels, "ours minus SB3's"):
        yield figure
    rows: Rows = [
        (
            pair.env,
            Link(name_of(pair), page=page_name(pair.env), anchor=anchor(pair.algo)),
            *(decision_text(pair.verdict(m), pair.headline[0].spec) for m in MEASURES),
        )
        for pair in pairs
    ]
    table = Table("all-verdicts", ALL, rows)
    yield folded_if_long("Every difference with its interval and p", table)
    yield from undecided(pairs)
    yield Heading("Together", level=3)
    yield Text(
        "Of the verdicts, about 5% at most would differ (be better or worse) on average without a "
        "true difference; the error rates have the worst case. The z of their permutation tests is "
        "pooled (Stouffer's); above 0 ours scores higher. It is approximate, because testing stops "
        "at the first decision."
    )
    together = [together_row(verdicts(pairs, x), name) for x, name in MEASURES.items()]
    yield Table("verdicts-together", TOGETHER, together)


def name_of(pair: Pair) -> str:
    """`PPO`, or `PPO (stale)` where the run of either side is."""
    return display(pair.algo) + " (stale)" * any(map(is_stale, pair.headline))


def undecided(pairs: Sequence[Pair]) -> Iterator[Block]:
    """What would decide the verdicts that are not: more seeds of SB3's, and what they cost."""
    rows = []
    for pair, (measure, name) in product(pairs, MEASURES.items()):
        verdict = pair.verdict(measure)
        if verdict is None or verdict.decided or pair.ours is None or pair.sb3 is None:
            continue
        ours, theirs = side_of(pair.ours, measure), side_of(pair.sb3, measure)
        assert ours
        assert theirs
        n = seeds_to_decide(ours, theirs, verdict.parity.margin)
        have = pair.sb3.first_seeds
        seconds = seed_seconds(pair.sb3.run, pair.sb3.config)
        rows.append(
            (
                *(f"{pair.env}, {display(pair.algo)}", name, f"{len(pair.ours.seeds)} and {have}"),
                f"{n:,}" if n else "more than 1,000",
                f"{max(n - have, 0) * seconds / 60:,.0f}" if n and seconds else "",
            )
        )
    if not rows:
        return
    yield Heading("What would decide the others", level=3)
    yield Text(
        "The seeds of SB3's with which the undecided verdicts could become equivalent with "
        f"{OURS} of ours, if means, variances and shares of failures stayed as they are, and the "
        "minutes of a core that these take at the speed of the fastest one, evaluations included. "
        "Intervals are as wide as the rule's, but taken to be symmetric, which those of skewed "
        f"scores are not. The rule ends at {LOOKS[-1]}."
    )
    columns = ("runs", "measure", "seeds", "of SB3's to decide", "core minutes")
    yield folded_if_long("Undecided", Table("verdicts-undecided", columns, rows))


def expected_verdicts(stored: dict[str, Any], found: Sequence[Pair]) -> Iterator[Block]:
    """How many verdicts of each kind the rule would give if nothing differed, and has given."""
    kinds = {
        "equivalent or ceiling": ("equivalent", "ceiling"),
        "better or worse": ("better", "worse"),
        "undecided": ("undecided",),
    }
    rows = []
    for measure, name in MEASURES.items():
        rates = stored["cells"].get(measure, {})
        here = [
            (verdict.parity.word, r["alike"])
            for pair in judged(found)
            if (verdict := pair.verdict(measure)) and (r := rates.get(pair.env, {}).get(pair.algo))
        ]
        if not here:
            continue
        given = [sum(word in words for word, _ in here) for words in kinds.values()]
        simulated = [sum(r.get(w, 0) for _, r in here for w in x) for x in kinds.values()]
        rows += [
            (name, "found", *map(str, given)),
            (name, "without any difference", *(f"{x:.1f}" for x in simulated)),
        ]
    if not rows:
        return
    yield Text(
        "The verdicts that were found, beside those that the rule would give on average with "
        f"{stored['ours']} seeds of ours and up to {stored['looks'][-1]} of SB3's if both sides of "
        "each pair had the same distribution, that of their scores together (simulated):"
    )
    yield Table("verdicts-expected", ("measure", "", *kinds), rows)


def control(stored: dict[str, Any]) -> Iterator[Block]:
    """What the rule says of different algorithms, and the margins that this has led to."""
    yield Heading("Does the rule tell algorithms apart?", level=3)
    rows = []
    for measure, by_env in stored["control"].items():
        counts = [sum(words.get(word, 0) for words in by_env.values()) for word in WORDS]
        rows.append((MEASURES[measure], str(sum(counts)), *map(str, counts)))
    yield Text(
        "Each of our algorithms is judged against each other one of SB3's on the same environment, "
        "as if they were the same. Equivalent would be wrong, and ceiling is right only in so far "
        "as it claims nothing. The margins were chosen from SB3's runs so that both are rare; ours "
        "are other runs, as they were stored when the command below was run:"
    )
    yield Table("verdicts-control", ("measure", "pairs", *WORDS), rows)
    yield command_text(stored)
    found = [
        (
            *(env, MEASURES[measure], f"±{x['margin']:g}"),
            *(", ".join(map(display, x["at_ceiling"])), nearest(x["pairs"][0])),
        )
        for measure, by_env in stored["measures"].items()
        for env, x in by_env.items()
    ]
    columns = (
        *("environment", "measure", "margin", "at their ceiling"),
        "closest pair, which would be equivalent from this margin on",
    )
    yield folded_if_long("Margins", Table("margins", columns, found))


SESSION = {"env": str, "tries": [{"kind": str, "word": str}]}  # of judge_session.py's files
MISTAKES = ("environment", "mistakes", *WORDS)


def mistakes(results: Path) -> Iterator[Block]:
    """What the judge has said of mistakes that were planted in a file."""

    def row(stored: dict[str, Any]) -> Iterator[tuple[str, ...]]:
        words = [x["word"] for x in stored["tries"] if x["kind"] == "mistake"]
        yield stored["env"], str(len(words)), *(str(words.count(x)) for x in WORDS)

    paths = sorted(results.glob("judge_session_*.json"))
    if rows := [x for path in paths for x in section_of(path, SESSION, row)]:
        yield Text(
            "Mistakes that were planted in algos/ppo.py, each judged against the file as it is, on "
            "as many seeds as the judge took (judge_session.py). Equivalent is right only where a "
            "mistake changes no score, which is not known here:"
        )
        yield Table("verdicts-mistakes", MISTAKES, rows)


def nearest(pair: dict[str, Any]) -> str:
    """`PPO and A2C, 0.024`"""
    return f"{display(pair['first'])} and {display(pair['second'])}, {pair['least']:.3f}"


def z_of(parity: Parity) -> float:
    """The z of a permutation test, with the sign of the difference."""
    return math.copysign(NormalDist().inv_cdf(1 - parity.p / 2), parity.difference.value)


def together_row(verdicts: Sequence[Verdict], name: str) -> tuple[str, ...]:
    """How many verdicts of a measure there are of each kind, how many would be better or worse by
    chance, and Stouffer's pooled z.

    Those of which nothing varies are left out of the last two.
    """
    counts = map(str, counted(verdicts).values())
    found = [v.parity for v in verdicts if v.parity.difference.low < v.parity.difference.high]
    if not found:
        return (name, *counts, "0 of 0", "-", "-")
    k = len(found)
    differ = sum(parity.word in ("better", "worse") for parity in found)
    pooled = sum(map(z_of, found)) / math.sqrt(k)
    p = math.erfc(abs(pooled) / math.sqrt(2))
    z = f"{pooled:+.2f}, {p_text(p)}"
    return (name, *counts, f"{differ} of {k}", f"{0.05 * k:.1f}", z)


def revised_verdicts(results: Sequence[Result]) -> Iterator[Block]:
    """The verdicts that changed after they were published, and what fresh seeds say."""
    rows = []
    for entry in REVISED:
        sides = []
        _, settings = plain_command(entry.algo, {"env": entry.env})
        for name in (entry.algo, SB3 + entry.algo):
            of_cell = [r for r in results if (r.algo, r.config) == (name, settings)]
            sides += [r.only(FRESH) for r in of_cell if set(FRESH) <= set(r.seeds)]
        text = "not trained yet"
        if len(sides) == 2:
            ours, theirs = sides
            text = verdict_text(parity_of(ours, theirs, entry.measure), ours.spec)
        algo, name = display(entry.algo), MEASURES[entry.measure]
        rows.append((entry.env, algo, name, entry.first, entry.then, entry.why, text))
    if all(row[-1] == "not trained yet" for row in rows):
        return
    yield Heading("Revised verdicts")
    yield Text(
        "These verdicts changed after publication. They were therefore repeated on fresh seeds "
        f"({ranges(FRESH)}) of both sides, with a single test and 95% intervals. In the place of "
        "late scores, what was published first compared final ones."
    )
    yield Table("revised-verdicts", REVISED_COLUMNS, rows)


def version_1(stored: dict[str, Any], found: Sequence[Pair]) -> Iterator[Block]:
    """The verdicts of version 1 of the rule, as last published, that version 2 does not repeat."""
    then = {(x["env"], x["algo"], m): x[m] for x in stored["verdicts"] for m in MEASURES}
    both = [
        (pair, measure, then[pair.env, pair.algo, measure], verdict)
        for pair, measure in product(judged(found), MEASURES)
        if (pair.env, pair.algo, measure) in then and (verdict := pair.verdict(measure))
    ]
    rows = [
        (
            *(pair.env, name_of(pair), MEASURES[measure], text),
            decision_text(verdict, pair.headline[0].spec),
        )
        for pair, measure, text, verdict in both
        if text.split()[0].rstrip(":") != verdict.parity.word
    ]
    if rows:
        yield Text(
            f"Version 2 of the rule says another word than version 1 in {len(rows)} of {len(both)} "
            "verdicts. It has narrower margins, other levels, a bound on failures and the word "
            "ceiling. Version 1 judged final scores in the place of late ones, and some seeds were "
            f"others; it was published last in commit {stored['commit']}."
        )
        yield folded_if_long("By both versions", Table("verdicts-1-2", VERSION_1_COLUMNS, rows))


# ---- Simulated error rates ------------------------------------------------------------------


def error_rates(stored: dict[str, Any]) -> Iterator[Block]:
    """What benchmarks/error_rates.py has simulated: how often the rule and the intervals err."""
    samples, looks = stored["samples"], ", ".join(map(str, stored["looks"]))
    differ, others = "better or worse", ("equivalent", "undecided")
    apart = ("equivalent", "better", "worse", "undecided")
    rates = {name: r | {differ: r["better"] + r["worse"]} for name, r in stored["alike"].items()}
    cells = list(simulated_cells(stored["cells"]))
    own_alike, own_shapes = (
        {name: r[kind]["better"] + r[kind]["worse"] for name, r in cells}
        for kind in ("alike", "shapes")
    )
    own_apart = {name: r["apart"]["equivalent"] for name, r in cells}
    yield Heading("Error rates of verdicts")
    yield Text(
        f"Each row of these tables simulates {samples:,} comparisons of {stored['ours']} seeds of "
        f"ours, tested at {looks} seeds of SB3's as above; rows on real runs simulate half as "
        "many. An error rate is given with the upper bound of its one-sided 95% interval."
    )
    yield Claim(
        "Sides without a true difference are called better or worse in less than "
        f"{ERROR:.0%} of comparisons.",
        *rate_verdict(
            {name: r[differ] for name, r in rates.items()}
            | {name: max(own_alike[name], own_shapes[name]) for name in own_alike},
            samples // 2,
        ),
        details=[
            Text("Both sides have one mean, and one distribution or the two that are named:"),
            rates_table("error-rates-alike", (differ, *others), rates),
        ],
    )
    yield Claim(
        "Sides that differ by the margin are called equivalent in less than "
        f"{ERROR:.0%} of comparisons.",
        *rate_verdict(
            {name: r["equivalent"] for name, r in stored["apart"].items()} | own_apart,
            samples // 2,
        ),
        details=[
            Text(f"The sides differ by exactly the margin, {stored['margin']}:"),
            rates_table("error-rates-apart", apart, stored["apart"]),
            Text(
                "If one seed in twenty fails badly, 60 seeds show no failure in 4.6% of cases, "
                "and are then called equivalent; those with one failure add to it. This is why "
                "failures are reported next to the verdicts, with a bound."
            ),
        ],
    )
    yield Text(
        "The same with the scores of the runs that are compared, ours and SB3's together: without "
        "a difference, with each side's own shape around one mean, with a difference of the "
        "margin, where equivalent is wrong, and with twice the margin:"
    )
    columns = (
        *("runs", "margin", "alike: differ", "own shapes: differ", "alike: equivalent"),
        "margin apart: equivalent",
    )
    own = [
        (
            *(name, f"{r['margin']:g}", f"{own_alike[name]:.1%}", f"{own_shapes[name]:.1%}"),
            *(f"{r['alike']['equivalent']:.1%}", f"{own_apart[name]:.1%}"),
            f"{r['power']['better'] + r['power']['worse']:.1%}",
        )
        for name, r in cells
    ]
    table = Table("error-rates-runs", (*columns, "twice apart: differ"), own)
    yield folded_if_long("The scores of the runs", table)
    yield Text("Coverage of the 95% intervals, by the number of seeds:")
    covered = ("scores", "statistic", *(f"n={n}" for n in stored["seeds"]))
    rows = [
        (name, "IQM" if statistic == "iqm" else statistic, *(f"{x:.1%}" for x in shares))
        for name, both in stored["coverage"].items()
        for statistic, shares in both.items()
    ]
    yield Table("error-rates-coverage", covered, rows)
    yield command_text(stored)


def simulated_cells(stored: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """`PPO on CartPole-v1, late score` and its rates, of every simulated pair of runs."""
    for measure, by_env in stored.items():
        for env, by_algo in by_env.items():
            for algo, rates in by_algo.items():
                yield f"{display(algo)} on {env}, {MEASURES[measure]}", rates


def rates_table(name: str, words: Sequence[str], rates: Mapping[str, Mapping[str, float]]) -> Table:
    """The share of each verdict by the distribution of scores, and the seeds that it took."""
    rows = [
        (scores, *(f"{r[word]:.1%}" for word in words), f"{r['seeds']:.0f}")
        for scores, r in rates.items()
    ]
    return Table(name, ("scores", *words, "mean seeds"), rows)


def rate_verdict(rates: Mapping[str, float], samples: int) -> tuple[ClaimWord, str]:
    """Whether error rates stay below ERROR, each a share of `samples`, and the highest of them."""
    if not rates:
        return "not shown", ""
    counts = {name: round(rate * samples) for name, rate in rates.items()}
    bounds = {name: stats.failure_bound(count, samples) for name, count in counts.items()}
    above = [1 - stats.failure_bound(samples - n, samples) > ERROR for n in counts.values()]
    word: ClaimWord = "does not hold" if all(above) else "in part" if any(above) else "not shown"
    if all(bound < ERROR for bound in bounds.values()):
        word = "holds"
    name = max(rates, key=rates.__getitem__)
    highest = f"{rates[name]:.1%}, at most {bounds[name]:.1%}"
    return word, f"{highest}, the highest of {plural(len(rates), 'distribution')}: {name}"
