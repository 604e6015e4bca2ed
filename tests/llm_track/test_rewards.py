"""A user's own rewards, answers and tasks: what they are given, what they may return, what a run
remembers of them."""

from __future__ import annotations

import json
import math
import re
import shlex
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import safetensors.torch
import torch

from manyseeds import digest, user_code
from manyseeds.cli import PUBLISHED, from_identity, identity, parse
from manyseeds.errors import UsageError
from manyseeds.llm_track import dapo, grpo, rewards, rlhf_ppo, rloo, tasks
from manyseeds.llm_track.tasks import Graded, Problem
from manyseeds.record import STALE, RunFolder, hash_of, is_finished, part_name
from manyseeds.runs import set_aside
from manyseeds.runs.checkpoints import CHECKPOINT
from manyseeds.runs.language_seeds import SeedsRun, main
from tests.random_models import make_model

TEXTS = ["", "ab", "\x1b[31mc" + "x" * 200]
PROBLEMS = [Problem(f"{k}+1=", str(k + 1)) for k in range(3)]
SMALL: dict[str, Any] = {"prompts": 4, "group_size": 4, "total_samples": 64, "max_new_tokens": 6}
SMALL |= {"evaluations": 1, "quiet": True, "checkpoint_interval": 1e-9, "learning_rate": 1e-2}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The tiny model before any training."""
    return make_model("tiny", tmp_path_factory.mktemp("model") / "random")


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    for remembered in (digest.forget, user_code.load.cache_clear, user_code.run_file.cache_clear):
        remembered()  # another process would read it anew
    return path


def function(tmp_path: Path, body: str, signature: str = "prompts, completions, **columns") -> str:
    """A reward function with this body, as `--reward` names it."""
    text = f"import math\n\n\ndef f({signature}):\n    {body}\n"
    return f"{write(tmp_path / 'mine.py', text)}:f"


def given(config: Any, texts: list[str] = TEXTS) -> list[Graded]:
    """Completions of a seed with what the functions of a run give them."""
    graded = [Graded(p, text, 0.0, 0.0) for p, text in zip(PROBLEMS, texts, strict=False)]
    return rewards.rewarded(graded, config)


def data(tmp_path: Path, **columns: Any) -> str:
    """A file of the user's own."""
    rows = [{"prompt": f"{k}+1=", "answer": k + 1, **columns} for k in range(40)]
    path = tmp_path / "sums.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def train(config: Any, name: Any = grpo) -> Path:
    """Train seed 0 as the command does; the part."""
    main(config, name.train, {})
    return RunFolder.of(config, name.__name__.rpartition(".")[2]).path / part_name([0])


