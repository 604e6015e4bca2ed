"""Searches hyperparameters: many configurations, each for several seeds, as one batch.

    python benchmarks/search.py --algo ppo --env Pendulum-v1 \\
        --vary learning_rate=log:1e-4:1e-2:8 gae_lambda=0.9,0.95 --seeds 10

    python benchmarks/search.py --algo grpo --task addition --seeds 5 --cut 0.25 \\
        --vary learning_rate=log:1e-4:3e-3:6 kl_coef=0.02,0.04

An algorithm is a file of algos/ or, as in the second search, of llm_track/ (GRPO is both, and
`--task` means the latter). The other flags are those of the algorithm's file, with the same
presets. Hyperparameters that are not varied have the preset's value, or with `--base defaults` the
file's default. Values are `A,B,C`, `log:LOW:HIGH:POINTS` or `linear:LOW:HIGH:POINTS`. A grid takes
all combinations, `random` and `tpe` any value between LOW and HIGH. Optuna chooses the
configurations of a batch. Those that differ in shapes, such as num_envs, are trained one group
after another. A larger search:

    python benchmarks/search.py --algo ppo --env Pendulum-v1 --sampler tpe --minutes 10 --cut 0.5 \\
        --vary learning_rate=log:1e-4:1e-2 gae_lambda=linear:0.8:1 num_envs=4,8 clip_range=0.1,0.2

A configuration's score is the mean final greedy return of its seeds. The return during training
breaks ties. A configuration with a diverged seed has no score, and is never chosen. With
`--cut 0.25` trials have a quarter of the timesteps, and the best few are then trained at full
length. The best score of many is biased upwards, so the winner is measured again on fresh seeds
(from 1000 on), beside the preset and stable-baselines3's default hyperparameters, all three trained
by our code.

For language models the score is what the method publishes first: pass@1 or, for reward_model.py,
accuracy, by the file's final evaluation, the only one of a trial. The accuracy that the training
logs breaks ties, or for sft.py, which logs none, the order of the trials. `--cut` cuts the samples.
The winner is measured beside the preset alone.

A study is a folder in RESULTS/studies. The same command resumes it and trains nothing twice. More
--trials or --minutes extend it.
"""

from __future__ import annotations

from manyseeds.command import failing_in_one_line

import contextlib
import dataclasses
import math
import shlex
import sys
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NoReturn

import numpy as np
import pandas as pd

from manyseeds import stats
from manyseeds.benchmarks.baselines.sb3_defaults import SB3_DEFAULTS
from manyseeds.benchmarks.experiments import catalog
from manyseeds.benchmarks.experiments.spaces import (
    Choice,
    Space,
    configuration,
    fixed,
    grid,
    read_space,
)
from manyseeds.benchmarks.experiments.stated import STATED
from manyseeds.benchmarks.experiments.verdicts import FIRST_FRESH
from manyseeds.benchmarks.store.results import Scores
from manyseeds.benchmarks.store.studies import (
    StudyFolder,
    against_text,
    measured,
    score_text,
    verdict_against,
    worths_of_rows,
)
from manyseeds.benchmarks.store.tracks import Track, find_track
from manyseeds.cli import (
    PUBLISHED,
    LayerConfig,
    NonNegative,
    NonNegativeInt,
    PositiveInt,
    Range,
    identity,
    parse_both,
    read_flag,
    requested_seeds,
)
from manyseeds.digest import installing, origin_of
from manyseeds.errors import UsageError, did_you_mean
from manyseeds.process import set_up_process
from manyseeds.progress import Progress, console
from manyseeds.record import check_committed, hash_of, plural, provenance, ranges, seal
from manyseeds.runs.base import AGAIN, without_results
from manyseeds.runs.configurations import batches
from manyseeds.untrusted import reading
from manyseeds.worth import mean_or_failure, unscored_text
from manyseeds.writing import write_json

if TYPE_CHECKING:
    import optuna

WINNER, PRESET, SB3 = "chosen by search", "preset", "SB3's defaults"
FIRST_BATCH = 4  # trials, where the time of one is not known yet and --minutes limits it
MAX_REFUSED = 25  # batches
TIES = ("train_return", "train_accuracy")  # columns that break them, of each track
UNTUNED, OTHER = -1, -2  # numbers in the place of a trial's


