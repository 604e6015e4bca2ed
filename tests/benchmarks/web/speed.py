"""How fast the pages of a site are: largest contentful paint, and from an event to its picture.

    python -m tests.benchmarks.web.speed build/site

Every page is opened from its file, `--repeats` times, in a new profile; the median counts. Of the
pages with switches each one is used once; the slowest one counts, from the event to the end of
the frame that follows it. Targets: 1 s and 100 ms.
Not a test: times on a busy machine say nothing.
"""

from __future__ import annotations

import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from playwright.sync_api import Browser, Locator, Page, sync_playwright
from tyro.conf import Positional

from manyseeds.cli import parse
from manyseeds.progress import print_table
from tests.benchmarks.web.conftest import NAMES

OBSERVE = """
window.paint = 0;
window.events = [];
new PerformanceObserver((list) => list.getEntries().forEach((e) => { window.paint = e.startTime; }))
  .observe({ type: "largest-contentful-paint", buffered: true });
// A task behind a frame runs when the frame is drawn, also where it looks as the one before.
for (const name of ["click", "keydown", "input", "change"]) {
  window.addEventListener(name, (event) => requestAnimationFrame(() => {
    const channel = new MessageChannel();
    channel.port1.onmessage = () => window.events.push(performance.now() - event.timeStamp);
    channel.port2.postMessage(null);
  }), { capture: true });
}
"""
SETTLE = 200  # ms that a page has for what follows an event


@dataclass(frozen=True)
class Flags:
    site: Positional[Path] = Path("build/site")
    """Folder of the site."""
    repeats: int = 3
    """How often each page is opened."""


def opened(browser: Browser, file: Path) -> Page:
    """A page in a profile of its own, observed from its beginning."""
    page = browser.new_context(viewport={"width": 1280, "height": 900}).new_page()
    page.add_init_script(OBSERVE)
    page.goto(file.resolve().as_uri(), wait_until="load")
    page.wait_for_timeout(SETTLE)
    return page


def slowest(page: Page, box: Locator, key: str) -> float:
    """Milliseconds from an event to the next picture, the longest of all that using it causes."""
    page.evaluate("window.events = []")
    use(box, key)
    page.wait_for_timeout(SETTLE)
    return float(page.evaluate("Math.max(0, ...window.events)"))


def switches(page: Page) -> list[tuple[str, Locator, str]]:
    """What a reader can use on a page: its name, itself, and the key or `` for a click."""
    found = []
    for box in page.locator("form input").all():
        kind, name = box.get_attribute("type"), box.get_attribute("id") or box.get_attribute("name")
        value = box.get_attribute("value") or ""
        found.append((f"{name} {value}".strip(), box, "ArrowUp" if kind == "number" else ""))
    buttons = page.locator("main button:not(.sort)").all()
    for button in [*buttons, *page.locator("main button.sort").all()[:3]]:
        found.append((button.inner_text(), button, ""))
    return found


def use(box: Locator, key: str) -> None:
    """One event, where the element can be used now."""
    if not box.is_visible() or not box.is_enabled():
        return
    box.scroll_into_view_if_needed()
    box.page.wait_for_timeout(SETTLE)
    if key:
        box.press(key, timeout=1000)
    else:
        box.click(timeout=1000)


def main() -> None:
    """Measure all pages, print a table."""
    given = parse(Flags, {}, __doc__)
    path = next(filter(None, map(shutil.which, NAMES)), None)
    if path is None:
        sys.exit("needs a browser: make browser")
    rows = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        for file in sorted(given.site.glob("*.html")):
            paints = []
            for _ in range(given.repeats):
                page = opened(browser, file)
                paints.append(page.evaluate("window.paint"))
                page.context.close()
            page = opened(browser, file)
            page.evaluate(
                "document.querySelectorAll('main details').forEach((x) => { x.open = true; })"
            )
            for name in ("rows", "columns"):  # the largest grid
                if page.locator(f"#{name}").count():
                    page.fill(f"#{name}", "12")
            times: dict[str, float] = {}
            for name, box, key in switches(page):
                times[name] = max(times.get(name, 0), slowest(page, box, key))
            worst = max(times, key=times.__getitem__, default="")
            shown = f"{times[worst]:.0f}" if times else ""
            rows.append((file.name, f"{median(paints):.0f}", str(len(times)), shown, worst))
            page.context.close()
    print_table("Milliseconds", ("page", "paint", "events", "slowest", "by"), rows)


if __name__ == "__main__":
    main()