def train_until_killed(config: Any, module: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Train as the command does, killed in the third step."""
    log, calls = SeedsRun.log, list[int]()

    def killed(self: SeedsRun, *rest: Any) -> None:
        calls.append(1)
        if len(calls) == 3:
            raise KeyError
        log(self, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(SeedsRun, "log", killed)
        with pytest.raises(KeyError):
            train(config, module)


# ---- What a function is given, and what it gives ---------------------------------------------


def test_weights_and_none_by_hand(tmp_path: Path) -> None:
    """None adds nothing, whatever the weight."""
    first = function(tmp_path / "a", "return [1.0, None, -2]")
    second = function(tmp_path / "b", "return [10.0, 20.0, None]")
    second = second.replace("mine.py", "other.py")
    (tmp_path / "b" / "mine.py").rename(tmp_path / "b" / "other.py")
    graded = given(grpo.Config(reward=(first, second), reward_weights=(1.0, 0.5)))
    assert [x.reward for x in graded] == [6.0, 10.0, -2.0]
    assert [[None if math.isnan(r) else r for r in x.own] for x in graded] == [
        [1.0, 10.0],
        [None, 20.0],
        [-2.0, None],
    ]
    assert [x.reward for x in given(grpo.Config(reward=(first, second)))] == [11.0, 20.0, -2.0]
    assert [x.reward for x in given(grpo.Config())] == [0.0, 0.0, 0.0]


@pytest.mark.parametrize("name", [grpo, dapo, rlhf_ppo])
def test_they_are_added_to_the_rules_or_replace_them(name: Any, tmp_path: Path) -> None:
    reward = function(tmp_path, "return [0.25] * len(completions)")
    rollout = SimpleNamespace(
        lengths=torch.ones(1, 1, dtype=torch.int64), tokens=torch.zeros(1, 1, 1)
    )
    settings: dict[str, Any] = {"format_weight": 0.5, "reward_weights": (2.0,)}
    of_rules = 1.5
    for rules in (True, False):
        config = name.Config(reward=(reward,), rules=rules, **settings)
        graded = [rewards.rewarded([Graded(PROBLEMS[0], "x", 1.0, 1.0)], config)]
        found = name.rewards_of(graded, rollout, None, config)
        assert found.tolist() == [[of_rules * rules + 0.5]]


def test_the_columns_of_the_data(tmp_path: Path) -> None:
    """A column that some row lacks is None there; a prompt of messages makes messages of the
    completion, as TRL's conversational data sets have it."""
    user = [{"role": "user", "content": "Hi"}]
    rows = [
        {"prompt": "1+1=", "answer": "so #### 2", "level": 3},
        {"question": "2+1=", "answer": [3, "three"]},
        {"prompt": user, "answer": 0, "level": 5, "completions": "shadowed"},
        {"messages": [*user, {"role": "assistant", "content": "<answer>7</answer>"}]},
    ]
    problems = [tasks.problem_of(row) for row in rows]
    assert len(set(problems)) == 4  # they can be keys
    replies = [[{"role": "assistant", "content": x}] for x in "cd"]
    assert rewards.arguments_of(problems, list("abcd")) == {
        "prompts": ["1+1=", "2+1=", user, user],
        "completions": ["a", "b", *replies],
        "answer": ["so #### 2", [3, "three"], 0, "7"],
        "level": [3, None, 5, None],
        "question": [None, "2+1=", None, None],
        "messages": [None, None, None, rows[3]["messages"]],
    }
    generated = tasks.make("addition").test(2)
    assert rewards.arguments_of(generated, ["a", "b"])["answer"] == ["139", "86"]


def test_what_a_function_may_return(tmp_path: Path) -> None:
    """Also numbers of NumPy and PyTorch, truth values, a tuple; and it may take what it needs."""
    for body, expected in (
        ("return [True, False, None]", [1, 0, 0]),
        ("return (1, 2, 3)", [1, 2, 3]),
        ("import numpy; return numpy.array([1.5, 2, 3])", [1.5, 2, 3]),
        ("import numpy; return [numpy.float32(1.5), numpy.int64(2), 3]", [1.5, 2, 3]),
        ("import torch; return torch.tensor([1.5, 2, 3])", [1.5, 2, 3]),
        ("import torch; return [torch.tensor(1.5), torch.tensor([2]), None]", [1.5, 2, 0]),
    ):
        config = grpo.Config(reward=(function(tmp_path, body),))
        assert [x.reward for x in given(config)] == expected, body
    reward = function(tmp_path, "return [float(x) for x in answer]", "answer, **rest")
    assert [x.reward for x in given(grpo.Config(reward=(reward,)))] == [1, 2, 3]


def test_no_function_changes_what_another_is_given(tmp_path: Path) -> None:
    text = "def g(completions, **rest):\n    completions.clear()\n    return [0] * 3\n"
    text += "def f(completions, **rest):\n    return [len(x) for x in completions]\n"
    path = write(tmp_path / "mine.py", text)
    graded = given(grpo.Config(reward=(f"{path}:g", f"{path}:f")))
    assert [x.reward for x in graded] == [len(x) for x in TEXTS]


def test_no_function_changes_the_rows(tmp_path: Path) -> None:
    """Neither their columns nor their messages, nor those of another completion."""
    body = "[x[0].update(content='') or y.append(1) for x, y in zip(prompts, level)];"
    body += " return [len(y) for y in level]"
    reward = function(tmp_path, body, "prompts, level, **columns")
    row = {"prompt": [{"role": "user", "content": "Hi"}], "answer": 0, "level": [1]}
    problem = tasks.problem_of(row)
    graded = [Graded(problem, text, 0.0, 0.0) for text in TEXTS]
    config = grpo.Config(reward=(reward,))
    assert [x.reward for x in rewards.rewarded(graded, config)] == [2, 2, 2]
    assert problem.columns["level"] == [1]
    assert problem.messages == [{"role": "user", "content": "Hi"}]


@pytest.mark.parametrize(("weight", "said"), [(10.0, "3e\\+39"), (-1e38, "-3e\\+76")])
def test_a_weighted_sum_beyond_float32_is_one_line(
    weight: float, said: str, tmp_path: Path
) -> None:
    config = grpo.Config(
        reward=(function(tmp_path, "return [0, 3e38, 0]"),), reward_weights=(weight,)
    )
    message = f"^--reward: the weighted sum is {said}, not finite in float32, for .* 'ab'"
    with pytest.raises(UsageError, match=message):
        given(config)


LONG = r"'\\x1b\[31mcx+ \.\.\. x+'"  # printable, and shortened
FAULTS = [
    ("raise ValueError('no')", r"with the completion '': ValueError: no \(mine.py, line 5\)"),
    ("return [1 / len(x) for x in completions]", r"the completion '': ZeroDivisionError: division"),
    ("return [x[0] != 'a' or x.foo for x in completions if x]", "the completion 'ab': Attribute"),
    ("return [1 / (len(x) < 9) for x in completions]", f"the completion {LONG}: ZeroDivision"),
    ("raise KeyError", "with the completion '': KeyError"),
    ("raise Exception('two\\nlines')", "with the completion '': Exception: two lines"),
    ("assert len(completions) < 2", "with 3 completions, of which the first is '': Assertion"),
    ("exit(3)", "with the completion '': SystemExit: 3"),
    ("raise GeneratorExit", "with the completion '': GeneratorExit"),
    ("f(prompts, completions)", "with the completion '': RecursionError: maximum recursion"),
    ("raise MemoryError", "with the completion '': MemoryError"),
    ("import no_such_module", "ModuleNotFoundError: No module named 'no_such_module'"),
    ("pass", "returned None, not a list of numbers"),
    ("return 1.0", "returned a float, not a list"),
    ("return '123'", "returned a str, not a list"),
    ("return {'a': 1, 'b': 2, 'c': 3}", "returned a dict, not a list"),
    ("return (1.0 for _ in completions)", "returned a generator, not a list"),
    ("yield 1.0", "returned a generator, not a list"),
    ("return []", "returned 0 rewards for 3 completions, of which the first is ''"),
    ("return [1.0]", "returned 1 reward for 3 completions"),
    ("return [1.0] * 4", "returned 4 rewards for 3 completions"),
    ("return ['a', 'b', 'c']", "returned a str, not a number or None for the completion ''"),
    ("return [1, '2', 3]", "returned a str, not a number or None for the completion 'ab'"),
    (
        "return [1, 2, [3]]",
        f"returned a list, not a number or None for the completion {LONG}",
    ),
    ("return [1j, 2, 3]", "returned a complex, not a number or None"),
    ("return [1, float('nan'), 3]", "returned nan, not finite in float32 for the completion 'ab'"),
    ("return [1, math.inf, 3]", "returned inf, not finite in float32 for the completion 'ab'"),
    ("return [1, -math.inf, 3]", "returned -inf, not finite in float32"),
    ("return [1e39, 0, 0]", "returned 1e\\+39, not finite in float32"),
    ("return [10 ** 400, 0, 0]", "returned a number, not finite in float32"),
    ("import numpy; return numpy.zeros((3, 1))", r"an ndarray of shape \[3, 1\], not a list of n"),
    ("import torch; return torch.zeros(3, 1)", r"returned a Tensor of shape \[3, 1\], not a list"),
    ("import torch; return torch.tensor([1, math.nan, 1])", "returned nan, not finite"),
    ("import numpy; return numpy.float32(1)", "returned a float32, not a list"),
    ("import numpy; return numpy.array(1)", r"returned an ndarray of shape \[\], not a list"),
    ("import torch; return torch.tensor(1.0)", r"returned a Tensor of shape \[\], not a list"),
    ("import torch; return [torch.ones(2)] * 3", r"returned a Tensor of shape \[2\], not a number"),
    ("return {1, 2, 3}", "returned a set, not a list"),
    ("return b'123'", "returned bytes, not a list"),
    ("raise type('Odd', (Exception,), {'__str__': lambda self: 1 / 0})", "completion '': Odd"),
    ("import decimal; return [decimal.Decimal(1)] * 3", "returned a Decimal, not a number"),
]


@pytest.mark.parametrize(("body", "message"), FAULTS)
def test_a_faulty_function_is_one_line(body: str, message: str, tmp_path: Path) -> None:
    """With the completion, where there is one."""
    reward = function(tmp_path, body)
    with pytest.raises(UsageError, match=f"^--reward {reward}: .*{message}") as error:
        given(grpo.Config(reward=(reward,)))
    assert str(error.value).isprintable()
    assert len(str(error.value)) < 300 + len(reward)


def test_an_interrupt_is_none_of_its_errors(tmp_path: Path) -> None:
    config = grpo.Config(reward=(function(tmp_path, "raise KeyboardInterrupt"),))
    with pytest.raises(KeyboardInterrupt):
        given(config)


def test_an_async_function_is_one_line(tmp_path: Path) -> None:
    path = write(tmp_path / "mine.py", "async def f(completions, **rest):\n    return [1, 1, 1]\n")
    with pytest.raises(UsageError, match="returned a coroutine, not a list"):
        given(grpo.Config(reward=(f"{path}:f",)))


@pytest.mark.parametrize(
    ("text", "named", "message"),
    [
        ("", "{}", "must be FILE.py:NAME"),
        ("", "{}:", "must be FILE.py:NAME"),
        ("", "{}:f.g", "must be FILE.py:NAME"),
        ("", "no{}:f", "there is no such file"),
        ("", "{}:f", "mine.py has no f"),
        ("def length(**rest): pass", "{}:lenght", "has no lenght; did you mean length?"),
        ("f = 3", "{}:f", "f is an int, not a function"),
        ("def f(:", "{}:f", r"cannot be loaded: SyntaxError: invalid syntax \(mine.py, line 1\)$"),
        ("x = 1 / 0", "{}:f", r"cannot be loaded: ZeroDivisionError.* \(mine.py, line 1\)"),
        ("import nowhere", "{}:f", "No module named 'nowhere'.*; install it, or put it beside"),
        ("exit()", "{}:f", "cannot be loaded: SystemExit"),
        ("raise GeneratorExit", "{}:f", "cannot be loaded: GeneratorExit"),
        ("\0", "{}:f", "cannot be loaded: "),
        ("def f(prompts): return []", "{}:f", "unexpected keyword argument 'completions'; it is"),
        ("def f(levels, **rest): return []", "{}:f", "missing a required .*'levels'; it is called"),
        ("def f(**rest): return [None] * 3", "{}:f", "returned 3 rewards for 4 completions"),
    ],
)  # fmt: skip
def test_a_faulty_file_is_one_line_before_anything_is_made(
    text: str, named: str, message: str, model: str, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    reward = named.format(write(tmp_path / "mine.py", text))
    results, task = str(tmp_path / "results"), data(tmp_path)
    flags = {"results": results, "model": model, "task": task, "reward": reward, "group-size": "4"}
    flags |= {"max-new-tokens": "6"}
    words = [word for name, x in flags.items() for word in (f"--{name}", x)]
    with pytest.raises(SystemExit, match="2"):
        train(parse(grpo.Config, {}, "", words))
    error = capsys.readouterr().err
    assert error.startswith("error: --reward ")
    assert re.search(message, error)
    assert error.count("\n") == 1
    assert not Path(results).exists()


def test_a_module_beside_the_file_comes_before_those_of_the_script(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where a function imports it later; two files never get each other's."""
    monkeypatch.setattr(sys, "path", [str(Path(rewards.__file__).parent), *sys.path])
    monkeypatch.setattr(user_code, "BESIDE", {})
    text = "def f(completions, **rest):\n    {}\n    return [VALUE] * len(completions)\n"
    for name, value, form in (
        ("a", 1, "from rlhf_ppo import VALUE\n" + text.format("pass")),
        ("b", 2, text.format("from dr_grpo import VALUE")),
        ("c", 3, text.format("from dr_grpo import VALUE")),
        ("d", 4, "import json\n" + text.format("VALUE = 4")),
    ):
        module = "rlhf_ppo" if name == "a" else "json" if name == "d" else "dr_grpo"
        write(tmp_path / name / f"{module}.py", f"VALUE = {value}\n")
        write(tmp_path / name / f"{name}.py", form)
    first, second, third, fourth = (f"{tmp_path}/{x}/{x}.py:f" for x in "abcd")
    try:
        assert [x.reward for x in given(grpo.Config(reward=(first, second)))] == [3, 3, 3]
        with pytest.raises(UsageError, match=f"dr_grpo beside it .* another module: {tmp_path}/b"):
            given(grpo.Config(reward=(third,)))
        with pytest.raises(UsageError, match="json beside it has the name of another module"):
            given(grpo.Config(reward=(fourth,)))
    finally:
        for name in ("rlhf_ppo", "dr_grpo"):
            sys.modules.pop(name, None)


def test_only_what_a_file_defines_is_proposed(tmp_path: Path) -> None:
    text = "from functools import partial\nimport re\ndef f(**rest): pass\n"
    path = write(tmp_path / "mine.py", text)
    with pytest.raises(UsageError, match="has no partia") as error:
        user_code.load(f"{path}:partia", "--reward")
    assert "partial" not in str(error.value)
    annotated = write(tmp_path / "annotated.py", "def f(x: int) -> None: pass\n")
    assert user_code.load(f"{annotated}:f", "--reward").__annotations__["x"] is int


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--no-rules", "--no-rules: then there must be a --reward or a --reward-model"),
        ("--reward x", "--reward x: must be FILE.py:NAME"),
        ("--reward", "--reward: needs a value"),
        ("--reward a.py:f b.py:f --reward-weights 1", "--reward-weights: must have one number for"),
        ("--reward-weights 1", "--reward-weights: must have one number for each, and has 1 for 0"),
        ("--reward a.py:f --reward-weights nan", "--reward-weights nan: must be a finite number"),
        ("--reward a.py:f b/a.py:f", "--reward: a.f is given twice; rename a file or a function"),
        ("--answer x", "--answer x: must be tags, boxed, last or FILE.py:function"),
        ("--answer last --task countdown", "--answer last: an answer of countdown is an express"),
        ("--instruction Think.", "--instruction: tiny reads none; it is for another --model"),
    ],
)
def test_flags_that_do_not_fit_are_one_line(
    flags: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        parse(grpo.Config, {}, "", shlex.split(flags))
    assert capsys.readouterr().err.startswith(f"error: {message}")


# ---- Runs ----------------------------------------------------------------------------------


LONGER = "return [len(x) / 10 for x in completions]"


@pytest.mark.usefixtures("few_samples", "eager")
def test_a_reward_from_another_folder_is_learned(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a module beside it and a data set without answers; evaluations measure it."""
    write(tmp_path / "elsewhere" / "beside_it.py", "SCALE = 10\n")
    text = "from beside_it import SCALE\ndef brief(completions, **columns):\n"
    text += "    return [-len(x) / SCALE for x in completions]\n"
    write(tmp_path / "elsewhere" / "my_rewards.py", text)
    path = tmp_path / "prompts.jsonl"
    path.write_text("".join(json.dumps({"prompt": f"{k}+1="}) + "\n" for k in range(40)))
    monkeypatch.chdir(tmp_path)
    config = grpo.Config(
        **{**SMALL, "total_samples": 640}, model=model, task="prompts.jsonl", results="res",
        reward=("elsewhere/my_rewards.py:brief",), rules=False,
    )  # fmt: skip
    part = train(config)
    metrics = pd.read_parquet(part / "metrics.parquet")
    assert np.allclose(metrics["reward"], metrics["reward/my_rewards.brief"], rtol=1e-6)
    assert metrics["reward"].iloc[-5:].mean() > metrics["reward"].iloc[:5].mean() + 0.1
    curve = pd.read_parquet(part / "curve.parquet")
    assert curve["reward"].iloc[-1] > curve["reward"].iloc[0] + 0.1
    assert (curve["pass@1"] == 0).all()
    assert json.loads((part / "summary.json").read_text())["headline"] == "reward"
    with pytest.raises(UsageError, match=r"prompts.jsonl: line 1: has no answer"):
        tasks.of(replace(config, rules=True))


@pytest.mark.usefixtures("few_samples", "eager")
def test_an_edited_reward_is_trained_anew(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also after an edit of the module beside it; not after one of a comment. Other settings of it
    are another run; those of before it was there keep their names."""
    text = "from beside import scale\ndef f(completions, **columns):\n"
    text += "    return [scale(x) for x in completions]  # %s\n"
    write(tmp_path / "beside.py", "def scale(x):\n    return len(x) / 10\n")
    reward = f"{write(tmp_path / 'mine.py', text % 'why')}:f"
    settings: dict[str, Any] = {**SMALL, "model": model, "results": str(tmp_path / "res")}
    config = grpo.Config(**settings | {"total_samples": 16}, reward=(reward,), name="mine")
    part = train(config)

    def again() -> str:
        train(config)
        return capsys.readouterr().out

    assert "Finished already" in again()
    write(tmp_path / "mine.py", text % "another reason")
    assert "Finished already" in again()
    write(tmp_path / "beside.py", "def scale(x):\n    return len(x) / 20\n")
    assert "seed 0 was trained by other code" in again()
    write(tmp_path / "mine.py", (text % "why").replace("scale(x)", "-scale(x)"))
    assert "seed 0 was trained by other code" in again()
    assert len([*(part.parent / STALE).iterdir()]) == 2

    plain = grpo.Config(**settings)
    assert not {"reward", "reward_weights", "answer", "instruction"} & identity(plain).keys()
    known = {*map(hash_of, map(identity, (plain, config, replace(config, reward_weights=(2.0,)))))}
    assert len(known) == 3
    with pytest.raises(UsageError, match=r"^--publish: .*mine.py:\* is not in this checkout"):
        set_aside.origins_of(replace(config, results=str(PUBLISHED)), [])


def test_a_stored_config_runs_no_code(tmp_path: Path) -> None:
    """Reading a store that somebody else has written."""
    path = write(tmp_path / "mine.py", "raise SystemExit\n")
    named = f"{path}:f"
    stored = {"task": named, "answer": named, "reward": [named], "model": "x"}
    for module in (grpo, dapo, rlhf_ppo):
        config = from_identity(module.Config, stored)
        assert config.reward == (named,)
        assert identity(config)["task"] == named


@pytest.mark.parametrize("module", [grpo, pytest.param(dapo, marks=pytest.mark.slow)])
@pytest.mark.usefixtures("few_samples", "eager")
def test_a_run_with_an_own_reward_goes_on_after_a_kill(
    module: Any, model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    reward = function(tmp_path, LONGER)
    config = module.Config(
        **SMALL | ({"overlong_cache": 0} if module is dapo else {}),
        model=model,
        results=str(tmp_path / "whole"),
        reward=(reward,),
        rules=False,
        seeds=2,
    )
    whole = train(config, module)
    config = replace(config, results=str(tmp_path / "broken"), quiet=False)
    train_until_killed(config, module, monkeypatch)
    assert not is_finished(
        RunFolder.of(config, module.__name__.rpartition(".")[2]).path / part_name([0])
    )
    capsys.readouterr()
    part = train(config, module)
    assert "going on from" in capsys.readouterr().out
    for seed in range(2):
        found, expected = (
            safetensors.torch.load_file(
                x.parent / part_name([seed]) / "model" / "model.safetensors"
            )
            for x in (part, whole)
        )
        assert all(torch.equal(found[key], expected[key]) for key in expected)
        columns = [
            pd.read_parquet(x.parent / part_name([seed]) / "metrics.parquet").drop(
                columns="learn_s"
            )
            for x in (part, whole)
        ]
        pd.testing.assert_frame_equal(*columns)


def test_an_edit_in_the_middle_of_a_run_is_for_the_next_one(tmp_path: Path) -> None:
    """What has begun goes on as its digest says."""
    config = grpo.Config(reward=(function(tmp_path, "return [1.0] * 3"),))
    assert [x.reward for x in given(config)] == [1, 1, 1]
    (tmp_path / "mine.py").write_text("def f(**columns):\n    return [2.0] * 3\n")
    assert [x.reward for x in given(config)] == [1, 1, 1]
    function(tmp_path, "return [3.0] * 3")
    assert [x.reward for x in given(config)] == [3, 3, 3]


@pytest.mark.usefixtures("few_samples", "eager")
def test_a_failure_in_the_middle_is_one_line_and_keeps_the_checkpoint(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    body = "calls.append(1); return [0.5 + 1 / (len(calls) < 9)] * len(completions)"
    path = function(tmp_path, body, "completions, calls=[], **columns")
    config = grpo.Config(**SMALL, model=model, results=str(tmp_path / "res"), reward=(path,))
    with pytest.raises(SystemExit, match="2"):
        train(config)
    error = capsys.readouterr().err
    assert re.fullmatch(r"error: --reward .*: with the completion .*: ZeroDivision.*\n", error)
    assert [*(tmp_path / "res").rglob(CHECKPOINT)]


@pytest.mark.parametrize(
    ("body", "size", "said"),
    [
        ("return [1.0] * len(completions)", 2, True),
        ("return [None] * len(completions)", 2, True),
        ("return [float(len(x) % 2) for x in completions]", 4, False),
    ],
)
@pytest.mark.usefixtures("few_samples", "eager")
def test_ten_steps_without_a_signal_are_told_once(
    body: str, size: int, said: bool, model: str, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    config = grpo.Config(
        **{**SMALL, "total_samples": 12 * 2 * size}, model=model, results=str(tmp_path),
        reward=(function(tmp_path, body),), rules=False,
    )  # fmt: skip
    train(replace(config, prompts=2, group_size=size, seeds=2))
    error = capsys.readouterr().err
    assert error.count("\n") == error.count("in the first 10 steps all rewards of") == said


@pytest.mark.usefixtures("few_samples", "eager")
@pytest.mark.parametrize("side", ["all", "right", "wrong"])
def test_wrong_samples_alone_need_no_right_ones(
    side: Any, model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The model of random weights is never right."""
    small = {**SMALL, "total_samples": 12 * 2 * 2, "prompts": 2, "group_size": 2}
    config = rloo.Config(**small, model=model, results=str(tmp_path), format_weight=0.0)
    train(replace(config, learn_from=side), rloo)
    printed = capsys.readouterr()
    assert ("in the first 10 steps" in printed.err) == (side != "wrong")
    assert ("none of the groups" in printed.out) == (side == "all")


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("return [1.0] * len(completions)", "none of the steps have a group of different rewards:"),
        ("return [sum(map(ord, x)) for x in completions]", "100% of the steps have a group of"),
    ],
)
@pytest.mark.usefixtures("few_samples", "eager")
def test_the_table_has_the_signal_of_rewards_without_rules(
    body: str, said: str, model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """Also of a training of three steps; not where a checkpoint had some of them."""
    config = grpo.Config(
        **{**SMALL, "total_samples": 3 * 8, "prompts": 2}, model=model, results=str(tmp_path),
        reward=(function(tmp_path, body),), rules=False, seeds=2,
    )  # fmt: skip
    train(config)
    assert said in " ".join(capsys.readouterr().out.replace("│", " ").split())
    config = replace(config, first_seed=2)
    train_until_killed(config, grpo, monkeypatch)
    train(config)
    assert "group of different rewards" not in " ".join(capsys.readouterr().out.split())


def test_seeds_without_a_signal_are_named_once(capsys: pytest.CaptureFixture[str]) -> None:
    """Of seeds 4 to 7 one has a signal at once, one in time, and one has drawn all its samples."""
    run = SeedsRun(grpo.Config(quiet=True), [4, 5, 6, 7])
    note = "all equal: {}".format

    def tell(*found: bool) -> str:
        run.look_for_signal(torch.tensor(found), lambda seeds: note(seeds.tolist()))
        return capsys.readouterr().err

    assert not any([tell(step == 0, False, step == 3, False) for step in range(5)])
    run.runs[3].samples = run.config.total_samples
    assert not any([tell(False, False, False, False) for step in range(4)])
    assert tell(*[False] * 4) == "note: seed 5: in the first 10 steps all equal: [1]\n"
    assert not any([tell(*[False] * 4) for step in range(12)])


@pytest.mark.usefixtures("few_samples", "eager")
def test_the_first_steps_are_not_those_after_a_checkpoint(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    config = grpo.Config(
        **{**SMALL, "prompts": 2, "group_size": 2, "total_samples": 14 * 4, "quiet": False},
        model=model, results=str(tmp_path), rules=False,
        reward=(function(tmp_path, "return [1.0] * len(completions)"),),
    )  # fmt: skip
    train_until_killed(config, grpo, monkeypatch)
    train(config)
    printed = capsys.readouterr()
    assert "going on from" in printed.out
    assert "in the first 10 steps" not in printed.err


@pytest.mark.parametrize(
    ("body", "rules", "drawn"),
    [
        ("return [sum(map(ord, x)) for x in completions]", False, [16, 16, 16, 16]),
        ("return [sum(map(ord, x)) for x in completions]", True, [32, 32]),
        ("return [1.0] * len(completions)", False, [32, 32]),
    ],
)
@pytest.mark.usefixtures("few_samples")
def test_dapo_samples_until_rewards_differ(
    body: str, rules: bool, drawn: list[int], model: str, tmp_path: Path
) -> None:
    """Where there are no rules; with them until some are right and others wrong."""
    config = dapo.Config(
        **SMALL, model=model, reward=(function(tmp_path, body),), rules=rules, max_draws=2
    )
    run = SeedsRun(config, [0])
    dapo.train(config, run)
    assert run.runs[0].metrics()["drawn"].tolist() == drawn
