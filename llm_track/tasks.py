"""Prompts with answers that a program can check: the tasks and rewards of the LLM track.

Some tasks are generated on the fly and need no download:

    addition    47+85=        <think>7+5=12;4+8+1=13;</think><answer>132</answer>
    mixed       the same with three digits, where most demonstrations leave the thinking empty
    countdown   3 5 7 to 22:  <think>3*5=15;15+7=22;</think><answer>3*5+7</answer>
    rambling    addition with thinking of random length: 7+5=12;hm;hm;4+8+1=13;hm;
    checking    addition, where the thinking corrects some columns: 7+5=14;wait;7+5=12;4+8+1=13;

`gsm8k` and any JSONL file, or data set on a hub, of prompts and answers are read (`JsonlTask`).

A completion earns three kinds of rewards, all by rules (DeepSeek-R1, arXiv 2501.12948, sec.
2.2.2): accuracy (the one answer between the answer tags is right), format (thinking between think
tags, then the answer between answer tags, nothing else), and, where the thinking has steps, one for
each correct step (process supervision, arXiv 2402.03300, sec. 4.1.3).

Nothing a model writes is ever run. Only short arithmetic is parsed, with a whitelist of syntax
nodes; numbers are ASCII digits. `--grader math-verify` hands short answers to the parser of
that package, which reads LaTeX.
"""

from __future__ import annotations

import ast
import codecs
import contextlib
import copy
import hashlib
import itertools
import json
import math
import re
import sys
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache, partial
from numbers import Real
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Self, TypeVar

import numpy as np

from manyseeds import user_code
from manyseeds.cli import flag, known, path_of, read_flag
from manyseeds.digest import boundary, installing
from manyseeds.errors import UsageError, did_you_mean
from manyseeds.record import RunFolder, folder_digest, is_finished, read_seal
from manyseeds.runs.language import LanguageConfig, LanguageRun
from manyseeds.untrusted import read_bytes

THINK, END_THINK, ANSWER, END_ANSWER = TAGS = ("<think>", "</think>", "<answer>", "</answer>")
MAX_STEPS = 64  # of a thought
MAX_NUMBER = 64  # characters of what is read as a number or an expression
MAX_EXPRESSION = 256  # characters of what math-verify reads
MATH_SECONDS = 1  # allowed to math-verify for reading an answer, and for comparing two
ALL_KNOWN = 5_000  # held-out draws in a row without a new prompt: then there are no others
TEST_SHARE = 16  # one prompt in 16 is held out
TESTED = 256  # held-out problems of a user's own task that are checked before a training
SHOWN_FAULTS = 5  # of a data file, in one line

BOXED = "\\boxed{"
FILLER, WAIT = "hm", "wait"  # steps of a thought that are not columns

T = TypeVar("T")
Row = TypeVar("Row")


class Problem(NamedTuple):
    """A prompt, its right answer, and a demonstration (each empty where there is none)."""

    prompt: str  # a text, or a conversation as JSON (`conversation`)
    answer: str = ""
    demonstration: str = ""
    also: tuple[str, ...] = ()  # other answers that are right
    where: str = ""  # of a data set: its file and line
    columns: Mapping[str, Any] = {}  # of a data set: the row

    # Columns may hold what has no hash and no truth value, such as arrays.
    def __hash__(self) -> int:
        return hash(self[:-1])

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Problem):
            return self[:-1] == other[:-1]
        return tuple.__eq__(self, other)  # type: ignore[arg-type]

    def __ne__(self, other: object) -> bool:
        return not self == other

    @property
    def answers(self) -> tuple[str, ...]:
        """All right answers."""
        return (self.answer, *self.also) if self.answer else ()

    @property
    def messages(self) -> list[dict[str, str]] | None:
        """The prompt as messages; None where it is a text, also in its row."""
        given = self.columns.get("prompt", self.columns.get("messages"))
        if not isinstance(given, list):
            return conversation(self.prompt)
        return given[:-1] if given[-1]["role"] == "assistant" else given


class ReasoningStep(NamedTuple):
    """A step of the thinking: where it ends in the completion, in characters, and its reward."""

    end: int
    reward: float


class Graded(NamedTuple):
    """A completion and its rewards, by rules and by a user's own functions."""

    problem: Problem
    text: str
    accuracy: float
    format: float
    reward: float = 0.0  # of --reward: all of them with their weights
    own: tuple[float, ...] = ()  # of each function of --reward, NaN for None


class Preference(NamedTuple):
    """Two completions of a prompt, of which one is better."""

    prompt: str
    chosen: str
    rejected: str
    where: str = ""  # of a data set: its file and line


# ---- What a completion earns ---------------------------------------------------------------


def answer_of(completion: str) -> str | None:
    """The text between the answer tags; None unless each tag occurs exactly once."""
    if completion.count(ANSWER) != 1 or completion.count(END_ANSWER) != 1:
        return None
    start, end = completion.index(ANSWER) + len(ANSWER), completion.index(END_ANSWER)
    return completion[start:end].strip() if start <= end else None


def boxed_answer(completion: str) -> str | None:
    """What the last \\boxed{...} holds; None without one, and where it is never closed."""
    start = completion.rfind(BOXED)
    depth, escaped = 0, False
    for k in range(start + len(BOXED) - 1, len(completion)) if start >= 0 else ():
        depth += 0 if escaped else {"{": 1, "}": -1}.get(completion[k], 0)
        escaped = completion[k] == "\\" and not escaped
        if depth == 0:
            return completion[start + len(BOXED) : k].strip()
    return None


def last_number(completion: str) -> str | None:
    """The last number of a text as `number` reads it, such as -1,234.5 or 1/2; None without one.

    A minus is a sign unless it follows a digit, a letter or a bracket: 7-5 ends with 5.
    """
    found = [match[0] for match in NUMBER.finditer(completion)]
    return found[-1] if found else None


def format_reward(completion: str) -> float:
    """1 for `<think>...</think> <answer>...</answer>` and nothing else, otherwise 0."""
    text = completion.strip()
    if any(text.count(tag) != 1 for tag in TAGS):
        return 0.0
    places = [text.index(tag) for tag in TAGS]
    between = text[places[1] + len(END_THINK) : places[2]]
    framed = text.startswith(THINK) and text.endswith(END_ANSWER)
    return float(framed and places == sorted(places) and not between.strip())


def thinking(completion: str) -> tuple[int, str]:
    """Where the thinking begins, and its text; that of a completion without it is empty."""
    start, end = completion.find(THINK), completion.find(END_THINK)
    if start < 0 or end < start:
        return 0, ""
    return start + len(THINK), completion[start + len(THINK) : end]


DIGITS = r"(?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]+)"
WHOLE = rf"(?:{DIGITS}(?![0-9]))"
AMOUNT = re.compile(rf"([+-]?)(?:\\?\$)?({DIGITS}(?:\.[0-9]*)?|\.[0-9]+)(?: ?\\?%)?", re.ASCII)
QUOTIENT = re.compile(rf"([+-]?)({DIGITS}) ?/ ?({DIGITS})", re.ASCII)
PART = r"(?:\{([0-9]+)\}|([0-9]))"  # LaTeX: in braces, or one digit
FRACTION = re.compile(rf"([+-]?)\\[dt]?frac ?{PART} ?{PART}", re.ASCII)
# In a text: a fraction, a quotient or an amount, of which no digit is left out.
SIGNED = r"(?:(?<![\w)\]}])[+-])?"
NUMBER = re.compile(
    rf"{SIGNED}(?:\\[dt]?frac ?{PART} ?{PART}|{WHOLE} ?/ ?{WHOLE}"
    rf"|(?:\\?\$)?(?:{WHOLE}(?:\.[0-9]+)?|\.[0-9]+))",
    re.ASCII,
)


