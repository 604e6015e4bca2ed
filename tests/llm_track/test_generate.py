"""Graded completions of a model: files, scores, and going on where it stopped."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import transformers

from manyseeds.digest import ROOT
from manyseeds.errors import UsageError
from manyseeds.llm_track import generate, models, sampling, tasks
from manyseeds.llm_track.generate import Config

ACCURACY = tasks.Addition.accuracy
SMALL = {"prompts": 7, "samples": 4, "batch_size": 8, "max_new_tokens": 12, "quiet": True}


@pytest.fixture(autouse=True)
def _even(monkeypatch: pytest.MonkeyPatch) -> None:
    """Right is what has an even number of characters: a random model is right now and then."""
    even = lambda self, problem, text: float(len(text) % 2 == 0)  # noqa: E731
    monkeypatch.setattr(tasks.Addition, "accuracy", even)


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_scores_are_those_of_the_rows(qwen: str, tmp_path: Path) -> None:
    """Of all of them, whichever are kept."""
    plain = Config(model=qwen, out=str(tmp_path / "all.jsonl"), **SMALL)  # type: ignore[arg-type]
    scores = generate.generate(plain)
    everything = rows(tmp_path / "all.jsonl")
    assert len(everything) == 7 * 4
    right = np.array([row["right"] for row in everything])
    assert 0 < right.mean() < 1
    assert scores["pass@1"] == pytest.approx(right.mean())
    assert scores["pass@4"] == pytest.approx(right.reshape(7, 4).any(1).mean())
    prompts = [p.prompt for p in tasks.make("addition").test(7)]
    assert [row["prompt"] for row in everything[::4]] == prompts
    assert all(row["right"] == (len(row["completion"]) % 2 == 0) for row in everything)
    for keep in ("right", "wrong"):
        path = tmp_path / f"{keep}.jsonl"
        found = generate.generate(replace(plain, keep=keep, out=str(path)))  # type: ignore[arg-type]
        assert rows(path) == [row for row in everything if row["right"] == (keep == "right")]
        assert found == scores
    path = tmp_path / "one.jsonl"
    generate.generate(replace(plain, keep="right", most=1, out=str(path)))
    kept = [row["prompt"] for row in rows(path)]
    assert len(set(kept)) == len(kept) > 0


def test_random_numbers_depend_on_seed_and_place() -> None:
    config = Config(samples=2)
    rows = generate.draws(config, range(3), 5)
    assert len(rows.unique(dim=0)) == 6
    assert rows[2:].equal(generate.draws(config, range(1, 3), 5))
    assert not rows.equal(generate.draws(replace(config, seed=1), range(3), 5))


def test_the_likeliest_completion(qwen: str) -> None:
    config = Config(model=qwen, greedy=True, **SMALL)  # type: ignore[arg-type]
    scores = generate.generate(config)
    assert set(scores) == {"greedy", "format", "length"}
    assert generate.generate(replace(config, seed=5)) == scores


@pytest.mark.parametrize("batches", [0, 2])
@pytest.mark.parametrize("torn", [b"", b'{"prompt": "1+'])
def test_goes_on_where_it_was_killed(
    qwen: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, torn: bytes, batches: int
) -> None:
    """Also where the file got a part of a batch that the state does not know of."""
    whole = Config(model=qwen, out=str(tmp_path / "whole.jsonl"), **SMALL)  # type: ignore[arg-type]
    scores = generate.generate(whole)
    path = tmp_path / "x.jsonl"
    config = replace(whole, out=str(path))

    real, calls = sampling.sample, iter(range(batches))

    def sample(*arguments: Any, **settings: Any) -> Any:
        if next(calls, None) is None:
            raise KeyboardInterrupt
        return real(*arguments, **settings)

    with monkeypatch.context() as patched:
        patched.setattr(sampling, "sample", sample)
        with pytest.raises(KeyboardInterrupt):
            generate.generate(config)
    assert (len(rows(path)) if batches else path.exists()) == batches * 8
    with path.open("ab") as file:
        file.write(torn)
    assert generate.generate(config) == scores
    assert path.read_bytes() == (tmp_path / "whole.jsonl").read_bytes()
    content = path.read_bytes() + b"mine\n"
    path.write_bytes(content)
    assert generate.generate(config) == scores  # finished: nothing is left to do
    assert path.read_bytes() == content


def test_bad_files_in_one_line(qwen: str, tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    config = Config(model=qwen, out=str(path), **{**SMALL, "prompts": 1})  # type: ignore[arg-type]
    path.write_text("mine\n")
    with pytest.raises(UsageError, match="exists already"):
        generate.generate(config)
    assert path.read_text() == "mine\n"
    path.unlink()
    generate.generate(config)
    other = str(tmp_path / "y.jsonl")
    (link := tmp_path / "link.jsonl").symlink_to("nowhere.jsonl")
    for changed, message in (
        ({"seed": 1}, "begun with other settings"),
        ({"out": str(tmp_path / "none/x.jsonl")}, "there is no folder"),
        ({"out": str(tmp_path)}, "is a link, or is not a file"),
        ({"out": str(link)}, "is a link, or is not a file"),
        ({"model": str(tmp_path), "out": other}, "--model"),
        ({"grader": "math-verify"}, "--grader math-verify: addition has rules of its own"),
        ({"prompts": 0, "out": ""}, "--prompts 0: addition has no end"),
    ):
        with pytest.raises(UsageError, match=message):
            generate.generate(replace(config, **changed))
    assert not list(tmp_path.glob("*y.jsonl*"))
    path.write_text("")
    with pytest.raises(UsageError, match=r"rows are gone; to start over, delete x\.jsonl\.state"):
        generate.generate(config)
    assert path.read_text() == ""
    state = json.loads((tmp_path / "x.jsonl.state.json").read_text())
    broken = [json.dumps({**state, **x}) for x in ({"right": None}, {"right": []}, {"bytes": -1})]
    for content in (*broken, "{"):
        (tmp_path / "x.jsonl.state.json").write_text(content)
        with pytest.raises(UsageError, match="is broken"):
            generate.generate(config)


HOLDER = """
import sys
from manyseeds.llm_track.generate import alone_on
with alone_on(sys.argv[1]):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_file_is_for_one_process(qwen: str, tmp_path: Path) -> None:
    """Also before its first rows: what is refused leaves nothing, and takes nothing away."""
    path = tmp_path / "x.jsonl"
    config = Config(model=qwen, out=str(path), **SMALL)  # type: ignore[arg-type]
    words = [sys.executable, "-c", HOLDER, str(path)]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(words, env={**os.environ, "PYTHONPATH": str(ROOT)}, **pipes) as holder:
        assert holder.stdout
        assert holder.stdout.readline() == b"held\n"
        for _ in range(2):
            with pytest.raises(UsageError, match="another process writes it"):
                generate.generate(config)
        assert [x.name for x in tmp_path.iterdir()] == [".x.jsonl.locks"]
        holder.communicate()
    generate.generate(config)
    assert sorted(x.name for x in tmp_path.iterdir()) == ["x.jsonl", "x.jsonl.state.json"]


