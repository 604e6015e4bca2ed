"""How an answer is read, what the model is told, and tasks of a user's own."""

from __future__ import annotations

import re
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from manyseeds import digest, user_code
from manyseeds.cli import identity, parse
from manyseeds.errors import UsageError
from manyseeds.llm_track import generate, grpo, models, sampling, tasks
from manyseeds.record import RunFolder, is_finished, part_name
from manyseeds.runs.language_seeds import main
from tests.random_models import make_model

GSM8K = str(Path(__file__).parent / "data" / "gsm8k.jsonl")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The tiny model before any training."""
    return make_model("tiny", tmp_path_factory.mktemp("model") / "random")


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    for remembered in (digest.forget, user_code.load.cache_clear, user_code.run_file.cache_clear):
        remembered()  # another process would read it anew
    return path


# ---- Answers -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (r"so \boxed{12}.", "12"),
        (r"\boxed{1} or \boxed{ 2 }", "2"),
        (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"\boxed{\text{a {b} c}} }", r"\text{a {b} c}"),
        (r"\boxed{\{1, 2\}}", r"\{1, 2\}"),
        (r"\boxed{a \} b} c}", r"a \} b"),
        (r"\boxed{a \\} b}", r"a \\"),  # an escaped backslash, and the end
        (r"$\boxed{-1,234.5}$", "-1,234.5"),
        (r"\boxed{}", ""),
        (r"\boxed{1} then \boxed{2", None),  # it was cut off
        (r"\boxed{\frac{1}{2}", None),
        (r"\boxed 12", None),
        ("12", None),
        ("<answer>12</answer>", None),
        ("", None),
    ],
)
def test_boxed(text: str, answer: str | None) -> None:
    assert tasks.boxed_answer(text) == answer


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("The answer is 42.", "42"),
        ("first 3, then 4", "4"),
        ("3,4", "4"),
        ("It costs $1,234.50 in total", "$1,234.50"),
        ("1,234,567", "1,234,567"),
        ("1,2345", "2345"),  # no thousands
        ("x = -5", "-5"),
        ("-$5", "-$5"),
        ("7-5", "5"),
        ("f(2)-3", "3"),
        ("from 3 - 5", "5"),
        ("minus: -0.25!", "-0.25"),
        ("about .5", ".5"),
        ("18.", "18"),
        ("half is 1/2", "1/2"),
        (r"\dfrac{3}{4} of it", r"\dfrac{3}{4}"),
        ("20% of 50 is 10%", "10"),
        ("<answer>132</answer>", "132"),
        ("no number", None),
        ("", None),
        ("\u0663", None),  # no ASCII digit
    ],
)
def test_last_number(text: str, answer: str | None) -> None:
    assert tasks.last_number(text) == answer
    assert answer is None or tasks.number(answer) is not None


@pytest.mark.parametrize("read", [tasks.boxed_answer, tasks.last_number])
def test_long_texts_take_no_time(read: Any) -> None:
    start = time.perf_counter()
    for text in (r"\boxed{", "1,", "1,234,", "{", "9", "-", "1/", r"\frac{1}{", "\\"):
        read(text * 20_000)
    assert time.perf_counter() - start < 5


def test_a_data_set_with_other_answers() -> None:
    """Its accuracy, votes, format, instruction and demonstrations follow."""
    for answer, right, other in (
        ("boxed", r"So \boxed{7}", "<answer>7</answer>"),
        ("last", "So it is 7.", "seven"),
    ):
        made = tasks.make(GSM8K, answer=answer)
        assert isinstance(made, tasks.JsonlTask)
        problem = next(p for p in (*made.trained, *made.tested) if p.answer == "7")
        assert [made.accuracy(problem, text) for text in (right, other)] == [1, 0]
        assert [made.format(text) for text in (right, other)] == [1, 0]
        assert [made.vote(text) for text in (right, other)] == ["7", None]
        assert made.instruction == tasks.ANSWERS[answer].instruction
        assert made.grade(problem, problem.demonstration)[2:4] == (1, 1)
        assert "<answer>" not in problem.demonstration
    row = {"prompt": "1+1?", "completion": r"It is \boxed{2}"}
    assert tasks.problem_of(row, form=tasks.ANSWERS["boxed"]).answer == "2"
    with pytest.raises(UsageError, match="no completion with one that --answer can read"):
        tasks.problem_of({**row, "completion": "2"}, form=tasks.ANSWERS["boxed"])


def test_a_generated_task_with_other_answers() -> None:
    addition, countdown = tasks.make("addition", answer="last"), tasks.make("countdown")
    problem = tasks.Problem("47+85=", "132")
    assert addition.accuracy(problem, "7+5=12;132") == 1
    assert addition.accuracy(problem, "<answer>132</answer> or 133") == 0
    assert tasks.make("addition").accuracy(problem, "132") == 0  # the others are as they were
    boxed = countdown.but(read_answer=tasks.boxed_answer)
    assert boxed.accuracy(tasks.Problem("3 5 7 to 22:"), r"\boxed{3*5+7}") == 1


def test_instructions(model: str) -> None:
    """In the place of the one that data sets get, of none, and none at all; it is encoded."""
    config = grpo.Config(task=GSM8K, model=model)
    assert tasks.of(config).instruction == tasks.ANSWERS["tags"].instruction
    assert tasks.of(replace(config, instruction="Think.")).instruction == "Think."
    assert tasks.of(replace(config, instruction="")).instruction == ""
    assert tasks.of(replace(config, task="addition")).instruction == ""
    assert tasks.of(replace(config, task="addition", instruction="Add.")).instruction == "Add."
    _, tokenizer = models.looked_at(model, "--model")
    long = replace(config, instruction="1" * 300, max_new_tokens=8)
    with pytest.raises(UsageError, match="too long for --max-new-tokens 8"):
        models.task_of(long, models.looked_at(model, "--model")[0], tokenizer)
    rows = [
        sampling.encode_prompts(tokenizer, tasks.of(replace(config, instruction=x)), ["1"])[0]
        for x in ("", "3")
    ]
    assert len(rows[1]) > len(rows[0]) == 1
    words = ["--task", GSM8K, "--model", model, "--instruction", "Think."]
    assert parse(grpo.Config, {}, "", words).instruction == "Think."
    assert identity(replace(config, instruction=""))["instruction"] == ""


def test_an_answer_of_a_users_own(tmp_path: Path) -> None:
    text = "def f(completion):\n    return completion.partition('A: ')[2] or None\n"
    named = f"{write(tmp_path / 'mine.py', text)}:f"
    made = tasks.make(GSM8K, answer=named)
    problem = tasks.Problem("?", "7")
    assert [made.accuracy(problem, x) for x in ("A: 7", "7", "A: 8")] == [1, 0, 0]
    assert [made.format(x) for x in ("A: 8", "7")] == [1, 0]
    assert made.instruction == ""
    assert made is not tasks.make(GSM8K)
    # The file is read once for all of a run, and anew after an edit.
    config = grpo.Config(task=GSM8K, model="x", answer=named)
    before = digest.code_digest(config.origins())
    assert tasks.named(GSM8K, tasks.answer_format(named)) is tasks.named(
        GSM8K, tasks.answer_format(named)
    )
    write(tmp_path / "mine.py", text.replace("A: ", "B: "))
    assert tasks.of(config).accuracy(problem, "B: 7") == 1
    assert digest.code_digest(config.origins()) != before


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("Read it.", "Read it again."),  # a docstring and an annotation can be data
        ("text: str", "text: bytes"),
        ("return text", "return text[1:]"),
        ("Help.", "Help me."),
        ("return 1", "return 2"),
        ("# A comment.", ""),
    ],
)
def test_all_of_a_users_code_counts(old: str, new: str, tmp_path: Path) -> None:
    """Also behind a decorator that has the name of ours."""
    texts = {
        "my_helper.py": 'def help():\n    """Help."""\n',
        "mine.py": "import my_helper\nfrom my_marks import boundary\n\n# A comment.\n"
        '@boundary\ndef g():\n    return 1\n\ndef f(text: str):\n    """Read it."""\n'
        "    g()\n    return text\n",
        "my_marks.py": "def boundary(x):\n    return x\n",
    }
    found = []
    for edited in (False, True):
        for name, text in texts.items():
            write(tmp_path / name, text.replace(old, new) if edited else text)
        config = grpo.Config(task=GSM8K, model="x", answer=f"{tmp_path / 'mine.py'}:f")
        found.append(digest.code_digest(config.origins()))
    assert (found[0] == found[1]) == (old == "# A comment.")
    place = digest.Place(str(tmp_path / "mine.py"), "g")
    assert not digest.is_boundary(place, digest.ROOT)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("return 7", r"returned an int, not text or None, for the completion ''"),
        ("return completion[0]", r"with the completion '': IndexError: .* \(mine.py, line 2\)"),
        ("exit(1)", "with the completion '': SystemExit: 1"),
        ("raise GeneratorExit", "with the completion '': GeneratorExit"),
        ("return {}[completion]", "with the completion '': KeyError: ''"),
    ],
)
def test_a_faulty_answer_is_one_line(body: str, message: str, tmp_path: Path) -> None:
    named = f"{write(tmp_path / 'mine.py', f'def f(completion):{chr(10)}    {body}{chr(10)}')}:f"
    with pytest.raises(UsageError, match=f"^--answer {named}: {message}"):
        tasks.make("addition", answer=named)


@pytest.mark.usefixtures("few_samples")
def test_completions_are_generated_with_them(model: str, tmp_path: Path) -> None:
    """Scores of generate.py are those of training; a file of other answers is another one."""
    flags = {"model": model, "task": "addition", "prompts": 4, "samples": 2, "max_new_tokens": 6}
    plain, last = (generate.Config(**flags, answer=x) for x in ("tags", "last"))  # type: ignore[arg-type]
    assert not {"answer", "instruction"} & plain.identity().keys()
    assert last.identity()["answer"] == "last"
    assert generate.generate(last)["format"] > generate.generate(plain)["format"]


def test_a_file_of_completions_is_resumed_with_the_code_that_began_it(
    model: str, tmp_path: Path
) -> None:
    """And a generated task of a user's own has as many prompts as are asked for."""
    text = "def f(completion):\n    return completion or None\n"
    answer = f"{write(tmp_path / 'answer.py', text)}:f"
    config = generate.Config(
        model=model, task=f"{write(tmp_path / 'mine.py', DOUBLE)}:Double", answer=answer,
        prompts=2, samples=1, out=str(tmp_path / "out.jsonl"), quiet=True,
    )  # fmt: skip
    assert "own_code" not in generate.Config().identity()
    generate.generate(config)
    generate.generate(config)
    for name, edited in (
        ("answer.py", text.replace("or None", "or 'none'")),
        ("mine.py", DOUBLE.replace("2 * k)", "2 * k + 1)")),
    ):
        before = (tmp_path / name).read_text()
        write(tmp_path / name, edited)
        with pytest.raises(UsageError, match="was begun with other settings"):
            generate.generate(config)
        write(tmp_path / name, before)
    task = tasks.of(config.as_run())
    found = generate.problems_of(replace(config, split="train", prompts=400), task)
    assert len({p.prompt for p in found}) == 400
    with pytest.raises(UsageError, match=r"--prompts 0: .* has no end"):
        generate.problems_of(replace(config, prompts=0), task)


