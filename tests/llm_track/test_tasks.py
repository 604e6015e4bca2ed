"""Tasks of the LLM track: prompts, rewards that cannot be cheated, and data that is read right."""

from __future__ import annotations

import json
import math
import sys
import time
from fractions import Fraction
from itertools import permutations, product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from manyseeds.errors import UsageError
from manyseeds.llm_track import grpo, tasks
from manyseeds.llm_track.tasks import Graded, JsonlTask, Preference, Problem

GSM8K = Path(__file__).parent / "data" / "gsm8k.jsonl"
GENERATED = sorted(tasks.GENERATED)
VARIED = ("rambling", "checking")
COUNTDOWN = Problem("3 5 7 to 22:", "3*5+7")


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def answered(text: str, thought: str = "") -> str:
    return f"<think>{thought}</think><answer>{text}</answer>"


def write(path: Path, *rows: Any) -> Path:
    """A JSONL file; a row that is text is written as it is."""
    lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
    path.write_text("".join(line + "\n" for line in lines))
    return path


# ---- Problems ------------------------------------------------------------------------------


@pytest.mark.parametrize("task", GENERATED)
def test_held_out_prompts_are_never_trained_on(task: str) -> None:
    """Nor do they stand in the text that the base model is pretrained on."""
    made, draw = tasks.GENERATED[task], rng()
    test = [p.prompt for p in made.test(256)]
    assert len(test) == len(set(test)) == 256
    trained = {p.prompt for p in made.train(rng(), 5_000)}
    assert len(trained) > 1000
    assert trained.isdisjoint(test)
    assert all(tasks.held_out(prompt) for prompt in test)
    mark = ":" if task == "countdown" else "="
    texts = (made.text(draw, 0.15) for _ in range(1000))
    trained |= {text[: text.index(mark) + 1] for text in texts}
    assert not any(tasks.held_out(prompt) for prompt in trained)


@pytest.mark.parametrize("dose", [0.0, 0.01, 0.15])
def test_a_dose_of_demonstrations(dose: float) -> None:
    """What is not one is an answer or a thought, 9 to 8."""
    draw, made = rng(), tasks.GENERATED["addition"]
    texts = [made.text(draw, dose) for _ in range(10_000)]
    shown = sum(tasks.ANSWER in text for text in texts)
    thought = sum(";" in text and tasks.ANSWER not in text for text in texts)
    assert shown == pytest.approx(10_000 * dose, abs=100 * (dose > 0))
    assert thought / (10_000 - shown) == pytest.approx(8 / 17, abs=0.02)


def test_the_held_out_prompts_are_these() -> None:
    """They are for ever the same: a published score means these prompts."""
    first = {task: [p.prompt for p in tasks.make(task).test(3)] for task in GENERATED}
    assert first == {
        "addition": ["45+94=", "76+10=", "27+98="],
        "countdown": ["6 5 3 to 21:", "3 1 2 to 9:", "5 2 5 to 20:"],
        "mixed": ["800+378=", "593+659=", "345+783="],
        "rambling": ["13+96=", "74+26=", "18+86="],
        "checking": ["61+45=", "70+21=", "57+98="],
    }


def test_the_order_of_numbers_does_not_matter_for_what_is_held_out() -> None:
    """Whoever has learned 85+47= has nearly learned 47+85=."""
    sums = [tuple(map(int, p.prompt[:-1].split("+"))) for p in tasks.make("addition").test(256)]
    assert all(tasks.held_out(f"{b}+{a}=") for a, b in sums)
    for p in tasks.make("countdown").test(256):
        x, y, z, *rest = p.prompt.split()
        assert all(tasks.held_out(" ".join([*q, *rest])) for q in permutations((x, y, z)))
    prompts = [f"{a}+{b}=" for a in range(10, 100) for b in range(10, 100)]
    assert 0.04 < np.mean([tasks.held_out(p) for p in prompts]) < 0.085  # one in 16


def test_there_may_be_fewer_held_out_prompts_than_asked_for() -> None:
    one_digit = tasks.Addition("one", digits=1, empty=0.0, max_new_tokens=9, base_steps=1)
    found = one_digit.test(40)
    everything = {f"{a}+{b}=" for a in range(1, 10) for b in range(1, 10)}
    assert {p.prompt for p in found} == {x for x in everything if tasks.held_out(x)}


@pytest.mark.parametrize("task", GENERATED)
def test_a_demonstration_earns_everything_and_fits(task: str) -> None:
    made = tasks.make(task)
    for problem in made.train(rng(), 1000):
        text = problem.demonstration
        assert made.grade(problem, text)[2:4] == (1, 1), problem
        steps = made.steps(problem, text)
        assert all(step.reward == 1 for step in steps), problem
        # Each ends with its `;`, the last where the thinking ends.
        assert all(text[step.end - 1] == ";" for step in steps)
        assert len(steps) == (2 if task in VARIED else text.count(";"))
        if steps and task not in VARIED:
            assert text[steps[-1].end :].startswith("</think>")
        for tag in tasks.TAGS:  # one token for each character and tag, and the end
            text = text.replace(tag, "#")
        assert len(text) + 1 <= made.max_new_tokens, problem


