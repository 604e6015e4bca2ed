"""A small store whose site all tests look at, and a browser."""

from __future__ import annotations

import copy
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from PIL import Image

from manyseeds.benchmarks import website
from manyseeds.benchmarks.store import comparison
from manyseeds.benchmarks.web import grpo
from manyseeds.benchmarks.web.page import HERE
from manyseeds.digest import ROOT
from manyseeds.record import RunFolder, copy_part, read_json
from manyseeds.writing import write_json
from tests.benchmarks.test_hostile_store import rewrite
from tests.benchmarks.test_report import around, plant

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

NAMES = ("chromium", "chromium-browser", "google-chrome")
PENDULUM = "Pendulum-v1"


HOSTILE = "<img src=x onerror=alert(1)></script><script>alert(2)</script>"

PUBLISHED = (  # runs of other kinds, and measurements
    "runs/addition/grpo/48b4da42",
    "runs/addition/dapo/53485cda",
    "runs/Gridworld-v0/policy_iteration",
    "runs/Gridworld-v0/value_iteration",
    "throughput.json",
    grpo.FILE,
)


def plant_store(results: Path) -> None:
    """PPO and SB3's PPO, A2C, and REINFORCE on two environments, ten seeds each; and PUBLISHED.

    The transcripts of a seed, and a group of the GRPO page, are HOSTILE.
    """
    for name in PUBLISHED:
        source, target = ROOT / "results" / name, results / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target)
        elif name.startswith("runs/"):  # which is packed
            for part in RunFolder(source).parts():
                target.mkdir(exist_ok=True)
                copy_part(part, target / part.name)
        else:
            shutil.copy(source, target)
    both = {"completion": HOSTILE, "prompt": HOSTILE}
    part = results / "runs/addition/grpo/48b4da42/seeds-000-000"
    rewrite(part, "transcripts.json", lambda rows: [{**row, **both} for row in rows])
    stored = read_json(results / grpo.FILE)
    group = copy.deepcopy(stored["groups"]["mixed"])
    group["prompt"] = group["answer"] = group["completions"][0]["tokens"][0] = HOSTILE
    stored["groups"][HOSTILE], stored["command"] = group, HOSTILE
    write_json(results / grpo.FILE, stored)
    plant(results, "ppo", around(490.0, 30), middle=250.0)
    plant(results, "sb3-ppo", around(480.0, 30), middle=200.0)
    plant(results, "a2c", around(450.0), diverged={3: 500})
    plant(results, "reinforce", around(300.0))
    plant(results, "ppo", around(-200.0), env=PENDULUM, middle=-600.0)
    plant(results, "reinforce", around(-1000.0), env=PENDULUM, middle=-1100.0)


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site of the small store."""
    folder = tmp_path_factory.mktemp("site")
    plant_store(folder / "results")
    out = folder / "out"
    plant_film(out)
    return write(folder / "results", out)


def plant_film(out: Path) -> None:
    """In a site that is not yet written: of the worst seed of PPO on CartPole."""
    film = out / "films" / "CartPole-v1" / "ppo-worst.gif"
    film.parent.mkdir(parents=True)
    (out / website.MARK).touch()
    Image.new("P", (60, 40)).save(film)


def write(results: Path, out: Path, *flags: str) -> Path:
    """The site of a store, with the quick suite alone as what should be there."""
    results.mkdir(exist_ok=True)
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(comparison, "SUITES", {"quick": comparison.SUITES["quick"]})
        website.main(["--results", str(results), "--out", str(out), *flags])
    return out


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """Chromium; tests that need it are skipped where there is none."""
    sync_api = pytest.importorskip("playwright.sync_api", reason="needs playwright (extra dev)")
    found = next(filter(None, map(shutil.which, NAMES)), None)
    if found is None:
        pytest.skip("needs a browser: make browser installs Debian's chromium")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def engine(browser: Browser, request: pytest.FixtureRequest) -> Page:
    """A blank page with the engine of the page that a module tests."""
    page = browser.new_page()
    name = request.path.stem.removeprefix("test_")
    page.add_script_tag(path=HERE / "static" / f"{name}_engine.js")
    return page
