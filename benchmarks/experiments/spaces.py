"""What a search varies: hyperparameters as a person writes them.

learning_rate=log:1e-4:1e-2:8      8 values from 1e-4 to 1e-2, evenly on a logarithmic scale
gae_lambda=linear:0.8:1.0          any value between
clip_range=0.1,0.2,0.3             one of these
hidden=64-64,128                   one of these, several numbers each
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args, get_origin

import numpy as np

from manyseeds.cli import (
    FLOAT32_MAX,
    AnyConfig,
    Execution,
    Range,
    field_marks,
    flag,
    hints_of,
    whole_number,
)
from manyseeds.errors import UsageError, did_you_mean
from manyseeds.rows import varying

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution

# What is learned, and how it is scored; besides all texts, which name files, models and the like.
FIXED = {
    *("env_kwargs", "rescale_actions", "backend", "total_timesteps", "eval_budget"),
    *("grader", "drop_long_rows", "max_new_tokens", "rules", "total_samples"),
    *("eval_prompts", "eval_samples", "lora_rank", "dtype"),
}
MAX_POINTS = 100_000  # of a grid
DIGITS = 4  # significant, of values between two ends


@dataclass(frozen=True)
class Choice:
    """One of some values, in the words in which they were given."""

    words: tuple[str, ...]
    read: Callable[[str], Any]

    def distribution(self) -> BaseDistribution:
        from optuna.distributions import CategoricalDistribution

        return CategoricalDistribution(self.words)

    def grid(self) -> list[Any]:
        """What a journal holds of each value."""
        return list(self.words)

    def value(self, stored: Any) -> Any:
        """The value of the field."""
        return self.read(stored)


@dataclass(frozen=True)
class Span:
    """The numbers from low to high, on a linear or logarithmic scale."""

    low: float
    high: float
    log: bool
    whole: bool
    points: int  # of a grid; 0: none were given

    def distribution(self) -> BaseDistribution:
        from optuna.distributions import FloatDistribution, IntDistribution

        if self.whole:
            return IntDistribution(int(self.low), int(self.high), log=self.log)
        return FloatDistribution(self.low, self.high, log=self.log)

    def grid(self) -> list[Any]:
        space = np.geomspace if self.log else np.linspace
        values = space(self.low, self.high, self.points).tolist()
        return list(dict.fromkeys(self.value(x) for x in values))

    def value(self, stored: Any) -> Any:
        rounded = round(stored) if self.whole else float(f"{stored:.{DIGITS}g}")
        return min(max(rounded, self.low), self.high)


Space = Mapping[str, Choice | Span]


def read_space(words: Sequence[str], config: Any) -> Space:
    """The space that `--vary` describes for the fields of a Config. Raises UsageError."""
    if not words:
        raise UsageError("--vary: name what to vary, as learning_rate=log:1e-4:1e-2:8")
    space: dict[str, Choice | Span] = {}
    for word in words:
        name, _, text = word.partition("=")
        name = name.strip().lstrip("-").replace("-", "_")
        check_name(name, word, type(config))
        if name in space:
            raise UsageError(f"--vary {name}: given twice")
        space[name] = read_values(name, text, type(config))
    for name, values in space.items():
        check_values(name, values, type(config))
    # Those that divide a batch first: points of a grid that go together then lie side by side.
    together = varying(type(config))
    return {name: space[name] for name in sorted(space, key=lambda x: (x in together, x))}


def fixed(config_class: type) -> list[str]:
    """The fields that no search varies: what is learned, how it is scored and how it is run."""
    hints, marks = hints_of(config_class), field_marks(config_class)
    return [
        name
        for name in marks
        if name in FIXED or Execution() in marks[name] or plain(hints[name]) is str
    ]


def check_name(name: str, word: str, config_class: type) -> None:
    """Raise UsageError for what is no hyperparameter of an algorithm."""
    kept = fixed(config_class)
    free = [x for x in field_marks(config_class) if x not in kept]
    if name in kept:
        raise UsageError(f"--vary {name}: cannot vary within a search; give {flag(name)}")
    if name not in free:
        raise UsageError(f"--vary {name}: no such hyperparameter{did_you_mean(name, free)}")
    if "=" not in word:
        raise UsageError(f"--vary {name}: needs values, as {name}=A,B or {name}=log:LOW:HIGH:8")


def read_values(name: str, text: str, config_class: type) -> Choice | Span:
    """Values of a field, as in this module's docstring. Raises UsageError."""
    where = f"--vary {name}={text}"
    kind, _, rest = text.partition(":")
    read = reader(hints_of(config_class)[name])
    if not rest:
        words = tuple(word.strip() for word in text.split(","))
        for word in words:
            try:
                read(word)
            except ValueError:
                raise UsageError(f"{where}: {word!r} is not a value of {name}") from None
        if len(set(map(read, words))) < len(words):
            raise UsageError(f"{where}: a value is given twice")
        return Choice(words, read)
    if kind not in ("log", "linear"):
        raise UsageError(f"{where}: {kind!r} is no scale; there are log and linear")
    if read not in (float, whole_number):
        raise UsageError(f"{where}: is no number; give its values, as {name}=A,B")
    parts = rest.split(":")
    try:
        low, high = (read(part) for part in parts[:2])
        points = whole_number(parts[2]) if len(parts) > 2 else 0
    except ValueError:
        raise UsageError(f"{where}: must be {kind}:LOW:HIGH or {kind}:LOW:HIGH:POINTS") from None
    if len(parts) > 3:
        raise UsageError(f"{where}: must be {kind}:LOW:HIGH or {kind}:LOW:HIGH:POINTS")
    if not low < high:
        raise UsageError(f"{where}: the range is {'empty' if low == high else 'reversed'}")
    if kind == "log" and low <= 0:
        raise UsageError(f"{where}: a logarithmic scale begins above 0")
    if len(parts) > 2 and points < 2:
        raise UsageError(f"{where}: needs at least 2 points")
    return Span(low, high, kind == "log", read is whole_number, points)