@pytest.mark.parametrize("value", [True, False, 1, 0.0, np.float32(1), np.bool_(True), np.int64(0)])
def test_an_accuracy_is_0_or_1(value: Any) -> None:
    """The format reward may be a part of a point."""

    class Own(tasks.Task):
        id = "own"
        given: Any = value

        def accuracy(self, problem: tasks.Problem, completion: str) -> float:
            return self.given  # type: ignore[no-any-return]

        def format(self, completion: str) -> float:
            return 0.5

    problem = tasks.Problem("1", "2")
    assert Own().grade(problem, "3")[2:4] == (float(value), 0.5)
    for odd in (0.5, np.float32(0.5), -1, 1 + 1e-6):
        with pytest.raises(UsageError, match=r"accuracy returned .*, not 0 or 1 .*, for '3'"):
            Own().but(given=odd).checked_accuracy(problem, "3")


def test_columns_may_be_arrays() -> None:
    first, second = (tasks.Problem("1", "2", columns={"x": np.arange(3)}) for _ in range(2))
    assert first == second
    assert not first != second  # noqa: SIM202
    assert len({first, second}) == 1
    assert first != first._replace(answer="3")


# ---- Tasks ---------------------------------------------------------------------------------

DOUBLE = """
from manyseeds.llm_track.tasks import GeneratedTask, Problem

class Double(GeneratedTask):
    id = "double"
    max_new_tokens = 6

    def draw(self, rng):
        k = int(rng.integers(1000))
        return Problem(f"{k}+{k}=", str(2 * k), columns={"half": k})
"""


