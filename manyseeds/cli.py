"""The command line of a training script: a frozen dataclass, presets, one-line error messages.

Precedence: a flag, then the preset for the chosen environment, then the field's default.
"""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import inspect
import json
import math
import os
import re
import sys
import tomllib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from itertools import pairwise
from pathlib import Path
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Literal,
    NoReturn,
    TypeVar,
    get_args,
    get_origin,
    get_type_hints,
)

from manyseeds.arguments import canonical_kwargs
from manyseeds.digest import ROOT, origin_of, room_file
from manyseeds.errors import UsageError, did_you_mean

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

PUBLISHED = (ROOT / "results").resolve()  # the published runs, tables and figures
RESULTS = "results/local"  # what a person trains and measures; git ignores it
PUBLISHING = "MANYSEEDS_PUBLISH"  # set by a sweep that publishes, for the scripts that it starts
MAX_NAME = 240  # characters; a file beside the run has some more
FLOAT32_MAX = (2 - 2**-23) * 2.0**127  # everything is learned in this precision
INT_MAX = 2**53  # exact as a float, too
MAX_THREADS = 1024  # far above it, threads cannot be started


@dataclass(frozen=True)
class Range:
    """The values a numeric field may take; NaN and infinity never are."""

    low: float = -math.inf
    high: float = math.inf
    open_low: bool = False  # low itself is not allowed

    def __contains__(self, value: float) -> bool:
        above = value > self.low if self.open_low else value >= self.low
        return above and value <= self.high and -math.inf < value < math.inf

    def __str__(self) -> str:
        if self.high < math.inf:
            return f"a number {'above' if self.open_low else 'from'} {self.low:g} to {self.high:g}"
        if self.low == -math.inf:
            return "a finite number"
        return f"a finite number {'above' if self.open_low else 'of at least'} {self.low:g}"


@dataclass(frozen=True)
class Execution:
    """Marks a field that changes no learning curve: it is no part of a run's identity."""


@dataclass(frozen=True)
class Added:
    """Marks a field that was added when runs were stored already.

    before: the value that reproduces what was done before. With it, the field is no part of a run's
    identity, so that older runs keep their names.
    """

    before: Any


@dataclass(frozen=True)
class OfRow:
    """Marks a hyperparameter that may differ between the rows of a batch (manyseeds.rows)."""


Hyperparameter = TypeVar("Hyperparameter")
PerRow = Annotated[Hyperparameter, OfRow()]
PositiveInt = Annotated[int, Range(1)]
Seeds = Annotated[int, Range(1, 100_000)]  # all of them are held in memory
NonNegativeInt = Annotated[int, Range(0)]
Positive = Annotated[float, Range(0, open_low=True)]
NonNegative = Annotated[float, Range(0)]
Fraction = Annotated[float, Range(0, 1)]
PositiveFraction = Annotated[float, Range(0, 1, open_low=True)]


@dataclass(frozen=True, kw_only=True)
class ScriptConfig:
    """The flag that every script has."""

    results: Annotated[str, Execution()] = RESULTS
    """Folder for the results."""


@dataclass(frozen=True, kw_only=True)
class LayerConfig(ScriptConfig):
    """Flags of a script that writes runs or pages: what is published only if it says so."""

    publish: bool = False
    """Write to results, the published folder."""

    def check_publish(self) -> None:
        """Raise UsageError for `--publish` together with a folder of one's own."""
        if self.publish and self.results != RESULTS:
            raise UsageError("--publish: writes what is published, and takes no --results")


@dataclass(frozen=True, kw_only=True)
class RunConfig(ScriptConfig):
    """Flags that every training script has. None of them changes a seed's learning curve."""

    name: Annotated[str, Execution()] = ""
    """Name of the run. Default: a hash of every field that changes a result."""
    device: Annotated[Literal["auto", "cpu", "cuda"], Execution()] = "auto"
    """Device. auto is the CPU until the CUDA path has been measured."""
    threads: Annotated[int, Range(1, MAX_THREADS), Execution()] = 1
    """CPU threads. With a C compiler a seed's results are bit-identical in any batch and for any
    number of threads. Without one, or with edited functions, this needs an equal number of threads
    and hidden layers of at least 16 units, a multiple of 4. On CUDA results are equal up to
    rounding."""
    track: Annotated[Literal["none", "tensorboard", "wandb"], Execution()] = "none"
    """Tracker for each seed's scalars. Its files are in the run's folder; W&B runs
    are offline unless WANDB_MODE is set."""
    quiet: Annotated[bool, Execution()] = False
    """Print only the final table."""
    keep_stale: Annotated[bool, Execution()] = False
    """Accept parts trained by different code as finished. Otherwise they are moved aside, and their
    seeds are trained again."""

    def origins(self) -> list[str]:
        """Where the code begins that these settings choose, as `digest.origin_of` writes it."""
        return [origin_of(type(self))]

    def contents(self) -> dict[str, str]:
        """What a curve depends on besides the fields: digests of the data that the fields name."""
        return {}