@dataclass(frozen=True, kw_only=True)
class Flags(LayerConfig):
    """What a search has besides the flags of the algorithm."""

    stated: str = ""
    """Run this search of benchmarks/experiments/stated.py, which sets all other flags."""
    algo: str = "ppo"
    """Algorithm: the name of its file in algos/, or with --task in llm_track/."""
    vary: tuple[str, ...] = ()
    """Hyperparameters to search, each as NAME=VALUES."""
    sampler: Literal["grid", "random", "tpe"] = "grid"
    """How to choose configurations. All of a grid, at random, or by Optuna's TPE."""
    trials: NonNegativeInt = 0
    """Number of configurations (0: the whole grid, or as many as --minutes allow)."""
    minutes: NonNegative = 0.0
    """Time limit for the trials, in minutes (0: no limit)."""
    rows: NonNegativeInt = 0
    """Maximum batch size in rows. Rows are configurations times seeds; this limits the memory (0:
    256, of language models 32)."""
    cut: Annotated[float, Range(0, 1, open_low=True)] = 1.0
    """Fraction of the timesteps (or samples) that each trial is trained for."""
    finalists: PositiveInt = 4
    """Number of best trials to train in full if --cut is below 1."""
    fresh_seeds: Annotated[int, Range(0, 10_000)] = 30
    """Number of fresh seeds to evaluate the winner on (0: none)."""
    base: Literal["preset", "defaults"] = "preset"
    """Values of all other hyperparameters. From the preset of the environment or task, or the
    algorithm's defaults."""


@dataclass(frozen=True)
class Search:
    """One search: what is searched, and how."""

    track: Track
    algo: str
    config: Any  # at full length
    space: Space
    flags: Flags

    @property
    def results(self) -> Path:
        """The results folder."""
        return PUBLISHED if self.flags.publish else Path(self.config.results)

    @property
    def folder(self) -> StudyFolder:
        """Where it is stored."""
        name, settings = self.config.name, self.settings()
        return StudyFolder.of(self.results, self.subject, self.algo, name, settings)

    @property
    def subject(self) -> str:
        """What is learned: the environment or the task."""
        return str(getattr(self.config, self.track.place))

    @property
    def spec(self) -> Scores:
        """What its scores are compared by."""
        return self.track.spec(self.config, self.results)

    @property
    def measure(self) -> str:
        """What the final score is called."""
        return self.track.measure(self.folder.rows)

    @property
    def seeds(self) -> list[int]:
        return list(requested_seeds(self.config))

    @property
    def fresh(self) -> list[int]:
        return list(range(FIRST_FRESH, FIRST_FRESH + self.flags.fresh_seeds))

    @property
    def module(self) -> Any:
        return catalog.module(self.track.package, self.algo)

    @property
    def rows(self) -> int:
        """The maximum batch size."""
        return self.flags.rows or self.track.max_rows

    def budget_of(self, config: Any) -> int:
        """Timesteps or samples of a configuration."""
        return int(getattr(config, self.track.budget))

    @property
    def trial_budget(self) -> int:
        """Those of a trial."""
        return max(round(self.budget_of(self.config) * self.flags.cut), 1)

    def point(self, trial: optuna.trial.FrozenTrial, full: bool = False) -> Any:
        """The configuration of a trial. Raises UsageError where its fields do not go together."""
        budget = self.budget_of(self.config) if full else self.trial_budget
        return configuration(self.config, self.space, trial.params, **{self.track.budget: budget})

    def settings(self) -> dict[str, Any]:
        """What makes this study another one than others."""
        return {
            "algo": self.algo,
            self.track.place: self.subject,
            "config": identity(self.config),
            "vary": sorted(self.flags.vary),
            "sampler": self.flags.sampler,
            "seeds": self.seeds,
            "fresh_seeds": self.fresh,
            "cut": self.flags.cut,
            "finalists": self.flags.finalists,
        }

    def about(self) -> dict[str, Any]:
        """By which command, on what and by which code it is searched, for config.json."""
        origins = sorted({origin_of(self.module.train), *self.config.origins()})
        packages, run_class = ("optuna", *self.track.packages), self.track.run_class
        return {
            "kind": run_class.kind,
            "base": self.flags.base,
            "execution": {"device": self.config.device, "threads": self.config.threads},
            "command": "python " + shlex.join(without_results(sys.argv)),
            **provenance(origins, packages, run_class.kind_origins()),
        }


# ---- Trials ---------------------------------------------------------------------------------


