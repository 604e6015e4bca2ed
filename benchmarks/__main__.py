"""Lists the commands of this folder, a line each: python -m manyseeds.benchmarks."""

from __future__ import annotations

from manyseeds.command import failing_in_one_line

import ast
import re
from pathlib import Path

from manyseeds.progress import console

FOLDER = Path(__file__).parent
# By the room that has the code of a command; those without one have it here.
GROUPS = {
    "": "Train, compare, show",
    "baselines": "Baselines: the same training by other libraries",
    "measurements": "Measurements",
}


def module_behind(command: Path) -> str:
    """The module with the code of a command: another one where its file is but a door to it."""
    text = command.read_text()
    found = re.search(r"^from (manyseeds\.benchmarks\.\w+\.\w+) import main$", text, re.M)
    return found[1] if found else f"manyseeds.benchmarks.{command.stem}"


def commands() -> dict[str, dict[str, str]]:
    """The first line of each command's docstring, by group and file name."""
    groups: dict[str, dict[str, str]] = {title: {} for title in GROUPS.values()}
    for path in sorted(FOLDER.glob("[a-z]*.py")):
        text = path.read_text()
        if "\nif __name__ ==" in text:
            about = (ast.get_docstring(ast.parse(text)) or "").partition("\n")[0]
            _, _, *room, _ = module_behind(path).split(".")
            groups[GROUPS["".join(room)]][path.name] = about
    return groups


@failing_in_one_line()
def main() -> None:
    for title, found in commands().items():
        console.print(f"{title}\n", style="bold", highlight=False)
        for name, about in found.items():
            console.print(f"  python benchmarks/{name:<22} {about}", highlight=False, markup=False)
        console.print()


if __name__ == "__main__":
    main()
