"""The site in a real browser, without a network."""

from __future__ import annotations

import itertools
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from manyseeds.benchmarks import website
from manyseeds.digest import ROOT
from tests.benchmarks.web.conftest import HOSTILE, PENDULUM

CARTPOLE = "environment-CartPole-v1.html"
AXE = ROOT / "build/axe/node_modules/axe-core/axe.min.js"
PAPER = 703  # pixels between the margins of A4


@contextmanager
def opened(
    browser: Any, site: Path, file: str, width: int = 1280, scheme: str = "light", **options: Any
) -> Iterator[Any]:
    """A page of the site; at the end there must have been no error, dialog or request."""
    context = browser.new_context(
        viewport={"width": width, "height": 900}, color_scheme=scheme, offline=True, **options
    )
    wrong: list[str] = []
    page = context.new_page()
    page.set_default_timeout(120_000)  # of a busy machine
    page.on("console", lambda message: wrong.append(f"{message.type}: {message.text}"))
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("dialog", lambda dialog: (wrong.append("dialog"), dialog.dismiss()))
    page.on("request", lambda r: wrong.append(r.url) if r.url.startswith("http") else None)
    name, _, state = file.partition("#")
    page.goto(f"{(site / name).as_uri()}{'#' * bool(state)}{state}")
    yield page
    context.close()
    assert not wrong


def curves(page: Any) -> int:
    """How many lines the chart of an environment has."""
    return int(page.locator("#curves .curve path").count())


def state(page: Any) -> str:
    return str(page.evaluate("location.hash"))


def all_pages(site: Path) -> list[str]:
    """And those with settings in other states."""
    states = ["tab=learn&episodes=20", "large=yes&size=10"]
    return [
        *sorted(path.name for path in site.glob("*.html")),
        *(f"gridworld.html#{state}" for state in states),
        "grpo.html#method=ppo&group=all+wrong",
    ]


def scroll_through(page: Any) -> None:
    """Charts are drawn when they come into view, in opened folds, and make the page longer."""
    page.evaluate("document.querySelectorAll('main details').forEach((x) => (x.open = true))")
    y = 0
    while y < page.evaluate("document.documentElement.scrollHeight"):
        page.evaluate(f"scrollTo(0, {y})")
        page.wait_for_timeout(30)
        y += 500


# Layout depends on the width, contrast on the scheme.
@pytest.mark.slow
@pytest.mark.parametrize(
    ("width", "scheme"), [(390, "dark"), (768, "light"), (1280, "dark"), (1600, "light")]
)
def test_every_page(browser: Any, site: Path, width: int, scheme: str) -> None:
    """Its layout, and that axe-core has no serious finding."""
    files, found = all_pages(site), []
    assert {"index.html", "environments.html", CARTPOLE, "verdicts.html"} <= {*files}
    for file in files:
        with opened(browser, site, file, width, scheme) as page:
            assert page.locator("h1").count() == 1, file
            scroll_through(page)
            assert page.locator("[data-chart]:not(:has(svg, table))").count() == 0, file
            wide = page.evaluate("document.documentElement.scrollWidth")
            assert wide <= width, f"{file} scrolls sideways: {wide}"
            for board in page.locator(".grid:visible").all()[:1]:
                box = board.bounding_box()
                assert min(box["width"], box["height"]) > 300
            if AXE.exists():
                page.evaluate(AXE.read_text())
                wrong = page.evaluate("axe.run({ resultTypes: ['violations'], preload: false })")
                for rule in wrong["violations"]:
                    if rule["impact"] in ("serious", "critical"):
                        found += [f"{file}: {rule['id']}: {x['html']}" for x in rule["nodes"]]
    assert not found, "\n".join(found)
    if not AXE.exists():
        pytest.skip("accessibility was not tested: make axe; the layout was")


def test_links_lead_somewhere(site: Path) -> None:
    check_links(site)