def open_journal(search: Search) -> optuna.Study:
    """Optuna's study of a folder."""
    import optuna
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    warnings.filterwarnings("ignore", category=optuna.exceptions.ExperimentalWarning)
    search.folder.mend_journal()
    storage = JournalStorage(JournalFileBackend(str(search.folder.journal)))
    return optuna.create_study(
        storage=storage, study_name="study", direction="maximize", load_if_exists=True
    )


def ask(search: Search, study: optuna.Study, count: int) -> list[int]:
    """Choose the next trials; returns their numbers.

    Each has a sampler with a seed of its own, and is one line of the journal: a search that was
    stopped goes on as if it had not been.
    """
    import optuna

    trials = study.get_trials(deepcopy=False)
    numbers = list(range(len(trials), len(trials) + count))
    distributions = {name: values.distribution() for name, values in search.space.items()}
    points = grid(search.space) if search.flags.sampler == "grid" else []
    memory = optuna.create_study(direction="maximize")  # study.ask writes a line per parameter
    memory.add_trials([] if points else trials)
    for number in numbers:
        if search.flags.sampler == "tpe":
            memory.sampler = optuna.samplers.TPESampler(seed=number, multivariate=True)
        else:
            memory.sampler = optuna.samplers.RandomSampler(seed=number)
        params = points[number] if points else memory.ask(distributions).params
        running = optuna.trial.TrialState.RUNNING
        study.add_trial(
            optuna.trial.create_trial(state=running, params=params, distributions=distributions)
        )
    return numbers


