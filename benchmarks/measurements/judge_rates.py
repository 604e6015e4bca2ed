"""Simulates how often sessions of the judge err, and what a change of some size takes to be found.

    python benchmarks/judge_rates.py
    python benchmarks/judge_rates.py --real results/local/judge/ppo/try-002   # and real changes

Sessions are of ten changes without effect: both sides' learning speeds are drawn from the published
seeds of one algorithm on one environment, other cells in other sessions. With `--real`, the
differences of tries that change nothing, renames or reordered sums, stand for further changes, with
their mean taken off. A session errs if it says "better" of any, since that change would be kept;
sessions that say "worse" of any are counted beside it. At most 5% may.

Power: how often a planted gain or loss, in percent of the unchanged side's learning speed, is found
in the first try of a session and in the tenth, and by how many seeds. Unpaired draws make that a
lower bound, since both sides share what a seed draws. Writes judge_rates.json.
"""

from __future__ import annotations

from manyseeds.command import failing_in_one_line

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.random import Generator

from manyseeds.benchmarks.experiments.sessions import (
    ALPHA,
    LOOKS,
    Rule,
    level_of,
    margin_of,
)
from manyseeds.benchmarks.measurements.measure import origin, write_measured
from manyseeds.benchmarks.store.comparison import pairs
from manyseeds.benchmarks.store.results import load_result
from manyseeds.benchmarks.store.stored import open_runs
from manyseeds.benchmarks.store.tries import AGAINST, CHANGED, ROWS
from manyseeds.cli import PUBLISHED, PositiveInt, ScriptConfig, parse, path_of
from manyseeds.errors import UsageError
from manyseeds.stats import Floats
from manyseeds.untrusted import NUMBER, ORIGIN, read_shaped

TRIES = 10  # simulated, of a session
FEWEST = 60  # seeds of a pool
EFFECTS = (10, 5, -5, -10)  # percent
POSITIONS = (1, 10)  # of a try in its session
RATES = {str: NUMBER}
STORED: dict[str, Any] = {  # the file
    **ORIGIN,
    "looks": [int],
    "alpha": float,
    "sessions": int,
    "pools": {str: {"seeds": int, "mean": float, "sd": float}},
    "real": {str: int},
    "errors": {str: NUMBER},
    "words": {str: RATES},
    "power": {str: {str: {str: RATES}}},
}


@dataclass(frozen=True, kw_only=True)
class Config(ScriptConfig):
    """The error rates of sessions."""

    sessions: PositiveInt = 1000
    """Simulated sessions."""
    real: tuple[str, ...] = ()
    """Folders of tries of the judge that changed nothing."""


@dataclass(frozen=True)
class Pool:
    """Seeds of one cell of the published results."""

    env: str
    scores: Floats  # [S], learning speed, normalised

    def pair(self, rng: Generator, gain: float = 0.0) -> Floats:
        """Differences of as many pairs as the last look has, [S]; gain: of one side."""
        changed, against = rng.choice(self.scores, (2, LOOKS[-1]))
        return np.asarray(changed + gain - against)


@dataclass(frozen=True)
class Real:
    """The pairs of a change that changes nothing."""

    env: str
    differences: Floats  # [S], with a mean of 0

    def pair(self, rng: Generator) -> Floats:
        return rng.choice(self.differences, LOOKS[-1])


def pools(results: Path = PUBLISHED) -> dict[str, Pool]:
    """The published cells with enough seeds, whose environment has known scores."""
    control = (run for run in open_runs(results) if run.kind == "control")
    found = {}
    for pair in pairs([load_result(run) for run in control]):
        ours = pair.ours
        if ours is None or len(ours.seeds) < FEWEST:
            continue
        random, reference = ours.spec.random_score, ours.spec.reference_score
        if random is not None and reference is not None:
            scores = (ours.auc - random) / (reference - random)
            found[f"{pair.algo} on {pair.env}"] = Pool(pair.env, scores)
    if not found:
        raise UsageError(f"{results}: has no cell with {FEWEST} seeds")
    return found