def check_links(site: Path, whole: bool = False) -> None:
    """whole: of all results; in others the documents link to sections that are not there."""
    for path in site.glob("*.html"):
        text = path.read_text()
        for link in re.findall(r'(?:href|src)="([^"]*)"', text):
            file, _, anchor = link.partition("#")
            if file == "data:," or file.startswith("https://"):
                continue
            target = site / file if file else path
            assert target.is_file(), f"{path.name}: {link}"
            own = not file or 'class="docs"' not in text
            if anchor and "=" not in anchor and (own or whole):
                assert f'id="{anchor}"' in target.read_text(), f"{path.name}: {link}"


def test_front_page(browser: Any, site: Path) -> None:
    """What this is, two commands to copy, a curve, the verdicts, and where to go on."""
    with opened(browser, site, "index.html") as page:
        assert "one readable file each" in page.locator(".lead").inner_text()
        commands = page.locator(".command").all()
        assert [c.locator("code").inner_text() for c in commands] == [
            "make install",
            ".venv/bin/python algos/ppo.py --env CartPole-v1",
        ]
        commands[1].get_by_text("Copy").click()
        commands[1].get_by_text("Copied").wait_for()
        assert "PPO on Pendulum-v1" in page.locator(".shown h2").inner_text()
        page.locator(".shown .panel svg").first.wait_for()
        assert page.locator(".forest li").all_inner_texts() == ["CartPole-v1\nbetter"]
        assert "Pendulum-v1\nPPO" in page.locator(".best").inner_text()
        for group, name in (("Learn", "GRPO"), ("Results", "Speed"), ("Use", "Your own algorithm")):
            page.locator("nav summary", has_text=group).click()
            assert page.locator("nav details[open]").count() == 1
            assert page.locator("nav details[open]").get_by_text(name, exact=True).is_visible()


def test_results_answer(browser: Any, site: Path) -> None:
    with opened(browser, site, "results.html") as page:
        matrix = page.locator(".matrix").first
        rows = [row.inner_text().split() for row in matrix.locator("tbody tr").all()]
        assert rows[0][:3] == ["PPO", "0.98", "▲"]
        assert [row[0] for row in rows] == ["PPO", "A2C", "REINFORCE", "Best"]
        assert "better" in matrix.inner_text()
        matrix.locator("tbody tr", has_text="PPO").locator("td a").nth(1).click()
        assert page.locator("h1").inner_text() == PENDULUM
        page.locator("#curves svg").wait_for()
        assert state(page) == "#algorithms=ppo"
        assert curves(page) == 1


def test_switches(browser: Any, site: Path) -> None:
    with opened(browser, site, CARTPOLE) as page:
        page.locator("#curves svg").wait_for()
        assert curves(page) == 3  # PPO, A2C, REINFORCE
        page.get_by_label("SB3 (dashed)").check()
        assert curves(page) == 4
        page.get_by_label("all seeds").check()
        assert curves(page) == 80
        page.get_by_label("REINFORCE").uncheck()
        assert curves(page) == 70
        page.get_by_label("median").check()
        assert "no interval" in page.locator("#about").inner_text()
        assert curves(page) == 3
        page.get_by_label("normalised score").check()
        assert "normalised score" in page.locator("#curves svg").text_content()
        page.get_by_label("cut at the common budget").check()
        assert "100k" in page.locator("#curves svg").text_content()  # PPO's; A2C has 500k
        assert "500k" not in page.locator("#curves svg").text_content()
        expected = "#algorithms=ppo,a2c&sb3=1&common=1&normalised=1&show=median"
        assert state(page) == expected


def test_early_learning_has_a_chart_of_its_own(browser: Any, site: Path) -> None:
    """To the first point at or after its end."""
    script = """() => {
      const x = [0, 5, 10, 15], iqm = { y: x, low: x, high: x };
      const run = { algorithm: "ppo", name: "PPO", place: 0, seeds: [0], x, iqm };
      const data = { env: "E", runs: [run] }, state = { ...defaults(data), show: "iqm" };
      return [7, 5, Infinity].map((end) => [
        linesOf(data, state, end)[0].points.map((p) => p.x),
        draw(data, state, 600, end).getAttribute("aria-label"),
      ]);
    }"""
    with opened(browser, site, CARTPOLE) as page:
        assert page.evaluate(script) == [
            [[0, 5, 10], "Learning curves on E, early learning"],
            [[0, 5], "Learning curves on E, early learning"],
            [[0, 5, 10, 15], "Learning curves on E"],
        ]