def test_demonstrations_vary_as_often_as_they_should() -> None:
    texts = {
        task: [p.demonstration for p in tasks.make(task).train(rng(), 4000)] for task in GENERATED
    }
    empty = np.mean([text.startswith("<think></think>") for text in texts["mixed"]])
    assert abs(empty - 0.6) < 0.03
    assert not any(text.startswith("<think></think>") for text in texts["addition"])

    rambling = texts["rambling"]
    counts = np.array([text.count("hm;") for text in rambling])
    expected = sum(0.8**k for k in range(1, 13))  # of a geometric number that is cut at 12
    assert abs(counts.mean() - expected) < 0.2
    assert {int(n) for n in counts} == set(range(13))
    assert any("<think>hm;" in text for text in rambling)
    assert any("hm;</think>" in text for text in rambling)

    checking = tasks.GENERATED["checking"]
    problems = checking.train(rng(), 4000)
    found = checking.measures(problems, texts["checking"])
    assert abs(found["wait"] - (1 - 0.75**2)) < 0.03
    assert (found["wait_if_wrong"], found["wait_if_right"], found["right_after_wait"]) == (1, 0, 1)


@pytest.mark.parametrize(
    ("thought", "steps", "corrections"),
    [
        ("7+5=12;4+8+1=13;", [1, 1], [(True, False, False), (True, False, False)]),
        ("7+5=11;4+8+1=13;", [0, 1], [(False, False, False), (True, False, False)]),
        ("7+5=11;wait;7+5=12;4+8+1=13;", [1, 1],
         [(False, True, True), (True, False, False), (True, False, False)]),
        ("7+5=12;wait;7+5=11;", [0], [(True, True, False), (False, False, False)]),
        ("7+5=11;wait;7+5=10;wait;7+5=12;", [1],
         [(False, True, False), (False, True, True), (True, False, False)]),
        ("wait;wait;7+5=12;", [1], [(True, False, False)]),
        ("7+5=12;4+8+1=13;0+0=0;", [1, 1, 0],
         [(True, False, False), (True, False, False), (False, False, False)]),
        ("7+5=11;wait;", [], [(False, True, False)]),
    ],
)  # fmt: skip
def test_what_is_taken_back_is_no_step(
    thought: str, steps: list[int], corrections: list[tuple[bool, bool, bool]]
) -> None:
    task, problem = tasks.GENERATED["checking"], Problem("47+85=", "132")
    text = tasks.formatted(thought, "132")
    assert [step.reward for step in task.steps(problem, text)] == steps
    assert task.corrections(problem, text) == corrections


def test_measures_of_nothing_are_no_numbers() -> None:
    task, problem = tasks.GENERATED["checking"], Problem("47+85=", "132")
    found = task.measures([problem], ["no thinking"])
    assert found["wait"] == 0
    assert all(math.isnan(found[name]) for name in found if name != "wait")


def test_demonstrations_are_read_from_a_file(tmp_path: Path) -> None:
    task = tasks.make("addition")
    rows = [
        {"prompt": p.prompt, "answer": f"no #### {k}", "completion": f" so {k}"}
        for k, p in enumerate(task.train(rng(), 3))
    ]
    path = write(tmp_path / "right.jsonl", *rows)
    found = tasks.read_demonstrations(path, task)
    assert [p.demonstration for p in found.trained_on()] == [" so 0", " so 1", " so 2"]
    write(path, rows[0], {"prompt": "2+2=", "answer": 4})
    with pytest.raises(UsageError, match=r"right\.jsonl: line 2: has no completion to learn from"):
        tasks.read_demonstrations(path, task)
    for other in (task, tasks.make(str(GSM8K))):
        write(path, {**rows[0], "prompt": other.test(1)[0].prompt})
        with pytest.raises(UsageError, match=r"line 1: this prompt of .* is held out"):
            tasks.read_demonstrations(path, other)


# ---- Steps ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("thought", "rewards"),
    [
        ("", []),
        (";;;", []),
        ("7+5=12", [1]),  # a rest without its mark is a step, too
        ("7+5=12;4+8+1=13", [1, 1]),
        ("4+8+1=13;7+5=12;", [0, 0]),  # in the wrong order
        ("7+5=12;4+8+1=13;4+8+1=13;", [1, 1, 0]),  # nothing is earned twice
        ("7+5= 12;", [0]),
        ("7+5=12;;4+8+1=13;", [1, 1]),
        ("hm;7+5=12;hm;hm;4+8+1=12;hm;", [1, 0]),  # only what is rambling has fillers
    ],
)
def test_steps_of_addition(thought: str, rewards: list[float]) -> None:
    problem = Problem("47+85=", "132")
    task = tasks.make("rambling" if "hm" in thought else "addition")
    steps = task.steps(problem, answered("132", thought))
    assert [step.reward for step in steps] == rewards
    for text in (thought, f"</think>{thought}<think>", f"<think>{thought}", f"{thought}</think>"):
        assert task.steps(problem, text) == []  # without thinking
    ends = [step.end for step in steps]
    assert ends == sorted(set(ends))
    assert all(7 < end <= 7 + len(thought) for end in ends)


