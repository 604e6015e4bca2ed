"""Says whether a change of an algorithm changes what it learns: better, worse, equivalent.

    python benchmarks/judge.py algos/ppo.py                       # edited, against what git has
    python benchmarks/judge.py my_ppo.py --envs Pendulum-v1       # a copy, against its original
    python benchmarks/judge.py algos/ppo.py --against HEAD~3      # all code, against a commit's
    python benchmarks/judge.py algos/ppo.py --set clip_range=0.1  # a hyperparameter
    python benchmarks/judge.py algos/ppo.py --confirm             # what was better, on fresh seeds

Both sides train the same seeds with the presets of the file, at the budget at which algorithms are
compared (100k timesteps), each in a process of its own. After 12, 24, 48 and 96 seeds their
differences are looked at, and training stops as soon as the answer over all environments stands, or
when the time is up: then it is undecided, and the same command with more --minutes goes on. What is
tested is learning speed, the area under the greedy curve; the final score stands beside it.

Every try counts. The session of an algorithm has an error budget: of changes without any effect, a
session says "better" of one with a probability of at most 5%, however many are tried
(`benchmarks/experiments/sessions.py` has the rule, `benchmarks/judge_rates.py` simulates it). The
same try again is no new one. RESULTS/judge has the ledger; another --results folder begins another
session.

Where PyTorch computes an edited function that C computes otherwise, it does so on both sides: a
change that only renames gives the same bits.
"""

from __future__ import annotations

from manyseeds.command import failing_in_one_line

import json
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from tyro.conf import Positional

from manyseeds import plots, stats
from manyseeds.benchmarks.experiments.sessions import (
    LOOKS,
    Decision,
    Found,
    Rule,
    level_of,
    margin_of,
    seeds_of,
)
from manyseeds.benchmarks.store.comparison import COMMON
from manyseeds.benchmarks.store.sides import (
    SIDES,
    Code,
    Trainers,
    algorithm_of,
    check_text,
    code_of_commit,
    code_of_try,
    described_change,
    lost_kernels,
    sides_of,
    training,
)
from manyseeds.benchmarks.store.tries import AGAINST, CHANGED, Rows, Session, source
from manyseeds.cli import (
    RESULTS,
    NonNegativeInt,
    Positive,
    ScriptConfig,
    check_results,
    check_unpublished,
    parse,
    path_of,
)
from manyseeds.errors import UsageError, printable
from manyseeds.evaluate import POINTS
from manyseeds.progress import console
from manyseeds.record import hash_of, plural
from manyseeds.stats import Estimate, Floats
from manyseeds.worth import counted, worth_of
from manyseeds.writing import write_bytes, write_json

JUDGED = ("CartPole-v1", "Acrobot-v1", "Pendulum-v1")  # unless --envs says others
SAID = 4  # names of what was changed
BARS = "▁▂▃▄▅▆▇█"
PAGE = "README.md"
AGAIN = "interrupted; the same command goes on"


@dataclass(frozen=True, kw_only=True)
class Flags(ScriptConfig):
    """What is judged, and how long."""

    file: Positional[str] = ""
    """File of an algorithm: one of algos/, or a copy of one anywhere."""
    against: str = ""
    """What it is compared with, a file or a commit. Default: its committed text, or for a copy the
    algorithm that it resembles most."""
    set: tuple[str, ...] = ()
    """Hyperparameters that are changed, as learning_rate=0.001. Then the file is compared with
    itself."""
    envs: tuple[str, ...] = ()
    """Environments. Default: those of CartPole-v1, Acrobot-v1, Pendulum-v1 with a preset."""
    minutes: Positive = 5.0
    """Time limit for training, in minutes. The first look is taken in any case."""
    timesteps: NonNegativeInt = 0
    """Timesteps per seed (0: those at which algorithms are compared)."""
    confirm: bool = False
    """Decide what this session found better, on held-out seeds and with held-out physics."""
    fail_if: Literal["never", "worse"] = "never"
    """Exit with status 1 where the change is worse."""
    json: bool = False
    """Print the outcome as JSON."""


