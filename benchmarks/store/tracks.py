"""What differs between a search of algorithms and one of methods for language models."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from manyseeds.benchmarks.experiments import catalog
from manyseeds.benchmarks.store.methods import SCALE
from manyseeds.benchmarks.store.results import Scores, scores_of
from manyseeds.cli import ControlConfig, field_marks, flag, identity, known, read_algo
from manyseeds.errors import UsageError
from manyseeds.process import resolve_device
from manyseeds.runs import configurations, language_configurations
from manyseeds.runs.base import BaseRun
from manyseeds.runs.control import Run, say_notes
from manyseeds.runs.language import LanguageRun
from manyseeds.runs.parallel import Processes

if TYPE_CHECKING:
    import pandas as pd


class Track:
    """Algorithms of algos/ that act in an environment."""

    package: catalog.Package = "algos"
    place, other = "env", "task"  # the field that says what is learned, and that of the other track
    learns = "acts in an environment"
    unit = "timesteps"  # of the budget
    run_class: type[BaseRun] = Run
    packages: tuple[str, ...] = ()  # whose versions are recorded
    max_rows = configurations.MAX_ROWS
    train_configurations = staticmethod(configurations.train_configurations)
    columns: tuple[str, ...] = ()  # of its rows that a study stores; (): all

    def names(self) -> list[str]:
        """The algorithms that can be searched."""
        modules = {name: catalog.module(self.package, name) for name in catalog.names(self.package)}
        return [name for name, x in modules.items() if issubclass(x.Config, ControlConfig)]

    @property
    def budget(self) -> str:
        """The field of the budget."""
        return f"total_{self.unit}"

    def check(self, config: Any) -> None:
        """Raise UsageError for what cannot be searched."""

    def prepare(self, config: Any) -> None:
        """Print what a user has to know before the first training. Raises UsageError where the data
        or the model refuse it."""
        say_notes(config, config.make_env())

    def train(
        self,
        train: Callable[[Any, Any], Any],
        configs: Sequence[Any],
        seeds: Sequence[int],
        rows: int,
        on_progress: Callable[[float], None],
        curves: bool,
    ) -> pd.DataFrame:
        """The rows of the track's `train_configurations` that a study stores."""
        found = self.train_configurations(train, configs, seeds, rows, on_progress, curves)
        return found[[*self.columns]] if self.columns else found

    def measure(self, rows: pd.DataFrame) -> str:
        """What the final score is called; rows: those so far."""
        return "return"

    def spec(self, config: Any, results: Path) -> Scores:
        """What scores are compared by."""
        own = config.make_env().spec
        known = {"threshold": own.reward_threshold, "digits": own.digits}
        return scores_of(results, identity(config), known)

    def defaults(self, config: Any) -> dict[str, Any]:
        """What the plain command has instead of the file's defaults and of a preset."""
        return {}

    def preset_text(self, subject: str, settings: Mapping[str, Any]) -> str:
        """A preset as it would stand in the track's files."""
        subject = subject if re.fullmatch(r"[\w-]+", subject) else json.dumps(subject)
        lines = [f"{name} = {json.dumps(value)}" for name, value in settings.items()]
        return "\n".join([f"[presets.{subject}]", *lines])


class LanguageTrack(Track):
    """Methods of llm_track/, which train a language model on a task."""

    package: catalog.Package = "llm_track"
    place, other = "task", "env"
    learns = "trains a language model"
    unit = "samples"
    run_class: type[BaseRun] = LanguageRun
    packages = ("transformers",)
    max_rows = language_configurations.MAX_ROWS
    train_configurations = staticmethod(language_configurations.train_configurations)
    # Other measures may have the name of a hyperparameter.
    columns = (
        *("configuration", "seed", "headline", "final", "auc", "train_accuracy", "diverged"),
        *("samples", "seconds"),
    )

    def names(self) -> list[str]:
        return list(catalog.names(self.package))

    def check(self, config: Any) -> None:
        language_configurations.check_together(config)

    def prepare(self, config: Any) -> None:
        from manyseeds.llm_track import models

        config.check_request()
        # A tiny model is made at first use; that is no time of a trial.
        models.find(config.model, config, Processes(resolve_device(config.device)))

    def measure(self, rows: pd.DataFrame) -> str:
        return str(rows["headline"].iloc[0]) if len(rows) else "score"

    def spec(self, config: Any, results: Path) -> Scores:
        return SCALE

    def defaults(self, config: Any) -> dict[str, Any]:
        rates = map(flag, config.RATES)  # as if given, so that no note says them again
        return dict(config.defaults_for(["--model", config.model, *rates]))

    def preset_text(self, subject: str, settings: Mapping[str, Any]) -> str:
        own = dict(settings)
        source = own.pop("source")
        return f"{json.dumps(subject)}: Preset(\n    {own},\n    source={json.dumps(source)},\n),"


CONTROL, LANGUAGE = Track(), LanguageTrack()
TRACKS = (CONTROL, LANGUAGE)


def find_track(words: Sequence[str], default: str) -> tuple[Track, str]:
    """The track and the algorithm of a command line. Raises UsageError.

    default: the algorithm without --algo. GRPO is of both tracks: --env or --task decides, or else
    the other flags, and without any it is that of algos/.
    """
    names = {track: track.names() for track in TRACKS}
    every = [name for own in names.values() for name in own]
    algo = read_algo(words, default, every, "a search")
    given = {known(word) for word in words if word.startswith("--")}
    if {CONTROL.place, LANGUAGE.place} <= given:
        raise UsageError("--env and --task: give one of them")

    def unknown(track: Track) -> tuple[bool, int]:
        own = field_marks(catalog.module(track.package, algo).Config)
        return track.other in given, len(given - own.keys())

    track = min((track for track in TRACKS if algo in names[track]), key=unknown)
    if track.other in given:
        raise UsageError(f"--{track.other}: {algo} {track.learns}; give --{track.place}")
    return track, algo
