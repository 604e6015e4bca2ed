"""Rewards of a user's own, `--reward FILE.py:function`, with the signature of TRL's:

    def length_penalty(prompts, completions, **columns):
        return [-len(text) / 100 for text in completions]

A function is called with the completions of one seed at a time, with their prompts, and with each
column of the data as a list. It returns a number for each completion, or None where it has no
reward for it. A prompt and a completion are texts, or lists of messages where the prompt of a row
is one. Rewards are multiplied by `--reward-weights` and added up; None adds nothing.
"""

from __future__ import annotations

import copy
import inspect
import math
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from numbers import Real
from typing import Annotated, Any, NamedTuple, cast

from manyseeds import user_code
from manyseeds.cli import Added, NonNegative, PerRow
from manyseeds.errors import UsageError
from manyseeds.llm_track import tasks
from manyseeds.llm_track.tasks import Graded, Problem
from manyseeds.record import plural
from manyseeds.untrusted import is_finite


class Reward(NamedTuple):
    """A reward function as a flag names it."""

    named: str  # FILE.py:function
    function: Callable[..., Any]
    weight: float

    @property
    def name(self) -> str:
        """What is logged: file.function."""
        return name_of(self.named)

    @property
    def what(self) -> str:
        """How errors begin."""
        return f"--reward {self.named}"


@dataclass(frozen=True, kw_only=True)
class RewardConfig(tasks.TaskConfig):
    """Flags of the methods that learn from rewards."""

    reward: Annotated[tuple[str, ...], Added(())] = ()
    """Your own reward functions, FILE.py:function. They are called as TRL's are: with prompts,
    completions and the columns of the data. Their rewards are added to those by rules, or are the
    whole reward with --no-rules; see docs/your-own-reward.md."""
    reward_weights: Annotated[tuple[float, ...], Added(())] = ()
    """Weights of --reward. One for each of them; without it each is 1."""
    format_weight: PerRow[NonNegative] = 0.1
    """Weight of the format reward beside the accuracy reward."""
    reward_model: str = ""
    """Folder or hub name of a reward model. Its score is added to the rewards."""
    rules: bool = True
    """Reward accuracy and format by rules."""

    def check(self) -> None:
        super().check()
        if not (self.rules or self.reward_model or self.reward):
            raise UsageError("--no-rules: then there must be a --reward or a --reward-model")
        if self.reward_weights and len(self.reward_weights) != len(self.reward):
            given = f"{len(self.reward_weights)} for {len(self.reward)} of --reward"
            raise UsageError(f"--reward-weights: must have one number for each, and has {given}")
        names = [name_of(text) for text in self.reward]
        if twice := [name for name in names if names.count(name) > 1]:
            raise UsageError(f"--reward: {twice[0]} is given twice; rename a file or a function")

    def check_request(self) -> None:
        super().check_request()
        for reward in rewards(self):
            try_out(reward, tasks.of(self), getattr(self, "group_size", 1))

    def origins(self) -> list[str]:
        return [*super().origins(), *(user_code.origin(x, "--reward") for x in self.reward)]


def name_of(named: str) -> str:
    """file.function of FILE.py:function."""
    file, name = user_code.file_and_name(named, "--reward")
    return f"{file.stem}.{name}"


def rewards(config: Any) -> list[Reward]:
    """The reward functions of a run, of none for a method without the flag. Raises UsageError."""
    named = getattr(config, "reward", ())
    weights = (named and config.reward_weights) or [1.0] * len(named)
    functions = [user_code.load(text, "--reward") for text in named]
    return [Reward(*x) for x in zip(named, functions, weights, strict=True)]


def rewarded(graded: Sequence[Graded], config: Any) -> list[Graded]:
    """The graded completions of a seed, each with what the reward functions of a run give it."""
    if not graded or not (functions := rewards(config)):
        return list(graded)
    arguments = arguments_of([x.problem for x in graded], [x.text for x in graded])
    columns = [called(reward, arguments, [x.text for x in graded]) for reward in functions]
    weights = [reward.weight for reward in functions]
    return [
        x._replace(own=own, reward=weighted(weights, own, x.text))
        for x, own in zip(graded, zip(*columns, strict=True), strict=True)
    ]


def weighted(weights: Sequence[float], own: Sequence[float], text: str) -> float:
    """The weighted sum of the rewards of a completion without NaN; UsageError unless finite."""
    total = sum(w * r for w, r in zip(weights, own, strict=True) if r == r)
    if not is_finite(total):
        said = f"the completion {user_code.shown(text)}"
        raise UsageError(
            f"--reward: the weighted sum is {total}, not finite in float32, for {said}"
        )
    return total


