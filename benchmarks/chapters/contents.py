"""What the report and the site are made of: the store, read once, and the list of chapters."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from rich.progress import track

from manyseeds import plots
from manyseeds.benchmarks.chapters import (
    ablations,
    aggregate,
    environments,
    estimators,
    evidence,
    gradient_variance,
    interchange,
    language_claims,
    language_models,
    policy_gradients,
    sensitivity,
    speed,
    tabular,
)
from manyseeds.benchmarks.chapters.tables import table
from manyseeds.benchmarks.store.comparison import Pair, missing_cells, pairs
from manyseeds.benchmarks.store.results import Result, escape, load_result, picture
from manyseeds.benchmarks.store.stored import (
    StoredRun,
    find_file,
    left_out,
    open_runs,
    section_of,
)
from manyseeds.errors import UsageError, did_you_mean
from manyseeds.progress import console

T = TypeVar("T")


@dataclass(frozen=True)
class Store:
    """What the pages are made of."""

    results: Path
    runs: list[StoredRun]
    loaded: list[Result]  # the control runs
    found: list[Pair]
    methods: list[language_models.Method]
    missing: list[str]

    def of_kind(self, kind: str) -> list[StoredRun]:
        return [run for run in self.runs if run.kind == kind]


# ---- Reading ----------------------------------------------------------------------------------


def progress(items: Iterable[T], total: int, what: str) -> Iterator[T]:
    """The items, with a bar while they are worked on where there is a terminal."""
    shown = console.is_terminal
    yield from track(items, what, total, console=console, transient=True, disable=not shown)


def open_store(results: Path, with_missing: bool = True, env: str = "") -> Store:
    """Read all that pages are made of. env: its control runs alone.

    Raises UsageError where there is no finished, valid run.
    """
    store = read_store(results, with_missing, env)
    if not store.loaded and all(run.kind == "control" for run in store.runs):
        raise UsageError(f"--results {results}: no finished, valid run under {results / 'runs'}")
    return store


def read_store(results: Path, with_missing: bool = True, env: str = "") -> Store:
    """The same of a store that may have no runs. Raises UsageError for an env without runs."""
    runs = open_runs(results)
    if env:
        known = dict.fromkeys(run.env_name for run in runs if run.kind == "control")
        if env not in known:
            where = did_you_mean(env, known) if known else ""
            raise UsageError(f"--env {env}: no finished control run under {results}{where}")
        runs = [run for run in runs if run.kind == "control" and run.env_name == env]
    control = [run for run in runs if run.kind == "control"]
    loaded = []
    for run in progress(control, len(control), "reading"):
        with left_out(run.path):
            loaded.append(load_result(run))
    missing = missing_cells(results, runs) if with_missing else []
    return Store(results, runs, loaded, pairs(loaded), language_models.methods(runs), missing)


def by_environment(found: Sequence[Pair]) -> dict[str, list[Pair]]:
    grouped: dict[str, list[Pair]] = {}
    for pair in found:
        grouped.setdefault(pair.env, []).append(pair)
    return grouped


# ---- Chapters -------------------------------------------------------------------------------


class Chapter(NamedTuple):
    """A page beside README.md."""

    file: str
    title: str
    about: str  # what README.md says of it
    write: Callable[[Store], str]  # its content; empty: there is no such page


def speed_page(store: Store) -> str:
    text = ""
    for title, name, device in (
        ("On a CPU", "throughput.json", "cpu"),
        ("On a GPU", "throughput-cuda.json", "cuda"),
    ):
        write = partial(speed_section, device=device, folder=store.results)
        if section := section_of(find_file(store.results, name), speed.STORED, write):
            text += f"## {title}\n\n{section}\n"
    write_rows = partial(speed.rows_text, table=partial(table, store.results))
    path = find_file(store.results, "rows_speed.json")
    if section := section_of(path, speed.STORED_ROWS, write_rows):
        text += f"## Many configurations at once\n\n{section}\n"
    return text


def speed_section(stored: dict[str, dict[str, Any]], device: str, folder: Path) -> str:
    """Figure and tables of the measurements on a device."""
    text = speed.markdown(stored, device, partial(table, folder))
    if not (panels := speed.lines_of(stored)):
        return text
    figure = folder / "plots" / f"speed-{device}.svg"
    plots.lines(
        panels,
        figure,
        first=speed.SYSTEMS,
        xlabel="seeds at once",
        ylabel="timesteps/s",
        legend="medians over repeats",
        log_x=True,
        log_y=True,
    )
    return picture("Timesteps per second over the number of seeds", figure) + text


def check_page(store: Store) -> str:
    write = partial(environments.markdown, table=partial(table, store.results))
    return section_of(find_file(store.results, "tables/check.json"), environments.STORED, write)


def missing_page(store: Store) -> str:
    lines = "".join(f"- {escape(line)}\n" for line in store.missing)
    return f"Unfinished seeds of the suites:\n\n{lines}" if lines else ""


CHAPTERS = (
    Chapter(
        "verdicts.md",
        "Verdicts",
        "all of them, their error rates, revised ones, and how to read the numbers",
        lambda store: evidence.page(store.found, store.loaded, store.results),
    ),
    Chapter(
        "aggregate.md",
        "Across environments",
        "IQM, performance profiles and probability of improvement on shared environments",
        lambda store: aggregate.page(store.found, store.results),
    ),
    Chapter("speed.md", "Speed", "timesteps per second against SB3 and rejax", speed_page),
    Chapter(
        "planning.md",
        "Planning",
        "policy iteration and value iteration on known models",
        lambda store: tabular.planning_section(store.of_kind("planning"), store.results),
    ),
    Chapter(
        "prediction.md",
        "Prediction",
        "Monte Carlo and TD estimates against the exact values",
        lambda store: tabular.prediction_section(store.of_kind("prediction"), store.results),
    ),
    Chapter(
        "cliff.md",
        "Along the cliff",
        "Q-learning against SARSA, online and greedy",
        lambda store: tabular.cliff_section(store.of_kind("control"), store.results),
    ),
    Chapter(
        "policy-gradients.md",
        "Policy gradients",
        "weights of REINFORCE, advantages of A2C and GRPO, the cost of a critic",
        lambda store: policy_gradients.sections(store.loaded, store.results),
    ),
    Chapter(
        "ablations.md",
        "Ablations",
        "clipping, GAE's lambda, normalised advantages, epochs, weights: which claims hold",
        lambda store: ablations.page(store.loaded, store.results),
    ),
    Chapter(
        "gradient-variance.md",
        "Variance of the policy gradient",
        "the same frozen policies with every weight of REINFORCE, PPO and GRPO",
        lambda store: gradient_variance.page(store.results),
    ),
    Chapter(
        "interchange.md",
        "Interchangeability",
        "PPO and DQN of four libraries with the same hyperparameters",
        lambda store: interchange.page(store.loaded, store.results),
    ),
    Chapter(
        "language-models.md",
        "Language models",
        "SFT to DAPO on small tasks, and against TRL",
        lambda store: language_models.sections(store.methods, store.results),
    ),
    Chapter(
        "language-claims.md",
        "What the language papers claim",
        "R1-Zero, over-optimised rewards, DeepSeek-R1's stages, clip-higher, length, "
        "self-correction",
        lambda store: language_claims.page(store.methods, store.results),
    ),
    Chapter(
        "estimators.md",
        "Estimators, exactly",
        "bias and variance of the language methods' gradients and KL terms, without sampling",
        lambda store: estimators.page(store.results),
    ),
    Chapter(
        "sensitivity.md",
        "Hyperparameters: searches and sensitivity",
        "what tuning gains, and which hyperparameters matter",
        lambda store: sensitivity.page(store.results),
    ),
    Chapter(
        "environments.md",
        "Native environments against Gymnasium's",
        "the same policies in both",
        check_page,
    ),
    Chapter("missing.md", "Missing", "seeds of the suites that are not trained yet", missing_page),
)