# The same method for the other kind of actions.
SIBLINGS = {"sac": "sac_discrete", "sac_discrete": "sac"}


@contextlib.contextmanager
def naming_sibling(config_class: type) -> Iterator[None]:
    """Name the script that takes an environment, where one is refused for its actions."""
    try:
        yield
    except UsageError as error:
        if not re.search("needs (discrete|continuous) actions", str(error)):
            raise
        sibling = SIBLINGS.get(config_class.__module__.rpartition(".")[2])
        with contextlib.suppress(OSError, TypeError):  # of a script the module is __main__
            sibling = SIBLINGS.get(Path(inspect.getfile(config_class)).stem, sibling)
        if sibling is None:
            raise
        raise UsageError(f"{error}; {sibling}.py takes the others") from None


@dataclass(frozen=True, kw_only=True)
class EnvConfig(RunConfig):
    """Flags of everything that runs on an environment."""

    env: str = "CartPole-v1"
    """Environment id."""

    def __post_init__(self) -> None:
        check_ranges(self)
        with naming_sibling(type(self)):
            env = self.make_env()
        self.check_env(env)
        self.check()

    def make_env(self) -> Any:
        """The environment of the run; raises UsageError for one the algorithm cannot use."""
        raise NotImplementedError

    def origins(self) -> list[str]:
        return [*super().origins(), *map(origin_of, self.make_env().origins())]

    def check_env(self, env: Any) -> None:
        """Conditions between fields and the environment; raises UsageError."""

    def check(self) -> None:
        """Conditions between fields; raises UsageError."""


@dataclass(frozen=True, kw_only=True)
class ResumableConfig(RunConfig):
    """Flags of scripts that can resume an interrupted run."""

    checkpoint_interval: Annotated[NonNegative, Execution()] = 60.0
    """Minimum seconds between checkpoints (0: no checkpoints). Writing them takes at most 2% of the
    time. An interrupted run resumes from the last one."""


@dataclass(frozen=True, kw_only=True)
class SeedsConfig(EnvConfig, ResumableConfig):
    """Flags of everything that learns from experience, many seeds at once."""

    seeds: Annotated[Seeds, Execution()] = 10
    """Number of seeds S. Our algorithms train them as one batch, baselines one after another."""
    first_seed: Annotated[NonNegativeInt, Execution()] = 0
    """The seeds are first_seed, first_seed + 1, ..."""

    def check_env(self, env: Any) -> None:
        requested_seeds(self)


@dataclass(frozen=True, kw_only=True)
class ControlConfig(SeedsConfig):
    """Flags that every control algorithm has."""

    total_timesteps: PositiveInt = 100_000
    """Environment steps per seed."""
    backend: Literal["auto", "gymnasium"] = "auto"
    """Environment implementation. auto: native where there is one, otherwise Gymnasium's."""
    env_kwargs: Annotated[tuple[str, ...], Added(())] = ()
    """Arguments of the environment, such as is_slippery=False. Values as Python writes them, or
    texts; max_episode_steps is the time limit. With arguments it is Gymnasium's environment."""
    rescale_actions: Annotated[bool, Added(False)] = False
    """Scale continuous actions. From [-1, 1] to the environment's bounds."""
    eval_budget: Annotated[float, Range(0, 1, open_low=True), Added(1.0)] = 1.0
    """Fraction of the full evaluation to run. At least one episode. Below 1 scores are noisier, and
    the run gets another name."""
    init: Annotated[str, Added("")] = ""
    """Initial weights instead of random ones. A finished part such as .../seeds-000-009, a file of
    policies, or hub:FOLDER, with networks of the same names and shapes. Seed k starts from seed k
    of the part, or every seed from its only one; optimizer and schedules start afresh."""

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "env_kwargs", canonical_kwargs(self.env_kwargs))

    def contents(self) -> dict[str, str]:
        from manyseeds.checkpoint import stored_policy
        from manyseeds.untrusted import sha256_of

        found = super().contents()
        if self.init:
            found["init_content"] = sha256_of(stored_policy(self.init)[0])[:12]
        return found