def number(text: str) -> Fraction | None:
    """The number that a text is, in digits, as a quotient or in LaTeX; None for anything else.

    `-1,234.50`, `+1000`, `18.`, `.5`, `1/2`, `\\frac{1}{2}`, `\\dfrac12`. A dollar or percent sign
    is a unit: `$3` is 3, `50%` is 50. None also for more than 64 characters and a division by 0.
    """
    text = text.strip()
    if len(text) > MAX_NUMBER:
        return None
    if match := AMOUNT.fullmatch(text):
        value = Fraction(match[2].replace(",", "").removesuffix("."))
    elif match := QUOTIENT.fullmatch(text) or FRACTION.fullmatch(text):
        above, below = (int(x.replace(",", "")) for x in match.groups()[1:] if x)
        if below == 0:
            return None
        value = Fraction(above, below)
    else:
        return None
    return -value if match[1] == "-" else value


def math_verify_grader() -> Callable[[str, str], bool]:
    """Whether an answer equals the right one (the first argument) as math-verify compares them.

    Both are read as LaTeX, within a second each, and compared within another: what takes longer is
    wrong. Raises UsageError where the package is not installed.
    """
    try:
        from math_verify import LatexExtractionConfig, parse, verify
    except ImportError:
        raise UsageError(f"--grader math-verify: needs math-verify; {installing('math')}") from None

    known: dict[str, Any] = {}  # right answers by text, without those that took too long to read

    def read(text: str) -> Any:
        inside = text.strip().strip("$")
        kinds = [LatexExtractionConfig()]
        return parse(f"${inside}$", extraction_config=kinds, parsing_timeout=MATH_SECONDS)

    def equal(right: str, given: str) -> bool:
        if len(given) > MAX_EXPRESSION:
            return False
        gold = known.get(right) or read(right)
        if gold:
            known[right] = gold
        return bool(verify(gold, read(given), timeout_seconds=MATH_SECONDS))

    return equal


OPERATORS: dict[type[ast.operator], Any] = {
    ast.Add: lambda a, b: a + b,
    ast.Sub: lambda a, b: a - b,
    ast.Mult: lambda a, b: a * b,
    ast.Div: lambda a, b: a / b,
}


def arithmetic(text: str) -> tuple[Fraction, list[int]] | None:
    """Value of a sum, difference, product or quotient of whole numbers, and the numbers in it.

    None for anything else, for a division by 0, and for more than 64 characters. Nothing is run:
    the text is parsed, and every node must be on a whitelist.
    """
    if len(text) > MAX_NUMBER or not re.fullmatch(r"[0-9+\-*/() ]+", text, re.ASCII):
        return None
    numbers: list[int] = []

    def value(node: ast.expr) -> Fraction:
        if isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
            return OPERATORS[type(node.op)](value(node.left), value(node.right))  # type: ignore[no-any-return]
        if isinstance(node, ast.Constant) and type(node.value) is int:
            numbers.append(node.value)
            return Fraction(node.value)
        raise ValueError

    try:
        return value(ast.parse(text.strip(), mode="eval").body), numbers
    except (ValueError, SyntaxError, ZeroDivisionError, RecursionError, MemoryError):
        return None


class AnswerFormat(NamedTuple):
    """How an answer is written: `--answer`."""

    read: Callable[[str], str | None]  # from a completion
    instruction: str  # for data sets
    write: Callable[[str, str], str]  # a completion from a thought and an answer


def formatted(thought: str, answer: str) -> str:
    """A completion in the format."""
    return f"{THINK}{thought}{END_THINK}{ANSWER}{answer}{END_ANSWER}"


ANSWERS = {
    "tags": AnswerFormat(
        answer_of,
        "Solve the problem. Reason step by step between <think> and </think>, then give the final "
        "answer alone between <answer> and </answer>.",
        formatted,
    ),
    "boxed": AnswerFormat(
        boxed_answer,
        "Solve the problem. Reason step by step, and put the final answer within \\boxed{}.",
        lambda thought, answer: f"{thought}\n\\boxed{{{answer}}}",
    ),
    "last": AnswerFormat(
        last_number,
        "Solve the problem. Reason step by step, then give the final answer as a number.",
        lambda thought, answer: f"{thought}\n{answer}",
    ),
}


def answer_format(answer: str) -> AnswerFormat:
    """That of `--answer`; one of a user's own has no instruction and no demonstrations.

    Raises UsageError.
    """
    if answer in ANSWERS:
        return ANSWERS[answer]
    check_answer(answer)
    return own_format(answer, user_code.load(answer, "--answer"))


def check_answer(answer: str) -> None:
    """Raise UsageError for an unknown --answer; of a user's own only its name is looked at."""
    if answer not in ANSWERS and not user_code.is_named(answer):
        raise UsageError(f"--answer {answer}: must be {', '.join(ANSWERS)} or FILE.py:function")


@cache
def own_format(answer: str, function: Callable[[str], Any]) -> AnswerFormat:
    """That of a user's own function."""
    what, file = f"--answer {answer}", user_code.file_and_name(answer, "--answer")[0]

    def read(completion: str) -> str | None:
        said = f"the completion {user_code.shown(completion)}"
        try:
            found = function(completion)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # also SystemExit and GeneratorExit
            user_code.fail(f"{what}: with {said}", error, file)
        if found is not None and not isinstance(found, str):
            kind = user_code.kind(found)
            raise UsageError(f"{what}: returned {kind}, not text or None, for {said}")
        return found

    read("")
    return AnswerFormat(read, "", lambda thought, answer: "")


def pairs_of(graded: Sequence[Graded], rng: np.random.Generator) -> list[Preference]:
    """Pairs of a right and a wrong completion of the same prompt, at random.

    graded: completions of equal prompts side by side. At most one pair for each prompt; none where
    all of its completions are right, or all wrong.
    """
    pairs = []
    for _, group in itertools.groupby(graded, key=lambda x: x.problem.prompt):
        members = list(group)
        right = [x for x in members if x.accuracy == 1]
        wrong = [x for x in members if x.accuracy == 0]
        if right and wrong:
            chosen, rejected = right[rng.integers(len(right))], wrong[rng.integers(len(wrong))]
            pairs.append(Preference(chosen.problem.prompt, chosen.text, rejected.text))
    return pairs


# ---- The tasks -----------------------------------------------------------------------------


