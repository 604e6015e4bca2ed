"""Results that somebody else has made: nothing in them is imported, trusted or shown as markup.

Every planted part is sealed: its checksums match.
"""

from __future__ import annotations

import copy
import io
import json
import re
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import wraps
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from manyseeds import plots
from manyseeds.algos import monte_carlo, policy_iteration, value_iteration
from manyseeds.benchmarks import compare, watch
from manyseeds.benchmarks.chapters import (
    environments,
    estimators,
    evidence,
    front_page,
    gradient_variance,
    interchange,
    language_claims,
    language_models,
    policy_gradients,
    speed,
)
from manyseeds.benchmarks.chapters.blocks import (
    Block,
    Cell,
    Lines,
    Link,
    Sides,
    Strong,
    Table,
    cells_of,
)
from manyseeds.benchmarks.chapters.environment_pages import page_name
from manyseeds.benchmarks.chapters.markdown import Writer, code, latex_table, write_files
from manyseeds.benchmarks.experiments import catalog
from manyseeds.benchmarks.store.results import Result, load_result
from manyseeds.benchmarks.store.stored import file_name, open_run
from manyseeds.benchmarks.store.whole import Store
from manyseeds.benchmarks.web import grpo
from manyseeds.benchmarks.web.html import Writer as HtmlWriter
from manyseeds.benchmarks.web.page import html
from manyseeds.cli import parse
from manyseeds.digest import ROOT, code_digest, module_file
from manyseeds.errors import UsageError, printable
from manyseeds.progress import print_table
from manyseeds.record import read_json, seal
from manyseeds.runs import planning, prediction, stale
from manyseeds.writing import csv_bytes, parquet_bytes, write_bytes, write_json
from tests.benchmarks.conftest import Output, Patch
from tests.benchmarks.test_report import (
    FINAL,
    around,
    check_links,
    front,
    generated,
    markup,
    plant,
    side,
    table,
    written,
)
from tests.benchmarks.test_watch import store

EVIL = "evil_module:Env-v0"
SCRIPT = '<script>alert("x")</script>'
NASTY = f"a | b {SCRIPT} [l](javascript:x) ![i](http://x) `c` \x1b[31m\x07\u202e\r\n# not a head"
DEEP, HUGE = "<<deep>>", "<<huge>>"  # stand for what `json` cannot write
WRONG = (None, "x", -1, HUGE, [], {}, True, DEEP, 10**400, [[["x"]]], 0.5, NASTY, "\ud800")


def encoded(content: Any) -> bytes:
    """As JSON, also what `json` cannot write."""
    text = json.dumps(content).replace(f'"{HUGE}"', "1e400")
    return text.replace(f'"{DEEP}"', "[" * 9999 + "]" * 9999).encode()


def rewrite(part: Path, file: str, change: Callable[[Any], Any]) -> None:
    """Change the content of a JSON file of a part, and seal it again."""
    write_bytes(part / file, encoded(change(read_json(part / file))))
    seal(part)


def named(env: str, **changes: Any) -> Callable[[Any], Any]:
    """A change of config.json: another environment, and more."""

    def change(config: Any) -> Any:
        return {**config, "env": env, "config": {**config["config"], "env": env}, **changes}

    return change


def known(summary: Any) -> Any:
    return {**summary, "threshold": 475.0, "digits": 1}