# ---- A try ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Cell:
    """Where both sides are trained: an environment, perhaps with held-out physics."""

    env: str
    physics: int
    facts: Mapping[str, Any]  # what a side says of it

    @property
    def name(self) -> str:
        return self.env + (" (other physics)" if self.physics else "")

    def scale(self, against: Floats) -> tuple[float, float]:
        """The scores that are 0 and 1 when normalised; where none are known, 0 and the size of the
        unchanged side's."""
        random, reference = self.facts["random"], self.facts["reference"]
        if random is None or reference is None:
            return 0.0, float(abs(against[: LOOKS[0]].mean())) or 1.0
        return random, reference

    def normalized(self, scores: Floats) -> float:
        """The normalised mean of the unchanged side's scores, [S]."""
        low, high = self.scale(scores)
        return (float(scores.mean()) - low) / (high - low)

    def scores(self, rows: Rows, seeds: Sequence[int], measure: str) -> dict[str, Floats]:
        """Both sides' scores, [S]; a seed without one is a failure. Raises UsageError."""
        own = {side: rows.of(self.env, self.physics, side) for side in SIDES}
        both = [own[side][seed] for side in SIDES for seed in seeds]
        worths = [worth_of(x[measure], x["diverged"]) for x in both]
        scores = counted(worths, self.facts["random"]).reshape(2, -1)
        if not np.isfinite(scores).all():
            raise UsageError(
                f"--envs {self.env}: a seed has no score, and no failure score is known"
            )
        # Where the other side is below a random policy, a diverged one would gain by it.
        diverged = np.array([w.diverged is not None for w in worths]).reshape(2, -1)
        scores = np.where(diverged, scores.min(axis=0), scores)
        return dict(zip(SIDES, scores, strict=True))

    def same(self, rows: Rows, seeds: Sequence[int], *measures: str) -> bool:
        """Whether both sides have the same measures, all known, of all seeds."""
        changed, against = (rows.of(self.env, self.physics, side) for side in SIDES)
        return all(
            changed[seed][x] is not None and changed[seed][x] == against[seed][x]
            for seed in seeds
            for x in measures
        )

    def identical(self, rows: Rows, seeds: Sequence[int]) -> bool:
        """Whether both sides have the same weights, of all seeds."""
        return self.same(rows, seeds, "weights", "returns")

    def differences(self, rows: Rows, seeds: Sequence[int], measure: str) -> Floats:
        """Normalised differences of pairs, [S]."""
        scores = self.scores(rows, seeds, measure)
        low, high = self.scale(scores[AGAINST])
        return np.asarray((scores[CHANGED] - scores[AGAINST]) / (high - low))


def train_missing(trainers: Trainers, rows: Rows, cell: Cell, seeds: Sequence[int]) -> None:
    """Train the seeds of a cell that a side lacks, both sides at the same time."""
    missing = {
        side: [x for x in seeds if x not in rows.of(cell.env, cell.physics, side)] for side in SIDES
    }
    asked = [side for side in SIDES if missing[side]]
    for side in asked:
        request = {"env": cell.env, "seeds": missing[side], "physics": cell.physics}
        trainers.of[side].ask("train", **request)
    found = []
    for side in asked:
        extra = {"env": cell.env, "physics": cell.physics, "side": side}
        found += [extra | row for row in trainers.of[side].answer()]
    if found:
        rows.add(found)


def seconds_of(rows: Rows) -> float:
    """How long the rows took, both sides at the same time."""
    sides = (sum(x["seconds"] for x in rows.rows if x["side"] == side) for side in SIDES)
    return max(sides)


def decide(
    trainers: Trainers,
    rows: Rows,
    cells: Sequence[Cell],
    seeds: Sequence[int],
    flags: Flags,
    level: float,
) -> tuple[Decision, bool]:
    """Train and look until the answer stands or the time is up; whether it stands."""
    rule = Rule(level, [margin_of(cell.env) for cell in cells])
    decision: Decision | None = None
    for look in LOOKS:
        needed = seeds[:look]
        trained = min(
            sum(seed in rows.of(cell.env, cell.physics, side) for seed in needed)
            for cell in cells
            for side in SIDES
        )
        if decision and trained < look:
            used = seconds_of(rows)
            each = used / max(trained, 1)
            if used + each * (look - trained) > 60 * flags.minutes:
                return decision, False
        for cell in cells:
            train_missing(trainers, rows, cell, needed)
        differences = [cell.differences(rows, needed, "auc") for cell in cells]
        decision = rule.decide(differences, [cell.identical(rows, needed) for cell in cells])
        if not flags.json:
            word = decision.overall.word
            console.print(f"{look} seeds a side, {seconds_of(rows):.0f} s: {word}", style="dim")
        if rule.ended:
            break
    assert decision
    return decision, decision.overall.word != "undecided"