AnyConfig = TypeVar("AnyConfig", bound="DataclassInstance")


@dataclass(frozen=True)
class Preset:
    """Hyperparameters for one environment, where they come from, and the score published there."""

    settings: Mapping[str, Any]
    source: str
    published: str = ""


def read_presets(file: str) -> dict[str, Preset]:
    """The presets in a TOML file, ROOM/PATH: by environment, its tables `[presets.ENV]`."""
    room, _, path = file.partition("/")
    text = resources.files(f"manyseeds.{room}").joinpath(path).read_text()
    presets = {}
    for subject, table in tomllib.loads(text)["presets"].items():
        source, published = table.pop("source"), table.pop("published", "")
        presets[subject] = Preset(with_tuples(table), source, published)
    return presets


def with_tuples(value: Any) -> Any:
    """Data of TOML with tuples instead of lists, as the fields of a Config have them."""
    if isinstance(value, dict):
        return {key: with_tuples(x) for key, x in value.items()}
    return tuple(map(with_tuples, value)) if isinstance(value, list) else value


def published_score(config: Any, preset: Preset | None) -> str:
    """The preset's published score where a run has every setting of the preset, otherwise ''."""
    if preset is None:
        return ""
    as_there = all(getattr(config, name) == x for name, x in preset.settings.items())
    marks, others = field_marks(type(config)), "eval_budget init env_kwargs rescale_actions"
    named = [name for name in others.split() if name in marks]
    plain = all(Added(getattr(config, name)) in marks[name] for name in named)
    return preset.published if as_there and plain else ""


def identity(config: RunConfig) -> dict[str, Any]:
    """Exactly the fields that change a seed's learning curve, and the data that they name."""
    fields = dataclasses.asdict(config)
    curve = {
        name: fields[name]
        for name, marks in field_marks(type(config)).items()
        if Execution() not in marks and Added(fields[name]) not in marks
    }
    curve |= config.contents()
    return json.loads(json.dumps(curve))  # type: ignore[no-any-return]  # tuples become lists


def from_identity(config_class: type[AnyConfig], stored: Mapping[str, Any]) -> AnyConfig:
    """The Config of fields as JSON: of a stored run, which may lack those that were added since."""
    names = {field.name for field in dataclasses.fields(config_class)}
    before = {
        name: mark.before
        for name, marks in field_marks(config_class).items()
        for mark in marks
        if isinstance(mark, Added)
    }
    # Lists are tuples in JSON; what else an identity has are digests of contents.
    fields = {k: tuple(v) if isinstance(v, list) else v for k, v in stored.items() if k in names}
    return config_class(**before | fields)


@cache
def hints_of(config_class: type) -> Mapping[str, Any]:
    """The types of a Config's fields with their marks; from their texts, which takes a while."""
    return get_type_hints(config_class, include_extras=True)


def field_marks(config_class: type) -> dict[str, tuple[Any, ...]]:
    """What each field of a Config is annotated with besides its type, also in its base classes."""
    marks: dict[str, tuple[Any, ...]] = {f.name: () for f in dataclasses.fields(config_class)}
    declared = set[str]()  # by a class that comes from the present one
    for base in config_class.__mro__:
        hints = hints_of(base)
        for name in inspect.get_annotations(base):
            for mark in getattr(hints[name], "__metadata__", ()) if name in marks else ():
                # Whether a field that is declared anew was added later is said there.
                if not (isinstance(mark, Added) and name in declared):
                    marks[name] += (mark,)
        declared |= inspect.get_annotations(base).keys()
    return marks


def from_preset(
    config_class: type[AnyConfig], presets: Mapping[str, Preset], subject: str, **overrides: Any
) -> AnyConfig:
    """The configuration that `--env SUBJECT` (or `--task SUBJECT`) would give.

    Fields are replaced by keyword.
    """
    settings = dict(presets[subject].settings) if subject in presets else {}
    return config_class(**{subject_of(config_class): subject, **settings, **overrides})


