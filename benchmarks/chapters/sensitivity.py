"""The page of searches: what search found, and how much it matters what is chosen.

From the studies of `benchmarks/search.py`. After Adkins et al., 2024, "A Method for
Evaluating Hyperparameter Sensitivity in Reinforcement Learning".
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from manyseeds import envs, stats
from manyseeds.benchmarks.chapters.blocks import (
    Block,
    Cell,
    Code,
    Figure,
    Fold,
    Heading,
    Item,
    Items,
    Link,
    Outcome,
    Table,
    Text,
    folded_if_long,
)
from manyseeds.benchmarks.chapters.differences import (
    Verdicts,
    corrected_verdicts,
    verdict_forest,
)
from manyseeds.benchmarks.chapters.origins import folded_origins
from manyseeds.benchmarks.experiments import catalog
from manyseeds.benchmarks.store.methods import SCALE
from manyseeds.benchmarks.store.names import display
from manyseeds.benchmarks.store.results import Scores
from manyseeds.benchmarks.store.stored import left_out, read, read_table
from manyseeds.benchmarks.store.studies import (
    PLACES,
    RESULT,
    STUDY,
    against_text,
    measured,
    score_text,
    sealed_studies,
    verdict_against,
    worths_of_rows,
)
from manyseeds.errors import UsageError, printable
from manyseeds.plots import Panel
from manyseeds.record import is_finished, layers, plural, ranges
from manyseeds.runs.stale import part_is_stale
from manyseeds.stats import Estimate, Floats, Parity
from manyseeds.worth import counted

MANY = 30  # configurations from which on a study says something of sensitivity
BINS = 8  # of a hyperparameter's values in a figure


@dataclass(frozen=True, eq=False)
class Study:
    """A finished search."""

    path: Path
    about: dict[str, Any]
    result: dict[str, Any]
    rows: pd.DataFrame

    @property
    def algo(self) -> str:
        return str(self.about["algo"])

    @property
    def of_language(self) -> bool:
        """Whether it searched a method for language models."""
        return bool(self.about["kind"] == "language")

    @property
    def env(self) -> str:
        """The environment or the task."""
        return str(self.about[PLACES[self.about["kind"]]])

    @property
    def spec(self) -> Scores | envs.EnvSpec:
        """Of the environment; only of our own is anything known. Scores of language models are
        shares."""
        return SCALE if self.of_language else envs.make(self.env).spec

    @property
    def label(self) -> str:
        """`ppo`, `ppo (stale)`"""
        return display(self.algo) + " (stale)" * part_is_stale(self.about)

    @property
    def budget(self) -> str:
        """`100,000`: timesteps, or samples of a language model, that each training has."""
        config = self.about["config"]
        return f"{config.get('total_timesteps', config.get('total_samples', 0)):,}"

    @property
    def names(self) -> list[str]:
        """The hyperparameters that were varied."""
        return [word.partition("=")[0].strip("-").replace("-", "_") for word in self.about["vary"]]

    def check(self) -> None:
        """Read all that the page needs, so that a broken study raises here."""
        search_rows(self, verdicts_of(self))
        part_is_stale(self.about)
        ranges(self.about["seeds"])
        if is_wide(self):
            self.normalised("untuned").to_numpy()[0]
            panels_of(self)

    def normalised(self, stage: str) -> pd.DataFrame:
        """Scores by trial and seed, [trials, seeds]: 0 a random policy, 1 the reference."""
        spec = self.spec
        rows = self.rows[self.rows["stage"] == stage]
        rows = rows.assign(final=counted(worths_of_rows(rows), spec.random_score))
        table = rows.pivot_table(index="trial", columns="seed", values="final", aggfunc="last")
        assert spec.random_score is not None
        assert spec.reference_score is not None
        return (table - spec.random_score) / (spec.reference_score - spec.random_score)


def read_studies(results: Path) -> list[Study]:
    """The finished studies of a results folder and of the published one below it."""
    found: dict[tuple[str, ...], Study] = {}
    for layer in layers(results):
        for path in sealed_studies(layer):
            with left_out(path):
                if not is_finished(path):
                    raise UsageError(f"{path}: is not what was sealed; search again")
                about = read(path / "config.json", STUDY)
                result = read(path / "result.json", RESULT)
                package: catalog.Package = "algos" if about["kind"] == "control" else "llm_track"
                known = about["algo"] in catalog.names(package)
                if not known or PLACES.get(about["kind"]) not in about:
                    raise UsageError(f"{path}: {about['algo']} is not a searchable algorithm")
                numbers = ("trial", "seed", "final", "auc", "diverged")
                rows = read_table(path / "rows.parquet", numbers, ("stage",))
                if about["kind"] == "control" and about["env"] not in envs.NATIVE:
                    raise UsageError(f"{path}: {about['env']} is not a native environment")
                study = Study(path, about, result, rows)
                study.check()
                found.setdefault(path.parts[-3:], study)
    return sorted(found.values(), key=lambda s: (s.algo, s.env, s.path.name))


def page(results: Path) -> Iterator[Block]:
    """The page; nothing without studies."""
    studies = read_studies(results)
    if studies:
        yield from searches_section(studies)
        yield from sensitivity_section([study for study in studies if is_wide(study)])
        yield origins_of(studies)


def is_wide(study: Study) -> bool:
    """Whether a study took random configurations around the defaults of an algorithm of control,
    enough of them."""
    about = study.about
    if study.of_language:
        return False
    random = about["sampler"] == "random" and about["cut"] == 1
    return random and about.get("base") == "defaults" and study.result["trials"] >= MANY


# ---- What was found -------------------------------------------------------------------------

FOUND = (
    *("environment", "algorithm", "timesteps", "search", "chosen", "against", "its score"),
    *("difference", "difference over training"),
)


def searches_section(studies: Sequence[Study]) -> Iterator[Block]:
    """Winners on fresh seeds, against the preset and SB3's defaults."""
    judged = corrected_verdicts({k: v for study in studies for k, v in verdicts_of(study).items()})
    rows = [row for study in studies for row in search_rows(study, judged)]
    verdicts: Verdicts = {}  # by what the winners are compared with
    for study in studies:
        for name in others_of(study):
            label = f"{study.env}, {display(study.algo)}, {search_text(study)}"
            own = verdicts.setdefault(name, {})
            label += f" ({study.path.name})" * (label in own)  # of another space
            if not is_winner(study, name):
                own[label] = judged[study.path, name, "final"]
    sentences = []
    for name, own in verdicts.items():
        words = [v.word for v in own.values() if v]
        same = sum(is_winner(study, name) for study in studies)
        said = [
            f"{words.count('better')} of {plural(len(own), 'winner')} scored better on fresh "
            f"seeds, {words.count('worse')} worse"
        ] * bool(own)
        said += [f"in {plural(same, 'other search' if own else 'search')} it won itself"] * bool(
            same
        )
        sentences.append(f"Against {'the ' * (name == 'preset')}{name}, {'; '.join(said)}.")
    of_language = any(study.of_language for study in studies)
    label = "Winners of searches, by final score"
    if figure := verdict_forest("searches", label, verdicts, "winner minus other"):
        yield Heading("Searches")
        yield Outcome(" ".join(sentences))
        yield figure
        yield Text(
            "Chosen by search (n configurations x k seeds), measured on m fresh seeds: the winner "
            "of a search and what it is compared with are trained again on seeds that were not "
            "used to choose it. The preset is that of the day of the search; a winner may have "
            "become the preset since. Scores are mean final greedy returns with their 95% interval"
            + ("; of language models pass@1, of reward models accuracy. " * of_language or ". ")
            + "Differences are those of normalised scores, at the end and averaged over training "
            f"(the area under the learning curve). The p-values of all {len(judged)} of them are "
            "corrected together (Holm, 1979); a figure's interval is of one difference, so that "
            "it may exclude 0 where the verdict is undecided. There is no test of failures."
        )
        place, algo, budget, *others = FOUND
        more = (" or task", " or samples") if of_language else ("", "")
        header = (place + more[0], algo, budget + more[1], *others)
        yield folded_if_long("Every winner and its scores", Table("searches", header, rows))


