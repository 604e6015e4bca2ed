"""What `make site` writes, without a browser: bytes, numbers, stores of all sizes, bad input."""

from __future__ import annotations

import base64
import gzip
import html
import itertools
import json
import os
import re
import shutil
import signal
import sys
import time
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import pytest
from PIL import Image

from manyseeds import plots, writing
from manyseeds.benchmarks import website
from manyseeds.benchmarks.chapters import environment_pages
from manyseeds.benchmarks.chapters.blocks import Figure, cells_of
from manyseeds.benchmarks.chapters.differences import RULE
from manyseeds.benchmarks.chapters.front_page import outcome
from manyseeds.benchmarks.store import comparison
from manyseeds.benchmarks.store.whole import read_store
from manyseeds.benchmarks.web import environment, figures, films, overview
from manyseeds.benchmarks.web.page import HERE, Page, inline_json, packed, policy, templates
from manyseeds.errors import UsageError
from manyseeds.plots import Line
from manyseeds.record import read_json, seal
from manyseeds.writing import HOST, write_json
from tests.benchmarks.conftest import Output, Patch, Refusal
from tests.benchmarks.test_hostile_store import NASTY, SCRIPT, named, rewrite
from tests.benchmarks.test_report import around, plant
from tests.benchmarks.test_watch import store
from tests.benchmarks.web.conftest import plant_film, write

CARTPOLE = "environment-CartPole-v1.html"


def text_of(page: Path) -> str:
    """The text of a page, without tags."""
    plain = re.sub(r"<script.*?</script>|<[^>]*>", " ", page.read_text(), flags=re.DOTALL)
    return re.sub(r"\s+", " ", html.unescape(plain))


def data_of(page: Path, name: str = "page-data") -> Any:
    """The data inside a page."""
    found = re.search(rf'id="{name}">([\w+/=]+)<', page.read_text())
    assert found
    return json.loads(gzip.decompress(base64.b64decode(found[1])))


def test_same_store_gives_the_same_bytes(site: Path, tmp_path: Path) -> None:
    plant_film(tmp_path / "again")
    again = write(site.parent / "results", tmp_path / "again")
    files = sorted(path.relative_to(site) for path in site.rglob("*") if path.is_file())
    assert files == sorted(p.relative_to(again) for p in again.rglob("*") if p.is_file())
    for file in files:
        assert (again / file).read_bytes() == (site / file).read_bytes(), file


def test_numbers_are_those_of_the_report(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comparison, "SUITES", {"quick": comparison.SUITES["quick"]})
    store = read_store(site.parent / "results")
    here = [pair for pair in store.found if pair.env == "CartPole-v1"]
    text = text_of(site / CARTPOLE)
    for cell in (cell for row in cells_of(environment_pages.score_table(here)) for cell in row):
        for part in cell.split("; "):
            assert part in text
    assert outcome(store.found) in text_of(site / "results.html")
    for page in (CARTPOLE, "verdicts.html"):
        assert text_of(site / page).count(str(RULE[0]).strip()) == 1
    runs = {run["key"]: run for run in data_of(site / CARTPOLE)["runs"]}
    assert [*runs] == ["ppo", "sb3-ppo", "a2c", "reinforce"]
    assert [run["place"] for run in runs.values()] == [0, 0, 1, 5]
    ppo = here[0].ours
    assert ppo
    line = environment_pages.curve(ppo)
    np.testing.assert_allclose(runs["ppo"]["iqm"]["y"], line.y, rtol=1e-5)
    np.testing.assert_allclose(runs["ppo"]["iqm"]["high"], np.asarray(line.high), rtol=1e-5)
    assert runs["ppo"]["final"] == [f"{score:.1f}" for score in ppo.final]
    assert np.shape(runs["ppo"]["curves"]) == (30, 3)
    assert (runs["a2c"]["worst"], runs["a2c"]["diverged"]) == (3, {"3": 500})
    speeds, _ = overview.speeds(store)
    assert 0 < max(speed.width for speed in speeds) < 100  # the longest interval ends at 100


def test_every_page_has_a_description_of_its_own(site: Path) -> None:
    found = {}
    for path in site.glob("*.html"):
        (text,) = re.findall(r'<meta name="description" content="([^"]+)">', path.read_text())
        assert f'<meta property="og:description" content="{text}">' in path.read_text()
        assert text not in found, (path.name, found.get(text))
        found[text] = path.name


def test_figures_have_iqms_and_all_tied_actions() -> None:
    groups = {"line": {"0.1": np.array([0.0, 0.0, 0.0, 100.0])}}
    names = {"log_y": False, "xlabel": "", "ylabel": ""}
    (panel,) = figures.scores_by_value({"panels": {"x": groups}, **names})["panels"]
    assert panel["points"][0]["y"] == 0
    best = np.array([[True, True], [False, True]])
    board = plots.Board("x", np.zeros(2), np.array([0, 1]), np.zeros(2, bool), best)
    assert figures.board_json(board, "←→")["actions"] == ["←→", "→"]