def run_trials(search: Search, study: optuna.Study) -> None:
    """Train trials, a batch at a time, until there are enough."""
    import optuna

    flags, seeds = search.flags, search.seeds
    limit = flags.trials or math.inf
    if flags.sampler == "grid":
        limit = min(limit, len(grid(search.space)))
    per_batch = max(search.rows // len(seeds), 1)
    total = int(limit) * search.trial_budget if limit < math.inf else 0
    bar = bar_of(search, total, len(seeds), f"best mean final {search.measure}")
    refused = 0  # batches in a row without any configuration that can be trained
    try:
        while True:
            rows = search.folder.rows
            rows = rows[rows["stage"] == "search"]
            asked = study.get_trials(deepcopy=False, states=[optuna.trial.TrialState.RUNNING])
            scores = trial_scores(rows)
            for trial in asked:  # of a process that was stopped before it told the score
                if trial.number in scores:
                    tell(study, trial.number, scores[trial.number])
            todo = [trial.number for trial in asked if trial.number not in scores]
            spent = float(rows["seconds"].sum())
            allowed = room(flags, rows, spent, per_batch)
            done = len(study.get_trials(deepcopy=False))
            before = done - len(todo)
            todo += ask(search, study, int(min(min(per_batch, allowed) - len(todo), limit - done)))
            if not todo:
                return
            refused = 0 if train_batch(search, study, todo, bar, before, spent) else refused + 1
            if refused == MAX_REFUSED:
                console.print(f"{refused} batches in a row could not be trained: the search ends")
                return
    finally:
        bar.close()


def room(flags: Flags, rows: pd.DataFrame, spent: float, per_batch: int) -> int:
    """How many more trials fit into `--minutes`, from the seconds that those so far took."""
    if not flags.minutes:
        return per_batch
    left = flags.minutes * 60 - spent
    if left <= 0:
        return 0
    if rows.empty:
        return min(per_batch, FIRST_BATCH)
    return math.floor(left / (spent / rows["trial"].nunique()))


def train_batch(
    search: Search,
    study: optuna.Study,
    numbers: Sequence[int],
    bar: Progress,
    before: int,
    spent: float,
) -> int:
    """Train trials; after each batch, write its rows, then tell Optuna the scores.

    Returns how many could be trained.
    """
    import optuna

    trials = study.get_trials(deepcopy=False)
    configs, kept = [], []
    for number in numbers:
        try:
            configs.append(search.point(trials[number]))
            kept.append(number)
        except UsageError:  # its fields do not go together: minibatches that do not divide, say
            study.tell(number, state=optuna.trial.TrialState.FAIL)
    began, done, budget = time.monotonic(), before, search.trial_budget
    for chosen in batches(configs, len(search.seeds), search.rows):

        def told(fraction: float, first: int = done, size: int = len(chosen)) -> None:
            now = int((first + fraction * size) * budget)
            bar.update(now, spent + time.monotonic() - began)

        own, names = [configs[k] for k in chosen], [kept[k] for k in chosen]
        train_rows(search, "search", own, names, search.seeds, told)
        scores = trial_scores(search.folder.rows)
        for number in names:
            tell(study, number, scores[number])
        done += len(chosen)
        text = "none has a score yet"
        if best := ranked(search.folder.rows, "search")[:1]:
            score = stats.number_text(scores[best[0]], search.spec.digits)
            text = f"{score} by trial {best[0]}"
        bar.update(done * budget, spent + time.monotonic() - began, text)
    return len(configs)


def train_rows(
    search: Search,
    stage: str,
    configs: Sequence[Any],
    names: Sequence[int],
    seeds: Sequence[int],
    told: Callable[[float], None],
) -> None:
    """Train configurations, named by numbers, and write their rows."""
    train, rows = search.module.train, search.rows
    frame = search.track.train(train, configs, seeds, rows, told, curves=stage == "fresh")
    search.folder.add_rows(labelled(frame, stage, names, configs, search.space))


def train_one(
    search: Search, stage: str, config: Any, name: int, seeds: Sequence[int], text: str
) -> None:
    """Train one configuration under a progress bar of its own, and write its rows."""
    began, budget = time.monotonic(), search.budget_of(config)
    bar = bar_of(search, budget, len(seeds), text)

    def told(fraction: float) -> None:
        bar.update(int(fraction * budget), time.monotonic() - began)

    with contextlib.closing(bar):
        train_rows(search, stage, [config], [name], seeds, told)


def bar_of(search: Search, total: int, seeds: int, text: str) -> Progress:
    """A progress bar of `total` per seed, 0 where that is not known; text: of what."""
    unit = search.track.unit
    return Progress(total, seeds, search.config.quiet, live=True, unit=unit, measure=text)


def tell(study: optuna.Study, number: int, score: float) -> None:
    """Tell Optuna a trial's score; without one it has failed."""
    import optuna

    if math.isfinite(score):
        study.tell(number, score)
    else:
        study.tell(number, state=optuna.trial.TrialState.FAIL)


def labelled(
    frame: pd.DataFrame,
    stage: str,
    names: Sequence[int],
    configs: Sequence[Any],
    space: Space,
) -> pd.DataFrame:
    """Rows of `train_configurations` as the study stores them, with the values that were varied."""
    frame = frame.copy()
    chosen = frame.pop("configuration").to_numpy()
    frame.insert(0, "stage", stage)
    frame.insert(1, "trial", np.array(names)[chosen])
    frame.insert(2, "settings", np.array([hash_of(identity(config)) for config in configs])[chosen])
    for name, values in space.items():
        stored = [getattr(config, name) for config in configs]
        if isinstance(values, Choice):
            stored = [as_word(value) for value in stored]
        frame[name] = [stored[k] for k in chosen]
    return frame


def as_word(value: Any) -> str:
    """A value as `--vary` has it: 64-64, true."""
    if isinstance(value, tuple):
        return "-".join(map(str, value))
    return str(value).lower() if isinstance(value, bool) else str(value)


def trial_scores(rows: pd.DataFrame, stage: str = "search") -> dict[int, float]:
    """The mean final score of each trial, over its seeds; -inf where a seed diverged, or where its
    score is unknown."""
    chosen = rows[rows["stage"] == stage]
    trials: Any = chosen.groupby("trial")
    return {int(number): mean_or_failure(worths_of_rows(own)) for number, own in trials}


def ranked(rows: pd.DataFrame, stage: str) -> list[int]:
    """The trials that have a score, best first: by that, among equals by TIES, then the earlier."""
    scores = {n: score for n, score in trial_scores(rows, stage).items() if math.isfinite(score)}
    chosen = rows[rows["stage"] == stage]
    tie = next((name for name in TIES if name in chosen), TIES[0])
    training: Any = chosen[tie].fillna(-math.inf).groupby(chosen["trial"]).mean()
    return sorted(scores, key=lambda number: (-scores[number], -training[number]))


# ---- The winner -----------------------------------------------------------------------------


def run_untuned(search: Search) -> None:
    """Train what is not varied as it is, for the same seeds and timesteps as a trial."""
    if (search.folder.rows["stage"] == "untuned").any():
        return
    try:
        config = dataclasses.replace(search.config, **{search.track.budget: search.trial_budget})
    except UsageError as error:
        console.print(f"untuned: left out; {error}")
        return
    train_one(search, "untuned", config, UNTUNED, search.seeds, "untuned")


def run_finalists(search: Search, study: optuna.Study) -> int:
    """Train the best trials at full length, where trials were cut; returns the winner's number."""
    rows = search.folder.rows
    best = ranked(rows, "search")
    if search.flags.cut == 1:
        return best[0]
    finalists = best[: search.flags.finalists]
    finished = set(rows[rows["stage"] == "finalist"]["trial"])
    todo = [number for number in finalists if number not in finished]
    trials = study.get_trials(deepcopy=False) if todo else []
    for number in todo:
        config = search.point(trials[number], full=True)
        text = f"trial {number} at full length"
        train_one(search, "finalist", config, number, search.seeds, text)
    best = [n for n in ranked(search.folder.rows, "finalist") if n in finalists]
    if not best:
        fail(search, "finalist")
    return best[0]


def fail(search: Search, stage: str) -> NoReturn:
    """Leave in one line where no trial has a score: there is nothing to choose."""
    rows = search.folder.rows
    rows = rows[rows["stage"] == stage]
    trials, diverged = rows["trial"].nunique(), rows["trial"][rows["diverged"].notna()].nunique()
    text = f"a seed diverged in {diverged} of {plural(trials, 'trial')}"
    text += f", and the others have no finite {search.measure}" if diverged < trials else ""
    print(f"error: nothing to choose: {text}; see {search.folder.path}", file=sys.stderr)
    raise SystemExit(1)


def candidates(search: Search, study: optuna.Study, winner: int) -> dict[str, Any]:
    """What is measured on fresh seeds, by name."""
    module, base, subject = search.module, search.config, search.subject
    same = {name: getattr(base, name) for name in fixed(type(base)) if name != "init"}
    found = {WINNER: search.point(study.get_trials(deepcopy=False)[winner], full=True)}
    preset = dict(module.PRESETS[subject].settings) if subject in module.PRESETS else {}
    others = {PRESET: preset | search.track.defaults(base)}
    if search.algo in SB3_DEFAULTS:
        others[SB3] = SB3_DEFAULTS[search.algo]
    for name, settings in others.items():
        try:
            found[name] = module.Config(**{**settings, **same})
        except UsageError as error:  # of few timesteps, fewer than a rollout of theirs
            console.print(f"{name}: left out; {error}")
    return found


def measure(search: Search, found: Mapping[str, Any], winner: int) -> pd.DataFrame:
    """The rows of the candidates on the fresh seeds, trained where they are missing."""
    settings = {name: hash_of(identity(config)) for name, config in found.items()}
    for name, config in found.items() if search.fresh else ():
        rows = search.folder.rows
        if ((rows["stage"] == "fresh") & (rows["settings"] == settings[name])).any():
            continue
        number = winner if name == WINNER else OTHER
        train_one(search, "fresh", config, number, search.fresh, f"{name} on fresh seeds")
    rows = search.folder.rows
    fresh = rows[rows["stage"] == "fresh"].drop_duplicates(["settings", "seed"])
    frames = [fresh[fresh["settings"] == key].assign(name=name) for name, key in settings.items()]
    return pd.concat(frames)


def result_of(search: Search, found: Mapping[str, Any], winner: int) -> dict[str, Any]:
    """Measure the candidates; result.json: their scores."""
    frame = measure(search, found, winner)
    fresh = {name: frame[frame["name"] == name] for name in found if search.fresh}
    rows = search.folder.rows
    trials = rows[rows["stage"] == "search"]
    return {
        "winner": winner,
        "trials": int(trials["trial"].nunique()),
        "seconds": {s: float(x) for s, x in rows.groupby("stage")["seconds"].sum().items()},
        "settings": {name: identity(config) for name, config in found.items()},
        **{
            measure: {name: finite_or_none(own[measure]) for name, own in fresh.items()}
            for measure in ("final", "auc", "diverged")
        },
    }


def finite_or_none(values: pd.Series) -> list[float | None]:
    """Numbers as JSON: null for one that is not finite."""
    return [x if math.isfinite(x) else None for x in values.tolist()]


def print_result(search: Search, result: Mapping[str, Any], found: Mapping[str, Any]) -> None:
    """How the winner was found and measured, and the preset as it would stand in the file."""
    from rich.table import Table

    spec, n, k = search.spec, result["trials"], len(search.seeds)
    console.print(
        f"{search.algo} on {search.subject}: chosen by search ({n} configurations x {k} seeds)"
        + (f", measured on {len(search.fresh)} fresh seeds" if search.fresh else "")
    )
    finals = measured(result, "final")
    if search.fresh:
        table = Table(box=None, padding=(0, 1, 0, 0))
        for column in ("", f"final {search.measure}, mean", "chosen against it"):
            table.add_column(column)
        for name, worths in finals.items():
            verdict = verdict_against(finals, name, spec)
            text = "" if name == WINNER else against_text(finals, name, spec, verdict)
            table.add_row(name, score_text(worths, spec), text)
        console.print(table)
        if note := stats.coverage_note([len(search.fresh)]):
            console.print(note)
    seconds = ", ".join(f"{stage} {s:.0f} s" for stage, s in result["seconds"].items())
    console.print(f"{seconds}; stored in {search.folder.path}")
    if search.fresh and (unscored := unscored_text(finals[WINNER])):
        console.print(f"no preset is recommended: {unscored} of the fresh seeds")
    else:
        print(preset_text(search, found[WINNER], n))


def preset_text(search: Search, config: Any, trials: int) -> str:
    """The winner as a preset of its track's files."""
    place, budget = search.track.place, search.track.budget
    default = type(config)(**{place: search.subject})
    changed = {
        field.name: getattr(config, field.name)
        for field in dataclasses.fields(config)
        if field.name in identity(config)
        and (field.name == budget or getattr(config, field.name) != getattr(default, field.name))
        and field.name not in (place, "eval_budget", "eval_prompts", "eval_samples")
    }
    source = f"our own search: {trials} configurations, {plural(len(search.seeds), 'seed')} each "
    source += f"({ranges(search.seeds)})"
    if search.fresh:
        source += f"; {plural(len(search.fresh), 'fresh seed')} ({ranges(search.fresh)})"
    return search.track.preset_text(search.subject, changed | {"source": source})


# ---- The command ----------------------------------------------------------------------------


def read_flags(args: Sequence[str] | None) -> Search:
    """The search that a command line asks for. Raises UsageError."""
    words = list(sys.argv[1:] if args is None else args)
    if stated := read_flag("stated", "", words):
        if stated not in STATED:
            raise UsageError(f"--stated {stated}: no such search{did_you_mean(stated, STATED)}")
        words += shlex.split(STATED[stated])
    track, algo = find_track(words, Flags.algo)
    module = catalog.module(track.package, algo)
    plain = read_flag("base", Flags.base, words) == "defaults"
    presets = {} if plain else module.PRESETS
    flags, config = parse_both(Flags, module.Config, presets, __doc__, words)
    flags.check_publish()
    if config.track != "none":
        raise UsageError("--track: a search has files of its own")
    if config.keep_stale:
        raise UsageError("--keep-stale: no search goes on with what other code has trained")
    track.check(config)
    space = read_space(flags.vary, config)
    if flags.sampler == "grid":
        grid(space)
    elif not flags.trials and not flags.minutes:
        raise UsageError(f"--sampler {flags.sampler}: needs --trials or --minutes")
    if flags.cut * getattr(config, track.budget) < 1:
        raise UsageError(f"--cut {flags.cut:g}: leaves no {track.unit[:-1]}")
    fresh = range(FIRST_FRESH, FIRST_FRESH + flags.fresh_seeds)
    if set(requested_seeds(config)) & set(fresh):
        raise UsageError(
            f"--seeds {config.seeds}: those from {FIRST_FRESH} on are fresh ones; take others by "
            "--first-seed"
        )
    return Search(track, algo, config, space, flags)


@failing_in_one_line("; try a smaller --rows", AGAIN)
def main(args: Sequence[str] | None = None) -> None:
    """Search, measure the winner, print it."""
    search = read_flags(args)
    needs_optuna()
    if search.flags.publish:
        check_committed()
    set_up_process(search.config.threads)
    search.track.prepare(search.config)
    with search.folder.locked():
        search.folder.open(search.settings(), search.about())
        with reading(search.folder.journal):
            study = open_journal(search)
        run_trials(search, study)
        if not trial_scores(search.folder.rows):
            raise UsageError("--vary: no configuration of this space can be trained")
        if not ranked(search.folder.rows, "search"):
            fail(search, "search")
        run_untuned(search)
        winner = run_finalists(search, study)
        found = candidates(search, study, winner)
        result = result_of(search, found, winner)
        write_json(search.folder.path / "result.json", result)
        seal(search.folder.path)
        print_result(search, result, found)


def needs_optuna() -> None:
    """Raise UsageError without Optuna."""
    import importlib.util

    if importlib.util.find_spec("optuna") is None:
        raise UsageError(f"search.py: needs Optuna; {installing('search')}")


if __name__ == "__main__":
    main()