def requested_seeds(config: Any) -> range:
    """The seeds that a command asks for; UsageError beyond what keys a stream."""
    if config.first_seed + config.seeds > 2**31:
        raise UsageError(f"--seeds {config.seeds}: first_seed + seeds must be at most 2**31")
    return range(config.first_seed, config.first_seed + config.seeds)


def path_of(text: str, what: str) -> Path:
    """The path that a flag's text means, whether it exists or not; UsageError if it cannot be."""
    try:
        path = Path(text).expanduser()
        path.stat()
    except FileNotFoundError:
        pass
    except (OSError, RuntimeError, ValueError) as error:  # too long, no such user, a NUL byte
        raise UsageError(f"{what} {text[:80]}: {error}") from None
    return path


def given_runs(runs: Sequence[str]) -> Sequence[str]:
    """The runs that a command names; UsageError where it names none."""
    if not runs:
        raise UsageError("RUNS: name the folder of a run")
    return runs


def subject_of(config_class: type) -> str:
    """The field that says what is learned: env, or task for a language model."""
    return "env" if hasattr(config_class, "env") else "task"


def flag(name: str) -> str:
    """The flag of a field: total_timesteps -> --total-timesteps."""
    return "--" + name.replace("_", "-")


def check_ranges(config: Any) -> None:
    """Raise UsageError for a field that is none of its words, outside its Range or float32."""
    for name, hint in hints_of(config.__class__).items():
        value = getattr(config, name)
        many = get_args(hint)[0] if get_origin(hint) is Annotated else hint
        if get_origin(many) is tuple:
            hint, values = get_args(many)[0], value
        else:
            values = (value,)
        kind = get_args(hint)[0] if get_origin(hint) is Annotated else hint
        for x in values:
            if get_origin(kind) is Literal and x not in get_args(kind):
                words = ", ".join(map(str, get_args(kind)))
                raise UsageError(f"{flag(name)} {x!r}: must be one of {words}")
            for allowed in getattr(hint, "__metadata__", ()):
                if isinstance(allowed, Range) and x not in allowed:
                    raise UsageError(f"{flag(name)} {x}: must be {allowed}")
            if isinstance(x, int) and abs(x) > INT_MAX:
                raise UsageError(f"{flag(name)} {x}: must be a whole number of at most 2**53")
            if isinstance(x, float) and not abs(x) <= FLOAT32_MAX:  # nor NaN
                most = f"{FLOAT32_MAX:.2g}"
                raise UsageError(
                    f"{flag(name)} {x}: must be a finite number in float32 (to {most})"
                )


def parse(
    config_class: type[AnyConfig],
    presets: Mapping[str, Preset],
    description: str | None = None,
    args: Sequence[str] | None = None,
) -> AnyConfig:
    """Parse the command line; a mistake prints one line and exits with status 2."""
    args = list(sys.argv[1:] if args is None else args)
    try:
        args, save_to = with_file(config_class, args)
        subject = subject_of(config_class)
        name = read_flag(subject, getattr(config_class, subject), args) if presets else ""
        preset = presets.get(name)
        settings = {subject: name, **preset.settings} if preset else {}
        defaults_for = getattr(config_class, "defaults_for", None)
        settings |= defaults_for(args) if defaults_for else {}
        if asked := {"-h", "--help", "--details"} & {*args}:
            from manyseeds.usage import show_help

            show_help(config_class, settings, presets, description or "", "--details" in asked)
            raise SystemExit(0)
        config = read_words(config_class, args, config_class(**settings))
        check_ranges(config)
        if isinstance(config, ScriptConfig):
            if not config.results:
                raise UsageError("--results '': must name a folder")
            if config.results.startswith("~"):
                home = str(path_of(config.results, "--results"))
                object.__setattr__(config, "results", home)
            check_results(Path(config.results))
        if isinstance(config, RunConfig | LayerConfig):
            check_unpublished(Path(config.results))
        if isinstance(config, RunConfig):
            check_device(config.device)
            check_name(config.name)
            if config.track != "none":
                from manyseeds.track import check_tracker

                check_tracker(config.track)
        if save_to:
            save_config(config, save_to)
        return config
    except UsageError as error:
        exit_with(error)