# ---- Stores of all sizes ----------------------------------------------------------------------


def test_one_run_of_one_seed_or_none(tmp_path: Path, capsys: Output) -> None:
    """The store is not written to; broken parts are left out."""
    results = tmp_path / "results"
    out = write(results, tmp_path / "out")
    assert "no finished runs" in text_of(out / "results.html")
    assert "grpo.html" not in (out / "index.html").read_text()  # nothing of it is measured
    plant(results, "ppo", {0: 480.0})
    folder = plant(results, "a2c", around(450.0))
    rewrite(folder.path / "seeds-000-009", "summary.json", lambda s: {**s, "final": 1})
    capsys.readouterr()
    out = write(results, tmp_path / "out")
    (run,) = data_of(out / CARTPOLE)["runs"]
    assert run["key"] == "ppo"
    assert run["iqm"] == {"y": [20, 300, 480], "low": [None] * 3, "high": [None] * 3}
    assert (run["median"], run["worst"]) == (0, 0)
    assert [path.name for path in results.iterdir()] == ["runs"]
    assert "left out: " in capsys.readouterr().out


# ---- Stored text ------------------------------------------------------------------------------


def test_hostile_text_is_text(tmp_path: Path) -> None:
    results = tmp_path / "results"
    evil = "</script><script>alert(1)</script>"
    part = plant(results, "ppo", around(480.0)).path / "seeds-000-009"
    rewrite(part, "config.json", named(evil, command=f"{NASTY} {evil}", algo=SCRIPT))
    rewrite(part, "summary.json", lambda s: {**s, "threshold": 475.0, "digits": 1})
    out = write(results, tmp_path / "out")
    pages = sorted(out.glob("environment-*.html"))
    assert len(pages) == 1
    for page in (*pages, *(out / f"{name}.html" for name in ("index", "results", "environments"))):
        assert "<script>alert" not in page.read_text()
        assert "javascript:" not in re.sub(r">[^<]*<", "><", page.read_text())
        assert evil in text_of(page)
    assert f"#algorithms={quote(SCRIPT)}" in (out / "results.html").read_text()
    (run,) = data_of(pages[0])["runs"]
    assert evil in run["origins"][0]["command"]


def test_algorithms_of_a_page_have_colours_of_their_own() -> None:
    own = environment.places(["ppo", "a2c", "dqn"])
    assert own == {"ppo": 0, "a2c": 1, "dqn": 3}  # the same on all pages
    pendulum = ["ppo", "a2c", "trpo", "grpo", "reinforce", "sac", "td3", "ddpg"]
    places = list(environment.places(pendulum).values())
    assert sorted(places) == list(range(environment.COLOURS))
    many = environment.places([*pendulum, "dqn", "rainbow", "unknown"])
    assert len(set(many.values())) == len(many)  # another marker where a colour comes again
    sheet = (HERE / "static/site.css").read_text(encoding="utf-8")
    assert len(set(re.findall("--c([0-9]+):", sheet))) == environment.COLOURS


def test_json_cannot_end_its_element() -> None:
    assert "<" not in inline_json({"x": "</script>"})
    assert json.loads(inline_json({"x": "</script>"})) == {"x": "</script>"}
    assert re.fullmatch(r"[\w+/=]+", packed({"x": "</script>"}))
    assert base64.b64decode(packed([1]))[4:8] == bytes(4)  # no date


def test_inline_scripts_of_templates_run_alone() -> None:
    """Known by their digest in the policy; data inside them cannot end the element."""
    source = (
        "{% block main %}{{ title }}{% endblock %}"
        "{% block scripts %}<script>open({{ data | inline_json }});</script>{% endblock %}"
    )
    template = templates().from_string(source)
    found = policy(template, {"title": "<script>evil()</script>", "data": "</script>"})
    digest = base64.b64encode(sha256(b'open("\\u003c/script>");').digest()).decode()
    assert found.startswith(f"default-src 'none'; script-src 'self' file: 'sha256-{digest}';")
    assert found.count("sha256") == 1
    assert "sha256" not in policy(templates().get_template("front.html.j2"), {})


# ---- Figures ----------------------------------------------------------------------------------


def test_figures_are_data() -> None:
    panels = {"left": {"a": Line([0, 1], [2.0, np.nan], [1, 2], [3, 4], n=5)}}
    figure = Figure(
        "x", "", "lines", {"panels": panels, "xlabel": "steps", "ylabel": "", "first": ["b"]}
    )
    data = figures.figure_json(figure)
    assert data["kind"] == "lines"
    assert data["names"] == ["b", "a"]
    (line,) = data["panels"][0]["lines"]
    assert line == {"name": "a", "x": [0, 1], "y": [2, None], "low": [1, 2], "high": [3, 4], "n": 5}