class Task:
    """Prompts, demonstrations and rewards. The same id always gives the same prompts.

    A user's own, `--task FILE.py:Class`, is made without arguments. It has an id, max_new_tokens,
    and the methods train and test (of a GeneratedTask: draw). An answer is right if it equals one
    of the problem's as a number, or as a text where that is not a number, unless the class has an
    accuracy of its own.
    """

    id: str
    instruction = ""  # the system message for a model with a chat template
    max_new_tokens: int  # enough for every demonstration
    base_steps: int  # of the pretraining of tiny-base
    opening = ""  # `<think>` where prompts end with it (sampling.with_opening)
    read_answer: Callable[[str], str | None] = staticmethod(answer_of)  # of --answer
    equal: Callable[[str, str], bool] | None = None  # of the right answer and the given one

    def but(self, **attributes: Any) -> Self:
        """The same task with other attributes."""
        other = copy.copy(self)
        for name, value in attributes.items():
            object.__setattr__(other, name, value)  # of a frozen dataclass
        return other

    def train(self, rng: np.random.Generator, n: int) -> list[Problem]:
        """n problems, drawn with replacement from those that are trained on."""
        raise UsageError(f"--task {self.id}: has no method train")

    def test(self, n: int) -> list[Problem]:
        """The first n held-out problems (fewer if there are not as many)."""
        raise UsageError(f"--task {self.id}: has no method test")

    def accuracy(self, problem: Problem, completion: str) -> float:
        """1 if the answer is right, otherwise 0."""
        answer = self.read_answer(completion)
        return float(answer is not None and any(self._same(x, answer) for x in problem.answers))

    def _same(self, right: str, given: str) -> bool:
        value = number(right)
        if given == right if value is None else number(given) == value:
            return True
        return self.equal is not None and self.equal(right, given)

    def vote(self, completion: str) -> str | None:
        """The answer in a form in which equal answers are equal texts; None without an answer."""
        answer = self.read_answer(completion)
        if answer is None:
            return None
        value = number(answer)
        return answer if value is None else str(value)

    def steps(self, problem: Problem, completion: str) -> list[ReasoningStep]:
        """The steps of the thinking, none where the task has none."""
        return []

    def measures(self, problems: Sequence[Problem], completions: Sequence[str]) -> dict[str, float]:
        """Further measures that evaluations take on this task."""
        return {}

    def trained_on(self) -> Sequence[Problem]:
        """All problems of the training, or some of them where they are generated on the fly."""
        return drawn(self, np.random.default_rng(0), 256)

    def checked_accuracy(self, problem: Problem, completion: str) -> float:
        """The accuracy; UsageError unless it is 0 or 1: pass@k and votes count right answers."""
        return self._checked("accuracy", self.accuracy(problem, completion), completion)

    def _checked(self, method: str, found: float, completion: str) -> float:
        counted = method == "accuracy"
        if not isinstance(found, Real | np.bool_):
            what = user_code.kind(found)
        elif found in (0, 1) or (not counted and 0 <= found <= 1):
            return float(found)
        else:
            what = f"{found}"
        allowed = "0 or 1 (parts of a point are a --reward)" if counted else "a number from 0 to 1"
        said = f"returned {what}, not {allowed}, for {user_code.shown(completion)}"
        raise UsageError(f"--task {self.id}: {method} {said}")

    def grade(self, problem: Problem, completion: str) -> Graded:
        """A completion with its rewards by rules: accuracy and format, each checked."""
        accuracy = self.checked_accuracy(problem, completion)
        framed = self._checked("format", self.format(completion), completion)
        return Graded(problem, completion, accuracy, framed)

    def format(self, completion: str) -> float:
        """The format reward of a completion that continues what its prompt opens.

        Of an answer between other marks than tags: 1 where there is one.
        """
        if self.read_answer is not answer_of:
            return float(self.read_answer(completion) is not None)
        return format_reward(self.opening + completion)

    def thinking(self, completion: str) -> tuple[int, str]:
        """Where the thinking begins in a completion, and its text."""
        start, text = thinking(self.opening + completion)
        return max(start - len(self.opening), 0), text

    def shown(self, problem: Problem) -> str:
        """The demonstration without what its prompt opens."""
        return problem.demonstration.removeprefix(self.opening)

    def text(self, rng: np.random.Generator, demonstrations: float) -> str:
        """A piece of the text that the tiny base model is pretrained on: with this probability a
        demonstration, otherwise unformatted."""
        raise UsageError(f"--model tiny: made for {', '.join(GENERATED)}, not for {self.id}")


def held_out(prompt: str) -> bool:
    """Whether a prompt belongs to the test set, which only its text decides.

    The order of its numbers does not matter: 47+85= is held out if and only if 85+47= is.
    """
    numbers = sorted(re.findall("[0-9]+", prompt))
    key = " ".join([re.sub("[0-9]+", "#", prompt), *numbers])
    return zlib.crc32(key.encode()) % TEST_SHARE == 0


def separated(thought: str) -> list[tuple[int, str]]:
    """Ends and texts of the steps of a thought, each of which ends with `;`. Text after the last
    `;` is a step, too, and so is everything after the first 64: no problem needs more, and a model
    can write very long thoughts.
    """
    steps, start = [], 0
    for piece in thought.split(";", MAX_STEPS):
        end = min(start + len(piece) + 1, len(thought))
        if piece:
            steps.append((end, piece))
        start = end
    return steps


@cache
def held_out_problems(task: GeneratedTask, n: int) -> tuple[Problem, ...]:
    """The first n of a task's test set, in an order that is random but always the same."""
    rng = np.random.default_rng(zlib.crc32(task.id.encode()))
    problems: dict[str, Problem] = {}
    known = 0  # draws in a row that gave no new prompt
    while len(problems) < n and known < ALL_KNOWN:
        problem = task._draw(rng, test=True)
        known = known + 1 if problem.prompt in problems else 0
        problems.setdefault(problem.prompt, problem)
    return tuple(problems.values())


class GeneratedTask(Task):
    """Randomly drawn problems; their prompts decide which of them are held out."""

    def draw(self, rng: np.random.Generator) -> Problem:
        """One problem, held out or not."""
        raise UsageError(f"--task {self.id}: has no method draw")

    def _draw(self, rng: np.random.Generator, test: bool) -> Problem:
        for _ in range(ALL_KNOWN):
            problem = self.draw(rng)
            if fault := fault_of(problem):
                raise UsageError(f"--task {self.id}: draw returned {fault}")
            if held_out(problem.prompt) == test:
                return problem
        what = "is held out: they are too few" if test else "is left to train on"
        raise UsageError(f"--task {self.id}: none of its prompts {what}")

    def train(self, rng: np.random.Generator, n: int) -> list[Problem]:
        return [self._draw(rng, test=False) for _ in range(n)]

    def test(self, n: int) -> list[Problem]:
        return list(held_out_problems(self, n))

    def thought(self, problem: Problem) -> str:
        """The thinking that leads to the answer."""
        return thinking(problem.demonstration)[1]

    def text(self, rng: np.random.Generator, demonstrations: float) -> str:
        problem = self._draw(rng, test=False)
        kind, unformatted = rng.random(), 1 - demonstrations
        if kind < unformatted * 9 / 17:
            return problem.prompt + problem.answer
        if kind < unformatted:
            return problem.prompt + self.thought(problem)
        return problem.prompt + problem.demonstration


