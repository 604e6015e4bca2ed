"""The notebook: it runs from top to bottom, and what is stored of it is of its own code."""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from manyseeds.benchmarks.experiments.verdicts import LOOKS, OURS
from manyseeds.digest import ROOT

TOUR = ROOT / "examples" / "tour.ipynb"
SAID = (  # what the code prints, up to its numbers
    "10 seeds of 30,720 timesteps in",
    "IQM of the final score:",
    "learning speed against A2C:",
    "final score against SB3:",
    "IQM of SAC's final score:",
    "learning speed without the minimum:",
    "learning_rate",
    "reset(seed=0): return",
)


def check_outputs(notebook: nbformat.NotebookNode) -> str:
    """It has its pictures, in their order, and says what it should; all that it has printed."""
    outputs = [x for cell in notebook.cells for x in cell.get("outputs", ())]
    kinds = [kind for x in outputs for kind in x.get("data", {}) if kind.startswith("image/")]
    assert kinds == ["image/png"] * 5 + ["image/gif"]
    printed = "\n".join(x.get("text") or str(x.get("data", {}).get("text/plain")) for x in outputs)
    assert not [text for text in SAID if text not in printed]
    return printed


def test_stored_outputs_are_those_of_one_run() -> None:
    notebook = nbformat.read(TOUR, as_version=4)
    nbformat.validate(notebook)
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    check_outputs(notebook)


def test_it_states_the_looks_of_the_rule() -> None:
    text = " ".join(cell.source for cell in nbformat.read(TOUR, as_version=4).cells)
    first = ", ".join(map(str, LOOKS[:-1]))
    rule = f"looking at {first} and {LOOKS[-1]} seeds of SB3's, against up to {OURS} of ours"
    assert rule in " ".join(text.split())


@pytest.mark.slow
def test_runs_from_top_to_bottom(tmp_path: Path) -> None:
    """In a folder of its own: it writes nothing beside itself."""
    notebook = nbformat.read(TOUR, as_version=4)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs = []
    resources = {"metadata": {"path": str(tmp_path)}}
    NotebookClient(notebook, timeout=600, resources=resources).execute()
    said = check_outputs(notebook)
    # The same training as the one without the changed line would differ by exactly nothing.
    (line,) = (x for x in said.splitlines() if x.startswith("learning speed without the minimum"))
    assert "saturated" not in line
    assert "difference +0.000 [+0.000, +0.000]" not in line
    assert not list(tmp_path.iterdir())