def test_a_forest_has_its_words_and_leaves_out_no_row(tmp_path: Path) -> None:
    """Also of a difference that is none: both in the SVG and in the data of the site."""
    nan = float("nan")
    rows = [
        plots.Difference("PPO", 0.02, -0.01, 0.06, "undecided", "x.html", 60, 0.05),
        plots.Difference("A2C <b>", nan, nan, nan, "saturated"),
    ]
    figure: dict[str, Any] = {"panels": {"final": rows}, "xlabel": "difference"}
    plots.forest(path=tmp_path / "x.svg", **figure)
    svg = (tmp_path / "x.svg").read_text()
    for text in ("PPO", "A2C &lt;b&gt;", "undecided", "saturated", "final", "difference"):
        assert f">{text}</text>" in svg
    (panel,) = figures.forest(figure)["panels"]
    assert panel["rows"][0] == {
        "label": "PPO",
        "value": 0.02,
        "low": -0.01,
        "high": 0.06,
        "word": "undecided",
        "href": "x.html",
        "n": 60,
        "margin": 0.05,
    }
    assert panel["rows"][1]["value"] is None


def test_films_are_shown_where_there_are_any(tmp_path: Path) -> None:
    results, out = tmp_path / "results", tmp_path / "out"
    plant(results, "ppo", around(480.0))
    plant_film(out)
    write(results, out)
    (run,) = data_of(out / CARTPOLE)["runs"]
    assert run["films"] == {"worst": "films/CartPole-v1/ppo-worst.gif"}
    assert (out / run["films"]["worst"]).is_file()
    assert films.films_of("Pendulum-v1", "ppo", out / "films") == {}


def test_films_are_drawn_of_what_has_weights(tmp_path: Path, capsys: Output) -> None:
    """Of the median and the worst seed; the page names the same ones."""
    results, out = tmp_path / "results", tmp_path / "out"
    plant(results, "ppo", around(480.0))
    part = store(results, "q_learning", "FrozenLake-v1", [0, 1, 2])
    summary = read_json(part / "summary.json")
    summary["final"]["greedy"]["per_seed"] = {"0": 0.5, "1": 0.1, "2": 0.9}
    write_json(part / "summary.json", summary)
    seal(part)
    write(results, out, "--films")
    said = capsys.readouterr().out
    (without,) = [line for line in said.splitlines() if line.startswith("no film: ")]
    assert "no weights on this machine" in without
    (run,) = data_of(out / "environment-FrozenLake-v1.html")["runs"]
    assert (run["median"], run["worst"]) == (0, 1)
    for rank, seed in (("median", 0), ("worst", 1)):
        assert run["films"][rank] == f"films/FrozenLake-v1/q_learning-{rank}.gif"
        assert f"-{rank}.gif (" in said
        assert f"seed {seed}, reset(seed=0)" in said
        with Image.open(out / run["films"][rank]) as gif:
            assert gif.format == "GIF"
    before = (out / run["films"]["worst"]).read_bytes()
    write(results, out)  # they stay where they are not drawn anew
    assert (out / run["films"]["worst"]).read_bytes() == before


# ---- Files ------------------------------------------------------------------------------------


def test_vendored_files_are_what_they_say() -> None:
    listed = json.loads((HERE / "vendor" / "vendor.json").read_text())
    scripts = {path.name for path in (HERE / "vendor").glob("*.js")}
    assert {entry["file"] for entry in listed} == scripts
    for entry in listed:
        content = (HERE / "vendor" / entry["file"]).read_bytes()
        assert sha256(content).hexdigest() == entry["sha256"]
        assert f"v{entry['version']} ".encode() in content[:100]
        assert (HERE / "vendor" / entry["licence_file"]).is_file()


def test_folders_that_are_refused(tmp_path: Path, refusal: Refusal) -> None:
    """One with other files, a file, and results that are not there."""
    (tmp_path / "mine").write_text("x")
    (tmp_path / "results").mkdir()
    for out in (tmp_path, tmp_path / "mine"):
        error = refusal(website.main, "--results", tmp_path / "results", "--out", out)
        assert f"--out {out}" in error
    assert (tmp_path / "mine").read_text() == "x"
    error = refusal(website.main, "--results", tmp_path / "no", "--out", tmp_path / "out")
    assert f"--results {tmp_path / 'no'}: there is no such folder" in error
    assert not (tmp_path / "out").exists()