def load_sides(trainers: Trainers, flags: Flags, words: Sequence[str]) -> dict[str, Any]:
    """What both sides are, by environment. Raises UsageError."""
    for side, trainer in trainers.of.items():
        code = trainer.code
        request = {
            "file": str(code.file) if code.file else None,
            "module": code.module,
            "envs": list(flags.envs),
            "usual": JUDGED,
            "timesteps": flags.timesteps,
            "budgets": COMMON,
            "set": list(words) if side == CHANGED else [],
        }
        trainer.ask("load", **request)
    return {side: trainers.of[side].answer() for side in SIDES}


def judge(
    file: str | Path,
    against: str = "",
    envs: str | Sequence[str] = (),
    minutes: float = 5.0,
    settings: str | Sequence[str] = (),
    timesteps: int = 0,
    results: str | Path = RESULTS,
) -> dict[str, Any]:
    """Judge a change as the command does; settings: as of `--set`. Returns what `--json` prints:
    `overall` and `cells` with their `word` and `effect`, `kept`, `try`, and more.

    Raises UsageError.
    """
    flags = Flags(
        file=str(file),
        against=against,
        envs=(envs,) if isinstance(envs, str) else tuple(envs),
        minutes=minutes,
        set=(settings,) if isinstance(settings, str) else tuple(settings),
        timesteps=timesteps,
        results=str(results),
        json=True,
    )
    return judged(flags)[0]


def judged(flags: Flags) -> list[dict[str, Any]]:
    """What the command does: one outcome, or with `--confirm` one for each that is confirmed."""
    if not flags.file:
        raise UsageError("FILE: name the file of an algorithm, as algos/ppo.py")
    if double := next((x for x in flags.envs if flags.envs.count(x) > 1), None):
        raise UsageError(f"--envs {double}: given twice")
    check_results(Path(flags.results))
    check_unpublished(Path(flags.results))
    file = path_of(flags.file, "FILE").resolve()
    algo = algorithm_of(file, source(file), flags.against)
    session = Session.of(Path(flags.results), algo)
    with session.locked():
        if flags.confirm:
            return confirmed(flags, session)
        return [tried(flags, session, algo)]


def tried(flags: Flags, session: Session, algo: str) -> dict[str, Any]:
    """Judge one change."""
    changed, against = sides_of(session, algo, flags.file, flags.against, bool(flags.set))
    check_text(changed)
    same = UsageError(
        f"--set {' '.join(flags.set)}: {flags.file} has that already"
        if flags.set
        else f"{changed.label}: says what {against.label} says; edit it, or give --against or --set"
    )
    if changed.text == against.text and not (flags.set or against.commit):
        raise same
    with training(changed, against) as trainers:
        loaded = load_sides(trainers, flags, flags.set)
        change = described_change(changed, against, loaded)
        if not change:
            raise same
        cells = cells_of(loaded)
        functions, speed, seconds = lost_kernels(trainers, [cell.env for cell in cells])
        about = {
            "change": ", ".join(change)[:200],
            "file": printable(flags.file),
            "paths": {side: str(x.code.file or "") for side, x in trainers.of.items()},
            "against": printable(against.name),
            "commit": against.commit,
            "module": against.module,
            "set": list(flags.set),
            "envs": [cell.env for cell in cells],
            "timesteps": flags.timesteps,
        }
        key = hash_of([loaded, against.commit])
        texts = {CHANGED: changed.text} | ({} if against.commit else {AGAINST: against.text})
        entry = session.begin(key, about, texts)
        number = entry["number"]
        rows = Rows.read(session.folder(entry) / "rows.json", key)
        level = level_of(number)
        if not flags.json:
            say_change(change, against, functions, speed)
            text = f"try {number} of the session of {algo}, at level {100 * level:.2g}% of 5%"
            console.print(text, markup=False)
            if not rows.rows and LOOKS[0] * seconds > 60 * flags.minutes:
                text = f"the first look takes more than {LOOKS[0] * seconds:.0f} s"
                console.print(f"{text}, whatever --minutes is; --timesteps shortens it")
        decision, stands = decide(trainers, rows, cells, seeds_of(number), flags, level)
    seeds = seeds_of(number)[: decision.overall.seeds]
    outcome = {
        "file": flags.file,
        "against": against.name,
        "change": change,
        "try": number,
        "level": level,
        "stands": stands,
        "seconds": seconds_of(rows),
        "pytorch": functions,
        "timesteps_per_cpu_second": speed,
        **outcome_of(decision, cells, rows, seeds),
    }
    session.note(entry, word=decision.overall.word, kept=outcome["kept"], seeds=len(seeds))
    folder = session.folder(entry)
    write_json(folder / "result.json", outcome)
    write_page(folder, outcome, cells, rows, seeds)
    return outcome | {"page": printable(str(folder / PAGE))}