COUNTED = """        self.n = getattr(self, 'n', 0) + 1
        1 / (self.n < 3000)
        return"""
TRAIN = "    def train(self, rng, n):\n        return {}\n\n    def draw"
ACCURACY = "    def accuracy(self, problem, text):\n        return {}\n\n    def draw"
GRADED = """    def accuracy(self, problem, text):
        return 1 / (text == '')

    def draw"""


@pytest.mark.usefixtures("few_samples", "eager")
def test_a_task_of_a_users_own(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is trained on, also with a reward that sees its columns; an edit makes its run stale."""
    write(tmp_path / "reward.py", "def f(half, **rest):\n    return [float(k % 7) for k in half]\n")
    config = grpo.Config(
        task=f"{write(tmp_path / 'mine.py', DOUBLE)}:Double", model=model, prompts=4, group_size=4,
        total_samples=16, answer="last", results=str(tmp_path / "res"), quiet=True, name="x",
        reward=(f"{tmp_path / 'reward.py'}:f",), evaluations=1,
    )  # fmt: skip
    made = tasks.of(config)
    assert [made.accuracy(tasks.Problem("4+4=", "8"), x) for x in ("8", "8.0", "9")] == [1, 1, 0]
    assert made.test(20) == made.test(20)
    held_out = {p.prompt for p in made.test(20)}
    assert held_out.isdisjoint(p.prompt for p in made.train(np.random.default_rng(0), 200))
    main(config, grpo.train, {})
    assert is_finished(RunFolder.of(config, "grpo").path / part_name([0]))
    assert "task_content" not in identity(config)
    capsys.readouterr()
    main(config, grpo.train, {})
    assert "Finished already" in capsys.readouterr().out
    write(tmp_path / "mine.py", DOUBLE.replace("2 * k)", "2 * k + 1)"))
    tasks.named.cache_clear()
    main(config, grpo.train, {})
    assert "seed 0 was trained by other code" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("class Double(GeneratedTask)", "class Double", "is a Double; extend manyseeds"),
        ("class Double(GeneratedTask):", "class Double(3):", "cannot be loaded: TypeError"),
        ("def draw(self, rng)", "def drew(self, rng)", "--task double: has no method draw"),
        ('id = "double"', "", "needs an id, a text"),
        ("max_new_tokens = 6", "", "needs max_new_tokens, a whole number of at least 1"),
        ("max_new_tokens = 6", "max_new_tokens = 0", "needs max_new_tokens, a whole number"),
        ("str(2 * k)", "2 * k", "draw returned a Problem whose answer is an int, not text$"),
        ('f"{k}+{k}="', "k", "draw returned a Problem whose prompt is an int, not text$"),
        ('f"{k}+{k}="', "''", "draw returned a Problem whose prompt is empty$"),
        ('{"half": k}', "[k]", "draw returned a Problem whose columns are a list, not a dict$"),
        ("columns={", "also={", "draw returned a Problem whose field also is not a tuple of texts"),
        ("return Problem(", "return str(k) or Problem(", "draw returned a str, not a Problem$"),
        ("return Problem(", "Problem(", "draw returned None, not a Problem$"),
        ("        return", "        if k % 7: return", "draw returned None, not a Problem$"),
        ("return Problem(", "raise GeneratorExit; Problem(", r"GeneratorExit \(mine.py, line 10\)"),
        ("rng.integers(1000)", "rng.integers(0)", r"ValueError: .* \(mine.py, line 9\)"),
        ("rng.integers(1000)", "1", "none of its prompts is"),
        (
            "    def draw",
            "    def __init__(self, n): ...\n    def draw",
            "without arguments: TypeError",
        ),
        ('id = "double"', 'id = "../../evil"', "its id '../../evil' is no plain name"),
        ('id = "double"', 'id = "addition"', "its id 'addition' belongs to a task of ours"),
        ("    def draw", TRAIN.format("[] "), "train returned no Problems$"),
        ("    def draw", TRAIN.format("3"), "train returned an int, not a list of Problems$"),
        ("    def draw", TRAIN.format("['3']"), "train returned a list with a str, not a Problem$"),
        (
            "    def draw",
            TRAIN.format("[Problem('3', 4)]"),
            "train returned a list with a Problem whose answer is an int, not text$",
        ),
        (
            "    def draw",
            TRAIN.replace("train(self, rng, n)", "test(self, n)").format(
                "[Problem('3', '6')] * 9 + [None]"
            ),
            "test returned a list with None, not a Problem$",
        ),
        ("    def draw", TRAIN.format("super().train(rng, 2)"), "train returned 2 problems, not "),
        (
            "    def draw",
            ACCURACY.format("None"),
            r"accuracy returned None, not 0 or 1 \(parts of a point are a --reward\), for",
        ),
        ("    def draw", ACCURACY.format("'1'"), "accuracy returned a str, not 0 or 1"),
        ("    def draw", ACCURACY.format("float('nan')"), "accuracy returned nan, not 0 or 1"),
        ("    def draw", ACCURACY.format("0.5"), "accuracy returned 0.5, not 0 or 1"),
        (
            "    def draw",
            ACCURACY.format("2"),
            "accuracy returned 2, not 0 or 1",
        ),
        (
            "    def draw",
            ACCURACY.replace("accuracy(self, problem, ", "format(self, ").format("-1"),
            "format returned -1, not a number from 0 to 1, for",
        ),
        (
            "    def draw",
            ACCURACY.replace("accuracy", "grade").format("1"),
            "has a method grade; give it accuracy and format instead",
        ),
    ],
)
def test_a_faulty_task_is_one_line(
    old: str, new: str, message: str, model: str, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    assert old in DOUBLE
    task = f"{write(tmp_path / 'mine.py', DOUBLE.replace(old, new))}:Double"
    config = grpo.Config(task=task, model=model, results=str(tmp_path / "res"), quiet=True)
    with pytest.raises(SystemExit, match="2"):
        main(config, grpo.train, {})
    error = capsys.readouterr().err
    assert error.startswith("error: --task ")
    assert error.count("\n") == 1
    assert re.search(message, error)
    assert not (tmp_path / "res").exists()


@pytest.mark.parametrize(
    ("old", "new", "line"),
    [  # while the data are looked at, and while completions are graded
        ("        return", COUNTED, 11),
        ("    def draw", GRADED, 9),
    ],
)  # fmt: skip
@pytest.mark.usefixtures("few_samples")
def test_a_task_that_fails_later_is_one_line(
    old: str, new: str, line: int, model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    task = f"{write(tmp_path / 'mine.py', DOUBLE.replace(old, new))}:Double"
    config = grpo.Config(task=task, model=model, results=str(tmp_path / "res"), quiet=True)
    with pytest.raises(SystemExit, match="2"):
        main(config, grpo.train, {})
    error = capsys.readouterr().err
    where = rf"\(mine.py, line {line}\)"
    assert re.fullmatch(rf"error: --task .*: ZeroDivisionError: .* {where}\n", error)


def test_without_an_answer_nothing_is_right() -> None:
    """An empty answer neither: a data set may have prompts alone, for a reward of one's own."""
    made, problem = tasks.make(GSM8K), tasks.problem_of({"prompt": "Hi"}, answered=False)
    assert (problem.answer, problem.answers) == ("", ())
    assert made.accuracy(problem, "<think></think><answer></answer>") == 0
    assert made.but(read_answer=tasks.boxed_answer).accuracy(problem, r"\boxed{}") == 0