def real_pairs(folder: str) -> dict[str, Real]:
    """The pairs of a stored try, by environment. Raises UsageError."""
    path = path_of(folder, "--real") / "rows.json"
    try:
        rows = read_shaped(path, ROWS)["rows"]
    except FileNotFoundError:
        raise UsageError(f"--real {folder}: has no rows.json of a try") from None
    found = {}
    for env in dict.fromkeys(row["env"] for row in rows):
        sides = {
            side: {x["seed"]: x["auc"] for x in rows if (x["env"], x["side"]) == (env, side)}
            for side in (CHANGED, AGAINST)
        }
        seeds = sorted(sides[CHANGED].keys() & sides[AGAINST].keys())
        known = [x for x in seeds if None not in (sides[CHANGED][x], sides[AGAINST][x])]
        d = np.array([sides[CHANGED][x] - sides[AGAINST][x] for x in known])
        size = np.mean([abs(sides[AGAINST][x]) for x in known])  # the test knows no units
        found[env] = Real(env, (d - d.mean()) / size)
    return found


def decided(differences: Floats, env: str, number: int) -> tuple[str, int]:
    """The word of the rule for a session's k-th try, and the seeds that it took."""
    rule = Rule(level_of(number), [margin_of(env)])
    while not rule.ended:
        own = differences[: LOOKS[rule.look + 1]]
        decision = rule.decide([own], [not own.any()])
    return decision.overall.word, decision.overall.seeds


def simulated_sessions(
    known: Mapping[str, Pool], real: Sequence[Real], sessions: int
) -> dict[str, Any]:
    """How many sessions say a wrong word, and the words of all tries."""
    rng = np.random.default_rng(0)
    names = list(known)
    words: dict[str, Counter[str]] = {}
    wrong: Counter[str] = Counter()
    for session in range(sessions):
        name = names[session % len(names)]
        drawn = [(name, known[name])] * TRIES + [("real", x) for x in real]
        order = rng.permutation(len(drawn))
        said = set()
        for number, i in enumerate(order, 1):
            kind, source = drawn[i]
            word, _ = decided(source.pair(rng), source.env, number)
            words.setdefault(kind, Counter())[word] += 1
            said.add(word)
        wrong.update(said & {"better", "worse"})
        if (session + 1) % 100 == 0:
            print(f"{session + 1} sessions, wrong so far: {dict(wrong)}", flush=True)
    shares = {
        kind: {word: n / counts.total() for word, n in counts.items()}
        for kind, counts in words.items()
    }
    errors = {word: wrong[word] / sessions for word in ("better", "worse")}
    return {"errors": errors, "words": shares}


def power(pool: Pool, effect: int, number: int, samples: int) -> dict[str, float]:
    """How often an effect in percent is found in a session's k-th try, and by how many seeds."""
    rng = np.random.default_rng(1)
    gain = effect / 100 * float(pool.scores.mean())
    right = "better" if effect > 0 else "worse"
    found = [decided(pool.pair(rng, gain), pool.env, number) for _ in range(samples)]
    seeds = [n for _, n in found]
    return {
        "found": float(np.mean([word == right for word, _ in found])),
        "wrong": float(np.mean([word in {"better", "worse"} - {right} for word, _ in found])),
        "equivalent": float(np.mean([word == "equivalent" for word, _ in found])),
        "seeds": float(np.mean(seeds)),
        "median_seeds": float(np.median(seeds)),
    }


@failing_in_one_line()
def main(args: Sequence[str] | None = None) -> None:
    """Simulate, and write the file."""
    config = parse(Config, {}, __doc__, args)
    real = {f"{x} {env}": r for x in config.real for env, r in real_pairs(x).items()}
    known = pools()
    found = simulated_sessions(known, [*real.values()], config.sessions)
    print(found["errors"])
    table: dict[str, Any] = {}
    for name, pool in known.items():
        for number in POSITIONS:
            for effect in EFFECTS:
                rates = power(pool, effect, number, max(config.sessions // 10, 1))
                table.setdefault(name, {}).setdefault(f"try {number}", {})[f"{effect:+d}%"] = rates
        print(name, table[name], flush=True)
    stored = {
        **origin(["manyseeds.benchmarks.measurements.judge_rates:simulated_sessions"]),
        "looks": LOOKS,
        "alpha": ALPHA,
        "sessions": config.sessions,
        "pools": {
            name: {
                "seeds": len(pool.scores),
                "mean": float(pool.scores.mean()),
                "sd": float(pool.scores.std(ddof=1)),
            }
            for name, pool in known.items()
        },
        "real": {name: len(x.differences) for name, x in real.items()},
        **found,
        "power": table,
    }
    write_measured(Path(config.results) / "judge_rates.json", stored)


if __name__ == "__main__":
    main()