@pytest.mark.parametrize(
    ("thought", "rewards"),
    [
        ("3*5=15;15+7=22;", [1, 1]),
        ("3*5=16;15+7=22;", [0, 0]),
        ("3*5=15;3+7=10;", [1, 0]),  # 3 is used up
        ("3*3=9;", [0]),  # there is one 3
        ("4+4=8;", [0]),
        ("3*5+7=22;", [0]),  # one operation at a time
        ("3*5=3*5;", [0]),  # says nothing
        ("5/3=5/3;1+7=8;", [0, 0]),
        ("3-5=-2;", [0]),
        ("__import__('os')=1;", [0]),
        ("3*5=15;15+7=22;22+0=22;", [1, 1, 0]),
    ],
)
def test_steps_of_countdown(thought: str, rewards: list[float]) -> None:
    steps = tasks.make("countdown").steps(COUNTDOWN, answered("3*5+7", thought))
    assert [step.reward for step in steps] == rewards


# ---- Answers and format --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("completion", "answer"),
    [
        ("<answer>132</answer>", "132"),
        ("x<answer> 132\n</answer>y", "132"),
        ("<answer></answer>", ""),
        ("132", None),
        ("</answer>132<answer>", None),
        ("<answer>1</answer><answer>132</answer>", None),
        ("<answer><answer>132</answer></answer>", None),
        (f"<answer>{'1' * 65}</answer>", "1" * 65),
    ],
)
def test_answer_of(completion: str, answer: str | None) -> None:
    assert tasks.answer_of(completion) == answer


@pytest.mark.parametrize(
    ("completion", "reward"),
    [
        ("<think>a</think><answer>b</answer>", 1),
        ("<think></think><answer></answer>", 1),
        (" <think>a</think>\n <answer>b</answer>\n", 1),
        ("<think>a</think>x<answer>b</answer>", 0),
        ("x<think>a</think><answer>b</answer>", 0),
        ("<answer>b</answer><think>a</think>", 0),
        ("<think><answer>b</answer></think>", 0),
        ("<think>a<answer></think>b</answer>", 0),
        ("<think>a</think><think>a</think><answer>b</answer>", 0),
        ("<think>a</think><answer>b</answer><answer>b</answer>", 0),
        ("<answer>b</answer>", 0),
        ("", 0),
    ],
)
def test_format_reward(completion: str, reward: float) -> None:
    assert tasks.format_reward(completion) == reward


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("5", "5"),
        (" -5 ", "-5"),
        ("$1,234", "1234"),
        ("-1,234,567.50", "-1234567.50"),
        ("9" * 64, "9" * 64),
        ("18.", "18"),
        (".5", "0.5"),
        ("+1000", "1000"),
        ("50%", "50"),
        (r"12.5\%", "12.5"),
        (r"\$3", "3"),
        ("1/2", "0.5"),
        ("-3 / 4", "-0.75"),
        (r"\frac{1}{2}", "0.5"),
        (r"-\tfrac{10}{4}", "-2.5"),
        (r"\dfrac12", "0.5"),
        (r"\frac 1{20}", "0.05"),
        ("1/3", Fraction(1, 3)),
    ],
)
def test_number(text: str, value: str) -> None:
    assert tasks.number(text) == Fraction(value)


NO_NUMBERS = [
    *("", " ", "-", "$", ".", "-.", "%", "--5", "+-5", "- 5", "1_0", "1e3", "1E3", "1.5*2", "2**3"),
    *("0x10", "1,23", "12,34", "1,2345", ",123", "1 234", "5 apples", "5%%", "1/0", "nan", "inf"),
    *("Infinity", "5\x00", "5;5", "٣", "１２", "³", "½", "−5", "5\n5", "$-5", "$$5", "9" * 65),
    *(
        "1/2/3",
        "1//2",
        "/2",
        "1/",
        "1/-2",
        "1.5/2",
        r"\frac",
        r"\frac1",
        r"\frac{1}{0}",
        r"\frac{}{2}",
    ),
    *(r"\frac{1}{2}{3}", r"\frac123", r"\frac{1", r"\sqrt{4}", r"\boxed{5}", "5.%.", "1,23/4"),
]


@pytest.mark.parametrize("text", NO_NUMBERS)
def test_what_is_no_number(text: str) -> None:
    assert tasks.number(text) is None


@pytest.mark.parametrize(
    ("text", "value", "numbers"),
    [
        ("7+3*5", 22, [7, 3, 5]),
        ("(3+5)*7", 56, [3, 5, 7]),
        ("3/7", Fraction(3, 7), [3, 7]),
        ("1/3*3", 1, [1, 3, 3]),
        ("((((5))))", 5, [5]),
        ("8-3-2", 3, [8, 3, 2]),
    ],
)
def test_arithmetic(text: str, value: Fraction, numbers: list[int]) -> None:
    assert tasks.arithmetic(text) == (value, numbers)


