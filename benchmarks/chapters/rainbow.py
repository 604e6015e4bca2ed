"""The page of Rainbow's parts: each added to DQN alone, and each left out.

Reads the runs of `python benchmarks/sweep.py --suite rainbow`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from manyseeds.benchmarks.chapters.blocks import (
    Block,
    Code,
    Heading,
    Outcome,
    Table,
    Text,
    curves,
    folded_if_long,
)
from manyseeds.benchmarks.chapters.differences import (
    BETTER,
    CLAIM_RULE,
    HOLM,
    Verdicts,
    answer,
    answered,
    corrected_verdicts,
    verdict_forest,
)
from manyseeds.benchmarks.chapters.origins import commands
from manyseeds.benchmarks.experiments.suite import ALONE, NO_PARTS, QR_DQN, WITHOUT, Cell
from manyseeds.benchmarks.experiments.verdicts import margin_at
from manyseeds.benchmarks.store.comparison import MEASURES, run_of
from manyseeds.benchmarks.store.names import display
from manyseeds.benchmarks.store.results import (
    Result,
    decision,
    decision_text,
    parity,
    parity_of,
    verdict_text,
)
from manyseeds.plots import Line, curve_of, mean_line
from manyseeds.record import plural
from manyseeds.stats import Parity

NONE, ALL = "no part: DQN", "all parts: Rainbow"
VARIANTS: dict[str, dict[str, Any]] = {
    NONE: NO_PARTS,
    **{f"{name} alone": settings for name, settings in ALONE.items()},
    ALL: {},
    **{f"all but {name}": settings for name, settings in WITHOUT.items()},
}
Runs = dict[str, dict[str, Result]]  # by environment and variant
COLUMNS = (
    *("environment", "variant", "n", "final, IQM [95%]", "failures", "AUC, mean [95%]"),
    *("AUC against DQN or Rainbow", "late score against it"),
)
EFFECTS = (
    *("part", "DQN with it: faster", "DQN with it: slower"),
    *("Rainbow without it: slower", "Rainbow without it: faster"),
)
PEER_COLUMNS = (
    *("environment", "", "n", "final, IQM [95%]", "failures", "AUC, mean [95%]"),
    *("AUC against sb3-contrib", "late score against it"),
)
WORSE = {"worse": "true", "better": "false", "equivalent": "false"}
# Hessel et al.: "prioritized replay and multi-step learning were the two most crucial components".
CRUCIAL = {"n steps": "n-step returns", "prioritized": "prioritized replay"}
OTHERS = tuple(name for name in WITHOUT if name not in CRUCIAL)
CRUCIAL_COLUMNS = (
    *("environment", "without it", "without another of the four, mean"),
    *("difference of learning speed (AUC)", "claim"),
)


def page(results: Sequence[Result]) -> Iterator[Block]:
    """The page; nothing without runs."""
    if runs := {env: here for env in QR_DQN if (here := runs_of(results, env))}:
        yield from parts(runs)
    yield from beside_peer(results)


def parts(runs: Runs) -> Iterator[Block]:
    """What each part does, alone and left out."""
    verdicts = {
        (env, variant, measure): parity_of(result, other, measure)
        for env, here in runs.items()
        for variant, result in here.items()
        if (other := here.get(base_of(variant))) and other is not result
        for measure in MEASURES
    }
    verdicts |= {
        (env, beside_others(part), "auc"): among_parts(here, part)
        for env, here in runs.items()
        for part in CRUCIAL
        if all(f"all but {name}" in here for name in (part, *OTHERS))
    }
    # Claims and the first sentence rest on learning speed.
    verdicts |= corrected_verdicts({key: v for key, v in verdicts.items() if key[2] == "auc"})
    if sentence := carried_by(verdicts):
        yield Outcome(f"{sentence}.")
    yield Text(
        "Six parts that Rainbow adds to DQN (Hessel et al., 2018), after Ceron and Castro, 2021 "
        "(arXiv 2011.14826): none, each alone, all, and all but one. Everything else is DQN's "
        "preset with 64-64 networks, and nothing was tuned for a part. A part alone is compared "
        "with DQN, Rainbow without it with Rainbow. ",
        f"{CLAIM_RULE} {HOLM} Here these are all comparisons by learning speed. Verdicts by the "
        "late score decide nothing, and are single tests.",
    )
    yield from effects_of(verdicts)
    yield from together(verdicts)
    for part, name in CRUCIAL.items():
        yield from most_missed(verdicts, runs, part, name)
    without = chosen(verdicts, "auc", [f"all but {name}" for name in WITHOUT])
    label = "Learning speed beside Rainbow's"
    if drawn := verdict_forest("rainbow-without", label, without, "without the part minus Rainbow"):
        yield drawn
    rows = [
        (
            *(env, variant, str(len(result.seeds)), result.text("final")),
            *(result.failures_text(), result.text("auc", "mean")),
            *(text_of(verdicts, (env, variant, m), result) for m in MEASURES),
        )
        for env, here in runs.items()
        for variant, result in here.items()
    ]
    yield curves("rainbow", "Rainbow, DQN and each part alone", panels_of(runs), columns=1)
    yield folded_if_long("Every variant", Table("rainbow", COLUMNS, rows))
    yield from commands([result.run for here in runs.values() for result in here.values()])


def runs_of(results: Sequence[Result], env: str) -> dict[str, Result]:
    """The runs of an environment that there are, by variant."""
    cells = {x: Cell("rainbow", env, 30, settings=settings) for x, settings in VARIANTS.items()}
    return {variant: r for variant, cell in cells.items() if (r := run_of(cell, results))}


def beside_peer(results: Sequence[Result]) -> Iterator[Block]:
    """Quantiles alone, at the sizes of the zoo, beside sb3-contrib's."""
    rows: list[tuple[str, ...]] = []

    def add(name: str, result: Result, *verdicts: str) -> None:
        about = (result.spec.id, name, str(len(result.seeds)))
        scores = (result.text("final"), result.failures_text(), result.text("auc", "mean"))
        rows.append((*about, *scores, *(verdicts or ("", ""))))

    for env, settings in QR_DQN.items():
        cells = (Cell("rainbow", env, 30, source, settings) for source in ("manyseeds", "sb3"))
        ours, theirs = (run_of(cell, results) for cell in cells)
        if ours and theirs:
            verdicts = (decision_text(decision(ours, theirs, m), ours.spec) for m in MEASURES)
            add("QR-DQN", ours, *verdicts)
        elif ours:
            add("QR-DQN", ours)
        if theirs:
            add(display(theirs.algo), theirs)
    if rows:
        yield Heading("Quantiles beside sb3-contrib's QR-DQN")
        yield Text(
            "Rainbow with quantiles and no other part is QR-DQN (Dabney et al., 2018), here at the "
            "sizes that rl-baselines3-zoo gives it: 256-256 networks."
        )
        yield Table("qr-dqn", PEER_COLUMNS, rows)