@dataclass(frozen=True)
class Addition(GeneratedTask):
    """The sum of two numbers, column by column from the right."""

    id: str
    digits: int
    empty: float  # share of demonstrations without a thought
    max_new_tokens: int
    base_steps: int

    def draw(self, rng: np.random.Generator) -> Problem:
        least, end = 10 ** (self.digits - 1), 10**self.digits
        a, b = int(rng.integers(least, end)), int(rng.integers(least, end))
        problem = Problem(f"{a}+{b}=", str(a + b))
        thought = "" if rng.random() < self.empty else self.thought(problem)
        return problem._replace(demonstration=formatted(thought, problem.answer))

    def thought(self, problem: Problem) -> str:
        return "".join(f"{line};" for line in self.columns(*self._terms(problem)))

    @staticmethod
    def _terms(problem: Problem) -> list[int]:
        return [int(x) for x in problem.prompt[:-1].split("+")]

    def columns(self, a: int, b: int) -> list[str]:
        """The line of each column with its carry: `7+5=12`, `4+8+1=13`."""
        lines, carry = [], 0
        for x, y in zip(reversed(str(a)), reversed(str(b)), strict=True):
            total = int(x) + int(y) + carry
            lines.append(f"{x}+{y}" + "+1" * carry + f"={total}")
            carry = total // 10
        return lines

    def accuracy(self, problem: Problem, completion: str) -> float:
        return float(self.read_answer(completion) == problem.answer)

    def steps(self, problem: Problem, completion: str) -> list[ReasoningStep]:
        start, thought = self.thinking(completion)
        right = self.columns(*self._terms(problem))
        return [
            ReasoningStep(start + end, float(k < len(right) and text == right[k]))
            for k, (end, text) in enumerate(separated(thought))
        ]


@dataclass(frozen=True)
class VariedAddition(Addition):
    """Addition whose demonstrations differ in more than the numbers: `lines` says how."""

    def lines(self, columns: Sequence[str], rng: np.random.Generator) -> list[str]:
        """The lines of a demonstration whose right columns are these."""
        raise NotImplementedError

    def draw(self, rng: np.random.Generator) -> Problem:
        problem = super().draw(rng)
        lines = self.lines(self.columns(*self._terms(problem)), rng)
        thought = "".join(f"{line};" for line in lines)
        return problem._replace(demonstration=formatted(thought, problem.answer))

    def thought(self, problem: Problem) -> str:
        return thinking(problem.demonstration)[1]

    def graded(self, problem: Problem, columns: Sequence[tuple[int, str]]) -> list[ReasoningStep]:
        """The reward of each column, given by its end and its text."""
        right = self.columns(*self._terms(problem))
        return [
            ReasoningStep(end, float(k < len(right) and text == right[k]))
            for k, (end, text) in enumerate(columns)
        ]


@dataclass(frozen=True)
class Rambling(VariedAddition):
    """Addition with demonstrations of random length: `hm;` is neither right nor wrong."""

    fillers: float = 0.0  # mean number in a demonstration; geometric, up to `most`
    most: int = 0

    def lines(self, columns: Sequence[str], rng: np.random.Generator) -> list[str]:
        lines = list(columns)
        for _ in range(min(rng.geometric(1 / (1 + self.fillers)) - 1, self.most)):
            lines.insert(int(rng.integers(len(lines) + 1)), FILLER)
        return lines

    def steps(self, problem: Problem, completion: str) -> list[ReasoningStep]:
        """The columns, without the fillers."""
        start, thought = self.thinking(completion)
        columns = [(start + end, text) for end, text in separated(thought) if text != FILLER]
        return self.graded(problem, columns)


@dataclass(frozen=True)
class Checking(VariedAddition):
    """Addition whose demonstrations write some columns wrong, then `wait;` and the right column."""

    slips: float = 0.0  # share of columns

    def lines(self, columns: Sequence[str], rng: np.random.Generator) -> list[str]:
        lines = []
        for line in columns:
            if rng.random() < self.slips:
                terms, _, total = line.partition("=")
                wrong = (int(total) + int(rng.integers(1, 20))) % 20  # any other of 0 to 19
                lines += [f"{terms}={wrong}", WAIT]
            lines.append(line)
        return lines

    def steps(self, problem: Problem, completion: str) -> list[ReasoningStep]:
        """The columns that remain: `wait` retracts the column before it."""
        start, thought = self.thinking(completion)
        remaining: list[tuple[int, str]] = []
        for end, text in separated(thought):
            if text == WAIT:
                remaining = remaining[:-1]
            else:
                remaining.append((start + end, text))
        return self.graded(problem, remaining)

    def corrections(self, problem: Problem, completion: str) -> list[tuple[bool, bool, bool]]:
        """For each written column: whether it is right, whether `wait` follows it, and whether the
        right column follows the `wait`."""
        texts = [text for _, text in separated(self.thinking(completion)[1])]
        right, written, k = self.columns(*self._terms(problem)), [], 0
        for text, *rest in (texts[i : i + 3] for i in range(len(texts))):
            if text == WAIT:
                k = max(k - 1, 0)
                continue
            wanted = right[k] if k < len(right) else None
            waits = rest[:1] == [WAIT]
            written.append((text == wanted, waits, waits and rest[1:] == [wanted]))
            k += 1
        return written

    def measures(self, problems: Sequence[Problem], completions: Sequence[str]) -> dict[str, float]:
        """P(wait) of a completion, P(wait | column wrong), P(wait | column right) and
        P(right column | wait after a wrong one); NaN where there is no such column."""
        pairs = zip(problems, completions, strict=True)
        columns = [self.corrections(problem, text) for problem, text in pairs]
        every = [column for written in columns for column in written]

        def share(of: Sequence[bool]) -> float:
            return sum(of) / len(of) if of else math.nan

        return {
            "wait": share([any(waits for _, waits, _ in written) for written in columns]),
            "wait_if_wrong": share([waits for right, waits, _ in every if not right]),
            "wait_if_right": share([waits for right, waits, _ in every if right]),
            "right_after_wait": share(
                [corrected for right, waits, corrected in every if waits and not right]
            ),
        }


@dataclass(frozen=True)
class Countdown(GeneratedTask):
    """An expression with value `target` that uses each of three numbers once."""

    id: str
    max_new_tokens: int
    base_steps: int

    def draw(self, rng: np.random.Generator) -> Problem:
        while True:
            numbers = [int(x) for x in rng.integers(1, 10, 3)]
            first, second = ("+-*"[i] for i in rng.integers(0, 3, 2))
            x, y, z = (numbers[i] for i in rng.permutation(3))
            inner = int(arithmetic(f"{x}{first}{y}")[0])  # type: ignore[index]
            if inner < 0:
                continue
            target = int(arithmetic(f"{inner}{second}{z}")[0])  # type: ignore[index]
            if 0 < target < 100:
                break
        thought = f"{x}{first}{y}={inner};{inner}{second}{z}={target};"
        bracket = second == "*" and first != "*"
        answer = f"({x}{first}{y}){second}{z}" if bracket else f"{x}{first}{y}{second}{z}"
        prompt = " ".join(map(str, numbers)) + f" to {target}:"
        return Problem(prompt, answer, formatted(thought, answer))

    def accuracy(self, problem: Problem, completion: str) -> float:
        given, target = self._given(problem)
        parsed = arithmetic(self.read_answer(completion) or "")
        return float(parsed is not None and parsed[0] == target and sorted(parsed[1]) == given)

    def vote(self, completion: str) -> str | None:
        """The value and the numbers of the expression, which decide whether it is right."""
        answer = self.read_answer(completion)
        if answer is None or (parsed := arithmetic(answer)) is None:
            return answer
        return f"{parsed[0]} of {sorted(parsed[1])}"

    def steps(self, problem: Problem, completion: str) -> list[ReasoningStep]:
        """A step is right if it takes numbers that are left and computes correctly."""
        left, _ = self._given(problem)
        start, thought = self.thinking(completion)
        steps = []
        for end, text in separated(thought):
            term, _, value = text.partition("=")
            left_side, right_side = arithmetic(term), arithmetic(value)
            right = left_side is not None and len(left_side[1]) == 2
            right = right and right_side is not None and len(right_side[1]) == 1
            if right:
                rest = list(left)
                for x in left_side[1]:  # type: ignore[index]
                    right = right and x in rest
                    if x in rest:
                        rest.remove(x)
                right = right and left_side[0] == right_side[0]  # type: ignore[index]
                if right:
                    left = [*rest, int(left_side[0])]  # type: ignore[index]
            steps.append(ReasoningStep(start + end, float(right)))
        return steps

    @staticmethod
    def _given(problem: Problem) -> tuple[list[int], int]:
        numbers, _, target = problem.prompt[:-1].partition(" to ")
        return sorted(map(int, numbers.split())), int(target)