MUTATIONS = {"open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "ctypes.dlsym"}


def killed_at(event: int, action: Callable[[], object]) -> bool:
    """Do something in a process that SIGKILL ends before its file event of a number, if it has as
    many; whether it has."""
    process = os.fork()
    if process == 0:
        left = itertools.count(event, -1)

        def kill(name: str, arguments: object) -> None:
            if name in MUTATIONS and next(left) == 0:
                os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(kill)
        try:
            action()
        finally:
            os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == -signal.SIGKILL


def tree(folder: Path) -> dict[str, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


@pytest.fixture
def two_pages(monkeypatch: Patch) -> None:
    """Sites have two pages and nothing else, which is quick."""
    pages = [Page(f"{name}.html", name, "base.html.j2") for name in ("index", "other")]
    monkeypatch.setattr(website, "site_pages", lambda store, out: (pages, {}))
    monkeypatch.setattr(website, "read_store", lambda results: None)
    monkeypatch.setattr(website, "ASSETS", {})


@pytest.mark.usefixtures("two_pages")
def test_a_site_is_replaced_as_a_whole_whenever_it_is_killed(tmp_path: Path) -> None:
    out = tmp_path / "parent" / "out"
    for begin in ({}, {website.MARK: b"", "index.html": b"old", "films/x.gif": b"film"}):
        end = {website.MARK, "index.html", "other.html", *(begin.keys() & {"films/x.gif"})}
        for event in itertools.count():
            shutil.rmtree(out.parent, ignore_errors=True)
            for name, content in begin.items():
                (out / name).parent.mkdir(parents=True, exist_ok=True)
                (out / name).write_bytes(content)
            killed = killed_at(event, lambda: website.write_site(tmp_path, out))
            assert tree(out) == begin or {*tree(out)} == end, event
            website.write_site(tmp_path, out)
            assert {*tree(out)} == end
            assert os.listdir(out.parent) == ["out"]
            if not killed:
                break
        assert event > 10  # so many files are written and renamed


@pytest.mark.usefixtures("two_pages")
def test_a_site_without_an_exchange_of_names(tmp_path: Path, monkeypatch: Patch) -> None:
    """As on macOS: the former site is back where the new one cannot take its place."""
    monkeypatch.setattr(writing, "exchange", lambda one, other: False)
    out = tmp_path / "parent" / "out"
    website.write_site(tmp_path, out)
    (out / "index.html").write_text("old")
    before, rename = tree(out), os.rename

    def fail(source: Path, target: Path) -> None:
        if (target / website.MARK).exists() or target != out or source.suffix == ".former":
            return rename(source, target)
        raise OSError("no space")

    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", fail)
        with pytest.raises(OSError, match="no space"):
            website.write_site(tmp_path, out)
    assert tree(out) == before
    assert os.listdir(out.parent) == ["out"]
    website.write_site(tmp_path, out)
    assert tree(out) != before
    assert os.listdir(out.parent) == ["out"]


@pytest.mark.usefixtures("two_pages")
def test_what_other_processes_write_is_left_alone(tmp_path: Path) -> None:
    """For a day, if it is on another machine. And a link to the folder stays a link."""
    for place in (f"{HOST}.{os.getppid()}", "elsewhere.1", "x", f"{HOST}.x"):
        (tmp_path / f".out.{place}.partial").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "out")
    (tmp_path / "out").mkdir()
    before = {*os.listdir(tmp_path)}
    old = tmp_path / ".out.elsewhere.2.partial"
    old.mkdir()
    os.utime(old, times=(0, time.time() - 25 * 3600))
    website.write_site(tmp_path, tmp_path / "link")
    website.write_site(tmp_path, tmp_path / "link")
    assert {*os.listdir(tmp_path)} == before
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "out/index.html").is_file()


@pytest.mark.usefixtures("two_pages")
def test_a_folder_that_is_no_site_any_more_is_left_alone(
    tmp_path: Path, monkeypatch: Patch
) -> None:
    """Somebody has filled it while the films were drawn."""
    out = tmp_path / "out"

    def fill(store: object, folder: Path) -> None:
        out.mkdir()
        (out / "mine").touch()

    monkeypatch.setattr(films, "write_films", fill)
    with pytest.raises(UsageError, match="has files that are no site"):
        website.write_site(tmp_path, out, drawn=True)
    assert os.listdir(tmp_path) == ["out"]
    assert os.listdir(out) == ["mine"]


def test_a_part_with_text_that_is_no_unicode_is_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """JSON can write half a character; no page and no terminal can."""
    results = tmp_path / "results"
    plant(results, "ppo", around(480.0))
    part = plant(results, "a2c", around(480.0)).path / "seeds-000-009"
    rewrite(part, "config.json", lambda config: {**config, "algo": "\ud800"})
    out = write(results, tmp_path / "out")
    assert [run["key"] for run in data_of(out / CARTPOLE)["runs"]] == ["ppo"]
    assert f"left out: {part}/config.json: has invalid content" in capsys.readouterr().out