SearchVerdicts = Mapping[tuple[Path, str, str], Parity | None]  # by study, other and measure


def others_of(study: Study) -> list[str]:
    """What the winner is compared with."""
    return [*measured(study.result, "final")][1:]


def verdicts_of(study: Study) -> SearchVerdicts:
    """Those on the winner of a study, each by a single test."""
    return {
        (study.path, name, measure): verdict_against(
            measured(study.result, measure), name, study.spec, measure
        )
        for name, measure in product(others_of(study), ("final", "auc"))
        if not is_winner(study, name)
    }


def is_winner(study: Study, name: str) -> bool:
    """Whether what the winner is compared with has its settings: a difference of 0 is no test."""
    settings, winner = study.result["settings"], next(iter(measured(study.result, "final")), "")
    return name in settings and bool(settings[name] == settings.get(winner))


def search_rows(study: Study, judged: SearchVerdicts) -> list[tuple[Cell, ...]]:
    """The winner of a study against each of the others."""
    scores = {measure: measured(study.result, measure) for measure in ("final", "auc")}
    finals, spec = scores["final"], study.spec
    return [
        (
            study.env,
            study.label,
            study.budget,
            Link(search_text(study), file=study.path),
            score_text(finals[next(iter(finals))], spec),
            name,
            score_text(finals[name], spec),
            *(
                "the winner"
                if is_winner(study, name)
                else against_text(worths, name, spec, judged[study.path, name, measure])
                for measure, worths in scores.items()
            ),
        )
        for name in others_of(study)
    ]


