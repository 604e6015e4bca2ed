"""What the README says can be done, can be done."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from algos import ppo
from manyseeds.cli import from_preset
from manyseeds.digest import ROOT
from manyseeds.record import RunFolder

README = (ROOT / "README.md").read_text()


def test_links_and_scripts_exist() -> None:
    links = re.findall(r"\]\(([^)#:]+)\)", README)
    scripts = re.findall(r"python ((?:algos|benchmarks)/\w+\.py)", README)
    assert len(links) > 5
    assert len(scripts) > 4
    for path in links + scripts:
        assert (ROOT / path).exists(), path


def test_make_targets_exist() -> None:
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"^make ([\w-]+)", README, re.MULTILINE)) == {"benchmark", "test"}
    assert {"benchmark", "test", "test-all"} <= targets


def test_python_example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The block runs as it stands; the stored run that it loads is made first, and is smaller."""
    monkeypatch.chdir(tmp_path)
    (block,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    (part,) = re.findall(r'load\("(.*?)"\)', block)
    preset = from_preset(ppo.Config, ppo.PRESETS, "CartPole-v1")
    assert Path(part).parent == RunFolder.of(preset, "ppo").path
    name = part.split("/")[-2]
    command = f"algos/ppo.py --seeds 10 --total-timesteps 512 --name {name} --quiet".split()
    command[0] = str(ROOT / command[0])
    subprocess.run([sys.executable, *command], check=True, capture_output=True)
    scope: dict[str, Any] = {}
    exec(block, scope)
    assert scope["actions"].shape == (3, 1)
    assert set(scope["curve"]["seed"]) == {0, 1, 2}
    assert scope["policy"].act(scope["obs"][:1].expand(10, -1, -1)).shape == (10, 1)


# What scripts import.
IMPORTED = {"language_models", "policy_gradients", "suite", "tabular", "taxonomy"}
IMPORTED |= {"measure"}
IMPORTED |= {"tasks", "models", "sampling", "evaluation"}


@pytest.mark.parametrize(
    "script", sorted(path.relative_to(ROOT).as_posix() for path in ROOT.glob("[abl]*/[!_]*.py"))
)
def test_every_script_explains_itself_from_anywhere(script: str, tmp_path: Path) -> None:
    """`python DIR/x.py` puts DIR first on the path: no file may hide a module others import."""
    if Path(script).stem in IMPORTED:
        return
    done = subprocess.run(
        [sys.executable, ROOT / script, "--help"], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "usage:" in done.stdout.lower()
    assert not list(tmp_path.iterdir())