def arguments_of(problems: Sequence[Problem], texts: Sequence[str]) -> dict[str, list[Any]]:
    """What a reward function is called with: prompts, completions, and the columns of the data.

    A column that a row does not have is None there, but for `answer`, which is the problem's.
    """
    prompts, completions = list[Any](), list[Any]()
    for problem, text in zip(problems, texts, strict=True):
        messages = problem.messages
        prompts.append(messages or problem.prompt)
        completions.append([{"role": "assistant", "content": text}] if messages else text)
    names = dict.fromkeys(["answer", *(name for p in problems for name in p.columns)])
    columns = {
        name: [p.columns.get(name, p.answer if name == "answer" else None) for p in problems]
        for name in names
        if name not in ("prompt", "prompts", "completion", "completions")
    }
    return {"prompts": prompts, "completions": completions, **columns}


def called(reward: Reward, arguments: Mapping[str, list[Any]], texts: Sequence[str]) -> list[float]:
    """What a function gives each completion, NaN for None; UsageError for all else that it does.

    texts: those of the completions. The function gets copies, which it may change.
    """
    file = user_code.file_and_name(reward.named, "--reward")[0]
    try:
        found = reward.function(**copied(arguments))
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # also SystemExit and GeneratorExit
        user_code.fail(f"{reward.what}: with {of_one(reward, arguments, texts)}", error, file)
    if inspect.iscoroutine(found):
        found.close()
    unordered = isinstance(found, str | bytes | bytearray | Mapping | Set)
    if unordered or not hasattr(found, "__len__") or getattr(found, "ndim", 1) != 1:
        raise UsageError(f"{reward.what}: returned {user_code.kind(found)}, not a list of numbers")
    if len(found) != len(texts):
        given = f"{plural(len(found), 'reward')} for {plural(len(texts), 'completion')}"
        first = user_code.shown(texts[0])
        raise UsageError(f"{reward.what}: returned {given}, of which the first is {first}")
    values = found.tolist() if hasattr(found, "tolist") else list(found)
    return [as_number(reward, x, text) for x, text in zip(values, texts, strict=True)]


def copied(arguments: Mapping[str, list[Any]]) -> dict[str, list[Any]]:
    """Copies of all values, also of those that several rows share."""
    return {name: [copy.deepcopy(x) for x in values] for name, values in arguments.items()}


def as_number(reward: Reward, value: Any, text: str) -> float:
    """A reward as a number, NaN for None; UsageError for what is none, or none in float32."""
    if value is None:
        return math.nan
    size = value.numel() if hasattr(value, "numel") else getattr(value, "size", 1)
    if hasattr(value, "item") and size == 1:
        value = value.item()  # of NumPy or PyTorch
    if not isinstance(value, Real):
        what = f"{user_code.kind(value)}, not a number or None"
    elif is_finite(number := cast(float, value)):
        return float(number)
    else:
        what = f"{number if isinstance(number, float) else 'a number'}, not finite in float32"
    raise UsageError(f"{reward.what}: returned {what} for the completion {user_code.shown(text)}")


def of_one(reward: Reward, arguments: Mapping[str, list[Any]], texts: Sequence[str]) -> str:
    """The completion with which a function that has failed fails alone, or else how many it had."""
    for k, text in enumerate(texts):
        try:
            reward.function(**copied({name: [x[k]] for name, x in arguments.items()}))
        except KeyboardInterrupt:
            raise
        except BaseException:
            return f"the completion {user_code.shown(text)}"
    return f"{len(texts)} completions, of which the first is {user_code.shown(texts[0])}"


def try_out(reward: Reward, task: tasks.Task, n: int) -> None:
    """Call a function with n completions of a problem, before anything is trained: UsageError.

    They are the demonstration, or empty where there is none.
    """
    problem = task.trained_on()[0]
    texts = [task.shown(problem)] * n
    arguments = arguments_of([problem] * n, texts)
    try:
        inspect.signature(reward.function).bind(**arguments)
    except TypeError as error:
        takes = ", ".join(arguments)
        raise UsageError(
            f"{reward.what}: {error}; it is called with {takes}: take others as **columns"
        ) from None
    except ValueError:  # one in C has no signature
        pass
    called(reward, arguments, texts)