FROM_FILE, TO_FILE = "--config", "--save-config"  # flags that every command has


def with_file(config_class: type, args: Sequence[str]) -> tuple[list[str], str]:
    """A command line with the flags of the file that `--config` names in its place, unless they are
    given themselves; and what `--save-config` names, or ''. Raises UsageError."""
    args, paths = list(args), dict.fromkeys((FROM_FILE, TO_FILE), "")
    for word in paths:
        if word in args:
            at = args.index(word)
            if at + 1 == len(args) or args[at + 1].startswith("--"):
                raise UsageError(f"{word}: needs the name of a TOML file")
            paths[word] = args[at + 1]
            del args[at : at + 2]
    if paths[FROM_FILE]:
        given = {known(word) for word in args if word.startswith("--")}
        fields = read_config_file(config_class, paths[FROM_FILE])
        for name, value in fields.items():
            if name not in given and value != []:
                args += words_of(name, value)
    return args, paths[TO_FILE]


def read_config_file(config_class: type, text: str) -> dict[str, Any]:
    """The fields in a TOML file. Raises UsageError."""
    from manyseeds.untrusted import read_text

    path = path_of(text, FROM_FILE)
    if not path.exists():
        raise UsageError(f"{FROM_FILE} {text}: there is no such file")
    try:
        fields = tomllib.loads(read_text(path))
    except ValueError as error:
        raise UsageError(f"{FROM_FILE} {text}: {error}") from None
    names = flags_of(config_class)
    for name in fields:
        if name not in names:
            close = closest(name, names, ())
            hint = f"; did you mean {close}?" if close else ""
            raise UsageError(f"{FROM_FILE} {text}: {name}: unknown flag{hint}")
    return fields


def flags_of(config_class: type) -> list[str]:
    """The fields of a Config that are flags."""
    from manyseeds.usage import is_positional

    hints = hints_of(config_class)
    return [name for name in field_marks(config_class) if not is_positional(hints[name])]


def words_of(name: str, value: Any) -> list[str]:
    """What is typed for a value of a field."""
    if isinstance(value, bool):
        return [flag(name if value else f"no_{name}")]
    return [flag(name), *map(str, value if isinstance(value, list | tuple) else (value,))]


def save_config(config: DataclassInstance, text: str) -> None:
    """Write the fields of a Config for `--config`. Raises OSError and UsageError."""
    from manyseeds.writing import write_bytes

    path = path_of(text, TO_FILE)
    check_results(path.parent, TO_FILE)
    fields = {name: getattr(config, name) for name in flags_of(type(config))}
    fields = {name: x for name, x in fields.items() if x is not None}
    # JSON's numbers, texts and lists are TOML's.
    lines = [f"{name} = {json.dumps(x, ensure_ascii=False)}" for name, x in fields.items()]
    write_bytes(path, "\n".join([*lines, ""]).encode())


def exit_with(error: UsageError) -> NoReturn:
    """Print a user's mistake as one line and leave with status 2."""
    print(f"error: {error}", file=sys.stderr)
    raise SystemExit(2)


def read_words(config_class: type[AnyConfig], args: Sequence[str], default: Any) -> AnyConfig:
    """Build a Config from a command line with tyro. Raises UsageError.

    Flags are never abbreviated: what a saved command means must not change when a flag is added.
    """
    import tyro

    flags = [known(word) for word in args if word.startswith("--")]
    for word in flags:
        if flags.count(word) > 1:
            raise UsageError(f"{flag(word)}: given twice")
    check_values(config_class, args, default)
    with refusing(config_class):
        return tyro.cli(
            config_class, args=args, default=default, add_help=False, registry=numbers()
        )


def check_values(config_class: type, args: Sequence[str], default: Any) -> None:
    """Raise UsageError for a switch with a value, and for an empty list where empty is the default.

    tyro would read the value as a word of its own; the empty list, such as `--only` with nothing
    after it, would mean the same as no flag at all.
    """
    from manyseeds.usage import is_positional

    hints = hints_of(config_class)
    flags = {name: hint for name, hint in hints.items() if not is_positional(hint)}
    for word, after in pairwise([*args, "--"]):
        if not word.startswith("--") or (name := known(word)) not in flags:
            continue
        written, equals, value = word.partition("=")
        if is_switch(flags[name]):
            if not equals and len(flags) == len(hints) and not after.startswith("-"):
                equals, value = " ", after
            if equals:
                both = f"{flag(name)} or {flag('no_' + name)}"
                raise UsageError(f"{written} {value!r}: takes no value; write {both}")
        elif not equals and after.startswith("--") and getattr(default, name) == ():
            raise UsageError(f"{written}: needs a value")