def base_of(variant: str) -> str:
    """What a variant is compared with: Rainbow, where a part is left out; otherwise DQN."""
    return ALL if variant.startswith("all but ") else NONE


Compared = Mapping[tuple[str, str, str], Parity | None]  # by environment, variant and measure


def text_of(verdicts: Compared, key: tuple[str, str, str], result: Result) -> str:
    return verdict_text(verdicts[key], result.spec) if key in verdicts else ""


def chosen(verdicts: Compared, measure: str, variants: Sequence[str]) -> Verdicts:
    """The verdicts on some variants by a measure, a panel per environment."""
    panels: Verdicts = {}
    for (env, variant, by), verdict in verdicts.items():
        if by == measure and variant in variants:
            panels.setdefault(env, {})[variant] = verdict
    return panels


def together(verdicts: Compared) -> Iterator[Block]:
    """Whether Rainbow learns faster than DQN, and what each part does alone."""
    answers = [answer(v, BETTER) for v in of_variants(verdicts, "auc", [ALL])]
    if not answers:
        return
    variants = [ALL, *(f"{name} alone" for name in ALONE)]
    figure = "rainbow-alone"
    yield answered(
        "With all six parts DQN learns faster than without.",
        "Hessel et al., 2018, arXiv 1710.02298",
        answers,
        f"by {MEASURES['auc']}",
        verdict_forest(
            figure,
            "Learning speed beside DQN's",
            chosen(verdicts, "auc", variants),
            "with minus without the part",
        ),
        [Text("A comparison is true if the verdict on Rainbow is better.")],
    )


def beside_others(part: str) -> str:
    """What the verdict of `among_parts` is named."""
    return f"all but {part} against the other parts"


def among_parts(here: Mapping[str, Result], part: str) -> Parity | None:
    """The verdict on AUC without a part against AUC without one of OTHERS, their mean.

    This is the change of removing the part minus the mean of the changes of removing the others,
    of which Rainbow's own AUC is no part. here: the runs of an environment, by variant.
    """
    ours, *others = (here[f"all but {name}"] for name in (part, *OTHERS))
    if len({len(x.auc) for x in others}) > 1:  # of a mean of parts the pooled noise would be wrong
        return None
    mean = np.mean([x.auc.mean() for x in others])
    # Moved to their common mean, as what the others differ by is no noise of that mean.
    pooled = np.concatenate([x.auc - x.auc.mean() + mean for x in others])
    imputed = any(x.unscored for x in (ours, *others))
    return parity(ours.auc, pooled, ours.spec, imputed, margin=margin_at(ours.spec.id, "auc"))