def test_names_do_not_lie_on_lines(browser: Any, site: Path) -> None:
    """A chart of a line that goes on where another ends has none; the switches are its legend."""
    script = """(level) => {
      const run = (algorithm, place, x, y) => ({
        algorithm, name: algorithm, place, seeds: [0], x, iqm: { y, low: y, high: y },
      });
      const runs = [run("ppo", 0, [0, 10], [0, 1]), run("a2c", 1, [0, 30], [level, level])];
      const data = { env: "E", runs }, state = { ...defaults(data), show: "iqm" };
      const names = draw(data, state, 900).querySelectorAll(".end-labels text");
      return [...names].map((x) => x.textContent);
    }"""
    with opened(browser, site, CARTPOLE) as page:
        assert sorted(page.evaluate(script, 0.2)) == ["a2c", "ppo"]
        assert page.evaluate(script, 1.0) == []
        looks = "d3.range(24).map((place) => `${place % 8} ${SYMBOLS.indexOf(symbol(place))}`)"
        assert len({*page.evaluate(looks)}) == 24  # colours with markers


def test_the_address_has_the_state(browser: Any, site: Path) -> None:
    given = "#algorithms=ppo,a2c&sb3=1&show=seeds&run=sb3-ppo&seed=4"
    with opened(browser, site, CARTPOLE + given) as page:
        page.locator("#curves svg").wait_for()
        assert curves(page) == 70
        assert page.get_by_label("SB3 (dashed)").is_checked()
        assert not page.get_by_label("REINFORCE").is_checked()
        assert page.locator("#run").input_value() == "sb3-ppo"
        assert "Seed 4" in page.locator("#run-details").inner_text()
        assert state(page) == given
        page.evaluate("location.hash = '#show=mean'")
        page.wait_for_function("document.querySelectorAll('#curves .curve path').length === 3")
    with opened(browser, site, f"{CARTPOLE}#algorithms=x&show=no&run=<b>&seed=-1") as page:
        page.locator("#curves svg").wait_for()  # what is no state is ignored
        assert curves(page) == 0


def test_details_of_a_run(browser: Any, site: Path) -> None:
    with opened(browser, site, CARTPOLE) as page:
        details = page.locator("#run-details")
        details.wait_for()
        assert "python the-command-of ppo seeds-000-029" in details.inner_text()
        assert "commit c0ffee" in details.inner_text()
        assert "learning_rate" in details.inner_text()
        assert details.locator(".films img").get_attribute("alt") == "PPO, worst seed (0)"
        page.wait_for_function("document.querySelector('.films img').naturalWidth === 60")
        page.locator("#run").select_option("a2c")
        assert "python the-command-of a2c" in details.inner_text()
        assert state(page) == "#run=a2c"
        page.locator("#seed").select_option("3")
        assert "Seed 3: final score 22.1, diverged at timestep 500" in details.inner_text()
        assert state(page) == "#run=a2c&seed=3"
        assert details.locator(".films").count() == 0
        page.locator("#run").focus()
        page.keyboard.press("ArrowUp")
        assert state(page) == "#run=sb3-ppo"
        assert page.evaluate("document.activeElement.id") == "run"
        details.get_by_text("Copy").click()
        details.get_by_text("Copied").wait_for()


def test_a_click_on_a_seed(browser: Any, site: Path) -> None:
    with opened(browser, site, f"{CARTPOLE}#algorithms=a2c&show=seeds") as page:
        box = page.locator("#curves svg").bounding_box()
        page.mouse.move(box["x"] + box["width"] - 17, box["y"] + 60)
        page.locator("#curves .tip tspan").first.wait_for()
        tip = page.locator("#curves .tip").text_content()
        assert re.search(r"A2C, seed \d", tip)
        assert re.search(r"44[89]\.5|450\.5", tip)
        page.mouse.click(box["x"] + box["width"] - 17, box["y"] + 60)
        assert re.search(
            r"Seed \d: final score 4(49|50)\.5", page.locator("#run-details").inner_text()
        )
        assert "run=a2c&seed=" in state(page)