@pytest.fixture
def trap(tmp_path: Path, monkeypatch: Patch) -> Iterator[Path]:
    """Exists as soon as evil_module has been imported."""
    sprung = tmp_path / "sprung"
    (tmp_path / "evil_module.py").write_text(f"open({str(sprung)!r}, 'w').close()\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield sprung
    assert "evil_module" not in sys.modules
    assert not sprung.exists()


# ---- Names ----------------------------------------------------------------------------------


@pytest.mark.parametrize("algo", ["../../evil_module", "evil_module", "os", "__init__", SCRIPT])
def test_no_algorithm_is_imported_but_ours(algo: str, trap: Path) -> None:
    package: Any
    for package in ("algos", "llm_track"):
        with pytest.raises(UsageError):
            catalog.module(package, algo)
        assert catalog.plain_settings(package, algo, EVIL) == {}
    assert catalog.plain_settings("algos", "ppo", EVIL)["env"] == EVIL
    assert "ppo" in catalog.names("algos")
    assert set(catalog.names("llm_track")) == set(language_models.ORDER)


def test_report_and_compare_import_nothing_that_is_stored(
    tmp_path: Path, trap: Path, capsys: Output
) -> None:
    results = tmp_path / "results"
    named_by = ((EVIL, "ppo"), (EVIL, "evil_module"), (EVIL, "../../x"), ("Pong-v9", "dqn"))
    runs = []
    for i, (env, algo) in enumerate(named_by):
        runs.append(plant(results, "ppo", around(480.0), name=f"n{i}").path)
        rewrite(runs[i] / "seeds-000-009", "config.json", named(env, algo=algo))
        rewrite(runs[i] / "seeds-000-009", "summary.json", known)
    names = {r["algorithm"] for r in table(written(results, EVIL), "Scores")}
    assert names == {"PPO (not the preset)", "evil_module", "../../x"}
    (pong,) = table((results / page_name("Pong-v9")).read_text(), "Scores")
    assert pong["algorithm"] == "DQN (not the preset)"
    assert check_links(results) == generated(results)
    assert "left out" not in capsys.readouterr().out
    compare.main([*map(str, runs[:2]), "--out", str(tmp_path / "x.svg")])
    assert EVIL in capsys.readouterr().out


def test_watch_imports_a_module_only_when_told_to(
    tmp_path: Path, trap: Path, capsys: Output
) -> None:
    part = store(tmp_path / "results", "q_learning", "CartPole-v1", [0])
    inner = copy.deepcopy(read_json(part / "config.json"))
    for change in (named(EVIL), lambda _: {**inner, "config": {**inner["config"], "env": EVIL}}):
        rewrite(part, "config.json", change)
        for words in ([], ["--env", "evil_module:Other-v0"], ["--check"]):
            with pytest.raises(SystemExit, match="2"):
                watch.main([str(part), *words])
            assert capsys.readouterr().err.count("\n") == 1


def test_watch_plays_the_environment_of_a_module_that_is_trusted(
    tmp_path: Path, monkeypatch: Patch, capsys: Output
) -> None:
    env = "tests.benchmarks.hostile_env:Lake-v0"
    part = store(tmp_path, "q_learning", "FrozenLake-v1", [0])
    rewrite(part, "config.json", named(env))
    with pytest.raises(SystemExit, match="2"):
        watch.main([str(part)])
    assert f"add --env {env}" in capsys.readouterr().err
    watch.main([str(part), "--env", env])
    assert len(list((tmp_path / "watch").glob("*.gif"))) == 1


@pytest.mark.parametrize(
    "origin", ["/etc/passwd:x", "../x.py:y", "results/x:y", "algos/../x:y", "/dev/zero", ""]
)
def test_code_is_looked_up_in_our_rooms_only(origin: str) -> None:
    """Whatever a record says that its code is, no file outside of the checkout is read."""
    assert module_file(origin.partition(":")[0], ROOT) is None


def test_what_is_no_code_is_left_out(tmp_path: Path, monkeypatch: Patch, capsys: Output) -> None:
    """A file of the checkout that a record names is read, never run; it may be anything."""
    (tmp_path / "evil.py").write_text("def (:\n")
    monkeypatch.setattr(stale, "code_digest", lambda origins: code_digest(origins, tmp_path))
    stale.digest_today.cache_clear()
    plant(tmp_path / "results", "ppo", {0: 480.0, 1: 470.0}, name="good")
    bad = plant(tmp_path / "results", "ppo", {0: 480.0, 1: 470.0}, name="bad").path
    origin = {"digest": "0", "commit": "", "origins": ["evil:f"]}
    rewrite(bad / "seeds-000-001", "config.json", lambda config: {**config, "code": origin})
    _, (line,) = reported(tmp_path / "results", capsys)
    assert "SyntaxError" in line
    stale.digest_today.cache_clear()


# ---- Text -----------------------------------------------------------------------------------


def test_text_of_a_store_is_text() -> None:
    """In every format: test_blocks.py."""
    assert code("python x --y 'z'") == "`python x --y 'z'`"
    assert code("a ``b`") == "``` a ``b` ```"
    assert code("a|<b>") == "<code>a\\|\\<b\\></code>"
    assert code("") == ""
    assert printable("a\x1b[1m\tb\x00\u2028c") == "a[1m b c"
    assert str(UsageError("a\nb\x1b")) == "a b"


def test_file_names_stay_in_their_folder() -> None:
    assert file_name("CartPole-v1") == "CartPole-v1"
    assert file_name("FrozenLake8x8NotSlippery-v1-q_learning") == (
        "FrozenLake8x8NotSlippery-v1-q_learning"
    )
    odd = ["", ".", "..", "../../x", "a/b", "a\\b", "a:b", "a\x00b", "ä" * 300, "x" * 300, NASTY]
    names = [file_name(text) for text in odd]
    assert len(set(names)) == len(odd)
    for name in names:
        assert len(name) <= 80
        assert set(name) <= set("abcdefghijklmnopqrstuvwxyz0123456789.-"), name
        assert not name.startswith(".")


def test_tables_for_programs_and_for_papers_hold_text() -> None:
    rows: list[tuple[Cell, ...]] = [
        (Sides(Link("1", page="x"), "{b}_^~\\"), Lines(Strong("undecided"), "+0.1 50% & more")),
        ("=1+1", "-2.0"),
    ]
    text = cells_of(Table("", ("a", "b"), rows))
    assert text == [["1", "undecided; +0.1 50% & more"], ["{b}_^~\\", ""], ["=1+1", "-2.0"]]
    latex = latex_table(("a", "n"), [*text, ["[x]", "-"]]).splitlines()
    assert latex[1] == r"\begin{tabular}{lr}"
    assert [line for line in latex if line.endswith(r"\\")] == [
        r"a & n \\",
        r"1 & undecided; +0.1 50\% \& more \\",
        r"\{b\}\_\textasciicircum{}\textasciitilde{}\textbackslash{} &  \\",
        r"=1+1 & -2.0 \\",
        r"{[}x] & - \\",
    ]
    assert [latex[i] for i in (2, 4, 9)] == [r"\toprule", r"\midrule", r"\bottomrule"]


FORMULAS = (
    "=1+1",
    "@SUM(A1)",
    "+A1",
    "-cmd|' /C calc'!A0",
    "-1+A1",
    "-2 (=1)",
    "\t=1",
    "\r=1",
    "＝1",
)
HARMLESS = (
    *("-", "-2.0", "+1,234.5", "-1e-05", "-50%", "-2.93 (raw)", "-86.4 +- 1.3", "1 =2", ""),
    "-200.0 (all 30 seeds equal: at most 10% do otherwise)",
    *("+0.1 [-0.2, +0.3]", "-0.1 [-0.2, 0.3], p=0.71, n=30; next look at 60", "-175.4 to -125.9"),
)


def test_no_csv_has_a_formula() -> None:
    frame = pd.DataFrame({"text": [*FORMULAS, *HARMLESS], "=name": -1.5})
    read = pd.read_csv(io.BytesIO(csv_bytes(frame)), keep_default_na=False)
    assert read["text"].tolist() == [*(f"'{printable(text)}" for text in FORMULAS), *HARMLESS]
    assert set(read["'=name"]) == {-1.5}
    makes_csv = [
        path.name
        for room in ("manyseeds", "benchmarks", "llm_track")
        for path in (ROOT / room).rglob("*.py")
        if re.search(r"\.to_csv\(|csv\.writer\(", path.read_text())
    ]
    assert sorted(makes_csv) == ["merge.py", "writing.py"]  # the former compares them alone


def test_terminal_shows_no_markup_and_no_control(capsys: Output) -> None:
    print_table("[red]title[/red]\x1b[2J", ("[b]a[/b]",), [("[link=x]y[/link]\x1b]0;z\x07",)])
    out = capsys.readouterr().out
    assert "[red]title[/red][2J" in out
    assert "[link=x]y[/link]]0;z" in out
    assert "\x1b" not in out


@pytest.mark.slow
def test_hostile_text_is_shown_as_text(tmp_path: Path, trap: Path, capsys: Output) -> None:
    folder = plant(tmp_path, "ppo", around(480.0)).path
    part = folder / "seeds-000-009"
    plain = written(tmp_path)

    def nasty(config: Any) -> Any:
        changed = named(NASTY, algo=NASTY, command=NASTY, versions={NASTY: NASTY})(config)
        changed["config"][NASTY] = NASTY
        changed["machine"] = {"cpu": NASTY, "cores": 1, "system": NASTY}
        changed["code"] = {"digest": NASTY, "commit": NASTY, "origins": [NASTY]}
        changed["execution"]["device"] = NASTY
        return changed

    rewrite(part, "config.json", nasty)
    rewrite(part, "summary.json", known)
    odd = folder.parent / "x](y) <b> | \x1b[1m"
    folder.rename(odd)
    capsys.readouterr()
    page = written(tmp_path, NASTY)
    out = capsys.readouterr().out
    assert "left out" not in out
    assert "\x1b" not in out
    assert page.count("\n## ") == plain.count("\n## ") - 1  # its published score is not known
    for line in (line for line in markup(page).splitlines() if line.startswith("| ")):
        assert line.count("|") in (9, 10, 11), line  # bars of the tables with 8 to 10 columns
    for path in generated(tmp_path):
        page = path.read_text()
        assert "\x1b" not in page
        assert "<script" not in markup(page)
        for target in re.findall(r"\]\(([^)]*)\)", markup(page)):
            where = r"(#|(\.\./)?(runs|plots|tables|environments|[\w-]+\.md))[\w/%.#-]*"
            assert re.fullmatch(where, target), target
        assert not [line for line in page.splitlines() if line.startswith("# not")]
    assert check_links(tmp_path) == generated(tmp_path)
    assert not list(tmp_path.parent.glob("*.svg"))
    for path in (tmp_path / "tables").glob("*.tex"):
        assert "<script" not in path.read_text(), path
        assert path.read_text().count("\n\\") == 5  # tabular, its rules, its end

    other = plant(tmp_path / "b", "ppo", around(480.0)).path
    out = ["--out", str(tmp_path / "x.svg")]
    for main, words in ((compare.main, [str(other), str(odd), *out]), (watch.main, [str(odd)])):
        with pytest.raises(SystemExit, match="2"):
            main(words)
        error = capsys.readouterr().err
        assert error.count("\n") == 1
        assert "\x1b" not in error


# ---- Mutilated files --------------------------------------------------------------------------


def mutants(content: Any, limit: int = 1, depth: int = 3) -> Iterator[Any]:
    """Copies with one key missing, or one value replaced by something else; `limit` of each."""

    def places(node: Any, path: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
        inside = node.items() if isinstance(node, dict) else enumerate(node)
        for key, value in list(inside)[:9]:
            yield (*path, key)
            if isinstance(value, dict | list) and len(path) + 1 < depth:
                yield from places(value, (*path, key))

    def changed(path: tuple[Any, ...], change: Callable[[Any, Any], None]) -> Any:
        new = copy.deepcopy(content)
        node = new
        for key in path[:-1]:
            node = node[key]
        change(node, path[-1])
        return new

    yield from (None, [], "x", {}, [content], DEEP, HUGE)
    for i, path in enumerate(places(content, ())):
        yield changed(path, lambda node, key: node.pop(key))
        for k in range(limit):
            wrong = WRONG[(i * limit + k) % len(WRONG)]
            yield changed(path, lambda node, key, wrong=wrong: node.__setitem__(key, wrong))


def beside(run: Path, file: str, contents: Iterable[bytes]) -> list[Path]:
    """A run beside another one for each content of a file of its only part."""
    found = []
    for i, content in enumerate(contents):
        new = run.with_name(f"{run.name}-{file[:3]}{i:03d}")
        shutil.copytree(run, new)
        (part,) = (p for p in new.iterdir() if p.is_dir())
        write_bytes(part / file, content)
        seal(part)
        found.append(new)
    return found


def mutilated(run: Path, *files: str, depth: int = 3) -> list[Path]:
    """Runs beside another one, each with a mutant of a JSON file of its only part."""
    (part,) = (p for p in run.iterdir() if p.is_dir())
    found: list[Path] = []
    for file in files:
        contents = mutants(read_json(part / file), depth=depth)
        found += beside(run, file, map(encoded, contents))
    return found


def broken_tables(run: Path, file: str, subject: str) -> list[Path]:
    """Runs beside another one, each with something else in a parquet file of its only part."""
    (part,) = (p for p in run.iterdir() if p.is_dir())
    frame = pd.read_parquet(part / file)
    frames = [frame[:0], frame[:1]]
    for name in frame:
        frames += [frame.drop(columns=name), frame.assign(**{name: "x"})]
        if pd.api.types.is_numeric_dtype(frame[name]):
            frames += [frame.assign(**{name: np.inf}), frame.assign(**{name: -1})]
    frames.append(pd.concat([frame, frame.assign(**{subject: 1.0})]))
    return beside(run, file, [b"", b"PAR1", *map(parquet_bytes, frames)])


def reported(results: Path, capsys: Output) -> tuple[str, list[str]]:
    """All pages together, and the runs that were left out."""
    capsys.readouterr()
    front(results, "a test")
    page = "\n".join(path.read_text() for path in sorted(generated(results)))
    lines = capsys.readouterr().out.splitlines()
    assert "\x1b" not in "".join(lines)
    return page, [line for line in lines if line.startswith("left out: ")]


@pytest.mark.slow
def test_broken_control_runs(tmp_path: Path, capsys: Output, monkeypatch: Patch) -> None:
    run = plant(tmp_path, "ppo", dict.fromkeys(range(5), 480.0)).path
    sb3 = plant(tmp_path, "sb3-ppo", dict.fromkeys(range(5), 480.0)).path
    found = mutilated(run, "config.json", "summary.json")
    found += broken_tables(run, "curve.parquet", "return_mean")
    page, left_out = reported(tmp_path, capsys)
    rows = table((tmp_path / page_name("CartPole-v1")).read_text(), "Scores")
    (row,) = (r for r in rows if r["algorithm"].startswith("PPO<br>"))
    assert side(row, FINAL) == "480.0 [480.0, 480.0]"
    assert row["AUC against SB3"].startswith("none (needs 30 seeds")
    assert 0.4 * len(found) < len(left_out) < len(found)
    assert not any(f"{good}/" in line for line in left_out for good in (sb3, run))

    monkeypatch.setattr(plots, "learning_curves", lambda *_, **__: None)
    refused = 0
    for path in found:
        try:
            compare.compare([str(run), str(path)], tmp_path / "x.svg")
        except UsageError:
            refused += 1
    assert refused >= len(left_out)


def test_broken_runs_are_not_played(tmp_path: Path, capsys: Output) -> None:
    run = store(tmp_path, "q_learning", "FrozenLake-v1", [0, 1]).parent
    found = mutilated(run, "config.json", "summary.json")
    refused = 0
    for path in found:
        try:
            for trained in watch.load_trained(str(path), ""):
                env = trained.env
                watch.episode_returns(env, trained.act_natively, trained.seeds, 1)
        except UsageError:
            refused += 1
    assert refused > len(found) / 3


def test_weights_that_fit_nothing(tmp_path: Path, capsys: Output) -> None:
    import safetensors.torch
    import torch

    part = store(tmp_path, "q_learning", "FrozenLake-v1", [0, 1])
    tensors = ({"q": torch.zeros(2, 3, 1)}, {"q": torch.zeros(1)}, {"x": torch.zeros(2)}, {})
    for content in (b"", b"x" * 99, *map(safetensors.torch.save, tensors)):
        write_bytes(part / "policy.safetensors", content)
        seal(part)
        for words in ([], ["--check"]):
            with pytest.raises(SystemExit, match="2"):
                watch.main([str(part), *words, "--total-episodes", "20"])
            assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.slow
def test_broken_tabular_runs(tmp_path: Path, capsys: Output, monkeypatch: Patch) -> None:
    monkeypatch.chdir(tmp_path)
    results = tmp_path / "results"
    for module in (policy_iteration, value_iteration):
        config = parse(module.Config, module.PRESETS, "", ["--results", "results", "--quiet"])  # type: ignore[type-var]
        planning.main(config, module.solve, module.PRESETS)
    words = ["--results", "results", "--seeds", "3", "--total-episodes", "2", "--quiet"]
    words += ["--learning-rate", "0.1"]
    config = parse(monte_carlo.Config, monte_carlo.PRESETS, "", words)
    prediction.main(config, monte_carlo.train, monte_carlo.PRESETS)
    runs = [path for path in (results / "runs").glob("*/*/*") if path.is_dir()]
    plans = [run for run in runs if (run / "plan").is_dir()]
    (predicted,) = (run for run in runs if run not in plans)
    left: list[Path] = []
    for run in plans:
        left += mutilated(run, "config.json", "summary.json", "sweeps.json", depth=2)
    left += mutilated(predicted, "config.json", "summary.json")
    left += broken_tables(predicted, "values.parquet", "seed")
    left += broken_tables(predicted, "curve.parquet", "rms_error")
    page, lines = reported(results, capsys)
    assert "# Planning\n" in page
    assert "# Prediction\n" in page
    assert 0.3 * len(left) < len(lines)


def language_run(results: Path, algo: str = "grpo", model: str = "tiny") -> Path:
    """A run of a language model, made by hand."""
    origin = read_json(
        plant(results / "origin", "ppo", {0: 480.0}).path / "seeds-000-000/config.json"
    )
    shutil.rmtree(results / "origin")
    path = results / "runs" / "addition" / algo / "0123"
    part = path / "seeds-000-000"
    part.mkdir(parents=True)
    settings = catalog.plain_settings("llm_track", algo.removeprefix("trl-"), "addition")
    config = {**origin, "kind": "language", "algo": algo, "task": "addition", "seeds": [0]}
    write_json(part / "config.json", {**config, "config": {**settings, "model": model}})
    measures = {"pass@1": 0.5, "length": 9.0, "entropy": 0.2, "format": 1.0, "greedy": 0.4}
    measures |= {"truncated": 0.25}
    summary = {"seeds": [0], "headline": "pass@1", "initial": measures, "final": measures}
    summary |= {"samples": 64, "diverged": None}
    write_json(part / "summary.json", summary)
    rows = [{"seed": 0, "samples": n, **measures} for n in (0, 32, 64)]
    write_bytes(part / "curve.parquet", parquet_bytes(pd.DataFrame(rows)))
    said = [{"prompt": "1+1=", "completion": NASTY, "samples": n, "right": False} for n in (0, 64)]
    write_json(part / "transcripts.json", said)
    seal(part)
    return path


@pytest.mark.slow
@pytest.mark.parametrize("model", ["tiny", "mine"])
def test_broken_language_runs(model: str, tmp_path: Path, capsys: Output) -> None:
    """Of a model that was made here, and of another one, which has a page of its own."""
    run = language_run(tmp_path, model=model)
    found = mutilated(run, "config.json", "summary.json", "transcripts.json")
    found += broken_tables(run, "curve.parquet", "pass@1")
    page, left_out = reported(tmp_path, capsys)
    assert 0.3 * len(found) < len(left_out)
    assert "## Transcripts\n" in page
    assert "<script" not in markup(page)


def draw_once(monkeypatch: Patch) -> None:
    """Draw a figure whose data are those of an earlier one no second time: most mutants change
    what no figure shows, and drawing takes a hundred times as long as the rest of a section."""
    drawn: set[str] = set()

    def once(name: str, draw: Callable[..., None]) -> Callable[..., None]:
        @wraps(draw)
        def draw_new(path: Path, **data: Any) -> None:
            text = repr((name, data))
            assert "..." not in text  # nothing is abbreviated
            if text not in drawn:
                draw(path=path, **data)
                drawn.add(text)

        return draw_new

    for name in ("lines", "scores_by_value", "forest"):
        monkeypatch.setattr(plots, name, once(name, getattr(plots, name)))


def speed_and_front(store: Store, run: Result) -> list[Block]:
    return [*speed.page(store.results), *front_page.page([], store.results, "", [])]


def details(algo: str) -> Callable[[Store, Result], Iterable[Block]]:
    def section(store: Store, run: Result) -> Iterable[Block]:
        runs = {(algo, run.spec.id): {"rejax": run}}
        return interchange.details_section(algo, runs, store.results)

    return section


def grpo_pages(store: Store) -> str:
    page = "".join(html(each, [each]) for each in grpo.pages(store.results))
    assert NASTY not in page
    return re.sub(r"<script\b.*?</script>", "", page, flags=re.DOTALL)  # the site's own


# What shows each file of measurements, alone.
MEASURED: dict[str, Callable[[Store, Result], Iterable[Block]]] = {
    "throughput.json": speed_and_front,
    "critic_cost.json": lambda s, run: policy_gradients.critic_section([run], s.results),
    "llm_critic_cost.json": lambda s, run: language_models.critic_section([], s.results),
    "trl_speed.json": lambda s, run: language_models.trl_section([], s.results),
    "tables/check.json": lambda s, run: environments.page(s.results),
    "error_rates.json": lambda s, run: evidence.page([], [], s.results),
    "gradient_variance.json": lambda s, run: gradient_variance.page(s.results),
    "library_details_dqn.json": details("dqn"),
    "library_details_ppo.json": details("ppo"),
    "rows_speed.json": lambda s, run: speed.page(s.results),
    "llm_pipeline.json": lambda s, run: language_claims.pipeline_section([], s.results),
    "planted_errors.json": lambda s, run: language_claims.correction_section([], s.results),
    "llm_oracle.json": lambda s, run: estimators.page(s.results),
}
SLOW, GRPO = ("throughput.json",), "grpo_group.json"


@pytest.mark.parametrize(
    "name", [pytest.param(x, marks=[pytest.mark.slow] * (x in SLOW)) for x in (*MEASURED, GRPO)]
)
def test_broken_measurements(name: str, tmp_path: Path, capsys: Output, monkeypatch: Patch) -> None:
    content = read_json(ROOT / "results" / name)
    store = Store(tmp_path, [], [], [], [], [])
    draw_once(monkeypatch)
    if name == "gradient_variance.json":  # fewer: each of many mutants draws a figure of them
        kept = ("total_return", "return_to_go", "baseline")
        rows = [m for m in content["measurements"] if m["stage"] == "half" and m["seed"] < 2]
        content["measurements"] = [m for m in rows if m["weight"] in kept]
        content["seeds"] = 2
    limit = 1
    if name == "throughput.json":  # an algorithm beside SB3 and rejax, SB3 alone, and neither
        content = {algo: content[algo] for algo in ("ppo", "a2c", "q_learning")}
        limit = 2  # values at each place, as many in all as with six algorithms
    run = load_result(open_run(plant(tmp_path, "ppo", {0: 480.0})))
    for folder in ("tables", "plots"):
        (tmp_path / folder).mkdir()
    for i, mutant in enumerate(mutants(content, limit)):
        (tmp_path / name).write_bytes(encoded(mutant))
        if name == GRPO:
            page = grpo_pages(store)
        else:
            blocks = list(MEASURED[name](store, run))
            write_files(blocks, tmp_path)
            page = Writer(tmp_path, tmp_path).blocks(blocks)
            assert "<script" not in HtmlWriter({}).blocks(blocks), i
        assert "<script" not in markup(page), i
        page.encode()
    assert "left out: " in capsys.readouterr().out