def cells_of(loaded: Mapping[str, Any], held_out: bool = False) -> list[Cell]:
    """The cells of the environments that both sides have, with held-out physics, too, where they
    have any. Raises UsageError."""
    envs = loaded[CHANGED]
    unknown = [env for env, x in envs.items() if None in (x["random"], x["reference"])]
    if unknown and len(envs) > 1:
        raise UsageError(
            f"--envs {unknown[0]}: its scores are not known, so that they cannot be averaged with "
            "others'; judge it alone"
        )
    return [
        Cell(env, number, facts)
        for env, facts in envs.items()
        for number in range(2 if held_out and facts["varied"] else 1)
    ]


def confirmed(flags: Flags, session: Session) -> list[dict[str, Any]]:
    """Decide the tries that were kept, on held-out seeds and with held-out physics as well."""
    survivors = [x for x in session.tries if x["kept"]]
    if not survivors:
        raise UsageError(f"--confirm: {session.path} has no try that was found better")
    outcomes, refused = [], []
    for entry in survivors:
        try:
            outcomes.append(confirmed_try(flags, session, entry))
        except UsageError as error:
            refused.append(f"--confirm: {error}")
    if not outcomes:
        raise UsageError("; ".join(refused))
    for text in refused:
        print(f"note: {text}", file=sys.stderr)
    return outcomes


def confirmed_try(flags: Flags, session: Session, entry: dict[str, Any]) -> dict[str, Any]:
    """Decide a try that was kept once more. Raises UsageError."""
    own = Flags(
        file=entry["file"], envs=tuple(entry["envs"]), minutes=flags.minutes,
        timesteps=entry["timesteps"], results=flags.results, json=flags.json,
    )  # fmt: skip
    changed = code_of_try(session, entry, CHANGED)
    if entry["commit"]:
        against = code_of_commit(session, entry["module"], entry["commit"])
    else:
        against = code_of_try(session, entry, AGAINST)
    if not flags.json:
        console.print(f"confirming try {entry['number']}: {entry['change']}", markup=False)
    with training(changed, against) as trainers:
        loaded = load_sides(trainers, own, entry["set"])
        if (key := hash_of([loaded, entry["commit"]])) != entry["key"]:
            raise UsageError(f"{changed.label}: its code is no longer what was judged")
        rank = entry["rank"] or 1 + max(x["rank"] or 0 for x in session.tries)
        session.note(entry, rank=rank)  # once and for all: it has spent this level
        cells = cells_of(loaded, held_out=True)
        lost_kernels(trainers, entry["envs"])
        rows = Rows.read(session.folder(entry) / "confirm.json", key)
        seeds, level = seeds_of(entry["number"], confirm=True), level_of(rank)
        decision, stands = decide(trainers, rows, cells, seeds, own, level)
    shown = outcome_of(decision, cells, rows, seeds[: decision.overall.seeds])
    session.note(entry, confirmed=confirmation(shown))
    about = {"file": entry["file"], "change": [entry["change"]], "try": entry["number"]}
    return {**about, "stands": stands, "seconds": seconds_of(rows), "confirm": True, **shown}


# ---- What is said ---------------------------------------------------------------------------