def test_the_keyboard_reaches_all_switches(browser: Any, site: Path) -> None:
    with opened(browser, site, CARTPOLE) as page:
        page.locator("#curves svg").wait_for()
        page.get_by_label("PPO", exact=True).focus()
        page.keyboard.press("Space")
        assert state(page) == "#algorithms=a2c,reinforce"
        reached = set()
        for _ in range(12):
            page.keyboard.press("Tab")
            reached.add(page.evaluate("document.activeElement.name || document.activeElement.id"))
        assert {"algorithm", "sb3", "show", "common", "normalised", "log", "run"} <= reached


def test_transcripts(browser: Any, site: Path) -> None:
    with opened(browser, site, "language-models.html") as page:
        table = page.locator(".transcripts")
        table.locator("td").first.wait_for()
        assert page.locator("[name=method]").input_value() == "GRPO"
        rows = table.locator("tbody tr").all()
        assert len(rows) == 11
        assert "✗ wrong" in table.inner_text()
        assert "✓ right" in rows[-1].inner_text()
        before = table.inner_text()
        assert HOSTILE in before
        assert page.locator("main img").count() == 0
        page.locator("[name=seed]").select_option("1")
        assert table.inner_text() != before
        assert "method=GRPO&seed=1" in state(page)
        after = table.inner_text()
        page.reload()
        table.locator("td").first.wait_for()
        assert table.inner_text() == after


def test_steps_of_a_plan(browser: Any, site: Path) -> None:
    with opened(browser, site, "planning.html") as page:
        place = page.locator("[data-chart]", has=page.locator(".board")).first
        place.wait_for()
        slider = place.locator("input")
        assert int(slider.get_attribute("max")) > 5
        shown = place.locator(".board").inner_text()
        slider.fill("0")
        assert place.locator(".board").inner_text() != shown
        assert "iteration 1" in place.locator("output").inner_text()


def test_lines_have_their_names_at_their_ends(browser: Any, site: Path) -> None:
    """And a legend, whose buttons hide lines, where there is no room for the names."""
    with opened(browser, site, "speed.html") as page:
        panel = page.locator(".panel").first
        panel.locator("svg").wait_for()
        names = panel.locator(".end-labels text")
        assert sorted(names.all_text_contents()) == ["SB3", "manyseeds", "rejax"]
        heights = sorted(name.bounding_box()["y"] for name in names.all())
        assert min(b - a for a, b in itertools.pairwise(heights)) > 10
        assert panel.locator("svg").get_attribute("role") == "img"
        dashes = [line.get_attribute("stroke-dasharray") for line in panel.locator(".curve").all()]
        assert len({*dashes}) == 3
        button = page.locator(".legend button", has_text="SB3").first
        assert not button.is_visible()
        page.set_viewport_size({"width": 220, "height": 900})
        button.wait_for()
        assert names.count() == 0
        button.focus()
        page.keyboard.press("Enter")
        assert button.get_attribute("aria-pressed") == "false"
        assert panel.locator(".curve").count() == 2


def test_the_text_at_the_pointer_is_above_all_lines(browser: Any, site: Path) -> None:
    with opened(browser, site, CARTPOLE) as page:
        page.locator("#curves svg").wait_for()
        box = page.locator("#curves .curve path").first.bounding_box()
        page.mouse.move(box["x"] + box["width"], box["y"])
        page.locator("#curves .tip tspan").first.wait_for()
        drawn = page.locator("#curves svg > g, #curves svg > path").all()
        assert drawn[-1].get_attribute("class") == "tip"
        assert any(mark.get_attribute("class") == "over" for mark in drawn)