def is_switch(hint: Any) -> bool:
    """Whether a field of this type is given as `--name` or `--no-name`, without a value."""
    return bool in (hint, *get_args(hint)[:1])


def read_flag(name: str, default: str, args: Sequence[str]) -> str:
    """The value of one flag, on which it depends what the others are. Raises UsageError."""
    import tyro

    alone = dataclasses.make_dataclass("Alone", [(name, str, default)])
    with refusing(alone):
        found: Any
        found, _ = tyro.cli(alone, args=args, add_help=False, return_unknown_args=True)
    return str(getattr(found, name))


@cache
def numbers() -> Any:
    """How tyro reads integers."""
    import tyro

    registry = tyro.constructors.ConstructorRegistry()

    @registry.primitive_rule
    def integers(
        info: tyro.constructors.PrimitiveTypeInfo,
    ) -> tyro.constructors.PrimitiveConstructorSpec[int] | None:
        if info.type is not int:
            return None
        return tyro.constructors.PrimitiveConstructorSpec(
            nargs=1,
            metavar="INT",
            instance_from_str=lambda words: whole_number(words[0]),
            is_instance=lambda x: isinstance(x, int),
            str_from_instance=lambda x: [str(x)],
        )

    return registry


@contextlib.contextmanager
def refusing(config_class: type) -> Iterator[None]:
    """Turn what tyro has to say of a command line into a UsageError of one line."""
    from tyro import _errors as events  # may change in any version: pyproject.toml holds it

    def refuse(event: Any) -> None:
        if isinstance(event, events.UnrecognizedArgs):
            raise UsageError(unknown(event.tokens, config_class))
        if getattr(event, "argument", None) is None:
            return  # tyro says it
        name = event.argument.lowered.name_or_flags[0]
        if isinstance(event, events.InvalidChoice):
            choices = ", ".join(event.choices)
            raise UsageError(f"{name} {event.value!r}: must be one of {choices}")
        if isinstance(event, events.InstantiationFailure):
            message = event.message
            if message.startswith("Could not find valid parse"):  # of a tuple
                message = "takes numbers, separated by spaces"
            elif message.startswith("no type matching"):  # X | None
                message = "takes a number"
            elif (word := message.removeprefix("could not convert string to float: ")) != message:
                message = f"{word} is not a number"
            raise UsageError(f"{name}: {message}")
        raise UsageError(f"{name}: needs a value")

    with events.on_parse_error(refuse):
        yield


def known(word: str) -> str:
    """The field that a word on a command line names, if there is one: --no-anneal-lr, anneal_lr."""
    name = word.partition("=")[0].strip("-").replace("-", "_")
    return name.removeprefix("no_")


def unknown(words: Sequence[str], config_class: type) -> str:
    """What is said of the first of some words that is no flag; a value may come after it."""
    word, *after = words
    if not word.startswith("--"):
        return f"{word!r}: expected a flag; see --help"
    word, equals, value = word.partition("=")
    word = word.replace("_", "-")
    has_value = equals or (after and not after[0].startswith("--"))
    hints, names = hints_of(config_class), flags_of(config_class)
    if word == "--seed" and {"seeds", "first_seed"} <= {*names}:
        first = value or (after[0] if has_value else "N")
        return f"{word}: unknown flag; did you mean --first-seed {first} --seeds 1?"
    switches = {name for name in names if has_value and is_switch(hints[name])}
    close = closest(word.strip("-"), names, switches)
    return f"{word}: unknown flag" + (f"; did you mean {flag(close)}?" if close else "; see --help")