def outcome_of(
    decision: Decision, cells: Sequence[Cell], rows: Rows, seeds: Sequence[int]
) -> dict[str, Any]:
    """The words and numbers of a decision, as JSON."""
    found = []
    for cell, own in zip(cells, decision.cells, strict=True):
        scores = {m: cell.scores(rows, seeds, m) for m in ("auc", "final")}
        base, final_base = (cell.normalized(x[AGAINST]) for x in scores.values())
        final = stats.mean_difference(cell.differences(rows, seeds, "final"))
        sides = {side: rows.of(cell.env, cell.physics, side) for side in SIDES}
        found.append(
            {
                "env": cell.env,
                "physics": cell.physics,
                **words_of(own, base),
                "final_effect": numbers(final),
                "final_base": final_base,
                "auc": {side: float(x.mean()) for side, x in scores["auc"].items()},
                "final": {side: float(x.mean()) for side, x in scores["final"].items()},
                "identical": cell.identical(rows, seeds),
                "same_returns": cell.same(rows, seeds, "returns"),
                "diverged": {
                    side: sum(sides[side][x]["diverged"] is not None for x in seeds)
                    for side in SIDES
                },
                "curves": {side: mean_curve([sides[side][x] for x in seeds]) for side in SIDES},
                "digits": cell.facts["digits"],
            }
        )
    overall = words_of(decision.overall, float(np.mean([x["base"] for x in found])))
    against_it = [x["env"] for x in found if x["word"] == "worse"]
    against_it += [
        f"{x['env']} (more seeds diverge)"
        for x in found
        if x["diverged"][CHANGED] > x["diverged"][AGAINST]
    ]
    return {
        "seeds": decision.overall.seeds,
        "overall": overall,
        "kept": decision.overall.word == "better" and not against_it,
        "worse_on": against_it,
        "cells": found,
    }


def confirmation(outcome: Mapping[str, Any]) -> str:
    """What a confirmation comes to: `better` of what is kept only."""
    word: str = outcome["overall"]["word"]
    return "not kept" if word == "better" and not outcome["kept"] else word


def words_of(found: Found, base: float) -> dict[str, Any]:
    """A word with its effect; base: the unchanged side's normalised score."""
    return {"word": found.word, "effect": numbers(found.effect), "base": base}


def numbers(effect: Estimate) -> dict[str, float]:
    return {name: x for name, x in asdict(effect).items() if name in ("value", "low", "high")}


def mean_curve(rows: Sequence[Mapping[str, Any]]) -> list[float | None]:
    """The mean return of the seeds at even steps of the training, with straight lines between
    evaluations; a diverged one counts as long as it has returns. None where no seed has any."""
    end = max(row["timesteps"][-1] for row in rows)
    curves = []
    for row in rows:
        returns = [math.nan if x is None else x for x in row["returns"]]
        curves.append(np.interp(np.linspace(0, end, POINTS + 1), row["timesteps"], returns))
    known = np.isfinite(curves)
    sums, counts = np.where(known, curves, 0.0).sum(axis=0), known.sum(axis=0)
    return [float(x / n) if n else None for x, n in zip(sums, counts, strict=True)]


def effect_text(base: float, effect: Mapping[str, float]) -> str:
    """`-11.0% [-15.3, -6.4]` of the unchanged side's normalised score, or where that is near 0 the
    normalised difference."""
    if base > 0.05:
        value, low, high = (100 * effect[name] / base for name in ("value", "low", "high"))
        return f"{value:+.1f}% [{low:+.1f}, {high:+.1f}]"
    return f"{effect['value']:+.3f} [{effect['low']:+.3f}, {effect['high']:+.3f}] normalised"


def bars(curve: Sequence[float | None], low: float, high: float) -> str:
    """A curve as one line of a terminal, with gaps."""
    span = (high - low) or 1.0
    places = [None if x is None else int((x - low) / span * len(BARS)) for x in curve]
    return "".join(" " if k is None else BARS[min(k, len(BARS) - 1)] for k in places)


def say_change(
    change: Sequence[str],
    against: Code,
    functions: Mapping[str, Sequence[str]],
    speed: Mapping[str, float],
) -> None:
    """What is judged, and what it costs in speed."""
    more = f" and {len(change) - SAID} more" * (len(change) > SAID)
    texts = [f"changed: {', '.join(change[:SAID])}{more} (against {against.name})"]
    ratio = speed[AGAINST] / speed[CHANGED]
    lost = [x for x in functions[CHANGED] if x not in functions[AGAINST]]
    by = (
        f"PyTorch computes {', '.join(lost[:SAID])} with the change, C without it; " if lost else ""
    )
    texts.append(
        f"speed: {by}{speed[CHANGED]:,.0f} timesteps/s of a core, without the change "
        f"{speed[AGAINST]:,.0f} ({ratio:.1f} times)"
    )
    for text in texts:
        console.print(text, markup=False)