def most_missed(verdicts: Compared, runs: Runs, part: str, name: str) -> Iterator[Block]:
    """Whether a part is among the two that the paper finds most crucial. name: in a sentence."""
    key = beside_others(part)
    panels = chosen(verdicts, "auc", [key])
    if not panels:
        return

    def change(env: str, *parts: str) -> str:
        changes = [verdicts.get((env, f"all but {x}", "auc")) for x in parts]
        known = [x.difference.value for x in changes if x]
        return f"{np.mean(known):+z.3f}" if len(known) == len(parts) else "-"

    rows = [
        (
            *(env, change(env, part), change(env, *OTHERS)),
            verdict_text(own[key], runs[env][f"all but {part}"].spec),
            answer(own[key], WORSE),
        )
        for env, own in panels.items()
    ]
    figure = f"rainbow-{part.replace(' ', '-')}"
    yield answered(
        f"The two most crucial parts of Rainbow include {name}: without that part it learns more "
        "slowly than without one of the four others, on average.",
        "Hessel et al., 2018, arXiv 1710.02298",
        [row[-1] for row in rows],
        f"by {MEASURES['auc']}",
        verdict_forest(
            figure, "Learning speed beside that without another part", panels, "difference"
        ),
        [
            Text(
                'The paper: "prioritized replay and multi-step learning were the two most crucial '
                'components", by median human-normalised scores on Atari. The change of learning '
                "speed without the part is compared with the mean of the changes without "
                f"{', '.join(OTHERS[:-1])} or {OTHERS[-1]}. A comparison is true if the verdict is "
                "worse. This rule was written when the runs were known. ",
                Code("--no-prioritized"),
                " samples uniformly, ",
                Code("--n-steps 1"),
                " bootstraps from the next state.",
            ),
            Table(figure, CRUCIAL_COLUMNS, rows),
        ],
    )


def of_variants(verdicts: Compared, measure: str, variants: Sequence[str]) -> list[Parity | None]:
    return [v for (_, x, by), v in verdicts.items() if by == measure and x in variants]


class Effect(NamedTuple):
    """The environments where a part helps learning speed, or hurts it."""

    alone_faster: list[str]  # DQN with the part alone
    alone_slower: list[str]
    without_slower: list[str]  # Rainbow without it
    without_faster: list[str]

    @property
    def useful(self) -> int:
        return len(self.alone_faster) + len(self.without_slower)


def environments_of(verdicts: Compared) -> list[str]:
    """Those on which every variant has been trained."""
    needed = [x for x in VARIANTS if x not in (NONE, ALL)]
    envs = dict.fromkeys(env for env, *_ in verdicts)
    return [env for env in envs if all((env, x, "auc") in verdicts for x in needed)]


def effects(verdicts: Compared) -> dict[str, Effect]:
    """What each part does on the environments with all variants, the most useful one first."""

    def where(variant: str, word: str) -> list[str]:
        found = {env: verdicts.get((env, variant, "auc")) for env in environments_of(verdicts)}
        return [env for env, v in found.items() if v and v.word == word]

    found = {
        name: Effect(
            *(where(f"{name} alone", word) for word in ("better", "worse")),
            *(where(f"all but {name}", word) for word in ("worse", "better")),
        )
        for name in ALONE
    }
    return dict(sorted(found.items(), key=lambda x: -x[1].useful))


def carried_by(verdicts: Compared) -> str:
    """One sentence on the part that helps alone and is missed most often; nothing of several."""
    parts, envs = effects(verdicts), environments_of(verdicts)
    (name, best), second, *_ = parts.items()
    if best.useful == second[1].useful:
        return ""
    return (
        f"The most useful of Rainbow's parts is {name}: DQN learns faster with it alone in "
        f"{len(best.alone_faster)} of {plural(len(envs), 'environment')}, and Rainbow learns "
        f"more slowly without it in {len(best.without_slower)}"
    )


def effects_of(verdicts: Compared) -> Iterator[Block]:
    """Where each part helps and where it hurts, as a table."""
    if envs := environments_of(verdicts):
        yield Text(f"Where verdicts on learning speed are better or worse, of {', '.join(envs)}:")
        rows = []
        for name, effect in effects(verdicts).items():
            cells = [", ".join(x) or "-" for x in effect]
            if name not in WITHOUT:  # no part of Rainbow, which it could be left out of
                cells[2:] = "", ""
            rows.append((name, *cells))
        yield Table("rainbow-effects", EFFECTS, rows)


def panels_of(runs: Runs) -> dict[str, dict[str, Line]]:
    """Learning curves: DQN, Rainbow and each part alone."""
    return {
        f"greedy return, {env}": {
            variant: mean_line(*curve_of(result.algo, result.curve))
            for variant, result in here.items()
            if not variant.startswith("all but ")
        }
        for env, here in runs.items()
    }