@pytest.mark.slow
def test_print(browser: Any, site: Path) -> None:
    """All figures and what is folded, whatever has been in view; nothing is wider than paper."""
    for file in sorted(path.name for path in site.glob("*.html")):
        with opened(browser, site, file, scheme="dark") as page:
            page.wait_for_function("document.readyState === 'complete'")
            page.wait_for_timeout(100)  # the data are unpacked
            folded = page.locator("main details:not([open])").count()
            page.evaluate(
                """addEventListener("beforeprint", () => {
                  const places = [...document.querySelectorAll("[data-chart], #curves")];
                  window.undrawn = places.filter((x) => !x.querySelector("svg, table")).length;
                  window.folded = document.querySelectorAll("main details:not([open])").length;
                })"""
            )
            page.pdf(format="A4")
            assert page.evaluate("[window.undrawn, window.folded]") == [0, 0], file
            assert page.locator("main details:not([open])").count() == folded
            page.set_viewport_size({"width": PAPER, "height": 900})
            page.emulate_media(media="print")
            page.evaluate("dispatchEvent(new Event('beforeprint'))")
            assert page.evaluate("document.documentElement.scrollWidth") <= PAPER + 1, file
            light = "getComputedStyle(document.documentElement).getPropertyValue('--page')"
            assert page.evaluate(light).strip() == "#ffffff"
            assert not page.locator(".top").is_visible()
    with opened(browser, site, CARTPOLE) as page:
        page.uncheck("[name=algorithm] >> nth=1")
        page.emulate_media(media="print")
        shown = page.locator("#switches :is(legend, label):visible")
        assert shown.all_inner_texts() == ["Algorithms", "PPO", "REINFORCE"]  # a legend
        assert not page.locator("#switches input:visible").count()
        page.emulate_media(media="screen")
        page.check("[name=sb3]")
        page.emulate_media(media="print")
        sides = ["Sides", "SB3 (dashed)"]
        assert shown.all_inner_texts() == ["Algorithms", "PPO", "REINFORCE", *sides]
    with opened(browser, site, "language-models.html") as page:
        assert page.locator(".switches").is_visible()
        page.emulate_media(media="print")
        assert not page.locator(".switches").is_visible()


def test_tables_can_be_sorted(browser: Any, site: Path) -> None:
    with opened(browser, site, CARTPOLE) as page:
        table = page.locator("table", has_text="AUC against SB3").first
        column = table.locator("thead button", has_text="final score")

        def scores() -> list[float]:
            cells = table.locator("tbody tr td:nth-child(5)").all_inner_texts()
            return [float(cell.split()[0]) for cell in cells]

        # A2C has nine seeds with 450, and one that diverged, which counts as 22.1.
        assert scores() == [490.0, 407.2, 300.0]
        column.click()
        assert scores() == [300.0, 407.2, 490.0]
        assert table.locator("th[aria-sort=ascending]").inner_text().startswith("final score")
        column.click()
        assert scores() == [490.0, 407.2, 300.0]
        table.locator("thead button", has_text="algorithm").focus()
        page.keyboard.press("Enter")
        assert scores() == [407.2, 490.0, 300.0]  # A2C, PPO, REINFORCE
        assert table.locator("th[aria-sort]").count() == 1
    with opened(browser, site, "speed.html") as page:
        fold = page.locator("details", has_text="Q-learning on FrozenLake-v1").last
        fold.locator("summary").click()
        table = fold.locator("table", has_text="timesteps/s").first
        table.locator("thead button", has_text="timesteps/s").click()
        cells = table.locator("tbody tr td:nth-child(3)").all_inner_texts()
        speeds = [int(cell.replace(",", "")) for cell in cells]
        assert speeds == sorted(speeds) != [int(text) for text in sorted(map(str, speeds))]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("gridworld.html#gamma=2", "gamma 2: must be a number from 0 to 1"),
        ("gridworld.html#size=7.5", "rows 7.5: must be a whole number from 2 to 12"),
        ("gridworld.html#size=4x5x6", "size 4x5x6: must be as 8, or 4x12"),
        ("gridworld.html#goal=9.9", "goal 9.9: is no cell of a grid of 8 by 8"),
        ("gridworld.html#goal=4.4", "trap 4.4: goal is there already"),
        ("gridworld.html#walls=<b>x</b>", "walls <b>x</b>: is no cell"),
        ("gridworld.html#rewards=1.1:1e3", "reward 1e3: must be a number from -100 to 100"),
        ("gridworld.html#rewards=1.1", "rewards 1.1: must have 2 parts"),
        ("gridworld.html#jumps=1.1:4.4:1", "jumps 1.1:4.4: leads nowhere"),
        ("gridworld.html#gamma=1&goal=", "so γ is 0.99: a walk that never ends costs nothing"),
        ("gridworld.html#policy=-1", "policy -1: must be a step as 3, or end"),
        ("grpo.html#method=ppo2", "method ppo2: must be ppo, grpo, dr_grpo, dapo"),
        ("grpo.html#group=<i>", "group <i>: must be mixed"),
        ("grpo.html#kl=-1", "kl -1: must be a number from 0 to 5"),
        ("grpo.html#overlongCache=2.5", "overlongCache 2.5: must be a whole number from 0 to 32"),
        ("grpo.html#std=1", "std 1: must be true, false"),
        ("grpo.html#rewards=9:1", "rewards 9: there is no such completion"),
        ("grpo.html#rewards=1:x", "reward x: must be a number from -10 to 10"),
        ("grpo.html#size=65", "size 65: must be a whole number from 2 to 64"),
        ("grpo.html#p=1", "p 1: must be a number from 0.01 to 0.99"),
    ],
)
def test_an_address_that_is_wrong_says_why(
    browser: Any, site: Path, address: str, words: str
) -> None:
    with opened(browser, site, address) as page:
        assert words in page.locator(".problem").inner_text()
        assert address.startswith("gridworld") or not state(page)


