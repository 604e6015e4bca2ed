"""docs/probes.md, executed."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from manyseeds.benchmarks.experiments import jax_peer
from manyseeds.digest import ROOT
from manyseeds.probes import FORMULAS

PAGE = (ROOT / "docs" / "probes.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
OF_JAX = [block for block in BLOCKS if "rejax" in block]
OF_CURVES = [block for block in BLOCKS if "learns_like(" in block]


def test_the_page_does_what_it_says() -> None:
    scope: dict[str, Any] = {}
    first, *rest = [block for block in BLOCKS if block not in OF_JAX + OF_CURVES]
    with pytest.raises(AssertionError) as raised:
        exec(first, scope)
    (said,) = re.findall(r"^AssertionError: (.*)$", PAGE, re.MULTILINE)
    assert str(raised.value) == said
    for block in rest:
        exec(block, scope)
    assert len(scope["unseen"]) > 3


@pytest.mark.slow
@pytest.mark.usefixtures("few_evaluations")
def test_curves_of_sb3_pass() -> None:
    """Cut to a fifth."""
    (block,) = OF_CURVES
    cut = block.replace("range(10)", "range(2)").replace("range(1, 11)", "range(1, 3)")
    exec(cut.replace("20_480", "4_096").replace("range(5)", "range(3)"), {})


@pytest.mark.slow
@pytest.mark.skipif(not jax_peer.found("cpu"), reason="no .venv-jax")
def test_rejax_is_checked(tmp_path: Path) -> None:
    (block,) = OF_JAX
    command = [str(jax_peer.PYTHON), "-c", block]
    subprocess.run(command, cwd=ROOT, check=True, timeout=600)
    wrong = block.replace('gamma=batch["gamma"]', 'gamma=batch["gae_lambda"]')
    done = subprocess.run(
        [*command[:2], wrong], cwd=ROOT, capture_output=True, text=True, timeout=600
    )
    assert "AssertionError: ppo.advantages: " in done.stderr


def test_the_table_has_every_formula() -> None:
    rows = re.findall(r"^\| `([\w.]+)` \| (.*?) \| (.*) \|$", PAGE, re.MULTILINE)
    assert [name for name, *_ in rows] == list(FORMULAS)
    for name, output, given in rows:
        formula = FORMULAS[name]
        assert output == formula.output + ", gradients" * bool(formula.differentiated)
        shapes = [f"`{k}` {shape}".strip() for k, shape in formula.shapes.items()]
        assert given == ", ".join(shapes)