def test_gsm8k_form_and_learning_from_what_was_kept(qwen: str, tmp_path: Path) -> None:
    data = tmp_path / "math.jsonl"
    lines = [
        {"question": f"What is {i} + 1?", "answer": f"It is so. #### {i + 1}"} for i in range(40)
    ]
    data.write_text("".join(json.dumps(line) + "\n" for line in lines))
    task = tasks.make(str(data))
    path = tmp_path / "x.jsonl"
    for split, count in (("test", len(task.test(99))), ("train", 40 - len(task.test(99)))):
        config = Config(model=qwen, task=str(data), split=split, prompts=0, samples=2, quiet=True)  # type: ignore[arg-type]
        generate.generate(replace(config, max_new_tokens=4, out=str(path)))
        written = rows(path)
        assert len(written) == 2 * count
        path.with_name("x.jsonl.state.json").unlink()
        if split == "test":
            path.unlink()
    written = [row for row in written if row["completion"].strip()]
    path.write_text("".join(json.dumps(row) + "\n" for row in written))
    learned = tasks.make(str(path))  # as sft.py --task x.jsonl reads it
    assert isinstance(learned, tasks.JsonlTask)
    found = {(p.prompt, p.answer, p.demonstration) for p in (*learned.trained, *learned.tested)}
    assert found == {(r["prompt"], r["answer"], r["completion"].strip()) for r in written}
    assert len(found) > 10


def test_a_template_that_opens_the_thinking(
    qwen: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scores count what the prompt opens, and the file has it: another template may not open it."""
    model, tokenizer = models.read(qwen, transformers.AutoModelForCausalLM, "--model")
    tokenizer.chat_template = (
        "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
        "{% if add_generation_prompt %}[assistant]<think>{% endif %}"
    )
    models.save(model, tokenizer, tmp_path / "thinker")
    read, real = [], sampling.sample

    def listen(model: Any, tokenizer: Any, prompts: Any, *rest: Any) -> Any:
        read.extend(tokenizer.batch_decode(prompts))
        assert rest[1:] == (0.7, False)  # temperature and greedy
        return real(model, tokenizer, prompts, *rest)

    problems = tasks.make("addition").test(3)
    inside = [f"7+5=12;</think><answer>{p.answer}</answer>" for p in problems]
    texts = [
        *(inside[0], f"<think>{inside[0]}"),  # right and in the format; right, and begun twice
        *(inside[1].replace("</think>", ""), "<answer>1</answer>"),  # right, never closed; wrong
        *("7;</think><answer>1</answer>", "7+5="),  # wrong and in the format; no answer
    ]
    monkeypatch.setattr(sampling, "sample", listen)
    monkeypatch.setattr(sampling, "decode", lambda tokenizer, samples: texts)
    monkeypatch.setattr(tasks.Addition, "accuracy", ACCURACY)
    path = tmp_path / "x.jsonl"
    config = Config(model=str(tmp_path / "thinker"), out=str(path), max_new_tokens=4, quiet=True)
    scores = generate.generate(replace(config, prompts=3, samples=2, temperature=0.7))
    assert read == [f"[user]{p.prompt}[assistant]<think>" for p in problems for _ in range(2)]
    written = rows(path)
    assert [row["completion"] for row in written] == [f"<think>{text}" for text in texts]
    assert [row["right"] for row in written] == [True, True, True, False, False, False]
    assert [row["format"] for row in written] == [True, False, False, False, True, False]
    assert scores["pass@1"] == pytest.approx(3 / 6)
    assert scores["pass@2"] == pytest.approx(2 / 3)
    assert scores["format"] == pytest.approx(2 / 6)