def test_no_inline_script_runs(browser: Any, site: Path, tmp_path: Path) -> None:
    """Were stored text ever to become markup, its scripts would still not run."""
    shutil.copytree(site, tmp_path / "site")
    file = tmp_path / "site" / "environments.html"
    evil = "<script>document.title = 'evil'</script><img src=x onerror=\"document.title = 'evil'\">"
    file.write_text(file.read_text().replace("</main>", f"{evil}</main>"))
    context = browser.new_context(offline=True)
    page = context.new_page()
    page.goto(file.as_uri())
    page.wait_for_timeout(200)
    assert page.title() == "Environments - manyseeds"
    context.close()


@pytest.mark.parametrize(
    ("file", "place", "words"),
    [
        (CARTPOLE, "#curves", "The curves require JavaScript"),
        (CARTPOLE, "table", r"490\.0 \[489\.\d, 490\.\d\]"),
        ("gridworld.html", ".optimum tr", r"0\.25"),
        ("gridworld.html", "body", r"10 policies and\s390 sweeps"),
    ],
)
def test_without_scripts_there_are_the_tables(
    browser: Any, site: Path, file: str, place: str, words: str
) -> None:
    with opened(browser, site, file, java_script_enabled=False) as page:
        text = page.locator(place).first.inner_text().replace("\N{NO-BREAK SPACE}", " ")
        assert re.search(words, text)


@pytest.mark.slow
def test_the_published_results(browser: Any, tmp_path: Path) -> None:
    """All published runs: at most 5.5 MB, and every page fits a telephone and a wide screen."""
    website.main(["--results", str(ROOT / "results"), "--out", str(tmp_path)])
    assert sum(path.stat().st_size for path in tmp_path.rglob("*") if path.is_file()) < 5.5e6
    check_links(tmp_path, whole=True)
    with opened(browser, tmp_path, "index.html") as page:
        page.locator(".forest li").last.wait_for()
        assert page.locator("main").bounding_box()["height"] < 750  # of 800: one screen
    for path in sorted(tmp_path.glob("*.html")):
        for width in (390, 1600):
            with opened(browser, tmp_path, path.name, width) as page:
                wide = page.evaluate("document.documentElement.scrollWidth")
                assert wide <= width, path.name
