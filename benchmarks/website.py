"""Writes the results as a static site: pages with interactive charts, opened from a file.

    python benchmarks/website.py                       your own runs and the published ones
    python benchmarks/website.py --results results     the published runs alone (make site)
    python benchmarks/website.py --results results --films    with films (make films)

Open OUT/index.html in a browser. The site needs neither a network nor a server. `--films` draws an
episode of the median and of the worst seed of each run whose weights are on this machine, which
takes some minutes. The folder is replaced as a whole or not at all, and keeps the films that are
not drawn again. The same store gives the same bytes. Invalid parts are skipped with a warning.
"""

from __future__ import annotations

from manyseeds.command import failing_in_one_line

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from manyseeds.benchmarks.store.whole import Store, read_store
from manyseeds.benchmarks.web import (
    chapter,
    code,
    docs,
    environment,
    films,
    front,
    gridworld,
    grpo,
    overview,
)
from manyseeds.benchmarks.web.page import HERE, Page, html
from manyseeds.cli import ScriptConfig, parse, path_of
from manyseeds.errors import UsageError
from manyseeds.record import layers
from manyseeds.untrusted import copy_file, files_in
from manyseeds.writing import replace_folder, write_bytes

MARK = ".manyseeds-site"  # a file in every folder that this script has written
ASSETS = {"static": "*", "vendor": "*"}


def site_pages(store: Store, out: Path) -> tuple[list[Page], dict[str, Path]]:
    """All pages, in the order in which they are written and listed, and images by their place."""
    folder = out / films.FOLDER
    pages = [
        *gridworld.pages(),
        *grpo.pages(store.results),
        *overview.pages(store),
        *environment.pages(store, folder),
        *chapter.pages(store),
        *code.pages(),
    ]
    found = docs.documentation(pages)
    return [front.page(store, folder, found.guides), *found.pages.values(), *pages], found.pictures


def check_out(out: Path) -> None:
    """Raise UsageError for a folder that this script has not written and that is not empty."""
    if out.exists() and not out.is_dir():
        raise UsageError(f"--out {out}: is not a folder")
    if out.is_dir() and any(out.iterdir()) and not (out / MARK).is_file():
        raise UsageError(f"--out {out}: has files that are no site; name an empty or a new folder")


def write_site(results: Path, out: Path, drawn: bool = False) -> None:
    """Write the site of a results folder; drawn: with new films.

    Raises UsageError where there is no such folder, and for an `out` that is no site.
    """
    if not any(layer.is_dir() for layer in layers(results)):
        raise UsageError(f"--results {results}: there is no such folder")
    check_out(out)
    store = read_store(results)

    def fill(fresh: Path) -> int:
        write_bytes(fresh / MARK, b"")
        if (out / films.FOLDER).is_dir():
            for name in files_in(out / films.FOLDER):
                copy_file(out / films.FOLDER / name, fresh / films.FOLDER / name)
        if drawn:
            films.write_films(store, fresh / films.FOLDER)
        for folder in ASSETS:
            shutil.copytree(HERE / folder, fresh / folder)
        pages, pictures = site_pages(store, fresh)
        for place, source in pictures.items():
            copy_file(source, fresh / place)
        for page in pages:  # whose stored text may have what UTF-8 has not
            write_bytes(fresh / page.file, html(page, pages).encode(errors="replace"))
        check_out(out)  # films take minutes
        return len(pages)

    count = replace_folder(out.resolve(), fill)  # a link to a folder stays one
    size = sum(path.stat().st_size for path in out.rglob("*") if path.is_file())
    print(f"site: {out / 'index.html'} ({count} pages, {size / 2**20:.1f} MiB)")


@dataclass(frozen=True, kw_only=True)
class Flags(ScriptConfig):
    """Flags of the site."""

    out: str = "build/site"
    """Folder for the site."""
    films: bool = False
    """Draw films of the policies anew."""

    def __post_init__(self) -> None:
        if not self.out:
            raise UsageError("--out '': must name a folder")


@failing_in_one_line()
def main(args: Sequence[str] | None = None) -> None:
    flags = parse(Flags, {}, __doc__, args)
    try:
        write_site(Path(flags.results), path_of(flags.out, "--out"), flags.films)
    except OSError as error:  # no space, no permission
        raise UsageError(f"--out {flags.out}: {error}") from None


if __name__ == "__main__":
    main()