def closest(word: str, names: Sequence[str], switches: Collection[str]) -> str:
    """The field that a wrong flag, without its dashes, probably means, or ''.

    The one that is written most alike, has these initials (lr: learning_rate) or has the word as a
    part (n: n_steps). switches: fields that are no answer to a part, since a value was given.
    """
    word = word.replace("-", "_")
    alike = difflib.get_close_matches(word, names, n=1, cutoff=0.7)
    initials = [x for x in names if "_" in x and word == "".join(p[0] for p in x.split("_"))]
    parts = [x for x in names if word and f"_{word}_" in f"_{x}_" and x not in switches]
    return next(iter([*alike, *initials, *sorted(parts, key=len)]), "")


def whole_number(text: str) -> int:
    """An integer, also written 1e6 or 100_000."""
    try:
        return int(text)
    except ValueError:
        with contextlib.suppress(ValueError):
            number = float(text)
            if number.is_integer():
                return int(number)
        raise ValueError(f"{text!r} is not a whole number") from None


def check_device(device: str) -> None:
    """`--device cuda` without CUDA is an error, never a silent fallback."""
    if device == "cuda":
        import torch

        if not torch.cuda.is_available():
            raise UsageError("--device cuda: this torch sees no CUDA device; use cpu or auto")


def check_results(results: Path, what: str = "--results") -> None:
    """A folder to write, or the nearest folder above it that exists, must be writable."""
    try:
        existing = next(p for p in (results, *results.absolute().parents) if p.exists())
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            results.stat()
    except OSError as error:  # a name that is too long, a loop of links
        raise UsageError(f"{what} {results}: {error.strerror}") from None
    if not existing.is_dir():
        raise UsageError(f"{what} {results}: {existing} is not a folder")
    if not os.access(existing, os.W_OK | os.X_OK):
        raise UsageError(f"{what} {results}: {existing} is not writable")


def check_unpublished(results: Path) -> None:
    """What is published is written by a sweep only."""
    if results.resolve() == PUBLISHED and PUBLISHING not in os.environ:
        raise UsageError(
            f"--results {results}: holds the published runs, which only a sweep with --publish "
            f"writes; the default is {RESULTS}"
        )


def check_name(name: str) -> None:
    """A run's name is one folder name."""
    if name and (
        not name.replace("-", "").replace("_", "").replace(".", "").isalnum() or name[0] == "."
    ):
        raise UsageError(f"--name {name!r}: use letters, digits, '-', '_' and '.'")
    if len(name.encode()) > MAX_NAME:
        raise UsageError(f"--name {name}: must have at most {MAX_NAME} characters")
    if name.startswith("seeds-"):
        raise UsageError(f"--name {name}: is how parts of a run are named")


__all__ = [
    "ControlConfig",
    "EnvConfig",
    "Fraction",
    "NonNegative",
    "NonNegativeInt",
    "PerRow",
    "Positive",
    "PositiveInt",
    "Preset",
    "Range",
    "RunConfig",
    "ScriptConfig",
    "SeedsConfig",
    "UsageError",
    "from_preset",
    "identity",
    "parse",
    "published_score",
]


# ---- Scripts that take the flags of an algorithm, too ---------------------------------------

AnyFlags = TypeVar("AnyFlags")


def read_algo(args: Sequence[str], default: str, known: Iterable[str], where: str) -> str:
    """The value of --algo, which decides what the other flags are; UsageError for an unknown one.

    where: what does not have an unknown one, such as a library.
    """
    algo = read_flag("algo", default, args)
    if algo not in (known := list(known)):
        ours = {
            file.stem for room in ("algos", "llm_track") for file in room_file(room).glob("*.py")
        }
        # The name of another method of ours is no misspelling.
        hint = f"; it has {', '.join(known)}" if algo in ours else did_you_mean(algo, known)
        raise UsageError(f"--algo {algo}: {where} does not have it{hint}")
    return algo


def parse_both(
    flags_class: type[AnyFlags],
    config_class: type[AnyConfig],
    presets: Mapping[str, Preset],
    description: str | None = None,
    args: Sequence[str] | None = None,
) -> tuple[AnyFlags, AnyConfig]:
    """A script's own flags, and the Config of the algorithm whose flags it takes, too."""
    both: Any = dataclasses.make_dataclass(
        "Command", [], bases=(config_class, flags_class), frozen=True, kw_only=True
    )
    command = parse(both, presets, description, args)
    names = [field.name for field in dataclasses.fields(config_class)]
    return command, config_class(**{name: getattr(command, name) for name in names})