@dataclass(frozen=True)
class JsonlTask(Task):
    """Prompts and answers from a file or a data set."""

    id: str
    trained: Sequence[Problem]
    tested: Sequence[Problem]
    max_new_tokens: int = 256
    base_steps: int = 0

    def passes(
        self, orders: Callable[[int], np.random.Generator], start: int, n: int
    ) -> list[Problem]:
        """Problems start to start + n of passes through all of them; orders(k) shuffles pass k."""
        N = len(self.trained)
        places = range(start, start + n)
        order = {k: orders(k).permutation(N) for k in {place // N for place in places}}
        return [self.trained[order[place // N][place % N]] for place in places]

    def test(self, n: int) -> list[Problem]:
        return list(self.tested[:n])

    def trained_on(self) -> Sequence[Problem]:
        return self.trained


def drawn(task: Task, rng: np.random.Generator, n: int) -> list[Problem]:
    """n problems to train on, drawn by the task; UsageError where these are not n problems."""
    problems = task.train(rng, n)
    check_problems(problems, f"--task {task.id}", "train")
    if len(problems) != n:
        raise UsageError(f"--task {task.id}: train returned {len(problems)} problems, not {n}")
    return problems


def check_problems(problems: Any, what: str, method: str) -> None:
    """Raise UsageError unless a method of a task has returned at least one problem."""
    if not isinstance(problems, list | tuple):
        raise UsageError(
            f"{what}: {method} returned {user_code.kind(problems)}, not a list of Problems"
        )
    if not problems:
        raise UsageError(f"{what}: {method} returned no Problems")
    if fault := next(filter(None, map(fault_of, problems)), ""):
        raise UsageError(f"{what}: {method} returned a list with {fault}")


def next_problems(
    task: Task, n: int, start: int, run: LanguageRun, purpose: str, rng: np.random.Generator
) -> list[Problem]:
    """The next n problems to train on after `start` others: from rng, or from a data set without
    replacement.

    The order of each pass through a data set depends only on seed, purpose and pass, so that a
    resumed run continues where it was interrupted.
    """
    if isinstance(task, JsonlTask):
        return task.passes(lambda k: run.rng(purpose, k), start, n)
    return drawn(task, rng, n)


@dataclass(frozen=True, kw_only=True)
class TaskConfig(LanguageConfig):
    """Flags of all scripts that train on a task; an unknown task is refused at once."""

    # Rates for a model that is not one of our tiny ones: of all weights, and with --lora-rank.
    RATES: ClassVar[Mapping[str, tuple[float, float]]] = {"learning_rate": (1e-6, 1e-5)}

    @classmethod
    def defaults_for(cls, args: Sequence[str]) -> dict[str, float]:
        """The learning rates of a command that names a model of any size, said in a line."""
        from manyseeds.llm_track import models

        name = read_flag("model", cls.model, args)
        try:
            if not name or name in MADE or models.reads_tiny_tokens(name):
                return {}
        except UsageError:  # of a model that is not there, which is said in its turn
            return {}
        adapters = read_flag("lora_rank", "0", args) != "0"
        words = [known(word) for word in args if word.startswith("--")]
        rates = {key: both[adapters] for key, both in cls.RATES.items()}
        if said := [f"{flag(key)} {x:g}" for key, x in rates.items() if key not in words]:
            print(f"note: {', '.join(said)}: the default for --model {name}", file=sys.stderr)
        return rates

    def check(self) -> None:
        check_answer(self.answer)
        if not self.own_code():  # a stored Config must not run any
            of(self)
        if self.answer == "last" and self.task == "countdown":
            raise UsageError("--answer last: an answer of countdown is an expression")
        if self.instruction and self.model in MADE:
            raise UsageError(f"--instruction: {self.model} reads none; it is for another --model")
        if REWARD in (self.model, getattr(self, "teacher", "")):
            what = "model" if self.model == REWARD else "teacher"
            raise UsageError(f"--{what} {REWARD}: is a reward model; use --reward-model")
        if self.initial_per_seed and self.model not in MADE:
            raise UsageError(
                f"--initial-per-seed: --model {self.model} is one model; made with a seed are "
                f"{', '.join(MADE[:-2])}"
            )
        if self.grader != "rules" and self.task in GENERATED:
            raise UsageError(f"--grader {self.grader}: {self.task} has rules of its own")

    def check_request(self) -> None:
        from manyseeds.llm_track import models

        models.check_request(self)

    def trains_together(self) -> bool:
        from manyseeds.llm_track import policies

        return policies.together(self)

    def learned_from(self) -> Mapping[Any, Sequence[str]]:
        """Rows of a data set, each with the completions to learn from. Raises UsageError."""
        return {}

    def own_code(self) -> dict[str, str]:
        """FILE.py:NAME of each flag that names code of a user's own."""
        named = {name: getattr(self, name) for name in ("task", "answer")}
        return {name: x for name, x in named.items() if user_code.is_named(x)}

    def origins(self) -> list[str]:
        own = [user_code.origin(x, flag(name)) for name, x in self.own_code().items()]
        task = (
            [f"manyseeds.llm_track.tasks:GENERATED[{self.task}]"] if self.task in GENERATED else []
        )
        initial = {getattr(self, name, "") for name in MODELS} & {*MADE}
        made = (made_origins(name, self.task) for name in sorted(initial))
        initial_origins = dict.fromkeys(x for part in made for x in part)
        return [*super().origins(), *own, *task, *initial_origins]

    def contents(self) -> dict[str, str]:
        """Digests of the training data and of the initial models.

        A model on a hub has its revision instead. The tiny models are made by code.
        """
        digests = {}
        for name in ("task", "preferences", "demonstrations"):
            path = getattr(self, name, "")
            known = path_of(path, flag(name))
            files = files_of(known) if known.is_dir() else [known]
            if not path or path in GENERATED or user_code.is_named(path):
                continue
            if all(file.is_file() for file in files):
                texts = [read_data(file) for file in files]
                sizes = b"".join(b"%d\n" % len(text) for text in texts[:-1])  # where each ends
                digest = hashlib.sha256(sizes + b"".join(texts))
                digests[f"{name}_content"] = digest.hexdigest()[:12]
            elif name == "task":
                digests["task_content"] = hub_content(path)
        for name in MODELS:
            model = getattr(self, name, "")
            if model and model not in MADE:
                folder = model_folder(path_of(model, flag(name)), flag(name))
                known_as = folder_digest(folder) if folder.is_dir() else hub_revision(model)
                digests[f"{name}_content"] = known_as
        return digests


# ---- Reading data --------------------------------------------------------------------------

MAX_DATA = 2**32  # bytes of a file
HUB_SECONDS = 10  # to wait for a hub's answer about the commit of a model
REWARD, TEACHER = "tiny-reward", "tiny-teacher"
# Models that are made at first use; see models.py.
BASES = (
    *("tiny-base", "tiny-base-400", "tiny-base-800"),
    *("tiny-base-800-5", "tiny-base-800-1", "tiny-base-800-0", "micro-base-3200"),
)
MADE = ("tiny", *BASES, REWARD, TEACHER)
MODELS = ("model", "reward_model", "teacher")  # flags that name one
# The scripts that make them, one after another; for the others sft.py alone.
SCRIPTS = {REWARD: ("sft", "reward_model"), TEACHER: ("sft", "grpo")}


def made_origins(name: str, task: str) -> list[str]:
    """Where the code begins that makes a model of a generated task."""
    base = name if name in BASES else "tiny-base"
    scripts = () if name in BASES else SCRIPTS.get(name, ("sft",))
    parts = ("train", "Config", "Config()", f"PRESETS[{task}]")
    return [
        "manyseeds.llm_track.models:make_bases",
        f"manyseeds.llm_track.models:BASES[{base}]",
        *(f"manyseeds.llm_track.{script}:{part}" for script in scripts for part in parts),
        f"manyseeds.llm_track.tasks:GENERATED[{task}]",
    ]


GENERATED: dict[str, GeneratedTask] = boundary(
    {
        "addition": Addition("addition", digits=2, empty=0.0, max_new_tokens=32, base_steps=200),
        "mixed": Addition("mixed", digits=3, empty=0.6, max_new_tokens=48, base_steps=800),
        "countdown": Countdown("countdown", max_new_tokens=40, base_steps=300),
        "rambling": Rambling(
            "rambling", 2, empty=0.0, max_new_tokens=64, base_steps=800, fillers=4.0, most=12
        ),
        "checking": Checking(
            "checking", 2, empty=0.0, max_new_tokens=64, base_steps=800, slips=0.25
        ),
    }
)
HUB = {"gsm8k": ("openai/gsm8k", "main")}  # short names


def of(config: Any) -> Task:
    """The task of a run, with its --grader, --answer and --instruction. Raises as `make`."""
    answered = getattr(config, "rules", True)  # otherwise the rewards are a user's own
    made = make(config.task, config.grader, config.answer, answered)
    return made if config.instruction is None else made.but(instruction=config.instruction)


def make(task: str, grader: str = "rules", answer: str = "tags", answered: bool = True) -> Task:
    """A task by name, by the path of a JSONL file or of a folder of them, or by hub name.

    grader, answer: see `--grader` and `--answer`. answered: every row of a data set must have an
    answer. Raises UsageError for an unknown task, for a malformed row (file and line), and for a
    grader that is not installed.
    """
    form = answer_format(answer)
    made = named(task, form, answered)
    if isinstance(made, JsonlTask):
        made = made.but(instruction=form.instruction)
    if grader == "math-verify" and task not in GENERATED:
        made = made.but(equal=math_verify_grader())
    return made if answer == "tags" else made.but(read_answer=form.read)


@cache
def named(task: str, form: AnswerFormat = ANSWERS["tags"], answered: bool = True) -> Task:
    """A task by name; a file or data set is read once."""
    if task in GENERATED:
        return GENERATED[task]
    if user_code.is_named(task):
        with user_code.failing_in_one_line(task, "--task"):
            return own_task(task)
    read = partial(problem_of, form=form, answered=answered)
    path = path_of(task, "--task")
    if path.is_file():
        return from_files(task, read, path)
    if path.is_dir():
        files = files_of(path)
        if not files or files[0].name != "train.jsonl":
            raise UsageError(f"--task {task}: the folder has no train.jsonl")
        return from_files(task, read, *files)
    if task in HUB or (re.fullmatch(r"[\w.-]+/[\w.-]+", task) and path.suffix != ".jsonl"):
        return from_hub(task, read, *HUB.get(task, (task, None)))
    if path.suffix == ".jsonl":
        raise UsageError(f"--task {task}: there is no such file")
    known = [*GENERATED, *HUB]
    raise UsageError(f"--task {task}: unknown task{did_you_mean(task, known)}")


def own_task(task: str) -> Task:
    """The task that a class of a user's own makes; UsageError for one without problems."""
    what, make_task = f"--task {task}", user_code.load(task, "--task")
    try:
        made = make_task()
    except TypeError as error:
        user_code.fail(
            f"{what}: called without arguments", error, user_code.file_and_name(task, "--task")[0]
        )
    if not isinstance(made, Task):
        raise UsageError(
            f"{what}: is {user_code.kind(made)}; extend manyseeds.llm_track.tasks.Task or "
            "GeneratedTask"
        )
    if type(made).grade is not Task.grade:
        raise UsageError(f"{what}: has a method grade; give it accuracy and format instead")
    if not isinstance(getattr(made, "id", None), str):
        raise UsageError(f"{what}: needs an id, a text")
    if made.id in GENERATED or not re.fullmatch(r"\w[\w.-]*", made.id):
        why = "belongs to a task of ours" if made.id in GENERATED else "is no plain name"
        raise UsageError(f"{what}: its id {user_code.shown(made.id)} {why}")
    tokens = getattr(made, "max_new_tokens", None)
    if type(tokens) is not int or tokens < 1:
        raise UsageError(f"{what}: needs max_new_tokens, a whole number of at least 1")
    drawn = type(made).test is GeneratedTask.test  # each is checked as it is drawn
    for method, problems in (
        ("train", made.train(np.random.default_rng(0), 2)),
        ("test", made.test(2 if drawn else TESTED)),
    ):
        check_problems(problems, what, method)
        for problem in problems[:2]:
            made.grade(problem, problem.demonstration)
    return made


def fault_of(x: Any) -> str:
    """What is wrong with what a user's own class has returned as a problem; '' for a good one."""
    if not isinstance(x, Problem):
        return f"{user_code.kind(x)}, not a Problem"
    for name, value in zip(x._fields, x[:3], strict=False):
        if not isinstance(value, str):
            return f"a Problem whose {name} is {user_code.kind(value)}, not text"
    if not x.prompt:
        return "a Problem whose prompt is empty"
    if not isinstance(x.also, list | tuple) or not all(isinstance(y, str) for y in x.also):
        return "a Problem whose field also is not a tuple of texts"
    if not isinstance(x.columns, Mapping):
        return f"a Problem whose columns are {user_code.kind(x.columns)}, not a dict"
    return ""


def files_of(folder: Path) -> list[Path]:
    """The files of a task's folder: train.jsonl, and test.jsonl where there is one."""
    return [path for x in ("train", "test") if (path := folder / f"{x}.jsonl").is_file()]


def from_files(
    task: str, read: Callable[..., Problem], train: Path, test: Path | None = None
) -> JsonlTask:
    """A task from a JSONL file; without a second file, a part of the prompts is held out."""
    problems = read_jsonl(train, read)
    if test is not None:
        return JsonlTask(task, problems, read_jsonl(test, read))
    return held_out_task(task, problems)


def held_out_task(task: str, problems: Sequence[Problem]) -> JsonlTask:
    """Hold out some of the prompts; in a small file the one with the smallest hash."""
    tested = [p for p in problems if held_out(p.prompt)]
    if not tested:
        first = min((p.prompt for p in problems), key=lambda text: zlib.crc32(text.encode()))
        tested = [p for p in problems if p.prompt == first]
    prompts = {p.prompt for p in tested}
    trained = [p for p in problems if p.prompt not in prompts]
    if not trained:
        raise UsageError(f"--task {task}: needs at least two different prompts")
    return JsonlTask(task, trained, tested)


def from_hub(task: str, read: Callable[..., Problem], name: str, config: str | None) -> JsonlTask:
    """A task from a data set on a hub (or in a local folder laid out like one)."""
    try:
        import datasets
    except ImportError:
        raise UsageError(f"--task {task}: needs datasets; {installing('llm')}") from None
    try:
        splits = datasets.load_dataset(name, config)
    except Exception as error:  # of the hub, the network or the files
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise UsageError(f"--task {task}: {reason}") from None
    problems = {
        split: read_rows(
            f"{name}, {split}", ((f"row {k}", row) for k, row in enumerate(rows)), read
        )
        for split, rows in splits.items()
    }
    if "train" not in problems:
        has = ", ".join(problems)
        raise UsageError(f"--task {task}: {name} has no split train; it has {has}")
    if "test" in problems:
        return JsonlTask(task, problems["train"], problems["test"])
    return held_out_task(task, problems["train"])


@cache
def hub_content(task: str) -> str:
    """Digest of the problems of a data set on a hub as they are read here.

    It is that of the copy on this machine where there is no network, which would not say what its
    revision is.
    """
    made = named(task, answered=False)
    assert isinstance(made, JsonlTask)
    rows = [[x._replace(where="") for x in part] for part in (made.trained, made.tested)]
    text = json.dumps(rows, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def read_jsonl(path: Path, read: Callable[[dict[str, Any], str], T]) -> list[T]:
    """What `read` makes of the objects of a JSONL file; UsageError with the faults of all lines."""

    def read_line(line: bytes, where: str) -> T:
        try:
            row = json.loads(line.decode())
            json.dumps(row, ensure_ascii=False).encode()  # half a surrogate pair is no text
        except (ValueError, RecursionError) as error:  # also a number of thousands of digits
            raise UsageError(f"not JSON: {error}") from None
        if not isinstance(row, dict):
            raise UsageError(f"must be an object, is {user_code.kind(row)}")
        return read(row, where)

    try:
        lines = read_data(path).removeprefix(codecs.BOM_UTF8).split(b"\n")
    except FileNotFoundError as error:
        raise UsageError(f"{path}: {error.strerror}") from None
    numbered = ((f"line {k}", line) for k, line in enumerate(lines, start=1) if line.strip())
    rows = read_rows(str(path), numbered, read_line)
    if not rows:
        raise UsageError(f"{path}: has no rows")
    return rows


def read_data(path: Path) -> bytes:
    """The content of a user's file of data, which may be a link. Raises as `open_checked`."""
    return read_bytes(path.resolve(), MAX_DATA)


def read_rows(
    source: str, rows: Iterable[tuple[str, Row]], read: Callable[[Row, str], T]
) -> list[T]:
    """What `read` makes of each row and of where it stands; UsageError with the faults of all rows.

    rows: each with its place in the source, `line 3`.
    """
    made, faults = [], []
    for place, row in rows:
        try:
            made.append(read(row, f"{source}: {place}"))
        except UsageError as fault:
            faults.append(f"{place}: {fault}")
    if faults:
        raise UsageError(f"{source}: {listed(faults)}")
    return made


def listed(faults: Sequence[str]) -> str:
    """The first of some faults, and how many more there are."""
    more = len(faults) - SHOWN_FAULTS
    return ", ".join(faults[:SHOWN_FAULTS]) + (f"; and {more} more" if more > 0 else "")


def by_file(faults: Sequence[tuple[str, str]]) -> str:
    """What is wrong with rows, each given by its `where` and a text, file by file in one line."""
    files = []
    for file, of_file in itertools.groupby(faults, key=lambda x: x[0].rpartition(": ")[0]):
        lines = [f"{where.removeprefix(file)[2:]}: {fault}" for where, fault in of_file]
        files.append(f"{file}: {listed(lines)}")
    return "; ".join(files)


def field(row: dict[str, Any], names: Sequence[str]) -> str:
    """The first of some fields that a row has, a text."""
    name = next((name for name in names if name in row), None)
    if name is None:
        raise UsageError(f"has no {' or '.join(names)}")
    if not isinstance(row[name], str):
        raise UsageError(f"{name} must be text, is {user_code.kind(row[name])}")
    return text_of(row[name], name)


def text_of(value: Any, name: str) -> str:
    """A text or a number as text, which must not be empty."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise UsageError(f"{name} must be text or a number")
    if isinstance(value, float) and not math.isfinite(value):
        raise UsageError(f"{name} is {value}, not a finite number")
    if not (text := str(value).strip()):
        raise UsageError(f"{name} is empty")
    return text


def messages_of(value: Any, name: str) -> list[dict[str, str]]:
    """The messages of a conversation, each with its role and its content."""
    if not isinstance(value, list) or not value:
        raise UsageError(f"{name} must be a list of messages")
    messages = [x if isinstance(x, dict) else {} for x in value]
    if not all(isinstance(x.get(key), str) for x in messages for key in ("role", "content")):
        raise UsageError(f"{name}: a message must have a role and a content, both of them text")
    return [{"role": x["role"], "content": x["content"]} for x in messages]


def prompt_of(messages: Sequence[dict[str, str]], name: str) -> str:
    """Messages as a prompt: the text of a single one by the user, otherwise all of them as JSON."""
    if not messages or messages[-1]["role"] in ("assistant", "system"):
        raise UsageError(f"{name}: has no message of the user before the completion")
    if [x["role"] for x in messages] == ["user"]:
        return text_of(messages[0]["content"], name)
    return json.dumps(messages, ensure_ascii=False)


def conversation(prompt: str) -> list[dict[str, str]] | None:
    """The messages that a prompt holds as JSON; None for a prompt that is a text."""
    if prompt.startswith('[{"role": '):
        with contextlib.suppress(ValueError, UsageError):
            return messages_of(json.loads(prompt), "prompt")
    return None


def reply_of(value: Any, name: str, prompt: str = "") -> str:
    """A completion: a text as it is, or what the assistant says after a prompt's messages."""
    if not isinstance(value, list):
        text_of(value, name)  # refuses what is none
        return str(value)
    *before, last = messages_of(value, name)
    if last["role"] != "assistant":
        raise UsageError(f"{name} must end with a message of the assistant")
    if before and prompt_of(before, name) != prompt:
        raise UsageError(f"{name} begins with other messages than prompt")
    return reply_of(last["content"], name)


def prompt_and_completion(row: dict[str, Any]) -> tuple[str, str]:
    """The prompt of a row and its completion, '' where it has none: texts, or conversations.

    As TRL's data sets have them: `prompt, completion`, each a text or a list of messages, or all
    `messages`, of which a last one by the assistant is the completion.
    """
    if "messages" in row and "prompt" not in row:
        messages = messages_of(row["messages"], "messages")
        last = messages.pop() if messages[-1]["role"] == "assistant" else None
        prompt = prompt_of(messages, "messages")
        return prompt, reply_of(last["content"], "messages") if last else ""
    if isinstance(row.get("prompt"), list):
        prompt = prompt_of(messages_of(row["prompt"], "prompt"), "prompt")
    else:
        prompt = field(row, ("prompt", "question"))
    return prompt, reply_of(row["completion"], "completion", prompt) if "completion" in row else ""


def answers_of(row: dict[str, Any], completion: str, form: AnswerFormat) -> list[str]:
    """The right answers of a row: `answer`, one or a list of them; else that of its completion."""
    given = next((row[name] for name in ("answer", "answers") if name in row), None)
    if given is None:
        given = form.read(completion) or []
    return [text_of(x, "answer") for x in (given if isinstance(given, list) else [given])]


def problem_of(
    row: dict[str, Any],
    where: str = "",
    form: AnswerFormat = ANSWERS["tags"],
    answered: bool = True,
) -> Problem:
    """The problem of a row of prompt (or question) and answer (GSM8K: `reasoning #### 1,234`).

    answered: raise UsageError for a row without an answer.
    """
    prompt, completion = prompt_and_completion(row)
    if not (answers := answers_of(row, completion, form)):
        if not answered:
            return Problem(prompt, "", completion.strip(), (), where, row)
        marks = f"between {ANSWER} tags" if form.read is answer_of else "that --answer can read"
        raise UsageError(f"has no answer and no completion with one {marks}")
    reasoning, mark, _ = answers[0].rpartition("####")
    answer, *also = map(final_answer, answers)
    if mark:
        thought = re.sub(r"<<[^<>]*>>", "", reasoning).strip()  # the calculator's annotations
        completion = form.write(thought, answer)
    return Problem(prompt, answer, completion.strip(), tuple(also), where, row)


def final_answer(answer: str) -> str:
    """What follows GSM8K's #### in an answer, without commas where that is a number."""
    _, mark, final = answer.rpartition("####")
    if not mark:
        return answer
    if not (answer := final.strip()):
        raise UsageError("nothing after ####")
    return answer.replace(",", "") if number(answer) is not None else answer


def model_folder(path: Path, what: str) -> Path:
    """The folder with a model's files: the path itself, or `model` in a part or a run of one part.

    what: the flag, for errors. Raises UsageError for a run of several parts, and for a part
    without weights, as published ones are.
    """
    if (path / "config.json").is_file() and list(path.glob("*.safetensors")):
        return path
    parts = [part for part in RunFolder(path).all_parts() if read_seal(part)]
    if len(parts) > 1:
        raise UsageError(f"{what} {path}: has {len(parts)} seeds; name one, as {parts[0]}")
    part = parts[0] if parts else path
    if read_seal(part) and not is_finished(part, with_weights=True):
        raise UsageError(f"{what} {path}: has no weights, or others than those that were sealed")
    return part / "model" if (part / "model").is_dir() else path


@cache
def hub_revision(model: str) -> str:
    """The commit of a model on a hub, or of its local copy without a network; '' if unknown."""
    from huggingface_hub import HfApi, try_to_load_from_cache

    with contextlib.suppress(Exception):  # no network, no such model: loading it reports that
        return str(HfApi().model_info(model, timeout=HUB_SECONDS).sha)
    with contextlib.suppress(Exception):
        copy = try_to_load_from_cache(model, "config.json")
        return Path(copy).parent.name if isinstance(copy, str) else ""
    return ""


def read_demonstrations(path: Path, task: Task) -> JsonlTask:
    """Prompts and completions from a JSONL file, as generate.py writes them, to learn a task from.

    Raises UsageError with file and line for each malformed row, each without a completion, and each
    prompt that is held out from the task.
    """
    tested = {p.prompt for p in task.tested} if isinstance(task, JsonlTask) else None

    def read(row: dict[str, Any], where: str) -> Problem:
        prompt, completion = prompt_and_completion(row)
        if not completion:
            raise UsageError("has no completion to learn from")
        if held_out(prompt) if tested is None else prompt in tested:
            raise UsageError(f"this prompt of {task.id} is held out for evaluations")
        return Problem(prompt, "", completion, where=where)

    return JsonlTask(str(path), read_jsonl(path, read), [])


def read_preferences(path: Path) -> list[Preference]:
    """Pairs from a JSONL file of `prompt, chosen, rejected`, or of `prompt, ranked`.

    ranked: completions from best to worst, which become all their pairs (InstructGPT, arXiv
    2203.02155, sec. 3.5). Prompt and completions may be conversations, as TRL's data sets have
    them; without a prompt it is what chosen and rejected have in common. Raises UsageError with
    file and line for each malformed row, and for each pair of equal completions.
    """

    def read(row: dict[str, Any], where: str) -> list[Preference]:
        prompt = implicit_prompt(row) if "prompt" not in row else prompt_and_completion(row)[0]
        if "ranked" in row:
            ranked = row["ranked"]
            if not isinstance(ranked, list) or len(ranked) < 2:
                raise UsageError("ranked must be a list of two completions or more")
            texts = [reply_of(x, "ranked", prompt) for x in ranked]
        else:
            texts = []
            for name in ("chosen", "rejected"):
                if name not in row:
                    raise UsageError(f"has no {name}")
                text = reply_of(row[name], name, prompt)
                texts.append(text if isinstance(row[name], list) else text.strip())
        if len(set(texts)) < len(texts):
            raise UsageError("two of its completions are equal: there is nothing to prefer")
        return [pair._replace(where=where) for pair in all_pairs(prompt, texts)]

    return list(itertools.chain.from_iterable(read_jsonl(path, read)))


def learned_preferences(preferences: str) -> dict[Preference, Sequence[str]]:
    """The pairs of `--preferences`, none for '', each with its completions; raises UsageError."""
    if not preferences:
        return {}
    path = path_of(preferences, "--preferences")
    if not path.is_file():
        raise UsageError(f"--preferences {preferences}: there is no such file")
    return {pair: (pair.chosen, pair.rejected) for pair in read_preferences(path)}


def implicit_prompt(row: dict[str, Any]) -> str:
    """The messages before the last one of chosen, which those of rejected must equal."""
    if not isinstance(row.get("chosen"), list):
        raise UsageError("has no prompt")
    return prompt_of(messages_of(row["chosen"], "chosen")[:-1], "chosen")


def all_pairs(prompt: str, ranked: Sequence[str]) -> list[Preference]:
    """All pairs of a ranked list, best first: K completions give K (K - 1) / 2."""
    return [
        Preference(prompt, better, worse)
        for i, better in enumerate(ranked)
        for worse in ranked[i + 1 :]
    ]