def search_text(study: Study) -> str:
    """`80 x 10, 30 fresh`"""
    n, k = study.result["trials"], len(study.about["seeds"])
    return f"{n} x {k}, {len(study.about['fresh_seeds'])} fresh"


# ---- What matters ---------------------------------------------------------------------------

TUNING = (
    *("algorithm", "environment", "timesteps", "n", "untuned, mean [95%]"),
    *("tuned once for all, mean [95%]", "tuned for this one, mean [95%]"),
)
SUMMARY = (
    *("algorithm", "environments", "n", "tuned for each, mean [95%]"),
    *("tuned once for all, mean [95%]", "sensitivity, mean [95%]"),
)


def held_out(studies: Sequence[Study]) -> tuple[Floats, Floats, Floats]:
    """Scores [environments, seeds] of studies of the same configurations: untuned, tuned once for
    all, tuned for each.

    A seed is scored by the configuration that is best for the other seeds: the best of many is not
    credited for its noise.
    """
    tables = [study.normalised("search") for study in studies]
    common = sorted(set.intersection(*(set(table.index) for table in tables)))
    # A return that is not known counts as a random policy's.
    scores = np.stack([table.loc[common].fillna(0.0).to_numpy() for table in tables])
    untuned = np.stack([study.normalised("untuned").to_numpy()[0] for study in studies])
    for_all, for_each = np.empty_like(untuned), np.empty_like(untuned)
    for seed in range(scores.shape[2]):
        others = np.delete(scores, seed, axis=2).mean(2)  # [environments, trials]
        for_all[:, seed] = scores[:, others.mean(0).argmax(), seed]
        for_each[:, seed] = scores[np.arange(len(scores)), others.argmax(1), seed]
    return untuned, for_all, for_each


def together(studies: Sequence[Study]) -> list[list[Study]]:
    """The studies by algorithm, space and settings; the largest set of each algorithm."""
    groups: dict[str, list[Study]] = {}
    for study in studies:
        about = study.about
        base = {k: v for k, v in about["config"].items() if k not in ("env", "total_timesteps")}
        same = [about["algo"], about["vary"], about["seeds"], base, study.result["trials"]]
        key = json.dumps(same, sort_keys=True)
        groups.setdefault(key, []).append(study)
    largest: dict[str, list[Study]] = {}
    for group in groups.values():
        one_each = list({study.env: study for study in group}.values())
        if len(one_each) > len(largest.get(one_each[0].algo, [])):
            largest[one_each[0].algo] = one_each
    return [*largest.values()]