def reader(hint: Any) -> Callable[[str], Any]:
    """What reads a value of a field's type; raises ValueError for other texts."""
    hint = plain(hint)
    if hint is bool:
        return read_bool
    if hint is int:
        return whole_number
    if hint is float:
        return float
    if get_origin(hint) is Literal:
        return one_of(get_args(hint))
    return whole_numbers


def plain(hint: Any) -> Any:
    """A field's type without its marks."""
    while get_origin(hint) is Annotated:
        hint = get_args(hint)[0]
    return hint


def read_bool(text: str) -> bool:
    """true, false, yes, no."""
    found = {"true": True, "yes": True, "false": False, "no": False}.get(text.lower())
    if found is None:
        raise ValueError(text)
    return found


def one_of(choices: Sequence[str]) -> Callable[[str], str]:
    """What reads one of some words."""

    def read(text: str) -> str:
        if text not in choices:
            raise ValueError(text)
        return text

    return read


def whole_numbers(text: str) -> tuple[int, ...]:
    """64-64: (64, 64)."""
    return tuple(map(whole_number, text.split("-")))


def check_values(name: str, values: Choice | Span, config_class: type) -> None:
    """Raise UsageError for a value outside the field's range."""
    ends = values.grid() if isinstance(values, Choice) else [values.low, values.high]
    for mark in field_marks(config_class)[name]:
        for value in map(values.value, ends):
            if isinstance(mark, Range) and value not in mark:
                raise UsageError(f"--vary {name}={value}: must be {mark}")
            if isinstance(value, float) and abs(value) > FLOAT32_MAX:
                raise UsageError(f"--vary {name}={value}: must be a finite number in float32")


def grid(space: Space) -> list[dict[str, Any]]:
    """All points of a grid, as a journal holds them. Raises UsageError for a range without."""
    for name, values in space.items():
        if isinstance(values, Span) and not values.points:
            raise UsageError(
                f"--vary {name}: a grid needs a number of points, as "
                f"{'log' if values.log else 'linear'}:{values.low:g}:{values.high:g}:8"
            )
    sizes = [v.points if isinstance(v, Span) else len(v.words) for v in space.values()]
    if math.prod(sizes) > MAX_POINTS:
        raise UsageError(
            f"--vary: a grid of {math.prod(sizes):,} points is too large; --sampler random or tpe"
        )
    points = product(*(values.grid() for values in space.values()))
    return [dict(zip(space, point, strict=True)) for point in points]


def configuration(
    config: AnyConfig, space: Space, stored: Mapping[str, Any], **others: Any
) -> AnyConfig:
    """The Config of a point of a journal. Raises UsageError where its fields do not go together."""
    values = {name: space[name].value(x) for name, x in stored.items()}
    return dataclasses.replace(config, **values, **others)  # type: ignore[type-var]