NO_ARITHMETIC = [
    *("", " ", "3+", "3++5", "+5", "-5", "--5", "(3", "3)", "3 5", "3(5)", "()", "3,5", "1.5*2"),
    *("2**3", "9**9**7", "7//2", "7%2", "1<<9", "1_0+1", "1e3", "0x10", "1j", "3=3", "a", "True"),
    *("1/0", "5/(3-3)", "٣+5", "１+2", "3×5", "3\x00", "3\n+5", "007", "03*5", "3;5", "[3]"),
    *("3 if 1", "__import__('os')", "1+" * 32 + "1", "-" * 60 + "1", "(" * 100_000),
    "(" * 32 + "1" + ")" * 32,
]


@pytest.mark.parametrize("text", NO_ARITHMETIC, ids=lambda text: text[:12].encode().hex())
def test_what_is_no_arithmetic(text: str) -> None:
    assert tasks.arithmetic(text) is None


# ---- Completions that want more than they earn ---------------------------------------------


MEGABYTE = 1_000_000


def hostile(sentinel: Path) -> dict[str, str]:
    """Completions by what is wrong with them; none of them answers 47+85= or 3 5 7 to 22:."""
    inside = {
        "import": "__import__('os')",
        "code": f"__import__('pathlib').Path({str(sentinel)!r}).touch()",
        "short code": f"open({str(sentinel)!r},'w')",
        "tower of towers": "9**9**9**9**9",
        "shift": "1<<9999999999",
        "repetition": "'a'*10**10",
        "leading zeros": "00132",
        "sign": "+132",
        "point": "132.",
        "percent": "132%",
        "quotient": "264/2",
        "megabyte of a fraction": r"\frac{" + "1" * MEGABYTE + "}{1}",
        "huge": "9" * 64,
        "huge product": "9" * 30 + "*" + "9" * 30,
        "NUL": "132\x00",
        "parentheses": "(" * 100_000 + "132" + ")" * 100_000,
        "megabyte": "1" * MEGABYTE,
        "megabyte of operators": "1+" * (MEGABYTE // 2) + "1",
        "megabyte of spaces": "132" + " " * MEGABYTE + "1",
        "lambda": "(lambda:132)()",
        "formatted": "{0.__class__}",
        "surrogate": "\ud800",
    }
    found = {name: answered(text) for name, text in inside.items()}
    return found | {
        "megabyte without tags": "132" * (MEGABYTE // 3),
        "all answers": "".join(f"<answer>{n}</answer>" for n in range(200)),
        "megabyte of tags": "<answer>" * (MEGABYTE // 8),
        "megabyte of all tags": "<think></think><answer>132</answer>" * (MEGABYTE // 36),
        "nested thinking": "<think>" * 1000 + "</think>" * 1000 + "132",
        "megabyte of steps": "<think>" + "7+5=12;" * (MEGABYTE // 7),
    }


@pytest.mark.parametrize("task", [*GENERATED, "gsm8k"])
def test_hostile_completions_earn_nothing_run_nothing_and_take_no_time(
    task: str, tmp_path: Path
) -> None:
    """Neither as answers nor as steps; a millisecond, 20 for a megabyte."""
    sentinel = tmp_path / "s"
    made = tasks.make(str(GSM8K)) if task == "gsm8k" else tasks.make(task)
    problem = {
        "countdown": COUNTDOWN,
        "gsm8k": Problem("How many?", "1320"),
    }.get(task, Problem("47+85=", "132"))
    for name, completion in hostile(sentinel).items():
        best = math.inf
        for _ in range(5):
            start = time.thread_time()
            graded = made.grade(problem, completion)
            made.vote(completion)
            best = min(best, time.thread_time() - start)
        assert best < 2 * (0.02 if len(completion) > MEGABYTE // 10 else 0.001), name
        assert graded.accuracy == 0, name
        assert len(made.steps(problem, completion)) <= tasks.MAX_STEPS + 1, name
        inside = tasks.answer_of(completion) or ""
        for thought in (inside, f"{inside}={inside};", f"3*5={inside};"):
            steps = made.steps(problem, answered("1", thought))
            assert not any(step.reward for step in steps), (name, thought)
        assert not sentinel.exists(), name


@pytest.mark.parametrize(
    ("expression", "right"),
    [
        *((x, 1) for x in ("3*5+7", "7+3*5", "5*3+7", "(5*3)+7", " 7 + (5 * 3) ")),
        ("3*5+7+0", 0),  # 0 is not given
        ("3*7+1", 0),  # 5 is left out
        ("3*5+7+3-3", 0),  # 3 more than once
        ("3+5+7", 0),  # another target
        ("35-7", 0),  # digits put together
        ("3*5+7=22", 0),
    ],
)
def test_countdown_uses_each_number_once_and_hits(expression: str, right: float) -> None:
    assert tasks.make("countdown").accuracy(COUNTDOWN, answered(expression)) == right
    twice = Problem("4 4 2 to 10:", "4+4+2")  # equal numbers
    assert tasks.make("countdown").accuracy(twice, answered("4+4+2")) == 1
    assert tasks.make("countdown").accuracy(twice, answered("4*2+2")) == 0


def test_votes() -> None:
    jsonl = tasks.make(str(GSM8K))
    assert jsonl.vote(answered("1,234.0")) == jsonl.vote(answered("$1234"))
    assert jsonl.vote(answered("0.5")) == jsonl.vote(answered(r"\frac12"))
    assert jsonl.vote(answered("Paris")) == "Paris"
    assert jsonl.vote("1234") is None
    countdown = tasks.make("countdown")
    assert countdown.vote(answered("3 * 5 + 7")) == countdown.vote(answered("3*5+7"))
    assert countdown.vote(answered("3*5+7")) == countdown.vote(answered("7+3*5"))
    assert countdown.vote(answered("3*5+7")) != countdown.vote(answered("3*7+5"))
    assert countdown.vote(answered("20+2")) != countdown.vote(answered("3*5+7"))  # other numbers
    assert countdown.vote(answered("3*5+")) == "3*5+"
    assert countdown.vote("3*5+7") is None


# ---- math-verify ---------------------------------------------------------------------------


def test_math_verify_compares_what_the_rules_do_not_find_equal(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    package = pytest.importorskip("math_verify")
    compared, parse = [], package.parse
    monkeypatch.setattr(
        package, "parse", lambda text, **x: (compared.append(text), parse(text, **x))[1]
    )
    made, problem = tasks.make(str(GSM8K), "math-verify"), Problem("Solve.", "x+1")
    assert made.accuracy(problem, answered("x+1")) == 1
    assert made.accuracy(problem, "1+x") == 0
    assert not compared
    assert made.accuracy(problem, answered("1+x")) == made.accuracy(problem, answered("$1+x$")) == 1
    assert made.accuracy(problem, answered("1+y")) == 0
    assert compared == ["$x+1$", "$1+x$", "$1+x$", "$1+y$"]
    assert made.accuracy(problem, answered("1+x" * 1000)) == 0
    assert len(compared) == 4  # too long to be read


def test_an_answer_that_took_too_long_is_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    package = pytest.importorskip("math_verify")
    slow, read = [False, True], package.parse  # the right answer is read first
    monkeypatch.setattr(package, "parse", lambda *x, **y: [] if slow.pop() else read(*x, **y))
    equal = tasks.math_verify_grader()
    assert not equal("x+1", "1+x")
    slow[:] = [False, False]
    assert equal("x+1", "1+x")
    slow[:] = [False]  # known from now on
    assert not equal("x+1", "1+y")


def test_without_math_verify_there_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "math_verify", None)
    with pytest.raises(UsageError, match="--grader math-verify: needs math-verify; pip install"):
        tasks.make(str(GSM8K), "math-verify")


SAME, OTHER = True, False
ANSWERS = [  # right answer, given answer, by the rules, by math-verify
    ("72", "72", SAME, SAME),
    ("1234.5", "$1,234.50", SAME, SAME),
    ("18", "18.", SAME, OTHER),
    ("72", "72 dollars", OTHER, OTHER),
    ("1", "", OTHER, OTHER),
    ("2", "1+1", OTHER, SAME),
    ("0.5", r"\frac{1}{2}", SAME, SAME),
    (r"\frac{3}{4}", r"\dfrac{6}{8}", SAME, SAME),
    ("5", "$5$", OTHER, SAME),
    ("12", r"12\text{ cm}", OTHER, SAME),
    (r"2\sqrt{3}", r"\sqrt{12}", OTHER, SAME),
    ("(x+1)^2", "x^2+2x+1", OTHER, SAME),
    (r"\left(\frac12,3\right)", "(0.5,3)", OTHER, SAME),
    ("(1,2)", "(2,1)", OTHER, OTHER),
    (r"\pi", "3.14159", OTHER, OTHER),
    (r"\frac{1}{0}", "1", OTHER, OTHER),
    ("132", r"\frac{1}{0}", OTHER, OTHER),
    ("132", "{" * 40, OTHER, OTHER),
    ("132", "9^{9^{9}}", OTHER, OTHER),
]


@pytest.mark.parametrize(("right", "given", "rules", "mathematics"), ANSWERS)
def test_answers_by_math_verify_itself(
    right: str, given: str, rules: bool, mathematics: bool
) -> None:
    """The package, where it is installed: it is asked about what the rules do not find equal."""
    problem = Problem("Solve.", right)
    assert tasks.make(str(GSM8K)).accuracy(problem, answered(given)) == rules
    pytest.importorskip("math_verify")
    assert tasks.math_verify_grader()(right, given) == mathematics
    both = tasks.make(str(GSM8K), "math-verify")
    assert both.accuracy(problem, answered(given)) == (rules or mathematics)


# ---- Pairs ---------------------------------------------------------------------------------


def graded(prompt: str, *accuracies: float) -> list[Graded]:
    problem = Problem(prompt, "")
    return [Graded(problem, f"{prompt}{k}", a, 0.0) for k, a in enumerate(accuracies)]


def test_pairs_are_of_a_right_and_a_wrong_one_of_the_same_prompt() -> None:
    rows = graded("a", 0, 1, 1, 0) + graded("b", 1, 1) + graded("c", 0, 0) + graded("d", 0, 1)
    seen = set()
    for seed in range(50):
        pairs = tasks.pairs_of(rows, rng(seed))
        assert [pair.prompt for pair in pairs] == ["a", "d"]
        assert pairs[1] == Preference("d", "d1", "d0")
        seen.add(pairs[0][1:3])
    assert seen == set(product(("a1", "a2"), ("a0", "a3")))  # each at some time
    assert tasks.pairs_of([], rng()) == []


# ---- Reading data --------------------------------------------------------------------------


def test_gsm8k_is_read_right() -> None:
    made = tasks.make(str(GSM8K))
    assert isinstance(made, JsonlTask)
    rows = [json.loads(line) for line in GSM8K.read_text().splitlines()]
    problems = {p.prompt: p for p in [*made.trained, *made.tested]}
    answers = ["7", "1234", "-5", "2.50", "8", "33500", "18", "350", "200"]
    assert [problems[row["question"]].answer for row in rows] == answers
    for row in rows:
        problem = problems[row["question"]]
        assert made.grade(problem, problem.demonstration)[2:4] == (1, 1)
        assert made.accuracy(problem, answered(row["answer"].split("####")[1])) == 1
        assert made.accuracy(problem, answered(problem.answer + "1")) == 0
    assert problems[rows[0]["question"]].demonstration == (
        "<think>The stall takes in 12*3=36 jars.\nAfter the sales 36-29=7 jars are left.</think>"
        "<answer>7</answer>"
    )


def test_problems_of_a_pass_depend_on_their_place_alone() -> None:
    """However many are drawn at a time, and wherever a training was interrupted."""
    made = tasks.make(str(GSM8K))
    assert isinstance(made, JsonlTask)
    whole = made.passes(rng, 0, 30)
    for n in (1, 4, 7):
        parts = [made.passes(rng, start, n) for start in range(0, 28, n)]
        assert [p for part in parts for p in part][:28] == whole[:28]


def test_a_part_of_a_file_is_held_out(tmp_path: Path) -> None:
    """Equal prompts stay on one side; a pass takes all others, in another order."""
    rows = [{"prompt": f"q{k % 20}", "answer": k} for k in range(200)]
    made = tasks.make(str(write(tmp_path / "a.jsonl", *rows)))
    assert isinstance(made, JsonlTask)
    tested, trained = ({p.prompt for p in part} for part in (made.tested, made.trained))
    assert tested
    assert trained
    assert tested.isdisjoint(trained)
    assert len(made.tested) + len(made.trained) == 200
    assert made.test(1000) == list(made.tested)
    once = made.passes(rng, 0, len(made.trained))
    assert once != list(made.trained)
    assert sorted(once) == sorted(made.trained)
    path = write(tmp_path / "one.jsonl", *[{"prompt": "q", "answer": 1}] * 3)
    with pytest.raises(UsageError, match="two different prompts"):
        tasks.make(str(path))


def test_a_folder_of_two_files(tmp_path: Path) -> None:
    write(tmp_path / "train.jsonl", *({"prompt": f"q{k}", "answer": k} for k in range(5)))
    write(tmp_path / "test.jsonl", *({"question": f"t{k}", "answer": k} for k in range(3)))
    made = tasks.make(str(tmp_path))
    assert isinstance(made, JsonlTask)
    assert [p.prompt for p in made.trained] == [f"q{k}" for k in range(5)]
    assert [(p.prompt, p.answer) for p in made.test(2)] == [("t0", "0"), ("t1", "1")]
    assert made.accuracy(Problem("t1", "1"), answered("1.0")) == 1
    assert made.steps(Problem("t1", "1"), answered("1", "a;b;")) == []


def test_answers_that_are_texts(tmp_path: Path) -> None:
    """They may be long; U+2028 stands in JSON texts unescaped, where str.splitlines would cut."""
    long = "Paris, " * 20 + "France"
    rows = [
        {"prompt": "Capital of France?", "answer": f" {long} "},
        {"prompt": "Even\u2028or\x85odd?", "answer": "yes", "completion": "<answer>yes</answer>"},
        {"prompt": "A third?", "answer": 0.25, "completion": "x"},
    ]
    unescaped = json.dumps(rows[1], ensure_ascii=False)
    path = write(tmp_path / "a.jsonl", rows[0], "", unescaped, "   ", rows[2])
    problems = tasks.read_jsonl(path, tasks.problem_of)
    assert problems == [
        Problem("Capital of France?", long, "", (), f"{path}: line 1", rows[0]),
        Problem(
            "Even\u2028or\x85odd?", "yes", "<answer>yes</answer>", (), f"{path}: line 3", rows[1]
        ),
        Problem("A third?", "0.25", "x", (), f"{path}: line 5", rows[2]),
    ]
    made = JsonlTask("a", problems, problems)
    assert made.accuracy(problems[0], answered(long)) == 1
    assert made.accuracy(problems[0], answered(long.lower())) == 0
    assert made.vote(answered(long)) == long
    assert made.accuracy(problems[2], answered("0.250")) == 1


USER, OTHER, REPLY = (
    {"role": role, "content": text}
    for role, text in (("user", "1?"), ("user", "2?"), ("assistant", "<answer>1</answer>"))
)
SYSTEM = {"role": "system", "content": "Be brief."}
CHATS = [
    ({"prompt": "1?", "answer": ["1", "one"]}, ("1?", "1", "", ("one",))),
    ({"prompt": "1?", "answers": [1, 2]}, ("1?", "1", "", ("2",))),
    ({"prompt": "1?", "completion": "<answer>1</answer>"}, ("1?", "1", REPLY["content"], ())),
    ({"prompt": [USER], "completion": [REPLY]}, ("1?", "1", REPLY["content"], ())),
    ({"prompt": [SYSTEM, USER], "answer": 1}, (json.dumps([SYSTEM, USER]), "1", "", ())),
    ({"messages": [USER, REPLY]}, ("1?", "1", REPLY["content"], ())),
    ({"messages": [USER, REPLY, OTHER], "answer": 2},
     (json.dumps([USER, REPLY, OTHER]), "2", "", ())),
]  # fmt: skip
PREFERRED = [
    ({"prompt": "1?", "chosen": " x", "rejected": 3}, ("1?", "x", "3")),
    ({"prompt": [USER], "chosen": [REPLY], "rejected": "y"}, ("1?", REPLY["content"], "y")),
    ({"chosen": [USER, REPLY], "rejected": [USER, {**REPLY, "content": "y"}]},
     ("1?", REPLY["content"], "y")),
    ({"prompt": "1?", "ranked": [[REPLY], "y"]}, ("1?", REPLY["content"], "y")),
]  # fmt: skip


@pytest.mark.parametrize(("row", "expected"), CHATS + PREFERRED)
def test_rows_as_trl_s_data_sets_have_them(
    row: dict[str, Any], expected: tuple[Any, ...], tmp_path: Path
) -> None:
    path = write(tmp_path / "rows.jsonl", row)
    read: Any = tasks.read_preferences if (row, expected) in PREFERRED else None
    found = read(path) if read else tasks.read_jsonl(path, tasks.problem_of)
    rows = [(*expected, f"{path}: line 1", *(() if read else (row,)))]
    assert [tuple(x) for x in found] == rows


def test_any_of_several_right_answers_is_right() -> None:
    task, problem = JsonlTask("x", [], []), Problem("A half?", "1/2", also=("a half", "50%"))
    given = ("0.5", "a half", "50", "one half", "2")
    assert [task.accuracy(problem, answered(x)) for x in given] == [1, 1, 1, 0, 0]


BAD_ROWS = [
    ('{"prompt": "q", "answer": 1', "not JSON"),
    ("[" * 100_000, "not JSON"),
    ('{"prompt": "\\ud800", "answer": 1}', "not JSON"),  # half a character
    ('{"prompt": "q", "answer": ' + "9" * 5000 + "}", "not JSON"),
    ("[1, 2]", "must be an object, is a list"),
    ("null", "must be an object, is None"),
    ('{"answer": 1}', "has no prompt or question"),
    ('{"prompt": "q"}', "has no answer"),
    ('{"prompt": "q", "answer": ""}', "answer is empty"),
    ('{"prompt": " ", "answer": 1}', "prompt is empty"),
    ('{"question": "q", "answer": "so it is\\n####"}', "nothing after ####"),
    ('{"prompt": "q", "answer": null}', "has no answer"),
    ('{"prompt": "q", "answer": [[1]]}', "answer must be text or a number"),
    ('{"prompt": "q", "answer": []}', "has no answer"),
    ('{"prompt": "q", "answer": NaN}', "answer is nan, not a finite number"),
    ('{"prompt": "q", "answer": [1, -Infinity]}', "answer is -inf, not a finite number"),
    ('{"prompt": "q", "answer": 1e999}', "answer is inf, not a finite number"),
    ('{"prompt": "q", "completion": NaN}', "completion is nan, not a finite number"),
    ('{"prompt": 33, "answer": 1}', "prompt must be text, is an int"),
    ('{"question": 3.5, "answer": 1}', "question must be text, is a float"),
    ('{"prompt": NaN, "answer": 1}', "prompt must be text, is a float"),
    ('{"prompt": null, "answer": 1}', "prompt must be text, is None"),
    ('{"prompt": ["q"], "answer": 1}', "prompt: a message must have a role and a content"),
    ('{"prompt": "q", "answer": 1, "completion": ""}', "completion is empty"),
    (json.dumps({"messages": [REPLY]}), "has no message of the user before the completion"),
    (json.dumps({"prompt": "q", "completion": [USER]}), "must end with a message of the assistant"),
    (json.dumps({"prompt": "q", "completion": [USER, REPLY]}), "other messages than prompt"),
]


BAD_PREFERENCES = [
    ('{"chosen": "x", "rejected": "y"}', "has no prompt"),
    ('{"prompt": "a", "chosen": "x"}', "has no rejected"),
    ('{"prompt": 3, "chosen": "x", "rejected": "y"}', "prompt must be text, is an int"),
    ('{"prompt": "a", "chosen": "x", "rejected": NaN}', "rejected is nan, not a finite number"),
    ('{"prompt": "a", "rejected": "x"}', "has no chosen"),
    ('{"prompt": "a", "chosen": "x", "rejected": " x"}', "there is nothing to prefer"),
    *(
        (f'{{"prompt": "a", "ranked": {x}}}', "a list of two completions or more")
        for x in ('["x"]', '"xy"', "null")
    ),
]


@pytest.mark.parametrize(("row", "message"), BAD_ROWS + BAD_PREFERENCES)
def test_a_malformed_row_is_named_by_file_and_line(row: str, message: str, tmp_path: Path) -> None:
    good = {"prompt": "a", "answer": 1, "chosen": "x", "rejected": "y"}
    path = write(tmp_path / "rows.jsonl", good, "", row)
    preferences = (row, message) in BAD_PREFERENCES
    with pytest.raises(UsageError) as error:
        tasks.read_preferences(path) if preferences else tasks.make(str(path))
    assert str(error.value).startswith(f"{path}: line 3: ")
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_all_faults_of_a_file_are_told_at_once(tmp_path: Path) -> None:
    rows = [{"prompt": "a", "answer": 1}, *([{"prompt": "a"}] * 8), "?"]
    path = write(tmp_path / "rows.jsonl", *rows)
    with pytest.raises(UsageError) as error:
        tasks.make(str(path))
    said = str(error.value)
    assert said.startswith(f"{path}: line 2: has no answer")
    assert all(f", line {k}: has no answer" in said for k in (3, 4, 5, 6))
    assert said.endswith("; and 4 more")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("empty.jsonl", b"\n\n", "has no rows"),
        ("latin.jsonl", b'{"prompt": "caf\xe9", "answer": 1}\n', r"latin\.jsonl: line 1: not JSON"),
        ("missing.jsonl", None, "there is no such file"),
        ("", None, r"the folder has no train\.jsonl"),
    ],
)
def test_files_that_cannot_be_read(
    name: str, content: bytes | None, message: str, tmp_path: Path
) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(UsageError, match=message):
        tasks.make(str(tmp_path / name))


# ---- Hubs ----------------------------------------------------------------------------------


@pytest.fixture
def no_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    datasets = pytest.importorskip("datasets")
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    datasets.disable_progress_bars()


def as_on_the_hub(folder: Path, splits: dict[str, list[dict[str, Any]]]) -> str:
    """A data set as openai/gsm8k lies there: a folder for each configuration."""
    import pandas as pd

    (folder / "main").mkdir(parents=True)
    for split, rows in splits.items():
        pd.DataFrame(rows).to_parquet(folder / "main" / f"{split}-00000-of-00001.parquet")
    paths = "".join(
        f"  - split: {split}\n    path: main/{split}-*\n" for split in splits
    )  # fmt: skip
    card = f"---\nconfigs:\n- config_name: main\n  data_files:\n{paths}---\n"
    (folder / "README.md").write_text(card)
    return str(folder)


@pytest.mark.usefixtures("no_network")
def test_a_data_set_laid_out_as_on_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [json.loads(line) for line in GSM8K.read_text().splitlines()]
    name = as_on_the_hub(tmp_path / "gsm8k", {"train": rows[:6], "test": rows[6:]})
    monkeypatch.setitem(tasks.HUB, "gsm8k", (name, "main"))
    made = tasks.named.__wrapped__("gsm8k")
    assert isinstance(made, JsonlTask)
    assert [p.prompt for p in made.trained] == [row["question"] for row in rows[:6]]
    assert [p.answer for p in made.test(3)] == ["18", "350", "200"]
    assert made.id == "gsm8k"

    # A run of other rows is another run; whoever has no network has those of its copy.
    monkeypatch.setattr(tasks, "hub_content", tasks.hub_content.__wrapped__)
    contents = []
    for answer in ("#### 18", "#### 18", "#### 19"):
        rows[6]["answer"] = answer
        name = as_on_the_hub(
            tmp_path / f"gsm8k{len(contents)}", {"train": rows[:6], "test": rows[6:]}
        )
        made = tasks.from_hub("gsm8k", tasks.problem_of, name, "main")
        monkeypatch.setattr(tasks, "named", lambda *_, made=made, **options: made)
        contents.append(grpo.Config(task="gsm8k").contents())
    assert [*contents[0]] == ["task_content"]
    assert contents[0] == contents[1] != contents[2]


@pytest.mark.usefixtures("no_network")
def test_other_data_sets_of_a_hub(tmp_path: Path) -> None:
    """Without a test split, without one to train on, with a bad row, and unknown."""
    rows = [json.loads(line) for line in GSM8K.read_text().splitlines()]
    made = tasks.from_hub(
        "x", tasks.problem_of, as_on_the_hub(tmp_path / "x", {"train": rows}), "main"
    )
    assert len(made.trained) + len(made.tested) == 9
    assert made.tested
    with pytest.raises(UsageError, match=r"--task y: .* has no split train; it has validation"):
        tasks.from_hub(
            "y", tasks.problem_of, as_on_the_hub(tmp_path / "y", {"validation": rows}), "main"
        )
    bad = [{"question": "q", "answer": "1"}, {"question": "r", "answer": "so\n#### "}]
    with pytest.raises(UsageError, match="train: row 1: nothing after ####"):
        tasks.from_hub("z", tasks.problem_of, as_on_the_hub(tmp_path / "z", {"train": bad}), "main")
    with pytest.raises(UsageError, match=r"^--task nobody/nothing-at-all: .*$"):
        tasks.make("nobody/nothing-at-all")