def sensitivity_section(studies: Sequence[Study]) -> Iterator[Block]:
    """Tables and figures of what tuning gives, and which hyperparameters matter."""
    groups = together(studies)
    if not groups:
        return
    rows: list[tuple[str, ...]] = []
    summary: list[tuple[str, ...]] = []
    places: dict[tuple[str, ...], dict[str, tuple[Estimate, Estimate]]] = {}  # by environments
    for group in groups:
        untuned, for_all, for_each = held_out(group)
        for i, study in enumerate(group):
            cells = (stats.estimate(x[i], "mean").text(3) for x in (untuned, for_all, for_each))
            n = f"{study.result['trials']} x {untuned.shape[1]}"
            rows.append((study.label, study.env, study.budget, n, *cells))
        if len(group) > 1:
            means = (for_each.mean(0), for_all.mean(0), (for_each - for_all).mean(0))
            tuned, _, sensitivity = found = [stats.estimate(x, "mean") for x in means]
            names = tuple(study.env for study in group)
            cells = (x.text(3) for x in found)
            summary.append((display(group[0].algo), ", ".join(names), n, *cells))
            places.setdefault(names, {})[printable(display(group[0].algo))] = (sensitivity, tuned)
    yield Heading("Sensitivity")
    names, points = max(places.items(), key=lambda item: len(item[1]), default=((), {}))
    if len(points) > 1:  # algorithms on the same environments
        label = f"Score against sensitivity on {printable(', '.join(names))}"
        axes = {"xlabel": "sensitivity", "ylabel": "score, tuned for each environment"}
        better = "above and to the left is better"
        yield Figure("sensitivity", f"{label}; {better}", "plane", {"places": points, **axes})
    yield Text(
        "Random configurations around an algorithm's defaults, the same ones on each environment. "
        'Scores are normalised (0: random policy, 1: reference) final returns. "Untuned": the '
        'defaults of the algorithm\'s file. "Tuned for this one": the best configuration of this '
        'environment. "Tuned once for all": that with the best mean over the environments. Both '
        "are chosen without the seed that they are scored by. Sensitivity is the mean gain from "
        "tuning for each environment over tuning once for all (Adkins et al., 2024). Intervals are "
        "over seeds only: environments and configurations are fixed."
    )
    if summary:
        yield Table("sensitivity", SUMMARY, summary)
    yield folded_if_long("Scores by environment", Table("tuning", TUNING, rows))
    yield from map(figure_of, groups)
    yield Text(
        "A point is a configuration, averaged over the seeds. The line joins the means of the "
        f"configurations in {BINS} bins of equal size, with 95% intervals."
    )


def figure_of(studies: Sequence[Study]) -> Figure:
    """A row of panels per environment, a column per hyperparameter."""
    algo = studies[0].algo
    sizes = dict.fromkeys(
        f"{s.result['trials']} configurations x {len(s.about['seeds'])} seeds" for s in studies
    )
    legend = f"Points: {' or '.join(sizes)}. Lines: means of {BINS} parts, 95% intervals."
    panels = [panel for study in studies for panel in panels_of(study)]
    label = f"Score of {printable(display(algo))} against each hyperparameter"
    data = {"panels": panels, "ylabel": "normalised score", "bins": BINS, "legend": legend}
    return Figure(f"sensitivity-{algo}", label, "scatter_grid", data)


def panels_of(study: Study) -> list[Panel]:
    """The scores of a study's configurations against each hyperparameter."""
    means = study.normalised("search").fillna(0.0).mean(axis=1)
    rows = study.rows[study.rows["stage"] == "search"].groupby("trial").first()
    words = dict(word.partition("=")[::2] for word in study.about["vary"])
    panels = []
    for name in study.names:
        log = str(words.get(name, "")).startswith("log:")
        values = rows.loc[means.index, name]
        panels.append(Panel(study.env, name, values.tolist(), means.to_numpy(), log))
    return panels


# ---- Where it is from -----------------------------------------------------------------------


def origins_of(studies: Sequence[Study]) -> Fold:
    """The folder, command, commit and seeds of every study."""
    items = []
    for study in studies:
        about, folder = study.about, "/".join(study.path.parts[-4:])
        code = f"commit {about['code']['commit']}, seeds {ranges(about['seeds'])}"
        name = (f"{display(study.algo)} on {study.env}: ", Link(folder, file=study.path))
        items.append(Item(name, Items([Code(about["command"]), code])))
    stale = [part_is_stale(study.about) for study in studies]
    return folded_origins("command", stale, [Items(items)])