def said(outcome: Mapping[str, Any]) -> list[str]:
    """The outcome as lines of text, of which those that begin a part are not indented."""
    lines = []
    for cell in outcome["cells"]:
        name = cell["env"] + (" (other physics)" if cell["physics"] else "")
        form = stats.number_format([*cell["auc"].values()], cell["digits"])
        scores = [
            f"{title} {cell[m][AGAINST]:{form}} -> {cell[m][CHANGED]:{form}}, "
            f"{effect_text(cell[base], cell[effect])}"
            for title, m, effect, base in (
                ("AUC", "auc", "effect", "base"),
                ("final score", "final", "final_effect", "final_base"),
            )
        ]
        same = "; the same returns" if cell["same_returns"] else ""
        same = "; the same bits" if cell["identical"] else same
        lost = [f"{n} {side}" for side, n in cell["diverged"].items() if n]
        diverged = f"; diverged: {', '.join(lost)}" if lost else ""
        lines += [f"{name}: {cell['word']}{same}{diverged}", *(f"  {text}" for text in scores)]
        points = [x for curve in cell["curves"].values() for x in curve if x is not None]
        for side in (AGAINST, CHANGED):
            curve = bars(cell["curves"][side], min(points, default=0), max(points, default=0))
            lines.append(f"  {curve} {side}")
    overall = outcome["overall"]
    ended = outcome["stands"] or outcome["seeds"] == LOOKS[-1]
    word = overall["word"] if ended else "not yet decided; more --minutes go on"
    seeds = plural(outcome["seeds"], "seed")
    effect = effect_text(overall["base"], overall["effect"])
    time = f"{outcome['seconds']:.0f} s"
    lines.append(f"over all: {word}; learning speed {effect}, {seeds} a side, {time}")
    worse_on = ", ".join(outcome["worse_on"])
    against_it = f": worse on {worse_on}" if word == "better" and worse_on else ""
    if outcome.get("confirm"):
        confirmed = "not confirmed" if ended else "not yet confirmed"
        confirmed = "confirmed" if outcome["kept"] else confirmed
        varied = " and physics" * any(cell["physics"] for cell in outcome["cells"])
        lines.append(f"  {confirmed} on held-out seeds{varied}{against_it}")
    elif outcome["kept"]:
        lines.append("  kept; --confirm decides on held-out seeds")
    elif against_it:
        lines.append(f"  not kept{against_it}")
    return lines


def write_page(
    folder: Path,
    outcome: Mapping[str, Any],
    cells: Sequence[Cell],
    rows: Rows,
    seeds: Sequence[int],
) -> None:
    """Write README.md, what the terminal says with the learning curves of both sides."""
    panels = {}
    for cell in cells:
        panels[cell.name] = {
            side: line_of([rows.of(cell.env, cell.physics, side)[x] for x in seeds])
            for side in (AGAINST, CHANGED)
        }
    plots.lines(
        panels,
        folder / "curves.svg",
        xlabel="timesteps per seed",
        ylabel="greedy return",
        legend="mean over seeds, 95% bootstrap interval",
    )
    lines = [f"# {', '.join(outcome['change'])}", "", "![Learning curves](curves.svg)", "", "```"]
    lines += [
        *said(outcome),
        "```",
        "",
        printable(f"{outcome['file']}, against {outcome['against']}"),
    ]
    write_bytes(folder / PAGE, ("\n".join(lines) + "\n").encode())


def line_of(rows: Sequence[Mapping[str, Any]]) -> plots.Line:
    """The mean of the seeds' curves; without an interval if they differ in their steps,
    or if a return is missing."""
    steps = max((row["timesteps"] for row in rows), key=len)
    if all(row["timesteps"] == steps and None not in row["returns"] for row in rows):
        return plots.mean_line(steps, np.array([row["returns"] for row in rows]))
    x = np.linspace(0, max(row["timesteps"][-1] for row in rows), POINTS + 1)
    curve = np.array(mean_curve(rows), dtype=np.float64)
    return plots.Line(x, curve, n=len(rows))


@failing_in_one_line("", AGAIN)
def main(args: Sequence[str] | None = None) -> None:
    """Judge, print, and with --fail-if leave with status 1."""
    flags = parse(Flags, {}, __doc__, args)
    outcomes = judged(flags)
    if flags.json:
        print(json.dumps(outcomes if flags.confirm else outcomes[0], indent=1))
    else:
        for outcome in outcomes:
            for line in said(outcome):
                console.print(line, style="" if line.startswith(" ") else "bold", markup=False)
            if "page" in outcome:
                console.print(f"  written: {outcome['page']}", markup=False)
    words = [outcome["overall"]["word"] for outcome in outcomes]
    words += [cell["word"] for outcome in outcomes for cell in outcome["cells"]]
    if flags.fail_if in words:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
